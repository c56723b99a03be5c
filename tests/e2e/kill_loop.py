"""The kill -9 loop: three producers with acks=all, and one broker process after the other dies and comes back.

Used by the test of ten rounds and by the soak of hours. A round kills the leader of a partition, a follower, or the
active controller, in turn; it ends when every partition has acknowledged again, the broker is back, and every ISR is
full. At the end everything is read back, the replicas are compared, and the checker judges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

from minikafka import AdminClient, Producer
from minikafka.chaos.load import Compared, Ledger, compare, judge, read_back
from minikafka.chaos.watch import ClusterState, Watch
from minikafka.check import Recorder, Verdict
from minikafka.client.structs import NewTopic
from minikafka.errors import NOT_WRITTEN, ProtocolError
from minikafka.hosting.processes import ProcessCluster
from minikafka.types import NO_NODE, NodeId, TopicPartition
from minikafka.world.clients import Asker

TOPIC = "events"
PARTITIONS = 3
NAMES = tuple(TopicPartition(TOPIC, partition) for partition in range(PARTITIONS))
PRODUCERS = 3
ROLES = ("leader", "follower", "controller")
STEP_TIMEOUT_S = 120.0

# Short sessions make rounds short; what is shown does not depend on them.
SETTINGS = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "10000",
}


@dataclass(slots=True)
class Outcome:
    """What a loop ends in."""

    rounds: int
    roles: list[str]
    verdict: Verdict
    compared: Compared

    @property
    def well(self) -> bool:
        return self.verdict.ok and self.compared.differences == 0

    def __str__(self) -> str:
        return (
            f"{self.rounds} rounds, {self.compared.batches:,} batches ({self.compared.size:,} bytes) on each replica,"
            f" {self.compared.differences} differences\n{self.verdict.render()}"
        )


@dataclass(slots=True)
class Sender:
    """One producer and what it was told."""

    name: str
    recorder: Recorder
    producer: Producer
    rate: float
    acknowledged: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    stopping: bool = False

    async def run(self) -> None:
        """Send unique values to the partitions in turn until told to stop, then wait for every answer."""
        number = 0
        while not self.stopping:
            number += 1
            await self._send(f"{self.name}.{number}", number % PARTITIONS)
            await asyncio.sleep(1 / self.rate)
        await self.producer.flush()

    async def _send(self, value: str, at: int) -> None:
        op = self.recorder.send(self.name, TOPIC, value, partition=at)
        try:
            future = await self.producer.send(TOPIC, value.encode(), partition=at)
        except ProtocolError as error:
            self._refused(op, error)
        else:
            future.add_done_callback(partial(self._answered, op))

    def _answered(self, op: int, future: asyncio.Future) -> None:
        error = future.exception()
        if error is None:
            place = future.result()
            self.acknowledged[place.partition] += 1
            self.recorder.acknowledged(
                op, partition=place.partition, offset=place.offset if place.offset >= 0 else None
            )
        else:
            self._refused(op, error)

    def _refused(self, op: int, error: BaseException) -> None:
        assert isinstance(error, ProtocolError), error
        tell = self.recorder.failed if error.outcome == NOT_WRITTEN else self.recorder.unknown
        tell(op, error.name)


def is_whole(state: ClusterState) -> bool:
    """Is there a victim for every role? While a quorum elects, nobody controls."""
    return state.all_in_sync and state.controller != NO_NODE


@dataclass(slots=True)
class Loop:
    """One cluster under fire."""

    cluster: ProcessCluster
    watch: Watch
    senders: list[Sender]
    random: Random
    say: Callable[[str], object]

    async def round(self, role: str) -> None:
        """Kill one broker, see the others carry on, bring it back."""
        state = self.watch.state
        node = self._victim(role, state)
        self.say(f"kill -9 broker {node}, {role}; leaders {[each.leader for each in state.partitions]}")
        await self.cluster.kill9(node)
        await self._acknowledged_again()
        # Not only what was under way: all partitions, led by others, and a controller that is another one.
        await self._seen(
            lambda seen: (
                seen.controller not in (node, NO_NODE)
                and all(each.leader not in (node, NO_NODE) for each in seen.partitions)
            )
        )
        await self._acknowledged_again()
        await self.cluster.restart(node)
        await self._seen(is_whole)

    def _victim(self, role: str, state: ClusterState) -> NodeId:
        if role == "controller":
            return state.controller
        partition = self.random.choice(state.partitions)
        if role == "leader":
            return partition.leader
        followers = [node for node in sorted(partition.isr) if node != partition.leader]
        return min(followers, key=lambda node: (node == state.controller, node))

    def _acknowledged(self) -> list[int]:
        return [sum(each.acknowledged[at] for each in self.senders) for at in range(PARTITIONS)]

    async def _acknowledged_again(self) -> None:
        """Return when every partition has acknowledged something that it had not acknowledged at the call."""
        since = self._acknowledged()
        async with asyncio.timeout(STEP_TIMEOUT_S):
            while True:
                if all(now > then for now, then in zip(self._acknowledged(), since, strict=True)):
                    return
                await asyncio.sleep(0.02)

    async def _seen(self, condition: Callable[[ClusterState], bool]) -> None:
        since = asyncio.get_running_loop().time()
        seen = await self.watch.until(lambda state: state.at > since and condition(state), STEP_TIMEOUT_S)
        assert seen is not None, f"the cluster did not recover: {self.watch.state}"


async def kill_loop(
    folder: Path,
    *,
    go_on: Callable[[int], bool],
    seed: int = 1,
    rate: float = 150.0,
    say: Callable[[str], object] = lambda _: None,
) -> Outcome:
    """Rounds while ``go_on(rounds played)``; ``rate`` in records a second per producer."""
    cluster = ProcessCluster(3, data_dir=folder, config=SETTINGS)
    ledger = Ledger(folder / "history.jsonl")
    roles: list[str] = []
    try:
        await cluster.start()
        await create_topic(cluster.bootstrap)
        async with Asker(cluster.bootstrap) as asker:
            watch = Watch(asker, cluster.addresses, TOPIC)
            watching = asyncio.ensure_future(watch.run())
            senders = [await _sender(cluster, ledger, f"p{number}", rate) for number in range(1, PRODUCERS + 1)]
            loop = Loop(cluster, watch, senders, Random(seed), say)
            assert await watch.until(is_whole, STEP_TIMEOUT_S) is not None
            sending = [asyncio.ensure_future(sender.run()) for sender in senders]
            try:
                while go_on(len(roles)):
                    role = ROLES[len(roles) % len(ROLES)]
                    await loop.round(role)
                    roles.append(role)
            finally:
                for sender in senders:
                    sender.stopping = True
                await asyncio.gather(*sending)
                await asyncio.gather(*(sender.producer.stop() for sender in senders))
            assert await watch.until(lambda state: state.settled, STEP_TIMEOUT_S) is not None, watch.state
            watching.cancel()
        ends = await read_back(ledger, {"bootstrap_servers": cluster.bootstrap}, NAMES, lambda _: None)
        folders = {node: cluster.folder(node) for node in cluster.brokers}
    finally:
        await cluster.stop()
    compared = compare(ledger, folders, ends)
    return Outcome(len(roles), roles, judge(ledger), compared)


async def create_topic(bootstrap: str) -> None:
    """Three partitions on three brokers, of which two must have a record."""
    admin = AdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, topic_configs={"min.insync.replicas": "2"})])
    finally:
        await admin.close()


async def _sender(cluster: ProcessCluster, ledger: Ledger, name: str, rate: float) -> Sender:
    producer = Producer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=2)
    await producer.start()
    return Sender(name, ledger.recorder, producer, rate)
