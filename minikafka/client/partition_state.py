"""Where a consumer stands in one partition, and what it has fetched ahead there.

Rule for this file: it is what ``positions.py`` decides about; it decides nothing itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from minikafka.client.structs import ConsumerRecord
from minikafka.errors import ProtocolError
from minikafka.types import NO_EPOCH, NO_OFFSET, Epoch, Offset, TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.records import RecordView


@dataclass(slots=True, eq=False)
class PartitionState:
    """One assigned partition."""

    partition: TopicPartition
    version: int
    """Rises at each seek and reset; an answer asked for under another version is stale."""
    position: Offset | None = None
    """Offset of the next record to hand out; None until a reset finds one."""
    reset: str | None = None
    """``earliest`` or ``latest`` while the position has to be looked up."""
    fetch_offset: Offset = NO_OFFSET
    """Where the next fetch begins: behind everything that is buffered."""
    fetch_epoch: Epoch = NO_EPOCH
    """Leader epoch of the last fetched batch, -1 if unknown: what a new leader has to confirm."""
    validated_epoch: Epoch = NO_EPOCH
    """The leader epoch under which the fetch offset is known to be right."""
    batches: deque[RecordBatch] = field(default_factory=deque)
    """Fetched and not opened."""
    buffered_size: int = 0
    opened: RecordBatch | None = None
    """The batch that is being handed out."""
    records: list[ConsumerRecord] = field(default_factory=list)
    """The next records of it; those before ``cursor`` have been handed out."""
    cursor: int = 0
    unmade: Iterator[RecordView] = field(default_factory=lambda: iter(()))
    """Those behind ``records``, ``unmade_count`` of them."""
    unmade_count: int = 0
    opened_epoch: Epoch = NO_EPOCH
    """Leader epoch of the batch that was opened last: of the record before the position."""
    processed: tuple[Offset, Epoch] | None = None
    """Position and epoch when the application last asked for records: what it is done with."""
    paused: bool = False
    busy: bool = False
    """A fetch, reset or validation is under way."""
    retry_at: float = 0.0
    error: ProtocolError | None = None
    """To be raised once everything before it has been handed out."""
    out_of_range: bool = False
    high_watermark: Offset | None = None
    last_stable_offset: Offset | None = None
    log_start_offset: Offset | None = None

    @property
    def has_buffered(self) -> bool:
        """Is there something fetched that was not handed out?"""
        return self.opened is not None or bool(self.batches)

    def drop_buffered(self) -> None:
        """Forget what was fetched ahead, and what stood behind it."""
        self.batches.clear()
        self.close()
        self.buffered_size = 0
        self.error = None
        self.out_of_range = False

    def close(self) -> None:
        """Forget the opened batch."""
        self.opened = None
        self.records = []
        self.cursor = self.unmade_count = 0
        self.unmade = iter(())

    def __repr__(self) -> str:
        flags = "".join(
            f" {name}" for name, on in (("paused", self.paused), ("busy", self.busy), ("error", self.error)) if on
        )
        return f"<position {self.partition} at={self.position} fetch={self.fetch_offset} e{self.fetch_epoch}{flags}>"
