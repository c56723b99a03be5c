"""``minikafka sim traffic``: what brokers of large clusters say to each other while nobody produces."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from minikafka.cli.running import Misuse
from minikafka.cli.sim_search import settings_of
from minikafka.cli.tables import config_option, output_option, print_json, print_table
from minikafka.config import parse_broker
from minikafka.errors import InvalidConfig
from minikafka.sim.traffic import CONTROL, REPLICATION, ApiTraffic, ClusterTraffic, measure

COLUMNS = ("brokers", "traffic", "requests/s", "bytes/s", "requests/s a broker", "bytes/s a broker")


@click.command(
    name="traffic",
    epilog="""\b
Examples:
  minikafka sim traffic --brokers 30 --brokers 100
  minikafka sim traffic --brokers 30 --partitions 1000 --config replica.fetch.wait.max.ms=2000
  minikafka sim traffic --brokers 30 -o json

Each request and its response are counted once; bytes are those of both bodies, without heads of HTTP and TCP.""",
)
@click.option(
    "--brokers",
    type=click.IntRange(min=1, max=200),
    multiple=True,
    default=(30, 100),
    show_default=True,
    help="Number of brokers in a cluster (repeatable).",
)
@click.option(
    "--partitions",
    type=click.IntRange(min=1, max=10_000),
    default=10_000,
    show_default=True,
    help="Number of partitions in each cluster, with three replicas.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1.0),
    default=5.0,
    show_default=True,
    help="Virtual seconds for which messages are counted.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the simulation.")
@config_option
@output_option
def traffic_command(
    brokers: tuple[int, ...], partitions: int, seconds: float, seed: int, config: tuple[str, ...], output: str
) -> None:
    """Count requests and bytes between the brokers of idle simulated clusters.

    The first three brokers are voters of the quorum. A cluster of 100 brokers with 10,000 partitions takes some
    minutes and about 3 GB of memory.
    """
    settings = settings_of(config)
    try:
        parse_broker({"node.id": "1", **settings})
    except InvalidConfig as error:
        raise Misuse(str(error)) from error
    measured = [
        measure(brokers=count, partitions=partitions, virtual_s=seconds, settings=settings, seed=seed, say=_say)
        for count in brokers
    ]
    if output == "json":
        print_json({"clusters": [as_json(each) for each in measured]})
        return
    print_table(COLUMNS, [row for each in measured for row in _rows(each)], output)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _rows(cluster: ClusterTraffic) -> Iterator[tuple[object, ...]]:
    for kind in (CONTROL, REPLICATION):
        for each in (cluster.of_kind(kind), *cluster.apis):
            if each.kind == kind and each.api != kind:
                yield _row(cluster, f"  {each.api}", each)
            elif each.api == kind:
                yield _row(cluster, kind, each)


def _row(cluster: ClusterTraffic, name: str, each: ApiTraffic) -> tuple[object, ...]:
    totals = (each.requests_per_second, each.bytes_per_second)
    figures = (*totals, *(total / cluster.brokers for total in totals))
    return (cluster.brokers, name, *(f"{figure:,.1f}" for figure in figures))


def as_json(cluster: ClusterTraffic) -> dict[str, Any]:
    """The contract of ``sim traffic -o json`` (docs/simulator.md)."""
    return {
        "brokers": cluster.brokers,
        "partitions": cluster.partitions,
        "virtual_seconds": cluster.virtual_s,
        **{kind: _sums(cluster.of_kind(kind)) for kind in (CONTROL, REPLICATION)},
        "apis": {each.api: _sums(each) for each in cluster.apis},
    }


def _sums(each: ApiTraffic) -> dict[str, float]:
    return {"requests_per_second": each.requests_per_second, "bytes_per_second": each.bytes_per_second}
