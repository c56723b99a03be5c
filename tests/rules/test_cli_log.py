"""``log dump`` and ``log verify`` on files made by hand: kafka-dump-log's words, the JSON contract, exit codes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from minikafka.cli.log import printed
from minikafka.cli.root import root
from minikafka.wire.batch import RecordBatch, stamped
from minikafka.wire.records import Record, build_batch

SEGMENT = "00000000000000000000.log"


@pytest.fixture
def folder(tmp_path):
    """A replica with two batches: offsets 0 and 1 of epoch 0, offset 2 of epoch 1."""
    made = tmp_path / "broker-1" / "orders-0"
    made.mkdir(parents=True)
    data = b""
    for base, epoch, values in ((0, 0, [b"tea", b"\xff"]), (2, 1, [None])):
        records = [
            Record(offset=at, timestamp=7, key=b"k", value=value, headers=[("h", b"1")])
            for at, value in enumerate(values)
        ]
        batch = RecordBatch.of(build_batch(records))
        data += b"".join(stamped(batch, base_offset=base, leader_epoch=epoch))
    (made / SEGMENT).write_bytes(data)
    (made / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 2\n")
    return made


def told(*arguments: object, code: int = 0):
    """The result of a command whose exit code must be ``code``."""
    result = CliRunner().invoke(root, [str(each) for each in arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_dump_in_the_words_of_kafkas_tool(folder):
    """HTTP-CLI-CONVENTIONS 4.1: whoever knows kafka-dump-log can read it; records stand below their batch."""
    lines = told("log", "dump", folder / SEGMENT, "--records").output.splitlines()
    assert lines[0] == f"Dumping {folder / SEGMENT}"
    assert lines[1].startswith("baseOffset: 0 lastOffset: 1 count: 2 baseSequence: -1")
    assert "partitionLeaderEpoch: 0 isTransactional: false" in lines[1]
    assert lines[2].startswith("| offset: 0 timestamp: 7 key: k value: tea")
    assert "value_b64: /w==" in lines[3]
    assert lines[4].startswith("baseOffset: 2")
    assert "value: null" in lines[5]


def test_dump_sends_no_control_characters_of_records_to_a_terminal():
    """A record must not clear the reader's screen; a pipe and a file get its bytes."""
    row = {"offset": 1, "key": b"k", "value": b"\x1b[2J\xc2\x9b", "headers": [("h\x07", b"1")]}
    assert printed(row, "table", escape=True) == r"| offset: 1 key: k value: \x1b[2J\x9b headers: [['h\x07', '1']]"
    assert "value: \x1b[2J\x9b" in printed(row, "table", escape=False)
    shown = printed(row, "json", escape=True)
    assert shown.isprintable()
    assert json.loads(shown)["value"] == "\x1b[2J\x9b"


def test_dump_as_json(folder):
    """docs/cli.md: one object a line; bytes as in consume."""
    rows = [json.loads(line) for line in told("log", "dump", folder, "--records", "-o", "json").output.splitlines()]
    assert [(row["baseOffset"], row["count"]) for row in rows if "count" in row] == [(0, 2), (2, 1)]
    assert [row.get("value", row.get("value_b64")) for row in rows if "count" not in row] == ["tea", "/w==", None]
    assert rows[1]["headers"] == [["h", "1"]]
    epochs = told("log", "dump", folder / "leader-epoch-checkpoint", "-o", "json").output.splitlines()
    assert [json.loads(line) for line in epochs] == [{"epoch": 0, "startOffset": 0}, {"epoch": 1, "startOffset": 2}]


@pytest.mark.parametrize("place", ["folder", "broker", "cluster"])
def test_verify_finds_nothing_wrong_wherever_it_is_pointed_at(folder, place):
    """A partition's folder, a broker's directory, or all brokers of `up`."""
    directory = {"folder": folder, "broker": folder.parent, "cluster": folder.parent.parent}[place]
    assert json.loads(told("log", "verify", directory, "-o", "json").output) == {"ok": True, "findings": []}


def test_verify_tells_what_is_wrong_and_fails(folder):
    """KAFKA-FACTS 1.4: a flipped bit is found by its checksum, at its batch; exit code 1."""
    data = bytearray((folder / SEGMENT).read_bytes())
    data[70] ^= 1
    (folder / SEGMENT).write_bytes(data)
    told_json = json.loads(told("log", "verify", folder.parent, "-o", "json", code=1).output)
    assert told_json["ok"] is False
    first = told_json["findings"][0]
    assert (first["path"], first["position"]) == (f"orders-0/{SEGMENT}", 0)
    assert "crc" in first["what"]
    assert "crc" in told("log", "verify", folder, code=1).output
    assert "is damaged" in told("log", "dump", folder / SEGMENT, code=1).stderr


def test_looking_changes_nothing(folder):
    """A tool for damaged disks must not write to them."""
    before = sorted((path.name, path.stat().st_mtime_ns) for path in folder.parent.rglob("*"))
    told("log", "verify", folder.parent)
    told("log", "dump", folder, "--records")
    assert sorted((path.name, path.stat().st_mtime_ns) for path in folder.parent.rglob("*")) == before


def test_a_place_without_logs_is_not_called_well(tmp_path):
    """`all is well` about the wrong directory would be the worst answer."""
    assert "holds no logs" in told("log", "verify", tmp_path, code=1).stderr
    assert "holds no segments" in told("log", "dump", tmp_path, code=1).stderr
    (tmp_path / "notes.txt").write_text("x")
    assert "not a log" in told("log", "dump", tmp_path / "notes.txt", code=2).stderr
    assert told("log", "verify", tmp_path / "none", code=2).exit_code == 2
