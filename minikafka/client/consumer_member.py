"""A member of a group with the consumer protocol (KIP-848): it sends heartbeats, and the coordinator assigns.

The rule is :mod:`minikafka.groups.consumer.member`. Two tasks drive it: one sends heartbeats, one takes over
assignments. A heartbeat never waits for the application; giving partitions up does (:class:`PollGate`), and so the
group waits for it up to the member's rebalance timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from minikafka.client.base_member import BaseMember, MemberParts, Partitions
from minikafka.client.group_offsets import Membership
from minikafka.client.metadata import Update
from minikafka.errors import NetworkException, ProtocolError, RequestTimedOut
from minikafka.groups.consumer.member import ConsumerMember, Owned, Wishes
from minikafka.groups.consumer.records import TopicIdPartition
from minikafka.tasks import Flag
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import ConsumerGroupHeartbeatResponse
from minikafka.wire.outcomes import error_in

FIRST_INTERVAL_MS = 3_000
"""Before a coordinator has said how often it wants to hear from the member."""
PATIENCE_MS = 3_000
"""How long a heartbeat waits for its response at least. An interval may be shorter than a slow coordinator needs for
one; members that repeat their heartbeats would keep it busy, and would never receive a response."""
UNKNOWN_TOPIC_PAUSE_S = 1.0
"""Between two looks for the name of a topic that was assigned by its id."""


class ConsumerProtocolMember(BaseMember):
    """This consumer in its group, with the consumer protocol."""

    def __init__(self, parts: MemberParts) -> None:
        super().__init__(parts)
        self.rule = ConsumerMember(
            parts.coordinator.group,
            parts.world.random.randbytes(16).hex(),
            rebalance_timeout_ms=parts.config.rebalance_timeout_ms or parts.config.max_poll_interval_ms,
            instance_id=parts.config.group_instance_id,
            assignor=parts.config.group_remote_assignor,
            client_id=parts.config.client_id or "",
        )
        self.member_id = self.rule.member_id
        self._due = Flag()
        self._assigned = Flag()
        self._names: dict[str, str] = {}
        """Topic id to name, of what is owned."""
        self._wish()

    @property
    def _pattern(self) -> str | None:
        """The subscribed pattern as text; None: topics are subscribed to by name."""
        return None if self._subscription.pattern is None else self._subscription.pattern.pattern

    def membership(self) -> Membership | None:
        """The membership that commits name now; None: the group goes on without this member."""
        if self.rule.is_outside:
            return None
        return Membership(self.rule.member_id, self.rule.epoch, self._config.group_instance_id, self.rule.life)

    def rejoin(self, why: str) -> None:
        """The subscription has changed: the next heartbeat says so."""
        self._world.events("group_rejoin", group=self._coordinator.group, member=self.rule.member_id, why=why)
        self._wish()
        self._due.set()

    def _on_metadata(self, _update: Update) -> None:
        if self.rule.to_take:
            # The name of a topic may be known now.
            self._assigned.set()

    def _wish(self) -> None:
        pattern = self._pattern
        self.rule.wish(
            Wishes(topics=() if pattern is not None else tuple(sorted(self._subscription.topics)), regex=pattern)
        )

    def _work(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        return [("group-heartbeat", self._beat()), ("group-reconcile", self._keep_reconciled())]

    # ---------------------------------------------------------------------------------------------- heartbeats

    async def _beat(self) -> None:
        while self.failed is None:
            if self._awaits_poll:
                await self._gate.hold()
                self._awaits_poll = False
                self._gate.release()
                self._tell()
            if not self.rule.is_outside and self._polls_late:
                await self._leave_late()
                continue
            await self._beat_once()
            if not self.rule.is_due:
                self._due.clear()
                interval_s = (self.rule.interval_ms or FIRST_INTERVAL_MS) / 1000
                await self._due.wait(self._world.clock.now() + interval_s)
        await self._leave_for_good()

    def _fail(self, error: BaseException | None) -> None:
        super()._fail(error)
        self._due.set()

    async def _leave_for_good(self) -> None:
        """It failed: the others shall not wait until its session ends. A static member stays until then."""
        leaving, may_be_known = self.rule.leaving(), self.rule.may_be_known
        await self._thrown_out("it failed")
        if may_be_known and self._config.group_instance_id is None:
            await self._send_goodbye(leaving)

    async def _beat_once(self) -> None:
        request = self.rule.request()
        deadline = self._world.clock.now() + self._config.session_timeout_ms / 1000
        try:
            # What an attempt without a response has changed is in the response to a heartbeat that says everything.
            response: ConsumerGroupHeartbeatResponse = await self._coordinator.ask(
                request,
                deadline=deadline,
                patience_ms=max(self.rule.interval_ms or 0, PATIENCE_MS),
                again=self.rule.request,
            )
        except RequestTimedOut as late:
            # Whether the session has ended only the coordinator knows; it is asked again.
            self.rule.unanswered()
            self._world.events("heartbeat_unanswered", group=self._coordinator.group, why=late.message)
            return
        error = error_in(response)
        if error is None:
            self.rule.answered(response)
            if self.rule.to_revoke or self.rule.to_take:
                self._assigned.set()
        elif self.rule.is_fencing(error):
            await self._thrown_out(error.name, error=error)
        else:
            self._fail(error)

    async def _leave_late(self) -> None:
        """First out, then goodbye: should the application ask meanwhile, it joins again behind that."""
        leaving = self.rule.leaving()
        await self._thrown_out("it did not poll in time", awaits_poll=True)
        await self._send_goodbye(leaving)

    async def _thrown_out(self, why: str, *, awaits_poll: bool = False, error: ProtocolError | None = None) -> None:
        lost = self._lose_all(why, awaits_poll=awaits_poll)
        self.rule.lose(error)
        self._tell()
        await self._call("on_partitions_lost", lost)

    async def _say_goodbye(self) -> None:
        try:
            if self.rule.may_be_known:
                await self._send_goodbye(self.rule.leaving())
        finally:
            self.rule.lose()
            self.owned = ()

    # ---------------------------------------------------------------------------------------------- partitions

    async def _keep_reconciled(self) -> None:
        while self.failed is None:
            await self._assigned.wait()
            self._assigned.clear()
            try:
                await self._reconcile()
            except (RequestTimedOut, NetworkException) as error:
                self._world.events("group_join_again", group=self._coordinator.group, why=error.message)
                self._look_again()
            finally:
                self._gate.release()
                self._tell()
                self._due.set()

    def _look_again(self) -> None:
        asyncio.get_running_loop().call_later(UNKNOWN_TOPIC_PAUSE_S, self._assigned.set)

    async def _reconcile(self) -> None:
        """Give up what is another's by now, then take what is new."""
        life = self.rule.life
        if self.rule.to_revoke:
            await self._gate.hold()
            gone = self.rule.to_revoke
            if self.rule.life != life:
                return
            await self._revoke(self._named(gone), life)
            if self.rule.life != life:
                return  # thrown out meanwhile, which has dropped all
            self.rule.revoked(gone)
            self._due.set()
        new = self.rule.to_take
        if not new:
            return
        known = await self._resolve(new)
        added = self._named(known)
        committed = await self.offsets.committed(added)
        known &= self.rule.to_take
        if self.rule.life != life or not known:
            return  # what it was given is another's
        added = self._named(known)
        # Nothing is handed out before the listener has heard of it.
        self._gate.holding = True
        self.owned = (*self.owned, *added)
        self._positions.assign(self.owned)
        for partition in added:
            if partition in committed:
                found = committed[partition]
                self._positions.begin_at(partition, found.offset, found.leader_epoch)
        self._follow({each.topic for each in self.owned})
        await self._call("on_partitions_assigned", added)
        if self.rule.life == life:
            self.rule.taken(known)
        if self.rule.to_take:
            self._look_again()

    async def _revoke(self, gone: Partitions, life: int) -> None:
        """Commit, tell the listener, and stop reading; the coordinator hears of it when this is over."""
        if self._config.enable_auto_commit:
            await self.offsets.commit_processed()
        if self.rule.life != life:
            return
        await self._call("on_partitions_revoked", gone)
        if self.rule.life == life:
            self._drop(gone)

    def _named(self, partitions: Iterable[TopicIdPartition]) -> Partitions:
        return tuple(sorted(TopicPartition(self._names[each.topic_id], each.partition) for each in partitions))

    async def _resolve(self, partitions: Owned) -> Owned:
        """Learn the topics' names; return the partitions whose topic is known. The others may be new, or gone."""
        missing = {each.topic_id for each in partitions} - self._names.keys()
        if missing:
            self._learn()
            if {each.topic_id for each in partitions} - self._names.keys():
                await self._metadata.ask_once(None if self._pattern is not None else tuple(self._subscription.topics))
                self._learn()
        return frozenset(each for each in partitions if each.topic_id in self._names)

    def _learn(self) -> None:
        for name, topic in self._metadata.view.topics.items():
            if topic.topic_id is not None:
                self._names[topic.topic_id] = name
