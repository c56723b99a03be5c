"""A broker's process as its parent sees it: what it holds open, and what it says of its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from minikafka.cli.running import Signals
from minikafka.cli.up import JsonReport, _up
from minikafka.errors import BrokerNotAvailable, WorldError
from minikafka.hosting.cluster_files import BrokerFiles, Ports, prepare
from minikafka.hosting.process import Parent, StartBroker, serve_child
from minikafka.hosting.processes import (
    LAST_WORDS_SIZE,
    STOP_TIMEOUT_S,
    BrokerDied,
    BrokerProcess,
    ProcessCluster,
    stop_all,
)
from tests.tidy.sources import ROOT


@pytest.fixture
def files(tmp_path: Path) -> BrokerFiles:
    ports = Ports()
    try:
        return prepare(tmp_path, ports, brokers=1, config={}).brokers[0]
    finally:
        ports.release()


def open_pipes() -> set[str]:
    """Pipes and sockets that this process holds, by inode."""
    names = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists the others
            names.add(str(each.readlink()))
    return {name for name in names if name.startswith(("pipe:", "socket:"))}


async def closed_but(count: int, before: set[str]) -> None:
    """Return when at most ``count`` pipes are open that were not ``before``. The loop closes a pipe in one of its next
    turns; those of earlier tests close at any time.
    """
    async with asyncio.timeout(60):
        while len(open_pipes() - before) > count:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


ALONE = """
import asyncio, sys
from pathlib import Path
from tests.contracts.test_broker_process import brokers_end_by_themselves
asyncio.run(brokers_end_by_themselves(Path(sys.argv[1])))
"""


def test_brokers_that_ended_by_themselves_leave_no_pipe_open(tmp_path: Path) -> None:
    """In a process of its own: clients that earlier tests have left connect again, with new sockets."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


async def brokers_end_by_themselves(tmp_path: Path) -> None:
    """One was left for each that died and was started again, and for each that was dead at the end."""
    cluster = ProcessCluster(brokers=1, data_dir=tmp_path, launcher=("-c", "raise SystemExit(3)"))
    broker = cluster.brokers[1]
    before = open_pipes()
    for _ in range(3):
        await broker.start()
        with pytest.raises(BrokerDied, match="exit code 3"):
            await broker.wait_ready(60)
        await closed_but(1, before)  # the lifeline of the last one
    await cluster.stop()
    assert broker._lifeline is None
    await closed_but(0, before)


async def test_a_broker_that_cannot_be_started_leaves_no_pipe(files: BrokerFiles):
    """Its folder is gone, say."""
    before = open_pipes()
    broker = BrokerProcess(files, prefix=("/no/such/command",))
    with pytest.raises(FileNotFoundError):
        await broker.start()
    await closed_but(0, before)


@asynccontextmanager
async def connected(start: StartBroker) -> AsyncIterator[tuple[Parent, asyncio.Task[None]]]:
    """A child's end of the socket, and what ends with the parent's end."""
    ours, theirs = socket.socketpair()
    serving = asyncio.ensure_future(serve_child(ours, start))
    parent = await Parent.at(theirs.detach())
    watching = asyncio.ensure_future(parent.until_gone())
    yield parent, watching
    serving.cancel()
    await watching
    parent._writer.close()
    await parent._writer.wait_closed()


async def test_a_broker_that_asked_for_another_one_survives_that_it_cannot_be_started():
    """The other one's folder was removed: the end of the socket would say that the parent is gone."""

    async def start(node: int) -> None:
        raise FileNotFoundError(2, "No such file or directory", f"broker-{node}/broker.log")

    async with asyncio.timeout(60), connected(start) as (parent, watching):
        for node in (2, 3):
            with pytest.raises(BrokerNotAvailable, match=f"broker {node} was not started: .*No such file"):
                await parent.start(node)
        assert not watching.done()


async def test_a_start_that_is_given_up_does_not_leave_its_answer_to_the_next():
    """A client closed its connection meanwhile."""
    may_end = asyncio.Event()

    async def start(node: int) -> None:
        if node == 2:
            await may_end.wait()
            raise BrokerNotAvailable("it has no disk")

    async with asyncio.timeout(60), connected(start) as (parent, _):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await parent.start(2)
        next_one = asyncio.ensure_future(parent.start(3))
        await asyncio.sleep(0)
        may_end.set()
        await next_one


async def something_unread(end: socket.socket) -> None:
    """Return when something has come that nobody reads."""
    came, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(end, came.set)
    await came.wait()
    loop.remove_reader(end)


async def test_a_parent_that_dies_before_it_has_read_a_request_is_gone():
    """The kernel resets such a connection: the broker took that for no end, and outlived its parent for ever."""
    ours, theirs = socket.socketpair()
    parent = await Parent.at(theirs.detach())
    starting = [asyncio.ensure_future(parent.start(node)) for node in (2, 3)]
    async with asyncio.timeout(60):
        await something_unread(ours)
        ours.close()
        await parent.until_gone()
        for each in starting:
            with pytest.raises(BrokerNotAvailable, match="the program that started this broker has ended"):
                await each
    parent._writer.close()


async def test_a_child_that_is_killed_before_it_has_read_an_answer_is_no_error():
    """`up` printed a traceback of the event loop."""

    async def start(_node: int) -> None:
        return

    ours, theirs = socket.socketpair()
    serving = asyncio.ensure_future(serve_child(ours, start))
    theirs.send(b'{"start": 2}\n')
    async with asyncio.timeout(60):
        await something_unread(theirs)
        theirs.close()
        await serving


STUBBORN = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: None)
print('{"broker": 1, "pid": 1, "url": ""}', flush=True)
lifeline = int(sys.argv[sys.argv.index("--parent-fd") + 1])
while os.read(lifeline, 1):
    pass
"""


async def test_the_last_broker_does_not_wait_for_a_controller(files: BrokerFiles):
    """Two SIGTERM at once are one for the kernel: it waited for a controlled shutdown that nobody could grant."""
    broker = BrokerProcess(files, launcher=("-c", STUBBORN))
    dead = BrokerProcess(files)
    await broker.start()
    process = broker._process
    assert process is not None
    assert process.stdout is not None
    await process.stdout.readline()
    async with asyncio.timeout(STOP_TIMEOUT_S - 5):
        await stop_all([broker, dead])
    assert broker.returncode == 0


async def test_a_broker_that_cannot_be_ended_is_reported_once_the_others_have_ended():
    """Its error was lost: a container that the engine does not stop."""

    class Member:
        is_running = True

        def __init__(self, error: Exception | None) -> None:
            self.error = error
            self.has_ended = False

        async def terminate(self) -> int:
            if self.error is not None:
                raise self.error
            for _ in range(10):
                await asyncio.sleep(0)
            self.has_ended = True
            return 0

        async def urge(self) -> None:
            pass

    members = [Member(WorldError("the engine refuses")), Member(None), Member(None)]
    with pytest.raises(WorldError, match="the engine refuses"):
        await stop_all(members)
    assert [each.has_ended for each in members] == [False, True, True]


async def test_a_frozen_broker_sees_that_it_is_to_stop(files: BrokerFiles):
    """SIGTERM waits for SIGCONT: the broker was killed when its time was over."""
    broker = BrokerProcess(files, launcher=("-c", "print('{}', flush=True); import time; time.sleep(600)"))
    await broker.start()
    assert broker._process is not None
    assert broker._process.stdout is not None
    await broker._process.stdout.readline()
    await broker.freeze()
    assert await broker.terminate() == -signal.SIGTERM


async def test_the_end_of_a_process_does_not_end_the_one_that_is_started_after_it(files: BrokerFiles):
    """A watcher hears of the end while the next process is being started, which then seemed to have no parent."""
    ended = asyncio.Event()

    class Former:
        returncode = 3

        async def wait(self) -> int:
            await ended.wait()
            return self.returncode

    broker = BrokerProcess(files, launcher=("-c", STUBBORN))
    broker._process = cast("Any", Former())
    watching = asyncio.ensure_future(broker.wait())
    await asyncio.sleep(0)
    ended.set()
    await broker.start()
    assert await watching == 3
    assert broker._lifeline is not None
    assert not broker._lifeline.cancelled()
    broker.let_go()
    assert await broker.wait() == 0


async def test_a_second_signal_to_up_makes_brokers_leave_at_once(tmp_path: Path):
    """It was ignored: the person at the terminal waited for controlled shutdowns that took their whole time."""
    cluster = ProcessCluster(1, data_dir=tmp_path, launcher=("-c", STUBBORN))
    signals = Signals()

    class Impatient(JsonReport):
        def all_ready(self) -> None:
            signals.ask()
            asyncio.get_running_loop().call_later(0.1, signals.ask)

    async with asyncio.timeout(STOP_TIMEOUT_S - 5):
        await _up(cluster, Impatient(cluster), signals, opens=False)
    assert cluster.brokers[1].returncode == 0


async def test_up_ends_with_its_last_broker_also_when_nobody_reads_the_report(tmp_path: Path):
    """`minikafka up | head -2`: the report of the death failed, and `up` stayed without a broker."""
    cluster = ProcessCluster(1, data_dir=tmp_path, launcher=("-c", 'print(\'{"broker": 1, "pid": 1, "url": ""}\')'))

    class Unread(JsonReport):
        def died(self, broker: BrokerProcess) -> None:
            raise BrokenPipeError

    async with asyncio.timeout(20) as limit:
        with pytest.raises(BrokenPipeError):
            await _up(cluster, Unread(cluster), Signals(), opens=False)
    assert not limit.expired()


def test_a_frozen_broker_ends_with_its_parent(tmp_path: Path):
    """It cannot see that its parent was killed, unless the kernel wakes it."""
    code = (
        "import asyncio, signal, sys; from minikafka.hosting.processes import ProcessCluster\n"
        "async def main():\n"
        "    cluster = ProcessCluster(1, data_dir=sys.argv[1])\n"
        "    await cluster.start()\n"
        "    cluster.brokers[1].send_signal(signal.SIGSTOP)\n"
        "    print(cluster.brokers[1].pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT) as parent:
        assert parent.stdout is not None
        frozen = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    try:
        frozen.wait(60)
    finally:
        if frozen.is_running():
            frozen.kill()


def test_files_of_a_killed_process_are_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A temporary cluster cannot clean up after kill -9 of its process."""
    code = (
        "import time; from minikafka.hosting.processes import ProcessCluster\n"
        "cluster = ProcessCluster(1)\n"
        "print(cluster.data_dir, flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment, text=True) as parent:
        assert parent.stdout is not None
        left = Path(parent.stdout.readline().strip())
        parent.kill()
    assert left.parent == tmp_path
    assert left.exists()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cluster = ProcessCluster(1)
    assert list(tmp_path.iterdir()) == [cluster.data_dir]
    cluster._clean_up()
    assert list(tmp_path.iterdir()) == []


async def test_the_last_words_are_the_last_line_of_a_long_log(files: BrokerFiles):
    """Not the whole log is read for them, however often they are asked for."""
    broker = BrokerProcess(files, launcher=("-c", "raise SystemExit(3)"))
    await broker.start()
    await broker.wait()
    files.log_path.write_text(f"{'x' * 100}\n" * LAST_WORDS_SIZE + "minikafka: the disk is full\n")
    assert broker.obituary().startswith("broker 1 ended with exit code 3, saying: minikafka: the disk is full (log: ")


async def test_temporary_files_go_when_the_stop_is_cancelled():
    """A second Ctrl-C."""
    cluster = ProcessCluster(1)
    folder = cluster.data_dir
    await cluster.brokers[1].start()
    stopping = asyncio.ensure_future(cluster.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await cluster.kill9(1)
    assert not folder.exists()
