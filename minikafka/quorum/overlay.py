"""A table with a few changes laid over it, for images that are staged one after the other.

The controller decides thousands of requests for one batch, each on an image with those before it staged. A copied table
for each of them took time and memory that grew with the square of their number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

CHANGES_MAX: Final = 200
"""More changes than this become a table of their own: the changes are copied for each image, the table is not."""


class Overlay(Mapping[K, V]):
    """``base`` with changes. A table is changed only while the image that owns it is made."""

    __slots__ = ("base", "changed", "size")

    def __init__(self, table: Mapping[K, V]) -> None:
        self.base: Mapping[K, V] = table
        self.changed: dict[K, V | None] = {}
        """None: removed."""
        self.size = len(table)
        if isinstance(table, Overlay):
            if len(table.changed) < CHANGES_MAX:
                self.base, self.changed = table.base, dict(table.changed)
            else:
                self.base = dict(table)

    def __setitem__(self, key: K, value: V) -> None:
        self.size += key not in self
        self.changed[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self.size -= 1
        if key in self.base:
            self.changed[key] = None
        else:
            del self.changed[key]

    def __getitem__(self, key: K) -> V:
        if key not in self.changed:
            return self.base[key]
        value = self.changed[key]
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        # None is no value of a table: it stands for what was removed.
        return (self.changed[key] is not None) if key in self.changed else key in self.base

    def __iter__(self) -> Iterator[K]:
        for key in self.base:
            if key not in self.changed or self.changed[key] is not None:
                yield key
        for key, value in self.changed.items():
            if value is not None and key not in self.base:
                yield key

    def __len__(self) -> int:
        return self.size


def differing(old: Mapping[K, V], new: Mapping[K, V]) -> list[K]:
    """The keys that only one of the tables has, or whose values are not the same object, in any order."""
    if old is new:
        return []
    if isinstance(new, Overlay):
        before = old if isinstance(old, Overlay) else Overlay(old)
        if before.base is new.base:
            earlier, later = before.changed, new.changed
            changed = [key for key, value in later.items() if key not in earlier or earlier[key] is not value]
            changed += [key for key in earlier if key not in later]
            return [key for key in changed if old.get(key) is not new.get(key)]
    changed = [key for key, value in new.items() if old.get(key) is not value]
    return changed + [key for key in old if key not in new]
