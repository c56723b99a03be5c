"""Standard input, line by line, inside an event loop.

A pipe, a file and a terminal need different ways to be read without blocking; a thread can read them all. It is a
daemon: one that waits for a terminal must not keep the process alive.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable

CHUNK_SIZE = 1 << 18
# Chunks read ahead: enough to keep a producer busy, little enough that memory does not grow with the input.
CHUNKS_AHEAD = 4


async def lines_of(descriptor: int) -> AsyncIterator[list[bytes]]:
    """The lines of a descriptor without their line ends, as many at a time as were read; the last may lack its end.

    OSError when reading fails.
    """
    loop = asyncio.get_running_loop()
    chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(CHUNKS_AHEAD)
    thread = threading.Thread(
        target=_read, args=(descriptor, room, lambda chunk: loop.call_soon_threadsafe(chunks.put_nowait, chunk))
    )
    thread.daemon = True
    thread.start()
    rest = b""
    while True:
        chunk = await chunks.get()
        room.release()
        if isinstance(chunk, OSError):
            raise chunk
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def _read(descriptor: int, room: threading.Semaphore, give: Callable[[bytes | OSError], object]) -> None:
    try:
        while True:
            room.acquire()
            chunk = os.read(descriptor, CHUNK_SIZE)
            give(chunk)
            if not chunk:
                return
    except OSError as error:
        give(error)
    except RuntimeError:
        return  # the loop was closed: nobody wants the rest
