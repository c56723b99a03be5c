"""A broker's process: settings before its first allocation, and the socket to the program that started it.

The socket's end tells the child that the parent is gone, however that ended: the child stops. Over it, a child can also
ask for a broker of the same cluster to be started: tests kill brokers from the console, and a process that has ended
cannot start itself. One line of JSON each way: ``{"start": 3}``, then ``{"started": 3}`` or ``{"error": "why not"}``.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from minikafka.errors import BrokerNotAvailable, ProtocolError, WorldError
from minikafka.types import NodeId

_MARK = "MINIKAFKA_MALLOC_SET"

GIB = 1 << 30


COLLECT_AFTER = (2_000, 10, 100)
"""Net allocations before a young collection; young ones before a middle one; middle ones before a full one."""


def calm_collector() -> None:
    """Keep garbage collection from holding the event loop. Call it when the modules are loaded that every broker uses.

    What exists now is kept out of all later collections: modules and classes live as long as the process. A full
    collection looks at every object that was made since, 75 ms with 5,000 connections, and Python's own settings begin
    one whenever a quarter has been added. Here it takes two million objects; what ends in the meantime is freed at
    once, because it is in no cycle.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def malloc_environment() -> dict[str, str]:
    """Environment for glibc's allocator that keeps large buffers on its heap.

    By default a one-megabyte body is mapped, faulted in page by page and unmapped again for every request, which costs
    more than copying it (measured: 674 to 1534 MB/s on a bare server).
    """
    return {
        "MALLOC_MMAP_THRESHOLD_": str(GIB),
        "MALLOC_TRIM_THRESHOLD_": str(GIB),
        "MALLOC_TOP_PAD_": str(16 << 20),
    }


def broker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` for a broker's child process; what the caller set for the allocator stays."""
    return {**malloc_environment(), **environment, _MARK: "1"}


def exec_with_malloc_environment(arguments: Sequence[str]) -> None:
    """Replace this process by the same command with :func:`malloc_environment`, once; the pid stays.

    ``arguments`` follow the interpreter: ``["-m", "minikafka", "serve", ...]``. Returns when it was done before.
    """
    if os.environ.get(_MARK) == "1":
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *arguments], broker_environment(os.environ))  # noqa: S606


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
        # A parent that has left a request unread resets the connection.
        with suppress(ConnectionError):
            while line := await self._reader.readline():
                self._answers.put_nowait(line)
        self._answers.put_nowait(b"")

    async def start(self, node: NodeId) -> None:
        """Let the parent start a broker. Raises BrokerNotAvailable with the reason if it does not."""
        # Shielded: a caller that gives up must not leave its answer to the next one.
        line = await asyncio.shield(asyncio.ensure_future(self._exchange(node)))
        answer = json.loads(line) if line else {"error": "the program that started this broker has ended"}
        if "error" in answer:
            raise BrokerNotAvailable(f"broker {node} was not started: {answer['error']}")

    async def _exchange(self, node: NodeId) -> bytes:
        async with self._one_request:
            self._writer.write(json.dumps({"start": node}).encode() + b"\n")
            line = await self._answers.get()
            if not line:
                self._answers.put_nowait(line)  # the parent is gone for every request
            return line


async def serve_child(ours: socket.socket, start: StartBroker) -> None:
    """The parent's end: do what a child asks for, until the child ends. Closes the socket."""
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    try:
        # A child that is killed before it has read an answer resets the connection.
        with suppress(ConnectionError):
            while line := await reader.readline():
                node = json.loads(line)["start"]
                try:
                    await start(node)
                except (WorldError, ProtocolError, OSError) as error:  # OSError: its folder is gone, say
                    answer: dict[str, object] = {"error": str(error)}
                else:
                    answer = {"started": node}
                writer.write(json.dumps(answer).encode() + b"\n")
    finally:
        writer.close()
