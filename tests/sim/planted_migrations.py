"""Bugs of groups that change their protocol while members are live: conversions, generations, owners, offsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from minikafka.groups import coordinator as groups_coordinator
from minikafka.groups.consumer import classic
from minikafka.groups.consumer.groups import ConsumerGroups
from minikafka.groups.consumer.records import CURRENT
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.groups.records import GroupRecord
from minikafka.sim.plan import Plan
from minikafka.sim.seeds import migration_plan_of
from tests.rules.test_group_migration import (
    test_a_classic_member_commits_in_a_former_generation_what_it_has_owned_since as commits_what_it_has_owned_since,
)
from tests.sim.bug import Bug
from tests.sim.planted import Planted
from tests.sim.planted_transactions import family


def without_the_tombstone(original: Callable[..., None]) -> Callable[..., None]:
    """The record of the classic group stays beside those of the consumer protocol."""

    def heartbeat(self: ConsumerGroups, *given: Any, converts: Any = (), **named: Any) -> None:
        original(self, *given, converts=(), **named)

    return heartbeat


def without_assignments(original: Callable[..., Any]) -> Callable[..., Any]:
    """The upgrade writes its members and not what they are assigned; memory has it."""

    def upgraded(*given: Any) -> Any:
        draft = original(*given)
        draft.records = [each for each in draft.records if each.kind != CURRENT]
        return draft

    return upgraded


def without_members(original: Callable[..., GroupRecord]) -> Callable[..., GroupRecord]:
    """The downgrade writes a classic group without the assignments of its members."""

    def record_of(changed: Any) -> GroupRecord:
        written = original(changed)
        members = tuple(replace(each, assignment=b"") for each in written.value.members)
        return replace(written, value=replace(written.value, members=members))

    return record_of


def of_any_generation(original: Callable[..., None]) -> Callable[..., None]:
    """A classic member commits in every generation that it ever had, once its group is upgraded."""

    def check(group: Any, request: Any, topics: Any) -> None:
        member = group.members.get(request.member_id)
        if member is None or not member.is_classic:
            original(group, request, topics)

    return check


def nothing_is_owned(original: Callable[..., Any]) -> Callable[..., Any]:
    """A classic member that joins the upgraded group counts as one that has given everything up."""

    def join(rules: Any, draft: Any, request: Any, new_id: str) -> Any:
        kept = classic._with_ids
        classic._with_ids = lambda *_: frozenset()
        try:
            return original(rules, draft, request, new_id)
        finally:
            classic._with_ids = kept

    return join


def as_the_record_says(original: Callable[..., Any]) -> Callable[..., Any]:
    """The upgrade looks at assignments only, not at what cooperative members have yet to give up."""

    def read(*given: Any) -> Any:
        subscription, assigned, _ = original(*given)
        return subscription, assigned, frozenset()

    return read


def with_the_classic_group(original: Callable[..., None]) -> Callable[..., None]:
    """A coordinator that loads an upgraded group drops the offsets that were committed before the upgrade."""

    def loaded(self: GroupCoordinator, step: Any) -> None:
        for held in self._consumers.all():
            self._offsets._committed.pop(held.group.group_id, None)
        original(self, step)

    return loaded


def cooperating(plan: Plan, *, work_s: float) -> Plan:
    """The same plan with a group of cooperative members, which read on while they join, and take their time."""
    (group,) = plan.groups
    settings = {**group.settings, "partition_assignment_strategy": ["cooperative-sticky"]}
    settings |= {"max_poll_interval_ms": 30_000, "rebalance_timeout_ms": 30_000}
    (topic, *others) = plan.topics
    return plan.with_(
        groups=(replace(group, settings=settings, static=(), members=3, work_s=work_s),),
        topics=(replace(topic, partitions=3), *others),
    )


def with_slow_work(seed: int) -> Plan:
    """Members work for seconds on what they must give up, while others join and migrate."""
    return cooperating(migration_plan_of(seed), work_s=2.0)


def migrations(**changes: Any) -> Any:
    return family(**{"make": migration_plan_of, "drawn": "group migrations", "within": 100, **changes})


MIGRATION_CLUSTERS: tuple[Planted, ...] = (
    migrations(
        name="upgrade_leaves_the_classic_record",
        story="an upgrade writes its records without the tombstone of the classic group: the group is there twice",
        caught_by=("two_protocols_recorded",),
        patches=[(ConsumerGroups, "heartbeat", without_the_tombstone(ConsumerGroups.heartbeat))],
    ),
    migrations(
        name="upgrade_half_written",
        story="an upgrade writes the classic members without what they are assigned (KIP-848)",
        caught_by=("conversion_changed_owners",),
        patches=[(groups_coordinator, "upgraded", without_assignments(groups_coordinator.upgraded))],
    ),
    migrations(
        name="downgrade_half_written",
        story="a downgrade writes the classic group without the assignments of its members (KIP-848)",
        caught_by=("conversion_changed_owners",),
        patches=[(classic, "record_of", without_members(classic.record_of))],
    ),
    migrations(
        name="classic_members_own_nothing_when_they_join",
        make=with_slow_work,
        drawn="group migrations, slow work",
        story="JoinGroup of a classic member in an upgraded group confirms every revocation, whatever it reports",
        caught_by=("given_before_revoked",),
        patches=[(classic, "join", nothing_is_owned(classic.join))],
    ),
    migrations(
        name="upgrade_forgets_what_cooperative_members_still_own",
        make=with_slow_work,
        drawn="group migrations, slow work",
        story="an upgrade gives away partitions that a cooperative member works on until it has joined again (KIP-429)",
        caught_by=("given_before_revoked", "commit-back"),
        patches=[(classic, "_read", as_the_record_says(classic._read))],
    ),
    migrations(
        name="offsets_lost_with_the_classic_group",
        story="a coordinator that loads an upgraded group drops the group's committed offsets",
        caught_by=("loaded_offsets_differ", "commit-lost"),
        patches=[(GroupCoordinator, "loaded", with_the_classic_group(GroupCoordinator.loaded))],
    ),
)

MIGRATION_DRILLS = (
    Bug(
        name="classic_generations_not_fenced_after_an_upgrade",
        source="ours",
        area="groups",
        story="an upgraded group takes commits of classic members in generations in which others owned the partitions",
        patches=[(groups_coordinator, "check_committer", of_any_generation(groups_coordinator.check_committer))],
        ground="drill",
        told_in=commits_what_it_has_owned_since,
    ),
)
"""Only a commit that the network delivers late shows it, and a late one of the same generation looks the same."""
