"""``minikafka demo``: kill -9 brokers while 336,776 flights stream in, and prove that nothing acknowledged was lost.

Three broker processes, the topic ``flights`` (6 partitions, replication factor 3, min.insync.replicas 2), acks=all. The
verdict is the history checker's; the exit code says whether it found anything. At the end Spark's flights job runs over
the topic, and its result is checked against the same aggregation in plain Python.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import Callable, Coroutine, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import click

from minikafka import AdminClient
from minikafka.chaos.load import Compared, Ledger, compare, judge, read_back
from minikafka.chaos.watch import Watch
from minikafka.check import Verdict
from minikafka.cli.demo_story import FLIGHT_COUNT, Flight, FlightsMissing, Screen, Shown, Story, Stream, flights
from minikafka.cli.running import FAILED, Failure, Interrupted, Signals, first_of, lone_command, run_until_asked
from minikafka.cli.spark import print_flights
from minikafka.cli.tables import FOLDER, console
from minikafka.client.producer import Producer
from minikafka.client.settings import ProducerConfig, build
from minikafka.client.structs import NewTopic
from minikafka.config import DAY_MS
from minikafka.errors import InvalidConfig, WorldError
from minikafka.hosting.processes import ProcessCluster
from minikafka.spark.jobs import LATE_MINUTES
from minikafka.spark.session import INSTALL_SPARK
from minikafka.types import TopicPartition
from minikafka.world.clients import Asker, client_world

JOB_TIMEOUT_S = 300.0
QUIET_INTERVAL_S = 5.0
"""After this long without news of the job, the demo says that it is still at work."""

LEFT_OUT = f"Spark is not installed, so the Spark job is left out ({INSTALL_SPARK})"


class JobFailed(WorldError):
    """The Spark job ended without a result; the message has its last words."""


def is_installed() -> bool:
    """Return True if Spark and Java are installed."""
    return importlib.util.find_spec("pyspark") is not None


async def run_job(
    bootstrap: str, topic: str, summary_topic: str, folder: Path, report: Callable[[str], None]
) -> dict[str, Any]:
    """Run ``minikafka spark flights`` in a process of its own; its JSON. JobFailed."""
    command = [sys.executable, "-m", "minikafka", "spark", "flights", "-b", bootstrap, "--topic", topic, "-o", "json"]
    command += ["--into", str(folder / "delays"), "--checkpoint", str(folder / "delays-checkpoint")]
    process = await asyncio.create_subprocess_exec(
        *command, "--summary-topic", summary_topic, stdout=PIPE, stderr=PIPE, start_new_session=True
    )
    last = ""
    news = asyncio.Event()

    async def listen(stream: asyncio.StreamReader) -> None:
        nonlocal last
        async for line in stream:
            text = line.decode(errors="replace").strip()
            # The JVM writes to standard error too; only the job's own lines are shown.
            if text.startswith("flights: "):
                report(text.removeprefix("flights: "))
                news.set()
            last = text or last

    async def fill_silence() -> None:
        loop = asyncio.get_running_loop()
        since = loop.time()
        while True:
            try:
                async with asyncio.timeout(QUIET_INTERVAL_S):
                    await news.wait()
            except TimeoutError:
                report(f"still at work, {loop.time() - since:.0f} s after the last step")
            else:
                news.clear()
                since = loop.time()

    filling = asyncio.ensure_future(fill_silence())
    try:
        async with asyncio.timeout(JOB_TIMEOUT_S):
            if process.stdout is None or process.stderr is None:
                raise JobFailed("the job has no output")
            output, _ = await asyncio.gather(process.stdout.read(), listen(process.stderr))
            code = await process.wait()
    except TimeoutError:
        raise JobFailed(f"the Spark job has not ended after {JOB_TIMEOUT_S:.0f} s; it said: {last}") from None
    finally:
        filling.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code != 0:
        raise JobFailed(f"the Spark job ended with {code}, saying: {last}")
    result: dict[str, Any] = json.loads(output)
    return result


@dataclass(slots=True)
class Direct:
    """The same aggregation without Spark: windows of a day, in UTC, that ended by ``until_ms``."""

    until_ms: int
    windows: set[tuple[int, str, str]] = field(default_factory=set)
    totals: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """(airport, carrier) -> flights, late ones, sum of delays, flights whose delay is known."""

    def add(self, flight: Flight) -> None:
        """Count one flight."""
        day = flight.timestamp_ms // DAY_MS
        if (day + 1) * DAY_MS > self.until_ms:
            return
        row = json.loads(flight.value)
        self.windows.add((day, row["origin"], row["carrier"]))
        total = self.totals.setdefault((row["origin"], row["carrier"]), [0, 0, 0, 0])
        delay = row["dep_delay"]
        total[0] += 1
        if delay is not None:
            total[1] += delay >= LATE_MINUTES
            total[2] += delay
            total[3] += 1

    def differences(self, summary: dict[str, Any]) -> list[str]:
        """Sentences on what the job counted otherwise; empty when it agrees."""
        theirs = {
            (line["origin"], line["carrier"]): [line[name] for name in ("flights", "late", "delay_sum", "delay_known")]
            for line in summary["lines"]
        }
        found = [
            f"{'/'.join(place)}: Spark {theirs.get(place)}, directly {self.totals.get(place)}"
            for place in sorted(theirs.keys() | self.totals.keys())
            if theirs.get(place) != self.totals.get(place)
        ]
        if summary["windows"] != len(self.windows):
            found.append(f"windows: Spark {summary['windows']}, directly {len(self.windows)}")
        return found


def directly(flights: Iterable[Flight], until_ms: int) -> Direct:
    """Aggregate the data set itself."""
    direct = Direct(until_ms)
    for flight in flights:
        direct.add(flight)
    return direct


PROCESS = "demo-producer"
"""The producer's name in the history."""
TOPIC = "flights"
SUMMARY_TOPIC = "flights-delays"
PARTITIONS = 6
TOPICS = {TOPIC: PARTITIONS, SUMMARY_TOPIC: 1}
NAMES = tuple(TopicPartition(TOPIC, partition) for partition in range(PARTITIONS))
FAST_COUNT = 20_000
SETTLE_TIMEOUT_S = 30.0
READING_INTERVAL_S = 3.0

# Kafka's session timeout is 9 s; a demo should not spend most of its time waiting for it.
SETTINGS = {
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "auto.create.topics.enable": "false",
}


@lone_command()
@click.option("--no-spark", is_flag=True, help="Leave out the Spark job over the flights.")
@click.option("--fast", is_flag=True, help=f"Only the first {FAST_COUNT:,} flights.")
@click.option(
    "--data-dir",
    type=FOLDER,
    metavar="DIR",
    help="Keep everything here.  [a temporary directory, removed if all is well]",
)
def command(no_spark: bool, fast: bool, data_dir: Path | None) -> None:
    """Kill brokers while flights stream in, and prove that nothing that was acknowledged was lost.

    Examples:
      minikafka demo                      # all 336,776 flights
      minikafka demo --fast               # 20,000 of them, for CI
      minikafka demo --no-spark           # without the Spark job at the end
      minikafka demo --data-dir /tmp/mk   # keep logs, history.jsonl and verdict.json

    Exit code 0: every acknowledged flight was read back exactly once and in order, and the three replicas are
    equal byte by byte below their high watermarks, and Spark's aggregation of the topic is the data set's own.
    """
    if data_dir is not None and (data_dir / "history.jsonl").exists():
        raise InvalidConfig(f"{data_dir} holds an earlier run: choose another directory")
    folder = data_dir or Path(tempfile.mkdtemp(prefix="minikafka-demo-"))
    well = False
    try:
        count = FAST_COUNT if fast else FLIGHT_COUNT
        well = run_until_asked(lambda signals: _demo(Demo(count, folder, with_spark=not no_spark), signals))
    except FlightsMissing as error:
        raise Failure(str(error)) from error
    finally:
        has_files = folder.is_dir() and any(folder.iterdir())
        if data_dir is None and (well or not has_files):
            shutil.rmtree(folder, ignore_errors=True)
        elif has_files:
            click.echo(f"logs, history.jsonl and verdict.json: {folder}", err=True)
    if not well:
        raise click.exceptions.Exit(FAILED)


async def _demo(demo: Demo, signals: Signals) -> bool:
    """The whole demo; is the verdict good? Interrupted when it was."""
    if await first_of(demo.run(), signals.asked.wait()) != 0:
        raise Interrupted("interrupted")
    return demo.is_well


class Demo:
    """One run."""

    def __init__(self, count: int, folder: Path, *, with_spark: bool = False) -> None:
        self.count = count
        self.folder = folder
        self.with_spark = with_spark
        self.screen = Screen(console())
        self.started = asyncio.get_running_loop().time()
        self.is_well = False

    async def run(self) -> bool:
        """Play it all. Return True if the verdict is good."""
        say = self.screen.say
        cluster = ProcessCluster(3, data_dir=self.folder, config=SETTINGS)
        ledger = Ledger(self.folder / "history.jsonl")
        try:
            say("starting three brokers, reading the flights")
            stream_of_flights = flights(self.count)
            first, _ = await asyncio.gather(asyncio.to_thread(next, stream_of_flights), cluster.start())
            say(f"{self.count:,} flights, the first at {first.ident.split('/')[0]}")
            for node, broker in cluster.brokers.items():
                say(f"broker {node} is ready: http://{broker.files.address}, pid {broker.pid}")
            await self._create_topic(cluster)
            story = await self._stream(cluster, ledger, chain([first], stream_of_flights))
            say("reading everything back")
            ends = await read_back(ledger, {"bootstrap_servers": cluster.bootstrap}, NAMES, self._reading_progress())
            folders = {node: broker.files.folder for node, broker in cluster.brokers.items()}
            aggregated = not self.with_spark or await self._aggregate(cluster)
        finally:
            await cluster.stop()
        say("brokers stopped; comparing the replicas byte by byte")
        compared = await asyncio.to_thread(compare, ledger, folders, ends)
        say("checking the history: was every acknowledged flight read, once and in order?")
        verdict = await asyncio.to_thread(judge, ledger)
        self._summarize(story, compared, verdict)
        self.is_well = verdict.ok and compared.differences == 0 and aggregated
        return self.is_well

    async def _aggregate(self, cluster: ProcessCluster) -> bool:
        """Run the Spark job over the topic. Return True if it agrees with the data set."""
        if not is_installed():
            self.screen.say(LEFT_OUT)
            return True
        self.screen.say("Spark: delays per airport and carrier, aggregated from the topic (about a minute)")
        summary = await run_job(
            cluster.bootstrap, TOPIC, SUMMARY_TOPIC, self.folder, lambda text: self.screen.say(f"Spark: {text}")
        )
        print_flights(summary)
        self.screen.say("Spark: comparing with the same aggregation in plain Python")
        direct = await asyncio.to_thread(lambda: directly(flights(self.count), summary["until_ms"]))
        differences = direct.differences(summary)
        self.screen.say(
            f"Spark: {summary['rows_read']:,} flights read; the same aggregation of the data set "
            + ("agrees" if not differences else f"DIFFERS: {'; '.join(differences[:3])}")
        )
        return not differences

    def _reading_progress(self) -> Callable[[int], None]:
        """Says how far it is, now and then."""
        loop = asyncio.get_running_loop()
        next_at = loop.time() + READING_INTERVAL_S

        def report(count: int) -> None:
            nonlocal next_at
            if loop.time() >= next_at:
                next_at = loop.time() + READING_INTERVAL_S
                self.screen.say(f"{count:,} of {self.count:,} read")

        return report

    async def _create_topic(self, cluster: ProcessCluster) -> None:
        # The flights are of 2013: by Kafka's default retention they would be deleted at the first look.
        configs = {"min.insync.replicas": "2", "retention.ms": "-1"}
        wanted = [NewTopic(name, count, 3, topic_configs=configs) for name, count in TOPICS.items()]
        async with AdminClient(bootstrap_servers=cluster.bootstrap) as admin:
            await admin.create_topics(wanted)
        self.screen.say(
            f"topic {TOPIC}: {PARTITIONS} partitions, replication factor 3, min.insync.replicas 2, acks=all"
        )

    async def _stream(self, cluster: ProcessCluster, ledger: Ledger, source: Any) -> Story:
        """Stream and story side by side; returns when all outcomes are known and the replicas have settled."""
        settings = {"bootstrap_servers": cluster.bootstrap, "client_id": PROCESS, "allow_auto_create_topics": False}
        config = build(ProducerConfig, settings)
        producing = Producer(config, client_world(config), ledger=nullcontext(ledger))
        async with Asker(cluster.bootstrap) as asker, producing as producer:
            watch = Watch(asker, cluster.addresses, TOPIC)
            stream = Stream(producer, TOPIC, source)
            story = Story(cluster, watch, stream, self.count, self.screen.say)
            shown = Shown(
                stream,
                self.count,
                lambda: watch.state,
                lambda: {node: broker.is_running for node, broker in cluster.brokers.items()},
            )
            await first_of(self._play(watch, stream, story), watch.run(), self.screen.show(shown))
            return story

    async def _play(self, watch: Watch, stream: Stream, story: Story) -> None:
        if await watch.until(lambda state: state.all_in_sync, SETTLE_TIMEOUT_S) is None:
            raise WorldError("the new topic has no leaders")
        await _together(stream.run(), story.run())
        self.screen.say(
            f"{stream.sent:,} sent: {stream.acknowledged:,} acknowledged, {stream.failed:,} failed,"
            f" {stream.unknown:,} unknown"
        )
        if await watch.until(lambda state: state.settled, SETTLE_TIMEOUT_S) is None:
            raise WorldError(f"the replicas have not settled after {SETTLE_TIMEOUT_S:.0f} s")

    def _summarize(self, story: Story, compared: Compared, verdict: Verdict) -> None:
        seconds = asyncio.get_running_loop().time() - self.started
        (self.folder / "verdict.json").write_text(
            json.dumps(to_json(verdict, story.failovers, compared, seconds), indent=2) + "\n", encoding="utf-8"
        )
        self.screen.print("")
        for each in story.failovers:
            controller = "" if each.controller_s is None else f", another controller after {each.controller_s:.2f} s"
            self.screen.print(
                f"kill -9 of broker {each.node} ({each.what}): new leaders after {each.elected_s:.2f} s, writable after"
                f" {each.writable_s:.2f} s{controller}; in sync {each.in_sync_s:.2f} s after its restart"
            )
        equal = "equal" if not compared.differences else f"{compared.differences} DIFFERENCES"
        self.screen.print(
            f"replicas: {compared.batches:,} batches, {compared.size / 1e6:,.1f} MB each, byte by byte: {equal}"
        )
        self.screen.print(verdict.render())
        self.screen.print(f"{seconds:.1f} s in all")


async def _together(*works: Coroutine[Any, Any, None]) -> None:
    """Run all to their ends; the first that fails ends the others, and its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


def to_json(verdict: Verdict, failovers: list[Any], compared: Compared, seconds: float) -> dict[str, object]:
    """What ``verdict.json`` holds."""
    return {
        **verdict.to_json(),
        "seconds": round(seconds, 3),
        "replicas": {"batches": compared.batches, "bytes": compared.size, "differences": compared.differences},
        "failovers": [
            {
                "what": each.what,
                "broker": each.node,
                "partitions": list(each.partitions),
                "controller_s": each.controller_s,
                "elected_s": each.elected_s,
                "writable_s": each.writable_s,
                "in_sync_s": each.in_sync_s,
            }
            for each in failovers
        ],
    }
