"""PLAIN, and the order of handshakes, tokens and renewals of one connection."""

import pytest

from minikafka.errors import IllegalSaslState, ProtocolError, SaslAuthenticationFailed, UnsupportedSaslMechanism
from minikafka.security.login import LoginFailed
from minikafka.security.plain import PLAIN, PlainExchange
from minikafka.security.sasl import SaslLogin, SaslPolicy, Stage

PASSWORDS = {"ann": "secret", "bob": "pässwörd"}
RIGHT, BOB, WRONG = b"\0ann\0secret", "\0bob\0pässwörd".encode(), b"\0ann\0wrong"


@pytest.mark.parametrize(("token", "user"), [(RIGHT, "ann"), (b"ann\0ann\0secret", "ann"), (BOB, "bob")])
def test_plain_accepts_the_right_password(token: bytes, user: str) -> None:
    """With or without an authzid of the same name."""
    login = PlainExchange(PASSWORDS)
    assert login.respond(token) == b""
    assert login.user == user
    assert login.holds()


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        (WRONG, "bad_password"),
        (b"\0ann\0secret2", "bad_password"),
        (b"\0eve\0secret", "unknown_user"),
        (b"bob\0ann\0secret", "other_user"),
        (b"\0ann\0", "bad_token"),
        (b"\0\0secret", "bad_token"),
        (b"ann\0secret", "bad_token"),
        (b"\0ann\0secret\0", "bad_token"),
        (b"", "bad_token"),
        (b"\0ann\0\xff", "bad_token"),
        (b"\0ann\0" + b"x" * 20_000, "bad_token"),
    ],
)
def test_plain_refuses_everything_else(token: bytes, reason: str) -> None:
    """RFC 4616, section 2: exactly three parts, in UTF-8."""
    login = PlainExchange(PASSWORDS)
    with pytest.raises(LoginFailed) as caught:
        login.respond(token)
    assert (caught.value.reason, login.user) == (reason, None)


class Changing(PlainExchange):
    """PLAIN whose passwords can change."""

    def holds(self) -> bool:
        """Is the user still there?"""
        return self.user in PASSWORDS and not CHANGED


CHANGED: list[str] = []


def login(lifetime_ms: int = 0) -> SaslLogin:
    """A login that begins."""
    CHANGED.clear()
    begin = lambda: Changing(PASSWORDS)  # noqa: E731 - a short one
    return SaslLogin(SaslPolicy(mechanisms={PLAIN: begin, "OTHER": begin}, reauthentication_ms_max=lifetime_ms))


def opened(lifetime_ms: int = 0) -> SaslLogin:
    """A connection whose client has logged in at time 0."""
    it = login(lifetime_ms)
    it.handshake(PLAIN, 0)
    assert it.authenticate(RIGHT, 0) == (b"", lifetime_ms)
    assert (it.stage, it.user) == (Stage.OPEN, "ann")
    return it


def test_a_mechanism_that_is_not_enabled_is_named_in_the_log() -> None:
    """The reason was that of a malformed token, and which mechanism the client had chosen was not said."""
    it = login(0)
    with pytest.raises(
        UnsupportedSaslMechanism, match=r"SASL mechanism 'SCRAM-SHA-256' is not enabled, only PLAIN, OTHER\."
    ):
        it.handshake("SCRAM-SHA-256", 0)
    assert it.failure is not None
    assert (it.failure.reason, it.stage) == ("unknown_mechanism", Stage.FAILED)


def test_login_without_limit() -> None:
    """Without connections.max.reauth.ms a session has no end, and needs no second login."""
    it = opened()
    assert it.end_of(10**12) == ""
    for request in (lambda: it.handshake(PLAIN, 9999), lambda: it.authenticate(RIGHT, 9999)):
        with pytest.raises(IllegalSaslState):
            request()
    assert (it.stage, it.user) == (Stage.OPEN, "ann")


def test_session_ends_with_its_lifetime_or_its_credential() -> None:
    """KIP-368: the lifetime is checked when a request arrives."""
    it = opened(5000)
    assert (it.end_of(5000), it.end_of(5001)) == ("", "expired")
    CHANGED.append("x")
    assert it.end_of(1) == "credential_changed"


class Expiring(PlainExchange):
    """PLAIN whose credentials have 400 ms to live, as a token has, unless they are withdrawn before."""

    def __init__(self) -> None:
        super().__init__(PASSWORDS)
        self.lifetime_ms = 400
        self.is_withdrawn = False

    def holds(self) -> bool:
        """Is it not withdrawn?"""
        return not self.is_withdrawn


@pytest.mark.parametrize(("limit_ms", "lifetime_ms"), [(0, 400), (300, 300), (1000, 400)])
def test_session_lives_no_longer_than_its_credential_and_its_listener_allow(limit_ms: int, lifetime_ms: int) -> None:
    """KIP-368: the shorter of connections.max.reauth.ms and the rest of the token's life."""
    it = SaslLogin(SaslPolicy(mechanisms={PLAIN: Expiring}, reauthentication_ms_max=limit_ms))
    it.handshake(PLAIN, 0)
    assert it.authenticate(RIGHT, 0).lifetime_ms == lifetime_ms
    assert (it.end_of(lifetime_ms), it.end_of(lifetime_ms + 1)) == ("", "expired")


def test_renewal_extends_the_session() -> None:
    """By the same mechanism and user."""
    it = opened(5000)
    it.handshake(PLAIN, 4000)
    assert it.stage is Stage.EXCHANGE
    assert it.authenticate(RIGHT, 4001) == (b"", 5000)
    assert (it.end_of(9001), it.end_of(9002)) == ("", "expired")


def test_renewed_session_rests_on_the_new_credential() -> None:
    """KIP-368: who has logged in with a new password or token is not disconnected for the old one."""
    exchanges: list[Expiring] = []

    def begin() -> Expiring:
        exchanges.append(Expiring())
        return exchanges[-1]

    it = SaslLogin(SaslPolicy(mechanisms={PLAIN: begin}))
    for now_ms in (0, 2000):
        it.handshake(PLAIN, now_ms)
        it.authenticate(RIGHT, now_ms)
    exchanges[0].is_withdrawn = True
    assert it.end_of(2001) == ""
    exchanges[1].is_withdrawn = True
    assert it.end_of(2001) == "credential_changed"


def test_renewal_within_a_second_is_refused_and_keeps_the_session() -> None:
    """As in Kafka."""
    it = opened(5000)
    with pytest.raises(IllegalSaslState):
        it.handshake(PLAIN, 999)
    assert it.stage is Stage.OPEN


def test_renewal_by_another_mechanism_or_user_fails() -> None:
    """Hostile test 14."""
    it = opened(5000)
    with pytest.raises(SaslAuthenticationFailed, match="same mechanism"):
        it.handshake("OTHER", 2000)
    assert it.stage is Stage.FAILED
    it = opened(5000)
    it.handshake(PLAIN, 2000)
    with pytest.raises(SaslAuthenticationFailed):
        it.authenticate(BOB, 2000)
    assert (it.stage, it.user) == (Stage.FAILED, "ann")
    assert it.failure is not None
    assert it.failure.reason == "other_user"


@pytest.mark.parametrize("token", [WRONG, b"\0eve\0secret", b"?"])
def test_all_failures_read_alike(token: bytes) -> None:
    """The client learns nothing but that it failed."""
    it = login()
    it.handshake(PLAIN, 0)
    with pytest.raises(SaslAuthenticationFailed) as caught:
        it.authenticate(token, 0)
    assert caught.value.message == "Authentication with PLAIN failed: invalid credentials."
    assert caught.value.__cause__ is None
    assert (it.stage, it.user) == (Stage.FAILED, None)


def test_requests_out_of_order_fail() -> None:
    """Tokens without a handshake, a second handshake during a login, an unknown mechanism, requests after a failure."""
    it = login()
    assert it.enabled == (PLAIN, "OTHER")
    expected: list[tuple[type[ProtocolError], list[str]]] = [
        (IllegalSaslState, ["token"]),
        (IllegalSaslState, [PLAIN, PLAIN]),
        (UnsupportedSaslMechanism, ["GSSAPI"]),
        (IllegalSaslState, ["token", "token"]),
        (IllegalSaslState, ["GSSAPI", PLAIN]),
    ]
    for error, requests in expected:
        it = login()
        raised: list[ProtocolError] = []
        for each in requests:
            try:
                it.authenticate(RIGHT, 0) if each == "token" else it.handshake(each, 0)
            except ProtocolError as failed:
                raised.append(failed)
        assert isinstance(raised[-1], error)
        assert (it.stage, it.user) == (Stage.FAILED, None)
