"""What is committed, as the listener has seen it: applied in order, saved in snapshots, restored from one.

Rules for this file:

1. The listener sees each committed batch once and in order; a snapshot replaces all it has seen.
2. A snapshot is taken between two batches: its offset is exactly what the listener's state reflects.
3. When to take one is a question of bytes applied and of time; nothing is taken while nothing has changed.

Snapshot files are found at the start, written whole, and kept two at a time. Rules for them:

1. A snapshot's name without ``.part`` means that it is whole and durable: written, synced, renamed, folder synced.
2. The log's start is raised only to the end of a snapshot that is kept, and only when a newer one is kept as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from typing import Protocol

from minikafka.config import BrokerConfig
from minikafka.errors import CorruptMessage, PositionOutOfRange
from minikafka.invariant import invariant
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import Buffers, Events, File, World
from minikafka.quorum.files import (
    FOLDER,
    PART_SUFFIX,
    SNAPSHOTS_KEPT,
    by_offset,
    decode_snapshot,
    encode_snapshot,
    parse_snapshot_name,
    part_path,
    snapshot_path,
)
from minikafka.types import Epoch, EpochEnd, NodeId, Offset
from minikafka.wire.batch import split
from minikafka.wire.records import decode_batch

SNAPSHOT_CHUNK_BYTES = 1024 * 1024
"""Of one FetchSnapshot answer."""


class SnapshotFiles:
    """The snapshots in the data directory."""

    def __init__(self, world: World) -> None:
        self._disk = world.disk
        self._events: Events = world.events
        self.kept: tuple[EpochEnd, ...] = ()
        """Oldest first."""

    def load(self) -> list[bytes]:
        """Find the snapshots, forget unfinished ones, and give the newest one's state (empty: there is none).

        A damaged one is an event, and is skipped; the log must then reach back to the one before it.
        """
        found = []
        for name in self._disk.names(FOLDER):
            snapshot = parse_snapshot_name(name)
            if snapshot is not None:
                found.append(snapshot)
            elif name.endswith(PART_SUFFIX):
                self._disk.remove(f"{FOLDER}/{name}")
        found.sort(key=by_offset)
        while found:
            try:
                payloads = decode_snapshot(self._disk.read_file(snapshot_path(found[-1])))
            except CorruptMessage as error:
                damaged = found.pop()
                self._events("snapshot_damaged", end_offset=damaged.end_offset, epoch=damaged.epoch, reason=str(error))
            else:
                self.kept = tuple(found[-SNAPSHOTS_KEPT:])
                for old in found[:-SNAPSHOTS_KEPT]:
                    # The process ended between the writing of a new one and the removal of this one.
                    self._disk.remove(snapshot_path(old))
                return payloads
        return []

    async def write(self, snapshot: EpochEnd, payloads: Sequence[bytes], *, timestamp_ms: int) -> None:
        """Write this member's own state."""
        with closing(self.begin(snapshot)) as file:
            for batch in encode_snapshot(snapshot, payloads, timestamp_ms=timestamp_ms):
                file.append((batch,))
                await asyncio.sleep(0)
            await self.finish(snapshot, file)

    def begin(self, snapshot: EpochEnd) -> File:
        """An empty file to write the snapshot to."""
        path = part_path(snapshot)
        self._disk.remove(path)
        return self._disk.open(path)

    def give_up(self, snapshot: EpochEnd) -> None:
        """Remove what was fetched of a snapshot: the next fetch may name another one."""
        self._disk.remove(part_path(snapshot))

    def read_part(self, snapshot: EpochEnd) -> list[bytes]:
        """The state in a snapshot that was fetched but not finished; CorruptMessage unless it is whole."""
        return decode_snapshot(self._disk.read_file(part_path(snapshot)))

    async def finish(self, snapshot: EpochEnd, file: File) -> None:
        """Make the written file durable and give it its name."""
        await file.sync()
        file.close()
        self._disk.replace(part_path(snapshot), snapshot_path(snapshot))
        await self._disk.sync_folder(FOLDER)
        if snapshot not in self.kept:
            self.kept = tuple(sorted((*self.kept, snapshot), key=by_offset))

    def drop_old(self) -> None:
        """Remove all but the newest ones. Call it when the log's start has been raised to the oldest that stays."""
        for snapshot in self.kept[:-SNAPSHOTS_KEPT]:
            self._disk.remove(snapshot_path(snapshot))
        self.kept = self.kept[-SNAPSHOTS_KEPT:]

    def drop_others(self, snapshot: EpochEnd) -> None:
        """Remove all but this one: the log starts again at its end."""
        for other in self.kept:
            if other != snapshot:
                self._disk.remove(snapshot_path(other))
        self.kept = (snapshot,)

    def read(self, snapshot: EpochEnd, *, position: int, max_bytes: int) -> tuple[int, Buffers]:
        """(size of the file, bytes from ``position`` on); PositionOutOfRange beyond its end."""
        with closing(self._disk.open(snapshot_path(snapshot))) as file:
            size = file.size()
            if not 0 <= position < size:
                raise PositionOutOfRange(f"position {position} of a snapshot of {size} bytes")
            return size, (file.read(position, min(max_bytes, SNAPSHOT_CHUNK_BYTES)),)


# Read and applied in one turn of the loop: heartbeats go out in between.
APPLY_BYTES = 1024 * 1024


class MetadataListener(Protocol):
    """A follower of the committed metadata. Its methods are called in order, from the loop, and must not wait."""

    def on_commit(self, base_offset: Offset, leader_epoch: Epoch, payloads: Sequence[bytes]) -> None:
        """The record values of one committed batch. Control batches are not passed on, their offsets are skipped."""
        ...

    def on_snapshot(self, snapshot: EpochEnd, payloads: Sequence[bytes]) -> None:
        """The state is replaced by the one at ``snapshot.end_offset``."""
        ...

    def on_leader(self, leader_id: NodeId, epoch: Epoch, i_lead: bool) -> None:  # noqa: FBT001
        """Called when the leader is known, or no longer known.

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
