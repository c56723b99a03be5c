"""One node's disk: what is durable, what only the page cache knows, and what a power cut leaves of it.

===============================  ===================================================================================
kill -9                          nothing is lost: the page cache stays
``File.sync``                    what was appended or cut before the call is durable after it
``sync_folder``                  names made, replaced or removed in the folder are durable; so is the folder itself
power cut                        per file a drawn number of the unsynced operations, in order; the next one torn.
                                 per folder a drawn part of the unsynced name changes: a number of them in order,
                                 or any subset in which only changes of the same names keep their order. A file or
                                 folder whose name was not synced may so be absent, or the old one
a sync that fails                DiskFailed; what was to be synced is never durable (zeros in its place after a cut)
a full disk                      DiskFull; the file is as before
===============================  ===================================================================================

Rules for this file: every draw has a stream of its own per file, folder and purpose, so that one event less does not
move the others; a dead incarnation's handles change nothing.

A change of contents or names is applied twice: at once to what is seen and later, in the same order, to what is
durable.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from random import Random
from typing import Literal, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from minikafka.errors import DiskFailed, DiskFull
from minikafka.ports import Buffers, checked_path
from minikafka.sim.loop import Incarnation, SimLoop
from minikafka.types import METADATA_PARTITION

SECTOR_SIZE = 512
METADATA_FOLDER = f"{METADATA_PARTITION}/"


class Write(Struct, frozen=True, gc=False):
    """One unsynced change of a file's content: append ``data``, or cut to ``size``."""

    sequence: int
    data: bytes | None
    size: int = 0

    def apply(self, content: bytearray) -> None:
        if self.data is not None:
            content += self.data
        else:
            del content[self.size :]


class Inode(Struct, eq=False):
    """A file's bytes, apart from its names."""

    birth: int
    """Names its random streams: a path may be used by several files in turn."""
    modified_ms: int
    content: bytearray = field(default_factory=bytearray)
    """As the page cache shows it."""
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write] = []
    sequence: int = 0

    def append(self, data: bytes) -> None:
        self._change(Write(self.sequence + 1, data))

    def cut(self, size: int) -> None:
        self._change(Write(self.sequence + 1, None, size))

    def _change(self, write: Write) -> None:
        self.sequence = write.sequence
        write.apply(self.content)
        self.pending.append(write)

    def synced_to(self, sequence: int) -> None:
        """Every change up to ``sequence`` is durable."""
        while self.pending and self.pending[0].sequence <= sequence:
            self.pending.pop(0).apply(self.durable)

    def lost_to(self, sequence: int) -> None:
        """A sync failed: these pages are marked clean and are never written; later ones still can be."""
        self.pending = [
            Write(write.sequence, bytes(len(write.data)))
            if write.sequence <= sequence and write.data is not None
            else write
            for write in self.pending
        ]

    def lose_power(self, random: Random) -> str:
        """Keep a drawn number of the unsynced changes in order; the next one may be torn. Tells what became of it."""
        kept = random.randint(0, len(self.pending))
        event = "disk_writes_lost" if kept < len(self.pending) else "disk_file_survived"
        for write in self.pending[:kept]:
            write.apply(self.durable)
        if kept < len(self.pending) and (torn := self.pending[kept].data) and random.random() < 0.5:
            part = torn[: random.randint(0, len(torn) - 1)]
            event = "disk_write_torn"
            if random.random() < 0.25:
                # The size and a later sector reached the platter, an earlier sector did not.
                holes = min(len(part), SECTOR_SIZE * random.randint(1, 4))
                part = bytes(holes) + part[holes:]
                event = "disk_sectors_zeroed"
            self.durable += part
        self.pending.clear()
        self.content = bytearray(self.durable)
        return event


class Folder(Enum):
    """Marks a folder among the names."""

    FOLDER = "folder"


FOLDER = Folder.FOLDER
Entry: TypeAlias = Inode | Folder


class NameChange(Struct, frozen=True):
    """One unsynced change of names: create or remove ``path``, or move ``source`` to ``path`` with all below it."""

    sequence: int
    kind: Literal["create", "remove", "move"]
    path: str
    entry: Entry | None = None
    source: str = ""

    def apply(self, names: dict[str, Entry]) -> None:
        if self.kind == "create" and self.entry is not None:
            names[self.path] = self.entry
        elif isinstance(names.get(self.source or self.path), Inode) and not isinstance(names.get(self.path), Folder):
            self._apply_to_file(names)
        elif self.kind == "remove":
            for path in list(tree_below(names, self.path)):
                del names[path]
        else:
            moved = {path: names.pop(path) for path in list(tree_below(names, self.source))}
            for path in list(tree_below(names, self.path)) if moved else ():
                del names[path]
            for path, entry in moved.items():
                names[self.path + path[len(self.source) :]] = entry

    def _apply_to_file(self, names: dict[str, Entry]) -> None:
        """The usual case: nothing lies below a file."""
        entry = names.pop(self.source or self.path)
        if self.source:
            names.pop(self.path, None)
            names[self.path] = entry

    def moved(self, source: str, target: str) -> NameChange:
        """The same change, after the folder it happened in was renamed."""
        former = target + self.source[len(source) :] if self.source.startswith(f"{source}/") else self.source
        return replace(self, path=target + self.path[len(source) :], source=former)


def any_subset(changes: Sequence[NameChange], random: Random) -> list[NameChange]:
    """Draw which unsynced name changes of one folder survive a power cut, in any combination that a disk may leave.

    A file system promises an order only between changes of the same names: of each chain of those (a file is created,
    then renamed) a drawn number survives, in order; chains survive independently of each other.
    """
    chains: list[tuple[set[str], list[NameChange]]] = []
    for change in changes:
        names = {change.path, change.source} - {""}
        touched = [chain for chain in chains if not names.isdisjoint(chain[0])]
        chains = [chain for chain in chains if names.isdisjoint(chain[0])]
        merged = sorted((each for _, members in touched for each in members), key=lambda each: each.sequence)
        chains.append((names.union(*(taken for taken, _ in touched)), [*merged, change]))
    kept = [change for _, members in chains for change in members[: random.randint(0, len(members))]]
    return sorted(kept, key=lambda change: change.sequence)


def tree_below(names: Iterable[str], root: str) -> Iterator[str]:
    """``root`` and every path below it."""
    below = root + "/"
    return (path for path in names if path == root or path.startswith(below))


TEMPORARY = ".tmp"
"""Suffix of the file that a replacement writes first."""


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


class SimDisk:
    """The disk of one node; it outlives the node's incarnations. :meth:`of` gives the Disk port."""

    def __init__(self, seed: object, node: str, loop: SimLoop, wall_ms: Callable[[], int]) -> None:
        self.capacity_bytes: int | None = None
        """Appends beyond it raise DiskFull; None: endless."""
        self.sync_mean_s = 0.002
        """Mean of the drawn time of a sync; raise it for a slow disk."""
        self.draws: Callable[[str], Random] = Random
        """Makes the random stream, of this name, that decides what a power cut leaves of a folder or file."""
        self.ignores_case = False
        """Names that differ only in case are one, as on the disks of macOS and Windows."""
        self.power_cuts = 0
        self.marks: Counter[str] = Counter()
        """What power cuts took: proof that they did."""
        self._seed = f"{seed}/disk/{node}"
        self._node = node
        self._loop = loop
        self._wall_ms = wall_ms
        self._latencies = Random(f"{self._seed}/sync")
        self._names: dict[str, Entry] = {}
        self._durable_names: dict[str, Entry] = {}
        self._name_changes: dict[str, list[NameChange]] = {}
        self._failing_syncs: list[str] = []
        self.failed_in: Incarnation | None = None
        """The process whose sync failed first: since then the disk shows pages that it has forgotten."""
        self._lane_free_at: dict[bool, float] = {}
        """When the thread that syncs the quorum's log (True) or all else (False) is free again, virtual seconds."""
        self._births = 0
        self._sequence = 0
        self._locked_by: Incarnation | None = None

    def of(self, incarnation: Incarnation) -> FencedDisk:
        """The Disk port of one incarnation; it fails once the incarnation is dead."""
        self._lane_free_at.clear()
        return FencedDisk(self, incarnation)

    # ------------------------------------------------------------------------------------- faults

    def power_cut(self) -> None:
        """Forget what was not synced, but for a drawn part of it."""
        self.power_cuts += 1
        for folder in sorted(self._name_changes):
            changes = self._name_changes[folder]
            random = self.draws(f"{self._seed}/cut/{self.power_cuts}/{folder}")
            kept = changes[: random.randint(0, len(changes))]
            if len(changes) > 1 and random.random() < 0.5:
                kept = any_subset(changes, random)
                self.marks["disk_names_lost_out_of_order"] += kept != changes[: len(kept)]
            for change in kept:
                change.apply(self._durable_names)
            new_folders = {change.path for change in changes if change.entry is FOLDER and change not in kept}
            for path in new_folders:
                # Another folder may have its name: they are no names of that one.
                self._name_changes[path] = []
            self.marks["disk_names_lost"] += len(changes) - len(kept)
        self._name_changes.clear()
        self._names = {path: entry for path, entry in self._durable_names.items() if self._reachable(path)}
        self._durable_names = dict(self._names)
        for path in sorted(self._names):
            entry = self._names[path]
            if isinstance(entry, Inode):
                self.marks[entry.lose_power(self.draws(f"{self._seed}/cut/{self.power_cuts}/{entry.birth}"))] += 1

    def _reachable(self, path: str) -> bool:
        parent = _parent(path)
        return not parent or (self._durable_names.get(parent) is FOLDER and self._reachable(parent))

    def fail_next_sync(self, prefix: str = "") -> None:
        """The next sync of a file or folder whose path begins with ``prefix`` raises DiskFailed."""
        self._failing_syncs.append(prefix)

    @property
    def is_failing(self) -> bool:
        """Return True if the next sync of some path will fail."""
        return bool(self._failing_syncs)

    def forgive(self) -> None:
        """Take back failures that have not happened yet."""
        self._failing_syncs.clear()

    def bit_rot(self, path: str, position: int | None = None) -> int:
        """Flip one bit of a file's durable data, and of what is read from now on; returns the byte's position."""
        inode = self.inode(path)
        random = Random(f"{self._seed}/rot/{inode.birth}/{self.power_cuts}/{position}")
        at = position if position is not None else random.randrange(len(inode.durable))
        bit = 1 << random.randrange(8)
        inode.durable[at] ^= bit
        if at < len(inode.content):
            inode.content[at] ^= bit
        return at

    def remove_for_good(self, path: str) -> None:
        """What an operator removes while nothing runs: a file or folder, and durably."""
        self.remove(path)
        self._names_synced(_parent(path), self._sequence)

    def wipe(self) -> None:
        """A new, empty disk."""
        self._names.clear()
        self._durable_names.clear()
        self._name_changes.clear()
        self.failed_in = None

    def used_bytes(self) -> int:
        """Bytes in files, durable or not."""
        return sum(len(entry.content) for entry in self._names.values() if isinstance(entry, Inode))

    def files(self) -> dict[str, bytes]:
        """Every file as a reader sees it now, by sorted path."""
        return {path: bytes(e.content) for path, e in sorted(self._names.items()) if isinstance(e, Inode)}

    def content_bytes(self, path: str) -> bytes:
        """The file as a reader sees it now."""
        return bytes(self.inode(path).content)

    def durable_bytes(self, path: str) -> bytes:
        """What of the file would surely survive a power cut, its name aside."""
        return bytes(self.inode(path).durable)

    def is_named(self, path: str, former: str = "") -> bool:
        """Return True if the name of the file at ``path``, or its ``former`` one, is durable with the folders above."""
        durable = former or path
        return self._durable_names.get(durable) is self._names.get(path) and self._reachable(durable)

    def is_durable(self, path: str) -> bool:
        """Return True if a power cut would leave the file unchanged."""
        return not self.inode(path).pending and self.is_named(path)

    # ------------------------------------------------------------------------------------- files and names

    def inode(self, path: str) -> Inode:
        """The file of that name; FileNotFoundError."""
        entry = self._names.get(path)
        if isinstance(entry, Inode):
            return entry
        raise FileNotFoundError(f"{self._node}:{path}")

    def open(self, path: str) -> Inode:
        """The file of that name, made if it is missing."""
        entry = self._names.get(path)
        if isinstance(entry, Inode):
            return entry
        if entry is not None:
            raise DiskFailed(f"{self._node}:{path} is a folder")
        return self._create(path)

    def _create(self, path: str) -> Inode:
        self._make_folders(path)
        self._births += 1
        inode = Inode(self._births, self._wall_ms())
        self._change("create", path, inode)
        return inode

    def _make_folders(self, path: str) -> None:
        """Those above ``path``."""
        folder = _parent(path)
        if folder and folder not in self._names:
            self._make_folders(folder)
            self._change("create", folder, FOLDER)

    def _change(
        self, kind: Literal["create", "remove", "move"], path: str, entry: Entry | None = None, source: str = ""
    ) -> None:
        self._sequence += 1
        change = NameChange(self._sequence, kind, path, entry, source)
        change.apply(self._names)
        self._name_changes.setdefault(_parent(path), []).append(change)

    def spelled(self, path: str) -> str:
        """``path`` with the names of files and folders that are there in the case in which they were made."""
        there = {name.lower(): name for name in self._names}
        end = len(path)
        while end > 0 and path[:end].lower() not in there:
            end = path.rfind("/", 0, end)
        return there[path[:end].lower()] + path[end:] if end > 0 else path

    def exists(self, path: str) -> bool:
        return not path or path in self._names

    def is_folder(self, path: str) -> bool:
        return not path or self._names.get(path) is FOLDER

    def names(self, folder: str) -> list[str]:
        start = folder + "/" if folder else ""
        inside = [path[len(start) :] for path in self._names if path.startswith(start)]
        return sorted([name for name in inside if "/" not in name])

    def modified_ms(self, path: str) -> int:
        return self.inode(path).modified_ms

    def append(self, inode: Inode, data: bytes) -> None:
        if self.capacity_bytes is not None and self.used_bytes() + len(data) > self.capacity_bytes:
            raise DiskFull(f"{self._node}: no space for {len(data)} bytes")
        inode.append(data)
        inode.modified_ms = self._wall_ms()

    def cut(self, inode: Inode, size: int) -> None:
        if size < len(inode.content):
            inode.cut(size)
            inode.modified_ms = self._wall_ms()

    def replace_file(self, path: str, data: bytes) -> Inode:
        """Write a temporary file and move it over ``path``."""
        temporary = path + TEMPORARY
        self.remove(temporary)
        inode = self._create(temporary)
        try:
            self.append(inode, data)
        except DiskFull:
            self.remove(temporary)
            raise
        self.replace(temporary, path)
        return inode

    def replace(self, source: str, target: str) -> None:
        """Move a file or folder; an empty folder or a file may stand at ``target``."""
        if source not in self._names:
            raise FileNotFoundError(f"{self._node}:{source}")
        if self._names.get(target) is FOLDER and self.names(target):
            raise DiskFailed(f"{self._node}:{target} is a folder with files in it")
        self._make_folders(target)
        for folder in list(tree_below(self._name_changes, source)):
            moved = [change.moved(source, target) for change in self._name_changes.pop(folder)]
            self._name_changes.setdefault(target + folder[len(source) :], []).extend(moved)
        self._change("move", target, source=source)

    def remove(self, path: str) -> None:
        if path in self._names:
            # Its unsynced names go with it: they must not come back in a new folder of that name.
            for folder in list(tree_below(self._name_changes, path)):
                del self._name_changes[folder]
            self._change("remove", path)

    # ------------------------------------------------------------------------------------- durability

    async def sync(self, path: str, inode: Inode) -> None:
        """Make what was written before this call durable; it completes even if the caller leaves."""
        sequence = inode.sequence
        fails = self._fails(path)

        def complete() -> None:
            if fails:
                inode.lost_to(sequence)
            else:
                inode.synced_to(sequence)

        await self._after_latency(path, complete)
        if fails:
            raise DiskFailed(f"{self._node}:{path}: sync failed")

    async def sync_folder(self, folder: str) -> None:
        """Make the changes of names in ``folder`` durable, and the folder itself."""
        sequence = self._sequence
        fails = self._fails(folder)
        await self._after_latency(folder, lambda: None if fails else self._names_synced(folder, sequence))
        if folder and not self.exists(folder):
            raise DiskFailed(f"{self._node}:{folder}: sync failed: No such file or directory")
        if fails:
            raise DiskFailed(f"{self._node}:{folder}: sync failed")

    def _names_synced(self, folder: str, sequence: int) -> None:
        if folder:
            self._names_synced(_parent(folder), sequence)
        changes = self._name_changes.get(folder, [])
        while changes and changes[0].sequence <= sequence:
            changes.pop(0).apply(self._durable_names)

    def _after_latency(self, path: str, complete: Callable[[], None]) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        cuts = self.power_cuts

        def finish() -> None:
            if self.power_cuts == cuts:
                complete()
            if not done.done():
                done.set_result(None)

        # One thread syncs the quorum's log and another all else, each one request after the other.
        lane = f"{path}/".startswith(METADATA_FOLDER)
        latency = self._latencies.expovariate(1 / self.sync_mean_s) if self.sync_mean_s > 0 else 0.0
        at = max(self._loop.now, self._lane_free_at.get(lane, 0.0)) + latency
        self._lane_free_at[lane] = at
        self._loop.happen_at(at, finish)
        return done

    def _fails(self, path: str) -> bool:
        for prefix in self._failing_syncs:
            if path.startswith(prefix):
                self._failing_syncs.remove(prefix)
                self.failed_in = self.failed_in or self._locked_by
                return True
        return False

    def lock(self, incarnation: Incarnation) -> None:
        holder = self._locked_by
        if holder is not None and holder is not incarnation and holder.alive:
            raise DiskFailed(f"{self._node}: {holder} holds the data directory")
        self._locked_by = incarnation


class FencedDisk:
    """The Disk port of one incarnation of a node."""

    def __init__(self, disk: SimDisk, incarnation: Incarnation) -> None:
        self._disk = disk
        self._incarnation = incarnation
        self._published = 0

    def _live(self) -> SimDisk:
        if not self._incarnation.alive:
            raise DiskFailed(f"{self._incarnation} is dead")
        return self._disk

    def _path(self, path: str) -> str:
        return self._disk.spelled(checked_path(path)) if self._disk.ignores_case else checked_path(path)

    def open(self, path: str) -> FencedFile:
        """Open a file for reading and appending; made, with its folders, when missing."""
        disk = self._live()
        return FencedFile(disk, self._incarnation, path, disk.open(self._path(path)))

    def exists(self, path: str) -> bool:
        return self._live().exists(self._path(path))

    def is_folder(self, path: str) -> bool:
        return self._live().is_folder(self._path(path))

    def names(self, folder: str) -> list[str]:
        return self._live().names(self._path(folder))

    def modified_ms(self, path: str) -> int:
        return self._live().modified_ms(self._path(path))

    def size_of(self, path: str) -> int:
        return len(self._live().inode(self._path(path)).content)

    def read_file(self, path: str) -> bytes:
        return bytes(self._live().inode(self._path(path)).content)

    def replace_file(self, path: str, data: bytes) -> None:
        self._live().replace_file(self._path(path), data)

    async def publish(self, path: str, data: bytes) -> None:
        """Temporary file, sync, rename, sync of the folder: each step can be where the power goes."""
        disk, path = self._live(), self._path(path)
        self._published += 1
        temporary = f"{path}.{self._published}{TEMPORARY}"
        disk.remove(temporary)
        inode = disk.open(temporary)
        try:
            disk.append(inode, data)
        except DiskFull:
            disk.remove(temporary)
            raise
        await disk.sync(temporary, inode)
        self._live().replace(temporary, path)
        await self.sync_folder(_parent(path))

    def replace(self, source: str, target: str) -> None:
        self._live().replace(self._path(source), self._path(target))

    def remove(self, path: str) -> None:
        self._live().remove(self._path(path))

    async def sync_folder(self, folder: str) -> None:
        await self._live().sync_folder(self._path(folder))

    def lock(self) -> None:
        self._live().lock(self._incarnation)

    def ignores_case(self) -> bool:
        return self._disk.ignores_case

    def close(self) -> None:
        """Nothing to give back: the lock goes with the incarnation."""


class FencedFile:
    """The File port of one incarnation of a node."""

    def __init__(self, disk: SimDisk, incarnation: Incarnation, path: str, inode: Inode) -> None:
        self._disk = disk
        self._incarnation = incarnation
        self._path = path
        self._inode = inode
        self._open = True

    def _live(self) -> Inode:
        if not self._incarnation.alive:
            raise DiskFailed(f"{self._incarnation} is dead")
        if not self._open:
            raise DiskFailed(f"{self._path} is closed")
        return self._inode

    def append(self, data: Buffers) -> None:
        self._disk.append(self._live(), b"".join(data))

    def read(self, position: int, size: int) -> bytes:
        return bytes(memoryview(self._live().content)[position : position + size])

    def region(self, position: int, size: int) -> None:
        """None: the simulated network carries bytes only."""

    def size(self) -> int:
        return len(self._live().content)

    def truncate(self, size: int) -> None:
        self._disk.cut(self._live(), size)

    async def sync(self) -> None:
        await self._disk.sync(self._path, self._live())

    def close(self) -> None:
        self._open = False
