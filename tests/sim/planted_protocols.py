"""Bugs that loops and groups of the consumer protocol show: offsets in transactions, owners, revocations, fencing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from minikafka.groups import coordinator as groups_coordinator
from minikafka.groups.consumer import heartbeat
from minikafka.groups.consumer.group import ConsumerGroup
from minikafka.groups.consumer.groups import ConsumerGroups
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.groups.limits import GroupSettings
from minikafka.sim.plan import Fault, Plan
from minikafka.sim.seeds import heartbeat_plan_of, loop_plan_of
from minikafka.transactions.transaction import Transaction
from minikafka.types import NO_PRODUCER
from tests.sim.planted import Planted
from tests.sim.planted_transactions import VISIBLE, family

# ---- transactions ----------------------------------------------------------------------------------------------------


def the_epoch_as_it_was(original: Callable[..., Any]) -> Callable[..., Any]:
    """A producer that initializes a known transactional id gets the epoch of its predecessor."""

    def initialize(self: Transaction, *given: Any, **named: Any) -> Any:
        target = original(self, *given, **named)
        is_next = target.producer_id == self.value.producer_id and not self.is_new
        return replace(target, producer_epoch=self.value.producer_epoch) if is_next else target

    return initialize


def of_any_generation(self: GroupCoordinator, request: Any) -> None:
    """Offsets in a transaction are taken from every former member."""


def as_plain_ones(original: Callable[..., bool]) -> Callable[..., bool]:
    """A new coordinator takes offsets of transactions for offsets that count at once."""

    def replay(self: GroupCoordinator, key: bytes, value: bytes | None, **named: Any) -> bool:
        return original(self, key, value, **{**named, "producer_id": NO_PRODUCER})

    return replay


# ---- the consumer protocol -------------------------------------------------------------------------------------------


def taken_as_revoked(original: Callable[..., Any]) -> Callable[..., Any]:
    """A heartbeat confirms every revocation, whatever the member says that it owns."""

    def reconciled(group: ConsumerGroup, member_id: str, _owned: Any, **named: Any) -> Any:
        return original(group, member_id, frozenset(), **named)

    return reconciled


def without_owners(original: Callable[..., None]) -> Callable[..., None]:
    """The map of owners is lost with the member's next change."""

    def set_current(self: ConsumerGroup, member_id: str, value: Any) -> None:
        original(self, member_id, value)
        self.owners.clear()

    return set_current


def without_timers(self: ConsumerGroups, held: Any, step: Any) -> None:
    pass


def without_targets(original: Callable[..., None]) -> Callable[..., None]:
    """A new coordinator does not know what its members are to own."""

    def loaded(self: ConsumerGroups, step: Any) -> None:
        for held in self.all():
            held.group.targets.clear()
        original(self, step)

    return loaded


def of_any_member(group: ConsumerGroup, request: Any, topics: Any) -> None:
    """Commits are taken whatever member and epoch they name."""


def without_a_limit(self: GroupSettings, members: int) -> int:
    """The members of a large group, or of one with a small budget, heartbeat as rarely as the budget asks for."""
    return -(-members * 1000 // max(1, self.consumer_heartbeats_per_second))


def loops(**changes: Any) -> Any:
    return family(make=loop_plan_of, drawn="loops", **changes)


def members(**changes: Any) -> Any:
    return family(make=heartbeat_plan_of, drawn="consumer protocol", **changes)


def with_few_heartbeats(seed: int) -> Plan:
    """A group whose members may send one heartbeat a second together, with sessions of three seconds."""
    plan = heartbeat_plan_of(seed)
    few = {
        "mk.group.consumer.heartbeats.per.second": "1",
        "group.consumer.session.timeout.ms": "3000",
        "group.consumer.heartbeat.interval.ms": "1000",
    }
    return plan.with_(settings={**plan.settings, **few})


def with_short_twins(seed: int) -> Plan:
    """Loops whose processes stand still for a moment, in which another one initializes with their transactional id."""
    random = Random(f"{seed}/twins")
    plan = loop_plan_of(seed)
    calm = [each for each in plan.faults if each.target not in plan.loops]
    twins = [
        Fault(
            at_s=round(random.uniform(2.0, plan.duration_s), 3),
            kind="twin_transactor",
            target=name,
            lasts_s=round(random.uniform(0.5, 2.0), 3),
        )
        for name in plan.loops
    ]
    return plan.with_(faults=tuple(calm)).with_faults(twins)


def with_sleepers(seed: int) -> Plan:
    """Loops that stand still for longer than their sessions, and wake while their transactions are still open."""
    random = Random(f"{seed}/sleepers")
    plan = loop_plan_of(seed)
    patient = {"transaction_timeout_ms": 60_000, "session_timeout_ms": 3000, "heartbeat_interval_ms": 750}
    loops_ = {name: {**settings, **patient} for name, settings in plan.loops.items()}
    sleeps = [
        Fault(at_s=round(random.uniform(4.0, plan.duration_s), 3), kind="pause_transactor", target=name, lasts_s=6.0)
        for name in (*plan.loops, *plan.loops, *plan.loops)
    ]
    return plan.with_(loops=loops_, faults=()).with_faults(sleeps)


DISAGREE = ("input_transformed_twice", "input_lost", "output_without_offset", "group_offsets_differ")
"""Different sides of the same: inputs, outputs and offsets do not agree."""

PROTOCOL_CLUSTERS: tuple[Planted, ...] = (
    family(
        name="successors_keep_the_epoch",
        make=with_short_twins,
        drawn="loops with twins",
        story="InitProducerId gives a successor the epoch of its predecessor, which is fenced by nothing (KIP-98)",
        caught_by=(*VISIBLE, "zombie_committed", "producer_fenced_by_nobody", "not_converged"),
        patches=[(Transaction, "initialize", the_epoch_as_it_was(Transaction.initialize))],
    ),
    family(
        name="transactional_commits_of_old_generations",
        make=with_sleepers,
        drawn="loops that sleep",
        story="TxnOffsetCommit does not look at the member's generation: a zombie consumer commits (KIP-447)",
        caught_by=DISAGREE,
        patches=[(GroupCoordinator, "_check_transactional_committer", of_any_generation)],
    ),
    loops(
        name="transactional_offsets_loaded_as_plain_ones",
        story="a new group coordinator takes the offsets of open and aborted transactions for committed ones (KIP-447)",
        caught_by=DISAGREE,
        patches=[(GroupCoordinator, "replay", as_plain_ones(GroupCoordinator.replay))],
    ),
    members(
        name="revocations_without_confirmation",
        story="a partition counts as revoked though its member still owns it (KIP-848)",
        caught_by=("given_before_revoked",),
        patches=[(heartbeat, "reconciled", taken_as_revoked(heartbeat.reconciled))],
    ),
    members(
        name="owners_forgotten",
        story="the owners of partitions are forgotten when a member moves: two members get one (KAFKA-16147)",
        caught_by=("two_owners_recorded", "given_before_revoked"),
        patches=[(ConsumerGroup, "_set_current", without_owners(ConsumerGroup._set_current))],
    ),
    members(
        name="members_of_a_loaded_group_never_expire",
        story="a new coordinator begins no sessions for members of the consumer protocol",
        caught_by=("loaded_member_without_deadline",),
        patches=[(ConsumerGroups, "_begin_timers", without_timers)],
    ),
    members(
        name="targets_not_loaded",
        story="a new coordinator loads the members of the consumer protocol without their target assignments",
        caught_by=("loaded_consumer_group_differs",),
        patches=[(ConsumerGroups, "loaded", without_targets(ConsumerGroups.loaded))],
    ),
    family(
        name="intervals_without_a_limit",
        make=with_few_heartbeats,
        drawn="consumer protocol, few heartbeats",
        story="the interval of heartbeats rises with the members beyond their session timeout (KIP-848)",
        caught_by=("interval_beyond_session",),
        patches=[(GroupSettings, "consumer_interval_ms", without_a_limit)],
    ),
    members(
        name="commits_of_any_member_epoch",
        story="the coordinator does not look at the member and the epoch of a commit (KIP-848)",
        caught_by=("zombie_commit", "commit-back"),
        patches=[(groups_coordinator, "check_committer", of_any_member)],
        within=60,
    ),
)
