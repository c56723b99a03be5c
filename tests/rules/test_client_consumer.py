"""What a consumer does with its group's offsets, without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minikafka.client.consumer import Consumer
from minikafka.client.routing import Leaders
from minikafka.client.settings import ConsumerConfig
from minikafka.client.structs import CommitFailed
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import FetchedOffset
from minikafka.wire.messages import ListedOffset

READ = TopicPartition("orders", 0)


def consumer_of_group(meanwhile: Callable[[Consumer], None] = lambda _: None) -> Consumer:
    """It has one partition by hand, of which the group has committed offset 5."""
    config = ConsumerConfig(bootstrap_servers="127.0.0.1:1", group_id="g")
    consumer = Consumer(config, cast("Any", SimpleNamespace()))

    async def committed(partitions: list[TopicPartition]) -> dict[TopicPartition, FetchedOffset]:
        meanwhile(consumer)
        return {each: FetchedOffset(topic=each.topic, partition=each.partition, offset=5) for each in partitions}

    consumer.assign([READ])
    consumer._offsets = cast("Any", SimpleNamespace(committed=committed))
    return consumer


@pytest.mark.parametrize(
    ("meanwhile", "position"),
    [(lambda _: None, 5), (lambda consumer: consumer.seek(READ, 2), 2)],
    ids=["still", "seek"],
)
async def test_a_seek_is_not_undone_by_the_committed_offset(meanwhile: Callable[[Consumer], None], position: int):
    """S35: the application went elsewhere while the group's offset was looked up."""
    consumer = consumer_of_group(meanwhile)
    assert await consumer._look_up_committed([READ])
    assert consumer._positions.states[READ].position == position


def test_a_consumer_that_is_no_member_has_no_group_metadata():
    """KIP-447: offsets would be committed in a transaction as by hand, without the fence of a generation."""
    consumer = consumer_of_group()
    assert consumer.group_metadata().generation_id == -1, "its partitions were assigned by hand"
    consumer._member = cast("Any", SimpleNamespace(membership=lambda: None))
    with pytest.raises(CommitFailed):
        consumer.group_metadata()


def started(consumer: Consumer, changed: Callable[[], None] = lambda: None) -> Consumer:
    """As after ``start``; ``changed`` is called when it waits for news."""

    async def wait(_deadline: float) -> bool:
        changed()
        return True

    consumer._fetcher = cast("Any", SimpleNamespace(broken=None, changed=wait, wake=lambda: None))
    consumer._world = cast("Any", SimpleNamespace(clock=SimpleNamespace(now=lambda: 0.0)))
    consumer._metadata = cast("Any", SimpleNamespace())
    return consumer


async def test_no_record_is_handed_out_while_the_group_changes_hands():
    """S31: the partition may be another member's when the rebalance is over; a ``getone`` that waits goes on then."""
    waited: list[int] = []

    def rebalanced() -> None:
        waited.append(len(taken))
        gate.holding = len(waited) < 3

    taken: list[str] = []
    gate = SimpleNamespace(holding=True, enter=lambda: None, leave=lambda: None)
    consumer = started(consumer_of_group(), rebalanced)
    consumer._offsets = cast("Any", SimpleNamespace(due=lambda: None))
    consumer._gate = cast("Any", gate)
    consumer._positions = cast(
        "Any",
        SimpleNamespace(
            states={READ: None}, asked=lambda: None, opened=0, take_one=lambda _: taken.append("record") or taken[-1]
        ),
    )
    assert cast("Any", await consumer.getone()) == "record"
    assert (waited, len(taken)) == ([0, 0, 0], 1)


@pytest.mark.parametrize(("isolation_level", "asked"), [("read_committed", 1), ("read_uncommitted", 0)])
async def test_the_end_of_a_partition_is_that_of_the_consumers_isolation(
    isolation_level: str, asked: int, monkeypatch: pytest.MonkeyPatch
):
    """A reader of committed records that reads up to ``end_offsets`` would wait for an open transaction."""
    levels: list[int] = []

    async def list_offsets(_self: object, wanted: dict[TopicPartition, int], **options: Any) -> dict[Any, Any]:
        levels.append(options["isolation_level"])
        return {each: ListedOffset(topic=each.topic, partition=each.partition, offset=3) for each in wanted}

    monkeypatch.setattr(Leaders, "list_offsets", list_offsets)
    config = ConsumerConfig(bootstrap_servers="127.0.0.1:1", isolation_level=isolation_level)
    consumer = started(Consumer(config, cast("Any", SimpleNamespace())))
    assert await consumer.end_offsets([READ]) == {READ: 3}
    assert levels == [asked]
