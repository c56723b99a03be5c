"""``minikafka chaos``: scenarios of faults under load, and their verdicts (docs/chaos-scenarios.md).

Exit codes: 0 no promise was broken; 1 damaged, or it failed; 2 called wrongly, or the target lacks a fault; 130
interrupted.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from minikafka.chaos.outcome import CLEAN
from minikafka.chaos.play import PICTURE, check, play
from minikafka.chaos.reading import find, library, read
from minikafka.chaos.target import SIMULATOR, lacks, target_names
from minikafka.cli.chaos_duration import Duration
from minikafka.cli.chaos_kill import kill_command
from minikafka.cli.running import FAILED, Commands, run
from minikafka.cli.tables import console, list_output_option, output_option, print_json, print_table

JOURNALS: Final = ("journal.jsonl", "broker-*/journal.jsonl", "plan.json")
"""What the replay page is made of: one journal of all brokers' processes, one of each host or container, a plan."""


@click.group(
    cls=Commands,
    epilog="""\b
Examples:
  minikafka chaos list
  minikafka chaos run zombie-leader
  minikafka chaos run storm --duration 10m -o json
  minikafka chaos kill --random --interval 30s""",
)
def command() -> None:
    """Hurt a cluster under load, by a scenario or at random, and judge what came of it."""


@command.command(
    "list",
    epilog="""\b
Examples:
  minikafka chaos list
  minikafka chaos list mine.toml -o json""",
)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@list_output_option
def list_command(files: tuple[Path, ...], output: str) -> None:
    """Show the scenarios of the library (or of FILES), what each teaches, and where it can be played."""
    scenarios = [read(path) for path in files or library()]
    rows = [
        {
            "name": each.name,
            "teaches": each.teaches,
            "faults": list(each.faults()),
            "targets": [name for name in target_names() if not lacks(name, each)],
        }
        for each in scenarios
    ]
    if output == "json":
        print_json({"scenarios": rows})
        return
    cells = [(str(row["name"]), ",".join(row["faults"]), ",".join(row["targets"]), str(row["teaches"])) for row in rows]
    if output == "table" and sys.stdout.isatty():
        _print_narrow(cells, console().width)
        return
    print_table(("SCENARIO", "FAULTS", "TARGETS", "TEACHES"), cells, output)


def _print_narrow(rows: Sequence[tuple[str, ...]], width: int) -> None:
    """Print each scenario as sentences, folded at the terminal's width."""
    for name, faults, targets, teaches in rows:
        for line in textwrap.wrap(f"{name}: {teaches}", width, subsequent_indent="  "):
            click.echo(line)
        for line in textwrap.wrap(f"  faults: {faults}; targets: {targets}", width, subsequent_indent="  "):
            click.echo(line)


@command.command(
    "run",
    epilog="""\b
Examples:
  minikafka chaos run kill-loop
  minikafka chaos run zombie-leader --target simulator --seed 7
  minikafka chaos run storm --duration 10m --keep /tmp/storm
  minikafka chaos run mine.toml -o json

Exit code 0: clean, no promise was broken (losses that the scenario's settings allow are named); 1: damaged;
2: the file is wrong, or the target cannot make one of its faults; 130: interrupted.""",
)
@click.argument("scenario")
@click.option("--target", default="processes", show_default=True, help="simulator, processes, netns or compose.")
@click.option("--duration", "duration_s", type=Duration(), default=None, help="Of the load, as 60s or 10m.")
@click.option("--seed", type=int, default=1, show_default=True, help="Draws who is hit, and when.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    metavar="DIR",
    help="Keep logs, history, journal, report and picture here.  [a temporary directory, kept when damaged]",
)
@output_option
def run_command(
    scenario: str, target: str, duration_s: float | None, seed: int, keep: Path | None, output: str
) -> None:
    """Play SCENARIO, a name of the library or a file, under load; tell what came of it."""
    chosen = read(find(scenario))
    check(chosen, target, duration_s)
    folder = keep or Path(tempfile.mkdtemp(prefix="minikafka-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    keeps = keep is not None
    try:
        if target == SIMULATOR:
            from minikafka.chaos import simulator  # noqa: PLC0415 - whole brokers: only who simulates waits for them

            outcome = simulator.play(chosen, seed=seed, folder=folder, duration_s=duration_s)
        else:
            outcome = run(lambda: play(chosen, target, seed=seed, folder=folder, duration_s=duration_s, say=_say))
        keeps = keeps or outcome.verdict != CLEAN
    finally:
        if not keeps:
            shutil.rmtree(folder, ignore_errors=True)
    if output == "json":
        print_json({**outcome.to_json(), "folder": str(folder) if keeps else None})
    else:
        click.echo(outcome.render())
    if keeps:
        _tell_files(folder)
    if outcome.verdict != CLEAN:
        raise click.exceptions.Exit(FAILED)


def _say(text: str) -> None:
    """Progress, beside the result."""
    click.echo(f"{time.strftime('%H:%M:%S')}  {text}", err=True)


def _tell_files(folder: Path) -> None:
    click.echo(f"history, report.json and {PICTURE}: {folder}", err=True)
    journals = [path for form in JOURNALS for path in sorted(folder.glob(form))]
    if journals:
        shown = " ".join(map(str, journals))
        click.echo(f"step by step: minikafka sim show {shown} --html {folder / 'replay.html'}", err=True)


command.add_command(kill_command)
