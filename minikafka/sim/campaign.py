"""Many runs: in one process or several, their results, and how far they are. Also a plan from its file, for one run.

Rules for this file:

1. Reports come in the order of the tasks, however many processes run them: a campaign is the same with any ``jobs``.
2. Ctrl-C goes to the parent alone; it ends the processes and reports what was found so far.
3. Real time is read here and nowhere below: it is for the pace that is shown, and decides nothing.
4. People write plans too, so :func:`read_plan` refuses one that no run could carry out.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, TextIO

from minikafka import compiled
from minikafka.errors import InvalidConfig, did_you_mean
from minikafka.faults import CLIENT_END, View, links_of, nodes_of, with_any_client
from minikafka.sim.departures import DEPARTURES
from minikafka.sim.faults import Faults
from minikafka.sim.group_plans import MEMBER_FAULTS
from minikafka.sim.plan import Fault, Plan
from minikafka.sim.plan_features import CLIENT_FAULTS
from minikafka.sim.run import Report, run
from minikafka.sim.seeds import FAMILIES
from minikafka.sim.transactor_plans import TRANSACTOR_FAULTS

ALL_PLANS: Final = "all"
"""The family of ``sim run`` unless another one is named."""

REDRAWN_EVERY_S: Final = 0.25
"""The line of progress on a screen."""

TOLD_EVERY_S: Final = 30.0
"""Lines of progress in a file."""

RUNS_OF_A_PROCESS: Final = 20
"""How many runs a worker process makes before another one takes its place. Each leaves some 7 MB behind."""


@dataclass(frozen=True, slots=True)
class Task:
    """One plan to run: a kept one's file, or a seed of a family."""

    seed: int = 0
    family: str = ALL_PLANS
    file: str = ""

    def plan(self) -> Plan:
        """Read it, or draw it."""
        if self.file:
            return read_plan(Path(self.file))
        return FAMILIES[self.family](self.seed)

    @property
    def replay(self) -> str:
        """The command that runs it again."""
        what = self.file or f"--seed {self.seed}{'' if self.family == ALL_PLANS else f' --family {self.family}'}"
        return f"python -m minikafka.sim run {what}"


class Done(NamedTuple):
    """One run, and what it cost."""

    report: Report
    cpu_s: float


def run_task(task: Task) -> Done:
    """Draw the plan and run it."""
    began = time.process_time()
    report = run(task.plan(), hashes_trace=False)
    return Done(report, time.process_time() - began)


def run_tasks(tasks: Sequence[Task], jobs: int) -> Iterator[Done]:
    """In the order of the tasks; leaving early, by an exception too, ends the processes."""
    if jobs == 1:
        yield from map(run_task, tasks)
        return
    # Forked by a server that has imported everything, which libraries of macOS do not survive; and replaced before the
    # worlds of past runs fill the memory.
    processes = multiprocessing.get_context("spawn" if sys.platform == "darwin" else "forkserver")
    if sys.platform != "darwin":
        processes.set_forkserver_preload([__name__])
    with processes.Pool(jobs, initializer=begin_worker, maxtasksperchild=RUNS_OF_A_PROCESS) as pool:
        yield from pool.imap(run_task, tasks)


def begin_worker() -> None:
    """Leave Ctrl-C to the parent: a terminal interrupts the whole group of processes, and one must be there to sum up.

    The garbage collector would take 5 % of the time to take the worlds of past runs apart; they go with the process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.disable()


class Campaign:
    """What many runs came to."""

    def __init__(self, jobs: int = 1) -> None:
        self.runs = 0
        self.violations: list[dict[str, object]] = []
        self.marks: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        """Of all plans: brokers, operations, faults, groups."""
        self.virtual_s = 0.0
        self.cpu_s = 0.0
        self.jobs = jobs
        self.is_cut_short = False
        self._began = time.perf_counter()

    def add(self, done: Done) -> None:
        """Count one run."""
        report, plan = done.report, done.report.plan
        self.runs += 1
        self.virtual_s += report.virtual_s
        self.cpu_s += done.cpu_s
        self.marks.update(report.marks)
        self.sizes.update(
            brokers=plan.brokers, operations=len(plan.operations), faults=len(plan.faults), groups=len(plan.groups)
        )
        self.violations += [
            {"seed": plan.seed, "name": each.name, "what": each.what, "time": each.time, "step": each.step}
            for each in report.violations[:1]
        ]

    @property
    def elapsed_s(self) -> float:
        """Real seconds since the beginning."""
        return max(time.perf_counter() - self._began, 1e-9)

    def to_json(self) -> dict[str, object]:
        """The contract of ``run -o json``: seeds, violations, seeds_per_second, virtual_over_real, marks; beside them
        what one core did, how large the plans were on average, and whether the rules were compiled.
        """
        cpu_s = max(self.cpu_s, 1e-9)
        return {
            "seeds": self.runs,
            "violations": self.violations,
            "interrupted": self.is_cut_short,
            "build": compiled.build(),
            "jobs": self.jobs,
            "seconds": round(self.elapsed_s, 1),
            "seeds_per_second": round(self.runs / self.elapsed_s, 2),
            "seeds_per_core_second": round(self.runs / cpu_s, 2),
            "virtual_over_real": round(self.virtual_s / self.elapsed_s, 1),
            "virtual_over_core": round(self.virtual_s / cpu_s, 1),
            "plan": {name: round(total / max(self.runs, 1), 2) for name, total in sorted(self.sizes.items())},
            "marks": dict(sorted(self.marks.items())),
        }

    def summary(self) -> str:
        """One line."""
        figures = self.to_json()
        return (
            f"{self.runs} run{'s' * (self.runs != 1)}, {len(self.violations)} failed,"
            f" {figures['seeds_per_second']} a second"
            f" ({figures['seeds_per_core_second']} a second of one core, {figures['build']}),"
            f" {figures['virtual_over_real']} virtual seconds a second" + (", interrupted" if self.is_cut_short else "")
        )


class Progress:
    """How far a campaign is, on ``stream``: one line that is drawn again on a screen, a line now and then in a file."""

    def __init__(self, total: int, stream: TextIO, clock: Callable[[], float] = time.perf_counter) -> None:
        self._total = total
        self._stream = stream
        self._clock = clock
        self._is_screen = stream.isatty()
        self._every_s = REDRAWN_EVERY_S if self._is_screen else TOLD_EVERY_S
        self._next_at = clock() + self._every_s
        self._width = 0

    def tell(self, campaign: Campaign) -> None:
        """After each run; most calls say nothing."""
        now = self._clock()
        if now >= self._next_at and campaign.runs < self._total:
            self._next_at = now + self._every_s
            self._write(self._line(campaign))

    def clear(self) -> None:
        """Take the line off the screen."""
        if self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    def _line(self, campaign: Campaign) -> str:
        left_s = (self._total - campaign.runs) * campaign.elapsed_s / max(campaign.runs, 1)
        left = f"{left_s / 60:.0f} min" if left_s >= 90 else f"{left_s:.0f} s"
        return f"{campaign.runs} of {self._total} runs, {len(campaign.violations)} failed, {left} left"

    def _write(self, line: str) -> None:
        if self._is_screen:
            self._stream.write("\r" + line.ljust(self._width))
            self._width = max(self._width, len(line))
        else:
            self._stream.write(line + "\n")
        self._stream.flush()


@contextmanager
def interruptible(campaign: Campaign) -> Iterator[None]:
    """Ctrl-C ends what is inside; the campaign remembers that it was cut short."""
    try:
        yield
    except KeyboardInterrupt:
        campaign.is_cut_short = True


def read_plan(path: Path) -> Plan:
    """OSError; InvalidConfig for a file of something else, and for a fault that does not exist or hits nobody."""
    plan = Plan.read(path)
    for fault in plan.faults:
        try:
            _check(fault, View(tuple(range(1, plan.brokers + 1))))
        except ValueError as error:
            raise InvalidConfig(f"{path}: {fault}: {error}") from error
    return plan


def _check(fault: Fault, view: View) -> None:
    known = (*Faults.BEGIN, *CLIENT_FAULTS, *MEMBER_FAULTS, *TRANSACTOR_FAULTS, *DEPARTURES)
    if fault.kind not in known:
        raise ValueError(f"there is no such kind of fault{did_you_mean(fault.kind, known)}")
    if fault.kind in Faults.BEGIN:
        is_link = ">" in fault.target
        ends = (
            set(chain(*links_of(with_any_client(fault.target)[0], view)))
            if is_link
            else set(nodes_of(fault.target, view))
        )
        strangers = sorted(ends - {CLIENT_END, *view.nodes})
        if strangers:
            raise ValueError(f"there is no broker {strangers[0]}; there are {len(view.nodes)}")
