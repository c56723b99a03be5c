"""What a group has committed, by the log of its coordinator alone.

Rule for this file: it knows nothing of the coordinator, so that a bug in it does not hide itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from minikafka.groups.records import OffsetRecord, unpacked
from minikafka.types import NO_OFFSET, Offset, TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import marker_of
from minikafka.wire.records import decode_batch


def committed_offsets(batches: Iterable[RecordBatch], group: str) -> dict[TopicPartition, Offset]:
    """Return the group's offsets as the log of its coordinator says.

    The offsets of a transaction count from its COMMIT marker on, unless an offset that stands later in the log counts
    already: compaction keeps the later record.
    """
    counted: dict[TopicPartition, tuple[Offset, Offset]] = {}
    pending: dict[int, list[tuple[TopicPartition, Offset, Offset]]] = {}

    def count(name: TopicPartition, at: Offset, value: Offset) -> None:
        if at > counted.get(name, (NO_OFFSET, 0))[0]:
            counted[name] = (at, value)

    for batch in batches:
        if batch.is_control:
            marker = marker_of(batch)
            for each in pending.pop(batch.producer_id, []) if marker is not None else ():
                if marker is not None and marker.is_commit:
                    count(*each)
            continue
        for record in decode_batch(batch):
            found = unpacked(record.key or b"", record.value)
            if not isinstance(found, OffsetRecord) or found.group != group:
                continue
            if found.value is None:
                counted.pop(found.partition, None)
            elif batch.is_transactional:
                pending.setdefault(batch.producer_id, []).append((found.partition, record.offset, found.value.offset))
            else:
                count(found.partition, record.offset, found.value.offset)
    return {name: offset for name, (_, offset) in counted.items()}
