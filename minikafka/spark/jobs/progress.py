"""How a job's stream is run: to the end of what is there, or until it is stopped, with its progress reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

LOOK_INTERVAL_S = 0.5

Report = Callable[[int, int], object]
"""Called with a batch's number and how many rows were read so far."""


def run_query(writer: Any, *, follow: bool, report: Report) -> int:
    """Start a DataStreamWriter and wait for its end; rows read. Raises what ended the query.

    ``follow``: go on with what comes later, until the query is stopped.
    """
    query = (writer if follow else writer.trigger(availableNow=True)).start()
    rows, last = 0, -1
    try:
        while True:
            ended = query.awaitTermination(LOOK_INTERVAL_S)
            for each in query.recentProgress:
                if each["batchId"] > last and each["numInputRows"]:
                    rows += each["numInputRows"]
                    report(each["batchId"], rows)
                last = max(last, each["batchId"])
            if ended:
                return rows
    finally:
        query.stop()
