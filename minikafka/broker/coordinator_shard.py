"""One led partition of an internal topic: the log behind a coordinator's rules, and who waits for it.

It reads the log from start to end, waits until all of that is committed, and only then answers: what it tells of is
below the high watermark. Each step of the rules is carried out at once: its records are appended in order, then its
answers are delivered. Requests are parked, and a waiter of the purgatory follows the watermark: when it has passed a
record, one callback applies the commit and sends the response. Tasks would delay both by turns of the loop.

- A write that was refused before the append is *not written*. One that is not committed in time is *unknown*: who
  waits gets an error, and the rules apply the commit when it comes, for the log is what is true.
- A write whose records cannot be packed is refused like one that the log refuses: UNKNOWN_SERVER_ERROR, *not written*.
- It ends with the leader's role: every request that still waits gets NOT_COORDINATOR, outcome unknown.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import traceback
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from minikafka import errors as kafka
from minikafka.broker.purgatory import Condition, Mark, Waiter
from minikafka.coordination.packing import versions
from minikafka.coordination.rule import Coordinator, Step, Ticket, Write
from minikafka.invariant import InvariantViolation
from minikafka.parked import Parked, Result
from minikafka.replication.leader import ACKS_ALL, LeaderReplica
from minikafka.types import NO_PRODUCER, Offset
from minikafka.wire.batch import RecordBatch, from_offset, iterate, verify
from minikafka.wire.markers import EndTransaction, marker_of
from minikafka.wire.records import BatchBuilder, RecordView, decode_batch

if TYPE_CHECKING:
    from minikafka.broker.flusher import Spawn
    from minikafka.broker.replica_manager import ReplicaManager
    from minikafka.replication.partition import Partition

C = TypeVar("C", bound=Coordinator)

READ_SIZE = 1 << 20
"""Bytes of log that are replayed between two turns of the loop."""

WAIT_MAX_S = 60.0
"""One wait for the watermark; then it is asked again whether this shard is still wanted."""

_MISSING = object()
"""A request that is not answered yet."""


@dataclass(slots=True)
class _InFlight:
    """A write that is in the log and not yet committed."""

    write: Write
    end_offset: Offset
    deadline: float


@dataclass(slots=True)
class _Marker:
    """The end of a transaction, in the log and not yet committed."""

    marker: EndTransaction
    end_offset: Offset
    applied: asyncio.Future[bool]
    deadline: float = math.inf


class _Request:
    """A request that waits for its answer."""

    __slots__ = ("_error", "_response", "parked")

    def __init__(self) -> None:
        self.parked = Parked(self.response)
        """What the handler returns. If its client goes, what it began goes on."""
        self._response: Any = _MISSING
        self._error: kafka.ProtocolError | None = None

    @property
    def is_answered(self) -> bool:
        return self._response is not _MISSING

    def answer(self, response: Any) -> None:
        """Its response is known. The caller delivers it with ``parked.ready``."""
        self._response = response

    def fail(self, error: kafka.ProtocolError) -> None:
        """It will not be answered."""
        self._error, self._response = error, None

    def response(self) -> Any:
        """The response; raises what it failed with."""
        if self._error is not None:
            raise self._error
        return self._response


class CoordinatorShard(Generic[C]):
    """Drives ``coordinator`` for one partition, for as long as ``leader`` is its role."""

    def __init__(
        self,
        replicas: ReplicaManager,
        partition: Partition,
        leader: LeaderReplica,
        coordinator: C,
        *,
        commit_timeout_s: float,
        spawn: Spawn,
        on_step: Callable[[CoordinatorShard[C]], None],
    ) -> None:
        self.partition = partition
        self.leader = leader
        self.coordinator = coordinator
        self.is_loaded = False
        self._unreadable = ""
        self._replicas = replicas
        self._commit_timeout_s = commit_timeout_s
        self._on_step = on_step
        self._tickets = itertools.count(1)
        self._waiting: dict[Ticket, _Request] = {}
        self._answered: list[_Request] = []
        """Their responses are delivered in the next turn of the loop, or at the end of the present callback."""
        self._in_flight: deque[_InFlight | _Marker] = deque()
        self._watching: Waiter | None = None
        """For the watermark to reach the first write in flight."""
        self._bug: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails with what a rule raised that it must not raise."""
        self._ended = False
        self._task = spawn(self._run(), f"{coordinator.kind} coordinator {partition.partition}")

    # ---- requests ----

    def check(self) -> None:
        """Raise what keeps this shard from answering."""
        if self._ended or self.partition.role is not self.leader:
            raise kafka.NotCoordinator(f"this broker leads {self.partition.partition} no more")
        if self._unreadable:
            raise kafka.CoordinatorNotAvailable(f"{self.partition.partition} cannot be read: {self._unreadable}")
        if not self.is_loaded:
            raise kafka.CoordinatorLoadInProgress(f"{self.partition.partition} is being read")

    @property
    def is_answering(self) -> bool:
        """Return True if :meth:`check` would pass."""
        return self.is_loaded and not self._unreadable and not self._ended and self.partition.role is self.leader

    def marker_appended(self, marker: EndTransaction, end_offset: Offset) -> Awaitable[bool]:
        """The marker of a transaction stands before ``end_offset``.

        Returns:
            Awaitable that ends once the coordinator has applied the committed marker: True. False: this broker no
            longer leads the partition.
        """
        applied: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._ended or self._unreadable:
            # A partition that nobody coordinates has no offsets that could be read too early.
            applied.set_result(not self._ended)
            return applied
        self._in_flight.append(_Marker(marker, end_offset, applied))
        self._watch()
        return applied

    async def ask(self, begin: Callable[[Ticket, Step], None]) -> Any:
        """As :meth:`begin`; returns the response."""
        answer = self.begin(begin)
        return await answer if isinstance(answer, Parked) else answer

    def begin(self, begin: Callable[[Ticket, Step], None]) -> Any:
        """Begin a request. What ``begin`` raises is raised; what it decided before that is carried out all the same.

        Returns:
            The response if it is known at once, else a :class:`Parked` of it.
        """
        ticket, request = next(self._tickets), _Request()
        self._waiting[ticket] = request
        try:
            with self.step() as step:
                begin(ticket, step)
        except BaseException:
            self._waiting.pop(ticket, None)
            raise
        if not request.is_answered:
            return request.parked
        self._answered.remove(request)
        return request.response()

    def step(self) -> _Stepping:
        """``with shard.step() as step:`` runs rules, and carries out what they want done, also if one raises."""
        return _Stepping(self)

    def new_step(self) -> Step:
        """Now, on both clocks."""
        return Step(self._replicas.clock.now(), self._replicas.clock.wall_ms())

    def carry_out(self, step: Step) -> None:
        """Append writes, answer requests; a write that is refused makes a step of its own."""
        self._answer(step)
        for write in step.writes:
            self._append(write)
        self._on_step(self)

    def _answer(self, step: Step) -> None:
        """Note the answers of a step. A connection that receives one may begin its next request: not in mid-step."""
        for ticket, response in step.answers:
            request = self._waiting.pop(ticket, None)
            if request is not None:
                request.answer(response)
                self._deliver_soon(request)

    def _deliver_soon(self, request: _Request) -> None:
        if not self._answered:
            asyncio.get_running_loop().call_soon(self._deliver)
        self._answered.append(request)

    def _deliver(self) -> None:
        answered = iter(self._answered)
        self._answered = []
        try:
            for request in answered:
                request.parked.ready()
        finally:
            for request in answered:  # there are none, unless a bug has ended the loop above
                self._deliver_soon(request)

    # ---- the log ----

    def _append(self, write: Write) -> None:
        wall_ms = self._replicas.clock.wall_ms()
        partition, leader = self.partition, self.leader
        try:
            if write.behind is not None and write.behind.refusal is not None:
                raise write.behind.refusal
            batch = self._built(write, wall_ms)
            self.check()
            with self._replicas.storage_guard(partition):
                guard = None if write.transaction is None else write.transaction.guard
                appended = leader.append(batch, acks=ACKS_ALL, wall_ms=wall_ms, guard=guard)
        except kafka.ProtocolError as error:
            write.refusal = error
            after = self.new_step()
            self.coordinator.refused(write, error, after)
            self.carry_out(after)
            return
        write.base_offset = appended.base_offset
        deadline = self._replicas.clock.now() + self._commit_timeout_s
        self._in_flight.append(_InFlight(write, appended.end_offset, deadline))
        self._replicas.appended(partition, leader)
        self._watch()

    def _built(self, write: Write, wall_ms: int) -> RecordBatch:
        """The records of a write as a batch.

        What cannot be written is refused, as a log refuses it: nothing was appended, so the rule takes back what it had
        decided. The broker goes on: if it stopped, the next coordinator would get the same request, and stop as well.
        """
        try:
            builder = BatchBuilder()
            if write.transaction is not None:
                producer_id, epoch, _ = write.transaction
                builder = BatchBuilder(producer_id=producer_id, producer_epoch=epoch, transactional=True)
            for record in write.records:
                key, value = self.coordinator.packed(record)
                builder.append(wall_ms, key, value)
            return RecordBatch.of(bytes(builder.build()))
        except InvariantViolation:
            raise
        except Exception as error:
            kind, why = self.coordinator.kind, f"{type(error).__name__}: {error}"
            text = "".join(traceback.format_exception(error))
            self._replicas.events("request_failed", api=f"a request to the {kind} coordinator", why=why, traceback=text)
            raise kafka.UnknownServerError(
                f"a record of the {kind} coordinator cannot be written: {why}; the broker's log has more",
                outcome=kafka.NOT_WRITTEN,
            ) from error

    async def _run(self) -> None:
        try:
            await self._load()
        except (kafka.KafkaStorageError, kafka.CorruptMessage) as error:
            # What this partition holds has no coordinator until the damage is repaired.
            self._unreadable = error.message
            self._drop_markers(is_applied=True)
            self._replicas.events(
                f"{self.coordinator.kind}_coordinator_not_loaded",
                partition=str(self.partition.partition),
                why=str(error),
            )
            return
        self._watch()
        await self._bug

    async def _load(self) -> None:
        log, offset = self.leader.log, self.leader.log.start_offset
        end = log.end_offset
        skipped: Counter[str] = Counter()
        while offset < end:
            part = log.read(max(offset, log.start_offset), max_bytes=READ_SIZE, end_offset=end)
            begin = offset
            batches = iterate(b"".join(part.buffers))
            for batch in from_offset(batches, offset, end_max=end):
                verify(batch.data)
                offset = batch.next_offset
                if batch.is_control:
                    marker = marker_of(batch)
                    if marker is not None:
                        self.coordinator.transaction_ended(marker.producer_id, is_commit=marker.is_commit)
                    continue
                producer_id = batch.producer_id if batch.is_transactional else NO_PRODUCER
                for record in decode_batch(batch):
                    if not self._replay(record, producer_id):
                        skipped[versions(record.key, record.value)] += 1
            if offset == begin:
                if self._is_over():
                    return  # and the log was cut
                raise kafka.CorruptMessage(f"{self.partition.partition}: no whole batch holds offset {offset}")
            await asyncio.sleep(0)
        if skipped:
            self._replicas.events(
                self.coordinator.skipped_event,
                partition=str(self.partition.partition),
                count=skipped.total(),
                versions=dict(skipped),
                why="a later release wrote them; what they say does not count here",
            )
        while not await self._reached(end):
            if self._is_over():
                return
        self.is_loaded = True
        if not self._is_over():
            with self.step() as step:
                self.coordinator.loaded(step)

    def _replay(self, record: RecordView, producer_id: int) -> bool:
        """Apply one record, of a producer's transaction or of none; False when its version is not known."""
        try:
            return record.key is not None and self.coordinator.replay(
                record.key, record.value, offset=record.offset, producer_id=producer_id
            )
        except ValueError as error:
            raise kafka.CorruptMessage(
                f"{self.partition.partition}: a record that no coordinator wrote: {error}"
            ) from error

    async def _reached(self, end: Offset) -> bool:
        """Wait until the watermark is at ``end``; False: not in time, or this shard is over."""

        def met() -> bool:
            return self._is_over() or self.committed_end() >= end

        condition = Condition(Mark.HIGH_WATERMARK, self.partition.partition, end)
        deadline = self._replicas.clock.now() + WAIT_MAX_S
        return await self._replicas.purgatory.until([condition], met, deadline) and not self._is_over()

    def committed_end(self) -> Offset:
        """Offset behind the last record that counts."""
        return self.leader.high_watermark

    def _is_over(self) -> bool:
        return self._ended or self.partition.role is not self.leader

    def _watch(self) -> None:
        """Wait for the first write in flight to be committed, or for the first deadline of all."""
        if not self._in_flight or not self.is_loaded or self._is_over():
            return
        latest = self._replicas.clock.now() + WAIT_MAX_S
        deadline = next((each.deadline for each in self._in_flight if each.deadline != math.inf), latest)
        if self._watching is not None:
            if self._watching.deadline <= deadline:
                return
            self._watching.cancel()
        end = self._in_flight[0].end_offset

        def met() -> bool:
            return self._is_over() or self.committed_end() >= end

        condition = Condition(Mark.HIGH_WATERMARK, self.partition.partition, end)
        self._watching = self._replicas.purgatory.park([condition], met, min(deadline, latest))
        self._watching.when_ready(self._on_watermark)
        if met():
            self._watching.wake()

    def _on_watermark(self, is_met: Result) -> None:
        """The watermark has reached the first write in flight, or its deadline has come, or this shard is over.

        Until the end of this callback ``_watching`` stays: what it appends is watched once, afterwards.
        """
        try:
            if is_met() and not self._is_over():
                self._commit_reached()
            elif not self._is_over():
                self._tell_late()
            self._watching = None
            self._watch()
        except Exception as error:  # noqa: BLE001 - ends the task of this shard, and so the broker
            if not self._bug.done():
                self._bug.set_exception(error)
        self._deliver()

    def _commit_reached(self) -> None:
        while self._in_flight and self._in_flight[0].end_offset <= self.committed_end():
            done = self._in_flight.popleft()
            if isinstance(done, _Marker):
                self.coordinator.transaction_ended(done.marker.producer_id, is_commit=done.marker.is_commit)
                done.applied.set_result(True)
                continue
            with self.step() as step:
                try:
                    self.leader.check_acknowledged(done.end_offset)
                except kafka.NotEnoughReplicasAfterAppend as error:
                    # Committed, on fewer replicas than asked for: it counts, and nobody may rely on it.
                    self.coordinator.refused(done.write, _unknown(error.message), step)
                self.coordinator.committed(done.write, step)

    def _tell_late(self) -> None:
        now = self._replicas.clock.now()
        for each in list(self._in_flight):
            if isinstance(each, _InFlight) and each.deadline <= now:
                each.deadline = math.inf
                with self.step() as step:
                    late = _unknown(
                        f"written at {each.end_offset - 1}, not committed within {self._commit_timeout_s:g} s"
                    )
                    self.coordinator.refused(each.write, late, step)

    # ---- the end ----

    def end(self) -> None:
        """The role is another's: let everyone go."""
        if self._ended:
            return
        self._ended = True
        self._task.cancel()
        if self._watching is not None:
            self._watching.cancel()
        self._drop_markers(is_applied=False)
        step = self.new_step()
        self.coordinator.resign(step)
        self._answer(step)
        for request in self._waiting.values():
            request.fail(
                kafka.NotCoordinator(f"the {self.coordinator.kind} has another coordinator now", outcome=kafka.UNKNOWN)
            )
            self._deliver_soon(request)
        self._waiting.clear()

    def _drop_markers(self, *, is_applied: bool) -> None:
        for each in self._in_flight:
            if isinstance(each, _Marker) and not each.applied.done():
                each.applied.set_result(is_applied)


class _Stepping:
    """A step that is carried out when it ends. A class, since every request to a coordinator enters one."""

    __slots__ = ("_shard", "_step")

    def __init__(self, shard: CoordinatorShard[Any]) -> None:
        self._shard = shard
        self._step = shard.new_step()

    def __enter__(self) -> Step:
        return self._step

    def __exit__(self, *_: object) -> None:
        self._shard.carry_out(self._step)


def _unknown(message: str) -> kafka.RequestTimedOut:
    return kafka.RequestTimedOut(message, outcome=kafka.UNKNOWN)
