"""One new segment in place of the old ones that it was made of, so that no crash leaves neither (KAFKA-FACTS 1.5).

The steps; N is the base offset of the first old segment and of the new one, M of any further old one::

    1  N.log.cleaned and its indexes written, synced; N's old indexes and misleading snapshots removed; folder synced
    2  N.log.cleaned -> N.log.swap; memory changes over here; folder synced
    3  N.log.swap -> N.log, over the old one; folder synced
    4  N.index.cleaned -> N.index, N.timeindex.cleaned -> N.timeindex, N.txnindex.cleaned -> N.txnindex; M's files
       removed; synced with the next sync

Why so, with a power cut that may keep any part of the names changed since the folder was last synced:

- Until 2 is durable the old segments are whole; what was ``.cleaned`` is removed when the log is opened.
- From then on N.log is the old or the new one, and the new one's bytes are on disk. M goes only after N.log is surely
  new. The last batch of the new segment spans what the last old one did, so M lies wholly below the end of the segment
  before it: by that an opening log knows that it was replaced (``recovery.py``).
- An index never stands beside a log file that it was not made for: the old one is surely gone before 3, the new one
  comes after it. A missing index is rebuilt. A missing transaction index may also be an empty one: while
  N.txnindex.cleaned is there, none of N's indexes is believed (``recovery.py``).
- A producer snapshot may say that a transaction is open whose marker the new segment lacks. Recovered from it, the
  transaction would never end. So it is surely gone before 2; a replay then begins with an older one, or the log.

A cut, a restart or a deletion of the log may come between the steps and cannot wait for a sync. Before the folder sync
of 2 has returned it undoes 2: the old segments are all there, and they stand for the log again. After that sync it does
step 4 at once: a rename is kept whole or not at all, so N.log.swap or N.log leads the next start to the new segment.
"""

from __future__ import annotations

from collections.abc import Callable

from minikafka.log.durability import Durability
from minikafka.log.names import CLEANED
from minikafka.log.segment import Segment
from minikafka.log.segment_store import SegmentStore
from minikafka.ports import Disk
from minikafka.types import NO_OFFSET


class Sources:
    """Segments that follow one another in a log, and whether they still do."""

    def __init__(self, store: SegmentStore, segments: list[Segment]) -> None:
        self.segments = segments
        self._store = store
        self._cut_count = store.cut_count

    @property
    def are_unchanged(self) -> bool:
        """Are they still in the log, none of them active, and has nothing been cut, not even behind them?

        What made a record go may have been cut off; a value must not go with its successor.
        """
        if self._store.is_closed or self._store.cut_count != self._cut_count:
            return False
        held, first = self._store.segments, self.segments[0]
        number = next((n for n, segment in enumerate(held) if segment is first), None)
        if number is None or len(held) <= number + len(self.segments):
            return False
        return all(one is other for one, other in zip(held[number:], self.segments, strict=False))


async def settle(disk: Disk, folder: str, store: SegmentStore) -> None:
    """What is left of steps 2 to 4 of a swap that has begun, in their order; nothing when there is none."""
    swapping = store.swapping
    if swapping is None:
        return
    await disk.sync_folder(folder)
    if store.is_swapping(swapping):  # else a cut, restart or deletion has undone it
        store.rename_swap()
        await disk.sync_folder(folder)
    if store.is_swapping(swapping):
        store.finish_swap()


class SegmentSwap:
    """Writes and installs the segment that replaces ``sources``; dropped when something else happens to them first."""

    def __init__(self, disk: Disk, folder: str, store: SegmentStore, durability: Durability, sources: Sources) -> None:
        self.sources = sources
        self._disk = disk
        self._folder = folder
        self._store = store
        self._durability = durability
        self.cleaned = Segment(disk, folder, sources.segments[0].base_offset, suffix=CLEANED)
        self.last_marker_gone = NO_OFFSET
        """Of the last marker that the new segment lacks: producer snapshots up to it go in step 1."""
        self._remove_cleaned()

    def abandon(self) -> None:
        """The old segments stay, with their indexes; too late, and no change, once the new one is in the log."""
        if self._is_in_the_log:
            return
        file = self.cleaned.take_file()
        if file is not None:
            file.close()
        if self._store.is_closed:
            return
        self._remove_cleaned()
        old = self.sources.segments[0]
        if any(segment is old for segment in self._store.segments[:-1]) and not self._disk.exists(old.index_paths[0]):
            self._store.save_indexes(old)

    @property
    def _is_in_the_log(self) -> bool:
        return any(segment is self.cleaned for segment in self._store.segments)

    def _remove_cleaned(self) -> None:
        for path in self.cleaned.paths:
            self._disk.remove(path + CLEANED)

    async def install(self, on_swap: Callable[[Segment], None]) -> bool:
        """Do steps 1 to 4. Return False if a change of the log meanwhile has dropped the new segment.

        Raises DiskFailed and DiskFull.
        """
        await self._write_out()
        if not self.sources.are_unchanged:
            return False
        self._store.begin_swap(self.cleaned, self.sources.segments)
        on_swap(self.cleaned)
        await settle(self._disk, self._folder, self._store)
        return self._is_in_the_log

    async def _write_out(self) -> None:
        cleaned = self.cleaned
        cleaned.time_index.append_if_later(cleaned.max_timestamp, cleaned.offset_of_max_timestamp)
        await cleaned.file.sync()
        cleaned.synced_writes = cleaned.writes
        indexes = cleaned.index.to_bytes(), cleaned.time_index.to_bytes(), cleaned.transactions.to_bytes()
        for path, data in zip(cleaned.index_paths, indexes, strict=False):
            if not self.sources.are_unchanged:
                return
            file = self._disk.open(path + CLEANED)
            file.append([data])
            try:
                await file.sync()
            finally:
                file.close()
        cleaned.transactions.has_file = bool(cleaned.transactions.entries)
        if self.sources.are_unchanged:
            self._store.remove_indexes(self.sources.segments[0])
            self._store.remove_snapshots(self.last_marker_gone)
            await self._disk.sync_folder(self._folder)
