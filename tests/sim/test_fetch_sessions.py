"""Fetch sessions in whole clusters (KIP-227): idle partitions are silent, in sync, and fenced all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from minikafka.broker import parts, replica_fetcher
from minikafka.broker.api.fetch import handle_fetch
from minikafka.broker.dispatch import settled
from minikafka.errors import (
    FencedLeaderEpoch,
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    TopicAuthorizationFailed,
)
from minikafka.replication.fetch_session import FetcherSession, FetchSession
from minikafka.replication.leader import PartitionState
from minikafka.replication.partition import Partition
from minikafka.rpc import call
from minikafka.sim.cluster import CLIENTS_PORT, SimCluster, node_name
from minikafka.sim.tenant_plans import AUTHORIZER
from minikafka.types import NO_EPOCH, Address, TopicPartition
from minikafka.wire.acls import Acl, AclOperation, ResourceType
from minikafka.wire.messages import FetchPartition, FetchRequest, FetchResponse
from tests.sim.cluster_kit import ORDERS, Client, facts_of, simulated, values

MANY = 40
LAG_S = 5.0


@dataclass(slots=True)
class Seen:
    """One fetch by a follower."""

    named: int
    answered: list[TopicPartition]
    is_full: bool


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """Every follower's fetch that was answered since."""
    found: list[Seen] = []

    async def noting(replicas: Any, request: FetchRequest, **given: Any) -> FetchResponse:
        response = await settled(handle_fetch(replicas, request, **given))
        if request.replica_id >= 0:
            answered = [TopicPartition(each.topic, each.partition) for each in response.partitions]
            found.append(Seen(len(request.partitions), answered, request.session_epoch == 0))
        return response

    monkeypatch.setattr(parts, "handle_fetch", noting)
    return found


def idle_cluster(cluster: SimCluster) -> Client:
    """Many partitions, each with a record, all of them told to everybody."""
    cluster.create_topic("orders", partitions=MANY)
    client = Client(cluster)
    for number in range(MANY):
        client.send(b"first", TopicPartition("orders", number))
    cluster.run_for(2.0)
    return client


def test_idle_partitions_are_neither_named_nor_answered(seen: list[Seen]) -> None:
    """DESIGN, Risks: idle partitions cost nothing per fetch; one hot partition is all that its fetches are about."""
    with simulated() as cluster:
        client = idle_cluster(cluster)
        seen.clear()
        cluster.run_for(10.0)
        assert len(seen) > 100
        assert not [each for each in seen if each.named or each.answered or each.is_full]
        client.send_all([b"second", b"third"])
        cluster.run_for(2.0)
        assert {each for fetch in seen for each in fetch.answered} == {ORDERS}
        assert max(each.named for each in seen) == 1
        assert [values(cluster, node) for node in (1, 2, 3)] == [[b"first", b"second", b"third"]] * 3


def test_followers_of_more_partitions_than_a_request_names(seen: list[Seen], monkeypatch: pytest.MonkeyPatch) -> None:
    """All are replicated and in sync, in several requests of one session; then idle partitions cost nothing again."""
    monkeypatch.setattr(replica_fetcher, "FetcherSession", partial(FetcherSession, named_max=7))
    with simulated() as cluster:
        client = idle_cluster(cluster)
        assert max(each.named for each in seen) == 7
        seen.clear()
        cluster.run_for(2 * LAG_S)
        assert not [each for each in seen if each.named or each.answered or each.is_full]
        for number in range(MANY):
            client.send(b"second", TopicPartition("orders", number))
        cluster.run_for(2.0)
        assert max(each.named for each in seen) <= 7
        for number in range(MANY):
            name = TopicPartition("orders", number)
            assert [values(cluster, node, name) for node in (1, 2, 3)] == [[b"first", b"second"]] * 3
        assert not facts_of(cluster, "isr_shrunk")


def test_idle_followers_stay_in_the_isr_and_share_the_watermark() -> None:
    """S14: whoever is not named in a request is acknowledged and caught up with it; a burst after an hour finds all in
    sync.
    """
    with simulated(replica_lag_time_max_ms=str(int(LAG_S * 1000))) as cluster:
        client = idle_cluster(cluster)
        for _ in range(4):
            cluster.run_for(2.5 * LAG_S)
            for number in range(0, MANY, 7):
                client.send(b"more", TopicPartition("orders", number))
        cluster.run_for(2.0)
        assert not facts_of(cluster, "isr_shrunk")
        for name in cluster.partition_names():
            marks = {cluster.replica(node, name).high_watermark for node in (1, 2, 3)}  # type: ignore[union-attr]
            assert marks == {5 if name.partition % 7 == 0 else 1}


def test_a_follower_that_stops_asking_is_let_go_from_idle_and_busy_partitions_alike() -> None:
    """A session speaks only when its fetcher does."""
    with simulated(replica_lag_time_max_ms=str(int(LAG_S * 1000)), broker_session_timeout_ms="600000") as cluster:
        client = idle_cluster(cluster)
        led = [name for name in cluster.partition_names() if cluster.leader_of(name) != 3]
        cluster.crash(3)
        for name in led:
            client.send(b"second", name)
        cluster.until(
            lambda: all(3 not in cluster.partition(name).isr for name in led),  # type: ignore[union-attr]
            4 * LAG_S,
            "broker 3 to be out",
        )


def test_sessions_that_are_lost_are_begun_anew(seen: list[Seen]) -> None:
    """FETCH_SESSION_ID_NOT_FOUND: the fetcher starts a full one at once, and replication goes on where it stood."""
    with simulated() as cluster:
        client = idle_cluster(cluster)
        for broker in cluster.serving():
            broker.replicas.fetch_sessions._sessions.clear()
        seen.clear()
        cluster.run_for(2.0)
        assert facts_of(cluster, "fetch_session_lost")
        assert not facts_of(cluster, "fetch_failed")
        assert sum(each.is_full for each in seen) == 6, "each broker at each other"
        client.send(b"second")
        cluster.run_for(2.0)
        assert [values(cluster, node) for node in (1, 2, 3)] == [[b"first", b"second"]] * 3


def test_without_slots_everything_is_named_each_time(seen: list[Seen]) -> None:
    """max.incremental.fetch.session.cache.slots=0: slower, not wrong."""
    with simulated(max_incremental_fetch_session_cache_slots="0") as cluster:
        client = idle_cluster(cluster)
        client.send(b"second")
        seen.clear()
        cluster.run_for(2.0)
        assert all(each.is_full and each.named == len(each.answered) > 0 for each in seen)
        assert [values(cluster, node) for node in (1, 2, 3)] == [[b"first", b"second"]] * 3


# ---- one session, by hand --------------------------------------------------------------------------------------------


Ask = Callable[..., FetchResponse]


def asking(cluster: SimCluster, address: Address | None = None) -> Ask:
    """A consumer that speaks the protocol with broker 1."""
    world = cluster.sim.of("reader")
    broker = cluster.address_of(1) if address is None else address

    def ask(session: tuple[int, int], *items: FetchPartition, **facts: Any) -> FetchResponse:
        request = FetchRequest(
            session_id=session[0], session_epoch=session[1], partitions=items, **{"max_wait_ms": 0, **facts}
        )

        async def send() -> FetchResponse:
            return await call(world.network, broker, request, world.clock.now() + 10)  # type: ignore[no-any-return]

        return cluster.run(send(), node="reader")

    return ask


def from_offset(offset: int, number: int = 0, epoch: int = NO_EPOCH) -> FetchPartition:
    return FetchPartition(topic="orders", partition=number, fetch_offset=offset, current_leader_epoch=epoch)


def test_a_session_tells_only_what_is_news() -> None:
    """KAFKA-FACTS 3.7: data, a changed watermark or log start, an error; and the first time everything."""
    with simulated(brokers=1, min_insync_replicas="1") as cluster:
        cluster.create_topic("orders", partitions=2)
        client, ask = Client(cluster), asking(cluster)
        first = ask((0, 0), from_offset(0), from_offset(0, 1), from_offset(0, 9))
        assert [(each.partition, each.error_code) for each in first.partitions] == [(0, 0), (1, 0), (9, 3)]
        own = first.session_id
        assert [each.partition for each in ask((own, 1)).partitions] == [9], "an error is told each time"
        client.send(b"a", TopicPartition("orders", 1))
        told = ask((own, 2)).partitions
        assert [(each.partition, each.high_watermark, bool(each.records)) for each in told] == [
            (1, 1, True),
            (9, -1, False),
        ]
        assert [each.partition for each in ask((own, 3), from_offset(1, 1)).partitions] == [9, 1], "named: answered"
        assert ask((own, 3)).error_code == InvalidFetchSessionEpoch.code
        assert ask((own + 1, 1)).error_code == FetchSessionIdNotFound.code


def test_a_long_poll_of_a_session_ends_with_a_partition_that_it_did_not_name() -> None:
    """The watch is over the whole session; S12: it ends with the data, not with the time-out."""
    with simulated(brokers=1, min_insync_replicas="1") as cluster:
        cluster.create_topic("orders", partitions=2)
        client, ask = Client(cluster), asking(cluster)
        own = ask((0, 0), from_offset(0), from_offset(0, 1)).session_id
        began = cluster.sim.loop.now

        async def later() -> None:
            await asyncio.sleep(1.0)
            await client.producer.send_and_wait("orders", b"a", partition=1)

        sending = cluster.sim.spawn("client", later())
        told = ask((own, 1), max_wait_ms=9000, min_bytes=1).partitions
        assert [each.partition for each in told] == [1]
        assert 1.0 <= cluster.sim.loop.now - began < 2.0
        cluster.run_for(1.0)
        sending.result()


SECURED = {"min_insync_replicas": "1", "authorizer_class_name": AUTHORIZER, "super_users": "User:admin"}


def polled(topic: str) -> list[tuple[list[tuple[str, int, int]], float, list[bytes]]]:
    """What a reader gets of a topic and how long it takes: at the first request, and later without naming it; while it
    may not read the topic, before and after a record is written to it, and then as it may.
    """
    found = []
    with simulated(brokers=1, **SECURED) as cluster:
        cluster.create_topic("orders")
        client, ask = Client(cluster), asking(cluster, Address(node_name(1), CLIENTS_PORT))

        def poll(session: tuple[int, int], *items: FetchPartition) -> int:
            began = cluster.sim.loop.now
            response = ask(session, *items, max_wait_ms=9000)
            seen = [(each.error_message, each.error_code, each.high_watermark) for each in response.partitions]
            records = [bytes(buffer) for each in response.partitions for buffer in each.records]
            found.append((seen, round(cluster.sim.loop.now - began, 1), records))
            return response.session_id

        own = poll((0, 0), FetchPartition(topic=topic, partition=0, fetch_offset=0))
        poll((own, 1))
        client.send(b"a")
        poll((own, 2))
        acl = Acl(
            resource_type=ResourceType.TOPIC,
            resource_name="orders",
            principal="User:reader",
            operation=AclOperation.READ,
        )
        client.run(client.admin.create_acls([acl]))
        poll((own, 3))
    return found


def test_a_session_shows_nothing_of_a_topic_that_may_not_be_read() -> None:
    """Not even by timing: its partition gets the error at once, whether it exists or not and whatever is written to it.

    It stays in the session, as in Kafka, and so is read from the moment of the grant.
    """
    denied, unknown = polled("orders"), polled("other")
    assert [each[0][0][1:] for each in denied[:3]] == [(TopicAuthorizationFailed.code, -1)] * 3
    assert [each[1:] for each in denied[:3]] == [each[1:] for each in unknown[:3]] == [(0.0, [])] * 3
    (((_, code, high_watermark),), _, records) = denied[3]
    assert (code, high_watermark, len(records)) == (0, 1, 1)


def test_the_first_response_of_a_session_leaves_its_order_and_later_ones_turn_it() -> None:
    """As in Kafka: partitions are added in the order of the first request; one with data goes behind the others (KIP-74)."""
    with simulated(brokers=1, min_insync_replicas="1") as cluster:
        cluster.create_topic("orders", partitions=2)
        client, ask = Client(cluster), asking(cluster)
        client.send(b"x", TopicPartition("orders", 0))
        first = ask((0, 0), from_offset(0), from_offset(0, 1))
        client.send(b"x", TopicPartition("orders", 1))

        def with_data(epoch: int) -> list[int]:
            answer = ask((first.session_id, epoch), max_bytes=1)
            return [each.partition for each in answer.partitions if each.records]

        assert [with_data(epoch) for epoch in (1, 2, 3)] == [[0], [1], [0]]


def lead_again(cluster: SimCluster) -> None:
    """Broker 1 is elected once more: the same leader, in the next epoch."""
    seat = cluster.replica(1, ORDERS)
    assert isinstance(seat, Partition)
    state = PartitionState(
        replicas=(1,), isr=(1,), leader=1, leader_epoch=seat.epoch + 1, partition_epoch=seat.partition_epoch + 1
    )
    seat.apply(state, seat.config, cluster.sim.loop.now)


def fenced_in_session() -> bool:
    """Named once with its leader epoch, then never again: is it refused when that epoch is over?"""
    with simulated(brokers=1, min_insync_replicas="1") as cluster:
        cluster.create_topic("orders")
        ask = asking(cluster)
        replica = cluster.replica(1, ORDERS)
        assert replica is not None
        first = ask((0, 0), from_offset(0, epoch=replica.epoch))
        assert first.partitions[0].error_code == 0
        assert ask((first.session_id, 1)).partitions == ()
        lead_again(cluster)
        told = ask((first.session_id, 2)).partitions
        return [each.error_code for each in told] == [FencedLeaderEpoch.code]


def test_a_partition_that_is_not_named_is_fenced_by_its_leader_epoch() -> None:
    """KIP-320 in a session."""
    assert fenced_in_session()


def test_kafka_9338_planted_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that drops the leader epoch disables fencing after the first request: the test above must see it."""
    update = FetchSession.update

    def forgetting(self: FetchSession, named: Sequence[FetchPartition], forgotten: Any) -> None:
        update(self, [replace(item, current_leader_epoch=NO_EPOCH) for item in named], forgotten)

    monkeypatch.setattr(FetchSession, "update", forgetting)
    assert not fenced_in_session()
