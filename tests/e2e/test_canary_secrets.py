"""Hostile test 24: every secret of a cluster is a canary, which no output may have, plain or encoded."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import stat
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from minikafka import AdminClient, NewTopic
from minikafka.cli.root import root
from minikafka.config import parse_broker
from minikafka.config.security import STANDARD_AUTHORIZER
from minikafka.errors import ProtocolError
from minikafka.hosting.local_broker import LocalBroker
from tests.certificates import authority, signed
from tests.e2e.listeners import two_free_ports
from tests.e2e.secured import Answer, basic, request
from tests.e2e.test_sasl import stored_keys
from tests.tokens import AUDIENCE, ISSUER, Issuer

pytestmark = [pytest.mark.e2e, pytest.mark.openssl]

PLAIN, SCRAM, NEW, WRONG = "canary-plain-Zq7", "canary-scram-Xw5", "canary-new-Kp3", "canary-wrong-Vb9"
SHOWN = (
    "/metrics", "/v1/controller/log?max_records=500", "/v1/brokers/1/configs", "/v1/cluster/configs", "/v1/brokers/1",
    "/v1/cluster", "/v1/connections", "/v1/events", "/v1/events/journal", "/openapi.json", "/v1/whoami", "/v1/live",
)  # fmt: skip


def forms_of(secret: bytes) -> list[bytes]:
    """The secret as it could stand in an output: also inside of longer base64, whatever its place there."""
    inner = []
    for before in range(3):
        coded = base64.b64encode(bytes(before) + secret).rstrip(b"=")
        inner.append(coded[-(-before * 8 // 6) : -1] if before else coded[:-1])
    return [
        secret, secret.hex().encode(), repr(secret)[2:-1].encode(), quote(secret).encode(), *inner,
        *(each.replace(b"+", b"-").replace(b"/", b"_") for each in inner),
    ]  # fmt: skip


def found_in(outputs: dict[str, bytes], secrets: dict[str, bytes]) -> list[tuple[str, str]]:
    """Names of outputs, and of secrets in them."""
    return [
        (output, name)
        for name, secret in secrets.items()
        for output, text in outputs.items()
        if any(form in text for form in forms_of(secret))
    ]


def test_the_search_finds_each_form():
    """A test of this file's own eyes."""
    secret = b"canary-plain-Zq7"
    for before in range(4):
        coded = base64.b64encode(b"u" * before + b":" + secret + b":tail")
        assert found_in({"x": b"..." + coded}, {"s": secret}) == [("x", "s")]
    assert found_in({"x": secret.hex().encode(), "y": b"nothing"}, {"s": secret}) == [("x", "s")]


def produce(address: str, ca: str, mechanism: str, user: str, password: str) -> None:
    """Try to produce a record; whether it works does not matter here."""
    producer = Producer(
        {
            "bootstrap.servers": address, "security.protocol": "SASL_SSL", "ssl.ca.location": ca, "log_level": 0,
            "sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password, "message.timeout.ms": 3000,
        }
    )  # fmt: skip
    producer.produce("orders", b"v")
    producer.flush(10)


def attempts(own: str, tokens: list[str]) -> list[Answer]:
    """Right and wrong credentials over HTTP, in every place and form."""
    answers = []
    headers = [
        basic("ann", SCRAM), basic("ann", WRONG), basic("nobody", WRONG), ("Authorization", WRONG),
        ("Authorization", f"Basic {WRONG}"), ("Authorization", f"Digest {WRONG}"),
        *(("Authorization", f"Bearer {token}") for token in (*tokens, WRONG)),
    ]  # fmt: skip
    for header in headers:
        answers += [
            request(own, path, method=method, headers=[header], body=b"{}" if method == "POST" else None)
            for method, path in (("GET", "/v1/whoami"), ("POST", "/rpc/Metadata"), ("GET", "/no/such"), ("GET", "/"))
        ]
    for name in ("token", "access_token", "password"):
        answers.append(request(own, f"/v1/topics?{name}={WRONG}"))
    document = json.dumps({"password": WRONG, "sasl.jaas.config": f'x password="{WRONG}";'}).encode()
    answers.append(
        request(
            own, "/v1/cluster/configs", method="PATCH", headers=[("Content-Type", "application/json")], body=document
        )
    )
    return answers


async def test_hostile_test_24(tmp_path: Path, issuer: Issuer):
    """Journal, log, audit log, metrics, metadata log, replay page, configurations, connections and all answers."""
    authority(tmp_path, "ca")
    keystore, keys, data = signed(tmp_path, "broker", by="ca"), tmp_path / "keys.json", tmp_path / "data"
    keys.write_text(issuer.jwks(), encoding="ascii")
    journal, audit, log = tmp_path / "journal.jsonl", tmp_path / "audit.jsonl", io.StringIO()
    own, clients = two_free_ports()
    settings = {
        "listeners": f"BROKERS://127.0.0.1:{own},CLIENTS://127.0.0.1:{clients}",
        "advertised.listeners": f"CLIENTS://localhost:{clients}",
        "inter.broker.listener.name": "BROKERS",
        "listener.security.protocol.map": "BROKERS:PLAINTEXT,CLIENTS:SASL_SSL",
        "ssl.keystore.location": str(keystore),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.clients.plain.sasl.jaas.config": (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_bob="{PLAIN}";'
        ),
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin",
        "log.dirs": str(data),
        "mk.journal.path": str(journal),
        "mk.audit.path": str(audit),
        "mk.testing.endpoints.enable": "true",
    }
    tokens = [issuer.token(), issuer.token(iss="x"), issuer.token(kid="unknown")]
    node = LocalBroker(parse_broker(settings).config, log_stream=log, log_level=10)
    await node.start()
    outputs: dict[str, bytes] = {}
    try:
        await node.wait_ready(120)
        address = f"127.0.0.1:{own}"
        async with AdminClient(bootstrap_servers=address) as admin:
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                await admin.set_user_password("ann", SCRAM, mechanism, iterations=4096)
                await admin.set_user_password("eve", NEW, mechanism, iterations=4096)
            await admin.create_topics([NewTopic("orders", num_partitions=1, replication_factor=1)])
            for user, iterations in (("*", 4096), ("ann", 1)):
                with pytest.raises(ProtocolError) as caught:
                    await admin.set_user_password(user, WRONG, iterations=iterations)
                outputs[f"error {user}"] = repr(caught.value).encode() + str(caught.value).encode()
        for mechanism, user, password in (
            ("PLAIN", "bob", PLAIN), ("PLAIN", "bob", WRONG), ("SCRAM-SHA-512", "ann", SCRAM),
            ("SCRAM-SHA-256", "ann", WRONG), ("PLAIN", WRONG, WRONG[::-1]),
        ):  # fmt: skip
            if user != WRONG:  # a name is no secret
                await asyncio.to_thread(
                    produce, f"localhost:{clients}", str(tmp_path / "ca.pem"), mechanism, user, password
                )
        for number, answer in enumerate(await asyncio.to_thread(attempts, address, tokens)):
            outputs[f"answer {number}"] = answer.body + str(answer.headers).encode()
        for path in SHOWN:
            if path != "/v1/live":
                outputs[path] = (await asyncio.to_thread(request, address, path)).body
        outputs["settings"] = repr(parse_broker(settings).config).encode()
    finally:
        await node.stop()
    outputs |= {"log": log.getvalue().encode(), "journal": journal.read_bytes(), "audit": audit.read_bytes()}
    dumped = CliRunner().invoke(root, ["log", "dump", str(data / "__cluster_metadata-0"), "--records"])
    page = CliRunner().invoke(root, ["sim", "show", str(journal), "--html", str(tmp_path / "page.html")])
    assert (dumped.exit_code, page.exit_code) == (0, 0), (dumped.output, page.output)
    outputs |= {"log dump": dumped.stdout_bytes, "replay page": (tmp_path / "page.html").read_bytes()}
    key = b"".join(
        line for line in (tmp_path / "broker.key").read_bytes().splitlines() if not line.startswith(b"-----")
    )
    secrets: dict[str, bytes] = {
        **{each: each.encode() for each in (PLAIN, SCRAM, NEW, WRONG)},
        **{f"token {number}": token.encode() for number, token in enumerate(tokens)},
        **{f"signature {number}": token.rpartition(".")[2].encode() for number, token in enumerate(tokens)},
        **{f"stored key {number}": each for number, each in enumerate(stored_keys(data))},
        "private key": key[20:60],
    }
    assert len(secrets) > 12
    assert found_in(outputs, secrets) == []
    assert outputs["journal"].count(b"client_login_failed") > 0
    audited = [json.loads(line) for line in audit.read_bytes().splitlines()]
    assert {each["event"] for each in audited} >= {"client_login_failed"}
    assert stat.S_IMODE(audit.stat().st_mode) == 0o600
    assert b"UserScramCredential" in outputs["log dump"]


@pytest.fixture(scope="module")
def issuer() -> Any:
    return Issuer()
