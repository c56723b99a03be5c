"""Opening one log from disk (KAFKA-FACTS 1.4, S21): it opens a prefix of what was written, and says what it dropped.

Rules for this file:

1. After a clean stop the files are believed. After any other stop every segment from the one that holds the recovery
   point on is walked batch by batch (``scan.py``). The file is cut at the first batch that does not fit, later
   segments are dropped, indexes and epochs are rebuilt from the batches.
2. Segments must follow one another without a hole. A hole or a missing beginning means that a name was lost with the
   power: what comes after it is set aside as ``.stray`` files, unless what comes before it was already deleted by
   retention (the leader-epoch checkpoint then begins there, too), or a ``.start`` file says that the log was begun
   again there (after a kill -9 the checkpoint may not say so yet).
3. A compacted log has gaps between offsets; Kafka's has holes between segments as well, ours does not. Kafka leaves no
   marker of that: a log in which a gap is found gets one (``mk.gaps``), and has them from then on. The marker says up
   to where there are holes, and no segment with a gap is sealed before it is durable. So after an unclean stop a hole
   above is a lost name or a torn end, as in any log. Without a marker a gap in a sealed segment shows that Kafka's
   cleaner, or ours before it wrote this down, has left the hole.
4. Segments that compaction was replacing are finished being replaced: a ``.log.swap`` takes its name, a segment below
   the end of the one before it goes (``cleaner.py``).
5. Where leader epochs fall, the log came from another cluster. It is not cut: MisfitLog, and its owner sets it aside.
   Unless they fall at the beginning of a segment, in a log of ours: that one had been cut off, and came back with the
   power. A segment is not sealed before its own cut is durable (``segment_store.py``), so it cannot come back alone.
6. Everything dropped is in the ``RecoveryReport``, with the reason. Bytes are removed only where a batch is damaged.
   Where its checksum is right and only its offsets do not fit, the bytes from there on are kept in a ``.stray`` file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from minikafka.config import LONG_MAX, TopicConfig
from minikafka.errors import CorruptMessage, DiskFailed, DiskFull
from minikafka.log.checkpoint import BadCheckpoint, parse_epochs, parse_holes_end
from minikafka.log.epochs import EpochCache
from minikafka.log.names import (
    CLEANED,
    DAMAGED,
    DELETED,
    GAPS,
    INDEX,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    RESTARTED,
    SNAPSHOT,
    STRAY,
    SWAP,
    TEMPORARY,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_name,
    offsets_by_suffix,
)
from minikafka.log.producer_state import BadSnapshot, ProducerState, parse_snapshot, replay_producers
from minikafka.log.scan import Damage, FallingEpoch, Misplaced, scan
from minikafka.log.segment import RELATIVE_MAX, OffsetIndex, Segment, TimeIndex, headers
from minikafka.log.transaction_index import BadTransactionIndex
from minikafka.ports import Disk
from minikafka.types import NO_EPOCH, NO_OFFSET, Epoch, Offset
from minikafka.wire.batch import RecordBatch

# ---- what opening a log gives ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Bytes that the opened log does not have any more."""

    path: str
    position: int
    size: int
    reason: str
    below_recovery_point: bool
    """True is damage to what was once synced; False is what a power cut may leave."""
    kept_as: str = ""
    """The file's new name: its batches are sound, and only what should come before them is missing. Empty: removed."""


class MisfitLog(Exception):
    """A log that must be set aside unchanged: its batches are sound, but no leader of this cluster wrote them so."""


class UnsyncedCopy(Exception):
    """A file has what is needed of another one, and must be durable before that one is cut or removed: a copy of bytes
    that are cut off, a snapshot with the producers of segments that are deleted, or the mark of a damaged log, which
    stands for all that is cut. See :func:`load`.
    """

    def __init__(self, source: str, copy: str) -> None:
        super().__init__(f"{copy} has what is needed of {source}, which is about to be cut or removed")
        self.source = source
        self.copy = copy


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """How a log was opened."""

    clean: bool
    recovery_point: Offset = 0
    """The checkpointed one; 0: there was none."""
    checked_count: int = 0
    """Batches whose checksum was computed."""
    dropped: list[Dropped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was rebuilt, in words."""
    lacks_records: bool = False
    """Indexes show that a segment is gone or shorter than it was."""


@dataclass(slots=True, kw_only=True)
class LoadedLog:
    """What :func:`load` found."""

    segments: list[Segment]
    epochs: EpochCache
    producers: ProducerState
    snapshots: list[Offset]
    start_offset: Offset
    trusted_end: Offset
    """Everything below was surely synced. After an unclean stop: the base of the first segment that was walked, for
    that one may have been cut below the recovery point and written again, which a kill -9 does not undo."""
    restarted_at: Offset | None
    """The log begins where only a ``.start`` file says that it does."""
    has_gaps: bool
    """Compaction has left offsets out, here or where it was copied from."""
    holes_end: Offset
    """Segments that begin above follow the one before them without a hole."""
    marks_gaps: bool
    """A file says these two."""
    report: RecoveryReport


COPY_SIZE = 1024 * 1024


# ---- opening ---------------------------------------------------------------------------------------------------------


def may_have_gaps(config: TopicConfig) -> bool:
    """Return True if compaction may leave offsets out of this log from now on."""
    return config.compacts


class _Loader:
    """One opening of one log."""

    def __init__(
        self,
        disk: Disk,
        folder: str,
        config: TopicConfig,
        *,
        clean: bool,
        recovery_point: Offset | None,
        start_offset: Offset,
        high_watermark: Offset | None,
        on_rebuilt: Callable[[str], None],
        copies: Mapping[str, str] | None,
    ) -> None:
        self.disk = disk
        self.copies = copies
        self.on_rebuilt = on_rebuilt
        self.folder = folder
        self.config = config
        self.clean = clean
        self.recovery_point = recovery_point or 0
        self.recovery_point_known = recovery_point is not None
        self.start_offset = start_offset
        self.high_watermark = high_watermark
        self.report = RecoveryReport(clean=clean, recovery_point=self.recovery_point)
        self.epochs = EpochCache()
        self.epochs_are_from_file = False
        self.is_foreign = False
        """The checkpoint of epochs is sound, and knows nothing of the log's beginning: another cluster wrote that."""
        self.end_max: Offset = LONG_MAX
        """The log does not end behind this offset."""
        self.last_batch: RecordBatch | None = None
        """The last batch of the last segment whose end was looked for."""
        self.segments: list[Segment] = []
        self.restarted_at: Offset | None = None
        self.trusted_end = 0
        self._names: dict[str, None] | None = None
        """Files in the folder; None: not known, or changed since. A folder may hold thousands, and is listed once."""
        self._bases: dict[str, list[Offset]] = {}
        """Their base offsets by suffix, ascending."""
        self.has_gaps = self.has_marker = GAPS in self.names
        marked_end = parse_holes_end(disk.read_file(f"{folder}/{GAPS}")) if self.has_gaps else None
        self.marks_gaps = marked_end is not None
        self.holes_end = marked_end or 0
        self.gaps = self.has_gaps or may_have_gaps(config)
        self.unfinished: set[Offset] = set()
        """Bases of segments whose transaction index was being swapped in."""
        self.indexed: set[Offset] = set()
        """Bases of segments with both index files."""
        self.unindexed: list[Segment] = []
        """Segments that were walked and hold markers: their transaction indexes come from the replay of producers."""

    def load(self) -> LoadedLog:
        self._finish_swaps()
        self._remove_leftovers()
        self.segments = [Segment(self.disk, self.folder, base) for base in self._bases_of(LOG)]
        self.indexed = set(self._bases_of(INDEX)).intersection(self._bases_of(TIME_INDEX))
        with_transactions = set(self._bases_of(TRANSACTION_INDEX))
        for segment in self.segments:
            segment.transactions.has_file = segment.base_offset in with_transactions
        self._check_beginning()
        self._load_epochs()
        self._load_segments()
        self._check_start()
        self._check_epochs()
        if self.segments and self.segments[-1].next_offset < self.start_offset:
            self._drop(0, f"the log ends at {self.segments[-1].next_offset}, below its start {self.start_offset}")
        if not self.segments:
            self.epochs.clear()
            self.segments = [Segment(self.disk, self.folder, self.start_offset)]
        start = max(self.start_offset, self.segments[0].base_offset)
        end = self.segments[-1].next_offset
        if not self.clean and end < self.recovery_point:
            self.report.notes.append(f"ends at {end}: cut below the recovery point {self.recovery_point}, or damaged")
        self.epochs.truncate_from_end(end)
        self.epochs.truncate_from_start(start)
        if self.epochs.epoch_at(start) == NO_EPOCH and self._first_epoch() != NO_EPOCH:
            self.epochs.begin_at(start)
        producers, snapshots = self._load_producers(end)
        return LoadedLog(
            segments=self.segments,
            epochs=self.epochs,
            producers=producers,
            snapshots=snapshots,
            start_offset=start,
            trusted_end=min(end, end if self.clean else self.trusted_end),
            restarted_at=self.restarted_at,
            has_gaps=self.has_gaps,
            holes_end=self.holes_end,
            marks_gaps=self.marks_gaps,
            report=self.report,
        )

    # ------------------------------------------------------------------------------------- files

    @property
    def names(self) -> dict[str, None]:
        """Names of the files in the log's folder, in order."""
        if self._names is None:
            self._names = dict.fromkeys(self.disk.names(self.folder))
            self._bases = offsets_by_suffix(self._names)
        return self._names

    def _bases_of(self, suffix: str) -> list[Offset]:
        """Base offsets of all files with ``suffix``, ascending."""
        return self._bases.get(suffix, []) if self.names else []

    def _remove(self, path: str) -> None:
        self._names = None
        self.disk.remove(path)

    def _replace(self, source: str, target: str) -> None:
        self._names = None
        self.disk.replace(source, target)

    def _finish_swaps(self) -> None:
        """What compaction had made durable takes its name; it was synced before it was called so."""
        for base in self._bases_of(LOG + SWAP):
            # Rebuilt: those of the old file must not stand beside the new one.
            for suffix in (INDEX, TIME_INDEX, TRANSACTION_INDEX):
                self._remove(f"{self.folder}/{offset_name(base, suffix)}")
            path = f"{self.folder}/{offset_name(base, LOG)}"
            self._replace(path + SWAP, path)
            self.report.notes.append(f"{path}: a compacted segment takes its place")

    def _remove_leftovers(self) -> None:
        for base in list(self._bases_of(TRANSACTION_INDEX + CLEANED)):
            # First: once the .cleaned file is gone, only a missing index shows that the segment must be walked.
            self._remove(f"{self.folder}/{offset_name(base, INDEX)}")
            self.unfinished.add(base)
        logs = set(self._bases_of(LOG))
        orphans = [
            offset_name(base, suffix)
            for suffix in (INDEX, TIME_INDEX, TRANSACTION_INDEX)
            for base in self._bases_of(suffix)
            if base not in logs
        ]
        leftovers = [name for name in self.names if name.endswith((DELETED, CLEANED, SWAP, TEMPORARY))]
        if self.clean and any(name.endswith(INDEX) for name in orphans):
            self._remember_damage()
            self.report.lacks_records = True
            self.report.notes.append(f"segments are missing: {', '.join(orphans)}")
        for name in sorted(orphans + leftovers):
            self._remove(f"{self.folder}/{name}")

    def _drop(self, first: int, reason: str, *, keep: bool = False) -> None:
        """Remove segments from number ``first`` on, or rename their log files (``keep``)."""
        for segment in self.segments[first:]:
            size = segment.file.size()
            self._before_cut(segment.base_offset)
            self._close(segment)
            kept_as = self._stray_name(segment) if keep and size else ""
            self._dropped(segment, 0, size, reason, end=segment.base_offset, kept_as=kept_as)
            if kept_as:
                self._replace(segment.path(LOG), kept_as)
            for path in segment.paths:
                self._remove(path)
        del self.segments[first:]

    def _before_cut(self, end: Offset) -> None:
        """The log is about to be cut at ``end``: if that was synced, its folder says so from now on.

        Otherwise: 1. the log is cut, and the process ends; 2. the next one finds a log that ends well; 3. it leads with
        what is left as the last known leader, and the others truncate what only they still have.
        """
        if self.clean or end < self.recovery_point:
            self._remember_damage()

    def _remember_damage(self) -> None:
        path = f"{self.folder}/{DAMAGED}"
        if not self.disk.exists(path):
            self._names = None
            self.disk.replace_file(path, b"")
        if self.copies is not None and path not in self.copies:
            for each in self.segments:
                self._close(each)
            raise UnsyncedCopy(path, path)

    def _stray_name(self, segment: Segment) -> str:
        name = segment.path(LOG) + STRAY
        while self.disk.exists(name):
            name += STRAY
        return name

    def _copy_aside(self, segment: Segment, position: int, size: int) -> str:
        """Copy the file's bytes from ``position`` on. Return the name of the copy."""
        if self.copies is not None and segment.path(LOG) in self.copies:
            return self.copies[segment.path(LOG)]
        name = self._stray_name(segment)
        copy = self.disk.open(name)
        try:
            while position < size:
                piece = segment.file.read(position, COPY_SIZE)
                copy.append((piece,))
                position += len(piece)
        except DiskFull as error:
            self._remove(name)
            raise DiskFailed(f"{name} cannot be written: {error}; free disk space") from error
        finally:
            copy.close()
        if self.copies is not None:
            for each in self.segments:
                self._close(each)
            raise UnsyncedCopy(segment.path(LOG), name)
        return name

    def _dropped(
        self, segment: Segment, position: int, size: int, reason: str, *, end: Offset, kept_as: str = ""
    ) -> None:
        self.report.dropped.append(
            Dropped(
                path=segment.path(LOG),
                position=position,
                size=size,
                reason=reason,
                below_recovery_point=end < self.recovery_point,
                kept_as=kept_as,
            )
        )

    @staticmethod
    def _close(segment: Segment) -> None:
        file = segment.take_file()
        if file is not None:
            file.close()

    # ------------------------------------------------------------------------------------- segments

    def _check_beginning(self) -> None:
        """Find where the log begins, and check that the segments before the first one are absent for a reason."""
        restarts = self._bases_of(RESTARTED)
        if not self.clean and self.segments:
            if self.segments[0].base_offset in restarts and self.segments[0].base_offset < self.start_offset:
                # It was restarted below the start that the checkpoint knows.
                self.start_offset = self.restarted_at = self.segments[0].base_offset
            self._finish_deletion(restarts)
            self._check_missing(restarts)
        for offset in restarts:
            if offset != self.restarted_at:
                self._remove(f"{self.folder}/{offset_name(offset, RESTARTED)}")

    def _finish_deletion(self, restarts: list[Offset]) -> None:
        """Segments below the log start may come back, one by one, when the power goes while they are deleted.

        They go for good, except where the snapshot of the producers as of the next segment did not reach the disk: what
        idempotent producers wrote last is then read from them again. DeleteRecords waits for no snapshot. A log that
        was begun again knows no producers.
        """
        below = self._first_wanted()
        while below:
            base = self.segments[below].base_offset
            if base in restarts or self._has_snapshot(base):
                break
            below -= 1
        if not below:
            return
        base, source = self.segments[below].base_offset, self.segments[below - 1].path(LOG)
        if self.copies is not None and source not in self.copies and base not in restarts:
            # After kill -9 it may be in the page cache only.
            raise UnsyncedCopy(source, f"{self.folder}/{offset_name(base, SNAPSHOT)}")
        self.report.notes.append(f"{below} segments below the log start {self.start_offset} are deleted")
        self._remove_first(below)

    def _first_wanted(self) -> int:
        """Number of the segment that holds the log start."""
        return sum(segment.base_offset <= self.start_offset for segment in self.segments[1:])

    def _has_snapshot(self, offset: Offset) -> bool:
        name = offset_name(offset, SNAPSHOT)
        if name not in self.names:
            return False
        try:
            parse_snapshot(self.disk.read_file(f"{self.folder}/{name}"))
        except BadSnapshot:
            return False
        return True

    def _remove_unwanted(self, number: int) -> int:
        """What comes before segment ``number`` is damaged. Remove the segments below the log start; return their count.

        0: the damage is above the start.
        """
        wanted = self._first_wanted()
        if wanted < number:
            return 0
        self._remove_first(wanted)
        self.trusted_end = max(self.trusted_end, self.segments[0].base_offset)
        return wanted

    def _remove_first(self, count: int) -> None:
        for segment in self.segments[:count]:
            self._close(segment)
            for path in segment.paths:
                self._remove(path)
        del self.segments[:count]
        self.last_batch = None

    def _check_missing(self, restarts: list[Offset]) -> None:
        """Beyond all that was synced or given up, the first segment shows that the names of earlier ones were lost."""
        first = self.segments[0].base_offset
        if first <= max(self.recovery_point, self.start_offset):
            return
        if first in restarts:
            self.restarted_at = first
        elif self._begin_of_epochs() >= first:
            self.report.notes.append(f"begins at {first}, as its leader epochs do")
        elif self.recovery_point_known:
            self._drop(0, f"nothing is left before offset {first}", keep=True)

    def _begin_of_epochs(self) -> Offset:
        """Where the leader-epoch checkpoint begins; NO_OFFSET without one. Retention moves it with the log's start."""
        path = f"{self.folder}/{LEADER_EPOCH_CHECKPOINT}"
        try:
            entries = parse_epochs(self.disk.read_file(path)) if self.disk.exists(path) else []
        except BadCheckpoint:
            return NO_OFFSET
        return entries[0][1] if entries else NO_OFFSET

    def _first_to_scan(self) -> int:
        """Number of the first segment that is not believed.

        The one that holds the record before the recovery point: its indexes may be unsynced when the point stands
        just at its end.
        """
        if self.clean:
            return len(self.segments)
        before = max(self.recovery_point - 1, 0)
        return max((n for n, segment in enumerate(self.segments) if segment.base_offset <= before), default=0)

    def _load_segments(self) -> None:
        first_to_scan = self._first_to_scan()
        if first_to_scan < len(self.segments):
            # Entries from here on come back from the batches; stale ones of a log that was cut do not.
            self.trusted_end = self.segments[first_to_scan].base_offset
            self.epochs.truncate_from_end(self.trusted_end)
        number = 0
        while number < len(self.segments):
            segment = self.segments[number]
            before = self.segments[number - 1].next_offset if number else segment.base_offset
            if self._is_replaced(segment, number, before):
                self._close(segment)
                for path in segment.paths:
                    self._remove(path)
                self.report.notes.append(f"{segment.path(LOG)}: was replaced by the compacted segment before it")
                del self.segments[number]
                if number <= first_to_scan:
                    # If it held the recovery point, the segment that has its place does.
                    first_to_scan -= 1
                    if number > first_to_scan:
                        number = first_to_scan
                        self.trusted_end = self.segments[number].base_offset
                        self.epochs.truncate_from_end(self.trusted_end)
                continue
            # Also where compaction leaves gaps: what is behind a hole may be a log that was begun again there.
            is_new_start = segment.base_offset != before and segment.base_offset <= self.start_offset
            if is_new_start and (removed := self._remove_unwanted(number)):
                number, first_to_scan = 0, max(first_to_scan - removed, 0)
                continue
            is_behind_hole = segment.base_offset > before
            reason, keep = "", is_behind_hole
            if segment.base_offset < before or (is_behind_hole and not self._is_left_out(before, number)):
                reason = f"begins at {segment.base_offset}, the log before it ends at {before}"
            elif number and self._has_come_back(segment):
                reason, keep = f"was cut off at {segment.base_offset}, and came back with the power", True
            if reason:
                self._drop(number, reason, keep=keep)
                if number <= first_to_scan and not self.clean:
                    self._distrust(number - 1)
                return
            believed = number < first_to_scan and self._believe(segment, number)
            if not believed and not self._rescan(segment, number):
                if removed := self._remove_unwanted(number + 1):
                    number, first_to_scan = 0, max(first_to_scan - removed, 0)
                    continue
                keep = bool(self.report.dropped[-1].kept_as)
                self._drop(number + 1, f"comes after damage at offset {segment.next_offset}", keep=keep)
                return
            if number + 1 < len(self.segments):
                self._close(segment)
            number += 1
            if number == first_to_scan and not self.clean:
                self._check_believed_epochs()

    def _has_come_back(self, segment: Segment) -> bool:
        """Return True if its first batch has a lower leader epoch than the batch before the segment.

        The log was cut, its removal was lost with the power, and what was written since, in a later epoch, ends just
        where it begins. A log of another cluster has epochs that its checkpoint does not know: it goes as a whole.
        """
        if self.clean or self.is_foreign:
            return False
        first, epoch = self._first_batch(segment), self.epochs.epoch_at(segment.base_offset - 1)
        if self.last_batch is not None:
            # The checkpoint of epochs may be older than the cut, too: it is verified only behind the last segment that
            # is believed.
            epoch = max(epoch, self.last_batch.leader_epoch)
        return first is not None and 0 <= first.leader_epoch < epoch

    def _distrust(self, number: int) -> None:
        """Walk a segment that was believed for the recovery point. What comes after it was no part of this log, so the
        point was not of its end either.
        """
        segment = self.segments[number]
        self.trusted_end = min(self.trusted_end, segment.base_offset)
        self.epochs.truncate_from_end(self.trusted_end)
        segment.synced_writes = 0
        self._rescan(segment, number)

    def _check_believed_epochs(self) -> None:
        """The last batch that is believed shows whether the checkpoint of epochs is of this log: not if it was
        written when the log was cut, and the power took the cut.
        """
        last = self.last_batch
        if last is None or not self.epochs_are_from_file or last.leader_epoch in (NO_EPOCH, self.epochs.latest):
            return
        self.report.notes.append(f"leader epochs: {self.epochs.latest} is the last one, {last} was believed")
        self.epochs.clear()
        self._find_epochs()
        self.epochs.truncate_from_end(self.trusted_end)

    def _is_left_out(self, before: Offset, number: int) -> bool:
        """Return True if compaction explains the hole from ``before`` to segment ``number``; rule 3."""
        base = self.segments[number].base_offset
        if self.marks_gaps:
            found = self.clean or base <= self.holes_end or self._begins_far(number, before)
        elif self.clean:
            found = self.gaps or any(map(self._shows_gaps, self.segments[number:]))
        else:
            # The marker is that of an earlier version, whose followers left holes where nothing else shows a gap.
            is_synced = self.has_marker and base <= self.recovery_point
            found = is_synced or any(map(self._shows_gaps, self.segments[:-1]))
        if found:
            self._note_gaps(before)
            if not self.marks_gaps:
                self.holes_end = base
        return found

    def _begins_far(self, number: int, before: Offset) -> bool:
        """Return True if its first batch does not fit into a segment that begins at ``before``; a follower then names a
        segment by the batch.
        """
        first = self._first_batch(self.segments[number])
        return first is not None and first.last_offset - before > RELATIVE_MAX

    def _note_gaps(self, offset: Offset) -> None:
        if not self.has_gaps:
            self.gaps = self.has_gaps = True
            self.report.notes.append(f"offsets are left out from {offset} on, as compaction leaves them out")

    def _shows_gaps(self, segment: Segment) -> bool:
        """Return True if compaction surely took records from this segment."""
        expected = segment.base_offset
        try:
            for _, batch in self._scan(segment, epoch=NO_EPOCH, gaps=True):
                if batch.base_offset > expected or batch.record_count <= batch.last_offset_delta:
                    return True
                expected = batch.next_offset
        except Damage:
            pass  # what stands before it has shown none
        finally:
            self._close(segment)
        return False

    def _scan(
        self, segment: Segment, *, epoch: Epoch, gaps: bool, next_base: Offset | None = None
    ) -> Iterator[tuple[int, RecordBatch]]:
        return scan(
            segment.file,
            size=segment.file.size(),
            first_offset=segment.base_offset,
            last_offset_max=min(segment.base_offset + RELATIVE_MAX, self.end_max - 1),
            epoch=epoch,
            gaps=gaps,
            next_base=next_base,
        )

    def _is_replaced(self, segment: Segment, number: int, before: Offset) -> bool:
        """Return True if compaction was about to remove it: it is wholly below the end of the sound segment before it.

        That is no damaged base offset: a later segment goes on at that end, or behind it. A clean stop leaves none.
        """
        if self.clean or not self.gaps or segment.base_offset >= before:
            return False  # a clean stop has finished it
        segment.size = segment.file.size()
        return (
            self._find_end(segment)
            and segment.next_offset <= before
            and any(later.base_offset >= before for later in self.segments[number + 1 :])
        )

    def _believe(self, segment: Segment, number: int) -> bool:
        """Take a synced segment as it stands; False when its indexes cannot be, so that it must be walked."""
        base, is_last = segment.base_offset, number == len(self.segments) - 1
        if base not in self.indexed or base in self.unfinished:
            self.report.notes.append(f"{segment.path(LOG)}: index missing")
            return False
        if segment.transactions.has_file and not self._believe_transactions(segment):
            return False
        end = None if is_last or self.gaps else self.segments[number + 1].base_offset
        if self.clean and end is not None:
            segment.believe(size=self.disk.size_of(segment.path(LOG)), next_offset=end, on_rebuilt=self.on_rebuilt)
            return True
        segment.size = segment.file.size()
        index = OffsetIndex(base, self.disk.read_file(segment.path(INDEX)))
        time_index = TimeIndex(base, self.disk.read_file(segment.path(TIME_INDEX)))
        if not (index.is_sane(size=segment.size, end_offset=end) and time_index.is_sane(end_offset=end)):
            self.report.notes.append(f"{segment.path(LOG)}: index damaged")
            self.report.lacks_records |= index.last_position >= segment.size
            return False
        segment.take_indexes(index, time_index)
        if not self._find_end(segment):
            self.report.notes.append(f"{segment.path(LOG)}: its end is not where its index leads")
            return False
        if is_last:
            return self._believe_end(segment)
        following = self.segments[number + 1].base_offset
        if segment.next_offset > following and (self.clean or not self.gaps):
            if not self.clean and self._is_sound(segment):
                # What follows was cut off, and came back with the power.
                return False
            # What follows was synced there. Its last batch is damaged, and who reads there gets an error; else all that
            # follows would be dropped.
            self.report.notes.append(f"{segment.path(LOG)}: ends at {segment.next_offset}, {following} follows")
            segment.next_offset = following
        segment.synced_writes = segment.writes
        return True

    def _is_sound(self, segment: Segment) -> bool:
        """Return True if all batches have right checksums, and follow one another."""
        try:
            for _ in self._scan(segment, epoch=NO_EPOCH, gaps=False):
                pass
        except Damage:
            return False
        return True

    def _believe_end(self, segment: Segment) -> bool:
        """Return False if the last batch of the log is damaged: after a clean stop, whose recovery point and snapshot
        of producers both say that the log ends before it does.
        """
        snapshots = self._bases_of(SNAPSHOT)
        point, end = self.recovery_point, segment.next_offset
        if self.clean and self.recovery_point_known and end > point and point in snapshots and end not in snapshots:
            self.report.notes.append(f"{segment.path(LOG)}: ends at {end}, the log ended at {point}")
            self.end_max = point
            return False
        segment.synced_writes = segment.writes
        return True

    def _believe_transactions(self, segment: Segment) -> bool:
        path = segment.path(TRANSACTION_INDEX)
        try:
            segment.transactions.load(self.disk.read_file(path), base_offset=segment.base_offset)
        except BadTransactionIndex as error:
            self.report.notes.append(f"{path}: {error}")
            return False
        return True

    def _find_end(self, segment: Segment) -> bool:
        position = segment.index.boundary_before(segment.size)
        try:
            for at, header in headers(segment.file, position, segment.size):
                segment.next_offset = header.next_offset
                position = at + header.size
                self.last_batch = header
        except CorruptMessage:
            return False
        return position == segment.size

    def _rescan(self, segment: Segment, number: int) -> bool:
        """Walk all batches, rebuild the indexes, cut at damage; True when there was none. Raises MisfitLog."""
        segment.take_indexes(OffsetIndex(segment.base_offset), TimeIndex(segment.base_offset))
        segment.transactions.entries.clear()
        size = segment.file.size()
        segment.size = 0
        segment.next_offset = segment.base_offset
        following = self.segments[number + 1 :]
        sound = self._scan(
            segment,
            epoch=self.epochs.epoch_at(segment.base_offset - 1),
            gaps=self.gaps,
            next_base=following[0].base_offset if following else None,
        )
        try:
            for _, batch in sound:
                self.report.checked_count += 1
                if batch.base_offset > segment.next_offset or batch.record_count <= batch.last_offset_delta:
                    self._note_gaps(segment.next_offset)
                if batch.is_control and batch.has_producer and segment not in self.unindexed[-1:]:
                    self.unindexed.append(segment)
                segment.note(
                    size=batch.size,
                    last_offset=batch.last_offset,
                    max_timestamp=batch.newest_timestamp,
                    offset_of_max=batch.last_offset,
                    index_interval_bytes=self.config.index_interval_bytes,
                )
                if batch.leader_epoch > self.epochs.latest:
                    self.epochs.assign(batch.leader_epoch, batch.base_offset)
        except FallingEpoch as fall:
            for each in self.segments:
                self._close(each)
            raise MisfitLog(f"{segment.path(LOG)}: {fall.reason}: another cluster wrote it") from fall
        except Damage as damage:
            at, lost = damage.position, size - damage.position
            self._before_cut(segment.next_offset)
            kept_as = self._copy_aside(segment, at, size) if isinstance(damage, Misplaced) else ""
            segment.file.truncate(at)
            self._dropped(segment, at, lost, damage.reason, end=segment.next_offset, kept_as=kept_as)
            return False
        return True

    def _check_start(self) -> None:
        """After a clean stop the checkpointed start lies within the log, and not behind the first leader epoch's.

        One that does is damaged. A log that was dropped for it would begin there, empty, and as a leader it would have
        the other replicas drop what they hold.
        """
        if not self.clean or not self.segments:
            return
        bounds = [self.segments[-1].next_offset]
        if self.epochs_are_from_file:
            bounds += [start for _, start in self.epochs.entries[:1]]
        if self.start_offset > min(bounds):
            found = max(min(bounds), self.segments[0].base_offset)
            self.report.notes.append(f"the checkpointed start {self.start_offset} is wrong: the log begins at {found}")
            self.start_offset = found

    # ------------------------------------------------------------------------------------- epochs and producers

    def _check_epochs(self) -> None:
        """The checkpoint has no checksum. After a clean stop the last batch shows whether it is of this log's end: by a
        wrong last epoch a follower would cut off what is committed, or never go on.
        """
        last = self.last_batch
        if last is None or not self.clean or not self.epochs_are_from_file or last.leader_epoch == NO_EPOCH:
            return
        known = self.epochs.epoch_at(last.base_offset)
        if known != last.leader_epoch:
            path = f"{self.folder}/{LEADER_EPOCH_CHECKPOINT}"
            self.report.notes.append(f"{path}: epoch {known} at {last.base_offset}, the batch has {last.leader_epoch}")
            self.epochs.clear()
            self._find_epochs()

    def _load_epochs(self) -> None:
        path = f"{self.folder}/{LEADER_EPOCH_CHECKPOINT}"
        if LEADER_EPOCH_CHECKPOINT in self.names:
            try:
                self.epochs = EpochCache(parse_epochs(self.disk.read_file(path)))
            except BadCheckpoint as error:
                self.report.notes.append(f"{path}: {error}")
            else:
                first = max(self.start_offset, self.segments[0].base_offset) if self.segments else self.start_offset
                if self.epochs.epoch_at(first) != NO_EPOCH or not self.segments:
                    self.epochs_are_from_file = True
                    return
                self.is_foreign = self.epochs.clear()
                self.report.notes.append(f"{path}: nothing covers offset {first}")
        self._find_epochs()

    def _find_epochs(self) -> None:
        """From the headers of all batches."""
        epoch = NO_EPOCH
        for segment in self.segments:
            try:
                for _, header in headers(segment.file, 0, segment.file.size()):
                    if header.leader_epoch > epoch:
                        epoch = header.leader_epoch
                        self.epochs.assign(epoch, header.base_offset)
            except CorruptMessage:
                return  # what stands behind the damage is dropped by the walk

    def _first_epoch(self) -> Epoch:
        """Of the first batch; NO_EPOCH: there is none, it has none, or it is damaged."""
        first = self._first_batch(self.segments[0])
        return NO_EPOCH if first is None else first.leader_epoch

    @staticmethod
    def _first_batch(segment: Segment) -> RecordBatch | None:
        """Its header; None: there is none, or it is damaged."""
        try:
            return next((header for _, header in headers(segment.file, 0, segment.file.size())), None)
        except CorruptMessage:
            return None

    def _load_producers(self, end: Offset) -> tuple[ProducerState, list[Offset]]:
        """From the newest snapshot that can be believed and the batches after it.

        After an unclean stop only those at the base of a segment count: one of a log that was since cut may have come
        back with the power.
        """
        state = ProducerState()
        bases = {segment.base_offset for segment in self.segments}
        kept: list[Offset] = []
        for offset in self._bases_of(SNAPSHOT):
            if offset > end or not (self.clean or (offset in bases and offset <= self.trusted_end)):
                self._remove(f"{self.folder}/{offset_name(offset, SNAPSHOT)}")
            else:
                kept.append(offset)
        replay_producers(
            self.disk,
            self.folder,
            self.segments,
            state,
            kept,
            end=end,
            clean=self.clean,
            high_watermark=end if self.high_watermark is None else max(self.high_watermark, self.start_offset),
            unindexed=[segment for segment in self.unindexed if segment in self.segments],
            on_damage=self.report.notes.append,
        )
        return state, kept


def load(
    disk: Disk,
    folder: str,
    config: TopicConfig,
    *,
    clean: bool,
    recovery_point: Offset | None,
    start_offset: Offset,
    high_watermark: Offset | None = None,
    on_rebuilt: Callable[[str], None] = lambda _: None,
    copies: Mapping[str, str] | None = None,
) -> LoadedLog:
    """Open the log in ``folder``. ``on_rebuilt`` is called when indexes are rebuilt later, at first use.

    ``copies``: the files that are durable and have what is needed of a segment that is cut or removed, by the path of
    the segment (the mark of a damaged log by its own). With it, UnsyncedCopy is raised for one that is missing: the
    caller makes it durable and loads again. Without, nothing is waited for.

    ``recovery_point`` and ``high_watermark`` are the checkpointed ones. Recovery point 0: none was ever written for
    this log; None: the checkpoint itself is lost. High watermark None: everything that is there is committed. Raises
    MisfitLog, with nothing changed that was sound, and DiskFailed.
    """
    return _Loader(
        disk,
        folder,
        config,
        clean=clean,
        recovery_point=recovery_point,
        start_offset=start_offset,
        high_watermark=high_watermark,
        on_rebuilt=on_rebuilt,
        copies=copies,
    ).load()
