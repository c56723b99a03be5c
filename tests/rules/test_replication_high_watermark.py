"""The high watermark rule as a table (S6, S9, S10; KAFKA-15583), and when it is applied."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from minikafka.broker.partition_history import PartitionHistory
from minikafka.config import TopicConfig
from minikafka.lab.node import at_once
from minikafka.ports import HOT_EVENTS, Unheard
from minikafka.replication.high_watermark import ReplicaState, effective_min_isr, high_watermark_after
from tests.rules.replication_kit import TP, Recorded, fetched, leader, write

IN, OUT = True, False


@pytest.mark.parametrize(
    "current, own_end, standings, isr_size, min_isr, expected",
    [
        # current, own end, (remote LEO, counts).., |ISR|, min.insync.replicas -> watermark
        (0, 5, [(3, IN), (4, IN)], 3, 1, 3),  # the slowest of those that count
        (0, 5, [(3, OUT), (4, IN)], 2, 1, 4),  # who is out of the ISR and late does not count
        (0, 5, [], 1, 1, 5),  # alone (S13)
        (4, 5, [(3, IN), (5, IN)], 3, 1, 4),  # never back
        (0, 5, [(-1, IN), (5, IN)], 3, 1, 0),  # a replica that has not asked yet may have nothing
        (2, 2, [(5, IN)], 2, 1, 2),  # never beyond the own end
        (0, 5, [(5, OUT)], 1, 2, 0),  # below min.insync.replicas nothing moves at all
        (3, 5, [(5, OUT)], 1, 2, 3),
        (0, 5, [(5, IN)], 2, 2, 5),
        (0, 0, [(0, IN)], 2, 1, 0),
    ],
)
def test_the_rule(
    current: int, own_end: int, standings: list[tuple[int, bool]], isr_size: int, min_isr: int, expected: int
) -> None:
    """One line a case; the rule is pure, so the table is complete."""
    remotes = [ReplicaState(node, end, counts) for node, (end, counts) in enumerate(standings, start=2)]
    moved = high_watermark_after(current, own_end=own_end, standings=remotes, isr_size=isr_size, min_isr=min_isr)
    assert moved == expected


@pytest.mark.parametrize(
    "minimum, replicas, adding, expected",
    [
        (2, (1, 2, 3), (), 2),
        (2, (1,), (), 1),  # never more than there are replicas
        (3, (1, 2), (), 2),
        (2, (1, 2, 3), (2, 3), 1),  # those that are coming do not count
        (2, (4, 2, 3, 1), (4,), 2),
    ],
)
def test_how_many_in_sync_replicas_are_needed(
    minimum: int, replicas: tuple[int, ...], adding: tuple[int, ...], expected: int
):
    """S24, KIP-455: controller and leader use this one rule."""
    assert effective_min_isr(minimum, replicas, adding) == expected


def test_a_produce_moves_it_when_the_leader_is_alone():
    """S9, first moment; S13: the ISR may be the leader alone."""
    led = leader(isr=(1,))
    write(led, "a")
    assert led.high_watermark == 1


def test_a_fetch_moves_it():
    """S9, second moment: the slowest member's fetch, not the first one's."""
    led = leader()
    write(led, "a")
    assert not fetched(led, 2, 1).high_watermark_moved
    assert fetched(led, 3, 1).high_watermark_moved
    assert led.high_watermark == 1


def test_becoming_leader_moves_it_only_when_alone():
    """S9, third moment: with others in the ISR their ends are unknown at first, and nothing may be assumed."""
    first = leader()
    write(first, "a", "b")
    alone = leader(first.log, isr=(1,), epoch=1)
    alone.advance(0)
    assert alone.high_watermark == 2
    first = leader()
    write(first, "a", "b")
    among = leader(first.log, isr=(1, 2), epoch=1)
    among.advance(0)
    assert among.high_watermark == 0


def test_a_shrinking_isr_moves_it_without_a_fetch():
    """S9, fourth moment (KAFKA-13091): else a produce with acks=all would hang until somebody fetches."""
    led = leader()
    write(led, "a")
    fetched(led, 2, 1)
    assert led.high_watermark == 0
    assert led.on_committed_state((1, 2), 1, recovered=True, now=LATE)
    assert led.high_watermark == 1


LATE = 1000.0


def test_a_caught_up_replica_outside_the_isr_holds_it_back():
    """S10: a replica that is about to be let back in must have what is committed meanwhile."""
    led = leader(isr=(1, 2))
    write(led, "a")
    fetched(led, 2, 1)
    fetched(led, 3, 1)
    assert led.high_watermark == 1
    write(led, "b")
    fetched(led, 2, 2)
    assert led.high_watermark == 1, "3 was caught up a moment ago: it counts"
    led.advance(LATE)
    assert led.high_watermark == 2, "too long ago: it does not"


def test_a_fenced_replica_outside_the_isr_does_not_hold_it_back():
    """KIP-841: who may not join need not be waited for."""
    eligible = {1: 10, 2: 20, 3: 30}
    led = leader(isr=(1, 2), eligible=eligible)
    write(led, "a")
    fetched(led, 2, 1)
    fetched(led, 3, 1)
    del eligible[3]
    write(led, "b")
    fetched(led, 2, 2)
    assert led.high_watermark == 2


def test_the_maximal_isr_counts_while_a_change_is_in_flight():
    """KIP-497: neither the old nor the new ISR alone may commit."""
    led = leader(isr=(1, 2))
    write(led, "a")
    assert led.propose_shrink(LATE) is not None
    assert led.maximal_isr == (1, 2)
    led.advance(LATE)
    assert led.high_watermark == 0
    joining = leader(isr=(1,))
    write(joining, "a")
    fetched(joining, 2, 1)
    assert joining.propose_expand() is not None
    assert joining.maximal_isr == (1, 2)
    write(joining, "b", now=LATE)
    assert joining.high_watermark == 1, "2 joins: it is waited for, whether the controller agrees or not"


def test_below_min_insync_replicas_it_stands_still_for_everybody():
    """KAFKA-15583: acks=1 data would else be exposed by the last replica standing."""
    led = leader(isr=(1,), config=TopicConfig(min_insync_replicas=2))
    write(led, "a")
    assert led.high_watermark == 0
    fetched(led, 2, 1)
    led.on_committed_state((1, 2), 1, recovered=True, now=0)
    assert led.high_watermark == 1


def test_min_insync_replicas_is_bounded_by_the_number_of_replicas():
    """KAFKA-FACTS 3.2: three wanted of two replicas is two, or the topic could never be written."""
    led = leader(isr=(1, 2), replicas=(1, 2), config=TopicConfig(min_insync_replicas=3))
    assert led.min_isr == 2


def test_under_sync_before_acknowledge_the_synced_end_counts():
    """D6: with flush.messages=1 the leader's own acknowledgement is what its disk has."""
    led = leader(isr=(1,), config=TopicConfig(flush_messages=1))
    write(led, "a")
    assert led.high_watermark == 0
    at_once(led.log.sync())
    led.advance(0)
    assert led.high_watermark == 1


def test_every_move_is_told_with_its_reason():
    """D9: the event names old, new, the remote ends and the ISR that counted."""
    events = Recorded()
    led = leader(isr=(1, 2), replicas=(1, 2), events=events)
    write(led, "a")
    fetched(led, 2, 1)
    (told,) = events.of("hw_advanced")
    assert (told["old"], told["new"], told["remotes"], told["isr"]) == (0, 1, {"2": 1}, (1, 2))


def test_hot_events_that_nothing_reads_are_counted_and_explained_but_not_reported():
    """An explanation still has the last move of the watermark; all other events are reported as ever."""
    events = Recorded()
    unheard = events.unheard = Unheard(HOT_EVENTS)
    clock: Any = SimpleNamespace(wall_ms=lambda: 1_700_000_000_000)
    partition_history = PartitionHistory(clock, events, is_replaying=lambda: False)
    led = leader(isr=(1, 2), replicas=(1, 2), events=partition_history)
    for value in "ab":
        write(led, value)
        fetched(led, 2, led.log.end_offset)
    assert unheard.counts == {"batch_appended": 2, "follower_fetched": 2, "follower_hw_changed": 0, "hw_advanced": 2}
    assert not events
    moved = partition_history.of(TP).watermark_moved
    assert moved is not None
    assert json.loads(moved.message().facts_json) == {
        "partition": "orders-0",
        "epoch": 0,
        "old": 1,
        "new": 2,
        "remotes": {"2": 2},
        "isr": [1, 2],
    }
    unheard.kinds = frozenset()
    write(led, "c")
    fetched(led, 2, 3)
    assert [kind for kind, _ in events] == ["batch_appended", "follower_fetched", "hw_advanced"]
    assert unheard.counts["hw_advanced"] == 2


@pytest.mark.parametrize("minimum", [1, 2])
@pytest.mark.parametrize("syncs", [False, True])
def test_the_short_form_for_a_leader_alone_moves_it_as_the_rule_does(minimum: int, syncs: bool) -> None:
    """The unrolled form in ``advance`` and the rule give the same watermark after every append and sync."""
    config = TopicConfig(min_insync_replicas=minimum, flush_messages=1 if syncs else TopicConfig().flush_messages)
    led = leader(isr=(1,), replicas=(1,), config=config)
    for value in "abc":
        write(led, value)
        for _ in range(2):
            expected = high_watermark_after(
                led.high_watermark, own_end=led.own_end, standings=[], isr_size=1, min_isr=led.min_isr
            )
            moved = expected > led.high_watermark
            assert led.advance(0) is moved
            assert led.high_watermark == expected
            at_once(led.log.sync())
    led.advance(0)
    assert led.high_watermark == 3
