"""What metrics read beside the broker: counts of its events, and what its process knows.

Every broker has these from its start. The rest of this package is loaded by the first scrape, so nothing of it is
imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from minikafka.broker.meters import Histogram
from minikafka.ports import Unheard
from minikafka.types import METADATA_TOPIC

_ISR_CHANGES = frozenset({"isr_shrunk", "isr_expanded", "isr_changed"})


class EventCounts:
    """An observer of a broker's events: how often each kind happened, and what some of them say."""

    def __init__(self, unheard: Unheard | None = None) -> None:
        """``unheard``: where the sink counts hot events that it does not report."""
        self._reported: dict[str, int] = {}
        self._unheard = unheard or Unheard()
        self.isr_changes = dict.fromkeys(sorted(_ISR_CHANGES), 0)
        """As the partitions' leaders saw them: the controller tells the same changes again."""
        self.unclean_elections = 0
        self.truncated_records = {"divergence": 0, "metadata_divergence": 0}

    def __call__(self, kind: str, facts: Mapping[str, object]) -> None:
        """Count one event."""
        self._reported[kind] = self._reported.get(kind, 0) + 1
        if kind in _ISR_CHANGES:
            if "partition_epoch" not in facts:
                self.isr_changes[kind] += 1
        elif kind == "leader_elected":
            self.unclean_elections += facts.get("clean") is False
        elif kind == "log_truncated":
            of_metadata = str(facts.get("partition", "")).startswith(METADATA_TOPIC)
            old, new = facts.get("old"), facts.get("new")
            if isinstance(old, int) and isinstance(new, int):
                self.truncated_records["metadata_divergence" if of_metadata else "divergence"] += old - new

    def count(self, kind: str) -> int:
        """How often this kind happened."""
        return self._reported.get(kind, 0) + self._unheard.counts.get(kind, 0)

    @property
    def by_kind(self) -> dict[str, int]:
        """The number of events of each kind that occurred."""
        unheard = {kind for kind, count in self._unheard.counts.items() if count}
        return {kind: self.count(kind) for kind in {*self._reported, *unheard}}


@dataclass(frozen=True, slots=True)
class ProcessGauges:
    """What the world around the broker can tell; read at each scrape."""

    active_faults: int
    """Faults that tests have set on links."""
    connections: int
    refused_connections: Mapping[str, int]
    """By the setting whose limit they exceeded."""
    queued_bytes: int
    free_bytes: int
    """On the file system of the data directory; -1 when it is not known."""
    loop_lag: Histogram


ReadGauges = Callable[[], ProcessGauges]
