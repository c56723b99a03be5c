"""The tasks of one part of a client, each owned, and told of when it ends in an exception; and how parts are ended.

Rule for this file: tasks are ended in the order of their birth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

Step: TypeAlias = Callable[[], Awaitable[object]]


async def in_turn(*steps: Step) -> None:
    """Each step of an end, also when one before it failed or was cancelled; the first trouble is raised then.

    Not when the coroutine is thrown away (GeneratorExit, as of a process that was killed): nobody will resume it.
    """
    trouble: BaseException | None = None
    for step in steps:
        try:
            await step()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - raised below
            trouble = trouble or error
    if trouble is not None:
        raise trouble


class Tasks:
    """Those that run; ``on_failure`` is told what one of them raised."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._running: dict[asyncio.Task[None], None] = {}
        self._on_failure = on_failure

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start one."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def runs(self, name: str) -> bool:
        """Does one of this name run?"""
        return any(task.get_name() == name for task in self._running)

    async def end(self, *, but: str = "") -> None:
        """Cancel all, except those called ``but``, and wait for all of them."""
        tasks = list(self._running)
        for task in tasks:
            if task.get_name() != but:
                task.cancel()
        if tasks:  # of nothing, gather() asks for a loop, and makes one where none runs
            await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
