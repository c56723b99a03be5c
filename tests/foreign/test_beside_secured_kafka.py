"""As ``test_beside_kafka.py``, with users who log in and access control lists."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import pytest

from minikafka import LocalCluster
from minikafka.config.security import STANDARD_AUTHORIZER
from tests.foreign.kafka_brokers import kafka
from tests.foreign.permissions import ADMIN, ANN, BOB, permissions
from tests.foreign.test_beside_kafka import SEEDS, SETTINGS, check_alike

pytestmark = [pytest.mark.java, pytest.mark.e2e, pytest.mark.slow]

REQUESTS = 50
USERS = {ANN: "ann's secret", BOB: "bob's secret"}


class Secured(NamedTuple):
    """Addresses of both brokers, and the passwords of their users."""

    kafka: str
    ours: str
    passwords: Mapping[str, str]


def kafka_settings(passwords: Mapping[str, str]) -> dict[str, str]:
    """Every client of the listener logs in with PLAIN; the controller's listener is without a login."""
    users = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        **SETTINGS,
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": (
            f'{module} required username="{ADMIN}" password="{passwords[ADMIN]}" {users};'
        ),
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": f"User:{ADMIN};User:ANONYMOUS",
    }


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    with LocalCluster(brokers=1, config=SETTINGS, security_protocol="SASL_PLAINTEXT", users=USERS) as ours:
        login = ours.confluent_config(ADMIN, "PLAIN")
        passwords = {**USERS, ADMIN: str(login["sasl.password"])}
        with kafka(kafka_settings(passwords), login) as theirs:
            yield Secured(theirs.bootstrap, ours.bootstrap, passwords)


@pytest.mark.parametrize("seed", [*SEEDS, "fresh"])
def test_answers_to_users_are_alike(secured: Secured, seed: int | str):
    """Who may do what, and what the others are answered."""
    brokers = secured.kafka, secured.ours
    check_alike(brokers, lambda *drawn: itertools.islice(permissions(*drawn), REQUESTS), seed, secured.passwords)
