"""``python -m minikafka.sim``: run seeds or kept plans, shrink a failure, show a plan or a run.

    run --seed N | --seeds N [--start S] | PLAN.json      exit 1 when anything was violated
    shrink --seed N | PLAN.json [--out FILE]
    show --seed N | PLAN.json [--events] [--trace]

``run -o json`` prints {"seeds","violations","seeds_per_second","virtual_over_real","marks"}.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from minikafka.sim.plan import Plan, plan_of
from minikafka.sim.report import Report
from minikafka.sim.run import Run, run
from minikafka.sim.shrink import shrink


def _plans(seed: int | None, seeds: int | None, start: int, files: tuple[str, ...]) -> list[tuple[Plan, str]]:
    """Plans with the command that runs each again."""
    chosen = [(Plan.from_json(Path(name).read_text()), f"python -m minikafka.sim run {name}") for name in files]
    numbers = [seed] if seed is not None else list(range(start, start + (seeds or 0)))
    chosen += [(plan_of(number), f"python -m minikafka.sim run --seed {number}") for number in numbers]
    if not chosen:
        raise click.UsageError("say --seed N, --seeds N, or name a plan's file")
    return chosen


def _one_plan(seed: int | None, file: str | None) -> Plan:
    if (seed is None) == (file is None):
        raise click.UsageError("say either --seed N or a plan's file")
    return plan_of(seed) if seed is not None else Plan.from_json(Path(str(file)).read_text())


def _reports(plans: Sequence[Plan], jobs: int) -> Iterator[Report]:
    """In the order of the plans, however many processes run them; leaving early ends the processes."""
    if jobs == 1:
        yield from map(run, plans)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(run, plans)


@click.group()
def main() -> None:
    """The deterministic simulator: whole clusters in one process, under virtual time, from a seed."""


@main.command("run")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option("--seed", type=int, help="this seed only")
@click.option("--seeds", type=int, help="so many seeds")
@click.option("--start", type=int, default=0, show_default=True, help="the first of them")
@click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="processes at work")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def run_command(
    files: tuple[str, ...], seed: int | None, seeds: int | None, start: int, jobs: int, output: str
) -> None:
    """Run plans; exit 1 when a promise was broken."""
    campaign = Campaign(say=output == "text")
    chosen = _plans(seed, seeds, start, files)
    for report, (_, replay) in zip(_reports([plan for plan, _ in chosen], jobs), chosen, strict=True):
        campaign.add(report, replay)
    if output == "json":
        click.echo(json.dumps(campaign.to_json()))
    else:
        click.echo(campaign.summary())
    sys.exit(1 if campaign.violations else 0)


class Campaign:
    """What many runs came to."""

    def __init__(self, *, say: bool = True) -> None:
        self.runs = 0
        self.violations: list[dict[str, object]] = []
        self.marks: Counter[str] = Counter()
        self.virtual_s = 0.0
        self._say = say
        self._began = time.perf_counter()

    def add(self, report: Report, replay: str) -> None:
        """Count one run; tell it, if asked to."""
        self.runs += 1
        self.virtual_s += report.virtual_s
        self.marks.update(report.marks)
        self.violations += [
            {"seed": report.plan.seed, "name": each.name, "what": each.what, "time": each.time, "step": each.step}
            for each in report.violations[:1]
        ]
        if self._say:
            click.echo(report.render(replay=replay))

    def to_json(self) -> dict[str, object]:
        """The contract of ``run -o json``."""
        elapsed = time.perf_counter() - self._began
        return {
            "seeds": self.runs,
            "violations": self.violations,
            "seeds_per_second": round(self.runs / elapsed, 2),
            "virtual_over_real": round(self.virtual_s / elapsed, 1),
            "marks": dict(sorted(self.marks.items())),
        }

    def summary(self) -> str:
        """One line."""
        told = self.to_json()
        return (
            f"{self.runs} runs, {len(self.violations)} failed, {told['seeds_per_second']} a second,"
            f" {told['virtual_over_real']} virtual seconds a second"
        )


@main.command("shrink")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option("--seed", type=int)
@click.option("--runs", type=int, default=300, show_default=True, help="at most so many runs")
@click.option("--out", type=click.Path(dir_okay=False), help="write the plan here")
def shrink_command(file: str | None, seed: int | None, runs: int, out: str | None) -> None:
    """Cut a failing plan down to what its failure needs."""
    plan, name = shrink(_one_plan(seed, file), lambda candidate: run(candidate).failure, runs_max=runs)
    click.echo(run(plan).render())
    click.echo(f"{name}: {len(plan.faults)} faults, {len(plan.operations)} operations")
    if out:
        Path(out).write_text(plan.to_json())
    else:
        click.echo(plan.to_json())


@main.command("show")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False))
@click.option("--seed", type=int)
@click.option("--events", is_flag=True, help="run it and print every event")
@click.option("--trace", is_flag=True, help="run it and print every step")
def show_command(file: str | None, seed: int | None, *, events: bool, trace: bool) -> None:
    """Print a plan, or what happens when it runs."""
    plan = _one_plan(seed, file)
    if not events and not trace:
        click.echo(plan.to_json())
        return
    running = Run(plan, keep_trace_lines=trace)
    report = running.run()
    for line in running.sim.loop.trace.lines or map(str, running.sim.journal):
        click.echo(line)
    click.echo(report.render())


if __name__ == "__main__":
    main()
