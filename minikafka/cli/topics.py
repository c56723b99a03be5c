"""``minikafka topics``: create, list, describe, alter, delete, delete-records; and ``minikafka offsets``.

``describe`` shows the partition state in the words of Kafka and of the source articles (S15): leader, leader epoch,
ISR, version (partition epoch), controller epoch. Its JSON is a contract, see docs/cli.md.

``offsets`` shows where partitions begin and end, and which record was the first at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import click
from msgspec import structs

from minikafka import AdminClient
from minikafka.addresses import is_number
from minikafka.cli import kafka_layout
from minikafka.cli.admin import call_admin, partitions_of, with_admin
from minikafka.cli.kafka_layout import replication_factor as factor_of
from minikafka.cli.running import Misuse, command_group, lone_command
from minikafka.cli.settings import parse_flags
from minikafka.cli.tables import (
    as_document,
    bootstrap_option,
    columns_of,
    config_option,
    kafka_list_options,
    many,
    print_found,
    print_json,
    print_lines,
    print_table,
    rows_of,
    show,
    shown,
    watch_option,
)
from minikafka.client.structs import ConfigResource, NewTopic
from minikafka.errors import TopicAlreadyExists, UnknownTopicOrPartition
from minikafka.replication.high_watermark import effective_min_isr
from minikafka.types import INTERNAL_TOPICS, NO_NODE, NodeId, TopicPartition
from minikafka.wire.admin import DescribedConfig
from minikafka.wire.messages import EARLIEST, LATEST, MAX_TIMESTAMP, DescribedPartition, DescribedTopic, ListedOffset

PARTITION_COLUMNS = columns_of(
    *("Partition", "Leader", "LeaderEpoch", "Replicas", "Isr", "Elr", "PartitionEpoch", "ControllerEpoch"),
    Leader=lambda each: "none" if each.leader == NO_NODE else each.leader,
)
MOVING_COLUMNS = columns_of("Adding=adding_replicas", "Removing=removing_replicas")
"""Where a reassignment is under way."""
LISTED_COLUMNS = columns_of("Topic", "PartitionCount", "ReplicationFactor")
TOPIC_COLUMNS = columns_of("Topic", "TopicId", "PartitionCount", "ReplicationFactor", "Configs")

exclude_internal_option = click.option("--exclude-internal", is_flag=True, help="Leave out internal topics.")


@command_group()
def command() -> None:
    """Create, list, describe, alter and delete topics.

    Examples:
      minikafka topics create orders --partitions 3 --replication-factor 3 --config min.insync.replicas=2
      minikafka topics list
      minikafka topics describe orders -o json
      minikafka topics alter orders --partitions 6
      minikafka topics delete orders
    """


@command.command()
@click.argument("topic")
@click.option("--partitions", type=click.IntRange(1), help="Number of partitions.  [the brokers' num.partitions]")
@click.option(
    "--replication-factor",
    type=click.IntRange(1),
    help="Number of replicas of each partition.  [the brokers' default.replication.factor]",
)
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists already, and leave it unchanged.")
@config_option
@bootstrap_option
def create(
    topic: str,
    partitions: int | None,
    replication_factor: int | None,
    if_not_exists: bool,
    config: tuple[str, ...],
    bootstrap: str,
) -> None:
    """Create a topic named TOPIC.

    Examples:
      minikafka topics create orders --partitions 3 --replication-factor 3 -b 127.0.0.1:9092
      minikafka topics create events --partitions 6 --config retention.ms=3600000
    """
    new = NewTopic(topic, partitions or -1, replication_factor or -1, topic_configs=parse_flags(config))
    try:
        call_admin(bootstrap, lambda admin: admin.create_topics([new]))
    except TopicAlreadyExists:
        if not if_not_exists:
            raise
        click.echo(f"Topic {topic} exists.")
    else:
        click.echo(f"Created topic {topic}.")


@command.command(name="list")
@exclude_internal_option
@kafka_list_options
def list_(exclude_internal: bool, bootstrap: str, output: str) -> None:
    """List the topics of the cluster.

    Examples:
      minikafka topics list -b 127.0.0.1:9092
      minikafka topics list -o json | jq -r '.topics[].topic'
    """
    topics = call_admin(bootstrap, lambda admin: _topics(admin, None, exclude_internal=exclude_internal))
    listed = [_listed(topic) for topic in topics]
    print_found(
        output,
        {"topics": listed},
        LISTED_COLUMNS,
        listed,
        kafka=(topic.topic for topic in topics),
        nothing="There are no topics.",
    )


class _Filter(NamedTuple):
    """Which partitions are shown; the flags are kafka-topics'."""

    under_replicated_partitions: bool
    unavailable_partitions: bool
    under_min_isr_partitions: bool
    at_min_isr_partitions: bool

    def passes(self, each: DescribedPartition, min_isr: int, living: Sequence[NodeId]) -> bool:
        """Return True if the partition has one of the problems that the command looks for."""
        in_sync, needed = len(each.isr), effective_min_isr(min_isr, each.replicas, each.adding_replicas)
        return (
            (self.under_replicated_partitions and in_sync < factor_of(each))
            or (self.unavailable_partitions and each.leader not in living)
            or (self.under_min_isr_partitions and (each.leader == NO_NODE or in_sync < needed))
            or (self.at_min_isr_partitions and in_sync == needed)
        )


class _Described(NamedTuple):
    """What ``describe`` shows: topics, and their effective settings where they were asked for."""

    topics: list[DescribedTopic]
    configs: dict[str, tuple[DescribedConfig, ...]]


@command.command()
@click.argument("topic", required=False)
@click.option("--under-replicated-partitions", is_flag=True, help="Show only partitions with replicas out of sync.")
@click.option("--unavailable-partitions", is_flag=True, help="Show only partitions without a live leader.")
@click.option("--under-min-isr-partitions", is_flag=True, help="Show only partitions that refuse acks=all.")
@click.option(
    "--at-min-isr-partitions", is_flag=True, help="Show only partitions that refuse acks=all after one more loss."
)
@click.option(
    "--topics-with-overrides",
    is_flag=True,
    help="Show only topics that have settings of their own, without their partitions.",
)
@exclude_internal_option
@kafka_list_options
@watch_option
def describe(
    topic: str | None,
    exclude_internal: bool,
    topics_with_overrides: bool,
    bootstrap: str,
    output: str,
    watch: bool,
    **wanted: bool,
) -> None:
    """Show leaders, epochs and in-sync replicas of TOPIC, or of all topics.

    Examples:
      minikafka topics describe orders -b 127.0.0.1:9092
      minikafka topics describe orders --watch
      minikafka topics describe --under-replicated-partitions
      minikafka topics describe -o json
      minikafka topics describe -o kafka
    """
    chosen = _Filter(**wanted) if any(wanted.values()) else None

    async def described(admin: AdminClient) -> _Described:
        topics = await _topics(admin, topic, exclude_internal=exclude_internal)
        topics = [each for each in topics if each.config or not topics_with_overrides]
        configs: dict[str, tuple[DescribedConfig, ...]] = {}
        if output == "kafka" or chosen is not None:
            found = await admin.describe_configs([ConfigResource("topic", each.topic) for each in topics])
            configs = {each.resource_name: each.configs for each in found}
        if chosen is not None:
            living = [each["node_id"] for each in (await admin.describe_cluster())["brokers"]]
            topics = [_filtered(each, chosen, configs[each.topic], living) for each in topics]
            topics = [each for each in topics if each.partitions]
        return _Described(topics, configs)

    show(
        lambda: with_admin(bootstrap, described),
        lambda found: _draw(found, output, filtered=chosen is not None, overridden=topics_with_overrides),
        watch=watch,
    )


async def _topics(admin: AdminClient, topic: str | None, *, exclude_internal: bool) -> list[DescribedTopic]:
    """The topic of this name, or all; with ``exclude_internal`` no internal ones."""
    topics = await admin.describe_topics(None if topic is None else [topic])
    return [each for each in topics if not (exclude_internal and each.topic in INTERNAL_TOPICS)]


def _filtered(
    topic: DescribedTopic, chosen: _Filter, configs: Sequence[DescribedConfig], living: Sequence[NodeId]
) -> DescribedTopic:
    minimum = next(int(each.value) for each in configs if each.name == "min.insync.replicas")
    partitions = tuple(each for each in topic.partitions if chosen.passes(each, minimum, living))
    return structs.replace(topic, partitions=partitions)


def _draw(found: _Described, output: str, *, filtered: bool, overridden: bool) -> None:
    if output == "json":
        print_json(to_json(found.topics))
    elif overridden and output == "kafka":
        print_lines(kafka_layout.topics_alone(found.topics, found.configs))
    elif overridden and output == "tsv":
        print_table(TOPIC_COLUMNS, map(_with_configs, found.topics), output)
    elif output == "tsv":
        _draw_partitions(found.topics, output)
    elif overridden and not found.topics:
        click.echo("No topic has settings of its own.")
    elif overridden:
        for each in found.topics:
            click.echo(_head(each))
    elif output == "kafka" and filtered:
        print_lines(kafka_layout.partitions_described(found.topics))
    elif output == "kafka":
        print_lines(kafka_layout.topics_described(found.topics, found.configs))
    elif filtered and not found.topics:
        click.echo("No partition has that trouble.")
    elif filtered:  # a topic's head would count these partitions alone
        _draw_partitions(found.topics, output)
    else:
        for each in found.topics:
            _draw_topic(each)


def _draw_partitions(topics: Sequence[DescribedTopic], output: str) -> None:
    columns = {**PARTITION_COLUMNS, **MOVING_COLUMNS}
    rows = [(topic.topic, *row) for topic in topics for row in rows_of(columns, topic.partitions)]
    print_table(("Topic", *columns), rows, output)


def _head(topic: DescribedTopic) -> str:
    (row,) = rows_of(TOPIC_COLUMNS, [_with_configs(topic)])
    return "  ".join(f"{name}: {shown(cell)}" for name, cell in zip(TOPIC_COLUMNS, row, strict=True))


def _draw_topic(topic: DescribedTopic) -> None:
    click.echo(_head(topic))
    moving = any(each.adding_replicas or each.removing_replicas for each in topic.partitions)
    print_table({**PARTITION_COLUMNS, **(MOVING_COLUMNS if moving else {})}, topic.partitions)


@command.command()
@click.argument("topic")
@click.option("--partitions", type=click.IntRange(1), required=True, help="New number of partitions; it can only grow.")
@bootstrap_option
def alter(topic: str, partitions: int, bootstrap: str) -> None:
    """Give TOPIC more partitions.

    Records stay where they are. A key may map to another partition from now on, so that its new records no longer
    stand behind its old ones. Settings are altered with `minikafka config alter`.

    Examples:
      minikafka topics alter orders --partitions 6 -b 127.0.0.1:9092
      minikafka config alter --topic orders --set retention.ms=3600000
    """
    call_admin(bootstrap, lambda admin: admin.create_partitions({topic: partitions}))
    click.echo(f"Topic {topic} has {partitions} partitions.")


@command.command()
@click.argument("topic")
@click.option("--if-exists", is_flag=True, help="Succeed if the topic does not exist.")
@bootstrap_option
def delete(topic: str, if_exists: bool, bootstrap: str) -> None:
    """Delete TOPIC and all of its records.

    Examples:
      minikafka topics delete orders -b 127.0.0.1:9092
    """
    try:
        call_admin(bootstrap, lambda admin: admin.delete_topics([topic]))
    except UnknownTopicOrPartition:
        if not if_exists:
            raise
        click.echo(f"There is no topic {topic}.")
    else:
        click.echo(f"Deleted topic {topic}.")


@command.command(name="delete-records")
@click.argument("topic")
@click.argument("before", nargs=-1, required=True, metavar="PARTITION:OFFSET...")
@kafka_list_options
def delete_records(topic: str, before: tuple[str, ...], bootstrap: str, output: str) -> None:
    """Delete the records of TOPIC below an offset, on all replicas; `end`: all that are committed.

    The partition begins there from now on. Space is freed when whole segments are below.

    Examples:
      minikafka topics delete-records orders 0:120 1:77 -b 127.0.0.1:9092
      minikafka topics delete-records orders 0:end -o json
    """
    wanted = dict(_before(topic, each) for each in before)
    if len(wanted) < len(before):
        raise Misuse("a partition is named twice")

    async def work(admin: AdminClient) -> dict[TopicPartition, int]:
        (described,) = await admin.describe_topics([topic])
        count = len(described.partitions)
        for name in wanted:
            if name.partition >= count:
                raise UnknownTopicOrPartition(
                    f"{topic} has {many(count, 'partition')}, and no {name.partition}; nothing was deleted"
                )
        return await admin.delete_records(wanted)

    found = call_admin(bootstrap, work)
    partitions = [{"partition": name.partition, "low_watermark": offset} for name, offset in found.items()]
    columns, document = columns_of("Partition", "LowWatermark"), {"topic": topic, "partitions": partitions}
    print_found(output, document, columns, partitions, kafka=kafka_layout.records_deleted(found))


def _before(topic: str, text: str) -> tuple[TopicPartition, int]:
    partition, colon, offset = text.partition(":")
    if not colon or not is_number(partition) or not (is_number(offset) or offset == "end"):
        raise Misuse(f"{text!r}: PARTITION:OFFSET is needed, such as 0:120 or 0:end")
    return TopicPartition(topic, int(partition)), -1 if offset == "end" else int(offset)


def to_json(topics: list[DescribedTopic]) -> dict[str, Any]:
    """The contract of ``topics describe -o json``."""
    return {
        "topics": [
            {
                "topic": topic.topic,
                "topic_id": topic.topic_id,
                "config": dict(sorted(topic.config.items())),
                "partitions": list(map(as_document, topic.partitions)),
            }
            for topic in topics
        ]
    }


def _listed(topic: DescribedTopic) -> dict[str, Any]:
    return {
        "topic": topic.topic,
        "topic_id": topic.topic_id,
        "partition_count": len(topic.partitions),
        "replication_factor": factor_of(topic.partitions[0]) if topic.partitions else 0,
    }


def _with_configs(topic: DescribedTopic) -> dict[str, Any]:
    return {**_listed(topic), "configs": [f"{name}={value}" for name, value in sorted(topic.config.items())]}


TIMES = {"latest": LATEST, "earliest": EARLIEST, "max-timestamp": MAX_TIMESTAMP}


@lone_command()
@click.argument("topic", required=False)
@click.option(
    "--time",
    "time",
    default="latest",
    show_default=True,
    metavar="TIME",
    help="latest, earliest, max-timestamp, or milliseconds since 1970: the first record from then on.",
)
@exclude_internal_option
@kafka_list_options
def offsets(topic: str | None, time: str, exclude_internal: bool, bootstrap: str, output: str) -> None:
    """Show an offset of each partition of TOPIC, or of all topics: by default where it ends (the high watermark).

    -1: no record is that young.

    Examples:
      minikafka offsets orders -b 127.0.0.1:9092
      minikafka offsets --time earliest --exclude-internal
      minikafka offsets orders --time 1795259231681 -o json
      minikafka offsets -o kafka

    The output of -o kafka is kafka-get-offsets.sh's: TOPIC:PARTITION:OFFSET.
    """
    timestamp = TIMES.get(time)
    if timestamp is None:
        if not is_number(time):
            raise Misuse(f"--time {time!r}: one of {', '.join(TIMES)}, or milliseconds since 1970, is needed")
        timestamp = int(time)

    async def asked(admin: AdminClient) -> dict[TopicPartition, ListedOffset]:
        topics = await _topics(admin, topic, exclude_internal=exclude_internal)
        return await admin.list_offsets(dict.fromkeys(partitions_of(topics), timestamp))

    found = call_admin(bootstrap, asked)
    listed = [
        {**name._asdict(), "offset": each.offset, "timestamp": each.timestamp, "leader_epoch": each.leader_epoch}
        for name, each in found.items()
    ]
    print_found(
        output,
        {"offsets": listed},
        columns_of("Topic", "Partition", "Offset", "LeaderEpoch"),
        listed,
        kafka=kafka_layout.offsets({name: each.offset for name, each in found.items()}),
    )
