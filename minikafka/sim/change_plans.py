"""What an administrator changes while everything else goes on, drawn: replicas move, topics grow, settings change.

Targets say what is asked for: ``orders-0=4,2,3`` moves a partition to these brokers, ``orders-0=`` takes a move back;
``orders=5`` gives a topic that many partitions; ``orders:segment.bytes=300`` sets, with nothing behind the equals sign
it takes back; ``2:log.segment.bytes=600`` sets it of broker 2, and with nothing before the colon of all brokers;
several settings are separated by semicolons.

Rules for this file: it draws, nothing here runs. Settings that hold or give up a promise of durability are left alone:
the plan's policy is what the run is judged by.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

REASSIGN, ADD_PARTITIONS, ALTER_TOPIC, ALTER_BROKER = "reassign", "add_partitions", "alter_topic", "alter_broker"

CHANGE_FAULTS: Final = (REASSIGN, ADD_PARTITIONS, ALTER_TOPIC, ALTER_BROKER)
"""Kinds of what an administrator does."""

SETTINGS: Final = (
    ("segment.bytes", ("300", "1500", "")),
    ("min.insync.replicas", ("1", "2", "")),
    ("index.interval.bytes", ("0", "200", "")),
    ("retention.bytes", ("900", "")),
    ("max.message.bytes", ("2000", "")),
)
"""Settings of topics and what they are set to; the empty text takes them back."""


class Change(NamedTuple):
    """A fault's members (``plan.py``)."""

    at_s: float
    kind: str
    target: str


def drawn_changes(
    random: Random, *, topic: str, partitions: int, brokers: int, duration_s: float, may_move: bool
) -> list[Change]:
    """A few changes of one topic. ``may_move``: its replicas may leave brokers."""
    changes: list[Change] = []
    for _ in range(random.randint(1, 3) if may_move else 0):
        at_s, partition = _moment(random, duration_s), random.randrange(partitions)
        nodes = random.sample(range(1, brokers + 1), random.choice((2, 3, 3)))
        changes.append(Change(at_s, REASSIGN, f"{topic}-{partition}={','.join(map(str, nodes))}"))
        if random.random() < 0.3:
            after_s = random.choice((0.01, 0.1, 0.5))
            changes.append(Change(round(at_s + after_s, 3), REASSIGN, f"{topic}-{partition}="))
    for _ in range(random.choice((0, 1, 1))):
        count = partitions + random.choice((1, 2))
        changes.append(Change(_moment(random, duration_s), ADD_PARTITIONS, f"{topic}={count}"))
    for _ in range(random.choice((0, 1, 2)) if changes else 2):
        name, values = random.choice(SETTINGS)
        changes.append(Change(_moment(random, duration_s), ALTER_TOPIC, f"{topic}:{name}={random.choice(values)}"))
    return changes


def _moment(random: Random, duration_s: float) -> float:
    return round(random.uniform(0.2, duration_s), 3)
