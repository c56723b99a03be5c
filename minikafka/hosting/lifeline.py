"""The socket between a broker's process and the program that started it.

Its end tells the child that the parent is gone, however that ended: the child stops. Over it, a child can also ask for
a broker of the same cluster to be started: tests kill brokers from the console, and a process that has ended cannot
start itself. One line of JSON each way: ``{"start": 3}``, then ``{"started": 3}`` or ``{"error": "why not"}``.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from minikafka.errors import BrokerNotAvailable, WorldError
from minikafka.types import NodeId

StartBroker: TypeAlias = Callable[[NodeId], Awaitable[None]]
"""Start a broker that has ended, and return when it is ready. Raises WorldError."""


class Parent:
    """The child's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self._one_request = asyncio.Lock()

    @classmethod
    async def at(cls, descriptor: int) -> Parent:
        """The parent whose socket has this number in the child."""
        return cls(*await asyncio.open_unix_connection(sock=socket.socket(fileno=descriptor)))

    async def until_gone(self) -> None:
        """Return when the parent has ended."""
        while line := await self._reader.readline():
            self._answers.put_nowait(line)
        self._answers.put_nowait(b"")

    async def start(self, node: NodeId) -> None:
        """Let the parent start a broker. Raises BrokerNotAvailable with the reason if it does not."""
        async with self._one_request:
            self._writer.write(json.dumps({"start": node}).encode() + b"\n")
            line = await self._answers.get()
        answer = json.loads(line) if line else {"error": "the program that started this broker has ended"}
        if "error" in answer:
            raise BrokerNotAvailable(f"broker {node} was not started: {answer['error']}")


async def serve_child(ours: socket.socket, start: StartBroker) -> None:
    """The parent's end: do what a child asks for, until the child ends. Closes the socket."""
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    try:
        while line := await reader.readline():
            node = json.loads(line)["start"]
            try:
                await start(node)
            except WorldError as error:
                answer: dict[str, object] = {"error": str(error)}
            else:
                answer = {"started": node}
            writer.write(json.dumps(answer).encode() + b"\n")
    finally:
        writer.close()
