"""A broker whose clients must log in, and plain HTTP requests to it, for tests of logins over HTTP."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minikafka import AdminClient, NewTopic
from minikafka.config.security import STANDARD_AUTHORIZER
from tests.e2e.listeners import running, two_free_ports

USERS = {"admin": "adm:in Ⅸ", "ann": "ann's password"}
"""``admin`` is a super user; ``ann`` may do what ACLs allow."""


@dataclass(frozen=True)
class Secured:
    """Addresses of the broker."""

    own: str
    """Of the listener of brokers, in plain text and without a login."""
    clients: str
    """Of the SASL listener."""

    def get(self, path: str, user: str = "", **more: Any) -> Answer:
        """GET at the SASL listener, as a user with its right password or (empty) without credentials."""
        return request(self.clients, path, headers=[basic(user, USERS[user])] if user else [], **more)


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


def basic(user: str, password: str) -> tuple[str, str]:
    """The header of HTTP Basic."""
    return "Authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def request(
    address: str,
    path: str,
    *,
    method: str = "GET",
    headers: list[tuple[str, str]] | None = None,
    body: bytes | None = None,
    over: http.client.HTTPConnection | None = None,
) -> Answer:
    """One request, on a connection of its own unless ``over`` is given. Headers may stand twice."""
    connection = over or http.client.HTTPConnection(address, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=any(name == "Host" for name, _ in headers or []))
        for name, value in headers or []:
            connection.putheader(name, value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())
    finally:
        if over is None:
            connection.close()


@asynccontextmanager
async def secured(folder: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[Secured]:
    """The broker, with the users."""
    own, clients = two_free_ports()
    defaults = {
        "listeners": f"BROKERS://127.0.0.1:{own},CLIENTS://127.0.0.1:{clients}",
        "advertised.listeners": f"CLIENTS://localhost:{clients}",
        "inter.broker.listener.name": "BROKERS",
        "listener.security.protocol.map": "BROKERS:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin",
        "log.dirs": str(folder),
        "mk.log.level": "error",
        "group.initial.rebalance.delay.ms": "0",
    }
    async with running({**defaults, **(settings or {})}):
        async with AdminClient(bootstrap_servers=f"127.0.0.1:{own}") as admin:
            for user, password in USERS.items():
                await admin.set_user_password(user, password, iterations=4096)
            await admin.create_topics([NewTopic("orders", num_partitions=1, replication_factor=1)])
        yield Secured(f"127.0.0.1:{own}", f"localhost:{clients}")


async def eventually(holds: Any, patience_s: float = 60.0) -> None:
    """Wait until a function, which may block, returns True."""
    end = time.monotonic() + patience_s
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
