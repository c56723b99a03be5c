"""Where a reader begins: ``consume --offset``, in the words of kafka-console-consumer and kcat.

Rules for this file: text in, a place in each partition out; no question to a broker. A number that lies outside of the
log is an error, never another place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from minikafka.errors import OffsetOutOfRange
from minikafka.rest.records import moment_ms
from minikafka.types import Offset, TopicPartition

FORMS = "beginning (earliest), end (latest), N, -N (the last N), @MS or an ISO 8601 moment with a time zone"
DIGITS_MAX = 18


@dataclass(frozen=True, slots=True)
class Start:
    """``offset`` and ``last`` have a number of records, ``time`` has milliseconds since 1970."""

    kind: Literal["beginning", "end", "offset", "last", "time"]
    number: int = 0

    def within(self, name: TopicPartition, begin: Offset, end: Offset, at_time: Offset | None) -> Offset:
        """The offset in a log from ``begin`` to ``end`` (exclusive); ``at_time``: of the first record since, if any.

        Raises OffsetOutOfRange.
        """
        match self.kind:
            case "beginning":
                return begin
            case "end":
                return end
            case "last":
                return max(begin, end - self.number)
            case "time":
                return end if at_time is None else at_time
        if not begin <= self.number <= end:
            raise OffsetOutOfRange(f"{name}: offset {self.number} is outside {begin} to {end}")
        return self.number


BEGINNING = Start("beginning")
END = Start("end")


def parse_start(text: str) -> Start:
    """One of FORMS (``s@MS`` is kcat's); ValueError with one sentence."""
    if text in ("beginning", "earliest"):
        return BEGINNING
    if text in ("end", "latest"):
        return END
    number = text.removeprefix("s").removeprefix("@") if text.startswith(("@", "s@")) else text.removeprefix("-")
    if number.isascii() and number.isdigit() and len(number) <= DIGITS_MAX:
        kind: Literal["offset", "last", "time"] = "last" if text.startswith("-") else "offset"
        return Start("time" if "@" in text else kind, int(number))
    try:
        return Start("time", moment_ms(text))
    except ValueError:
        raise ValueError(f"{text!r}: {FORMS} is needed") from None
