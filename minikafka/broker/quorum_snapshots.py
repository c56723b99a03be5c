"""Snapshot files of the metadata log: found at the start, written whole, kept two at a time.

Rules for this file:

1. A snapshot's name without ``.part`` means that it is whole and durable: written, synced, renamed, folder synced.
2. The log's start is raised only to the end of a snapshot that is kept, and only when a newer one is kept as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from minikafka.errors import CorruptMessage, PositionOutOfRange
from minikafka.ports import Buffers, Events, File, World
from minikafka.quorum.snapshot import (
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
from minikafka.types import EpochEnd

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
                return payloads
        return []

    async def write(self, snapshot: EpochEnd, payloads: Sequence[bytes], *, timestamp_ms: int) -> None:
        """Write this member's own state."""
        file = self.begin(snapshot)
        try:
            for batch in encode_snapshot(snapshot, payloads, timestamp_ms=timestamp_ms):
                file.append((batch,))
                await asyncio.sleep(0)
            await self.finish(snapshot, file)
        finally:
            file.close()

    def begin(self, snapshot: EpochEnd) -> File:
        """An empty file to write the snapshot to."""
        path = part_path(snapshot)
        self._disk.remove(path)
        return self._disk.open(path)

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
        file = self._disk.open(snapshot_path(snapshot))
        try:
            size = file.size()
            if not 0 <= position < size:
                raise PositionOutOfRange(f"position {position} of a snapshot of {size} bytes")
            return size, (file.read(position, min(max_bytes, SNAPSHOT_CHUNK_BYTES)),)
        finally:
            file.close()
