"""``GET /v1/history/groups``: the consumer groups of an earlier time, from the histories of their coordinators.

Members, state and committed offsets are samples, once a second (``broker/group_history.py``). For one group, the high
watermark of each partition at that time comes from the brokers' history of the partition, and with it the lag.
"""

from __future__ import annotations

from typing import Any

from minikafka.errors import BrokerNotAvailable, GroupIdNotFound
from minikafka.rest.groups import GENERATION, Lag, Member, OfGroup, assigned_to
from minikafka.rest.history import Span, watermarks_at
from minikafka.rest.model import Model, many_of, member
from minikafka.rest.parameters import INT64_MAX, Integer, any_text
from minikafka.rest.permissions import may, may_describe
from minikafka.rest.route import Json, Routes, Visit
from minikafka.rest.views import gather_from_all
from minikafka.security.permissions import Permit
from minikafka.types import NodeId, Offset, TopicPartition
from minikafka.wire.acls import AclOperation, ResourceType
from minikafka.wire.group_messages import DescribedGroup, PastGroup, ReadGroupHistoryRequest

ROUTES = Routes("groups")
PARTITIONS_MAX = 20
"""Partitions of a group whose high watermark is looked up: each costs a request to each broker."""
AT = Integer("at", "The time, in milliseconds since 1970 (default: now).", high=INT64_MAX)
GROUP = any_text("group", "Only this group, with its lag.")


class _PastGroup(OfGroup):
    """A group at an earlier time."""

    sampled_ms: int = member("When its coordinator recorded this; it had not changed until `at`.", 1_795_270_217_937)
    state: str = member("Kafka's word.", "Stable")
    generation: int = member(GENERATION, 3, source="generation_id")
    protocol_type: str = member("`consumer`; empty for a group that only ever committed.", "consumer")
    assignor: str = member("What its members agreed on.", "range", source="protocol")
    members: list[Any] = many_of(Member)
    offsets: list[Any] = many_of(Lag, "`log_end` and `lag` only with `group`, of the first 20 partitions.")


class _PastGroups(Model):
    """The groups of an earlier time."""

    at: int = member("The time.", 1_795_270_220_000)
    start: int | None = member("What is older is forgotten; null: no broker remembers groups.", 1_795_270_200_000)
    brokers: list[NodeId] = member("The brokers whose histories are in the response.", [1, 2, 3])
    groups: list[Any] = many_of(_PastGroup)


@ROUTES.at(
    "GET /v1/history/groups",
    _PastGroups.answer("The groups at that time."),
    parameters=(AT, GROUP),
    problems=(BrokerNotAvailable, GroupIdNotFound),
)
async def get_past_groups(visit: Visit) -> Json:
    """Consumer groups as they were at an earlier time: members, state and committed offsets, sampled once a second."""
    host = visit.host
    at = min(visit[AT], host.world.clock.wall_ms()) if visit.gives(AT) else host.world.clock.wall_ms()
    if not host.history.is_on:
        raise BrokerNotAvailable(f"broker {host.node_id} keeps no history: mk.history.minutes=0")
    wanted = visit[GROUP] if visit.gives(GROUP) else None
    answered = await gather_from_all(host, ReadGroupHistoryRequest(group_id=wanted, at_ms=at))
    latest: dict[str, PastGroup] = {}
    for each in sorted((one for response in answered.values() for one in response.groups), key=lambda one: one.at_ms):
        latest[each.group_id] = each
    permit = visit.permit
    found = [
        (each, each.group)
        for name, each in sorted(latest.items())
        if each.group is not None and may(permit, AclOperation.DESCRIBE, ResourceType.GROUP, name)
    ]
    if wanted is not None and not found:
        raise GroupIdNotFound(f"the brokers remember no group {wanted} at {at}; choose another time")
    ends: dict[TopicPartition, Offset] = {}
    if wanted is not None:
        ends = await watermarks_at(host, _partitions_of(*found[0], permit)[:PARTITIONS_MAX], Span(at, at, at))
    starts = [response.start_ms for response in answered.values() if response.start_ms]
    return _PastGroups(
        at=at,
        start=max(starts) if starts else None,
        brokers=sorted(answered),
        groups=[_out(*each, ends, permit) for each in found],
    ).out()


def _partitions_of(past: PastGroup, group: DescribedGroup, permit: Permit | None) -> list[TopicPartition]:
    """All that it had committed or that a member had, of topics that the client may describe."""
    assigned = {each for one in group.members for each in assigned_to(one, permit)}
    found = sorted(assigned | {TopicPartition(each.topic, each.partition) for each in past.offsets})
    return [each for each in found if may_describe(permit, each.topic)]


def _out(
    past: PastGroup, group: DescribedGroup, ends: dict[TopicPartition, Offset], permit: Permit | None
) -> dict[str, Any]:
    committed = {TopicPartition(each.topic, each.partition): each.offset for each in past.offsets}
    return _PastGroup.out_of(
        group,
        group=past.group_id,
        sampled_ms=past.at_ms,
        members=[Member.described(each, permit) for each in group.members],
        offsets=[Lag.of(name, committed.get(name), ends.get(name)) for name in _partitions_of(past, group, permit)],
    )
