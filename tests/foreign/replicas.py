"""Conversations with three brokers about replicas and leaders: drawn from a seed as in ``conversations.py``.

Replicas are assigned by hand, so that both sides have the same leaders; each request goes to the leader or to another
broker. After each change of replicas or leaders the conversation waits until all replicas are in sync.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from minikafka.wire.kafka.codec import Message
from tests.foreign.beside_kafka import Ask, Given, Own
from tests.foreign.conversations import TIME_MS, batch, some, topic_id, version
from tests.kafka.samples import EMPTY_ID

NODES = (1, 2, 3)
EVERY_FOLLOWER_SINCE = 11
"""Version of Fetch from which Kafka's followers serve consumers (KIP-392); ours never do."""

ANY_BROKER = frozenset({"controller_id"})
"""Kafka names some broker: requests to the controller may be sent to each."""


def _is_whole(answer: Message) -> bool:
    """Return True if each partition of each topic has a leader, and all its replicas in sync."""
    return all(
        not each["error_code"] and each["leader_id"] >= 0 and len(each["isr_nodes"]) == len(each["replica_nodes"])
        for topic in answer["topics"]
        for each in topic["partitions"]
    )


def _learn(given: Given, answer: Message) -> None:
    for topic in answer["topics"]:
        given.learn("topic", topic["name"], topic.get("topic_id", EMPTY_ID))
        for each in topic["partitions"]:
            place = f"{topic['name']}-{each['partition_index']}"
            given.learn("leader", place, each["leader_id"])
            given.learn("epoch", place, each.get("leader_epoch", 0))


def _any(_answer: Message) -> bool:
    """Nothing is repeated: a broker that does not lead says so."""
    return True


def replicas(random: Random, unique: str) -> Iterator[Ask]:
    """Topics with one to three replicas are written, read, moved to other brokers and led by others."""
    names = [f"{letter}{unique}" for letter in "rst"]
    settings: list[dict[str, str]] = [
        {"min.insync.replicas": random.choice(["1", "2", "3"])},
        {"min.insync.replicas": "2", "unclean.leader.election.enable": random.choice(["true", "false"])},
        {},
    ]

    replicas_of: dict[tuple[str, int], list[int]] = {}
    """As a reassignment has left them."""

    def drawn(name: str, index: int) -> list[int]:
        """Other replicas. None are only added: when such a reassignment ends, our leader begins a new epoch."""
        before = replicas_of.get((name, index), [])
        while True:
            found = random.sample(NODES, random.choice([1, 2, 2, 3, 3]))
            if not set(before) < set(found) or not before:
                return found

    def assignments(count: int) -> list[Message]:
        replica_count = random.choice([1, 2, 3])
        rows = [random.sample(NODES, replica_count) for _ in range(count)]
        return [{"partition_index": index, "broker_ids": row} for index, row in enumerate(rows)]

    rows = [
        {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": assignments(2),
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        for name, configs in zip(names, settings, strict=True)
    ]
    yield Ask("CreateTopics", 6, {"topics": rows, "timeout_ms": 9000})
    for row in rows:
        for each in row["assignments"]:
            replicas_of[row["name"], each["partition_index"]] = each["broker_ids"]

    def metadata(node: int) -> Ask:
        topics = [{"name": name, "topic_id": EMPTY_ID} for name in names]
        message = {"topics": topics, "allow_auto_topic_creation": False}
        at = random.randint(10, 13)
        return Ask("Metadata", at, message, _learn, broker=node, until=_is_whole, blurred=ANY_BROKER)

    def settled() -> Iterator[Ask]:
        # Each broker has it from the controller by itself.
        yield from map(metadata, NODES)

    yield from settled()

    def place() -> tuple[str, int]:
        return random.choice(names), random.choice([0, 1, 0, 1, 0, 1, 9])

    def broker(name: str, index: int) -> Any:
        leader = Own("leader", f"{name}-{index}", 1)
        return random.choice([leader, leader, leader, *NODES])

    def epoch(name: str, index: int) -> Any:
        known = f"{name}-{index}"
        return random.choice([-1, -1, *(Own("epoch", known, 0, plus) for plus in (0, 0, 1, -1))])

    def where(name: str) -> Message:
        return {"name": name, "topic": name, "topic_id": topic_id(name)}

    def produce() -> Iterator[Ask]:
        name, index = place()
        part = {"index": index, "records": [batch(random.randint(1, 4))]}
        topics = [{**where(name), "partition_data": [part]}]
        message = {"acks": random.choice([-1, -1, 1]), "timeout_ms": 5000, "topic_data": topics}
        at = version(random, "Produce", 3)
        yield Ask("Produce", at, message, broker=broker(name, index), until=_any)

    def fetch() -> Iterator[Ask]:
        name, index = place()
        row = {
            "partition": index,
            "current_leader_epoch": epoch(name, index),
            "fetch_offset": random.choice([0, 0, 1, 2, 5, 100]),
            "last_fetched_epoch": random.choice([-1, -1, 0, 1, 9]),
            "partition_max_bytes": 100_000,
        }
        message = {
            "replica_id": -1,
            "max_wait_ms": 0,
            "min_bytes": 0,
            "session_epoch": -1,
            "max_bytes": 2**20,
            "isolation_level": 0,
            "topics": [{**where(name), "partitions": [row]}],
        }
        if random.random() < 0.7:
            at, node = version(random, "Fetch", EVERY_FOLLOWER_SINCE), Own("leader", f"{name}-{index}", 1)
        else:
            at, node = random.randint(4, EVERY_FOLLOWER_SINCE - 1), broker(name, index)
        yield Ask("Fetch", at, message, broker=node, until=_any)

    def list_offsets() -> Iterator[Ask]:
        name, index = place()
        times = [-1, -2, -3, TIME_MS, TIME_MS + 1]
        row = {
            "partition_index": index,
            "current_leader_epoch": epoch(name, index),
            "timestamp": random.choice(times),
        }
        message = {"replica_id": -1, "isolation_level": 0, "timeout_ms": 3000}
        message["topics"] = [{"name": name, "partitions": [row]}]
        yield Ask("ListOffsets", version(random, "ListOffsets", 4), message, broker=broker(name, index), until=_any)

    def epochs() -> Iterator[Ask]:
        name, index = place()
        row = {
            "partition": index,
            "current_leader_epoch": epoch(name, index),
            "leader_epoch": random.choice([0, 1, 2, 3, 4, 9]),
        }
        message = {"replica_id": -1, "topics": [{"topic": name, "partitions": [row]}]}
        at = version(random, "OffsetForLeaderEpoch", 3)
        yield Ask("OffsetForLeaderEpoch", at, message, broker=broker(name, index), until=_any)

    def delete() -> Iterator[Ask]:
        name, index = place()
        row = {"partition_index": index, "offset": random.choice([0, -1, 1, 2, 50])}
        message = {"topics": [{"name": name, "partitions": [row]}], "timeout_ms": 3000}
        yield Ask("DeleteRecords", version(random, "DeleteRecords"), message, broker=broker(name, index), until=_any)

    def producers() -> Iterator[Ask]:
        name, index = place()
        message = {"topics": [{"name": name, "partition_indexes": [index]}]}
        yield Ask("DescribeProducers", 0, message, broker=broker(name, index), until=_any)

    def log_dirs() -> Iterator[Ask]:
        message = {"topics": [{"topic": name, "partitions": [0, 1]} for name in names]}
        yield Ask("DescribeLogDirs", version(random, "DescribeLogDirs"), message, broker=random.choice(NODES))

    def reassign() -> Iterator[Ask]:
        name, index = place()
        other = drawn(name, index)
        wanted = random.choice([other, other, other, other, None, [1, 1], [1, 9], []])
        at, node = version(random, "AlterPartitionReassignments"), random.choice(NODES)
        may_change_factor = at == 0 or random.random() < 0.8
        if wanted is other and (may_change_factor or len(other) == len(replicas_of.get((name, index), []))):
            replicas_of[name, index] = other
        message = {
            "topics": [{"name": name, "partitions": [{"partition_index": index, "replicas": wanted}]}],
            "timeout_ms": 9000,
            "allow_replication_factor_change": may_change_factor,
        }
        yield Ask("AlterPartitionReassignments", at, message, broker=node)
        listed = {"topics": None, "timeout_ms": 9000}
        yield Ask("ListPartitionReassignments", 0, listed, until=lambda answer: not answer["topics"])
        yield from settled()

    def elect() -> Iterator[Ask]:
        name, index = place()
        partitions = [{"topic": name, "partitions": [index]}]
        message = {"election_type": random.choice([0, 0, 1]), "topic_partitions": partitions, "timeout_ms": 9000}
        yield Ask("ElectLeaders", version(random, "ElectLeaders"), message, broker=random.choice(NODES))
        yield from settled()

    def grow() -> Iterator[Ask]:
        rows = random.choice([[[1]], [[1, 2]], [[1, 2, 3]], [[2, 1], [3, 1]], [[1, 1]], [[9]], [[]]])
        row = {"name": random.choice(names), "count": random.choice([3, 4]), "assignments": None}
        row["assignments"] = [{"broker_ids": each} for each in rows]
        message = {"topics": [row], "timeout_ms": 9000, "validate_only": random.random() < 0.2}
        yield Ask("CreatePartitions", version(random, "CreatePartitions"), message, broker=random.choice(NODES))
        yield from settled()

    def describe() -> Iterator[Ask]:
        message = {"topics": [{"name": name} for name in some(random, names)], "response_partition_limit": 2000}
        yield Ask("DescribeTopicPartitions", 0, message, broker=random.choice(NODES))

    kinds = (produce, produce, produce, fetch, fetch, list_offsets, epochs, delete, producers, log_dirs, describe)
    changes = (reassign, reassign, elect, grow)
    while True:
        yield from random.choice(kinds if random.random() < 0.8 else changes)()
