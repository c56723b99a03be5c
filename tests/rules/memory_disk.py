"""A disk in memory for tests of the log: what is durable, what only the page cache knows, and power cuts.

Syncs complete at once unless ``held``: then each one waits at its ``await`` until the test steps the coroutine.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from random import Random
from typing import Any

from minikafka.errors import DiskFailed, DiskFull
from minikafka.ports import Buffers


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Drive a coroutine that never really waits, as there is no event loop in tests/rules."""
    try:
        while True:
            coroutine.send(None)
    except StopIteration as stop:
        return stop.value


class Step:
    """``await Step()`` gives control to whoever drives the coroutine."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Inode:
    """One file's bytes, apart from its name."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.durable = b""
        self.is_new = True
        """Never synced since the last power cut."""
        self.low = 0
        """Length below which the content is as when last synced."""


class MemoryFile:
    def __init__(self, disk: MemoryDisk, path: str, inode: Inode) -> None:
        self.disk = disk
        self.path = path
        self.inode = inode
        self.closed = False

    def _check(self) -> Inode:
        if self.closed:
            raise DiskFailed(f"{self.path} is closed")
        return self.inode

    def append(self, data: Buffers) -> None:
        inode = self._check()
        joined = b"".join(data)
        self.disk.appends += 1
        if self.disk.capacity is not None and self.disk.used() + len(joined) > self.disk.capacity:
            raise DiskFull(self.path)
        if self.path in self.disk.failing:
            inode.content += joined[: len(joined) // 2]
            raise DiskFailed(self.path)
        inode.content += joined

    def read(self, position: int, size: int) -> bytes:
        self.disk.reads += 1
        return bytes(self._check().content[position : position + size])

    def size(self) -> int:
        return len(self._check().content)

    def truncate(self, size: int) -> None:
        inode = self._check()
        del inode.content[size:]
        inode.low = min(inode.low, size)

    async def sync(self) -> None:
        inode = self._check()
        content = bytes(inode.content)
        inode.low = len(content)
        await self.disk.pause(self.path)
        self._check()
        if self.path in self.disk.failing:
            raise DiskFailed(self.path)
        inode.durable = content

    def close(self) -> None:
        self.closed = True
        self.disk.open_files.discard(self)


class MemoryDisk:
    """The Disk port. ``crash()`` is kill -9: nothing to do. ``power_cut()`` forgets a drawn part of what is unsynced."""

    def __init__(self) -> None:
        self.inodes: dict[str, Inode] = {}
        self.durable_names: dict[str, Inode] = {}
        self.capacity: int | None = None
        self.failing: set[str] = set()
        self.held = False
        self.open_files: set[MemoryFile] = set()
        self.synced: list[str] = []
        self.reads = 0
        self.appends = 0
        self.clock_ms = 0

    def ignores_case(self) -> bool:
        return False

    async def pause(self, path: str) -> None:
        if self.held:
            await Step()
        self.synced.append(path)

    def used(self) -> int:
        return sum(len(inode.content) for inode in self.inodes.values())

    def power_cut(self, random: Random) -> None:
        """Each name and each file's unsynced end survives or not; the last byte run may be torn or garbled."""
        survivors: dict[str, Inode] = {}
        for path in sorted(self.inodes.keys() | self.durable_names.keys()):
            now, then = self.inodes.get(path), self.durable_names.get(path)
            chosen = now if now is then else random.choice([now, then])
            if chosen is not None:
                survivors[path] = chosen
        # A file that was renamed has its former name or the new one, never none.
        left, there = set(map(id, survivors.values())), set(map(id, self.inodes.values()))
        for path, inode in self.durable_names.items():
            if id(inode) in there and id(inode) not in left:
                survivors.setdefault(path, inode)
        for inode in {id(inode): inode for inode in survivors.values()}.values():
            self._lose(inode, random)
        self.inodes = survivors
        self.durable_names = dict(survivors)
        self.open_files = set()

    def _lose(self, inode: Inode, random: Random) -> None:
        content, durable = bytes(inode.content), inode.durable
        if content.startswith(durable):
            kept = random.randint(len(durable), len(content))
            tail = content[len(durable) : kept]
            if tail and random.random() < 0.3:
                tail = tail[: random.randrange(len(tail))] + bytes(random.randrange(1, 20))
            inode.content = bytearray(durable + tail)
        else:  # it was cut: the old bytes, the cut, or the cut and a part of what came after it
            same = inode.low
            kept = random.choice(
                [durable, content[:same], content[: random.randint(min(same, len(content)), len(content))]]
            )
            inode.content = bytearray(kept)
        inode.durable = bytes(inode.content)
        inode.low = len(inode.content)

    def open(self, path: str) -> MemoryFile:
        inode = self.inodes.get(path)
        if inode is None:
            inode = self.inodes[path] = Inode()
        file = MemoryFile(self, path, inode)
        self.open_files.add(file)
        return file

    def exists(self, path: str) -> bool:
        return path in self.inodes or any(name.startswith(path + "/") for name in self.inodes)

    def is_folder(self, path: str) -> bool:
        return path not in self.inodes and self.exists(path)

    def names(self, folder: str) -> list[str]:
        start = folder + "/" if folder else ""
        return sorted({name[len(start) :].split("/")[0] for name in self.inodes if name.startswith(start)})

    def modified_ms(self, path: str) -> int:
        return self.clock_ms

    def size_of(self, path: str) -> int:
        return len(self.read_file(path))

    def read_file(self, path: str) -> bytes:
        if path not in self.inodes:
            raise FileNotFoundError(path)
        return bytes(self.inodes[path].content)

    def replace_file(self, path: str, data: bytes) -> None:
        if path in self.failing:
            raise DiskFailed(path)
        inode = Inode()
        inode.content = bytearray(data)
        self.inodes[path] = inode

    async def publish(self, path: str, data: bytes) -> None:
        inode = Inode()
        inode.content = bytearray(data)
        await self.pause(path)
        inode.durable = bytes(data)
        inode.low = len(data)
        self.inodes[path] = inode
        await self.sync_folder(path.rpartition("/")[0])

    def replace(self, source: str, target: str) -> None:
        for path in [p for p in self.inodes if p == source or p.startswith(source + "/")]:
            self.inodes[target + path[len(source) :]] = self.inodes.pop(path)

    def remove(self, path: str) -> None:
        for name in [p for p in self.inodes if p == path or p.startswith(path + "/")]:
            del self.inodes[name]

    async def sync_folder(self, folder: str) -> None:
        start = folder + "/" if folder else ""
        names = {path: inode for path, inode in self.inodes.items() if path.startswith(start)}
        gone = [path for path in self.durable_names if path.startswith(start) and path not in names]
        await self.pause(folder)
        if folder and not self.exists(folder):
            raise DiskFailed(f"{folder}: sync failed: No such file or directory")
        for path in gone:
            self.durable_names.pop(path, None)
        self.durable_names.update(names)

    def lock(self) -> None:
        return
