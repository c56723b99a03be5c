"""``minikafka sim``: the deterministic simulator from the command line.

``run`` and ``shrink`` are those of ``python -m minikafka.sim``, with examples. Beside them:

- ``search`` looks for a history that loses an acknowledged record under some settings. The result goes to standard
  output, progress to standard error; finding nothing is a result, not a failure: exit code 0 both ways.
- ``show`` prints any run, of a seed or of real brokers' journals, as steps or as the replay page. It reads and writes
  files only.
- ``traffic`` measures the requests between the brokers of large clusters without producers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from minikafka.cli.running import Failure, Interrupted, Misuse, command_group, lone_command
from minikafka.cli.settings import parse_flags
from minikafka.cli.tables import OutputFile, config_option, console, many, output_option, print_found, print_json
from minikafka.config import parse_broker
from minikafka.errors import InvalidConfig
from minikafka.sim.__main__ import family_option, main
from minikafka.sim.campaign import read_plan
from minikafka.sim.plan import Plan
from minikafka.sim.search import FAULTS, OPERATIONS, Found, Search, asked_for, search
from minikafka.sim.seeds import FAMILIES
from minikafka.sim.traffic import CONTROL, REPLICATION, ApiTraffic, ClusterTraffic, measure
from minikafka.ui.journal import BadJournal, Journal, read_journals, write_journal
from minikafka.ui.page import NothingToShow, page_of, replay_of, text_of
from minikafka.ui.record import RecordedRun

SEEDS_A_LINE = 25
"""Without a terminal, progress is a line after so many seeds."""


@lone_command(name="search")
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

    Examples:
      minikafka sim search --config acks=1
      minikafka sim search --config acks=all --config min.insync.replicas=2 --seeds 200
      minikafka sim search --config unclean.leader.election.enable=true --out loss.json
      minikafka sim search --config acks=1 -o json | jq -r '.steps[]'

    Settings are the producer's and the brokers', by Kafka's names; exit code 0 whether a story was found or not.
    """
    settings = parse_flags(config)
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
        click.echo("\n".join(_result_lines(settings, result, found, out)))
    if found is not None and out is not None:
        out.write_text(found.plan.to_json(), encoding="utf-8")
    if interrupted is not None:
        raise interrupted


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


def _result_lines(settings: Mapping[str, str], result: Search, found: Found, out: Path | None) -> Iterator[str]:
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


@lone_command("show")
@click.argument("seed_or_journal", nargs=-1, required=True)
@family_option
@click.option("--html", metavar="FILE", type=OutputFile(), help="Write the replay page to this file.")
@click.option(
    "--journal", "journal_path", metavar="FILE", type=OutputFile(), help="Write all events to this file, as JSON lines."
)
@click.option("--partition", metavar="TOPIC-N", help="Partition to show.  [the one with the most events]")
@click.option("--from", "from_s", type=float, metavar="SECONDS", help="Omit steps before this time.")
@click.option("--to", "to_s", type=float, metavar="SECONDS", help="Omit steps after this time.")
def show_command(
    seed_or_journal: tuple[str, ...],
    family: str,
    html: Path | None,
    journal_path: Path | None,
    partition: str | None,
    from_s: float | None,
    to_s: float | None,
) -> None:
    """Show a run: a seed or a plan is run, journals of one run (mk.journal.path) are read.

    Without --html the steps are printed. Times are virtual seconds; of real brokers, seconds since the first event.

    Examples:
      minikafka sim show 7
      minikafka sim show 7 --html run.html --partition orders-0
      minikafka sim show plan.json --journal run.jsonl
      minikafka sim show b1.jsonl b2.jsonl b3.jsonl --html run.html --from 12 --to 30
    """
    journal = _journal(seed_or_journal, family)
    if journal_path is not None:
        write_journal(journal.entries, journal_path)
        click.echo(f"{journal_path}: {len(journal.entries):,} entries", err=True)
    try:
        replay = replay_of(journal, partition=partition, from_s=from_s, to_s=to_s)
    except NothingToShow as error:
        raise Failure(str(error)) from error
    if html is None:
        click.echo(text_of(replay), nl=False)
        return
    page = page_of(replay)
    html.write_text(page, encoding="utf-8")
    size_mb = len(page.encode()) / 1e6
    click.echo(f"{html}: {len(replay.steps):,} steps of {replay.partition}, {size_mb:.2f} MB", err=True)
    for note in replay.notes:
        click.echo(f"  {note}", err=True)


def _journal(named: tuple[str, ...], family: str) -> Journal:
    plan = _plan(named, family)
    if plan is not None:
        journal, report = RecordedRun(plan).recorded()
        click.echo(report.render().splitlines()[0], err=True)
        return journal
    try:
        return read_journals([Path(name) for name in named])
    except BadJournal as error:
        raise Failure(str(error)) from error
    except OSError as error:
        raise Misuse(f"{error.filename}: {error.strerror}; a seed is a number") from error


def _plan(named: tuple[str, ...], family: str) -> Plan | None:
    """The plan of a seed, or of a plan's file; None: journals are meant."""
    if len(named) != 1:
        return None
    if named[0].isascii() and named[0].isdigit():
        return FAMILIES[family](int(named[0]))
    path = Path(named[0])
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        return read_plan(path)
    except InvalidConfig as error:
        if isinstance(error.__cause__, json.JSONDecodeError):
            return None  # several lines of JSON: a journal with an unusual name
        raise


COLUMNS = ("brokers", "traffic", "requests/s", "bytes/s", "requests/s a broker", "bytes/s a broker")


@lone_command(name="traffic")
@click.option(
    "--brokers",
    type=click.IntRange(min=1, max=200),
    multiple=True,
    default=(30, 100),
    show_default=True,
    help="Number of brokers in a cluster (repeatable).",
)
@click.option(
    "--partitions",
    type=click.IntRange(min=1, max=10_000),
    default=10_000,
    show_default=True,
    help="Number of partitions in each cluster, with three replicas.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1.0),
    default=5.0,
    show_default=True,
    help="Virtual seconds for which messages are counted.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the simulation.")
@config_option
@output_option
def traffic_command(
    brokers: tuple[int, ...], partitions: int, seconds: float, seed: int, config: tuple[str, ...], output: str
) -> None:
    """Count requests and bytes between the brokers of idle simulated clusters.

    The first three brokers are voters of the quorum. A cluster of 100 brokers with 10,000 partitions takes some
    minutes and about 3 GB of memory.

    Examples:
      minikafka sim traffic --brokers 30 --brokers 100
      minikafka sim traffic --brokers 30 --partitions 1000 --config replica.fetch.wait.max.ms=2000
      minikafka sim traffic --brokers 30 -o json

    Each request and its response are counted once; bytes are those of both bodies, without heads of HTTP and TCP.
    """
    settings = parse_flags(config)
    parse_broker({"node.id": "1", **settings})
    say = partial(click.echo, err=True)
    measured = [
        measure(brokers=count, partitions=partitions, virtual_s=seconds, settings=settings, seed=seed, say=say)
        for count in brokers
    ]
    rows = [row for each in measured for row in _rows(each)]
    print_found(output, {"clusters": [as_json(each) for each in measured]}, COLUMNS, rows)


def _rows(cluster: ClusterTraffic) -> Iterator[tuple[object, ...]]:
    for kind in (CONTROL, REPLICATION):
        for each in (cluster.of_kind(kind), *cluster.apis):
            if each.kind == kind and each.api != kind:
                yield _row(cluster, f"  {each.api}", each)
            elif each.api == kind:
                yield _row(cluster, kind, each)


def _row(cluster: ClusterTraffic, name: str, each: ApiTraffic) -> tuple[object, ...]:
    totals = (each.requests_per_second, each.bytes_per_second)
    figures = (*totals, *(total / cluster.brokers for total in totals))
    return (cluster.brokers, name, *(f"{figure:,.1f}" for figure in figures))


def as_json(cluster: ClusterTraffic) -> dict[str, Any]:
    """The contract of ``sim traffic -o json`` (docs/simulator.md)."""
    return {
        "brokers": cluster.brokers,
        "partitions": cluster.partitions,
        "virtual_seconds": cluster.virtual_s,
        **{kind: _sums(cluster.of_kind(kind)) for kind in (CONTROL, REPLICATION)},
        "apis": {each.api: _sums(each) for each in cluster.apis},
    }


def _sums(each: ApiTraffic) -> dict[str, float]:
    return {"requests_per_second": each.requests_per_second, "bytes_per_second": each.bytes_per_second}


EXAMPLES: Final = {
    "run": (
        "sim run --seeds 100",
        "sim run --seed 7",
        "sim run --family transactions --seeds 100",
        "sim run --seeds 1000 -o json",
        "sim run loss.json",
    ),
    "shrink": ("sim shrink --seed 7 --out small.json", "sim shrink loss.json"),
}


@command_group()
def command() -> None:
    """Whole clusters in one process, under virtual time, from a seed.

    Examples:
      minikafka sim run --seeds 100
      minikafka sim search --config acks=1
      minikafka sim show 7 --html run.html
      minikafka sim traffic --brokers 30
    """


for _name, _lines in EXAMPLES.items():
    main.commands[_name].epilog = "\b\nExamples:\n" + "\n".join(f"  minikafka {line}" for line in _lines)
for _each in (*main.commands.values(), search_command, show_command, traffic_command):
    command.add_command(_each)  # the last `show` of the two counts
