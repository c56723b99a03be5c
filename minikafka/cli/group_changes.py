"""Commands of ``minikafka groups`` that change a group or its committed offsets, and how they choose both.

``reset-offsets`` prints the new offsets and changes nothing without ``--execute``. It and ``delete`` refuse while the
group has members; ``delete-offsets`` deletes those of topics that no member reads.

A group is chosen by its name, or all that there are with ``--all-groups``, as kafka-consumer-groups has it.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from minikafka import AdminClient
from minikafka.cli import kafka_layout
from minikafka.cli.admin import call_admin
from minikafka.cli.running import Failure, lone_command
from minikafka.cli.tables import EXISTING_FILE, kafka_list_options, print_found, print_lines, repeatable, together
from minikafka.coordination.packing import by_topic
from minikafka.errors import UNKNOWN, InvalidRequest, NonEmptyGroup, ProtocolError
from minikafka.groups.offsets import Goal, duration_ms
from minikafka.types import Offset, TopicPartition
from minikafka.wire.messages import EARLIEST, LATEST

GOALS = {"to_earliest": "earliest", "to_latest": "latest", "to_current": "current", "to_offset": "offset"}
GOALS |= {"shift_by": "shift", "to_datetime": "time", "by_duration": "time", "from_file": "file"}
"""Parameters of ``reset-offsets`` and the kinds of goals that they choose: one of them is needed."""

all_groups_option = click.option("--all-groups", is_flag=True, help="Apply to all groups, instead of GROUP.")


group_or_all = together(click.argument("group", required=False), all_groups_option)
"""``[GROUP] [--all-groups]``."""


def check_choice(given: object, *, all_groups: bool) -> None:
    """A wrong call before anybody is asked: exactly one of the two."""
    if bool(given) == all_groups:
        raise click.UsageError("either GROUP or --all-groups is needed")


async def chosen(admin: AdminClient, *groups: str | None) -> list[str]:
    """The groups named; all that there are when there is none."""
    named = [each for each in groups if each]
    return named or [each.group_id for each in await admin.list_consumer_groups()]


async def partitions_named(admin: AdminClient, text: str) -> list[TopicPartition]:
    """``TOPIC`` is all of its partitions, ``TOPIC:0,2`` are these; InvalidRequest for one that is not there."""
    topic, _, numbers = text.partition(":")
    known = [each.partition for each in (await admin.describe_topics([topic]))[0].partitions]
    if not numbers:
        return [TopicPartition(topic, number) for number in sorted(known)]
    try:
        wanted = sorted({int(number) for number in numbers.split(",")})
    except ValueError as error:
        raise InvalidRequest(f"--topic {text!r}: TOPIC or TOPIC:0,2 is the form") from error
    unknown = [number for number in wanted if number not in known]
    if unknown:
        raise InvalidRequest(f"--topic {text!r}: {topic} has no partition {unknown[0]}")
    return [TopicPartition(topic, number) for number in wanted]


@lone_command()
@click.argument("group", nargs=-1)
@all_groups_option
@kafka_list_options
def delete(group: tuple[str, ...], all_groups: bool, bootstrap: str, output: str) -> None:
    """Delete groups without members, with all that they committed; the others are reported, and stay.

    Examples:
      minikafka groups delete billing
      minikafka groups delete --all-groups
    """
    check_choice(group, all_groups=all_groups)

    async def work(admin: AdminClient) -> tuple[list[str], dict[str, ProtocolError]]:
        gone: list[str] = []
        refused: dict[str, ProtocolError] = {}
        for name in await chosen(admin, *group):
            try:
                await admin.delete_consumer_groups([name])
            except ProtocolError as error:
                refused[name] = error
            else:
                gone.append(name)
        return gone, refused

    gone, refused = call_admin(bootstrap, work)
    if gone or (not refused and output in ("json", "tsv")):
        rows, kafka = [(name,) for name in gone], [kafka_layout.groups_deleted(gone)]
        print_found(output, {"deleted": gone}, ("GROUP",), rows, kafka=kafka, said=f"Deleted {', '.join(gone)}.")
    elif not refused:
        click.echo("There are no groups.", err=True)
    if refused:
        raise Failure("not deleted: " + "; ".join(_why(name, error) for name, error in refused.items()))


def _why(group: str, error: ProtocolError) -> str:
    maybe = f" ({group} may be deleted all the same: look before you do it again)" if error.outcome == UNKNOWN else ""
    return f"{error.name}: {error.message}{maybe}"


@lone_command(name="delete-offsets")
@click.argument("group")
@repeatable(
    "--topic", "topics", "Topic, or some of its partitions, whose offsets are deleted", "TOPIC[:P,P]", required=True
)
@kafka_list_options
def delete_offsets(group: str, topics: tuple[str, ...], bootstrap: str, output: str) -> None:
    """Forget what GROUP has committed for topics that none of its members reads.

    Examples:
      minikafka groups delete-offsets billing --topic orders
      minikafka groups delete-offsets billing --topic orders:0,2 --topic refunds
    """

    async def work(admin: AdminClient) -> list[TopicPartition]:
        partitions = [each for topic in topics for each in await partitions_named(admin, topic)]
        await admin.delete_consumer_group_offsets(group, partitions)
        return sorted(dict.fromkeys(partitions))

    partitions = call_admin(bootstrap, work)
    deleted = [{"topic": topic, "partitions": numbers} for topic, numbers in by_topic(partitions).items()]
    print_found(
        output,
        {"group": group, "deleted": deleted},
        ("GROUP", "TOPIC", "PARTITION"),
        [(group, *each) for each in partitions],
        kafka=kafka_layout.group_offsets_deleted(group, partitions),
        said=f"{group} has nothing committed any more for {', '.join(map(str, partitions))}.",
    )


Resets = dict[str, dict[TopicPartition, Offset]]
"""By group: where it goes on."""


@lone_command(name="reset-offsets")
@group_or_all
@repeatable("--topic", "topics", "Topic, or some of its partitions", "TOPIC[:P,P]")
@click.option("--all-topics", is_flag=True, help="All topics with committed offsets of the group.")
@click.option("--to-earliest", is_flag=True, help="Reset to the first record that is kept.")
@click.option("--to-latest", is_flag=True, help="Reset to the end of the committed records.")
@click.option("--to-current", is_flag=True, help="Reset to the offset that is committed now (or the latest).")
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="Reset to this offset in each partition.")
@click.option("--shift-by", type=int, metavar="N", help="Move each offset forward by N, or back if N is negative.")
@click.option(
    "--to-datetime", metavar="ISO", help="Reset to the first record at or after this time (UTC if it names no zone)."
)
@click.option("--by-duration", metavar="PnDTnHnMnS", help="Reset to the records of this long ago: PT1H, or seconds.")
@click.option(
    "--from-file",
    type=EXISTING_FILE,
    metavar="CSV",
    help="Reset to the offsets that --export has written: topic,partition,offset.",
)
@click.option("--export", is_flag=True, help="Print the new offsets as CSV; with -o json, as JSON.")
@click.option("--execute", is_flag=True, help="Change the offsets; without this they are only shown.")
@kafka_list_options
def reset_offsets(
    group: str | None,
    all_groups: bool,
    topics: tuple[str, ...],
    all_topics: bool,
    export: bool,
    execute: bool,
    bootstrap: str,
    output: str,
    **goals: Any,
) -> None:
    """Show the offsets at which GROUP would continue; --execute commits them.

    No group that is reset may have members.

    Examples:
      minikafka groups reset-offsets billing --topic orders --to-earliest
      minikafka groups reset-offsets billing --topic orders:0,2 --shift-by -100 --execute
      minikafka groups reset-offsets billing --all-topics --to-datetime 2026-11-21T08:00:00+00:00 --execute
      minikafka groups reset-offsets --all-groups --all-topics --to-latest
      minikafka groups reset-offsets billing --all-topics --to-current --export > billing.csv
      minikafka groups reset-offsets billing --from-file billing.csv --execute
    """
    check_choice(group, all_groups=all_groups)
    from_file: Path | None = goals["from_file"]
    if all_groups and (export or from_file is not None):
        raise click.UsageError("--export and --from-file are of one group: name it")
    kind = _picked(goals)
    if from_file is None and bool(topics) == all_topics:
        raise click.UsageError("either --topic (repeatable) or --all-topics is needed")
    if from_file is not None and (topics or all_topics):
        raise click.UsageError("--from-file names the partitions itself: leave --topic and --all-topics out")
    goal = Goal(
        kind, goals["to_offset"] or 0, goals["shift_by"] or 0, _time_ms(goals["to_datetime"], goals["by_duration"])
    )
    planned = None if from_file is None else _read_csv(from_file)

    async def reset(admin: AdminClient) -> Resets:
        groups = await chosen(admin, group)
        if execute:
            await _check_empty(admin, groups)
        found = {}
        for each in groups:
            offsets = await (new_offsets(admin, each, topics, goal) if planned is None else _within(admin, planned, {}))
            if offsets:
                found[each] = offsets
            elif group is not None:
                raise InvalidRequest(f"group {group} has committed nothing: name a --topic")
        if execute:
            await _move(admin, found)
        return found

    _print(call_admin(bootstrap, reset), output, export=export, executed=execute)


async def _move(admin: AdminClient, found: Resets) -> None:
    """One group after the other; when one fails, the sentence says which were moved."""
    moved: list[str] = []
    for each, offsets in found.items():
        try:
            await admin.alter_consumer_group_offsets(each, offsets)
        except ProtocolError as error:
            if not moved:
                raise
            left = [name for name in found if name not in moved and name != each]
            raise Failure(
                f"{each}: {error.name}: {error.message}; moved before: {', '.join(moved)}; "
                f"not tried: {', '.join(left) or 'none'}"
            ) from error
        moved.append(each)


def _picked(goals: Mapping[str, Any]) -> str:
    given = [kind for name, kind in GOALS.items() if goals[name] is not None and goals[name] is not False]
    if len(given) != 1:
        options = ", ".join("--" + name.replace("_", "-") for name in GOALS)
        raise click.UsageError(f"exactly one of {options} is needed")
    return given[0]


def _print(resets: Resets, output: str, *, export: bool, executed: bool) -> None:
    moved = [
        {"group": group, **each._asdict(), "new_offset": offset}
        for group, offsets in resets.items()
        for each, offset in offsets.items()
    ]
    if export and output != "json":
        print_lines(line for offsets in resets.values() for line in kafka_layout.group_offsets_exported(offsets))
    else:
        rows, kafka = [tuple(each.values()) for each in moved], kafka_layout.group_offsets_reset(resets)
        print_found(output, {"executed": executed, "offsets": moved}, kafka_layout.NEW_OFFSETS, rows, kafka=kafka)
    if not executed and output in ("table", "tsv") and not export:
        click.echo("Nothing was changed: add --execute.", err=True)


# ---- new offsets -----------------------------------------------------------------------------------------------------


def _time_ms(to_datetime: str | None, by_duration: str | None) -> int:
    """Not before 1970: to brokers a negative time is another thing, such as the end of the log."""
    try:
        if by_duration is not None:
            return max(0, int(datetime.now(UTC).timestamp() * 1000) - duration_ms(by_duration))
        return 0 if to_datetime is None else max(0, _moment_ms(to_datetime))
    except ValueError as error:
        raise click.UsageError(f"--{'by-duration' if by_duration is not None else 'to-datetime'} {error}") from error


def _moment_ms(text: str) -> int:
    """``2026-11-21T08:00:00.000``, with a zone or, as in Kafka, in UTC."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r}: 2026-11-21T08:00:00.000 is the form, with a zone or in UTC") from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


async def new_offsets(
    admin: AdminClient, group: str, topics: tuple[str, ...], goal: Goal
) -> dict[TopicPartition, Offset]:
    """The offsets of a reset; none of a group without commits."""
    committed = await admin.list_consumer_group_offsets(group)
    partitions = [each for topic in topics for each in await partitions_named(admin, topic)] or sorted(committed)
    now = {name: each.offset for name, each in committed.items()}
    return await _within(admin, dict.fromkeys(partitions, goal), now) if partitions else {}


async def _within(
    admin: AdminClient, goals: Mapping[TopicPartition, Goal], committed: Mapping[TopicPartition, Offset]
) -> dict[TopicPartition, Offset]:
    """Where the goals are, each brought between the log's start and its end."""
    starts = await admin.list_offsets(dict.fromkeys(goals, EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(goals, LATEST))
    moments = {name: goal.time_ms for name, goal in goals.items() if goal.kind == "time"}
    times = await admin.list_offsets(moments) if moments else {}
    found: dict[TopicPartition, Offset] = {}
    for name, goal in goals.items():
        at_time = times[name].offset if name in times and times[name].offset >= 0 else None
        start, end = starts[name].offset, ends[name].offset
        found[name] = goal.of(start=start, end=end, committed=committed.get(name), at_time=at_time)
    return found


def _read_csv(path: Path) -> dict[TopicPartition, Goal]:
    """``topic,partition,offset`` a line, as ``--export`` writes it; empty lines are passed over."""
    found: dict[TopicPartition, Goal] = {}
    # What is no text becomes a line that is no topic,partition,offset, and is reported with its number.
    # A spreadsheet begins a file with a byte order mark.
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        for number, row in enumerate(csv.reader(lines), start=1):
            if not row:
                continue
            try:
                topic, partition, offset = row
                found[TopicPartition(topic, int(partition))] = Goal("offset", offset=int(offset))
            except ValueError:
                raise click.UsageError(
                    f"--from-file {path}, line {number}: {','.join(row)!r}: topic,partition,offset is needed"
                ) from None
    if not found:
        raise click.UsageError(f"--from-file {path}: it is empty")
    return dict(sorted(found.items()))


async def _check_empty(admin: AdminClient, groups: list[str]) -> None:
    """Before anything is changed; the coordinator checks again."""
    states = {each.group_id: each.state for each in await admin.list_consumer_groups()}
    for group in groups:
        if states.get(group, "Empty") != "Empty":
            raise NonEmptyGroup(f"group {group} is {states[group]}: stop its members first")
