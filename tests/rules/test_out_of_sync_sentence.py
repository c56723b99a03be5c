"""The sentence of a live follower that is out of the ISR."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from minikafka.quorum.image import BrokerImage, MetadataImage, PartitionImage
from minikafka.rest.sentences import NEVER_MS, why_in_or_out
from minikafka.wire.messages import DescribedReplica, RemoteReplica

IMAGE = MetadataImage(
    brokers={3: BrokerImage(node_id=3, broker_epoch=7, incarnation_id="i", host="b3", port=9094, fenced=False)}
)
PARTITION = PartitionImage(
    partition=0, replicas=(1, 2, 3), isr=(1, 2), leader=1, leader_epoch=4, partition_epoch=7, controller_epoch=0
)


def leaders_view(remote: RemoteReplica, *, high_watermark: int) -> DescribedReplica:
    """A leader whose log ends at 812, and what it knows of one follower."""
    return DescribedReplica(
        topic="orders",
        partition=0,
        role="leader",
        leader_epoch=4,
        log_start_offset=0,
        high_watermark=high_watermark,
        log_end_offset=812,
        remotes=(remote,),
        lag_time_max_ms=30_000,
    )


@pytest.mark.parametrize(
    ("caught_up_ms_ago", "last_fetch_ms_ago", "reason"),
    [
        (42_000, 41_900, ", has not caught up for 42000 ms (more than {limit}; last fetch: 41900 ms ago)"),
        (42_000, -1, ", has not caught up for 42000 ms (more than {limit})"),
        (30_000, 100, ""),
        (NEVER_MS, 100, ""),
    ],
)
def test_a_lagging_follower_is_out_with_its_lag_and_the_setting(
    caught_up_ms_ago: int, last_fetch_ms_ago: int, reason: str
):
    """How long it has not caught up, beside the limit; nothing about the lag while that is unknown or short."""
    remote = RemoteReplica(
        broker_id=3,
        log_end_offset=799,
        caught_up_ms_ago=caught_up_ms_ago,
        in_sync=False,
        last_fetch_ms_ago=last_fetch_ms_ago,
    )
    seen = leaders_view(remote, high_watermark=811)
    said = why_in_or_out(3, IMAGE, PARTITION, seen, "")
    reason = reason.format(limit="replica.lag.time.max.ms=30000")
    start = "it is catching up: " if last_fetch_ms_ago == 100 else ""
    assert said == f"{start}it has everything below 799{reason}, and comes in when it reaches the high watermark 811"


@pytest.mark.parametrize(
    ("ms_ago", "said"),
    [
        (40, "it has everything: its last fetch, 40 ms ago, asked from the log's end"),
        (
            253_416,
            (
                "it had everything when it last fetched; it had caught up 253416 ms ago, longer than "
                "replica.lag.time.max.ms=30000: the leader asks to let it go"
            ),
        ),
    ],
)
def test_a_member_of_the_isr_that_is_silent_is_not_called_complete(ms_ago: int, said: str):
    """Without a controller the ISR keeps a dead follower; its last fetch asked from the log's end, long ago."""
    remote = RemoteReplica(
        broker_id=3, log_end_offset=812, caught_up_ms_ago=ms_ago, in_sync=True, last_fetch_ms_ago=ms_ago
    )
    seen = leaders_view(remote, high_watermark=812)
    assert why_in_or_out(3, IMAGE, replace(PARTITION, isr=(1, 2, 3)), seen, "") == said


def test_a_fenced_broker_that_answers_is_loading_or_not_heard_by_the_controller():
    """PAGE 9.7: a broker that has just started has its log, and no role before it has read the metadata."""
    fenced = MetadataImage(brokers={3: replace(IMAGE.brokers[3], fenced=True)})
    own = DescribedReplica(
        topic="orders",
        partition=0,
        role="loading",
        leader_epoch=4,
        log_start_offset=0,
        high_watermark=799,
        log_end_offset=800,
    )
    assert why_in_or_out(3, fenced, PARTITION, None, "", own).startswith("broker 3 is loading: its log ends at 800")
    own = structs.replace(own, role="follower")
    assert why_in_or_out(3, fenced, PARTITION, None, "", own).startswith("broker 3 answers, but is fenced")
    assert "it is down or silent" in why_in_or_out(3, fenced, PARTITION, None, "")
