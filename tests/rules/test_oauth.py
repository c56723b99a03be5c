"""Tokens (security/oauth.py): which are valid, which never are, and the messages of OAUTHBEARER."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from minikafka.config import BrokerConfig
from minikafka.errors import InvalidConfig, SaslAuthenticationFailed
from minikafka.security import oauth
from minikafka.security.login import LoginFailed
from minikafka.security.oauth import INVALID_TOKEN, OAuthExchange, TokenRules, Tokens, parse_jwks
from minikafka.security.sasl import SaslLogin, SaslPolicy, Stage
from minikafka.world.jwks import JwksReader
from tests.clients.fake_cluster import play
from tests.tokens import AUDIENCE, ISSUER, Issuer

RULES = TokenRules(issuer=ISSUER, audiences=frozenset({AUDIENCE, "other"}))
HOUR_S = 3600


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def tokens(issuer: Issuer) -> Tokens:
    found = Tokens(RULES)
    found.use(parse_jwks(issuer.jwks()))
    return found


def now_ms() -> int:
    return int(time.time() * 1000)


def reason(tokens: Tokens, token: str, wall_ms: int | None = None) -> str:
    with pytest.raises(LoginFailed) as caught:
        tokens.verify(token, now_ms() if wall_ms is None else wall_ms)
    return caught.value.reason


def part(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@pytest.mark.parametrize("algorithm", list(oauth.ALGORITHMS))
def test_each_algorithm_with_its_key(tokens: Tokens, issuer: Issuer, algorithm: str):
    """The subject is the user, and the end is ``exp``."""
    found = tokens.verify(issuer.token(algorithm, jti="7", aud=["x", AUDIENCE]), now_ms())
    assert (found.user, found.token_id) == ("ann", "7")
    assert 299_000 <= found.expires_ms - now_ms() <= 300_000


@pytest.mark.parametrize("algorithm", list(oauth.ALGORITHMS))
def test_keys_with_their_private_part_verify_tokens_like_public_ones(issuer: Issuer, algorithm: str):
    """An issuer that publishes a whole key pair has made a mistake, but each login with its tokens raised AttributeError."""
    kid = "RS256" if algorithm == "PS256" else algorithm
    whole = {**json.loads(jwt.get_algorithm_by_name(kid).to_jwk(issuer.keys[kid])), "kid": kid}
    assert "d" in whole
    tokens = Tokens(RULES)
    tokens.use(parse_jwks(json.dumps({"keys": [whole]})))
    assert tokens.verify(issuer.token(algorithm), now_ms()).user == "ann"
    assert reason(tokens, Issuer().token(algorithm)) == "bad_signature"


def test_hostile_test_16_algorithms(tokens: Tokens, issuer: Issuer):
    """``none`` and HMAC with the public key as its secret; an algorithm that the key is not for."""
    claims = issuer.token().split(".")[1]
    for kid in issuer.keys:
        unsigned = f"{part({'alg': 'none', 'kid': kid})}.{claims}."
        assert reason(tokens, unsigned) == "bad_token"
        assert reason(tokens, unsigned + "AA") == "bad_algorithm"
        public = issuer.keys[kid].public_key()
        forms = [
            public.public_bytes(encoding, serialization.PublicFormat.SubjectPublicKeyInfo)
            for encoding in (serialization.Encoding.PEM, serialization.Encoding.DER)
        ]
        for secret in (*forms, issuer.jwks(kid).encode()):
            for size in ("256", "512"):
                text = f"{part({'alg': f'HS{size}', 'kid': kid})}.{claims}"
                signature = part(hmac.digest(secret, text.encode(), f"sha{size}"))
                assert reason(tokens, f"{text}.{signature}") == "bad_algorithm"
        for algorithm in oauth.ALGORITHMS:
            head = part({"alg": algorithm, "kid": kid})
            assert reason(tokens, f"{head}.{claims}.{part(bytes(64))}") in ("bad_algorithm", "bad_signature")


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"iss": "https://evil.example"}, "bad_issuer"),
        ({"iss": None}, "bad_issuer"),
        ({"aud": "spark"}, "bad_audience"),
        ({"aud": None}, "bad_audience"),
        ({"aud": [7, {"kafka": 1}]}, "bad_audience"),
        ({"exp": None}, "bad_token"),
        ({"iat": None}, "bad_token"),
        ({"exp": int(time.time()) - 60, "iat": int(time.time()) - 600}, "expired"),
        ({"iat": int(time.time()) + HOUR_S}, "not_yet_valid"),
        ({"nbf": int(time.time()) + HOUR_S}, "not_yet_valid"),
        ({"exp": int(time.time()) + 25 * HOUR_S}, "lives_too_long"),
        ({"exp": 2**53}, "bad_token"),
        ({"sub": None}, "bad_subject"),
        ({"sub": ""}, "bad_subject"),
        ({"sub": "*"}, "bad_subject"),
        ({"sub": "ANONYMOUS"}, "bad_subject"),
        ({"sub": "ann\nbob"}, "bad_subject"),
        ({"sub": "x" * 256}, "bad_subject"),
    ],
)
def test_hostile_test_16_claims(tokens: Tokens, issuer: Issuer, claims: dict[str, Any], why: str):
    """A right signature is not enough."""
    assert reason(tokens, issuer.token(**claims)) == why


def test_hostile_test_16_headers_and_sizes(tokens: Tokens, issuer: Issuer):
    """Nothing in a token chooses another key, and no size or form does more than fail."""
    stranger = Issuer()
    own_key = json.loads(stranger.jwks("ES256"))["keys"][0]
    for header in ({"jku": "https://evil.example/keys"}, {"jwk": own_key}, {"x5u": "https://evil.example"}):
        assert reason(tokens, stranger.token(header=header)) == "bad_signature"
        assert tokens.verify(issuer.token(header=header), now_ms()).user == "ann"
    assert reason(tokens, issuer.token(header={"crit": ["exp"]})) == "bad_token"
    assert reason(tokens, issuer.token(header={"typ": "dpop+jwt"})) == "bad_token"
    good = issuer.token()
    for token in ("", "a.b", "a.b.c.d", good + "=", good + ".x", "a" * (1 << 20), f"{good}A", "e30.e30.e30", "!.!.!"):
        assert reason(tokens, token)
    for data in (b"[]", b"7", b"\xff", b"{" * 9999, b'{"alg": ["RS256"]}'):
        assert reason(tokens, f"{part(data)}.e30.AA")


def test_an_unknown_key_asks_for_keys_and_is_not_tried_with_others(tokens: Tokens, issuer: Issuer):
    """Hostile test 16: who reads the keys bounds how often."""
    asked: list[int] = []
    tokens.on_unknown_key = lambda: asked.append(1)
    assert reason(tokens, issuer.token(kid="other")) == "unknown_key"
    assert asked == [1]
    empty = Tokens(RULES)
    assert reason(empty, issuer.token()) == "no_keys"


def test_a_verified_token_is_remembered_until_its_end_or_other_keys(
    tokens: Tokens, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
):
    """A signature is computed once."""
    token, now = issuer.token(), now_ms()
    assert not tokens.is_remembered(token, now)
    tokens.verify(token, now)
    assert tokens.is_remembered(token, now + 329_000)
    assert not tokens.is_remembered(token, now + 331_000)
    assert reason(tokens, token, now + 331_000) == "expired"
    tokens.use(parse_jwks(issuer.jwks("RS256")))
    assert reason(tokens, token) == "unknown_key"
    monkeypatch.setattr(oauth, "REMEMBERED_MAX", 3)
    for number in range(10):
        tokens.verify(issuer.token("RS256", sub=f"u{number}"), now_ms())
        assert len(tokens._verified) <= 3


def test_a_prefix_keeps_users_of_tokens_apart_from_others(issuer: Issuer):
    """mk.oauth.principal.prefix, and another claim than ``sub``."""
    tokens = Tokens(TokenRules(issuer=ISSUER, audiences=frozenset({AUDIENCE}), subject_claim="email", prefix="sso-"))
    tokens.use(parse_jwks(issuer.jwks()))
    assert tokens.verify(issuer.token(email="ann@example"), now_ms()).user == "sso-ann@example"


def test_keys_that_are_no_good_are_left_out(issuer: Issuer):
    """Symmetric keys, short RSA keys, keys without ``kid`` or for encryption; a JWKS without a usable key is refused."""
    import jwt

    small = rsa.generate_private_key(public_exponent=65537, key_size=1024).public_key()
    short = {**json.loads(jwt.get_algorithm_by_name("RS256").to_jwk(small)), "kid": "short"}
    good = json.loads(issuer.jwks("ES256"))["keys"][0]
    bad = [
        {"kty": "oct", "k": part(b"secret"), "kid": "oct"},
        short,
        {each: good[each] for each in good if each != "kid"},
        {**good, "kid": "enc", "use": "enc"},
        {**good, "kid": "broken", "x": "!"},
    ]
    assert set(parse_jwks(json.dumps({"keys": [*bad, good]}))) == {"ES256"}
    for text in ("", "[]", "{}", '{"keys": 7}', '{"keys": [7]}', '{"keys": []}', json.dumps({"keys": bad})):
        with pytest.raises(InvalidConfig):
            parse_jwks(text)
    with pytest.raises(InvalidConfig, match="kid"):
        parse_jwks(json.dumps({"keys": [good, good]}))


def message(token: str, *, header: str = "n,,", scheme: str = "Bearer") -> bytes:
    return f"{header}\x01auth={scheme} {token}\x01traceparent=7\x01\x01".encode()


def login(tokens: Tokens, *, reauthentication_ms: int = 0) -> SaslLogin:
    policy = SaslPolicy(
        mechanisms={"OAUTHBEARER": lambda: OAuthExchange(tokens, now_ms)}, reauthentication_ms_max=reauthentication_ms
    )
    it = SaslLogin(policy)
    it.handshake("OAUTHBEARER", 0)
    return it


@pytest.mark.parametrize("limit_ms", [0, 60_000, 3_600_000])
def test_a_session_ends_with_its_token(tokens: Tokens, issuer: Issuer, limit_ms: int):
    """KIP-368: the shorter of the token's life and connections.max.reauth.ms; another token renews the session."""
    it = login(tokens, reauthentication_ms=limit_ms)
    token, lifetime_ms = it.authenticate(message(issuer.token()), 1000)
    assert (token, it.stage, it.user) == (b"", Stage.OPEN, "ann")
    if limit_ms == 60_000:
        assert lifetime_ms == limit_ms
    else:
        assert 299_000 - 1000 <= lifetime_ms <= 300_000
    assert not it.end_of(1000 + lifetime_ms)
    assert it.end_of(1001 + lifetime_ms) == "expired"
    it.handshake("OAUTHBEARER", 5000)
    with pytest.raises(SaslAuthenticationFailed):
        it.authenticate(message(issuer.token(sub="bob")), 5001)


@pytest.mark.parametrize("header", ["n,,", "n,a=ann,"])
def test_a_wrong_token_fails_at_the_second_message(tokens: Tokens, issuer: Issuer, header: str):
    """RFC 7628, 3.2.3: the failure is JSON without a reason; then the client sends 0x01."""
    it = login(tokens)
    assert it.authenticate(message(issuer.token(iss="x"), header=header), 1) == (INVALID_TOKEN, 0)
    assert (it.stage, it.user) == (Stage.EXCHANGE, None)
    with pytest.raises(SaslAuthenticationFailed):
        it.authenticate(b"\x01", 2)
    assert it.stage is Stage.FAILED
    assert it.failure is not None
    assert it.failure.reason == "bad_issuer"


def test_messages_of_other_forms_fail(tokens: Tokens, issuer: Issuer):
    """Channel binding, other schemes, two tokens, no token, another name, bytes that are no text."""
    token = issuer.token()
    wrong = [
        message(token, header="y,,"), message(token, header="p=tls-unique,,"), message(token, scheme="Basic"),
        message(token, header="n,a=bob,"), b"", b"\x01", b"n,,\x01\x01", b"\xff", message(token)[:-1],
        message(token).replace(b"traceparent=7", b"auth=Bearer x"), token.encode(), b"n,,\x01auth=\x01\x01",
    ]  # fmt: skip
    for data in wrong:
        it = login(tokens)
        assert it.authenticate(data, 1).token == INVALID_TOKEN
        with pytest.raises(SaslAuthenticationFailed):
            it.authenticate(message(token), 2)
    assert hashlib.sha256(token.encode()).digest() not in tokens._verified or not login(tokens).user


def test_keys_are_looked_for_however_long_their_server_is_away_and_reported_when_they_change(issuer: Issuer):
    """After 1,024 failures the pause was no number any more; keys that are the same are no news."""
    texts = [b"none"] * 1100 + [issuer.jwks("RS256").encode()] * 3 + [issuer.jwks().encode()]
    reported: list[str] = []
    tokens = Tokens(RULES)
    config = BrokerConfig(sasl_oauthbearer_jwks_endpoint_url="https://keys.example/jwks")
    keys = JwksReader(config, tokens, lambda kind, /, **_facts: reported.append(kind))

    async def read() -> bytes:
        return texts.pop(0) if texts else await asyncio.Future()

    keys._read = read

    async def story() -> None:
        reading = asyncio.ensure_future(keys._run())
        while texts and not reading.done():  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(60.0)
        await asyncio.sleep(60.0)
        reading.cancel()

    play(story)
    assert reported == ["jwks_failed"] * 1100 + ["jwks_loaded"] * 2
