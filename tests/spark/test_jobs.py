"""`minikafka spark archive` and `flights` (issue 4 Build 4 and 7)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from minikafka.cli.demo import directly
from minikafka.cli.demo_story import Flight
from minikafka.cli.spark import summary_to_json
from minikafka.spark.jobs import archive, flights
from minikafka.wire.records import Record

DAY_MS = 86_400_000
FIRST_MS = 19_000 * DAY_MS
"""2022-01-08."""


def quiet(batch: int, rows: int) -> None:
    """Progress that nobody looks at."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_archive_goes_on_after_kill_9(spark, home, kafka, tmp_path):
    """Build 4: partitioned Parquet, exactly once, restartable: the process group dies while a batch is under way."""
    topic = kafka.topic(2)
    into, checkpoint = tmp_path / "archive", tmp_path / "checkpoint"
    expected = []

    def write(count: int, day: int) -> None:
        for partition in (0, 1):
            begin = len([each for each in expected if each[0] == partition])
            values = [b"%d" % (begin + number) for number in range(count)]
            kafka.write(topic, partition, values, timestamp=FIRST_MS + day * DAY_MS, headers=[("h", b"1")])
            expected.extend(
                (partition, begin + number, str(begin + number), f"2022-01-0{8 + day}") for number in range(count)
            )

    write(300, 0)
    command = [sys.executable, "-m", "minikafka", "spark", "archive", topic, "-b", kafka.bootstrap, "--follow"]
    with (tmp_path / "log").open("wb") as log:
        job = subprocess.Popen(
            [*command, "--into", into, "--checkpoint", checkpoint],
            env={**os.environ, "SPARK_HOME": str(home)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            number = 0
            while True:
                kafka.until("a batch is committed", (checkpoint / "commits" / str(number)).exists, timeout_s=500)
                number += 1
                write(3_000, 1)
                kafka.until("the next is under way", (checkpoint / "offsets" / str(number)).exists, timeout_s=500)
                os.killpg(job.pid, signal.SIGSTOP)
                if not (checkpoint / "commits" / str(number)).exists():
                    break
                os.killpg(job.pid, signal.SIGCONT)  # too late: this test stood still for the length of a batch
        finally:
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
    write(100, 1)
    count = archive(
        spark, bootstrap=kafka.bootstrap, topic=topic, into=str(into), checkpoint=str(checkpoint), report=quiet
    )
    ends = json.loads((checkpoint / "offsets" / str(number - 1)).read_text().splitlines()[2])[topic]
    assert count == len(expected) - sum(ends.values())
    rows = spark.read.parquet(str(into)).selectExpr(
        "partition", "offset", "cast(value as string) value", "cast(day as string) day"
    )
    assert sorted(map(tuple, rows.collect())) == sorted(expected)
    assert sorted(each.name for each in (into / f"topic={topic}").iterdir()) == ["day=2022-01-08", "day=2022-01-09"]
    again = archive(
        spark, bootstrap=kafka.bootstrap, topic=topic, into=str(into), checkpoint=str(checkpoint), report=quiet
    )
    assert again == 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_archive_ends_on_sigterm_and_leaves_nothing_behind(home, kafka, tmp_path):
    """As on Ctrl-C: it was ignored. No process, and no folder of temporary files; the batch that was done stays."""
    topic, temporary, log = kafka.topic(1), tmp_path / "temporary", tmp_path / "log"
    kafka.write(topic, 0, [b"tea"])
    temporary.mkdir()
    command = [sys.executable, "-m", "minikafka", "spark", "archive", topic, "-b", kafka.bootstrap, "--follow"]
    java = f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} -Djava.io.tmpdir={temporary}"
    with log.open("wb") as output:
        job = subprocess.Popen(
            [*command, "--into", tmp_path / "archive", "--checkpoint", tmp_path / "checkpoint"],
            env={**os.environ, "SPARK_HOME": str(home), "TMPDIR": str(temporary), "JAVA_TOOL_OPTIONS": java},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        kafka.until("a batch is reported", lambda: "batch 0 done" in log.read_text(), timeout_s=500)
        assert processes_with(temporary) != []
        job.terminate()
        assert job.wait(120) == 130
        kafka.until("all processes have ended", lambda: processes_with(temporary) == [], timeout_s=120)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert log.read_text().endswith("minikafka: interrupted\n")
    assert "Traceback" not in log.read_text()
    assert list(temporary.iterdir()) == []


def processes_with(temporary: Path) -> list[str]:
    """The processes whose environment names a folder for temporary files."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"TMPDIR={temporary}\0".encode() in (each / "environ").read_bytes():
                found.append(each.name)
    return found


def made_up(first: int, count: int) -> list[Flight]:
    """Flights, an hour apart, from three airports with two carriers; some of their delays are unknown."""
    found = []
    for number in range(first, first + count):
        delay = None if number % 11 == 0 else number % 37 - 10
        row = {"origin": ("EWR", "JFK", "LGA")[number % 3], "carrier": ("AA", "UA")[number % 2], "dep_delay": delay}
        ident = f"made-up/{number}"
        value = json.dumps({"id": ident, **row, "arr_delay": delay}).encode()
        found.append(Flight(b"N%d" % (number % 5), value, FIRST_MS + number * DAY_MS // 24, ident))
    return found


def test_flights_counts_what_is_there(spark, kafka, tmp_path, read):
    """Build 4 and 7: windows by event time, a summary in a topic; the same as counted directly, also after going on."""
    topic, summaries = kafka.topic(2), kafka.topic(1)
    known: list[Flight] = []
    windows = 0
    for first, count in ((0, 480), (480, 240)):
        new = made_up(first, count)
        for partition in (0, 1):
            mine = [each for number, each in enumerate(new) if number % 2 == partition]
            kafka.append(topic, partition, [Record(0, each.timestamp_ms, 0, each.key, each.value) for each in mine])
        known += new
        summary = flights(
            spark,
            bootstrap=kafka.bootstrap,
            topic=topic,
            into=str(tmp_path / "delays"),
            checkpoint=str(tmp_path / "checkpoint"),
            summary_topic=summaries,
            report=quiet,
        )
        assert summary.rows_read == count
        assert directly(known, summary.until_ms).differences(summary_to_json(summary)) == []
        assert summary.windows > windows
        windows = summary.windows
    told = sorted(read(summaries).collect(), key=lambda row: row.offset)[-len(summary.lines) :]
    lines = {bytes(row.key).decode(): json.loads(bytes(row.value)) for row in told}
    assert lines == {f"{line['origin']}/{line['carrier']}": line for line in summary_to_json(summary)["lines"]}
