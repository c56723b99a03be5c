"""All replicas of this broker: their seats, logs, flushers and fetchers, brought to what the metadata says.

It obeys the image and carries out effects of rules (wake this, fetch that, sync those); it decides nothing. A disk that
fails takes its replica offline at once and is reported to the broker, which leaves the cluster in good order and stops.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice

from minikafka.broker.alter_partition_manager import AlterPartitionManager
from minikafka.broker.append_throttle import AppendThrottle, Arrivals
from minikafka.broker.flusher import Flusher, Spawn
from minikafka.broker.live_settings import LiveSettings
from minikafka.broker.meters import Traffic
from minikafka.broker.purgatory import Mark, Purgatory
from minikafka.broker.replica_fetcher import ReplicaFetchers
from minikafka.config import LONG_MAX, BrokerConfig, TopicConfig
from minikafka.errors import (
    UNKNOWN,
    DiskFailed,
    DiskFull,
    KafkaStorageError,
    ReplicaNotAvailable,
    UnknownTopicOrPartition,
)
from minikafka.log.log_directory import LogDirectory
from minikafka.ports import World
from minikafka.quorum.decision import of_topic, topic_defaults
from minikafka.quorum.image import MetadataImage, PartitionImage, TopicImage, changes
from minikafka.replication.fetch_session import EPOCH_MAX, FetchSessions
from minikafka.replication.follower import TruncationRule
from minikafka.replication.leader import FetchEffect, LeaderReplica, PartitionState
from minikafka.replication.partition import Partition
from minikafka.types import (
    METADATA_PARTITION,
    NO_NODE,
    NO_TOPIC_ID,
    Address,
    NodeId,
    Offset,
    TopicId,
    TopicPartition,
)
from minikafka.wire.messages import CurrentLeader, MissingReplica

NEW_PER_TURN_MAX = 32
"""New replicas that one turn of the loop takes up: folder, files, role and fetcher cost 0.2 to 0.3 ms each."""

STORAGE_ERRORS = (DiskFailed, DiskFull, KafkaStorageError)
"""Raised by a log whose disk fails; see :meth:`ReplicaManager.storage_error`."""


class _StorageGuard:
    """See :meth:`ReplicaManager.storage_guard`; a class, since every read enters one."""

    __slots__ = ("_partition", "_replicas")

    def __init__(self, replicas: ReplicaManager, partition: Partition) -> None:
        self._replicas = replicas
        self._partition = partition

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, STORAGE_ERRORS):
            raise self._replicas.storage_error(self._partition, error) from error


class ReplicaManager:
    """The replicas of one incarnation of a broker."""

    def __init__(
        self,
        live: LiveSettings,
        world: World,
        logs: LogDirectory,
        *,
        spawn: Spawn,
        controller: Callable[[], Address | None],
        image: Callable[[], MetadataImage],
        broker_epoch: Callable[[], int],
        address_of: Callable[[NodeId], Address | None],
        on_storage_failure: Callable[[TopicPartition, str], None],
        truncation: TruncationRule | None = None,
    ) -> None:
        """``truncation`` is another rule than production's, for the lab."""
        config = live.now
        self.live = live
        self.clock = world.clock
        self.events = world.events
        self.logs = logs
        self.partitions: dict[TopicPartition, Partition] = {}
        self.flushers: dict[TopicPartition, Flusher] = {}
        self.purgatory = Purgatory()
        self.append_throttle = AppendThrottle()
        self.arrivals = Arrivals()
        self.offload = world.offload
        self.traffic = Traffic(world.clock.ticks_ns)
        self.fetch_sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots, new_id=lambda: world.random.randint(1, EPOCH_MAX)
        )
        self.alter_partition_manager = AlterPartitionManager(
            config, world, controller=controller, broker_epoch=broker_epoch, purgatory=self.purgatory
        )
        self._image = image
        self._broker_epoch = broker_epoch
        self._truncation = truncation
        self._started_with = live.started_with.topic_defaults()
        self._spawn = spawn
        self._on_storage_failure = on_storage_failure
        self._topic_configs: dict[str, tuple[Mapping[str, str], Mapping[str, Mapping[str, str]], TopicConfig]] = {}
        """By topic: its settings and those of brokers in the metadata, and what they were parsed to, once for all its
        partitions.
        """
        self._to_unlink: list[tuple[float, str]] = []
        self._to_take_up: dict[TopicPartition, None] = {}
        """New replicas that wait for a later turn of the loop."""
        self._irremovable: dict[TopicPartition, None] = {}
        """Partitions whose folder still holds a former replica, since the disk has failed: none is made there."""
        self._missing: dict[tuple[TopicId, int], None] | None = {}
        """See ``missing_replicas``; None once this process has been unfenced."""
        self.fetchers = ReplicaFetchers(
            live,
            world,
            partitions=self.partitions,
            flushers=self.flushers,
            purgatory=self.purgatory,
            append_throttle=self.append_throttle,
            spawn=spawn,
            address_of=address_of,
            broker_epoch=broker_epoch,
            on_storage_failure=self.storage_failed,
            traffic=self.traffic,
        )

    @property
    def config(self) -> BrokerConfig:
        """The settings that count now."""
        return self.live.now

    # ---- what handlers ask -------------------------------------------------------------------------------------------

    def get(self, name: TopicPartition) -> Partition:
        """This broker's replica. Raises UnknownTopicOrPartition, or ReplicaNotAvailable when it is on other brokers."""
        partition = self.partitions.get(name)
        if partition is not None:
            return partition
        known = self._image().partition(name)
        if known is None:
            raise UnknownTopicOrPartition(f"{name} is not known to broker {self.config.node_id}")
        if name in self._to_take_up:
            raise ReplicaNotAvailable(f"broker {self.config.node_id} is about to make its replica of {name}")
        raise ReplicaNotAvailable(
            f"{name} is not on broker {self.config.node_id} but on {list(known.replicas)}", leader=known.leader
        )

    @property
    def missing_replicas(self) -> tuple[MissingReplica, ...]:
        """Replicas that this broker held in a former life, and whose logs this process had to create, or to cut at some
        damage. One that is nowhere else may lead with what is left.

        As far as the controller cannot know it: it compares the data directories itself. A broker that has not been
        unfenced yet joins no ISR, so that one which the metadata calls in sync, eligible or the last leader held a log.
        """
        me, image = self.config.node_id, self._image()
        found = []
        for topic_id, number in self._missing or ():
            topic = image.topic_by_id(topic_id)
            partition = topic.partitions[number] if topic is not None else None
            if (
                partition is not None
                and any(me in nodes for nodes in (partition.isr, partition.elr, partition.last_known_elr))
                and not image.brokers[me].came_back_empty(partition)
            ):
                found.append(
                    MissingReplica(topic_id=topic_id, partition=number, partition_epoch=partition.partition_epoch)
                )
        return tuple(found)

    def knows(self, name: TopicPartition) -> bool:
        """Return True if the partition exists, here or at another broker."""
        return self._image().partition(name) is not None

    def current_leader(self, name: TopicPartition) -> CurrentLeader | None:
        """What to tell a client that asked the wrong broker."""
        image = self._image()
        known = image.partition(name)
        if known is None or known.leader == NO_NODE:
            return None
        topic_id = image.topics[name.topic].topic_id
        return CurrentLeader(leader_id=known.leader, leader_epoch=known.leader_epoch, topic_id=topic_id)

    def hosts(self, partition: Partition) -> bool:
        """Return True if it is still this broker's replica: its topic may have been deleted and created again."""
        return self.partitions.get(partition.partition) is partition

    def storage_guard(self, partition: Partition) -> _StorageGuard:
        """Turn a failing disk into KafkaStorageError and take the replica offline."""
        return _StorageGuard(self, partition)

    def storage_error(self, partition: Partition, error: Exception) -> KafkaStorageError:
        """Take the replica offline, whose log raised one of ``STORAGE_ERRORS``. The caller raises the result."""
        why = str(error).removeprefix(f"{partition.partition}: ")
        if self.hosts(partition):
            self.storage_failed(partition.partition, why)
        # The log knows whether bytes may have reached the file; what it did not see may have.
        return KafkaStorageError(
            f"{partition.partition} on broker {self.config.node_id} is offline: {why}",
            outcome=error.outcome if isinstance(error, KafkaStorageError) else UNKNOWN,
        )

    def storage_failed(self, name: TopicPartition, why: str) -> None:
        """The replica's disk failed: nothing more is read, written or acknowledged here."""
        # The log names its partition, and so does each sentence that says why.
        why = why.removeprefix(f"{name}: ")
        partition = self.partitions.get(name)
        if partition is not None:
            if partition.failed:
                return
            partition.fail(why)
            self.fetchers.drop(name)
            self.purgatory.wake_all(name)
        self._on_storage_failure(name, why)

    # ---- effects of rules --------------------------------------------------------------------------------------------

    def appended(self, partition: Partition, leader: LeaderReplica) -> None:
        """A coordinator's records, or a marker, were appended: fetch them, sync them, and raise the watermark."""
        self.purgatory.wake(Mark.LOG_END, partition.partition, leader.log.end_offset)
        if partition.config.syncs_before_acknowledging:
            self.flushers[partition.partition].start()
        self.advance(partition, leader)
        self.sync_if_due(partition)

    def advance(self, partition: Partition, leader: LeaderReplica) -> None:
        """Try to raise the watermark; wake those who wait for it."""
        if leader.advance(self.clock.now()):
            self.purgatory.wake_committed(partition.partition, leader)

    def follower_fetched(self, partition: Partition, leader: LeaderReplica, effect: FetchEffect) -> None:
        """A follower's fetch counted: carry out what it brings about."""
        if effect.high_watermark_moved:
            self.purgatory.wake_committed(partition.partition, leader)
        if self.purgatory.is_watched(Mark.LOG_START, partition.partition):
            self.purgatory.wake(Mark.LOG_START, partition.partition, self.low_watermark(leader))
        if effect.wants_in:
            self.alter_partition_manager.submit(partition, leader, leader.propose_expand())

    def low_watermark(self, leader: LeaderReplica) -> Offset:
        """The smallest log start over the replicas on live brokers (DeleteRecords)."""
        image = self._image()
        remotes = [remote.start_offset for node, remote in leader.remotes.items() if image.alive(node)]
        return min([leader.log.start_offset, *remotes])

    def _on_synced(self, partition: Partition) -> None:
        """A log has become durable up to some end: under sync-before-acknowledge the watermark may follow."""
        if self.hosts(partition) and isinstance(partition.role, LeaderReplica):
            self.advance(partition, partition.role)

    def _sync_failed(self, partition: Partition, why: str) -> None:
        if self.hosts(partition):
            self.storage_failed(partition.partition, why)

    def sync_if_due(self, partition: Partition) -> None:
        """flush.messages above 1: begin a sync when so many records are not yet durable."""
        every = partition.config.flush_messages
        if every == LONG_MAX or partition.config.syncs_before_acknowledging:
            return
        if partition.log.end_offset - partition.log.synced_end >= every:
            self.flushers[partition.partition].start()

    def shrink_isrs(self) -> None:
        """Propose to let followers go that have not caught up in time (S14)."""
        now = self.clock.now()
        for partition in list(self.partitions.values()):
            role = partition.role
            if isinstance(role, LeaderReplica):
                self.alter_partition_manager.submit(partition, role, role.propose_shrink(now))
                # A replica outside the ISR that stopped fetching counts until its time is up, and no fetch says so.
                self.advance(partition, role)

    # ---- what the metadata says --------------------------------------------------------------------------------------

    def broker_epoch_of(self, node: NodeId) -> int | None:
        """A broker's epoch if it may join an ISR, else None (KIP-841, KIP-903)."""
        image = self._image()
        return image.brokers[node].broker_epoch if image.eligible(node) else None

    def registered_epoch(self, node: NodeId) -> int | None:
        """Return the epoch under which a broker is registered, fenced or not; None if it is not."""
        registered = self._image().brokers.get(node)
        return None if registered is None else registered.broker_epoch

    def topic_config(self, topic: TopicImage) -> TopicConfig:
        """The topic's settings over this broker's defaults, those set at run time included. The controller has checked
        them when they were set.
        """
        image = self._image()
        known = self._topic_configs.get(topic.name)
        if known is not None and known[0] is topic.configs and known[1] is image.broker_configs:
            return known[2]
        config, unreadable = of_topic(topic.configs, topic_defaults(image, self.config.node_id, self._started_with))
        for error in unreadable:
            self.events("topic_config_unusable", topic=topic.name, why=str(error))
        self._topic_configs[topic.name] = topic.configs, image.broker_configs, config
        return config

    def apply(self, old: MetadataImage, new: MetadataImage) -> None:
        """Bring replicas and roles to the new image, except for new replicas beyond ``NEW_PER_TURN_MAX``.

        Those wait for :meth:`take_up_some`: a topic of 10,000 partitions would hold the loop for seconds, and with it
        heartbeats and votes. Until then they are unknown here, as before the image arrived. A broker that has not been
        unfenced takes up all at once: it has to report which logs it missed before the controller counts on it.
        """
        me = self.config.node_id
        room = NEW_PER_TURN_MAX if self._missing is None else sys.maxsize
        for name, before, after in changes(old, new):
            if after is None or me not in after.replicas:
                if before is not None and me in before.replicas:
                    self._forget(name)
                continue
            topic = new.topics[name.topic]
            hosted = self.partitions.get(name)
            if hosted is not None and hosted.topic_id != topic.topic_id:
                self._forget(name)
            if name in self._irremovable:
                continue
            if name not in self.partitions:
                if not room:
                    self._to_take_up[name] = None
                    continue
                room -= 1
            self._take_up(name, topic, after)
        registered = new.brokers.get(me)
        if registered is not None and not registered.fenced and registered.broker_epoch == self._broker_epoch():
            self._missing = None
            for name in list(self.logs.damaged):
                try:
                    self.logs.forget_damage(name)
                except STORAGE_ERRORS as error:
                    self.storage_failed(name, str(error))
        self._apply_configs(old, new)
        self.traffic.keep_topics(new.topics)
        for gone in self._topic_configs.keys() - new.topics.keys():
            del self._topic_configs[gone]
        # Who may join an ISR may have changed with the brokers; and a broker that left no longer counts.
        if old.brokers is not new.brokers:
            for partition in list(self.partitions.values()):
                if isinstance(partition.role, LeaderReplica):
                    self.advance(partition, partition.role)

    @property
    def has_more_to_take_up(self) -> bool:
        """Return True if new replicas wait for a later turn of the loop."""
        return bool(self._to_take_up)

    def take_up_some(self, image: MetadataImage) -> None:
        """In a turn of its own: the next of the new replicas that wait. ``image`` is the one that was applied last."""
        for name in list(islice(self._to_take_up, NEW_PER_TURN_MAX)):
            topic = image.topics[name.topic]
            self._take_up(name, topic, topic.partitions[name.partition])

    def _take_up(self, name: TopicPartition, topic: TopicImage, wanted: PartitionImage) -> None:
        self._to_take_up.pop(name, None)
        try:
            self._bring_to(name, topic, wanted)
        except STORAGE_ERRORS as error:
            # This replica is offline then; the others still get the roles that the cluster counts on.
            self.storage_failed(name, str(error))

    def _bring_to(self, name: TopicPartition, topic: TopicImage, wanted: PartitionImage) -> None:
        config = self.topic_config(topic)
        partition = self.partitions.get(name) or self._host(name, topic, config)
        state = PartitionState(
            replicas=wanted.replicas,
            isr=wanted.isr,
            leader=wanted.leader,
            leader_epoch=wanted.leader_epoch,
            partition_epoch=wanted.partition_epoch,
            recovered=wanted.recovered,
            adding=wanted.adding,
        )
        before = partition.high_watermark
        changed = partition.apply(state, config, self.clock.now())
        if changed:
            self.purgatory.wake_all(name)
            self.fetchers.assign(partition)
        elif partition.high_watermark != before:
            self.purgatory.wake_committed(name, partition)
        if isinstance(partition.role, LeaderReplica):
            self.alter_partition_manager.submit(partition, partition.role, partition.role.propose_recovered())
            unsynced = partition.log.synced_end < partition.log.end_offset
            if changed and unsynced and partition.config.syncs_before_acknowledging:
                # What it recovered, or last got as a follower, counts only when it is synced; nobody may produce soon.
                self.flushers[name].start()

    def _host(self, name: TopicPartition, topic: TopicImage, config: TopicConfig) -> Partition:
        log = found = self.logs.get(name)
        if log is not None and log.topic_id != topic.topic_id:
            # The topic was deleted and created again while this broker was away: its records are another topic's.
            self._set_aside(name)
            log = None
        if log is None:
            self._free_folder(name)
            log = self.logs.create(name, topic_id=topic.topic_id, config=config)
            # The id is synced with a log's first records. A folder without one lost in a power cut what was never
            # synced, as the tail of any log may; it does not mean that the folder was removed. Where something was
            # synced, the file with the id is damaged, and the replica has lost its records.
            is_lost = found is None or found.topic_id != NO_TOPIC_ID or found.was_synced
        else:
            is_lost = name in self.logs.damaged and len(topic.partitions[name.partition].replicas) > 1
        if is_lost and self._missing is not None:
            self._missing[topic.topic_id, name.partition] = None
        partition = Partition(
            self.config.node_id,
            name,
            topic.topic_id,
            log,
            config,
            high_watermark=self.logs.checkpointed_high_watermark(name),
            lag_time_max_s=self.config.replica_lag_time_max_ms / 1000,
            broker_epoch_of=self.broker_epoch_of,
            events=self.events,
            truncation=self._truncation,
        )
        self.partitions[name] = partition
        self.flushers[name] = Flusher(
            name, log, self._spawn, partial(self._sync_failed, partition), partial(self._on_synced, partition)
        )
        return partition

    def _free_folder(self, name: TopicPartition) -> None:
        """On a disk that ignores case, take the folder of ``name`` from a replica of a topic that was deleted.

        The image may bring both at once, and the deletion may have come while this broker was away.
        """
        other = self.logs.in_other_case(name)
        known = None if other is None else self._image().partition(other)
        if other is None or (known is not None and self.config.node_id in known.replicas):
            return
        if other in self.partitions:
            self._forget(other)
        elif other in self.logs.logs and other != METADATA_PARTITION:
            self._set_aside(other)

    def _forget(self, name: TopicPartition) -> None:
        self._to_take_up.pop(name, None)
        partition = self.partitions.pop(name, None)
        if partition is None:
            return
        partition.rest()
        self.fetchers.drop(name)
        self.purgatory.wake_all(name)
        self.flushers.pop(name)
        try:
            folder = self.logs.delete(name)
        except STORAGE_ERRORS as error:
            # As in _take_up: this broker leaves, and must not lead meanwhile what others lead by now.
            self._irremovable[name] = None
            self._on_storage_failure(name, str(error))
            return
        self.unlink_later([folder], partition.config)
        self.events("replica_deleted", partition=str(name))

    def _apply_configs(self, old: MetadataImage, new: MetadataImage) -> None:
        """Settings changed at run time: they count from here on, also for what is already there."""
        defaults_moved = old.broker_configs is not new.broker_configs
        for topic in new.topics.values():
            before = old.topics.get(topic.name)
            if before is not None and (defaults_moved or before.configs is not topic.configs):
                config = self.topic_config(topic)
                for part in topic.partitions:
                    partition = self.partitions.get(TopicPartition(topic.name, part.partition))
                    if partition is not None:
                        self._configure(partition, config)

    def _configure(self, partition: Partition, config: TopicConfig) -> None:
        partition.configure(config, lag_time_max_s=self.config.replica_lag_time_max_ms / 1000)
        if partition.failed:
            return
        self.fetchers.touch(partition.partition)
        log = partition.log
        if config.syncs_before_acknowledging and log.synced_end < log.end_offset:
            # From now on only what is synced counts: what was written under the old policy must be, too.
            self.flushers[partition.partition].start()
        if isinstance(partition.role, LeaderReplica):
            # Under the new setting more may be committed, and nobody may produce or fetch soon.
            self.advance(partition, partition.role)

    def set_strays_aside(self) -> None:
        """Once the metadata is known: what lies on disk and belongs to no replica of this broker is renamed."""
        for name in list(self.logs.logs):
            if name not in self.partitions and name not in self._to_take_up and name != METADATA_PARTITION:
                try:
                    self._set_aside(name)
                except STORAGE_ERRORS as error:
                    self.storage_failed(name, str(error))

    def _set_aside(self, name: TopicPartition) -> None:
        """Rename the folder of a log that belongs to no replica of this broker. Raises STORAGE_ERRORS."""
        try:
            self.logs.retire_stray(name)
        except STORAGE_ERRORS:
            self._irremovable[name] = None
            raise

    def unlink_later(self, paths: Sequence[str], config: TopicConfig) -> None:
        """Remove renamed files and folders after file.delete.delay.ms: readers may still hold them."""
        due = self.clock.now() + config.file_delete_delay_ms / 1000
        self._to_unlink.extend((due, path) for path in paths)

    def unlink_due(self) -> None:
        """Remove what has been renamed for long enough."""
        now = self.clock.now()
        for due, path in self._to_unlink:
            if due <= now:
                self.logs.remove(path)
        self._to_unlink = [(due, path) for due, path in self._to_unlink if due > now]

    def close(self) -> None:
        """Give up every role; parked requests end."""
        for partition in self.partitions.values():
            partition.rest()
        self.purgatory.close()
