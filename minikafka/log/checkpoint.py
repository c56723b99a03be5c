"""Kafka's small text files, to the byte (KAFKA-FACTS 1.2).

Rules for this file: pure text in, values out, and back; a malformed text raises :class:`BadCheckpoint`, which says
where. Who writes them and when they are durable is in ``partition_log.py`` and ``log_directory.py``.

::

    0                       version of a checkpoint
    2                       number of entries
    orders 0 120            topic partition offset, or in leader-epoch-checkpoint: epoch startOffset
    orders 1 77
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeVar

from javaproperties.reading import loads

from minikafka.addresses import is_number
from minikafka.log.names import topic_id_bytes
from minikafka.types import NO_TOPIC_ID, Epoch, NodeId, Offset, TopicId, TopicPartition

DATA_FORMAT_VERSION = 1
"""Version of minikafka's own use of a data directory (``mk.data.format.version`` in meta.properties)."""
DATA_FORMAT_KEY = "mk.data.format.version"

NO_BROKER_EPOCH = -1

_Entry = TypeVar("_Entry")


class BadCheckpoint(Exception):
    """A small file cannot be read; the message says which line."""


def _lines(entries: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in ("0", str(len(entries)), *entries)).encode()


def _parse(data: bytes, read: Callable[[list[str]], _Entry]) -> list[_Entry]:
    """Entries of a checkpoint. An empty file has none; a wrong count or line is an error."""
    if not data:
        return []
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise BadCheckpoint(f"not text: {error}") from error
    if not data.endswith(b"\n"):
        raise BadCheckpoint(f"line {len(lines)}: cut off, the last number may lack digits")
    if lines[0] != "0":
        raise BadCheckpoint(f"line 1: version {lines[0]!r}, only 0 is understood")
    if len(lines) < 2 or not is_number(lines[1]):
        raise BadCheckpoint("line 2: no count of entries")
    entries = []
    for number, line in enumerate(lines[2:], start=3):
        try:
            entries.append(read(line.split()))
        except ValueError as error:
            raise BadCheckpoint(f"line {number}: {line!r} is malformed") from error
    if len(entries) != int(lines[1]):
        raise BadCheckpoint(f"line 2: {lines[1]} entries promised, {len(entries)} found")
    return entries


def format_offsets(offsets: Mapping[TopicPartition, Offset]) -> bytes:
    """replication-, recovery-point- and log-start-offset-checkpoint; sorted, so that equal states are equal files."""
    return _lines([f"{at.topic} {at.partition} {offset}" for at, offset in sorted(offsets.items())])


def parse_offsets(data: bytes) -> dict[TopicPartition, Offset]:
    """Raises BadCheckpoint; the caller counts an unreadable one as no entries (KAFKA-FACTS 1.4)."""

    def read(words: list[str]) -> tuple[TopicPartition, Offset]:
        topic, partition, offset = words
        return TopicPartition(topic, int(partition)), int(offset)

    return dict(_parse(data, read))


def format_epochs(entries: list[tuple[Epoch, Offset]]) -> bytes:
    """leader-epoch-checkpoint."""
    return _lines([f"{epoch} {start}" for epoch, start in entries])


def parse_epochs(data: bytes) -> list[tuple[Epoch, Offset]]:
    """Raises BadCheckpoint, also when epochs or offsets do not rise."""

    def read(words: list[str]) -> tuple[Epoch, Offset]:
        epoch, start = words
        return int(epoch), int(start)

    entries = _parse(data, read)
    for earlier, later in pairwise(entries):
        if earlier[0] >= later[0] or earlier[1] >= later[1]:
            raise BadCheckpoint(f"epoch {later[0]} at {later[1]} does not follow epoch {earlier[0]} at {earlier[1]}")
    return entries


_FORMER: Final = "mk.former"


def format_partition_metadata(topic_id: TopicId, *, has_former: bool = False) -> bytes:
    """partition.metadata; no line end after the id, as Kafka.

    ``has_former`` is our own: checkpoints on disk may name the partition for a log that had its folder before. The line
    stands before the id: what a power failure left of the file without it has no id either.
    """
    former = f"{_FORMER}: true\n" if has_former else ""
    return f"version: 0\n{former}topic_id: {topic_id}".encode()


def names_former(data: bytes) -> bool:
    """Return True if the content of partition.metadata says that checkpoints may name a former log."""
    return _members(data).get(_FORMER) == "true"


def _members(data: bytes) -> dict[str, str]:
    return dict(line.split(": ", 1) for line in data.decode(errors="replace").splitlines() if ": " in line)


def parse_partition_metadata(data: bytes) -> TopicId:
    """Raises BadCheckpoint, also for the zero UUID."""
    found = _members(data)
    if found.get("version") != "0":
        raise BadCheckpoint(f"version {found.get('version')!r}, only 0 is understood")
    topic_id = found.get("topic_id", "").strip()
    try:
        topic_id_bytes(topic_id)
    except ValueError as error:
        raise BadCheckpoint(f"topic_id {topic_id!r} is none") from error
    if topic_id == NO_TOPIC_ID:
        raise BadCheckpoint("topic_id is the zero UUID")
    return topic_id


def format_holes_end(offset: Offset) -> bytes:
    """mk.gaps, our own: segments that begin above ``offset`` follow the one before them without a hole."""
    return f"{offset}\n".encode()


def parse_holes_end(data: bytes) -> Offset | None:
    """None: nothing is known; the file is torn, or the empty one of earlier versions."""
    return int(data) if data.endswith(b"\n") and data[:-1].isdigit() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """The broker and cluster of the data directory."""

    cluster_id: str
    node_id: NodeId
    directory_id: str
    data_format_version: int = DATA_FORMAT_VERSION


def format_meta_properties(meta: MetaProperties) -> bytes:
    """meta.properties, version 1, with one key of our own that Kafka's tools ignore."""
    return (
        f"cluster.id={meta.cluster_id}\n"
        f"directory.id={meta.directory_id}\n"
        f"{DATA_FORMAT_KEY}={meta.data_format_version}\n"
        f"node.id={meta.node_id}\n"
        "version=1\n"
    ).encode()


def parse_meta_properties(data: bytes) -> MetaProperties:
    """Raises BadCheckpoint. A directory that Kafka wrote has no format version of ours: it counts as 1."""
    try:
        found = {str(k): str(v) for k, v in loads(data.decode("latin-1")).items()}
        if found.get("version") != "1":
            raise BadCheckpoint(f"version={found.get('version', 'none')}, this program understands version=1")
        return MetaProperties(
            cluster_id=found["cluster.id"],
            node_id=int(found["node.id"]),
            directory_id=found.get("directory.id", ""),
            data_format_version=int(found.get(DATA_FORMAT_KEY, DATA_FORMAT_VERSION)),
        )
    except KeyError as error:
        raise BadCheckpoint(f"{error.args[0]} is missing") from error
    except ValueError as error:
        raise BadCheckpoint(str(error)) from error


def format_clean_shutdown(broker_epoch: int) -> bytes:
    """.kafka_cleanshutdown: the broker epoch lets the controller see an unclean stop (KIP-966)."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def parse_clean_shutdown(data: bytes) -> int:
    """The broker epoch in it; -1 for the empty file of older versions, or one that cannot be read."""
    try:
        epoch = json.loads(data)["brokerEpoch"]
    except (ValueError, KeyError, TypeError):
        return NO_BROKER_EPOCH
    return epoch if isinstance(epoch, int) else NO_BROKER_EPOCH
