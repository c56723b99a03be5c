"""The login of one connection: Kafka's order of SaslHandshake and SaslAuthenticate (KIP-43, KIP-152, KIP-368).

::

    NEW ──handshake──> EXCHANGE ──authenticate…──> OPEN ──handshake──> EXCHANGE (again) …
                           └── failure ──> FAILED

- Before OPEN nothing but SASL is served. Whoever drives this closes the connection of a failed login.
- A session has a lifetime if ``connections.max.reauth.ms`` is set or the credential ends. The client renews it by
  another login on the open connection, with the same mechanism and as the same user, at most once a second.
- A session ends with the credential that it was opened with.

Rules for this file: no clock and no socket; ``now_ms`` is monotonic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from minikafka.errors import IllegalSaslState, SaslAuthenticationFailed, UnsupportedSaslMechanism
from minikafka.security.login import Exchange, LoginFailed

REAUTHENTICATION_MS_MIN = 1000
"""Between two logins on one connection, as in Kafka."""
MECHANISM_SHOWN_MAX = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslPolicy:
    """What one listener demands."""

    mechanisms: Mapping[str, Callable[[], Exchange]]
    """Enabled mechanisms by their names in SASL, each with what begins an exchange."""
    reauthentication_ms_max: int = 0
    """Lifetime of a session; 0: no limit."""


class Stage(Enum):
    """Where the login is."""

    NEW = "new"
    EXCHANGE = "exchange"
    OPEN = "open"
    FAILED = "failed"


class Response(NamedTuple):
    """The answer to one token."""

    token: bytes
    lifetime_ms: int
    """0: no limit, or the login is not over."""


class SaslLogin:
    """See the head of this file."""

    def __init__(self, policy: SaslPolicy) -> None:
        self._policy = policy
        self.stage = Stage.NEW
        self.mechanism = ""
        self.user: str | None = None
        """The principal that has logged in; it stays while the session is renewed."""
        self._exchange: Exchange | None = None
        """Of the login that is under way."""
        self._session: Exchange | None = None
        """Of the login that has succeeded."""
        self._since_ms = 0
        """Time of the last success."""
        self._lifetime_ms = 0
        """Of the session, from then on; 0: no limit."""
        self.failure: LoginFailed | None = None
        """Why the login failed, for the log."""

    @property
    def enabled(self) -> tuple[str, ...]:
        """Names of the mechanisms that the client may choose."""
        return tuple(self._policy.mechanisms)

    def handshake(self, mechanism: str, now_ms: int) -> None:
        """The client has chosen a mechanism.

        Raises:
            IllegalSaslState: A login is under way, or the session has no lifetime, or is younger than a second. An
                open session stays open.
            UnsupportedSaslMechanism: It is not enabled. The login has failed.
            SaslAuthenticationFailed: The session was opened with another one. The login has failed.
        """
        if self.stage is Stage.OPEN:
            self._check_renewal(mechanism, now_ms)
        elif self.stage is not Stage.NEW:
            self._fail(LoginFailed("bad_token"))
            raise IllegalSaslState("SaslHandshake during a login.")
        begin = self._policy.mechanisms.get(mechanism)
        if begin is None:
            self._fail(LoginFailed("unknown_mechanism"))
            raise UnsupportedSaslMechanism(
                f"SASL mechanism {mechanism[:MECHANISM_SHOWN_MAX]!r} is not enabled, only {', '.join(self.enabled)}."
            )
        self.mechanism, self._exchange, self.stage = mechanism, begin(), Stage.EXCHANGE

    def _check_renewal(self, mechanism: str, now_ms: int) -> None:
        if not self._lifetime_ms or now_ms - self._since_ms < REAUTHENTICATION_MS_MIN:
            raise IllegalSaslState("SaslHandshake on a session that needs no new login.")
        if mechanism != self.mechanism:
            self._fail(LoginFailed("other_user", self.user or ""))
            raise SaslAuthenticationFailed(
                f"The session was opened with {self.mechanism}; log in again with the same mechanism."
            )

    def authenticate(self, token: bytes, now_ms: int) -> Response:
        """The client has sent a token.

        Raises:
            IllegalSaslState: There was no handshake. An open session stays open.
            SaslAuthenticationFailed: The login has failed.
        """
        exchange = self._exchange
        if self.stage is not Stage.EXCHANGE or exchange is None:
            if self.stage is not Stage.OPEN:
                self._fail(LoginFailed("bad_token"))
            raise IllegalSaslState("SaslAuthenticate without SaslHandshake.")
        try:
            answer = exchange.respond(token)
            if exchange.user is None:
                return Response(answer, 0)
            if self.user not in (None, exchange.user):
                raise LoginFailed("other_user", exchange.user)
        except LoginFailed as failure:
            self._fail(failure)
            raise SaslAuthenticationFailed(
                f"Authentication with {self.mechanism} failed: invalid credentials."
            ) from None
        self.user, self._session, self._exchange = exchange.user, exchange, None
        self.stage, self._since_ms = Stage.OPEN, now_ms
        limits = self._policy.reauthentication_ms_max, exchange.lifetime_ms
        self._lifetime_ms = min(filter(None, limits), default=0)
        return Response(answer, self._lifetime_ms)

    def _fail(self, failure: LoginFailed) -> None:
        self.stage, self.failure, self._exchange = Stage.FAILED, failure, None

    def end_of(self, now_ms: int) -> str:
        """Why the open session is over; empty: it is not."""
        if self._lifetime_ms and now_ms - self._since_ms > self._lifetime_ms:
            return "expired"
        if self._session is None or not self._session.holds():
            return "credential_changed"
        return ""
