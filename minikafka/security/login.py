"""What the SASL mechanisms have in common: one exchange of tokens that proves a user's name, or fails.

Rules for this file and for the mechanisms: nothing here knows about sockets, requests or images. A client learns from a
failure that it failed, and nothing else; the reason is for the broker's log.
"""

from __future__ import annotations

from typing import Literal, Protocol

Reason = Literal[
    "bad_algorithm",
    "bad_audience",
    "bad_issuer",
    "bad_password",
    "bad_signature",
    "bad_subject",
    "bad_token",
    "channel_binding",
    "delegation_token",
    "expired",
    "lives_too_long",
    "no_keys",
    "not_yet_valid",
    "other_user",
    "unknown_key",
    "unknown_mechanism",
    "unknown_user",
]
"""Why a login failed."""

TOKEN_BYTES_MAX = 16 * 1024
"""A longer token is refused before it is read. RFC 4616 and RFC 5802 tokens have a few hundred bytes."""


class LoginFailed(Exception):
    """The exchange is over without a user. ``reason`` and ``user`` (empty: not known) are for the log only."""

    def __init__(self, reason: Reason, user: str = "") -> None:
        super().__init__(reason)
        self.reason: Reason = reason
        self.user = user


class Exchange(Protocol):
    """The server's part of one login with one mechanism."""

    @property
    def user(self) -> str | None:
        """The proven name; None: the exchange is not over."""
        ...

    @property
    def lifetime_ms(self) -> int:
        """How long the proven credential is valid, once the exchange is over; 0: without an end of its own."""
        ...

    def respond(self, token: bytes) -> bytes:
        """Return the server's answer to a token. Raises LoginFailed, after which the exchange is over."""
        ...

    def holds(self) -> bool:
        """Return True if the credential that was used is still the user's."""
        ...


def text_of(token: bytes) -> str:
    """The token as text. Raises LoginFailed if it is too long or not UTF-8."""
    if len(token) > TOKEN_BYTES_MAX:
        raise LoginFailed("bad_token")
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise LoginFailed("bad_token") from None
