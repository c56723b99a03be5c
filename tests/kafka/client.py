"""A small client of Kafka's protocol over the product's codec: one connection, any API in any version."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Self

from minikafka.wire.kafka.codec import Message, decode, encode
from minikafka.wire.kafka.schema import Field, api_named


class RawClient:
    """Sends requests as they are given. ``await RawClient.at(address)``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._sent = 0

    @classmethod
    async def at(cls, host: str, port: int) -> Self:
        return cls(*await asyncio.open_connection(host, port))

    def request(self, name: str, version: int, message: Message, client: bytes = b"raw") -> bytes:
        """A whole frame."""
        self._sent += 1
        api = api_named(name)
        head = struct.pack(">hhih", api.key, version, self._sent, len(client)) + client
        head += b"\0" * api.is_flexible(version)
        body = head + b"".join(encode(name, "request", version, fitted(api.request, message)))
        return struct.pack(">i", len(body)) + body

    async def answer(self, name: str, version: int) -> Message:
        """The next answer, which must be decoded to its last byte."""
        async with asyncio.timeout(60):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            body = await self.reader.readexactly(size)
        is_flexible = api_named(name).is_flexible(version) and name != "ApiVersions"
        data = memoryview(body)
        message = decode(name, "response", version, data, 5 if is_flexible else 4)
        again = b"".join(encode(name, "response", version, wrapped(message)))
        assert bytes(data[5 if is_flexible else 4 :]) == again, "bytes were left over, or are written otherwise"
        return message

    async def call(self, name: str, version: int, message: Message) -> Message:
        self.writer.write(self.request(name, version, message))
        return await self.answer(name, version)

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


def fitted(fields: tuple[Field, ...], message: Message) -> Message:
    """The request with defaults for what it leaves out."""
    whole: Message = {}
    for field in fields:
        value = message.get(field.name, field.default)
        if field.kind == "struct" and value:
            value = [fitted(field.fields, each) for each in value] if field.is_array else fitted(field.fields, value)
        whole[field.name] = value
    return whole


def wrapped(message: Any) -> Any:
    """A decoded message as it is encoded: records as a sequence of buffers."""
    if isinstance(message, dict):
        return {name: [value] if isinstance(value, memoryview) else wrapped(value) for name, value in message.items()}
    return [wrapped(each) for each in message] if isinstance(message, list) else message


def errors_in(message: Any) -> set[int]:
    """Every error code of an answer."""
    if isinstance(message, dict):
        own = {value for name, value in message.items() if name in ("error_code", "partition_error_code")}
        return own.union(*(errors_in(value) for value in message.values()))
    if isinstance(message, list):
        return set().union(*map(errors_in, message))
    return set()
