"""Anomalies of loops that read, transform and write in transactions, each by its smallest history (KIP-447)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from minikafka.check.transactions import ABORTED, COMMITTED, UNSURE, Process, Written, loop_anomalies
from minikafka.groups.records import CommittedOffset, OffsetRecord, packed
from minikafka.sim.transactors import committed_offsets
from minikafka.types import TopicPartition
from minikafka.wire.batch import RecordBatch, split
from minikafka.wire.markers import EndTransaction, marker_batch
from minikafka.wire.records import Record, build_batch

IN, OUT = TopicPartition("ledger", 0), TopicPartition("outputs", 0)


def first(value: str) -> bool:
    """Inputs of the ledger are transformed, outputs are not."""
    return value.startswith("t")


def source(*values: str) -> Process:
    """The producer of the ledger, one committed transaction for each value."""
    return Process("t1", "t1", transactions=[Written("t1", 1.0, [(IN, value)], COMMITTED) for value in values])


def made(process: str, outcome: str, *pairs: tuple[int, str], place: TopicPartition = IN) -> Written:
    """A loop's transaction that made these values of the inputs at these offsets."""
    outputs = [(OUT, value) for _, value in pairs]
    return Written(process, 2.0, list(outputs), outcome, inputs=[(place, at) for at, _ in pairs], outputs=[*outputs])


def loop(*transactions: Written, name: str = "x1") -> Process:
    return Process(name, name, transactions=list(transactions))


def names(processes: Sequence[Process], inputs: Sequence[str], outputs: Sequence[str], offset: int) -> list[str]:
    """What is found when the ledger and the outputs hold these values, and the group has committed this offset."""
    held = {IN: list(enumerate(inputs)), OUT: list(enumerate(outputs))}
    committed: Mapping[TopicPartition, int] = {IN: offset, OUT: len(outputs)}
    return [name for name, _ in loop_anomalies(processes, held, [IN, OUT], committed, first)]


@pytest.mark.parametrize("outcome", [COMMITTED, UNSURE])
def test_each_input_once_keeps_silent(outcome: str):
    """Also when a commit was of unknown outcome, and after an aborted attempt."""
    aborted = made("x1", ABORTED, (0, "x1.1"))
    assert names([source("t1"), loop(aborted, made("x1", outcome, (0, "x1.2")))], ["t1"], ["x1.2"], 1) == []


@pytest.mark.parametrize(
    ("outputs", "offset", "expected"),
    [
        ([], 1, ["input_lost"]),
        (["x1.1", "x2.1"], 1, ["input_transformed_twice"]),
        (["x1.1"], 0, ["output_without_offset"]),
        ([], 0, ["input_lost"]),
    ],
)
def test_outputs_and_offsets_that_disagree(outputs: list[str], offset: int, expected: list[str]):
    """Offsets without output, two outputs of one input, output without offset; and an input that was left."""
    loops = [loop(made("x1", UNSURE, (0, "x1.1"))), loop(made("x2", UNSURE, (0, "x2.1")), name="x2")]
    assert names([source("t1"), *loops], ["t1"], outputs, offset) == expected


def test_an_output_of_an_aborted_input():
    """G1a: the loop has read what is not committed."""
    ledger = Process("t1", "t1", transactions=[Written("t1", 1.0, [(IN, "t1")], ABORTED)])
    assert names([ledger, loop(made("x1", COMMITTED, (0, "x1.1")))], [], ["x1.1"], 1) == ["output_of_nothing"]


def test_transactions_that_read_each_other_are_a_circle():
    """G1c: each of the two has read what the other one wrote; one of them must have read before the commit."""
    one = made("x1", COMMITTED, (1, "x1.1"), place=OUT)
    two = made("x2", COMMITTED, (0, "x2.1"), place=OUT)
    assert names([loop(one), loop(two, name="x2")], [], ["x1.1", "x2.1"], 0) == ["circular_information_flow"]
    two.inputs = []
    two.outputs = []
    assert names([loop(one), loop(two, name="x2")], [], ["x1.1", "x2.1"], 0) == []


def test_a_transaction_that_reads_what_its_process_writes_later_is_a_circle():
    """G1c with the order of a process: the second transaction begins when the first one has ended."""
    later = made("x1", COMMITTED)
    later.values.append((OUT, "x1.2"))
    process = loop(made("x1", COMMITTED, (1, "x1.1"), place=OUT), later)
    assert names([process], [], ["x1.1", "x1.2"], 0) == ["circular_information_flow"]


def test_a_transaction_without_records_and_one_of_unknown_outcome_may_be_parts_of_a_circle():
    """The one was committed with its offsets alone, the other counts as committed because its record is there."""
    empty = Written("x1", 2.0, [], COMMITTED, inputs=[(OUT, 0)], outputs=[None])
    later = Written("x1", 3.0, [(OUT, "x1.2")], UNSURE)
    assert names([loop(empty, later)], [], ["x1.2"], 0) == ["circular_information_flow"]


def test_a_transaction_that_reads_its_own_record_is_a_circle():
    """Nobody can read with read_committed what is not committed yet."""
    own = made("x1", COMMITTED, (0, "x1.1"), place=OUT)
    assert names([loop(own)], [], ["x1.1"], 0) == ["circular_information_flow"]


def test_what_was_aborted_is_part_of_no_circle():
    """Aborted transactions may have read anything."""
    one = made("x1", ABORTED, (1, "x1.1"), place=OUT)
    two = made("x2", COMMITTED, (0, "x2.1"), place=OUT)
    found = names([loop(one), loop(two, name="x2")], [], ["t0", "x2.1"], 0)
    assert "circular_information_flow" not in found


# ---- the offsets of a group, by the log of its coordinator -----------------------------------------------------------


def offset_batch(at: int, offset: int, producer_id: int = -1) -> RecordBatch:
    """One offset of partition 0, in a transaction or without one."""
    value = CommittedOffset(offset=offset, leader_epoch=-1, metadata="", timestamp_ms=1)
    key, packed_value = packed(OffsetRecord(group="loop", partition=IN, value=value))
    data = build_batch(
        [Record(0, 1, key=key, value=packed_value)],
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        transactional=producer_id >= 0,
    )
    return at_offset(at, data)


def at_offset(at: int, data: bytes) -> RecordBatch:
    (found,) = split(at.to_bytes(8, "big") + data[8:])
    return found


def marker(at: int, producer_id: int, *, is_commit: bool) -> RecordBatch:
    return at_offset(at, marker_batch(EndTransaction(producer_id, 0, is_commit, 1), timestamp_ms=1))


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        ([offset_batch(0, 4)], 4),
        ([offset_batch(0, 4), offset_batch(1, 9, 7)], 4),
        ([offset_batch(0, 4), offset_batch(1, 9, 7), marker(2, 7, is_commit=True)], 9),
        ([offset_batch(0, 4), offset_batch(1, 9, 7), marker(2, 7, is_commit=False)], 4),
        ([offset_batch(0, 9, 7), offset_batch(1, 12), marker(2, 7, is_commit=True)], 12),
    ],
)
def test_offsets_count_from_the_commit_on_and_the_later_record_wins(log: list[RecordBatch], expected: int):
    """KIP-447: pending, committed and aborted offsets; compaction keeps the record that stands later."""
    assert committed_offsets(log, "loop") == {IN: expected}
    assert committed_offsets(log, "another") == {}
