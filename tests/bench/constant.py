"""The ceiling of a Python source in Spark: the same Arrow batch again and again, no network and no decoding.

Columns, rows per batch and tasks are those that minikafka's source gives, so that what is left is Spark's own price.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from minikafka.spark.decode import SCHEMA, schema_text

FORMAT = "constant"


class Share(InputPartition):
    """So many rows of one task."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


def _shares(rows: int, tasks: int) -> list[Share]:
    return [Share(rows * (task + 1) // tasks - rows * task // tasks) for task in range(tasks)]


class _Reading:
    """What batch and stream readers share."""

    def __init__(self, options: dict[str, str]) -> None:
        self.tasks = int(options["tasks"])
        self.value_size = int(options["valuesize"])
        self.rows_per_batch = int(options["rowsperbatch"])

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        count = self.rows_per_batch
        columns = [
            pa.nulls(count, pa.binary()),
            pa.array([bytes(self.value_size)] * count, pa.binary()),
            pa.array(["constant"] * count, pa.string()),
            pa.array([0] * count, pa.int32()),
            pa.array(range(count), pa.int64()),
            pa.array([1_700_000_000_000_000] * count, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            pa.array([0] * count, pa.int32()),
        ]
        whole = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        left = partition.rows
        while left > 0:
            yield whole if left >= count else whole.slice(0, left)
            left -= count


class ConstantSource(DataSource):
    """``format("constant")``: options rows, tasks, valueSize, rowsPerBatch, and for a stream rowsPerTrigger."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return schema_text(include_headers=False)

    def reader(self, schema: Any) -> DataSourceReader:
        return _Batch({name.lower(): value for name, value in self.options.items()})

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _Stream({name.lower(): value for name, value in self.options.items()})


class _Batch(_Reading, DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.rows = int(options["rows"])

    def partitions(self) -> Sequence[InputPartition]:
        return _shares(self.rows, self.tasks)


class _Stream(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self.rows = int(options["rows"])
        self.step = int(options["rowspertrigger"])

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """All rows are there from the start."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"row": min(self.rows, start["row"] + self.step)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return _shares(end["row"] - start["row"], self.tasks)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept."""
