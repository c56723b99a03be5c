"""Replication's pull side: one loop per leader followed, one fetch for all partitions followed there.

The rules are in ``replication/follower.py``; this driver asks, awaits and obeys. What it must see to:

- The role object is compared by identity after every await: an answer to a former role is thrown away.
- The log's end is the offset that the next fetch asks from, so under sync-before-acknowledge it is synced before that
  fetch goes out: the fetch is the acknowledgement.
- A partition that failed pauses alone, the others go on.
- A partition that is new at this leader does not wait for the long poll under way: that one is given up.
- A round looks only at partitions where something may have changed since the last one (``_touched``): an idle partition
  costs nothing. Whatever may change the question, its pause, or what must be synced first, touches the partition.
- A fetch whose response is late is repeated after ``Patience``, not after replica.socket.timeout.ms: it may have been
  lost.
- The fetch session (KIP-227) begins again whenever it is not sure what the leader has counted: no answer, an answer
  given up, a new life of this loop. What could not be used of an answer is asked for again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from minikafka.broker.append_throttle import AppendThrottle
from minikafka.broker.live_settings import LiveSettings
from minikafka.broker.meters import Traffic
from minikafka.broker.purgatory import Purgatory
from minikafka.config import BrokerConfig
from minikafka.errors import (
    BY_CODE,
    CorruptMessage,
    DiskFailed,
    DiskFull,
    FetchSessionIdNotFound,
    InvalidFetchSessionEpoch,
    InvalidRecord,
    InvalidRequest,
    KafkaStorageError,
    OutcomeUnknown,
    ProtocolError,
    WorldError,
    error_name,
)
from minikafka.ports import World
from minikafka.replication.fetch_session import FetcherSession
from minikafka.replication.follower import CutTo, Extend, FollowerReplica, NextFetch, RestartAt, Wait
from minikafka.rpc import Patience, call
from minikafka.tasks import CancelScope, Flag
from minikafka.types import Address, NodeId, Offset, TopicPartition
from minikafka.wire.messages import FetchedPartition, FetchPartition, FetchRequest, FetchResponse

if TYPE_CHECKING:
    from minikafka.broker.flusher import Flusher, Spawn
    from minikafka.replication.partition import Partition


BACKOFF_FIRST_S = 0.02
DOUBLINGS_MAX = 20
"""Of that pause: beyond any replica.fetch.backoff.ms. After a thousand, a float could no longer hold it."""
PARTIAL_WAIT_MS = 20
"""Longest wait of a request that had no room for all partitions: the next one names the others."""


class _Asked(NamedTuple):
    """What one partition was asked for: in which role, and from where."""

    role: FollowerReplica
    fetch: NextFetch
    item: FetchPartition

    def is_current(self, role: FollowerReplica) -> bool:
        """Return True if the same request would be sent now. This costs less than the request."""
        fetch, log = self.fetch, role.log
        return (
            role is self.role
            and fetch.offset == log.end_offset
            and fetch.start_offset == log.start_offset
            and fetch.high_watermark == role.high_watermark
            and fetch.last_fetched_epoch == role.truncation.last_fetched_epoch(log)
        )

    def is_answered_to(self, partition: Partition) -> bool:
        """True if the role that asked is still the present one, and its log still ends where it asked from."""
        return partition.role is self.role and self.fetch.offset == partition.log.end_offset


class ReplicaFetchers:
    """All loops of one broker, and which partition is fetched where."""

    def __init__(
        self,
        live: LiveSettings,
        world: World,
        *,
        partitions: Mapping[TopicPartition, Partition],
        flushers: Mapping[TopicPartition, Flusher],
        purgatory: Purgatory,
        append_throttle: AppendThrottle,
        spawn: Spawn,
        address_of: Callable[[NodeId], Address | None],
        broker_epoch: Callable[[], int],
        on_storage_failure: Callable[[TopicPartition, str], None],
        traffic: Traffic,
    ) -> None:
        self._live = live
        self.world = world
        self.partitions = partitions
        self.flushers = flushers
        self.purgatory = purgatory
        self.append_throttle = append_throttle
        self.spawn = spawn
        self.address_of = address_of
        self.broker_epoch = broker_epoch
        self.on_storage_failure = on_storage_failure
        self.traffic = traffic
        self._loops: dict[NodeId, _LeaderLoop] = {}

    @property
    def config(self) -> BrokerConfig:
        """The settings that count now."""
        return self._live.now

    def assign(self, partition: Partition) -> None:
        """The partition has a new role: fetch it from its leader if it follows, from nowhere if not."""
        name = partition.partition
        role = partition.role
        for leader in list(self._loops):
            if not isinstance(role, FollowerReplica) or leader != role.leader:
                self._loops[leader].drop(name)
        if isinstance(role, FollowerReplica):
            loop = self._loops.get(role.leader)
            if loop is None:
                loop = self._loops[role.leader] = _LeaderLoop(self, role.leader)
            loop.add(name)

    def lags(self) -> dict[TopicPartition, int]:
        """Of each partition followed here: records up to the leader's log end of its last response."""
        return {
            name: max(0, end - self.partitions[name].log.end_offset)
            for loop in self._loops.values()
            for name, end in loop.leader_ends.items()
            if name in loop.following and name in self.partitions
        }

    def drop(self, name: TopicPartition) -> None:
        """The replica is gone from this broker."""
        for loop in self._loops.values():
            loop.drop(name)

    def touch(self, name: TopicPartition) -> None:
        """The partition's settings have changed: what its log holds may have to be synced before the next fetch."""
        for loop in self._loops.values():
            loop.touch(name)


class _LeaderLoop:
    """Fetches everything that is followed at one leader. Its task ends when nothing is, and starts again on demand."""

    def __init__(self, owner: ReplicaFetchers, leader: NodeId) -> None:
        self.owner = owner
        self.leader = leader
        self.following: dict[TopicPartition, float] = {}
        """Partition -> when it may be asked for again."""
        self.leader_ends: dict[TopicPartition, Offset] = {}
        """The leader's log end in its latest response."""
        self._failures: dict[TopicPartition, int] = {}
        """Partition -> how often in a row it could not be fetched."""
        self._changed = Flag()
        self._long_poll: CancelScope | None = None
        """Around the fetch under way."""
        self._task: asyncio.Task[None] | None = None
        self._session = FetcherSession()
        self._patience = Patience()
        self._asked: dict[TopicPartition, _Asked] = {}
        """By the latest fetch."""
        self._items: dict[TopicPartition, FetchPartition] = {}
        """The items of ``_asked``."""
        self._touched: dict[TopicPartition, None] = {}
        """Partitions to look at before the next fetch; those that pause or must be synced stay here."""

    def add(self, name: TopicPartition) -> None:
        self.following[name] = 0.0
        self._touched[name] = None
        self._changed.set()
        if self._long_poll is not None:
            self._long_poll.end()
        if self._task is None or self._task.done():
            self._task = self.owner.spawn(self._run(), f"fetch-from-{self.leader}")

    def drop(self, name: TopicPartition) -> None:
        if self.following.pop(name, None) is not None:
            self._touched[name] = None
        self.leader_ends.pop(name, None)
        self._failures.pop(name, None)

    def touch(self, name: TopicPartition) -> None:
        if name in self.following:
            self._touched[name] = None

    async def _run(self) -> None:
        self._session.lost()
        self._touched.update(dict.fromkeys(self.following))
        while self.following:
            self._changed.clear()
            await self._sync_what_is_not()
            now = self.owner.world.clock.now()
            touched = list(self._touched)
            asking = self._next_fetches(now)
            address = self.owner.address_of(self.leader)
            if not asking or address is None:
                self._touched.update(dict.fromkeys(touched))
                await self._pause(now)
                continue
            response = await self._fetch(address, asking, touched, now)
            if response is not None:
                await self._obey(asking, response)

    async def _sync_what_is_not(self) -> None:
        """Under sync-before-acknowledge a fetch says "durable up to here": also of a tail that a former life left in
        the page cache, or that was appended when this replica led. A log that begins again is synced before its next
        fetch under each policy.
        """
        syncing = [
            self.owner.flushers[name].durable(self.owner.partitions[name].log.end_offset)
            for name in self._touched
            if name in self.owner.partitions and not self.owner.partitions[name].failed and self._is_unsynced(name)
        ]
        if syncing:
            # A log whose sync failed has reported it and is offline now.
            await asyncio.gather(*syncing, return_exceptions=True)

    def _next_fetches(self, now: float) -> dict[TopicPartition, _Asked]:
        for name in list(self._touched):
            not_before = self.following.get(name)
            partition = self.owner.partitions.get(name)
            role = partition.role if partition else None
            before = self._asked.pop(name, None)
            self._items.pop(name, None)
            if not_before is None or partition is None or not isinstance(role, FollowerReplica):
                self.following.pop(name, None)
                del self._touched[name]
            elif role.leader != self.leader:
                del self.following[name], self._touched[name]
            elif not_before <= now and not self._is_unsynced(name):
                asked = before if before is not None and before.is_current(role) else self._ask(partition, role)
                self._asked[name], self._items[name] = asked, asked.item
                del self._touched[name]
        return self._asked

    def _ask(self, partition: Partition, role: FollowerReplica) -> _Asked:
        fetch = role.next_fetch()
        item = FetchPartition(
            topic=partition.partition.topic,
            partition=partition.partition.partition,
            topic_id=partition.topic_id,
            current_leader_epoch=fetch.leader_epoch,
            fetch_offset=fetch.offset,
            last_fetched_epoch=fetch.last_fetched_epoch,
            log_start_offset=fetch.start_offset,
            high_watermark=fetch.high_watermark,
            partition_max_bytes=self.owner.config.replica_fetch_max_bytes,
        )
        return _Asked(role, fetch, item)

    def _is_unsynced(self, name: TopicPartition) -> bool:
        """To fetch now would acknowledge what only the page cache has, or append to a log whose former records may
        come back.
        """
        log = self.owner.partitions[name].log
        syncs = self.owner.partitions[name].config.syncs_before_acknowledging
        return (syncs and log.synced_end < log.end_offset) or log.restart_is_unsynced

    async def _pause(self, now: float) -> None:
        """Wait for news, or until a paused partition may be asked for again."""
        backoff = self.owner.config.replica_fetch_backoff_ms / 1000
        await self._changed.wait(min([now + backoff, *self._pauses(now)]))

    def _pauses(self, now: float) -> list[float]:
        """When partitions that pause may be asked for again."""
        return [at for name in self._touched if (at := self.following.get(name, now)) > now]

    async def _fetch(
        self,
        address: Address,
        asking: Mapping[TopicPartition, _Asked],
        touched: Sequence[TopicPartition],
        now: float,
    ) -> FetchResponse | None:
        config = self.owner.config
        # The long poll ends when the pause of a partition that is left out does: else a leader that was one metadata
        # round late would wait for this follower as long as the others have nothing new.
        pauses_ms = [int((at - now) * 1000) + 1 for at in self._pauses(now)]
        in_session = self._session.next_request(self._items, touched)
        if in_session.is_partial:
            pauses_ms.append(PARTIAL_WAIT_MS)
        if self._patience.is_probing:
            pauses_ms.append(0)
        wait_ms = min([config.replica_fetch_wait_max_ms, *pauses_ms])
        request = FetchRequest(
            replica_id=config.node_id,
            replica_epoch=self.owner.broker_epoch(),
            max_wait_ms=wait_ms,
            min_bytes=config.replica_fetch_min_bytes,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=in_session.session_id,
            session_epoch=in_session.session_epoch,
            partitions=in_session.partitions,
            forgotten=in_session.forgotten,
        )
        deadline = now + wait_ms / 1000 + self._patience.seconds(config.replica_socket_timeout_ms / 1000)
        response: FetchResponse | None = None
        try:
            # A cancel scope rather than a task of its own: every turn of the loop delays the acknowledgement.
            with CancelScope() as self._long_poll:
                response = await call(self.owner.world.network, address, request, deadline)
        except (WorldError, ProtocolError) as error:
            why = f"{type(error).__name__}: {error}"
            if isinstance(error, OutcomeUnknown) and self.owner.world.clock.now() >= deadline:
                # No pause: this one has waited, and the response may just have been lost.
                self._patience.lost()
                self.owner.world.events("fetch_failed", leader=self.leader, why=why, partitions=len(asking))
            else:
                self._fetch_failed(asking, why)
            return None
        finally:
            self._long_poll = None
            if response is None:
                self._session.lost()
        if response is None:
            return None
        self._patience.answered(max(0.0, self.owner.world.clock.now() - now - wait_ms / 1000))
        if response.error_code:
            self._session.lost()
            if BY_CODE.get(response.error_code) in (FetchSessionIdNotFound, InvalidFetchSessionEpoch):
                self.owner.world.events("fetch_session_lost", leader=self.leader, error=error_name(response.error_code))
            else:
                self._fetch_failed(asking, f"{error_name(response.error_code)}: {response.error_message}")
            return None
        self._session.answered(response.session_id)
        return response

    def _fetch_failed(self, asking: Mapping[TopicPartition, object], why: str) -> None:
        self.owner.world.events("fetch_failed", leader=self.leader, why=why, partitions=len(asking))
        for name in asking:
            self._back_off(name)

    def _back_off(self, name: TopicPartition) -> None:
        """Pause this partition: briefly at first, since a leader that lags by one metadata round is the usual cause,
        then longer, up to replica.fetch.backoff.ms.
        """
        if name in self.following:
            failures = self._failures.get(name, 0)
            self._failures[name] = min(failures + 1, DOUBLINGS_MAX)
            pause = min(BACKOFF_FIRST_S * 2**failures, self.owner.config.replica_fetch_backoff_ms / 1000)
            self.following[name] = self.owner.world.clock.now() + pause
            self._touched[name] = None

    async def _obey(self, asking: Mapping[TopicPartition, _Asked], response: FetchResponse) -> None:
        """Apply the answer partition by partition; syncs run together, each before its own acknowledgement."""
        extended: list[tuple[Partition, FollowerReplica, Extend, Flusher]] = []
        heard: dict[TopicPartition, None] = {}
        for answer in response.partitions:
            size = sum(map(len, answer.records))
            self.owner.traffic.replication_bytes_in += size
            await self.owner.append_throttle.admit(size)
            name = TopicPartition(answer.topic, answer.partition)
            self.touch(name)
            asked = asking.get(name)
            partition = self.owner.partitions.get(name)
            if asked is None or partition is None or not asked.is_answered_to(partition):
                continue
            self.leader_ends[name] = answer.log_end_offset
            step = self._apply(name, asked.role, answer, asked.fetch)
            if step is not None:
                # Taken now: while the others have their turn, this topic may be deleted.
                extended.append((partition, asked.role, step, self.owner.flushers[name]))
        syncing = [
            flusher.durable(partition.log.end_offset)
            for partition, _, step, flusher in extended
            if step.batches and partition.config.syncs_before_acknowledging
        ]
        if syncing:
            # A log whose sync failed has reported it and is offline now: its role below is another one.
            await asyncio.gather(*syncing, return_exceptions=True)
        for partition, role, step, _ in extended:
            if partition.role is role:
                heard[partition.partition] = None
                try:
                    has_moved = role.on_durable(step.leader_high_watermark, step.leader_start_offset)
                except KafkaStorageError as error:
                    self.owner.on_storage_failure(partition.partition, str(error))
                    continue
                if has_moved:
                    self.owner.purgatory.wake_committed(partition.partition, role)
        for answer in response.partitions:
            name = TopicPartition(answer.topic, answer.partition)
            if name not in heard:
                self._session.unheard(name)

    def _apply(
        self, name: TopicPartition, role: FollowerReplica, answer: FetchedPartition, asked: NextFetch
    ) -> Extend | None:
        try:
            step = role.on_response(answer, asked=asked.offset)
            match step:
                case CutTo(offset):
                    self._failures.pop(name, None)
                    role.cut_to(offset)
                case RestartAt(offset):
                    self._failures.pop(name, None)
                    role.restart_at(offset)
                case Wait(error_code, _):
                    self.owner.world.events("fetch_refused", partition=str(name), error=error_name(error_code))
                    self._back_off(name)
                case Extend(batches, _, _):
                    role.append(batches)
                    self._failures.pop(name, None)
                    return step
        except (CorruptMessage, InvalidRecord, InvalidRequest) as error:
            self.owner.world.events("fetch_corrupt", partition=str(name), leader=self.leader, why=str(error))
            self._back_off(name)
        except (KafkaStorageError, DiskFailed, DiskFull) as error:
            self.owner.on_storage_failure(name, str(error))
        return None
