"""`make bench`: prints each figure beside a bare aiohttp server and client doing the same transfer in the same run.

Usage: python -m tests.bench [--quick] [-o table|json] [--only WORD]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable

import uvloop
from rich.console import Console
from rich.table import Table

from minikafka.world.process import malloc_environment
from tests.bench import rows
from tests.bench.measure import Row


def plan(*, quick: bool) -> dict[str, Callable[[], Awaitable[list[Row]]]]:
    """Name -> measurement."""
    rounds = 3 if quick else 5
    count = 100 if quick else 300
    return {
        "acks1": lambda: rows.produce_rows(1, acks=1, floor=0.40, rounds=rounds, count=count),
        "acksall": lambda: rows.produce_rows(3, acks=-1, floor=0.15, rounds=rounds, count=count),
        "fetch": lambda: rows.fetch_rows(floor=0.60, rounds=rounds, count=count * 2),
        "latency": lambda: rows.latency_rows(ceiling=6.0, rounds=rounds, count=count * 3),
        "producer": lambda: rows.producer_rows(count=count * 1000, rounds=rounds),
        "start": lambda: rows.start_rows(rounds=2 if quick else 3),
        "memory": lambda: rows.memory_rows(ceiling=2.0),
    }


def show(done: list[Row]) -> None:
    """A table for people."""
    table = Table(title="minikafka beside bare aiohttp (medians; body size and concurrency in the row)")
    for heading in ("row", "ours", "bare", "ratio", "floor", ""):
        table.add_column(heading, justify="left" if heading in ("row", "") else "right")
    for row in done:
        bound = "" if row.floor == float("inf") else f"{'≥' if row.at_least else '≤'} {row.floor:g}"
        verdict = "" if not bound else "reached" if row.reached else "MISSED"
        table.add_row(
            row.name, f"{row.ours:,.4g} {row.unit}", f"{row.bare:,.4g} {row.unit}", f"{row.ratio:.3g}", bound, verdict
        )
    Console(width=140).print(table)


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
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a first look")
    parser.add_argument("--only", default="", help="only rows whose name contains this: acks1, fetch, latency, ...")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    done = uvloop.run(measure(given.only, quick=given.quick))
    if given.output == "json":
        sys.stdout.write(json.dumps({"load_before": load, "rows": [row.as_json() for row in done]}, default=str) + "\n")
    else:
        show(done)
        sys.stdout.write(f"load before the run: {load:.2f} on {os.cpu_count()} cores\n")


if __name__ == "__main__":
    os.environ.update(malloc_environment())
    main()
