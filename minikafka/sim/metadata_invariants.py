"""What must hold of the metadata after every step, of ISR changes, and of late messages.

- Metadata: each image that is applied, and the quorum that commits it (KAFKA-FACTS §10, DESIGN D5).
- ISR: what a leader proposes, what the controller may have committed, and what it commits. A proposal is *open* from
  the moment the leader makes it until the controller has surely refused it, or until the partition epoch that it
  replaces is over. An open proposal may be committed at any time: a request or its response can be lost or late. The
  leader must therefore count every member of every open proposal (KIP-497).
- Roles: a response or a request can arrive after an election, or after its sender has restarted. The receiver must then
  ignore it (KIP-320, KIP-903).

Rules for this file: it only looks. At ISR changes it looks only when an ISR event happened or the metadata has changed;
at roles, one pass over the events of the step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from minikafka.broker.alter_partition_manager import SURELY_NOT_DONE
from minikafka.broker.broker import Broker
from minikafka.errors import error_name
from minikafka.quorum.image import MetadataImage, PartitionImage, changes
from minikafka.quorum.records import decode
from minikafka.replication.follower import FollowerReplica
from minikafka.replication.leader import LeaderReplica
from minikafka.sim.log_invariants import Batch, batch_of, stored_heads, whole
from minikafka.sim.losses import UNCLEAN_SETTING
from minikafka.sim.replica_view import OfPartition, ReplicaView, Report, number_of
from minikafka.sim.verdicts import Message, Verdict
from minikafka.sim.world import Event
from minikafka.types import NO_NODE, Epoch, NodeId, Offset, TopicId, TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.codec import decode_request, find_api
from minikafka.wire.records import decode_batch

ELECT_LEADERS = find_api("ElectLeaders")

ROLE_EVENTS = frozenset({"became_leader", "became_follower", "became_leaderless", "role_given_up"})
"""Events after which a replica has another role."""

FOLLOWER_EVENTS = frozenset({"tail_truncated", "nothing_truncated", "log_restarted", "follower_hw_changed"})
"""Changes that only a follower makes; each event names the epoch of the role that made it."""


class PresentRole(OfPartition):
    """A replica is changed by its present role only (KAFKA-FACTS 10.9; KIP-320)."""

    name = "changed_by_a_former_role"
    looks_after = FOLLOWER_EVENTS | {"batch_appended"}

    def look(self, view: ReplicaView, report: Report) -> None:
        role = view.partition.role
        for event in reversed(view.events):
            if event.kind in ROLE_EVENTS:
                return  # what happened before it in this step was done by another role
            acted = _acting_role(event)
            if acted is None:
                continue
            kind, epoch = acted
            if not isinstance(role, kind) or role.epoch != epoch:
                report(
                    self.name,
                    f"{view.life} {event.kind} {dict(event.facts)} by the {kind.__name__} of epoch {epoch}, "
                    f"the present role is {role!r}",
                )
                return


def _acting_role(event: Event) -> tuple[type[LeaderReplica | FollowerReplica], int] | None:
    """The kind and the epoch of the role that caused the event; None for events of no role."""
    if event.kind == "batch_appended":
        if "role_epoch" in event.facts:
            return FollowerReplica, number_of(event, "role_epoch")
        return LeaderReplica, number_of(event, "epoch")
    if event.kind in FOLLOWER_EVENTS and "epoch" in event.facts:
        return FollowerReplica, number_of(event, "epoch")
    return None


class FetchOfPresentBroker(OfPartition):
    """A leader counts the fetches of that registration of a broker which its own metadata has, and of no earlier
    (KIP-903) or later one.
    """

    earlier = "superseded_fetch_counted"
    later = "unknown_registration_counted"
    looks_after = frozenset({"follower_fetched"})

    def look(self, view: ReplicaView, report: Report) -> None:
        leader = view.leader
        if leader is None:
            return
        for event in view.events:
            if event.kind != "follower_fetched":
                continue
            node = number_of(event, "replica")
            remote = leader.remotes.get(node)
            registered = view.brokers[leader.me].image.brokers.get(node)
            if remote is None or registered is None or not registered.eligible:
                continue
            if remote.broker_epoch not in (-1, registered.broker_epoch):
                report(
                    self.earlier if remote.broker_epoch < registered.broker_epoch else self.later,
                    f"{leader!r} counted a fetch of broker {node} with epoch {remote.broker_epoch}; "
                    f"the registration that it knows has epoch {registered.broker_epoch}",
                )


QUORUM_EVENTS = frozenset({"quorum_leader_elected", "quorum_hw_advanced", "quorum_tail_truncated", "vote_granted"})
"""What :class:`QuorumHolds` looks at."""

IMAGE_EVENTS = frozenset({"snapshot_loaded", "broker_registered", "broker_unregistered", "configs_altered"})
"""Events without a partition after which images are looked at."""


STATE: Final = (
    "topics",
    "topic_names",
    "brokers",
    "broker_configs",
    "features",
    "next_producer_id",
    "acls",
    "scram",
    "cluster_secret",
    "quotas",
)
"""Members of an image that brokers must agree on: all that the log says. Its offset and its epoch do not count control
batches, and the id of the cluster is of no record.
"""

_state: Final = attrgetter(*STATE)

Change: TypeAlias = tuple[TopicPartition, PartitionImage | None, PartitionImage | None]
"""A partition, and its state before and after; None: it does not exist."""


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

    def between(self, old: Offset, image: MetadataImage) -> list[MetadataImage]:
        """The images after the one at ``old``, one for each batch, up to ``image``, which may not be replayed yet."""
        found = self._images[bisect_right(self._offsets, old) : bisect_right(self._offsets, image.offset)]
        return found if found and found[-1].offset == image.offset else [*found, image]


class MetadataHolds:
    """Of each committed image: the ISR is within the replicas, the leader within the ISR; epochs never fall. A broker
    that is unregistered has no replica.
    """

    def __init__(self, replayed: Replayed | None = None) -> None:
        self.unclean: dict[TopicPartition, dict[Epoch, float]] = {}
        """Partitions that have had a leader from outside ISR and ELR (KIP-704): in which epochs, and since when."""
        self.changed_leaders: set[TopicPartition] = set()
        """Partitions with a leader epoch that was not their first, and those that were deleted."""
        self.elected_by_hand: set[TopicPartition] = set()
        """Partitions for which an operator has requested an election."""
        self._replayed = replayed or Replayed()
        self._newest = MetadataImage()

    def observe(self, message: Message, _verdict: Verdict) -> None:
        """``message`` was sent."""
        if message.api == ELECT_LEADERS.name and message.kind == "request":
            request = decode_request(ELECT_LEADERS, message.body)
            for each in request.partitions or () if request.election_type == "unclean" else ():
                self.elected_by_hand.add(TopicPartition(each.topic, each.partition))

    def look(self, image: MetadataImage, report: Report, time: float = 0.0) -> list[tuple[MetadataImage, list[Change]]]:
        """``image`` was applied somewhere. Return each committed image since the newest one before, with the partitions
        that its batch has changed: several changes at once may look like an unclean election, or hide one.
        """
        if image.offset <= self._newest.offset:
            return []
        images = self._replayed.between(self._newest.offset, image)
        return [(each, self._look_at(each, report, time)) for each in images]

    def _look_at(self, image: MetadataImage, report: Report, time: float) -> list[Change]:
        self._look_for_replicas_of_the_gone(image, report)
        changed = list(changes(self._newest, image))
        for name, before, after in changed:
            if after is None or after.leader_epoch > 0:
                self.changed_leaders.add(name)
            if after is None:
                continue
            if _is_elected_uncleanly(before, after):
                self.unclean.setdefault(name, {}).setdefault(after.leader_epoch, time)
            joined = set(after.isr) - set(before.isr if before is not None else after.isr)
            if not all(map(image.eligible, sorted(joined))):
                report("isr_joined_while_ineligible", f"{name} from {before} to {after}")
            self._look_at_eligible(name, before, after, report)
            self._look_at_leader(name, before, after, image, report)
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

    def _look_at_eligible(
        self, name: TopicPartition, before: PartitionImage | None, after: PartitionImage, report: Report
    ) -> None:
        """Eligible leader replicas were in sync when they became that, and are not now (KIP-966)."""
        if not set(after.elr) <= set(after.replicas) - set(after.isr):
            report("eligible_leader_replicas", f"{name} isr={list(after.isr)} elr={list(after.elr)}")
        if before is None or after.partition_epoch != before.partition_epoch + 1:
            return
        if not set(after.elr) <= {*before.elr, *before.isr}:
            report("eligible_leader_replicas", f"{name} from {before} to {after}")

    def _look_at_leader(
        self,
        name: TopicPartition,
        before: PartitionImage | None,
        after: PartitionImage,
        image: MetadataImage,
        report: Report,
    ) -> None:
        """From outside ISR and ELR only the last known leader is elected, unless the topic or an operator asks for it.

        Where several changes came in one batch nothing is known of those between.
        """
        if before is None or after.partition_epoch != before.partition_epoch + 1 or after.leader == before.leader:
            return
        may_lead = {NO_NODE, *before.isr, *before.elr, *before.last_known_elr}
        is_asked_for = image.topics[name.topic].configs.get(UNCLEAN_SETTING) == "true" or name in self.elected_by_hand
        is_moved = after.assignment != before.assignment  # what was proposed for that: see IsrChanges
        if after.leader not in may_lead and not is_moved and not is_asked_for:
            report("elected_from_outside", f"{name} from {before} to {after}")

    def _look_for_replicas_of_the_gone(self, image: MetadataImage, report: Report) -> None:
        gone = self._newest.brokers.keys() - image.brokers.keys()
        for topic, state in image.sorted_partitions() if gone else ():
            for node in sorted(gone.intersection(state.replicas)):
                name = TopicPartition(topic.name, state.partition)
                report("replica_of_an_unregistered_broker", f"{name} has {list(state.replicas)}, broker {node} is gone")


def _is_elected_uncleanly(before: PartitionImage | None, after: PartitionImage) -> bool:
    """A leader that recovers may die, and come back or be followed by another one: that election may be clean."""
    if after.recovered:
        return False
    return before is None or before.recovered or after.leader not in {NO_NODE, *before.isr, *before.elr}


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
        for stored in stored_heads(broker.quorum.log, self._ends.get(life, 0), new):
            batch = batch_of(stored)
            if batch.base_offset == self._replayed.end:  # mostly another node has committed it before
                self._replayed.add(whole(*stored))
            first = self._committed.setdefault(batch.base_offset, batch)
            if first != batch:
                report("committed_metadata_differs", f"{life} committed {batch}, before it was {first}")
        self._ends[life] = max(new, self._ends.get(life, 0))
        epoch = broker.quorum.epoch
        self._committed_in[epoch] = max(new, self._committed_in.get(epoch, 0))


REFUSED = frozenset(map(error_name, SURELY_NOT_DONE))
"""Errors that say that the controller has not applied the proposal and will not."""

PROPOSAL_EVENTS = frozenset({"isr_proposed", "isr_proposal_refused", "became_leader"})
"""What :meth:`IsrChanges.on_event` is to be given."""


class _Proposal(NamedTuple):
    partition_epoch: int
    """The partition epoch that it replaces."""
    isr: frozenset[NodeId]


class IsrChanges(OfPartition):
    """The maximal ISR contains every ISR that may be committed; each committed change was proposed, or enforced."""

    name = "maximal_isr_lacks_a_member"
    looks_after = frozenset(
        {"isr_proposed", "isr_proposal_ended", "isr_expanded", "isr_shrunk", "isr_changed", "became_leader"}
    )
    """Events after which a leader's maximal ISR may be another one."""

    def __init__(self) -> None:
        self._proposed: dict[tuple[str, Epoch], list[_Proposal]] = {}
        """Proposals of a leader epoch, also overtaken ones: a second copy of the request may still be applied."""
        self._open: dict[tuple[str, Epoch], list[_Proposal]] = {}

    def on_event(self, event: Event) -> None:
        """Note a proposal at its event: the replica may be gone when the step is over."""
        key = (str(event.facts["partition"]), number_of(event, "epoch"))
        if event.kind == "became_leader":
            self._open.pop(key, None)  # a topic that was deleted and created again begins its epochs again
        elif event.kind == "isr_proposed":
            members: Iterable[NodeId] = event.facts["new"]  # type: ignore[assignment]
            proposal = _Proposal(number_of(event, "partition_epoch"), frozenset(members))
            self._proposed.setdefault(key, []).append(proposal)
            self._open.setdefault(key, []).append(proposal)
        elif event.facts["error"] in REFUSED and self._open.get(key):
            self._proposed[key].remove(self._open[key].pop())  # one is under way at a time: the latest

    def look(self, view: ReplicaView, report: Report) -> None:
        leader = view.leader
        if leader is None:
            return
        state = view.image.partition(view.name) if view.image is not None else None
        key = (leader.name, leader.epoch)
        newest = leader.partition_epoch
        if state is not None and state.leader_epoch == leader.epoch and _is_same_topic(view):
            newest = max(newest, state.partition_epoch)
            self._compare(leader, state, report)
        still = [each for each in self._open.get(key, ()) if each.partition_epoch >= newest]
        self._open[key] = still
        for proposal in still:
            if not proposal.isr <= set(leader.maximal_isr):
                report(
                    self.name,
                    f"{leader!r} counts {list(leader.maximal_isr)}; its proposal {sorted(proposal.isr)}, which "
                    f"replaces partition epoch {proposal.partition_epoch}, may still be committed",
                )
                return

    def on_committed(
        self,
        changes: Iterable[Change],
        image: MetadataImage,
        brokers: Mapping[NodeId, Broker],
        damaged: Container[TopicPartition],
        report: Report,
    ) -> None:
        """The controller has committed ``changes``, which led to ``image``; of ``damaged`` no events were seen."""
        for name, before, after in changes:
            if after is None:
                continue
            leader = _leader(brokers, name, image.topics[name.topic].topic_id, after)
            if leader is not None:
                self._compare(leader, after, report)
            is_next = before is not None and after.partition_epoch == before.partition_epoch + 1
            if before is None or not is_next or name in damaged:
                continue
            if before.leader_epoch != after.leader_epoch:
                self._look_at_election(str(name), before, after, report)
            elif set(after.isr) != set(before.isr) and not self._is_explained(str(name), before, after, image):
                made = self._proposed.get((str(name), after.leader_epoch), [])
                report(
                    "isr_change_without_a_proposal",
                    f"{name}: partition epoch {before.partition_epoch} had the ISR {list(before.isr)}, "
                    f"{after.partition_epoch} has {list(after.isr)}; proposed were {made[-3:]}",
                )

    def _look_at_election(self, name: str, before: PartitionImage, after: PartitionImage, report: Report) -> None:
        """An election brings nobody into the ISR but its leader, unless it completes a move with what was proposed."""
        joined = set(after.isr) - {*before.isr, after.leader}
        made = self._proposed.get((name, before.leader_epoch), [])
        if joined and not any(p.partition_epoch == before.partition_epoch and joined <= p.isr for p in made):
            report("isr_change_without_a_proposal", f"{name} from {before} to {after}; proposed were {made[-3:]}")

    def _compare(self, leader: LeaderReplica, state: PartitionImage, report: Report) -> None:
        if state.partition_epoch >= leader.partition_epoch and not set(state.isr) <= set(leader.maximal_isr):
            report(self.name, f"{leader!r} counts {list(leader.maximal_isr)}, committed is {list(state.isr)}")

    def _is_explained(self, name: str, before: PartitionImage, after: PartitionImage, image: MetadataImage) -> bool:
        """Return True if the leader proposed this ISR for this partition epoch, or the controller only removed members
        that may not be in an ISR any more.
        """
        wanted = _Proposal(before.partition_epoch, frozenset(after.isr))
        if wanted in self._proposed.get((name, after.leader_epoch), ()):
            return True
        removed = set(before.isr) - set(after.isr)
        may_stay = any(image.eligible(node) and node in after.replicas for node in removed)
        return set(after.isr) <= set(before.isr) and not may_stay


def _leader(
    brokers: Mapping[NodeId, Broker], name: TopicPartition, topic_id: TopicId, state: PartitionImage
) -> LeaderReplica | None:
    """The role of the broker that leads in this state, if it has taken it up."""
    broker = brokers.get(state.leader)
    partition = broker.partitions.get(name) if broker is not None else None
    role = partition.role if partition is not None and partition.topic_id == topic_id else None
    return role if isinstance(role, LeaderReplica) and role.epoch == state.leader_epoch else None


def _is_same_topic(view: ReplicaView) -> bool:
    topic = view.image.topics.get(view.name.topic) if view.image is not None else None
    return topic is not None and topic.topic_id == view.partition.topic_id
