"""Exactly once from a topic to Parquet while Spark and brokers die: ``python -m tests.spark.kill_rounds --rounds 10``.

Three broker processes; a producer that never stops; a streaming query on a local-cluster with two executors. In each
round a task is held in the middle of its range (copying.py), processes get SIGKILL, and the task may go on, if it still
lives. A round is over when all that was acknowledged at the kill is in a committed batch. At the end the output must be
the committed input, row for row.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from minikafka import Consumer, Producer, TopicPartition
from minikafka.chaos.watch import ClusterState, Watch
from minikafka.hosting.processes import ProcessCluster
from minikafka.types import NO_NODE
from minikafka.world.clients import Asker
from tests.e2e.kill_loop import PARTITIONS, SETTINGS, TOPIC, create_topic
from tests.spark.spark_home import executors_said, java_options, spark_home

# Who dies, in turn; the first three show what there is to show.
KINDS = (
    "executor",
    "leader",
    "driver and leader",
    "workers",
    "driver",
    "executor and leader",
    "leader",
    "driver",
    "executor",
    "driver and leader",
)
VALUE_SIZE = 20_000
ROUND_ROWS, SIDE_ROWS = 2_000, 60
"""In one partition 40 MB, more than fits into the pipes between the source and the task that is held; a little in the
others. Compressed, so that disks see little of it, and every fetch brings one batch of BATCH_SIZE.
"""
BATCH_SIZE = 256 * 1024
ROWS_PER_BATCH = 20_000
TRICKLE_PAUSE_S = 0.01
STEP_TIMEOUT_S = 400.0
LOOK_INTERVAL_S = 0.05

Row = tuple[int, int, str]
"""Partition, offset, digest of the value."""


@dataclass(slots=True)
class Outcome:
    """What was written and what came out."""

    kinds: list[str]
    killed: Counter[str]
    acknowledged: int
    committed: list[Row]
    output: list[Row]
    missing: int
    surplus: int
    lost_acknowledged: int
    held_in: list[str]
    """For each round: where a task stood when the kill came."""
    went_on: int
    """Times that an executor's reading went on at another leader."""

    @property
    def well(self) -> bool:
        return not (self.missing or self.surplus or self.lost_acknowledged) and len(self.committed) == len(self.output)

    def __str__(self) -> str:
        return (
            f"{len(self.kinds)} rounds, killed {dict(sorted(self.killed.items()))}\n"
            f"acknowledged {self.acknowledged:,}, committed {len(self.committed):,}, output {len(self.output):,}, "
            f"distinct {len(set(self.output)):,}; missing {self.missing}, surplus or twice {self.surplus}, "
            f"acknowledged but not committed {self.lost_acknowledged}; ranges read on at another leader: {self.went_on}"
        )


class Driver:
    """The processes of one Spark application: the driver (Python and JVM), executors and their Python workers."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._command = command
        self._environment = environment
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._sessions: list[int] = []

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        self._sessions.append(self._process.pid)

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    async def kill(self) -> None:
        """SIGKILL for both halves of the driver; its executors are left to themselves."""
        driver = psutil.Process(self.process.pid)
        halves = self._jvms(lambda each: each.parent() == driver)
        assert halves, "the driver has no JVM"
        for each in halves:
            each.kill()
        # The Python half may have seen the other's end.
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()

    def _jvms(self, wanted: Callable[[psutil.Process], bool]) -> list[psutil.Process]:
        """Those that live; a process may end while it is looked at."""
        found = []
        for each in self.family(self.process.pid):
            with suppress(psutil.NoSuchProcess):
                if each.name() == "java" and wanted(each):
                    found.append(each)
        return found

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs that live."""
        return self._jvms(lambda each: any("CoarseGrainedExecutorBackend" in one for one in each.cmdline()))

    @staticmethod
    def family(session: int) -> list[psutil.Process]:
        """The processes of a session that live."""
        found = []
        for each in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                if os.getsid(each.pid) == session and each.status() != psutil.STATUS_ZOMBIE:
                    found.append(each)
        return found

    def check(self) -> None:
        """The driver must be running: nothing that is done to brokers or executors may end it."""
        code = self.process.returncode
        assert code is None, f"the driver ended with {code}, saying: {self._log.read_text(errors='replace')[-3_000:]}"

    def end_all(self) -> None:
        """SIGKILL for whatever is left of all applications."""
        for session in self._sessions:
            for each in self.family(session):
                with suppress(psutil.NoSuchProcess):
                    each.kill()


@dataclass(slots=True)
class Writer:
    """What is sent, and where it was acknowledged."""

    producer: Producer
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    ends: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    """After the last acknowledged record of each partition."""
    number: int = 0
    stopping: bool = False

    async def send(self, size: int, partition: int) -> None:
        self.number += 1
        value = b"%d." % self.number
        value += b"x" * (size - len(value))
        future = await self.producer.send(TOPIC, value, partition=partition)
        future.add_done_callback(lambda done: self._acknowledged(value, done.result()))

    def _acknowledged(self, value: bytes, place: Any) -> None:
        self.places[digest(value)] = (place.partition, place.offset)
        self.ends[place.partition] = max(self.ends[place.partition], place.offset + 1)

    async def bulk(self, target: int) -> None:
        """A round's rows, acknowledged when this returns."""
        for partition in range(PARTITIONS):
            for _ in range(ROUND_ROWS if partition == target else SIDE_ROWS):
                await self.send(VALUE_SIZE, partition)
        await self.producer.flush()

    async def trickle(self) -> None:
        """Small records for as long as the rounds go on."""
        while not self.stopping:
            await self.send(40, self.number % PARTITIONS)
            await asyncio.sleep(TRICKLE_PAUSE_S)


class Rounds:
    """One cluster, one query."""

    def __init__(
        self, folder: Path, cluster: ProcessCluster, watch: Watch, writer: Writer, say: Callable[[str], object]
    ) -> None:
        self.folder = folder
        self.cluster = cluster
        self.watch = watch
        self.writer = writer
        self.say = say
        self.home = spark_home(folder)
        self.killed: Counter[str] = Counter()
        self.held_in: list[str] = []
        self.gate = folder / "gate"
        self.gate.mkdir()
        command = [sys.executable, "-m", "tests.spark.copying", "--bootstrap", cluster.bootstrap, "--topic", TOPIC]
        command += ["--folder", str(folder), "--rows-per-batch", str(ROWS_PER_BATCH)]
        self.driver = Driver(
            command, {**os.environ, **java_options(), "SPARK_HOME": str(self.home)}, folder / "driver.log"
        )

    async def round(self, kind: str) -> None:
        """Fill, wait for a task that stands in its middle, kill, and wait for what was written to come out."""
        began = time.monotonic()
        # The small batch that is under way must wait, or the large one would be read in pieces.
        self._shut("all")
        await self._held("small")
        await self.writer.bulk(len(self.held_in) % PARTITIONS)
        self._shut("large")
        self._open("all")
        held = await self._held("large")
        batch = held["batch"]
        assert (self.folder / f"checkpoint/offsets/{batch}").exists()
        assert not (self.folder / f"checkpoint/commits/{batch}").exists()
        self.held_in.append(f"{kind}: batch {batch}, partition {held['partition']}")
        went_on = self._went_on(held["partition"])
        node = NO_NODE
        if "leader" in kind:
            node = self.watch.state.partitions[held["partition"]].leader
            await self.cluster.kill9(node)
            self.killed["leader"] += 1
        await self._kill_in_spark(kind, held)
        self._open("large")
        if "driver" in kind:
            await self.driver.start()
        await self.committed(list(self.writer.ends))
        if kind == "leader":
            # The task outlived the leader that it read from: it must have read the rest from another.
            assert self._went_on(held["partition"]) > went_on, executors_said(self.home)[-2_000:]
        if node != NO_NODE:
            await self.cluster.restart(node)
            await self._seen(lambda state: state.all_in_sync)
        self.say(f"{self.held_in[-1]}, killed; {time.monotonic() - began:.1f} s")

    def _went_on(self, partition: int) -> int:
        return len(re.findall(rf"{TOPIC}-{partition}: reading goes on at", executors_said(self.home)))

    async def _kill_in_spark(self, kind: str, held: dict[str, Any]) -> None:
        if "driver" in kind:
            await self.driver.kill()
            self.killed["driver"] += 1
            return
        if kind == "leader":
            return
        # The worker that waits at the gate, the one that reads for it, and their parent, in one executor.
        executor = next(
            each
            for each in self.driver.executors()
            if held["pid"] in {one.pid for one in each.children(recursive=True)}
        )
        if "executor" in kind:
            executor.kill()
            self.killed["executor"] += 1
        else:
            workers = [each for daemon in executor.children() for each in daemon.children()]
            assert workers
            for each in workers:
                each.kill()
            self.killed["worker"] += len(workers)

    def _shut(self, name: str) -> None:
        for each in self.gate.glob("*.json"):
            each.unlink()
        (self.gate / name).touch()

    def _open(self, name: str) -> None:
        (self.gate / name).unlink()

    async def _held(self, size: str) -> dict[str, Any]:
        """Where a task waits."""
        async with asyncio.timeout(STEP_TIMEOUT_S):
            while True:
                self.driver.check()
                for each in self.gate.glob(f"{size}-*.json"):
                    return json.loads(each.read_text())
                await asyncio.sleep(LOOK_INTERVAL_S)

    async def committed(self, ends: list[int]) -> None:
        """Wait until a committed batch reaches these offsets."""
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                while any(at < end for at, end in zip(self._reached(), ends, strict=True)):
                    self.driver.check()
                    await asyncio.sleep(LOOK_INTERVAL_S)
        except TimeoutError:
            raise AssertionError(f"{ends} were acknowledged, the checkpoint stands at {self._reached()}") from None

    def _reached(self) -> list[int]:
        numbers = [
            int(path.name) for path in (self.folder / "checkpoint/commits").glob("[0-9]*") if path.name.isdigit()
        ]
        if not numbers:
            return [0] * PARTITIONS
        offset = (self.folder / f"checkpoint/offsets/{max(numbers)}").read_text().splitlines()[2]
        members = json.loads(offset)[TOPIC]
        return [members[str(partition)] for partition in range(PARTITIONS)]

    async def _seen(self, condition: Callable[[ClusterState], bool]) -> None:
        since = asyncio.get_running_loop().time()
        seen = await self.watch.until(lambda state: state.at > since and condition(state), STEP_TIMEOUT_S)
        assert seen is not None, f"the cluster did not recover: {self.watch.state}"

    async def play(self, rounds: int) -> list[str]:
        """All rounds, and on until all that was written is in a committed batch; then the driver dies once more."""
        await self._seen(lambda state: state.all_in_sync)
        trickling = asyncio.ensure_future(self.writer.trickle())
        kinds = [KINDS[number % len(KINDS)] for number in range(rounds)]
        try:
            await self.driver.start()
            for kind in kinds:
                await self.round(kind)
        finally:
            self.writer.stopping = True
            await trickling
        await self.writer.producer.flush()
        await self.committed(list(self.writer.ends))
        await self.driver.kill()
        return kinds


def digest(value: bytes) -> str:
    """As Spark's md5() has it."""
    return hashlib.md5(value, usedforsecurity=False).hexdigest()


async def committed_rows(bootstrap: str) -> list[Row]:
    """All that a plain consumer reads below the high watermarks."""
    names = [TopicPartition(TOPIC, partition) for partition in range(PARTITIONS)]
    consumer = Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_poll_records=500)
    await consumer.start()
    try:
        consumer.assign(names)
        ends = dict(await consumer.end_offsets(names))
        rows: list[Row] = []
        async with asyncio.timeout(STEP_TIMEOUT_S):
            behind = {name for name in names if ends[name] > 0}
            while behind:
                for name, found in (await consumer.getmany(timeout_ms=500)).items():
                    rows += [(each.partition, each.offset, digest(each.value)) for each in found]
                    if found[-1].offset + 1 >= ends[name]:
                        behind.discard(name)
        return sorted(rows)
    finally:
        await consumer.stop()


async def kill_rounds(
    folder: Path,
    *,
    rounds: int,
    read_output: Callable[[str], list[Row]],
    say: Callable[[str], object] = lambda _: None,
) -> Outcome:
    """``read_output`` reads the Parquet of a folder with Spark, which knows which files count."""
    cluster = ProcessCluster(3, data_dir=folder / "brokers", config=SETTINGS)
    played: Rounds | None = None
    try:
        await cluster.start()
        await create_topic(cluster.bootstrap)
        async with Asker(cluster.bootstrap) as asker, _producer(cluster.bootstrap) as producer:
            watch = Watch(asker, cluster.addresses, TOPIC)
            watching = asyncio.ensure_future(watch.run())
            played = Rounds(folder, cluster, watch, Writer(producer), say)
            kinds = await played.play(rounds)
            watching.cancel()
        committed = await committed_rows(cluster.bootstrap)
    finally:
        if played is not None:
            played.driver.end_all()
        await cluster.stop()
    output = read_output(str(folder / "out"))
    difference = Counter(committed)
    difference.subtract(output)
    places = {value: (partition, offset) for partition, offset, value in committed}
    return Outcome(
        kinds=kinds,
        killed=played.killed,
        acknowledged=len(played.writer.places),
        committed=committed,
        output=output,
        missing=sum(count for count in difference.values() if count > 0),
        surplus=-sum(count for count in difference.values() if count < 0),
        lost_acknowledged=sum(places.get(value) != place for value, place in played.writer.places.items()),
        held_in=played.held_in,
        went_on=len(re.findall("reading goes on at", executors_said(played.home))),
    )


def _producer(bootstrap: str) -> Producer:
    return Producer(
        bootstrap_servers=bootstrap, acks="all", linger_ms=5, max_batch_size=BATCH_SIZE, compression_type="lz4"
    )


def output_of(session: Any) -> Callable[[str], list[Row]]:
    """Reads a folder with a session."""

    def read(folder: str) -> list[Row]:
        table = session.read.parquet(folder).selectExpr("partition", "offset", "md5(value) digest").toArrow()
        return sorted(zip(*(table.column(name).to_pylist() for name in table.column_names), strict=True))

    return read


def main() -> int:
    """Exit code 0 when the output is the input."""
    from minikafka.spark.session import open_session

    parser = argparse.ArgumentParser(description="kill -9 Spark and brokers; the output must be the committed input")
    parser.add_argument("--rounds", type=int, default=len(KINDS))
    rounds = parser.parse_args().rounds
    folder = Path(tempfile.mkdtemp(prefix="minikafka-kill-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    began = time.monotonic()

    def say(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - began:6.1f} s  {text}\n")
        sys.stdout.flush()

    session = None

    def read(path: str) -> list[Row]:
        nonlocal session
        session = open_session("what came out", "local[2]", {"spark.driver.memory": "1g"})
        return output_of(session)(path)

    outcome = asyncio.run(kill_rounds(folder, rounds=rounds, read_output=read, say=say))
    if session is not None:
        session.stop()
    say(str(outcome))
    if not outcome.well:
        say(f"NOT WELL: everything is kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
