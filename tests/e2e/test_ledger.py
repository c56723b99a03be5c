"""Producers that are killed, and the audit of their ledgers: `Producer(ledger=...)` in real processes (issue 4)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minikafka import LocalCluster
from minikafka.check import read_history

pytestmark = pytest.mark.e2e

PROGRAM = """
import asyncio, itertools, os, sys
from minikafka import Producer

async def main():
    async with Producer(bootstrap_servers=sys.argv[1], ledger=sys.argv[2], linger_ms=1) as producer:
        for number in itertools.count():
            await producer.send("orders", b"%d-%d" % (os.getpid(), number), b"%d" % (number % 7))
            await producer.send_many("orders", [b"%d-%d-%d" % (os.getpid(), number, each) for each in range(3)])
            await asyncio.sleep(0.001)

asyncio.run(main())
"""


def kill_in_mid_stream(bootstrap: str, ledger: Path) -> None:
    """Run the program until it has some acknowledgements more than before, then kill -9."""
    before = acknowledged(ledger)
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, bootstrap, str(ledger)])
    try:
        deadline = time.monotonic() + 180
        while acknowledged(ledger) < before + 200:
            assert process.poll() is None, "the producer ended by itself"
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()


def acknowledged(ledger: Path) -> int:
    return ledger.read_bytes().count(b'{"type":"ok"') if ledger.exists() else 0


def minikafka(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "minikafka", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)


def test_what_a_killed_producer_was_told_is_held_against_the_log(tmp_path):
    """Must be shown: kill -9 of the producer, twice on one ledger, and a consumer's ledger: the audit finds nothing."""
    ledger, reads = tmp_path / "orders.jsonl", tmp_path / "reads.jsonl"
    with LocalCluster(brokers=1) as cluster:
        done = minikafka("topics", "create", "orders", "-b", cluster.bootstrap, "--partitions", "2")
        assert done.returncode == 0, done.stderr
        for _ in range(2):
            kill_in_mid_stream(cluster.bootstrap, ledger)
        told = [
            "consume",
            "orders",
            "-b",
            cluster.bootstrap,
            "--from-beginning",
            "--exit-at-end",
            "--ledger",
            str(reads),
        ]
        assert minikafka(*told).returncode == 0
        audit = minikafka("audit", str(ledger), str(reads), "-b", cluster.bootstrap, "-o", "json")
        assert audit.returncode == 0, audit.stdout + audit.stderr
        verdict = json.loads(audit.stdout)
        assert verdict["ok"], audit.stdout
        assert verdict["counts"]["acknowledged"] >= 400
        with ledger.open("rb") as lines:
            sends = sum(each.type == "send" for each in read_history(lines))
        assert verdict["counts"]["sends"] == sends
