"""A request that waits for an event and is answered from it, without a task of its own.

A handler returns a :class:`Parked` when its response depends on an event: the high watermark reaches an offset, a log
grows, a deadline comes. The owner of the event calls :meth:`Parked.ready` once. Each layer between the handler and the
connection adds its work with :meth:`Parked.then`; the connection takes the result with :meth:`Parked.when_ready`.
Nothing runs until the event, and then everything runs in one call. A caller that is a task anyway awaits it instead.

Rule for this file: a parked request computes its result once, or never if it was cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, TypeAlias

Result: TypeAlias = Callable[[], Any]
"""Returns the response, or an awaitable of it if more must be awaited; raises what the request failed with."""


class Parked:
    """A response that an event will bring; see the head of this file."""

    __slots__ = ("_callback", "_is_ready", "_result", "parked_ns")

    def __init__(self, result: Result) -> None:
        self.parked_ns = 0
        """How long it has waited, once it is ready; 0 if nobody measured it."""
        self._result: Result | None = result
        """None: cancelled, or the result was taken."""
        self._callback: Callable[[Result], None] | None = None
        self._is_ready = False

    def then(self, step: Callable[[Result], Any]) -> None:
        """Put ``step`` behind what computes the result: it calls that, and returns or raises the result from now on."""
        if self._result is not None:
            self._result = partial(step, self._result)

    def when_ready(self, callback: Callable[[Result], None]) -> None:
        """Call ``callback`` with what computes the result when the event comes, or now if it has come."""
        self._callback = callback
        if self._is_ready:
            self.ready()

    def ready(self) -> None:
        """The event has come."""
        self._is_ready = True
        callback, result = self._callback, self._result
        if callback is not None and result is not None:
            self._callback = self._result = None  # they refer to the connection, which refers to this request
            callback(result)

    def cancel(self) -> None:
        """Give the request up: its result is never computed."""
        self._callback = self._result = None

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait for the event, then return the result; cancelling the waiting task cancels the request."""
        coming: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self.when_ready(lambda result: None if coming.done() else coming.set_result(result))
        try:
            result = yield from coming
        except BaseException:  # the task is cancelled, or closed with its loop
            self.cancel()
            raise
        answer = result()
        return (yield from answer.__await__()) if isinstance(answer, Awaitable) else answer
