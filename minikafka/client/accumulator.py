"""The producer's memory: batches per partition, when each is sent, and what an answer means for it (S25, KIP-98).

Rules for this file:

1. No asyncio, no clock, no randomness: ``now`` and pauses come in, calls to make and batches to report go out.
2. A batch stays in its place until its fate is settled. It is sent while no other batch of its partition is in flight,
   or, for the first time, directly behind batches that are all in flight: then the request says that it FOLLOWS them,
   and the leader appends it behind them or not at all (wire/batch.py). A batch that is sent again is the oldest, waits
   until no other one is in flight, and none follows it. So nothing reorders, whatever the network does. In a new epoch,
   and after each failure, batches go one by one until one is acknowledged.
3. A sequence is given when a batch is first drained, and is never given to another one. If a batch was not written, or
   its fate is unknown, the partition goes on in a new producer epoch from 0, or the broker would see a gap (KIP-360);
   only in a transaction the sequence of a batch that was not written is used again. Until nothing of the old epoch is
   in flight, nothing of the new one is sent. Batches behind one that is certainly not in the log are not there either:
   they were only sent as FOLLOWS.
4. Once an attempt may have written a batch, no later refusal makes it ``not_written``: a batch ends as acknowledged,
   not_written or unknown, and the last only when nobody can know.

5. A batch of several records is never larger than ``batch.size``, nor than what the topic is known to take. If a
   broker finds a batch too large (MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE) it is split and sent again (KIP-126): only
   a record that is too large by itself fails. The topic may take more later, so the limit doubles every
   ``GROW_AFTER_S`` until it is ``batch.size`` again or a broker refuses a batch: one request in that time, at most.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from typing import Generic

from minikafka import errors as kafka
from minikafka.client.batches import (
    IN_FLIGHT_MAX,
    Batch,
    Call,
    Drained,
    Failure,
    Identity,
    PartitionQueue,
    Sink,
    fate_of,
    proves_absence,
    record_size,
    with_producer,
)
from minikafka.invariant import invariant
from minikafka.types import NO_NODE, NodeId
from minikafka.wire.batch import HEADER_SIZE, SEQUENCE_COUNT
from minikafka.wire.records import BatchBuilder, Headers, RecordView, Rows, decode_batch

PRODUCER_EPOCH_MAX = 32_767

GROW_AFTER_S = 300.0
"""How long a partition's batches stay smaller than ``batch.size`` before larger ones are tried."""

NO_IDENTITY = "no broker has given a producer id"

LeaderOf = Callable[[str, int], NodeId]


class Accumulator(Generic[Sink]):
    """All batches of a producer."""

    def __init__(
        self,
        *,
        batch_size: int,
        linger_s: float,
        request_size_max: int,
        delivery_timeout_s: float,
        compression: str = "none",
        idempotent: bool = True,
        transactional: bool = False,
        calls_per_node_max: int = 5,
        in_flight_max: int = 1,
    ) -> None:
        """``in_flight_max``: batches of one partition that are sent at once; 1 to IN_FLIGHT_MAX."""
        invariant(1 <= in_flight_max <= IN_FLIGHT_MAX, "a leader remembers fewer batches", in_flight_max=in_flight_max)
        self._batch_size = batch_size
        self._linger_s = linger_s
        self._request_size_max = request_size_max
        self._delivery_timeout_s = delivery_timeout_s
        self._compression = compression
        self._idempotent = idempotent
        self._transactional = transactional
        """A batch that may be missing dooms its transaction: no epoch begins but with the next transaction."""
        self.has_sent = False
        """An attempt was made with the present identity."""
        self._dropping: kafka.ProtocolError | None = None
        self._calls_per_node_max = calls_per_node_max
        self._in_flight_max = in_flight_max if idempotent and not transactional else 1
        """Without sequences the network would decide about the order; a transaction cannot go on in a new epoch."""
        self._active: dict[PartitionQueue[Sink], None] = {}
        """Queues with batches, by when they got their first."""
        self._calls_of: dict[NodeId, int] = {}
        self._unfinished: dict[int, int] = {}
        """Batch number -> how many batches carry it (a split one is two), oldest first."""
        self._number = 0
        self.identity: Identity | None = None
        self.why_no_identity = ""
        """What the last request for a producer id met; empty if none failed."""
        self.size = 0
        """Bytes held, for buffer.memory."""
        self.urgent = 0
        """While positive (flush, stop, a sender waits for memory) batches do not linger."""

    # ---------------------------------------------------------------------------------------- filling

    def append(
        self,
        queue: PartitionQueue[Sink],
        sink: Sink,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        size: int,
        now: float,
    ) -> bool:
        """Add one record of at most ``size`` bytes; True when the sender should look.

        The caller has checked ``size`` against max.request.size and buffer.memory. A record that the codec refuses
        (TypeError, ValueError, OverflowError) leaves nothing behind.
        """
        batch = queue.open
        look = False
        if batch is None or batch.size + size > queue.size_max:
            batch = self._open(queue, now)
            look = True
        builder = batch.builder
        index = builder.record_count
        try:
            builder.append(timestamp, key, value, headers)
        except BaseException:
            self._discard_empty(batch)
            raise
        waiters = batch.waiters
        if waiters and waiters[-1][0] is sink:
            _, first, count, began = waiters[-1]
            waiters[-1] = sink, first, count + 1, began
        else:
            waiters.append((sink, index, 1, timestamp))
        batch.size += size
        self.size += size
        return look or batch.size >= queue.size_max

    def extend(
        self,
        queue: PartitionQueue[Sink],
        sink: Sink,
        rows: Rows,
        start: int,
        ends: Sequence[int],
        room: int,
        now: float,
    ) -> int:
        """Add rows from ``start`` to one batch, ``room`` bytes at most, until it is full; how many: at least one.

        ``ends[i]`` is the size of all rows up to and with row i. The caller has seen to it that the codec takes every
        row.
        """
        before = ends[start - 1] if start else 0
        batch = queue.open
        if batch is None or batch.size + ends[start] - before > queue.size_max:
            batch = self._open(queue, now)
        end = max(start + 1, bisect_right(ends, before + min(room, queue.size_max - batch.size)))
        first = batch.builder.record_count
        try:
            taken = batch.builder.extend(rows, start, end)
        except BaseException:
            self._discard_empty(batch)
            raise
        invariant(taken == end - start, "a builder without limit took fewer rows", taken=taken, given=end - start)
        batch.waiters.append((sink, first, taken, rows[start][0]))
        size = ends[end - 1] - before
        batch.size += size
        self.size += size
        return taken

    def add_built(
        self, queue: PartitionQueue[Sink], sink: Sink, builder: BatchBuilder, timestamp: int, now: float
    ) -> None:
        """Queue a batch that the application filled; it is sealed."""
        batch = self._open(queue, now)
        queue.open = None
        batch.builder = builder
        batch.waiters.append((sink, 0, builder.record_count, timestamp))
        self.size += builder.size - batch.size
        batch.size = builder.size

    def queue(self, topic: str, partition: int) -> PartitionQueue[Sink]:
        """A new queue; the caller keeps one per partition."""
        return PartitionQueue(topic, partition, self._batch_size)

    def _open(self, queue: PartitionQueue[Sink], now: float) -> Batch[Sink]:
        if queue.size_max < self._batch_size and now >= queue.limited_at + GROW_AFTER_S:
            queue.size_max, queue.limited_at = min(2 * queue.size_max, self._batch_size), now
        self._number += 1
        batch = Batch(queue, self._builder(), number=self._number, created_at=now)
        batch.deadline = now + self._delivery_timeout_s
        self._unfinished[self._number] = 1
        self.size += batch.size
        queue.batches.append(batch)
        queue.open = batch
        self._active[queue] = None
        return batch

    def _builder(self) -> BatchBuilder:
        return BatchBuilder(compression=self._compression, transactional=self._transactional)

    def _discard_empty(self, batch: Batch[Sink]) -> None:
        """A batch that was opened for what could not be added: nobody would ask for it to be sent."""
        if batch.record_count:
            return
        queue = batch.queue
        queue.batches.remove(batch)
        queue.open = None
        self._finished(batch)

    # ---------------------------------------------------------------------------------------- draining

    def drain(self, now: float, leader_of: LeaderOf) -> Drained[Sink]:
        """Take what may be sent now, merged per node; batches past the delivery timeout are reported instead."""
        drained: Drained[Sink] = Drained([], [])
        queues = list(self._active)
        for queue in queues:
            self._expire(queue, now, drained)
            for batch in queue.batches:
                if not batch.reported:
                    drained.deadline = min(drained.deadline, batch.deadline)
                    break
        while queues:
            # A request has one batch of a partition: the next ones go into requests of their own.
            open_calls: dict[NodeId, Call[Sink]] = {}
            queues = [queue for queue in queues if self._send_next(queue, now, open_calls, drained, leader_of)]
        return drained

    @property
    def pipelines(self) -> bool:
        """Several batches of a partition may be in flight."""
        return self._in_flight_max > 1

    def _send_next(
        self,
        queue: PartitionQueue[Sink],
        now: float,
        open_calls: dict[NodeId, Call[Sink]],
        drained: Drained[Sink],
        leader_of: LeaderOf,
    ) -> bool:
        """Take one batch of the partition, if one may be sent now; True if another one may follow it."""
        batch = self._candidate(queue)
        if batch is None:
            return False
        ready_at = self._ready_at(batch)
        if ready_at > now:
            drained.deadline = min(drained.deadline, ready_at)
            drained.leaderless = drained.leaderless or batch.stale_leader
            return False
        return self._admit(batch, open_calls, drained, leader_of) and self.pipelines

    def _candidate(self, queue: PartitionQueue[Sink]) -> Batch[Sink] | None:
        """The batch that may be sent next once it has lingered; None if the partition waits for an answer."""
        count = len(queue.in_flight)
        if not count:
            return queue.batches[0] if queue.batches else None
        oldest = queue.in_flight[0]
        # Counted from the oldest one on: the leader must still remember it when it is sent again.
        if not queue.is_steady or queue.sent - oldest.sent_as >= self._in_flight_max or count == len(queue.batches):
            return None
        if oldest.attempts > 1 or oldest.reported:
            return None
        batch = queue.batches[count]
        # At sequence 0 an epoch would begin; a leader that does not know the producer appends it in any case.
        all_before = queue.in_flight[-1] is queue.batches[count - 1]
        return batch if all_before and not batch.attempts and queue.next_sequence else None

    def _ready_at(self, head: Batch[Sink]) -> float:
        """When a batch that is next in its partition may be sent; 0 is at once."""
        if head.attempts:
            return head.retry_at
        if self.urgent or head.queue.open is not head or head.size >= head.queue.size_max:
            return 0.0
        return head.created_at + self._linger_s

    def _admit(
        self, head: Batch[Sink], open_calls: dict[NodeId, Call[Sink]], drained: Drained[Sink], leader_of: LeaderOf
    ) -> bool:
        queue = head.queue
        if head.size > queue.size_max and head.record_count > 1 and not head.attempts:
            # It was filled before the broker refused another one of this size.
            self._split(head)
            head = queue.batches[len(queue.in_flight)]
        node = leader_of(queue.topic, queue.partition)
        if node == NO_NODE:
            drained.leaderless = True
            queue.waits_for = "no leader is known"
            return False
        call = open_calls.get(node)
        if call is None or call.size + head.size > self._request_size_max:
            if (waiting := self._calls_of.get(node, 0)) >= self._calls_per_node_max:
                queue.waits_for = f"broker {node} has not answered {waiting} requests before it"
                return False
            call = None
        if self._idempotent and queue.identity is None and self.identity is None:
            drained.wants_identity = True
            queue.waits_for = NO_IDENTITY
            return False
        queue.waits_for = ""
        if call is None:
            call = open_calls[node] = Call(node)
            drained.calls.append(call)
            self._calls_of[node] = self._calls_of.get(node, 0) + 1
        if queue.open is head:
            queue.open = None
        self._stamp(head)
        self.has_sent = True
        head.attempts += 1
        head.follows = bool(queue.in_flight)
        head.sent_as = queue.sent
        queue.sent += 1
        queue.in_flight.append(head)
        call.batches.append(head)
        call.size += head.size
        return True

    def _stamp(self, head: Batch[Sink]) -> None:
        """Give the batch its sequence if it has none, and its bytes."""
        queue = head.queue
        if self._idempotent:
            if queue.identity is None:
                queue.identity, queue.next_sequence, queue.is_steady = self.identity, 0, False
            if head.base_sequence < 0:
                head.identity, head.base_sequence = queue.identity, queue.next_sequence
                queue.next_sequence = (queue.next_sequence + head.record_count) % SEQUENCE_COUNT
                if head.data is not None:
                    head.data = with_producer(head.data, head.identity, head.base_sequence)
        if head.data is None:
            if head.identity is not None:
                head.builder.set_producer_state(
                    producer_id=head.identity.producer_id,
                    producer_epoch=head.identity.epoch,
                    base_sequence=head.base_sequence,
                )
            head.data = head.builder.build()

    def _expire(self, queue: PartitionQueue[Sink], now: float, drained: Drained[Sink]) -> None:
        """Report batches past their delivery timeout; one that is in flight stays until its answer settles it."""
        for batch in list(takewhile(lambda each: each.deadline <= now, queue.batches)):
            in_flight = batch in queue.in_flight
            if not batch.reported:
                drained.failures.append(Failure(batch, self._timed_out(batch, in_flight=in_flight)))
            if in_flight:
                batch.reported = True
            else:
                self._remove(batch, fate=fate_of(batch))

    def _timed_out(self, batch: Batch[Sink], *, in_flight: bool) -> kafka.ProtocolError:
        outcome: kafka.Outcome = "unknown" if in_flight or batch.once_unknown else "not_written"
        last = batch.last_error
        story = f"{batch.topic_partition}: not acknowledged within delivery_timeout_ms"
        if last is None or isinstance(last, kafka.NetworkException):
            reason = last.message if last is not None else batch.queue.waits_for
            if reason == NO_IDENTITY and self.why_no_identity:
                reason = f"{reason}: {self.why_no_identity}"
            why = f" ({reason})" if reason else ""
            return kafka.RequestTimedOut(story + why, outcome=outcome, attempts=batch.attempts)
        return type(last)(f"{story}: {last.message}", outcome=outcome, **last.facts)

    # ---------------------------------------------------------------------------------------- answers

    def call_ended(self, node: NodeId) -> None:
        """A request to ``node`` is over, however it went."""
        left = self._calls_of.get(node, 0) - 1
        invariant(left >= 0, "a call ended that never began", node=node)
        self._calls_of[node] = left

    def succeeded(self, batch: Batch[Sink]) -> None:
        """The batch is acknowledged: forget it."""
        self._landed(batch)
        batch.queue.is_steady = batch.identity == batch.queue.identity
        self._remove(batch, fate="written")

    def failed(
        self, batch: Batch[Sink], error: kafka.ProtocolError, now: float, pause_s: float
    ) -> Failure[Sink] | None:
        """An attempt failed. The failure to report if it was the last; None if the batch is tried again (or split).

        ``pause_s`` is the pause before the next attempt. A DUPLICATE_SEQUENCE_NUMBER is not a failure:
        see :func:`is_success`.
        """
        self._landed(batch)
        queue = batch.queue
        queue.is_steady = False
        batch.last_error = error
        is_alone = queue.batches[0] is batch and not batch.follows
        is_settled = is_alone and (batch.identity is None or batch.identity != queue.unsettled)
        certain = is_settled and proves_absence(error, batch, idempotent=self._idempotent and not self._transactional)
        is_early = not is_settled and isinstance(error, kafka.OutOfOrderSequenceNumber | kafka.UnknownProducerId)
        """An older batch was not there yet. Nothing is said of earlier attempts, nor of another copy of this one, which
        the leader may append once the older batch is there."""
        is_severed = batch.is_severed
        if error.outcome != "not_written" and not is_severed:
            batch.maybe_written = batch.once_unknown = True
        elif certain:
            batch.maybe_written = False
        if batch.reported:
            self._remove(batch, fate=fate_of(batch))
            return None
        splits = not self._transactional or not batch.maybe_written
        if isinstance(error, kafka.MessageTooLarge | kafka.RecordListTooLarge) and batch.record_count > 1 and splits:
            queue.size_max, queue.limited_at = min(queue.size_max, batch.size // 2), now
            if batch.maybe_written:
                # The leader would have called it a duplicate if it had it (it looks for that first). Its sequences may
                # be those of a copy that is still on its way: the parts get others, in a new epoch, which fences it.
                self._begin_epoch(queue)
            self._split(batch)
            return None
        if certain and batch.identity == queue.identity:
            # The broker's log lacks what came before: go on in a new epoch, whose sequences start at 0 (KIP-360).
            self._begin_epoch(queue)
        if certain or is_severed or (batch.identity != queue.identity and not batch.maybe_written):
            self._sever(queue, queue.batches.index(batch))
        may_help = error.retriable or certain or is_early or is_severed
        if may_help and now < batch.deadline and self._dropping is None:
            batch.stale_leader = error.stale_metadata
            batch.retry_at = now if is_severed or (is_early and not is_alone) else now + pause_s
            return None
        batch.reported = True
        if error.retriable and self._dropping is None:
            failure = self._timed_out(batch, in_flight=False)
        else:
            outcome = kafka.UNKNOWN if batch.once_unknown else error.outcome
            name = f"{batch.topic_partition}: "  # messages of the leader's log begin with it
            failure = type(error)(name + error.message.removeprefix(name), outcome=outcome, **error.facts)
        identity = queue.identity
        self._remove(batch, fate=fate_of(batch))
        if isinstance(error, kafka.InvalidProducerEpoch | kafka.ProducerFenced) and queue.identity == identity:
            self._begin_epoch(queue)
        return Failure(batch, failure)

    def leader_changed(self, queue: PartitionQueue[Sink]) -> None:
        """Another leader is known for this partition: what waited for it is tried at once."""
        for batch in islice(queue.batches, self._in_flight_max):
            if batch.stale_leader:
                batch.stale_leader = False
                batch.retry_at = 0.0

    def _landed(self, batch: Batch[Sink]) -> None:
        invariant(batch in batch.queue.in_flight, "an answer for a batch that is not in flight", batch=repr(batch))
        batch.queue.in_flight.remove(batch)
        batch.stale_leader = False

    def _remove(self, batch: Batch[Sink], *, fate: kafka.Outcome) -> None:
        """Take a batch off its queue and settle its sequence."""
        queue = batch.queue
        at = queue.batches.index(batch)
        del queue.batches[at]
        if queue.open is batch:
            queue.open = None
        if fate == "not_written":
            self._take_back(batch, at)
        elif fate == "unknown" and batch.base_sequence >= 0:
            queue.unsettled = batch.identity
            if batch.identity == queue.identity:
                self._begin_epoch(queue)
                # Where one was refused each time, those behind it are not in the log either.
                for index, each in enumerate(queue.batches):
                    if each.base_sequence >= 0 and not each.maybe_written and each not in queue.in_flight:
                        self._sever(queue, index)
                        break
        self._finished(batch)

    def _take_back(self, batch: Batch[Sink], at: int) -> None:
        """The batch certainly was not written. Those behind it begin at index ``at``.

        Its sequence is never that of another batch, as in Kafka: a copy of the request that comes late would be
        appended, and the leader would call the other batch, which it does not have, a duplicate. A transaction cannot
        go on in a new epoch.
        """
        queue = batch.queue
        if batch.base_sequence < 0 or queue.identity != batch.identity:
            return
        if self._transactional:
            queue.next_sequence = batch.base_sequence
            return
        self._begin_epoch(queue)
        self._sever(queue, at)

    def _sever(self, queue: PartitionQueue[Sink], at: int) -> None:
        """No batch from index ``at`` on is in the log, nor will a copy be that is on its way: the one in front of them
        was not written. They get new sequences; those in flight once they have their answer.
        """
        for batch in islice(queue.batches, at, None):
            if batch.base_sequence < 0:
                break
            batch.is_severed = batch in queue.in_flight
            batch.maybe_written = False
            if not batch.is_severed:
                batch.base_sequence = -1

    def _begin_epoch(self, queue: PartitionQueue[Sink]) -> None:
        if not self._idempotent or queue.identity is None or self._transactional:
            return
        if self.identity is not None:
            spent = self.identity.epoch >= PRODUCER_EPOCH_MAX
            self.identity = None if spent else Identity(self.identity.producer_id, self.identity.epoch + 1)
        queue.identity, queue.next_sequence, queue.is_steady = self.identity, 0, False

    def _finished(self, batch: Batch[Sink]) -> None:
        self.size -= batch.size
        if not batch.queue.batches:
            self._active.pop(batch.queue, None)
        left = self._unfinished[batch.number] - 1
        if left:
            self._unfinished[batch.number] = left
        else:
            del self._unfinished[batch.number]

    def _split(self, batch: Batch[Sink]) -> None:
        """Replace a batch by several of at most ``size_max``, in order. Each gets its sequence when sent."""
        queue = batch.queue
        at = queue.batches.index(batch)
        self._take_back(batch, at + 1)
        records = decode_batch(batch.builder.build())
        parts: list[Batch[Sink]] = []
        start, size = 0, HEADER_SIZE
        for index, record in enumerate(records):
            more = record_size(record.key, record.value, record.headers)
            if index > start and size + more > queue.size_max:
                parts.append(self._part(batch, records, start, index, size))
                start, size = index, HEADER_SIZE
            size += more
        parts.append(self._part(batch, records, start, len(records), size))
        del queue.batches[at]
        for index, part in enumerate(parts):
            part.place = (*batch.place, index)
            queue.batches.insert(at + index, part)
        if queue.open is batch:
            queue.open = None
        self._unfinished[batch.number] += len(parts) - 1
        self.size += sum(part.size for part in parts) - batch.size

    def _part(self, batch: Batch[Sink], records: list[RecordView], start: int, end: int, size: int) -> Batch[Sink]:
        builder = self._builder()
        part = Batch(batch.queue, builder, number=batch.number, created_at=batch.created_at)
        part.deadline, part.size, part.once_unknown = batch.deadline, size, batch.once_unknown
        for record in records[start:end]:
            builder.append(record.timestamp, record.key, record.value, list(record.headers))
        for sink, index, count, timestamp in batch.waiters:
            first, beyond = max(index, start), min(index + count, end)
            if first < beyond:
                part.waiters.append((sink, first - start, beyond - first, timestamp))
        return part

    # ---------------------------------------------------------------------------------------- transactions

    def begin_identity(self, identity: Identity, queues: Iterable[PartitionQueue[Sink]]) -> None:
        """All batches from now on are of ``identity``, and begin with sequence 0 in each partition."""
        invariant(not self._unfinished, "a producer's identity changed while its batches were under way")
        self.identity = identity
        self.has_sent = False
        self._dropping = None
        for queue in queues:
            queue.identity, queue.is_steady = None, False

    def drop_unsent(self, error: kafka.ProtocolError) -> list[Failure[Sink]]:
        """Fail every batch that is not in flight; those that are get no further attempt."""
        self._dropping = error
        return self._drop(self._active, error)

    def _drop(self, queues: Iterable[PartitionQueue[Sink]], error: kafka.ProtocolError) -> list[Failure[Sink]]:
        failures = []
        for queue in list(queues):
            while queue.batches and queue.batches[-1] not in queue.in_flight:
                batch = queue.batches.pop()
                if queue.open is batch:
                    queue.open = None
                outcome: kafka.Outcome = "unknown" if batch.once_unknown else "not_written"
                failures.append(Failure(batch, type(error)(error.message, outcome=outcome, **error.facts)))
                self._finished(batch)
        return failures

    def refuse_identity(self, error: kafka.ProtocolError) -> list[Failure[Sink]]:
        """No producer id will come: fail every batch that cannot be sent without one. Later ones request it again."""
        return self._drop([queue for queue in self._active if queue.identity is None], error)

    # ---------------------------------------------------------------------------------------- state

    @property
    def newest(self) -> int:
        """Number of the newest batch."""
        return self._number

    @property
    def oldest_unfinished(self) -> int | None:
        """Number of the oldest batch that still waits for its fate; None when there is none."""
        return next(iter(self._unfinished), None)

    @property
    def oldest_unanswered(self) -> int | None:
        """Number of the oldest batch whose waiters have no answer; None when there is none. A batch past its delivery
        timeout that is still in flight has one.
        """
        oldest = (next((each.number for each in queue.batches if not each.reported), None) for queue in self._active)
        return min((number for number in oldest if number is not None), default=None)

    def abandon(self) -> list[Batch[Sink]]:
        """Forget everything, for a producer that ends; the batches whose waiters have no answer yet."""
        left = [batch for queue in self._active for batch in queue.batches if not batch.reported]
        self._active.clear()
        self._unfinished.clear()
        self.size = 0
        return left

    def __repr__(self) -> str:
        return f"<accumulator partitions={len(self._active)} size={self.size} batches={len(self._unfinished)}>"
