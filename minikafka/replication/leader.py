"""The leader's rules for one partition: append, acknowledge, advance, and who is in sync.

Rules for this file: nothing awaits, sleeps or reads a clock. The high watermark moves in :meth:`LeaderReplica.advance`
and nowhere else; the ISR moves in :meth:`LeaderReplica.on_committed_state` and nowhere else (the controller decides,
this replica only proposes). A remote replica's end moves in :meth:`LeaderReplica.record_fetch` and nowhere else.

An ISR change goes: ``Settled`` --propose--> ``Proposed`` --controller's record or answer--> ``Settled``. While it is in
flight the *maximal* ISR counts, committed and proposed together (KIP-497). Otherwise:

1. the leader proposes {1,2} -> {1} and the answer is still on its way;
2. it advances the watermark on its own log alone and acknowledges;
3. the controller had refused the change and elects 2;
4. an acknowledged record is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from minikafka.config import TopicConfig
from minikafka.errors import (
    InvalidRequiredAcks,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from minikafka.invariant import InvariantViolation, invariant
from minikafka.log.partition_log import PartitionLog
from minikafka.log.verification import VerificationGuard
from minikafka.ports import Events, unheard_by
from minikafka.replication.high_watermark import ReplicaState, effective_min_isr, high_watermark_after
from minikafka.types import NO_EPOCH, NO_OFFSET, UNDEFINED_EPOCH_END, Epoch, EpochEnd, NodeId, Offset, TopicPartition
from minikafka.wire.batch import PLAIN, RecordBatch
from minikafka.wire.markers import EndTransaction, marker_batch

ACKS_ALL, ACKS_NONE, ACKS_LEADER = -1, 0, 1
NEVER = float("-inf")

BrokerEpochOf = Callable[[NodeId], int | None]
"""A broker's epoch by the metadata, or None when it may not join an ISR: fenced, stopping, unknown (KIP-841)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """What the controller has recorded about a partition (S15)."""

    replicas: tuple[NodeId, ...]
    isr: tuple[NodeId, ...]
    leader: NodeId
    leader_epoch: Epoch
    partition_epoch: int
    recovered: bool = True
    """False after an unclean election, until the leader says that it has recovered (KIP-704)."""
    adding: tuple[NodeId, ...] = ()
    """Replicas that a reassignment is adding (KIP-455)."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """An ISR change that the controller has been, or is to be, asked for."""

    isr: tuple[NodeId, ...]
    broker_epochs: tuple[int, ...]
    """The incarnation of each member that the leader has seen fetching; -1 where it has seen none (KIP-903)."""
    leader_epoch: Epoch
    partition_epoch: int
    """The committed state that it starts from: the controller compares and swaps on it."""


class Appended:
    """Where a batch came to lie; ``duplicate``: it lay there before; base -1: at a forgotten place before the end."""

    __slots__ = ("base_offset", "duplicate", "end_offset", "log_append_time_ms")

    def __init__(
        self,
        base_offset: Offset,
        end_offset: Offset,
        log_append_time_ms: int,
        duplicate: bool,  # noqa: FBT001 - hot
    ) -> None:
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.log_append_time_ms = log_append_time_ms
        self.duplicate = duplicate


class FetchEffect(NamedTuple):
    """What a follower's fetch has changed and calls for."""

    high_watermark_moved: bool
    wants_in: bool
    """The follower may join the ISR: propose it."""


class IdleFetches:
    """The requests of one fetch session (KIP-227), as they count for the partitions of the session that are idle.

    A request acknowledges every idle partition again. That is written here once, not into each of thousands of
    partitions twice a second. :meth:`LeaderReplica.stir` ends it for a partition before anything changes there.
    """

    __slots__ = ("at", "on_stir")

    def __init__(self, on_stir: Callable[[TopicPartition], None]) -> None:
        """``on_stir`` is called with each partition that is no longer idle."""
        self.at = NEVER
        """When the latest request arrived."""
        self.on_stir = on_stir


@dataclass(slots=True)
class Remote:
    """What the leader knows of one follower (KAFKA-FACTS 3.1)."""

    end_offset: Offset = NO_OFFSET
    start_offset: Offset = NO_OFFSET
    last_fetch: float = NEVER
    leader_end_at_last_fetch: Offset = 0
    last_caught_up: float = NEVER
    broker_epoch: int = -1
    idle: IdleFetches | None = None
    """Set while every request of this session only repeats that the follower stands at the log's end."""

    def fetched_at(self) -> float:
        """When the follower fetched last."""
        return self.last_fetch if self.idle is None else max(self.last_fetch, self.idle.at)

    def caught_up_at(self) -> float:
        """When the follower was caught up last."""
        return self.last_caught_up if self.idle is None else max(self.last_caught_up, self.idle.at)

    def on_fetch(
        self, *, offset: Offset, start_offset: Offset, broker_epoch: int, leader_end: Offset, now: float
    ) -> None:
        """Remember a fetch at ``offset``, which acknowledges everything below it.

        Caught up now, if it asks from the leader's end; caught up at the time of its previous fetch, if it asks from
        where the leader's end was then. A steady stream of appends therefore never makes a live follower look late.
        """
        if offset >= leader_end:
            self.last_caught_up = max(self.last_caught_up, now)
        elif offset >= self.leader_end_at_last_fetch:
            self.last_caught_up = max(self.last_caught_up, self.last_fetch)
        self.end_offset = offset
        self.start_offset = start_offset
        self.broker_epoch = broker_epoch
        self.leader_end_at_last_fetch = max(self.leader_end_at_last_fetch, leader_end)
        self.last_fetch = now


class LeaderReplica:
    """The role of leading one partition in one leader epoch."""

    def __init__(
        self,
        me: NodeId,
        partition: TopicPartition,
        log: PartitionLog,
        config: TopicConfig,
        state: PartitionState,
        *,
        high_watermark: Offset,
        lag_time_max_s: float,
        broker_epoch_of: BrokerEpochOf,
        predecessor: LeaderReplica | None,
        now: float,
        events: Events,
    ) -> None:
        invariant(state.leader == me, "only the elected replica leads", elected=state.leader, me=me)
        invariant(me in state.isr, "the leader is in the ISR (S13)", isr=state.isr, me=me)
        self.me = me
        self.partition = partition
        self.log = log
        self.config = config
        self.epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.adding = state.adding
        self.isr = state.isr
        self.recovered = state.recovered
        self.proposal: Proposal | None = None
        self.high_watermark = high_watermark
        self.lag_time_max_s = lag_time_max_s
        self.broker_epoch_of = broker_epoch_of
        self.events = events
        self._unheard = unheard_by(events)
        self.name = str(partition)
        self._has_idle = False
        """A follower may be idle: see :meth:`stir`."""
        # Known from the first moment, not from the first append: else followers get "undefined" and diverge
        # (KAFKA-7415).
        self.epoch_start = log.end_offset
        log.assign_epoch(self.epoch, self.epoch_start)
        self.remotes = {node: self._remote_of(node, predecessor, now) for node in state.replicas if node != me}

    def _remote_of(self, node: NodeId, predecessor: LeaderReplica | None, now: float) -> Remote:
        kept = predecessor.remotes.get(node) if predecessor else None
        if node in self.adding and node not in self.isr:
            # It may have been no replica in a state that this broker has skipped by a snapshot of the metadata, and has
            # deleted its log then.
            kept = None
        caught_up = now if node in self.isr else NEVER
        if kept is None:
            return Remote(last_caught_up=caught_up)
        kept.last_caught_up = max(kept.last_caught_up, caught_up)
        return kept

    def __repr__(self) -> str:
        isr = ",".join(map(str, self.isr))
        return f"<{self.partition} leader e{self.epoch} leo={self.log.end_offset} hw={self.high_watermark} isr={isr}>"

    # ---- append ------------------------------------------------------------------------------------------------------

    @property
    def min_isr(self) -> int:
        """How many in-sync replicas are needed, see :func:`effective_min_isr`."""
        return effective_min_isr(self.config.min_insync_replicas, self.replicas, self.adding)

    @property
    def maximal_isr(self) -> tuple[NodeId, ...]:
        """The replicas whose acknowledgment is needed: the committed ISR and the proposed one together (KIP-497)."""
        if self.proposal is None:
            return self.isr
        return tuple(sorted({*self.isr, *self.proposal.isr}))

    @property
    def own_end(self) -> Offset:
        """This replica's acknowledged end: the synced one under sync-before-acknowledge (D6)."""
        return self.log.synced_end if self.config.syncs_before_acknowledging else self.log.end_offset

    def append_marker(self, marker: EndTransaction, *, wall_ms: int) -> Appended:
        """Write an end-transaction marker, with acks=all. The caller then calls :meth:`advance`.

        A marker without an open transaction is written, too: it has no effect on readers, but its epochs fence.

        Raises:
            NotEnoughReplicas: Fewer replicas than ``min.insync.replicas`` are in sync.
            InvalidProducerEpoch: A newer incarnation of the producer has written here.
            TransactionCoordinatorFenced: A newer coordinator has written a marker of this producer.
            KafkaStorageError: The log has failed.
        """
        batch = RecordBatch.of(marker_batch(marker, timestamp_ms=wall_ms))
        return self.append(batch, acks=ACKS_ALL, wall_ms=wall_ms, marker=marker)

    def append(
        self,
        batch: RecordBatch,
        *,
        acks: int,
        wall_ms: int,
        marker: EndTransaction | None = None,
        guard: VerificationGuard | None = None,
        sequencing: int = PLAIN,
    ) -> Appended:
        """Write a producer's batch (S6), or that of ``marker``. The caller then calls :meth:`advance`.

        ``guard``: that of a transactional batch (``log/verification.py``). ``sequencing``: how its sequence is compared
        (``wire/batch.py``).

        Raises InvalidRequiredAcks, NotEnoughReplicas (acks=all only), and what the log raises for a batch that breaks
        its rules; nothing is written in any of these cases.
        """
        if acks not in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
            raise InvalidRequiredAcks(f"acks={acks}: one of -1 (all), 0, 1 is needed")
        if acks == ACKS_ALL and len(self.isr) < self.min_isr:
            raise NotEnoughReplicas(
                f"{self.partition} needs {self.min_isr} in-sync replicas, the ISR is {list(self.isr)}",
                isr=list(self.isr),
                min_insync_replicas=self.min_isr,
            )
        if self._has_idle:
            self.stir()
        before = self.log.end_offset
        info = self.log.append_as_leader(
            batch, leader_epoch=self.epoch, wall_ms=wall_ms, marker=marker, guard=guard, sequencing=sequencing
        )
        end = info.last_offset + 1
        if not info.duplicate and (info.base_offset != before or end != self.log.end_offset):
            raise InvariantViolation(f"the log grew by one batch (before={before} appended={info} log={self.log})")
        if not info.duplicate and not self._unheard.counted("batch_appended"):
            self.events("batch_appended", partition=self.name, epoch=self.epoch, base=info.base_offset, end=end)
        return Appended(info.base_offset, end, info.log_append_time_ms, info.duplicate)

    def check_acknowledged(self, end_offset: Offset) -> bool:
        """Return True if everything below ``end_offset`` is committed (S16).

        Raises NotEnoughReplicasAfterAppend, outcome *written*, when it is but the ISR has become too small since.
        """
        if self.high_watermark < end_offset:
            return False
        if len(self.maximal_isr) < self.min_isr:
            raise NotEnoughReplicasAfterAppend(
                f"{self.partition}: written, but the ISR {list(self.maximal_isr)} is now below {self.min_isr}",
                outcome="written",
                isr=list(self.maximal_isr),
                min_insync_replicas=self.min_isr,
            )
        return True

    # ---- high watermark ----------------------------------------------------------------------------------------------

    def advance(self, now: float) -> bool:
        """Raise the high watermark as far as the rule allows; True if it moved."""
        old = self.high_watermark
        if not self.remotes:
            # Unrolled: the rule below for a leader that is the only replica, and so the whole ISR.
            new = max(old, self.own_end)
        else:
            standings = [
                ReplicaState(node, remote.end_offset, self._counts(node, now)) for node, remote in self.remotes.items()
            ]
            new = high_watermark_after(
                old, own_end=self.own_end, standings=standings, isr_size=len(self.isr), min_isr=self.min_isr
            )
        if new == old:
            return False
        if self._has_idle:
            self.stir()
        if not old < new <= self.log.end_offset:
            raise InvariantViolation(f"watermark within the log (old={old} new={new} log={self.log})")
        self.events(
            "hw_advanced",
            partition=self.name,
            epoch=self.epoch,
            old=old,
            new=new,
            remotes={str(node): remote.end_offset for node, remote in self.remotes.items()},
            isr=self.maximal_isr,
        )
        self.high_watermark = new
        return True

    def watermark_holders(self, now: float) -> tuple[NodeId, ...]:
        """The followers whose log ends the high watermark cannot pass now."""
        return tuple(node for node in self.remotes if self._counts(node, now))

    def _counts(self, node: NodeId, now: float) -> bool:
        """Return True if a record needs ``node`` to be committed: it is in the maximal ISR, or about to join (S10)."""
        return node in self.maximal_isr or (self.broker_epoch_of(node) is not None and self._is_caught_up(node, now))

    def _is_caught_up(self, node: NodeId, now: float) -> bool:
        remote = self.remotes[node]
        return remote.end_offset == self.log.end_offset or now - remote.caught_up_at() <= self.lag_time_max_s

    # ---- followers ---------------------------------------------------------------------------------------------------

    def check_fetcher(self, node: NodeId, broker_epoch: int) -> bool:
        """Return True if a fetch counts as its sender's word for what it has stored (``record_fetch``).

        One from no replica (KAFKA-13837) or from a broker's former incarnation (KIP-903) is refused, and so is one
        without a broker epoch. KIP-903 lets that pass for brokers of older versions, which do not send one; all brokers
        here do. The first fetches of an incarnation that this broker does not know yet are served, but do not count:
        the controller may have taken the broker out of the ISR when it registered.
        """
        if node not in self.remotes:
            raise UnknownLeaderEpoch(f"{self.partition}: broker {node} is not among its replicas {list(self.replicas)}")
        if broker_epoch < 0:
            raise NotLeaderOrFollower(f"{self.partition}: broker {node} fetches without its broker epoch")
        known = self.broker_epoch_of(node)
        if known is not None and broker_epoch < known:
            raise NotLeaderOrFollower(
                f"broker {node} fetches with epoch {broker_epoch}, it has registered as {known} since"
            )
        return known is None or broker_epoch == known

    def diverging(self, fetch_offset: Offset, last_fetched_epoch: Epoch) -> EpochEnd | None:
        """Where the fetcher's log parts from this one, or None when it does not (KIP-101, KIP-279, KIP-595).

        Raises OffsetOutOfRange when the question cannot be answered from this log.
        """
        if last_fetched_epoch == NO_EPOCH:
            return None
        if fetch_offset < self.log.start_offset:
            raise OffsetOutOfRange(
                f"{self.partition}: offset {fetch_offset} is below the log start {self.log.start_offset}"
            )
        end = self.log.end_offset_for(last_fetched_epoch)
        if end == UNDEFINED_EPOCH_END:
            raise OffsetOutOfRange(
                f"{self.partition}: epoch {last_fetched_epoch} is newer than all in the leader's log"
            )
        if end.epoch < last_fetched_epoch or end.end_offset < fetch_offset:
            return end
        return None

    def record_fetch(
        self,
        node: NodeId,
        offset: Offset,
        *,
        start_offset: Offset,
        broker_epoch: int,
        leader_end: Offset,
        now: float,
    ) -> FetchEffect:
        """A follower asked from ``offset``: all below is there (S5, S7). Call it only after a read that succeeded and
        did not diverge, and once per request (KAFKA-8400, KAFKA-13141). ``leader_end``: the log end before that read.
        """
        invariant(
            offset <= self.log.end_offset, "a follower asks within the log", node=node, offset=offset, log=self.log
        )
        remote = self.remotes[node]
        if remote.idle is not None:
            self._stir(remote)
        moved = remote.end_offset != offset
        remote.on_fetch(
            offset=offset, start_offset=start_offset, broker_epoch=broker_epoch, leader_end=leader_end, now=now
        )
        if moved and not self._unheard.counted("follower_fetched"):
            self.events("follower_fetched", partition=self.name, epoch=self.epoch, replica=node, offset=offset)
        wants_in = self.proposal is None and node not in self.isr and self.may_join(node)
        return FetchEffect(high_watermark_moved=moved and self.advance(now), wants_in=wants_in)

    def asks_again(
        self, node: NodeId, offset: Offset, *, broker_epoch: int, now: float, idle: IdleFetches | None = None
    ) -> bool:
        """An ISR member that asked from the log's end asks from there once more: only its times move on.

        The short way of :meth:`record_fetch` for the many idle partitions of a fetch session (KIP-227), whose question
        the caller knows to be in order still. False, with nothing done, when there is more to it than that.
        With ``idle`` every later request of that session counts as this one did, until :meth:`stir`.
        """
        remote = self.remotes[node]
        if remote.end_offset != offset or remote.broker_epoch != broker_epoch or node not in self.isr:
            return False
        if offset != self.log.end_offset:
            return False
        remote.last_caught_up = max(remote.last_caught_up, now)
        remote.leader_end_at_last_fetch = offset
        remote.last_fetch = now
        if idle is not None:
            remote.idle = idle
            self._has_idle = True
        return True

    def stir(self, node: NodeId | None = None) -> None:
        """Look again at the followers that are idle here (``node``: at this one), for something changes.

        To be called before the log's end or start, the high watermark, the ISR, or the role changes. Fetches that were
        counted together are written down, and the next request of the session is looked at in full.
        """
        for each, remote in self.remotes.items():
            if remote.idle is not None and node in (None, each):
                self._stir(remote)
        self._has_idle = node is not None

    def _stir(self, remote: Remote) -> None:
        idle = remote.idle
        if idle is not None:
            remote.last_fetch, remote.last_caught_up = remote.fetched_at(), remote.caught_up_at()
            remote.idle = None
            idle.on_stir(self.partition)

    def may_join(self, node: NodeId) -> bool:
        """Return True if ``node`` may join the ISR: at the watermark *and* the start of this epoch, and eligible (S15).

        The epoch's start matters because a new leader's watermark may lag: A leads with HW 10, ISR {A,B}, B has HW 8.
        A dies, B leads with HW 8 and LEO 10. C at 8 would be let in; B dies; C leads without 8 and 9, which were
        committed (KIP-320; played by scenarios/join_needs_epoch_start.txt).
        """
        remote = self.remotes[node]
        known = self.broker_epoch_of(node)
        same_incarnation = known is not None and remote.broker_epoch in (-1, known)
        return same_incarnation and remote.end_offset >= self.high_watermark and remote.end_offset >= self.epoch_start

    # ---- in-sync replicas --------------------------------------------------------------------------------------------

    def laggards(self, now: float) -> tuple[NodeId, ...]:
        """ISR members that have not been caught up for longer than replica.lag.time.max.ms (S14): time, not records.

        A follower that stands at the log's end is in sync however long nothing was produced.
        """
        return tuple(node for node in self.isr if node != self.me and not self._is_caught_up(node, now))

    def propose_expand(self) -> Proposal | None:
        """Ask for everyone who may join, or None; nothing while a change is in flight."""
        joining = [node for node in self.remotes if node not in self.isr and self.may_join(node)]
        if self.proposal is not None or not joining:
            return None
        return self._propose(tuple(sorted({*self.isr, *joining})))

    def propose_shrink(self, now: float) -> Proposal | None:
        """Ask to let all laggards go in one change, or None; nothing while a change is in flight."""
        leaving = self.laggards(now)
        if self.proposal is not None or not leaving:
            return None
        return self._propose(tuple(node for node in self.isr if node not in leaving))

    def propose_recovered(self) -> Proposal | None:
        """After an unclean election: tell the controller that this log is now the log (KIP-704)."""
        if self.recovered or self.proposal is not None:
            return None
        return self._propose(self.isr)

    def _propose(self, isr: tuple[NodeId, ...]) -> Proposal:
        invariant(self.me in isr, "a leader never proposes an ISR without itself (S13)", isr=isr)
        epochs = tuple(self.remotes[node].broker_epoch if node != self.me else -1 for node in isr)
        self.proposal = Proposal(isr, epochs, self.epoch, self.partition_epoch)
        self.events(
            "isr_proposed",
            partition=str(self.partition),
            epoch=self.epoch,
            partition_epoch=self.partition_epoch,
            old=self.isr,
            new=isr,
        )
        return self.proposal

    def on_committed_state(self, isr: Sequence[NodeId], partition_epoch: int, *, recovered: bool, now: float) -> bool:
        """The controller has recorded this state, as its answer or its log says. True if the watermark moved.

        An older state than the known one is ignored: answers and the log race (KAFKA-12686). After a shrink the
        watermark may move although nobody fetches (KAFKA-13091).
        """
        if partition_epoch <= self.partition_epoch:
            return False
        self.stir()
        new = tuple(isr)
        if new != self.isr:
            kind = (
                "isr_expanded"
                if set(new) > set(self.isr)
                else "isr_shrunk"
                if set(new) < set(self.isr)
                else "isr_changed"
            )
            self.events(kind, partition=str(self.partition), epoch=self.epoch, old=self.isr, new=new)
        elif self.proposal is not None:
            self.events("isr_proposal_ended", partition=self.name, epoch=self.epoch, isr=new)
        self.isr = new
        self.partition_epoch = partition_epoch
        self.recovered = recovered
        self.proposal = None
        return self.advance(now)

    def reassigned(self, replicas: tuple[NodeId, ...], adding: tuple[NodeId, ...], now: float) -> None:
        """The metadata names more replicas, or another order of them, within this epoch (KIP-455).

        Replicas are taken away with a new epoch only: nobody may go on counting, or fetching, in the old one.
        """
        self.stir()
        gone = [node for node in self.remotes if node not in replicas]
        invariant(not gone, "replicas are taken away with a new leader epoch", gone=gone, epoch=self.epoch)
        for node in replicas:
            if node != self.me and node not in self.remotes:
                self.remotes[node] = self._remote_of(node, None, now)
        if (self.replicas, self.adding) != (replicas, adding):
            self.events(
                "replicas_changed",
                partition=self.name,
                epoch=self.epoch,
                old=self.replicas,
                new=replicas,
                adding=adding,
            )
        self.replicas, self.adding = replicas, adding

    def withdraw(self, proposal: Proposal) -> None:
        """The controller has surely not applied the proposal: fall back to the committed state."""
        if self.proposal is proposal:
            self.events("isr_proposal_ended", partition=self.name, epoch=self.epoch, isr=self.isr)
            self.proposal = None

    # ---- reading -----------------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> Offset:
        """The end of what consumers with ``read_committed`` may read, never above the high watermark."""
        return self.log.stable_end(self.high_watermark)

    @property
    def knows_its_watermark(self) -> bool:
        """False on a new leader until its watermark has reached its epoch's start: until then "latest" could go back
        from what the former leader has exposed (KIP-207).
        """
        return self.high_watermark >= self.epoch_start
