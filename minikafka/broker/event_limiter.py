"""A limit on events that any client can cause as often as it likes: the log must not fill with them.

In PERIOD_S at most one event of a kind, a remote address and a principal is passed on; ``left_out`` of the next one
counts the others. Nothing here awaits or reads a clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from minikafka.ports import Events

PERIOD_S = 10.0
REMOTES_MAX = 64
"""Addresses with their principals that are counted apart in one period; all others together count as one more."""
OTHERS = ""


@dataclass(slots=True)
class _Passed:
    at: float
    left_out: int = 0


class EventLimiter:
    """See the head of this file."""

    def __init__(self, events: Events, now: Callable[[], float]) -> None:
        self._events = events
        self._now = now
        self._passed: dict[tuple[str, str, str], _Passed] = {}
        self._carried: Counter[str] = Counter()
        """By kind: events left out of addresses that are no longer remembered."""

    def __call__(self, kind: str, /, *, remote: str, **facts: object) -> None:
        """Pass an event on, or count it. Clients behind one address are told apart by ``principal`` among the facts."""
        now = self._now()
        key = (kind, remote, str(facts.get("principal", "")))
        if key not in self._passed and len(self._passed) >= REMOTES_MAX:
            self._forget(now)
            if len(self._passed) >= REMOTES_MAX:
                key = (kind, OTHERS, OTHERS)
        last = self._passed.get(key)
        if last is not None and now - last.at < PERIOD_S:
            last.left_out += 1
            return
        left_out = self._carried.pop(kind, 0) + (0 if last is None else last.left_out)
        self._passed[key] = _Passed(now)
        more = {"left_out": left_out} if left_out else {}
        self._events(kind, remote=remote, **facts, **more)

    def _forget(self, now: float) -> None:
        for key, passed in list(self._passed.items()):
            if now - passed.at >= PERIOD_S:
                self._carried[key[0]] += passed.left_out
                del self._passed[key]
