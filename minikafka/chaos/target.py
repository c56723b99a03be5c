"""What faults are carried out on: the port that ``processes``, ``netns`` and ``compose`` implement.

A target owns its brokers, their files and whatever it changes on the machine. The runner (``runner.py``) decides who is
hit and when, and calls :meth:`Target.begin` and :meth:`Target.end` with the same hit.

Rules for this file:

1. :meth:`Target.lacks` is asked before anything is started: a fault that cannot be made is refused, not left out.
2. ``begin`` returns when the fault is in force, ``end`` when it is put right: who was killed or stopped has been
   started and answers (not: is in sync). Faults may overlap; what one of them does outlives a restart of the broker
   that another one makes.
3. ``heal`` puts everything right that is not, and starts every stopped broker; it may be called at any time, twice too.
4. ``close`` leaves nothing behind: no process, no rule of a firewall, no mount, no file but those in its folder. It may
   be called at any time, after a failed ``start`` too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from minikafka.chaos.scenario import Scenario
from minikafka.chaos.timeline import Hit
from minikafka.errors import InvalidConfig
from minikafka.faults import MESSAGES
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
    """A cluster that can be hurt. Made with ``Target(scenario, folder, say)``; nothing is started by that.

    ``folder`` is the run's own, and exists; ``say`` takes a line for people.
    """

    name: ClassVar[str]

    def __init__(self, scenario: Scenario, folder: Path, say: Callable[[str], object]) -> None: ...

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

    def journals(self) -> tuple[Path, ...]:
        """The brokers' journals (``mk.journal.path``), for the replay page."""
        ...


MakeTarget = Callable[[Scenario, Path, Callable[[str], object]], Target]


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
