"""Transactions as their producers know them, against what partitions hold and what readers returned (KIP-98).

The anomalies are those of Jepsen's Kafka workload, after Adya: G1a (aborted read), G1b (intermediate read: a part of a
transaction for good), lost and duplicated effects, and the commit of a producer that was fenced.

================================  =====================================================================================
``committed_transaction_lost``    a transaction was committed, and a record of it is not there
``transaction_doubled``           a record was sent once, and is committed twice
``transaction_torn``              some records of a transaction are committed and others are not (G1b)
``aborted_transaction_visible``   a record of an aborted transaction is committed in the log
``zombie_committed``              a transaction is committed that began after a successor was initialized
``transactions_disordered``       transactions of one process stand in another order than they began
``committed_from_nowhere``        a record is committed that nobody has sent
``aborted_read``                  a reader of committed records returned one of an aborted transaction (G1a)
``precommitted_read``             ... or of a transaction whose commit nobody had requested by then
``read_twice``                    a reader returned an offset twice
``read_committed_differs``        a reader returned anything else than what is committed, or passed over a record
================================  =====================================================================================

A partition commits each transaction by itself, so a part of one may be visible for a while: that is no anomaly until
the end. Write cycles (G0) are allowed.

Rule for this file: values are unique; what the partitions hold is read without the index of aborted transactions and
the last stable offset, so that a bug in those does not hide itself.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from minikafka.types import Offset, TopicPartition
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
    """Of a loop (``loops.py``): the records whose offsets are committed with it."""
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
            if each.epoch > process.epoch and written.begun_s > each.initialized_s:
                yield "zombie_committed", f"{what}, begun after {each.name} was initialized"


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
