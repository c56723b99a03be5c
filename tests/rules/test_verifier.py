"""What a producer receives when its transaction's coordinator does not add a partition (KIP-890)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from minikafka.broker.verification import Verifier
from minikafka.errors import (
    InvalidProducerEpoch,
    InvalidRequest,
    OperationNotAttempted,
    ProducerFenced,
    ProtocolError,
    UnknownTopicOrPartition,
)
from minikafka.types import TopicPartition
from minikafka.wire.transaction_messages import AddedPartition, AddedPartitions, AddPartitionsToTxnResponse

OLD, NEW = TopicPartition("old", 0), TopicPartition("new", 0)


async def refusals(**errors: ProtocolError) -> dict[TopicPartition, ProtocolError]:
    """The verifier's, when the coordinator refuses the partition 0 of these topics."""

    async def add(_broker: int, _request: object, _wait_s: float) -> AddPartitionsToTxnResponse:
        partitions = tuple(AddedPartition.with_error(each, topic=name, partition=0) for name, each in errors.items())
        return AddPartitionsToTxnResponse(transactions=(AddedPartitions(transactional_id="tx", partitions=partitions),))

    verifier = Verifier(
        cast("Any", SimpleNamespace(clock=SimpleNamespace(now=lambda: 0.0))),
        shards=lambda: cast("Any", SimpleNamespace(leader_of=lambda _: 1)),
        ask_broker=add,
        is_enabled=True,
    )
    return await verifier.verify("tx", (7, 0), (OLD, NEW), transaction_version=2)


async def test_new_topic_that_the_coordinator_does_not_know_yet_aborts_no_transaction():
    """The leader of both partitions learned of it first: both batches are sent again, also that of the older topic."""
    found = await refusals(new=UnknownTopicOrPartition("not yet"), old=OperationNotAttempted("the other one"))
    assert set(found) == {OLD, NEW}
    assert all(each.retriable for each in found.values()), found


def verifier_of(response: AddPartitionsToTxnResponse) -> Verifier:
    async def add(_broker: int, _request: object, _wait_s: float) -> AddPartitionsToTxnResponse:
        return response

    return Verifier(
        cast("Any", SimpleNamespace(clock=SimpleNamespace(now=lambda: 0.0))),
        shards=lambda: cast("Any", SimpleNamespace(leader_of=lambda _: 1)),
        ask_broker=add,
        is_enabled=True,
    )


async def test_refusal_of_the_whole_request_is_each_partitions():
    """A coordinator that refuses the request has verified nothing of it."""
    refused = AddPartitionsToTxnResponse.with_error(InvalidRequest("not so"))
    found = await verifier_of(refused).verify("tx", (7, 0), (OLD, NEW), transaction_version=2)
    assert {name: type(error) for name, error in found.items()} == {OLD: InvalidRequest, NEW: InvalidRequest}


async def test_fenced_producer_has_the_code_of_a_leader():
    """Leaders of partitions answer INVALID_PRODUCER_EPOCH, as in Kafka: producers know no other code for it here."""
    fenced = AddedPartitions.failed(ProducerFenced("another took over"), transactional_id="tx")
    found = await verifier_of(AddPartitionsToTxnResponse(transactions=(fenced,))).verify(
        "tx", (7, 0), (OLD,), transaction_version=2
    )
    assert type(found[OLD]) is InvalidProducerEpoch
