"""Conversations about committed offsets, with members and strangers: drawn from a seed as in ``conversations.py``."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from minikafka.wire.kafka.codec import Message
from tests.foreign.beside_kafka import Ask, Given, Own
from tests.foreign.conversations import SUBSCRIPTION, Draw, created, learn_producer, some, topic_id, version
from tests.foreign.group_conversations import CHOSEN, LONG_MS, by_hand

CLASSIC, CONSUMER, SIMPLE, MISSING = "classic", "consumer", "simple", "missing"
CONSUMER_SINCE = 9
"""Version of OffsetCommit and OffsetFetch that knows members of the consumer protocol."""


def offsets(random: Random, unique: str) -> Iterator[Ask]:
    """Offsets of a classic group, one of the consumer protocol, one without members, and one that there is not."""
    names = [f"{letter}{unique}" for letter in "vw"]
    groups = {each: f"{each}{unique}" for each in (CLASSIC, CONSUMER, SIMPLE, MISSING)}
    instance = random.choice([None, f"s{unique}"])
    transactional = f"x{unique}"
    yield created(random, *((name, 2, {}) for name in names))
    yield Ask("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": list(groups.values())})
    yield Ask("FindCoordinator", 4, {"key_type": 1, "coordinator_keys": [transactional]})
    for kind in (CLASSIC, CONSUMER, SIMPLE):
        yield by_hand(groups[kind], names[0])

    def learn_member(given: Given, answer: Message) -> None:
        given.learn("member", CLASSIC, answer["member_id"])
        if not answer["error_code"]:
            given.learn("epoch", CLASSIC, answer["generation_id"])

    def learn_beat(given: Given, answer: Message) -> None:
        given.learn("member", CONSUMER, answer["member_id"])
        given.learn("epoch", CONSUMER, answer["member_epoch"])

    def join() -> Iterator[Ask]:
        message = {
            "group_id": groups[CLASSIC],
            "session_timeout_ms": LONG_MS,
            "rebalance_timeout_ms": LONG_MS,
            "member_id": Own("member", CLASSIC, ""),
            "group_instance_id": instance,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        }
        for _ in range(2):
            yield Ask("JoinGroup", version(random, "JoinGroup", 5), message, learn_member, blurred=CHOSEN)

    def sync() -> Iterator[Ask]:
        member = Own("member", CLASSIC, "")
        message = {
            "group_id": groups[CLASSIC],
            "generation_id": Own("epoch", CLASSIC, -1),
            "member_id": member,
            "group_instance_id": instance,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": [{"member_id": member, "assignment": b"mine"}],
        }
        yield Ask("SyncGroup", version(random, "SyncGroup", 3), message)

    def beat() -> Iterator[Ask]:
        message = {
            "group_id": groups[CONSUMER],
            "member_id": Own("member", CONSUMER, f"m{unique}"),
            "member_epoch": Own("epoch", CONSUMER, 0),
            "instance_id": instance,
            "rebalance_timeout_ms": LONG_MS,
            "subscribed_topic_names": names[:1],
            "topic_partitions": [],
        }
        yield Ask("ConsumerGroupHeartbeat", 1, message, learn_beat, blurred=CHOSEN)

    yield from join()
    yield from sync()
    yield from beat()
    message = {"transactional_id": transactional, "transaction_timeout_ms": 60_000}
    yield Ask("InitProducerId", 4, message, learn_producer(transactional))

    def committer(kind: str) -> tuple[Any, Any]:
        """Member id and epoch: its own, or a stranger's."""
        if kind in {SIMPLE, MISSING} or random.random() < 0.15:
            return random.choice([("", -1), ("", -1), ("", 0), ("bogus", 0), ("bogus", -1), ("", 5)])
        member = random.choice([Own("member", kind, "")] * 6 + ["bogus"])
        return member, Own("epoch", kind, -1, random.choice([0] * 6 + [1, -1]))

    def rows() -> list[Message]:
        def partition(number: int) -> Message:
            return {
                "partition_index": number,
                "committed_offset": random.choice([0, 1, 5, 2**40, -1]),
                "committed_leader_epoch": random.choice([-1, -1, 0, 7]),
                "committed_metadata": random.choice(["", "m", None, "x" * 4096, "x" * 4097, "\u00e9" * 3000]),
            }

        odd = some(random, [f"nope{unique}", "a/b", ""], (0, 0, 0, 1))
        asked = some(random, [*names, *odd], (1, 1, 2))
        twice = random.random() < 0.02
        # Kafka answers topics of one id as one.
        without = random.choice([*[None] * 8, *asked])
        return [
            {
                "name": name,
                "topic_id": bytes(16) if name == without else topic_id(name),
                "partitions": list(map(partition, some(random, [0, 1, 0, 1, 9, -1] if twice else [0, 1, 9, -1]))),
            }
            for name in asked
        ]

    def commit() -> Iterator[Ask]:
        kind = random.choice(list(groups))
        member, epoch = committer(kind)
        message = {
            "group_id": random.choice([groups[kind]] * 20 + [""]),
            "member_id": member,
            "generation_id_or_member_epoch": epoch,
            "retention_time_ms": random.choice([-1, -1, 1, 100_000]),
            "topics": rows(),
        }
        lowest = random.choice([2, CONSUMER_SINCE])
        asked = version(random, "OffsetCommit", lowest)
        if asked >= 7 and kind == CLASSIC:
            message["group_instance_id"] = random.choice([instance] * 8 + [None, "nobody"])
        yield Ask("OffsetCommit", asked, message)

    def asked_of(kind: str) -> Message:
        member, epoch = committer(kind)
        asked = some(random, [*names, *some(random, [f"nope{unique}"], (0, 0, 1))], (1, 2, 3))
        without = random.choice([*[None] * 8, *asked])
        topics = [
            {
                "name": name,
                "topic_id": bytes(16) if name == without else topic_id(name),
                "partition_indexes": random.choice([[0], [0, 1], [1, 9], [], [-1]]),
            }
            for name in asked
        ]
        return {
            "group_id": groups[kind],
            "member_id": random.choice([None, member, member]),
            "member_epoch": random.choice([epoch, epoch, -1]),
            "topics": random.choice([topics, topics, topics, [], None]),
        }

    def fetch() -> Iterator[Ask]:
        kinds = random.choice([[each] for each in groups] + [list(groups), [SIMPLE, CLASSIC]])
        asked = list(map(asked_of, kinds))
        message = {**asked[0], "groups": asked, "require_stable": random.random() < 0.3}
        # Version 1 cannot ask for all topics.
        yield Ask("OffsetFetch", version(random, "OffsetFetch", random.choice([2, 8, CONSUMER_SINCE])), message)

    def delete() -> Iterator[Ask]:
        # Kafka answers a topic without partitions if it does not exist, and only then.
        numbers = [[0], [0, 1], [9]]
        topics = [
            {"name": name, "partitions": [{"partition_index": each} for each in random.choice(numbers + none)]}
            for name, none in some(random, [*((name, [[]]) for name in names), (f"nope{unique}", [])], (0, 1, 1, 2))
        ]
        group = random.choice([*groups.values(), ""])
        yield Ask("OffsetDelete", 0, {"group_id": group, "topics": topics})

    def as_producer() -> Message:
        return {
            "transactional_id": transactional,
            "producer_id": Own("producer", transactional, -1),
            "producer_epoch": Own("epoch", transactional, -1, random.choice([0] * 12 + [1])),
        }

    def add() -> Iterator[Ask]:
        group = groups[random.choice([CLASSIC, CONSUMER, SIMPLE])]
        yield Ask("AddOffsetsToTxn", version(random, "AddOffsetsToTxn"), {**as_producer(), "group_id": group})

    def commit_in_transaction() -> Iterator[Ask]:
        kind = random.choice([CLASSIC, CONSUMER, SIMPLE])
        member, epoch = committer(kind)
        asked = version(random, "TxnOffsetCommit", random.choice([0, 3, 3]))
        message = {**as_producer(), "group_id": groups[kind], "topics": rows()}
        if asked >= 3:
            message |= {"member_id": member, "generation_id": epoch}
            message["group_instance_id"] = random.choice([instance if kind == CLASSIC else None] * 8 + ["nobody"])
        yield Ask("TxnOffsetCommit", asked, message)

    def end() -> Iterator[Ask]:
        message = {**as_producer(), "committed": random.random() < 0.6}
        yield Ask("EndTxn", version(random, "EndTxn"), message, learn_producer(transactional))

    def describe() -> Iterator[Ask]:
        message = {"groups": list(groups.values())[:3], "include_authorized_operations": False}
        yield Ask("DescribeGroups", version(random, "DescribeGroups"), message)

    kinds = (
        *(commit, commit, commit, commit, fetch, fetch, fetch, fetch, delete, delete, add, add),
        *(commit_in_transaction, commit_in_transaction, commit_in_transaction, end, end, describe, join, sync, beat),
    )
    while True:
        yield from random.choice(kinds)()


OFFSETS: dict[str, Draw] = {"offsets": offsets}
