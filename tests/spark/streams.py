"""A streaming query from a topic into Parquet, for tests that run it piece by piece."""

from __future__ import annotations

import json
from typing import Any

TIMEOUT_S = 400


class Stream:
    """A streaming query of a topic into Parquet, run piece by piece."""

    def __init__(self, spark: Any, bootstrap: str, topic: str, folder: Any, **options: str) -> None:
        self.spark = spark
        self.out, self.checkpoint = str(folder / "out"), str(folder / "checkpoint")
        self.options = {
            "kafka.bootstrap.servers": bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
        } | options

    def frame(self, **options: str) -> Any:
        return self.spark.readStream.format("minikafka").options(**self.options | options).load()

    def start(self, trigger: dict[str, Any], **options: str) -> Any:
        return (
            self.frame(**options)
            .select("partition", "offset", "value")
            .writeStream.format("parquet")
            .option("checkpointLocation", self.checkpoint)
            .trigger(**trigger)
            .start(self.out)
        )

    def run(self, **options: str) -> list[dict[str, Any]]:
        """Read what is there now; the progress of each batch."""
        query = self.start({"availableNow": True}, **options)
        try:
            query.awaitTermination(TIMEOUT_S)
            assert not query.isActive
            return [json.loads(each.json) for each in query.recentProgress]
        finally:
            query.stop()

    def rows(self) -> list[tuple[int, int]]:
        return sorted((row.partition, row.offset) for row in self.spark.read.parquet(self.out).collect())


def run(writer: Any) -> None:
    """Run a stream writer's query to the end of what is there now."""
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination(TIMEOUT_S)
        assert not query.isActive
    finally:
        query.stop()


def lost(progress: list[dict[str, Any]]) -> list[dict[str, dict[str, int]]]:
    """What the batches say was lost."""
    ends = [each["sources"][0]["endOffset"] for each in progress]
    return [end["$lost"] for end in ends if "$lost" in end]
