"""What may be sent: bytes or nothing as key and value, headers of (str, bytes or None), whole milliseconds.

The codec refuses everything else in the middle of a batch and in its own words. Rules for this file: it is asked only
when something was refused, or when nothing may be half done (``send_many``, a ledger); it says which argument is wrong
and what to give instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from minikafka.errors import NOT_WRITTEN, InvalidRequest
from minikafka.wire.records import BatchBuilder, Headers, PlainRows, Row, Rows

UNFIT: Final = (TypeError, ValueError, AttributeError, OverflowError)
"""What the codec, and those who count a record's bytes, raise for what cannot be sent."""

_PLAIN: Final = frozenset({bytes, bytearray, memoryview, type(None)})
_TIME_MAX: Final = 2**63


def unfit(
    key: Any, value: Any, headers: Any, timestamp_ms: Any, *, partition: Any = None, of: str = ""
) -> InvalidRequest | None:
    """Why this record cannot be sent, not written; None: it can. ``of`` begins the sentence."""
    if partition is not None and not isinstance(partition, int):
        return _refusal("partition", f"{of}partition: a number is needed, not {partition!r:.80}")
    for name, given in (("key", key), ("value", value)):
        if not _is_bytes(given):
            kind = type(given).__name__
            return _refusal(name, f"{of}{name}: bytes are needed, not {kind}: encode it, or give a {name}_serializer")
    for header in headers or ():
        if not _is_header(header):
            return _refusal("headers", f"{of}headers: pairs of (str, bytes or None) are needed, not {header!r:.80}")
    if timestamp_ms is not None and not (isinstance(timestamp_ms, int) and -_TIME_MAX <= timestamp_ms < _TIME_MAX):
        return _refusal(
            "timestamp_ms", f"{of}timestamp_ms: milliseconds since 1970 are needed, not {timestamp_ms!r:.80}"
        )
    return None


def check_rows(rows: Rows) -> None:
    """InvalidRequest, which names the record by its index, when one of them cannot be sent."""
    if isinstance(rows, PlainRows):
        suspects: Iterable[tuple[int, Any]] = enumerate(rows[:1])
    elif {type(row[1]) for row in rows} | {type(row[2]) for row in rows} <= _PLAIN and (
        {type(row[0]) for row in rows} == {int} and not any(row[3] for row in rows)
    ):
        # Of the times only the largest and the smallest can be wrong; to look at each would cost more than to send it.
        times = [row[0] for row in rows]
        suspects = ((index, rows[index]) for index in (times.index(min(times)), times.index(max(times))))
    else:
        suspects = enumerate(rows)
    for index, (timestamp, key, value, headers) in suspects:
        if (wrong := unfit(key, value, headers, timestamp, of=f"record {index}: ")) is not None:
            raise wrong


def _refusal(field: str, sentence: str) -> InvalidRequest:
    return InvalidRequest(sentence, outcome=NOT_WRITTEN, field=field)


def _is_bytes(given: Any) -> bool:
    if type(given) in _PLAIN:
        return True
    try:
        memoryview(given)
    except TypeError:
        return False
    return True


def _is_header(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and _is_bytes(given[1])


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
