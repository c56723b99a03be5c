"""A broker with several listeners: each serves everything, and tells its clients addresses that they can reach."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from minikafka import Consumer, Producer
from minikafka.config import parse_broker
from minikafka.hosting.local_broker import LocalBroker


@pytest.fixture
def two_ports() -> Iterator[tuple[int, int]]:
    """Ports of loopback that nobody else takes meanwhile."""
    with ExitStack() as held:
        ports = []
        for _ in range(2):
            taken = held.enter_context(socket.socket())
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", 0))
            ports.append(taken.getsockname()[1])
        yield ports[0], ports[1]


async def test_a_client_of_each_listener_gets_through(two_ports: tuple[int, int], tmp_path: Path):
    """HTTP-CLI-CONVENTIONS 4.3: the trap of advertised listeners. Brokers are told a name that does not exist here, as
    in a container's network; a client of the other listener never hears of it, in groups neither.
    """
    inside, outside = two_ports
    config = parse_broker(
        {
            "listeners": f"PLAINTEXT://127.0.0.1:{inside},PLAINTEXT_HOST://127.0.0.1:{outside}",
            "advertised.listeners": f"PLAINTEXT://kafka-1.invalid:{inside},PLAINTEXT_HOST://localhost:{outside}",
            "controller.quorum.voters": f"1@127.0.0.1:{inside}",
            "log.dirs": str(tmp_path),
            "mk.log.level": "error",
            "group.initial.rebalance.delay.ms": "0",
        }
    ).config
    node = LocalBroker(config)
    await node.start()
    try:
        # It is alone: it need not find itself by the name that it advertises.
        await node.wait_ready(120)
        assert brokers_of(node) == {"": ("kafka-1.invalid", inside), "PLAINTEXT_HOST": ("localhost", outside)}
        async with Producer(bootstrap_servers=f"127.0.0.1:{outside}") as producer:
            await producer.send_and_wait("orders", b"tea")
        async with Consumer(
            "orders", bootstrap_servers=f"127.0.0.1:{outside}", group_id="g", auto_offset_reset="earliest"
        ) as consumer:
            assert (await consumer.getone()).value == b"tea"
        assert node.address.port == inside
    finally:
        await node.stop()


def brokers_of(node: LocalBroker) -> dict[str, tuple[str, int]]:
    """Where the broker's own image says that it is, by listener."""
    (broker,) = node.broker.image.brokers.values()
    return {"": broker.address, **{each.name: each.address for each in broker.listeners}}
