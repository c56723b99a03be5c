"""The articles' tables: a step, what happened, and for each replica that changed LEO, remote LEO, HW, ISR and epoch,
old → new.

::

    step  what happened                    replica    LEO  remote LEO  HW   ISR  epoch
    1     produce m0 to A, acks=1          A leader   0→1  B:?         0    A,B  0
            A: ...why
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from minikafka.lab.player import Run, Step, View
from minikafka.types import NO_OFFSET, Offset

HEAD = ("step", "what happened", "replica", "LEO", "remote LEO", "HW", "ISR", "epoch")
ABSENT = View(role="")

# Longer sentences stand below the replicas' lines, not beside them.
SENTENCE_LENGTH_MAX = 48


def rendered(run: Run) -> str:
    """The whole run as text, with the verdict."""
    rows = [HEAD, *(row for step in run.steps for row in _rows(step))]
    widths = [max(len(row[column]) for row in rows if column != 1 or any(row[2:])) for column in range(len(HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *_verdict(run)]) + "\n"


def _verdict(run: Run) -> Iterator[str]:
    if not run.leader:
        yield "nobody leads: nothing can be read"
    else:
        for each in run.lost or ["nothing"]:
            yield f"lost: {each}"
    for each in run.diverged or ["nothing"]:
        yield f"diverged: {each}"


def _rows(step: Step) -> Iterator[tuple[str, ...]]:
    told = [f"  {each}" for each in step.told]
    replicas = [_cells(name, step.before.get(name, ABSENT), step.after[name]) for name in step.changed()]
    beside = told[: max(0, len(replicas) - 1)]
    if any(len(each) > SENTENCE_LENGTH_MAX for each in beside):
        told = [*[""] * len(beside), *told]
    number = str(step.number)
    for sentence, cells in zip_longest([step.what, *told], replicas):
        yield (number, sentence or "", *(cells or ("",) * (len(HEAD) - 2)))
        number = ""


def _cells(name: str, before: View, after: View) -> tuple[str, ...]:
    role = after.role if before.role in {"", after.role} else f"{before.role}→{after.role}"
    return (
        f"{name} {role}",
        _change(before.end_offset, after.end_offset),
        _remotes(before, after),
        _change(before.high_watermark, after.high_watermark),
        _isr(before, after),
        _change(before.epoch, after.epoch),
    )


def _change(old: Offset | None, new: Offset | None) -> str:
    if new is None:
        return ""
    return str(new) if old in {None, new} else f"{old}→{new}"


def _remotes(before: View, after: View) -> str:
    old = dict(before.remotes)
    return " ".join(f"{name}:{_remote(old.get(name), end)}" for name, end in after.remotes)


def _remote(old: Offset | None, new: Offset) -> str:
    """``?`` is a remote LEO that the leader does not know yet."""
    texts = ["?" if end == NO_OFFSET else str(end) for end in (old, new) if end is not None]
    return texts[-1] if texts[0] == texts[-1] else "→".join(texts)


def _isr(before: View, after: View) -> str:
    change = after.isr if before.isr in {"", after.isr} or not after.isr else f"{before.isr}→{after.isr}"
    return f"{change} (asks {after.asked})" if after.asked else change
