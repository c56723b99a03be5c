"""The same steps as text: what happened, why, and where the replicas that changed stand after it.

::

    step  time      who       what happened                    replica   role    epoch  LEO  HW  ISR    remote LEO
    7     1.204 s   broker 1  appends offset 0 in epoch 0      broker 1  leader  0      1    0   1,2,3  2:0 3:0
"""

from __future__ import annotations

from collections.abc import Iterator

from minikafka.types import NO_OFFSET
from minikafka.ui.page import Replay, Step
from minikafka.ui.sentences import called
from minikafka.ui.states import Replica

HEAD = ("step", "time", "who", "what happened", "replica", "role", "epoch", "LEO", "HW", "ISR", "remote LEO", "process")

# A longer sentence pushes no column aside.
SENTENCE_WIDTH_MAX = 76


def values(replica: Replica) -> tuple[str, ...]:
    """Role, epoch, LEO, HW, ISR, remote LEO, process, as the page's table shows them."""
    asked = f" asks {_nodes(replica.asked)}" if replica.asked is not None else ""
    return (
        replica.role or "-",
        _known(replica.epoch),
        str(replica.leo),
        _known(replica.hw),
        _nodes(replica.isr) + asked,
        " ".join(f"{node}:{'?' if end == NO_OFFSET else end}" for node, end in replica.remotes),
        replica.process,
    )


def rendered(replay: Replay) -> str:
    """All steps, and what is left out."""
    rows = [HEAD, *(row for step in replay.steps for row in _rows(step))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    widths[3] = min(widths[3], SENTENCE_WIDTH_MAX)
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", *replay.notes]) + "\n"


def _rows(step: Step) -> Iterator[tuple[str, ...]]:
    entry, words = step.entry, step.sentence
    lead = (str(step.number), f"{entry.at_s:.3f} s", called(entry.node) if entry.node else "the run", words.what)
    changed = [
        (f"broker {node}", *(values(replica) if replica is not None else ("gone", "", "", "", "", "", "")))
        for node, replica in step.changed.items()
    ] or [("",) * 8]
    for cells in changed:
        yield (*lead, *cells)
        lead = ("",) * 4
    if words.why:
        yield ("", "", "", f"  because: {words.why}", *("",) * 8)


def _known(value: int | None) -> str:
    return "?" if value is None else str(value)


def _nodes(nodes: tuple[int, ...]) -> str:
    return ",".join(map(str, nodes))
