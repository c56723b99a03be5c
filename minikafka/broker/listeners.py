"""A broker's listeners: everything is served at each of them, and clients get the addresses of the one that they use.

In compose, say, brokers and the clients beside them use names of the network, and clients of the host the published
ports. The listener that a request came in on is part of its context.
"""

from __future__ import annotations

from minikafka.config import BrokerConfig
from minikafka.errors import BrokerNotAvailable, in_words
from minikafka.ports import Handler, Network, OpenSession, Server
from minikafka.types import Address


class Listeners:
    """The servers of one incarnation."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._servers: dict[str, Server] = {}

    async def open(self, network: Network, handler: Handler, sessions: OpenSession | None) -> None:
        """Listen everywhere; OSError when a port is in use."""
        for name, address in self._config.all_listeners:
            is_main = name == self._config.inter_broker_listener.name
            try:
                self._servers[name] = await network.serve(
                    address, handler, listener="" if is_main else name, sessions=sessions
                )
            except OSError as error:
                advice = "stop what listens there, or change listeners"
                raise OSError(error.errno, f"listener {name} at {address}: {in_words(error)}; {advice}") from error

    @property
    def address(self) -> Address:
        """Where it listens for brokers, port resolved."""
        server = self._servers.get(self._config.inter_broker_listener.name)
        if server is None:
            raise BrokerNotAvailable("the broker has not been started")
        return server.address

    def advertised(self, name: str) -> Address:
        """What clients of a listener get."""
        return self._config.all_advertised.get(name) or self._servers[name].address

    def others(self) -> str:
        """The registration's text for listeners that are not the brokers': ``NAME://host:port,...``."""
        main = self._config.inter_broker_listener.name
        names = [each.name for each in self._config.client_listeners if each.name != main]
        return ",".join(f"{name}://{self.advertised(name)}" for name in names)

    async def close(self) -> None:
        """Stop listening everywhere."""
        for server in self._servers.values():
            await server.close()
