"""SASL PLAIN (RFC 4616): the client sends its name and password in one token."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from minikafka.security.login import LoginFailed, text_of

PLAIN = "PLAIN"


class PlainExchange:
    """One login with PLAIN. The passwords are those of the broker's settings, so they hold as long as it runs."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.user: str | None = None
        self.lifetime_ms = 0

    def respond(self, token: bytes) -> bytes:
        """Check ``[authzid] NUL authcid NUL passwd``; the answer is empty. An authzid must be the same name."""
        authorized, user, password = _parts(text_of(token))
        if not user or not password:
            raise LoginFailed("bad_token")
        if authorized not in ("", user):
            raise LoginFailed("other_user", user)
        known = self._passwords.get(user)
        # An unknown user costs the same comparison.
        is_right = hmac.compare_digest(password.encode(), (known or "").encode())
        if known is None:
            raise LoginFailed("unknown_user", user)
        if not is_right:
            raise LoginFailed("bad_password", user)
        self.user = user
        return b""

    def holds(self) -> bool:
        """See :class:`Exchange`."""
        return True


def _parts(text: str) -> tuple[str, str, str]:
    parts = text.split("\0")
    if len(parts) != 3:
        raise LoginFailed("bad_token")
    return parts[0], parts[1], parts[2]
