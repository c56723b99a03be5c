"""Lines as records (HTTP-CLI-CONVENTIONS 4.1): keys, nulls, headers, and what ``consume -o json`` printed."""

from __future__ import annotations

import asyncio
import json
import os
import threading

import pytest

from minikafka.cli import produce
from minikafka.cli.formats import to_json_line
from minikafka.cli.produce import LineForm, LineRecord, parse_header
from minikafka.client.structs import ConsumerRecord
from minikafka.errors import InvalidRecord


def test_plain_lines():
    """A line is a value; with a separator its key comes first, and a line without one has the key that was given."""
    assert LineForm().record(b"a:b", 1) == LineRecord(b"a:b")
    form = LineForm(separator=b":", key=b"k", headers=(("h", b"1"),))
    assert form.record(b"a:b:c", 1) == LineRecord(b"b:c", b"a", None, (("h", b"1"),))
    assert form.record(b"alone", 2) == LineRecord(b"alone", b"k", None, (("h", b"1"),))
    assert form.record(b":", 3)[:2] == (b"", b"")


def test_nulls_are_said_by_a_marker():
    """kafka-console-producer's null.marker, kcat's -Z with an empty one: tombstones from a shell."""
    form = LineForm(separator=b":", null_marker=b"NULL")
    assert form.record(b"a:NULL", 1)[:2] == (None, b"a")
    assert form.record(b"NULL:NULLS", 2)[:2] == (b"NULLS", None)
    assert LineForm(separator=b":", null_marker=b"").record(b"a:", 1)[:2] == (None, b"a")


@pytest.mark.parametrize(
    "record",
    [
        ("ann", "tea", []),
        (None, None, [["n", None]]),
        (b"\xff", b"\x00\n", [["h", b"\xfe"], ["h", b"x"]]),
    ],
)
def test_what_consume_prints_is_read_back(record):
    """A copy keeps keys, values, headers and timestamps, whatever bytes they are; its place is new."""
    key, value, headers = ((each.encode() if type(each) is str else each) for each in record)
    named = tuple((name, data) for name, data in headers)
    read = ConsumerRecord("orders", 2, 41, 5, 0, key, value, None, -1, -1, named)
    told = LineForm(is_json=True).record(to_json_line(read), 1)
    assert (told.value, told.key, told.timestamp_ms, tuple(told.headers)) == (value, key, 5, named)


def test_a_line_of_json_may_say_less():
    """Without a timestamp it is sent now; other JSON is its compact text, as on /v1."""
    assert LineForm(is_json=True).record(b'{"value":{"a": 1}}', 1) == LineRecord(b'{"a":1}', None, None, [])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"tea", "not JSON"),
        (b"[]", "a record is an object"),
        (b"{}", "/value: is missing"),
        (b'{"value":1,"vlaue":2}', "no such member"),
        (b'{"value_b64":"?"}', "not base64"),
        (b'{"value":1,"headers":[["a",{"value_b64":"?"}]]}', "not base64"),
        (json.dumps({"value": 1, "timestamp": -1}).encode(), "/timestamp"),
    ],
)
def test_a_line_that_is_no_record_is_named(line: bytes, why: str):
    """By its number: nobody finds it otherwise in a million."""
    with pytest.raises(InvalidRecord, match=r"^line 17: ") as found:
        LineForm(is_json=True).record(line, 17)
    assert why in str(found.value)


def test_headers_of_the_command_line():
    """The first equals sign ends the name; a value may be empty, a name may not."""
    assert parse_header("a=b=c") == ("a", b"b=c")
    assert parse_header("a=") == ("a", b"")
    for text in ("a", "=b", ""):
        with pytest.raises(ValueError, match="NAME=VALUE"):
            parse_header(text)


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a\r", b"\nb", b"", b"c\n\n", b"d"], [b"a", b"bc", b"", b"d"]),
        ([b"x" * 8, b"\ny\n"], [b"x" * 8, b"y"]),
        ([b"x" * 5, b"x" * 5, b"x" * 5 + b"\ny\n", b"z" * 12], [b"x" * 9, b"y", b"z" * 9]),
    ],
)
def test_lines_are_joined_from_pieces_and_cut_beyond_the_limit(
    monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], lines: list[bytes]
):
    """An input without line ends neither fills the memory nor costs the square of its length."""
    monkeypatch.setattr(produce, "LINE_SIZE_MAX", 8)
    monkeypatch.setattr(produce, "CHUNK_SIZE", 5)
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb", buffering=0) as pipe:
            for piece in pieces:
                pipe.write(piece)

    async def read() -> list[bytes]:
        return [line async for some in produce.lines_of(reading) for line in some]

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert asyncio.run(read()) == lines
    finally:
        writer.join()
        os.close(reading)
