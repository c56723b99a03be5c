"""As ``test_beside_kafka.py``, with three brokers on each side; in ``make foreign`` brokers also end and come back."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from minikafka import LocalCluster
from minikafka.types import NodeId
from tests.foreign.beside_kafka import Given, first_difference
from tests.foreign.kafka_brokers import Kafka, kafka
from tests.foreign.replicas import NODES, replicas, turns
from tests.foreign.test_beside_kafka import FRESH, PAUSES_S, SEEDS, SETTINGS, check_alike

pytestmark = [pytest.mark.java, pytest.mark.e2e, pytest.mark.slow]

REQUESTS = 60
TURNS, LIVES = 12, 2
"""Turns while all brokers run, and while one does not; how often one ends."""
FOLLOWERS_KNOW_S = 0.8
"""Every follower has fetched, and so has the leader's high watermark, when a broker ends."""


class Clusters(NamedTuple):
    """Three brokers each."""

    kafka: Kafka
    ours: LocalCluster

    @property
    def bootstraps(self) -> tuple[str, str]:
        return self.kafka.bootstrap, self.ours.bootstrap

    def end(self, node: NodeId, how: signal.Signals) -> None:
        """End one broker of each."""
        self.kafka.end(node, how)
        (self.ours.terminate if how is signal.SIGTERM else self.ours.kill)(node)

    def restart(self, node: NodeId) -> None:
        """Start them again."""
        self.kafka.restart(node)
        self.ours.restart(node)


@contextmanager
def clusters_of(**more: str) -> Iterator[Clusters]:
    settings = {**SETTINGS, "min.insync.replicas": "2"} | {name.replace("_", "."): text for name, text in more.items()}
    with kafka(settings, brokers=3) as theirs, LocalCluster(brokers=3, config=settings) as ours:
        yield Clusters(theirs, ours)


@pytest.fixture(scope="module")
def clusters() -> Iterator[Clusters]:
    with clusters_of() as made:
        yield made


@pytest.fixture(scope="module")
def mortals() -> Iterator[Clusters]:
    """Clusters that notice soon when a broker has ended."""
    with clusters_of(broker_session_timeout_ms="2000", broker_heartbeat_interval_ms="300") as made:
        yield made


@pytest.mark.parametrize("seed", [*SEEDS, "fresh"])
def test_answers_about_replicas_are_alike(clusters: Clusters, seed: int | str):
    """Who leads in which epoch, what a broker that does not lead answers, and what a reassignment leaves."""
    check_alike(clusters.bootstraps, lambda *drawn: itertools.islice(replicas(*drawn), REQUESTS), seed)


@pytest.mark.every_tool
@pytest.mark.parametrize("seed", [*SEEDS, "fresh"])
def test_answers_are_alike_while_a_broker_is_away(mortals: Clusters, seed: int | str):
    """It stops, or is killed: who leads then, who is in sync or may lead (KIP-966), and what can still be done."""
    number = seed if isinstance(seed, int) else FRESH
    drawn, down, given = random.Random(number), set[NodeId](), (Given(), Given())
    conversation = turns(drawn, f"{number}x{time.monotonic_ns()}", down)
    history: list[str] = []

    def talk() -> None:
        asked = itertools.chain.from_iterable(itertools.islice(conversation, TURNS))
        found = asyncio.run(first_difference(*mortals.bootstraps, asked, PAUSES_S, given=given))
        if found is not None:
            history.extend(f"{each.api} v{each.version} {each.message!r:.400}" for each in found[1])
            pytest.fail(f"seed {number}: {found[0]}\n\n" + "\n".join(history), pytrace=False)

    talk()
    for _ in range(LIVES):
        node, how = drawn.choice(NODES), drawn.choice([signal.SIGTERM, signal.SIGKILL])
        history.append(f"{how.name} to broker {node}")
        time.sleep(FOLLOWERS_KNOW_S)
        mortals.end(node, how)
        down.add(node)
        try:
            talk()
        finally:
            mortals.restart(node)
        down.clear()
        talk()
