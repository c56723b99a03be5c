"""As ``test_beside_kafka.py``, with brokers at which sessions of the consumer protocol are short: they choose it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from minikafka import LocalCluster
from tests.foreign.group_conversations import slow_consumers
from tests.foreign.kafka_brokers import kafka
from tests.foreign.test_beside_kafka import KAFKA_SETTINGS, SEEDS, SETTINGS, check_alike

pytestmark = [pytest.mark.java, pytest.mark.e2e, pytest.mark.slow]

REQUESTS = 60
SHORT_SESSIONS = {"group.consumer.session.timeout.ms": "1200", "group.consumer.heartbeat.interval.ms": "500"}
LIMITS = {"group.consumer.min.session.timeout.ms": "1000", "group.consumer.min.heartbeat.interval.ms": "100"}
"""Kafka's; ours has none."""


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[str, str]]:
    """Addresses of Kafka's broker and of ours."""
    settings = SETTINGS | SHORT_SESSIONS
    with kafka(settings | LIMITS | KAFKA_SETTINGS) as theirs, LocalCluster(brokers=1, config=settings) as ours:
        yield theirs.bootstrap, ours.bootstrap


@pytest.mark.parametrize("seed", [*SEEDS, "fresh"])
def test_members_whose_sessions_end_are_removed_alike(brokers: tuple[str, str], seed: int | str):
    """A member that is not heard for a second is removed, and the others share its partitions."""
    check_alike(brokers, lambda *drawn: itertools.islice(slow_consumers(*drawn), REQUESTS), seed)
