"""SASL SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), as Kafka uses them.

Kafka's choices: no channel binding, no SASLprep (passwords are UTF-8 as they are), no ``e=`` in a failure, 4096 to
16384 iterations. Three checks are stricter than Kafka's, which no correct client notices:

- The nonce of the client's last message must equal the one that was sent (CVE-2024-56128).
- ``c=`` must repeat the client's first header.
- An unknown user fails at the last message, as a wrong password does. Its salt and iterations are made up from its name
  and a secret of the cluster, so that they are the same at every try and at every broker.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from minikafka.security.login import LoginFailed, text_of

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16_384
ITERATIONS_DEFAULT = 8192
"""Of users that minikafka's own command creates."""

SALT_SIZE = 16
NONCE_SIZE = 24
SECRET_SIZE = 32


class ScramMechanism(IntEnum):
    """Kafka's numbers of the mechanisms (KIP-554)."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def label(self) -> str:
        """The name in SASL."""
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The hash function, as ``hashlib`` names it."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def size(self) -> int:
        """Bytes of a hash."""
        return hashlib.new(self.digest).digest_size


MECHANISMS = {each.label: each for each in ScramMechanism if each}
"""By the name in SASL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """What a server keeps of a password. ``server_key`` lets its owner pose as the server, so neither key is shown."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """PBKDF2 of a password; takes milliseconds. It is as good as the password for logging in."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of a salted password."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.digest)
    return ScramCredential(
        salt=salt,
        stored_key=hashlib.new(mechanism.digest, client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", mechanism.digest),
        iterations=iterations,
    )


def made_up_credential(
    mechanism: ScramMechanism, user: str, secret: bytes, shapes: Iterable[tuple[int, int]]
) -> ScramCredential:
    """A credential that no password fits, for a user that does not exist.

    Args:
        mechanism: Used as the credentials of other mechanisms must differ.
        user: The name that the client has sent.
        secret: Known to all brokers, and to no client.
        shapes: Iterations and salt sizes (bytes) of the users that exist; the credential has one of them.
    """
    name = f"{mechanism.label}\0{user}".encode()
    chosen = sorted(set(shapes)) or [(ITERATIONS_DEFAULT, SALT_SIZE)]
    shape = hmac.digest(secret, b"shape\0" + name, "sha512")
    iterations, salt_size = chosen[int.from_bytes(shape[:4], "big") % len(chosen)]
    salt = b"".join(hmac.digest(secret, b"salt%d\0" % number + name, "sha512") for number in range(-(-salt_size // 64)))
    return ScramCredential(
        salt=salt[:salt_size],
        stored_key=hmac.digest(secret, b"stored\0" + name, mechanism.digest),
        server_key=hmac.digest(secret, b"server\0" + name, mechanism.digest),
        iterations=iterations,
    )


def made_up_mechanism(user: str, secret: bytes, strongest: Iterable[ScramMechanism]) -> ScramMechanism:
    """One of the mechanisms that are the ``strongest`` of some user, always the same for a name."""
    chosen = sorted(set(strongest))
    return chosen[hmac.digest(secret, b"mechanism\0" + user.encode(), "sha512")[0] % len(chosen)]


class Credentials(Protocol):
    """Where a server finds credentials."""

    def find(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """The credential of a user; None: there is none for this mechanism."""
        ...

    def made_up(self, mechanism: ScramMechanism, user: str) -> ScramCredential:
        """See :func:`made_up_credential`."""
        ...


_SASLNAME = r"(?:[^,=\0]|=2C|=3D)+"
_FIRST = re.compile(
    rf"(?P<header>n,(?:a=(?P<authzid>{_SASLNAME}))?,)"
    rf"(?P<bare>n=(?P<user>{_SASLNAME}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<extensions>(?:,[A-Za-z]+=[^,\0]+)*))"
)
_BASE64 = r"[A-Za-z0-9+/]+={0,2}"
_FINAL = re.compile(
    rf"(?P<without_proof>c=(?P<header>{_BASE64}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]+=[^,\0]+)*)"
    rf",p=(?P<proof>{_BASE64})"
)


class ScramExchange:
    """One login with SCRAM: two messages of the client, two answers."""

    def __init__(self, mechanism: ScramMechanism, credentials: Credentials, entropy: Callable[[int], bytes]) -> None:
        """``entropy`` gives so many unpredictable bytes."""
        self._mechanism = mechanism
        self._credentials = credentials
        self._nonce = base64.urlsafe_b64encode(entropy(NONCE_SIZE)).decode()
        self._name = ""
        """As the client says it; ``user`` once it is proven."""
        self._nonces: tuple[str, ...] = ()
        """Those that the last message may have."""
        self._step = 0
        """Number of messages of the client."""
        self._known: ScramCredential | None = None
        self._used: ScramCredential | None = None
        """The known or a made up one, after the first message."""
        self._header = ""
        self._messages = ""
        """The client's first message without its header, and the answer."""
        self.user: str | None = None
        self.lifetime_ms = 0

    def respond(self, token: bytes) -> bytes:
        """See :class:`Exchange`."""
        self._step += 1
        if self._step == 1:
            return self._first(text_of(token)).encode()
        if self._step == 2 and self._used is not None:
            return self._final(text_of(token), self._used).encode()
        raise LoginFailed("bad_token", self._name)

    def holds(self) -> bool:
        """See :class:`Exchange`."""
        return self._credentials.find(self._mechanism, self._name) == self._known

    def _first(self, text: str) -> str:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise LoginFailed("channel_binding" if text.startswith(("y,", "p=")) else "bad_token")
        self._name = _unescaped(found["user"])
        if found["authzid"] is not None and _unescaped(found["authzid"]) != self._name:
            raise LoginFailed("other_user", self._name)
        if ",tokenauth=true" in found["extensions"].lower():
            raise LoginFailed("delegation_token", self._name)
        self._known = self._credentials.find(self._mechanism, self._name)
        if self._known is not None and not ITERATIONS_MIN <= self._known.iterations <= ITERATIONS_MAX:
            self._known = None
        used = self._used = self._known or self._credentials.made_up(self._mechanism, self._name)
        self._header, self._nonce = found["header"], found["nonce"] + self._nonce
        # librdkafka before 2.6.1, which kcat of Debian 12 and of Ubuntu 24.04 uses, repeats its own nonce in front
        # (librdkafka #4895). The whole nonce that was sent to it follows, and the proof covers it.
        self._nonces = (self._nonce, found["nonce"] + self._nonce)
        answer = f"r={self._nonce},s={_in_base64(used.salt)},i={used.iterations}"
        self._messages = f"{found['bare']},{answer}"
        return answer

    def _final(self, text: str, used: ScramCredential) -> str:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise LoginFailed("bad_token", self._name)
        if found["nonce"] not in self._nonces or _bytes_of(found["header"]) != self._header.encode():
            raise LoginFailed("bad_token", self._name)
        message = f"{self._messages},{found['without_proof']}".encode()
        proof = _bytes_of(found["proof"])
        if len(proof) != self._mechanism.size:
            raise LoginFailed("bad_token", self._name)
        signature = hmac.digest(used.stored_key, message, self._mechanism.digest)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.new(self._mechanism.digest, client_key).digest(), used.stored_key)
        verifier = hmac.digest(used.server_key, message, self._mechanism.digest)
        if self._known is None:
            raise LoginFailed("unknown_user", self._name)
        if not is_right:
            raise LoginFailed("bad_password", self._name)
        self.user = self._name
        return f"v={_in_base64(verifier)}"


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _in_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""
