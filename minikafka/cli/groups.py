"""``minikafka groups``: list, describe, members, state, reset-offsets, delete; columns are kafka-consumer-groups'.

Lag is the log's end (high watermark) minus what is committed; a partition without a commit has none. Offsets are reset
only for a group without members, and only with ``--execute``: without it the new offsets are shown and nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from minikafka import AdminClient
from minikafka.cli import kafka_groups
from minikafka.cli.admin import with_admin
from minikafka.cli.group_reset import reset_offsets
from minikafka.cli.running import Commands, run
from minikafka.cli.tables import bootstrap_option, kafka_output_option, print_json, print_lines, print_table
from minikafka.groups.protocol import Assignment, by_topic
from minikafka.types import NodeId, Offset, TopicPartition
from minikafka.wire.group_messages import DescribedGroup, DescribedMember
from minikafka.wire.messages import LATEST


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
    "--state",
    "states",
    multiple=True,
    metavar="STATE",
    help="Only these; with commas, or given again.",
)
@bootstrap_option
@kafka_output_option
def list_(states: tuple[str, ...], bootstrap: str, output: str) -> None:
    """List the groups of all coordinators."""
    wanted = [each.strip() for given in states for each in given.split(",")]
    groups = run(lambda: with_admin(bootstrap, lambda admin: admin.list_consumer_groups(states=wanted)))
    if output == "kafka":
        print_lines(kafka_groups.listed(groups, with_states=bool(states)))
        return
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
@kafka_output_option
def describe(group: str, bootstrap: str, output: str) -> None:
    """Show committed offsets, log ends, lag and who reads what."""
    found = run(lambda: with_admin(bootstrap, lambda admin: described(admin, group)))
    if output == "json":
        print_json(found.to_json())
        return
    told = kafka_groups.notice(found.group)
    if told is not None:
        click.echo(told if output == "kafka" else told.strip(), err=True)
    if output == "kafka":
        print_lines(found.kafka())
        return
    print_table(kafka_groups.OFFSETS, found.rows())


@command.command(
    epilog="""\b
Examples:
  minikafka groups members billing --verbose"""
)
@click.argument("group")
@click.option("--verbose", is_flag=True, help="With the partitions of each member.")
@bootstrap_option
@kafka_output_option
def members(group: str, verbose: bool, bootstrap: str, output: str) -> None:  # noqa: FBT001 - click's flag
    """Show the members of GROUP."""
    found = run(lambda: with_admin(bootstrap, lambda admin: admin.describe_consumer_groups([group])))[0]
    if output == "json":
        print_json({"group": group, "members": [member_json(each) for each in found.members]})
        return
    if output == "kafka":
        told = kafka_groups.notice(found)
        if told is not None:
            click.echo(told, err=True)
        assigned = {each.member_id: _partitions_of(each) for each in found.members}
        print_lines(kafka_groups.members(found, assigned, verbose=verbose))
        return
    columns = (*kafka_groups.MEMBERS, *(("ASSIGNMENT",) if verbose else ()))
    rows = []
    for each in found.members:
        partitions = _partitions_of(each)
        shared = ", ".join(f"{topic}({','.join(map(str, part))})" for topic, part in by_topic(partitions).items())
        row = (group, each.member_id, each.client_host, each.client_id, len(partitions))
        rows.append((*row, shared) if verbose else row)
    print_table(columns, rows)


@command.command(
    epilog="""\b
Examples:
  minikafka groups state billing -o json"""
)
@click.argument("group")
@bootstrap_option
@kafka_output_option
def state(group: str, bootstrap: str, output: str) -> None:
    """Show coordinator, state, generation and assignor of GROUP."""

    async def look(admin: AdminClient) -> tuple[NodeId, str, DescribedGroup]:
        found = (await admin.describe_consumer_groups([group]))[0]
        node = await admin.find_coordinator(group)
        brokers = (await admin.describe_cluster())["brokers"]
        address = next((f"{each['host']}:{each['port']}" for each in brokers if each["node_id"] == node), "?")
        return node, address, found

    coordinator, address, found = run(lambda: with_admin(bootstrap, look))
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
        return
    if output == "kafka":
        told = kafka_groups.notice(found)
        if told is not None:
            click.echo(told, err=True)
        print_lines(kafka_groups.state(found, f"{address}  ({coordinator})"))
        return
    print_table(
        kafka_groups.STATE, [(group, f"{address} ({coordinator})", found.protocol, found.state, len(found.members))]
    )


command.add_command(reset_offsets)


@command.command(
    epilog="""\b
Examples:
  minikafka groups delete billing"""
)
@click.argument("group", nargs=-1, required=True)
@bootstrap_option
@kafka_output_option
def delete(group: tuple[str, ...], bootstrap: str, output: str) -> None:
    """Delete groups without members, with all that they committed."""
    run(lambda: with_admin(bootstrap, lambda admin: admin.delete_consumer_groups(group)))
    if output == "json":
        print_json({"deleted": list(group)})
    else:
        click.echo(kafka_groups.deleted(group) if output == "kafka" else f"Deleted {', '.join(group)}.")


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

    def kafka(self) -> list[str]:
        """As Kafka's tool prints it."""
        assigned = {each.member_id: _partitions_of(each) for each in self.group.members}
        committed = {each.partition: each.committed for each in self.lags if each.committed is not None}
        ends = {each.partition: each.log_end for each in self.lags}
        return list(kafka_groups.offsets(self.group, assigned, committed, ends))

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
