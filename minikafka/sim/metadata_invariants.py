"""What must hold of the metadata after every step: of each image that is applied, and of the quorum that commits it.

Rule for this file: it only looks (KAFKA-FACTS §10, DESIGN D5).
"""

from __future__ import annotations

from minikafka.broker.broker import Broker
from minikafka.quorum.image import MetadataImage, PartitionImage, changes
from minikafka.sim.held import Batch, batches_of
from minikafka.sim.sight import Report, number_of
from minikafka.sim.world import Event
from minikafka.types import NO_NODE, Epoch, NodeId, Offset, TopicPartition

QUORUM_EVENTS = frozenset({"quorum_leader_elected", "quorum_hw_advanced", "quorum_tail_truncated"})
"""What :class:`QuorumHolds` looks at."""


class MetadataHolds:
    """Of each committed image: the ISR is within the replicas, the leader within the ISR; epochs never fall."""

    def __init__(self) -> None:
        self.unclean: dict[TopicPartition, dict[Epoch, float]] = {}
        """Partitions that have had a leader from outside ISR and ELR (KIP-704): in which epochs, and since when."""
        self._newest = MetadataImage()

    def look(self, image: MetadataImage, report: Report, time: float = 0.0) -> None:
        """``image`` was applied somewhere."""
        if image.offset <= self._newest.offset:
            return
        for name, before, after in changes(self._newest, image):
            if after is None:
                continue
            if _is_elected_uncleanly(before, after):
                self.unclean.setdefault(name, {}).setdefault(after.leader_epoch, time)
            joined = set(after.isr) - set(before.isr if before is not None else after.isr)
            if not all(map(image.eligible, sorted(joined))):
                report("isr_joined_while_ineligible", f"{name} from {before} to {after}")
            if not set(after.isr) <= set(after.replicas):
                report("isr_within_replicas", f"{name} isr={list(after.isr)} replicas={list(after.replicas)}")
            if after.leader != NO_NODE and after.leader not in after.isr:
                report("leader_in_isr", f"{name} leader={after.leader} isr={list(after.isr)}")
            if before is not None and (
                after.leader_epoch < before.leader_epoch or after.partition_epoch < before.partition_epoch
            ):
                report("epochs_never_fall", f"{name} from {before} to {after}")
        self._newest = image


def _is_elected_uncleanly(before: PartitionImage | None, after: PartitionImage) -> bool:
    """A leader that recovers may die, and come back or be followed by another one: that election may be clean."""
    if after.recovered:
        return False
    return before is None or before.recovered or after.leader not in {NO_NODE, *before.isr, *before.elr}


class AppliedEqual:
    """Whoever has applied the metadata up to an offset knows the same, from records or from a snapshot (D5)."""

    def __init__(self) -> None:
        self.seen: dict[NodeId, MetadataImage] = {}
        """What each has applied last."""
        self._known: dict[Offset, tuple[NodeId, MetadataImage]] = {}

    def look(self, node: NodeId, image: MetadataImage, report: Report) -> None:
        """``node`` has applied ``image``."""
        if self.seen.get(node) is image:
            return
        self.seen[node] = image
        first, known = self._known.setdefault(image.offset, (node, image))
        if first != node and _state(known) != _state(image):
            report("metadata_differs", f"at {image.offset} broker {node} knows {image}, broker {first} {known}")


class QuorumHolds:
    """One leader per epoch, never again after a restart; committed metadata is one, and is never cut (§10.13)."""

    def __init__(self) -> None:
        self._leaders: dict[Epoch, str] = {}
        self._committed: dict[Offset, Batch] = {}
        self._committed_in: dict[Epoch, Offset] = {}
        """How far the metadata was committed when somebody in this epoch said so."""
        self._ends: dict[str, Offset] = {}

    def on_event(self, event: Event, life: str, broker: Broker, report: Report) -> None:
        """An event of the quorum, after its step."""
        if event.kind == "quorum_leader_elected":
            epoch = number_of(event, "epoch")
            first = self._leaders.setdefault(epoch, life)
            if first != life:
                report("one_quorum_leader_per_epoch", f"epoch {epoch} is led by {first} and by {life}")
            # A candidate may win an epoch that is over, and not have heard: it owes what older epochs committed.
            owed = max((end for before, end in self._committed_in.items() if before < epoch), default=0)
            if broker.quorum.log.end_offset < owed:
                lacks = f"{life} leads epoch {epoch} with {broker.quorum!r}, committed was {owed}"
                report("committed_metadata_lost", lacks)
        elif event.kind == "quorum_hw_advanced":
            self._commit(life, broker, number_of(event, "new"), report)
        elif event.kind == "quorum_tail_truncated" and number_of(event, "new") < self._ends.get(life, 0):
            report("committed_metadata_never_truncated", f"{life} cut to {event.facts['new']}, hw {self._ends[life]}")

    def _commit(self, life: str, broker: Broker, new: Offset, report: Report) -> None:
        for batch in batches_of(broker.quorum.log, self._ends.get(life, 0), new):
            first = self._committed.setdefault(batch.base_offset, batch)
            if first != batch:
                report("committed_metadata_differs", f"{life} committed {batch}, before it was {first}")
        self._ends[life] = max(new, self._ends.get(life, 0))
        epoch = broker.quorum.epoch
        self._committed_in[epoch] = max(new, self._committed_in.get(epoch, 0))


def _state(image: MetadataImage) -> tuple[object, ...]:
    return image.topics, image.brokers, image.broker_configs
