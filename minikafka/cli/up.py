"""``minikafka up``: a cluster of several broker processes in the foreground.

Standard output has one JSON line per broker when it is ready, then ``{"ready":true,"bootstrap":...}``; later one JSON
line for each broker that died (``{"broker":2,"died":true,...}``). Nothing is restarted. SIGTERM or Ctrl-C stops all.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from minikafka.cli.running import Failure, Signals, run_until_asked
from minikafka.cli.settings import parse_flags
from minikafka.cli.tables import config_option, print_json
from minikafka.world.processes import READY_TIMEOUT_S, BrokerProcess, ProcessCluster


@click.command(
    epilog="""\b
Examples:
  minikafka up --brokers 3 --data-dir /tmp/mk
  minikafka up --brokers 3 --data-dir /tmp/mk --base-port 9092 --config min.insync.replicas=2
  kill -9 PID, then: minikafka serve /tmp/mk/broker-1/broker.properties

The first start writes DIR/broker-N/broker.properties; later ones find ports and cluster id there. A broker's log is
DIR/broker-N/broker.log."""
)
@click.option("--brokers", type=int, default=None, help="How many.  [default: 3, or those that DIR holds]")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("minikafka-data"),
    show_default=True,
    metavar="DIR",
    help="Where the brokers' files are kept.",
)
@click.option(
    "--base-port",
    type=click.IntRange(1, 65_535),
    default=None,
    metavar="P",
    help="Broker 1 listens on port P, broker 2 on P+1, ...  [default: any free ports]",
)
@config_option
def command(brokers: int | None, data_dir: Path, base_port: int | None, config: tuple[str, ...]) -> None:
    """Start a cluster of brokers on this machine, in the foreground.

    Prints a JSON line for each broker when it is ready, then {"ready":true,"bootstrap":"..."}. Ctrl-C or SIGTERM stops
    all of them. A broker that dies is reported, not restarted.
    """
    settings = parse_flags(config)
    run_until_asked(lambda signals: _up(brokers, data_dir, base_port or 0, settings, signals))


async def _up(brokers: int | None, data_dir: Path, base_port: int, config: dict[str, str], signals: Signals) -> None:
    cluster = ProcessCluster(brokers, data_dir=data_dir, base_port=base_port, config=config)
    deaths: list[BrokerProcess] = []
    watching: list[asyncio.Task[None]] = []

    async def watch(broker: BrokerProcess) -> None:
        await broker.wait()
        if not signals.asked.is_set():
            deaths.append(broker)
            print_json(_death(broker, data_dir))
            if not any(each.is_running for each in cluster.brokers.values()):
                signals.asked.set()

    try:
        for broker in cluster.brokers.values():
            await broker.start()
        watching = [asyncio.ensure_future(watch(broker)) for broker in cluster.brokers.values()]
        starting = asyncio.ensure_future(_tell_ready(cluster, signals))
        await asyncio.wait((starting, asyncio.ensure_future(signals.asked.wait())), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        else:
            starting.cancel()
        await signals.asked.wait()
    finally:
        signals.asked.set()
        await cluster.stop()
        await asyncio.gather(*watching)
    if len(deaths) == len(cluster.brokers):
        raise Failure(f"all brokers have ended; the last one: {deaths[-1].obituary()}")


async def _tell_ready(cluster: ProcessCluster, signals: Signals) -> None:
    async def told(broker: BrokerProcess) -> None:
        ready = await broker.wait_ready(READY_TIMEOUT_S)
        if not signals.asked.is_set():
            click.echo(ready.line)
            sys.stdout.flush()

    await asyncio.gather(*(told(broker) for broker in cluster.brokers.values()))
    if not signals.asked.is_set():
        print_json({"ready": True, "bootstrap": cluster.bootstrap})


def _death(broker: BrokerProcess, data_dir: Path) -> dict[str, object]:
    return {
        "broker": broker.node_id,
        "died": True,
        "pid": broker.pid,
        "returncode": broker.returncode,
        "why": broker.obituary(),
        "restart": f"minikafka serve {data_dir / f'broker-{broker.node_id}' / 'broker.properties'}",
    }
