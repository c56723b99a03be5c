"""The message codec: every message comes back as it went, and nothing malformed gets through (D7)."""

from __future__ import annotations

import collections.abc
import dataclasses
import typing

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.errors import InvalidRequest, NotEnoughReplicas, UnsupportedVersion
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
)


def strategy_of(annotation: object) -> st.SearchStrategy:
    """Any value that a field of this type may have."""
    plain = {int: st.integers(-(2**63), 2**63 - 1), str: st.text(max_size=8), bool: st.booleans(), bytes: st.binary()}
    if annotation in plain:
        return plain[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is collections.abc.Sequence:
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
    return st.builds(kind, **{each.name: strategy_of(hints[each.name]) for each in dataclasses.fields(kind)})


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


def test_an_error_answer_keeps_code_sentence_and_outcome():
    """Clients decide by code and outcome; people read the sentence."""
    error = NotEnoughReplicas("needs 2", outcome="not_written")
    answer = decode_response("Produce", body_of(encode_response(error_response(BY_NAME["Produce"], error))))
    assert (answer.error_code, answer.error_message, answer.outcome) == (19, "needs 2", "not_written")
