"""One simulation: a seed, a loop, a network, a disk per node, and every event.

``SimWorld.of(node)`` builds the ports for a new incarnation of a node; ``SimWorld.spawn(node, coro)`` runs code on it.
Whatever serves or starts tasks must be spawned, else it would belong to nobody and survive the node::

    with SimWorld(seed=7) as sim:
        world = sim.of("n1")
        broker = Broker(config, world)
        await sim.spawn("n1", broker.start())      # from inside sim.run(...)

Rule for this file: each purpose draws from a stream of its own, forked from the seed by name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from random import Random
from typing import Any, Self, TypeVar

from msgspec import Struct

from minikafka.ports import CAUSE, World
from minikafka.sim.disk import SimDisk
from minikafka.sim.loop import Incarnation, SimLoop
from minikafka.sim.network import SimNetwork

T = TypeVar("T")

# Where every simulated calendar starts: a round number that is easy to subtract when reading traces.
WALL_START_MS = 1_700_000_000_000

# Nodes' calendars differ by up to this much, as those of machines whose time service works.
WALL_SKEW_MAX_S = 0.25

# A long computation beside the loop takes up to this long.
OFFLOAD_MAX_S = 0.1


class Event(Struct, frozen=True, gc=False):
    """An event of a rule."""

    time: float
    """Virtual seconds."""
    node: str
    incarnation: int
    kind: str
    facts: Mapping[str, object]
    cause: str

    def __str__(self) -> str:
        facts = " ".join(
            [
                f"{name}={value!r}" if type(value) in _SHOWN_AS_THEY_ARE else f"{name}={canonical(value)}"
                for name, value in self.facts.items()
            ]
        )
        return f"{self.time:.6f} {self.node}#{self.incarnation} {self.kind} {facts}" + (
            f" <- {self.cause}" if self.cause else ""
        )


_SHOWN_AS_THEY_ARE = frozenset({str, bytes, bool, int, float, type(None)})


def canonical(value: object) -> str:
    """A text that is the same in every run: sets are sorted, and objects are never shown by address."""
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(canonical(item) for item in value)) + "}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{canonical(k)}: {canonical(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(canonical(item) for item in value) + "]"
    if value is None or isinstance(value, (str, bytes, bool, int, float)):
        return repr(value)
    return str(value) if type(value).__str__ is not object.__str__ else type(value).__qualname__


class SimClock:
    """The clocks of one node: true virtual time, and a calendar that may be wrong."""

    def __init__(self, loop: SimLoop, skew_s: float) -> None:
        self.skew_s = skew_s
        """Seconds that the calendar is ahead; change it and the calendar jumps."""
        self._loop = loop

    def now(self) -> float:
        return self._loop.now

    def ticks_ns(self) -> int:
        return int(self._loop.now * 1_000_000_000)

    def wall_ms(self) -> int:
        return WALL_START_MS + int((self._loop.now + self.skew_s) * 1000)


class SimWorld:
    """A whole simulated world; the seed decides everything that is left open.

    ``seed=None`` runs ready nodes in plain FIFO order, the trace that reads best.
    """

    def __init__(self, seed: object, *, choose: Callable[[int], int] | None = None) -> None:
        self.seed = seed
        self.loop = SimLoop(seed, choose=choose)
        self.network = SimNetwork(seed, self.loop)
        self.network.tell = self.tell
        self.journal: list[Event] = []
        """Every event, in order."""
        self.marks: Counter[str] = Counter()
        """How often each kind of event happened: proof that rare paths were taken."""
        self.observers: list[Callable[[Event], None]] = []
        """Called with each event as it happens; an exception from here goes to the rule that reported it."""
        self._offload_times = Random(f"{seed}/offload")
        self._disks: dict[str, SimDisk] = {}
        self._clocks: dict[str, SimClock] = {}

    # ------------------------------------------------------------------------------------- nodes

    def of(self, node: str) -> World:
        """The ports for a new incarnation of ``node``; what is left of the last one is killed."""
        if self.loop.alive(node):
            self.kill(node)
        incarnation = self.loop.incarnate(node)
        self.network.unpowered.discard(node)
        self.tell("node_started", node)
        return World(
            clock=self.clock(node),
            network=self.network.of(incarnation),
            disk=self.disk(node).of(incarnation),
            events=self._teller(incarnation),
            random=Random(f"{self.seed}/node/{incarnation}"),
            entropy=Random(f"{self.seed}/entropy/{incarnation}").randbytes,
            offload=self._offload,
        )

    async def _offload(self, work: Callable[[], T], /) -> T:
        """Take some virtual time, as a thread would: what arrives meanwhile is handled meanwhile."""
        await asyncio.sleep(self._offload_times.uniform(0, OFFLOAD_MAX_S))
        return work()

    def disk(self, node: str) -> SimDisk:
        """The node's disk, for faults and for looking at it."""
        disk = self._disks.get(node)
        if disk is None:
            disk = self._disks[node] = SimDisk(self.seed, node, self.loop, self.clock(node).wall_ms)
        return disk

    def clock(self, node: str) -> SimClock:
        """The node's clocks."""
        clock = self._clocks.get(node)
        if clock is None:
            skew_s = Random(f"{self.seed}/clock/{node}").uniform(-WALL_SKEW_MAX_S, WALL_SKEW_MAX_S)
            clock = self._clocks[node] = SimClock(self.loop, skew_s)
        return clock

    def spawn(self, node: str, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run ``coro`` as the living incarnation of ``node``.

        Awaiting the task of a node that dies waits for ever: put a timeout around it.
        """
        return self.loop.spawn(node, coro)

    def kill(self, node: str) -> None:
        """Kill -9: the process is gone, its connections are reset, the page cache stays."""
        if self.loop.alive(node):
            self.tell("node_killed", node)
        self._end(node, powered=True)

    def power_cut(self, *nodes: str) -> None:
        """Cut the power of machines: silence on the network; the disks keep what was synced and a drawn part more."""
        for node in nodes:
            self.tell("node_power_cut", node)
            self._end(node, powered=False)
            self.network.unpowered.add(node)
        for node in nodes:
            self.disk(node).power_cut()

    def _end(self, node: str, *, powered: bool) -> None:
        if self.loop.alive(node):
            incarnation = self.loop.incarnations[node]
            self.loop.kill(node)
            self.network.node_died(incarnation, powered=powered)

    def pause(self, node: str) -> None:
        """SIGSTOP: the node's connections stay open and nothing answers."""
        self.loop.pause(node)
        self.tell("node_paused", node)

    def resume(self, node: str) -> None:
        """SIGCONT."""
        if self.loop.alive(node) and self.loop.incarnations[node].paused:
            self.tell("node_resumed", node)
        self.loop.resume(node)

    def jump_clock(self, node: str, seconds: float) -> None:
        """Set the node's calendar forward or, with a negative number, back."""
        self.tell("clock_jumped", node, seconds=seconds)
        self.clock(node).skew_s += seconds

    # ------------------------------------------------------------------------------------- running

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run the test's own script to its end."""
        return self.loop.run(coro)

    def run_until(self, deadline: float | None = None, met: Callable[[], bool] | None = None) -> bool:
        """See :meth:`SimLoop.run_until`."""
        return self.loop.run_until(deadline, met)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise SimulationFailed when something failed unseen; throw away what is unfinished."""
        try:
            if error is None:
                self.loop.check()
        finally:
            self.loop.close()

    def _teller(self, incarnation: Incarnation) -> Callable[..., None]:
        def tell(kind: str, /, **facts: object) -> None:
            if incarnation.alive:
                self._note(Event(self.loop.now, incarnation.node, incarnation.number, kind, facts, CAUSE.get()))

        return tell

    def tell(self, kind: str, node: str, /, **facts: object) -> None:
        """Note what is done to a node from outside: the journal explains itself."""
        incarnation = self.loop.incarnations.get(node)
        self._note(Event(self.loop.now, node, incarnation.number if incarnation else 0, kind, facts, ""))

    def _note(self, event: Event) -> None:
        self.journal.append(event)
        self.marks[event.kind] += 1
        self.loop.trace.entries.append(event)
        self.loop.has_event = True
        for observer in self.observers:
            observer(event)
