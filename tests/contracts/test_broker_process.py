"""A broker's process as its parent sees it: what it holds open, and what it says of its end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from minikafka.world.cluster_files import BrokerFiles, Ports, prepare
from minikafka.world.processes import LAST_WORDS_SIZE, BrokerProcess, ProcessCluster


@pytest.fixture
def files(tmp_path: Path) -> BrokerFiles:
    ports = Ports()
    try:
        return prepare(tmp_path, ports, brokers=1, config={}).brokers[0]
    finally:
        ports.release()


def open_pipes() -> int:
    """Pipes that this process holds."""
    names = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return sum(name.startswith("pipe:") for name in names)


async def test_a_broker_that_dies_again_and_again_costs_no_descriptors(files: BrokerFiles):
    """Each life had a pipe of its own, and nobody closed that of a life whose end was not waited for."""
    broker = BrokerProcess(files, launcher=("-c", "pass"))
    counts = []
    for _ in range(8):
        await broker.start()
        await broker._process.wait()  # type: ignore[union-attr]  # not broker.wait(), which nobody calls for it
        counts.append(open_pipes())
    await broker.wait()
    assert counts[-1] <= counts[0] + 1  # the pipe of its standard output may still be closing


async def test_a_broker_that_cannot_be_started_leaves_no_pipe(files: BrokerFiles):
    """Its folder is gone, say."""
    before = open_pipes()
    broker = BrokerProcess(files, prefix=("/no/such/command",))
    with pytest.raises(FileNotFoundError):
        await broker.start()
    assert open_pipes() == before


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
