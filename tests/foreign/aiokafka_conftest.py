"""Stands in for aiokafka's own `tests/conftest.py`, which starts Kafka in a container: the cluster is at --bootstrap."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --bootstrap: host:port of the brokers, separated by commas."""
    parser.addoption("--bootstrap", required=True)
    parser.addoption("--tls-bootstrap", required=True, help="the same for the listener that uses TLS")
    parser.addoption("--certificates", required=True, type=Path, help="folder with ca.pem, client.crt and client.key")


def pytest_configure(config: pytest.Config) -> None:
    """Register the suite's marker."""
    config.addinivalue_line("markers", "ssl: tests that require certificates")


@pytest.fixture(scope="class")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """The event loop of a test class."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield loop
    if not loop.is_closed():
        loop.close()
    gc.collect()
    asyncio.set_event_loop(None)


@pytest.fixture(scope="session")
def ssl_folder(request: pytest.FixtureRequest) -> Path:
    """Certificates by the names of the suite's own."""
    folder = request.config.getoption("--certificates")
    (folder / "ca.crt").write_bytes((folder / "ca.pem").read_bytes())
    return folder


@pytest.fixture(scope="class")
def setup_test_class_serverless(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> None:
    """Give a test class its loop."""
    request.cls.loop = loop


@pytest.fixture(scope="class")
def setup_test_class(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop, ssl_folder: Path) -> None:
    """Give a test class its loop and the address of the brokers."""
    hosts = request.config.getoption("--bootstrap").split(",")
    host, _, port = hosts[0].partition(":")
    request.cls.loop = loop
    request.cls.kafka_host = host
    request.cls.kafka_port = int(port)
    request.cls.kafka_ssl_port = int(request.config.getoption("--tls-bootstrap").rpartition(":")[2])
    request.cls.ssl_folder = ssl_folder
    request.cls.hosts = hosts[:1]
    request.cls.kafka_version = "4.3.1"
