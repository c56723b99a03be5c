"""Kafka's binary protocol, as far as the benchmark speaks it: frames, Produce and Fetch by hand, the rest by aiokafka.

The connection is made as the one of our own raw client (world/http_client.py): one request at a time on each, one write
and one future a call, a large answer read into its place. Four in flight are four connections, so that Kafka, which
takes the requests of one connection one after the other, may work on them at the same time.
"""

from __future__ import annotations

import asyncio
import struct
from typing import NamedTuple, cast

from aiokafka.protocol.api import RequestHeader_v1, RequestStruct

from minikafka.ports import Buffer, Buffers
from minikafka.types import Address

PRODUCE, FETCH = 0, 1
PRODUCE_VERSION, FETCH_VERSION = 8, 11
CLIENT_ID = b"bench"
TIMEOUT_MS = 30_000
READ_SIZE = 16 * 1024
JOINED_SIZE = 4 * 1024
FRAME = struct.Struct(">i")
HEADER = struct.Struct(">hhih")
"""API key, version, correlation id, length of the client id."""
CORRELATION = 0
"""One request at a time on a connection: there is nothing to tell apart."""


class BrokerError(Exception):
    """An error code in an answer."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"Kafka answered {what} with error {code}")
        self.code = code


class Lost(Exception):
    """The connection ended."""


class Produced(NamedTuple):
    """What a Produce answer told."""

    base_offset: int


# ---- requests --------------------------------------------------------------------------------------------------------


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def _head(key: int, version: int) -> bytes:
    return HEADER.pack(key, version, CORRELATION, len(CLIENT_ID)) + CLIENT_ID


def produce_request(topic: str, partition: int, batch: bytes, acks: int) -> tuple[bytes, bytes]:
    """Version 8, one batch for one partition: what stands before the batch, frame length included, and the batch."""
    body = b"".join(
        (
            _head(PRODUCE, PRODUCE_VERSION),
            struct.pack(">hhi", -1, acks, TIMEOUT_MS),  # no transactional id
            struct.pack(">i", 1),
            _text(topic),
            struct.pack(">iii", 1, partition, len(batch)),
        )
    )
    return FRAME.pack(len(body) + len(batch)) + body, batch


def fetch_request(topic: str, partition: int, offset: int, size: int) -> bytes:
    """Version 11, one partition, no session, no waiting; with its frame length."""
    body = b"".join(
        (
            _head(FETCH, FETCH_VERSION),
            # consumer, max wait, min bytes, max bytes, isolation level, session id and epoch
            struct.pack(">iiiibii", -1, 500, 1, size, 0, 0, -1),
            struct.pack(">i", 1),
            _text(topic),
            # one partition: index, leader epoch unknown, offset, log start, max bytes; nothing forgotten; no rack
            struct.pack(">iiiqqi", 1, partition, -1, offset, -1, size),
            struct.pack(">ih", 0, 0),
        )
    )
    return FRAME.pack(len(body)) + body


def struct_request(request: RequestStruct) -> bytes:
    """Any request of aiokafka's protocol classes, with its frame length."""
    body = RequestHeader_v1(request, CORRELATION, CLIENT_ID.decode()).encode() + request.encode()
    return FRAME.pack(len(body)) + body


# ---- answers ---------------------------------------------------------------------------------------------------------


def _skip_text(body: Buffer, at: int) -> int:
    return at + 2 + max(0, struct.unpack_from(">h", body, at)[0])


def produce_answer(body: Buffer) -> Produced:
    """Of :func:`produce_request`, without its frame length. BrokerError for an error code."""
    at = _skip_text(body, 8)  # correlation id, one topic
    _, _, code, base_offset = struct.unpack_from(">iihq", body, at)
    if code:
        raise BrokerError(code, "Produce")
    return Produced(base_offset)


def fetch_answer(body: Buffer) -> memoryview:
    """The records of :func:`fetch_request`'s one partition; they are a view. BrokerError for an error code."""
    code = struct.unpack_from(">h", body, 8)[0]  # after correlation id and throttle time
    if code:
        raise BrokerError(code, "Fetch")
    at = _skip_text(body, 18)  # session id, one topic
    _, _, code = struct.unpack_from(">iih", body, at)
    if code:
        raise BrokerError(code, "Fetch of a partition")
    at += 10 + 24  # high watermark, last stable offset, log start offset
    aborted = struct.unpack_from(">i", body, at)[0]
    at += 4 + 16 * max(0, aborted) + 4  # preferred read replica
    size = struct.unpack_from(">i", body, at)[0]
    return memoryview(body)[at + 4 : at + 4 + max(0, size)]


# ---- connections -----------------------------------------------------------------------------------------------------


class _Connection(asyncio.BufferedProtocol):
    """One connection to one broker."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._head = memoryview(bytearray(READ_SIZE))
        self._head_size = 0
        self._body: bytearray | None = None
        self._left: memoryview = self._head
        self._answer: asyncio.Future[bytes | bytearray] | None = None

    async def exchange(self, buffers: Buffers) -> bytes | bytearray:
        """Send a frame and await the answer's, without its length. Lost, OSError."""
        if self._transport is None:
            raise Lost("the connection was closed")
        self._answer = asyncio.get_running_loop().create_future()
        if sum(map(len, buffers)) < JOINED_SIZE:
            self._transport.write(b"".join(buffers))
        else:
            for buffer in buffers:
                self._transport.write(buffer)
        return await self._answer

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(Lost(repr(exc)))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._left if self._body is not None else self._head[self._head_size :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._body is not None:
            self._left = self._left[nbytes:]
            if not self._left:
                self._done(self._body)
            return
        self._head_size += nbytes
        if self._head_size < FRAME.size:
            return
        size = FRAME.unpack_from(self._head)[0]
        here = self._head_size - FRAME.size
        if here == size:
            self._done(bytes(self._head[FRAME.size : self._head_size]))
        else:
            self._body = bytearray(size)
            self._body[:here] = self._head[FRAME.size : self._head_size]
            self._left = memoryview(self._body)[here:]

    def _done(self, body: bytes | bytearray) -> None:
        answer, self._answer = self._answer, None
        self._head_size, self._body = 0, None
        if answer is not None and not answer.done():
            answer.set_result(body)


class Connections:
    """Connections to any number of brokers, kept for their next call, until :meth:`close`."""

    def __init__(self) -> None:
        self._idle: dict[Address, list[_Connection]] = {}
        self._all: list[_Connection] = []

    async def call(self, peer: Address, *buffers: bytes) -> bytes | bytearray:
        """One exchange on a connection that nobody else uses meanwhile. Lost, OSError."""
        idle = self._idle.setdefault(peer, [])
        connection = idle.pop() if idle else await self._connect(peer)
        try:
            answer = await connection.exchange(buffers)
        except BaseException:
            connection.abort()  # a late answer must not be taken for the next call's
            raise
        idle.append(connection)
        return answer

    async def _connect(self, peer: Address) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, peer.host, peer.port)
        self._all.append(connection)
        return connection

    def close(self) -> None:
        """Abort them all."""
        for connection in self._all:
            connection.abort()
