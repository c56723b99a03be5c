"""WriteTxnMarkers at the leaders of partitions: when a marker counts as written, and who may send one (KIP-98)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minikafka.broker.api.markers import handle_write_txn_markers
from minikafka.broker.purgatory import Mark
from minikafka.broker.replica_manager import ReplicaManager
from minikafka.errors import ClusterAuthorizationFailed, NotLeaderOrFollower, StaleBrokerEpoch
from minikafka.types import TopicPartition
from minikafka.wire.messages import PartitionName
from minikafka.wire.transaction_messages import TransactionMarker, WriteTxnMarkersRequest, WrittenMarker

NAME = TopicPartition("ledger", 0)


class Replicas:
    """Leads one partition, whose marker is at offset 4; broker 2 has registered with epoch 7."""

    def __init__(self, meanwhile: Callable[[Replicas], None] = lambda _: None) -> None:
        self.did: list[object] = []
        self.is_alive = True
        self.leader = SimpleNamespace(
            append_marker=lambda *_, **__: SimpleNamespace(end_offset=5),
            check_acknowledged=lambda _: True,
            log=SimpleNamespace(end_offset=5),
        )
        self.partition = SimpleNamespace(
            partition=NAME,
            role=self.leader,
            as_leader=lambda: self.leader,
            config=SimpleNamespace(syncs_before_acknowledging=False),
        )
        self.clock = SimpleNamespace(now=lambda: 0.0, wall_ms=lambda: 1)
        self.append_throttle = self.purgatory = self
        self.traffic = SimpleNamespace(purgatory_meters={"Produce": SimpleNamespace(parked=nullcontext)})
        self._meanwhile = meanwhile

    appended = ReplicaManager.appended

    async def admit(self, _size: int) -> None: ...

    def storage_guard(self, _: object) -> AbstractContextManager[None]:
        return nullcontext()

    def get(self, _: TopicPartition) -> Any:
        return self.partition

    def registered_epoch(self, node: int) -> int | None:
        return 7 if node == 2 else None

    def events(self, _kind: str, **_facts: object) -> None: ...

    def wake(self, mark: Mark, name: TopicPartition, offset: int) -> None:
        self.did.append((mark, name, offset))

    def advance(self, _partition: object, leader: object) -> None:
        assert leader is self.leader
        self.did.append("advanced")

    def sync_if_due(self, _: object) -> None: ...

    async def until(self, _conditions: object, done: Callable[[], bool], _deadline: float) -> bool:
        self._meanwhile(self)
        return done()


async def written(
    replicas: Replicas, *, broker_id: int = -1, broker_epoch: int = -1, applied: bool | None = None
) -> WrittenMarker:
    """The answer for one marker; ``applied``: what the coordinator of groups says of it."""
    marker = TransactionMarker(
        producer_id=9, producer_epoch=0, committed=True, coordinator_epoch=1, partitions=PartitionName.each((NAME,))
    )
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    if applied is not None:
        ended.set_result(applied)
    response = await handle_write_txn_markers(
        cast("Any", replicas),
        WriteTxnMarkersRequest(broker_id=broker_id, broker_epoch=broker_epoch, markers=(marker,)),
        session_alive=lambda: replicas.is_alive,
        on_marker=lambda *_: None if applied is None else ended,
    )
    (answer,) = response.markers
    return answer


async def test_a_marker_wakes_followers_and_may_move_the_watermark_at_once():
    """Followers that wait for records fetch it; where the leader is the only replica it is committed already."""
    replicas = Replicas()
    assert not (await written(replicas)).error_code
    assert replicas.did == [(Mark.LOG_END, NAME, 5), "advanced"]


def loses_its_role(replicas: Replicas) -> None:
    replicas.partition.role = None


def loses_its_session(replicas: Replicas) -> None:
    replicas.is_alive = False


@pytest.mark.parametrize("loses", [loses_its_role, loses_its_session])
async def test_a_leader_that_may_be_deposed_confirms_no_marker(loses: Callable[[Replicas], None]):
    """Its successor may not have the marker: the coordinator must send it again."""
    answer = await written(Replicas(loses))
    assert (answer.error_code, answer.outcome) == (NotLeaderOrFollower.code, "unknown")


async def test_a_marker_is_written_when_its_offsets_are_applied():
    """KAFKA-17507: members that ask the next coordinator of the group must not find older offsets."""
    assert not (await written(Replicas(), applied=True)).error_code
    assert (await written(Replicas(), applied=False)).error_code == NotLeaderOrFollower.code


async def test_a_coordinators_broker_is_known_by_its_newest_epoch():
    """A registration may reach this broker later than the marker; an older one is over."""
    for epoch in (7, 8):
        assert not (await written(Replicas(), broker_id=2, broker_epoch=epoch)).error_code
    with pytest.raises(StaleBrokerEpoch):
        await written(Replicas(), broker_id=2, broker_epoch=6)
    with pytest.raises(ClusterAuthorizationFailed):
        await written(Replicas(), broker_id=3, broker_epoch=6)
