"""``minikafka sim``: the deterministic simulator from the command line.

Rule for this file: the commands are those of ``python -m minikafka.sim``, with examples; beside them the search, and
a ``show`` that opens journals and writes the replay page.
"""

from __future__ import annotations

from typing import Final

import click

from minikafka.cli.running import Commands
from minikafka.cli.sim_search import search_command
from minikafka.cli.sim_show import show_command
from minikafka.cli.sim_traffic import traffic_command
from minikafka.sim.__main__ import main

EXAMPLES: Final = {
    "run": ("sim run --seeds 100", "sim run --seed 7", "sim run --seeds 1000 -o json", "sim run loss.json"),
    "shrink": ("sim shrink --seed 7 --out small.json", "sim shrink loss.json"),
}


@click.group(
    cls=Commands,
    epilog="""\b
Examples:
  minikafka sim run --seeds 100
  minikafka sim search --config acks=1
  minikafka sim show 7 --html run.html
  minikafka sim traffic --brokers 30""",
)
def command() -> None:
    """Whole clusters in one process, under virtual time, from a seed."""


def _with_examples(each: click.Command) -> click.Command:
    lines = EXAMPLES.get(each.name or "", ())
    if lines and not each.epilog:
        each.epilog = "\b\nExamples:\n" + "\n".join(f"  minikafka {line}" for line in lines)
    return each


for _each in main.commands.values():
    if _each.name != show_command.name:
        command.add_command(_with_examples(_each))
command.add_command(search_command)
command.add_command(show_command)
command.add_command(traffic_command)
