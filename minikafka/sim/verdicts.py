"""What may become of a message between two nodes, and rules that decide it.

A rule is asked about each message when it is sent; None means "no opinion". :func:`matching` makes the usual ones::

    network.rule(matching(Drop(), api="Fetch", kind="answer", source="n1", target="n2", count=3))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import Struct

from minikafka.faults import MessageKind


class Message(Struct, frozen=True, gc=False):
    """One message on one directed link."""

    call: int
    """The same number for a request, its duplicates and its answers."""
    kind: MessageKind
    source: str
    target: str
    api: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Deliver:
    """Let it arrive ``after_s`` virtual seconds; None draws the link's own delay."""

    after_s: float | None = None
    again_after_s: float | None = None
    """A request arrives a second time so much later, as through a retrying proxy; the first response wins."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Lose it silently."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Break the connection instead of delivering."""

    is_refused: bool = False
    """The request is refused in the target's place, as by a firewall that rejects packets."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep it until :meth:`SimNetwork.release`."""


Verdict: TypeAlias = Deliver | Drop | Reset | Hold
Rule: TypeAlias = Callable[[Message], Verdict | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProfile:
    """How a directed link behaves; probabilities are per message."""

    delay_mean_s: float = 0.001
    loss: float = 0.0
    reset: float = 0.0
    duplicate: float = 0.0
    """A request arrives twice, as through a retrying proxy; the first answer wins."""
    bytes_per_s: float = 0.0
    """A message waits until those before it are through; 0: no limit."""


def matching(
    verdict: Verdict,
    *,
    api: str | None = None,
    kind: MessageKind | None = None,
    source: str | None = None,
    target: str | None = None,
    count: int | None = None,
) -> Rule:
    """A rule that gives ``verdict`` to messages of this kind; None matches any; ``count`` limits how many."""
    left = count

    def rule(message: Message) -> Verdict | None:
        nonlocal left
        fits = (
            (api is None or message.api == api)
            and (kind is None or message.kind == kind)
            and (source is None or message.source == source)
            and (target is None or message.target == target)
        )
        if not fits or left == 0:
            return None
        if left is not None:
            left -= 1
        return verdict

    return rule
