"""Apache Kafka's broker and ours answer the same requests alike (see ``beside_kafka.py``).

Some conversations are the same in each run, some are new: a failure names the seed. ``MINIKAFKA_BESIDE_SEEDS`` names
others, ``MINIKAFKA_BESIDE_SEEDS=7,8 pytest tests/foreign/test_beside_kafka.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import pytest

from minikafka import LocalCluster
from tests.foreign import conversations, group_conversations
from tests.foreign.administration import ADMINISTRATION
from tests.foreign.batches import BATCHES
from tests.foreign.beside_kafka import Ask, Difference, Given, first_difference, purpose_of
from tests.foreign.cleaning import compacted, rounds
from tests.foreign.kafka_brokers import kafka
from tests.foreign.offsets import OFFSETS
from tests.foreign.waits import WAITS

pytestmark = [pytest.mark.java, pytest.mark.e2e, pytest.mark.slow]

SETTINGS = {"group.initial.rebalance.delay.ms": "0", "log.retention.ms": "-1", "group.min.session.timeout.ms": "100"}
"""Retention would delete the records, whose times are long past, at times of its own. Sessions are short to expire."""
CLEANS_OFTEN = {"log.cleaner.backoff.ms": "50"}
KAFKA_SETTINGS = {"group.consumer.assignment.interval.ms": "0"}
"""Ours assigns at each change; Kafka collects them for a second by default."""
CONVERSATIONS = (
    conversations.CONVERSATIONS | group_conversations.CONVERSATIONS | BATCHES | ADMINISTRATION | WAITS | OFFSETS
)
REQUESTS = dict.fromkeys(CONVERSATIONS, 40) | dict.fromkeys(group_conversations.CONVERSATIONS, 60)
ATTEMPTS, SLOWER = 3, 4
ROUNDS = 3
"""Of compaction."""
FRESH = random.SystemRandom().randrange(10**6, 10**9)
SEEDS = [int(each) for each in os.environ.get("MINIKAFKA_BESIDE_SEEDS", "1,2,3").split(",")]
PAUSES_S = {"EndTxn": 0.1, "InitProducerId": 0.1, "CreateTopics": 0.2, "DeleteTopics": 0.2}
PAUSES_S |= {"CreateAcls": 0.05, "DeleteAcls": 0.05}
PAUSES_S |= {"CreatePartitions": 0.1, "ElectLeaders": 0.1, "ListPartitionReassignments": 0.1}
"""Both brokers do the rest of these after their answer."""


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[str, str]]:
    """Addresses of Kafka's broker and of ours."""
    settings = SETTINGS | CLEANS_OFTEN
    with kafka(settings | KAFKA_SETTINGS) as theirs, LocalCluster(brokers=1, config=settings) as ours:
        yield theirs.bootstrap, ours.bootstrap


def check_alike(
    brokers: tuple[str, str],
    conversation: Callable[[random.Random, str], Iterator[Ask]],
    seed: int | str,
    passwords: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """A difference that time alone has made does not come again: a conversation that shows one is repeated, slower."""
    number = seed if isinstance(seed, int) else FRESH
    for attempt in range(ATTEMPTS):
        unique = f"{number}x{time.monotonic_ns()}"
        asked = conversation(random.Random(number), unique)
        pauses = {api: pause_s * SLOWER**attempt for api, pause_s in PAUSES_S.items()}
        found = asyncio.run(first_difference(*brokers, asked, pauses, passwords))
        if found is None:
            return
    difference, said = found
    history = "\n".join(f"{each.api} v{each.version} {each.message!r:.400}" for each in said)
    pytest.fail(f"seed {number}, {ATTEMPTS} times: {difference}\n\n{history}", pytrace=False)


def test_a_fetch_of_several_topics_is_not_excused_by_a_missing_leader():
    """A difference in a Fetch of several topics counts: what is excused where there is no leader names one partition."""
    topics = [{"name": name, "partitions": [{"partition": 0}]} for name in ("a", "b")]
    found = Difference(Ask("Fetch", 15, {"topics": topics}), ".topics[0].partitions[0].error_code", 0, 6, {}, Given())
    assert purpose_of(found) is None


@pytest.mark.parametrize("kind", CONVERSATIONS)
@pytest.mark.parametrize("seed", [*SEEDS, "fresh"])
def test_answers_are_alike(brokers: tuple[str, str], kind: str, seed: int | str):
    """Both say the same."""
    check_alike(brokers, lambda *drawn: itertools.islice(CONVERSATIONS[kind](*drawn), REQUESTS[kind]), seed)


@pytest.mark.parametrize("seed", [*SEEDS, "fresh"])
def test_cleaners_leave_the_same_batches(brokers: tuple[str, str], seed: int | str):
    """Offsets, records, tombstones and their delete horizon, markers, empty batches, and what is known of producers."""
    number = seed if isinstance(seed, int) else FRESH
    topic = f"c{number}x{time.monotonic_ns()}"
    given, history = (Given(), Given()), list[str]()
    for asks, is_whole in rounds(random.Random(number), topic, ROUNDS):
        found = asyncio.run(first_difference(*brokers, iter(asks), {}, given=given))
        history += [f"{each.api} v{each.version} {each.message!r:.300}" for each in asks]
        if found is not None:
            pytest.fail(f"seed {number}: {found[0]}\n\n" + "\n".join(history), pytrace=False)
        theirs, ours = asyncio.run(compacted(brokers, topic, is_whole=is_whole))
        if theirs != ours:
            different = [f"Kafka {each}" for each in theirs if each not in ours]
            different += [f"ours  {each}" for each in ours if each not in theirs]
            pytest.fail(f"seed {number}:\n" + "\n".join([*different[:9], "", *history]), pytrace=False)
