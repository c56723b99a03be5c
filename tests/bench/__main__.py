"""`make bench`: prints each figure beside a bare aiohttp server and client doing the same transfer in the same run.

The parts whose names begin with ``kafka`` print them beside Apache Kafka. They need Java 17, and fetch Kafka's jars once.

Usage: python -m tests.bench [--quick] [-o table|json] [--only WORD] [--write-docs] [--from FILE]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from minikafka import compiled
from minikafka.hosting.process import exec_with_malloc_environment
from tests.bench import (
    compiled_rows,
    console_rows,
    failover_rows,
    group_rows,
    kafka_group_rows,
    kafka_rows,
    latency_rows,
    local,
    report,
    rows,
    security_rows,
    spark_rows,
    suite,
    transaction_rows,
)
from tests.bench.measure import Row
from tests.tidy.sources import ROOT

PACKAGES = ("aiohttp", "uvloop", "msgpack")
KAFKA, BARE = "kafka", "bare"
"""``--only``: the parts whose names begin with the former, which are beside Apache Kafka; and all others."""


def plan(*, quick: bool) -> dict[str, Callable[[], Awaitable[list[Row]]]]:
    """Name -> measurement."""
    rounds = 3 if quick else 5
    megabytes = 60 if quick else 160
    return {
        "acks1": lambda: rows.produce_rows(1, acks=1, floor=0.40, rounds=rounds, megabytes=megabytes),
        "acksall": lambda: rows.produce_rows(3, acks=-1, floor=0.15, rounds=rounds, megabytes=megabytes),
        "validation": lambda: rows.validation_rows(rounds=rounds, megabytes=megabytes),
        "compiled": lambda: compiled_rows.compiled_rows(rounds=rounds, requests=6_000 if quick else 20_000),
        "fetch": lambda: rows.fetch_rows(floor=0.60, rounds=rounds, count=megabytes * 2),
        "latency": lambda: latency_rows.latency_rows(ceiling=6.0, rounds=rounds, count=150 if quick else 500),
        "load": lambda: latency_rows.load_rows(rounds=rounds, count=150 if quick else 500),
        "rate": lambda: latency_rows.rate_rows(rounds=rounds, count=3_000 if quick else 10_000),
        "producer": lambda: rows.producer_rows(count=200_000 if quick else 600_000, rounds=rounds),
        "rebalance": lambda: group_rows.rebalance_rows(rounds=2 if quick else 5),
        "commits": lambda: group_rows.commit_rows(rounds=rounds, count=1_500 if quick else 5_000),
        "failover": lambda: failover_rows.failover_rows(rounds=1 if quick else 3),
        "idle": lambda: failover_rows.idle_rows(seconds=4.0 if quick else 10.0),
        "console": lambda: console_rows.console_rows(
            rounds=3 if quick else 7, seconds=4.0 if quick else 8.0, megabytes=30 if quick else 100
        ),
        "start": lambda: rows.start_rows(rounds=2 if quick else 3),
        "local": lambda: local.local_rows(rounds=rounds),
        "suite": lambda: suite.suite_rows(rounds=1 if quick else 3),
        "memory": lambda: rows.memory_rows(ceiling=2.0),
        "security": lambda: security_rows.security_rows(
            rounds=rounds, megabytes=megabytes, count=150 if quick else 500
        ),
        "spark": lambda: spark_rows.spark_rows(
            rounds=3,
            rows_100=1_000_000 if quick else 1_500_000,
            rows_1k=300_000 if quick else 450_000,
        ),
        "kafka": lambda: kafka_rows.kafka_rows(kafka_rows.QUICK if quick else kafka_rows.WHOLE),
        "kafka-transactions": lambda: transaction_rows.transaction_rows(
            rounds=rounds, count=50 if quick else 100, large=10 if quick else 50
        ),
        "kafka-groups-loop": lambda: kafka_group_rows.kafka_loop_rows(
            rounds=2 if quick else 5, count=50 if quick else 200
        ),
        "kafka-groups-members": lambda: kafka_group_rows.kafka_rebalance_rows(rounds=2 if quick else 5),
    }


async def measure(only: str, *, quick: bool, done: list[Row]) -> None:
    """Run the chosen measurements one after the other, into ``done``; nothing else should run on the machine."""
    for name, work in plan(quick=quick).items():
        if only in name or (only == BARE and not name.startswith(KAFKA)):
            began = time.perf_counter()
            sys.stderr.write(f"{name} ... ")
            sys.stderr.flush()
            done += await work()
            sys.stderr.write(f"{time.perf_counter() - began:.0f} s\n")


def commit() -> str:
    """Of this checkout; with a plus when files differ from it."""
    command = ("git", "describe", "--always", "--abbrev=7", "--dirty=+", "--exclude=*")
    try:
        described = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described


def run(*, only: str, quick: bool) -> dict[str, Any]:
    """Measure, and say where and how."""
    began, load_before, at = time.perf_counter(), os.getloadavg()[0], commit()
    done: list[Row] = []

    def document() -> dict[str, Any]:
        return {
            "commit": at,
            "quick": quick,
            "cores": os.cpu_count(),
            "load_before": load_before,
            "seconds": round(time.perf_counter() - began),
            "versions": {
                "Python": platform.python_version(),
                **{name: importlib.metadata.version(name) for name in PACKAGES},
                "rules": compiled.build(),
            },
            "rows": [row.as_json() for row in done],
        }

    try:
        uvloop.run(measure(only, quick=quick, done=done))
    except Exception:
        # A quarter of an hour of rows is not to be lost with the one that failed.
        with tempfile.NamedTemporaryFile("w", prefix="minikafka-bench-", suffix=".json", delete=False) as kept:
            json.dump(document(), kept)
        sys.stderr.write(f"\nwhat was measured before is in {kept.name}: see --from\n")
        raise
    return document()


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds: a first look")
    parser.add_argument(
        "--only",
        default="",
        help=f"only what has this in its name: {', '.join(plan(quick=True))}; {BARE}: all but those beside Kafka",
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="also keep the result as docs/bench.json, and make the documents' tables and the picture from it "
        f"(of a whole run, of `--only {KAFKA}` or of `--only {BARE}`)",
    )
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE", help="a kept result: nothing is measured")
    given = parser.parse_args()
    if given.write_docs and given.only not in ("", KAFKA, BARE):
        parser.error(
            f"--write-docs needs a whole run, --only {KAFKA} or --only {BARE}: the documents have a table for each"
        )
    # Brokers are killed on purpose: what clients say about that is no news.
    logging.getLogger("minikafka").setLevel(logging.ERROR)
    if given.source is None:
        exec_with_malloc_environment(["-m", "tests.bench", *sys.argv[1:]])
        result = run(only=given.only, quick=given.quick)
    else:
        result = json.loads(given.source.read_text(encoding="utf-8"))
    if given.write_docs:
        report.write_documents(report.completed(result, report.kept(), is_bare=given.only == BARE))
    sys.stdout.write(json.dumps(result) + "\n" if given.output == "json" else report.show(result))


if __name__ == "__main__":
    main()
