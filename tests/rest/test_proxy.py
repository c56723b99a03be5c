"""The produce routes of Confluent REST Proxy (v2 and v3), and their errors."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from minikafka.errors import UNKNOWN, BrokerNotAvailable, MessageTooLarge, NotEnoughReplicas, RequestTimedOut
from minikafka.types import TopicPartition
from minikafka.wire.records import RecordView, decode_batch
from tests.rest.fake_brokers import FakeCluster
from tests.rest.test_doors import Answer, Curl

BINARY = "application/vnd.kafka.binary.v2+json"
JSON_V2 = "application/vnd.kafka.json.v2+json"
V2 = "application/vnd.kafka.v2+json"
CLUSTER = "C" * 21 + "Q"
RECORDS_V3 = f"/v3/clusters/{CLUSTER}/topics/orders/records"
OF_ANY_FORM = [("/topics/orders", JSON_V2, {"records": [{"value": 1}]}), (RECORDS_V3, "application/json", {})]


@pytest.fixture
async def curl() -> AsyncIterator[Curl]:
    """Two brokers; of ``orders`` broker 1 leads partition 0 and broker 2 leads partition 1."""
    async with FakeCluster(2) as cluster:
        cluster.add_topic("orders", [1, 2])
        client = Curl(cluster)
        async with client.session:
            yield client


async def post(curl: Curl, path: str, document: Any, content_type: str = JSON_V2, **headers: str) -> Answer:
    data = document if type(document) is bytes else json.dumps(document).encode()
    return await curl("POST", path, data=data, headers={"Content-Type": content_type, **headers})


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def refused(answer: Answer, status: int, code: int) -> str:
    """The sentence of an error in the proxy's form."""
    assert (answer.status, answer.json.keys(), answer.json["error_code"]) == (status, {"error_code", "message"}, code)
    return str(answer.json["message"])


def log_of(curl: Curl, partition: int) -> list[RecordView]:
    batches = curl.cluster.batches.get(TopicPartition("orders", partition), [])
    return [record for each in batches for record in decode_batch(each)]


async def test_v2_binary_records_are_base64_of_key_and_value(curl):
    """The bytes arrive as they were; null is no key and no value."""
    records = [{"key": b64(b"\x00k"), "value": b64(b"\xff\x00"), "partition": 1}, {"value": None, "partition": 1}]
    answer = await post(curl, "/topics/orders", {"records": records}, BINARY)
    assert (answer.status, answer.headers["Content-Type"]) == (200, V2)
    assert answer.json == {
        "offsets": [
            {"partition": 1, "offset": 0, "error_code": None, "error": None},
            {"partition": 1, "offset": 1, "error_code": None, "error": None},
        ],
        "key_schema_id": None,
        "value_schema_id": None,
    }
    assert [(each.key, each.value) for each in log_of(curl, 1)] == [(b"\x00k", b"\xff\x00"), (None, None)]


async def test_v2_json_records_keep_the_text_of_the_value(curl):
    """The proxy's JSON serializer leaves the quotes of a string; /v1 does not."""
    records = [{"key": "ann", "value": {"item": "tea", "n": 2}, "partition": 0}, {"value": "tea", "partition": 0}]
    await post(curl, "/topics/orders", {"records": records, "key_schema_id": None})
    assert [(each.key, each.value) for each in log_of(curl, 0)] == [
        (b'"ann"', b'{"item":"tea","n":2}'),
        (None, b'"tea"'),
    ]


async def test_v2_json_values_may_be_any_json(curl):
    """No limit of the API's own integers applies to what a record says."""
    values = [10**30, True, 1.5, [None], ""]
    await post(curl, "/topics/orders", {"records": [{"value": each, "partition": 0} for each in values]})
    assert [json.loads(bytes(each.value)) for each in log_of(curl, 0)] == values


async def test_v2_records_over_partitions_keep_the_order_of_the_request(curl):
    """A given partition wins over the key; the others are placed by murmur2 of the key."""
    records = [{"key": b64(b"21"), "value": b64(b"%d" % number)} for number in range(3)]
    records[1]["partition"] = 1
    answer = (await post(curl, "/topics/orders", {"records": records}, BINARY)).json["offsets"]
    of_key = (-973932308 & 0x7FFFFFFF) % 2  # Kafka's own test vector: murmur2("21")
    assert of_key == 0
    assert [(each["partition"], each["offset"]) for each in answer] == [(0, 0), (1, 0), (0, 1)]


async def test_v2_reports_the_error_of_each_record(curl):
    """As in the proxy: status 200, 50003 when a repetition can help and 50002 when it cannot."""
    records = {"records": [{"value": number, "partition": number} for number in range(2)]}
    refuse = [broker.refuse_parts for broker in curl.cluster.brokers.values()]
    refuse[0][TopicPartition("orders", 0)] = [NotEnoughReplicas("too few")]
    answer = await post(curl, "/topics/orders", records)
    assert answer.status == 200
    assert answer.json["offsets"] == [
        {"partition": None, "offset": None, "error_code": 50003, "error": "too few"},
        {"partition": 1, "offset": 0, "error_code": None, "error": None},
    ]
    refuse[0][TopicPartition("orders", 0)] = [MessageTooLarge("too large")]
    refuse[1][TopicPartition("orders", 1)] = [RequestTimedOut("late", outcome=UNKNOWN)]
    answer = await post(curl, "/topics/orders", records)
    assert [each["error_code"] for each in answer.json["offsets"]] == [50002, 50003]


@pytest.mark.parametrize(
    ("document", "status", "code", "words"),
    [
        ({"records": [{"value": "no base64!"}]}, 422, 422, "/records/0/value: not base64"),
        ({"records": [{"key": 7, "value": None}]}, 422, 422, "/records/0/key: a base64 text"),
        ({"records": [{"value": None, "partition": 2}]}, 404, 40402, "partitions 0 to 1, not 2"),
        ({"records": [{"value": None, "partition": "0"}]}, 422, 422, "/records/0/partition"),
        ({"records": [{"valeu": None}]}, 422, 422, "did you mean 'value'?"),
        ({"records": [7]}, 422, 422, "/records/0: an object is needed"),
        ({"records": []}, 422, 422, "/records: 1 or more entries"),
        ({"records": [{"value": None}], "value_schema": "{}"}, 415, 415, "no schema registry"),
        ({"records": [{"value": None}] * 10_001}, 413, 413, "the limit is 10000"),
        ([], 422, 422, "a JSON object"),
        (b"{", 400, 400, "JSON"),
    ],
)
async def test_v2_refuses_bad_requests_in_the_form_of_the_proxy(curl, document, status, code, words):
    """Nothing of the request is written."""
    answer = await post(curl, "/topics/orders", document, BINARY)
    assert words in refused(answer, status, code)
    assert answer.headers["Content-Type"] == V2
    assert curl.cluster.batches == {}


@pytest.mark.parametrize("content_type", ["application/vnd.kafka.avro.v2+json", "application/json", "text/plain"])
async def test_v2_names_the_content_types_that_it_reads(curl, content_type):
    """Avro needs a schema registry; the message says so, and what to send."""
    words = refused(await post(curl, "/topics/orders", {}, content_type), 415, 415)
    assert BINARY in words
    assert JSON_V2 in words
    assert ("no schema registry" in words) == ("avro" in content_type)


async def test_v2_answers_clients_that_accept_only_json(curl):
    """Accept: application/json gets the same body under that type."""
    answer = await post(curl, "/topics/orders", {"records": [{"value": 1}]}, Accept="application/json")
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json["offsets"][0]["error"] is None
    refused(await post(curl, "/topics/orders", {"records": [{"value": 1}]}, Accept="text/html"), 406, 406)


@pytest.mark.parametrize("prefix", ["", "/kafka"])
async def test_v3_produces_one_record(curl, prefix):
    """Each of the three types, headers, partition and timestamp."""
    document = {
        "partition_id": 1,
        "key": {"type": "STRING", "data": "ann"},
        "value": {"type": "JSON", "data": {"item": "tea"}},
        "headers": [{"name": "h", "value": b64(b"\x01")}, {"name": "n", "value": None}],
        "timestamp": "2026-01-02T03:04:05.678Z",
    }
    answer = await post(curl, prefix + RECORDS_V3, document, "application/json")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    assert answer.json == {
        "error_code": 200,
        "cluster_id": CLUSTER,
        "topic_name": "orders",
        "partition_id": 1,
        "offset": 0,
        "timestamp": "2026-01-02T03:04:05.678Z",
        "key": {"type": "STRING", "size": 3},
        "value": {"type": "JSON", "size": 14},
    }
    binary = {"partition_id": 1, "key": None, "value": {"type": "BINARY", "data": b64(b"\xff")}}
    second = (await post(curl, prefix + RECORDS_V3, binary, "application/json")).json
    assert (second["offset"], second["value"], "key" in second) == (1, {"type": "BINARY", "size": 1}, False)
    first, last = log_of(curl, 1)
    assert (first.key, first.value, first.timestamp) == (b"ann", b'{"item":"tea"}', 1767323045678)
    assert list(first.headers) == [("h", b"\x01"), ("n", None)]
    assert (last.key, last.value) == (None, b"\xff")


@pytest.mark.parametrize(
    ("document", "status", "code", "words"),
    [
        ({"value": {"type": "BINARY", "data": "no base64!"}}, 422, 422, "/value/data: not base64"),
        ({"value": {"type": "STRING", "data": 1}}, 422, 422, "/value/data: a text"),
        ({"value": {"type": "TEXT", "data": "x"}}, 422, 422, "BINARY, JSON, STRING"),
        ({"value": {"data": "x"}}, 422, 422, "/value/type"),
        ({"value": "x"}, 422, 422, "/value: an object"),
        ({"key": {"type": "AVRO", "data": 1}}, 415, 415, "no schema registry"),
        ({"value": {"schema_id": 3, "data": 1}}, 415, 415, "no schema registry"),
        ({"headers": [{"value": "eA=="}]}, 422, 422, "/headers/0/name"),
        ({"timestamp": "yesterday"}, 422, 422, "/timestamp"),
        ({"timestamp": 2**62}, 422, 422, "9999"),
        ({"partition_id": 9}, 404, 40402, "partitions 0 to 1, not 9"),
        ({"partition": 1}, 422, 422, "did you mean 'partition_id'?"),
        (b'{"partition_id": 0}{"partition_id": 0}', 400, 400, "one record per request"),
        (b"[]", 422, 422, "a JSON object"),
    ],
)
async def test_v3_refuses_bad_requests_in_the_form_of_the_proxy(curl, document, status, code, words):
    """Nothing is written; a stream of records in one body is refused with the way out."""
    answer = await post(curl, RECORDS_V3, document, "application/json")
    assert words in refused(answer, status, code)
    assert answer.headers["Content-Type"] == "application/json"
    assert curl.cluster.batches == {}


async def test_v3_does_not_know_other_clusters(curl):
    """The message has the id of this one."""
    for prefix in ("", "/kafka"):
        answer = await post(curl, f"{prefix}/v3/clusters/lkc-1/topics/orders/records", {}, "application/json")
        assert CLUSTER in refused(answer, 404, 404)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (NotEnoughReplicas("too few"), 503, 50003),
        (RequestTimedOut("late", outcome=UNKNOWN), 504, 50003),
        (MessageTooLarge("too large"), 400, 40002),
    ],
)
async def test_v3_reports_what_the_leader_refuses(curl, error, status, code):
    """A client repeats what is retriable."""
    curl.cluster.brokers[1].refuse_parts[TopicPartition("orders", 0)] = [error]
    answer = await post(curl, RECORDS_V3, {"partition_id": 0}, "application/json")
    assert refused(answer, status, code) == error.message


@pytest.mark.parametrize(("path", "content_type", "document"), OF_ANY_FORM)
async def test_errors_before_the_handler_have_the_form_of_the_proxy(curl, path, content_type, document):
    """Unknown topics, unknown parameters, a broker without metadata, and failures of the handler."""
    unknown = path.replace("orders", "nope")
    assert "'nope'" in refused(await post(curl, unknown, document, content_type), 404, 40401)
    assert "acks" in refused(await post(curl, path + "?acks=1", document, content_type), 400, 400)
    curl.cluster.brokers[1].has_caught_up = False
    answer = await post(curl, path, document, content_type)
    refused(answer, 503, 50003)
    assert answer.headers["Retry-After"] == "1"


async def test_the_host_check_comes_before_the_proxy_routes(curl):
    """A web page that rebinds a name must not produce; the refusal is a problem as everywhere."""
    url = curl.cluster.brokers[1].url
    headers = {"Host": "evil.example", "Content-Type": JSON_V2}
    async with curl.session.post(url + "/topics/orders", data=b'{"records":[{"value":1}]}', headers=headers) as answer:
        assert (answer.status, answer.content_type) == (403, "application/problem+json")
    assert curl.cluster.batches == {}


async def test_without_forwarding_the_leader_is_named(curl):
    """421, as for /v1."""
    document = {"records": [{"value": 1, "partition": 1}]}
    refused(await post(curl, "/topics/orders?forward=never", document), 421, 421)
    assert (await curl("POST", "/topics/orders", data=json.dumps(document), headers={"Content-Type": JSON_V2})).json


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/consumers/billing"),
        ("GET", "/consumers/billing/instances/a/records"),
        ("GET", "/topics"),
        ("POST", "/topics/orders/partitions/0"),
        ("GET", "/v3/clusters"),
        ("GET", "/kafka/v3/clusters"),
    ],
)
async def test_routes_of_the_proxy_that_are_not_served_are_named(curl, method, path):
    """404 with what is served instead."""
    answer = (await curl(method, path)).problem(404, "INVALID_REQUEST")
    assert "POST /topics/{topic}" in answer["detail"]
    assert "/v1" in answer["detail"]


async def test_a_leader_that_is_stopping_is_retriable(curl):
    """Its error for the whole request becomes the error of each record."""
    curl.cluster.brokers[2].refuse["Produce"] = [BrokerNotAvailable("stopping")] * 5
    answer = await post(curl, "/topics/orders", {"records": [{"value": 1, "partition": 1}]})
    assert answer.json["offsets"][0]["error_code"] == 50003
