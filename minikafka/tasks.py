"""The tasks of one broker or of one part of a client, and what they wait for.

Each task is owned, and reported if it ends with an exception. A fetcher that ends silently looks like three timeouts
and then like a slow replica; a reported failure is noticed.

Rule for this file: tasks are cancelled in the order in which they were started, so that a simulated run replays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from math import inf
from typing import Any, Generic, Self, TypeAlias, TypeVar

Step: TypeAlias = Callable[[], Awaitable[object]]
T = TypeVar("T")


async def in_turn(*steps: Step) -> None:
    """Run each step of a shutdown, also if an earlier step failed or was cancelled; then raise the first exception.

    After GeneratorExit (the coroutine is closed because its process was killed) no further step runs.
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


async def until_ended(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Wait until all of ``tasks`` have ended; what one failed with counts as seen.

    ``asyncio.gather`` receives only those that run: since Python 3.12 it needs fewer callbacks for the others, and a
    seed of the simulator would be another run there.
    """
    running = []
    for task in tasks:
        if not task.done():
            running.append(task)
        elif not task.cancelled():
            task.exception()
    if running:  # of nothing, gather() asks for a loop, and makes one where none runs
        await asyncio.gather(*running, return_exceptions=True)


async def shielded(inner: asyncio.Future[T]) -> T:
    """Return the result of ``inner``, which goes on if the caller is cancelled.

    From Python 3.14 on ``asyncio.shield`` needs one more callback: a seed of the simulator would be another run there.
    """
    if not inner.done():
        outer = inner.get_loop().create_future()

        def ended(_: object) -> None:
            if not outer.done():
                outer.set_result(None)

        inner.add_done_callback(ended)
        outer.add_done_callback(lambda _: inner.remove_done_callback(ended))
        await outer
    return inner.result()


class Flag:
    """A flag, not set at first, that tasks wait for, each of them at most until its own deadline.

    As ``asyncio.Event`` in a block of ``asyncio.timeout_at``, which drivers would write around most of their waits. A
    wait here takes one future and one timer, and cancels no task when its deadline comes.
    """

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[asyncio.Future[bool]] = []

    def is_set(self) -> bool:
        """Return True if the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag and wake all tasks that wait for it."""
        self._is_set = True
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(True)

    def clear(self) -> None:
        """Take the flag back: later waits suspend their task."""
        self._is_set = False

    async def wait(self, deadline: float = inf) -> bool:
        """Wait until the flag is set. Return False if ``deadline`` (of the monotonic clock) comes first."""
        if self._is_set:
            return True
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        timer = None if deadline == inf else loop.call_at(deadline, _expire, woken)
        self._waiting.append(woken)
        try:
            return await woken
        finally:
            self._waiting.remove(woken)
            if timer is not None:
                timer.cancel()


def _expire(woken: asyncio.Future[bool]) -> None:
    if not woken.done():
        woken.set_result(False)


class CancelScope:
    """A ``with`` block that others may end: what its task awaits there is cancelled, and the task goes on behind it.

    As ``asyncio.timeout(None)`` that is rescheduled to now, at a third of the cost: drivers enter one for each call
    that news may make pointless.
    """

    __slots__ = ("_cancelled", "_requests", "_soon", "_task")

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a cancel scope belongs to a task")
        self._task: asyncio.Task[Any] | None = task
        self._requests = task.cancelling()
        self._soon: asyncio.Handle | None = None
        self._cancelled = False
        return self

    def end(self) -> None:
        """End the block in the next turn of the loop. Nothing happens if it has ended by then."""
        if self._task is not None and self._soon is None:
            self._soon = self._task.get_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancelled = self._task.cancel()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        task, self._task = self._task, None
        if self._soon is None or task is None:
            return False
        self._soon.cancel()
        # A task that is cancelled by others besides is not done with that.
        is_own = self._cancelled and task.uncancel() <= self._requests
        return is_own and isinstance(error, asyncio.CancelledError)


class ForTask(Generic[T]):
    """What a new task awaits first. A task that is cancelled before its first step never takes it.

    A coroutine that nobody awaits must be closed. One that was awaited must not be closed again: a compiled one raises
    AttributeError then.
    """

    __slots__ = ("_left",)

    def __init__(self, awaitable: T) -> None:
        self._left: T | None = awaitable

    def take(self) -> T:
        """Return it, to be awaited in the same step."""
        taken, self._left = self._left, None
        if taken is None:
            raise RuntimeError("what a task awaits is taken once")
        return taken

    def close_unused(self, _: asyncio.Task[None]) -> None:
        """Called when the task has ended."""
        if isinstance(self._left, Coroutine):
            self._left.close()


class Tasks:
    """The running tasks of one owner; ``on_failure`` receives the name and the exception of each that fails."""

    def __init__(self, on_failure: Callable[[str, BaseException], None]) -> None:
        self._running: dict[asyncio.Task[None], None] = {}
        self._on_failure = on_failure

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task that belongs to the owner."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def runs(self, name: str) -> bool:
        """Return True if a task of this name runs."""
        return any(task.get_name() == name for task in self._running)

    async def end(self, *, but: str = "") -> None:
        """Cancel all tasks except those named ``but``, and wait until all have ended; the caller's own task goes on."""
        mine = asyncio.current_task() if self._running else None
        others = [task for task in self._running if task is not mine]
        for task in others:
            if task.get_name() != but:
                task.cancel()
        await until_ended(others)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(task.get_name(), error)
