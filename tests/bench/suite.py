"""A suite of tests as users of the pytest plugin write it: fifty tests, each with a cluster of its own, or one for all.

The whole pytest process is timed, its start and its imports too. Beside it fifty tests of which each starts one bare
aiohttp server and asks it once.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.measure import Row, in_turn
from tests.tidy.sources import ROOT

TESTS = 50

OURS = """
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_a_record(number, {fixture}, minikafka_topic):
    kafka = {fixture}.sync
    kafka.create_topic(minikafka_topic)
    kafka.produce(minikafka_topic, b"tea")
    assert [record.value for record in kafka.consume(minikafka_topic, 1)] == [b"tea"]
"""

BARE = """
import asyncio
import pytest
from tests.bench.fresh_start import bare

@pytest.mark.parametrize("number", range({count}))
def test_an_answer(number):
    asyncio.run(bare())
"""

# By module and not by entry point: what is installed here may be another tree.
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-p", "no:minikafka")
PYTEST += ("-p", "minikafka.testing.plugin", "-o", "addopts=", "-o", "filterwarnings=")


async def suite_rows(*, rounds: int) -> list[Row]:
    """Wall seconds of the two suites."""
    rows = []
    for what, fixture in (
        ("a 3-broker cluster each", "minikafka_cluster"),
        ("one shared cluster", "minikafka_shared_cluster"),
    ):
        ours = OURS.format(count=TESTS, fixture=fixture)
        pair = await in_turn(
            lambda text=ours: _seconds(text),  # type: ignore[misc]
            lambda: _seconds(BARE.format(count=TESTS)),
            rounds=rounds,
            warm_up=1,
        )
        note = "topic, record and read in each; bare: a server and a request in each"
        rows.append(
            Row(f"pytest, {TESTS} tests, {what}", "s", pair.ours, pair.bare, pair.ratio, at_least=False, note=note)
        )
    return rows


async def _seconds(text: str) -> float:
    return await asyncio.to_thread(_run, text)


def _run(text: str) -> float:
    with tempfile.TemporaryDirectory(prefix="minikafka-bench-") as folder:
        Path(folder, "test_suite.py").write_text(text, encoding="utf-8")
        command = (sys.executable, *PYTEST, "test_suite.py")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        began = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
    if done.returncode or f"{TESTS} passed" not in done.stdout:
        raise RuntimeError(done.stdout + done.stderr)
    return seconds
