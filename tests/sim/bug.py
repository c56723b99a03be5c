"""One planted bug, whichever ground it is hunted on: what is replaced, where it shows, and by which name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.sim import grounds

SEEDED: dict[str, Callable[[int], str | None]] = {
    "log": grounds.log,
    "replicas": grounds.replicas,
    "quorum": grounds.quorum,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A patch of one small rule; production carries no switches."""

    name: str
    source: str
    """The issue or KIP that it imitates, or ``ours``."""
    area: str
    story: str
    patches: Sequence[tuple[Any, str, Any]]
    """(class or module, attribute, replacement)"""
    caught_by: tuple[str, ...] = ()
    """Names of what breaks; of a story or a drill its own name."""
    ground: str
    """See ``grounds.py``."""
    seed: int = 0
    """The first seed from 0 on that catches it, on a seeded ground."""
    budget: int = 0
    """If that one has rotted: so many seeds may be tried."""
    told_in: str | Callable[[], None] = ""
    """The scenario, or the directed test."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Plant it, and take it out again."""
        kept = [(owner, name, owner.__dict__[name]) for owner, name, _ in self.patches]
        try:
            for owner, name, replacement in self.patches:
                setattr(owner, name, replacement)
            yield
        finally:
            for owner, name, original in kept:
                setattr(owner, name, original)

    def play(self, seed: int) -> str | None:
        """Once on its ground, as the code stands: the name of what broke, or None."""
        if self.ground in SEEDED:
            return SEEDED[self.ground](seed)
        if isinstance(self.told_in, str):
            return grounds.story(self.told_in)
        return grounds.drill(self.told_in)

    @property
    def names(self) -> tuple[str, ...]:
        """By which it may be caught."""
        if self.ground in SEEDED:
            return self.caught_by
        return (self.told_in if isinstance(self.told_in, str) else grounds.drill_name(self.told_in),)
