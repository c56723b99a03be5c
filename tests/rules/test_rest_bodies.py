"""Bodies of ``/v1``: what is no document, or too much of one, is a 4xx problem that names the fault, at little cost."""

from __future__ import annotations

import asyncio
import tracemalloc

import msgpack
import pytest
from aiohttp.test_utils import make_mocked_request

from minikafka.rest.body import BOUNDS, RECORD_BOUNDS, check_body, parsed, parsed_lines, parsed_object
from minikafka.rest.host import PRODUCE_RECORD_COUNT_MAX
from minikafka.web.problems import Refused

HTTP = make_mocked_request("POST", "/v1/topics", headers={"Host": "127.0.0.1"})
MIB = 1 << 20


def refused(body: bytes, kind: str, *, as_object: bool = False) -> Refused:
    with pytest.raises(Refused) as raised:
        if as_object:
            parsed_object(body, kind, HTTP)
        else:
            check_body(body, kind, BOUNDS)
            parsed(body, kind, HTTP)
    assert 400 <= raised.value.status < 500
    assert len(raised.value.error.message) < 300
    return raised.value


@pytest.mark.parametrize("value", [7, 12, True, None, 1.5, float("nan"), "text", b"bytes", [1], []], ids=repr)
def test_a_scalar_in_msgpack_is_no_object(value: object):
    """0x0c was a 500 with a traceback on 62e114e: `'int' object is not iterable`."""
    assert "must be a JSON object" in refused(msgpack.packb(value), "msgpack", as_object=True).error.message


@pytest.mark.parametrize("value", [msgpack.Timestamp(1, 2), msgpack.ExtType(5, b"x" * 100_000)], ids=["time", "other"])
def test_extensions_are_refused(value: object):
    """They have no counterpart in JSON."""
    refused(msgpack.packb(value), "msgpack", as_object=True)


@pytest.mark.parametrize("depth", [65, 980, 1_020, 1_024, 100_000])
def test_nesting_is_refused_in_both_kinds(depth: int):
    """980 levels were a 500."""
    assert "nested deeper" in refused(b"[" * depth + b"]" * depth, "json").error.message or depth > BOUNDS.containers
    refused(b"\x91" * depth + b"\x90", "msgpack")
    refused(b'{"a":' * depth + b"1" + b"}" * depth, "json")
    refused(b"\x81\xa1a" * depth + b"\xc0", "msgpack")


WIDE = {
    "empty lists": (b"[" + b"[]," * 300_000 + b"[]]", b"\xdd" + MIB.to_bytes(4) + b"\x90" * MIB),
    "numbers": (b"[" + b"1," * 400_000 + b"1]", b"\xdd" + (MIB - 9).to_bytes(4) + b"\x01" * (MIB - 9)),
    "members": (
        b"{" + b",".join(b'"%x":1' % at for at in range(90_000)) + b"}",
        b"\xdf" + (90_000).to_bytes(4) + b"".join(msgpack.packb(f"{at:x}") + b"\xc0" for at in range(90_000)),
    ),
    "bytes": (b'"' + b"x" * (9 * MIB) + b'"', msgpack.packb(b"x" * (9 * MIB))),
}


@pytest.mark.parametrize("bodies", WIDE.values(), ids=WIDE.keys())
def test_wide_bodies_are_refused_before_they_are_built(bodies: tuple[bytes, bytes]):
    """413, and hardly more memory than copies of the body."""
    for kind, body in zip(("json", "msgpack"), bodies, strict=True):
        tracemalloc.start()
        try:
            assert refused(body, kind).status == 413
            assert tracemalloc.get_traced_memory()[1] < 2 * len(body) + MIB
        finally:
            tracemalloc.stop()


def test_lines_are_counted_before_they_are_split():
    """8 MiB of line ends are not 8 million lines; ten thousand records are accepted."""
    for body in (b"\n" * (8 * MIB), b"1\n" * (PRODUCE_RECORD_COUNT_MAX + 1)):
        with pytest.raises(Refused) as raised:
            asyncio.run(parsed_lines(body))
        assert raised.value.status == 413
    assert asyncio.run(parsed_lines(b"1\n\n" * PRODUCE_RECORD_COUNT_MAX)) == [1] * PRODUCE_RECORD_COUNT_MAX


def test_lines_may_end_as_on_windows_and_blank_ones_are_skipped():
    """A file that an editor has written."""
    assert asyncio.run(parsed_lines(b'{"a": 1}\r\n\r\n  \n2\r\n\t')) == [{"a": 1}, 2]


def test_as_many_records_as_a_request_may_have_are_within_the_bounds():
    """With keys, nested values and timestamps."""
    one = {"key": "k", "value": {"a": [1, 2]}, "timestamp": 1_795_000_000_000}
    for kind in ("json", "msgpack"):
        records = [one] * (PRODUCE_RECORD_COUNT_MAX - 100)
        body = msgpack.packb(records) if kind == "msgpack" else str(records).replace("'", '"').encode()
        check_body(body, kind, RECORD_BOUNDS)
        assert parsed(body, kind, HTTP) == records
