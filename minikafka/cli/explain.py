"""``minikafka explain``: why this leader, this ISR, this high watermark; why a producer was refused last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import click

from minikafka.cli.admin import parse_partition
from minikafka.cli.tables import bootstrap_option, output_option, print_json, print_lines
from minikafka.cli.v1 import V1
from minikafka.cli.watching import show, watch_option


@click.command(
    epilog="""\b
Examples:
  minikafka explain orders-0
  minikafka explain orders-0 --watch
  minikafka explain orders-0 -o json | jq -r .isr.sentence

It is what GET /v1/topics/orders/partitions/0/explain answers; events are as old as the brokers remember."""
)
@click.argument("partition")
@bootstrap_option
@output_option
@watch_option
def command(partition: str, bootstrap: str, output: str, watch: bool) -> None:  # noqa: FBT001 - click's form
    """Say why PARTITION (orders-0) has this leader, this ISR and this high watermark."""
    name = parse_partition(partition)

    async def asked() -> dict[str, Any]:
        async with V1(bootstrap) as v1:
            path = f"/v1/topics/{quote(name.topic, safe='')}/partitions/{name.partition}/explain"
            told: dict[str, Any] = await v1.anybody("GET", path)
            return told

    show(asked, lambda told: print_json(told) if output == "json" else print_lines(lines(told)), watch=watch)


def lines(told: dict[str, Any]) -> Iterator[str]:
    """An explanation for people: each sentence, and below it what led to it, the oldest first."""
    yield f"{told['topic']}-{told['partition']}"
    yield f"leader          {told['leader']['sentence']}"
    yield from _because(told["leader"]["because"])
    yield f"isr             {told['isr']['sentence']}"
    for member in told["isr"]["members"]:
        yield f"                broker {member['id']}: {member['why']}"
    yield from _because(told["isr"]["because"])
    yield f"high watermark  {told['high_watermark']['sentence']}"
    yield from _because(told["high_watermark"]["because"])
    refusal = told["last_refusal"]
    if refusal is not None:
        yield "last refusal"
        yield from _because([refusal])


def _because(events: list[dict[str, Any]]) -> Iterator[str]:
    for event in events:
        yield f"    {event['at'][:23]}  broker {event['broker']}: {event['sentence']}"
