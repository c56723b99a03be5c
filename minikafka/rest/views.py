"""What the brokers themselves say of one partition: asked side by side, in bounded time, and never a failure.

A view is ExplainPartition's answer. Brokers that are down, stopped or slow are left out: people look here just then.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from minikafka.errors import ProtocolError
from minikafka.events import sentence_of
from minikafka.quorum.image import MetadataImage
from minikafka.rest.host import Host
from minikafka.rest.leaders import answer_of, ask
from minikafka.rest.route import Visit
from minikafka.rest.sentences import timestamp_text
from minikafka.types import NodeId, TopicPartition
from minikafka.wire.messages import DescribedReplica, ExplainPartitionRequest, ExplainPartitionResponse, StoryEntry

# A broker that lives answers in milliseconds; a longer wait ends without the one that does not.
PATIENCE_S = 1.0
FENCED_PATIENCE_S = 0.25
"""A fenced broker answers while it loads. One that is down must not hold up the values of the others."""

Views: TypeAlias = dict[NodeId, ExplainPartitionResponse]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, and which broker remembers it."""

    broker: NodeId
    kind: str
    at_ms: int
    cause: str
    facts: dict[str, Any]

    @property
    def partition_epoch(self) -> int:
        """-1: not a change that the controller recorded."""
        return int(self.facts.get("partition_epoch", -1))

    @property
    def sentence(self) -> str:
        """What happened, for people."""
        return sentence_of(self.kind, self.facts)

    @property
    def at(self) -> str | None:
        """When; None: before the broker started."""
        return timestamp_text(self.at_ms)


async def views_of(visit: Visit, name: TopicPartition, nodes: Iterable[NodeId]) -> Views:
    """The views of those of ``nodes`` that answer."""
    image = visit.host.image
    asked = [node for node in dict.fromkeys(nodes) if node == visit.host.node_id or node in image.brokers]
    request = ExplainPartitionRequest(**name._asdict())

    async def view(node: NodeId) -> ExplainPartitionResponse | None:
        try:
            patience_s = patience_with(image, node)
            view: ExplainPartitionResponse = await ask(visit, node, request, wait_s=patience_s, slack_s=0.0)
        except ProtocolError:
            # Visible in the answer: `told_by` has those that answered.
            return None
        return view

    found = await asyncio.gather(*(view(node) for node in asked))
    return {node: view for node, view in zip(asked, found, strict=True) if view is not None}


def patience_with(image: MetadataImage, node: NodeId) -> float:
    """How long to wait for a view of a broker, in seconds."""
    return PATIENCE_S if image.alive(node) else FENCED_PATIENCE_S


def live_brokers(host: Host) -> list[NodeId]:
    """This broker, and those that live by its metadata."""
    return sorted({host.node_id, *filter(host.image.alive, host.image.brokers)})


async def gather_from_all(host: Host, request: Any) -> dict[NodeId, Any]:
    """The responses of the live brokers that answer within PATIENCE_S, side by side, as this broker's own request.

    What of them a client may see is for the caller to decide.
    """
    asked, deadline = live_brokers(host), host.world.clock.now() + PATIENCE_S
    found = await asyncio.gather(*(answer_of(host, node, request, deadline) for node in asked))
    return {node: response for node, response in zip(asked, found, strict=True) if response is not None}


def leaders_view(views: Views, leader: NodeId) -> DescribedReplica | None:
    """What the leader knows; None when it does not answer, or does not lead (yet, or any more)."""
    view = views.get(leader)
    replica = view.replica if view is not None else None
    return replica if replica is not None and replica.role == "leader" else None


def event_of(broker: NodeId, entry: StoryEntry) -> Event:
    """An entry as the broker remembers it."""
    return Event(broker, entry.event, entry.at_ms, entry.cause, json.loads(entry.facts_json))


def story_of(views: Views) -> list[Event]:
    """All that is remembered of a partition, oldest first."""
    return without_repeats(event_of(broker, entry) for broker in sorted(views) for entry in views[broker].story)


def without_repeats(events: Iterable[Event]) -> list[Event]:
    """Events of several brokers, oldest first. What the controller recorded is there once, with the reason."""
    recorded: dict[tuple[Any, ...], Event] = {}
    others: list[Event] = []
    for event in events:
        facts = event.facts
        if event.partition_epoch >= 0:
            key: tuple[Any, ...] = (event.kind, facts.get("partition"), event.partition_epoch)
        elif "broker_epoch" in facts:
            key = (event.kind, facts.get("broker"), facts["broker_epoch"])
        else:
            others.append(event)
            continue
        if key not in recorded or _knowledge(event) > _knowledge(recorded[key]):
            recorded[key] = event
    return sorted([*recorded.values(), *others], key=lambda event: (event.at_ms, event.partition_epoch))


def _knowledge(event: Event) -> tuple[bool, bool, bool]:
    """The one that decided knows why; the one that was there knows when."""
    return bool(event.facts.get("decided_here")), event.at_ms >= 0, bool(event.facts.get("why"))


def last(story: Sequence[Event], *kinds: str) -> Event | None:
    """The newest event of these kinds."""
    return next((event for event in reversed(story) if event.kind in kinds), None)


def why_it_left(story: Sequence[Event], node: NodeId) -> str:
    """Why ``node`` is not in the ISR any more, as far as anybody remembers; empty when nobody does."""
    for event in reversed(story):
        shrunk = event.kind in ("isr_shrunk", "isr_changed")
        if shrunk and node in event.facts["old"] and node not in event.facts["new"]:
            return str(event.facts.get("why", ""))
    return ""
