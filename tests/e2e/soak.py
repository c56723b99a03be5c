"""Everything that takes as long as one likes: ``python -m tests.e2e.soak --minutes 60`` (``make soak MINUTES=60``).

In turns: kill -9 rounds with real processes, fresh seeds of the simulator, the search for planted bugs from seed 0 on.
At the end, and after Ctrl-C, it says what it covered: kills and records, seeds and marks, bugs found. The first failure
ends it with exit code 1; the seed is printed, and of real processes everything is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import uvloop

from minikafka.sim.plan import plan_of
from minikafka.sim.run import run
from tests.e2e.kill_loop import Outcome, kill_loop
from tests.sim.planted_table import Hunt

CYCLE_MINUTES = 20.0
"""A turn of all parts: a failure is found within that time, and a cluster's history does not grow with the hours."""

SHARES = {"kills": 0.4, "seeds": 0.4, "hunt": 0.2}
ROUNDS_MIN = 3
"""Of real kills in a turn, however short: each role dies once."""

MARKS_SHOWN = ("fault_", "named_", "damage_", "disk_", "message_")


def say(text: str) -> None:
    """A line with the time of day."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
    sys.stdout.flush()


class Soak:
    """What was covered so far."""

    def __init__(self, seed: int, rate: float) -> None:
        self.kills = 0
        self.stretches = 0
        self.acknowledged = 0
        self.runs = 0
        self.first_seed = self.next_seed = seed
        self.virtual_s = 0.0
        self.outcomes: Counter[str] = Counter()
        self.marks: Counter[str] = Counter()
        self.hunt = Hunt(say)
        self.hunted = 0
        self._rate = rate

    def turn(self, minutes: float) -> bool:
        """Each part for its share; was all well?"""
        return (
            self.kill_and_restart(minutes * SHARES["kills"])
            and self.fresh_seeds(minutes * SHARES["seeds"])
            and self.planted_bugs(minutes * SHARES["hunt"])
        )

    def kill_and_restart(self, minutes: float) -> bool:
        """Real processes: one cluster, its brokers killed in turn under load, and its verdict."""
        folder = Path(tempfile.mkdtemp(prefix="minikafka-soak-"))
        seed = self.first_seed + self.stretches
        say(f"kill -9 of real processes, seed {seed}, in {folder}")
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                outcome = runner.run(self._stretch(folder, minutes, seed))
        except KeyboardInterrupt:
            shutil.rmtree(folder)
            raise
        say(str(outcome))
        self.acknowledged += outcome.verdict.counts.acknowledged
        if not outcome.well:
            say(f"NOT WELL: seed {seed}, everything is kept in {folder}")
            return False
        shutil.rmtree(folder)
        return True

    async def _stretch(self, folder: Path, minutes: float, seed: int) -> Outcome:
        self.stretches += 1
        before, ends_at = self.kills, time.monotonic() + 60 * minutes

        def go_on(played: int) -> bool:
            self.kills = before + played
            return played < ROUNDS_MIN or time.monotonic() < ends_at

        return await kill_loop(folder, go_on=go_on, seed=seed, rate=self._rate, say=say)

    def fresh_seeds(self, minutes: float) -> bool:
        """The simulator, seed after seed that nobody has seen."""
        say(f"simulator, from seed {self.next_seed} on")
        ends_at = time.monotonic() + 60 * minutes
        while time.monotonic() < ends_at:
            report = run(plan_of(self.next_seed))
            self.runs += 1
            self.next_seed += 1
            self.virtual_s += report.virtual_s
            self.marks.update(report.marks)
            self.outcomes.update(report.outcomes)
            if not report.ok:
                say(report.render())
                return False
        say(f"{self.runs} seeds so far, {self.virtual_s:,.0f} virtual seconds")
        return True

    def planted_bugs(self, minutes: float) -> bool:
        """How many seeds does each planted bug need? It goes on where the last turn ended."""
        say("search for planted bugs")
        self.hunt.go(ends_at=time.monotonic() + 60 * minutes, skip=self.hunted)
        self.hunted = len(self.hunt.found) + len(self.hunt.missed)
        return not self.hunt.missed

    def summary(self) -> str:
        """What it covered."""
        marks = {name: count for name, count in sorted(self.marks.items()) if name.startswith(MARKS_SHOWN)}
        shown = ", ".join(f"{name} {count:,}" for name, count in marks.items())
        outcomes = ", ".join(f"{name} {count:,}" for name, count in sorted(self.outcomes.items()))
        lines = [
            f"real processes: {self.kills} kills in {self.stretches} clusters, {self.acknowledged:,} records acknowledged",
            f"simulator: {self.runs} seeds from {self.first_seed} on, {self.virtual_s:,.0f} virtual seconds; {outcomes}",
            f"marks: {len(self.marks)} kinds of event; {shown}",
            f"planted bugs: {len(self.hunt.found)} found in {self.hunt.seeds} runs, not found: "
            + (", ".join(self.hunt.missed) or "none"),
        ]
        return "\n".join(f"  {line}" for line in lines)


def main() -> int:
    """Exit code 0 when all was well, 1 when not, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description="kills, seeds and planted bugs for as long as you like")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="the first (default: the time)")
    parser.add_argument("--rate", type=float, default=300.0, help="records a second, for each of three producers")
    options = parser.parse_args()
    soak = Soak(int(time.time()) if options.seed is None else options.seed, options.rate)
    ends_at = time.monotonic() + 60 * options.minutes
    code = 0
    try:
        while code == 0 and time.monotonic() < ends_at:
            left = (ends_at - time.monotonic()) / 60
            code = 0 if soak.turn(min(CYCLE_MINUTES, left)) else 1
    except KeyboardInterrupt:
        say("stopped")
        code = 130
    say({0: "all was well", 1: "NOT WELL"}.get(code, "so far all was well") + "; covered:\n" + soak.summary())
    return code


if __name__ == "__main__":
    sys.exit(main())
