"""``/v1/groups``: the list of groups, one group, its lag, and its deletion; also what all routes of groups share.

Lag is the high watermark minus the committed offset. A group that does not exist is 404; it begins with its first
member or its first commit. Partitions of several topics are written as in the command line's JSON: ``[{"topic": "t",
"partitions": [0, 1]}]``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from minikafka import errors as kafka
from minikafka.coordination.packing import by_topic
from minikafka.groups.group import State
from minikafka.groups.protocol import Assignment, Subscription
from minikafka.rest.leaders import coordinator_of, first_error, from_all, from_coordinator, look_up
from minikafka.rest.model import Model, many_of, member, one
from minikafka.rest.parameters import FORWARD, INT32_MAX, any_text, states_parameter
from minikafka.rest.permissions import may_describe
from minikafka.rest.route import Json, Routes, Visit
from minikafka.rest.schema import many, nullable, one_of, ref, text, whole
from minikafka.rest.schemas import OfTopic, Place
from minikafka.security.permissions import Permit
from minikafka.types import Epoch, NodeId, Offset, TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire.group_messages import DescribedMember
from minikafka.wire.messages import LATEST

ROUTES = Routes("groups", also=(FORWARD,))

# As many as one OffsetCommit names (wire/apis.py).
PARTITION_COUNT_MAX = 2_500
GROUP = any_text("group", "The group's name (group.id).", place="path", example="billing")
MEMBER = any_text(
    "member",
    "The id that the coordinator gave to the member.",
    needed="a member id",
    place="path",
    example="curl-2f1c0d8f7f3f4e6b",
)


# ---- what requests and answers share ---------------------------------------------------------------------------------


class OfGroup(Model):
    """Something of a group."""

    group: str = member(example="billing", source="group_id")


class PartitionsOf(OfTopic):
    """Partitions of a topic."""

    partitions: list[int] = member(many(ref("PartitionNumber"), minItems=1), [0, 1])


def partitions_in(given: Iterable[PartitionsOf]) -> list[TopicPartition]:
    """Return each partition that a request names, once."""
    return list(dict.fromkeys(TopicPartition(each.topic, number) for each in given for number in each.partitions))


def partitions_out(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    """Sorted."""
    return [{"topic": topic, "partitions": numbers} for topic, numbers in by_topic(partitions).items()]


def assigned_to(member: DescribedMember, permit: Permit | None) -> tuple[TopicPartition, ...]:
    """What a member has, of topics that the client may describe."""
    partitions = Assignment.readable(member.assignment).partitions
    return tuple(each for each in partitions if may_describe(permit, each.topic))


def topics_of(member: DescribedMember, permit: Permit | None) -> list[str]:
    """What a member subscribes to, if that is known, of topics that the client may describe."""
    return sorted(each for each in Subscription.readable(member.metadata).topics if may_describe(permit, each))


# ---- schemas ---------------------------------------------------------------------------------------------------------

SORTED = "By topic, sorted."
INSTANCE = nullable(text("Of a static member (group.instance.id)."))
GENERATION = whole("Of the group: one more with each rebalance.", minimum=-1, maximum=INT32_MAX)


class Coordinator(Model):
    """The broker that coordinates the group."""

    id: NodeId = member(example=2)
    url: str | None = member("Where it listens.", "http://127.0.0.1:9093", default=None)


class Lag(Place):
    """How far a group is in one partition."""

    committed: Offset | None = member("The next offset that the group will read; null: it has committed none.", 41)
    log_end: Offset | None = member("The high watermark; null: its leader cannot be asked now.", 44)
    lag: int | None = member("Records between the two; null: one of them is not known.", 3)

    @classmethod
    def of(cls, name: TopicPartition, committed: Offset | None, log_end: Offset | None, **more: Any) -> Self:
        """Return how far a group is in a partition; ``more`` are further members."""
        lag = None if committed is None or log_end is None else max(0, log_end - committed)
        return cls(**name._asdict(), committed=committed, log_end=log_end, lag=lag, **more)


class CommittedOffset(Lag):
    """What a group has committed in one partition, and how far it is there."""

    metadata: str | None = member("As it was committed.", "")
    leader_epoch: Epoch | None = member("Of the last record that was read; -1: not known.", 3)
    commit_timestamp: int | None = member("Milliseconds since 1970.", 1_795_000_000_000)

    @classmethod
    def known(cls, name: TopicPartition, committed: g.FetchedOffset | None, log_end: Offset | None) -> Self:
        """Return what is known of a partition."""
        names = ("offset", "metadata", "leader_epoch", "commit_timestamp_ms")
        offset, metadata, epoch, at_ms = (getattr(committed, each, None) for each in names)
        return cls.of(name, offset, log_end, metadata=metadata, leader_epoch=epoch, commit_timestamp=at_ms)


STATES = tuple(each.value for each in State)
GROUP_STATE = one_of("Kafka's word.", *STATES)
COORDINATOR_PROBLEMS: tuple[type[kafka.ProtocolError], ...] = (
    kafka.CoordinatorLoadInProgress,
    kafka.CoordinatorNotAvailable,
    kafka.InvalidGroupId,
    kafka.NetworkException,
    kafka.NotCoordinator,
)
"""What can go wrong wherever a group's coordinator is asked."""
STATE = states_parameter("groups", STATES, example="Stable,Empty")


class _Listed(OfGroup):
    """A group in short."""

    protocol_type: str = member("`consumer`.", "consumer")
    state: str = member(GROUP_STATE, "Stable")


class _Groups(Model):
    """All groups, by name."""

    groups: list[Any] = many_of(_Listed)


@ROUTES.at(
    "GET /v1/groups",
    _Groups.answer("All groups, by name."),
    parameters=(STATE,),
    problems=(kafka.CoordinatorNotAvailable,),
)
async def get_groups(visit: Visit) -> Json:
    """Every group of every coordinator, in short; with ``?forward=never`` only of this broker."""
    found = await from_all(visit, g.ListGroupsRequest(states=visit[STATE]), "groups")
    groups = sorted((each for part in found.values() for each in part.groups), key=lambda group: group.group_id)
    return _Groups(groups=groups).out()


# ---- one group -------------------------------------------------------------------------------------------------------


async def described(visit: Visit, group: str) -> g.DescribedGroup:
    """The group as its coordinator knows it. GroupIdNotFound when it does not exist."""
    request = g.DescribeGroupsRequest(groups=(group,))
    response: g.DescribeGroupsResponse = await from_coordinator(visit, group, request, failed=first_error("groups"))
    return response.groups[0]


async def committed_of(visit: Visit, group: str) -> dict[TopicPartition, g.FetchedOffset]:
    """All that the group has committed."""
    response: g.OffsetFetchResponse = await from_coordinator(visit, group, g.OffsetFetchRequest(group_id=group))
    return {TopicPartition(each.topic, each.partition): each for each in response.partitions if each.offset >= 0}


async def lags_of(visit: Visit, group: g.DescribedGroup) -> list[CommittedOffset]:
    """All partitions that the group has committed or that a member has, of topics that the client may describe."""
    committed = await committed_of(visit, group.group_id)
    assigned = {each for member in group.members for each in assigned_to(member, visit.permit)}
    partitions = sorted(assigned | committed.keys())
    ends = await look_up(visit, dict.fromkeys(partitions, LATEST))
    return [CommittedOffset.known(each, committed.get(each), ends.get(each)) for each in partitions]


class Member(Model):
    """A member of a group."""

    member_id: str = member(example="curl-2f1c0d8f7f3f4e6b")
    group_instance_id: str | None = member(INSTANCE)
    client_id: str = member(example="curl")
    host: str = member("Where it joined from.", "/127.0.0.1", source="client_host")
    software: str = member("Name and version of its library; empty if they are not known.", "curl 8.14.1")
    topics: list[str] = member(
        many(ref("TopicName"), "What it subscribes to; empty while the group rebalances."), ["orders"]
    )
    assignment: list[Any] = many_of(PartitionsOf, SORTED)

    @classmethod
    def described(cls, each: DescribedMember, permit: Permit | None) -> dict[str, Any]:
        """Return a member as its coordinator describes it, with the topics that the client may describe."""
        assignment = partitions_out(assigned_to(each, permit))
        return cls.out_of(each, topics=topics_of(each, permit), assignment=assignment)


class _Group(OfGroup):
    """A group, its members and their offsets."""

    state: str = member(GROUP_STATE, "Stable")
    generation: int = member(GENERATION, 3, source="generation_id")
    protocol_type: str = member("`consumer`; empty for a group that only ever committed.", "consumer")
    assignor: str = member("What its members agreed on; empty unless the group is stable.", "range", source="protocol")
    leader: str | None = member("The member that deals the partitions.", "curl-2f1c0d8f7f3f4e6b")
    coordinator: Any = one(Coordinator)
    members: list[Any] = many_of(Member)
    offsets: list[Any] = many_of(Lag)


@ROUTES.at(
    "GET /v1/groups/{group}", _Group.answer("The group."), problems=(*COORDINATOR_PROBLEMS, kafka.GroupIdNotFound)
)
async def get_group(visit: Visit) -> Json:
    """One group: its state, its members and what each of them has, its offsets and how far behind they are."""
    group = await described(visit, visit[GROUP])
    lags = await lags_of(visit, group)
    return _Group.out_of(
        group,
        leader=group.leader or None,
        coordinator=visit.broker_out(await coordinator_of(visit, group.group_id)),
        members=[Member.described(each, visit.permit) for each in group.members],
        offsets=lags,
    )


class _ReadPartition(Lag):
    """How far a group is in one partition, and which member reads it."""

    member_id: str | None = member("Who reads it; null: nobody.", "curl-2f1c0d8f7f3f4e6b")


class _GroupLag(OfGroup):
    """How far a group is behind."""

    state: str = member(GROUP_STATE, "Stable")
    lag_sum: int = member("Over all partitions whose lag is known.", 3)
    lag_max: Lag | None = one(Lag, or_null=True)
    partitions: list[Any] = many_of(_ReadPartition)


@ROUTES.at(
    "GET /v1/groups/{group}/lag", _GroupLag.answer("The lag."), problems=(*COORDINATOR_PROBLEMS, kafka.GroupIdNotFound)
)
async def get_lag(visit: Visit) -> Json:
    """How far the group is behind: in all, where it is worst, and who reads each partition."""
    group = await described(visit, visit[GROUP])
    lags = await lags_of(visit, group)
    readers = {at: each.member_id for each in group.members for at in assigned_to(each, visit.permit)}
    known = [each for each in lags if each.lag is not None]
    partitions = [
        _ReadPartition.out_of(each, member_id=readers.get(TopicPartition(each.topic, each.partition))) for each in lags
    ]
    return _GroupLag.out_of(
        group,
        lag_sum=sum(each.lag or 0 for each in known),
        lag_max=max(known, key=lambda each: each.lag or 0, default=None),
        partitions=partitions,
    )


class _Deleted(OfGroup):
    """A group that was deleted."""

    deleted: bool = member("It is gone.", example=True)


@ROUTES.at(
    "DELETE /v1/groups/{group}",
    _Deleted.answer("It is gone, offsets and all."),
    problems=(*COORDINATOR_PROBLEMS, kafka.GroupIdNotFound, kafka.NonEmptyGroup),
)
async def delete_group(visit: Visit) -> Json:
    """Delete a group that has no members, with all that it committed."""
    group = visit[GROUP]
    request = g.DeleteGroupsRequest(groups=(group,))
    await from_coordinator(visit, group, request, failed=first_error("groups"), repeatable=False)
    return _Deleted(group=group, deleted=True).out()
