"""``/v1/groups``: the list of groups, one group, its lag, and its deletion; also what all routes of groups share.

Lag is the high watermark minus the committed offset. A group that does not exist is 404; it begins with its first
member or its first commit. Partitions of several topics are written as in the command line's JSON: ``[{"topic": "t",
"partitions": [0, 1]}]``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from minikafka.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    InvalidGroupId,
    NetworkException,
    NonEmptyGroup,
    NotCoordinator,
    ProtocolError,
)
from minikafka.groups.group import State
from minikafka.groups.protocol import Assignment, Subscription, by_topic
from minikafka.rest.body import FORM_NOTE, Members, kind_of, parsed_object, pointer, read_body
from minikafka.rest.coordinators import coordinator_members, coordinator_of, from_all, from_coordinator, look_up
from minikafka.rest.parameters import FORWARD, INT32_MAX, Parsed, Text, states_among
from minikafka.rest.route import Answer, Route
from minikafka.rest.schema import Schema, flag, many, nullable, one_of, ref, shape, text, whole
from minikafka.rest.visit import Reply, Visit
from minikafka.types import Offset, TopicPartition
from minikafka.web.problems import Fault
from minikafka.wire import group_messages as g
from minikafka.wire.group_messages import DescribedMember
from minikafka.wire.limits import shown
from minikafka.wire.messages import LATEST

# As many as one OffsetCommit names (wire/apis.py).
PARTITION_COUNT_MAX = 2_500

GROUP = Text(
    name="group",
    place="path",
    description="The group's name (group.id).",
    pattern=r"[\s\S]+",
    needed="a name",
    length_max=32_767,
    example="billing",
)
MEMBER = Text(
    name="member",
    place="path",
    description="The id that the coordinator gave to the member.",
    pattern=r"[\s\S]+",
    needed="a member id",
    length_max=32_767,
    example="curl-2f1c0d8f7f3f4e6b",
)


async def document_of(visit: Visit) -> tuple[dict[str, Any], dict[str, str]]:
    """The body as an object, and the note for who sent it as a form."""
    kind = kind_of(visit.http)
    document = parsed_object(await read_body(visit.http, visit.host, visit.admission), kind, visit.http)
    return document, {"note": FORM_NOTE} if kind == "form" else {}


# ---- in --------------------------------------------------------------------------------------------------------------


def partitions_in(members: Members, name: str, faults: list[Fault]) -> list[TopicPartition]:
    """``[{"topic", "partitions"}]``; faults are noted."""
    found: dict[TopicPartition, None] = {}
    for at, given in enumerate(members.list(name)):
        if type(given) is not dict:
            faults.append({"pointer": pointer(name, at), "detail": f"an object is needed, not {shown(given)}"})
            continue
        inner = Members(given, pointer(name, at), faults)
        topic = inner.text("topic", required=True)
        numbers = inner.list("partitions")
        inner.done()
        if not numbers or any(type(each) is not int or not 0 <= each <= INT32_MAX for each in numbers):
            inner.wrong("partitions", f"a list of partition numbers is needed, not {shown(given.get('partitions'))}")
            continue
        found.update(dict.fromkeys(TopicPartition(topic, each) for each in numbers))
    return list(found)


# ---- out -------------------------------------------------------------------------------------------------------------


def partitions_out(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    """Sorted."""
    return [{"topic": topic, "partitions": numbers} for topic, numbers in by_topic(partitions).items()]


def assigned_to(member: DescribedMember) -> tuple[TopicPartition, ...]:
    """What a member has; nothing for one of another protocol, whose bytes are not ours to read."""
    try:
        return Assignment.unpacked(member.assignment).partitions
    except ValueError:
        return ()


def topics_of(member: DescribedMember) -> list[str]:
    """What a member subscribes to, if that is known."""
    try:
        return sorted(Subscription.unpacked(member.metadata).topics) if member.metadata else []
    except ValueError:
        return []


# ---- schemas ---------------------------------------------------------------------------------------------------------

PARTITIONS: Schema = many(shape(topic=ref("TopicName"), partitions=many(ref("PartitionNumber"))), "By topic, sorted.")
PARTITIONS_EXAMPLE = [{"topic": "orders", "partitions": [0, 1]}]
NOTE = text("What could be asked better.")
INSTANCE = nullable(text("Of a static member (group.instance.id)."))
GENERATION = whole("Of the group: one more with each rebalance.", minimum=-1, maximum=INT32_MAX)
COORDINATOR = shape(
    "The broker that coordinates the group.", optional=("url",), id=ref("NodeId"), url=text("Where it listens.")
)
COORDINATOR_EXAMPLE = {"id": 2, "url": "http://127.0.0.1:9093"}
LAG: dict[str, Schema] = {
    "topic": ref("TopicName"),
    "partition": ref("PartitionNumber"),
    "committed": nullable(whole("The next offset that the group will read; null: it has committed none.")),
    "log_end": nullable(whole("The high watermark; null: its leader cannot be asked now.")),
    "lag": nullable(whole("Records between the two; null: one of them is not known.")),
}
LAG_EXAMPLE = {"topic": "orders", "partition": 0, "committed": 41, "log_end": 44, "lag": 3}
DELETED = flag("It is gone.")


STATES = tuple(each.value for each in State)

COORDINATOR_PROBLEMS: tuple[type[ProtocolError], ...] = (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidGroupId,
    NetworkException,
    NotCoordinator,
)
"""What can go wrong wherever a group's coordinator is asked."""


STATE: Parsed[tuple[str, ...]] = Parsed(
    name="state",
    description="Only groups in these states: " + ", ".join(f"`{each}`" for each in STATES) + "; several with commas.",
    default=(),
    reader=partial(states_among, STATES),
    described={"type": "string", "pattern": f"^(?:{'|'.join(STATES)})(?:,(?:{'|'.join(STATES)}))*$"},
    example="Stable,Empty",
)


async def get_groups(visit: Visit) -> Reply:
    """Every group of every coordinator, in short; with ``?forward=never`` only of this broker."""
    found = await from_all(visit, g.ListGroupsRequest(states=visit[STATE]), "groups")
    groups = sorted((each for part in found.values() for each in part.groups), key=lambda group: group.group_id)
    return Reply(
        {
            "groups": [
                {"group": each.group_id, "protocol_type": each.protocol_type, "state": each.state} for each in groups
            ]
        }
    )


# ---- one group -------------------------------------------------------------------------------------------------------


async def described(visit: Visit, group: str) -> g.DescribedGroup:
    """The group as its coordinator knows it. GroupIdNotFound when it does not exist."""
    response: g.DescribeGroupsResponse = await from_coordinator(
        visit,
        group,
        g.DescribeGroupsRequest(groups=(group,)),
        failed=lambda answer: next((each for each in (answer, *answer.groups) if each.error_code), None),
    )
    return response.groups[0]


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is in one partition; None: not known."""

    partition: TopicPartition
    committed: g.FetchedOffset | None
    log_end: Offset | None

    @property
    def lag(self) -> int | None:
        if self.committed is None or self.log_end is None:
            return None
        return max(0, self.log_end - self.committed.offset)

    def out(self) -> dict[str, Any]:
        """As the command line's ``describe -o json`` has it."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "committed": self.committed.offset if self.committed is not None else None,
            "log_end": self.log_end,
            "lag": self.lag,
        }


async def committed_of(visit: Visit, group: str) -> dict[TopicPartition, g.FetchedOffset]:
    """All that the group has committed."""
    response: g.OffsetFetchResponse = await from_coordinator(visit, group, g.OffsetFetchRequest(group_id=group))
    return {TopicPartition(each.topic, each.partition): each for each in response.partitions if each.offset >= 0}


async def lags_of(visit: Visit, group: g.DescribedGroup) -> list[Lag]:
    """All partitions that the group has committed or that a member has, in order."""
    committed = await committed_of(visit, group.group_id)
    assigned = {each for member in group.members for each in assigned_to(member)}
    partitions = sorted(assigned | committed.keys())
    ends = await look_up(visit, dict.fromkeys(partitions, LATEST))
    return [Lag(each, committed.get(each), ends.get(each)) for each in partitions]


async def get_group(visit: Visit) -> Reply:
    """One group: its state, its members and what each of them has, its offsets and how far behind they are."""
    group = await described(visit, visit[GROUP])
    lags = await lags_of(visit, group)
    return Reply(
        {
            "group": group.group_id,
            "state": group.state,
            "generation": group.generation_id,
            "protocol_type": group.protocol_type,
            "assignor": group.protocol,
            "leader": group.leader or None,
            "coordinator": coordinator_members(visit.host, await coordinator_of(visit, group.group_id)),
            "members": [_member_out(each) for each in group.members],
            "offsets": [each.out() for each in lags],
        }
    )


def _member_out(member: g.DescribedMember) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.group_instance_id,
        "client_id": member.client_id,
        "host": member.client_host,
        "software": member.software,
        "topics": topics_of(member),
        "assignment": partitions_out(assigned_to(member)),
    }


async def get_lag(visit: Visit) -> Reply:
    """How far the group is behind: in all, where it is worst, and who reads each partition."""
    group = await described(visit, visit[GROUP])
    lags = await lags_of(visit, group)
    readers = {each: member.member_id for member in group.members for each in assigned_to(member)}
    known = [each for each in lags if each.lag is not None]
    worst = max(known, key=lambda each: each.lag or 0, default=None)
    return Reply(
        {
            "group": group.group_id,
            "state": group.state,
            "lag_sum": sum(each.lag or 0 for each in known),
            "lag_max": worst.out() if worst is not None else None,
            "partitions": [{**each.out(), "member_id": readers.get(each.partition)} for each in lags],
        }
    )


async def delete_group(visit: Visit) -> Reply:
    """Delete a group that has no members, with all that it committed."""
    group = visit[GROUP]
    await from_coordinator(
        visit,
        group,
        g.DeleteGroupsRequest(groups=(group,)),
        failed=lambda answer: next((each for each in (answer, *answer.groups) if each.error_code), None),
        repeatable=False,
    )
    return Reply({"group": group, "deleted": True})


# ---- the doors -------------------------------------------------------------------------------------------------------

GROUP_STATE = one_of("Kafka's word.", *STATES)
_MEMBER = shape(
    member_id=text(),
    group_instance_id=INSTANCE,
    client_id=text(),
    host=text("Where it joined from."),
    software=text("Name and version of its library; empty if they are not known."),
    topics=many(ref("TopicName"), "What it subscribes to; empty while the group rebalances."),
    assignment=PARTITIONS,
)
_MEMBER_EXAMPLE = {
    "member_id": "curl-2f1c0d8f7f3f4e6b",
    "group_instance_id": None,
    "client_id": "curl",
    "host": "/127.0.0.1",
    "software": "curl 8.14.1",
    "topics": ["orders"],
    "assignment": PARTITIONS_EXAMPLE,
}

ROUTES = (
    Route(
        method="GET",
        path="/v1/groups",
        handler=get_groups,
        tag="groups",
        parameters=(STATE, FORWARD),
        answers={
            200: Answer(
                description="All groups, by name.",
                schema=shape(groups=many(shape(group=text(), protocol_type=text("`consumer`."), state=GROUP_STATE))),
                example={"groups": [{"group": "billing", "protocol_type": "consumer", "state": "Stable"}]},
            )
        },
        problems=(CoordinatorNotAvailable,),
    ),
    Route(
        method="GET",
        path="/v1/groups/{group}",
        handler=get_group,
        tag="groups",
        parameters=(GROUP, FORWARD),
        answers={
            200: Answer(
                description="The group.",
                schema=shape(
                    group=text(),
                    state=GROUP_STATE,
                    generation=GENERATION,
                    protocol_type=text("`consumer`; empty for a group that only ever committed."),
                    assignor=text("What its members agreed on; empty unless the group is stable."),
                    leader=nullable(text("The member that deals the partitions.")),
                    coordinator=COORDINATOR,
                    members=many(_MEMBER),
                    offsets=many(shape(**LAG)),
                ),
                example={
                    "group": "billing",
                    "state": "Stable",
                    "generation": 3,
                    "protocol_type": "consumer",
                    "assignor": "range",
                    "leader": "curl-2f1c0d8f7f3f4e6b",
                    "coordinator": COORDINATOR_EXAMPLE,
                    "members": [_MEMBER_EXAMPLE],
                    "offsets": [LAG_EXAMPLE],
                },
            )
        },
        problems=(*COORDINATOR_PROBLEMS, GroupIdNotFound),
    ),
    Route(
        method="DELETE",
        path="/v1/groups/{group}",
        handler=delete_group,
        tag="groups",
        parameters=(GROUP, FORWARD),
        answers={
            200: Answer(
                description="It is gone, offsets and all.",
                schema=shape(group=text(), deleted=DELETED),
                example={"group": "billing", "deleted": True},
            )
        },
        problems=(*COORDINATOR_PROBLEMS, GroupIdNotFound, NonEmptyGroup),
    ),
    Route(
        method="GET",
        path="/v1/groups/{group}/lag",
        handler=get_lag,
        tag="groups",
        parameters=(GROUP, FORWARD),
        answers={
            200: Answer(
                description="The lag.",
                schema=shape(
                    group=text(),
                    state=GROUP_STATE,
                    lag_sum=whole("Over all partitions whose lag is known."),
                    lag_max=nullable(shape("Where it is worst.", **LAG)),
                    partitions=many(shape(**LAG, member_id=nullable(text("Who reads it; null: nobody.")))),
                ),
                example={
                    "group": "billing",
                    "state": "Stable",
                    "lag_sum": 3,
                    "lag_max": LAG_EXAMPLE,
                    "partitions": [{**LAG_EXAMPLE, "member_id": "curl-2f1c0d8f7f3f4e6b"}],
                },
            )
        },
        problems=(*COORDINATOR_PROBLEMS, GroupIdNotFound),
    ),
)
