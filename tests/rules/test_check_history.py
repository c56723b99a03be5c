"""The history format: what is written is read back, and what is wrong is named with its line (issue 2, Build 8)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.check.history import (
    Expectations,
    HistoryError,
    HistoryWriter,
    Operation,
    Recorder,
    read_history,
    to_line,
    value_id,
)
from minikafka.types import TopicPartition

FORMAT_PAGE = Path(__file__).parents[2] / "docs" / "history-format.md"


class Ticks:
    """A clock that moves by a quarter of a second at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.25
        return self.now


def record_everything(recorder: Recorder) -> None:
    recorder.expect(Expectations(idempotent=False, final_read_complete=True, log_start={TopicPartition("t-1", 2): 5}))
    first = recorder.send("p1", "t-1", "v1", key="k", sequence=7)
    second = recorder.send("p1", "t-1", "v\u2028é2", partition=2)
    third = recorder.send("p1", "t-1", "v3")
    recorder.acknowledged(first, partition=2, offset=9, leader_epoch=4)
    recorder.failed(second, "NOT_ENOUGH_REPLICAS")
    recorder.unknown(third, "REQUEST_TIMED_OUT")
    recorder.assign("c1", [TopicPartition("t-1", 2)])
    recorder.seek("c1", "t-1", 2, 9)
    recorder.poll("c1", "t-1", 2, [(9, "v1")], position_before=9, position_after=10, high_watermark=10)
    recorder.poll("c1", "t-1", 2, [])
    recorder.replica(1, "t-1", 2, high_watermark=10, log_start=5, rows=[(9, 4, "v1")])
    recorder.replica(2, "t-1", 2, high_watermark=10, log_start=5, batches=[(9, 10, 4, "b2:00")])


def test_what_is_written_is_read_back() -> None:
    """A recorder of operations (simulator) and a writer of lines (processes) tell the same story."""
    operations: list[Operation] = []
    recorder = Recorder(operations.append, Ticks())
    record_everything(recorder)
    lines: list[str] = []
    record_everything(HistoryWriter(lines.append, Ticks()))

    assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines)
    assert [to_line(operation) for operation in read_history(lines)] == [to_line(each) for each in operations]
    assert [operation.line for operation in read_history(lines)] == list(range(2, len(operations) + 2))


def test_a_file_may_be_read_as_bytes_with_blank_lines() -> None:
    """People cut and join histories with text tools."""
    lines = [
        b'{"type":"failed","op":1,"time":0,"error":"X"}\n',
        b"\n",
        b'{"type":"failed","op":2,"time":0,"error":"X"}',
    ]
    assert [operation.line for operation in read_history(lines)] == [1, 3]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[1]", "Expected `object`, got `array`"),
        ("\xff", "not JSON"),
        ('{"op":1}', "Object missing required field `type`; known types are history, send, ok,"),
        ('{"type":["send"]}', "Expected `str` - at `$.type`; known types are"),
        ('{"type":"transaction"}', "Invalid value 'transaction' - at `$.type`; known types are"),
        ('{"type":"ok","time":0}', "missing required field `op`"),
        ('{"type":"ok","op":true,"time":0}', "Expected `int`, got `bool` - at `$.op`"),
        ('{"type":"failed","op":1,"time":"0","error":"X"}', "Expected `float`, got `str` - at `$.time`"),
        ('{"type":"failed","op":1,"time":0,"error":1}', "Expected `str`, got `int` - at `$.error`"),
        ('{"type":"poll","time":0,"process":"c","topic":"t","partition":0}', "missing required field `records`"),
        (
            '{"type":"poll","time":0,"process":"c","topic":"t","partition":0,"records":{}}',
            "Expected `array`, got `object` - at `$.records`",
        ),
        (
            '{"type":"poll","time":0,"process":"c","topic":"t","partition":0,"records":[[1]]}',
            "Expected `array` of length 2 - at `$.records[0]`",
        ),
        (
            '{"type":"assign","time":0,"process":"c","partitions":[["t","0"]]}',
            "Expected `int`, got `str` - at `$.partitions[0][1]`",
        ),
        ('{"type":"expect","idempotent":1}', "Expected `bool`, got `int` - at `$.idempotent`"),
        ('{"type":"history","version":2}', "version 2 is not known"),
        ('{"type":"history","version":1}', "first line"),
        (
            '{"type":"replica","time":0,"node":1,"topic":"t","partition":0,"high_watermark":1,"log_start":0,'  # noqa: ISC004
            '"rows":[[0,0,"v"]],"batches":[[0,1,0,"d"]]}',
            "rows or batches, not both",
        ),
    ],
)
def test_a_bad_line_is_named(line: str, reason: str) -> None:
    """A history of a million lines with one bad one: the error says which, and what is wrong with it."""
    good = '{"type":"history","version":1}\n'
    with pytest.raises(HistoryError, match=re.escape(reason)) as caught:
        list(read_history([good, line + "\n"]))
    assert caught.value.line == 2
    assert str(caught.value).startswith("line 2: ")


def test_fields_that_the_format_does_not_have_are_ignored() -> None:
    """Also one that is called as the number of a line, which operations have."""
    (operation,) = read_history(['{"type":"ok","op":1,"time":0,"leader_epoch":null,"line":"x","host":1}'])
    assert (operation.line, to_line(operation)) == (1, '{"type":"ok","op":1,"time":0.0}\n')


def test_bytes_that_are_not_utf8_are_an_error_of_that_line() -> None:
    """A torn file ends in a typed error, not in a traceback of the codec."""
    with pytest.raises(HistoryError, match="line 1: not JSON"):
        list(read_history([b'{"type":"\xff"}\n']))


@pytest.mark.parametrize("size", range(1, 44))
def test_what_a_killed_writer_leaves_is_read(size: int) -> None:
    """kill -9 in mid-write: whole lines count, the cut one does not; anywhere else a cut line is an error."""
    line = b'{"type":"failed","op":1,"time":0,"error":"X"}\n'
    assert len(list(read_history([line, line[:size]]))) == 1
    assert len(list(read_history([line, line[:-1]]))) == 2
    with pytest.raises(HistoryError, match="line 1: not JSON"):
        list(read_history([line[:size], line]))


@given(st.binary(max_size=100) | st.text(max_size=70).map(str.encode), st.binary(max_size=100))
def test_different_values_have_different_ids(one: bytes, two: bytes) -> None:
    """The checker compares ids only: two values that share one would hide a wrong record."""
    assert (value_id(one) == value_id(two)) == (one == two)
    assert value_id(one) != value_id(None)
    assert value_id(one).isprintable()


def test_ids_are_readable_where_values_are_short() -> None:
    """A person who reads the evidence should recognise the record."""
    assert value_id(b"flight 17") == "flight 17"
    assert value_id(b"") == ""
    assert value_id(None) == "~null"
    assert value_id(b"~null").startswith("b2:")
    assert value_id(b"b2:aa").startswith("b2:")
    assert value_id(b"b2:aa") != "b2:aa"
    assert value_id(b"x" * 65).startswith("b2:")
    assert len(value_id(b"x" * 65)) == 27
    assert value_id(b"two\nlines").startswith("b2:")


def test_the_page_on_the_format_shows_lines_that_are_read() -> None:
    """docs/history-format.md is the contract for other writers: its examples must hold, and name every type."""
    page = FORMAT_PAGE.read_text()
    lines = re.findall(r"^\{.*\}$", page, flags=re.MULTILINE)
    types = {type(operation).__name__ for operation in read_history(lines)}
    assert types == {
        "Send", "Acknowledged", "Failed", "Unknown", "Poll", "Assign", "Seek", "Replica", "Expect",
    }  # fmt: skip
