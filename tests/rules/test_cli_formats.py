"""Records as text: kcat's letters, and the JSON objects of ``consume -o json`` (a contract, docs/cli.md)."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

from minikafka.cli.formats import LETTERS, BadFormat, parse_format, to_json_line, to_tsv_line, visible, visible_json
from minikafka.wire.records import Record


class Read(NamedTuple):
    topic: str = "orders"
    partition: int = 2
    offset: int = 41
    timestamp: int = 1_356_998_400_123
    key: bytes | None = b"ann"
    value: bytes | None = b"tea"
    headers: tuple[tuple[str, bytes | None], ...] = ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t [%p] %o: %k=%s\\n", b"orders [2] 41: ann=tea\n"),
        ("%S %K %T", b"3 3 1356998400123"),
        ("%D", b"2013-01-01T00:00:00.123+00:00"),
        ("100%% %s\\t\\x41\\\\", b"100% tea\tA\\"),
        ("", b""),
        ("café %s", "café tea".encode()),
    ],
)
def test_kcats_letters(text, expected):
    """HTTP-CLI-CONVENTIONS 4.1: what people's fingers type gives what they expect."""
    assert parse_format(text)(Read()) == expected


def test_a_value_comes_out_as_it_went_in():
    """Bytes that are no text must survive a pipe."""
    assert parse_format("%s")(Read(value=bytes(range(256)))) == bytes(range(256))


def test_null_is_not_the_empty_value():
    """A tombstone and an empty value differ: kcat prints NULL, and -1 as its length."""
    assert parse_format("%k %K|%s %S")(Read(key=None, value=None)) == b"NULL -1|NULL -1"
    assert parse_format("%k %K|%s %S")(Read(key=b"", value=b"")) == b" 0| 0"


def test_headers_keep_order_and_repeats():
    """Kafka allows a header's name twice."""
    headers = (("a", b"1"), ("a", b"2"), ("n", None))
    assert parse_format("%h")(Read(headers=headers)) == b"a=1,a=2,n=NULL"


@pytest.mark.parametrize("text", ["%z", "%", "abc %", "\\xZZ", "\\x4", "\\x", "\\x  "])
def test_a_letter_that_does_not_exist_is_an_error(text):
    """A typing mistake must not be printed a million times."""
    with pytest.raises(BadFormat):
        parse_format(text)


def test_every_letter_works_on_a_bare_record():
    """No letter may fail in the middle of a topic."""
    for letter in LETTERS:
        assert isinstance(parse_format("%" + letter)(Read(key=None, value=None)), bytes)


@pytest.mark.parametrize("timestamp", [1_700_000_000_000_000, -(1 << 62), 1 << 62])
def test_a_timestamp_that_is_no_date_is_shown_as_a_number(timestamp: int):
    """Microseconds that were taken for milliseconds must not end a command in the middle of a topic."""
    assert parse_format("%D")(Read(timestamp=timestamp)) == f"{timestamp}ms".encode()


def test_the_json_of_a_record():
    """Issue item 7, word by word: names and types of the contract."""
    line = to_json_line(Read(headers=(("trace", b"x"),)))
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {
        "topic": "orders",
        "partition": 2,
        "offset": 41,
        "timestamp": 1_356_998_400_123,
        "key": "ann",
        "value": "tea",
        "headers": [["trace", "x"]],
    }


def test_bytes_that_are_no_text_are_base64():
    """Issue item 7: text where it is UTF-8, else key_b64 and value_b64; the other name is then absent."""
    told = json.loads(to_json_line(Read(key=b"\xff", value=b"\x80\n", headers=(("h", b"\xfe"), ("n", None)))))
    assert (told["key_b64"], told["value_b64"]) == ("/w==", "gAo=")
    assert not {"key", "value"} & told.keys()
    assert told["headers"] == [["h", {"value_b64": "/g=="}], ["n", None]]


def test_nulls_are_null_and_text_is_not_escaped():
    """A tombstone is JSON null; umlauts stay readable."""
    told = to_json_line(Read(key=None, value="größe\n".encode()))
    assert json.loads(told)["key"] is None
    assert "größe".encode() in told
    assert told.count(b"\n") == 1


def test_a_record_with_tabs_is_one_line_of_five_cells():
    """HTTP-CLI-CONVENTIONS 4.1, -o tsv: whatever is in a value, `cut -f5` gives all of it; null is no text."""
    line = to_tsv_line(Read(key=None, value=b"a\tb\nc\\N\r\xff"))
    assert line == b"2\t41\t2013-01-01T00:00:00.123+00:00\t\\N\ta\\tb\\nc\\\\N\\r\xff\n"
    assert line.count(b"\t") == 4
    assert to_tsv_line(Read(key=b"", value=b"\\N")).endswith(b"\t\t\\\\N\n")


def test_the_records_of_the_codec_are_taken_as_they_are():
    """`log dump` prints what the codec hands out, with the same letters."""
    record = Record(offset=7, timestamp=1, key=b"k", value=b"v")
    assert parse_format("%o %k %s")(record) == b"7 k v"


HOSTILE = b"a\x1b]0;owned\x07\x1b[2J\rb\x7f" + "\x9b31m".encode() + b"\x9b"
"""A title, a cleared screen, an overwritten line, DEL, the single character CSI, and a byte that is not UTF-8."""


def test_a_terminal_gets_no_control_characters():
    """Issue 13, section 7: a record must not set a terminal's title or clear its screen."""
    assert visible(HOSTILE) == rb"a\x1b]0;owned\x07\x1b[2J\rb\x7f\x9b31m\x9b"
    assert visible("tea\twith\nmilk é 茶".encode()) == "tea\twith\nmilk é 茶".encode()


def test_the_format_itself_is_not_escaped():
    r"""`-f '\\x1b[1m%s'` prints in bold because the user asked for it; what stands in the record does not."""
    record = Read(key=b"\x07", value=b"\x1b[2J", headers=(("h\x1b", b"\x08"),))
    assert parse_format("\\x1b[1m%k %s %h %S", visible)(record) == b"\x1b[1m" + rb"\x07 \x1b[2J h\x1b=\x08 4"


def test_escaped_json_has_the_same_values():
    """JSON allows DEL and C1 characters in strings; for a terminal they are escaped as JSON has it."""
    record = Read(key="\x7f\x9b31m".encode(), value=b"\x1b[2J")
    line = visible_json(to_json_line(record))
    assert not any(byte < 0x20 or byte == 0x7F for byte in line[:-1])
    assert "\x9b" not in line.decode()
    assert json.loads(line) == json.loads(to_json_line(record))
