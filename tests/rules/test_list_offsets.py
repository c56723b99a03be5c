"""Positions in a log: what is listed, for many partitions in turns; where an epoch ends; what is deleted. And its
producers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minikafka.broker.api import describe
from minikafka.broker.api.offsets import (
    LISTED_PER_TURN,
    SEARCH_COST,
    SEARCHED_HERE_MAX,
    handle_delete_records,
    handle_list_offsets,
    handle_offset_for_leader_epoch,
)
from minikafka.config import TopicConfig
from minikafka.errors import NotLeaderOrFollower, OffsetOutOfRange
from minikafka.log.partition_log import PartitionLog
from minikafka.types import TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.messages import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DescribeProducersPartition,
    DescribeProducersRequest,
    EpochQuery,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
)
from minikafka.wire.records import Record, build_batch
from tests.rules.log_words import TIME, client_batch, from_producer, open_log
from tests.rules.memory_disk import MemoryDisk


class Replicas:
    """Leads ``log``, or nothing, and counts the partitions that were looked up and the batches opened elsewhere."""

    def __init__(self, log: PartitionLog | None = None) -> None:
        self.log = log
        self.leader: Any = None
        self.looked_up = 0
        self.offloaded = 0
        self.meanwhile: Callable[[], None] = lambda: None
        """Happens while a batch is opened on another thread."""

    def get(self, _: Any) -> Any:
        self.looked_up += 1
        if self.log is None:
            raise NotLeaderOrFollower("another broker leads it")
        if self.leader is None or self.leader.log is not self.log:
            end = self.log.end_offset
            self.leader = SimpleNamespace(
                log=self.log, epoch=0, high_watermark=end, knows_its_watermark=True, partition="orders-0"
            )
        return SimpleNamespace(
            as_leader=lambda _=None: self.leader, partition=TopicPartition("orders", 0), log=self.log
        )

    def storage_guard(self, _: Any) -> Any:
        return nullcontext()

    async def offload(self, work: Callable[[], Any]) -> Any:
        self.offloaded += 1
        self.meanwhile()
        return work()

    def current_leader(self, _: Any) -> None:
        return None


def asked(replicas: Replicas, *timestamps: int) -> Any:
    partitions = tuple(
        ListOffsetsPartition(topic="orders", partition=at, timestamp=timestamp)
        for at, timestamp in enumerate(timestamps)
    )
    given: Any = replicas
    return handle_list_offsets(given, ListOffsetsRequest(partitions=partitions), session_alive=lambda: True)


async def answered(replicas: Replicas, timestamp: int) -> ListedOffset:
    response = await asked(replicas, timestamp)
    return response.partitions[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("timestamp", "per_turn"), [(LATEST, LISTED_PER_TURN), (0, LISTED_PER_TURN // SEARCH_COST)], ids=["latest", "time"]
)
@pytest.mark.parametrize("count", [1, LISTED_PER_TURN, LISTED_PER_TURN + 1, 5 * LISTED_PER_TURN + 7])
async def test_partitions_are_listed_in_turns(timestamp: int, per_turn: int, count: int):
    """So many in one turn, fewer if each is a search; a usual request is answered at once; the order is the request's."""
    replicas = Replicas()
    answer = asked(replicas, *[timestamp] * count)
    if isinstance(answer, Awaitable):
        task = asyncio.ensure_future(answer)
        before = replicas.looked_up
        while not task.done():
            await asyncio.sleep(0)
            assert replicas.looked_up - before <= per_turn
            before = replicas.looked_up
        answer = task.result()
    else:
        assert timestamp == LATEST
        assert count <= LISTED_PER_TURN
    assert isinstance(answer, ListOffsetsResponse)
    assert [each.partition for each in answer.partitions] == list(range(count))


async def test_the_producers_of_a_partition_are_described_in_turns(monkeypatch: pytest.MonkeyPatch):
    """A partition may have 100,000: in one turn they held the loop for 0.3 s. One that expires meanwhile is left out."""
    monkeypatch.setattr(describe, "PRODUCERS_PER_TURN", 2)
    log = open_log(MemoryDisk(), TopicConfig())
    for producer_id in (3, 5, 7, 8, 9):
        log.append_as_leader(from_producer(producer_id, 0, "x"), leader_epoch=0, wall_ms=TIME)
    every, one = (DescribeProducersPartition(topic="t", partition=0, producer_id=each) for each in (-1, 5))
    answer = describe.handle_describe_producers(
        cast("Any", Replicas(log)), DescribeProducersRequest(partitions=(every, one))
    )
    task = asyncio.ensure_future(cast("Awaitable[Any]", answer))
    await asyncio.sleep(0)
    for now_ms in (TIME, TIME + 1):
        log.producers.expire(now_ms=now_ms, idle_max_ms=0, high_watermark=log.end_offset)
    log.append_as_leader(from_producer(9, 0, "x"), leader_epoch=0, wall_ms=TIME)
    assert not task.done()
    described, unknown = (await task).partitions
    assert [each.producer_id for each in described.active] == [3, 5, 9]
    assert (unknown.producer_id, unknown.last_sequence, unknown.active) == (5, -1, ())


@pytest.mark.parametrize(
    ("count", "codec", "offloaded"), [(10, "none", 0), (SEARCHED_HERE_MAX + 1, "none", 1), (10, "gzip", 1)]
)
async def test_a_batch_that_takes_long_to_read_is_searched_beside_the_loop(count: int, codec: str, offloaded: int):
    """A hundred thousand small records took a tenth of a second, in which nobody else was served."""
    log = open_log(MemoryDisk(), TopicConfig())
    batch = client_batch(*"x" * count, compression=codec)
    log.append_as_leader(batch, leader_epoch=0, wall_ms=TIME)
    replicas = Replicas(log)
    last = await answered(replicas, TIME + count - 1)
    assert (last.error_code, last.offset, last.timestamp) == (0, count - 1, TIME + count - 1)
    assert replicas.offloaded == offloaded
    newest = await answered(replicas, MAX_TIMESTAMP)
    assert (newest.offset, newest.timestamp) == (count - 1, TIME + count - 1)
    assert (await answered(replicas, TIME + count)).offset == -1


@pytest.mark.parametrize("deleted", [TIME, TIME + 1], ids=["as old as the other", "newer"])
async def test_the_largest_timestamp_is_not_that_of_a_deleted_record(deleted: int):
    """Kafka lists a record below the log start as long as its segment is there (seed 969258708 beside it)."""
    log = open_log(MemoryDisk())
    for time in (deleted, TIME):
        log.append_as_leader(client_batch("x", time=time), leader_epoch=0, wall_ms=TIME)
    log.raise_start(1)
    newest = await answered(Replicas(log), MAX_TIMESTAMP)
    assert (newest.offset, newest.timestamp) == (1, TIME)


async def test_a_leader_that_was_deposed_while_it_searched_refuses():
    """What it found may be gone from the log of its successor."""
    log = open_log(MemoryDisk())
    log.append_as_leader(client_batch("a", compression="gzip"), leader_epoch=0, wall_ms=TIME)
    replicas = Replicas(log)

    def deposed() -> None:
        replicas.log = None

    replicas.meanwhile = deposed
    refused = await answered(replicas, TIME)
    assert (refused.error_code, refused.offset) == (NotLeaderOrFollower.code, -1)


async def test_a_search_in_a_log_of_a_former_topic_is_not_answered():
    """Issue 13: the topic is created again meanwhile, and this broker leads that too: the offset is one of the former."""
    log, new = open_log(MemoryDisk()), open_log(MemoryDisk())
    log.append_as_leader(client_batch("a", compression="gzip"), leader_epoch=0, wall_ms=TIME)
    replicas = Replicas(log)

    def created_again() -> None:
        replicas.log = new

    replicas.meanwhile = created_again
    refused = await answered(replicas, TIME)
    assert (refused.error_code, refused.offset) == (NotLeaderOrFollower.code, -1)


async def test_the_batch_behind_one_without_a_hit_is_searched_too():
    """The first batch has its newest record below the log start; the next batch begins right behind it."""
    log = open_log(MemoryDisk())
    falling = build_batch([Record(0, TIME + 2, 0, None, b"a"), Record(1, TIME, 0, None, b"b")])
    log.append_as_leader(RecordBatch.of(falling), leader_epoch=0, wall_ms=TIME)
    log.append_as_leader(client_batch("c", time=TIME + 1), leader_epoch=0, wall_ms=TIME)
    log.raise_start(1)
    found = await answered(Replicas(log), TIME + 1)
    assert (found.offset, found.timestamp) == (2, TIME + 1)


def listed_of(log: PartitionLog, timestamp: int, *, replica_id: int = -1) -> ListedOffset:
    """What a leader in epoch 3 lists, whose high watermark is 1."""
    replicas = Replicas(log)
    replicas.leader = SimpleNamespace(
        log=log, epoch=3, high_watermark=1, last_stable_offset=1, knows_its_watermark=True, partition="orders-0"
    )
    request = ListOffsetsRequest(
        replica_id=replica_id, partitions=(ListOffsetsPartition(topic="orders", partition=0, timestamp=timestamp),)
    )
    response: Any = handle_list_offsets(cast("Any", replicas), request, session_alive=lambda: True)
    return response.partitions[0]  # type: ignore[no-any-return]


def two_epochs() -> PartitionLog:
    log = open_log(MemoryDisk())
    for epoch in (0, 3):
        log.append_as_leader(client_batch("x"), leader_epoch=epoch, wall_ms=TIME)
    return log


def test_only_replicas_see_the_end_of_the_log():
    """Broker 0 is a replica as any other; clients have the id -1."""
    offsets = [listed_of(two_epochs(), LATEST, replica_id=each).offset for each in (-1, 0, 2)]
    assert offsets == [1, 2, 2]


def test_the_log_start_has_the_epoch_of_its_record():
    """Not the leader's: a consumer validates the position with it."""
    assert listed_of(two_epochs(), EARLIEST).leader_epoch == 0
    assert listed_of(two_epochs(), LATEST).leader_epoch == 3


@pytest.mark.parametrize("current_leader_epoch", [-1, 0])
def test_a_leader_without_a_session_says_nothing_of_its_epochs(current_leader_epoch: int):
    """Whatever epoch the consumer knows: a successor may have been elected in the next one."""
    query = EpochQuery(topic="orders", partition=0, current_leader_epoch=current_leader_epoch, leader_epoch=0)
    request = OffsetForLeaderEpochRequest(partitions=(query,))
    response: Any = handle_offset_for_leader_epoch(
        cast("Any", Replicas(two_epochs())), request, session_alive=lambda: False
    )
    assert response.partitions[0].error_code == NotLeaderOrFollower.code


class Deleting(Replicas):
    """Leads a log of two records, of which one is committed; another replica has followed up to ``low_watermark``."""

    def __init__(self, low_watermark: int, *, stays: bool = True) -> None:
        super().__init__(two_epochs())
        log: Any = self.log
        self.leader = SimpleNamespace(log=log, high_watermark=1, stir=lambda: None)
        self.clock = SimpleNamespace(now=lambda: 0.0)
        self.traffic = SimpleNamespace(purgatory_meters={"DeleteRecords": SimpleNamespace(parked=nullcontext)})
        self.purgatory = self
        self._low_watermark = low_watermark
        self._stays = stays

    async def until(self, _conditions: Any, is_reached: Callable[[], bool], _deadline: float) -> bool:
        if not self._stays:
            self.leader = SimpleNamespace(log=self.log)
        return is_reached()

    def low_watermark(self, _leader: Any) -> int:
        return self._low_watermark


async def deleted(replicas: Deleting, offset: int) -> DeletedRecords:
    request = DeleteRecordsRequest(partitions=(DeleteRecordsPartition(topic="orders", partition=0, offset=offset),))
    response = await handle_delete_records(cast("Any", replicas), request, session_alive=lambda: True)
    return response.partitions[0]


async def test_records_above_the_high_watermark_are_not_deleted():
    """They may still be cut; what was committed can be deleted."""
    replicas = Deleting(1)
    refused = await deleted(replicas, 2)
    assert (refused.error_code, refused.outcome) == (OffsetOutOfRange.code, "not_written")
    assert replicas.leader.log.start_offset == 0
    assert (await deleted(replicas, 1)).low_watermark == 1


@pytest.mark.parametrize("stays", [True, False], ids=["follower lags", "leader changes"])
async def test_a_deletion_that_is_not_confirmed_has_an_unknown_outcome(stays: bool):
    """Here the records are gone already; a leader that was deposed does not know whether its successor has followed."""
    refused = await deleted(Deleting(0 if stays else 1, stays=stays), 1)
    assert refused.error_code
    assert refused.outcome == "unknown"
