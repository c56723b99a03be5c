"""``.../partitions/{p}/explain``: causes of the leader, ISR, high watermark and last stable offset; the last refusal.

Each is a sentence and the chain of events that led to it, taken from what the brokers that answer remember.
"""

from __future__ import annotations

from typing import Any

from minikafka.errors import UnknownTopicOrPartition
from minikafka.quorum.image import PartitionImage
from minikafka.rest.fetch import name_of
from minikafka.rest.leaders import partition_of
from minikafka.rest.parameters import FORWARD, PARTITION, TOPIC
from minikafka.rest.partitions import REPLICA_EXAMPLE, asked_views, leader_out, replicas_out
from minikafka.rest.route import Answer, Route
from minikafka.rest.schema import flag, many, nodes, nullable, ref, shape, text, whole
from minikafka.rest.schemas import LEADER_EXAMPLE
from minikafka.rest.sentences import timestamp_text, why_nobody_leads, why_the_stable_offset, why_the_watermark
from minikafka.rest.views import Event, Views, event_of, last, leaders_view, story_of
from minikafka.rest.visit import Reply, Visit
from minikafka.types import NO_NODE, NodeId
from minikafka.wire.messages import DescribedReplica, UnstableTransaction


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
        {
            "topic": name.topic,
            "partition": name.partition,
            "leader": {
                "leader": leader_out(visit.host, image),
                "sentence": _why_this_leader(visit, image, story),
                "because": _out(_leader_chain(story, image)),
            },
            "isr": {
                "isr": list(image.isr),
                "elr": list(image.elr),
                "replicas": list(image.replicas),
                "proposed": list(seen.proposed_isr) if seen is not None and seen.proposed_isr is not None else None,
                "sentence": _why_this_isr(image),
                "members": [
                    {"id": each["id"], "in_sync": each["in_sync"], "why": each["why"]}
                    for each in replicas_out(visit.host, image, views)
                ],
                "because": _out(_isr_chain(story, image)),
            },
            "high_watermark": {
                "high_watermark": seen.high_watermark if seen is not None else None,
                "log_end_offset": seen.log_end_offset if seen is not None else None,
                "held_by": _held_by(seen),
                "sentence": watermark_sentence(image, views),
                "because": [event_of(image.leader, moved).out()] if moved is not None else [],
            },
            "last_stable_offset": {
                "last_stable_offset": seen.last_stable_offset if seen is not None else None,
                "held_by": _unstable_out(unstable),
                "sentence": why_the_stable_offset(seen, unstable) if seen is not None else _why_no_watermark(image),
            },
            "last_refusal": max(refused, key=lambda event: event.at_ms).out() if refused else None,
            "story": _out(story),
            "told_by": sorted(views),
        }
    )


def _out(events: list[Event]) -> list[dict[str, Any]]:
    return [event.out() for event in events]


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


def _unstable_out(unstable: UnstableTransaction | None) -> dict[str, Any] | None:
    if unstable is None:
        return None
    return {
        "producer_id": unstable.producer_id,
        "first_offset": unstable.first_offset,
        "started_at": timestamp_text(unstable.started_ms),
        "marker_offset": unstable.marker_offset if unstable.marker_offset >= 0 else None,
    }


def watermark_sentence(image: PartitionImage, views: Views) -> str:
    """Why the high watermark is where it is, or why it is unknown."""
    seen = leaders_view(views, image.leader)
    return why_the_watermark(seen) if seen is not None else _why_no_watermark(image)


def _why_no_watermark(image: PartitionImage) -> str:
    if image.leader == NO_NODE:
        return "nobody leads, so the high watermark does not move"
    return f"leader {image.leader} does not answer, and nobody else knows"


# ---- the door --------------------------------------------------------------------------------------------------------

EVENT_EXAMPLE = {
    "event": "isr_shrunk",
    "sentence": (
        "the ISR shrank from [1, 2, 3] to [1, 2]: the process of broker 3 has ended: connection refused by b3:9094"
    ),
    "broker": 1,
    "at": "2026-11-21T08:00:00.000+00:00",
    "cause": "controller#41",
    "facts": {"partition": "orders-0", "old": [1, 2, 3], "new": [1, 2]},
}
_CHAIN = many(ref("Event"), "What led to it, the oldest first.")
_EXPLANATION = shape(
    "Why a partition has its present state.",
    topic=ref("TopicName"),
    partition=ref("PartitionNumber"),
    leader=shape(leader=nullable(ref("Leader")), sentence=text(), because=_CHAIN),
    isr=shape(
        isr=nodes("Those in sync."),
        elr=nodes("Those that may lead though they are not in sync."),
        replicas=nodes("All, the preferred leader first."),
        proposed=nullable(nodes("What the leader has asked the controller for.")),
        sentence=text(),
        members=many(shape(id=ref("NodeId"), in_sync=flag(), why=text())),
        because=_CHAIN,
    ),
    high_watermark=shape(
        high_watermark=nullable(ref("Offset")),
        log_end_offset=nullable(ref("Offset")),
        held_by=nodes("Whom it waits for."),
        sentence=text(),
        because=_CHAIN,
    ),
    last_stable_offset=shape(
        last_stable_offset=nullable(ref("Offset")),
        held_by=nullable(
            shape(
                producer_id=whole("Its producer id."),
                first_offset=ref("Offset"),
                started_at=nullable(text("Timestamp of its first batch; null: retention has deleted that batch.")),
                marker_offset=nullable(whole("Offset of its marker, not yet committed; null: it is open.")),
            )
        ),
        sentence=text(),
    ),
    last_refusal=nullable(ref("Event")),
    story=many(ref("Event"), "All that is remembered, the oldest first."),
    told_by=nodes("The brokers that answered."),
)
EXPLANATION_EXAMPLE = {
    "topic": "orders",
    "partition": 0,
    "leader": {
        "leader": LEADER_EXAMPLE,
        "sentence": "broker 1 leads epoch 0: the first live replica of the assignment when the topic was created",
        "because": [],
    },
    "isr": {
        "isr": [1, 2],
        "elr": [],
        "replicas": [1, 2, 3],
        "proposed": None,
        "sentence": "the ISR is [1, 2]: of the replicas [1, 2, 3] it lacks [3]",
        "members": [{"id": 3, "in_sync": False, "why": REPLICA_EXAMPLE["why"]}],
        "because": [EVENT_EXAMPLE],
    },
    "high_watermark": {
        "high_watermark": 42,
        "log_end_offset": 42,
        "held_by": [],
        "sentence": "the high watermark is 42, the log's end: every replica in the ISR has acknowledged all records",
        "because": [],
    },
    "last_stable_offset": {
        "last_stable_offset": 42,
        "held_by": None,
        "sentence": "the last stable offset is 42, the high watermark: no transaction is open below it",
    },
    "last_refusal": None,
    "story": [EVENT_EXAMPLE],
    "told_by": [1, 2],
}
ROUTES = (
    Route(
        method="GET",
        path="/v1/topics/{topic}/partitions/{partition}/explain",
        handler=get_explanation,
        tag="partitions",
        parameters=(TOPIC, PARTITION, FORWARD),
        answers={
            200: Answer(description="The causes.", schema=_EXPLANATION, example=EXPLANATION_EXAMPLE),
        },
        problems=(UnknownTopicOrPartition,),
    ),
)
