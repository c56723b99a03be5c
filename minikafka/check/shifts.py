"""Records that moved together: one that is missing, or too many, moves all that follow it.

Reported record by record that would be half a log of disputed offsets; it is one fact, reported as one stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from minikafka.types import Offset

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbours in a log that moved by the same distance."""

    distance: int
    offsets: list[Offset]
    """Where they were acknowledged, rising."""


def moved_together(
    acknowledged: Mapping[Offset, Record], stands_at: Callable[[Record], Offset | None]
) -> list[Stretch]:
    """The stretches, in the order of offsets; a record that stands nowhere (None) neither belongs nor separates."""
    if all(stands_at(record) in {None, offset} for offset, record in acknowledged.items()):
        return []
    stretches: list[Stretch] = []
    for offset in sorted(acknowledged):
        place = stands_at(acknowledged[offset])
        if place is None:
            continue
        if not stretches or stretches[-1].distance != place - offset:
            stretches.append(Stretch(place - offset, []))
        stretches[-1].offsets.append(offset)
    return [each for each in stretches if each.distance]
