"""Certificates that are replaced while a broker runs: new connections use the new files, broken files change nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from minikafka.blocking.tls import client_context
from minikafka.config import parse_broker
from minikafka.hosting.certificates import CertificateFolder
from minikafka.testing.local_cluster import LocalCluster
from minikafka.testing.plugin import QUICK
from minikafka.world import tls
from minikafka.world.tls import Reloaded, server_context
from tests.e2e.test_tls import Certificates, broker

pytestmark = [pytest.mark.e2e]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are looked at before every handshake."""
    monkeypatch.setattr(tls, "RELOAD_S", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    made = CertificateFolder(tmp_path / "certs")
    made.make_ca()
    made.make_broker("broker", ["localhost"])
    made.make_client("client")
    return made


def context_of(folder: CertificateFolder) -> ssl.SSLContext:
    return client_context(cafile=str(folder.ca), certfile=str(folder.path("client")))


def principal(port: int, context: ssl.SSLContext) -> str:
    with urllib.request.urlopen(f"https://localhost:{port}/v1/whoami", timeout=60, context=context) as answer:
        return json.load(answer)["principal"]


def replace(path: Path, content: bytes) -> None:
    """As deployments do it: another file under the same name."""
    new = path.with_name("new")
    new.write_bytes(content)
    new.chmod(0o600)
    new.replace(path)


REFUSED = (urllib.error.URLError, ssl.SSLError, ConnectionError)


async def test_new_connections_use_new_files_and_a_removed_ca_is_refused(folder, tmp_path):
    """Hostile test 18: a CA is replaced; clients of the old one get no further connection."""
    files = Certificates(folder.ca, folder.path("broker"), folder.path("client"), folder.path("client"))
    async with broker(files, tmp_path / "data", ssl_client_auth="required") as port:
        old = context_of(folder)
        assert await asyncio.to_thread(principal, port, old) == "User:CN=client"
        folder.make_ca(force=True)
        folder.make_broker("broker", ["localhost"], force=True)
        folder.make_client("client", force=True)
        assert await asyncio.to_thread(principal, port, context_of(folder)) == "User:CN=client"
        with pytest.raises(REFUSED):
            await asyncio.to_thread(principal, port, old)


def whoami_over(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None
) -> tuple[bytes, ssl.SSLSession, bool]:
    """The answer to a request, the session of its connection, and whether that one was resumed."""
    with (
        socket.create_connection(("localhost", port), 60) as plain,
        context.wrap_socket(plain, server_hostname="localhost", session=session) as connection,
    ):
        connection.sendall(b"GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert connection.session is not None
        return answer, connection.session, bool(connection.session_reused)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["TLS 1.2", "TLS 1.3"])
async def test_a_session_does_not_outlive_its_ca(folder, tmp_path, version: ssl.TLSVersion):
    """Hostile test 18: a session of a certificate whose CA was removed is not resumed, and a new one is refused.

    A resumed session is not verified again. TLS 1.3 has none without tickets; TLS 1.2 has sessions with an id.
    """
    files = Certificates(folder.ca, folder.path("broker"), folder.path("client"), folder.path("client"))
    async with broker(files, tmp_path / "data", ssl_client_auth="required") as port:
        old = context_of(folder)
        old.minimum_version = old.maximum_version = version
        _, session, _ = await asyncio.to_thread(whoami_over, port, old, None)
        assert not session.has_ticket
        answer, session, is_resumed = await asyncio.to_thread(whoami_over, port, old, session)
        assert b"User:CN=client" in answer
        assert is_resumed == (version == ssl.TLSVersion.TLSv1_2)
        (tmp_path / "others").mkdir()
        others = CertificateFolder(tmp_path / "others")
        others.make_ca()
        # The broker's own certificate stays: the client, which trusts its CA, would go on.
        replace(files.ca, others.ca.read_bytes())
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(whoami_over, port, old, session)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(whoami_over, port, old, None)


async def test_other_names_are_refused_unless_they_are_allowed(folder, tmp_path, capsys):
    """Hostile test 19, as in Kafka: the subject stays, and no alternative name is lost; more of them are right."""
    files = Certificates(folder.ca, folder.path("broker"), folder.path("client"), folder.path("client"))

    def make(name: str, *hosts: str) -> bytes:
        folder.make_broker(name, list(hosts), force=True)
        return folder.path(name).read_bytes()

    before = files.broker.read_bytes()
    lost, other = make("broker", "127.0.0.1"), make("another", "localhost")
    more = make("broker", "localhost", "127.0.0.1")
    replace(files.broker, before)

    def served(port: int) -> frozenset[tuple[str, str]]:
        with (
            socket.create_connection(("127.0.0.1", port), 60) as plain,
            context_of(folder).wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            names = connection.getpeercert() or {}
            return frozenset(names["subjectAltName"])

    async with broker(files, tmp_path / "data", ssl_client_auth="required", mk_log_level="warning") as port:
        for wrong in (lost, other):
            replace(files.broker, wrong)
            assert await asyncio.to_thread(served, port) == {("DNS", "localhost")}
        replace(files.broker, more)
        assert await asyncio.to_thread(served, port) == {("DNS", "localhost"), ("IP Address", "127.0.0.1")}
        replace(files.broker, before)
        assert await asyncio.to_thread(served, port) == {("DNS", "localhost"), ("IP Address", "127.0.0.1")}
    logged = [line for line in capsys.readouterr().err.splitlines() if "tls_reload_failed" in line]
    assert [name in line for name, line in zip(("ssl.allow.san.changes", "ssl.allow.dn.changes"), logged, strict=False)]
    assert len(logged) == 3
    allowed = {"ssl_allow_san_changes": "true", "ssl_allow_dn_changes": "true"}
    async with broker(files, tmp_path / "more", ssl_client_auth="required", **allowed) as port:
        replace(files.broker, make("another", "localhost", "127.0.0.2"))
        assert await asyncio.to_thread(served, port) == {("DNS", "localhost"), ("IP Address", "127.0.0.2")}


async def test_a_hundred_reloads_while_clients_connect(folder, tmp_path):
    """Hostile test 19: each handshake has one certificate or the other, and none fails."""
    files = Certificates(folder.ca, folder.path("broker"), folder.path("client"), folder.path("client"))
    one = files.broker.read_bytes()
    folder.make_broker("broker", ["localhost"], force=True)
    two = files.broker.read_bytes()
    assert one != two
    async with broker(files, tmp_path / "data", ssl_client_auth="required") as port:
        context, is_over = context_of(folder), asyncio.Event()

        async def connect() -> int:
            handshakes = 0
            while not is_over.is_set() or not handshakes:
                assert await asyncio.to_thread(principal, port, context) == "User:CN=client"
                handshakes += 1
            return handshakes

        clients = [asyncio.create_task(connect()) for _ in range(4)]
        for number in range(100):
            replace(files.broker, (one, two)[number % 2])
            assert await asyncio.to_thread(principal, port, context) == "User:CN=client"
        is_over.set()
        assert all(await asyncio.gather(*clients))


async def test_files_that_cannot_be_used_leave_the_old_ones_in_use(folder, tmp_path, capsys):
    """Hostile test 19: a key that does not fit, half a file, none at all; each is logged once, with the reason."""
    files = Certificates(folder.ca, folder.path("broker"), folder.path("client"), folder.path("client"))
    async with broker(files, tmp_path / "data", ssl_client_auth="required", mk_log_level="warning") as port:
        context, good = context_of(folder), files.broker.read_bytes()
        key, certificate = good.split(b"-----BEGIN CERTIFICATE-----")
        other = files.client.read_bytes().split(b"-----BEGIN CERTIFICATE-----")[1]
        for wrong in (key + b"-----BEGIN CERTIFICATE-----" + other, good[: len(good) // 2], b""):
            replace(files.broker, wrong)
            for _ in range(2):
                assert await asyncio.to_thread(principal, port, context) == "User:CN=client"
        files.broker.unlink()
        assert await asyncio.to_thread(principal, port, context) == "User:CN=client"
        replace(files.broker, good)
        assert await asyncio.to_thread(principal, port, context) == "User:CN=client"
    logged = [line for line in capsys.readouterr().err.splitlines() if "tls_reload_failed" in line]
    assert len(logged) == 4
    assert "KEY_VALUES_MISMATCH" in logged[0]
    assert not any("BEGIN" in line or certificate[:20].decode().strip() in line for line in logged)


def test_files_are_not_looked_at_before_every_handshake(folder, monkeypatch):
    """Strangers who connect must not cost a broker file accesses."""
    config = parse_broker(
        {"listeners": "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:2", "ssl.keystore.location": str(folder.path("broker"))}
    ).config
    built: list[ssl.SSLContext] = []

    def build() -> ssl.SSLContext:
        built.append(server_context(config))
        return built[-1]

    monkeypatch.setattr(tls, "RELOAD_S", 3600.0)
    reloaded = Reloaded(build, [str(folder.path("broker"))])
    folder.make_broker("broker", ["localhost"], force=True)
    assert reloaded.context is built[0]
    monkeypatch.setattr(tls, "RELOAD_S", 0.0)
    assert reloaded.context is built[1]
    assert reloaded.context is built[1]
    assert len(built) == 2


def test_brokers_call_each_other_with_new_certificates(tmp_path: Path):
    """Each broker is client and server: a cluster goes over to another CA without a restart of any of them."""
    with LocalCluster(2, tmp_path, config={**QUICK, "ssl.client.auth": "required"}, tls=True) as cluster:
        cluster.sync.create_topic("orders", replicas=2)
        folder = CertificateFolder(tmp_path / "certs")
        folder.make_ca(force=True)
        folder.make_broker("broker", ["localhost", "127.0.0.1"], force=True)
        folder.make_client("admin", force=True)
        cluster.kill(2)  # its connections are gone, and so are those to it
        cluster.restart(2)
        cluster.sync.wait.isr("orders", 0, {1, 2}, timeout_s=60)
        cluster.sync.produce("orders", b"tea")
        assert [each.value for each in cluster.sync.consume("orders", 1)] == [b"tea"]
