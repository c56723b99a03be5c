"""``minikafka connections``: which clients and brokers are connected to each broker."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from minikafka.cli.running import Failure, lone_command
from minikafka.cli.tables import (
    bootstrap_option,
    columns_of,
    list_output_option,
    print_json,
    print_table,
    show,
    watch_option,
)
from minikafka.cli.v1 import V1
from minikafka.types import Address


def _last_request(one: dict[str, Any]) -> str | None:
    version = "" if one["api_version"] is None else f" v{one['api_version']}"
    return None if one["last_request"] is None else one["last_request"] + version


COLUMNS = columns_of(
    *("BROKER", "CONNECTION-ID", "PROTOCOL", "LISTENER", "REMOTE", "CLIENT-ID", "SOFTWARE", "SINCE", "REQUESTS"),
    *("RECEIVED-BYTES", "SENT-BYTES", "LAST-REQUEST", "PENDING=pending_request", "IDLE-MS"),
    **{"LAST-REQUEST": _last_request},
)
ONLY_TSV = frozenset({"LISTENER", "SINCE", "RECEIVED-BYTES", "SENT-BYTES", "IDLE-MS"})
"""Columns that the table for people lacks."""


@lone_command(
    examples="""
  minikafka connections -b 127.0.0.1:9092
  minikafka connections --broker 2 --protocol kafka --watch
  minikafka connections -o json | jq -r '.brokers[].connections[].software'

The list of each broker is what GET /v1/connections of that broker returns."""
)
@click.option("--broker", type=click.IntRange(0), help="Only the connections of this broker.")
@click.option("--protocol", type=click.Choice(["kafka", "rpc", "http"]), help="Only connections with this protocol.")
@bootstrap_option
@list_output_option
@watch_option
def connections(broker: int | None, protocol: str | None, bootstrap: str, output: str, watch: bool) -> None:
    """List the open connections of each broker."""

    async def listed() -> list[dict[str, Any]]:
        async with V1(bootstrap) as v1:
            addresses = await v1.brokers()
            if broker is not None and broker not in addresses:
                known = ", ".join(map(str, sorted(addresses)))
                raise Failure(f"--broker {broker}: there is no such broker; the registered brokers are {known}")
            nodes = [node for node in sorted(addresses) if broker in (None, node)]
            found = await asyncio.gather(*(_of_broker(v1, node, addresses[node]) for node in nodes))
        for each in found:
            each["connections"] = [one for one in each["connections"] if protocol in (None, one["protocol"])]
        return found

    show(listed, lambda brokers: _draw(brokers, output), watch=watch)


async def _of_broker(v1: V1, node: int, address: Address) -> dict[str, Any]:
    """All connections of one broker; ``reachable`` is false if it does not answer."""
    connections: list[dict[str, Any]] = []
    while True:
        after = connections[-1]["connection_id"] if connections else 0
        part = await v1.of(address, "GET", f"/v1/connections?after={after}")
        if part is None:
            return {"node_id": node, "reachable": False, "connections": []}
        connections += part["connections"]
        if not part["more"]:
            return {"node_id": node, "reachable": True, "connections": connections}


def _draw(brokers: list[dict[str, Any]], output: str) -> None:
    if output == "json":
        print_json({"brokers": brokers})
        return
    for each in brokers:
        if not each["reachable"]:
            click.echo(f"broker {each['node_id']} does not answer", err=True)
    rows = [{"broker": each["node_id"], **one} for each in brokers for one in each["connections"]]
    print_table({name: each for name, each in COLUMNS.items() if output == "tsv" or name not in ONLY_TSV}, rows, output)
