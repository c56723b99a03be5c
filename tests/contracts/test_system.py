"""What Linux and macOS do differently, both sides of it: macOS's system calls are played by fakes."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from minikafka.world import system
from minikafka.world.system import (
    DESCRIPTORS_MAX,
    MACOS_DESCRIPTORS_MAX,
    allow_descriptors,
    command_line,
    has_no_reader,
    hold_port,
    is_running,
    open_descriptors,
    sync,
    sync_data,
    sync_folder,
)

FULL_SYNC = 51
INFINITE = resource.RLIM_INFINITY


class Syncs:
    """What was asked of the kernel, which fails with ``full_sync_fails`` and ``sync_fails``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, full_sync_fails: int = 0, sync_fails: int = 0) -> None:
        self.asked: list[str] = []
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL_SYNC, raising=False)
        monkeypatch.setattr(fcntl, "fcntl", lambda _, command: self._answer(f"fcntl {command}", full_sync_fails))
        monkeypatch.setattr(os, "fsync", lambda _: self._answer("fsync", sync_fails))
        monkeypatch.delattr(os, "fdatasync")

    def _answer(self, call: str, error: int) -> None:
        self.asked.append(call)
        if error:
            raise OSError(error, os.strerror(error))


@pytest.mark.parametrize("call", [sync, sync_data])
def test_sync_on_macos_reaches_the_drive(monkeypatch: pytest.MonkeyPatch, call):
    """There fsync leaves bytes in the drive's memory, where a power cut loses them; F_FULLFSYNC writes them out."""
    syncs = Syncs(monkeypatch)
    call(3)
    assert syncs.asked == [f"fcntl {FULL_SYNC}"]


def test_sync_of_a_share_on_macos(monkeypatch: pytest.MonkeyPatch):
    """A file system that does not know F_FULLFSYNC gets the fsync that it knows."""
    syncs = Syncs(monkeypatch, full_sync_fails=errno.ENOTSUP)
    sync(3)
    assert syncs.asked == [f"fcntl {FULL_SYNC}", "fsync"]


@pytest.mark.parametrize("full_sync_fails, sync_fails", [(errno.EIO, 0), (errno.ENOTSUP, errno.EIO)])
def test_sync_that_fails_on_macos(monkeypatch: pytest.MonkeyPatch, full_sync_fails: int, sync_fails: int):
    """A broken disk is not taken for a share: an fsync behind its error would succeed, though bytes are lost."""
    Syncs(monkeypatch, full_sync_fails, sync_fails)
    with pytest.raises(OSError, match="Input/output error"):
        sync_data(3)


def test_sync_on_linux_reaches_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A file's content by fdatasync, a file or a folder as a whole by fsync; the descriptor of a folder is closed."""
    asked: list[tuple[str, Path]] = []

    def synced(call: str, descriptor: int) -> None:
        asked.append((call, Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", lambda descriptor: synced("fsync", descriptor))
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced("fdatasync", descriptor))
    with (tmp_path / "orders").open("wb") as file:
        sync_data(file.fileno())
        sync(file.fileno())
    sync_folder(tmp_path)
    assert asked == [("fdatasync", tmp_path / "orders"), ("fsync", tmp_path / "orders"), ("fsync", tmp_path)]
    assert tmp_path not in dict(open_descriptors()).values()


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EIO])
def test_folder_that_cannot_be_synced_is_an_error_unless_its_file_system_syncs_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: int
):
    """EINVAL: names are durable by themselves there, or nothing is promised. Any other error is the disk's."""

    def refused(_: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "fsync", refused)
    with nullcontext() if error == errno.EINVAL else pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)
    assert tmp_path not in dict(open_descriptors()).values()


@pytest.mark.parametrize(
    "soft, hard, most, wanted",
    [
        pytest.param(1024, 524_288, DESCRIPTORS_MAX, 524_288, id="a terminal of Linux"),
        pytest.param(1024, INFINITE, DESCRIPTORS_MAX, DESCRIPTORS_MAX, id="a container without a limit"),
        pytest.param(256, INFINITE, 61_440, MACOS_DESCRIPTORS_MAX, id="a terminal of macOS"),
        pytest.param(4096, 4096, DESCRIPTORS_MAX, 4096, id="all that is allowed"),
        pytest.param(20_000, INFINITE, 61_440, 20_000, id="macOS, more than it can be sure of"),
        pytest.param(1024, INFINITE, 512, 1024, id="nothing can be set"),
        pytest.param(INFINITE, INFINITE, DESCRIPTORS_MAX, INFINITE, id="no limit"),
    ],
)
def test_descriptors_are_allowed(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, most: int, wanted: int):
    """A process takes what its system allows; a limit that is higher than that already is left alone."""
    limits = [soft, hard]

    def set_limit(which: int, asked: tuple[int, int]) -> None:
        if asked[0] > most:
            raise ValueError("current limit exceeds maximum limit")
        limits[:] = asked

    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    allow_descriptors()
    assert limits == [wanted, hard]


def test_open_descriptors_have_paths(tmp_path: Path):
    """A file has its path, and a socket has none."""
    with (tmp_path / "orders").open("wb") as file, socket.socket() as other:
        found = dict(open_descriptors())
        assert (found[file.fileno()], found[other.fileno()]) == (tmp_path / "orders", None)


def test_port_is_held_for_brokers_and_for_one_holder(monkeypatch: pytest.MonkeyPatch):
    """A broker listens there, and again after its end; no other cluster, and no other program, gets the port."""
    port, held = hold_port("127.0.0.1", 0)
    with held:
        for _ in range(2):
            with socket.socket() as broker, socket.socket() as client:
                broker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                broker.bind(("127.0.0.1", port))
                broker.listen()
                client.connect(("127.0.0.1", port))
        with pytest.raises(OSError, match="Address already in use"), socket.socket() as other:
            other.bind(("127.0.0.1", port))
        tries: list[int] = []
        hold = system._held

        def counted(host: str, number: int) -> object:
            tries.append(number)
            return hold(host, number)

        monkeypatch.setattr(system, "_held", counted)
        with pytest.raises(OSError, match="Address already in use"):
            hold_port("127.0.0.1", port)
        assert tries == [port], "the same port would be taken again"
    with hold_port("127.0.0.1", port)[1]:
        pass


def test_output_without_a_reader_is_known():
    """Pipes, sockets, and a descriptor that is closed: what runs only for its reader ends then."""
    reader, writer = os.pipe()
    assert not has_no_reader(writer)
    os.close(reader)
    assert has_no_reader(writer)
    os.close(writer)
    assert has_no_reader(writer)
    one, other = socket.socketpair()
    with one:
        assert not has_no_reader(one.fileno())
        other.close()
        assert has_no_reader(one.fileno())


def test_child_is_woken_when_its_parent_ends():
    """The kernel's own word (PR_GET_PDEATHSIG): a stopped process that stayed would keep its ports."""
    code = (
        "import ctypes; from minikafka.world.system import wake_with_parent; wake_with_parent();"
        "found = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(found)); print(found.value)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) == signal.SIGCONT


def test_process_may_have_any_name():
    """Its name stands before its state in /proc, in parentheses, and may look like one."""
    code = "open('/proc/self/comm', 'w').write('a) Z b');print(flush=True);input()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert "(a) Z b)" in Path(f"/proc/{process.pid}/stat").read_text()
        assert is_running(process.pid)
        process.kill()


def test_any_free_port_is_drawn_again_if_its_lock_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """macOS: a port is free again at once, so the next draw may be of a port that another cluster holds."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, held = hold_port("127.0.0.1", 0)
    with held:
        with pytest.raises(OSError, match="Address already in use"):
            hold_port("127.0.0.1", first)
        drawn = iter([first, first, 0])
        bind = socket.socket.bind
        monkeypatch.setattr(socket.socket, "bind", lambda bound, _: bind(bound, ("127.0.0.1", next(drawn))))
        second, other = hold_port("127.0.0.1", 0)
        other.close()
        assert second != first


def test_a_planted_link_is_not_followed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """macOS: another user may write to the folder of temporary files."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = tmp_path / "mine"
    mine.write_bytes(b"tea")
    with socket.socket() as drawn:
        drawn.bind(("127.0.0.1", 0))
        port = drawn.getsockname()[1]
    (tmp_path / f"minikafka-port-{port}.{os.geteuid()}").symlink_to(mine)
    with pytest.raises(OSError, match="symbolic links"):
        hold_port("127.0.0.1", port)
    assert mine.read_bytes() == b"tea"


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_processes_by_their_numbers(monkeypatch: pytest.MonkeyPatch, platform: str):
    """Arguments and state of one that runs, that has ended and waits for its parent, and of a number that nobody has."""
    monkeypatch.setattr(system.sys, "platform", platform)
    command = [sys.executable, "-c", "print(flush=True);input()", "serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # before it has begun, its arguments may be missing
        assert is_running(process.pid)
        assert command_line(process.pid)[-2:] == command[-2:]
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_running(process.pid)
    assert not is_running(process.pid)
    assert command_line(process.pid) == []


def test_import_on_windows_says_what_to_do():
    """Before, it ended with a module that Windows has not (fcntl), somewhere below."""
    code = "import sys; sys.platform = 'win32'; import minikafka"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.stderr.endswith("ImportError: minikafka runs on Linux and macOS; on Windows use WSL 2, or Docker\n")
