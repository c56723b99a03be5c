"""The application that dies: a stream from topic to topic in transactions. Run by test_transactions_kill.py.

The format ``deadly`` is the production source and sink, but for this: the sink's whole application (driver, its JVM and
their Python workers, one session) gets SIGKILL at the named moment of a batch.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil

from minikafka.spark.options import parse_sink
from minikafka.spark.session import open_session
from minikafka.spark.sink import StreamWriter, Written, exactly_once
from minikafka.spark.source import MiniKafkaSource
from tests.spark.spark_home import INTERPRETED, java_options

MOMENTS = ("writing", "written", "half committed", "committed")
"""In the middle of a task; before the first commit; after one of two; before Spark's commit log."""


def die() -> None:
    """Kill all processes of this session, this one last: Spark's workers have process groups of their own."""
    session = os.getsid(0)
    for each in psutil.pids():
        with suppress(ProcessLookupError):
            if each != os.getpid() and os.getsid(each) == session:
                os.kill(each, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class DeadlyWriter(StreamWriter):
    """Production's writer, with an end."""

    def __init__(self, options: Any, moment: str) -> None:
        super().__init__(options)
        self._moment = moment

    def write(self, iterator: Iterator[Any]) -> Written:
        return super().write(self._dying(iterator) if self._moment == "writing" else iterator)

    @staticmethod
    def _dying(iterator: Iterator[Any]) -> Iterator[Any]:
        yield next(iterator)
        yield next(iterator)
        die()

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        if self._moment == "written":
            die()
        if self._moment == "half committed":
            assert len(messages) == 2, messages
            super().commit(messages[:1], batchId)
            die()
        super().commit(messages, batchId)
        if self._moment == "committed":
            die()


class DeadlySource(MiniKafkaSource):
    """The format ``deadly``."""

    @classmethod
    def name(cls) -> str:
        return "deadly"

    def streamWriter(self, schema: Any, overwrite: bool) -> DeadlyWriter:
        moment = self.options.pop("moment", "")
        return DeadlyWriter(parse_sink(self.options, streaming=True), moment)


def copy(session: Any, *, bootstrap: str, source: str, into: str, checkpoint: str, moment: str = "") -> None:
    """Copy what is there now, or die at the named moment."""
    session.dataSource.register(DeadlySource)
    rows = (
        session.readStream.format("minikafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("value")
    )
    writer = exactly_once(
        rows,
        **{"kafka.bootstrap.servers": bootstrap, "topic": into, "kafka.batch.size": "512"},
        checkpointLocation=checkpoint,
        moment=moment,
    )
    query = writer.format("deadly").trigger(availableNow=True).start()
    query.awaitTermination()


def main() -> None:
    """Copy in a session of its own."""
    os.environ.update(java_options())
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "source", "into", "checkpoint", "moment"):
        parser.add_argument(f"--{name}", required=True)
    given = parser.parse_args()
    settings = {"spark.sql.execution.arrow.maxRecordsPerBatch": "20"} | INTERPRETED
    session = open_session("transacting", "local[2]", settings)
    session.sparkContext.setLogLevel("ERROR")
    copy(session, **vars(given))


if __name__ == "__main__":
    # Spark pickles classes of __main__ by value: the workers import this module instead.
    from tests.spark import transacting

    transacting.main()
