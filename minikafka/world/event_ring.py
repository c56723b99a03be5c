"""The last events of one process, in memory: what ``/v1/events`` shows, what tests wait for and keep when they fail.

Every event counts, also those that the structured log leaves out; brokers that share a ring share its numbers. A row
becomes a journal's line only when a reader asks for it: to keep one costs a tuple.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias

from minikafka.ports import CAUSE
from minikafka.world.events import journal_entry

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
        """Is this row meant?"""
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
