"""Producer state as of an offset: the newest snapshot that can be believed, and the batches after it (KIP-98).

Rule for this file: it reads segments and removes snapshots that cannot be read; it writes nothing.
"""

from __future__ import annotations

from minikafka.log.names import SNAPSHOT, offset_name
from minikafka.log.producer_state import BadSnapshot, ProducerState
from minikafka.log.segment import Segment, headers
from minikafka.ports import Disk
from minikafka.types import Offset


def replay_producers(
    disk: Disk,
    folder: str,
    segments: list[Segment],
    state: ProducerState,
    snapshots: list[Offset],
    *,
    end: Offset,
    clean: bool = False,
) -> None:
    """Rebuild ``state`` as of ``end``; removes snapshots that cannot be read, from disk and from ``snapshots``."""
    state.clear()
    start = segments[0].base_offset
    had_snapshot = False
    while snapshots and not had_snapshot:
        path = f"{folder}/{offset_name(snapshots[-1], SNAPSHOT)}"
        try:
            state.load_snapshot(disk.read_file(path))
        except BadSnapshot:
            disk.remove(path)
            snapshots.pop()
        else:
            had_snapshot = True
            start = max(start, snapshots[-1])
    if clean and not had_snapshot:
        return  # Kafka: a clean stop without a snapshot had no producers
    for segment in segments:
        if segment.next_offset <= start:
            continue
        found = segment.locate(max(start, segment.base_offset))
        if found is None:
            continue
        for _, header in headers(segment.file, found[0], segment.size):
            if header.base_offset >= end:
                return
            if header.base_offset >= start:
                state.note(header, base_offset=header.base_offset, timestamp=header.max_timestamp)
