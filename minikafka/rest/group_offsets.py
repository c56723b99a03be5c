"""``/v1/groups/{group}/offsets``: what a group has committed; commit by hand, reset, forget.

By hand only while the group has no members (409 otherwise): a member's commit has its own door. What several partitions
have different outcomes is 207, each with its own problem; when all failed, the first one's problem is the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from typing import Any

from minikafka import errors as kafka
from minikafka.groups.group import State
from minikafka.groups.offsets import CURRENT, EARLIEST, LATEST, OFFSET, SHIFT, TIME, Goal, duration_ms
from minikafka.rest import groups
from minikafka.rest.leaders import change_in_parts, first_error, from_coordinator, look_up, partition_of, unknown_topic
from minikafka.rest.model import LEFT_OUT, Model, many_of, member
from minikafka.rest.parameters import FORWARD, INT32_MAX, INT64_MAX, Integer, Text
from minikafka.rest.permissions import check_may
from minikafka.rest.records import moment_ms
from minikafka.rest.route import Answer, Json, Reply, Routes, Visit
from minikafka.rest.schema import ref
from minikafka.rest.schemas import Place
from minikafka.types import NO_EPOCH, Epoch, Offset, TopicPartition
from minikafka.web.accept import JSON
from minikafka.web.problems import problem_of
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire.acls import AclOperation, ResourceType
from minikafka.wire.outcomes import failure_of

ROUTES = Routes("groups", also=(FORWARD,), problems=groups.COORDINATOR_PROBLEMS)
TOPIC_QUERY = Text(
    "topic", "Only of this topic.", length_max=249, pattern=r"[^/]+", needed="a name", required=True, example="orders"
)
PARTITION_QUERY = Integer("partition", "Only of this partition; all without it.", high=INT32_MAX)


# ---- looking ---------------------------------------------------------------------------------------------------------


class _GroupOffsets(groups.OfGroup):
    """What a group has committed."""

    state: str = member("Of the group.", "Empty")
    offsets: list[Any] = many_of(groups.CommittedOffset)


@ROUTES.at("GET /v1/groups/{group}/offsets", _GroupOffsets.answer("The offsets."), problems=(kafka.GroupIdNotFound,))
async def get_offsets(visit: Visit) -> Json:
    """All that the group has committed, with the metadata beside it, when, and how far behind it is."""
    group = await groups.described(visit, visit[groups.GROUP])
    return _GroupOffsets.out_of(group, offsets=await groups.lags_of(visit, group))


# ---- committing ------------------------------------------------------------------------------------------------------


class Commit(Model):
    """The next offset to read of a partition."""

    topic: str = member(example="orders")
    partition: int = member(example=0, minimum=0, maximum=INT32_MAX)
    offset: Offset = member("The next one to read.", 41, minimum=0, maximum=INT64_MAX)
    metadata: str = member("Kept beside the offset; offset.metadata.max.bytes bounds it.", default="")
    leader_epoch: Epoch = member("Of the last record that was read.", default=NO_EPOCH, minimum=-1, maximum=INT32_MAX)


class Commits(Model):
    """What to commit."""

    offsets: list[Commit] = many_of(Commit, minItems=1, maxItems=groups.PARTITION_COUNT_MAX)


def committing(offsets: Iterable[Commit]) -> tuple[g.CommitPartition, ...]:
    """Return what to commit as in OffsetCommit."""
    return tuple(g.CommitPartition(**vars(each)) for each in offsets)


class _Outcome(Place):
    """What became of one offset."""

    offset: Offset | None = member(example=41, default=None)
    problem: dict[str, Any] | None = member(ref("Problem"), default=None)


class _Outcomes(groups.OfGroup, notes=True):
    """What became of each."""

    offsets: list[_Outcome] = many_of(_Outcome)


COMMIT_ANSWERS = {
    200: _Outcomes.answer("Committed, on all in-sync replicas of the group's log."),
    207: Answer("Some were committed, each of the others has its problem.", {JSON: (_Outcomes.schema(), None)}),
}
COMMIT_PROBLEMS = (kafka.InvalidRequest, kafka.OffsetMetadataTooLarge, kafka.UnknownTopicOrPartition)


@ROUTES.at(
    "PUT /v1/groups/{group}/offsets",
    COMMIT_ANSWERS,
    body=Commits.body(),
    problems=(*COMMIT_PROBLEMS, kafka.NonEmptyGroup),
)
async def put_offsets(visit: Visit) -> Reply:
    """Commit by hand for a group that has no members; a group that does not exist begins with it."""
    partitions = committing((await Commits.sent(visit)).offsets)
    return await committed(visit, g.OffsetCommitRequest(group_id=visit[groups.GROUP], partitions=partitions))


async def committed(visit: Visit, request: g.OffsetCommitRequest) -> Reply:
    """Commit; 200, 207, or the problem that all partitions have."""
    try:
        response: g.OffsetCommitResponse = await from_coordinator(visit, request.group_id, request, failed=_worst)
    except kafka.UnknownMemberId as error:
        if request.member_id:
            raise
        raise kafka.NonEmptyGroup(f"{error.message}: stop its members first", outcome=error.outcome) from error
    offsets = {(each.topic, each.partition): each.offset for each in request.partitions}
    outcomes = []
    for each in response.partitions:
        place: dict[str, Any] = {"topic": each.topic, "partition": each.partition}
        problem = problem_of(failure_of(each), **place) if each.error_code else None
        offset = None if each.error_code else offsets[each.topic, each.partition]
        outcomes.append(_Outcome(**place, offset=offset, problem=problem))
    status = 207 if any(each.problem for each in outcomes) else 200
    return Reply(_Outcomes(group=request.group_id, offsets=outcomes).out(), status)


def _worst(response: g.OffsetCommitResponse) -> m.Failed | None:
    """The whole's error, or the first partition's when none was committed."""
    if response.error_code:
        return response
    if response.partitions and all(each.error_code for each in response.partitions):
        return response.partitions[0]
    return None


# ---- resetting -------------------------------------------------------------------------------------------------------


class _Reset(Model):
    """One word on where to, and what for."""

    to: str | None = member(example=EARLIEST, default=None, enum=[EARLIEST, LATEST, CURRENT])
    to_offset: Offset | None = member(default=None, minimum=0, maximum=INT64_MAX)
    shift_by: int | None = member(
        "Forward, or back when negative.", default=None, minimum=-INT64_MAX, maximum=INT64_MAX
    )
    to_datetime: str | None = member(
        "ISO 8601 with a zone: the first record at or after it.", default=None, format="date-time"
    )
    by_duration: str | None = member("ISO 8601 (`PT1H30M`) or seconds: back from now.", default=None)
    topics: list[groups.PartitionsOf] = many_of(
        groups.PartitionsOf, "Which partitions; left out: all that the group has committed.", default=()
    )
    dry_run: bool | None = member("Change nothing, only tell.", example=True, default=LEFT_OUT)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        goals = ("to", "to_offset", "shift_by", "to_datetime", "by_duration")
        given = [name for name in goals if getattr(self, name) is not None]
        if len(given) != 1:
            needed = "exactly one of to, to_offset, shift_by, to_datetime and by_duration says where to go on"
            yield given[1] if given else "to", needed
            return
        try:
            self.goal(0)
        except ValueError as wrong:
            yield given[0], str(wrong)

    def goal(self, now_ms: int) -> Goal:
        """Return where the group is to go on. Raises ValueError for a time that cannot be read."""
        if self.to is not None:
            return Goal(self.to)
        if self.to_offset is not None:
            return Goal(OFFSET, offset=self.to_offset)
        if self.shift_by is not None:
            return Goal(SHIFT, shift=self.shift_by)
        if self.to_datetime is not None:
            return Goal(TIME, time_ms=moment_ms(self.to_datetime))
        return Goal(TIME, time_ms=now_ms - duration_ms(self.by_duration or ""))


class _NewOffset(Place):
    """Where a group goes on in one partition."""

    committed: Offset | None = member("What was committed before; null: nothing.", 41)
    new_offset: Offset = member(example=0)


class _ResetDone(groups.OfGroup, notes=True):
    """Where a group goes on."""

    dry_run: bool = member("Nothing was changed.", example=True)
    offsets: list[_NewOffset] = many_of(_NewOffset)


@ROUTES.at(
    "POST /v1/groups/{group}/offsets:reset",
    _ResetDone.answer("Where the group goes on, or would."),
    body=_Reset.body(topics=[groups.PartitionsOf.example(partitions=[0])]),
    problems=(
        kafka.GroupIdNotFound,
        kafka.LeaderNotAvailable,
        kafka.NonEmptyGroup,
        kafka.RequestTimedOut,
        kafka.UnknownTopicOrPartition,
    ),
)
async def post_reset(visit: Visit) -> Json:
    """Where the group is to go on, as kafka-consumer-groups says it; with ``"dry_run": true`` it is only shown.

    Exactly one of ``to`` (earliest, latest, current), ``to_offset``, ``shift_by``, ``to_datetime`` and ``by_duration``
    says where. Every offset is brought between the log's start and its end. Only for a group without members.
    """
    group, reset = visit[groups.GROUP], await _Reset.sent(visit)
    check_may(visit.permit, AclOperation.READ, ResourceType.TOPIC, *(each.topic for each in reset.topics))
    await _check_empty(visit, group)
    before = await groups.committed_of(visit, group)
    wanted = groups.partitions_in(reset.topics) or sorted(before)
    for each in wanted:
        partition_of(visit.host, each)
    if not wanted:
        raise kafka.GroupIdNotFound(f"group {group} has committed nothing: name the partitions in topics")
    new = await _new_offsets(visit, reset.goal(visit.host.world.clock.wall_ms()), wanted, before)
    dry_run = reset.dry_run is True

    def commit(part: list[tuple[TopicPartition, Offset]]) -> Awaitable[Reply]:
        partitions = tuple(g.CommitPartition(**each._asdict(), offset=offset) for each, offset in part)
        return committed(visit, g.OffsetCommitRequest(group_id=group, partitions=partitions))

    if not dry_run:
        outcomes = [each for done in await change_in_parts(new.items(), commit) for each in done.body["offsets"]]
        refused = [f"{each['topic']}-{each['partition']}" for each in outcomes if "problem" in each]
        if refused:
            message = f"{', '.join(refused)} could not be reset, the other partitions were: look at the offsets"
            raise kafka.RequestTimedOut(message, outcome=kafka.UNKNOWN)
    offsets = [
        _NewOffset(**each._asdict(), committed=before[each].offset if each in before else None, new_offset=offset)
        for each, offset in new.items()
    ]
    return _ResetDone(group=group, dry_run=dry_run, offsets=offsets).out()


async def _check_empty(visit: Visit, group: str) -> None:
    """Before anything is changed; the coordinator checks again when it commits."""
    try:
        found = await groups.described(visit, group)
    except kafka.GroupIdNotFound:
        return
    if found.state != State.EMPTY.value:
        members = f"{len(found.members)} members"
        raise kafka.NonEmptyGroup(f"group {group} is {found.state} and has {members}: stop its members first")


async def _new_offsets(
    visit: Visit, goal: Goal, wanted: list[TopicPartition], before: dict[TopicPartition, g.FetchedOffset]
) -> dict[TopicPartition, Offset]:
    starts = await look_up(visit, dict.fromkeys(wanted, m.EARLIEST))
    ends = await look_up(visit, dict.fromkeys(wanted, m.LATEST))
    times = await look_up(visit, dict.fromkeys(wanted, max(goal.time_ms, 0))) if goal.kind == TIME else ends
    found = {}
    for each in wanted:
        if each not in starts or each not in ends or each not in times:
            raise kafka.LeaderNotAvailable(f"the leader of {each} cannot be asked now: nothing was reset")
        found[each] = goal.of(
            start=starts[each],
            end=ends[each],
            committed=before[each].offset if each in before else None,
            at_time=times[each] if times[each] >= 0 else None,
        )
    return found


# ---- forgetting ------------------------------------------------------------------------------------------------------


class _Forgotten(groups.OfGroup):
    """Partitions for which a group has committed nothing any more."""

    deleted: list[Any] = many_of(Place)


@ROUTES.at(
    "DELETE /v1/groups/{group}/offsets",
    _Forgotten.answer("Forgotten."),
    parameters=(TOPIC_QUERY, PARTITION_QUERY),
    problems=(kafka.GroupIdNotFound, kafka.GroupSubscribedToTopic, kafka.NonEmptyGroup, kafka.UnknownTopicOrPartition),
)
async def delete_offsets(visit: Visit) -> Json:
    """Forget what the group has committed for a topic that no member reads."""
    group, topic = visit[groups.GROUP], visit[TOPIC_QUERY]
    check_may(visit.permit, AclOperation.READ, ResourceType.TOPIC, topic)
    if visit.gives(PARTITION_QUERY):
        partitions = [TopicPartition(topic, visit[PARTITION_QUERY])]
    else:
        partitions = sorted(each for each in await groups.committed_of(visit, group) if each.topic == topic)
        if not partitions and topic not in visit.host.image.topics:
            raise unknown_topic(visit.host, topic)

    def delete(part: list[TopicPartition]) -> Awaitable[Any]:
        request = g.OffsetDeleteRequest(group_id=group, partitions=m.PartitionName.each(part))
        return from_coordinator(visit, group, request, failed=first_error("partitions"))

    await change_in_parts(partitions, delete)
    return _Forgotten(group=group, deleted=partitions).out()
