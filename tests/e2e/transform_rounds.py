"""Rounds of kill -9 against a transform job: input and output must be equal, exactly once, under read_committed.

``python -m tests.e2e.transform_rounds --rounds 20 --client native [--seed 1]``

Three brokers, a producer, and jobs (tests/e2e/transform_jobs.py), all of them processes. A round kills a job, the
transaction coordinator, the leader of an output partition, the group coordinator, or the leader of an input partition, in
turn, in a phase of a transaction that is drawn from the seed; it ends when the victim is back, every replica is in sync and
every job has committed again. Judged at the end, when the group has committed all of the input: each partition of the output
has what the same partition of the input has, changed, in order, nothing twice.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import uvloop

from minikafka import AdminClient, Consumer, Producer
from minikafka.client.routing import GROUP_KEY, TRANSACTION_KEY
from minikafka.client.structs import NewTopic
from minikafka.errors import ProtocolError
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.hosting.processes import ProcessCluster
from minikafka.transactions.records import TRANSACTIONS_TOPIC
from minikafka.types import NodeId, TopicPartition
from tests.e2e.transform_jobs import GROUP, INPUT, OUTPUT, PHASES, SUFFIX

PARTITIONS = 4
STEP_TIMEOUT_S = 120.0
RATE = 200.0
"""Records of input a second."""
ASK_AGAIN_S = 0.1

ROLES = ("job", "transaction coordinator", "output leader", "group coordinator", "input leader")

# Short sessions make rounds short; what is shown does not depend on them.
SETTINGS = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "min.insync.replicas": "2",
}


@dataclass(frozen=True, slots=True)
class Client:
    """How the job of a client is started, and how many of them share the input."""

    name: str
    command: Callable[[Path], Sequence[str]]
    """Without bootstrap and name of the job; it may write programs to the folder."""
    members: int = 2


def _python(name: str, members: int = 2) -> Client:
    return Client(name, lambda _: (sys.executable, "-m", "tests.e2e.transform_jobs", name), members)


# aiokafka's offsets carry no generation: its members would not be fenced by a rebalance.
CLIENTS = {each.name: each for each in (_python("native"), _python("confluent"), _python("aiokafka", members=1))}


# ---- jobs ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Job:
    """One process after the other with the same transactional id."""

    name: str
    command: Sequence[str]
    log: Path
    process: Process | None = None
    listening: asyncio.Task[None] | None = None
    last: str = ""
    """The phase that was heard of last."""
    counts: Counter[str] = field(default_factory=Counter)
    """Of each phase, over all processes."""
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(*self.command, stdin=PIPE, stdout=PIPE, stderr=log)
        self.listening = asyncio.ensure_future(self._listen(self.process))

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            self.last = line.decode().strip()
            assert self.last in PHASES, f"{self.name} printed {line!r}"
            self.counts[self.last] += 1
            self.moved.set()

    async def kill9(self) -> bool:
        """Kill it, and return True if a transaction was under way."""
        assert self.process is not None
        assert self.listening is not None
        assert self.process.returncode is None, f"{self.name} had ended; see {self.log}"
        self.process.kill()
        await self.process.wait()
        await self.listening
        return self.last != "committed"

    async def reach(self, phase: str) -> None:
        """Return when it has reached the phase once more."""
        since = self.counts[phase]
        async with asyncio.timeout(STEP_TIMEOUT_S):
            while self.counts[phase] == since:
                assert self.listening is not None
                assert not self.listening.done(), f"{self.name} ended; see {self.log}"
                self.moved.clear()
                await self.moved.wait()


# ---- the verdict -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judged:
    """How the output differs from the input."""

    missing: list[str]
    twice: list[str]
    strange: list[str]
    """Values that no record of the input explains."""
    disordered: list[int]
    """Partitions that have the right values in another order."""

    @property
    def well(self) -> bool:
        return not (self.missing or self.twice or self.strange or self.disordered)


def judge(inputs: Sequence[Sequence[bytes]], outputs: Sequence[Sequence[bytes]]) -> Judged:
    """Compare the values of each partition of the input with those of the same partition of the output."""
    found = Judged([], [], [], [])
    for partition, (read, written) in enumerate(zip(inputs, outputs, strict=True)):
        wanted, counts = [value + SUFFIX for value in read], Counter(written)
        known = set(wanted)
        found.missing.extend(value.decode() for value in wanted if value not in counts)
        found.twice.extend(value.decode() for value, count in counts.items() if count > 1 and value in known)
        found.strange.extend(value.decode() for value in counts if value not in known)
        if list(dict.fromkeys(value for value in written if value in known)) != [v for v in wanted if v in counts]:
            found.disordered.append(partition)
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """What rounds end in."""

    client: str
    killed: Counter[str]
    under_way: int
    """Jobs that were killed within a transaction."""
    transactions: int
    records: int
    acknowledged_lost: list[str]
    """Records of the input that were acknowledged to the producer and cannot be read."""
    judged: Judged

    @property
    def well(self) -> bool:
        return self.judged.well and not self.acknowledged_lost

    def __str__(self) -> str:
        killed = ", ".join(f"{role} {count}" for role, count in self.killed.items())
        return (
            f"{self.client}: killed {killed} ({self.under_way} jobs within a transaction); {self.transactions:,} "
            f"transactions, {self.records:,} records of input, {len(self.acknowledged_lost)} of it lost\n"
            + ", ".join(
                f"{name} {len(found)} {found[:5]}"
                for name, found in (
                    ("missing", self.judged.missing),
                    ("twice", self.judged.twice),
                    ("strange", self.judged.strange),
                    ("out of order", self.judged.disordered),
                )
            )
        )


# ---- the rounds ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Load:
    """The input: values that are sent once each."""

    producer: Producer
    acknowledged: set[bytes] = field(default_factory=set)
    stopping: bool = False

    async def run(self) -> None:
        """Send to the partitions in turn until stopped, then wait for every response."""
        number = 0
        while not self.stopping:
            number += 1
            value = b"%d" % number
            future = await self.producer.send(INPUT, value, partition=number % PARTITIONS)
            future.add_done_callback(lambda done, value=value: self._answered(value, done))
            await asyncio.sleep(1 / RATE)
        await self.producer.flush()

    def _answered(self, value: bytes, done: asyncio.Future) -> None:
        if done.exception() is None:
            self.acknowledged.add(value)


@dataclass(slots=True)
class Rounds:
    """A cluster, its jobs, and what happens to them."""

    cluster: ProcessCluster
    admin: AdminClient
    jobs: list[Job]
    random: Random
    say: Callable[[str], object]
    killed: Counter[str] = field(default_factory=Counter)
    under_way: int = 0

    async def round(self, role: str) -> None:
        """Kill one process within a transaction, and see all of them carry on."""
        phase, job = self.random.choice(PHASES), self.random.choice(self.jobs)
        node = await self._broker(role, job)
        self.say(f"kill -9 {role} ({job.name if node is None else f'broker {node}'}) when {job.name} reports: {phase}")
        await job.reach(phase)
        if node is None:
            self.under_way += await job.kill9()
            await job.start()
        else:
            await self.cluster.kill9(node)
            await self.all_commit()
            await self.cluster.restart(node)
            await self.in_sync()
        await self.all_commit()
        self.killed[role] += 1

    async def _broker(self, role: str, job: Job) -> NodeId | None:
        if role == "job":
            return None
        if role == "transaction coordinator":
            return await self.admin.find_coordinator(job.name, TRANSACTION_KEY)
        if role == "group coordinator":
            return await self.admin.find_coordinator(GROUP, GROUP_KEY)
        [topic] = await self.admin.describe_topics([INPUT if role == "input leader" else OUTPUT])
        return self.random.choice(topic.partitions).leader

    async def all_commit(self) -> None:
        """Return when every job has committed a transaction that it had not committed at the call."""
        await asyncio.gather(*(job.reach("committed") for job in self.jobs))

    async def in_sync(self) -> None:
        """Return when every replica is in sync: with two of them the next death would stop all writing."""

        async def holds() -> bool:
            topics = await self.admin.describe_topics([INPUT, OUTPUT, OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
            return all(len(each.isr) == len(each.replicas) for topic in topics for each in topic.partitions)

        await until(holds)

    async def all_transformed(self) -> None:
        """Return when the group has committed all of the input, and no transaction holds the output back."""
        inputs = [TopicPartition(INPUT, number) for number in range(PARTITIONS)]
        outputs = [TopicPartition(OUTPUT, number) for number in range(PARTITIONS)]

        async def holds() -> bool:
            ends = await self.admin.list_offsets(dict.fromkeys(inputs, -1))
            committed = await self.admin.list_consumer_group_offsets(GROUP)
            if any(name not in committed or committed[name].offset != ends[name].offset for name in inputs):
                return False
            return not await self.admin.open_transactions(outputs)

        await until(holds)


async def until(holds: Callable[[], object]) -> None:
    """Ask until it holds; a cluster that does not answer now is asked again."""
    async with asyncio.timeout(STEP_TIMEOUT_S):
        while True:
            try:
                if await holds():
                    return
            except ProtocolError as error:
                if not error.retriable:
                    raise
            await asyncio.sleep(ASK_AGAIN_S)


async def values_of(bootstrap: str, topic: str) -> list[list[bytes]]:
    """What a consumer with ``read_committed`` reads of each partition, up to the last stable offset."""
    names = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    found: dict[TopicPartition, list[bytes]] = {name: [] for name in names}
    async with Consumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign(names)
        ends = await consumer.end_offsets(names)
        async with asyncio.timeout(STEP_TIMEOUT_S):
            while any([await consumer.position(name) < end for name, end in ends.items()]):
                for name, records in (await consumer.getmany(timeout_ms=500)).items():
                    found[name].extend(each.value for each in records)
    return list(found.values())


async def transform_rounds(
    folder: Path, client: Client, roles: Sequence[str], *, seed: int = 1, say: Callable[[str], object] = lambda _: None
) -> Outcome:
    """One round for each of ``roles``."""
    command = client.command(folder)
    async with ProcessCluster(3, data_dir=folder / "cluster", config=SETTINGS) as cluster:
        jobs = [
            Job(name, (*command, cluster.bootstrap, name), folder / f"{name}.log")
            for name in (f"{client.name}-{number}" for number in range(client.members))
        ]
        async with (
            AdminClient(bootstrap_servers=cluster.bootstrap) as admin,
            Producer(bootstrap_servers=cluster.bootstrap, linger_ms=5) as producer,
        ):
            await admin.create_topics([NewTopic(topic, PARTITIONS, 3) for topic in (INPUT, OUTPUT)])
            run = Rounds(cluster, admin, jobs, Random(seed), say)
            load = Load(producer)
            sending = asyncio.ensure_future(load.run())
            try:
                await asyncio.gather(*(job.start() for job in jobs))
                await run.all_commit()
                await run.in_sync()
                for role in roles:
                    await run.round(role)
                load.stopping = True
                await sending
                await run.all_transformed()
            finally:
                sending.cancel()
                await asyncio.gather(*(job.kill9() for job in jobs if job.process is not None))
        inputs = await values_of(cluster.bootstrap, INPUT)
        outputs = await values_of(cluster.bootstrap, OUTPUT)
    read = {value for values in inputs for value in values}
    return Outcome(
        client.name,
        run.killed,
        run.under_way,
        sum(job.counts["committed"] for job in jobs),
        len(read),
        sorted(value.decode() for value in load.acknowledged - read),
        judge(inputs, outputs),
    )


def command_line(clients: Mapping[str, Client], arguments: Sequence[str]) -> int:
    """Play rounds with one of the clients. The exit code is 1 if anything is lost, doubled or out of order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--client", choices=clients, default=next(iter(clients)))
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)

    def say(text: str) -> None:
        sys.stdout.write(f"{time.strftime('%H:%M:%S')}  {text}\n")
        sys.stdout.flush()

    folder = Path(tempfile.mkdtemp(prefix="transform-rounds-"))
    say(f"everything is kept in {folder}")
    roles = [ROLES[number % len(ROLES)] for number in range(given.rounds)]
    outcome = uvloop.run(transform_rounds(folder, clients[given.client], roles, seed=given.seed, say=say))
    sys.stdout.write(f"{outcome}\n{'well' if outcome.well else 'FAILED'}\n")
    return 0 if outcome.well else 1


if __name__ == "__main__":
    sys.exit(command_line(CLIENTS, sys.argv[1:]))
