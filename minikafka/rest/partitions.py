"""One partition (``/v1/topics/{t}/partitions/{p}``): its replicas, elections, and why it is in its state (``explain``).

The leader knows best how far a follower is: a fetch is the follower's word (S5). Each replica reports its own high
watermark, because no other broker knows it (S4). All replicas are asked at the same time, and one that does not answer
leaves gaps rather than an error: people look here when a broker is down.

``explain`` has the causes of the leader, the ISR, the high watermark and the last stable offset, and the last refusal.
Each is a sentence with the chain of events that led to it, from what the brokers that answer remember.
"""

from __future__ import annotations

from typing import Any

from minikafka import errors as kafka
from minikafka.broker.api.describe import LOADING
from minikafka.quorum.image import PartitionImage
from minikafka.rest import sentences
from minikafka.rest.fetch import name_of
from minikafka.rest.host import Host, Scene, leader_members
from minikafka.rest.leaders import (
    change_partition,
    controller_of,
    current_leader,
    may_forward,
    partition_of,
    refuse_to_forward,
)
from minikafka.rest.model import Model, many_of, member, one
from minikafka.rest.parameters import FORWARD
from minikafka.rest.route import LEADER_PROBLEMS, Json, Routes, Visit
from minikafka.rest.schemas import Event as EventOut
from minikafka.rest.schemas import Leader, OfTopic, PartitionState, Place
from minikafka.rest.sentences import NEVER_MS, timestamp_text
from minikafka.rest.topics import described_topic
from minikafka.rest.views import Event, Views, event_of, last, leaders_view, story_of, views_of, why_it_left
from minikafka.types import NO_NODE, Epoch, NodeId, Offset, TopicPartition
from minikafka.wire import messages as m

ROUTES = Routes("partitions")
ELECTION_TYPES = ("preferred", "unclean")


class _Partitions(OfTopic):
    """The partitions of a topic."""

    partitions: list[PartitionState] = many_of(PartitionState)


class _Election(Model):
    """An election."""

    type: str = member("`unclean` may lose committed records.", "preferred", enum=ELECTION_TYPES)


class _Elected(Place, notes=True):
    """A partition with its elected leader."""

    type: str = member(example="preferred", enum=ELECTION_TYPES)
    leader: Any = one(Leader, or_null=True)
    isr: list[NodeId] = member("Those in sync.", [1, 2, 3])


@ROUTES.at(
    "GET /v1/topics/{topic}/partitions",
    _Partitions.answer("All partitions of the topic."),
    problems=(kafka.UnknownTopicOrPartition,),
)
async def get_partitions(visit: Visit) -> Json:
    """The partitions of a topic, as the controller has recorded them."""
    return _Partitions.out_of(await described_topic(visit))


# ---- one partition and its replicas ----------------------------------------------------------------------------------


class _Replica(Model):
    """One replica."""

    id: NodeId = member(example=3)
    role: str = member(example="unknown", enum=["leader", "follower", "idle", "offline", LOADING, "unknown"])
    in_sync: bool = member("Is it in the ISR?", example=False)
    why: str = member(
        "Why it is, or is not, in one sentence.",
        "broker 3 is fenced: it is down or silent, or has not caught up with the metadata since its start",
    )
    leo: Offset | None = member("Its log's end: of a follower, what it has acknowledged to the leader.", 40)
    own_leo: Offset | None = member(
        "Its log end offset as the replica itself reports it; null while it does not answer."
    )
    hw: Offset | None = member("Its high watermark by its own word: a follower's lags by one fetch.")
    lag_records: int | None = member("How many records it is behind the leader.", 2)
    lag_ms: int | None = member("For how long it has been behind.", 12_000)
    caught_up_ms_ago: int | None = member("When it last had everything.", 12_000)
    last_fetch_ms_ago: int | None = member("When it last asked.", 11_500)


class _Partition(Place):
    """One partition. What only the leader knows is null while it does not answer."""

    leader: Any = one(Leader, or_null=True)
    leader_epoch: Epoch = member(example=3)
    partition_epoch: int = member("Rises with each change.", 5)
    controller_epoch: Epoch = member("Of the controller that made the last change.", 2)
    isr: list[NodeId] = member("Those in sync.", [1, 2])
    elr: list[NodeId] = member("Those that may lead though they are not in sync (KIP-966).", [])
    min_insync_replicas: int | None = member("How many must be in sync for `acks=all`.", 2)
    log_start_offset: Offset | None = member(example=0)
    last_stable_offset: Offset | None = member(example=42)
    high_watermark: Offset | None = member(example=42)
    log_end_offset: Offset | None = member(example=42)
    replicas: list[_Replica] = many_of(_Replica)
    told_by: list[NodeId] = member("The brokers that answered.", [1, 2])


REPLICA_EXAMPLE = _Replica.example()
_PROGRESS = ("leo", "own_leo", "hw", "lag_records", "lag_ms", "caught_up_ms_ago", "last_fetch_ms_ago")
"""Members of _Replica that are null while they are not known."""
_LEADERS = ("log_start_offset", "last_stable_offset", "high_watermark", "log_end_offset")
"""What only the leader knows, by the names of its view too."""


@ROUTES.at(
    "GET /v1/topics/{topic}/partitions/{partition}",
    _Partition.answer("The partition, as its replicas tell it."),
    parameters=(FORWARD,),
    problems=LEADER_PROBLEMS,
)
async def get_partition(visit: Visit) -> Json:
    """One partition: state, offsets, and each replica with its lag and why it is in or out of sync."""
    name = name_of(visit)
    image = partition_of(visit.host, name)
    if not may_forward(visit):
        refuse_to_forward(visit, name, current_leader(visit.host, name))
    views = await asked_views(visit, name, image)
    image = partition_of(visit.host, name)
    if leaders_view(views, image.leader) is not None:
        visit.leaders.append(image.leader)
    return partition_out(visit.host, name, image, views, visit.context.listener)


def partition_out(
    host: Scene, name: TopicPartition, image: PartitionImage, views: Views, listener: str
) -> dict[str, Any]:
    """One partition: the recorded state, and what the brokers of ``views`` report."""
    seen = leaders_view(views, image.leader)
    return _Partition.out_of(
        image,
        topic=name.topic,
        leader=leader_out(host, image, listener),
        min_insync_replicas=seen.min_isr if seen is not None else None,
        **{each: getattr(seen, each, None) for each in _LEADERS},
        replicas=replicas_of(host, image, views),
        told_by=sorted(views),
    )


async def asked_views(visit: Visit, name: TopicPartition, image: PartitionImage) -> Views:
    """Of all replicas, of this broker and of the active controller; without forwarding of this broker alone."""
    others = [*image.replicas, await controller_of(visit)] if may_forward(visit) else []
    return await views_of(visit, name, [visit.host.node_id, *others])


def leader_out(host: Scene, image: PartitionImage, listener: str) -> dict[str, Any] | None:
    """The leader as text; None without one."""
    if image.leader == NO_NODE:
        return None
    return leader_members(host, m.CurrentLeader(leader_id=image.leader, leader_epoch=image.leader_epoch), listener)


def replicas_of(host: Scene, image: PartitionImage, views: Views) -> list[_Replica]:
    """Each replica: how far it is, and why it is in or out of sync."""
    seen = leaders_view(views, image.leader)
    story = story_of(views)
    return [_replica_of(host, node, image, views, seen, story) for node in image.replicas]


def _replica_of(
    host: Scene, node: NodeId, image: PartitionImage, views: Views, seen: m.DescribedReplica | None, story: list[Event]
) -> _Replica:
    own = views[node].replica if node in views else None
    role = "leader" if node == image.leader else "unknown" if own is None else own.role
    in_sync = node in image.isr
    why = sentences.why_in_or_out(node, host.image, image, seen, "" if in_sync else why_it_left(story, node), own)
    progress: dict[str, int | None] = dict.fromkeys(_PROGRESS)
    if own is not None:
        progress.update(leo=own.log_end_offset, own_leo=own.log_end_offset, hw=own.high_watermark)
    remote = next((each for each in seen.remotes if each.broker_id == node), None) if seen is not None else None
    if seen is not None and node == image.leader:
        end = seen.log_end_offset
        progress.update(leo=end, own_leo=end, hw=seen.high_watermark, lag_records=0, lag_ms=0, caught_up_ms_ago=0)
    elif seen is not None and remote is not None and remote.log_end_offset >= 0:
        # What counts is what the follower has acknowledged, not what it has written since.
        lag_records = max(0, seen.log_end_offset - remote.log_end_offset)
        caught_up_ms_ago = remote.caught_up_ms_ago if remote.caught_up_ms_ago < NEVER_MS else None
        progress.update(
            leo=remote.log_end_offset,
            lag_records=lag_records,
            lag_ms=0 if lag_records == 0 else caught_up_ms_ago,
            caught_up_ms_ago=caught_up_ms_ago,
            last_fetch_ms_ago=remote.last_fetch_ms_ago,
        )
    return _Replica(id=node, role=role, in_sync=in_sync, why=why, **progress)


# ---- elections -------------------------------------------------------------------------------------------------------


@ROUTES.change(
    "POST /v1/topics/{topic}/partitions/{partition}/elections",
    _Elected.answer("Elected, and known to the live brokers."),
    body=_Election.body(),
    problems=(
        kafka.ElectionNotNeeded,
        kafka.EligibleLeadersNotAvailable,
        kafka.PreferredLeaderNotAvailable,
        kafka.UnknownTopicOrPartition,
    ),
)
async def post_election(visit: Visit) -> Json:
    """Elect a leader: the preferred replica, or, where nobody may lead without loss, any that is alive (unclean)."""
    name = name_of(visit)
    before = partition_of(visit.host, name)
    election = (await _Election.sent(visit)).type
    # A copy of the request that arrives late must elect nobody.
    epochs = (before.leader_epoch,) if election == "unclean" else ()
    request = m.ElectLeadersRequest(
        election_type=election, partitions=m.PartitionName.each([name]), leader_epochs=epochs
    )
    image = await change_partition(visit, request, "partitions", name)
    leader = leader_out(visit.host, image, visit.context.listener)
    return _Elected.out_of(image, topic=name.topic, type=election, leader=leader)


_CHAIN = "What led to it, the oldest first."


class _Leads(Model):
    """The leader, and why."""

    leader: Any = one(Leader, or_null=True)
    sentence: str = member(
        example="broker 1 leads epoch 0: the first live replica of the assignment when the topic was created"
    )
    because: list[Event] = many_of(EventOut, _CHAIN, example=[])


class _Member(Model):
    """A replica, and why it is in or out of sync."""

    id: NodeId = member(example=REPLICA_EXAMPLE["id"])
    in_sync: bool = member(example=REPLICA_EXAMPLE["in_sync"])
    why: str = member(example=REPLICA_EXAMPLE["why"])


class _Isr(Model):
    """The ISR, and why."""

    isr: list[NodeId] = member("Those in sync.", [1, 2])
    elr: list[NodeId] = member("Those that may lead though they are not in sync.", [])
    replicas: list[NodeId] = member("All, the preferred leader first.", [1, 2, 3])
    proposed: list[NodeId] | None = member("What the leader has asked the controller for.")
    sentence: str = member(example="the ISR is [1, 2]: of the replicas [1, 2, 3] it lacks [3]")
    members: list[Any] = many_of(_Member)
    because: list[Event] = many_of(EventOut, _CHAIN)


class _Watermark(Model):
    """The high watermark, and why."""

    high_watermark: Offset | None = member(example=42)
    log_end_offset: Offset | None = member(example=42)
    held_by: list[NodeId] = member("Whom it waits for.", [])
    sentence: str = member(
        example="the high watermark is 42, the log's end: every replica in the ISR has acknowledged all records"
    )
    because: list[Event] = many_of(EventOut, _CHAIN, example=[])


class _Unstable(Model):
    """The oldest open transaction."""

    producer_id: int = member("Its producer id.", 4000)
    first_offset: Offset = member(example=41)
    started_at: str | None = member(
        "Timestamp of its first batch; null: retention has deleted that batch.", "2026-11-21T08:00:00.000+00:00"
    )
    marker_offset: Offset | None = member(
        "Offset of its marker, not yet committed; null: it is open.", negative_is_null=True
    )


class _StableOffset(Model):
    """The last stable offset, and why."""

    last_stable_offset: Offset | None = member(example=41)
    held_by: Any = one(_Unstable, or_null=True)
    sentence: str = member(
        example="the last stable offset is 41: the transaction of producer 4000 began at offset 41 and is open"
    )


class _Explanation(Place):
    """Why a partition has its present state."""

    leader: _Leads = one(_Leads)
    isr: Any = one(_Isr)
    high_watermark: _Watermark = one(_Watermark)
    last_stable_offset: _StableOffset = one(_StableOffset)
    last_refusal: Event | None = one(EventOut, or_null=True)
    story: list[Event] = many_of(EventOut, "All that is remembered, the oldest first.")
    told_by: list[NodeId] = member("The brokers that answered.", [1, 2])


@ROUTES.at(
    "GET /v1/topics/{topic}/partitions/{partition}/explain",
    _Explanation.answer("The causes.", last_refusal=None),
    parameters=(FORWARD,),
    problems=(kafka.UnknownTopicOrPartition,),
)
async def get_explanation(visit: Visit) -> Json:
    """Why this leader, this ISR, this high watermark, this last stable offset; and why a producer was refused last.

    Each ``because`` is a chain of events, the oldest first: what led to the present state, as far as the brokers that
    answer remember it.
    """
    name = name_of(visit)
    views = await asked_views(visit, name, partition_of(visit.host, name))
    image = partition_of(visit.host, name)
    story = story_of(views)
    refused = [event_of(node, view.refused) for node, view in sorted(views.items()) if view.refused is not None]
    return _Explanation(
        **name._asdict(),
        leader=_leads(visit, image, story),
        isr=_isr(visit.host, image, views, story),
        high_watermark=_watermark(image, views),
        last_stable_offset=_stable_offset(image, views),
        last_refusal=max(refused, key=lambda event: event.at_ms) if refused else None,
        story=story,
        told_by=sorted(views),
    ).out()


def _leads(visit: Visit, image: PartitionImage, story: list[Event]) -> _Leads:
    """The leader; behind it the last change of leader, and what the leader did with it."""
    host = visit.host
    changed = last(story, "leader_elected", "leader_lost")
    taken = last([event for event in story if event.broker == image.leader], "became_leader")
    return _Leads(
        leader=leader_out(host, image, visit.context.listener),
        sentence=_why_this_leader(host, image, story) + _out_of_date(host),
        because=[event for event in (changed, taken) if event is not None],
    )


def _isr(host: Host, image: PartitionImage, views: Views, story: list[Event]) -> dict[str, Any]:
    seen = leaders_view(views, image.leader)
    return _Isr.out_of(
        image,
        proposed=None if seen is None else seen.proposed_isr,
        sentence=_why_this_isr(image) + _out_of_date(host),
        members=replicas_of(host, image, views),
        because=_isr_chain(story, image),
    )


def _watermark(image: PartitionImage, views: Views) -> _Watermark:
    """The high watermark, the replicas whose log ends it waits for, and how it moved last."""
    seen, view = leaders_view(views, image.leader), views.get(image.leader)
    waits = seen is not None and seen.high_watermark < seen.log_end_offset
    return _Watermark(
        high_watermark=seen.high_watermark if seen is not None else None,
        log_end_offset=seen.log_end_offset if seen is not None else None,
        held_by=[each.broker_id for each in sentences.holding(seen)] if seen is not None and waits else [],
        sentence=watermark_sentence(image, views),
        because=[event_of(image.leader, view.watermark_moved)] if view is not None and view.watermark_moved else [],
    )


def _stable_offset(image: PartitionImage, views: Views) -> _StableOffset:
    seen, view = leaders_view(views, image.leader), views.get(image.leader)
    unstable = view.unstable if view is not None else None
    return _StableOffset(
        last_stable_offset=seen.last_stable_offset if seen is not None else None,
        held_by=unstable and _Unstable.out_of(unstable, started_at=timestamp_text(unstable.started_ms)),
        sentence=sentences.why_the_stable_offset(seen, unstable)
        if seen is not None
        else _why_no_watermark(image, views),
    )


def _isr_chain(story: list[Event], image: PartitionImage) -> list[Event]:
    """Back to when all replicas were in sync, or to where memory ends."""
    chain: list[Event] = []
    for event in reversed(story):
        if event.kind in ("isr_shrunk", "isr_expanded", "isr_changed"):
            chain.append(event)
            if set(event.facts["old"]) >= set(image.replicas):
                break
    return chain[::-1]


def _why_this_leader(host: Host, image: PartitionImage, story: list[Event]) -> str:
    if image.leader == NO_NODE:
        return sentences.why_nobody_leads(host.image, image)
    led = f"broker {image.leader} leads epoch {image.leader_epoch}"
    change = last(story, "leader_elected")
    if change is not None and change.facts.get("why"):
        return f"{led}: {change.facts['why']}"
    if image.leader_epoch == 0:
        return f"{led}: the first live replica of the assignment when the topic was created"
    return f"{led}; why is older than what the brokers remember"


def _out_of_date(host: Host) -> str:
    """What to add to what the metadata says while this broker may not know the newest."""
    return "" if host.has_session else f"; {sentences.why_out_of_date(host.node_id)}"


def _why_this_isr(image: PartitionImage) -> str:
    missing = [node for node in image.replicas if node not in image.isr]
    if not missing:
        return f"the ISR is {list(image.isr)}: all replicas are in sync"
    return f"the ISR is {list(image.isr)}: of the replicas {list(image.replicas)} it lacks {missing}"


def watermark_sentence(image: PartitionImage, views: Views) -> str:
    """Why the high watermark is where it is, or why it is unknown."""
    seen = leaders_view(views, image.leader)
    return sentences.why_the_watermark(seen) if seen is not None else _why_no_watermark(image, views)


def _why_no_watermark(image: PartitionImage, views: Views) -> str:
    if image.leader == NO_NODE:
        return "nobody leads, so the high watermark does not move"
    view = views.get(image.leader)
    if view is not None and view.replica is not None:
        return f"leader {image.leader} has not taken up epoch {image.leader_epoch}; it alone knows the high watermark"
    return f"there is no word from leader {image.leader}; it alone knows the high watermark"
