"""What only the operating system does to files: short writes, full disks, failing devices, locks of other processes."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import resource
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from minikafka.errors import DiskFailed, DiskFull
from minikafka.hosting.cluster_files import replace_file
from minikafka.types import METADATA_PARTITION
from minikafka.world import instruments
from minikafka.world.instruments import MachineFaults
from minikafka.world.os_disk import FILE_THREADS, OsDisk

PATIENCE_S = 120.0


@pytest.fixture
def disk(tmp_path: Path):
    opened = OsDisk(str(tmp_path / "data"))
    yield opened
    opened.close()


def test_a_file_size_limit_is_a_full_disk_and_leaves_the_file_as_it_was(disk: OsDisk):
    """EFBIG by the kernel itself: a real write that ends in the middle is cut off again."""
    file = disk.open("log")
    file.append([b"a" * 1000])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
    try:
        with pytest.raises(DiskFull):
            file.append([b"b" * 400, b"c" * 400])
        with pytest.raises(DiskFull):
            disk.replace_file("checkpoint", b"x" * 3000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (file.size(), file.read(0, 9999)) == (1000, b"a" * 1000)
    assert Path(disk._root, "log").stat().st_size == 1000
    assert disk.names("") == ["log"], "no temporary file stays"
    file.append([b"b"])
    assert file.size() == 1001
    file.close()


@pytest.mark.parametrize(
    "number,error",
    [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, DiskFailed), (errno.EROFS, DiskFailed)],
)
def test_write_errors_tell_full_from_failed(disk: OsDisk, monkeypatch: pytest.MonkeyPatch, number: int, error: type):
    """DiskFull: go on without; DiskFailed: the log must stop."""
    file = disk.open("log")
    file.append([b"abc"])
    real = os.writev
    calls = []

    def writev(descriptor: int, buffers) -> int:
        calls.append(len(buffers))
        if len(calls) == 1:
            return real(descriptor, [bytes(buffers[0])[:2]])
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "writev", writev)
    with pytest.raises(error):
        file.append([b"defg", b"hij"])
    monkeypatch.undo()
    assert len(calls) == 2
    assert (file.size(), file.read(0, 99)) == (3, b"abc")
    file.close()


def test_a_file_whose_time_cannot_be_read_is_a_failed_disk(disk: OsDisk, monkeypatch: pytest.MonkeyPatch):
    """Retention asks for it where records have no timestamps: another error would pass the guard of the replica."""
    disk.open("log").close()

    def stat(_path: object, **_options: object) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched, pytest.raises(DiskFailed):
        patched.setattr(os, "stat", stat)
        disk.modified_ms("log")
    with pytest.raises(FileNotFoundError):
        disk.modified_ms("other")


def test_short_writes_are_continued(disk: OsDisk, monkeypatch: pytest.MonkeyPatch):
    """writev may write less than it was given, also ending inside a buffer."""
    file = disk.open("log")
    real = os.writev

    def few(descriptor: int, buffers) -> int:
        return real(descriptor, [b"".join(bytes(buffer) for buffer in buffers)[:3]])

    monkeypatch.setattr(os, "writev", few)
    file.append([b"ab", b"", b"cdefg", memoryview(b"hijkl")])
    assert file.read(0, 99) == b"abcdefghijkl"
    file.close()


async def test_a_failing_sync_is_a_failed_disk(disk: OsDisk, monkeypatch: pytest.MonkeyPatch):
    """After a failed fsync the pages may be gone: the broker stops and recovers from disk."""
    file = disk.open("log")

    def broken(_: int) -> None:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(DiskFailed):
        await file.sync()
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(DiskFailed):
        await disk.sync_folder("")
    with pytest.raises(DiskFailed):
        await disk.publish("quorum-state", b"x")
    assert disk.names("") == ["log"]
    file.close()


async def test_a_slow_data_disk_never_delays_the_quorums_log(disk: OsDisk, monkeypatch: pytest.MonkeyPatch):
    """A thread for the quorum log, another for the data directory."""
    stuck = threading.Event()
    data, quorum = disk.open("orders-0/log"), disk.open("__cluster_metadata-0/log")
    real = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        if descriptor == data._descriptor:
            stuck.wait(PATIENCE_S)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    slow = asyncio.ensure_future(data.sync())
    await quorum.sync()
    await disk.publish("__cluster_metadata-0/quorum-state", b"vote")
    assert not slow.done()
    stuck.set()
    await slow
    data.close()
    quorum.close()


async def test_a_cancelled_sync_keeps_its_descriptor_until_the_thread_is_done(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
):
    """Else the thread would sync whatever file got the number next."""
    stuck, started = threading.Event(), threading.Event()
    file = disk.open("log")
    descriptor = file._descriptor
    real = os.fdatasync

    def fdatasync(number: int) -> None:
        started.set()
        stuck.wait(PATIENCE_S)
        real(number)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    sync = asyncio.ensure_future(file.sync())
    assert await asyncio.to_thread(started.wait, PATIENCE_S)
    sync.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sync
    file.close()
    os.fstat(descriptor)
    stuck.set()
    for _ in range(1_000):
        try:
            os.fstat(descriptor)
        except OSError:
            break
        await asyncio.sleep(0.01)
    else:
        pytest.fail("the descriptor stays open")


async def test_files_are_synced_at_once_and_those_of_the_quorum_alone(disk: OsDisk, monkeypatch: pytest.MonkeyPatch):
    """Four syncs of partitions wait for the disk together, a fifth and a second one of the quorum's log do not begin."""
    under_way: list[str] = []
    may_go_on = threading.Event()

    def fdatasync(_: int) -> None:
        under_way.append(threading.current_thread().name.rpartition("_")[0])
        may_go_on.wait(PATIENCE_S)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    files = [disk.open(f"t-{number}/log") for number in range(FILE_THREADS + 1)]
    files += [disk.open(f"{METADATA_PARTITION}/{name}") for name in ("log", "index")]
    syncs = [asyncio.ensure_future(file.sync()) for file in files]
    for _ in range(1_000):
        if len(under_way) == FILE_THREADS + 1:
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert sorted(under_way) == ["sync-files"] * FILE_THREADS + ["sync-quorum"]
    may_go_on.set()
    await asyncio.gather(*syncs)
    assert len(under_way) == len(files)


async def test_publish_is_written_and_synced_before_it_is_renamed(disk: OsDisk, monkeypatch: pytest.MonkeyPatch):
    """KAFKA-16541: a rename without fsync shows an empty file after a power cut."""
    order: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        kind = "folder" if Path(f"/proc/self/fd/{descriptor}").is_dir() else "file"
        order.append(f"fsync {kind}")
        real_fsync(descriptor)

    def replace(source: str, target: str) -> None:
        order.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    await disk.publish("checkpoint", b"1")
    assert order == ["fsync file", "rename", "fsync folder"]
    order.clear()
    await disk.publish("new/deep/checkpoint", b"1")
    assert order == ["fsync file", "rename", "fsync folder", "fsync folder", "fsync folder"], "each new folder's parent"


async def test_a_file_that_is_being_written_when_the_disk_is_fenced_does_not_get_its_name(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The next incarnation may have read the file by then."""
    await disk.publish("checkpoint", b"1")
    monkeypatch.setattr(os, "fsync", lambda _: disk.fence())
    with pytest.raises(DiskFailed, match="this incarnation is dead"):
        await disk.publish("checkpoint", b"2")
    assert (tmp_path / "data" / "checkpoint").read_bytes() == b"1"


def test_another_process_holds_the_lock(tmp_path: Path):
    """Two brokers on one data directory; the kernel frees the lock when a process ends, however it ends."""
    code = (
        "import sys; from minikafka.world.os_disk import OsDisk\n"
        "OsDisk(sys.argv[1]).lock(); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        disk = OsDisk(str(tmp_path))
        with pytest.raises(DiskFailed, match="in use"):
            disk.lock()
        process.kill()
        process.wait(PATIENCE_S)
        disk.lock()
        disk.close()


def open_below(folder: Path) -> int:
    """How many files below ``folder`` this process has open. Earlier tests' other descriptors close at any time."""
    count = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists the others
            count += str(each.readlink()).startswith(f"{folder}/")
    return count


async def test_a_fenced_disk_leaves_no_descriptor_open(disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A killed broker of a cluster in this process closes nothing itself: each kill left one open for each partition."""
    disk.lock()
    disk.open("closed").close()
    await disk.open("data/log").sync()  # its thread is there
    for other in list(disk._files):
        other.close()
    files = [disk.open(f"o-{number}/log") for number in range(5)]
    syncing, going_on = threading.Event(), threading.Event()

    def held(_: int) -> None:
        syncing.set()
        going_on.wait()

    monkeypatch.setattr(os, "fdatasync", held)
    sync = asyncio.ensure_future(files[0].sync())
    assert await asyncio.to_thread(syncing.wait, PATIENCE_S)
    disk.fence()
    async with asyncio.timeout(PATIENCE_S):  # the lock is given back, and one file is still being synced
        while open_below(tmp_path) != 1:  # noqa: ASYNC110 - the thread of the first sync may hold its file a moment longer
            await asyncio.sleep(0.01)
    going_on.set()
    await sync
    while open_below(tmp_path):  # noqa: ASYNC110 - another thread's
        await asyncio.sleep(0.01)
    with pytest.raises(DiskFailed, match="closed"):
        files[1].append([b"x"])


@pytest.mark.parametrize(
    ("call", "name", "number"),
    [("rmdir", "orders-0.abc-delete", errno.ENOTEMPTY), ("unlink", ".nfs01", errno.EBUSY)],
)
def test_a_removed_folder_may_stay_as_long_as_a_reader_has_a_file_of_it_open(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch, call: str, name: str, number: int
):
    """On FUSE and NFS such a file gets another name, and the broker stopped when a topic was deleted under a slow reader."""
    for each in (".nfs01", "1.log", "2.log"):
        disk.open(f"orders-0.abc-delete/{each}").close()
    real = getattr(os, call)

    def refusing(path: str, **options: int) -> None:
        if Path(path).name == name:
            raise OSError(number, os.strerror(number))
        real(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refusing)
        disk.remove("orders-0.abc-delete")
        assert not {"1.log", "2.log"} & set(disk.names("orders-0.abc-delete"))
    disk.remove("orders-0.abc-delete")
    assert not disk.exists("orders-0.abc-delete")


@pytest.mark.parametrize("changes_case", [False, True])
def test_a_file_system_that_ignores_case_is_recognized(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch, *, changes_case: bool
):
    """Names come back as they were made (exFAT, APFS), or in lower case (lowntfs-3g with ignore_case)."""
    exists, listdir = os.path.exists, os.listdir

    def found(path: str) -> bool:
        return exists(path) or Path(path).name.lower() in map(str.lower, listdir(Path(path).parent))

    monkeypatch.setattr(os.path, "exists", found)
    if changes_case:
        monkeypatch.setattr(os, "listdir", lambda folder: [name.lower() for name in listdir(folder)])
        with pytest.raises(DiskFailed, match=r"changes the case of names.*use another mount option"):
            disk.ignores_case()
    else:
        assert disk.ignores_case() is True
    assert disk.names("") == []


async def test_a_file_system_that_syncs_no_folders_is_used(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Some network shares answer EINVAL: no broker started there. Each other error is a failed disk."""
    disk.open("orders-0/log").close()
    numbers = [errno.EINVAL, errno.EIO]

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").is_dir():
            raise OSError(numbers[0], os.strerror(numbers[0]))

    monkeypatch.setattr(os, "fsync", fsync)
    await disk.sync_folder("orders-0")
    await disk.publish("checkpoint", b"1")
    assert disk.read_file("checkpoint") == b"1"
    replace_file(tmp_path / "cluster" / "broker.properties", b"node.id=1")
    numbers.pop(0)
    with pytest.raises(DiskFailed):
        await disk.sync_folder("orders-0")


def test_a_directory_that_cannot_be_used_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A file in its place, and a file system without locks, which was taken for another broker's lock."""
    (tmp_path / "file").touch()
    with pytest.raises(
        DiskFailed, match=f"data directory {tmp_path}/file cannot be used: .*; log.dirs must name a folder"
    ):
        OsDisk(str(tmp_path / "file"))
    disk = OsDisk(str(tmp_path / "data"))

    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(DiskFailed, match=r"cannot be locked: No locks available; log\.dirs must be on a file system"):
        disk.lock()


def test_a_first_start_on_a_full_disk_says_that_it_is_full(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Neither other rights nor another folder are what is missing."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "makedirs", full)
    with pytest.raises(DiskFull, match=f"{tmp_path}/full: No space left on device"):
        OsDisk(str(tmp_path / "full"))
    monkeypatch.setattr(os, "open", full)
    with pytest.raises(DiskFull):
        disk.lock()


def test_the_lock_file_is_not_among_the_names(disk: OsDisk):
    """Recovery must not take it for a topic."""
    disk.lock()
    assert disk.names("") == []


async def test_a_directory_that_is_thrown_away_is_written_and_not_synced(tmp_path: Path, monkeypatch):
    """A test's cluster: the files are as ever, for a killed broker to find again, and nobody waits for a disk."""
    synced: list[int] = []
    before = set(threading.enumerate())
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    disk = OsDisk(str(tmp_path / "data"), syncs=False)
    file = disk.open("orders-0/log")
    file.append([b"tea"])
    await file.sync()
    await disk.publish("checkpoint", b"1")
    await disk.sync_folder("orders-0")
    disk.fence()
    with pytest.raises(DiskFailed):
        await file.sync()
    with pytest.raises(DiskFailed):
        await disk.publish("checkpoint", b"2")
    assert synced == []
    assert not [each for each in set(threading.enumerate()) - before if each.name.startswith("sync-")]
    again = OsDisk(str(tmp_path / "data"), syncs=False)
    assert (again.read_file("checkpoint"), again.open("orders-0/log").read(0, 9)) == (b"1", b"tea")
    again.close()


async def test_what_tests_do_to_a_machine_is_what_a_bad_disk_does(tmp_path: Path):
    """S38: /v1/machine. A full disk refuses and leaves the file as it was; a failed sync is DiskFailed; both end."""
    faults = MachineFaults()
    disk = OsDisk(str(tmp_path / "data"), faults=faults)
    file = disk.open("orders-0/log")
    file.append([b"tea"])
    faults.disk_full = True
    with pytest.raises(DiskFull):
        file.append([b"milk"])
    with pytest.raises(DiskFull):
        await disk.publish("checkpoint", b"1")
    with pytest.raises(DiskFull):
        disk.replace_file("checkpoint", b"1")
    assert (file.size(), disk.exists("checkpoint")) == (3, False)
    faults.disk_full = False
    file.append([b"milk"])
    faults.failing_syncs = 1
    with pytest.raises(DiskFailed):
        await file.sync()
    await file.sync()
    assert file.read(0, 9) == b"teamilk"
    assert faults.struck == 4
    disk.close()


async def test_a_slow_disk_does_not_hold_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A sync waits on its thread: heartbeats and votes go on meanwhile."""
    asked, may_go_on = threading.Event(), threading.Event()
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        asked.set()
        may_go_on.wait(PATIENCE_S)

    monkeypatch.setattr(instruments.time, "sleep", sleep)
    disk = OsDisk(str(tmp_path / "data"), faults=MachineFaults(sync_delay_ms=60.0))
    file = disk.open("log")
    file.append([b"tea"])
    syncing = asyncio.ensure_future(file.sync())
    assert await asyncio.to_thread(asked.wait, PATIENCE_S)
    assert not syncing.done()
    may_go_on.set()
    await syncing
    assert waits == [0.06]
    disk.close()


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o600, 0o700), (0o640, 0o750), (0o644, 0o755)])
async def test_new_files_and_folders_have_the_permissions_of_the_setting(
    tmp_path: Path, file_mode: int, folder_mode: int
):
    """mk.file.mode: by default only the broker's user reads records. What exists keeps its permissions."""
    root = tmp_path / "data"
    before = os.umask(0o022)
    try:
        disk = OsDisk(str(root), file_mode=file_mode)
        disk.lock()
        disk.open("orders-0/0.log").close()
        disk.replace_file("orders-0/0.index", b"x")
        await disk.publish("meta.properties", b"x")
        disk.close()
    finally:
        os.umask(before)
    found = {each: each.stat().st_mode & 0o777 for each in (root, *root.rglob("*"))}
    assert {mode for each, mode in found.items() if each.is_file()} == {file_mode}
    assert {mode for each, mode in found.items() if each.is_dir()} == {folder_mode}
    assert len(found) == 6
