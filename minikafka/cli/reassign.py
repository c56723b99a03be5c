"""Which brokers hold and lead partitions: ``minikafka reassign`` and ``minikafka elect``.

``reassign`` moves partitions to other brokers while they are in use (KIP-455).

Kafka's JSON files are read and written (``kafka-reassign-partitions.sh``); single moves can be given as arguments,
``orders-0=4,2,3``. The first broker of the list is the preferred leader.

``elect preferred|unclean`` elects leaders by an administrator's wish.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from minikafka import AdminClient
from minikafka.addresses import is_number
from minikafka.cli import kafka_layout
from minikafka.cli.admin import call_admin, connection, parse_partition, partition_in, read_json, with_admin
from minikafka.cli.running import FAILED, Failure, Misuse, command_group, run
from minikafka.cli.tables import (
    EXISTING_FILE,
    OutputFile,
    bootstrap_option,
    columns_of,
    kafka_list_options,
    kafka_output_option,
    many,
    partition_name,
    print_found,
    print_lines,
    print_table,
    show,
    together,
    watch_option,
)
from minikafka.client.structs import Reassignment
from minikafka.errors import ElectionNotNeeded, ProtocolError
from minikafka.quorum.assignment import spread
from minikafka.types import NO_OFFSET, Address, NodeId, TopicPartition
from minikafka.wire.messages import DescribedReplica, DescribedTopic, DescribeReplicasRequest, DescribeReplicasResponse
from minikafka.world.clients import Asker

WAIT_STEP_S = 0.5
NAMED_MAX = 5
"""Moves that a line of ``--wait`` names."""

STATUS_COLUMNS = columns_of(
    *("Partition", "Replicas", "Adding=adding_replicas", "Removing=removing_replicas", "WaitsFor", "RecordsLeft"),
    Partition=partition_name,
)

MOVES = click.argument("moves", nargs=-1, metavar="FILE|TOPIC-PARTITION=BROKERS ...")
MOVES_IF_ANY = click.argument("moves", nargs=-1, metavar="[FILE|TOPIC-PARTITION=BROKERS]...")


@dataclass(slots=True)
class Progress:
    """One reassignment under way, and how far each replica that is added has come."""

    name: TopicPartition
    moving: Reassignment
    isr: tuple[NodeId, ...] = ()
    leader_end: int = NO_OFFSET
    leader_start: int = NO_OFFSET
    ends: dict[NodeId, int] = field(default_factory=dict)
    """Log ends of the replicas that are added, as far as the leader knows them."""

    @property
    def missing(self) -> tuple[NodeId, ...]:
        """Replicas of the target that are not in sync: what it waits for."""
        return tuple(node for node in self.moving.target if node not in self.isr)

    def records_left(self) -> int | None:
        """Offsets that the slowest of them still lacks; None: the leader does not tell."""
        if self.leader_end < 0:
            return None
        start = max(0, self.leader_start)
        return max((self.leader_end - max(start, self.ends.get(node, start)) for node in self.missing), default=0)


@command_group()
def command() -> None:
    """Move partitions to other brokers while they are in use.

    Examples:
      minikafka reassign generate --brokers 1,2,3,4 > plan.json
      minikafka reassign execute plan.json --wait
      minikafka reassign execute orders-0=4,2,3
      minikafka reassign status
      minikafka reassign cancel orders-0
    """


# ---- generate --------------------------------------------------------------------------------------------------------


@command.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--brokers", required=True, metavar="ID,ID,...", help="Brokers that will hold the replicas.")
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    help="New number of replicas of each partition (default: unchanged).",
)
@click.option(
    "--topics-file",
    type=EXISTING_FILE,
    help='Topics from Kafka\'s JSON file: {"topics":[{"topic":"orders"}],"version":1}.',
)
@bootstrap_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "table", "tsv", "kafka"]),
    default="json",
    show_default=True,
    help="The plan as the JSON that `execute` reads; a table of what would move, for people or with tabs; or what "
    "Kafka's tool prints.",
)
def generate(
    topics: tuple[str, ...],
    brokers: str,
    replication_factor: int | None,
    topics_file: Path | None,
    bootstrap: str,
    output: str,
) -> None:
    """Propose where the partitions of TOPIC ..., or of all topics, should lie. Nothing is changed.

    Examples:
      minikafka reassign generate --brokers 1,2,3,4 > plan.json
      minikafka reassign generate orders --brokers 4,5,6 --replication-factor 3 -o table
      minikafka reassign generate --topics-file topics-to-move.json --brokers 4,5 -o kafka

    The plan moves as few replicas as it can: what already lies on the chosen brokers stays, replicas and
    preferred leaders are spread evenly.
    """
    wanted = _nodes(brokers, "--brokers")
    names: list[str] = list(topics)
    if topics_file is not None:
        for each in read_json(topics_file, "topics"):
            if not isinstance(each, dict) or not isinstance(each.get("topic"), str):
                raise Misuse(f'{topics_file}: each entry needs "topic", {json.dumps(each)[:100]} has not')
            names.append(each["topic"])

    async def asked(admin: Any) -> tuple[Any, set[NodeId]]:
        live = {each["node_id"] for each in (await admin.describe_cluster())["brokers"]}
        return await admin.describe_topics(names or None), live

    described, live = call_admin(bootstrap, asked)
    current = _assignments(described)
    if not current:
        raise Failure("there is no topic whose partitions could be moved")
    known = live.union(*current.values())
    for node in wanted:
        if node not in known:
            brokers_known = ", ".join(map(str, sorted(known)))
            raise Misuse(f"--brokers {brokers}: no broker {node} is running; the cluster's brokers are {brokers_known}")
    try:
        proposed = spread(current, wanted, replication_factor=replication_factor)
    except ProtocolError as error:
        raise Misuse(f"--brokers {brokers}: {error.message}") from error
    if output == "kafka":
        print_lines(kafka_layout.reassignment_generated(current, proposed))
    elif output == "json":
        click.echo(kafka_layout.assignment_json(proposed))
    else:
        rows = [(str(name), current[name], proposed[name]) for name in proposed if current[name] != proposed[name]]
        if rows or output == "tsv":
            print_table(("Partition", "Replicas", "Proposed"), rows, output)
        else:
            click.echo("Nothing would move.")


# ---- execute ---------------------------------------------------------------------------------------------------------


@command.command()
@MOVES
@click.option("--wait", is_flag=True, help="Wait until the moves are complete, and show progress.")
@click.option(
    "--rollback",
    type=OutputFile(),
    help="Write the present assignment to this file; `execute` with it undoes the moves.",
)
@click.option("--additional", is_flag=True, help="Start the moves even if other reassignments are under way.")
@kafka_list_options
def execute(
    moves: tuple[str, ...], wait: bool, rollback: Path | None, additional: bool, bootstrap: str, output: str
) -> None:
    """Begin to move partitions, as FILE (Kafka's JSON) or the arguments say.

    The new replicas copy everything from the leader, join the ISR, and then the old ones go.

    Examples:
      minikafka reassign execute plan.json --wait --rollback rollback.json
      minikafka reassign execute orders-0=4,2,3 orders-1=2,3,4
      minikafka reassign execute plan.json -o kafka
    """
    wanted = _wanted(moves)

    async def begin(admin: AdminClient) -> dict[TopicPartition, tuple[NodeId, ...]]:
        if not additional and await admin.list_partition_reassignments():
            raise Failure(
                "other reassignments are under way: `minikafka reassign status` shows them; --additional adds"
            )
        current = _assignments(await admin.describe_topics(sorted({name.topic for name in wanted})))
        before = {name: current[name] for name in wanted if name in current}
        if rollback is not None:
            _write(rollback, before)
        answers = await admin.alter_partition_reassignments(wanted)
        _fail_if_refused(answers, "refused")
        return before

    before = call_admin(bootstrap, begin)
    started = [{**each._asdict(), "replicas": before.get(each, ()), "target": wanted[each]} for each in sorted(wanted)]
    print_found(
        output,
        {"started": started},
        columns_of("Partition", "Replicas", "Target", Partition=partition_name),
        started,
        kafka=kafka_layout.reassignment_started(before, list(wanted)),
    )
    if wait:
        run(lambda: _until_complete(bootstrap, wanted))
        if output == "table":
            click.echo("Complete.")


def _write(rollback: Path, before: kafka_layout.Assignments) -> None:
    rollback.write_text(kafka_layout.assignment_json(before) + "\n", encoding="utf-8")


async def _until_complete(bootstrap: str, wanted: kafka_layout.Assignments) -> None:
    """Progress on standard error whenever it changes, until nothing of it is under way.

    Raises Failure if a partition is elsewhere then: its reassignment was cancelled, or another one took its place.
    """
    last = ""
    while True:
        left, current = await _status(bootstrap, list(wanted))
        if not left:
            elsewhere = [name for name, nodes in wanted.items() if current.get(name) != nodes]
            if elsewhere:
                where = [f"{name} is on {kafka_layout.ids(current.get(name, ()))}" for name in elsewhere[:NAMED_MAX]]
                raise Failure(
                    f"nothing is under way any more, but {'; '.join(where)}: the reassignment of "
                    f"{many(len(elsewhere), 'partition')} was cancelled or replaced"
                )
            return
        line = progress_line(left)
        if line != last:
            click.echo(line, err=True)
            last = line
        await asyncio.sleep(WAIT_STEP_S)


def progress_line(left: Sequence[Progress]) -> str:
    """What the first of the moves wait for, and how many more there are: a cluster's plan may have hundreds."""
    words = [f"{each.name} waits for {kafka_layout.ids(each.missing)}{_left(each)}" for each in left[:NAMED_MAX]]
    others = len(left) - len(words)
    return "; ".join([*words, f"and {many(others, 'more partition')}"] if others else words)


def _left(each: Progress) -> str:
    left = each.records_left()
    return "" if left is None else f" ({left} records to go)"


# ---- status ----------------------------------------------------------------------------------------------------------


@command.command()
@MOVES_IF_ANY
@kafka_list_options
@watch_option
def status(moves: tuple[str, ...], bootstrap: str, output: str, watch: bool) -> None:
    """Show what is under way, and what it still waits for.

    Examples:
      minikafka reassign status
      minikafka reassign status --watch
      minikafka reassign status plan.json -o kafka
      minikafka reassign status -o json

    With FILE or moves, -o kafka prints what `kafka-reassign-partitions.sh --verify` does, and the exit code is 1
    as long as something of it is not complete; without, what `--list` does.
    """
    wanted = _wanted(moves) if moves else None
    show(
        lambda: _status(bootstrap, None if wanted is None else list(wanted)),
        lambda status: _draw_status(status, wanted, output),
        watch=watch,
    )


_Status = tuple[list[Progress], dict[TopicPartition, tuple[NodeId, ...]]]


async def _status(bootstrap: str, names: Sequence[TopicPartition] | None) -> _Status:
    progress = await _progress(bootstrap, names)
    if names is None:
        return progress, {}
    described = await with_admin(bootstrap, lambda admin: admin.describe_topics(sorted({each.topic for each in names})))
    return progress, _assignments(described)


def _draw_status(status: _Status, wanted: dict[TopicPartition, tuple[NodeId, ...]] | None, output: str) -> None:
    progress, current = status
    ongoing = {each.name: each.moving for each in progress}
    others = [name for name in wanted or {} if name not in ongoing and current.get(name) != (wanted or {})[name]]
    moving = [_to_json(each) for each in progress]
    print_found(
        output,
        {"reassignments": moving, "not_as_wanted": [name._asdict() for name in others]},
        STATUS_COLUMNS,
        moving,
        kafka=kafka_layout.reassignments_listed(ongoing)
        if wanted is None
        else kafka_layout.reassignments_verified(wanted, current, ongoing),
        nothing="No reassignment is under way.",
    )
    for name in others if output in ("table", "tsv") else ():
        where = kafka_layout.ids(current.get(name, ()))
        click.echo(f"{name} is on {where}, and nothing moves it.", err=output == "tsv")
    if wanted is not None and (progress or others):
        raise click.exceptions.Exit(1)


async def _progress(bootstrap: str, names: Sequence[TopicPartition] | None) -> list[Progress]:
    """What is under way, with what the leaders know of the new replicas; one that does not answer tells nothing."""

    async def asked(
        admin: AdminClient,
    ) -> tuple[dict[TopicPartition, Reassignment], list[DescribedTopic], dict[NodeId, Address]]:
        ongoing = await admin.list_partition_reassignments(names)
        topics = await admin.describe_topics(sorted({name.topic for name in ongoing})) if ongoing else []
        brokers = (await admin.describe_cluster())["brokers"]
        return ongoing, topics, {each["node_id"]: Address(each["host"], each["port"]) for each in brokers}

    ongoing, topics, where = await with_admin(bootstrap, asked)
    states = {TopicPartition(topic.topic, each.partition): each for topic in topics for each in topic.partitions}
    found = [Progress(name, moving) for name, moving in sorted(ongoing.items()) if name in states]
    for each in found:
        each.isr = states[each.name].isr
    by_leader: dict[NodeId, list[Progress]] = {}
    for each in found:
        by_leader.setdefault(states[each.name].leader, []).append(each)
    async with Asker(bootstrap, *connection(bootstrap)) as asker:
        for leader, group in sorted(by_leader.items()):
            if leader in where:
                await _ask_leader(asker, where[leader], group)
    return found


async def _ask_leader(asker: Asker, address: Address, group: list[Progress]) -> None:
    request = DescribeReplicasRequest(topics=tuple(sorted({each.name.topic for each in group})))
    try:
        answer: DescribeReplicasResponse = await asker.ask(address, request)
    except ProtocolError as error:
        click.echo(f"{address} does not tell how far it is: {error.message}", err=True)
        return
    known: dict[TopicPartition, DescribedReplica] = {
        TopicPartition(each.topic, each.partition): each for each in answer.replicas
    }
    for each in group:
        replica = known.get(each.name)
        if replica is not None:
            each.leader_start, each.leader_end = replica.log_start_offset, replica.log_end_offset
            each.ends = {remote.broker_id: remote.log_end_offset for remote in replica.remotes}


# ---- cancel ----------------------------------------------------------------------------------------------------------


@command.command()
@click.argument("partitions", nargs=-1, metavar="[FILE|TOPIC-PARTITION]...")
@click.option("--all", "everything", is_flag=True, help="Cancel all reassignments that are under way.")
@kafka_list_options
def cancel(partitions: tuple[str, ...], everything: bool, bootstrap: str, output: str) -> None:
    """End reassignments that are under way: the replicas are as before.

    Refused where the replicas that would stay are not enough in sync.

    Examples:
      minikafka reassign cancel --all
      minikafka reassign cancel plan.json
      minikafka reassign cancel orders-0 -o kafka
    """
    if bool(partitions) == everything:
        raise Misuse("say which: partitions such as orders-0, a file, or --all")
    names = None if everything else [name for each in partitions for name in _names(each)]

    async def end(admin: AdminClient) -> list[TopicPartition]:
        active = list(await admin.list_partition_reassignments(names))
        if active:
            answers = await admin.alter_partition_reassignments(dict.fromkeys(active))
            _fail_if_refused(answers, "not cancelled")
        return active

    ended = sorted(call_admin(bootstrap, end))
    print_found(
        output,
        {"cancelled": [each._asdict() for each in ended]},
        ("Partition",),
        [(str(each),) for each in ended],
        kafka=[kafka_layout.reassignment_cancelled(ended)],
        nothing="None of them is under way." if names else "No reassignment is under way.",
        said=f"Cancelled: {', '.join(map(str, ended))}." if ended else "",
    )


# ---- reading arguments -----------------------------------------------------------------------------------------------


def _nodes(text: str, what: str) -> tuple[NodeId, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(map(is_number, parts)):
        raise Misuse(f"{what} {text!r}: broker ids with commas between are needed, such as 1,2,3")
    return tuple(map(int, parts))


def _wanted(moves: Sequence[str]) -> dict[TopicPartition, tuple[NodeId, ...]]:
    """The moves of files and of ``orders-0=4,2,3`` together; Misuse for a partition that is named twice."""
    found: dict[TopicPartition, tuple[NodeId, ...]] = {}
    for text in moves:
        for name, replicas in _moves_in(text):
            if name in found:
                raise Misuse(f"{name} is named twice")
            found[name] = replicas
    if not found:
        raise Misuse("say what to move: a JSON file, or TOPIC-PARTITION=BROKERS such as orders-0=4,2,3")
    return found


def _moves_in(text: str) -> list[tuple[TopicPartition, tuple[NodeId, ...]]]:
    if "=" in text and not Path(text).exists():
        name, _, nodes = text.partition("=")
        return [(parse_partition(name), _nodes(nodes, name))]
    path = Path(text)
    moves = []
    for entry in read_json(path, "partitions"):
        replicas = entry.get("replicas") if isinstance(entry, dict) else None
        if not isinstance(replicas, list) or not all(isinstance(each, int) for each in replicas):
            raise Misuse(f'{path}: each entry needs "replicas", a list of broker ids')
        moves.append((partition_in(entry, path), tuple(replicas)))
    return moves


def _names(text: str) -> list[TopicPartition]:
    path = Path(text)
    if path.suffix == ".json" or path.is_file():
        return [partition_in(each, path) for each in read_json(path, "partitions")]
    return [parse_partition(text)]


def _assignments(topics: Sequence[DescribedTopic]) -> dict[TopicPartition, tuple[NodeId, ...]]:
    """Where partitions are to be: the replicas without those that are leaving."""
    return {
        TopicPartition(topic.topic, each.partition): tuple(
            node for node in each.replicas if node not in each.removing_replicas
        )
        for topic in topics
        for each in topic.partitions
    }


def _fail_if_refused(answers: Mapping[TopicPartition, ProtocolError | None], what: str) -> None:
    """Raise a Failure that names each partition that was refused."""
    refused = [(name, _why(error)) for name, error in sorted(answers.items()) if error is not None]
    if refused:
        reasons = [why if str(name) in why else f"{name}: {why}" for name, why in refused]
        raise Failure(f"{what}: {'; '.join(reasons)}")


def _why(error: ProtocolError) -> str:
    return f"{error.name}: {error.message}"


def _to_json(each: Progress) -> Mapping[str, Any]:
    waits = {"isr": each.isr, "waits_for": each.missing, "records_left": each.records_left()}
    return {**each.name._asdict(), **each.moving._asdict(), **waits}


@command_group()
def elect() -> None:
    """Elect leaders: bring them home, or choose one where none is in sync.

    Examples:
      minikafka elect preferred --all -b 127.0.0.1:9092
      minikafka elect preferred orders-0 orders-1
      minikafka elect unclean orders-0
    """


_election_options = together(
    click.argument("partitions", nargs=-1, metavar="[TOPIC-PARTITION]..."),
    click.option(
        "--file",
        type=EXISTING_FILE,
        help='Partitions from Kafka\'s JSON file: {"partitions":[{"topic":"orders","partition":0}]}.',
    ),
    click.option("--all", "everything", is_flag=True, help="Elect leaders of all partitions that need it."),
    bootstrap_option,
    kafka_output_option,
)


@elect.command()
@_election_options
def preferred(**chosen: Any) -> None:
    """Let the first replica of the assignment lead, where it is in sync.

    Brokers do that by themselves every leader.imbalance.check.interval.seconds; this is at once.

    Examples:
      minikafka elect preferred --all
      minikafka elect preferred orders-0 -o json
    """
    _elect("preferred", **chosen)


@elect.command()
@_election_options
def unclean(**chosen: Any) -> None:
    """Let any live replica lead a partition that has no leader. ACKNOWLEDGED RECORDS MAY BE LOST.

    What only the replicas that are away have is gone when they come back. Bring one of the last in-sync replicas back
    instead, if you can.

    Examples:
      minikafka elect unclean orders-0
      minikafka elect unclean --all
    """
    _elect("unclean", **chosen)


def _elect(
    kind: str, partitions: tuple[str, ...], file: Path | None, *, everything: bool, bootstrap: str, output: str
) -> None:
    if sum((bool(partitions), file is not None, everything)) != 1:
        raise Misuse("say which: partitions such as orders-0, or --file, or --all")
    names = [parse_partition(each) for each in partitions]
    if file is not None:
        names = [partition_in(each, file) for each in read_json(file, "partitions")]
    answers = call_admin(bootstrap, lambda admin: admin.elect_leaders(kind, None if everything else names))
    in_order = sorted(answers.items())
    print_found(
        output,
        {"election": kind, "partitions": [_election_to_json(name, each) for name, each in in_order]},
        ("Partition", "Election"),
        [(str(name), _elections_shown(each)) for name, each in in_order],
        kafka=kafka_layout.leaders_elected(kind, answers),
        nothing="No partition needs an election.",
    )
    if any(each is not None and not isinstance(each, ElectionNotNeeded) for each in answers.values()):
        raise click.exceptions.Exit(FAILED)


def _elections_shown(error: ProtocolError | None) -> str:
    if error is None:
        return "done"
    if isinstance(error, ElectionNotNeeded):
        return f"not needed: {error.message}"
    return _why(error)


def _election_to_json(name: TopicPartition, error: ProtocolError | None) -> dict[str, object]:
    return {
        **name._asdict(),
        "elected": error is None,
        "error": None if error is None else error.name,
        "message": "" if error is None else error.message,
    }
