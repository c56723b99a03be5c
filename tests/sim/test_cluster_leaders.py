"""Leaders that come and go in a whole cluster: fencing, controlled shutdown, going home, idempotent producers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from minikafka.config import BrokerConfig
from minikafka.errors import NOT_WRITTEN, UNKNOWN, NotLeaderOrFollower, OffsetNotAvailable, RequestTimedOut
from minikafka.rpc import call
from minikafka.sim.cluster import SimCluster
from minikafka.sim.verdicts import Deliver, Drop, Hold, Message, Reset, matching
from minikafka.types import METADATA_TOPIC, NodeId, TopicPartition
from minikafka.wire.codec import decode_request, find_api
from minikafka.wire.messages import (
    LATEST,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DescribeReplicasRequest,
    DescribeReplicasResponse,
    EpochQuery,
    FetchPartition,
    FetchRequest,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    ProducePartition,
    ProduceRequest,
)
from minikafka.wire.records import Record, build_batch
from tests.sim.cluster_kit import ORDERS, Client, facts_of, simulated, simulated_orders, values

SESSION_S = BrokerConfig().broker_session_timeout_ms / 1000


def is_fetch_of(message: Message, topic: str) -> bool:
    """Somebody asks for records of the topic."""
    if message.api != "Fetch" or message.kind != "request":
        return False
    return any(each.topic == topic for each in decode_request(find_api("Fetch"), message.body).partitions)


def fetch(name: TopicPartition, offset: int, *, wait_ms: int = 0, min_bytes: int = 1) -> FetchRequest:
    """A consumer's fetch of one partition."""
    part = FetchPartition(topic=name.topic, partition=name.partition, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=min_bytes, max_bytes=1 << 20, partitions=(part,))


async def ask(client: Client, node: NodeId, request: Any) -> Any:
    """One broker's answer."""
    deadline = client.world.clock.now() + 60.0
    return await call(client.world.network, client.cluster.address_of(node), request, deadline)


def read(client: Client, node: NodeId, request: Any) -> Any:
    """One broker's answer for the only partition of a request."""
    return client.run(ask(client, node, request)).partitions[0]


def led_by_another_than_the_controller(cluster: SimCluster, topic: str = "orders") -> TopicPartition:
    """A partition whose leader is not the active controller."""
    names = [name for name in cluster.partition_names() if name.topic == topic]
    return next(name for name in names if cluster.leader_of(name) != cluster.controller())


def with_a_follower(cluster: SimCluster, **settings: Any) -> tuple[Client, NodeId]:
    """A client that has sent a record to ``orders``, and a follower of it that is not the active controller."""
    client = Client(cluster, **settings)
    client.send(b"before")
    busy = cluster.leader_of(ORDERS), cluster.controller()
    return client, next(node for node in cluster.nodes if node not in busy)


def is_unfenced(cluster: SimCluster, follower: NodeId) -> bool:
    """Return True if the leader of ``orders`` takes it for one that lives."""
    return cluster.brokers[cluster.leader_of(ORDERS)].replicas.broker_epoch_of(follower) is not None


def let_it_be_about_to_join(cluster: SimCluster, follower: NodeId) -> None:
    """The follower leaves the ISR, and comes back without sending a fetch."""
    cluster.crash(follower)
    cluster.until(lambda: follower not in cluster.partition(ORDERS).isr, SESSION_S + 1.0, "it to leave the ISR")
    cluster.sim.network.rule(
        lambda message: Drop() if message.source == f"n{follower}" and is_fetch_of(message, "orders") else None
    )
    cluster.boot(follower)
    cluster.until(lambda: is_unfenced(cluster, follower), 5.0, "it to be unfenced")


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_leader_that_was_away_refuses_until_it_knows_what_it_missed(acks: int) -> None:
    """Zombie leaders (DESIGN, risks): its first heartbeat unfences it at once, but it may still believe that it leads;
    what it then acknowledged with acks=1 would be cut off its log again.
    """
    with simulated_orders(partitions=3) as cluster:
        name = led_by_another_than_the_controller(cluster)
        client = Client(cluster)
        client.send(b"before", name)
        zombie = cluster.leader_of(name)
        cluster.pause(zombie)
        cluster.until(lambda: cluster.leader_of(name) not in (zombie, -1), SESSION_S + 1.0, "another leader")
        # Heartbeats get through, the metadata does not.
        heal = cluster.sim.network.rule(
            lambda message: Drop() if message.source == f"n{zombie}" and is_fetch_of(message, METADATA_TOPIC) else None
        )
        cluster.resume(zombie)
        cluster.until(
            lambda: cluster.brokers[cluster.controller()].image.alive(zombie), 5.0, "the zombie to be unfenced"
        )
        for _ in range(20):
            answer = client.tell(zombie, b"lost", acks=acks, name=name)
            assert (answer.error_code, answer.outcome) == (NotLeaderOrFollower.code, NOT_WRITTEN)
            cluster.run_for(0.05)
        heal()
        cluster.settle(60.0)
        assert [values(cluster, node, name) for node in cluster.nodes] == [[b"before"]] * 3


def test_a_follower_that_was_cut_off_briefly_holds_writes_up_no_longer_than_the_cut() -> None:
    """Default settings: its fetch and the answer were lost on the way, and replica.socket.timeout.ms is 30 s. It asks
    again soon, as does its quorum member, and no broker is fenced.
    """
    with simulated_orders() as cluster:
        client, follower = with_a_follower(cluster)
        cluster.cut_off(follower)
        cluster.run_for(1.2)
        sending = cluster.sim.spawn("client", client.producer.send_and_wait("orders", b"during", partition=0))
        cluster.run_for(0.2)
        assert not sending.done()
        cluster.heal()
        cluster.until(sending.done, 0.6, "the follower asks again")
        cluster.run_for(SESSION_S)
        assert facts_of(cluster, "broker_fenced") == []
        assert {each["epoch"] for each in facts_of(cluster, "quorum_leader_elected")} <= {1}
        assert [values(cluster, node) for node in cluster.nodes] == [[b"before", b"during"]] * 3


def test_a_follower_that_is_fenced_holds_nothing_up_any_more() -> None:
    """The metadata takes it out of the ISR: nothing else wakes the producer that waits for its acknowledgement."""
    with simulated_orders() as cluster:
        client, follower = with_a_follower(cluster)
        cluster.crash(follower)
        sending = cluster.sim.spawn("client", client.producer.send_and_wait("orders", b"during", partition=0))
        cluster.until(lambda: facts_of(cluster, "broker_fenced") != [], SESSION_S + 1.0, "it to be fenced")
        assert not sending.done()
        cluster.until(sending.done, 0.5, "the record to be committed")


def test_a_follower_that_was_about_to_join_and_is_fenced_holds_nothing_up_any_more() -> None:
    """S10: outside the ISR it counts as long as it may join; that it no longer may is news of the metadata, too."""
    with simulated_orders() as cluster:
        client, follower = with_a_follower(cluster)
        let_it_be_about_to_join(cluster, follower)
        cluster.crash(follower)
        sending = cluster.sim.spawn("client", client.producer.send_and_wait("orders", b"during", partition=0))
        cluster.until(lambda: not is_unfenced(cluster, follower), SESSION_S + 1.0, "it to be fenced again")
        assert not sending.done()
        cluster.until(sending.done, 0.5, "the record to be committed")


def test_a_follower_that_was_about_to_join_and_fetches_no_more_holds_nothing_up_for_long() -> None:
    """S10: it counts until replica.lag.time.max.ms is over. No fetch says so, and its heartbeats are answered."""
    with simulated_orders(replica_lag_time_max_ms="12000") as cluster:
        client, follower = with_a_follower(cluster, request_timeout_ms=60_000)
        let_it_be_about_to_join(cluster, follower)
        sending = cluster.sim.spawn("client", client.producer.send_and_wait("orders", b"during", partition=0))
        cluster.run_for(0.5)
        assert not sending.done()
        cluster.until(sending.done, 12.0, "the record to be committed")


def test_a_restarted_follower_joins_as_soon_as_its_leader_knows_of_it() -> None:
    """Its first fetch comes before the news of its registration, and does not count. The partition rests, so that the
    fetch has nothing to return: it is not held for ``replica.fetch.wait.max.ms``.
    """
    with simulated(replica_fetch_wait_max_ms="5000") as cluster:
        cluster.create_topic("orders", partitions=3, replication_factor=3)
        cluster.settle()
        name = led_by_another_than_the_controller(cluster)
        leader = cluster.leader_of(name)
        follower = next(node for node in cluster.nodes if node not in (leader, cluster.controller()))
        cluster.crash(follower)
        cluster.until(lambda: follower not in cluster.partition(name).isr, SESSION_S + 1.0, "it to leave the ISR")  # type: ignore[union-attr]
        late = ("Fetch", "answer", f"n{cluster.controller()}", f"n{leader}")
        cluster.sim.network.rule(
            lambda message: (
                Deliver(0.5) if (message.api, message.kind, message.source, message.target) == late else None
            )
        )
        replicas = cluster.brokers[leader].replicas
        before = replicas.registered_epoch(follower)
        cluster.boot(follower)
        cluster.until(lambda: replicas.registered_epoch(follower) != before, 10.0, "news of its registration")
        cluster.until(lambda: follower in cluster.partition(name).isr, 1.5, "it to be in the ISR")  # type: ignore[union-attr]


def test_a_late_copy_of_a_refused_proposal_puts_nobody_into_the_isr() -> None:
    """KIP-841: a leader that lacks news proposes a follower for the ISR. The request is held on the way; sent again, it
    is refused, for the follower is fenced by then, and the leader does not count it any more. It is unfenced in the
    same life before the first request arrives.
    """
    with simulated(brokers=5, voters=3, replica_lag_time_max_ms="2000") as cluster:
        cluster.create_topic("orders", partitions=10, replication_factor=3)
        cluster.settle()
        name, leader, follower = next(
            (each, state.leader, other)
            for each in cluster.partition_names()
            if each.topic == "orders" and (state := cluster.partition(each)) is not None
            for other in state.replicas
            if other > 3 and state.leader > 3 and other != state.leader
        )
        rule, led = cluster.sim.network.rule, f"n{leader}"
        silent = (f"n{follower}", led)
        lagging = rule(
            lambda message: Drop() if (message.source, message.target) == silent and message.api == "Fetch" else None
        )
        cluster.until(lambda: follower not in cluster.partition(name).isr, 10.0, "it to leave the ISR")  # type: ignore[union-attr]
        cluster.run_for(1.0)
        sent: list[Message] = []

        def first_is_held(message: Message) -> Hold | Reset | None:
            if (message.source, message.api, message.kind) != (led, "AlterPartition", "request"):
                return None
            sent.append(message)
            return Hold() if len(sent) == 1 else Reset()

        held = rule(first_is_held)
        lagging()
        cluster.until(lambda: bool(sent), 5.0, "a proposal")
        rule(lambda message: Drop() if (message.source, message.target) == silent and message.api == "Fetch" else None)
        quiet = rule(
            lambda message: Drop() if message.source == silent[0] and message.api == "BrokerHeartbeat" else None
        )
        cluster.run_for(SESSION_S - 1.0)
        no_news = rule(
            lambda message: Drop() if message.source == led and is_fetch_of(message, METADATA_TOPIC) else None
        )
        cluster.until(lambda: not cluster.image().eligible(follower), 3.0, "it to be fenced")  # type: ignore[union-attr]
        held()
        refused = "isr_proposal_refused"
        cluster.until(lambda: bool(facts_of(cluster, refused, leader)), 1.0, "the second copy to be refused")
        assert facts_of(cluster, refused, leader)[0]["error"] == "INELIGIBLE_REPLICA"
        no_news()
        quiet()
        cluster.until(lambda: cluster.image().eligible(follower), 5.0, "it to be unfenced")  # type: ignore[union-attr]
        before = cluster.partition(name)
        cluster.sim.network.release()
        cluster.run_for(1.0)
        assert cluster.partition(name) == before
        cluster.sim.network.rules.clear()
        cluster.settle(60.0)
        assert follower in cluster.partition(name).isr  # type: ignore[union-attr]


def test_a_batch_does_not_overtake_one_that_takes_long_to_check() -> None:
    """The second one may take less time beside the loop; both were sent by one client, one after the other."""
    with simulated_orders() as cluster:
        client = Client(cluster)
        leader = cluster.leader_of(ORDERS)
        pauses = iter((0.5, 0.1))

        async def takes_its_time(work: Callable[[], Any]) -> Any:
            await asyncio.sleep(next(pauses))
            return work()

        cluster.brokers[leader].replicas.offload = takes_its_time  # type: ignore[assignment]
        bodies = [Random(seed).randbytes(9000) for seed in (1, 2)]
        producing = []
        for body in bodies:
            data = build_batch([Record(0, client.world.clock.wall_ms(), value=body)], compression="gzip")
            item = ProducePartition(topic="orders", partition=0, records=(data,))
            request = ProduceRequest(acks=1, timeout_ms=5000, partitions=(item,))
            producing.append(cluster.sim.spawn("client", ask(client, leader, request)))
            cluster.run_for(0.1)
        cluster.until(lambda: all(each.done() for each in producing), 5.0, "both to be written")
        assert [each.result().partitions[0].base_offset for each in producing] == [0, 1]
        assert values(cluster, leader) == bodies


def test_a_long_poll_ends_when_its_topic_is_deleted() -> None:
    """Its consumer looks for the topic elsewhere then; it need not wait for the end of its poll."""
    with simulated_orders() as cluster:
        client = Client(cluster)
        polling = cluster.sim.spawn("client", ask(client, cluster.leader_of(ORDERS), fetch(ORDERS, 0, wait_ms=30_000)))
        cluster.run_for(0.5)
        assert not polling.done()
        client.run(client.admin.delete_topics(["orders"]))
        cluster.until(polling.done, 0.5, "it to be answered")
        assert polling.result().partitions[0].error_code


def test_a_leader_that_is_cut_off_refuses_readers_once_its_session_has_expired() -> None:
    """Issue 13: it answered 416 for offsets that its successor had committed, for as long as it was cut off. It names
    the leader that it last heard of, which is itself, and goes on serving when it is back.
    """
    with simulated_orders(partitions=3) as cluster:
        name = led_by_another_than_the_controller(cluster)
        client = Client(cluster)
        client.send(b"before", name)
        zombie = cluster.leader_of(name)
        opened = client.run(ask(client, zombie, replace(fetch(name, 1), session_epoch=0)))
        cut_at = cluster.sim.loop.time()
        parked = cluster.sim.spawn("client", ask(client, zombie, fetch(name, 1, wait_ms=20_000)))
        cluster.sim.network.isolate(f"n{zombie}", still_talks_to=("client",))
        assert read(client, zombie, fetch(name, 0)).error_code == 0, "its session has not expired yet"
        cluster.until(lambda: cluster.leader_of(name) not in (zombie, -1), SESSION_S + 1.0, "another leader")
        client.send_all([b"after", b"after that"], name)
        follower = next(each for each in cluster.nodes if each != zombie)
        requests = (
            fetch(name, 3),
            fetch(name, 0),
            fetch(name, 0, min_bytes=1_000_000, wait_ms=100),
            replace(fetch(name, 1), session_id=opened.session_id, session_epoch=1, partitions=()),
            ListOffsetsRequest(
                partitions=(ListOffsetsPartition(topic=name.topic, partition=name.partition, timestamp=LATEST),)
            ),
            ListOffsetsRequest(
                replica_id=follower,
                partitions=(ListOffsetsPartition(topic=name.topic, partition=name.partition, timestamp=LATEST),),
            ),
            OffsetForLeaderEpochRequest(
                partitions=(EpochQuery(topic=name.topic, partition=name.partition, leader_epoch=0),)
            ),
            OffsetForLeaderEpochRequest(
                replica_id=follower,
                partitions=(EpochQuery(topic=name.topic, partition=name.partition, leader_epoch=0),),
            ),
            DeleteRecordsRequest(
                timeout_ms=100,
                partitions=(DeleteRecordsPartition(topic=name.topic, partition=name.partition, offset=1),),
            ),
        )
        for request in requests:
            answer = read(client, zombie, request)
            assert answer.error_code == NotLeaderOrFollower.code, request
            told = getattr(answer, "current_leader", None)
            assert told is None or told.leader_id == zombie, "the leader that it last heard of"
        cluster.until(parked.done, 20.0, "the parked fetch to be answered")
        assert parked.result().partitions[0].error_code == NotLeaderOrFollower.code
        assert cluster.sim.loop.time() - cut_at < 25.0
        cluster.heal()
        cluster.settle(60.0)
        assert [values(cluster, node, name) for node in cluster.nodes] == [[b"before", b"after", b"after that"]] * 3


def test_a_leader_whose_session_has_expired_serves_its_followers() -> None:
    """Without a controller every session expires. Replication goes on, so that no replica falls behind meanwhile."""
    with simulated_orders(partitions=1) as cluster:
        client = Client(cluster)
        client.send(b"before", ORDERS)
        leader = cluster.leader_of(ORDERS)
        control = ("BrokerHeartbeat", "Vote", "BeginQuorumEpoch", "EndQuorumEpoch")
        cluster.sim.network.rule(
            lambda message: Drop() if message.api in control or is_fetch_of(message, METADATA_TOPIC) else None
        )
        cluster.run_for(2 * SESSION_S)
        assert read(client, leader, fetch(ORDERS, 0)).error_code == NotLeaderOrFollower.code
        described: DescribeReplicasResponse = client.run(ask(client, leader, DescribeReplicasRequest()))
        (replica,) = (each for each in described.replicas if (each.topic, each.partition) == ORDERS)
        assert replica.role == "leader"
        assert [each.last_fetch_ms_ago < 1000 for each in replica.remotes] == [True, True]


@pytest.mark.parametrize("with_controller", [False, True])
def test_two_of_three_brokers_shut_down_at_once(with_controller: bool) -> None:
    """SIGTERM to two at the same moment: both hand over in good order, neither waits for the other for ever, and what
    was acknowledged is there when they come back (KAFKA-FACTS 3.9, controlled shutdown).
    """
    with simulated_orders(partitions=3) as cluster:
        client = Client(cluster)
        names = cluster.partition_names()
        for name in names:
            client.send_all([b"a", b"b"], name)
        controller = cluster.controller()
        others = [node for node in cluster.nodes if node != controller]
        leaving = [controller, others[0]] if with_controller else others
        staying = next(node for node in cluster.nodes if node not in leaving)
        for node in leaving:
            cluster.sim.spawn(f"n{node}", cluster.brokers[node].stop())
        took = cluster.until(
            lambda: all(cluster._has_stopped(node) for node in leaving), 40.0, "both brokers to have stopped"
        )
        assert took < 17.0
        assert [cluster.brokers[node].failure for node in leaving] == [None, None]
        assert all(facts["clean"] for node in leaving for facts in facts_of(cluster, "broker_stopped", node))
        assert cluster.living() == (staying,)
        for node in leaving:
            cluster.sim.kill(f"n{node}")
            cluster.restart(node)
        cluster.settle(60.0)
        assert [values(cluster, cluster.leader_of(name), name) for name in names] == [[b"a", b"b"]] * 3


@pytest.mark.parametrize("seed", range(4))
def test_the_whole_cluster_shuts_down_at_once(seed: int) -> None:
    """`docker compose stop`: the last broker has nobody to hand over to and no controller to ask. Where it leads nothing
    it does not wait for one in vain, and all comes back as it was.
    """
    with simulated_orders(seed, partitions=3) as cluster:
        client = Client(cluster)
        names = cluster.partition_names()
        for name in names:
            client.send_all([b"a", b"b"], name)
        for node in cluster.nodes:
            cluster.sim.spawn(f"n{node}", cluster.brokers[node].stop())
        took = cluster.until(
            lambda: all(cluster._has_stopped(node) for node in cluster.nodes), 40.0, "all brokers to have stopped"
        )
        assert took < 8.0
        assert all(facts["clean"] for facts in facts_of(cluster, "broker_stopped"))
        for node in cluster.nodes:
            cluster.sim.kill(f"n{node}")
            cluster.restart(node)
        cluster.settle(60.0)
        assert [values(cluster, cluster.leader_of(name), name) for name in names] == [[b"a", b"b"]] * 3


def led_away_from_home(cluster: SimCluster) -> tuple[Client, TopicPartition, NodeId]:
    """A client, a partition that has one record and whose preferred leader has restarted, and who that is."""
    cluster.create_topic("orders", partitions=3)
    cluster.settle()
    name = led_by_another_than_the_controller(cluster)
    client = Client(cluster)
    home = cluster.leader_of(name)
    cluster.crash(home)
    client.send(b"while away", name)
    cluster.restart(home)
    cluster.settle(60.0)
    return client, name, home


def test_leaders_go_home_after_a_restart() -> None:
    """auto.leader.rebalance.enable: the first replica of the assignment leads again at the next check, and no producer
    notices (KAFKA-FACTS 3.9, preferred election).
    """
    with simulated(leader_imbalance_check_interval_seconds="20") as cluster:
        client, name, home = led_away_from_home(cluster)
        assert cluster.leader_of(name) != home
        sent = 0
        while cluster.leader_of(name) != home and sent < 300:
            client.send(b"%d" % sent, name)
            sent += 1
            cluster.run_for(0.1)
        assert cluster.leader_of(name) == home
        client.send(b"home", name)
        cluster.settle()
        assert values(cluster, home, name) == [b"while away", *(b"%d" % number for number in range(sent)), b"home"]


def test_an_administrator_sends_a_leader_home() -> None:
    """ElectLeaders, preferred: at once, without waiting for the next check."""
    with simulated() as cluster:
        client, name, home = led_away_from_home(cluster)
        client.run(client.admin.elect_leaders("preferred", [name]))
        cluster.until(lambda: cluster.leader_of(name) == home, 2.0, "the leader to be home")
        client.send(b"home", name)
        cluster.settle()
        assert values(cluster, home, name) == [b"while away", b"home"]


@pytest.mark.parametrize("seed", range(3))
def test_an_idempotent_producer_neither_repeats_nor_reorders_through_changes_of_leader(seed: int) -> None:
    """KIP-98 over the whole way: answers are lost, so that written batches are sent again; then the leader dies, so
    that they are sent again to another one, which knows them from its log.
    """
    with simulated_orders(seed) as cluster:
        client = Client(cluster, request_timeout_ms=1000)
        sent = 0

        async def send_on(until_s: float) -> None:
            nonlocal sent
            futures = []
            while client.world.clock.now() < until_s:
                futures.append(await client.producer.send("orders", b"%d" % sent, partition=0))
                sent += 1
                await asyncio.sleep(0.01)
            await asyncio.gather(*futures)

        for _ in range(2):
            leader = cluster.leader_of(ORDERS)
            task = cluster.sim.spawn(client.name, send_on(cluster.sim.loop.time() + 4.0))
            cluster.run_for(1.0)
            heal = cluster.sim.network.rule(
                matching(Drop(), api="Produce", kind="answer", source=f"n{leader}", target=client.name)
            )
            cluster.run_for(1.0)
            cluster.crash(leader)
            heal()
            cluster.until(task.done, 60.0, "every record to be acknowledged")
            task.result()
            cluster.restart(leader)
            cluster.settle(60.0)
        assert sent > 300
        assert values(cluster, cluster.leader_of(ORDERS)) == [b"%d" % number for number in range(sent)]


def test_a_fetch_that_was_just_given_up_may_be_given_up_again() -> None:
    """A partition that is new at a leader ends the long poll there; two of them in following turns of the loop are two
    partitions, not a broken broker.
    """
    with simulated_orders() as cluster:
        leader = cluster.leader_of(ORDERS)
        follower = next(node for node in cluster.nodes if node != leader)
        fetchers = cluster.brokers[follower].replicas.fetchers
        seat = cluster.replica(follower, ORDERS)
        assert seat is not None

        async def assign_often() -> None:
            for _ in range(50):
                fetchers.assign(seat)
                await asyncio.sleep(0)

        cluster.sim.run_until(None, cluster.sim.spawn(f"n{follower}", assign_often()).done)
        cluster.run_for(1.0)
        assert cluster.brokers[follower].failure is None
        Client(cluster).send(b"v")
        cluster.settle()


def test_a_replica_that_cannot_take_up_its_role_leaves_the_others_theirs() -> None:
    """A disk that is full when a broker is elected: it cannot note its epoch (KAFKA-7415), so it must not lead. It says
    so, hands over, and stops in good order; every partition finds a leader.
    """
    with simulated_orders(partitions=6) as cluster:
        client = Client(cluster)
        names = cluster.partition_names()
        for name in names:
            client.send(b"a", name)
        cluster.settle()
        full, dying = [node for node in cluster.nodes if node != cluster.controller()]
        disk = cluster.sim.disk(f"n{full}")
        disk.capacity_bytes = disk.used_bytes()
        cluster.crash(dying)
        cluster.until(lambda: full not in cluster.living(), 60.0, "the broker with the full disk to stop")
        assert (cluster.brokers[full].failure or "").startswith("the disk failed")
        disk.capacity_bytes = None
        cluster.sim.kill(f"n{full}")
        cluster.restart(full)
        cluster.restart(dying)
        cluster.settle(60.0)
        assert [values(cluster, cluster.leader_of(name), name) for name in names] == [[b"a"]] * 6


def test_a_bug_in_a_broker_that_is_leaving_ends_it_at_once() -> None:
    """It waits for leave, cut off from the controller, and still leads. A task has failed, so that it may no longer learn
    who leads: it must not serve for the rest of mk.controlled.shutdown.max.wait.ms.
    """
    with simulated_orders() as cluster:
        leader = next(node for node in cluster.nodes if node != cluster.controller())
        broker = cluster.brokers[leader]
        cluster.sim.network.isolate(f"n{leader}")

        async def stop() -> None:
            await broker.stop()

        async def fail() -> None:
            broker._on_task_failure("quorum-apply", RuntimeError("a bug"))

        stopping = cluster.sim.spawn(f"n{leader}", stop())
        cluster.run_for(1.0)
        assert broker.is_open
        assert not stopping.done()
        cluster.sim.spawn(f"n{leader}", fail())
        cluster.run_for(2.0)
        assert stopping.done()
        assert not broker.is_open
        assert broker.failure == "quorum-apply failed: RuntimeError: a bug"
        cluster.sim.network.heal()
        cluster.sim.kill(f"n{leader}")
        cluster.restart(leader)
        cluster.settle(60.0)


def test_a_timeout_after_the_append_is_unknown_and_the_data_stays() -> None:
    """KAFKA-FACTS 3.8: REQUEST_TIMED_OUT means *unknown*; the record is committed as soon as the followers are back."""
    with simulated_orders() as cluster:
        client = Client(cluster)
        leader = cluster.leader_of(ORDERS)
        heal = cluster.sim.network.rule(
            lambda message: Drop() if message.target == f"n{leader}" and is_fetch_of(message, "orders") else None
        )
        answer = client.tell(leader, b"late", acks=-1)
        assert (answer.error_code, answer.outcome) == (RequestTimedOut.code, UNKNOWN)
        assert values(cluster, leader) == [b"late"]
        heal()
        cluster.settle(60.0)
        assert [values(cluster, node) for node in cluster.nodes] == [[b"late"]] * 3


@pytest.mark.parametrize("unclean", [False, True])
def test_s20_unclean_election_off_waits_and_on_loses(unclean: bool) -> None:
    """S20: nobody in sync lives. Off: the partition waits for the one that has everything. On: the first live replica
    leads at once, and what only the dead one had is gone when it comes back as a follower.
    """
    with simulated(
        min_insync_replicas="1",
        unclean_leader_election_enable=str(unclean).lower(),
        unclean_leader_election_interval_ms="1000",
    ) as cluster:
        cluster.create_topic("orders", partitions=3, replication_factor=2)
        cluster.settle()
        # The replica that is neither must keep the quorum: two of three voters live at any time.
        name = next(
            name
            for name in cluster.partition_names()
            if (state := cluster.partition(name)) is not None and cluster.controller() not in state.replicas
        )
        client = Client(cluster)
        leader = cluster.leader_of(name)
        other = next(node for node in cluster.partition(name).replicas if node != leader)  # type: ignore[union-attr]
        client.send(b"on both", name)
        cluster.settle()
        cluster.crash(other)
        cluster.until(lambda: cluster.partition(name).isr == (leader,), 20.0, "the ISR to shrink")  # type: ignore[union-attr]
        client.send(b"on one", name)
        cluster.sim.kill(f"n{leader}")
        cluster.restart(other)
        if unclean:
            cluster.until(lambda: cluster.leader_of(name) == other, 60.0, "the other replica to lead")
            cluster.restart(leader)
            cluster.settle(60.0)
            assert [values(cluster, node, name) for node in (leader, other)] == [[b"on both"]] * 2
            cut = [facts for facts in facts_of(cluster, "tail_truncated", leader) if facts["partition"] == str(name)]
            assert [(facts["old"], facts["new"]) for facts in cut] == [(2, 1)]
        else:
            cluster.run_for(60.0)
            assert cluster.leader_of(name) == -1
            cluster.restart(leader)
            cluster.settle(60.0)
            assert [values(cluster, node, name) for node in (leader, other)] == [[b"on both", b"on one"]] * 2


def test_a_new_leader_does_not_let_the_end_go_back() -> None:
    """KIP-207, S8: the new leader has the committed record, but heard of its commit one round too late. Until it is
    sure, "latest" is OFFSET_NOT_AVAILABLE, not an offset below the one that was told before.
    """
    with simulated_orders(partitions=3) as cluster:
        name = led_by_another_than_the_controller(cluster)
        client = Client(cluster)
        client.send(b"a", name)
        cluster.settle()
        old = cluster.leader_of(name)
        client.send(b"b", name)
        cluster.crash(old)
        # Nobody fetches user records: the new leader cannot learn what is committed.
        heal = cluster.sim.network.rule(lambda message: Drop() if is_fetch_of(message, "orders") else None)
        cluster.until(lambda: cluster.leader_of(name) not in (old, -1), SESSION_S + 1.0, "another leader")
        new = cluster.leader_of(name)
        cluster.until(lambda: cluster.replica(new, name).leader == new, 1.0, "the new leader to know")  # type: ignore[union-attr]
        role = cluster.replica(new, name).as_leader()  # type: ignore[union-attr]
        assert (role.high_watermark, role.epoch_start) == (1, 2)

        def latest() -> ListedOffset:
            item = ListOffsetsPartition(topic=name.topic, partition=name.partition, timestamp=LATEST)
            request = ListOffsetsRequest(partitions=(item,))
            deadline = cluster.sim.loop.time() + 5.0
            answer: ListOffsetsResponse = client.run(
                call(client.world.network, cluster.address_of(new), request, deadline)
            )
            return answer.partitions[0]

        assert latest().error_code == OffsetNotAvailable.code
        heal()
        cluster.settle(60.0)
        assert latest().offset == 2
