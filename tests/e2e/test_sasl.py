"""SASL listeners with real brokers and clients: right and wrong passwords, users without ACLs, and renewed logins."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import resource
import socket
import ssl
import struct
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from minikafka import AdminClient as MinikafkaAdmin
from minikafka.broker.kafka_login import LOGIN_TIMEOUT_S
from minikafka.config.security import STANDARD_AUTHORIZER
from minikafka.errors import InvalidRequest, ResourceNotFound, UnacceptableCredential
from tests.certificates import authority, signed
from tests.e2e.listeners import running, two_free_ports

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 60.0
ATTEMPTS = 5
STRANGERS = 1000
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
PASSWORD = 'p"ass,w=ord\\ Ⅸ'
JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="p\\"ass,w=ord\\\\ Ⅸ" user_stranger="x";'
)


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process holds both ends of each connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * STRANGERS)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def broker(folder: Path, **settings: str) -> AsyncIterator[tuple[str, str]]:
    """A broker; yields the addresses of the listener of brokers and of the SASL listener of clients."""
    own, clients = two_free_ports()
    settings_of_broker = {
        "listeners": f"BROKERS://127.0.0.1:{own},CLIENTS://127.0.0.1:{clients}",
        "advertised.listeners": f"CLIENTS://localhost:{clients}",
        "inter.broker.listener.name": "BROKERS",
        "listener.security.protocol.map": "BROKERS:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.clients.plain.sasl.jaas.config": JAAS,
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ann",
        "log.dirs": str(folder),
        "mk.log.level": "error",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        **settings,
    }
    async with running(settings_of_broker):
        await asyncio.to_thread(prepare, f"127.0.0.1:{own}")
        yield f"127.0.0.1:{own}", f"localhost:{clients}"


def done(futures: dict[Any, Any]) -> None:
    """Wait for all operations of an administrator."""
    for future in futures.values():
        future.result(PATIENCE_S)


def upsertion(user: str, mechanism: str, password: str) -> UserScramCredentialUpsertion:
    info = ScramCredentialInfo(getattr(ScramMechanism, mechanism.replace("-", "_")), 4096)
    return UserScramCredentialUpsertion(user, info, password.encode())


def prepare(address: str) -> None:
    """Create a topic and the users ``ann`` and ``stranger``."""
    admin = AdminClient({"bootstrap.servers": address})
    done(admin.create_topics([NewTopic("orders", 1, 1)]))
    for mechanism in MECHANISMS[1:]:
        users = [upsertion("ann", mechanism, PASSWORD), upsertion("stranger", mechanism, "x")]
        done(admin.alter_user_scram_credentials(users))


def librdkafka(address: str, mechanism: str, user: str = "ann", password: str = PASSWORD) -> dict[str, Any]:
    """Settings of librdkafka."""
    return {
        "bootstrap.servers": address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def produce(settings: dict[str, Any], value: bytes = b"v") -> KafkaError | None:
    """Produce one record; return its error."""
    errors: list[KafkaError | None] = []
    producer = Producer({**settings, "message.timeout.ms": 20_000})
    producer.produce("orders", value, on_delivery=lambda error, _: errors.append(error))
    producer.flush(PATIENCE_S)
    return errors[0]


def is_refused(settings: dict[str, Any]) -> bool:
    """Return True when the login fails, False when a record was acknowledged."""
    refused: list[KafkaError] = []
    delivered: list[KafkaError | None] = []
    producer = Producer({**settings, "error_cb": refused.append})
    producer.produce("orders", b"v", on_delivery=lambda error, _: delivered.append(error))
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        producer.poll(0.1)
        if any(each.code() == KafkaError._AUTHENTICATION for each in refused):
            producer.purge()
            return True
        if None in delivered:
            return False
    raise AssertionError(f"neither was reported: {refused}, {delivered}")


def first_error(settings: dict[str, Any]) -> KafkaError:
    """The first error that librdkafka reports beside that all brokers are down."""
    errors: list[KafkaError] = []
    producer = Producer({**settings, "error_cb": errors.append})
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        producer.poll(0.1)
        found = [each for each in errors if each.code() != KafkaError._ALL_BROKERS_DOWN]
        if found:
            return found[0]
    raise AssertionError("librdkafka reported no error")


def consumed(settings: dict[str, Any]) -> list[bytes]:
    """The values of ``orders``, read to its end."""
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest", "enable.partition.eof": True})
    consumer.subscribe(["orders"])
    values: list[bytes] = []
    end = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < end:
            message = consumer.poll(0.2)
            if message is None:
                continue
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                return values
            values.append(message.value())
    finally:
        consumer.close()
    raise AssertionError(f"no end of the topic after {values}")


def aio(address: str, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    """Settings of aiokafka."""
    return {
        "bootstrap_servers": address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "ann",
        "sasl_plain_password": password,
    }


async def test_clients_log_in_with_every_mechanism(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """librdkafka, aiokafka and kafka-python; a wrong password is an authentication error to the first two."""
    async with broker(tmp_path) as (_, address):
        for number, mechanism in enumerate(MECHANISMS):
            right = librdkafka(address, mechanism)
            assert await asyncio.to_thread(produce, right, b"%d" % number) is None
            wrong = await asyncio.to_thread(first_error, librdkafka(address, mechanism, password="wrong"))
            unknown = await asyncio.to_thread(first_error, librdkafka(address, mechanism, user="nobody"))
            for error in (wrong, unknown):
                assert error.code() == KafkaError._AUTHENTICATION, error
                assert f"Authentication with {mechanism} failed" in error.str()
            await aiokafka_logs_in(address, mechanism, caplog)
            await asyncio.to_thread(kafka_python_logs_in, address, mechanism)
        read = await asyncio.to_thread(consumed, librdkafka(address, "PLAIN"))
        assert read == [b"0", b"aio", b"py", b"1", b"aio", b"py", b"2", b"aio", b"py"]


async def aiokafka_logs_in(address: str, mechanism: str, log: pytest.LogCaptureFixture) -> None:
    """It produces with the right password. With a wrong one it logs the error, and raises that it is not connected."""
    producer = AIOKafkaProducer(**aio(address, mechanism))
    await producer.start()
    try:
        await producer.send_and_wait("orders", b"aio")
    finally:
        await producer.stop()
    refused = AIOKafkaConsumer("orders", **aio(address, mechanism, "wrong"))
    with pytest.raises(KafkaConnectionError):
        await refused.start()
    await refused.stop()
    assert f"SaslAuthenticationFailed: Authentication with {mechanism} failed" in log.messages[-1]


def kafka_python_logs_in(address: str, mechanism: str) -> None:
    """It produces with the right password. With a wrong one it tries again until a timeout."""
    from kafka import KafkaProducer

    producer = KafkaProducer(**aio(address, mechanism))
    try:
        producer.send("orders", b"py").get(PATIENCE_S)
    finally:
        producer.close()


async def test_users_have_the_permissions_of_their_name(tmp_path: Path) -> None:
    """A user without ACLs is denied; a super user allows it something, and it can do that and no more."""
    async with broker(tmp_path) as (_, address):
        stranger = librdkafka(address, "SCRAM-SHA-512", "stranger", "x")
        denied = await asyncio.to_thread(produce, stranger)
        assert denied is not None
        assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        admin = AdminClient(librdkafka(address, "SCRAM-SHA-256"))
        acl = AclBinding(
            ResourceType.TOPIC,
            "orders",
            ResourcePatternType.LITERAL,
            "User:stranger",
            "*",
            AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )
        await asyncio.to_thread(done, admin.create_acls([acl]))
        await eventually(lambda: produce(stranger) is None)
        denied_admin, change = AdminClient(stranger), upsertion("ann", "SCRAM-SHA-256", "y")
        with pytest.raises(KafkaException) as caught:
            await asyncio.to_thread(done, denied_admin.alter_user_scram_credentials([change]))
        assert caught.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until it holds."""
    end = time.monotonic() + PATIENCE_S
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def test_deleted_and_changed_users_are_disconnected(tmp_path: Path) -> None:
    """Open sessions end at their next request, and a new login needs the new password."""
    async with broker(tmp_path) as (own, address):
        admin = AdminClient({"bootstrap.servers": own})
        settings = librdkafka(address, "SCRAM-SHA-256")
        errors: list[KafkaError] = []
        producer = Producer({**settings, "error_cb": errors.append, "message.timeout.ms": 3000})
        producer.produce("orders", b"before")
        assert await asyncio.to_thread(producer.flush, PATIENCE_S) == 0
        await asyncio.to_thread(done, admin.alter_user_scram_credentials([upsertion("ann", "SCRAM-SHA-256", "new")]))
        await eventually(lambda: produce(librdkafka(address, "SCRAM-SHA-256", password="new")) is None)
        lost: list[KafkaError | None] = []
        producer.produce("orders", b"after", on_delivery=lambda error, _: lost.append(error))
        await asyncio.to_thread(producer.flush, PATIENCE_S)
        assert lost[0] is not None
        assert KafkaError._AUTHENTICATION in {each.code() for each in errors}
        deletion = UserScramCredentialDeletion("ann", ScramMechanism.SCRAM_SHA_256)
        await asyncio.to_thread(done, admin.alter_user_scram_credentials([deletion]))
        await eventually(lambda: is_refused(librdkafka(address, "SCRAM-SHA-256", password="new")))
        described = await asyncio.to_thread(admin.describe_user_scram_credentials().result, PATIENCE_S)
        assert {
            name: [each.mechanism.name for each in user.scram_credential_infos] for name, user in described.items()
        } == {
            "ann": ["SCRAM_SHA_512"],
            "stranger": ["SCRAM_SHA_256", "SCRAM_SHA_512"],
        }


async def test_clients_renew_their_sessions(tmp_path: Path) -> None:
    """KIP-368: librdkafka logs in again before the end, so that its one connection outlives several sessions.

    It does so an eighth of a second before the end at the latest. A machine that does other work may stand still for
    longer, and a request after the end is refused, as it must be: then another producer tries.
    """
    async with broker(tmp_path, **{"connections.max.reauth.ms": "2500"}) as (_, address):
        for _ in range(ATTEMPTS):
            errors: list[KafkaError] = []
            producer = Producer({**librdkafka(address, "SCRAM-SHA-256"), "error_cb": errors.append})
            delivered: list[KafkaError | None] = []
            end = time.monotonic() + 8
            while time.monotonic() < end and not errors:
                producer.produce("orders", b"v", on_delivery=lambda error, _, to=delivered: to.append(error))
                await asyncio.to_thread(producer.flush, PATIENCE_S)
                await asyncio.sleep(0.05)
            assert set(delivered) == {None}
            if not errors:
                return
    pytest.fail(f"each of {ATTEMPTS} producers lost its session, the last one with {errors}")


async def test_users_of_the_python_admin_client_log_in(tmp_path: Path) -> None:
    """What it sends is the credential of the password."""
    async with broker(tmp_path) as (own, address), MinikafkaAdmin(bootstrap_servers=own) as admin:
        await admin.set_user_password("ann", "sécret", "SCRAM-SHA-256")
        assert await asyncio.to_thread(produce, librdkafka(address, "SCRAM-SHA-256", password="sécret")) is None
        await admin.delete_user_credential("ann", "SCRAM-SHA-512")
        assert await admin.describe_user_scram_credentials(["ann"]) == {"ann": {"SCRAM-SHA-256": 8192}}
        with pytest.raises(ResourceNotFound):
            await admin.delete_user_credential("ann", "SCRAM-SHA-512")
        for iterations in (0, 4095, 10**6):
            with pytest.raises(UnacceptableCredential):
                await admin.set_user_password("ann", "x", iterations=iterations)
        for password, mechanism in (("", "SCRAM-SHA-256"), ("x", "PLAIN")):
            with pytest.raises(InvalidRequest):
                await admin.set_user_password("ann", password, mechanism)


async def test_hostile_frames_before_a_login(tmp_path: Path) -> None:
    """Hostile test 12: sizes that no login needs close the connection before memory is spent; others still log in."""
    async with broker(tmp_path) as (_, address):
        host, _, port = address.partition(":")

        def closed_after(frame: bytes) -> float:
            """Seconds until the broker has closed the connection."""
            began = time.monotonic()
            with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
                connection.sendall(frame)
                while connection.recv(4096):
                    pass
            return time.monotonic() - began

        def is_closed_soon(frame: bytes) -> bool:
            """Sooner than the broker gives up on logins; a machine that does other work may need several attempts."""
            return any(closed_after(frame) < LOGIN_TIMEOUT_S / 2 for _ in range(ATTEMPTS))

        sizes = [struct.pack(">i", size) for size in (2**31 - 1, -1, 512 * 1024 + 1)]
        header = struct.pack(">hhih", 3, 9, 1, 0) + bytes(10)
        for frame in (*sizes, struct.pack(">i", len(header)) + header, struct.pack(">i", 0), b"GET / HTTP/1.1\r\n\r\n"):
            assert await asyncio.to_thread(is_closed_soon, frame), frame
        assert await asyncio.to_thread(produce, librdkafka(address, "SCRAM-SHA-512")) is None


async def test_passwords_are_in_no_output(tmp_path: Path) -> None:
    """Hostile test 24: journal, log, settings, metrics and the metadata log as HTTP shows it."""
    journal = tmp_path / "journal"
    settings = {"mk.journal.path": str(journal), "mk.log.level": "debug"}
    async with broker(tmp_path / "data", **settings) as (own, address):
        for mechanism in MECHANISMS:
            assert await asyncio.to_thread(produce, librdkafka(address, mechanism)) is None
            await asyncio.to_thread(first_error, librdkafka(address, mechanism, password="canary"))
        shown = [journal.read_bytes()]
        paths = (
            "/metrics",
            "/v1/controller/log?max_records=500",
            "/v1/brokers/1/configs",
            "/v1/brokers/1",
            "/v1/cluster",
        )
        for path in paths:
            with await asyncio.to_thread(urllib.request.urlopen, f"http://{own}{path}") as answer:
                shown.append(answer.read())
        assert shown[2].count(b'"UserScramCredential"') == 4
        assert b"[hidden]" in shown[2]
        assert b"client_login_failed" in shown[0]
        keys = stored_keys(tmp_path / "data")
        assert len(keys) >= 4
        for secret in (PASSWORD.encode()[:6], b"canary", *keys):
            for form in (secret, base64.b64encode(secret), secret.hex().encode(), repr(secret)[2:-1].encode()):
                assert not [each for each in shown if form in each], (secret, form)


def stored_keys(folder: Path) -> list[bytes]:
    """The keys in the metadata log."""
    log = b"".join(path.read_bytes() for path in sorted(folder.glob("__cluster_metadata-0/*.log")))
    return [
        log[at + len(name) + 2 : at + len(name) + 2 + 32]
        for name in (b"stored_key", b"server_key")
        for at in (match.start() for match in re.finditer(name, log))
    ]


@pytest.mark.openssl
async def test_sasl_over_tls(tmp_path: Path) -> None:
    """SASL_SSL: certificates are for the broker only, and HTTP needs a login."""
    authority(tmp_path, "ca")
    settings = {
        "listener.security.protocol.map": "BROKERS:PLAINTEXT,CLIENTS:SASL_SSL",
        "ssl.keystore.location": str(signed(tmp_path, "broker", by="ca")),
        "ssl.truststore.location": str(tmp_path / "ca.pem"),
        "ssl.client.auth": "required",
    }
    async with broker(tmp_path / "data", **settings) as (_, address):
        tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": str(tmp_path / "ca.pem")}
        for mechanism in MECHANISMS:
            assert await asyncio.to_thread(produce, librdkafka(address, mechanism) | tls) is None
        wrong = librdkafka(address, "SCRAM-SHA-512", password="wrong") | tls
        assert (await asyncio.to_thread(first_error, wrong)).code() == KafkaError._AUTHENTICATION
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        for path in ("/v1/cluster", "/rpc/Metadata"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                await asyncio.to_thread(partial(urllib.request.urlopen, context=context), f"https://{address}{path}")
            with caught.value as refused:
                assert refused.code == 401
                message = refused.read()
            assert b"needs a login" in message
            assert b"Spark jobs" in message


async def test_strangers_do_not_keep_clients_out(tmp_path: Path):
    """Hostile test 11: connections that say nothing, or half a frame, are closed, the oldest first; a client logs in."""
    limit = {"mk.unauthenticated.connections.per.ip.max": "8"}
    async with broker(tmp_path, **limit) as (_, clients):
        host, _, port = clients.partition(":")
        strangers = [await asyncio.open_connection(host, int(port)) for _ in range(60)]
        for number, (_, writer) in enumerate(strangers):
            if number % 2:
                writer.write(struct.pack(">ihhih", 30, 17, 1, number, -1))
        assert await asyncio.to_thread(produce, librdkafka(clients, "SCRAM-SHA-256")) is None
        for reader, _ in strangers[:50]:
            async with asyncio.timeout(PATIENCE_S):
                assert await reader.read() == b""
        for _, writer in strangers:
            writer.close()


async def test_a_thousand_half_logins_disturb_no_client(tmp_path: Path, many_files: None):
    """Hostile test 11: from several addresses, beside a producer whose connection stays and whose records arrive."""
    async with broker(tmp_path) as (_, clients):
        host, _, port = clients.partition(":")
        errors: list[KafkaError] = []
        producer = Producer({**librdkafka(clients, "SCRAM-SHA-256"), "error_cb": errors.append, "log_level": 0})
        delivered: list[KafkaError | None] = []

        def produce_one() -> None:
            wanted = len(delivered) + 1
            producer.produce("orders", b"v", on_delivery=lambda error, _: delivered.append(error))
            while len(delivered) < wanted:
                producer.poll(PATIENCE_S)

        await asyncio.to_thread(produce_one)
        strangers = []
        for number in range(STRANGERS):
            source = (f"127.0.0.{2 + number % 20}", 0)
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=source)
            writer.write(struct.pack(">ihhih", 30, 17, 1, number, -1))
            strangers.append((reader, writer))
            if number % 10 == 0:
                await asyncio.to_thread(produce_one)
        for reader, writer in strangers:
            with contextlib.suppress(ConnectionError):
                async with asyncio.timeout(PATIENCE_S):
                    assert await reader.read() == b""
            writer.close()
        await asyncio.to_thread(produce_one)
        assert delivered == [None] * len(delivered)
        assert errors == []


async def test_a_login_costs_the_broker_no_key_derivation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The server of SCRAM needs two HMACs; PBKDF2 is for clients. So a login cannot hold up others."""
    import hashlib

    async with broker(tmp_path) as (_, clients):
        monkeypatch.setattr(hashlib, "pbkdf2_hmac", lambda *_: pytest.fail("the broker derives a key"))
        for user, password, refused in (("ann", PASSWORD, False), ("ann", "wrong", True), ("nobody", "x", True)):
            settings = librdkafka(clients, "SCRAM-SHA-512", user, password)
            assert await asyncio.to_thread(is_refused, settings) is refused
