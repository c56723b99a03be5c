"""``minikafka spark``: jobs on a SparkSession of their own, or on a cluster with ``--master``.

Rules for this file: pyspark is imported when a job is run; progress goes to standard error, the result to standard
output as a table or as one JSON object.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from minikafka.addresses import is_https
from minikafka.blocking.reading import GO_ON
from minikafka.cli.admin import GivenPath, call_admin, tls_files
from minikafka.cli.audit import compared_options, node_folders, partitions_in, segments_of
from minikafka.cli.running import FAILED, Failure, Misuse, command_group
from minikafka.cli.tables import bootstrap_option, columns_of, output_option, print_json, print_table
from minikafka.spark.jobs import Summary
from minikafka.spark.jobs import archive as run_archive
from minikafka.spark.jobs import flights as run_flights
from minikafka.spark.options import KEYSTORE, PROTOCOL, TRUSTSTORE
from minikafka.spark.session import NoJava, NoPackage, NoSpark, open_session
from minikafka.types import NodeId, TopicPartition
from minikafka.world.read_disk import replica_of

Replicas = list[tuple[NodeId, TopicPartition, list[Path], int, int]]
"""As minikafka.spark.audit has it, which needs the extra."""

SENTENCE_LENGTH_MAX = 600

RAISED = re.compile(r"(minikafka(\.\w+)+|\w+Error): \S")
"""The last line of a Python traceback."""

JAVA_RAISED = re.compile(r"^: ([\w.$]+Exception: )?(?=\S)")
"""What stands before the message of a Java exception in the text of py4j's, after a line that names a call."""


@command_group("spark")
def command() -> None:
    """Run Spark jobs on topics.

    Examples:
      minikafka spark flights -b 127.0.0.1:9092 --into /tmp/delays --checkpoint /tmp/place
      minikafka spark archive orders -b 127.0.0.1:9092 --into /tmp/orders --checkpoint /tmp/place

    Needs the extra: pip install '.[spark]' in a clone, for every Python of a cluster. Jobs of your own:
    spark.read.format("minikafka"), options as for Spark's Kafka source; see docs/spark.md.
    """


brokers_option = partial(bootstrap_option, logs_in=False)
master_option = click.option(
    "--master", default="local[2]", show_default=True, help="Where Spark runs, as spark-submit has it."
)


BEGIN_AGAIN = "; to read what there is now, give another --checkpoint and another --into"
"""What a job can do about lost records. A folder knows the batches of its own checkpoint, and takes them once."""
AUDIT_AGAIN = ": audit again"


def source_security() -> dict[str, str]:
    """``--ca`` and ``--cert`` as options of the source and the sink. Misuse for ``--cert-key``."""
    files = tls_files()
    if files is None:
        return {}
    if files.keyfile is not None:
        raise Misuse("--cert-key cannot be used with Spark: give --cert a file with both")
    named = {TRUSTSTORE: files.cafile, KEYSTORE: files.certfile}
    return {PROTOCOL: "SSL", **{name: str(Path(path).absolute()) for name, path in named.items() if path is not None}}


def checked_security(bootstrap: str, *topics: str) -> dict[str, str]:
    """:func:`source_security`. Fails now, not when Java has started, if no broker answers or a topic is missing."""
    security = source_security()
    if is_https(bootstrap):
        raise Misuse("https:// cannot be used with Spark: leave it out, and connect with TLS by --ca")
    call_admin(bootstrap, lambda admin: admin.describe_topics(topics))
    return security


@contextmanager
def session_of(name: str, master: str, lost: str = BEGIN_AGAIN) -> Iterator[Any]:
    """A session for one job; what ends it comes out as a sentence, as of :func:`sentence_of`. SIGTERM is as Ctrl-C."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        session = open_session(name, master)
        from py4j.protocol import Py4JError  # noqa: PLC0415 - an extra
        from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra

        try:
            yield session
        except (PySparkException, Py4JError) as error:
            raise Failure(sentence_of(str(error), lost)) from error
        finally:
            session.stop()
    except (NoSpark, NoJava, NoPackage) as error:
        raise Failure(str(error)) from error
    finally:
        signal.signal(signal.SIGTERM, before)


def sentence_of(text: str, lost: str) -> str:
    """What a Python worker's traceback ends with, our own errors first, or the first line of Spark's own message.

    ``lost`` says what this command can do about lost records.
    """
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if RAISED.match(line)]
    ours = [line for line in raised if line.startswith("minikafka.")]
    if ours or raised:
        # Of a chain the last; its name is part of the sentence.
        path, sentence = (ours or raised)[-1].split(": ", 1)
        name = path.rsplit(".", 1)[-1]
        sentence = sentence if sentence.startswith(name) else f"{name}: {sentence}"
    else:
        java = next((JAVA_RAISED.sub("", line) for line in lines if JAVA_RAISED.match(line)), "")
        sentence = java or (lines[0].strip() if lines else "Spark failed")
    return sentence.replace(GO_ON, lost)[:SENTENCE_LENGTH_MAX]


def tell(job: str) -> Callable[[int, int], None]:
    """Progress on standard error."""
    began = time.monotonic()

    def report(batch: int, rows: int) -> None:
        click.echo(f"{job}: batch {batch} done, {rows:,} rows in {time.monotonic() - began:.1f} s", err=True)

    return report


@command.command("flights")
@brokers_option
@click.option("--topic", default="flights", show_default=True, help="Flights as `minikafka demo` sends them.")
@click.option("--into", required=True, type=GivenPath(file_okay=False), help="Folder for closed windows, as Parquet.")
@click.option("--checkpoint", required=True, type=GivenPath(file_okay=False), help="Where the query keeps its place.")
@click.option("--summary-topic", help="Write the summary there, one record a line.  [nowhere]")
@master_option
@output_option
def flights_command(
    bootstrap: str, topic: str, into: str, checkpoint: str, summary_topic: str | None, master: str, output: str
) -> None:
    """Delays per airport and carrier: a watermarked window aggregation of flights.

    Examples:
      minikafka spark flights -b 127.0.0.1:9092 --into /tmp/delays --checkpoint /tmp/place
      minikafka spark flights -b 127.0.0.1:9092 --into /tmp/delays --checkpoint /tmp/place --summary-topic delays
    """

    def step(text: str) -> None:
        click.echo(f"flights: {text}", err=True)

    security = checked_security(bootstrap, topic, *(() if summary_topic is None else (summary_topic,)))
    step("starting Spark, a Java virtual machine")
    with session_of("minikafka flights", master) as session:
        summary = run_flights(
            session,
            bootstrap=bootstrap,
            topic=topic,
            into=_url(into),
            checkpoint=_url(checkpoint),
            summary_topic=summary_topic,
            report=tell("flights"),
            step=step,
            security=security,
        )
    if output == "json":
        print_json(summary_to_json(summary))
        return
    print_flights(summary_to_json(summary))


def summary_to_json(summary: Summary) -> dict[str, Any]:
    """The contract."""
    lines = [{name: getattr(line, name) for name in type(line).__slots__} for line in summary.lines]
    return {"rows_read": summary.rows_read, "windows": summary.windows, "until_ms": summary.until_ms, "lines": lines}


def print_flights(summary: dict[str, Any]) -> None:
    """The table for people."""
    until = datetime.fromtimestamp(summary["until_ms"] / 1000, UTC)
    made = {
        "LATE-%": lambda line: f"{100 * line['late'] / line['flights']:.1f}",
        "MEAN-DELAY-MIN": lambda line: f"{line['delay_sum'] / max(1, line['delay_known']):.1f}",
    }
    print_table(columns_of("AIRPORT=origin", "CARRIER", "FLIGHTS", "LATE", *made, **made), summary["lines"])
    click.echo(f"{summary['windows']:,} windows of a day, closed up to {until:%Y-%m-%d}")


@command.command("archive")
@click.argument("topic")
@brokers_option
@click.option("--into", required=True, type=GivenPath(file_okay=False), help="Folder for Parquet, by topic and day.")
@click.option("--checkpoint", required=True, type=GivenPath(file_okay=False), help="Where the query keeps its place.")
@click.option("--follow", is_flag=True, help="Go on with what comes later, until Ctrl-C.")
@master_option
def archive_command(topic: str, bootstrap: str, into: str, checkpoint: str, follow: bool, master: str) -> None:
    """Append TOPIC's committed records to Parquet, exactly once; run it again to go on.

    Examples:
      minikafka spark archive orders -b 127.0.0.1:9092 --into /tmp/orders --checkpoint /tmp/place
      minikafka spark archive orders -b 127.0.0.1:9092 --into s3a://lake/orders --checkpoint s3a://lake/place --follow
    """
    security = checked_security(bootstrap, topic)
    with session_of("minikafka archive", master) as session:
        rows = run_archive(
            session,
            bootstrap=bootstrap,
            topic=topic,
            into=_url(into),
            checkpoint=_url(checkpoint),
            report=tell("archive"),
            follow=follow,
            security=security,
        )
    print_json({"rows": rows})


@command.command("audit")
@compared_options("A broker's data directory, or a folder with several, which executors can read (repeatable).")
@master_option
@output_option
def audit_command(
    ledgers: tuple[Path, ...], bootstrap: str | None, folders: tuple[Path, ...], master: str, output: str
) -> None:
    """Compare acknowledgments (LEDGER...) with what the logs hold, at scale.

    Examples:
      minikafka spark audit orders.jsonl -b 127.0.0.1:9092 --data-dir /tmp/mk
      minikafka spark audit orders.jsonl --data-dir /tmp/mk      # brokers stopped

    Exit code 0: nothing found; 1: something is lost, duplicated, reordered, diverged or was read too early. The same
    without a JVM: minikafka audit.
    """
    if bootstrap is None and not folders:
        raise click.UsageError("give -b, or --data-dir, or both")
    replicas: Replicas = []
    for node, folder in (each for given in folders for each in node_folders(given)):
        for name in partitions_in(folder):
            known = replica_of(folder, node, name)
            segments = segments_of(folder.absolute(), name)
            replicas.append((node, name, segments, known.log_start, known.high_watermark))
    security = source_security() if bootstrap is None else checked_security(bootstrap)
    began = time.monotonic()
    with session_of("minikafka audit", master, AUDIT_AGAIN) as session:
        from minikafka.spark.audit import BadLedger, audit  # noqa: PLC0415 - needs the extra

        try:
            audited = audit(session, ledgers=ledgers, bootstrap=bootstrap, replicas=replicas, security=security)
        except BadLedger as error:
            raise Failure(str(error)) from error
    document = {**audited.to_json(), "seconds": round(time.monotonic() - began, 3)}
    if output == "json":
        print_json(document)
    else:
        click.echo(f"verdict: {'ok, nothing found' if audited.ok else 'NOT OK'}")
        click.echo(f"  sends {audited.sends}, {audited.records:,} records read, {audited.held:,} held by replicas")
        for kind, found in document["findings"].items():
            click.echo(f"  {kind} {found['count']:,}: {found['meaning']}")
        for finding in audited.findings:
            click.echo(f"    {finding.place()}: {finding.sentence()}")
        click.echo(f"{document['seconds']:.1f} s")
    if not audited.ok:
        raise click.exceptions.Exit(FAILED)


def _url(folder: str) -> str:
    """A path of this machine, unchanged; anything with a scheme (s3a://) is Spark's affair."""
    return folder if "://" in folder else str(Path(folder).absolute())
