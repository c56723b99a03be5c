"""The Events port as a structured log, and a journal with every event.

The log shows what an operator wants to know (the levels of ``minikafka/events.py``), an event a line: as text for
people, or as a JSON object for machines (``mk.log.format``). The journal (``mk.journal.path``) keeps everything as JSON
lines, so that a run can be read again and explained. Facts are names, numbers and reasons, never keys or values of
records; one that is called a secret is not written anywhere.
"""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO, TypeAlias

from minikafka.events import INFO, level_of
from minikafka.ports import CAUSE, HOT_EVENTS, Unheard

SECRET_WORDS = ("password", "secret", "token", "credential")
HIDDEN = "[hidden]"


def plain(value: object) -> object:
    """A fact as a JSON value: sets sorted, tuples as lists, bytes as text, other objects by their text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (set, frozenset)):
        return sorted((plain(item) for item in value), key=repr)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    return str(value)


def journal_entry(kind: str, facts: Mapping[str, object], *, node: str, wall_ns: int, cause: str) -> dict[str, object]:
    """One event as the object of a journal's line."""
    entry: dict[str, object] = {
        "ts_ms": wall_ns // 1_000_000,
        "level": logging.getLevelName(level_of(kind, facts)).lower(),
        "node": node,
        "event": kind,
    }
    if cause:
        entry["cause"] = cause
    for name, value in facts.items():
        # A fact never hides one of the words above.
        shown = HIDDEN if _is_secret(name) else plain(value)
        entry[f"{name}_" if name in entry or name == "cause" else name] = shown
    return entry


@functools.lru_cache(1024)  # facts have a few hundred names
def _is_secret(name: str) -> bool:
    return any(word in name for word in SECRET_WORDS)


def as_json(entry: Mapping[str, object]) -> str:
    """One line for machines."""
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=False) + "\n"


def as_text(entry: Mapping[str, object]) -> str:
    """One line for people: time, level, event, facts; the lines of a traceback follow it, indented."""
    facts = dict(entry)
    at_ms, level, kind = facts.pop("ts_ms"), facts.pop("level"), facts.pop("event")
    traceback = str(facts.pop("traceback", "") or "")
    at = datetime.fromtimestamp(int(str(at_ms)) / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if str(facts.get("node_")) == facts["node"]:
        del facts["node_"]
    text = " ".join(f"{name}={_word(value)}" for name, value in facts.items() if value != "")
    line = f"{at} {str(level).upper():<7} {kind} {text}".rstrip() + "\n"
    return line + "".join(f"    {each if each.isprintable() else ascii(each)}\n" for each in traceback.splitlines())


def _word(value: object) -> str:
    """A fact without spaces, or in quotes."""
    if isinstance(value, list) and not any(isinstance(item, (list, dict)) for item in value):
        return ",".join(map(_word, value)) or "none"
    if isinstance(value, str):
        bare = value.isprintable() and not any(mark in value for mark in " \"=,'")
        return value if bare else json.dumps(value, ensure_ascii=not value.isprintable())
    return json.dumps(value, separators=(",", ":"))


Observer: TypeAlias = Callable[[str, Mapping[str, object]], None]
"""(kind, facts); the facts never change."""


class EventLog:
    """An events sink. ``stream`` gets events at ``level`` and above, the journal gets all."""

    def __init__(
        self,
        *,
        node: str = "",
        stream: TextIO | None = None,
        level: int = INFO,
        render: Callable[[Mapping[str, object]], str] = as_json,
        journal_path: str = "",
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.unheard = Unheard()
        self._observers: list[Observer] = []
        self._has_readers = False
        """At least one observer reads the facts of all events."""
        self._node = node
        self._stream = stream
        self._level = level
        self._render = render
        self._wall_ns = wall_ns
        self._journal: TextIOWrapper | None = None
        self.on_close: list[Callable[[], None]] = []
        if journal_path:
            Path(journal_path).parent.mkdir(parents=True, exist_ok=True)
            # Line by line: what was logged before a kill -9 is in the file.
            self._journal = Path(journal_path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115 - close() closes it
        self._decide_unheard()

    @property
    def level(self) -> int:
        """The least important events that the stream gets."""
        return self._level

    @level.setter
    def level(self, level: int) -> None:
        self._level = level
        self._decide_unheard()

    def observe(self, observer: Observer, *, only_counts: bool = False) -> None:
        """Call ``observer`` for every event. One that ``only_counts`` hot events takes them from ``unheard.counts``
        where nothing else needs their facts.
        """
        self._observers.append(observer)
        self._has_readers = self._has_readers or not only_counts
        self._decide_unheard()

    def _decide_unheard(self) -> None:
        heard = self._has_readers or self._journal is not None
        shown = {kind for kind in HOT_EVENTS if self._stream is not None and level_of(kind, {}) >= self._level}
        self.unheard.kinds = frozenset() if heard else HOT_EVENTS - shown

    def __call__(self, kind: str, /, **facts: object) -> None:
        """Tell one event."""
        for observer in self._observers:
            observer(kind, facts)
        shown = self._stream is not None and level_of(kind, facts) >= self.level
        if not shown and self._journal is None:
            return
        entry = journal_entry(kind, facts, node=self._node, wall_ns=self._wall_ns(), cause=CAUSE.get())
        if self._journal is not None:
            self._journal.write(as_json(entry))
        if shown and self._stream is not None:
            self._stream.write(self._render(entry))
            self._stream.flush()

    def close(self) -> None:
        """Close the journal; later events are not kept in it."""
        for each in self.on_close:
            each()
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()
            self._decide_unheard()
