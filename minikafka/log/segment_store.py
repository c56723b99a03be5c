"""Which files one log consists of: segments are born by rolls and die by cuts, restarts and retention.

Rules for this file: each method leaves the list of segments, the producer snapshots and the durability books in step
with the folder; DiskFull and DiskFailed pass through, its owner stops the log then. What may be read or promised is
decided elsewhere.

Which segments are old enough to be deleted (KAFKA-FACTS 1.5) is a pure function at the end of this file, to which
the log and the clock come as numbers. It takes the oldest first, and none after the first that has to stay. A segment
whose end lies above the high watermark stays, whatever its age.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass

from minikafka.config import TopicConfig
from minikafka.errors import KafkaStorageError
from minikafka.invariant import invariant
from minikafka.log.durability import Durability
from minikafka.log.names import CLEANED, DELETED, LOG, RESTARTED, SNAPSHOT, SWAP, offset_name
from minikafka.log.producer_state import BadSnapshot, ProducerState, replay_producers, without_transactions
from minikafka.log.recovery import LoadedLog
from minikafka.log.segment import RELATIVE_MAX, Segment
from minikafka.log.transactions import AbortedTransaction
from minikafka.ports import Disk
from minikafka.types import Offset
from minikafka.wire.batch import NO_TIMESTAMP, RecordBatch


class SegmentStore:
    """The segments of one log, oldest first; the last one is active and always there."""

    def __init__(
        self, disk: Disk, folder: str, loaded: LoadedLog, durability: Durability, *, disk_recovery_point: Offset
    ) -> None:
        self.segments = loaded.segments
        self.producers = loaded.producers
        self.disk_recovery_point = disk_recovery_point
        """The largest recovery point that a checkpoint on disk may tell after a crash."""
        self.roll_is_put_off = False
        self.waits_for_gaps_marker = False
        """The marker of gaps is not durable yet: no segment that may have some is sealed (``recovery.py``)."""
        self._removal = 0
        """The latest change of a name, in the count of ``durability``, that removed segments which were cut off."""
        self.restarted_at = loaded.restarted_at
        """Where a ``.start`` file says that the log begins; None: no such file."""
        self.is_closed = False
        self.cut_count = 0
        """How often the log was cut or restarted: who has read it must not act on what may be gone."""
        self._swap: tuple[Segment, list[Segment]] | None = None
        """A segment that compaction is swapping in, and those that it replaces."""
        self._disk = disk
        self._folder = folder
        self._durability = durability
        self._snapshots = loaded.snapshots
        self._has_aborted = any(segment.transactions.entries for segment in self.segments)
        """False: no transaction index has an entry, and no reader needs to look at them."""
        self._found = self.active

    @property
    def is_as_found(self) -> bool:
        """True if nothing was appended, cut or swapped since the log was opened: the files of its active segment, and
        the newest snapshot, need not be written again.
        """
        return self.active is self._found and not self.active.is_written and self._swap is None

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self.segments[-1]

    @property
    def end_offset(self) -> Offset:
        """The next offset to be written."""
        return self.segments[-1].next_offset

    @property
    def recovery_point(self) -> Offset:
        """The synced end, but not beyond a sealed segment whose indexes are not durable yet."""
        point = self._durability.synced_end
        if self._durability.all_small_files_synced:
            return point
        for segment in self.segments[:-1]:
            if segment.next_offset >= point:
                break
            if not all(self._durability.is_synced(path) for path in segment.index_paths):
                return segment.next_offset
        return point

    def number_of(self, offset: Offset) -> int:
        """Number of the segment that would hold ``offset``."""
        low, high = 0, len(self.segments) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.segments[middle].base_offset <= offset:
                low = middle
            else:
                high = middle - 1
        return low

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        """The marker of an aborted transaction was appended to the active segment."""
        self.active.transactions.append(aborted)
        self._has_aborted = True

    def aborted_transactions(self, offset: Offset, end_offset: Offset) -> list[AbortedTransaction]:
        """Return the aborted transactions that a reader of ``[offset, end_offset)`` needs, maybe more."""
        found: list[AbortedTransaction] = []
        if self._has_aborted:
            for number in range(self.number_of(offset), len(self.segments)):
                if self.segments[number].transactions.collect(offset, end_offset, found):
                    break
        return found

    # ------------------------------------------------------------------------------------- rolling

    def must_roll(
        self, config: TopicConfig, *, size: int, last_offset: Offset, max_timestamp: int, pending_size: int = 0
    ) -> bool:
        """Before the next batch: by size, age in record time, full indexes, or offsets beyond int32 (KAFKA-FACTS 1.3).

        ``pending_size``: bytes that will be written to the active segment before it.
        """
        segment = self.segments[-1]
        occupied = segment.size + pending_size
        if occupied and occupied > config.segment_bytes - size:
            return True
        if last_offset - segment.base_offset > RELATIVE_MAX:
            return True
        if not segment.size:
            return False
        first = segment.first_timestamp
        age_ms = max_timestamp - first
        is_old = age_ms > 0 and NO_TIMESTAMP not in (first, max_timestamp) and age_ms > config.roll_ms
        return is_old or segment.is_index_full(config.segment_index_bytes)

    def must_roll_for(self, config: TopicConfig, batch: RecordBatch, *, pending_size: int) -> bool:
        """As :meth:`must_roll`, for a batch whose offsets are final."""
        return self.must_roll(
            config,
            size=batch.size,
            last_offset=batch.last_offset,
            max_timestamp=batch.max_timestamp,
            pending_size=pending_size,
        )

    def roll(self, base_offset: Offset, *, size_max: int) -> bool:
        """Seal the active segment; the next one begins at ``base_offset``. False: put off until a sync has passed, or a
        recovery point was saved.

        ``size_max`` is the largest batch that may follow. KafkaStorageError when it can neither wait nor roll.
        """
        sealed = self.active
        is_full = sealed.size + size_max > RELATIVE_MAX or base_offset - sealed.base_offset > RELATIVE_MAX // 2
        # The log was cut below a recovery point that may still stand in the checkpoint on disk. If this segment were
        # sealed: 1. power cut; 2. the old point lies in a later segment; 3. this one is believed, with index files that
        # were never synced. So it stays the last, and is walked, until the checkpoint is replaced.
        is_believed = self.disk_recovery_point > sealed.next_offset
        # Nor, if it can wait, before a cut is durable: the power may take the cut with what was written over it, and
        # what was cut off may end just where the next segment begins. So may a removed segment of the same name.
        is_cut = sealed.cut_write > sealed.synced_writes or not self._durability.is_folder_synced(self._removal)
        waits = is_cut or self.waits_for_gaps_marker
        if is_believed or (waits and not is_full):
            self.roll_is_put_off = True
            if is_full:
                raise KafkaStorageError(
                    f"{self._folder}: the segment is full and waits for its recovery point to be saved"
                )
            return False
        if sealed.size:
            self.save_indexes(sealed)
        else:
            self._remove_segment(self.segments.pop())
        self.segments.append(self._new_segment(base_offset))
        self.take_snapshot()
        self.roll_is_put_off = False
        return True

    def _new_segment(self, base_offset: Offset) -> Segment:
        segment = Segment(self._disk, self._folder, base_offset)
        self._durability.folder_changed()
        invariant(segment.file.size() == 0, "a new segment is empty", segment=segment)
        return segment

    def save_indexes(self, segment: Segment) -> None:
        """Write a segment's index files; durable after the next sync."""
        segment.save_indexes()
        for path in segment.index_paths:
            self._durability.replaced(path)

    def take_snapshot(self) -> None:
        """Producer state up to the end; older snapshots stay only where a segment begins."""
        offset = self.end_offset
        self._write_snapshot(offset, self.producers)
        bases = {segment.base_offset for segment in self.segments}
        self._keep_snapshots([old for old in self._snapshots if old in bases or old == offset])

    def make_snapshot_at(self, base: Offset) -> None:
        """Producer state as of a segment's base, unless there is one: an unclean start may have removed it."""
        if base not in self._snapshots:
            producers = ProducerState()
            replay_producers(self._disk, self._folder, self.segments, producers, self._snapshots, end=base)
            self._write_snapshot(base, producers)

    def _write_snapshot(self, offset: Offset, producers: ProducerState) -> None:
        path = f"{self._folder}/{offset_name(offset, SNAPSHOT)}"
        self._disk.replace_file(path, producers.to_snapshot())
        self._durability.replaced(path)
        if offset not in self._snapshots:
            insort(self._snapshots, offset)

    def first_snapshot(self, last: Offset) -> tuple[str, bytes] | None:
        """Return the snapshot at the log's beginning if it is at ``last`` or below: its path, and the content without
        open transactions. None: there is none that can be read. What stood before the log is known from nothing else.
        """
        base = self.segments[0].base_offset
        if base > last or base not in self._snapshots:
            return None
        path = f"{self._folder}/{offset_name(base, SNAPSHOT)}"
        try:
            return path, without_transactions(self._disk.read_file(path))
        except BadSnapshot:
            return None

    def remove_snapshots(self, last: Offset, first: tuple[str, bytes] | None) -> None:
        """Remove the snapshots of the producers as of ``last`` and below. If none is left, take one of the end.

        ``first``: the :meth:`first_snapshot`, which a ``.cleaned`` file holds; it stays.
        """
        kept = [offset for offset in self._snapshots if offset > last]
        if first is not None:
            self._disk.replace(first[0] + CLEANED, first[0])
            kept.insert(0, self.segments[0].base_offset)
        if len(kept) < len(self._snapshots):
            self._keep_snapshots(kept)
            if not kept:
                self.take_snapshot()

    def _keep_snapshots(self, kept: list[Offset]) -> None:
        for offset in self._snapshots:
            if offset not in kept:
                self._remove(f"{self._folder}/{offset_name(offset, SNAPSHOT)}")
        self._snapshots = kept

    # ------------------------------------------------------------------------------------- cutting

    def cut(self, offset: Offset) -> None:
        """Keep whole batches below ``offset``, which lies above the first segment's base."""
        self.cut_count += 1
        number = self._last_below(offset)
        if self._swap is not None and number <= self.segments.index(self._swap[0]):
            self.leave_swap()
            number = self._last_below(offset)
        for segment in self.segments[number + 1 :]:
            self._remove_segment(segment)
            self.note_removal()
        del self.segments[number + 1 :]
        self.active.truncate(offset)
        self._durability.cut(self.end_offset)
        self._keep_snapshots([snapshot for snapshot in self._snapshots if snapshot <= self.end_offset])
        transactions = self.producers.transactions
        ended = transactions.ended_below(self.end_offset)
        replay_producers(self._disk, self._folder, self.segments, self.producers, self._snapshots, end=self.end_offset)
        transactions.restore_ended(ended)

    def note_removal(self) -> None:
        """Segments were cut off, here or maybe by the process before, and their names may come back with the power."""
        self._removal = self._durability.changes

    def _last_below(self, offset: Offset) -> int:
        """Number of the segment that is the last one once the log is cut at ``offset``."""
        number = self.number_of(offset)
        return number - 1 if number and offset == self.segments[number].base_offset else number

    def restart(self, offset: Offset) -> None:
        """Drop all; one empty segment begins at ``offset``. A marker says so until a checkpoint does."""
        self.cut_count += 1
        self.leave_swap()
        self.remove_restart_marker()
        self._disk.replace_file(f"{self._folder}/{offset_name(offset, RESTARTED)}", b"")
        self.restarted_at = offset
        for segment in self.segments:
            self._remove_segment(segment)
        self.note_removal()
        self._keep_snapshots([])
        self.segments[:] = [self._new_segment(offset)]
        self.producers.clear()
        self._durability.withdraw()
        self._durability.start_moved()

    @property
    def restart_is_unsynced(self) -> bool:
        """Return True if the log begins again, has no record yet, and a power cut may bring back older ones before it.

        Before a log that begins at 0 there is no place for them.
        """
        is_empty_again = bool(self.restarted_at) and not self.active.size
        return is_empty_again and not self._durability.is_folder_synced(self._removal)

    def remove_restart_marker(self) -> None:
        """The checkpoint tells the start now."""
        if self.restarted_at is not None:
            self._remove(f"{self._folder}/{offset_name(self.restarted_at, RESTARTED)}")
            self.restarted_at = None

    def delete_oldest(self) -> list[str]:
        """Rename the oldest segment's files; their new paths."""
        if self.is_swapping(self.segments[0]):
            self.leave_swap()
        segment = self.segments.pop(0)
        self._durability.retire(segment.take_file())
        renamed = []
        for path in (*segment.paths, segment.path(SNAPSHOT)):
            if self._disk.exists(path):
                self._disk.replace(path, path + DELETED)
                self._durability.removed(path)
                renamed.append(path + DELETED)
        self._snapshots = [offset for offset in self._snapshots if offset != segment.base_offset]
        return renamed

    # ---------------------------------------------------------------------------------- swapping (see cleaner.py)

    def begin_swap(self, cleaned: Segment, sources: list[Segment]) -> None:
        """Step 2: from now on ``cleaned`` stands for ``sources``, which follow one another and are not active."""
        invariant(self._swap is None, "one swap ends before the next one begins", swap=self._swap)
        first = self.segments.index(sources[0])
        self._disk.replace(cleaned.path(LOG) + CLEANED, cleaned.path(LOG) + SWAP)
        cleaned.suffix = SWAP
        self.segments[first : first + len(sources)] = [cleaned]
        for segment in sources:
            self._durability.retire(segment.take_file())
        self._swap = cleaned, sources
        self._durability.folder_changed()

    @property
    def swapping(self) -> Segment | None:
        """What is in memory, and not yet alone on disk."""
        return self._swap[0] if self._swap is not None and not self.is_closed else None

    def is_swapping(self, segment: Segment) -> bool:
        """Return True if it is in memory, and not yet only on disk."""
        return self.swapping is segment

    def rename_swap(self) -> None:
        """Step 3: over the old file of the same name."""
        if self._swap is not None and self._swap[0].suffix:
            cleaned = self._swap[0]
            self._disk.replace(cleaned.path(LOG) + SWAP, cleaned.path(LOG))
            cleaned.suffix = ""
            self._durability.folder_changed()

    def finish_swap(self) -> None:
        """Step 4. Its only precondition is a durable name of the new segment; without a swap it does nothing."""
        if self._swap is None:
            return
        cleaned, sources = self._swap
        invariant(not cleaned.suffix, "old segments stay until the name of the new one is durable", segment=cleaned)
        for path in cleaned.index_paths:
            if self._disk.exists(path + CLEANED):  # else it has its name: a full disk stopped this before
                self._disk.replace(path + CLEANED, path)
        for segment in sources[1:]:
            for path in segment.paths:
                self._remove(path)
        self._swap = None
        self._durability.folder_changed()

    def leave_swap(self) -> None:
        """End the swap without waiting for a sync: undo step 2 until it is durable, finish the swap afterwards."""
        if self._swap is None:
            return
        cleaned, sources = self._swap
        if not cleaned.suffix:
            self.finish_swap()
            return
        self._swap = None
        number = self.segments.index(cleaned)
        self.segments[number : number + 1] = sources
        self._durability.retire(cleaned.take_file())
        for path in (cleaned.path(LOG) + SWAP, *(path + CLEANED for path in cleaned.index_paths)):
            self._remove(path)

    def remove_indexes(self, segment: Segment) -> None:
        """Its index files only; those in memory serve on."""
        segment.load_indexes()
        for path in segment.index_paths:
            self._remove(path)

    def _remove_segment(self, segment: Segment) -> None:
        self._durability.retire(segment.take_file())
        for path in segment.paths:
            self._remove(path)

    def _remove(self, path: str) -> None:
        self._disk.remove(path)
        self._durability.removed(path)

    def close(self) -> None:
        """Let go of all files."""
        self.is_closed = True
        for segment in self.segments:
            self._durability.retire(segment.take_file())


# ---- retention -------------------------------------------------------------------------------------------------------


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
