"""Contents and names that a disk knows but has not made durable yet.

Rule for this file: a change is applied twice, at once to what is seen and later, in the same order, to what is durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal, TypeAlias

SECTOR_SIZE = 512


@dataclass(frozen=True, slots=True)
class Write:
    """One unsynced change of a file's content: append ``data``, or cut to ``size``."""

    sequence: int
    data: bytes | None
    size: int = 0

    def apply(self, content: bytearray) -> None:
        if self.data is not None:
            content += self.data
        else:
            del content[self.size :]


@dataclass(eq=False, slots=True)
class Inode:
    """A file's bytes, apart from its names."""

    birth: int
    """Names its random streams: a path may be used by several files in turn."""
    modified_ms: int
    content: bytearray = field(default_factory=bytearray)
    """As the page cache shows it."""
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write] = field(default_factory=list)
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


class Folder:
    """Marks a folder among the names."""

    __slots__ = ()


FOLDER = Folder()
Entry: TypeAlias = Inode | Folder


@dataclass(frozen=True, slots=True)
class NameChange:
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
        return replace(self, path=target + self.path[len(source) :])


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
