"""Contexts of TLS listeners: what they allow, when they are built again, and which resumed sessions they refuse."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minikafka.blocking.tls import client_context
from minikafka.broker.event_limiter import EventLimiter
from minikafka.config import BrokerConfig, parse_broker
from minikafka.errors import InvalidConfig
from minikafka.hosting.certificates import CertificateFolder
from minikafka.security.principals import NotAuthenticated, PrincipalMapping
from minikafka.world import tls
from minikafka.world.tls import Names, Reloaded, ServerTls, reads_in_turns, server_context, server_contexts


@pytest.fixture
def folder(tmp_path: Path) -> CertificateFolder:
    """A CA, a broker and a client."""
    made = CertificateFolder(tmp_path / "certs")
    made.make_ca()
    made.make_broker("broker", ["localhost"])
    made.make_client("billing")
    return made


def config_of(folder: CertificateFolder, **settings: str) -> BrokerConfig:
    listeners = "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:2,SASL_SSL://127.0.0.1:3"
    files = {"ssl.keystore.location": str(folder.path("broker")), "ssl.truststore.location": str(folder.ca)}
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return parse_broker({"listeners": listeners, "sasl.enabled.mechanisms": "SCRAM-SHA-512", **files, **given}).config


@pytest.mark.parametrize(
    ("protocols", "lowest", "highest"),
    [
        ("TLSv1.3,TLSv1.2", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3),
        ("TLSv1.3", ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3),
    ],
)
def test_listener_allows_the_versions_of_its_setting_and_safe_suites(
    folder: CertificateFolder, protocols: str, lowest: ssl.TLSVersion, highest: ssl.TLSVersion
):
    """In whatever order; no renegotiation, no compression, and no tickets, which would outlive a CA that is removed."""
    context = server_context(config_of(folder, ssl_enabled_protocols=protocols))
    assert (context.minimum_version, context.maximum_version) == (lowest, highest)
    wanted = ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
    assert context.options & wanted == wanted
    assert context.num_tickets == 0
    suites = [each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"]
    assert suites
    assert all(name.startswith("ECDHE-") and ("GCM" in name or "CHACHA20" in name) for name in suites)


def test_clients_that_log_in_need_no_certificate(folder: CertificateFolder):
    """As in Kafka, ``ssl.client.auth`` is for SSL listeners."""
    contexts = server_contexts(config_of(folder, ssl_client_auth="required"))
    modes = {name: each.context.verify_mode for name, each in contexts.items()}
    assert modes == {"SSL": ssl.CERT_REQUIRED, "SASL_SSL": ssl.CERT_NONE}


def test_reload_compares_names_with_those_in_use_and_looks_at_files_once_in_a_while(tmp_path: Path, monkeypatch):
    """A context whose names are refused is not used, and a file of the same time and size is another one."""
    now, looks = [0.0], []
    monkeypatch.setattr(tls, "time", SimpleNamespace(monotonic=lambda: now[0]))
    state_of = tls._state_of
    monkeypatch.setattr(tls, "_state_of", lambda path: looks.append(path) or state_of(path))
    path, compared = tmp_path / "key.pem", []
    answers: list[Any] = [Names(name, frozenset()) for name in (b"a", b"b")]
    answers += [InvalidConfig("another name"), Names(b"c", frozenset())]

    def check_names(before: Names | None) -> Names:
        compared.append(before and before.subject)
        answer = answers.pop(0)
        if isinstance(answer, InvalidConfig):
            raise answer
        return answer

    def replace() -> None:
        path.with_suffix(".new").write_bytes(b"same size")
        os.utime(path.with_suffix(".new"), ns=(0, 0))
        path.with_suffix(".new").replace(path)

    replace()
    events: list[str] = []
    reloaded = Reloaded(lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), [str(path), ""], check_names)
    reloaded.events = lambda kind, /, **_: events.append(kind)
    used = [reloaded.context]
    for _ in range(3):
        replace()
        now[0] += tls.RELOAD_S
        looks.clear()
        used += [reloaded.context, reloaded.context]
        assert looks == [str(path)]
    assert compared == [None, b"a", b"b", b"b"]
    assert events == ["tls_reloaded", "tls_reload_failed", "tls_reloaded"]
    assert [used.index(each) for each in used] == [0, 1, 1, 1, 1, 5, 5]


def test_a_key_whose_permissions_are_mended_is_used(folder: CertificateFolder, monkeypatch):
    """A new key that all users may read is refused; after the chmod that the event advises it is in use."""
    monkeypatch.setattr(tls, "RELOAD_S", 0.0)
    key = folder.path("broker")
    key.chmod(0o600)
    reloaded = server_contexts(config_of(folder))["SSL"]
    events: list[str] = []
    reloaded.events = lambda kind, /, **_: events.append(kind)
    used = reloaded.context
    new = key.with_suffix(".new")
    new.write_bytes(key.read_bytes())
    new.chmod(0o644)
    new.replace(key)
    assert reloaded.context is used
    key.chmod(0o600)
    assert reloaded.context is not used
    assert events == ["tls_reload_failed", "tls_reloaded"]


@pytest.mark.parametrize(
    ("is_resumed", "age_s", "is_refused"), [(True, 9.0, True), (True, -9.0, False), (False, 9.0, False)]
)
def test_session_does_not_outlive_the_certificate_of_its_client(
    folder: CertificateFolder, monkeypatch, is_resumed: bool, age_s: float, is_refused: bool
):
    """OpenSSL verifies the certificate of a whole handshake only; the refusal is in the log."""
    certificate = ssl.PEM_cert_to_DER_cert(
        folder.path("billing").read_text().partition("-----END PRIVATE KEY-----\n")[2]
    )
    ends = "Jan  1 00:00:00 2030 GMT"
    monkeypatch.setattr(tls, "time", SimpleNamespace(time=lambda: ssl.cert_time_to_seconds(ends) + age_s))

    class Connection:
        session_reused = is_resumed

        def getpeercert(self, *, binary_form: bool = False) -> object:
            return certificate if binary_form else {"notAfter": ends}

    events: list[str] = []
    limiter = EventLimiter(lambda kind, /, **_: events.append(kind), lambda: 0.0)
    listener = ServerTls(None, PrincipalMapping(), limiter)  # type: ignore[arg-type]
    transport: Any = SimpleNamespace(get_extra_info=lambda _: Connection())
    if is_refused:
        with pytest.raises(NotAuthenticated, match="has expired"):
            listener.principal(transport, "127.0.0.1")
    else:
        assert listener.principal(transport, "127.0.0.1") == "User:CN=billing"
    assert events == ["client_authentication_failed"] * is_refused


@pytest.mark.parametrize(
    ("is_reading", "is_closing", "resumes"), [(True, False, 1), (False, False, 0), (True, True, 0)]
)
def test_small_records_do_not_resume_a_transport_that_its_owner_paused(
    is_reading: bool, is_closing: bool, resumes: int
):
    """It would read on while there is no room for its requests."""
    resumed: list[Callable[[], bool]] = []
    secured = SimpleNamespace(is_held=True, read_later=None)
    transport: Any = SimpleNamespace(
        get_extra_info=lambda _: secured,
        is_reading=lambda: is_reading,
        is_closing=lambda: is_closing,
        pause_reading=lambda: None,
        resume_reading=lambda: resumed.append(secured),
    )

    async def story() -> None:
        reads_in_turns(transport)
        await asyncio.sleep(0)

    asyncio.run(story())
    assert (len(resumed), secured.is_held) == (resumes, False)


@pytest.mark.parametrize("setting", ["ssl_cafile", "ssl_certfile", "ssl_keyfile"])
def test_folder_in_place_of_a_clients_file_names_the_setting(setting: str, tmp_path: Path):
    """A folder can be opened and not read. The error of Python's ``ssl`` for that is not one of TLS."""
    files: dict[str, Any] = {"cafile": None, setting.removeprefix("ssl_"): str(tmp_path)}
    with pytest.raises(InvalidConfig, match=f"^{setting}=") as raised:
        client_context(**files)
    assert raised.value.facts["setting"] == setting
