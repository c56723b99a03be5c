"""OAUTHBEARER with real clients: librdkafka, aiokafka and HTTP; right, wrong and ending tokens; keys that change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import KafkaError, Producer

from minikafka import Producer as MinikafkaProducer
from minikafka.errors import SaslAuthenticationFailed
from tests.e2e.secured import eventually, request, secured
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
