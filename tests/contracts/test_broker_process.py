"""A broker's process as its parent sees it: what it holds open, and what it says of its end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from minikafka.hosting.cluster_files import BrokerFiles, Ports, prepare
from minikafka.hosting.processes import LAST_WORDS_SIZE, BrokerDied, BrokerProcess, ProcessCluster
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
