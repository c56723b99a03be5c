"""A cluster that is changed while it is used: replicas moved, partitions added, settings altered; with crashes."""

from __future__ import annotations

import pytest

from minikafka.client.structs import ConfigResource, NewTopic
from minikafka.errors import InvalidPartitions, MessageTooLarge, NotEnoughReplicas
from minikafka.quorum import configs
from minikafka.replication.high_watermark import effective_min_isr
from minikafka.sim.cluster import SimCluster
from minikafka.sim.verdicts import Deliver, Drop, Message
from minikafka.types import NodeId, TopicPartition
from tests.sim.cluster_kit import ORDERS, Client, facts_of, folders, simulated, values


def start_moving(client: Client, target: tuple[NodeId, ...] | None, name: TopicPartition = ORDERS) -> None:
    """Begin (or cancel) a reassignment; it is accepted."""
    refused = client.run(client.admin.alter_partition_reassignments({name: target}))
    assert refused == {name: None}


def until_moved(cluster: SimCluster, target: tuple[NodeId, ...], name: TopicPartition = ORDERS) -> None:
    def moved() -> bool:
        state = cluster.partition(name)
        return state is not None and state.replicas == target and not state.assignment.under_way

    cluster.until(moved, 60.0, f"{name} to be on {target}")


def watch_min_isr(cluster: SimCluster, minimum: int, name: TopicPartition = ORDERS) -> list[str]:
    """Every committed state of the partition in which fewer replicas are in sync than are needed."""
    breaches: list[str] = []
    broker = cluster.brokers[cluster.controller()]

    def look(_old: object, _new: object) -> None:
        state = broker.image.partition(name)
        if state is not None and len(state.isr) < effective_min_isr(minimum, state.replicas, state.adding):
            breaches.append(repr(state))

    broker.metadata.subscribe(look)
    return breaches


def test_a_partition_moves_to_a_fourth_broker_while_records_are_written():
    """KIP-455: a broker that is no voter joins, receives the partition, and the one that it replaces lets it go; no
    step takes the partition below min.insync.replicas, and everything that was acknowledged is on all three.
    """
    with simulated(brokers=4, voters=3) as cluster:
        client = Client(cluster)
        client.run(client.admin.create_topics([_placed(1, 2, 3)]))
        client.send_all([b"a", b"b"])
        breaches = watch_min_isr(cluster, 2)
        start_moving(client, (4, 2, 3))
        sent = 0
        while cluster.partition(ORDERS).assignment.under_way:
            client.send(b"%d" % sent)
            sent += 1
        until_moved(cluster, (4, 2, 3))
        client.send(b"z")
        cluster.settle()
        expected = [b"a", b"b", *(b"%d" % number for number in range(sent)), b"z"]
        assert [values(cluster, node) for node in (4, 2, 3)] == [expected] * 3
        assert cluster.replica(1, ORDERS) is None
        assert cluster.leader_of(ORDERS) == 4
        assert breaches == []
        kinds = [event.kind for event in cluster.sim.journal if event.kind.startswith("reassignment")]
        assert kinds == ["reassignment_begun", "reassignment_ended"]
        cluster.run_for(cluster.config_of(1).log_segment_delete_delay_ms / 1000 * 2)
        assert not [folder for folder in folders(cluster, 1) if folder.startswith("orders")]


@pytest.mark.parametrize("victim", ["newcomer", "leader", "controller", "follower"])
@pytest.mark.parametrize("seed", range(2))
def test_a_crash_on_the_way_loses_nothing(victim: str, seed: int):
    """S16: whoever dies in the middle, the reassignment completes when it is back, with every acknowledged record."""
    with simulated(f"{victim}-{seed}", brokers=5, voters=3) as cluster:
        client = Client(cluster)
        client.run(client.admin.create_topics([_placed(1, 2, 3)]))
        acknowledged = [b"%d" % number for number in range(20)]
        client.send_all(acknowledged)
        start_moving(client, (5, 4, 3))
        node = {
            "newcomer": 5,
            "leader": cluster.leader_of(ORDERS),
            "controller": cluster.controller(),
            "follower": 3 if cluster.leader_of(ORDERS) != 3 else 2,
        }[victim]
        cluster.crash(node)
        for number in range(5):
            acknowledged.append(b"during %d" % number)
            client.send(acknowledged[-1])
        cluster.restart(node)
        until_moved(cluster, (5, 4, 3))
        client.send(b"after")
        cluster.settle(60.0)
        assert [values(cluster, node) for node in (5, 4, 3)] == [[*acknowledged, b"after"]] * 3
        assert [cluster.replica(node, ORDERS) for node in (1, 2)] == [None, None]


def test_a_cancelled_reassignment_leaves_no_trace():
    """The newcomer lets go what it had; those that were there before go on."""
    with simulated(brokers=4, voters=3) as cluster:
        client = Client(cluster)
        client.run(client.admin.create_topics([_placed(1, 2, 3)]))
        client.send(b"a")
        cluster.crash(4)
        start_moving(client, (4, 2, 3))
        client.send(b"b")
        assert client.run(client.admin.list_partition_reassignments())[ORDERS].adding_replicas == (4,)
        start_moving(client, None)
        client.send(b"c")
        cluster.restart(4)
        cluster.settle(60.0)
        assert client.run(client.admin.list_partition_reassignments()) == {}
        assert cluster.replica(4, ORDERS) is None
        assert [values(cluster, node) for node in (1, 2, 3)] == [[b"a", b"b", b"c"]] * 3


def test_the_replication_factor_rises_while_the_partition_stays_writable():
    """With min.insync.replicas=2 a partition of one replica needs one; it needs two when the others have caught up."""
    with simulated(brokers=3) as cluster:
        client = Client(cluster)
        client.run(client.admin.create_topics([_placed(1)]))
        breaches = watch_min_isr(cluster, 2)
        client.send(b"a")
        cluster.crash(2)
        start_moving(client, (1, 2, 3))
        client.send(b"b")
        cluster.restart(2)
        until_moved(cluster, (1, 2, 3))
        client.send(b"c")
        cluster.settle()
        assert [values(cluster, node) for node in (1, 2, 3)] == [[b"a", b"b", b"c"]] * 3
        assert breaches == []


def test_added_partitions_can_be_written_at_once():
    """S18, S31: the answer comes when every new partition has a leader that answers; old records stay where they are."""
    with simulated() as cluster:
        cluster.create_topic("orders", partitions=1)
        client = Client(cluster)
        client.send(b"a")
        client.run(client.admin.create_partitions({"orders": 4}))
        for number in range(4):
            client.send(b"%d" % number, TopicPartition("orders", number))
        cluster.settle()
        assert values(cluster, 2) == [b"a", b"0"]
        assert [cluster.leader_of(TopicPartition("orders", number)) for number in range(4)] == [1, 2, 3, 1]


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_change_whose_answer_is_lost_is_not_made_twice(lost: str):
    """The controller has it, the administrator does not know: he asks again, and is told what is."""
    with simulated() as cluster:
        cluster.create_topic("orders", partitions=1)
        client = Client(cluster)
        dropped: list[str] = []

        def lose_the_first(message: Message) -> Drop | None:
            if message.api == "CreatePartitions" and message.kind == lost and not dropped:
                dropped.append(message.kind)
                return Drop()
            return None

        cluster.sim.network.rule(lose_the_first)
        client.run(client.admin.create_partitions({"orders": 3}))
        assert dropped == [lost]
        assert len([name for name in cluster.partition_names() if name.topic == "orders"]) == 3
        with pytest.raises(InvalidPartitions):
            client.run(client.admin.create_partitions({"orders": 3}))


def test_settings_hold_after_a_change_of_controller_and_through_a_snapshot():
    """A setting is state like any other: every replica uses it, whoever leads the quorum, and after a restart that
    begins with a snapshot.
    """
    with simulated(metadata_log_max_record_bytes_between_snapshots="2000") as cluster:
        cluster.create_topic("orders", partitions=1)
        client = Client(cluster)
        change = ConfigResource("topic", "orders", {"max.message.bytes": "1000"})
        client.run(client.admin.incremental_alter_configs([change]))
        client.run(
            client.admin.incremental_alter_configs([ConfigResource("broker", "", {"log.segment.bytes": "5000"})])
        )
        for number in range(60):
            told = {"retention.ms": str(1_000_000 + number)}
            client.run(client.admin.incremental_alter_configs([ConfigResource("topic", "orders", told)], wait=False))
        cluster.crash(cluster.controller())
        cluster.until(lambda: cluster.controller() != -1, 30.0, "another controller")
        for node in [node for node in cluster.nodes if node not in cluster.living()]:
            cluster.restart(node)
        cluster.settle(60.0)
        assert facts_of(cluster, "snapshot_loaded")
        for node in cluster.nodes:
            config = cluster.replica(node, ORDERS).config
            assert (config.max_message_bytes, config.segment_bytes, config.retention_ms) == (1000, 5000, 1_000_059)
        with pytest.raises(MessageTooLarge):
            client.send(b"x" * 2000)


def test_a_minimum_that_cannot_be_met_stops_writes_until_it_is_lowered():
    """min.insync.replicas takes effect on a running partition, both ways, without anybody fetching."""
    with simulated() as cluster:
        cluster.create_topic("orders", partitions=1)
        client = Client(cluster)
        client.send(b"a")
        cluster.crash(
            next(node for node in cluster.nodes if node not in {cluster.leader_of(ORDERS), cluster.controller()})
        )
        cluster.until(lambda: len(cluster.partition(ORDERS).isr) == 2, 30.0, "an ISR of two")
        alter = client.admin.incremental_alter_configs
        client.run(alter([ConfigResource("topic", "orders", {"min.insync.replicas": "3"})]))
        answer = client.tell(cluster.leader_of(ORDERS), b"refused", acks=-1)
        assert answer.error_code == NotEnoughReplicas.code
        assert client.tell(cluster.leader_of(ORDERS), b"waits", acks=1).error_code == 0
        leader = cluster.replica(cluster.leader_of(ORDERS), ORDERS)
        cluster.run_for(2.0)
        assert leader.high_watermark < leader.log.end_offset
        client.run(alter([ConfigResource("topic", "orders", {"min.insync.replicas": "2"})]))
        assert leader.high_watermark == leader.log.end_offset
        client.send(b"b")


@pytest.mark.parametrize("planted", [False, True])
def test_a_leader_that_does_not_know_the_new_minimum_commits_nothing_alone(
    planted: bool, monkeypatch: pytest.MonkeyPatch
):
    """The story at the head of quorum/configs.py (KIP-966): the minimum rises to 2 while its news do not reach the
    leader; the follower falls behind, and the leader, which still believes in 1, would commit alone what an eligible
    leader replica does not have. Planted: the change gives partitions no new epoch, and an acknowledged record is lost.
    """
    if planted:
        monkeypatch.setattr(configs, "_consequences", lambda *_: iter(()))
    with simulated(brokers=5, voters=3, min_insync_replicas="1", replica_lag_time_max_ms="400") as cluster:
        client = Client(cluster)
        client.run(client.admin.create_topics([_placed(4, 5)]))
        client.send(b"a")
        leader = cluster.replica(4, ORDERS)
        # Nothing but metadata is fetched by broker 4. What is later than half a second would be fetched again.
        late = cluster.sim.network.rule(
            lambda message: Deliver(0.45) if (message.target, message.api, message.kind) == NEWS_TO_4 else None
        )
        behind = cluster.sim.network.rule(
            lambda message: Drop() if {message.source, message.target} == {"n4", "n5"} else None
        )
        assert client.tell(4, b"b", acks=1).error_code == 0
        cluster.run_for(0.35)
        change = ConfigResource("topic", "orders", {"min.insync.replicas": "2"})
        client.run(client.admin.incremental_alter_configs([change], wait=False))
        cluster.run_for(4.0)
        is_exposed = leader.high_watermark == 2
        assert is_exposed == planted
        cluster.crash(4)
        late()
        behind()
        cluster.until(lambda: cluster.leader_of(ORDERS) == 5, 60.0, "the follower to lead")
        assert values(cluster, 5) == [b"a"]


NEWS_TO_4 = ("n4", "Fetch", "answer")


def _placed(*replicas: NodeId) -> NewTopic:
    """The topic ``orders`` with one partition on these brokers."""
    return NewTopic("orders", replica_assignments={0: replicas})
