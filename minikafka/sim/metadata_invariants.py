"""What must hold of the metadata after every step: of each image that is applied, and of the quorum that commits it.

Rule for this file: it only looks (KAFKA-FACTS §10, DESIGN D5).
"""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter
from typing import Final, TypeAlias

from minikafka.broker.broker import Broker
from minikafka.quorum.image import MetadataImage, PartitionImage, changes
from minikafka.quorum.records import decode
from minikafka.sim.held import Batch, stored_batches
from minikafka.sim.sight import Report, number_of
from minikafka.sim.world import Event
from minikafka.types import NO_NODE, Epoch, NodeId, Offset, TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.records import decode_batch

QUORUM_EVENTS = frozenset({"quorum_leader_elected", "quorum_hw_advanced", "quorum_tail_truncated", "vote_granted"})
"""What :class:`QuorumHolds` looks at."""

IMAGE_EVENTS = frozenset({"snapshot_loaded", "broker_registered", "configs_altered"})
"""Events without a partition after which images are looked at."""


STATE: Final = ("topics", "topic_names", "brokers", "broker_configs", "features", "next_producer_id")
"""Members of an image that brokers must agree on; its offset and its epoch do not count control batches."""

_state: Final = attrgetter(*STATE)

Change: TypeAlias = tuple[TopicPartition, PartitionImage | None, PartitionImage | None]
"""A partition, and its state before and after; None: it does not exist."""


class MetadataHolds:
    """Of each committed image: the ISR is within the replicas, the leader within the ISR; epochs never fall."""

    def __init__(self) -> None:
        self.unclean: dict[TopicPartition, dict[Epoch, float]] = {}
        """Partitions that have had a leader from outside ISR and ELR (KIP-704): in which epochs, and since when."""
        self._newest = MetadataImage()

    def look(self, image: MetadataImage, report: Report, time: float = 0.0) -> list[Change]:
        """``image`` was applied somewhere; the partitions that have changed, if it is newer than any before."""
        if image.offset <= self._newest.offset:
            return []
        changed = list(changes(self._newest, image))
        for name, before, after in changed:
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
        return changed


def _is_elected_uncleanly(before: PartitionImage | None, after: PartitionImage) -> bool:
    """A leader that recovers may die, and come back or be followed by another one: that election may be clean."""
    if after.recovered:
        return False
    return before is None or before.recovered or after.leader not in {NO_NODE, *before.isr, *before.elr}


class Replayed:
    """The whole metadata log, replayed batch by batch on commit: what every image must equal."""

    def __init__(self) -> None:
        self.end: Offset = 0
        """All below it is replayed."""
        self._offsets: list[Offset] = [0]
        self._images: list[MetadataImage] = [MetadataImage()]

    def add(self, batch: RecordBatch) -> None:
        """``batch`` is committed; batches that are known already, and those behind a gap, change nothing."""
        if batch.base_offset != self.end:
            return
        self.end = batch.next_offset
        if not batch.is_control:
            records = [decode(record.value or b"") for record in decode_batch(batch)]
            end = batch.base_offset + len(records)
            self._images.append(self._images[-1].replay_all(records, end, batch.leader_epoch))
            self._offsets.append(end)

    def at(self, offset: Offset) -> MetadataImage | None:
        """The image at ``offset``; None if that is not replayed yet."""
        return self._images[bisect_right(self._offsets, offset) - 1] if offset <= self.end else None


class AppliedEqual:
    """A broker's image equals the replay of the whole log, also if the broker began from a snapshot (D5)."""

    def __init__(self, replayed: Replayed | None = None) -> None:
        self.seen: dict[NodeId, MetadataImage] = {}
        """What each has applied last."""
        self._replayed = replayed or Replayed()
        self._known: dict[Offset, tuple[str, MetadataImage]] = {}
        """Images that the replay has not reached, by the node that showed them first."""

    def look(self, node: NodeId, image: MetadataImage, report: Report) -> None:
        """``node`` has applied ``image``."""
        if self.seen.get(node) is image:
            return
        self.seen[node] = image
        me = f"broker {node}"
        first, known = "the whole log", self._replayed.at(image.offset)
        if known is None:
            first, known = self._known.setdefault(image.offset, (me, image))
        if known is image or _state(known) == _state(image):
            return
        wrong = [name for name in STATE if getattr(known, name) != getattr(image, name)]
        differences = "; ".join(
            f"{name} {getattr(image, name)}, but {getattr(known, name)} by {first}" for name in wrong
        )
        report("metadata_differs", f"at {image.offset} {me} knows {differences}")


class QuorumHolds:
    """One leader per epoch, never again after a restart; committed metadata is one, and is never cut (§10.13)."""

    def __init__(self, replayed: Replayed | None = None) -> None:
        self._replayed = replayed or Replayed()
        self._leaders: dict[Epoch, str] = {}
        self._committed: dict[Offset, Batch] = {}
        self._committed_in: dict[Epoch, Offset] = {}
        """How far the metadata was committed when a node in this epoch said so."""
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
        elif event.kind == "vote_granted" and not event.facts["pre_vote"]:
            own: tuple[int, int] = broker.quorum.core.log_end
            candidates: tuple[int, int] = event.facts["log"]  # type: ignore[assignment]
            if candidates < own:
                vote = f"{life} voted for {event.facts['candidate']} in epoch {event.facts['epoch']}"
                report("vote_for_a_log_behind", f"{vote}: its log ends at {candidates}, the voter's at {tuple(own)}")

    def _commit(self, life: str, broker: Broker, new: Offset, report: Report) -> None:
        for stored in stored_batches(broker.quorum.log, self._ends.get(life, 0), new):
            self._replayed.add(stored)
            batch = Batch(stored.base_offset, stored.next_offset, stored.leader_epoch, stored.crc)
            first = self._committed.setdefault(batch.base_offset, batch)
            if first != batch:
                report("committed_metadata_differs", f"{life} committed {batch}, before it was {first}")
        self._ends[life] = max(new, self._ends.get(life, 0))
        epoch = broker.quorum.epoch
        self._committed_in[epoch] = max(new, self._committed_in.get(epoch, 0))
