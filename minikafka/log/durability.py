"""What of one log a completed sync has covered (D6).

Rules for this file:

1. A sync promises what stood in the log when it was called. What is appended meanwhile is not covered; what is cut
   meanwhile is taken off the promise, so that a region written again is never reported as synced without a new sync.
2. A file is never closed while a sync may still hold it.
3. The order inside a sync: the log start offset's checkpoint, segment files, small files, folders. Only after all of
   them did the end move. (A segment goes only after the checkpoint says that the log starts behind it, else a power
   cut between two removals leaves a hole.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from minikafka.log.segment import Segment
from minikafka.ports import Disk, File
from minikafka.types import Offset


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
        """Is a small file's present content durable?"""
        return path not in self._small_files

    @property
    def all_small_files_synced(self) -> bool:
        """Is the present content of every small file durable?"""
        return not self._small_files

    @property
    def all_names_synced(self) -> bool:
        """Is every small file durable, with its name?"""
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
        """Does a durable checkpoint say where the log starts?"""
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
        small_files = list(self._small_files.items())
        changes = self._changes
        self._claims.append(claim)
        try:
            await self.save_start()
            for segment, file, writes in written:
                await file.sync()
                segment.synced_writes = max(segment.synced_writes, writes)
            for path, change in small_files:
                await self._sync_small_file(path, change)
            await self._sync_folders(changes)
            if self._abandoned:
                return
        finally:
            self._claims.remove(claim)
            if not self._claims:
                for file in self._retired:
                    file.close()
                self._retired.clear()
        self.synced_end = max(self.synced_end, claim.end)

    async def _sync_small_file(self, path: str, change: int) -> None:
        if self._abandoned or self._small_files.get(path) != change or not self._disk.exists(path):
            return
        file = self._disk.open(path)
        try:
            await file.sync()
        finally:
            file.close()
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
