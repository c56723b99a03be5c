"""The lab's cluster once more, with the production drivers: replica managers, fetchers and handlers on simulated machines.

Fetches of followers, their responses, and proposals for the ISR are held on the network until the story lets them go.
Nothing else takes time: messages and syncs arrive at the instant at which they begin.

Rule for this file: it decides what is delivered, and when; what comes of it is the drivers' and the rules' business.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from minikafka.broker.api.fetch import handle_fetch
from minikafka.broker.api.offsets import handle_list_offsets
from minikafka.broker.api.produce import handle_produce
from minikafka.broker.dispatch import Dispatcher
from minikafka.broker.live_settings import LiveSettings
from minikafka.broker.log_maintenance import LogMaintenance
from minikafka.broker.replica_manager import ReplicaManager
from minikafka.config import parse_broker
from minikafka.errors import BY_CODE, OutcomeUnknown, ProtocolError
from minikafka.lab.control import CLUSTER_ID, PARTITION, TOPIC_ID, News, as_text
from minikafka.lab.lab_cluster import WALL_MS_START, Fetch, LabCluster, Promised, content_of
from minikafka.lab.node import READ_SIZE_MAX, Held, Node, held_in, records_of
from minikafka.lab.played import NodeEvent
from minikafka.lab.scenario import Build, built
from minikafka.lab.verbs import Command
from minikafka.log.log_directory import LogDirectory
from minikafka.quorum.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from minikafka.replication.follower import FollowerReplica
from minikafka.replication.leader import ACKS_ALL, LeaderReplica, Proposal
from minikafka.rpc import call
from minikafka.sim.network import BROKEN, DELIVERED, HELD
from minikafka.sim.verdicts import Deliver, LinkProfile, Message, Reset, Verdict
from minikafka.sim.world import Event, SimWorld
from minikafka.tasks import Tasks
from minikafka.types import Address, Epoch, NodeId, Offset
from minikafka.wire.codec import decode_request, decode_response, encode_response, find_api
from minikafka.wire.messages import (
    LATEST,
    AlterPartitionRequest,
    AlterPartitionResponse,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from minikafka.wire.records import Record, build_batch

PORT = 9092
CONTROLLER = Address("controller", PORT)
CLIENT = "client"
CLIENT_WAITS_S = 1e6
"""A client's own timeout: none."""


class Least:
    """Draws the least there is: of what was not synced, a power cut leaves nothing."""

    def __init__(self, _stream: str) -> None:
        """The same for every file and folder."""

    def randint(self, low: int, _high: int) -> int:
        return low

    def random(self) -> float:
        return 1.0


class MachineDisk:
    """The disk of one machine, as stories speak of it."""

    def __init__(self, sim: SimWorld, machine: str) -> None:
        self._disk = sim.disk(machine)
        self._disk.sync_mean_s = 0.0
        self._disk.draws = Least  # type: ignore[assignment]
        self.number = 0
        """Which disk it is: one more with each that takes its place."""

    def wipe(self) -> None:
        self._disk.wipe()
        self.number += 1

    def records(self) -> list[Held]:
        """What its log's files hold."""
        files = self._disk.files().items()
        logs = [data for path, data in files if path.startswith(f"{PARTITION}/") and path.endswith(".log")]
        return [held for data in logs for held in held_in(data)]


class Machine(Node):
    """One broker of the lab on a machine of the simulation: its replica manager, and the handlers in front of it."""

    def __init__(self, node: Node, sim: SimWorld) -> None:
        super().__init__(node.id, node.name, node.settings, node.events)
        self.broker_epoch = node.broker_epoch
        self.sim = sim
        self.machine = f"n{node.id}"
        self.disk = MachineDisk(sim, self.machine)  # type: ignore[assignment]
        self.image = MetadataImage()
        self.fetch_wait_ms = 0
        """For fetches that arrive now: how long the leader may hold them."""
        self.replicas: ReplicaManager | None = None
        self.address = Address(self.machine, PORT)

    @property
    def up(self) -> bool:
        return self.replicas is not None

    def at_once(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the broker's process; it ends at this instant."""
        task = self.sim.spawn(self.machine, work)
        settled(self.sim)
        assert task.done(), "it waits for something"
        task.result()

    # ---- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.stopped_cleanly = False
        self.image = MetadataImage()
        world = self.sim.of(self.machine)
        self.at_once(self._start(world))

    async def _start(self, world: Any) -> None:
        settings = self.settings
        config = parse_broker(
            {
                "node.id": str(self.id),
                "cluster.id": CLUSTER_ID,
                "process.roles": "broker",
                "controller.quorum.voters": f"99@{CONTROLLER}",
                "listeners": f"PLAINTEXT://{self.address}",
                "mk.insecure": "true",
                "replica.lag.time.max.ms": str(round(settings.lag_time_max_s * 1000)),
                # No follower gives a fetch up; how long a leader holds it is said when it arrives.
                "replica.fetch.wait.max.ms": "86400000",
                # The next fetch is there as soon as one has failed: it is held anyway.
                "replica.fetch.backoff.ms": "0",
                # A held proposal does not time out.
                "controller.quorum.request.timeout.ms": "86400000",
            }
        ).config
        self.logs = await LogDirectory.open(
            world.disk,
            node_id=self.id,
            cluster_id=CLUSTER_ID,
            directory_id=f"disk-{self.id}-{self.disk.number}",
            config_of=lambda _: settings.topic,
            events=world.events,
        )
        tasks = Tasks(failed)
        live = LiveSettings(config, world.events)
        replicas = ReplicaManager(
            live,
            world,
            self.logs,
            spawn=tasks.spawn,
            controller=lambda: CONTROLLER,
            image=lambda: self.image,
            broker_epoch=lambda: self.broker_epoch,
            address_of=lambda node: Address(f"n{node}", PORT),
            on_storage_failure=lambda failure: failed(str(failure.partition), AssertionError(failure.why)),
            truncation=settings.truncation,
        )
        self.maintenance = LogMaintenance(
            replicas, live, on_disk_failure=lambda why: failed("disk", AssertionError(why)), spawn=tasks.spawn
        )

        def fetch(request: FetchRequest, _: object) -> Any:
            if request.replica_id >= 0:
                request = replace(request, max_wait_ms=self.fetch_wait_ms)
            return handle_fetch(replicas, request, session_alive=always)

        dispatcher = Dispatcher(
            {
                "Fetch": fetch,
                "Produce": lambda request, _: handle_produce(replicas, request, session_alive=always),
                "ListOffsets": lambda request, _: handle_list_offsets(replicas, request, session_alive=always),
            },
            events=world.events,
            on_bug=failed,
            is_open=True,
            ticks_ns=world.clock.ticks_ns,
        )
        await world.network.serve(self.address, dispatcher.dispatch)
        tasks.spawn(replicas.alter_partition_manager.run(), "alter-partition")
        self.replicas = replicas

    def kill(self) -> None:
        self.sim.kill(self.machine)
        self._gone()

    def _gone(self) -> None:
        self.replicas = self.partition = self.news = None

    def power_cut(self) -> None:
        self.stopped_cleanly = False
        self.sim.power_cut(self.machine)
        self._gone()

    def stop(self) -> None:
        self.at_once(self._stop())
        self.kill()
        self.stopped_cleanly = True

    async def _stop(self) -> None:
        watermark = self.seat.high_watermark
        self.manager.close()
        await self.logs.close(broker_epoch=self.broker_epoch, high_watermarks={PARTITION: watermark})

    @property
    def manager(self) -> ReplicaManager:
        assert self.replicas is not None
        return self.replicas

    def checkpoint(self) -> None:
        self.at_once(self._checkpoint())

    async def _checkpoint(self) -> None:
        await self.maintenance.checkpoint_watermarks()
        await self.logs.checkpoint_recovery_points()

    def sync(self) -> None:
        self.at_once(self.seat.log.sync())

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def take(self, news: News, now: float) -> None:
        self.news = news
        old, self.image = self.image, image_of(news, self.settings.topic, self.image)
        self.at_once(self._apply(old))
        self.partition = self.manager.partitions[PARTITION]

    async def _apply(self, old: MetadataImage) -> None:
        self.manager.apply(old, self.image)

    async def shrink(self) -> None:
        """The periodic look for followers that lag."""
        self.manager.shrink_isrs()

    def kept(self) -> list[Held]:
        return records_of(self.seat.log) if self.up else self.disk.records()  # type: ignore[attr-defined]


def always() -> bool:
    return True


def failed(name: str, error: BaseException) -> None:
    """A task of a broker has failed: the simulation reports it."""
    raise AssertionError(f"{name} failed") from error


def settled(sim: SimWorld) -> None:
    """Run all that happens at this instant."""
    sim.run_until(sim.loop.now)
    assert not sim.loop.failures, sim.loop.failures


def image_of(news: News, config: Any, old: MetadataImage) -> MetadataImage:
    """The metadata as a broker would replay it; parts that are as in ``old`` are the same objects."""
    state = news.state
    partition = PartitionImage(
        partition=PARTITION.partition,
        replicas=state.replicas,
        isr=state.isr,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        controller_epoch=1,
        elr=news.elr,
        last_known_elr=news.last_known_elr,
        recovered=state.recovered,
    )
    topic = TopicImage(name=PARTITION.topic, topic_id=TOPIC_ID, configs=as_text(config), partitions=(partition,))
    brokers = {
        node: BrokerImage(node_id=node, broker_epoch=epoch, incarnation_id="", host=f"n{node}", port=PORT, fenced=False)
        for node, epoch in news.broker_epochs.items()
    }
    known = old.topics.get(PARTITION.topic)
    return MetadataImage(
        cluster_id=CLUSTER_ID,
        offset=old.offset + 1,
        brokers=old.brokers if old.brokers == brokers else brokers,
        topics=old.topics if known == topic else {PARTITION.topic: topic},
        topic_names={TOPIC_ID: PARTITION.topic},
    )


@dataclass(slots=True)
class HeldFetch(Fetch):
    """A follower's request on its way: the message, and that of the response."""

    request: Message | None = None
    response: Message | None = None


@dataclass(eq=False, slots=True)
class Client:
    """A producer whose request is under way."""

    who: str
    node: NodeId


class ProductionCluster(LabCluster):
    """The same stories; the machines are those of a simulation."""

    def __init__(self, stage: LabCluster, sim: SimWorld) -> None:
        self.sim = sim
        sim.network.profile = LinkProfile(delay_mean_s=0.0)
        super().__init__([Machine(node, sim) for node in stage.nodes.values()], stage.control, stage.lines)
        self.by_machine: dict[str, Machine] = {node.machine: node for node in self.machines()}
        self.requests: dict[str, dict[int, Message]] = {}
        """Held fetches of each machine, by call."""
        self.responses: dict[int, Message] = {}
        """Held responses to them."""
        self.asked: dict[NodeId, Message] = {}
        """The newest held proposal of each broker."""
        self.sent: dict[NodeId, tuple[LeaderReplica, Proposal]] = {}
        """What it proposes, and in which role."""
        self.is_quiet = False
        self.unheard: dict[str, Message] = {}
        """Responses to proposals that wait for a machine that is deaf."""
        self.clients: list[Client] = []
        sim.observers.append(self.observe)
        sim.network.rules.append(self.hold)
        self.client = sim.of(CLIENT)
        world = sim.of(CONTROLLER.host)
        sim.run_until(0.0)
        sim.spawn(CONTROLLER.host, world.network.serve(CONTROLLER, self.control_handles))
        settled(sim)

    def machines(self) -> Sequence[Machine]:
        return list(self.nodes.values())  # type: ignore[arg-type]

    def machine(self, node: NodeId) -> Machine:
        return self.nodes[node]  # type: ignore[return-value]

    @property
    def now(self) -> float:
        """Time is the simulation's."""
        return self.sim.loop.now

    @now.setter
    def now(self, at: float) -> None:
        self.sim.run_until(at)
        settled(self.sim)

    def observe(self, event: Event) -> None:
        node = self.by_machine.get(event.node)
        if node is not None and "partition" in event.facts:
            node.events(event.kind, **event.facts)

    def hold(self, message: Message) -> Verdict | None:
        """What the story decides about is held when it is sent."""
        if message.api == "Fetch" and message.kind == "request" and message.source in self.by_machine:
            self.requests.setdefault(message.source, {})[message.call] = message
            return HELD
        if message.api == "Fetch" and message.kind == "answer" and message.target in self.by_machine:
            self.responses[message.call] = message
            return HELD
        if message.api == "AlterPartition" and message.kind == "request":
            node = self.by_machine[message.source]
            role = node.leads()
            assert role is not None
            assert role.proposal is not None
            self.asked[node.id] = message
            self.sent[node.id] = (role, role.proposal)
            return HELD
        if message.api == "AlterPartition" and not self.by_machine[message.target].listens:
            node = self.by_machine[message.target]
            role, proposal = self.sent[node.id]
            if node.leads() is not role or role.proposal is not proposal:
                return BROKEN  # it would not be obeyed either
            self.unheard[message.target] = message
            return HELD
        return None

    # ---- life --------------------------------------------------------------------------------------------------------

    def end(self, node: Node, *, power: bool = False) -> None:
        for each in [each for each in self.clients if each.node == node.id]:
            self.clients.remove(each)
            self.say(f"{each.who}: no answer, outcome unknown")
        self.asked.pop(node.id, None)
        self.requests.pop(self.machine(node.id).machine, None)
        self.unheard.pop(self.machine(node.id).machine, None)
        super().end(node, power=power)
        settled(self.sim)

    def tell(self, node: Node, news: News | None = None) -> None:
        response = self.unheard.pop(self.machine(node.id).machine, None)
        if response is not None:
            self.sim.network.decide(response, BROKEN)
        node.take(news or self.control.news(), self.now)

    # ---- producers and consumers -------------------------------------------------------------------------------------

    def as_client(self, work: Coroutine[Any, Any, None]) -> None:
        self.sim.spawn(CLIENT, work)
        settled(self.sim)

    async def ask(self, node: NodeId, request: object) -> Any:
        return await call(self.client.network, self.machine(node).address, request, self.now + CLIENT_WAITS_S)

    def produce(self, node: Node, values: Sequence[str], *, acks: int, believing: Epoch, timeout_s: float) -> None:
        client = Client(f"producer of {' '.join(values)}", node.id)
        try:
            node.seat.check_epoch(believing)  # Kafka's Produce has no such field
        except ProtocolError as error:
            self.say(f"{client.who}: {error.name}, {error.outcome}")
            return
        wall_ms = WALL_MS_START + round(self.now * 1000)
        batch = build_batch([Record(number, wall_ms, value=value.encode()) for number, value in enumerate(values)])
        item = ProducePartition(topic=PARTITION.topic, partition=PARTITION.partition, records=(batch,))
        request = ProduceRequest(acks=acks, timeout_ms=round(timeout_s * 1000), partitions=(item,))
        self.clients.append(client)
        self.as_client(self.produced(client, request, values))

    async def produced(self, client: Client, request: ProduceRequest, values: Sequence[str]) -> None:
        try:
            response: ProduceResponse = await self.ask(client.node, request)
        except OutcomeUnknown:
            if client in self.clients:
                raise
            return
        if client not in self.clients:
            return
        self.clients.remove(client)
        (answer,) = response.partitions
        if answer.error_code:
            self.say(f"{client.who}: {BY_CODE[answer.error_code].name}, {answer.outcome}")
            return
        if request.acks:
            acks = "all" if request.acks == ACKS_ALL else request.acks
            self._promise(values, answer.base_offset, f"acknowledged with acks={acks}")
        self.say(f"{client.who}: {'acknowledged' if request.acks else 'no response'}")

    def settle_producers(self) -> None:
        settled(self.sim)

    def consume(self, node: Node, offset: Offset, *, believing: Epoch, last_epoch: Epoch) -> None:
        item = FetchPartition(
            topic=PARTITION.topic,
            partition=PARTITION.partition,
            current_leader_epoch=believing,
            fetch_offset=offset,
            last_fetched_epoch=last_epoch,
            partition_max_bytes=READ_SIZE_MAX,
        )
        self.as_client(self.consumed(node.id, FetchRequest(max_wait_ms=0, partitions=(item,)), offset))

    async def consumed(self, node: NodeId, request: FetchRequest, offset: Offset) -> None:
        response: FetchResponse = await self.ask(node, request)
        (answer,) = response.partitions
        if answer.error_code:
            self.say(f"consumer: {BY_CODE[answer.error_code].name}")
            return
        if answer.diverging_epoch is not None:
            epoch, end = answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset
            self.say(f"consumer: what it has read diverges, epoch {epoch} ends at {end}")
            return
        seen = [held for buffer in answer.records for held in held_in(buffer) if held.offset >= offset]
        for held in seen:
            if all((each.value, each.offset) != (held.value, held.offset) for each in self.promised):
                self.promised.append(Promised(held.value, held.offset, "read by a consumer"))
        values = " ".join(held.value for held in seen) or "nothing"
        self.say(f"consumer: reads {values}, high watermark {answer.high_watermark}")

    def latest(self, node: Node) -> None:
        item = ListOffsetsPartition(topic=PARTITION.topic, partition=PARTITION.partition, timestamp=LATEST)
        self.as_client(self.listed(node.id, ListOffsetsRequest(partitions=(item,))))

    async def listed(self, node: NodeId, request: ListOffsetsRequest) -> None:
        (answer,) = (await self.ask(node, request)).partitions
        name = BY_CODE[answer.error_code].name if answer.error_code else ""
        self.say(f"consumer: {name}" if name else f"consumer: the latest offset is {answer.offset}")

    # ---- fetches -----------------------------------------------------------------------------------------------------

    def newest_request(self, node: NodeId, leader: NodeId) -> Message:
        """The fetch that the follower waits for."""
        requests = self.requests.get(self.machine(node).machine, {})
        found = [each for _, each in sorted(requests.items()) if each.target == self.machine(leader).machine]
        assert found, f"{self.name(node)} has sent no fetch to {self.name(leader)}"
        return found[-1]

    def send(self, node: Node) -> Fetch | None:
        role = node.seat.role
        if not isinstance(role, FollowerReplica):
            self.say(f"{node.name} follows nobody")
            return None
        settled(self.sim)
        under_way = self.fetches.get(node.id)
        if isinstance(under_way, HeldFetch) and under_way.response is not None:
            self.let_go(under_way.response, BROKEN)
        request = self.newest_request(node.id, role.leader)
        decoded: FetchRequest = decode_request(find_api("Fetch"), request.body)
        asked = role.next_fetch()
        assert decoded.replica_epoch == node.broker_epoch
        for item in decoded.partitions:  # none, if the session repeats the question
            sent = (item.fetch_offset, item.last_fetched_epoch, item.current_leader_epoch)
            assert sent == (asked.offset, asked.last_fetched_epoch, asked.leader_epoch)
        fetch = HeldFetch(node.id, role, asked, role.leader, node.broker_epoch, request=request)
        self.fetches[node.id] = fetch
        return fetch

    def let_go(self, message: Message, verdict: Deliver | Reset) -> None:
        """Let a held fetch or its response arrive, or break its connection."""
        held = self.responses if message.kind == "answer" else self.requests.get(message.source, {})
        held.pop(message.call, None)
        self.sim.network.decide(message, verdict)
        settled(self.sim)

    def handle(self, fetch: Fetch, *, wait: bool) -> None:
        assert isinstance(fetch, HeldFetch)
        assert fetch.request is not None
        leader = self.nodes.get(fetch.leader)
        if leader is None or not leader.reachable or not self.nodes[fetch.node].connected:
            del self.fetches[fetch.node]
            self.say(f"{self.name(fetch.leader)} is not reached")
            self.let_go(fetch.request, BROKEN)
            return
        machine = self.machine(leader.id)
        machine.fetch_wait_ms = round(leader.settings.fetch_wait_max_s * 1000) if wait else 0
        self.let_go(fetch.request, DELIVERED)
        again = [call for call in self.requests.get(fetch.request.source, {}) if call > fetch.request.call]
        if fetch.request.call not in self.responses and again and self.follows(fetch):
            # The leader was started again since: a new connection is needed.
            fetch.request = self.newest_request(fetch.node, fetch.leader)
            self.let_go(fetch.request, DELIVERED)
        if not self.answered(fetch):
            fetch.parked_by = leader.leads()
            self.say(f"nothing to return: parked at {leader.name}")

    def follows(self, fetch: Fetch) -> bool:
        """Is the role that asked the follower's still?"""
        return self.nodes[fetch.node].seat.role is fetch.role

    def answered(self, fetch: HeldFetch) -> bool:
        """The response is there: read it."""
        assert fetch.request is not None
        response = self.responses.get(fetch.request.call)
        if response is None:
            return False
        fetch.response = response
        decoded: FetchResponse = decode_response("Fetch", response.body)
        leader = self.nodes[fetch.leader].leads()
        # A session leaves out what is not news.
        fetch.answer = (
            decoded.partitions[0]
            if decoded.partitions
            else FetchedPartition(
                topic=PARTITION.topic,
                partition=PARTITION.partition,
                high_watermark=leader.high_watermark if leader is not None else -1,
            )
        )
        return True

    def ready(self) -> Fetch | None:
        settled(self.sim)
        for fetch in self.fetches.values():
            assert isinstance(fetch, HeldFetch)
            if fetch.parked_by is not None and fetch.answer is None and self.answered(fetch):
                fetch.answer = None
                return fetch
        return None

    def answer_parked(self, fetch: Fetch) -> None:
        assert isinstance(fetch, HeldFetch)
        self.answered(fetch)

    def lose(self, fetch: Fetch) -> None:
        assert isinstance(fetch, HeldFetch)
        assert fetch.response is not None
        super().lose(fetch)
        self.let_go(fetch.response, BROKEN)

    def deliver(self, fetch: Fetch) -> None:
        del self.fetches[fetch.node]
        assert isinstance(fetch, HeldFetch)
        node, answer, role = self.nodes[fetch.node], fetch.answer, fetch.role
        if answer is None or not node.reachable:
            self.say("the answer reaches nobody")
            if fetch.response is not None:
                self.let_go(fetch.response, BROKEN)
            return
        assert fetch.response is not None
        if node.seat.role is not role or role.log.end_offset != fetch.asked.offset:
            self.say(f"{node.name} throws the answer away: it has changed since it asked")
        else:
            self.say(f"{node.name} gets {content_of(answer)}")
        refused = self.refusals(node)
        self.let_go(fetch.response, DELIVERED)
        if len(self.refusals(node)) > len(refused):
            for_metadata = BY_CODE[answer.error_code].name == "FENCED_LEADER_EPOCH"
            self.say(f"{node.name} waits {'for metadata' if for_metadata else 'and asks again'}")

    def refusals(self, node: Node) -> list[Event]:
        machine = self.machine(node.id).machine
        return [each for each in self.sim.journal if each.kind == "fetch_refused" and each.node == machine]

    # ---- in-sync replicas --------------------------------------------------------------------------------------------

    def check_isr(self, node: Node) -> None:
        role = node.leads()
        if role is None:
            self.say(f"{node.name} does not lead")
            return
        self.say_lags(role)
        machine = self.machine(node.id)
        machine.at_once(machine.shrink())

    @property
    def proposals(self) -> dict[NodeId, tuple[LeaderReplica, Proposal]]:  # type: ignore[override]
        """What the controller is to be asked, by broker."""
        return {node: self.newer_proposal(node) or self.sent[node] for node in self.asked}

    @proposals.setter
    def proposals(self, none: object) -> None:
        """What is asked is read off the messages."""

    def newer_proposal(self, node: NodeId) -> tuple[LeaderReplica, Proposal] | None:
        """What waits behind the proposal that is under way."""
        role = self.nodes[node].leads()
        if role is None or role.proposal is None or role.proposal is self.sent[node][1]:
            return None
        return role, role.proposal

    def settle_proposal(self, node: Node) -> None:
        if not node.connected:
            self.say("the controller is not reached")
            return
        if self.newer_proposal(node.id) is not None:
            # The broker has one request under way; the controller refuses it, and the newer one follows.
            self.is_quiet = True
            self.sim.network.decide(self.asked.pop(node.id), DELIVERED)
            settled(self.sim)
            self.is_quiet = False
        self.sim.network.decide(self.asked.pop(node.id), DELIVERED)
        settled(self.sim)
        if not node.listens:
            self.say(f"{node.name} does not hear it")
        self.spread()

    def control_handles(self, api: str, body: bytes, _context: object) -> Any:
        """The controller's side of AlterPartition."""
        request: AlterPartitionRequest = decode_request(find_api(api), body)
        (item,) = request.partitions
        proposal = Proposal(
            tuple(member.broker_id for member in item.new_isr),
            tuple(member.broker_epoch for member in item.new_isr),
            item.leader_epoch,
            item.partition_epoch,
        )
        answer = self.control.alter(request.broker_id, request.broker_epoch, proposal)
        if not self.is_quiet:
            self.say(f"controller: {BY_CODE[answer.error_code].name if answer.error_code else 'recorded'}")
        return encode_response(AlterPartitionResponse(partitions=(answer,)))


def production(sim: SimWorld) -> Build:
    """Build the cluster of a scenario in this simulation."""

    def build(command: Command, lines: list[str], events: list[NodeEvent]) -> LabCluster:
        return ProductionCluster(built(command, lines, events), sim)

    return build
