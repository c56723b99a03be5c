"""Children that are forked from a process with brokers (multiprocessing's ``fork``): what they must not keep.

A child has copies of all descriptors of its parent. With them the port of a broker that was killed would still accept
connections, its open connections would not end, and its data directory and port would stay locked, for as long as the
child lives. The brokers' thread is not copied, so nothing in the child uses them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

DESCRIPTORS = Path("/proc/self/fd")


def give_up(ports: Collection[int], folder: Path) -> None:
    """Give up this process's copies of brokers' descriptors: sockets bound to one of ``ports``, files in ``folder``.

    Each becomes a copy of /dev/null: objects that still have its number then close that, not a newer file.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        for entry in list(DESCRIPTORS.iterdir()):
            with suppress(OSError):  # the one that listed them is closed by now
                if entry.readlink().is_relative_to(folder) or _port_of(int(entry.name)) in ports:
                    os.dup2(null, int(entry.name), inheritable=False)
    finally:
        os.close(null)


def _port_of(descriptor: int) -> int | None:
    """Return the local port of a TCP socket; None for anything else."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        name = found.getsockname()
    finally:
        found.detach()
    return int(name[1]) if found.family in (socket.AF_INET, socket.AF_INET6) else None
