"""What Linux and macOS do differently: syncs, held ports, terminals, processes by their numbers, open descriptors.

Everything else that minikafka asks of its system both have; ``tests/e2e/test_macos.py`` checks it. Functions look at
``sys.platform`` when they are called, so tests play the other system.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
"""Of Linux's prctl(2)."""

DESCRIPTORS_MAX: Final = 1 << 20
"""Linux's default of fs.nr_open, above which no limit can be set."""
MACOS_DESCRIPTORS_MAX: Final = 10_240
"""macOS's OPEN_MAX: its hard limit reads as infinite, and more than this may be refused."""

NO_FULL_SYNC: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOTTY})
"""Errors of a file system that has no F_FULLFSYNC, such as a network share."""

PORT_TRIES: Final = 10
"""How often any free port is drawn, where the lock of the drawn one may be taken."""

PATH_BYTES_MAX: Final = 1024
"""PATH_MAX of macOS."""


def sync_data(descriptor: int) -> None:
    """Make a file's content durable, and of its attributes what is needed to read it (fdatasync). Blocks; OSError."""
    if sys.platform == "darwin":
        sync(descriptor)
    else:
        os.fdatasync(descriptor)


def sync(descriptor: int) -> None:
    """Make a file or a folder durable (fsync). Blocks; OSError."""
    if sys.platform == "darwin":
        # There fsync leaves the bytes in the drive's own memory.
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
        except OSError as error:
            # No second try after any other error: the kernel may have dropped the bytes, and fsync would succeed.
            if error.errno not in NO_FULL_SYNC:
                raise
            os.fsync(descriptor)
    else:
        os.fsync(descriptor)


def sync_folder(path: str | Path) -> None:
    """Make the names in a folder durable. Blocks; OSError.

    Some file systems sync no folders (EINVAL): they make names durable by themselves, or promise nothing.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def hold_port(host: str, port: int) -> tuple[int, ExitStack]:
    """Hold a TCP port (0: any free one) for brokers: its number, and what lets it go. OSError (EADDRINUSE).

    On Linux a socket is bound and never listens, so that a broker can listen there (SO_REUSEADDR) and no other program
    gets the port while it is down. Two sockets with SO_REUSEADDR can be bound to one port while neither listens, so
    another holder is kept away by a lock: a Unix socket in the abstract namespace, which is the network's like ports.

    macOS has no such namespace, and no socket can listen where another one is bound. There a locked file keeps the
    user's other holders away; other programs can get the port while the broker is down.
    """
    for _ in range(PORT_TRIES if port == 0 else 1):
        try:
            return _held(host, port)
        except OSError as error:
            taken = error
    raise taken


def _held(host: str, port: int) -> tuple[int, ExitStack]:
    with ExitStack() as trying:
        bound = trying.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        taken = int(bound.getsockname()[1])
        if sys.platform == "darwin":
            import tempfile  # noqa: PLC0415 - most commands hold no port

            path = Path(tempfile.gettempdir(), f"minikafka-port-{taken}.{os.geteuid()}")
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            trying.callback(os.close, file)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)) from None
            bound.close()
        else:
            lock = trying.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            lock.bind(f"\0minikafka-port-{taken}")
        return taken, trying.pop_all()


def has_no_reader(descriptor: int) -> bool:
    """Return True if nobody can read any more what is written here: the other end of a pipe or a socket is closed."""
    output = select.poll()
    output.register(descriptor, select.POLLOUT)
    gone = select.POLLERR | select.POLLHUP
    if sys.platform != "darwin":  # macOS reports POLLNVAL for terminals
        gone |= select.POLLNVAL
    return any(events & gone for _, events in output.poll(0))


def wake_with_parent() -> None:
    """Let the kernel send SIGCONT to this process when the one that started it ends, where it can (Linux).

    A process that is stopped (SIGSTOP) cannot see that its parent is gone: it would keep its ports and its memory.
    """
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - children only, and it would make each start slower

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0)


def allow_descriptors() -> None:
    """Let this process have as many files and connections open as the system allows it, as a JVM does.

    A terminal's programs begin with 1,024 on Linux and 256 on macOS: three brokers with seventy partitions.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for most in (DESCRIPTORS_MAX, MACOS_DESCRIPTORS_MAX):
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft in (resource.RLIM_INFINITY, wanted) or soft > wanted:
            return
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            continue  # macOS refuses more than it allows (EINVAL)
        return


def open_descriptors() -> Iterator[tuple[int, Path | None]]:
    """Each descriptor of this process, with the path of a file or folder that has one."""
    folder = Path("/dev/fd" if sys.platform == "darwin" else "/proc/self/fd")
    for entry in list(folder.iterdir()):
        number = int(entry.name)
        try:
            if sys.platform == "darwin":
                name = fcntl.fcntl(number, fcntl.F_GETPATH, bytes(PATH_BYTES_MAX))
                yield number, Path(os.fsdecode(name.rstrip(b"\0")))
            else:
                path = entry.readlink()
                yield number, path if path.is_absolute() else None  # "socket:[1234]"
        except OSError:
            yield number, None  # a socket on macOS, or the one that listed them, which is closed by now


def command_line(pid: int) -> list[str]:
    """The arguments of a process; none if there is no such process, if it has ended, or if it is about to begin."""
    if sys.platform == "darwin":
        return _from_ps("args=", pid).split()
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")[:-1]
    except OSError:
        return []


def is_running(pid: int) -> bool:
    """Return True for a process that has not ended; one that nobody has waited for yet has."""
    if sys.platform == "darwin":
        state = _from_ps("state=", pid)
    else:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2]
        except OSError:
            return False
    return state[:1] not in ("", "Z", "X")


def _from_ps(column: str, pid: int) -> str:
    """What ps(1) says of a process; empty if there is none."""
    command = ["ps", "-ww", "-o", column, "-p", str(pid)]
    found = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)  # noqa: S603
    return found.stdout.strip()
