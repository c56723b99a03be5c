"""One question to one broker, or to whichever answers: what the command line asks beside the clients' own calls.

Rules for this file: it retries nothing but the next bootstrap server, and it waits no longer than its caller allows.
"""

from __future__ import annotations

import asyncio
from ssl import SSLContext
from types import TracebackType
from typing import Any, Self

from minikafka.addresses import parse_bootstrap
from minikafka.client.caller import Caller
from minikafka.errors import NetworkException, ProtocolError
from minikafka.types import Address
from minikafka.world.http_client import ClientLogin
from minikafka.world.real import RealWorld, real_world

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
