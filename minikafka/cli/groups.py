"""``minikafka groups``: list, describe, members, state, reset-offsets, delete; columns are kafka-consumer-groups'.

Lag is the log's end (high watermark) minus what is committed; a partition without a commit has none. Offsets are reset
only for a group without members, and only with ``--execute``: without it the new offsets are shown and nothing changes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from minikafka import AdminClient
from minikafka.cli.running import ANSWER_TIMEOUT_MS, Commands, run, somebody_listens
from minikafka.cli.tables import bootstrap_option, output_option, print_json, print_table
from minikafka.errors import InvalidRequest, NonEmptyGroup
from minikafka.groups.protocol import Assignment, by_topic
from minikafka.groups.reset import Goal, duration_ms
from minikafka.types import Offset, TopicPartition
from minikafka.wire.group_messages import DescribedGroup, DescribedMember
from minikafka.wire.messages import EARLIEST, LATEST

Result = TypeVar("Result")

OFFSET_COLUMNS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
)


@click.group(
    cls=Commands,
    epilog="""\b
Examples:
  minikafka groups list
  minikafka groups describe billing
  minikafka groups reset-offsets billing --topic orders --to-earliest --execute
  minikafka groups delete billing""",
)
def command() -> None:
    """Look at consumer groups, move and delete their offsets."""


@command.command(
    name="list",
    epilog="""\b
Examples:
  minikafka groups list -b 127.0.0.1:9092
  minikafka groups list --state Stable -o json""",
)
@click.option(
    "--state", "states", multiple=True, metavar="STATE", help="Only groups in this state; may be given again."
)
@bootstrap_option
@output_option
def list_(states: tuple[str, ...], bootstrap: str, output: str) -> None:
    """List the groups of all coordinators."""
    groups = run(lambda: _with_admin(bootstrap, lambda admin: admin.list_consumer_groups(states=states)))
    if output == "json":
        rows = [{"group": each.group_id, "protocol_type": each.protocol_type, "state": each.state} for each in groups]
        print_json({"groups": rows})
    else:
        print_table(("GROUP", "PROTOCOL-TYPE", "STATE"), [(g.group_id, g.protocol_type, g.state) for g in groups])


@command.command(
    epilog="""\b
Examples:
  minikafka groups describe billing -b 127.0.0.1:9092
  minikafka groups describe billing -o json | jq '[.offsets[].lag] | add'"""
)
@click.argument("group")
@bootstrap_option
@output_option
def describe(group: str, bootstrap: str, output: str) -> None:
    """Show committed offsets, log ends, lag and who reads what."""
    found = run(lambda: _with_admin(bootstrap, lambda admin: described(admin, group)))
    if output == "json":
        print_json(found.to_json())
        return
    if not found.group.members:
        click.echo(f"Consumer group '{group}' has no active members.", err=True)
    print_table(OFFSET_COLUMNS, found.rows())


@command.command(
    epilog="""\b
Examples:
  minikafka groups members billing --verbose"""
)
@click.argument("group")
@click.option("--verbose", is_flag=True, help="With the partitions of each member.")
@bootstrap_option
@output_option
def members(group: str, verbose: bool, bootstrap: str, output: str) -> None:  # noqa: FBT001 - click's flag
    """Show the members of GROUP."""
    found = run(lambda: _with_admin(bootstrap, lambda admin: admin.describe_consumer_groups([group])))[0]
    if output == "json":
        print_json({"group": group, "members": [member_json(each) for each in found.members]})
        return
    columns = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", *(("ASSIGNMENT",) if verbose else ()))
    rows = []
    for each in found.members:
        partitions = _partitions_of(each)
        assigned = ", ".join(f"{topic}({','.join(map(str, part))})" for topic, part in by_topic(partitions).items())
        row = (group, each.member_id, each.client_host, each.client_id, len(partitions))
        rows.append((*row, assigned) if verbose else row)
    print_table(columns, rows)


@command.command(
    epilog="""\b
Examples:
  minikafka groups state billing -o json"""
)
@click.argument("group")
@bootstrap_option
@output_option
def state(group: str, bootstrap: str, output: str) -> None:
    """Show coordinator, state, generation and assignor of GROUP."""

    async def look(admin: AdminClient) -> tuple[int, DescribedGroup]:
        return await admin.find_coordinator(group), (await admin.describe_consumer_groups([group]))[0]

    coordinator, found = run(lambda: _with_admin(bootstrap, look))
    if output == "json":
        print_json(
            {
                "group": group,
                "coordinator": coordinator,
                "state": found.state,
                "generation": found.generation_id,
                "assignment_strategy": found.protocol,
                "members": len(found.members),
            }
        )
    else:
        columns = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "GENERATION", "#MEMBERS")
        print_table(
            columns,
            [(group, coordinator, found.protocol, found.state, found.generation_id, len(found.members))],
        )


@command.command(
    name="reset-offsets",
    epilog="""\b
Examples:
  minikafka groups reset-offsets billing --topic orders --to-earliest
  minikafka groups reset-offsets billing --topic orders:0,2 --shift-by -100 --execute
  minikafka groups reset-offsets billing --all-topics --to-datetime 2026-11-21T08:00:00+00:00 --execute""",
)
@click.argument("group")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC[:P,P]", help="May be given again.")
@click.option("--all-topics", is_flag=True, help="All that the group has committed.")
@click.option("--to-earliest", is_flag=True, help="To the first record that is kept.")
@click.option("--to-latest", is_flag=True, help="Behind the last committed record.")
@click.option("--to-current", is_flag=True, help="To what is committed now (or the latest).")
@click.option("--to-offset", type=click.IntRange(0), default=None, metavar="N")
@click.option("--shift-by", type=int, default=None, metavar="N", help="Forward, or back when negative.")
@click.option("--to-datetime", default=None, metavar="ISO", help="First record at or after; without a zone: UTC.")
@click.option("--by-duration", default=None, metavar="PnDTnHnMnS", help="Back from now (PT1H), or seconds.")
@click.option("--execute", is_flag=True, help="Do it; without this it is only shown.")
@bootstrap_option
@output_option
def reset_offsets(
    group: str,
    topics: tuple[str, ...],
    all_topics: bool,  # noqa: FBT001 - click's flags
    to_earliest: bool,  # noqa: FBT001
    to_latest: bool,  # noqa: FBT001
    to_current: bool,  # noqa: FBT001
    to_offset: int | None,
    shift_by: int | None,
    to_datetime: str | None,
    by_duration: str | None,
    execute: bool,  # noqa: FBT001
    bootstrap: str,
    output: str,
) -> None:
    """Show where GROUP would go on, and with --execute let it."""
    if bool(topics) == all_topics:
        raise click.UsageError("either --topic (may be given again) or --all-topics is needed")
    goals = {
        "earliest": to_earliest,
        "latest": to_latest,
        "current": to_current,
        "offset": to_offset is not None,
        "shift": shift_by is not None,
        "time": to_datetime is not None or by_duration is not None,
    }
    chosen = [name for name, given in goals.items() if given]
    if len(chosen) != 1 or (to_datetime is not None and by_duration is not None):
        raise click.UsageError(
            "exactly one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, "
            "--to-datetime, --by-duration is needed"
        )
    goal = Goal(chosen[0], to_offset or 0, shift_by or 0, _time_ms(to_datetime, by_duration))

    async def reset(admin: AdminClient) -> dict[TopicPartition, Offset]:
        if execute:
            await _check_empty(admin, group)
        offsets = await new_offsets(admin, group, topics, goal)
        if execute:
            await admin.alter_consumer_group_offsets(group, offsets)
        return offsets

    offsets = run(lambda: _with_admin(bootstrap, reset))
    if output == "json":
        rows = [
            {"group": group, "topic": each.topic, "partition": each.partition, "new_offset": offset}
            for each, offset in offsets.items()
        ]
        print_json({"executed": execute, "offsets": rows})
    else:
        print_table(
            ("GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"),
            [(group, each.topic, each.partition, offset) for each, offset in offsets.items()],
        )
        if not execute:
            click.echo("Nothing was changed: add --execute.", err=True)


@command.command(
    epilog="""\b
Examples:
  minikafka groups delete billing"""
)
@click.argument("group", nargs=-1, required=True)
@bootstrap_option
def delete(group: tuple[str, ...], bootstrap: str) -> None:
    """Delete groups without members, with all that they committed."""
    run(lambda: _with_admin(bootstrap, lambda admin: admin.delete_consumer_groups(group)))
    click.echo(f"Deleted {', '.join(group)}.")


# ---- what is shown ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lag:
    """One partition as ``describe`` shows it; None: nothing is committed."""

    partition: TopicPartition
    committed: Offset | None
    log_end: Offset

    @property
    def lag(self) -> int | None:
        return None if self.committed is None else max(0, self.log_end - self.committed)


@dataclass(frozen=True, slots=True)
class Described:
    """A group, and how far it is."""

    group: DescribedGroup
    lags: tuple[Lag, ...]

    def to_json(self) -> dict[str, Any]:
        """The contract of ``groups describe -o json``."""
        return {
            "group": self.group.group_id,
            "state": self.group.state,
            "generation": self.group.generation_id,
            "members": [member_json(each) for each in self.group.members],
            "offsets": [
                {
                    "topic": each.partition.topic,
                    "partition": each.partition.partition,
                    "committed": each.committed,
                    "log_end": each.log_end,
                    "lag": each.lag,
                }
                for each in self.lags
            ],
        }

    def rows(self) -> list[tuple[object, ...]]:
        """Partitions with their readers; then members that read nothing."""
        readers = {part: member for member in self.group.members for part in _partitions_of(member)}
        name = self.group.group_id
        rows: list[tuple[object, ...]] = []
        for each in self.lags:
            reader = readers.get(each.partition)
            who = (reader.member_id, reader.client_host, reader.client_id) if reader else ("", "", "")
            rows.append((name, *each.partition, _dash(each.committed), each.log_end, _dash(each.lag), *who))
        idle = [member for member in self.group.members if not _partitions_of(member)]
        rows += [(name, "", "", "", "", "", m.member_id, m.client_host, m.client_id) for m in idle]
        return rows


def _dash(value: int | None) -> object:
    return "" if value is None else value


def member_json(member: DescribedMember) -> dict[str, Any]:
    """One member, as in ``describe -o json``."""
    assigned = by_topic(_partitions_of(member))
    return {
        "member_id": member.member_id,
        "client_id": member.client_id,
        "assignment": [{"topic": topic, "partitions": numbers} for topic, numbers in assigned.items()],
    }


def _partitions_of(member: DescribedMember) -> tuple[TopicPartition, ...]:
    """Nothing for a member of another protocol, whose bytes are not ours to read."""
    try:
        return Assignment.unpacked(member.assignment).partitions
    except ValueError:
        return ()


async def described(admin: AdminClient, name: str) -> Described:
    """The group and its lag: all that is committed or assigned."""
    group = (await admin.describe_consumer_groups([name]))[0]
    committed = await admin.list_consumer_group_offsets(name)
    assigned = {part for member in group.members for part in _partitions_of(member)}
    partitions = sorted(assigned | committed.keys())
    ends = await admin.list_offsets(dict.fromkeys(partitions, LATEST)) if partitions else {}
    lags = tuple(
        Lag(each, committed[each].offset if each in committed else None, ends[each].offset) for each in partitions
    )
    return Described(group, lags)


# ---- new offsets -----------------------------------------------------------------------------------------------------


def _time_ms(to_datetime: str | None, by_duration: str | None) -> int:
    try:
        if by_duration is not None:
            return int(datetime.now(UTC).timestamp() * 1000) - duration_ms(by_duration)
        return 0 if to_datetime is None else _moment_ms(to_datetime)
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
    """The offsets of a reset, each brought between the log's start and its end."""
    committed = await admin.list_consumer_group_offsets(group)
    partitions = [each for topic in topics for each in await _partitions(admin, topic)] or sorted(committed)
    if not partitions:
        raise InvalidRequest(f"group {group} has committed nothing: name a --topic")
    starts = await admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = await admin.list_offsets(dict.fromkeys(partitions, LATEST))
    times: Mapping[TopicPartition, Any] = {}
    if goal.kind == "time":
        times = await admin.list_offsets(dict.fromkeys(partitions, goal.time_ms))
    found: dict[TopicPartition, Offset] = {}
    for each in partitions:
        at_time = times[each].offset if each in times and times[each].offset >= 0 else None
        now = committed[each].offset if each in committed else None
        found[each] = goal.of(start=starts[each].offset, end=ends[each].offset, committed=now, at_time=at_time)
    return found


async def _partitions(admin: AdminClient, text: str) -> list[TopicPartition]:
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


async def _check_empty(admin: AdminClient, group: str) -> None:
    """Before anything is changed; the coordinator checks again."""
    states = {each.group_id: each.state for each in await admin.list_consumer_groups()}
    if states.get(group, "Empty") != "Empty":
        raise NonEmptyGroup(f"group {group} is {states[group]}: stop its members first")


async def _with_admin(bootstrap: str, work: Callable[[AdminClient], Awaitable[Result]]) -> Result:
    await somebody_listens(bootstrap)
    async with AdminClient(bootstrap_servers=bootstrap, default_api_timeout_ms=ANSWER_TIMEOUT_MS) as admin:
        return await work(admin)
