"""Loops that read, transform and write in one transaction (KIP-447): outputs against inputs and committed offsets.

================================  =====================================================================================
``input_lost``                    the group has committed past an input from which no output was made
``input_transformed_twice``       two committed outputs were made from one input
``output_without_offset``         an output is committed, and the offset of its input is not
``output_of_nothing``             an output was made from a record that is not committed (an aborted read)
``circular_information_flow``     committed transactions read each other's records in a circle (Adya's G1c)
``group_offsets_differ``          the coordinator serves another offset than its log says
================================  =====================================================================================

The group's offsets are read from the log of its coordinator, by the markers of transactions, so that a bug of the
coordinator does not hide itself. Inputs must be final: no input is left that no loop has read.

Rule for this file: no I/O; a transaction counts as committed if one of its records is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

from minikafka.check.transactions import COMMITTED, Process, Rows, Written
from minikafka.types import NO_OFFSET, Offset, TopicPartition

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
