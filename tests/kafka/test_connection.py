"""The server's end of a connection that speaks Kafka's protocol: when answers are written."""

from __future__ import annotations

import struct
from typing import Any

from minikafka.world.kafka_connection import KafkaConnection
from minikafka.world.outgoing import JOINED_SIZE
from minikafka.world.unread_responses import UnreadResponses


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def get_extra_info(self, _name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return True


class Echo:
    """A session that answers every frame with itself, at once."""

    is_busy = False

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection

    def received(self, frame: memoryview) -> None:
        self._connection.send([struct.pack(">i", len(frame)), frame])

    def closed(self) -> None:
        """Nothing is under way."""


class Host:
    """A server of one connection; :meth:`turn` ends a turn of the loop."""

    first_request_timeout_s = idle_timeout_s = frame_timeout_s = 60.0
    request_max_bytes = 1 << 20

    def __init__(self, *, has_many_frames: bool = True) -> None:
        self.has_many_frames = has_many_frames
        self.unread = UnreadResponses(1 << 20, self.idle_timeout_s)
        self.to_flush: list[KafkaConnection] = []
        self.transport = Transport()
        self.connection = KafkaConnection(self)
        self.connection.connection_made(self.transport)

    def flush_soon(self, connection: KafkaConnection) -> None:
        self.to_flush.append(connection)

    def turn(self) -> None:
        for connection in self.to_flush:
            connection.flush()
        self.to_flush.clear()

    def open_session(self, connection: KafkaConnection) -> Any:
        return Echo(connection)

    def admit_frame(self, _owner: str, _size: int) -> bool:
        return True

    def release_frames(self, owner: str, size: int) -> None: ...

    def wait_for_room(self, connection: KafkaConnection) -> None: ...

    def kafka_opened(self, connection: KafkaConnection, transport: Any) -> None: ...

    def kafka_logged_in(self, connection: KafkaConnection) -> None: ...

    def kafka_closed(self, connection: KafkaConnection) -> None: ...

    def kafka_answered(self, connection: KafkaConnection) -> None: ...


def frame(size: int, fill: bytes) -> bytes:
    return struct.pack(">i", size) + fill * size


async def test_answers_of_several_reads_in_one_turn_leave_in_one_write():
    """The connection asks for one flush a turn, and the next turn for another."""
    host = Host()
    host.connection.take_over(frame(20, b"a") + frame(30, b"b"))
    host.connection.take_over(frame(10, b"c"))
    assert host.to_flush == [host.connection]
    assert host.transport.written == []
    host.turn()
    assert host.transport.written == [frame(20, b"a") + frame(30, b"b") + frame(10, b"c")]
    host.connection.take_over(frame(10, b"d"))
    host.turn()
    assert host.transport.written[1:] == [frame(10, b"d")]
    host.connection.connection_lost(None)


async def test_answers_of_one_read_leave_at_once_where_few_connections_are_open():
    """In one write; an answer that comes later waits for the end of its turn."""
    host = Host(has_many_frames=False)
    host.connection.take_over(frame(20, b"a") + frame(30, b"b"))
    assert host.to_flush == []
    assert host.transport.written == [frame(20, b"a") + frame(30, b"b")]
    host.connection.send([frame(10, b"c")])
    host.connection.take_over(frame(10, b"d"))
    assert host.to_flush == [host.connection]
    assert host.transport.written[1:] == []
    host.turn()
    assert host.transport.written[1:] == [frame(10, b"c") + frame(10, b"d")]
    host.connection.connection_lost(None)


async def test_large_answers_are_not_copied_into_the_joined_write():
    """Small buffers on both sides of a large one keep their places."""
    host = Host()
    large = JOINED_SIZE + 1
    host.connection.take_over(frame(20, b"a") + frame(large, b"b") + frame(10, b"c"))
    host.turn()
    joined = [frame(20, b"a") + struct.pack(">i", large), b"b" * large, frame(10, b"c")]
    assert host.transport.written == joined
    host.connection.connection_lost(None)
