"""The image: what each record does, epoch arithmetic, sharing between images, and the way through a snapshot."""

from __future__ import annotations

import pytest

from minikafka.invariant import InvariantViolation
from minikafka.quorum.image import MetadataImage, changes
from minikafka.quorum.records import (
    AccessControlEntry,
    BrokerRegistrationChange,
    ClientQuota,
    ClusterSecret,
    ConfigRecord,
    FeatureLevel,
    MetadataRecord,
    PartitionChange,
    PartitionRecord,
    ProducerIds,
    RegisterBroker,
    RemoveAccessControlEntry,
    RemoveTopic,
    RemoveUserScramCredential,
    TopicRecord,
    UserScramCredential,
    decode,
    encode,
)
from minikafka.types import TopicPartition

ORDERS = "orders-id"
PAYMENTS = "payments-id"


def after(image: MetadataImage, *records: MetadataRecord, epoch: int = 1) -> MetadataImage:
    return image.replay_all(records, image.offset + len(records), epoch)


def register(node: int) -> RegisterBroker:
    return RegisterBroker(broker_id=node, incarnation_id=f"inc-{node}", host="127.0.0.1", port=9000 + node)


def entry(acl_id: str, *, name: str = "orders", permission_type: int = 3) -> AccessControlEntry:
    """READ of a topic for alice: allowed (3) or denied (2)."""
    return AccessControlEntry(
        id=acl_id,
        resource_type=2,
        resource_name=name,
        pattern_type=3,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=permission_type,
    )


def partition_record(topic_id: str, number: int) -> PartitionRecord:
    return PartitionRecord(topic_id=topic_id, partition=number, replicas=(1, 2, 3), isr=(1, 2, 3), leader=1)


@pytest.fixture
def image() -> MetadataImage:
    """Three brokers, of which 3 is fenced; two topics of two partitions."""
    return after(
        MetadataImage(cluster_id="c"),
        FeatureLevel(name="metadata.version", level=1),
        register(1),
        register(2),
        register(3),
        BrokerRegistrationChange(broker_id=1, broker_epoch=1, fenced=False),
        BrokerRegistrationChange(broker_id=2, broker_epoch=2, fenced=False),
        TopicRecord(name="orders", topic_id=ORDERS),
        ConfigRecord(resource_name="orders", name="min.insync.replicas", value="2"),
        partition_record(ORDERS, 0),
        partition_record(ORDERS, 1),
        TopicRecord(name="payments", topic_id=PAYMENTS),
        partition_record(PAYMENTS, 0),
        partition_record(PAYMENTS, 1),
        ProducerIds(next_producer_id=2000),
        epoch=4,
    )


def test_a_brokers_epoch_is_the_offset_of_its_registration(image: MetadataImage):
    """KAFKA-FACTS 4.3: the broker epoch rises with each incarnation because offsets do."""
    assert {node: broker.broker_epoch for node, broker in image.brokers.items()} == {1: 1, 2: 2, 3: 3}
    again = after(image, register(1))
    assert again.brokers[1].broker_epoch == image.offset
    assert again.brokers[1].fenced


def test_who_may_lead(image: MetadataImage):
    """KIP-841: fenced and stopping brokers may neither lead nor join an ISR; unknown ones of course not."""
    stopping = after(image, BrokerRegistrationChange(broker_id=2, broker_epoch=2, in_controlled_shutdown=True))
    assert [stopping.eligible(node) for node in (1, 2, 3, 4)] == [True, False, False, False]
    assert [stopping.alive(node) for node in (1, 2, 3, 4)] == [True, True, False, False]
    assert stopping.eligible_brokers() == (1,)


def test_a_broker_is_leaving_until_it_is_fenced(image: MetadataImage):
    """In controlled shutdown it waits for the others; once fenced it may have stopped."""
    node = next(iter(image.brokers))
    epoch = image.brokers[node].broker_epoch

    def changed(**members: bool) -> BrokerRegistrationChange:
        return BrokerRegistrationChange(broker_id=node, broker_epoch=epoch, **members)

    serving = after(image, changed(fenced=False))
    leaving = after(serving, changed(in_controlled_shutdown=True))
    gone = after(leaving, changed(fenced=True))
    assert [each.is_anybody_leaving() for each in (serving, leaving, gone)] == [False, True, False]


@pytest.mark.parametrize(
    "change, leader_epoch",
    [
        (PartitionChange(topic_id=ORDERS, partition=1, isr=(1, 2)), 0),
        (PartitionChange(topic_id=ORDERS, partition=1, leader=2), 1),
        (PartitionChange(topic_id=ORDERS, partition=1, leader=1), 1),
        (PartitionChange(topic_id=ORDERS, partition=1, leader=-1, isr=()), 1),
        (PartitionChange(topic_id=ORDERS, partition=1, recovered=False), 0),
    ],
)
def test_epoch_arithmetic(image: MetadataImage, change: PartitionChange, leader_epoch: int):
    """Every change raises the partition epoch; the leader epoch rises iff the leader field is set, even to the same."""
    new = after(image, change, epoch=9)
    partition = new.partition(TopicPartition("orders", 1))
    assert partition is not None
    assert (partition.partition_epoch, partition.leader_epoch, partition.controller_epoch) == (1, leader_epoch, 9)


def test_two_changes_of_one_partition_in_one_batch_both_count(image: MetadataImage):
    """A batch is one image, yet each of its records is one step of the partition epoch."""
    change = PartitionChange(topic_id=ORDERS, partition=0, leader=2)
    partition = (
        after(image, change, PartitionChange(topic_id=ORDERS, partition=0, leader=1)).topics["orders"].partitions[0]
    )
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (1, 2, 2)


def test_an_image_shares_what_did_not_change(image: MetadataImage):
    """The cost of a change is that of the change: a failover must not copy a cluster. An old image stays as it was."""
    new = after(image, PartitionChange(topic_id=ORDERS, partition=1, isr=(1, 2)))
    assert new.brokers is image.brokers
    assert new.topic_names is image.topic_names
    assert new.topics["payments"] is image.topics["payments"]
    assert new.topics["orders"].partitions[0] is image.topics["orders"].partitions[0]
    assert image.topics["orders"].partitions[1].isr == (1, 2, 3)
    assert [tp for tp, _, _ in changes(image, new)] == [TopicPartition("orders", 1)]
    assert list(changes(new, new)) == []


def test_changes_are_told_in_order_with_both_states(image: MetadataImage):
    """A broker walks changes in order: two runs of one seed must do the same things in the same order."""
    new = after(
        image,
        RemoveTopic(topic_id=PAYMENTS),
        TopicRecord(name="audit", topic_id="audit-id"),
        partition_record("audit-id", 0),
        PartitionChange(topic_id=ORDERS, partition=0, leader=2),
    )
    told = [(str(tp), old and old.leader, now and now.leader) for tp, old, now in changes(image, new)]
    assert told == [("audit-0", None, 1), ("orders-0", 1, 2), ("payments-0", 1, None), ("payments-1", 1, None)]


def test_a_topic_created_anew_is_not_the_old_one(image: MetadataImage):
    """KAFKA-FACTS 3.3 (INCONSISTENT_TOPIC_ID): the same name with another id is another topic; its old log must go."""
    new = after(
        image,
        RemoveTopic(topic_id=ORDERS),
        TopicRecord(name="orders", topic_id="new-id"),
        partition_record("new-id", 0),
    )
    told = [(str(tp), old is None, now is None) for tp, old, now in changes(image, new)]
    assert told == [("orders-0", False, True), ("orders-1", False, True), ("orders-0", True, False)]
    assert new.topics["orders"].configs == {}
    assert new.topic_by_id(ORDERS) is None
    assert new.topic_by_id("new-id") is new.topics["orders"]


def test_a_topic_that_is_changed_and_deleted_in_one_batch_is_gone(image: MetadataImage):
    """Also if another one gets its name in the same batch: it has none of the partitions of the former one."""
    topic = next(iter(image.topics.values()))
    change = PartitionChange(topic_id=topic.topic_id, partition=0)
    gone = after(image, change, RemoveTopic(topic_id=topic.topic_id))
    assert topic.name not in gone.topics
    new_id = "zzzzzzzzzzzzzzzzzzzzzw"
    again = after(
        image, change, RemoveTopic(topic_id=topic.topic_id), TopicRecord(name=topic.name, topic_id=new_id)
    ).topics[topic.name]
    assert (again.topic_id, again.partitions) == (new_id, ())


def test_a_setting_is_replaced_and_removed(image: MetadataImage):
    """A topic says only what differs from the broker's defaults."""
    other = after(image, ConfigRecord(resource_name="orders", name="retention.ms", value="5"))
    assert other.topics["orders"].configs == {"min.insync.replicas": "2", "retention.ms": "5"}
    gone = after(other, ConfigRecord(resource_name="orders", name="min.insync.replicas"))
    assert gone.topics["orders"].configs == {"retention.ms": "5"}


def test_settings_of_brokers_are_kept_apart_from_those_of_topics(image: MetadataImage):
    """KIP-226: by broker, and for all under the empty name; a resource without settings leaves no trace."""
    told = ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="5")
    given = after(image, told, ConfigRecord(resource_type=4, resource_name="2", name="log.retention.ms", value="6"))
    assert given.broker_configs == {"": {"log.retention.ms": "5"}, "2": {"log.retention.ms": "6"}}
    assert given.topics is image.topics
    gone = after(given, ConfigRecord(resource_type=4, resource_name="2", name="log.retention.ms"))
    assert gone.broker_configs == {"": {"log.retention.ms": "5"}}


def test_partitions_are_found_by_name_and_number(image: MetadataImage):
    """A partition that does not exist is None, also with a negative number."""
    assert image.partition(TopicPartition("orders", 1)) is image.topics["orders"].partitions[1]
    for tp in (TopicPartition("orders", 2), TopicPartition("orders", -1), TopicPartition("none", 0)):
        assert image.partition(tp) is None


def test_a_snapshot_gives_an_equal_image(image: MetadataImage):
    """A broker that loads a snapshot must hold what those hold who replayed the log (S15 state included)."""
    rich = after(
        image,
        PartitionChange(
            topic_id=ORDERS, partition=0, isr=(), leader=-1, elr=(2,), last_known_elr=(1,), recovered=False
        ),
        BrokerRegistrationChange(broker_id=2, broker_epoch=2, in_controlled_shutdown=True),
        PartitionChange(topic_id=ORDERS, partition=1, replicas=(4, 1, 2, 3), adding=(4,), removing=(3,)),
        ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="5"),
        ConfigRecord(resource_type=4, resource_name="2", name="log.retention.ms", value="6"),
        entry("b"),
        entry("a", name="payments"),
        ClusterSecret(secret=b"x" * 32),
        UserScramCredential(name="ann", mechanism=2, salt=b"s", stored_key=b"t", server_key=b"k", iterations=4096),
        ClientQuota(users=("ann",), client_ids=(), key="producer_byte_rate", value=5.0),
        ClientQuota(users=(), key="request_percentage", value=0.5),
        ClientQuota(client_ids=("etl",), key="request_percentage", value=1.0),
        epoch=7,
    )
    payloads = [encode(record) for record in rich.records()]
    loaded = MetadataImage(cluster_id="c").replay_all([decode(each) for each in payloads], rich.offset, rich.epoch)
    assert loaded == rich
    assert list(loaded.acl_index) == list(rich.acl_index)
    assert [encode(record) for record in loaded.records()] == payloads


@pytest.mark.parametrize(
    "record",
    [
        PartitionChange(topic_id="nobody", partition=0, isr=(1,)),
        PartitionChange(topic_id=ORDERS, partition=2, isr=(1,)),
        PartitionChange(topic_id=ORDERS, partition=0, isr=(2, 3)),
        PartitionChange(topic_id=ORDERS, partition=0, leader=4),
        PartitionChange(topic_id=ORDERS, partition=0, replicas=(1, 2)),
        partition_record(ORDERS, 3),
        TopicRecord(name="orders", topic_id="other"),
        TopicRecord(name="other", topic_id=ORDERS),
        RemoveTopic(topic_id="nobody"),
        ConfigRecord(resource_name="nobody", name="retention.ms", value="1"),
        BrokerRegistrationChange(broker_id=1, broker_epoch=0, fenced=False),
        BrokerRegistrationChange(broker_id=9, broker_epoch=1, fenced=False),
        ProducerIds(next_producer_id=1000),
        RemoveAccessControlEntry(id="nobody"),
        RemoveUserScramCredential(name="nobody", mechanism=1),
    ],
)
def test_a_committed_record_that_contradicts_the_image_is_a_bug(image: MetadataImage, record: MetadataRecord):
    """S13 and the epochs are held where state changes: a wrong record must stop the broker, not be half applied."""
    with pytest.raises(InvariantViolation):
        after(image, record)


def test_removing_an_entry_keeps_the_other_entries_of_its_resource(image: MetadataImage):
    """Kafka lost them once (CVE-2024-27309). The index is rebuilt from the table, and only when the table changes."""
    with_both = after(image, entry("a"), entry("b", permission_type=2))
    assert len(list(with_both.acl_index)) == 2
    rest = after(with_both, RemoveAccessControlEntry(id="a"))
    assert [each.permission for each in rest.acl_index] == [2]
    assert [each.permission for each in rest.acls.values()] == [2]
    assert len(with_both.acls) == 2
    assert after(rest, register(1)).acl_index is rest.acl_index


def test_an_id_of_an_entry_is_used_once(image: MetadataImage):
    """A second entry with the id would replace the first one."""
    with pytest.raises(InvariantViolation):
        after(image, entry("a"), entry("a", name="payments"))


def test_metadata_is_replayed_in_order(image: MetadataImage):
    """Committed metadata is never truncated (KAFKA-FACTS 10.13)."""
    with pytest.raises(InvariantViolation):
        image.replay_all((), image.offset - 1, 4)
