"""Conversations with three brokers about replicas and leaders: drawn from a seed as in ``conversations.py``.

Replicas are assigned by hand, so that both sides have the same leaders; each request goes to the leader or to another
broker. After each change of replicas or leaders the conversation waits until all replicas are in sync.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from random import Random
from typing import Any

from minikafka.types import NodeId
from minikafka.wire.kafka.codec import Message
from tests.foreign.beside_kafka import FOLLOWERS_SERVE_SINCE, Ask, Given, Own
from tests.foreign.conversations import TIME_MS, batch, learn_log_starts, some, topic_id, version
from tests.kafka.samples import EMPTY_ID

NODES = (1, 2, 3)

ANY_BROKER = frozenset({"controller_id"})
"""Kafka names some broker: requests to the controller may be sent to each."""


def _is_settled(partition: Message, down: Collection[NodeId]) -> bool:
    """Return True if the replicas whose brokers live are in sync, and one of them leads."""
    living = set(partition["replica_nodes"]).difference(down)
    if not living:
        return bool(partition["leader_id"] == -1)
    return bool(partition["leader_id"] in living and set(partition["isr_nodes"]) == living)


def _learn(given: Given, answer: Message) -> None:
    for topic in answer["topics"]:
        given.learn("topic", topic["name"], topic.get("topic_id", EMPTY_ID))
        sizes = {len(each["replica_nodes"]) for each in topic["partitions"]}
        given.learn("numbers of replicas", topic["name"], sizes)
        for each in topic["partitions"]:
            place = f"{topic['name']}-{each['partition_index']}"
            given.learn("leader", place, each["leader_id"])
            given.learn("epoch", place, each.get("leader_epoch", 0))


def _any(_answer: Message) -> bool:
    """Nothing is repeated: a broker that does not lead says so."""
    return True


def replicas(random: Random, unique: str) -> Iterator[Ask]:
    """Topics with one to three replicas are written, read, moved to other brokers and led by others."""
    return itertools.chain.from_iterable(turns(random, unique))


def turns(random: Random, unique: str, down: Collection[NodeId] = ()) -> Iterator[Iterator[Ask]]:
    """The same, in turns. The brokers in ``down`` do not run; it may change between two turns."""
    names = [f"{letter}{unique}" for letter in "rst"]
    settings: list[dict[str, str]] = [
        {"min.insync.replicas": random.choice(["1", "2", "3"])},
        {"min.insync.replicas": "2", "unclean.leader.election.enable": random.choice(["true", "false"])},
        {},
    ]

    def living() -> list[NodeId]:
        return [node for node in NODES if node not in down]

    replicas_of: dict[tuple[str, int], list[int]] = {}
    """As a reassignment has left them."""

    def drawn(name: str, index: int) -> list[int]:
        """Other replicas. None are only added: when such a reassignment ends, our leader begins a new epoch."""
        before = replicas_of.get((name, index), [])
        usable = living()  # a reassignment ends when all replicas are in sync
        while True:
            found = random.sample(usable, random.choice([1, 2, 2, *range(2, len(usable) + 1)]))
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
    yield iter([Ask("CreateTopics", 6, {"topics": rows, "timeout_ms": 9000})])
    for row in rows:
        for each in row["assignments"]:
            replicas_of[row["name"], each["partition_index"]] = each["broker_ids"]

    def metadata(node: NodeId) -> Ask:
        topics = [{"name": name, "topic_id": EMPTY_ID} for name in names]
        message = {"topics": topics, "allow_auto_topic_creation": False}
        at = random.randint(10, 13)
        return Ask("Metadata", at, message, _learn, broker=node, until=is_settled, blurred=ANY_BROKER)

    def is_settled(answer: Message) -> bool:
        return all(_is_settled(each, down) for topic in answer["topics"] for each in topic["partitions"])

    def settled() -> Iterator[Ask]:
        # Each broker has it from the controller by itself.
        for node in NODES:
            if node not in down:
                yield metadata(node)

    yield settled()

    def place() -> tuple[str, int]:
        return random.choice(names), random.choice([0, 1, 0, 1, 0, 1, 9])

    def broker(name: str, index: int) -> Any:
        leader, others = leading(name, index), living()
        return random.choice([leader, leader, leader, *others])

    def leading(name: str, index: int) -> Any:
        """The leader, or any living broker where it is not known or does not run."""
        otherwise = random.choice(living())

        def node(given: Given) -> NodeId:
            found: NodeId = given.values.get(("leader", f"{name}-{index}"), otherwise)
            return found if found in living() else otherwise

        return node

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
            at, node = version(random, "Fetch", FOLLOWERS_SERVE_SINCE), leading(name, index)
        else:
            at, node = random.randint(4, FOLLOWERS_SERVE_SINCE - 1), broker(name, index)
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
        at, node = version(random, "DeleteRecords"), broker(name, index)
        yield Ask("DeleteRecords", at, message, learn_log_starts, broker=node, until=_any)

    def producers() -> Iterator[Ask]:
        name, index = place()
        message = {"topics": [{"name": name, "partition_indexes": [index]}]}
        yield Ask("DescribeProducers", 0, message, broker=broker(name, index), until=_any)

    def log_dirs() -> Iterator[Ask]:
        message = {"topics": [{"topic": name, "partitions": [0, 1]} for name in names]}
        yield Ask("DescribeLogDirs", version(random, "DescribeLogDirs"), message, broker=random.choice(living()))

    def reassign() -> Iterator[Ask]:
        name, index = place()
        if not set(replicas_of.get((name, index), living())).difference(down):
            return  # it has no leader that could be copied
        other = drawn(name, index)
        wanted = random.choice([other, other, other, other, None, [1, 1], [1, 9], []])
        at, node = version(random, "AlterPartitionReassignments"), random.choice(living())
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
        node = random.choice(living())
        yield Ask("ListPartitionReassignments", 0, listed, broker=node, until=lambda answer: not answer["topics"])
        yield from settled()

    def elect() -> Iterator[Ask]:
        name, index = place()
        partitions = [{"topic": name, "partitions": [index]}]
        message = {"election_type": random.choice([0, 0, 1]), "topic_partitions": partitions, "timeout_ms": 9000}
        yield Ask("ElectLeaders", version(random, "ElectLeaders"), message, broker=random.choice(living()))
        yield from settled()

    def grow() -> Iterator[Ask]:
        rows = random.choice([[[1]], [[1, 2]], [[1, 2, 3]], [[2, 1], [3, 1]], [[1, 1]], [[9]], [[]]])
        row = {"name": random.choice(names), "count": random.choice([3, 4]), "assignments": None}
        row["assignments"] = [{"broker_ids": each} for each in rows]
        message = {"topics": [row], "timeout_ms": 9000, "validate_only": random.random() < 0.2}
        yield Ask("CreatePartitions", version(random, "CreatePartitions"), message, broker=random.choice(living()))
        yield from settled()

    def describe() -> Iterator[Ask]:
        message = {"topics": [{"name": name} for name in some(random, names)], "response_partition_limit": 2000}
        yield Ask("DescribeTopicPartitions", 0, message, broker=random.choice(living()))

    kinds = (produce, produce, produce, fetch, fetch, list_offsets, epochs, delete, producers, log_dirs, describe)
    changes = (reassign, reassign, elect, grow)
    known = set(down)
    while True:
        if known != set(down):
            known = set(down)
            yield settled()
            yield describe()
        yield random.choice(kinds if random.random() < 0.8 else changes)()
