"""Changing a running cluster: settings, more partitions, replicas that move.

Settings are shown with every place that says something about them, the one that counts first. A broker's own are asked
of that broker; those of ``/v1/cluster/configs`` are given to all. Changes are made by the active controller, any broker
forwards, and they are answered when the live brokers use them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minikafka.errors import (
    BrokerIdNotRegistered,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    ProtocolError,
    RequestTimedOut,
    UnknownTopicOrPartition,
)
from minikafka.rest.body import FORM_NOTE, Members, kind_of, parsed_object, read_body
from minikafka.rest.cluster import BROKER
from minikafka.rest.leaders import ask, from_controller, partition_of, unknown_topic, until_known
from minikafka.rest.parameters import FORWARD, PARTITION, TOPIC, Parameter
from minikafka.rest.route import CONTROLLER_PROBLEMS, Answer, Route, json_body
from minikafka.rest.schema import flag, many, nodes, ref, shape, table, text, whole
from minikafka.rest.topics import DRY_RUN, KNOWN_WAIT_S, PARTITION_COUNT_MAX, REPLICA_COUNT_MAX, TIMEOUT_MS
from minikafka.rest.visit import Handler, Reply, Visit
from minikafka.types import TopicPartition
from minikafka.web.problems import Fault, Refused, unacceptable
from minikafka.wire import admin as a
from minikafka.wire.limits import shown
from minikafka.wire.messages import Failed
from minikafka.wire.outcomes import failure_of

ALL_BROKERS = ""

# ---- settings --------------------------------------------------------------------------------------------------------


async def get_topic_configs(visit: Visit) -> Reply:
    """Every setting of a topic, as this broker uses it."""
    topic = visit[TOPIC]
    if topic not in visit.host.image.topics:
        raise unknown_topic(topic)
    return await _configs(visit, a.TOPIC, topic)


async def get_broker_configs(visit: Visit) -> Reply:
    """Every setting of one broker, asked of that broker."""
    return await _configs(visit, a.BROKER, str(_broker(visit)))


async def get_cluster_configs(visit: Visit) -> Reply:
    """The settings that all brokers were given at run time."""
    return await _configs(visit, a.BROKER, ALL_BROKERS)


async def patch_topic(visit: Visit) -> Reply:
    """Alter settings of a topic; null takes one back to its default."""
    topic = visit[TOPIC]
    if topic not in visit.host.image.topics:
        raise unknown_topic(topic)
    return await _alter(visit, a.TOPIC, topic)


async def patch_broker_configs(visit: Visit) -> Reply:
    """Alter settings of one broker."""
    return await _alter(visit, a.BROKER, str(_broker(visit)))


async def patch_cluster_configs(visit: Visit) -> Reply:
    """Alter settings of all brokers at once."""
    return await _alter(visit, a.BROKER, ALL_BROKERS)


def _broker(visit: Visit) -> int:
    node = visit[BROKER]
    known = visit.host.image.brokers
    if node not in known:
        raise BrokerIdNotRegistered(f"no broker {node} is registered, only {sorted(known)}")
    return node


async def _configs(visit: Visit, kind: int, name: str) -> Reply:
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
    return Reply({"configs": [_config_out(each) for each in found.configs]})


def _config_out(each: a.DescribedConfig) -> dict[str, Any]:
    return {
        "name": each.name,
        "value": each.value,
        "source": a.SOURCE_NAMES[each.config_source],
        "read_only": each.read_only,
        "documentation": each.documentation or "",
        "synonyms": [
            {"name": other.name, "value": other.value, "source": a.SOURCE_NAMES[other.source], "origin": other.origin}
            for other in each.synonyms
        ],
    }


async def _alter(visit: Visit, kind: int, name: str) -> Reply:
    dry_run = visit[DRY_RUN]
    document, note = await document_of(visit)
    changes = _changes_in(document)
    resource = a.AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    request = a.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=dry_run)
    await change(visit, request, lambda response: response.responses, dry_run=dry_run)
    altered = {each.name: each.value for each in changes}
    return Reply({"altered": altered, "dry_run": dry_run, **note})


def _changes_in(document: dict[str, Any]) -> tuple[a.AlterConfig, ...]:
    """``{"config": {name: value or null}}``; 422 with pointers."""
    faults: list[Fault] = []
    members = Members(document, "", faults)
    config = members.object("config")
    members.done()
    if not config and not faults:
        members.wrong("config", "at least one setting is needed")
    inner = Members(config, "/config", faults)
    changes = []
    for setting in config:
        value = inner.any(setting)
        if value is None:
            changes.append(a.AlterConfig(name=setting, operation=a.DELETE))
        elif type(value) in (str, int, bool):
            changes.append(a.AlterConfig(name=setting, value=value if type(value) is str else str(value).lower()))
        else:
            inner.wrong(setting, f"a text, a whole number, true, false or null is needed, not {shown(value)}")
    if faults:
        raise unacceptable(faults)
    return tuple(changes)


# ---- partitions ------------------------------------------------------------------------------------------------------


async def post_partitions(visit: Visit) -> Reply:
    """Give a topic more partitions; records stay where they are, a key may map to another partition from then on."""
    topic, dry_run = visit[TOPIC], visit[DRY_RUN]
    document, note = await document_of(visit)
    faults: list[Fault] = []
    members = Members(document, "", faults)
    if "count" not in document:
        members.wrong("count", "is missing")
    count = members.integer("count", 0, low=1, high=PARTITION_COUNT_MAX)
    members.done()
    if faults:
        raise unacceptable(faults)
    asked = a.NewPartitions(name=topic, count=count)
    request = a.CreatePartitionsRequest(topics=(asked,), timeout_ms=visit[TIMEOUT_MS], validate_only=dry_run)
    await change(visit, request, lambda response: response.results, dry_run=dry_run)
    return Reply({"topic": topic, "partition_count": count, "dry_run": dry_run, **note})


# ---- reassignments ---------------------------------------------------------------------------------------------------


async def get_reassignments(visit: Visit) -> Reply:
    """Every partition whose replicas are on the move."""
    response: a.ListPartitionReassignmentsResponse = await visit.host.answer(
        "ListPartitionReassignments", a.ListPartitionReassignmentsRequest()
    )
    return Reply({"reassignments": [_reassignment_out(visit, each) for each in response.partitions]})


async def put_reassignment(visit: Visit) -> Reply:
    """Begin to move a partition to these replicas; it is complete when all of them are in sync."""
    document, note = await document_of(visit)
    faults: list[Fault] = []
    members = Members(document, "", faults)
    replicas = members.list("replicas")
    if "replicas" not in document:
        members.wrong("replicas", "is missing")
    elif not 1 <= len(replicas) <= REPLICA_COUNT_MAX or any(type(each) is not int for each in replicas):
        members.wrong("replicas", f"a list of broker ids is needed, not {shown(replicas)}")
    members.done()
    if faults:
        raise unacceptable(faults)
    return await _reassign(visit, tuple(replicas), note)


async def delete_reassignment(visit: Visit) -> Reply:
    """Cancel: the replicas are as before. Refused where those that stay are not enough in sync."""
    return await _reassign(visit, None, {})


async def _reassign(visit: Visit, replicas: tuple[int, ...] | None, note: dict[str, str]) -> Reply:
    name = TopicPartition(visit[TOPIC], visit[PARTITION])
    partition_of(visit.host, name)
    item = a.ReassignedPartition(topic=name.topic, partition=name.partition, replicas=replicas)
    request = a.AlterPartitionReassignmentsRequest(partitions=(item,), timeout_ms=visit[TIMEOUT_MS])
    await change(visit, request, lambda response: response.responses, dry_run=False)
    state = partition_of(visit.host, name)
    moving = a.OngoingReassignment(
        topic=name.topic,
        partition=name.partition,
        replicas=state.replicas,
        adding_replicas=state.adding,
        removing_replicas=state.removing,
    )
    return Reply({**_reassignment_out(visit, moving), "complete": not state.assignment.under_way, **note})


def _reassignment_out(visit: Visit, each: a.OngoingReassignment) -> dict[str, Any]:
    state = visit.host.image.partition(TopicPartition(each.topic, each.partition))
    isr = state.isr if state is not None else ()
    return {
        "topic": each.topic,
        "partition": each.partition,
        "replicas": list(each.replicas),
        "adding_replicas": list(each.adding_replicas),
        "removing_replicas": list(each.removing_replicas),
        "isr": list(isr),
        "waits_for": [node for node in each.replicas if node not in (*each.removing_replicas, *isr)],
    }


# ---- shared ----------------------------------------------------------------------------------------------------------


async def document_of(visit: Visit) -> tuple[dict[str, Any], dict[str, str]]:
    """The body as an object, and the note for who sent it as a form."""
    kind = kind_of(visit.http)
    document = parsed_object(await read_body(visit.http, visit.host, visit.admission), kind, visit.http)
    return document, {"note": FORM_NOTE} if kind == "form" else {}


async def change(visit: Visit, request: Any, pick: Callable[[Any], tuple[Failed, ...]], *, dry_run: bool) -> None:
    """Made by the controller, and known to the live brokers. Raises ProtocolError or Refused."""
    metadata_offset = -1

    def items(response: Any) -> tuple[Failed, ...]:
        nonlocal metadata_offset
        metadata_offset = response.metadata_offset
        return pick(response)

    wait_s = visit[TIMEOUT_MS] / 1000
    (answer,) = await from_controller(visit, request, items=items, wait_s=wait_s)
    if answer.error_code:
        error: ProtocolError = failure_of(answer)
        raise Refused(error)
    if not dry_run:
        await until_known(visit, metadata_offset, wait_s=min(KNOWN_WAIT_S, wait_s))


# ---- the doors -------------------------------------------------------------------------------------------------------

_SOURCE = text("Who says so, in Kafka's words.")
_CONFIGS = shape(
    configs=many(
        shape(
            name=text(),
            value=text("What counts."),
            source=_SOURCE,
            read_only=flag("Only a restart can change it."),
            documentation=text(),
            synonyms=many(
                shape(name=text(), value=text(), source=_SOURCE, origin=text("The file, variable or flag.")),
                "Every place that says something about it, the one that counts first.",
            ),
        )
    )
)
_CONFIGS_EXAMPLE = {
    "configs": [
        {
            "name": "retention.ms",
            "value": "3600000",
            "source": "DYNAMIC_TOPIC_CONFIG",
            "read_only": False,
            "documentation": "delete segments older than this; -1: never",
            "synonyms": [
                {"name": "retention.ms", "value": "3600000", "source": "DYNAMIC_TOPIC_CONFIG", "origin": ""},
                {"name": "log.retention.ms", "value": "604800000", "source": "DEFAULT_CONFIG", "origin": ""},
            ],
        }
    ]
}
_CHANGES = json_body(
    shape(
        "Settings to alter.",
        config=table({"type": ["string", "integer", "boolean", "null"]}, "By Kafka's names; null: the default."),
    ),
    {"config": {"retention.ms": 3_600_000, "segment.bytes": None}},
)
_ALTERED = {
    200: Answer(
        description="Altered, and used by the live brokers; or, in a dry run, it could be.",
        schema=shape(
            optional=("note",),
            altered=table({"type": ["string", "null"]}, "What was asked for."),
            dry_run=flag("Nothing was altered."),
            note=text("What could be asked better."),
        ),
        example={"altered": {"retention.ms": "3600000", "segment.bytes": None}, "dry_run": False},
    )
}
_CHANGE_PROBLEMS = (*CONTROLLER_PROBLEMS, RequestTimedOut)
_MOVING: dict[str, Any] = {
    "topic": ref("TopicName"),
    "partition": ref("PartitionNumber"),
    "replicas": nodes("The target's first, behind them those that will go."),
    "adding_replicas": nodes("Those that come."),
    "removing_replicas": nodes("Those that go when it is complete."),
    "isr": nodes("Those in sync."),
    "waits_for": nodes("Replicas of the target that are not in sync yet."),
}
_MOVING_EXAMPLE = {
    "topic": "orders",
    "partition": 0,
    "replicas": [4, 2, 3, 1],
    "adding_replicas": [4],
    "removing_replicas": [1],
    "isr": [1, 2, 3],
    "waits_for": [4],
}
_MOVED = {
    200: Answer(
        description="Begun, or cancelled; the live brokers know.",
        schema=shape(
            optional=("note",),
            **_MOVING,
            complete=flag("Nothing is left to do."),
            note=text("What could be asked better."),
        ),
        example={**_MOVING_EXAMPLE, "complete": False},
    )
}


def _settings_routes(
    path: str, tag: str, *, patch_path: str, get: Handler, patch: Handler, parameters: tuple[Parameter[Any], ...]
) -> tuple[Route, ...]:
    problems = tuple(
        {"{topic}": UnknownTopicOrPartition, "{broker}": BrokerIdNotRegistered}[part]
        for part in path.split("/")
        if part.startswith("{")
    )
    return (
        Route(
            method="GET",
            path=path,
            handler=get,
            tag=tag,
            parameters=parameters,
            answers={200: Answer(description="The settings.", schema=_CONFIGS, example=_CONFIGS_EXAMPLE)},
            problems=(*CONTROLLER_PROBLEMS, *problems),
        ),
        Route(
            method="PATCH",
            path=patch_path,
            handler=patch,
            tag=tag,
            parameters=(*parameters, DRY_RUN, TIMEOUT_MS, FORWARD),
            body=_CHANGES,
            answers=_ALTERED,
            problems=(*_CHANGE_PROBLEMS, InvalidConfig, *problems),
        ),
    )


ROUTES = (
    *_settings_routes(
        "/v1/topics/{topic}/configs",
        "topics",
        patch_path="/v1/topics/{topic}",
        get=get_topic_configs,
        patch=patch_topic,
        parameters=(TOPIC,),
    ),
    *_settings_routes(
        "/v1/brokers/{broker}/configs",
        "cluster",
        patch_path="/v1/brokers/{broker}/configs",
        get=get_broker_configs,
        patch=patch_broker_configs,
        parameters=(BROKER,),
    ),
    *_settings_routes(
        "/v1/cluster/configs",
        "cluster",
        patch_path="/v1/cluster/configs",
        get=get_cluster_configs,
        patch=patch_cluster_configs,
        parameters=(),
    ),
    Route(
        method="POST",
        path="/v1/topics/{topic}/partitions",
        handler=post_partitions,
        tag="topics",
        parameters=(TOPIC, DRY_RUN, TIMEOUT_MS, FORWARD),
        body=json_body(
            shape("How many it is to have.", count=whole("", minimum=1, maximum=PARTITION_COUNT_MAX)), {"count": 6}
        ),
        answers={
            200: Answer(
                description="It has them, and the live brokers know.",
                schema=shape(
                    optional=("note",),
                    topic=ref("TopicName"),
                    partition_count=whole(),
                    dry_run=flag("Nothing was changed."),
                    note=text("What could be asked better."),
                ),
                example={"topic": "orders", "partition_count": 6, "dry_run": False},
            )
        },
        problems=(*_CHANGE_PROBLEMS, InvalidPartitions, UnknownTopicOrPartition),
    ),
    Route(
        method="GET",
        path="/v1/reassignments",
        handler=get_reassignments,
        tag="partitions",
        answers={
            200: Answer(
                description="What is under way.",
                schema=shape(reassignments=many(shape(**_MOVING))),
                example={"reassignments": [_MOVING_EXAMPLE]},
            )
        },
    ),
    Route(
        method="PUT",
        path="/v1/topics/{topic}/partitions/{partition}/reassignment",
        handler=put_reassignment,
        tag="partitions",
        parameters=(TOPIC, PARTITION, TIMEOUT_MS, FORWARD),
        body=json_body(
            shape("Where to.", replicas=many(whole(), "The preferred leader first.", minItems=1)),
            {"replicas": [4, 2, 3]},
        ),
        answers=_MOVED,
        problems=(*_CHANGE_PROBLEMS, InvalidReplicaAssignment, UnknownTopicOrPartition),
    ),
    Route(
        method="DELETE",
        path="/v1/topics/{topic}/partitions/{partition}/reassignment",
        handler=delete_reassignment,
        tag="partitions",
        parameters=(TOPIC, PARTITION, TIMEOUT_MS, FORWARD),
        answers=_MOVED,
        problems=(*_CHANGE_PROBLEMS, InvalidReplicaAssignment, NoReassignmentInProgress, UnknownTopicOrPartition),
    ),
)
