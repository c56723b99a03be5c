"""Transactions in a simulated cluster: coordinators, markers, failovers, fencing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from minikafka.coordination.rule import partition_of
from minikafka.errors import (
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTxnState,
    NotCoordinator,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OperationNotAttempted,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)
from minikafka.log.partition_log import PartitionLog
from minikafka.rpc import call
from minikafka.sim.cluster import SimCluster
from minikafka.transactions.records import TRANSACTIONS_TOPIC
from minikafka.types import NodeId, TopicPartition
from minikafka.wire.batch import iterate
from minikafka.wire.group_messages import FindCoordinatorRequest, ListGroupsRequest
from minikafka.wire.markers import EndTransaction, marker_of
from minikafka.wire.messages import (
    DeleteTopicsRequest,
    InitProducerIdRequest,
    PartitionName,
    ProducePartition,
    ProduceRequest,
)
from minikafka.wire.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    ListTransactionsRequest,
    TransactionPartitions,
)
from tests.sim.cluster_kit import facts_of, simulated
from tests.sim.test_transaction_markers import asked, batch

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)
RETRIED = {
    ConcurrentTransactions.code,
    NotCoordinator.code,
    CoordinatorNotAvailable.code,
    14,
}


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    with simulated(
        transaction_state_log_num_partitions="3",
        transaction_abort_timed_out_transaction_cleanup_interval_ms="1000",
    ) as cluster:
        cluster.create_topic("orders", partitions=2)
        cluster.settle()
        yield cluster


def coordinator_of(cluster: SimCluster, name: str) -> NodeId:
    while True:
        found = asked(cluster, cluster.living()[0], FindCoordinatorRequest(keys=(name,), key_type=1)).coordinators[0]
        if not found.error_code:
            return found.node_id
        cluster.run_for(0.1)


def tell(cluster: SimCluster, name: str, request: Any) -> Any:
    """The coordinator's answer, after retries."""
    for _ in range(200):
        answer = asked(cluster, coordinator_of(cluster, name), request)
        parts = getattr(answer, "transactions", ())
        code = answer.error_code or next((each.error_code for each in parts), 0)
        if code not in RETRIED:
            return answer
        cluster.run_for(0.1)
    raise AssertionError(answer)


class Producer:
    """A transactional producer, one request at a time."""

    def __init__(self, cluster: SimCluster, name: str = "tx", *, version: int = 0, timeout_ms: int = 60_000) -> None:
        self.cluster, self.name, self.version = cluster, name, version
        answer = tell(cluster, name, InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=timeout_ms))
        assert not answer.error_code, answer
        self.id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences: dict[TopicPartition, int] = {}

    def add(self, *partitions: TopicPartition) -> Any:
        request = AddPartitionsToTxnRequest(
            transaction_version=self.version,
            transactions=(
                TransactionPartitions(
                    transactional_id=self.name,
                    producer_id=self.id,
                    producer_epoch=self.epoch,
                    partitions=tuple(PartitionName(topic=each.topic, partition=each.partition) for each in partitions),
                ),
            ),
        )
        return tell(self.cluster, self.name, request).transactions[0]

    def _request(self, partition: TopicPartition, value: bytes) -> ProduceRequest:
        data = batch(self.id, self.sequences.get(partition, 0), value, epoch=self.epoch)
        return ProduceRequest(
            transactional_id=self.name,
            transaction_version=self.version,
            timeout_ms=5000,
            partitions=(ProducePartition(topic=partition.topic, partition=partition.partition, records=(data,)),),
        )

    async def sending(self, partition: TopicPartition, value: bytes) -> Any:
        world = self.cluster.sim.of(f"client-{len(self.cluster.sim.journal)}")
        address = self.cluster.address_of(self.cluster.leader_of(partition))
        return await call(world.network, address, self._request(partition, value), world.clock.now() + 40.0)

    def send(self, partition: TopicPartition, value: bytes) -> int:
        answer = self.cluster.run(self.sending(partition, value)).partitions[0]
        if not answer.error_code:
            self.sequences[partition] = self.sequences.get(partition, 0) + 1
        return answer.error_code

    def end(self, *, commit: bool = True) -> Any:
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=commit,
            transaction_version=self.version,
        )
        answer = tell(self.cluster, self.name, request)
        if not answer.error_code and self.version:
            self.id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return answer


def described(cluster: SimCluster, name: str = "tx") -> Any:
    return tell(cluster, name, DescribeTransactionsRequest(transactional_ids=(name,))).transactions[0]


def log_of(cluster: SimCluster, node: NodeId, name: TopicPartition) -> PartitionLog:
    replica = cluster.replica(node, name)
    assert replica is not None
    return replica.log


def markers(cluster: SimCluster, name: TopicPartition) -> list[EndTransaction]:
    log = log_of(cluster, cluster.leader_of(name), name)
    part = log.read(0, max_bytes=1 << 20)
    batches = iterate(b"".join(bytes(each) for each in part.buffers))
    return [found for each in batches if each.is_control and (found := marker_of(each)) is not None]


def until_state(cluster: SimCluster, state: str, name: str = "tx") -> None:
    for _ in range(300):
        if described(cluster, name).state == state:
            return
        cluster.run_for(0.1)
    raise AssertionError(described(cluster, name))


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_transaction_ends_on_every_partition(cluster: SimCluster, version: int, commit: bool):
    """Each partition has one marker, on all replicas, with the epoch that the version demands."""
    producer = Producer(cluster, version=version)
    assert not producer.add(FIRST, SECOND).error_code
    for place in (FIRST, SECOND):
        assert producer.send(place, b"v") == 0
    assert not producer.end(commit=commit).error_code
    until_state(cluster, "CompleteCommit" if commit else "CompleteAbort")
    epoch = version // 2
    for place in (FIRST, SECOND):
        assert [each[:3] for each in markers(cluster, place)] == [(producer.id, epoch, commit)]
        assert [len(log_of(cluster, node, place).producers.transactions) for node in cluster.brokers] == [0, 0, 0]
    assert described(cluster).partitions == ()


def test_transactions_of_one_producer_follow_each_other(cluster: SimCluster):
    """Three of them: committed, aborted, committed."""
    producer = Producer(cluster, version=2)
    for commit in (True, False, True):
        assert not producer.add(FIRST).error_code
        assert producer.send(FIRST, b"v") == 0
        assert not producer.end(commit=commit).error_code
    until_state(cluster, "CompleteCommit")
    assert [each.is_commit for each in markers(cluster, FIRST)] == [True, False, True]


def test_version_2_adds_partitions_with_their_first_batch(cluster: SimCluster):
    """The producer sends no AddPartitionsToTxn (KIP-890, part 2)."""
    producer = Producer(cluster, version=2)
    for place in (FIRST, SECOND):
        assert producer.send(place, b"v") == 0
    assert [(each.topic, each.partition) for each in described(cluster).partitions] == [FIRST, SECOND]
    assert not producer.end().error_code
    until_state(cluster, "CompleteCommit")
    assert [each.is_commit for each in markers(cluster, SECOND)] == [True]


def test_batch_without_a_transaction_is_not_appended(cluster: SimCluster):
    """Not begun, another partition, another id, and late: a batch that its transaction left behind hangs for ever."""
    producer = Producer(cluster)
    assert producer.send(FIRST, b"not begun") == TransactionAbortable.code
    assert not producer.add(SECOND).error_code
    assert producer.send(FIRST, b"another partition") == TransactionAbortable.code
    producer.name = "nobody"
    assert producer.send(SECOND, b"another id") == InvalidProducerIdMapping.code
    producer.name = "tx"
    assert producer.send(SECOND, b"v") == 0
    assert not producer.end(commit=False).error_code
    until_state(cluster, "CompleteAbort")
    assert producer.send(SECOND, b"late") == TransactionAbortable.code
    assert log_of(cluster, cluster.leader_of(FIRST), FIRST).end_offset == 0
    assert log_of(cluster, cluster.leader_of(SECOND), SECOND).end_offset == 2


def test_batch_whose_transaction_ends_during_verification_is_not_appended(cluster: SimCluster):
    """The coordinator has confirmed it, and the marker arrives before the response: only the guard knows."""
    producer = Producer(cluster)
    assert not producer.add(FIRST).error_code
    node = cluster.leader_of(FIRST)
    verifier = cluster.brokers[node].transactions.verifier
    assert verifier is not None
    verify = verifier.verify

    async def slow(*args: Any, **options: Any) -> Any:
        found = await verify(*args, **options)
        await asyncio.sleep(3.0)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verifier, "verify", slow)
        cluster.asking_world()
        sending = cluster.sim.spawn("script", producer.sending(FIRST, b"late"))
        cluster.run_for(1.0)
        assert not producer.end(commit=False).error_code
        until_state(cluster, "CompleteAbort")
        cluster.until(sending.done, 30.0, "the response")
        assert sending.result().partitions[0].error_code == InvalidTxnState.code
    assert [each.is_commit for each in markers(cluster, FIRST)] == [False]
    assert log_of(cluster, node, FIRST).end_offset == 1


def test_batch_for_another_leader_aborts_no_transaction_if_the_partition_moves_here(cluster: SimCluster):
    """The other batch of the request is verified meanwhile. This one was not: INVALID_TXN_STATE made producers abort."""
    producer = Producer(cluster)
    assert not producer.add(FIRST, SECOND).error_code
    image = cluster.image()
    assert image is not None
    moving, staying = next(
        (moving, staying)
        for moving, staying in ((FIRST, SECOND), (SECOND, FIRST))
        if cluster.leader_of(staying) == image.topics["orders"].partitions[moving.partition].replicas[1]
    )
    node = cluster.leader_of(staying)
    assert cluster.leader_of(moving) != node
    verifier = cluster.brokers[node].transactions.verifier
    verify = verifier.verify

    async def slow(*args: Any, **options: Any) -> Any:
        found = await verify(*args, **options)
        cluster.crash(cluster.leader_of(moving))
        while cluster.brokers[node].replicas.get(moving).leader != node:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        return found

    items = tuple(
        ProducePartition(
            topic=each.topic, partition=each.partition, records=(batch(producer.id, 0, b"v", epoch=producer.epoch),)
        )
        for each in (staying, moving)
    )
    request = ProduceRequest(transactional_id="tx", timeout_ms=5000, partitions=items)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verifier, "verify", slow)
        answer = asked(cluster, node, request)
    assert [each.error_code for each in answer.partitions] == [0, NotLeaderOrFollower.code]
    assert log_of(cluster, node, moving).end_offset == 0
    assert producer.send(moving, b"v") == 0
    assert not producer.end().error_code


def test_batch_waits_for_a_coordinator(cluster: SimCluster):
    """While the coordinator's partition has no leader, producers repeat: NOT_ENOUGH_REPLICAS, and nothing is written."""
    producer = Producer(cluster)
    assert not producer.add(FIRST, SECOND).error_code
    node = coordinator_of(cluster, "tx")
    place = next(each for each in (FIRST, SECOND) if cluster.leader_of(each) != node)
    cluster.crash(node)
    assert producer.send(place, b"v") == NotEnoughReplicas.code
    cluster.settle()
    while (code := producer.send(place, b"v")) == NotEnoughReplicas.code:
        cluster.run_for(0.5)
    assert code == 0
    assert not producer.end().error_code


def test_new_producer_fences_the_old_one(cluster: SimCluster):
    """Its open transaction is aborted; each of its requests is rejected."""
    old = Producer(cluster)
    old.add(FIRST)
    assert old.send(FIRST, b"old") == 0
    new = Producer(cluster)
    assert (new.id, new.epoch) == (old.id, old.epoch + 2)
    assert [each[:3] for each in markers(cluster, FIRST)] == [(old.id, old.epoch + 1, False)]
    assert old.send(FIRST, b"late") == 47
    assert old.add(FIRST).error_code == ProducerFenced.code
    assert old.end().error_code == ProducerFenced.code


def test_producer_goes_on_with_another_id_after_its_last_epoch(cluster: SimCluster):
    """KIP-890: the coordinator brings the id to the end of the last transaction, and the response names it."""
    for broker in cluster.brokers.values():
        assert broker is not None
        broker.transactions._settings = replace(broker.transactions._settings, epoch_max=2)
    producer = Producer(cluster, version=2)
    identities = [(producer.id, producer.epoch)]
    for _ in range(3):
        assert producer.send(FIRST, b"v") == 0
        assert not producer.end().error_code
        until_state(cluster, "CompleteCommit")
        identities.append((producer.id, producer.epoch))
    (first, _), *_, (last, _) = identities
    assert first != last
    assert identities == [(first, 0), (first, 1), (last, 0), (last, 1)]
    assert [each.is_commit for each in markers(cluster, FIRST)] == [True] * 3


def test_transaction_over_its_timeout_is_aborted(cluster: SimCluster):
    """By the coordinator, without the producer."""
    producer = Producer(cluster, timeout_ms=3000)
    producer.add(FIRST)
    producer.send(FIRST, b"v")
    until_state(cluster, "CompleteAbort")
    assert [each.is_commit for each in markers(cluster, FIRST)] == [False]
    assert producer.end().error_code == ProducerFenced.code


def test_coordinator_that_dies_between_the_decision_and_the_markers_is_replaced(cluster: SimCluster):
    """The next one reads PrepareCommit and writes every marker."""
    producer = Producer(cluster)
    producer.add(FIRST, SECOND)
    for place in (FIRST, SECOND):
        producer.send(place, b"v")
    node = coordinator_of(cluster, "tx")
    partition = TopicPartition(TRANSACTIONS_TOPIC, partition_of("tx", 3))
    assert not producer.end().error_code
    assert [] in [markers(cluster, each) for each in (FIRST, SECOND)]
    cluster.crash(node)
    cluster.settle()
    cluster.until(lambda: cluster.leader_of(partition) not in (node, -1), 30.0, "another coordinator")
    until_state(cluster, "CompleteCommit")
    for place in (FIRST, SECOND):
        assert {each.is_commit for each in markers(cluster, place)} == {True}
        assert len(log_of(cluster, cluster.leader_of(place), place).producers.transactions) == 0


def test_leader_that_dies_does_not_lose_the_marker(cluster: SimCluster):
    """The coordinator looks the leader up again."""
    producer = Producer(cluster)
    producer.add(FIRST)
    producer.send(FIRST, b"v")
    cluster.crash(cluster.leader_of(FIRST))
    assert not producer.end().error_code
    until_state(cluster, "CompleteCommit")
    assert [each.is_commit for each in markers(cluster, FIRST)] == [True]


def test_deleted_topic_does_not_hold_up_a_transaction(cluster: SimCluster):
    """Its partitions need no marker any more."""
    cluster.create_topic("gone", partitions=1)
    cluster.settle()
    producer = Producer(cluster)
    producer.add(FIRST, TopicPartition("gone", 0))
    producer.send(FIRST, b"v")
    answer = asked(cluster, cluster.controller(), DeleteTopicsRequest(topics=("gone",)))
    assert not answer.topics[0].error_code
    cluster.settle()
    assert not producer.end().error_code
    until_state(cluster, "CompleteCommit")


def test_partitions_that_do_not_exist_are_refused_together(cluster: SimCluster):
    """Nothing is added."""
    producer = Producer(cluster)
    answer = producer.add(FIRST, TopicPartition("orders", 9))
    assert [each.error_code for each in answer.partitions] == [
        OperationNotAttempted.code,
        UnknownTopicOrPartition.code,
    ]
    assert described(cluster).state == "Empty"


def test_group_offsets_join_the_transaction(cluster: SimCluster):
    """AddOffsetsToTxn adds the group's partition of __consumer_offsets, and creates the topic."""
    producer = Producer(cluster)
    request = AddOffsetsToTxnRequest(
        transactional_id="tx", producer_id=producer.id, producer_epoch=producer.epoch, group_id="g"
    )
    assert not tell(cluster, "tx", request).error_code
    (place,) = described(cluster).partitions
    assert (place.topic, place.partition) == ("__consumer_offsets", partition_of("g", 50))
    assert not producer.end(commit=False).error_code
    until_state(cluster, "CompleteAbort")


WRONG = [
    (InitProducerIdRequest(transactional_id=""), InvalidRequest),
    (InitProducerIdRequest(transactional_id="tx", producer_id=99, producer_epoch=0), ProducerFenced),
    (EndTxnRequest(transactional_id="tx", producer_id=99, producer_epoch=0, committed=True), InvalidProducerIdMapping),
    (EndTxnRequest(transactional_id="who", producer_id=1, producer_epoch=0, committed=True), InvalidProducerIdMapping),
    (EndTxnRequest(transactional_id="", producer_id=1, producer_epoch=0, committed=True), InvalidRequest),
]


@pytest.mark.parametrize("request_, error", WRONG)
def test_bad_requests_have_their_code_and_leave_the_log_alone(cluster: SimCluster, request_: Any, error: Any):
    """Unknown ids, other producers, empty names."""
    Producer(cluster)
    name = request_.transactional_id or "tx"
    node = coordinator_of(cluster, name)
    end = log_of(cluster, node, TopicPartition(TRANSACTIONS_TOPIC, partition_of(name, 3))).end_offset
    assert asked(cluster, node, request_).error_code == error.code
    assert log_of(cluster, node, TopicPartition(TRANSACTIONS_TOPIC, partition_of(name, 3))).end_offset == end


def test_wrong_epochs_and_ends_without_a_transaction(cluster: SimCluster):
    """An epoch that nobody has, and a commit of nothing."""
    producer = Producer(cluster)
    assert producer.end().error_code == InvalidTxnState.code
    producer.epoch = 7
    assert producer.end().error_code == ProducerFenced.code
    assert producer.add(FIRST).error_code == ProducerFenced.code


def test_leader_verifies_a_partition(cluster: SimCluster):
    """AddPartitionsToTxn with verify_only: adds nothing."""
    producer = Producer(cluster)
    producer.add(FIRST)
    asking = TransactionPartitions(
        transactional_id="tx",
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        verify_only=True,
        partitions=tuple(PartitionName(topic=each.topic, partition=each.partition) for each in (FIRST, SECOND)),
    )
    answer = tell(cluster, "tx", AddPartitionsToTxnRequest(transactions=(asking,))).transactions[0]
    assert [each.error_code for each in answer.partitions] == [0, TransactionAbortable.code]
    assert len(described(cluster).partitions) == 1


def test_lists_are_retried_while_a_partition_has_lost_its_role(cluster: SimCluster):
    """Its disk failed, and the metadata does not say so yet. Java's clients retry COORDINATOR_NOT_AVAILABLE for a list,
    and give up for NOT_COORDINATOR.
    """
    Producer(cluster)
    while asked(cluster, 1, FindCoordinatorRequest(keys=("g",))).coordinators[0].error_code:
        cluster.run_for(0.1)
    for kind, request in (("transactions", ListTransactionsRequest()), ("groups", ListGroupsRequest())):
        node, shards = next(
            (node, shards) for node, broker in cluster.brokers.items() if list(shards := getattr(broker, kind).shards)
        )
        (shard, *_) = shards
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shard.partition, "role", None)
            assert asked(cluster, node, request).error_code == CoordinatorNotAvailable.code


def test_lists_are_retried_while_a_broker_has_no_session(cluster: SimCluster):
    """Cut off, it may have been replaced as coordinator: its list is as old as its metadata."""
    Producer(cluster)
    node = coordinator_of(cluster, "tx")
    for request in (ListTransactionsRequest(), ListGroupsRequest()):
        assert not asked(cluster, node, request).error_code
    for other in cluster.nodes:
        if other != node:
            cluster.cut(node, other)
            cluster.cut(other, node)
    cluster.run_for(15.0)
    for request in (ListTransactionsRequest(), ListGroupsRequest()):
        assert asked(cluster, node, request).error_code == CoordinatorNotAvailable.code


def test_list_and_describe(cluster: SimCluster):
    """Each broker lists what it coordinates."""
    names = [f"tx-{number}" for number in range(6)]
    producers = [Producer(cluster, name) for name in names]
    producers[0].add(FIRST)
    found = {}
    for node in cluster.brokers:
        answer = asked(cluster, node, ListTransactionsRequest(states=("Ongoing", "Empty", "Odd")))
        assert answer.unknown_states == ("Odd",)
        for each in answer.transactions:
            assert each.transactional_id not in found
            found[each.transactional_id] = each.state
    assert found == {name: "Ongoing" if name == "tx-0" else "Empty" for name in names}
    assert described(cluster, "nobody").error_code == TransactionalIdNotFound.code


def test_topic_of_transactions_has_its_forced_settings(cluster: SimCluster):
    """Compacted, at least two in-sync replicas, created by the first look-up; and no task before it."""
    assert not facts_of(cluster, "transaction_coordinator_loaded")
    coordinator_of(cluster, "tx")
    cluster.settle()
    image = cluster.image()
    assert image is not None
    topic = image.topics[TRANSACTIONS_TOPIC]
    assert len(topic.partitions) == 3
    assert {len(each.replicas) for each in topic.partitions} == {3}
    assert topic.configs["cleanup.policy"] == "compact"
    assert topic.configs["min.insync.replicas"] == "2"
