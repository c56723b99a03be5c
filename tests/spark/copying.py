"""The driver that dies: a stream from a topic into Parquet, which can be held in the middle of a task.

Run by kill_rounds.py as a process of its own. While ``FOLDER/gate/all`` exists, every task waits after its first rows;
while ``FOLDER/gate/large`` does, one that has passed on HELD_AT bytes. It writes down where it is; most of its range is
then still to be read.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from minikafka.spark.session import open_session

HELD_AT = 2_000_000
"""Bytes; Spark passes rows on in parts of ROWS_PER_PART."""
ROWS_PER_PART = 50
HELD_S_MAX = 400.0
LOOK_INTERVAL_S = 0.02

MASTER = "local-cluster[2,1,640]"
SETTINGS = {
    "spark.executor.memory": "640m",
    "spark.driver.memory": "640m",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_PART),
}
COLUMNS = "partition int, offset bigint, value binary"


def holding(folder: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What mapInArrow runs in the executors."""
    gate = Path(folder) / "gate"

    def held(batches: Iterator[Any]) -> Iterator[Any]:
        size = 0
        for batch in batches:
            size += batch.nbytes
            yield batch
            shut = [gate / "all", *([gate / "large"] if size >= HELD_AT else [])]
            if any(each.exists() for each in shut):
                _tell(gate, batch.column("partition")[0].as_py(), is_large=size >= HELD_AT)
                gives_up_at = time.monotonic() + HELD_S_MAX
                while any(each.exists() for each in shut):
                    if time.monotonic() > gives_up_at:
                        raise TimeoutError(f"{gate} stayed closed")
                    time.sleep(LOOK_INTERVAL_S)

    return held


def _tell(gate: Path, partition: int, *, is_large: bool) -> None:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    batch = context.getLocalProperty("streaming.sql.batchId")
    place = {"partition": partition, "batch": int(batch or -1), "pid": os.getpid()}
    told = gate / f"{'large' if is_large else 'small'}-{os.getpid()}.json"
    told.with_suffix(".tmp").write_text(json.dumps(place))
    told.with_suffix(".tmp").replace(told)


def copying(session: Any, bootstrap: str, topic: str, folder: str, rows_per_batch: int) -> Any:
    """The query, not yet started; nothing in it says anything of failures."""
    records = (
        session.readStream.format("minikafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(rows_per_batch))
        .option("kafka.max.partition.fetch.bytes", "1024")
        .load()
    )
    return (
        records.select("partition", "offset", "value")
        .mapInArrow(holding(folder), COLUMNS)
        .writeStream.format("parquet")
        .option("path", f"{folder}/out")
        .option("checkpointLocation", f"{folder}/checkpoint")
    )


def die_with_the_parent() -> None:
    """Standard input ends when the process that started this one does."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    """Run until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--rows-per-batch", type=int, required=True)
    options = parser.parse_args()
    die_with_the_parent()
    session = open_session("kill rounds", MASTER, SETTINGS)
    session.sparkContext.setLogLevel("WARN")
    query = copying(session, options.bootstrap, options.topic, options.folder, options.rows_per_batch)
    query.start().awaitTermination()


if __name__ == "__main__":
    main()
