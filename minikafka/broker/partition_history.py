"""What happened to each partition lately, for *explain*: the events of the rules, and what the metadata became (D9).

Two sources meet here. The rules of this broker's replicas tell events, with the cause that the dispatcher has set. The
images of the metadata tell elections and ISR changes to every broker; the one that is the active controller also knows
why it decided, the others read it off what changed in the same batch (a broker was fenced, so it left the ISR).

Rules for this file: it only remembers; nothing is decided by what it holds. What it holds is bounded: a few entries a
partition, for the partitions that changed last.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from minikafka.events import INFO, level_of
from minikafka.ports import CAUSE, Clock, Events, unheard_by
from minikafka.quorum.image import BrokerImage, MetadataImage, PartitionImage
from minikafka.quorum.story import happenings
from minikafka.types import NO_NODE, NodeId, TopicPartition
from minikafka.wire.messages import StoryEntry

ENTRIES_MAX = 24
PARTITIONS_MAX = 2_000

FROM_RULES = frozenset(
    {
        "became_leader",
        "became_follower",
        "became_leaderless",
        "damage_read",
        "fetch_diverged",
        "isr_proposal_refused",
        "isr_proposed",
        "log_restarted",
        "log_start_raised",
        "replica_failed",
        "replicas_changed",
        "tail_truncated",
        "torn_tail_dropped",
    }
)
"""Events of this broker's replicas; changes of the ISR come from the metadata images."""

FROM_IMAGES = frozenset(
    {
        "elr_changed",
        "isr_changed",
        "isr_expanded",
        "isr_shrunk",
        "leader_elected",
        "leader_lost",
        "reassignment_begun",
        "reassignment_ended",
    }
)

OF_BROKERS = frozenset(
    {"broker_fenced", "broker_registered", "broker_unfenced", "broker_unregistered", "controlled_shutdown_begun"}
)
"""Changes of other brokers: the active controller reports them, all others read them off the images."""

WATERMARK_MOVED = "hw_advanced"
REFUSED = "produce_refused"


@dataclass(slots=True)
class Entry:
    """One event."""

    kind: str
    at_ms: int
    cause: str
    facts: Mapping[str, Any]

    def message(self) -> StoryEntry:
        """As it travels."""
        facts = json.dumps(self.facts, default=_plain, separators=(",", ":"))
        return StoryEntry(event=self.kind, at_ms=self.at_ms, cause=self.cause, facts_json=facts)


@dataclass(slots=True)
class PartitionStory:
    """What is remembered of one partition."""

    entries: deque[Entry] = field(default_factory=lambda: deque(maxlen=ENTRIES_MAX))
    moved: tuple[int, str, Mapping[str, Any]] | None = None
    """When the watermark moved last, the cause, and the facts: every append moves it, so it becomes an entry only when
    an explanation asks for it."""
    refused: Entry | None = None

    @property
    def watermark_moved(self) -> Entry | None:
        """The last move of the high watermark."""
        return None if self.moved is None else Entry(WATERMARK_MOVED, *self.moved)


class PartitionHistory:
    """One broker's memory of its partitions, and of those it only knows from the metadata."""

    def __init__(
        self,
        clock: Clock,
        events: Events,
        is_replaying: Callable[[], bool],
        history: Callable[[Entry], None] = lambda _: None,
    ) -> None:
        """``events`` gets every event that this one gets. ``is_replaying``: what the images contain happened before
        this broker started. ``history`` gets the entries of all partitions, and what happened to the broker.
        """
        self.unheard = unheard_by(events)
        """That of the sink: what else is remembered here is never hot."""
        self._clock = clock
        self._events = events
        self._is_replaying = is_replaying
        self._history = history
        self._stories: OrderedDict[str, PartitionStory] = OrderedDict()

    def of(self, partition: TopicPartition) -> PartitionStory:
        """What is remembered; empty for a partition that nothing happened to."""
        return self._stories.get(str(partition)) or PartitionStory()

    def __call__(self, kind: str, /, **facts: Any) -> None:
        """The Events port: remember what concerns a partition, and tell it on."""
        if kind == WATERMARK_MOVED:
            story = self._story(facts["partition"])
            story.moved = self._clock.wall_ms(), CAUSE.get(), facts
            if self.unheard.counted(kind):
                return
        elif kind in FROM_RULES:
            self._remember(self._entry(kind, facts))
        elif kind == REFUSED:
            entry = self._story(facts["partition"]).refused = self._entry(kind, facts)
            self._history(entry)
        elif kind in FROM_IMAGES and "why" in facts:
            self._learn_why(kind, facts)
        elif kind == "replica_deleted":
            self._stories.pop(facts["partition"], None)
        elif "partition" not in facts and level_of(kind, facts) >= INFO:
            self._history(self._entry(kind, facts))
        self._events(kind, **facts)

    def on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """The metadata has changed."""
        for each in happenings(old, new, ""):
            if each.kind in FROM_IMAGES:
                facts = dict(each.facts, offset=new.offset - 1)
                facts["why"] = _why(old, new, str(facts["partition"]))
                self._remember(self._entry(each.kind, facts, from_image=True))
            elif each.kind in OF_BROKERS:
                self._history(self._entry(each.kind, each.facts, from_image=True))

    def remember(self, kind: str, facts: Mapping[str, Any]) -> None:
        """An event that reached the sink without this one, for the history."""
        self._history(self._entry(kind, facts))

    def _remember(self, entry: Entry) -> None:
        self._story(str(entry.facts["partition"])).entries.append(entry)
        self._history(entry)

    def _learn_why(self, kind: str, facts: Mapping[str, Any]) -> None:
        """The active controller tells the reason of what its image has shown a moment before."""
        story = self._stories.get(facts["partition"])
        for entry in reversed(story.entries if story is not None else ()):
            if entry.kind == kind and entry.facts.get("partition_epoch") == facts.get("partition_epoch"):
                entry.facts = {**entry.facts, "why": facts["why"], "decided_here": True}
                entry.cause = CAUSE.get()
                return

    def _entry(self, kind: str, facts: Mapping[str, Any], *, from_image: bool = False) -> Entry:
        at_ms = -1 if from_image and self._is_replaying() else self._clock.wall_ms()
        return Entry(kind, at_ms, "" if from_image else CAUSE.get(), facts)

    def _story(self, partition: str) -> PartitionStory:
        story = self._stories.get(partition)
        if story is None:
            story = self._stories[partition] = PartitionStory()
            if len(self._stories) > PARTITIONS_MAX:
                self._stories.popitem(last=False)
        else:
            self._stories.move_to_end(partition)
        return story


def _plain(value: object) -> object:
    """What JSON does not know: sets, and whatever else a fact may be."""
    return sorted(map(str, value)) if isinstance(value, set | frozenset) else str(value)


def _why(old: MetadataImage, new: MetadataImage, partition: str) -> str:
    """What else changed with it says why, on brokers that did not decide it."""
    name = TopicPartition.parsed(partition)
    before, after = old.partition(name), new.partition(name)
    if before is None or after is None:
        return ""
    causes = [_fate(node, old.brokers.get(node), new.brokers.get(node)) for node in _concerned(before, after)]
    found = [cause for cause in causes if cause]
    if found:
        return "; ".join(found)
    if before.leader_epoch != after.leader_epoch:
        preferred = after.leader == after.replicas[0]
        return "leadership was moved to the preferred replica" if preferred else "an election was held"
    if before.isr != after.isr and after.leader != NO_NODE:
        return f"leader {after.leader} proposed the ISR"
    return ""


def _concerned(before: PartitionImage, after: PartitionImage) -> list[NodeId]:
    """Brokers that left or joined the ISR, or that led or lead: their changes are the cause."""
    moved = set(before.isr) ^ set(after.isr) | {before.leader, after.leader}
    return sorted(moved - {NO_NODE})


def _fate(node: NodeId, old: BrokerImage | None, new: BrokerImage | None) -> str:
    if old is new or new is None:
        return ""
    if old is None or old.broker_epoch != new.broker_epoch:
        return f"broker {node} registered again: it had restarted"
    if new.fenced and not old.fenced:
        left = old.in_controlled_shutdown
        # The metadata does not say which of the two it was; the active controller's own story does.
        lost = "its session has ended, or its address refused connections"
        return f"broker {node} was fenced: " + ("its shutdown is complete" if left else lost)
    if new.in_controlled_shutdown and not old.in_controlled_shutdown:
        return f"broker {node} shuts down"
    return f"broker {node} is back" if old.fenced and not new.fenced else ""
