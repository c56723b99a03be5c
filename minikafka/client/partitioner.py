"""Which partition a record goes to: Kafka's murmur2 of the key, or a sticky one without a key (S26, KIP-480, KIP-794).

Rules for this file: an empty key is a key; the same key lands where Kafka puts it; randomness comes in as an argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from struct import unpack_from

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF

# Keys repeat: a dictionary look-up is ten times faster than hashing. 65,536 keys of 100 bytes take about 12 MB.
CACHED_KEYS_MAX = 65_536


def murmur2(data: bytes) -> int:
    """Kafka's 32-bit murmur2 (seed 0x9747b28c), as a signed number."""
    words = len(data) >> 2
    return _finished(_mixed(_SEED ^ len(data), unpack_from(f"<{words}I", data)), data[words << 2 :])


def murmur2_in_steps(data: bytes, step_size: int) -> Iterator[int]:
    """Yield after every ``step_size`` bytes, so that an event loop need not wait; the last value is the hash."""
    h, end = _SEED ^ len(data), len(data) & ~3
    for start in range(0, end, step_size & ~3):
        words = (min(end - start, step_size)) >> 2
        h = _mixed(h, unpack_from(f"<{words}I", data, start))
        yield h
    yield _finished(h, data[end:])


def _mixed(h: int, words: tuple[int, ...]) -> int:
    for k in words:
        k = k * _M & _MASK  # noqa: PLW2901 - mixing a word in place is how the function is defined
        h = (h * _M & _MASK) ^ ((k ^ k >> 24) * _M & _MASK)
    return h


def _finished(h: int, tail: bytes) -> int:
    if tail:
        h = (h ^ int.from_bytes(tail, "little")) * _M & _MASK
    h = (h ^ h >> 13) * _M & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def partition_of_key(key: bytes, partition_count: int) -> int:
    """Kafka's rule: the hash without its sign bit, modulo the number of partitions."""
    return partition_of_hash(murmur2(key), partition_count)


def partition_of_hash(key_hash: int, partition_count: int) -> int:
    """As :func:`partition_of_key`, of a key's murmur2."""
    return (key_hash & 0x7FFFFFFF) % partition_count


class KeyHashes:
    """murmur2 of keys without its sign bit, remembered."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}

    def __call__(self, key: bytes) -> int:
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= CACHED_KEYS_MAX:
                self._known.clear()
            known = self._known[key] = murmur2(key) & 0x7FFFFFFF
        return known


def choose_sticky(random: Random, available: Sequence[int], queue_lengths: Sequence[int], current: int) -> int:
    """The next partition for records without a key: weighted by inverse queue length (KIP-794), not ``current``.

    ``available`` are the candidates in order, ``queue_lengths`` the batches that wait for each of them.
    """
    longest = max(queue_lengths) + 1
    weights = [longest - length for length in queue_lengths]
    if len(available) > 1 and current in available:
        weights[available.index(current)] = 0
        if not any(weights):
            weights = [int(partition != current) for partition in available]
    point = random.random() * sum(weights)
    for partition, weight in zip(available, weights, strict=True):
        point -= weight
        if point < 0:
            return partition
    # Rounding may leave a point on the far edge: the last one that may be chosen.
    return max(zip(available, weights, strict=True), key=lambda each: (each[1] > 0, each[0]))[0]
