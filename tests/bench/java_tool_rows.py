"""Kafka's own measuring tools in Java, unmodified, against both brokers: the client makes no difference.

``kafka-producer-perf-test`` and the end-to-end latency tool (a record is produced, then consumed, one after the other).
A Java client is slow until its compilers have seen the work, so the producer's first records do not count; the latency
tool has no such option, and its first requests count for both sides.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from tests.bench import kafka_jars
from tests.bench.arms import Ours
from tests.bench.kafka_arm import Theirs
from tests.bench.kafka_jars import NoKafka
from tests.bench.kafka_processes import Java
from tests.bench.measure import Row, in_turn

TOOLS = Path(__file__).parents[1] / "foreign" / "kafka_tools_4.3.1.txt"
PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
LATENCY = "org.apache.kafka.tools.EndToEndLatency"
SIZES = ((100, "100 B"), (1024, "1 KiB"))
WARM_UP_SHARE = 4
"""One record of so many warms up."""
TOOL_ROUNDS_MAX = 3
"""A round starts two Javas for each side."""
TIMEOUT_S = 180.0

_RATE = re.compile(r"([\d.]+) records/sec")
_AVERAGE = re.compile(r"Avg latency: ([\d.]+) ms")


async def java_tool_rows(
    java: Java, ours: Ours, theirs: Theirs, brokers: int, *, rounds: int, megabytes: int, latencies: int
) -> list[Row]:
    """acks=all; a sentence and no row without the tools' jars."""
    try:
        jars = kafka_jars.parse(TOOLS.read_text(encoding="ascii"))
        paths = await asyncio.to_thread(kafka_jars.fetch_all, jars, kafka_jars.cache_folder())
    except NoKafka as error:
        sys.stderr.write(f"Kafka's measuring tools are left out: {error}\n")
        return []
    java = java._replace(class_path=os.pathsep.join([*map(str, paths), java.class_path]))
    places = (ours.running.bootstrap, theirs.running.bootstrap)
    rounds = min(rounds, TOOL_ROUNDS_MAX)
    rows = []
    for size, label in SIZES:
        topic, count = f"j{size}", megabytes * 1_000_000 // size
        for arm in (ours, theirs):
            await arm.create(topic, brokers, 1)
        mine, peer = (_Tool(java, place, _producing(topic, size, count), _RATE) for place in places)
        pair = await in_turn(mine, peer, rounds=rounds, warm_up=0)
        name = f"kafka-producer-perf-test acks=all RF {brokers}, {label}"
        rows.append(Row(name, "records/s", pair.ours, pair.bare, pair.ratio))
    for arm in (ours, theirs):
        await arm.create("je", brokers, 1)
    mine, peer = (_Tool(java, place, _there_and_back("je", latencies), _AVERAGE) for place in places)
    pair = await in_turn(mine, peer, rounds=rounds, warm_up=0)
    name = f"kafka-e2e-latency acks=all RF {brokers}, 100 B, average"
    rows.append(Row(name, "ms", pair.ours, pair.bare, pair.ratio, at_least=False))
    return rows


def _producing(topic: str, size: int, count: int) -> tuple[str, ...]:
    warm_up = count // WARM_UP_SHARE
    what = ("--topic", topic, "--record-size", str(size), "--num-records", str(count + warm_up))
    return PRODUCER, *what, "--warmup-records", str(warm_up), "--throughput", "-1", "--command-property", "acks=all"


def _there_and_back(topic: str, count: int) -> tuple[str, ...]:
    what = ("--topic", topic, "--record-size", "100", "--num-records", str(count))
    return LATENCY, *what, "--producer-acks", "all"


class _Tool:
    """A tool and the figure in its output."""

    def __init__(self, java: Java, bootstrap: str, arguments: tuple[str, ...], figure: re.Pattern[str]) -> None:
        self._java = java
        main, *rest = arguments
        self._arguments = (main, "--bootstrap-server", bootstrap, *rest)
        self._figure = figure

    async def __call__(self) -> float:
        with tempfile.TemporaryDirectory(prefix="minikafka-bench-tool-") as folder:
            logging = Path(folder) / "log4j2.properties"
            logging.write_text("status=error\nrootLogger.level=off\n", encoding="ascii")
            options = ("-Xmx512m", f"-Dlog4j2.configurationFile={logging}")
            command = self._java.command(*self._arguments, options=options)
            process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    out, err = await process.communicate()
            except BaseException:
                process.kill()
                await process.wait()
                raise
        # The producer prints interim rates first; its last line has the whole.
        found = self._figure.findall(out.decode())
        if process.returncode or not found:
            raise RuntimeError(f"{self._arguments[0]}: {out.decode()[-1000:]} {err.decode()[-1000:]}")
        return float(found[-1])
