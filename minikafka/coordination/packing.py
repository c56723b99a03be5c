"""Kafka's primitive types: big-endian numbers; texts, bytes and arrays behind their length, -1 for null.

A flexible version (KIP-482) has other lengths (unsigned varints of the length plus one, 0 for null) and tagged fields
at the end of each structure.

Used by the formats that other tools read from our topics: the records of ``__consumer_offsets`` and
``__transaction_state``, and the consumer protocol's subscription and assignment.

Rules for this file: whatever bytes come, the only error is ValueError, and it says where.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

_INT8, _INT16, _INT32, _INT64 = struct.Struct(">b"), struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
T = TypeVar("T")


def by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Topic, or topic id, to its partitions, both sorted."""
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return found


class Packer:
    """Appends values to one growing text of bytes."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.is_flexible = False
        """Set behind the version: lengths are those of KIP-482 from there on."""

    def packed(self) -> bytes:
        """All that was added."""
        return b"".join(self._parts)

    def int8(self, value: int) -> Packer:
        self._parts.append(_INT8.pack(value))
        return self

    def int16(self, value: int) -> Packer:
        self._parts.append(_INT16.pack(value))
        return self

    def int32(self, value: int) -> Packer:
        self._parts.append(_INT32.pack(value))
        return self

    def int64(self, value: int) -> Packer:
        self._parts.append(_INT64.pack(value))
        return self

    def text(self, value: str | None) -> Packer:
        """UTF-8 behind an int16; None is length -1."""
        raw = b"" if value is None else value.encode()
        return self._length(-1 if value is None else len(raw), self.int16).raw(raw)

    def data(self, value: bytes | None) -> Packer:
        """Bytes behind an int32; None is length -1."""
        return self._length(-1 if value is None else len(value), self.int32).raw(value or b"")

    def _varint(self, value: int) -> Packer:
        while value >= 0x80:
            self._parts.append(bytes((value & 0x7F | 0x80,)))
            value >>= 7
        return self.raw(bytes((value,)))

    def _length(self, value: int, fixed: Callable[[int], Packer]) -> Packer:
        return self._varint(value + 1) if self.is_flexible else fixed(value)

    def tags(self, fields: Mapping[int, bytes] = MappingProxyType({})) -> Packer:
        """The tagged fields that end a structure of a flexible version; any other version has none."""
        if not self.is_flexible:
            return self
        self._varint(len(fields))
        for tag, value in sorted(fields.items()):
            self._varint(tag)
            self._varint(len(value))
            self.raw(value)
        return self

    def raw(self, value: bytes) -> Packer:
        self._parts.append(value)
        return self

    def array(self, items: Sequence[T] | None, add: Callable[[T], object]) -> Packer:
        """A count, and ``add`` for each item; None is length -1."""
        self._length(-1 if items is None else len(items), self.int32)
        for item in items or ():
            add(item)
        return self


class Unpacker:
    """Reads values front to back. ValueError at the first that is not there or not possible."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._at = 0
        self.is_flexible = False
        """Set once the version in front has been read: lengths and tagged fields are those of KIP-482 from there on."""

    @property
    def left(self) -> int:
        """Bytes not yet read."""
        return len(self._packed) - self._at

    def _take(self, size: int, what: str) -> bytes:
        if size < 0 or size > self.left:
            raise ValueError(f"{what} of {size} bytes at {self._at}: {self.left} are left")
        taken = self._packed[self._at : self._at + size]
        self._at += size
        return taken

    def int8(self) -> int:
        return int(_INT8.unpack(self._take(1, "int8"))[0])

    def int16(self) -> int:
        return int(_INT16.unpack(self._take(2, "int16"))[0])

    def version(self) -> int:
        """The version of a value. Raises ValueError for a negative one, which Kafka never writes."""
        version = self.int16()
        if version < 0:
            raise ValueError(f"a value of version {version}")
        return version

    def int32(self) -> int:
        return int(_INT32.unpack(self._take(4, "int32"))[0])

    def int64(self) -> int:
        return int(_INT64.unpack(self._take(8, "int64"))[0])

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1, "varint")[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError(f"varint before {self._at} has no end")

    def _length(self, fixed: Callable[[], int]) -> int:
        return self._varint() - 1 if self.is_flexible else fixed()

    def tags(self) -> dict[int, bytes]:
        """The tagged fields that end a structure of a flexible version; of any other version there are none."""
        count = self._varint() if self.is_flexible else 0
        if count > self.left:
            raise ValueError(f"{count} tagged fields announced before {self._at}: {self.left} bytes are left")
        return {self._varint(): self._take(self._varint(), "tagged field") for _ in range(count)}

    def text(self) -> str:
        """A text that may not be null."""
        value = self.text_or_none()
        if value is None:
            raise ValueError(f"a null text before {self._at}")
        return value

    def text_or_none(self) -> str | None:
        size = self._length(self.int16)
        if size == -1:
            return None
        try:
            return self._take(size, "text").decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"text before {self._at} is not UTF-8") from error

    def data(self) -> bytes:
        """Bytes that may not be null."""
        value = self.data_or_none()
        if value is None:
            raise ValueError(f"null bytes before {self._at}")
        return value

    def data_or_none(self) -> bytes | None:
        size = self._length(self.int32)
        return None if size == -1 else self._take(size, "bytes")

    def array(self, read: Callable[[], T]) -> tuple[T, ...]:
        """An array that may not be null."""
        items = self.array_or_none(read)
        if items is None:
            raise ValueError(f"a null array before {self._at}")
        return items

    def array_or_none(self, read: Callable[[], T]) -> tuple[T, ...] | None:
        """A count, then as many; each item takes at least a byte, so a count beyond what is left is refused."""
        count = self._length(self.int32)
        if count == -1:
            return None
        if not 0 <= count <= self.left:
            raise ValueError(f"{count} items announced before {self._at}: {self.left} bytes are left")
        return tuple(read() for _ in range(count))


def versions(key: bytes | None, value: bytes | None) -> str:
    """The versions that a record's key and value begin with, for a message."""
    versions = ["none" if part is None else str(int.from_bytes(part[:2], signed=True)) for part in (key, value)]
    return f"key {versions[0]}, value {versions[1]}"
