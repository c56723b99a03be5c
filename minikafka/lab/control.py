"""The controller of a story: the script, as the articles' ZooKeeper, or the real controller's rules.

``ScriptedControl``  elections by the script; a restart inside the session keeps the ISR; no ELR, no broker epochs.
``QuorumControl``    ``quorum/`` decides; what it records is committed and replayed at once.

Both give :class:`News`: the partition's state and who may join an ISR, as a broker would read it from the metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeAlias, TypeVar

from minikafka.broker.alter_partition_manager import item_of
from minikafka.config import TopicConfig, to_settings
from minikafka.errors import FencedLeaderEpoch, InvalidUpdateVersion, ProtocolError
from minikafka.invariant import invariant
from minikafka.quorum.controller import Controller, completed
from minikafka.quorum.decision import ClusterPolicy, Decision
from minikafka.quorum.image import MetadataImage, PartitionImage
from minikafka.replication.leader import PartitionState, Proposal
from minikafka.types import NO_NODE, NodeId, TopicId, TopicPartition, uuid_text
from minikafka.wire import messages as m

PARTITION = TopicPartition("orders", 0)
TOPIC_ID: TopicId = uuid_text(bytes(15) + b"\x01")
CLUSTER_ID = "lab"

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class News:
    """What a broker knows of the cluster once it has read the metadata so far."""

    state: PartitionState
    broker_epochs: Mapping[NodeId, int]
    """Of the brokers that may join an ISR."""
    elr: tuple[NodeId, ...] = ()
    last_known_elr: tuple[NodeId, ...] = ()


class ScriptedControl:
    """The articles' ZooKeeper: decides leader, ISR and epochs as the script wants."""

    def __init__(self, replicas: tuple[NodeId, ...]) -> None:
        self._state = PartitionState(
            replicas=replicas, isr=replicas, leader=replicas[0], leader_epoch=0, partition_epoch=0
        )
        self._sessions = list(replicas)

    def news(self) -> News:
        """What a broker reads now."""
        return News(self._state, dict.fromkeys(self._sessions, 0))

    def started(self, node: NodeId, *, clean: bool, disk: int = 0) -> int:  # noqa: ARG002 - a session outlives a restart
        """A broker's process began (``clean``: after an orderly stop) with this of its disks; its broker epoch."""
        if node not in self._sessions:
            self._sessions = sorted([*self._sessions, node])
        if node == self._state.leader:
            # One epoch has one writer: a new process must not write on in the epoch of the old one.
            self._lead(node, self._state.isr)
        return 0

    def heard(self, node: NodeId) -> None:
        """The broker has read the metadata and says so; its session lives as long as the script wants."""

    def stopped(self, node: NodeId) -> None:
        """The broker stops in good order."""
        self.session_ended(node)

    def session_ended(self, node: NodeId) -> None:
        """The broker was silent for too long."""
        self._sessions = [each for each in self._sessions if each != node]

    def elect(self, node: NodeId, living: Iterable[NodeId]) -> None:
        """``node`` leads; of the ISR the living stay, with it (an election from outside the ISR is unclean)."""
        alive = {*living, node}
        isr = tuple(each for each in self._state.isr if each in alive) if node in self._state.isr else (node,)
        self._lead(node, isr)

    def _lead(self, node: NodeId, isr: tuple[NodeId, ...]) -> None:
        self._state = replace(
            self._state,
            leader=node,
            isr=isr,
            leader_epoch=self._state.leader_epoch + 1,
            partition_epoch=self._state.partition_epoch + 1,
        )

    def alter(self, sender: NodeId, sender_epoch: int, proposal: Proposal) -> m.AlteredPartition:  # noqa: ARG002 - as above
        """A leader asks for another ISR."""
        state = self._state
        if proposal.leader_epoch < state.leader_epoch or sender != state.leader:
            return _refused(FencedLeaderEpoch(f"leader epoch {proposal.leader_epoch}, now {state.leader_epoch}"))
        if proposal.partition_epoch < state.partition_epoch:
            return _refused(InvalidUpdateVersion(f"version {proposal.partition_epoch}, now {state.partition_epoch}"))
        in_order = tuple(node for node in state.replicas if node in proposal.isr)
        self._state = replace(state, isr=in_order, partition_epoch=state.partition_epoch + 1)
        return _accepted(self._state)


class QuorumControl:
    """The product's controller. Decisions commit at once: there is one controller, and it never dies."""

    def __init__(self, replicas: tuple[NodeId, ...], config: TopicConfig, *, elr: bool) -> None:
        policy = ClusterPolicy(cluster_id=CLUSTER_ID, topic_defaults=config, eligible_leader_replicas_enable=elr)
        self._controller = Controller(policy)
        self._image = MetadataImage(cluster_id=CLUSTER_ID)
        self._incarnations = count(1)
        for node in sorted(replicas):
            self.started(node, clean=True)
            self.heard(node)
        topic = m.NewTopic(
            name=PARTITION.topic,
            num_partitions=-1,
            replication_factor=-1,
            assignments=(m.ReplicaAssignment(partition=0, broker_ids=replicas),),
            configs=as_text(config),
        )
        request = m.CreateTopicsRequest(topics=(topic,))
        created = self._commit(self._controller.create_topics(self._image, request, iter([TOPIC_ID])), request)
        invariant(
            created.topics[0].error_code == 0, "the lab's topic can be made", error=created.topics[0].error_message
        )

    def _commit(self, decision: Decision[R], request: object = None) -> R:
        self._image = self._image.replay_all(decision.records, self._image.offset + len(decision.records), epoch=1)
        return completed(decision.response, request, self._image)

    @property
    def _partition(self) -> PartitionImage:
        return self._image.topics[PARTITION.topic].partitions[PARTITION.partition]

    def news(self) -> News:
        partition = self._partition
        state = PartitionState(
            replicas=partition.replicas,
            isr=partition.isr,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            recovered=partition.recovered,
        )
        epochs = {node: self._image.brokers[node].broker_epoch for node in self._image.eligible_brokers()}
        return News(state, epochs, partition.elr, partition.last_known_elr)

    def started(self, node: NodeId, *, clean: bool, disk: int = 0) -> int:
        known = self._image.brokers.get(node)
        request = m.BrokerRegistrationRequest(
            broker_id=node,
            cluster_id=CLUSTER_ID,
            incarnation_id=f"process-{next(self._incarnations)}",
            host="lab",
            port=node,
            previous_broker_epoch=known.broker_epoch if known is not None and clean else -1,
            log_dirs=(f"disk-{node}-{disk}",),
            min_insync_replicas=self._controller.policy.topic_defaults.min_insync_replicas,
        )
        decision = self._controller.register(self._image, request, may_live=False)
        return self._commit(decision, request).broker_epoch

    def heard(self, node: NodeId) -> None:
        self._heartbeat(node)

    def _heartbeat(self, node: NodeId, *, want_shut_down: bool = False) -> None:
        request = m.BrokerHeartbeatRequest(
            broker_id=node,
            broker_epoch=self._image.brokers[node].broker_epoch,
            current_metadata_offset=self._image.offset,
            want_shut_down=want_shut_down,
        )
        self._commit(self._controller.heartbeat(self._image, request, lowest_other_offset=None, shutdown_offset=0))

    def stopped(self, node: NodeId) -> None:
        self._heartbeat(node, want_shut_down=True)
        self._heartbeat(node, want_shut_down=True)

    def session_ended(self, node: NodeId) -> None:
        self._commit(self._controller.broker_lost(self._image, node))

    def elect(self, node: NodeId, living: Iterable[NodeId]) -> None:  # noqa: ARG002 - nobody asks the controller for a name
        """The sessions of the dead end, and the controller decides as it does."""
        alive = tuple(living)
        for each in sorted(self._image.brokers):
            if each not in alive:
                self.session_ended(each)
        self._commit(self._controller.elect_leaderless(self._image))

    def alter(self, sender: NodeId, sender_epoch: int, proposal: Proposal) -> m.AlteredPartition:
        asked = item_of(PARTITION, TOPIC_ID, proposal)
        request = m.AlterPartitionRequest(broker_id=sender, broker_epoch=sender_epoch, partitions=(asked,))
        try:
            return self._commit(self._controller.alter_partition(self._image, request)).partitions[0]
        except ProtocolError as error:
            return _refused(error)


Control: TypeAlias = ScriptedControl | QuorumControl


def as_text(config: TopicConfig) -> dict[str, str]:
    """Return the settings that differ from the defaults: the topic inherits the others."""
    ordinary = to_settings(TopicConfig())
    return {name: text for name, text in to_settings(config).items() if text != ordinary.get(name)}


def _accepted(state: PartitionState) -> m.AlteredPartition:
    return m.AlteredPartition(
        topic=PARTITION.topic,
        partition=PARTITION.partition,
        leader_id=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        isr=state.isr,
    )


def _refused(error: ProtocolError) -> m.AlteredPartition:
    return m.AlteredPartition.failed(error, topic=PARTITION.topic, partition=PARTITION.partition, leader_id=NO_NODE)
