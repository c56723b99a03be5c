"""``minikafka spark``: jobs on a SparkSession of their own, or on a cluster with ``--master``.

Rules for this file: pyspark is imported when a job is run; progress goes to standard error, the result to standard
output as a table or as one JSON object.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from minikafka.cli.running import Commands, Failure
from minikafka.cli.tables import bootstrap_option, output_option, print_json, print_table
from minikafka.spark.java import NoJava
from minikafka.spark.jobs.archive import archive as run_archive
from minikafka.spark.jobs.flights import Summary
from minikafka.spark.jobs.flights import flights as run_flights
from minikafka.spark.session import NoSpark, open_session

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

SENTENCE_LENGTH_MAX = 600


@click.group(
    "spark",
    cls=Commands,
    epilog="""\b
Examples:
  minikafka spark flights -b 127.0.0.1:9092 --into /tmp/delays --checkpoint /tmp/place
  minikafka spark archive orders -b 127.0.0.1:9092 --into /tmp/orders --checkpoint /tmp/place

Needs the extra: pip install 'minikafka[spark]' (in every Python of a cluster). Jobs of your own:
spark.read.format("minikafka"), options as for Spark's Kafka source; see docs/spark.md.""",
)
def command() -> None:
    """Run Spark jobs on topics."""


def master_option(function: Decorated) -> Decorated:
    """``--master``."""
    return click.option(
        "--master", default="local[2]", show_default=True, help="Where Spark runs, as spark-submit has it."
    )(function)


@contextmanager
def session_of(name: str, master: str) -> Iterator[Any]:
    """A session for one job; what ends it comes out as a sentence."""
    try:
        session = open_session(name, master)
    except (NoSpark, NoJava) as error:
        raise Failure(str(error)) from error
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

    try:
        yield session
    except PySparkException as error:
        raise Failure(sentence_of(str(error))) from error
    finally:
        session.stop()


def sentence_of(text: str) -> str:
    """What a Python worker's traceback ends with, or the first line of Spark's own message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("minikafka.") and ": " in line]
    told = ours[0].split(": ", 1)[1] if ours else lines[0] if lines else "Spark failed"
    return told[:SENTENCE_LENGTH_MAX]


def tell(job: str) -> Callable[[int, int], None]:
    """Progress on standard error."""
    began = time.monotonic()

    def told(batch: int, rows: int) -> None:
        click.echo(f"{job}: batch {batch} done, {rows:,} rows in {time.monotonic() - began:.1f} s", err=True)

    return told


@command.command(
    "flights",
    epilog="""\b
Examples:
  minikafka spark flights -b 127.0.0.1:9092 --into /tmp/delays --checkpoint /tmp/place
  minikafka spark flights -b 127.0.0.1:9092 --into /tmp/delays --checkpoint /tmp/place --summary-topic delays""",
)
@bootstrap_option
@click.option("--topic", default="flights", show_default=True, help="Flights as `minikafka demo` sends them.")
@click.option("--into", required=True, type=click.Path(file_okay=False), help="Folder for closed windows, as Parquet.")
@click.option("--checkpoint", required=True, type=click.Path(file_okay=False), help="Where the query keeps its place.")
@click.option("--summary-topic", default=None, help="Write the summary there, one record a line.  [nowhere]")
@master_option
@output_option
def flights_command(
    bootstrap: str, topic: str, into: str, checkpoint: str, summary_topic: str | None, master: str, output: str
) -> None:
    """Delays per airport and carrier: a watermarked window aggregation of flights."""
    with session_of("minikafka flights", master) as session:
        summary = run_flights(
            session,
            bootstrap=bootstrap,
            topic=topic,
            into=_url(into),
            checkpoint=_url(checkpoint),
            summary_topic=summary_topic,
            told=tell("flights"),
        )
    if output == "json":
        print_json(summary_to_json(summary))
        return
    print_flights(summary_to_json(summary))


def summary_to_json(summary: Summary) -> dict[str, Any]:
    """The contract."""
    lines = [{name: getattr(line, name) for name in type(line).__slots__} for line in summary.lines]
    return {
        "rows_read": summary.rows_read,
        "windows": summary.windows,
        "until_ms": summary.until_ms,
        "lines": lines,
    }


def print_flights(summary: dict[str, Any]) -> None:
    """The table for people."""
    until = datetime.fromtimestamp(summary["until_ms"] / 1000, UTC)
    print_table(
        ["AIRPORT", "CARRIER", "FLIGHTS", "LATE", "LATE-%", "MEAN-DELAY-MIN"],
        [
            (
                line["origin"],
                line["carrier"],
                line["flights"],
                line["late"],
                f"{100 * line['late'] / line['flights']:.1f}",
                f"{line['delay_sum'] / max(1, line['delay_known']):.1f}",
            )
            for line in summary["lines"]
        ],
    )
    click.echo(f"{summary['windows']:,} windows of a day, closed up to {until:%Y-%m-%d}")


@command.command(
    "archive",
    epilog="""\b
Examples:
  minikafka spark archive orders -b 127.0.0.1:9092 --into /tmp/orders --checkpoint /tmp/place
  minikafka spark archive orders -b 127.0.0.1:9092 --into s3a://lake/orders --checkpoint s3a://lake/place --follow""",
)
@click.argument("topic")
@bootstrap_option
@click.option("--into", required=True, type=click.Path(file_okay=False), help="Folder for Parquet, by topic and day.")
@click.option("--checkpoint", required=True, type=click.Path(file_okay=False), help="Where the query keeps its place.")
@click.option("--follow", is_flag=True, help="Go on with what comes later, until Ctrl-C.")
@master_option
def archive_command(
    topic: str,
    bootstrap: str,
    into: str,
    checkpoint: str,
    follow: bool,  # noqa: FBT001 - click passes flags so
    master: str,
) -> None:
    """Append TOPIC's committed records to Parquet, exactly once; run it again to go on."""
    with session_of("minikafka archive", master) as session:
        rows = run_archive(
            session,
            bootstrap=bootstrap,
            topic=topic,
            into=_url(into),
            checkpoint=_url(checkpoint),
            told=tell("archive"),
            follow=follow,
        )
    print_json({"rows": rows})


def _url(folder: str) -> str:
    """A path of this machine as it is; anything with a scheme (s3a://) is Spark's affair."""
    return folder if "://" in folder else str(Path(folder).absolute())
