"""Why each value of a step changed: which rule, on which event (DESIGN D9).

Rules for this file: a change is read off the step's two views, its rule off the events of the rules meanwhile;
``RULES`` has each rule as a sentence, under the number that the requirements give it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from minikafka.lab.played import NodeEvent, Step, View
from minikafka.types import NO_OFFSET, Offset

RULES: Final[Mapping[str, str]] = {
    "S2": "a replica's HW never exceeds its log's end",
    "S5": "the leader knows a follower's log end from the offset that it fetches from, and before that not at all",
    "S6": "the leader appends, and works HW out again: the least log end of all replicas that count",
    "S7": "a fetch that tells a new log end lets the leader work HW out again, before it answers",
    "S8": "a follower appends what it is sent; its HW is the leader's, as far as its own log reaches",
    "S9": "a new leader, and one whose ISR has changed, works HW out again",
    "S14": "who has no session, or was not caught up within replica.lag.time.max.ms, leaves the ISR",
    "S15": "who has caught up again is let in; the ISR is what the controller has recorded",
    "S19": "the controller names the leader, and with it the ISR",
    "S21": "each change of leader begins an epoch; who returns cuts its log where its epochs and the leader's part",
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
