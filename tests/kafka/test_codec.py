"""The codec of Kafka's protocol: every API, every version, both directions."""

from __future__ import annotations

import string
import struct
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from minikafka.errors import InvalidRequest
from minikafka.wire.kafka import codec
from minikafka.wire.kafka.schema import Field, api_named, api_with_key
from minikafka.wire.kafka.translate.cluster import DESCRIBE_QUORUM
from minikafka.wire.kafka.translate.common import Exchange
from minikafka.wire.kafka.translate.produce import DESCRIBE_PRODUCERS
from minikafka.wire.messages import DescribeProducersResponse, DescribeQuorumResponse
from tests.kafka.samples import api_names

SIDES = ("request", "response")
VERSIONS = [
    (name, version) for name in api_names() for version in range(api_named(name).first, api_named(name).last + 1)
]
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def drawn(fields: tuple[Field, ...], version: int, random: Random) -> dict[str, Any]:
    """A message with every field: drawn where the version has it, else its default."""
    return {each.name: value_of(each, version, random) if each.is_in(version) else each.default for each in fields}


def value_of(field: Field, version: int, random: Random) -> Any:
    if field.may_be_null(version) and random.random() < 0.2:
        return None
    if field.is_array:
        sizes = (0, 1, 2) if field.kind == "struct" else (0, 1, 130)
        return [one_of(field, version, random) for _ in range(random.choice(sizes))]
    return one_of(field, version, random)


def one_of(field: Field, version: int, random: Random) -> Any:
    kind = field.kind
    if kind in BITS:
        return random.randrange(-(2 ** (BITS[kind] - 1)), 2 ** (BITS[kind] - 1))
    if kind in ("uint16", "uint32"):
        return random.randrange(2 ** int(kind[4:]))
    if kind == "string":
        return "".join(random.choices(string.ascii_letters + "é☃", k=random.choice((0, 3, 200))))
    return {
        "bool": lambda: random.random() < 0.5,
        "float64": random.random,
        "uuid": lambda: random.randbytes(16),
        "bytes": lambda: random.randbytes(random.choice((0, 3, 300))),
        "records": lambda: random.randbytes(random.choice((0, 61, 5000))),
        "struct": lambda: drawn(field.fields, version, random),
    }[kind]()


def wrapped(message: Any) -> Any:
    """Records as they are encoded: a sequence of buffers."""
    if isinstance(message, dict):
        return {
            name: [value[:40], value[40:]] if name == "records" and value is not None else wrapped(value)
            for name, value in message.items()
        }
    return [wrapped(each) for each in message] if isinstance(message, list) else message


def decoded(*args: Any) -> Any:
    """With records as bytes."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: plain(each) for name, each in value.items()}
        if isinstance(value, list):
            return [plain(each) for each in value]
        return bytes(value) if isinstance(value, memoryview) else value

    return plain(codec.decode(*args))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name, version", VERSIONS, ids=str)
def test_what_is_encoded_is_decoded(name: str, version: int, side: Any):
    """Every field of every version survives, and five drawn messages cover null, empty and long values."""
    random = Random(f"{name} {version} {side}")
    for _ in range(5):
        message = drawn(getattr(api_named(name), side), version, random)
        data = b"".join(codec.encode(name, side, version, wrapped(message)))
        assert decoded(name, side, version, memoryview(data)) == message


@pytest.mark.parametrize("name, version", VERSIONS, ids=str)
def test_a_request_that_ends_early_is_refused(name: str, version: int):
    """At whatever byte it is cut; and bytes behind it are ignored, as librdkafka 2.15 needs."""
    random = Random(f"{name} {version}")
    message = drawn(api_named(name).request, version, random)
    data = b"".join(codec.encode(name, "request", version, wrapped(message)))
    for end in {random.randrange(len(data)) for _ in range(20)} if data else ():
        with pytest.raises(InvalidRequest, match=f"{name} request version {version} cannot be decoded"):
            codec.decode(name, "request", version, memoryview(data)[:end])
    assert decoded(name, "request", version, memoryview(data + b"\x01\x02\x03")) == message


def test_the_bytes_of_known_messages():
    """Two messages as the protocol's documentation lays them out, written down by hand."""
    heartbeat = {"group_id": "g", "generation_id": 7, "member_id": "m", "group_instance_id": None}
    assert b"".join(codec.encode("Heartbeat", "request", 3, heartbeat)) == b"\x00\x01g\x00\x00\x00\x07\x00\x01m\xff\xff"
    assert b"".join(codec.encode("Heartbeat", "request", 4, heartbeat)) == b"\x02g\x00\x00\x00\x07\x02m\x00\x00"


def test_unknown_tagged_fields_are_skipped():
    """KIP-482: a newer client may add some."""
    plain = b"".join(codec.encode("Heartbeat", "response", 4, {"error_code": 3}))
    assert plain == b"\x00\x00\x00\x00\x00\x03\x00"
    tagged = memoryview(plain[:-1] + b"\x02\x63\x03abc\x64\x00")
    assert codec.decode("Heartbeat", "response", 4, tagged)["error_code"] == 3
    _, end = codec.decoder("Heartbeat", "response", 4)(tagged, 0, 2)
    assert end == len(tagged), "what follows them is read at its place"
    with pytest.raises(codec.Malformed, match="tagged fields has too many elements"):
        codec.decoder("Heartbeat", "response", 4)(tagged, 0, 1)


def test_a_tagged_field_has_the_size_that_it_says():
    """Read to its own end and skipped to another, thousands of tags could each read the same megabyte."""
    request = {"max_wait_ms": 0, "min_bytes": 1, "topics": [], "forgotten_topics_data": [], "cluster_id": "c" * 100}
    whole = bytearray(b"".join(codec.encode("Fetch", "request", 12, request)))
    assert codec.decode("Fetch", "request", 12, memoryview(whole))["cluster_id"] == "c" * 100
    at = whole.index(b"\x65" + b"c" * 100) - 1  # the tag's size, then the string's, plus one
    assert whole[at] == 101
    for size in (3, 100):
        whole[at] = size
        with pytest.raises(InvalidRequest, match="cluster_id is a tagged field of another size than it says"):
            codec.decode("Fetch", "request", 12, memoryview(whole))


@pytest.mark.parametrize("version", [3, 4])
def test_a_string_is_no_longer_than_kafkas(version: int):
    """Where its length is a varint, it could be as long as the frame, and four times as long in memory."""
    heartbeat = {"group_id": "g" * codec.STRING_BYTES_MAX, "generation_id": 7, "member_id": "m"}
    whole = b"".join(codec.encode("Heartbeat", "request", version, heartbeat))
    assert codec.decode("Heartbeat", "request", version, memoryview(whole)) == {**heartbeat, "group_instance_id": None}
    if version == 4:
        longer = b"".join(codec.encode("Heartbeat", "request", 4, {**heartbeat, "group_id": "g" * 32_768}))
        with pytest.raises(InvalidRequest, match="group_id is too long: a string has 32767 bytes at most"):
            codec.decode("Heartbeat", "request", 4, memoryview(longer))


def test_null_is_refused_where_the_schema_has_none():
    """A client's is malformed; a translator's is a bug that shows."""
    for version, null in ((3, b"\xff\xff"), (4, b"\x00")):
        with pytest.raises(InvalidRequest, match="group_id is null"):
            codec.decode("Heartbeat", "request", version, memoryview(null + bytes(20)))
        with pytest.raises(codec.Malformed, match="group_id is null"):
            codec.encode("Heartbeat", "request", version, {"group_id": None, "generation_id": 1, "member_id": "m"})


def test_huge_counts_cost_nothing():
    """A count beyond the message's bytes, or beyond the limit, is refused before anything is built."""
    for count in (4, 2**31 - 1):
        beyond_bytes = struct.pack(">i", count) + b"\x00\x01a"
        with pytest.raises(InvalidRequest, match="topics has too many elements"):
            codec.decode("Metadata", "request", 1, memoryview(beyond_bytes))
    count = codec.ELEMENTS_MAX
    found = codec.decode("Metadata", "request", 1, memoryview(struct.pack(">i", count) + b"\x00\x00" * count))
    assert len(found["topics"]) == count
    count += 1
    with pytest.raises(InvalidRequest, match="too many elements"):
        codec.decode("Metadata", "request", 1, memoryview(struct.pack(">i", count) + b"\x00\x00" * count))


def test_response_may_have_more_elements_than_a_request():
    """A client asked for it; requests come from anybody."""
    groups = [{"error_code": 0, "group_id": "g"}] * (codec.ELEMENTS_MAX + 1)
    data = b"".join(codec.encode("DeleteGroups", "response", 1, {"throttle_time_ms": 0, "results": groups}))
    assert len(codec.decode("DeleteGroups", "response", 1, memoryview(data))["results"]) == len(groups)


def test_partition_that_a_request_repeats_is_described_once():
    """However often it is named: the answer for one partition may be long."""
    topics = [{"name": name, "partition_indexes": [1, 0, 1, 1]} for name in "tut"]
    exchange = Exchange(0, None)  # type: ignore[arg-type]
    request = DESCRIBE_PRODUCERS.request({"topics": topics}, exchange)
    assert [(each.topic, each.partition) for each in request.partitions] == [("t", 1), ("t", 0), ("u", 1), ("u", 0)]
    response = DescribeProducersResponse(error_code=3)
    answer = DESCRIBE_PRODUCERS.response({"topics": topics}, response, exchange)
    found = [(topic["name"], each["partition_index"]) for topic in answer["topics"] for each in topic["partitions"]]
    assert found == [("t", 1), ("t", 0), ("u", 1), ("u", 0)]
    topics = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}] * 3}] * 2
    exchange = Exchange(2, SimpleNamespace(wall_ms=lambda: 0))  # type: ignore[arg-type]
    quorum = DescribeQuorumResponse(leader_id=1, leader_epoch=1, high_watermark=1)
    answer = DESCRIBE_QUORUM.response({"topics": topics}, quorum, exchange)
    assert not any(each["current_voters"] for topic in answer["topics"] for each in topic["partitions"])


def test_a_varint_of_more_than_five_bytes_is_refused():
    """It would be a number beyond every size. Five bytes are read also where fewer would do, as Kafka reads them."""
    rest = b"g\x00\x00\x00\x07\x02m\x00\x00"
    found = codec.decode("Heartbeat", "request", 4, memoryview(b"\x82\x80\x80\x80\x00" + rest))
    assert (found["group_id"], found["member_id"]) == ("g", "m")
    for length in (b"\x82\x80\x80\x80\x80\x00", b"\xff" * 12):
        with pytest.raises(InvalidRequest, match="more than five bytes"):
            codec.decode("Heartbeat", "request", 4, memoryview(length + rest))


def test_a_field_that_may_not_be_left_out_is_named():
    """A translator that forgets one is a bug that shows."""
    with pytest.raises(KeyError, match="error_code"):
        codec.encode("Heartbeat", "response", 4, {})


@pytest.mark.parametrize(
    ("size", "length"), [(0, "01"), (126, "7f"), (127, "8001"), (128, "8101"), (16_382, "ff7f"), (16_383, "808001")]
)
def test_a_length_grows_by_a_byte_where_its_varint_does(size: int, length: str):
    """KIP-482: the length plus one, seven bits a byte."""
    data = b"".join(codec.encode("SaslAuthenticate", "request", 2, {"auth_bytes": b"x" * size}))
    assert data == bytes.fromhex(length) + b"x" * size + b"\0"
    assert codec.decode("SaslAuthenticate", "request", 2, memoryview(data), 0) == {"auth_bytes": b"x" * size}


def test_large_records_stay_buffers_of_their_own():
    """Nothing is copied on the way out."""
    records = bytes(codec.JOINED_BYTES_MAX)
    partition = {"partition_index": 0, "error_code": 0, "high_watermark": 1, "records": [records]}
    partition["aborted_transactions"] = None
    answer = {"responses": [{"topic": "t", "partitions": [partition]}]}
    assert any(part is records for part in codec.encode("Fetch", "response", 12, answer))


def test_apis_are_found_by_key():
    """And a key that is in no schema is none."""
    assert [api_with_key(api_named(name).key).name for name in api_names()] == list(api_names())
    assert api_with_key(12345) is None
