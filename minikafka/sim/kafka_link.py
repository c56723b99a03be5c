"""A connection of the simulator's own Kafka client: the real codec over a stream of the simulated network.

It speaks as Kafka's libraries do: ApiVersions first, requests pipelined, each answer matched to the oldest open request
by its correlation id. What a client must never see is reported as a violation:

- ``answers_out_of_order``: an answer whose correlation id is not that of the oldest open request;
- ``answer_unreadable``: bytes that are no answer to that request;
- ``refused_by_the_protocol``: an API or a version that ApiVersions has offered is refused.

Rules for this file: it decides nothing about records; a connection that has failed once is never used again.

These clients send only APIs and versions that are offered. So a connection that a broker closes because it cannot read
a request is a violation too, ``kafka_request_refused``. A failed Produce with acks=0 has to close its connection.

A client's knowledge of the cluster (leaders, their epochs, topic ids) is asked for again when something failed, never
by the clock, so that a client that learns nothing stays with what it knows.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

from minikafka.errors import InvalidRequest
from minikafka.ports import World
from minikafka.sim.network import NodeNetwork
from minikafka.sim.world import Event, SimWorld
from minikafka.tasks import shielded
from minikafka.types import NO_NODE, Address, Epoch, NodeId, TopicPartition
from minikafka.wire.kafka.codec import Message, decode, encode
from minikafka.wire.kafka.schema import Field, api_named

Report = Callable[[str, str], None]

VERSIONS: Final = {
    "ApiVersions": 4,
    "Metadata": 12,
    "InitProducerId": 4,
    "ListOffsets": 8,
    "OffsetForLeaderEpoch": 4,
    "Produce": 9,
    "Fetch": 12,
}
"""The versions that a client speaks when its plan says nothing else."""


@dataclass(slots=True)
class _Open:
    """A request without its answer."""

    correlation: int
    name: str
    version: int
    answer: asyncio.Future[Message | None]


class KafkaLink:
    """One connection to one broker."""

    def __init__(
        self, world: World, address: Address, client_id: str, versions: dict[str, int], report: Report
    ) -> None:
        self.address = address
        self.is_lost = False
        self.on_lost: Callable[[], None] = lambda: None
        self._world = world
        self._client_id = client_id.encode()
        self._versions = versions
        self._report = report
        self._sent = 0
        self._open: deque[_Open] = deque()
        self._bytes = bytearray()
        network = world.network
        if not isinstance(network, NodeNetwork):
            raise TypeError("only the simulated network has streams")
        self._stream = network.connect(address, self)
        world.events("kafka_connected", broker=str(address))

    # ---- the client's calls ------------------------------------------------------------------------------------------

    @property
    def open_count(self) -> int:
        """Requests without an answer."""
        return len(self._open)

    def version(self, name: str) -> int:
        return self._versions[name] if name in self._versions else VERSIONS[name]

    async def call(self, name: str, message: Message, timeout_s: float) -> Message | None:
        """The answer; None: the connection was lost, or was closed after ``timeout_s`` without an answer."""
        answer = self._send(name, message)
        timer = self._world.clock.now() + timeout_s
        try:
            async with asyncio.timeout_at(timer):
                return await shielded(answer)
        except TimeoutError:
            self.close(f"{name} had no answer in {timeout_s:g} s")
            return None

    def tell(self, name: str, message: Message) -> None:
        """Send a request that has no answer (acks=0)."""
        self._stream.send(self._frame(name, message))

    def close(self, why: str) -> None:
        """Give it up; nobody hears the answers that are still to come."""
        if not self.is_lost:
            self._stream.close()
            self._fail(why)

    def _send(self, name: str, message: Message) -> asyncio.Future[Message | None]:
        answer: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        if self.is_lost:
            answer.set_result(None)
            return answer
        frame = self._frame(name, message)
        self._open.append(_Open(self._sent, name, self.version(name), answer))
        self._stream.send(frame)
        return answer

    def _frame(self, name: str, message: Message) -> bytes:
        self._sent += 1
        api, version = api_named(name), self.version(name)
        head = struct.pack(">hhih", api.key, version, self._sent, len(self._client_id)) + self._client_id
        head += b"\0" * api.is_flexible(version)
        body = head + b"".join(encode(name, "request", version, completed(api.request, message)))
        return struct.pack(">i", len(body)) + body

    # ---- the stream's calls ------------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        """Bytes, torn anywhere."""
        self._bytes += data
        while len(self._bytes) >= 4 and not self.is_lost:
            (size,) = struct.unpack_from(">i", self._bytes)
            if len(self._bytes) < 4 + size:
                return
            frame = bytes(self._bytes[4 : 4 + size])
            del self._bytes[: 4 + size]
            self._answered(frame)

    def lost(self) -> None:
        """The connection broke, or the broker closed it."""
        self._fail("the connection was lost")

    def _answered(self, frame: bytes) -> None:
        (correlation,) = struct.unpack_from(">i", frame)
        request = self._open.popleft() if self._open else None
        if request is None or request.correlation != correlation:
            expected = "none" if request is None else f"{request.name} with correlation id {request.correlation}"
            self._wrong("answers_out_of_order", f"correlation id {correlation} came, {expected} was next")
            return
        is_flexible = api_named(request.name).is_flexible(request.version) and request.name != "ApiVersions"
        try:
            data = memoryview(frame)
            message = decode(request.name, "response", request.version, data, 5 if is_flexible else 4)
        except InvalidRequest as error:
            self._wrong("answer_unreadable", f"{request.name} version {request.version}: {error.message}")
            return
        if request.name == "ApiVersions":
            self._look_at(message)
        if not request.answer.done():
            request.answer.set_result(message)

    def _look_at(self, message: Message) -> None:
        offered = {each["api_key"]: (each["min_version"], each["max_version"]) for each in message["api_keys"]}
        for name in VERSIONS:
            first, last = offered.get(api_named(name).key, (0, -1))
            if message["error_code"] or not first <= self.version(name) <= last:
                wrong = f"ApiVersions offers {name} {first} to {last}, error {message['error_code']}"
                self._wrong("refused_by_the_protocol", wrong)

    def _wrong(self, name: str, what: str) -> None:
        self._report(name, f"{self._client_id.decode()} at {self.address}: {what}")
        self.close(what)

    def _fail(self, why: str) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._world.events("kafka_connection_lost", broker=str(self.address), unanswered=len(self._open), why=why)
        for each in self._open:
            if not each.answer.done():
                each.answer.set_result(None)
        self._open.clear()
        self.on_lost()


def completed(fields: tuple[Field, ...], message: Message) -> Message:
    """The message with defaults for what it leaves out."""
    whole: dict[str, Any] = {}
    for field in fields:
        value = message.get(field.name, field.default)
        if field.kind == "struct" and value:
            value = (
                [completed(field.fields, each) for each in value] if field.is_array else completed(field.fields, value)
            )
        whole[field.name] = value
    return whole


ACKS_0 = "a Produce request with acks=0 failed"


def watch_kafka_sessions(sim: SimWorld, report: Report) -> None:
    """Report each connection that a broker refuses, from now on."""

    def on_event(event: Event) -> None:
        if event.kind != "client_connection_refused":
            return
        why = str(event.facts["why"])
        if why.startswith(ACKS_0):
            sim.marks["kafka_acks_0_closed"] += 1
        else:
            report("kafka_request_refused", f"{event.node} closed the connection of {event.facts['remote']}: {why}")

    sim.observers.append(on_event)


SOFTWARE: Final = {"client_software_name": "minikafka-sim", "client_software_version": "1.0"}


@dataclass(frozen=True, slots=True)
class KnownLeader:
    """A partition's leader, as some broker said."""

    node: NodeId
    epoch: Epoch
    topic_id: bytes


class KafkaCluster:
    """One client's view and connections."""

    def __init__(
        self,
        world: World,
        client_id: str,
        brokers: Sequence[Address],
        versions: dict[str, int],
        *,
        timeout_s: float,
        report: Report,
    ) -> None:
        self.leaders: dict[TopicPartition, KnownLeader] = {}
        self.is_stale = True
        """Something failed: ask before the next request."""
        self.on_lost: Callable[[], None] = lambda: None
        self._world = world
        self._client_id = client_id
        self._brokers = list(brokers)
        self._versions = versions
        self._timeout_s = timeout_s
        self._report = report
        self._addresses: dict[NodeId, Address] = {}
        self._links: dict[Address, KafkaLink] = {}

    def address_of_leader(self, name: TopicPartition) -> Address | None:
        """Where it sends what is for this partition; None: no leader is known, or the last answer did not list it."""
        known = self.leaders.get(name)
        return self._addresses.get(known.node) if known is not None else None

    def link_to(self, name: TopicPartition) -> KafkaLink | None:
        """A connection to the partition's leader; None: nobody is known to lead it."""
        address = self.address_of_leader(name)
        return None if address is None else self.link(address)

    def any_link(self) -> KafkaLink:
        """A connection to the broker that answered last, or to the next one."""
        return self.link(self._brokers[0])

    def next_broker(self) -> None:
        """The first broker did not answer."""
        self._brokers.append(self._brokers.pop(0))

    def link(self, address: Address) -> KafkaLink:
        """The open connection to a broker, or a new one; each begins with ApiVersions."""
        link = self._links.get(address)
        if link is None or link.is_lost:
            link = KafkaLink(self._world, address, self._client_id, self._versions, self._report)
            link.on_lost = self._lost
            self._links[address] = link
            task = asyncio.get_running_loop().create_task(link.call("ApiVersions", dict(SOFTWARE), self._timeout_s))
            task.set_name("api-versions")
            self._greetings = task
        return link

    def _lost(self) -> None:
        self.is_stale = True
        self.on_lost()

    async def refresh(self, topics: Collection[str]) -> bool:
        """Ask one broker; False: it did not answer, and another one is asked next time."""
        message = {
            "topics": [{"name": topic} for topic in sorted(topics)],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        answer = await self.any_link().call("Metadata", message, self._timeout_s)
        if answer is None:
            self.next_broker()
            return False
        self._addresses = {each["node_id"]: Address(each["host"], each["port"]) for each in answer["brokers"]}
        found = {
            TopicPartition(topic["name"], each["partition_index"]): KnownLeader(
                each["leader_id"], each["leader_epoch"], topic["topic_id"]
            )
            for topic in answer["topics"]
            for each in topic["partitions"]
            if each["leader_id"] != NO_NODE
        }
        for name, known in found.items():
            before = self.leaders.get(name)
            # As KIP-320 has it: an answer that is older than what is known, of the same topic, changes nothing.
            if before is None or before.topic_id != known.topic_id or before.epoch <= known.epoch:
                self.leaders[name] = known
        for name in [name for name in self.leaders if name.topic in topics and name not in found]:
            del self.leaders[name]
        self.is_stale = False
        return True
