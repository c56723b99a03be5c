"""Kafka's small files, to the byte (KAFKA-FACTS 1.2, S28)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.log import checkpoint
from minikafka.log.checkpoint import BadCheckpoint, MetaProperties
from minikafka.log.names import (
    is_deleted_folder,
    offset_name,
    offset_of,
    offsets_in,
    partition_of,
    retired_folder,
    topic_id_bytes,
)
from minikafka.types import TopicPartition

ID = "ouQDE1x2TxmS_V6fmuYyIw"


def test_an_offset_checkpoint_is_kafkas_text():
    """KAFKA-FACTS 1.2: version, count, one line per partition; Kafka's tools read it."""
    offsets = {TopicPartition("orders", 1): 77, TopicPartition("orders", 0): 120}
    data = checkpoint.format_offsets(offsets)
    assert data == b"0\n2\norders 0 120\norders 1 77\n"
    assert checkpoint.parse_offsets(data) == offsets


def test_an_epoch_checkpoint_is_kafkas_text():
    """KAFKA-FACTS 1.2: epoch, start offset."""
    assert checkpoint.format_epochs([(0, 0), (3, 57)]) == b"0\n2\n0 0\n3 57\n"
    assert checkpoint.parse_epochs(b"0\n2\n0 0\n3 57\n") == [(0, 0), (3, 57)]


def test_an_empty_file_has_no_entries():
    """KAFKA-FACTS 1.2."""
    assert checkpoint.parse_offsets(b"") == {}
    assert checkpoint.parse_epochs(b"") == []


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"1\n0\n", "line 1"),
        (b"0\n", "line 2"),
        (b"0\nx\n", "line 2"),
        (b"0\n1\n3 10", "line 3"),
        (b"0\n2\n3 0\n3 5\n", "epoch 3 at 5 does not follow"),
        (b"0\n2\n3 5\n4 5\n", "epoch 4 at 5 does not follow"),
        (b"0\n2\n0 0\n", "line 2"),
        (b"0\n1\n0 0\n1 5\n", "line 2"),
        (b"0\n1\n0\n", "line 3"),
        (b"0\n2\n0 0\nx 5\n", "line 4"),
        (b"0\n2\n0 0\n3 5", "cut off"),  # of "3 57"
        (b"\xff\n", "not text"),
        (b"0\n2\n3 0\n2 5\n", "does not follow"),
        (b"0\n2\n1 5\n2 5\n", "does not follow"),
    ],
)
def test_a_malformed_checkpoint_says_where(data: bytes, line: str):
    """A checkpoint that a power cut tore must never be taken for a sound one."""
    with pytest.raises(BadCheckpoint, match=line):
        checkpoint.parse_epochs(data)


@given(st.integers(0, 40))
def test_a_torn_checkpoint_is_noticed_or_empty(cut: int):
    """Any prefix of the file but the empty one and the whole is refused."""
    data = checkpoint.format_epochs([(0, 0), (3, 57), (12, 4711)])
    torn = data[:cut]
    if torn in {b"", data}:
        assert checkpoint.parse_epochs(torn) in ([], [(0, 0), (3, 57), (12, 4711)])
    else:
        with pytest.raises(BadCheckpoint):
            checkpoint.parse_epochs(torn)


def test_partition_metadata_has_no_last_line_end():
    """KAFKA-FACTS 1.2: exactly these bytes, and a topic id that is none is refused."""
    assert checkpoint.format_partition_metadata(ID) == b"version: 0\ntopic_id: ouQDE1x2TxmS_V6fmuYyIw"
    assert checkpoint.parse_partition_metadata(b"version: 0\ntopic_id: ouQDE1x2TxmS_V6fmuYyIw\n") == ID
    for bad in (
        b"",
        b"version: 1\ntopic_id: " + ID.encode(),
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
        b"version: 0\ntopic_id: short",
    ):
        with pytest.raises(BadCheckpoint):
            checkpoint.parse_partition_metadata(bad)


def test_meta_properties_are_java_properties():
    """KAFKA-FACTS 1.2: version=1, cluster.id, node.id, directory.id; a directory of Kafka's own counts as format 1."""
    meta = MetaProperties(cluster_id="c", node_id=3, directory_id="d")
    text = checkpoint.format_meta_properties(meta)
    assert b"\nnode.id=3\nversion=1\n" in text
    assert checkpoint.parse_meta_properties(text) == meta
    kafkas = b"#\n#Fri Nov 21 10:00:00 UTC 2025\nnode.id=3\ndirectory.id=d\nversion=1\ncluster.id=c\n"
    assert checkpoint.parse_meta_properties(kafkas) == meta
    for bad in (b"version=0\n", b"version=1\ncluster.id=c\n", b"version=1\ncluster.id=c\nnode.id=x\n"):
        with pytest.raises(BadCheckpoint):
            checkpoint.parse_meta_properties(bad)


def test_the_clean_shutdown_marker_holds_the_broker_epoch():
    """KIP-966: an older empty marker, or an unreadable one, tells no epoch."""
    assert checkpoint.format_clean_shutdown(123) == b'{"version":0,"brokerEpoch":123}'
    assert checkpoint.parse_clean_shutdown(b'{"version":0,"brokerEpoch":123}') == 123
    assert [checkpoint.parse_clean_shutdown(data) for data in (b"", b"{}", b"[]", b'{"brokerEpoch":"x"}')] == [-1] * 4


def test_names_of_files():
    """KAFKA-FACTS 1.1: twenty digits."""
    assert offset_name(42, ".log") == "00000000000000000042.log"
    assert offset_of("00000000000000000042.log", ".log") == 42
    assert [offset_of(n, ".log") for n in ("42.log", "00000000000000000042.index", "x" * 20 + ".log", ".log")] == [
        None
    ] * 4
    assert offsets_in([offset_name(9, ".log"), offset_name(3, ".log"), offset_name(1, ".index")], ".log") == [3, 9]


@pytest.mark.parametrize(
    ("folder", "partition"),
    [
        ("orders-0", TopicPartition("orders", 0)),
        ("a-b.c_d-12", TopicPartition("a-b.c_d", 12)),
        ("__cluster_metadata-0", TopicPartition("__cluster_metadata", 0)),
        ("orders", None),
        ("-0", None),
        ("orders-", None),
        ("orders-x", None),
        ("orders-01", None),
        (f"orders-0.{'a' * 32}-delete", None),
        (f"orders-0.{'a' * 32}-stray", None),
    ],
)
def test_names_of_folders(folder: str, partition: TopicPartition | None):
    """S28, KAFKA-FACTS 1.1: cut at the last dash; what is set aside is no replica any more."""
    assert partition_of(folder) == partition
    assert is_deleted_folder(folder) == folder.endswith("-delete")


def test_a_retired_folders_name_always_fits():
    """KAFKA-FACTS 1.1: the longest topic name still gives a name of 255 bytes that is recognised. eCryptfs takes 143."""
    for suffix in ("-delete", "-stray"):
        name = retired_folder(TopicPartition("t" * 249, 99_999), ID, suffix)
        assert len(name) <= 143
        assert partition_of(name) is None
        assert topic_id_bytes(ID).hex() in name
    for other in ("AAAA", "!", ID + "A", ""):
        with pytest.raises(ValueError, match="topic id"):
            topic_id_bytes(other)
