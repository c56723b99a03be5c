"""What members of both group protocols share: subscription, gate of revocations, and life (S29, S31).

- :class:`Subscription`: topics, all topics of a pattern, or partitions chosen by hand. It is one of the three; anything
  else is InvalidRequest before anything has changed. Who reads which partition then is decided elsewhere.
- :class:`PollGate`: a rebalance takes partitions away while the application asks for records, and not while it works on
  some. A call of ``getone`` or ``getmany`` says that everything returned before is done with. So a rebalance waits for
  the next such call (for at most max.poll.interval.ms, else the group goes on without this member), and between the
  moment when it goes ahead and its end nothing is returned. Without faults a record is then read once, however commits
  interleave.
- :class:`BaseMember`: an application that does not ask for records for max_poll_interval_ms has its member leave. A
  member that was expelled, or left like that, joins again with the next call: until then nothing that the application
  works on can be committed. Errors that joining again cannot help end the consumer: its next call raises them.

Rules for this file: one task asks for records. What :meth:`PollGate.enter` does, it does at once: no turn of the loop
lies between the application's call and the decision to hold.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from minikafka.client.group_offsets import GroupOffsets, Membership
from minikafka.client.metadata import Metadata, Update
from minikafka.client.positions import Positions
from minikafka.client.routing import Coordinator
from minikafka.client.settings import ConsumerConfig
from minikafka.client.structs import ConsumerRebalanceListener
from minikafka.errors import InvalidRequest, ProtocolError
from minikafka.ports import World
from minikafka.tasks import in_turn, until_ended
from minikafka.types import Epoch, Offset, TopicPartition


class PollGate:
    """The application's side and the rebalance's side of one consumer."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.holding = False
        """Nothing may be handed out."""
        self.last_poll_at = now()
        self._now = now
        self._has_asked = False
        """The application has asked for records since :meth:`release`, and got none. What a member that takes
        partitions holds back says nothing of that: the application may work on records that it had before.
        """
        self._depth = 0
        self._waiting: list[asyncio.Future[None]] = []
        """What waits for the application: the rebalance, and a member that has left until its next poll."""

    @property
    def is_polling(self) -> bool:
        """Return True while the application requests records."""
        return self._depth > 0

    def enter(self) -> None:
        """The application asks: what it had is done with."""
        self._depth += 1
        self.last_poll_at = self._now()
        for waiting in self._waiting:
            if not waiting.done():
                self.holding = self._has_asked = True
                waiting.set_result(None)

    def leave(self) -> None:
        """It has its records, or none."""
        self._depth -= 1
        self.last_poll_at = self._now()

    async def hold(self) -> None:
        """Wait until the application asks, and hand out nothing from then on."""
        if self._depth == 0 and not self._has_asked:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            finally:
                self._waiting.remove(waiting)
        self.holding = self._has_asked = True

    def release(self) -> None:
        """Records may be handed out again."""
        self.holding = self._has_asked = False


class Subscription:
    """A consumer's choice at present."""

    def __init__(self) -> None:
        self.topics: dict[str, None] = {}
        """Subscribed to, in the order given; of a pattern those that match at present."""
        self.pattern: re.Pattern[str] | None = None
        self.listener: ConsumerRebalanceListener | None = None
        self._by_hand = False

    def __bool__(self) -> bool:
        """Return True if there is a subscription."""
        return bool(self.topics) or self.pattern is not None

    def choose_by_hand(self) -> None:
        """Partitions are assigned by the application from now on."""
        if self:
            raise InvalidRequest("the consumer is subscribed to topics: unsubscribe() before assign()")
        self._by_hand = True

    def choose(self, topics: Iterable[str], pattern: str | None, listener: ConsumerRebalanceListener | None) -> None:
        """These topics, or all whose whole name matches ``pattern``; instead of an earlier subscription."""
        if isinstance(topics, str):
            raise InvalidRequest(f"subscribe takes a list of topics: [{topics!r}]")
        if self._by_hand:
            raise InvalidRequest("the consumer has partitions assigned: unsubscribe() before subscribe()")
        if listener is not None and not isinstance(listener, ConsumerRebalanceListener):
            raise InvalidRequest(f"listener={listener!r}: a ConsumerRebalanceListener is needed")
        chosen = dict.fromkeys(topics)
        if bool(chosen) == (pattern is not None):
            raise InvalidRequest("subscribe needs at least one topic, or a pattern, and not both")
        try:
            self.pattern = None if pattern is None else re.compile(pattern)
        except re.error as error:
            raise InvalidRequest(f"pattern={pattern!r} is no regular expression: {error}") from error
        self.topics = chosen
        self.listener = listener

    def clear(self) -> None:
        """Nothing is chosen."""
        self.topics = {}
        self.pattern = None
        self.listener = None
        self._by_hand = False

    def match(self, pattern: re.Pattern[str], names: Sequence[str]) -> bool:
        """The cluster has these topics; True when others than before match the present pattern."""
        matching = dict.fromkeys(name for name in sorted(names) if pattern.fullmatch(name))
        if matching == self.topics or pattern is not self.pattern:
            return False
        self.topics = matching
        return True


LEAVE_WAIT_S = 2.0

Partitions = tuple[TopicPartition, ...]
Rebalancing: TypeAlias = Literal["on_partitions_revoked", "on_partitions_assigned", "on_partitions_lost"]

LEAVING: ContextVar[BaseMember | None] = ContextVar("leaving", default=None)
"""The member whose listener hears that it is over, for what that calls: the last moment for a commit."""


@dataclass(frozen=True, slots=True)
class MemberParts:
    """What a consumer lends its member."""

    config: ConsumerConfig
    world: World
    metadata: Metadata
    coordinator: Coordinator
    positions: Positions
    gate: PollGate
    subscription: Subscription
    follow: Callable[[Iterable[str]], None]
    """Called with the topics whose metadata the member needs, beside those that are subscribed to."""
    tell: Callable[[], None]
    """Called when a waiting application has news: an error, or partitions that came or went."""


class BaseMember(ABC):
    """This consumer in its group."""

    def __init__(self, parts: MemberParts) -> None:
        self.member_id = ""
        """Its id in the group; empty before a coordinator or the client has made one."""
        self.owned: Partitions = ()
        self.failed: BaseException | None = None
        self._config = parts.config
        self._world = parts.world
        self._metadata = parts.metadata
        self._coordinator = parts.coordinator
        self._positions = parts.positions
        self._gate = parts.gate
        self._subscription = parts.subscription
        self._follow = parts.follow
        self._tell = parts.tell
        self.offsets = GroupOffsets(parts.config, parts.world, parts.coordinator, parts.positions, self.membership)
        self._is_giving_up = False
        self._is_cancelled = False
        self.reached: dict[TopicPartition, tuple[Offset, Epoch]] = {}
        """Where it stood when it was cancelled: the consumer may read something else by hand since."""
        self._processed: dict[TopicPartition, tuple[Offset, Epoch]] = {}
        """What the application was done with by then."""
        self._awaits_poll = False
        """It joins when the application asks for records, not before: what that works on may be another's by now, and
        would be committed in the name of a member that has the partition again."""
        self._tasks: list[asyncio.Task[None]] = []

    @abstractmethod
    def membership(self) -> Membership | None:
        """The membership that commits name now; None: the group goes on without this member."""

    @abstractmethod
    def rejoin(self, why: str) -> None:
        """The subscription has changed: tell the group as soon as the application's work allows."""

    @abstractmethod
    def _work(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        """The tasks of a member's life, by name."""

    @abstractmethod
    async def _say_goodbye(self) -> None:
        """Leave, so that the others need not wait for the session to end, and be outside."""

    @abstractmethod
    def _on_metadata(self, update: Update) -> None:
        """Metadata has changed."""

    # ---------------------------------------------------------------------------------------------- its life

    def start(self) -> None:
        """Join; returns at once."""
        self._metadata.listeners.append(self._on_metadata)
        loop = asyncio.get_running_loop()
        for name, work in self._work():
            task = loop.create_task(work, name=name)
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    def cancel(self) -> None:
        """Begin nothing any more, and hold nothing up; :meth:`stop` does the rest."""
        if self._is_cancelled:
            return
        self._is_cancelled = True
        for task in self._tasks:
            task.cancel()
        if self._on_metadata in self._metadata.listeners:
            self._metadata.listeners.remove(self._on_metadata)
        self._subscription = copy(self._subscription)  # the next one has a listener of its own
        self.reached = self._positions.consumed()
        self._processed = self._positions.processed()
        self._gate.release()

    async def stop(self, *, is_done: bool = True) -> None:
        """Commit, give up everything and leave, so that the others need not wait for the session to end.

        ``is_done``: the application is done with what it was handed last. A static member does not leave: it is
        expected back (KIP-345).
        """
        self.cancel()
        await until_ended(self._tasks)
        if self.membership() is not None and self._config.enable_auto_commit:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_WAIT_S):
                    await self.offsets.commit_reached(self.reached if is_done else self._processed)
        await self.offsets.stop()
        await in_turn(self._give_up_all, self._say_goodbye)

    def gives_up(self, positions: Positions) -> bool:
        """Return True if it is this consumer's member, and its listener is called now that it has ended."""
        return self._is_giving_up and positions is self._positions

    async def _give_up_all(self) -> None:
        other = LEAVING.get()
        LEAVING.set(self)
        self._is_giving_up = True
        try:
            if self.owned:
                await self._call("on_partitions_revoked", self.owned)
        finally:
            self._is_giving_up = False
            LEAVING.set(other)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            self._fail(task.exception())

    def _fail(self, error: BaseException | None) -> None:
        if self.failed is None:
            self.failed = error
            self._world.events("group_member_failed", group=self._coordinator.group, why=repr(error))
            self._gate.release()
            self._tell()

    # ---------------------------------------------------------------------------------------------- partitions

    async def _send_goodbye(self, leaving: object) -> None:
        try:
            await self._coordinator.ask(leaving, deadline=self._world.clock.now() + LEAVE_WAIT_S)
        except ProtocolError as error:
            # Its session will end by itself.
            self._world.events("group_leave_unanswered", group=self._coordinator.group, why=error.message)

    async def _give_up(self, partitions: Partitions) -> None:
        if self._config.enable_auto_commit:
            await self.offsets.commit_processed()
        await self._call("on_partitions_revoked", partitions)
        self._drop(partitions)

    def _drop(self, partitions: Partitions) -> None:
        self.owned = tuple(each for each in self.owned if each not in partitions)
        self._positions.assign(self.owned)
        self.offsets.forget(partitions)

    def _lose_all(self, why: str, *, awaits_poll: bool) -> Partitions:
        """The group has gone on without this member: what it had may be another's already. Return what that was."""
        lost = self.owned
        self._awaits_poll = self._awaits_poll or awaits_poll or bool(lost)
        self._world.events("group_member_thrown_out", group=self._coordinator.group, member=self.member_id, why=why)
        self._drop(lost)
        return lost

    async def _call(self, event: Rebalancing, partitions: Partitions, *, always: bool = False) -> None:
        """Call the application's listener; what it raises ends the consumer."""
        listener = self._subscription.listener
        if listener is not None and (partitions or always):
            answer = getattr(listener, event)(list(partitions))
            if inspect.isawaitable(answer):
                await answer

    @property
    def _polls_late(self) -> bool:
        """Return True if the application has not requested records for max_poll_interval_ms."""
        silent_s = self._world.clock.now() - self._gate.last_poll_at
        return not self._gate.is_polling and silent_s > self._config.max_poll_interval_ms / 1000
