"""The administrator of transactions on a simulated cluster: lists, hanging transactions found and aborted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from minikafka.client.routing import TRANSACTION_KEY
from minikafka.errors import (
    CoordinatorNotAvailable,
    InvalidProducerEpoch,
    InvalidRequest,
    TransactionalIdNotFound,
)
from minikafka.sim.cluster import SimCluster
from minikafka.transactions.records import TRANSACTIONS_TOPIC
from minikafka.types import NO_NODE, TopicPartition
from minikafka.wire.messages import ProducePartition, ProduceRequest
from tests.sim.cluster_kit import Client, simulated
from tests.sim.test_transaction_markers import asked, batch
from tests.sim.test_transactions import FIRST, SECOND, Producer, coordinator_of, log_of, markers, until_state

STRANGER = 9_000


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    """Three brokers that append transactional batches unverified, so that a transaction can hang."""
    with simulated(
        transaction_state_log_num_partitions="3",
        transaction_partition_verification_enable="false",
        transaction_abort_timed_out_transaction_cleanup_interval_ms="1000",
    ) as cluster:
        cluster.create_topic("orders", partitions=2)
        cluster.settle()
        yield cluster


def left_open(cluster: SimCluster, partition: TopicPartition = FIRST, *, epoch: int = 3) -> None:
    """A late batch of a producer that no coordinator knows opens a transaction that nothing ends."""
    request = ProduceRequest(
        transactional_id="gone",
        timeout_ms=5000,
        partitions=(
            ProducePartition(
                topic=partition.topic,
                partition=partition.partition,
                records=(batch(STRANGER, 0, b"late", epoch=epoch),),
            ),
        ),
    )
    answer = asked(cluster, cluster.leader_of(partition), request)
    assert not answer.partitions[0].error_code, answer


def hanging(client: Client, **options: Any) -> list[TopicPartition]:
    found = client.run(client.admin.find_hanging_transactions([FIRST, SECOND], **{"older_than_ms": 0, **options}))
    return [each.partition for each in found]


def stable_end(cluster: SimCluster, name: TopicPartition) -> int:
    log = log_of(cluster, cluster.leader_of(name), name)
    return log.producers.transactions.stable_end(log.end_offset)


def test_hanging_transaction_is_found_and_aborted(cluster: SimCluster):
    """It holds back readers, a running one beside it is left alone, and the abort ends exactly it."""
    client = Client(cluster)
    producer = Producer(cluster)
    producer.add(SECOND)
    assert not producer.send(SECOND, b"running")
    left_open(cluster)
    assert hanging(client) == [FIRST]
    assert hanging(client, older_than_ms=60_000) == []
    assert stable_end(cluster, FIRST) == 0
    [found] = client.run(client.admin.open_transactions([FIRST]))
    assert (found.producer_id, found.producer_epoch, found.coordinator_epoch, found.start_offset) == (
        STRANGER,
        3,
        -1,
        0,
    )
    for _ in range(2):  # a repetition is harmless
        client.run(client.admin.abort_transaction(FIRST, producer_id=STRANGER, producer_epoch=3, coordinator_epoch=-1))
    assert hanging(client) == []
    assert {each.is_commit for each in markers(cluster, FIRST)} == {False}
    assert stable_end(cluster, FIRST) == log_of(cluster, cluster.leader_of(FIRST), FIRST).end_offset
    assert not producer.end().error_code
    until_state(cluster, "CompleteCommit")


def test_abort_with_an_old_epoch_is_refused(cluster: SimCluster):
    """The log is unharmed."""
    client = Client(cluster)
    left_open(cluster)
    with pytest.raises(InvalidProducerEpoch):
        client.run(client.admin.abort_transaction(FIRST, producer_id=STRANGER, producer_epoch=2, coordinator_epoch=-1))
    assert log_of(cluster, cluster.leader_of(FIRST), FIRST).end_offset == 1


@pytest.mark.parametrize("version", [0, 2])
def test_transactions_of_live_producers_do_not_hang(cluster: SimCluster, version: int):
    """At any moment between their first batch and their last marker."""
    client = Client(cluster)
    producer = Producer(cluster, version=version)
    for number in range(3):
        producer.add(FIRST, SECOND)
        assert not producer.send(FIRST, b"%d" % number)
        assert hanging(client) == []
        assert not producer.end(commit=number != 1).error_code
        assert hanging(client) == []


def test_transaction_that_ends_while_it_is_looked_for_does_not_hang(
    cluster: SimCluster, monkeypatch: pytest.MonkeyPatch
):
    """Its coordinator no longer knows it: the partition is looked at again."""
    client = Client(cluster)
    producer = Producer(cluster)
    producer.add(FIRST)
    assert not producer.send(FIRST, b"a")
    [before] = client.run(client.admin.open_transactions([FIRST]))
    assert not producer.end().error_code
    until_state(cluster, "CompleteCommit")
    looks = [[before]]
    look = client.admin.open_transactions

    async def as_before(partitions: Any) -> Any:
        return looks.pop() if looks else await look(partitions)

    monkeypatch.setattr(client.admin, "open_transactions", as_before)
    assert hanging(client) == []
    assert not looks


def test_nothing_hangs_while_a_coordinator_is_missing(cluster: SimCluster, monkeypatch: pytest.MonkeyPatch):
    """A transactional id without a coordinator is listed by no broker: an error instead of a wrong verdict."""
    client = Client(cluster)
    Producer(cluster)
    left_open(cluster)
    [topic] = client.run(client.admin.describe_topics([TRANSACTIONS_TOPIC]))
    without_leader = replace(topic, partitions=(replace(topic.partitions[0], leader=NO_NODE), *topic.partitions[1:]))

    async def described(_: Any) -> list[Any]:
        return [without_leader]

    monkeypatch.setattr(client.admin, "describe_topics", described)
    with pytest.raises(CoordinatorNotAvailable, match="has no leader"):
        hanging(client)


def test_list_describe_and_find_coordinator(cluster: SimCluster):
    """All brokers are asked; filters by state, producer and duration; a coordinator by transactional id."""
    client = Client(cluster)
    assert client.run(client.admin.list_transactions()) == {}
    names = [f"tx-{number}" for number in range(6)]
    producers = [Producer(cluster, name) for name in names]
    producers[2].add(FIRST)
    found = client.run(client.admin.list_transactions())
    assert {each.transactional_id: node for node, part in found.items() for each in part} == {
        name: coordinator_of(cluster, name) for name in names
    }
    for filters in ({"states": ["Ongoing"]}, {"producer_ids": [producers[2].id]}, {"duration_ms": 0}):
        cluster.run_for(0.1)
        [[only]] = client.run(client.admin.list_transactions(**filters)).values()
        assert (only.transactional_id, only.state) == ("tx-2", "Ongoing")
    assert client.run(client.admin.list_transactions(duration_ms=3_600_000)) == {}
    two, three = client.run(client.admin.describe_transactions(["tx-2", "tx-3"]))
    assert (two.state, [tuple(each) for each in ((one.topic, one.partition) for one in two.partitions)]) == (
        "Ongoing",
        [FIRST],
    )
    assert (three.state, three.partitions) == ("Empty", ())
    with pytest.raises(TransactionalIdNotFound):
        client.run(client.admin.describe_transactions(["tx-2", "nobody"]))
    assert client.run(client.admin.find_coordinator("tx-2", TRANSACTION_KEY)) == coordinator_of(cluster, "tx-2")
    with pytest.raises(InvalidRequest, match="coordinator_type=2"):
        client.run(client.admin.find_coordinator("tx-2", 2))
