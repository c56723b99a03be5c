"""A storm over one group: members and brokers are killed and come back at random, under load; nothing may be lost.

``python -m tests.e2e.group_storm --minutes 3 [--seed 1] [--assignor cooperative-sticky]``

Eight members read twelve partitions of a topic with min.insync.replicas=2 on three brokers. All of them are processes.
A member writes down what it has read, then commits it. Judged at the end, when all are back and the lag is zero:

- every acknowledged record was written down by some member (twice is allowed: a member died before its commit);
- what the group has committed never went back, neither in the eyes of somebody who asks all the time, nor from record
  to record of ``__consumer_offsets``.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import uvloop

from minikafka import AdminClient, Consumer, Producer
from minikafka.client.structs import CommitFailed, NewTopic
from minikafka.errors import NetworkException, ProtocolError, RequestTimedOut
from minikafka.groups.records import OFFSETS_TOPIC, OffsetRecord, unpacked
from minikafka.hosting.processes import ProcessCluster
from minikafka.types import TopicPartition

TOPIC, GROUP = "events", "storm"
PARTITIONS, MEMBERS = 12, 8
STEP_TIMEOUT_S = 120.0

# Short sessions make many deaths fit into a minute; what is shown does not depend on them.
SETTINGS = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "500",
    "offsets.topic.num.partitions": "4",
    "min.insync.replicas": "2",
}
MEMBER_SETTINGS = {
    "session_timeout_ms": 2000,
    "heartbeat_interval_ms": 200,
    "rebalance_timeout_ms": 3000,
    "request_timeout_ms": 5000,
    "auto_offset_reset": "earliest",
    "enable_auto_commit": False,
    "max_poll_records": 200,
}

# What may happen next, and how often: a member dies, a member leaves in good order, a broker dies.
DEEDS = ("member dies",) * 6 + ("member leaves",) * 2 + ("broker dies",) * 3
FIRST_DEEDS = ("member dies", "broker dies", "member dies")
"""However short the storm is, these happen."""
WORK_S = 0.1
PAUSE_S = (0.5, 3.0)
ABSENT_S = (0.0, 4.0)


# ---- one member, as a process ----------------------------------------------------------------------------------------


async def member(bootstrap: str, name: str, assignor: str, book: Path) -> None:
    """Read, write down, commit; until SIGTERM, or until whoever started it is gone."""
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ending.set)
    loop.add_reader(sys.stdin.fileno(), ending.set)
    sys.stdout.write("up\n")
    sys.stdout.flush()
    consumer = Consumer(
        TOPIC,
        bootstrap_servers=bootstrap,
        group_id=GROUP,
        client_id=name,
        partition_assignment_strategy=assignor,
        **MEMBER_SETTINGS,
    )
    with book.open("a", encoding="utf-8", buffering=1) as lines:
        async with consumer:
            while not ending.is_set():
                found = await consumer.getmany(timeout_ms=200)
                # One write each: whatever is in the file when the process dies was read.
                lines.write("".join(f"{each.value.decode()}\n" for batch in found.values() for each in batch))
                lines.flush()
                if found:
                    # The time in which a death leaves behind what will be read twice.
                    await asyncio.sleep(WORK_S)
                offsets = {partition: batch[-1].offset + 1 for partition, batch in found.items()}
                try:
                    await consumer.commit(offsets)
                except (CommitFailed, RequestTimedOut, NetworkException) as error:
                    sys.stderr.write(f"{name}: {type(error).__name__}: {error.message}\n")


@dataclass(slots=True)
class Crew:
    """The members, and where each writes down what it reads."""

    bootstrap: str
    folder: Path
    assignor: str
    processes: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)
    fallen: list[str] = field(default_factory=list)
    """Members that ended by themselves: there must be none."""

    def book(self, number: int) -> Path:
        return self.folder / f"member-{number}.txt"

    async def start(self, number: int) -> None:
        """The member, in a new process that listens to signals."""
        with (self.folder / f"member-{number}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "tests.e2e.group_storm", "--member", f"m{number}", "--bootstrap", self.bootstrap),
                *("--book", str(self.book(number)), "--assignor", self.assignor),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        async with asyncio.timeout(STEP_TIMEOUT_S):
            await process.stdout.readline()
        self.processes[number] = process

    async def end(self, number: int, how: signal.Signals) -> None:
        """It is told to leave, or is killed; one that was gone already has failed."""
        process = self.processes.pop(number)
        if process.returncode is not None:
            self.fallen.append(f"m{number} had ended with {process.returncode}")
            return
        process.send_signal(how)
        async with asyncio.timeout(STEP_TIMEOUT_S):
            code = await process.wait()
        if code != (0 if how is signal.SIGTERM else -how):
            self.fallen.append(f"m{number} ended with {code} after {how.name}")

    def read(self) -> Counter[str]:
        """Every value that some member wrote down, and how often."""
        books = [
            self.book(number).read_text(encoding="utf-8") for number in range(MEMBERS) if self.book(number).exists()
        ]
        return Counter(value for book in books for value in book.split("\n") if value)


# ---- the storm -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Load:
    """What was sent and acknowledged."""

    producer: Producer
    rate: float
    acknowledged: set[str] = field(default_factory=set)
    sent: int = 0
    stopping: bool = False

    async def run(self) -> None:
        """Unique values to all partitions in turn; at the end every answer is waited for."""
        while not self.stopping:
            self.sent += 1
            value = f"{self.sent}."
            future = await self.producer.send(TOPIC, value.encode(), partition=self.sent % PARTITIONS)
            future.add_done_callback(partial(self._answered, value))
            await asyncio.sleep(1 / self.rate)
        await self.producer.flush()

    def _answered(self, value: str, future: asyncio.Future) -> None:
        if future.exception() is None:
            self.acknowledged.add(value)


@dataclass(slots=True)
class Observer:
    """Asks for the group's offsets all the time."""

    admin: AdminClient
    seen: dict[TopicPartition, int] = field(default_factory=dict)
    looks: int = 0
    went_back: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(0.1)

    async def look(self) -> None:
        """Once; a cluster that does not answer now is asked again."""
        try:
            found = await self.admin.list_consumer_group_offsets(GROUP)
        except ProtocolError:
            return
        self.looks += 1
        for name, value in found.items():
            if value.offset < self.seen.get(name, 0):
                self.went_back.append(f"{name}: {self.seen[name]} -> {value.offset}")
            self.seen[name] = value.offset


@dataclass(slots=True)
class Storm:
    """One cluster, one group, and what is done to them."""

    cluster: ProcessCluster
    crew: Crew
    admin: AdminClient
    random: Random
    say: Callable[[str], object]
    deeds: Counter[str] = field(default_factory=Counter)
    repairs: dict[asyncio.Task[None], None] = field(default_factory=dict)
    broker_is_down: bool = False

    async def rage(self, seconds: float) -> None:
        """Deeds at random; each is made good after a while, by itself."""
        until = time.monotonic() + seconds
        first = list(FIRST_DEEDS)
        while first or time.monotonic() < until:
            await asyncio.sleep(self.random.uniform(*PAUSE_S))
            deed = first.pop(0) if first else self.random.choice(DEEDS)
            if deed == "broker dies":
                if not self.broker_is_down:
                    self._repair(self._broker_dies(self.random.choice(sorted(self.cluster.brokers))))
            elif len(self.crew.processes) > 2:
                how = signal.SIGKILL if deed == "member dies" else signal.SIGTERM
                self._repair(self._member_goes(self.random.choice(sorted(self.crew.processes)), how))
        while self.repairs:
            done, _ = await asyncio.wait(self.repairs)
            for each in done:
                each.result()

    def _repair(self, work: object) -> None:
        task = asyncio.ensure_future(work)  # type: ignore[arg-type]
        self.repairs[task] = None
        task.add_done_callback(lambda done: None if done.exception() else self.repairs.pop(done, None))

    async def _member_goes(self, number: int, how: signal.Signals) -> None:
        self.deeds[f"{how.name} of members"] += 1
        self.say(f"{how.name} member m{number}")
        await self.crew.end(number, how)
        await asyncio.sleep(self.random.uniform(*ABSENT_S))
        await self.crew.start(number)

    async def _broker_dies(self, node: int) -> None:
        self.broker_is_down = True
        self.deeds["SIGKILL of brokers"] += 1
        self.say(f"SIGKILL broker {node}")
        await self.cluster.kill9(node)
        await asyncio.sleep(self.random.uniform(*ABSENT_S))
        await self.cluster.restart(node)
        await self.in_sync()
        self.broker_is_down = False

    async def in_sync(self) -> None:
        """Return when every replica is in sync: with two of them the next death would stop all writing."""
        async with asyncio.timeout(STEP_TIMEOUT_S):
            while True:
                try:
                    topics = await self.admin.describe_topics([TOPIC, OFFSETS_TOPIC])
                except ProtocolError:
                    topics = []
                partitions = [each for topic in topics for each in topic.partitions]
                if partitions and all(len(each.isr) == len(each.replicas) for each in partitions):
                    return
                await asyncio.sleep(0.1)

    async def caught_up(self) -> None:
        """Return when the group has committed all that there is."""
        names = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        async with asyncio.timeout(STEP_TIMEOUT_S):
            while True:
                ends = await self.admin.list_offsets(dict.fromkeys(names, -1))
                committed = await self.admin.list_consumer_group_offsets(GROUP)
                if all(name in committed and committed[name].offset == ends[name].offset for name in names):
                    return
                await asyncio.sleep(0.1)


@dataclass(slots=True)
class Outcome:
    """What a storm ends in."""

    seconds: float
    deeds: Counter[str]
    generation: int
    acknowledged: int
    missing: list[str]
    read_twice: int
    looks: int
    commits: int
    went_back: list[str]
    fallen: list[str]

    @property
    def well(self) -> bool:
        return not (self.missing or self.went_back or self.fallen)

    def __str__(self) -> str:
        deeds = ", ".join(f"{count} {name}" for name, count in sorted(self.deeds.items()))
        return (
            f"{self.seconds:.0f} s, {MEMBERS} members, {PARTITIONS} partitions: {deeds}; generation {self.generation}\n"
            f"{self.acknowledged:,} acknowledged records: {len(self.missing)} not consumed {self.missing[:5]}, "
            f"{self.read_twice:,} consumed more than once\n"
            f"{self.commits:,} commits in {OFFSETS_TOPIC}, looked at {self.looks:,} times: {len(self.went_back)} went "
            f"back {self.went_back[:5]}; members that ended by themselves: {self.fallen}"
        )


async def commits_in_log(bootstrap: str) -> tuple[int, list[str]]:
    """Every commit of the group in the order of the log, and those that went back."""
    count, last, went_back = 0, {}, []
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        names = [
            TopicPartition(OFFSETS_TOPIC, number) for number in range(int(SETTINGS["offsets.topic.num.partitions"]))
        ]
        consumer.assign(names)
        ends = await consumer.end_offsets(names)
        while any([await consumer.position(name) < end for name, end in ends.items()]):
            for batch in (await consumer.getmany(timeout_ms=500)).values():
                for each in batch:
                    record = unpacked(each.key, each.value)
                    if isinstance(record, OffsetRecord) and record.group == GROUP and record.value is not None:
                        count += 1
                        if record.value.offset < last.get(record.partition, 0):
                            went_back.append(
                                f"{record.partition} @{each.offset}: {last[record.partition]} -> {record.value}"
                            )
                        last[record.partition] = record.value.offset
    return count, went_back


async def storm(
    folder: Path,
    seconds: float,
    *,
    seed: int = 1,
    rate: float = 200.0,
    assignor: str = "range",
    say: Callable[[str], object] = lambda _: None,
) -> Outcome:
    """``seconds`` of it; ``rate`` in records a second."""
    books = folder / "books"
    books.mkdir(parents=True)
    async with ProcessCluster(3, data_dir=folder / "cluster", config=SETTINGS) as cluster:
        crew = Crew(cluster.bootstrap, books, assignor)
        async with (
            AdminClient(bootstrap_servers=cluster.bootstrap) as admin,
            AdminClient(bootstrap_servers=cluster.bootstrap, request_timeout_ms=3000) as curious,
            Producer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=5) as producer,
        ):
            await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])
            await admin.find_coordinator(GROUP)
            run = Storm(cluster, crew, admin, Random(seed), say)
            await run.in_sync()
            load, observer = Load(producer, rate), Observer(curious)
            sending, observing = asyncio.ensure_future(load.run()), asyncio.ensure_future(observer.run())
            try:
                for number in range(MEMBERS):
                    await crew.start(number)
                await run.rage(seconds)
                load.stopping = True
                await sending
                await run.caught_up()
                observing.cancel()
                generation = (await admin.describe_consumer_groups([GROUP]))[0].generation_id
            finally:
                for number in list(crew.processes):
                    await crew.end(number, signal.SIGTERM)
            await observer.look()
        commits, went_back = await commits_in_log(cluster.bootstrap)
    read = crew.read()
    return Outcome(
        seconds,
        run.deeds,
        generation,
        len(load.acknowledged),
        sorted(load.acknowledged - read.keys()),
        sum(count > 1 for count in read.values()),
        observer.looks,
        commits,
        [*observer.went_back, *went_back],
        crew.fallen,
    )


def main() -> int:
    """The command; as a member, when told so."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--minutes", type=float, default=3.0)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--rate", type=float, default=200.0)
    arguments.add_argument("--assignor", default="range")
    arguments.add_argument("--member", default=None, help=argparse.SUPPRESS)
    arguments.add_argument("--bootstrap", default="", help=argparse.SUPPRESS)
    arguments.add_argument("--book", type=Path, default=None, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.member is not None:
        uvloop.run(member(given.bootstrap, given.member, given.assignor, given.book))
        return 0

    def say(text: str) -> None:
        sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
        sys.stdout.flush()

    folder = Path(tempfile.mkdtemp(prefix="group-storm-"))
    say(f"everything is kept in {folder}")
    outcome = uvloop.run(
        storm(folder, given.minutes * 60, seed=given.seed, rate=given.rate, assignor=given.assignor, say=say)
    )
    sys.stdout.write(f"{outcome}\n{'well' if outcome.well else 'FAILED'}\n")
    return 0 if outcome.well else 1


if __name__ == "__main__":
    sys.exit(main())
