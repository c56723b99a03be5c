"""A small language for the controller's rules: a cluster without a quorum, where every decision commits at once."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import TypeVar

from msgspec.structs import replace

from minikafka.config import TopicConfig
from minikafka.quorum.controller import Controller, completed
from minikafka.quorum.controller_topics import list_partition_reassignments
from minikafka.quorum.decision import ClusterPolicy, Decision
from minikafka.quorum.image import MetadataImage, PartitionImage
from minikafka.types import TopicPartition, uuid_text
from minikafka.wire.admin import (
    TOPIC,
    AlterConfig,
    AlterConfigsResource,
    AlteredConfigs,
    AlterPartitionReassignmentsRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
    OngoingReassignment,
    ReassignedPartition,
    ReassignmentAnswer,
)
from minikafka.wire.messages import (
    AlteredPartition,
    AlterPartitionItem,
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    CreatedTopic,
    CreateTopicsRequest,
    IsrMember,
    MissingReplica,
    NewTopic,
    ReplicaAssignment,
)

R = TypeVar("R")
CLUSTER_ID = "cluster"
T0 = TopicPartition("t", 0)


class Cluster:
    """One controller, its image, and brokers that do what the test says."""

    def __init__(self, brokers: int = 3, *, elr: bool = True, unclean: bool = False, min_isr: int = 1) -> None:
        defaults = TopicConfig(unclean_leader_election_enable=unclean, min_insync_replicas=min_isr)
        policy = ClusterPolicy(cluster_id=CLUSTER_ID, topic_defaults=defaults, eligible_leader_replicas_enable=elr)
        self.controller = Controller(policy)
        self.image = MetadataImage(cluster_id=CLUSTER_ID)
        self.epoch = 1
        self.incarnations = count(1)
        self.ids = (uuid_text(number.to_bytes(16, "big")) for number in count(1))
        self.disks: dict[int, tuple[str, ...]] = {}
        """What brokers tell of their data directory from now on; the others tell nothing."""
        self.ignoring_case: set[int] = set()
        """Brokers that register from now on with a data directory whose file system ignores case."""
        self.minimums: dict[int, int] = {}
        """Defaults of min.insync.replicas that brokers register with from now on; the others have the controller's."""
        for node in range(1, brokers + 1):
            self.start(node)

    def commit(self, decision: Decision[R], request: object = None) -> R:
        """Record, replay, answer."""
        records = decision.records
        self.image = self.image.replay_all(records, self.image.offset + len(records), self.epoch)
        return completed(decision.response, request, self.image)

    # ---- brokers ----

    def register(
        self,
        node: int,
        *,
        clean: bool = False,
        may_live: bool = False,
        incarnation: str = "",
        listeners: str = "",
        caught_up: bool = False,
    ) -> int:
        """A new process; its broker epoch. ``clean``: it shows the epoch of its last life."""
        known = self.image.brokers.get(node)
        request = BrokerRegistrationRequest(
            broker_id=node,
            cluster_id=CLUSTER_ID,
            incarnation_id=incarnation or f"incarnation-{next(self.incarnations)}",
            host="127.0.0.1",
            port=9090 + node,
            listeners=listeners,
            previous_broker_epoch=known.broker_epoch if known and clean else -1,
            log_dirs=self.disks.get(node, ()),
            ignores_case=node in self.ignoring_case,
            min_insync_replicas=self.minimums.get(node, self.controller.policy.topic_defaults.min_insync_replicas),
        )
        decision = self.controller.register(self.image, request, may_live=may_live, caught_up=caught_up)
        response = self.commit(decision, request)
        assert response.is_fenced == self.image.brokers[node].fenced
        return response.broker_epoch

    def heartbeat(
        self,
        node: int,
        *,
        offset: int | None = None,
        want_fence: bool = False,
        want_shut_down: bool = False,
        lowest_other_offset: int | None = None,
        shutdown_offset: int = 0,
        missing: tuple[TopicPartition, ...] = (),
        silent: frozenset[int] = frozenset(),
    ) -> BrokerHeartbeatResponse:
        """A heartbeat of a broker that has read everything, unless ``offset`` says less.

        ``missing``: replicas whose logs its process had to create.
        """
        request = BrokerHeartbeatRequest(
            broker_id=node,
            broker_epoch=self.image.brokers[node].broker_epoch,
            current_metadata_offset=self.image.offset if offset is None else offset,
            want_fence=want_fence,
            want_shut_down=want_shut_down,
            missing_replicas=tuple(
                MissingReplica(topic_id=self.image.topics[each.topic].topic_id, partition=each.partition)
                for each in missing
            ),
        )
        decision = self.controller.heartbeat(
            self.image,
            request,
            lowest_other_offset=lowest_other_offset,
            shutdown_offset=shutdown_offset,
            silent=silent,
        )
        return self.commit(decision)

    def start(self, node: int, *, clean: bool = False, missing: tuple[TopicPartition, ...] = ()) -> None:
        """Register and catch up."""
        self.register(node, clean=clean)
        self.heartbeat(node, missing=missing)

    def lose(self, *nodes: int) -> None:
        """Their sessions end, one after the other."""
        for node in nodes:
            self.commit(self.controller.broker_lost(self.image, node))

    def stop(self, node: int) -> None:
        """A controlled shutdown, to its end."""
        self.heartbeat(node, want_shut_down=True)
        assert self.heartbeat(node, want_shut_down=True).should_shut_down

    # ---- topics ----

    def create(
        self,
        name: str = "t",
        *replicas: tuple[int, ...],
        partitions: int = -1,
        factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> CreatedTopic:
        """Create one topic, by numbers or with these replicas for each partition."""
        assignments = tuple(
            ReplicaAssignment(partition=number, broker_ids=brokers) for number, brokers in enumerate(replicas)
        )
        topic = NewTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=factor,
            assignments=assignments,
            configs=dict(configs or {}),
        )
        return self.create_all(topic)[0]

    def create_all(self, *topics: NewTopic, validate_only: bool = False) -> tuple[CreatedTopic, ...]:
        request = CreateTopicsRequest(topics=topics, validate_only=validate_only)
        return self.commit(self.controller.create_topics(self.image, request, self.ids), request).topics

    def state(self, tp: TopicPartition = T0) -> PartitionImage:
        partition = self.image.partition(tp)
        assert partition is not None
        return partition

    def leader(self, tp: TopicPartition = T0) -> tuple[int, tuple[int, ...]]:
        """(leader, ISR)."""
        state = self.state(tp)
        return state.leader, state.isr

    def proposal(self, *isr: int, tp: TopicPartition = T0, recovered: bool = True) -> AlterPartitionItem:
        """What the partition's leader would ask for, knowing the newest state."""
        state = self.state(tp)
        return AlterPartitionItem(
            topic=tp.topic,
            topic_id=self.image.topics[tp.topic].topic_id,
            partition=tp.partition,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            new_isr=tuple(
                IsrMember(broker_id=node, broker_epoch=self.image.brokers[node].broker_epoch) for node in isr
            ),
            recovered=recovered,
        )

    def propose(self, item: AlterPartitionItem, *, sender: int | None = None, **changes: object) -> AlteredPartition:
        """Send one proposal, with some of its fields changed, as the leader or as ``sender``."""
        item = replace(item, **changes)  # type: ignore[arg-type]
        node = self.image.topics[item.topic].partitions[item.partition].leader if sender is None else sender
        request = AlterPartitionRequest(
            broker_id=node, broker_epoch=self.image.brokers[node].broker_epoch, partitions=(item,)
        )
        return self.commit(self.controller.alter_partition(self.image, request)).partitions[0]

    def set_isr(self, *isr: int, tp: TopicPartition = T0) -> None:
        """The leader changes the ISR and is obeyed."""
        assert self.propose(self.proposal(*isr, tp=tp)).error_code == 0

    # ---- operations ----

    def reassign(
        self, target: tuple[int, ...] | None, *, tp: TopicPartition = T0, same_factor: bool = False
    ) -> ReassignmentAnswer:
        """Move one partition to these replicas; None cancels."""
        request = AlterPartitionReassignmentsRequest(
            partitions=(ReassignedPartition(topic=tp.topic, partition=tp.partition, replicas=target),),
            allow_replication_factor_change=not same_factor,
        )
        decision = self.controller.alter_partition_reassignments(self.image, request)
        return self.commit(decision, request).responses[0]

    def ongoing(self) -> list[OngoingReassignment]:
        return list(list_partition_reassignments(self.image, ListPartitionReassignmentsRequest()).partitions)

    def configure(
        self, name: str = "t", *changes: AlterConfig, kind: int = TOPIC, validate_only: bool = False, **settings: str
    ) -> AlteredConfigs:
        """Alter settings of a resource; keywords set (``_`` for ``.``)."""
        told = tuple(AlterConfig(name=key.replace("_", "."), value=value) for key, value in settings.items())
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=(*changes, *told))
        request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
        return self.commit(self.controller.incremental_alter_configs(self.image, request), request).responses[0]
