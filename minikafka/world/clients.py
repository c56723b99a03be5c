"""The clients of the real world: ``Producer(bootstrap_servers="127.0.0.1:9092")`` and its siblings.

Each makes a world of its own (HTTP, the system's clocks) when it starts and closes it when it stops. Parameters are the
fields of :mod:`minikafka.client.settings`; names that only aiokafka has are taken with aiokafka's default value.
Brokers that do not answer are logged by the logger ``minikafka.client`` at WARNING.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from inspect import Parameter, signature
from os import PathLike
from pathlib import Path
from ssl import SSLContext
from typing import Any, cast

from minikafka.blocking.tls import client_context
from minikafka.client import admin, consumer, producer
from minikafka.client.connection_failures import ConnectionFailures
from minikafka.client.other_clients import check_positional
from minikafka.client.settings import (
    DEFAULT_BOOTSTRAP,
    AdminConfig,
    Bootstrap,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    build,
)
from minikafka.errors import WorldError
from minikafka.ports import Buffers, Network, World
from minikafka.types import Address
from minikafka.world.http_client import ClientLogin
from minikafka.world.ledger_file import LedgerFile
from minikafka.world.real import real_world

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
        yield replace(real.world, network=LoggedNetwork(real.world.network))


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
