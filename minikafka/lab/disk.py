"""A disk in memory that says exactly what a kill and a power cut leave.

===================  =================================================================================================
kill                 nothing is lost: the page cache stays
``sync``             what stands in the file is durable
``sync_folder``      the folder's names are durable
power cut            each file is as it was at its last sync, each folder as it was at its last ``sync_folder``
===================  =================================================================================================

Nothing is drawn: a power cut takes all that it may take. (The simulator's disk draws what survives; a scenario is to
tell one story.) Syncs complete at once.
"""

from __future__ import annotations

from minikafka.errors import DiskFailed
from minikafka.ports import Buffers, checked_path


class _Inode:
    """One file's bytes, apart from its name."""

    __slots__ = ("content", "durable")

    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)
        self.durable = b""


class _File:
    """The File port."""

    def __init__(self, path: str, inode: _Inode) -> None:
        self._path = path
        self._inode: _Inode | None = inode

    def _opened(self) -> _Inode:
        if self._inode is None:
            raise DiskFailed(f"{self._path} is closed")
        return self._inode

    def append(self, data: Buffers) -> None:
        self._opened().content += b"".join(data)

    def read(self, position: int, size: int) -> bytes:
        return bytes(self._opened().content[position : position + size])

    def region(self, position: int, size: int) -> None:
        """None: it is all in memory."""

    def size(self) -> int:
        return len(self._opened().content)

    def truncate(self, size: int) -> None:
        del self._opened().content[size:]

    async def sync(self) -> None:
        inode = self._opened()
        inode.durable = bytes(inode.content)

    def close(self) -> None:
        self._inode = None


class LabDisk:
    """The Disk port of one node; it outlives the node's processes."""

    def __init__(self) -> None:
        self._files: dict[str, _Inode] = {}
        self._durable_files: dict[str, _Inode] = {}
        self.number = 0
        """Which disk it is: one more with each that takes its place."""

    def power_cut(self) -> None:
        """Forget what was not synced."""
        self._files = dict(self._durable_files)
        for inode in self._files.values():
            inode.content = bytearray(inode.durable)

    def wipe(self) -> None:
        """The disk is replaced by an empty one."""
        self._files.clear()
        self._durable_files.clear()
        self.number += 1

    def _below(self, path: str) -> list[str]:
        return [name for name in self._files if name == path or not path or name.startswith(path + "/")]

    def open(self, path: str) -> _File:
        return _File(path, self._files.setdefault(checked_path(path), _Inode()))

    def exists(self, path: str) -> bool:
        return bool(self._below(checked_path(path)))

    def names(self, folder: str) -> list[str]:
        start = len(folder) + 1 if folder else 0
        return sorted({name[start:].split("/")[0] for name in self._below(folder) if name != folder})

    def modified_ms(self, path: str) -> int:
        if path not in self._files:
            raise FileNotFoundError(path)
        return 0

    def read_file(self, path: str) -> bytes:
        inode = self._files.get(checked_path(path))
        if inode is None:
            raise FileNotFoundError(path)
        return bytes(inode.content)

    def replace_file(self, path: str, data: bytes) -> None:
        self._files[checked_path(path)] = _Inode(data)

    async def publish(self, path: str, data: bytes) -> None:
        self.replace_file(path, data)
        self._files[path].durable = bytes(data)
        await self.sync_folder(path.rpartition("/")[0])

    def replace(self, source: str, target: str) -> None:
        for name in self._below(checked_path(source)):
            self._files[target + name[len(source) :]] = self._files.pop(name)

    def remove(self, path: str) -> None:
        for name in self._below(checked_path(path)):
            del self._files[name]

    async def sync_folder(self, folder: str) -> None:
        start = folder + "/" if folder else ""
        for name in [each for each in self._durable_files if each.startswith(start) and each not in self._files]:
            del self._durable_files[name]
        self._durable_files.update({name: inode for name, inode in self._files.items() if name.startswith(start)})

    def lock(self) -> None:
        return
