"""A quorum without a loop: a metadata log in memory, and a player that carries messages between members by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from minikafka.config import BrokerConfig
from minikafka.log.tail import LogSlice
from minikafka.quorum import fetching, voting
from minikafka.quorum.core import Envelope, QuorumCore, Ready
from minikafka.quorum.fetching import FetchSnapshot
from minikafka.quorum.files import QuorumState
from minikafka.quorum.roles import Leader
from minikafka.replication.follower import CutTo, Extend
from minikafka.types import UNDEFINED_EPOCH_END, Epoch, EpochEnd, NodeId, Offset
from minikafka.wire.batch import RecordBatch, stamped
from minikafka.wire.messages import BeginQuorumEpochRequest, EndQuorumEpochRequest, FetchRequest, VoteRequest
from minikafka.wire.records import Record, build_batch, decode_batch

CLUSTER = "the-cluster"
WALL_MS = 1_700_000_000_000


class MemoryLog:
    """What the quorum needs of a PartitionLog, with a sync that is an ordinary call."""

    def __init__(self, start_offset: Offset = 0) -> None:
        self.start_offset = start_offset
        self.synced_end = start_offset
        self.batches: list[RecordBatch] = []

    @property
    def end_offset(self) -> Offset:
        return self.batches[-1].next_offset if self.batches else self.start_offset

    @property
    def last_epoch(self) -> Epoch:
        return self.batches[-1].leader_epoch if self.batches else -1

    def append_as_leader(self, batch: RecordBatch, *, leader_epoch: Epoch, wall_ms: int) -> None:
        data = b"".join(stamped(batch, base_offset=self.end_offset, leader_epoch=leader_epoch))
        self.batches.append(RecordBatch.of(data))

    def append_as_follower(self, batches: Sequence[RecordBatch]) -> None:
        for batch in batches:
            assert batch.base_offset == self.end_offset
            self.batches.append(RecordBatch.of(bytes(batch.data)))

    def read(self, offset: Offset, *, max_bytes: int, end_offset: Offset) -> LogSlice:
        found = [batch for batch in self.batches if offset <= batch.base_offset and batch.next_offset <= end_offset]
        return LogSlice(tuple(batch.data for batch in found), 0, offset, end_offset)

    def end_offset_for(self, epoch: Epoch) -> EpochEnd:
        known = sorted({batch.leader_epoch for batch in self.batches})
        if epoch == self.last_epoch:
            return EpochEnd(epoch, self.end_offset)
        higher = [batch.base_offset for batch in self.batches if batch.leader_epoch > epoch]
        if epoch < 0 or not higher:
            return UNDEFINED_EPOCH_END
        return EpochEnd(max((each for each in known if each <= epoch), default=epoch), higher[0])

    def truncate_to(self, offset: Offset) -> None:
        self.batches = [batch for batch in self.batches if batch.next_offset <= offset]
        self.synced_end = min(self.synced_end, self.end_offset)

    def restart_at(self, offset: Offset) -> None:
        self.batches, self.start_offset, self.synced_end = [], offset, offset

    def sync(self) -> None:
        self.synced_end = self.end_offset

    def lose_unsynced(self) -> None:
        self.truncate_to(self.synced_end)

    def texts(self, end: Offset | None = None) -> list[str]:
        """``epoch:value`` of every record below ``end``, LeaderChange as ``epoch:*``."""
        return [
            f"{batch.leader_epoch}:{'*' if batch.is_control else (record.value or b'').decode()}"
            for batch in self.batches
            if end is None or batch.next_offset <= end
            for record in decode_batch(batch)
        ]


def batch_of(*values: str) -> RecordBatch:
    """A batch as a leader gets it to append."""
    return RecordBatch.of(build_batch(Record(n, WALL_MS, value=value.encode()) for n, value in enumerate(values)))


class Journal(list[tuple[str, dict[str, Any]]]):
    """An events sink that keeps what it is told."""

    def __call__(self, kind: str, /, **facts: object) -> None:
        self.append((kind, facts))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self]


def make_core(
    me: NodeId = 1,
    *,
    voters: Sequence[NodeId] = (1, 2, 3),
    log: MemoryLog | None = None,
    state: QuorumState | None = None,
    snapshots: Sequence[EpochEnd] = (),
    now: float = 0.0,
    seed: object = 0,
    journal: Journal | None = None,
    **settings: Any,
) -> QuorumCore:
    """A member that has just started."""
    memory: Any = log or MemoryLog()
    return QuorumCore(
        me,
        voters,
        memory,
        state or QuorumState(),
        BrokerConfig(node_id=me, **settings),
        Random(f"{seed}/{me}"),
        journal if journal is not None else Journal(),
        cluster_id=CLUSTER,
        snapshots=snapshots,
        now=now,
        wall_ms=WALL_MS,
    )


class Player:
    """Several members and the wires between them. Messages arrive at once, unless a link is cut."""

    def __init__(self, count: int = 3, *, observers: int = 0, seed: object = 0) -> None:
        self.seed = seed
        self.now = 0.0
        self.voters = tuple(range(1, count + 1))
        self.nodes = tuple(range(1, count + observers + 1))
        self.logs: dict[NodeId, Any] = {node: MemoryLog() for node in self.nodes}
        self.saved: dict[NodeId, QuorumState] = {}
        self.cores: dict[NodeId, QuorumCore] = {}
        self.cuts: set[tuple[NodeId, NodeId]] = set()
        self.journal = Journal()
        self.leaders: dict[Epoch, NodeId] = {}
        self.committed: dict[Offset, str] = {}
        self.lives = 0
        for node in self.nodes:
            self.start(node)

    # ---- faults ----

    def start(self, node: NodeId) -> None:
        self.lives += 1
        self.cores[node] = make_core(
            node,
            voters=self.voters,
            log=self.logs[node],
            state=self.saved.get(node),
            now=self.now,
            seed=f"{self.seed}/{self.lives}",
            journal=self.journal,
        )
        if node in self.voters:
            self.logs[node].sync()

    def crash(self, node: NodeId, *, power: bool = False) -> None:
        del self.cores[node]
        if power:
            self.logs[node].lose_unsynced()

    def cut_off(self, node: NodeId) -> None:
        for other in self.nodes:
            self.cuts |= {(node, other), (other, node)}

    def heal(self) -> None:
        self.cuts.clear()

    # ---- messages ----

    def obey(self, node: NodeId, ready: Ready[Any]) -> Any:
        """Persist, then send what is to be sent; the answers come back before this returns."""
        self.saved[node] = ready.state
        core = self.cores[node]
        if isinstance(core.role, Leader):
            assert self.leaders.setdefault(core.epoch, node) == node, "two leaders in one epoch"
        for envelope in ready.send:
            self.send(node, envelope)
        return ready.reply

    def linked(self, source: NodeId, target: NodeId) -> bool:
        return target in self.cores and (source, target) not in self.cuts

    def send(self, node: NodeId, envelope: Envelope) -> None:
        peer, request = envelope.peer, envelope.request
        response = self.ask(peer, request) if self.linked(node, peer) else None
        if node not in self.cores:
            return
        if response is None or not self.linked(peer, node):
            self.obey(node, voting.on_no_response(self.cores[node], request, peer, self.now))
        else:
            self.obey(node, voting.on_response(self.cores[node], request, response, peer, self.now))

    def ask(self, node: NodeId, request: object) -> Any:
        core = self.cores[node]
        match request:
            case VoteRequest():
                return self.obey(node, voting.on_vote_request(core, request, self.now))
            case BeginQuorumEpochRequest():
                return self.obey(node, voting.on_begin_epoch(core, request, self.now))
            case EndQuorumEpochRequest():
                return self.obey(node, voting.on_end_epoch(core, request, self.now))
            case FetchRequest():
                answer = self.obey(node, fetching.on_fetch(core, request, self.now))
                return answer or self.obey(node, fetching.on_fetch(core, request, self.now, again=True))
        raise AssertionError(request)

    def fetch(self, node: NodeId) -> None:
        """One round of one follower: ask, obey, sync."""
        core, log = self.cores[node], self.logs[node]
        if core.is_voter:
            log.sync()
        ask = fetching.next_fetch(core)
        if ask is None or not (self.linked(node, ask.peer) and self.linked(ask.peer, node)):
            return
        response = self.ask(ask.peer, ask.request)
        step = self.obey(node, fetching.on_fetch_response(core, ask, response, self.now))
        match step:
            case CutTo(offset):
                log.truncate_to(offset)
            case Extend():
                log.append_as_follower(step.batches)
                log.sync()
                core.raise_high_watermark(min(step.leader_high_watermark, log.end_offset))
            case FetchSnapshot(snapshot):
                log.restart_at(snapshot.end_offset)
                core.on_snapshots([snapshot])
        self.check(node)

    # ---- time ----

    def step(self, seconds: float = 0.05) -> None:
        """Let time pass: deadlines, leaders' syncs, one fetch round of everybody."""
        self.now += seconds
        for node in sorted(self.cores):
            core = self.cores[node]
            deadline = core.next_deadline()
            if deadline is not None and deadline <= self.now:
                self.obey(node, core.on_time(self.now, WALL_MS))
        for node in sorted(self.cores):
            self.sync(node)
            self.fetch(node)

    def sync(self, node: NodeId) -> None:
        if isinstance(self.cores[node].role, Leader):
            self.logs[node].sync()
            self.cores[node].on_durable()
            self.check(node)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.step()

    def settle(self, seconds: float = 10.0) -> NodeId:
        """Run until there is one leader that all living members follow; who it is."""
        end = self.now + seconds
        while self.now < end:
            self.step()
            leader = self.leader()
            if leader is not None and all(core.leader_id == leader for core in self.cores.values()):
                return leader
        raise AssertionError(f"not settled: {list(self.cores.values())}")

    def leader(self) -> NodeId | None:
        leaders = [core for core in self.cores.values() if isinstance(core.role, Leader)]
        return max(leaders, key=lambda core: core.epoch).me if leaders else None

    def append(self, *values: str) -> Offset:
        leader = self.leader()
        assert leader is not None
        return self.cores[leader].append(batch_of(*values), wall_ms=WALL_MS)

    # ---- what must always hold ----

    def check(self, node: NodeId) -> None:
        """What this member believes to be committed is, for ever, what anybody ever believed (invariants 10 and 13)."""
        core, log = self.cores[node], self.logs[node]
        for offset, text in self._records(log, core.high_watermark):
            assert self.committed.setdefault(offset, text) == text, f"committed record at {offset} has changed"

    @staticmethod
    def _records(log: Any, end: Offset) -> Iterator[tuple[Offset, str]]:
        return zip(range(log.start_offset, end), log.texts(end), strict=False)

    def status(self) -> list[str]:
        return [repr(core) for _, core in sorted(self.cores.items())]
