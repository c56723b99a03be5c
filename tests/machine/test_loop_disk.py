"""Disks that lose power, fill up and fail (chaos/machine.py); nothing stays, however a run ends."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from minikafka.chaos.machine import Injection, LoopDisk, Mounts, run
from minikafka.errors import WorldError

pytestmark = pytest.mark.machine

PATIENCE_S = 60.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    with Mounts() as mounts:
        yield mounts.make(tmp_path / "disk.img", tmp_path / "disk", 64)


def test_power_loss_takes_what_was_not_synced(disk: LoopDisk):
    """FAULTS 5: a hundred records synced, three more written, power lost: exactly a hundred come back."""
    with (disk.here / "log").open("wb", buffering=0) as log:
        for number in range(103):
            log.write(b"%03d\n" % number)
            if number == 99:
                os.fsync(log.fileno())
        disk.die()
        with pytest.raises(OSError) as failed:
            log.write(b"after\n")
    assert failed.value.errno == errno.EIO
    disk.revive()
    assert (disk.here / "log").read_text().split() == [f"{number:03d}" for number in range(100)]


def test_a_disk_in_use_is_not_taken_away(disk: LoopDisk, monkeypatch: pytest.MonkeyPatch):
    """The power cannot come back while somebody still has a file open from before."""
    with monkeypatch.context() as patch, (disk.here / "log").open("wb"), pytest.raises(WorldError, match="busy"):
        patch.setattr("minikafka.chaos.machine.UNMOUNT_TIMEOUT_S", 0.0)
        disk.revive()
    disk.revive()
    assert (disk.here / "log").exists() is True


def test_a_full_disk_takes_nothing_and_then_again(disk: LoopDisk):
    """ENOSPC for everybody, root too; the ballast goes, and there is room."""
    disk.fill()
    with pytest.raises(OSError) as refused:
        (disk.here / "log").write_bytes(bytes(100_000))
    assert refused.value.errno == errno.ENOSPC
    disk.free()
    assert (disk.here / "log").write_bytes(bytes(100_000)) == 100_000


def test_mounts_are_seen_by_this_run_only(disk: LoopDisk):
    """Rule: in a mount namespace of its own, that every process of the run can be started in."""
    assert str(disk.folder) not in Path("/proc/mounts").read_text(encoding="utf-8")
    (disk.here / "seen").touch()
    assert list(disk.folder.iterdir()) == []


SYNCS = """
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
for _ in sys.stdin:
    began = time.monotonic()
    try:
        os.fdatasync(file)
        print(time.monotonic() - began, flush=True)
    except OSError as error:
        print(-error.errno, flush=True)
"""


@pytest.fixture
def syncing(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that syncs when told; its answer: seconds, or minus the error's number."""
    command = [sys.executable, "-IS", "-c", SYNCS, str(tmp_path / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


def sync(process: subprocess.Popen[str]) -> float:
    print(file=process.stdin, flush=True)
    return float(process.stdout.readline())


def test_one_sync_fails(syncing: subprocess.Popen[str]):
    """fsyncgate: the next one says EIO, and the one after it claims that all is well."""
    assert sync(syncing) >= 0
    injection = Injection(syncing.pid, fails_next=True)
    assert sync(syncing) == -errno.EIO
    assert sync(syncing) >= 0
    injection.close()
    assert sync(syncing) >= 0


def test_each_sync_takes_long(syncing: subprocess.Popen[str]):
    """At least so long; after it, one is not forever as slow."""
    injection = Injection(syncing.pid, delay_s=0.2)
    assert sync(syncing) >= 0.2
    assert sync(syncing) >= 0.2
    injection.close()
    until(lambda: sync(syncing) < 0.2)


def test_a_process_that_is_gone_cannot_be_changed(syncing: subprocess.Popen[str]):
    """The error says what strace said."""
    syncing.kill()
    syncing.wait()
    with pytest.raises(WorldError, match="No such process"):
        Injection(syncing.pid, fails_next=True)


OWNER = """
import sys, pathlib
from minikafka.chaos.machine import Mounts
from minikafka.chaos.netns import Lan, Passage
from minikafka.chaos.machine import Filter
folder = pathlib.Path(sys.argv[1])
with Mounts() as mounts, Lan(["n1", "n2"]) as lan:
    mounts.make(folder / "disk.img", folder / "disk", 64)
    lan.set_filters([(Passage("n1", "n2"), Filter(delay_s=1.0))])
    print(mounts.seen_from_here(folder), flush=True)
    sys.stdin.read()
"""


def test_an_owner_that_is_killed_leaves_no_mount_and_no_process(tmp_path: Path):
    """Issue 7: always unmounted at the end, also after kill -9, for the kernel does it."""
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        holder = int(Path(owner.stdout.readline().strip()).parts[2])
        image = str(tmp_path / "disk.img")
        assert image in run("losetup", "--all")
        children = [each.pid for each in psutil.Process(owner.pid).children()]
        assert holder in children
        assert len(children) == 2
        owner.kill()
    until(lambda: not any(map(psutil.pid_exists, children)))
    until(lambda: image not in run("losetup", "--all"))


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.02)
