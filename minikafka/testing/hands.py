"""Faults, waits and events of a cluster in this process, for asynchronous tests: ``cluster.faults`` and its siblings.

::

    with cluster.faults.cut("3>1", api="Fetch") as fault:
        await cluster.wait.isr("orders", 0, {1, 2})
    assert fault.hits > 0

Everything acts on the brokers' loop, whichever loop or thread it is called from. ``sync.py`` has the same for tests
without a loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypedDict, TypeVar, Unpack

from minikafka.errors import InvalidRequest, RequestTimedOut, did_you_mean
from minikafka.events import CATALOGUE
from minikafka.faults import MessageKind
from minikafka.types import Epoch, NodeId, Offset
from minikafka.world import states
from minikafka.world.events import Line, Wanted
from minikafka.world.faults import COUNT_MAX, REORDER_MS, Fault, FaultSpec, Held, Link, paused, paused_fetching
from minikafka.world.instruments import Instruments
from minikafka.world.states import ANY, SomeNode, State, Wish

Result = TypeVar("Result")
Handle = TypeVar("Handle", bound="FaultInHand")

WAIT_TIMEOUT_S = 30.0
"""Longer than an election on the busiest machine, shorter than a person's patience."""


class Stage(Protocol):
    """The cluster that all of this acts on (``LocalCluster``)."""

    @property
    def instruments(self) -> Instruments: ...

    @property
    def node_ids(self) -> tuple[NodeId, ...]: ...

    def at_once(self, work: Callable[[], Result]) -> Result:
        """Call on the brokers' loop, and wait for the result; at once when there is no loop."""
        ...

    async def on_loop(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Await on the brokers' loop, from any other."""
        ...

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]], timeout_s: float | None = None) -> Result:
        """Run on the brokers' loop, and block until it is done."""
        ...


# ---- faults ----------------------------------------------------------------------------------------------------------


class FaultInHand:
    """One fault, as its maker holds it. As a context manager it is healed at the end."""

    def __init__(self, stage: Stage, fault: Fault) -> None:
        self._stage = stage
        self._fault = fault

    @property
    def number(self) -> int:
        return self._fault.number

    @property
    def spec(self) -> FaultSpec:
        return self._fault.spec

    @property
    def hits(self) -> int:
        """How many messages it has struck."""
        return self._fault.hits

    @property
    def is_active(self) -> bool:
        """Return True if it will strike again. It will not when it was healed or its count is used up."""
        return self._fault.is_active

    def held(self) -> list[Held]:
        """The messages that a fault of kind ``hold`` holds now, in the order in which they came."""
        return self._stage.at_once(lambda: list(self._fault.held))

    def release(
        self,
        count: int = COUNT_MAX,
        *,
        latest: bool = False,
        lose: bool = False,
        numbers: Collection[int] | None = None,
    ) -> int:
        """Let held messages go, in the order in which they came; the fault goes on holding later ones.

        Args:
            count: Number of messages at most.
            latest: Begin with the latest message, the one whose sender still waits.
            lose: Lose them instead; their senders get no response.
            numbers: Only of the messages with these numbers (see :meth:`held`).

        Returns:
            How many were released.
        """
        faults = self._stage.instruments.faults
        return self._stage.at_once(
            lambda: faults.release(self._fault, count, latest=latest, lose=lose, numbers=numbers)
        )

    def heal(self) -> None:
        """End it; what it held back goes on its way."""
        self._stage.at_once(lambda: self._stage.instruments.faults.heal(self._fault.number))

    async def _struck(self, count: int, timeout_s: float) -> int:
        """On the brokers' loop: return when it has struck so often."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._fault.until_hits(count)
        except TimeoutError:
            raise RequestTimedOut(
                f"after {timeout_s:g} s {self._fault} has {self.hits} hits, wanted: {count}", seen=self.hits
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.heal()

    def __repr__(self) -> str:
        return f"<{self._fault}, {self.hits} hits>"


class FaultHandle(FaultInHand):
    """A fault in an asynchronous test."""

    async def wait_hits(self, count: int = 1, *, timeout_s: float = WAIT_TIMEOUT_S) -> int:
        """Return when it has struck so often. RequestTimedOut; InvalidRequest when it never will."""
        return await self._stage.on_loop(lambda: self._struck(count, timeout_s))


class ErrorLimits(TypedDict, total=False):
    """Which messages of a link and an API a fault strikes, and for how long; what is left out limits nothing."""

    message: MessageKind | None
    """Requests or answers."""
    count: int | None
    """The next so many."""
    probability: float
    """Each with this chance, drawn from ``seed``; without one from the run's (``mk.seed``)."""
    seed: int | None
    for_ms: float | None
    """It ends by itself."""


class Limits(ErrorLimits, total=False):
    """Which messages of a link a fault strikes, and for how long; what is left out limits nothing."""

    api: str
    """One API (``Fetch``)."""


class ClusterFaults(Generic[Handle]):
    """``cluster.faults``. A link is the way of the message: ``2>1``, ``3>broker``, ``client>*``, ``1<>*``.

    All of them take :class:`Limits`.
    """

    def __init__(self, stage: Stage, handle: Callable[[Stage, Fault], Handle]) -> None:
        self._stage = stage
        self._handle = handle

    def cut(self, link: str, **limits: Unpack[Limits]) -> Handle:
        """Break the connection: at once, a request is ``Unreachable``, for an answer the outcome is unknown."""
        return self._add(FaultSpec(kind="cut", link=link, **limits))

    def drop(self, link: str, **limits: Unpack[Limits]) -> Handle:
        """Lose the message silently: the outcome is unknown, when the caller's time is up."""
        return self._add(FaultSpec(kind="drop", link=link, **limits))

    def delay(self, link: str, delay_ms: float, *, jitter_ms: float = 0.0, **limits: Unpack[Limits]) -> Handle:
        """Let the message arrive later."""
        return self._add(FaultSpec(kind="delay", link=link, delay_ms=delay_ms, jitter_ms=jitter_ms, **limits))

    def hold(self, link: str, **limits: Unpack[Limits]) -> Handle:
        """Keep the message until the fault is healed, also when its sender has given up by then."""
        return self._add(FaultSpec(kind="hold", link=link, **limits))

    def duplicate(self, link: str, **limits: Unpack[Limits]) -> Handle:
        """Send the request a second time once it has been answered; the first answer counts."""
        return self._add(FaultSpec(kind="duplicate", link=link, **limits))

    def reorder(self, link: str, *, delay_ms: float = REORDER_MS, **limits: Unpack[Limits]) -> Handle:
        """Let a later message on the same way arrive first (a request: be answered first), or none in ``delay_ms``."""
        return self._add(FaultSpec(kind="reorder", link=link, delay_ms=delay_ms, **limits))

    def error(self, link: str, error: str, *, api: str, **limits: Unpack[ErrorLimits]) -> Handle:
        """Answer requests of ``api`` with a Kafka error (``NOT_LEADER_OR_FOLLOWER``), and do not handle them.

        With ``message="answer"`` they are handled, and the error replaces their answers.
        """
        return self._add(FaultSpec(kind="error", link=link, error=error, api=api, **limits))

    def isolate(self, node: NodeId, *, from_clients: bool = True) -> Handle:
        """Cut a broker off in both directions; ``from_clients`` False leaves clients their way to it."""
        return self.cut(f"{node}<>{'*' if from_clients else 'broker'}")

    def pause(self, node: NodeId) -> Handle:
        """Let a broker stand still to all others, until it is healed: what it sends and is sent waits."""
        return self._add(paused(node))

    def pause_fetching(self, node: NodeId) -> Handle:
        """Keep a broker from following its leaders, until it is healed; it goes on leading, and in the quorum."""
        return self._add(paused_fetching(node))

    def active(self) -> list[Handle]:
        """All that are not healed, in order."""
        return [self._handle(self._stage, fault) for fault in self._stage.instruments.faults.active.copy().values()]

    def heal(self) -> int:
        """End all; how many there were."""
        return self._stage.at_once(self._stage.instruments.faults.clear)

    def _add(self, spec: FaultSpec) -> Handle:
        Link.parse(spec.link).check_brokers(self._stage.node_ids)
        return self._handle(self._stage, self._stage.at_once(lambda: self._stage.instruments.faults.add(spec)))


# ---- waits -----------------------------------------------------------------------------------------------------------


class ClusterWaits:
    """``cluster.wait``: each returns once its state holds. RequestTimedOut after ``timeout_s``, with what was seen."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def until(self, wish: Wish, *, timeout_s: float = WAIT_TIMEOUT_S) -> State:
        """Several things at once."""
        stage = self._stage

        async def met() -> State:
            return await states.until(wish, stage.instruments, timeout_s=timeout_s)

        return await stage.on_loop(met)

    async def topic(self, topic: str, *, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """The topic exists."""
        await self.until(Wish(topic=topic, exists=True), timeout_s=timeout_s)

    async def topic_gone(self, topic: str, *, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """The topic does not exist any more."""
        await self.until(Wish(topic=topic, exists=False), timeout_s=timeout_s)

    async def leader(
        self,
        topic: str,
        partition: int = 0,
        node: SomeNode = ANY,
        *,
        other_than: NodeId | None = None,
        epoch_at_least: Epoch | None = None,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> NodeId:
        """A broker (``node``, or any but ``other_than``) leads the partition, and has begun to; which one."""
        wish = Wish(
            topic=topic, partition=partition, leader=node, leader_not=other_than, leader_epoch_at_least=epoch_at_least
        )
        return (await self.until(wish, timeout_s=timeout_s)).leader

    async def isr(
        self,
        topic: str,
        partition: int = 0,
        members: Collection[NodeId] | None = None,
        *,
        size: int | None = None,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> tuple[NodeId, ...]:
        """The ISR has exactly these members, or exactly so many; which they are. InvalidRequest if neither is given."""
        if members is None and size is None:
            raise InvalidRequest('wait.isr needs members or size: isr("orders", 0, {1, 2}) or isr("orders", 0, size=2)')
        exactly = None if members is None else frozenset(members)
        wish = Wish(topic=topic, partition=partition, isr=exactly, isr_size=size)
        return (await self.until(wish, timeout_s=timeout_s)).isr

    async def high_watermark(
        self,
        topic: str,
        partition: int,
        at_least: Offset,
        *,
        replica: NodeId | None = None,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> Offset:
        """The high watermark, as the leader (or ``replica``) knows it, is ``at_least`` so far; how far."""
        wish = Wish(topic=topic, partition=partition, hw_at_least=at_least, replica=replica)
        return (await self.until(wish, timeout_s=timeout_s)).hw or 0

    async def log_end(
        self,
        topic: str,
        partition: int,
        at_least: Offset,
        *,
        replica: NodeId | None = None,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> Offset:
        """The log of the leader (or of ``replica``) ends ``at_least`` there; where."""
        wish = Wish(topic=topic, partition=partition, leo_at_least=at_least, replica=replica)
        return (await self.until(wish, timeout_s=timeout_s)).leo or 0

    async def alive(self, *nodes: NodeId, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """These brokers are registered and not fenced."""
        await self.until(Wish(alive=frozenset(nodes)), timeout_s=timeout_s)

    async def fenced(self, *nodes: NodeId, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """The controller has fenced these brokers."""
        await self.until(Wish(fenced=frozenset(nodes)), timeout_s=timeout_s)

    async def controller(
        self, node: SomeNode = ANY, *, other_than: NodeId | None = None, timeout_s: float = WAIT_TIMEOUT_S
    ) -> NodeId:
        """A broker (``node``, or any but ``other_than``) is the active controller; which one."""
        state = await self.until(Wish(controller=node, controller_not=other_than), timeout_s=timeout_s)
        return -1 if state.controller is None else state.controller


# ---- events ----------------------------------------------------------------------------------------------------------


class ClusterEvents:
    """``cluster.events``: events of all brokers, oldest first, in the order in which they happened."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    @property
    def mark(self) -> int:
        """The number that the next event will have: for ``since``."""
        return self._stage.instruments.ring.end

    def all(self, *kinds: str, partition: str = "", node: NodeId | None = None, since: int = 0) -> list[Line]:
        """The events of these kinds (none: every kind), as journal entries with their number as ``seq``."""
        wanted = _wanted(kinds, partition, node)
        return [row.line() for row in self._stage.instruments.ring.rows(since, wanted=wanted)]

    def __iter__(self) -> Iterator[Line]:
        return iter(self.all())

    async def wait(
        self,
        *kinds: str,
        partition: str = "",
        node: NodeId | None = None,
        since: int = 0,
        timeout_s: float = WAIT_TIMEOUT_S,
        **facts: object,
    ) -> Line:
        """The first event of these kinds with these facts; RequestTimedOut tells which were seen instead."""
        ring = self._stage.instruments.ring
        wanted = _wanted(kinds, partition, node)

        async def event() -> Line:
            start, seen = since, 0
            deadline = asyncio.get_running_loop().time() + timeout_s
            while True:
                end = ring.end
                for row in ring.rows(start, wanted=wanted):
                    line = row.line()
                    if all(line.get(name) == value for name, value in facts.items()):
                        return line
                    seen += 1
                start = max(start, end)
                left_s = deadline - asyncio.get_running_loop().time()
                if left_s <= 0 or (ring.end == end and not await ring.until_news(end, left_s)):
                    which = f"{' or '.join(kinds) or 'event'} with {facts}" if facts else " or ".join(kinds) or "event"
                    raise RequestTimedOut(
                        f"after {timeout_s:g} s no {which} {f'of {partition} ' if partition else ''}happened"
                        + (f", only {seen} with other facts" if seen else ""),
                        seen=seen,
                    )

        return await self._stage.on_loop(event)

    def write(self, path: str | Path, *, since: int = 0) -> int:
        """Write a journal, which ``minikafka sim show`` opens; how many events it has."""
        return self._stage.instruments.ring.write(Path(path), since)


def _wanted(kinds: tuple[str, ...], partition: str, node: NodeId | None) -> Wanted:
    """InvalidRequest for a misspelled kind: that none of it happened would be true of every test."""
    for kind in kinds:
        if kind not in CATALOGUE:
            raise InvalidRequest(
                f"there is no event {kind!r}{did_you_mean(kind, CATALOGUE, quoted=True)}", field="kind"
            )
    return Wanted(kinds, partition, "" if node is None else str(node))
