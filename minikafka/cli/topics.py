"""``minikafka topics``: create, list, describe, delete.

``describe`` shows the partition state in the words of Kafka and of the source articles (S15): leader, leader epoch,
ISR, version (partition epoch), controller epoch. Its JSON is a contract, see docs/cli.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from minikafka import AdminClient
from minikafka.cli.running import ANSWER_TIMEOUT_MS, Commands, run, somebody_listens
from minikafka.cli.settings import parse_flags
from minikafka.cli.tables import bootstrap_option, config_option, output_option, print_json, print_table
from minikafka.client.structs import NewTopic
from minikafka.types import NO_NODE
from minikafka.wire.messages import DescribedPartition, DescribedTopic

Result = TypeVar("Result")

PARTITION_COLUMNS = (
    "Partition",
    "Leader",
    "LeaderEpoch",
    "Replicas",
    "Isr",
    "Elr",
    "PartitionEpoch",
    "ControllerEpoch",
)


@click.group(
    cls=Commands,
    epilog="""\b
Examples:
  minikafka topics create orders --partitions 3 --replication-factor 3 --config min.insync.replicas=2
  minikafka topics list
  minikafka topics describe orders -o json
  minikafka topics delete orders""",
)
def command() -> None:
    """Create, list, describe and delete topics."""


@command.command(
    epilog="""\b
Examples:
  minikafka topics create orders --partitions 3 --replication-factor 3 -b 127.0.0.1:9092
  minikafka topics create events --partitions 6 --config retention.ms=3600000"""
)
@click.argument("topic")
@click.option("--partitions", type=click.IntRange(1), default=None, help="How many.  [the brokers' num.partitions]")
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    default=None,
    help="Copies of each.  [the brokers' default.replication.factor]",
)
@config_option
@bootstrap_option
def create(
    topic: str, partitions: int | None, replication_factor: int | None, config: tuple[str, ...], bootstrap: str
) -> None:
    """Create TOPIC."""
    new = NewTopic(topic, partitions or -1, replication_factor or -1, topic_configs=parse_flags(config))
    run(lambda: _with_admin(bootstrap, lambda admin: admin.create_topics([new])))
    click.echo(f"Created topic {topic}.")


@command.command(
    name="list",
    epilog="""\b
Examples:
  minikafka topics list -b 127.0.0.1:9092
  minikafka topics list -o json | jq -r '.topics[].topic'""",
)
@bootstrap_option
@output_option
def list_(bootstrap: str, output: str) -> None:
    """List the topics."""
    topics = run(lambda: _described(bootstrap, None))
    if output == "json":
        print_json({"topics": [_listed(topic) for topic in topics]})
    else:
        print_table(
            ("Topic", "PartitionCount", "ReplicationFactor"),
            [(topic.topic, len(topic.partitions), _replication_factor(topic)) for topic in topics],
        )


@command.command(
    epilog="""\b
Examples:
  minikafka topics describe orders -b 127.0.0.1:9092
  minikafka topics describe -o json"""
)
@click.argument("topic", required=False)
@bootstrap_option
@output_option
def describe(topic: str | None, bootstrap: str, output: str) -> None:
    """Show leaders, epochs and in-sync replicas of TOPIC, or of all topics."""
    topics = run(lambda: _described(bootstrap, topic))
    if output == "json":
        print_json(to_json(topics))
        return
    for each in topics:
        configs = ",".join(f"{name}={value}" for name, value in sorted(each.config.items()))
        click.echo(
            f"Topic: {each.topic}  TopicId: {each.topic_id}  PartitionCount: {len(each.partitions)}"
            f"  ReplicationFactor: {_replication_factor(each)}  Configs: {configs or '-'}"
        )
        print_table(PARTITION_COLUMNS, [_row(partition) for partition in each.partitions])


@command.command(
    epilog="""\b
Examples:
  minikafka topics delete orders -b 127.0.0.1:9092"""
)
@click.argument("topic")
@bootstrap_option
def delete(topic: str, bootstrap: str) -> None:
    """Delete TOPIC and all of its records."""
    run(lambda: _with_admin(bootstrap, lambda admin: admin.delete_topics([topic])))
    click.echo(f"Deleted topic {topic}.")


async def _with_admin(bootstrap: str, work: Callable[[AdminClient], Awaitable[Result]]) -> Result:
    await somebody_listens(bootstrap)
    async with AdminClient(bootstrap_servers=bootstrap, default_api_timeout_ms=ANSWER_TIMEOUT_MS) as admin:
        return await work(admin)


async def _described(bootstrap: str, topic: str | None) -> list[DescribedTopic]:
    """All topics, or one; the error that a topic carries is raised."""
    names = None if topic is None else [topic]
    return await _with_admin(bootstrap, lambda admin: admin.describe_topics(names))


def to_json(topics: list[DescribedTopic]) -> dict[str, Any]:
    """The contract of ``topics describe -o json``."""
    return {
        "topics": [
            {
                "topic": topic.topic,
                "topic_id": topic.topic_id,
                "config": dict(sorted(topic.config.items())),
                "partitions": [
                    {
                        "partition": each.partition,
                        "leader": each.leader,
                        "leader_epoch": each.leader_epoch,
                        "partition_epoch": each.partition_epoch,
                        "controller_epoch": each.controller_epoch,
                        "replicas": list(each.replicas),
                        "isr": list(each.isr),
                        "elr": list(each.elr),
                    }
                    for each in topic.partitions
                ],
            }
            for topic in topics
        ]
    }


def _listed(topic: DescribedTopic) -> dict[str, Any]:
    return {
        "topic": topic.topic,
        "topic_id": topic.topic_id,
        "partition_count": len(topic.partitions),
        "replication_factor": _replication_factor(topic),
    }


def _replication_factor(topic: DescribedTopic) -> int:
    return len(topic.partitions[0].replicas) if topic.partitions else 0


def _row(each: DescribedPartition) -> tuple[object, ...]:
    leader = "none" if each.leader == NO_NODE else each.leader
    return (
        each.partition,
        leader,
        each.leader_epoch,
        each.replicas,
        each.isr,
        each.elr,
        each.partition_epoch,
        each.controller_epoch,
    )
