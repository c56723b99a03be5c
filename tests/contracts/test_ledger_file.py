"""The file of a ledger: appended to, cut lines taken off, one writer (issue 4, Build 5)."""

from __future__ import annotations

import pytest

from minikafka.check import read_history
from minikafka.errors import InvalidConfig
from minikafka.world.clients import LedgerFile


@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n rest", b"name: value", b"{}\n", b"\n"])
def test_a_file_of_something_else_is_left_alone(tmp_path, content: bytes):
    """A slip in `--ledger NAME` took what stood behind its last line end off somebody's file."""
    path = tmp_path / "photo.png"
    path.write_bytes(content)
    with pytest.raises(InvalidConfig, match="no ledger: choose another name"):
        LedgerFile(path).__enter__()
    assert path.read_bytes() == content


def test_a_ledger_that_was_cut_in_its_first_line_is_gone_on_with(tmp_path):
    """Its writer was killed at once."""
    path = tmp_path / "l.jsonl"
    path.write_bytes(b'{"type":"hist')
    with LedgerFile(path):
        pass
    assert path.read_text() == '{"type":"history","version":1}\n'


def test_lines_are_in_the_file_once_they_are_flushed(tmp_path):
    """Nothing waits in this process: what is killed now leaves whole lines."""
    path = tmp_path / "l.jsonl"
    with LedgerFile(path) as ledger:
        assert path.read_text() == '{"type":"history","version":1}\n'
        ledger.recorder.send("p", "t", "a")
        assert path.read_text().count("\n") == 1
        ledger.flush()
        assert path.read_text().count("\n") == 2


@pytest.mark.parametrize("cut", [0, 1, 30])
def test_a_file_that_is_there_is_gone_on_with(tmp_path, cut):
    """A restart of the application: numbers go on, what was cut is taken off, the header stands once."""
    path = tmp_path / "l.jsonl"
    with LedgerFile(path) as ledger:
        for value in "abc":
            ledger.recorder.acknowledged(ledger.recorder.send("p", "t", value), partition=0, offset=0)
    if cut:
        path.write_bytes(path.read_bytes()[:-cut])
    with LedgerFile(path) as ledger:
        assert ledger.recorder.send("p", "t", "d") == 4
    operations = list(read_history(path.read_bytes().splitlines(keepends=True)))
    assert [each.op for each in operations if each.type == "send"] == [1, 2, 3, 4]
    assert len([each for each in operations if each.type == "ok"]) == (3 if cut == 0 else 2)
    assert operations[-1].line == len(operations) + 1


def test_two_producers_do_not_share_a_file(tmp_path):
    """Their numbers would clash: the second is refused with a sentence."""
    with LedgerFile(tmp_path / "l.jsonl"), pytest.raises(InvalidConfig, match="give each its own"):
        LedgerFile(tmp_path / "l.jsonl").__enter__()
    with LedgerFile(tmp_path / "l.jsonl"):
        pass


def test_a_disk_that_is_full_ends_the_ledger(tmp_path, monkeypatch):
    """Behind a line that was cut by an error nothing may follow."""

    class Full:
        """Room for ten bytes more."""

        def __init__(self, file):
            self.file, self.room = file, 10

        def write(self, data):
            if not self.room:
                raise OSError(28, "No space left on device")
            written = self.file.write(data[: self.room])
            self.room -= written
            return written

        def close(self):
            self.file.close()

    path = tmp_path / "l.jsonl"
    with LedgerFile(path) as ledger:
        whole = path.read_bytes()
        monkeypatch.setattr(ledger, "_file", Full(ledger._file))
        ledger.recorder.send("p", "t", "a")
        with pytest.raises(OSError, match="No space"):
            ledger.flush()
        with pytest.raises(OSError, match="is closed"):
            ledger.flush()
        assert path.read_bytes() == whole + b'{"type":"s'
    assert list(read_history(path.read_bytes().splitlines(keepends=True))) == []
