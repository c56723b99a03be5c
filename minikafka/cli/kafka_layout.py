"""What Kafka's own command-line tools print, byte for byte: ``-o kafka``.

Scripts and runbooks that read ``kafka-topics.sh`` and its siblings can read this instead. Rules for this file: texts
only, no question to a broker; a function per tool, lines without their ends. Layouts are those of Kafka 4.

kafka-consumer-groups puts an empty line before a table, and one member may make a column wider, so every table of
groups is laid out from all of its rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from minikafka.client.structs import Reassignment
from minikafka.coordination.packing import by_topic
from minikafka.errors import ElectionNotNeeded, ProtocolError
from minikafka.types import NO_NODE, NodeId, Offset, TopicPartition
from minikafka.wire.admin import DEFAULT, SOURCE_NAMES, DescribedConfig, DescribedConfigs
from minikafka.wire.group_messages import DescribedGroup, DescribedMember, ListedGroup
from minikafka.wire.messages import DescribedPartition, DescribedTopic, DescribeQuorumResponse, QuorumReplica

NO_DIRECTORY_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Kafka's zero UUID: what it prints for voters that are given by number and address, as all are here."""

Assignments: TypeAlias = Mapping[TopicPartition, Sequence[NodeId]]


def ids(nodes: Iterable[NodeId]) -> str:
    """Brokers as Kafka lists them."""
    return ",".join(map(str, nodes))


# ---- kafka-topics ----------------------------------------------------------------------------------------------------


def replication_factor(partition: DescribedPartition) -> int:
    """The replicas that a partition has, those that a reassignment adds not counted."""
    return len(partition.replicas) - len(partition.adding_replicas)


def topics_described(
    topics: Iterable[DescribedTopic], configs: Mapping[str, Sequence[DescribedConfig]]
) -> Iterator[str]:
    """``kafka-topics --describe``; ``configs`` holds each topic's effective settings."""
    for topic in topics:
        yield from topics_alone([topic], configs)
        yield from partitions_described([topic])


def topics_alone(topics: Iterable[DescribedTopic], configs: Mapping[str, Sequence[DescribedConfig]]) -> Iterator[str]:
    """Its lines of topics, which stand alone with ``--topics-with-overrides``."""
    for topic in topics:
        settings = ",".join(
            f"{each.name}={each.value}" for each in configs[topic.topic] if each.config_source != DEFAULT
        )
        factor = replication_factor(topic.partitions[0]) if topic.partitions else 0
        yield (
            f"Topic: {topic.topic}\tTopicId: {topic.topic_id}\tPartitionCount: {len(topic.partitions)}"
            f"\tReplicationFactor: {factor}\tConfigs: {settings}"
        )


def partitions_described(topics: Iterable[DescribedTopic]) -> Iterator[str]:
    """Its lines of partitions, which stand alone under a filter."""
    for topic in topics:
        for each in topic.partitions:
            leader = "none" if each.leader == NO_NODE else str(each.leader)
            moving = ""
            if each.adding_replicas or each.removing_replicas:
                moving = (
                    f"\tAdding Replicas: {ids(each.adding_replicas)}\tRemoving Replicas: {ids(each.removing_replicas)}"
                )
            yield (
                f"\tTopic: {topic.topic}\tPartition: {each.partition}\tLeader: {leader}"
                f"\tReplicas: {ids(each.replicas)}\tIsr: {ids(each.isr)}{moving}"
                f"\tElr: {ids(each.elr)}\tLastKnownElr: {ids(each.last_known_elr)}"
            )


# ---- kafka-configs ---------------------------------------------------------------------------------------------------


def configs_described(kind: str, described: DescribedConfigs, *, everything: bool) -> Iterator[str]:
    """``kafka-configs --describe``; ``kind`` is topic or broker."""
    if not described.resource_name:
        yield f"Default configs for {kind}s in the cluster are:"
    else:
        yield f"{'All' if everything else 'Dynamic'} configs for {kind} {described.resource_name} are:"
    for each in sorted(described.configs, key=lambda each: each.name):
        synonyms = ", ".join(f"{SOURCE_NAMES[other.source]}:{other.name}={other.value}" for other in each.synonyms)
        sensitive = str(each.is_sensitive).lower()
        yield f"  {each.name}={each.value} sensitive={sensitive} synonyms={{{synonyms}}}"


def configs_altered(kind: str, name: str) -> str:
    """``kafka-configs --alter``."""
    if not name:
        return f"Completed updating default config for {kind}s in the cluster."
    return f"Completed updating config for {kind} {name}."


# ---- kafka-get-offsets, kafka-delete-records -------------------------------------------------------------------------


def offsets(found: Mapping[TopicPartition, int]) -> Iterator[str]:
    """``kafka-get-offsets``."""
    for name, offset in found.items():
        yield f"{name.topic}:{name.partition}:{offset}"


def records_deleted(low_watermarks: Mapping[TopicPartition, int]) -> Iterator[str]:
    """``kafka-delete-records``."""
    yield "Executing records delete operation"
    yield "Records delete operation completed:"
    for name, offset in low_watermarks.items():
        yield f"partition: {name}\tlow_watermark: {offset}"


# ---- kafka-reassign-partitions ---------------------------------------------------------------------------------------


def assignment_json(assignments: Assignments) -> str:
    """The JSON that the tool writes and reads."""
    partitions = [
        {
            "topic": name.topic,
            "partition": name.partition,
            "replicas": list(replicas),
            "log_dirs": ["any"] * len(replicas),
        }
        for name, replicas in sorted(assignments.items())
    ]
    return json.dumps({"version": 1, "partitions": partitions}, separators=(",", ":"))


def reassignment_generated(current: Assignments, proposed: Assignments) -> Iterator[str]:
    """``--generate``."""
    yield "Current partition replica assignment"
    yield assignment_json(current)
    yield ""
    yield "Proposed partition reassignment configuration"
    yield assignment_json(proposed)


def reassignment_started(current: Assignments, names: Sequence[TopicPartition]) -> Iterator[str]:
    """``--execute``."""
    yield "Current partition replica assignment"
    yield ""
    yield assignment_json(current)
    yield ""
    yield "Save this to use as the --reassignment-json-file option during rollback"
    yield f"Successfully started partition reassignment{_s(names)} for {_joined(names)}"


def reassignments_listed(ongoing: Mapping[TopicPartition, Reassignment]) -> Iterator[str]:
    """``--list``."""
    if not ongoing:
        yield "No partition reassignments found."
        return
    yield "Current partition reassignments:"
    for name, each in sorted(ongoing.items()):
        adding = f" adding: {ids(each.adding_replicas)}." if each.adding_replicas else ""
        removing = f" removing: {ids(each.removing_replicas)}." if each.removing_replicas else ""
        yield f"{name}: replicas: {ids(each.replicas)}.{adding}{removing}"


def reassignments_verified(
    wanted: Assignments, current: Assignments, ongoing: Mapping[TopicPartition, Reassignment]
) -> Iterator[str]:
    """``--verify``."""
    yield "Status of partition reassignment:"
    for name, target in sorted(wanted.items()):
        if name in ongoing:
            yield f"Reassignment of partition {name} is still in progress."
        elif list(current.get(name, ())) == list(target):
            yield f"Reassignment of partition {name} is completed."
        else:
            yield (
                f"There is no active reassignment of partition {name}, but replica set is "
                f"{ids(current.get(name, ()))} rather than {ids(target)}."
            )


def reassignment_cancelled(names: Sequence[TopicPartition]) -> str:
    """``--cancel``."""
    if not names:
        return "None of the specified partition reassignments are active."
    return f"Successfully cancelled partition reassignment{_s(names)} for: {_joined(names)}"


def _s(names: Sequence[object]) -> str:
    return "" if len(names) == 1 else "s"


def _joined(names: Iterable[TopicPartition], between: str = ",") -> str:
    return between.join(map(str, sorted(names)))


# ---- kafka-leader-election -------------------------------------------------------------------------------------------


def leaders_elected(election: str, answers: Mapping[TopicPartition, ProtocolError | None]) -> Iterator[str]:
    """``kafka-leader-election``; ``election`` is preferred or unclean."""
    done = [name for name, error in answers.items() if error is None]
    needless = [name for name, error in answers.items() if isinstance(error, ElectionNotNeeded)]
    kind = election.upper()
    if done:
        yield f"Successfully completed leader election ({kind}) for partitions {_joined(done, ', ')}"
    if needless:
        yield f"Valid replica already elected for partitions {_joined(needless, ', ')}"
    for name, error in sorted(answers.items()):
        if error is not None and name not in needless:
            yield f"Error completing leader election ({kind}) for partition: {name}: {error.name}: {error.message}"


# ---- kafka-metadata-quorum -------------------------------------------------------------------------------------------


def quorum_status(quorum: DescribeQuorumResponse) -> Iterator[str]:
    """``describe --status``."""
    leader = next((each for each in quorum.voters if each.replica_id == quorum.leader_id), None)
    last = min(quorum.voters, key=lambda each: each.log_end_offset, default=None)
    lag = leader.log_end_offset - last.log_end_offset if leader and last else 0
    if last is leader or last is None or leader is None:
        lag_time_ms = 0
    elif last.last_caught_up_ms_ago < 0:
        lag_time_ms = -1
    else:
        lag_time_ms = last.last_caught_up_ms_ago - max(0, leader.last_caught_up_ms_ago)
    yield f"ClusterId:              {quorum.cluster_id}"
    yield f"LeaderId:               {quorum.leader_id}"
    yield f"LeaderEpoch:            {quorum.leader_epoch}"
    yield f"HighWatermark:          {quorum.high_watermark}"
    yield f"MaxFollowerLag:         {lag}"
    yield f"MaxFollowerLagTimeMs:   {lag_time_ms}"
    yield f"CurrentVoters:          {_members(quorum, quorum.voters)}"
    yield f"CurrentObservers:       {_members(quorum, quorum.observers)}"


def _members(quorum: DescribeQuorumResponse, members: Iterable[QuorumReplica]) -> str:
    where = {each.node_id: f"PLAINTEXT://{each.host}:{each.port}" for each in quorum.endpoints}
    shown = [
        f'{{"id": {each.replica_id}'
        + (f', "endpoints": ["{where[each.replica_id]}"]' if each.replica_id in where else "")
        + "}"
        for each in members
    ]
    return f"[{', '.join(shown)}]"


QUORUM_COLUMNS = (
    "NodeId",
    "DirectoryId",
    "LogEndOffset",
    "Lag",
    "LastFetchTimestamp",
    "LastCaughtUpTimestamp",
    "Status",
)


def quorum_replication(quorum: DescribeQuorumResponse, *, now_ms: int) -> Iterator[str]:
    """``describe --replication``: the leader, the other voters, the observers; every cell is followed by a tab."""
    leader = [each for each in quorum.voters if each.replica_id == quorum.leader_id]
    followers = [each for each in quorum.voters if each.replica_id != quorum.leader_id]
    end = leader[0].log_end_offset if leader else quorum.high_watermark
    rows: list[tuple[str, ...]] = [QUORUM_COLUMNS]
    for status, members in (("Leader", leader), ("Follower", followers), ("Observer", quorum.observers)):
        rows.extend(_quorum_row(each, status, end, now_ms) for each in members)
    widths = [max(len(row[column]) for row in rows) for column in range(len(QUORUM_COLUMNS))]
    for row in rows:
        yield "".join(f"{cell:<{width}}\t" for cell, width in zip(row, widths, strict=True))


def _quorum_row(each: QuorumReplica, status: str, end: int, now_ms: int) -> tuple[str, ...]:
    def at(ms_ago: int) -> str:
        if status == "Leader":
            return str(now_ms)
        return "-1" if ms_ago < 0 else str(now_ms - ms_ago)

    lag = end - each.log_end_offset
    return (
        str(each.replica_id),
        NO_DIRECTORY_ID,
        str(each.log_end_offset),
        str(lag),
        at(each.last_fetch_ms_ago),
        at(each.last_caught_up_ms_ago),
        status,
    )


MISSING = "-"
WIDTH_MIN = 15

OFFSETS = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID")
MEMBERS = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS")
STATE = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")
NEW_OFFSETS = ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")


def groups_listed(groups: Sequence[ListedGroup], *, with_states: bool) -> Iterator[str]:
    """``--list``, and ``--list --state``."""
    if not with_states:
        yield from (each.group_id for each in groups)
        return
    width = max([WIDTH_MIN, *(len(each.group_id) for each in groups)]) + 10
    for group, state in (("GROUP", "STATE"), *((each.group_id, each.state) for each in groups)):
        yield f"{group:<{width}} {state:<20}"


def groups_notice(group: DescribedGroup) -> str | None:
    """What the tool says on standard error before a table, an empty line in front."""
    if group.state == "Empty":
        return f"\nConsumer group '{group.group_id}' has no active members."
    if group.state in ("PreparingRebalance", "CompletingRebalance"):
        return f"\nWarning: Consumer group '{group.group_id}' is rebalancing."
    return None


def group_offsets(
    group: DescribedGroup,
    assigned: Mapping[str, Sequence[TopicPartition]],
    committed: Mapping[TopicPartition, Offset],
    ends: Mapping[TopicPartition, Offset],
) -> Iterator[str]:
    """``--describe``: members with the most partitions first, then what nobody reads; ``assigned`` by member id."""
    rows: list[tuple[str, ...]] = []
    owned = [(each, assigned.get(each.member_id, ())) for each in group.members]
    for member, partitions in sorted(owned, key=lambda item: -len(item[1])):
        rows += [_offset_row(group, each, committed, ends, member) for each in sorted(partitions)]
    taken = frozenset(each for _, partitions in owned for each in partitions)
    rows += [_offset_row(group, each, committed, ends, None) for each in sorted(committed) if each not in taken]
    if rows:
        yield from _table(
            OFFSETS, rows, (WIDTH_MIN, WIDTH_MIN, 10, 15, 15, 15, WIDTH_MIN, WIDTH_MIN, 0), fixed=(2, 3, 4, 5)
        )


def _offset_row(
    group: DescribedGroup,
    name: TopicPartition,
    committed: Mapping[TopicPartition, Offset],
    ends: Mapping[TopicPartition, Offset],
    member: DescribedMember | None,
) -> tuple[str, ...]:
    at, end = committed.get(name), ends.get(name)
    lag = MISSING if at is None or end is None else str(end - at)
    who = (MISSING,) * 3 if member is None else (member.member_id, member.client_host, member.client_id)
    shown = (MISSING if value is None else str(value) for value in (at, end))
    return group.group_id, name.topic, str(name.partition), *shown, lag, *who


def group_members(
    group: DescribedGroup, assigned: Mapping[str, Sequence[TopicPartition]], *, verbose: bool
) -> Iterator[str]:
    """``--describe --members``; with ``--verbose`` their assignments. Epochs are those of the newer protocol: none."""
    static = any(each.group_instance_id for each in group.members)
    columns = ("GROUP", "CONSUMER-ID", *(("GROUP-INSTANCE-ID",) if static else ()), *MEMBERS[2:])
    rows = [
        (
            group.group_id,
            each.member_id,
            *((each.group_instance_id or "",) if static else ()),
            each.client_host,
            each.client_id,
            str(len(assigned.get(each.member_id, ()))),
        )
        for each in group.members
    ]
    if not rows:
        return
    mins = (WIDTH_MIN, WIDTH_MIN, *((17,) if static else ()), WIDTH_MIN, WIDTH_MIN, WIDTH_MIN)
    lines = list(_table(columns, rows, mins, fixed=(len(columns) - 1,)))
    if not verbose:
        yield from (line and line + " " for line in lines)
        return
    shown = [_assignment(assigned.get(each.member_id, ())) for each in group.members]
    width = max([20, *map(len, shown)])
    yield ""
    heads = zip(lines[1:], ["CURRENT-ASSIGNMENT", *shown], strict=True)
    for at, (line, current) in enumerate(heads):
        epochs = ("CURRENT-EPOCH", "TARGET-EPOCH", "TARGET-ASSIGNMENT") if at == 0 else (MISSING,) * 3
        yield f"{line} {epochs[0]:<15} {current:<{width}} {epochs[1]:<15} {epochs[2]:<20}"


def _assignment(partitions: Iterable[TopicPartition]) -> str:
    text = ";".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in by_topic(partitions).items())
    return text or MISSING


def group_state(group: DescribedGroup, coordinator: str) -> Iterator[str]:
    """``--describe --state``; ``coordinator`` is ``host:port  (id)``."""
    row = (group.group_id, coordinator, group.protocol or MISSING, group.state, str(len(group.members)))
    yield from _table(STATE, [row], (WIDTH_MIN, 25, 20, 20, 0), fixed=(2, 3))


def group_offsets_reset(resets: Mapping[str, Mapping[TopicPartition, Offset]]) -> Iterator[str]:
    """``--reset-offsets``, by group."""
    rows = [
        (group, name.topic, str(name.partition), str(offset))
        for group, offsets in resets.items()
        for name, offset in offsets.items()
    ]
    yield from _table(NEW_OFFSETS, rows, (WIDTH_MIN, WIDTH_MIN, 10, 0), fixed=(2,))


def group_offsets_exported(offsets: Mapping[TopicPartition, Offset]) -> Iterator[str]:
    """``--reset-offsets --export``: CSV, and the empty line that the tool leaves behind it."""
    for name, offset in offsets.items():
        topic = f'"{name.topic}"' if any(sign in name.topic for sign in '",') else name.topic
        yield f"{topic},{name.partition},{offset}"
    yield ""


def groups_deleted(groups: Sequence[str]) -> str:
    """``--delete``."""
    return "Deletion of requested consumer groups ('" + "', '".join(groups) + "') was successful."


def group_offsets_deleted(group: str, partitions: Sequence[TopicPartition]) -> Iterator[str]:
    """``--delete-offsets``; ``partitions`` sorted."""
    topics = ", ".join(by_topic(partitions))
    yield f"Request succeed for deleting offsets with topic {topics} group {group}"
    yield ""
    for topic, partition, status in (
        ("TOPIC", "PARTITION", "STATUS"),
        *((each.topic, str(each.partition), "Successful") for each in partitions),
    ):
        yield f"{topic:<30} {partition:<15} {status:<15}"


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], mins: Sequence[int], *, fixed: Sequence[int] = ()
) -> Iterator[str]:
    """Left-aligned, a blank between; ``fixed`` columns are not widened, the last of width 0 is not padded."""
    widths = [
        least if index in fixed or not least else max([least, *(len(row[index]) for row in rows)])
        for index, least in enumerate(mins)
    ]
    yield ""
    for row in (columns, *rows):
        yield " ".join(f"{cell:<{width}}" if width else cell for cell, width in zip(row, widths, strict=True))
