"""A model of the other two voters of a quorum of three, and of what the first one has said to them.

The two are a majority with perfect disks: they have the same log and agree on each leader. So they always have what is
committed, whatever the first voter does, and any prefix of their log that it acknowledges may be committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

from minikafka import errors as kafka
from minikafka.quorum.files import encode_snapshot
from minikafka.quorum.records import leader_change_batch
from minikafka.types import METADATA_PARTITION, METADATA_TOPIC, NO_NODE, Epoch, EpochEnd, NodeId, Offset
from minikafka.wire import messages as m
from minikafka.wire.batch import RecordBatch, split, stamped
from minikafka.wire.records import Record, build_batch, decode_batch
from tests.rules.log_words import TIME

ME: NodeId = 1
OTHERS: tuple[NodeId, NodeId] = (2, 3)
CLUSTER_ID = "voter-histories"


class Breach(AssertionError):
    """A promise of the voter is broken."""


@dataclass(frozen=True)
class Entry:
    """One batch of a metadata log."""

    base: Offset
    end: Offset
    epoch: Epoch
    data: bytes

    @cached_property
    def payloads(self) -> tuple[bytes, ...]:
        """Empty for a control batch."""
        batch = RecordBatch.of(self.data)
        return () if batch.is_control else tuple(record.value or b"" for record in decode_batch(batch))

    @classmethod
    def of(cls, batch: RecordBatch) -> Entry:
        return cls(batch.base_offset, batch.next_offset, batch.leader_epoch, bytes(batch.data))


@dataclass
class Promises:
    """What has left the voter in all its lives, and what is committed."""

    epoch: Epoch = 0
    """The highest that it has named."""
    votes: dict[Epoch, NodeId] = field(default_factory=dict)
    acknowledged: list[Entry] = field(default_factory=list)
    """Its last good fetch was from the end of these, unless a leader had it cut them off since."""
    written: dict[tuple[Epoch, Offset], Entry] = field(default_factory=dict)
    """The batch of each leader's epoch that other voters may know."""
    ever: set[Entry] = field(default_factory=set)
    """All batches that were ever written."""
    committed: dict[Offset, tuple[Epoch, tuple[bytes, ...]]] = field(default_factory=dict)
    """The records of each committed batch that has any."""

    @property
    def acknowledged_end(self) -> EpochEnd:
        last = self.acknowledged[-1] if self.acknowledged else None
        return EpochEnd(0, 0) if last is None else EpochEnd(last.epoch, last.end)

    def speaks(self, epoch: Epoch) -> None:
        self.epoch = max(self.epoch, epoch)

    def vote(self, epoch: Epoch, candidate: NodeId) -> None:
        """It has given its vote, or has requested votes for itself."""
        given = self.votes.setdefault(epoch, candidate)
        if given != candidate:
            raise Breach(f"voted twice in epoch {epoch}: for {given} and for {candidate}")

    def cut(self, end: Offset) -> None:
        """A leader has it cut its log there."""
        self.acknowledged = [entry for entry in self.acknowledged if entry.end <= end]

    def write(self, entries: Sequence[Entry]) -> None:
        """These batches are in a leader's log."""
        self.ever.update(entries)
        for entry in entries:
            known = self.written.setdefault((entry.epoch, entry.base), entry)
            if known != entry:
                raise Breach(f"epoch {entry.epoch} has written two batches at {entry.base}")

    def commit(self, base: Offset, epoch: Epoch, payloads: Sequence[bytes]) -> None:
        found = (epoch, tuple(payloads))
        known = self.committed.setdefault(base, found)
        if known != found:
            raise Breach(f"committed at {base}: {found}, and before {known}")

    def state_at(self, end: Offset) -> list[bytes]:
        """The replay of all that is committed below ``end``."""
        found = sorted((base, payloads) for base, (_, payloads) in self.committed.items() if base < end)
        return [payload for _, payloads in found for payload in payloads]


class OtherVoters:
    """Voters 2 and 3."""

    def __init__(self, random: Random, promises: Promises) -> None:
        self.random = random
        self.promises = promises
        self.log: list[Entry] = []
        self.start: Offset = 0
        """A fetch from below gets a snapshot."""
        self.snapshots: tuple[EpochEnd, ...] = ()
        self.epoch: Epoch = 0
        self.leader: NodeId = NO_NODE
        self.leaders: dict[Epoch, NodeId] = {}
        self.votes: dict[tuple[NodeId, Epoch], NodeId] = {}
        self.epoch_start: Offset = 0
        self.high_watermark: Offset = 0
        self.claimed_end: Offset = 0
        """To the voter as leader they have said that they hold so much."""
        self.are_patient = True
        """They answer each request."""
        self.values = 0
        self._news = asyncio.Event()

    @property
    def end(self) -> EpochEnd:
        """(0, 0): the log is empty."""
        return EpochEnd(self.log[-1].epoch, self.log[-1].end) if self.log else EpochEnd(0, 0)

    @property
    def lead(self) -> bool:
        return self.leader in OTHERS

    def observe(self, epoch: Epoch) -> None:
        if epoch > self.epoch:
            self.epoch, self.leader = epoch, NO_NODE
            self._ring()

    def _ring(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # ---- what they do ----

    def elect(self) -> bool:
        """One of them stands; the other may have voted already. Return True if it leads now."""
        candidate, epoch = self.random.choice(OTHERS), self.epoch
        if epoch in self.leaders or not epoch or self.random.random() < 0.5:
            epoch += 1
        votes = [self.votes.setdefault((node, epoch), candidate) for node in OTHERS]
        self.observe(epoch)
        if (*votes, self.promises.votes.get(epoch)).count(candidate) < 2:
            return False
        if self.leaders.setdefault(epoch, candidate) != candidate:
            raise Breach(f"two leaders in epoch {epoch}: {candidate} and {self.leaders[epoch]}")
        if self.random.random() < 0.5:
            self._forget()
        self.leader, self.epoch_start = candidate, self.end.end_offset
        self._append(leader_change_batch(candidate, voters=(ME, *OTHERS), granting=OTHERS, timestamp_ms=TIME))
        return True

    def _forget(self) -> None:
        """The new leader lacks some of what only the former one had: nobody has said that it holds that."""
        kept = max(self.high_watermark, self.promises.acknowledged_end.end_offset, self.claimed_end)
        free = [entry for entry in self.log if entry.base >= kept]
        if free:
            self.cut(self.random.choice(free).base)

    def cut(self, end: Offset) -> None:
        if end < self.high_watermark:
            raise Breach(f"cut at {end}, but committed up to {self.high_watermark}")
        self.log = [entry for entry in self.log if entry.end <= end]
        self.claimed_end = min(self.claimed_end, end)

    def write(self) -> None:
        """As the leader."""
        for _ in range(self.random.randint(1, 4) if self.lead else 0):
            values = []
            for _ in range(self.random.randint(1, 2)):
                self.values += 1
                values.append(f"o{self.values}".encode() + b"x" * self.random.randint(0, 60))
            self._append(build_batch([Record(0, TIME, value=value) for value in values]))

    def _append(self, batch: bytes) -> None:
        data = b"".join(stamped(RecordBatch.of(batch), base_offset=self.end.end_offset, leader_epoch=self.epoch))
        self.log.append(Entry.of(RecordBatch.of(data)))
        self.promises.write(self.log[-1:])
        self._ring()

    def commit(self) -> None:
        """As the leader: each has what the other has."""
        ends = [entry.end for entry in self.log if entry.end > max(self.epoch_start, self.high_watermark)]
        if self.lead and ends:
            self.raise_high_watermark(self.random.choice((ends[-1], *ends)))

    def raise_high_watermark(self, end: Offset) -> None:
        old, self.high_watermark = self.high_watermark, max(self.high_watermark, end)
        for entry in self.log:
            if old <= entry.base and entry.end <= end and entry.payloads:
                self.promises.commit(entry.base, entry.epoch, entry.payloads)
        self._ring()

    def take_snapshot(self) -> None:
        """As the leader, whose log then begins at the one before."""
        last = max((entry for entry in self.log if entry.end <= self.high_watermark), key=_end, default=None)
        if self.lead and last is not None and last.end not in [each.end_offset for each in self.snapshots]:
            self.snapshots = (*self.snapshots[-1:], EpochEnd(last.epoch, last.end))
            self.start = self.snapshots[0].end_offset

    def run_ahead(self) -> None:
        """As the leader, so far that a voter which has not heard of it yet needs a snapshot."""
        for _ in range(2):
            self.write()
            self.commit()
            self.take_snapshot()

    def copy(self, batches: Sequence[RecordBatch]) -> None:
        """Append what the voter has sent as the leader."""
        for batch in batches:
            entry = Entry.of(batch)
            if entry.base != self.end.end_offset:
                raise Breach(f"sent a batch at {entry.base} to a log that ends at {self.end.end_offset}")
            self.promises.write([entry])
            self.log.append(entry)

    # ---- what they answer ----

    async def answer(self, node: NodeId, request: Any) -> Any:
        """The response of ``node``; most often none while they are not patient."""
        if self.random.random() < (0.05 if self.are_patient else 0.8):
            await asyncio.Event().wait()
        match request:
            case m.VoteRequest():
                return self._on_vote(node, request)
            case m.BeginQuorumEpochRequest():
                return self._on_begin_epoch(request)
            case m.EndQuorumEpochRequest():
                self.promises.speaks(request.leader_epoch)
                if (self.leader, self.epoch) == (ME, request.leader_epoch):
                    self.leader = NO_NODE
                return m.EndQuorumEpochResponse(leader_id=self.leader, leader_epoch=self.epoch)
            case m.FetchRequest():
                return await self._on_fetch(node, request)
            case m.FetchSnapshotRequest():
                return self._on_fetch_snapshot(node, request)
        raise AssertionError(request)

    def _on_vote(self, node: NodeId, request: m.VoteRequest) -> m.VoteResponse:
        promises, epoch = self.promises, request.candidate_epoch
        promises.speaks(epoch)
        claimed = EpochEnd(request.last_epoch, request.last_epoch_end_offset)
        granted = epoch >= self.epoch and claimed >= self.end
        if request.pre_vote:
            granted = granted and (self.leader == NO_NODE or self.random.random() < 0.3)
        else:
            promises.vote(epoch, ME)
            self.observe(epoch)
            granted = granted and self.leader == NO_NODE and self.votes.setdefault((node, epoch), ME) == ME
        return m.VoteResponse(leader_id=self.leader, leader_epoch=self.epoch, vote_granted=granted)

    def _on_begin_epoch(self, request: m.BeginQuorumEpochRequest) -> m.BeginQuorumEpochResponse:
        epoch = request.leader_epoch
        self.promises.speaks(epoch)
        if ME not in [self.votes.get((node, epoch)) for node in OTHERS]:
            raise Breach(f"leads epoch {epoch} without a majority's votes")
        if self.leaders.setdefault(epoch, ME) != ME:
            raise Breach(f"two leaders in epoch {epoch}: 1 and {self.leaders[epoch]}")
        self.observe(epoch)
        if epoch == self.epoch:
            self.leader = ME
        return m.BeginQuorumEpochResponse(leader_id=self.leader, leader_epoch=self.epoch)

    async def _on_fetch(self, node: NodeId, request: m.FetchRequest) -> m.FetchResponse:
        asked = request.partitions[0]
        self.promises.speaks(asked.current_leader_epoch)
        partition = self._fetched(node, asked)
        if not (partition.error_code or partition.records or partition.diverging_epoch or partition.snapshot_id):
            try:
                async with asyncio.timeout(request.max_wait_ms / 1000):
                    await self._news.wait()
            except TimeoutError:
                pass
            partition = self._fetched(node, asked, again=True)
        return m.FetchResponse(partitions=(partition,))

    def _fetched(self, node: NodeId, asked: m.FetchPartition, *, again: bool = False) -> m.FetchedPartition:
        """``again``: it was held, and its sender may have ended since (KAFKA-8400)."""
        facts: dict[str, Any] = {
            "topic": METADATA_TOPIC,
            "partition": METADATA_PARTITION.partition,
            "current_leader": m.CurrentLeader(leader_id=self.leader, leader_epoch=self.epoch),
        }
        if (self.leader, self.epoch) != (node, asked.current_leader_epoch):
            return m.FetchedPartition.with_error(kafka.NotLeaderOrFollower("no leader of that epoch"), **facts)
        facts |= {"high_watermark": self.high_watermark, "log_start_offset": self.start}
        asked_end = EpochEnd(asked.last_fetched_epoch, asked.fetch_offset)
        oldest = self.snapshots[0] if self.start else EpochEnd(0, 0)
        if asked_end != oldest:
            if asked_end.end_offset < self.start or asked_end.epoch < oldest.epoch:
                newest = self.snapshots[-1]
                self.promises.cut(newest.end_offset)
                return m.FetchedPartition(snapshot_id=_on_the_wire(newest), **facts)
            end = self.end_of(asked_end.epoch)
            if asked_end.end_offset and end < asked_end:
                self.promises.cut(end.end_offset)
                return m.FetchedPartition(diverging_epoch=_on_the_wire(end), **facts)
        if not again:
            self._acknowledged(asked_end)
        entries = [entry for entry in self.log if entry.base >= asked_end.end_offset]
        sent = tuple(entry.data for entry in entries[: self.random.randint(1, 4)])
        return m.FetchedPartition(records=sent, **facts)

    def _acknowledged(self, end: EpochEnd) -> None:
        """The voter has all below ``end``, by its own claim: it counts as durable from now on."""
        held = [entry for entry in self.log if entry.end <= end.end_offset]
        missing = [entry for entry in self.promises.acknowledged if entry not in held]
        if missing:
            raise Breach(f"fetches from {end}, but has acknowledged {missing[-1]}")
        self.promises.acknowledged = held

    def end_of(self, epoch: Epoch) -> EpochEnd:
        """The last epoch up to ``epoch`` and its end; all that is there is of later ones: where the log begins."""
        held = [entry for entry in self.log if entry.end > self.start and entry.epoch <= epoch]
        return EpochEnd(held[-1].epoch, held[-1].end) if held else EpochEnd(epoch, self.start)

    def _on_fetch_snapshot(self, node: NodeId, request: m.FetchSnapshotRequest) -> m.FetchSnapshotResponse:
        leader = m.CurrentLeader(leader_id=self.leader, leader_epoch=self.epoch)
        wanted = EpochEnd(request.snapshot_id.epoch, request.snapshot_id.end_offset)
        if (self.leader, self.epoch) != (node, request.current_leader_epoch) or wanted not in self.snapshots:
            return m.FetchSnapshotResponse.with_error(kafka.SnapshotNotFound("none"), current_leader=leader)
        data = b"".join(encode_snapshot(wanted, self.promises.state_at(wanted.end_offset), timestamp_ms=TIME))
        part = data[request.position : request.position + self.random.randint(100, 1000)]
        return m.FetchSnapshotResponse(
            snapshot_id=request.snapshot_id,
            size=len(data),
            position=request.position,
            current_leader=leader,
            unaligned_records=(part,),
        )


def _end(entry: Entry) -> Offset:
    return entry.end


def _on_the_wire(end: EpochEnd) -> m.EpochEndOffset:
    return m.EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)


def entries_of(data: bytes) -> list[Entry]:
    """All batches in ``data``."""
    return [Entry.of(batch) for batch in split(data)]
