"""Differences between two states made of JSON values, as the live stream sends them.

A state is an object whose values are JSON values. Lists are replaced as a whole. A change begins with a path, the list
of member names from the root of the state, and has one of three forms:

- ``[path, value]``: the member has this value;
- ``[path]``: the member is gone;
- ``[path, names, values]``: these members of the object at the path have these values. It saves the repeated path where
  several members of one object have changed, as those of each partition when a broker dies.

A reader that applies all changes of all differences in order has the sender's state. A sender must not modify a state
after it was compared: parts that two states share are equal without a look at their members.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

State: TypeAlias = dict[str, Any]
Change: TypeAlias = list[Any]


def difference(before: State, after: State) -> list[Change]:
    """Return the changes that turn ``before`` into ``after``; empty if they are equal."""
    return list(_changes(before, after, []))


def _changes(before: State, after: State, path: list[str]) -> Iterator[Change]:
    if before is after:
        return
    for name in before:
        if name not in after:
            yield [[*path, name]]
    changed: list[str] = []
    for name, value in after.items():
        old = before.get(name, _ABSENT)
        if old is value:
            continue
        if isinstance(old, dict) and isinstance(value, dict):
            yield from _changes(old, value, [*path, name])
        # True equals 1 in Python, but not in JSON.
        elif old != value or type(old) is not type(value):
            changed.append(name)
    if len(changed) == 1:
        yield [[*path, changed[0]], after[changed[0]]]
    elif changed:
        yield [path, changed, [after[name] for name in changed]]


_ABSENT = object()
