"""What the metadata does in a whole cluster: topics made on demand, snapshots in place of a long log, odd requests."""

from __future__ import annotations

from typing import Any

import pytest

from minikafka.client.consumer import Consumer
from minikafka.client.settings import ConsumerConfig
from minikafka.client.structs import NewTopic
from minikafka.errors import BrokerNotAvailable, InvalidRequest, InvalidTopic, OffsetOutOfRange, UnknownTopicOrPartition
from minikafka.rpc import call
from minikafka.sim.cluster import CLUSTER_ID
from minikafka.sim.verdicts import Drop
from minikafka.types import METADATA_PARTITION, TopicPartition
from minikafka.wire import messages as m
from minikafka.wire.batch import PREFIX
from minikafka.wire.records import Record, build_batch
from tests.sim.cluster_kit import ORDERS, Client, facts_of, on_disk, simulated, simulated_orders, values


def test_a_topic_is_created_when_a_producer_first_asks_for_it() -> None:
    """auto.create.topics.enable (KAFKA-FACTS 7): with num.partitions and default.replication.factor of the broker."""
    with simulated(num_partitions="2", default_replication_factor="3") as cluster:
        client = Client(cluster)
        client.send(b"first", TopicPartition("on-demand", 1))
        cluster.settle()
        assert cluster.partition_names() == (TopicPartition("on-demand", 0), TopicPartition("on-demand", 1))
        state = cluster.partition(TopicPartition("on-demand", 1))
        assert state is not None
        assert len(state.replicas) == 3
        assert [values(cluster, node, TopicPartition("on-demand", 1)) for node in cluster.nodes] == [[b"first"]] * 3
        with pytest.raises(InvalidTopic):
            client.send(b"v", TopicPartition("no such/name", 0))


def test_a_broker_that_has_just_started_sends_clients_elsewhere() -> None:
    """Issue 13: without metadata it told clients that topics do not exist. Until it has read all that came before its
    registration it answers BROKER_NOT_AVAILABLE, which clients treat as a broker that is down.
    """
    with simulated() as cluster:
        client = Client(cluster)
        client.send(b"first", TopicPartition("on-demand", 0))
        cluster.settle()
        node = next(each for each in cluster.nodes if each != cluster.controller())
        cluster.crash(node)
        fetching = ("Fetch", "request", f"n{node}")
        heal = cluster.sim.network.rule(
            lambda message: Drop() if (message.api, message.kind, message.source) == fetching else None
        )
        cluster.restart(node)
        cluster.run_for(1.0)
        place = {"topic": "on-demand", "partition": 0}
        requests = (
            m.MetadataRequest(topics=("on-demand",)),
            m.DescribeTopicsRequest(topics=("on-demand",)),
            m.FetchRequest(partitions=(m.FetchPartition(**place, fetch_offset=0),)),
            m.ListOffsetsRequest(partitions=(m.ListOffsetsPartition(**place, timestamp=m.LATEST),)),
            m.ProduceRequest(acks=-1, partitions=()),
        )

        def ask(request: Any) -> Any:
            address, deadline = cluster.address_of(node), client.world.clock.now() + 5.0
            return client.run(call(client.world.network, address, request, deadline))

        for request in requests:
            assert ask(request).error_code == BrokerNotAvailable.code, request
        assert client.send(b"second", TopicPartition("on-demand", 0)).offset == 1
        heal()
        cluster.settle()
        for request in requests:
            assert ask(request).error_code == 0, request


def test_no_topic_is_created_where_that_is_switched_off() -> None:
    """The producer is told that the topic is not known, once its max_block_ms is over, and nothing was written."""
    with simulated(auto_create_topics_enable="false") as cluster:
        client = Client(cluster, max_block_ms=3000)
        with pytest.raises(UnknownTopicOrPartition):
            client.send(b"v", TopicPartition("missing", 0))
        assert cluster.partition_names() == ()


def test_a_producer_gets_the_reason_why_its_topic_cannot_be_created() -> None:
    """Before, the name stayed unknown, and the producer asked again until its time was over."""
    with simulated() as cluster:
        client = Client(cluster)
        client.run(client.admin.create_topics([NewTopic("eu.orders", 1, 3)]))
        with pytest.raises(InvalidTopic, match=r"'eu_orders' collides with 'eu\.orders'"):
            client.send(b"v", TopicPartition("eu_orders", 0))


def test_looking_creates_no_topic() -> None:
    """allow.auto.create.topics is the client's say: listing and describing must not leave topics behind."""
    with simulated() as cluster:
        client = Client(cluster)
        with pytest.raises(UnknownTopicOrPartition):
            client.run(client.admin.describe_topics(["nothing"]))
        assert cluster.partition_names() == ()


def test_news_of_the_metadata_cost_no_heartbeats() -> None:
    """A heartbeat keeps a session alive; brokers that are in send one an interval, however often topics change."""
    with simulated(broker_heartbeat_interval_ms="2000") as cluster:
        client = Client(cluster)

        def beats() -> int:
            told = [broker.dispatcher.meters.by_name() for broker in cluster.brokers.values()]
            return sum(each["BrokerHeartbeat"].total.count for each in told if "BrokerHeartbeat" in each)

        before, began = beats(), cluster.sim.loop.now
        for number in range(10):
            cluster.create_topic(f"t{number}", partitions=3)
        client.send(b"v", TopicPartition("t9", 0))
        cluster.run_for(2.0)
        intervals = (cluster.sim.loop.now - began) / 2.0
        assert 3 <= beats() - before <= 3 * (intervals + 1)


def test_a_broker_joins_from_a_snapshot() -> None:
    """KAFKA-FACTS 4.3: when the log no longer reaches back to its beginning, an empty broker fetches a snapshot, and
    then knows every topic; it leads and follows as the others do.
    """
    with simulated(
        brokers=4, voters=3, metadata_log_max_record_bytes_between_snapshots="2000", min_insync_replicas="1"
    ) as cluster:
        cluster.crash(4)
        cluster.until(lambda: len(cluster.image().eligible_brokers()) == 3, 20.0, "broker 4 to be fenced")  # type: ignore[union-attr]
        cluster.wipe(4)
        for number in range(12):
            cluster.create_topic(f"t{number}", partitions=2)
        cluster.until(
            lambda: all(cluster.brokers[node].quorum.log.start_offset > 0 for node in (1, 2, 3)),
            60.0,
            "the metadata log to be shortened",
        )
        cluster.restart(4)
        cluster.settle(60.0)
        assert facts_of(cluster, "snapshot_fetched", 4)
        assert sorted(cluster.brokers[4].image.topics) == sorted(f"t{number}" for number in range(12))
        assert cluster.brokers[4].image.topics == cluster.brokers[1].image.topics
        assert on_disk(cluster, 4, str(METADATA_PARTITION), ".checkpoint")
        cluster.create_topic("orders", partitions=4, replication_factor=4)
        cluster.settle()
        client = Client(cluster)
        name = next(
            name for name in cluster.partition_names() if name.topic == "orders" and cluster.leader_of(name) == 4
        )
        client.send(b"led by the new one", name)
        cluster.settle()
        assert [values(cluster, node, name) for node in cluster.nodes] == [[b"led by the new one"]] * 4


def test_a_voter_that_was_away_for_long_catches_up_by_snapshot() -> None:
    """The same for a member of the quorum, which keeps its votes; it may lead afterwards."""
    with simulated(metadata_log_max_record_bytes_between_snapshots="2000") as cluster:
        away = next(node for node in cluster.nodes if node != cluster.controller())
        cluster.crash(away)
        for number in range(12):
            cluster.create_topic(f"t{number}", replication_factor=2)
        end = cluster.brokers[away].quorum.log.end_offset
        living = [node for node in cluster.nodes if node != away]
        cluster.until(
            lambda: all(cluster.brokers[node].quorum.log.start_offset > end for node in living),
            60.0,
            "the metadata log to be shortened",
        )
        cluster.restart(away)
        cluster.settle(60.0)
        assert facts_of(cluster, "snapshot_fetched", away)
        controller = cluster.controller()
        cluster.crash(controller)
        cluster.until(lambda: cluster.controller() not in (controller, -1), 20.0, "another controller")
        cluster.restart(controller)
        cluster.settle(60.0)
        assert sorted(cluster.brokers[away].image.topics) == sorted(f"t{number}" for number in range(12))


BATCH = build_batch([Record(0, 0, value=b"v")])

ODD_REQUESTS: list[tuple[str, Any]] = [
    ("produce twice", m.ProduceRequest(partitions=(m.ProducePartition(topic="orders", partition=0, records=(BATCH,)),) * 2)),
    ("produce acks=7", m.ProduceRequest(acks=7, partitions=())),
    ("produce negative timeout", m.ProduceRequest(timeout_ms=-1, partitions=())),
    ("produce huge timeout", m.ProduceRequest(timeout_ms=2**62, partitions=())),
    ("produce nowhere", m.ProduceRequest(partitions=(m.ProducePartition(topic="\0" * 300, partition=-(2**62), records=(BATCH,)),))),
    ("produce nothing", m.ProduceRequest(partitions=(m.ProducePartition(topic="orders", partition=0, records=()),))),
    ("produce a truncated batch", m.ProduceRequest(partitions=(m.ProducePartition(topic="orders", partition=0, records=(BATCH[:50],)),))),
    ("produce a batch that claims 2 GiB", m.ProduceRequest(partitions=(m.ProducePartition(topic="orders", partition=0, records=(PREFIX.pack(0, 2**31 - 1, -1) + BATCH[16:],)),))),
    ("fetch below", m.FetchRequest(partitions=(m.FetchPartition(topic="orders", partition=0, fetch_offset=-5),))),
    ("fetch beyond", m.FetchRequest(partitions=(m.FetchPartition(topic="orders", partition=0, fetch_offset=2**62),))),
    ("fetch of the future", m.FetchRequest(partitions=(m.FetchPartition(topic="orders", partition=0, fetch_offset=0, last_fetched_epoch=2**40),))),
    ("fetch as nobody's replica", m.FetchRequest(replica_id=77, partitions=(m.FetchPartition(topic="orders", partition=0, fetch_offset=0),))),
    ("fetch as the leader itself", m.FetchRequest(replica_id=1, partitions=(m.FetchPartition(topic="orders", partition=0, fetch_offset=0),))),
    ("fetch negative sizes", m.FetchRequest(max_bytes=-1, partitions=())),
    ("fetch negative minimum", m.FetchRequest(min_bytes=-(2**62), max_wait_ms=0, partitions=())),
    ("fetch of the quorum's log, and more", m.FetchRequest(max_wait_ms=0, partitions=(m.FetchPartition(topic="__cluster_metadata", partition=0, fetch_offset=2**62), m.FetchPartition(topic="orders", partition=0, fetch_offset=0)))),
    ("fetch of the quorum's log, other partition", m.FetchRequest(max_wait_ms=0, partitions=(m.FetchPartition(topic="__cluster_metadata", partition=9, fetch_offset=0),))),
    ("list offsets at -99", m.ListOffsetsRequest(partitions=(m.ListOffsetsPartition(topic="orders", partition=0, timestamp=-99),))),
    ("list offsets at the end of time", m.ListOffsetsRequest(partitions=(m.ListOffsetsPartition(topic="orders", partition=0, timestamp=2**63 - 1),))),
    ("epoch -7", m.OffsetForLeaderEpochRequest(partitions=(m.EpochQuery(topic="orders", partition=0, leader_epoch=-7),))),
    ("epoch of the future", m.OffsetForLeaderEpochRequest(partitions=(m.EpochQuery(topic="orders", partition=0, leader_epoch=2**62),))),
    ("delete beyond", m.DeleteRecordsRequest(partitions=(m.DeleteRecordsPartition(topic="orders", partition=0, offset=2**62),))),
    ("delete at -9", m.DeleteRecordsRequest(timeout_ms=-5, partitions=(m.DeleteRecordsPartition(topic="orders", partition=0, offset=-9),))),
    ("create nothing", m.CreateTopicsRequest(topics=())),
    ("create bad names", m.CreateTopicsRequest(topics=tuple(m.NewTopic(name=name) for name in ("", ".", "a/b", "../up", "x" * 250, "ü", "\0")))),
    ("create bad numbers", m.CreateTopicsRequest(topics=(m.NewTopic(name="a", num_partitions=-3), m.NewTopic(name="b", num_partitions=2**60), m.NewTopic(name="c", replication_factor=2**60), m.NewTopic(name="d", replication_factor=0)))),
    ("create bad settings", m.CreateTopicsRequest(topics=(m.NewTopic(name="a", configs={"segment.bytes": "9" * 5000}), m.NewTopic(name="b", configs={"nonsense": "1"})))),
    ("create a hundred thousand times the same", m.CreateTopicsRequest(topics=(m.NewTopic(name="same"),) * 100_000)),
    ("delete unknown", m.DeleteTopicsRequest(topics=("nothing", "", "../up"))),
    ("metadata of odd names", m.MetadataRequest(topics=("", "\0", "a/b", "x" * 5000))),
    ("elect oddly", m.ElectLeadersRequest(election_type="coup")),
    ("a transaction", m.InitProducerIdRequest(transactional_id="t")),
    ("a producer id of its own making", m.InitProducerIdRequest(producer_id=2**62, producer_epoch=2**15 - 1)),
    ("a heartbeat of nobody", m.BrokerHeartbeatRequest(broker_id=99, broker_epoch=2**62, current_metadata_offset=0)),
    ("an ISR change by nobody", m.AlterPartitionRequest(broker_id=99, broker_epoch=0, partitions=())),
    ("a vote from a stranger", m.VoteRequest(cluster_id=CLUSTER_ID, voter_id=1, candidate_id=99, candidate_epoch=2**40, last_epoch=0, last_epoch_end_offset=2**62)),
]  # fmt: skip


def test_no_request_breaks_a_broker() -> None:
    """Whatever arrives, the answer is an answer, and the broker lives on and serves (STYLE: bad input is not a bug)."""
    with simulated_orders() as cluster:
        client = Client(cluster)
        client.send(b"before")
        node = cluster.leader_of(ORDERS)

        async def ask(request: Any) -> Any:
            return await call(client.world.network, cluster.address_of(node), request, client.world.clock.now() + 30.0)

        for what, request in ODD_REQUESTS:
            asking = cluster.sim.spawn(client.name, ask(request))
            cluster.until(asking.done, 40.0, f"an answer to: {what}")
            asking.result()
            assert cluster.brokers[node].failure is None, what
        client.send(b"after")
        cluster.settle()
        assert values(cluster, node) == [b"before", b"after"]
        assert set(cluster.image().topics) <= {"orders", "same"}  # type: ignore[union-attr]


def test_what_odd_requests_are_told() -> None:
    """The typed errors of the most likely mistakes; a batch that stands twice leaves nothing of either behind."""
    with simulated_orders() as cluster:
        client = Client(cluster)
        broker = cluster.brokers[cluster.leader_of(ORDERS)]
        item = m.ProducePartition(topic="orders", partition=0, records=(BATCH,))
        with pytest.raises(InvalidRequest) as twice:
            client.cluster.run(broker.answer("Produce", m.ProduceRequest(partitions=(item, item))))
        assert twice.value.outcome == "not_written"
        assert values(cluster, broker.node_id) == []
        consumer = Consumer(ConsumerConfig(bootstrap_servers=cluster.bootstrap, auto_offset_reset="none"), client.world)
        client.run(consumer.start())
        consumer.assign([ORDERS])
        consumer.seek(ORDERS, 2**40)
        with pytest.raises(OffsetOutOfRange):
            client.run(consumer.getone())


def test_who_would_wait_for_ever_is_answered_after_five_minutes() -> None:
    """A client's own limits may be larger than what a broker holds a connection for; nothing of it is an error."""
    with simulated_orders() as cluster:
        client = Client(cluster, request_timeout_ms=3_600_000, delivery_timeout_ms=7_200_000)
        assert client.send(b"v").offset == 0
        world, leader = client.world, cluster.address_of(cluster.leader_of(ORDERS))
        at_the_end = m.FetchPartition(topic="orders", partition=0, fetch_offset=1)
        request = m.FetchRequest(max_wait_ms=2**62, min_bytes=1, partitions=(at_the_end,))
        began = cluster.sim.loop.time()
        answer = client.run(call(world.network, leader, request, world.clock.now() + 3600.0))
        assert [each.error_code for each in answer.partitions] == [0]
        assert cluster.sim.loop.time() - began == pytest.approx(300.0, abs=1.0)
