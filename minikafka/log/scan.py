"""Walking over one log file batch by batch, believing nothing: length, checksum, offsets, epochs.

Rule for this file: it reads; what becomes of a file that is damaged is its caller's to decide.
"""

from __future__ import annotations

from collections.abc import Iterator

from minikafka.errors import ProtocolError
from minikafka.ports import File
from minikafka.types import Epoch, Offset
from minikafka.wire.batch import HEADER_SIZE, LENGTH_END, RecordBatch, verify

_CHUNK_SIZE = 1024 * 1024


class Damage(Exception):
    """The walk over a segment stops here."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


def scan(
    file: File, *, size: int, first_offset: Offset, last_offset_max: Offset, epoch: Epoch, gaps: bool
) -> Iterator[tuple[int, RecordBatch]]:
    """(position, batch) from the file's beginning, each checked against its checksum and the one before it.

    Raises :class:`Damage` at the first that does not fit, or is cut by ``size``.
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
        fits = batch.base_offset >= expected if gaps else batch.base_offset == expected
        if not fits or batch.last_offset > last_offset_max:
            raise Damage(position, f"offsets {batch.base_offset}..{batch.last_offset} where {expected} was expected")
        if batch.leader_epoch < epoch:
            raise Damage(position, f"leader epoch {batch.leader_epoch} after {epoch}")
        yield position, batch
        expected, epoch = batch.next_offset, batch.leader_epoch
        position += length
