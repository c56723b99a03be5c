"""The parts of one broker by name, and what they ask of each other.

Parts are made one after the other, and some ask others that are made after them: the controller, for example, asks the
lifecycle whether this broker has registered. A part gets methods of this object in place of the other part, so that it
runs without it in a test. ``Broker.start`` sets each attribute once; before that a call raises AttributeError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from minikafka.replication.leader import LeaderReplica

if TYPE_CHECKING:
    from minikafka.broker.controller_driver import ControllerDriver
    from minikafka.broker.group_manager import GroupManager
    from minikafka.broker.lifecycle import Lifecycle
    from minikafka.broker.metadata import MetadataCache
    from minikafka.broker.quorum_driver import QuorumDriver
    from minikafka.broker.replica_manager import ReplicaManager
    from minikafka.broker.transaction_manager import TransactionManager
    from minikafka.broker.verification import Verifier
    from minikafka.quorum.image import MetadataImage
    from minikafka.types import Address, NodeId, Offset
    from minikafka.wire.messages import MissingReplica


class Parts:
    """The parts of one broker, in the order in which they are made."""

    voters: Mapping[NodeId, Address]
    metadata: MetadataCache
    quorum: QuorumDriver
    controller: ControllerDriver
    lifecycle: Lifecycle
    replicas: ReplicaManager
    groups: GroupManager
    transactions: TransactionManager

    def image(self) -> MetadataImage:
        """The metadata as far as this broker has applied it."""
        return self.metadata.image

    def applied_offset(self) -> Offset:
        """The end of the metadata that this broker has applied."""
        return self.metadata.image.offset

    def address_of(self, node: NodeId) -> Address | None:
        """The advertised address of a broker, by the metadata."""
        known = self.metadata.image.brokers.get(node)
        return known.address if known is not None else None

    def controller_address(self) -> Address | None:
        """The address of the active controller, or None while none is known."""
        return self.voters.get(self.quorum.leader_id)

    def broker_epoch(self) -> int:
        """The epoch of this broker's registration; -1 while it has none."""
        return self.lifecycle.broker_epoch

    def latest_broker_epoch(self) -> int:
        """The epoch of the latest registration, also once the controller has expired it; -1 before the first."""
        return self.lifecycle.latest_broker_epoch

    def has_registered(self) -> bool:
        """Return True if the controller has registered this incarnation."""
        return self.lifecycle.broker_epoch >= 0

    def missing_replicas(self) -> tuple[MissingReplica, ...]:
        """Replicas of a former incarnation whose logs this process had to create."""
        return self.replicas.missing_replicas

    def leads_any(self) -> bool:
        """Return True if this broker leads a partition."""
        return any(isinstance(each.role, LeaderReplica) for each in self.replicas.partitions.values())

    def verifier(self) -> Verifier:
        """Return what has coordinators confirm that a partition belongs to the transaction of its writer."""
        return self.transactions.verifier
