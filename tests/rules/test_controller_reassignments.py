"""Reassignments (KIP-455): begun, completed by the ISR, cancelled, refused; and what they do to leader and epochs."""

from __future__ import annotations

import pytest

from minikafka.errors import BY_CODE
from minikafka.quorum.assignment import Assignment
from minikafka.types import TopicPartition
from minikafka.wire.admin import AlterPartitionReassignmentsRequest, ReassignedPartition
from tests.rules.controller_kit import T0, Cluster


def moving(**options: bool) -> Cluster:
    """Five brokers; t-0 on 1, 2, 3, led by 1, min.insync.replicas=2."""
    cluster = Cluster(5, min_isr=2, **options)
    cluster.create("t", (1, 2, 3))
    return cluster


def name_of(code: int) -> str:
    return BY_CODE[code].name


def shown(cluster: Cluster) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(replicas, adding, removing)."""
    state = cluster.state()
    return state.replicas, state.adding, state.removing


@pytest.mark.parametrize(
    "start, target, expected",
    [
        ((1, 2, 3), (4, 2, 3), ((4, 2, 3, 1), (4,), (1,))),
        ((1, 2, 3), (1, 2), ((1, 2, 3), (), (3,))),
        ((1,), (1, 2, 3), ((1, 2, 3), (2, 3), ())),
        ((1, 2, 3), (3, 1, 2), ((3, 1, 2), (), ())),
        ((1, 2), (3, 4), ((3, 4, 1, 2), (3, 4), (1, 2))),
    ],
)
def test_the_way_to_a_target(start: tuple[int, ...], target: tuple[int, ...], expected: tuple[tuple[int, ...], ...]):
    """KIP-455: the target's replicas first and in its order, behind them those that are to go."""
    on_the_way = Assignment(replicas=start).reassigned(target)
    assert (on_the_way.replicas, on_the_way.adding, on_the_way.removing) == expected
    assert on_the_way.target == target
    assert sorted(on_the_way.original) == sorted(start)
    assert on_the_way.settled(target, 1) == Assignment(replicas=target)
    assert sorted(on_the_way.cancelled().replicas) == sorted(start)


@pytest.mark.parametrize(
    ("target", "isr", "minimum", "is_complete"),
    [
        ((4, 2, 3), (1, 2, 4), 2, True),
        ((4, 2, 3), (1, 4), 1, True),
        ((4, 2, 3), (1, 4), 2, False),
        ((4, 2, 3), (1, 2, 4), 3, False),
        ((4, 2, 3), (2, 3, 4), 5, True),
        ((4, 2, 3), (1, 2, 3), 1, False),
        ((1, 2, 3, 4), (1, 4), 2, True),
        ((4, 5, 3), (1, 2, 3, 4), 1, False),
        ((1, 2), (1, 3), 1, False),
        ((1, 4), (1, 2, 4), 2, True),
        ((3, 4), (1, 4), 1, False),
    ],
)
def test_a_replica_that_stays_may_be_away(
    target: tuple[int, ...], isr: tuple[int, ...], minimum: int, is_complete: bool
):
    """As in Kafka 4.3: what comes must be in sync, and all of it where replicas become fewer. Beside it as many as are needed."""
    on_the_way = Assignment(replicas=(1, 2, 3)).reassigned(target)
    assert on_the_way.under_way
    assert on_the_way.settled(isr, minimum) == (Assignment(replicas=target) if is_complete else on_the_way)


def test_a_broker_that_is_away_does_not_hold_up_what_goes_elsewhere():
    """Broker 2 stays a replica, and catches up when it comes back."""
    cluster = moving()
    cluster.set_isr(1, 3)
    cluster.lose(2)
    cluster.reassign((4, 2, 3))
    epoch = cluster.state().leader_epoch
    cluster.set_isr(1, 3, 4)
    assert shown(cluster) == ((4, 2, 3), (), ())
    assert cluster.leader() == (4, (4, 3))
    assert cluster.state().leader_epoch == epoch + 1


def test_another_target_on_the_way_drops_what_was_only_coming():
    """KIP-455: the second reassignment starts from the original replicas, not from the first one's."""
    second = Assignment(replicas=(1, 2, 3)).reassigned((4, 2, 3)).reassigned((5, 2, 3))
    assert (second.replicas, second.adding, second.removing) == ((5, 2, 3, 1), (5,), (1,))


def test_replicas_are_added_within_the_leaders_epoch():
    """KAFKA-FACTS 4.3: the leader goes on in its epoch, and only the partition epoch rises."""
    cluster = moving()
    before = cluster.state()
    assert cluster.reassign((4, 2, 3)).error_code == 0
    after = cluster.state()
    assert shown(cluster) == ((4, 2, 3, 1), (4,), (1,))
    assert (after.leader, after.leader_epoch, after.isr) == (1, before.leader_epoch, (2, 3, 1))
    assert after.partition_epoch == before.partition_epoch + 1
    [ongoing] = cluster.ongoing()
    assert (ongoing.replicas, ongoing.adding_replicas, ongoing.removing_replicas) == ((4, 2, 3, 1), (4,), (1,))


def test_it_completes_when_the_whole_target_is_in_sync():
    """KAFKA-FACTS 4.3: then the others go, the leader too, and a new epoch keeps them from being counted or served."""
    cluster = moving()
    cluster.reassign((4, 5, 3))
    epoch = cluster.state().leader_epoch
    cluster.set_isr(1, 2, 3, 4)
    assert cluster.state().assignment.under_way
    answer = cluster.propose(cluster.proposal(1, 2, 3, 4, 5))
    assert answer.error_code == 0
    assert shown(cluster) == ((4, 5, 3), (), ())
    assert cluster.leader() == (4, (4, 5, 3))
    assert answer.leader_epoch == cluster.state().leader_epoch == epoch + 1
    assert cluster.ongoing() == []


def test_a_leader_that_stays_keeps_leading_in_a_new_epoch():
    """Also where replicas were only added: the number of in-sync replicas that is needed may have risen."""
    cluster = moving()
    cluster.reassign((1, 2, 3, 4))
    epoch = cluster.state().leader_epoch
    cluster.set_isr(1, 2, 3, 4)
    assert (cluster.state().leader, cluster.state().leader_epoch) == (1, epoch + 1)


def test_what_needs_nobody_to_catch_up_is_complete_at_once():
    """Another order is taken as it is; fewer replicas, when those that stay are in sync."""
    cluster = moving()
    epoch = cluster.state().leader_epoch
    cluster.reassign((3, 2, 1))
    assert shown(cluster) == ((3, 2, 1), (), ())
    assert (cluster.state().leader, cluster.state().leader_epoch) == (1, epoch)
    cluster.reassign((3, 2))
    assert shown(cluster) == ((3, 2), (), ())
    assert cluster.leader() == (3, (3, 2))
    assert cluster.state().leader_epoch == epoch + 1


def test_asked_for_what_is_so_nothing_is_recorded():
    """A repeated request (its answer was lost) is harmless."""
    cluster = moving()
    cluster.reassign((4, 2, 3))
    before = cluster.image
    assert cluster.reassign((4, 2, 3)).error_code == 0
    assert cluster.image == before


def test_cancelled_it_is_as_before():
    """The new replica goes, also out of the ISR, and with a new epoch out of the leader's books."""
    cluster = moving()
    cluster.reassign((4, 2, 3))
    cluster.reassign((4, 2, 5))
    cluster.set_isr(1, 2, 3, 4)
    epoch = cluster.state().leader_epoch
    assert cluster.reassign(None).error_code == 0
    assert (set(cluster.state().replicas), cluster.state().adding, cluster.state().removing) == ({1, 2, 3}, (), ())
    assert cluster.leader()[0] == 1
    assert set(cluster.leader()[1]) == {1, 2, 3}
    assert cluster.state().leader_epoch == epoch + 1


def test_a_cancelled_leader_hands_over_to_a_replica_that_is_in_sync():
    """S19: the leader was on its way in; the original replicas in the ISR take over."""
    cluster = moving()
    cluster.reassign((4, 5, 3))
    cluster.set_isr(1, 2, 3, 4)
    cluster.lose(1)
    assert cluster.state().leader == 4
    assert cluster.reassign(None).error_code == 0
    assert cluster.leader() == (3, (3, 2))


@pytest.mark.parametrize("target", [None, (1, 2, 3), (5, 2, 3)])
def test_no_step_takes_a_partition_below_the_in_sync_replicas_that_it_needs(target: tuple[int, ...] | None):
    """Dropping the newcomer would leave an ISR of one where two are needed: refused, with what to do."""
    cluster = moving()
    cluster.reassign((4, 5, 3))
    cluster.set_isr(1, 2, 3, 4)
    cluster.lose(2)
    cluster.set_isr(1, 4)
    before = cluster.image
    answer = cluster.reassign(target)
    assert name_of(answer.error_code) == "INVALID_REPLICA_ASSIGNMENT"
    assert "catch up" in answer.error_message
    assert cluster.image == before


def test_the_only_replica_that_holds_everything_is_not_dropped():
    """An ISR of newcomers only: cancelling would need an unclean election."""
    cluster = moving()
    cluster.controller = Cluster(0, min_isr=1).controller
    cluster.reassign((4, 5, 3))
    cluster.set_isr(1, 4)
    cluster.lose(1)
    assert cluster.leader() == (4, (4,))
    assert name_of(cluster.reassign(None).error_code) == "INVALID_REPLICA_ASSIGNMENT"
    assert cluster.leader() == (4, (4,))


def test_replicas_that_are_coming_do_not_count_for_min_insync_replicas():
    """From one replica to three with min.insync.replicas=2: the partition stays writable while they catch up."""
    cluster = Cluster(3, min_isr=2)
    cluster.create("t", (1,))
    cluster.reassign((1, 2, 3))
    assert (cluster.leader(), cluster.state().elr) == ((1, (1,)), ())
    cluster.set_isr(1, 2)
    cluster.set_isr(1)
    assert cluster.state().elr == ()
    cluster.set_isr(1, 2, 3)
    cluster.set_isr(1)
    assert cluster.state().elr == (2, 3)


def test_a_broker_lost_on_the_way_only_delays_it():
    """The reassignment waits for the newcomer; it completes when that is back and in sync."""
    cluster = moving()
    cluster.reassign((4, 2, 3))
    cluster.lose(4, 2)
    assert cluster.state().assignment.under_way
    cluster.start(4)
    cluster.start(2)
    cluster.set_isr(1, 2, 3, 4)
    assert shown(cluster) == ((4, 2, 3), (), ())


@pytest.mark.parametrize(
    "target, error",
    [
        ((), "INVALID_REPLICA_ASSIGNMENT"),
        ((1, 1), "INVALID_REPLICA_ASSIGNMENT"),
        ((1, 9), "INVALID_REPLICA_ASSIGNMENT"),
        (None, "NO_REASSIGNMENT_IN_PROGRESS"),
    ],
)
def test_what_cannot_be_is_refused_by_name(target: tuple[int, ...] | None, error: str):
    """Kafka's errors; nothing is recorded."""
    cluster = moving()
    before = cluster.image
    assert name_of(cluster.reassign(target).error_code) == error
    assert cluster.image == before


def test_a_partition_that_does_not_exist_and_one_named_twice():
    """Each partition of a request has its own answer."""
    cluster = moving()
    assert cluster.reassign((1,), tp=TopicPartition("t", 1)).error_code == 3
    item = ReassignedPartition(topic="t", partition=0, replicas=(4, 2, 3))
    request = AlterPartitionReassignmentsRequest(partitions=(item, item))
    answers = cluster.commit(cluster.controller.alter_partition_reassignments(cluster.image, request)).responses
    assert [each.error_code for each in answers] == [0, 42]


def test_the_replication_factor_may_be_held():
    """KIP-860: a request can say that a change of the replication factor would be a mistake."""
    cluster = moving()
    assert name_of(cluster.reassign((1, 2), same_factor=True).error_code) == "INVALID_REPLICATION_FACTOR"
    assert cluster.reassign((1, 2, 4), same_factor=True).error_code == 0
    assert cluster.reassign((5, 2, 4), same_factor=True).error_code == 0


def test_a_fenced_broker_may_be_a_target():
    """It is registered: the reassignment waits until it is back."""
    cluster = moving()
    cluster.lose(5)
    assert cluster.reassign((5, 2, 3)).error_code == 0
    assert cluster.state(T0).adding == (5,)


def test_a_last_known_leader_that_was_dropped_does_not_lead_with_an_empty_log():
    """Simulator seed 949000057: it was elected, and what was committed was lost. The last one of the ELR leads instead."""
    cluster = Cluster(4, min_isr=2)
    cluster.create("t", (1, 2))
    cluster.set_isr(1)
    cluster.reassign((1, 2, 3, 4))
    cluster.set_isr(1, 3)
    cluster.lose(1, 3)
    cluster.start(3)
    assert (cluster.leader(), cluster.state().elr, cluster.state().last_known_elr) == ((-1, ()), (1,), (3,))
    cluster.reassign(None)
    assert cluster.state().replicas == (1, 2)
    cluster.reassign((1, 2, 3))
    assert cluster.state().replicas == (1, 2, 3)
    cluster.start(1)
    assert cluster.leader() == (1, (1,))
