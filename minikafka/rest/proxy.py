"""The produce routes of Confluent REST Proxy, v2 and v3: aliases of ``/v1``'s produce for programs written for it.

- ``POST /topics/{topic}`` (v2): records in the embedded formats *binary* (base64) and *json*. As in the proxy, the
  status is 200 when batches fail, and each record has its own ``error_code``.
- ``POST /v3/clusters/{cluster_id}/topics/{topic}/records`` (v3, also below ``/kafka``): one record per request. The
  proxy also accepts a stream of records in one body; these routes refuse it.
- Errors are ``{"error_code", "message"}``. ``error_code`` is the HTTP status, or one of the proxy's own codes.
- Formats that need a schema registry (Avro, Protobuf, JSON Schema) are 415.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from minikafka.errors import InvalidRequest, ProtocolError, RecordListTooLarge, UnknownTopicOrPartition
from minikafka.rest import json_text
from minikafka.rest.body import kind_of, parsed_records, read_body
from minikafka.rest.host import PRODUCE_RECORD_COUNT_MAX
from minikafka.rest.json_text import ITEM_BYTES, TURN_BYTES, Turns, long_step
from minikafka.rest.leaders import check_known, partition_of
from minikafka.rest.model import Model, many_of, member, one
from minikafka.rest.parameters import FORWARD, INT32_MAX, TOPIC, Text
from minikafka.rest.produce import PROBLEMS, Written, write
from minikafka.rest.records import RecordIn, base64_in, timestamp_in
from minikafka.rest.route import Answer, Body, ErrorForm, Json, Page, Reply, Routes, Visit
from minikafka.rest.schema import PartitionNumber, TopicName, many, nullable, ref, text, whole
from minikafka.rest.schemas import CLUSTER_ID_EXAMPLE
from minikafka.rest.sentences import timestamp_text
from minikafka.types import Offset, TopicPartition
from minikafka.web.accept import JSON
from minikafka.web.problems import VALIDATION_ERROR_COUNT_MAX, Fault, Refused, malformed, status_of, unacceptable
from minikafka.wire.limits import shown

ROUTES = Routes("proxy")
V2 = "application/vnd.kafka.v2+json"
EMBEDDED = {
    "application/vnd.kafka.binary.v2+json": "BINARY",
    "application/vnd.kafka.json.v2+json": "JSON",
}
FORMATS = ("BINARY", "JSON", "STRING")
SCHEMA_FORMATS = ("AVRO", "PROTOBUF", "JSONSCHEMA")
SCHEMA_MEMBERS = ("subject", "subject_name_strategy", "schema_id", "schema_version", "schema")
NO_REGISTRY = "there is no schema registry here: Avro, Protobuf and JSON Schema are not supported"
SERVED = (
    "of Confluent REST Proxy's API only produce is (POST /topics/{topic} and POST "
    "/v3/clusters/{cluster_id}/topics/{topic}/records); /v1 has the rest, see /docs"
)
PATHS = re.compile(r"/(topics|consumers|brokers|v3|kafka/v3)(/|$)")
"""Paths of the proxy's API."""
TOPIC_NOT_FOUND = 40401
PARTITION_NOT_FOUND = 40402
KAFKA_REFUSED = 40002
KAFKA_ERROR = 50002
KAFKA_RETRIABLE_ERROR = 50003
CLUSTER_ID = Text(
    "cluster_id",
    "The cluster's id, from `GET /v1/cluster`.",
    place="path",
    pattern=r"[^/]+",
    needed="an id",
    example=CLUSTER_ID_EXAMPLE,
)


_NULL = {"type": "null"}
_CHOSEN = nullable(
    whole("The partition; without it Kafka's partitioner chooses.", minimum=0, maximum=INT32_MAX),
)


class _Offset(Model):
    """What became of a record."""

    partition: int | None = member("The partition; null when the batch failed.", 2)
    offset: Offset | None = member("The offset; null when the batch failed.", 41)
    error_code: int | None = member("50003: a repetition can help; 50002: it cannot.")
    error: str | None = member("Why the batch failed.")


class _Offsets(Model):
    """One result per record, in the order of the request."""

    offsets: list[Any] = many_of(_Offset)
    key_schema_id: None = member(_NULL)
    value_schema_id: None = member(_NULL)


def _error_body(refused: Refused) -> dict[str, Any]:
    return {"error_code": _code_of(refused), "message": refused.error.message}


class _RecordV2(Model):
    """A record."""

    key: Any = member("Base64 in the binary format, any JSON in the json format.", "YW5u", default=None)
    value: Any = member("As `key`; null makes a tombstone.", "dGVh", default=None)
    partition: int | None = member(_CHOSEN, 2, default=None)


class _RecordsV2(Model):
    """Records; schemas must be null."""

    records: list[_RecordV2] = many_of(_RecordV2, minItems=1, maxItems=PRODUCE_RECORD_COUNT_MAX)
    key_schema: None = member(_NULL, default=None)
    key_schema_id: None = member(_NULL, default=None)
    value_schema: None = member(_NULL, default=None)
    value_schema_id: None = member(_NULL, default=None)


# ---- v2 --------------------------------------------------------------------------------------------------------------


@ROUTES.at(
    "POST /topics/{topic}",
    Answer("What became of each record.", dict.fromkeys((V2, JSON), (_Offsets.schema(), _Offsets.example()))),
    parameters=(FORWARD,),
    body=Body(dict.fromkeys(EMBEDDED, (_RecordsV2.schema(sent=True), _RecordsV2.example()))),
    problems=PROBLEMS,
    errors=ErrorForm(media_type=V2, schema=ref("ProxyError"), body_of=_error_body),
)
async def post_topic(visit: Visit) -> Reply | Page:
    """Produce as in Confluent REST Proxy v2.

    The status is 200 when batches fail: each record has its own `error_code`, 50003 when a repetition can help.
    """
    form = _embedded_format(visit)
    topic = check_known(visit, visit[TOPIC])
    document = await _object(visit, "json")
    for name in ("key_schema", "key_schema_id", "value_schema", "value_schema_id"):
        if document.get(name) is not None:
            raise malformed(f"/{name}: {NO_REGISTRY}", status=415)
    listed = document.get("records")
    if type(listed) is list and len(listed) > PRODUCE_RECORD_COUNT_MAX:
        raise RecordListTooLarge(f"{len(listed)} records in one request, the limit is {PRODUCE_RECORD_COUNT_MAX}")
    sent = _RecordsV2.read(document).records
    if len(sent) * ITEM_BYTES >= TURN_BYTES:
        await long_step()
    now_ms = visit.host.world.clock.wall_ms()
    faults: list[Fault] = []
    records, turns = [], Turns()
    for at, each in enumerate(sent):
        key = _encoded(each.key, form, f"/records/{at}/key", faults)
        value = _encoded(each.value, form, f"/records/{at}/value", faults)
        records.append(RecordIn(now_ms, key, value, []))
        await turns.after(len(key or b"") + len(value or b""))
        if len(faults) >= VALIDATION_ERROR_COUNT_MAX:
            break
    if faults:
        raise unacceptable(faults)
    chosen = [each.partition for each in sent]
    _check_partitions(visit, topic, {each for each in chosen if each is not None})
    written = await write(visit, topic, records, chosen)
    body = _Offsets(offsets=[_offset_out(each) for each in written], key_schema_id=None, value_schema_id=None).out()
    if visit.wants_msgpack or not visit.accept.quality(V2):
        return Reply(body)
    return Page(await json_text.text_in_turns(body), V2)


def _embedded_format(visit: Visit) -> str:
    given = visit.http.content_type.lower()
    if given not in EMBEDDED:
        why = f"; {NO_REGISTRY}" if re.search("avro|protobuf|jsonschema", given) else ""
        raise malformed(
            f"Content-Type {given[:80]!r} cannot be read here{why}; send {' or '.join(EMBEDDED)}", status=415
        )
    return EMBEDDED[given]


def _offset_out(written: Written) -> dict[str, Any]:
    error = written.error
    if error is None:
        return _Offset(partition=written.partition, offset=written.offset, error_code=None, error=None).out()
    code = KAFKA_RETRIABLE_ERROR if error.retriable else KAFKA_ERROR
    return _Offset(partition=None, offset=None, error_code=code, error=error.message).out()


# ---- v3 --------------------------------------------------------------------------------------------------------------


class _Data(Model):
    """A key or value that was written."""

    type: str = member("The format.", "JSON")
    size: int = member("Bytes.", 14)


class _Written(Model):
    """Where the record was written."""

    error_code: int = member("200.", 200)
    cluster_id: str = member("The cluster's id.", CLUSTER_ID_EXAMPLE)
    topic_name: TopicName = member(example="orders")
    partition_id: PartitionNumber = member(example=2)
    offset: Offset = member(example=41)
    timestamp: str = member("The record's timestamp.", "2026-11-18T12:26:40.000Z", format="date-time")
    key: _Data | None = one(_Data, default=None)
    value: _Data | None = one(_Data, default=None)


class _DataIn(Model):
    """A key or value."""

    type: str = member("The format of `data`.", "JSON", enum=list(FORMATS))
    data: Any = member(
        "Base64 (BINARY), any JSON (JSON) or text (STRING); null for no bytes.", {"item": "tea"}, default=None
    )


class _HeaderIn(Model):
    """A header."""

    name: str = member("The name.")
    value: str | None = member(nullable(text("Base64.", format="byte")), default=None)


class _RecordV3(Model):
    """One record."""

    partition_id: int | None = member(_CHOSEN, default=None)
    headers: list[Any] | None = member(nullable(many(_HeaderIn.schema(sent=True))), default=None)
    key: _DataIn | None = one(_DataIn, or_null=True, default=None)
    value: _DataIn | None = one(_DataIn, or_null=True, default=None)
    timestamp: Any = member(
        "ISO 8601 with a time zone, or milliseconds since 1970.",
        default=None,
        type=["string", "integer", "null"],
        format="date-time",
    )


_V3_MEMBERS: dict[str, Any] = {
    "parameters": (FORWARD,),
    "body": _RecordV3.body(value=_DataIn.example()),
    "problems": PROBLEMS,
    "errors": ErrorForm(media_type=JSON, schema=ref("ProxyError"), body_of=_error_body),
}


@ROUTES.at(
    "POST /v3/clusters/{cluster_id}/topics/{topic}/records",
    _Written.answer("Written.", value=_Data.example()),
    **_V3_MEMBERS,
)
@ROUTES.at(
    "POST /kafka/v3/clusters/{cluster_id}/topics/{topic}/records",
    _Written.answer("Written.", value=_Data.example()),
    **_V3_MEMBERS,
)
async def post_cluster_topic_records(visit: Visit) -> Json:
    """Produce one record as in Confluent REST Proxy v3."""
    if visit[CLUSTER_ID] != visit.host.image.cluster_id:
        raise malformed(
            f"there is no cluster {visit[CLUSTER_ID][:80]!r} here; this is {visit.host.image.cluster_id!r}", status=404
        )
    topic = check_known(visit, visit[TOPIC])
    try:
        document = await _object(visit, kind_of(visit.http))
    except Refused as refused:
        if refused.status != 400:
            raise
        raise malformed(f"{refused.error.message}; send one record per request, not a stream of records") from None
    _check_needs_no_registry(document)
    sent = _RecordV3.read(document)
    faults: list[Fault] = []
    parts = {name: part for name, part in (("key", sent.key), ("value", sent.value)) if part is not None}
    data = {name: _encoded(part.data, part.type, f"/{name}/data", faults) for name, part in parts.items()}
    headers = [
        (each["name"], base64_in(each.get("value"), f"/headers/{at}/value", faults))
        for at, each in enumerate(sent.headers or ())
    ]
    timestamp = visit.host.world.clock.wall_ms()
    if sent.timestamp is not None:
        timestamp = timestamp_in(sent.timestamp, "/timestamp", faults)
    if timestamp_text(timestamp) is None:
        detail = "is after the year 9999, which the response cannot express"
        faults.append({"pointer": "/timestamp", "detail": detail})
    if faults:
        raise unacceptable(faults)
    partition = sent.partition_id
    _check_partitions(visit, topic, set() if partition is None else {partition})
    (written,) = await write(
        visit, topic, [RecordIn(timestamp, data.get("key"), data.get("value"), headers)], [partition]
    )
    if written.error is not None:
        # As in the proxy: what the broker refuses because of the record is 400.
        raise Refused(written.error, status=400 if status_of(written.error) in (413, 422) else None)
    where = _Written(
        error_code=200,
        cluster_id=visit.host.image.cluster_id,
        topic_name=topic,
        partition_id=written.partition,
        offset=written.offset,
        timestamp=str(timestamp_text(written.timestamp)).replace("+00:00", "Z"),
        **{name: _Data(type=part.type, size=len(data[name] or b"")) for name, part in parts.items()},
    )
    return where.out()


def _check_needs_no_registry(document: Mapping[str, Any]) -> None:
    for name in ("key", "value"):
        part = document.get(name)
        if type(part) is dict and (
            part.get("type") in SCHEMA_FORMATS or any(part.get(each) is not None for each in SCHEMA_MEMBERS)
        ):
            raise malformed(f"/{name}: {NO_REGISTRY}; use type {', '.join(FORMATS)}", status=415)


# ---- both ------------------------------------------------------------------------------------------------------------


async def _object(visit: Visit, kind: str) -> dict[str, Any]:
    """The body, which must be one object."""
    document = await parsed_records(await read_body(visit), kind, visit.http)
    if type(document) is not dict:
        raise malformed(f"the body must be a JSON object, not {shown(document)}", status=422)
    return document


def _encoded(data: Any, form: str, path: str, faults: list[Fault]) -> bytes | None:
    """The bytes of a key or value; JSON's are the text of the value, so a string keeps its quotes (as in the proxy)."""
    if data is None:
        return None
    if form == "BINARY":
        return base64_in(data, path, faults)
    if form == "STRING":
        if type(data) is str:
            return data.encode()
        faults.append({"pointer": path, "detail": f"a text is needed, not {shown(data)}"})
        return None
    try:
        return json_text.compact(data)
    except (TypeError, ValueError):
        # Only msgpack can express values that JSON cannot.
        faults.append({"pointer": path, "detail": "cannot be written as JSON"})
        return None


def _check_partitions(visit: Visit, topic: str, partitions: set[int]) -> None:
    for partition in sorted(partitions):
        try:
            partition_of(visit.host, TopicPartition(topic, partition))
        except ProtocolError as error:
            raise Refused(error, partition=partition) from None


def _code_of(refused: Refused) -> int:
    error = refused.error
    if isinstance(error, UnknownTopicOrPartition):
        return PARTITION_NOT_FOUND if "partition" in refused.members else TOPIC_NOT_FOUND
    if refused.status >= 500:
        return KAFKA_RETRIABLE_ERROR if error.retriable or refused.status == 503 else KAFKA_ERROR
    if refused.status == 400 and not isinstance(error, InvalidRequest):
        return KAFKA_REFUSED
    return refused.status
