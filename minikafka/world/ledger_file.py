"""A ledger's file: lines are appended, and whole ones survive ``kill -9``.

Rules for this file: nothing is kept back after :meth:`LedgerFile.flush` (the page cache has it; a power failure may
take it); a ledger that is there already is gone on with, its cut last line taken off; a file of something else is left
alone; one writer at a time.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from minikafka.check import HistoryWriter
from minikafka.check.recorder import header_line
from minikafka.errors import InvalidConfig

_SEND = b'{"type":"send",'
_LINE = b'{"type"'
"""How each line of a history begins."""
_FIRST_LINE_MAX = 1 << 10
_CHUNK = 1 << 20


class LedgerFile:
    """A context manager; InvalidConfig when another writer has the file, or when it is no ledger; OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._lines: list[str] = []

    def __enter__(self) -> Self:
        file = self._path.open("ab+", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise InvalidConfig(
                f"ledger {self._path} is being written by another producer: give each its own"
            ) from error
        file.seek(0)
        first = file.readline(_FIRST_LINE_MAX)
        if not (first.startswith(_LINE) or header_line().encode().startswith(first)):
            file.close()
            raise InvalidConfig(f"{self._path} is a file of something else, and no ledger: choose another name")
        file.seek(0)
        lines = sends = size = 0
        for line in _whole_lines(file):
            lines += 1
            sends += line.startswith(_SEND)
            size += len(line)
        file.truncate(size)
        self._file = file
        self.recorder = HistoryWriter(self._lines.append, time.time, sends_before=sends, lines_before=lines)
        self.flush()
        return self

    def flush(self) -> None:
        """Hand the lines to the operating system. OSError: the last one may be cut, and nothing can follow it."""
        if not self._lines:
            return
        if self._file is None:
            raise OSError(f"ledger {self._path} is closed")
        rest = memoryview("".join(self._lines).encode())
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.close()
            self._file = None
            raise
        self._lines.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self.flush()
            self._file.close()
            self._file = None


def _whole_lines(file: BinaryIO) -> Iterable[bytes]:
    """The lines that have an end."""
    rest = b""
    while chunk := file.read(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line + b"\n" for line in lines)
