"""`make bench`: prints each figure beside a bare aiohttp server and client doing the same transfer in the same run.

Usage: python -m tests.bench [--quick] [-o table|json] [--only WORD]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Awaitable, Callable

import uvloop
from rich.console import Console
from rich.table import Table

from minikafka.world.process import exec_with_malloc_environment
from tests.bench import local, rows, spark_rows, suite
from tests.bench.measure import Row


def plan(*, quick: bool) -> dict[str, Callable[[], Awaitable[list[Row]]]]:
    """Name -> measurement."""
    rounds = 3 if quick else 7
    megabytes = 60 if quick else 160
    return {
        "acks1": lambda: rows.produce_rows(1, acks=1, floor=0.40, rounds=rounds, megabytes=megabytes),
        "acksall": lambda: rows.produce_rows(3, acks=-1, floor=0.15, rounds=rounds, megabytes=megabytes),
        "fetch": lambda: rows.fetch_rows(floor=0.60, rounds=rounds, count=megabytes * 2),
        "latency": lambda: rows.latency_rows(ceiling=6.0, rounds=rounds, count=150 if quick else 500),
        "producer": lambda: rows.producer_rows(count=200_000 if quick else 600_000, rounds=rounds),
        "start": lambda: rows.start_rows(rounds=2 if quick else 3),
        "local": lambda: local.local_rows(rounds=rounds),
        "suite": lambda: suite.suite_rows(rounds=1 if quick else 3),
        "memory": lambda: rows.memory_rows(ceiling=2.0),
        "spark": lambda: spark_rows.spark_rows(
            rounds=3 if quick else 5,
            rows_100=1_000_000 if quick else 4_000_000,
            rows_1k=300_000 if quick else 1_000_000,
        ),
    }


def figure(value: float) -> str:
    """Four significant digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def show(done: list[Row]) -> None:
    """A table for people."""
    table = Table(title="minikafka beside bare aiohttp (medians of rounds in turn)")
    for heading in ("row", "unit", "ours", "bare", "ratio", "floor", "", "note"):
        table.add_column(heading, justify="right" if heading in ("ours", "bare", "ratio", "floor") else "left")
    for row in done:
        bound = "" if row.floor is None else f"{'≥' if row.at_least else '≤'} {row.floor:g}"
        verdict = "" if row.reached is None else "reached" if row.reached else "MISSED"
        table.add_row(
            row.name, row.unit, figure(row.ours), figure(row.bare), f"{row.ratio:.3g}", bound, verdict, row.note
        )
    Console(width=150).print(table)


async def measure(only: str, *, quick: bool) -> list[Row]:
    """Run the chosen measurements one after the other; nothing else should run on the machine."""
    done: list[Row] = []
    for name, work in plan(quick=quick).items():
        if only in name:
            sys.stderr.write(f"{name} ...\n")
            done += await work()
    return done


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller rounds: a first look")
    parser.add_argument("--only", default="", help="only rows whose name contains this: acks1, fetch, latency, ...")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    given = parser.parse_args()
    exec_with_malloc_environment(["-m", "tests.bench", *sys.argv[1:]])
    load_before = os.getloadavg()[0]
    done = uvloop.run(measure(given.only, quick=given.quick))
    cores = os.cpu_count()
    if given.output == "json":
        result = {"load_before": load_before, "cores": cores, "rows": [row.as_json() for row in done]}
        sys.stdout.write(json.dumps(result) + "\n")
    else:
        show(done)
        sys.stdout.write(f"load before the run: {load_before:.2f} on {cores} cores (other work on the machine)\n")


if __name__ == "__main__":
    main()
