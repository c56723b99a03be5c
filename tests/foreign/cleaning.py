"""Topics that are compacted, or whose old records are deleted, by Kafka's broker and by ours; drawn from a seed.

A compacted topic is filled in rounds, and each round is compacted at one go. The times of a round's batches are close together, so that all of them stay in the active segment, which is not compacted.
The last batch is later than ``segment.ms`` allows: it begins the next segment. Times lie in the future, because a marker has
the broker's own time, which must not begin a segment.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import time
from collections.abc import Iterator
from random import Random
from typing import Any, Final, NamedTuple

from minikafka.wire.batch import CODEC_NAMES
from minikafka.wire.kafka.codec import Message
from minikafka.wire.records import BatchBuilder
from tests.foreign.beside_kafka import LARGEST, Ask, Own, batches
from tests.foreign.conversations import Batch, created, learn_producer, topic_id, version
from tests.kafka.client import RawClient

SEGMENT_MS: Final = 600_000
AGAIN: Final = b"again"
"""The key of the first and of the last record of each round: only one of them stays."""
KEYS: Final = (b"a", b"b", b"c", b"d", b"")
HOURS_MS: Final = 36_000_000
WITHIN_S, POLL_S = 15.0, 0.05

SETTINGS: Final = {
    "cleanup.policy": "compact",
    "segment.ms": str(SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.0",
    "message.timestamp.after.max.ms": str(2**62),
}

Row = tuple[bytes, bytes | None]


class Round(NamedTuple):
    """A part of a conversation, after which both brokers compact what was sent up to there."""

    asks: list[Ask]
    is_whole: bool
    """False: a transaction is open, so that nothing of this round can be compacted yet."""


def made(
    rows: list[Row], time_ms: int, codec: str, producer: tuple[int, int, int], *, is_transactional: bool = False
) -> bytes:
    """A batch of these keys and values; every other record has a header."""
    builder = BatchBuilder(
        compression=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=is_transactional,
    )
    for number, (key, value) in enumerate(rows):
        builder.append(time_ms + number, key, value, [("h", key)] if number % 2 else [])
    return bytes(builder.build())


def rounds(random: Random, name: str, count: int) -> Iterator[Round]:
    """Producers of every kind write a few keys again and again, and remove some; transactions end soon, or late."""
    ids = [f"x{name}", f"y{name}"]
    retention = random.choice(["0", "0", "1", str(HOURS_MS)])
    number, time_ms, place = 0, int(time.time() * 1000) + SEGMENT_MS, f"{name}-0"
    is_open: dict[str, bool] = {}

    def begin() -> Iterator[Ask]:
        yield created(random, (name, 1, SETTINGS | {"delete.retention.ms": retention}))
        yield Ask("FindCoordinator", 4, {"key_type": 1, "coordinator_keys": ids})
        for label in ("p", "q"):
            yield Ask("InitProducerId", 4, {"producer_id": -1, "producer_epoch": -1}, learn_producer(label))
        for label in ids:
            message = {"transactional_id": label, "transaction_timeout_ms": 600_000, "producer_id": -1}
            yield Ask("InitProducerId", 4, message | {"producer_epoch": -1}, learn_producer(label))

    def row() -> Row:
        nonlocal number
        number += 1
        return random.choice(KEYS), None if random.random() < 0.25 else b"%d" % number * random.choice([1, 1, 30])

    def produce(rows: list[Row], label: str = "") -> Ask:
        build = functools.partial(made, rows, time_ms, random.choice([*CODEC_NAMES, "none"]))
        records: Any = [build((-1, -1, -1))]
        learn = None
        if label:
            records = Batch(label, len(rows), build=build)
            records.place, records.is_transactional, learn = place, label in ids, records.learn
        data = [{"index": 0, "records": records}]
        message = {"transactional_id": label if label in ids else None, "acks": -1, "timeout_ms": 5000}
        message["topic_data"] = [{"name": name, "topic_id": topic_id(name), "partition_data": data}]
        # Older versions are refused with zstd, newer ones add the partition to the transaction.
        return Ask("Produce", random.choice([9, 11]), message, learn)

    def as_producer(label: str) -> Message:
        return {
            "transactional_id": label,
            "producer_id": Own("producer", label, -1),
            "producer_epoch": Own("epoch", label, -1),
        }

    def add(label: str) -> Ask:
        message = {f"v3_and_below_{key}": value for key, value in as_producer(label).items()}
        topics = [{"name": name, "partitions": [0]}]
        return Ask("AddPartitionsToTxn", 3, {**message, "v3_and_below_topics": topics})

    def end(label: str) -> Iterator[Ask]:
        message = {**as_producer(label), "committed": random.random() < 0.5}
        yield Ask("EndTxn", 3, message)
        yield Ask("DescribeTransactions", 0, {"transactional_ids": [label]}, until=has_ended)

    def ends() -> Iterator[Ask]:
        for label in ids:
            if is_open.get(label):
                yield from end(label)
                is_open[label] = False

    def sends() -> Iterator[Ask]:
        nonlocal time_ms
        yield produce([(AGAIN, b"first")], random.choice(["", "p"]))
        for _ in range(random.choice([2, 5, 9])):
            time_ms += 1000
            label = random.choice(["", "p", "q", *ids])
            if label in ids and not is_open.get(label):
                yield add(label)
                is_open[label] = True
            yield produce([row() for _ in range(random.choice([1, 1, 2, 4]))], label)
            if is_open.get(label) and random.random() < 0.4:
                yield from end(label)
                is_open[label] = False
        if random.random() < 0.8:
            yield from ends()
        yield produce([(AGAIN, b"last")], random.choice(["", "q"]))
        time_ms += 2 * SEGMENT_MS
        yield produce([row()])

    def looks() -> Iterator[Ask]:
        """What is looked up by time, once the round before this one was compacted."""
        for _ in range(3):
            time_of = random.choice([-1, -2, -3, time_ms - random.randrange(3 * SEGMENT_MS)])
            rows = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": time_of}]
            message = {"replica_id": -1, "isolation_level": random.choice([0, 1]), "timeout_ms": 3000}
            message["topics"] = [{"name": name, "partitions": rows}]
            yield Ask("ListOffsets", version(random, "ListOffsets", 7), message)
        yield Ask("DescribeProducers", 0, {"topics": [{"name": name, "partition_indexes": [0]}]})

    for number_of_round in range(count):
        asks = [*(looks() if number_of_round else begin()), *sends()]
        yield Round(asks, not any(is_open.values()))
        if any(is_open.values()):
            yield Round([*ends()], is_whole=True)
    yield Round([*looks()], is_whole=True)


def has_ended(answer: Message) -> bool:
    """Return True if the markers of the transaction are written."""
    return all(
        each["transaction_state"] not in {"PrepareCommit", "PrepareAbort"} for each in answer["transaction_states"]
    )


# ---- what is left of it ----------------------------------------------------------------------------------------------


async def stored(bootstrap: str, topic: str) -> list[tuple[Any, ...]]:
    """All batches of partition 0, without the producer's id."""
    host, _, port = bootstrap.partition(":")
    client = await RawClient.at(host, int(port))
    found: list[tuple[Any, ...]] = []
    try:
        while True:
            offset = found[-1][0] + found[-1][1] + 1 if found else 0
            row = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 2**20}
            message = {"replica_id": -1, "session_epoch": -1, "max_bytes": 2**20}
            message["topics"] = [{"topic": topic, "partitions": [row]}]
            answer = await client.call("Fetch", 11, message)
            [part] = answer["responses"][0]["partitions"]
            assert not part["error_code"], part
            more = list(batches(bytes(part["records"] or b"")))
            if not more:
                return found
            found += more
    finally:
        await client.close()


def times_of_again(found: list[tuple[Any, ...]]) -> int:
    """How many records have the key of which one is left when all was compacted."""
    return sum(record[2] == AGAIN for *_, records in found for record in records)


def as_kafka_leaves_it(ours: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Ours without what it keeps on purpose: the first batch of each leader epoch, be it without records."""
    pairs = itertools.pairwise([None, *ours])
    return [each for before, each in pairs if each[-1] or each in theirs or (before and before[2] == each[2])]


async def compacted(brokers: tuple[str, str], topic: str, *, is_whole: bool) -> tuple[list[Any], list[Any]]:
    """What both have when they have compacted all that they can, or when time is up."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        theirs, ours = [await stored(each, topic) for each in brokers]
        ours = as_kafka_leaves_it(ours, theirs)
        is_done = not is_whole or times_of_again(theirs) == times_of_again(ours) == 1
        if (is_done and theirs == ours) or time.monotonic() > deadline:
            return theirs, ours
        await asyncio.sleep(POLL_S)


# ---- retention -------------------------------------------------------------------------------------------------------

DAY_MS: Final = 86_400_000


def retained(random: Random, names: list[str]) -> Iterator[Ask]:
    """Topics with segments of several ages and sizes, of which retention takes some."""
    now_ms = int(time.time() * 1000)
    for name in names:
        settings = {
            "segment.ms": str(SEGMENT_MS),
            "retention.ms": random.choice(["-1", "-1", "1", str(DAY_MS // 24), str(DAY_MS), str(2 * DAY_MS)]),
            "retention.bytes": random.choice(["-1", "0", "100", "500", "1000", "2000"]),
            "message.timestamp.before.max.ms": str(2**62),
        }
        yield created(random, (name, 1, settings))
        time_ms = now_ms - random.choice([0, 1, 2, 40]) * DAY_MS
        for _ in range(random.choice([1, 3, 8, 15])):
            time_ms += random.choice([1000, 1000, SEGMENT_MS + 100_000, DAY_MS // 24, DAY_MS])
            time_ms = min(time_ms, now_ms + random.choice([0, 0, 1_000_000]))
            rows = [
                (random.choice(KEYS), b"x" * random.choice([10, 100, 400])) for _ in range(random.choice([1, 2, 4]))
            ]
            data = [{"index": 0, "records": [made(rows, time_ms, "none", (-1, -1, -1))]}]
            topics = [{"name": name, "partition_data": data}]
            yield Ask("Produce", 9, {"transactional_id": None, "acks": -1, "timeout_ms": 5000, "topic_data": topics})


async def bounds(bootstrap: str, names: list[str]) -> dict[str, list[int]]:
    """The first and the last offset of each topic's partition 0, and the offset of its largest timestamp."""
    host, _, port = bootstrap.partition(":")
    client = await RawClient.at(host, int(port))
    found: dict[str, list[int]] = {}
    try:
        for timestamp in (-2, -1, LARGEST):
            row = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
            message = {"replica_id": -1, "topics": [{"name": name, "partitions": [row]} for name in names]}
            for topic in (await client.call("ListOffsets", 7, message))["topics"]:
                found.setdefault(topic["name"], []).append(topic["partitions"][0]["offset"])
    finally:
        await client.close()
    return found
