"""Responses that clients leave unread: for how long, and how much of a broker's memory.

Rules for this file:

1. A connection whose transport is full must take something in each ``idle_s``. Otherwise it would stay forever: a
   request that waits until there is room is under way, so its connection is not idle.
2. What clients leave in memory has as much room as large requests, shared by owners in the same way
   (``request_room.py``). While it does not fit, slow clients are disconnected, the one that leaves most first. Slow is
   as for senders of requests.
3. A client that reads costs nothing here: connections are looked at every LOOK_S, and most have read by then.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from minikafka.world.request_room import RequestRoom, is_too_slow

LOOK_S: Final = 1.0
RESPONSE_TIMEOUT_S: Final = 30.0
"""While memory is short, a response must be taken at a pace at which it has left after this long."""


class Unread(NamedTuple):
    """What a client has not taken yet."""

    owner: str
    """The user, or the address of one without a name."""
    held: int
    """Bytes in memory."""
    left: int
    """Bytes that are to be sent."""


class Reading(Protocol):
    """A connection to which something is written."""

    def unread(self) -> Unread: ...

    def abort(self) -> None: ...


@dataclass(slots=True)
class _Pace:
    """How fast a connection takes what was left for it at the first look."""

    since: float
    size: int
    left: int
    """At the last look."""
    moved_at: float
    """The last look at which it had taken something."""


class UnreadResponses:
    """The connections of one listener whose transport is full."""

    def __init__(self, limit: int, idle_s: float) -> None:
        self._limit = limit
        self._idle_s = idle_s
        self._look_s = min(LOOK_S, idle_s)
        self._full: dict[Reading, _Pace | None] = {}
        """The longest waiting first; None: not looked at yet."""
        self._looks = False

    def paused(self, connection: Reading) -> None:
        """The transport of a connection is full."""
        self._full.setdefault(connection)
        if not self._looks:
            self._look_later()

    def ended(self, connection: Reading) -> None:
        """All that was to be written is the transport's, which is not full; or the connection is gone."""
        self._full.pop(connection, None)

    def _look_later(self) -> None:
        self._looks = True
        asyncio.get_running_loop().call_later(self._look_s, self._look)

    def _look(self) -> None:
        now = asyncio.get_running_loop().time()
        room = RequestRoom(self._limit)
        slow: list[tuple[Reading, Unread]] = []
        for connection, known in list(self._full.items()):
            unread = connection.unread()
            pace = self._full[connection] = known or _Pace(now, unread.left, unread.left, now)
            if unread.left < pace.left:
                pace.moved_at = now
            elif now - pace.moved_at >= self._idle_s:
                self._close(connection)
                continue
            pace.left = unread.left
            room.hold(unread.owner, unread.held)
            if is_too_slow(pace.size - unread.left, pace.size, now - pace.since, RESPONSE_TIMEOUT_S):
                slow.append((connection, unread))
        for connection, unread in sorted(slow, key=lambda each: -each[1].held):
            if unread.held and not room.admits(unread.owner, unread.held, held=unread.held):
                room.release(unread.owner, unread.held)
                self._close(connection)
        self._looks = False
        if self._full:
            self._look_later()

    def _close(self, connection: Reading) -> None:
        self.ended(connection)
        connection.abort()
