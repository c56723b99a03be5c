"""What the cluster promises about disks: fsync before acknowledging, full and failing disks, retention, deletion."""

from __future__ import annotations

import asyncio

import pytest

from minikafka.broker.broker import Broker
from minikafka.client.consumer import Consumer
from minikafka.client.settings import ConsumerConfig
from minikafka.config import BrokerConfig
from minikafka.errors import DiskFailed, DiskFull, KafkaStorageError, OffsetOutOfRange, ProtocolError
from minikafka.log.names import PARTITION_METADATA, STRAY_FOLDER
from minikafka.ports import Buffers
from minikafka.sim.cluster import SimCluster, node_name
from minikafka.sim.disk import FencedFile
from minikafka.sim.world import SimWorld
from minikafka.types import TopicPartition
from tests.sim.cluster_kit import (
    ORDERS,
    Client,
    a_follower,
    both_are_back,
    facts_of,
    folders,
    on_disk,
    simulated,
    simulated_orders,
    values,
)


def sending(client: Client, count: int, acknowledged: list[bytes]):
    """Send records in a row and note which of them were acknowledged; a failed one is passed over."""

    async def send_on() -> None:
        for number in range(count):
            value = b"%d" % number
            try:
                await client.producer.send_and_wait("orders", value, partition=0)
            except ProtocolError:
                continue
            acknowledged.append(value)
            await asyncio.sleep(0.002)

    return client.cluster.sim.spawn(client.name, send_on())


@pytest.mark.parametrize("seed", range(5))
def test_what_was_acknowledged_under_fsync_survives_a_power_cut_of_all(seed: int) -> None:
    """D6: with log.flush.interval.messages=1 an acknowledgement waits for the disks of leader and in-sync replicas; the
    power of all three goes in mid-stream, and every acknowledged record comes back, once and in order.
    """
    with simulated_orders(seed, log_flush_interval_messages="1") as cluster:
        client = Client(cluster)
        acknowledged: list[bytes] = []
        sending(client, 1000, acknowledged)
        cluster.until(lambda: len(acknowledged) > 40, 30.0, "forty acknowledgements")
        synced = [cluster.replica(node, ORDERS).log.synced_end for node in cluster.nodes]  # type: ignore[union-attr]
        assert min(synced) >= len(acknowledged), "acknowledged means synced on every in-sync replica"
        cluster.power_cut(1, 2, 3)
        cluster.sim.kill(client.name)
        cluster.boot()
        cluster.settle(60.0)
        held = values(cluster, cluster.leader_of(ORDERS))
        assert held[: len(acknowledged)] == acknowledged
        assert len(set(held)) == len(held)
        assert [values(cluster, node) for node in cluster.nodes] == [held] * 3


def check_failed_leader(cluster: SimCluster, leader: int, why: str, acknowledged: list[bytes]) -> None:
    """The broker stopped by itself and said why, others lead, and every acknowledged record is there once."""
    failure = cluster.brokers[leader].failure or ""
    assert why in failure
    assert failure.count(f"{ORDERS}: ") == 1, "the partition is named once"
    assert not cluster.alive(leader) or leader not in cluster.living()
    stopped = facts_of(cluster, "broker_stopped", leader)
    assert [each["clean"] for each in stopped] == [False]
    new_leader = cluster.leader_of(ORDERS)
    assert new_leader not in (leader, -1)
    held = values(cluster, new_leader)
    assert len(set(held)) == len(held)
    assert [value for value in held if value in set(acknowledged)] == acknowledged


def test_a_leader_whose_disk_is_full_hands_over_and_stops() -> None:
    """Issue 2, item 5: a full disk stops the log, says so, and loses nothing acknowledged; with room it comes back."""
    with simulated_orders() as cluster:
        client = Client(cluster)
        client.send_all([b"a", b"b"])
        leader = cluster.leader_of(ORDERS)
        disk = cluster.sim.disk(f"n{leader}")
        disk.capacity_bytes = disk.used_bytes() + 2000
        acknowledged = [b"a", b"b"]
        task = sending(client, 100, acknowledged)
        cluster.until(task.done, 120.0, "all sends to be answered")
        assert len(acknowledged) == 102, "the producer sends what the full leader refused to the next one"
        cluster.until(lambda: leader not in cluster.living(), 30.0, "the broker to stop")
        check_failed_leader(cluster, leader, "no space", acknowledged)
        disk.capacity_bytes = None
        cluster.restart(leader)
        cluster.settle(60.0)
        assert values(cluster, leader) == acknowledged


def test_a_controller_without_room_gives_way_at_once() -> None:
    """S38, found by the scenario disk-full-leader on processes: a controller that cannot write down what it decides
    cannot let its own broker go either. It reigned on until mk.controlled.shutdown.max.wait.ms (15 s) was over.
    """
    with simulated_orders(broker_session_timeout_ms="2000", broker_heartbeat_interval_ms="500") as cluster:
        full = cluster.controller()
        disk = cluster.sim.disk(f"n{full}")
        disk.capacity_bytes = disk.used_bytes()

        async def fail() -> None:
            cluster.brokers[full]._on_storage_failure(ORDERS, "no space")

        cluster.run(fail(), node=f"n{full}")
        cluster.until(lambda: bool(facts_of(cluster, "broker_stopped", full)), 8.0, "the broker to stop")
        cluster.until(lambda: cluster.controller() not in {full, -1}, 5.0, "another controller")


def test_a_failed_fsync_stops_the_broker_and_loses_nothing() -> None:
    """DESIGN (where the world is injected): a failed sync is fatal for the log; the page cache is not believed again."""
    with simulated_orders(log_flush_interval_messages="1") as cluster:
        client = Client(cluster)
        client.send_all([b"a", b"b"])
        leader = cluster.leader_of(ORDERS)
        acknowledged = [b"a", b"b"]
        cluster.sim.disk(f"n{leader}").fail_next_sync("orders-0")
        task = sending(client, 50, acknowledged)
        cluster.until(task.done, 120.0, "all sends to be answered")
        assert len(acknowledged) == 52
        cluster.until(lambda: leader not in cluster.living(), 30.0, "the broker to stop")
        check_failed_leader(cluster, leader, "sync failed", acknowledged)
        cluster.power_cut(leader)
        cluster.restart(leader)
        cluster.settle(60.0)
        assert values(cluster, leader) == acknowledged


def test_a_stop_waits_for_the_sync_under_way_and_is_not_clean_if_that_fails() -> None:
    """The sync of the close would succeed, for a disk reports a lost write once. The start after a clean stop would not
    look, and the acknowledged record was gone.
    """
    with simulated(brokers=1, min_insync_replicas="1") as cluster:
        cluster.create_topic("orders")
        Client(cluster).send(b"one")
        disk = cluster.sim.disk("n1")
        disk.fail_next_sync("orders-0")
        usual, disk.sync_mean_s = disk.sync_mean_s, 5.0

        async def begin() -> None:
            cluster.brokers[1].replicas.flushers[ORDERS].start()

        cluster.run(begin(), node="n1")
        cluster.run_for(0.001)
        disk.sync_mean_s = usual
        cluster.stop(1)
        assert [facts["clean"] for facts in facts_of(cluster, "broker_stopped", 1)] == [False]
        cluster.restart(1)
        cluster.settle()
        assert [facts["clean"] for facts in facts_of(cluster, "data_directory_opened", 1)][-1] is False


def test_a_followers_failed_fsync_costs_nobody_anything() -> None:
    """The follower's broker stops and leaves the ISR; the leader goes on with the other one."""
    with simulated_orders(log_flush_interval_messages="1") as cluster:
        client = Client(cluster)
        follower = a_follower(cluster)
        cluster.sim.disk(f"n{follower}").fail_next_sync("orders-0")
        acknowledged: list[bytes] = []
        task = sending(client, 30, acknowledged)
        cluster.until(task.done, 120.0, "all sends to be answered")
        assert len(acknowledged) == 30
        cluster.until(lambda: follower not in cluster.living(), 30.0, "the broker to stop")
        assert "sync failed" in (cluster.brokers[follower].failure or "")
        assert values(cluster, cluster.leader_of(ORDERS)) == acknowledged


def test_a_write_that_failed_half_way_has_an_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes may have reached the file, and recovery may find them: *not written* would be a lie that a checker
    calls an aborted read.
    """
    write = FencedFile.append

    def torn(self: FencedFile, data: Buffers) -> None:
        write(self, data)
        if self._path == "orders-0/00000000000000000000.log":
            raise DiskFailed("the controller of the disk went away")

    with simulated_orders() as cluster:
        client = Client(cluster)
        client.send(b"before")
        leader = cluster.leader_of(ORDERS)
        monkeypatch.setattr(FencedFile, "append", torn)
        answer = client.tell(leader, b"torn", acks=1)
        assert (answer.error_code, answer.outcome) == (KafkaStorageError.code, "unknown")
        monkeypatch.undo()
        cluster.crash(leader)
        cluster.restart(leader)
        cluster.settle(60.0)


def test_retention_deletes_old_segments_on_every_replica() -> None:
    """KAFKA-FACTS 1.5: the leader lets segments go by age; followers take its log start and free their disks too."""
    with simulated(
        log_segment_bytes="1000",
        log_retention_ms="5000",
        log_retention_check_interval_ms="1000",
        log_segment_delete_delay_ms="1000",
    ) as cluster:
        cluster.create_topic("orders")
        cluster.settle()
        client = Client(cluster)
        client.send_all([b"%03d" % number + bytes(200) for number in range(30)])
        cluster.run_for(2.0)
        before = [len(on_disk(cluster, node, "orders-0", ".log")) for node in cluster.nodes]
        assert min(before) > 4
        cluster.run_for(40.0)
        client.send(b"new")
        cluster.settle()
        cluster.run_for(5.0)
        for node in cluster.nodes:
            replica = cluster.replica(node, ORDERS)
            assert replica is not None
            assert (replica.log.start_offset, replica.log.end_offset) == (30, 31)
            assert on_disk(cluster, node, "orders-0", ".log") == ["00000000000000000030.log"]
            assert not on_disk(cluster, node, "orders-0", ".deleted")
            assert cluster.brokers[node].failure is None


@pytest.mark.parametrize("waits_for", ["producers", "start"])
def test_a_topic_may_be_deleted_while_its_retention_waits_for_the_disk(waits_for: str) -> None:
    """A log that is set aside meanwhile is no failing disk: the broker lives on, and so does a topic of that name."""
    with simulated(
        log_segment_bytes="1000", log_retention_ms="5000", log_retention_check_interval_ms="1000"
    ) as cluster:
        cluster.create_topic("orders")
        cluster.create_topic("payments")
        cluster.settle()
        client = Client(cluster)
        client.send_all([bytes(300) for _ in range(8)])
        for node in cluster.nodes:
            # A sync takes long enough for the deletion to overtake it.
            cluster.sim.disk(f"n{node}").sync_mean_s = 2.0
        leader = cluster.leader_of(ORDERS)
        log = cluster.replica(leader, ORDERS).log  # type: ignore[union-attr]
        count = log.segment_count
        has_begun = {"producers": lambda: log.segment_count > count, "start": lambda: log.start_offset > 0}
        cluster.until(has_begun[waits_for], 300.0, "retention to begin")
        client.run(client.admin.delete_topics(["orders"]))
        for node in cluster.nodes:
            cluster.sim.disk(f"n{node}").sync_mean_s = 0.002
        cluster.create_topic("orders")
        cluster.run_for(10.0)
        cluster.settle(60.0)
        assert cluster.living() == cluster.nodes
        client.send(b"new")
        assert values(cluster, cluster.leader_of(ORDERS)) == [b"new"]


def test_deleted_records_are_confirmed_as_soon_as_all_live_replicas_have_deleted_them() -> None:
    """DeleteRecords waits for a fetch of each follower, and no longer for one that is fenced meanwhile."""
    session_s = BrokerConfig().broker_session_timeout_ms / 1000
    with simulated_orders() as cluster:
        client = Client(cluster)
        client.send_all([b"%d" % number for number in range(10)])
        began = cluster.sim.loop.time()
        client.run(client.admin.delete_records({ORDERS: 4}))
        assert cluster.sim.loop.time() - began < 1.5, "the followers' long polls"
        cluster.crash(a_follower(cluster))
        client.run(client.admin.delete_records({ORDERS: 6}))
        assert session_s / 2 < cluster.sim.loop.time() - began < session_s + 2.0


def test_deleted_records_are_gone_for_good_on_every_replica() -> None:
    """DeleteRecords answers with the low watermark over all live replicas; readers below get OFFSET_OUT_OF_RANGE."""
    with simulated_orders(log_flush_start_offset_checkpoint_interval_ms="1000") as cluster:
        client = Client(cluster)
        client.send_all([b"%d" % number for number in range(10)])
        assert client.run(client.admin.delete_records({ORDERS: 4})) == {ORDERS: 4}
        assert [values(cluster, node) for node in cluster.nodes] == [[b"4", b"5", b"6", b"7", b"8", b"9"]] * 3
        consumer = Consumer(ConsumerConfig(bootstrap_servers=cluster.bootstrap, auto_offset_reset="none"), client.world)
        client.run(consumer.start())
        assert client.run(consumer.beginning_offsets([ORDERS])) == {ORDERS: 4}
        consumer.assign([ORDERS])
        consumer.seek(ORDERS, 3)
        with pytest.raises(OffsetOutOfRange):
            client.run(consumer.getone())
        consumer.seek(ORDERS, 4)
        assert client.run(consumer.getone()).value == b"4"
        with pytest.raises(OffsetOutOfRange):
            client.run(client.admin.delete_records({ORDERS: 11}))
        cluster.run_for(2.0)
        leader = cluster.leader_of(ORDERS)
        cluster.crash(leader)
        cluster.restart(leader)
        cluster.settle(60.0)
        assert [cluster.replica(node, ORDERS).log.start_offset for node in cluster.nodes] == [4, 4, 4]  # type: ignore[union-attr]


def test_sealed_segments_are_synced_so_that_recovery_begins_late() -> None:
    """KAFKA-FACTS 1.3: a roll brings the old segment to disk and the recovery point on; after kill -9 a broker walks
    the last segments, not its whole log.
    """
    with simulated_orders(log_segment_bytes="1000", log_flush_offset_checkpoint_interval_ms="1000") as cluster:
        client = Client(cluster)
        client.send_all([bytes(200) for _ in range(40)])
        cluster.run_for(5.0)
        for node in cluster.nodes:
            replica = cluster.replica(node, ORDERS)
            assert replica is not None
            assert replica.log.recovery_point >= 30
            cluster.crash(node)
            cluster.restart(node)
            cluster.settle(60.0)
            opened = [facts for facts in facts_of(cluster, "log_opened", node) if facts["partition"] == "orders-0"]
            assert int(str(opened[-1]["checked"])) <= 10


def test_a_topic_made_anew_while_a_broker_was_away() -> None:
    """Its records are another topic's: the broker that returns sets the old log aside, deletes nothing of it, and
    copies the new one (KAFKA-FACTS 1.1, `-stray`).
    """
    with simulated() as cluster:
        cluster.create_topic("orders")
        cluster.create_topic("gone")
        cluster.settle()
        client = Client(cluster)
        client.send_all([b"old 0", b"old 1", b"old 2"])
        away = a_follower(cluster)
        cluster.crash(away)
        cluster.until(lambda: away not in (cluster.partition(ORDERS) or ()).isr, 20.0, "the ISR to shrink")  # type: ignore[union-attr]
        client.run(client.admin.delete_topics(["orders", "gone"]))
        cluster.create_topic("orders", replication_factor=2)
        client.run(client.admin.delete_topics(["orders"]))
        cluster.restart(away)
        cluster.until(lambda: cluster.brokers[away].is_ready, 30.0, "the broker to be ready")
        cluster.create_topic("orders")
        cluster.settle(60.0)
        client.send(b"new 0")
        cluster.settle()
        assert [values(cluster, node) for node in cluster.nodes] == [[b"new 0"]] * 3
        stray = [name for name in folders(cluster, away) if name.endswith("-stray")]
        assert [name.partition(".")[0] for name in stray] == ["gone-0", "orders-0"]


def test_a_broker_that_missed_deletion_and_creation_takes_the_new_topic() -> None:
    """The same, when the new topic already has records and a replica on the broker that returns."""
    with simulated_orders() as cluster:
        client = Client(cluster)
        client.send_all([b"old 0", b"old 1", b"old 2"])
        away = a_follower(cluster)
        cluster.crash(away)
        client.run(client.admin.delete_topics(["orders"]))
        # The name is free once the dead broker is fenced, which then gets a replica by a reassignment.
        cluster.create_topic("orders", replication_factor=2)
        client.send(b"new 0")
        cluster.restart(away)
        assert client.run(client.admin.alter_partition_reassignments({ORDERS: cluster.nodes})) == {ORDERS: None}
        cluster.settle(60.0)
        assert [values(cluster, node) for node in cluster.nodes] == [[b"new 0"]] * 3


def test_the_last_leader_does_not_lead_with_an_empty_disk_and_does_with_the_former_one() -> None:
    """KIP-966: what only the last leader has is committed. It comes back with an empty disk: nobody leads, nobody throws
    away what the others have. With the former one it leads again, and nothing is lost.
    """
    with simulated(brokers=4, voters=3, min_insync_replicas="1") as cluster:
        cluster.create_topic("orders", partitions=4, replication_factor=2)
        cluster.settle()
        name = TopicPartition("orders", 3)
        assert cluster.leader_of(name) == 4
        client = Client(cluster)
        client.send(b"on both", name)
        follower = a_follower(cluster, name)
        cluster.crash(follower)
        client.send(b"on one", name)
        cluster.crash(4)
        former = cluster.sim._disks.pop("n4")
        cluster.restart(4)
        cluster.restart(follower)
        both_are_back(cluster, 4, follower)
        state = cluster.partition(name)
        assert state is not None
        assert (state.leader, state.isr, state.elr, state.last_known_elr) == (-1, (), (), (4,))
        assert values(cluster, follower, name) == [b"on both"]
        cluster.crash(4)
        cluster.sim._disks["n4"] = former
        cluster.restart(4)
        cluster.settle(60.0)
        assert cluster.leader_of(name) == 4
        assert values(cluster, follower, name) == values(cluster, 4, name) == [b"on both", b"on one"]


def test_the_last_leader_does_not_lead_without_its_folder() -> None:
    """KIP-966: the last leader's folder was removed while it was down. It must not lead with the empty log that it
    creates, nor after a restart that finds that log; an unclean election takes the replica that still has records.
    """
    with simulated(min_insync_replicas="1") as cluster:
        cluster.create_topic("orders", partitions=1, replication_factor=2)
        cluster.settle()
        leader = cluster.leader_of(ORDERS)
        follower = a_follower(cluster, ORDERS)
        client = Client(cluster)
        client.send(b"on both")
        cluster.crash(follower)
        cluster.until(lambda: cluster.partition(ORDERS).isr == (leader,), 60.0, "the ISR to shrink")  # type: ignore[union-attr]
        client.send(b"on one")
        cluster.crash(leader)
        cluster.sim.disk(node_name(leader)).remove_for_good(str(ORDERS))
        cluster.restart(leader)
        cluster.restart(follower)
        for _ in range(2):
            both_are_back(cluster, leader, follower)
            state = cluster.partition(ORDERS)
            assert state is not None
            assert (state.leader, state.isr, state.elr, state.last_known_elr) == (-1, (), (), (leader,))
            cluster.crash(leader)
            cluster.restart(leader)
        both_are_back(cluster, leader, follower)
        assert values(cluster, follower) == [b"on both"]
        assert client.run(client.admin.elect_leaders("unclean", [ORDERS])) == {ORDERS: None}
        cluster.settle(60.0)
        assert cluster.leader_of(ORDERS) == follower


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_last_leader_does_not_lead_without_its_topic_id(is_killed: bool) -> None:
    """One small file is garbage: the log is set aside, and the empty log that takes its place counts as missing. It
    counted as one that had never been synced, led, and had the other replica drop what it held.
    """
    with simulated(min_insync_replicas="1", log_flush_interval_messages="1") as cluster:
        cluster.create_topic("orders", partitions=1, replication_factor=2)
        cluster.settle()
        leader = cluster.leader_of(ORDERS)
        follower = a_follower(cluster, ORDERS)
        client = Client(cluster)
        client.send(b"on both")
        cluster.stop(follower)
        client.send(b"on one")
        if is_killed:
            cluster.run_for(70.0)  # a recovery point is checkpointed
            cluster.crash(leader)
        else:
            cluster.stop(leader)
        disk = cluster.sim.disk(node_name(leader))
        disk.replace_file(f"{ORDERS}/{PARTITION_METADATA}", b"version: 0\ntopic_id: ?")
        cluster.restart(leader)
        cluster.restart(follower)
        both_are_back(cluster, leader, follower)
        cluster.run_for(5.0)
        assert cluster.leader_of(ORDERS) == -1
        assert values(cluster, follower) == [b"on both"]
        assert any(folder.endswith(STRAY_FOLDER) for folder in folders(cluster, leader))


def test_the_last_leader_leads_again_after_a_power_cut_took_what_was_never_synced() -> None:
    """Kafka's default flush policy: all lose power before a file of the log was synced, so that folders are there and
    their partition.metadata is not. Somebody must lead, or the partition waits for an operator for ever.
    """
    with simulated() as cluster:
        cluster.create_topic("orders", partitions=1, replication_factor=3)
        cluster.settle()
        Client(cluster).send(b"in three page caches")
        for node in cluster.nodes:
            cluster.crash(node)
        for node in cluster.nodes:
            disk = cluster.sim.disk(node_name(node))
            for path in disk.names(str(ORDERS)):
                disk.remove_for_good(f"{ORDERS}/{path}")
            assert disk.exists(str(ORDERS))
        for node in cluster.nodes:
            cluster.restart(node)
        cluster.settle(60.0)
        Client(cluster).send(b"after it")
        cluster.settle()
        assert [values(cluster, node) for node in cluster.nodes] == [[b"after it"]] * 3


def test_a_start_on_a_full_disk_names_the_data_directory() -> None:
    """Its settings may name several disks; the name of the file alone says nothing of where to free space."""
    with SimWorld(1) as sim:
        cluster = SimCluster(sim, brokers=1)
        sim.disk("n1").capacity_bytes = 0
        broker = Broker(cluster.config_of(1), sim.of("n1"))
        with pytest.raises(
            DiskFull, match=r"^data directory \./minikafka-data: .*; free space there, then start again$"
        ):
            sim.run(broker.start())


def test_an_operator_gives_up_what_only_a_lost_disk_had() -> None:
    """``elect unclean``: the first replica that lives leads, with what it has."""
    with simulated(brokers=4, voters=3, min_insync_replicas="1") as cluster:
        cluster.create_topic("orders", partitions=4, replication_factor=2)
        cluster.settle()
        name = TopicPartition("orders", 2)
        assert cluster.leader_of(name) == 3
        client = Client(cluster)
        client.send(b"on both", name)
        cluster.crash(3)
        cluster.until(lambda: cluster.leader_of(name) == 4, 30.0, "the other replica to lead")
        client.send(b"on one", name)
        cluster.crash(4)
        cluster.wipe(4)
        cluster.restart(4)
        cluster.restart(3)
        both_are_back(cluster, 3, 4)
        assert cluster.leader_of(name) == -1
        assert client.run(client.admin.elect_leaders("unclean", [name])) == {name: None}
        cluster.settle(60.0)
        assert cluster.leader_of(name) == 3
        assert values(cluster, 3, name) == values(cluster, 4, name) == [b"on both"]


def test_a_follower_that_cannot_follow_the_log_start_leaves_in_good_order() -> None:
    """Its file of leader epochs begins at the log start, and cannot be written: its whole fetch loop ended with an exception,
    and the broker halted without moving its leaders.
    """
    with simulated_orders() as cluster:
        client = Client(cluster)
        client.send_all([b"a", b"b", b"c"])
        cluster.settle()
        follower = a_follower(cluster)
        disk = cluster.sim.disk(f"n{follower}")
        disk.capacity_bytes = disk.used_bytes()
        client.run(client.admin.delete_records({ORDERS: 2}))
        cluster.until(lambda: follower not in cluster.living(), 60.0, "the broker to stop")
        failed = facts_of(cluster, "broker_failed", follower)[0]
        assert str(failed["why"]).startswith("the disk failed: orders-0: epoch checkpoint failed")
        assert facts_of(cluster, "replica_failed", follower)
