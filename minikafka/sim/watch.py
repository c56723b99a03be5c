"""All invariants over one running cluster.

Events say what to look at: an observer notes it, and after the step, when every rule has finished its transition, the
invariants look. A step without events costs two comparisons.

Rules for this file: it decides what is looked at, and whose losses are named instead of being violations; what must
hold stands in ``invariants.py`` and ``metadata_invariants.py``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping

from minikafka.broker.broker import Broker
from minikafka.quorum.image import MetadataImage
from minikafka.replication.partition import Partition
from minikafka.sim.cluster import SimCluster, node_name
from minikafka.sim.invariants import (
    CommittedEnds,
    CommittedPrefixEqual,
    CompactionKeepsLatest,
    DeletionsHaveReasons,
    EnoughInSync,
    EpochsNeverFall,
    FetchIsDurable,
    GoneWhenCopied,
    HwNeverBackInEpoch,
    HwWithinLog,
    LeaderHoldsCommitted,
    OneLeaderPerEpoch,
    SentMessages,
    ValidHighWatermark,
)
from minikafka.sim.log_invariants import LogInOrder
from minikafka.sim.metadata_invariants import (
    IMAGE_EVENTS,
    PROPOSAL_EVENTS,
    QUORUM_EVENTS,
    AppliedEqual,
    FetchOfPresentBroker,
    IsrChanges,
    MetadataHolds,
    PresentRole,
    QuorumHolds,
    Replayed,
)
from minikafka.sim.replica_view import OfPartition, ReplicaView, Report, Violation, life_of, number_of
from minikafka.sim.transaction_invariants import StableOffset
from minikafka.sim.world import Event
from minikafka.types import Epoch, NodeId, Offset, TopicPartition

LOSSES = frozenset(
    {
        "committed_record_lost",
        "compaction_lost_record",
        "exposed_record_changed",
        "committed_prefix_equal",
        "stable_outcome_changed",
        "valid_high_watermark",
    }
)
"""What unsynced disks that lose their power all at once break; the history then says what clients have lost."""


class Watch:
    """All invariants over one cluster, from its creation to :meth:`close`."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.violations: list[Violation] = []
        self.is_looking = True
        self.forgiven: frozenset[str] = frozenset()
        """Names that are not violations in this run: plans beyond the fault budget lose records."""
        self.may_be_unclean: frozenset[str] = frozenset()
        """Topics whose leaders may be elected from outside the ISR."""
        self.rotten: Container[tuple[NodeId, TopicPartition]] = ()
        """Replicas whose disk is damaged: what they show is a fault's doing."""
        self.were_rotten: Container[TopicPartition] = ()
        committed = CommittedPrefixEqual()
        self.copied = GoneWhenCopied(committed)
        self.compaction = CompactionKeepsLatest(committed, self.copied)
        self.deletions = DeletionsHaveReasons()
        self.ends = CommittedEnds()
        self._isr = IsrChanges()
        self._of_partitions: list[OfPartition] = [
            PresentRole(),
            FetchOfPresentBroker(),
            self._isr,
            OneLeaderPerEpoch(),
            HwWithinLog(),
            HwNeverBackInEpoch(),
            EnoughInSync(),
            EpochsNeverFall(),
            ValidHighWatermark(),
            FetchIsDurable(),
            committed,
            LeaderHoldsCommitted(committed),
            LogInOrder(),
            self.deletions,
            self.ends,
            self.copied,
            self.compaction,
            StableOffset(lambda: self.were_rotten),
        ]
        self.committed = committed
        replayed = Replayed()
        self._metadata = MetadataHolds(replayed)
        self._applied = AppliedEqual(replayed)
        self._quorum = QuorumHolds(replayed)
        self._sent = SentMessages([node_name(node) for node in cluster.nodes], cluster.sim.loop.time, self.report)
        self._that_look: dict[frozenset[str], list[OfPartition]] = {}
        """Kinds of events -> the invariants that look after these."""
        self._nodes = {node_name(node): node for node in cluster.nodes}
        self._names: dict[str, TopicPartition] = {}
        self._new: list[Event] = []
        self._restarted: dict[str, dict[Offset, None]] = {}
        self._deleted: dict[str, list[tuple[float, Offset]]] = {}
        """Name -> when a replica raised its log start, and to where."""
        cluster.sim.observers.append(self._on_event)
        self._observers = (self._sent.observe, self.deletions.observe, self._metadata.observe)
        cluster.sim.network.observers += self._observers
        cluster.sim.loop.after_step.append(self._after_step)

    def close(self) -> None:
        """Look no more."""
        self.is_looking = False
        self.cluster.sim.observers.remove(self._on_event)
        for observer in self._observers:
            self.cluster.sim.network.observers.remove(observer)
        self.cluster.sim.loop.after_step.remove(self._after_step)

    def also(self, invariant: OfPartition) -> None:
        """Check replicas once more, after all others."""
        self._of_partitions.append(invariant)
        self._that_look.clear()

    def report(self, name: str, what: str) -> None:
        """Note a violation, this file's or another check's."""
        if name in self.forgiven:
            return
        loop = self.cluster.sim.loop
        loop.alarmed = True
        self.violations.append(Violation(name, what, loop.time(), loop.steps))

    def _on_event(self, event: Event) -> None:
        if event.node not in self._nodes:
            return
        if event.kind == "broker_fenced":
            self._look_at_fencing(event)
        self._sent.progress.on_event(event, self.report)
        if "partition" in event.facts or event.kind in QUORUM_EVENTS or event.kind in IMAGE_EVENTS:
            self._new.append(event)
            if event.kind in PROPOSAL_EVENTS:
                self._isr.on_event(event)
            if event.kind == "log_restarted":
                name = str(event.facts["partition"])
                self._restarted.setdefault(name, {})[number_of(event, "new")] = None
            elif event.kind == "log_start_raised":
                name = str(event.facts["partition"])
                self._deleted.setdefault(name, []).append((self.cluster.sim.loop.time(), number_of(event, "start")))

    def _look_at_fencing(self, event: Event) -> None:
        """No broker is fenced for a refused connection whose process of that registration lives and listens."""
        node, epoch = number_of(event, "broker"), number_of(event, "broker_epoch")
        image, broker = self.cluster.image(), self.cluster.present().get(node)
        registered = image.brokers.get(node) if image is not None else None
        if "connection refused" not in str(event.facts["why"]) or broker is None or registered is None:
            return
        is_present = registered.incarnation_id == broker.lifecycle.incarnation_id and registered.broker_epoch == epoch
        if is_present and self.cluster.sim.network.listens(registered.address):
            self.report("fenced_while_listening", f"broker {node} (epoch {epoch}): {event.facts['why']}")

    def restarted_at(self, name: TopicPartition) -> Collection[Offset]:
        """The offsets at which replicas began their logs, since the leader's started there."""
        return self._restarted.get(str(name), ())

    def deleted_below(self, name: TopicPartition, by: float = math.inf) -> Offset:
        """Below it some leader or follower had deleted at that time: another that leads later may have it still, as in
        Kafka.
        """
        return max((start for time, start in self._deleted.get(str(name), ()) if time <= by), default=0)

    def has_changed_leader(self, name: TopicPartition) -> bool:
        """Return True if a partition has had another leader epoch than its first, or was deleted."""
        return name in self._metadata.changed_leaders

    def unclean_elections(self, name: TopicPartition) -> Mapping[Epoch, float]:
        """In which epochs its leader was elected uncleanly, as its topic allows, and since when that was known."""
        return self._metadata.unclean.get(name, {}) if name.topic in self.may_be_unclean else {}

    def _report_of(self, view: ReplicaView) -> Report:
        """After an unclean election its leader, those after it, and all that have copied from them are held to what was
        not given up by it.

        Others still have, or follow with, a log that is to be cut; what that takes away is the history's to name.
        """
        view.unclean = self.unclean_elections(view.name)
        is_up_to_date = view.leader is not None or "follower_hw_changed" in view.kinds
        if view.unclean and not (is_up_to_date and view.partition.epoch >= max(view.unclean)):
            return self._report_what_is_no_loss
        return self.report

    def _report_what_is_no_loss(self, name: str, what: str) -> None:
        if name not in LOSSES:
            self.report(name, what)

    def _after_step(self) -> None:
        if not self._new:
            return
        events, self._new = self._new, []
        brokers = self.cluster.present()
        of_replicas: dict[Partition, list[Event]] = {}
        for event in events:
            node = self._nodes[event.node]
            if event.kind in QUORUM_EVENTS:
                self._quorum.on_event(event, life_of(event), self.cluster.brokers[node], self.report)
                continue
            if event.kind in IMAGE_EVENTS:
                continue
            partition = self._partition_of(event, brokers.get(node))
            if partition is None or partition.failed or (node, partition.partition) in self.rotten:
                continue
            of_replicas.setdefault(partition, []).append(event)
        # Behind the events of the quorum: images are judged batch by batch, as far as the committed batches are known.
        newest: MetadataImage | None = None
        for node, broker in brokers.items():
            image = broker.image
            if image is not self._applied.seen.get(node):
                for step, changed in self._metadata.look(image, self.report, self.cluster.sim.loop.time()):
                    self._isr.on_committed(changed, step, brokers, self.were_rotten, self.report)
                self._applied.look(node, image, self.report)
            if newest is None or image.offset > newest.offset:
                newest = image
        for partition, of_one in of_replicas.items():
            view = ReplicaView(brokers, newest, partition, of_one)
            view.is_hearsay = partition.partition in self.were_rotten
            report, kinds = self._report_of(view), view.kinds
            looking = self._that_look.get(kinds)
            if looking is None:
                looking = self._that_look[kinds] = [each for each in self._of_partitions if each.looks_at(kinds)]
            for each in looking:
                each.look(view, report)

    def _partition_of(self, event: Event, broker: Broker | None) -> Partition | None:
        """The replica that an event tells of; None when it names none of ours, or its broker is gone."""
        if broker is None:
            return None
        text = str(event.facts["partition"])
        name = self._names.get(text)
        if name is None:
            topic, _, number = text.rpartition("-")
            if not number.isdigit():
                return None
            name = self._names[text] = TopicPartition(topic, int(number))
        return broker.partitions.get(name)
