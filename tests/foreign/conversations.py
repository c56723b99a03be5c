"""Conversations with a broker, drawn from a seed: requests that clients and tools could send, few of them wholly right."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.offer import OFFERS
from minikafka.wire.records import BatchBuilder
from tests.foreign.beside_kafka import Ask, Given, Own
from tests.kafka.samples import EMPTY_ID

TOPIC = 2
SUBSCRIPTION = b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff"
TIME_MS = 1_700_000_000_000

Draw = Callable[[Random, str], Iterator[Ask]]

CONFIGS = (
    *(("retention.ms", text) for text in ("1000", "-1", "-2", "abc")),
    *(("cleanup.policy", text) for text in ("compact", "compact,delete", "zap")),
    *(("segment.bytes", text) for text in ("1048576", "1")),
    *(("min.insync.replicas", text) for text in ("1", "0")),
    *(("compression.type", text) for text in ("gzip", "zzz")),
    *(("max.message.bytes", text) for text in ("2000000", "-1")),
    *(("unclean.leader.election.enable", text) for text in ("true", "yes")),
    *(("min.cleanable.dirty.ratio", text) for text in ("0.5", "1.5")),
    *(("follower.replication.throttled.replicas", text) for text in ("*", "1:1", "x")),
    *(("compression.gzip.level", text) for text in ("9", "12")),
    *(("message.timestamp.type", "LogAppendTime"), ("no.such", "1"), ("segment.ms", "0"), ("flush.messages", "0")),
)


@functools.cache
def _versions() -> dict[str, tuple[int, int]]:
    return {each.name: (each.first, each.last) for each in OFFERS.values()}


def version(random: Random, api: str, at_least: int = 0) -> int:
    """A version of the API that both brokers offer."""
    first, last = _versions()[api]
    return random.randint(max(first, at_least), last)


def topic_id(name: str) -> Own:
    return Own("topic", name, hashlib.sha256(name.encode()).digest()[:16])


def _learn_topics(given: Given, answer: Message) -> None:
    for each in answer["topics"]:
        given.learn("topic", each["name"], each.get("topic_id", EMPTY_ID))


def created(random: Random, *topics: tuple[str, int, dict[str, str]]) -> Ask:
    """CreateTopics for (name, partitions, settings); its answer has the ids."""
    asked = [
        {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": [{"name": key, "value": value} for key, value in configs.items()],
        }
        for name, partitions, configs in topics
    ]
    return Ask("CreateTopics", 7, {"topics": asked, "timeout_ms": 9000}, _learn_topics)


def some(random: Random, items: list[Any], counts: tuple[int, ...] = (1, 1, 2)) -> list[Any]:
    return random.sample(items, min(random.choice(counts), len(items)))


# ---- topics and their settings ---------------------------------------------------------------------------------------


def topics(random: Random, unique: str) -> Iterator[Ask]:
    """Topics are created, grown, described, configured and deleted."""
    names = [f"{letter}{unique}" for letter in "abc"]
    odd = [f"missing{unique}", "a/b", "..", "x" * 250]
    yield created(random, (names[0], 2, {}))

    def picked(counts: tuple[int, ...] = (1, 1, 2)) -> list[str]:
        return some(random, names + some(random, odd, (0, 0, 0, 1)), counts)

    def configs() -> list[Message]:
        return [{"name": name, "value": value} for name, value in some(random, list(CONFIGS), (0, 1, 1, 1))]

    def new(name: str) -> Message:
        return {
            "name": name,
            "num_partitions": random.choice([1, 2, 3, -1]),
            "replication_factor": random.choice([1, 1, -1, 2]),
            "configs": configs() if name in names else [],
        }

    def assigned(name: str) -> Message:
        brokers = random.choice([[1], [1], [2], [1, 1], []])
        rows = [{"partition_index": index, "broker_ids": brokers} for index in range(random.choice([1, 2]))]
        return {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": rows}

    def create() -> Ask:
        asked = [random.choice([new, new, new, assigned])(name) for name in picked()]
        message = {"topics": asked, "timeout_ms": 9000, "validate_only": random.random() < 0.1}
        return Ask("CreateTopics", version(random, "CreateTopics"), message, _learn_topics)

    def delete() -> Ask:
        at = version(random, "DeleteTopics")
        asked = picked()
        by_id = [{"name": None, "topic_id": topic_id(name)} for name in asked]
        by_name = [{"name": name, "topic_id": EMPTY_ID} for name in asked]
        more = some(random, [{"name": None, "topic_id": EMPTY_ID}], (0, 0, 0, 1))
        names_of = {"topics": random.choice([by_id, by_name]) + more, "topic_names": random.choice([asked, asked * 2])}
        return Ask("DeleteTopics", at, {**names_of, "timeout_ms": 9000})

    def grow() -> Ask:
        rows = [
            {
                "name": name,
                "count": random.choice([1, 2, 3, 4, 0, -1]),
                "assignments": random.choice([None, None, [{"broker_ids": [1]}], [{"broker_ids": [2]}]]),
            }
            for name in picked()
        ]
        message = {"topics": rows, "timeout_ms": 9000, "validate_only": random.random() < 0.2}
        return Ask("CreatePartitions", version(random, "CreatePartitions"), message)

    def metadata() -> Ask:
        rows = [{"name": name, "topic_id": EMPTY_ID} for name in picked()]
        message = {"topics": rows, "allow_auto_topic_creation": False, "include_topic_authorized_operations": True}
        return Ask("Metadata", version(random, "Metadata", 4), message)

    def resources(operation: bool) -> list[Message]:
        def one(config: Message) -> Message:
            return {**config, "config_operation": random.choice([0, 0, 0, 1, 2, 3])} if operation else config

        # Kafka does not answer AlterConfigs that names a resource twice.
        asked = picked() * random.choice([1, 1, 1, 1, 2] if operation else [1])
        return [{"resource_type": TOPIC, "resource_name": name, "configs": list(map(one, configs()))} for name in asked]

    def describe() -> Ask:
        keys = random.choice([["retention.ms"], ["cleanup.policy", "segment.bytes"], ["no.such"], [], None])
        rows = [{"resource_type": TOPIC, "resource_name": name, "configuration_keys": keys} for name in picked()]
        return Ask("DescribeConfigs", version(random, "DescribeConfigs"), {"resources": rows})

    def alter() -> Ask:
        api = random.choice(["AlterConfigs", "IncrementalAlterConfigs", "IncrementalAlterConfigs"])
        message = {"resources": resources(api != "AlterConfigs"), "validate_only": random.random() < 0.2}
        return Ask(api, version(random, api), message)

    def list_topic_partitions() -> Ask:
        asked = sorted(picked())
        cursor = {"topic_name": asked[0], "partition_index": random.choice([0, 1, -1])}
        message = {
            "topics": [{"name": name} for name in asked],
            "response_partition_limit": random.choice([1, 2, 2000]),
            "cursor": random.choice([None, cursor]),
        }
        return Ask("DescribeTopicPartitions", 0, message)

    def reassign() -> Ask:
        row = {"partition_index": random.choice([0, 1, 9]), "replicas": random.choice([None, [1], [1, 1], [], [2]])}
        message = {"topics": [{"name": random.choice(names), "partitions": [row]}], "timeout_ms": 9000}
        return Ask("AlterPartitionReassignments", version(random, "AlterPartitionReassignments"), message)

    def elect() -> Ask:
        message = {
            "election_type": random.choice([0, 1, 2]),
            "topic_partitions": [{"topic": random.choice(names), "partitions": [random.choice([0, 1, 9])]}],
            "timeout_ms": 9000,
        }
        return Ask("ElectLeaders", version(random, "ElectLeaders"), message)

    def cluster() -> Ask:
        message = {"endpoint_type": random.choice([1, 2, 3]), "include_cluster_authorized_operations": True}
        return Ask("DescribeCluster", version(random, "DescribeCluster"), message)

    kinds = (*(create, delete, grow, metadata, describe, alter, alter), list_topic_partitions, reassign, elect, cluster)
    while True:
        yield random.choice(kinds)()


# ---- records ---------------------------------------------------------------------------------------------------------


def batch(count: int, producer: tuple[int, int, int] = (-1, -1, -1), *, is_transactional: bool = False) -> bytes:
    """``count`` records; ``producer``: id, epoch and first sequence."""
    builder = BatchBuilder(
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=is_transactional,
    )
    for number in range(count):
        builder.append(TIME_MS + number, b"k%d" % number, b"v%d" % number)
    return bytes(builder.build())


class Batch:
    """A batch of a producer that a side has made; its sequence is what it has sent to the partition in this epoch."""

    def __init__(
        self,
        label: str,
        count: int,
        *,
        plus_epoch: int = 0,
        sequence: int | None = None,
        behind: int = 0,
        build: Callable[..., bytes] | None = None,
    ) -> None:
        """``build`` makes a batch of ``count`` records for a producer, as :func:`batch`."""
        self._build = build or functools.partial(batch, count)
        self._producer, self._epoch = Own("producer", label, 987654), Own("epoch", label, 0, plus_epoch)
        self._count, self._sequence, self._behind = count, sequence, behind
        self.place = ""
        self.is_transactional = False

    def __call__(self, given: Given) -> list[bytes]:
        epoch = max(0, self._epoch.of(given))
        following = given.values.get(("sequence", self._key(given)), 0)
        sequence = max(0, following - self._behind) if self._sequence is None else self._sequence
        producer = (self._producer.of(given), epoch, sequence)
        return [self._build(producer, is_transactional=self.is_transactional)]

    @property
    def is_next(self) -> bool:
        """Return True if its sequence follows the last one that was acknowledged."""
        return self._sequence is None and not self._behind

    def _key(self, given: Given) -> str:
        return f"{self.place} {self._producer.of(given)} {self._epoch.of(given)}"

    def learn(self, given: Given, _answer: Message) -> None:
        key = self._key(given)
        given.learn("sequence", key, given.values.get(("sequence", key), 0) + self._count)


def learn_producer(label: str) -> Callable[[Given, Message], None]:
    def learn(given: Given, answer: Message) -> None:
        if answer.get("producer_id", -1) != -1:
            given.learn("producer", label, answer["producer_id"])
            given.learn("epoch", label, answer["producer_epoch"])

    return learn


def learn_log_starts(given: Given, answer: Message) -> None:
    for topic in answer["topics"]:
        for each in topic["partitions"]:
            given.learn("log start", f"{topic['name']}-{each['partition_index']}", each["low_watermark"])


def records(random: Random, unique: str) -> Iterator[Ask]:
    """Batches of producers with and without an id are appended, read, looked up by time and epoch, and deleted."""
    names = [f"{letter}{unique}" for letter in "def"]
    settings = random.choice([{}, {"cleanup.policy": "compact"}, {"message.timestamp.type": "LogAppendTime"}])
    yield created(random, (names[0], 2, {}), (names[1], 2, settings), (names[2], 2, {"max.message.bytes": "200"}))
    for label in ("p", "q"):
        message = {"transactional_id": None, "transaction_timeout_ms": 1, "producer_id": -1, "producer_epoch": -1}
        yield Ask("InitProducerId", 4, message, learn_producer(label))

    def where(name: str) -> Message:
        return {"name": name, "topic": name, "topic_id": topic_id(name)}

    def partitions() -> list[int]:
        return some(random, [0, 1, *some(random, [9], (0, 0, 0, 0, 1))])

    def sent() -> Any:
        if random.random() < 0.5:
            return [batch(random.randint(1, 8))]
        return Batch(
            random.choice("pq"),
            random.choice([1, 1, 2]),
            plus_epoch=random.choice([0, 0, 0, 1]),
            sequence=random.choice([0, 1, 2, 3, 4, 0, 1, 2, 2**31 - 1]),
        )

    def produce() -> Ask:
        topics = [
            {**where(name), "partition_data": [{"index": number, "records": sent()} for number in partitions()]}
            for name in some(random, names)
        ]
        message = {"acks": random.choice([-1, 1]), "timeout_ms": 5000, "topic_data": topics}
        return Ask("Produce", version(random, "Produce", 3), message)

    def fetch() -> Ask:
        def row(number: int) -> Message:
            return {
                "partition": number,
                "current_leader_epoch": random.choice([-1, -1, 0, 3]),
                "fetch_offset": random.choice([0, 0, 1, 2, 5, 100]),
                "partition_max_bytes": random.choice([100_000, 1]),
            }

        topics = [{**where(name), "partitions": list(map(row, partitions()))} for name in some(random, names)]
        message = {"replica_id": -1, "max_wait_ms": 0, "min_bytes": 0, "topics": topics, "session_epoch": -1}
        more = {"max_bytes": 2**20, "isolation_level": random.choice([0, 1])}
        return Ask("Fetch", version(random, "Fetch"), {**message, **more})

    def list_offsets() -> Ask:
        def row(number: int) -> Message:
            times = [-1, -2, -3, -4, -5, -6, 0, TIME_MS, TIME_MS + 1, 10**13]
            epoch = random.choice([-1, -1, 0, 5])
            return {"partition_index": number, "current_leader_epoch": epoch, "timestamp": random.choice(times)}

        topics = [{"name": name, "partitions": list(map(row, partitions()))} for name in some(random, [names[0]])]
        message = {"replica_id": -1, "isolation_level": random.choice([0, 1]), "topics": topics, "timeout_ms": 3000}
        return Ask("ListOffsets", version(random, "ListOffsets", 1), message)

    def epochs() -> Ask:
        row = {"current_leader_epoch": random.choice([-1, 0, 5]), "leader_epoch": random.choice([0, 1, 9])}
        topics = [{"topic": random.choice(names), "partitions": [{"partition": each, **row} for each in partitions()]}]
        return Ask("OffsetForLeaderEpoch", version(random, "OffsetForLeaderEpoch"), {"topics": topics})

    def delete() -> Ask:
        row = {"partition_index": random.choice([0, 1, 9]), "offset": random.choice([0, -1, 1, 2, 50, -2])}
        message = {"topics": [{"name": random.choice(names), "partitions": [row]}], "timeout_ms": 3000}
        return Ask("DeleteRecords", version(random, "DeleteRecords"), message, learn_log_starts)

    def producers() -> Ask:
        return Ask("DescribeProducers", 0, {"topics": [{"name": random.choice(names), "partition_indexes": [0, 1, 9]}]})

    kinds = (produce, produce, produce, fetch, fetch, list_offsets, epochs, delete, producers)
    while True:
        yield random.choice(kinds)()


# ---- groups ----------------------------------------------------------------------------------------------------------


def groups(random: Random, unique: str) -> Iterator[Ask]:
    """A member joins, syncs, commits, leaves and is expelled; offsets are fetched and deleted."""
    names, group = [f"{letter}{unique}" for letter in "gh"], f"group{unique}"
    yield created(random, *((name, 2, {}) for name in names))
    yield Ask("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": [group]})

    def who() -> Any:
        return random.choice([Own("member", group, "nobody")] * 8 + ["bogus", ""])

    def generation() -> Any:
        return random.choice([Own("generation", group, -1)] * 7 + [-1, 0, 99])

    def learn(given: Given, answer: Message) -> None:
        given.learn("member", group, answer["member_id"])
        if not answer["error_code"]:
            given.learn("generation", group, answer["generation_id"])

    def join() -> Ask:
        protocols = random.choice([["range"], ["range"], ["range", "roundrobin"], []])
        message = {
            "group_id": group,
            "session_timeout_ms": random.choice([30_000, 30_000, 30_000, 1, 10**7]),
            "rebalance_timeout_ms": 30_000,
            "member_id": random.choice([Own("member", group, "")] * 6 + ["bogus"]),
            "group_instance_id": None,
            "protocol_type": random.choice(["consumer", "consumer", "consumer", "connect"]),
            "protocols": [{"name": name, "metadata": SUBSCRIPTION} for name in protocols],
        }
        return Ask("JoinGroup", version(random, "JoinGroup"), message, learn)

    def as_member() -> Message:
        return {"group_id": group, "generation_id": generation(), "member_id": who(), "group_instance_id": None}

    def sync() -> Ask:
        message = {
            **as_member(),
            "protocol_type": random.choice(["consumer", "consumer", "consumer", None, "connect"]),
            "protocol_name": random.choice(["range", "range", "range", None, "sticky"]),
            "assignments": [{"member_id": who(), "assignment": b"mine"}],
        }
        return Ask("SyncGroup", version(random, "SyncGroup"), message)

    def heartbeat() -> Ask:
        return Ask("Heartbeat", version(random, "Heartbeat"), as_member())

    def leave() -> Ask:
        message = {"group_id": group, "member_id": who(), "members": [{"member_id": who()}]}
        return Ask("LeaveGroup", version(random, "LeaveGroup"), message)

    def commit() -> Ask:
        def row(name: str) -> Message:
            offset = {"committed_offset": random.choice([0, 1, 5]), "committed_leader_epoch": random.choice([-1, 0])}
            metadata = random.choice(["", "m", None, "x" * 5000])
            return {
                "name": name,
                "topic_id": topic_id(name),
                "partitions": [{"partition_index": random.choice([0, 1, 9]), **offset, "committed_metadata": metadata}],
            }

        message = {"group_id": group, "generation_id_or_member_epoch": generation(), "member_id": who()}
        topics = list(map(row, some(random, [*names, "nope"])))
        return Ask("OffsetCommit", version(random, "OffsetCommit"), {**message, "topics": topics})

    def fetch() -> Ask:
        rows = [
            {"name": name, "topic_id": topic_id(name), "partition_indexes": [0, 1, 9]} for name in some(random, names)
        ]
        asked = {"group_id": group, "topics": rows}
        message = {**asked, "groups": [asked], "require_stable": random.random() < 0.5}
        return Ask("OffsetFetch", version(random, "OffsetFetch"), message)

    def delete_offsets() -> Ask:
        topics = [{"name": random.choice([*names, "nope"]), "partitions": [{"partition_index": random.choice([0, 9])}]}]
        return Ask("OffsetDelete", 0, {"group_id": group, "topics": topics})

    def describe() -> Ask:
        message = {"groups": [group, "never"], "include_authorized_operations": random.random() < 0.5}
        return Ask("DescribeGroups", version(random, "DescribeGroups"), message)

    kinds = (
        *(join, join, join, sync, sync, heartbeat, heartbeat, commit, commit, fetch, fetch, leave, describe),
        delete_offsets,
    )
    while True:
        yield random.choice(kinds)()


# ---- transactions ----------------------------------------------------------------------------------------------------


def transactions(random: Random, unique: str) -> Iterator[Ask]:
    """Two transactional ids whose producers go on, fall behind and fence each other."""
    topics, ids, group = [f"{letter}{unique}" for letter in "tu"], [f"x{unique}", f"y{unique}"], f"of{unique}"
    yield created(random, *((name, 2, {}) for name in topics))
    yield Ask("FindCoordinator", 4, {"key_type": 1, "coordinator_keys": ids})
    yield Ask("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": [group]})

    def init(label: str, *, is_first: bool = False) -> Ask:
        goes_on = not is_first and random.random() < 0.4
        message = {
            "transactional_id": label,
            "transaction_timeout_ms": 60_000 if is_first else random.choice([60_000] * 6 + [0, 10**9]),
            "producer_id": Own("producer", label, -1) if goes_on else -1,
            "producer_epoch": Own("epoch", label, -1) if goes_on else -1,
        }
        at = version(random, "InitProducerId", 3 if goes_on else 0)
        return Ask("InitProducerId", at, message, learn_producer(label))

    for label in ids:
        yield init(label, is_first=True)

    def as_producer(label: str) -> Message:
        epoch = Own("epoch", label, -1, random.choice([0] * 10 + [1]))
        producer = random.choice([Own("producer", label, -1)] * 12 + [555_555])
        return {"transactional_id": label, "producer_id": producer, "producer_epoch": epoch}

    def add(label: str) -> Ask:
        rows = [
            {"name": name, "partitions": random.choice([[0], [1], [0, 1], [0, 7]])} for name in some(random, topics)
        ]
        message = {f"v3_and_below_{name}": value for name, value in as_producer(label).items()}
        return Ask(
            "AddPartitionsToTxn", version(random, "AddPartitionsToTxn"), {**message, "v3_and_below_topics": rows}
        )

    def produce(label: str) -> Ask:
        name, number = random.choice(topics), random.choice([0, 1])
        sent = Batch(label, random.choice([1, 2]), plus_epoch=random.choice([0] * 8 + [1]))
        sent.place, sent.is_transactional = f"{name}-{number}", True
        rows = [{"name": name, "topic_id": topic_id(name), "partition_data": [{"index": number, "records": sent}]}]
        message = {"transactional_id": label, "acks": -1, "timeout_ms": 5000, "topic_data": rows}
        return Ask("Produce", version(random, "Produce", 3), message, sent.learn)

    def add_offsets(label: str) -> Ask:
        return Ask("AddOffsetsToTxn", version(random, "AddOffsetsToTxn"), {**as_producer(label), "group_id": group})

    def commit_offsets(label: str) -> Ask:
        offset = {"committed_offset": random.choice([1, 4]), "committed_leader_epoch": -1, "committed_metadata": ""}
        rows = [{"name": topics[0], "partitions": [{"partition_index": random.choice([0, 1, 9]), **offset}]}]
        member = {"generation_id": -1, "member_id": "", "group_id": group, "topics": rows}
        return Ask("TxnOffsetCommit", version(random, "TxnOffsetCommit"), {**as_producer(label), **member})

    def end(label: str) -> Ask:
        message = {**as_producer(label), "committed": random.random() < 0.6}
        return Ask("EndTxn", version(random, "EndTxn"), message, learn_producer(label))

    def describe(label: str) -> Ask:
        return Ask("DescribeTransactions", 0, {"transactional_ids": [label]})

    def fetch(_label: str) -> Ask:
        rows = [
            {"partition": number, "fetch_offset": random.choice([0, 0, 1, 2]), "partition_max_bytes": 100_000}
            for number in (0, 1)
        ]
        wanted = [{"topic": name, "topic_id": topic_id(name), "partitions": rows} for name in topics]
        message = {"replica_id": -1, "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 2**20, "session_epoch": -1}
        level = {"isolation_level": random.choice([0, 1, 1]), "topics": wanted}
        return Ask("Fetch", version(random, "Fetch"), {**message, **level})

    def fetch_offsets(_label: str) -> Ask:
        rows = [{"name": topics[0], "topic_id": topic_id(topics[0]), "partition_indexes": [0, 1, 9]}]
        asked = {"group_id": group, "topics": rows}
        message = {**asked, "groups": [asked], "require_stable": False}
        return Ask("OffsetFetch", version(random, "OffsetFetch", 6), message)

    kinds = (
        *(init, init, add, add, add, produce, produce, produce, add_offsets, commit_offsets),
        *(end, end, end, describe, fetch, fetch, fetch_offsets),
    )
    while True:
        yield random.choice(kinds)(random.choice(ids))


CONVERSATIONS: dict[str, Draw] = {
    "topics": topics,
    "records": records,
    "groups": groups,
    "transactions": transactions,
}
