"""Histories of two replicas with idempotent and transactional producers: duplicates, markers, what readers see (KIP-98).

As ``compacted_replicas.py``: leaders change, disks forget, and both compact; here they delete as well, producers expire,
and syncs, deletions and rounds of compaction are interrupted by anything else. The line of the present leader is the
model, each batch as it was appended; a naive replay of it says what is known of producers, and what is committed.

A replica that has lost its log, or begun it again at the leader's start, knows producers from there on only (KIP-360;
docs/limits.md). Time passes while both replicas have everything that is committed, and a sync covers it: none is behind
by ``delete.retention.ms``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, NamedTuple

from minikafka.config import TopicConfig
from minikafka.errors import (
    InvalidProducerEpoch,
    OutOfOrderSequenceNumber,
    TransactionCoordinatorFenced,
)
from minikafka.log.compaction import MAP_ENTRY_SIZE
from minikafka.log.names import SNAPSHOT, TRANSACTION_INDEX
from minikafka.log.partition_log import PartitionLog
from minikafka.types import NO_OFFSET, Offset
from minikafka.wire.batch import PIPELINED, PLAIN, RecordBatch, split, verify_client
from minikafka.wire.markers import EndTransaction, marker_batch, marker_of
from minikafka.wire.records import Record, build_batch, decode_batch
from tests.rules.cleaned_histories import visible
from tests.rules.compacted_replicas import KEYS, CompactedReplicas, Replica, no_pause
from tests.rules.log_words import ORDERS, TIME, everything, on_disk
from tests.rules.memory_disk import MemoryDisk, run
from tests.rules.transaction_replay import Known, Replayed, replayed

STEPS = 150
DELETE_RETENTION_MS = 1000
CONFIGS = [
    TopicConfig(
        cleanup_policy=policy,
        segment_bytes=400,
        index_interval_bytes=100,
        delete_retention_ms=DELETE_RETENTION_MS,
        retention_bytes=2500,
    )
    for policy in ("compact", "compact,delete", "delete")
]
TRANSACTIONAL = (1, 2, 3)
IDEMPOTENT = (4, 5)
MANY_KEYS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMN"
"""So many that compacted segments stay apart."""
RAISING = 2
"""The epoch of this producer rises with each transaction (transaction version 2)."""
WINDOW_COUNT = 5

Rows = dict[Offset, tuple[str, str | None]]


class Written(NamedTuple):
    """One batch of the leader's line."""

    offset: Offset
    stored: RecordBatch
    sent: RecordBatch
    rows: Rows


class ProducerReplica(Replica):
    """A replica that knows a high watermark."""

    watermark = saved_watermark = 0
    began = 0
    """Of what stands below nothing need be known of producers."""
    saved_clean_end: Offset | None = None
    checked: tuple[object, ...] = ()
    """Its state when it was last checked."""
    work: Coroutine[Any, Any, Any] | None = None
    """What is under way: a sync, a deletion or a round of compaction."""

    def _open(self, *, clean: bool = False, **options: Any) -> PartitionLog:
        if not self.disk.exists(str(ORDERS)):
            self.saved_watermark = self.began = 0
            self.saved_clean_end = None
        log = super()._open(clean=clean, high_watermark=self.saved_watermark, events=self._heard, **options)
        self.watermark = max(log.start_offset, min(self.saved_watermark, log.end_offset))
        log.clean_end = self.saved_clean_end
        return log

    def _heard(self, kind: str, **facts: Any) -> None:
        if kind == "log_restarted":
            self.began = facts["new"]

    def checkpoint(self) -> None:
        super().checkpoint()
        self.saved_watermark = self.watermark
        self.saved_clean_end = self.log.clean_end

    def stop_and_start(self) -> None:
        if self.work is not None:
            self.work.close()  # a task that is canceled
        super().stop_and_start()

    def power_cut(self) -> None:
        promised = self.log.synced_end
        super().power_cut()
        if not self.log.size_bytes and promised < self.log.start_offset:
            self.began = self.log.start_offset  # nothing was left of what stood below its start

    def damage(self) -> None:
        """The newest snapshots of producers are lost, or an index of transactions is damaged: the batches tell the same."""
        if self.log._store.segments[0].base_offset:
            return  # its snapshot alone tells what stood before the log
        snapshots = [path for path in sorted(self.disk.inodes) if path.endswith(SNAPSHOT)]
        indexes = [path for path in sorted(self.disk.inodes) if path.endswith(TRANSACTION_INDEX)]
        if snapshots and self._random.random() < 0.7:
            for path in snapshots[self._random.randrange(len(snapshots)) :]:
                self.disk.remove(path)
        elif indexes:
            path = self._random.choice(indexes)
            data = self.disk.read_file(path)
            self.disk.remove(path)
            self.disk.replace_file(path, data[:-1])
        self.kill()

    def lose_disk(self) -> None:
        self.disk, self._point, self._saved_start = MemoryDisk(), 0, 0
        self.log = self._open()

    def cleaning(self) -> Coroutine[Any, Any, Any]:
        """A round of compaction, maybe with room for few keys."""
        dirty = self.log.dirty_range(high_watermark=self.watermark, now_ms=self.now_ms)
        keys = self._random.choice((2, 100, 100))
        return self.log.clean(dirty, memory_bytes=keys * MAP_ENTRY_SIZE, clock_ms=lambda: self.now_ms, pause=no_pause)

    async def deleting(self, *, leads: bool) -> None:
        """What retention lets go; of a follower only what its leader has let go."""
        log = self.log
        expired = log.expired_segments(self.now_ms, self.watermark)
        if not leads:
            expired = [segment for segment in expired if segment.next_offset <= log.start_offset]
        for path in await log.delete_segments(expired):
            self.disk.remove(path)

    def delete_old(self, high_watermark: Offset) -> None:
        if self.work is None:
            run(self.deleting(leads=False))


def rows_of(batch: RecordBatch) -> Rows:
    """Its records."""
    return {
        record.offset: ((record.key or b"").decode(), None if record.value is None else record.value.decode())
        for record in (() if batch.is_control else decode_batch(batch))
    }


def facts_of(batch: RecordBatch) -> tuple[Any, ...]:
    """What compaction never changes."""
    return (
        batch.leader_epoch,
        batch.last_offset,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.is_transactional,
        batch.is_control,
    )


def held(replay: Replayed, high_watermark: Offset, *, decided_end: Offset) -> Offset:
    """The last stable offset, if transactions whose markers are below ``decided_end`` are decided."""
    undecided = [first for _, first, marker, _ in replay.ended if marker >= decided_end]
    return min([high_watermark, *replay.open(), *undecided])


class ProducerReplicas(CompactedReplicas):
    """One seed's history."""

    leader: ProducerReplica
    follower: ProducerReplica
    line: list[Written]  # type: ignore[assignment]

    def __init__(self, seed: int) -> None:
        self.random = Random(f"producers/{seed}")
        self.readers = Random(seed)
        self.config = self.random.choice(CONFIGS)
        self.leader, self.follower = (ProducerReplica(name, self.random, self.config) for name in "AB")
        self.line = []
        self.committed_end = 0
        self.epoch = 0
        self.now_ms = TIME
        self.coordinator_epoch = 0
        numbers = (*TRANSACTIONAL, *IDEMPOTENT)
        self.numbers = self.random.choice((numbers, numbers, self.random.sample(numbers, 2)))
        """Which producers write."""
        self.keys = self.random.choice((KEYS, KEYS, MANY_KEYS))
        self.names = {number: number for number in numbers}
        """Number of a producer -> its producer id now."""
        self.bare: dict[Offset, int] = {}
        """Offset of a marker -> when a replica first had it without data of its transaction."""
        self.is_away = False
        """The follower is out of the ISR, and hears nothing."""
        self.abandoned: list[Coroutine[Any, Any, Any]] = []
        """What was under way in processes that are gone."""
        self.leader.log.assign_epoch(0, 0)

    def actions(self) -> list[Callable[[], None]]:
        """A part of them: each history has much of some, and nothing of others."""
        everything_else = (
            super().actions()
            + [self.end] * 8
            + [self.retry] * 6
            + [self.repeat_marker] * 2
            + [self.expire] * 2
            + [self.pass_time] * 2
            + [self.quiet_time] * 5
            + [self.old_transactions] * 2
            + [self.retain] * 2
            + [self.meanwhile] * 8
            + [self.lose_disk]
            + [lambda: self.restart("damage")]
            + [self.leave] * 2
            + [self.come_back] * 4
        )
        usual = [self.append] * 3 + [self.copy] * 4 + [self.end] * 3 + [self.come_back]
        return usual + self.random.sample(everything_else, 20)

    # ---- what happens ------------------------------------------------------------------------------------------------

    def drawn(self) -> ProducerReplica:
        return self.random.choice((self.leader, self.follower))

    def known(self, number: int, *, since: Offset = 0) -> Known | None:
        """What a producer knows of itself: all that is in the line; or what is known ``since`` an offset."""
        return replayed(each.stored.data for each in self.line if each.offset >= since).producers.get(
            self.names[number]
        )

    def append(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            number = self.random.choice((0, *self.numbers))
            if not number:
                self._append(self._batch(producer_id=-1, producer_epoch=-1, base_sequence=-1))
                continue
            known = self.known(number)
            epoch, sequence = (known.epoch, known.sequence + 1) if known is not None else (0, 0)
            if number in IDEMPOTENT and self.random.random() < 0.1:
                epoch, sequence = epoch + 1, 0
            batch = self._batch(
                producer_id=self.names[number],
                producer_epoch=epoch,
                base_sequence=sequence,
                transactional=number in TRANSACTIONAL,
            )
            try:
                self._append(batch)
            except OutOfOrderSequenceNumber:
                # Only a marker is left of it (as in Kafka; docs/limits.md).
                known = self.known(number, since=self.leader.began)
                assert known is not None
                assert known.sequence < 0, f"{batch} is refused"

    def _batch(self, *, transactional: bool = False, **options: Any) -> RecordBatch:
        records = [
            Record(
                0,
                TIME,
                key=self.random.choice(self.keys).encode(),
                value=None if self.random.random() < 0.1 else b"v" * self.random.randint(0, 40),
            )
            for _ in range(self.random.randint(1, 3))
        ]
        return verify_client(build_batch(records, transactional=transactional, **options), transactional=transactional)

    def _append(self, sent: RecordBatch, marker: EndTransaction | None = None) -> None:
        log = self.leader.log
        guard = log.producers.begin_verification(sent) if sent.is_transactional and marker is None else None
        info = log.append_as_leader(sent, leader_epoch=self.epoch, wall_ms=TIME, marker=marker, guard=guard)
        assert not info.duplicate, f"{sent} was never in the line"
        stored = RecordBatch.of(b"".join(log.read(info.base_offset, max_bytes=1).buffers))
        self.line.append(Written(info.base_offset, stored, sent, rows_of(stored)))

    def end(self) -> None:
        """A marker; without an open transaction it fences."""
        number = self.random.choice(TRANSACTIONAL)
        known = self.known(number) or Known(0)
        if known.start < 0 and self.random.random() < 0.8:
            return
        self.coordinator_epoch += self.random.random() < 0.2
        is_raised = number == RAISING or self.random.random() < 0.2
        marker = EndTransaction(
            self.names[number],
            known.epoch + is_raised,
            self.random.random() < 0.5,
            self.coordinator_epoch,
            2 if number == RAISING else 0,
        )
        self._append(RecordBatch.of(marker_batch(marker, timestamp_ms=TIME)), marker)

    def repeat_marker(self) -> None:
        """A late copy of a marker ends no other transaction (version 2)."""
        pid = self.names[RAISING]
        markers = [each for each in self.line if each.stored.producer_id == pid and each.stored.is_control]
        if not markers:
            return
        found = self.random.choice(markers[-2:])
        marker = marker_of(found.stored)
        assert marker is not None
        known = self.known(RAISING)
        assert known is not None
        try:
            self._append(found.sent, marker._replace(transaction_version=2))
        except (InvalidProducerEpoch, TransactionCoordinatorFenced):
            assert known.start >= 0 or found is not markers[-1] or marker.coordinator_epoch < self.coordinator_epoch
        else:
            assert known.start < self.leader.began, f"{marker} ended another transaction"

    def retry(self) -> None:
        """A batch of the line is sent again: it is not appended."""
        leader = self.leader
        pids = set(self.names.values())
        batches = [each for each in self.line if each.stored.producer_id in pids and not each.stored.is_control]
        if not batches:
            return
        found = self.random.choice(batches[-10:])
        pid = found.stored.producer_id
        same = [each for each in batches if each.stored.producer_id == pid]
        known = replayed(each.stored.data for each in self.line).producers[pid]
        last = max(known.offset, same[-1].offset) if known.sequence >= 0 else self._last_marker(pid)
        if last < leader.began or found not in same[-WINDOW_COUNT:]:
            return
        end, sequencing = leader.log.end_offset, self.random.choice((PLAIN, PIPELINED))
        is_newest = found is same[-1] and found.stored.producer_epoch == known.epoch
        try:
            info = leader.log.append_as_leader(found.sent, leader_epoch=self.epoch, wall_ms=TIME, sequencing=sequencing)
        except InvalidProducerEpoch:
            assert found.stored.producer_epoch < known.epoch
        except OutOfOrderSequenceNumber:
            # A process that has begun again remembers the last batch only.
            assert sequencing == PLAIN
            assert not is_newest, f"{found.stored} is refused"
        else:
            assert info.duplicate, f"{found.stored} is there twice"
            assert info.base_offset in ((found.offset,) if is_newest else (found.offset, NO_OFFSET))
        assert leader.log.end_offset == end

    def _last_marker(self, pid: int) -> Offset:
        return max(each.offset for each in self.line if each.stored.producer_id == pid and each.stored.is_control)

    def copy(self) -> None:
        leader, follower = self.leader, self.follower
        if self.is_away:
            leader.watermark = self.committed_end = leader.log.end_offset
            return
        leader.watermark = max(leader.watermark, min(leader.log.end_offset, follower.log.end_offset))
        super().copy()
        follower.watermark = max(follower.log.start_offset, min(leader.watermark, follower.log.end_offset))

    def leave(self) -> None:
        """One replica is out of the ISR: the follower, or the leader that it succeeds."""
        if not self.is_away:
            self.is_away = True
            if self.random.random() < 0.5:
                self._elect()

    def come_back(self) -> None:
        self.is_away = False
        self.agree()

    def agree(self) -> None:
        if self.is_away:
            return
        super().agree()
        follower, end = self.follower, self.follower.log.end_offset
        if follower.log.start_offset < end == self.leader.log.start_offset and self._has_strangers(follower):
            # Excluded: nothing tells it that what the leader has deleted were other records (docs/limits.md).
            follower.log.restart_at(end)

    def _has_strangers(self, replica: ProducerReplica) -> bool:
        line = {each.offset: facts_of(each.stored) for each in self.line}
        return any(line.get(batch.base_offset) != facts_of(batch) for batch in split(everything(on_disk(replica.log))))

    def change_leader(self) -> None:
        if not self.is_away:
            self._elect()

    def _elect(self) -> None:
        super().change_leader()
        # Saved at once, also in raise_start: a leader whose start goes back after a kill -9 is excluded (docs/limits.md).
        run(self.leader.save_start())

    def compact(self, replica: Replica) -> None:
        assert isinstance(replica, ProducerReplica)
        if replica.work is None and "compact" in self.config.cleanup_policy:
            run(replica.cleaning())

    def retain(self) -> None:
        if self.leader.work is None:
            run(self.leader.deleting(leads=True))

    def raise_start(self) -> None:
        """DeleteRecords, maybe into a batch and past open transactions."""
        log = self.leader.log
        end = max(log.start_offset, self.leader.watermark)
        if log.raise_start(min(end, log.start_offset + self.random.choice((1, 3, 10, end)))):
            run(self.leader.save_start())
            self.leader.delete_old(self.leader.watermark)

    def lose_disk(self) -> None:
        """The follower begins with nothing."""
        self.follower.lose_disk()
        self.agree()

    def expire(self) -> None:
        """Producers without an open transaction are forgotten, maybe by one replica; they begin again with other ids."""
        if self.follower.log.end_offset != self.leader.log.end_offset or self.is_away:
            return
        for replica in self.random.choice(((self.leader,), (self.follower,), (self.leader, self.follower))):
            for now_ms in (0, self.config.producer_id_expiration_ms):
                replica.log.expire_producers(now_ms, high_watermark=replica.watermark)
        for number in self.names:
            known = self.known(number)
            if known is not None and known.start < 0:
                self.names[number] += 100

    def pass_time(self) -> None:
        if self.follower.log.end_offset < self.committed_end or self.is_away:
            return
        self.now_ms += self.random.choice((400, DELETE_RETENTION_MS))
        for replica in (self.leader, self.follower):
            run(replica.log.sync())
            replica.now_ms = self.now_ms

    def quiet_time(self) -> None:
        """All is copied and committed, segments are full, time passes, and both replicas compact."""
        while self.follower.log.end_offset < self.leader.log.end_offset and not self.is_away:
            self.copy()
        self.copy()
        for replica in (self.leader, self.follower):
            replica.log.roll()
        self.pass_time()
        self.compact(self.leader)
        self.compact(self.follower)

    def old_transactions(self) -> None:
        """Transactions that span segments end, and go with their markers; a start then finds old snapshots only."""
        for _ in range(3):
            self.append()
            self.copy()
            for replica in (self.leader, self.follower):
                replica.log.roll()
        for _ in range(4):
            self.end()
        for _ in range(4):
            self.quiet_time()
            for replica in (self.leader, self.follower):
                self.check(replica)  # it notes since when a marker has no data
        self.restart("damage")

    def meanwhile(self) -> None:
        """A sync, a deletion or a round of compaction is under way while something else happens."""
        replica = self.drawn()
        if replica.work is not None:
            return
        log, disk = replica.log, replica.disk
        works: list[Callable[[], Coroutine[Any, Any, Any]]] = [
            log.sync,
            lambda: replica.deleting(leads=replica is self.leader),
        ]
        if "compact" in self.config.cleanup_policy:
            works += [replica.cleaning] * 3
        work = self.random.choice(works)()
        disk.held = True
        try:
            for _ in range(self.random.randint(1, 12)):
                work.send(None)
        except StopIteration:
            return
        finally:
            disk.held = False
        replica.work = work
        self.random.choice(self.actions())()
        replica.work = None
        if replica.log is log:
            run(work)
        else:
            self.abandoned.append(work)

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def check(self, replica: Replica) -> None:
        """All of it of what may lead; of a replica that lags, that it holds nothing else."""
        assert isinstance(replica, ProducerReplica)
        log = replica.log
        is_behind = log.end_offset < self.leader.log.start_offset  # it will begin again at the leader's start
        if is_behind or (self.is_away and replica is self.follower):
            return
        state = (
            *(log, log.start_offset, log.end_offset, log.size_bytes, log._store.cut_count, replica.watermark),
            *(self.epoch, self.leader.log.start_offset, self.committed_end, *log._store.segments),
        )
        if state == replica.checked:
            return  # nothing of it has changed
        replica.checked = state
        line = [each for each in self.line if each.offset < log.end_offset]
        full = replayed(each.stored.data for each in line)
        since = replayed(each.stored.data for each in line if each.offset >= replica.began)
        stored = split(everything(on_disk(log)))
        self._check_batches(replica, stored)
        self._check_markers(replica, stored, full)
        if log.end_offset < self.committed_end:
            return  # its leader may have compacted what is replaced further on; nobody reads here
        self._check_producers(replica, full, since)
        stable_end = log.stable_end(replica.watermark)
        lowest = held(full, replica.watermark, decided_end=replica.watermark)
        highest = held(since, replica.watermark, decided_end=self.committed_end)
        start = min(log.start_offset, replica.watermark)
        assert max(lowest, start) <= stable_end <= max(highest, start), (replica, lowest, stable_end, highest)
        self._check_readers(replica, full, stable_end)

    def _check_batches(self, replica: ProducerReplica, stored: list[RecordBatch]) -> None:
        """Nothing but the line, or a part of it."""
        # Epochs below the leader's start are forgotten; what a replica has there goes with the next copy.
        start = max(replica.log.start_offset, self.leader.log.start_offset)
        line = {each.offset: each for each in self.line}
        for batch in stored:
            if batch.base_offset < start:
                continue
            written = line.get(batch.base_offset)
            assert written is not None, (replica, batch)
            assert facts_of(written.stored) == facts_of(batch), (replica, written, batch)
            assert rows_of(batch).items() <= written.rows.items(), (replica, batch)

    def _check_producers(self, replica: ProducerReplica, full: Replayed, since: Replayed) -> None:
        """As a replay says, of the line or from where the replica began."""
        entries = {each.producer_id: each for each in replica.log.producers.active()}
        for pid in self.names.values():
            entry, whole, part = entries.get(pid), full.producers.get(pid), since.producers.get(pid)
            if entry is None:
                # A marker that did not begin its epoch may be gone, and the data of that epoch is below (as in Kafka).
                is_below = part is not None and whole is not None and part.sequence < 0 <= whole.sequence
                assert part is None or is_below, (replica, pid, part)
                continue
            assert whole is not None, (replica, entry)
            replays = [each for each in (whole, part) if each is not None]
            found = entry.producer_epoch, entry.last_sequence, entry.last_offset, entry.current_txn_start_offset
            assert any(
                found[0] == each.epoch and found[1] in (whole.sequence, each.sequence) and found[3] == each.start
                for each in replays
            ), (replica, entry, replays)
            assert found[1] < 0 or found[2] == whole.offset, (replica, entry, replays)
            # A marker that ended nothing, or whose data is gone, may be gone; but not one that began an epoch.
            assert entry.coordinator_epoch <= whole.coordinator, (replica, entry, replays)
            if whole.sequence < 0 and part is not None:
                assert entry.coordinator_epoch == part.coordinator, (replica, entry, replays)

    def _check_markers(self, replica: ProducerReplica, stored: list[RecordBatch], full: Replayed) -> None:
        """A marker stays while data of its transaction is there, and ``delete.retention.ms`` longer (KIP-534)."""
        ends = {batch.base_offset for batch in stored if batch.is_control and batch.record_count}
        data = [(batch.producer_id, batch.base_offset) for batch in stored if batch.is_transactional]
        for pid, first, marker, _ in full.ended:
            has_data = any(pid == each and first <= offset < marker for each, offset in data)
            if marker in ends:
                if not has_data:
                    self.bare.setdefault(marker, self.now_ms)
            elif marker >= replica.log.start_offset:
                assert not has_data, (replica, pid, marker)
                assert self.now_ms >= self.bare[marker] + DELETE_RETENTION_MS, (replica, pid, marker)

    def _check_readers(self, replica: ProducerReplica, full: Replayed, stable_end: Offset) -> None:
        """``read_committed`` shows what is committed, and nothing else."""
        log = replica.log
        rows: Rows = {}
        for each in self.line:
            rows |= each.rows
        start = max(log.start_offset, self.leader.log.start_offset)
        whole = replayed(each.stored.data for each in self.line)
        decided = held(whole, self.committed_end, decided_end=self.committed_end)
        # A leader may have compacted what is replaced further on before the replica copied it.
        latest = {rows[offset][0]: offset for offset in sorted(whole.committed) if offset < decided}
        for begin in {start, self.readers.randint(start, max(start, stable_end))}:
            expected = {offset: rows[offset] for offset in sorted(full.committed) if begin <= offset < stable_end}
            seen = visible(log, stable_end, start=begin)
            assert seen.items() <= expected.items(), (replica, seen.items() - expected.items())
            missing = expected.items() - seen.items()
            if "compact" in self.config.cleanup_policy:
                last = {key: (offset, value) for offset, (key, value) in expected.items()}
                missing = {
                    (offset, (key, value))
                    for key, (offset, value) in last.items()
                    if offset not in seen and value is not None and offset >= latest.get(key, 0)
                }
            assert not missing, (replica, missing)
