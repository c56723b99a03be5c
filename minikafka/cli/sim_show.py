"""``minikafka sim show``: any run, of a seed or of real brokers' journals, as steps or as the replay page.

Rules for this file: it reads and writes files, it never talks to a cluster.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from minikafka.cli.running import Failure, Misuse
from minikafka.cli.tables import OutputFile
from minikafka.errors import InvalidConfig
from minikafka.sim.plan import Plan
from minikafka.sim.plan_file import read_plan
from minikafka.sim.seeds import plan_of
from minikafka.ui import table
from minikafka.ui.journal import BadJournal, Journal, read_journals, write_journal
from minikafka.ui.page import NothingToShow, page_of, replay_of
from minikafka.ui.record import RecordedRun


@click.command(
    "show",
    epilog="""\b
Examples:
  minikafka sim show 7
  minikafka sim show 7 --html run.html --partition orders-0
  minikafka sim show plan.json --journal run.jsonl
  minikafka sim show b1.jsonl b2.jsonl b3.jsonl --html run.html --from 12 --to 30""",
)
@click.argument("seed_or_journal", nargs=-1, required=True)
@click.option("--html", metavar="FILE", type=OutputFile(), help="Write the replay page to this file.")
@click.option(
    "--journal", "journal_path", metavar="FILE", type=OutputFile(), help="Write all events to this file, as JSON lines."
)
@click.option("--partition", metavar="TOPIC-N", help="Partition to show.  [the one with the most events]")
@click.option("--from", "from_s", type=float, metavar="SECONDS", help="Omit steps before this time.")
@click.option("--to", "to_s", type=float, metavar="SECONDS", help="Omit steps after this time.")
def show_command(
    seed_or_journal: tuple[str, ...],
    html: Path | None,
    journal_path: Path | None,
    partition: str | None,
    from_s: float | None,
    to_s: float | None,
) -> None:
    """Show a run: a seed or a plan is run, journals of one run (mk.journal.path) are read.

    Without --html the steps are printed. Times are virtual seconds; of real brokers, seconds since the first event.
    """
    journal = _journal(seed_or_journal)
    if journal_path is not None:
        write_journal(journal.entries, journal_path)
        click.echo(f"{journal_path}: {len(journal.entries):,} entries", err=True)
    try:
        replay = replay_of(journal, partition=partition, from_s=from_s, to_s=to_s)
    except NothingToShow as error:
        raise Failure(str(error)) from error
    if html is None:
        click.echo(table.rendered(replay), nl=False)
        return
    page = page_of(replay)
    html.write_text(page, encoding="utf-8")
    size_mb = len(page.encode()) / 1e6
    click.echo(f"{html}: {len(replay.steps):,} steps of {replay.partition}, {size_mb:.2f} MB", err=True)
    for note in replay.notes:
        click.echo(f"  {note}", err=True)


def _journal(named: tuple[str, ...]) -> Journal:
    plan = _plan(named)
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


def _plan(named: tuple[str, ...]) -> Plan | None:
    """The plan of a seed, or of a plan's file; None: journals are meant."""
    if len(named) != 1:
        return None
    if named[0].isascii() and named[0].isdigit():
        return plan_of(int(named[0]))
    path = Path(named[0])
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        return read_plan(path)
    except InvalidConfig as error:
        if isinstance(error.__cause__, json.JSONDecodeError):
            return None  # several lines of JSON: a journal with an unusual name
        raise
