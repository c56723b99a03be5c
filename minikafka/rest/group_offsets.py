"""``/v1/groups/{group}/offsets``: what a group has committed; commit by hand, reset, forget.

By hand only while the group has no members (409 otherwise): a member's commit has its own door. What several partitions
have different outcomes is 207, each with its own problem; when all failed, the first one's problem is the answer.
"""

from __future__ import annotations

from typing import Any

from minikafka.errors import (
    UNKNOWN,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    InvalidRequest,
    LeaderNotAvailable,
    NonEmptyGroup,
    OffsetMetadataTooLarge,
    ProtocolError,
    RequestTimedOut,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from minikafka.groups.group import State
from minikafka.groups.reset import CURRENT, EARLIEST, LATEST, OFFSET, SHIFT, TIME, Goal, duration_ms
from minikafka.rest.body import Members, pointer
from minikafka.rest.coordinators import from_coordinator, look_up
from minikafka.rest.groups import (
    COORDINATOR_PROBLEMS,
    GROUP,
    LAG,
    LAG_EXAMPLE,
    NOTE,
    PARTITION_COUNT_MAX,
    PARTITIONS,
    committed_of,
    described,
    document_of,
    lags_of,
    partitions_in,
)
from minikafka.rest.leaders import partition_of, unknown_topic
from minikafka.rest.parameters import FORWARD, INT32_MAX, INT64_MAX, Integer, Text
from minikafka.rest.records import moment_ms
from minikafka.rest.route import Answer, Route, json_body
from minikafka.rest.schema import Schema, flag, many, nullable, one_of, ref, shape, text, whole
from minikafka.rest.visit import Reply, Visit
from minikafka.types import Offset, TopicPartition
from minikafka.web.problems import Fault, malformed, problem_of, unacceptable
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire.limits import shown
from minikafka.wire.outcomes import failure_of

TOPIC_QUERY = Text(
    name="topic", description="Of this topic; it must be given.", length_max=249, pattern=r"[^/]+", needed="a name"
)
PARTITION_QUERY = Integer(
    name="partition", description="Only of this partition; all without it.", default=-1, low=0, high=INT32_MAX
)


# ---- looking ---------------------------------------------------------------------------------------------------------


async def get_offsets(visit: Visit) -> Reply:
    """All that the group has committed, with the metadata beside it, when, and how far behind it is."""
    group = await described(visit, visit[GROUP])
    lags = await lags_of(visit, group)
    return Reply(
        {
            "group": group.group_id,
            "state": group.state,
            "offsets": [
                {
                    **each.out(),
                    "metadata": each.committed.metadata if each.committed is not None else None,
                    "leader_epoch": each.committed.leader_epoch if each.committed is not None else None,
                    "commit_timestamp": each.committed.commit_timestamp_ms if each.committed is not None else None,
                }
                for each in lags
            ],
        }
    )


# ---- committing ------------------------------------------------------------------------------------------------------


def commits_in(members: Members, faults: list[Fault]) -> tuple[g.CommitPartition, ...]:
    """The body's ``offsets``; faults are noted."""
    found: list[g.CommitPartition] = []
    entries = members.list("offsets")
    if len(entries) > PARTITION_COUNT_MAX:
        members.wrong(
            "offsets", f"{len(entries)} entries, {PARTITION_COUNT_MAX} at most: commit them in several requests"
        )
        return ()
    for at, given in enumerate(entries):
        path = pointer("offsets", at)
        if type(given) is not dict:
            faults.append({"pointer": path, "detail": f"an object is needed, not {shown(given)}"})
            continue
        inner = Members(given, path, faults)
        topic = inner.text("topic", required=True)
        for name in ("partition", "offset"):
            if name not in given:
                inner.wrong(name, "is missing")
        found.append(
            g.CommitPartition(
                topic=topic,
                partition=inner.integer("partition", 0, low=0, high=INT32_MAX),
                offset=inner.integer("offset", 0, low=0, high=INT64_MAX),
                leader_epoch=inner.integer("leader_epoch", -1, low=-1, high=INT32_MAX),
                metadata=inner.text("metadata"),
            )
        )
        inner.done()
    if not found and not faults:
        members.wrong("offsets", "at least one offset is needed")
    return tuple(found)


async def put_offsets(visit: Visit) -> Reply:
    """Commit by hand for a group that has no members; a group that does not exist begins with it."""
    document, note = await document_of(visit)
    faults: list[Fault] = []
    members = Members(document, "", faults)
    partitions = commits_in(members, faults)
    members.done()
    if faults:
        raise unacceptable(faults)
    return await committed(visit, g.OffsetCommitRequest(group_id=visit[GROUP], partitions=partitions), note)


async def committed(visit: Visit, request: g.OffsetCommitRequest, note: dict[str, str]) -> Reply:
    """Commit; 200, 207, or the problem that all partitions have."""
    try:
        response: g.OffsetCommitResponse = await from_coordinator(visit, request.group_id, request, failed=_worst)
    except UnknownMemberId as error:
        if request.member_id:
            raise
        raise _has_members(error) from error
    offsets = {(each.topic, each.partition): each.offset for each in request.partitions}
    entries, failures = [], 0
    for each in response.partitions:
        entry: dict[str, Any] = {"topic": each.topic, "partition": each.partition}
        if each.error_code:
            failures += 1
            entry["problem"] = problem_of(failure_of(each), topic=each.topic, partition=each.partition)
        else:
            entry["offset"] = offsets[each.topic, each.partition]
        entries.append(entry)
    return Reply({"group": request.group_id, "offsets": entries, **note}, 207 if failures else 200)


def _worst(response: g.OffsetCommitResponse) -> m.Failed | None:
    """The whole's error, or the first partition's when none was committed."""
    if response.error_code:
        return response
    if response.partitions and all(each.error_code for each in response.partitions):
        return response.partitions[0]
    return None


def _has_members(error: ProtocolError) -> NonEmptyGroup:
    return NonEmptyGroup(f"{error.message}: stop its members first")


# ---- resetting -------------------------------------------------------------------------------------------------------


async def post_reset(visit: Visit) -> Reply:
    """Where the group is to go on, as kafka-consumer-groups says it; with ``"dry_run": true`` it is only shown.

    Exactly one of ``to`` (earliest, latest, current), ``to_offset``, ``shift_by``, ``to_datetime`` and ``by_duration``
    says where. Every offset is brought between the log's start and its end. Only for a group without members.
    """
    group = visit[GROUP]
    document, note = await document_of(visit)
    faults: list[Fault] = []
    members = Members(document, "", faults)
    goal = _goal_in(members, document, visit.host.world.clock.wall_ms())
    partitions = partitions_in(members, "topics", faults)
    dry_run = members.any("dry_run")
    if dry_run not in (None, True, False):
        members.wrong("dry_run", f"true or false is needed, not {shown(dry_run)}")
    members.done()
    if faults:
        raise unacceptable(faults)
    await _check_empty(visit, group)
    before = await committed_of(visit, group)
    wanted = partitions or sorted(before)
    for each in wanted:
        partition_of(visit.host, each)
    if not wanted:
        raise GroupIdNotFound(f"group {group} has committed nothing: name the partitions in topics")
    new = await _new_offsets(visit, goal, wanted, before)
    if not dry_run:
        request = g.OffsetCommitRequest(
            group_id=group,
            partitions=tuple(
                g.CommitPartition(topic=each.topic, partition=each.partition, offset=offset)
                for each, offset in new.items()
            ),
        )
        done = await committed(visit, request, {})
        if done.status != 200:
            refused = [f"{each['topic']}-{each['partition']}" for each in done.body["offsets"] if "problem" in each]
            raise RequestTimedOut(
                f"{', '.join(refused)} could not be reset, the other partitions were: look at the offsets",
                outcome=UNKNOWN,
            )
    offsets = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "committed": before[each].offset if each in before else None,
            "new_offset": offset,
        }
        for each, offset in new.items()
    ]
    return Reply({"group": group, "dry_run": bool(dry_run), "offsets": offsets, **note})


def _goal_in(members: Members, document: dict[str, Any], now_ms: int) -> Goal:
    to = members.text("to")
    offset = members.integer("to_offset", 0, low=0, high=INT64_MAX)
    shift = members.integer("shift_by", 0, low=-INT64_MAX, high=INT64_MAX)
    moment, duration = members.text("to_datetime"), members.text("by_duration")
    given = [name for name in ("to", "to_offset", "shift_by", "to_datetime", "by_duration") if name in document]
    if len(given) != 1:
        members.wrong(
            given[1] if given else "to",
            "exactly one of to, to_offset, shift_by, to_datetime and by_duration says where to go on",
        )
        return Goal(CURRENT)
    if given == ["to"]:
        if to not in (EARLIEST, LATEST, CURRENT):
            members.wrong("to", f"one of {EARLIEST}, {LATEST}, {CURRENT} is needed, not {shown(document['to'])}")
            return Goal(CURRENT)
        return Goal(to)
    if given == ["to_offset"]:
        return Goal(OFFSET, offset=offset)
    if given == ["shift_by"]:
        return Goal(SHIFT, shift=shift)
    try:
        return Goal(TIME, time_ms=moment_ms(moment) if given == ["to_datetime"] else now_ms - duration_ms(duration))
    except ValueError as wrong:
        members.wrong(given[0], str(wrong))
        return Goal(CURRENT)


async def _check_empty(visit: Visit, group: str) -> None:
    """Before anything is changed; the coordinator checks again when it commits."""
    try:
        found = await described(visit, group)
    except GroupIdNotFound:
        return
    if found.state != State.EMPTY.value:
        raise NonEmptyGroup(
            f"group {group} is {found.state} and has {len(found.members)} members: stop its members first"
        )


async def _new_offsets(
    visit: Visit, goal: Goal, wanted: list[TopicPartition], before: dict[TopicPartition, g.FetchedOffset]
) -> dict[TopicPartition, Offset]:
    starts = await look_up(visit, dict.fromkeys(wanted, m.EARLIEST))
    ends = await look_up(visit, dict.fromkeys(wanted, m.LATEST))
    times = await look_up(visit, dict.fromkeys(wanted, max(goal.time_ms, 0))) if goal.kind == TIME else ends
    found = {}
    for each in wanted:
        if each not in starts or each not in ends or each not in times:
            raise LeaderNotAvailable(f"the leader of {each} cannot be asked now: nothing was reset")
        found[each] = goal.of(
            start=starts[each],
            end=ends[each],
            committed=before[each].offset if each in before else None,
            at_time=times[each] if times[each] >= 0 else None,
        )
    return found


# ---- forgetting ------------------------------------------------------------------------------------------------------


async def delete_offsets(visit: Visit) -> Reply:
    """Forget what the group has committed for a topic that no member reads."""
    group, topic = visit[GROUP], visit[TOPIC_QUERY]
    if not topic:
        raise malformed("parameter topic: is missing; name the topic whose offsets are to be forgotten")
    if visit.gives(PARTITION_QUERY):
        partitions = [TopicPartition(topic, visit[PARTITION_QUERY])]
    else:
        partitions = sorted(each for each in await committed_of(visit, group) if each.topic == topic)
        if not partitions and topic not in visit.host.image.topics:
            raise unknown_topic(topic)
    request = g.OffsetDeleteRequest(
        group_id=group,
        partitions=tuple(g.GroupPartition(topic=each.topic, partition=each.partition) for each in partitions),
    )
    await from_coordinator(
        visit,
        group,
        request,
        failed=lambda answer: next((each for each in (answer, *answer.partitions) if each.error_code), None),
    )
    return Reply(
        {"group": group, "deleted": [{"topic": each.topic, "partition": each.partition} for each in partitions]}
    )


# ---- the doors -------------------------------------------------------------------------------------------------------

COMMIT_BODY: dict[str, Schema] = {
    "offsets": many(
        shape(
            optional=("metadata", "leader_epoch"),
            topic=text(),
            partition=whole("", minimum=0, maximum=INT32_MAX),
            offset=whole("The next one to read.", minimum=0, maximum=INT64_MAX),
            metadata=text("Kept beside the offset; offset.metadata.max.bytes bounds it."),
            leader_epoch=whole("Of the last record that was read.", minimum=-1, maximum=INT32_MAX),
        ),
        minItems=1,
    )
}
COMMIT_EXAMPLE = {"offsets": [{"topic": "orders", "partition": 0, "offset": 41}]}
_PLACE: dict[str, Schema] = {"topic": ref("TopicName"), "partition": ref("PartitionNumber")}
_COMMITTED = shape(
    "What became of each.",
    optional=("note",),
    group=text(),
    offsets=many(shape(optional=("offset", "problem"), **_PLACE, offset=ref("Offset"), problem=ref("Problem"))),
    note=NOTE,
)
COMMIT_ANSWERS = {
    200: Answer(
        description="Committed, on all in-sync replicas of the group's log.",
        schema=_COMMITTED,
        example={"group": "billing", **COMMIT_EXAMPLE},
    ),
    207: Answer(description="Some were committed, each of the others has its problem.", schema=_COMMITTED),
}
COMMIT_PROBLEMS = (*COORDINATOR_PROBLEMS, InvalidRequest, OffsetMetadataTooLarge, UnknownTopicOrPartition)
_PATH = "/v1/groups/{group}/offsets"

ROUTES = (
    Route(
        method="GET",
        path=_PATH,
        handler=get_offsets,
        tag="groups",
        parameters=(GROUP, FORWARD),
        answers={
            200: Answer(
                description="The offsets.",
                schema=shape(
                    group=text(),
                    state=text("Of the group."),
                    offsets=many(
                        shape(
                            **LAG,
                            metadata=nullable(text("As it was committed.")),
                            leader_epoch=nullable(whole("Of the last record that was read; -1: not known.")),
                            commit_timestamp=nullable(whole("Milliseconds since 1970.")),
                        )
                    ),
                ),
                example={
                    "group": "billing",
                    "state": "Empty",
                    "offsets": [
                        {**LAG_EXAMPLE, "metadata": "", "leader_epoch": 3, "commit_timestamp": 1_795_000_000_000}
                    ],
                },
            )
        },
        problems=(*COORDINATOR_PROBLEMS, GroupIdNotFound),
    ),
    Route(
        method="PUT",
        path=_PATH,
        handler=put_offsets,
        tag="groups",
        parameters=(GROUP, FORWARD),
        body=json_body(shape("What to commit.", **COMMIT_BODY), COMMIT_EXAMPLE),
        answers=COMMIT_ANSWERS,
        problems=(*COMMIT_PROBLEMS, NonEmptyGroup),
    ),
    Route(
        method="DELETE",
        path=_PATH,
        handler=delete_offsets,
        tag="groups",
        parameters=(GROUP, TOPIC_QUERY, PARTITION_QUERY, FORWARD),
        answers={
            200: Answer(
                description="Forgotten.",
                schema=shape(group=text(), deleted=many(shape(**_PLACE))),
                example={"group": "billing", "deleted": [{"topic": "orders", "partition": 0}]},
            )
        },
        problems=(
            *COORDINATOR_PROBLEMS,
            GroupIdNotFound,
            GroupSubscribedToTopic,
            NonEmptyGroup,
            UnknownTopicOrPartition,
        ),
    ),
    Route(
        method="POST",
        path=_PATH + ":reset",
        handler=post_reset,
        tag="groups",
        parameters=(GROUP, FORWARD),
        body=json_body(
            shape(
                "One word on where to, and what for.",
                optional=("to", "to_offset", "shift_by", "to_datetime", "by_duration", "topics", "dry_run"),
                to=one_of("", EARLIEST, LATEST, CURRENT),
                to_offset=whole("", minimum=0, maximum=INT64_MAX),
                shift_by=whole("Forward, or back when negative.", minimum=-INT64_MAX, maximum=INT64_MAX),
                to_datetime=text("ISO 8601 with a zone: the first record at or after it.", format="date-time"),
                by_duration=text("ISO 8601 (`PT1H30M`) or seconds: back from now."),
                topics={**PARTITIONS, "description": "Which partitions; left out: all that the group has committed."},
                dry_run=flag("Change nothing, only tell."),
            ),
            {"to": EARLIEST, "topics": [{"topic": "orders", "partitions": [0]}], "dry_run": True},
        ),
        answers={
            200: Answer(
                description="Where the group goes on, or would.",
                schema=shape(
                    optional=("note",),
                    group=text(),
                    dry_run=flag("Nothing was changed."),
                    offsets=many(
                        shape(
                            **_PLACE,
                            committed=nullable(whole("What was committed before; null: nothing.")),
                            new_offset=ref("Offset"),
                        )
                    ),
                    note=NOTE,
                ),
                example={
                    "group": "billing",
                    "dry_run": True,
                    "offsets": [{"topic": "orders", "partition": 0, "committed": 41, "new_offset": 0}],
                },
            )
        },
        problems=(
            *COORDINATOR_PROBLEMS,
            GroupIdNotFound,
            LeaderNotAvailable,
            NonEmptyGroup,
            RequestTimedOut,
            UnknownTopicOrPartition,
        ),
    ),
)
