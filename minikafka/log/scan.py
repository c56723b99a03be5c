"""Walking over one log file batch by batch, believing nothing: length, checksum, offsets, epochs.

Rule for this file: it reads; what becomes of a file that is damaged is its caller's to decide.
"""

from __future__ import annotations

from collections.abc import Iterator

from minikafka.errors import ProtocolError
from minikafka.ports import File
from minikafka.types import Epoch, Offset
from minikafka.wire.batch import HEADER_SIZE, LENGTH_END, MAGIC, RecordBatch, verify

_CHUNK_SIZE = 1024 * 1024


class Damage(Exception):
    """The walk over a segment stops here."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


class Misplaced(Damage):
    """A batch with a right checksum whose offsets do not follow those of the batch before it."""


class FallingEpoch(Damage):
    """A sound batch has a lower leader epoch than the one before it: no leader of ours wrote both."""


def scan(
    file: File,
    *,
    size: int,
    first_offset: Offset,
    last_offset_max: Offset,
    epoch: Epoch,
    gaps: bool,
    next_base: Offset | None = None,
) -> Iterator[tuple[int, RecordBatch]]:
    """(position, batch) from the file's beginning, each checked against its checksum and the one before it.

    Raises :class:`Damage` at the first that does not fit, or is cut by ``size``.

    An offset is left out only in front of a batch that the one behind it, or the segment behind the file (it begins at
    ``next_base``), follows: the base offset has no checksum, and one that is damaged does not fit to what follows. Only
    sealed segments are compacted: without ``gaps`` there has to be something behind it.
    """
    position, expected = 0, first_offset
    chunk, chunk_start = b"", 0
    while position < size:
        at = position - chunk_start
        if len(chunk) - at < HEADER_SIZE:
            chunk, chunk_start, at = file.read(position, _CHUNK_SIZE), position, 0
        if len(chunk) < HEADER_SIZE:
            raise Damage(position, f"{len(chunk)} bytes are no header")
        length = int.from_bytes(chunk[at + 8 : at + LENGTH_END], signed=True) + LENGTH_END
        if length < HEADER_SIZE:
            raise Damage(position, f"batchLength: {length - LENGTH_END}")
        if position + length > size:
            raise Damage(position, f"a batch of {length} bytes is cut after {size - position}")
        if at + length > len(chunk):
            chunk, chunk_start, at = file.read(position, max(length, _CHUNK_SIZE)), position, 0
        try:
            batch = verify(memoryview(chunk)[at : at + length])
        except ProtocolError as error:
            raise Damage(position, error.message) from error
        fits = batch.base_offset == expected or (
            batch.base_offset > expected
            and _is_followed(file, position + length, size=size, batch=batch, next_base=next_base, gaps=gaps)
        )
        if not fits or batch.last_offset > last_offset_max:
            raise Misplaced(position, f"offsets {batch.base_offset}..{batch.last_offset} where {expected} was expected")
        if batch.leader_epoch < epoch:
            raise FallingEpoch(
                position, f"offset {batch.base_offset} has leader epoch {batch.leader_epoch} after {epoch}"
            )
        yield position, batch
        expected, epoch = batch.next_offset, batch.leader_epoch
        position += length


def _is_followed(
    file: File, position: int, *, size: int, batch: RecordBatch, next_base: Offset | None, gaps: bool
) -> bool:
    """Return True if what stands behind ``batch`` begins at its end or later.

    With ``gaps``, nothing has to, and a segment that compaction was replacing may begin below its end.
    """
    if size - position >= HEADER_SIZE:
        header = RecordBatch.of(file.read(position, HEADER_SIZE))
        return header.base_offset >= batch.next_offset if header.magic == MAGIC else gaps
    return gaps or (next_base is not None and next_base >= batch.next_offset)
