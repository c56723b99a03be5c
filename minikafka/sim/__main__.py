"""``python -m minikafka.sim``: run seeds or kept plans, shrink a failure, show a plan or a run.

    run --seed N | --seeds N [--start S] | PLAN.json      exit 1 when anything was violated
    shrink --seed N | PLAN.json [--out FILE]
    show --seed N | PLAN.json [--events] [--trace]

Each takes --family NAME: seeds of another family of plans, such as ``transactions``.
``run -o json`` prints {"seeds","violations","seeds_per_second","virtual_over_real","marks"}, and more about the pace.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

import click

from minikafka.sim.campaign import ALL_PLANS, Campaign, Progress, Task, interruptible, read_plan, run_tasks
from minikafka.sim.plan import Plan
from minikafka.sim.run import Run, run
from minikafka.sim.search import PlanPasses, shrink
from minikafka.sim.seeds import FAMILIES

PLAIN: Final = "plain"

INTERRUPTED: Final = 130
"""Exit code after Ctrl-C, as shells have it."""


def _tasks(seed: int | None, seeds: int | None, start: int, files: tuple[str, ...], family: str) -> list[Task]:
    if seed is not None and seeds is not None:
        raise click.UsageError("--seed is one, --seeds are so many from --start on: keep one of them")
    numbers = [seed] if seed is not None else range(start, start + (seeds or 0))
    for name in files:
        read_plan(Path(name))  # before the first of them is run
    if seeds is not None and seeds < 1 and not files:
        raise click.UsageError(f"--seeds {seeds}: at least 1 is needed")
    tasks = [Task(file=name) for name in files] + [Task(seed=number, family=family) for number in numbers]
    if not tasks:
        raise click.UsageError("say --seed N, --seeds N, or name a plan's file")
    return tasks


def _one_plan(seed: int | None, file: str | None, family: str) -> Plan:
    if (seed is None) == (file is None):
        raise click.UsageError("say either --seed N or a plan's file")
    return FAMILIES[family](seed) if seed is not None else read_plan(Path(str(file)))


class PlanFile(click.Path):
    """A plan's file that exists. `sim show 7` takes a seed in its place; here a seed is an option."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if str(value).isdecimal() and not Path(value).exists():
            self.fail(f"there is no file {value}; for the plan of a seed say --seed {value}", param, ctx)
        return super().convert(value, param, ctx)


family_option = click.option(
    "--family",
    type=click.Choice(tuple(FAMILIES)),
    default=ALL_PLANS,
    show_default=True,
    help="Family of the plans that seeds name.",
)


# `-h` as everywhere: click keeps a command's help option as its first caller has it, and `minikafka sim` shares these.
@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """The deterministic simulator: whole clusters in one process, under virtual time, from a seed."""


@main.command("run")
@click.argument("files", nargs=-1, type=PlanFile())
@click.option("--seed", type=int, help="Run the plan of this seed.")
@click.option("--seeds", type=int, help="Number of seeds to run.")
@click.option("--start", type=int, default=0, show_default=True, help="First of the --seeds.")
@family_option
@click.option("--plain", is_flag=True, help="The same as --family plain: three brokers, 200 operations, ten faults.")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Number of processes that run seeds."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Print a line for each run, or one JSON object.",
)
def run_command(
    files: tuple[str, ...],
    seed: int | None,
    seeds: int | None,
    start: int,
    family: str,
    jobs: int,
    output: str,
    *,
    plain: bool,
) -> None:
    """Run plans; exit 1 when a promise was broken, 130 after Ctrl-C. How far it is stands on stderr."""
    if plain and family not in (ALL_PLANS, PLAIN):
        raise click.UsageError(f"--plain is --family {PLAIN}, but --family {family} was given too: keep one of them")
    tasks = _tasks(seed, seeds, start, files, PLAIN if plain else family)
    campaign, progress = Campaign(jobs), Progress(len(tasks), sys.stderr)
    with interruptible(campaign):
        for task, done in zip(tasks, run_tasks(tasks, jobs), strict=True):
            campaign.add(done)
            if output == "text":
                progress.clear()
                click.echo(done.report.render(replay=task.replay))
            progress.tell(campaign)
    progress.clear()
    click.echo(json.dumps(campaign.to_json()) if output == "json" else campaign.summary())
    sys.exit(INTERRUPTED if campaign.is_cut_short else 1 if campaign.violations else 0)


@main.command("shrink")
@click.argument("file", required=False, type=PlanFile())
@click.option("--seed", type=int, help="The plan of this seed, instead of FILE.")
@family_option
@click.option("--runs", type=int, default=300, show_default=True, help="Maximum number of runs.")
@click.option("--out", type=click.Path(dir_okay=False), help="Write the plan here, instead of printing it.")
def shrink_command(file: str | None, seed: int | None, family: str, runs: int, out: str | None) -> None:
    """Cut a failing plan down to what its failure needs."""
    plan = _one_plan(seed, file, family)
    try:
        plan, name = shrink(plan, lambda candidate: run(candidate).failure, runs_max=runs)
    except PlanPasses as error:
        raise click.ClickException(f"{error}: there is no failure to cut it down to") from error
    click.echo(run(plan).render())
    click.echo(f"{name}: {len(plan.faults)} faults, {len(plan.operations)} operations")
    if out:
        Path(out).write_text(plan.to_json())
    else:
        click.echo(plan.to_json())


@main.command("show")
@click.argument("file", required=False, type=PlanFile())
@click.option("--seed", type=int)
@family_option
@click.option("--events", is_flag=True, help="Run it and print every event.")
@click.option("--trace", is_flag=True, help="Run it and print every step.")
def show_command(file: str | None, seed: int | None, family: str, *, events: bool, trace: bool) -> None:
    """Print a plan, or what happens when it runs."""
    plan = _one_plan(seed, file, family)
    if not events and not trace:
        click.echo(plan.to_json())
        return
    running = Run(plan)
    report = running.run()
    for line in running.sim.loop.trace.lines() if trace else map(str, running.sim.journal):
        click.echo(line)
    click.echo(report.render())


if __name__ == "__main__":
    main()
