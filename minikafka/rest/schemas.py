"""The schemas that several routes share, by their names in ``/openapi.json``, with an example of each."""

from __future__ import annotations

from typing import Any

from minikafka.errors import BY_CODE, NotEnoughReplicas
from minikafka.rest.model import LEFT_OUT, Model, many_of, member, one
from minikafka.rest.parameters import INT64_MAX
from minikafka.rest.schema import SCALARS, PartitionNumber, Timestamp, TopicName, many, ref, shape, table, text, whole
from minikafka.types import Epoch, NodeId, Offset
from minikafka.web.problems import problem_of

CLUSTER_ID_EXAMPLE = "MkU3OEVBNTcwNTJENDM2Qg"
"""On ``/docs`` the id of the cluster stands in its place, so that commands work."""

OUTCOMES = ("not_written", "written", "unknown")


class Leader(Model, named=True):
    """The leader."""

    id: NodeId = member(example=1)
    epoch: Epoch = member(example=3)
    url: str | None = member("Where it listens.", "http://127.0.0.1:9092", default=None)


class Fault(Model, named=True):
    """One thing that is wrong with a request."""

    pointer: str | None = member("JSON Pointer (RFC 6901) to the member.", default=None)
    parameter: str | None = member("The query parameter, header or part of the path.", default=None)
    line: int | None = member("The line of a body of lines.", default=None)
    detail: str = member("What is wrong, in one sentence.")


class ProxyError(Model, named=True):
    """An error as Confluent REST Proxy writes it."""

    error_code: int = member("The HTTP status, or the status and two digits.")
    message: str = member("What failed.")


class ProblemPage(Model, named=True):
    """What an error means."""

    type: str = member("The address of this page.")
    error: str = member("Kafka's name.")
    error_code: int = member("Kafka's number.")
    status: int = member("The HTTP status it comes with.")
    retriable: bool = member("May the same request succeed later?")
    meaning: str = member()
    cause: str = member("What is behind it.")
    look_at: list[str] = member("What shows more.")


class Problem(Model, named=True, is_open=True):
    """An error (RFC 9457) with Kafka's name and number."""

    type: str = member("Where the error is explained.", format="uri-reference")
    title: str = member("The same for all errors of this kind.")
    status: int = member("The HTTP status.", minimum=400, maximum=599)
    detail: str = member("What happened this time.")
    instance: str | None = member(
        "Which problem this is: what was asked for, then broker, start and number; events have it too.",
        default=None,
        format="uri-reference",
    )
    error: str = member("Kafka's name.", enum=sorted(each.name for each in BY_CODE.values()))
    error_code: int = member("Kafka's number.")
    message: str = member("The same as `detail`.")
    retriable: bool = member("May the same request succeed later?")
    outcome: str = member(ref("Outcome"))
    errors: list[Fault] | None = many_of(Fault, "All that is wrong with the request.", default=None)
    leader: Leader | None = one(Leader, default=None)


PROBLEM_EXAMPLE = problem_of(
    NotEnoughReplicas("orders-0 needs 2 in-sync replicas, the ISR is [1]"),
    topic="orders",
    partition=0,
    isr=[1],
    min_insync_replicas=2,
    leader=Leader.example(),
)

# A header's value: text, null, or bytes that are no text.
_HEADER = many(
    {"anyOf": [{"type": ["string", "null"]}, shape("", b64=text("Base64."))]},
    "Name and value; a name may come twice.",
    minItems=2,
    maxItems=2,
)


class _KeyAndValue(Model):
    """What a record says."""

    key: Any = member("Text is its UTF-8 bytes, other JSON its shortest text; null is no key.", "ann", default=None)
    value: Any = member("As `key`; null makes a tombstone.", {"item": "tea", "count": 2}, default=None)
    key_b64: str | None = member("The key in base64.", default=LEFT_OUT, format="byte")
    value_b64: str | None = member("The value in base64.", default=LEFT_OUT, format="byte")


class RecordIn(_KeyAndValue):
    """One record to produce."""

    headers: Any = member(many(_HEADER), [["source", "web"]], default=None)
    timestamp: Any = member(
        "Milliseconds since 1970, or ISO 8601 with a time zone; now when it is missing.",
        default=None,
        anyOf=[whole(minimum=0, maximum=INT64_MAX), text(format="date-time")],
    )


class RecordsIn(Model):
    """Some records to produce."""

    records: list[Any] = member(many(ref("RecordIn"), minItems=1, maxItems=10_000), [RecordIn.example()])


class _Position(Model):
    """Where a record is."""

    offset: Offset = member(example=41)
    timestamp: Timestamp | None = member(example=1_795_000_000_000, default=None)
    leader_epoch: Epoch = member(example=3)


class RecordOut(_KeyAndValue, _Position, named=True):
    """One record; `encoding` tells how its value is written."""

    encoding: str = member(
        "`json`, `text`, `base64`, `bytes` (msgpack), `null`, or `unreadable`: see `detail`.", "json"
    )
    headers: Any = member(many(_HEADER), [["source", "web"]], default=None)
    last_offset: int | None = member("Of what cannot be read: where it ends.", default=None)
    detail: str | None = member("Why it cannot be read.", default=None)
    control_type: int | None = member("Of a control record: which one.", default=None)


class _OfPartition(Model):
    """Something in a partition."""

    partition: PartitionNumber = member(example=2)


class TopicRecord(RecordOut, _OfPartition, named=True):
    """One record of one of the partitions."""


class Event(Model, named=True):
    """Something that happened to a partition."""

    event: str = member("Its kind, as in the structured log.", "isr_shrunk", source="kind")
    sentence: str = member(
        "The same for people.",
        "the ISR shrank from [1, 2, 3] to [1, 2]: the process of broker 3 has ended: connection refused by b3:9094",
    )
    broker: NodeId = member(example=1)
    at: str | None = member(
        "When, by that broker's clock; null: before it started.", "2026-11-21T08:00:00.000+00:00", format="date-time"
    )
    cause: str = member("Id of the request or timer that it happened for.", "controller#41")
    facts: dict[str, Any] = member(
        table({"description": "A fact."}, "What the rule went by."),
        {"partition": "orders-0", "old": [1, 2, 3], "new": [1, 2]},
    )


class OfTopic(Model):
    """Something of a topic."""

    topic: TopicName = member(example="orders")


class Place(OfTopic):
    """A partition."""

    partition: PartitionNumber = member(example=0)


class PartitionState(Model, named=True):
    """A partition as the controller has recorded it."""

    partition: PartitionNumber = member(example=0)
    leader: NodeId = member(example=1)
    leader_epoch: Epoch = member(example=3)
    partition_epoch: int = member("Rises with each change.", 5)
    controller_epoch: Epoch = member("Of the controller that made the last change.", 2)
    replicas: list[NodeId] = member("All, the preferred leader first.", [1, 2, 3])
    isr: list[NodeId] = member("Those in sync.", [1, 2])
    elr: list[NodeId] = member("Those that may lead though they are not in sync (KIP-966).", [])
    last_known_elr: list[NodeId] = member("The last leader, when ISR and ELR have run empty.", [])
    adding_replicas: list[NodeId] = member("Those that a reassignment adds.", [])
    removing_replicas: list[NodeId] = member("Those that go when it is complete.", [])


class Broker(Model, named=True):
    """One broker."""

    id: NodeId = member(example=1, source="node_id")
    host: str = member(example="127.0.0.1")
    port: int = member(example=9092)
    url: str = member("Where it listens.", "http://127.0.0.1:9092")
    rack: str | None = member()
    broker_epoch: int = member("Of its present registration.", 4)
    fenced: bool = member("It may not lead or join an ISR: it is silent, or starting.", example=False)
    in_controlled_shutdown: bool = member("It is leaving in good order.", example=False)


class BrokerLoad(Broker, named=True):
    """One broker, and how much it leads and holds."""

    leader_count: int = member("Partitions that it leads.", 4)
    replica_count: int = member("Partitions that it has a replica of.", 12)
    in_sync_count: int = member("Partitions in whose ISR it is.", 12)


_MODELS = (Leader, Fault, Problem, ProxyError, ProblemPage, RecordOut, TopicRecord, PartitionState, Event, Broker)
SCHEMAS: dict[str, dict[str, Any]] = {
    **SCALARS,
    "Outcome": {"type": "string", "enum": list(OUTCOMES), "description": "What became of a write."},
    "RecordIn": {
        **RecordIn.schema(sent=True),
        "oneOf": [{"required": ["value"]}, {"required": ["value_b64"]}],
        "not": {"required": ["key", "key_b64"]},
    },
    "RecordsIn": RecordsIn.schema(sent=True),
    **{each.__name__: each.schema() for each in (*_MODELS, BrokerLoad)},
}
