"""kill -9 of a whole Spark application at each moment of a batch that writes transactions (issue 17, Build 3)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.transacting import MOMENTS, copy

TIMEOUT_S = 500
ATTEMPTS = 5
COMMITTED = {"kafka.isolation.level": "read_committed"}
ROOT = Path(__file__).parents[2]


def run_application(home: Path, folder: Path, moment: str, *arguments: str) -> int:
    """Run the application to its end; its exit status.

    Spark gives a Python worker 10 s to start, however busy the machine is: such a run has done nothing yet, and is repeated.
    """
    for _ in range(ATTEMPTS):
        status = _run_once(home, folder, moment, *arguments)
        if status != 1 or "worker failed to connect back" not in _log(folder, moment).read_text():
            break
    return status


def _log(folder: Path, moment: str) -> Path:
    return folder / f"{moment}.log"


def _run_once(home: Path, folder: Path, moment: str, *arguments: str) -> int:
    command = [sys.executable, "-m", "tests.spark.transacting", *arguments, "--moment", moment]
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(home),
    }
    with _log(folder, moment).open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            return process.wait(TIMEOUT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_killed_application_writes_each_row_once(
    home: Path, spark: Any, kafka: Any, read: Any, tmp_path: Path
) -> None:
    """Must be shown: one batch, killed in a task, then between the tasks and the commit, between two commits, and before
    Spark's commit log; its last run has nothing left to write. With read_committed each row is there once.
    """
    source, into = kafka.topic(), kafka.topic()
    given = {"bootstrap": kafka.bootstrap, "source": source, "into": into, "checkpoint": str(tmp_path / "checkpoint")}
    arguments = [part for name, value in given.items() for part in (f"--{name}", value)]
    sent = [b"%d" % index for index in range(200)]
    kafka.write(source, 0, sent[:100])
    kafka.write(source, 1, sent[100:])
    committed = []
    for moment in MOMENTS:
        assert run_application(home, tmp_path, moment, *arguments) == -signal.SIGKILL
        committed.append(read(into, **COMMITTED).count())
    # The rows of one task, and then of both.
    assert committed[:2] == [0, 0]
    kafka.until("the second commit shows", lambda: read(into, **COMMITTED).count() == len(sent))
    kafka.write(source, 0, [b"next"])
    # No new process: the session of all tests, which saves the start of one.
    copy(spark, **given)
    kafka.until("the next batch shows", lambda: read(into, **COMMITTED).count() > len(sent))
    assert sorted(bytes(row.value) for row in read(into, **COMMITTED).collect()) == sorted([*sent, b"next"])
    everything = [bytes(row.value) for row in read(into).collect()]
    # Without isolation, the attempts that were killed before their commit show.
    assert len(everything) > len(sent) + 1
    assert set(everything) == {*sent, b"next"}
