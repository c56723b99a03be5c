"""What kafka-consumer-groups prints, byte for byte: ``-o kafka`` of ``minikafka groups``.

Rules for this file: texts only, no question to a broker; lines without their ends. The tool puts an empty line before a
table, and one member may make a column wider, so every table is laid out from all of its rows. Layouts are those of
Kafka 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from minikafka.groups.protocol import by_topic
from minikafka.types import Offset, TopicPartition
from minikafka.wire.group_messages import DescribedGroup, DescribedMember, ListedGroup

MISSING = "-"
WIDTH_MIN = 15

OFFSETS = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID")
MEMBERS = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS")
STATE = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")
NEW_OFFSETS = ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET")


def listed(groups: Sequence[ListedGroup], *, with_states: bool) -> Iterator[str]:
    """``--list``, and ``--list --state``."""
    if not with_states:
        yield from (each.group_id for each in groups)
        return
    width = max([WIDTH_MIN, *(len(each.group_id) for each in groups)]) + 10
    for group, state in (("GROUP", "STATE"), *((each.group_id, each.state) for each in groups)):
        yield f"{group:<{width}} {state:<20}"


def notice(group: DescribedGroup) -> str | None:
    """What the tool says on standard error before a table, an empty line in front."""
    if group.state == "Empty":
        return f"\nConsumer group '{group.group_id}' has no active members."
    if group.state in ("PreparingRebalance", "CompletingRebalance"):
        return f"\nWarning: Consumer group '{group.group_id}' is rebalancing."
    return None


def offsets(
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


def members(group: DescribedGroup, assigned: Mapping[str, Sequence[TopicPartition]], *, verbose: bool) -> Iterator[str]:
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


def state(group: DescribedGroup, coordinator: str) -> Iterator[str]:
    """``--describe --state``; ``coordinator`` is ``host:port  (id)``."""
    row = (group.group_id, coordinator, group.protocol or MISSING, group.state, str(len(group.members)))
    yield from _table(STATE, [row], (WIDTH_MIN, 25, 20, 20, 0), fixed=(2, 3))


def new_offsets(resets: Mapping[str, Mapping[TopicPartition, Offset]]) -> Iterator[str]:
    """``--reset-offsets``, by group."""
    rows = [
        (group, name.topic, str(name.partition), str(offset))
        for group, offsets in resets.items()
        for name, offset in offsets.items()
    ]
    yield from _table(NEW_OFFSETS, rows, (WIDTH_MIN, WIDTH_MIN, 10, 0), fixed=(2,))


def exported(offsets: Mapping[TopicPartition, Offset]) -> Iterator[str]:
    """``--reset-offsets --export``: CSV, and the empty line that the tool leaves behind it."""
    for name, offset in offsets.items():
        topic = f'"{name.topic}"' if any(sign in name.topic for sign in '",') else name.topic
        yield f"{topic},{name.partition},{offset}"
    yield ""


def deleted(groups: Sequence[str]) -> str:
    """``--delete``."""
    return "Deletion of requested consumer groups ('" + "', '".join(groups) + "') was successful."


def offsets_deleted(group: str, partitions: Sequence[TopicPartition]) -> Iterator[str]:
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
