"""``minikafka transactions``: list, describe, find hanging ones and abort them, as ``kafka-transactions.sh`` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from minikafka import AdminClient
from minikafka.cli.admin import call_admin, parse_partition
from minikafka.cli.running import Failure, Misuse, command_group
from minikafka.cli.tables import columns_of, list_options, partition_name, print_found, repeatable, rows_of
from minikafka.client.routing import TRANSACTION_KEY
from minikafka.transactions.hanging import OpenTransaction
from minikafka.transactions.records import State
from minikafka.types import NodeId, TopicPartition
from minikafka.wire.messages import ActiveProducer
from minikafka.wire.transaction_messages import DescribedTransaction, ListedTransaction

STATES = tuple(each.value for each in State)
LISTED = columns_of("TransactionalId", "Coordinator", "ProducerId", "TransactionState=state")
DESCRIBED = columns_of(
    *("CoordinatorId=coordinator", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState=state"),
    *("TransactionTimeoutMs=timeout_ms", "CurrentTransactionStartTimeMs=started_ms", "TopicPartitions"),
    TopicPartitions=lambda each: list(map(partition_name, each["partitions"])),
)
PRODUCERS = columns_of(
    *("ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch=coordinator_epoch", "LastSequence", "LastTimestamp"),
    "CurrentTransactionStartOffset=transaction_start_offset",
)
HANGING = columns_of(
    *("Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset", "LastTimestamp")
)


@command_group()
def command() -> None:
    """List and describe transactions; find and abort hanging ones.

    Examples:
      minikafka transactions list
      minikafka transactions describe payments-1
      minikafka transactions describe-producers orders-0
      minikafka transactions find-hanging
      minikafka transactions abort orders-0 --start-offset 4711
    """


@command.command(name="list")
@repeatable(
    "--state", "states", "Only transactional ids in this state", type=click.Choice(STATES, case_sensitive=False)
)
@repeatable("--producer-id", "producer_ids", "Only this producer id", type=int)
@click.option(
    "--running-longer-than-ms",
    "duration_ms",
    type=click.IntRange(min=0),
    help="Only transactions that have been open for longer than this.",
)
@click.option(
    "--transactional-id-pattern",
    "id_pattern",
    default="",
    metavar="REGEX",
    help="Only transactional ids that this regular expression (RE2) matches as a whole.",
)
@list_options
def list_(
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    duration_ms: int | None,
    id_pattern: str,
    bootstrap: str,
    output: str,
) -> None:
    """List the transactional ids of all coordinators.

    Examples:
      minikafka transactions list
      minikafka transactions list --state Ongoing --running-longer-than-ms 60000
      minikafka transactions list --transactional-id-pattern 'payments-[0-9]+'
      minikafka transactions list --producer-id 4000 -o json
    """

    async def listed(admin: AdminClient) -> dict[NodeId, tuple[ListedTransaction, ...]]:
        return await admin.list_transactions(
            states=states,
            producer_ids=producer_ids,
            duration_ms=-1 if duration_ms is None else duration_ms,
            id_pattern=id_pattern,
        )

    rows = sorted(
        (each.transactional_id, node, each.producer_id, each.state)
        for node, part in call_admin(bootstrap, listed).items()
        for each in part
    )
    found = [dict(zip(LISTED.values(), row, strict=True)) for row in rows]
    filtered = bool(states or producer_ids or id_pattern or duration_ms is not None)
    nothing = "No transactional id matches." if filtered else "There are no transactional ids."
    print_found(output, {"transactions": found}, LISTED, found, nothing=nothing)


@command.command()
@click.argument("transactional_ids", nargs=-1, required=True, metavar="TRANSACTIONAL-ID...")
@list_options
def describe(transactional_ids: tuple[str, ...], bootstrap: str, output: str) -> None:
    """Show state, producer, timeout and partitions of transactional ids.

    Examples:
      minikafka transactions describe payments-1
      minikafka transactions describe payments-1 payments-2 -o json
    """

    async def described(admin: AdminClient) -> list[tuple[NodeId, DescribedTransaction]]:
        found = await admin.describe_transactions(transactional_ids)
        return [(await admin.find_coordinator(each.transactional_id, TRANSACTION_KEY), each) for each in found]

    found = [_transaction_json(node, each) for node, each in call_admin(bootstrap, described)]
    print_found(output, {"transactions": found}, DESCRIBED, found)


def _transaction_json(coordinator: NodeId, each: DescribedTransaction) -> dict[str, Any]:
    return {
        "transactional_id": each.transactional_id,
        "coordinator": coordinator,
        "state": each.state,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "timeout_ms": each.timeout_ms,
        "started_ms": each.started_ms if each.started_ms >= 0 else None,
        "partitions": [{"topic": one.topic, "partition": one.partition} for one in each.partitions],
    }


@command.command(name="describe-producers")
@click.argument("partitions", nargs=-1, required=True, metavar="TOPIC-PARTITION...")
@list_options
def describe_producers(partitions: tuple[str, ...], bootstrap: str, output: str) -> None:
    """Show the producers that the leader of a partition knows, with their open transactions.

    Examples:
      minikafka transactions describe-producers orders-0
      minikafka transactions describe-producers orders-0 orders-1 -o json
    """
    names = [parse_partition(each) for each in partitions]
    described = call_admin(bootstrap, lambda admin: admin.describe_producers(names))
    found = [_producers_json(name, producers) for name, producers in described.items()]
    rows = [(partition_name(each), *row) for each in found for row in rows_of(PRODUCERS, each["producers"])]
    nothing = "No leader of these partitions knows a producer."
    print_found(output, {"partitions": found}, ("Partition", *PRODUCERS), rows, nothing=nothing)


def _producers_json(name: TopicPartition, producers: Sequence[ActiveProducer]) -> dict[str, Any]:
    return {
        "topic": name.topic,
        "partition": name.partition,
        "producers": [
            {
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "last_sequence": each.last_sequence,
                "last_timestamp": each.last_timestamp,
                "coordinator_epoch": each.coordinator_epoch,
                "transaction_start_offset": (
                    each.current_txn_start_offset if each.current_txn_start_offset >= 0 else None
                ),
            }
            for each in producers
        ],
    }


@command.command(name="find-hanging")
@click.option("--topic", help="Only partitions of this topic (default: all topics).")
@click.option("--partition", type=click.IntRange(min=0), help="Only this partition; needs --topic.")
@click.option("--broker-id", type=int, help="Only partitions that this broker leads.")
@click.option(
    "--max-transaction-timeout",
    "minutes",
    type=click.IntRange(min=0),
    default=15,
    show_default=True,
    metavar="MINUTES",
    help="Only transactions without a batch for this long; use the largest transaction.max.timeout.ms of the brokers.",
)
@list_options
def find_hanging(
    topic: str | None, partition: int | None, broker_id: int | None, minutes: int, bootstrap: str, output: str
) -> None:
    """Find open transactions that no coordinator will end.

    Examples:
      minikafka transactions find-hanging
      minikafka transactions find-hanging --topic orders
      minikafka transactions find-hanging --broker-id 2 --max-transaction-timeout 60 -o json

    A hanging transaction is open in a partition, and no coordinator knows it: consumers with
    isolation.level=read_committed wait at its start offset until `minikafka transactions abort` ends it.
    """
    if partition is not None and topic is None:
        raise Misuse("--partition needs --topic")

    async def hanging(admin: AdminClient) -> list[OpenTransaction]:
        topics = await admin.describe_topics(None if topic is None else [topic])
        led = {TopicPartition(each.topic, one.partition): one.leader for each in topics for one in each.partitions}
        chosen = [
            name for name, leader in led.items() if partition in (None, name.partition) and broker_id in (None, leader)
        ]
        if not chosen:
            raise Failure("no partition matches --topic, --partition and --broker-id")
        return await admin.find_hanging_transactions(chosen, older_than_ms=minutes * 60_000)

    found = [_hanging_json(each) for each in sorted(call_admin(bootstrap, hanging))]
    print_found(output, {"transactions": found}, HANGING, found, nothing="No transaction hangs.")


def _hanging_json(each: OpenTransaction) -> dict[str, Any]:
    return {**each.partition._asdict(), **dict(zip(each._fields[1:], each[1:], strict=True))}


@command.command()
@click.argument("partition", metavar="TOPIC-PARTITION")
@click.option(
    "--start-offset",
    type=click.IntRange(min=0),
    required=True,
    help="First offset of the transaction, as find-hanging and describe-producers print it.",
)
@click.option("--force", is_flag=True, help="Abort the transaction even if a coordinator knows it.")
@list_options
def abort(partition: str, start_offset: int, force: bool, bootstrap: str, output: str) -> None:
    """Abort the hanging transaction that begins at an offset of TOPIC-PARTITION.

    Examples:
      minikafka transactions abort orders-0 --start-offset 4711
      minikafka transactions abort orders-0 --start-offset 4711 --force

    Without --force, only a hanging transaction is aborted. A transaction that a coordinator knows is ended by its
    producer or its timeout: aborted here, it may be committed in its other partitions.
    """
    name = parse_partition(partition)

    async def aborted(admin: AdminClient) -> OpenTransaction:
        found = [each for each in await admin.open_transactions([name]) if each.start_offset == start_offset]
        if not found:
            raise Failure(
                f"{name} has no open transaction at offset {start_offset}; "
                f"`minikafka transactions describe-producers {name}` shows the open ones"
            )
        hanging = [] if force else await admin.find_hanging_transactions([name], older_than_ms=0)
        if not force and start_offset not in [each.start_offset for each in hanging]:
            raise Failure(
                f"the transaction at offset {start_offset} of {name} is not hanging: its coordinator knows it, and its "
                f"producer or its timeout ends it; see `minikafka transactions list --producer-id "
                f"{found[0].producer_id}`, or give --force"
            )
        await admin.abort_transaction(
            name,
            producer_id=found[0].producer_id,
            producer_epoch=found[0].producer_epoch,
            coordinator_epoch=found[0].coordinator_epoch,
        )
        return found[0]

    done = _hanging_json(call_admin(bootstrap, aborted))
    print_found(output, {"aborted": done}, HANGING, [done])
    if output == "table":
        click.echo("Transaction aborted.")
