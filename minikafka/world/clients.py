"""The clients of the real world: ``Producer(bootstrap_servers="127.0.0.1:9092")`` and its siblings.

Each makes a world of its own (HTTP, the system's clocks) when it starts and closes it when it stops. Parameters are the
fields of :mod:`minikafka.client.settings`; names that only aiokafka has are taken with aiokafka's default value.
Brokers that do not answer are logged by the logger ``minikafka.client`` at WARNING.

:class:`Asker` sends single requests: it retries nothing but the next bootstrap server, and waits no longer than its
caller allows. :class:`LedgerFile` is where a producer's ledger goes: whole lines survive ``kill -9`` (after ``flush``
the page cache has them; a power failure may take them). An existing ledger is continued without its cut last line, a
file of something else is refused, and a second writer too.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import logging
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from inspect import Parameter, signature
from os import PathLike
from pathlib import Path
from ssl import SSLContext
from typing import Any, BinaryIO, Self, cast

from minikafka.addresses import parse_bootstrap
from minikafka.blocking.tls import client_context
from minikafka.check import HistoryWriter
from minikafka.check.history import header_line
from minikafka.client import admin, consumer, producer
from minikafka.client.caller import Caller
from minikafka.client.metadata import ConnectionFailures
from minikafka.client.settings import (
    DEFAULT_BOOTSTRAP,
    AdminConfig,
    Bootstrap,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    build,
    check_positional,
)
from minikafka.errors import InvalidConfig, NetworkException, ProtocolError, WorldError
from minikafka.ports import Buffers, Events, Network, World
from minikafka.types import Address
from minikafka.world.http_client import ClientLogin
from minikafka.world.real import RealWorld, real_world

_SEND = b'{"type":"send",'
_LINE = b'{"type"'
"""How each line of a history begins."""
_FIRST_LINE_MAX = 1 << 10
_CHUNK = 1 << 20


class LedgerFile:
    """A context manager; InvalidConfig when another writer has the file, or when it is no ledger; OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._lines: list[str] = []

    def __enter__(self) -> Self:
        file = self._path.open("ab+", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise InvalidConfig(
                f"ledger {self._path} is being written by another producer: give each its own"
            ) from error
        file.seek(0)
        first = file.readline(_FIRST_LINE_MAX)
        if not (first.startswith(_LINE) or header_line().encode().startswith(first)):
            file.close()
            raise InvalidConfig(f"{self._path} is a file of something else, and no ledger: choose another name")
        file.seek(0)
        lines = sends = size = 0
        for line in _whole_lines(file):
            lines += 1
            sends += line.startswith(_SEND)
            size += len(line)
        file.truncate(size)
        self._file = file
        self.recorder = HistoryWriter(self._lines.append, time.time, sends_before=sends, lines_before=lines)
        self.flush()
        return self

    def flush(self) -> None:
        """Hand the lines to the operating system. OSError: the last one may be cut, and nothing can follow it."""
        if not self._lines:
            return
        if self._file is None:
            raise OSError(f"ledger {self._path} is closed")
        rest = memoryview("".join(self._lines).encode())
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.close()
            self._file = None
            raise
        self._lines.clear()

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self.flush()
            self._file.close()
            self._file = None


def _whole_lines(file: BinaryIO) -> Iterable[bytes]:
    """The lines that have an end."""
    rest = b""
    while chunk := file.read(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in lines)


__all__ = ["AdminClient", "Consumer", "Producer"]

LOGGER = logging.getLogger("minikafka.client")


class LoggedNetwork:
    """A client's network that logs, with Python's ``logging``, which brokers do not answer."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._failures = ConnectionFailures()
        self.serve = network.serve

    async def call(self, peer: Address, api: str, body: Buffers, *, deadline: float) -> bytes | bytearray:
        """As the port says."""
        try:
            answer = await self._network.call(peer, api, body, deadline=deadline)
        except WorldError as error:
            line = self._failures.failed(peer, error, asyncio.get_running_loop().time())
            if line is not None:
                LOGGER.warning(line)
            raise
        self._failures.answered(peer)
        return answer


class LoggedEvents:
    """A client's events, of which Python's ``logging`` gets what its user can mend."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def __call__(self, kind: str, /, **facts: object) -> None:
        if kind == "controller_missing":
            LOGGER.warning("%s; the client retries", facts["why"])
        self._events(kind, **facts)


def client_tls(config: ClientConfig) -> SSLContext | None:
    """Return what a client's settings say of TLS; None: it connects in plain text. Raises InvalidConfig."""
    if not config.uses_tls:
        return None
    if config.ssl_context is not None:
        return cast("SSLContext", config.ssl_context)
    return client_context(cafile=config.ssl_cafile, certfile=config.ssl_certfile, keyfile=config.ssl_keyfile)


def client_login(config: ClientConfig) -> ClientLogin | None:
    """Return what makes the credentials of a client's requests; None: it has none."""
    if not config.uses_login:
        return None
    provider = config.sasl_oauth_token_provider
    if provider is not None:

        async def bearer() -> str:
            return f"Bearer {await provider.token()}"

        return bearer
    user, password = config.sasl_plain_username, config.sasl_plain_password
    value = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    async def basic() -> str:
        return value

    return basic


def client_world(config: ClientConfig) -> AbstractAsyncContextManager[World]:
    """A world without a disk; built when it is entered, inside the running loop. Raises InvalidConfig at once."""
    return _world_of(client_tls(config), client_login(config))


@asynccontextmanager
async def _world_of(tls: SSLContext | None, login: ClientLogin | None) -> AsyncIterator[World]:
    async with real_world(client_tls=tls, client_login=login) as real:
        yield replace(real.world, network=LoggedNetwork(real.world.network), events=LoggedEvents(real.world.events))


class Producer(producer.Producer):
    """Sends records: ``async with Producer(bootstrap_servers="...", acks="all") as producer: ...``.

    ``ledger``: a file that gets a line for each record that is sent and one for what became of it, so that
    ``minikafka audit`` can hold it against the logs; one that is there already is gone on with.
    """

    def __init__(
        self,
        *misplaced: Any,
        bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP,
        ledger: str | PathLike[str] | None = None,
        **settings: Any,
    ) -> None:
        check_positional("Producer", misplaced, signature(ProducerConfig).parameters)
        config = build(ProducerConfig, {"bootstrap_servers": bootstrap_servers, **settings})
        file = None if ledger is None else LedgerFile(Path(ledger))
        super().__init__(config, client_world(config), ledger=file)


class Consumer(consumer.Consumer):
    """Reads records: ``async with Consumer("topic", bootstrap_servers="...") as consumer: ...``."""

    def __init__(self, *topics: str, bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP, **settings: Any) -> None:
        check_positional("Consumer", topics, signature(ConsumerConfig).parameters)
        config = build(ConsumerConfig, {"bootstrap_servers": bootstrap_servers, **settings})
        super().__init__(config, client_world(config), topics)


class AdminClient(admin.AdminClient):
    """Manages a cluster: ``async with AdminClient(bootstrap_servers="...") as admin: ...``."""

    def __init__(self, *misplaced: Any, bootstrap_servers: Bootstrap = DEFAULT_BOOTSTRAP, **settings: Any) -> None:
        check_positional("AdminClient", misplaced, signature(AdminConfig).parameters)
        config = build(AdminConfig, {"bootstrap_servers": bootstrap_servers, **settings})
        super().__init__(config, client_world(config))


def _show_settings(client: Any, config: type[ClientConfig]) -> None:
    """Let ``help()`` and editors show the settings instead of ``**settings``."""
    settings = signature(config).parameters
    own = [
        each
        for each in signature(client.__init__).parameters.values()
        if each.name not in {"self", *settings} and each.kind is not Parameter.VAR_KEYWORD
    ]
    first = [each for each in own if each.kind is Parameter.VAR_POSITIONAL and each.name != "misplaced"]
    last = [each for each in own if each.kind is Parameter.KEYWORD_ONLY]
    client.__signature__ = signature(client).replace(parameters=[*first, *settings.values(), *last])


_show_settings(Producer, ProducerConfig)
_show_settings(Consumer, ConsumerConfig)
_show_settings(AdminClient, AdminConfig)


ASK_TIMEOUT_S = 3.0


class Asker:
    """Typed requests to brokers; an async context manager. InvalidConfig for a malformed ``bootstrap``."""

    def __init__(self, bootstrap: str, tls: SSLContext | None = None, login: ClientLogin | None = None) -> None:
        self.addresses = parse_bootstrap(bootstrap, https=tls is not None)
        self._tls, self._login = tls, login
        self._real: RealWorld | None = None

    async def __aenter__(self) -> Self:
        self._real = real_world(client_tls=self._tls, client_login=self._login)
        self._caller = Caller(self._real.world)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._real is not None:
            await self._real.close()

    async def ask(self, address: Address, request: object, timeout_s: float = ASK_TIMEOUT_S) -> Any:
        """The typed answer of one broker. NetworkException when there is none; the answer's own error."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        return await self._caller.call(address, request, deadline=deadline)

    async def ask_any(self, request: object, timeout_s: float = ASK_TIMEOUT_S) -> Any:
        """The answer of the first bootstrap server that gives one; the last one's error when none does."""
        failure: ProtocolError = NetworkException("no bootstrap servers")
        for address in self.addresses:
            try:
                return await self.ask(address, request, timeout_s)
            except ProtocolError as error:
                if not error.retriable:
                    raise
                failure = error
        raise failure
