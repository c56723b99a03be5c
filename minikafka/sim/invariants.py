"""What must hold after every step (KAFKA-FACTS §10), one class an invariant; its name is what a failure is called.

Events say what to look at: an observer notes it, and after the step, when every rule has finished its transition, the
invariants look. A step without events costs two comparisons.

Rules for this file: it only looks. Whatever a leader's watermark has passed is *exposed*: noted with its checksum, and
compared with every replica whose watermark passes it later, and with the log of every later leader.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

from minikafka.broker.broker import Broker
from minikafka.quorum.image import MetadataImage, changes
from minikafka.replication.leader import LeaderReplica
from minikafka.replication.partition import Partition
from minikafka.sim.cluster import SimCluster, node_name
from minikafka.sim.compacted import KeyBook, lost_sequences
from minikafka.sim.held import Batch, batches_of, records_of, rows_of
from minikafka.sim.world import Event
from minikafka.types import NO_NODE, Epoch, NodeId, Offset, TopicId, TopicPartition


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken: ``name`` stays the same from run to run, ``what`` tells this case."""

    name: str
    what: str
    time: float
    step: int

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


Report: TypeAlias = Callable[[str, str], None]
"""(name, what)"""


class Exposed(NamedTuple):
    """A batch that a leader's watermark has passed, and in which epoch."""

    batch: Batch
    in_epoch: Epoch


Key: TypeAlias = tuple[TopicPartition, TopicId]
"""A partition, and which of those that have had its name."""


class Sight:
    """One replica after a step that told something about it."""

    __slots__ = ("brokers", "events", "image", "is_hearsay", "key", "leader", "life", "name", "partition", "time")

    def __init__(
        self, brokers: Mapping[NodeId, Broker], image: MetadataImage | None, event: Event, partition: Partition
    ) -> None:
        self.brokers = brokers
        """Those that live and have loaded their data."""
        self.image = image
        """The newest that any of them has applied."""
        self.life = life_of(event)
        self.time = event.time
        self.name = partition.partition
        self.key = (partition.partition, partition.topic_id)
        """A topic that was deleted and created anew is another one: its epochs and offsets begin again."""
        self.partition = partition
        self.leader = partition.role if isinstance(partition.role, LeaderReplica) else None
        """Its role, if it leads."""
        self.events: list[Event] = []
        self.is_hearsay = False
        """A leader of this partition was not looked at: its disk was damaged. What it exposed is known from others."""

    def replica(self, node: NodeId) -> Partition | None:
        """What another broker has of the same partition."""
        broker = self.brokers.get(node)
        return broker.partitions.get(self.name) if broker is not None else None


def life_of(event: Event) -> str:
    """Node and incarnation of whoever told it."""
    return f"{event.node}#{event.incarnation}"


# ---- of one partition ------------------------------------------------------------------------------------------------


class OfPartition(ABC):
    """An invariant over one replica, looked at after each step that told something about it."""

    name: ClassVar[str]

    @abstractmethod
    def look(self, sight: Sight, report: Report) -> None:
        """Report what does not hold at this moment."""


class OneLeaderPerEpoch(OfPartition):
    """At most one broker ever leads a partition in an epoch (§10.9)."""

    name = "one_leader_per_epoch"

    def __init__(self) -> None:
        self._leaders: dict[tuple[Key, Epoch], NodeId] = {}

    def look(self, sight: Sight, report: Report) -> None:
        leader = sight.leader
        if leader is not None:
            first = self._leaders.setdefault((sight.key, leader.epoch), leader.me)
            if first != leader.me:
                report(self.name, f"{sight.name} is led by {first} and by {leader.me} in epoch {leader.epoch}")


class HwWithinLog(OfPartition):
    """Log start <= watermark <= log end, recovery point <= log end (§10.8, S2)."""

    name = "hw_within_log"

    def look(self, sight: Sight, report: Report) -> None:
        log, watermark = sight.partition.log, sight.partition.high_watermark
        if not log.start_offset <= watermark <= log.end_offset or log.recovery_point > log.end_offset:
            report(self.name, f"{sight.life} {sight.partition!r} start={log.start_offset} rp={log.recovery_point}")


class HwNeverBackInEpoch(OfPartition):
    """A leader's watermark never falls within its epoch (§10.12)."""

    name = "hw_never_back_in_epoch"

    def __init__(self) -> None:
        self._highest: dict[tuple[str, Key, Epoch], Offset] = {}

    def look(self, sight: Sight, report: Report) -> None:
        leader = sight.leader
        if leader is not None:
            key = (sight.life, sight.key, leader.epoch)
            highest = self._highest.get(key, -1)
            if leader.high_watermark < highest:
                report(self.name, f"{sight.life} {leader!r}: the watermark was {highest}")
            self._highest[key] = max(highest, leader.high_watermark)


class EpochsNeverFall(OfPartition):
    """Leader epoch and partition epoch of a replica never fall in one life (§10.12)."""

    name = "epochs_never_fall"

    def __init__(self) -> None:
        self._newest: dict[tuple[str, Key], tuple[Epoch, int]] = {}

    def look(self, sight: Sight, report: Report) -> None:
        partition = sight.partition
        key = (sight.life, sight.key)
        before = self._newest.get(key, (-1, -1))
        now = (partition.epoch, partition.partition_epoch)
        if now[0] < before[0] or now[1] < before[1]:
            report(self.name, f"{sight.life} {sight.name}: leader and partition epoch went from {before} to {now}")
        self._newest[key] = now


class ValidHighWatermark(OfPartition):
    """Every replica in the controller's ISR holds what the leader calls committed (§10.4).

    A replica that has restarted and lost its tail counts until the controller has recorded its new registration: it is
    left out from the moment of its restart.
    """

    name = "valid_high_watermark"

    def look(self, sight: Sight, report: Report) -> None:
        leader, image = sight.leader, sight.image
        if leader is None or image is None:
            return
        state = image.partition(sight.name)
        if state is None or state.leader_epoch != leader.epoch:
            return
        if state.partition_epoch < leader.partition_epoch:
            return  # its ISR was answered by a controller that is gone, the record has not come round yet
        if image.topics[sight.name.topic].topic_id != sight.partition.topic_id:
            return
        for node in state.isr:
            replica = sight.replica(node)
            registered = image.brokers.get(node)
            if replica is None or replica.failed or registered is None or replica.epoch != leader.epoch:
                continue
            if replica.topic_id != sight.partition.topic_id:
                continue
            same_life = sight.brokers[node].broker_epoch == registered.broker_epoch
            if same_life and replica.log.end_offset < leader.high_watermark:
                report(self.name, f"{leader!r}, but {node} in the ISR {list(state.isr)} has {replica!r}")


class FetchIsDurable(OfPartition):
    """Under sync-before-acknowledge a follower asks from its synced end: its fetch is an acknowledgement (D6)."""

    name = "unsynced_tail_acknowledged"

    def look(self, sight: Sight, report: Report) -> None:
        leader = sight.leader
        if leader is None or not leader.config.syncs_before_acknowledging:
            return
        for event in sight.events:
            if event.kind != "follower_fetched":
                continue
            node, offset = _number(event, "replica"), _number(event, "offset")
            replica = sight.replica(node)
            is_same = replica is not None and replica.topic_id == sight.partition.topic_id
            if replica is None or not is_same or replica.epoch != leader.epoch or replica.log.end_offset < offset:
                continue  # it died, or has moved on since
            if replica.log.synced_end < offset:
                report(self.name, f"broker {node} asked {leader!r} from {offset}, synced is {replica.log.synced_end}")


class CommittedPrefixEqual(OfPartition):
    """Below any two watermarks the records are the same, and stay so (§10.2, §10.3, §10.6, §10.10)."""

    name = "committed_prefix_equal"

    def __init__(self) -> None:
        self.exposed: dict[Key, dict[Offset, Exposed]] = {}
        self.by_key: dict[Key, KeyBook] = {}
        """Of what is compacted."""
        self._compared: dict[tuple[str, Key], Offset] = {}

    def look(self, sight: Sight, report: Report) -> None:
        key = (sight.life, sight.key)
        watermark = sight.partition.high_watermark
        start = self._compared.get(key, 0)
        for event in sight.events:
            if event.kind == "tail_truncated":
                start = min(start, _number(event, "new"))
        self._compared[key] = watermark
        if start >= watermark:
            return
        exposed = self.exposed.setdefault(sight.key, {})
        exposing = self._exposing_epoch(sight)
        is_compacted = sight.partition.config.compacts
        for batch in rows_of(sight.partition.log, start, watermark, is_compacted=is_compacted):
            known = exposed.get(batch.base_offset)
            if known is not None and known.batch != batch:
                report("exposed_record_changed", f"{sight.name} on {sight.life}: {batch}, exposed was {known.batch}")
            elif known is None and exposing is not None:
                exposed[batch.base_offset] = Exposed(batch, exposing)
                if is_compacted:
                    self.by_key.setdefault(sight.key, KeyBook()).note(batch, sight.time)
            elif known is None:
                report(self.name, f"{sight.name} on {sight.life}: {batch} is below its watermark, no leader exposed it")

    @staticmethod
    def _exposing_epoch(sight: Sight) -> Epoch | None:
        """In which epoch this replica leads, or led earlier in this step (one step may apply several changes)."""
        led = [_number(event, "epoch") for event in sight.events if event.kind == "hw_advanced"]
        if sight.leader is None and sight.is_hearsay and not led:
            return sight.partition.epoch
        return sight.leader.epoch if sight.leader is not None else max(led, default=None)

    def of(self, key: Key) -> Iterable[Exposed]:
        """All that was exposed of a partition."""
        return self.exposed.get(key, {}).values()


class LeaderHoldsCommitted(OfPartition):
    """A new leader has every record that an earlier epoch exposed (§10.3, §10.11)."""

    name = "committed_record_lost"

    def __init__(self, committed: CommittedPrefixEqual) -> None:
        self._committed = committed

    def look(self, sight: Sight, report: Report) -> None:
        leader = sight.leader
        if leader is None or not any(event.kind == "became_leader" for event in sight.events):
            return
        log, is_compacted = leader.log, sight.partition.config.compacts
        held = {batch.base_offset: batch for batch in rows_of(log, 0, log.end_offset, is_compacted=is_compacted)}
        owed = self._committed.of(sight.key)
        if is_compacted:
            owed = still_owed(owed, held.values())
        for batch, in_epoch in owed:
            is_owed = in_epoch < leader.epoch and batch.base_offset >= log.start_offset
            if is_owed and held.get(batch.base_offset) != batch:
                report(
                    self.name,
                    f"{sight.name} {batch}, exposed in epoch {in_epoch}; the leader of epoch {leader.epoch}, broker "
                    f"{leader.me}, has {held.get(batch.base_offset, 'nothing')}",
                )
                return


def still_owed(exposed: Iterable[Exposed], held: Iterable[Batch]) -> list[Exposed]:
    """Of a compacted log: tombstones may be gone, and whatever a later record of its key replaces."""
    exposed = list(exposed)
    newest: dict[bytes | None, Offset] = {}
    for record in (*(each.batch for each in exposed), *held):
        newest[record.key] = max(record.base_offset, newest.get(record.key, record.base_offset))
    return [
        each for each in exposed if not each.batch.is_tombstone and newest[each.batch.key] == each.batch.base_offset
    ]


class CompactionKeepsLatest(OfPartition):
    """After a round of compaction: what was exposed and is gone had to go; each producer's last sequence is there."""

    name = "compaction_lost_record"

    def __init__(self, committed: CommittedPrefixEqual) -> None:
        self._committed = committed
        self.calendars_are_right = True
        """False: a broker's clock may say that a tombstone's time is over whenever it likes."""

    def look(self, sight: Sight, report: Report) -> None:
        book = self._committed.by_key.get(sight.key)
        if book is None or not any(event.kind == "log_compacted" for event in sight.events):
            return
        log, watermark = sight.partition.log, sight.partition.high_watermark
        retention_s = sight.partition.config.delete_retention_ms / 1000 if self.calendars_are_right else 0.0
        held = {record.base_offset for record in records_of(log, log.start_offset, watermark)}
        for record, _ in self._committed.of(sight.key):
            if not log.start_offset <= record.base_offset < watermark or record.base_offset in held:
                continue
            if not book.may_be_gone(record, end=log.end_offset, time=sight.time, delete_retention_s=retention_s):
                report(self.name, f"{sight.name} on {sight.life}: {record} of {record.key!r} is gone, hw {watermark}")
                return
        lost = lost_sequences(log, watermark)
        if lost:
            report("compaction_lost_sequence", f"{sight.name} on {sight.life}: of producers {lost}")


# ---- of the metadata -------------------------------------------------------------------------------------------------


class MetadataHolds:
    """Of each committed image: the ISR is within the replicas, the leader within the ISR; epochs never fall."""

    def __init__(self) -> None:
        self.unclean: dict[TopicPartition, None] = {}
        """Partitions that have had a leader from outside ISR and ELR (KIP-704)."""
        self._newest = MetadataImage()

    def look(self, image: MetadataImage, report: Report) -> None:
        """``image`` was applied somewhere."""
        if image.offset <= self._newest.offset:
            return
        for name, before, after in changes(self._newest, image):
            if after is None:
                continue
            if not after.recovered:
                self.unclean[name] = None
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
        same = (known.topics, known.brokers, known.broker_configs) == (
            image.topics,
            image.brokers,
            image.broker_configs,
        )
        if first != node and not same:
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
            epoch = _number(event, "epoch")
            first = self._leaders.setdefault(epoch, life)
            if first != life:
                report("one_quorum_leader_per_epoch", f"epoch {epoch} is led by {first} and by {life}")
            # A candidate may win an epoch that is over, and not have heard: it owes what older epochs committed.
            owed = max((end for before, end in self._committed_in.items() if before < epoch), default=0)
            if broker.quorum.log.end_offset < owed:
                lacks = f"{life} leads epoch {epoch} with {broker.quorum!r}, committed was {owed}"
                report("committed_metadata_lost", lacks)
        elif event.kind == "quorum_hw_advanced":
            self._commit(life, broker, _number(event, "new"), report)
        elif event.kind == "quorum_tail_truncated" and _number(event, "new") < self._ends.get(life, 0):
            report("committed_metadata_never_truncated", f"{life} cut to {event.facts['new']}, hw {self._ends[life]}")

    def _commit(self, life: str, broker: Broker, new: Offset, report: Report) -> None:
        for batch in batches_of(broker.quorum.log, self._ends.get(life, 0), new):
            first = self._committed.setdefault(batch.base_offset, batch)
            if first != batch:
                report("committed_metadata_differs", f"{life} committed {batch}, before it was {first}")
        self._ends[life] = max(new, self._ends.get(life, 0))
        epoch = broker.quorum.epoch
        self._committed_in[epoch] = max(new, self._committed_in.get(epoch, 0))


def _number(event: Event, fact: str) -> int:
    value = event.facts[fact]
    return value if isinstance(value, int) else -1


QUORUM_EVENTS = frozenset({"quorum_leader_elected", "quorum_hw_advanced", "quorum_tail_truncated"})


LOSSES = frozenset(
    {
        "committed_record_lost",
        "compaction_lost_record",
        "exposed_record_changed",
        "committed_prefix_equal",
        "valid_high_watermark",
    }
)
"""What unsynced disks that lose their power all at once break; the history then says what clients have lost."""


class Watch:
    """All invariants over one cluster, from its creation to :meth:`close`."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.violations: list[Violation] = []
        self.forgiven: frozenset[str] = frozenset()
        """Names that are not violations in this run: plans beyond the fault budget lose records."""
        self.may_be_unclean: frozenset[str] = frozenset()
        """Topics whose leaders may be elected from outside the ISR."""
        self.rotten: Container[tuple[NodeId, TopicPartition]] = ()
        """Replicas whose disk is damaged: what they show is a fault's doing."""
        self.were_rotten: Container[TopicPartition] = ()
        committed = CommittedPrefixEqual()
        self.compaction = CompactionKeepsLatest(committed)
        self._of_partitions: list[OfPartition] = [
            OneLeaderPerEpoch(),
            HwWithinLog(),
            HwNeverBackInEpoch(),
            EpochsNeverFall(),
            ValidHighWatermark(),
            FetchIsDurable(),
            committed,
            LeaderHoldsCommitted(committed),
            self.compaction,
        ]
        self.committed = committed
        self._metadata = MetadataHolds()
        self._applied = AppliedEqual()
        self._quorum = QuorumHolds()
        self._nodes = {node_name(node): node for node in cluster.nodes}
        self._names: dict[str, TopicPartition] = {}
        self._told: list[Event] = []
        self._begun_anew: dict[str, Offset] = {}
        cluster.sim.observers.append(self._on_event)
        cluster.sim.loop.after_step.append(self._after_step)

    def close(self) -> None:
        """Look no more."""
        self.cluster.sim.observers.remove(self._on_event)
        self.cluster.sim.loop.after_step.remove(self._after_step)

    def also(self, invariant: OfPartition) -> None:
        """Have one more look at replicas, after all others."""
        self._of_partitions.append(invariant)

    def report(self, name: str, what: str) -> None:
        """Note a violation, this file's or another check's."""
        if name in self.forgiven:
            return
        loop = self.cluster.sim.loop
        loop.alarmed = True
        self.violations.append(Violation(name, what, loop.time(), loop.steps))

    def _on_event(self, event: Event) -> None:
        if event.node in self._nodes and ("partition" in event.facts or event.kind in QUORUM_EVENTS):
            self._told.append(event)
            if event.kind == "log_restarted":
                name = str(event.facts["partition"])
                self._begun_anew[name] = max(_number(event, "new"), self._begun_anew.get(name, 0))

    def begun_anew_at(self, name: TopicPartition) -> Offset:
        """The highest offset at which a replica began its log, since the leader's starts there; else 0."""
        return self._begun_anew.get(str(name), 0)

    def may_have_lost(self, name: TopicPartition) -> bool:
        """Was its leader elected uncleanly, as its topic allows? What that lost is the history's to name."""
        return name.topic in self.may_be_unclean and name in self._metadata.unclean

    def _report_what_is_no_loss(self, name: str, what: str) -> None:
        if name not in LOSSES:
            self.report(name, what)

    def _after_step(self) -> None:
        if not self._told:
            return
        told, self._told = self._told, []
        brokers = self.cluster.present()
        newest: MetadataImage | None = None
        for node, broker in brokers.items():
            image = broker.image
            if image is not self._applied.seen.get(node):
                self._metadata.look(image, self.report)
                self._applied.look(node, image, self.report)
            if newest is None or image.offset > newest.offset:
                newest = image
        sights: dict[tuple[NodeId, TopicPartition], Sight] = {}
        for event in told:
            node = self._nodes[event.node]
            if event.kind in QUORUM_EVENTS:
                self._quorum.on_event(event, life_of(event), self.cluster.brokers[node], self.report)
                continue
            partition = self._partition_of(event, brokers.get(node))
            if partition is None or partition.failed or (node, partition.partition) in self.rotten:
                continue
            sight = sights.get((node, partition.partition))
            if sight is None:
                sight = sights[node, partition.partition] = Sight(brokers, newest, event, partition)
                sight.is_hearsay = partition.partition in self.were_rotten
            sight.events.append(event)
        for sight in sights.values():
            report = self._report_what_is_no_loss if self.may_have_lost(sight.name) else self.report
            for each in self._of_partitions:
                each.look(sight, report)

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


def _state(image: MetadataImage) -> tuple[object, ...]:
    return image.topics, image.brokers, image.broker_configs
