"""A topic is deleted while a request, or an answer, that names it beside another one is under way.

Between two partitions of one request the loop gets its turn when much was written (``broker/append_throttle.py``): what was true
of the first one may not be any more. Nobody but the deleted topic's client may notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from minikafka.client.structs import NewTopic
from minikafka.errors import NotLeaderOrFollower, UnknownTopicId
from minikafka.rpc import call
from minikafka.sim.cluster import SimCluster
from minikafka.types import NodeId, TopicPartition
from minikafka.wire import messages as m
from minikafka.wire.records import Record, build_batch
from tests.sim.cluster_kit import Client, facts_of, simulated, values

GONE, KEPT = TopicPartition("gone", 0), TopicPartition("kept", 0)


def pause_before_the_second(cluster: SimCluster, node: NodeId) -> Callable[[], int]:
    """The broker's turn ends after the first bytes of a request that asks for a second part, until GONE is gone there.
    How often a part was admitted since.
    """
    replicas = cluster.brokers[node].replicas
    admitted: list[int] = []

    async def admit(size: int) -> None:
        if size and admitted:
            while GONE in replicas.partitions:  # noqa: ASYNC110 - the broker's state, and virtual time
                await asyncio.sleep(0.01)
        admitted.extend([size] if size else [])

    replicas.append_throttle.take = lambda _size: False  # type: ignore[method-assign]
    replicas.append_throttle.admit = admit  # type: ignore[method-assign]
    return lambda: len(admitted)


def produce_both(
    cluster: SimCluster, client: Client, node: NodeId, admitted: Callable[[], int], *, acks: int
) -> dict[str, m.ProducedPartition]:
    """One request with a batch for each topic; GONE is deleted when its own part is ``admitted`` somewhere."""

    async def ask() -> m.ProduceResponse:
        request = m.ProduceRequest(
            acks=acks,
            timeout_ms=5000,
            partitions=tuple(
                m.ProducePartition(
                    topic=name.topic, partition=0, records=(build_batch([Record(0, 1_000, 0, None, b"both")]),)
                )
                for name in (GONE, KEPT)
            ),
        )
        network, now = client.world.network, client.world.clock.now()
        asked = asyncio.ensure_future(call(network, cluster.address_of(node), request, now + 20.0))
        while not admitted():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        await client.admin.delete_topics([GONE.topic])
        response: m.ProduceResponse = await asked
        return response

    return {each.topic: each for each in client.run(ask()).partitions}


@pytest.mark.parametrize(("acks", "told"), [(1, 0), (-1, NotLeaderOrFollower.code)])
def test_a_topic_is_deleted_between_two_batches_of_one_request(acks: int, told: int) -> None:
    """With flush.messages=1 the broker looked for the deleted topic's flusher, which is gone: KeyError: the
    broker died.
    """
    with simulated(brokers=1, log_flush_interval_messages="1", min_insync_replicas="1") as cluster:
        for name in (GONE, KEPT):
            cluster.create_topic(name.topic)
        client = Client(cluster)
        admitted = pause_before_the_second(cluster, 1)
        answers = produce_both(cluster, client, 1, admitted, acks=acks)
        assert admitted() == 2
        assert cluster.brokers[1].failure is None
        assert answers[GONE.topic].error_code == told
        assert answers[GONE.topic].outcome == ("unknown" if answers[GONE.topic].error_code else "")
        assert answers[KEPT.topic].error_code == 0
        assert values(cluster, 1, KEPT) == [b"both"]


def test_a_topic_is_deleted_between_two_partitions_of_one_fetched_answer() -> None:
    """The same at a follower: its fetch loop died, and the broker with it."""
    with simulated(brokers=2, voters=1, log_flush_interval_messages="1", min_insync_replicas="1") as cluster:
        for name in (GONE, KEPT):
            cluster.create_topic(name.topic, replication_factor=2)
        cluster.until(lambda: {cluster.leader_of(GONE), cluster.leader_of(KEPT)} <= {1, 2}, 10.0, "leaders")
        leader = cluster.leader_of(KEPT)
        if cluster.leader_of(GONE) != leader:
            pytest.fail("both topics must have one leader for this: take another seed")
        follower = 3 - leader
        client = Client(cluster)
        admitted = pause_before_the_second(cluster, follower)
        answers = produce_both(cluster, client, leader, admitted, acks=1)
        assert {each.error_code for each in answers.values()} == {0}
        cluster.until(lambda: values(cluster, follower, KEPT) == [b"both"], 20.0, "the follower to have it")
        assert admitted() >= 2
        assert not facts_of(cluster, "broker_failed")


def test_a_batch_for_a_former_topic_does_not_enter_the_new_one() -> None:
    """KIP-516 (seed 936000555): the id is compared when the batch is appended, however long the request waited."""
    with simulated(brokers=1, min_insync_replicas="1") as cluster:
        client = Client(cluster)
        cluster.create_topic(GONE.topic)
        former = cluster.brokers[1].replicas.get(GONE).topic_id
        client.run(client.admin.delete_topics([GONE.topic]))
        cluster.create_topic(GONE.topic)
        cluster.until(lambda: cluster.leader_of(GONE) == 1, 10.0, "a leader")
        new = cluster.brokers[1].replicas.get(GONE).topic_id
        assert new != former
        refused = client.tell(1, b"for the former", acks=1, name=GONE, topic_id=former)
        assert (refused.error_code, refused.outcome) == (UnknownTopicId.code, "not_written")
        for topic_id in (new, None):
            assert client.tell(1, b"for the new", acks=1, name=GONE, topic_id=topic_id).error_code == 0
        assert values(cluster, 1, GONE) == [b"for the new", b"for the new"]


@pytest.mark.parametrize("offset", [-1, 2])
def test_a_topic_is_created_again_while_records_of_another_partition_are_deleted(offset: int) -> None:
    """Issue 13: DeleteRecords waited for the followers of one partition before it looked at the next one: the records
    of the topic that was created again meanwhile were deleted.
    """
    with simulated(min_insync_replicas="1") as cluster:
        for name in (KEPT, GONE):
            cluster.create_topic(name.topic)
        cluster.settle()
        cluster.until(lambda: cluster.leader_of(KEPT) > 0, 10.0, "a leader")
        node = cluster.leader_of(KEPT)
        client = Client(cluster)
        client.run(client.admin.delete_topics([GONE.topic]))
        placed = NewTopic(GONE.topic, replica_assignments={0: [node]})
        client.run(client.admin.create_topics([placed]))
        cluster.settle()
        client.send_all([b"1", b"2", b"3"], KEPT)
        client.send_all([b"1", b"2", b"3"], GONE)
        broker = cluster.brokers[node]
        assert broker is not None
        low, is_held = broker.replicas.low_watermark, [True]
        broker.replicas.low_watermark = lambda leader: 0 if is_held[0] else low(leader)  # type: ignore[method-assign]

        async def deleted() -> m.DeleteRecordsResponse:
            request = m.DeleteRecordsRequest(
                timeout_ms=10_000,
                partitions=tuple(
                    m.DeleteRecordsPartition(topic=each.topic, partition=0, offset=offset) for each in (KEPT, GONE)
                ),
            )
            now = client.world.clock.now()
            asked = asyncio.ensure_future(call(client.world.network, cluster.address_of(node), request, now + 20.0))
            await asyncio.sleep(0.5)
            await client.admin.delete_topics([GONE.topic])
            await client.admin.create_topics([placed])
            for value in (b"4", b"5", b"6"):
                await client.producer.send_and_wait(GONE.topic, value, partition=0)
            is_held[0] = False
            broker.replicas.purgatory.wake_all(KEPT)
            response: m.DeleteRecordsResponse = await asked
            return response

        answers = {each.topic: (each.error_code, each.outcome) for each in client.run(deleted()).partitions}
        assert values(cluster, node, GONE) == [b"4", b"5", b"6"]
        assert answers == {KEPT.topic: (0, ""), GONE.topic: (NotLeaderOrFollower.code, "unknown")}


@pytest.mark.parametrize("fails", [False, True])
def test_a_topic_is_created_again_while_its_former_log_is_synced(fails: bool) -> None:
    """The folder of a deleted log has another name when the disk comes to it, or its sync fails: the broker stopped, and
    the new topic's replica, which has the same name, went offline.
    """
    with simulated(brokers=1, log_flush_interval_messages="1", min_insync_replicas="1") as cluster:
        client = Client(cluster)
        cluster.create_topic(GONE.topic)
        disk = cluster.sim.disk("n1")

        async def created_again() -> None:
            disk.sync_mean_s = 0.5
            asked = asyncio.ensure_future(client.producer.send_and_wait(GONE.topic, b"former", partition=0))
            while cluster.brokers[1].replicas.get(GONE).log.end_offset == 0:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
            if fails:
                disk.fail_next_sync(str(GONE))
            await client.admin.delete_topics([GONE.topic])
            await client.admin.create_topics([NewTopic(GONE.topic, 1, 1)])
            asked.cancel()
            await asyncio.sleep(20.0)
            disk.sync_mean_s = 0.002

        client.run(created_again())
        assert not facts_of(cluster, "broker_failed")
        assert cluster.brokers[1].replicas.get(GONE).failed is None
