"""The consumer's driver: keeps long polls at the leaders, looks positions up, and validates them after elections.

Rules for this file: positions.py decides what is asked for and what an answer means; each answer goes back with the
version under which it was asked. One fetch per broker covers all its partitions; others may run beside it for
partitions that became hungry while the first is parked. Every task is owned; a bug in one ends the consumer loudly.
"""

from __future__ import annotations

from typing import Any

from minikafka import errors as kafka
from minikafka.client.metadata import Leader, Metadata, Update
from minikafka.client.positions import EARLIEST, PartitionState, Positions
from minikafka.client.routing import error_of_part
from minikafka.client.settings import ConsumerConfig
from minikafka.ports import World
from minikafka.tasks import Flag, Tasks
from minikafka.types import NO_NODE, NodeId, TopicPartition
from minikafka.wire import messages as m
from minikafka.wire.apis import in_parts

FETCHES_PER_NODE_MAX = 8
"""Each may be a long poll of partitions that are read to their ends, and these do not come to it together. With two, a
partition with records waited for the end of a long poll again and again: two to four fetches a second.
"""

METADATA_MAY_HELP = (kafka.NetworkException, kafka.OffsetNotAvailable, kafka.UnknownLeaderEpoch)
"""A leader of an older epoch is behind, or the topic was created again: its epochs begin with 0."""

Asked = list[tuple[PartitionState, int]]
"""States and the versions under which they were asked about."""


class Fetcher:
    """Owner of the fetching tasks."""

    def __init__(self, config: ConsumerConfig, world: World, metadata: Metadata, positions: Positions) -> None:
        self.broken: BaseException | None = None
        self._config = config
        self._world = world
        self._metadata = metadata
        self._positions = positions
        self._isolation = m.READ_COMMITTED if config.isolation_level == "read_committed" else m.READ_UNCOMMITTED
        self._failures = 0
        """Failed requests in a row, for the pause before the next."""
        self._wake = Flag()
        self.wake = self._wake.set
        """Look again: positions changed, or records were taken."""
        self._changed = Flag()
        """Set for a moment, for callers that wait then."""
        self._tasks = Tasks(lambda _task, error: self._break(error))
        self._fetches_of: dict[NodeId, int] = {}
        metadata.listeners.append(self._on_metadata)

    def start(self) -> None:
        self._tasks.spawn(self._run(), "consumer-fetcher")

    async def stop(self) -> None:
        await self._tasks.end()
        self.tell()

    async def changed(self, deadline: float) -> bool:
        """Wait until something arrived (records, a position, an error); False at ``deadline``."""
        if self.broken is not None:
            raise self.broken
        return await self._changed.wait(deadline)

    def tell(self) -> None:
        self._changed.set()
        self._changed.clear()

    def _on_metadata(self, _update: Update) -> None:
        if self._metadata.failed is not None:
            self._break(self._metadata.failed)
        self.wake()

    # -------------------------------------------------------------------------------------------------- the tasks

    def _break(self, error: BaseException) -> None:
        if self.broken is None:
            self.broken = error
            self._world.events("consumer_broken", error=repr(error))
            self.tell()

    async def _run(self) -> None:
        while self.broken is None:
            self._wake.clear()
            wanted = self._positions.wanted(self._leader_of, self._world.clock.now(), self._metadata.view.topic_id)
            for node, states in wanted.resets.items():
                for part in in_parts(states):
                    self._tasks.spawn(self._reset(node, self._asked(part)), "consumer-reset")
            for node, states in wanted.validations.items():
                for part in in_parts(states):
                    self._tasks.spawn(self._validate(node, self._asked(part)), "consumer-validate")
            for node, states in wanted.fetches.items():
                if self._fetches_of.get(node, 0) < FETCHES_PER_NODE_MAX:
                    for part in in_parts(states):
                        self._fetches_of[node] = self._fetches_of.get(node, 0) + 1
                        self._tasks.spawn(self._fetch(node, self._asked(part)), "consumer-fetch")
            if wanted.leaderless:
                self._metadata.refresh_soon()
            self.tell()
            await self._wake.wait(wanted.deadline)

    def _asked(self, states: list[PartitionState]) -> Asked:
        for state in states:
            state.busy = True
        return [(state, state.version) for state in states]

    def _leader_of(self, partition: TopicPartition) -> Leader:
        leader = self._metadata.view.leader(*partition)
        return leader if leader.node in self._metadata.view.brokers else Leader(NO_NODE, leader.epoch)

    async def _call(
        self, node: NodeId, request: Any, asked: Asked, wait_ms: int = 0
    ) -> list[tuple[PartitionState, int, Any]]:
        """Ask about states; those with a good answer. The others are failed here."""
        deadline = self._world.clock.now() + (self._config.request_timeout_ms + wait_ms) / 1000
        try:
            partitions = [state.partition for state, _ in asked]
            response = await self._metadata.call_leader(
                node, request, partitions, deadline=deadline, wait_s=wait_ms / 1000
            )
        except kafka.ProtocolError as error:
            for state, version in asked:
                self._failed(state, version, error, None)
            return []
        self._failures = 0
        answers = {TopicPartition(each.topic, each.partition): each for each in response.partitions}
        good = []
        for state, version in asked:
            answer = answers.get(state.partition)
            refusal = error_of_part(answer)
            if refusal is None:
                good.append((state, version, answer))
            else:
                self._failed(state, version, refusal, answer)
        return good

    def _failed(self, state: PartitionState, version: int, error: kafka.ProtocolError, answer: Any) -> None:
        self._failures += 1
        if error.stale_metadata or isinstance(error, METADATA_MAY_HELP):
            self._metadata.learn_leader(state.partition, getattr(answer, "current_leader", None))
        self._world.events("consumer_request_failed", partition=str(state.partition), error=error.name)
        pause_s = self._metadata.backoff.pause_s(min(self._failures, 10))
        self._positions.failed(state, version, error, self._world.clock.now() + pause_s)

    async def _reset(self, node: NodeId, asked: Asked) -> None:
        epochs = {state.partition: self._leader_of(state.partition).epoch for state, _ in asked}
        request = m.ListOffsetsRequest(
            isolation_level=self._isolation,
            partitions=tuple(
                m.ListOffsetsPartition(
                    topic=state.partition.topic,
                    partition=state.partition.partition,
                    current_leader_epoch=epochs[state.partition],
                    timestamp=m.EARLIEST if state.reset == EARLIEST else m.LATEST,
                )
                for state, _ in asked
            ),
        )
        for state, version, answer in await self._call(node, request, asked):
            self._positions.reset_done(state, version, answer, epochs[state.partition])
            self._world.events("position_reset", partition=str(state.partition), offset=answer.offset)
        self.tell()
        self.wake()

    async def _validate(self, node: NodeId, asked: Asked) -> None:
        epochs = {state.partition: self._leader_of(state.partition).epoch for state, _ in asked}
        request = m.OffsetForLeaderEpochRequest(
            partitions=tuple(
                m.EpochQuery(
                    topic=state.partition.topic,
                    partition=state.partition.partition,
                    current_leader_epoch=epochs[state.partition],
                    leader_epoch=state.fetch_epoch,
                )
                for state, _ in asked
            )
        )
        for state, version, answer in await self._call(node, request, asked):
            self._positions.validated(state, version, epochs[state.partition], answer)
            self._world.events(
                "position_validated", partition=str(state.partition), position=state.position, end=answer.end_offset
            )
        self.tell()
        self.wake()

    async def _fetch(self, node: NodeId, asked: Asked) -> None:
        config = self._config
        offsets = {state.partition: state.fetch_offset for state, _ in asked}
        request = m.FetchRequest(
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.fetch_max_bytes,
            isolation_level=self._isolation,
            partitions=tuple(
                m.FetchPartition(
                    topic=state.partition.topic,
                    partition=state.partition.partition,
                    topic_id=state.topic_id,
                    current_leader_epoch=state.validated_epoch,
                    fetch_offset=state.fetch_offset,
                    partition_max_bytes=config.max_partition_fetch_bytes,
                )
                for state, _ in asked
            ),
        )
        try:
            answers = await self._call(node, request, asked, wait_ms=config.fetch_max_wait_ms)
        finally:
            self._fetches_of[node] -= 1
        for state, version, answer in answers:
            self._positions.fetched(state, version, offsets[state.partition], answer)
        self.tell()
        self.wake()
