"""A bit rots on one disk: whoever reads it notices, nobody passes it on, and everything else goes on (issue 3)."""

from __future__ import annotations

import pytest

from minikafka.client.consumer import Consumer
from minikafka.client.settings import ConsumerConfig
from minikafka.errors import CorruptMessage
from minikafka.faults import LEADER
from minikafka.log.names import RECOVERY_POINT_CHECKPOINT, offset_name
from minikafka.sim.cluster import SimCluster, node_name
from minikafka.sim.plan import Fault
from minikafka.sim.run import Run
from minikafka.types import NodeId, TopicPartition
from tests.sim.cluster_kit import ORDERS, Client, both_are_back, facts_of, simulated, values
from tests.sim.test_sim_clients import quick

LETTERS = [bytes([letter]) for letter in b"abcdefgh"]
FROM_FILES = {"mk_memory_tails_bytes": "0", "log_segment_bytes": "300", "log_flush_interval_messages": "1"}
"""Small segments, each record on the disk when it is acknowledged, and read from there."""

ROTTEN = 3
"""Offset of the record whose batch is damaged."""


def filled(cluster: SimCluster) -> Client:
    """A record a batch, eight of them, on every replica."""
    cluster.create_topic("orders")
    client = Client(cluster, linger_ms=0)
    for letter in LETTERS:
        client.send(letter)
    cluster.settle()
    return client


def bit_rot(cluster: SimCluster, node: NodeId) -> str:
    """Flip a bit of the value of record 3 in the replica's file; the file's path."""
    replica = cluster.replica(node, ORDERS)
    assert replica is not None
    disk = cluster.sim.disk(node_name(node))
    for base in range(ROTTEN, -1, -1):
        path = f"{ORDERS}/{offset_name(base, '.log')}"
        if path in disk.files():
            at = disk.content_bytes(path).index(LETTERS[ROTTEN], 61)
            disk.bit_rot(path, at)
            return path
    raise AssertionError("record 3 is in a file")


def read_all(cluster: SimCluster, name: str) -> tuple[list[bytes], CorruptMessage | None]:
    """What the production consumer hands out from the start on, until there is no more or an error."""
    world = cluster.sim.of(name)
    config = ConsumerConfig(bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest")
    got: list[bytes] = []

    async def reading() -> CorruptMessage | None:
        async with Consumer(config, world) as consumer:
            consumer.assign([ORDERS])
            while len(got) < len(LETTERS):
                try:
                    taken = await consumer.getmany(timeout_ms=1000)
                except CorruptMessage as error:
                    return error
                got.extend(record.value for records in taken.values() for record in records)
        return None

    error = cluster.run(reading(), node=name)
    return got, error


def test_a_consumer_is_told_where_the_damage_is() -> None:
    """KAFKA-FACTS 2: the checksum is the consumer's to look at; what stands before the damage is delivered first."""
    with simulated(**FROM_FILES) as cluster:
        client = filled(cluster)
        leader = cluster.leader_of(ORDERS)
        bit_rot(cluster, leader)
        got, error = read_all(cluster, "reader")
        assert got == LETTERS[:ROTTEN]
        assert error is not None
        assert error.facts["offset"] == ROTTEN
        client.send(b"i")
        assert cluster.living() == (1, 2, 3), "a rotten batch fails who reads there, and nobody else"
        cluster.stop(leader)
        cluster.until(lambda: cluster.leader_of(ORDERS) not in (leader, -1), 10, "another leader")
        assert read_all(cluster, "another")[0] == LETTERS


def test_a_follower_does_not_store_the_damage() -> None:
    """KAFKA-FACTS 2: a follower checks each batch before it appends; it stays in front of the damage, out of the ISR."""
    with simulated(brokers=4, voters=3, **FROM_FILES) as cluster:
        client = filled(cluster)
        state = cluster.partition(ORDERS)
        assert state is not None
        leader, follower = state.leader, next(node for node in state.replicas if node != state.leader)
        bit_rot(cluster, leader)
        cluster.power_cut(follower)
        cluster.sim.disk(node_name(follower)).remove_for_good(str(ORDERS))
        cluster.boot(follower)
        cluster.until(lambda: cluster.sim.marks["fetch_corrupt"] >= 3, 20, "the follower to refuse")
        replica = cluster.replica(follower, ORDERS)
        assert replica is not None
        assert replica.log.end_offset <= ROTTEN
        assert values(cluster, follower) == LETTERS[: replica.log.end_offset]
        now = cluster.partition(ORDERS)
        assert now is not None
        assert follower not in now.isr
        client.send(b"i")
        assert cluster.living() == (1, 2, 3, 4)
        cluster.stop(leader)
        cluster.until(lambda: values(cluster, follower) == [*LETTERS, b"i"], 20, "the follower to catch up elsewhere")


@pytest.mark.parametrize("folder", [False, True])
def test_recovery_drops_the_damage_and_fetches_it_again(folder: bool) -> None:
    """S21, KAFKA-FACTS 1.4: a walk over the whole log cuts it at the bad checksum; the rest comes from the leader."""
    with simulated(**FROM_FILES) as cluster:
        filled(cluster)
        node = next(node for node in cluster.nodes if node != cluster.leader_of(ORDERS))
        path = bit_rot(cluster, node)
        cluster.crash(node)
        cluster.sim.disk(node_name(node)).remove_for_good(str(ORDERS) if folder else RECOVERY_POINT_CHECKPOINT)
        cluster.boot(node)
        cluster.settle()
        dropped = [event.facts for event in cluster.sim.journal if event.kind == "torn_tail_dropped"]
        if not folder:
            assert any(facts["path"] == path and "crc" in str(facts["reason"]) for facts in dropped), dropped
        assert values(cluster, node) == LETTERS
        files = [cluster.sim.disk(node_name(each)).files() for each in cluster.nodes]
        logs = [
            {name: data for name, data in each.items() if name.startswith(f"{ORDERS}/") and name.endswith(".log")}
            for each in files
        ]
        assert b"".join(logs[0].values()) == b"".join(logs[1].values()) == b"".join(logs[2].values())


def test_below_the_recovery_point_only_reading_finds_it() -> None:
    """KAFKA-FACTS 1.4: what was synced is believed after a crash, so the damage stays, until somebody reads there."""
    with simulated(log_flush_offset_checkpoint_interval_ms="100", **FROM_FILES) as cluster:
        filled(cluster)
        cluster.run_for(1.0)
        leader = cluster.leader_of(ORDERS)
        bit_rot(cluster, leader)
        cluster.crash(leader)
        cluster.boot(leader)
        cluster.settle()
        assert cluster.sim.marks["torn_tail_dropped"] == 0
        for other in [node for node in cluster.nodes if node != leader]:
            cluster.stop(other)
        cluster.until(lambda: cluster.leader_of(ORDERS) == leader, 20, "the damaged replica to lead")
        got, error = read_all(cluster, "reader")
        assert (got, error is not None) == (LETTERS[:ROTTEN], True)


@pytest.mark.parametrize("folder", [0.0, 1.0])
def test_a_plan_with_a_rotten_bit(folder: float) -> None:
    """The fault as plans have it: it waits until everything is whole, an operator puts it right, the replicas are equal."""
    fault = Fault(at_s=2.5, kind="rot", target=f"{LEADER}:orders-0", lasts_s=1.5, value=folder)
    reader = Fault(at_s=2.7, kind="kill_reader", target="c1", lasts_s=0.01, value=1.0)
    settings = {**quick().settings, "mk.memory.tails.bytes": "0"}
    running = Run(quick(fault, reader, settings=settings, consumers=1))
    report = running.run()
    assert report.ok, report.render()
    assert report.marks["bit_rotten"] == report.marks["rot_repaired"] == report.marks["bit_rotten_on_leader"] == 1
    assert report.marks["damage_refused_by_reader"] > 0
    assert report.outcomes["ok"] >= 55


def test_damage_keeps_its_own_segments_from_retention_only() -> None:
    """Before segments go, a snapshot has their producers; an unclean start removes it, and making it reads their headers.
    Damage there stopped the broker, and again after each start.
    """
    retained = {**FROM_FILES, "log_retention_bytes": "100", "log_retention_check_interval_ms": "20000"}
    with simulated(brokers=1, min_insync_replicas="1", **retained) as cluster:
        cluster.create_topic("orders")
        cluster.create_topic("payments")
        client = Client(cluster, linger_ms=0)
        payments = TopicPartition("payments", 0)
        for name in (ORDERS, payments):
            client.send_all(LETTERS, name)
        cluster.crash(1)
        cluster.boot(1)
        cluster.settle()
        cluster.sim.disk(node_name(1)).bit_rot(f"{ORDERS}/{offset_name(0, '.log')}", 16)
        kept = cluster.replica(1, payments)
        assert kept is not None
        cluster.until(lambda: kept.log.start_offset > 0, 60.0, "the other log's retention")
        cluster.run_for(5.0)
        assert not facts_of(cluster, "broker_failed")
        assert facts_of(cluster, "damage_read")
        replica = cluster.replica(1, ORDERS)
        assert replica is not None
        assert (replica.failed, replica.log.start_offset) == (None, 0)


def restart_a_damaged_last_leader(
    cluster: SimCluster, *, copies: int, ends: int = 1
) -> tuple[Client, NodeId, list[NodeId]]:
    """A partition whose other replicas have ended, and whose leader's disk is damaged in what was synced. It ends, too,
    more than once before others are there to let it in, and all start again. The client, the leader and the others.
    """
    cluster.create_topic("orders", partitions=1, replication_factor=copies)
    client = Client(cluster, linger_ms=0)
    for letter in LETTERS:
        client.send(letter)
    cluster.settle()
    leader = cluster.leader_of(ORDERS)
    others = [node for node in cluster.nodes if node != leader and cluster.replica(node, ORDERS) is not None]
    for node in others:
        cluster.crash(node)
        cluster.until(lambda: cluster.partition(ORDERS).isr == (leader,), 60.0, "the ISR to shrink")  # type: ignore[union-attr]
    bit_rot(cluster, leader)
    cluster.crash(leader)
    cluster.sim.disk(node_name(leader)).remove_for_good(RECOVERY_POINT_CHECKPOINT)
    for _ in range(ends - 1):
        cluster.restart(leader)
        cluster.until(lambda: leader in cluster.present(), 20.0, "the damaged broker to load its logs")
        cluster.crash(leader)
    for node in (leader, *others):
        cluster.restart(node)
    return client, leader, others


def check_last_leader_waits(ends: int) -> None:
    """It does not lead, and has everything again once another replica was elected uncleanly."""
    with simulated(min_insync_replicas="1", **FROM_FILES) as cluster:
        client, leader, [follower] = restart_a_damaged_last_leader(cluster, copies=2, ends=ends)
        both_are_back(cluster, leader, follower)
        state = cluster.partition(ORDERS)
        assert state is not None
        assert (state.leader, state.isr, state.elr, state.last_known_elr) == (-1, (), (), (leader,))
        assert [facts["partitions"] for facts in facts_of(cluster, "logs_lost", leader)] == [[str(ORDERS)]] * ends
        assert client.run(client.admin.elect_leaders("unclean", [ORDERS])) == {ORDERS: None}
        cluster.settle(60.0)
        assert values(cluster, leader) == values(cluster, follower) == LETTERS
        cluster.stop(leader)
        cluster.restart(leader)
        cluster.settle(60.0)
        assert len(facts_of(cluster, "logs_lost", leader)) == ends, "it was let in since"


def test_the_last_leader_does_not_lead_with_what_damage_has_left() -> None:
    """KIP-966, seed 651817121: the last leader's log is cut at the damage as it starts. It led with what was left, and
    the other replica dropped what only it still had.
    """
    check_last_leader_waits(ends=1)


def test_damage_is_remembered_by_a_process_that_ends_before_it_is_let_in() -> None:
    """The next process finds a log that ends well."""
    check_last_leader_waits(ends=2)


def test_a_damaged_replica_that_is_alone_leads_with_what_is_left() -> None:
    """Nobody has more, so that there is nothing to wait for."""
    with simulated(min_insync_replicas="1", **FROM_FILES) as cluster:
        client, leader, _ = restart_a_damaged_last_leader(cluster, copies=1)
        cluster.settle(60.0)
        assert values(cluster, leader) == LETTERS[:ROTTEN]
        client.send(b"after it")
        assert values(cluster, leader) == [*LETTERS[:ROTTEN], b"after it"]
