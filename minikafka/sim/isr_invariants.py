"""Invariants over ISR changes: what a leader proposes, what the controller may have committed, and what it commits.

A proposal is *open* from the moment the leader makes it until the controller has surely refused it, or until the
partition epoch that it replaces is over. An open proposal may be committed at any time: a request or its response can
be lost or late. The leader must therefore count every member of every open proposal (KIP-497).

Rule for this file: it only looks. It looks when an ISR event happened and when the metadata has changed, never else.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from minikafka.broker.broker import Broker
from minikafka.broker.isr_proposer import SURELY_NOT_DONE
from minikafka.errors import error_name
from minikafka.quorum.image import MetadataImage, PartitionImage
from minikafka.replication.leader import LeaderReplica
from minikafka.sim.metadata_invariants import Change
from minikafka.sim.sight import OfPartition, Report, Sight, number_of
from minikafka.sim.world import Event
from minikafka.types import Epoch, NodeId, TopicId, TopicPartition

ISR_EVENTS = frozenset(
    {"isr_proposed", "isr_proposal_ended", "isr_expanded", "isr_shrunk", "isr_changed", "became_leader"}
)
"""Events after which a leader's maximal ISR may be another one."""

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

    def __init__(self) -> None:
        self._proposed: dict[tuple[str, Epoch], list[_Proposal]] = {}
        """All proposals of a leader epoch, refused ones too: a second copy of the request may still be applied."""
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
            self._open[key].pop()  # one is under way at a time: the latest

    def look(self, sight: Sight, report: Report) -> None:
        leader = sight.leader
        if leader is None or not any(event.kind in ISR_EVENTS for event in sight.events):
            return
        state = sight.image.partition(sight.name) if sight.image is not None else None
        key = (leader.name, leader.epoch)
        newest = leader.partition_epoch
        if state is not None and state.leader_epoch == leader.epoch and _is_same_topic(sight):
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
            if before is None or not is_next or before.leader_epoch != after.leader_epoch or name in damaged:
                continue
            if set(after.isr) != set(before.isr) and not self._is_explained(str(name), before, after, image):
                made = self._proposed.get((str(name), after.leader_epoch), [])
                report(
                    "isr_change_without_a_proposal",
                    f"{name}: partition epoch {before.partition_epoch} had the ISR {list(before.isr)}, "
                    f"{after.partition_epoch} has {list(after.isr)}; proposed were {made[-3:]}",
                )

    def _compare(self, leader: LeaderReplica, state: PartitionImage, report: Report) -> None:
        if state.partition_epoch >= leader.partition_epoch and not set(state.isr) <= set(leader.maximal_isr):
            report(self.name, f"{leader!r} counts {list(leader.maximal_isr)}, committed is {list(state.isr)}")

    def _is_explained(self, name: str, before: PartitionImage, after: PartitionImage, image: MetadataImage) -> bool:
        """Did the leader propose this ISR in place of this partition epoch, or did the controller only remove members
        that may not be in an ISR any more?
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


def _is_same_topic(sight: Sight) -> bool:
    topic = sight.image.topics.get(sight.name.topic) if sight.image is not None else None
    return topic is not None and topic.topic_id == sight.partition.topic_id
