"""As ``test_beside_kafka.py``, with three brokers on each side; in ``make foreign`` brokers also end and come back."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from minikafka import LocalCluster
from minikafka.types import NO_NODE, NodeId
from tests.foreign.beside_kafka import Ask, Given, first_difference
from tests.foreign.failovers import COORDINATOR, DOWN, Coordinated
from tests.foreign.kafka_brokers import Kafka, kafka
from tests.foreign.replicas import NODES, replicas, turns
from tests.foreign.test_beside_kafka import (
    CONVERSATIONS,
    FRESH,
    KAFKA_SETTINGS,
    PAUSES_S,
    SEEDS,
    SETTINGS,
    SLOWER,
    check_alike,
)

pytestmark = [pytest.mark.java, pytest.mark.e2e, pytest.mark.slow]

REQUESTS = 60
TURNS, LIVES = 12, 2
"""Turns while all brokers run, and while one does not; how often one ends."""
FOLLOWERS_KNOW_S = 0.8
"""Every follower has fetched, and so has the leader's high watermark, when a broker ends."""
MEMBERS_EXPIRE_S = 2.0
"""The joins and the syncs under way have expired, one after the other (0.5 s each): the sides end them at other times."""


class Clusters(NamedTuple):
    """Three brokers each."""

    kafka: Kafka
    ours: LocalCluster

    @property
    def bootstraps(self) -> tuple[str, str]:
        return self.kafka.bootstrap, self.ours.bootstrap

    def end(self, nodes: tuple[NodeId, NodeId], how: signal.Signals) -> None:
        """End one broker of each: Kafka's, ours."""
        self.kafka.end(nodes[0], how)
        (self.ours.terminate if how is signal.SIGTERM else self.ours.kill)(nodes[1])

    def restart(self, nodes: tuple[NodeId, NodeId]) -> None:
        """Start them again."""
        self.kafka.restart(nodes[0])
        self.ours.restart(nodes[1])

    def ports(self, nodes: tuple[NodeId, NodeId]) -> list[int]:
        """Where they listen."""
        each = zip(self.bootstraps, nodes, strict=True)
        return [int(servers.split(",")[node - 1].rpartition(":")[2]) for servers, node in each]


@contextmanager
def clusters_of(**more: str) -> Iterator[Clusters]:
    settings = {**SETTINGS, "min.insync.replicas": "2"} | {name.replace("_", "."): text for name, text in more.items()}
    with kafka(settings | KAFKA_SETTINGS, brokers=3) as theirs, LocalCluster(brokers=3, config=settings) as ours:
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


def check_alike_so_far(
    clusters: Clusters, asked: Iterable[Ask], given: tuple[Given, Given], number: int, history: list[str]
) -> None:
    """``history`` receives what was asked."""
    pauses = {api: pause_s * SLOWER for api, pause_s in PAUSES_S.items()}
    found = asyncio.run(first_difference(*clusters.bootstraps, iter(asked), pauses, given=given))
    if found is not None:
        history.extend(f"{each.api} v{each.version} {each.message!r:.400}" for each in found[1])
        pytest.fail(f"seed {number}: {found[0]}\n\n" + "\n".join(history), pytrace=False)


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
        check_alike_so_far(mortals, asked, given, number, history)

    talk()
    for _ in range(LIVES):
        node, how = drawn.choice(NODES), drawn.choice([signal.SIGTERM, signal.SIGKILL])
        history.append(f"{how.name} to broker {node}")
        time.sleep(FOLLOWERS_KNOW_S)
        mortals.end((node, node), how)
        down.add(node)
        try:
            talk()
        finally:
            mortals.restart((node, node))
        down.clear()
        talk()


@pytest.mark.every_tool
@pytest.mark.parametrize("kind", ["groups", "members", "consumers", "transactions"])
@pytest.mark.parametrize("seed", [*SEEDS, "fresh"])
def test_answers_are_alike_after_the_coordinator_has_ended(mortals: Clusters, kind: str, seed: int | str):
    """Another broker coordinates what was committed: members, generations, offsets, producers' epochs."""
    number = seed if isinstance(seed, int) else FRESH
    drawn, down, given = random.Random(number), set[int](), (Given(), Given())
    conversation = Coordinated(CONVERSATIONS[kind](drawn, f"{number}x{time.monotonic_ns()}"), down)
    asks, history = iter(conversation), list[str]()
    check_alike_so_far(mortals, itertools.islice(asks, 2 * TURNS), given, number, history)
    for _ in range(LIVES):
        how = drawn.choice([signal.SIGTERM, signal.SIGKILL])
        kafkas, ours = (each.values[COORDINATOR, conversation.first_key] for each in given)
        history.append(f"{how.name} to the coordinator")
        time.sleep(MEMBERS_EXPIRE_S)
        mortals.end((kafkas, ours), how)
        down.update(mortals.ports((kafkas, ours)))
        for side, node in zip(given, (kafkas, ours), strict=True):
            side.learn(DOWN, "", node)
        try:
            asked = itertools.chain(conversation.found(), itertools.islice(asks, TURNS))
            check_alike_so_far(mortals, asked, given, number, history)
        finally:
            mortals.restart((kafkas, ours))
        down.clear()
        for side in given:
            side.learn(DOWN, "", NO_NODE)
