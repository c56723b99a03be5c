"""Certificates that are replaced while a broker runs: new connections use the new files, broken files change nothing."""

from __future__ import annotations

import asyncio
import json
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
    """SECURITY 8.7, tests 18 and 19: a CA is replaced; clients of the old one get no further connection."""
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


async def test_files_that_cannot_be_used_leave_the_old_ones_in_use(folder, tmp_path, capsys):
    """SECURITY 8.7, test 19: a key that does not fit, half a file, none at all; each is logged once, with the reason."""
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
