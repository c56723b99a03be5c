"""The log behind a coordinator's rules, and which coordinators a broker has: each alone, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minikafka.broker.coordinator_shard import CoordinatorShard
from minikafka.broker.coordinator_shards import CoordinatorShards
from minikafka.broker.purgatory import Mark, Purgatory
from minikafka.coordination.rule import Step, Write
from minikafka.errors import (
    CoordinatorNotAvailable,
    KafkaStorageError,
    NotCoordinator,
    NotEnoughReplicasAfterAppend,
    ProtocolError,
    RequestTimedOut,
)
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.quorum.image import BrokerImage, MetadataImage
from minikafka.sim.world import SimWorld
from minikafka.types import TopicPartition
from minikafka.wire.markers import EndTransaction
from tests.rules.group_kit import topic_image
from tests.sim.test_message_invariants import leader as leader_of_orders

NAME = TopicPartition(OFFSETS_TOPIC, 0)
MARKER = EndTransaction(7, 0, True, 1)
COMMIT_TIMEOUT_S = 5.0


class Rules:
    """A coordinator that notes what it is told."""

    kind = "group"
    skipped_event = "records_skipped"

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.deadline = float("inf")

    def loaded(self, _step: Step) -> None:
        self.heard.append("loaded")

    def packed(self, record: object) -> tuple[bytes, bytes]:
        return str(record).encode(), b""

    def committed(self, write: Write, _step: Step) -> None:
        self.heard.append(("committed", *write.records))

    def refused(self, write: Write, error: ProtocolError, _step: Step) -> None:
        self.heard.append((type(error).__name__, error.outcome, *write.records))

    def transaction_ended(self, producer_id: int, *, is_commit: bool) -> None:
        self.heard.append((producer_id, is_commit))

    def resign(self, _step: Step) -> None: ...

    def next_deadline(self) -> float:
        return self.deadline


class Leader:
    """Leads the partition, whose log is empty and begins at offset 1."""

    def __init__(self) -> None:
        self.high_watermark = 1
        self.log = SimpleNamespace(start_offset=1, end_offset=1, read=self.read)
        self.lacks_replicas = False
        self.appended = 0

    def read(self, *_: object, **__: object) -> Any:
        raise KafkaStorageError("the disk is broken")

    def append(self, _batch: object, **_: object) -> Any:
        self.appended += 1
        self.log.end_offset += 1
        return SimpleNamespace(base_offset=self.log.end_offset - 1, end_offset=self.log.end_offset)

    def check_acknowledged(self, _end: int) -> bool:
        if self.lacks_replicas:
            raise NotEnoughReplicasAfterAppend("too few")
        return True


class Seat:
    """A shard and what stands around it."""

    def __init__(self, sim: SimWorld, leader: Leader | None = None) -> None:
        self.rules, self.leader, self.purgatory = Rules(), leader or Leader(), Purgatory()
        self.commits_at_once = False
        self.partition = SimpleNamespace(partition=NAME, role=self.leader)
        replicas = SimpleNamespace(
            clock=SimpleNamespace(now=lambda: sim.loop.now, wall_ms=lambda: 1),
            purgatory=self.purgatory,
            events=lambda *_, **__: None,
            storage_guard=lambda _: nullcontext(),
            appended=self.when_appended,
        )
        self.shard: CoordinatorShard[Any] = CoordinatorShard(
            cast("Any", replicas),
            cast("Any", self.partition),
            cast("Any", self.leader),
            self.rules,  # type: ignore[type-var]
            commit_timeout_s=COMMIT_TIMEOUT_S,
            spawn=cast("Any", lambda work, _name: asyncio.ensure_future(work)),
            on_step=lambda _: None,
        )

    def when_appended(self, *_: object) -> None:
        if self.commits_at_once:
            self.commit()

    def commit(self) -> None:
        self.leader.high_watermark = self.leader.log.end_offset
        self.purgatory.wake(Mark.HIGH_WATERMARK, NAME, self.leader.high_watermark)

    def write(self, record: str) -> None:
        with self.shard.step() as step:
            step.writes.append(Write((record,), committed=lambda _: None, refused=lambda *_: None))

    async def loaded(self) -> Seat:
        await asyncio.sleep(0.01)
        assert self.rules.heard == ["loaded"]
        self.rules.heard.clear()
        return self


def run(body: Callable[[SimWorld], Coroutine[Any, Any, None]]) -> None:
    with SimWorld(1) as sim:
        sim.of("n1")
        sim.run(body(sim))


def test_a_coordinator_answers_when_all_that_it_has_read_is_committed() -> None:
    """However long that takes: what is not committed may still be cut."""

    async def body(sim: SimWorld) -> None:
        leader = Leader()
        leader.high_watermark = 0
        seat = Seat(sim, leader)
        await asyncio.sleep(200)
        assert not seat.shard.is_loaded
        seat.commit()
        await seat.loaded()

    run(body)


def test_a_write_that_is_committed_at_once_is_answered_at_once() -> None:
    """The leader is the only replica: no later watermark wakes the coordinator."""

    async def body(sim: SimWorld) -> None:
        seat = await Seat(sim).loaded()
        seat.commits_at_once = True
        seat.write("a")
        await asyncio.sleep(0.01)
        assert seat.rules.heard == [("committed", "a")]

    run(body)


def test_a_write_behind_a_marker_is_late_after_its_own_time() -> None:
    """Markers have no deadline; members that commit an offset behind one still get an answer."""

    async def body(sim: SimWorld) -> None:
        seat = await Seat(sim).loaded()
        applied = seat.shard.marker_appended(MARKER, 2)
        seat.write("a")
        await asyncio.sleep(COMMIT_TIMEOUT_S + 1)
        assert seat.rules.heard == [(RequestTimedOut.__name__, "unknown", "a")]
        await asyncio.sleep(60)
        seat.commit()
        assert await applied
        assert seat.rules.heard[1:] == [(7, True), ("committed", "a")]

    run(body)


def test_a_write_that_was_committed_on_too_few_replicas_counts() -> None:
    """Nobody may rely on it, so its request fails; but it is in the log, which is what the next coordinator reads."""

    async def body(sim: SimWorld) -> None:
        seat = await Seat(sim).loaded()
        seat.write("a")
        seat.leader.lacks_replicas = True
        seat.commit()
        await asyncio.sleep(0.01)
        assert seat.rules.heard == [(RequestTimedOut.__name__, "unknown", "a"), ("committed", "a")]

    run(body)


def test_a_coordinator_without_its_role_appends_nothing() -> None:
    """The metadata has taken the role away, and the shard is not ended yet."""

    async def body(sim: SimWorld) -> None:
        seat = await Seat(sim).loaded()
        seat.partition.role = None
        seat.write("a")
        assert seat.rules.heard == [(NotCoordinator.__name__, "not_written", "a")]
        assert seat.leader.appended == 0

    run(body)


def test_a_marker_is_not_applied_by_a_coordinator_that_ends() -> None:
    """Its successor must have it before the transaction counts as complete (KAFKA-17507)."""

    async def body(sim: SimWorld) -> None:
        seat = await Seat(sim).loaded()
        before = seat.shard.marker_appended(MARKER, 2)
        seat.shard.end()
        assert not await before
        assert not await seat.shard.marker_appended(MARKER, 3)

    run(body)


def test_a_partition_that_cannot_be_read_holds_up_no_transaction() -> None:
    """Nobody coordinates it, so nobody reads an older offset there."""

    async def body(sim: SimWorld) -> None:
        leader = Leader()
        leader.log.end_offset = 2
        seat = Seat(sim, leader)
        before = seat.shard.marker_appended(MARKER, 3)
        assert await before
        async with asyncio.timeout(60):
            assert await seat.shard.marker_appended(MARKER, 4)
        with pytest.raises(CoordinatorNotAvailable):
            seat.shard.check()

    run(body)


class Office:
    """The shards of broker 1, which leads the only partition."""

    is_loaded = True

    def __init__(self, *, fenced: bool = False, now: Callable[[], float] = lambda: 0.0) -> None:
        self.coordinator = self
        self.deadline = float("inf")
        self.ticks: list[float] = []
        self.now = now
        self.is_alive = True
        self.asked = 0
        self.answers: list[Exception | None] = []
        broker = BrokerImage(node_id=1, broker_epoch=1, incarnation_id="i", host="h", port=1, fenced=fenced)
        topic = topic_image(OFFSETS_TOPIC, "T")
        image = MetadataImage(brokers={1: broker}, topics={OFFSETS_TOPIC: topic})
        self.partition = SimpleNamespace(role=leader_of_orders(1))
        self.replicas = SimpleNamespace(partitions={NAME: self.partition})
        self.shards: CoordinatorShards[Any] = CoordinatorShards(
            cast("Any", SimpleNamespace(events=lambda *_, **__: None, clock=SimpleNamespace(now=now))),
            cast("Any", self.replicas),
            OFFSETS_TOPIC,
            new_topic=lambda: cast("Any", None),
            new_coordinator=cast("Any", None),
            commit_timeout_s=1.0,
            image=lambda: image,
            session_alive=lambda: self.is_alive,
            ask_controller=self._ask,
            spawn=cast("Any", None),
        )
        self.ended: list[str] = []
        self.shards._shards[NAME] = cast("Any", self)
        self.leader = self.partition.role
        self.refusal: ProtocolError | None = None

    async def _ask(self, _request: object) -> None:
        self.asked += 1
        error = self.answers.pop(0) if self.answers else None
        if error is not None:
            raise error

    def step(self) -> Any:
        return nullcontext()

    def next_deadline(self) -> float:
        return self.deadline

    def tick(self, _step: object) -> None:
        self.ticks.append(self.now())
        self.deadline = float("inf")

    def end(self) -> None:
        self.ended.append("ended")

    def check(self) -> None:
        if self.refusal is not None:
            raise self.refusal


async def test_a_broker_that_leads_again_begins_with_another_coordinator() -> None:
    """Between the two leaderships another broker may have written to the log."""
    office = Office()
    office.shards.end_lost()
    assert office.ended == []
    office.partition.role = leader_of_orders(2)
    office.shards.end_lost()
    assert office.ended == ["ended"]
    assert office.shards.at(NAME) is None


async def test_a_broker_without_a_session_coordinates_nothing_and_names_nobody() -> None:
    """Another one may have been elected."""
    office = Office()
    assert cast("Any", office.shards.of("g")) is office
    assert office.shards.leader_of("g") == 1
    office.is_alive = False
    with pytest.raises(NotCoordinator):
        office.shards.of("g")
    with pytest.raises(CoordinatorNotAvailable):
        office.shards.leader_of("g")


async def test_a_coordinator_that_is_fenced_is_not_named() -> None:
    """Clients would look for it until its partition has moved."""
    with pytest.raises(CoordinatorNotAvailable):
        Office(fenced=True).shards.leader_of("g")


async def test_a_list_lacks_no_partition_silently() -> None:
    """NOT_COORDINATOR would not be repeated by clients."""
    office = Office()
    assert len(office.shards.all_answering()) == 1
    office.refusal = NotCoordinator("it leads no more")
    with pytest.raises(CoordinatorNotAvailable):
        office.shards.all_answering()


async def test_a_topic_whose_creation_failed_is_requested_again() -> None:
    """One request at a time; a failed one holds up nothing."""
    office = Office()
    office.answers = [OSError("no controller")]
    with pytest.raises(OSError, match="no controller"):
        await office.shards.create_topic()
    await office.shards.create_topic()
    assert office.asked == 2


@pytest.mark.parametrize("is_earlier", [True, False])
def test_a_step_wakes_the_clock_for_an_earlier_deadline(is_earlier: bool) -> None:
    """It sleeps until the first deadline of all; a later one of a step changes nothing. The tick is due on time."""

    async def body(sim: SimWorld) -> None:
        office = Office(now=lambda: sim.loop.now)
        office.deadline = sim.loop.now + 100
        running = asyncio.ensure_future(office.shards.run())
        await asyncio.sleep(1)
        due_at = office.deadline = sim.loop.now + (5 if is_earlier else 200)
        office.shards._stepped(cast("Any", office))
        await asyncio.sleep(300)
        running.cancel()
        assert office.ticks == [due_at]

    run(body)
