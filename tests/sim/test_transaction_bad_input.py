"""Every wrong request about a transaction has its error code and leaves logs and transaction unharmed: a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from minikafka.coordination.rule import partition_of
from minikafka.errors import (
    ClusterAuthorizationFailed,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidRequest,
    InvalidTopic,
    InvalidTransactionTimeout,
    InvalidTxnState,
    NotCoordinator,
    NotLeaderOrFollower,
    OperationNotAttempted,
    OutOfOrderSequenceNumber,
    ProducerFenced,
    ProtocolError,
    StaleBrokerEpoch,
    TransactionAbortable,
    TransactionalIdNotFound,
    TransactionCoordinatorFenced,
    UnknownTopicOrPartition,
)
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.sim.cluster import SimCluster
from minikafka.transactions.records import ID_BYTES_MAX, TRANSACTIONS_TOPIC
from minikafka.types import NodeId, TopicPartition
from minikafka.wire.group_messages import CommitPartition, FindCoordinatorRequest
from minikafka.wire.messages import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DescribeProducersPartition,
    DescribeProducersRequest,
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
    TransactionMarker,
    TransactionPartitions,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)
from tests.sim.cluster_kit import simulated_orders
from tests.sim.test_transaction_markers import asked, batch
from tests.sim.test_transactions import FIRST, SECOND, Producer, coordinator_of, described, log_of, markers, until_state

PARTITIONS = 3
TIMEOUT_MS_MAX = 900_000
STRANGER = 9_000
"""A producer id that no coordinator has given out."""

SETTINGS = {
    "transaction_state_log_num_partitions": str(PARTITIONS),
    "offsets_topic_num_partitions": str(PARTITIONS),
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": "1000",
    "transaction_remove_expired_transaction_cleanup_interval_ms": "1000",
    "transactional_id_expiration_ms": "60000",
}


@pytest.fixture(scope="module")
def running() -> Iterator[Producer]:
    """A producer at epoch 1 of a transaction with one record in the first partition of orders."""
    with simulated_orders(**SETTINGS, partitions=2) as cluster:
        while asked(cluster, cluster.living()[0], FindCoordinatorRequest(keys=("g",))).coordinators[0].error_code:
            cluster.run_for(0.1)
        Producer(cluster)
        producer = Producer(cluster, timeout_ms=TIMEOUT_MS_MAX)
        assert not producer.add(FIRST).error_code
        assert producer.send(FIRST, b"kept") == 0
        yield producer


# ---- requests --------------------------------------------------------------------------------------------------------


def initialized(_: Producer, **changed: Any) -> InitProducerIdRequest:
    return InitProducerIdRequest(**{"transactional_id": "tx", "transaction_timeout_ms": 60_000, **changed})


def added(
    producer: Producer, *partitions: TopicPartition, transaction_version: int = 0, **changed: Any
) -> AddPartitionsToTxnRequest:
    fields: dict[str, Any] = {
        "transactional_id": "tx",
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "partitions": tuple(PartitionName(topic=each.topic, partition=each.partition) for each in partitions),
        **changed,
    }
    return AddPartitionsToTxnRequest(
        transactions=(TransactionPartitions(**fields),), transaction_version=transaction_version
    )


def of_group(producer: Producer, **changed: Any) -> AddOffsetsToTxnRequest:
    fields: dict[str, Any] = {"transactional_id": "tx", "producer_id": producer.id, "producer_epoch": producer.epoch}
    return AddOffsetsToTxnRequest(**{**fields, "group_id": "g", **changed})


def ended(producer: Producer, **changed: Any) -> EndTxnRequest:
    fields: dict[str, Any] = {"transactional_id": "tx", "producer_id": producer.id, "producer_epoch": producer.epoch}
    return EndTxnRequest(**{**fields, "committed": True, **changed})


def offsets(producer: Producer, **changed: Any) -> TxnOffsetCommitRequest:
    fields: dict[str, Any] = {
        "transactional_id": "tx",
        "group_id": "g",
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "partitions": (CommitPartition(topic="orders", partition=0, offset=1),),
    }
    return TxnOffsetCommitRequest(**{**fields, **changed})


def sent(
    producer: Producer,
    place: TopicPartition = FIRST,
    *,
    transactional_id: str | None = "tx",
    transaction_version: int = 0,
    **changed: Any,
) -> ProduceRequest:
    fields: dict[str, Any] = {"producer_id": producer.id, "sequence": 1, "epoch": producer.epoch, **changed}
    data = batch(fields.pop("producer_id"), fields.pop("sequence"), b"wrong", **fields)
    return ProduceRequest(
        transactional_id=transactional_id,
        transaction_version=transaction_version,
        timeout_ms=5000,
        partitions=(ProducePartition(topic=place.topic, partition=place.partition, records=(data,)),),
    )


def marked(
    producer: Producer, place: TopicPartition = FIRST, *, sender: dict[str, int] | None = None, **changed: Any
) -> WriteTxnMarkersRequest:
    fields: dict[str, Any] = {
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "committed": False,
        "coordinator_epoch": 0,
        "partitions": (PartitionName(topic=place.topic, partition=place.partition),),
    }
    return WriteTxnMarkersRequest(**(sender or {}), markers=(TransactionMarker(**{**fields, **changed}),))


def written(producer: Producer, topic: str, partition: int) -> DescribeProducersRequest:
    del producer
    return DescribeProducersRequest(partitions=(DescribeProducersPartition(topic=topic, partition=partition),))


def deletion(topic: str, name: str) -> DeleteRecordsRequest:
    """All that the coordinator of ``name`` has committed."""
    item = DeleteRecordsPartition(topic=topic, partition=partition_of(name, PARTITIONS), offset=-1)
    return DeleteRecordsRequest(partitions=(item,))


NOWHERE, NO_NUMBER = TopicPartition("nothing", 0), TopicPartition("orders", 9)

WRONG: dict[str, tuple[Callable[[Producer], Any], type[ProtocolError]]] = {
    # InitProducerId
    "init: empty id": (lambda p: initialized(p, transactional_id=""), InvalidRequest),
    "init: timeout 0": (lambda p: initialized(p, transaction_timeout_ms=0), InvalidTransactionTimeout),
    "init: negative timeout": (lambda p: initialized(p, transaction_timeout_ms=-1), InvalidTransactionTimeout),
    "init: timeout above the limit": (
        lambda p: initialized(p, transaction_timeout_ms=TIMEOUT_MS_MAX + 1),
        InvalidTransactionTimeout,
    ),
    "init: another producer": (lambda p: initialized(p, producer_id=STRANGER, producer_epoch=0), ProducerFenced),
    # AddPartitionsToTxn
    "add: empty id": (lambda p: added(p, FIRST, transactional_id=""), InvalidRequest),
    "add: unknown id": (lambda p: added(p, FIRST, transactional_id="nobody"), InvalidProducerIdMapping),
    "add: another producer": (lambda p: added(p, FIRST, producer_id=STRANGER), InvalidProducerIdMapping),
    "add: older epoch": (lambda p: added(p, FIRST, producer_epoch=0), ProducerFenced),
    "add: newer epoch": (lambda p: added(p, FIRST, producer_epoch=2), ProducerFenced),
    "add: unknown topic": (lambda p: added(p, NOWHERE), UnknownTopicOrPartition),
    "add: unknown partition": (lambda p: added(p, NO_NUMBER), UnknownTopicOrPartition),
    "add: one unknown partition": (lambda p: added(p, SECOND, NOWHERE), OperationNotAttempted),
    "add: unknown version": (lambda p: added(p, SECOND, transaction_version=1 << 15), InvalidRequest),
    "add: negative version": (lambda p: added(p, SECOND, transaction_version=-1), InvalidRequest),
    "verify: partition of no transaction": (lambda p: added(p, SECOND, verify_only=True), TransactionAbortable),
    "verify: older epoch": (lambda p: added(p, FIRST, verify_only=True, producer_epoch=0), ProducerFenced),
    # AddOffsetsToTxn
    "offsets: empty id": (lambda p: of_group(p, transactional_id=""), InvalidRequest),
    "offsets: unknown id": (lambda p: of_group(p, transactional_id="nobody"), InvalidProducerIdMapping),
    "offsets: another producer": (lambda p: of_group(p, producer_id=STRANGER), InvalidProducerIdMapping),
    "offsets: older epoch": (lambda p: of_group(p, producer_epoch=0), ProducerFenced),
    # TxnOffsetCommit
    "commit: group outside the transaction": (offsets, TransactionAbortable),
    "commit: another producer": (lambda p: offsets(p, producer_id=STRANGER), InvalidProducerIdMapping),
    "commit: unknown id": (lambda p: offsets(p, transactional_id="nobody"), InvalidProducerIdMapping),
    "commit: older epoch": (lambda p: offsets(p, producer_epoch=0), InvalidProducerEpoch),
    "commit: epoch out of range": (lambda p: offsets(p, producer_epoch=1 << 15), InvalidRequest),
    "commit: negative epoch": (lambda p: offsets(p, producer_epoch=-1), InvalidRequest),
    "commit: negative producer id": (lambda p: offsets(p, producer_id=-1), InvalidRequest),
    "commit: unknown version": (lambda p: offsets(p, transaction_version=1 << 15), InvalidRequest),
    # EndTxn
    "end: empty id": (lambda p: ended(p, transactional_id=""), InvalidRequest),
    "end: unknown id": (lambda p: ended(p, transactional_id="nobody"), InvalidProducerIdMapping),
    "end: another producer": (lambda p: ended(p, producer_id=STRANGER), InvalidProducerIdMapping),
    "end: older epoch": (lambda p: ended(p, producer_epoch=0), ProducerFenced),
    "end: newer epoch": (lambda p: ended(p, producer_epoch=2), ProducerFenced),
    "end: older epoch, version 2": (lambda p: ended(p, producer_epoch=0, transaction_version=2), ProducerFenced),
    "end: newer epoch, version 2": (lambda p: ended(p, producer_epoch=2, transaction_version=2), ProducerFenced),
    "end: unknown version": (lambda p: ended(p, transaction_version=1 << 15), InvalidRequest),
    "end: negative version": (lambda p: ended(p, transaction_version=-(1 << 15) - 1), InvalidRequest),
    # Produce
    "produce: older epoch": (lambda p: sent(p, epoch=0, sequence=0), InvalidProducerEpoch),
    "produce: gap in the sequence": (lambda p: sent(p, sequence=5), OutOfOrderSequenceNumber),
    "produce: no transactional id": (lambda p: sent(p, transactional_id=None), InvalidRecord),
    "produce: outside the open transaction": (lambda p: sent(p, transactional=False), InvalidTxnState),
    "produce: partition of no transaction": (lambda p: sent(p, SECOND, sequence=0), TransactionAbortable),
    "produce: another producer": (lambda p: sent(p, producer_id=STRANGER, sequence=0), InvalidProducerIdMapping),
    "produce: unknown id": (
        lambda p: sent(p, producer_id=STRANGER, sequence=0, transactional_id="nobody", transaction_version=2),
        InvalidProducerIdMapping,
    ),
    "produce: unknown version": (lambda p: sent(p, SECOND, sequence=0, transaction_version=1 << 15), InvalidRequest),
    # WriteTxnMarkers
    "marker: unregistered broker": (
        lambda p: marked(p, sender={"broker_id": 99, "broker_epoch": 1}),
        ClusterAuthorizationFailed,
    ),
    "marker: former incarnation of a broker": (
        lambda p: marked(p, sender={"broker_id": 1, "broker_epoch": -1}),
        StaleBrokerEpoch,
    ),
    "marker: older epoch": (lambda p: marked(p, producer_epoch=0), InvalidProducerEpoch),
    "marker: epoch of the data, version 2": (lambda p: marked(p, transaction_version=2), InvalidProducerEpoch),
    "marker: negative producer id": (lambda p: marked(p, producer_id=-1), InvalidRequest),
    "marker: producer id out of range": (lambda p: marked(p, producer_id=1 << 63), InvalidRequest),
    "marker: epoch out of range": (lambda p: marked(p, producer_epoch=1 << 15), InvalidRequest),
    "marker: negative coordinator epoch": (lambda p: marked(p, coordinator_epoch=-1), InvalidRequest),
    "marker: unknown topic": (lambda p: marked(p, NOWHERE), UnknownTopicOrPartition),
    # Requests of administrators
    "describe: empty id": (lambda _: DescribeTransactionsRequest(transactional_ids=("",)), InvalidRequest),
    "describe: unknown id": (
        lambda _: DescribeTransactionsRequest(transactional_ids=("nobody",)),
        TransactionalIdNotFound,
    ),
    "delete records: of the transaction coordinator": (lambda _: deletion(TRANSACTIONS_TOPIC, "tx"), InvalidTopic),
    "delete records: of the group coordinator": (lambda _: deletion(OFFSETS_TOPIC, "g"), InvalidTopic),
    "producers: unknown topic": (lambda p: written(p, "nothing", 0), UnknownTopicOrPartition),
    "producers: unknown partition": (lambda p: written(p, "orders", 9), UnknownTopicOrPartition),
}
"""By name: the request, from what the running producer has, and the error."""


def receiver(cluster: SimCluster, request: Any) -> NodeId:
    """The broker that answers for the request: a coordinator, or the leader of the first partition of orders."""
    if isinstance(request, TxnOffsetCommitRequest):
        return asked(cluster, cluster.living()[0], FindCoordinatorRequest(keys=("g",))).coordinators[0].node_id  # type: ignore[no-any-return]
    if isinstance(request, ProduceRequest | DeleteRecordsRequest):
        return cluster.leader_of(TopicPartition(request.partitions[0].topic, request.partitions[0].partition))
    if isinstance(request, WriteTxnMarkersRequest | DescribeProducersRequest):
        return cluster.leader_of(FIRST)
    if isinstance(request, AddPartitionsToTxnRequest):
        name = request.transactions[0].transactional_id
    elif isinstance(request, DescribeTransactionsRequest):
        name = request.transactional_ids[0]
    else:
        name = request.transactional_id
    return coordinator_of(cluster, name or "tx")


def codes(answer: Any) -> list[int]:
    """Every error code of an answer, its own first."""
    parts = [each for member in ("transactions", "partitions", "markers") for each in getattr(answer, member, ())]
    return [answer.error_code, *(code for each in parts for code in codes(each) if hasattr(each, "error_code"))]


def ends(cluster: SimCluster) -> dict[TopicPartition, int]:
    """Log ends of everything that a request about a transaction could write to."""
    internal = [TopicPartition(topic, n) for topic in (TRANSACTIONS_TOPIC, OFFSETS_TOPIC) for n in range(PARTITIONS)]
    return {each: log_of(cluster, cluster.leader_of(each), each).end_offset for each in (FIRST, SECOND, *internal)}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_request_has_its_code_and_changes_nothing(running: Producer, name: str):
    """The log ends stay where they were, and so does the open transaction."""
    make, error = WRONG[name]
    cluster, request = running.cluster, make(running)
    before, transaction = ends(cluster), described(cluster)
    assert transaction.state == "Ongoing"
    answer = asked(cluster, receiver(cluster, request), request)
    assert error.code in codes(answer), answer
    cluster.run_for(1.0)
    assert ends(cluster) == before
    assert described(cluster) == transaction


TOO_LONG = "x" * (ID_BYTES_MAX + 1)

WITH_A_LONG_ID: list[Callable[[Producer], Any]] = [
    lambda p: initialized(p, transactional_id=TOO_LONG),
    lambda p: added(p, FIRST, transactional_id=TOO_LONG),
    lambda p: of_group(p, transactional_id=TOO_LONG),
    lambda p: offsets(p, transactional_id=TOO_LONG),
    lambda p: ended(p, transactional_id=TOO_LONG),
    lambda p: sent(p, transactional_id=TOO_LONG),
    lambda _: DescribeTransactionsRequest(transactional_ids=(TOO_LONG,)),
]


@pytest.mark.parametrize("number", range(len(WITH_A_LONG_ID)))
def test_transactional_id_that_no_record_can_hold_is_refused(running: Producer, number: int):
    """A key of `__transaction_state` has the id's length as an int16. The coordinator stopped on a longer one."""
    cluster, request = running.cluster, WITH_A_LONG_ID[number](running)
    before = ends(cluster)
    answers = [asked(cluster, node, request) for node in cluster.living()]
    assert any(InvalidRequest.code in codes(answer) for answer in answers), answers
    assert len(cluster.living()) == len(answers)
    assert ends(cluster) == before
    found = asked(cluster, cluster.living()[0], FindCoordinatorRequest(keys=(TOO_LONG,), key_type=1)).coordinators[0]
    assert found.error_code == InvalidRequest.code


def test_request_to_a_broker_that_does_not_coordinate_is_refused(running: Producer):
    """NOT_COORDINATOR or NOT_LEADER_OR_FOLLOWER; nothing is written."""
    cluster, before = running.cluster, ends(running.cluster)
    other = next(each for each in cluster.living() if each != coordinator_of(cluster, "tx"))
    describing = DescribeTransactionsRequest(transactional_ids=("tx",))
    for request in (initialized(running), added(running, FIRST), of_group(running), ended(running), describing):
        assert NotCoordinator.code in codes(asked(cluster, other, request))
    follower = next(each for each in cluster.living() if each != cluster.leader_of(FIRST))
    for request in (marked(running), sent(running)):
        assert NotLeaderOrFollower.code in codes(asked(cluster, follower, request))
    assert ends(cluster) == before


def test_the_transaction_commits_after_all_that(running: Producer):
    """Whatever was sent before: its record is committed, and one marker says so. The last of this file's table."""
    assert running.send(FIRST, b"kept too") == 0
    assert not running.end().error_code
    until_state(running.cluster, "CompleteCommit")
    assert [(each.producer_epoch, each.is_commit) for each in markers(running.cluster, FIRST)] == [
        (running.epoch, True)
    ]


def test_offsets_of_no_possible_producer_are_refused_without_verification_too():
    """No coordinator of transactions compares the producer then: the batch could not be written, or never ended."""
    unverified = {**SETTINGS, "transaction_partition_verification_enable": "false"}
    with simulated_orders(**unverified) as cluster:
        while (found := asked(cluster, 1, FindCoordinatorRequest(keys=("g",))).coordinators[0]).error_code:
            cluster.run_for(0.1)
        for producer_id, epoch in ((4000, 1 << 15), (4000, -1), (-1, 0)):
            request = TxnOffsetCommitRequest(
                transactional_id="tx",
                group_id="g",
                producer_id=producer_id,
                producer_epoch=epoch,
                partitions=(CommitPartition(topic="orders", partition=0, offset=1),),
            )
            assert codes(asked(cluster, found.node_id, request)) == [InvalidRequest.code]


# ---- transactions that outlive every limit ---------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    with simulated_orders(**SETTINGS, partitions=2) as cluster:
        yield cluster


@pytest.mark.parametrize("version", [0, 2])
def test_transaction_over_its_timeout_is_aborted_and_its_producer_fenced(cluster: SimCluster, version: int):
    """Every later request of the producer is refused, and the next transaction of its successor is untouched."""
    producer = Producer(cluster, version=version, timeout_ms=2000)
    producer.add(FIRST)
    assert producer.send(FIRST, b"late") == 0
    cluster.run_for(2.0)
    until_state(cluster, "CompleteAbort")
    end = log_of(cluster, cluster.leader_of(FIRST), FIRST).end_offset
    assert producer.end().error_code == ProducerFenced.code
    if not version:  # with version 2, an abort repeated after the coordinator's own succeeds (KIP-890)
        assert producer.end(commit=False).error_code == ProducerFenced.code
    assert producer.add(FIRST).error_code == ProducerFenced.code
    assert producer.send(FIRST, b"later") == InvalidProducerEpoch.code
    assert log_of(cluster, cluster.leader_of(FIRST), FIRST).end_offset == end
    successor = Producer(cluster, version=version)
    successor.add(FIRST)
    assert successor.send(FIRST, b"next") == 0
    assert producer.send(FIRST, b"zombie") == InvalidProducerEpoch.code
    assert not successor.end().error_code
    until_state(cluster, "CompleteCommit")
    assert [each.is_commit for each in markers(cluster, FIRST)] == [False, True]


def test_expired_id_is_unknown_and_starts_over(cluster: SimCluster):
    """Its former producer must initialize; an id with an open transaction does not expire before its timeout."""
    producer = Producer(cluster)
    cluster.run_for(65.0)
    answer = asked(cluster, coordinator_of(cluster, "tx"), added(producer, FIRST))
    assert InvalidProducerIdMapping.code in codes(answer)
    answer = asked(cluster, coordinator_of(cluster, "tx"), ended(producer))
    assert codes(answer) == [InvalidProducerIdMapping.code]
    assert described(cluster).error_code == TransactionalIdNotFound.code
    successor = Producer(cluster)
    assert (successor.id != producer.id, successor.epoch) == (True, 0)
    assert producer.add(FIRST).error_code == InvalidProducerIdMapping.code
    partition = TopicPartition(TRANSACTIONS_TOPIC, partition_of("tx", PARTITIONS))
    assert log_of(cluster, cluster.leader_of(partition), partition).end_offset >= 3


def test_marker_of_a_former_coordinator_is_refused(cluster: SimCluster):
    """TRANSACTION_COORDINATOR_FENCED: a coordinator that was replaced ends nothing."""
    producer = Producer(cluster)
    producer.add(FIRST)
    assert producer.send(FIRST, b"a") == 0
    answer = asked(cluster, cluster.leader_of(FIRST), marked(producer, coordinator_epoch=7))
    assert codes(answer) == [0, 0]
    end = log_of(cluster, cluster.leader_of(FIRST), FIRST).end_offset
    answer = asked(cluster, cluster.leader_of(FIRST), marked(producer, coordinator_epoch=6))
    assert codes(answer) == [0, TransactionCoordinatorFenced.code]
    assert log_of(cluster, cluster.leader_of(FIRST), FIRST).end_offset == end
