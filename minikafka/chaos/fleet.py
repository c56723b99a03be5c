"""Brokers, processes or containers, that several faults hold down or hold still at once.

Rules for this file:

1. A broker runs when no fault holds it down, and goes on when no fault holds it still: who lets go last starts it.
2. A broker that died by itself is started when a fault that struck it ends, and when all is put right; only then is it
   an error if it dies again.
3. A broker that is started is held still again, if a fault does so, once it answers.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from minikafka.errors import WorldError
from minikafka.hosting.processes import READY_TIMEOUT_S, BrokerDied
from minikafka.types import NodeId

ASK_S = 0.05
"""Between two looks at a broker that starts."""


class Member(Protocol):
    """A broker that can be hurt; what cannot be done because it does not run is no error."""

    @property
    def is_running(self) -> bool: ...

    async def start(self) -> None: ...

    async def kill9(self) -> None: ...

    async def terminate(self) -> int: ...

    async def freeze(self) -> None: ...

    async def thaw(self) -> None: ...

    def obituary(self) -> str: ...


Answers = Callable[[NodeId], Awaitable[bool]]


class Fleet:
    """``answers`` tells whether a broker accepts a connection; ``by`` is the fault that holds a broker."""

    def __init__(self, brokers: Mapping[NodeId, Member], answers: Answers) -> None:
        self.brokers = brokers
        self._answers = answers
        self._down: dict[NodeId, set[int]] = {node: set() for node in brokers}
        self._still: dict[NodeId, set[int]] = {node: set() for node in brokers}
        self._starting = {node: asyncio.Lock() for node in brokers}
        self._returning: Counter[NodeId] = Counter()

    async def kill(self, nodes: Iterable[NodeId], by: int) -> None:
        """kill -9, all at once, and wait until they are gone."""
        await self._put_down(nodes, by, lambda broker: broker.kill9())

    async def stop(self, nodes: Iterable[NodeId], by: int) -> None:
        """Controlled shutdowns, all at once."""
        await self._put_down(nodes, by, lambda broker: broker.terminate())

    async def _put_down(self, nodes: Iterable[NodeId], by: int, end: Callable[[Member], Awaitable[object]]) -> None:
        hit = tuple(nodes)
        for node in hit:
            self._down[node].add(by)
        await asyncio.gather(*(end(self.brokers[node]) for node in hit))

    async def let_up(self, nodes: Iterable[NodeId], by: int) -> None:
        """Start who is held down by nobody else, also who had died by himself.

        Returns when they answer, or have died again. WorldError.
        """
        hit = tuple(nodes)
        for node in hit:
            self._down[node].discard(by)
        with self.returning(hit):
            await asyncio.gather(*(self._start(node) for node in hit))

    @contextmanager
    def returning(self, nodes: Iterable[NodeId]) -> Iterator[None]:
        """What struck them is being put right: that they do not run is no surprise yet."""
        hit = tuple(nodes)
        self._returning.update(hit)
        try:
            yield
        finally:
            self._returning.subtract(hit)

    async def hold_still(self, nodes: Iterable[NodeId], by: int) -> None:
        """Freeze them, all at once."""
        hit = tuple(nodes)
        for node in hit:
            self._still[node].add(by)
        await asyncio.gather(*(self.brokers[node].freeze() for node in hit))

    async def let_go(self, nodes: Iterable[NodeId], by: int) -> None:
        """Whom nobody else holds goes on."""
        for node in nodes:
            self._still[node].discard(by)
            if not self._still[node]:
                await self.brokers[node].thaw()

    def is_missed(self, node: NodeId) -> bool:
        """Does it not run though nobody holds it down or is about to start it?"""
        is_expected = self._down[node] or self._returning[node] or self._starting[node].locked()
        return not (self.brokers[node].is_running or is_expected)

    async def heal(self) -> None:
        """Nobody holds anybody any more: all go on, and all run. WorldError; BrokerDied when one does not."""
        for node, broker in self.brokers.items():
            self._down[node].clear()
            self._still[node].clear()
            await broker.thaw()
        await asyncio.gather(*map(self._start, self.brokers))
        for broker in self.brokers.values():
            if not broker.is_running:
                raise BrokerDied(broker.obituary())

    async def _start(self, node: NodeId) -> None:
        async with self._starting[node]:
            broker = self.brokers[node]
            if self._down[node] or broker.is_running:
                return
            await broker.start()
            await self._comes_up(node)
            if self._still[node]:
                await broker.freeze()

    async def _comes_up(self, node: NodeId) -> None:
        """Return when it answers, or has died. WorldError after READY_TIMEOUT_S."""
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while self.brokers[node].is_running:
                    if await self._answers(node):
                        return
                    await asyncio.sleep(ASK_S)
        except TimeoutError:
            raise WorldError(f"broker {node} does not answer {READY_TIMEOUT_S:.0f} s after its start") from None
