"""The replay of one partition's run: a page, which is one self-contained HTML file that says what it omits; and text.

The page holds the replicas' states before its window, then for each step what it changed: it applies changes and folds
nothing itself. Rules for this file: no network, no build; everything is inlined; the page says what it omits.

The text has the same steps::

    step  time      who       what happened                    replica   role    epoch  LEO  HW  ISR    remote LEO
    7     1.204 s   broker 1  appends offset 0 in epoch 0      broker 1  leader  0      1    0   1,2,3  2:0 3:0
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, Final

from minikafka.types import NO_OFFSET, NodeId
from minikafka.ui.journal import Entry, Journal
from minikafka.ui.sentences import WITHOUT_PARTITION, Sentence, called, sentence_of
from minikafka.ui.states import SAMPLED, Decided, Replica, Run, Story
from minikafka.world.events import plain

# An HTML file that mail, chat and a browser take without complaint; the steps get what style and script leave.
PAGE_SIZE_MAX: Final = 2_000_000
STEPS_SIZE_MAX: Final = 1_850_000

# Long tracebacks and addresses do not make a step clearer.
FACT_LENGTH_MAX: Final = 300

REPLICA_FIELDS: Final = tuple(field.name for field in fields(Replica) if field.name != "node")


class NothingToShow(ValueError):
    """The journal has nothing of what was asked for; the message says what it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One event as the page shows it."""

    number: int
    """From 1 within the window."""
    entry: Entry
    sentence: Sentence
    changed: Mapping[NodeId, Replica | None]
    """The replicas that it changed, as they are after it; None: gone."""
    decided: Decided | None
    """What the controller has recorded, if that changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """All that the page shows."""

    journal: Journal
    partition: str
    lanes: tuple[NodeId, ...]
    before: Mapping[NodeId, Replica]
    """Where every replica stood before the first step."""
    decided_before: Decided
    steps: Sequence[Step]
    from_s: float
    to_s: float
    notes: tuple[str, ...]
    """What is left out and what was never recorded, in sentences."""


def partitions_of(journal: Journal) -> Counter[str]:
    """Partition -> how many events speak of it; the metadata log is not among them."""
    counts: Counter[str] = Counter()
    for entry in journal.entries:
        name = entry.facts.get("partition")
        if isinstance(name, str) and name and not name.startswith("__cluster_metadata"):
            counts[name] += 1
    return counts


def replay_of(
    journal: Journal, *, partition: str | None = None, from_s: float | None = None, to_s: float | None = None
) -> Replay:
    """The steps of one partition (default: the one with the most events) between two times. Raises NothingToShow."""
    partitions = partitions_of(journal)
    if not partitions:
        raise NothingToShow("the journal has no events of any partition")
    name = partition or min(partitions, key=lambda each: (-partitions[each], each))
    if name not in partitions:
        raise NothingToShow(f"the journal has nothing of {name}, but of {', '.join(sorted(partitions))}")
    return _Builder(journal, name, from_s, to_s).build(sorted(partitions))


class _Builder:
    """Walks the journal once."""

    def __init__(self, journal: Journal, partition: str, from_s: float | None, to_s: float | None) -> None:
        self.journal = journal
        self.partition = partition
        self.from_s = from_s if from_s is not None else 0.0
        self.to_s = to_s if to_s is not None else float("inf")
        self.story = Story(partition)
        self.steps: list[Step] = []
        self.omitted: Counter[str] = Counter()
        self.last_said: dict[tuple[object, ...], object] = {}

    def build(self, partitions: Sequence[str]) -> Replay:
        before: dict[NodeId, Replica] | None = None
        decided_before = self.story.decided
        lanes: set[NodeId] = set()
        for entry in self.journal.entries:
            if before is None and entry.at_s >= self.from_s:
                before, decided_before = dict(self.story.replicas), self.story.decided
            decided = self.story.decided
            changed = self.story.apply(entry)
            lanes.update(self.story.replicas)
            if entry.at_s < self.from_s:
                self.omitted["earlier"] += 1
            elif entry.at_s > self.to_s:
                self.omitted["later"] += 1
            elif changed or self._is_worth_a_step(entry):
                self._add(entry, changed, decided)
        if not self.steps:
            raise NothingToShow(f"nothing happened to {self.partition} between these times")
        lanes.update(self.story.decided.replicas)
        shown = self._that_fit(before or {}, decided_before)
        return Replay(
            journal=self.journal,
            partition=self.partition,
            lanes=tuple(sorted(lanes)),
            before=shown[0],
            decided_before=shown[1],
            steps=shown[2],
            from_s=shown[2][0].entry.at_s,
            to_s=shown[2][-1].entry.at_s,
            notes=tuple(self._notes(partitions)),
        )

    def _add(self, entry: Entry, changed: Sequence[NodeId], decided: Decided) -> None:
        story = self.story
        self.steps.append(
            Step(
                number=len(self.steps) + 1,
                entry=entry,
                sentence=sentence_of(entry, self.partition, draws_effects=not self.journal.has_messages),
                changed={node: story.replicas.get(node) for node in changed},
                decided=story.decided if story.decided != decided else None,
            )
        )

    def _is_worth_a_step(self, entry: Entry) -> bool:
        if entry.kind == "message_sent":
            part = _mapping(entry.facts["parts"]).get(self.partition)
            if part is None:
                return False
            if self._is_quiet(entry, _mapping(part)):
                self.omitted["quiet"] += 1
                return False
            return True
        name = entry.facts.get("partition")
        if name == self.partition:
            return True
        known = entry.kind in WITHOUT_PARTITION and not name and (entry.broker is not None or entry.kind == "violation")
        self.omitted["others"] += not known
        return known

    def _is_quiet(self, entry: Entry, part: Mapping[str, object]) -> bool:
        """A fetch that repeats the last one, or an answer without records that says the same as the last one."""
        facts = entry.facts
        if facts["api"] != "Fetch" or facts["fate"] != "sent" or "error" in part or "diverging" in part:
            return False
        key = (facts["source"], facts["target"], facts["what"])
        is_news = self.last_said.get(key) != part or "end" in part
        self.last_said[key] = part
        return not is_news

    def _that_fit(
        self, before: dict[NodeId, Replica], decided: Decided
    ) -> tuple[Mapping[NodeId, Replica], Decided, Sequence[Step]]:
        """The steps that fit into the page: the first ones, or the last ones when a promise was broken."""
        sizes = [len(_json(row)) + 1 for row in _steps_to_json(before, self.steps)]
        if sum(sizes) <= STEPS_SIZE_MAX:
            return before, decided, self.steps
        backwards = any(step.entry.kind == "violation" for step in self.steps)
        room, count = STEPS_SIZE_MAX, 0
        for size in reversed(sizes) if backwards else sizes:
            room -= size
            if room < 0:
                break
            count += 1
        self.omitted["no room"] = len(sizes) - count
        if not backwards:
            return before, decided, self.steps[:count]
        for step in self.steps[:-count]:
            before = {**before, **{n: r for n, r in step.changed.items() if r is not None}}
            before = {n: r for n, r in before.items() if step.changed.get(n, r) is not None}
            decided = step.decided or decided
        kept = [
            Step(number=n, entry=s.entry, sentence=s.sentence, changed=s.changed, decided=s.decided)
            for n, s in enumerate(self.steps[-count:], 1)
        ]
        return before, decided, kept

    def _notes(self, partitions: Sequence[str]) -> list[str]:
        """What a reader would otherwise have to guess."""
        omitted, notes = self.omitted, []
        if omitted["earlier"] or omitted["later"]:
            notes.append(
                f"Outside the chosen window: {omitted['earlier']:,} events before it, {omitted['later']:,} after it."
            )
        if omitted["no room"]:
            notes.append(
                f"{omitted['no room']:,} steps did not fit into {PAGE_SIZE_MAX / 1e6:g} MB: choose a window with"
                " --from and --to."
            )
        if len(partitions) > 1:
            others = [name for name in partitions if name != self.partition]
            shown_names = ", ".join(others[:6]) + (" and more" if len(others) > 6 else "")
            notes.append(f"Other partitions of this journal (--partition shows them): {shown_names}.")
        if omitted["others"]:
            notes.append(
                f"{omitted['others']:,} events of other partitions, of clients and of the metadata quorum's inner"
                " working are left out."
            )
        if self.journal.has_messages:
            notes.append(
                f"{omitted['quiet']:,} fetches and answers that repeated the last ones are left out; of all messages"
                " only Produce, Fetch and AlterPartition are drawn."
            )
        else:
            notes.append(
                "Real brokers record what a message brought about, not the message: an arrow is drawn where it took"
                " effect, and a message that was lost leaves none. A kill -9 leaves no line either: the broker is shown"
                " as fenced once the controller says so. Events of two brokers within one millisecond may stand in"
                " either order."
            )
        if any(entry.kind == SAMPLED for entry in self.journal.entries):
            notes.append(
                "Log ends and high watermarks are samples: about one a second of each replica that changed, four a"
                " second while a live stream watched the partition. Appends and fetches between two samples are left"
                " out. A broker that died has taken the samples with it that no live stream received."
            )
        notes.append("Records' contents are not recorded, only their offsets and leader epochs.")
        return notes


# ---- JSON ------------------------------------------------------------------------------------------------------------


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def replica_to_json(replica: Replica, before: Replica | None = None) -> dict[str, Any]:
    """A replica as the page's script reads it: of one that was ``before``, only what has changed."""
    row: dict[str, Any] = {
        name: getattr(replica, name)
        for name in REPLICA_FIELDS
        if before is None or getattr(replica, name) != getattr(before, name)
    }
    if "runs" in row:
        row["runs"] = [_run_to_json(run) for run in replica.runs]
    return row


def _run_to_json(run: Run) -> list[int]:
    return [run.base, run.end, run.epoch]


def _decided_to_json(decided: Decided) -> dict[str, Any]:
    return {
        "leader": decided.leader,
        "epoch": decided.epoch,
        "isr": decided.isr,
        "replicas": decided.replicas,
    }


def _steps_to_json(before: Mapping[NodeId, Replica], steps: Sequence[Step]) -> Iterator[dict[str, Any]]:
    standing: dict[NodeId, Replica | None] = dict(before)
    for step in steps:
        yield _step_to_json(step, standing)
        standing.update(step.changed)


def _step_to_json(step: Step, standing: Mapping[NodeId, Replica | None]) -> dict[str, Any]:
    entry, words = step.entry, step.sentence
    facts = {name: _short(value) for name, value in entry.facts.items() if name not in {"partition", "parts"}}
    row: dict[str, Any] = {"t": round(entry.at_s, 6), "n": entry.node, "k": entry.kind, "w": words.what, "f": facts}
    if words.why:
        row["y"] = words.why[:FACT_LENGTH_MAX]
    if entry.cause:
        row["c"] = entry.cause
    if words.tone:
        row["x"] = words.tone
    if words.arrow is not None:
        row["a"] = [words.arrow.source, words.arrow.target, words.arrow.label, words.arrow.fate]
    if step.changed:
        row["d"] = {
            str(node): None if replica is None else replica_to_json(replica, standing.get(node))
            for node, replica in step.changed.items()
        }
    if step.decided is not None:
        row["g"] = _decided_to_json(step.decided)
    return row


def _short(value: object) -> object:
    value = plain(value)
    if isinstance(value, (bool, int, float)) or value is None:
        return value
    text = value if isinstance(value, str) else _json(value)
    return text if len(text) <= FACT_LENGTH_MAX else text[:FACT_LENGTH_MAX] + "…"


def to_json(replay: Replay) -> dict[str, Any]:
    """Everything that the page's script is given."""
    journal = replay.journal
    end_s = journal.entries[-1].at_s
    return {
        "title": journal.title,
        "partition": replay.partition,
        "simulated": journal.is_simulated,
        "messages": journal.has_messages,
        "violations": sum(entry.kind == "violation" for entry in journal.entries),
        "from_s": replay.from_s,
        "to_s": replay.to_s,
        "end_s": end_s,
        "notes": replay.notes,
        "lanes": replay.lanes,
        "before": {str(node): replica_to_json(replica) for node, replica in replay.before.items()},
        "decided": _decided_to_json(replay.decided_before),
        "steps": list(_steps_to_json(replay.before, replay.steps)),
    }


def page_of(replay: Replay) -> str:
    """The HTML file."""
    folder = resources.files(__package__) / "assets"
    page, style, script = (
        (folder / name).read_text(encoding="utf-8") for name in ("replay.html", "replay.css", "replay.js")
    )
    # A script element ends at "</" whatever stands around it; in JSON the escape means the same character.
    data = _json(to_json(replay)).replace("</", "<\\/").replace("<!--", "<\\u0021--")
    title = f"{replay.partition} · {replay.journal.title}".replace("&", "&amp;").replace("<", "&lt;")
    parts = {"{{title}}": title, "/*{{style}}*/": style, "/*{{script}}*/": script, "{{data}}": data}
    for mark, text in parts.items():
        before, found, after = page.partition(mark)
        if not found:
            raise NothingToShow(f"the page's template has no {mark}")
        page = before + text + after
    return page


# ---- as text ---------------------------------------------------------------------------------------------------------


COLUMNS = (
    "step",
    "time",
    "who",
    "what happened",
    "replica",
    "role",
    "epoch",
    "LEO",
    "HW",
    "ISR",
    "remote LEO",
    "process",
)

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


def text_of(replay: Replay) -> str:
    """Return the same steps as text: what happened, why, and where the replicas that changed stand after it."""
    rows = [COLUMNS, *(row for step in replay.steps for row in _rows(step))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
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
