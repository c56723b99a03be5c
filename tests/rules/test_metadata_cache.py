"""What a broker makes of the committed metadata, and what it tells clients of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from minikafka.broker.metadata import MetadataApi, MetadataCache, describe_topics, metadata_of
from minikafka.config import BrokerConfig
from minikafka.errors import UnsupportedVersion
from minikafka.ports import RequestContext, no_events
from minikafka.quorum.image import MetadataImage
from minikafka.quorum.records import RegisterBroker, RemoveTopic, TopicRecord, encode
from minikafka.types import EpochEnd
from minikafka.wire.messages import DescribeTopicsRequest, MetadataRequest, MetadataResponse
from tests.rules.controller_kit import CLUSTER_ID, Cluster


def register(node: int) -> bytes:
    return encode(RegisterBroker(broker_id=node, incarnation_id="i", host="h", port=9092))


@pytest.fixture
def cache() -> MetadataCache:
    return MetadataCache(CLUSTER_ID, no_events)


def test_each_committed_batch_is_one_new_image(cache: MetadataCache):
    """A failover changes a thousand partitions: subscribers see it as one step, old and new."""
    seen: list[tuple[MetadataImage, MetadataImage]] = []
    cache.subscribe(lambda old, new: seen.append((old, new)))
    start = cache.image
    cache.on_commit(1, 1, [register(1), register(2)])
    assert [(old is start, new is cache.image) for old, new in seen] == [(True, True)]
    assert {node: broker.broker_epoch for node, broker in cache.image.brokers.items()} == {1: 1, 2: 2}
    assert (cache.image.offset, cache.image.epoch, cache.image.cluster_id) == (3, 1, CLUSTER_ID)
    cache.on_commit(7, 3, [register(1)])
    assert cache.image.brokers[1].broker_epoch == 7
    assert (cache.image.offset, cache.image.epoch) == (8, 3)


def test_a_snapshot_is_the_state_of_another_cache(cache: MetadataCache):
    """A broker that was away for long must end where the others are, and forget what is gone."""
    cluster = Cluster(3, min_isr=2)
    cluster.create("t", (1, 2, 3), configs={"retention.ms": "5"})
    cluster.lose(1)
    told = MetadataCache(CLUSTER_ID, no_events)
    told.image = cluster.image
    cache.on_commit(0, 1, [encode(TopicRecord(name="gone", topic_id="x"))])
    cache.on_snapshot(EpochEnd(cluster.image.epoch, cluster.image.offset), told.snapshot_payloads())
    assert cache.image == cluster.image


def test_a_snapshot_may_hold_more_records_than_its_offset_counts(cache: MetadataCache):
    """One record of the log may become two of the snapshot; broker epochs stay those of the log."""
    payload = encode(RegisterBroker(broker_id=1, incarnation_id="i", host="h", port=9092, broker_epoch=1))
    cache.on_snapshot(
        EpochEnd(1, 2), [payload, *(encode(TopicRecord(name=f"t{n}", topic_id=f"{n}")) for n in range(9))]
    )
    assert cache.image.brokers[1].broker_epoch == 1
    assert cache.image.offset == 2


def test_names_of_deleted_topics_are_remembered_with_an_offset(cache: MetadataCache, monkeypatch: pytest.MonkeyPatch):
    """By batches and by snapshots, also when the name is in use again; the oldest are forgotten first."""
    monkeypatch.setattr("minikafka.broker.metadata.REMOVED_TOPICS_MAX", 2)
    cache.on_commit(0, 1, [encode(TopicRecord(name=name, topic_id=name * 2)) for name in "abc"])
    assert cache.removed_below == {}
    cache.on_commit(3, 1, [encode(RemoveTopic(topic_id="aa")), encode(TopicRecord(name="a", topic_id="a3"))])
    assert cache.removed_below == {"a": 5}
    assert (cache.removed_below_of("a"), cache.removed_below_of("never")) == (5, -1)
    cache.on_snapshot(EpochEnd(epoch=1, end_offset=9), [encode(TopicRecord(name="b", topic_id="b3"))])
    assert cache.removed_below == {"c": 9, "a": 9}


def test_any_other_name_may_have_been_deleted_below_a_snapshot(cache: MetadataCache):
    """A snapshot does not say which topics were deleted before it."""
    cache.on_snapshot(EpochEnd(epoch=1, end_offset=9), [])
    assert cache.removed_below_of("t") == 9
    cache.on_commit(9, 1, [encode(TopicRecord(name="t", topic_id="tt"))])
    cache.on_commit(10, 1, [encode(RemoveTopic(topic_id="tt"))])
    assert (cache.removed_below_of("t"), cache.removed_below_of("u")) == (11, 9)


def test_any_name_may_be_one_of_those_that_were_forgotten(cache: MetadataCache, monkeypatch: pytest.MonkeyPatch):
    """With more deleted topics than are remembered, the oldest offset that was forgotten counts for all names."""
    monkeypatch.setattr("minikafka.broker.metadata.REMOVED_TOPICS_MAX", 1)
    cache.on_commit(0, 1, [encode(TopicRecord(name=name, topic_id=name * 2)) for name in "ab"])
    cache.on_commit(2, 1, [encode(RemoveTopic(topic_id="aa"))])
    cache.on_commit(3, 1, [encode(RemoveTopic(topic_id="bb"))])
    assert [cache.removed_below_of(name) for name in "abc"] == [3, 4, 3]


def test_a_record_from_the_future_stops_the_broker(cache: MetadataCache):
    """It must not be skipped: the image would differ from that of all others."""
    before = cache.image
    with pytest.raises(UnsupportedVersion):
        cache.on_commit(0, 1, [register(1), msgpack.packb([99, 1, {}])])
    assert cache.image is before


def test_who_asks_later_is_told_who_leads(cache: MetadataCache):
    """A subscriber that comes after the election must not wait for the next one."""
    cache.on_leader(2, 5, i_lead=False)
    told: list[tuple[int, int, bool]] = []
    cache.subscribe_leader(lambda *facts: told.append(facts))
    cache.on_leader(1, 6, i_lead=True)
    assert told == [(2, 5, False), (1, 6, True)]
    assert (cache.leader_id, cache.leader_epoch, cache.i_lead) == (1, 6, True)


# ---- Metadata --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("leader", "protocol", "named"), [(2, "kafka", 2), (-1, "kafka", 1), (-1, "rpc", -1)])
def test_kafkas_clients_are_always_given_a_controller(leader: int, protocol: str, named: int):
    """As Kafka's brokers do: librdkafka's admin client waited for one until its request timed out.

    The native client tries all brokers in turn when there is none.
    """
    image = Cluster(1).image
    live: Any = SimpleNamespace(now=BrokerConfig(node_id=1))
    metadata: Any = SimpleNamespace(image=image)
    quorum: Any = SimpleNamespace(leader_id=leader)
    world: Any = None

    async def no_controller(_request: object, _context: RequestContext) -> None:
        raise AssertionError("nothing is created")

    api = MetadataApi(live, world, metadata, quorum, no_controller)
    answer = api.handle_metadata(MetadataRequest(topics=()), RequestContext(protocol=protocol))
    assert isinstance(answer, MetadataResponse)
    assert answer.controller_id == named


def test_metadata_names_living_brokers_leaders_and_who_is_away():
    """S27: what a client needs to find leaders; a fenced broker would only cost it a timeout."""
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3))
    cluster.create("a", (3, 1))
    cluster.lose(3)
    answer = metadata_of(cluster.image, MetadataRequest(), controller_id=2)
    assert (answer.cluster_id, answer.controller_id) == (CLUSTER_ID, 2)
    assert answer.metadata_offset == cluster.image.offset
    assert [(each.node_id, each.host, each.port) for each in answer.brokers] == [
        (1, "127.0.0.1", 9091),
        (2, "127.0.0.1", 9092),
    ]
    assert [each.name for each in answer.topics] == ["a", "t"]
    partition = answer.topics[1].partitions[0]
    assert answer.topics[1].topic_id == cluster.image.topics["t"].topic_id
    assert (partition.leader_id, partition.leader_epoch, partition.error_code) == (1, 0, 0)
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ((1, 2, 3), (1, 2), (3,))


def test_a_client_is_told_addresses_of_the_listener_that_it_asked_at():
    """S27: a client of the host cannot resolve the names of the brokers' network; where one has no such listener, it
    is told what brokers are.
    """
    cluster = Cluster(0)
    cluster.register(1, listeners="PLAINTEXT_HOST://localhost:29092")
    cluster.register(2)
    for node in (1, 2):
        cluster.heartbeat(node)
    asked = MetadataRequest(topics=())
    at_host = metadata_of(cluster.image, asked, controller_id=1, listener="PLAINTEXT_HOST")
    assert [(each.host, each.port) for each in at_host.brokers] == [("localhost", 29092), ("127.0.0.1", 9092)]
    inside = metadata_of(cluster.image, asked, controller_id=1)
    assert [(each.host, each.port) for each in inside.brokers] == [("127.0.0.1", 9091), ("127.0.0.1", 9092)]


def test_a_broker_that_shuts_down_is_still_named():
    """It serves until its leaders have moved."""
    cluster = Cluster(2)
    cluster.heartbeat(1, want_shut_down=True)
    answer = metadata_of(cluster.image, MetadataRequest(topics=()), controller_id=1)
    assert [each.node_id for each in answer.brokers] == [1, 2]
    assert answer.topics == ()


def test_a_partition_without_leader_says_so():
    """LEADER_NOT_AVAILABLE (5): the client refreshes, and sends nothing into the void."""
    cluster = Cluster(2)
    cluster.create("t", (1,))
    cluster.lose(1)
    partition = metadata_of(cluster.image, MetadataRequest(topics=("t",)), controller_id=1).topics[0].partitions[0]
    assert (partition.error_code, partition.leader_id, partition.offline_replicas) == (5, -1, (1,))


def test_topics_that_do_not_exist():
    """3 for a name that may come to be, 17 for one that never can; each is answered once."""
    cluster = Cluster(1)
    answer = metadata_of(cluster.image, MetadataRequest(topics=("none", "a b", "none")), controller_id=1)
    assert [(each.name, each.error_code) for each in answer.topics] == [("none", 3), ("a b", 17)]
    described = describe_topics(cluster.image, DescribeTopicsRequest(topics=("none",)))
    assert [(each.topic, each.error_code) for each in described.topics] == [("none", 3)]


def test_s15_partition_state_as_the_controller_recorded_it():
    """S15: leader, leader epoch, ISR, version and controller epoch, in the articles' words."""
    cluster = Cluster(3, min_isr=2)
    cluster.create("t", (1, 2, 3), configs={"retention.ms": "5", "min.insync.replicas": "2"})
    cluster.create("a", (1,))
    cluster.epoch = 4
    cluster.lose(1, 2)
    described = describe_topics(cluster.image, DescribeTopicsRequest()).topics
    assert [each.topic for each in described] == ["a", "t"]
    assert described[1].config == {"min.insync.replicas": "2", "retention.ms": "5"}
    state = described[1].partitions[0]
    assert (state.leader, state.leader_epoch, state.partition_epoch, state.controller_epoch) == (3, 2, 2, 4)
    assert (state.replicas, state.isr, state.elr, state.last_known_elr) == ((1, 2, 3), (3,), (2,), ())
