"""``minikafka spark archive TOPIC``: committed records to Parquet, by topic and day, exactly once and restartable.

Read the folder with Spark: its list of files (``_spark_metadata``) says which belong to committed batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minikafka.spark.jobs.progress import Report, run_query


def archive(
    session: Any,
    *,
    bootstrap: str,
    topic: str,
    into: str,
    checkpoint: str,
    report: Report,
    security: Mapping[str, str] | None = None,
    follow: bool = False,
    most_per_batch: int = 1_000_000,
) -> int:
    """Append what is new since the checkpoint; rows written. Raises what ended the query.

    ``security``: the source's options of TLS.
    """
    records = (
        session.readStream.format("minikafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .options(**(security or {}))
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", str(most_per_batch))
        .load()
    )
    writer = (
        records.selectExpr("*", "to_date(timestamp) day")
        .writeStream.format("parquet")
        .partitionBy("topic", "day")
        .option("path", into)
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
    )
    return run_query(writer, follow=follow, report=report)
