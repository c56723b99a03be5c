"""A broker with a listener for brokers and one for clients, for tests of what the second demands."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from minikafka.config import parse_broker
from minikafka.hosting.local_broker import LocalBroker


def two_free_ports() -> tuple[int, int]:
    """Ports of 127.0.0.1 that nothing listens on."""
    with socket.socket() as one, socket.socket() as two:
        for each in (one, two):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


@asynccontextmanager
async def running(settings: Mapping[str, str]) -> AsyncIterator[None]:
    """A broker with these settings that is ready, and is stopped at the end."""
    node = LocalBroker(parse_broker(settings).config)
    await node.start()
    try:
        await node.wait_ready(120)
        yield
    finally:
        await node.stop()
