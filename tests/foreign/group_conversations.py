"""Conversations of several clients that share a group, drawn from a seed (see ``conversations.py``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from minikafka.groups.protocol import Assignment, Subscription
from minikafka.types import TopicPartition
from minikafka.wire.kafka.codec import Message
from tests.foreign.beside_kafka import Ask, Given, Learn, Own
from tests.foreign.conversations import Draw, created, some, topic_id, version

SHORT_MS, SESSION_MS, LONG_MS = 500, 800, 30_000
"""Timeouts of rebalances and sessions: a conversation waits for the short ones, which do not end at the same time."""


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


def expiring(random: Random, unique: str) -> Iterator[Ask]:
    """As :func:`members`, but sessions of some members expire, and more of them read several topics."""
    return members(random, unique, are_expiring=True)


def members(random: Random, unique: str, *, are_expiring: bool = False) -> Iterator[Ask]:
    """Members, some of them static, wait for each other in one group; tools look at it and delete from it."""
    names, group = [f"{letter}{unique}" for letter in "ij"], f"members{unique}"
    instances = {"a": None, "b": None, "c": None, "s": f"s{unique}", "s again": f"s{unique}", "t": f"t{unique}"}
    if are_expiring:
        instances |= {"d": None, "e": None}
    clients = random.sample(list(instances), random.choice([3, 4, 5] if are_expiring else [2, 3, 4]))
    rebalance_ms = random.choice([LONG_MS, LONG_MS, SHORT_MS])
    sessions_ms = {each: random.choice([LONG_MS, SESSION_MS]) if are_expiring else LONG_MS for each in clients}
    # Those of one instance are one member.
    sessions_ms["s again"] = sessions_ms.get("s", LONG_MS)
    read = {each: some(random, names, (1, 2)) if are_expiring else names[:1] for each in clients}
    read["s again"] = read.get("s", names[:1])
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
        topics = some(random, names) if random.random() < 0.1 and not instances[client] else read[client]
        message = {
            "group_id": group,
            "session_timeout_ms": sessions_ms[client],
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

    def wait(_client: str) -> Iterator[Ask]:
        """Time passes; some members are heard meanwhile."""
        alive = some(random, clients, (0, 1, 2))
        for _ in range(3):
            yield described(pause_s=SESSION_MS / 1000 * 0.4)
            for each in alive:
                yield from heartbeat(each)

    kinds = (
        *(rebalance, rebalance, rebalance, join, join, sync, sync, heartbeat, heartbeat, leave, leave),
        *(commit, commit, commit_by_hand, fetch, look, look, delete, delete_offsets),
        *((wait, wait, wait) if are_expiring else ()),
    )
    yield by_hand(group, names[0])
    while True:
        yield from random.choice(kinds)(random.choice(clients))


# ---- the consumer protocol -------------------------------------------------------------------------------------------

CHOSEN = frozenset(
    {"member_epoch", "group_epoch", "assignment_epoch", "generation_id", "topic_partitions", "assignment"}
)
"""Epochs: Kafka's begin at 2. Which partitions a member gets depends on ids that the broker makes, how many does not."""


def _learn_beat(label: str, *, is_vague: bool = False) -> Learn:
    def learn(given: Given, answer: Message) -> None:
        given.learn("member", label, answer["member_id"])
        epoch, known = max(0, answer["member_epoch"]), given.values.get(("epoch", label), 0)
        if known and epoch != known and not is_vague:
            given.learn("former epoch", label, known)
        given.learn("epoch", label, epoch)
        if answer["assignment"] is not None or answer["member_epoch"] <= 0:
            given.learn("assigned", label, (answer["assignment"] or {}).get("topic_partitions", []))

    return learn


def _learn_left(label: str) -> Learn:
    return lambda given, _answer: given.learn("member", label, "")


def _learn_synced(label: str) -> Learn:
    def learn(given: Given, answer: Message) -> None:
        given.learn("owned", label, Assignment.unpacked(answer["assignment"]).partitions)

    return learn


def slow_consumers(random: Random, unique: str) -> Iterator[Ask]:
    """As :func:`consumers`, but members that do not give up their partitions in time are removed."""
    return consumers(random, unique, rebalance_ms=SHORT_MS)


def consumers(random: Random, unique: str, *, rebalance_ms: int = LONG_MS) -> Iterator[Ask]:
    """Members of the consumer protocol (KIP-848), among them classic ones: the group changes its protocol and back."""
    names, group = [f"{letter}{unique}" for letter in "kl"], f"consumers{unique}"
    instances = {"a": None, "b": None, "c": None, "s": f"s{unique}", "s again": f"s{unique}"}
    clients = random.sample(list(instances), random.choice([1, 2, 3]))
    classics = random.sample(["old", "older"], random.choice([0, 0, 1, 2]))
    assignor = random.choice(["range", "cooperative-sticky"])
    # One for all: ours forgets what a static member's former process said, Kafka does not.
    server_assignor = random.choice([None, "uniform", "range"] if len(clients + classics) <= 2 else [None, "uniform"])
    versions = {each: version(random, "ConsumerGroupHeartbeat") for each in clients}
    yield created(random, *((name, 2, {}) for name in names))
    yield Ask("FindCoordinator", 4, {"key_type": 0, "coordinator_keys": [group]})
    yield by_hand(group, names[0])

    def member(client: str) -> Own:
        return Own("member", client, f"{client}{unique}" if versions.get(client) else "")

    def beat(client: str, message: Message) -> Ask:
        whole = {"group_id": group, "member_id": member(client), "instance_id": instances[client], **message}
        return Ask("ConsumerGroupHeartbeat", versions[client], whole, _learn_beat(client), client, blurred=CHOSEN)

    def subscribed() -> Message:
        regex = random.choice([None, None, ""])
        # With more than two members it would depend on their ids which of them has more.
        several = [names, names[1:]] if len(clients + classics) <= 2 else []
        topics = random.choice([*[names[:1]] * 3, *several, ["nope"], []])
        return {"subscribed_topic_names": topics, "subscribed_topic_regex": regex}

    inside: set[str] = set()
    by_expression: set[str] = set()

    def join(client: str) -> Iterator[Ask]:
        """Once, until it leaves: Kafka takes a member that joins again by its word that it owns nothing, ours does not."""
        wrong = random.choice([{}] * 30 + list(WRONG_JOINS if versions[client] else WRONG_JOINS_0))
        if client in inside:
            yield from stay(client)
            return
        if not wrong:
            inside.add(client)
            if versions[client] and not instances[client] and not by_expression and random.random() < 0.3:
                by_expression.add(client)
                yield from match(client)
                return
        message = {"member_epoch": 0, "rebalance_timeout_ms": rebalance_ms, "topic_partitions": [], **subscribed()}
        yield beat(client, {**message, "server_assignor": server_assignor, **wrong})

    def match(client: str) -> Iterator[Ask]:
        """Join with a regular expression, which Kafka looks up beside the heartbeats: ours has the topics at once.

        Kafka looks up a group's next one after ten seconds at the earliest: a conversation has one.
        """
        regexes = [f"k{unique}", f"(k|no){unique}", "no.*"]
        regex = random.choice(regexes if len(clients + classics) > 2 else [*regexes, f"[kl]{unique}", ".*" + unique])
        wanted = {"subscribed_topic_names": random.choice([[], names[:1]]), "subscribed_topic_regex": regex}
        message = {"rebalance_timeout_ms": rebalance_ms, "server_assignor": server_assignor, **wanted}
        joining = {**message, "member_epoch": 0, "topic_partitions": []}
        staying = {**message, "member_epoch": Own("epoch", client, 77), "topic_partitions": Own("assigned", client, [])}
        vague = {"is_vague": True, "learn": _learn_beat(client, is_vague=True)}
        yield beat(client, joining)._replace(pause_s=0.1, **vague)
        yield beat(client, staying)._replace(**vague)
        yield beat(client, staying)

    def stay(client: str) -> Iterator[Ask]:
        epoch = random.choice(
            [Own("epoch", client, 77)] * 12 + [Own("epoch", client, 77, 1), Own("former epoch", client, 77)]
        )
        owned = random.choice([Own("assigned", client, [])] * 6 + [None, []])
        more = random.choice([{}, {}, {"rebalance_timeout_ms": rebalance_ms}, subscribed()])
        yield beat(client, {"member_epoch": epoch, "rebalance_timeout_ms": -1, "topic_partitions": owned, **more})

    def settle(_client: str) -> Iterator[Ask]:
        """All take what they are assigned and give up what they are not."""
        for each in (clients + classics) * 2:
            if each in classics:
                yield from stay_classic(each)
            else:
                owned = {"rebalance_timeout_ms": -1, "topic_partitions": Own("assigned", each, [])}
                yield beat(each, {"member_epoch": Own("epoch", each, 77), **owned})

    def leave(client: str) -> Iterator[Ask]:
        epoch = random.choice([-1, -1, -2, -3])
        if epoch == -1 or (epoch == -2 and instances[client]):
            inside.discard(client)
        yield beat(client, {"member_epoch": epoch})
        yield from rejoin_classics(client)

    def rejoin_classics(_client: str) -> Iterator[Ask]:
        """All of them: an upgrade waits in ours until the classic group is stable, in Kafka it does not."""

        def subscription(client: str) -> Callable[[Given], bytes]:
            return lambda given: Subscription(
                topics=tuple(names[:1]), owned=given.values.get(("owned", client), ())
            ).packed()

        for client in classics * 3:
            message = {
                "group_id": group,
                "session_timeout_ms": LONG_MS,
                "rebalance_timeout_ms": rebalance_ms,
                "member_id": Own("member", client, ""),
                "protocol_type": "consumer",
                "protocols": [{"name": assignor, "metadata": subscription(client)}],
            }
            at = version(random, "JoinGroup", 4)
            yield Ask("JoinGroup", at, message, _learn_joined(client), client, blurred=CHOSEN)
        for client in classics:
            yield from sync_classic(client)

    def as_classic(client: str, *plus: int) -> Message:
        generation = Own("generation", client, -1, random.choice([0] * 10 + list(plus)))
        return {"group_id": group, "generation_id": generation, "member_id": Own("member", client, "")}

    def sync_classic(client: str, *plus: int) -> Iterator[Ask]:
        rows = [{"member_id": Own("member", each, ""), "assignment": dealt(each)} for each in classics]
        protocol = {"protocol_type": "consumer", "protocol_name": assignor}
        message = {**as_classic(client, *plus), **protocol, "assignments": rows}
        at = version(random, "SyncGroup")
        yield Ask("SyncGroup", at, message, _learn_synced(client), client, blurred=CHOSEN)

    def dealt(client: str) -> bytes:
        """Its part of the partitions, while the group is a classic one."""
        mine = (0, 1)[classics.index(client) :: len(classics)]
        return Assignment(partitions=tuple(TopicPartition(names[0], each) for each in mine)).packed()

    def stay_classic(client: str) -> Iterator[Ask]:
        yield Ask("Heartbeat", version(random, "Heartbeat"), as_classic(client, -1), client=client)
        yield from random.choice([rejoin_classics(client), sync_classic(client, -1)])

    def leave_classic(client: str) -> Iterator[Ask]:
        rows = [{"member_id": Own("joined", client, "bogus")}]
        message = {"group_id": group, "member_id": Own("joined", client, "bogus"), "members": rows}
        yield Ask("LeaveGroup", version(random, "LeaveGroup"), message, _learn_left(client))
        yield from rejoin_classics(client)

    def commit(client: str) -> Iterator[Ask]:
        kind = "generation" if client in classics else "epoch"
        offset = {"committed_offset": random.choice([0, 1, 5]), "committed_leader_epoch": -1, "committed_metadata": ""}
        rows = [
            {
                "name": name,
                "topic_id": topic_id(name),
                "partitions": [{"partition_index": random.choice([0, 1]), **offset}],
            }
            for name in some(random, names)
        ]
        message = {
            "group_id": group,
            "generation_id_or_member_epoch": Own(kind, client, -1, random.choice([0] * 6 + [1, -1])),
            "member_id": random.choice([member(client)] * 6 + ["bogus", ""]),
            "topics": rows,
        }
        yield Ask("OffsetCommit", version(random, "OffsetCommit", random.choice([2, 9, 9])), message)

    def fetch(client: str) -> Iterator[Ask]:
        rows = [{"name": name, "topic_id": topic_id(name), "partition_indexes": [0, 1]} for name in names]
        kind = "generation" if client in classics else "epoch"
        who = {"member_id": member(client), "member_epoch": Own(kind, client, -1, random.choice([0] * 6 + [1, -1]))}
        asked = {
            "group_id": group,
            **random.choice([{**who, "member_id": "bogus"}, {"member_id": None, "member_epoch": -1}, who, who, who]),
            "topics": random.choice([rows, rows, None]),
        }
        message = {**asked, "groups": [asked], "require_stable": random.random() < 0.5}
        yield Ask("OffsetFetch", version(random, "OffsetFetch", random.choice([2, 9, 9])), message)

    def look(_client: str) -> Iterator[Ask]:
        at = version(random, "ConsumerGroupDescribe")
        yield Ask("ConsumerGroupDescribe", at, {"group_ids": [group, "never"]}, blurred=CHOSEN)
        yield Ask("DescribeGroups", version(random, "DescribeGroups"), {"groups": [group]})
        yield listed(random, unique)

    def wait(client: str) -> Iterator[Ask]:
        for ask in look(client):
            yield ask._replace(pause_s=SHORT_MS / 1000 * 0.5)

    def delete(_client: str) -> Iterator[Ask]:
        yield Ask("DeleteGroups", version(random, "DeleteGroups"), {"groups_names": [group]})
        yield by_hand(group, names[0])

    def delete_offsets(_client: str) -> Iterator[Ask]:
        topics = [{"name": name, "partitions": [{"partition_index": 0}]} for name in some(random, [*names, "nope"])]
        yield Ask("OffsetDelete", 0, {"group_id": group, "topics": topics})

    kinds = (
        *(join, join, join, stay, stay, settle, settle, settle, leave, commit, fetch, look, look),
        delete,
        delete_offsets,
        *((wait, wait) if rebalance_ms == SHORT_MS else ()),
    )
    of_classics = (rejoin_classics, rejoin_classics, stay_classic, stay_classic, leave_classic, commit, fetch)
    while True:
        if classics and random.random() < 0.4:
            yield from random.choice(of_classics)(random.choice(classics))
        else:
            yield from random.choice(kinds)(random.choice(clients))


WRONG_JOINS_0: tuple[Message, ...] = (
    {"rebalance_timeout_ms": -1},
    {"topic_partitions": None},
    {"subscribed_topic_names": None, "subscribed_topic_regex": None},
    {"instance_id": ""},
    {"rack_id": ""},
    {"group_id": ""},
    {"server_assignor": ""},
    {"server_assignor": "bogus"},
)
WRONG_JOINS = (*WRONG_JOINS_0, {"subscribed_topic_regex": "("}, {"subscribed_topic_regex": "k(?=l)"})

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


CONVERSATIONS: dict[str, Draw] = {
    "members": members,
    "expiring": expiring,
    "consumers": consumers,
    "slow consumers": slow_consumers,
}
