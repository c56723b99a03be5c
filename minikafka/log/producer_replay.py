"""Producer state as of an offset: the newest snapshot that can be believed, and the batches after it (KIP-98).

Rules for this file: it reads segments and removes snapshots that cannot be read; it writes nothing. Of data only the
headers are read, of markers the whole batch.
"""

from __future__ import annotations

from collections.abc import Collection

from minikafka.log.names import SNAPSHOT, offset_name
from minikafka.log.producer_state import BadSnapshot, ProducerState
from minikafka.log.segment import Segment, headers
from minikafka.ports import Disk
from minikafka.types import Offset
from minikafka.wire.batch import RecordBatch


def replay_producers(
    disk: Disk,
    folder: str,
    segments: list[Segment],
    state: ProducerState,
    snapshots: list[Offset],
    *,
    end: Offset,
    clean: bool = False,
    high_watermark: Offset | None = None,
    unindexed: Collection[Segment] = (),
) -> None:
    """Rebuild ``state`` as of ``end``; removes snapshots that cannot be read, from disk and from ``snapshots``.

    Args:
        disk: Where the log is.
        folder: The log's.
        segments: All of them, oldest first.
        state: Is cleared first.
        snapshots: Offsets of the snapshots in the folder, ascending.
        end: The log's end.
        clean: The last stop was clean. Kafka: without a snapshot there were no producers.
        high_watermark: As known on disk. Transactions whose markers lie at or above it have ended but may still be
            undone, and the replay begins below it, because a snapshot does not tell where they began. None: the caller
            knows these transactions.
        unindexed: Segments with markers whose transaction index is rebuilt; the replay begins before the first of them.
    """
    latest = min((segment.base_offset for segment in unindexed), default=end)
    start = _load_newest(disk, folder, state, snapshots, latest)
    if high_watermark is not None and start is not None and start > high_watermark and state.has_seen_markers:
        start = _load_newest(disk, folder, state, snapshots, high_watermark)
    elif clean and start is None and not unindexed:
        return
    if high_watermark is not None:
        state.transactions.committed(min(high_watermark, end))  # a power cut may have left less of the log
    start = max(segments[0].base_offset, start or 0)
    for segment in segments:
        if segment.next_offset <= start:
            continue
        found = segment.locate(max(start, segment.base_offset))
        if found is None:
            continue
        needs_index = any(segment is each for each in unindexed)
        for position, header in headers(segment.file, found[0], segment.size):
            if header.base_offset >= end:
                return
            if header.base_offset >= start:
                is_marker = header.is_control and header.has_producer
                batch = RecordBatch.of(segment.read(position, header.size)) if is_marker else header
                aborted = state.note(batch, base_offset=header.base_offset, timestamp=header.max_timestamp)
                if aborted is not None and needs_index:
                    segment.transactions.append(aborted)


def _load_newest(
    disk: Disk, folder: str, state: ProducerState, snapshots: list[Offset], latest: Offset
) -> Offset | None:
    """Load the newest snapshot at or below ``latest`` and return its offset; None, and no state, without one."""
    state.clear()
    for offset in [each for each in reversed(snapshots) if each <= latest]:
        path = f"{folder}/{offset_name(offset, SNAPSHOT)}"
        try:
            state.load_snapshot(disk.read_file(path))
        except BadSnapshot:
            disk.remove(path)
            snapshots.remove(offset)
        else:
            return offset
    return None
