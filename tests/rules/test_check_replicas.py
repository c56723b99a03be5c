"""Whole logs against each other, byte by byte below the high watermarks (KAFKA-FACTS 10, rules 2, 6 and 7)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.check.replicas import Comparison, LogBatch, ReplicaBatches, compare_replicas
from minikafka.types import TopicPartition

PARTITION = TopicPartition("t", 0)
BATCH = 10


def log(count: int, *, size: int = 40) -> list[LogBatch]:
    """``count`` batches of ten records each."""
    return [
        LogBatch(number * BATCH, number * BATCH + BATCH - 1, number // 3, bytes([number]) * size)
        for number in range(count)
    ]


def replica(node: int, batches: list[LogBatch], *, high_watermark: int, log_start: int = 0) -> ReplicaBatches:
    return ReplicaBatches(node=node, high_watermark=high_watermark, log_start=log_start, batches=iter(batches))


def compare(*logs: list[LogBatch], high_watermark: int = 50) -> Comparison:
    return compare_replicas(
        PARTITION, [replica(node, batches, high_watermark=high_watermark) for node, batches in enumerate(logs, 1)]
    )


def altered(batches: list[LogBatch], at: int, position: int) -> list[LogBatch]:
    """A copy in which one byte of one batch is flipped."""
    data = bytearray(batches[at].data)
    data[position] ^= 1
    batch = batches[at]
    return [*batches[:at], LogBatch(batch.base_offset, batch.last_offset, batch.leader_epoch, data), *batches[at + 1 :]]


def test_equal_logs_are_equal_and_counted() -> None:
    """The demo's last sentence: the three replicas are byte-equal below HW."""
    result = compare(log(5), log(5), log(5))
    assert result.equal
    assert (result.batch_count, result.size, result.end_offset) == (5, 200, 50)


def test_a_flipped_byte_is_found_with_offset_node_and_position() -> None:
    """One replica altered: the majority is right, the stray is named once and compared no further."""
    result = compare(log(5), altered(altered(log(5), 2, 17), 4, 0), log(5))
    (finding,) = result.findings
    assert (finding.offset, finding.detail) == (20, "replica 2 differs at byte 17")
    held = {node: digest for node, _, digest in finding.holdings}
    assert held[1] == held[3] != held[2]
    assert result.batch_count == 5


def test_a_longer_batch_differs_where_the_shorter_ends() -> None:
    """Trailing bytes count."""
    longer = log(1)
    longer[0] = LogBatch(0, 9, 0, bytes(longer[0].data) + b"x")
    (finding,) = compare(log(1), longer, high_watermark=10).findings
    assert finding.detail == "replica 2 differs at byte 40"


def test_a_missing_batch_is_found_in_the_middle_and_at_the_end() -> None:
    """A hole, and a log that ends before its own high watermark."""
    (hole,) = compare(log(5), log(5), [*log(5)[:1], *log(5)[2:]]).findings
    assert hole.offset == 10
    assert hole.holdings[2] == (3, -1, "missing")
    (short,) = compare(log(4), log(5)).findings
    assert short.offset == 40
    (empty,) = compare(log(5), []).findings
    assert empty.offset == 0


def test_above_a_high_watermark_nothing_is_owed() -> None:
    """A tail may still be cut; two replicas further on are held against each other all the same."""
    tails = [altered(log(5), 4, node) for node in range(3)]
    assert compare(*tails, high_watermark=40).equal
    result = compare_replicas(
        PARTITION,
        [
            replica(1, log(5), high_watermark=50),
            replica(2, log(3), high_watermark=30),
            replica(3, altered(log(5), 4, 0), high_watermark=50),
        ],
    )
    assert [finding.offset for finding in result.findings] == [40]
    assert result.end_offset == 30


def test_a_batch_that_reaches_beyond_a_high_watermark_is_not_owed_there() -> None:
    """A high watermark may lie inside a batch; of batches that differ the longest decides who must have it."""
    marks = (50, 49, 50)
    replicas = [replica(node, log(5), high_watermark=mark) for node, mark in enumerate(marks, 1)]
    assert compare_replicas(PARTITION, replicas).equal
    cut = [LogBatch(0, 4, 0, b"x")]
    logs = ((log(1), 10), (cut, 10), (log(1), 7))
    found = compare_replicas(
        PARTITION, [replica(node, batches, high_watermark=mark) for node, (batches, mark) in enumerate(logs, 1)]
    )
    assert [node for node, _, _ in found.findings[0].holdings] == [1, 2]


def test_below_a_log_start_nothing_is_owed() -> None:
    """Retention and DeleteRecords run on each replica by its own clock; a log start may lie inside a batch."""
    result = compare_replicas(
        PARTITION,
        [
            replica(1, log(5), high_watermark=50),
            replica(2, log(5)[2:], high_watermark=50, log_start=20),
            replica(3, log(5)[2:], high_watermark=50, log_start=25),
        ],
    )
    assert result.equal
    assert result.batch_count == 3


def test_offsets_that_do_not_rise_are_a_finding() -> None:
    """KAFKA-FACTS 10 rule 7: offsets strictly increase along a log."""
    (finding,) = compare(log(3), [*log(3)[:2], log(3)[0]], log(3), high_watermark=30).findings
    assert finding.detail == "offsets of replica 2 go back from 20 to 0"


def test_a_batch_that_ends_before_it_begins_is_a_finding() -> None:
    """Also if every replica holds it."""
    broken = [*log(2), LogBatch(20, 18, 0, b"x")]
    found = compare(broken, broken, high_watermark=20).findings
    assert [finding.detail for finding in found] == [
        f"offsets of replica {node} go back from 20 to 20" for node in (1, 2)
    ]


def test_one_replica_alone_is_equal_to_itself() -> None:
    """Replication factor 1, or none at all."""
    assert compare(log(3)).equal
    assert compare_replicas(PARTITION, []).end_offset == 0


def test_logs_are_streamed() -> None:
    """Data directories are larger than memory: at no time is more than one batch per replica taken ahead."""
    taken = [0, 0]

    def counted(index: int) -> Iterator[LogBatch]:
        for batch in log(50):
            taken[index] += 1
            assert abs(taken[0] - taken[1]) <= 1
            yield batch

    logs = [ReplicaBatches(node=node, high_watermark=500, log_start=0, batches=counted(node)) for node in range(2)]
    assert compare_replicas(PARTITION, logs).equal
    assert taken == [50, 50]


@given(st.integers(1, 8), st.integers(2, 4), st.data())
def test_any_single_byte_on_any_replica_is_found(count: int, nodes: int, data: st.DataObject) -> None:
    """Damage below HW is found at the batch it is in, wherever and on whomever; clean logs are clean."""
    logs = [log(count) for _ in range(nodes)]
    high_watermark = count * BATCH
    assert compare(*logs, high_watermark=high_watermark).equal
    node = data.draw(st.integers(0, nodes - 1))
    at = data.draw(st.integers(0, count - 1))
    position = data.draw(st.integers(0, 39))
    logs[node] = altered(logs[node], at, position)
    (finding,) = compare(*logs, high_watermark=high_watermark).findings
    assert finding.offset == at * BATCH
    assert f"byte {position}" in finding.detail
    if nodes > 2:
        assert finding.detail == f"replica {node + 1} differs at byte {position}"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_batches_may_be_any_buffer(kind: type) -> None:
    """Views of a mapped file are compared without a copy."""
    views = [LogBatch(batch.base_offset, batch.last_offset, 0, kind(batch.data)) for batch in log(3)]
    assert compare(views, log(3), high_watermark=30).equal
