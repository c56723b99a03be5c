"""``/v1/topics``: list, create, show, delete.

- Changes are made by the active controller; any broker forwards. Creating answers when the live brokers know the topic,
  so that the next request may produce to it.
- One topic is shown as ``topics describe -o json`` shows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from minikafka import errors as kafka
from minikafka.rest.host import Host
from minikafka.rest.leaders import change, check_known
from minikafka.rest.model import LEFT_OUT, Model, many_of, member
from minikafka.rest.parameters import INT32_MAX, TIMEOUT_MS, TOPIC, Choice, Flag
from minikafka.rest.route import Json, Reply, Routes, Visit
from minikafka.rest.schema import many, table, text, whole
from minikafka.rest.schemas import OfTopic, PartitionState
from minikafka.rest.views import gather_from_all
from minikafka.types import NO_NODE, NodeId
from minikafka.wire import messages as m
from minikafka.wire.admin import DescribeLogDirsRequest
from minikafka.wire.apis import BY_NAME
from minikafka.wire.limits import MAP_MEMBERS_MAX
from minikafka.wire.outcomes import failure_of

ROUTES = Routes("topics")
PARTITION_COUNT_MAX = 100_000
REPLICA_COUNT_MAX = 32_767
DRY_RUN = Flag("dry_run", "Only check whether it could be done.")
_TOPIC_CONFIG = table(text(), "Settings that differ from the brokers' own.")
_CONFIG_EXAMPLE = {"min.insync.replicas": "2"}
_TOPIC_ID_EXAMPLE = "MDEyMzQ1Njc4OWFiY2RlZg"
SUMMARY = "summary"
WITH = Choice(
    "with",
    "`summary`: sizes and partitions out of sync too; each broker is requested twice.",
    default="nothing",
    options=("nothing", SUMMARY),
)


_Log = tuple[NodeId, str, int]
"""A replica's log: broker, topic, partition."""


class _TopicInShort(OfTopic):
    """One topic, in short."""

    topic_id: str = member("Kafka's UUID of it.", _TOPIC_ID_EXAMPLE)
    partition_count: int = member(example=3)
    replication_factor: int = member(example=3)
    bytes: int | None = member(
        "With `summary`: size of the leaders' logs; null if a partition's leader does not answer.", default=LEFT_OUT
    )
    records: int | None = member(
        "With `summary`: offsets in the leaders' logs, markers and compacted records among them; null as `bytes`.",
        default=LEFT_OUT,
    )
    under_replicated: int | None = member("With `summary`: partitions with replicas out of sync.", default=LEFT_OUT)
    without_leader: int | None = member("With `summary`: partitions that nobody leads.", default=LEFT_OUT)


class _Topics(Model):
    """Every topic."""

    topics: list[_TopicInShort] = many_of(_TopicInShort)


class _Topic(OfTopic):
    """One topic with its settings and partitions."""

    topic_id: str = member(example=_TOPIC_ID_EXAMPLE)
    config: dict[str, str] = member(_TOPIC_CONFIG, _CONFIG_EXAMPLE)
    partitions: list[PartitionState] = many_of(PartitionState)


class _Created(OfTopic, notes=True):
    """The topic."""

    topic_id: str | None = member(example=_TOPIC_ID_EXAMPLE)
    partition_count: int = member(example=3, source="num_partitions")
    replication_factor: int = member(example=3)
    config: dict[str, str] = member(_TOPIC_CONFIG, _CONFIG_EXAMPLE)
    dry_run: bool = member("Nothing was created.")


class _Deleted(OfTopic):
    """A topic that was deleted."""

    topic_id: str | None = member(example=_TOPIC_ID_EXAMPLE)
    deleted: bool = member(example=True)


@ROUTES.at("GET /v1/topics", _Topics.answer("All topics."), parameters=(WITH,))
async def get_topics(visit: Visit) -> Json:
    """Every topic, in short."""
    name = "DescribeTopicPartitions"
    described: m.DescribeTopicsResponse = await visit.answer(
        BY_NAME[name], m.DescribeTopicsRequest(), lambda left: visit.host.answer(name, left)
    )
    topics = [
        _TopicInShort(
            topic=each.topic,
            topic_id=each.topic_id,
            partition_count=len(each.partitions),
            replication_factor=max((len(part.replicas) for part in each.partitions), default=0),
        )
        for each in described.topics
    ]
    if visit[WITH] == SUMMARY:
        await _summarize(visit.host, topics, described.topics)
    return _Topics(topics=topics).out()


async def _summarize(host: Host, topics: Sequence[_TopicInShort], described: Sequence[m.DescribedTopic]) -> None:
    """Two requests to each broker, whatever the number of topics.

    ``bytes`` and ``records`` are None where the leader of a partition has not answered: the rest is no total.
    """
    replicas = await gather_from_all(host, m.DescribeReplicasRequest())
    sizes = await gather_from_all(host, DescribeLogDirsRequest())
    size_of = {
        (node, each.topic, each.partition): each.size_bytes
        for node, response in sizes.items()
        for result in response.results
        for each in result.replicas
    }
    count_of = {
        (node, each.topic, each.partition): each.log_end_offset - each.log_start_offset
        for node, response in replicas.items()
        for each in response.replicas
        if each.role == "leader"
    }
    for topic, parts in zip(topics, described, strict=True):
        logs = [(part.leader, topic.topic, part.partition) for part in parts.partitions]
        topic.bytes, topic.records = _total(size_of, logs), _total(count_of, logs)
        topic.under_replicated = sum(len(part.isr) < len(part.replicas) for part in parts.partitions)
        topic.without_leader = sum(part.leader == NO_NODE for part in parts.partitions)


def _total(known: dict[_Log, int], logs: Sequence[_Log]) -> int | None:
    """The sum over these logs; None if that of one is not known."""
    return sum(known[each] for each in logs) if known.keys() >= set(logs) else None


@ROUTES.at("GET /v1/topics/{topic}", _Topic.answer("The topic."), problems=(kafka.UnknownTopicOrPartition,))
async def get_topic(visit: Visit) -> Json:
    """One topic with its settings and partitions."""
    return _Topic.out_of(await described_topic(visit))


async def described_topic(visit: Visit) -> m.DescribedTopic:
    """The topic that the path names, as this broker describes it."""
    request = m.DescribeTopicsRequest(topics=(check_known(visit, visit[TOPIC]),))
    response: m.DescribeTopicsResponse = await visit.host.answer("DescribeTopicPartitions", request)
    if response.topics[0].error_code:
        raise failure_of(response.topics[0])
    return response.topics[0]


# ---- changes ---------------------------------------------------------------------------------------------------------


class _NewTopic(Model):
    """A topic; what is left out, the controller's settings decide."""

    name: str = member("Letters, digits, `.`, `_` and `-`.", "orders", minLength=1)
    partitions: int = member("num.partitions", 3, default=-1, minimum=1, maximum=PARTITION_COUNT_MAX)
    replication_factor: int = member("default.replication.factor", 3, default=-1, minimum=1, maximum=REPLICA_COUNT_MAX)
    assignments: list[list[NodeId]] = member(
        many(
            many(whole(minimum=0, maximum=INT32_MAX), "Of one partition, the preferred leader first."),
            "In place of `partitions` and `replication_factor`: where each partition's replicas are.",
        ),
        default=(),
    )
    config: dict[str, str | int | bool] | None = member(
        table({"type": ["string", "integer", "boolean"]}, "Settings by Kafka's names.", maxProperties=MAP_MEMBERS_MAX),
        {"min.insync.replicas": 2},
        default=None,
    )


@ROUTES.change(
    "POST /v1/topics",
    {
        201: _Created.answer("Created: the next request may use it.", dry_run=False),
        200: _Created.answer("It could be created.", dry_run=True),
    },
    parameters=(DRY_RUN,),
    body=_NewTopic.body(),
    problems=(
        kafka.InvalidConfig,
        kafka.InvalidPartitions,
        kafka.InvalidReplicaAssignment,
        kafka.InvalidReplicationFactor,
        kafka.InvalidTopic,
        kafka.PolicyViolation,
        kafka.TopicAlreadyExists,
    ),
)
async def post_topic(visit: Visit) -> Reply:
    """Create one topic; ``?dry_run=true`` only checks."""
    dry_run = visit[DRY_RUN]
    sent = await _NewTopic.sent(visit)
    topic = m.NewTopic(
        name=sent.name,
        num_partitions=sent.partitions,
        replication_factor=sent.replication_factor,
        assignments=tuple(
            m.ReplicaAssignment(partition=number, broker_ids=tuple(each))
            for number, each in enumerate(sent.assignments)
        ),
        configs={name: setting_text(value) for name, value in (sent.config or {}).items()},
    )

    request = m.CreateTopicsRequest(topics=(topic,), timeout_ms=visit[TIMEOUT_MS], validate_only=dry_run)
    created = await change(visit, request, "topics", dry_run=dry_run, topic=topic.name)
    document = _Created.out_of(created, topic=created.name, config=topic.configs, dry_run=dry_run)
    return Reply(document) if dry_run else Reply(document, 201, {"Location": f"/v1/topics/{created.name}"})


def setting_text(value: str | float) -> str:
    """Return a setting's value as text, as in Kafka's properties."""
    return value if type(value) is str else str(value).lower()


@ROUTES.change(
    "DELETE /v1/topics/{topic}",
    _Deleted.answer("Gone, with all that was in it."),
    problems=(kafka.InvalidTopic, kafka.UnknownTopicId, kafka.UnknownTopicOrPartition),
)
async def delete_topic(visit: Visit) -> Json:
    """Delete one topic with all that is in it."""
    topic = visit[TOPIC]
    known = visit.host.image.topics.get(topic)
    # A copy of the request that arrives late must not delete a topic that was created again.
    ids = {} if known is None else {topic: known.topic_id}
    request = m.DeleteTopicsRequest(topics=(topic,), timeout_ms=visit[TIMEOUT_MS], topic_ids=ids)
    deleted = await change(visit, request, "topics", topic=topic)
    return _Deleted.out_of(deleted, topic=deleted.name, deleted=True)
