"""The rules' events as sentences: the cause of each change (DESIGN D9).

Rules for this file: an event that the table shows anyway has no sentence; one that explains has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from minikafka.types import NodeId

NameOf = Callable[[NodeId], str]


def sentence(kind: str, facts: Mapping[str, Any], name_of: NameOf) -> str:
    """An event in words; empty for one that adds nothing."""

    def names(nodes: Iterable[NodeId]) -> str:
        return ",".join(map(name_of, nodes))

    match kind:
        case "hw_advanced":
            has = "has" if len(facts["isr"]) == 1 else "have"
            return f"HW {facts['old']}→{facts['new']}: {names(facts['isr'])} {has} all below it"
        case "follower_hw_changed" if facts["new"] < facts["old"]:
            return f"HW goes back {facts['old']}→{facts['new']}"
        case "tail_truncated":
            below = ", below its HW" if facts["below_high_watermark"] else ""
            return f"cuts its log {facts['old']}→{facts['new']}{below}"
        case "log_restarted" if "epoch" in facts:
            return f"empties its log, which starts at {facts['new']} now"
        case "torn_tail_dropped":
            return f"recovery drops {facts['size']} bytes: {facts['reason']}"
        case "isr_proposed" if facts["old"] != facts["new"]:
            return f"wants ISR {names(facts['old'])} → {names(facts['new'])}"
        case "became_leader":
            return f"leads in epoch {facts['epoch']} from offset {facts['leo']}"
        case "became_follower":
            return f"follows {name_of(facts['leader'])} in epoch {facts['epoch']}"
        case _:
            return ""
