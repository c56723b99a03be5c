"""Conversations about batches of all sorts, and about fetch sessions: drawn from a seed as in ``conversations.py``."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from crc32c import crc32c

from minikafka.wire.batch import CODEC_NAMES
from minikafka.wire.kafka.codec import Message
from minikafka.wire.records import BatchBuilder
from tests.foreign.beside_kafka import Ask, Given, Own
from tests.foreign.conversations import TIME_MS, Batch, Draw, batch, created, learn_producer, some, topic_id, version

CRC_AT, CHECKED_FROM = 17, 21

FAULTS = (
    *((">q", 0, 77), (">i", 8, 10), (">i", 8, -1), (">i", 8, 5000), (">i", 12, 5), (">I", CRC_AT, 1)),
    *((">b", 16, 0), (">b", 16, 1), (">b", 16, 9)),
    *((">h", 21, 32), (">h", 21, 16), (">h", 21, 1), (">h", 21, 4)),
    *((">i", 23, 5), (">i", 23, -1), (">i", 23, 0)),
    *((">q", 43, 5), (">h", 51, 0), (">i", 53, 0)),
    *((">i", 57, 9), (">i", 57, 0), (">i", 57, -1), (">i", 57, 1)),
    *((">b", 61, 3), (">b", 61, 127), (">b", 61, -1), (">b", 65, 9)),
)
"""Format, place and value of what is written over a batch of two records; the checksum is right unless it is one of them."""

TOPICS = (
    *({"compression.type": name} for name in ("gzip", "snappy", "lz4", "zstd", "uncompressed")),
    *({}, {}, {}),
    *({"message.timestamp.type": "LogAppendTime"}, {"message.timestamp.before.max.ms": "1000"}),
    *({"message.timestamp.after.max.ms": "1000"}, {"max.message.bytes": "150"}, {"segment.bytes": "1048576"}),
    {"compression.type": "zstd", "message.timestamp.type": "LogAppendTime"},
    {"cleanup.policy": "compact", "compression.type": "lz4"},
)
HOUR_MS = 3_600_000
BY_ID_FROM = 13


def compressed(codec: str, count: int, time_ms: int = TIME_MS, value: bytes = b"value") -> bytes:
    """Records of one time."""
    builder = BatchBuilder(compression=codec)
    for number in range(count):
        builder.append(time_ms, b"k%d" % number, value)
    return bytes(builder.build())


def damaged(format: str, at: int, value: int) -> bytes:  # noqa: A002 - as struct has it
    """Two records with one of :data:`FAULTS`."""
    made = bytearray(batch(2))
    struct.pack_into(format, made, at, value)
    if at != CRC_AT:
        struct.pack_into(">I", made, CRC_AT, crc32c(bytes(made[CHECKED_FROM:])))
    return bytes(made)


def batches(random: Random, unique: str) -> Iterator[Ask]:
    """Compressed, damaged, late, large and repeated batches are appended and read."""
    names = [f"{letter}{unique}" for letter in "hij"]
    settings = some(random, list(TOPICS), (3,))
    is_compressed = any("compression.type" in each for each in settings)
    yield created(random, *((name, 1, each) for name, each in zip(names, settings, strict=True)))
    for label in ("p", "q"):
        yield Ask("InitProducerId", 4, {"producer_id": -1, "producer_epoch": -1}, learn_producer(label))

    def where(name: str) -> Message:
        return {"name": name, "topic": name, "topic_id": topic_id(name)}

    def plain() -> list[bytes]:
        now = int(time.time() * 1000)
        # Compressed to what fits in none, one and all of the topics' largest batches.
        value = b"v" * random.choice([5, 5, 5, 100, 2000])
        at = random.choice([TIME_MS, TIME_MS, now, now - HOUR_MS, now + HOUR_MS // 2, now + 2 * HOUR_MS])
        return [compressed(random.choice(CODEC_NAMES), random.choice([1, 2, 5]), at, value)]

    def odd() -> Any:
        whole = batch(1)
        return random.choice([[whole + whole], [whole[:-3]], [whole[:30]], [bytes(61)], [b""]])

    def faulty() -> list[bytes]:
        return [damaged(*random.choice(FAULTS))]

    def produce(records: Any, learn: Callable[[Given, Message], None] | None = None, name: str | None = None) -> Ask:
        topic = {**where(name or random.choice(names)), "partition_data": [{"index": 0, "records": records}]}
        message = {"acks": random.choice([-1] * 8 + [1, 1, 2]), "timeout_ms": 5000, "topic_data": [topic]}
        return Ask("Produce", version(random, "Produce", 3), message, learn)

    def sequence() -> Ask:
        """The next batch of a producer, or one of those before it again, or a gap."""
        name, behind = random.choice(names), random.choice([0, 0, 0, 0, 0, 1, 2, 3, 5, 6, 7, -1])
        sent = Batch(random.choice("pq"), 1, plus_epoch=random.choice([0] * 10 + [1, -1]), behind=behind)
        sent.place = name
        return produce(sent, None if behind else sent.learn, name)

    def bump() -> Ask:
        label = random.choice("pq")
        known = {"producer_id": Own("producer", label, -1), "producer_epoch": Own("epoch", label, -1)}
        return Ask("InitProducerId", version(random, "InitProducerId", 3), known, learn_producer(label))

    def fetch() -> Ask:
        def topic(name: str) -> Message:
            row = {"partition": 0, "fetch_offset": random.choice([0, 0, 1, 3, 8]), "partition_max_bytes": size()}
            return {**where(name), "partitions": [row]}

        def size() -> int:
            # Batches that a broker compresses are not equally long at both.
            return random.choice([100_000] if is_compressed else [100_000, 100_000, 100, 200, 0])

        topics = list(map(topic, some(random, names, (1, 2, 3))))
        message = {"replica_id": -1, "session_epoch": -1, "max_bytes": size(), "topics": topics}
        return Ask("Fetch", version(random, "Fetch"), message)

    def list_offsets() -> Ask:
        def row() -> Message:
            times = [-1, -2, -3, -4, -5, -6, -7, 0, TIME_MS, TIME_MS + 1, 10**13]
            epoch = random.choice([-1, -1, -1, 0, 1])
            return {"partition_index": 0, "current_leader_epoch": epoch, "timestamp": random.choice(times)}

        topics = [{"name": name, "partitions": [row()]} for name in some(random, names)]
        message = {"replica_id": -1, "isolation_level": random.choice([0, 1]), "topics": topics, "timeout_ms": 3000}
        return Ask("ListOffsets", version(random, "ListOffsets"), message)

    while True:
        kinds = (
            *(lambda: produce(plain()), lambda: produce(plain()), lambda: produce(faulty()), lambda: produce(odd())),
            *(sequence, sequence, sequence, fetch, fetch, list_offsets, bump if random.random() < 0.2 else fetch),
        )
        yield random.choice(kinds)()


def sessions(random: Random, unique: str) -> Iterator[Ask]:
    """Fetch sessions over topics that grow, lose records, and, if they are named, are deleted and created again."""
    names = [f"{letter}{unique}" for letter in "klm"]
    by_id = random.random() < 0.5
    yield created(random, *((name, 2, {}) for name in names[:2]))
    epoch = 0

    def learn(given: Given, answer: Message) -> None:
        given.learn("session", "s", answer["session_id"])

    def topic(name: str) -> Message:
        def row(number: int) -> Message:
            return {
                "partition": number,
                "current_leader_epoch": random.choice([-1, -1, -1, 0, 2]),
                "fetch_offset": random.choice([0, 0, 1, 2, 3, 50]),
                "partition_max_bytes": 10_000,
            }

        return {"topic": name, "topic_id": topic_id(name), "partitions": list(map(row, some(random, [0, 1])))}

    def fetch() -> Ask:
        nonlocal epoch
        at = random.choice([epoch] * 14 + [epoch + 1, 0, -1, 1])
        if not at:
            asked, forgotten, session = some(random, names[:2], (1, 2)), [], random.choice([0, 0, 0, 77])
        else:
            asked = some(random, names[:2] if by_id else names, (0, 0, 1, 1, 2))
            forgotten = some(random, [name for name in names[:2] if name not in asked], (0, 0, 0, 1))
            session = random.choice([Own("session", "s", 0)] * 14 + [77])
        epoch = 1 if not at else epoch + 1
        message = {
            "replica_id": -1,
            "session_id": session,
            "session_epoch": at,
            "max_bytes": 2**20,
            "isolation_level": random.choice([0, 0, 1]),
            "topics": list(map(topic, asked)),
            "forgotten_topics_data": [
                {"topic": name, "topic_id": topic_id(name), "partitions": some(random, [0, 1])} for name in forgotten
            ],
        }
        versions = [each for each in range(7, 19) if (each >= BY_ID_FROM) == by_id]
        return Ask("Fetch", random.choice(versions), message, learn if not at else None)

    def produce() -> Ask:
        name = random.choice(names[:2])
        rows = [{"index": random.choice([0, 1]), "records": [batch(random.choice([1, 2]))]}]
        topics = [{"name": name, "topic_id": topic_id(name), "partition_data": rows}]
        return Ask("Produce", version(random, "Produce", 3), {"acks": -1, "timeout_ms": 5000, "topic_data": topics})

    def delete_records() -> Ask:
        rows = [{"partition_index": random.choice([0, 1]), "offset": random.choice([-1, 1, 2])}]
        message = {"topics": [{"name": random.choice(names[:2]), "partitions": rows}], "timeout_ms": 3000}
        return Ask("DeleteRecords", 2, message)

    def delete_topic() -> Ask:
        return Ask("DeleteTopics", 5, {"topic_names": [names[1]], "timeout_ms": 9000})

    def create_topic() -> Ask:
        return created(random, (names[1], 2, {}))

    kinds = [fetch, fetch, fetch, fetch, produce, produce, delete_records]
    while True:
        yield random.choice(kinds if by_id or random.random() < 0.7 else [*kinds, delete_topic, create_topic])()


BATCHES: dict[str, Draw] = {"batches": batches, "sessions": sessions}
