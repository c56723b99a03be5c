"""Kafka's real bugs, planted again (KAFKA-FACTS §11), where a small ground or a directed story shows them.

Those that need whole clusters stand in ``planted.py``. What does not apply here, and why: docs/simulator.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minikafka.errors import IneligibleReplica
from minikafka.lab.lab_cluster import LabCluster
from minikafka.log.checkpoint import parse_clean_shutdown
from minikafka.log.epochs import EpochCache
from minikafka.log.log_directory import LogDirectory
from minikafka.log.names import CLEAN_SHUTDOWN
from minikafka.log.partition_log import PartitionLog
from minikafka.quorum import elections, fetching, voting
from minikafka.quorum.core import QuorumCore
from minikafka.quorum.roles import Leader, Progress
from minikafka.replication.follower import FollowerReplica, TruncateByLeaderEpoch
from minikafka.replication.leader import LeaderReplica
from minikafka.replication.partition import Partition
from minikafka.types import NO_EPOCH
from tests.rules.test_log_directory import test_the_marker_is_gone_for_good_before_a_log_is_loaded as marker_is_gone
from tests.rules.test_quorum_replication import (
    test_nothing_is_committed_before_a_record_of_the_own_epoch as nothing_before_the_own_epoch,
)
from tests.rules.test_quorum_roles import test_a_leader_that_restarts_has_resigned as restarted_has_resigned
from tests.rules.test_replication_leader import test_an_older_state_is_ignored as older_state_is_ignored
from tests.sim import drills
from tests.sim.bug import Bug
from tests.sim.test_cluster_leaders import (
    test_a_new_leader_does_not_let_the_end_go_back as the_end_does_not_go_back,
)

# ---- truncation ------------------------------------------------------------------------------------------------------


def without_the_epochs_name(self: Any, log: PartitionLog, leaders: Any) -> int:
    return min(leaders.end_offset, log.end_offset)


def nobody_is_fenced(self: Partition, current_leader_epoch: int) -> None:
    return


def only_with_records(self: PartitionLog, epoch: int, start_offset: int) -> None:
    return


def the_same_leader_needs_no_check(original: Callable[..., None]) -> Callable[..., None]:
    """A follower that hears of the leader that it knows goes on without comparing logs."""

    class Unchecked(TruncateByLeaderEpoch):
        def last_fetched_epoch(self, log: PartitionLog) -> int:
            return NO_EPOCH

    def follow(self: Partition, state: Any) -> None:
        before = self.role
        original(self, state)
        now = self.role
        if isinstance(before, FollowerReplica) and isinstance(now, FollowerReplica) and before.leader == now.leader:
            now.truncation = Unchecked()

    return follow


def acknowledge_first(original: Callable[..., Any]) -> Callable[..., Any]:
    """The fetch offset counts before it is known whether the logs agree there."""

    def read(self: LabCluster, leader: Any, fetch: Any, *, acknowledge: bool) -> Any:
        role, asked = leader.leads(), fetch.asked
        if role is not None and fetch.node in role.remotes and asked.offset <= role.log.end_offset:
            role.record_fetch(
                fetch.node,
                asked.offset,
                start_offset=asked.start_offset,
                broker_epoch=fetch.broker_epoch,
                leader_end=role.log.end_offset,
                now=self.now,
            )
        return original(self, leader, fetch, acknowledge=acknowledge)

    return read


def watermark_with_every_answer(original: Callable[..., Any]) -> Callable[..., Any]:
    """The leader's watermark is taken even from an answer that says: you differ."""

    def on_response(self: FollowerReplica, answer: Any, *, asked: int) -> Any:
        if answer.diverging_epoch is not None:
            self._assign_watermark(max(self.high_watermark, min(answer.high_watermark, self.log.end_offset)))
        return original(self, answer, asked=asked)

    return on_response


# ---- the ISR ---------------------------------------------------------------------------------------------------------


def any_news(original: Callable[..., bool]) -> Callable[..., bool]:
    """An answer that is older than what the leader knows is applied all the same."""

    def on_committed_state(self: LeaderReplica, isr: Any, partition_epoch: int, *, recovered: bool, now: float) -> bool:
        known, self.partition_epoch = self.partition_epoch, partition_epoch - 1
        moved = original(self, isr, partition_epoch, recovered=recovered, now=now)
        self.partition_epoch = max(known, partition_epoch)
        return moved

    return on_committed_state


def shrink_in_silence(original: Callable[..., bool]) -> Callable[..., bool]:
    """The ISR changes, and nobody asks whether the watermark may move."""

    def on_committed_state(self: LeaderReplica, *args: Any, **kwargs: Any) -> bool:
        self.advance = lambda now: False  # type: ignore[method-assign]
        try:
            return original(self, *args, **kwargs)
        finally:
            del self.advance

    return on_committed_state


def joins_at_the_watermark(self: LeaderReplica, node: int) -> bool:
    return self.remotes[node].end_offset >= self.high_watermark


def alive_is_enough(image: Any, name: str, member: Any) -> None:
    """The incarnation is not compared."""
    if not image.eligible(member.broker_id):
        raise IneligibleReplica(f"{name}: {member.broker_id}")


def anybody_is_eligible(image: Any, name: str, member: Any) -> None:
    return


# ---- recovery --------------------------------------------------------------------------------------------------------


def epoch_zero_is_none(original: Callable[..., bool]) -> Callable[..., bool]:
    def assign(self: EpochCache, epoch: int, start: int) -> bool:
        return original(self, epoch, start) if epoch > 0 else False

    return assign


async def marker_stays(self: LogDirectory) -> None:
    if self._disk.exists(CLEAN_SHUTDOWN):
        self.was_clean = True
        self.previous_broker_epoch = parse_clean_shutdown(self._disk.read_file(CLEAN_SHUTDOWN))


# ---- reading ---------------------------------------------------------------------------------------------------------


def always_sure(self: LeaderReplica) -> bool:
    return True


# ---- the quorum ------------------------------------------------------------------------------------------------------


def a_majority_is_enough(self: QuorumCore) -> bool:
    """Without a record of the own epoch."""
    role = self.role
    return isinstance(role, Leader) and self.raise_high_watermark(
        min(role.majority_end(self.log.synced_end), self.log.end_offset)
    )


def resumes_its_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    """Who had saved that it leads goes on leading."""

    def first_role(self: QuorumCore, now: float) -> Any:
        state = self.state
        if state.leader_id != self.me or not self.is_voter:
            return original(self, now)
        others = [voter for voter in self.voters if voter != self.me]
        return Leader(
            epoch=state.epoch,
            leader_id=self.me,
            voted_id=state.voted_id,
            epoch_start=max(0, self.log.end_offset - 1),
            voters={voter: Progress() for voter in others},
            check_quorum_at=now + 1.5 * self.fetch_timeout_s,
            begin_at=dict.fromkeys(others, now),
            resumed_at=now,
        )

    return first_role


def any_log_may_lead(core: QuorumCore, request: Any, *_: Any) -> str | None:
    """One vote an epoch, but for whoever asks first."""
    role = core.role
    if request.pre_vote:
        return None
    return (
        "vote_refused_already_voted"
        if role.voted_id not in (-1, request.candidate_id) or role.leader_id != -1
        else None
    )


def not_fatal(holds: bool, what: str, **facts: object) -> None:
    return


KAFKA = (
    Bug(
        name="truncate_to_watermark_s22",
        source="KAFKA-1211, KIP-101",
        area="truncation",
        story="followers cut to their watermark, as the article says (S22)",
        patches=[
            (TruncateByLeaderEpoch, "on_follow", lambda self, log, hw: min(hw, log.end_offset)),
            (TruncateByLeaderEpoch, "last_fetched_epoch", lambda self, log: NO_EPOCH),
        ],
        ground="replicas",
        caught_by=("isr_member_lacks_committed", "exposed_record_changed", "logs_diverge", "not_converged"),
        seed=3,
        budget=20,
    ),
    Bug(
        name="answer_without_epoch",
        source="KIP-279 (KAFKA-6361)",
        area="truncation",
        story="the leader's answer names an offset and no epoch: two fast elections leave foreign records",
        patches=[(TruncateByLeaderEpoch, "on_diverging", without_the_epochs_name)],
        ground="replicas",
        caught_by=("not_converged", "logs_diverge"),
        seed=3,
        budget=40,
    ),
    Bug(
        name="no_fetch_fencing",
        source="KAFKA-7395, KIP-320",
        area="fetch",
        story="a fetch of an older leader epoch counts, and a deposed leader answers one of a newer epoch",
        patches=[(Partition, "check_epoch", nobody_is_fenced)],
        ground="story",
        told_in="fetch_of_an_older_epoch",
    ),
    Bug(
        name="no_epoch_start_on_election",
        source="KAFKA-7415",
        area="truncation",
        story="a new leader's epoch begins with its first record, not with its election",
        patches=[(PartitionLog, "assign_epoch", only_with_records)],
        ground="story",
        told_in="skipped_epochs_forget_remote_ends",
    ),
    Bug(
        name="same_leader_not_verified",
        source="KAFKA-7164",
        area="truncation",
        story="a follower that missed elections and finds its leader unchanged compares nothing",
        patches=[(Partition, "_follow", the_same_leader_needs_no_check(Partition._follow))],
        ground="story",
        told_in="missed_epochs_same_leader",
    ),
    Bug(
        name="diverging_fetch_counts",
        source="KAFKA-8400, KAFKA-13141",
        area="fetch",
        story="the leader notes a follower's end from a fetch that it then refuses",
        patches=[(LabCluster, "_read", acknowledge_first(LabCluster._read))],
        ground="replicas",
        caught_by=("isr_member_lacks_committed", "exposed_record_changed", "acknowledged_record_gone"),
        seed=10,
        budget=1000,
    ),
    Bug(
        name="watermark_from_diverging_answer",
        source="KAFKA-14704",
        area="HW",
        story="a follower takes the watermark before it has cut its log",
        patches=[(FollowerReplica, "on_response", watermark_with_every_answer(FollowerReplica.on_response))],
        ground="story",
        told_in="kip279_two_fast_elections",
    ),
    Bug(
        name="stale_isr_answer_applied",
        source="KAFKA-12686",
        area="ISR",
        story="an answer to AlterPartition that metadata has overtaken is applied",
        patches=[(LeaderReplica, "on_committed_state", any_news(LeaderReplica.on_committed_state))],
        ground="drill",
        told_in=older_state_is_ignored,
    ),
    Bug(
        name="shrink_does_not_move_the_watermark",
        source="KAFKA-13091",
        area="HW",
        story="the last laggard has left the ISR, and producers wait on (S9)",
        patches=[(LeaderReplica, "on_committed_state", shrink_in_silence(LeaderReplica.on_committed_state))],
        ground="story",
        told_in="s16_committed_means_every_isr_member",
    ),
    Bug(
        name="join_without_epoch_start",
        source="KIP-320, KAFKA-7395",
        area="ISR",
        story="a follower joins at a new leader's watermark, which lags: one history in 400,000",
        patches=[(LeaderReplica, "may_join", joins_at_the_watermark)],
        ground="story",
        told_in="join_needs_epoch_start",
    ),
    Bug(
        name="epoch_zero_skipped",
        source="KAFKA-10432",
        area="log recovery",
        story="recovery takes epoch 0 for none",
        patches=[(EpochCache, "assign", epoch_zero_is_none(EpochCache.assign))],
        ground="log",
        caught_by=("epochs_differ",),
        seed=1,
        budget=5,
    ),
    Bug(
        name="latest_goes_back",
        source="KAFKA-2334, KIP-207",
        area="HW",
        story="a new leader tells its lagging watermark as the latest offset",
        patches=[(LeaderReplica, "knows_its_watermark", property(always_sure))],
        ground="drill",
        told_in=the_end_does_not_go_back,
    ),
    Bug(
        name="quorum_watermark_of_older_epochs",
        source="KAFKA-12619",
        area="quorum",
        story="the metadata watermark rises without a record of the leader's own epoch",
        patches=[(QuorumCore, "advance_high_watermark", a_majority_is_enough)],
        ground="drill",
        told_in=nothing_before_the_own_epoch,
    ),
    Bug(
        name="leader_resumes_its_epoch",
        source="KAFKA-10527",
        area="quorum",
        story="a restarted leader goes on in its epoch, though its unsynced records are lost",
        patches=[(QuorumCore, "_first_role", resumes_its_epoch(QuorumCore._first_role))],
        ground="drill",
        told_in=restarted_has_resigned,
    ),
    Bug(
        name="committed_metadata_cut",
        source="KAFKA-12460",
        area="quorum",
        story="votes ignore the log, and a cut below the watermark is not fatal",
        patches=[(voting, "refusal_of", any_log_may_lead), (fetching, "invariant", not_fatal)],
        ground="quorum",
        caught_by=("committed_metadata_differs", "acknowledged_metadata_lost", "committed_beyond_the_log_s_end"),
        seed=10,
        budget=20,
    ),
    Bug(
        name="isr_member_of_a_former_life",
        source="KAFKA-14139, KAFKA-14617, KIP-903",
        area="ISR",
        story="a proposal that was made before a member lost its disk puts its empty log into the ISR",
        patches=[(elections, "_check_eligible", alive_is_enough)],
        ground="drill",
        told_in=drills.a_member_that_restarted_since_does_not_join,
    ),
    Bug(
        name="fenced_broker_joins",
        source="KAFKA-13916, KIP-841",
        area="ISR",
        story="a leader adds back the broker that the controller has just fenced",
        patches=[(elections, "_check_eligible", anybody_is_eligible)],
        ground="drill",
        told_in=drills.fenced_and_stopping_brokers_do_not_join,
    ),
    Bug(
        name="clean_marker_stays",
        source="KAFKA-10471",
        area="log recovery",
        story="a crash while logs are loaded leaves the marker of the clean stop",
        patches=[(LogDirectory, "_take_clean_marker", marker_stays)],
        ground="drill",
        told_in=marker_is_gone,
    ),
    Bug(
        name="last_replica_standing",
        source="KIP-966, KAFKA-15583",
        area="HW",
        story="with an ISR below min.insync.replicas the watermark rises all the same",
        patches=[(LeaderReplica, "min_isr", property(lambda self: 1))],
        ground="story",
        told_in="elr/last_replica_standing",
    ),
)
