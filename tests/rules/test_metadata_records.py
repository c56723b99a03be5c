"""The metadata log's records as bytes: what is written is read back, and what is not known is refused by name."""

from __future__ import annotations

import msgpack
import pytest

from minikafka.errors import CorruptMessage, UnsupportedVersion
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

ONE_OF_EACH: list[MetadataRecord] = [
    RegisterBroker(broker_id=1, incarnation_id="i", host="h", port=9092, rack="r", broker_epoch=7, fenced=False),
    RegisterBroker(broker_id=0, incarnation_id="i", host="h", port=1, log_dirs=("ouQDE1x2TxmS_V6fmuYyIw",)),
    RegisterBroker(broker_id=2, incarnation_id="i", host="h", port=1, ignores_case=True),
    RegisterBroker(broker_id=3, incarnation_id="i", host="h", port=1, min_insync_replicas=2),
    BrokerRegistrationChange(broker_id=1, broker_epoch=7, fenced=True),
    BrokerRegistrationChange(broker_id=1, broker_epoch=7, in_controlled_shutdown=True),
    TopicRecord(name="orders", topic_id="7Xv2"),
    PartitionRecord(topic_id="7Xv2", partition=0, replicas=(1, 2, 3), isr=(1, 2), leader=1, elr=(3,), recovered=False),
    PartitionChange(topic_id="7Xv2", partition=0, isr=(), leader=-1, last_known_elr=(1,), last_known_dirs=("d",)),
    PartitionChange(topic_id="7Xv2", partition=0, recovered=True),
    PartitionRecord(topic_id="7Xv2", partition=0, replicas=(4, 2, 1), isr=(1,), leader=1, adding=(4,), removing=(1,)),
    PartitionChange(topic_id="7Xv2", partition=0, replicas=(4, 2, 1), adding=(4,), removing=()),
    ConfigRecord(resource_name="orders", name="min.insync.replicas", value="2"),
    ConfigRecord(resource_name="orders", name="min.insync.replicas"),
    ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="5"),
    RemoveTopic(topic_id="7Xv2"),
    ProducerIds(broker_id=1, broker_epoch=7, next_producer_id=3000),
    FeatureLevel(name="metadata.version", level=1),
    AccessControlEntry(
        id="7Xv2",
        resource_type=2,
        resource_name="orders",
        pattern_type=3,
        principal="User:alice",
        host="*",
        operation=3,
        permission_type=3,
    ),
    RemoveAccessControlEntry(id="7Xv2"),
    UserScramCredential(name="ann", mechanism=1, salt=b"\x00s", stored_key=b"\xff", server_key=b"k", iterations=4096),
    RemoveUserScramCredential(name="ann", mechanism=1),
    ClientQuota(users=("ann",), client_ids=(), key="producer_byte_rate", value=1000.0),
    ClientQuota(client_ids=("etl",), key="request_percentage"),
    ClusterSecret(secret=bytes(32)),
]


@pytest.mark.parametrize("record", ONE_OF_EACH, ids=lambda record: type(record).__name__)
def test_a_record_survives_its_bytes(record: MetadataRecord):
    """A field lost between controller and broker would give two brokers two images (D5)."""
    assert decode(encode(record)) == record
    assert decode(memoryview(encode(record))) == record


def test_no_change_and_nobody_are_told_apart():
    """KAFKA-FACTS 3.5: a leader field of None keeps the leader epoch, -1 raises it and leaves nobody in charge."""
    kept = decode(encode(PartitionChange(topic_id="7Xv2", partition=0, isr=(1,))))
    gone = decode(encode(PartitionChange(topic_id="7Xv2", partition=0, isr=(), leader=-1)))
    assert isinstance(kept, PartitionChange)
    assert isinstance(gone, PartitionChange)
    assert (kept.leader, kept.isr, gone.leader, gone.isr) == (None, (1,), -1, ())


def test_what_a_newer_version_wrote_is_refused_not_skipped():
    """A broker that skipped a record it does not know would lead or follow by a wrong image."""
    for strange in (
        [99, 1, {}],
        [2, 2, {"name": "t", "topic_id": "x"}],
        [2, 1, {"name": "t", "topic_id": "x", "new": 1}],
    ):
        with pytest.raises(UnsupportedVersion):
            decode(msgpack.packb(strange))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgpack.packb([2, 1]),
        msgpack.packb({"key": 2}),
        msgpack.packb([2, 1, {"name": "t"}]),
        msgpack.packb([2, 1, {"name": 5, "topic_id": "x"}]),
        msgpack.packb([9, 1, {"topic_id": None}]),
        msgpack.packb([5, 1, {"topic_id": "x", "partition": True}]),
        msgpack.packb([5, 1, {"topic_id": "x", "partition": 0, "isr": [1, "2"]}]),
        msgpack.packb([5, 1, {"topic_id": "x", "partition": 0, "last_known_dirs": ["d", 2]}]),
        encode(TopicRecord(name="t", topic_id="x"))[:-1],
    ],
)
def test_bytes_that_are_no_record_are_a_typed_error(payload: bytes):
    """A broken record must stop the broker with a sentence, not become a half-read state."""
    with pytest.raises(CorruptMessage):
        decode(payload)
