"""One request to one node, and the pauses between attempts; what all clients of applications have in common.

Rules for this file: nothing is retried here; what went wrong below HTTP comes out as NetworkException with the outcome
that the world vouches for: ``not_written`` when no connection was made or HTTP refused the request unread, else
``unknown``.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Self, TypeVar

from minikafka import errors as kafka
from minikafka.client.settings import ClientConfig
from minikafka.ports import World
from minikafka.rpc import call
from minikafka.types import Address
from minikafka.wire.apis import BY_REQUEST
from minikafka.wire.outcomes import error_in

JITTER = 0.2
Item = TypeVar("Item")


def accepted(response: Item, error_of: Callable[[Any], kafka.ProtocolError | None] = error_in) -> Item:
    """Return ``response``; raise what is wrong with it as a whole."""
    refusal = error_of(response)
    if refusal is not None:
        raise refusal
    return response


class Client(ABC):
    """A client of applications. It has its world while it runs, and starts once."""

    _kind: ClassVar[str]
    """What it is called in errors."""

    def __init__(self, world: World | AbstractAsyncContextManager[World]) -> None:
        self._world_source = world
        self._resources = AsyncExitStack()
        """Closed when the client stops."""
        self._world: World | None = None

    @abstractmethod
    async def start(self) -> None:
        """Connect to the cluster. NetworkException when no bootstrap server answers in default_api_timeout_ms."""

    async def _enter_world(self) -> World:
        if self._world is not None:
            raise kafka.InvalidRequest(f"{self._kind} starts once: make a new one")
        source = self._world_source
        self._world = source if isinstance(source, World) else await self._resources.enter_async_context(source)
        return self._world

    async def __aenter__(self) -> Self:
        await self.start()
        return self


class Backoff:
    """Pauses that double from ``retry_backoff_ms`` to ``retry_backoff_max_ms``, each 20 % shorter to 20 % longer.

    As in Kafka since KIP-580.
    """

    __slots__ = ("_base_s", "_max_s", "_random")

    def __init__(self, random: Random, config: ClientConfig) -> None:
        self._random = random
        self._base_s = config.retry_backoff_ms / 1000
        self._max_s = config.retry_backoff_max_ms / 1000

    def pause_s(self, attempts: int) -> float:
        """Seconds to wait after ``attempts`` failed attempts (1 or more)."""
        pause = min(self._max_s, self._base_s * 2.0 ** min(attempts - 1, 30))
        return pause * self._random.uniform(1 - JITTER, 1 + JITTER)


def no_controller(found: Iterable[str]) -> str:
    """Return the sentence for a cluster without a quorum; ``found``: what each broker said."""
    return f"no controller is reachable ({'; '.join(found)}): a majority of the quorum's voters must run"


@dataclass(frozen=True, slots=True)
class WithoutController:
    """How long calls are repeated while brokers know no controller: then no leader and no coordinator can respond."""

    limit_s: float
    found: Callable[[], Iterable[str]]
    """What each broker said, if none of them knows a controller; else nothing."""


class Attempts:
    """Counts the failed attempts of one call, and gives the pauses between them until its deadline."""

    __slots__ = ("_backoff", "_deadline", "_growth_max", "_missing", "_missing_since", "_world", "failed", "why")

    def __init__(
        self,
        world: World,
        backoff: Backoff,
        deadline: float,
        *,
        growth_max: int = 31,
        missing: WithoutController | None = None,
    ) -> None:
        """``growth_max``: the attempt after which pauses grow no longer. ``missing``: when to end early."""
        self._world = world
        self._backoff = backoff
        self._deadline = deadline
        self._growth_max = growth_max
        self._missing = missing
        self._missing_since: float | None = None
        self.failed = 0
        self.why = ""
        """Why the attempts ended before the deadline."""

    def pause_s(self) -> float | None:
        """Seconds to wait after one more failed attempt; None: the deadline would come first, or there is a ``why``."""
        self.failed += 1
        now = self._world.clock.now()
        if self._missing is not None and self._is_without_controller(self._missing, now):
            return None
        pause_s = self._backoff.pause_s(min(self.failed, self._growth_max))
        return pause_s if now + pause_s < self._deadline else None

    def _is_without_controller(self, missing: WithoutController, now: float) -> bool:
        found = list(missing.found())
        if not found:
            self._missing_since = None
            return False
        self._missing_since = now if self._missing_since is None else self._missing_since
        if now < self._missing_since + missing.limit_s:
            return False
        self.why = no_controller(found)
        return True

    async def pause(self) -> bool:
        """Count a failed attempt and wait for the next one. Return False at once if the deadline comes first."""
        pause_s = self.pause_s()
        if pause_s is not None:
            await asyncio.sleep(pause_s)
        return pause_s is not None


class Caller:
    """Sends typed requests through the Network port."""

    __slots__ = ("_world",)

    def __init__(self, world: World) -> None:
        self._world = world

    async def call(self, peer: Address, request: Any, *, deadline: float) -> Any:
        """The typed answer of ``peer``.

        Raises NetworkException when there is none, SaslAuthenticationFailed for wrong credentials, and the answer's own
        error when the whole request was refused.
        """
        return accepted(await self.ask(peer, request, deadline=deadline))

    async def ask(self, peer: Address, request: Any, *, deadline: float) -> Any:
        """As :meth:`call`, but a refusal is returned: for answers that tell more than their error."""
        api = BY_REQUEST[type(request)].name
        try:
            response = await call(self._world.network, peer, request, deadline)
        except kafka.Unreachable as error:
            raise kafka.NetworkException(
                f"{api} to {peer}: no connection: {error}", outcome=kafka.NOT_WRITTEN
            ) from error
        except kafka.LoginRefused as error:
            raise kafka.SaslAuthenticationFailed(str(error)) from error  # its reason names API and peer already
        except kafka.RequestRefused as error:
            raise kafka.NetworkException(f"{api} to {peer}: refused: {error}", outcome=kafka.NOT_WRITTEN) from error
        except kafka.OutcomeUnknown as error:
            raise kafka.NetworkException(f"{api} to {peer}: no answer: {error}", outcome=kafka.UNKNOWN) from error
        refusal = error_in(response)
        if isinstance(refusal, kafka.BrokerNotAvailable):
            # It is stopping or starting: for a client that is as good as nobody listening.
            raise kafka.NetworkException(f"{api} to {peer}: {refusal.message}", outcome=refusal.outcome) from refusal
        return response
