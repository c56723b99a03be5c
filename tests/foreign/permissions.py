"""Conversations of an administrator, who changes access control lists, and of a user: drawn as in ``conversations.py``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from minikafka.wire.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.offer import OFFERS
from tests.foreign.beside_kafka import Ask
from tests.foreign.conversations import batch, created, some, topic_id, version
from tests.kafka.samples import EMPTY_ID, requests

ADMIN, ANN, BOB = "admin", "ann", "bob"
GENERATION = frozenset({"generation_id", "member_epoch"})
SAMPLE_ID = b"the sample's id."

NAMED = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
ALL_ACLS: Message = {
    "resource_type_filter": ResourceType.ANY,
    "pattern_type_filter": PatternType.ANY,
    "operation": AclOperation.ANY,
    "permission_type": AclPermission.ANY,
}


def spread(value: Any, names: Sequence[str], others: dict[str, str]) -> Any:
    """A sample of a request with other names; what it says of its topic is said of each of ``names``."""
    if isinstance(value, dict):
        return {key: spread(each, names, others) for key, each in value.items()}
    if isinstance(value, list):
        return [
            spread(each, [name], others)
            for each in value
            for name in (names if each == "t" or (isinstance(each, dict) and "t" in each.values()) else names[:1])
        ]
    if value == SAMPLE_ID:
        return topic_id(names[0])
    if not isinstance(value, str):
        return value
    return names[0] if value == "t" else others.get(value.partition("-")[0], value)


def permissions(random: Random, unique: str) -> Iterator[Ask]:
    """Entries are created, described and deleted, and a user's requests are allowed and denied."""
    names, group, transactional_id = [f"{letter}{unique}" for letter in "ab"], f"g{unique}", f"x{unique}"
    others = {"g": group, "tx": transactional_id, "made": f"c{unique}", "join": group, "consumer": f"h{unique}"}
    yield Ask("DeleteAcls", 3, {"filters": [ALL_ACLS]}, client=ADMIN)
    yield created(random, *((name, 2, {}) for name in names))._replace(client=ADMIN)
    for kind, key in ((0, group), (1, transactional_id)):
        yield Ask("FindCoordinator", 4, {"key_type": kind, "coordinator_keys": [key]}, client=ADMIN)
    rows = [{"name": name, "partition_data": [{"index": 0, "records": [batch(2)]}]} for name in names]
    yield Ask("Produce", 11, {"acks": -1, "timeout_ms": 5000, "topic_data": rows}, client=ADMIN)

    def resource() -> tuple[int, str, int]:
        """Type, name and type of the pattern."""
        kind = random.choice([*NAMED, ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.CLUSTER])
        if kind == ResourceType.CLUSTER:
            return kind, CLUSTER_NAME, PatternType.LITERAL
        name = {ResourceType.GROUP: group, ResourceType.TRANSACTIONAL_ID: transactional_id}.get(kind, names[0])
        name = random.choice([name, name, *(names if kind == ResourceType.TOPIC else [])])
        prefix = random.choice([name[:1], name[:3], name])
        return random.choice(
            [
                *[(kind, name, PatternType.LITERAL)] * 3,
                (kind, WILDCARD, PatternType.LITERAL),
                (kind, prefix, PatternType.PREFIXED),
            ]
        )

    def entry() -> Message:
        kind, name, pattern = resource()
        operations = [
            *OPERATIONS.get(ResourceType(kind), (AclOperation.WRITE, AclOperation.DESCRIBE)),
            AclOperation.ALL,
        ]
        made: Message = {
            "resource_type": kind,
            "resource_name": name,
            "resource_pattern_type": pattern,
            "principal": random.choice([f"User:{ANN}"] * 5 + ["User:*", f"User:{BOB}"]),
            "host": random.choice(["*", "*", "*", "127.0.0.1", "10.0.0.1"]),
            "operation": random.choice(operations),
            "permission_type": random.choice([AclPermission.ALLOW] * 4 + [AclPermission.DENY]),
        }
        if random.random() < 0.1:
            # Kafka closes the connection at numbers that it does not know.
            odd = (
                {"resource_name": ""},
                {"resource_type": 4},
                {"resource_type": 6},
                {"principal": ANN},
                {"principal": ""},
            )
            made |= random.choice([*odd, {"host": "localhost"}, {"operation": random.randint(2, 15)}])
        return made

    def create() -> Ask:
        message = {"creations": [entry() for _ in range(random.choice([0, 1, 2, 4, 6]))]}
        return Ask("CreateAcls", version(random, "CreateAcls"), message, client=ADMIN)

    def wanted() -> Message:
        kind, name, pattern = resource()
        return {
            "resource_type_filter": random.choice([kind, kind, ResourceType.ANY]),
            "resource_name_filter": random.choice([None, None, name, name, name, WILDCARD, ""]),
            "pattern_type_filter": random.choice([pattern, PatternType.ANY, PatternType.MATCH]),
            "principal_filter": random.choice([None, None, None, f"User:{ANN}", ANN]),
            "host_filter": random.choice([None, None, None, "*", "localhost", ""]),
            "operation": random.choice([AclOperation.ANY, AclOperation.ANY, AclOperation.READ]),
            "permission_type": random.choice([AclPermission.ANY, AclPermission.ANY, AclPermission.ALLOW]),
        }

    def describe() -> Ask:
        return Ask("DescribeAcls", version(random, "DescribeAcls"), wanted(), client=ADMIN)

    def delete() -> Ask:
        message = {"filters": [wanted() for _ in range(random.choice([1, 1, 2]))]}
        return Ask("DeleteAcls", version(random, "DeleteAcls"), message, client=ADMIN)

    def request() -> Ask:
        offer = random.choice([each for each in OFFERS.values() if each.name != "ListGroups"])
        asked = some(random, [*names, f"missing{unique}"], (1, 2, 3))
        more = {
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": random.random() < 0.5,
            "include_topic_authorized_operations": random.random() < 0.5,
        }
        message = spread(requests(SAMPLE_ID)[offer.name], asked, others)
        # Version 0 of UpdateFeatures cannot only validate.
        lowest = {"UpdateFeatures": 1, "Metadata": 4}.get(offer.name, 0)
        if offer.name == "Metadata" and random.random() < 0.5:
            lowest, message["topics"] = 12, [{"name": None, "topic_id": topic_id(name)} for name in asked]
        elif offer.name == "Metadata":
            message["topics"] = [{"name": name, "topic_id": EMPTY_ID} for name in asked]
        return Ask(offer.name, version(random, offer.name, lowest), message | more, client=ANN, blurred=GENERATION)

    while True:
        yield random.choice([create, create, describe, delete] + [request] * 12)()
