"""Bugs that every check missed once: around failovers of a group's coordinator, consumers, and power cuts.

They are hunted with the plans that ``sim run`` draws, unless a plan family is named.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from minikafka.client.fetcher import Fetcher
from minikafka.client.group_member import Member
from minikafka.client.positions import PartitionState, Positions
from minikafka.errors import DiskFailed
from minikafka.groups.group import Group
from minikafka.log import recovery
from minikafka.log.checkpoint import format_clean_shutdown
from minikafka.log.log_directory import LogDirectory
from minikafka.log.names import CLEAN_SHUTDOWN
from minikafka.quorum import controller_brokers
from minikafka.sim.disk import FencedFile
from minikafka.sim.plan import PAGE_CACHE, Plan
from minikafka.sim.plan_features import elr_power_cut, short_logs
from minikafka.sim.seeds import plan_of
from minikafka.types import TopicPartition
from minikafka.wire.outcomes import EarlierAttempts
from tests.rules.test_groups import (
    test_a_new_coordinator_drops_members_that_it_never_hears as silent_members_are_dropped_after_a_failover,
)
from tests.sim.bug import Bug
from tests.sim.planted import LOSS, Planted
from tests.sim.planted_group_plans import with_a_group, with_an_expulsion

# ---- groups ----------------------------------------------------------------------------------------------------------


def sessions_stand_still(self: Group, now: float) -> None:
    """The sessions of loaded members never begin."""


def without_instances(original: Callable[..., Group]) -> Any:
    """A new coordinator loads members without the index of their instance ids."""

    def of(cls: type[Group], group_id: str, value: Any) -> Group:
        group = original(group_id, value)
        group.static.clear()
        return group

    return classmethod(of)


async def takes_what_was_given(self: Member, partitions: tuple[TopicPartition, ...]) -> None:
    """``Member._take`` without its last look at the generation."""
    gone = tuple(each for each in self.owned if each not in partitions)
    if gone:
        await self._gate.hold()
        await self._give_up(gone)
    else:
        self._gate.holding = True
    added = tuple(each for each in partitions if each not in self.owned)
    committed = await self.offsets.committed(added)
    self.owned = partitions
    self._follow(())
    self._positions.assign(partitions)
    for partition, found in committed.items():
        self._positions.begin_at(partition, found.offset, found.leader_epoch)
    self._tell()
    await self._call("on_partitions_assigned", added, always=True)
    if gone and self._is_cooperative:
        self.rejoin("what was given up is free for the others now")


def each_attempt_alone(self: EarlierAttempts, failure: object) -> None:
    """The outcome of a request is that of its last attempt."""


# ---- consumers -------------------------------------------------------------------------------------------------------


def confirmed_by_itself(original: Callable[..., Any]) -> Callable[..., Any]:
    """A new leader epoch needs no validation."""

    def wanted(self: Positions, leader_of: Any, now: float, *more: Any) -> Any:
        for state in self.states.values():
            if state.validated_epoch >= 0:
                state.validated_epoch = max(state.validated_epoch, leader_of(state.partition).epoch)
        return original(self, leader_of, now, *more)

    return wanted


def position_stays(self: Positions, state: PartitionState, end_offset: int, epoch: int) -> None:
    """Where the logs diverge is taken note of, and nothing follows from it."""


def new_epoch_asked(original: Callable[..., Any]) -> Callable[..., Any]:
    """The new leader is asked about its own epoch, which always ends at the end of its log."""

    async def validate(self: Fetcher, node: int, asked: Any) -> None:
        for state, _ in asked:
            state.fetch_epoch = self._leader_of(state.partition).epoch
        await original(self, node, asked)

    return validate


# ---- power -----------------------------------------------------------------------------------------------------------


def with_a_power_cut_of_the_elr(seed: int) -> Plan:
    """A replica that is only eligible to lead loses its power. Nothing syncs its records before: no roll, no checkpoint."""
    plan = elr_power_cut(plan_of(seed, kinds=("crash",), policy=PAGE_CACHE), Random(f"{seed}/elr"))
    unsynced = {"log.flush.offset.checkpoint.interval.ms": "600000", "log.segment.bytes": "100000"}
    return plan.with_(settings={**plan.settings, **unsynced})


def as_after_a_clean_stop(original: Callable[..., Any]) -> Callable[..., Any]:
    """Whoever comes back after an unclean stop stays eligible to lead."""

    def without(policy: Any, image: Any, node: int, **options: Any) -> Any:
        return original(policy, image, node, **{**options, "unclean_stop": False})

    return without


def failures_swallowed(original: Callable[..., Any]) -> Callable[..., Any]:
    """A sync that fails is taken for one that is done."""

    async def sync(self: FencedFile) -> None:
        with suppress(DiskFailed):
            await original(self)

    return sync


async def marked_unsynced(
    self: LogDirectory, *, broker_epoch: int = -1, high_watermarks: Any = None, together: Any = None
) -> bool:
    """``LogDirectory.close`` without the syncs of its logs."""
    for log in self._logs.values():
        await log.settle()
        log.prepare_close()
    await self.checkpoint_recovery_points()
    await self.checkpoint_start_offsets()
    await self.checkpoint_high_watermarks(high_watermarks or {})
    await self._disk.publish(CLEAN_SHUTDOWN, format_clean_shutdown(broker_epoch))
    for log in self._logs.values():
        log.close()
    self._events("data_directory_closed", clean=True)
    return True


def what_comes_back_stays(self: recovery._Loader, restarts: list[int]) -> None:
    """``_Loader._finish_deletion`` without the deletion."""


def nothing_is_unwanted(self: recovery._Loader, number: int) -> int:
    """``_Loader._remove_unwanted`` without the removal."""
    return 0


def with_deletions(seed: int) -> Plan:
    """Power cuts while several segments are deleted at a time."""
    drawn = short_logs(plan_of(seed, kinds=("power_cut", "power_cut_all")), Random(f"{seed}/deletions"))
    topic = drawn.topics[0]
    shortest = replace(topic, configs={**topic.configs, "retention.bytes": "300"})
    settings = {"log.segment.bytes": "300", "log.retention.check.interval.ms": "3000"}
    return drawn.with_(topics=(shortest,), settings={**drawn.settings, **settings})


SURVIVORS = (
    Planted(
        name="sessions_not_begun_by_a_new_coordinator",
        story="a coordinator that has loaded its groups never expires members that it does not hear",
        caught_by=("loaded_member_without_deadline", "not_converged"),
        patches=[(Group, "started", sessions_stand_still)],
        seed=0,
        drawn="group_failovers",
    ),
    Planted(
        name="instance_ids_not_loaded",
        story="a coordinator that has loaded its groups does not know the instance ids of static members (KIP-345)",
        caught_by=("loaded_group_differs",),
        patches=[(Group, "of", without_instances(Group.of))],
        seed=0,
        drawn="group_failovers",
    ),
    Planted(
        name="expelled_while_it_looks_up_offsets",
        story="a member that is expelled while it fetches offsets takes the partitions it was assigned before",
        caught_by=("assigned-outside", "read-outside"),
        patches=[(Member, "_take", takes_what_was_given)],
        seed=0,
        make=with_an_expulsion,
        drawn="consumer_group",
    ),
    Planted(
        name="last_attempt_counts",
        story="a commit whose first attempt has an unknown outcome is reported as not written when the retry is refused",
        caught_by=("refused-commit",),
        patches=[(EarlierAttempts, "note", each_attempt_alone)],
        seed=0,
        within=100,
        make=with_a_group,
        drawn="consumer_group",
    ),
    Planted(
        name="new_leaders_believed",
        story="a consumer goes on at its position after an election, and asks nobody whether it is right (KIP-320)",
        caught_by=("fetched_before_validation",),
        patches=[(Positions, "wanted", confirmed_by_itself(Positions.wanted))],
        seed=0,
        drawn="regrown_log",
    ),
    Planted(
        name="divergence_ignored_by_consumers",
        story="a consumer that learns where the logs diverge stays at its position",
        caught_by=("fetched_past_divergence",),
        patches=[(Positions, "_truncated", position_stays)],
        seed=0,
        within=100,
        drawn="regrown_log",
    ),
    Planted(
        name="validated_with_the_new_epoch",
        story="a consumer validates its position with the new leader's epoch in place of its last batch's",
        caught_by=("validated_with_wrong_epoch",),
        patches=[(Fetcher, "_validate", new_epoch_asked(Fetcher._validate))],
        seed=0,
        drawn="regrown_log",
    ),
    Planted(
        name="eligible_without_power",
        story="a replica that lost its power stays an eligible leader replica (KIP-966)",
        caught_by=LOSS,
        patches=[(controller_brokers, "without_broker", as_after_a_clean_stop(controller_brokers.without_broker))],
        make=with_a_power_cut_of_the_elr,
        seed=1,
        within=40,
        drawn="elr_power_cut",
    ),
    Planted(
        name="failed_sync_counts",
        story="a sync that fails is taken for one that is done",
        caught_by=("synced_end_not_durable",),
        patches=[(FencedFile, "sync", failures_swallowed(FencedFile.sync))],
        seed=0,
        within=150,
    ),
    Planted(
        name="marked_clean_unsynced",
        story="the clean-shutdown marker is written, and the logs were not synced",
        caught_by=("clean_marker_before_sync",),
        patches=[(LogDirectory, "close", marked_unsynced)],
        seed=0,
    ),
    Planted(
        name="deletions_not_finished",
        story="segments below the log's start that a power cut brings back stay, and the gap behind them cuts the log",
        caught_by=("recovered_less_than_promised", *LOSS),
        patches=[
            (recovery._Loader, "_finish_deletion", what_comes_back_stays),
            (recovery._Loader, "_remove_unwanted", nothing_is_unwanted),
        ],
        seed=23,
        make=with_deletions,
        drawn="short_logs",
    ),
)

SURVIVOR_DRILLS = (
    Bug(
        name="loaded_sessions_stand_still",
        source="ours",
        area="groups",
        story="the same as sessions_not_begun_by_a_new_coordinator, under the rules alone",
        patches=[(Group, "started", sessions_stand_still)],
        ground="drill",
        told_in=silent_members_are_dropped_after_a_failover,
    ),
)
