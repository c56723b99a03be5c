"""Where a group is to go on: the goals of kafka-consumer-groups' ``--reset-offsets``, as offsets.

Every goal is brought between the log's start and its end, as Kafka's tool does: what was deleted cannot be read again,
and what is not there yet cannot be skipped.

Rules for this file: pure; times are milliseconds since 1970, and who asks has looked them up in the logs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from minikafka.types import Offset

EARLIEST, LATEST, CURRENT, OFFSET, SHIFT, TIME = "earliest", "latest", "current", "offset", "shift", "time"
KINDS = (EARLIEST, LATEST, CURRENT, OFFSET, SHIFT, TIME)

_DURATION = re.compile(
    r"P(?:(?P<days>\d+(?:\.\d+)?)D)?"
    r"(?:T(?:(?P<hours>\d+(?:\.\d+)?)H)?(?:(?P<minutes>\d+(?:\.\d+)?)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_SECONDS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}
DURATION_MS_MAX = 10**14
"""Three thousand years: longer ones are typing errors."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One of ``KINDS``, with what belongs to it."""

    kind: str
    offset: Offset = 0
    shift: int = 0
    time_ms: int = 0

    def of(self, *, start: Offset, end: Offset, committed: Offset | None, at_time: Offset | None = None) -> Offset:
        """The new offset of a partition whose log goes from ``start`` to ``end``.

        Without a commit the current offset is the end, as in Kafka's tool. ``at_time``: the first record at or after
        ``time_ms``; None: there is none, which is the end.
        """
        current = end if committed is None else committed
        wanted = {
            EARLIEST: start,
            LATEST: end,
            CURRENT: current,
            OFFSET: self.offset,
            SHIFT: current + self.shift,
            TIME: end if at_time is None else at_time,
        }[self.kind]
        return min(max(wanted, start), end)


def duration_ms(text: str) -> int:
    """ISO 8601, ``P1DT2H30M5S``, as in Kafka; or a number of seconds. ValueError: it is something else."""
    found = _DURATION.fullmatch(text)
    if found is not None and any(found.groups()):
        seconds = sum(_SECONDS[unit] * float(value) for unit, value in found.groupdict().items() if value)
    elif re.fullmatch(r"\d{1,15}(?:\.\d{1,9})?", text, re.ASCII):
        seconds = float(text)
    else:
        raise ValueError(f"{text[:60]!r}: PnDTnHnMnS is the form (PT1H30M), or a number of seconds")
    if seconds * 1000 > DURATION_MS_MAX:
        raise ValueError(f"{text[:60]!r} is longer ago than anything")
    return int(seconds * 1000)
