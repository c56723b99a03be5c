"""Nodes, their lives, and the tasks and futures that belong to them.

Rule for this file: whatever may stand in a set (tasks, futures) hashes to its birth number, never to its address.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from dataclasses import dataclass, field
from typing import Any


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
    has_turn: bool = False
    """It runs, or is among those of whom the loop chooses."""

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

    __slots__ = ("args", "callback", "context", "home", "is_cancelled")

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: Context, home: Incarnation
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.home = home
        """On whose queue it runs."""
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback, self.args = _nothing, ()  # a timer stays in the heap, what it would have called need not

    def cancelled(self) -> bool:
        return self.is_cancelled


def _birth(born: Any) -> int:
    """The hash of a task or future: given by the loop when it is first asked for, of a task at its birth."""
    try:
        birth: int = born.birth
    except AttributeError:
        birth = born.birth = born.get_loop().next_birth()
    return birth


class SimTask(asyncio.Task[Any]):
    """A task whose hash is the order of its birth."""

    birth: int
    home: Incarnation
    label: str
    """As traces name it: birth number and function name, never an address."""

    __hash__ = _birth


class SimFuture(asyncio.Future[Any]):
    """A future whose hash is the order in which it first stood in a set."""

    birth: int

    __hash__ = _birth


def name_of(thing: object) -> str:
    """The qualified name of a function, coroutine or partial; else of its type."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    name: str = getattr(thing, "__qualname__", "")
    kind: Any = type(thing)
    return name or _name_of_type(kind)


@functools.lru_cache
def _name_of_type(kind: Any) -> str:
    """The name of a type. That of a coroutine of a compiled method is ``method_Class_gen``: here it has the name that
    it has in the Python sources, so that traces of both builds are the same.
    """
    name: str = kind.__qualname__
    if not name.endswith("_gen"):
        return name
    name = name.removesuffix("_gen")
    classes = [each for each, what in vars(sys.modules[kind.__module__]).items() if isinstance(what, type)]
    owner = max((each for each in classes if name.endswith(f"_{each}")), key=len, default="")
    return f"{owner}.{name.removesuffix(f'_{owner}')}" if owner else name
