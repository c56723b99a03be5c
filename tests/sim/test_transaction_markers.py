"""WriteTxnMarkers at the leaders: appended once, committed before the answer, refused from strangers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from minikafka.errors import (
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidRequest,
    NotLeaderOrFollower,
    StaleBrokerEpoch,
    TransactionCoordinatorFenced,
    UnknownTopicOrPartition,
)
from minikafka.log.partition_log import PartitionLog
from minikafka.rpc import call
from minikafka.sim.cluster import SimCluster
from minikafka.sim.world import WALL_START_MS
from minikafka.types import TopicPartition
from minikafka.wire.messages import PartitionName, ProducePartition, ProduceRequest, ProduceResponse
from minikafka.wire.records import Record, build_batch
from minikafka.wire.transaction_messages import TransactionMarker, WriteTxnMarkersRequest, WriteTxnMarkersResponse
from tests.sim.cluster_kit import ORDERS, simulated_orders

PLACE = PartitionName(topic="orders", partition=0)


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    # These transactions have no coordinator.
    with simulated_orders(transaction_partition_verification_enable="false", partitions=2) as cluster:
        yield cluster


def batch(producer_id: int, sequence: int, *values: bytes, epoch: int = 0, transactional: bool = True) -> bytes:
    return build_batch(
        [Record(0, WALL_START_MS, value=value) for value in values],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def asked(cluster: SimCluster, node: int, request: Any, *, within_s: float = 40.0) -> Any:
    world = cluster.sim.of(f"client-{len(cluster.sim.journal)}")
    return cluster.run(call(world.network, cluster.address_of(node), request, world.clock.now() + within_s))


def produced(cluster: SimCluster, *batches: bytes, transactional_id: str | None = "t") -> ProduceResponse:
    items = tuple(
        ProducePartition(topic="orders", partition=number, records=(each,)) for number, each in enumerate(batches)
    )
    request = ProduceRequest(transactional_id=transactional_id, timeout_ms=5000, partitions=items)
    leaders = {cluster.leader_of(TopicPartition("orders", number)) for number in range(len(batches))}
    answer: ProduceResponse = asked(cluster, leaders.pop(), request)
    return answer


def marker(**changed: Any) -> TransactionMarker:
    fields: dict[str, Any] = {
        "producer_id": 7,
        "producer_epoch": 0,
        "committed": True,
        "coordinator_epoch": 1,
        "partitions": (PLACE,),
    }
    return TransactionMarker(**{**fields, **changed})


def sent(cluster: SimCluster, *markers: TransactionMarker, node: int | None = None, **sender: int) -> Any:
    """Send markers to the leader of ``orders-0``, as another broker sends them."""
    leader = cluster.leader_of(ORDERS)
    other = next((each for each in cluster.brokers if each != leader), leader)
    sender = sender or {"broker_id": other, "broker_epoch": epoch_of(cluster, other)}
    answer: WriteTxnMarkersResponse = asked(
        cluster, leader if node is None else node, WriteTxnMarkersRequest(markers=markers, **sender)
    )
    return answer


def epoch_of(cluster: SimCluster, node: int) -> int:
    image = cluster.image()
    assert image is not None
    return image.brokers[node].broker_epoch


def log_of(cluster: SimCluster, node: int) -> PartitionLog:
    replica = cluster.replica(node, ORDERS)
    assert replica is not None
    return replica.log


def codes(answer: WriteTxnMarkersResponse) -> list[int]:
    assert not answer.error_code, answer
    return [each.error_code for each in answer.markers]


def test_marker_is_on_every_replica_when_it_is_answered(cluster: SimCluster):
    """As acks=all: a coordinator counts an answered marker as done for ever."""
    assert produced(cluster, batch(7, 0, b"a", b"b")).partitions[0].error_code == 0
    assert codes(sent(cluster, marker())) == [0]
    logs = [log_of(cluster, node) for node in cluster.brokers]
    assert [log.end_offset for log in logs] == [3, 3, 3]
    assert [len(log.producers.transactions) for log in logs] == [0, 0, 0]


def test_repeated_marker_is_harmless_and_an_old_one_is_refused(cluster: SimCluster):
    """A coordinator repeats what was not answered; a former coordinator must not get through."""
    produced(cluster, batch(7, 0, b"a"))
    assert codes(sent(cluster, marker(), marker())) == [0, 0]
    assert codes(sent(cluster, marker(coordinator_epoch=0))) == [TransactionCoordinatorFenced.code]
    assert codes(sent(cluster, marker(producer_epoch=3))) == [0]
    assert codes(sent(cluster, marker(producer_epoch=2))) == [InvalidProducerEpoch.code]


def test_late_copy_of_a_marker_leaves_the_next_transaction_open(cluster: SimCluster):
    """Before transaction version 2 (KIP-890): the coordinator sent it twice, and the first copy comes when all is over."""
    produced(cluster, batch(7, 0, b"a"))
    assert codes(sent(cluster, marker(number=1))) == [0]
    produced(cluster, batch(7, 1, b"b"))
    assert codes(sent(cluster, marker(number=1))) == [InvalidProducerEpoch.code]
    log = log_of(cluster, cluster.leader_of(ORDERS))
    assert (log.end_offset, log.stable_end(log.end_offset)) == (3, 2)
    assert codes(sent(cluster, marker(number=2))) == [0]
    assert log.stable_end(log.end_offset) == 4


def test_each_partition_of_each_marker_is_answered(cluster: SimCluster):
    """One that fails does not keep the others from being written."""
    nowhere = PartitionName(topic="orders", partition=9)
    answer = sent(cluster, marker(partitions=(nowhere, PLACE)), marker(producer_id=8))
    assert codes(answer) == [UnknownTopicOrPartition.code, 0, 0]
    assert [(each.producer_id, each.partition) for each in answer.markers] == [(7, 9), (7, 0), (8, 0)]


def test_follower_writes_no_marker(cluster: SimCluster):
    """Only the leader's log counts."""
    other = next(each for each in cluster.brokers if each != cluster.leader_of(ORDERS))
    assert codes(sent(cluster, marker(), node=other)) == [NotLeaderOrFollower.code]


@pytest.mark.parametrize(
    ("sender", "error"),
    [
        ({"broker_id": 99, "broker_epoch": 1}, ClusterAuthorizationFailed),
        ({"broker_id": 1, "broker_epoch": -1}, StaleBrokerEpoch),
    ],
)
def test_markers_of_strangers_are_refused(cluster: SimCluster, sender: dict[str, int], error: Any):
    """A marker decides what is read: a broker that sends one must be registered, in its present incarnation."""
    produced(cluster, batch(7, 0, b"a"))
    answer = sent(cluster, marker(), **sender)
    assert (answer.error_code, answer.markers) == (error.code, ())
    assert log_of(cluster, cluster.leader_of(ORDERS)).end_offset == 1


@pytest.mark.parametrize(
    "changed",
    [{"producer_id": -1}, {"producer_epoch": -1}, {"producer_epoch": 1 << 15}, {"coordinator_epoch": 1 << 31}],
)
def test_numbers_out_of_range_are_refused(cluster: SimCluster, changed: dict[str, int]):
    """Before anything is written, also of the request's other markers."""
    answer = sent(cluster, marker(), marker(**changed))
    assert answer.error_code == InvalidRequest.code
    assert next(iter(changed)) in answer.error_message
    assert log_of(cluster, cluster.leader_of(ORDERS)).end_offset == 0


def test_transactional_batches_need_a_transactional_id(cluster: SimCluster):
    """Also of the long way, beside the loop."""
    for data in (batch(7, 0, b"a"), batch(7, 0, *[b"long" * 1000] * 30)):
        answer = produced(cluster, data, transactional_id=None).partitions[0]
        assert (answer.error_code, answer.outcome) == (InvalidRecord.code, "not_written")
        assert "names no transactional id" in answer.error_message
    assert produced(cluster, batch(7, 0, *[b"long" * 1000] * 30)).partitions[0].error_code == 0
    assert produced(cluster, batch(8, 0, b"a", transactional=False)).partitions[0].error_code == 0


def test_one_transaction_has_one_producer(cluster: SimCluster):
    """A request whose transactional batches name two of them is refused as a whole."""
    answer = produced(cluster, batch(7, 0, b"a"), batch(8, 0, b"b"))
    assert answer.error_code == InvalidProducerIdMapping.code
    assert "[7, 8]" in answer.error_message


def test_a_broker_that_is_no_longer_registered_is_an_error_of_the_protocol(cluster: SimCluster):
    """Between the look-up of a leader and the request to it, its broker may be unregistered: the sender survives that."""
    broker = cluster.brokers[1]
    request = WriteTxnMarkersRequest(broker_id=1, broker_epoch=epoch_of(cluster, 1), markers=(marker(),))
    with pytest.raises(BrokerNotAvailable, match="broker 9 is not registered"):
        cluster.run(broker._ask_broker(9, request, 1.0))
