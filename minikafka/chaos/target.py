"""What faults are carried out on: the port that ``processes``, ``netns`` and ``compose`` implement, and their brokers.

A target owns its brokers, their files and whatever it changes on the machine. The runner (``runner.py``) decides who is
hit and when, and calls :meth:`Target.begin` and :meth:`Target.end` with the same hit. :class:`Fleet` has the brokers,
processes or containers, that several faults hold down or hold still at once.

Rules for targets:

1. :meth:`Target.lacks` is asked before anything is started: a fault that cannot be made is refused, not left out.
2. ``begin`` returns when the fault is in force, ``end`` when it is put right: who was killed or stopped has been
   started and answers (not: is in sync). Faults may overlap; what one of them does outlives a restart of the broker
   that another one makes.
3. ``heal`` puts everything right that is not, and starts every stopped broker; it may be called at any time, twice too.
4. ``close`` leaves nothing behind: no process, no rule of a firewall, no mount, no file but those in its folder. It may
   be called at any time, after a failed ``start`` too.

Rules for a fleet:

1. A broker runs when no fault holds it down, and goes on when no fault holds it still: the last fault that ends starts
   it.
2. A broker that died by itself is started when a fault that struck it ends, and when all is put right; only then is it
   an error if it dies again.
3. A broker that is started is held still again, if a fault does so, once it answers.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from minikafka.chaos.scenario import Hit, Scenario
from minikafka.errors import InvalidConfig, WorldError
from minikafka.faults import KILL, MESSAGES, PAUSE, POWER_LOSS, STOP
from minikafka.hosting.processes import READY_TIMEOUT_S, BrokerDied
from minikafka.hosting.secured import PLAINTEXT
from minikafka.types import Address, NodeId

SIMULATOR: Final = "simulator"

REAL: Final[Mapping[str, str]] = {
    "processes": "minikafka.chaos.processes:ProcessTarget",
    "netns": "minikafka.chaos.netns:NetnsTarget",
    "compose": "minikafka.chaos.compose:ComposeTarget",
}
"""Name -> ``module:class`` of a Target; loaded when asked for."""

SECURED: Final = "netns"
"""The target whose clusters can have another security protocol than PLAINTEXT."""


NO_MESSAGES: Final = "single messages are struck at the brokers' testing routes; use --target processes"


class CannotMake(InvalidConfig):
    """The target lacks a fault of the scenario; the message says which and why."""


class Target(Protocol):
    """A cluster that can be hurt. Made with ``Target(scenario, folder)``; nothing is started by that.

    ``folder`` is the run's own, and exists.
    """

    name: ClassVar[str]

    def __init__(self, scenario: Scenario, folder: Path) -> None: ...

    @classmethod
    def lacks(cls, what: str) -> str | None:
        """Why this target cannot make the fault ``what`` (``minikafka/faults.py``) on this machine; None: it can.

        ``what`` is empty: can it be used on this machine at all?
        """
        ...

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        """All brokers, running or not."""
        ...

    @property
    def client_settings(self) -> Mapping[str, str]:
        """Parameters of native clients in this process, as a super user; known once it is started."""
        ...

    @property
    def kafka_settings(self) -> Mapping[str, Any] | None:
        """Parameters of aiokafka's clients that log in with SASL; None: the cluster has no SASL."""
        ...

    def addresses(self) -> Mapping[NodeId, Address]:
        """Where this process reaches each broker whose process exists (a paused or isolated one does)."""
        ...

    def died(self) -> Mapping[NodeId, str]:
        """Brokers that ended by themselves though no fault asked for it or explains it, and what they said last.

        Asked several times a second while faults are played: no subprocess in it.
        """
        ...

    async def start(self) -> None:
        """All brokers, with the scenario's settings; returns when each is ready. WorldError when it cannot be."""
        ...

    async def begin(self, hit: Hit) -> None:
        """Carry out the fault. Restart and rolling restart are the runner's: it calls this with ``stop``."""
        ...

    async def end(self, hit: Hit) -> None:
        """Put it right again."""
        ...

    async def heal(self) -> None:
        """Put everything right, and start every broker that does not run."""
        ...

    async def stop(self) -> Mapping[NodeId, Path]:
        """Stop all brokers in good order; where each one's data directory can be read now."""
        ...

    async def close(self) -> None:
        """Leave nothing behind but files in the folder."""
        ...


def target_class(name: str) -> type[Target]:
    """The class of a real target. InvalidConfig for an unknown name."""
    place = REAL.get(name)
    if place is None:
        raise InvalidConfig(f"--target {name}: one of {', '.join(target_names())} is needed")
    module, _, attribute = place.partition(":")
    found: type[Target] = getattr(importlib.import_module(module), attribute)
    return found


def target_names() -> tuple[str, ...]:
    """All that a scenario can be played on."""
    return (SIMULATOR, *REAL)


def lacks(name: str, scenario: Scenario) -> tuple[str, ...]:
    """Why the target cannot play the scenario here: a sentence for each fault that it lacks; empty: it can."""
    protocol = scenario.cluster.security_protocol
    if protocol != PLAINTEXT and name != SECURED:
        return (f"{name} cannot use {protocol}: only {SECURED} can",)
    if name == SIMULATOR:
        return (f"{name} cannot make {MESSAGES}: {NO_MESSAGES}",) if MESSAGES in scenario.faults() else ()
    target = target_class(name)
    obstacles = {what: target.lacks(what) for what in ("", *scenario.faults())}
    if obstacles[""] is not None:
        return (f"{name} cannot be used here: {obstacles['']}",)
    return tuple(f"{name} cannot make {what}: {why}" for what, why in obstacles.items() if why is not None)


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


_DEEDS: Final[Mapping[str, Callable[[Member], Awaitable[object]]]] = {
    **dict.fromkeys((KILL, POWER_LOSS), lambda broker: broker.kill9()),
    STOP: lambda broker: broker.terminate(),
    PAUSE: lambda broker: broker.freeze(),
}


class Fleet:
    """``answers`` tells whether a broker accepts a connection. Each hit that is in force holds its brokers."""

    def __init__(
        self,
        brokers: Mapping[NodeId, Member],
        answers: Answers,
        *,
        on_start: Callable[[NodeId], object] = lambda _node: None,
    ) -> None:
        self.brokers = brokers
        self._answers = answers
        self._on_start = on_start
        self._down: dict[NodeId, set[int]] = {node: set() for node in brokers}
        self._still: dict[NodeId, set[int]] = {node: set() for node in brokers}
        self._starting = {node: asyncio.Lock() for node in brokers}
        self._returning: Counter[NodeId] = Counter()

    async def begin(self, hit: Hit) -> None:
        """Kill, stop or freeze the brokers that are hit, all at once; kills and stops are waited for."""
        held = self._still if hit.what == PAUSE else self._down
        for node in hit.nodes:
            held[node].add(hit.strike.number)
        await asyncio.gather(*(_DEEDS[hit.what](self.brokers[node]) for node in hit.nodes))

    async def end(self, hit: Hit) -> None:
        """Resume or start the brokers that no other fault holds; a broker that had died by itself starts, too.

        Returns when those that start answer, or have died again. WorldError.
        """
        for node in hit.nodes:
            self._down[node].discard(hit.strike.number)
            self._still[node].discard(hit.strike.number)
        if hit.what == PAUSE:
            for node in hit.nodes:
                if not self._still[node]:
                    await self.brokers[node].thaw()
            return
        with self.returning(hit.nodes):
            await asyncio.gather(*map(self._start, hit.nodes))

    @contextmanager
    def returning(self, nodes: tuple[NodeId, ...]) -> Iterator[None]:
        """What struck them is being put right: that they do not run is no surprise yet."""
        self._returning.update(nodes)
        try:
            yield
        finally:
            self._returning.subtract(nodes)

    def is_missed(self, node: NodeId) -> bool:
        """Return True if the broker does not run although no fault holds it down and none is about to start it."""
        is_expected = self._down[node] or self._returning[node] or self._starting[node].locked()
        return not (self.brokers[node].is_running or is_expected)

    def is_held(self, node: NodeId) -> bool:
        """Return True if a fault holds the broker down, or still."""
        return bool(self._down[node] or self._still[node])

    async def heal(self) -> None:
        """End all holds: all brokers resume and run. Raises WorldError; BrokerDied when one does not."""
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
            self._on_start(node)
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
