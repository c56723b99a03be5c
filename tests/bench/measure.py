"""Timing: closed loops with a stated concurrency, rows and yardsticks in turn, medians and ratios."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

BARE = "bare aiohttp"
KAFKA = "Apache Kafka"

Step = Callable[[int], Awaitable[object]]
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


class CpuMeter:
    """CPU seconds that some processes have used, between two readings: what a busy machine does not distort."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._before = self._read()

    def _read(self) -> float:
        return sum(map(_cpu_seconds, self._pids))

    def lap(self) -> float:
        """CPU seconds since the last reading, all processes together."""
        now = self._read()
        spent, self._before = now - self._before, now
        return spent


def _cpu_seconds(pid: int) -> float:
    """To the nanosecond where the kernel tells it, else to its tick of 10 ms."""
    told = list(Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if told:
        return sum(int(each.read_text().split()[0]) for each in told) / 1e9
    return sum(psutil.Process(pid).cpu_times()[:2])


@dataclass(frozen=True)
class Row:
    """One line of the report: a figure, its yardstick in the same run, their ratio and the floor for it."""

    name: str
    unit: str
    ours: float
    bare: float
    ratio: float
    """The median of the rounds' ratios: the two halves of a round saw the same machine."""
    floor: float | None = None
    at_least: bool = True
    """The ratio must be at least the floor; False: at most."""
    note: str = ""
    same_work: bool = True
    """Does the yardstick do the same? False: it only gives the figure a scale, and the picture leaves the row out."""
    beside: str = BARE
    """The yardstick's name; Kafka's with its version."""

    @property
    def reached(self) -> bool | None:
        """None: there is no floor."""
        if self.floor is None:
            return None
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
            "same_work": self.same_work,
            "beside": self.beside,
        }


@dataclass(frozen=True)
class Pair:
    """Medians of two interleaved measurements, and the median of their ratios."""

    ours: float
    bare: float
    ratio: float
    quartiles: tuple[float, float] = (0.0, 0.0)
    """Half of the rounds' ratios are between these two."""


async def in_turn(
    ours: Callable[[], Awaitable[float]], bare: Callable[[], Awaitable[float]], *, rounds: int, warm_up: int = 1
) -> Pair:
    """Measure both ``rounds`` times, one after the other, after ``warm_up`` rounds that do not count.

    Each side comes first in every other round: what the first leaves behind is a burden for both.
    """
    figures = []
    for number in range(warm_up + rounds):
        if number % 2:
            second = await bare()
            figures.append((await ours(), second))
        else:
            figures.append((await ours(), await bare()))
    del figures[:warm_up]
    ratios = [each[0] / each[1] for each in figures]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if rounds > 1 else ratios * 3
    return Pair(
        statistics.median(each[0] for each in figures),
        statistics.median(each[1] for each in figures),
        statistics.median(ratios),
        (low, high),
    )
