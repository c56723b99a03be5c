"""Asking ``/v1`` of a running cluster, as curl does: for commands that show what only HTTP tells.

A problem (RFC 9457) becomes its sentence; brokers that cannot be reached are passed over while another one lives.
"""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Self

import aiohttp

from minikafka.addresses import parse_bootstrap
from minikafka.cli.running import CONNECT_TIMEOUT_S, Failure
from minikafka.cli.tls import connection
from minikafka.types import Address

ANSWER_TIMEOUT_S = 20.0


class Refusal(Failure):
    """A broker said no; ``status`` and ``problem`` have the whole of it."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        self.status = status
        self.problem = problem
        super().__init__(f"{problem.get('error', status)}: {problem.get('detail', 'no reason was given')}")


class V1:
    """The doors of the brokers at ``bootstrap``. An async context manager."""

    def __init__(self, bootstrap: str) -> None:
        self.addresses: tuple[Address, ...] = parse_bootstrap(bootstrap, https=True)
        how = connection(bootstrap)
        self._tls, self._login = how.tls, how.login
        self._bootstrap = bootstrap

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
        headers = {} if self._login is None else {"Authorization": await self._login()}
        self._http = aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(ssl=self._tls or True), headers=headers
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    @property
    def scheme(self) -> str:
        return "http" if self._tls is None else "https"

    async def anybody(self, method: str, path: str, document: Any = None) -> Any:
        """The answer of the first broker that can be reached. Failure when none can, Refusal when it says no."""
        for address in self.addresses:
            answer = await self.of(address, method, path, document)
            if answer is not None:
                return answer
        raise Failure(f"no broker can be reached at {self._bootstrap}; check -b, and that a cluster runs there")

    async def of(self, address: Address, method: str, path: str, document: Any = None) -> Any:
        """The answer of one broker; None when it cannot be reached. Refusal when it says no."""
        try:
            async with self._http.request(method, f"{self.scheme}://{address}{path}", json=document) as response:
                text = await response.text()
                status = response.status
        except (aiohttp.ClientConnectionError, TimeoutError):
            return None
        try:
            answer = json.loads(text)
        except ValueError:
            raise Failure(f"{address} is no minikafka broker: it answered {method} {path} with {text[:60]!r}") from None
        if status >= 400:
            raise Refusal(status, answer if isinstance(answer, dict) else {})
        return answer

    async def brokers(self) -> dict[int, Address]:
        """Where every registered broker listens."""
        answer = await self.anybody("GET", "/v1/brokers")
        return {each["id"]: Address(each["host"], each["port"]) for each in answer["brokers"]}
