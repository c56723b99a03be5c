"""The file that keeps one log's leader epochs: replaced as a whole at once, durable after the next sync.

Rule for this file: a file that cannot be written stops the log.
"""

from __future__ import annotations

from minikafka.errors import DiskFailed, DiskFull
from minikafka.log.checkpoint import format_epochs
from minikafka.log.durability import Durability
from minikafka.log.epochs import EpochCache
from minikafka.log.health import LogHealth
from minikafka.log.names import LEADER_EPOCH_CHECKPOINT
from minikafka.ports import Disk


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
        """Does the file say what is known?

        A file that is right is not rewritten: torn by the next power cut it could not be distinguished from the
        batches, of which compaction may have taken the first of an epoch.
        """
        return self._disk.exists(self._path) and self._disk.read_file(self._path) == format_epochs(self._epochs.entries)

    def save(self) -> None:
        """Write what is known; KafkaStorageError when the disk fails."""
        try:
            self._disk.replace_file(self._path, format_epochs(self._epochs.entries))
        except (DiskFull, DiskFailed) as error:
            raise self._health.failed("epoch checkpoint", error) from error
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
