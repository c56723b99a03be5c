"""``minikafka explain``: why this leader, ISR, high watermark and last stable offset; the last refusal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import click

from minikafka.cli.admin import parse_partition
from minikafka.cli.tables import bootstrap_option, output_option, print_json, print_lines, show, watch_option
from minikafka.cli.v1 import V1


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
    """Say why PARTITION (orders-0) has this leader, ISR, high watermark and last stable offset."""
    name = parse_partition(partition)

    async def asked() -> dict[str, Any]:
        async with V1(bootstrap) as v1:
            path = f"/v1/topics/{quote(name.topic, safe='')}/partitions/{name.partition}/explain"
            explained: dict[str, Any] = await v1.anybody("GET", path)
            return explained

    show(
        asked,
        lambda explained: print_json(explained) if output == "json" else print_lines(lines(explained)),
        watch=watch,
    )


def lines(explained: dict[str, Any]) -> Iterator[str]:
    """An explanation for people: each sentence, and below it what led to it, the oldest first."""
    yield f"{explained['topic']}-{explained['partition']}"
    yield f"leader          {explained['leader']['sentence']}"
    yield from _because(explained["leader"]["because"])
    yield f"isr             {explained['isr']['sentence']}"
    for member in explained["isr"]["members"]:
        yield f"                broker {member['id']}: {member['why']}"
    yield from _because(explained["isr"]["because"])
    yield f"high watermark  {explained['high_watermark']['sentence']}"
    yield from _because(explained["high_watermark"]["because"])
    yield f"last stable     {explained['last_stable_offset']['sentence']}"
    refusal = explained["last_refusal"]
    if refusal is not None:
        yield "last refusal"
        yield from _because([refusal])


def _because(events: list[dict[str, Any]]) -> Iterator[str]:
    for event in events:
        yield f"    {event['at'][:23]}  broker {event['broker']}: {event['sentence']}"
