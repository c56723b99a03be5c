"""What of one log a completed sync has covered (D6); whether the log still takes appends; the file with its epochs.

Rules for this file:

1. A sync promises what stood in the log when it was called. What is appended meanwhile is not covered; what is cut
   meanwhile is taken off the promise, so that a region written again is never reported as synced without a new sync.
2. A file is never closed while a sync may still hold it.
3. The order inside a sync: the log start offset's checkpoint, segment files, small files, folders. Only after all of
   them did the end move. (A segment goes only after the checkpoint says that the log starts behind it, else a power
   cut between two removals leaves a hole.)
4. The first failure of a log stays the reason; only opening it again makes it well (KAFKA-10778). A file of epochs that
   cannot be written stops the log.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from minikafka.errors import NOT_WRITTEN, UNKNOWN, DiskFailed, DiskFull, KafkaStorageError
from minikafka.log.checkpoint import format_epochs
from minikafka.log.epochs import EpochCache
from minikafka.log.names import LEADER_EPOCH_CHECKPOINT
from minikafka.log.segment import Segment
from minikafka.ports import Disk, Events, File
from minikafka.types import Offset, TopicPartition


class _Claim:
    """The end that a sync in flight will have covered."""

    __slots__ = ("end",)

    def __init__(self, end: Offset) -> None:
        self.end = end


class Durability:
    """Books of one log's unsynced files, names and promises."""

    def __init__(
        self, disk: Disk, folder: str, *, synced_end: Offset, save_start: Callable[[], Awaitable[None]] | None
    ) -> None:
        self._disk = disk
        self._folder = folder
        self._save_start = save_start
        self._claims: list[_Claim] = []
        self._retired: list[File] = []
        self._small_files: dict[str, int] = {}
        self._changes = 0
        self._folder_synced_changes = 0
        self._root_unsynced = False
        self._start_changes = 0
        self._start_saved_changes = 0
        self._abandoned = False
        self.synced_end = synced_end

    # ------------------------------------------------------------------------------------- what happened

    def created(self) -> None:
        """The folder itself is new."""
        self._changes += 1
        self._root_unsynced = True

    def replaced(self, path: str) -> None:
        """A small file was replaced."""
        self._changes += 1
        self._small_files[path] = self._changes

    def folder_changed(self) -> None:
        """Names were made or removed."""
        self._changes += 1

    def removed(self, path: str) -> None:
        """A file is gone; it must not be made again by being opened for a sync."""
        self._changes += 1
        self._small_files.pop(path, None)

    def retire(self, file: File | None) -> None:
        """Close the file now, or after the syncs that may hold it."""
        if file is None:
            return
        if self._claims:
            self._retired.append(file)
        else:
            file.close()

    def start_moved(self) -> None:
        """The log start offset must be saved before the next sync promises anything."""
        self._start_changes += 1

    def abandon(self, end: Offset) -> None:
        """The folder may be gone: syncs in flight touch no name any more, and a wait for ``end`` ends.

        (Its role ended before the log did, so that nothing is acknowledged by this.)
        """
        self._abandoned = True
        self.synced_end = end

    def is_synced(self, path: str) -> bool:
        """Return True if a small file's present content is durable."""
        return path not in self._small_files

    @property
    def all_small_files_synced(self) -> bool:
        """Return True if the present content of every small file is durable."""
        return not self._small_files

    @property
    def changes(self) -> int:
        """The number of the latest change of a name or small file."""
        return self._changes

    def is_folder_synced(self, change: int) -> bool:
        """Return True if the names in the folder are durable, up to this change."""
        return self._folder_synced_changes >= change

    @property
    def all_names_synced(self) -> bool:
        """Return True if every small file is durable, with its name."""
        return not self._small_files and self._folder_synced_changes == self._changes

    # ------------------------------------------------------------------------------------- promises

    def cut(self, end: Offset) -> None:
        """The log was cut: nothing beyond ``end`` is promised any more, not by syncs in flight either."""
        self.synced_end = min(self.synced_end, end)
        for claim in self._claims:
            claim.end = min(claim.end, end)

    def withdraw(self) -> None:
        """The log restarts: nothing is promised before the next sync."""
        self.cut(0)

    @property
    def start_is_saved(self) -> bool:
        """Return True if a durable checkpoint has the log's start offset."""
        return self._save_start is not None and self._start_saved_changes == self._start_changes

    async def save_start(self) -> None:
        """Make the current log start offset durable; syncs in flight each wait for it themselves."""
        changes = self._start_changes
        if self._start_saved_changes < changes and self._save_start is not None:
            await self._save_start()
            self._start_saved_changes = max(self._start_saved_changes, changes)

    async def sync(self, end: Offset, segments: Sequence[Segment]) -> None:
        """Make everything durable that stands in the log now, up to ``end``. DiskFailed."""
        claim = _Claim(end)
        written = [(segment, segment.file, segment.writes) for segment in segments if segment.is_dirty]
        self._claims.append(claim)
        try:
            await self.save_start()
            for segment, file, writes in written:
                await file.sync()
                segment.synced_writes = max(segment.synced_writes, writes)
            await self.sync_small_files()
        except (DiskFailed, DiskFull):
            # The folder was renamed while its sync waited for the disk's thread, which did not find it.
            if not self._abandoned:
                raise
        finally:
            self._claims.remove(claim)
            if not self._claims:
                for file in self._retired:
                    file.close()
                self._retired.clear()
        if not self._abandoned:
            self.synced_end = max(self.synced_end, claim.end)

    async def sync_small_files(self) -> None:
        """Make the small files durable, with their names; nothing is promised of segments. DiskFailed, DiskFull."""
        small_files, changes = list(self._small_files.items()), self._changes
        for path, change in small_files:
            await self._sync_small_file(path, change)
        await self._sync_folders(changes)

    async def _sync_small_file(self, path: str, change: int) -> None:
        if self._abandoned or self._small_files.get(path) != change or not self._disk.exists(path):
            return
        with closing(self._disk.open(path)) as file:
            await file.sync()
        if self._small_files.get(path) == change:
            del self._small_files[path]

    async def _sync_folders(self, changes: int) -> None:
        if self._abandoned:
            return
        if self._folder_synced_changes < changes:
            await self._disk.sync_folder(self._folder)
            self._folder_synced_changes = max(self._folder_synced_changes, changes)
        if self._root_unsynced:
            await self._disk.sync_folder("")
            self._root_unsynced = False


class LogHealth:
    """The state of one log's service."""

    def __init__(self, partition: TopicPartition, events: Events) -> None:
        self.failure: str | None = None
        """Why it takes no more appends; None while it does."""
        self.is_closed = False
        """It cannot be read any more either."""
        self._partition = str(partition)
        self._events = events

    def check_writable(self) -> None:
        """KafkaStorageError once the log has failed or is out of service."""
        if self.failure is not None:
            raise KafkaStorageError(f"{self._partition}: {self.failure}")

    def check_readable(self) -> None:
        """KafkaStorageError once it is out of service: opening a file by its old name might create the folder again."""
        if self.is_closed:
            raise KafkaStorageError(f"{self._partition}: {self.failure}")

    def failed(self, doing: str, error: Exception) -> KafkaStorageError:
        """The disk refused what the log was doing: it takes no more appends. The error is the caller's to raise."""
        if self.failure is None:
            self.failure = f"{doing} failed: {error}"
            self._events("log_failed", partition=self._partition, doing=doing, error=str(error))
        # A roll comes before the write, a full disk leaves the file as it was; all else may have reached the file.
        not_written = doing == "roll" or (doing == "append" and isinstance(error, DiskFull))
        return KafkaStorageError(f"{self._partition}: {self.failure}", outcome=NOT_WRITTEN if not_written else UNKNOWN)

    @contextmanager
    def during(self, doing: str) -> Iterator[None]:
        """Raise KafkaStorageError, and let the log take no more appends, if the disk refuses what is done."""
        try:
            yield
        except (DiskFull, DiskFailed) as error:
            raise self.failed(doing, error) from error

    def retire(self, reason: str) -> None:
        """Out of service."""
        self.failure = self.failure or reason
        self.is_closed = True


class EpochCheckpoint:
    """``leader-epoch-checkpoint`` of one log."""

    def __init__(self, disk: Disk, folder: str, epochs: EpochCache, durability: Durability, health: LogHealth) -> None:
        self._disk = disk
        self._path = f"{folder}/{LEADER_EPOCH_CHECKPOINT}"
        self._epochs = epochs
        self._durability = durability
        self._health = health
        self.is_late = False
        """The file lacks the latest epoch."""

    @property
    def is_right(self) -> bool:
        """Return True if the file has what is known.

        A file that is right is not rewritten: torn by the next power cut it could not be distinguished from the
        batches, of which compaction may have taken the first of an epoch.
        """
        return self._disk.exists(self._path) and self._disk.read_file(self._path) == format_epochs(self._epochs.entries)

    def save(self) -> None:
        """Write what is known; KafkaStorageError when the disk fails."""
        with self._health.during("epoch checkpoint"):
            self._disk.replace_file(self._path, format_epochs(self._epochs.entries))
        self.is_late = False
        self._durability.replaced(self._path)

    def save_with_records(self) -> None:
        """The latest epoch has no record yet, and a log that is opened drops such an epoch: its file can wait. A broker
        that becomes the leader of thousands of partitions would write as many files, one after the other.
        """
        self.is_late = True

    def must_be_synced(self) -> None:
        """It is right, but may be in the page cache only, since a process was killed; the next sync covers it."""
        self._durability.replaced(self._path)
