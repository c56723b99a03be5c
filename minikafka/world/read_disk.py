"""The Disk port's reading half on real files: for tools that look at a data directory and must not change it.

Rules for this file: nothing is created, locked or written, and no permission to write is needed.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NoReturn

from minikafka.errors import DiskFailed
from minikafka.ports import Buffers, checked_path


def _refuse() -> NoReturn:
    raise DiskFailed("this disk is only for reading")


class ReadFile:
    """One file, opened for reading."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise DiskFailed(f"{path}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.close(self._descriptor)
            raise DiskFailed(f"{path} is not a file")

    def read(self, position: int, size: int) -> bytes:
        """At most ``size`` bytes; fewer only at the end of the file."""
        data = os.pread(self._descriptor, size, position)
        while 0 < len(data) < size:
            more = os.pread(self._descriptor, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def region(self, position: int, size: int) -> None:
        """None: tools read, they do not send."""

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)

    def append(self, data: Buffers) -> None:  # noqa: ARG002 - the port's signature
        """DiskFailed."""
        _refuse()

    def truncate(self, size: int) -> None:  # noqa: ARG002
        """DiskFailed."""
        _refuse()

    async def sync(self) -> None:
        """DiskFailed."""
        _refuse()


class ReadDisk:
    """A folder, looked at. FileNotFoundError when it is none."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise FileNotFoundError(f"{root} is not a directory")
        self._root = root

    def _full(self, path: str) -> Path:
        return self._root / checked_path(path) if path else self._root

    def open(self, path: str) -> ReadFile:
        """FileNotFoundError; it is not created."""
        return ReadFile(self._full(path))

    def exists(self, path: str) -> bool:
        return self._full(path).exists()

    def names(self, folder: str) -> list[str]:
        """Sorted names directly inside; empty when the folder is missing."""
        full = self._full(folder)
        return sorted(entry.name for entry in full.iterdir()) if full.is_dir() else []

    def modified_ms(self, path: str) -> int:
        return self._full(path).stat().st_mtime_ns // 1_000_000

    def read_file(self, path: str) -> bytes:
        """The whole of a small file; FileNotFoundError when it is missing."""
        return self._full(path).read_bytes()

    def replace_file(self, path: str, data: bytes) -> None:  # noqa: ARG002
        """DiskFailed."""
        _refuse()

    async def publish(self, path: str, data: bytes) -> None:  # noqa: ARG002
        """DiskFailed."""
        _refuse()

    def replace(self, source: str, target: str) -> None:  # noqa: ARG002
        """DiskFailed."""
        _refuse()

    def remove(self, path: str) -> None:  # noqa: ARG002
        """DiskFailed."""
        _refuse()

    async def sync_folder(self, folder: str) -> None:  # noqa: ARG002
        """DiskFailed."""
        _refuse()

    def lock(self) -> None:
        """DiskFailed: a lock would be a file."""
        _refuse()
