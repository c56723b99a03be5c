"""Logins over HTTP: from the value of ``Authorization`` to a principal, at each listener by its own rules.

Who has sent a request is decided for each request, never for a connection: proxies send requests of several clients
over one. Passwords are computed beside the event loop, one after the other: PBKDF2 of many at once would take the
processor from the broker.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from functools import partial

from minikafka.broker.event_limiter import EventLimiter
from minikafka.broker.image_credentials import ImageCredentials
from minikafka.config import BrokerConfig, SaslListener
from minikafka.errors import BrokerNotAvailable, SaslAuthenticationFailed, ThrottlingQuotaExceeded
from minikafka.ports import World
from minikafka.quorum.image import MetadataImage
from minikafka.security.http_login import Failures, PasswordLogin, RightPasswords, check_of, parse_authorization
from minikafka.security.login import LoginFailed
from minikafka.security.oauth import OAUTHBEARER, Tokens
from minikafka.security.plain import PLAIN
from minikafka.security.scram import MECHANISMS, SECRET_SIZE, ScramMechanism
from minikafka.types import RESERVED_NAMES

WAITING_MAX = 64
"""Passwords that wait for their check; further ones are refused."""

BASIC, BEARER = "HTTP Basic", "HTTP Bearer"
"""The mechanism in events."""

TOO_MANY_FAILURES = "too many failed logins came from this address; wait a second and try again"

NEEDS_LOGIN = (
    "this listener needs a login: send the name and the password of a user (curl --user NAME, or --user of minikafka's "
    "commands), or a token if the listener takes tokens (Authorization: Bearer TOKEN); Spark jobs can do "
    "neither, and need a listener of TLS with client certificates (SSL)"
)
WRONG = "the login failed: the user, the password or the token is wrong; nothing was done"


class HttpLogins:
    """What the listeners of one broker share."""

    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        image: Callable[[], MetadataImage],
        check_caught_up: Callable[[], None] = lambda: None,
        tokens: Tokens | None = None,
    ) -> None:
        """``check_caught_up`` raises BrokerNotAvailable while the image may lack users; ``tokens`` verifies tokens."""
        self.tokens = tokens
        self.check_caught_up = check_caught_up
        self.clock = world.clock
        self.offload = world.offload
        self.events = EventLimiter(world.events, world.clock.now)
        self.credentials = ImageCredentials(image, world.entropy)
        self.right = RightPasswords(world.entropy(SECRET_SIZE))
        self.failures = Failures()
        self.turn = asyncio.Lock()
        self.waiting = 0
        self._main = config.inter_broker_listener.name
        self._listeners = config.sasl_listeners
        self._general = config.sasl_enabled_mechanisms

    def at(self, listener: str) -> HttpLogin:
        """The logins of a listener, by its name in contexts of requests."""
        return HttpLogin(self, listener, self._listeners.get(listener or self._main), self._general)


class HttpLogin:
    """The logins of one listener."""

    def __init__(self, shared: HttpLogins, listener: str, sasl: SaslListener | None, general: str) -> None:
        """``sasl`` is None at listeners without SASL, where a login is possible and not required."""
        self._shared = shared
        self._listener = listener
        self._is_required = sasl is not None
        self._passwords = {} if sasl is None else sasl.passwords
        self._seen: set[str] = set()
        """Users of these passwords who have logged in. Brokers do so with each request, and many at a time."""
        enabled = [each.strip() for each in (general.split(",") if sasl is None else sasl.mechanisms)]
        self._tokens = shared.tokens if OAUTHBEARER in enabled else None
        found = {MECHANISMS[each] for each in enabled if each in MECHANISMS}
        self._mechanisms: tuple[ScramMechanism, ...] = tuple(sorted(found, reverse=True))
        """The strongest first."""
        self.has_passwords = bool(self._mechanisms) or (sasl is not None and PLAIN in sasl.mechanisms)

    async def principal(self, authorization: str | None, remote: str) -> str | None:
        """The principal of a request; None: it has no credentials, and needs none.

        Raises:
            SaslAuthenticationFailed: The credentials are wrong, or missing.
            ThrottlingQuotaExceeded: There were too many wrong ones, or too many are being checked.
            BrokerNotAvailable: The broker does not know all users, or the keys of tokens, yet.
        """
        if authorization is None:
            if self._is_required:
                raise SaslAuthenticationFailed(NEEDS_LOGIN)
            return None
        mechanism = ""
        try:
            login = parse_authorization(authorization)
            mechanism = BASIC if isinstance(login, PasswordLogin) else BEARER
            if isinstance(login, PasswordLogin):
                await self._check(login, remote)
                user = login.user
            else:
                user = self._user_of(login.token, remote)
        except LoginFailed as failure:
            self._shared.events(
                "client_login_failed",
                remote=remote,
                listener=self._listener,
                client="",
                mechanism=mechanism,
                user=failure.user,
                reason=failure.reason,
                error=SaslAuthenticationFailed.name,
                why=WRONG,
            )
            raise SaslAuthenticationFailed(WRONG) from None
        return f"User:{user}"

    def _user_of(self, token: str, remote: str) -> str:
        """The user of a valid token. Raises LoginFailed, ThrottlingQuotaExceeded, BrokerNotAvailable (without keys)."""
        shared, tokens = self._shared, self._tokens
        now_s, wall_ms = shared.clock.now(), shared.clock.wall_ms()
        if tokens is None:
            raise LoginFailed("bad_token")
        if tokens.is_remembered(token, wall_ms):
            return tokens.verify(token, wall_ms).user
        if not shared.failures.take(remote, now_s):
            raise ThrottlingQuotaExceeded(TOO_MANY_FAILURES)
        try:
            user = tokens.verify(token, wall_ms).user
        except LoginFailed as failure:
            if failure.reason != "no_keys":
                raise
            shared.failures.give_back(remote, now_s)
            raise BrokerNotAvailable("the broker has not read the keys of tokens yet") from None
        shared.failures.give_back(remote, now_s)
        return user

    async def _check(self, login: PasswordLogin, remote: str) -> None:
        """Return if the password is right. Raises LoginFailed, ThrottlingQuotaExceeded."""
        shared = self._shared
        if self._is_remembered(login):
            return
        if not shared.failures.take(remote, shared.clock.now()):
            raise ThrottlingQuotaExceeded(TOO_MANY_FAILURES)
        if shared.waiting >= WAITING_MAX:
            shared.failures.give_back(remote, shared.clock.now())
            raise ThrottlingQuotaExceeded("too many passwords are being checked; try again in a second")
        shared.waiting += 1
        try:
            async with shared.turn:
                # The same password may have been checked while this request waited.
                is_right = self._is_remembered(login) or await self._compute(login)
        finally:
            shared.waiting -= 1
        if not is_right:
            shared.check_caught_up()
            is_known = login.user in self._passwords or any(
                shared.credentials.find(each, login.user) is not None for each in self._mechanisms
            )
            raise LoginFailed("bad_password" if is_known else "unknown_user", login.user)
        shared.failures.give_back(remote, shared.clock.now())

    def _is_remembered(self, login: PasswordLogin) -> bool:
        shared = self._shared
        if login.user in self._seen and self._fits_settings(login):
            return True
        now = shared.clock.now()
        return any(
            shared.right.has(login, known, now)
            for each in self._mechanisms
            if (known := shared.credentials.find(each, login.user)) is not None
        )

    def _fits_settings(self, login: PasswordLogin) -> bool:
        of_settings = self._passwords.get(login.user, "")
        return bool(of_settings) and hmac.compare_digest(login.password.encode(), of_settings.encode())

    async def _compute(self, login: PasswordLogin) -> bool:
        shared = self._shared
        if login.user in RESERVED_NAMES:
            raise LoginFailed("unknown_user", login.user)
        if self._fits_settings(login):
            self._seen.add(login.user)
            return True
        if not self._mechanisms:
            return False
        check = check_of(shared.credentials, self._mechanisms, login.user)
        is_right = await shared.offload(partial(check.is_right, login.password))
        if is_right and check.known is not None:
            shared.right.add(login, check.known, shared.clock.now())
        return is_right
