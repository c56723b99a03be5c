"""Bugs for what single messages do: ISR changes, late fetches, votes, snapshots, and fetchers that make no progress."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from msgspec import structs

from minikafka.broker import alter_partition_manager
from minikafka.broker.alter_partition_manager import AlterPartitionManager
from minikafka.broker.api import fetch as fetch_api
from minikafka.broker.quorum_driver import QuorumDriver
from minikafka.broker.replica_fetcher import _Asked
from minikafka.log.partition_log import PartitionLog
from minikafka.quorum import elections, voting
from minikafka.quorum.files import QUORUM_STATE_PATH, encode_state
from minikafka.quorum.image import MetadataImage
from minikafka.quorum.records import BROKER_RESOURCE, ConfigRecord, ProducerIds
from minikafka.replication.follower import FollowerReplica, TruncateByLeaderEpoch
from minikafka.replication.leader import LeaderReplica
from minikafka.sim.plan import Plan
from minikafka.sim.plan_features import isr_churn
from minikafka.sim.seeds import plan_of
from minikafka.types import NO_NODE, EpochEnd
from tests.sim.planted import LOSS, Planted

# ---- ISR changes -----------------------------------------------------------------------------------------------------


def from_any_partition_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    """The controller takes the request for one that knows the present state."""

    def checked(image: MetadataImage, sender: int, item: Any) -> Any:
        topic = image.topic_by_id(item.topic_id)
        if topic is not None and 0 <= item.partition < len(topic.partitions):
            present = topic.partitions[item.partition].partition_epoch
            item = structs.replace(item, partition_epoch=present)
        return original(image, sender, item)

    return checked


def withdrawn_when_it_fails(original: Callable[..., Any]) -> Callable[..., Any]:
    """A request without a response is taken for one that was not applied."""

    async def send(self: AlterPartitionManager, sending: Any) -> bool:
        done: bool = await original(self, sending)
        for _, leader, proposal in () if done else sending.values():
            leader.withdraw(proposal)
        return done

    return send


# ---- late messages ---------------------------------------------------------------------------------------------------


def whoever_asked(self: _Asked, partition: Any) -> bool:
    """An answer is applied by the role that asked, present or not."""
    return bool(self.fetch.offset == partition.log.end_offset)


def any_broker_epoch(original: Callable[..., bool]) -> Callable[..., bool]:
    """A leader looks at the fetcher's id alone."""
    return lambda self, node, broker_epoch: original(self, node, 2**62) or True


def not_a_former_one(original: Callable[..., bool]) -> Callable[..., bool]:
    """A leader refuses a broker's former incarnation, and counts any later one."""
    return lambda self, node, broker_epoch: original(self, node, broker_epoch) or True


# ---- votes -----------------------------------------------------------------------------------------------------------


async def without_the_vote(self: QuorumDriver, state: Any) -> None:
    """The state file says which epoch it is, and not for whom this voter has voted."""
    await self.world.disk.publish(QUORUM_STATE_PATH, encode_state(replace(state, voted_id=NO_NODE)))


def the_longer_log_wins(original: Callable[..., Any]) -> Callable[..., Any]:
    """Logs are compared by their length; the epoch of the last record does not count."""

    def refusal_of(core: Any, request: Any, now: float) -> str | None:
        if request.last_epoch_end_offset < core.log_end.end_offset:
            return "vote_refused_stale_log"
        equal = (
            structs.replace(request, last_epoch=core.log_end.epoch)
            if request.last_epoch < core.log_end.epoch
            else request
        )
        refusal: str | None = original(core, equal, now)
        return refusal

    return refusal_of


# ---- snapshots -------------------------------------------------------------------------------------------------------


def without(left_out: Callable[[Any], bool]) -> Callable[[MetadataImage], list[Any]]:
    """A snapshot lacks some records."""
    original = MetadataImage.records
    return lambda self: [record for record in original(self) if not left_out(record)]


def is_of_a_broker(record: Any) -> bool:
    return isinstance(record, ConfigRecord) and record.resource_type == BROKER_RESOURCE


# ---- no progress -----------------------------------------------------------------------------------------------------


def nowhere(self: TruncateByLeaderEpoch, log: PartitionLog, leaders: EpochEnd) -> int:
    return log.end_offset


def of_this_epoch_only(original: Callable[..., None]) -> Callable[..., None]:
    """A follower that is behind skips what an earlier leader has written."""

    def append(self: FollowerReplica, batches: Any) -> None:
        original(self, [batch for batch in batches if batch.leader_epoch == self.epoch])

    return append


def enough(self: Any) -> bool:
    return True


def with_isr_churn(seed: int) -> Plan:
    """Followers leave the ISR and come back three times, while AlterPartition is lost, late or doubled."""
    plan = plan_of(seed, operations=40, faults=1)
    for number in range(3):
        plan = isr_churn(plan, Random(f"{seed}/{number}/churn"))
    return plan


MESSAGE_CLUSTERS = (
    Planted(
        name="isr_changes_from_any_state",
        story="the controller does not compare partition epochs: a late request replaces a newer ISR (KIP-497)",
        caught_by=("isr_change_without_a_proposal", "maximal_isr_lacks_a_member", "valid_high_watermark", *LOSS),
        patches=[(elections, "_checked", from_any_partition_epoch(elections._checked))],
        seed=0,
        within=80,
    ),
    Planted(
        name="unanswered_proposal_withdrawn",
        story="a leader counts the former ISR as soon as its AlterPartition has no response (KIP-497)",
        caught_by=("maximal_isr_lacks_a_member", "valid_high_watermark", *LOSS),
        patches=[(AlterPartitionManager, "_send", withdrawn_when_it_fails(AlterPartitionManager._send))],
        seed=0,
        within=60,
    ),
    Planted(
        name="overtaken_proposal_withdrawn",
        story="a leader takes INVALID_UPDATE_VERSION for a refusal, though its first attempt was applied",
        caught_by=("maximal_isr_lacks_a_member", "valid_high_watermark", *LOSS),
        patches=[
            (
                alter_partition_manager,
                "SURELY_NOT_DONE",
                alter_partition_manager.SURELY_NOT_DONE | alter_partition_manager.OVERTAKEN,
            )
        ],
        make=with_isr_churn,
        drawn="isr_churn",
        seed=9,
        within=60,
    ),
    Planted(
        name="answers_to_former_roles",
        story="a follower applies the answer to a fetch that a former role has sent (KIP-320)",
        caught_by=("changed_by_a_former_role", "log_in_order", *LOSS),
        patches=[(_Asked, "is_answered_to", whoever_asked)],
        seed=0,
        within=100,
    ),
    Planted(
        name="superseded_fetches_count",
        story="a leader counts a fetch that a broker has sent before its restart (KIP-903)",
        caught_by=("superseded_fetch_counted", "valid_high_watermark", *LOSS),
        patches=[(LeaderReplica, "check_fetcher", any_broker_epoch(LeaderReplica.check_fetcher))],
        seed=0,
        within=300,
    ),
    Planted(
        name="unknown_incarnations_count",
        story="a leader counts the fetches of a broker's next life, which may be in no ISR, before it knows of it",
        caught_by=("unknown_registration_counted", *LOSS),
        patches=[(LeaderReplica, "check_fetcher", not_a_former_one(LeaderReplica.check_fetcher))],
        seed=0,
        within=100,
    ),
    Planted(
        name="vote_forgotten_by_a_restart",
        story="a restarted voter knows the epoch, and not that it has voted in it",
        caught_by=("two_votes_in_an_epoch", "one_quorum_leader_per_epoch", "one_leader_per_epoch"),
        patches=[(QuorumDriver, "_persist", without_the_vote)],
        seed=0,
        within=150,
    ),
    Planted(
        name="the_longer_log_wins",
        story="voters compare the lengths of logs, whatever the epochs of their last records",
        caught_by=("vote_for_a_log_behind", "committed_metadata_lost", "a_committed_record_is_never_cut"),
        patches=[(voting, "refusal_of", the_longer_log_wins(voting.refusal_of))],
        seed=0,
        within=200,
    ),
    Planted(
        name="snapshot_forgets_producer_ids",
        story="a controller that begins from a snapshot assigns producer ids from 0 again",
        caught_by=("metadata_differs", "duplicate", "lost-write"),
        patches=[(MetadataImage, "records", without(lambda record: isinstance(record, ProducerIds)))],
        seed=0,
    ),
    Planted(
        name="snapshot_forgets_broker_settings",
        story="a broker that begins from a snapshot lacks the settings that brokers were given at run time",
        caught_by=("metadata_differs",),
        patches=[(MetadataImage, "records", without(is_of_a_broker))],
        seed=0,
    ),
    Planted(
        name="truncates_at_the_same_place",
        story="a follower whose log diverges truncates nothing, and asks the same question again",
        caught_by=("no_progress",),
        patches=[(TruncateByLeaderEpoch, "on_diverging", nowhere)],
        seed=0,
    ),
    Planted(
        name="fetches_at_the_same_place",
        story="a follower does not store what an earlier leader has written, and asks for it again",
        caught_by=("no_progress",),
        patches=[(FollowerReplica, "append", of_this_epoch_only(FollowerReplica.append))],
        seed=0,
    ),
    Planted(
        name="leader_never_waits",
        story="a leader answers each fetch at once, and its followers ask without a pause",
        caught_by=("no_progress",),
        patches=[(fetch_api._Fetch, "has_enough", enough)],
        seed=0,
    ),
)
