"""``minikafka lab``: the articles' stories, played step by step over the real rules, and shown as the articles'
tables.

Rules for this file: plain text when piped, the same as the library's files have it, with the reasons beside; exit code
0 when a run came to what the scenario's own file expects of it (or expects nothing of such a run), 1 when it did not.
``-o json`` is a contract (docs/lab.md): what no broker knows is null, and names are those of the table, in the words
of ``topics describe``.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from minikafka.cli.running import FAILED, Misuse, command_group
from minikafka.cli.tables import (
    columns_of,
    console,
    list_output_option,
    output_option,
    print_found,
    print_json,
    repeatable,
    together,
)
from minikafka.lab import compare as comparing
from minikafka.lab import rebalance, table, transactions
from minikafka.lab.compare import Comparison
from minikafka.lab.played import Difference, Run, Step, View
from minikafka.lab.scenario import CONTROLS, TRUNCATIONS, Scenario, find, library, read, references, short_name, story
from minikafka.lab.table import RULES, changes_of, truncation_of
from minikafka.types import NO_OFFSET

DEFAULTS = {"truncation": "leader-epoch", "control": "script"}
"""What a scenario gets that says nothing else."""

SIMULATED = (rebalance.NAME, *transactions.STORIES)
"""Stories that are no files."""

FOLDED_WIDTH_MIN = 10
"""However narrow the screen is."""


@command_group()
def command() -> None:
    """Play the stories of replication step by step, over the real rules.

    Examples:
      minikafka lab list
      minikafka lab run data-loss --truncation high-watermark
      minikafka lab compare divergence
    """


@command.command(name="list")
@list_output_option
def list_(output: str) -> None:
    """The stories of the library.

    Examples:
      minikafka lab list
      minikafka lab list -o json | jq -r '.scenarios[].name'
    """
    members = ("scenario", "aliases", "story", "references", "runs")
    stories = [{"name": (*each[1], each[0])[0], **dict(zip(members, each, strict=True))} for each in _stories()]
    columns = columns_of("scenario=name", "see=references", "story")
    if output == "table":
        columns = columns_of("scenario=name", "story", story=_with_sources)
    print_found(output, {"scenarios": stories}, columns, stories)


def _stories() -> Iterator[tuple[str, list[str], str, list[str], list[dict[str, str]]]]:
    """Name, aliases, summary, references and runs of each story."""
    for each in map(read, library()):
        runs = [dict(expected.options) for expected in each.expected]
        yield each.name, [short_name(each.name)], story(each), references(each), runs
    runs = [{"assignor": name} for name in rebalance.STORY_ASSIGNORS]
    yield rebalance.NAME, [], rebalance.STORY, list(rebalance.REFERENCES), runs
    for name, played in transactions.STORIES.items():
        yield name, [], played.about, list(played.references), [dict(played.options)]


def _with_sources(listed: Mapping[str, Any]) -> str:
    """The story with the KIPs and issues that it does not name itself: a column of their own would not fit."""
    text, more = listed["story"], ", ".join(each for each in listed["references"] if each not in listed["story"])
    return f"{text} ({more})" if more else text


_options = together(
    repeatable("--set", "given", "Option of the scenario's cluster", "KEY=VALUE"),
    click.option(
        "--control", type=click.Choice(CONTROLS), help="What elects leaders: the script, or the real controller."
    ),
)
"""What both ``run`` and ``compare`` take."""


@command.command()
@click.argument("name", metavar="NAME|FILE")
@click.option("--truncation", type=click.Choice(sorted(TRUNCATIONS)), help="How a returning replica cuts its log.")
@click.option(
    "--assignor",
    type=click.Choice(rebalance.STORY_ASSIGNORS),
    help="Assignor of the partitions in `rebalance`; uniform: the consumer protocol (KIP-848).",
)
@_options
@output_option
def run(
    name: str, truncation: str | None, assignor: str | None, control: str | None, given: tuple[str, ...], output: str
) -> None:
    """Play one story, and show what each step changed, and why.

    Without options the story is played as its file first expects it.

    Examples:
      minikafka lab run three-rounds
      minikafka lab run data-loss --truncation high-watermark
      minikafka lab run data-loss --truncation leader-epoch -o json
      minikafka lab run divergence --control quorum
      minikafka lab run power-loss --set flush.messages=1
      minikafka lab run rebalance --assignor cooperative-sticky
      minikafka lab run rebalance --assignor uniform
      minikafka lab run zombie-producer
      minikafka lab run ./my-story.txt

    Exit code 0 when the run came to what the scenario's file says of it, 1 when not, 2 for a mistake in name or file.
    """
    options = _given(given, truncation=truncation, control=control, assignor=assignor)
    name = _as_listed(name)
    if name == rebalance.NAME:
        _run_rebalance(options, output)
        return
    if name in transactions.STORIES:
        _run_transactions(name, options, output)
        return
    scenario = find(name, SIMULATED)
    if not options and scenario.expected:
        options = dict(scenario.expected[0].options)
    played = scenario.play(tuple(options.items()))
    if output == "json":
        print_json(run_as_json(scenario, played))
    else:
        _show(scenario, played, options)
    _check(scenario, played)


def _as_listed(name: str) -> str:
    """Return the name of a simulated story as `lab list` has it, however it is spelled; another one unchanged."""
    listed = name.replace("_", "-").lower()
    return listed if listed in SIMULATED else name


def _run_rebalance(options: Mapping[str, str], output: str) -> None:
    played = rebalance.play(options)
    if output == "json":
        print_json(rebalance.as_json(played))
        return
    _print_folded(f"# {rebalance.NAME}: {rebalance.STORY}", "# ")
    rows = rebalance.timeline_rows(played)
    state = rows[0].index("state")  # its changes are among the sentences
    _print_timeline(played.options, rows, [(*row[:state], *row[state + 1 :]) for row in rows])
    click.echo()
    click.echo("\n".join(table.aligned(rebalance.stop_rows(played), free=0)))


def _print_timeline(
    options: Mapping[str, str], rows: list[tuple[str, ...]], on_narrow_screens: list[tuple[str, ...]]
) -> None:
    summary = "# played with " + " ".join(f"{key}={value}" for key, value in options.items()) if options else ""
    lines, terminal = table.aligned(rows, free=1), console()
    if max(map(len, (*lines, summary))) > terminal.width:
        if summary:
            _print_folded(summary, "# ")
        _print_stacked(terminal, on_narrow_screens)
    else:
        click.echo("\n".join([summary, *lines] if summary else lines))


def _run_transactions(name: str, options: Mapping[str, str], output: str) -> None:
    played = transactions.play(name, options)
    if output == "json":
        print_json(transactions.as_json(played))
        return
    _print_folded(f"# {name}: {transactions.STORIES[name].about}", "# ")
    rows = transactions.rows(played)
    _print_timeline(played.options, rows, rows)


def _compare_rebalances(sides: list[dict[str, str]], output: str) -> None:
    stories = [rebalance.play(side) for side in sides]
    if output == "json":
        played = [rebalance.as_json(each) for each in stories]
        print_json({"left": played[0], "right": played[1], "sides": played})
        return
    _print_folded(f"# {rebalance.NAME}: {rebalance.STORY}", "# ")
    click.echo("\n".join(table.aligned(rebalance.compared_rows(*stories), free=0)))


def _given(given: Iterable[str], **named: str | None) -> dict[str, str]:
    """``KEY=VALUE`` pairs; options that have a name of their own win."""
    options: dict[str, str] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if not equals or not key or key in options:
            raise Misuse(f"{each}: KEY=VALUE is needed, each key once")
        options[key] = value
    return options | {key: value for key, value in named.items() if value is not None}


def _check(scenario: Scenario, played: Run) -> None:
    """Exit code 1 if the run did not end as the scenario's own file says."""
    text = table.rendered(played).splitlines()
    for expected in scenario.expected:
        options = DEFAULTS | scenario.options() | dict(expected.options)
        wanted_text = expected.text.rstrip().splitlines()
        if options != DEFAULTS | dict(played.options) or wanted_text == text:
            continue
        lines = zip_longest(wanted_text, text, fillvalue="(the end)")
        wanted, got = next((one, other) for one, other in lines if one != other)
        click.echo(
            f"minikafka: {scenario.name} did not come to what its file says; it says {wanted.strip()!r},"
            f" here is {got.strip()!r}",
            err=True,
        )
        raise click.exceptions.Exit(FAILED)


def _show(scenario: Scenario, played: Run, options: Mapping[str, str]) -> None:
    summary = " ".join(f"{key}={value}" for key, value in options.items())
    others = [" ".join(f"{key}={value}" for key, value in each.options) for each in scenario.expected]
    others = [each for each in others if each != summary and each]
    _print_folded(f"# {short_name(scenario.name)}: {story(scenario)}".rstrip(": "), "# ")
    if summary or others:
        _print_folded(
            f"# played with {summary or 'its own options'}" + (f"; also {'; '.join(others)}" if others else ""), "# "
        )
    if not sys.stdout.isatty():
        click.echo(table.rendered(played, why=True), nl=False)
        return
    terminal = console()
    rows = table.rows(played, why=True)
    if max(map(len, table.aligned(rows, free=1))) > terminal.width:
        _print_stacked(terminal, rows)
    else:
        terminal.print(_grid(rows))
    for sentence in table.verdict(played):
        _print_folded(sentence, style="green" if sentence.endswith(": nothing") else "bold red")
    for rule, text in table.rules_of(played):
        _print_folded(f"{rule:7} {text}", " " * 8, style="dim")


def _print_folded(text: str, indent: str = "  ", style: str = "") -> None:
    """One sentence, folded between words on a terminal; ``indent`` begins the lines after the first."""
    screen = console()
    lines = textwrap.wrap(text, screen.width, subsequent_indent=indent, break_on_hyphens=False)
    for line in lines:
        screen.print(Text(line, style=style), soft_wrap=True)


def _print_stacked(terminal: Console, rows: list[tuple[str, ...]]) -> None:
    """For a screen that is too narrow for the table: only sentences, and the last column, are folded."""
    for number, cells in enumerate(table.padded(list(table.stacked(rows)), free=1)):
        step, sentence, *behind = cells
        if any(map(str.strip, behind)):
            texts = [_cell(each, column + bool(column)) for column, each in enumerate(cells[:-1])]
            before, folded = Text("  ").join([*texts, Text()]), cells[-1]
        else:
            before = Text(f"{step}  {' ' * (len(sentence) - len(sentence.lstrip()))}")
            folded = sentence
        style = _cell(folded, 1).style
        room = max(terminal.width - len(before), FOLDED_WIDTH_MIN)
        for part in textwrap.wrap(folded.strip(), room, break_long_words=False) or [""]:
            line = before + Text(part, style=style)
            line.rstrip()
            terminal.print(line, style="" if number else "bold", soft_wrap=True)
            before = Text(" " * len(before))


def _grid(rows: list[tuple[str, ...]], style_of: Callable[[tuple[str, ...]], str] = lambda _: "") -> Table:
    """Head and lines; ``style_of`` gives the style of a line."""
    grid = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in rows[0]:
        grid.add_column(name, no_wrap=name in {"step", "replica", "LEO", "HW", "epoch"}, overflow="fold")
    for row in rows[1:]:
        grid.add_row(*(_cell(each, column) for column, each in enumerate(row)), style=style_of(row))
    return grid


def _cell(text: str, column: int) -> Text:
    if text.startswith("  "):
        return Text(text, style="dim")
    return Text(text, style="yellow" if "→" in text and column > 1 else "")


@command.command()
@click.argument("name", metavar="NAME|FILE")
@repeatable("--left", "left", "Option of the cluster on the left side", "KEY=VALUE")
@repeatable("--right", "right", "Option of the cluster on the right side", "KEY=VALUE")
@_options
@output_option
def compare(
    name: str, left: tuple[str, ...], right: tuple[str, ...], control: str | None, given: tuple[str, ...], output: str
) -> None:
    """Play one story under two rule sets, side by side.

    Without --left and --right: truncation to the high watermark against truncation by leader epochs, and of
    `rebalance` the eager assignor range, cooperative-sticky, and uniform of the consumer protocol.

    Examples:
      minikafka lab compare data-loss
      minikafka lab compare divergence -o json
      minikafka lab compare min-insync-replicas --left min.insync.replicas=1 --right min.insync.replicas=2
      minikafka lab compare power-loss --left flush.messages=1 --right flush.messages=1000
      minikafka lab compare rebalance
      minikafka lab compare rebalance --left assignor=sticky --right assignor=cooperative-sticky

    Steps that differ are marked, the first of them with >>.
    """
    sides = [_given(left), _given(right)]
    shared, name = _given(given, control=control), _as_listed(name)
    if name == rebalance.NAME:
        if not left and not right:
            sides = [{"assignor": each} for each in rebalance.COMPARED]
        _compare_rebalances([shared | side for side in sides], output)
        return
    if name in transactions.STORIES:
        raise Misuse(f"{name} has no second rule set to compare with; minikafka lab run {name} plays it")
    if not left and not right:
        sides = [{"truncation": "high-watermark"}, {"truncation": "leader-epoch"}]
    scenario = find(name, SIMULATED)
    sides = [shared | side for side in sides]
    both = comparing.compare(scenario, *sides)
    if output == "json":
        print_json(compared_as_json(scenario, both, *sides))
    else:
        _show_both(scenario, both, sides)


def _show_both(scenario: Scenario, both: comparing.Comparison, sides: list[dict[str, str]]) -> None:
    labels = [" ".join(f"{key}={value}" for key, value in side.items()) or "as the file says" for side in sides]
    _print_folded(f"# {short_name(scenario.name)}: {story(scenario)}".rstrip(": "), "# ")
    rows = [comparing.head(labels[0], labels[1]), *comparing.rows_of(both)]
    lines, width = table.aligned(rows, free=2), console().width
    if not sys.stdout.isatty():
        click.echo("\n".join(lines))
    elif max(map(len, lines)) > width:
        _print_both_stacked(both, labels)
    else:
        console().print(_grid(rows, lambda row: _mark_style(row[0])))
    first = both.first
    if first is None:
        click.echo("no step differs")
    else:
        _print_folded(f"the first step that differs: {first.number}, {first.what}")
    for label, played in zip(labels, (both.left, both.right), strict=True):
        for sentence in table.verdict(played):
            _print_folded(f"{label}: {sentence}")


def _mark_style(mark: str) -> str:
    return {comparing.FIRST: "bold red", comparing.OTHER: "yellow"}.get(mark, "")


def _print_both_stacked(both: comparing.Comparison, labels: list[str]) -> None:
    """For a screen that is too narrow for two sides: what both have in common once, else a line for each side."""
    for side, label in zip(comparing.SIDES, labels, strict=True):
        _print_folded(f"{side:5} is {label}")
    for pair in both.pairs:
        mark, style = both.mark(pair), _mark_style(both.mark(pair))
        _print_folded(f"{mark:2} {pair.number:>5}  {pair.what}", " " * 10, style="bold " + style)
        for line in comparing.lines_of(pair):
            _print_folded(f"{'':10}{line}", " " * 14, style=style)


def run_as_json(scenario: Scenario, run: Run) -> dict[str, Any]:
    """One run: exactly scenario, truncation, lost, diverged, steps."""
    return {"scenario": scenario.name, **_damage(run), "steps": [_step(each, truncation_of(run)) for each in run.steps]}


def compared_as_json(
    scenario: Scenario, both: Comparison, left: Mapping[str, str], right: Mapping[str, str]
) -> dict[str, Any]:
    """Two runs of one schedule; a step that one side does not have is null there."""
    first = both.first
    return {
        "scenario": scenario.name,
        "left": {"options": dict(left), **_damage(both.left)},
        "right": {"options": dict(right), **_damage(both.right)},
        "first_difference": None if first is None else {"step": first.number, "what": first.what},
        "steps": [
            {
                "differs": pair.differs,
                "left": None if pair.left is None else _step(pair.left, truncation_of(both.left)),
                "right": None if pair.right is None else _step(pair.right, truncation_of(both.right)),
            }
            for pair in both.pairs
        ],
    }


def _damage(run: Run) -> dict[str, Any]:
    return {
        "truncation": truncation_of(run),
        "lost": list(map(asdict, run.lost)),
        "diverged": [_difference(each) for each in run.diverged],
    }


def _difference(each: Difference) -> dict[str, Any]:
    return {"offset": each.offset, "step": each.step, "versions": [asdict(version) for version in each.versions]}


def _step(step: Step, truncation: str) -> dict[str, Any]:
    return {
        "step": step.number,
        "what": step.what,
        "told": list(step.lines),
        "changes": [
            {**asdict(change), "because": RULES[change.rule], "cause": step.what}
            for change in changes_of(step, truncation)
        ],
        "replicas": {name: _view(view) for name, view in step.after.items()},
    }


def _view(view: View) -> dict[str, Any]:
    return {
        "role": view.role,
        "leo": view.end_offset,
        "remote_leo": {name: None if end == NO_OFFSET else end for name, end in view.remotes},
        "high_watermark": view.high_watermark,
        "isr": view.isr.split(",") if view.isr else [],
        "isr_asked": view.asked.split(",") if view.asked else None,
        "leader_epoch": view.epoch,
    }
