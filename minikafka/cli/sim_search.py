"""``minikafka sim search``: find me a story that loses an acknowledged record under these settings.

Rules for this file: the result goes to standard output, progress to standard error; finding nothing is a result, not a
failure: exit code 0 both ways.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from minikafka.cli.running import Interrupted, Misuse
from minikafka.cli.tables import OutputFile, config_option, console, many, output_option, print_json
from minikafka.sim.search import FAULTS, OPERATIONS, Found, Search, asked_for, search

SEEDS_A_LINE = 25
"""Without a terminal, progress is a line after so many seeds."""


@click.command(
    name="search",
    epilog="""\b
Examples:
  minikafka sim search --config acks=1
  minikafka sim search --config acks=all --config min.insync.replicas=2 --seeds 200
  minikafka sim search --config unclean.leader.election.enable=true --out loss.json
  minikafka sim search --config acks=1 -o json | jq -r '.steps[]'

Settings are the producer's and the brokers', by Kafka's names; exit code 0 whether a story was found or not.""",
)
@config_option
@click.option(
    "--seeds", type=click.IntRange(min=1), default=100, show_default=True, help="Number of seeds to try at most."
)
@click.option("--start", type=click.IntRange(min=0), default=0, show_default=True, help="First seed to try.")
@click.option(
    "--out", metavar="FILE", type=OutputFile(), help="Write the scenario to this file, for `sim run` and `sim show`."
)
@output_option
def search_command(config: tuple[str, ...], seeds: int, start: int, out: Path | None, output: str) -> None:
    """Look for a schedule that loses an acknowledged record.

    The simulator runs whole clusters, with faults around a few sends. A run that loses a record is reduced to what
    the loss needs and printed as a story in numbered sentences. If the story is long, more seeds are tried, and the
    shortest story is printed.
    """
    settings = settings_of(config)
    result = Search(asked=asked_for(settings))
    interrupted: Interrupted | None = None
    try:
        with _progress() as progress:
            search(result, seeds=seeds, start=start, progress=progress)
    except KeyboardInterrupt:
        interrupted = Interrupted(_how_far(settings, result))
        if result.found is None:
            raise interrupted from None
    found = result.found
    if output == "json":
        print_json(to_json(settings, result))
    elif found is None:
        click.echo(_none_found(result, seeds, start))
    else:
        click.echo("\n".join(_told(settings, result, found, out)))
    if found is not None and out is not None:
        out.write_text(found.plan.to_json(), encoding="utf-8")
    if interrupted is not None:
        raise interrupted


def settings_of(config: tuple[str, ...]) -> dict[str, str]:
    """The settings of ``--config``. Raises Misuse."""
    settings: dict[str, str] = {}
    for each in config:
        name, equals, text = each.partition("=")
        if not equals or not name or name in settings:
            raise Misuse(f"--config {each}: KEY=VALUE is needed, each key once")
        settings[name] = text
    return settings


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A line that changes on a terminal; elsewhere a line now and then."""
    if sys.stderr.isatty():
        with console(stderr=True).status("booting") as status:
            yield status.update
        return
    reported = 0

    def tell(text: str) -> None:
        nonlocal reported
        reported += 1
        if reported % SEEDS_A_LINE == 0:
            click.echo(text, err=True)

    yield tell


def to_json(settings: Mapping[str, str], result: Search) -> dict[str, Any]:
    """The contract of ``sim search -o json`` (docs/lab.md)."""
    found = result.found
    return {
        "settings": dict(settings),
        "seeds_tried": result.tried,
        "found": found is not None,
        "seed": found.seed if found else None,
        "steps": list(found.sentences) if found else [],
        "lost": [{"value": each.value, "place": each.place(), "process": each.process} for each in found.lost]
        if found
        else [],
        "runs_to_cut_down": found.runs if found else 0,
        "other_findings": dict(sorted(result.others.items())),
        "plan": json.loads(found.plan.to_json()) if found else None,
    }


def _how_far(settings: Mapping[str, str], result: Search) -> str:
    """What was under way at Ctrl-C."""
    if result.found is not None:
        return "interrupted while a story shorter than this one was looked for"
    if result.losing is not None:
        again = _again(settings, result.losing)
        return f"interrupted while the loss of seed {result.losing} was cut down; that one again: {again}"
    return f"interrupted; of {result.tried} seeds tried none lost an acknowledged record"


def _again(settings: Mapping[str, str], seed: int) -> str:
    options = "".join(f" --config {name}={text}" for name, text in settings.items())
    return f"minikafka sim search{options} --start {seed} --seeds 1"


def _none_found(result: Search, seeds: int, start: int) -> str:
    others = ", ".join(f"{name} in {count}" for name, count in sorted(result.others.items()))
    return (
        f"none found: {result.tried} seeds tried ({start} to {start + seeds - 1}), each with {OPERATIONS} sends with"
        f" acks={result.asked.acks} and {FAULTS} faults inside the {result.asked.policy} policy's budget"
        + (f"; found besides: {others}" if others else "")
    )


def _told(settings: Mapping[str, str], result: Search, found: Found, out: Path | None) -> Iterator[str]:
    plan, seed = found.plan, found.seed
    others = f", {result.losses} of them lose one; this is the shortest story" if result.losses > 1 else ""
    yield f"seed {seed} loses an acknowledged record ({many(result.tried, 'seed')} tried{others})."
    yield (
        f"Reduced in {many(found.runs, 'run')} from {FAULTS} faults and {OPERATIONS} sends to"
        f" {many(len(plan.faults), 'fault')} and {many(len(plan.operations), 'send')}."
    )
    yield f"A seed of `sim search` is not a seed of `sim run`. Repeat: {_again(settings, seed)}"
    if out is not None:
        yield f"Scenario: {out}. Run it: minikafka sim run {out}. See it: minikafka sim show {out} --html run.html"
    else:
        yield "Add --out FILE to write the scenario, for `sim run FILE` and `sim show FILE`."
    yield ""
    for number, sentence in enumerate(found.sentences, start=1):
        yield f"  {number}. {sentence}"
    yield ""
    for each in found.lost:
        yield f"lost: {each.place()}: {each.sentence()}"
