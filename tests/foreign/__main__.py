"""`make foreign`: runs the test suites of other projects against minikafka, one after the other, and prints a table of the results.

A suite that fails, or ends with an error, does not keep the next ones from running. A suite whose toolchain or sources are not
available is left out, and the table says so. Ctrl-C ends the run with a table of the suites that have run.

The exit code is 0 if only named exceptions failed, 1 if another test or a whole suite failed, and 130 after Ctrl-C.

Usage: python -m tests.foreign [--only SUITE] [--prepare] [--aiokafka FOLDER] [-o table|json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from minikafka.hosting.cluster_files import LOOPBACK, BrokerFiles, Ports, lay_out, write
from minikafka.hosting.processes import ProcessCluster
from minikafka.types import Address, NodeId
from tests.certificates import authority, signed
from tests.foreign import aiokafka_tests, franz_go, kafka_javascript, kafka_python, kafka_tools, librdkafka
from tests.foreign.suites import Addresses, NotAtHand, Report, Suite, table


async def run(suite: Suite, logs: Path) -> Report:
    """Prepare a suite, start brokers for it, and run it. A suite that is left out or ends with an error has a report as well."""
    began = time.perf_counter()
    try:
        await asyncio.to_thread(logs.mkdir)
        report = await _results(suite, logs)
    except NotAtHand as missing:
        report = Report(suite, {}, left_out=str(missing))
    except Exception as error:
        (logs / "error.log").write_text(traceback.format_exc(), encoding="utf-8")
        report = Report(suite, {}, error=f"{type(error).__name__}: {error}")
    return replace(report, duration_s=time.perf_counter() - began)


async def _results(suite: Suite, logs: Path) -> Report:
    place = await asyncio.to_thread(suite.prepare, logs)
    if not suite.node_ids:
        return Report(suite, await asyncio.to_thread(suite.run, place, Addresses(), logs))
    with tempfile.TemporaryDirectory(prefix="minikafka-foreign-data-") as folder:
        ports = Ports()
        own, clients = ({NodeId(node): Address(LOOPBACK, ports.take(0)) for node in suite.node_ids} for _ in range(2))
        ports.release()
        files = lay_out(Path(folder), own, config=suite.settings)
        if suite.clients:
            brokers = (with_clients(each, clients[each.node_id], suite, logs / "tls") for each in files.brokers)
            files = replace(files, brokers=tuple(brokers))
        if suite.clients == "SSL":
            await asyncio.to_thread(make_certificates, logs / "tls")
        write(files)
        async with ProcessCluster(data_dir=folder) as cluster:
            brokers_at = Addresses(cluster.bootstrap, ",".join(map(str, clients.values())) if suite.clients else "")
            return Report(suite, await asyncio.to_thread(suite.run, place, brokers_at, logs))


def with_clients(broker: BrokerFiles, clients: Address, suite: Suite, tls: Path) -> BrokerFiles:
    """Return the files of the broker with a listener CLIENTS at this address."""
    listeners = f"PLAINTEXT://{broker.address},CLIENTS://{clients}"
    settings = {
        **broker.settings,
        "listeners": listeners,
        "advertised.listeners": listeners,
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CLIENTS:{suite.clients}",
    }
    if suite.clients == "SSL":
        settings |= {"ssl.keystore.location": f"{tls / 'broker.pem'}", "ssl.truststore.location": f"{tls / 'ca.pem'}"}
    return replace(broker, settings=settings)


def make_certificates(folder: Path) -> None:
    """Write a CA, and the certificates of the brokers and of a client that it has signed."""
    folder.mkdir()
    authority(folder, "ca")
    for name in ("broker", "client"):
        signed(folder, name, by="ca")


def run_all(suites: Sequence[Suite], folder: Path) -> Iterator[Report]:
    """Run the suites one after the other; each one's result is also written to standard error as soon as it is known."""
    for suite in suites:
        sys.stderr.write(f"{suite.name} {suite.version} ... ")
        sys.stderr.flush()
        report = asyncio.run(run(suite, folder / suite.name))
        sys.stderr.write(f"{report.summary} ({report.duration_s:.0f} s)\n")
        yield report


def prepared(suites: Sequence[Suite], folder: Path) -> int:
    """Fetch and build the suites without running them; returns the exit code."""
    for suite in suites:
        logs = folder / suite.name
        logs.mkdir()
        try:
            suite.prepare(logs)
            state = "ready"
        except NotAtHand as missing:
            state = f"left out: {missing}"
        sys.stdout.write(f"{suite.name} {suite.version}: {state}\n")
        sys.stdout.flush()
    return 0


def main(arguments: Sequence[str] | None = None, suites: Sequence[Suite] | None = None) -> int:
    """Parse the command line, run the suites, print their results; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.foreign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="SUITE", help="run only suites whose name contains SUITE")
    parser.add_argument("--prepare", action="store_true", help="fetch and build the suites, but do not run them")
    parser.add_argument(
        "--aiokafka", type=Path, metavar="FOLDER", help="a checkout of aiokafka, whose tests are in no package registry"
    )
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table", help="format of the results")
    given = parser.parse_args(arguments)
    if suites is None:
        suites = [franz_go.SUITE, *librdkafka.SUITES, *kafka_tools.SUITES, kafka_javascript.SUITE]
        suites += [kafka_python.SUITE, aiokafka_tests.suite(given.aiokafka)]
    chosen = [suite for suite in suites if given.only in suite.name]
    if not chosen:
        parser.error(
            f"--only {given.only} matches no suite; the suites are {', '.join(suite.name for suite in suites)}"
        )
    folder = Path(tempfile.mkdtemp(prefix="minikafka-foreign-"))
    sys.stderr.write(f"logs: {folder}\n")
    if given.prepare:
        return prepared(chosen, folder)
    reports: list[Report] = []
    was_interrupted = False
    try:
        for report in run_all(chosen, folder):
            reports.append(report)  # noqa: PERF402 - Ctrl-C leaves the reports of the suites that have run
    except KeyboardInterrupt:
        was_interrupted = True
        sys.stderr.write("interrupted\n")
    if given.output == "json":
        sys.stdout.write(json.dumps([report.as_json() for report in reports]) + "\n")
    else:
        sys.stdout.write(table(reports))
    if was_interrupted:
        return 130
    return 0 if all(report.is_good for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
