"""What must hold of the groups that a new coordinator has loaded from its log.

``loaded_group_differs``
    Generation, leader, protocol, members, instance ids and assignments equal the last committed record of each group.
``loaded_member_without_deadline``
    Every loaded member that is not parked expires within its session timeout, and the coordinator wakes up for it.

Both are checked once per load, right after the step in which the coordinator took over, so they cost nothing else.

Rule for this file: it only looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from minikafka.broker.coordinator_shard import CoordinatorShard
from minikafka.groups.coordinator import GroupCoordinator
from minikafka.groups.group import Group, State
from minikafka.groups.records import GroupValue
from minikafka.sim.sight import Report

DIFFERS: Final = "loaded_group_differs"
NO_DEADLINE: Final = "loaded_member_without_deadline"


def look_at_loaded(
    shard: CoordinatorShard[GroupCoordinator], records: Mapping[str, GroupValue | None], now: float, report: Report
) -> None:
    """Check every group of a coordinator that has just taken over.

    Args:
        shard: The partition of ``__consumer_offsets`` with its coordinator.
        records: The last committed record of each group; None for a group that was deleted.
        now: Virtual seconds.
        report: Receives the violations.
    """
    groups = shard.coordinator._groups
    for name, value in records.items():
        group = groups.get(name)
        if group is not None and group.state is State.DEAD:
            continue  # it is being deleted: its topics are gone
        expected = _recorded(value)
        found = _loaded(group)
        if found != expected:
            report(DIFFERS, f"{name}: the new coordinator loaded {found}, the committed record is {expected}")
    for name, group in groups.items():
        for member in group.members.values():
            if member.join_ticket is not None or member.sync_ticket is not None:
                continue
            latest = now + member.session_timeout_ms / 1000
            if member.deadline > latest:
                report(NO_DEADLINE, f"{name}: {member.member_id} expires at {member.deadline}, not by {latest:.3f}")
            elif shard.coordinator.next_deadline() > member.deadline:
                report(NO_DEADLINE, f"{name}: nothing wakes the coordinator when {member.member_id} expires")


_Facts = tuple[int, str | None, str | None, dict[str, str | None], dict[str, str], dict[str, bytes]]


def _recorded(value: GroupValue | None) -> _Facts:
    if value is None:
        return _loaded(None)
    return (
        value.generation,
        value.leader,
        value.protocol,
        {each.member_id: each.instance_id for each in value.members},
        {each.instance_id: each.member_id for each in value.members if each.instance_id is not None},
        {each.member_id: each.assignment for each in value.members},
    )


def _loaded(group: Group | None) -> _Facts:
    if group is None:
        return 0, None, None, {}, {}, {}
    members = group.members
    return (
        group.generation,
        group.leader,
        group.protocol,
        {name: member.instance_id for name, member in members.items()},
        dict(group.static),
        {name: member.assignment for name, member in members.items()},
    )
