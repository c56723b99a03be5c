"""The follower's side of one quorum member: fetch, obey, sync, and ask again.

Rules for this file:

1. What an answer asks for is decided and done under the log's lock, without an await in between.
2. A voter asks only from its durable end, and only in an epoch that is saved: its fetch is both claims at once.
3. A fetch in flight ends as soon as leader or epoch change; its answer would be thrown away.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from msgspec.structs import replace

from minikafka.errors import ConnectionRefused, CorruptMessage, InvalidRecord, WorldError
from minikafka.invariant import invariant
from minikafka.ports import File
from minikafka.quorum import fetching
from minikafka.quorum.core import QuorumCore
from minikafka.quorum.fetching import FetchAsk, FetchSnapshot, FetchStep, Wait
from minikafka.replication.follower import CutTo, Extend
from minikafka.rpc import Patience
from minikafka.tasks import CancelScope
from minikafka.types import Epoch, EpochEnd, NodeId
from minikafka.wire.messages import FetchResponse, FetchSnapshotRequest, FetchSnapshotResponse

if TYPE_CHECKING:
    from minikafka.broker.quorum_driver import QuorumDriver


class MetadataFollower:
    """Keeps the metadata log a copy of the leader's, while there is a leader."""

    def __init__(self, member: QuorumDriver) -> None:
        self._member = member
        self._world = member.world
        self._log = member.log
        self._snapshots = member.snapshots
        self._in_flight: tuple[CancelScope, NodeId, Epoch] | None = None
        self._patience: defaultdict[NodeId, Patience] = defaultdict(Patience)
        """By the member that is asked."""

    def on_change(self) -> None:
        """Leader or epoch may have changed, or the member stops: end a fetch that nobody needs any more."""
        member = self._member
        if self._in_flight is not None:
            scope, leader_id, epoch = self._in_flight
            if member.stopping or (leader_id, epoch) != (member.leader_id, member.epoch):
                self._in_flight = None
                scope.end()

    @property
    def _core(self) -> QuorumCore:
        return self._member.core

    async def run(self) -> None:
        """Fetch from the leader for as long as there is one."""
        while await self._member.until(lambda: fetching.has_whom_to_ask(self._core)):
            if self._core.is_voter and self._log.synced_end < self._log.end_offset:
                await self._member.sync()
            elif self._member.saved_version < self._core.state_version:
                await self._member.until_saved(self._core.state_version)
            else:
                ask = fetching.next_fetch(self._core)
                invariant(ask is not None, "a node to ask", quorum=self._core)
                if ask is not None:
                    await self._fetch(ask)

    async def _fetch(self, ask: FetchAsk) -> None:
        clock, patience = self._world.clock, self._patience[ask.peer]
        request = replace(ask.request, max_wait_ms=0) if patience.is_probing else ask.request
        sent, wait_s = clock.now(), request.max_wait_ms / 1000
        deadline = sent + wait_s + patience.seconds(self._request_timeout_s)
        response = await self._call_leader(ask, request, deadline)
        if response is not None:
            patience.answered(max(0.0, clock.now() - sent - wait_s))
        elif clock.now() >= deadline:
            patience.lost()
        if not isinstance(response, FetchResponse):
            await self._pause(fetching.on_fetch_failed(self._core, clock.now()))
            return
        async with self._member.log_lock:
            try:
                ready = fetching.on_fetch_response(self._core, ask, response, clock.now())
                self._change_log(ask, ready.reply)
            except (CorruptMessage, InvalidRecord) as error:
                # Nothing was written. The leader's disk may be bad, or the way here.
                self._world.events("quorum_fetch_damaged", leader=ask.peer, offset=ask.offset, reason=str(error))
                ready = self._core.ready(fetching.on_fetch_failed(self._core, clock.now()))
            end = self._log.end_offset
        step = await self._member.obey(ready)
        match step:
            case Extend():
                if self._core.is_voter:
                    await self._member.sync()
                if self._core.raise_high_watermark(min(step.leader_high_watermark, end)):
                    self._member.ring()
            case FetchSnapshot(snapshot):
                await self._fetch_snapshot(ask, snapshot)
            case Wait():
                await self._pause(step)

    def _change_log(self, ask: FetchAsk, step: FetchStep) -> None:
        if isinstance(step, CutTo):
            if step.offset < self._log.end_offset:
                self._world.events("quorum_tail_truncated", epoch=ask.epoch, old=self._log.end_offset, new=step.offset)
            self._log.truncate_to(step.offset)
        elif isinstance(step, Extend) and step.batches:
            self._log.append_as_follower(step.batches)

    @property
    def _request_timeout_s(self) -> float:
        return self._member.config.controller_quorum_request_timeout_ms / 1000

    async def _call_leader(self, ask: FetchAsk, request: object, deadline: float) -> object | None:
        """The answer; None when there is none, or when it would come from an epoch that is over."""
        try:
            with CancelScope() as scope:
                self._in_flight = (scope, self._member.leader_id, self._member.epoch)
                response: object = await self._member.call_voter(ask.peer, request, deadline)
                return response
        except ConnectionRefused:
            if self._core.on_leader_refused(ask.peer, self._world.clock.now()):
                self._member.ring()
        except WorldError:
            pass
        finally:
            self._in_flight = None
        return None

    async def _pause(self, wait: Wait) -> None:
        """Wait, but not beyond a change of leader or epoch."""
        leader, epoch = self._member.leader_id, self._member.epoch
        await self._member.until(lambda: (self._member.leader_id, self._member.epoch) != (leader, epoch), wait.until)

    async def _fetch_snapshot(self, ask: FetchAsk, snapshot: EpochEnd) -> None:
        """Get the leader's snapshot and continue behind it; when anything goes wrong, the next fetch asks again."""
        with closing(self._snapshots.begin(snapshot)) as file:
            if not await self._fetch_parts(ask, snapshot, file):
                self._snapshots.give_up(snapshot)
                await self._pause(fetching.on_fetch_failed(self._core, self._world.clock.now()))
                return
            try:
                payloads = self._snapshots.read_part(snapshot)
            except CorruptMessage as error:
                self._snapshots.give_up(snapshot)
                self._world.events(
                    "snapshot_damaged", end_offset=snapshot.end_offset, epoch=snapshot.epoch, reason=str(error)
                )
                return
            await self._begin_behind(snapshot, file, payloads)
        self._world.events(
            "snapshot_fetched", end_offset=snapshot.end_offset, epoch=snapshot.epoch, records=len(payloads)
        )

    async def _fetch_parts(self, ask: FetchAsk, snapshot: EpochEnd, file: File) -> bool:
        """All of it, part by part; False: give it up."""
        size = -1
        while file.size() != size:
            request = FetchSnapshotRequest(
                cluster_id=self._member.cluster_id,
                replica_id=self._member.config.node_id,
                current_leader_epoch=ask.epoch,
                snapshot_id=fetching.epoch_end_offset(snapshot),
                position=file.size(),
            )
            response = await self._call_leader(ask, request, self._world.clock.now() + self._request_timeout_s)
            if not isinstance(response, FetchSnapshotResponse) or not fetching.on_snapshot_chunk(
                self._core, ask, response, position=file.size(), now=self._world.clock.now()
            ):
                return False
            file.append(response.unaligned_records)
            size = response.size
        return True

    async def _begin_behind(self, snapshot: EpochEnd, file: File, payloads: Sequence[bytes]) -> None:
        """Keep the snapshot and empty the log; it goes on at the snapshot's end, and so does the listener, without an
        await in between. All of it under the log's lock: the task that removes old snapshots must not see a new one
        that the log does not reach yet.

        A power cut before the sync leaves a log that is older than the snapshot: the next start does it again.
        """
        async with self._member.log_lock:
            await self._snapshots.finish(snapshot, file)
            self._log.restart_at(snapshot.end_offset)
            self._member.applied.replace(snapshot, payloads)
            self._core.on_snapshots(self._snapshots.kept)
            await self._log.sync()
        self._snapshots.drop_others(snapshot)
        self._core.on_snapshots(self._snapshots.kept)
        self._member.ring()
