"""Requests to the broker that knows: this one, a partition's leader, the active controller, or a coordinator.

- A request is forwarded over ``/rpc`` to the broker that leads as far as this one knows; ``/rpc`` never forwards again.
  With an authorizer it carries its client along, and that broker checks it too (``broker/envelopes.py``).
- If that broker answers that it does not lead, its metadata or ours is a moment old. The newer leader is asked then,
  while nothing can have been written.
- While nobody coordinates a group yet (its topic is being created, a partition has no leader, a log is being read), the
  coordinator is looked up again for some seconds: the first member of a cluster's first group need not know of that.
- ``?forward=never`` turns all of it off: 421 names the right broker.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from minikafka import errors as kafka
from minikafka.broker.coordinator_shards import GROUP, TRANSACTION
from minikafka.broker.throttle import STRICT_SINCE
from minikafka.config import BrokerConfig
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.ports import INTERNAL
from minikafka.quorum.decision import setting_of
from minikafka.quorum.image import PartitionImage, TopicImage
from minikafka.replication.high_watermark import effective_min_isr
from minikafka.rest.host import FORWARD_SLACK_S, Host, Scene
from minikafka.rest.parameters import FORWARD, TIMEOUT_MS
from minikafka.rest.route import Visit
from minikafka.rpc import call
from minikafka.transactions.records import TRANSACTIONS_TOPIC
from minikafka.types import NO_NODE, NodeId, Offset, TopicPartition
from minikafka.web.problems import Refused
from minikafka.wire import messages as m
from minikafka.wire.apis import BY_REQUEST, Item, in_parts
from minikafka.wire.group_messages import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from minikafka.wire.outcomes import EarlierAttempts, failure_of, outcome_of_all

# A follower of the metadata log is one fetch behind at most; three tries bridge that, not an election.
ATTEMPTS_MAX = 3
PAUSE_S = 0.1
# After this long a change is answered even if a broker is still behind; that one will say so itself.
KNOWN_WAIT_S = 3.0
LOOK_UP_WAIT_S = 1.0
"""How long a broker may take for a request that waits for nothing."""
Result = TypeVar("Result")
COMPARED_NAMES_MAX = 200
"""Comparing a misspelled name with more topics would hold the loop for milliseconds."""


def may_forward(visit: Visit) -> bool:
    """Return True if the client lets this broker request the one that knows."""
    return visit[FORWARD] == "auto"


async def ask(visit: Visit, node: NodeId, request: Any, *, wait_s: float, slack_s: float | None = None) -> Any:
    """The response of ``node``, this broker included, to one request that may wait for ``wait_s`` seconds.

    ``slack_s``: what its answer may take beyond that. Raises ProtocolError when the whole request failed:
    LeaderNotAvailable when the broker cannot be reached (nothing happened), NetworkException with outcome *unknown*
    when the answer is lost.
    """
    response = await response_of(visit, node, request, wait_s=wait_s, slack_s=slack_s)
    if response.error_code:
        raise failure_of(response)
    return response


async def response_of(visit: Visit, node: NodeId, request: Any, *, wait_s: float, slack_s: float | None = None) -> Any:
    """As :func:`ask`, but an error that stands in a response is the caller's to read.

    What the client may not do is not sent, and is denied in the response.
    """
    return await visit.answer(
        BY_REQUEST[type(request)], request, lambda left: _response_of(visit, node, left, wait_s=wait_s, slack_s=slack_s)
    )


async def _response_of(visit: Visit, node: NodeId, request: Any, *, wait_s: float, slack_s: float | None) -> Any:
    host = visit.host
    if node == host.node_id:
        visit.served_by.append(node)
        name, throttle = BY_REQUEST[type(request)].name, host.throttle
        if throttle.quotas is not None and name in STRICT_SINCE and not throttle.is_exempt(visit.context):
            # The controller counts what its client creates and deletes, as if another broker had sent it on.
            return await host.answer(name, request, replace(visit.context, forwarded_by=node))
        return await host.answer(name, request)
    address = host.address_of(node)
    if address is None:
        raise kafka.LeaderNotAvailable(f"broker {node} is not known here")
    deadline = host.world.clock.now() + wait_s + (FORWARD_SLACK_S if slack_s is None else slack_s)
    try:
        matters = host.access is not None or host.throttle.quotas is not None
        response = await host.forward(address, request, visit.context if matters else INTERNAL, deadline)
    except kafka.Unreachable:
        raise kafka.LeaderNotAvailable(f"broker {node} at {address} cannot be reached") from None
    except kafka.RequestRefused as error:
        raise kafka.LeaderNotAvailable(f"broker {node} refused the request: {error}") from None
    except kafka.OutcomeUnknown:
        raise kafka.NetworkException(f"broker {node} at {address} did not answer", outcome=kafka.UNKNOWN) from None
    visit.served_by.append(node)
    if response.error_code == kafka.BrokerNotAvailable.code:
        # It is starting or stopping: for the client that is as if it could not be reached.
        outcome = failure_of(response).outcome
        raise kafka.LeaderNotAvailable(f"broker {node} at {address}: {response.error_message}", outcome=outcome)
    return response


def partition_of(host: Scene, name: TopicPartition) -> PartitionImage:
    """The partition as this broker knows it; UnknownTopicOrPartition in words that help."""
    image = host.image
    topic = image.topics.get(name.topic)
    if topic is None:
        raise unknown_topic(host, name.topic)
    partition = image.partition(name)
    if partition is None:
        raise kafka.error_of(3, f"{name.topic} has partitions 0 to {len(topic.partitions) - 1}, not {name.partition}")
    return partition


def first_error(parts: str) -> ErrorOf:
    """Pick the error of a whole response, or the first error of its ``parts``."""
    return lambda answer: next((each for each in (answer, *getattr(answer, parts)) if each.error_code), None)


def check_known(visit: Visit, topic: str) -> str:
    """The name of a topic; UnknownTopicOrPartition if this broker does not know it."""
    if topic not in visit.host.image.topics:
        raise unknown_topic(visit.host, topic)
    return topic


def unknown_topic(host: Scene, topic: str) -> kafka.ProtocolError:
    """404 for a topic, with a similar name. Under an authorizer none is named: it may be hidden from the sender."""
    known = host.image.topics if host.access is None else {}
    near = kafka.did_you_mean(topic, known, quoted=True) if len(known) <= COMPARED_NAMES_MAX else ""
    return kafka.error_of(3, f"there is no topic {topic[:250]!r}{near}")


def min_isr(config: BrokerConfig, topic: TopicImage, partition: PartitionImage) -> int:
    """How many replicas must be in sync for acks=all, by the rule of leaders and controllers."""
    minimum = setting_of(topic, "min.insync.replicas", config.topic_defaults()).min_insync_replicas
    return effective_min_isr(minimum, partition.replicas, partition.adding)


def current_leader(host: Host, name: TopicPartition, hint: m.CurrentLeader | None = None) -> m.CurrentLeader:
    """The leader by the image, or by a newer response of another broker. Raises LeaderNotAvailable without a leader."""
    partition = partition_of(host, name)
    leader = m.CurrentLeader(leader_id=partition.leader, leader_epoch=partition.leader_epoch)
    if hint is not None and hint.leader_epoch > leader.leader_epoch:
        leader = hint
    if leader.leader_id == NO_NODE:
        raise kafka.LeaderNotAvailable(
            f"{name} has no leader at present", isr=list(partition.isr), replicas=list(partition.replicas)
        )
    return leader


def refuse_to_forward(visit: Visit, name: TopicPartition, leader: m.CurrentLeader) -> None:
    """421 with the right broker, unless this one leads."""
    host = visit.host
    if leader.leader_id != host.node_id:
        error = kafka.NotLeaderOrFollower(f"broker {host.node_id} does not lead {name}, broker {leader.leader_id} does")
        raise Refused(error, leader=visit.leader_out(leader), **name._asdict())


def is_stale(error: kafka.ProtocolError) -> bool:
    """Return True if it failed only because metadata is old, with nothing written."""
    return error.stale_metadata and error.outcome == kafka.NOT_WRITTEN


def still_moving(name: TopicPartition, error: kafka.ProtocolError) -> kafka.ProtocolError:
    """The answer when even the newest known leader says it is not: 503, try again."""
    if isinstance(error, kafka.NotLeaderOrFollower) and error.outcome == kafka.NOT_WRITTEN:
        return kafka.LeaderNotAvailable(f"the leader of {name} is changing: {error.message}")
    return error


async def from_leader(
    visit: Visit, name: TopicPartition, request: Any, *, wait_s: float = LOOK_UP_WAIT_S
) -> tuple[Any, m.CurrentLeader]:
    """What the leader's response says of the partition, and who gave it. A request that is lost is sent again, so it
    reads, or does the same when it comes twice.

    Raises ProtocolError or Refused, with the outcome of all attempts.
    """
    hint: m.CurrentLeader | None = None
    earlier = EarlierAttempts(request)
    forward = may_forward(visit)
    for attempt in range(ATTEMPTS_MAX):
        try:
            leader = current_leader(visit.host, name, hint)
        except kafka.ProtocolError as missing:
            missing.outcome = earlier.outcome(missing)
            raise
        if not forward:
            refuse_to_forward(visit, name, leader)
        try:
            response = await ask(visit, leader.leader_id, request, wait_s=wait_s)
            # A response about one partition is the answer itself.
            answer = response.partitions[0] if hasattr(response, "partitions") else response
            hint = getattr(answer, "current_leader", None)
            if not answer.error_code:
                visit.leaders.append(leader.leader_id)
                return answer, leader
            error = failure_of(answer)
        except kafka.ProtocolError as raised:
            error, answer = raised, None
        if not (error.stale_metadata and forward) or attempt == ATTEMPTS_MAX - 1:
            error = still_moving(name, error)
            error.outcome = earlier.outcome(error)
            raise _with_facts(visit, name, leader, error, answer)
        earlier.note(error)
        await asyncio.sleep(PAUSE_S)
    raise kafka.LeaderNotAvailable(f"the leader of {name} is changing")


def _with_facts(
    visit: Visit, name: TopicPartition, leader: m.CurrentLeader, error: kafka.ProtocolError, answer: m.Failed | None
) -> Refused:
    facts: dict[str, Any] = name._asdict()
    if leader.leader_id != NO_NODE:
        visit.leaders.append(leader.leader_id)
        facts["leader"] = visit.leader_out(leader)
    for fact in ("log_start_offset", "high_watermark", "log_end_offset"):
        value = getattr(answer, fact, -1)
        if value >= 0:
            facts[fact] = value
    return Refused(error, **facts)


async def from_controller(visit: Visit, request: Any, items: str = "", *, wait_s: float = LOOK_UP_WAIT_S) -> Any:
    """The response of the active controller; ``items`` of it have errors too. Raises ProtocolError or Refused.

    A controller that steps down may have recorded the change. What its successor refuses is ``unknown`` then, such as a
    topic that exists already.
    """
    earlier = EarlierAttempts(request)
    unreachable = "no controller is reachable: the quorum has no leader at present"
    error: kafka.ProtocolError = kafka.LeaderNotAvailable(unreachable)
    forward = may_forward(visit)
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            await asyncio.sleep(PAUSE_S * 3**attempt)
        controller = await controller_of(visit)
        if controller == NO_NODE:
            continue
        if not forward and controller != visit.host.node_id:
            raise _not_controller(visit, controller)
        visit.leaders[:] = [controller]
        try:
            response = await ask(visit, controller, request, wait_s=wait_s)
        except (kafka.NotController, kafka.LeaderNotAvailable) as raised:
            error = raised
        except kafka.ProtocolError as refused:
            refused.outcome = earlier.outcome(refused)
            raise
        else:
            first = next(iter(getattr(response, items, ())), response)
            if first.error_code != kafka.NotController.code:
                return earlier.answer(response)
            error = failure_of(first)
        earlier.note(error)
        if not forward:
            raise _not_controller(visit, controller, outcome=error.outcome)
    if earlier.may_have_written:
        why = f"no controller says what became of the change: {error.message}"
        raise kafka.RequestTimedOut(why, outcome=kafka.UNKNOWN)
    if isinstance(error, kafka.NotController):
        error = kafka.LeaderNotAvailable(f"the controller is changing: {error.message}")
    raise error


async def change(visit: Visit, request: Any, items: str = "", *, dry_run: bool = False, **facts: Any) -> Any:
    """Let the active controller change one thing, and wait until the live brokers know of it, unless in a ``dry_run``.

    Returns the only one of the response's ``items``, or the response if it has none. Raises ProtocolError or Refused.
    ``facts`` are members of the problem if the controller refuses.
    """
    wait_s = visit[TIMEOUT_MS] / 1000
    response = await from_controller(visit, request, items, wait_s=wait_s)
    changed, *_ = getattr(response, items) if items else (response,)
    if changed.error_code:
        throttle_ms = getattr(response, "throttle_time_ms", 0)
        headers = {"Retry-After": str(math.ceil(throttle_ms / 1000))} if throttle_ms else {}
        raise Refused(failure_of(changed), headers=headers, **facts)
    if not dry_run:
        await until_known(visit, response.metadata_offset, wait_s=min(KNOWN_WAIT_S, wait_s))
    return changed


async def change_partition(visit: Visit, request: Any, items: str, name: TopicPartition) -> PartitionImage:
    """Let the active controller change one partition; return the partition after that.

    Raises ProtocolError or Refused, with outcome ``written`` if the topic was deleted after the change.
    """
    await change(visit, request, items, **name._asdict())
    try:
        return partition_of(visit.host, name)
    except kafka.UnknownTopicOrPartition as deleted:
        deleted.outcome = kafka.WRITTEN
        raise


def _not_controller(visit: Visit, controller: NodeId, *, outcome: kafka.Outcome = kafka.NOT_WRITTEN) -> Refused:
    message = f"broker {visit.host.node_id} is not the active controller, broker {controller} is"
    return Refused(kafka.NotController(message, outcome=outcome), controller=visit.broker_out(controller))


async def controller_of(visit: Visit) -> NodeId:
    """The active controller as this broker knows it."""
    metadata: m.MetadataResponse = await visit.host.answer("Metadata", m.MetadataRequest(topics=()))
    return metadata.controller_id


async def until_known(visit: Visit, metadata_offset: int, *, wait_s: float) -> None:
    """Wait until every live broker has applied the metadata log up to ``metadata_offset``, or ``wait_s`` is over.

    A client that creates a topic wants to produce to it next, and any broker may be the one that leads it.
    """
    host = visit.host
    deadline = host.world.clock.now() + wait_s

    async def wait_for(node: NodeId) -> None:
        while host.world.clock.now() < deadline:
            metadata = await answer_of(host, node, m.MetadataRequest(topics=()), deadline)
            if metadata is not None and metadata.metadata_offset >= metadata_offset:
                return
            await asyncio.sleep(PAUSE_S / 4)

    nodes = sorted({host.node_id, *host.image.eligible_brokers()})
    await asyncio.gather(*(wait_for(node) for node in nodes))


async def answer_of(host: Host, node: NodeId, request: Any, deadline: float) -> Any:
    """The response of a broker to this broker's own request; None if it does not answer, or not with success."""
    try:
        if node == host.node_id:
            response = await host.answer(BY_REQUEST[type(request)].name, request)
        elif (address := host.address_of(node)) is None:
            return None
        else:
            response = await call(host.world.network, address, request, deadline=deadline)
    except (kafka.ProtocolError, kafka.WorldError):
        return None
    return None if response.error_code else response


# A coordinator is elected within the brokers' session; a request that waits longer is asked to come back.
COORDINATOR_WAIT_S = 5.0
BUSY_PAUSE_S = 0.05
"""Between two attempts while the coordinator ends the last transaction."""

READING_METHODS = ("GET", "HEAD")

LOOK_AGAIN = (kafka.NotCoordinator, kafka.CoordinatorNotAvailable, kafka.CoordinatorLoadInProgress)
# A coordinator that reads its log is asked again; one that is gone has a successor within the brokers' session.
LIST_ATTEMPTS_MAX = 20
LIST_PAUSE_S = 0.25
LIST_WAIT_S = 1.0


class Coordinated(NamedTuple):
    """What a coordinator is responsible for."""

    key_type: int
    topic: str
    """The internal topic whose leaders coordinate."""
    missing: Callable[[str], kafka.ProtocolError]
    """The error of a name when the topic does not exist: then no such name exists either."""


GROUPS = Coordinated(
    GROUP,
    OFFSETS_TOPIC,
    lambda name: kafka.GroupIdNotFound(
        f"group {name} does not exist: no group has committed an offset in this cluster"
    ),
)
TRANSACTIONAL_IDS = Coordinated(
    TRANSACTION,
    TRANSACTIONS_TOPIC,
    lambda name: kafka.TransactionalIdNotFound(
        f"there is no transactional id {name}: no producer of this cluster has used transactions"
    ),
)

ErrorOf = Callable[[Any], m.Failed | None]
"""The part of an answer that carries the error of the whole request; None: it carries none."""


def whole_error(response: Any) -> m.Failed | None:
    """Most answers carry their error themselves."""
    return response if response.error_code else None


async def from_coordinator(
    visit: Visit,
    group: str,
    request: Any,
    *,
    failed: ErrorOf = whole_error,
    repeatable: bool = True,
    until: float | None = None,
    kind: Coordinated = GROUPS,
) -> Any:
    """The coordinator's answer; ProtocolError or Refused when the whole request failed.

    ``repeatable``: a lost answer is asked for again. ``until``: when to stop looking, and waiting for the answer.
    While a coordinator ends a producer's last transaction it is asked again; what it ends may be an earlier attempt.
    An error's outcome is that of all attempts: it is unknown if any attempt may have been written.
    """
    earlier = EarlierAttempts(request)
    clock = visit.host.world.clock
    deadline = clock.now() + COORDINATOR_WAIT_S if until is None else until
    while True:
        try:
            node = await coordinator_of(visit, group, kind)
            left_s = max(deadline - clock.now(), PAUSE_S)
            response = await response_of(visit, node, request, wait_s=left_s, slack_s=0.0 if until else None)
        except kafka.LeaderNotAvailable as unreachable:
            message = f"the coordinator of {group}: {unreachable.message}"
            error: kafka.ProtocolError = kafka.CoordinatorNotAvailable(message, outcome=unreachable.outcome)
        except kafka.ProtocolError as raised:
            error = raised
        except Refused as elsewhere:
            elsewhere.error.outcome = earlier.outcome(elsewhere.error)
            raise Refused(elsewhere.error, **elsewhere.members) from None
        else:
            part = failed(response)
            if part is None:
                visit.leaders[:] = [node]
                return earlier.answer(response)
            error = failure_of(part)
            error.outcome = outcome_of_all(response)
        is_busy = isinstance(error, kafka.ConcurrentTransactions)
        moves = isinstance(error, LOOK_AGAIN) and error.outcome == kafka.NOT_WRITTEN
        is_lost = repeatable and isinstance(error, kafka.NetworkException)
        again = is_busy or (may_forward(visit) and (moves or is_lost))
        pause_s = BUSY_PAUSE_S if is_busy else PAUSE_S
        if not again or clock.now() + pause_s >= deadline:
            error.outcome = earlier.outcome(error)
            raise error
        earlier.note(error)
        await asyncio.sleep(pause_s)


async def change_in_parts(items: Iterable[Item], change: Callable[[list[Item]], Awaitable[Result]]) -> list[Result]:
    """Make one change in as many requests as it needs, one after the other; without items in one, which may be refused.

    If one of several fails, and it or another may have changed something, the outcome of the whole is ``unknown``.
    """
    parts = list(in_parts(items)) or [[]]
    done: list[Result] = []
    for part in parts:
        try:
            done.append(await change(part))
        except (kafka.ProtocolError, Refused) as raised:
            error = Refused.of(raised).error
            if len(parts) == 1 or (not done and error.outcome == kafka.NOT_WRITTEN):
                raise
            why = f"not done as a whole, {len(done)} of {len(parts)} requests have succeeded: {error.message}"
            raise type(error)(why, outcome=kafka.UNKNOWN, **error.facts) from raised
    return done


async def coordinator_of(visit: Visit, name: str, kind: Coordinated = GROUPS) -> NodeId:
    """Return the coordinator as far as this broker knows. CoordinatorNotAvailable: there is none yet; Refused: 421.

    A request that only reads does not create the internal topic: without it, no such name exists.
    """
    host = visit.host
    if visit.http.method in READING_METHODS and kind.topic not in host.image.topics:
        raise kind.missing(name)
    request = FindCoordinatorRequest(keys=(name,), key_type=kind.key_type)
    response: FindCoordinatorResponse = await host.answer("FindCoordinator", request)
    found: Coordinator = response.coordinators[0]
    if found.error_code:
        raise failure_of(found)
    if found.node_id != host.node_id and not may_forward(visit):
        message = f"broker {host.node_id} does not coordinate {name}, broker {found.node_id} does"
        raise Refused(kafka.NotCoordinator(message), coordinator=visit.broker_out(found.node_id))
    return found.node_id


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
        except kafka.ProtocolError as error:
            if node != visit.host.node_id and node not in visit.host.image.eligible_brokers():
                return None
            if attempt == LIST_ATTEMPTS_MAX - 1:
                message = f"broker {node} cannot list its {what}: {error.message}; a list without them would be wrong"
                raise kafka.CoordinatorNotAvailable(message) from error
            await asyncio.sleep(LIST_PAUSE_S)
    return None


# ---- the logs that groups read ---------------------------------------------------------------------------------------


async def look_up(visit: Visit, asked: Mapping[TopicPartition, int]) -> dict[TopicPartition, Offset]:
    """ListOffsets of many partitions, asked of their leaders side by side; -1: there is no such record.

    A partition whose leader cannot be asked now is left out.
    """
    found: dict[TopicPartition, Offset] = {}
    missing = dict(asked)
    for attempt in range(ATTEMPTS_MAX):
        if attempt and missing:
            await asyncio.sleep(PAUSE_S)
        leaders: dict[NodeId, list[m.ListOffsetsPartition]] = {}
        for name, timestamp in missing.items():
            partition = visit.host.image.partition(name)
            if partition is not None and partition.leader != NO_NODE:
                item = m.ListOffsetsPartition(**name._asdict(), timestamp=timestamp)
                leaders.setdefault(partition.leader, []).append(item)
        parts = [(node, part) for node, items in leaders.items() for part in in_parts(items)]
        for offsets in await asyncio.gather(*(_look_up_at(visit, node, part) for node, part in parts)):
            found.update(offsets)
        missing = {name: timestamp for name, timestamp in missing.items() if name not in found}
    return found


async def _look_up_at(visit: Visit, node: NodeId, items: list[m.ListOffsetsPartition]) -> dict[TopicPartition, Offset]:
    try:
        request = m.ListOffsetsRequest(partitions=tuple(items))
        response: m.ListOffsetsResponse = await ask(visit, node, request, wait_s=LOOK_UP_WAIT_S)
    except (kafka.LeaderNotAvailable, kafka.NetworkException):
        return {}
    return offsets_in(response)


def offsets_in(response: m.ListOffsetsResponse) -> dict[TopicPartition, Offset]:
    """The offsets that a response has, without errors."""
    return {
        TopicPartition(each.topic, each.partition): each.offset for each in response.partitions if not each.error_code
    }
