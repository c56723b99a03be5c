"""Compacted topics in plans: few keys, many writes, tombstones, and brokers that compact as soon as they may.

Rules for this file: data and draws, from the one stream that is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final

TOMBSTONE: Final = "-"
"""A key that begins so is deleted by the record: it has no value."""


def drawn_settings(random: Random) -> dict[str, str]:
    """Of brokers: they look often; some have room for a handful of keys a round, tombstones of some go at once."""
    return {
        "log.cleaner.backoff.ms": random.choice(("100", "300", "1000")),
        "log.cleaner.min.cleanable.ratio": random.choice(("0.0", "0.2", "0.5")),
        "log.cleaner.dedupe.buffer.size": random.choice(("1024", "1024", "134217728")),
        "log.cleaner.delete.retention.ms": random.choice(("0", "1000", "86400000")),
    }


def compacted(configs: Mapping[str, str]) -> dict[str, str]:
    """A topic's settings with compaction beside what retention it has."""
    deletes = any(name.startswith("retention.") for name in configs)
    return {**configs, "cleanup.policy": "compact,delete" if deletes else "compact"}


def drawn_key(random: Random, keys: int) -> str:
    """One of ``keys``; now and then it is deleted."""
    key = f"k{random.randrange(keys)}"
    return TOMBSTONE + key if random.random() < 0.15 else key
