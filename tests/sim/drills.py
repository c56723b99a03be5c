"""Directed schedules for planted bugs that chance meets too rarely, where no other test has them already."""

from __future__ import annotations

import asyncio

from minikafka.broker.purgatory import Condition, Mark, Purgatory
from minikafka.errors import IneligibleReplica
from minikafka.quorum.image import MetadataImage
from minikafka.quorum.records import TopicRecord
from minikafka.sim.world import SimWorld
from minikafka.types import TopicPartition
from tests.rules.controller_kit import Cluster
from tests.rules.replication_kit import follower, log_of
from tests.rules.test_broker_session import (
    test_a_controller_that_resigned_before_its_answer_was_read_does_not_vouch as resigned_does_not_vouch,
)
from tests.sim.cluster_kit import ORDERS, Client, simulated, values
from tests.sim.test_cluster_leaders import test_a_leader_that_was_away_refuses_until_it_knows_what_it_missed as was_away


def _with_3_outside() -> Cluster:
    cluster = Cluster(4)
    cluster.create("t", (1, 2, 3))
    cluster.set_isr(1, 2)
    return cluster


def a_member_that_restarted_since_does_not_join() -> None:
    """KIP-903, KAFKA-14139: the log that caught up must be the log that joins."""
    cluster = _with_3_outside()
    late = cluster.proposal(1, 2, 3)
    cluster.start(3)
    assert cluster.propose(late).error_code == IneligibleReplica.code


def fenced_and_stopping_brokers_do_not_join() -> None:
    """KIP-841, KAFKA-13916."""
    cluster = _with_3_outside()
    cluster.lose(3)
    assert cluster.propose(cluster.proposal(1, 2, 3)).error_code == IneligibleReplica.code
    cluster.heartbeat(3)
    cluster.heartbeat(3, want_shut_down=True)
    assert cluster.propose(cluster.proposal(1, 2, 3)).error_code == IneligibleReplica.code


def a_snapshot_holds_every_topic() -> None:
    """Whoever loads it must know what those know who replayed the log."""
    records = [TopicRecord(name="a", topic_id="A" * 22), TopicRecord(name="b", topic_id="B" * 22)]
    image = MetadataImage().replay_all(records, 2, 1)
    assert MetadataImage().replay_all(image.records(), 2, 1).topics == image.topics


def a_zombie_acknowledges_nothing() -> None:
    """A leader whose session has run out, with acks=1."""
    was_away(1)


def a_resigned_controller_does_not_vouch() -> None:
    """Between its answer to a heartbeat of its own process and the moment when that is read, another one took over."""
    resigned_does_not_vouch(is_first=False)


def an_idle_cluster_acknowledges_at_once() -> None:
    """Purgatory: the followers' fetches wake the produce that waits for them, long before its time is up."""
    with simulated(replica_fetch_wait_max_ms="500") as cluster:
        cluster.create_topic("orders")
        cluster.settle()
        client = Client(cluster)
        began = cluster.sim.loop.time()
        client.send(b"a")
        assert cluster.sim.loop.time() - began < 0.4
        assert values(cluster, cluster.leader_of(ORDERS)) == [b"a"]


def a_role_change_ends_the_wait() -> None:
    """Nobody waits for an epoch that is gone."""
    with SimWorld(1) as sim:
        sim.of("n1")

        async def body() -> None:
            purgatory, gone, name = Purgatory(), [], TopicPartition("orders", 0)
            condition = Condition(Mark.HIGH_WATERMARK, name, 1)
            waiting = asyncio.ensure_future(purgatory.until([condition], lambda: bool(gone), sim.loop.now + 9))
            await asyncio.sleep(0.1)
            gone.append(True)
            purgatory.wake_all(name)
            assert await waiting
            assert sim.loop.now < 1

        sim.run(body())


def a_followers_watermark_stays_within_its_log() -> None:
    """S8: HW = min(leader's HW, own LEO)."""
    replica = follower(log_of((0, 3)), epoch=1, high_watermark=1)
    replica.on_durable(10, 0)
    assert replica.high_watermark == replica.log.end_offset == 3
