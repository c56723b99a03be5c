"""What compaction may take from a replica, looked at after each of its rounds (KAFKA-FACTS 1.5, S9).

A record that a leader's watermark has passed is *exposed*. It may be gone only when a later record of its key was
exposed too, or when it is a tombstone whose ``delete.retention.ms`` have passed since. Of each producer the batch with
its last sequence stays.
"""

from __future__ import annotations

from bisect import bisect_right

from minikafka.log.partition_log import PartitionLog
from minikafka.sim.log_contents import Batch, stored_batches
from minikafka.types import Offset


class KeyBook:
    """What was exposed of one compacted partition, by key."""

    def __init__(self) -> None:
        self._offsets: dict[bytes | None, list[Offset]] = {}
        self._times: dict[Offset, float] = {}
        self.tombstones: dict[Offset, bytes] = {}
        """Their keys."""

    def note(self, record: Batch, time: float) -> None:
        """``record`` was exposed at ``time``, in virtual seconds."""
        offsets = self._offsets.setdefault(record.key, [])
        offsets.insert(bisect_right(offsets, record.base_offset), record.base_offset)
        self._times[record.base_offset] = time
        if record.is_tombstone and record.key is not None:
            self.tombstones[record.base_offset] = record.key

    def exposed(self, start: Offset, end: Offset) -> list[Offset]:
        """The offsets of ``[start, end)`` that were exposed."""
        return [offset for offset in self._times if start <= offset < end]

    def may_be_gone(self, record: Batch, *, end: Offset, time: float, delete_retention_s: float) -> bool:
        """May a log that goes up to ``end`` lack it at ``time``?"""
        if record.key is None:
            return True
        offsets = self._offsets[record.key]
        later = bisect_right(offsets, record.base_offset)
        if later < len(offsets) and offsets[later] < end:
            return True
        return record.is_tombstone and time - self._times[record.base_offset] >= delete_retention_s


def lost_sequences(log: PartitionLog, end: Offset) -> list[int]:
    """Producers whose newest batch, below ``end``, left no trace in the log: what follows would be taken for new."""
    held = {(batch.producer_id, batch.last_offset) for batch in stored_batches(log, log.start_offset, end)}
    lost = []
    for producer in log.producers.last_sequences():
        last = log.producers.last_batch(producer)
        if last is not None and log.start_offset <= last[2] < end and (producer, last[2]) not in held:
            lost.append(producer)
    return lost
