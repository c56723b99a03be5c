"""``minikafka groups``: list, describe, members and state; columns are kafka-consumer-groups'.

Lag is the log's end (high watermark) minus what is committed; a partition without a commit has none. What changes
groups is in ``group_changes.py``. With ``--all-groups`` the JSON is ``{"groups": [...]}``,
of what it prints for one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from minikafka import AdminClient
from minikafka.cli import kafka_layout
from minikafka.cli.admin import call_admin
from minikafka.cli.group_changes import check_choice, chosen, delete, delete_offsets, group_or_all, reset_offsets
from minikafka.cli.running import command_group
from minikafka.cli.tables import columns_of, kafka_list_options, print_found, print_json, print_lines
from minikafka.coordination.packing import by_topic
from minikafka.errors import GroupIdNotFound, UnknownTopicOrPartition
from minikafka.groups.group import State
from minikafka.groups.protocol import Assignment
from minikafka.types import NO_NODE, NodeId, Offset, TopicPartition
from minikafka.wire.group_messages import DescribedGroup, DescribedMember
from minikafka.wire.messages import LATEST

Found = TypeVar("Found")

STATES = tuple(each.value for each in State)
NO_GROUPS = "There are no groups."


@command_group()
def command() -> None:
    """Look at consumer groups, move and delete their offsets.

    Examples:
      minikafka groups list
      minikafka groups describe billing
      minikafka groups reset-offsets billing --topic orders --to-earliest --execute
      minikafka groups delete-offsets billing --topic orders
      minikafka groups delete billing
    """


@command.command(name="list")
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help=f"Only groups in these states, separated by commas (repeatable): {', '.join(STATES)}.",
)
@kafka_list_options
def list_(states: tuple[str, ...], bootstrap: str, output: str) -> None:
    """List the groups of all coordinators.

    Examples:
      minikafka groups list -b 127.0.0.1:9092
      minikafka groups list --state Stable -o json
    """
    wanted = [each.strip() for given in states for each in given.split(",")]
    known = {each.lower() for each in STATES}
    for each in wanted:
        if each.lower() not in known:
            raise click.UsageError(f"--state {each!r}: one of {', '.join(STATES)} is needed")
    groups = call_admin(bootstrap, lambda admin: admin.list_consumer_groups(states=wanted))
    listed = [{"group": each.group_id, "protocol_type": each.protocol_type, "state": each.state} for each in groups]
    print_found(
        output,
        {"groups": listed},
        columns_of("GROUP", "PROTOCOL-TYPE", "STATE"),
        listed,
        kafka=kafka_layout.groups_listed(groups, with_states=bool(states)),
        nothing="No group is in that state." if wanted else NO_GROUPS,
    )


@command.command()
@group_or_all
@kafka_list_options
def describe(group: str | None, all_groups: bool, bootstrap: str, output: str) -> None:
    """Show committed offsets, log ends, lag and who reads what.

    Examples:
      minikafka groups describe billing -b 127.0.0.1:9092
      minikafka groups describe --all-groups
      minikafka groups describe billing -o json | jq '[.offsets[].lag] | add'
    """
    found = _asked(described, group, bootstrap, all_groups=all_groups)
    if output == "json":
        _print_groups([each.to_json() for each in found], all_groups=all_groups)
        return
    for each in found:
        _print_notice(each.group, output)
        if output == "kafka":
            print_lines(each.kafka())
    if output in ("table", "tsv"):
        nothing = "There are neither members nor committed offsets." if found else NO_GROUPS
        print_found(output, None, kafka_layout.OFFSETS, [row for each in found for row in each.rows()], nothing=nothing)


@command.command()
@group_or_all
@click.option("--verbose", is_flag=True, help="Show the partitions of each member.")
@kafka_list_options
def members(group: str | None, all_groups: bool, verbose: bool, bootstrap: str, output: str) -> None:
    """Show the members of GROUP.

    Examples:
      minikafka groups members billing --verbose
      minikafka groups members --all-groups
    """
    found = _asked(_group, group, bootstrap, all_groups=all_groups)
    if output == "json":
        rows = [{"group": each.group_id, "members": [member_json(one) for one in each.members]} for each in found]
        _print_groups(rows, all_groups=all_groups)
    elif output == "kafka":
        for each in found:
            _print_notice(each, output)
            assigned = {one.member_id: _partitions_of(one) for one in each.members}
            print_lines(kafka_layout.group_members(each, assigned, verbose=verbose))
    else:
        columns = (*kafka_layout.MEMBERS, "SOFTWARE", *(("ASSIGNMENT",) if verbose else ()))
        member_rows = [row for each in found for row in _member_rows(each, verbose=verbose)]
        print_found(output, None, columns, member_rows, nothing="There are no members." if found else NO_GROUPS)


@command.command()
@group_or_all
@kafka_list_options
def state(group: str | None, all_groups: bool, bootstrap: str, output: str) -> None:
    """Show coordinator, state, generation and assignor of GROUP.

    Examples:
      minikafka groups state billing -o json
      minikafka groups state --all-groups
    """
    found = _asked(_standing, group, bootstrap, all_groups=all_groups)
    if output == "json":
        _print_groups([each.to_json() for each in found], all_groups=all_groups)
    elif output == "kafka":
        for each in found:
            _print_notice(each.group, output)
            print_lines(kafka_layout.group_state(each.group, f"{each.address}  ({each.coordinator})"))
    else:
        print_found(output, None, kafka_layout.STATE, [each.row() for each in found], nothing=NO_GROUPS)


command.add_command(reset_offsets)
command.add_command(delete_offsets)
command.add_command(delete)


# ---- what is shown ---------------------------------------------------------------------------------------------------


def _asked(
    about: Callable[[AdminClient, str], Awaitable[Found]], group: str | None, bootstrap: str, *, all_groups: bool
) -> list[Found]:
    """``about`` of the group that was named, or of each that there is but those that went meanwhile."""
    check_choice(group, all_groups=all_groups)

    async def ask(admin: AdminClient) -> list[Found]:
        found = []
        for name in await chosen(admin, group):
            try:
                found.append(await about(admin, name))
            except GroupIdNotFound:
                if not all_groups:
                    raise
        return found

    return call_admin(bootstrap, ask)


def _print_groups(groups: list[dict[str, Any]], *, all_groups: bool) -> None:
    print_json({"groups": groups} if all_groups else groups[0])


def _print_notice(group: DescribedGroup, output: str) -> None:
    notice = kafka_layout.groups_notice(group)
    if notice is not None:
        click.echo(notice if output == "kafka" else notice.strip(), err=True)


async def _group(admin: AdminClient, name: str) -> DescribedGroup:
    return (await admin.describe_consumer_groups([name]))[0]


def _member_rows(group: DescribedGroup, *, verbose: bool) -> Iterator[tuple[object, ...]]:
    for each in group.members:
        partitions = _partitions_of(each)
        row = (group.group_id, each.member_id, each.client_host, each.client_id, len(partitions), each.software)
        shared = ", ".join(f"{topic}({','.join(map(str, part))})" for topic, part in by_topic(partitions).items())
        yield (*row, shared) if verbose else row


@dataclass(frozen=True, slots=True)
class Standing:
    """A group, and who coordinates it."""

    group: DescribedGroup
    coordinator: NodeId
    address: str

    def to_json(self) -> dict[str, Any]:
        """The contract of ``groups state -o json``."""
        return {
            "group": self.group.group_id,
            "coordinator": self.coordinator,
            "state": self.group.state,
            "generation": self.group.generation_id,
            "assignment_strategy": self.group.protocol,
            "members": len(self.group.members),
        }

    def row(self) -> tuple[object, ...]:
        group = self.group
        coordinator = f"{self.address} ({self.coordinator})"
        return group.group_id, coordinator, group.protocol, group.state, len(group.members)


async def _standing(admin: AdminClient, name: str) -> Standing:
    found = await _group(admin, name)
    node = await admin.find_coordinator(name)
    brokers = (await admin.describe_cluster())["brokers"]
    address = next((f"{each['host']}:{each['port']}" for each in brokers if each["node_id"] == node), "?")
    return Standing(found, node, address)


@dataclass(frozen=True, slots=True)
class Lag:
    """One partition as ``describe`` shows it; None: nothing is committed, nobody knows the log's end."""

    partition: TopicPartition
    committed: Offset | None
    log_end: Offset | None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None or self.log_end is None else max(0, self.log_end - self.committed)


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
                {**each.partition._asdict(), "committed": each.committed, "log_end": each.log_end, "lag": each.lag}
                for each in self.lags
            ],
        }

    def kafka(self) -> list[str]:
        """As Kafka's tool prints it."""
        assigned = {each.member_id: _partitions_of(each) for each in self.group.members}
        committed = {each.partition: each.committed for each in self.lags if each.committed is not None}
        ends = {each.partition: each.log_end for each in self.lags if each.log_end is not None}
        return list(kafka_layout.group_offsets(self.group, assigned, committed, ends))

    def rows(self) -> list[tuple[object, ...]]:
        """Partitions with their readers; then members that read nothing."""
        readers = {part: member for member in self.group.members for part in _partitions_of(member)}
        name = self.group.group_id
        rows: list[tuple[object, ...]] = []
        for each in self.lags:
            reader = readers.get(each.partition)
            who = (reader.member_id, reader.client_host, reader.client_id) if reader else ("", "", "")
            rows.append((name, *each.partition, each.committed, each.log_end, each.lag, *who))
        idle = [member for member in self.group.members if not _partitions_of(member)]
        rows += [(name, "", "", "", "", "", m.member_id, m.client_host, m.client_id) for m in idle]
        return rows


def member_json(member: DescribedMember) -> dict[str, Any]:
    """One member, as in ``describe -o json``."""
    assigned = by_topic(_partitions_of(member))
    return {
        "member_id": member.member_id,
        "client_id": member.client_id,
        "software": member.software,
        "assignment": [{"topic": topic, "partitions": numbers} for topic, numbers in assigned.items()],
    }


def _partitions_of(member: DescribedMember) -> tuple[TopicPartition, ...]:
    return Assignment.readable(member.assignment).partitions


async def described(admin: AdminClient, name: str) -> Described:
    """The group and its lag: all that is committed or assigned."""
    group = await _group(admin, name)
    committed = await admin.list_consumer_group_offsets(name)
    assigned = {part for member in group.members for part in _partitions_of(member)}
    partitions = sorted(assigned | committed.keys())
    led = await _led(admin, partitions)
    ends = await admin.list_offsets(dict.fromkeys(led, LATEST)) if led else {}
    lags = tuple(
        Lag(each, committed[each].offset if each in committed else None, ends[each].offset if each in ends else None)
        for each in partitions
    )
    return Described(group, lags)


async def _led(admin: AdminClient, partitions: list[TopicPartition]) -> list[TopicPartition]:
    """Those that exist and have a leader: of the others nobody can tell the end, and nobody is waited for."""
    led: set[TopicPartition] = set()
    for name in by_topic(partitions):
        try:
            (topic,) = await admin.describe_topics([name])
        except UnknownTopicOrPartition:
            continue
        led.update(TopicPartition(name, each.partition) for each in topic.partitions if each.leader != NO_NODE)
    return [each for each in partitions if each in led]
