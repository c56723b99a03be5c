"""Conversations about quotas, users, features, brokers and what runs: drawn from a seed as in ``conversations.py``."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from minikafka.wire.kafka.codec import Message
from tests.foreign.beside_kafka import Ask, Own
from tests.foreign.conversations import Draw, batch, created, learn_producer, some, topic_id, version

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
EXACT, DEFAULT, ANY_SPECIFIED = 0, 1, 2
RATES = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")

BROKER_CONFIGS = (
    *(("log.segment.bytes", text) for text in ("60000000", "abc")),
    *(("log.cleaner.threads", text) for text in ("1", "0")),
    *(("message.max.bytes", "2000000"), ("log.dirs", "/nowhere"), ("no.such", "1"), ("node.id", "7")),
    *(("consumer.session.timeout.ms", text) for text in ("45000", "1")),
    *(("interval.ms", "1000"), ("streams.num.standby.replicas", "1")),
)


def quotas_and_users(random: Random, unique: str) -> Iterator[Ask]:
    """Quotas of users, client ids and addresses; credentials of users."""
    names = [f"u{unique}", f"v{unique}"]
    address = f"10.{random.randrange(256)}.{random.randrange(256)}.{random.randrange(1, 255)}"

    def name_of(kind: str) -> str | None:
        addresses = [address, address, "not an address"]
        return random.choice(addresses if kind == "ip" else [*names * 3, None, ""])

    def entity() -> list[Message]:
        kinds = random.choice([["user"], ["user"], ["client-id"], ["user", "client-id"], ["ip"]])
        if random.random() < 0.15:
            kinds = random.choice([["user", "ip"], ["bogus"], [], [""]])
        return [{"entity_type": kind, "entity_name": name_of(kind)} for kind in kinds]

    def change(*keys: str) -> Message:
        value = random.choice([1000.0, 1000.0, 1.5, 0.0, -1.0, 0.5, 1e12, 1e30])
        return {"key": random.choice(keys), "value": value, "remove": random.random() < 0.3}

    def alter_quotas() -> Ask:
        def entry() -> Message:
            parts = entity()
            keys = ["connection_creation_rate"] if parts and parts[0]["entity_type"] == "ip" else list(RATES)
            odd = some(random, ["connection_creation_rate", "bogus", "", "producer_byte_rate"], (0, 0, 0, 0, 1))
            return {"entity": parts, "ops": [change(*keys, *odd) for _ in range(random.choice([0, 1, 1, 1, 2, 3]))]}

        entries = [entry() for _ in range(random.choice([0, 1, 1, 1, 2]))]
        # A quota of all users or all client ids would hold for other conversations, too.
        for_all = any(all(part["entity_name"] is None for part in each["entity"]) for each in entries)
        message = {"entries": entries, "validate_only": for_all or random.random() < 0.2}
        return Ask("AlterClientQuotas", version(random, "AlterClientQuotas"), message)

    def describe_quotas() -> Ask:
        def component(kind: str) -> Message:
            how = random.choice([EXACT, EXACT, EXACT, DEFAULT, ANY_SPECIFIED])
            match = None if how != EXACT else address if kind == "ip" else random.choice([*names, ""])
            if random.random() < 0.05:
                how, match = random.choice([(EXACT, None), (DEFAULT, "x"), (7, None), (ANY_SPECIFIED, "x")])
            return {"entity_type": kind, "match_type": how, "match": match}

        kinds = random.choice([["user"], ["client-id"], ["user", "client-id"], ["ip"]])
        if random.random() < 0.2:
            kinds = random.choice([[], ["bogus"], ["user", "user"], [""], ["user", "ip"]])
        message = {"components": list(map(component, kinds)), "strict": random.random() < 0.5}
        return Ask("DescribeClientQuotas", version(random, "DescribeClientQuotas"), message)

    def alter_users() -> Ask:
        def upsertion() -> Message:
            mechanism = random.choice([1, 2, 1, 2, 1, 2, 0, 9])
            return {
                "name": random.choice([*names * 3, ""]),
                "mechanism": mechanism,
                "iterations": random.choice([4096, 4096, 8192, 16384, 4095, 16385, 0, -1]),
                "salt": b"s" * 8,
                "salted_password": b"p" * (64 if mechanism == 2 else 32),
            }

        def deletion() -> Message:
            return {"name": random.choice([*names * 3, ""]), "mechanism": random.choice([1, 2, 1, 2, 0])}

        message = {
            "deletions": [deletion() for _ in range(random.choice([0, 0, 1, 1, 2]))],
            "upsertions": [upsertion() for _ in range(random.choice([0, 1, 1, 1, 2]))],
        }
        return Ask("AlterUserScramCredentials", 0, message)

    def describe_users() -> Ask:
        asked = random.choice([names[:1], names[1:], names, names * 2, [""], [f"missing{unique}"]])
        return Ask("DescribeUserScramCredentials", 0, {"users": [{"name": name} for name in asked]})

    while True:
        yield random.choice([alter_quotas, alter_quotas, describe_quotas, alter_users, alter_users, describe_users])()


def cluster(random: Random, unique: str) -> Iterator[Ask]:
    """What brokers, features, reassignments, elections, transactions and producers are described as."""
    names, ids = [f"{letter}{unique}" for letter in "mno"], [f"z{unique}", f"w{unique}"]
    yield created(random, (names[0], 3, {}), (names[1], 1, {}))
    yield Ask("FindCoordinator", 4, {"key_type": 1, "coordinator_keys": ids})
    rows = [{"index": number, "records": [batch(3)]} for number in range(3)]
    topics = [{"name": names[0], "topic_id": topic_id(names[0]), "partition_data": rows}]
    yield Ask("Produce", 11, {"acks": -1, "timeout_ms": 5000, "topic_data": topics})

    def features() -> Ask:
        def update() -> Message:
            kinds = ["transaction.version", "group.version", "metadata.version", "kraft.version", "bogus"]
            return {
                "feature": random.choice(kinds),
                "max_version_level": random.choice([0, 1, 1, 2, 2, 3, 30, 99, -1]),
                "allow_downgrade": random.random() < 0.5,
                "upgrade_type": random.choice([1, 1, 2, 3, 0, 7]),
            }

        updates = {each["feature"]: each for each in (update() for _ in range(random.choice([0, 1, 1, 1, 2])))}
        message = {"feature_updates": list(updates.values()), "validate_only": True, "timeout_ms": 5000}
        return Ask("UpdateFeatures", version(random, "UpdateFeatures", 1), message)

    def quorum() -> Ask:
        def topic() -> Message:
            rows = [{"partition_index": number} for number in random.choice([[0], [0], [0], [1], [0, 1]])]
            return {"topic_name": random.choice(["__cluster_metadata"] * 3 + [names[0]]), "partitions": rows}

        message = {"topics": [topic() for _ in range(random.choice([1, 1, 1, 2, 0]))]}
        return Ask("DescribeQuorum", version(random, "DescribeQuorum"), message)

    def directories() -> Ask:
        topics = [
            {"topic": name, "partitions": random.choice([[0], [0, 1, 2], [9], []])} for name in some(random, names)
        ]
        return Ask("DescribeLogDirs", version(random, "DescribeLogDirs"), {"topics": topics})

    def describe_cluster() -> Ask:
        message = {
            "endpoint_type": random.choice([1, 1, 2, 3]),
            "include_cluster_authorized_operations": random.random() < 0.5,
            "include_fenced_brokers": random.random() < 0.5,
        }
        return Ask("DescribeCluster", version(random, "DescribeCluster"), message)

    def reassignments() -> Ask:
        rows = [{"name": name, "partition_indexes": random.choice([[0], [0, 7], []])} for name in some(random, names)]
        message = {"topics": random.choice([None, [], rows, rows]), "timeout_ms": 5000}
        return Ask("ListPartitionReassignments", 0, message)

    def reassign() -> Ask:
        def row(number: int) -> Message:
            replicas = random.choice([None, [1], [1], [1, 1], [], [2], [1, 2], [-1]])
            return {"partition_index": number, "replicas": replicas}

        topics = [
            {"name": name, "partitions": [row(number) for number in some(random, [0, 1, 9])]}
            for name in some(random, names)
        ]
        message = {"topics": topics, "timeout_ms": 5000, "allow_replication_factor_change": random.random() < 0.5}
        return Ask("AlterPartitionReassignments", version(random, "AlterPartitionReassignments"), message)

    def elect() -> Ask:
        rows = [{"topic": name, "partitions": some(random, [0, 1, 9])} for name in some(random, [*names, "", "a/b"])]
        message = {"election_type": random.choice([0, 0, 1, 1, 2]), "topic_partitions": rows, "timeout_ms": 5000}
        return Ask("ElectLeaders", version(random, "ElectLeaders"), message)

    def init(label: str) -> Ask:
        message = {"transactional_id": label, "transaction_timeout_ms": 60_000}
        return Ask("InitProducerId", version(random, "InitProducerId", 3), message, learn_producer(label))

    def producers() -> Ask:
        rows = [
            {"name": name, "partition_indexes": random.choice([[0], [0, 1, 9], []])} for name in some(random, names)
        ]
        return Ask("DescribeProducers", 0, {"topics": rows})

    def transactions() -> Ask:
        return Ask("DescribeTransactions", 0, {"transactional_ids": some(random, [*ids, f"missing{unique}", ""])})

    def list_transactions() -> Ask:
        patterns = [f"z{unique}", f".{unique}", f"[zw]{unique}", f"{unique}", f"none{unique}", "("]
        message = {
            "state_filters": some(random, ["Empty", "Ongoing", "CompleteCommit", "Bogus", "empty"], (0, 0, 1, 2)),
            "producer_id_filters": random.choice([[], [], [Own("producer", random.choice(ids), 999_999)]]),
            "duration_filter": random.choice([-1, -1, 0, 10**9, -5]),
            "transactional_id_pattern": random.choice(patterns),
        }
        # An older version lists the transactions of other conversations, too.
        return Ask("ListTransactions", version(random, "ListTransactions", 2), message)

    def partitions() -> Ask:
        asked = some(random, [*names, f"missing{unique}"], (1, 2, 3))
        cursor = {"topic_name": random.choice([*names, ""]), "partition_index": random.choice([0, 1, 2, 3, -1])}
        message = {
            "topics": [{"name": name} for name in asked],
            "response_partition_limit": random.choice([1, 2, 3, 2000, 0, -1]),
            "cursor": random.choice([None, cursor]),
        }
        return Ask("DescribeTopicPartitions", 0, message)

    kinds = (features, quorum, directories, describe_cluster, reassignments, reassign, elect, producers, transactions)
    while True:
        yield random.choice([*kinds, list_transactions, partitions, lambda: init(random.choice(ids))])()


def brokers(random: Random, unique: str) -> Iterator[Ask]:
    """Settings of brokers, of their loggers, of groups and of client metrics."""
    names = [f"p{unique}"]
    yield created(random, (names[0], 1, {"segment.bytes": "5000000"}))

    def resource() -> Message:
        kind, name = random.choice(
            [
                *[(BROKER, "1"), (BROKER, "1"), (BROKER, ""), (BROKER, ""), (TOPIC, names[0])],
                *[(BROKER, "9"), (BROKER, "x"), (BROKER, "-1"), (3, "q"), (0, ""), (1, "")],
                *[(GROUP, f"q{unique}"), (GROUP, ""), (CLIENT_METRICS, f"q{unique}"), (CLIENT_METRICS, "")],
            ]
        )
        return {"resource_type": kind, "resource_name": name}

    def describe() -> Ask:
        def asked() -> Message:
            own = resource()
            keys = ["segment.bytes"] if own["resource_type"] == TOPIC else ["log.segment.bytes", "message.max.bytes"]
            return {**own, "configuration_keys": random.choice([keys, keys[:1], ["no.such"], [], None])}

        # One that is named again: Kafka answers twice, ours once.
        named = {repr(each): each for each in (asked() for _ in range(random.choice([1, 1, 2])))}
        message = {
            "resources": list(named.values()),
            "include_synonyms": random.random() < 0.5,
            "include_documentation": random.random() < 0.5,
        }
        return Ask("DescribeConfigs", version(random, "DescribeConfigs"), message)

    def alter() -> Ask:
        def change() -> Message:
            name, value = random.choice(BROKER_CONFIGS)
            return {"name": name, "value": value, "config_operation": random.choice([0, 0, 0, 1, 2, 3, 7])}

        rows = [{**resource(), "configs": [change() for _ in range(random.choice([0, 1, 1, 2]))]}]
        # What a broker is set to would hold for other conversations, too.
        message = {"resources": rows, "validate_only": True}
        return Ask("IncrementalAlterConfigs", version(random, "IncrementalAlterConfigs"), message)

    def alter_all() -> Ask:
        rows = [{**resource(), "configs": [dict(zip(("name", "value"), random.choice(BROKER_CONFIGS), strict=True))]}]
        return Ask("AlterConfigs", version(random, "AlterConfigs"), {"resources": rows, "validate_only": True})

    def resources() -> Ask:
        kinds = random.choice(
            [[CLIENT_METRICS], [BROKER], [GROUP], [BROKER_LOGGER], [0], [9], [CLIENT_METRICS, BROKER]]
        )
        return Ask("ListConfigResources", version(random, "ListConfigResources"), {"resource_types": kinds})

    def acls() -> Ask:
        own = {"principal": "User:x", "host": "*", "operation": 3, "permission_type": 3}
        new: Message = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, **own}
        wanted: Message = {"resource_type_filter": 2, "pattern_type_filter": 3, "operation": 1, "permission_type": 1}
        messages: dict[str, Any] = {
            "CreateAcls": {"creations": [new]},
            "DescribeAcls": wanted,
            "DeleteAcls": {"filters": [wanted]},
        }
        api = random.choice(list(messages))
        return Ask(api, version(random, api), messages[api])

    while True:
        yield random.choice([describe, describe, describe, alter, alter, alter_all, resources, acls])()


ADMINISTRATION: dict[str, Draw] = {"quotas": quotas_and_users, "cluster": cluster, "brokers": brokers}
