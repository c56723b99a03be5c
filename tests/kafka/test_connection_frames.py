"""One connection of Kafka's protocol: how its frames reach the session."""

from __future__ import annotations

import asyncio
import struct
from itertools import pairwise
from typing import Any

from minikafka.world.kafka_connection import FRAMES_PER_TURN, KafkaConnection
from minikafka.world.unread_responses import UnreadResponses
from tests.clients.fake_cluster import play


class Transport(asyncio.Transport):
    """Remembers whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True
        self.aborted_at: float | None = None

    def abort(self) -> None:
        self.aborted_at = asyncio.get_running_loop().time()

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return self.reads

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        pass


class Host:
    """A server with room for everything; it is its only session, too."""

    first_request_timeout_s = idle_timeout_s = frame_timeout_s = 60.0
    request_max_bytes = 1 << 20
    has_many_frames = False

    def __init__(self) -> None:
        self.unread = UnreadResponses(1 << 20, self.idle_timeout_s)
        self.received_frames: list[bytes] = []
        self.released: list[int] = []
        self.is_busy = False
        self.is_gone = False
        self.pauses_after: int | None = None
        self.connection = KafkaConnection(self)
        self.transport = Transport()
        self.connection.connection_made(self.transport)

    def open_session(self, _: KafkaConnection) -> Any:
        return self

    def kafka_opened(self, *_: Any) -> None:
        pass

    kafka_logged_in = kafka_closed = kafka_answered = wait_for_room = room = malformed = kafka_opened

    def admit_frame(self, _owner: str, _size: int) -> bool:
        return True

    def release_frames(self, _owner: str, size: int) -> None:
        self.released.append(size)

    def received(self, frame: memoryview) -> None:
        self.received_frames.append(bytes(frame))
        if len(self.received_frames) == self.pauses_after and not self.is_gone:
            self.connection.pause()

    def closed(self) -> None:
        self.is_gone = True


def frames(count: int) -> tuple[list[bytes], bytes]:
    bodies = [b"%010d" % number for number in range(count)]
    return bodies, b"".join(struct.pack(">i", len(each)) + each for each in bodies)


async def test_many_frames_that_came_together_are_handled_in_several_turns():
    """Hundreds of small requests in one read held the loop for more than 100 ms; nothing is read meanwhile."""
    host = Host()
    bodies, data = frames(5 * FRAMES_PER_TURN - 3)
    host.connection.take_over(data)
    steps = [len(host.received_frames)]
    assert not host.transport.reads
    assert host.connection.is_busy
    while host.connection.is_busy:
        await asyncio.sleep(0)
        steps.append(len(host.received_frames))
    assert [after - before for before, after in pairwise(steps)] == [FRAMES_PER_TURN] * 3 + [13]
    assert host.received_frames == bodies
    assert host.transport.reads
    host.connection.connection_lost(None)


async def test_session_that_is_full_gets_no_further_frames_until_it_resumes():
    """What has arrived already waits in the connection, in order."""
    host = Host()
    host.pauses_after = 3
    bodies, data = frames(FRAMES_PER_TURN)
    host.connection.take_over(data)
    await asyncio.sleep(0)
    assert host.received_frames == bodies[:3]
    assert not host.transport.reads
    host.connection.resume()
    await asyncio.sleep(0)
    assert host.received_frames == bodies
    assert host.transport.reads
    host.connection.connection_lost(None)


async def test_frames_that_came_whole_are_handled_after_their_client_left():
    """Also those that the session had no room for: a producer with acks=0 may leave as soon as it has sent."""
    host = Host()
    host.pauses_after = 3
    bodies, data = frames(2 * FRAMES_PER_TURN)
    host.connection.take_over(data)
    host.connection.connection_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert host.received_frames == bodies
    assert not host.connection.is_busy


async def test_frames_that_wait_are_dropped_when_the_server_closes():
    """As frames that arrive then."""
    host = Host()
    bodies, data = frames(2 * FRAMES_PER_TURN)
    host.connection.take_over(data)
    host.connection.finish()
    await asyncio.sleep(0)
    assert host.received_frames == bodies[:FRAMES_PER_TURN]
    assert not host.connection.is_busy
    host.connection.connection_lost(None)


def with_large_frames() -> Host:
    """The session handles a frame of 20,000 bytes, and a quarter of one of 40,000 has come; both have their room."""
    host = Host()
    host.is_busy = True
    first, second = (struct.pack(">i", size) + bytes(size) for size in (20_000, 40_000))
    host.connection.take_over(first[:10_000])
    host.connection.take_over(first[10_000:] + second[:10_000])
    assert [len(each) for each in host.received_frames] == [20_000]
    return host


async def test_a_frame_that_will_never_be_whole_gives_its_room_back():
    """One that is handled after its client has left keeps its own until then."""
    host = with_large_frames()
    host.connection.connection_lost(None)
    assert host.released == [40_000]
    host.connection.handled(20_000)
    assert host.released == [40_000, 20_000]


async def test_a_small_frame_gives_no_room_back():
    """It had none: what is released is that of the large frame that is being received."""
    host = with_large_frames()
    host.connection.handled(20_000)
    host.connection.handled(100)
    assert host.released == [20_000]
    host.connection.connection_lost(None)
    assert host.released == [20_000, 40_000]


def test_a_connection_without_a_request_is_closed_sooner_than_an_idle_one():
    """Also one that has sent a part of its first frame. A client that is throttled cannot show that it lives."""

    class Slow(Host):
        first_request_timeout_s = 10.0

    async def closed_after(sent: bytes, *, pause_s: float = 0.0) -> float:
        host, begin = Slow(), asyncio.get_running_loop().time()
        host.connection.take_over(sent)
        if pause_s:
            host.connection.pause()
            await asyncio.sleep(pause_s)
            assert host.transport.aborted_at is None
            host.connection.resume()
        while host.transport.aborted_at is None:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(1.0)
        host.connection.connection_lost(None)
        return host.transport.aborted_at - begin

    async def story() -> None:
        _, whole = frames(1)
        assert await closed_after(b"") == await closed_after(whole[:6]) == 10.0
        assert await closed_after(whole) == 60.0
        assert await closed_after(whole, pause_s=100.0) <= 110.0

    play(story)
