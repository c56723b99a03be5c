"""Reading one log from its files: by offset, and by time.

Rules for this file: what may be read is decided by its caller. A failing disk is KafkaStorageError; damaged bytes are
CorruptMessage, to who reads there and nobody else: a rotten batch must not take the log offline for all that is still
whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from minikafka.errors import CorruptMessage, DiskFailed, KafkaStorageError
from minikafka.log import timestamps
from minikafka.log.durability import LogHealth
from minikafka.log.segment_store import SegmentStore
from minikafka.log.tail import LogSlice
from minikafka.ports import Buffer, Events
from minikafka.types import Offset, TopicPartition
from minikafka.wire.batch import RecordBatch

REGION_SIZE_MIN = 32 * 1024
"""Reading less than this costs less than the calls that send it from the file."""


class DiskReader:
    """Reads one log's segments."""

    def __init__(self, partition: TopicPartition, store: SegmentStore, health: LogHealth, events: Events) -> None:
        self._partition = str(partition)
        self._store = store
        self._health = health
        self._events = events

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Around whatever reads segments: raises CorruptMessage and KafkaStorageError that name the log."""
        self._health.check_readable()
        try:
            yield
        except DiskFailed as error:
            raise KafkaStorageError(f"{self._partition}: read failed: {error}") from error
        except CorruptMessage as error:
            self._events("damage_read", partition=self._partition, why=error.message)
            raise CorruptMessage(f"{self._partition}: the log is damaged here: {error.message}") from error

    def read(
        self, offset: Offset, *, end: Offset, max_bytes: int, min_one_batch: bool, as_region: bool = False
    ) -> LogSlice:
        """Whole batches from the one that holds ``offset``, none that reaches ``end``; see ``PartitionLog.read``."""
        with self.reading():
            for segment in self._store.segments[self._store.number_of(offset) :]:
                if offset >= segment.next_offset:
                    continue
                extent = segment.extent(offset, end_offset=end, max_bytes=max_bytes, min_one_batch=min_one_batch)
                if extent is None:
                    break
                region = None
                if as_region and extent.size >= REGION_SIZE_MIN:
                    region = segment.region(extent.position, extent.size)
                data = segment.read(extent.position, extent.size) if region is None else cast("Buffer", region)
                return LogSlice((data,), extent.size, extent.first_offset, extent.next_offset)
        return LogSlice((), 0, offset, offset)

    def batch_at_or_after(self, timestamp: int, *, start: Offset, end: Offset) -> RecordBatch | None:
        """See ``PartitionLog.batch_at_or_after``."""
        with self.reading():
            return timestamps.batch_at_or_after(self._store.segments, timestamp, start_offset=start, end_offset=end)

    def newest_timestamp(self, *, start: Offset, end: Offset) -> int:
        """The largest timestamp (ms) of the records in ``[start, end)``; -1: there are none."""
        with self.reading():
            return timestamps.newest(self._store.segments, start_offset=start, end_offset=end)
