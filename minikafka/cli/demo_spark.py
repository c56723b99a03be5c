"""The end of the demo: Spark's flights job over the topic, checked against the same aggregation in plain Python."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minikafka.cli.flights import Flight
from minikafka.config import DAY_MS
from minikafka.errors import WorldError
from minikafka.spark.jobs.flights import LATE_MINUTES
from minikafka.spark.session import INSTALL_SPARK

JOB_TIMEOUT_S = 300.0
QUIET_INTERVAL_S = 5.0
"""After this long without news of the job, the demo says that it is still at work."""

LEFT_OUT = f"Spark is not installed, so the Spark job is left out ({INSTALL_SPARK})"


class JobFailed(WorldError):
    """The Spark job ended without a result; the message has its last words."""


def is_installed() -> bool:
    """Is there a Spark to run?"""
    return importlib.util.find_spec("pyspark") is not None


async def run_job(
    bootstrap: str, topic: str, summary_topic: str, folder: Path, report: Callable[[str], None]
) -> dict[str, Any]:
    """Run ``minikafka spark flights`` in a process of its own; its JSON. JobFailed."""
    command = [sys.executable, "-m", "minikafka", "spark", "flights", "-b", bootstrap, "--topic", topic, "-o", "json"]
    command += ["--into", str(folder / "delays"), "--checkpoint", str(folder / "delays-checkpoint")]
    process = await asyncio.create_subprocess_exec(
        *command, "--summary-topic", summary_topic, stdout=PIPE, stderr=PIPE, start_new_session=True
    )
    last = ""
    news = asyncio.Event()

    async def listen(stream: asyncio.StreamReader) -> None:
        nonlocal last
        async for line in stream:
            text = line.decode(errors="replace").strip()
            # The JVM writes to standard error too; only the job's own lines are shown.
            if text.startswith("flights: "):
                report(text.removeprefix("flights: "))
                news.set()
            last = text or last

    async def fill_silence() -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        while True:
            try:
                async with asyncio.timeout(QUIET_INTERVAL_S):
                    await news.wait()
            except TimeoutError:
                report(f"still at work, {loop.time() - since:.0f} s after the last step")
            else:
                news.clear()
                since = loop.time()

    filling = asyncio.ensure_future(fill_silence())
    try:
        async with asyncio.timeout(JOB_TIMEOUT_S):
            if process.stdout is None or process.stderr is None:
                raise JobFailed("the job has no output")
            output, _ = await asyncio.gather(process.stdout.read(), listen(process.stderr))
            code = await process.wait()
    except TimeoutError:
        raise JobFailed(f"the Spark job has not ended after {JOB_TIMEOUT_S:.0f} s; it said: {last}") from None
    finally:
        filling.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code != 0:
        raise JobFailed(f"the Spark job ended with {code}, saying: {last}")
    result: dict[str, Any] = json.loads(output)
    return result


@dataclass(slots=True)
class Direct:
    """The same aggregation without Spark: windows of a day, in UTC, that ended by ``until_ms``."""

    until_ms: int
    windows: set[tuple[int, str, str]] = field(default_factory=set)
    totals: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """(airport, carrier) -> flights, late ones, sum of delays, flights whose delay is known."""

    def add(self, flight: Flight) -> None:
        """Count one flight."""
        day = flight.timestamp_ms // DAY_MS
        if (day + 1) * DAY_MS > self.until_ms:
            return
        row = json.loads(flight.value)
        self.windows.add((day, row["origin"], row["carrier"]))
        total = self.totals.setdefault((row["origin"], row["carrier"]), [0, 0, 0, 0])
        delay = row["dep_delay"]
        total[0] += 1
        if delay is not None:
            total[1] += delay >= LATE_MINUTES
            total[2] += delay
            total[3] += 1

    def differences(self, summary: dict[str, Any]) -> list[str]:
        """Sentences on what the job counted otherwise; empty when it agrees."""
        theirs = {
            (line["origin"], line["carrier"]): [line[name] for name in ("flights", "late", "delay_sum", "delay_known")]
            for line in summary["lines"]
        }
        found = [
            f"{'/'.join(place)}: Spark {theirs.get(place)}, directly {self.totals.get(place)}"
            for place in sorted(theirs.keys() | self.totals.keys())
            if theirs.get(place) != self.totals.get(place)
        ]
        if summary["windows"] != len(self.windows):
            found.append(f"windows: Spark {summary['windows']}, directly {len(self.windows)}")
        return found


def directly(flights: Iterable[Flight], until_ms: int) -> Direct:
    """Aggregate the data set itself."""
    direct = Direct(until_ms)
    for flight in flights:
        direct.add(flight)
    return direct
