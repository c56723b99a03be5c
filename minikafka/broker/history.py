"""What this broker knew lately: its replicas, its metadata and what happened, as ``/v1/history`` shows them.

The history is always on and bounded in bytes and in time; what is older is forgotten, oldest first. It holds

- samples of replicas: those of this broker that changed, once a second (:meth:`History.sample`), and those that a live
  stream of this broker received (:meth:`History.note`), also of other brokers: a broker that dies takes its own history
  with it;
- changes of the metadata, from which the metadata of an earlier moment is made again;
- the events of the partition histories and the important events of the broker, exactly.

Rules for this file: it remembers and decides nothing. It has no clock and no task; callers pass the time, in
milliseconds since 1970. What a turn of sampling costs is bounded, however many partitions there are: the others have
their turn in the next one.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from minikafka.broker.api.describe import describe_replica
from minikafka.replication.leader import NEVER, LeaderReplica
from minikafka.types import NO_NODE, NodeId, TopicPartition
from minikafka.wire.messages import DescribedReplica, RemoteReplica

if TYPE_CHECKING:
    from minikafka.broker.partition_history import Entry
    from minikafka.quorum.image import BrokerImage, MetadataImage, TopicImage
    from minikafka.replication.partition import Partition

SCANNED_MAX = 2_000
"""Replicas that one turn of sampling looks at."""
SAMPLED_MAX = 50
"""Replicas that one turn of sampling describes: those that have changed."""
GROWING_MS = 1_000
"""A time since a fetch from here on grows until the next sample; a healthy follower fetches more often."""

_LATER = 2**63
_ROW_BYTES = 240
"""What a row costs beside its contents."""
_VALUE_BYTES = 90
_PARTITION_BYTES = 8
_UNFOLLOWED = b"-"
RARE = (
    "role",
    "leader_epoch",
    "isr",
    "maximal_isr",
    "epoch_start_offset",
    "min_isr",
    "proposed_isr",
    "lag_time_max_ms",
    "failure",
)
OFFSETS = ("log_start_offset", "high_watermark", "log_end_offset", "acknowledged_end", "last_stable_offset")
_rare_of = attrgetter(*RARE)
_offsets_of = attrgetter(*OFFSETS)
_FIXED = struct.Struct("<5q")
_REMOTE = struct.Struct("<3qB")


class Sample(NamedTuple):
    """A replica at one moment, as its broker reported it; None: the broker had none, or did not answer."""

    at_ms: int
    node: NodeId
    replica: DescribedReplica | None
    is_followed: bool = True
    """False: from here on this history says nothing of the replica, until its next sample."""


@dataclass(frozen=True, slots=True)
class ImageChange:
    """What the metadata became: only what changed; None: gone."""

    at_ms: int
    topics: Mapping[str, TopicImage | None]
    brokers: Mapping[NodeId, BrokerImage | None]
    controller: NodeId | None
    """None: the same."""

    def apply(self, topics: dict[str, TopicImage], brokers: dict[NodeId, BrokerImage]) -> None:
        """Make the change to these tables."""
        for name, topic in self.topics.items():
            if topic is None:
                topics.pop(name, None)
            else:
                topics[name] = topic
        for node, broker in self.brokers.items():
            if broker is None:
                brokers.pop(node, None)
            else:
                brokers[node] = broker


_Rare: TypeAlias = tuple[Any, ...]
"""What changes rarely of a replica: RARE, then the ids of its followers. Rows share it."""


class _Row(NamedTuple):
    """A sample in the form in which it is kept."""

    at_ms: int
    node: NodeId
    partition: str
    rare: _Rare | None
    """None: no replica."""
    numbers: bytes


@dataclass(slots=True)
class _Latest:
    row: _Row
    significant: tuple[Any, ...]


class History:
    """The memory of one broker; see the head of this file."""

    def __init__(self, node: NodeId, *, keep_ms: int, bytes_max: int) -> None:
        self._node = node
        self._keep_ms = keep_ms
        self._bytes_max = bytes_max
        self.start_ms = 0
        """What happened before is not complete; 0: nothing is kept yet."""
        self.size_bytes = 0
        """An estimate of the memory in use."""
        self._rows: deque[_Row] = deque()
        self._before: dict[tuple[NodeId, str], _Row] = {}
        """The newest of the forgotten rows of each replica."""
        self._latest: dict[tuple[NodeId, str], _Latest] = {}
        self._seen: dict[TopicPartition, tuple[Any, ...]] = {}
        """What the last turn of sampling saw."""
        self._turn: Iterator[TopicPartition] = iter(())
        self._events: deque[tuple[Entry, int]] = deque()
        self._changes: deque[tuple[ImageChange, int]] = deque()
        self._topics: dict[str, TopicImage] = {}
        self._brokers: dict[NodeId, BrokerImage] = {}
        self._controller: NodeId = NO_NODE
        """The metadata before the first change that is kept."""
        self._shown_ms = 0
        """When viewers were last shown a state."""

    @property
    def is_on(self) -> bool:
        """False: the settings leave it no time."""
        return self._keep_ms > 0

    # ---- what happens ------------------------------------------------------------------------------------------------

    def on_entry(self, entry: Entry) -> None:
        """An event of a partition, or of the broker."""
        if self.is_on and entry.at_ms >= 0:
            size = _ROW_BYTES + _VALUE_BYTES * len(entry.facts) + sum(map(_length, entry.facts.values()))
            self._events.append((entry, size))
            self._grow(entry.at_ms, size)

    def on_shown(self, at_ms: int) -> None:
        """Viewers are shown the present as the state at ``at_ms``: what is noted after it has a later time, so that the
        history has for that time what they saw.
        """
        self._shown_ms = at_ms

    def on_image(self, at_ms: int, old: MetadataImage, new: MetadataImage) -> None:
        """The metadata has changed."""
        topics: dict[str, TopicImage | None] = {}
        brokers: dict[NodeId, BrokerImage | None] = {}
        if old.topics is not new.topics:
            topics = {name: topic for name, topic in new.topics.items() if old.topics.get(name) is not topic}
            topics.update(dict.fromkeys(old.topics.keys() - new.topics.keys()))
        if old.brokers is not new.brokers:
            brokers = {node: each for node, each in new.brokers.items() if old.brokers.get(node) is not each}
            brokers.update(dict.fromkeys(old.brokers.keys() - new.brokers.keys()))
        if topics or brokers:
            self._change(at_ms, topics, brokers, None)

    def on_controller(self, at_ms: int, controller: NodeId) -> None:
        """Another broker is the active controller."""
        self._change(at_ms, {}, {}, controller)

    def _change(
        self,
        at_ms: int,
        topics: Mapping[str, TopicImage | None],
        brokers: Mapping[NodeId, BrokerImage | None],
        controller: NodeId | None,
    ) -> None:
        if self.is_on:
            change = ImageChange(max(at_ms, self._shown_ms + 1), topics, brokers, controller)
            partitions = sum(len(each.partitions) for each in change.topics.values() if each is not None)
            size = _ROW_BYTES * (1 + len(change.topics) + len(change.brokers)) + _PARTITION_BYTES * partitions
            self._changes.append((change, size))
            self._grow(change.at_ms, size)

    # ---- samples -----------------------------------------------------------------------------------------------------

    def sample(self, at_ms: int, now: float, partitions: Mapping[TopicPartition, Partition]) -> int:
        """One turn: keep the replicas of this broker that have changed since their last turn; how many."""
        if not self.is_on:
            return 0
        for name in self._seen.keys() - partitions.keys():
            del self._seen[name]
            self.note(at_ms, self._node, str(name), None)
        count = 0
        for _ in range(min(SCANNED_MAX, len(partitions))):
            name = next(self._turn, None) or self._begin_turn(partitions)
            partition = partitions.get(name)
            if partition is None:
                continue
            seen = _fingerprint(partition, now)
            if self._seen.get(name) == seen:
                continue
            if count == SAMPLED_MAX:
                break  # it differs from what was seen of it until its next turn
            self._seen[name] = seen
            self.note(at_ms, self._node, str(name), describe_replica(partition, now))
            count += 1
        self._forget(at_ms)
        return count

    def _begin_turn(self, partitions: Mapping[TopicPartition, Partition]) -> TopicPartition:
        self._turn = iter(tuple(partitions))
        return next(self._turn)

    def note(
        self, at_ms: int, node: NodeId, partition: str, replica: DescribedReplica | None, *, is_followed: bool = True
    ) -> None:
        """Keep what ``node`` reported of its replica, unless it is as before. ``is_followed`` False: nothing more will
        be noted of it.
        """
        if not self.is_on:
            return
        key = (node, partition)
        latest = self._latest.get(key)
        rare: _Rare | None = None
        if replica is None:
            significant: tuple[Any, ...] = (is_followed,)
        else:
            remotes = replica.remotes
            rare = (*_rare_of(replica), tuple([each.broker_id for each in remotes]))
            offsets = _offsets_of(replica)
            significant = (rare, offsets, *[_significant(each) for each in remotes])
        if latest is not None:
            if latest.significant == significant:
                return
            if latest.row.rare == rare:
                rare = latest.row.rare
        if replica is None:
            numbers = b"" if is_followed else _UNFOLLOWED
        else:
            numbers = _FIXED.pack(*offsets) + b"".join([_packed(each) for each in remotes])
        row = _Row(max(at_ms, self._shown_ms + 1), node, partition, rare, numbers)
        self._latest[key] = _Latest(row, significant)
        self._rows.append(row)
        self._grow(at_ms, _size_of(row))

    # ---- bounds ------------------------------------------------------------------------------------------------------

    def _grow(self, at_ms: int, size: int) -> None:
        if not self.start_ms:
            self.start_ms = at_ms
        self.size_bytes += size
        if self.size_bytes > self._bytes_max:
            self._forget(at_ms)

    def _forget(self, now_ms: int) -> None:
        """Drop the oldest rows, of whatever kind, until the bounds are kept."""
        until = now_ms - self._keep_ms
        while self._rows or self._events or self._changes:
            row = self._rows[0].at_ms if self._rows else _LATER
            event = self._events[0][0].at_ms if self._events else _LATER
            oldest = min(row, event, self._changes[0][0].at_ms if self._changes else _LATER)
            if oldest >= until and self.size_bytes <= self._bytes_max:
                break
            self.start_ms = max(self.start_ms, min(oldest, now_ms) + 1)
            if row == oldest:
                self._forget_row(self._rows.popleft())
            elif event == oldest:
                self.size_bytes -= self._events.popleft()[1]
            else:
                self._forget_change()
        self.start_ms = max(self.start_ms, until)

    def _forget_row(self, row: _Row) -> None:
        """The newest forgotten row says how the replica was at the start."""
        key = (row.node, row.partition)
        self.size_bytes -= _size_of(row)
        before = self._before.pop(key, None)
        if before is not None:
            self.size_bytes -= _size_of(before)
        if row.rare is not None:
            self._before[key] = row
            self.size_bytes += _size_of(row)
        elif self._latest[key].row is row:
            del self._latest[key]

    def _forget_change(self) -> None:
        change, size = self._changes.popleft()
        self.size_bytes -= size
        change.apply(self._topics, self._brokers)
        if change.controller is not None:
            self._controller = change.controller

    # ---- reading -----------------------------------------------------------------------------------------------------

    def samples(self, partition: str, from_ms: int, to_ms: int) -> list[Sample]:
        """Samples of a partition: of each replica the last one up to ``from_ms``, then those up to ``to_ms``."""
        last = {node: row for (node, name), row in self._before.items() if name == partition}
        within: list[_Row] = []
        for row in self._rows:
            if row.partition == partition and row.at_ms <= to_ms:
                if row.at_ms <= from_ms:
                    last[row.node] = row
                else:
                    within.append(row)
        rows = [*sorted((row for row in last.values() if row.at_ms <= to_ms), key=lambda row: row.at_ms), *within]
        return [Sample(row.at_ms, row.node, _replica_of(row), row.numbers != _UNFOLLOWED) for row in rows]

    def events(self, partition: str | None, from_ms: int, to_ms: int) -> list[Entry]:
        """Events of a partition (None: all events) from ``from_ms`` to ``to_ms``, both included, oldest first."""
        return [
            entry
            for entry, _ in self._events
            if from_ms <= entry.at_ms <= to_ms and (partition is None or entry.facts.get("partition") == partition)
        ]

    def image_at(self, at_ms: int, present: MetadataImage) -> tuple[MetadataImage, NodeId]:
        """The topics and brokers of the metadata, and the active controller, as this broker knew them at ``at_ms``.
        ``present`` has the rest, which has no history.
        """
        topics, brokers, controller = dict(self._topics), dict(self._brokers), self._controller
        for change, _ in self._changes:
            if change.at_ms <= at_ms:
                change.apply(topics, brokers)
                controller = controller if change.controller is None else change.controller
        return replace(present, topics=topics, brokers=brokers), controller

    def image_changes(self, from_ms: int, to_ms: int) -> list[ImageChange]:
        """Changes of the metadata after ``from_ms`` and up to ``to_ms``."""
        return [change for change, _ in self._changes if from_ms < change.at_ms <= to_ms]


def _length(value: Any) -> int:
    if isinstance(value, (str, bytes)):
        return len(value)
    return _VALUE_BYTES * len(value) if hasattr(value, "__len__") else 0


def _size_of(row: _Row) -> int:
    return _ROW_BYTES + len(row.numbers)


# ---- one replica -----------------------------------------------------------------------------------------------------


def _fingerprint(partition: Partition, now: float) -> tuple[Any, ...]:
    """Equal as long as a new sample would show nothing new; much cheaper than a sample."""
    role, end, high_watermark = partition.role, partition.log.end_offset, partition.high_watermark
    own = (end, high_watermark, partition.epoch, partition.failed, role is None)
    if not isinstance(role, LeaderReplica):
        return own
    if end == high_watermark and len(role.isr) > len(role.remotes):
        return (*own, role.isr)  # every follower has everything: the usual state of a partition that rests
    return (
        *own,
        role.isr,
        role.proposal,
        *((each.end_offset, _doublings(_ms_since(each.fetched_at(), now))) for each in role.remotes.values()),
    )


def _ms_since(at: float, now: float) -> int:
    return -1 if at == NEVER else int((now - at) * 1000)


def _doublings(ms: int) -> int:
    """0 below GROWING_MS, then one more each time that a duration has doubled."""
    return max(0, ms // GROWING_MS).bit_length()


def _significant(remote: RemoteReplica) -> tuple[int, ...]:
    """Whatever of a follower makes a sample differ from the one before."""
    return (
        remote.log_end_offset,
        _doublings(remote.caught_up_ms_ago),
        _doublings(remote.last_fetch_ms_ago),
        _flags(remote),
    )


def _flags(remote: RemoteReplica) -> int:
    return remote.in_sync | remote.holds_watermark << 1 | remote.may_join << 2


def _packed(remote: RemoteReplica) -> bytes:
    return _REMOTE.pack(remote.log_end_offset, remote.caught_up_ms_ago, remote.last_fetch_ms_ago, _flags(remote))


def _replica_of(row: _Row) -> DescribedReplica | None:
    if row.rare is None:
        return None
    *rare, nodes = row.rare
    remotes = _REMOTE.iter_unpack(memoryview(row.numbers)[_FIXED.size :])
    return DescribedReplica(
        **TopicPartition.parsed(row.partition)._asdict(),
        remotes=tuple(_remote_of(node, numbers) for node, numbers in zip(nodes, remotes, strict=True)),
        **dict(zip(RARE, rare, strict=True)),
        **dict(zip(OFFSETS, _FIXED.unpack_from(row.numbers), strict=True)),
    )


def _remote_of(node: NodeId, numbers: tuple[int, int, int, int]) -> RemoteReplica:
    end, caught_up, fetched, flags = numbers
    return RemoteReplica(
        broker_id=node,
        log_end_offset=end,
        caught_up_ms_ago=caught_up,
        in_sync=bool(flags & 1),
        last_fetch_ms_ago=fetched,
        holds_watermark=bool(flags & 2),
        may_join=bool(flags & 4),
    )
