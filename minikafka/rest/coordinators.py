"""Asking the broker that coordinates a group, and the leaders of what it reads.

A request is forwarded once to the coordinator over ``/rpc``, which never forwards. While nobody coordinates the group
yet (its topic is being created, a partition has no leader, a log is being read) it is found again for some seconds, for
a person who joins the first group of a cluster should not have to know of that. ``?forward=never``: 421 names the
coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from minikafka.errors import (
    NOT_WRITTEN,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    LeaderNotAvailable,
    NetworkException,
    NotCoordinator,
    ProtocolError,
)
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.rest.host import Host
from minikafka.rest.leaders import ATTEMPTS_MAX, PAUSE_S, ask, failure_of, may_forward, told_by
from minikafka.rest.problems import Refused
from minikafka.rest.visit import Visit
from minikafka.types import NO_NODE, NodeId, Offset, TopicPartition
from minikafka.wire.group_messages import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from minikafka.wire.messages import Failed, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse
from minikafka.wire.outcomes import EarlierAttempts, outcome_of_all

# A coordinator is elected within the brokers' session; whoever waits longer is told to come back.
COORDINATOR_WAIT_S = 5.0
LOOK_UP_WAIT_S = 1.0

READING_METHODS = ("GET", "HEAD")

LOOK_AGAIN = (NotCoordinator, CoordinatorNotAvailable, CoordinatorLoadInProgress)
ErrorOf = Callable[[Any], Failed | None]
"""The part of an answer that carries the error of the whole request; None: it carries none."""


def whole(response: Any) -> Failed | None:
    """Most answers carry their error themselves."""
    return response if response.error_code else None


async def from_coordinator(
    visit: Visit,
    group: str,
    request: Any,
    *,
    failed: ErrorOf = whole,
    repeatable: bool = True,
    until: float | None = None,
) -> Any:
    """The coordinator's answer; ProtocolError or Refused when the whole request failed.

    ``repeatable``: a lost answer is asked for again. ``until``: when to stop looking, and waiting for the answer.
    An error's outcome is that of all attempts: it is unknown if any attempt may have been written.
    """
    earlier = EarlierAttempts(request)
    clock = visit.host.world.clock
    deadline = clock.now() + COORDINATOR_WAIT_S if until is None else until
    while True:
        try:
            node = await coordinator_of(visit, group)
            left_s = max(deadline - clock.now(), PAUSE_S)
            response = await told_by(visit, node, request, wait_s=left_s, slack_s=0.0 if until else None)
        except LeaderNotAvailable as unreachable:
            error: ProtocolError = CoordinatorNotAvailable(
                f"the coordinator of {group}: {unreachable.message}", outcome=unreachable.outcome
            )
        except ProtocolError as raised:
            error = raised
        else:
            part = failed(response)
            if part is None:
                visit.leaders[:] = [node]
                return earlier.answer(response)
            error = failure_of(part)
            error.outcome = outcome_of_all(response)
        again = isinstance(error, LOOK_AGAIN) and error.outcome == NOT_WRITTEN
        again = again or (repeatable and isinstance(error, NetworkException))
        if not again or not may_forward(visit) or clock.now() + PAUSE_S >= deadline:
            error.outcome = earlier.outcome(error)
            raise error
        earlier.note(error)
        await asyncio.sleep(PAUSE_S)


async def coordinator_of(visit: Visit, group: str) -> NodeId:
    """Who coordinates the group, as far as this broker knows. CoordinatorNotAvailable: nobody yet; Refused: 421.

    A request that only reads does not create the offsets topic: GroupIdNotFound, for without it there is no group.
    """
    host = visit.host
    if visit.http.method in READING_METHODS and OFFSETS_TOPIC not in host.image.topics:
        raise GroupIdNotFound(f"group {group} does not exist: no group has committed an offset in this cluster")
    response: FindCoordinatorResponse = await host.answer("FindCoordinator", FindCoordinatorRequest(keys=(group,)))
    found: Coordinator = response.coordinators[0]
    if found.error_code:
        raise failure_of(found)
    if found.node_id != host.node_id and not may_forward(visit):
        raise Refused(
            NotCoordinator(f"broker {host.node_id} does not coordinate {group}, broker {found.node_id} does"),
            coordinator=coordinator_members(host, found.node_id),
        )
    return found.node_id


def coordinator_members(host: Host, node: NodeId) -> dict[str, Any]:
    """``coordinator`` in answers and problems."""
    address = host.address_of(node)
    return {"id": node, **({"url": f"http://{address}"} if address is not None else {})}


# ---- the logs that groups read ---------------------------------------------------------------------------------------


async def look_up(visit: Visit, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, Offset]:
    """ListOffsets of many partitions, one request per leader, side by side; -1: there is no such record.

    A partition whose leader cannot be asked now is left out.
    """
    found: dict[TopicPartition, Offset] = {}
    missing = dict(asked)
    for attempt in range(ATTEMPTS_MAX):
        if attempt and missing:
            await asyncio.sleep(PAUSE_S)
        leaders: dict[NodeId, list[ListOffsetsPartition]] = {}
        for name, timestamp in missing.items():
            partition = visit.host.image.partition(name)
            if partition is not None and partition.leader != NO_NODE:
                item = ListOffsetsPartition(topic=name.topic, partition=name.partition, timestamp=timestamp)
                leaders.setdefault(partition.leader, []).append(item)
        for part in await asyncio.gather(*(_look_up_at(visit, node, items) for node, items in leaders.items())):
            found.update(part)
        missing = {name: timestamp for name, timestamp in missing.items() if name not in found}
    return found


async def _look_up_at(visit: Visit, node: NodeId, items: list[ListOffsetsPartition]) -> dict[TopicPartition, Offset]:
    try:
        response: ListOffsetsResponse = await ask(
            visit, node, ListOffsetsRequest(partitions=tuple(items)), wait_s=LOOK_UP_WAIT_S
        )
    except (LeaderNotAvailable, NetworkException):
        return {}
    return {
        TopicPartition(each.topic, each.partition): each.offset for each in response.partitions if not each.error_code
    }
