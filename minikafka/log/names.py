"""Names of files and folders in a data directory, as Kafka writes them (KAFKA-FACTS 1.1)."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from contextlib import suppress

from minikafka.types import Offset, TopicId, TopicPartition

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
RESTARTED = ".start"
"""Our own: an empty file named after the offset at which a log was deliberately restarted (see ``recovery.py``)."""
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
TEMPORARY = ".tmp"
STRAY = ".stray"
"""Our own: a segment that a recovering log could not place. Nobody reads or removes it."""

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
GAPS = "mk.gaps"
"""Our own: compaction has left offsets out of this log, or of the one it was copied from (``cleanup.policy`` may have
changed since, and is not known yet when logs are opened). It holds the offset up to which there are holes between
segments; empty, as earlier versions wrote it, it says nothing of holes.
"""

DAMAGED = "mk.damaged"
"""Our own, and empty: this log lacks records that were synced, and the controller may not know it yet."""

META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
REPLICATION_OFFSET_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"

DELETED_FOLDER = "-delete"
STRAY_FOLDER = "-stray"
FOLDER_NAME_SIZE_MAX = 143
"""Of eCryptfs; other file systems allow 255. A topic's name is cut in a ``-delete`` folder so that it fits."""

_OFFSET_DIGITS = 20
_SUFFIXED_FOLDER = re.compile(r"^.+\.[0-9a-f]{32}(-delete|-stray|-future)$")


def offset_name(offset: Offset, suffix: str) -> str:
    """``00000000000000000042.log``"""
    return f"{offset:0{_OFFSET_DIGITS}d}{suffix}"


def offset_of(name: str, suffix: str) -> Offset | None:
    """The base offset in a file's name; None when the name is none of ``suffix``."""
    if len(name) != _OFFSET_DIGITS + len(suffix) or not name.endswith(suffix):
        return None
    stem = name[:_OFFSET_DIGITS]
    if not stem.isascii() or not stem.isdigit():
        return None
    return int(stem)


def offsets_in(names: Iterable[str], suffix: str) -> list[Offset]:
    """Base offsets of all files with ``suffix``, ascending."""
    found = (offset_of(name, suffix) for name in names)
    return sorted(offset for offset in found if offset is not None)


def offsets_by_suffix(names: Iterable[str]) -> dict[str, list[Offset]]:
    """Base offsets by the suffix of their files, in the order of ``names``."""
    found: dict[str, list[Offset]] = {}
    for name in names:
        stem, suffix = name[:_OFFSET_DIGITS], name[_OFFSET_DIGITS:]
        if suffix and len(stem) == _OFFSET_DIGITS and stem.isascii() and stem.isdigit():
            found.setdefault(suffix, []).append(int(stem))
    return found


def partition_of(folder: str) -> TopicPartition | None:
    """``orders-0`` -> (orders, 0), cut at the last ``-``; None for folders that are not, or no longer, a replica's."""
    if _SUFFIXED_FOLDER.match(folder):
        return None
    topic, dash, number = folder.rpartition("-")
    if not topic or not dash or not number.isascii() or not number.isdigit() or str(int(number)) != number:
        return None
    return TopicPartition(topic, int(number))


def is_deleted_folder(folder: str) -> bool:
    """Return True if it is a replica whose files only wait to be removed."""
    return bool(_SUFFIXED_FOLDER.match(folder)) and folder.endswith(DELETED_FOLDER)


def retired_folder(partition: TopicPartition, topic_id: TopicId, suffix: str) -> str:
    """``<topic>-<p>.<32 hex>-delete`` (or ``-stray``), the topic cut so that the name fits.

    The hex is the topic's id: the topic may be created again under the same name, its id never comes back.
    """
    tail = f"-{partition.partition}.{topic_id_bytes(topic_id).hex()}{suffix}"
    return partition.topic[: FOLDER_NAME_SIZE_MAX - len(tail)] + tail


def topic_id_bytes(topic_id: TopicId) -> bytes:
    """The 16 bytes of a UUID that is printed as 22 characters; ValueError for everything else."""
    raw = b""
    with suppress(ValueError):
        raw = base64.b64decode(topic_id + "==", altchars=b"-_", validate=True)
    if len(raw) != 16:
        raise ValueError(f"not a topic id: {topic_id!r}")
    return raw
