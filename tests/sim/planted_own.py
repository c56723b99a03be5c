"""Bugs of our own making: each takes one small rule away, across recovery, replication, votes and purgatory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from minikafka.broker.lifecycle import Lifecycle
from minikafka.broker.purgatory import Purgatory
from minikafka.broker.replica_manager import ReplicaManager
from minikafka.log import recovery, scan, segment_store
from minikafka.log.durability import Durability
from minikafka.log.epochs import EpochCache
from minikafka.log.log_directory import LogDirectory
from minikafka.log.names import DAMAGED
from minikafka.log.partition_log import PartitionLog
from minikafka.log.producer_state import Duplicate, ProducerState
from minikafka.log.segment import Segment
from minikafka.log.segment_store import SegmentStore
from minikafka.quorum import controller_brokers, roles, voting
from minikafka.quorum.controller import Controller, under_policy
from minikafka.quorum.core import QuorumCore
from minikafka.quorum.image import BrokerImage, MetadataImage
from minikafka.quorum.roles import Leader, Unattached
from minikafka.replication import leader as leader_rules
from minikafka.replication.follower import FollowerReplica
from minikafka.replication.leader import LeaderReplica
from minikafka.replication.partition import Partition
from minikafka.types import NO_NODE
from minikafka.wire.batch import RecordBatch
from tests.rules.test_controller_brokers import (
    test_a_second_incarnation_is_refused_while_the_first_is_heard as second_incarnation_is_refused,
)
from tests.rules.test_log_cuts import (
    test_epochs_of_believed_segments_come_back_with_them as epochs_of_believed_segments,
)
from tests.rules.test_log_cuts import (
    test_what_was_written_after_the_cut_is_walked_though_the_recovery_point_lies_behind_it as what_follows_is_walked,
)
from tests.rules.test_producer_state import (
    test_a_gap_is_refused_and_says_what_was_expected as gap_is_refused,
)
from tests.rules.test_producer_state import (
    test_the_window_is_five_batches as window_is_five_batches,
)
from tests.rules.test_quorum_replication import (
    test_a_leader_counts_itself_only_up_to_what_it_has_synced as counted_up_to_what_is_synced,
)
from tests.rules.test_quorum_roles import test_a_vote_survives_a_restart as vote_survives_a_restart
from tests.rules.test_replication_follower import (
    test_a_restart_takes_the_watermark_along as restart_takes_the_watermark_along,
)
from tests.sim import drills
from tests.sim.bug import Bug
from tests.sim.test_bit_rot import (
    test_damage_is_remembered_by_a_process_that_ends_before_it_is_let_in as damage_is_remembered,
)
from tests.sim.test_bit_rot import (
    test_the_last_leader_does_not_lead_with_what_damage_has_left as last_leader_needs_its_records,
)
from tests.sim.test_cluster_disks import (
    test_the_last_leader_does_not_lead_with_an_empty_disk_and_does_with_the_former_one as last_leader_needs_its_disk,
)
from tests.sim.test_quorum_sim import (
    test_a_follower_that_hears_nothing_does_not_disturb as deaf_follower_does_not_disturb,
)

# ---- log recovery ----------------------------------------------------------------------------------------------------


def taken_as_it_is(data: Any) -> RecordBatch:
    return RecordBatch.of(data)


def tail_stays(original: Callable[..., bool]) -> Callable[..., bool]:
    """Damage ends the walk, but not the file."""

    def rescan(self: Any, segment: Any, number: int) -> bool:
        before = segment.file.read(0, segment.file.size())
        sound = original(self, segment, number)
        segment.file.append((before[segment.file.size() :],))
        return sound

    return rescan


def all_believed(self: Any) -> int:
    return len(self.segments)


def behind_damage_too(self: Any, first: int, reason: str, *, keep: bool = False) -> None:
    return


def epochs_stay(self: EpochCache, end: int) -> bool:
    return False


def producers_stay(*_: Any, **__: Any) -> None:
    """As they were before the cut."""


def producers_forgotten(disk: Any, folder: str, segments: Any, state: ProducerState, *_: Any, **__: Any) -> None:
    state.clear()


def promise_stays(self: Durability, end: int) -> None:
    return


def promises_all(original: Callable[..., Any]) -> Callable[..., Any]:
    """A sync is taken to cover what was written while it ran."""

    async def sync(self: PartitionLog) -> None:
        await original(self)
        self._durability.synced_end = self.end_offset

    return sync


def rolls_at_once(original: Callable[..., bool]) -> Callable[..., bool]:
    """A segment is sealed though the checkpoint on disk points behind it."""

    def roll(self: SegmentStore, base_offset: int, *, size_max: int) -> bool:
        point, self.disk_recovery_point = self.disk_recovery_point, 0
        try:
            return original(self, base_offset, size_max=size_max)
        finally:
            self.disk_recovery_point = point

    return roll


# ---- replication -----------------------------------------------------------------------------------------------------


def any_other_is_enough(current: int, *, own_end: int, standings: Iterator[Any], **_: Any) -> int:
    """One acknowledgement, from whomever."""
    best = max((each.acknowledged_end for each in standings), default=own_end)
    return max(current, min(own_end, best))


def shrinks_by_itself(original: Callable[..., Any]) -> Callable[..., Any]:
    """The leader lets laggards go and asks afterwards."""

    def propose(self: LeaderReplica, now: float) -> Any:
        proposal = original(self, now)
        if proposal is not None:
            self.isr, self.proposal = proposal.isr, None
            self.advance(now)
        return proposal

    return propose


def few_records_behind(self: LeaderReplica, node: int, now: float) -> bool:
    return self.remotes[node].end_offset >= self.log.end_offset - 1


def as_the_leader_says(self: FollowerReplica, leader_high_watermark: int, leader_start_offset: int) -> bool:
    moved = self.high_watermark != leader_high_watermark
    self._assign_watermark(leader_high_watermark)
    return moved


def restart_without_the_watermark(self: FollowerReplica, offset: int) -> None:
    self.log.restart_at(offset)


def keeps_remote_ends(original: Callable[..., Any]) -> Callable[..., Any]:
    """A leader that is elected again believes what it knew, whoever led in between."""

    def lead(self: Partition, state: Any, now: float) -> None:
        before = self.role
        if isinstance(before, LeaderReplica):
            before.epoch = state.leader_epoch - 1
        original(self, state, now)

    return lead


def own_page_cache(self: LeaderReplica) -> int:
    return self.log.end_offset


def whatever_the_isr(original: Callable[..., Any]) -> Callable[..., Any]:
    def append(self: LeaderReplica, batch: Any, **how: Any) -> Any:
        isr, self.isr = self.isr, self.replicas
        try:
            return original(self, batch, **how)
        finally:
            self.isr = isr

    return append


# ---- the quorum ------------------------------------------------------------------------------------------------------


def votes_again(original: Callable[..., str | None]) -> Callable[..., str | None]:
    def refusal(core: QuorumCore, request: Any, now: float) -> str | None:
        told = original(core, request, now)
        return None if told == "vote_refused_already_voted" else told

    return refusal


def no_look_at_the_log(original: Callable[..., str | None]) -> Callable[..., str | None]:
    def refusal(core: QuorumCore, request: Any, now: float) -> str | None:
        if (request.last_epoch, request.last_epoch_end_offset) >= core.log_end:
            return original(core, request, now)
        role = core.role
        if request.pre_vote:
            return None
        return (
            None
            if role.leader_id == NO_NODE and role.voted_id in (NO_NODE, request.candidate_id)
            else "vote_refused_already_voted"
        )

    return refusal


def stands_in_a_new_epoch(original: Callable[..., None]) -> Callable[..., None]:
    """Asking for pre-votes raises the epoch."""

    def ask(self: QuorumCore, now: float, **kwargs: Any) -> None:
        self.become(Unattached(epoch=self.epoch + 1, election_at=now), roles.HIGHER_EPOCH)
        original(self, now, **{**kwargs, "because": roles.ELECTION_TIMEOUT})

    return ask


def own_unsynced_log(self: QuorumCore) -> bool:
    role = self.role
    if not isinstance(role, Leader):
        return False
    candidate = role.majority_end(self.log.end_offset)
    return candidate > role.epoch_start and self.raise_high_watermark(candidate)


def without_the_last_topic(original: Callable[..., Any]) -> Callable[..., Any]:
    def records(self: MetadataImage) -> Any:
        told = original(self)
        lost = max(self.topics, default=None)
        return [each for each in told if lost is None or getattr(each, "name", None) != lost]

    return records


def any_disk_will_do(self: BrokerImage, log_dirs: tuple[str, ...]) -> bool:
    return True


def damage_is_overlooked(_self: LogDirectory, _log: Any, _points: Any) -> bool:
    return False


def damage_of_this_start(original: Callable[..., bool]) -> Callable[..., bool]:
    def is_damaged(self: LogDirectory, log: Any, points: Any) -> bool:
        self._disk.remove(f"{log.partition}/{DAMAGED}")
        return original(self, log, points)

    return is_damaged


def whoever_comes(original: Callable[..., Any]) -> Callable[..., Any]:
    def register(policy: Any, image: Any, request: Any, *, may_live: bool, caught_up: bool) -> Any:
        return original(policy, image, request, may_live=False, caught_up=caught_up)

    return register


# ---- producers and purgatory -----------------------------------------------------------------------------------------


def gaps_are_fine(self: ProducerState, batch: RecordBatch, *_: Any) -> Duplicate | None:
    known = self._producers.get(batch.producer_id)
    for written in known.window if known is not None else ():
        if (written.first_sequence, written.last_sequence) == (batch.base_sequence, batch.last_sequence):
            return Duplicate(written.base_offset, written.last_offset, written.timestamp)
    return None


def only_the_newest(original: Callable[..., Any]) -> Callable[..., Any]:
    def check(self: ProducerState, batch: RecordBatch, *others: Any) -> Any:
        known = self._producers.get(batch.producer_id)
        while known is not None and len(known.window) > 1:
            del known.window[0]
        return original(self, batch, *others)

    return check


def nobody_is_woken(self: Purgatory, *_: Any) -> None:
    return


def always_alive(self: Lifecycle) -> bool:
    return True


def vouched_by_who_resigned(original: Callable[[Lifecycle, float, float], None]) -> Callable[..., None]:
    def begin_session(self: Lifecycle, sent: float, heard_at: float) -> None:
        original(self, sent, float("inf"))

    return begin_session


LOG = ("recovered_what_was_never_written", "damaged_batch_served", "synced_record_lost", "hole_in_the_log")
LOST = ("isr_member_lacks_committed", "exposed_record_changed", "acknowledged_record_gone")
METADATA = (
    "committed_metadata_differs",
    "acknowledged_metadata_lost",
    "a_committed_record_is_never_cut",
    "committed_beyond_the_log_s_end",
)


def _own(area: str, name: str, story: str, *patches: tuple[Any, str, Any], **where: Any) -> Bug:
    return Bug(name=name, source="ours", area=area, story=story, patches=patches, **where)


def cut_that_nothing_waits_for(original: Callable[..., None]) -> Callable[..., None]:
    def truncate(self: Segment, offset: int) -> None:
        original(self, offset)
        self.cut_write = 0

    return truncate


def not_looked_at(*_: object) -> None:
    return None


OWN = (
    _own(
        "log recovery",
        "checksums_unread",
        "recovery takes a batch whose checksum is wrong",
        (scan, "verify", taken_as_it_is),
        ground="log",
        caught_by=LOG,
        seed=286,
        budget=300,
    ),
    _own(
        "log recovery",
        "torn_tail_kept",
        "recovery leaves the bytes behind the damage in the file",
        (recovery._Loader, "_rescan", tail_stays(recovery._Loader._rescan)),
        ground="log",
        caught_by=(*LOG, "an_empty_segment_has_an_empty_file", "log_differs", "read_elsewhere"),
        seed=4,
        budget=100,
    ),
    _own(
        "log recovery",
        "indexes_believed_after_a_crash",
        "after a power cut no segment is walked",
        (recovery._Loader, "_first_to_scan", all_believed),
        ground="log",
        caught_by=(*LOG, "kill_lost_records", "epochs_differ", "log_differs", "producers_differ"),
        seed=1,
        budget=100,
    ),
    _own(
        "log recovery",
        "segments_behind_damage_kept",
        "what comes after a hole is opened as well",
        (recovery._Loader, "_drop", behind_damage_too),
        ground="log",
        caught_by=(*LOG, "log_differs", "read_elsewhere"),
        seed=1,
        budget=200,
    ),
    _own(
        "log recovery",
        "epochs_not_cut",
        "a cut log keeps the epochs of what was cut",
        (EpochCache, "truncate_from_end", epochs_stay),
        ground="log",
        caught_by=("epochs_differ",),
        budget=20,
    ),
    _own(
        "log recovery",
        "sealed_before_its_cut",
        "a segment is sealed while the power can still undo a cut of it (found by this ground's seeds)",
        (Segment, "truncate", cut_that_nothing_waits_for(Segment.truncate)),
        ground="log",
        caught_by=(*LOG, "good_batch_refused"),
        seed=641,
        budget=1900,
    ),
    _own(
        "log recovery",
        "believed_behind_a_cut",
        "what a recovery point of a log that was cut lets believe is not walked (found by this ground's seeds)",
        (recovery._Loader, "_distrust", not_looked_at),
        ground="drill",
        told_in=what_follows_is_walked,
    ),
    _own(
        "log recovery",
        "epochs_of_a_cut_log_believed",
        "the power undoes a cut, and leader epochs are those of the log that was cut (found by this ground's seeds)",
        (recovery._Loader, "_check_believed_epochs", not_looked_at),
        ground="drill",
        told_in=epochs_of_believed_segments,
    ),
    _own(
        "idempotence",
        "producers_survive_a_cut",
        "after a truncation the producers' sequences are those of the cut records",
        (segment_store, "replay_producers", producers_stay),
        ground="log",
        caught_by=("producers_differ", "good_batch_refused"),
        seed=1,
        budget=20,
    ),
    _own(
        "idempotence",
        "producers_forgotten_by_a_restart",
        "recovery does not replay the batches for their producers",
        (recovery, "replay_producers", producers_forgotten),
        ground="log",
        caught_by=("producers_differ",),
        budget=20,
    ),
    _own(
        "durability",
        "promise_survives_a_cut",
        "what was cut off stays promised, and a region that was written again counts as synced",
        (Durability, "cut", promise_stays),
        ground="log",
        caught_by=("synced_beyond_the_end", "synced_record_lost"),
        budget=20,
    ),
    _own(
        "durability",
        "sync_covers_what_came_later",
        "a sync promises what was appended while it ran",
        (PartitionLog, "sync", promises_all(PartitionLog.sync)),
        ground="log",
        caught_by=("synced_record_lost",),
        seed=1,
        budget=200,
    ),
    _own(
        "durability",
        "rolls_before_the_sync",
        "a segment is sealed unsynced below the recovery point on disk, and believed after a power cut",
        (SegmentStore, "roll", rolls_at_once(SegmentStore.roll)),
        ground="log",
        caught_by=(*LOG, "kill_lost_records", "epochs_differ", "producers_differ"),
        seed=27,
        budget=1000,
    ),
    _own(
        "HW",
        "one_other_is_enough",
        "an acknowledgement of any follower commits, in the ISR or not",
        (leader_rules, "high_watermark_after", any_other_is_enough),
        ground="replicas",
        caught_by=LOST,
        seed=2,
        budget=20,
    ),
    _own(
        "ISR",
        "isr_shrinks_without_the_controller",
        "the leader drops laggards before the controller has agreed",
        (LeaderReplica, "propose_shrink", shrinks_by_itself(LeaderReplica.propose_shrink)),
        ground="replicas",
        caught_by=LOST,
        seed=8,
        budget=200,
    ),
    _own(
        "ISR",
        "lag_in_records",
        "a follower far behind in records leaves the ISR, however lately it caught up (S14)",
        (LeaderReplica, "_is_caught_up", few_records_behind),
        ground="story",
        told_in="s14_lag_is_time_not_records",
    ),
    _own(
        "HW",
        "follower_watermark_beyond_its_log",
        "a follower takes the leader's watermark whole (S8)",
        (FollowerReplica, "on_durable", as_the_leader_says),
        ground="drill",
        told_in=drills.a_followers_watermark_stays_within_its_log,
    ),
    _own(
        "HW",
        "restart_leaves_the_watermark",
        "a log that begins again keeps its old watermark (KAFKA-9491)",
        (FollowerReplica, "restart_at", restart_without_the_watermark),
        ground="drill",
        told_in=restart_takes_the_watermark_along,
    ),
    _own(
        "HW",
        "remote_ends_outlive_other_leaders",
        "a leader that is elected again believes what it knew of its followers",
        (Partition, "_lead", keeps_remote_ends(Partition._lead)),
        ground="story",
        told_in="skipped_epochs_forget_remote_ends",
    ),
    _own(
        "ISR",
        "acks_all_below_min_isr",
        "a produce with acks=all is taken whatever the ISR",
        (LeaderReplica, "append", whatever_the_isr(LeaderReplica.append)),
        ground="story",
        told_in="min_insync_replicas",
    ),
    _own(
        "votes",
        "votes_twice",
        "a voter that is asked again votes again",
        (voting, "refusal_of", votes_again(voting.refusal_of)),
        ground="drill",
        told_in=vote_survives_a_restart,
    ),
    _own(
        "votes",
        "short_logs_are_elected",
        "a vote does not look at the log",
        (voting, "refusal_of", no_look_at_the_log(voting.refusal_of)),
        ground="quorum",
        caught_by=METADATA,
        seed=10,
        budget=60,
    ),
    _own(
        "votes",
        "pre_vote_raises_the_epoch",
        "a voter that hears nothing disturbs those that do (KIP-996)",
        (QuorumCore, "_ask_for_pre_votes", stands_in_a_new_epoch(QuorumCore._ask_for_pre_votes)),
        ground="drill",
        told_in=deaf_follower_does_not_disturb,
    ),
    _own(
        "quorum",
        "leader_counts_its_page_cache",
        "the quorum's leader counts records that it has not synced",
        (QuorumCore, "advance_high_watermark", own_unsynced_log),
        ground="drill",
        told_in=counted_up_to_what_is_synced,
    ),
    _own(
        "quorum",
        "snapshot_loses_a_topic",
        "a broker that starts from a snapshot lacks the last topic",
        (MetadataImage, "records", without_the_last_topic(MetadataImage.records)),
        ground="drill",
        told_in=drills.a_snapshot_holds_every_topic,
    ),
    _own(
        "brokers",
        "elected_with_an_empty_disk",
        "the last known leader leads again though its disk was replaced, and everybody cuts to it (KIP-966)",
        (BrokerImage, "has_one_of", any_disk_will_do),
        # Nor does it say that its logs are gone, which alone would keep it from leading.
        (ReplicaManager, "missing_replicas", ()),
        ground="drill",
        told_in=last_leader_needs_its_disk,
    ),
    _own(
        "brokers",
        "elected_with_what_damage_left",
        "the last known leader leads again with a log that was cut at damage, and the others truncate to it (KIP-966)",
        (LogDirectory, "_is_damaged", damage_is_overlooked),
        ground="drill",
        told_in=last_leader_needs_its_records,
    ),
    _own(
        "brokers",
        "damage_forgotten_at_the_next_start",
        "a log that was cut at damage counts as whole once its broker has ended again, before it was let in (KIP-966)",
        (LogDirectory, "_is_damaged", damage_of_this_start(LogDirectory._is_damaged)),
        ground="drill",
        told_in=damage_is_remembered,
    ),
    _own(
        "brokers",
        "two_incarnations_at_once",
        "a second process with the same node id is registered while the first one lives",
        (Controller, "register", under_policy(whoever_comes(controller_brokers.register))),
        ground="drill",
        told_in=second_incarnation_is_refused,
    ),
    _own(
        "brokers",
        "zombie_acknowledges",
        "a leader whose session has run out goes on",
        (Lifecycle, "session_alive", always_alive),
        ground="drill",
        told_in=drills.a_zombie_acknowledges_nothing,
    ),
    _own(
        "brokers",
        "resigned_controller_vouches",
        "the session counts although the controller in the same process had not been followed for long, and resigned",
        (Lifecycle, "_begin_session", vouched_by_who_resigned(Lifecycle._begin_session)),
        ground="drill",
        told_in=drills.a_resigned_controller_does_not_vouch,
    ),
    _own(
        "idempotence",
        "gap_accepted",
        "a batch is appended though the one before it is missing",
        (ProducerState, "check", gaps_are_fine),
        ground="drill",
        told_in=gap_is_refused,
    ),
    _own(
        "idempotence",
        "window_of_one",
        "only the newest batch is known for a duplicate",
        (ProducerState, "check", only_the_newest(ProducerState.check)),
        ground="drill",
        told_in=window_is_five_batches,
    ),
    _own(
        "purgatory",
        "waiter_lost",
        "a watermark that rises wakes nobody",
        (Purgatory, "wake", nobody_is_woken),
        ground="drill",
        told_in=drills.an_idle_cluster_acknowledges_at_once,
    ),
    _own(
        "purgatory",
        "role_change_wakes_nobody",
        "a request that waits for a leader that is gone waits until the end",
        (Purgatory, "wake_all", nobody_is_woken),
        ground="drill",
        told_in=drills.a_role_change_ends_the_wait,
    ),
)
