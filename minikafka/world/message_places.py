"""Which partitions and offsets a message concerns: of Produce, Fetch, and their responses, for people who see it held.

A body is decoded only when a fault holds the message, so that other messages cost nothing. Fetch sessions (KIP-227)
leave partitions without news out of a message; they are left out here too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from minikafka.errors import DiskFailed, ProtocolError
from minikafka.ports import Buffer, Buffers, FileRegion
from minikafka.types import Offset
from minikafka.wire.batch import RecordBatch, iterate
from minikafka.wire.codec import decode_request, decode_response, find_api
from minikafka.wire.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse

Contents: TypeAlias = "Buffers | object"
"""The body of a message, or the message itself where its connection has decoded it."""

_DESCRIBED = ("Fetch", "Produce")


class Place(NamedTuple):
    """One partition of a message. None: the message does not say it."""

    topic: str
    partition: int
    offset: Offset | None = None
    """Fetch request: the first offset that is wanted. Responses: the first record's."""
    last_offset: Offset | None = None
    """Fetch response: the last record's; None: it has no records."""
    record_count: int | None = None
    """Produce request, Fetch response."""
    high_watermark: Offset | None = None
    """Fetch response: the leader's. Fetch request of a follower: the one that it knows."""

    def __str__(self) -> str:
        name = f"{self.topic}-{self.partition}"
        if self.last_offset is not None:
            name += f" offsets {self.offset} to {self.last_offset}"
        elif self.offset is not None:
            name += f" offset {self.offset}"
        if self.last_offset is None and self.record_count:
            name += f", {self.record_count} record{'s' if self.record_count > 1 else ''}"
        return name if self.high_watermark is None else f"{name}, HW {self.high_watermark}"


def places_of(api: str, message: str, contents: Contents) -> tuple[Place, ...]:
    """The partitions of a message, in its order; none if it is of another API, or cannot be read.

    Args:
        api: Name of the API, as in ``/rpc/{Api}``.
        message: ``request`` or ``answer``.
        contents: The body, or the decoded message.
    """
    if api not in _DESCRIBED:
        return ()
    try:
        return tuple(_places_in(_decoded(api, message, contents)))
    except (ProtocolError, DiskFailed):
        return ()  # its receiver answers that it cannot be read; it is held all the same


def body_in(contents: Contents) -> Buffers:
    """The body, if it is one; nothing of a decoded message."""
    return contents if isinstance(contents, Sequence) else ()


def _decoded(api: str, message: str, contents: Contents) -> Any:
    if not isinstance(contents, Sequence):
        return contents
    body = b"".join(_bytes_of(each) for each in contents)
    return decode_request(find_api(api), body) if message == "request" else decode_response(api, body)


def _bytes_of(part: Buffer | FileRegion) -> Buffer:
    """Records below the high watermark may be a region of a file."""
    return part if isinstance(part, (bytes, bytearray, memoryview)) else part.read(0, len(part))


def _places_in(message: object) -> Iterable[Place]:
    if isinstance(message, FetchRequest):
        for wanted in message.partitions:
            yield Place(
                wanted.topic, wanted.partition, wanted.fetch_offset, high_watermark=_known(wanted.high_watermark)
            )
    elif isinstance(message, FetchResponse):
        for fetched in message.partitions:
            batches = _batches_in(fetched.records)
            yield Place(
                fetched.topic,
                fetched.partition,
                batches[0].base_offset if batches else None,
                batches[-1].last_offset if batches else None,
                sum(each.record_count for each in batches),
                _known(fetched.high_watermark),
            )
    elif isinstance(message, ProduceRequest):
        for sent in message.partitions:
            count = sum(each.record_count for each in _batches_in(sent.records))
            yield Place(sent.topic, sent.partition, record_count=count)
    elif isinstance(message, ProduceResponse):
        for produced in message.partitions:
            yield Place(produced.topic, produced.partition, _known(produced.base_offset))


def _batches_in(records: Buffers) -> list[RecordBatch]:
    return list(iterate(b"".join(_bytes_of(each) for each in records)))


def _known(offset: Offset) -> Offset | None:
    return None if offset < 0 else offset
