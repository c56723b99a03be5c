"""What `minikafka spark` says when Spark fails, and which Python and Java it lets Spark use (S39, issue 4 Build 1, 6)."""

from __future__ import annotations

import os
import signal
import sys
from unittest.mock import MagicMock, call

import pytest

from minikafka.cli.spark import sentence_of
from minikafka.spark import session as spark_session
from minikafka.spark.jobs import archive, run_query
from minikafka.spark.session import NoPackage, prepare_environment

OURS = """[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_EXCEPTION] An exception was thrown: Traceback
  File "reading.py", line 3, in batches
    raise self._given_up()
minikafka.errors.LeaderNotAvailable: a-0 has no leader

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "worker.py", line 1, in main
minikafka.blocking.brokers.BrokersUnreachable: asking for offsets: given up
\tat org.apache.spark.api.python.BasePythonRunner
"""

LACKING = """Job aborted due to stage failure: [PYTHON_EXCEPTION] Traceback (most recent call last):
  File "travel.py", line 3, in _open
    raise ModuleNotFoundError(
ModuleNotFoundError: the Python of an executor (/opt/python on a) has no minikafka: run pip there
\tat org.apache.spark
"""


DELETED = """[STREAM_FAILED] Query terminated with exception: Traceback (most recent call last):
  File "source.py", line 3, in latestOffset
minikafka.blocking.reading.PartitionVanished: PartitionVanished: orders-0: it no longer exists (failOnDataLoss=false goes on and reports it)
"""
"""The command has no such option."""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (OURS, "BrokersUnreachable: asking for offsets: given up"),
        (LACKING, "ModuleNotFoundError: the Python of an executor (/opt/python on a) has no minikafka: run pip there"),
        ("[PATH_NOT_FOUND] no such path\n\tat org.apache", "[PATH_NOT_FOUND] no such path"),
        (
            "An error occurred while calling o61.start.\n: java.io.IOException: mkdir of file:/proc/x failed\n\tat org.a",
            "mkdir of file:/proc/x failed",
        ),
        (DELETED, "PartitionVanished: orders-0: it no longer exists; give another folder"),
        ("", "Spark failed"),
    ],
)
def test_a_failure_is_one_sentence(text, told):
    """D8: of two stacks of a hundred lines the one line that says what to do."""
    assert sentence_of(text, "; give another folder") == told


@pytest.fixture
def variables(monkeypatch):
    """The process's environment, put back afterwards; the Java that there is."""
    monkeypatch.setattr("minikafka.spark.session.java_home", lambda: None)
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")
    return monkeypatch


def test_spark_is_given_this_python_and_loopback(variables):
    """Build 1 and 6: the Python that has minikafka; a local master binds to 127.0.0.1, another one as it likes."""
    prepare_environment("spark://master:7077")
    assert (os.environ["PYSPARK_PYTHON"], os.environ["SPARK_LOCAL_IP"]) == (sys.executable, "")
    prepare_environment("local[2]")
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


def test_a_python_of_the_users_is_looked_at_first(variables, tmp_path):
    """Build 1: a missing install gives a sentence that says so, before a JVM is started."""
    lacking = tmp_path / "python"
    lacking.write_text("#!/bin/sh\nexit 1\n")
    variables.setenv("PYSPARK_PYTHON", str(lacking))
    with pytest.raises(NoPackage, match="does not run"):
        prepare_environment("local[2]")
    lacking.chmod(0o755)
    with pytest.raises(NoPackage, match=r"python has no minikafka: run .* -m pip install '.\[spark\]'"):
        prepare_environment("local[2]")
    variables.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
    prepare_environment("local[2]")


def test_an_archive_leaves_records_of_aborted_transactions_out():
    """It promises committed records; the source reads all, unless it is asked for less, as Kafka's consumer does."""
    session = MagicMock()
    source = session.readStream
    source.format.return_value = source.option.return_value = source.options.return_value = source
    archive(session, bootstrap="a:1", topic="orders", into="/into", checkpoint="/place", report=lambda *_: None)
    assert call("kafka.isolation.level", "read_committed") in source.option.call_args_list


def test_a_python_that_does_not_answer_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """It waits for a network's disk, say."""
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o700)
    monkeypatch.setattr(spark_session, "LOOK_TIMEOUT_S", 0.1)
    monkeypatch.setattr(spark_session, "java_home", lambda: None)
    monkeypatch.setenv("PYSPARK_PYTHON", str(slow))
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    with pytest.raises(NoPackage, match=r"PYSPARK_PYTHON=.* does not answer within 0\.1 s"):
        prepare_environment("yarn")


def test_ctrl_c_waits_for_the_end_of_a_call_to_the_jvm():
    """In the middle of one, two tracebacks of pyspark and py4j were the end of each `archive --follow`."""
    done: list[str] = []

    def look(_timeout_s: float) -> bool:
        signal.raise_signal(signal.SIGINT)
        done.append("looked")
        return False

    writer, before = MagicMock(), signal.getsignal(signal.SIGINT)
    query = writer.start.return_value
    query.recentProgress, query.awaitTermination = [], look
    query.stop.side_effect = lambda: done.append("stopped")
    with pytest.raises(KeyboardInterrupt):
        run_query(writer, follow=True, report=MagicMock())
    assert done == ["looked", "stopped"]
    assert signal.getsignal(signal.SIGINT) is before
