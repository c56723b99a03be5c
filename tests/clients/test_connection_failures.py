"""The log lines and the final error of a client whose brokers do not answer."""

from __future__ import annotations

import asyncio
import logging
import socket
from itertools import pairwise

import pytest

from minikafka import AdminClient, Consumer, Producer
from minikafka.client.metadata import ANOTHER_PROGRAM_S, LOG_INTERVAL_MAX_S, LOG_INTERVAL_S, ConnectionFailures
from minikafka.errors import NetworkException, NotABroker, OutcomeUnknown, Unreachable
from minikafka.types import Address

BROKER = Address("127.0.0.1", 9092)
OTHER = Address("localhost", 9093)


def refused(peer: Address) -> Unreachable:
    return Unreachable(f"Metadata to {peer}: Connection refused")


def test_failures_are_logged_at_once_and_then_more_and_more_rarely():
    """Each address has its own pause, and starts over after it has answered."""
    failures = ConnectionFailures()
    first = f"cannot connect to {BROKER}: Connection refused (1 attempt); the client retries"
    assert failures.failed(BROKER, refused(BROKER), 10.0) == first
    assert failures.failed(BROKER, refused(BROKER), 9.9 + LOG_INTERVAL_S) is None
    assert failures.failed(OTHER, refused(OTHER), 9.9 + LOG_INTERVAL_S) is not None
    later = failures.failed(BROKER, refused(BROKER), 10.0 + LOG_INTERVAL_S)
    assert later == f"cannot connect to {BROKER}: Connection refused (3 attempts in 5.0 s); the client retries"
    failures.answered(BROKER)
    assert failures.failed(BROKER, refused(BROKER), 10.1 + LOG_INTERVAL_S) == first


def test_a_broker_that_is_down_for_an_hour_does_not_fill_the_log():
    """It had a line every five seconds, 720 an hour in each client."""
    failures = ConnectionFailures()
    lines = [at for at in range(3_600) if failures.failed(BROKER, refused(BROKER), float(at)) is not None]
    assert lines[:6] == [0, 5, 15, 35, 75, 135]
    assert {later - at for at, later in pairwise(lines[4:])} == {LOG_INTERVAL_MAX_S}
    failures.answered(BROKER)
    assert [at for at in range(3_600, 3_620) if failures.failed(BROKER, refused(BROKER), float(at))] == [
        3_600,
        3_605,
        3_615,
    ]


def test_summary_names_every_address_with_its_last_reason_and_what_to_do():
    """An address that has answered since is not in it."""
    failures = ConnectionFailures()
    assert failures.summary(0.0) == ""
    failures.failed(BROKER, refused(BROKER), 1.0)
    failures.failed(BROKER, OutcomeUnknown(f"Metadata to {BROKER}: HTTP 404: b'no'"), 2.0)
    failures.failed(OTHER, refused(OTHER), 3.0)
    assert failures.summary(4.0) == (
        f"{BROKER}: HTTP 404: b'no' (2 attempts in 3.0 s); {OTHER}: Connection refused (1 attempt); "
        "check that the broker runs, and that the port is a minikafka broker's; "
        "check bootstrap_servers, and that a broker runs there"
    )
    failures.answered(BROKER)
    assert failures.summary(4.0).startswith(f"{OTHER}: Connection refused")


@pytest.mark.parametrize("client", [Producer, Consumer, AdminClient])
def test_clients_log_a_refused_connection_and_report_what_was_tried(client, caplog: pytest.LogCaptureFixture):
    """Until then a client said nothing for a minute, and then only that no bootstrap server answered."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    async def story() -> None:
        with pytest.raises(NetworkException) as raised:
            await client(bootstrap_servers=f"127.0.0.1:{port}", default_api_timeout_ms=500).start()
        assert raised.value.message.startswith(f"no bootstrap server answers: 127.0.0.1:{port}: Connection refused (")
        assert raised.value.message.endswith("; check bootstrap_servers, and that a broker runs there")

    with caplog.at_level(logging.WARNING, logger="minikafka.client"):
        asyncio.run(story())
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "minikafka.client"]
    assert lines[0] == (
        "WARNING",
        f"cannot connect to 127.0.0.1:{port}: Connection refused (1 attempt); the client retries",
    )


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "an answer that is not understood"),
        (b"HTTP/1.0 501 Unsupported method\r\n\r\n", "an answer that is not understood"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\n\r\n<html>", "HTTP 404"),
    ],
)
def test_clients_do_not_wait_for_a_broker_where_another_program_listens(greeting: bytes, said: str):
    """A wrong port: the error came after default_api_timeout_ms, 15 s in commands and 60 s in programs."""

    async def story() -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(greeting)
            writer.close()

        server = await asyncio.start_server(greet, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server:
            with pytest.raises(NetworkException) as raised:
                await AdminClient(bootstrap_servers=f"127.0.0.1:{port}", default_api_timeout_ms=600_000).start()
        assert raised.value.message.startswith(f"no bootstrap server answers: 127.0.0.1:{port}: {said}")
        assert raised.value.message.endswith("; another program listens there: check bootstrap_servers")

    asyncio.run(asyncio.wait_for(story(), 300))


def test_a_broker_that_does_not_run_yet_is_waited_for_beside_another_program():
    """Time mends a refused connection, so only if all addresses are wrong are other settings needed."""
    failures = ConnectionFailures()
    failures.failed(BROKER, NotABroker(f"Metadata to {BROKER}: an answer that is not understood: b'SSH'"), 1.0)
    assert not failures.need_other_settings(1.0)
    assert failures.need_other_settings(1.0 + ANOTHER_PROGRAM_S)
    failures.failed(OTHER, refused(OTHER), 1.0)
    assert not failures.need_other_settings(100.0)
