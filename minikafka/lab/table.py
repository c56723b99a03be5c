"""The articles' tables: a step, what happened, and for each replica that changed LEO, remote LEO, HW, ISR and epoch,
old → new; and why each value changed.

::

    step  what happened                    replica    LEO  remote LEO  HW   ISR  epoch
    1     produce m0 to A, acks=1          A leader   0→1  B:?         0    A,B  0
            A: ...why

``why=True`` adds a column with the rule that each change follows, and the rules' sentences below the table.

A change is read off the step's two views, its rule off the events of the rules meanwhile (DESIGN D9). ``RULES`` has
each rule as a sentence, under the number that the requirements give it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Final

from minikafka.lab.played import NodeEvent, Run, Step, View
from minikafka.types import NO_OFFSET, Offset

RULES: Final[Mapping[str, str]] = {
    "S2": "a replica's HW never exceeds its log's end",
    "S5": "the leader knows a follower's log end from the offset that it fetches from, and before that not at all",
    "S6": "the leader appends, and works HW out again: the least log end in the ISR, and of those about to join it",
    "S7": "a fetch that reports a new log end lets the leader work HW out again, before it answers",
    "S8": "a follower appends what it is sent; its HW is the leader's, as far as its own log reaches",
    "S9": "a new leader, and one whose ISR has changed, works HW out again",
    "S14": "a replica without a session, or not caught up within replica.lag.time.max.ms, leaves the ISR",
    "S15": "a replica that has caught up again is let in; the ISR is what the controller has recorded",
    "S19": "the controller names the leader, and with it the ISR",
    "S21": "a new leader begins an epoch; a returning replica cuts its log where its epochs and the leader's part",
    "HW-cut": "a returning replica cuts its log to its own HW (Kafka before KIP-101)",
    "range": "a follower that asks beyond its leader's log cuts its own to the leader's end",
    "disk": "a process starts with what its disk holds: log, and HW as last checkpointed",
    "process": "a process has started or ended",
    "network": "a network cable was pulled or put back",
}

LABELS: Final[Mapping[str, str]] = {
    "role": "role",
    "leo": "LEO",
    "remote_leo": "remote LEO",
    "high_watermark": "HW",
    "isr": "ISR",
    "isr_asked": "asks",
    "leader_epoch": "epoch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One value of one replica, old and new."""

    replica: str
    field: str
    """A key of :data:`LABELS`."""
    of: str | None = None
    """Of a remote LEO: whose."""
    old: str | int | None
    new: str | int | None
    rule: str
    """A key of :data:`RULES`."""
    event: str | None
    """The kind of event that reported it, if one did."""


def changes_of(step: Step, truncation: str) -> list[Change]:
    """All changes of a step; of the first none, everything is new in it."""
    return [
        change
        for name in step.changed()
        if name in step.before
        for change in _Replica(step, name, truncation).changes()
    ]


class _Replica:
    """One replica in one step."""

    def __init__(self, step: Step, name: str, truncation: str) -> None:
        self._name = name
        self._truncation = truncation
        self._before, self._after = step.before[name], step.after[name]
        self._kinds = [event.kind for event in step.events if event.replica == name]
        self._events: tuple[NodeEvent, ...] = step.events
        self._started = self._before.role == "down"

    def changes(self) -> Iterator[Change]:
        before, after = self._before, self._after
        if before.role != after.role:
            rule, event = self._role()
            yield self._change("role", before.role, after.role, rule, event)
        if after.role == "down":
            return
        if before.end_offset != after.end_offset:
            rule, event = self._log_end()
            yield self._change("leo", before.end_offset, after.end_offset, rule, event)
        yield from self._remotes(before, after)
        if before.high_watermark != after.high_watermark:
            rule, event = self._high_watermark()
            yield self._change("high_watermark", before.high_watermark, after.high_watermark, rule, event)
        if after.isr and before.isr != after.isr:
            rule, event = self._isr()
            yield self._change("isr", before.isr or None, after.isr, rule, event)
        if after.isr and before.asked != after.asked and (after.asked or before.isr == after.isr):
            rule = "S14" if (after.asked or before.asked).count(",") < after.isr.count(",") else "S15"
            old, new = before.asked or None, after.asked or None
            yield self._change("isr_asked", old, new, rule, self._first("isr_propos"))
        if after.epoch is not None and before.epoch != after.epoch:
            yield self._change("leader_epoch", before.epoch, after.epoch, "S21", self._first("became_"))

    def _change(self, field: str, old: str | int | None, new: str | int | None, rule: str, event: str | None) -> Change:
        return Change(replica=self._name, field=field, old=old, new=new, rule=rule, event=event)

    def _first(self, *starts: str) -> str | None:
        return next((kind for kind in self._kinds if kind.startswith(starts)), None)

    def _role(self) -> tuple[str, str | None]:
        if "down" in (self._before.role, self._after.role):
            return "process", self._first("log_opened", "became_")
        if self._before.role.split(",")[0] == self._after.role.split(",")[0]:
            return "network", None
        return "S19", self._first("became_")

    def _cut(self) -> str:
        if "fetch_refused" in self._kinds:
            return "range"
        return "HW-cut" if self._truncation == "high-watermark" else "S21"

    def _log_end(self) -> tuple[str, str | None]:
        cut = self._first("tail_truncated", "log_restarted")
        if self._started:
            return (self._cut() if cut else "disk"), cut
        appended = self._first("batch_appended")
        if appended and (self._after.end_offset or 0) >= (self._before.end_offset or 0):
            return ("S6" if self._after.role.startswith("leader") else "S8"), appended
        return self._cut(), cut

    def _remotes(self, before: View, after: View) -> Iterator[Change]:
        old: dict[str, Offset] = dict(before.remotes)
        for name, end in after.remotes:
            if old.get(name) != end:
                event = "follower_fetched" if "follower_fetched" in self._kinds else self._first("became_leader")
                yield Change(
                    replica=self._name,
                    field="remote_leo",
                    of=name,
                    old=_known(old.get(name)),
                    new=_known(end),
                    rule="S5",
                    event=event,
                )

    def _high_watermark(self) -> tuple[str, str | None]:
        advanced = self._first("hw_advanced")
        if advanced:
            if self._first("became_leader", "isr_") not in {None, "isr_proposed"}:
                return "S9", advanced
            return ("S6" if "batch_appended" in self._kinds else "S7"), advanced
        if self._started:
            return "disk", None
        back = (self._after.high_watermark or 0) < (self._before.high_watermark or 0)
        cut = back and self._first("tail_truncated", "log_restarted")
        return ("S2" if cut else "S8"), self._first("follower_hw_changed")

    def _isr(self) -> tuple[str, str | None]:
        event = self._first("isr_shrunk", "isr_expanded", "isr_changed")
        if event is None:
            return "S19", self._first("became_leader")
        return ("S14" if event == "isr_shrunk" else "S15"), event


def _known(end: Offset | None) -> int | None:
    return None if end is None or end == NO_OFFSET else end


def reasons(changes: list[Change], replica: str) -> str:
    """One replica's changes with their rules, short: ``LEO S6, HW S7``."""
    rules = dict.fromkeys(
        f"{LABELS[each.field]} {each.rule}" for each in changes if each.replica == replica and each.field != "role"
    )
    if not rules:
        rules = dict.fromkeys(each.rule for each in changes if each.replica == replica)
    return ", ".join(rules)


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
