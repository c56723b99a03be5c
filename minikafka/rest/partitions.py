"""``/v1/topics/{t}/partitions/{p}``: its replicas, why each is in or out of sync; elections.

How far a follower is, the leader knows best (a fetch is the follower's word, S5); its own high watermark a replica
tells itself (S4: nobody else knows it). All are asked side by side; who does not answer leaves gaps and not an error,
for people look here when something is down.
"""

from __future__ import annotations

from typing import Any

from minikafka.errors import (
    ElectionNotNeeded,
    EligibleLeadersNotAvailable,
    LeaderNotAvailable,
    PreferredLeaderNotAvailable,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from minikafka.quorum.image import PartitionImage
from minikafka.rest.body import FORM_NOTE, kind_of, parsed_object, read_body
from minikafka.rest.fetch import name_of
from minikafka.rest.host import Scene
from minikafka.rest.leaders import (
    controller_of,
    current_leader,
    from_controller,
    leader_members,
    may_forward,
    partition_of,
    refuse_to_forward,
    unknown_topic,
    until_known,
)
from minikafka.rest.model import Model, many_of, member
from minikafka.rest.parameters import FORWARD, PARTITION, TOPIC
from minikafka.rest.route import CONTROLLER_PROBLEMS, LEADER_PROBLEMS, Answer, Route, json_body
from minikafka.rest.schema import flag, many, nodes, nullable, one_of, ref, shape, text, whole
from minikafka.rest.schemas import LEADER_EXAMPLE, PartitionState
from minikafka.rest.sentences import NEVER_MS, why_in_or_out
from minikafka.rest.topics import KNOWN_WAIT_S, TIMEOUT_MS
from minikafka.rest.views import Event, Views, leaders_view, story_of, views_of, why_it_left
from minikafka.rest.visit import Reply, Visit
from minikafka.types import NO_NODE, NodeId, TopicPartition
from minikafka.web.problems import Refused
from minikafka.wire.messages import (
    CurrentLeader,
    DescribedReplica,
    DescribedTopic,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    ElectedLeader,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ForgottenPartition,
)
from minikafka.wire.outcomes import failure_of

ELECTION_TYPES = ("preferred", "unclean")


class _Partitions(Model):
    """The partitions of a topic."""

    topic: str = member(ref("TopicName"), "orders")
    partitions: list[PartitionState] = many_of(PartitionState)


class _Election(Model):
    """An election."""

    type: str = member(one_of("`unclean` may lose committed records.", *ELECTION_TYPES), "preferred")


class _Elected(Model):
    """A partition with its elected leader."""

    topic: str = member(ref("TopicName"), "orders")
    partition: int = member(ref("PartitionNumber"), 0)
    type: str = member(one_of("", *ELECTION_TYPES), "preferred")
    leader: dict[str, Any] | None = member(nullable(ref("Leader")), LEADER_EXAMPLE)
    isr: list[NodeId] = member(nodes("Those in sync."), [1, 2, 3])
    note: str | None = member(text("What could be asked better."), default=None)


async def get_partitions(visit: Visit) -> Reply:
    """The partitions of a topic, as the controller has recorded them."""
    name = visit[TOPIC]
    if name not in visit.host.image.topics:
        raise unknown_topic(name)
    described: DescribeTopicsResponse = await visit.host.answer(
        "DescribeTopicPartitions", DescribeTopicsRequest(topics=(name,))
    )
    topic: DescribedTopic = described.topics[0]
    if topic.error_code:
        raise failure_of(topic)
    return Reply(_Partitions.out_of(topic))


# ---- one partition and its replicas ----------------------------------------------------------------------------------


async def get_partition(visit: Visit) -> Reply:
    """One partition: state, offsets, and each replica with its lag and why it is in or out of sync."""
    name = name_of(visit)
    image = partition_of(visit.host, name)
    if not may_forward(visit):
        refuse_to_forward(visit.host, name, current_leader(visit.host, name))
    views = await asked_views(visit, name, image)
    image = partition_of(visit.host, name)
    if leaders_view(views, image.leader) is not None:
        visit.leaders.append(image.leader)
    return Reply(partition_out(visit.host, name, image, views))


def partition_out(host: Scene, name: TopicPartition, image: PartitionImage, views: Views) -> dict[str, Any]:
    """One partition: the recorded state, and what the brokers of ``views`` report."""
    seen = leaders_view(views, image.leader)
    return {
        "topic": name.topic,
        "partition": name.partition,
        "leader": leader_out(host, image),
        "leader_epoch": image.leader_epoch,
        "partition_epoch": image.partition_epoch,
        "controller_epoch": image.controller_epoch,
        "isr": list(image.isr),
        "elr": list(image.elr),
        "min_insync_replicas": seen.min_isr if seen is not None else None,
        "log_start_offset": seen.log_start_offset if seen is not None else None,
        "last_stable_offset": seen.last_stable_offset if seen is not None else None,
        "high_watermark": seen.high_watermark if seen is not None else None,
        "log_end_offset": seen.log_end_offset if seen is not None else None,
        "replicas": replicas_out(host, image, views),
        "told_by": sorted(views),
    }


async def asked_views(visit: Visit, name: TopicPartition, image: PartitionImage) -> Views:
    """Of all replicas, of this broker and of the active controller; without forwarding of this broker alone."""
    if not may_forward(visit):
        return await views_of(visit, name, [visit.host.node_id])
    controller = await controller_of(visit)
    return await views_of(visit, name, [visit.host.node_id, *image.replicas, controller])


def leader_out(host: Scene, image: PartitionImage) -> dict[str, Any] | None:
    """Who leads, for people; None: nobody does."""
    if image.leader == NO_NODE:
        return None
    return leader_members(host, CurrentLeader(leader_id=image.leader, leader_epoch=image.leader_epoch))


def replicas_out(host: Scene, image: PartitionImage, views: Views) -> list[dict[str, Any]]:
    """Each replica: how far it is, and why it is in or out of sync."""
    seen = leaders_view(views, image.leader)
    story = story_of(views)
    return [_replica_out(host, node, image, views, seen, story) for node in image.replicas]


def _replica_out(
    host: Scene,
    node: NodeId,
    image: PartitionImage,
    views: Views,
    seen: DescribedReplica | None,
    story: list[Event],
) -> dict[str, Any]:
    own = views[node].replica if node in views else None
    in_sync = node in image.isr
    document: dict[str, Any] = {
        "id": node,
        "role": "leader" if node == image.leader else own.role if own is not None else "unknown",
        "in_sync": in_sync,
        "why": why_in_or_out(node, host.image, image, seen, "" if in_sync else why_it_left(story, node)),
        "leo": own.log_end_offset if own is not None else None,
        "own_leo": own.log_end_offset if own is not None else None,
        "hw": own.high_watermark if own is not None else None,
        "lag_records": None,
        "lag_ms": None,
        "caught_up_ms_ago": None,
        "last_fetch_ms_ago": None,
    }
    if seen is None:
        return document
    if node == image.leader:
        return {
            **document,
            "leo": seen.log_end_offset,
            "own_leo": seen.log_end_offset,
            "hw": seen.high_watermark,
            "lag_records": 0,
            "lag_ms": 0,
            "caught_up_ms_ago": 0,
        }
    remote = next((each for each in seen.remotes if each.broker_id == node), None)
    if remote is None or remote.log_end_offset < 0:
        return document
    # What counts is what the follower has acknowledged, not what it has written since.
    lag = max(0, seen.log_end_offset - remote.log_end_offset)
    caught_up = remote.caught_up_ms_ago if remote.caught_up_ms_ago < NEVER_MS else None
    return {
        **document,
        "leo": remote.log_end_offset,
        "lag_records": lag,
        "lag_ms": 0 if lag == 0 else caught_up,
        "caught_up_ms_ago": caught_up,
        "last_fetch_ms_ago": remote.last_fetch_ms_ago,
    }


# ---- elections -------------------------------------------------------------------------------------------------------


async def post_election(visit: Visit) -> Reply:
    """Elect a leader: the preferred replica, or, where nobody may lead without loss, any that is alive (unclean)."""
    name = name_of(visit)
    partition_of(visit.host, name)
    kind = kind_of(visit.http)
    document = parsed_object(await read_body(visit.http, visit.host, visit.admission), kind, visit.http)
    election = _Election.read(document).type
    metadata_offset = -1

    def items(response: ElectLeadersResponse) -> tuple[ElectedLeader, ...]:
        nonlocal metadata_offset
        metadata_offset = response.metadata_offset
        return response.partitions

    request = ElectLeadersRequest(
        election_type=election, partitions=(ForgottenPartition(topic=name.topic, partition=name.partition),)
    )
    wait_s = visit[TIMEOUT_MS] / 1000
    (elected,) = await from_controller(visit, request, items=items, wait_s=wait_s)
    if elected.error_code:
        raise Refused(failure_of(elected), topic=name.topic, partition=name.partition)
    await until_known(visit, metadata_offset, wait_s=min(KNOWN_WAIT_S, wait_s))
    image = partition_of(visit.host, name)
    return Reply(
        _Elected(
            topic=name.topic,
            partition=name.partition,
            type=election,
            leader=leader_out(visit.host, image),
            isr=list(image.isr),
            note=FORM_NOTE if kind == "form" else None,
        ).out()
    )


# ---- the doors -------------------------------------------------------------------------------------------------------

REPLICA_EXAMPLE = {
    "id": 3,
    "role": "unknown",
    "in_sync": False,
    "why": "broker 3 is fenced: it is down or silent, or has not caught up with the metadata since its start",
    "leo": 40,
    "own_leo": None,
    "hw": None,
    "lag_records": 2,
    "lag_ms": 12_000,
    "caught_up_ms_ago": 12_000,
    "last_fetch_ms_ago": 11_500,
}
_REPLICA = shape(
    "One replica.",
    id=ref("NodeId"),
    role=one_of("", "leader", "follower", "idle", "offline", "unknown"),
    in_sync=flag("Is it in the ISR?"),
    why=text("Why it is, or is not, in one sentence."),
    leo=nullable(whole("Its log's end: of a follower, what it has acknowledged to the leader.")),
    own_leo=nullable(whole("Its log end offset as the replica itself reports it; null while it does not answer.")),
    hw=nullable(whole("Its high watermark by its own word: a follower's lags by one fetch.")),
    lag_records=nullable(whole("How many records it is behind the leader.")),
    lag_ms=nullable(whole("For how long it has been behind.")),
    caught_up_ms_ago=nullable(whole("When it last had everything.")),
    last_fetch_ms_ago=nullable(whole("When it last asked.")),
)
_PARTITION = shape(
    "One partition. What only the leader knows is null while it does not answer.",
    topic=ref("TopicName"),
    partition=ref("PartitionNumber"),
    leader=nullable(ref("Leader")),
    leader_epoch=ref("Epoch"),
    partition_epoch=whole("Rises with each change."),
    controller_epoch=whole("Of the controller that made the last change."),
    isr=nodes("Those in sync."),
    elr=nodes("Those that may lead though they are not in sync (KIP-966)."),
    min_insync_replicas=nullable(whole("How many must be in sync for `acks=all`.")),
    log_start_offset=nullable(ref("Offset")),
    last_stable_offset=nullable(ref("Offset")),
    high_watermark=nullable(ref("Offset")),
    log_end_offset=nullable(ref("Offset")),
    replicas=many(_REPLICA),
    told_by=nodes("The brokers that answered."),
)
PARTITION_EXAMPLE = {
    "topic": "orders",
    "partition": 0,
    "leader": LEADER_EXAMPLE,
    "leader_epoch": 3,
    "partition_epoch": 5,
    "controller_epoch": 2,
    "isr": [1, 2],
    "elr": [],
    "min_insync_replicas": 2,
    "log_start_offset": 0,
    "last_stable_offset": 42,
    "high_watermark": 42,
    "log_end_offset": 42,
    "replicas": [REPLICA_EXAMPLE],
    "told_by": [1, 2],
}
ROUTES = (
    Route(
        method="GET",
        path="/v1/topics/{topic}/partitions",
        handler=get_partitions,
        tag="partitions",
        parameters=(TOPIC,),
        answers={200: _Partitions.answer("All partitions of the topic.")},
        problems=(UnknownTopicOrPartition,),
    ),
    Route(
        method="GET",
        path="/v1/topics/{topic}/partitions/{partition}",
        handler=get_partition,
        tag="partitions",
        parameters=(TOPIC, PARTITION, FORWARD),
        answers={
            200: Answer(
                description="The partition, as its replicas tell it.", schema=_PARTITION, example=PARTITION_EXAMPLE
            )
        },
        problems=LEADER_PROBLEMS,
    ),
    Route(
        method="POST",
        path="/v1/topics/{topic}/partitions/{partition}/elections",
        handler=post_election,
        tag="partitions",
        parameters=(TOPIC, PARTITION, TIMEOUT_MS, FORWARD),
        body=json_body(_Election.schema(sent=True), _Election.example()),
        answers={200: _Elected.answer("Elected, and known to the live brokers.")},
        problems=(
            *CONTROLLER_PROBLEMS,
            ElectionNotNeeded,
            EligibleLeadersNotAvailable,
            LeaderNotAvailable,
            PreferredLeaderNotAvailable,
            RequestTimedOut,
            UnknownTopicOrPartition,
        ),
    ),
)
