"""Fetch sessions (KIP-227): who follows a thousand partitions names, each time, only those that have changed.

Both sides remember the same list. The rules that keep it the same:

1. A request carries the session's id and an epoch that counts its requests. An epoch that is not the expected one, or
   an id that is not known, is refused, and the fetcher begins again with a full request: epoch 0.
2. Every request asks for, and so acknowledges, *every* partition of the session, from the offset that it named last.
   A partition whose offset no longer holds (it was truncated, is not synced, or has another leader) is named again or
   forgotten in the same request.
3. Cached is the whole question, with the leader epoch and the last fetched epoch: else a partition that was named
   once would never be fenced again (KAFKA-9338).
4. A partition that is named is answered, whatever was answered before: the fetcher may have thrown that away.
5. A fetcher that does not know whether its request was counted (no answer, an answer given up) begins again.
6. A request names at most NAMED_MAX partitions, because requests are bounded. The rest is named in the next request; a
   partition that the leader has cached is forgotten until then (rule 2).

A session belongs to one fetcher; a broker has one at each leader, and its next one replaces it. Nothing here awaits or
reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from minikafka.errors import FetchSessionIdNotFound, InvalidFetchSessionEpoch
from minikafka.replication.leader import IdleFetches, LeaderReplica
from minikafka.replication.partition import Partition
from minikafka.types import NO_NODE, NO_OFFSET, NodeId, Offset, TopicPartition
from minikafka.wire.messages import FetchPartition, FetchRequest, PartitionName

NO_SESSION = 0
FULL_EPOCH = 0
"""All partitions are named; a session is wanted."""
SESSIONLESS_EPOCH = -1
"""All partitions are named; no session is wanted, and the one that is named ends."""
EPOCH_MAX = 0x7FFFFFFF
NAMED_MAX = 1_000
"""Partitions that a fetcher names in one request, and partitions that it forgets: within the limits of a Fetch request
(wire/apis.py) for the longest names of topics."""
CONSUMER_PARTITIONS_MAX = 10_000
"""Partitions of a consumer's session. Each request may add some, also such as do not exist, and a response may speak of
all of them: without a limit it would hold the loop. A consumer with more begins new sessions.
"""
ALL_CONSUMERS_PARTITIONS_MAX = 250_000
"""Partitions of the sessions of all consumers, in 160 MB at most: a client without any permission may fill them, also
with topics that do not exist. A consumer that finds no room fetches without a session.
"""
NAME_LENGTH_COUNTED = 250
"""A partition counts once more for each so many characters of its topic: requests may name topics that cannot exist."""
IDLE_MAX_S = 120.0
"""A session that has not been used for so long may be given up."""


def epoch_after(epoch: int) -> int:
    """0, 1, 2, up to the largest 32-bit number, then 1 again: 0 would mean a new session."""
    return epoch + 1 if epoch < EPOCH_MAX else 1


# ---- the leader's side -----------------------------------------------------------------------------------------------


class CachedPartition:
    """One partition of a session as the leader remembers it."""

    __slots__ = ("item", "leader", "name", "seat", "sent_high_watermark", "sent_start_offset")

    def __init__(self, item: FetchPartition) -> None:
        self.name = TopicPartition(item.topic, item.partition)
        self.item = item
        """The question as it was last asked."""
        self.sent_high_watermark: Offset = NO_OFFSET
        self.sent_start_offset: Offset = NO_OFFSET
        self.seat: Partition | None = None
        self.leader: LeaderReplica | None = None
        """The role that found the question in order, if one has: under it, it stays in order."""

    def answered(
        self, seat: Partition, leader: LeaderReplica, sent_high_watermark: Offset, sent_start_offset: Offset
    ) -> None:
        """The question was in order under ``leader``, and the fetcher knows these marks now."""
        self.seat, self.leader = seat, leader
        self.sent_high_watermark, self.sent_start_offset = sent_high_watermark, sent_start_offset

    def refused(self) -> None:
        """The answer had an error or a divergence: send a full request."""
        self.leader = None
        self.sent_high_watermark = self.sent_start_offset = NO_OFFSET

    def has_news(self, high_watermark: Offset, start_offset: Offset) -> bool:
        """Return True if the fetcher needs an answer although there is no data for it."""
        return high_watermark != self.sent_high_watermark or start_offset != self.sent_start_offset

    def quiet_leader(self, *, is_follower: bool, reads_committed: bool = False) -> LeaderReplica | None:
        """The leader that has nothing to say to the question: it is in order still, nothing is there to read, and the
        marks are those that were sent. None if it may have.

        The last stable offset is no mark of its own: it moves only when the high watermark or the log's start does.
        """
        leader = self.leader
        if leader is None or self.seat is None or self.seat.role is not leader:
            return None
        log = leader.log
        end = log.end_offset if is_follower else leader.high_watermark
        if self.item.fetch_offset < (leader.last_stable_offset if reads_committed else end):
            return None
        if leader.high_watermark != self.sent_high_watermark or log.start_offset != self.sent_start_offset:
            return None
        return leader


class FetchSession:
    """One fetcher's partitions, in the order in which they are served."""

    def __init__(self, session_id: int, replica_id: NodeId, replica_epoch: int, now: float) -> None:
        self.id = session_id
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch
        self.epoch = FULL_EPOCH
        """That of the latest request."""
        self.last_used = now
        self.size = 0
        """Its partitions, those with very long names more than once."""
        self.counted = 0
        """That of ``size`` which counts among all sessions."""
        self.partitions: dict[TopicPartition, CachedPartition] = {}
        self.active: dict[TopicPartition, CachedPartition] = {}
        """Those that must be looked at for a request. The others are idle, which only a follower's are: their leaders
        count the session's requests by :attr:`idle`, and stir each before anything changes there."""
        self.idle = IdleFetches(self._stirred)
        self.on_stir: Callable[[CachedPartition], None] | None = None
        """Called with each partition that was idle."""

    @property
    def is_privileged(self) -> bool:
        """A follower's: what it cannot fetch in time costs the cluster, not one reader."""
        return self.replica_id != NO_NODE

    def update(self, named: Sequence[FetchPartition], forgotten: Sequence[PartitionName]) -> None:
        """Take over what a request says has changed."""
        for gone in forgotten:
            name = TopicPartition(gone.topic, gone.partition)
            self._look_at(name)
            self.active.pop(name, None)
            if self.partitions.pop(name, None) is not None:
                self.size -= _size_of(name)
        for item in named:
            name = TopicPartition(item.topic, item.partition)
            self._look_at(name)
            if name not in self.partitions:
                self.size += _size_of(name)
            self.active[name] = self.partitions[name] = CachedPartition(item)

    def rests(self, cached: CachedPartition) -> None:
        """Its leader counts the session's next requests by :attr:`idle`."""
        self.active.pop(cached.name, None)

    def look_at_all(self) -> None:
        """Make every partition active."""
        if len(self.active) < len(self.partitions):
            for name in self.partitions:
                self._look_at(name)

    def _look_at(self, name: TopicPartition) -> None:
        """Make a partition active: its leader no longer counts the session's requests for it."""
        cached = None if name in self.active else self.partitions.get(name)
        if cached is not None and cached.leader is not None:
            cached.leader.stir(self.replica_id)

    def _stirred(self, name: TopicPartition) -> None:
        cached = self.partitions.get(name)
        if cached is not None:
            self.active[name] = cached
            if self.on_stir is not None:
                self.on_stir(cached)

    def served(self, name: TopicPartition) -> None:
        """It got data: the others come first next time (KIP-74)."""
        for partitions in (self.partitions, self.active):
            cached = partitions.pop(name, None)
            if cached is not None:
                partitions[name] = cached


def _size_of(name: TopicPartition) -> int:
    return 1 + len(name.topic) // NAME_LENGTH_COUNTED


class FetchSessions:
    """All sessions of one broker, the least recently used first."""

    def __init__(self, slots: int, new_id: Callable[[], int]) -> None:
        self.slots = slots
        self._new_id = new_id
        """Gives positive numbers that nobody guesses."""
        self._sessions: dict[int, FetchSession] = {}
        self.consumer_partitions = 0
        """The size of all consumers' sessions."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, now: float) -> FetchSession | None:
        """The session that a request belongs to, brought up to date; None when it has and gets none.

        Raises FetchSessionIdNotFound, InvalidFetchSessionEpoch.
        """
        if request.session_epoch in (FULL_EPOCH, SESSIONLESS_EPOCH):
            self._end(request)
            session = self._create(request, now) if request.session_epoch == FULL_EPOCH else None
        else:
            session = self._continue(request, now)
        if session is not None:
            session.update(request.partitions, request.forgotten)
            if not session.is_privileged:
                self._count(session)
                if not session.partitions:
                    self._remove(session)  # As in Kafka: the answer has no session, so the consumer begins again.
                    return None
        return session

    def _count(self, session: FetchSession) -> None:
        """Count what a consumer's session holds now. Raises FetchSessionIdNotFound if that is too much."""
        self.consumer_partitions += session.size - session.counted
        session.counted = session.size
        if session.size > CONSUMER_PARTITIONS_MAX:
            limit, whose = CONSUMER_PARTITIONS_MAX, "a consumer's fetch session holds"
        elif self.consumer_partitions > ALL_CONSUMERS_PARTITIONS_MAX:
            limit, whose = ALL_CONSUMERS_PARTITIONS_MAX, "the fetch sessions of all consumers hold"
        else:
            return
        self._remove(session)
        raise FetchSessionIdNotFound(f"{whose} at most {limit} partitions: begin a new one")

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self.consumer_partitions -= session.counted
        session.counted = 0

    def _continue(self, request: FetchRequest, now: float) -> FetchSession:
        session = self._find(request)
        if session is None:
            raise FetchSessionIdNotFound(f"there is no fetch session {request.session_id}: begin a new one")
        expected = epoch_after(session.epoch)
        if request.session_epoch != expected:
            raise InvalidFetchSessionEpoch(
                f"fetch session {session.id} expects the epoch {expected}, not {request.session_epoch}"
            )
        session.epoch = expected
        session.last_used = now
        self._sessions[session.id] = self._sessions.pop(session.id)
        return session

    def _find(self, request: FetchRequest) -> FetchSession | None:
        session = self._sessions.get(request.session_id)
        if session is None or session.replica_id != request.replica_id:
            return None
        # Another incarnation of the same broker has another log.
        return session if session.replica_epoch == request.replica_epoch else None

    def _end(self, request: FetchRequest) -> None:
        session = self._find(request)
        if session is not None:
            self._remove(session)

    def _create(self, request: FetchRequest, now: float) -> FetchSession | None:
        self._make_room(request, now)
        if len(self._sessions) >= self.slots or not request.partitions:
            return None
        size = sum(_size_of(TopicPartition(each.topic, each.partition)) for each in request.partitions)
        if request.replica_id == NO_NODE and self.consumer_partitions + size > ALL_CONSUMERS_PARTITIONS_MAX:
            return None
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        session = FetchSession(session_id, request.replica_id, request.replica_epoch, now)
        self._sessions[session_id] = session
        return session

    def _make_room(self, request: FetchRequest, now: float) -> None:
        """Drop what is idle, a follower's former session, and for a follower, if need be, a consumer's."""
        is_privileged = request.replica_id != NO_NODE
        for session in list(self._sessions.values()):
            is_idle = now - session.last_used > IDLE_MAX_S
            if is_idle or (is_privileged and session.replica_id == request.replica_id):
                self._remove(session)
        if is_privileged and len(self._sessions) >= self.slots:
            victim = next((each for each in self._sessions.values() if not each.is_privileged), None)
            if victim is not None:
                self._remove(victim)


# ---- the fetcher's side ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """What of a request the session decides."""

    session_id: int
    session_epoch: int
    partitions: tuple[FetchPartition, ...]
    forgotten: tuple[PartitionName, ...]
    is_partial: bool = False
    """More partitions are to be named: the next request must not wait for news of these."""


class FetcherSession:
    """What a fetcher knows of its session at one leader. One request at a time."""

    def __init__(self, named_max: int = NAMED_MAX) -> None:
        self.id = NO_SESSION
        self.epoch = FULL_EPOCH
        """That of the next request."""
        self._cached: dict[TopicPartition, FetchPartition | None] = {}
        """What the leader has cached; None: it does, but the fetcher wants to hear of it again."""
        self._named_max = named_max
        self._unheard: dict[TopicPartition, None] = {}
        """Partitions to be named again."""
        self._left_out: dict[TopicPartition, None] = {}
        """What the latest request had no room for, longest waiting first: it comes first in the next one."""

    def next_request(
        self, wanted: Mapping[TopicPartition, FetchPartition], touched: Iterable[TopicPartition] | None = None
    ) -> SessionRequest:
        """Name what has changed since the last request. Exactly one of :meth:`answered` and :meth:`lost` follows.

        ``touched`` are the partitions whose question may differ from that of the last request, or that are no longer
        wanted (None: any): the others are not looked at, because idle partitions are many.
        """
        cached = self._cached  # Empty before a full request: everything is named.
        looked_at = dict.fromkeys(wanted) if touched is None or not cached else dict.fromkeys(touched)
        looked_at.update(self._left_out)
        looked_at.update(self._unheard)
        if touched is None:
            looked_at.update(dict.fromkeys(cached))
        self._unheard.clear()
        changed = [name for name in looked_at if name in wanted and not _is_same(cached.get(name), wanted[name])]
        left_out: dict[TopicPartition, None] = {}
        if len(changed) > self._named_max:
            order = {name: at for at, name in enumerate(self._left_out)}
            changed.sort(key=lambda name: order.get(name, len(order)))
            left_out = dict.fromkeys(changed[self._named_max :])
            del changed[self._named_max :]
        forgotten = tuple(
            PartitionName(topic=name.topic, partition=name.partition)
            for name in looked_at
            if name in cached and (name not in wanted or name in left_out)
        )
        if len(forgotten) > self._named_max:
            self.lost()
            return self.next_request(wanted)
        self._left_out = left_out
        for gone in forgotten:
            del cached[TopicPartition(gone.topic, gone.partition)]
        named = tuple(wanted[name] for name in changed)
        cached.update(zip(changed, named, strict=True))
        return SessionRequest(self.id, self.epoch, named, forgotten, is_partial=bool(left_out))

    def answered(self, session_id: int) -> None:
        """The leader has counted the request; ``session_id`` is that of its answer, 0 if there is no session."""
        if session_id == NO_SESSION or (self.epoch != FULL_EPOCH and session_id != self.id):
            self.lost()
            return
        self.id = session_id
        self.epoch = epoch_after(self.epoch)

    def lost(self) -> None:
        """Begin a new session: what the leader has cached now is unknown (and end there what may be left)."""
        self.epoch = FULL_EPOCH
        self._cached = {}
        self._unheard.clear()

    def unheard(self, name: TopicPartition) -> None:
        """The answer for this partition could not be used: request it as if for the first time."""
        if name in self._cached:
            self._cached[name] = None
            self._unheard[name] = None


def _is_same(cached: FetchPartition | None, item: FetchPartition) -> bool:
    """The fetcher's own watermark may differ: the leader of a partition does not look at it."""
    return cached is item or (
        cached is not None
        and cached.fetch_offset == item.fetch_offset
        and cached.current_leader_epoch == item.current_leader_epoch
        and cached.last_fetched_epoch == item.last_fetched_epoch
        and cached.log_start_offset == item.log_start_offset
        and cached.topic_id == item.topic_id
        and cached.partition_max_bytes == item.partition_max_bytes
    )
