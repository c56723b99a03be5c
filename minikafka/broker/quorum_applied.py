"""What is committed, as the listener has seen it: applied in order, saved in snapshots, restored from one.

Rules for this file:

1. The listener sees each committed batch once and in order; a snapshot replaces all it has seen.
2. A snapshot is taken between two batches: its offset is exactly what the listener's state reflects.
3. When to take one is a question of bytes applied and of time; nothing is taken while nothing has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from minikafka.broker.quorum_snapshots import SnapshotFiles
from minikafka.config import BrokerConfig
from minikafka.invariant import invariant
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import World
from minikafka.types import Epoch, EpochEnd, NodeId, Offset
from minikafka.wire.batch import split
from minikafka.wire.records import decode_batch

# Read and applied in one turn of the loop: heartbeats go out in between.
APPLY_BYTES = 1024 * 1024


class MetadataListener(Protocol):
    """Who follows the committed metadata. Its methods are called in order, from the loop, and must not wait."""

    def on_commit(self, base_offset: Offset, leader_epoch: Epoch, payloads: Sequence[bytes]) -> None:
        """The record values of one committed batch. Control batches are not passed on, their offsets are skipped."""
        ...

    def on_snapshot(self, snapshot: EpochEnd, payloads: Sequence[bytes]) -> None:
        """The state is replaced by the one at ``snapshot.end_offset``."""
        ...

    def on_leader(self, leader_id: NodeId, epoch: Epoch, i_lead: bool) -> None:  # noqa: FBT001
        """Who leads is known, or no longer known.

        ``i_lead``: this member does, and all that was ever committed before its epoch has been given to this listener.
        It is False again as soon as that may be over.
        """
        ...

    def snapshot_payloads(self) -> Sequence[bytes]:
        """The whole state, as of the last call of ``on_commit`` or ``on_snapshot``."""
        ...


class AppliedMetadata:
    """The listener's place in the metadata log, and the snapshots of it."""

    def __init__(self, config: BrokerConfig, world: World, log: PartitionLog, listener: MetadataListener) -> None:
        self.listener = listener
        self.snapshots = SnapshotFiles(world)
        self.end = EpochEnd(0, 0)
        """The listener has seen everything below ``end.end_offset``; the last of it was of ``end.epoch``."""
        self._world = world
        self._log = log
        self._bytes_max = config.metadata_log_max_record_bytes_between_snapshots
        self._interval_s = config.metadata_log_max_snapshot_interval_ms / 1000
        self._bytes = 0
        self._next_at = 0.0
        self._plan()

    @property
    def newest_snapshot(self) -> EpochEnd | None:
        return self.snapshots.kept[-1] if self.snapshots.kept else None

    def apply_some(self, high_watermark: Offset) -> None:
        """Give the listener the next committed batches, one megabyte or one batch at a time."""
        read = self._log.read(self.end.end_offset, max_bytes=APPLY_BYTES, end_offset=high_watermark)
        invariant(read.size > 0, "what is committed can be read", end=self.end, high_watermark=high_watermark)
        for batch in (batch for buffer in read.buffers for batch in split(buffer)):
            invariant(
                batch.base_offset == self.end.end_offset, "committed batches follow on", batch=batch, end=self.end
            )
            if not batch.is_control:
                payloads = [record.value or b"" for record in decode_batch(batch)]
                self.listener.on_commit(batch.base_offset, batch.leader_epoch, payloads)
            self.end = EpochEnd(batch.leader_epoch, batch.next_offset)
            self._bytes += batch.size

    def replace(self, snapshot: EpochEnd, payloads: Sequence[bytes]) -> None:
        """Restore the state from a snapshot."""
        self.listener.on_snapshot(snapshot, payloads)
        self.end = snapshot
        self._plan()

    # ---- taking snapshots --------------------------------------------------------------------------------------------

    @property
    def next_snapshot_at(self) -> float | None:
        """When the next one is due by time alone; None: only more bytes can make one due."""
        later = self._interval_s > 0 and self._next_at > self._world.clock.now()
        return self._next_at if later else None

    def is_snapshot_due(self) -> bool:
        """Enough bytes were applied since the last one, or any and the time is up."""
        by_time = self._interval_s > 0 and self._world.clock.now() >= self._next_at
        return self._bytes > 0 and (by_time or self._bytes >= self._bytes_max)

    async def take_snapshot(self) -> None:
        """Write the current state, durably."""
        snapshot, payloads = self.end, self.listener.snapshot_payloads()
        self._plan()
        await self.snapshots.write(snapshot, payloads, timestamp_ms=self._world.clock.wall_ms())
        self._world.events(
            "snapshot_taken", end_offset=snapshot.end_offset, epoch=snapshot.epoch, records=len(payloads)
        )

    def _plan(self) -> None:
        self._bytes = 0
        self._next_at = self._world.clock.now() + self._interval_s
