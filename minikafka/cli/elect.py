"""``minikafka elect preferred|unclean``: leaders by an administrator's wish."""

from __future__ import annotations

from pathlib import Path

import click

from minikafka.cli import kafka_layout
from minikafka.cli.admin import parse_partition, partition_in, read_json, with_admin
from minikafka.cli.running import FAILED, Commands, Misuse, run
from minikafka.cli.tables import bootstrap_option, kafka_output_option, print_json, print_lines, print_table
from minikafka.errors import ElectionNotNeeded, ProtocolError
from minikafka.types import TopicPartition

FILE = click.option(
    "--file",
    "file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='Partitions from Kafka\'s JSON file: {"partitions":[{"topic":"orders","partition":0}]}.',
)
ALL = click.option("--all", "everything", is_flag=True, help="All partitions that need it.")


@click.group(
    cls=Commands,
    epilog="""\b
Examples:
  minikafka elect preferred --all -b 127.0.0.1:9092
  minikafka elect preferred orders-0 orders-1
  minikafka elect unclean orders-0""",
)
def command() -> None:
    """Elect leaders: bring them home, or choose one where none is in sync."""


@command.command(
    epilog="""\b
Examples:
  minikafka elect preferred --all
  minikafka elect preferred orders-0 -o json"""
)
@click.argument("partitions", nargs=-1, metavar="[TOPIC-PARTITION]...")
@FILE
@ALL
@bootstrap_option
@kafka_output_option
def preferred(partitions: tuple[str, ...], file: Path | None, everything: bool, bootstrap: str, output: str) -> None:  # noqa: FBT001 - click's form
    """Let the first replica of the assignment lead, where it is in sync.

    Brokers do that by themselves every leader.imbalance.check.interval.seconds; this is at once.
    """
    _elect("preferred", partitions, file, bootstrap, output, everything=everything)


@command.command(
    epilog="""\b
Examples:
  minikafka elect unclean orders-0
  minikafka elect unclean --all"""
)
@click.argument("partitions", nargs=-1, metavar="[TOPIC-PARTITION]...")
@FILE
@ALL
@bootstrap_option
@kafka_output_option
def unclean(partitions: tuple[str, ...], file: Path | None, everything: bool, bootstrap: str, output: str) -> None:  # noqa: FBT001 - click's form
    """Let any live replica lead a partition that has no leader. ACKNOWLEDGED RECORDS MAY BE LOST.

    What only the replicas that are away have is gone when they come back. Bring one of the last in-sync replicas back
    instead, if you can.
    """
    _elect("unclean", partitions, file, bootstrap, output, everything=everything)


def _elect(
    kind: str, partitions: tuple[str, ...], file: Path | None, bootstrap: str, output: str, *, everything: bool
) -> None:
    if sum((bool(partitions), file is not None, everything)) != 1:
        raise Misuse("say which: partitions such as orders-0, or --file, or --all")
    names = [parse_partition(each) for each in partitions]
    if file is not None:
        names = [partition_in(each, file) for each in read_json(file, "partitions")]
    answers = run(lambda: with_admin(bootstrap, lambda admin: admin.elect_leaders(kind, None if everything else names)))
    if output == "json":
        print_json({"election": kind, "partitions": [_to_json(name, each) for name, each in sorted(answers.items())]})
    elif output == "kafka":
        print_lines(kafka_layout.leaders_elected(kind, answers))
    elif answers or output == "tsv":
        rows = [(str(name), _shown(each)) for name, each in sorted(answers.items())]
        print_table(("Partition", "Election"), rows, output)
    else:
        click.echo("No partition needs an election.")
    if any(each is not None and not isinstance(each, ElectionNotNeeded) for each in answers.values()):
        raise click.exceptions.Exit(FAILED)


def _shown(error: ProtocolError | None) -> str:
    if error is None:
        return "done"
    if isinstance(error, ElectionNotNeeded):
        return f"not needed: {error.message}"
    return f"{error.name}: {error.message}"


def _to_json(name: TopicPartition, error: ProtocolError | None) -> dict[str, object]:
    return {
        "topic": name.topic,
        "partition": name.partition,
        "elected": error is None,
        "error": None if error is None else error.name,
        "message": "" if error is None else error.message,
    }
