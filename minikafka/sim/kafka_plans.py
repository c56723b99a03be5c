"""What a seed draws about clients of Kafka's protocol: producers, a reader, their records, and faults of their links.

Also the compacted topics that they write to: few keys, many writes, tombstones, and brokers that compact as soon as
they may.

Rules for this file: it draws from a stream of its own, as ``plan_features.py`` does; it adds records, clients and
faults on these clients' links, and changes nothing that was drawn before.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final

from minikafka.faults import CLIENT, LEADER
from minikafka.sim.message_faults import LATE, RESET
from minikafka.sim.plan import Fault, Operation, Plan, PlannedTopic, fault_at

TOMBSTONE: Final = "-"
"""A key that begins so is deleted by the record: it has no value."""


def drawn_settings(random: Random) -> dict[str, str]:
    """Of brokers: they look often; some have room for a handful of keys a round, tombstones of some go at once."""
    return {
        "log.cleaner.backoff.ms": random.choice(("100", "300", "1000")),
        "log.cleaner.min.cleanable.ratio": random.choice(("0.0", "0.2", "0.5")),
        "log.cleaner.dedupe.buffer.size": random.choice(("1024", "1024", "134217728")),
        "log.cleaner.delete.retention.ms": random.choice(("0", "1000", "86400000")),
    }


def compacted(configs: Mapping[str, str]) -> dict[str, str]:
    """A topic's settings with compaction beside what retention it has."""
    deletes = any(name.startswith("retention.") for name in configs)
    return {**configs, "cleanup.policy": "compact,delete" if deletes else "compact"}


def drawn_key(random: Random, keys: int) -> str:
    """One of ``keys``; now and then it is deleted."""
    key = f"k{random.randrange(keys)}"
    return TOMBSTONE + key if random.random() < 0.15 else key


PRODUCERS: Final = ("k1", "k2")
READER: Final = "kr1"
READS: Final = "reads"
"""The setting of a machine that reads and does not send."""

PRODUCE_VERSIONS: Final = (3, 7, 9, 12, 13, 13)
BY_ID: Final = 13
FETCH_VERSIONS: Final = (4, 7, 11, 12, 13, 17)


def kafka_clients(plan: Plan, random: Random) -> Plan:
    """Producers and a reader of Kafka's protocol, over torn, reset and half-open connections."""
    clients: dict[str, dict[str, int | str]] = {}
    # A stream each: what other features add to the plan moves one of them at most.
    of_faults, of_operations = Random(random.random()), Random(random.random())
    mortal = [fault.target for fault in plan.faults if fault.kind == "topic_lives"]
    for machine in PRODUCERS[: random.choice((1, 1, 2))]:
        acks = random.choice((-1, -1, -1, 0, 1))
        version = random.choice(PRODUCE_VERSIONS)
        in_flight = random.choice((2, 5, 5))
        clients[machine] = {"acks": acks, "in_flight": in_flight, "produce": BY_ID if mortal else version}
    operations = _operations(plan, of_operations, tuple(clients), mortal)
    faults = _faults(plan, of_faults, tuple(clients))
    if random.random() < 0.6:
        clients[READER] = {READS: 1, "fetch": random.choice(FETCH_VERSIONS)}
    every = sorted((*plan.operations, *operations), key=lambda each: each.at_s)
    return plan.with_(kafka={**plan.kafka, **clients}, operations=tuple(every)).with_faults(faults)


def _operations(plan: Plan, random: Random, machines: tuple[str, ...], mortal: list[str]) -> list[Operation]:
    """Bursts, so that several requests are in flight."""
    topics = [*plan.topics, *(PlannedTopic(name=name, partitions=1, replication_factor=3) for name in mortal)]
    operations: list[Operation] = []
    for _ in range(random.randint(5, 10)):
        at_s, machine = random.uniform(0.0, plan.duration_s), random.choice(machines)
        topic = random.choice(topics)
        partition = random.randrange(topic.partitions)
        for number in range(random.randint(2, 8)):
            key = ""
            if "compact" in topic.configs.get("cleanup.policy", ""):
                key = drawn_key(random, 5).removeprefix(TOMBSTONE)
            operations.append(
                Operation(
                    at_s=round(at_s + number * 0.002, 4),
                    client=machine,
                    topic=topic.name,
                    partition=partition,
                    key=key,
                )
            )
    return operations


def _faults(plan: Plan, random: Random, machines: tuple[str, ...]) -> list[Fault]:
    faults = []
    for _ in range(random.randint(1, 4)):
        machine = random.choice(machines)
        node = random.choice(
            (*(f"n{node}" for node in range(1, plan.brokers + 1)), f"{LEADER}:{plan.topics[0].name}-0")
        )
        one = f"{CLIENT}:{machine}"
        link = random.choice((f"{one}>{node}", f"{node}>{one}"))
        part = "request" if link.startswith(CLIENT) else "answer"
        kind, target, value, message = random.choice(
            (
                ("resetting_link", link, random.choice((0.1, 0.4)), ""),
                ("lossy_link", link, random.choice((0.2, 0.5)), ""),
                ("slow_link", link, 2000.0, ""),
                ("cut", link, 0.0, ""),
                ("cut_both", link, 0.0, ""),
                ("clog", link, 0.0, ""),
                (LATE, link, random.choice((0.05, 0.3)), f"Produce {part}"),
                (LATE, link, random.choice((0.05, 0.3)), f"Produce {part}"),
                (RESET, link, 0.3, f"Produce {part}"),
                ("kill_producer", machine, 0.0, ""),
            )
        )
        at_s, lasts_s = random.uniform(0.2, plan.duration_s), random.expovariate(0.8) + 0.1
        faults.append(fault_at(at_s, kind, target, lasts_s, value, message))
    return faults
