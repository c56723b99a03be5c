"""What a run is judged by: one history of all clients, everything read back, the replicas compared, and the verdict.

Used by the demo, by chaos, and by the end-to-end tests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minikafka import Consumer
from minikafka.check import (
    Checker,
    Expectations,
    Recorder,
    Verdict,
    compare_replicas,
    merged,
    value_id,
)
from minikafka.check.history import Assign, Operation, Poll, Seek
from minikafka.check.recorder import header_line, to_line
from minikafka.types import NodeId, Offset, TopicPartition
from minikafka.world.replica_files import record_replica, replica_of

READER = "final-reader"
POLL_TIMEOUT_MS = 1_000
POLL_RECORDS_MAX = 10_000

# A read that gets nothing for so long will get nothing more: the checker then says what is missing.
SILENCE_S = 20.0


class Ledger:
    """The history: written to a file line by line, and checked as it grows.

    What readers were given on the way is held against the final read by itself: what one reader read once is no proof
    that the log still has it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checker = Checker()
        self.readers = Checker()
        """Everything that was read, and nothing else."""
        self._file = path.open("w", encoding="utf-8")
        self._clock = asyncio.get_running_loop().time
        self._file.write(header_line())
        self.recorder = Recorder(self._keep, self._clock, lines_before=1)

    def _keep(self, operation: Operation) -> None:
        self._file.write(to_line(operation))
        if isinstance(operation, Poll | Assign | Seek):
            self.readers.feed(operation)
            if operation.process != READER:
                return
        self.checker.feed(operation)

    @property
    def totals(self) -> dict[str, int]:
        """kind -> how many were found so far."""
        return dict(Counter(self.checker.totals) + Counter(self.readers.totals))

    def verdict(self) -> Verdict:
        """On all of it; to be asked once."""
        return merged(self.checker.verdict(), self.readers.verdict())

    def flush(self) -> None:
        """As a producer's ledger: everything recorded so far survives the end of this process."""
        self._file.flush()

    def close(self) -> None:
        """Everything is in the file."""
        self._file.close()


async def read_back(
    ledger: Ledger,
    client: Mapping[str, str],
    names: Sequence[TopicPartition],
    report_count: Callable[[int], object],
) -> dict[TopicPartition, Offset]:
    """Return the end offsets after reading partitions to their end; ``report_count`` gets the count of each poll.

    ``client``: where and how the reader connects, as parameters of a native consumer.
    """
    settings: dict[str, Any] = {**client, "auto_offset_reset": "none", "max_poll_records": POLL_RECORDS_MAX}
    consumer = Consumer(**settings)
    await consumer.start()
    try:
        consumer.assign(names)
        ledger.recorder.assign(READER, names)
        ends = dict(await consumer.end_offsets(names))
        position = dict.fromkeys(names, 0)
        for name in names:
            consumer.seek(name, 0)
            ledger.recorder.seek(READER, *name, 0)
        count = 0
        loop = asyncio.get_running_loop()
        heard_at = loop.time()
        while any(position[name] < ends[name] for name in names) and loop.time() - heard_at < SILENCE_S:
            for name, records in (await consumer.getmany(timeout_ms=POLL_TIMEOUT_MS)).items():
                rows = [(record.offset, value_id(record.value)) for record in records]
                after = rows[-1][0] + 1
                ledger.recorder.poll(
                    READER,
                    name.topic,
                    name.partition,
                    rows,
                    position_before=position[name],
                    position_after=after,
                )
                position[name] = after
                count += len(rows)
                heard_at = loop.time()
            report_count(count)
        return ends
    finally:
        await consumer.stop()


@dataclass(frozen=True, slots=True)
class Compared:
    """What was held against each other, replica by replica."""

    batches: int
    size: int
    differences: int


def compare(ledger: Ledger, folders: Mapping[NodeId, Path], ends: Mapping[TopicPartition, Offset]) -> Compared:
    """Write every replica into the history, and compare them byte by byte below the high watermarks ``ends``."""
    batches = size = differences = 0
    for partition, end in ends.items():
        for node, folder in folders.items():
            record_replica(ledger.recorder, partition, replica_of(folder, node, partition, high_watermark=end))
        comparison = compare_replicas(
            partition, [replica_of(folder, node, partition, high_watermark=end) for node, folder in folders.items()]
        )
        batches += comparison.batch_count
        size += comparison.size
        differences += len(comparison.findings)
    return Compared(batches, size, differences)


def judge(ledger: Ledger) -> Verdict:
    """The verdict on the whole; the history is closed."""
    ledger.recorder.expect(Expectations(idempotent=True, final_read_complete=True, replicas_complete=True))
    ledger.close()
    return ledger.verdict()
