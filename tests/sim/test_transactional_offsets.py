"""Offsets of groups in transactions, in a simulated cluster: verified, pending, decided by the marker, failed over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from minikafka.client.structs import NewTopic
from minikafka.coordination.rule import partition_of
from minikafka.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    NotCoordinator,
    TransactionAbortable,
    UnknownMemberId,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnstableOffsetCommit,
)
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.sim.cluster import SimCluster
from minikafka.types import NodeId, TopicPartition
from minikafka.wire.group_messages import (
    CommitPartition,
    FetchedOffset,
    FindCoordinatorRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from minikafka.wire.messages import PartitionName
from minikafka.wire.transaction_messages import AddOffsetsToTxnRequest, TxnOffsetCommitRequest
from tests.sim.cluster_kit import Client, simulated
from tests.sim.test_transaction_markers import asked
from tests.sim.test_transactions import Producer, tell, until_state

RETRIED = {
    error.code for error in (ConcurrentTransactions, NotCoordinator, CoordinatorNotAvailable, CoordinatorLoadInProgress)
}
PLACE = PartitionName(topic="orders", partition=0)


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    with simulated(
        transaction_state_log_num_partitions="3",
        offsets_topic_num_partitions="3",
        group_initial_rebalance_delay_ms="0",
    ) as cluster:
        cluster.create_topic("orders", partitions=2)
        cluster.settle()
        yield cluster


def group_coordinator(cluster: SimCluster) -> NodeId:
    while True:
        found = asked(cluster, cluster.living()[0], FindCoordinatorRequest(keys=("g",))).coordinators[0]
        if not found.error_code:
            return found.node_id
        cluster.run_for(0.1)


def to_group(cluster: SimCluster, request: Any) -> Any:
    """The group coordinator's answer, after retries."""
    for _ in range(200):
        answer = asked(cluster, group_coordinator(cluster), request)
        codes = {answer.error_code, *(each.error_code for each in answer.partitions)}
        if not codes & RETRIED:
            return answer
        cluster.run_for(0.1)
    raise AssertionError(answer)


def fetched(cluster: SimCluster, *, stable: bool = True) -> FetchedOffset:
    request = OffsetFetchRequest(group_id="g", partitions=(PLACE,), require_stable=stable)
    (found,) = to_group(cluster, request).partitions
    return found


def offsets(producer: Producer, offset: int, **changed: Any) -> TxnOffsetCommitRequest:
    fields: dict[str, Any] = {
        "transactional_id": producer.name,
        "group_id": "g",
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "transaction_version": producer.version,
        "partitions": (CommitPartition(topic="orders", partition=0, offset=offset),),
    }
    return TxnOffsetCommitRequest(**{**fields, **changed})


def add_offsets(cluster: SimCluster, producer: Producer) -> None:
    request = AddOffsetsToTxnRequest(
        transactional_id=producer.name, producer_id=producer.id, producer_epoch=producer.epoch, group_id="g"
    )
    assert tell(cluster, producer.name, request).error_code == 0


def commit(cluster: SimCluster, producer: Producer, offset: int, **changed: Any) -> int:
    answer = to_group(cluster, offsets(producer, offset, **changed))
    return answer.error_code or answer.partitions[0].error_code


def plain(cluster: SimCluster, offset: int) -> None:
    places = (CommitPartition(topic="orders", partition=0, offset=offset),)
    assert to_group(cluster, OffsetCommitRequest(group_id="g", partitions=places)).partitions[0].error_code == 0


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("committed", [True, False])
def test_offsets_follow_the_decision(cluster: SimCluster, version: int, committed: bool):
    """Pending until the end, and decided for every reader as soon as the transaction counts as complete."""
    plain(cluster, 4)
    producer = Producer(cluster, version=version)
    if not version:
        add_offsets(cluster, producer)
    assert commit(cluster, producer, 9) == 0
    assert fetched(cluster).error_code == UnstableOffsetCommit.code
    assert fetched(cluster, stable=False).offset == 4
    assert not producer.end(commit=committed).error_code
    until_state(cluster, "CompleteCommit" if committed else "CompleteAbort")
    found = fetched(cluster)
    assert (found.error_code, found.offset) == (0, 9 if committed else 4)


@pytest.mark.parametrize("committed", [True, False])
def test_pending_offsets_survive_their_coordinator(cluster: SimCluster, committed: bool):
    """The next group coordinator reads them, and their end, from the log."""
    plain(cluster, 4)
    producer = Producer(cluster, version=2)
    assert commit(cluster, producer, 9) == 0
    for is_ended in (False, True):
        if is_ended:
            assert not producer.end(commit=committed).error_code
            until_state(cluster, "CompleteCommit" if committed else "CompleteAbort")
        node = group_coordinator(cluster)
        cluster.crash(node)
        name = TopicPartition(OFFSETS_TOPIC, partition_of("g", 3))
        cluster.until(lambda node=node, name=name: cluster.leader_of(name) not in (node, -1), 30.0, "a new leader")
        found = fetched(cluster)
        if is_ended:
            assert (found.error_code, found.offset) == (0, 9 if committed else 4)
        else:
            assert found.error_code == UnstableOffsetCommit.code
        cluster.restart(node)
        cluster.settle()


def test_offsets_outside_their_transaction_are_refused(cluster: SimCluster):
    """No transaction, none that contains the group, another producer, an older epoch, no such partition or member."""
    plain(cluster, 4)
    producer = Producer(cluster)
    assert commit(cluster, producer, 9) == TransactionAbortable.code
    assert not producer.add(TopicPartition("orders", 0)).error_code
    assert commit(cluster, producer, 9) == TransactionAbortable.code
    assert commit(cluster, producer, 9, producer_id=producer.id + 1) == InvalidProducerIdMapping.code
    assert commit(cluster, producer, 9, transactional_id="nobody") == InvalidProducerIdMapping.code
    add_offsets(cluster, producer)
    assert commit(cluster, producer, 9, producer_epoch=producer.epoch + 1) == InvalidProducerEpoch.code
    assert commit(cluster, producer, 9, generation_id=3, member_id="m") == UnknownMemberId.code
    places = (CommitPartition(topic="orders", partition=77, offset=1),)
    assert commit(cluster, producer, 9, partitions=places) == UnknownTopicOrPartition.code
    assert fetched(cluster).offset == 4
    assert commit(cluster, producer, 9) == 0
    assert not producer.end().error_code
    until_state(cluster, "CompleteCommit")
    assert fetched(cluster).offset == 9


def test_fenced_producer_commits_no_offsets(cluster: SimCluster):
    """A zombie whose successor has initialized: its offsets do not join the successor's transaction."""
    plain(cluster, 4)
    old = Producer(cluster)
    add_offsets(cluster, old)
    assert commit(cluster, old, 9) == 0
    new = Producer(cluster)
    assert commit(cluster, old, 10) == InvalidProducerEpoch.code
    add_offsets(cluster, new)
    assert commit(cluster, old, 10) == InvalidProducerEpoch.code
    assert commit(cluster, new, 5) == 0
    assert not new.end().error_code
    until_state(cluster, "CompleteCommit")
    assert fetched(cluster).offset == 5


@pytest.mark.parametrize("names_the_id", [False, True])
def test_offsets_of_a_topic_that_was_created_again_during_the_verification_are_refused(
    cluster: SimCluster, names_the_id: bool
):
    """Issue 13: the request waits for the transaction's coordinator, and meanwhile its topic is replaced. The offset
    counted for the new topic, whose first records the group then skipped.
    """
    plain(cluster, 4)
    producer = Producer(cluster, version=2)
    broker = cluster.brokers[group_coordinator(cluster)]
    assert broker is not None
    former = broker.metadata.image.topics["orders"].topic_id
    groups, verified, admin = broker.groups, broker.groups._verified, Client(cluster, "admin").admin

    async def replaced(*given: Any) -> Any:
        guard = await verified(*given)
        await admin.delete_topics(["orders"])
        await admin.create_topics([NewTopic("orders", 2, 3)])
        while broker.metadata.image.topics["orders"].topic_id == former:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)
        return guard

    groups._verified = replaced  # type: ignore[method-assign]
    place = CommitPartition(topic="orders", partition=0, offset=9, topic_id=former if names_the_id else None)
    assert commit(cluster, producer, 9, partitions=(place,)) == UnknownTopicId.code
    assert not producer.end().error_code
    until_state(cluster, "CompleteCommit")
    assert fetched(cluster).offset == -1


def test_a_commit_that_names_the_id_of_a_former_topic_is_refused(cluster: SimCluster):
    """Issue 13: OffsetCommit of version 10 names topics by their ids, and the coordinator compares them as it writes."""
    place = CommitPartition(topic="orders", partition=0, offset=9, topic_id="AAECAwQFBgcICQoLDA0ODw")
    (answer,) = to_group(cluster, OffsetCommitRequest(group_id="g", partitions=(place,))).partitions
    assert (answer.error_code, answer.outcome) == (UnknownTopicId.code, "not_written")
    assert fetched(cluster).offset == -1
