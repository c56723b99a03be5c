"""The message codec: every message comes back as it went, and nothing malformed gets through (D7)."""

from __future__ import annotations

import dataclasses
import gc
import json
import subprocess
import sys
import tracemalloc
import typing
from collections.abc import Callable
from functools import partial

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minikafka.errors import (
    InvalidRequest,
    NotABroker,
    NotEnoughReplicas,
    OutcomeUnknown,
    RequestRefused,
    UnsupportedVersion,
)
from minikafka.replication.fetch_session import NAMED_MAX
from minikafka.wire import codec, limits
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire.apis import APIS, BY_NAME
from minikafka.wire.codec import (
    decode_json,
    decode_request,
    decode_response,
    encode_json,
    encode_request,
    encode_response,
    error_response,
    find_api,
    http_failure,
)


def strategy_of(annotation: object) -> st.SearchStrategy:
    """Any value that a field of this type may have."""
    plain: dict[object, st.SearchStrategy] = {
        int: st.integers(-(2**63), 2**63 - 1),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=8),
        bool: st.booleans(),
        bytes: st.binary(),
    }
    if annotation in plain:
        return plain[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is typing.Any:  # records
        return st.binary(min_size=1, max_size=20).map(lambda each: (each,)) | st.just(())
    if type(None) in arguments:
        return st.none() | strategy_of(next(each for each in arguments if each is not type(None)))
    if origin is tuple:
        return st.lists(strategy_of(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)
    return message_of(annotation)


def message_of(kind: type) -> st.SearchStrategy:
    """Any message of a class."""
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{each.name: strategy_of(hints[each.name]) for each in msgspec.structs.fields(kind)})


def body_of(buffers) -> bytes:
    return b"".join(bytes(each) for each in buffers)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_every_request_and_response_comes_back_as_it_went(api):
    """D7: a field that is lost or mixed up on the way is a protocol bug in every broker at once."""

    @given(message_of(api.request), message_of(api.response))
    def round_trip(request, response):
        assert decode_request(api, body_of(encode_request(request))) == request
        assert decode_response(api.name, body_of(encode_response(response))) == response

    round_trip()


@given(st.sampled_from(APIS), st.binary(max_size=200))
def test_any_bytes_at_all_give_a_typed_error_or_a_message(api, body):
    """Bad input is answered with InvalidRequest or UnsupportedVersion, never with a crash."""
    told = ""
    try:
        decode_request(api, body)
    except (InvalidRequest, UnsupportedVersion) as error:
        told = error.message
    assert not told or api.name in told


def outcome_of(read: Callable[[], object]) -> object:
    """What a decoder returned, or the error that it raised."""
    try:
        return read()
    except (InvalidRequest, UnsupportedVersion) as error:
        return type(error), error.message, error.facts


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_both_ways_of_reading_a_head_agree(api, monkeypatch):
    """msgspec's way is the faster one; it accepts no damaged head that the other refuses, and reads the same."""

    @given(message_of(api.request), message_of(api.response), st.data())
    @settings(max_examples=25)
    def agree(request, response, data):
        for body, decode in (
            (body_of(encode_request(request)), partial(decode_request, api)),
            (body_of(encode_response(response)), partial(decode_response, api.name)),
        ):
            damaged = bytearray(body)
            for _ in range(data.draw(st.integers(0, 3))):
                place = data.draw(st.integers(4, len(body) - 1))
                damaged[place] = data.draw(st.sampled_from(MARKS) | st.integers(0, 255))
            with monkeypatch.context() as patched:
                fast = outcome_of(partial(decode, bytes(damaged)))
                patched.setattr(codec, "_read", lambda layout, head, raw: None)
                assert fast == outcome_of(partial(decode, bytes(damaged)))

    agree()


MARKS = (0xC0, 0xC2, 0xC3, 0xCA, 0xCB, 0xCF, 0xD3, 0x80, 0x81, 0x90, 0x91, 0xA0, 0xA1)
"""First bytes of values of msgpack: nothing, truth, numbers, maps, lists, texts."""


@given(message_of(m.ProduceRequest), st.data())
def test_a_cut_body_is_refused(request, data):
    """A request that arrived in part is never taken for a shorter one."""
    body = body_of(encode_request(request))
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(InvalidRequest):
        decode_request(BY_NAME["Produce"], body[:cut])


def framed(members: object) -> bytes:
    head = msgpack.packb(members)
    return len(head).to_bytes(4, "big") + head


@pytest.mark.parametrize(
    "members, path",
    [
        ({"acks": "all", "partitions": []}, "Produce.acks: a whole number is needed"),
        ({"acks": True, "partitions": []}, "Produce.acks: a whole number is needed"),
        ({"acks": 2**63, "partitions": []}, "Produce.acks: 9223372036854775808 does not fit"),
        ({}, "Produce.partitions: is missing"),
        ({"partitions": [{"topic": "t", "partition": 0}]}, "Produce.partitions[0].records: is missing"),
        ({"partitions": [{"topic": 7, "partition": 0, "records": 0}]}, "Produce.partitions[0].topic: a text"),
        ({"partitions": [{"topic": "t", "partition": 0, "records": -1}]}, "Produce.partitions[0].records"),
        ({"partitions": [], "acsk": 1}, "did you mean 'acks'?"),
        ([1], "must be a map"),
    ],
)
def test_the_error_names_the_member(members, path):
    """A typed error names the field and what would be right."""
    with pytest.raises(InvalidRequest) as raised:
        decode_request(BY_NAME["Produce"], framed(members))
    assert path in raised.value.message


def test_bytes_left_over_behind_the_records_are_refused():
    """A size that does not fit the body must not silently lose records."""
    body = framed({"partitions": [{"topic": "t", "partition": 0, "records": 3}]}) + b"abcd"
    with pytest.raises(InvalidRequest, match="1 bytes are left over"):
        decode_request(BY_NAME["Produce"], body)


@pytest.mark.parametrize("version", [0, 2, 99, "1", None])
def test_an_unknown_version_is_refused_with_the_known_ones(version):
    """Unknown versions get a typed error that says what is spoken."""
    with pytest.raises(UnsupportedVersion, match="speaks 1 to 1"):
        decode_request(BY_NAME["Metadata"], framed({"v": version}))


def test_an_unknown_api_names_the_nearest():
    """A typing error in an API's name is told, not guessed."""
    with pytest.raises(InvalidRequest, match="did you mean Produce"):
        find_api("Prodcue")


def test_a_member_that_a_newer_peer_added_to_a_response_is_ignored():
    """Old clients must survive new brokers; requests are strict, responses lenient."""
    assert decode_response("Metadata", framed({"cluster_id": "c", "new_thing": 1})).cluster_id == "c"


def test_a_number_of_more_than_64_bits_is_refused():
    """`minikafka unregister 99999999999999999999` is an error with a sentence; nothing is sent."""
    with pytest.raises(InvalidRequest, match="more than 64 bits"):
        encode_request(m.UnregisterBrokerRequest(broker_id=10**20))


def test_batches_are_neither_copied_nor_joined():
    """D7, PERFORMANCE: going out each buffer stays itself, coming in records are a slice of the body."""
    records = (bytearray(b"first"), memoryview(b"second"))
    request = m.ProduceRequest(partitions=(m.ProducePartition(topic="t", partition=0, records=records),))
    buffers = encode_request(request)
    assert buffers[1] is records[0]
    assert buffers[2] is records[1]
    body = body_of(buffers)
    decoded = decode_request(BY_NAME["Produce"], body)
    assert decoded.partitions[0].records[0].obj is body


def test_json_speaks_the_same_messages():
    """`/rpc` is curl-able where no batches travel."""
    request = decode_json(BY_NAME["Metadata"], b'{"topics": ["orders"]}')
    assert request == m.MetadataRequest(topics=("orders",))
    assert encode_json(m.MetadataResponse(cluster_id="c")) == b'{"cluster_id": "c"}'
    for bad in (b"[]", b"{", b'{"topics": "orders"}', b"\xff", b'{"topic": []}'):
        with pytest.raises(InvalidRequest):
            decode_json(BY_NAME["Metadata"], bad)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (403, b"Forbidden", RequestRefused),
        (413, b'{"detail": "too large"}', RequestRefused),
        (415, b"", RequestRefused),
        (503, b'{"detail": "busy", "outcome": "not_written"}', RequestRefused),
        (500, b'{"detail": "a bug", "outcome": "unknown"}', OutcomeUnknown),
        (502, b"<html>", OutcomeUnknown),
        (503, b"[]", OutcomeUnknown),
        (404, b'{"detail": "no such API", "outcome": "unknown"}', OutcomeUnknown),
        (404, b"<html>", NotABroker),
        (405, b"", NotABroker),
        (501, b'"no"', NotABroker),
    ],
)
def test_a_request_that_http_refused_did_not_happen(status: int, body: bytes, kind: type[Exception]):
    """Issue 13: every status but 200 counted as unknown at clients."""
    assert type(http_failure(status, body)) is kind


def test_an_error_answer_keeps_code_sentence_and_outcome():
    """Clients decide by code and outcome; people read the sentence."""
    error = NotEnoughReplicas("needs 2", outcome="not_written")
    answer = decode_response("Produce", body_of(encode_response(error_response(BY_NAME["Produce"], error))))
    assert (answer.error_code, answer.error_message, answer.outcome) == (19, "needs 2", "not_written")


# ---- limits ----------------------------------------------------------------------------------------------------------


def head_of(data: bytes) -> bytes:
    """A body with this head, which need not be msgpack of any message."""
    return len(data).to_bytes(4) + data


def member(name: str, value: bytes) -> bytes:
    return b"\x81" + msgpack.packb(name) + value


BIG = 8 * 1024 * 1024
HOSTILE_HEADS = {
    "array32 of empty lists": member("acks", b"\xdd" + BIG.to_bytes(4) + b"\x90" * BIG),
    "a list too long": member("partitions", b"\xdc\xff\xff" + b"\x90" * 0xFFFF),
    "lists of lists": member("partitions", b"\xdc\x10\x00" + (b"\xdc\x00\xf0" + b"\x90" * 0xF0) * 0x1000),
    "maps in maps": member("partitions", b"\xdc\x10\x00" + (b"\x8f" + b"\xa1a\x80" * 15) * 0x1000),
    "an unknown name of 8 MB": b"\x81" + msgpack.packb("a" * BIG) + b"\xc0",
    "an unknown name of 1 MB": b"\x81" + msgpack.packb("a" * 1_000_000) + b"\xc0",
    "a map of 2^32-1 members": b"\xdf\xff\xff\xff\xff",
    "a list of 2^32-1 values": member("partitions", b"\xdd\xff\xff\xff\xff"),
    "a text of 2^32-1 bytes": member("topic", b"\xdb\xff\xff\xff\xff"),
    "an extension": member("acks", b"\xc8\xff\xff\x05" + b"x" * 0xFFFF),
    "nested 1,000 deep": member("acks", b"\x91" * 980 + b"\x90"),
}


@pytest.mark.parametrize("api", [BY_NAME["Produce"], BY_NAME["Heartbeat"], BY_NAME["SyncGroup"]], ids=lambda a: a.name)
@pytest.mark.parametrize("head", HOSTILE_HEADS.values(), ids=HOSTILE_HEADS.keys())
def test_a_hostile_head_is_refused_before_anything_is_built(head, api):
    """8 MB of empty lists cost 4.6 s and 619 MB on 62e114e. The sentence is short, whatever was sent."""
    body = head_of(head)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest) as raised:
            decode_request(api, body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(raised.value.message) < 300
    # A copy of a head that is small enough, and a few thousand objects.
    assert peak < min(len(head), api.head_bytes_max) * 2 + 2_000_000


def test_values_in_all_lists_together_are_limited():
    """Short lists by themselves, a million numbers together: refused before half of them were looked at."""
    row = {"broker_ids": [0] * 2_000}
    request = {"topics": [{"name": "t", "count": 1, "assignments": [row] * 100}]}
    with pytest.raises(InvalidRequest, match="too many values"):
        decode_request(BY_NAME["CreatePartitions"], framed(request))


def test_a_head_of_bytes_is_counted_exactly():
    """Members' metadata may hold any bytes: those that look like lists are not counted as lists."""
    request = {
        "group_id": "g",
        "generation_id": 1,
        "member_id": "m",
        "assignments": [{"member_id": "é" * 20, "assignment": bytes(range(0x80, 0xA0)) * 100}] * 300,
    }
    body = framed(request)
    assert len(decode_request(BY_NAME["SyncGroup"], body).assignments) == 300


@pytest.mark.parametrize("kind", [None, True, -5, 2**40, 1.5, "é" * 40_000, b"x" * 300, b"x" * 70_000, [1], {"a": 1}])
def test_the_exact_count_walks_every_kind_of_value(kind):
    """Each value is skipped as msgpack wrote it: else what follows would be misread."""
    head = msgpack.packb([kind, [kind] * 50, {"k": kind}])
    containers = 3 + (52 if type(kind) in (list, dict) else 0)
    elements = 3 + 52 + 1 + {list: 52, dict: 104}.get(type(kind), 0)
    bounds = limits.Bounds(size=len(head), containers=containers, elements=elements)
    limits._count(head, bounds)
    with pytest.raises(limits.TooMuch, match="lists and objects"):
        limits._count(head, dataclasses.replace(bounds, containers=containers - 1))
    with pytest.raises(limits.TooMuch, match="values"):
        limits._count(head, dataclasses.replace(bounds, elements=elements - 1))


def test_the_largest_request_of_our_own_is_within_the_limits():
    """A follower names and forgets NAMED_MAX partitions at a time, whatever their topics are called."""
    name, large = "t" * 249, 2**40
    part = m.FetchPartition(
        topic=name,
        partition=10**6,
        topic_id="i" * 22,
        current_leader_epoch=2**30,
        fetch_offset=large,
        last_fetched_epoch=2**30,
        log_start_offset=large,
        high_watermark=large,
        partition_max_bytes=2**30,
    )
    gone = m.PartitionName(topic=name, partition=10**6)
    request = m.FetchRequest(partitions=(part,) * NAMED_MAX, forgotten=(gone,) * NAMED_MAX)
    assert decode_request(BY_NAME["Fetch"], body_of(encode_request(request))) == request


def test_unknown_nested_members_are_errors_in_requests_only():
    """The caller would believe that it had an effect; a response may come from a newer peer."""
    nested = {"partitions": [{"topic": "t", "partition": 0, "records": 0, "record": 1}]}
    with pytest.raises(InvalidRequest, match=r"partitions\[0\]: unknown member 'record'; did you mean 'records'"):
        decode_request(BY_NAME["Produce"], framed(nested))
    answer = {"partitions": [{"topic": "t", "partition": 0, "newer": 1}]}
    assert decode_response("Produce", framed(answer)).partitions[0].topic == "t"


@pytest.mark.parametrize(
    "value",
    ["x" * BIG, b"x" * BIG, [0] * BIG, {"a" * BIG: {"b" * BIG: 1}}, 10**5000, [[[[[[[[1]]]]]]]]],
    ids=["text", "bytes", "list", "map", "number", "nested"],
)
def test_a_shown_value_is_short(value):
    """`repr` of what somebody sent must not cost more than the sentence that it stands in."""
    tracemalloc.start()
    try:
        assert len(limits.shown(value)) <= limits.SHOWN_LENGTH_MAX
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "body",
    [
        b'{"topics": [' + b"[]," * 40_000 + b"[]]}",
        b'{"topics": [' + b"1," * 300_000 + b"1]}",
        b'{"' + b"a" * BIG + b'": 1}',
        b'{"topics": ' + b"[" * 5_000 + b"]" * 5_000 + b"}",
        b'{"topics": ' + b"9" * 5_000 + b"}",
        b"NaN",
        b"1",
    ],
)
def test_hostile_json_is_refused_with_a_short_sentence(body):
    """The JSON side of /rpc has the same limits."""
    with pytest.raises(InvalidRequest) as raised:
        decode_json(BY_NAME["Metadata"], body)
    assert len(raised.value.message) < 300


def test_bytes_are_base64_in_json():
    """A group's metadata and assignments are bytes: DescribeGroups over JSON was a 500."""
    members = (g.DescribedMember(member_id="m", client_id="c", client_host="h", metadata=b"\x00\xff"),)
    group = g.DescribedGroup(group_id="g", members=members)
    told = encode_json(g.DescribeGroupsResponse(groups=(group,)))
    assert json.loads(told)["groups"][0]["members"][0]["metadata"] == "AP8="
    joined = b'{"group_id": "g", "member_id": "", "protocol_type": "consumer", "session_timeout_ms": 9,'
    joined += b' "rebalance_timeout_ms": 9, "protocols": [{"name": "range", "metadata": %b}]}'
    assert decode_json(BY_NAME["JoinGroup"], joined % b'"AP8="').protocols[0].metadata == b"\x00\xff"
    for wrong in (b'"AP8"', b'"\\u00e9"', b"7", b"null", b'["AP8="]'):
        with pytest.raises(InvalidRequest, match=r"protocols\[0\].metadata: base64 is needed"):
            decode_json(BY_NAME["JoinGroup"], joined % wrong)


def test_list_in_json_is_as_short_as_in_msgpack():
    """A longer one is refused before its elements are built: 10,000 of OffsetCommit took 57 ms."""
    api = BY_NAME["OffsetCommit"]
    names = json.dumps(["t"] * (BY_NAME["Metadata"].list_max + 1))
    with pytest.raises(InvalidRequest, match=r"Metadata\.topics: 2501 values, 2500 are accepted"):
        decode_json(BY_NAME["Metadata"], b'{"topics": %s}' % names.encode())
    built = {"group_id": "g", "partitions": [{}] * (api.list_max + 1)}
    with pytest.raises(InvalidRequest, match="2501 values"):
        decode_json(api, json.dumps(built).encode())


def test_large_head_is_decoded_without_garbage_collection():
    """10,000 values of a BrokerHeartbeat held the broker for 53 ms, most of it collections."""
    api = BY_NAME["OffsetCommit"]
    item = {"topic": "t", "partition": 0, "offset": 1, "metadata": "m" * 20}
    head = msgpack.packb({"group_id": "g", "partitions": [item] * api.list_max})
    collections: list[str] = []

    def count(phase: str, _: dict[str, int]) -> None:
        collections.append(phase)

    gc.callbacks.append(count)
    try:
        assert len(decode_request(api, len(head).to_bytes(4) + head).partitions) == api.list_max
    finally:
        gc.callbacks.remove(count)
    assert collections.count("start") <= 2, "outside of the decoding"


def test_layouts_are_made_on_first_use():
    """A broker uses a few of 160 message classes; reading the types of all of them took 20 ms of its start."""
    code = "from minikafka.wire import codec; print(len(codec._LAYOUTS))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0\n"
