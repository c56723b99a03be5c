"""The seat: which role a state gives, what a new epoch means, and in which order requests are checked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minikafka.config import TopicConfig
from minikafka.errors import FencedLeaderEpoch, KafkaStorageError, NotLeaderOrFollower, UnknownLeaderEpoch
from minikafka.invariant import InvariantViolation
from minikafka.replication.follower import FollowerReplica
from minikafka.replication.leader import LeaderReplica, PartitionState
from minikafka.replication.partition import Partition
from minikafka.types import NO_NODE
from tests.rules.replication_kit import EVERYBODY, Recorded, fetched, seat, state, write

CONFIG = TopicConfig()


def given(partition: Partition, wanted: PartitionState, now: float = 0.0) -> bool:
    return partition.apply(wanted, CONFIG, now)


def leading(**options: object) -> tuple[Partition, LeaderReplica]:
    partition = seat()
    given(partition, state(1, **options))  # type: ignore[arg-type]
    assert isinstance(partition.role, LeaderReplica)
    return partition, partition.role


# ---- roles -----------------------------------------------------------------------------------------------------------


def test_the_state_gives_the_role():
    """S17, S19: leader, follower, or nothing while nobody leads."""
    partition = seat()
    assert partition.role is None
    assert given(partition, state(1, epoch=0, version=0))
    assert isinstance(partition.role, LeaderReplica)
    assert given(partition, state(2, epoch=1, version=1))
    assert isinstance(partition.role, FollowerReplica)
    assert partition.role.leader == 2
    assert given(partition, state(-1, isr=(), epoch=2, version=2))
    assert partition.role is None


def test_an_older_state_is_ignored():
    """KAFKA-FACTS 3.5: partition epochs never fall; metadata may be told twice."""
    partition, role = leading(epoch=3, version=7)
    assert not given(partition, state(2, epoch=2, version=6))
    assert partition.role is role


def test_a_leader_epoch_that_falls_in_a_newer_state_is_a_bug():
    """KAFKA-FACTS 10, invariant 12: neither epoch ever falls."""
    partition, _ = leading(epoch=3, version=7)
    with pytest.raises(InvariantViolation):
        given(partition, state(2, epoch=2, version=8))


def test_within_an_epoch_only_the_isr_changes():
    """The role object stays: requests in flight go on."""
    partition, role = leading()
    assert not given(partition, state(1, isr=(1, 2), version=1))
    assert partition.role is role
    assert role.isr == (1, 2)
    follower = seat(me=2)
    given(follower, state(1))
    kept = follower.role
    assert not given(follower, state(1, isr=(1, 2), version=1))
    assert follower.role is kept
    assert isinstance(kept, FollowerReplica)
    assert kept.isr == (1, 2)


def test_a_reassignment_adds_followers_within_the_epoch():
    """KIP-455: a replica that is added may fetch from the same role, and does not count before it has caught up."""
    partition = seat(eligible={**EVERYBODY, 4: 1})
    given(partition, state(1))
    role = partition.role
    assert isinstance(role, LeaderReplica)
    write(role, "a")
    with pytest.raises(UnknownLeaderEpoch):
        role.check_fetcher(4, -1)
    moving = replace(state(1, version=1), replicas=(4, 2, 3, 1), adding=(4,))
    assert not given(partition, moving)
    assert partition.role is role
    role.check_fetcher(4, 1)
    assert role.remotes[4].end_offset == -1
    assert (role.replicas, role.min_isr) == ((4, 2, 3, 1), 1)
    fetched(role, 2, 1)
    fetched(role, 3, 1)
    assert role.high_watermark == 1
    assert fetched(role, 4, 1, epoch=1).wants_in


def test_replicas_are_taken_away_with_a_new_epoch_only():
    """Nobody may go on counting a replica, or serving it, in the epoch in which it was one."""
    partition, _ = leading()
    with pytest.raises(InvariantViolation):
        given(partition, replace(state(1, isr=(1, 2), version=1), replicas=(1, 2)))
    assert given(partition, replace(state(1, isr=(1, 2), epoch=1, version=2), replicas=(1, 2)))
    assert isinstance(partition.role, LeaderReplica)
    assert list(partition.role.remotes) == [2]


def test_a_replica_that_left_and_is_added_again_counts_from_its_next_fetch():
    """This broker loads a snapshot of the metadata and skips the state in which 3 was no replica; 3 saw that state and
    deleted its log. Its former end must not carry it into the ISR beside a follower that may join.
    """
    partition, role = leading(epoch=1, version=1)
    write(role, "a")
    fetched(role, 2, 1)
    fetched(role, 3, 1)
    added_again = replace(state(1, isr=(1,), epoch=2, version=4), adding=(3,))
    assert given(partition, added_again)
    role = partition.role
    assert isinstance(role, LeaderReplica)
    assert {node: remote.end_offset for node, remote in role.remotes.items()} == {2: 1, 3: -1}
    fetched(role, 2, 1)
    proposal = role.propose_expand()
    assert proposal is not None
    assert proposal.isr == (1, 2)


def test_added_replica_that_is_in_the_isr_keeps_its_end_in_the_next_epoch():
    """It holds what was acknowledged, and the watermark need not wait for its next fetch."""
    partition, role = leading(epoch=1, version=1)
    write(role, "a")
    fetched(role, 3, 1)
    assert given(partition, replace(state(1, epoch=2, version=2), adding=(3,)))
    role = partition.role
    assert isinstance(role, LeaderReplica)
    assert role.remotes[3].end_offset == 1


def test_a_new_epoch_under_the_same_leader_is_a_new_role():
    """KAFKA-7164: a follower that has skipped epochs must verify its log again."""
    partition = seat(me=2)
    given(partition, state(1, epoch=0))
    role = partition.role
    assert given(partition, state(1, epoch=2, version=2))
    assert partition.role is not role


def test_the_watermark_outlives_roles():
    """KAFKA-FACTS 3.6: a new leader starts with the follower's watermark, which usually lags."""
    partition, role = leading(isr=(1,))
    write(role, "a", "b")
    assert partition.high_watermark == 2
    given(partition, state(2, isr=(1, 2), epoch=1, version=1))
    assert partition.high_watermark == 2
    given(partition, state(-1, isr=(), epoch=2, version=2))
    assert partition.high_watermark == 2
    given(partition, state(1, isr=(1, 2), epoch=3, version=3))
    assert partition.high_watermark == 2


def test_a_leader_alone_commits_on_becoming_leader():
    """S9: it need not wait for a fetch that will never come."""
    partition, role = leading()
    write(role, "a")
    assert partition.high_watermark == 0
    given(partition, state(1, isr=(1,), epoch=1, version=1), now=1000.0)
    assert partition.high_watermark == 1


def test_a_leader_elected_again_keeps_what_it_knows():
    """KAFKA-FACTS 3.6: kept if it already led, and nobody else in between."""
    partition, role = leading()
    write(role, "a")
    fetched(role, 2, 1)
    given(partition, state(1, epoch=1, version=1))
    assert isinstance(partition.role, LeaderReplica)
    assert partition.role.remotes[2].end_offset == 1


def test_a_leader_that_missed_an_epoch_knows_nothing_of_its_followers():
    """They may have cut their logs under the leader in between: scenarios/skipped_epochs_forget_remote_ends.txt."""
    partition, role = leading()
    write(role, "a")
    fetched(role, 2, 1)
    given(partition, state(1, epoch=2, version=2))
    assert isinstance(partition.role, LeaderReplica)
    assert partition.role.remotes[2].end_offset == -1


def test_a_checkpointed_watermark_is_bounded_by_the_log():
    """KAFKA-FACTS 10, invariant 8: after a power cut the log may be shorter than its checkpoint says."""
    partition = seat()
    shorter = Partition(
        1,
        partition.partition,
        partition.topic_id,
        partition.log,
        CONFIG,
        high_watermark=99,
        lag_time_max_s=1.0,
        broker_epoch_of=lambda _: 1,
        events=Recorded(),
    )
    assert shorter.high_watermark == 0


def test_resting_gives_up_the_role_but_not_the_watermark():
    """A broker that stops answers nobody; its checkpoint is still written."""
    partition, role = leading(isr=(1,))
    write(role, "a")
    partition.rest()
    assert partition.role is None
    assert partition.high_watermark == 1


def test_a_replica_that_gave_up_its_role_takes_it_up_again_in_the_same_state():
    """The state says what its role is, also when it is no news."""
    partition, _ = leading(isr=(1,))
    partition.rest()
    assert given(partition, state(1, isr=(1,)))
    assert isinstance(partition.role, LeaderReplica)


def test_a_leader_that_stays_knows_which_replicas_are_being_added():
    """They do not count for min.insync.replicas: a rise from 1 to 3 replicas must not stop the partition."""
    partition, role = leading()
    more = replace(state(1, version=1), replicas=(1, 2, 3, 4), adding=(4,))
    assert not given(partition, more)
    assert (role.replicas, role.adding) == ((1, 2, 3, 4), (4,))


def test_a_replica_that_gave_up_its_role_names_no_leader():
    """S27: a client that is refused by a stopping leader must not be sent back to it."""
    partition, _ = leading(isr=(1,))
    partition.rest()
    with pytest.raises(NotLeaderOrFollower) as caught:
        partition.as_leader()
    assert caught.value.facts["leader"] == NO_NODE


def test_settings_reach_role_and_log():
    """min.insync.replicas altered while it leads counts from the next append."""
    partition, role = leading(isr=(1,))
    partition.configure(TopicConfig(min_insync_replicas=2))
    assert role.min_isr == 2
    assert partition.log.config.min_insync_replicas == 2


def test_a_new_lag_time_counts_for_the_present_role():
    """S14: replica.lag.time.max.ms altered while it leads decides who has fallen behind."""
    partition, role = leading()
    write(role, "a")
    assert role.laggards(2.0) == ()
    partition.configure(CONFIG, lag_time_max_s=1.0)
    assert role.laggards(2.0) == (2, 3)


# ---- requests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "believing, error",
    [(2, None), (-1, None), (1, FencedLeaderEpoch), (3, UnknownLeaderEpoch)],
)
def test_a_leader_fences_by_epoch(believing: int, error: type[Exception] | None):
    """KIP-320: a request names the epoch that it believes in."""
    partition, role = leading(epoch=2)
    if error is None:
        assert partition.as_leader(believing) is role
    else:
        with pytest.raises(error):
            partition.as_leader(believing)


@pytest.mark.parametrize(
    "believing, error",
    [(2, NotLeaderOrFollower), (-1, NotLeaderOrFollower), (1, FencedLeaderEpoch), (3, UnknownLeaderEpoch)],
)
def test_the_epoch_is_checked_before_the_role(believing: int, error: type[Exception]):
    """KAFKA-FACTS 3.3, order of checks: fenced, unknown, and only then not leader. A client acts on which it is."""
    partition = seat(me=2)
    given(partition, state(1, epoch=2))
    with pytest.raises(error):
        partition.as_leader(believing)


def test_not_leader_names_the_leader():
    """S27: the client need not ask for metadata to go on."""
    partition = seat(me=2)
    given(partition, state(3, epoch=2))
    with pytest.raises(NotLeaderOrFollower) as caught:
        partition.as_leader()
    assert caught.value.facts == {"leader": 3, "leader_epoch": 2}


def test_a_failed_disk_answers_nothing_and_stays_failed():
    """D2: after a failed fsync the pages may be gone; only a restart, which recovers, may serve again."""
    events = Recorded()
    partition = seat(events=events)
    given(partition, state(1))
    partition.fail("sync failed: broken")
    with pytest.raises(KafkaStorageError, match="broken"):
        partition.as_leader()
    assert not given(partition, state(1, epoch=1, version=1))
    assert partition.role is None
    assert events.of("replica_failed")


def test_repr_is_one_line_in_any_state():
    """STYLE 15."""
    partition = seat()
    assert repr(partition) == "<orders-0 idle e-1 leo=0 hw=0>"
    given(partition, state(2, epoch=4))
    assert repr(partition) == "<orders-0 follower e4 leo=0 hw=0 leader=2>"
