"""Planted bugs: replacements of one small rule each, to prove that the checks can fail (STYLE (d)).

Production carries no switches: a bug is a method put in another's place for one run. Each names the real bug that it
imitates where there is one (KAFKA-FACTS §11), and the violations by which it may be caught.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from minikafka import compiled
from minikafka.broker import replica_fetcher
from minikafka.broker.api import fetch as fetch_api
from minikafka.broker.broker import Broker
from minikafka.broker.quorum_driver import QuorumDriver
from minikafka.config import TopicConfig
from minikafka.log.partition_log import PartitionLog
from minikafka.log.producer_state import ProducerState
from minikafka.quorum import elections, voting
from minikafka.quorum.files import QUORUM_STATE_PATH, encode_state
from minikafka.quorum.roles import Leader
from minikafka.replication.follower import TruncateByLeaderEpoch
from minikafka.replication.leader import LeaderReplica
from minikafka.sim.disk import FencedDisk
from minikafka.sim.plan import FSYNC, PAGE_CACHE, Plan
from minikafka.sim.seeds import plan_of
from minikafka.types import NO_EPOCH, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One bug: what is replaced by what, which violations show it, and a seed that is known to."""

    name: str
    story: str
    caught_by: tuple[str, ...]
    patches: Sequence[tuple[Any, str, Any]]
    """(class or module, attribute, replacement)"""
    seed: int
    kinds: tuple[str, ...] = ()
    """Faults to hunt it with; none named: whatever the seed draws."""
    policy: str | None = None
    within: int = 20
    """If the seed has rotted: so many others are tried, from 0 up."""
    make: Callable[[int], Plan] | None = None
    """The plan of a seed, where another one than ``plan_of`` gives with those kinds."""
    drawn: str = ""
    """What of ``PLAN_FEATURES`` such a plan has."""

    def plan(self, seed: int) -> Plan:
        """What to run."""
        if self.make is not None:
            return self.make(seed)
        return plan_of(seed, kinds=self.kinds, policy=self.policy)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Plant it, and take it out again. RuntimeError where the compiled rules run: nothing can be replaced in them."""
        if compiled.build() == compiled.COMPILED:
            raise RuntimeError("planted bugs need the Python sources: MINIKAFKA_PURE=1")
        kept = [(owner, name, owner.__dict__[name]) for owner, name, _ in self.patches]
        for owner, name, replacement in self.patches:
            setattr(owner, name, replacement)
        try:
            yield
        finally:
            for owner, name, original in kept:
                setattr(owner, name, original)


LOSS = ("committed_record_lost", "exposed_record_changed", "committed_prefix_equal", "lost-write", "diverged")
"""Different sides of the same: what was committed is not there any more."""


# ---- the watermark ---------------------------------------------------------------------------------------------------


def nobody_counts(self: LeaderReplica, node: int, now: float) -> bool:
    return False


def committed_isr_only(self: LeaderReplica) -> tuple[int, ...]:
    """The proposed ISR in place of the maximal one."""
    return self.isr if self.proposal is None else self.proposal.isr


def one_is_enough(self: LeaderReplica) -> int:
    return 1


_follows_from_settings = TopicConfig.__post_init__


def never_synced(config: TopicConfig) -> None:
    """The settings with what follows from them, but for ``flush.messages=1``."""
    _follows_from_settings(config)
    object.__setattr__(config, "syncs_before_acknowledging", False)


# ---- truncation ------------------------------------------------------------------------------------------------------


def cut_to_watermark(self: TruncateByLeaderEpoch, log: PartitionLog, high_watermark: int) -> int:
    return min(high_watermark, log.end_offset)


def no_epoch_asked(self: TruncateByLeaderEpoch, log: PartitionLog) -> int:
    return NO_EPOCH


def never_diverging(self: LeaderReplica, fetch_offset: int, last_fetched_epoch: int) -> None:
    return None


# ---- the ISR ---------------------------------------------------------------------------------------------------------


def anyone_may_join(self: LeaderReplica, node: int) -> bool:
    return True


# ---- brokers ---------------------------------------------------------------------------------------------------------


def roles_at_once(self: Broker) -> None:
    """The roles of former lives are taken up again on the way through the metadata."""
    image = self.image
    old, self._image_of_roles = self._image_of_roles, image
    self._has_caught_up = True
    self.replicas.apply(old, image)


async def no_sync_before_asking(self: Any) -> None:
    return None


def as_if_synced(self: Any, name: TopicPartition) -> bool:
    return False


def up_to_the_log_end(original: Callable[..., Any]) -> Callable[..., Any]:
    """Consumers read to the log's end in place of the watermark."""

    def read(replicas: Any, item: Any, partition: Any, leader: LeaderReplica, *limits: Any) -> Any:
        watermark = leader.high_watermark
        leader.high_watermark = leader.log.end_offset
        try:
            return original(replicas, item, partition, leader, *limits)
        finally:
            leader.high_watermark = watermark

    return read


# ---- log -------------------------------------------------------------------------------------------------------------


def never_seen_before(self: ProducerState, batch: Any, *_: Any) -> None:
    return None


# ---- the controller ------------------------------------------------------------------------------------------------


def first_alive(original: Callable[..., Any]) -> Callable[..., Any]:
    """Elect the first replica that lives, in sync or not."""

    def elect(image: Any, partition: Any, isr: Any, *rest: Any) -> Any:
        everybody = tuple(node for node in partition.replicas if image.eligible(node))
        choice = original(image, partition, everybody or isr, *rest)
        return replace(choice, isr=(choice.leader,)) if choice.leader in everybody else choice

    return elect


# ---- the disk --------------------------------------------------------------------------------------------------------


async def lie(self: Any, *_: Any) -> None:
    """Say that it is durable, and do nothing."""


# ---- the quorum ------------------------------------------------------------------------------------------------------


async def vote_in_page_cache(self: QuorumDriver, state: Any) -> None:
    self.world.disk.replace_file(QUORUM_STATE_PATH, encode_state(state))


def alone_is_a_majority(self: Leader, own_durable_end: int) -> int:
    return own_durable_end


def always_yes(*_: Any) -> None:
    """A vote for whoever asks, whatever was said before."""
    return


PLANTED = (
    Planted(
        name="hw_ignores_isr",
        story="the watermark follows the leader's log alone (S6)",
        caught_by=("valid_high_watermark", *LOSS),
        patches=[(LeaderReplica, "_counts", nobody_counts)],
        seed=0,
    ),
    Planted(
        name="hw_ignores_maximal_isr",
        story="an ISR change in flight counts as if it were done (KIP-497)",
        caught_by=("maximal_isr_lacks_a_member", "valid_high_watermark", *LOSS),
        patches=[(LeaderReplica, "maximal_isr", property(committed_isr_only))],
        seed=9,
    ),
    Planted(
        name="hw_below_min_isr",
        story="the last replica standing commits alone (KAFKA-15583)",
        caught_by=("committed_below_min_isr", *LOSS),
        patches=[(LeaderReplica, "min_isr", property(one_is_enough))],
        kinds=("isolate", "crash", "cut_both"),
        policy=PAGE_CACHE,
        seed=72,
        within=40,
    ),
    Planted(
        name="acknowledged_before_sync",
        story="flush.messages=1 is taken for any other number",
        caught_by=LOSS,
        patches=[(TopicConfig, "__post_init__", never_synced)],
        kinds=("power_cut_all",),
        policy=FSYNC,
        seed=0,
    ),
    Planted(
        name="truncate_by_high_watermark",
        story="followers cut to their watermark (KIP-101)",
        caught_by=("valid_high_watermark", *LOSS),
        patches=[
            (TruncateByLeaderEpoch, "on_follow", cut_to_watermark),
            (TruncateByLeaderEpoch, "last_fetched_epoch", no_epoch_asked),
        ],
        seed=7,
    ),
    Planted(
        name="divergence_unseen",
        story="the leader never tells a follower where their logs part",
        caught_by=(*LOSS, "not_converged", "no_progress", "a_follower_asks_within_the_log"),
        patches=[(LeaderReplica, "diverging", never_diverging)],
        seed=12,
        kinds=("crash",),
    ),
    Planted(
        name="isr_joined_too_early",
        story="a follower joins the ISR wherever it stands",
        caught_by=("valid_high_watermark", *LOSS),
        patches=[(LeaderReplica, "may_join", anyone_may_join)],
        seed=1,
    ),
    Planted(
        name="roles_of_former_lives",
        story="a restarted broker leads old epochs again while it reads the metadata (ours, found by seed 18)",
        caught_by=("one_leader_per_epoch", "leader_epochs_never_fall_along_a_log", *LOSS),
        patches=[(Broker, "_take_roles", roles_at_once)],
        seed=22,
    ),
    Planted(
        name="page_cache_acknowledged",
        story="a restarted follower claims a tail that only the page cache knows (ours, found by seed 7)",
        caught_by=("unsynced_tail_acknowledged", *LOSS),
        patches=[
            (replica_fetcher._LeaderLoop, "_sync_what_is_not", no_sync_before_asking),
            (replica_fetcher._LeaderLoop, "_is_unsynced", as_if_synced),
        ],
        kinds=("slow_disk", "crash", "power_cut_all"),
        policy=FSYNC,
        seed=0,
    ),
    Planted(
        name="read_above_watermark",
        story="consumers read what is not committed (S3)",
        caught_by=("read_before_committed",),
        patches=[(fetch_api, "_read_as_consumer", up_to_the_log_end(fetch_api._read_as_consumer))],
        seed=0,
    ),
    Planted(
        name="retries_duplicate",
        story="the leader does not look for a batch that it has already (KIP-98)",
        caught_by=("duplicate",),
        patches=[(ProducerState, "check", never_seen_before)],
        seed=0,
    ),
    Planted(
        name="vote_not_synced",
        story="a vote is granted before it is durable",
        caught_by=(
            "one_quorum_leader_per_epoch",
            "committed_metadata_differs",
            "two_votes_in_an_epoch",
            "broker_failed",  # a state file renamed before its bytes were durable is empty or torn
        ),
        patches=[(QuorumDriver, "_persist", vote_in_page_cache)],
        kinds=("power_cut_all", "power_cut"),
        policy=FSYNC,
        seed=0,
    ),
    Planted(
        name="quorum_of_one",
        story="the quorum's leader calls committed what it alone has",
        caught_by=("committed_metadata_lost", "committed_metadata_differs", "a_committed_record_is_never_cut"),
        patches=[(Leader, "majority_end", alone_is_a_majority)],
        seed=2,
        kinds=("crash", "isolate", "cut"),
    ),
    Planted(
        name="elected_from_anywhere",
        story="the controller elects any live broker (S20 without being asked)",
        caught_by=("isr_change_without_a_proposal", *LOSS),
        patches=[(elections, "_elect", first_alive(elections._elect))],
        seed=6,
    ),
    Planted(
        name="folders_not_synced",
        story="new segments' names are not made durable",
        caught_by=("synced_end_not_durable", *LOSS, "committed_metadata_lost", "broker_failed", "recovery_differs"),
        patches=[(FencedDisk, "sync_folder", lie)],
        seed=1,
        kinds=("power_cut_all",),
        policy=FSYNC,
    ),
    Planted(
        name="votes_for_everybody",
        story="a voter votes twice in an epoch, and for any log",
        caught_by=(
            "two_votes_in_an_epoch",
            "vote_for_a_log_behind",
            "one_quorum_leader_per_epoch",
            "committed_metadata_lost",
            "committed_metadata_differs",
            "a_committed_record_is_never_cut",
            "a_transition_of_the_table",
        ),
        patches=[(voting, "refusal_of", always_yes)],
        seed=1,
    ),
)
