"""Nodes, their lives, and the tasks and futures that belong to them.

Rule for this file: whatever may stand in a set (tasks, futures) hashes to its birth number, never to its address.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, Self


@dataclass(eq=False, slots=True)
class Incarnation:
    """One life of one node: a process between its start and its end."""

    node: str
    number: int
    alive: bool = True
    paused: bool = False
    queue: deque[asyncio.Handle] = field(default_factory=deque)
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


class BirthRegister(Protocol):
    """The loop, as far as a newborn task knows it."""

    def next_birth(self) -> int: ...


class SimTask(asyncio.Task[Any]):
    """A task whose hash is the order of its birth."""

    birth: int
    home: Incarnation
    label: str | None = None
    """As traces name it; made at its first step."""

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


def label_of(owner: object, callback: object) -> str:
    """What the trace calls a callback: birth number and function name, never an address."""
    if isinstance(owner, SimTask):
        if owner.label is None:
            owner.label = f"{owner.birth} {name_of(owner.get_coro())}"
        return owner.label
    return name_of(callback)


def name_of(thing: object) -> str:
    """The qualified name of a function, coroutine or partial; else of its type."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    return str(getattr(thing, "__qualname__", None) or type(thing).__qualname__)
