"""Small books for the judge: where values stand, and which offsets a reader passed."""

from __future__ import annotations

from bisect import bisect_right
from typing import TypeAlias

from minikafka.types import Offset

Place: TypeAlias = tuple[int, Offset]
"""(partition, offset)"""


class Places:
    """Where each value of a topic stands: mostly one place, and a list of all for those with several."""

    def __init__(self) -> None:
        self.first: dict[str, Place] = {}
        self.several: dict[str, list[Place]] = {}

    def add(self, value: str, place: Place) -> None:
        first = self.first.setdefault(value, place)
        if first is not place:
            self.several.setdefault(value, [first]).append(place)


class Stretches:
    """Half-open stretches of offsets that may overlap; answers whether an offset lies in one."""

    def __init__(self, stretches: list[tuple[Offset, Offset]]) -> None:
        self._starts: list[Offset] = []
        self._ends: list[Offset] = []
        for start, end in sorted(stretches):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    def contains(self, offset: Offset) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]
