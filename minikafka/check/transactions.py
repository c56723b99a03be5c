"""Transactions as their producers know them, against what partitions hold and what readers returned (KIP-98).

The anomalies (:func:`anomalies`) are those of Jepsen's Kafka workload, after Adya: G1a (aborted read), G1b
(intermediate read: a part of a transaction for good), lost and duplicated effects, and the commit of a producer that
was fenced.

================================  =====================================================================================
``committed_transaction_lost``    a transaction was committed, and a record of it is not there
``transaction_doubled``           a record was sent once, and is committed twice
``transaction_torn``              some records of a transaction are committed and others are not (G1b)
``aborted_transaction_visible``   a record of an aborted transaction is committed in the log
``zombie_committed``              a transaction is committed whose commit was first requested after a successor was
                                  initialized, which aborts what is open
``transactions_disordered``       transactions of one process stand in another order than they began
``committed_from_nowhere``        a record is committed that nobody has sent
``aborted_read``                  a reader of committed records returned one of an aborted transaction (G1a)
``precommitted_read``             ... or of a transaction whose commit nobody had requested by then
``read_twice``                    a reader returned an offset twice
``read_committed_differs``        a reader returned anything else than what is committed, or passed over a record
================================  =====================================================================================

A partition commits each transaction by itself, so a part of one may be visible for a while: that is no anomaly until
the end. Write cycles (G0) are allowed.

Loops that read, transform and write in one transaction (KIP-447) are judged by :func:`loop_anomalies`: outputs against
inputs and committed offsets.

================================  =====================================================================================
``input_lost``                    the group has committed past an input from which no output was made
``input_transformed_twice``       two committed outputs were made from one input
``output_without_offset``         an output is committed, and the offset of its input is not
``output_of_nothing``             an output was made from a record that is not committed (an aborted read)
``circular_information_flow``     committed transactions read each other's records in a circle (Adya's G1c)
``group_offsets_differ``          the coordinator serves another offset than its log says
================================  =====================================================================================

Inputs must be final: no input is left that no loop has read.

Rules for this file:

1. No I/O. Values are unique. A transaction of a loop counts as committed if one of its records is.
2. What the partitions hold is read without the index of aborted transactions and the last stable offset, and a group's
   offsets are read from the log of its coordinator by the markers of transactions, so that a bug in those does not hide
   itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple, TypeAlias

from minikafka.types import NO_OFFSET, Offset, TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import marker_of
from minikafka.wire.records import decode_batch

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
UNSURE: Final = "unsure"


@dataclass(slots=True)
class Written:
    """One transaction, as its producer knows it."""

    process: str
    begun_s: float
    values: list[tuple[TopicPartition, str]] = field(default_factory=list)
    """What was handed to the producer."""
    outcome: str = UNSURE
    commit_s: float = math.inf
    """When its commit was first requested."""
    inputs: list[tuple[TopicPartition, Offset]] = field(default_factory=list)
    """Of a loop (:func:`loop_anomalies`): the records whose offsets are committed with it."""
    outputs: list[tuple[TopicPartition, str] | None] = field(default_factory=list)
    """For each input what was made of it, one of ``values``; None: nothing."""


@dataclass(slots=True)
class Process:
    """One producer of a transactional id."""

    name: str
    transactional_id: str
    initialized_s: float = math.inf
    epoch: int = -1
    """Of its producer when it was initialized: processes fence each other in this order."""
    transactions: list[Written] = field(default_factory=list)


class Read(NamedTuple):
    """A record that a reader with ``read_committed`` returned."""

    offset: Offset
    value: str
    at_s: float


Rows = Mapping[TopicPartition, Sequence[tuple[Offset, str]]]
"""(offset, value) of what is committed, by offset."""


def anomalies(
    processes: Sequence[Process], held: Rows, reads: Mapping[TopicPartition, Sequence[Read]]
) -> Iterator[tuple[str, str]]:
    """Yield the name and a sentence for each broken promise.

    Args:
        processes: All that ever wrote to the partitions.
        held: What the partitions hold at the end (:func:`committed_rows`).
        reads: Everything that one reader returned by the end, in its order; empty without a reader.
    """
    counts = Counter((name, value) for name, rows in held.items() for _, value in rows)
    known: dict[tuple[TopicPartition, str], Written] = {}
    for process in processes:
        rivals = [each for each in processes if each.transactional_id == process.transactional_id]
        for written in process.transactions:
            known.update(dict.fromkeys(written.values, written))
            yield from _of_one(process, rivals, written, [counts[value] for value in written.values])
    for name, rows in held.items():
        for offset, value in rows:
            if (name, value) not in known:
                yield "committed_from_nowhere", f"{name}@{offset}: nobody has sent {value}"
        yield from _of_the_order(name, [known[name, value] for _, value in rows if (name, value) in known])
    for name, seen in reads.items():
        yield from _of_a_reader(name, seen, known)
        returned = [(each.offset, each.value) for each in seen]
        if returned != list(held[name]):
            yield "read_committed_differs", _first_difference(name, returned, held[name])


def _of_one(
    process: Process, rivals: Iterable[Process], written: Written, counts: Sequence[int]
) -> Iterator[tuple[str, str]]:
    what = f"a transaction of {process.name}, {written.outcome}: {written.values[:1]} and more, found {list(counts)}"
    if any(count > 1 for count in counts):
        yield "transaction_doubled", what
    elif written.outcome == COMMITTED and not all(counts):
        yield "committed_transaction_lost", what
    elif written.outcome == ABORTED and any(counts):
        yield "aborted_transaction_visible", what
    elif any(counts) and not all(counts):
        yield "transaction_torn", what
    if written.outcome == COMMITTED or any(counts):
        for each in rivals:
            if each.epoch > process.epoch and written.commit_s > each.initialized_s:
                yield "zombie_committed", f"{what}, its commit requested after {each.name} was initialized"


def _of_the_order(name: TopicPartition, found: Iterable[Written]) -> Iterator[tuple[str, str]]:
    last: dict[str, float] = {}
    for written in found:
        if written.begun_s < last.get(written.process, 0.0):
            yield "transactions_disordered", f"{name}: {written.process} began {written.values[:1]} earlier"
        last[written.process] = written.begun_s


def _of_a_reader(
    name: TopicPartition, seen: Iterable[Read], known: Mapping[tuple[TopicPartition, str], Written]
) -> Iterator[tuple[str, str]]:
    offsets: set[Offset] = set()
    for each in seen:
        what = f"{name}@{each.offset}: a reader returned {each.value} at {each.at_s:.3f}"
        written = known.get((name, each.value))
        if each.offset in offsets:
            yield "read_twice", what
        offsets.add(each.offset)
        if written is not None and written.outcome == ABORTED:
            yield "aborted_read", f"{what}; {written.process} aborted its transaction"
        elif written is not None and each.at_s < written.commit_s:
            yield "precommitted_read", f"{what}; {written.process} requested the commit at {written.commit_s:.3f}"


def committed_rows(batches: Iterable[RecordBatch]) -> Iterator[tuple[Offset, str]]:
    """Return (offset, value) of every record whose transaction is committed in these batches, by offset."""
    open_rows: dict[int, list[tuple[Offset, str]]] = {}
    rows: list[tuple[Offset, str]] = []
    for batch in batches:
        if batch.is_control:
            marker = marker_of(batch)
            ended = open_rows.pop(batch.producer_id, [])
            if marker is not None and marker.is_commit:
                rows += ended
            continue
        found = [(record.offset, (record.value or b"").decode()) for record in decode_batch(batch)]
        if batch.is_transactional:
            open_rows.setdefault(batch.producer_id, []).extend(found)
        else:
            rows += found
    return iter(sorted(rows))


def _first_difference(
    name: TopicPartition, seen: Sequence[tuple[Offset, str]], rows: Sequence[tuple[Offset, str]]
) -> str:
    for number in range(max(len(seen), len(rows))):
        one = seen[number] if number < len(seen) else None
        other = rows[number] if number < len(rows) else None
        if one != other:
            return f"{name}: the reader's record number {number} is {one}, committed is {other}"
    return f"{name}: equal"


Place: TypeAlias = tuple[TopicPartition, Offset]
"""Where a record stands."""


def loop_anomalies(
    processes: Sequence[Process],
    held: Rows,
    inputs: Iterable[TopicPartition],
    committed: Mapping[TopicPartition, Offset],
    is_transformed: Callable[[str], bool],
) -> Iterator[tuple[str, str]]:
    """Yield the name and a sentence for each broken promise.

    Args:
        processes: All that ever wrote to the partitions; those of loops name the inputs of their transactions.
        held: What the partitions hold at the end, inputs and outputs.
        inputs: The partitions that the group reads.
        committed: The group's offsets at the end, by the log of its coordinator.
        is_transformed: Whether a loop writes an output for an input with this value.
    """
    visible = {(name, value) for name, rows in held.items() for _, value in rows}
    made: dict[Place, list[str]] = {}
    for written in (each for process in processes for each in process.transactions):
        for source, output in zip(written.inputs, written.outputs, strict=True):
            if output is not None and output in visible:
                made.setdefault(source, []).append(output[1])
    rows_of = {(name, offset): value for name in inputs for offset, value in held[name]}
    for place, outputs in made.items():
        if place not in rows_of:
            yield "output_of_nothing", f"{_shown(place)} is not committed, and became {outputs}"
    for place, value in rows_of.items():
        name, offset = place
        found = made.get(place, [])
        is_past = offset < committed.get(name, NO_OFFSET)
        what = f"{_shown(place)} ({value}) became {found or 'nothing'}, committed is {committed.get(name, NO_OFFSET)}"
        if len(found) > 1:
            yield "input_transformed_twice", what
        elif found and not is_past:
            yield "output_without_offset", what
        elif not found and is_transformed(value):
            yield "input_lost", what
    yield from _circles(processes, rows_of, visible)


def _circles(
    processes: Sequence[Process], rows: Mapping[Place, str], visible: set[tuple[TopicPartition, str]]
) -> Iterator[tuple[str, str]]:
    """A transaction follows those that wrote what it read, and the one before it of its process."""
    transactions = [each for process in processes for each in process.transactions]
    writers = {value: number for number, each in enumerate(transactions) for value in each.values}
    order = TopologicalSorter[int]()
    first = 0
    for process in processes:
        last: int | None = None
        for number, written in enumerate(process.transactions, first):
            if written.outcome != COMMITTED and not any(each in visible for each in written.values):
                continue
            if last is not None:
                order.add(number, last)
            last = number
            read = ((place[0], rows.get(place, "")) for place in written.inputs)
            order.add(number, *(writers[value] for value in read if value in writers))
        first += len(process.transactions)
    try:
        order.prepare()
    except CycleError as error:
        circle = (_named(transactions[each]) for each in reversed(error.args[1]))
        yield "circular_information_flow", " follows ".join(circle)


def _shown(place: Place) -> str:
    return f"{place[0]}@{place[1]}"


def _named(written: Written) -> str:
    return f"{written.process}'s transaction of {written.begun_s:.3f}"
