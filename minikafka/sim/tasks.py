"""Nodes, their lives, and the tasks and futures that belong to them.

Rule for this file: whatever may stand in a set (tasks, futures) hashes to its birth number, never to its address.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, Self


@dataclass(eq=False, slots=True)
class Incarnation:
    """One life of one node: a process between its start and its end."""

    node: str
    number: int
    alive: bool = True
    paused: bool = False
    queue: deque[SimHandle] = field(default_factory=deque)
    tasks: dict[int, SimTask] = field(default_factory=dict)
    """Unfinished tasks by birth number."""
    label: str = ""
    """Node and number, as traces name it."""

    def __post_init__(self) -> None:
        self.label = f"{self.node}#{self.number}"

    def __str__(self) -> str:
        return self.label


NODE: ContextVar[Incarnation | None] = ContextVar("NODE", default=None)
"""Whose code runs; None is the simulation itself (the test's script, the links between nodes)."""


def current_node() -> str:
    """The name of the node whose code runs; empty for the simulation itself."""
    incarnation = NODE.get()
    return incarnation.node if incarnation is not None else ""


def _nothing() -> None:
    """What a cancelled handle would call."""


class SimHandle:
    """What asyncio's Handle and TimerHandle are, without what only real loops and debuggers need of them."""

    __slots__ = ("_cancelled", "_when", "args", "callback", "context", "home", "on_cancel")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, home: Incarnation, when: float
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.home = home
        """On whose queue it runs."""
        self.on_cancel: Callable[[], None] | None = None
        """Told of its end, while it is a timer that has not fired."""
        self._when = when
        self._cancelled = False

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self.callback, self.args = _nothing, ()  # a timer stays in the heap, what it would have called need not
            if self.on_cancel is not None:
                self.on_cancel()

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        """Virtual seconds at which a timer fires."""
        return self._when


class BirthRegister(Protocol):
    """The loop, as far as a newborn task knows it."""

    def next_birth(self) -> int: ...


class SimTask(asyncio.Task[Any]):
    """A task whose hash is the order of its birth."""

    birth: int
    home: Incarnation
    label: str
    """As traces name it: birth number and function name, never an address."""

    def __new__(cls, *_: object, loop: BirthRegister, **__: object) -> Self:
        # Set before __init__, which already puts the task into a set (3.11).
        task = super().__new__(cls)
        task.birth = loop.next_birth()
        return task

    def __hash__(self) -> int:
        return self.birth

    def __eq__(self, other: object) -> bool:
        return self is other


class SimFuture(asyncio.Future[Any]):
    """A future whose hash is the order of its birth."""

    birth: int

    def __new__(cls, *, loop: BirthRegister) -> Self:
        future = super().__new__(cls)
        future.birth = loop.next_birth()
        return future

    def __hash__(self) -> int:
        return self.birth

    def __eq__(self, other: object) -> bool:
        return self is other


def name_of(thing: object) -> str:
    """The qualified name of a function, coroutine or partial; else of its type."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    return str(getattr(thing, "__qualname__", None) or type(thing).__qualname__)
