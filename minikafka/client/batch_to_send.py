"""A batch that the application fills itself and gives to ``Producer.send_batch``; aiokafka's BatchBuilder."""

from __future__ import annotations

from typing import NamedTuple

from minikafka.client.sendable import UNFIT, unfit
from minikafka.wire.records import BatchBuilder, Headers, Row

# A tuple, or every row of a `send_many` would be one more object for the garbage collector to walk.
NO_HEADERS: Headers = ()


class AppendedRecord(NamedTuple):
    """What ``BatchToSend.append`` tells."""

    offset: int
    """Place in the batch."""
    size: int
    timestamp: int


class BatchToSend:
    """Records for one partition; full at ``size_max`` bytes, uncompressed."""

    def __init__(
        self,
        *,
        compression: str,
        size_max: int,
        wall_ms: int,
        rows: list[Row] | None = None,
        transactional: bool = False,
    ) -> None:
        self.rows = rows
        """What it holds, for a ledger; None: there is none."""
        self.builder = BatchBuilder(compression=compression, size_limit=size_max, transactional=transactional)
        self.first_timestamp = wall_ms
        self._wall_ms = wall_ms
        self._closed = False

    def append(
        self, *, timestamp: int | None, key: bytes | None, value: bytes | None, headers: Headers = NO_HEADERS
    ) -> AppendedRecord | None:
        """Add a record; None when the batch is full or closed. InvalidRequest for one that is not bytes."""
        if self._closed:
            return None
        before = self.builder.size
        at = self.builder.record_count
        when = self._wall_ms if timestamp is None else timestamp
        try:
            fits = self.builder.append(when, key, value, headers)
        except UNFIT as error:
            if (wrong := unfit(key, value, headers, when)) is not None:
                raise wrong from error
            raise
        if not fits:
            return None
        if at == 0:
            self.first_timestamp = when
        if self.rows is not None:
            self.rows.append((when, key, value, headers))
        return AppendedRecord(at, self.builder.size - before, when)

    def close(self) -> None:
        """No more records."""
        self._closed = True

    def record_count(self) -> int:
        return self.builder.record_count

    def size(self) -> int:
        """Bytes so far, uncompressed."""
        return self.builder.size
