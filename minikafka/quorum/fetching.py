"""Replication of the metadata log: fetches, their responses, and how far each member is (DescribeQuorum).

The rules are those of user partitions (KAFKA-FACTS 3.3, 3.6) with four differences (DESIGN, "One log, three tenants"):
a voter asks from its *durable* end, a watermark needs a majority and an own epoch, a cut below it is fatal, and a log
that no longer reaches back is entered through a snapshot.

DescribeQuorum: only the leader knows how far the others are; any other member answers with what it knows of the leader,
and NOT_LEADER_OR_FOLLOWER, so that the caller asks there.

Rules for this file: functions over a :class:`QuorumCore`; they read the log and never change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import Struct

from minikafka import errors as kafka
from minikafka.invariant import invariant
from minikafka.ports import Buffers
from minikafka.quorum.core import QuorumCore, Ready
from minikafka.quorum.roles import Follower, Leader, Progress, Unattached
from minikafka.replication.follower import CutTo, Extend, TruncateByLeaderEpoch
from minikafka.types import METADATA_PARTITION, METADATA_TOPIC, NODE_ID_MAX, Address, Epoch, EpochEnd, NodeId, Offset
from minikafka.wire import messages as m
from minikafka.wire.batch import RecordBatch, split

FETCH_BYTES_MAX = 8 * 1024 * 1024
"""Of one answer: no batch of the metadata log is larger."""


class FetchAsk(Struct, frozen=True):
    """A fetch that is to be sent, and the epoch that its answer is good for."""

    peer: NodeId
    epoch: Epoch
    request: m.FetchRequest

    @property
    def offset(self) -> Offset:
        return self.request.partitions[0].fetch_offset


@dataclass(frozen=True, slots=True)
class FetchSnapshot:
    """The leader's log starts later: fetch this snapshot, and start the log at its end."""

    snapshot: EpochEnd


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be done with the answer; ask again at ``until``."""

    until: float


FetchStep: TypeAlias = CutTo | Extend | FetchSnapshot | Wait


# ---- the follower's side ---------------------------------------------------------------------------------------------


def has_whom_to_ask(core: QuorumCore) -> bool:
    """A follower asks its leader; an observer that knows none asks any voter."""
    return isinstance(core.role, Follower) or (isinstance(core.role, Unattached) and not core.is_voter)


def fetch_wait_ms(core: QuorumCore) -> int:
    """How long the leader may hold a fetch: short enough that a quiet leader is heard of well before the fetch timeout,
    and the follower before the leader tells it again who leads, half a fetch timeout after its last fetch.
    """
    return min(core.fetch_wait_max_ms, int(core.fetch_timeout_s * 1000 / 3))


def next_fetch(core: QuorumCore) -> FetchAsk | None:
    """The next fetch and its receiver; None while no leader is known: a leader will call, or an election is due."""
    role = core.role
    if isinstance(role, Follower):
        peer, wait_ms = role.leader_id, fetch_wait_ms(core)
    elif isinstance(role, Unattached) and not core.is_voter:
        peer, wait_ms = core.random.choice(core.voters), 0
    else:
        return None
    end = core.log_end
    # The offset is a claim that all below it is durable here: that is what the leader counts (KAFKA-FACTS 4.1).
    invariant(
        not core.is_voter or core.log.synced_end == end.end_offset,
        "a voter syncs before it asks",
        quorum=core,
        log=core.log,
    )
    asked = m.FetchPartition(
        topic=METADATA_TOPIC,
        partition=METADATA_PARTITION.partition,
        current_leader_epoch=role.epoch,
        fetch_offset=end.end_offset,
        last_fetched_epoch=max(end.epoch, 0),
        log_start_offset=core.log.start_offset,
        high_watermark=core.high_watermark,
    )
    request = m.FetchRequest(
        cluster_id=core.cluster_id,
        replica_id=core.me,
        max_wait_ms=wait_ms,
        max_bytes=FETCH_BYTES_MAX,
        session_id=role.last_answer if isinstance(role, Follower) else 0,
        partitions=(asked,),
    )
    return FetchAsk(peer, role.epoch, request)


def on_fetch_response(core: QuorumCore, ask: FetchAsk, response: m.FetchResponse, now: float) -> Ready[FetchStep]:
    """What to do with the answer. Raises CorruptMessage when it does not consist of batches; the log checks those."""
    if other := of_another_cluster(response):
        core.events("quorum_other_cluster", peer=ask.peer, why=other)
        # It will answer the same for as long as a setting is wrong: each answer is logged.
        return core.ready(Wait(now + core.election_timeout_s))
    core.hear(ask.peer, now)
    step = _step(core, ask, response, now)
    return core.ready(step)


def on_fetch_failed(core: QuorumCore, now: float) -> Wait:
    """The call failed: ask again after a pause, until the fetch timeout ends this role."""
    return Wait(now + core.retry_backoff_s)


def on_snapshot_chunk(
    core: QuorumCore, ask: FetchAsk, response: m.FetchSnapshotResponse, *, position: Offset, now: float
) -> bool:
    """Return True if this part of a snapshot may be kept. False: discard it; the response to the next fetch decides."""
    if other := of_another_cluster(response):
        core.events("quorum_other_cluster", peer=ask.peer, why=other)
        return False
    core.hear(ask.peer, now)
    if response.current_leader is not None:
        core.observe(response.current_leader.leader_epoch, response.current_leader.leader_id, now)
    role = core.role
    if not isinstance(role, Follower) or (role.epoch, role.leader_id) != (ask.epoch, ask.peer):
        return False
    if response.error_code or response.position != position or not response.unaligned_records:
        _report_refusal(core, ask, response.error_code)
        return False
    core.hear_leader(role, now)
    return True


def epoch_end_offset(end: EpochEnd) -> m.EpochEndOffset:
    """As it travels."""
    return m.EpochEndOffset(epoch=end.epoch, end_offset=end.end_offset)


def of_another_cluster(response: m.Failed) -> str:
    """Return why a voter refused a request of this cluster ("": it did not). Another cluster's broker has its address:
    the epoch and leader that the response names are those of its own quorum.
    """
    parts = (response, *(response.partitions if isinstance(response, m.FetchResponse) else ()))
    refused = (each for each in parts if each.error_code == kafka.InconsistentClusterId.code)
    return next((each.error_message or kafka.InconsistentClusterId.name for each in refused), "")


def _report_refusal(core: QuorumCore, ask: FetchAsk, code: int) -> None:
    error = kafka.error_name(code)
    core.events("quorum_fetch_refused", error=error, code=code, leader=ask.peer, epoch=ask.epoch)


def _step(core: QuorumCore, ask: FetchAsk, response: m.FetchResponse, now: float) -> FetchStep:
    if response.error_code or len(response.partitions) != 1:
        _report_refusal(core, ask, response.error_code)
        return Wait(now + core.retry_backoff_s)
    answer = response.partitions[0]
    before = core.role
    if answer.current_leader is not None:
        core.observe(answer.current_leader.leader_epoch, answer.current_leader.leader_id, now)
    role = core.role
    if role is not before or not isinstance(role, Follower) or (role.epoch, role.leader_id) != (ask.epoch, ask.peer):
        # The answer belongs to an epoch that is over here. The present leader is asked at once.
        return Wait(now if isinstance(core.role, Follower) else now + core.retry_backoff_s)
    if answer.error_code:
        _report_refusal(core, ask, answer.error_code)
        return Wait(now + core.retry_backoff_s)
    core.hear_leader(role, now)
    role.last_answer = response.session_id
    if answer.diverging_epoch is not None:
        leaders = EpochEnd(answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset)
        cut = TruncateByLeaderEpoch().on_diverging(core.log, leaders)
        invariant(
            cut >= core.high_watermark,
            "a committed record is never cut (KAFKA-12460)",
            cut=cut,
            leader=leaders,
            quorum=core,
        )
        return CutTo(cut)
    if answer.snapshot_id is not None:
        return FetchSnapshot(EpochEnd(answer.snapshot_id.epoch, answer.snapshot_id.end_offset))
    return Extend(_batches(answer.records), answer.high_watermark, answer.log_start_offset)


def _batches(records: Buffers) -> tuple[RecordBatch, ...]:
    return tuple(batch for buffer in records for batch in split(buffer))


# ---- the leader's side -----------------------------------------------------------------------------------------------


def on_fetch(
    core: QuorumCore, request: m.FetchRequest, now: float, *, again: bool = False
) -> Ready[m.FetchResponse | None]:
    """Answer a fetch. None: there is nothing to tell yet, park it until :func:`is_due` or its ``max_wait_ms`` is over.

    ``again``: it was parked; its offset was counted the first time, and must not be again (KAFKA-8400).
    """
    try:
        asked = _checked(core, request)
        elsewhere = _elsewhere(core, asked)
        if elsewhere is not None:
            return core.ready(_answered(core, request, elsewhere, now))
        leader_end = core.log.end_offset
        replica = request.replica_id >= 0
        if replica and not again:
            core.record_fetch(
                request.replica_id,
                asked.fetch_offset,
                leader_end=leader_end,
                now=now,
                last_answer=request.session_id,
            )
        # Who is no replica sees what is committed.
        end = leader_end if replica else core.high_watermark
        records = _read(core, asked, request, end)
    except kafka.ProtocolError as error:
        return core.ready(m.FetchResponse(partitions=(_refused(core, error),)))
    may_park = not again and request.max_wait_ms > 0 and asked.high_watermark >= core.high_watermark
    if may_park and not records and not _must_prove_that_it_follows(core, request.replica_id, now):
        return core.ready(None)
    return core.ready(_answered(core, request, _partition(core, records=records), now))


def _must_prove_that_it_follows(core: QuorumCore, replica: NodeId, now: float) -> bool:
    """Answer an idle fetch at once, so that the next one names the answer (:meth:`Leader.majority_heard_at`).

    Without it, a leader that was cut off or stopped knows only an idle fetch later that it leads again, and until then
    its own broker's session is not renewed.
    """
    role = core.role
    return isinstance(role, Leader) and role.is_proof_older(replica, now - fetch_wait_ms(core) / 1000)


def is_due(core: QuorumCore, request: m.FetchRequest) -> bool:
    """Return True if a parked fetch can be answered: more to read, a newer watermark (KIP-1166), or another epoch."""
    asked = request.partitions[0]
    return (
        not isinstance(core.role, Leader)
        or (request.replica_id >= 0 and core.epoch != asked.current_leader_epoch)
        or core.log.end_offset > asked.fetch_offset
        or core.high_watermark > asked.high_watermark
    )


def on_fetch_snapshot(core: QuorumCore, request: m.FetchSnapshotRequest, now: float) -> EpochEnd:
    """Which snapshot to read from; raises InvalidRequest, NotLeaderOrFollower, an epoch error, or SnapshotNotFound."""
    core.check_cluster(request.cluster_id)
    if request.max_bytes < 0:
        # A disk refuses such a read as if it had failed, and a broker stops when its disk fails.
        raise kafka.InvalidRequest(f"max_bytes={request.max_bytes} must not be negative", member="max_bytes")
    core.check_epoch(request.current_leader_epoch)
    role = core.role
    if not isinstance(role, Leader):
        raise kafka.NotLeaderOrFollower(f"node {core.me} does not lead the quorum")
    role.hear_from(request.replica_id, now=now, timeout_s=core.fetch_timeout_s)
    core.hear(request.replica_id, now)
    wanted = EpochEnd(request.snapshot_id.epoch, request.snapshot_id.end_offset)
    if wanted not in core.snapshots:
        raise kafka.SnapshotNotFound(
            f"there is no snapshot {wanted.end_offset}-{wanted.epoch}, a newer one has replaced it"
        )
    return wanted


def _checked(core: QuorumCore, request: m.FetchRequest) -> m.FetchPartition:
    core.check_cluster(request.cluster_id)
    if (
        len(request.partitions) != 1
        or (request.partitions[0].topic, request.partitions[0].partition) != METADATA_PARTITION
    ):
        raise kafka.InvalidRequest(f"a fetch of {METADATA_PARTITION} asks for nothing else")
    asked = request.partitions[0]
    if asked.fetch_offset < 0:
        raise kafka.InvalidRequest(f"offset {asked.fetch_offset}")
    if request.replica_id > NODE_ID_MAX:
        # Observers are remembered and described, and responses of Kafka's protocol have 32 bits for the id of each.
        raise kafka.InvalidRequest(f"replica_id={request.replica_id}: a node id is {NODE_ID_MAX} at most")
    if request.replica_id >= 0:
        core.check_epoch(asked.current_leader_epoch)
    if not isinstance(core.role, Leader):
        raise kafka.NotLeaderOrFollower(f"node {core.me} does not lead the quorum", leader=core.leader_id)
    return asked


def _elsewhere(core: QuorumCore, asked: m.FetchPartition) -> m.FetchedPartition | None:
    """The answer to a fetcher whose log cannot go on from here: a snapshot, or where it must cut (KAFKA-FACTS 3.6)."""
    offset, epoch, log = asked.fetch_offset, asked.last_fetched_epoch, core.log
    # Not one that ends below: the start is raised before such a snapshot is removed, and a power cut may bring it back.
    # A later epoch than its own is no proof that a fetcher has this log's records up to the start.
    oldest = next((each for each in core.snapshots if each.end_offset >= log.start_offset), None)
    if oldest is not None and (epoch, offset) == oldest:
        return None
    newest = core.newest_snapshot
    if offset < log.start_offset or (oldest is not None and log.start_offset > 0 and epoch < oldest.epoch):
        invariant(
            newest.end_offset >= log.start_offset, "what the log dropped is in a snapshot", quorum=core, newest=newest
        )
        return _partition(core, snapshot_id=epoch_end_offset(newest))
    if offset == 0:
        return None
    end = log.end_offset_for(epoch)
    if end.epoch < epoch or end.end_offset < offset:
        core.events("quorum_fetch_diverged", offset=offset, last_epoch=epoch, epoch=end.epoch, end=end.end_offset)
        if end.epoch < 0:
            # An epoch beyond all of this log, or an empty log: everything from the log's end on is foreign.
            end = EpochEnd(max(log.last_epoch, 0), log.end_offset)
        return _partition(core, diverging_epoch=epoch_end_offset(end))
    return None


def _read(core: QuorumCore, asked: m.FetchPartition, request: m.FetchRequest, end: Offset) -> Buffers:
    if asked.fetch_offset >= end:
        return ()
    size = min(asked.partition_max_bytes, request.max_bytes, FETCH_BYTES_MAX)
    return core.log.read(asked.fetch_offset, max_bytes=size, end_offset=end).buffers


def _partition(
    core: QuorumCore,
    *,
    records: Buffers = (),
    diverging_epoch: m.EpochEndOffset | None = None,
    snapshot_id: m.EpochEndOffset | None = None,
) -> m.FetchedPartition:
    return m.FetchedPartition(
        topic=METADATA_TOPIC,
        partition=METADATA_PARTITION.partition,
        high_watermark=core.high_watermark,
        last_stable_offset=core.high_watermark,
        log_start_offset=core.log.start_offset,
        log_end_offset=core.log.end_offset,
        diverging_epoch=diverging_epoch,
        snapshot_id=snapshot_id,
        current_leader=_current_leader(core),
        records=records,
    )


def _refused(core: QuorumCore, error: kafka.ProtocolError) -> m.FetchedPartition:
    return m.FetchedPartition.with_error(
        error, topic=METADATA_TOPIC, partition=METADATA_PARTITION.partition, current_leader=_current_leader(core)
    )


def _answered(core: QuorumCore, request: m.FetchRequest, partition: m.FetchedPartition, now: float) -> m.FetchResponse:
    """The quorum has no fetch sessions (KIP-227): ``session_id`` numbers the answer, and the next fetch names it."""
    number = core.role.answered(request.replica_id, now) if isinstance(core.role, Leader) else 0
    return m.FetchResponse(session_id=number, partitions=(partition,))


def _current_leader(core: QuorumCore) -> m.CurrentLeader:
    return m.CurrentLeader(leader_id=core.leader_id, leader_epoch=core.epoch)


def describe(core: QuorumCore, voters: Mapping[NodeId, Address], now: float) -> m.DescribeQuorumResponse:
    """Columns as kafka-metadata-quorum prints them; times are ages in milliseconds."""
    endpoints = tuple(m.NodeEndpoint(node_id=node, host=at.host, port=at.port) for node, at in sorted(voters.items()))
    role = core.role
    if not isinstance(role, Leader):
        return m.DescribeQuorumResponse(
            error_code=kafka.NotLeaderOrFollower.code,
            error_message=f"node {core.me} is {role.name}, the leader is {core.leader_id}",
            cluster_id=core.cluster_id,
            leader_id=core.leader_id,
            leader_epoch=core.epoch,
            high_watermark=core.high_watermark,
            endpoints=endpoints,
            role=role.name,
        )
    end = core.log.end_offset
    own = m.QuorumReplica(
        replica_id=core.me, log_end_offset=end, lag=0, last_fetch_ms_ago=0, last_caught_up_ms_ago=0, status="Leader"
    )
    others = [_replica(node, progress, "Follower", end=end, now=now) for node, progress in role.voters.items()]
    observers = [_replica(node, progress, "Observer", end=end, now=now) for node, progress in role.observers.items()]
    return m.DescribeQuorumResponse(
        cluster_id=core.cluster_id,
        leader_id=core.me,
        leader_epoch=core.epoch,
        high_watermark=core.high_watermark,
        voters=tuple(sorted([own, *others], key=lambda replica: replica.replica_id)),
        observers=tuple(sorted(observers, key=lambda replica: replica.replica_id)),
        endpoints=endpoints,
        role=role.name,
    )


def _replica(node: NodeId, progress: Progress, status: str, *, end: int, now: float) -> m.QuorumReplica:
    return m.QuorumReplica(
        replica_id=node,
        log_end_offset=progress.end_offset,
        lag=end - progress.end_offset if progress.end_offset >= 0 else -1,
        last_fetch_ms_ago=_age_ms(progress.last_fetch_at, now),
        last_caught_up_ms_ago=_age_ms(progress.last_caught_up_at, now),
        status=status,
    )


def _age_ms(at: float | None, now: float) -> int:
    return -1 if at is None else int((now - at) * 1000)
