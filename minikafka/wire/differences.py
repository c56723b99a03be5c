"""Differences between two states made of JSON values, as the live stream sends them.

A state is an object whose values are JSON values. A change is ``[path, value]``, or
``[path]`` for a member that is gone; a path is the list of member names from the root. Lists are replaced as a whole.
A reader that applies all changes of all differences in order has the sender's state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

State: TypeAlias = Mapping[str, Any]
Change: TypeAlias = list[Any]


def difference(before: State, after: State) -> list[Change]:
    """Return the changes that turn ``before`` into ``after``; empty if they are equal."""
    return list(_changes(before, after, ()))


def _changes(before: State, after: State, path: tuple[str, ...]) -> Iterator[Change]:
    for name in before:
        if name not in after:
            yield [[*path, name]]
    for name, value in after.items():
        old = before.get(name)
        if name in before and isinstance(old, Mapping) and isinstance(value, Mapping):
            yield from _changes(old, value, (*path, name))
        # True equals 1 in Python, but not in JSON.
        elif name not in before or old != value or type(old) is not type(value):
            yield [[*path, name], value]
