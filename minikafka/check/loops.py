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
    writers = {value: each for process in processes for each in process.transactions for value in each.values}
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
    yield from _circles(processes, writers, rows_of, visible)


def _circles(
    processes: Sequence[Process],
    writers: Mapping[tuple[TopicPartition, str], Written],
    rows: Mapping[Place, str],
    visible: set[tuple[TopicPartition, str]],
) -> Iterator[tuple[str, str]]:
    """Edges lead from a transaction to those that it follows: the writers of what it read, the last of its process."""
    before: dict[int, list[Written]] = {}
    nodes: dict[int, Written] = {}
    for process in processes:
        last: Written | None = None
        for written in process.transactions:
            if written.outcome != COMMITTED and not any(each in visible for each in written.values):
                continue
            nodes[id(written)] = written
            found = before.setdefault(id(written), [] if last is None else [last])
            for place in written.inputs:
                writer = writers.get((place[0], rows.get(place, "")))
                if writer is not None and writer is not written:
                    found.append(writer)
                elif writer is written:
                    yield "circular_information_flow", f"{_named(written)} has read its own record at {_shown(place)}"
            last = written
    done: set[int] = set()
    for first in nodes.values():
        circle = _circle(first, before, done)
        if circle:
            yield "circular_information_flow", " follows ".join(map(_named, (*circle, circle[0])))


def _circle(first: Written, before: Mapping[int, Sequence[Written]], done: set[int]) -> list[Written]:
    """A circle that can be reached from ``first``; without recursion, for chains are as long as a run."""
    path: list[Written] = []
    on_path: dict[int, int] = {}
    stack: list[tuple[Written, bool]] = [(first, False)]
    while stack:
        each, is_left = stack.pop()
        if is_left:
            on_path.pop(id(path.pop()))
            done.add(id(each))
        elif id(each) in on_path:
            done.update(on_path)
            return path[on_path[id(each)] :]
        elif id(each) not in done:
            on_path[id(each)] = len(path)
            path.append(each)
            stack.append((each, True))
            stack += [(other, False) for other in before.get(id(each), ())]
    return []


def _shown(place: Place) -> str:
    return f"{place[0]}@{place[1]}"


def _named(written: Written) -> str:
    return f"{written.process}'s transaction of {written.begun_s:.3f}"
