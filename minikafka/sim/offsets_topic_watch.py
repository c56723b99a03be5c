"""What ``__consumer_offsets`` holds, batch by batch as it becomes committed, and each coordinator that takes over.

Rule for this file: it only looks; what a damaged disk shows is not believed.
"""

from __future__ import annotations

from abc import abstractmethod

from minikafka.broker.coordinator_shard import CoordinatorShard
from minikafka.coordination.rule import partition_of
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.sim.cluster import SimCluster, node_name
from minikafka.sim.log_contents import stored_batches
from minikafka.sim.replica_view import OfPartition, ReplicaView, Report
from minikafka.sim.watch import Watch
from minikafka.sim.world import Event
from minikafka.types import NodeId, Offset, TopicId, TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.records import RecordView, decode_batch


class OffsetsTopicWatch(OfPartition):
    """The base of what watches groups of one run."""

    def __init__(self, cluster: SimCluster, watch: Watch) -> None:
        self._cluster = cluster
        self._watch = watch
        self._nodes = {node_name(node): node for node in cluster.nodes}
        self._read: dict[tuple[TopicPartition, TopicId], Offset] = {}
        """Up to where the log was read."""
        self._loaded_on: list[str] = []
        """Nodes on which a coordinator has taken over in this step."""
        self._loaded: dict[tuple[NodeId, TopicPartition], CoordinatorShard[GroupCoordinator]] = {}
        """The coordinator that took over each partition last, by node."""
        cluster.sim.observers.append(self._on_event)
        cluster.sim.loop.after_step.append(self._after_step)
        watch.also(self)

    @abstractmethod
    def batch_committed(self, batch: RecordBatch, records: list[RecordView]) -> None:
        """Note a batch that any watermark has passed, which is before any client can receive it."""

    @abstractmethod
    def taken_over(self, shard: CoordinatorShard[GroupCoordinator], name: TopicPartition) -> None:
        """Check a coordinator that has just loaded its partition; the log was read up to there in the same step."""

    # ---- the log -----------------------------------------------------------------------------------------------------

    def look(self, view: ReplicaView, _report: Report) -> None:
        """Read on, as far as this replica knows it to be committed."""
        if view.name.topic != OFFSETS_TOPIC:
            return
        log, start, end = view.partition.log, self._read.get(view.key, 0), view.partition.high_watermark
        if start >= end:
            return
        offset = max(start, log.start_offset)
        for batch in stored_batches(log, start, end):
            if not batch.is_control:
                self.batch_committed(batch, [each for each in decode_batch(batch) if each.offset >= offset])
            offset = batch.next_offset
        self._read[view.key] = offset

    # ---- coordinators ------------------------------------------------------------------------------------------------

    def _on_event(self, event: Event) -> None:
        if event.kind == "group_coordinator_loaded":
            self._loaded_on.append(event.node)

    def _after_step(self) -> None:
        while self._loaded_on:
            node = self._nodes[self._loaded_on.pop()]
            broker, image = self._cluster.present().get(node), self._cluster.image()
            if broker is None or image is None or self._watch.forgiven:
                continue
            for shard in broker.groups.shards:
                name = shard.partition.partition
                if not shard.is_loaded or self._loaded.get((node, name)) is shard:
                    continue
                self._loaded[node, name] = shard
                state = image.partition(name)
                # A deposed leader may load what its successor's log has changed since.
                is_newest = state is not None and (state.leader, state.leader_epoch) == (node, shard.leader.epoch)
                if is_newest and name not in self._watch.were_rotten:
                    self.taken_over(shard, name)

    def _partition(self, group: str) -> TopicPartition:
        image = self._cluster.image()
        topic = image.topics.get(OFFSETS_TOPIC) if image is not None else None
        return TopicPartition(OFFSETS_TOPIC, partition_of(group, len(topic.partitions)) if topic is not None else 0)

    def _is_log_known(self, group: str) -> bool:
        """Was everything that was committed there seen? Not where a disk was damaged."""
        return self._partition(group) not in self._watch.were_rotten
