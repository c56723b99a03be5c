"""SASL OAUTHBEARER (RFC 7628, KIP-255, KIP-768) and Bearer tokens: JSON Web Tokens (JWT), verified by keys of a JWKS.

Rules for this file:

1. A token chooses nothing but a key by its ``kid``. Its algorithm must be one of ALGORITHMS and fit the key, so neither
   ``none`` nor HMAC with a public key can be used. Keys and addresses of keys in a token are ignored.
2. Issuer and audience are always compared. ``exp`` and ``iat`` are required.
3. Signatures are verified by PyJWT; claims are checked here, with the time that comes in.
4. A client learns that a token is invalid, and nothing else.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from minikafka.errors import InvalidConfig
from minikafka.security.login import LoginFailed, Reason, text_of
from minikafka.types import RESERVED_NAMES

OAUTHBEARER = "OAUTHBEARER"

ALGORITHMS: Mapping[str, tuple[str, str]] = {
    "RS256": ("RSA", ""),
    "PS256": ("RSA", ""),
    "ES256": ("EC", "P-256"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""Algorithm -> ``kty`` and ``crv`` of the keys that it takes."""

TOKEN_SIZE_MAX = 16 * 1024
JWKS_KEYS_MAX = 100
RSA_BITS_MIN = 2048
LIFETIME_S_MAX = 24 * 3600
"""From ``iat`` to ``exp``."""
SUBJECT_SIZE_MAX = 255
REMEMBERED_MAX = 1024
NUMBER_MAX = 2**53

SETTING = "sasl.oauthbearer.jwks.endpoint.url"

_TOKEN = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_TYPES = (None, "jwt", "at+jwt", "application/at+jwt")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """What a broker demands of tokens."""

    issuer: str
    audiences: frozenset[str]
    subject_claim: str = "sub"
    skew_s: int = 30
    prefix: str = ""
    """Stands before the subject in the principal's name."""


_PUBLIC = frozenset({"kty", "crv", "n", "e", "x", "y"})
"""Members of a JWK from which its public key is made."""


class VerifiedToken(NamedTuple):
    """What a valid token says."""

    user: str
    expires_ms: int
    """``exp``, in milliseconds since 1970."""
    token_id: str
    """``jti``; empty: it has none."""


class Key(NamedTuple):
    """One public key of a JWKS."""

    kind: tuple[str, str]
    """``kty`` and ``crv``."""
    algorithm: str
    """``alg`` of the key; empty: any that fits."""
    key: Any
    """PyJWT's."""

    def fits(self, algorithm: str) -> bool:
        """Return True if this key may verify a signature of this algorithm."""
        return ALGORITHMS[algorithm] == self.kind and self.algorithm in ("", algorithm)


def parse_jwks(text: str | bytes) -> dict[str, Key]:
    """The usable keys of a JWKS by ``kid``. Keys for other purposes or algorithms are left out.

    Raises InvalidConfig if it is no JWKS, has no usable key, or two keys with one ``kid``.
    """
    import jwt  # noqa: PLC0415 - of the extra `certs`

    try:
        document = json.loads(text)
        listed = document["keys"]
        entries = [dict(each) for each in listed]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InvalidConfig(f'{SETTING} has no JWKS, which is {{"keys": [...]}}', setting=SETTING) from None
    found: dict[str, Key] = {}
    for entry in entries[:JWKS_KEYS_MAX]:
        kid, kind = entry.get("kid"), (str(entry.get("kty", "")), str(entry.get("crv", "")))
        if not isinstance(kid, str) or kind not in ALGORITHMS.values() or entry.get("use", "sig") != "sig":
            continue
        algorithm = next(name for name, each in ALGORITHMS.items() if each == kind)
        try:
            # Some issuers publish the private part too, and PyJWT would make a private key: RSA's verifies nothing.
            key = jwt.PyJWK.from_dict({each: entry[each] for each in entry if each in _PUBLIC}, algorithm).key
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            continue
        if kind[0] == "RSA" and getattr(key, "key_size", 0) < RSA_BITS_MIN:
            continue
        if kid in found:
            raise InvalidConfig(f"{SETTING}: two keys have the kid {kid[:80]!r}", setting=SETTING)
        found[kid] = Key(kind, str(entry.get("alg", "")), key)
    if not found:
        raise InvalidConfig(
            f"{SETTING} has no usable key; keys need a kid, and must be RSA with {RSA_BITS_MIN} bits or more, P-256 or "
            "Ed25519",
            setting=SETTING,
        )
    return found


class Tokens:
    """Verifies tokens with the keys that it has at the time."""

    def __init__(self, rules: TokenRules) -> None:
        self._rules = rules
        self._keys: Mapping[str, Key] | None = None
        self._verified: dict[bytes, VerifiedToken] = {}
        self.on_unknown_key: Callable[[], None] = lambda: None
        """Called for a token whose key is not known: the keys may have changed."""

    def use(self, keys: Mapping[str, Key]) -> None:
        """Take other keys; what the former have verified is forgotten."""
        self._keys = keys
        self._verified.clear()

    def is_remembered(self, token: str, wall_ms: int) -> bool:
        """Return True if this token was verified before, so that no signature is computed."""
        known = self._verified.get(_digest(token))
        return known is not None and not self._is_over(known, wall_ms)

    def _is_over(self, token: VerifiedToken, wall_ms: int) -> bool:
        return wall_ms >= token.expires_ms + self._rules.skew_s * 1000

    def verify(self, token: str, wall_ms: int) -> VerifiedToken:
        """What a token says. Raises LoginFailed if it is not valid at ``wall_ms`` (milliseconds since 1970)."""
        if len(token) > TOKEN_SIZE_MAX or _TOKEN.fullmatch(token) is None:
            raise LoginFailed("bad_token")
        digest = _digest(token)
        known = self._verified.get(digest)
        if known is not None:
            if self._is_over(known, wall_ms):
                raise LoginFailed("expired", known.user)
            return known
        claims = self._claims_of(token)
        found = self._checked(claims, wall_ms)
        if len(self._verified) >= REMEMBERED_MAX:
            self._verified.clear()
        self._verified[digest] = found
        return found

    def _claims_of(self, token: str) -> dict[str, Any]:
        """The claims, once the signature is verified."""
        import jwt  # noqa: PLC0415 - of the extra `certs`

        header = _json_of(token.partition(".")[0])
        algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise LoginFailed("bad_algorithm")
        if "crit" in header or (kind.lower() if isinstance(kind, str) else kind) not in _TYPES:
            raise LoginFailed("bad_token")
        key = (self._keys or {}).get(kid) if isinstance(kid, str) else None
        if key is None:
            self.on_unknown_key()
            raise LoginFailed("no_keys" if self._keys is None else "unknown_key")
        if not key.fits(algorithm):
            raise LoginFailed("bad_algorithm")
        try:
            signed = jwt.PyJWS().decode(token, key.key, algorithms=[algorithm])
        except (jwt.PyJWTError, ValueError, TypeError):
            raise LoginFailed("bad_signature") from None
        return _object_of(signed)

    def _checked(self, claims: dict[str, Any], wall_ms: int) -> VerifiedToken:
        rules, now = self._rules, wall_ms / 1000
        subject = claims.get(rules.subject_claim)
        if not isinstance(subject, str) or not 1 <= len(subject) <= SUBJECT_SIZE_MAX or not subject.isprintable():
            raise LoginFailed("bad_subject")
        user = rules.prefix + subject
        if user in RESERVED_NAMES:
            raise LoginFailed("bad_subject", user)

        def failed(reason: Reason) -> LoginFailed:
            return LoginFailed(reason, user)

        if claims.get("iss") != rules.issuer:
            raise failed("bad_issuer")
        audience = claims.get("aud")
        named = audience if isinstance(audience, list) else [audience]
        if not any(isinstance(each, str) and each in rules.audiences for each in named):
            raise failed("bad_audience")
        expires, issued, begins = (_seconds(claims, each) for each in ("exp", "iat", "nbf"))
        if expires is None or issued is None or ("nbf" in claims and begins is None):
            raise failed("bad_token")
        if now >= expires + rules.skew_s:
            raise failed("expired")
        if now < max(issued, begins or 0.0) - rules.skew_s:
            raise failed("not_yet_valid")
        if expires - issued > LIFETIME_S_MAX:
            raise failed("lives_too_long")
        token_id = claims.get("jti")
        return VerifiedToken(user, int(expires * 1000), token_id[:80] if isinstance(token_id, str) else "")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("ascii", "replace")).digest()


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < NUMBER_MAX:
        return None
    return float(value)


def _object_of(text: bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise LoginFailed("bad_token") from None
    if not isinstance(value, dict):
        raise LoginFailed("bad_token")
    return value


def _json_of(part: str) -> dict[str, Any]:
    try:
        return _object_of(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError):
        raise LoginFailed("bad_token") from None


# ---- the exchange ----------------------------------------------------------------------------------------------------

_SEPARATOR = "\x01"
_FIRST = re.compile(
    r"n,(?:a=(?P<authzid>(?:[^,=\0\x01]|=2C|=3D)+))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x20-\x7e\r\n\t]*\x01)+)\x01"
)
INVALID_TOKEN = b'{"status":"invalid_token"}'


class OAuthExchange:
    """One login: the client's token, then nothing; or INVALID_TOKEN, the client's 0x01, and the failure."""

    def __init__(self, tokens: Tokens, wall_ms: Callable[[], int]) -> None:
        self._tokens = tokens
        self._wall_ms = wall_ms
        self._failure: LoginFailed | None = None
        self.user: str | None = None
        self.lifetime_ms = 0

    def respond(self, token: bytes) -> bytes:
        """See the class. Raises LoginFailed at the client's second message."""
        if self._failure is not None:
            raise self._failure
        try:
            text = text_of(token)
            found = _FIRST.fullmatch(text)
            if found is None:
                raise LoginFailed("bad_token")
            now_ms = self._wall_ms()
            verified = self._tokens.verify(_bearer_of(found["pairs"]), now_ms)
            if found["authzid"] not in (None, verified.user):
                raise LoginFailed("other_user", verified.user)
        except LoginFailed as failure:
            self._failure = failure
            return INVALID_TOKEN
        self.lifetime_ms = max(1, verified.expires_ms - now_ms)
        self.user = verified.user
        return b""

    def holds(self) -> bool:
        """See :class:`Exchange`. A token counts until its end."""
        return True


def _bearer_of(pairs: str) -> str:
    """The token of ``auth=Bearer TOKEN``; other pairs are extensions (KIP-342), which are ignored."""
    values = [each.partition("=")[2] for each in pairs.split(_SEPARATOR) if each.startswith("auth=")]
    if len(values) != 1:
        raise LoginFailed("bad_token")
    scheme, _, token = values[0].partition(" ")
    if scheme.lower() != "bearer":
        raise LoginFailed("bad_token")
    return token.strip()
