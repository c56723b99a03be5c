"""Changing a running cluster: settings, more partitions, replicas that move.

Settings are shown with every place that says something about them, the one that counts first. A broker's own are asked
of that broker; those of ``/v1/cluster/configs`` are given to all. Changes are made by the active controller, any broker
forwards, and they are answered when the live brokers use them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minikafka import errors as kafka
from minikafka.rest.cluster import registered
from minikafka.rest.leaders import ask, change, change_partition, check_known, partition_of
from minikafka.rest.model import Model, many_of, member
from minikafka.rest.parameters import PARTITION, TIMEOUT_MS, TOPIC
from minikafka.rest.route import CONTROLLER_PROBLEMS, Body, Handler, Json, Routes, Visit
from minikafka.rest.schema import table, text
from minikafka.rest.schemas import OfTopic, Place
from minikafka.rest.topics import DRY_RUN, PARTITION_COUNT_MAX, REPLICA_COUNT_MAX, setting_text
from minikafka.types import NodeId, TopicPartition
from minikafka.wire import admin as a
from minikafka.wire.outcomes import failure_of

ROUTES = Routes("partitions")
ALL_BROKERS = ""
_SOURCE = text("Who says so, in Kafka's words.")


# ---- settings --------------------------------------------------------------------------------------------------------


class _Synonym(Model):
    """A place that says something about a setting."""

    name: str = member(example="retention.ms")
    value: str = member(example="3600000")
    source: str = member(_SOURCE, "DYNAMIC_TOPIC_CONFIG")
    origin: str = member("The file, variable or flag.", "")


class _Config(Model):
    """A setting."""

    name: str = member(example="retention.ms")
    value: str = member("What counts.", "3600000")
    source: str = member(_SOURCE, "DYNAMIC_TOPIC_CONFIG")
    read_only: bool = member("Only a restart can change it.", example=False)
    documentation: str = member(example="delete segments older than this; -1: never")
    synonyms: list[Any] = many_of(_Synonym, "Every place that says something about it, the one that counts first.")

    @classmethod
    def described(cls, each: a.DescribedConfig) -> dict[str, Any]:
        """Return a setting as a broker describes it."""
        synonyms = [_Synonym.out_of(other, source=a.SOURCE_NAMES[other.source]) for other in each.synonyms]
        source, documentation = a.SOURCE_NAMES[each.config_source], each.documentation or ""
        return cls.out_of(each, source=source, documentation=documentation, synonyms=synonyms)


class _Configs(Model):
    """Settings."""

    configs: list[Any] = many_of(_Config)


class _Changes(Model):
    """Settings to alter."""

    config: dict[str, str | int | bool | None] = member(
        table(
            {"type": ["string", "integer", "boolean", "null"]}, "By Kafka's names; null: the default.", minProperties=1
        ),
        {"retention.ms": 3_600_000, "segment.bytes": None},
    )


_BROKER_CHANGES = _Changes.body(config={"log.retention.ms": 3_600_000, "log.segment.bytes": None})
"""For brokers, whose settings have other names than those of topics."""


class _Altered(Model, notes=True):
    """Settings that were altered."""

    altered: dict[str, str | None] = member(
        table({"type": ["string", "null"]}, "What was asked for."), {"retention.ms": "3600000", "segment.bytes": None}
    )
    dry_run: bool = member("Nothing was altered.", example=False)


def _showing(where: str, tag: str, *problems: type[kafka.ProtocolError]) -> Callable[[Handler], Handler]:
    """Declare a route that shows settings."""
    return ROUTES.at(where, _Configs.answer("The settings."), problems=(*CONTROLLER_PROBLEMS, *problems), tag=tag)


def _altering(where: str, tag: str, body: Body, *problems: type[kafka.ProtocolError]) -> Callable[[Handler], Handler]:
    """Declare a route that alters settings."""
    answer = _Altered.answer("Altered, and used by the live brokers; or, in a dry run, it could be.")
    problems = (kafka.InvalidConfig, *problems)
    return ROUTES.change(where, answer, parameters=(DRY_RUN,), body=body, problems=problems, tag=tag)


@_showing("GET /v1/topics/{topic}/configs", "topics", kafka.UnknownTopicOrPartition)
async def get_topic_configs(visit: Visit) -> Json:
    """Every setting of a topic, as this broker uses it."""
    return await _configs(visit, a.TOPIC, check_known(visit, visit[TOPIC]))


@_showing("GET /v1/brokers/{broker}/configs", "cluster", kafka.BrokerIdNotRegistered)
async def get_broker_configs(visit: Visit) -> Json:
    """Every setting of one broker, asked of that broker."""
    return await _configs(visit, a.BROKER, str(registered(visit).node_id))


@_showing("GET /v1/cluster/configs", "cluster")
async def get_cluster_configs(visit: Visit) -> Json:
    """The settings that all brokers were given at run time."""
    return await _configs(visit, a.BROKER, ALL_BROKERS)


@_altering("PATCH /v1/topics/{topic}", "topics", _Changes.body(), kafka.UnknownTopicOrPartition)
async def patch_topic(visit: Visit) -> Json:
    """Alter settings of a topic; null takes one back to its default."""
    return await _alter(visit, a.TOPIC, check_known(visit, visit[TOPIC]))


@_altering("PATCH /v1/brokers/{broker}/configs", "cluster", _BROKER_CHANGES, kafka.BrokerIdNotRegistered)
async def patch_broker_configs(visit: Visit) -> Json:
    """Alter settings of one broker."""
    return await _alter(visit, a.BROKER, str(registered(visit).node_id))


@_altering("PATCH /v1/cluster/configs", "cluster", _BROKER_CHANGES)
async def patch_cluster_configs(visit: Visit) -> Json:
    """Alter settings of all brokers at once."""
    return await _alter(visit, a.BROKER, ALL_BROKERS)


async def _configs(visit: Visit, kind: int, name: str) -> Json:
    request = a.DescribeConfigsRequest(
        resources=(a.DescribeConfigsResource(resource_type=kind, resource_name=name),),
        include_synonyms=True,
        include_documentation=True,
    )
    node = int(name) if kind == a.BROKER and name else visit.host.node_id
    response: a.DescribeConfigsResponse = await ask(visit, node, request, wait_s=0.0)
    (found,) = response.results
    if found.error_code:
        raise failure_of(found)
    return _Configs(configs=[_Config.described(each) for each in found.configs]).out()


async def _alter(visit: Visit, kind: int, name: str) -> Json:
    sent = await _Changes.sent(visit)
    altered = {each: None if value is None else setting_text(value) for each, value in sent.config.items()}
    changes = tuple(
        a.AlterConfig(name=each, operation=a.DELETE) if value is None else a.AlterConfig(name=each, value=value)
        for each, value in altered.items()
    )
    resource = a.AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    request = a.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=visit[DRY_RUN])
    await change(visit, request, "responses", dry_run=visit[DRY_RUN])
    return _Altered(altered=altered, dry_run=visit[DRY_RUN]).out()


# ---- partitions ------------------------------------------------------------------------------------------------------


class _Count(Model):
    """How many it is to have."""

    count: int = member(example=6, minimum=1, maximum=PARTITION_COUNT_MAX)


class _MorePartitions(OfTopic, notes=True):
    """A topic with more partitions."""

    partition_count: int = member(example=6)
    dry_run: bool = member("Nothing was changed.", example=False)


@ROUTES.change(
    "POST /v1/topics/{topic}/partitions",
    _MorePartitions.answer("It has them, and the live brokers know."),
    parameters=(DRY_RUN,),
    body=_Count.body(),
    problems=(kafka.InvalidPartitions, kafka.UnknownTopicOrPartition),
    tag="topics",
)
async def post_partitions(visit: Visit) -> Json:
    """Give a topic more partitions; records stay where they are, a key may map to another partition from then on."""
    topic, dry_run = visit[TOPIC], visit[DRY_RUN]
    count = (await _Count.sent(visit)).count
    asked = a.NewPartitions(name=topic, count=count)
    request = a.CreatePartitionsRequest(topics=(asked,), timeout_ms=visit[TIMEOUT_MS], validate_only=dry_run)
    await change(visit, request, "results", dry_run=dry_run)
    return _MorePartitions(topic=topic, partition_count=count, dry_run=dry_run).out()


# ---- reassignments ---------------------------------------------------------------------------------------------------


class _Moving(Place):
    """A partition whose replicas are on the move."""

    replicas: list[NodeId] = member("The target's first, behind them those that will go.", [4, 2, 3, 1])
    adding_replicas: list[NodeId] = member("Those that come.", [4])
    removing_replicas: list[NodeId] = member("Those that go when it is complete.", [1])
    isr: list[NodeId] = member("Those in sync.", [1, 2, 3])
    waits_for: list[NodeId] = member("Replicas of the target that are not in sync yet.", [4])

    @classmethod
    def now(cls, visit: Visit, each: a.OngoingReassignment, **more: Any) -> dict[str, Any]:
        """Return a reassignment, with what it waits for."""
        state = visit.host.image.partition(TopicPartition(each.topic, each.partition))
        isr = state.isr if state is not None else ()
        waits_for = [node for node in each.replicas if node not in (*each.removing_replicas, *isr)]
        return cls.out_of(each, isr=isr, waits_for=waits_for, **more)


class _Moves(Model):
    """Every partition whose replicas are on the move."""

    reassignments: list[Any] = many_of(_Moving)


class _Moved(_Moving, notes=True):
    """A partition whose replicas move, or are to stay."""

    complete: bool = member("Nothing is left to do.", example=False)


class _Target(Model):
    """Where to."""

    replicas: list[NodeId] = member("The preferred leader first.", [4, 2, 3], minItems=1, maxItems=REPLICA_COUNT_MAX)


@ROUTES.at("GET /v1/reassignments", _Moves.answer("What is under way."))
async def get_reassignments(visit: Visit) -> Json:
    """Every partition whose replicas are on the move."""
    response: a.ListPartitionReassignmentsResponse = await visit.host.answer(
        "ListPartitionReassignments", a.ListPartitionReassignmentsRequest()
    )
    return _Moves(reassignments=[_Moving.now(visit, each) for each in response.partitions]).out()


_MOVED = _Moved.answer("Begun, or cancelled; the live brokers know.")


@ROUTES.change(
    "PUT /v1/topics/{topic}/partitions/{partition}/reassignment",
    _MOVED,
    body=_Target.body(),
    problems=(kafka.InvalidReplicaAssignment, kafka.UnknownTopicOrPartition),
)
async def put_reassignment(visit: Visit) -> Json:
    """Begin to move a partition to these replicas; it is complete when all of them are in sync."""
    target = await _Target.sent(visit)
    return await _reassign(visit, tuple(target.replicas))


@ROUTES.change(
    "DELETE /v1/topics/{topic}/partitions/{partition}/reassignment",
    _MOVED,
    problems=(kafka.InvalidReplicaAssignment, kafka.NoReassignmentInProgress, kafka.UnknownTopicOrPartition),
)
async def delete_reassignment(visit: Visit) -> Json:
    """Cancel: the replicas are as before. Refused where those that stay are not enough in sync."""
    return await _reassign(visit, None)


async def _reassign(visit: Visit, replicas: tuple[int, ...] | None) -> Json:
    name = TopicPartition(visit[TOPIC], visit[PARTITION])
    partition_of(visit.host, name)
    item = a.ReassignedPartition(**name._asdict(), replicas=replicas)
    request = a.AlterPartitionReassignmentsRequest(partitions=(item,), timeout_ms=visit[TIMEOUT_MS])
    state = await change_partition(visit, request, "responses", name)
    moving = a.OngoingReassignment(
        **name._asdict(), replicas=state.replicas, adding_replicas=state.adding, removing_replicas=state.removing
    )
    return _Moved.now(visit, moving, complete=not state.assignment.under_way)
