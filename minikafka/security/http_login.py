"""Credentials of HTTP requests (``Authorization``): what a header says, and when a password is checked how often.

Rules for this file: no clock and no socket; ``now_s`` is monotonic. A password is checked against the user's SCRAM
credential, which takes milliseconds (PBKDF2), so:

1. A password that was right is remembered for five minutes, by a keyed hash and together with the credential that it
   fitted. It counts only while that is still the user's credential: a change of the user's record needs no message.
2. Wrong passwords are not remembered. An address that sends more than FAILURES_MAX of them is refused before its
   next password is checked, and may try again once a second.
3. An unknown user costs the same computation as a wrong password, with a made up credential. Its mechanism is one
   with which passwords of existing users are checked: SHA-512 takes three times as long as SHA-256.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from minikafka.security.login import LoginFailed
from minikafka.security.scram import Credentials, ScramCredential, ScramMechanism, credential_of, salted_password

REMEMBERED_MAX = 10_000
REMEMBERED_S = 300.0
FAILURES_MAX = 10
FAILURES_PER_S = 1.0
ADDRESSES_MAX = 10_000
LATE_S_MAX = 5.0
"""A login over Kafka's protocol has ten seconds."""

USER_SIZE_MAX = 255
"""Characters of a user's name."""


class PasswordLogin(NamedTuple):
    """``Authorization: Basic`` (RFC 7617)."""

    user: str
    password: str


class TokenLogin(NamedTuple):
    """``Authorization: Bearer`` (RFC 6750)."""

    token: str


HttpCredentials: TypeAlias = PasswordLogin | TokenLogin


def parse_authorization(value: str) -> HttpCredentials:
    """The credentials that the value of ``Authorization`` carries. Raises LoginFailed for any other text."""
    scheme, _, rest = value.strip().partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer" and rest:
        return TokenLogin(rest)
    if scheme.lower() != "basic":
        raise LoginFailed("bad_token")
    try:
        user, colon, password = base64.b64decode(rest, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise LoginFailed("bad_token") from None
    if not (user and colon and password) or len(user) > USER_SIZE_MAX:
        raise LoginFailed("bad_token", user[:USER_SIZE_MAX])
    return PasswordLogin(user, password)


class PasswordCheck(NamedTuple):
    """One check of a password that is to be done."""

    mechanism: ScramMechanism
    known: ScramCredential | None
    """The user's credential; None: there is none, so that no password is right."""
    used: ScramCredential
    """The user's, or one that was made up."""

    def is_right(self, password: str) -> bool:
        """Compute PBKDF2 and compare; takes milliseconds, and touches nothing shared."""
        used = self.used
        salted = salted_password(self.mechanism, password, used.salt, used.iterations)
        found = credential_of(self.mechanism, salted, used.salt, used.iterations)
        fits = hmac.compare_digest(found.stored_key, used.stored_key)
        return fits and self.known is not None


class PasswordUsers(Credentials, Protocol):
    """Where the users are found whose passwords are checked."""

    def unknown_users_mechanism(self, mechanisms: Sequence[ScramMechanism], user: str) -> ScramMechanism:
        """The mechanism for a user that does not exist: one that is the first of ``mechanisms`` for some user."""
        ...


def check_of(credentials: PasswordUsers, mechanisms: Sequence[ScramMechanism], user: str) -> PasswordCheck:
    """The check of a user's password: with the first of ``mechanisms`` for which the user has a credential."""
    for mechanism in mechanisms:
        known = credentials.find(mechanism, user)
        if known is not None:
            return PasswordCheck(mechanism, known, known)
    mechanism = credentials.unknown_users_mechanism(mechanisms, user)
    return PasswordCheck(mechanism, None, credentials.made_up(mechanism, user))


class RightPasswords:
    """Passwords that were right not long ago (rule 1). Neither a password nor a plain hash of one is kept."""

    def __init__(self, key: bytes) -> None:
        """``key`` is a secret of this process."""
        self._key = key
        self._known: dict[bytes, tuple[ScramCredential, float]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def has(self, login: PasswordLogin, credential: ScramCredential | None, now_s: float) -> bool:
        """Return True if this password has matched this credential."""
        found = self._known.get(self._name_of(login))
        return found is not None and found[0] == credential and now_s < found[1]

    def add(self, login: PasswordLogin, credential: ScramCredential, now_s: float) -> None:
        """The password fits the credential."""
        if len(self._known) >= REMEMBERED_MAX:
            self._known = {name: each for name, each in self._known.items() if now_s < each[1]}
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
        self._known[self._name_of(login)] = credential, now_s + REMEMBERED_S

    def _name_of(self, login: PasswordLogin) -> bytes:
        user = hashlib.sha256(login.user.encode()).digest()
        return hmac.digest(self._key, user + login.password.encode(), "sha256")


class Failures:
    """Failed logins by address: a bucket of FAILURES_MAX attempts that fills up with FAILURES_PER_S (rule 2)."""

    def __init__(self) -> None:
        self._left: dict[str, tuple[float, float]] = {}
        """Attempts that are left, and when that was; an address that is not here has all."""

    def take(self, address: str, now_s: float) -> bool:
        """Take an attempt before a check; False: none is left."""
        left = self._attempts(address, now_s)
        if left < 1:
            return False
        if not self._has_room(address, now_s):
            return False
        self._left[address] = left - 1, now_s
        return True

    def failed(self, address: str, now_s: float) -> float:
        """Count a login that has failed; return by how many seconds its answer should be late.

        An address that has used up its attempts gets its answers once a second, but none later than LATE_S_MAX. A right
        password is not late: clients behind one address do not lock each other out.
        """
        left = self._attempts(address, now_s) - 1
        late_s = max(0.0, -left / FAILURES_PER_S)
        if late_s > LATE_S_MAX or not self._has_room(address, now_s):
            return LATE_S_MAX
        self._left[address] = left, now_s
        return late_s

    def give_back(self, address: str, now_s: float) -> None:
        """The attempt was no failure."""
        left = self._attempts(address, now_s) + 1
        if left >= FAILURES_MAX:
            self._left.pop(address, None)
        else:
            self._left[address] = left, now_s

    def _has_room(self, address: str, now_s: float) -> bool:
        if address not in self._left and len(self._left) >= ADDRESSES_MAX:
            self._left = {
                each: state for each, state in self._left.items() if self._attempts(each, now_s) < FAILURES_MAX
            }
        return address in self._left or len(self._left) < ADDRESSES_MAX

    def _attempts(self, address: str, now_s: float) -> float:
        state = self._left.get(address)
        if state is None:
            return float(FAILURES_MAX)
        left, at = state
        return min(float(FAILURES_MAX), left + (now_s - at) * FAILURES_PER_S)
