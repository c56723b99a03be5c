"""The leader's rules: append, acknowledge, followers' fetches, the ISR and its proposals."""

from __future__ import annotations

import pytest

from minikafka.config import TopicConfig
from minikafka.errors import (
    InvalidRequiredAcks,
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from minikafka.invariant import InvariantViolation
from minikafka.replication.leader import NEVER, IdleFetches, LeaderReplica, Remote
from minikafka.types import EpochEnd
from tests.rules.replication_kit import EVERYBODY, LAG_S, Recorded, batch, fetched, leader, log_of, values, write

LATE = 1000.0
TWO = TopicConfig(min_insync_replicas=2)

# ---- append ----------------------------------------------------------------------------------------------------------


def test_an_append_says_where_the_batch_lies():
    """S1, S6: base and end offset, and the epoch in the log."""
    led = leader(epoch=3)
    led.append(batch("a", "b"), acks=-1, wall_ms=0)
    appended = led.append(batch("c"), acks=-1, wall_ms=0)
    assert (appended.base_offset, appended.end_offset, appended.duplicate) == (2, 3, False)
    assert led.log.end_offset == 3
    assert led.log.last_epoch == 3


@pytest.mark.parametrize("acks", [-2, 2, 100])
def test_other_acks_are_refused(acks: int):
    """KAFKA-FACTS 3.2: -1, 0 and 1 are all there is; nothing is written."""
    led = leader()
    with pytest.raises(InvalidRequiredAcks):
        led.append(batch("a"), acks=acks, wall_ms=0)
    assert led.log.end_offset == 0


@pytest.mark.parametrize("acks, refused", [(-1, True), (0, False), (1, False)])
def test_too_small_an_isr_refuses_acks_all_only(acks: int, refused: bool):
    """S24: min.insync.replicas guards acks=all; the outcome is not_written, so it is safe to send again."""
    led = leader(isr=(1,), config=TWO)
    if not refused:
        led.append(batch("a"), acks=acks, wall_ms=0)
        assert led.log.end_offset == 1
        return
    with pytest.raises(NotEnoughReplicas) as caught:
        led.append(batch("a"), acks=acks, wall_ms=0)
    assert caught.value.outcome == "not_written"
    assert caught.value.facts == {"isr": [1], "min_insync_replicas": 2}
    assert led.log.end_offset == 0


def test_an_isr_that_shrinks_after_the_append_is_told_as_written():
    """S24, KAFKA-FACTS 3.8: committed, but on fewer replicas than asked for: NOT_ENOUGH_REPLICAS_AFTER_APPEND."""
    led = leader(config=TWO)
    write(led, "a")
    assert not led.check_acknowledged(1)
    fetched(led, 2, 1)
    fetched(led, 3, 1)
    assert led.check_acknowledged(1)
    led.on_committed_state((1,), 1, recovered=True, now=0)
    with pytest.raises(NotEnoughReplicasAfterAppend) as caught:
        led.check_acknowledged(1)
    assert caught.value.outcome == "written"


def test_a_replica_that_is_joining_the_isr_counts_for_min_insync_replicas_after_the_append():
    """KIP-497: a committed batch is on every member of the maximal ISR, so the producer needs no error."""
    led = leader(isr=(1, 2), replicas=(1, 2), config=TWO)
    write(led, "a")
    fetched(led, 2, 1)
    led.on_committed_state((1,), 1, recovered=True, now=0)
    assert led.propose_expand() is not None
    assert led.check_acknowledged(1)


def test_a_replica_that_is_joining_the_isr_does_not_count_for_min_insync_replicas_before_it_has_joined():
    """S24, KIP-966: the controller may refuse it, so the committed ISR alone decides. Nothing is written with acks=all,
    and the watermark stands still for what came with acks=1.
    """
    led = leader(isr=(1,), replicas=(1, 2), config=TWO)
    write(led, "a")
    assert not fetched(led, 2, 1).high_watermark_moved
    assert led.propose_expand() is not None
    with pytest.raises(NotEnoughReplicas):
        led.append(batch("b"), acks=-1, wall_ms=0)
    assert (led.advance(0.0), led.high_watermark, led.log.end_offset) == (False, 0, 1)
    assert led.on_committed_state((1, 2), 1, recovered=True, now=0.0)
    assert led.high_watermark == 1


def test_a_new_leader_knows_where_its_epoch_begins_before_it_writes():
    """KAFKA-7415: else its followers are told "undefined", and diverge."""
    log = log_of((0, 3))
    led = leader(log, epoch=4)
    assert led.epoch_start == 3
    assert log.end_offset_for(4) == EpochEnd(4, 3)
    assert log.end_offset_for(0) == EpochEnd(0, 3)


def test_a_leader_outside_its_isr_is_a_bug():
    """S13: the leader is always in the ISR."""
    with pytest.raises(InvariantViolation, match="S13"):
        leader(isr=(2, 3))


def test_latest_is_not_known_until_the_watermark_reaches_the_epoch():
    """KIP-207: a new leader's watermark lags; "latest" must not go back from what the former leader has told."""
    led = leader(log_of((0, 2)), isr=(1, 2), replicas=(1, 2), epoch=1, high_watermark=1)
    assert not led.knows_its_watermark
    fetched(led, 2, 2)
    assert led.knows_its_watermark


# ---- caught up -------------------------------------------------------------------------------------------------------


def on_fetch(remote: Remote, offset: int, *, end: int, now: float) -> Remote:
    remote.on_fetch(offset=offset, start_offset=0, broker_epoch=1, leader_end=end, now=now)
    return remote


def test_asking_from_the_end_is_caught_up_now():
    """KAFKA-FACTS 3.3: f >= L."""
    assert on_fetch(Remote(), 5, end=5, now=7.0).last_caught_up == 7.0


def test_asking_from_the_former_end_is_caught_up_then():
    """KAFKA-FACTS 3.3: a steady stream of appends never makes a live follower look late."""
    remote = on_fetch(Remote(), 0, end=5, now=1.0)
    assert remote.last_caught_up == NEVER
    on_fetch(remote, 5, end=9, now=2.0)
    assert remote.last_caught_up == 1.0
    on_fetch(remote, 9, end=20, now=3.0)
    assert remote.last_caught_up == 2.0


def test_asking_from_less_is_not_caught_up():
    """S14: otherwise a follower that never arrives would stay in the ISR for ever."""
    remote = on_fetch(Remote(), 0, end=5, now=1.0)
    on_fetch(remote, 4, end=9, now=2.0)
    on_fetch(remote, 8, end=20, now=3.0)
    assert remote.last_caught_up == NEVER


def test_a_follower_may_go_back():
    """KAFKA-FACTS 3.3: after an unclean restart it asks from less, and that is what it has."""
    remote = on_fetch(Remote(), 5, end=5, now=1.0)
    on_fetch(remote, 3, end=5, now=2.0)
    assert (remote.end_offset, remote.last_caught_up) == (3, 1.0)


# ---- fetches ---------------------------------------------------------------------------------------------------------


def test_a_stranger_is_refused():
    """KAFKA-13837: a node that is no replica must not move anything."""
    with pytest.raises(UnknownLeaderEpoch):
        leader().check_fetcher(9, -1)


@pytest.mark.parametrize("epoch, refused", [(19, True), (20, False), (21, False), (-1, True)])
def test_a_former_incarnation_is_refused(epoch: int, refused: bool):
    """KIP-903: what an old process fetches must not vouch for the disk of the new one, nor a fetch that names none."""
    led = leader()
    if refused:
        with pytest.raises(NotLeaderOrFollower):
            led.check_fetcher(2, epoch)
    else:
        led.check_fetcher(2, epoch)


@pytest.mark.parametrize("epoch, counts", [(20, True), (21, False)])
def test_a_later_incarnation_than_the_leader_knows_does_not_count(epoch: int, counts: bool):
    """The controller may have taken the broker out of the ISR when it registered, and this leader may be cut off from
    the controller: it must not commit with a replica that is in no ISR. Reading is harmless.
    """
    assert leader().check_fetcher(2, epoch) == counts
    assert leader(eligible={1: 10, 3: 30}).check_fetcher(2, epoch)


def test_a_fetch_without_a_broker_epoch_is_refused_also_of_a_broker_that_is_fenced():
    """Nothing is known then that its epoch could be older than."""
    led = leader(eligible={1: 10, 3: 30})
    with pytest.raises(NotLeaderOrFollower, match="without its broker epoch"):
        led.check_fetcher(2, -1)
    led.check_fetcher(2, 20)


@pytest.mark.parametrize(
    "offset, last_epoch, expected",
    [
        # the leader's epochs: 0 at 0, 2 at 5, 3 at 8; end 10
        (10, 3, None),  # the same
        (7, 2, None),  # a prefix
        (5, 0, None),
        (0, -1, None),  # an empty log has no epoch, nothing to compare
        (10, 2, (2, 8)),  # more of epoch 2 than the leader has
        (7, 0, (0, 5)),
        (7, 1, (0, 5)),  # an epoch that the leader has never seen: the one below it (KIP-279)
        (5, 1, (0, 5)),  # also when the offset would fit
    ],
)
def test_where_two_logs_part(offset: int, last_epoch: int, expected: tuple[int, int] | None):
    """KIP-101, KIP-279, KIP-595: the answer names epoch and end."""
    led = leader(log_of((0, 5), (2, 3), (3, 2)), epoch=3)
    assert led.diverging(offset, last_epoch) == (EpochEnd(*expected) if expected else None)


def test_an_epoch_newer_than_all_is_out_of_range():
    """KAFKA-FACTS 3.6: an undefined end answers OFFSET_OUT_OF_RANGE."""
    with pytest.raises(OffsetOutOfRange):
        leader(log_of((0, 5))).diverging(3, 7)


def test_an_offset_below_the_log_start_is_out_of_range_before_it_diverges():
    """KAFKA-12996: it cannot be compared with what is no longer there."""
    log = log_of((0, 5), (2, 3))
    log.raise_start(6)
    with pytest.raises(OffsetOutOfRange):
        leader(log, epoch=2).diverging(3, 0)


def test_a_follower_at_the_log_start_does_not_diverge():
    """Retention has taken what it has already: out of range, it would drop its log and begin again."""
    log = log_of((0, 5), (2, 3))
    log.raise_start(6)
    assert leader(log, epoch=2).diverging(6, 2) is None


def test_a_fetch_beyond_the_log_is_never_recorded():
    """S5: a fetch offset is an acknowledgement; one beyond the end would be one for nothing."""
    led = leader()
    with pytest.raises(InvariantViolation):
        fetched(led, 2, 1)


# ---- who may join ----------------------------------------------------------------------------------------------------


def test_a_follower_at_the_watermark_wants_in():
    """S15: a follower that has caught up is let back in."""
    led = leader(isr=(1,))
    write(led, "a", "b")
    assert not fetched(led, 2, 1).wants_in
    assert fetched(led, 2, 2).wants_in
    proposal = led.propose_expand()
    assert proposal is not None
    assert (proposal.isr, proposal.broker_epochs) == ((1, 2), (-1, 20))


def test_a_follower_at_the_watermark_but_before_the_epoch_does_not():
    """KIP-320: the new leader's watermark lags; see scenarios/join_needs_epoch_start.txt."""
    led = leader(log_of((0, 10)), isr=(1, 2), epoch=1, high_watermark=8)
    assert not fetched(led, 3, 8).wants_in
    assert not fetched(led, 3, 9).wants_in
    assert fetched(led, 3, 10).wants_in


def test_a_fenced_broker_does_not():
    """KIP-841: it would be thrown out again at once, or worse, counted."""
    led = leader(isr=(1,), eligible={1: 10, 3: 30})
    assert not fetched(led, 2, 0).wants_in
    assert led.propose_expand() is None


def test_the_log_that_caught_up_must_be_the_log_that_joins():
    """KIP-903, KAFKA-14139: a broker that has registered anew since may have lost its disk."""
    eligible = {1: 10, 2: 20}
    led = leader(isr=(1,), eligible=eligible)
    assert fetched(led, 2, 0, epoch=20).wants_in
    eligible[2] = 21
    assert led.propose_expand() is None
    assert fetched(led, 2, 0, epoch=21).wants_in


def test_nobody_wants_in_while_a_change_is_in_flight():
    """KIP-497: one proposal at a time."""
    led = leader(isr=(1,))
    fetched(led, 2, 0)
    assert led.propose_expand() is not None
    assert not fetched(led, 3, 0).wants_in
    assert led.propose_expand() is None
    assert led.propose_shrink(LATE) is None


# ---- laggards --------------------------------------------------------------------------------------------------------


def test_lag_is_time():
    """S14: not a moment before the lag time, and however few records it is behind."""
    led = leader(isr=(1, 2))
    fetched(led, 2, 0, now=5.0)
    write(led, "a")
    assert led.laggards(5.0 + LAG_S) == ()
    assert led.laggards(5.0 + LAG_S + 0.001) == (2,)


def test_many_records_behind_is_not_lag():
    """S14: a follower far behind in records but within the time stays in."""
    led = leader(isr=(1, 2))
    fetched(led, 2, 0, now=5.0)
    write(led, *[str(number) for number in range(500)])
    assert led.laggards(5.0 + LAG_S) == ()


def test_a_follower_at_the_end_is_in_sync_however_long_idle():
    """KAFKA-FACTS 3.5: an idle partition must not lose its ISR."""
    led = leader(isr=(1, 2))
    fetched(led, 2, 0)
    assert led.laggards(1e9) == ()


def test_a_follower_that_never_asked_has_the_lag_time_from_the_election():
    """KAFKA-FACTS 3.6: at an election who is in the ISR counts as caught up now, or a failover would empty the ISR."""
    led = leader(log_of((0, 1)), isr=(1, 2), epoch=1, now=100.0)
    assert led.laggards(100.0 + LAG_S) == ()
    assert led.laggards(100.0 + LAG_S + 1) == (2,)


def test_all_laggards_go_in_one_change_and_never_the_leader():
    """KAFKA-FACTS 3.5; S13."""
    led = leader()
    write(led, "a")
    proposal = led.propose_shrink(LATE)
    assert proposal is not None
    assert proposal.isr == (1,)


# ---- proposals -------------------------------------------------------------------------------------------------------


def proposing() -> LeaderReplica:
    led = leader(isr=(1, 2))
    write(led, "a")
    assert led.propose_shrink(LATE) is not None
    return led


def test_a_recorded_proposal_is_the_isr():
    """KAFKA-FACTS 3.5: adopt state and version, try the watermark."""
    led = proposing()
    assert led.on_committed_state((1,), 1, recovered=True, now=LATE)
    assert (led.isr, led.partition_epoch, led.proposal, led.high_watermark) == ((1,), 1, None, 1)


def test_an_older_state_is_ignored():
    """KAFKA-12686: the answer and the metadata race; the older of the two must not undo the newer."""
    led = proposing()
    led.on_committed_state((1,), 5, recovered=True, now=LATE)
    assert not led.on_committed_state((1, 2), 4, recovered=True, now=LATE)
    assert not led.on_committed_state((1, 2), 5, recovered=True, now=LATE)
    assert (led.isr, led.partition_epoch) == ((1,), 5)


def test_a_proposal_stays_pending_until_something_is_known():
    """KAFKA-FACTS 3.5: it may or may not have been applied, so both ISRs count."""
    led = proposing()
    assert led.maximal_isr == (1, 2)
    assert led.propose_shrink(LATE) is None, "it would take the place of the first one"
    led.advance(LATE)
    assert led.high_watermark == 0


def test_a_withdrawn_proposal_leaves_the_committed_state():
    """INELIGIBLE_REPLICA, OPERATION_NOT_ATTEMPTED: surely not applied."""
    led = proposing()
    assert led.proposal is not None
    led.withdraw(led.proposal)
    assert (led.isr, led.proposal) == ((1, 2), None)
    assert led.propose_shrink(LATE) is not None, "it may be asked for again"


def test_an_answer_to_a_former_proposal_changes_nothing():
    """KAFKA-FACTS 3.5: ignore an answer if the state is not the one proposed."""
    led = proposing()
    former = led.proposal
    assert former is not None
    led.on_committed_state((1, 2), 1, recovered=True, now=0)
    second = led.propose_shrink(LATE)
    assert second is not None
    led.withdraw(former)
    assert led.proposal is second
    assert (former.partition_epoch, second.partition_epoch) == (0, 1), "each starts from the version it has seen"


def test_a_foreign_change_supersedes_a_proposal():
    """A broker is fenced while a proposal is in flight: the controller's state wins, the proposal is void."""
    led = leader()
    write(led, "a")
    fetched(led, 2, 1, now=LATE)
    assert led.propose_shrink(LATE) is not None
    led.on_committed_state((1, 3), 1, recovered=True, now=LATE)
    assert (led.isr, led.proposal, led.maximal_isr) == ((1, 3), None, (1, 3))


def test_recovery_is_told_once():
    """KIP-704: an uncleanly elected leader says that its log is the log now, with an ISR of itself."""
    led = leader(isr=(1,), recovered=False)
    proposal = led.propose_recovered()
    assert proposal is not None
    assert proposal.isr == (1,)
    assert led.propose_recovered() is None
    led.on_committed_state((1,), 1, recovered=True, now=0)
    assert led.propose_recovered() is None


def test_each_change_of_the_isr_is_told():
    """D9: which way it went."""
    events = Recorded()
    led = leader(events=events)
    led.on_committed_state((1, 2), 1, recovered=True, now=0)
    led.on_committed_state((1, 2, 3), 2, recovered=True, now=0)
    led.on_committed_state((1, 3), 3, recovered=True, now=0)
    led.on_committed_state((1, 2), 4, recovered=True, now=0)
    assert [kind for kind, _ in events if kind.startswith("isr")] == [
        "isr_shrunk",
        "isr_expanded",
        "isr_shrunk",
        "isr_changed",
    ]


# ---- a leader in its next epoch --------------------------------------------------------------------------------------


def test_a_leader_that_goes_on_leading_keeps_what_it_knows():
    """KAFKA-FACTS 3.6: a new epoch under the same leader need not wait for a round of fetches."""
    first = leader(isr=(1, 2))
    write(first, "a")
    fetched(first, 2, 1)
    second = leader(first.log, isr=(1, 2), epoch=1, high_watermark=1, predecessor=first)
    assert second.remotes[2].end_offset == 1
    assert leader(first.log, isr=(1, 2), epoch=2, high_watermark=1).remotes[2].end_offset == -1


def test_member_of_the_isr_has_its_time_from_the_beginning_of_an_epoch():
    """Also if the same broker led before, and has not heard of it for long: it may have had no leader to fetch from."""
    first = leader(isr=(1, 2))
    write(first, "a")
    fetched(first, 2, 1)
    write(first, "b")
    second = leader(first.log, isr=(1, 2), epoch=1, high_watermark=1, predecessor=first, now=LATE)
    assert second.laggards(LATE + LAG_S) == ()
    assert second.laggards(LATE + LAG_S + 1) == (2,)


def test_idle_follower_is_caught_up_as_of_the_last_request_before_an_append():
    """Requests that counted for all idle partitions are written down before the log grows (KIP-227)."""
    led = leader(isr=(1, 2))
    write(led, "a")
    fetched(led, 2, 1)
    idle = IdleFetches(lambda _: None)
    assert led.asks_again(2, 1, broker_epoch=EVERYBODY[2], now=1.0, idle=idle)
    idle.at = LATE
    write(led, "b")
    idle.at = 2 * LATE
    assert led.laggards(LATE + LAG_S) == ()
    assert led.laggards(LATE + LAG_S + 1) == (2,), "later requests say nothing of this partition"


def test_repr_tells_the_state():
    """STYLE 15: transcripts, traces and failures all use it."""
    led = leader(isr=(1, 2), epoch=5)
    write(led, "a")
    assert repr(led) == "<orders-0 leader e5 leo=1 hw=0 isr=1,2>"
    assert values(led.log) == ["a"]
