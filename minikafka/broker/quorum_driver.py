"""One member of the metadata quorum at work: the loops around the rules of ``quorum/``.

Rules for this file:

1. It decides nothing: every input goes to the rules, every :class:`Ready` is carried out in its order. No answer and no
   request leaves before the state it rests on is durable (``until_saved``).
2. The log is changed under ``log_lock`` only: what a fetch answer asks for is decided and done without an await in
   between, and never while a sync of the same log is in flight.
3. It shares nothing with user partitions but the network and the disk: a slow one must not stall the quorum.
4. Everyone who waits, waits for the bell: it rings after each change, and looks for each whether to wake it.

Read ``start``, then the loops, then ``handle`` and ``append``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from minikafka import errors as kafka
from minikafka.broker.meters import Histogram, PurgatoryMeter
from minikafka.broker.quorum_applied import AppliedMetadata, MetadataListener
from minikafka.broker.quorum_follower import MetadataFollower
from minikafka.config import BrokerConfig
from minikafka.invariant import invariant
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import World
from minikafka.quorum import fetching, voting
from minikafka.quorum.core import Envelope, QuorumCore, Ready
from minikafka.quorum.fetching import describe
from minikafka.quorum.files import FOLDER, QUORUM_STATE_PATH, QuorumState, decode_state, encode_state
from minikafka.quorum.roles import Leader
from minikafka.rpc import call
from minikafka.types import NO_EPOCH, NO_NODE, Address, Epoch, NodeId, Offset
from minikafka.wire import messages as m
from minikafka.wire.batch import RecordBatch
from minikafka.wire.records import BatchBuilder

R = TypeVar("R")
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]]
QuorumRequest: TypeAlias = (
    m.VoteRequest
    | m.BeginQuorumEpochRequest
    | m.EndQuorumEpochRequest
    | m.FetchRequest
    | m.FetchSnapshotRequest
    | m.DescribeQuorumRequest
)
QuorumResponse: TypeAlias = (
    m.VoteResponse
    | m.BeginQuorumEpochResponse
    | m.EndQuorumEpochResponse
    | m.FetchResponse
    | m.FetchSnapshotResponse
    | m.DescribeQuorumResponse
)

METADATA_BATCH_BYTES_MAX = 8 * 1024 * 1024
"""Of one append: it is one batch, so that it is applied as a whole or not at all."""

# Members wait half a second; other requests that ask for a longer wait than this are answered then.
PARKED_MS_MAX = 300_000

# How long a leaving leader waits for the others to hear it.
FAREWELL_S = 1.0


class QuorumDriver:
    """One member; ``log`` is its open metadata log. ``spawn`` starts a task whose failure stops the broker."""

    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        *,
        cluster_id: str,
        voters: Mapping[NodeId, Address],
        log: PartitionLog,
        spawn: Spawn,
        listener: MetadataListener,
    ) -> None:
        self.config = config
        self.world = world
        self.cluster_id = cluster_id
        self.voters = dict(sorted(voters.items()))
        self.log = log
        self.applied = AppliedMetadata(config, world, log, listener)
        self.snapshots = self.applied.snapshots
        self._spawn = spawn
        self._core: QuorumCore | None = None
        self.saved_version = 0
        self._saving = asyncio.Lock()
        self.log_lock = asyncio.Lock()
        self._waiting: dict[int, tuple[Callable[[], bool], asyncio.Future[bool]]] = {}
        """Waiting requests, in the order of their arrival."""
        self._waits = 0
        self._announced: tuple[NodeId, Epoch, bool] = (NO_NODE, NO_EPOCH, False)
        self.stopping = False
        self.purgatory_meter = PurgatoryMeter(world.clock.ticks_ns)
        self.commits = Histogram()
        """As leader: from an append to its commit."""
        self._unreachable: dict[NodeId, str] = {}
        """Why a voter did not take the latest request, by voter."""
        self._follower = MetadataFollower(self)
        self._loops: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<{self._core!r} applied={self.applied_offset}>"

    # ---- what is known -----------------------------------------------------------------------------------------------

    @property
    def core(self) -> QuorumCore:
        """The rules' state; BrokerNotAvailable before the start."""
        if self._core is None:
            raise kafka.BrokerNotAvailable("the quorum's log is not loaded yet")
        return self._core

    @property
    def leader_id(self) -> NodeId:
        """The leader of the quorum, NO_NODE when unknown."""
        return NO_NODE if self._core is None else self._core.leader_id

    @property
    def epoch(self) -> Epoch:
        return NO_EPOCH if self._core is None else self._core.epoch

    @property
    def is_leader(self) -> bool:
        """Leader, with a committed record of its own epoch, and with all before it applied."""
        role = self._core.role if self._core is not None else None
        return isinstance(role, Leader) and self.applied_offset > role.epoch_start

    @property
    def high_watermark(self) -> Offset:
        return 0 if self._core is None else self._core.high_watermark

    @property
    def applied_offset(self) -> Offset:
        """The listener has seen all below it."""
        return self.applied.end.end_offset

    @property
    def unreachable(self) -> Mapping[NodeId, str]:
        """Why voters did not take the latest request to them: no response, or that of another cluster."""
        return MappingProxyType(self._unreachable)

    def majority_heard_at(self) -> float:
        """Until when this member surely was the only leader: infinite when it does not lead, for others vouch for it
        then; else when a majority of voters last followed it, in seconds of the monotonic clock.
        """
        role = None if self._core is None else self._core.role
        return role.majority_heard_at(self.world.clock.now()) if isinstance(role, Leader) else float("inf")

    def majority_resumed_at(self) -> float:
        """When a majority was heard again after this leader had been cut off or stopped, or else its election; -inf:
        this member does not lead.
        """
        role = None if self._core is None else self._core.role
        return role.resumed_at if isinstance(role, Leader) else float("-inf")

    @property
    def last_contact(self) -> Mapping[NodeId, float]:
        """When each other member was last heard of, on the monotonic clock. A new controller dates the sessions of
        others, its predecessor's too, from here and not from its own election.
        """
        return MappingProxyType({} if self._core is None else self._core.contacts)

    # ---- start and stop ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load state and snapshot, then start the loops.

        Raises KafkaStorageError when ``quorum-state`` cannot be read, or the log begins where no snapshot ends.
        """
        now = self.world.clock.now()
        disk = self.world.disk
        known = disk.exists(QUORUM_STATE_PATH)
        state = decode_state(disk.read_file(QUORUM_STATE_PATH)) if known else QuorumState()
        payloads = self.snapshots.load()
        newest = self.applied.newest_snapshot
        is_behind = newest is not None and (
            newest.end_offset > self.log.end_offset or newest > (self.log.last_epoch, self.log.end_offset)
        )
        is_synced = self.log.synced_end == self.log.end_offset
        if is_behind or (known and is_synced and not self.log.report.clean):
            # After kill -9 the names of the vote and the snapshot may be in the page cache only. Neither is the vote
            # repeated, nor the log emptied for the snapshot, before no power failure can take them. Else the log's sync
            # below covers them.
            await disk.sync_folder(FOLDER)
        if newest is not None and is_behind:
            # The broker stopped between fetching the snapshot and emptying its log, or the log's tail was never synced.
            # A tail of a later epoch than the snapshot's, which was never committed, does not reach as far.
            self.log.restart_at(newest.end_offset)
            await self.log.sync()
            self.snapshots.drop_others(newest)
        if self.log.start_offset > (newest.end_offset if newest else 0):
            raise kafka.KafkaStorageError(
                f"the metadata log starts at {self.log.start_offset}, and no snapshot reaches there"
            )
        core = self._core = QuorumCore(
            self.config.node_id,
            self.voters,
            self.log,
            state,
            self.config,
            self.world.random,
            self.world.events,
            cluster_id=self.cluster_id,
            snapshots=self.snapshots.kept,
            now=now,
            wall_ms=self.world.clock.wall_ms(),
        )
        if core.is_voter:
            await self.sync()
        if newest is not None:
            self.applied.replace(newest, payloads)
        for coroutine, name in (
            (self._keep_time(), "quorum-time"),
            (self._follower.run(), "quorum-fetch"),
            (self._flush(), "quorum-flush"),
            (self._apply(), "quorum-apply"),
            (self._take_snapshots(), "quorum-snapshots"),
        ):
            self._loops.append(self._spawn(coroutine, name))

    def stand_now(self) -> None:
        """Do not wait for the election timeout of a start: the other members are there."""
        self.core.stand_now(self.world.clock.now())
        self.ring()

    async def stop(self) -> None:
        """Leave gracefully: a leader tells the others, and the best of them takes over at once. Then the loops end."""
        self.stopping = True
        if self._core is not None:
            ready = self._core.stop(self.world.clock.now())
            self.ring()
            try:
                await self.until_saved(ready.state_version)
                async with asyncio.timeout(FAREWELL_S):
                    await asyncio.gather(*(self._ask(envelope) for envelope in ready.send))
            except TimeoutError:
                self.world.events("quorum_farewell_unheard", epoch=self._core.epoch)
            except (kafka.DiskFailed, kafka.DiskFull) as error:
                # Nothing may be said that is not saved; the failure has stopped the broker already.
                self.world.events("quorum_farewell_unsaid", epoch=self._core.epoch, why=str(error))
        self.ring()
        if self._loops:
            await asyncio.wait(self._loops)

    # ---- persist, then speak -----------------------------------------------------------------------------------------

    async def obey(self, ready: Ready[R]) -> R:
        """Carry out what the rules decided, in order; the answer is given last."""
        self.ring()
        await self.until_saved(ready.state_version)
        for envelope in ready.send:
            self._spawn(self._ask(envelope), f"quorum-ask-{envelope.peer}")
        return ready.reply

    async def until_saved(self, version: int) -> None:
        """Wait until this version of the state, or a newer one, is durable."""
        while self.saved_version < version:
            async with self._saving:
                if self.saved_version < version:
                    state, newest = self.core.state, self.core.state_version
                    await self._persist(state)
                    self.saved_version = newest

    async def _persist(self, state: QuorumState) -> None:
        await self.world.disk.publish(QUORUM_STATE_PATH, encode_state(state))

    async def sync(self) -> None:
        """Make the log durable; callers that come during a sync share the next one."""
        async with self.log_lock:
            if self.log.synced_end < self.log.end_offset:
                await self.log.sync()

    # ---- waiting -----------------------------------------------------------------------------------------------------

    def ring(self) -> None:
        """Something has changed: tell the listener, end a fetch that nobody needs any more, wake all who wait."""
        core = self._core
        if core is not None:
            facts = (core.leader_id, core.epoch, self.is_leader)
            if facts != self._announced:
                self._announced = facts
                self.applied.listener.on_leader(*facts)
                self._follower.on_change()
        if self.stopping:
            self._follower.on_change()
        for met, woken in self._waiting.values():
            if not woken.done() and (self.stopping or met()):
                woken.set_result(True)

    async def until(self, met: Callable[[], bool], deadline: float | None = None) -> bool:
        """Wait until ``met()``; False when the deadline passed, or this member stops.

        ``met`` is asked at each ring, for a task that wakes to find nothing new costs ten times as much.
        """
        while not met():
            if self.stopping:
                return False
            if not await self._rung(met, deadline):
                return met()
        return not self.stopping

    async def _rung(self, met: Callable[[], bool], deadline: float | None) -> bool:
        """Wait for a ring at which ``met()``; False when the deadline came first."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_at(deadline, _give_up, woken) if deadline is not None else None
        self._waits += 1
        number = self._waits
        self._waiting[number] = (met, woken)
        try:
            return await woken
        finally:
            del self._waiting[number]
            if timer is not None:
                timer.cancel()

    # ---- the loops ---------------------------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        while not self.stopping:
            clock, deadline = self.world.clock, self.core.next_deadline()
            if deadline is not None and deadline <= clock.now():
                await self.obey(self.core.on_time(clock.now(), clock.wall_ms()))
            else:
                await self.until(lambda at=deadline: self._is_due_before(at), deadline)  # type: ignore[misc]

    def _is_due_before(self, deadline: float | None) -> bool:
        """Return True if something is due earlier now. What is due later is seen at the old deadline."""
        due = self.core.next_deadline()
        return due is not None and (deadline is None or due < deadline)

    async def _ask(self, envelope: Envelope) -> None:
        """Send one request to a voter and hand its answer to the rules."""
        clock, request, peer = self.world.clock, envelope.request, envelope.peer
        deadline = clock.now() + self.config.controller_quorum_request_timeout_ms / 1000
        try:
            response = await self.call_voter(peer, request, deadline)
        except kafka.WorldError:
            ready = voting.on_no_response(self.core, request, peer, clock.now())
        else:
            ready = voting.on_response(self.core, request, response, peer, clock.now())
        await self.obey(ready)

    async def call_voter(self, peer: NodeId, request: object, deadline: float) -> Any:
        """As :func:`minikafka.rpc.call`, to a voter; :attr:`unreachable` then has why it did not take the request."""
        try:
            response = await call(self.world.network, self.voters[peer], request, deadline)
        except kafka.WorldError as error:
            self._unreachable[peer] = str(error)
            raise
        if other := fetching.of_another_cluster(response):
            self._unreachable[peer] = f"{self.voters[peer]} is of another cluster: {other}"
        else:
            self._unreachable.pop(peer, None)
        return response

    async def _flush(self) -> None:
        """Leader: sync what was appended, while the followers already fetch and sync it. A log that failed ends this
        member: a leader that cannot append would only keep others from leading.
        """
        while await self.until(self._must_flush):
            if self.log.failure is not None:
                raise kafka.KafkaStorageError(f"the metadata log has failed: {self.log.failure}")
            await self.until_saved(self.core.state_version)
            await self.sync()
            self.core.on_durable()
            self.ring()

    def _must_flush(self) -> bool:
        return self.log.failure is not None or (self._leads() and self.log.synced_end < self.log.end_offset)

    def _leads(self) -> bool:
        return isinstance(self.core.role, Leader)

    # ---- committed records -------------------------------------------------------------------------------------------

    async def _apply(self) -> None:
        while await self.until(lambda: self.applied_offset < self.core.high_watermark):
            self.applied.apply_some(self.high_watermark)
            self.ring()
            await asyncio.sleep(0)

    async def append(self, payloads: Sequence[bytes], *, epoch: Epoch) -> Offset:
        """Append one batch as leader of ``epoch``; its end offset, once it is committed and given to the listener.

        Raises RecordListTooLarge; KafkaStorageError when the disk is full or broken; NotController, outcome
        *not_written* when this member does not lead ``epoch``, *unknown* when it stopped leading before the commit.
        """
        if not self.is_leader or self.epoch != epoch or self.stopping:
            raise kafka.NotController(f"node {self.config.node_id} does not lead epoch {epoch}", leader=self.leader_id)
        invariant(bool(payloads), "an append has records")
        wall_ms = self.world.clock.wall_ms()
        builder = BatchBuilder(size_limit=METADATA_BATCH_BYTES_MAX)
        rows = [(wall_ms, None, payload, ()) for payload in payloads]
        if builder.extend(rows) < len(rows) or builder.size > METADATA_BATCH_BYTES_MAX:
            raise kafka.RecordListTooLarge(f"{len(rows)} metadata records exceed {METADATA_BATCH_BYTES_MAX} bytes")
        end = self.core.append(RecordBatch.of(builder.build()), wall_ms=wall_ms)
        began = self.world.clock.ticks_ns()
        self.ring()
        await self.until(lambda: self.applied_offset >= end or not self._leads() or self.epoch != epoch)
        if self.applied_offset >= end and self._leads() and self.epoch == epoch:
            self.commits.observe(self.world.clock.ticks_ns() - began)
            return end
        # It may be committed by others, or cut: the next leader decides.
        raise kafka.NotController(
            f"epoch {epoch} ended before offset {end} was committed", outcome="unknown", leader=self.leader_id
        )

    # ---- snapshots ---------------------------------------------------------------------------------------------------

    async def _take_snapshots(self) -> None:
        while not self.stopping:
            if not await self.until(self.applied.is_snapshot_due, self.applied.next_snapshot_at):
                continue
            await self.applied.take_snapshot()
            async with self.log_lock:
                # A segment goes only as a whole: one begins with each snapshot.
                self.log.roll()
            self.core.on_snapshots(self.snapshots.kept)
            if len(self.snapshots.kept) > 1:
                await self._let_go(self.snapshots.kept[-2].end_offset)

    async def _let_go(self, offset: Offset) -> None:
        """The log need not reach back before ``offset`` any more: two snapshots do."""
        async with self.log_lock:
            self.log.raise_start(offset)
            doomed = self.log.expired_segments(self.world.clock.wall_ms(), self.high_watermark)
            for path in await self.log.delete_segments(doomed):
                self.world.disk.remove(path)
        self.snapshots.drop_old()
        self.core.on_snapshots(self.snapshots.kept)

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def handle(self, request: QuorumRequest) -> QuorumResponse:
        """Answer a request of another member, or of people. Raises BrokerNotAvailable before the start."""
        core, now = self.core, self.world.clock.now()
        match request:
            case m.VoteRequest():
                return await self.obey(voting.on_vote_request(core, request, now))
            case m.BeginQuorumEpochRequest():
                return await self.obey(voting.on_begin_epoch(core, request, now))
            case m.EndQuorumEpochRequest():
                return await self.obey(voting.on_end_epoch(core, request, now))
            case m.FetchRequest():
                return await self._handle_fetch(request)
            case m.FetchSnapshotRequest():
                return await self.obey(core.ready(self._snapshot_chunk(request, now)))
            case m.DescribeQuorumRequest():
                return await self.obey(core.ready(describe(core, self.voters, now)))

    async def _handle_fetch(self, request: m.FetchRequest) -> m.FetchResponse:
        clock = self.world.clock
        deadline = clock.now() + min(max(request.max_wait_ms, 0), PARKED_MS_MAX) / 1000
        answer = await self.obey(fetching.on_fetch(self.core, request, clock.now()))
        if answer is None:
            with self.purgatory_meter.parked():
                await self.until(lambda: fetching.is_due(self.core, request), deadline)
            answer = await self.obey(fetching.on_fetch(self.core, request, clock.now(), again=True))
        invariant(answer is not None, "a parked fetch is answered the second time", quorum=self)
        return answer or m.FetchResponse()

    def _snapshot_chunk(self, request: m.FetchSnapshotRequest, now: float) -> m.FetchSnapshotResponse:
        leader = m.CurrentLeader(leader_id=self.core.leader_id, leader_epoch=self.core.epoch)
        try:
            snapshot = fetching.on_fetch_snapshot(self.core, request, now)
            size, records = self.snapshots.read(snapshot, position=request.position, max_bytes=request.max_bytes)
        except kafka.ProtocolError as error:
            return m.FetchSnapshotResponse.with_error(error, current_leader=leader)
        return m.FetchSnapshotResponse(
            snapshot_id=request.snapshot_id,
            size=size,
            position=request.position,
            current_leader=leader,
            unaligned_records=records,
        )


def _give_up(woken: asyncio.Future[bool]) -> None:
    if not woken.done():
        woken.set_result(False)
