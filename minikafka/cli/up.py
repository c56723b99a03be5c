"""``minikafka up``: a cluster of several broker processes in the foreground.

On a terminal it prints a table of the brokers, the URL to open, the ``bootstrap.servers`` of clients, and commands to
try. Elsewhere, or with ``-o json``, it prints one JSON object a line: one per broker when that broker is ready, then
``{"ready":true,"bootstrap_servers":...}``, later ``{"broker":2,"died":true,...}`` for each broker that died, and
``{"stopped":true}`` at the end. A broker is restarted only for a test: ``POST /v1/brokers/2/actions {"do": "start"}``.
SIGTERM or Ctrl-C stops all of them; a second one makes them leave without waiting for leaders to move.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import webbrowser
from pathlib import Path

import click

from minikafka.cli.running import Failure, Signals, first_of, lone_command, own_name, run_until_asked
from minikafka.cli.settings import parse_flags
from minikafka.cli.tables import config_option, data_dir_option, many, print_json, print_table
from minikafka.hosting.cluster_files import KAFKA_PORT
from minikafka.hosting.processes import READY_TIMEOUT_S, BrokerDied, BrokerProcess, ProcessCluster, Ready
from minikafka.types import NodeId


@lone_command()
@click.option("--brokers", type=int, help="Number of brokers.  [default: 3, or the number of brokers in DIR]")
@data_dir_option("Where the brokers' files are kept.")
@click.option(
    "--base-port",
    type=click.IntRange(0, 65_535),
    metavar="P",
    help="Broker 1 listens on port P, broker 2 on P+1, ...; 0: any free ports.  "
    f"[default: {KAFKA_PORT}, or any free ports if one of these is in use]",
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    help="A table for people, or one JSON object a line.  [default: table on a terminal, else json]",
)
@click.option("--open", "opens", is_flag=True, help="Open the console in a browser when the brokers are ready.")
@config_option
def command(
    brokers: int | None,
    data_dir: Path,
    base_port: int | None,
    output: str | None,
    config: tuple[str, ...],
    *,
    opens: bool,
) -> None:
    """Start a cluster of brokers on this machine, in the foreground.

    Clients find the cluster without -b if it listens on the default ports. Ctrl-C or SIGTERM stops all brokers; a
    second one does not wait for leaders to move. A broker that dies is reported, not restarted.

    Examples:
      minikafka up
      minikafka up --brokers 3 --data-dir /tmp/mk --config min.insync.replicas=2
      minikafka up --brokers 1 --data-dir /tmp/one --base-port 19092
      minikafka serve /tmp/mk/broker-1/broker.properties     # restarts a broker that was killed

    The first start writes DIR/broker-N/broker.properties; later starts read the ports and the cluster id from there.
    The log of a broker is DIR/broker-N/broker.log.
    """
    settings = parse_flags(config)
    on_terminal = sys.stdout.isatty() if output is None else output == "table"

    async def work(signals: Signals) -> None:
        cluster = ProcessCluster(
            brokers,
            data_dir=data_dir,
            base_port=base_port or 0,
            preferred_port=KAFKA_PORT if base_port is None else 0,
            config=settings,
        )
        report = TextReport(cluster, data_dir) if on_terminal else JsonReport(cluster)
        await _up(cluster, report, signals, opens=opens)

    run_until_asked(work)


class JsonReport:
    """One JSON object a line (a contract: docs/cli.md)."""

    def __init__(self, cluster: ProcessCluster) -> None:
        self._cluster = cluster

    def starting(self) -> None:
        if self._cluster.files.notice:
            click.echo(self._cluster.files.notice, err=True)

    def broker_ready(self, ready: Ready) -> None:
        click.echo(ready.line)
        sys.stdout.flush()

    def all_ready(self) -> None:
        servers = self._cluster.bootstrap_servers
        print_json({"ready": True, "bootstrap": servers, "bootstrap_servers": servers})

    def died(self, broker: BrokerProcess) -> None:
        print_json(
            {
                "broker": broker.node_id,
                "died": True,
                "pid": broker.pid,
                "returncode": broker.returncode,
                "why": broker.obituary(),
                "restart": shlex.join(["minikafka", "serve", str(broker.files.path)]),
            }
        )

    def started_again(self, ready: Ready) -> None:
        self.broker_ready(ready)

    def stopping(self) -> None:
        pass

    def stopped(self) -> None:
        print_json({"stopped": True})


class TextReport:
    """Sentences and a table for the person at the terminal."""

    def __init__(self, cluster: ProcessCluster, data_dir: Path) -> None:
        self._cluster = cluster
        self._data_dir = data_dir

    def starting(self) -> None:
        click.echo(f"Starting {many(len(self._cluster.brokers), 'broker')} in {self._cluster.data_dir.absolute()} ...")
        if self._cluster.files.notice:
            click.echo(f"Note: {self._cluster.files.notice}.")

    def broker_ready(self, ready: Ready) -> None:
        """Print nothing: the table has all brokers in order."""

    def all_ready(self) -> None:
        brokers = self._cluster.brokers.values()
        click.echo()
        print_table(
            ("BROKER", "ADDRESS", "PID", "DATA DIRECTORY"),
            [(each.node_id, str(each.files.address), each.pid, each.files.folder) for each in brokers],
        )
        address = next(iter(brokers)).files.address
        name = own_name()
        at = "" if address.port == KAFKA_PORT else f" -b {address}"
        click.echo(
            f"\nThe cluster is ready. Console: http://{address}/  API documentation: http://{address}/docs\n"
            f"For any Kafka client: bootstrap.servers={self._cluster.bootstrap_servers}\n\n"
            "Try in another terminal:\n"
            f"  {name} topics create orders --partitions 3 --replication-factor {min(3, len(brokers))}{at}\n"
            f"  printf 'ann:tea\\nbob:milk\\n' | {name} produce orders --key-separator :{at}\n"
            f"  {name} consume orders --from-beginning --exit-at-end{at}\n\n"
            "Press Ctrl-C to stop the brokers. The data is kept."
        )

    def died(self, broker: BrokerProcess) -> None:
        why = broker.obituary()
        file = shlex.quote(str(broker.files.path))
        click.echo(f"\n{why[:1].upper()}{why[1:]}.\nTo restart it: {own_name()} serve {file}")

    def started_again(self, ready: Ready) -> None:
        click.echo(f"\nBroker {ready.node_id} was started again (pid {ready.pid}).")

    def stopping(self) -> None:
        running = sum(each.is_running for each in self._cluster.brokers.values())
        if running:
            # The terminal has just shown "^C": begin a new line.
            click.echo(f"\nStopping {many(running, 'broker')} ...")

    def stopped(self) -> None:
        folder = shlex.quote(str(self._data_dir))
        click.echo(f"Stopped. To start this cluster again: {own_name()} up --data-dir {folder}")


def open_console(cluster: ProcessCluster) -> None:
    """Open the console in the default browser, or say that there is none."""
    url = f"http://{next(iter(cluster.brokers.values())).files.address}/"
    if not webbrowser.open(url):
        click.echo(f"No browser was found. Open {url} yourself.", err=True)


async def _up(cluster: ProcessCluster, report: JsonReport | TextReport, signals: Signals, *, opens: bool) -> None:
    deaths: dict[NodeId, BrokerProcess] = {}
    watching: list[asyncio.Task[None]] = []

    async def watch(broker: BrokerProcess) -> None:
        await broker.wait()
        if not signals.asked.is_set():
            deaths[broker.node_id] = broker
            try:
                report.died(broker)
            finally:  # also when nobody reads the report any more (`| head`)
                if not any(each.is_running for each in cluster.brokers.values()):
                    signals.asked.set()

    async def start_again(node: NodeId) -> None:
        broker = cluster.brokers.get(node)
        if broker is None or signals.asked.is_set():
            raise BrokerDied(f"this cluster has no broker {node}" if broker is None else "the cluster is being stopped")
        await broker.start()
        deaths.pop(node, None)
        watching.append(asyncio.ensure_future(watch(broker)))
        report.started_again(await broker.wait_ready(READY_TIMEOUT_S))

    async def until_ready(broker: BrokerProcess) -> None:
        ready = await broker.wait_ready(READY_TIMEOUT_S)
        if not signals.asked.is_set():
            report.broker_ready(ready)

    async def report_ready() -> None:
        await asyncio.gather(*(until_ready(broker) for broker in cluster.brokers.values()))
        if not signals.asked.is_set():
            report.all_ready()
            if opens:
                # A browser that runs in the terminal returns when the user leaves it.
                await asyncio.to_thread(open_console, cluster)

    async def urge_all() -> None:
        await signals.urged.wait()
        for broker in cluster.brokers.values():
            await broker.urge()

    try:
        report.starting()
        for broker in cluster.brokers.values():
            broker.start_broker = start_again
            await broker.start()
        watching = [asyncio.ensure_future(watch(broker)) for broker in cluster.brokers.values()]
        await first_of(report_ready(), signals.asked.wait())
        await signals.asked.wait()
        report.stopping()
    finally:
        signals.asked.set()
        urging = asyncio.ensure_future(urge_all())
        try:
            await cluster.stop()
        finally:
            urging.cancel()
        await asyncio.gather(*watching)
    if len(deaths) == len(cluster.brokers):
        raise Failure(f"all brokers have ended; the last one: {list(deaths.values())[-1].obituary()}")
    report.stopped()
