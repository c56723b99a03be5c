"""One round of compaction over one log: map the keys of its dirty part, rewrite every segment without what they
replace (KAFKA-FACTS 1.5).

Rules for this file:

1. What stays is decided in ``compaction.py``; this reads, writes, swaps files and waits.
2. It gives the loop its turn after every few batches, and then looks whether the segments are still there: retention, a
   cut or the end of the log may have come first. What was swapped in by then stands, the rest waits for the next round.
3. Every batch is checked against its checksum before it is believed: damage is not rewritten under a good one.

Each new segment takes the place of the old ones that it was made of so that no crash leaves neither. The steps; N is
the base offset of the first old segment and of the new one, M of any further old one::

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
  transaction would never end. So it is surely gone before 2; a replay then begins with an older one, or the log. The
  one at the log's beginning stays, without its open transactions: nothing else tells what producers wrote last in
  segments that were deleted. All these transactions have ended, and the first batch that is left of one begins it.

A cut, a restart or a deletion of the log may come between the steps and cannot wait for a sync. Before the folder sync
of 2 has returned it undoes 2: the old segments are all there, and they stand for the log again. After that sync it does
step 4 at once: a rename is kept whole or not at all, so N.log.swap or N.log leads the next start to the new segment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from minikafka.config import TopicConfig
from minikafka.errors import CorruptMessage
from minikafka.log.compaction import BatchFilter, DirtyRange, SegmentFacts, grouped
from minikafka.log.durability import Durability
from minikafka.log.epochs import EpochCache
from minikafka.log.names import CLEANED
from minikafka.log.scan import Damage, scan
from minikafka.log.segment import RELATIVE_MAX, Segment
from minikafka.log.segment_store import SegmentStore
from minikafka.ports import Disk
from minikafka.types import NO_EPOCH, NO_OFFSET, Offset
from minikafka.wire.batch import RecordBatch
from minikafka.wire.rewrite import emptied


class Sources:
    """Segments that follow one another in a log, and whether they still do."""

    def __init__(self, store: SegmentStore, segments: list[Segment]) -> None:
        self.segments = segments
        self._store = store
        self._cut_count = store.cut_count

    @property
    def are_unchanged(self) -> bool:
        """Return True if they are still in the log, none is active, and nothing was truncated, not even behind them.

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
        self._snapshot: tuple[str, bytes] | None = None
        """Path and content of the snapshot that takes the place of one of them."""
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
        for path in (*self.cleaned.paths, *(self._snapshot or ())[:1]):
            self._disk.remove(path + CLEANED)

    async def install(self, on_swap: Callable[[Segment], None]) -> bool:
        """Do steps 1 to 4. Return False if a change of the log meanwhile has dropped the new segment.

        Raises DiskFailed and DiskFull.
        """
        if not await self._write_out():
            return False
        self._store.begin_swap(self.cleaned, self.sources.segments)
        on_swap(self.cleaned)
        await settle(self._disk, self._folder, self._store)
        return self._is_in_the_log

    async def _write_out(self) -> bool:
        """Do step 1. Return False if the log has changed meanwhile."""
        cleaned = self.cleaned
        cleaned.time_index.append_if_later(cleaned.max_timestamp, cleaned.offset_of_max_timestamp)
        await cleaned.file.sync()
        cleaned.synced_writes = cleaned.writes
        indexes = cleaned.index.to_bytes(), cleaned.time_index.to_bytes(), cleaned.transactions.to_bytes()
        files = list(zip(cleaned.index_paths, indexes, strict=False))
        self._snapshot = self._store.first_snapshot(self.last_marker_gone)
        if self._snapshot is not None:
            files.append(self._snapshot)
        for path, data in files:
            if not self.sources.are_unchanged:
                return False
            with closing(self._disk.open(path + CLEANED)) as file:
                file.append([data])
                await file.sync()
        cleaned.transactions.has_file = bool(cleaned.transactions.entries)
        # The log may begin elsewhere by now, with another snapshot.
        if not self.sources.are_unchanged or self._store.first_snapshot(self.last_marker_gone) != self._snapshot:
            return False
        self._store.remove_indexes(self.sources.segments[0])
        self._store.remove_snapshots(self.last_marker_gone, self._snapshot)
        await self._disk.sync_folder(self._folder)
        return self.sources.are_unchanged


Pause = Callable[[int], Awaitable[None]]
"""Awaited after so many bytes were read or written."""

BYTES_PER_TURN_MAX = 64 * 1024
"""A few milliseconds of opening records."""


@dataclass(slots=True, kw_only=True)
class Cleaned:
    """What one round did."""

    end_offset: Offset = NO_OFFSET
    """Clean up to here: the next checkpoint; -1: nothing was done."""
    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    segments_before: int = 0
    segments_after: int = 0
    keyless: int = 0
    """Records without a key, which went."""
    keys: int = 0
    is_complete: bool = True
    """False: the map was full, and another round has to go on from ``end_offset``."""
    was_interrupted: bool = False
    """The log was cut, deleted from or closed meanwhile: the next round begins where this one did."""


class _Interrupted(Exception):
    """The segments are no longer those that the round began with."""


class Cleaner:
    """One round over one log."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        store: SegmentStore,
        durability: Durability,
        config: TopicConfig,
        epochs: EpochCache,
        *,
        facts_of: Callable[[Segment], SegmentFacts],
        clock_ms: Callable[[], int],
        pause: Pause,
        on_swap: Callable[[Segment], None],
    ) -> None:
        """``on_swap`` is called with each new segment at the moment when it takes its place in the log."""
        self._on_swap = on_swap
        self._disk = disk
        self._folder = folder
        self._store = store
        self._durability = durability
        self._config = config
        self._epochs = epochs
        self._facts_of = facts_of
        self._clock_ms = clock_ms
        self._pause = pause
        self._unpaused = 0
        self.cleaned = Cleaned()

    async def clean(self, dirty: DirtyRange, *, memory_bytes: int) -> Cleaned:
        """See the head of this file. Raises CorruptMessage, DiskFailed, DiskFull."""
        # What a full disk stopped in the midst of a swap comes first: a new one would take its files' names.
        await settle(self._disk, self._folder, self._store)
        sources = [s for s in self._store.segments[:-1] if s.next_offset <= dirty.first_uncleanable]
        if not sources:
            return self.cleaned
        batches = BatchFilter(
            self._config,
            self._epochs,
            self._store.producers,
            self._store.aborted_transactions(sources[0].base_offset, sources[-1].next_offset),
            first_uncleanable=dirty.first_uncleanable,
            memory_bytes=memory_bytes,
        )
        offsets = batches.offsets
        try:
            await self._map(sources, dirty, batches)
            if offsets.end_offset == NO_OFFSET:
                return self.cleaned
            await self._rewrite([s for s in sources if s.base_offset < offsets.end_offset], batches)
        except _Interrupted:
            self.cleaned.was_interrupted = True
        else:
            self.cleaned.end_offset = offsets.end_offset
        self.cleaned.keys = len(offsets)
        self.cleaned.keyless = batches.keyless
        return self.cleaned

    async def _map(self, sources: list[Segment], dirty: DirtyRange, batches: BatchFilter) -> None:
        watch = Sources(self._store, sources)
        for segment in sources:
            if segment.next_offset <= dirty.first_dirty:
                continue
            for batch in _batches(segment):
                if batch.next_offset > dirty.first_dirty and not batches.take(batch):
                    self.cleaned.is_complete = False
                    return
                await self._turn(batch.size, watch)

    async def _rewrite(self, sources: list[Segment], batches: BatchFilter) -> None:
        groups: list[Sources] = []
        position = 0
        for count in grouped([self._facts_of(segment) for segment in sources], self._config):
            groups.append(Sources(self._store, sources[position : position + count]))
            position += count
        for group in groups:
            if not group.are_unchanged:
                raise _Interrupted
            swap = SegmentSwap(self._disk, self._folder, self._store, self._durability, group)
            is_installed = False
            try:
                if await self._write(swap, batches):
                    is_installed = await swap.install(self._on_swap)
                    if not is_installed:
                        raise _Interrupted
            finally:
                if not is_installed:
                    swap.abandon()
            self.cleaned.segments_before += len(group.segments)
            self.cleaned.segments_after += 1

    async def _write(self, swap: SegmentSwap, batches: BatchFilter) -> bool:
        """Fill ``swap.cleaned``; False: it would be just what is there."""
        is_new = len(swap.sources.segments) > 1
        for segment in swap.sources.segments:
            dropped: RecordBatch | None = None
            for batch in _batches(segment):
                data = batches.retained(batch, swap.cleaned.transactions, now_ms=self._clock_ms())
                is_new |= data is not batch.data
                dropped = None
                if data is None:
                    dropped = batch if segment is swap.sources.segments[-1] else None
                else:
                    self._append(swap.cleaned, data)
                await self._turn(batch.size, swap.sources)
                self.cleaned.bytes_before += batch.size
                self.cleaned.records_before += batch.record_count
            if dropped is not None:  # the last one: the end of the log, or where the next segment begins
                self._append(swap.cleaned, emptied(dropped))
        swap.last_marker_gone = batches.last_marker_gone
        return is_new

    def _append(self, segment: Segment, data: bytes | memoryview) -> None:
        batch = RecordBatch.of(data)
        if segment.size + batch.size > RELATIVE_MAX:
            raise CorruptMessage(f"{segment}: {batch.size} bytes more do not fit into its index")
        segment.append(
            [data],
            size=batch.size,
            last_offset=batch.last_offset,
            max_timestamp=batch.newest_timestamp,
            offset_of_max=batch.last_offset,
            index_interval_bytes=self._config.index_interval_bytes,
        )
        self.cleaned.bytes_after += batch.size
        self.cleaned.records_after += batch.record_count

    async def _turn(self, size: int, watch: Sources) -> None:
        self._unpaused += size
        if self._unpaused >= BYTES_PER_TURN_MAX:
            size, self._unpaused = self._unpaused, 0
            await self._pause(size)
            if not watch.are_unchanged:
                raise _Interrupted


def _batches(segment: Segment) -> Iterator[RecordBatch]:
    try:
        for _, batch in scan(
            segment.file,
            size=segment.size,
            first_offset=segment.base_offset,
            last_offset_max=segment.base_offset + RELATIVE_MAX,
            epoch=NO_EPOCH,
            gaps=True,
        ):
            yield batch
    except Damage as damage:
        raise CorruptMessage(f"{segment}: {damage.reason} at byte {damage.position}") from damage
