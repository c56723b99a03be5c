"""A broker's listeners: everything is served at each of them, and clients are told addresses of the one they asked at.

In compose, say, brokers and the clients beside them use names of the network, and clients of the host the published
ports. Which listener a request came in on is a matter of the task that handles it, not of the request.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Protocol

from minikafka.config import BrokerConfig
from minikafka.errors import BrokerNotAvailable
from minikafka.ports import Buffers, Handler, Network, Server
from minikafka.types import Address

LISTENER: ContextVar[str] = ContextVar("LISTENER", default="")
"""Name of the listener at which the present request came in; empty: that of the brokers."""


class Caller(Protocol):
    """Who has sent the present request."""

    @property
    def remote(self) -> str | None:
        """The address of the other end of its connection."""


CALLER: ContextVar[Caller | None] = ContextVar("CALLER", default=None)
"""Set by networks that know it."""


def caller_host() -> str:
    """Where the present request came from, as Kafka writes it (``/127.0.0.1``); empty: not known."""
    caller = CALLER.get()
    return f"/{caller.remote}" if caller is not None and caller.remote else ""


class Listeners:
    """The servers of one incarnation."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._servers: dict[str, Server] = {}

    async def open(self, network: Network, handler: Handler) -> None:
        """Listen everywhere; OSError when a port is in use."""
        for name, address in self._config.all_listeners:
            is_main = name == self._config.inter_broker_listener.name
            self._servers[name] = await network.serve(address, handler if is_main else _named(name, handler))

    @property
    def address(self) -> Address:
        """Where it listens for brokers, port resolved."""
        server = self._servers.get(self._config.inter_broker_listener.name)
        if server is None:
            raise BrokerNotAvailable("the broker has not been started")
        return server.address

    def advertised(self, name: str) -> Address:
        """What clients of a listener are told."""
        return self._config.all_advertised.get(name) or self._servers[name].address

    def others(self) -> str:
        """What the controller is told of listeners that are not the brokers': ``NAME://host:port,...``."""
        main = self._config.inter_broker_listener.name
        names = [each.name for each in self._config.client_listeners if each.name != main]
        return ",".join(f"{name}://{self.advertised(name)}" for name in names)

    async def close(self) -> None:
        """Stop listening everywhere."""
        for server in self._servers.values():
            await server.close()


def _named(name: str, handler: Handler) -> Handler:
    async def handle(api: str, body: bytes) -> Buffers:
        LISTENER.set(name)
        return await handler(api, body)

    return handle
