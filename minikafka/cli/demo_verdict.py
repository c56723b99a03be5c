"""``verdict.json``: the demo's result for programs."""

from __future__ import annotations

from typing import Any

from minikafka.chaos.evidence import Compared
from minikafka.check import Verdict


def to_json(verdict: Verdict, failovers: list[Any], compared: Compared, seconds: float) -> dict[str, object]:
    """What ``verdict.json`` holds."""
    return {
        **verdict.to_json(),
        "seconds": round(seconds, 3),
        "replicas": {"batches": compared.batches, "bytes": compared.size, "differences": compared.differences},
        "failovers": [
            {
                "what": each.what,
                "broker": each.node,
                "partitions": list(each.partitions),
                "controller_s": each.controller_s,
                "elected_s": each.elected_s,
                "writable_s": each.writable_s,
                "in_sync_s": each.in_sync_s,
            }
            for each in failovers
        ],
    }
