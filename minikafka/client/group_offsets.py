"""What a consumer commits to its group, and where it begins (S34, S35).

- By hand: positions, or the offsets given. By itself (``enable_auto_commit``): every ``auto_commit_interval_ms``, when
  the application asks for records, what it had been handed *before* that call: a crash reads again, and skips nothing.
- A commit speaks for a member in a generation. When the group has gone on without it, it is refused: CommitFailed.
  Nothing was committed then, unless an earlier attempt of the same commit got no answer: that outcome is *unknown*.
- A group may go on *with* the member while its commit is under way, for a cooperative one keeps its partitions while it
  joins. A commit that is refused for its generation is sent again with the next one, as long as the member owns the
  partitions without a break: no other member begins to read them before it has given them up and joined once more.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from minikafka import errors as kafka
from minikafka.client.caller import accepted
from minikafka.client.positions import Positions
from minikafka.client.routing import Coordinator, error_of_coordinator, error_within
from minikafka.client.settings import ConsumerConfig
from minikafka.client.structs import CommitFailed, OffsetAndMetadata
from minikafka.ports import World
from minikafka.tasks import until_ended
from minikafka.types import NO_EPOCH, Epoch, Offset, TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire.apis import in_parts
from minikafka.wire.messages import PartitionName
from minikafka.wire.outcomes import outcome_of_all

OF_ANOTHER_GENERATION = (kafka.IllegalGeneration, kafka.RebalanceInProgress)
"""Refusals of a commit whose generation is over, or whose generation has no assignment yet."""

OUT_OF_THE_GROUP = (*OF_ANOTHER_GENERATION, kafka.UnknownMemberId, kafka.FencedInstanceId, kafka.StaleMemberEpoch)


class Membership(NamedTuple):
    """For whom a commit speaks."""

    member_id: str = ""
    generation: int = g.NO_GENERATION
    instance_id: str | None = None
    join_count: int = 0
    """How often the member has joined: two generations of one number may be different ones, see Coordinator.ask. With
    the consumer protocol the generation is the member's epoch, which rises while it stays in the group."""
    is_joining: bool = False
    """It has asked for the next generation, whose assignment it does not have yet."""

    def follows(self, earlier: Membership) -> bool:
        """Return True if it is the same membership, or the one of the very next generation.

        A static member may be absent from a generation, which may have given away what it still takes for its own.
        """
        steps = self.join_count - earlier.join_count
        return steps == 0 or (steps == 1 and self.generation == earlier.generation + 1)


class Spot(NamedTuple):
    """A position worth committing."""

    offset: Offset
    leader_epoch: Epoch = NO_EPOCH
    metadata: str = ""


class GroupOffsets:
    """Commits and looks up for one consumer."""

    def __init__(
        self,
        config: ConsumerConfig,
        world: World,
        coordinator: Coordinator,
        positions: Positions,
        membership: Callable[[], Membership | None],
    ) -> None:
        self._config = config
        self._world = world
        self._coordinator = coordinator
        self._positions = positions
        self._membership = membership
        self._committed_last: dict[TopicPartition, Spot] = {}
        """What this consumer has committed last: not committed again by itself."""
        self._given_up: Counter[TopicPartition] = Counter()
        """How often each was given up: a commit is not repeated once this has changed."""
        self._next_at = world.clock.now() + config.auto_commit_interval_ms / 1000
        self._auto: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        """One commit at a time: requests may overtake each other, and the older offset would be the last word."""

    # ---- looking up ----

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, g.FetchedOffset]:
        """What the group has committed; partitions without are left out. Raises what the coordinator answers."""
        found: dict[TopicPartition, g.FetchedOffset] = {}
        for part in in_parts(partitions):
            asked = PartitionName.each(part)
            for each in await self._stable(asked):
                if accepted(each).offset >= 0:
                    found[TopicPartition(each.topic, each.partition)] = each
        return found

    async def _stable(self, asked: tuple[PartitionName, ...]) -> tuple[g.FetchedOffset, ...]:
        """The answers for partitions; those of open transactions are awaited (KIP-447)."""
        request = g.OffsetFetchRequest(group_id=self._coordinator.group, partitions=asked, require_stable=True)
        deadline = self._deadline()
        while True:
            response: g.OffsetFetchResponse = accepted(await self._coordinator.ask(request, deadline=deadline))
            pause_s = self._config.retry_backoff_ms / 1000
            is_unstable = any(each.error_code == kafka.UnstableOffsetCommit.code for each in response.partitions)
            if not is_unstable or self._world.clock.now() + pause_s >= deadline:
                return response.partitions
            await asyncio.sleep(pause_s)

    # ---- committing ----

    async def commit(self, spots: Mapping[TopicPartition, Spot]) -> None:
        """Commit exactly these. CommitFailed when the group has gone on without this member; RequestTimedOut."""
        given_up = {partition: self._given_up[partition] for partition in spots}
        async with self._turn:
            is_first = True
            for part in list(in_parts(spots.items())) or [[]]:
                try:
                    await self._commit(dict(part), given_up)
                except kafka.ProtocolError as error:
                    if is_first or error.outcome != kafka.NOT_WRITTEN:
                        raise
                    why = f"only some of the {len(spots)} offsets were committed: {error.message}"
                    raise type(error)(why, outcome=kafka.UNKNOWN, **error.facts) from error
                is_first = False

    async def _commit(self, spots: Mapping[TopicPartition, Spot], given_up: Mapping[TopicPartition, int]) -> None:
        """Commit; repeat it with a newer epoch or generation of the same member, if that can help."""
        deadline = self._deadline()
        pause_s = self._config.retry_backoff_ms / 1000
        refused: kafka.ProtocolError | None = None
        member = self._member(spots, given_up, refused)
        while spots:
            try:
                await self._attempt(member, spots, deadline)
            except kafka.ProtocolError as error:
                if refused is not None and refused.outcome == kafka.UNKNOWN:
                    error.outcome = kafka.UNKNOWN
                refused = error
            else:
                for partition, spot in spots.items():
                    if self._given_up[partition] == given_up[partition]:
                        self._committed_last[partition] = spot
                        self._positions.committed(partition, spot.offset, spot.leader_epoch)
                return
            if not self._may_be_mended(refused, member, spots) or self._world.clock.now() + pause_s >= deadline:
                if isinstance(refused, OUT_OF_THE_GROUP):
                    raise self._failed(refused.name, refused.outcome) from refused
                raise refused
            if self._membership() == member:
                await asyncio.sleep(pause_s)
            now = self._member(spots, given_up, refused)
            if not now.follows(member):
                raise self._failed(refused.name, refused.outcome) from refused
            member = now

    def _member(
        self,
        spots: Iterable[TopicPartition],
        given_up: Mapping[TopicPartition, int],
        refused: kafka.ProtocolError | None,
    ) -> Membership:
        """The membership that a commit names now. CommitFailed if there is none, or if a partition was given up."""
        outcome = kafka.NOT_WRITTEN if refused is None else refused.outcome
        member = self._membership()
        if member is None:
            raise self._failed("it is not in the group now", outcome)
        gone = [each for each in spots if self._given_up[each] != given_up[each]]
        if gone:
            raise self._failed(f"it has given up {', '.join(map(str, gone))}", outcome)
        return member

    def _may_be_mended(self, refused: kafka.ProtocolError, member: Membership, spots: Iterable[TopicPartition]) -> bool:
        """Return True if the member has a newer epoch or generation now, or will have one soon."""
        if isinstance(refused, kafka.StaleMemberEpoch):
            # The coordinator has assigned something since: the next heartbeat brings the newer epoch (KIP-848).
            return True
        if not isinstance(refused, OF_ANOTHER_GENERATION) or any(each not in self._positions.states for each in spots):
            return False
        now = self._membership()
        return now is not None and (now.is_joining or now.join_count != member.join_count)

    async def _attempt(self, member: Membership, spots: Mapping[TopicPartition, Spot], deadline: float) -> None:
        """Commit for this membership; raise what refuses it, with the outcome of all requests."""
        request = g.OffsetCommitRequest(
            group_id=self._coordinator.group,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            partitions=tuple(
                g.CommitPartition(
                    topic=partition.topic,
                    partition=partition.partition,
                    offset=spot.offset,
                    leader_epoch=spot.leader_epoch,
                    metadata=spot.metadata,
                    topic_id=self._positions.topic_id(partition),
                )
                for partition, spot in spots.items()
            ),
        )
        response: g.OffsetCommitResponse = await self._coordinator.ask(
            request,
            deadline=deadline,
            error_of=error_of_coordinator,
            is_current=lambda: (now := self._membership()) is not None and now.join_count == member.join_count,
        )
        error = error_within(response)
        if error is not None:
            error.outcome = outcome_of_all(response)
            raise error

    def _failed(self, why: str, outcome: kafka.Outcome = kafka.NOT_WRITTEN) -> CommitFailed:
        done = (
            "nothing was committed"
            if outcome == kafka.NOT_WRITTEN
            else "the offsets may or may not have been committed"
        )
        return CommitFailed(
            f"group {self._coordinator.group} has gone on without this member ({why}): its partitions may be another's "
            f"now, {done}; process less per poll, or raise max_poll_interval_ms",
            outcome=outcome,
        )

    def given(
        self, offsets: Mapping[TopicPartition, Offset | tuple[Offset, str] | OffsetAndMetadata]
    ) -> dict[TopicPartition, Spot]:
        """What an application gave as spots."""
        spots: dict[TopicPartition, Spot] = {}
        for partition, value in offsets.items():
            offset, metadata = (value, "") if isinstance(value, int) else (value[0], value[1])
            spots[TopicPartition(*partition)] = Spot(offset, NO_EPOCH, metadata)
        return spots

    # ---- by itself ----

    def due(self) -> None:
        """The application asks for records: commit what it had, if it is time; one commit at a time."""
        now = self._world.clock.now()
        if not self._config.enable_auto_commit or now < self._next_at:
            return
        self._next_at = now + self._config.auto_commit_interval_ms / 1000
        if self._auto is None or self._auto.done():
            self._auto = asyncio.get_running_loop().create_task(self.commit_processed(), name="auto-commit")

    async def commit_processed(self) -> None:
        """Commit what is done with and not yet committed. A failure is an event: it is read again, no more."""
        await self.commit_reached(self._positions.processed())

    async def commit_positions(self) -> None:
        """The consumer ends: what was handed out counts as done with."""
        await self.commit_reached(self._positions.consumed())

    async def commit_reached(self, reached: Mapping[TopicPartition, tuple[Offset, Epoch]]) -> None:
        """As :meth:`commit_positions`, of positions that were noted."""
        spots = {partition: Spot(*spot) for partition, spot in reached.items()}
        news = {partition: spot for partition, spot in spots.items() if self._committed_last.get(partition) != spot}
        if not news:
            return
        try:
            await self.commit(news)
        except kafka.ProtocolError as error:
            self._world.events(
                "auto_commit_failed",
                group=self._coordinator.group,
                why=f"{error.name}: {error.message}",
                outcome=error.outcome,
            )

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """They are another's now: what was committed for them is no longer ours to know."""
        for partition in partitions:
            self._committed_last.pop(partition, None)
            self._given_up[partition] += 1

    async def stop(self) -> None:
        """End a commit that is under way."""
        if self._auto is not None:
            self._auto.cancel()
            await until_ended((self._auto,))

    def _deadline(self) -> float:
        return self._world.clock.now() + self._config.default_api_timeout_ms / 1000
