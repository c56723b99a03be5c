"""Conversations of several clients that share a group, drawn from a seed (see ``conversations.py``)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from minikafka.groups.protocol import Subscription
from minikafka.wire.kafka.codec import Message
from tests.foreign.beside_kafka import Ask, Given, Learn, Own
from tests.foreign.conversations import Draw, created, some, topic_id, version

SHORT_MS, LONG_MS = 500, 30_000
"""Rebalance timeouts: a conversation waits for the short one."""


def _learn_joined(label: str) -> Learn:
    def learn(given: Given, answer: Message) -> None:
        now, known = answer["member_id"], given.values.get(("member", label))
        if known not in (None, now):
            given.learn("was", label, known)
        given.learn("member", label, now)
        if not answer["error_code"]:
            given.learn("joined", label, now)
            given.learn("generation", label, answer["generation_id"])
            if given.values.get(("leader", "")) not in (None, answer["leader"]):
                given.learn("leader", "since", answer["generation_id"])
            given.learn("leader", "", answer["leader"])

    return learn


# ---- members of a classic group ------------------------------------------------------------------------------------


def members(random: Random, unique: str) -> Iterator[Ask]:
    """Members, some of them static, wait for each other in one group; tools look at it and delete from it."""
    names, group = [f"{letter}{unique}" for letter in "ij"], f"members{unique}"
    instances = {"a": None, "b": None, "c": None, "s": f"s{unique}", "s again": f"s{unique}", "t": f"t{unique}"}
    clients = random.sample(list(instances), random.choice([2, 3, 4]))
    rebalance_ms = random.choice([LONG_MS, LONG_MS, SHORT_MS])
    yield created(random, *((name, 2, {}) for name in names))
    yield Ask("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": [group]})

    def member(client: str) -> Any:
        return random.choice([Own("member", client, "")] * 12 + [Own("was", client, "bogus")])

    def as_member(client: str) -> Message:
        return {
            "group_id": group,
            "member_id": member(client),
            "generation_id": random.choice([Own("generation", client, -1)] * 10 + [Own("generation", client, 3, -1)]),
            "group_instance_id": random.choice([instances[client]] * 12 + [None, f"nobody{unique}"]),
        }

    def at(api: str, client: str, knows_instances: int) -> int:
        return version(random, api, knows_instances if instances[client] else 0)

    def joined(client: str) -> Ask:
        protocols = random.choice([["range"]] * 6 + [["range", "roundrobin"]] * 3 + [["roundrobin"]])
        # Ours rebalances when a static member comes back with another subscription, Kafka does not.
        topics = some(random, names) if random.random() < 0.1 and not instances[client] else names[:1]
        message = {
            "group_id": group,
            "session_timeout_ms": LONG_MS,
            "rebalance_timeout_ms": rebalance_ms,
            "member_id": member(client),
            "group_instance_id": instances[client],
            "protocol_type": random.choice(["consumer"] * 12 + ["connect"]),
            "protocols": [
                {"name": name, "metadata": Subscription(topics=tuple(topics)).packed()} for name in protocols
            ],
        }
        knows = 5 if instances[client] else random.choice([1, 4, 4, 4])
        return Ask("JoinGroup", version(random, "JoinGroup", knows), message, _learn_joined(client), client)

    def join(client: str) -> Iterator[Ask]:
        # The first one of a new member brings its id.
        yield from (joined(client), joined(client))

    def synced(client: str) -> Ask:
        wrong = random.random() < 0.05
        message = {
            **as_member(client),
            "protocol_type": random.choice(["connect", None]) if wrong else "consumer",
            "protocol_name": "range",
            # Of the leader's alone.
            "assignments": [{"member_id": Own("member", each, ""), "assignment": each.encode()} for each in clients],
        }
        return Ask("SyncGroup", at("SyncGroup", client, 3), message, client=client)

    def sync(client: str) -> Iterator[Ask]:
        yield synced(client)

    def rebalance(_client: str) -> Iterator[Ask]:
        """All join; then all sync."""
        here = random.sample(clients, random.choice([len(clients)] * 3 + [len(clients) - 1]))
        for each in here:
            yield from join(each)
        if rebalance_ms == SHORT_MS and len(here) < len(clients):
            yield described(pause_s=SHORT_MS / 1000 * 1.5)
        for each in random.sample(here, len(here)):
            yield synced(each)

    def heartbeat(client: str) -> Iterator[Ask]:
        yield Ask("Heartbeat", at("Heartbeat", client, 3), as_member(client), client=client)

    def leave(client: str) -> Iterator[Ask]:
        # Kafka rebalances when a member id leaves that was only given out, ours does not: members leave.
        going = [client, *some(random, clients, (0, 0, 1, 2))]
        rows = [
            {
                "member_id": "" if instances[each] and random.random() < 0.4 else Own("joined", each, "bogus"),
                "group_instance_id": random.choice([instances[each]] * 8 + [None, f"nobody{unique}"]),
            }
            for each in going
        ]
        message = {"group_id": group, "member_id": Own("joined", client, "bogus"), "members": rows}
        yield Ask("LeaveGroup", version(random, "LeaveGroup"), message)

    def committed(client: str, who: Message) -> Ask:
        offset = {
            "committed_offset": random.choice([0, 1, 5, -1, -2]),
            "committed_leader_epoch": random.choice([-1, 0, -5]),
        }
        metadata = random.choice(["", "m", None, "x" * 4096, "x" * 4097])
        rows = [
            {
                "name": name,
                "topic_id": topic_id(name),
                "partitions": [{"partition_index": random.choice([0, 1]), **offset, "committed_metadata": metadata}],
            }
            for name in some(random, names)
        ]
        message = {**who, "generation_id_or_member_epoch": who["generation_id"], "topics": rows}
        return Ask("OffsetCommit", at("OffsetCommit", client, 7), message, client=client)

    def commit(client: str) -> Iterator[Ask]:
        yield committed(client, as_member(client))

    def commit_by_hand(client: str) -> Iterator[Ask]:
        who = {"group_id": group, "member_id": "", "generation_id": -1, "group_instance_id": None}
        yield committed(client, who)

    def fetch(_client: str) -> Iterator[Ask]:
        rows = [{"name": name, "topic_id": topic_id(name), "partition_indexes": [0, 1]} for name in names]
        asked = {"group_id": group, "topics": random.choice([rows, rows, None])}
        message = {**asked, "groups": [asked], "require_stable": random.random() < 0.5}
        yield Ask("OffsetFetch", version(random, "OffsetFetch", 2), message)

    def described(pause_s: float = 0.0) -> Ask:
        message = {"groups": [group], "include_authorized_operations": False}
        return Ask("DescribeGroups", version(random, "DescribeGroups"), message, pause_s=pause_s)

    def look(_client: str) -> Iterator[Ask]:
        yield described()
        yield listed(random, unique)

    def delete(_client: str) -> Iterator[Ask]:
        yield Ask("DeleteGroups", version(random, "DeleteGroups"), {"groups_names": some(random, [group, "never"])})
        yield by_hand(group, names[0])

    def delete_offsets(_client: str) -> Iterator[Ask]:
        rows = [{"partition_index": each} for each in some(random, [0, 1])]
        topics = [{"name": name, "partitions": rows} for name in some(random, [*names, "nope"])]
        yield Ask("OffsetDelete", 0, {"group_id": group, "topics": topics})

    kinds = (
        *(rebalance, rebalance, rebalance, join, join, sync, sync, heartbeat, heartbeat, leave, leave),
        *(commit, commit, commit_by_hand, fetch, look, look, delete, delete_offsets),
    )
    yield by_hand(group, names[0])
    while True:
        yield from random.choice(kinds)(random.choice(clients))


# ---- what both have --------------------------------------------------------------------------------------------------


def by_hand(group: str, topic: str) -> Ask:
    """A commit without a member. Kafka describes and lists a group from its first record on."""
    place = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
    message = {"group_id": group, "member_id": "", "generation_id_or_member_epoch": -1}
    return Ask("OffsetCommit", 8, {**message, "topics": [{"name": topic, "partitions": [place]}]})


def listed(random: Random, unique: str) -> Ask:
    """ListGroups with filters; of its answer only the groups of this conversation count."""
    states = ["Stable", "Empty", "PreparingRebalance", "completingrebalance", "Assigning", "Reconciling", "Dead", "x"]
    types = ["classic", "Consumer", "share", "x"]
    message = {
        "states_filter": some(random, states, (0, 0, 1, 2)),
        "types_filter": some(random, types, (0, 0, 1)),
    }
    return Ask("ListGroups", version(random, "ListGroups"), message, only=unique)


CONVERSATIONS: dict[str, Draw] = {"members": members}
