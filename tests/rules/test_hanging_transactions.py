"""A transaction hangs if it is open in a partition before and after no coordinator knows it (KIP-664)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minikafka.transactions.hanging import OpenTransaction, still_open, suspects
from minikafka.types import TopicPartition

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
NOW = 1_000_000


def opened(producer_id: int = 7, partition: TopicPartition = P0, *, start: int = 10, age: int = 100) -> OpenTransaction:
    return OpenTransaction(partition, producer_id, 0, -1, start, NOW - age)


def test_transaction_is_suspect_if_its_coordinator_does_not_know_the_partition():
    """Unknown producer, or a transaction of the same producer on other partitions."""
    found = [opened(7), opened(8), opened(9)]
    known = {8: {P1}, 9: {P0, P1}}
    assert suspects(found, known, now_ms=NOW, older_than_ms=0) == found[:2]


def test_transaction_with_a_recent_batch_is_not_suspect():
    """The age counts from the last batch."""
    found = [opened(7, age=99), opened(8, age=100)]
    assert suspects(found, {}, now_ms=NOW, older_than_ms=100) == found[1:]


def test_transaction_that_ended_between_the_observations_does_not_hang():
    """Its coordinator forgot it because every partition had its marker."""
    suspected = [opened(7), opened(8), opened(9, P1)]
    later = [opened(8), opened(9, P1, start=20)]
    assert still_open(suspected, later) == [opened(8)]


EVENTS = st.lists(st.sampled_from(["add", "write", "decide", "mark", "forget"]), max_size=12)


@given(events=EVENTS, first=st.integers(0, 12), second=st.integers(0, 12), third=st.integers(0, 12))
def test_transaction_of_a_live_coordinator_never_hangs(events: list[str], first: int, second: int, third: int):
    """Whenever the three observations are made, in their order, of a producer that follows the protocol.

    The reference is one partition and its coordinator, event by event: a partition is added before its first batch,
    the marker is written after the decision, and the coordinator forgets the partition after the marker.
    """
    first, second, third = sorted((first, second, third))
    start: int | None = None
    partitions: frozenset[TopicPartition] = frozenset()
    is_decided = False
    offset = 0
    history = [(start, partitions)]
    for event in events:
        if event == "add" and not is_decided:
            partitions = frozenset({P0})
        elif event == "write" and partitions and not is_decided:
            start = offset if start is None else start
            offset += 1
        elif event == "decide" and partitions:
            is_decided = True
        elif event == "mark" and is_decided:
            start = None
            offset += 1
        elif event == "forget" and is_decided and start is None:
            partitions, is_decided = frozenset(), False
        history.append((start, partitions))

    def seen(at: int) -> list[OpenTransaction]:
        found = history[min(at, len(history) - 1)][0]
        return [] if found is None else [opened(7, start=found)]

    known = {7: history[min(second, len(history) - 1)][1]}
    unknown = suspects(seen(first), known, now_ms=NOW, older_than_ms=0)
    assert still_open(unknown, seen(third)) == []
