"""``.../partitions/{p}/explain``: causes of the leader, ISR, high watermark and last stable offset; the last refusal.

Each is a sentence and the chain of events that led to it, taken from what the brokers that answer remember.
"""

from __future__ import annotations

from typing import Any

from minikafka.errors import UnknownTopicOrPartition
from minikafka.quorum.image import PartitionImage
from minikafka.rest.fetch import name_of
from minikafka.rest.leaders import partition_of
from minikafka.rest.model import Model, many_of, member, one
from minikafka.rest.parameters import FORWARD, PARTITION, TOPIC
from minikafka.rest.partitions import REPLICA_EXAMPLE, asked_views, leader_out, replicas_of
from minikafka.rest.route import Route
from minikafka.rest.schema import flag, nodes, nullable, ref, text, whole
from minikafka.rest.schemas import Event as EventOut
from minikafka.rest.schemas import Leader, Place
from minikafka.rest.sentences import timestamp_text, why_nobody_leads, why_the_stable_offset, why_the_watermark
from minikafka.rest.views import Event, Views, event_of, last, leaders_view, story_of
from minikafka.rest.visit import Reply, Visit
from minikafka.types import NO_NODE, NodeId, Offset
from minikafka.wire.messages import DescribedReplica, UnstableTransaction

_CHAIN = "What led to it, the oldest first."


class _Leads(Model):
    """The leader, and why."""

    leader: Any = one(Leader, or_null=True)
    sentence: str = member(
        text(), "broker 1 leads epoch 0: the first live replica of the assignment when the topic was created"
    )
    because: list[Event] = many_of(EventOut, _CHAIN, example=[])


class _Member(Model):
    """A replica, and why it is in or out of sync."""

    id: NodeId = member(ref("NodeId"), REPLICA_EXAMPLE["id"])
    in_sync: bool = member(flag(), REPLICA_EXAMPLE["in_sync"])
    why: str = member(text(), REPLICA_EXAMPLE["why"])


class _Isr(Model):
    """The ISR, and why."""

    isr: list[NodeId] = member(nodes("Those in sync."), [1, 2])
    elr: list[NodeId] = member(nodes("Those that may lead though they are not in sync."), [])
    replicas: list[NodeId] = member(nodes("All, the preferred leader first."), [1, 2, 3])
    proposed: list[NodeId] | None = member(nullable(nodes("What the leader has asked the controller for.")))
    sentence: str = member(text(), "the ISR is [1, 2]: of the replicas [1, 2, 3] it lacks [3]")
    members: list[Any] = many_of(_Member)
    because: list[Event] = many_of(EventOut, _CHAIN)


class _Watermark(Model):
    """The high watermark, and why."""

    high_watermark: Offset | None = member(nullable(ref("Offset")), 42)
    log_end_offset: Offset | None = member(nullable(ref("Offset")), 42)
    held_by: list[NodeId] = member(nodes("Whom it waits for."), [])
    sentence: str = member(
        text(), "the high watermark is 42, the log's end: every replica in the ISR has acknowledged all records"
    )
    because: list[Event] = many_of(EventOut, _CHAIN, example=[])


class _Unstable(Model):
    """The oldest open transaction."""

    producer_id: int = member(whole("Its producer id."), 4000)
    first_offset: Offset = member(ref("Offset"), 41)
    started_at: str | None = member(
        nullable(text("Timestamp of its first batch; null: retention has deleted that batch.")),
        "2026-11-21T08:00:00.000+00:00",
    )
    marker_offset: Offset | None = member(nullable(whole("Offset of its marker, not yet committed; null: it is open.")))


class _StableOffset(Model):
    """The last stable offset, and why."""

    last_stable_offset: Offset | None = member(nullable(ref("Offset")), 41)
    held_by: _Unstable | None = one(_Unstable, or_null=True)
    sentence: str = member(
        text(), "the last stable offset is 41: the transaction of producer 4000 began at offset 41 and is open"
    )


class _Explanation(Place):
    """Why a partition has its present state."""

    leader: _Leads = one(_Leads)
    isr: _Isr = one(_Isr)
    high_watermark: _Watermark = one(_Watermark)
    last_stable_offset: _StableOffset = one(_StableOffset)
    last_refusal: Event | None = one(EventOut, or_null=True)
    story: list[Event] = many_of(EventOut, "All that is remembered, the oldest first.")
    told_by: list[NodeId] = member(nodes("The brokers that answered."), [1, 2])


async def get_explanation(visit: Visit) -> Reply:
    """Why this leader, this ISR, this high watermark, this last stable offset; and why a producer was refused last.

    Each ``because`` is a chain of events, the oldest first: what led to the present state, as far as the brokers that
    answer remember it.
    """
    name = name_of(visit)
    views = await asked_views(visit, name, partition_of(visit.host, name))
    image = partition_of(visit.host, name)
    seen = leaders_view(views, image.leader)
    story = story_of(views)
    own = views.get(image.leader)
    moved = own.watermark_moved if own is not None else None
    unstable = own.unstable if own is not None else None
    refused = [event_of(node, view.refused) for node, view in sorted(views.items()) if view.refused is not None]
    return Reply(
        _Explanation(
            **name._asdict(),
            leader=_Leads(
                leader=leader_out(visit.host, image),
                sentence=_why_this_leader(visit, image, story),
                because=_leader_chain(story, image),
            ),
            isr=_Isr(
                isr=list(image.isr),
                elr=list(image.elr),
                replicas=list(image.replicas),
                proposed=list(seen.proposed_isr) if seen is not None and seen.proposed_isr is not None else None,
                sentence=_why_this_isr(image),
                members=[_Member.out_of(each) for each in replicas_of(visit.host, image, views)],
                because=_isr_chain(story, image),
            ),
            high_watermark=_Watermark(
                high_watermark=seen.high_watermark if seen is not None else None,
                log_end_offset=seen.log_end_offset if seen is not None else None,
                held_by=_held_by(seen),
                sentence=watermark_sentence(image, views),
                because=[event_of(image.leader, moved)] if moved is not None else [],
            ),
            last_stable_offset=_StableOffset(
                last_stable_offset=seen.last_stable_offset if seen is not None else None,
                held_by=_unstable_of(unstable),
                sentence=why_the_stable_offset(seen, unstable) if seen is not None else _why_no_watermark(image),
            ),
            last_refusal=max(refused, key=lambda event: event.at_ms) if refused else None,
            story=story,
            told_by=sorted(views),
        ).out()
    )


def _leader_chain(story: list[Event], image: PartitionImage) -> list[Event]:
    """The last change of leader, and what the leader did with it."""
    change = last(story, "leader_elected", "leader_lost")
    taken = last([event for event in story if event.broker == image.leader], "became_leader")
    return [event for event in (change, taken) if event is not None]


def _isr_chain(story: list[Event], image: PartitionImage) -> list[Event]:
    """Back to when all replicas were in sync, or to where memory ends."""
    chain: list[Event] = []
    for event in reversed(story):
        if event.kind in ("isr_shrunk", "isr_expanded", "isr_changed"):
            chain.append(event)
            if set(event.facts["old"]) >= set(image.replicas):
                break
    return chain[::-1]


def _why_this_leader(visit: Visit, image: PartitionImage, story: list[Event]) -> str:
    if image.leader == NO_NODE:
        return why_nobody_leads(visit.host.image, image)
    led = f"broker {image.leader} leads epoch {image.leader_epoch}"
    change = last(story, "leader_elected")
    if change is not None and change.facts.get("why"):
        return f"{led}: {change.facts['why']}"
    if image.leader_epoch == 0:
        return f"{led}: the first live replica of the assignment when the topic was created"
    return f"{led}; why is older than what the brokers remember"


def _why_this_isr(image: PartitionImage) -> str:
    missing = [node for node in image.replicas if node not in image.isr]
    if not missing:
        return f"the ISR is {list(image.isr)}: all replicas are in sync"
    return f"the ISR is {list(image.isr)}: of the replicas {list(image.replicas)} it lacks {missing}"


def _held_by(seen: DescribedReplica | None) -> list[NodeId]:
    """Whose log end the watermark waits for."""
    if seen is None or seen.high_watermark == seen.log_end_offset:
        return []
    return [
        each.broker_id for each in seen.remotes if each.holds_watermark and each.log_end_offset <= seen.high_watermark
    ]


def _unstable_of(unstable: UnstableTransaction | None) -> _Unstable | None:
    if unstable is None:
        return None
    return _Unstable(
        producer_id=unstable.producer_id,
        first_offset=unstable.first_offset,
        started_at=timestamp_text(unstable.started_ms),
        marker_offset=unstable.marker_offset if unstable.marker_offset >= 0 else None,
    )


def watermark_sentence(image: PartitionImage, views: Views) -> str:
    """Why the high watermark is where it is, or why it is unknown."""
    seen = leaders_view(views, image.leader)
    return why_the_watermark(seen) if seen is not None else _why_no_watermark(image)


def _why_no_watermark(image: PartitionImage) -> str:
    if image.leader == NO_NODE:
        return "nobody leads, so the high watermark does not move"
    return f"leader {image.leader} does not answer, and nobody else knows"


# ---- the door --------------------------------------------------------------------------------------------------------

ROUTES = (
    Route(
        method="GET",
        path="/v1/topics/{topic}/partitions/{partition}/explain",
        handler=get_explanation,
        tag="partitions",
        parameters=(TOPIC, PARTITION, FORWARD),
        answers={200: _Explanation.answer("The causes.", last_refusal=None)},
        problems=(UnknownTopicOrPartition,),
    ),
)
