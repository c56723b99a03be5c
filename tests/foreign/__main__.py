"""`make foreign`: runs the test suites of other projects against three brokers, and prints a table of their results.

A suite whose toolchain or sources are not available is left out, and the table says so. The exit code is 1 if a test failed
that is not a named exception.

Usage: python -m tests.foreign [--only SUITE] [--aiokafka FOLDER] [-o table|json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from minikafka.types import Address, NodeId
from minikafka.world.cluster_files import LOOPBACK, Ports, lay_out, write
from minikafka.world.processes import ProcessCluster
from tests.foreign import aiokafka_tests, franz_go, kafka_javascript, kafka_python, kafka_tools, librdkafka
from tests.foreign.suites import NotAtHand, Report, Suite, table


async def run(suite: Suite, logs: Path) -> Report:
    """Prepare a suite, start brokers for it, and run it."""
    await asyncio.to_thread(logs.mkdir)
    try:
        place = await asyncio.to_thread(suite.prepare, logs)
    except NotAtHand as missing:
        return Report(suite, {}, left_out=str(missing))
    if not suite.node_ids:
        return Report(suite, await asyncio.to_thread(suite.run, place, "", logs))
    with tempfile.TemporaryDirectory(prefix="minikafka-foreign-data-") as folder:
        ports = Ports()
        addresses = {NodeId(node): Address(LOOPBACK, ports.take(0)) for node in suite.node_ids}
        ports.release()
        write(lay_out(Path(folder), addresses, config=suite.settings))
        async with ProcessCluster(data_dir=folder) as cluster:
            return Report(suite, await asyncio.to_thread(suite.run, place, cluster.bootstrap, logs))


def main() -> int:
    """Parse the command line, run the suites one after the other, print their results."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.foreign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="SUITE", help="run only suites whose name contains SUITE")
    parser.add_argument(
        "--aiokafka", type=Path, metavar="FOLDER", help="a checkout of aiokafka, whose tests are in no package registry"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="format of the results")
    given = parser.parse_args()
    suites = [franz_go.SUITE, *librdkafka.SUITES, *kafka_tools.SUITES, kafka_javascript.SUITE]
    suites += [kafka_python.SUITE, aiokafka_tests.suite(given.aiokafka)]
    chosen = [suite for suite in suites if given.only in suite.name]
    if not chosen:
        parser.error(
            f"--only {given.only} matches no suite; the suites are {', '.join(suite.name for suite in suites)}"
        )
    folder = Path(tempfile.mkdtemp(prefix="minikafka-foreign-"))
    reports = []
    for suite in chosen:
        began = time.perf_counter()
        sys.stderr.write(f"{suite.name} {suite.version} ... ")
        sys.stderr.flush()
        reports.append(asyncio.run(run(suite, folder / suite.name.replace(" ", "-"))))
        sys.stderr.write(f"{time.perf_counter() - began:.0f} s\n")
    if given.output == "json":
        sys.stdout.write(json.dumps([report.as_json() for report in reports]) + "\n")
    else:
        sys.stdout.write(table(reports))
    sys.stderr.write(f"logs: {folder}\n")
    return 0 if all(report.is_good for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
