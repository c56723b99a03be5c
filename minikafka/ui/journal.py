"""Journals as one typed sequence: JSON lines of real brokers (``mk.journal.path``), and those of a simulation.

A line is an object with ``event``, ``node``, facts, and when: ``ts_ms`` (milliseconds since 1970, real brokers) or
``t_s`` (virtual seconds, simulations). A fact whose name is one of the line's own words carries a ``_`` behind it.

Rules for this file: several journals, one of each broker, become one in order of time; entries of the same instant keep
the order of their file. A last line that a kill cut short is passed over, any other bad line is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from minikafka.world.events import plain

OWN_WORDS: Final = ("t_s", "ts_ms", "level", "node", "life", "event", "cause")


class BadJournal(ValueError):
    """A file that is no journal; the message says where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One event of a journal."""

    at_s: float
    """Virtual seconds; of real brokers, seconds since the first entry."""
    node: str
    """The reporter: ``n2`` in a simulation, ``2`` of a real broker, a client's name; empty: the run itself."""
    kind: str
    facts: Mapping[str, object] = field(default_factory=dict)
    cause: str = ""
    """The request or timer that it happened for."""
    life: int = 0
    """Incarnation of the node, where it is known."""

    @property
    def broker(self) -> int | None:
        """The broker's node id; None for a client and for the run itself."""
        digits = self.node.removeprefix("n")
        return int(digits) if digits.isascii() and digits.isdigit() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """All that is known of a run."""

    title: str
    entries: Sequence[Entry]
    is_simulated: bool
    has_messages: bool
    """True if each message was seen on the network; otherwise only their effects are known."""


def read_journals(paths: Sequence[Path]) -> Journal:
    """The journals of one run as one. Raises BadJournal, OSError."""
    rows: list[tuple[float, Mapping[str, object]]] = []
    for path in paths:
        rows.extend(_rows(path))
    if not rows:
        raise BadJournal(f"{', '.join(map(str, paths))}: no events")
    rows.sort(key=lambda row: row[0])
    is_simulated = "t_s" in rows[0][1]
    if any(("t_s" in row) != is_simulated for _, row in rows):
        raise BadJournal("a simulation's journal and a real broker's cannot be one run")
    begin_s = 0.0 if is_simulated else rows[0][0]
    entries = [_entry(at_s - begin_s, row) for at_s, row in rows]
    return Journal(
        title=", ".join(path.name for path in paths),
        entries=entries,
        is_simulated=is_simulated,
        has_messages=any(entry.kind == "message_sent" for entry in entries),
    )


def write_journal(entries: Iterable[Entry], path: Path) -> None:
    """A simulation's journal as JSON lines; :func:`read_journals` gives the same entries back."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(line_of(entry) + "\n" for entry in entries)


def line_of(entry: Entry) -> str:
    """One entry as a line of JSON."""
    row: dict[str, object] = {"t_s": entry.at_s, "node": entry.node, "life": entry.life, "event": entry.kind}
    if entry.cause:
        row["cause"] = entry.cause
    for name, value in entry.facts.items():
        row[f"{name}_" if name in OWN_WORDS else name] = plain(value)
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False)


def _rows(path: Path) -> Iterator[tuple[float, Mapping[str, object]]]:
    # Not splitlines(): a client's name may have U+2028, which JSON lets stand.
    *lines, rest = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate([*lines, rest] if rest else lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            if number > len(lines):
                return  # the process died while it wrote this line
            raise BadJournal(f"{path}:{number}: not a line of JSON") from error
        yield _time_of(row, f"{path}:{number}"), row


def _time_of(row: object, where: str) -> float:
    if isinstance(row, Mapping) and isinstance(row.get("event"), str):
        for name, unit_s in (("t_s", 1.0), ("ts_ms", 0.001)):
            value = row.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return value * unit_s
    raise BadJournal(f"{where}: an event has `event` and `ts_ms` (real brokers) or `t_s` (simulations)")


def _entry(at_s: float, row: Mapping[str, object]) -> Entry:
    life = row.get("life")
    facts = {
        name.removesuffix("_") if name.removesuffix("_") in OWN_WORDS else name: value
        for name, value in row.items()
        if name not in OWN_WORDS
    }
    return Entry(
        at_s=at_s,
        node=str(row.get("node", "")),
        kind=str(row["event"]),
        facts=facts,
        cause=str(row.get("cause", "")),
        life=life if isinstance(life, int) else 0,
    )
