"""A member of a consumer group: joins, syncs, beats, gives up and takes over partitions (S29, S31, S33).

::

    outside --join--> joined --sync--> assigned --asked to, or the leader sees new partitions--> join ...
       ^------------- thrown out (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, poll too late) --------------'

- Eager assignors: everything is given up before joining. Cooperative ones (KIP-429): partitions are kept while joining,
  what is another's is given up afterwards, and then it joins once more.
- Heartbeats go on by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from minikafka import errors as kafka
from minikafka.client.base_member import BaseMember, MemberParts, Partitions
from minikafka.client.caller import accepted
from minikafka.client.group_offsets import Membership
from minikafka.client.metadata import Update
from minikafka.groups.assignors import COOPERATIVE, Assignor, GroupMember, protocol_of
from minikafka.groups.protocol import PROTOCOL_TYPE, Assignment
from minikafka.wire import group_messages as g
from minikafka.wire.outcomes import error_in

JOIN_GRACE_MS = 5_000
"""A join is answered when the rebalance ends, at the latest after the rebalance timeout, and a little."""


class Member(BaseMember):
    """This consumer in its group, with the classic protocol. It owns two tasks: one joins, one beats."""

    def __init__(self, parts: MemberParts) -> None:
        super().__init__(parts)
        self.generation = g.NO_GENERATION
        self._assignors = parts.config.assignors()
        self._is_cooperative = all(each.rebalance == COOPERATIVE for each in self._assignors)
        self._must_join = asyncio.Event()
        self._must_join.set()
        self._is_joining = False
        self._join_count = 0
        self._was_owned: tuple[Partitions, int] = ((), g.NO_GENERATION)
        """What an eager member had, for assignors that remember."""
        self._dealt: dict[str, int] = {}
        """The leader's: partition counts that the present assignment was made from."""

    def membership(self) -> Membership | None:
        """For whom a commit speaks now; None: the group goes on without this member."""
        if self.generation == g.NO_GENERATION:
            return None
        instance_id = self._config.group_instance_id
        return Membership(self.member_id, self.generation, instance_id, self._join_count, self._is_joining)

    # ---------------------------------------------------------------------------------------------- its life

    def _work(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        return [("group-join", self._keep_joined()), ("group-heartbeat", self._beat())]

    async def _say_goodbye(self) -> None:
        try:
            if self.member_id and self._config.group_instance_id is None:
                await self._leave(self.member_id, "the consumer was closed")
        finally:
            self.owned = ()
            self.generation = g.NO_GENERATION

    def rejoin(self, why: str) -> None:
        """Join again as soon as the application's work allows."""
        if not self._must_join.is_set():
            self._world.events("group_rejoin", group=self._coordinator.group, member=self.member_id, why=why)
            self._must_join.set()

    def _on_metadata(self, _update: Update) -> None:
        if self._dealt and any(self._count(topic) != count for topic, count in self._dealt.items()):
            self._dealt = {}
            self.rejoin("the number of partitions has changed")

    def _count(self, topic: str) -> int:
        return self._metadata.view.partition_count(topic) or 0

    # ---------------------------------------------------------------------------------------------- joining

    async def _keep_joined(self) -> None:
        while self.failed is None:
            await self._must_join.wait()
            try:
                await self._join_once()
            except (kafka.UnknownMemberId, kafka.IllegalGeneration) as error:
                await self._thrown_out(error.name, forget_id=isinstance(error, kafka.UnknownMemberId))
            except (kafka.RebalanceInProgress, kafka.RequestTimedOut) as error:
                self._world.events("group_join_again", group=self._coordinator.group, why=error.message)
            except Exception as error:
                # No joining again helps: the others shall not wait until its session ends.
                self._fail(error)
                await self._leave_for_good(error)
                raise
            finally:
                self._is_joining = False
            self._gate.release()
            self._tell()

    async def _join_once(self) -> None:
        if self.owned or self._awaits_poll:
            await self._gate.hold()
        self._awaits_poll = False
        self._must_join.clear()
        try:
            if self.owned and not self._is_cooperative:
                self._was_owned = self.owned, self.generation
                await self._give_up(self.owned)
            elif self._is_cooperative:
                # It goes on reading what it has; what it must give up is in the assignment.
                self._gate.release()
                self._tell()
            self._is_joining = True
            joined = await self._join()
            self.generation = joined.generation_id
            self._join_count += 1
            synced = await self._sync(joined)
            self._is_joining = False
            await self._take(Assignment.given(synced.assignment).partitions)
        except BaseException:
            # Also when nobody could say where to begin: else it would beat for partitions that nobody reads.
            self._must_join.set()
            raise

    async def _join(self) -> g.JoinGroupResponse:
        config = self._config
        while True:
            topics = tuple(self._subscription.topics)
            rebalance_ms = config.rebalance_timeout_ms or config.max_poll_interval_ms
            request = g.JoinGroupRequest(
                group_id=self._coordinator.group,
                session_timeout_ms=config.session_timeout_ms,
                rebalance_timeout_ms=rebalance_ms,
                member_id=self.member_id,
                group_instance_id=config.group_instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=tuple(self._protocol(each, topics) for each in self._assignors),
                client_id=config.client_id or "",
            )
            patience_ms = rebalance_ms + JOIN_GRACE_MS
            deadline = self._world.clock.now() + 2 * patience_ms / 1000
            response: g.JoinGroupResponse = await self._coordinator.ask(
                request, deadline=deadline, patience_ms=patience_ms
            )
            if isinstance(error_in(response), kafka.MemberIdRequired):
                self.member_id = response.member_id
                continue
            self.member_id = accepted(response).member_id
            return response

    def _protocol(self, assignor: Assignor, topics: tuple[str, ...]) -> g.GroupProtocol:
        owned, generation = (self.owned, self.generation) if self._is_cooperative else self._was_owned
        return protocol_of(assignor, topics, owned, generation, is_cooperative=self._is_cooperative)

    async def _sync(self, joined: g.JoinGroupResponse) -> g.SyncGroupResponse:
        assignments: tuple[g.MemberAssignment, ...] = ()
        self._dealt = {}
        if joined.members:
            members = [GroupMember.joined(each) for each in joined.members]
            self._dealt = await self._counts(members)
            if not joined.skip_assignment:
                assignments = self._deal(joined, members, self._dealt)
        request = g.SyncGroupRequest(
            group_id=self._coordinator.group,
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            group_instance_id=self._config.group_instance_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        patience_ms = (self._config.rebalance_timeout_ms or self._config.max_poll_interval_ms) + JOIN_GRACE_MS
        deadline = self._world.clock.now() + patience_ms / 1000
        response: g.SyncGroupResponse = await self._coordinator.ask(request, deadline=deadline, patience_ms=patience_ms)
        return accepted(response)

    async def _counts(self, members: Sequence[GroupMember]) -> dict[str, int]:
        """How many partitions the group's topics have: a leader joins again when that changes (KIP-814)."""
        topics = sorted({topic for member in members for topic in member.subscription.topics})
        self._follow(topics)
        await self._metadata.refreshed(self._world.clock.now() + self._config.default_api_timeout_ms / 1000)
        return {topic: self._count(topic) for topic in topics}

    def _deal(
        self, joined: g.JoinGroupResponse, members: Sequence[GroupMember], counts: dict[str, int]
    ) -> tuple[g.MemberAssignment, ...]:
        """The leader's part (S30)."""
        assignor = next((each for each in self._assignors if each.name == joined.protocol_name), None)
        if assignor is None:
            raise kafka.UnknownServerError(
                f"the coordinator chose {joined.protocol_name}, which this member does not speak"
            )
        dealt = assignor.assign(counts, members)
        self._world.events(
            "group_assigned",
            group=self._coordinator.group,
            generation=joined.generation_id,
            assignor=assignor.name,
            members={member: [str(each) for each in partitions] for member, partitions in dealt.items()},
        )
        return tuple(
            g.MemberAssignment(member_id=member, assignment=Assignment(partitions=tuple(partitions)).packed())
            for member, partitions in dealt.items()
        )

    # ---------------------------------------------------------------------------------------------- partitions

    async def _take(self, partitions: Partitions) -> None:
        """The assignment of a new generation."""
        generation = self.generation
        gone = tuple(each for each in self.owned if each not in partitions)
        if gone:
            await self._gate.hold()
            if self.generation == generation:
                await self._give_up(gone)
        else:
            self._gate.holding = True
        kept = self.owned
        added = tuple(each for each in partitions if each not in kept)
        committed = await self.offsets.committed(added)
        if self.generation != generation:
            return  # thrown out meanwhile: what it was given is another's
        self.owned = partitions
        self._follow(self._dealt)
        self._positions.assign(partitions)
        for partition, found in committed.items():
            self._positions.begin_at(partition, found.offset, found.leader_epoch)
        self._tell()
        await self._call("on_partitions_assigned", added, always=True)
        if gone and self._is_cooperative:
            self.rejoin("what was given up is free for the others now")

    async def _thrown_out(self, why: str, *, forget_id: bool, awaits_poll: bool = False) -> None:
        lost = self._lose_all(why, awaits_poll=awaits_poll)
        self.generation = g.NO_GENERATION
        if forget_id:
            self.member_id = ""
        self._was_owned = (), g.NO_GENERATION
        self._must_join.set()
        await self._call("on_partitions_lost", lost)

    # ---------------------------------------------------------------------------------------------- heartbeats

    async def _beat(self) -> None:
        interval_s = self._config.heartbeat_interval_ms / 1000
        while self.failed is None:
            await asyncio.sleep(interval_s)
            if 0 in self._dealt.values():
                # A topic that does not exist may be created any time; metadata is requested too rarely otherwise.
                self._metadata.refresh_soon()
            if self.generation == g.NO_GENERATION or self._is_joining:
                continue
            if self._polls_late:
                # First out, then goodbye: should the application ask meanwhile, it joins under an id of its own.
                member_id = self.member_id
                await self._thrown_out("it did not poll in time", forget_id=True, awaits_poll=True)
                await self._leave(member_id, f"no poll for max_poll_interval_ms={self._config.max_poll_interval_ms}")
            else:
                await self._beat_once()

    async def _beat_once(self) -> None:
        generation = self.generation
        request = g.HeartbeatRequest(
            group_id=self._coordinator.group,
            generation_id=generation,
            member_id=self.member_id,
            group_instance_id=self._config.group_instance_id,
        )
        deadline = self._world.clock.now() + self._config.session_timeout_ms / 1000
        try:
            response = await self._coordinator.ask(
                request, deadline=deadline, patience_ms=self._config.heartbeat_interval_ms
            )
        except kafka.RequestTimedOut as late:
            # Whether the session has ended only the coordinator knows; it is asked again.
            self._world.events("heartbeat_unanswered", group=self._coordinator.group, why=late.message)
            return
        error = error_in(response)
        if error is None or generation != self.generation or self._is_joining:
            return
        if isinstance(error, kafka.RebalanceInProgress):
            self.rejoin("the group rebalances")
        elif isinstance(error, (kafka.UnknownMemberId, kafka.IllegalGeneration)):
            await self._thrown_out(error.name, forget_id=isinstance(error, kafka.UnknownMemberId))
        else:
            self._fail(error)

    async def _leave_for_good(self, error: Exception) -> None:
        """A static member stays until its session ends: another process may have its place already."""
        member_id = self.member_id
        await self._thrown_out("it failed", forget_id=True)
        if member_id and self._config.group_instance_id is None:
            await self._leave(member_id, f"it failed: {type(error).__name__}")

    async def _leave(self, member_id: str, why: str) -> None:
        leaving = g.LeavingMember(member_id=member_id, group_instance_id=self._config.group_instance_id, reason=why)
        await self._send_goodbye(g.LeaveGroupRequest(group_id=self._coordinator.group, members=(leaving,)))
