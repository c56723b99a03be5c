"""``minikafka chaos``: scenarios of faults under load, and their verdicts (docs/chaos.md).

Exit codes: 0 no promise was broken; 1 damaged, or it failed; 2 called wrongly, or the target lacks a fault.
"""

from __future__ import annotations

from pathlib import Path

import click

from minikafka.chaos.reading import library, read
from minikafka.chaos.target import lacks, target_names
from minikafka.cli.running import Commands
from minikafka.cli.tables import output_option, print_json, print_table


@click.group(
    cls=Commands,
    epilog="""\b
Examples:
  minikafka chaos list
  minikafka chaos list -o json""",
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
@output_option
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
    print_table(
        ("SCENARIO", "FAULTS", "TARGETS", "TEACHES"),
        [(row["name"], ",".join(row["faults"]), ",".join(row["targets"]), row["teaches"]) for row in rows],
    )
