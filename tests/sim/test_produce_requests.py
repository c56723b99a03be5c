"""Produce requests as their handler sees them: what is refused, what is acknowledged when, and what is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import pytest

from minikafka.broker.api.produce import TIMEOUT_MS_MAX, _Production, handle_produce
from minikafka.broker.dispatch import settled
from minikafka.broker.replica_manager import ReplicaManager
from minikafka.errors import (
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidRequest,
    InvalidRequiredAcks,
    InvalidTopic,
    KafkaStorageError,
    MessageTooLarge,
    NotLeaderOrFollower,
    OutOfOrderSequenceNumber,
    ProtocolError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.ports import RequestContext
from minikafka.sim.cluster import SimCluster
from minikafka.sim.world import WALL_START_MS
from minikafka.transactions.records import TRANSACTIONS_TOPIC
from minikafka.types import NodeId, TopicPartition
from minikafka.wire.markers import TRANSACTION_V2
from minikafka.wire.messages import ProducedPartition, ProducePartition, ProduceRequest, ProduceResponse, RecordError
from minikafka.wire.records import Record, build_batch
from tests.sim.cluster_kit import ORDERS, Client, a_follower, facts_of, simulated, values


def batch(*values: bytes, **options: Any) -> bytes:
    return build_batch([Record(0, WALL_START_MS, 0, None, value) for value in values], **options)


def item(*records: bytes, topic: str = "orders", **members: Any) -> ProducePartition:
    return ProducePartition(topic=topic, partition=0, records=records or (batch(b"a"),), **members)


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    """One broker with the topic ``orders``."""
    with simulated(brokers=1, min_insync_replicas="1") as cluster:
        cluster.create_topic("orders")
        yield cluster


def replicas_of(cluster: SimCluster, node: NodeId = 1) -> ReplicaManager:
    found: ReplicaManager = cluster.brokers[node].replicas
    return found


def asked(
    cluster: SimCluster,
    *items: ProducePartition,
    node: NodeId = 1,
    acks: int = 1,
    timeout_ms: int = 1000,
    session_alive: Callable[[], bool] = lambda: True,
    at_response: Callable[[], None] = lambda: None,
    members: Mapping[str, Any] = MappingProxyType({}),
    **more: Any,
) -> list[ProducedPartition]:
    """The response of a broker's handler; ``at_response`` is called in the turn of the loop in which it comes."""

    async def ask() -> ProduceResponse:
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, partitions=items, **members)
        handled = handle_produce(replicas_of(cluster, node), request, session_alive=session_alive, **more)
        response: ProduceResponse = await settled(handled)
        at_response()
        return response

    return list(cluster.run(ask(), node=f"n{node}").partitions)


@pytest.mark.parametrize("acks", [-2, 2])
def test_other_acks_are_refused_before_anything_is_looked_at(cluster: SimCluster, acks: int):
    """Of the whole request, as in Kafka: not of each partition."""
    with pytest.raises(InvalidRequiredAcks):
        asked(cluster, item(), acks=acks)


def test_request_that_makes_no_sense_is_refused_as_a_whole(cluster: SimCluster):
    """A negative timeout; a partition that is named twice, of which one batch would be lost."""
    with pytest.raises(InvalidRequest, match="timeout_ms=-1"):
        asked(cluster, item(), timeout_ms=-1)
    with pytest.raises(InvalidRequest, match="twice"):
        asked(cluster, item(batch(b"a")), item(batch(b"b")))
    assert values(cluster, 1) == []


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (item(topic=OFFSETS_TOPIC), InvalidTopic),
        (item(topic=TRANSACTIONS_TOPIC), InvalidTopic),
        (item(batch(b"a"), batch(b"b")), InvalidRecord),
        (item(sequencing=9), InvalidRequest),
    ],
    ids=["offsets topic", "transactions topic", "two batches", "sequencing"],
)
def test_batch_that_cannot_be_one_is_refused(cluster: SimCluster, wrong: ProducePartition, error: type[ProtocolError]):
    """Nothing is written, and the error says so. Internal topics are refused before they exist."""
    [answer] = asked(cluster, wrong)
    assert (answer.error_code, answer.outcome) == (error.code, "not_written")
    assert values(cluster, 1) == []


@pytest.mark.parametrize("acks", [1, -1])
def test_leader_whose_session_ends_after_the_append_acknowledges_nothing(cluster: SimCluster, acks: int):
    """It may have been replaced: the record is in its log, but the outcome is unknown, and the refusal is reported."""
    alive = iter([True])
    [answer] = asked(cluster, item(), acks=acks, session_alive=lambda: next(alive, False))
    assert (answer.error_code, answer.outcome) == (NotLeaderOrFollower.code, "unknown")
    assert values(cluster, 1) == [b"a"]
    [refused] = facts_of(cluster, "produce_refused")
    assert refused["outcome"] == "unknown"


@pytest.mark.parametrize("acks", [1, -1])
def test_failed_sync_is_not_acknowledged(cluster: SimCluster, monkeypatch: pytest.MonkeyPatch, acks: int):
    """flush.messages=1: a record that may be lost with the power is an error at once, not when the timeout runs out."""
    cluster.create_topic("synced", flush_messages="1")
    flusher = replicas_of(cluster).flushers[TopicPartition("synced", 0)]

    async def fail(_end_offset: int) -> None:
        raise KafkaStorageError("the disk failed", outcome="unknown")

    monkeypatch.setattr(flusher, "durable", fail)
    monkeypatch.setattr(flusher, "start", lambda: None)
    [answer] = asked(cluster, item(topic="synced"), acks=acks)
    assert (answer.error_code, answer.outcome) == (KafkaStorageError.code, "unknown")


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_record_is_durable_when_it_is_acknowledged(cluster: SimCluster, acks: int):
    """flush.messages=1, whatever acks says."""
    cluster.create_topic("synced", flush_messages="1")
    log = replicas_of(cluster).get(TopicPartition("synced", 0)).log
    ends = []
    asked(cluster, item(topic="synced"), acks=acks, at_response=lambda: ends.append(log.synced_end))
    assert ends == [1]


@pytest.mark.parametrize("acks", [1, -1])
def test_log_is_synced_after_as_many_records_as_flush_messages_says(cluster: SimCluster, acks: int):
    """flush.messages=2: the first record waits for the second one; both are readable at once."""
    cluster.create_topic("synced", flush_messages="2")
    partition = replicas_of(cluster).get(TopicPartition("synced", 0))
    for end in (1, 2):
        marks: list[int] = []
        asked(cluster, item(topic="synced"), acks=acks, at_response=lambda: marks.append(partition.high_watermark))  # noqa: B023
        cluster.run_for(0.01)  # sooner than the maintenance of logs, which looks for it too
        assert marks == [end]
        assert partition.log.synced_end == (2 if end == 2 else 0)


@pytest.mark.parametrize("acks", [1, -1])
def test_leader_that_is_replaced_during_the_sync_moves_no_watermark(
    cluster: SimCluster, monkeypatch: pytest.MonkeyPatch, acks: int
):
    """flush.messages=1: its role is gone when the sync ends. With acks=all the outcome is unknown."""
    cluster.create_topic("synced", flush_messages="1")
    name = TopicPartition("synced", 0)
    replicas = replicas_of(cluster)

    async def replaced(_end_offset: int) -> None:
        replicas.get(name).role = None

    monkeypatch.setattr(replicas.flushers[name], "durable", replaced)
    monkeypatch.setattr(replicas, "advance", lambda *_: pytest.fail("a former leader moves its watermark"))
    [answer] = asked(cluster, item(topic="synced"), acks=acks)
    monkeypatch.undo()
    assert (answer.error_code, answer.outcome) == ((0, "") if acks == 1 else (NotLeaderOrFollower.code, "unknown"))


def test_answer_has_the_start_of_the_log(cluster: SimCluster):
    """Producers see from it whether what they wrote before was deleted."""
    client = Client(cluster)
    client.send_all([b"a", b"b"])
    client.run(client.admin.delete_records({ORDERS: 1}))
    [answer] = asked(cluster, item())
    assert (answer.base_offset, answer.log_start_offset) == (2, 1)


class Coordinator:
    """Stands for a transaction's coordinator, which is requested or must not be."""

    def __init__(self, on_verify: Callable[[], None] = lambda: None, *, is_asked: bool = True) -> None:
        self.verified: list[TopicPartition] = []
        self._on_verify = on_verify
        self._is_asked = is_asked

    def must_ask(self, _transaction_version: int) -> bool:
        return self._is_asked

    async def verify(
        self, _id: str, _producer: tuple[int, int], names: list[TopicPartition], **_facts: Any
    ) -> dict[TopicPartition, ProtocolError]:
        self.verified += names
        self._on_verify()
        return {}


def transactional(sequence: int = 0, producer_id: int = 7) -> bytes:
    return batch(b"t", producer_id=producer_id, producer_epoch=0, base_sequence=sequence, transactional=True)


def in_transaction(cluster: SimCluster, coordinator: Coordinator, *items: ProducePartition) -> list[ProducedPartition]:
    members = {"transactional_id": "t", "transaction_version": TRANSACTION_V2}
    return asked(cluster, *items, acks=-1, verifier=coordinator, members=members)


def test_only_a_transactional_batch_is_verified_and_only_where_that_is_wanted(cluster: SimCluster):
    """What is part of no transaction, or no batch at all, is not sent to the coordinator."""
    unasked, coordinator = Coordinator(is_asked=False), Coordinator()
    assert not in_transaction(cluster, unasked, item(transactional()))[0].error_code
    assert in_transaction(cluster, coordinator, item(b"short"))[0].error_code
    assert not in_transaction(cluster, coordinator, item(batch(b"plain")))[0].error_code
    assert unasked.verified == coordinator.verified == []
    assert not in_transaction(cluster, coordinator, item(transactional(producer_id=8)))[0].error_code
    assert coordinator.verified == [ORDERS]
    assert values(cluster, 1) == [b"t", b"plain", b"t"]


def test_request_has_transactional_batches_of_one_producer(cluster: SimCluster):
    """One transaction has one: nothing is written of any."""
    other = ProducePartition(topic="orders", partition=1, records=(transactional(producer_id=8),))
    with pytest.raises(InvalidProducerIdMapping, match=r"\[7, 8\]"):
        in_transaction(cluster, Coordinator(), item(transactional()), other)
    assert values(cluster, 1) == []


def test_transaction_begins_with_sequence_zero(cluster: SimCluster):
    """Transaction version 2: a first batch with another sequence comes after one that is missing."""
    [answer] = in_transaction(cluster, Coordinator(), item(transactional(5)))
    assert (answer.error_code, answer.outcome) == (OutOfOrderSequenceNumber.code, "not_written")
    assert values(cluster, 1) == []


def test_batch_that_could_not_be_verified_is_refused_by_a_broker_that_leads_meanwhile(cluster: SimCluster):
    """No coordinator has confirmed that its partition belongs to the transaction: it would stay open after the end."""
    cluster.create_topic("two", partitions=2)
    replicas = replicas_of(cluster)
    first, second = [ProducePartition(topic="two", partition=at, records=(transactional(),)) for at in (0, 1)]
    partition = replicas.get(TopicPartition("two", 0))
    role, partition.role = partition.role, None
    coordinator = Coordinator(lambda: setattr(partition, "role", role))
    refused, written = in_transaction(cluster, coordinator, first, second)
    assert (refused.error_code, refused.outcome, written.error_code) == (NotLeaderOrFollower.code, "not_written", 0)
    assert coordinator.verified == [TopicPartition("two", 1)]


def test_longest_wait_of_a_request_is_bounded(cluster: SimCluster):
    """A client that asks for more holds its connection for five minutes at most."""
    replicas = replicas_of(cluster)
    for timeout_ms, wait_s in ((1000, 1.0), (TIMEOUT_MS_MAX, 300.0), (2**31 - 1, 300.0)):
        request = ProduceRequest(acks=-1, timeout_ms=timeout_ms, partitions=())
        production = _Production(replicas, request, {}, lambda: True, RequestContext())
        assert production._deadline == replicas.clock.now() + wait_s


def test_counts_of_a_topic_are_of_records_that_were_appended(cluster: SimCluster):
    """A duplicate is a request and no records; a refused batch is a failed request, and with acks=0 none is acknowledged."""
    replicas = replicas_of(cluster)
    traffic, meter = replicas.traffic, replicas.traffic.topic("orders")
    once = batch(b"a", b"b", b"c", producer_id=7, producer_epoch=0, base_sequence=0)
    for data in (once, once):
        assert not asked(cluster, item(data))[0].error_code
    assert (meter.produce_requests, meter.failed_produce_requests) == (2, 0)
    assert (meter.messages_in, meter.bytes_in) == (3, len(once))
    acknowledged = traffic.acked_records
    asked(cluster, item(), acks=0)
    asked(cluster, item(b"no batch"))
    assert (meter.produce_requests, meter.failed_produce_requests, meter.messages_in) == (4, 1, 4)
    assert traffic.acked_records == acknowledged


def test_refusals_are_reported_but_not_those_of_unknown_topics(cluster: SimCluster):
    """A client that guesses names would fill the log; of a broker's own requests no protocol is named."""
    assert asked(cluster, item(topic="nothing"))[0].error_code == UnknownTopicOrPartition.code
    assert facts_of(cluster, "produce_refused") == []
    asked(cluster, item(b"no batch"))
    asked(cluster, item(b"no batch"), context=RequestContext(protocol="http", software="curl"))
    own, of_client = facts_of(cluster, "produce_refused")
    assert own.keys().isdisjoint({"protocol", "software", "client_id"})
    assert (of_client["protocol"], of_client["software"]) == ("http", "curl")


def test_record_without_a_key_in_a_compacted_topic_is_named(cluster: SimCluster):
    """Kafka's clients show which record of a batch was refused, and why."""
    cluster.create_topic("latest", cleanup_policy="compact")
    [answer] = asked(cluster, item(topic="latest"))
    assert answer.error_code == InvalidRecord.code
    [refused] = answer.record_errors
    assert isinstance(refused, RecordError)
    assert refused.batch_index == 0
    assert "key" in refused.message


def test_batch_that_is_too_large_is_refused_without_work(cluster: SimCluster, monkeypatch: pytest.MonkeyPatch):
    """It would be opened, or compressed again, in a thread for nothing."""
    cluster.create_topic("small", max_message_bytes="2000", compression_type="zstd")
    monkeypatch.setattr(replicas_of(cluster), "offload", lambda _: pytest.fail("it was validated"))
    monkeypatch.setattr("minikafka.broker.api.produce.recompress.plain", lambda *_: pytest.fail("it was opened"))
    data = batch(*(b"%d" % number * 40 for number in range(3000)), compression="gzip")
    assert asked(cluster, item(data, topic="small"))[0].error_code == MessageTooLarge.code


def test_follower_names_the_leader_and_a_lonely_leader_times_out():
    """The outcome of a batch that not all in-sync replicas had in time is unknown. Followers have it at once otherwise."""
    with simulated() as cluster:
        cluster.create_topic("orders")
        cluster.settle()
        leader, follower = cluster.leader_of(ORDERS), a_follower(cluster)
        [refused] = asked(cluster, item(), node=follower)
        assert refused.error_code == NotLeaderOrFollower.code
        assert refused.current_leader is not None
        assert refused.current_leader.leader_id == leader
        clock = replicas_of(cluster, leader).clock
        for _ in range(3):
            began = clock.now()
            assert not asked(cluster, item(), node=leader, acks=-1)[0].error_code
            assert clock.now() - began < 0.1, "a follower's fetch that waits for records is woken"
        for node in cluster.nodes:
            if node != leader:
                cluster.cut(node, leader)
        [late] = asked(cluster, item(), node=leader, acks=-1)
        assert (late.error_code, late.outcome) == (RequestTimedOut.code, "unknown")
