"""The sender of markers: when it sends them, to whom, and what it does not hold up (issue 17, p50 of a commit)."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from minikafka.broker.marker_sender import MarkerSender
from minikafka.quorum.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from minikafka.transactions.markers import MarkerId
from minikafka.transactions.records import State, TransactionValue
from minikafka.types import NO_NODE, TopicPartition
from minikafka.wire.transaction_messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse, WrittenMarker

A, B = TopicPartition("ledger", 0), TopicPartition("ledger", 1)

TURNS_OF_A_RESPONSE = 4
"""The task of the request, its end, the session's turn, and the flush of the connection."""


def test_markers_are_sent_behind_the_response_to_the_commit():
    """Both become due in one step of the coordinator; the response needs some turns of the loop to its socket."""
    done: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    class Coordinator:
        markers = SimpleNamespace(next_at=0.0)

        def take_markers(self, *_: object) -> dict[int, list[Any]]:
            done.append("markers")
            self.markers.next_at = math.inf
            return {}

    class Shard:
        is_answering = True
        coordinator = Coordinator()

        def step(self) -> Any:
            return contextlib.nullcontext()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        shard = Shard()

        def spawn(work: Coroutine[Any, Any, None], _name: str) -> None:
            tasks.append(loop.create_task(work))

        sender = MarkerSender(
            1,
            cast("Any", SimpleNamespace(clock=SimpleNamespace(now=lambda: 1.0))),
            shards=lambda: cast("Any", [shard]),
            image=cast("Any", None),
            session_alive=lambda: True,
            broker_epoch=lambda: 1,
            ask_broker=cast("Any", None),
            spawn=cast("Any", spawn),
        )

        def respond(turns: int) -> None:
            if turns:
                loop.call_soon(respond, turns - 1)
            else:
                done.append("response")

        loop.call_soon(respond, TURNS_OF_A_RESPONSE - 1)
        sender.wake(cast("Any", shard))
        await asyncio.gather(*tasks)

    asyncio.run(run())
    assert done == ["response", "markers"]


class Book:
    """The markers of one coordinator."""

    def __init__(self) -> None:
        self.next_at = 0.0
        self.taken: list[float] = []
        self.answers: list[tuple[MarkerId, int | None]] = []
        self.due: dict[int, list[MarkerId]] = {}
        self.markers = self

    def take_markers(self, *_: object) -> dict[int, list[MarkerId]]:
        self.next_at = math.inf
        self.taken.append(asyncio.get_running_loop().time())
        return self.due

    def markers_answered(self, answers: list[tuple[MarkerId, int | None]], _step: object) -> None:
        self.answers += answers

    def value_of(self, marker: MarkerId) -> TransactionValue:
        """Transactions have the producer id that their name ends with."""
        number = int(marker.transactional_id[-1])
        state = State.PREPARE_COMMIT if number == 1 else State.PREPARE_ABORT
        return TransactionValue(producer_id=number, producer_epoch=0, timeout_ms=1, state=state)

    def number_of(self, marker: MarkerId) -> int:
        return int(marker.transactional_id[-1])


class Shard:
    """The partition that the coordinator has its log in."""

    is_answering = is_loaded = True
    leader = SimpleNamespace(epoch=3)

    def __init__(self, coordinator: Book) -> None:
        self.coordinator = coordinator

    def step(self) -> Any:
        return contextlib.nullcontext()


class Sending:
    """The sender of broker 1 with one coordinator."""

    def __init__(self, image: Any = None) -> None:
        self.book = Book()
        self.shard = Shard(self.book)
        self.is_alive = True
        self.tasks: list[asyncio.Task[None]] = []
        self.requests: list[WriteTxnMarkersRequest] = []
        self.meanwhile = lambda: None
        loop = asyncio.get_running_loop()
        self.sender = MarkerSender(
            1,
            cast("Any", SimpleNamespace(clock=SimpleNamespace(now=loop.time), events=lambda *_, **__: None)),
            shards=lambda: cast("Any", [self.shard]),
            image=lambda: image,
            session_alive=lambda: self.is_alive,
            broker_epoch=lambda: 1,
            ask_broker=self.write,
            spawn=cast("Any", lambda work, _name: self.tasks.append(loop.create_task(work))),
        )

    def wake(self) -> None:
        self.sender.wake(cast("Any", self.shard))

    async def write(self, _broker: int, request: WriteTxnMarkersRequest, _wait_s: float) -> WriteTxnMarkersResponse:
        self.requests.append(request)
        self.meanwhile()
        return WriteTxnMarkersResponse(
            markers=tuple(
                WrittenMarker(producer_id=each.producer_id, topic=name.topic, partition=name.partition)
                for each in request.markers
                for name in each.partitions
            )
        )

    async def done(self) -> None:
        while any(not each.done() for each in self.tasks):
            await asyncio.gather(*self.tasks)


async def test_a_broker_without_a_session_sends_no_markers():
    """Another one may coordinate the transaction by now; it goes on when it has a session again."""
    sending = Sending()
    sending.is_alive = False
    sending.wake()
    await asyncio.sleep(0.05)
    assert sending.book.taken == []
    sending.is_alive = True
    await sending.done()
    assert len(sending.book.taken) == 1


async def test_markers_that_become_due_earlier_end_the_pause():
    """The sender waits for a marker that is repeated in an hour; a commit comes before."""
    sending = Sending()
    sending.book.next_at = asyncio.get_running_loop().time() + 3600
    sending.wake()
    await asyncio.sleep(0.01)
    sending.book.next_at = 0.0
    sending.wake()
    async with asyncio.timeout(60):
        await sending.done()
    assert len(sending.book.taken) == 1


async def test_each_transaction_has_its_own_marker():
    """Two transactions in one request to one leader: each ends in its way, in its partitions."""
    sending = Sending()
    sending.book.due = {1: [MarkerId("t1", A), MarkerId("t2", A), MarkerId("t1", B)]}
    sending.wake()
    await sending.done()
    (request,) = sending.requests
    assert [(each.producer_id, each.committed, len(each.partitions)) for each in request.markers] == [
        (1, True, 2),
        (2, False, 1),
    ]
    assert {marker.transactional_id for marker, code in sending.book.answers if code == 0} == {"t1", "t2"}


async def test_an_answer_to_a_coordinator_that_has_lost_its_partition_is_dropped():
    """Its successor sends the markers again, and completes the transaction."""
    sending = Sending()
    sending.book.due = {1: [MarkerId("t1", A)]}

    def lose() -> None:
        sending.shard.is_answering = False

    sending.meanwhile = lose
    sending.wake()
    await sending.done()
    assert len(sending.requests) == 1
    assert sending.book.answers == []


async def test_a_leader_that_is_fenced_is_no_leader():
    """Markers wait for the next one; a partition that does not exist any more needs none."""
    one, two = (
        BrokerImage(node_id=node, broker_epoch=1, incarnation_id="i", host="h", port=1, fenced=node == 2)
        for node in (1, 2)
    )
    partitions = tuple(
        PartitionImage(
            partition=number,
            replicas=(1, 2),
            isr=(1, 2),
            leader=leader,
            leader_epoch=0,
            partition_epoch=0,
            controller_epoch=0,
        )
        for number, leader in enumerate((1, 2))
    )
    topic = TopicImage(name="ledger", topic_id="T", partitions=partitions)
    sender = Sending(MetadataImage(brokers={1: one, 2: two}, topics={"ledger": topic})).sender
    found = [sender._leader_of(TopicPartition("ledger", number)) for number in range(3)]
    assert found == [1, NO_NODE, None]
