"""The articles' tables: a step, what happened, and for each replica that changed LEO, remote LEO, HW, ISR and epoch,
old → new.

::

    step  what happened                    replica    LEO  remote LEO  HW   ISR  epoch
    1     produce m0 to A, acks=1          A leader   0→1  B:?         0    A,B  0
            A: ...why

``why=True`` adds a column with the rule that each change follows, and the rules' sentences below the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from minikafka.lab.causes import RULES, changes_of, reasons
from minikafka.lab.played import Run, Step, View
from minikafka.types import NO_OFFSET, Offset

HEAD = ("step", "what happened", "replica", "LEO", "remote LEO", "HW", "ISR", "epoch")
WHY = "why"
ABSENT = View(role="")

# Longer sentences stand below the replicas' lines, not beside them.
SENTENCE_LENGTH_MAX = 48


def rendered(run: Run, *, why: bool = False) -> str:
    """The whole run as text, with the verdict."""
    lines = aligned(rows(run, why=why), free=1)
    legend = ["", *(f"{name:7} {text}" for name, text in rules_of(run))] if why else []
    return "\n".join([*lines, *verdict(run), *legend]) + "\n"


def aligned(rows: Sequence[tuple[str, ...]], *, free: int) -> list[str]:
    """Rows as lines, in columns. A cell of the column ``free`` with nothing behind it may be longer than the column."""
    return ["  ".join(cells).rstrip() for cells in padded(rows, free=free)]


def padded(rows: Sequence[tuple[str, ...]], *, free: int) -> list[list[str]]:
    """The cells of :func:`aligned`, each as wide as its column."""
    columns = range(len(rows[0]))
    widths = [max(len(row[each]) for row in rows if each != free or any(row[each + 1 :])) for each in columns]
    return [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]


def stacked(rows: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """The same for narrow screens: what happened has lines of its own, above the replica that stood beside it."""
    (step, _, *names), *others = rows
    yield (step, *names)
    for number, sentence, *values in others:
        if sentence:
            yield (number, sentence, *[""] * (len(values) - 1))
        if any(values):
            yield ("" if sentence else number, *values)


def head(*, why: bool = False) -> tuple[str, ...]:
    """The names of the columns."""
    return (*HEAD, WHY) if why else HEAD


def truncation_of(run: Run) -> str:
    """By which rule a returning replica cuts its log."""
    return run.options.get("truncation", "leader-epoch")


def verdict(run: Run) -> Iterator[str]:
    """What is lost and what differs at the end, a sentence each."""
    if not run.leader:
        yield "nobody leads: nothing can be read"
    else:
        yield from ("lost: " + each for each in [str(lost) for lost in run.lost] or ["nothing"])
    yield from ("diverged: " + each for each in [str(difference) for difference in run.diverged] or ["nothing"])


def rules_of(run: Run) -> list[tuple[str, str]]:
    """The rules that the run's changes follow, as (name, sentence)."""
    used = {change.rule for step in run.steps for change in changes_of(step, truncation_of(run))}
    return [(name, text) for name, text in RULES.items() if name in used]


def rows(run: Run, *, why: bool = False) -> list[tuple[str, ...]]:
    """The names of the columns, and the lines of all steps."""
    return [head(why=why), *rows_of(run, why=why)]


def rows_of(run: Run, *, why: bool = False) -> Iterator[tuple[str, ...]]:
    """The lines of all steps, one cell for each column of :func:`head`."""
    for step in run.steps:
        changes = changes_of(step, truncation_of(run)) if why else []
        for row in _rows(step):
            name = row[2].split(" ")[0]
            yield (*row, reasons(changes, name) if name else "") if why else row


def _rows(step: Step) -> Iterator[tuple[str, ...]]:
    lines = [f"  {each}" for each in step.lines]
    replicas = [cells(name, step.before.get(name, ABSENT), step.after[name]) for name in step.changed()]
    beside = lines[: max(0, len(replicas) - 1)]
    if any(len(each) > SENTENCE_LENGTH_MAX for each in beside):
        lines = [*[""] * len(beside), *lines]
    number = str(step.number)
    for sentence, values in zip_longest([step.what, *lines], replicas):
        yield (number, sentence or "", *(values or ("",) * (len(HEAD) - 2)))
        number = ""


def cells(name: str, before: View, after: View) -> tuple[str, ...]:
    """One replica: name and role, LEO, remote LEO, HW, ISR, epoch."""
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
