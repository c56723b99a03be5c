"""The broker owns every task it starts; one that ends in an exception stops the broker.

A fetcher that dies silently looks like three time-outs and then like a slow replica; a stopped broker is noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """A set of running tasks, in order of birth."""

    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        self._running: dict[asyncio.Task[None], None] = {}
        self._on_failure = on_failure

    def spawn(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task that belongs to the broker."""
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._on_failure(task.get_name(), error)

    async def cancel_all(self) -> None:
        """End every task and wait for it; the caller's own task is left alone."""
        mine = asyncio.current_task()
        ending = [task for task in self._running if task is not mine]
        for task in ending:
            task.cancel()
        for task in ending:
            try:
                await task
            except asyncio.CancelledError:
                if mine is not None and mine.cancelling():
                    raise
            except Exception as error:  # noqa: BLE001 - told by _ended as well; nothing may stop the others' ending
                self._on_failure(task.get_name(), error)
