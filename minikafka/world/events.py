"""The Events port as a structured log: one JSON object a line, and a journal with every event.

The log shows what an operator wants to know (``LEVELS``, INFO where a kind is not named); the journal
(``mk.journal.path``) keeps everything, so that a run can be read again and explained.
"""

from __future__ import annotations

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from minikafka.ports import CAUSE

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR

LEVELS: dict[str, int] = {
    # Many a second in normal work.
    "hw_advanced": DEBUG,
    "follower_hw_changed": DEBUG,
    "batch_appended": DEBUG,
    "fetch_answered": DEBUG,
    "follower_fetched": DEBUG,
    "role_given_up": DEBUG,
    "log_flushed": DEBUG,
    "heartbeat_answered": DEBUG,
    "request_handled": DEBUG,
    "image_replayed": DEBUG,
    "fault_hit": DEBUG,
    # Something that an operator may have to look at.
    "isr_shrunk": WARNING,
    "broker_fenced": WARNING,
    "leader_lost": WARNING,
    "tail_truncated": WARNING,
    "torn_tail_dropped": WARNING,
    "damage_read": WARNING,
    "unclean_leader_elected": WARNING,
    "disk_full": ERROR,
    "disk_failed": ERROR,
    "log_stopped": ERROR,
    "task_failed": ERROR,
    "broker_failed": ERROR,
}
"""Kinds that are not INFO; a process may add its own before it starts."""

# What `explain` can look back at without a journal.
RECENT_EVENTS = 2_000


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
        "level": logging.getLevelName(LEVELS.get(kind, INFO)).lower(),
        "node": node,
        "event": kind,
    }
    if cause:
        entry["cause"] = cause
    for name, value in facts.items():
        # A fact never hides one of the words above.
        entry[f"{name}_" if name in entry or name == "cause" else name] = plain(value)
    return entry


class EventLog:
    """An events sink. ``stream`` gets events at ``level`` and above, the journal gets all."""

    def __init__(
        self,
        *,
        node: str = "",
        stream: TextIO | None = None,
        level: int = INFO,
        journal_path: str = "",
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.recent: deque[dict[str, object]] = deque(maxlen=RECENT_EVENTS)
        """The last events, newest last."""
        self.observers: list[Callable[[str, Mapping[str, object]], None]] = []
        """Told of every event (metrics count them)."""
        self._node = node
        self._stream = stream
        self._level = level
        self._wall_ns = wall_ns
        self._journal: TextIOWrapper | None = None
        if journal_path:
            Path(journal_path).parent.mkdir(parents=True, exist_ok=True)
            # Line by line: what was told before a kill -9 is in the file.
            self._journal = Path(journal_path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115 - close() closes it

    def __call__(self, kind: str, /, **facts: object) -> None:
        """Tell one event."""
        for observer in self.observers:
            observer(kind, facts)
        level = LEVELS.get(kind, INFO)
        shown = self._stream is not None and level >= self._level
        if not shown and self._journal is None and level < INFO:
            return
        entry = journal_entry(kind, facts, node=self._node, wall_ns=self._wall_ns(), cause=CAUSE.get())
        self.recent.append(entry)
        if shown or self._journal is not None:
            line = json.dumps(entry, separators=(",", ":"), ensure_ascii=False) + "\n"
            if self._journal is not None:
                self._journal.write(line)
            if shown and self._stream is not None:
                self._stream.write(line)
                self._stream.flush()

    def __iter__(self) -> Iterator[dict[str, object]]:
        return iter(tuple(self.recent))

    def close(self) -> None:
        """Close the journal; later events are not kept in it."""
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()
