"""What tests injected into the cluster through this broker, in order, so that it can be written again as a script.

A request is recorded by the broker that received it, whichever broker carried it out: a broker that was killed takes
its memory with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from minikafka.types import NodeId
from minikafka.world.faults import FaultSpec

INJECTIONS_MAX: Final = 500
"""The latest are kept."""

Act: TypeAlias = Literal["set", "heal", "release", "kill", "stop", "start", "machine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One act, as it was requested."""

    at_ms: int
    """Milliseconds since 1970, of the broker that received the request."""
    act: Act
    broker: NodeId | None = None
    """The broker that it concerns; None: all."""
    fault: int | None = None
    """Of ``set``, ``heal`` and ``release``: the fault's number at its broker; None: all of its faults."""
    spec: FaultSpec | None = None
    """Of ``set``."""
    is_alone: bool = False
    """The broker has its faults for itself: those of its process alone strike what it sends and receives."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of ``machine``: all that is wrong with it from now on. Of ``release``: what was requested."""
