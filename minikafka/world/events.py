"""Where a broker's events go: a structured log, a journal, the audit log, and a ring of the latest events in memory.

The log shows what an operator wants to know (the levels of ``minikafka/events.py``), an event a line: as text for
people, or as a JSON object for machines (``mk.log.format``). The journal (``mk.journal.path``) keeps everything as JSON
lines, so that a run can be read again and explained. Facts are names, numbers and reasons, never keys or values of
records; one that is called a secret is not written anywhere.

The ring is what ``/v1/events`` shows and what tests wait for. It counts every event, also those that the log leaves
out; brokers that share a ring share its numbers. A row becomes a journal's line only when a reader asks for it: to keep
one costs a tuple. The audit log (``mk.audit.path``) has the events about who did what, or tried to, as JSON lines.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TextIO, TypeAlias

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


TEXT_LENGTH_MAX = 1_000
"""Characters of a text in an event. Names of groups and members have up to 32,767, and their clients choose them: the
log and the memory of events must not grow by a request's size with each of its events."""


def _cut(value: object) -> object:
    """A text that fits into an event, and says how long it was."""
    if type(value) is not str or len(value) <= TEXT_LENGTH_MAX:
        return value
    return f"{value[: TEXT_LENGTH_MAX - 100]}... ({len(value)} characters)"


Observer: TypeAlias = Callable[[str, Mapping[str, object]], None]
"""(kind, facts); the facts never change."""


def folder_mode(file_mode: int) -> int:
    """Return the permissions of folders whose files have these: who may read a file may enter its folder."""
    return file_mode | (file_mode & 0o444) >> 2


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
        file_mode: int = 0o600,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """``file_mode``: permissions of a new journal, which names what topics and users are called."""
        self.unheard = Unheard()
        self._observers: list[Observer] = []
        self._has_readers = False
        """At least one observer reads the facts of all events."""
        self._node = node
        self._stream = stream
        self._level = level
        self._render = render
        self._wall_ns = wall_ns
        self._unwritable: set[str] = set()
        """Places whose last line could not be written."""
        self._journal: TextIOWrapper | None = None
        self._journal_path = journal_path
        self.on_close: list[Callable[[], None]] = []
        if journal_path:
            # It may be in the data directory, which does not exist yet.
            Path(journal_path).parent.mkdir(folder_mode(file_mode), parents=True, exist_ok=True)
            file = os.open(journal_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, file_mode)
            # Line by line: what was logged before a kill -9 is in the file.
            self._journal = open(file, "a", encoding="utf-8", buffering=1)  # noqa: SIM115, PTH123 - close() closes it
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
        for each in facts.values():  # a generator would cost each event as much as the rest of this method
            if type(each) is str and len(each) > TEXT_LENGTH_MAX:
                facts = {name: value if name == "traceback" else _cut(value) for name, value in facts.items()}
                break
        for observer in self._observers:
            observer(kind, facts)
        shown = self._stream is not None and level_of(kind, facts) >= self.level
        if not shown and self._journal is None:
            return
        entry = journal_entry(kind, facts, node=self._node, wall_ns=self._wall_ns(), cause=CAUSE.get())
        if self._journal is not None:
            self.attempt(self._journal_path, partial(self._journal.write, as_json(entry)))
        if shown and self._stream is not None:
            self.attempt("the log", partial(_write_now, self._stream, self._render(entry)))

    def attempt(self, where: str, write: Callable[[], object]) -> None:
        """Write a line to one place. A line that cannot be written is left out: events are reported in the midst of
        changes, which must not end half way because a disk is full or the reader of a pipe has left.

        The other places get an event about the first such line, until one can be written again.
        """
        try:
            write()
        except OSError as error:
            if where not in self._unwritable:
                self._unwritable.add(where)
                self("log_not_written", where=where, why=str(error))
        else:
            self._unwritable.discard(where)

    def close(self) -> None:
        """Close the journal; later events are not kept in it."""
        for each in self.on_close:
            each()
        journal, self._journal = self._journal, None
        if journal is not None:
            self.attempt(self._journal_path, journal.close)
            self._decide_unheard()


def _write_now(stream: TextIO, text: str) -> None:
    stream.write(text)
    stream.flush()


def _at_once(_where: str, write: Callable[[], object]) -> None:
    write()


RING_SIZE = 100_000
"""Rows kept: some fifty megabytes at the most, a quarter of an hour of busy brokers."""

Line: TypeAlias = dict[str, object]
"""A row as a journal has it, with its number as ``seq``."""


class Row(NamedTuple):
    """One event."""

    seq: int
    wall_ns: int
    node: str
    kind: str
    cause: str
    facts: Mapping[str, object]

    def line(self) -> Line:
        """As JSON-ready journal entry."""
        entry = journal_entry(self.kind, self.facts, node=self.node, wall_ns=self.wall_ns, cause=self.cause)
        return {"seq": self.seq, **entry}


class Wanted(NamedTuple):
    """Which rows are meant; empty means any."""

    kinds: Collection[str] = ()
    partition: str = ""
    """``orders-0``."""
    node: str = ""

    def fits(self, row: Row) -> bool:
        """Return True if the row fits the filter."""
        return (
            (not self.kinds or row.kind in self.kinds)
            and (not self.node or row.node == self.node)
            and (not self.partition or str(row.facts.get("partition", "")) == self.partition)
        )


EVERYTHING = Wanted()


class EventRing:
    """The newest events of all nodes that were given an :meth:`observer`; numbers (``seq``) begin with 1."""

    def __init__(self, size: int = RING_SIZE) -> None:
        self._rows: deque[Row] = deque(maxlen=size)
        self.end = 1
        """The number that the next event will have."""
        self._news: dict[asyncio.Future[None], None] = {}

    def observer(self, node: str) -> Callable[[str, Mapping[str, object]], None]:
        """For ``EventLog.observe``: keeps what ``node`` tells."""

        def observe(kind: str, facts: Mapping[str, object]) -> None:
            self._rows.append(Row(self.end, time.time_ns(), node, kind, CAUSE.get(), facts))
            self.end += 1
            if self._news:
                self._ring()

        return observe

    def _ring(self) -> None:
        for waiting in self._news:
            _wake(waiting)

    @property
    def start(self) -> int:
        """The number of the oldest row that is kept; ``end`` when there is none."""
        return self._rows[0].seq if self._rows else self.end

    def rows(self, start: int = 0, *, wanted: Wanted = EVERYTHING, limit: int | None = None) -> Iterator[Row]:
        """Rows from number ``start`` on, oldest first."""
        # Copied in one step: another thread may add rows meanwhile. From the end, for readers mostly want the news.
        newest_first = list(islice(reversed(self._rows), max(0, self.end - start)))
        for row in reversed(newest_first):
            if row.seq < start:
                continue
            if limit is not None and limit <= 0:
                return
            if wanted.fits(row):
                yield row
                if limit is not None:
                    limit -= 1

    async def until_news(self, end: int, timeout_s: float) -> bool:
        """Return when there is a row of number ``end`` or beyond; False after ``timeout_s``."""
        if self.end > end:
            return True
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        self._news[waiting] = None
        timer = loop.call_later(timeout_s, _wake, waiting)
        try:
            await waiting
        finally:
            timer.cancel()
            del self._news[waiting]
        return self.end > end

    def write(self, path: Path, start: int = 0) -> int:
        """Write a journal (``minikafka sim show`` opens it); how many events it has."""
        count = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            for row in self.rows(start):
                file.write(json.dumps(row.line(), separators=(",", ":"), ensure_ascii=False) + "\n")
                count += 1
        return count


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


AUDITED = frozenset(
    {
        "client_authentication_failed",
        "client_login_failed",
        "jwks_failed",
        "jwks_loaded",
        "request_allowed",
        "request_denied",
        "tls_handshake_failed",
        "tls_reload_failed",
        "tls_reloaded",
    }
)
"""Kinds of events that the file has."""

TEXT_SIZE_MAX = 255


class AuditFile:
    """An observer of events. Only the owner may read the file: names of users and topics are in it."""

    def __init__(self, path: str, node: str, attempt: Callable[[str, Callable[[], object]], None] = _at_once) -> None:
        """Open or create the file. Raises OSError. ``attempt`` writes a line to a place (:meth:`EventLog.attempt`)."""
        self._path = path
        self._attempt = attempt
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.fchmod(self._file, 0o600)
        self._node = node
        self._number = 0

    def __call__(self, kind: str, facts: Mapping[str, object]) -> None:
        """Write an event of AUDITED as one line; ``seq`` counts the lines of this process."""
        if kind not in AUDITED or self._file < 0:
            return
        self._number += 1
        cut = {name: each[:TEXT_SIZE_MAX] if isinstance(each, str) else each for name, each in facts.items()}
        entry = journal_entry(kind, cut, node=self._node, wall_ns=time.time_ns(), cause="")
        line = as_json({"seq": self._number, **entry}).encode()
        self._attempt(self._path, partial(os.write, self._file, line))

    def close(self) -> None:
        """Later events are not kept."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
