"""Which partition of an internal topic a name belongs to (KAFKA-FACTS 5)."""

from __future__ import annotations

import struct
from operator import mul

_POWERS = [1]
"""Of 31, as 32-bit numbers; as many as the longest name has needed."""


def java_hash(text: str) -> int:
    """``String.hashCode``: over UTF-16 units, as a signed 32-bit number."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    units = struct.unpack(f">{len(encoded) // 2}H", encoded)
    while len(_POWERS) < len(units):
        _POWERS.append(31 * _POWERS[-1] & 0xFFFFFFFF)
    value: int = sum(map(mul, reversed(units), _POWERS)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def partition_of(name: str, partitions: int) -> int:
    """The partition whose leader coordinates ``name`` (S32). Kafka's abs(MIN) is 0."""
    value = java_hash(name)
    return (0 if value == -(1 << 31) else abs(value)) % partitions
