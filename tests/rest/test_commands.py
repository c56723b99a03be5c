"""Requests of commands to /v1 of several brokers, of which some do not answer."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from minikafka.cli.v1 import V1
from minikafka.errors import OutcomeUnknown


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_change_that_may_have_happened_is_not_sent_to_another_broker(method: str):
    """A stopped broker takes the request and does not answer: the next one would set a second fault."""
    with socket.create_server(("127.0.0.1", 0)) as stopped, socket.create_server(("127.0.0.1", 0)) as other:
        bootstrap = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in (stopped, other))

        async def asked() -> None:
            async with V1(bootstrap, timeout_s=0.3) as http:
                await http.anybody(method, "/v1/faults", {})

        with pytest.raises(OutcomeUnknown, match=f"127.0.0.1:{stopped.getsockname()[1]} has not answered {method}"):
            asyncio.run(asked())
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_broker_that_refuses_connections_is_passed_over(method: str):
    """Nothing was sent to it, so that the next broker gets the request, whatever it does."""

    async def asked() -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"faults":1}')
            await writer.drain()
            writer.close()

        with socket.create_server(("127.0.0.1", 0)) as closed:
            refusing = closed.getsockname()[1]
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as living:
            bootstrap = f"127.0.0.1:{refusing},127.0.0.1:{living.sockets[0].getsockname()[1]}"
            async with V1(bootstrap, timeout_s=10.0) as http:
                return await http.anybody(method, "/v1/faults")

    assert asyncio.run(asked()) == {"faults": 1}
