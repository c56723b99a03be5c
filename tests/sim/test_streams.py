"""Streams of bytes on the simulated network: what both ends see under each fault (issue 14)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from minikafka.errors import ProtocolError
from minikafka.faults import with_any_client
from minikafka.ports import FrameConnection, MeetFaults, RequestContext
from minikafka.sim.message_faults import Matching
from minikafka.sim.streams import SEGMENT, Stream
from minikafka.sim.verdicts import Deliver, Drop, Message, Reset, matching
from minikafka.sim.world import SimWorld
from minikafka.types import Address

SERVER = Address("n1", 9092)


def frame(number: int, size: int = 200) -> bytes:
    body = struct.pack(">i", number) * (size // 4)
    return struct.pack(">i", len(body)) + body


class Echo:
    """A session that answers each frame with itself, in order."""

    def __init__(self, connection: FrameConnection, context: RequestContext) -> None:
        self.meet_faults: MeetFaults | None = None
        self.connection = connection
        self.context = context
        self.frames: list[bytes] = []
        self.is_closed = False
        self.malformed_by: list[ProtocolError] = []
        self.is_busy = False

    def received(self, data: memoryview) -> None:
        self.frames.append(bytes(data))
        if self.meet_faults is None:
            self.connection.send([struct.pack(">i", len(data)), data])
        else:
            self.task = asyncio.get_running_loop().create_task(self._answer(bytes(data), self.meet_faults))

    async def _answer(self, data: bytes, meet_faults: MeetFaults) -> None:
        async def handle() -> bytes:
            return data

        answer = await meet_faults("k1", "Produce", data, handle)
        self.connection.send([struct.pack(">i", len(answer)), answer])

    def malformed(self, error: ProtocolError) -> None:
        self.malformed_by.append(error)
        self.connection.close()

    def room(self, *, has_room: bool) -> None:
        raise NotImplementedError

    def closed(self) -> None:
        self.is_closed = True

    def cancel(self) -> None:
        raise NotImplementedError


class Client:
    """The other end: what arrived, and when the connection was lost."""

    def __init__(self, sim: SimWorld) -> None:
        self.sim = sim
        self.data = b""
        self.lost_at: float | None = None
        self.segments: list[int] = []
        self.stream: Stream = sim.network.of(sim.loop.incarnations["k1"]).connect(SERVER, self)

    def received(self, data: bytes) -> None:
        self.segments.append(len(data))
        self.data += data

    def lost(self) -> None:
        assert self.lost_at is None
        self.lost_at = self.sim.loop.time()


class Story:
    """A server n1 with echo sessions, and a client's machine k1."""

    def __init__(self, sim: SimWorld) -> None:
        self.sim = sim
        self.sessions: list[Echo] = []
        self.server: Any = None
        sim.of("k1")

    def open(self, connection: FrameConnection, context: RequestContext) -> Echo:
        self.sessions.append(Echo(connection, context))
        return self.sessions[-1]

    async def boot(self) -> None:
        async def handle(api: str, body: bytes, context: RequestContext) -> list[bytes]:
            raise NotImplementedError

        world = self.sim.of("n1")
        serving = world.network.serve(SERVER, handle, listener="PLAINTEXT", sessions=self.open)
        self.server = await self.sim.spawn("n1", serving)

    def connect(self) -> Client:
        return Client(self.sim)

    async def talking(self) -> Client:
        """A client whose first frame was answered."""
        await self.boot()
        client = self.connect()
        client.stream.send(frame(1))
        await asyncio.sleep(1.0)
        return client


def run(story: Callable[[Story], Awaitable[None]], seed: int = 1) -> None:
    with SimWorld(seed) as sim:
        sim.run(story(Story(sim)))  # type: ignore[arg-type]


def test_frames_arrive_whole_and_in_order_though_they_are_torn():
    """Segments are torn at any byte; what both ends read is what was sent."""

    async def story(s: Story) -> None:
        await s.boot()
        client = s.connect()
        sent = [frame(number) for number in range(40)]
        for each in sent:
            client.stream.send(each)
            await asyncio.sleep(0.001)
        await asyncio.sleep(2.0)
        assert b"".join(s.sessions[0].frames) == b"".join(each[4:] for each in sent)
        assert client.data == b"".join(sent)
        assert any(size % 204 for size in client.segments)
        assert s.sessions[0].context == RequestContext("kafka", "PLAINTEXT", "k1", principal="User:k1")

    run(story)


def test_a_lost_segment_is_sent_again():
    """As TCP does: the bytes behind it wait, nothing is missing."""

    async def story(s: Story) -> None:
        await s.boot()
        s.sim.network.rule(matching(Drop(), api=SEGMENT, kind="request", count=3))
        client = s.connect()
        client.stream.send(frame(1) + frame(2))
        await asyncio.sleep(2.0)
        assert client.data == frame(1) + frame(2)

    run(story)


def test_a_cut_link_leaves_the_connection_half_open():
    """Neither end notices; after the cut the answers arrive."""

    async def story(s: Story) -> None:
        client = await s.talking()
        s.sim.network.cut("n1", "k1")
        client.stream.send(frame(2))
        await asyncio.sleep(10.0)
        assert len(s.sessions[0].frames) == 2
        assert (client.data, client.lost_at) == (frame(1), None)
        s.sim.network.heal()
        await asyncio.sleep(1.0)
        assert client.data == frame(1) + frame(2)

    run(story)


def test_a_reset_loses_answers_and_both_ends_learn_it():
    """The request happened; its answer is gone with the connection."""

    async def story(s: Story) -> None:
        await s.boot()
        s.sim.network.rule(matching(Reset(), api=SEGMENT, kind="answer", count=1))
        client = s.connect()
        client.stream.send(frame(1))
        await asyncio.sleep(1.0)
        assert len(s.sessions[0].frames) == 1
        assert client.data == b""
        assert client.lost_at is not None
        assert s.sessions[0].is_closed

    run(story)


def test_a_killed_server_resets_and_one_without_power_is_silent():
    """Without power the client hears nothing until the machine is back, which knows no such connection."""

    async def story(s: Story) -> None:
        client = await s.talking()
        s.sim.kill("n1")
        await asyncio.sleep(1.0)
        assert client.lost_at is not None

        await s.boot()
        client = s.connect()
        client.stream.send(frame(2))
        await asyncio.sleep(1.0)
        s.sim.power_cut("n1")
        client.stream.send(frame(3))
        await asyncio.sleep(5.0)
        assert client.lost_at is None
        await s.boot()
        await asyncio.sleep(1.0)
        assert client.lost_at is not None
        assert [len(each.frames) for each in s.sessions] == [1, 1]

    run(story)


def test_a_reset_that_a_cut_link_lost_comes_again_with_the_next_bytes():
    """A client that only sends must not believe for ever in a connection that the server has lost."""

    async def story(s: Story) -> None:
        client = await s.talking()
        s.sim.network.cut("n1", "k1")
        s.sim.kill("n1")
        await asyncio.sleep(1.0)
        s.sim.network.heal()
        await asyncio.sleep(1.0)
        assert client.lost_at is None
        client.stream.send(frame(2))
        await asyncio.sleep(1.0)
        assert client.lost_at is not None

    run(story)


def test_a_paused_server_reads_nothing_until_it_is_resumed():
    """SIGSTOP: bytes arrive at its machine, and wait."""

    async def story(s: Story) -> None:
        client = await s.talking()
        s.sim.pause("n1")
        client.stream.send(frame(2))
        await asyncio.sleep(5.0)
        assert len(s.sessions[0].frames) == 1
        s.sim.resume("n1")
        await asyncio.sleep(1.0)
        assert client.data == frame(1) + frame(2)

    run(story)


def test_nobody_listens_and_a_closing_server_closes_its_connections():
    """Both are a lost connection for the client."""

    async def story(s: Story) -> None:
        refused = s.connect()
        refused.stream.send(frame(1))
        await asyncio.sleep(1.0)
        assert refused.lost_at is not None
        client = await s.talking()
        await s.sim.spawn("n1", s.server.close())
        await asyncio.sleep(1.0)
        assert (client.data, client.lost_at is not None) == (frame(1), True)

    run(story)


def test_faults_of_single_messages_strike_requests_inside_a_stream():
    """A late answer is late, a reset one breaks the connection; the names are those of faults on links."""

    async def story(s: Story) -> None:
        await s.boot()
        client = s.connect()
        rule = matching(Deliver(3.0), api="Produce", kind="answer", source="n1", target="k1")
        undo = s.sim.network.rule(rule, of_requests=True)
        client.stream.send(frame(1))
        await asyncio.sleep(2.0)
        assert (len(s.sessions[0].frames), client.data) == (1, b"")
        await asyncio.sleep(2.0)
        assert client.data == frame(1)
        undo()
        s.sim.network.rule(matching(Reset(), api="Produce", kind="request"), of_requests=True)
        client.stream.send(frame(2))
        await asyncio.sleep(2.0)
        assert client.lost_at is not None

    run(story)


def test_a_fault_names_all_clients_or_one():
    """``client>n1`` is whoever is no broker; ``client:k1>n1`` is that client alone."""
    assert with_any_client("client:k1>n1") == ("client>n1", "k1")
    assert with_any_client("n1>client") == ("n1>client", "")
    brokers = frozenset({"n1", "n2"})
    of_all = Matching("Produce", [("client", "n1")], brokers)
    of_one = Matching("Produce", [("k1", "n1")], brokers)
    sent = [Message(1, "request", source, "n1", "Produce", b"") for source in ("k1", "k2", "n2")]
    assert [of_all(each) for each in sent] == [True, True, False]
    assert [of_one(each) for each in sent] == [True, False, False]
