"""Which segments are old enough to go (KAFKA-FACTS 1.5). Pure: the log and the clock come in as numbers.

Oldest first, and none after the first that has to stay. A segment whose end lies above the high watermark stays,
whatever its age.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minikafka.config import TopicConfig
from minikafka.types import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentAge:
    """What retention needs to know of one segment."""

    end_offset: Offset
    size: int
    newest_ms: int
    """Largest timestamp, or the file's time of change when its records have none."""


def expired_count(
    segments: Iterable[SegmentAge],
    config: TopicConfig,
    *,
    size: int,
    now_ms: int,
    start_offset: Offset,
    high_watermark: Offset,
) -> int:
    """How many of the oldest ``segments``, which hold ``size`` bytes, may be deleted: all may, the active one too.

    No segment behind the first that stays is looked at: its newest timestamp may have to be read from the disk.
    Where ``cleanup.policy`` has ``delete``: by time, older than ``retention.ms``; by size, while what is left holds
    ``retention.bytes`` without it. Everywhere: by start, wholly below the log start offset (DeleteRecords).
    """
    excess = size - config.retention_bytes
    deletes = "delete" in config.cleanup_policy
    count = 0
    for segment in segments:
        if segment.end_offset > high_watermark:
            break
        excess -= segment.size
        too_old = deletes and 0 <= config.retention_ms < now_ms - segment.newest_ms
        too_much = deletes and config.retention_bytes >= 0 and excess >= 0
        if not (too_old or too_much or segment.end_offset <= start_offset):
            break
        count += 1
    return count
