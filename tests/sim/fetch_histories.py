"""Random histories of followers' fetches: sessions, partitions that come and go, log starts that move (S5, S7, KIP-227).

Three brokers' replica managers, fetchers and handlers run on simulated machines, over several small topics. The
controller's rules decide at once, and each broker hears of it late. Fetches are lost, late and doubled, sessions are
evicted, brokers are cut off, killed or lose their power, topics are created again under their names, replicas move, and
records are deleted.

The model is a book of each partition: which value stood at which offset when a leader exposed or acknowledged it, and
how far leaders have deleted. At any time:

- the leader of a new epoch holds all of the book, and has deleted no more than the leaders before it;
- each member of the ISR has what its leader calls committed;
- no follower leaves the ISR while it has fetched without any trouble, and none stays that has not fetched.

In the end, with all brokers and links in order, all replicas are in sync, equal, and know the same watermark and start.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from minikafka import errors as kafka
from minikafka.broker import replica_fetcher
from minikafka.broker.api.fetch import handle_fetch
from minikafka.broker.api.offsets import handle_delete_records
from minikafka.broker.api.produce import handle_produce
from minikafka.broker.dispatch import Dispatcher
from minikafka.broker.live_settings import LiveSettings
from minikafka.broker.log_maintenance import LogMaintenance
from minikafka.broker.replica_manager import ReplicaManager
from minikafka.config import TopicConfig, parse_broker
from minikafka.log.log_directory import LogDirectory
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import World
from minikafka.quorum.image import MetadataImage, PartitionImage, TopicImage
from minikafka.replication.fetch_session import FetcherSession
from minikafka.replication.leader import LeaderReplica
from minikafka.replication.partition import Partition
from minikafka.rpc import call
from minikafka.sim.verdicts import Deliver, LinkProfile, Message, Verdict
from minikafka.sim.world import Event, SimWorld
from minikafka.tasks import Tasks
from minikafka.types import Address, Epoch, NodeId, Offset, TopicId, TopicPartition
from minikafka.wire import messages as m
from minikafka.wire.batch import split
from minikafka.wire.codec import decode_request, encode_response, find_api
from minikafka.wire.records import Record, build_batch, decode_batch
from tests.rules.controller_kit import Cluster

NODES = (1, 2, 3)
TOPICS = ("a", "b", "c", "d")
PORT = 9092
CONTROLLER = Address("controller", PORT)
CLIENT = "client"
LAG_S = 2.0
CONVERGE_S = 60.0
CALM = LinkProfile(delay_mean_s=0.001)
ROUGH = LinkProfile(delay_mean_s=0.02, loss=0.1, reset=0.05, duplicate=0.15)
PAUSES_S = (0.0, 0.0, 0.002, 0.02, 0.1, 0.5, 1.0)
STORED = TopicConfig()


class Breach(Exception):
    """Something does not hold; the message says what."""


@dataclass
class Book:
    """What is known of one partition of one topic id."""

    values: dict[Offset, bytes] = field(default_factory=dict)
    """What was exposed below a high watermark, or acknowledged."""
    epoch: Epoch = -1
    """The newest leader epoch whose leader was looked at."""
    exposed: Offset = 0
    floor: Offset = 0
    """The highest log start of any leader."""

    def write(self, offset: Offset, value: bytes) -> None:
        known = self.values.setdefault(offset, value)
        if known != value:
            raise Breach(f"{value!r} at {offset}, where {known!r} was")


def values_of(log: PartitionLog, start: Offset = 0, end: Offset | None = None) -> dict[Offset, bytes]:
    """The records of a log from ``start`` to ``end``, by offset."""
    found: dict[Offset, bytes] = {}
    offset, end = max(start, log.start_offset), log.end_offset if end is None else end
    start = offset
    while offset < end:
        part = log.read(offset, max_bytes=1 << 20)
        for batch in (batch for buffer in part.buffers for batch in split(buffer)):
            found |= {each.offset: each.value or b"" for each in decode_batch(batch) if start <= each.offset < end}
        offset = part.next_offset
    return found


@dataclass(kw_only=True)
class Life:
    """One process of a broker."""

    broker_epoch: int
    replicas: ReplicaManager
    image: MetadataImage
    tasks: Tasks


class FetchHistory:
    """One seed's history."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(f"fetches/{seed}")
        self.is_synced = random.random() < 0.4
        """Records are synced before they are acknowledged: the power may go."""
        min_isr = random.choice((1, 2))
        self.configs = {"segment.bytes": "300", "min.insync.replicas": str(min_isr)}
        if self.is_synced:
            self.configs["flush.messages"] = "1"
        if random.random() < 0.3:
            self.configs["retention.bytes"] = "500"
        self.has_slow_disks = self.is_synced and random.random() < 0.4
        self.named_max = random.choice((1, 2, 1000))
        self.slots = random.choice((0, 1, 2, 1000, 1000))
        self.fetch_wait_ms = random.choice((50, 300))
        self.read_size_max = random.choice((200, 1 << 20))
        self.cluster = Cluster(0, min_isr=min_isr)
        self.lives: dict[NodeId, Life] = {}
        self.books: defaultdict[tuple[TopicId, int], Book] = defaultdict(Book)
        self.troubled_at = 0.0
        """When a broker had trouble last, or something was decided that needs time."""
        self.is_rough = self.is_cut = False
        self.sent = 0
        self.left_out = 0
        """How often a follower left an ISR."""
        self.failures: list[BaseException] = []
        self.sim: SimWorld

    def play(self, steps: int) -> None:
        """``steps`` random steps, then a quiet end. Raises Breach."""
        kept = replica_fetcher.FetcherSession
        replica_fetcher.FetcherSession = partial(FetcherSession, self.named_max)  # type: ignore[misc, assignment]
        try:
            with SimWorld(f"fetches/{self.seed}") as self.sim:
                self.sim.network.profile = CALM
                self.sim.network.rules.append(self._late)
                self.sim.observers.append(self._on_event)
                self.sim.run(self._play(steps))
        finally:
            replica_fetcher.FetcherSession = kept  # type: ignore[misc]

    async def _play(self, steps: int) -> None:
        world = self.sim.of(CONTROLLER.host)
        await self.sim.spawn(CONTROLLER.host, world.network.serve(CONTROLLER, self._decide))
        self.client = self.sim.of(CLIENT)
        for node in NODES:
            self.sim.disk(f"n{node}").sync_mean_s = 0.1 if self.has_slow_disks else self.random.choice((0.001, 0.01))
            self.cluster.disks[node] = (f"disk-{node}",)
            await self.start(node)
        for topic in TOPICS[:2]:
            self.create(topic)
        actions: list[Callable[[], object]] = (
            [self.produce] * 14
            + [self.delete_records] * 2
            + [self.create_some] * 2
            + [self.delete_topic] * 1
            + [self.move] * 3
            + [self.prefer] * 2
            + [self.fence] * 1
            + [self.unfence] * 2
            + [self.kill] * 2
            + [self.start_one] * 4
            + [self.cut] * 2
            + [self.heal] * 3
            + [self.evict] * 2
            + [self.weather] * 3
            + [self.quiet] * 1
            + [self.silence] * 1
        )
        if self.is_synced:
            actions += [self.cut_power] * 2 + [self.cut_all_power] * 2
        actions = self.random.sample(actions, len(actions) * 2 // 3) + [self.produce] * 3
        for _ in range(steps):
            done = self.random.choice(actions)()
            if isinstance(done, Awaitable):
                await done
            await self.pass_time(self.random.choice(PAUSES_S))
        await self.end()

    # ---- the machines ------------------------------------------------------------------------------------------------

    async def start(self, node: NodeId) -> None:
        """Start a process; it hears all that is decided so far, registers, and is unfenced."""
        self.troubled()
        task = self.sim.spawn(f"n{node}", self._start(node, self.sim.of(f"n{node}")))
        await task

    async def _start(self, node: NodeId, world: World) -> None:
        config = parse_broker(
            {
                "node.id": str(node),
                "cluster.id": "cluster",
                "process.roles": "broker",
                "controller.quorum.voters": f"99@{CONTROLLER}",
                "listeners": f"PLAINTEXT://n{node}:{PORT}",
                "mk.insecure": "true",
                "replica.lag.time.max.ms": str(round(LAG_S * 1000)),
                "replica.fetch.wait.max.ms": str(self.fetch_wait_ms),
                "replica.fetch.backoff.ms": "200",
                "replica.fetch.response.max.bytes": str(self.read_size_max),
                "replica.socket.timeout.ms": "1000",
                "controller.quorum.request.timeout.ms": "500",
                "max.incremental.fetch.session.cache.slots": str(self.slots),
                "log.retention.check.interval.ms": "700",
                "log.flush.start.offset.checkpoint.interval.ms": "1000",
                "log.flush.offset.checkpoint.interval.ms": "1500",
                "replica.high.watermark.checkpoint.interval.ms": "900",
                "log.segment.delete.delay.ms": "300",
            }
        ).config
        logs = await LogDirectory.open(
            world.disk,
            node_id=node,
            cluster_id="cluster",
            directory_id=f"disk-{node}",
            config_of=lambda _: STORED,
            events=world.events,
        )
        broker_epoch = self.cluster.register(node)
        tasks = Tasks(lambda _, error: self.failures.append(error))
        live = LiveSettings(config, world.events)
        replicas = ReplicaManager(
            live,
            world,
            logs,
            spawn=tasks.spawn,
            controller=lambda: CONTROLLER,
            image=lambda: life.image,
            broker_epoch=lambda: broker_epoch,
            address_of=lambda other: Address(f"n{other}", PORT),
            on_storage_failure=lambda failure: self.failures.append(Breach(f"storage of n{node}: {failure}")),
        )
        life = Life(broker_epoch=broker_epoch, replicas=replicas, image=MetadataImage(), tasks=tasks)
        maintenance = LogMaintenance(
            replicas, live, on_disk_failure=lambda why: self.failures.append(Breach(why)), spawn=tasks.spawn
        )
        handlers = {"Fetch": handle_fetch, "Produce": handle_produce, "DeleteRecords": handle_delete_records}
        dispatcher = Dispatcher(
            {name: partial(self._handled, handler, replicas) for name, handler in handlers.items()},
            events=world.events,
            on_bug=lambda _, error: self.failures.append(error),
            is_open=True,
            ticks_ns=world.clock.ticks_ns,
        )
        await world.network.serve(Address(f"n{node}", PORT), dispatcher.dispatch)
        self.lives[node] = life
        self.hear(node)
        replicas.set_strays_aside()
        missing = {(each.topic_id, each.partition) for each in replicas.missing_replicas}
        names = [
            TopicPartition(topic.name, state.partition)
            for topic, state in life.image.sorted_partitions()
            if (topic.topic_id, state.partition) in missing
        ]
        self.cluster.heartbeat(node, missing=tuple(names))
        self.spread()
        tasks.spawn(replicas.alter_partition_manager.run(), "alter-partition")
        tasks.spawn(maintenance.run(), "maintenance")

    @staticmethod
    def _handled(handler: Callable[..., Any], replicas: ReplicaManager, request: object, _: object) -> Any:
        return handler(replicas, request, session_alive=lambda: True)

    def hear(self, node: NodeId) -> None:
        """The broker applies all that is decided so far."""
        life = self.lives.get(node)
        if life is not None and life.image is not self.cluster.image:
            old, life.image = life.image, self.cluster.image
            life.replicas.apply(old, life.image)

    def spread(self) -> None:
        """Something was decided that followers need time for."""
        self.troubled()
        self._spread()

    def _spread(self) -> None:
        """Each broker hears of it, some of them late."""
        for node in self.lives:
            self.sim.spawn(f"n{node}", self._hear_later(node, self.random.choice((0.0, 0.001, 0.01, 0.1, 0.6))))

    async def _hear_later(self, node: NodeId, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self.hear(node)

    def decide(self, *decisions: Any) -> None:
        """The controller's decisions, and the news of them."""
        for each in decisions:
            self.cluster.commit(each)
        self.spread()

    async def _decide(self, _api: str, body: bytes, _context: object) -> Any:
        """AlterPartition, at the controller."""
        request: m.AlterPartitionRequest = decode_request(find_api("AlterPartition"), body)
        before = self.cluster.image
        try:
            response = self.cluster.commit(self.cluster.controller.alter_partition(before, request))
        except kafka.ProtocolError as error:
            response = m.AlterPartitionResponse.failed(error)
        for name, old, new in self._changed(before):
            gone = set(old.isr) & set(new.replicas) - set(new.isr)
            self.left_out += len(gone)
            if gone & self.lives.keys() and self.sim.loop.now > self.troubled_at + 3 * LAG_S and not self.is_troubled:
                self.failures.append(Breach(f"{name}: {gone} have fetched all the time, and leave the ISR: {new}"))
        self._spread()
        return encode_response(response)

    def _changed(self, before: MetadataImage) -> list[tuple[TopicPartition, PartitionImage, PartitionImage]]:
        return [
            (TopicPartition(topic.name, state.partition), old, state)
            for topic, state in self.cluster.image.sorted_partitions()
            if (old := before.partition(TopicPartition(topic.name, state.partition))) is not None and old is not state
        ]

    def troubled(self) -> None:
        self.troubled_at = self.sim.loop.now

    def _late(self, message: Message) -> Verdict | None:
        """In rough weather some fetches and their responses come very late."""
        if self.is_rough and message.api == "Fetch" and self.random.random() < 0.1:
            return Deliver(self.random.uniform(0.2, 3.0))
        return None

    # ---- what happens ------------------------------------------------------------------------------------------------

    async def pass_time(self, seconds: float) -> None:
        """Wait, and look all the time."""
        ends_at = self.sim.loop.now + seconds
        while True:
            self.look()
            left_s = ends_at - self.sim.loop.now
            if left_s <= 0:
                return
            await asyncio.sleep(min(left_s, 0.05))

    def drawn(self) -> tuple[TopicImage, PartitionImage] | None:
        partitions = list(self.cluster.image.sorted_partitions())
        return self.random.choice(partitions) if partitions else None

    def produce(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            drawn = self.drawn()
            if drawn is not None and drawn[1].leader in NODES:
                self.sent += 1
                value = f"{self.sent}".encode() + b"." * self.random.randint(0, 60)
                self.sim.spawn(CLIENT, self._produce(*drawn, value))

    async def _produce(self, topic: TopicImage, state: PartitionImage, value: bytes) -> None:
        item = m.ProducePartition(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=state.partition,
            records=(build_batch([Record(0, 1000, value=value)]),),
        )
        acks = self.random.choice((-1, -1, 1))
        response = await self._ask(state.leader, m.ProduceRequest(acks=acks, timeout_ms=2000, partitions=(item,)))
        if acks == 1:
            return  # no promise
        if response is not None and not response.error_code and not response.partitions[0].error_code:
            try:
                self.books[topic.topic_id, state.partition].write(response.partitions[0].base_offset, value)
            except Breach as breach:
                self.failures.append(breach)

    async def _ask(self, node: NodeId, request: object) -> Any:
        """A response, or None."""
        try:
            deadline = self.sim.loop.now + 4.0
            return await call(self.client.network, Address(f"n{node}", PORT), request, deadline)
        except (kafka.WorldError, kafka.ProtocolError):
            return None

    def delete_records(self) -> None:
        drawn = self.drawn()
        if drawn is None or drawn[1].leader not in NODES:
            return
        topic, state = drawn
        values = self.books[topic.topic_id, state.partition].values
        if values:
            item = m.DeleteRecordsPartition(
                topic=topic.name, partition=state.partition, offset=self.random.choice(sorted(values)) + 1
            )
            self.sim.spawn(CLIENT, self._ask(state.leader, m.DeleteRecordsRequest(partitions=(item,), timeout_ms=1000)))

    def create_some(self) -> None:
        absent = [name for name in TOPICS if name not in self.cluster.image.topics]
        if absent:
            self.create(self.random.choice(absent))

    def create(self, name: str) -> None:
        replicas = [tuple(self.random.sample(NODES, self.random.choice((2, 3, 3)))) for _ in range(2)]
        self.cluster.create(name, *replicas, configs=self.configs)
        self.spread()

    def delete_topic(self) -> None:
        drawn = self.drawn()
        if drawn is not None:
            request = m.DeleteTopicsRequest(topics=(drawn[0].name,))
            self.decide(self.cluster.controller.delete_topics(self.cluster.image, request))

    def move(self) -> None:
        """A follower loses its replica of a partition, or gets one."""
        drawn = self.drawn()
        if drawn is not None:
            target = tuple(self.random.sample(NODES, self.random.choice((2, 3))))
            self.cluster.reassign(target, tp=TopicPartition(drawn[0].name, drawn[1].partition))
            self.spread()

    def prefer(self) -> None:
        self.decide(self.cluster.controller.prefer_leaders(self.cluster.image))

    def fence(self) -> None:
        """A broker's session ends, though it lives."""
        self.decide(self.cluster.controller.broker_lost(self.cluster.image, self.random.choice(NODES)))

    def unfence(self) -> None:
        for node, life in self.lives.items():
            if self.cluster.image.brokers[node].fenced and life.image is self.cluster.image:
                self.cluster.heartbeat(node)
        self.spread()

    def kill(self) -> None:
        if self.lives:
            self._end_process(self.random.choice(sorted(self.lives)), is_power=False)

    def cut_power(self) -> None:
        if self.lives:
            self._end_process(self.random.choice(sorted(self.lives)), is_power=True)

    async def cut_all_power(self) -> None:
        """Maybe right after processes were killed, whose successors found what only the page cache has."""
        for node in self.random.sample(NODES, self.random.choice((0, 1, 2))):
            if node in self.lives:
                self._end_process(node, is_power=False)
                await self.start(node)
        await self.pass_time(self.random.choice((0.0, 0.01, 0.05)))
        for node in sorted(self.lives):
            self._end_process(node, is_power=True)
        for node in self.random.sample(NODES, len(NODES)):
            await self.start(node)

    def _end_process(self, node: NodeId, *, is_power: bool) -> None:
        self.troubled()
        del self.lives[node]
        if is_power:
            self.sim.power_cut(f"n{node}")
        else:
            self.sim.kill(f"n{node}")
        if self.random.random() < 0.5:
            self.decide(self.cluster.controller.broker_lost(self.cluster.image, node))

    async def start_one(self) -> None:
        dead = [node for node in NODES if node not in self.lives]
        if dead:
            await self.start(self.random.choice(dead))

    def cut(self) -> None:
        """A broker and the others hear nothing of each other; the controller is another matter."""
        node, other = self.random.sample(NODES, 2)
        self.is_cut = True
        self.sim.network.cut(f"n{node}", f"n{other}")

    def heal(self) -> None:
        self.troubled()
        self.is_cut = False
        self.sim.network.heal()

    @property
    def is_troubled(self) -> bool:
        return self.is_rough or self.is_cut or self.has_slow_disks

    def evict(self) -> None:
        """A leader forgets all sessions."""
        for life in self.lives.values():
            if self.random.random() < 0.5:
                life.replicas.fetch_sessions._sessions.clear()

    def weather(self) -> None:
        self.troubled()
        self.is_rough = not self.is_rough
        self.sim.network.profile = ROUGH if self.is_rough else CALM

    def calm(self) -> None:
        self.is_rough = False
        self.sim.network.profile = CALM
        self.heal()

    async def quiet(self) -> None:
        """Long enough that each follower that lives is known to fetch."""
        self.calm()
        for _ in range(8):
            self.produce()
            await self.pass_time(self.random.uniform(0.0, LAG_S))

    async def silence(self) -> None:
        """A broker is not heard for long: it is out of each ISR whose log has gone on, and of no other."""
        self.calm()
        node = self.random.choice(NODES)
        await self.pass_time(self.random.choice((0.5, 3.0)))
        self.is_cut = True
        for other in NODES:
            if other != node:
                self.sim.network.cut(f"n{node}", f"n{other}")
        await self.pass_time(0.5)
        self.produce()
        await self.pass_time(3 * LAG_S)
        for name, role in self.leaders():
            remote = role.remotes.get(node)
            state = self.cluster.image.partition(name)
            if role.me == node or remote is None or state is None or node not in state.isr:
                continue
            if remote.end_offset < role.log.end_offset and state.leader_epoch == role.epoch:
                raise Breach(f"{name}: broker {node} has not fetched, and is in the ISR of {role}: {remote}")
        self.heal()

    def _on_event(self, event: Event) -> None:
        """A leader deletes records."""
        life = self.lives.get(int(event.node[1:])) if event.kind == "log_start_raised" else None
        if life is None:
            return
        topic, _, number = str(event.facts["partition"]).rpartition("-")
        seat = life.replicas.partitions.get(TopicPartition(topic, int(number)))
        if seat is not None and isinstance(seat.role, LeaderReplica):
            book = self.books[seat.topic_id, int(number)]
            book.floor = max(book.floor, int(str(event.facts["start"])))

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def leaders(self) -> list[tuple[TopicPartition, LeaderReplica]]:
        """Of each partition, the replica that leads it in its present epoch, if that is known there."""
        found = []
        for topic, state in self.cluster.image.sorted_partitions():
            name = TopicPartition(topic.name, state.partition)
            seat = self.seat(state.leader, name, topic.topic_id)
            if seat is not None and isinstance(seat.role, LeaderReplica) and seat.role.epoch == state.leader_epoch:
                found.append((name, seat.role))
        return found

    def seat(self, node: NodeId, name: TopicPartition, topic_id: TopicId) -> Partition | None:
        life = self.lives.get(node)
        seat = life.replicas.partitions.get(name) if life is not None else None
        return seat if seat is not None and seat.topic_id == topic_id else None

    def look(self) -> None:
        for failure in self.failures:
            raise failure if isinstance(failure, Breach) else Breach(repr(failure)) from failure
        for name, role in self.leaders():
            topic = self.cluster.image.topics[name.topic]
            book = self.books[topic.topic_id, name.partition]
            if role.epoch > book.epoch:
                self._compare(name, book, role)
            for offset, value in values_of(role.log, book.exposed, role.high_watermark).items():
                book.write(offset, value)
            book.exposed = max(book.exposed, role.high_watermark)
            for node in topic.partitions[name.partition].isr:
                seat = self.seat(node, name, topic.topic_id)
                if seat is not None and seat.log.end_offset < role.high_watermark:
                    raise Breach(f"{name}: {seat} on broker {node} lacks what {role} calls committed")

    def _compare(self, name: TopicPartition, book: Book, role: LeaderReplica) -> None:
        """A new leader has all that is in the book."""
        log = role.log
        if log.start_offset > book.floor:
            raise Breach(f"{name}: {role} begins at {log.start_offset}, no leader has deleted beyond {book.floor}")
        book.epoch = role.epoch
        self._check_holds(name, book, role)

    def _check_holds(self, name: TopicPartition, book: Book, role: LeaderReplica) -> None:
        held = values_of(role.log)
        lost = {at: value for at, value in book.values.items() if at >= book.floor and held.get(at) != value}
        if lost:
            raise Breach(f"{name}: {role} lacks {lost}")

    async def end(self) -> None:
        """All is put right: the replicas become equal."""
        self.calm()
        for node in NODES:
            if node not in self.lives:
                await self.start(node)
        deadline = self.sim.loop.now + CONVERGE_S
        while (missing := self.missing()) is not None:
            if self.sim.loop.now > deadline:
                raise Breach(f"not converged: {missing}")
            for node in NODES:
                self.hear(node)
            self.unfence()
            self.elect()
            await self.pass_time(0.5)
        for name, role in self.leaders():
            topic = self.cluster.image.topics[name.topic]
            self._check_holds(name, self.books[topic.topic_id, name.partition], role)
            for node in topic.partitions[name.partition].replicas:
                seat = self.seat(node, name, topic.topic_id)
                # A follower may have deleted more, when it led.
                if seat is None or values_of(seat.log) != values_of(role.log, seat.log.start_offset):
                    raise Breach(f"{name}: {seat} on broker {node} differs from {role}")

    def elect(self) -> None:
        """As the controller does from time to time; and as an operator does where the last leader had not even begun."""
        image, controller = self.cluster.image, self.cluster.controller
        names = tuple(
            m.PartitionName(topic=topic.name, partition=state.partition)
            for topic, state in image.sorted_partitions()
            if state.leader not in NODES
            and all(map(image.eligible, state.replicas))
            and any(image.brokers[node].came_back_empty(state) for node in state.replicas)
        )
        if names:
            request = m.ElectLeadersRequest(election_type="unclean", partitions=names)
            self.decide(controller.elect_leaders(image, request))
        else:
            self.decide(controller.elect_leaderless(image))

    def missing(self) -> str | None:
        """What is not in order yet."""
        leaders = dict(self.leaders())
        for topic, state in self.cluster.image.sorted_partitions():
            name = TopicPartition(topic.name, state.partition)
            role = leaders.get(name)
            if role is None or set(state.isr) != set(state.replicas) or state.assignment.under_way:
                return f"{name}: {state}, led by {role}"
            end = role.log.end_offset
            for node in state.replicas:
                seat = self.seat(node, name, topic.topic_id)
                if seat is None or (seat.log.end_offset, seat.high_watermark) != (end, end):
                    return f"{name}: {seat} on broker {node}, led by {role}"
                if seat.log.start_offset < role.log.start_offset:
                    return f"{name}: {seat} on broker {node} begins at {seat.log.start_offset}, {role.log}"
        return None
