"""ListOffsets for many partitions, or in large batches, leaves turns of the loop to others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from minikafka.broker.api.offsets import LISTED_PER_TURN, SEARCH_COST, SEARCHED_HERE_MAX, handle_list_offsets
from minikafka.config import TopicConfig
from minikafka.errors import NotLeaderOrFollower
from minikafka.log.partition_log import PartitionLog
from minikafka.wire.messages import (
    LATEST,
    MAX_TIMESTAMP,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from tests.rules.log_words import TIME, client_batch, open_log
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
        return SimpleNamespace(as_leader=lambda _: self.leader, partition="orders-0")

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
