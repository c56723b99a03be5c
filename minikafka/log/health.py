"""Whether one log still takes appends and can be read, and why not (KAFKA-10778).

Rules for this file: the first failure stays the reason; nothing makes a log well again but opening it again.
"""

from __future__ import annotations

from minikafka.errors import NOT_WRITTEN, UNKNOWN, DiskFull, KafkaStorageError
from minikafka.ports import Events
from minikafka.types import TopicPartition


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

    def retire(self, reason: str) -> None:
        """Out of service."""
        self.failure = self.failure or reason
        self.is_closed = True
