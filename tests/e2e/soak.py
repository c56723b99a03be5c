"""Everything that takes as long as one likes: ``python -m tests.e2e.soak --minutes 60`` (``make soak MINUTES=60``).

In turns: chaos on real processes (the scenario ``storm``: a kill, a freeze or a cut every five seconds at full load; then
another scenario of the library), fresh seeds of the simulator, hostile requests against a broker that measures itself
(tests/fuzz), the search for planted bugs from seed 0 on. At the end, and
after Ctrl-C, it says what it covered: the verdict and figures of chaos, seeds and marks, bugs found. A failure is printed
with its seed, of real processes everything is kept, and it goes on: an hour tells of all that an hour can find. Exit code 1
after a failure, 0 without, 130 after Ctrl-C.
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
from msgspec.structs import replace

from minikafka.chaos.outcome import CLEAN, COUNTED_AS, Outcome, quantile
from minikafka.chaos.reading import find, library, read
from minikafka.chaos.runner import play
from minikafka.chaos.scenario import Scenario
from minikafka.chaos.target import lacks
from minikafka.sim.run import run
from minikafka.sim.seeds import plan_of
from tests.fuzz.run import Counts, fuzz
from tests.sim.histories import HISTORIES
from tests.sim.planted_table import Hunt

CYCLE_MINUTES = 20.0
"""A turn of all parts: a failure is found within that time, and a cluster's history does not grow with the hours."""

SHARES = {"chaos": 0.35, "seeds": 0.3, "histories": 0.1, "fuzz": 0.1, "hunt": 0.15}
STORM = "storm"
STORM_S_MIN = 20.0
"""However short the turn: some faults happen."""

MARKS_SHOWN = ("fault_", "named_", "damage_", "disk_", "message_")


def say(text: str) -> None:
    """A line with the time of day."""
    sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
    sys.stdout.flush()


def _may_be_played(path: Path) -> bool:
    scenario = read(path)
    return not lacks("processes", scenario) and not scenario.expect.loss


class ChaosTally:
    """The figures of all chaos runs together."""

    def __init__(self) -> None:
        self.runs = 0
        self.acknowledged = 0
        self.counts: Counter[str] = Counter()
        self.failovers = 0
        self.recoveries_s: list[float] = []
        self.unrecovered = 0
        self.available_s = 0.0
        self.seconds = 0.0
        """Of load: partitions times seconds."""

    def add(self, outcome: Outcome) -> None:
        """One run."""
        figures = outcome.figures
        self.runs += 1
        self.acknowledged += figures.acknowledged
        self.counts.update({member: outcome.count(member) for member in COUNTED_AS})
        self.failovers += figures.failovers
        told = [each.recovery_s for each in figures.recoveries]
        self.recoveries_s += [each for each in told if each is not None]
        self.unrecovered += told.count(None)
        weight_s = outcome.duration_s * len(figures.names)
        self.seconds += weight_s
        self.available_s += weight_s * (figures.availability(outcome.duration_s) or 0.0)

    def __str__(self) -> str:
        if not self.runs:
            return "nothing yet"
        counts = ", ".join(f"{member} {self.counts[member]}" for member in COUNTED_AS)
        p50, p99 = quantile(self.recoveries_s, 0.5) or 0.0, quantile(self.recoveries_s, 0.99) or 0.0
        return (
            f"{self.runs} runs, {self.acknowledged:,} records acknowledged, {counts};"
            f" {len(self.recoveries_s) + self.unrecovered} faults, {self.failovers} failovers,"
            f" recovery p50 {p50:.2f} s, p99 {p99:.2f} s, availability {100 * self.available_s / self.seconds:.2f} %"
        )


class Soak:
    """What was covered so far."""

    def __init__(self, seed: int) -> None:
        self.chaos = ChaosTally()
        self.others = [path for path in library() if path.stem != STORM and _may_be_played(path)]
        """Scenarios that are played beside the storm, in turn: those that may not lose anything."""
        self.runs = 0
        self.first_seed = self.next_seed = seed
        self.virtual_s = 0.0
        self.outcomes: Counter[str] = Counter()
        self.marks: Counter[str] = Counter()
        self.histories: Counter[str] = Counter()
        self.fuzzed: list[Counts] = []
        self.hunt = Hunt(say)
        self.hunted = 0
        self.failures: list[str] = []

    def turn(self, minutes: float) -> None:
        """Each part for its share."""
        self.real_chaos(minutes * SHARES["chaos"])
        self.fresh_seeds(minutes * SHARES["seeds"])
        self.random_histories(minutes * SHARES["histories"])
        self.hostile_requests(minutes * SHARES["fuzz"])
        self.planted_bugs(minutes * SHARES["hunt"])

    def real_chaos(self, minutes: float) -> None:
        """Real processes: the storm for its time, then one more scenario of the library."""
        other = self.others[self.chaos.runs // 2 % len(self.others)]
        self._play(find(STORM), max(STORM_S_MIN, 60 * minutes / 2))
        self._play_secured(max(STORM_S_MIN, 60 * minutes / 2))
        self._play(other, None)

    def _play_secured(self, duration_s: float) -> None:
        """The storm in namespaces under TLS and SCRAM, where they can be made."""
        scenario = read(find(STORM))
        secured = replace(scenario, cluster=replace(scenario.cluster, security_protocol="SASL_SSL"))
        missing = lacks("netns", secured)
        if missing:
            say(f"left out: {missing[0]}")
        else:
            self._play(find(STORM), duration_s, target="netns", scenario=secured)

    def _play(
        self, path: Path, duration_s: float | None, *, target: str = "processes", scenario: Scenario | None = None
    ) -> None:
        folder = Path(tempfile.mkdtemp(prefix="minikafka-soak-"))
        seed = self.first_seed + self.chaos.runs
        say(f"chaos: {path.stem} on {target}, seed {seed}, in {folder}")
        scenario = scenario or read(path)
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                work = play(scenario, target, seed=seed, folder=folder, duration_s=duration_s)
                outcome = runner.run(work)
        except KeyboardInterrupt:
            shutil.rmtree(folder)
            raise
        say(outcome.render())
        self.chaos.add(outcome)
        if outcome.verdict == CLEAN:
            shutil.rmtree(folder)
        else:
            self._failed(f"chaos {path.stem}, seed {seed}: {outcome.verdict}, everything is kept in {folder}")

    def _failed(self, what: str) -> None:
        say(f"NOT WELL: {what}")
        self.failures.append(what)

    def fresh_seeds(self, minutes: float) -> None:
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
                self._failed(f"simulator, seed {report.plan.seed}: {report.violations[0].name}")
        say(f"{self.runs} seeds so far, {self.virtual_s:,.0f} virtual seconds")

    def random_histories(self, minutes: float) -> None:
        """Small parts alone, in turn."""
        say("random histories of small parts")
        for name, (play_seed, _) in HISTORIES.items():
            ends_at = time.monotonic() + 60 * minutes / len(HISTORIES)
            while time.monotonic() < ends_at:
                seed = self.first_seed + self.histories[name]
                self.histories[name] += 1
                try:
                    play_seed(seed)
                except Exception as error:
                    self._failed(f"python -m tests.sim.histories {name} {seed}: {type(error).__name__}: {error}")
        say(", ".join(f"{count:,} of {name}" for name, count in self.histories.items()))

    def hostile_requests(self, minutes: float) -> None:
        """Generated requests against one broker process."""
        seed = self.first_seed + len(self.fuzzed)
        say(f"hostile requests, seed {seed}")
        counts = fuzz(seed, seconds=60 * minutes)
        self.fuzzed.append(counts)
        say(counts.render())
        if counts.faults:
            self._failed(f"hostile requests, seed {seed}: {counts.faults[0]}")

    def planted_bugs(self, minutes: float) -> None:
        """How many seeds does each planted bug need? It goes on where the last turn ended."""
        say("search for planted bugs")
        missed = len(self.hunt.missed)
        self.hunt.go(ends_at=time.monotonic() + 60 * minutes, skip=self.hunted)
        self.hunted = len(self.hunt.found) + len(self.hunt.missed)
        for name in self.hunt.missed[missed:]:
            self._failed(f"planted bug {name}: not found")

    def summary(self) -> str:
        """What it covered."""
        marks = {name: count for name, count in sorted(self.marks.items()) if name.startswith(MARKS_SHOWN)}
        shown = ", ".join(f"{name} {count:,}" for name, count in marks.items())
        outcomes = ", ".join(f"{name} {count:,}" for name, count in sorted(self.outcomes.items()))
        lines = [
            f"chaos on real processes: {self.chaos}",
            f"simulator: {self.runs} seeds from {self.first_seed} on, {self.virtual_s:,.0f} virtual seconds; {outcomes}",
            "random histories: " + ", ".join(f"{name} {count:,}" for name, count in self.histories.items()),
            (
                f"hostile requests: {sum(each.requests for each in self.fuzzed):,}, "
                f"longest hold {1000 * max((each.longest_hold_s for each in self.fuzzed), default=0.0):.1f} ms of CPU"
            ),
            f"marks: {len(self.marks)} kinds of event; {shown}",
            f"planted bugs: {len(self.hunt.found)} found in {self.hunt.seeds} runs, not found: "
            + (", ".join(self.hunt.missed) or "none"),
        ]
        lines += [f"NOT WELL: {failure}" for failure in self.failures]
        return "\n".join(f"  {line}" for line in lines)


def main() -> int:
    """Exit code 0 when all was well, 1 when not, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(description="chaos, seeds and planted bugs for as long as you like")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="the first (default: the time)")
    options = parser.parse_args()
    soak = Soak(int(time.time()) if options.seed is None else options.seed)
    ends_at = time.monotonic() + 60 * options.minutes
    was_stopped = False
    try:
        while time.monotonic() < ends_at:
            soak.turn(min(CYCLE_MINUTES, (ends_at - time.monotonic()) / 60))
    except KeyboardInterrupt:
        say("stopped")
        was_stopped = True
    say(("NOT WELL" if soak.failures else "all was well") + "; covered:\n" + soak.summary())
    if was_stopped:
        return 130
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())
