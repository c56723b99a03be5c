"""OAUTHBEARER with real clients: librdkafka, aiokafka and HTTP; right, wrong and ending tokens; keys that change."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from click.testing import CliRunner
from confluent_kafka import KafkaError, Producer

from minikafka import Producer as MinikafkaProducer
from minikafka.cli.root import root
from minikafka.config import parse_broker
from minikafka.errors import InvalidConfig, SaslAuthenticationFailed
from minikafka.hosting.local_broker import token_verifier
from tests.e2e.secured import eventually, request, secured
from tests.kafka.client import RawClient
from tests.tokens import AUDIENCE, ISSUER, Issuer

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


def settings(keys: Path) -> dict[str, str]:
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER,SCRAM-SHA-512",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "super.users": "User:admin;User:robot",
    }


def librdkafka(address: str, token: Callable[[], str], errors: list[KafkaError]) -> Producer:
    def refresh(_config: str) -> tuple[str, float]:
        return token(), time.time() + 2.5

    return Producer(
        {
            "bootstrap.servers": address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": refresh,
            "error_cb": errors.append,
            "message.timeout.ms": 30_000,
        }
    )


class Provider(AbstractTokenProvider):
    """aiokafka's, and minikafka's."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


async def test_clients_log_in_with_tokens(tmp_path: Path, issuer: Issuer):
    """The same principal over Kafka's protocol and HTTP; a wrong token is each client's authentication error."""
    keys = tmp_path / "keys.json"
    keys.write_text(issuer.jwks(), encoding="ascii")
    async with secured(tmp_path / "data", settings(keys)) as broker:
        robot, wrong = issuer.token(sub="robot"), issuer.token(sub="robot", aud="spark")
        errors: list[KafkaError] = []

        def produce() -> KafkaError | None:
            delivered: list[Any] = []
            producer = librdkafka(broker.clients, lambda: issuer.token(sub="robot"), errors)
            producer.produce("orders", b"tea", on_delivery=lambda error, _: delivered.append(error))
            producer.flush(PATIENCE_S)
            return delivered[0]

        assert await asyncio.to_thread(produce) is None
        refused = librdkafka(broker.clients, lambda: wrong, errors)
        await eventually(lambda: (refused.poll(0.1), KafkaError._AUTHENTICATION in {each.code() for each in errors})[1])
        common = {"bootstrap_servers": broker.clients, "security_protocol": "SASL_PLAINTEXT"}
        for kind in (AIOKafkaProducer, MinikafkaProducer):
            producer = kind(**common, sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=Provider(robot))
            await producer.start()
            try:
                await producer.send_and_wait("orders", b"milk")
            finally:
                await producer.stop()
        with pytest.raises(SaslAuthenticationFailed):
            async with MinikafkaProducer(
                **common, sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=Provider(wrong)
            ):
                pass

        def over_http(token: str) -> tuple[int, Any]:
            answer = request(broker.clients, "/v1/whoami", headers=[("Authorization", f"Bearer {token}")])
            return answer.status, answer.document

        status, found = await asyncio.to_thread(over_http, robot)
        assert (status, found["principal"], found["super_user"]) == (200, "User:robot", True)
        assert (await asyncio.to_thread(over_http, wrong))[0] == 401
        assert (await asyncio.to_thread(broker.get, "/v1/whoami", "ann")).status == 200


async def test_sessions_are_renewed_at_the_end_of_their_token(tmp_path: Path, issuer: Issuer):
    """KIP-368: librdkafka logs in again in time; the token of a session that is not renewed ends it."""
    keys = tmp_path / "keys.json"
    keys.write_text(issuer.jwks(), encoding="ascii")
    short = {"sasl.oauthbearer.clock.skew.seconds": "0"}
    async with secured(tmp_path / "data", settings(keys) | short) as broker:
        errors: list[KafkaError] = []
        delivered: list[Any] = []
        made: list[str] = []

        def token() -> str:
            made.append(issuer.token(sub="robot", exp=int(time.time()) + 8))
            return made[-1]

        def run() -> None:
            producer = librdkafka(broker.clients, token, errors)
            end = time.monotonic() + 13
            while time.monotonic() < end:
                producer.produce("orders", b"v", on_delivery=lambda error, _: delivered.append(error))
                producer.flush(PATIENCE_S)
                time.sleep(0.05)

        await asyncio.to_thread(run)
        assert set(delivered) == {None}
        assert len(made) >= 3
        first = [("Authorization", f"Bearer {made[0]}")]
        answer = await asyncio.to_thread(request, broker.clients, "/v1/whoami", headers=first)
        assert answer.status == 401


async def test_keys_of_a_file_are_read_again_for_an_unknown_key(tmp_path: Path, issuer: Issuer):
    """Rotation: a token of a new key is refused once, then its key is known; tokens of the old key are not valid."""
    keys = tmp_path / "keys.json"
    keys.write_text(issuer.jwks("RS256"), encoding="ascii")
    async with secured(tmp_path / "data", settings(keys)) as broker:

        def status(algorithm: str) -> int:
            header = ("Authorization", f"Bearer {issuer.token(algorithm)}")
            return request(broker.clients, "/v1/whoami", headers=[header]).status

        assert await asyncio.to_thread(status, "RS256") == 200
        assert await asyncio.to_thread(status, "ES256") == 401
        keys.write_text(issuer.jwks("ES256"), encoding="ascii")

        def is_known() -> bool:
            time.sleep(1)  # failures of an address are limited
            return status("ES256") == 200

        await eventually(is_known)
        assert await asyncio.to_thread(status, "RS256") == 401


def make_certificates(folder: Path) -> Path:
    """A CA, and a certificate for localhost, by `minikafka certs`."""
    for words in (("ca",), ("broker", "login", "--host", "localhost")):
        made = CliRunner().invoke(root, ["certs", *words, "--dir", str(folder)])
        assert made.exit_code == 0, made.output
    return folder


@asynccontextmanager
async def provider(folder: Path, keys: Callable[[], str | web.Response]) -> AsyncIterator[str]:
    """The address of an identity provider's server of keys."""

    async def answer(_: web.Request) -> web.Response:
        found = keys()
        return found if isinstance(found, web.Response) else web.Response(text=found, content_type="application/json")

    application = web.Application()
    application.router.add_get("/keys", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "login.pem")
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield f"https://localhost:{runner.addresses[0][1]}/keys"
    finally:
        await runner.cleanup()


async def test_keys_are_read_from_a_server_whose_ca_is_trusted(tmp_path: Path, issuer: Issuer):
    """Issue 18: with a CA of one's own; a certificate of another CA is refused, and the log says so and what to do."""
    own, other = (make_certificates(tmp_path / name) for name in ("own", "other"))
    trusted, log = tmp_path / "trusted.pem", tmp_path / "audit.log"
    trusted.write_bytes((other / "ca.pem").read_bytes())
    async with provider(own, issuer.jwks) as url:
        settings_ = settings(tmp_path) | {
            "sasl.oauthbearer.jwks.endpoint.url": url,
            "mk.oauth.jwks.truststore.location": str(trusted),
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "200",
            "mk.audit.path": str(log),
        }
        async with secured(tmp_path / "data", settings_) as broker:

            def status() -> int:
                time.sleep(1)  # failures of an address are limited
                header = ("Authorization", f"Bearer {issuer.token()}")
                return request(broker.clients, "/v1/whoami", headers=[header]).status

            def logged(event: str) -> list[dict[str, Any]]:
                lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
                return [each for each in map(json.loads, lines) if each["event"] == event]

            await eventually(lambda: len(logged("jwks_failed")) > 0)
            why = logged("jwks_failed")[0]["why"]
            assert "sasl.oauthbearer.jwks.endpoint.url" in why
            assert "certificate of localhost" in why
            assert "mk.oauth.jwks.truststore.location=" in why  # the log cuts long texts
            assert await asyncio.to_thread(status) == 503, "the broker cannot say yet whether the token is valid"
            trusted.write_bytes((own / "ca.pem").read_bytes())
            await eventually(lambda: status() == 200)
            assert len(logged("jwks_loaded")) == 1


async def test_a_server_of_keys_that_misbehaves_is_asked_again(tmp_path: Path, issuer: Issuer):
    """Errors, redirects (which are not followed), what is too large and what is no JWKS; then its keys are used."""
    made = make_certificates(tmp_path / "made")
    log = tmp_path / "audit.log"
    bad = [
        web.Response(status=500),
        web.Response(status=302, headers={"Location": "/keys"}),
        web.Response(body=b" " * (2 << 20)),
        web.Response(body=gzip.compress(b" " * (50 << 20)), headers={"Content-Encoding": "gzip"}),
        web.Response(body=b"x", headers={"Content-Encoding": "deflate"}),
        web.Response(body=b"[" * 900_000),
        web.Response(body=b'{"keys": [7]}'),
    ]
    left = list(bad)
    async with provider(made, lambda: left.pop() if left else issuer.jwks()) as url:
        settings_ = settings(tmp_path) | {
            "sasl.oauthbearer.jwks.endpoint.url": url,
            "mk.oauth.jwks.truststore.location": str(made / "ca.pem"),
            "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "100",
            "mk.audit.path": str(log),
        }
        async with secured(tmp_path / "data", settings_):
            await eventually(lambda: log.exists() and "jwks_loaded" in log.read_text(encoding="utf-8"))
    events = [json.loads(each)["event"] for each in log.read_text(encoding="utf-8").splitlines()]
    assert [each for each in events if each.startswith("jwks")] == ["jwks_failed"] * len(bad) + ["jwks_loaded"]


async def test_hostile_test_16_over_sockets(tmp_path: Path, issuer: Issuer):
    """Tokens that must not log in, unknown keys, names that look like several, and another user later."""
    made, asked = make_certificates(tmp_path / "made"), 0

    def keys() -> str:
        nonlocal asked
        asked += 1
        return issuer.jwks()

    async def log_in(client: RawClient, token: str) -> int:
        assert (await client.call("SaslHandshake", 1, {"mechanism": "OAUTHBEARER"}))["error_code"] == 0
        data = b"n,,\x01auth=Bearer " + token.encode() + b"\x01\x01"
        found = await client.call("SaslAuthenticate", 2, {"auth_bytes": data})
        if found["auth_bytes"]:
            found = await client.call("SaslAuthenticate", 2, {"auth_bytes": b"\x01"})
        if found["error_code"]:
            assert await client.reader.read() == b""  # the connection is closed
        return int(found["error_code"])

    _, claims, signature = issuer.token(sub="robot").split(".")
    now = int(time.time())

    def changed(**header: str) -> str:
        return base64.urlsafe_b64encode(json.dumps(header).encode()).rstrip(b"=").decode() + f".{claims}.{signature}"

    wrong = [
        changed(alg="none", kid="ES256"),
        changed(alg="HS256", kid="RS256"),
        changed(alg="ES256", kid="RS256"),
        *(issuer.token(sub=name) for name in (["robot"], {"robot": 1}, 7, "robot\0", "ANONYMOUS", "*", "")),
        issuer.token(sub="robot", exp=now - 100, iat=now - 200),
        issuer.token(sub="robot", nbf=now + 100),
        issuer.token(sub="robot", aud=["spark"]),
        issuer.token(sub="robot", iss="https://evil.example"),
        issuer.token(sub="robot", extra="x" * 20_000),
        *(issuer.token(sub="robot", kid=f"unknown-{each}") for each in range(20)),
    ]
    async with provider(made, keys) as url:
        more = {
            "sasl.oauthbearer.jwks.endpoint.url": url,
            "mk.oauth.jwks.truststore.location": str(made / "ca.pem"),
            "super.users": "User:admin;User:robot;User:x;User:y",
            "mk.unauthenticated.connections.per.ip.max": "64",
        }
        async with secured(tmp_path / "data", settings(tmp_path) | more) as broker:
            host, _, port = broker.clients.partition(":")
            await eventually(lambda: asked > 0)
            renewed = await RawClient.at(host, int(port))
            assert await log_in(renewed, issuer.token(sub="robot")) == 0
            refused = [await RawClient.at(host, int(port)) for _ in wrong]
            codes = await asyncio.gather(*map(log_in, refused, wrong))
            assert set(codes) == {SaslAuthenticationFailed.code}
            assert asked == 1, "unknown keys make the broker ask no more than once a minute"
            several = [("Authorization", f"Bearer {issuer.token(sub='x,User:y')}")]
            answer = await asyncio.to_thread(request, broker.clients, "/v1/whoami", headers=several)
            assert (answer.document["principal"], answer.document["super_user"]) == ("User:x,User:y", False)
            assert await log_in(renewed, issuer.token(sub="x")) == SaslAuthenticationFailed.code
            for each in [renewed, *refused]:
                await each.close()


async def test_trusted_cas_that_cannot_be_read_are_refused_at_the_start(tmp_path: Path):
    """By the setting's name; a server that does not answer yet is no reason."""
    given = settings(tmp_path) | {
        "sasl.oauthbearer.jwks.endpoint.url": "https://localhost:1/keys",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "node.id": "1",
        "mk.oauth.jwks.truststore.location": str(tmp_path / "none.pem"),
    }
    _, reader = token_verifier(parse_broker(given).config, lambda *_, **__: None)
    with pytest.raises(InvalidConfig, match=r"^mk\.oauth\.jwks\.truststore\.location=.*none\.pem: cannot be read"):
        await reader.start()


async def test_commands_log_in_with_the_token_of_a_file(tmp_path: Path, issuer: Issuer):
    """--token-file, MINIKAFKA_TOKEN_FILE and MINIKAFKA_TOKEN; a wrong token and a missing file are errors of their own."""
    keys, file, wrong = tmp_path / "keys.json", tmp_path / "token", tmp_path / "wrong"
    keys.write_text(issuer.jwks(), encoding="ascii")
    file.write_text(issuer.token(sub="robot") + "\n", encoding="ascii")
    wrong.write_text(issuer.token(sub="robot", aud="spark"), encoding="ascii")
    async with secured(tmp_path / "data", settings(keys)) as broker:

        def minikafka(*words: str, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [sys.executable, "-m", "minikafka", *words, "-b", broker.clients],
                env={**os.environ, **environment},
                input=text,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )

        def commands() -> None:
            wrote = minikafka("produce", "orders", "--token-file", str(file), text="tea\n")
            assert wrote.returncode == 0, wrote.stderr
            by_variables = minikafka("topics", "list", "-o", "json", MINIKAFKA_TOKEN_FILE=str(file))
            assert json.loads(by_variables.stdout)["topics"][0]["topic"] == "orders"
            given = minikafka("topics", "list", "-o", "json", MINIKAFKA_TOKEN=file.read_text().strip())
            assert json.loads(given.stdout)["topics"][0]["topic"] == "orders"
            refused = minikafka("topics", "list", "--token-file", str(wrong))
            assert refused.returncode != 0
            assert "the token is wrong" in refused.stderr
            missing = minikafka("topics", "list", "--token-file", str(tmp_path / "none"))
            assert (missing.returncode, str(tmp_path / "none") in missing.stderr) == (2, True)

        await asyncio.to_thread(commands)
