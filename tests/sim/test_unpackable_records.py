"""Records of coordinators that cannot be packed: the request is refused, nothing has changed, and no broker stops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from minikafka.errors import NOT_WRITTEN, UnknownServerError
from minikafka.groups import offsets as group_offsets
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.groups.records import GroupRecord, OffsetRecord
from minikafka.sim.cluster import SimCluster
from minikafka.transactions.coordinator import TransactionCoordinator
from minikafka.transactions.records import State, TransactionRecord
from minikafka.wire.group_messages import (
    CommitPartition,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    MemberAssignment,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)
from minikafka.wire.messages import InitProducerIdRequest
from tests.sim.cluster_kit import facts_of, simulated, simulated_orders
from tests.sim.test_group_coordinator import GROUP, Asker
from tests.sim.test_transactions import FIRST, Producer, tell

REFUSED = (UnknownServerError.code, NOT_WRITTEN)


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    with simulated_orders(group_initial_rebalance_delay_ms="0") as cluster:
        yield cluster


class Unpackable:
    """Records for which ``of`` is true cannot be packed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, coordinator: Any) -> None:
        self.of: Callable[[Any], bool] = lambda _: False
        pack = coordinator.packed

        def packed(record: Any) -> Any:
            if self.of(record):
                raise OverflowError("short int")
            return pack(record)

        monkeypatch.setattr(coordinator, "packed", staticmethod(packed))


@pytest.fixture
def group_records(monkeypatch: pytest.MonkeyPatch) -> Unpackable:
    return Unpackable(monkeypatch, GroupCoordinator)


@pytest.fixture
def transaction_records(monkeypatch: pytest.MonkeyPatch) -> Unpackable:
    return Unpackable(monkeypatch, TransactionCoordinator)


def check_no_broker_stopped(cluster: SimCluster, failures: int) -> None:
    assert not facts_of(cluster, "broker_failed")
    failed = facts_of(cluster, "request_failed")
    assert {each["why"] for each in failed} == {"OverflowError: short int"}
    assert len(failed) == failures
    assert len(cluster.living()) == 3


def test_an_offset_that_cannot_be_packed_is_refused(cluster: SimCluster, group_records: Unpackable):
    """The offset before it stays, and the next commit counts."""
    asker = Asker(cluster)
    assert asker.run(asker.stable())
    assert not asker.run(asker.commit(3)).error_code
    group_records.of = lambda record: isinstance(record, OffsetRecord) and record.value.offset == 5
    refused = asker.run(asker.commit(5))
    assert (refused.error_code, refused.outcome) == REFUSED
    assert asker.run(asker.committed()) == 3
    assert not asker.run(asker.commit(6)).error_code
    assert asker.run(asker.committed()) == 6
    check_no_broker_stopped(cluster, 1)


def test_a_generation_that_cannot_be_packed_is_refused(cluster: SimCluster, group_records: Unpackable):
    """SyncGroup fails, the members join again, and the next generation comes into force."""
    asker = Asker(cluster)
    asker.run(asker.joined())
    group_records.of = lambda record: isinstance(record, GroupRecord)
    request = SyncGroupRequest(
        group_id=GROUP,
        generation_id=asker.generation,
        member_id=asker.member_id,
        assignments=(MemberAssignment(member_id=asker.member_id, assignment=b"x"),),
    )
    assert asker.run(asker.asked(request)).error_code == UnknownServerError.code
    group_records.of = lambda _: False
    assert asker.run(asker.stable())
    check_no_broker_stopped(cluster, 1)


def test_a_member_that_cannot_be_packed_is_refused(cluster: SimCluster, group_records: Unpackable):
    """With the consumer protocol; the group is not there, and the next member forms it."""
    asker = Asker(cluster)

    def joining(member_id: str) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=member_id,
            member_epoch=0,
            rebalance_timeout_ms=4000,
            subscribed_topic_names=("orders",),
            topic_partitions=(),
        )

    group_records.of = lambda record: "first" in str(record)
    assert asker.run(asker.asked(joining("first"))).error_code == UnknownServerError.code
    joined = asker.run(asker.asked(joining("second")))
    assert (joined.error_code, joined.member_epoch) == (0, 1)
    check_no_broker_stopped(cluster, 1)


def test_tombstones_behind_those_that_cannot_be_packed_are_refused_too(
    cluster: SimCluster, group_records: Unpackable, monkeypatch: pytest.MonkeyPatch
):
    """Offsets in the batches before are forgotten: the outcome is unknown, and not_written only without such batches."""
    monkeypatch.setattr(group_offsets, "TOMBSTONES_BYTES_MAX", 1)
    cluster.create_topic("wide", partitions=3)
    cluster.settle()
    asker = Asker(cluster)
    request = OffsetCommitRequest(
        group_id=GROUP,
        partitions=tuple(CommitPartition(topic="wide", partition=number, offset=7) for number in range(3)),
    )
    assert not any(each.error_code for each in asker.run(asker.asked(request)).partitions)
    group_records.of = lambda record: isinstance(record, OffsetRecord) and record.partition.partition == 1

    def deleted() -> Any:
        return asker.run(asker.asked(DeleteGroupsRequest(groups=(GROUP,)))).groups[0]

    refused = deleted()
    assert (refused.error_code, refused.outcome) == (UnknownServerError.code, "unknown")
    found = asker.run(asker.asked(OffsetFetchRequest(group_id=GROUP))).partitions
    assert [each.partition for each in found] == [1, 2]
    group_records.of = lambda record: isinstance(record, OffsetRecord)
    refused = deleted()
    assert (refused.error_code, refused.outcome) == REFUSED
    group_records.of = lambda _: False
    assert not deleted().error_code
    check_no_broker_stopped(cluster, 2)


def test_a_decision_that_cannot_be_packed_is_refused(transaction_records: Unpackable):
    """The transaction stays open, and ends with the next request. A Complete record is tried again until it is written."""
    with simulated(transaction_state_log_num_partitions="3") as cluster:
        cluster.create_topic("orders", partitions=2)
        cluster.settle()
        transaction_records.of = lambda record: record.transactional_id == "other"
        request = InitProducerIdRequest(transactional_id="other", transaction_timeout_ms=60_000)
        answer = tell(cluster, "other", request)
        assert (answer.error_code, answer.outcome) == REFUSED
        producer = Producer(cluster)
        assert not producer.add(FIRST).partitions[0].error_code

        def in_state(*states: State) -> Callable[[TransactionRecord], bool]:
            return lambda record: record.value is not None and record.value.state in states

        transaction_records.of = in_state(State.PREPARE_COMMIT)
        answer = producer.end()
        assert (answer.error_code, answer.outcome) == REFUSED
        transaction_records.of = in_state(State.COMPLETE_COMMIT)
        assert not producer.end().error_code
        cluster.run_for(0.45)
        failures = len(facts_of(cluster, "request_failed"))
        assert 4 <= failures <= 7
        transaction_records.of = lambda _: False
        cluster.run_for(1.0)
        assert not producer.add(FIRST).partitions[0].error_code
        check_no_broker_stopped(cluster, failures)
