"""``minikafka offsets``: where partitions begin and end, and which record was the first at a time."""

from __future__ import annotations

import click

from minikafka import AdminClient
from minikafka.addresses import is_number
from minikafka.cli import kafka_layout
from minikafka.cli.admin import partitions_of, with_admin
from minikafka.cli.running import Misuse, run
from minikafka.cli.tables import bootstrap_option, kafka_output_option, print_json, print_lines, print_table
from minikafka.cli.topics import INTERNAL_TOPICS, exclude_internal_option
from minikafka.types import TopicPartition
from minikafka.wire.messages import EARLIEST, LATEST, MAX_TIMESTAMP, ListedOffset

TIMES = {"latest": LATEST, "earliest": EARLIEST, "max-timestamp": MAX_TIMESTAMP}


@click.command(
    epilog="""\b
Examples:
  minikafka offsets orders -b 127.0.0.1:9092
  minikafka offsets --time earliest --exclude-internal
  minikafka offsets orders --time 1795259231681 -o json
  minikafka offsets -o kafka

The output of -o kafka is kafka-get-offsets.sh's: TOPIC:PARTITION:OFFSET."""
)
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
@bootstrap_option
@kafka_output_option
def command(topic: str | None, time: str, exclude_internal: bool, bootstrap: str, output: str) -> None:  # noqa: FBT001 - click's form
    """Show an offset of each partition of TOPIC, or of all topics: by default where it ends (the high watermark).

    -1: no record is that young.
    """
    timestamp = TIMES.get(time)
    if timestamp is None:
        if not is_number(time):
            raise Misuse(f"--time {time!r}: one of {', '.join(TIMES)}, or milliseconds since 1970, is needed")
        timestamp = int(time)

    async def asked(admin: AdminClient) -> dict[TopicPartition, ListedOffset]:
        topics = await admin.describe_topics(None if topic is None else [topic])
        topics = [each for each in topics if not (exclude_internal and each.topic in INTERNAL_TOPICS)]
        return await admin.list_offsets(dict.fromkeys(partitions_of(topics), timestamp))

    found = run(lambda: with_admin(bootstrap, asked))
    if output == "json":
        print_json({"offsets": [_to_json(name, each) for name, each in found.items()]})
    elif output == "kafka":
        print_lines(kafka_layout.offsets({name: each.offset for name, each in found.items()}))
    else:
        rows = [(name.topic, name.partition, each.offset, each.leader_epoch) for name, each in found.items()]
        print_table(("Topic", "Partition", "Offset", "LeaderEpoch"), rows, output)


def _to_json(name: TopicPartition, each: ListedOffset) -> dict[str, object]:
    return {
        "topic": name.topic,
        "partition": name.partition,
        "offset": each.offset,
        "timestamp": each.timestamp,
        "leader_epoch": each.leader_epoch,
    }
