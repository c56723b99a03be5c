"""WriteTxnMarkers: end transactions in the partitions that this broker leads (KIP-98).

- Each marker is appended to each of its partitions by a step of its own, without an await between check and append, and
  answered when every in-sync replica has it, as acks=all.
- In ``__consumer_offsets``, a marker is answered when the group coordinator has applied it to its offsets.
- A marker may arrive twice: a coordinator repeats it until it is answered, and its successor sends it again. A repeated
  marker ends nothing. One that is older than the producer's newest epoch or coordinator is rejected, and so is one that
  comes when the producer's next transaction is open.
- A coordinator names its broker: the id must be registered, and its broker epoch must not be older than the registered
  one. A request without a broker id is an administrator's, who aborts a hanging transaction (``minikafka transactions
  abort``, ``kafka-transactions.sh abort``). With an authorizer it needs ALTER or CLUSTER_ACTION on the cluster.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from minikafka import errors as kafka
from minikafka.broker.lifecycle import SessionAlive, session_expired
from minikafka.broker.purgatory import Condition, Mark
from minikafka.types import NO_NODE, Offset, TopicPartition
from minikafka.wire import transaction_messages as t
from minikafka.wire.markers import EndTransaction

if TYPE_CHECKING:
    from minikafka.broker.replica_manager import ReplicaManager
    from minikafka.replication.leader import LeaderReplica
    from minikafka.replication.partition import Partition

COMMIT_WAIT_S = 30.0
"""How long a response waits for the in-sync replicas: Kafka's default of ``request.timeout.ms``."""

INT16_MAX, INT32_MAX, INT64_MAX = 2**15 - 1, 2**31 - 1, 2**63 - 1


@dataclass(slots=True)
class _Written:
    """One marker in one partition."""

    producer_id: int
    name: TopicPartition
    partition: Partition | None = None
    leader: LeaderReplica | None = None
    end_offset: Offset = -1
    applied: Awaitable[bool] | None = None
    error: kafka.ProtocolError | None = None


MARKER_COST = 32 * 1024
"""Bytes whose append takes as long as a marker: the checks and the event of a refusal count, not its 78 bytes."""

OnMarker: TypeAlias = Callable[[TopicPartition, EndTransaction, Offset], Awaitable[bool] | None]
"""Called when a marker was appended, with the offset behind it. The awaitable ends when the coordinator of groups has
applied the marker; None: the partition has no such coordinator here."""


async def handle_write_txn_markers(
    replicas: ReplicaManager,
    request: t.WriteTxnMarkersRequest,
    *,
    session_alive: SessionAlive,
    on_marker: OnMarker,
) -> t.WriteTxnMarkersResponse:
    """Append the markers and wait until they are committed; see the head of this file.

    Raises:
        ClusterAuthorizationFailed: The named broker is not registered in this cluster, as far as is known here.
        StaleBrokerEpoch: The sending broker has registered again since.
        InvalidRequest: A number is out of its range.
    """
    _check_sender(replicas, request)
    ends = [_end_of(marker) for marker in request.markers]
    deadline = replicas.clock.now() + COMMIT_WAIT_S
    written = []
    for marker, end in zip(request.markers, ends, strict=True):
        for place in marker.partitions:
            await replicas.append_throttle.admit(MARKER_COST)
            each = _append(replicas, TopicPartition(place.topic, place.partition), end, session_alive)
            if each.error is None:
                each.applied = on_marker(each.name, end, each.end_offset)
            written.append(each)
    await _wait(replicas, [each for each in written if each.error is None], deadline)
    for each in written:
        # Members must not read older offsets once the transaction counts as complete (KAFKA-17507).
        if each.error is None and each.applied is not None and not await each.applied:
            each.error = kafka.NotLeaderOrFollower(
                f"{each.name}: the coordinator moved before it had applied the marker", outcome=kafka.UNKNOWN
            )
    if not session_alive():
        for each in written:
            each.error = each.error or session_expired(each.name, kafka.UNKNOWN)
    return t.WriteTxnMarkersResponse(markers=tuple(map(_answer, written)))


def _check_sender(replicas: ReplicaManager, request: t.WriteTxnMarkersRequest) -> None:
    if request.broker_id == NO_NODE:
        return
    known = replicas.registered_epoch(request.broker_id)
    if known is None:
        raise kafka.ClusterAuthorizationFailed(
            f"broker_id={request.broker_id} is not registered in this cluster: only brokers may write markers"
        )
    if request.broker_epoch < known:
        raise kafka.StaleBrokerEpoch(
            f"broker {request.broker_id} sends markers with broker epoch {request.broker_epoch}, it has registered as "
            f"{known} since"
        )


def _end_of(marker: t.TransactionMarker) -> EndTransaction:
    for member, value, largest in (
        ("producer_id", marker.producer_id, INT64_MAX),
        ("producer_epoch", marker.producer_epoch, INT16_MAX),
        ("coordinator_epoch", marker.coordinator_epoch, INT32_MAX),
    ):
        if not 0 <= value <= largest:
            raise kafka.InvalidRequest(f"{member}={value} is out of range", member=member)
    return EndTransaction(
        marker.producer_id,
        marker.producer_epoch,
        marker.committed,
        marker.coordinator_epoch,
        marker.transaction_version,
        marker.number,
    )


def _append(
    replicas: ReplicaManager, name: TopicPartition, end: EndTransaction, session_alive: SessionAlive
) -> _Written:
    written = _Written(end.producer_id, name)
    try:
        written.partition = partition = replicas.get(name)
        written.leader = leader = partition.as_leader()
        if not session_alive():
            raise session_expired(name)
        with replicas.storage_guard(partition):
            written.end_offset = leader.append_marker(end, wall_ms=replicas.clock.wall_ms()).end_offset
    except kafka.ProtocolError as error:
        written.error = error
        replicas.events(
            "marker_refused", partition=str(name), producer_id=end.producer_id, error=error.name, why=error.message
        )
        return written
    replicas.events(
        "marker_appended",
        partition=str(name),
        offset=written.end_offset - 1,
        producer_id=end.producer_id,
        producer_epoch=end.producer_epoch,
        coordinator_epoch=end.coordinator_epoch,
        committed=end.is_commit,
    )
    replicas.appended(partition, leader)
    return written


async def _wait(replicas: ReplicaManager, waiting: list[_Written], deadline: float) -> None:
    """Wait until the markers are committed; whatever keeps one from that is its error."""

    def done() -> bool:
        waiting[:] = [each for each in waiting if not _is_settled(each)]
        return not waiting

    conditions = [Condition(Mark.HIGH_WATERMARK, each.name, each.end_offset) for each in waiting]
    with replicas.traffic.purgatory_meters["Produce"].parked():
        await replicas.purgatory.until(conditions, done, deadline)
    for each in waiting:
        each.error = kafka.RequestTimedOut(
            f"{each.name}: the marker was written at {each.end_offset - 1} and is not yet on all in-sync replicas",
            outcome=kafka.UNKNOWN,
        )


def _is_settled(each: _Written) -> bool:
    if each.partition is None or each.leader is None or each.partition.role is not each.leader:
        each.error = kafka.NotLeaderOrFollower(
            f"{each.name}: the leader changed before all replicas had the marker", outcome=kafka.UNKNOWN
        )
        return True
    try:
        return each.leader.check_acknowledged(each.end_offset)
    except kafka.ProtocolError as error:
        each.error = error
        return True


def _answer(each: _Written) -> t.WrittenMarker:
    return t.WrittenMarker.failed(
        each.error, producer_id=each.producer_id, topic=each.name.topic, partition=each.name.partition
    )
