"""As ``test_beside_kafka.py``, with brokers at which sessions of the consumer protocol are short, or records are deleted."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator

import pytest

from minikafka import LocalCluster
from tests.foreign.beside_kafka import first_difference
from tests.foreign.cleaning import bounds, retained
from tests.foreign.group_conversations import slow_consumers
from tests.foreign.kafka_brokers import kafka
from tests.foreign.test_beside_kafka import FRESH, KAFKA_SETTINGS, PAUSES_S, SEEDS, SETTINGS, check_alike

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


RETAINS_OFTEN = {"log.retention.check.interval.ms": "2000"}
AT_ONCE = {"log.initial.task.delay.ms": "1000"}
"""Kafka's; ours looks after 30 seconds first."""
LOOKED_AFTER_S = 36.0
TOPICS = 60


@pytest.mark.every_tool
@pytest.mark.parametrize("seed", [SEEDS[0], "fresh"])
def test_retention_deletes_the_same_segments(seed: int | str):
    """By age and by size."""
    number, settings = seed if isinstance(seed, int) else FRESH, SETTINGS | RETAINS_OFTEN
    names = [f"r{each}x{number}" for each in range(TOPICS)]
    with kafka(settings | AT_ONCE) as theirs, LocalCluster(brokers=1, config=settings) as ours:
        began, both = time.monotonic(), (theirs.bootstrap, ours.bootstrap)
        found = asyncio.run(first_difference(*both, retained(random.Random(number), names), PAUSES_S))
        assert found is None, f"seed {number}: {found[0]}"
        time.sleep(max(0.0, began + LOOKED_AFTER_S - time.monotonic()))
        kept = [asyncio.run(bounds(each, names)) for each in both]
    assert any(start for start, *_ in kept[1].values())
    different = [
        f"{name}: Kafka {kept[0][name]}, ours {kept[1][name]}" for name in names if kept[0][name] != kept[1][name]
    ]
    assert not different, f"seed {number}"
