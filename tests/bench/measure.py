"""Timing: closed loops with a stated concurrency, rows and yardsticks in turn, medians and ratios."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Step = Callable[[int], Awaitable[None]]
"""One operation; its argument is the lane (0 to concurrency - 1) that does it."""


@dataclass(frozen=True)
class Run:
    """One closed loop: how often, how long, and each operation's time."""

    count: int
    seconds: float
    latencies: tuple[float, ...]

    @property
    def per_second(self) -> float:
        return self.count / self.seconds

    def percentile(self, share: float) -> float:
        """The latency in seconds that ``share`` of the operations did not exceed."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


async def closed_loop(step: Step, *, count: int, concurrency: int) -> Run:
    """``concurrency`` lanes that each do one operation after the other, ``count`` in all."""
    left = count
    latencies: list[float] = []

    async def lane(number: int) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            began = time.perf_counter()
            await step(number)
            latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(lane(number) for number in range(concurrency)))
    return Run(count, time.perf_counter() - began, tuple(latencies))


@dataclass(frozen=True)
class Row:
    """One line of the report: a figure, its yardstick in the same run, their ratio and the floor for it."""

    name: str
    unit: str
    ours: float
    bare: float
    ratio: float
    floor: float
    at_least: bool = True
    """The ratio must be at least the floor; False: at most."""
    note: str = ""

    @property
    def reached(self) -> bool:
        return self.ratio >= self.floor if self.at_least else self.ratio <= self.floor

    def as_json(self) -> dict[str, object]:
        """The row as the JSON output has it."""
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": self.ours,
            "bare": self.bare,
            "ratio": self.ratio,
            "floor": self.floor,
            "bound": "at least" if self.at_least else "at most",
            "reached": self.reached,
            "note": self.note,
        }


async def in_turn(
    ours: Callable[[], Awaitable[float]], bare: Callable[[], Awaitable[float]], *, rounds: int
) -> tuple[float, float]:
    """Measure both ``rounds`` times, one after the other, after a warm-up of each; the medians."""
    await ours()
    await bare()
    figures: list[tuple[float, float]] = [(await ours(), await bare()) for _ in range(rounds)]
    return statistics.median(each[0] for each in figures), statistics.median(each[1] for each in figures)
