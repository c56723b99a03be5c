"""One request at a door, and what its handler may answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from aiohttp import web

from minikafka.rest.accept import Accept
from minikafka.rest.body import Admission
from minikafka.rest.host import Host
from minikafka.rest.parameters import Parameter
from minikafka.rest.problems import Occurrences
from minikafka.types import NodeId
from minikafka.world.instruments import Instruments

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is not a problem: a value that becomes JSON or msgpack, as the client takes it."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Page:
    """An answer that is text of a type of its own (a page, metrics)."""

    text: bytes
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that goes on until its chunks end, its reader leaves, or the broker stops.

    ``farewell`` is sent when the broker stops. A chunk is written when the reader has taken the ones before it: what is
    held for a slow reader is one chunk and the socket's buffer. The generator is closed in every case.
    """

    chunks: AsyncGenerator[bytes, None]
    media_type: str
    farewell: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Metrics: TypeAlias = Callable[[], Awaitable[bytes]]
"""One scrape, as text."""


class Visit:
    """One request. ``served_by`` and ``leaders`` fill while it is handled and become headers."""

    def __init__(
        self,
        http: web.Request,
        host: Host,
        admission: Admission,
        instruments: Instruments | None = None,
        metrics: Metrics | None = None,
        occurrences: Occurrences | None = None,
    ) -> None:
        self.http = http
        self.host = host
        self.admission = admission
        self.accept = Accept(http.headers.getall("Accept", ()))
        self.instruments = instruments
        """What tests act with; there when the testing endpoints are enabled."""
        self._occurrences = occurrences or Occurrences()
        self._instance: str | None = None
        self.metrics = metrics
        """What this broker counts."""
        self.values: dict[str, Any] = {}
        """The declared parameters, read before the handler runs; see :meth:`__getitem__`."""
        self.wants_msgpack = False
        self.served_by: list[NodeId] = []
        self.leaders: list[NodeId] = []

    @property
    def instance(self) -> str:
        """Which problem this is, if it becomes one."""
        if self._instance is None:
            self._instance = self._occurrences.next(self.http.rel_url.raw_path)
        return self._instance

    def __getitem__(self, parameter: Parameter[Value]) -> Value:
        """What the request says for a parameter that its route declares."""
        value: Value = self.values[parameter.name]
        return value

    def gives(self, parameter: Parameter[Any]) -> bool:
        """Does the request say it, and not leave it to its default?"""
        source: Mapping[str, str] = {
            "query": self.http.query,
            "path": self.http.match_info,
            "header": self.http.headers,
        }[parameter.place]
        return parameter.name in source


Handler: TypeAlias = Callable[[Visit], Awaitable[Reply | Page | Stream]]
