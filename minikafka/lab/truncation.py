"""The rule that production does not have: a follower cuts its log at its own high watermark (Kafka before KIP-101).

It is here so that its two failures can be played: S22 loses an acknowledged record, S23 leaves two replicas different
for ever. Nothing in ``replication/`` can be switched to it; it is handed to a replica's seat from outside.
"""

from __future__ import annotations

from collections.abc import Mapping

from minikafka.log.partition_log import PartitionLog
from minikafka.replication.follower import TruncateByLeaderEpoch, TruncationRule
from minikafka.types import NO_EPOCH, Epoch, EpochEnd, Offset


class TruncateByHighWatermark:
    """Cut to the watermark on following, and tell the leader of no epoch, so that it checks none."""

    def on_follow(self, log: PartitionLog, high_watermark: Offset) -> Offset:
        return min(high_watermark, log.end_offset)

    def last_fetched_epoch(self, log: PartitionLog) -> Epoch:  # noqa: ARG002 - the point is that it does not use the log
        return NO_EPOCH

    def on_diverging(self, log: PartitionLog, leaders: EpochEnd) -> Offset:
        """Unreachable in practice: a fetch without an epoch never gets a diverging epoch."""
        return min(leaders.end_offset, log.end_offset)


TRUNCATIONS: Mapping[str, type[TruncationRule]] = {
    "leader-epoch": TruncateByLeaderEpoch,
    "high-watermark": TruncateByHighWatermark,
}
"""By the names that ``--truncation`` takes."""
