"""What minikafka asks of its system macOS has too: by its types, and by a Python that has only what one on macOS has.

No Mac runs these tests. Before them a broker there ended with its first record: macOS has no fdatasync.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from minikafka.world.system import is_running

pytestmark = [pytest.mark.e2e]

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0

MACOS = {"PYTHONPATH": str(ROOT / "tests/e2e/macos"), "MACOS_BEGINS": "1"}

LINUX_ONLY = {"minikafka/chaos/machine.py", "minikafka/chaos/packet_delay.py"}
"""Network namespaces and loop disks of `chaos run --target netns`, which says what it needs."""

PARTITIONS = 100
"""Of three replicas: more descriptors than the 256 that a terminal of macOS gives."""


@pytest.mark.slow
def test_types_of_macos(tmp_path: Path):
    """typeshed knows which names of os, fcntl, socket and signal macOS has: mypy finds each that it has not."""
    command = [sys.executable, "-m", "mypy", "--platform=darwin", "--no-warn-unreachable", f"--cache-dir={tmp_path}"]
    found = subprocess.run([*command, "minikafka"], cwd=ROOT, capture_output=True, text=True, check=False)
    errors = [line for line in found.stdout.splitlines() if ": error: " in line]
    assert {line.partition(":")[0] for line in errors} == LINUX_ONLY, found.stdout + found.stderr


@pytest.fixture(autouse=True)
def temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of ports stay where temporary files are."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def on_a_mac() -> dict[str, str]:
    return {**os.environ, **MACOS}


def on_macos(*command: str, given: str = "") -> str:
    """The output of a command of minikafka in a Python as on macOS."""
    found = subprocess.run(
        [sys.executable, "-m", "minikafka", *command],
        input=given, capture_output=True, text=True, env=on_a_mac(), timeout=120, check=False,
    )  # fmt: skip
    assert found.returncode == 0, (command, found.stdout, found.stderr)
    return found.stdout


def on_terminal(*command: str) -> str:
    """What a command writes to a terminal, which poll(2) does not know on macOS."""
    ours, theirs = pty.openpty()
    try:
        found = subprocess.run(
            [sys.executable, "-m", "minikafka", *command],
            stdin=subprocess.DEVNULL, stdout=theirs, env=on_a_mac(), timeout=120, check=False,
        )  # fmt: skip
        assert found.returncode == 0
    finally:
        os.close(theirs)
    with os.fdopen(ours, "rb", buffering=0) as terminal:
        return terminal.read(1000).decode()


def with_reader_that_leaves(*command: str) -> int:
    """The exit code of a command that waits for more records after the first line's reader has left."""
    with subprocess.Popen(
        [sys.executable, "-m", "minikafka", *command], stdout=subprocess.PIPE, env=on_a_mac()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"order ")
        process.stdout.close()
        try:
            return process.wait(PATIENCE_S)
        finally:
            process.kill()


@contextmanager
def up(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """``minikafka up`` as on macOS: its bootstrap servers, and the pids of its brokers."""
    command = [sys.executable, "-m", "minikafka", "up", "--brokers", "3", "--base-port", "0", "--data-dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=on_a_mac()) as process:
        assert process.stdout is not None
        lines: list[dict[str, Any]] = []
        try:
            for line in process.stdout:
                lines.append(json.loads(line))
                if "ready" in lines[-1]:
                    break
            assert lines, "the cluster has ended without a word"
            assert "ready" in lines[-1], lines
            yield lines[-1]["bootstrap_servers"], [each["pid"] for each in lines[:-1]]
        finally:
            process.terminate()
            rest = process.stdout.read()
    assert process.returncode == 0, rest


def until_ended(pids: list[int]) -> None:
    """A process that is killed ends when its last sync does."""
    deadline = monotonic() + PATIENCE_S
    while any(map(is_running, pids)):
        assert monotonic() < deadline
        sleep(0.05)


@pytest.mark.slow
def test_walk_through_macos(tmp_path: Path):
    """Brokers start, sync their files, hold more of them open than a terminal allows, and one is found and killed."""
    with up(tmp_path / "data") as (servers, pids):
        cluster = ("--bootstrap-server", servers)
        on_macos("topics", "create", "orders", "--partitions", str(PARTITIONS), "--replication-factor", "3", *cluster)
        lines = "".join(f"order {number}\n" for number in range(PARTITIONS))
        sent = json.loads(on_macos("produce", "orders", *cluster, given=lines))
        assert (sent["acknowledged"], sent["unknown"]) == (PARTITIONS, 0)
        assert on_terminal("consume", "orders", "--from-beginning", "--max-messages", "1", *cluster).startswith(
            "order "
        )
        assert with_reader_that_leaves("consume", "orders", "--from-beginning", *cluster) == 0
        on_macos("chaos", "kill", "--pid", str(pids[0]))
        until_ended(pids[:1])
        read = on_macos("consume", "orders", "--from-beginning", "--max-messages", str(PARTITIONS), *cluster)
        assert sorted(read.splitlines()) == sorted(lines.splitlines())
    until_ended(pids)


LOCAL = f"""
import os, sys
from minikafka import LocalCluster
from minikafka.world.system import open_descriptors

def files():
    return [path for _, path in open_descriptors() if path is not None and path.is_relative_to(folder)]

assert sys.platform == "darwin"
with LocalCluster(brokers=3) as cluster:
    folder = cluster.data_dir.resolve()
    cluster.sync.create_topic("orders", partitions={PARTITIONS}, replicas=3)
    cluster.sync.produce("orders", *(b"%d" % number for number in range({PARTITIONS})))
    assert len(files()) > 256
    child = os.fork()
    if child == 0:
        os._exit(bool(files()))  # it has given up those of its parent's brokers
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    cluster.kill(1)
    assert len(cluster.sync.consume("orders", {PARTITIONS})) == {PARTITIONS}
"""


def test_local_cluster_on_macos():
    """Three brokers in a test's own process, which may have 256 files open at its start, outlive a killed leader."""
    found = subprocess.run(
        [sys.executable, "-c", LOCAL],
        capture_output=True,
        text=True,
        env=on_a_mac(),
        timeout=120,
        check=False,
    )
    assert found.returncode == 0, found.stderr
