"""Logins of one connection, byte by byte: what is served before, after and instead of a login."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import Any

import pytest

from minikafka.broker import kafka_session
from minikafka.broker.image_credentials import ImageCredentials
from minikafka.broker.kafka_login import LoginRules, login_rules
from minikafka.config import parse_broker
from minikafka.quorum.image import MetadataImage
from minikafka.quorum.records import ClusterSecret, UserScramCredential
from minikafka.security.http_login import FAILURES_MAX
from minikafka.security.login import LoginFailed
from minikafka.security.plain import PlainExchange
from minikafka.security.sasl import SaslPolicy
from minikafka.security.scram import ScramMechanism
from minikafka.wire.group_messages import HeartbeatResponse
from minikafka.wire.kafka.codec import Message, decode
from minikafka.wire.kafka.schema import api_named
from tests.kafka.test_session import Line, settle

RIGHT, WRONG = b"\0ann\0secret", b"\0ann\0wrong"
ILLEGAL, FAILED, UNSUPPORTED_MECHANISM = 34, 58, 33


class Held(PlainExchange):
    """PLAIN with a user that can be deleted."""

    deleted = False

    def holds(self) -> bool:
        """Is the user still there?"""
        return not Held.deleted


def line(*, lifetime_ms: int = 0, delay_s: float = 0.0, waited_s: float = 0.0) -> Line:
    """A connection to a SASL listener, which was accepted ``waited_s`` ago."""
    Held.deleted = False
    policy = SaslPolicy(mechanisms={"PLAIN": lambda: Held({"ann": "secret"})}, reauthentication_ms_max=lifetime_ms)
    return Line(LoginRules(policy=policy, failure_delay_s=delay_s, frame_bytes_max=1000), waited_s=waited_s)


def handshake(it: Line, mechanism: str = "PLAIN", version: int = 1) -> None:
    """Choose a mechanism."""
    it.ask("SaslHandshake", version, {"mechanism": mechanism})


def token(it: Line, data: bytes = RIGHT, version: int = 2) -> None:
    """Send a token."""
    it.ask("SaslAuthenticate", version, {"auth_bytes": data})


def answer(it: Line, name: str, version: int) -> Message:
    """The last answer."""
    head = 9 if api_named(name).is_flexible(version) else 8
    return decode(name, "response", version, memoryview(it.sent[-1]), head)


async def opened(**rules: Any) -> Line:
    """A connection whose client has logged in."""
    it = line(**rules)
    handshake(it)
    token(it)
    assert answer(it, "SaslAuthenticate", 2)["error_code"] == 0
    assert not it.is_closed
    return it


async def test_bytes_of_a_login():
    """The frames that Kafka's schemas give, header and all; ``SaslHandshake`` is never flexible."""
    it = line()
    it.session.received(memoryview(bytes.fromhex("001100010000000100026331") + b"\0\5PLAIN"))
    assert it.sent == [bytes.fromhex("00000011 00000001 0000 00000001 0005") + b"PLAIN"]
    it.session.received(memoryview(bytes.fromhex("0024 0002 00000002 0002 6331 00 0c") + RIGHT + b"\0"))
    assert it.sent[1] == bytes.fromhex("00000012 00000002 00 0000 00 01 0000000000000000 00")


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_requests_after_a_login_have_its_principal(version: int):
    """The frames of a client that has logged in may have the usual size."""
    it = line()
    assert it.frame_bytes_max == 1000
    it.ask("ApiVersions", 3, {"client_software_name": "x", "client_software_version": "1"})
    handshake(it)
    token(it, version=version)
    assert answer(it, "SaslAuthenticate", version)["error_code"] == 0
    assert (it.frame_bytes_max, it.principals) == (None, ["User:ann"])
    it.heartbeat(7)
    assert [(api, context.principal) for api, _, context in it.asked] == [("Heartbeat", "User:ann")]
    assert it.asked[0][2].software == "x 1"


async def test_tokens_without_headers_after_a_handshake_in_version_0():
    """KIP-43: size and bytes, both ways."""
    it = line()
    handshake(it, version=0)
    it.session.received(memoryview(RIGHT))
    assert it.sent[-1] == bytes(4)
    it.heartbeat(1)
    assert [context.principal for _, _, context in it.asked] == ["User:ann"]


async def test_a_wrong_token_without_header_closes_without_an_answer():
    """The old form has no errors."""
    it = line()
    handshake(it, version=0)
    it.session.received(memoryview(WRONG))
    await asyncio.sleep(0.01)
    assert (len(it.sent), it.is_closed, it.asked) == (1, True, [])


@pytest.mark.parametrize("early", ["Heartbeat", "Metadata", "Produce"])
@pytest.mark.parametrize("during", [False, True])
async def test_nothing_is_served_before_a_login(early: str, *, during: bool):
    """Hostile test 13: the connection is closed without an answer, also when the login comes in the same segment."""
    it = line()
    if during:
        handshake(it)
    if early == "Produce":
        it.produce(5)
    elif early == "Metadata":
        it.ask("Metadata", 1, {"topics": None})
    else:
        it.heartbeat(5)
    handshake(it)
    token(it)
    it.heartbeat(6)
    await asyncio.sleep(0.01)
    assert (it.asked, len(it.sent), it.is_closed) == ([], int(during), True)
    ((kind, facts),) = it.events
    assert (kind, facts["error"]) == ("client_login_failed", "ILLEGAL_SASL_STATE")


async def test_a_failed_login_is_answered_late_and_closed():
    """The delay slows guessing; what the client has sent meanwhile is not read."""
    it = line(delay_s=0.05)
    handshake(it)
    token(it, WRONG)
    it.heartbeat(3)
    token(it)
    await settle()
    assert (len(it.sent), it.is_paused, it.is_closed) == (1, True, False)
    it.session.room(has_room=True)
    assert it.is_paused
    await asyncio.sleep(0.2)
    refused = answer(it, "SaslAuthenticate", 2)
    assert (refused["error_code"], refused["auth_bytes"]) == (FAILED, b"")
    assert refused["error_message"] == "Authentication with PLAIN failed: invalid credentials."
    assert (len(it.sent), it.is_closed, it.asked) == (2, True, [])


async def test_guesses_of_one_address_are_answered_ever_later():
    """The address has used up its attempts: the next answer comes a second later."""
    it = line()
    began = asyncio.get_running_loop().time()
    for _ in range(FAILURES_MAX):
        it.door.failures.failed("127.0.0.1", began)
    handshake(it)
    token(it, WRONG)
    timer = it.session._login_timer
    assert timer is not None
    assert timer.when() >= began + 1 - 1e-6
    timer.cancel()


@pytest.mark.parametrize("version", [0, 1])
async def test_a_login_fails_without_an_answer_while_the_broker_may_not_know_the_user(version: int):
    """Its image has no users before it has read the metadata. Clients take the error of a login for final."""
    it = line()
    it.is_current = False
    handshake(it, version=version)
    if version:
        token(it, WRONG)
    else:
        it.session.received(memoryview(WRONG))
    assert it.is_closed
    assert len(it.sent) == 1, "the answer to the handshake"
    assert [(kind, facts["error"]) for kind, facts in it.events] == [
        ("client_connection_refused", "BROKER_NOT_AVAILABLE")
    ]


class WithoutKeys(Held):
    """A mechanism that has read no keys yet."""

    def respond(self, token: bytes) -> bytes:
        """Fail."""
        raise LoginFailed("no_keys", "ann")


async def test_a_login_fails_without_an_answer_while_the_broker_has_no_keys():
    """The server that has them did not answer yet; the client logs in at another broker, or later."""
    policy = SaslPolicy(mechanisms={"PLAIN": lambda: WithoutKeys({})}, reauthentication_ms_max=0)
    it = Line(LoginRules(policy=policy, failure_delay_s=0.0, frame_bytes_max=1000))
    handshake(it)
    token(it)
    assert (it.is_closed, len(it.sent)) == (True, 1)


async def test_the_log_says_why_a_login_failed_and_has_no_password():
    """The client gets one text for all reasons."""
    it = line()
    handshake(it)
    token(it, b"\0" + b"e" * 300 + b"\0hunter2")
    ((kind, facts),) = it.events
    assert kind == "client_login_failed"
    assert (facts["reason"], facts["mechanism"], facts["listener"]) == ("unknown_user", "PLAIN", "CLIENTS")
    assert facts["user"] == "e" * 255
    assert "hunter2" not in repr(it.events)


async def test_a_mechanism_that_is_not_enabled_is_answered_with_those_that_are():
    """Then the connection is closed."""
    it = line()
    handshake(it, "GSSAPI")
    await asyncio.sleep(0.01)
    assert answer(it, "SaslHandshake", 1) == {"error_code": UNSUPPORTED_MECHANISM, "mechanisms": ["PLAIN"]}
    assert it.is_closed


async def test_authenticate_without_a_handshake_fails():
    """ILLEGAL_SASL_STATE, then closed."""
    it = line()
    token(it)
    await asyncio.sleep(0.01)
    assert (answer(it, "SaslAuthenticate", 2)["error_code"], it.is_closed) == (ILLEGAL, True)


async def test_a_login_on_an_open_session_without_lifetime_is_refused():
    """The session goes on, as in Kafka."""
    it = await opened()
    handshake(it)
    assert answer(it, "SaslHandshake", 1)["error_code"] == ILLEGAL
    token(it)
    assert answer(it, "SaslAuthenticate", 2)["error_code"] == ILLEGAL
    it.heartbeat(1)
    assert (len(it.asked), it.is_closed) == (1, False)


async def test_a_listener_without_sasl_refuses_logins():
    """ILLEGAL_SASL_STATE, and the connection stays."""
    it = Line()
    handshake(it)
    assert answer(it, "SaslHandshake", 1)["error_code"] == ILLEGAL
    token(it, version=1)
    assert answer(it, "SaslAuthenticate", 1)["error_code"] == ILLEGAL
    it.heartbeat(1)
    assert (len(it.asked), it.is_closed) == (1, False)


@pytest.mark.parametrize(("name", "version"), [("SaslHandshake", 2), ("SaslAuthenticate", 3)])
async def test_versions_that_do_not_exist_close_the_connection(name: str, version: int):
    """As for every API but ApiVersions."""
    it = line()
    it.session.received(memoryview(struct.pack(">hhih", api_named(name).key, version, 1, 0) + bytes(8)))
    assert it.is_closed


async def test_a_client_that_does_not_log_in_is_disconnected(monkeypatch: pytest.MonkeyPatch):
    """Hostile test 11: also one that has begun; not one that has logged in."""
    monkeypatch.setattr(kafka_session, "LOGIN_TIMEOUT_S", 0.05)
    silent, begun, right = line(), line(), await opened()
    handshake(begun)
    await asyncio.sleep(0.2)
    assert (silent.is_closed, begun.is_closed, right.is_closed) == (True, True, False)


async def test_the_time_for_a_login_begins_when_the_connection_is_accepted():
    """Hostile test 11: who sends the first byte late has no further time; a login that comes in time is right."""
    late, in_time = line(waited_s=kafka_session.LOGIN_TIMEOUT_S - 0.05), line(waited_s=1.0)
    handshake(late)
    handshake(in_time)
    await asyncio.sleep(0.2)
    assert (late.is_closed, in_time.is_closed) == (True, False)
    assert "has not logged in after 10 s" in late.events[0][1]["why"]
    token(in_time)
    assert answer(in_time, "SaslAuthenticate", 2)["error_code"] == 0


async def test_a_listener_without_sasl_has_no_time_for_a_login():
    """Its connections are served however long ago they were accepted."""
    it = Line(waited_s=3600.0)
    it.heartbeat(1)
    await asyncio.sleep(0.05)
    assert (len(it.asked), it.is_closed) == (1, False)


@pytest.mark.parametrize("version", [0, 2, 3, 4])
async def test_a_client_whose_certificate_gives_no_principal_gets_an_authentication_error(version: int):
    """TLS has no alert for it; ApiVersions comes first and has an error. Nothing is handled, then or later."""
    it = Line(refusal="no rule matches")
    names = {"client_software_name": "x", "client_software_version": "1"} if version >= 3 else {}
    it.ask("ApiVersions", version, names)
    (sent,) = it.sent
    read = decode("ApiVersions", "response", version, memoryview(sent), 8)
    assert (read["error_code"], it.is_closed) == (FAILED, True)
    it.heartbeat(2)
    assert (it.asked, len(it.sent)) == ([], 1)


async def test_a_newer_client_whose_certificate_gives_no_principal_can_read_its_error():
    """The layout of version 0 is for UNSUPPORTED_VERSION alone: a client asks again in a version that it names."""
    it = Line(refusal="no rule matches")
    it.session.received(memoryview(struct.pack(">hhih", 18, 99, 1, 1) + b"c\0"))
    read = decode("ApiVersions", "response", 0, memoryview(it.sent[-1]), 8)
    assert (read["error_code"], it.is_closed) == (35, False)
    it.ask("ApiVersions", 4, {"client_software_name": "x", "client_software_version": "1"})
    read = decode("ApiVersions", "response", 4, memoryview(it.sent[-1]), 8)
    assert (read["error_code"], it.is_closed) == (FAILED, True)


@pytest.mark.parametrize("first", ["Heartbeat", "SaslHandshake", "SaslAuthenticate"])
async def test_other_first_requests_of_such_a_client_close_the_connection(first: str):
    """A login over Kafka's protocol does not replace the certificate of an SSL listener."""
    it = Line(refusal="no rule matches")
    if first == "Heartbeat":
        it.heartbeat(1)
    elif first == "SaslHandshake":
        handshake(it)
    else:
        token(it)
    assert (it.asked, it.sent, it.is_closed) == ([], [], True)


def now_is(monkeypatch: pytest.MonkeyPatch, ms: int) -> None:
    """Set the time of sessions."""
    monkeypatch.setattr(kafka_session.KafkaSession, "_now_ms", staticmethod(lambda: ms))


async def test_an_expired_session_is_closed_at_its_next_request(monkeypatch: pytest.MonkeyPatch):
    """KIP-368: without an answer; until then it stays."""
    now_is(monkeypatch, 0)
    it = await opened(lifetime_ms=5000)
    assert answer(it, "SaslAuthenticate", 2)["session_lifetime_ms"] == 5000
    now_is(monkeypatch, 5000)
    it.heartbeat(1)
    now_is(monkeypatch, 5001)
    it.heartbeat(2)
    for gate in it.gates:
        gate.cancel()
    await asyncio.sleep(0.01)
    assert len(it.asked) == 1


async def test_a_renewal_waits_for_requests_under_way(monkeypatch: pytest.MonkeyPatch):
    """Answers leave in order, and a request between handshake and token is refused."""
    now_is(monkeypatch, 0)
    it = await opened(lifetime_ms=5000)
    now_is(monkeypatch, 4000)
    it.heartbeat(11)
    it.ask("SaslHandshake", 1, {"mechanism": "PLAIN"}, 12)
    it.ask("SaslAuthenticate", 2, {"auth_bytes": RIGHT}, 13)
    assert it.answered[2:] == []
    it.gates[0].set_result(HeartbeatResponse())
    await settle()
    assert it.answered[2:] == [11, 12, 13]
    now_is(monkeypatch, 8999)
    it.ask("SaslHandshake", 1, {"mechanism": "PLAIN"}, 14)
    it.heartbeat(15)
    await asyncio.sleep(0.01)
    assert (it.answered[-1], it.is_closed, len(it.asked)) == (14, True, 1)


async def test_a_session_ends_with_its_credential():
    """Hostile test 15: the user was deleted, or has another password."""
    it = await opened()
    Held.deleted = True
    it.heartbeat(1)
    await asyncio.sleep(0.01)
    assert (it.asked, it.is_closed) == ([], True)
    assert "credential_changed" in it.events[0][1]["why"]


def test_brokers_agree_on_salts_of_unknown_users():
    """Hostile test 10: by the cluster's secret once there is a user; until then by a secret of the broker."""
    image = MetadataImage(cluster_id="c")
    brokers = [ImageCredentials(lambda: image, lambda size, byte=byte: bytes([byte]) * size) for byte in (1, 2)]

    def salts() -> list[bytes]:
        return [each.made_up(ScramMechanism.SCRAM_SHA_256, "eve").salt for each in brokers]

    first, second = salts()
    assert first != second
    image = image.replay_all([ClusterSecret(secret=bytes(32))], 1, 1)
    first, second = salts()
    assert first == second
    image = image.replay_all([credential("ann", 5000)], 2, 1)
    assert {each.made_up(ScramMechanism.SCRAM_SHA_256, "eve").iterations for each in brokers} == {5000}
    image = image.replay_all([credential("ann", 6000)], 3, 1)
    assert {each.made_up(ScramMechanism.SCRAM_SHA_256, "eve").iterations for each in brokers} == {6000}
    assert {each.made_up(ScramMechanism.SCRAM_SHA_512, "eve").iterations for each in brokers} == {8192}


def credential(user: str, iterations: int) -> UserScramCredential:
    """A record of SCRAM-SHA-256."""
    return UserScramCredential(
        name=user, mechanism=1, salt=bytes(16), stored_key=bytes(32), server_key=bytes(32), iterations=iterations
    )


def test_the_listener_of_brokers_has_rules_if_it_uses_sasl():
    """In contexts of requests its name is empty. Without rules its clients would be served without a login."""
    config = parse_broker(
        {
            "listeners": "B://127.0.0.1:1",
            "listener.security.protocol.map": "B:SASL_SSL",
            "ssl.keystore.location": "broker.pem",
            "ssl.truststore.location": "ca.pem",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.b.plain.sasl.jaas.config": (
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                'username="b1" password="x" user_b1="x";'
            ),
        }
    ).config
    assert set(login_rules(config, MetadataImage, bytes)) == {""}


def test_rules_of_a_broker_are_those_of_its_settings():
    """Each SASL listener has its own mechanisms and lifetime."""
    config = parse_broker(
        {
            "listeners": "B://127.0.0.1:1,CLIENTS://127.0.0.1:2,SASL_PLAINTEXT://127.0.0.1:3",
            "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
            "connections.max.reauth.ms": "7000",
            "connection.failed.authentication.delay.ms": "250",
            "listener.name.clients.connections.max.reauth.ms": "5000",
            "listener.name.clients.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        }
    ).config
    rules: Mapping[str, LoginRules] = login_rules(config, MetadataImage, bytes)
    assert {name: tuple(each.policy.mechanisms) for name, each in rules.items()} == {
        "CLIENTS": ("SCRAM-SHA-512",),
        "SASL_PLAINTEXT": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    }
    assert [each.policy.reauthentication_ms_max for each in rules.values()] == [5000, 7000]
    assert {(each.failure_delay_s, each.frame_bytes_max) for each in rules.values()} == {(0.25, 524_288)}
