"""The consumer as applications see it (S29, S34 to S36), with aiokafka's method and parameter names.

``assign`` gives it partitions. ``subscribe`` gives it topics: with a ``group_id`` it shares their partitions with the
group's other members, without one it reads them all, also those that appear later. Records come in offset order per
partition; partitions take turns. With a ``group_id`` offsets are committed, by itself or by :meth:`Consumer.commit`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Self

from minikafka.client.base_member import LEAVING, BaseMember, MemberParts, PollGate, Subscription
from minikafka.client.caller import Caller, Client
from minikafka.client.consumer_member import ConsumerProtocolMember
from minikafka.client.fetcher import Fetcher
from minikafka.client.group_member import Member
from minikafka.client.group_offsets import GroupOffsets, Membership, Spot
from minikafka.client.metadata import ABSENT_S, AbsentPartitions, ClusterView, Metadata, Update
from minikafka.client.positions import EARLIEST, LATEST, NEVER, PartitionState, Positions
from minikafka.client.routing import Coordinator, Leaders, as_dict
from minikafka.client.settings import ConsumerConfig
from minikafka.client.structs import (
    CommitFailed,
    ConsumerRebalanceListener,
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    WakeUp,
)
from minikafka.errors import InvalidGroupId, InvalidRequest, ProtocolError, RequestTimedOut
from minikafka.ports import World
from minikafka.tasks import Step, Tasks, in_turn
from minikafka.types import Offset, TopicPartition
from minikafka.wire import messages as m


class Consumer(Client):
    """Reads records. Use ``async with``, or ``start`` and ``stop``; then ``async for``, ``getone`` or ``getmany``.

    This is the form with the world given; ``minikafka.Consumer(bootstrap_servers=...)`` makes its own.
    """

    _kind = "a consumer"

    def __init__(
        self, config: ConsumerConfig, world: World | AbstractAsyncContextManager[World], topics: Iterable[str] = ()
    ) -> None:
        super().__init__(world)
        self.config = config
        self._metadata: Metadata | None = None
        self._fetcher: Fetcher | None = None
        self._member: BaseMember | None = None
        self._offsets: GroupOffsets | None = None
        self._coordinator: Coordinator | None = None
        self._gate: PollGate | None = None
        self._subscription = Subscription()
        self._tasks = Tasks(self._task_failed)
        self._group_topics: tuple[str, ...] = ()
        """What the leader of a group must know of besides its own topics."""
        self._broken: BaseException | None = None
        self._woken = False
        self._stopped = False
        self._opened = 0
        self._positions = Positions(
            reset_policy=config.auto_offset_reset,
            check_crcs=config.check_crcs,
            key_of=config.key_deserializer,
            value_of=config.value_deserializer,
            buffer_size_low=config.max_partition_fetch_bytes // 2,
        )
        if topics := list(topics):
            self.subscribe(topics)

    # -------------------------------------------------------------------------------------------------- lifecycle

    async def start(self) -> None:
        """Connect to the cluster. NetworkException when no bootstrap server answers in default_api_timeout_ms."""
        world = await self._enter_world()
        try:
            self._metadata = metadata = Metadata(self.config, world, Caller(world))
            metadata.listeners.append(self._on_metadata)
            metadata.follow_only(self._topics_wanted())
            await metadata.start(self._deadline())
            self._fetcher = Fetcher(self.config, world, metadata, self._positions)
            self._fetcher.start()
            self._gate = PollGate(world.clock.now)
            if self.config.group_id is not None:
                # With a group offsets can be committed, whether this consumer becomes a member or not.
                self._coordinator = Coordinator(self.config.group_id, self.config, world, metadata)
                self._offsets = GroupOffsets(self.config, world, self._coordinator, self._positions, Membership)
            if self._subscription.pattern is not None and not self._broker_matches:
                await self._match_topics(self._subscription.pattern)
            if self._subscription:
                self._join()
            elif self._offsets is not None:
                chosen = list(self._positions.states)
                if not await self._look_up_committed(chosen):
                    self._tasks.spawn(self._begin_where_committed(chosen), "consumer-committed")
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End what is under way and close; who waits for a record gets an error, ``async for`` ends.

        With ``enable_auto_commit`` all positions are committed: everything that was handed out counts as done with.
        """
        await self._stop()

    async def _stop(self, *, is_done: bool = True) -> None:
        """``is_done``: the application is done with what it was handed last."""
        if self._stopped:
            return
        self._stopped = True
        steps: list[Step] = [lambda: self._tasks.end(but="consumer-leave")]
        if self._member is not None:
            member = self._member
            steps.append(lambda: member.stop(is_done=is_done))
        elif self._offsets is not None:
            if self.config.enable_auto_commit:
                steps.append(self._offsets.commit_positions if is_done else self._offsets.commit_processed)
            steps.append(self._offsets.stop)
        if self._fetcher is not None:
            steps.append(self._fetcher.stop)
        if self._metadata is not None:
            steps.append(self._metadata.stop)
        await in_turn(*steps, self._resources.aclose)

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # What the application was working on when it failed is read again: it was not committed by itself.
        await self._stop(is_done=error is None)

    # ------------------------------------------------------------------------------------------------- assignment

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; those assigned before keep their positions.

        With a ``group_id`` the others begin where the group has committed; nobody else is kept from reading them.
        """
        self._subscription.choose_by_hand()
        wanted = as_dict(partitions)
        new = [each for each in wanted if each not in self._positions.states]
        self._positions.assign(wanted, held=self.config.group_id is not None)
        self._follow()
        if self._offsets is not None:
            self._tasks.spawn(self._begin_where_committed(new), "consumer-committed")

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read now."""
        return frozenset(self._positions.states)

    def subscribe(
        self,
        topics: Iterable[str] = (),
        pattern: str | None = None,
        listener: ConsumerRebalanceListener | None = None,
    ) -> None:
        """Read these topics, or all whose whole name matches ``pattern``; instead of an earlier subscription.

        With a ``group_id`` the group shares their partitions, and ``listener`` is called with what comes and goes
        (S31). With ``group_protocol="consumer"`` the coordinator matches ``pattern``, which must be valid in RE2's
        syntax, too.
        """
        self._subscription.choose(topics, pattern, listener)
        self._subscription_changed()
        if self._fetcher is not None:
            self._join()

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to; of a pattern those that match at present.

        With ``group_protocol="consumer"`` the coordinator matches patterns: then the topics of which this member has
        partitions.
        """
        if self._subscription.pattern is not None and self._broker_matches:
            return frozenset(each.topic for each in self._positions.states)
        return frozenset(self._subscription.topics)

    def unsubscribe(self) -> None:
        """Read nothing, however it was chosen; a member leaves its group."""
        if self._member is not None:
            member, self._member = self._member, None
            member.cancel()
            self._tasks.spawn(member.stop(), "consumer-leave")
            if self._coordinator is not None:
                # What is assigned by hand from now on is committed for no member.
                self._offsets = GroupOffsets(
                    self.config, self._running_world(), self._coordinator, self._positions, Membership
                )
        self._subscription.clear()
        self._positions.assign(())
        self._follow_group(())

    def _topics_wanted(self) -> list[str]:
        own = list(self._subscription.topics) or sorted({partition.topic for partition in self._positions.states})
        return list(dict.fromkeys((*own, *self._group_topics)))

    def _follow(self) -> None:
        if self._metadata is not None:
            self._metadata.follow_only(self._topics_wanted())
        self._wake()

    def _subscription_changed(self) -> None:
        if self.config.group_id is None:
            self._assign_subscribed()
        elif self._member is not None:
            self._member.rejoin("the subscription has changed")
        self._follow()

    def _on_metadata(self, _update: Update) -> None:
        if self._subscription and self.config.group_id is None:
            self._assign_subscribed()

    def _assign_subscribed(self) -> None:
        """All partitions of the topics. Those of a topic that is not known keep their positions: without them a reset
        would pass over records of a topic that is created again.
        """
        if self._metadata is None:
            return
        view = self._metadata.view
        assigned: list[TopicPartition] = []
        for topic in self._subscription.topics:
            count = view.partition_count(topic)
            if count is not None:
                assigned += [TopicPartition(topic, index) for index in range(count)]
                continue
            assigned += [each for each in self._positions.states if each.topic == topic]
            if _refused(view, topic) is None:
                self._metadata.refresh_soon()  # it may be created at any time
        self._positions.assign(assigned)

    # ------------------------------------------------------------------------------------------------------- group

    def _join(self) -> None:
        """Become a member, if there is a group; find topics, if there is a pattern."""
        is_matched_here = self._subscription.pattern is not None and not self._broker_matches
        if is_matched_here and not self._tasks.runs("topic-pattern"):
            self._tasks.spawn(self._keep_matching(), "topic-pattern")
        if self._coordinator is None or self._member is not None:
            return
        if self._gate is None:
            raise InvalidRequest("the consumer is not started")
        parts = MemberParts(
            self.config,
            self._running_world(),
            self._running_metadata(),
            self._coordinator,
            self._positions,
            self._gate,
            self._subscription,
            follow=self._follow_group,
            tell=self._tell,
        )
        self._member = ConsumerProtocolMember(parts) if self.config.group_protocol == "consumer" else Member(parts)
        self._offsets = self._member.offsets
        self._member.start()

    @property
    def _broker_matches(self) -> bool:
        """Return True if the coordinator matches a pattern against the topics' names."""
        return self.config.group_id is not None and self.config.group_protocol == "consumer"

    def _follow_group(self, topics: Iterable[str]) -> None:
        self._group_topics = tuple(topics)
        self._follow()

    def _tell(self) -> None:
        self._wake()
        if self._fetcher is not None:
            self._fetcher.tell()

    async def _keep_matching(self) -> None:
        while self._subscription.pattern is not None:
            await self._match_topics(self._subscription.pattern)
            await asyncio.sleep(self.config.metadata_max_age_ms / 1000)

    async def _match_topics(self, pattern: re.Pattern[str]) -> None:
        """Internal topics match no pattern, as in Kafka."""
        try:
            response = await self._running_metadata().ask_once(None)
        except ProtocolError as error:
            self._running_world().events("topics_not_listed", why=error.message)
            return
        names = [each.name for each in response.topics if not each.error_code and not each.is_internal]
        if self._subscription.match(pattern, names):
            self._subscription_changed()

    async def _begin_where_committed(self, partitions: list[TopicPartition]) -> None:
        """Partitions assigned by hand begin where the group has committed, else by auto_offset_reset (S35).

        It is looked up until the coordinator answers; a request for records meanwhile fails with the reason.
        """
        while True:
            if await self._look_up_committed(partitions):
                return
            await asyncio.sleep(self.config.retry_backoff_max_ms / 1000)

    async def _look_up_committed(self, partitions: list[TopicPartition]) -> bool:
        """One attempt, of default_api_timeout_ms at most; False when it failed."""
        held = [each for each in partitions if self._positions.is_held(each)]
        try:
            committed = await self._in_group().committed(held)
        except ProtocolError as error:
            self._positions.refuse(held, error)
            self._tell()
            return False
        for partition in held:
            found = committed.get(partition)
            if not self._positions.is_held(partition):
                continue  # the application went elsewhere meanwhile
            if found is not None:
                self._positions.begin_at(partition, found.offset, found.leader_epoch)
            else:
                self._positions.release(partition)
        self._tell()
        return True

    async def commit(
        self, offsets: Mapping[TopicPartition, Offset | tuple[Offset, str] | OffsetAndMetadata] | None = None
    ) -> None:
        """Commit ``offsets`` (the next ones to read), or without them the positions of all partitions (S34).

        Returns when the group's coordinator has them committed. Raises CommitFailed when the group has gone on without
        this member, RequestTimedOut (outcome *unknown*: it may be committed) after default_api_timeout_ms. A listener
        that receives the end (``stop``, ``unsubscribe``) commits for the member that goes, where that stood.
        """
        leaving = LEAVING.get()
        if leaving is not None and leaving.gives_up(self._positions):
            # The consumer may be stopped meanwhile, or read something else already.
            group_offsets, reached = leaving.offsets, leaving.reached
        else:
            self._running()
            group_offsets, reached = self._in_group(), self._positions.consumed()
        if offsets is None:
            spots = {name: Spot(*spot) for name, spot in reached.items()}
        else:
            for partition, value in offsets.items():
                if (value if isinstance(value, int) else value[0]) < 0:
                    raise InvalidRequest(f"{partition}: offset {value} is negative")
            spots = group_offsets.given(offsets)
        await group_offsets.commit(spots)

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, Offset | None]:
        """Go where the group has committed in these (default: all) partitions; the others keep their positions.

        Partitions for which nothing is committed begin again by ``auto_offset_reset``, as after a start; their offset
        in the result is None. (In aiokafka they stay where they are: after the aborted first transaction of a transform
        its input would be skipped.)
        """
        self._running()
        chosen = list(as_dict(partitions) or self._positions.states)
        for partition in chosen:
            self._state(partition)
        found = await self._in_group().committed(chosen)
        for partition in chosen:
            if partition not in self._positions.states:
                continue
            spot = found.get(partition)
            if spot is None:
                self._positions.release(partition)
            else:
                self._positions.begin_at(partition, spot.offset, spot.leader_epoch)
        self._tell()
        return {partition: found[partition].offset if partition in found else None for partition in chosen}

    def group_metadata(self) -> GroupMetadata:
        """For ``Producer.send_offsets_to_transaction``: this member, in its present generation of the group.

        Raises CommitFailed while it is not a member, for its partitions may be another's.
        """
        group = self.config.group_id
        if group is None:
            raise InvalidRequest("this consumer has no group: give it a group_id")
        if self._member is None:
            return GroupMetadata(group)
        membership = self._member.membership()
        if membership is None:
            raise CommitFailed(f"this consumer is not a member of group {group} at present: abort the transaction")
        return GroupMetadata(group, membership.generation, membership.member_id, membership.instance_id)

    async def committed(self, partition: TopicPartition) -> Offset | None:
        """What the group has committed for a partition, by any member; None: nothing."""
        self._running()
        found = await self._in_group().committed([TopicPartition(*partition)])
        return found[TopicPartition(*partition)].offset if found else None

    def _in_group(self) -> GroupOffsets:
        if self._offsets is None:
            raise InvalidGroupId("the consumer has no group: give it a group_id")
        return self._offsets

    def wakeup(self) -> None:
        """Have the ``getone`` or ``getmany`` that waits, or else the next one, raise WakeUp. Other calls go on."""
        self._woken = True
        self._tell()

    # -------------------------------------------------------------------------------------------------- positions

    def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """Go on at ``offset``; whatever was fetched ahead is forgotten."""
        if offset < 0:
            raise InvalidRequest(f"{partition}: offset {offset} is negative")
        self._positions.seek(self._state(partition).partition, offset)
        self._wake()

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go to the log start of these (default: all) partitions; returns when the positions are known."""
        await self._seek_to(EARLIEST, partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go behind the last committed record of these (default: all) partitions."""
        await self._seek_to(LATEST, partitions)

    async def _seek_to(self, policy: str, partitions: Iterable[TopicPartition]) -> None:
        self._running()
        chosen = list(as_dict(partitions) or self._positions.states)
        for partition in chosen:
            self._positions.request_reset(self._state(partition).partition, policy)
        self._wake()
        for partition in chosen:
            await self.position(partition)

    async def position(self, partition: TopicPartition) -> Offset:
        """Offset of the next record to be handed out.

        Waits until it is known; NoOffsetForPartition with auto_offset_reset none, UnknownTopicOrPartition if the topic
        has fewer partitions, RequestTimedOut after default_api_timeout_ms.
        """
        deadline = self._deadline()
        clock = self._running_world().clock
        absent = AbsentPartitions(self._running_metadata().view, clock)
        while True:
            fetcher = self._running()
            state = self._state(partition)
            if state.position is not None:
                return state.position
            if state.error is not None:
                raise type(state.error)(state.error.message, outcome=state.error.outcome, **state.error.facts)
            if (missing := absent.error(state.partition)) is not None:
                raise missing
            self._check_topics([state.partition])
            look_at = min(deadline, clock.now() + ABSENT_S / 4) if absent else deadline
            if not await fetcher.changed(look_at) and look_at >= deadline:
                raise RequestTimedOut(f"{partition}: the position could not be looked up in time")

    def highwater(self, partition: TopicPartition) -> Offset | None:
        """The partition's high watermark as of the last fetch; None before the first."""
        return self._state(partition).high_watermark

    def last_stable_offset(self, partition: TopicPartition) -> Offset | None:
        """The last stable offset as of the last fetch: the high watermark, while there are no transactions (S3)."""
        return self._state(partition).last_stable_offset

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing of these until :meth:`resume`; positions and buffers stay."""
        for partition in partitions:
            self._positions.pause(self._state(partition).partition, paused=True)

    def resume(self, *partitions: TopicPartition) -> None:
        """Undo :meth:`pause`."""
        for partition in partitions:
            self._positions.pause(self._state(partition).partition, paused=False)
        self._tell()

    def paused(self) -> frozenset[TopicPartition]:
        """The paused partitions."""
        return frozenset(partition for partition, state in self._positions.states.items() if state.paused)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """The first offset of each partition's log; positions do not move."""
        answers = await self._list_offsets(dict.fromkeys(as_dict(partitions), m.EARLIEST))
        return {partition: answer.offset for partition, answer in answers.items()}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        """The offset behind each partition's last committed record; positions do not move."""
        answers = await self._list_offsets(dict.fromkeys(as_dict(partitions), m.LATEST))
        return {partition: answer.offset for partition, answer in answers.items()}

    async def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (milliseconds since 1970); None when there is none."""
        for partition, timestamp in timestamps.items():
            if timestamp < 0:
                raise InvalidRequest(f"{partition}: the time {timestamp} is negative")
        answers = await self._list_offsets({TopicPartition(*each): when for each, when in timestamps.items()})
        return {
            partition: OffsetAndTimestamp(each.offset, each.timestamp, each.leader_epoch) if each.offset >= 0 else None
            for partition, each in answers.items()
        }

    async def _list_offsets(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, m.ListedOffset]:
        self._running()
        leaders = Leaders(self.config, self._running_world(), self._running_metadata())
        isolation = m.READ_COMMITTED if self.config.isolation_level == "read_committed" else m.READ_UNCOMMITTED
        return await leaders.list_offsets(wanted, deadline=self._deadline(), isolation_level=isolation)

    # ------------------------------------------------------------------------------------------------------ topics

    async def topics(self) -> frozenset[str]:
        """All topics of the cluster that are not internal."""
        self._running()
        response = await self._running_metadata().ask_once(None)
        return frozenset(topic.name for topic in response.topics if not topic.error_code and not topic.is_internal)

    def partitions_for_topic(self, topic: str) -> frozenset[int] | None:
        """The partitions of a topic that is read; None when metadata does not know it."""
        count = self._metadata.view.partition_count(topic) if self._metadata is not None else None
        return frozenset(range(count)) if count is not None else None

    # ----------------------------------------------------------------------------------------------------- records

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord:
        """The next record of these (default: all) partitions; waits as long as it takes.

        Raises what stands in its place: CorruptMessage, OffsetOutOfRange, LogTruncation, NoOffsetForPartition;
        TopicAuthorizationFailed for a topic that this client may not read, InvalidTopic for a name that none may have;
        InvalidRequest while nothing is subscribed or assigned.
        """
        self._polling()
        if not self._subscription and not self._positions.states:
            raise InvalidRequest("the consumer has nothing to read: call subscribe() or assign() first")
        only = as_dict(partitions) if partitions else None
        gate = self._ask_for_records()
        try:
            while True:
                fetcher = self._polling()
                if gate is None or not gate.holding:
                    try:
                        record = self._positions.take_one(only)
                    finally:
                        self._fetch_on(fetcher)
                    if record is not None:
                        return record
                    self._check_topics(only)
                await fetcher.changed(NEVER)
        finally:
            if gate is not None:
                gate.leave()

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Up to ``max_records`` (default: max_poll_records, S36) records by partition, as soon as there are some.

        Empty after ``timeout_ms``. Raises as :meth:`getone` when an error is all there is.
        """
        if max_records is not None and max_records < 1:
            raise InvalidRequest(f"max_records={max_records}: at least 1 is needed")
        only = as_dict(partitions) if partitions else None
        limit = max_records if max_records is not None else self.config.max_poll_records
        deadline = self._running_world().clock.now() + timeout_ms / 1000
        gate = self._ask_for_records()
        try:
            while True:
                fetcher = self._polling()
                taken = self._take(gate, fetcher, limit, only)
                if taken:
                    return taken
                if gate is None or not gate.holding:
                    self._check_topics(only)
                if timeout_ms <= 0:
                    # Give answers that have arrived a turn of the loop.
                    await asyncio.sleep(0)
                    return self._take(gate, fetcher, limit, only)
                if not await fetcher.changed(deadline):
                    return {}
        finally:
            if gate is not None:
                gate.leave()

    def _check_topics(self, only: Iterable[TopicPartition] | None) -> None:
        """Raise why no records can come of a topic (of these partitions; None: of all that is read): this client may
        not describe it, or no topic may have its name.
        """
        metadata = self._running_metadata()
        if not metadata.view.errors:
            return
        read = self._positions.states if only is None else only
        topics = self._subscription.topics if only is None else ()
        for topic in topics or dict.fromkeys(each.topic for each in read):
            if (error := _refused(metadata.view, topic)) is not None:
                # The next call waits for another response: it may be allowed by then, and no caller spins.
                del metadata.view.errors[topic]
                metadata.refresh_soon()
                raise type(error)(f"{topic}: {error.message}")

    def _ask_for_records(self) -> PollGate | None:
        """The application asks: what it had is done with, and a rebalance that waits for this may go ahead."""
        self._polling()
        if self._offsets is None or self._gate is None:
            return None
        self._positions.asked()
        self._offsets.due()
        self._gate.enter()
        return self._gate

    def _take(
        self, gate: PollGate | None, fetcher: Fetcher, limit: int | None, only: Mapping[TopicPartition, None] | None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        if gate is not None and gate.holding:
            return {}
        try:
            return self._positions.take(limit, only)
        finally:
            self._fetch_on(fetcher)

    def __aiter__(self) -> Self:
        self._running()
        return self

    async def __anext__(self) -> ConsumerRecord:
        try:
            return await self.getone()
        except InvalidRequest:
            if self._stopped:
                raise StopAsyncIteration from None
            raise

    # ------------------------------------------------------------------------------------------------------ helpers

    def _task_failed(self, _task: str, error: BaseException) -> None:
        self._broken = error
        self._tell()

    def _fetch_on(self, fetcher: Fetcher) -> None:
        if self._positions.opened != self._opened:
            self._opened = self._positions.opened
            fetcher.wake()

    def _wake(self) -> None:
        if self._fetcher is not None:
            self._fetcher.wake()

    def _state(self, partition: TopicPartition) -> PartitionState:
        state = self._positions.states.get(TopicPartition(*partition))
        if state is None:
            raise InvalidRequest(f"{TopicPartition(*partition)} is not assigned to this consumer")
        return state

    def _deadline(self) -> float:
        return self._running_world().clock.now() + self.config.default_api_timeout_ms / 1000

    def _running(self) -> Fetcher:
        if self._stopped:
            raise InvalidRequest("the consumer was stopped")
        if self._fetcher is None:
            raise InvalidRequest("the consumer is not started")
        broken = self._fetcher.broken or (self._member.failed if self._member is not None else None) or self._broken
        if broken is not None:
            raise broken
        return self._fetcher

    def _polling(self) -> Fetcher:
        """As :meth:`_running`, for a call that :meth:`wakeup` ends."""
        fetcher = self._running()
        if self._woken:
            self._woken = False
            raise WakeUp("the consumer was woken up")
        return fetcher

    def _running_world(self) -> World:
        if self._world is None:
            raise InvalidRequest("the consumer is not started")
        return self._world

    def _running_metadata(self) -> Metadata:
        if self._metadata is None:
            raise InvalidRequest("the consumer is not started")
        return self._metadata

    def __repr__(self) -> str:
        return f"<consumer {' '.join(map(repr, self._positions.states.values()))}>"


def _refused(view: ClusterView, topic: str) -> ProtocolError | None:
    """Why brokers say nothing of a topic, if that will not change by itself."""
    error = view.errors.get(topic)
    return None if error is None or error.retriable else error
