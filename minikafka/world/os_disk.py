"""The Disk port on the operating system's files.

Rules for this file:

1. Nothing here decides what must be durable; it only says, by returning from ``sync``, that it is.
2. A write is all or nothing: what was written of a failed one is cut off again.
3. Syncs run on threads. The quorum's log has one of its own: a slow data disk never delays a vote. Other files share a
   few: file systems write what several threads wait for in one go. Names are made durable on one more, in order.
4. After :meth:`OsDisk.fence` nothing of this incarnation reaches the files any more.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn

from minikafka.errors import DiskFailed, DiskFull, in_words
from minikafka.invariant import invariant
from minikafka.ports import Buffers, checked_path
from minikafka.types import METADATA_PARTITION
from minikafka.world.events import folder_mode
from minikafka.world.instruments import MachineFaults
from minikafka.world.system import sync, sync_data, sync_folder

LOCK_NAME = ".lock"
FILE_THREADS = 4
"""Threads that sync files of partitions."""
TEMPORARY = ".tmp"
CASE_PROBE = f"mk.Case{TEMPORARY}"
"""A start removes one that a killed process has left, as each temporary file."""

# writev takes this many buffers at most (IOV_MAX of Linux).
BUFFERS_PER_WRITE = 1024

READ_SIZE = 64 * 1024
"""Bytes of a small file that are read in one call. Fewer than that came: the file ends there."""

WARMED_SIZE = 1024 * 1024
"""Bytes that are read at a time into the page cache."""

RWF_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
"""Read what is in memory or nothing: Linux only."""
CAN_SEND_FILES = RWF_NOWAIT is not None

UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""What a file system raises for a call that it does not have."""

NOT_USABLE = frozenset({errno.EACCES, errno.EEXIST, errno.ELOOP, errno.ENOTDIR, errno.EPERM, errno.EROFS})
"""Errors of a data directory that another folder, or other rights, would mend."""

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def _fail(error: OSError, what: str) -> NoReturn:
    if error.errno in FULL:
        raise DiskFull(f"{what}: {in_words(error)}") from error
    raise DiskFailed(f"{what}: {in_words(error)}") from error


@contextmanager
def _failing(what: str, *passed_on: type[OSError]) -> Iterator[None]:
    """Raise DiskFull or DiskFailed for errors of the system, but for those that are ``passed_on``."""
    try:
        yield
    except passed_on:
        raise
    except OSError as error:
        _fail(error, what)


def _pread(descriptor: int, size: int, position: int, least: int) -> bytes:
    """Bytes from ``position`` on, at most ``size``; fewer than ``least`` only at the end of the file. OSError."""
    data = os.pread(descriptor, size, position)
    while len(data) < least:
        more = os.pread(descriptor, size - len(data), position + len(data))
        if not more:
            break
        data += more
    return data


def _remove_folder(full: str) -> None:
    """Remove a folder with all in it. OSError.

    NFS and FUSE keep a removed file under another name (``.nfs...``, ``.fuse_hidden...``) while a reader has it open.
    Such a folder stays until the next start: the broker must not stop because a client reads slowly.
    """
    try:
        shutil.rmtree(full)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EBUSY):
            raise
        shutil.rmtree(full, ignore_errors=True)


def _is_of_quorum(path: str) -> bool:
    return f"{path}/".startswith(f"{METADATA_PARTITION}/")


class _Descriptor:
    """A file's descriptor, open until the file and all regions of it are gone."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class OsRegion:
    """Bytes of an open file that are sent with ``sendfile``."""

    __slots__ = ("_descriptor", "_path", "_position", "_size")

    def __init__(self, path: str, descriptor: _Descriptor, position: int, size: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._position = position
        self._size = size

    def __len__(self) -> int:
        return self._size

    @property
    def is_cached(self) -> bool:
        """Return True if the first and last bytes are in the page cache. The kernel reads ahead: so is the rest."""
        return self._has_cached(0) and self._has_cached(self._size - 1)

    def _has_cached(self, at: int) -> bool:
        try:
            os.preadv(self._descriptor.number, [bytearray(1)], self._position + at, RWF_NOWAIT or 0)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in UNSUPPORTED:  # a file system in memory, for one, has no RWF_NOWAIT
                _fail(error, self._path)
        return True

    def warm(self) -> None:
        """Read it into the page cache; blocks. DiskFailed."""
        for begin in range(0, self._size, WARMED_SIZE):
            self.read(begin, min(WARMED_SIZE, self._size - begin))

    def read(self, begin: int, size: int) -> bytes:
        """Exactly these bytes; DiskFailed when the file no longer has them."""
        try:
            data = _pread(self._descriptor.number, size, self._position + begin, size)
        except OSError as error:
            _fail(error, self._path)
        if len(data) < size:
            raise DiskFailed(f"{self._path}: {len(data)} of {size} bytes at {self._position + begin}")
        return data

    def send(self, descriptor: int, begin: int, size: int) -> int | None:
        """Send at most ``size`` bytes from ``begin`` on to a socket; how many it took. None: read them. OSError."""
        size = min(size, self._size - begin)
        try:
            return os.sendfile(descriptor, self._descriptor.number, self._position + begin, size)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            return None


class OsFile:
    """One open file, appended at its end and read anywhere."""

    def __init__(self, disk: OsDisk, path: str, descriptor: int) -> None:
        self._disk = disk
        self._path = path
        self._descriptor = descriptor
        self._owned: _Descriptor | None = _Descriptor(descriptor)
        """None: it is closed. Syncs under way and regions hold the descriptor as well."""
        self._size = os.fstat(descriptor).st_size

    def append(self, data: Buffers) -> None:
        """One gathered write; DiskFull leaves the file as it was, DiskFailed means that the log must stop."""
        if self._owned is None or self._disk.fenced:
            self._open_descriptor()
        wanted = sum(map(len, data))
        try:
            if self._disk.faults is not None:
                self._disk.faults.before_write()
            if len(data) > BUFFERS_PER_WRITE or (written := os.writev(self._descriptor, data)) < wanted:
                self._append_rest(data, written if len(data) <= BUFFERS_PER_WRITE else 0)
        except OSError as error:
            self._cut_back()
            _fail(error, self._path)
        self._size += wanted

    def _append_rest(self, data: Buffers, written: int) -> None:
        """Go on after a short write, or write more buffers than one call takes."""
        left = [memoryview(buffer).cast("B") for buffer in data if len(buffer)]
        while True:
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if not left:
                return
            left[0] = left[0][written:]
            written = os.writev(self._descriptor, left[:BUFFERS_PER_WRITE])

    def _cut_back(self) -> None:
        try:
            os.ftruncate(self._descriptor, self._size)
        except OSError as error:
            raise DiskFailed(f"{self._path}: a failed write could not be cut off: {in_words(error)}") from error

    def read(self, position: int, size: int) -> bytes:
        """At most ``size`` bytes; fewer only at the end of the file."""
        self._open_descriptor()
        try:
            return _pread(self._descriptor, size, position, min(size, self._size - position))
        except OSError as error:
            _fail(error, self._path)

    def region(self, position: int, size: int) -> OsRegion | None:
        """The same bytes, to be sent from the file; None where the system cannot, or the file does not have them."""
        self._open_descriptor()
        if self._owned is None or position + size > self._size or not CAN_SEND_FILES:
            return None
        return OsRegion(self._path, self._owned, position, size)

    def size(self) -> int:
        """Bytes in the file."""
        return self._size

    def truncate(self, size: int) -> None:
        """Cut the file to ``size``; larger sizes change nothing."""
        self._open_descriptor()
        if size < self._size:
            with _failing(self._path):
                os.ftruncate(self._descriptor, size)
            self._size = size

    async def sync(self) -> None:
        """Fdatasync on a thread of the disk; DiskFailed."""
        descriptor = self._open_descriptor()
        if not self._disk.syncs:
            return
        future = self._disk.submit_sync(self._path, descriptor)
        # A task that nobody ends, on a loop that does not run again, must not keep the file open.
        del descriptor
        try:
            await asyncio.wrap_future(future)
        except OSError as error:
            raise DiskFailed(f"{self._path}: sync failed: {in_words(error)}") from error

    def close(self) -> None:
        """Close it, after syncs and regions of it that are still under way."""
        self._disk.forget(self)
        self._owned = None

    def _open_descriptor(self) -> _Descriptor:
        if self._owned is None:
            raise DiskFailed(f"{self._path} is closed")
        if self._disk.fenced:
            raise DiskFailed(f"{self._path}: this incarnation is dead")
        return self._owned


class OsDisk:
    """One data directory. ``syncs`` False: a sync does nothing, for a directory that does not outlive its process
    anyway; what is written survives a killed broker, for it is the kernel's, and no power loss.
    """

    def __init__(
        self, root: str, *, syncs: bool = True, faults: MachineFaults | None = None, file_mode: int = 0o600
    ) -> None:
        self.fenced = False
        self.syncs = syncs
        self.faults = faults
        """What tests have done to this machine; None: they cannot."""
        self._file_mode = file_mode
        self._folder_mode = folder_mode(file_mode)
        self._root = os.path.abspath(root)
        self._inside = os.path.join(self._root, "")
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._files: dict[OsFile, None] = {}
        """Open, in order of their opening."""
        self._numbers = itertools.count(1)
        self._unsynced_parents: set[str] = set()
        """Folders in which this process made folders that no sync has made durable yet."""
        self._lock_descriptor: int | None = None
        with self._taking():
            os.makedirs(self._root, self._folder_mode, exist_ok=True)

    @contextmanager
    def _taking(self) -> Iterator[None]:
        """DiskFull, or DiskFailed with what to do, where the directory as a whole cannot be used."""
        try:
            yield
        except OSError as error:
            if error.errno not in NOT_USABLE:
                _fail(error, self._root)
            raise DiskFailed(
                f"data directory {self._root} cannot be used: {in_words(error)}; log.dirs must name a folder that this "
                "user may write to"
            ) from error

    def submit(self, path: str, function: Any, *arguments: Any) -> Future[Any]:
        """Run a blocking call on the thread that makes names in ``path`` durable; its calls run one after the other."""
        return self._lane("quorum" if _is_of_quorum(path) else "data", 1).submit(function, *arguments)

    def submit_sync(self, path: str, descriptor: _Descriptor) -> Future[None]:
        """Sync a file on a thread, beside syncs of other files."""
        lane = self._lane("quorum", 1) if _is_of_quorum(path) else self._lane("files", FILE_THREADS)
        return lane.submit(self._sync_file, descriptor)

    def _lane(self, name: str, threads: int) -> ThreadPoolExecutor:
        lane = self._threads.get(name)
        if lane is None:
            lane = self._threads[name] = ThreadPoolExecutor(threads, thread_name_prefix=f"sync-{name}")
        return lane

    def _sync_file(self, descriptor: _Descriptor) -> None:
        """Runs on a thread; OSError."""
        self._before_sync()
        sync_data(descriptor.number)

    def _before_sync(self) -> None:
        if self.faults is not None:
            self.faults.before_sync()

    def _full(self, path: str) -> str:
        if self.fenced:
            raise DiskFailed(f"{path}: this incarnation is dead")
        return self._inside + checked_path(path) if path else self._root

    # ------------------------------------------------------------------------------------- files and names

    def open(self, path: str) -> OsFile:
        """Open a file for reading and appending; made, with its folders, when missing."""
        with _failing(path):
            descriptor = self._opened(path, os.O_CREAT | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        file = OsFile(self, path, descriptor)
        self._files[file] = None
        return file

    def forget(self, file: OsFile) -> None:
        """It is closed."""
        self._files.pop(file, None)

    def _opened(self, path: str, flags: int) -> int:
        """A descriptor of the file; its folders are made when they are missing. OSError."""
        full = self._full(path)
        try:
            return os.open(full, flags, self._file_mode)
        except FileNotFoundError:
            self._make_folder(os.path.dirname(path))
            return os.open(full, flags, self._file_mode)

    def _make_folder(self, folder: str) -> None:
        if folder and not os.path.isdir(os.path.join(self._root, folder)):
            self._make_folder(os.path.dirname(folder))
            # A publish on its thread may be first.
            os.makedirs(os.path.join(self._root, folder), self._folder_mode, exist_ok=True)
            self._unsynced_parents.add(os.path.dirname(folder))

    def exists(self, path: str) -> bool:
        return os.path.exists(self._full(path))

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(self._full(path))

    def names(self, folder: str) -> list[str]:
        """Sorted names; the lock file of the data directory is not one of them."""
        found: list[str] = []
        with suppress(FileNotFoundError), _failing(folder, FileNotFoundError):
            found = os.listdir(self._full(folder))
        return sorted(name for name in found if folder or name != LOCK_NAME)

    def modified_ms(self, path: str) -> int:
        with _failing(path, FileNotFoundError):
            return os.stat(self._full(path)).st_mtime_ns // 1_000_000

    def size_of(self, path: str) -> int:
        """Bytes in the file, without opening it; FileNotFoundError when it is missing."""
        with _failing(path, FileNotFoundError):
            return os.stat(self._full(path)).st_size

    def read_file(self, path: str) -> bytes:
        """The whole file; FileNotFoundError when it is missing."""
        # Without a file object, which takes three more system calls: a start reads thousands of small files.
        with _failing(path, FileNotFoundError):
            descriptor = os.open(self._full(path), os.O_RDONLY | os.O_CLOEXEC)
            try:
                pieces = [os.read(descriptor, READ_SIZE)]
                while len(pieces[-1]) == READ_SIZE:
                    pieces.append(os.read(descriptor, READ_SIZE))
            finally:
                os.close(descriptor)
        return b"".join(pieces)

    def replace_file(self, path: str, data: bytes) -> None:
        """Write a temporary file and rename it over ``path``."""
        with _failing(path):
            self._write_and_rename(path, path + TEMPORARY, data, durable=False)

    async def publish(self, path: str, data: bytes) -> None:
        """As :meth:`replace_file`, and durable, all on the disk's thread."""
        self._full(path)
        if not self.syncs:
            self.replace_file(path, data)
            return
        temporary = f"{path}.{next(self._numbers)}{TEMPORARY}"
        future = self.submit(path, lambda: self._write_and_rename(path, temporary, data, durable=True))
        with _failing(path):
            await asyncio.wrap_future(future)

    def _write_and_rename(self, path: str, temporary: str, data: bytes, *, durable: bool) -> None:
        """Runs on the loop or on a thread; it raises OSError."""
        target, source = self._full(path), self._full(temporary)
        folder = os.path.dirname(path)
        try:
            if self.faults is not None:
                self.faults.before_write()
            self._write_new(temporary, data, durable=durable)
            if self.fenced:
                raise DiskFailed(f"{path}: this incarnation is dead")
            os.replace(source, target)
        except OSError:
            if os.path.exists(source):
                os.unlink(source)
            raise
        if durable:
            self._sync_folders(folder)

    def _write_new(self, path: str, data: bytes, *, durable: bool) -> None:
        """A file of its own for ``data``, and of nothing that may stand there; OSError."""
        descriptor = self._opened(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            written = 0
            while written < len(data):
                written += os.write(descriptor, data[written:] if written else data)
            if durable:
                self._before_sync()
                sync(descriptor)
        finally:
            os.close(descriptor)

    def replace(self, source: str, target: str) -> None:
        """Rename a file or folder; FileNotFoundError when there is none."""
        with _failing(f"{source} -> {target}", FileNotFoundError):
            full = self._full(source)
            self._make_folder(os.path.dirname(checked_path(target)))
            os.replace(full, self._full(target))

    def remove(self, path: str) -> None:
        """Delete a file, or a folder with all in it."""
        full = self._full(path)
        invariant(path != "", "the data directory itself is never removed")
        with suppress(FileNotFoundError), _failing(path, FileNotFoundError):
            if os.path.isdir(full):
                _remove_folder(full)
            else:
                os.unlink(full)

    # ------------------------------------------------------------------------------------- durability

    async def sync_folder(self, folder: str) -> None:
        """Make the names in ``folder`` durable, and the folder itself when this process made it."""
        self._full(folder)
        if not self.syncs:
            return
        try:
            await asyncio.wrap_future(self.submit(folder, self._sync_folders, folder))
        except OSError as error:
            raise DiskFailed(f"{folder}: sync failed: {in_words(error)}") from error

    def _sync_folders(self, folder: str) -> None:
        sync_folder(os.path.join(self._root, folder))
        while folder:
            folder = os.path.dirname(folder)
            if folder in self._unsynced_parents:
                self._unsynced_parents.discard(folder)
                sync_folder(os.path.join(self._root, folder))

    # ------------------------------------------------------------------------------------- the directory as a whole

    def lock(self) -> None:
        """Take the directory until this disk is closed or the process ends."""
        if self._lock_descriptor is not None:
            return
        with self._taking():
            descriptor = os.open(self._full(LOCK_NAME), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, self._file_mode)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise DiskFailed(f"{self._root} is in use by another broker") from error
            raise DiskFailed(
                f"data directory {self._root} cannot be locked: {in_words(error)}; log.dirs must be on a file system "
                "with locks (flock)"
            ) from error
        self._lock_descriptor = descriptor

    def ignores_case(self) -> bool:
        """Make a file, look for it by a name in lower case, and remove it."""
        self.open(CASE_PROBE).close()
        try:
            if CASE_PROBE not in self.names(""):
                raise DiskFailed(
                    f"{self._root}: the file system changes the case of names, so folders would get other topics' "
                    "names; use another mount option, or another file system"
                )
            return self.exists(CASE_PROBE.lower())
        finally:
            self.remove(CASE_PROBE)

    def fence(self) -> None:
        """Let nothing of this incarnation reach the files any more, and give the directory to the next one.

        Code that had files open will not close them: the process lives on.
        """
        self.fenced = True
        self.close()

    def close(self) -> None:
        """Close the files that are left open, and give the lock back; syncs under way end by themselves."""
        for file in list(self._files):
            file.close()
        for thread in self._threads.values():
            thread.shutdown(wait=False)
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None
