"""Keys and tokens of an issuer, for tests of OAUTHBEARER."""

from __future__ import annotations

import json
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

ISSUER, AUDIENCE = "https://login.example", "kafka"


class Issuer:
    """An issuer with a key of each kind; the ``kid`` is the algorithm."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {
            "RS256": rsa.generate_private_key(public_exponent=65537, key_size=2048),
            "ES256": ec.generate_private_key(ec.SECP256R1()),
            "EdDSA": ed25519.Ed25519PrivateKey.generate(),
        }

    def jwks(self, *kids: str) -> str:
        """The public keys, or some of them."""
        algorithms = {name: jwt.get_algorithm_by_name(name) for name in self.keys}
        keys = [
            {**json.loads(algorithms[name].to_jwk(key.public_key())), "kid": name, "use": "sig"}
            for name, key in self.keys.items()
            if not kids or name in kids
        ]
        return json.dumps({"keys": keys})

    def token(
        self, algorithm: str = "ES256", *, kid: str = "", header: dict[str, Any] | None = None, **claims: Any
    ) -> str:
        """A token that is valid for five minutes; a claim that is None is left out."""
        now = int(time.time())
        wanted = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + 300, **claims}
        return jwt.encode(
            {name: each for name, each in wanted.items() if each is not None},
            self.keys["RS256" if algorithm == "PS256" else algorithm],
            algorithm,
            headers={"kid": kid or ("RS256" if algorithm == "PS256" else algorithm), **(header or {})},
        )
