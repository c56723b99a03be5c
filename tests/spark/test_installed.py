"""The installed wheel on a cluster of executors of their own (issue 4, must be shown; Build 1)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.spark.environments import by_machine, environment
from tests.spark.spark_home import spark_home
from tests.tidy.sources import ROOT
from tools.dist import build, wheel_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# Tasks begin when all executors are there.
TOGETHER = (
    "--conf spark.scheduler.minRegisteredResourcesRatio=1.0 --conf spark.scheduler.maxRegisteredResourcesWaitingTime=600s"
    " --conf spark.executor.memory=640m"
)
JOB_TIMEOUT_S = 1000


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> tuple[Path, Path]:
    """Two Pythons: with the wheel, and without."""
    folder = tmp_path_factory.mktemp("environments")
    build(ROOT, folder, "wheel")
    return environment(folder / "with", wheel_in(folder)), environment(folder / "without", None)


def archive(python: Path, folder: Path, kafka, topic: str, master: str, *more: str, **variables: str):
    """``minikafka spark archive`` of the installed package, in a process that knows nothing of this tree."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    submit = " ".join([TOGETHER, *more, "pyspark-shell"])
    command = [python.parent / "minikafka", "spark", "archive", topic, "-b", kafka.bootstrap, "--master", master]
    return subprocess.run(
        [*command, "--into", folder / "out", "--checkpoint", folder / "checkpoint"],
        check=False,
        cwd=folder,
        env={**inherited, "PYSPARK_SUBMIT_ARGS": submit, **variables},
        capture_output=True,
        text=True,
        timeout=JOB_TIMEOUT_S,
    )


def test_the_same_job_on_two_executors(installed, spark, kafka, tmp_path):
    """Must be shown: local-cluster with two workers runs the job from the installed package, both take part, and what
    comes out is the topic.
    """
    topic = kafka.topic(4)
    for partition in range(4):
        kafka.write(topic, partition, [b"%d" % number for number in range(200)])
    home = spark_home(tmp_path)
    done = archive(installed[0], tmp_path, kafka, topic, "local-cluster[2,1,640]", SPARK_HOME=str(home))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"rows": 800}
    found = spark.read.parquet(str(tmp_path / "out")).selectExpr("partition", "offset", "cast(value as string) value")
    expected = [(partition, number, str(number)) for partition in range(4) for number in range(200)]
    assert sorted(map(tuple, found.collect())) == expected
    worked = [path.read_text() for path in home.glob("work/*/*/stderr")]
    assert len(worked) == 2
    assert all("Finished task" in each for each in worked)


def test_an_executor_without_the_package(installed, kafka, tmp_path):
    """Build 1: the driver's machine has the wheel, the executors' have not; the sentence says what to run, and where."""
    topic = kafka.topic(1)
    kafka.write(topic, 0, [b"x"])
    usual, lacking = installed
    python = by_machine(tmp_path / "python", usual=usual, where="ON_EXECUTOR", other=lacking)
    done = archive(
        usual,
        tmp_path,
        kafka,
        topic,
        "local-cluster[1,1,640]",
        "--conf spark.executorEnv.ON_EXECUTOR=1 --conf spark.task.maxFailures=1",
        SPARK_HOME=str(spark_home(tmp_path)),
        PYSPARK_PYTHON=str(python),
    )
    assert done.returncode == 1
    told = done.stderr.strip().splitlines()[-1]
    assert told.startswith(f"minikafka: ModuleNotFoundError: the Python of an executor ({lacking} on ")
    assert told.endswith(
        f"has no minikafka: run `{lacking} -m pip install '.[spark]'` there, in a clone of minikafka; every driver and "
        "executor needs it"
    )
