"""Fetch: read from partitions, as a consumer or as a follower.

- Waits up to ``max_wait_ms`` for ``min_bytes``, then answers with what there is (S12); an error or a divergence in any
  partition answers at once. A partition whose next batch does not fit counts with its whole limit, as in Kafka, which
  sends a part of that batch: more records would not make the response larger.
- A follower's fetch offset is also its acknowledgement: everything below it is at the follower (S5, S7). It counts
  once per request, only after a read that succeeded and did not diverge; the answer carries the watermark *after* it.
- A consumer reads below the high watermark, taken once per read (S3, KAFKA-9807); only leaders serve (S17). A leader
  whose session with the controller has expired refuses consumers: its successor's log may be longer by now. It goes on
  serving followers, which check it by its epoch.
- The first batch is returned even if it is larger than every limit (KIP-74).
- In a fetch session (KIP-227, ``replication/fetch_session.py``) a request speaks for all partitions of the session,
  named or not: each fetch offset is acknowledged again, each request is checked again unless nothing has happened that
  could change the answer. Only what is news is answered. A long poll looks again only at the partitions that woke it.
  A follower's partitions where nothing happens are idle: the request counts for all of them at once, without a look at
  each (``IdleFetches``). A leader stirs them first when something changes, and so they are looked at again.
- A session keeps partitions that its client may not read. They get the error before any look at the partition, so that
  neither the response nor its moment depends on what is there.
- With ``read_committed`` a consumer reads below the last stable offset, taken together with the high watermark, and is
  given the aborted transactions in what it reads, and leaves their batches out itself (KIP-98). With
  ``read_uncommitted`` the list is empty.
- Differs from Kafka: no rack awareness.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from typing import TYPE_CHECKING, Any, cast

from minikafka.broker.lifecycle import SessionAlive, session_expired
from minikafka.broker.purgatory import Condition, Mark, Waiter
from minikafka.errors import (
    InconsistentTopicId,
    InvalidRequest,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    ProtocolError,
    TopicAuthorizationFailed,
    error_name,
)
from minikafka.parked import Result
from minikafka.replication.fetch_session import FULL_EPOCH, CachedPartition, FetchSession
from minikafka.replication.leader import LeaderReplica
from minikafka.types import EpochEnd, Offset, TopicPartition
from minikafka.wire.messages import (
    READ_COMMITTED,
    AbortedTransaction,
    EpochEndOffset,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)

if TYPE_CHECKING:
    from minikafka.broker.replica_manager import ReplicaManager
    from minikafka.log.partition_log import LogSlice
    from minikafka.ports import Buffer, FileRegion
    from minikafka.replication.partition import Partition

# A parked fetch holds a connection; nobody gains by waiting longer than this in one request.
MAX_WAIT_MS_MAX = 300_000

# Of a broker that this one takes for fenced, or does not know in its present life: it may join the ISR with its next
# fetch, once the news of its registration is here.
NEWCOMER_WAIT_MS_MAX = 50


class _Read:
    """What one partition has to say."""

    __slots__ = ("_answer", "counted", "data", "leader", "seat", "size", "urgent")

    def __init__(
        self,
        answer: FetchedPartition | None,
        *,
        urgent: bool = False,
        seat: Partition | None = None,
        leader: LeaderReplica | None = None,
        data: LogSlice | None = None,
        counted: int = 0,
    ) -> None:
        """``answer`` None: it is made of the others when it is wanted, in the same turn of the loop. A request that
        parks wants none. ``counted``: what counts toward ``min_bytes``, if that is more than the size of the data.
        """
        self._answer = answer
        self.urgent = urgent
        """Do not wait: an error, or a divergence."""
        self.seat = seat
        self.leader = leader
        """In which role it was read, if the question was in order."""
        self.data = data
        self.size = data.size if data is not None else 0
        self.counted = max(self.size, counted)

    @property
    def answer(self) -> FetchedPartition:
        """What the fetcher receives."""
        answer = self._answer
        if answer is None:
            if self.seat is None or self.leader is None:
                raise InvalidRequest("a partition was neither read nor refused")
            answer = self._answer = _data(self.seat, self.leader, self.data)
        return answer


def handle_fetch(
    replicas: ReplicaManager,
    request: FetchRequest,
    *,
    session_alive: SessionAlive,
    sends_files: bool = False,
    may_read: Callable[[str], bool] | None = None,
) -> FetchResponse | Awaitable[FetchResponse]:
    """Read, wait if there is too little, read again; see the head of this file.

    With ``sends_files`` records of the response may be :class:`FileRegion` objects. ``may_read`` takes a topic's name;
    None: the client may read every topic of its session. Raises InvalidRequest,
    FetchSessionIdNotFound, InvalidFetchSessionEpoch.
    """
    if request.max_wait_ms < 0:
        raise InvalidRequest(f"max_wait_ms={request.max_wait_ms} is negative", member="max_wait_ms")
    if request.max_bytes < 0 or _any_is_negative(request.partitions):
        raise InvalidRequest("max_bytes and partition_max_bytes must not be negative")
    now = replicas.clock.now()
    wait_ms = min(request.max_wait_ms, MAX_WAIT_MS_MAX)
    if request.replica_id >= 0 and replicas.broker_epoch_of(request.replica_id) != request.replica_epoch:
        wait_ms = min(wait_ms, NEWCOMER_WAIT_MS_MAX)
    as_regions = sends_files and request.replica_id < 0
    fetch = _Fetch(replicas, request, replicas.fetch_sessions.begin(request, now), session_alive, as_regions, may_read)
    fetch.read(acknowledge=True)
    if fetch.has_enough() or request.max_wait_ms == 0 or not fetch.asks_anything():
        return fetch.response_when_cached()
    return _park(fetch, now + wait_ms / 1000)


def _park(fetch: _Fetch, deadline: float) -> Waiter:
    """Wait for more. Until then only the partitions that wake the request are read again."""
    replicas = fetch.replicas
    news: list[TopicPartition] = []

    def enough() -> bool:
        fetch.read_again(dict.fromkeys(news))
        news.clear()
        return fetch.has_enough()

    def response(is_enough: Result) -> Any:
        fetch.read(acknowledge=False, keep_fresh=is_enough())
        return fetch.response_when_cached()

    meter = replicas.traffic.purgatory_meters["Fetch"]
    waiter = replicas.purgatory.park(fetch.conditions(), enough, deadline, news=news, meter=meter)
    waiter.then(response)
    fetch.wait_for_idle(waiter)
    return waiter


def _any_is_negative(partitions: Sequence[FetchPartition]) -> bool:
    for each in partitions:  # noqa: SIM110 - a generator costs more than the one partition that most requests name
        if each.partition_max_bytes < 0:
            return True
    return False


class _Fetch:
    """One request under way: what it asks about, and what was read for it so far."""

    def __init__(
        self,
        replicas: ReplicaManager,
        request: FetchRequest,
        session: FetchSession | None,
        session_alive: SessionAlive,
        as_regions: bool,  # noqa: FBT001 - named at its only call
        may_read: Callable[[str], bool] | None,
    ) -> None:
        self.as_regions = as_regions
        """Large reads from files may be regions: a consumer's, since no truncation reaches what it may read."""
        self._may_read = may_read
        self.replicas = replicas
        self.request = request
        self.session = session
        self._reads_committed = request.replica_id < 0 and request.isolation_level == READ_COMMITTED
        self._mark = Mark.LAST_STABLE if self._reads_committed else Mark.HIGH_WATERMARK
        """What it waits for."""
        if request.replica_id >= 0:
            self._mark = Mark.LOG_END
        self.session_alive = session_alive
        self.session_epoch = session.epoch if session is not None else 0
        self.asked = [CachedPartition(item) for item in request.partitions] if session is None else []
        """What is looked at; in a session the active partitions, as they are at each read."""
        self.budget = min(request.max_bytes, replicas.config.fetch_max_bytes)
        self.min_bytes = min(request.min_bytes, self.budget)
        self.reads: dict[CachedPartition, _Read] = {}
        """Of those that had something to say; without a session of all."""
        self.fresh: dict[CachedPartition, _Read] = {}
        """What the latest wake-up has read."""

    @property
    def is_follower(self) -> bool:
        return self.request.replica_id >= 0

    def read(self, *, acknowledge: bool, keep_fresh: bool = False) -> None:
        """Ask every partition, each with what the ones before it left of the budget.

        ``acknowledge``: this is the request's first read, which counts as the follower's word for every partition of
        its session. ``keep_fresh``: nothing happened since the last wake-up, what it has read stands.
        """
        fresh = self.fresh if keep_fresh else {}
        is_follower, session, may_read = self.is_follower, self.session, self._may_read
        short_way = self._may_ask_again() if acknowledge or not is_follower else True
        node, epoch, now = self.request.replica_id, self.request.replica_epoch, self.replicas.clock.now()
        idle = None
        if session is not None:
            if acknowledge and is_follower:
                if not short_way:
                    session.look_at_all()
                idle = session.idle
                idle.at = now
            self.asked = list(session.active.values())
        reads: dict[CachedPartition, _Read] = {}
        budget = self.budget
        any_data = False
        for cached in self.asked:
            leader = (
                cached.quiet_leader(is_follower=is_follower, reads_committed=self._reads_committed)
                if short_way and (may_read is None or may_read(cached.name.topic))
                else None
            )
            if leader is not None:
                if not (acknowledge and is_follower):
                    continue
                if leader.asks_again(node, cached.item.fetch_offset, broker_epoch=epoch, now=now, idle=idle):
                    if session is not None:
                        session.rests(cached)
                    continue
            read = fresh.get(cached) or self._read_one(cached, budget, first=not any_data, acknowledge=acknowledge)
            if read.size:
                budget = max(0, budget - read.size)
                any_data = True
            reads[cached] = read
        self.reads = reads

    def _may_ask_again(self) -> bool:
        """No check of the whole request calls for a second look at every partition."""
        if not self.is_follower:
            return self.session_alive()
        known = self.replicas.broker_epoch_of(self.request.replica_id)
        is_former = known is not None and self.request.replica_epoch < known
        return not is_former and not self.replicas.purgatory.is_watched(Mark.LOG_START)

    def _read_one(self, cached: CachedPartition, budget: int, *, first: bool, acknowledge: bool) -> _Read:
        if self._may_read is not None and not self._may_read(cached.name.topic):
            denied = TopicAuthorizationFailed(f"The client has no permission for READ on TOPIC {cached.name.topic}.")
            return _refusal(self.replicas, cached.name, None, denied)
        return _read_one(
            self.replicas,
            self.request,
            cached.item,
            budget,
            first=first,
            acknowledge=acknowledge,
            session_alive=self.session_alive,
            as_region=self.as_regions,
        )

    def read_again(self, news: Container[TopicPartition]) -> None:
        """Look at those that woke the request, and at no others."""
        self.fresh = {}
        budget = self.budget
        any_data = False
        asked = self.asked if self.session is None else self.session.active.values()
        for cached in [cached for cached in asked if cached.name in news]:
            read = self._read_one(cached, budget, first=not any_data, acknowledge=False)
            budget = max(0, budget - read.size)
            any_data = any_data or read.size > 0
            self.reads[cached] = self.fresh[cached] = read

    def has_enough(self) -> bool:
        size = 0
        for each in self.reads.values():
            if each.urgent:
                return True
            size += each.counted
        return size >= self.min_bytes

    def asks_anything(self) -> bool:
        return bool(self.asked if self.session is None else self.session.partitions)

    def conditions(self) -> list[Condition]:
        """A follower waits for the log's end, a consumer for the watermark or the last stable offset."""
        return list(map(self._condition, self.asked if self.session is None else self.session.active.values()))

    def _condition(self, cached: CachedPartition) -> Condition:
        return Condition(self._mark, cached.name, cached.item.fetch_offset + 1)

    def wait_for_idle(self, waiter: Waiter) -> None:
        """Wait also for a partition that is idle, from the moment when it is stirred. A later request of the session
        replaces this one there: then nobody waits for this answer.
        """
        if self.session is not None:
            self.session.on_stir = lambda cached: self.replicas.purgatory.add(waiter, self._condition(cached))

    def response(self) -> FetchResponse:
        """What was read; in a session only the partitions with news, which count as sent from now on."""
        self._count()
        session = self.session
        if session is None:
            return FetchResponse(partitions=tuple(each.answer for each in self.reads.values()))
        answers = []
        for cached, read in self.reads.items():
            answer = read.answer
            if read.size or read.urgent or cached.has_news(answer.high_watermark, answer.log_start_offset):
                answers.append(answer)
            if session.epoch != self.session_epoch:
                continue  # A later request has overtaken this one: nobody waits for this answer.
            if read.leader is None or read.seat is None:
                cached.refused()
            else:
                cached.answered(read.seat, read.leader, answer.high_watermark, answer.log_start_offset)
            if read.size and self.request.session_epoch != FULL_EPOCH:
                # After the request that began the session, its partitions stay as it named them, as in Kafka.
                session.served(cached.name)
        return FetchResponse(session_id=session.id, partitions=tuple(answers))

    def response_when_cached(self) -> FetchResponse | Awaitable[FetchResponse]:
        """The response; an awaitable if regions of it are not in the page cache: to send them would hold the loop."""
        if self.as_regions:
            cold = [cached for cached, read in self.reads.items() if not all(map(_is_cached, read.answer.records))]
            if cold:
                return self._warmed(cold)
        return self.response()

    async def _warmed(self, cold: Sequence[CachedPartition]) -> FetchResponse:
        for cached in cold:
            read = self.reads[cached]
            if read.seat is None:
                continue
            try:
                with self.replicas.storage_guard(read.seat):
                    for region in read.answer.records:
                        if not _is_cached(region):
                            await self.replicas.offload(cast("FileRegion", region).warm)
            except ProtocolError as error:
                self.reads[cached] = _refusal(self.replicas, cached.name, read.seat, error)
        # Kafka's protocol names a topic in the response by the id that it has by then.
        for cached, read in self.reads.items():
            if read.seat is not None and not self.replicas.hosts(read.seat):
                gone = NotLeaderOrFollower(f"{cached.name}: the replica was replaced while the disk was read")
                self.reads[cached] = _refusal(self.replicas, cached.name, None, gone)
        return self.response()

    def _count(self) -> None:
        traffic = self.replicas.traffic
        if self.is_follower:
            traffic.replication_bytes_out += sum([read.size for read in self.reads.values()])
            return
        for cached, read in self.reads.items():
            error = read.answer.error_code
            if error:
                traffic.fetch_failed(error_name(error))
            if cached.name in self.replicas.partitions:
                meter = traffic.topic(cached.name.topic)
                meter.fetch_requests += 1
                meter.bytes_out += read.size
                meter.failed_fetch_requests += error != 0


def _is_cached(data: Buffer | FileRegion) -> bool:
    return isinstance(data, bytes | bytearray | memoryview) or data.is_cached


def _read_one(
    replicas: ReplicaManager,
    request: FetchRequest,
    item: FetchPartition,
    budget: int,
    *,
    first: bool,
    acknowledge: bool,
    session_alive: SessionAlive,
    as_region: bool,
) -> _Read:
    name = TopicPartition(item.topic, item.partition)
    partition: Partition | None = None
    try:
        partition = replicas.get(name)
        if item.topic_id is not None and item.topic_id != partition.topic_id:
            raise InconsistentTopicId(f"{item.topic} has the id {partition.topic_id} here, not {item.topic_id}")
        leader = partition.as_leader(item.current_leader_epoch)
        if request.replica_id >= 0:
            return _read_as_follower(replicas, request, item, partition, leader, budget, first, acknowledge)
        if not session_alive():
            raise session_expired(name)
        is_committed = request.isolation_level == READ_COMMITTED
        return _read_as_consumer(replicas, item, partition, leader, budget, first, as_region, is_committed)
    except ProtocolError as error:
        return _refusal(replicas, name, partition, error)


def _read_as_follower(
    replicas: ReplicaManager,
    request: FetchRequest,
    item: FetchPartition,
    partition: Partition,
    leader: LeaderReplica,
    budget: int,
    first: bool,  # noqa: FBT001 - named at its only call
    acknowledge: bool,  # noqa: FBT001 - as first
) -> _Read:
    counts = leader.check_fetcher(request.replica_id, request.replica_epoch)
    diverging = leader.diverging(item.fetch_offset, item.last_fetched_epoch)
    if diverging is not None:
        replicas.events("fetch_diverged", partition=str(partition.partition), replica=request.replica_id, end=diverging)
        return _diverged(partition, leader, diverging)
    end = leader.log.end_offset
    data = _read_log(replicas, partition, item, end, budget, first=first)
    if acknowledge and counts:
        effect = leader.record_fetch(
            request.replica_id,
            item.fetch_offset,
            start_offset=item.log_start_offset,
            broker_epoch=request.replica_epoch,
            leader_end=end,
            now=replicas.clock.now(),
        )
        replicas.follower_fetched(partition, leader, effect)
    counted = _counted(data, item, end, budget, first=first)
    return _Read(None, seat=partition, leader=leader, data=data, counted=counted)


def _read_as_consumer(
    replicas: ReplicaManager,
    item: FetchPartition,
    partition: Partition,
    leader: LeaderReplica,
    budget: int,
    first: bool,  # noqa: FBT001
    as_region: bool,  # noqa: FBT001
    is_committed: bool,  # noqa: FBT001
) -> _Read:
    diverging = leader.diverging(item.fetch_offset, item.last_fetched_epoch)
    if diverging is not None:
        return _diverged(partition, leader, diverging)
    end = leader.last_stable_offset if is_committed else leader.high_watermark
    data = None
    if not end < item.fetch_offset <= leader.log.end_offset:
        data = _read_log(replicas, partition, item, end, budget, first=first, as_region=as_region)
    counted = _counted(data, item, end, budget, first=first)
    if not is_committed:
        return _Read(_data(partition, leader, data), seat=partition, leader=leader, data=data, counted=counted)
    aborted = leader.log.aborted_transactions(item.fetch_offset, data.next_offset) if data is not None else ()
    found = tuple(AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset) for each in aborted)
    answer = _data(partition, leader, data, aborted_transactions=found)
    return _Read(answer, seat=partition, leader=leader, data=data, counted=counted)


def _counted(data: LogSlice | None, item: FetchPartition, end: Offset, budget: int, *, first: bool) -> int:
    """Return the partition's limit if its next batch did not fit, else 0.

    A first read that found nothing is not short of room: its first batch would have come whatever its size.
    """
    if data is None or data.next_offset >= end or (first and not data.size):
        return 0
    return min(budget, item.partition_max_bytes)


def _read_log(
    replicas: ReplicaManager,
    partition: Partition,
    item: FetchPartition,
    end: Offset,
    budget: int,
    *,
    first: bool,
    as_region: bool = False,
) -> LogSlice | None:
    log = partition.log
    if not log.start_offset <= item.fetch_offset <= log.end_offset:
        raise OffsetOutOfRange(
            f"{partition.partition}: offset {item.fetch_offset} is outside {log.start_offset} to {log.end_offset}",
            log_start_offset=log.start_offset,
            log_end_offset=log.end_offset,
        )
    limit = min(budget, item.partition_max_bytes)
    if item.fetch_offset >= end or (limit <= 0 and not first):
        return None
    with replicas.storage_guard(partition):
        return log.read(item.fetch_offset, max_bytes=limit, end_offset=end, min_one_batch=first, as_region=as_region)


def _data(partition: Partition, leader: LeaderReplica, data: LogSlice | None, **found: Any) -> FetchedPartition:
    records = data.buffers if data is not None else ()
    return _answer(partition, leader, has_gaps=leader.log.has_gaps, records=records, **found)


def _diverged(partition: Partition, leader: LeaderReplica, diverging: EpochEnd) -> _Read:
    end = EpochEndOffset(epoch=diverging.epoch, end_offset=diverging.end_offset)
    return _Read(_answer(partition, leader, diverging_epoch=end), urgent=True)


def _answer(partition: Partition, leader: LeaderReplica, **found: Any) -> FetchedPartition:
    """Where the leader's log stands, and what was found in it."""
    return FetchedPartition(
        topic=partition.partition.topic,
        partition=partition.partition.partition,
        high_watermark=leader.high_watermark,
        last_stable_offset=leader.last_stable_offset,
        log_start_offset=leader.log.start_offset,
        log_end_offset=leader.log.end_offset,
        **found,
    )


def _refusal(
    replicas: ReplicaManager, name: TopicPartition, partition: Partition | None, error: ProtocolError
) -> _Read:
    known = partition is not None and isinstance(partition.role, LeaderReplica) and not error.stale_metadata
    answer = FetchedPartition.with_error(
        error,
        topic=name.topic,
        partition=name.partition,
        high_watermark=partition.high_watermark if known and partition else -1,
        log_start_offset=partition.log.start_offset if known and partition else -1,
        log_end_offset=partition.log.end_offset if known and partition else -1,
        current_leader=replicas.current_leader(name) if error.stale_metadata else None,
    )
    return _Read(answer, urgent=True)
