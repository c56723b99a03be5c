"""Asking the broker that coordinates a group or a transactional id, and the leaders of what a group reads.

A request is forwarded once to the coordinator over ``/rpc``, which never forwards. While nobody coordinates the group
yet (its topic is being created, a partition has no leader, a log is being read) it is found again for some seconds, for
a person who joins the first group of a cluster should not have to know of that. ``?forward=never``: 421 names the
coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from minikafka.broker.find_coordinator import GROUP, TRANSACTION
from minikafka.errors import (
    NOT_WRITTEN,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    LeaderNotAvailable,
    NetworkException,
    NotCoordinator,
    ProtocolError,
    TransactionalIdNotFound,
)
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.rest.host import Host
from minikafka.rest.leaders import ATTEMPTS_MAX, PAUSE_S, ask, may_forward, told_by
from minikafka.rest.visit import Visit
from minikafka.transactions.records import TRANSACTIONS_TOPIC
from minikafka.types import NO_NODE, NodeId, Offset, TopicPartition
from minikafka.web.problems import Refused
from minikafka.wire.group_messages import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from minikafka.wire.messages import Failed, ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse
from minikafka.wire.outcomes import EarlierAttempts, failure_of, outcome_of_all

# A coordinator is elected within the brokers' session; a request that waits longer is asked to come back.
COORDINATOR_WAIT_S = 5.0
LOOK_UP_WAIT_S = 1.0

READING_METHODS = ("GET", "HEAD")

LOOK_AGAIN = (NotCoordinator, CoordinatorNotAvailable, CoordinatorLoadInProgress)
# A coordinator that reads its log is asked again; one that is gone has a successor within the brokers' session.
LIST_ATTEMPTS_MAX = 20
LIST_PAUSE_S = 0.25
LIST_WAIT_S = 1.0


class Coordinated(NamedTuple):
    """What a coordinator is responsible for."""

    key_type: int
    topic: str
    """The internal topic whose leaders coordinate."""
    missing: Callable[[str], ProtocolError]
    """The error of a name when the topic does not exist: then no such name exists either."""


GROUPS = Coordinated(
    GROUP,
    OFFSETS_TOPIC,
    lambda group: GroupIdNotFound(f"group {group} does not exist: no group has committed an offset in this cluster"),
)
TRANSACTIONAL_IDS = Coordinated(
    TRANSACTION,
    TRANSACTIONS_TOPIC,
    lambda name: TransactionalIdNotFound(
        f"there is no transactional id {name}: no producer of this cluster has used transactions"
    ),
)

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
    kind: Coordinated = GROUPS,
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
            node = await coordinator_of(visit, group, kind)
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


async def coordinator_of(visit: Visit, name: str, kind: Coordinated = GROUPS) -> NodeId:
    """Return the coordinator as far as this broker knows. CoordinatorNotAvailable: there is none yet; Refused: 421.

    A request that only reads does not create the internal topic: without it, no such name exists.
    """
    host = visit.host
    if visit.http.method in READING_METHODS and kind.topic not in host.image.topics:
        raise kind.missing(name)
    response: FindCoordinatorResponse = await host.answer(
        "FindCoordinator", FindCoordinatorRequest(keys=(name,), key_type=kind.key_type)
    )
    found: Coordinator = response.coordinators[0]
    if found.error_code:
        raise failure_of(found)
    if found.node_id != host.node_id and not may_forward(visit):
        raise Refused(
            NotCoordinator(f"broker {host.node_id} does not coordinate {name}, broker {found.node_id} does"),
            coordinator=coordinator_members(host, found.node_id),
        )
    return found.node_id


def coordinator_members(host: Host, node: NodeId) -> dict[str, Any]:
    """``coordinator`` in answers and problems."""
    address = host.address_of(node)
    return {"id": node, **({"url": f"{host.config.brokers_scheme}://{address}"} if address is not None else {})}


async def from_all(visit: Visit, request: Any, what: str) -> dict[NodeId, Any]:
    """Return every broker's response to a request for what it coordinates; with ``?forward=never`` only this one's.

    Raises CoordinatorNotAvailable if a live broker does not answer: a list without its part would be wrong.
    """
    host = visit.host
    nodes = sorted({host.node_id, *host.image.eligible_brokers()}) if may_forward(visit) else [host.node_id]
    found = await asyncio.gather(*(_from_one(visit, node, request, what) for node in nodes))
    return {node: each for node, each in zip(nodes, found, strict=True) if each is not None}


async def _from_one(visit: Visit, node: NodeId, request: Any, what: str) -> Any:
    """One broker's response; None when it is gone, for another broker coordinates then what it did."""
    for attempt in range(LIST_ATTEMPTS_MAX):
        try:
            return await ask(visit, node, request, wait_s=LIST_WAIT_S, slack_s=0.0)
        except ProtocolError as error:
            if node != visit.host.node_id and node not in visit.host.image.eligible_brokers():
                return None
            if attempt == LIST_ATTEMPTS_MAX - 1:
                raise CoordinatorNotAvailable(
                    f"broker {node} cannot list its {what}: {error.message}; a list without them would be wrong"
                ) from error
            await asyncio.sleep(LIST_PAUSE_S)
    return None


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
