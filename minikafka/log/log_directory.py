"""A broker's data directory: whose it is, which logs are in it, and their checkpoints (KAFKA-FACTS 1.1 to 1.4).

Rules for this file:

1. The clean-shutdown marker is deleted, durably, before any log is loaded (KAFKA-10471); it is written last of all.
2. A checkpoint is published whole: it is durable, or the one before it stands. Two publications may overlap; the one
   begun later wins.
3. A format newer than ours is refused with a sentence.
4. Checkpoints name partitions, not topic ids: before a log is created under a name that had another log, that name is
   taken out of them. Else the new log would have the old one's start, watermark and recovery point after a kill -9.
   A power failure may bring the name back: until it is durable that it is gone, the new log's folder says that no
   checkpoint is its own, and no checkpoint names it.
5. On a disk that ignores case, a log is only created where no folder has its name in another case: that folder holds
   another topic's records.
6. A clean stop has named every log in its recovery points. A broker that then comes back without one of them, or with
   one that had to be cut, has lost records: to the controller that is an unclean stop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from minikafka.config import TopicConfig
from minikafka.errors import DiskFailed, DiskFull, InvalidConfig, KafkaStorageError
from minikafka.invariant import invariant
from minikafka.log.checkpoint import (
    DATA_FORMAT_VERSION,
    NO_BROKER_EPOCH,
    BadCheckpoint,
    MetaProperties,
    format_clean_shutdown,
    format_meta_properties,
    format_offsets,
    parse_clean_shutdown,
    parse_meta_properties,
    parse_offsets,
)
from minikafka.log.inspect import METADATA_OF_KAFKA, is_metadata_of_kafka
from minikafka.log.names import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSET_CHECKPOINT,
    DAMAGED,
    DELETED_FOLDER,
    LOG,
    LOG_START_OFFSET_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    STRAY_FOLDER,
    SWAP,
    TEMPORARY,
    is_deleted_folder,
    partition_of,
    retired_folder,
)
from minikafka.log.partition_log import PartitionLog, has_former_log, topic_id_of
from minikafka.log.recovery import MisfitLog, UnsyncedCopy
from minikafka.ports import Disk, Events, no_events
from minikafka.types import METADATA_PARTITION, NodeId, Offset, TopicId, TopicPartition

TAIL_BUDGET_BYTES = 64 * 1024 * 1024
"""Memory tails of all logs together: the default heap of a small broker, shared out evenly; 0 is none at all."""
LOGS_SYNCED_AT_ONCE = 8
"""When a broker stops: a file system writes what several syncs wait for in one go."""
_OFFSETS = (
    RECOVERY_POINT_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    CLEANER_OFFSET_CHECKPOINT,
)
_TAIL_SIZE_MIN = 64 * 1024
_TAIL_SIZE_MAX = 4 * 1024 * 1024

ConfigOf = Callable[[TopicPartition], TopicConfig]
Together = Callable[..., Awaitable[Sequence[bool]]]
"""Awaits all its arguments and returns their results, as ``asyncio.gather`` does."""
Pause = Callable[[], Awaitable[None]]


async def one_by_one(*works: Coroutine[Any, Any, bool]) -> list[bool]:
    """Await each of ``works`` after the one before it."""
    return [await each for each in works]


class LogDirectory:
    """All logs of one broker. Open it, hand out logs, checkpoint now and then, close it."""

    def __init__(
        self, disk: Disk, meta: MetaProperties, *, config_of: ConfigOf, events: Events, tail_budget_bytes: int
    ) -> None:
        self.meta = meta
        self.was_clean = False
        """True if the last stop wrote the clean-shutdown marker."""
        self.previous_broker_epoch = NO_BROKER_EPOCH
        """The broker epoch of the last clean stop, which a registration names (KIP-966). -1: it was unclean, or a log
        is gone or shorter since."""
        self.ignores_case = disk.ignores_case()
        """Topics whose names differ only in case would have one folder here."""
        self._disk = disk
        self._config_of = config_of
        self._events = events
        self._tail_budget_bytes = tail_budget_bytes
        self._tail_size = 0
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._high_watermarks: dict[TopicPartition, Offset] = {}
        self.damaged: dict[TopicPartition, None] = {}
        """Logs that lack records which were synced: what opening them cut off was no torn tail. That may have been a
        process before this one, which ended before :meth:`forget_damage`."""
        self._former: dict[TopicPartition, None] = {}
        """Partitions that checkpoints may name though their log is gone."""
        self._with_former: list[PartitionLog] = []
        """Logs whose folder says that checkpoints may name a former log."""
        self._is_root_durable = False
        """No checkpoint in the data directory is older than the process, and not durable."""
        self._taken_out = 0
        """How often the name of a former log was taken out of the checkpoints."""
        self._publications = 0
        self._newest: dict[str, int] = {}
        """Of each file, the number of the publication that was begun last."""
        self._published: dict[str, int] = {}
        self._durable: dict[str, bytes] = {}
        """What is surely in each file, as long as nothing else is being published."""

    @classmethod
    async def open(
        cls,
        disk: Disk,
        *,
        node_id: NodeId,
        cluster_id: str,
        directory_id: str,
        config_of: ConfigOf = lambda _: TopicConfig(),
        events: Events = no_events,
        tail_budget_bytes: int = TAIL_BUDGET_BYTES,
        pause: Pause | None = None,
    ) -> LogDirectory:
        """Lock and load the data directory; ``directory_id`` is for a new one.

        ``config_of`` gives a partition's settings as far as they are known at the start; ``pause`` is awaited between
        two logs, so that others on the same loop go on while this one loads thousands. Raises InvalidConfig when
        the directory is another node's, another cluster's or a newer format's, or holds a metadata log that is Kafka's
        or another cluster's; DiskFailed when it cannot be locked or read.
        """
        disk.lock()
        if is_metadata_of_kafka(disk):
            raise InvalidConfig(f"{METADATA_PARTITION} in the data directory {METADATA_OF_KAFKA}")
        meta = await _identify(disk, MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id))
        directory = cls(disk, meta, config_of=config_of, events=events, tail_budget_bytes=tail_budget_bytes)
        await directory._load(pause)
        return directory

    # ------------------------------------------------------------------------------------- loading

    async def _load(self, pause: Pause | None) -> None:
        await self._take_clean_marker()
        points = self._read_offsets(RECOVERY_POINT_CHECKPOINT)
        starts = self._read_offsets(LOG_START_OFFSET_CHECKPOINT)
        self._high_watermarks = self._read_offsets(REPLICATION_OFFSET_CHECKPOINT) or {}
        clean_ends = self._read_offsets(CLEANER_OFFSET_CHECKPOINT) or {}
        # A new data directory has no checkpoint that could name anything.
        self._is_root_durable = self.was_clean or not any(map(self._disk.exists, _OFFSETS))
        names = self._disk.names("")
        for name in names:
            if is_deleted_folder(name) or name.endswith(TEMPORARY):
                self._disk.remove(name)
        for partition in partitions_in(self._disk, names):
            if not self.was_clean and any(name.endswith(LOG + SWAP) for name in self._disk.names(str(partition))):
                # After kill -9 the name may be in the page cache only. Opening the log finishes the swap, and the
                # removal of the old segments must not reach the disk before this name does.
                await self._disk.sync_folder(str(partition))
            has_former = not self.was_clean and has_former_log(self._disk, partition)
            if has_former:
                self._take_out_of_checkpoints(partition)
                for offsets in (points or {}, starts or {}, clean_ends):
                    offsets.pop(partition, None)
            try:
                known = ({}, {}) if has_former else (points, starts)
                self._logs[partition] = await self._opened(partition, *known)
            except MisfitLog as error:
                if partition == METADATA_PARTITION:
                    # What this node has voted is in the same folder: without it, it could vote twice in one epoch.
                    raise InvalidConfig(
                        f"{error}. The folder also has the votes of this node, so it is not set aside: restore the "
                        "data directory, or move the whole of it away to begin with an empty one"
                    ) from error
                await self._set_aside(partition, str(error))
                continue
            if self._is_damaged(self._logs[partition], points):
                self.damaged[partition] = None
                await self._disk.publish(f"{partition}/{DAMAGED}", b"")
            self._logs[partition].clean_end = clean_ends.get(partition)
            if has_former:
                self._with_former.append(self._logs[partition])
            if pause is not None:
                await pause()
        self._report_losses(points)
        named = {*(points or {}), *(starts or {}), *self._high_watermarks, *clean_ends}
        self._former.update(dict.fromkeys(sorted(named - self._logs.keys())))
        self._share_tails()
        # From now on a missing checkpoint means a lost one, so that the first ones must be there.
        if points is None:
            await self.checkpoint_recovery_points()
        if starts is None:
            await self.checkpoint_start_offsets()
        self._events("data_directory_opened", clean=self.was_clean, logs=len(self._logs))

    async def _opened(
        self,
        partition: TopicPartition,
        points: Mapping[TopicPartition, Offset] | None,
        starts: Mapping[TopicPartition, Offset] | None,
    ) -> PartitionLog:
        """Open a log; what is kept of bytes that are cut off, or segments removed, is durable before. MisfitLog."""
        copies: dict[str, str] = {}
        while True:
            try:
                return PartitionLog.open(
                    self._disk,
                    partition,
                    self._config_of(partition),
                    clean=self.was_clean,
                    recovery_point=None if points is None or starts is None else points.get(partition, 0),
                    start_offset=0 if starts is None else starts.get(partition, 0),
                    high_watermark=self._high_watermarks.get(partition, 0),
                    events=self._events,
                    save_start=self.checkpoint_start_offsets,
                    copies=copies,
                )
            except UnsyncedCopy as made:
                with closing(self._disk.open(made.copy)) as file:
                    await file.sync()
                await self._disk.sync_folder(str(partition))
                copies[made.source] = made.copy

    async def _set_aside(self, partition: TopicPartition, why: str) -> None:
        """Rename the folder of a log that cannot be this cluster's; the replica then begins without records."""
        target = self._stray_folder(partition, topic_id_of(self._disk, partition))
        self._disk.replace(str(partition), target)
        await self._disk.sync_folder("")
        self._events("log_set_aside", partition=str(partition), folder=target, why=why)

    async def _take_clean_marker(self) -> None:
        if not self._disk.exists(CLEAN_SHUTDOWN):
            return
        self.was_clean = True
        self.previous_broker_epoch = parse_clean_shutdown(self._disk.read_file(CLEAN_SHUTDOWN))
        self._disk.remove(CLEAN_SHUTDOWN)
        await self._disk.sync_folder("")

    def _is_damaged(self, log: PartitionLog, points: Mapping[TopicPartition, Offset] | None) -> bool:
        """After an unclean stop the end of a log may be torn, and its folder may be too new for the disk: only what was
        cut off below the recovery point is damage. So is all that was cut where the checkpoint of the points is gone:
        the power may tear it, but an operator takes it away, for the logs to be walked from their beginnings.
        """
        report = log.report
        if self._disk.exists(f"{log.partition}/{DAMAGED}"):
            return True
        if self.was_clean:
            return bool(report.dropped) or report.lacks_records or log.end_offset < report.recovery_point
        is_gone = points is None and not self._disk.exists(RECOVERY_POINT_CHECKPOINT)
        return any(is_gone or dropped.below_recovery_point for dropped in report.dropped)

    def forget_damage(self, partition: TopicPartition) -> None:
        """The controller knows that the log was damaged. After a power cut it may be reported once more."""
        del self.damaged[partition]
        self._disk.remove(f"{partition}/{DAMAGED}")

    def _report_losses(self, points: Mapping[TopicPartition, Offset] | None) -> None:
        """Without its folder a replica holds nothing, and a damaged one lacks what was cut off: it must not count as
        one that can be elected (KIP-966).
        """
        lost = {*self.damaged}
        if self.was_clean:
            lost |= {*(points or {})} - self._logs.keys()
        nobody_knows = self.was_clean and points is None
        if lost or nobody_knows:
            self.previous_broker_epoch = NO_BROKER_EPOCH
            self._events("logs_lost", partitions=None if nobody_knows else list(map(str, sorted(lost))))

    def _read_offsets(self, name: str) -> dict[TopicPartition, Offset] | None:
        """None when the checkpoint is missing or cannot be read; ours is never empty, though Kafka's may be."""
        data = self._disk.read_file(name) if self._disk.exists(name) else b""
        if not data:
            return None
        try:
            return parse_offsets(data)
        except BadCheckpoint as error:
            self._events("checkpoint_unreadable", path=name, error=str(error))
            return None

    def _share_tails(self, new: PartitionLog | None = None) -> None:
        """An equal part for everyone, nothing for nobody; most often a ``new`` log's arrival does not change it."""
        each = self._tail_budget_bytes // max(1, len(self._logs))
        share = min(max(each, _TAIL_SIZE_MIN), _TAIL_SIZE_MAX) if self._tail_budget_bytes else 0
        if new is not None:
            new.tail.size_max = share
        if share != self._tail_size:
            self._tail_size = share
            for log in self._logs.values():
                log.tail.size_max = share

    # ------------------------------------------------------------------------------------- logs

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """All logs that are here."""
        return self._logs

    def get(self, partition: TopicPartition) -> PartitionLog | None:
        """The partition's log; None when there is none here."""
        return self._logs.get(partition)

    def in_other_case(self, partition: TopicPartition) -> TopicPartition | None:
        """The partition whose folder is also found by the name of ``partition``, on a disk that ignores case."""
        folder = str(partition)
        if not self.ignores_case or not self._disk.exists(folder):
            return None
        names = partitions_in(self._disk, self._disk.names(""))
        return next((each for each in names if each != partition and str(each).lower() == folder.lower()), None)

    def create(
        self, partition: TopicPartition, *, topic_id: TopicId, config: TopicConfig, start_offset: Offset = 0
    ) -> PartitionLog:
        """A new, empty log. Raises DiskFailed or KafkaStorageError when the disk does."""
        invariant(partition not in self._logs, "a log is created once", partition=partition)
        other = self.in_other_case(partition)
        if other is not None:
            raise KafkaStorageError(
                f"{partition}: the folder {other} has this name in another case, and the file system of the data "
                "directory ignores case; delete one of the two topics, or use a file system that distinguishes case"
            )
        has_former = partition in self._former or not self._is_root_durable
        if partition in self._former:
            self._take_out_of_checkpoints(partition)
        log = PartitionLog.open(
            self._disk,
            partition,
            config,
            start_offset=start_offset,
            topic_id=topic_id,
            has_former=has_former,
            events=self._events,
            save_start=self.checkpoint_start_offsets,
        )
        self._logs[partition] = log
        if has_former:
            self._with_former.append(log)
        self._share_tails(log)
        return log

    def delete(self, partition: TopicPartition) -> str:
        """Take a log out of service and rename its folder; pass what is returned to :meth:`remove` later."""
        return self._retire(partition, retired_folder(partition, self._logs[partition].topic_id, DELETED_FOLDER))

    def retire_stray(self, partition: TopicPartition) -> str:
        """Set a log aside that the metadata does not place here; nothing is deleted."""
        return self._retire(partition, self._stray_folder(partition, self._logs[partition].topic_id))

    def _stray_folder(self, partition: TopicPartition, topic_id: TopicId) -> str:
        """A name that is free: the replica may have been set aside before, and come back in between."""
        target, number = retired_folder(partition, topic_id, STRAY_FOLDER), 1
        while self._disk.exists(target):
            number += 1
            target = retired_folder(partition, topic_id, f"-{number}{STRAY_FOLDER}")
        return target

    def _retire(self, partition: TopicPartition, target: str) -> str:
        self._logs.pop(partition).retire(f"set aside as {target}")
        self._disk.remove(target)
        self._disk.replace(str(partition), target)
        self._high_watermarks.pop(partition, None)
        self._former[partition] = None
        self._share_tails()
        self._events("log_retired", partition=str(partition), folder=target)
        return target

    def remove(self, path: str) -> None:
        """Unlink what :meth:`delete` or ``PartitionLog.delete_segments`` renamed; a second time is no error."""
        self._disk.remove(path)

    # ------------------------------------------------------------------------------------- checkpoints

    def checkpointed_high_watermark(self, partition: TopicPartition) -> Offset:
        """What the last checkpoint said, 0 if nothing; the caller clamps it to the log."""
        return self._high_watermarks.get(partition, 0)

    async def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, Offset]) -> None:
        """replication-offset-checkpoint. A lost one is learned again, once enough replicas are in sync.

        A log that is not among ``high_watermarks`` keeps its own: before the metadata comes no log has a role.
        """
        logs = {name: self._logs.get(name) for name in high_watermarks}
        await self._forget_former()
        kept = {name: mark for name, mark in self._high_watermarks.items() if name in self._logs}
        # A topic may be created again meanwhile.
        marks = {name: mark for name, mark in high_watermarks.items() if self._logs.get(name) is logs[name]}
        self._high_watermarks = {**kept, **marks}
        await self._publish(REPLICATION_OFFSET_CHECKPOINT, format_offsets(self._high_watermarks))

    async def checkpoint_recovery_points(self) -> None:
        """recovery-point-offset-checkpoint: from where each log is walked after a crash."""
        await self._forget_former()
        points = {partition: log.recovery_point for partition, log in self._logs.items()}
        logs = [(self._logs[partition], point) for partition, point in points.items()]
        for log, point in logs:
            log.recovery_point_checkpointed(point, done=False)
        if await self._publish(RECOVERY_POINT_CHECKPOINT, format_offsets(points)):
            for log, point in logs:
                log.recovery_point_checkpointed(point, done=True)

    async def checkpoint_start_offsets(self) -> None:
        """log-start-offset-checkpoint of all logs that do not begin at 0; durable when this returns."""
        taken_out = -1
        while taken_out != self._taken_out:  # else what was published is not there, or not durable
            await self._forget_former()
            taken_out = self._taken_out
            starts = {partition: log.start_offset for partition, log in self._logs.items() if log.start_offset > 0}
            await self._publish(LOG_START_OFFSET_CHECKPOINT, format_offsets(starts))

    async def checkpoint_clean_ends(self) -> None:
        """cleaner-offset-checkpoint: where compaction goes on; a lost one costs reading the logs once more."""
        await self._forget_former()
        ends = {partition: log.clean_end for partition, log in self._logs.items() if log.clean_end is not None}
        await self._publish(CLEANER_OFFSET_CHECKPOINT, format_offsets(ends))

    async def _forget_former(self) -> None:
        """Make it durable that no checkpoint names a former log, then that the folders of the new logs do not say so.

        Before each checkpoint that names logs.
        """
        while self._with_former:
            logs = list(self._with_former)
            # One that is torn by a power failure counts as lost, and then a log may begin anywhere.
            for name in filter(self._disk.exists, _OFFSETS):
                with closing(self._disk.open(name)) as file:
                    await file.sync()
            await self._disk.sync_folder("")
            for log in logs:
                await log.forget_former()
            self._with_former = [log for log in self._with_former if log not in logs]

    def _take_out_of_checkpoints(self, partition: TopicPartition) -> None:
        """The files as they would be without it, at once: no kill -9 may come between this and the new log's folder.

        A power cut may leave one torn, which counts as lost. Publications under way were begun before: they come late.
        """
        self._taken_out += 1
        for name in _OFFSETS:
            self._publications += 1
            self._newest[name] = self._published[name] = self._publications
            offsets = self._read_offsets(name)
            if offsets is not None and partition in offsets:
                del offsets[partition]
                self._durable.pop(name, None)
                self._disk.replace_file(name, format_offsets(offsets))
        self._high_watermarks.pop(partition, None)
        self._former.pop(partition, None)

    async def _publish(self, name: str, data: bytes) -> bool:
        """Make ``data`` the durable content of ``name``, if it is not already; False when a later publication was begun
        meanwhile.
        """
        if self._durable.get(name) == data:
            return True
        self._durable.pop(name, None)
        self._publications += 1
        number = self._newest[name] = self._publications
        temporary = f"{name}.{number}{TEMPORARY}"
        await self._disk.publish(temporary, data)
        if number > self._published.get(name, 0):
            self._published[name] = number
            self._disk.replace(temporary, name)
        else:
            self._disk.remove(temporary)
        await self._disk.sync_folder("")
        self._is_root_durable = True
        if number != self._newest[name]:
            return False
        self._durable[name] = data
        return True

    # ------------------------------------------------------------------------------------- stopping

    async def close(
        self,
        *,
        broker_epoch: int = NO_BROKER_EPOCH,
        high_watermarks: Mapping[TopicPartition, Offset] | None = None,
        together: Together = one_by_one,
    ) -> bool:
        """Sync all, checkpoint all, write the clean-shutdown marker, let go of the files.

        False, and no marker, when a log had failed or fails now: the next start then recovers. Nobody may append
        meanwhile. With ``together=asyncio.gather`` several logs are synced at once.
        """
        left = iter(sorted(self._logs.items()))
        clean = all(await together(*(self._sync_logs(left) for _ in range(LOGS_SYNCED_AT_ONCE))))
        try:
            await self.checkpoint_recovery_points()
            await self.checkpoint_start_offsets()
            await self.checkpoint_high_watermarks(self._high_watermarks if high_watermarks is None else high_watermarks)
            if clean:
                await self._disk.publish(CLEAN_SHUTDOWN, format_clean_shutdown(broker_epoch))
        except (DiskFailed, DiskFull) as error:
            clean = False
            self._events("unclean_close", partition="", error=str(error))
        for log in self._logs.values():
            log.close()
        self._events("data_directory_closed", clean=clean)
        return clean

    async def _sync_logs(self, left: Iterator[tuple[TopicPartition, PartitionLog]]) -> bool:
        """Write and sync what a clean stop leaves of each log; False if one of them failed."""
        clean = True
        for partition, log in left:
            try:
                await log.settle()
                log.prepare_close()
                await log.sync()
            except (KafkaStorageError, DiskFailed, DiskFull) as error:
                clean = False
                self._events("unclean_close", partition=str(partition), error=str(error))
        return clean


def partitions_in(disk: Disk, names: Iterable[str]) -> list[TopicPartition]:
    """The partitions that have a folder among ``names`` in the data directory. A file of such a name, such as the copy
    of a checkpoint, is nobody's.
    """
    found = [(partition, name) for name in names if (partition := partition_of(name)) is not None]
    return sorted(partition for partition, name in found if disk.is_folder(name))


def read_identity(disk: Disk) -> MetaProperties | None:
    """The broker and cluster of this data directory; None: it is new.

    Raises InvalidConfig, with a sentence, for a format that this program does not know (it would destroy what it
    cannot read), and for logs of nobody (it would take them for strays of a new node).
    """
    if not disk.exists(META_PROPERTIES):
        nobodys = without_identity(partitions_in(disk, disk.names("")))
        if nobodys:
            raise InvalidConfig(nobodys)
        return None
    try:
        found = parse_meta_properties(disk.read_file(META_PROPERTIES))
    except BadCheckpoint as error:
        raise InvalidConfig(
            f"{META_PROPERTIES} of the data directory cannot be read: {error}; restore the file, or start with another "
            "log.dirs"
        ) from error
    if not 1 <= found.data_format_version <= DATA_FORMAT_VERSION:
        raise InvalidConfig(
            f"the data directory has format {found.data_format_version}, this program understands 1 to "
            f"{DATA_FORMAT_VERSION}: use a newer minikafka"
        )
    return found


def without_identity(partitions: Iterable[TopicPartition]) -> str:
    """What is wrong with a data directory that holds ``partitions`` and no meta.properties; empty: it is new."""
    logs = list(map(str, partitions))
    if not logs:
        return ""
    more = f" and {len(logs) - 2} more" if len(logs) > 2 else ""
    return (
        f"the data directory holds {', '.join(logs[:2])}{more}, but no {META_PROPERTIES} that says whose they are: "
        "restore the file, or move the folders away to begin with an empty directory"
    )


async def _identify(disk: Disk, ours: MetaProperties) -> MetaProperties:
    """Read meta.properties, or write it into a new directory."""
    found = read_identity(disk)
    if found is None:
        await disk.publish(META_PROPERTIES, format_meta_properties(ours))
        return ours
    if found.node_id != ours.node_id:
        raise InvalidConfig(f"the data directory belongs to node {found.node_id}, this is node {ours.node_id}")
    if found.cluster_id != ours.cluster_id:
        raise InvalidConfig(
            f"the data directory belongs to cluster {found.cluster_id!r}, this is cluster {ours.cluster_id!r}"
        )
    return found
