"""``minikafka quorum describe``: who leads the metadata quorum, and how far everybody follows."""

from __future__ import annotations

import time
from typing import Any

import click

from minikafka.cli import kafka_layout
from minikafka.cli.admin import with_admin
from minikafka.cli.running import Misuse, command_group
from minikafka.cli.tables import (
    as_document,
    columns_of,
    kafka_list_options,
    print_json,
    print_lines,
    print_table,
    show,
    watch_option,
)
from minikafka.wire.messages import DescribeQuorumResponse, QuorumReplica

REPLICA_COLUMNS = ("NodeId", "LogEndOffset", "Lag", "LastFetchMsAgo", "LastCaughtUpMsAgo", "Status")


@command_group()
def command() -> None:
    """Look at the metadata quorum.

    Examples:
      minikafka quorum describe -b 127.0.0.1:9092
      minikafka quorum describe -o json | jq .leader_id
    """


@command.command()
@click.option("--status", is_flag=True, help="Show only the leader and the largest lag of its followers.")
@click.option("--replication", is_flag=True, help="Show only the replicas of the metadata log.")
@kafka_list_options
@watch_option
def describe(status: bool, replication: bool, bootstrap: str, output: str, watch: bool) -> None:
    """Show leader, epoch, high watermark and replicas of the metadata log.

    Examples:
      minikafka quorum describe -b 127.0.0.1:9092
      minikafka quorum describe --status -o kafka
      minikafka quorum describe --replication --watch
      minikafka quorum describe -o json
    """
    if status and replication:
        raise Misuse("--status or --replication, not both; without either both are shown")
    if output == "tsv" and not (status or replication):
        raise Misuse("-o tsv prints one table: say --status or --replication")
    show(
        lambda: with_admin(bootstrap, lambda admin: admin.describe_quorum()),
        lambda quorum: _draw(quorum, output, status=status or not replication, replication=replication or not status),
        watch=watch,
    )


def _draw(quorum: DescribeQuorumResponse, output: str, *, status: bool, replication: bool) -> None:
    if output == "json":
        print_json(to_json(quorum))
        return
    if status and output == "kafka":
        print_lines(kafka_layout.quorum_status(quorum))
    elif status:
        columns = columns_of("ClusterId", "LeaderId", "LeaderEpoch", "HighWatermark", "MaxFollowerLag")
        print_table(columns, [to_json(quorum)], output)
    if status and replication:
        click.echo()
    if replication and output == "kafka":
        print_lines(kafka_layout.quorum_replication(quorum, now_ms=time.time_ns() // 1_000_000))
    elif replication:
        print_table(REPLICA_COLUMNS, [_row(each) for each in (*quorum.voters, *quorum.observers)], output)


def to_json(quorum: DescribeQuorumResponse) -> dict[str, Any]:
    """The contract of ``quorum describe -o json``; -1 is *nobody*, and *not known* for offsets and times."""
    return {
        "cluster_id": quorum.cluster_id,
        "leader_id": quorum.leader_id,
        "leader_epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "max_follower_lag": _max_follower_lag(quorum),
        "voters": list(map(as_document, quorum.voters)),
        "observers": list(map(as_document, quorum.observers)),
    }


def _max_follower_lag(quorum: DescribeQuorumResponse) -> int | None:
    """None where no follower's progress is known."""
    return max(
        (each.lag for each in quorum.voters if each.replica_id != quorum.leader_id and each.lag >= 0), default=None
    )


def _row(each: QuorumReplica) -> tuple[object, ...]:
    numbers = (each.log_end_offset, each.lag, each.last_fetch_ms_ago, each.last_caught_up_ms_ago)
    return (each.replica_id, *("-" if number < 0 else number for number in numbers), each.status)
