"""Quorum members in the simulator, without the rest of a broker: their log, their driver, a listener that remembers.

What is checked while it runs: one leader per epoch, one vote per member and epoch, and that what one listener was told is
what every listener is told.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from minikafka.broker.quorum_driver import QuorumDriver
from minikafka.config import BrokerConfig, TopicConfig
from minikafka.errors import NotController, ProtocolError
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import Buffers, RequestContext, World
from minikafka.sim.invariants import OneVotePerEpoch
from minikafka.sim.verdicts import Message, Verdict
from minikafka.sim.world import Event, SimWorld
from minikafka.tasks import Tasks
from minikafka.types import METADATA_PARTITION, Address, Epoch, EpochEnd, NodeId, Offset
from minikafka.wire.codec import decode_request, encode_response, error_response, find_api

CLUSTER_ID = "sim-quorum"
START_PATH = "log-start"


class Breach(AssertionError):
    """Something that may never happen."""


@dataclass
class Remembered:
    """One listener: the state is all payloads so far, and the history that all listeners share is checked."""

    cluster: QuorumCluster
    node: NodeId
    state: list[bytes] = field(default_factory=list)
    leads: bool = False
    news: list[tuple[NodeId, Epoch, bool]] = field(default_factory=list)

    def on_commit(self, base_offset: Offset, leader_epoch: Epoch, payloads: Sequence[bytes]) -> None:
        told = (leader_epoch, tuple(payloads))
        known = self.cluster.committed.setdefault(base_offset, told)
        if known != told:
            raise Breach(f"committed at {base_offset}: n{self.node} has {told}, others had {known}")
        self.state.extend(payloads)

    def on_snapshot(self, snapshot: EpochEnd, payloads: Sequence[bytes]) -> None:
        history = sorted(self.cluster.committed.items())
        expected = [each for offset, (_, values) in history if offset < snapshot.end_offset for each in values]
        if list(payloads) != expected:
            raise Breach(f"snapshot {snapshot} of n{self.node}: {payloads} instead of {expected}")
        self.state = list(payloads)

    def on_leader(self, leader_id: NodeId, epoch: Epoch, i_lead: bool) -> None:
        self.news.append((leader_id, epoch, i_lead))
        self.leads = i_lead

    def snapshot_payloads(self) -> Sequence[bytes]:
        return tuple(self.state)


@dataclass
class Member:
    """One incarnation."""

    world: World
    driver: QuorumDriver
    listener: Remembered
    tasks: Tasks
    log: PartitionLog


class QuorumCluster:
    """``count`` voters n1, n2, ... and then observers."""

    def __init__(self, sim: SimWorld, count: int = 3, *, observers: int = 0, **settings: Any) -> None:
        self.sim = sim
        self.settings = settings
        self.ids: tuple[NodeId, ...] = tuple(range(1, count + observers + 1))
        self.voters = {node: Address(f"n{node}", 9000 + node) for node in range(1, count + 1)}
        self.members: dict[NodeId, Member] = {}
        self.committed: dict[Offset, tuple[Epoch, tuple[bytes, ...]]] = {}
        self.leaders: dict[Epoch, str] = {}
        self._votes = OneVotePerEpoch()
        self.failures: list[str] = []
        self.written: list[bytes] = []
        self.refused: list[bytes] = []
        self.unknown: list[bytes] = []
        self._values = 0
        sim.observers.append(self._watch)
        sim.network.observers.append(self._watch_votes)

    def _watch(self, event: Event) -> None:
        epoch: Any = event.facts.get("epoch")
        if event.kind == "quorum_leader_elected":
            other = self.leaders.setdefault(epoch, f"{event.node}#{event.incarnation}")
            if other != f"{event.node}#{event.incarnation}":
                raise Breach(f"two leaders in epoch {epoch}: {other} and {event.node}#{event.incarnation}")

    def _watch_votes(self, message: Message, _verdict: Verdict) -> None:
        """A vote counts when the response leaves: what the rules grant and the disk has not saved may be forgotten."""
        if message.api == "Vote":
            self._votes.on_message(message, lambda _, why: self.failures.append(f"voted twice: {why}"))

    # ---- members ----

    async def start(self, *nodes: NodeId) -> None:
        for node in nodes or self.ids:
            world = self.sim.of(f"n{node}")
            # A node whose power is cut while it starts never ends its start.
            started = self.sim.spawn(f"n{node}", self._start(node, world))
            await asyncio.wait({started}, timeout=5.0)
            if started.done():
                started.result()

    async def _start(self, node: NodeId, world: World) -> None:
        def fail(name: str, error: BaseException) -> None:
            self.failures.append(f"n{node} {name}: {type(error).__name__}: {error}")

        start = int(world.disk.read_file(START_PATH)) if world.disk.exists(START_PATH) else 0
        log = PartitionLog.open(
            world.disk,
            METADATA_PARTITION,
            TopicConfig(retention_ms=-1, flush_messages=1),
            start_offset=start,
            events=world.events,
            save_start=lambda: world.disk.publish(START_PATH, str(log.start_offset).encode()),
        )
        tasks = Tasks(fail)
        listener = Remembered(self, node)
        driver = QuorumDriver(
            BrokerConfig(node_id=node, **self.settings),
            world,
            cluster_id=CLUSTER_ID,
            voters=self.voters,
            log=log,
            spawn=tasks.spawn,
            listener=listener,
        )
        self.members[node] = Member(world, driver, listener, tasks, log)

        async def handler(api: str, body: bytes, _context: RequestContext) -> Buffers:
            try:
                return encode_response(await driver.handle(decode_request(find_api(api), body)))
            except ProtocolError as error:
                return encode_response(error_response(find_api(api), error))

        await driver.start()
        await world.network.serve(Address(f"n{node}", 9000 + node), handler)

    def kill(self, node: NodeId, *, power: bool = False) -> None:
        del self.members[node]
        if power:
            self.sim.power_cut(f"n{node}")
        else:
            self.sim.kill(f"n{node}")

    async def stop(self, node: NodeId) -> None:
        member = self.members.pop(node)
        await self.sim.spawn(f"n{node}", member.driver.stop())
        self.sim.kill(f"n{node}")

    # ---- looking and waiting ----

    def leader(self) -> NodeId | None:
        leading = [(member.driver.epoch, node) for node, member in self.members.items() if member.driver.is_leader]
        return max(leading)[1] if leading else None

    async def until(self, met: Callable[[], bool], what: str, seconds: float = 30.0) -> float:
        """Wait for ``met``; how long it took."""
        begin = self.sim.loop.now
        while not met():
            if self.failures:
                raise Breach(f"{what}: {self.failures}")
            if self.sim.loop.now - begin > seconds:
                raise AssertionError(f"not within {seconds} s: {what}; {[m.driver for m in self.members.values()]}")
            await asyncio.sleep(0.005)
        return self.sim.loop.now - begin

    async def settled(self) -> NodeId:
        """One leader, followed by all who live; all have applied all that it has."""

        def same() -> bool:
            leader = self.leader()
            if leader is None:
                return False
            drivers = [member.driver for member in self.members.values()]
            end = self.members[leader].log.end_offset
            return all(each.leader_id == leader and each.applied_offset == end for each in drivers)

        await self.until(same, "settled", 60.0)
        leader = self.leader()
        assert leader is not None
        return leader

    # ---- writing ----

    async def append(self, *values: str, node: NodeId | None = None) -> Offset:
        """Append as the leader does, and remember what it was told."""
        leader = node or self.leader()
        assert leader is not None
        driver = self.members[leader].driver
        payloads = [value.encode() for value in values]

        async def append() -> Offset:
            try:
                end = await driver.append(payloads, epoch=driver.epoch)
            except ProtocolError as error:
                (self.refused if error.outcome == "not_written" else self.unknown).extend(payloads)
                raise
            self.written.extend(payloads)
            return end

        return await self.sim.spawn(f"n{leader}", append())

    def write_from(self, node: NodeId, *, pause_s: float) -> None:
        """Whenever this incarnation leads, it appends."""
        member = self.members[node]

        async def write() -> None:
            while True:
                if member.driver.is_leader:
                    self._values += 1
                    with contextlib.suppress(NotController):
                        await self.append(f"{node}.{self._values}", node=node)
                await asyncio.sleep(pause_s)

        async def begin() -> None:
            member.tasks.spawn(write(), "writer")

        self.sim.spawn(f"n{node}", begin())
