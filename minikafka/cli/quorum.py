"""``minikafka quorum describe``: who leads the metadata quorum, and how far everybody follows."""

from __future__ import annotations

from typing import Any

import click

from minikafka import AdminClient
from minikafka.cli.running import ANSWER_TIMEOUT_MS, Commands, run, somebody_listens
from minikafka.cli.tables import bootstrap_option, output_option, print_json, print_table
from minikafka.wire.messages import DescribeQuorumResponse, QuorumReplica

REPLICA_COLUMNS = ("NodeId", "LogEndOffset", "Lag", "LastFetchMsAgo", "LastCaughtUpMsAgo", "Status")


@click.group(
    cls=Commands,
    epilog="""\b
Examples:
  minikafka quorum describe -b 127.0.0.1:9092
  minikafka quorum describe -o json | jq .leader_id""",
)
def command() -> None:
    """Look at the metadata quorum."""


@command.command(
    epilog="""\b
Examples:
  minikafka quorum describe -b 127.0.0.1:9092
  minikafka quorum describe -o json"""
)
@bootstrap_option
@output_option
def describe(bootstrap: str, output: str) -> None:
    """Show leader, epoch, high watermark and replicas of the metadata log."""
    told = run(lambda: _described(bootstrap))
    if output == "json":
        print_json(to_json(told))
        return
    lag = _max_follower_lag(told)
    print_table(
        ("ClusterId", "LeaderId", "LeaderEpoch", "HighWatermark", "MaxFollowerLag"),
        [(told.cluster_id, told.leader_id, told.leader_epoch, told.high_watermark, "-" if lag is None else lag)],
    )
    click.echo()
    print_table(REPLICA_COLUMNS, [_row(each) for each in (*told.voters, *told.observers)])


async def _described(bootstrap: str) -> DescribeQuorumResponse:
    await somebody_listens(bootstrap)
    async with AdminClient(bootstrap_servers=bootstrap, default_api_timeout_ms=ANSWER_TIMEOUT_MS) as admin:
        return await admin.describe_quorum()


def to_json(told: DescribeQuorumResponse) -> dict[str, Any]:
    """The contract of ``quorum describe -o json``; -1 is *nobody*, and *not known* for offsets and times."""
    return {
        "cluster_id": told.cluster_id,
        "leader_id": told.leader_id,
        "leader_epoch": told.leader_epoch,
        "high_watermark": told.high_watermark,
        "max_follower_lag": _max_follower_lag(told),
        "voters": [_replica(each) for each in told.voters],
        "observers": [_replica(each) for each in told.observers],
    }


def _replica(each: QuorumReplica) -> dict[str, Any]:
    return {
        "replica_id": each.replica_id,
        "log_end_offset": each.log_end_offset,
        "lag": each.lag,
        "last_fetch_ms_ago": each.last_fetch_ms_ago,
        "last_caught_up_ms_ago": each.last_caught_up_ms_ago,
        "status": each.status,
    }


def _max_follower_lag(told: DescribeQuorumResponse) -> int | None:
    """None where no follower's progress is known."""
    return max((each.lag for each in told.voters if each.replica_id != told.leader_id and each.lag >= 0), default=None)


def _row(each: QuorumReplica) -> tuple[object, ...]:
    numbers = (each.log_end_offset, each.lag, each.last_fetch_ms_ago, each.last_caught_up_ms_ago)
    return (each.replica_id, *("-" if number < 0 else number for number in numbers), each.status)
