"""One connection of Kafka's protocol: how its frames reach the session."""

from __future__ import annotations

import asyncio
import struct
from itertools import pairwise
from typing import Any

from minikafka.world.kafka_connection import FRAMES_PER_TURN, KafkaConnection
from minikafka.world.unread_responses import UnreadResponses


class Transport(asyncio.Transport):
    """Remembers whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True

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

    def __init__(self) -> None:
        self.unread = UnreadResponses(1 << 20, self.idle_timeout_s)
        self.received_frames: list[bytes] = []
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

    kafka_logged_in = kafka_closed = kafka_answered = release_frames = wait_for_room = room = malformed = kafka_opened

    def admit_frame(self, _owner: str, _size: int) -> bool:
        return True

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
