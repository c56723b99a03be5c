"""As ``test_beside_kafka.py``, with three brokers on each side."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from minikafka import LocalCluster
from tests.foreign.kafka_brokers import kafka
from tests.foreign.replicas import replicas
from tests.foreign.test_beside_kafka import SEEDS, SETTINGS, check_alike

pytestmark = [pytest.mark.java, pytest.mark.e2e, pytest.mark.slow]

REQUESTS = 60


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[str, str]]:
    """Addresses of Kafka's brokers and of ours."""
    with kafka(SETTINGS, brokers=3) as theirs, LocalCluster(brokers=3, config=SETTINGS) as ours:
        yield theirs.bootstrap, ours.bootstrap


@pytest.mark.parametrize("seed", [*SEEDS, "fresh"])
def test_answers_about_replicas_are_alike(clusters: tuple[str, str], seed: int | str):
    """Who leads in which epoch, what a broker that does not lead answers, and what a reassignment leaves."""
    check_alike(clusters, lambda *drawn: itertools.islice(replicas(*drawn), REQUESTS), seed)
