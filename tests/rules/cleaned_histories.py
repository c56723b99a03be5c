"""Histories of a compacted log with transactions: a writer, a model of what it wrote, and readers to compare with it.

The model is the list of all batches that are in the log, each as it was appended. What may be seen, where the last
stable offset is and what is known of producers follow from it without any code of the log.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from minikafka.config import TopicConfig
from minikafka.log.cleaner import Cleaned
from minikafka.log.compaction import MAP_ENTRY_SIZE
from minikafka.log.inspect import verify_log
from minikafka.log.partition_log import PartitionLog
from minikafka.log.producer_state import ProducerEntry
from minikafka.wire.batch import NO_TIMESTAMP, RecordBatch, split, verify_client
from minikafka.wire.markers import AbortedFilter, EndTransaction, marker_batch
from minikafka.wire.records import Record, build_batch, decode_batch
from tests.rules.log_words import ORDERS, TIME, everything, on_disk, open_log
from tests.rules.memory_disk import MemoryDisk, run

COMPACT = TopicConfig(cleanup_policy="compact", segment_bytes=400, index_interval_bytes=100, delete_retention_ms=1000)
BIG_MAP = 1000 * MAP_ENTRY_SIZE
COORDINATOR_EPOCH = 5

Pairs = list[tuple[str, str | None]]
View = dict[str, tuple[int, str | None]]
"""Key -> offset and value of its last record."""


@dataclass
class Stored:
    """A batch as it was appended."""

    base: int
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    is_transactional: bool = False
    pairs: Pairs = field(default_factory=list)
    commit: bool | None = None
    """Of a marker."""

    @property
    def end(self) -> int:
        return self.base + max(1, len(self.pairs))


@dataclass
class Producer:
    """What a producer knows of itself. Those with even ids raise their epoch with each transaction (KIP-890)."""

    producer_id: int
    epoch: int = 0
    sequence: int = 0
    is_open: bool = False


class CleanedLog:
    """One log, and the model of what was appended to it."""

    def __init__(self, config: TopicConfig = COMPACT, disk: MemoryDisk | None = None) -> None:
        self.disk = MemoryDisk() if disk is None else disk
        self.log = open_log(self.disk, config)
        self.stored: list[Stored] = []
        self.names: dict[int, int] = {}
        """Number of a producer in the history -> its producer id now."""
        self.leader_epoch = 0
        self.high_watermark = 0
        self.now_ms = TIME

    # ---- what happens ----

    def plain(self, pairs: Pairs, compression: str = "none") -> None:
        """Records without a producer."""
        self._append(Stored(self.log.end_offset, pairs=pairs), compression)

    def send(self, number: int, pairs: Pairs, compression: str = "none") -> None:
        """A batch in the transaction of a producer."""
        producer = self.producer(number)
        self._append(
            Stored(self.log.end_offset, producer.producer_id, producer.epoch, producer.sequence, True, pairs),
            compression,
        )

    def _append(self, stored: Stored, compression: str) -> None:
        records = [Record(0, TIME, key=k.encode(), value=None if v is None else v.encode()) for k, v in stored.pairs]
        options = {"compression": compression}
        if stored.is_transactional:
            options |= {"producer_id": stored.producer_id, "producer_epoch": stored.epoch, "transactional": True}
            options |= {"base_sequence": stored.sequence}
        batch = verify_client(build_batch(records, **options), transactional=stored.is_transactional)
        self.log.append_as_leader(batch, leader_epoch=self.leader_epoch, wall_ms=TIME)
        self.stored.append(stored)

    def end(self, number: int, *, commit: bool) -> None:
        """The coordinator ends a producer's transaction; without one, the marker fences."""
        producer = self.producer(number)
        version = 2 if producer.producer_id % 2 == 0 else 1
        epoch = producer.epoch + (version == 2)
        marker = EndTransaction(producer.producer_id, epoch, commit, COORDINATOR_EPOCH, version)
        batch = RecordBatch.of(marker_batch(marker, timestamp_ms=TIME))
        base = self.log.end_offset
        self.log.append_as_leader(batch, leader_epoch=self.leader_epoch, wall_ms=TIME, marker=marker)
        self.stored.append(Stored(base, producer.producer_id, epoch, is_transactional=True, commit=commit))

    def producer(self, number: int) -> Producer:
        """As it follows from the log."""
        known = Producer(self.names.setdefault(number, number))
        for each in self.stored:
            if each.producer_id != known.producer_id:
                continue
            if each.epoch != known.epoch:
                known.epoch, known.sequence = each.epoch, 0
            known.is_open = each.commit is None
            known.sequence += len(each.pairs)
        return known

    def roll(self, *, new_epoch: bool = False) -> None:
        self.leader_epoch += new_epoch
        self.log.roll()

    def commit(self, behind: int = 0) -> None:
        """Everything is synced, all but the last ``behind`` batches are committed."""
        run(self.log.sync())
        bounds = [0, *(each.end for each in self.stored)]
        self.high_watermark = max(self.high_watermark, bounds[max(0, len(self.stored) - behind)])

    def clean(self, *, wait_ms: int = 0, memory_bytes: int = BIG_MAP) -> Cleaned:
        self.now_ms += wait_ms
        dirty = self.log.dirty_range(high_watermark=self.high_watermark, now_ms=self.now_ms)
        cleaned: Cleaned = run(
            self.log.clean(dirty, memory_bytes=memory_bytes, clock_ms=lambda: self.now_ms, pause=no_pause)
        )
        return cleaned

    def cut(self, offset: int) -> None:
        """A new leader has less, but all that is committed."""
        self.log.truncate_to(max(offset, self.high_watermark))
        self.stored = [each for each in self.stored if each.end <= self.log.end_offset]

    def expire(self) -> None:
        """Producers without an open transaction are forgotten; they begin again with other ids."""
        self.commit()
        for now_ms in (0, COMPACT.producer_id_expiration_ms):
            self.log.expire_producers(now_ms, high_watermark=self.high_watermark)
        for number in list(self.names):
            if not self.producer(number).is_open:
                self.names[number] += 100

    def restart(self, *, clean: bool, recovery_point: int | None = None) -> None:
        """After a clean stop or kill -9; None: the newest recovery point was checkpointed."""
        run(self.log.sync())
        if clean:
            self.log.prepare_close()
            run(self.log.sync())
            assert list(verify_log(self.disk, str(ORDERS))) == []
        point = self.log.recovery_point if recovery_point is None else min(recovery_point, self.log.recovery_point)
        clean_end = self.log.clean_end
        self.log = open_log(
            self.disk, self.log.config, clean=clean, recovery_point=point, high_watermark=self.high_watermark
        )
        self.log.clean_end = clean_end

    def copy(self) -> PartitionLog:
        """A follower's log with all batches."""
        copy = open_log(MemoryDisk(), self.log.config)
        copy.append_as_follower(split(everything(on_disk(self.log))))
        return copy

    # ---- the model ----

    def rows(self) -> list[tuple[int, str, str | None, Stored | None]]:
        """Offset, key, value and marker of each record; no marker: without a transaction, or open."""
        rows = []
        for number, each in enumerate(self.stored):
            same = (s for s in self.stored[number:] if s.producer_id == each.producer_id and s.commit is not None)
            marker = next(same, None) if each.is_transactional else None
            rows += [(each.base + n, key, value, marker) for n, (key, value) in enumerate(each.pairs)]
        return rows

    def stable_end(self) -> int:
        """The watermark, or the first offset of a transaction without a marker below it."""
        starts: dict[int, int] = {}
        held = []
        for each in self.stored:
            if each.is_transactional and each.commit is None:
                starts.setdefault(each.producer_id, each.base)
            elif each.commit is not None and each.producer_id in starts:
                start = starts.pop(each.producer_id)
                held += [start] if each.base >= self.high_watermark else []
        return min([self.high_watermark, *starts.values(), *held])

    def committed(self) -> dict[int, tuple[str, str | None]]:
        """What ``read_committed`` may see below the last stable offset."""
        end = self.stable_end()
        transactional = {s.base + n for s in self.stored if s.is_transactional for n in range(len(s.pairs))}
        return {
            offset: (key, value)
            for offset, key, value, marker in self.rows()
            if offset < end and (offset not in transactional or (marker is not None and marker.commit))
        }

    # ---- what is compared ----

    def check(self) -> None:
        """The log, a copy of it, and its files say what the model says."""
        expected, end = self.committed(), self.stable_end()
        aborted = {offset for offset, _, _, marker in self.rows() if marker is not None and not marker.commit}
        copy = self.copy()
        for log in (self.log, copy):
            assert log.stable_end(self.high_watermark) == end
            seen = visible(log, end)
            assert {offset: expected.get(offset) for offset in seen} == seen
            assert latest(seen) == latest_of(expected, latest(seen))
            alive = {k: v for k, v in visible(log, log.end_offset, committed=False).items() if k not in aborted}
            rows = {offset: (key, value) for offset, key, value, _ in self.rows() if offset not in aborted}
            assert latest(alive) == latest_of(rows, latest(alive))
        # One that has expired may come back with a restart, from an older snapshot and without its last batch.
        ids = set(self.names.values())
        active = [each for each in self.log.producers.active() if each.producer_id in ids]
        known = {each.producer_id: comparable(each) for each in active}
        rebuilt = {each.producer_id: comparable(each) for each in copy.producers.active()}
        assert {producer_id: rebuilt.get(producer_id) for producer_id in known} == known
        for number in self.names:
            model, entry = self.producer(number), known.get(self.names[number])
            assert entry is None or entry.producer_epoch == model.epoch
            assert (entry is not None and entry.current_txn_start_offset >= 0) == model.is_open


async def no_pause(size: int) -> None:
    assert size > 0


def comparable(entry: ProducerEntry) -> ProducerEntry:
    """Of an open transaction the markers before it may be gone, and with them the coordinator's epoch."""
    is_open = entry.current_txn_start_offset >= 0
    return entry._replace(coordinator_epoch=-1 if is_open else entry.coordinator_epoch, last_timestamp=NO_TIMESTAMP)


def visible(
    log: PartitionLog, end: int, *, committed: bool = True, start: int | None = None
) -> dict[int, tuple[str, str | None]]:
    """What a consumer reads below ``end`` in small fetches, from ``start`` or the log's: offset -> key and value."""
    found: dict[int, tuple[str, str | None]] = {}
    offset = start = log.start_offset if start is None else start
    on_disk(log)
    while offset < end:
        part = log.read(offset, max_bytes=300, end_offset=end)
        if part.next_offset == offset:
            break
        aborted = AbortedFilter(log.aborted_transactions(offset, part.next_offset)) if committed else None
        for batch in split(b"".join(part.buffers)):
            is_aborted = aborted is not None and aborted.skips(batch)
            for record in () if is_aborted or batch.is_control else decode_batch(batch):
                if record.offset < start:
                    continue
                value = None if record.value is None else record.value.decode()
                found[record.offset] = (record.key or b"").decode(), value
        offset = part.next_offset
    return found


def latest(rows: dict[int, tuple[str, str | None]]) -> View:
    return {key: (offset, value) for offset, (key, value) in sorted(rows.items())}


def latest_of(rows: dict[int, tuple[str, str | None]], seen: View) -> View:
    """The last record of each key; a tombstone that is not ``seen`` may be gone."""
    return {key: last for key, last in latest(rows).items() if last[1] is not None or key in seen}
