"""Room for large requests: how many bytes of them a broker holds at a time (``queued.max.request.bytes``), and whose.

Rules for this file:

1. A request of any size is admitted while nothing else is held.
2. One owner, a user or the address of clients without a name, holds half of the room at most, or one request. Slow
   senders of one owner leave the other half. Connections that have not logged in are one owner together: they would
   otherwise keep all users out, and need no password for it.
3. Requests that wait for room take turns by owner. Owners that have their share are passed over. The first request
   that does not fit otherwise stops the turn: smaller ones must not starve it.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Final, Protocol

STRANGERS: Final = ""
"""The owner of requests of connections that have not logged in where they must."""

GRACE_S: Final = 1.0


def is_too_slow(moved: int, size: int, since_s: float, limit_s: float) -> bool:
    """Return True if ``size`` bytes need more than ``limit_s`` at the pace of those that have moved, after GRACE_S."""
    counted_s = since_s - GRACE_S
    return counted_s > 0 and moved < size * counted_s / limit_s


class Waiting(Protocol):
    """A connection whose request waits."""

    @property
    def owner(self) -> str: ...

    @property
    def announced(self) -> int:
        """Bytes of the request."""
        ...

    def admit_waiting(self) -> bool:
        """Look for room again; False if the request still waits."""
        ...


class RequestRoom:
    """See the head of this file."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        """Bytes of requests held now."""
        self._of: Counter[str] = Counter()
        """How many of them an owner has."""
        self._waiting: dict[str, dict[Waiting, None]] = {}
        """By owner, the next one to take its turn first; of each owner in the order of their arrival."""

    def admits(self, owner: str, size: int, *, held: int = 0) -> bool:
        """Return True if there is room for a request of ``size`` bytes, of which ``held`` are counted already."""
        others = self.held - held
        return others == 0 or (others + size <= self.limit and not self.has_its_share(owner, size, held=held))

    def has_its_share(self, owner: str, size: int, *, held: int = 0) -> bool:
        """Return True if the owner's other requests leave no room for this one (rule 2)."""
        others = self._of[owner] - held
        return others > 0 and others + size > self.limit // 2

    def take(self, owner: str, size: int) -> bool:
        """Hold so many bytes; False: there is no room."""
        if not self.admits(owner, size):
            return False
        self.hold(owner, size)
        return True

    def hold(self, owner: str, size: int) -> None:
        """So many more bytes are held, whatever the limit is."""
        self.held += size
        self._of[owner] += size

    def release(self, owner: str, size: int) -> None:
        """They are held no more."""
        self.held -= size
        self._of[owner] -= size
        if not self._of[owner]:
            del self._of[owner]

    @property
    def is_awaited(self) -> bool:
        """Return True while requests wait."""
        return bool(self._waiting)

    def wait(self, connection: Waiting) -> None:
        """A request waits. One that waits already keeps its place."""
        self._waiting.setdefault(connection.owner, {})[connection] = None

    def leave(self, connection: Waiting) -> None:
        """A connection is gone."""
        queue = self._waiting.get(connection.owner, {})
        queue.pop(connection, None)
        if not queue:
            self._waiting.pop(connection.owner, None)

    def wake(self) -> None:
        """Admit requests that wait (rule 3)."""
        passed_over = 0
        while (owner := next(islice(self._waiting, passed_over, None), None)) is not None:
            queue = self._waiting[owner]
            first = next(iter(queue))
            if first.admit_waiting():
                del self._waiting[owner], queue[first]
                if queue:
                    self._waiting[owner] = queue
            elif self.has_its_share(owner, first.announced):
                passed_over += 1
            else:
                return
