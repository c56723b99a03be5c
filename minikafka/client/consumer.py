"""The consumer as applications see it, without groups (S35, S36), with aiokafka's method and parameter names.

``assign`` gives it partitions; ``subscribe`` gives it all partitions of the topics, also those that appear later, for
without a group nobody shares them. Records come in offset order per partition; partitions take turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Self

from minikafka.client.caller import Caller
from minikafka.client.cluster_view import Leader, Update
from minikafka.client.fetcher import Fetcher
from minikafka.client.leaders import Leaders, as_dict
from minikafka.client.metadata import Metadata
from minikafka.client.positions import EARLIEST, LATEST, NEVER, PartitionState, Positions
from minikafka.client.settings import ConsumerConfig
from minikafka.client.structs import ConsumerRecord, OffsetAndTimestamp
from minikafka.errors import InvalidRequest, RequestTimedOut
from minikafka.invariant import invariant
from minikafka.ports import World
from minikafka.types import Offset, TopicPartition
from minikafka.wire import messages as m


class Consumer:
    """Reads records. Use ``async with``, or ``start`` and ``stop``; then ``async for``, ``getone`` or ``getmany``.

    This is the form with the world given; ``minikafka.Consumer(bootstrap_servers=...)`` makes its own.
    """

    def __init__(
        self, config: ConsumerConfig, world: World | AbstractAsyncContextManager[World], topics: Iterable[str] = ()
    ) -> None:
        self.config = config
        self._world_source = world
        self._resources = AsyncExitStack()
        self._world: World | None = None
        self._metadata: Metadata | None = None
        self._fetcher: Fetcher | None = None
        self._leaders: Leaders | None = None
        self._stopped = False
        self._subscribed: dict[str, None] = {}
        self._assigned_by_hand = False
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
        invariant(self._world is None, "a consumer starts once")
        source = self._world_source
        self._world = world = source if isinstance(source, World) else await self._resources.enter_async_context(source)
        try:
            self._metadata = metadata = Metadata(self.config, world, Caller(world))
            metadata.listeners.append(self._on_metadata)
            metadata.follow_only(self._topics_wanted())
            await metadata.start(self._deadline())
            self._leaders = Leaders(self.config, world, metadata)
            self._fetcher = Fetcher(self.config, world, metadata, self._positions)
            self._fetcher.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End what is under way and close; who waits for a record gets an error, ``async for`` ends."""
        self._stopped = True
        if self._fetcher is not None:
            await self._fetcher.stop()
        if self._metadata is not None:
            await self._metadata.stop()
        await self._resources.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    # ------------------------------------------------------------------------------------------------- assignment

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; those assigned before keep their positions."""
        if self._subscribed:
            raise InvalidRequest("the consumer is subscribed to topics: unsubscribe() before assign()")
        self._assigned_by_hand = True
        self._positions.assign(as_dict(partitions))
        self._follow()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read now."""
        return frozenset(self._positions.states)

    def subscribe(self, topics: Iterable[str] = ()) -> None:
        """Read all partitions of these topics, present and future; instead of an earlier subscription."""
        if isinstance(topics, str):
            raise InvalidRequest(f"subscribe takes a list of topics: [{topics!r}]")
        if self._assigned_by_hand:
            raise InvalidRequest("the consumer has partitions assigned: unsubscribe() before subscribe()")
        self._subscribed = dict.fromkeys(topics)
        if not self._subscribed:
            raise InvalidRequest("subscribe needs at least one topic")
        self._assign_subscribed()
        self._follow()

    def subscription(self) -> frozenset[str]:
        """The topics subscribed to."""
        return frozenset(self._subscribed)

    def unsubscribe(self) -> None:
        """Read nothing, however it was chosen."""
        self._subscribed = {}
        self._assigned_by_hand = False
        self._positions.assign(())
        self._follow()

    def _topics_wanted(self) -> list[str]:
        return list(self._subscribed) or sorted({partition.topic for partition in self._positions.states})

    def _follow(self) -> None:
        if self._metadata is not None:
            self._metadata.follow_only(self._topics_wanted())
        self._wake()

    def _on_metadata(self, _update: Update) -> None:
        if self._subscribed:
            self._assign_subscribed()

    def _assign_subscribed(self) -> None:
        if self._metadata is not None:
            view = self._metadata.view
            self._positions.assign(
                TopicPartition(topic, index)
                for topic in self._subscribed
                for index in range(view.partition_count(topic) or 0)
            )

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

        Waits until it is known; NoOffsetForPartition with auto_offset_reset none, RequestTimedOut after
        default_api_timeout_ms.
        """
        deadline = self._deadline()
        while True:
            fetcher = self._running()
            state = self._state(partition)
            if state.position is not None:
                return state.position
            if state.error is not None:
                raise type(state.error)(state.error.message, outcome=state.error.outcome, **state.error.facts)
            if not await fetcher.changed(deadline):
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
        self._wake()
        if self._fetcher is not None:
            self._fetcher.tell()

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
        invariant(self._leaders is not None, "a consumer runs without leaders")
        isolation = m.READ_COMMITTED if self.config.isolation_level == "read_committed" else m.READ_UNCOMMITTED

        def make(group: list[tuple[TopicPartition, int, Leader]]) -> m.ListOffsetsRequest:
            return m.ListOffsetsRequest(
                isolation_level=isolation,
                partitions=tuple(
                    m.ListOffsetsPartition(
                        topic=partition.topic,
                        partition=partition.partition,
                        current_leader_epoch=leader.epoch,
                        timestamp=timestamp,
                    )
                    for partition, timestamp, leader in group
                ),
            )

        return await self._leaders.ask(wanted, make, deadline=self._deadline())  # type: ignore[union-attr]

    # ------------------------------------------------------------------------------------------------------ topics

    async def topics(self) -> frozenset[str]:
        """All topics of the cluster that are not internal."""
        self._running()
        invariant(self._metadata is not None, "a consumer runs without metadata")
        response = await self._metadata.ask_once(None)  # type: ignore[union-attr]
        return frozenset(topic.name for topic in response.topics if not topic.error_code and not topic.is_internal)

    def partitions_for_topic(self, topic: str) -> frozenset[int] | None:
        """The partitions of a topic that is read; None when metadata does not know it."""
        count = self._metadata.view.partition_count(topic) if self._metadata is not None else None
        return frozenset(range(count)) if count is not None else None

    # ----------------------------------------------------------------------------------------------------- records

    async def getone(self, *partitions: TopicPartition) -> ConsumerRecord:
        """The next record of these (default: all) partitions; waits as long as it takes.

        Raises what stands in its place: CorruptMessage, OffsetOutOfRange, LogTruncation, NoOffsetForPartition.
        """
        only = as_dict(partitions) if partitions else None
        while True:
            fetcher = self._running()
            try:
                record = self._positions.take_one(only)
            finally:
                self._fetch_on(fetcher)
            if record is not None:
                return record
            await fetcher.changed(NEVER)

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
        while True:
            fetcher = self._running()
            try:
                taken = self._positions.take(limit, only)
            finally:
                self._fetch_on(fetcher)
            if taken:
                return taken
            if timeout_ms <= 0:
                # Give answers that have arrived a turn of the loop.
                await asyncio.sleep(0)
                return self._positions.take(limit, only)
            if not await fetcher.changed(deadline):
                return {}

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
        invariant(self._world is not None, "a consumer without a world")
        return self._running_world().clock.now() + self.config.default_api_timeout_ms / 1000

    def _running(self) -> Fetcher:
        if self._stopped:
            raise InvalidRequest("the consumer was stopped")
        if self._fetcher is None:
            raise InvalidRequest("the consumer is not started")
        if self._fetcher.broken is not None:
            raise self._fetcher.broken
        return self._fetcher

    def _running_world(self) -> World:
        if self._world is None:
            raise InvalidRequest("the consumer is not started")
        return self._world

    def __repr__(self) -> str:
        return f"<consumer {' '.join(map(repr, self._positions.states.values()))}>"
