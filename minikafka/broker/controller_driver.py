"""The active controller at work: one loop that decides, records and answers (DESIGN D5).

Active only while this node leads the quorum and has applied all that was committed before its epoch. The loop takes
what is waiting, decides each request on the committed image plus what the batch holds so far, appends all records as
one batch (several, if they do not fit one), and answers when they are committed and applied here: a caller whose
request has succeeded finds its change.

Rules for this file:

1. It decides nothing: decisions are `quorum/controller.py`'s, who is alive is `quorum/controller_brokers.py`'s.
2. No answer leaves before the records that it rests on are committed, errors included: they too were decided on a state
   that may not come to be.
3. Leadership lost after the append: the outcome is *unknown*. Before it: *not written*.
4. After a registration a batch takes only those of other brokers: a broker epoch is known only when it is written.
5. Who asks a node that is elected but has not caught up yet waits for its reign to begin.
6. A topic whose name was just deleted is created only when every unfenced broker has applied the deletion. Otherwise:
   1. broker 1 leads the topic, alone in the ISR, and lags behind in the metadata; 2. the topic is deleted and created
   again; 3. broker 1 acknowledges records that a producer means for the new topic, and deletes them with the old one.
   A broker that applies nothing is fenced in time, and a broker without a session acknowledges nothing.
7. New replicas are placed on brokers whose advertised addresses answer. Each registration is tried once it is recorded,
   and again with each heartbeat until it answers; a creation waits for the first result. Until its first heartbeat, a
   broker that registered with a former controller counts as one that answers: it may just have died.
8. Each voter holds one request at each other unfenced broker, to notice at once that its process has ended
   (``quorum/controller_brokers.py``). Only the active controller acts on a refused connection. A voter that becomes the
   active controller connects once more: it fences the former controller, and brokers that died together with it.
9. Before a controlled shutdown leaves a partition to replicas that may have died, one of them has to answer a question
   that was sent after the wish, with the broker epoch of its registration.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol, TypeAlias

from minikafka import errors as kafka
from minikafka.broker.metadata import MetadataCache
from minikafka.broker.quorum_driver import METADATA_BATCH_BYTES_MAX
from minikafka.config import BrokerConfig
from minikafka.invariant import InvariantViolation, invariant
from minikafka.ports import CAUSE, World
from minikafka.quorum.controller import Controller, completed
from minikafka.quorum.controller_brokers import HeldConnection, Refusal, Sessions
from minikafka.quorum.controller_topics import Charge, free_of_charge
from minikafka.quorum.decision import ClusterPolicy, Decision
from minikafka.quorum.elections import checked_broker
from minikafka.quorum.image import BrokerImage, MetadataImage
from minikafka.quorum.records import MetadataRecord, RegisterBroker, encode
from minikafka.quorum.story import happenings
from minikafka.rpc import call
from minikafka.tasks import Flag
from minikafka.types import NO_NODE, Address, Epoch, NodeId, Offset, TopicId, uuid_text
from minikafka.wire import admin as a
from minikafka.wire import messages as m
from minikafka.wire.acls import CreateAclsRequest, DeleteAclsRequest
from minikafka.wire.credentials import AlterUserScramCredentialsRequest
from minikafka.wire.features import UpdateFeaturesRequest
from minikafka.wire.quotas import AlterClientQuotasRequest

# More would wait longer than their senders do; a retriable error tells them at once.
WAITING_REQUESTS_MAX = 10_000

# A batch is closed when it holds so many records: about a megabyte, an eighth of what one append may be.
BATCH_RECORDS_MAX = 10_000

RECORD_OVERHEAD = 32
"""More than a batch holds of a record beside its value, and more than its own header for each record."""

# After an append that failed for the disk: the next one may succeed when space was freed.
RETRY_PAUSE_S = 1.0

# How long a broker's address has to answer: it has just sent a request itself.
REACH_S = 1.0

# Between two attempts to reach a broker whose connection has ended.
HOLD_RETRY_S = 0.1

# What others must have read before a broker may stop, while the records that move its leaders are not yet written.
NOT_YET: Offset = 2**63 - 1

Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None], str], object]

_DECISIONS: Mapping[type, Callable[[Controller, MetadataImage, Any], Decision[Any]]] = {
    m.AlterPartitionRequest: Controller.alter_partition,
    m.ElectLeadersRequest: Controller.elect_leaders,
    a.IncrementalAlterConfigsRequest: Controller.incremental_alter_configs,
    a.AlterConfigsRequest: Controller.alter_configs,
    a.AlterPartitionReassignmentsRequest: Controller.alter_partition_reassignments,
    m.AllocateProducerIdsRequest: Controller.allocate_producer_ids,
    DeleteAclsRequest: lambda _, image, request: Controller.delete_acls(image, request),
    AlterClientQuotasRequest: lambda _, image, request: Controller.alter_client_quotas(image, request),
    UpdateFeaturesRequest: Controller.update_features,
    m.UnregisterBrokerRequest: lambda _, image, request: Controller.unregister(image, request),
}
"""Decisions that rest on nothing but the image and the request."""

_OF_BROKERS = (m.BrokerHeartbeatRequest, m.BrokerRegistrationRequest)
"""Their decisions also change the sessions."""


class MetadataQuorum(Protocol):
    """What the controller needs of the quorum's driver."""

    @property
    def last_contact(self) -> Mapping[NodeId, float]:
        """When each other member was last heard of, on the monotonic clock."""
        ...

    def majority_heard_at(self) -> float:
        """When a majority of voters surely followed this node; -inf: not yet in this reign; inf: it does not lead."""
        ...

    def majority_resumed_at(self) -> float:
        """When a majority was heard again after the latest interruption; -inf: this node does not lead."""
        ...

    async def append(self, payloads: Sequence[bytes], *, epoch: Epoch) -> Offset:
        """End of the batch once it is committed and applied here; NotController when this node does not lead."""
        ...


class _Reach(Enum):
    """What is known of a registration's address."""

    TRYING = "trying"
    REACHED = "reached"
    UNREACHABLE = "unreachable"


@dataclass(slots=True, eq=False)
class _Asked:
    """One request that waits for its answer."""

    request: object
    answer: asyncio.Future[Any]
    cause: str
    charge: Charge
    """Counts the partitions that it creates or deletes."""
    taken: bool = False
    held_by: str = ""
    """Rule 6: what a creation waits for."""

    def time_out(self, timeout_ms: int) -> None:
        """Nobody waits for the answer any longer than ``timeout_ms``."""
        if not self.answer.done():
            outcome = kafka.UNKNOWN if self.taken else kafka.NOT_WRITTEN
            why = f": {self.held_by}" if self.held_by else ""
            error = kafka.RequestTimedOut(f"the controller did not answer in {timeout_ms} ms{why}", outcome=outcome)
            self.answer.set_exception(error)


@dataclass(slots=True, eq=False)
class _Decided:
    """One decision in a batch: whose it is, what came out, and the images before and after it."""

    decision: Decision[Any] | None
    error: kafka.ProtocolError | None
    asked: _Asked | None
    before: MetadataImage
    after: MetadataImage
    on_commit: Callable[[Offset], None] | None = None


@dataclass(slots=True, eq=False)
class _Batch:
    """Decisions that are recorded together; ``image`` is the committed one with all of them staged."""

    image: MetadataImage
    epoch: Epoch
    taken: list[_Asked] = field(default_factory=list)
    """Every request that was taken from the queue for this batch: decided, or not because of a bug."""
    decided: list[_Decided] = field(default_factory=list)
    records: list[MetadataRecord] = field(default_factory=list)
    appends: list[list[bytes]] = field(default_factory=list)
    """The encoded records, as few batches of the log as they fit; nearly always one."""
    size: int = 0
    """Bytes of the last of these."""
    registering: set[NodeId] = field(default_factory=set)
    """The brokers whose registrations are among the records: rule 4."""

    def takes(self, request: object = None) -> bool:
        """Return True if there is room for the decision about ``request`` (None: a decision without a request)."""
        if len(self.records) >= BATCH_RECORDS_MAX or len(self.appends) > 1:
            return False
        if not self.registering:
            return True
        return isinstance(request, m.BrokerRegistrationRequest) and request.broker_id not in self.registering

    def written(self, end: Offset) -> None:
        """The records have their offsets, which end at ``end``: so have the images, and the broker epochs in them."""
        at = end - len(self.records)
        image = self.decided[0].before
        for decided in self.decided:
            records = _records(decided)
            at += len(records)
            decided.before = image
            image = decided.after = image.replay_all(records, at, self.epoch, is_staged=True) if records else image

    def add(
        self, decision: Decision[Any], asked: _Asked | None = None, on_commit: Callable[[Offset], None] | None = None
    ) -> None:
        """Add a decision. Raises PolicyViolation if its records do not fit one batch and must not be divided.

        What raises has added nothing: a bug in a client's decision ends no reign (:meth:`ControllerDriver._bug`).
        """
        before = self.image
        if decision.records:
            after = before.staged(decision.records, self.epoch)
            self._encode(decision)
            self.image = after
            self.records.extend(decision.records)
            self.registering.update(each.broker_id for each in decision.records if isinstance(each, RegisterBroker))
        self.decided.append(_Decided(decision, None, asked, before, self.image, on_commit))

    def _encode(self, decision: Decision[Any]) -> None:
        payloads = [encode(record) for record in decision.records]
        if self._size_with(payloads) <= METADATA_BATCH_BYTES_MAX:
            self._extend(payloads)
            return
        parts = [[each] for each in payloads] if decision.divisible else [payloads]
        if any(sum(map(_size_of, part)) > METADATA_BATCH_BYTES_MAX for part in parts):
            raise kafka.PolicyViolation(
                f"The {len(payloads)} records of this change exceed the {METADATA_BATCH_BYTES_MAX} bytes that are "
                "recorded at once; send several smaller requests."
            )
        for part in parts:
            if self._size_with(part) > METADATA_BATCH_BYTES_MAX:
                self.appends.append([])
                self.size = 0
            self._extend(part)

    def _size_with(self, payloads: Sequence[bytes]) -> int:
        return self.size + sum(map(_size_of, payloads))

    def _extend(self, payloads: list[bytes]) -> None:
        if not self.appends:
            self.appends.append([])
        self.appends[-1] += payloads
        self.size = self._size_with(payloads)

    def refuse(self, asked: _Asked, error: kafka.ProtocolError) -> None:
        self.decided.append(_Decided(None, error, asked, self.image, self.image))


def _size_of(payload: bytes) -> int:
    return len(payload) + RECORD_OVERHEAD


def _records(decided: _Decided) -> tuple[MetadataRecord, ...]:
    return decided.decision.records if decided.decision is not None else ()


class ControllerDriver:
    """The controller of one node, active or not. ``spawn`` starts a task whose failure stops the broker."""

    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        quorum: MetadataQuorum,
        metadata: MetadataCache,
        spawn: Spawn,
        *,
        has_registered: Callable[[], bool] = lambda: True,
        answers: Callable[[Address], Awaitable[bool]] | None = None,
    ) -> None:
        """``has_registered``: has the broker of this same process registered yet? ``answers``: does a server answer at
        this address? By default one request is sent there.
        """
        self.config = config
        self.world = world
        self.quorum = quorum
        self.metadata = metadata
        self.controller = Controller(ClusterPolicy.of(config, metadata.cluster_id))
        self.sessions = Sessions(timeout_s=config.broker_session_timeout_ms / 1000)
        self._spawn = spawn
        self._has_registered = has_registered
        self._answers = answers or self._ask_for_versions
        self._reach: dict[NodeId, tuple[Offset, _Reach]] = {}
        """By broker, what is known of the address of the registration with this broker epoch."""
        self._held_at: dict[NodeId, Offset] = {}
        """Rule 8: by broker, the broker epoch of the registration at which a request is held."""
        self._asked_for_life: dict[NodeId, int] = {}
        """Broker epochs of those that are being asked whether they live."""
        self._reigns = Flag()
        """Set while this node is the active controller and its sessions have begun."""
        self._refusals: deque[Refusal] = deque()
        self._epoch: Epoch | None = None
        """The epoch of this node's reign; None: another node, or nobody, is the active controller."""
        self._is_elected = False
        """This node leads the quorum, but has not applied all that was committed before: its reign will begin."""
        self._predecessor: NodeId = NO_NODE
        self._waiting: deque[_Asked] = deque()
        self._held: list[_Asked] = []
        """Creations of topics that rule 6 delays."""
        self._news = Flag()
        self._begun_at = 0.0
        """When this reign began."""
        self._balanced_at = 0.0
        self._retry_at = 0.0
        self._turns = 0

    def __repr__(self) -> str:
        return f"<controller n{self.config.node_id} epoch={self._epoch} waiting={len(self._waiting)}>"

    @property
    def is_active(self) -> bool:
        return self._epoch is not None

    async def start(self) -> None:
        """Follow the quorum's leadership; a reign begins and ends with it."""
        self.metadata.subscribe_leader(self._on_leader)
        if self.config.fence_on_refused_connection and self.config.node_id in self.config.voters:
            self.metadata.subscribe(self._on_image)

    async def handle(self, request: Any, charge: Charge = free_of_charge) -> Any:
        """Answer one request of the controller's APIs. ``charge`` counts the partitions that it creates or deletes.

        Raises NotController, RequestTimedOut (the request's ``timeout_ms``, else the session timeout), or what the
        decision raises; the outcome says whether it may have been recorded.
        """
        if self._epoch is None and not self._is_elected:
            raise kafka.NotController(
                f"node {self.config.node_id} is not the active controller", leader=self.metadata.leader_id
            )
        waiting = len(self._waiting) + len(self._held)
        if waiting >= WAITING_REQUESTS_MAX:
            raise kafka.RequestTimedOut(f"the controller has {waiting} requests waiting")
        loop = asyncio.get_running_loop()
        asked = _Asked(request, loop.create_future(), CAUSE.get(), charge)
        self._waiting.append(asked)
        self._news.set()
        timeout_ms = getattr(request, "timeout_ms", self.config.broker_session_timeout_ms)
        timer = loop.call_at(self.world.clock.now() + timeout_ms / 1000, asked.time_out, timeout_ms)
        try:
            return await asked.answer
        finally:
            timer.cancel()

    # ---- reign -------------------------------------------------------------------------------------------------------

    def _on_leader(self, leader_id: NodeId, epoch: Epoch, i_lead: bool) -> None:  # noqa: FBT001 - the listener's form
        if i_lead:
            if self._epoch != epoch:
                if self._epoch is not None:
                    self._end_reign()
                self._epoch, self._is_elected = epoch, False
                self._spawn(self._reign(epoch), f"controller-{epoch}")
            return
        if leader_id not in {NO_NODE, self.config.node_id}:
            self._predecessor = leader_id
        self._end_reign()
        self._is_elected = leader_id == self.config.node_id

    def _end_reign(self) -> None:
        """Requests that wait were not decided: nothing of them is written."""
        if self._epoch is not None:
            self.world.events("controller_resigned", node=self.config.node_id, epoch=self._epoch)
        self._epoch = None
        self._reigns.clear()
        for asked in (*self._waiting, *self._held):
            if not asked.answer.done():
                asked.answer.set_exception(self._not_controller())
        self._waiting.clear()
        self._held.clear()
        self._refusals.clear()
        self._news.set()

    def _not_controller(self, outcome: kafka.Outcome = kafka.NOT_WRITTEN) -> kafka.NotController:
        return kafka.NotController(
            f"node {self.config.node_id} is no longer the active controller",
            outcome=outcome,
            leader=self.metadata.leader_id,
        )

    async def _reign(self, epoch: Epoch) -> None:
        if self._epoch != epoch:
            return  # it has ended before this task's first step; what waits now is another reign's
        self._begin(epoch)
        batch = _Batch(self.metadata.image, epoch)
        batch.add(self.controller.activated(batch.image))
        self._decide(batch)
        try:
            await self._carry_out(batch)
            while await self._until_due(epoch):
                batch = _Batch(self.metadata.image, epoch)
                self._decide(batch)
                await self._carry_out(batch)
        except kafka.NotController as error:
            self.world.events("controller_deposed", node=self.config.node_id, epoch=epoch, why=error.message)
        finally:
            # However the reign ended, also by a bug: callers that still wait get an error, not their timeout.
            self._fail(batch, self._not_controller(kafka.UNKNOWN))
            if self._epoch == epoch:
                self._end_reign()

    def _begin(self, epoch: Epoch) -> None:
        now, image = self.world.clock.now(), self.metadata.image
        contacts = self.quorum.last_contact
        predecessor = {node: contacts[node] for node in (self._predecessor,) if node in contacts}
        # Who is fenced has no session: a clock started for it would keep its next incarnation out. Nor has the own
        # former incarnation: one process at a time holds the data directory, and that is this one.
        dead = None if self._has_registered() else self.config.node_id
        living = [node for node in sorted(image.brokers) if image.alive(node) and node != dead]
        self.sessions.restart(living, now, predecessor)
        self._begun_at = now
        self._reigns.set()
        self._predecessor = NO_NODE
        self._reach = {}
        self._balanced_at = now
        self._retry_at = now + self.config.unclean_leader_election_interval_ms / 1000
        self.world.events(
            "controller_activated",
            node=self.config.node_id,
            epoch=epoch,
            offset=image.offset,
            brokers=image.eligible_brokers(),
            predecessor=dict(predecessor),
        )

    def _balance_at(self) -> float | None:
        """When leaders are moved home next, by the settings as they are now; None: never."""
        interval_s = self.controller.policy.under(self.metadata.image).leader_rebalance_interval_s
        return None if interval_s is None else self._balanced_at + interval_s

    async def _until_due(self, epoch: Epoch) -> bool:
        """Wait for a request or the next timer; False when the reign is over: what waits then is another reign's."""
        deadlines = [self._retry_at, self._balance_at(), self.sessions.next_deadline()]
        deadline = min(each for each in deadlines if each is not None)
        is_due = False
        while not (is_due or self._waiting or self._refusals) and self._epoch == epoch:
            self._news.clear()
            is_due = not await self._news.wait(deadline)
        return self._epoch == epoch

    # ---- deciding: synchronous from here to the append ---------------------------------------------------------------

    def _decide(self, batch: _Batch) -> None:
        while self._waiting and batch.takes(self._waiting[0].request):
            asked = self._waiting.popleft()
            if asked.answer.done():
                continue
            if self._must_wait(batch.image, asked):
                self._held.append(asked)
                continue
            asked.taken = True
            batch.taken.append(asked)
            try:
                self._decide_request(batch, asked)
            except kafka.ProtocolError as error:
                batch.refuse(asked, error)
            except Exception as error:
                if isinstance(error, InvariantViolation) or isinstance(asked.request, _OF_BROKERS):
                    raise
                batch.refuse(asked, self._bug(asked.request, error))
        if batch.takes():
            self._decide_timers(batch, self.world.clock.now())
        held, self._held = self._held, []
        for asked in held:
            (self._held if self._must_wait(batch.image, asked) else self._waiting).append(asked)

    def _bug(self, request: Any, error: Exception) -> kafka.UnknownServerError:
        """A decision that rests on the image and the request alone has failed, and has changed nothing.

        The controller goes on: if it stopped, the next one would get the same request, and stop as well.
        """
        name = type(request).__name__.removesuffix("Request")
        why = f"{type(error).__name__}: {error}"
        text = "".join(traceback.format_exception(error))
        self.world.events("request_failed", api=name, why=why, traceback=text)
        return kafka.UnknownServerError(
            f"{name} failed at the controller: {why}; its log has more", outcome=kafka.NOT_WRITTEN
        )

    def _must_wait(self, image: MetadataImage, asked: _Asked) -> bool:
        """Rules 6 and 7: return True while it is unknown where replicas may be placed, or while an unfenced broker may
        still lead a former topic of a name to be created.
        """
        request = asked.request
        if not isinstance(request, m.CreateTopicsRequest | a.CreatePartitionsRequest) or asked.answer.done():
            return False
        if trying := [node for node in image.eligible_brokers() if self._is(_Reach.TRYING, image, node)]:
            asked.held_by = f"waits for an answer of broker {', '.join(map(str, trying))} at the advertised address"
            return True
        if not isinstance(request, m.CreateTopicsRequest) or request.validate_only:
            return False
        living = [node for node in sorted(image.brokers) if image.alive(node)]
        for name in (topic.name for topic in request.topics if topic.name not in image.topics):
            is_being_removed = name in self.metadata.image.topics
            removed_below = NOT_YET if is_being_removed else self.metadata.removed_below_of(name)
            behind = [node for node in living if (self.sessions.lowest_offset((node,)) or 0) < removed_below]
            if behind:
                brokers = ", ".join(map(str, behind))
                asked.held_by = f"the deletion of the former topic {name!r} is not applied by: broker {brokers}"
                return True
        return False

    def _decide_request(self, batch: _Batch, asked: _Asked) -> None:
        request, image, controller = asked.request, batch.image, self.controller
        decide = _DECISIONS.get(type(request))
        if decide is not None:
            batch.add(decide(controller, image, request), asked)
        elif isinstance(request, m.BrokerHeartbeatRequest):
            self._decide_heartbeat(batch, asked, request)
        elif isinstance(request, m.BrokerRegistrationRequest):
            self._decide_registration(batch, asked, request)
        elif isinstance(request, m.CreateTopicsRequest):
            ids = self._random_ids()
            batch.add(controller.create_topics(self._placeable(image), request, ids, asked.charge), asked)
        elif isinstance(request, m.DeleteTopicsRequest):
            batch.add(controller.delete_topics(image, request, asked.charge), asked)
        elif isinstance(request, a.CreatePartitionsRequest):
            batch.add(controller.create_partitions(self._placeable(image), request, asked.charge), asked)
        elif isinstance(request, CreateAclsRequest):
            batch.add(controller.create_acls(image, request, self._random_ids()), asked)
        elif isinstance(request, AlterUserScramCredentialsRequest):
            batch.add(controller.alter_user_scram_credentials(image, request, self.world.entropy), asked)
        else:
            raise kafka.InvalidRequest(f"{type(request).__name__} is not the controller's")

    def _random_ids(self) -> Iterator[TopicId]:
        while True:
            yield uuid_text(self.world.random.randbytes(16))

    def _decide_registration(self, batch: _Batch, asked: _Asked, request: m.BrokerRegistrationRequest) -> None:
        now, node = self.world.clock.now(), request.broker_id
        may_live = self.sessions.may_live(node, now, patience_s=self.config.broker_heartbeat_interval_ms / 1000)
        caught_up = request.current_metadata_offset >= self.metadata.image.offset
        decision = self.controller.register(batch.image, request, may_live=may_live, caught_up=caught_up)
        if decision.records:
            batch.add(decision, asked, lambda _end: self._registered(node, now))
        else:
            self.sessions.touched(node, now)
            batch.add(decision, asked)

    def _decide_heartbeat(self, batch: _Batch, asked: _Asked, request: m.BrokerHeartbeatRequest) -> None:
        node, image = request.broker_id, batch.image
        checked_broker(image, node, request.broker_epoch)  # before anything is noted of the session
        committed = self.metadata.image
        if node in committed.brokers and committed.brokers[node].in_controlled_shutdown:
            # Begun under another controller: what is committed now surely holds the records that moved its leaders.
            self.sessions.shutting_down(node, committed.offset)
        self.sessions.asked_to_stop(node, self.world.clock.now(), wants=request.want_shut_down)
        moved_below = self.sessions.shutdown_offset(node)
        others = (other for other in sorted(image.brokers) if other != node and image.alive(other))
        silent = self.sessions.silent_since_asked_to_stop(node, image.brokers)
        decision = self.controller.heartbeat(
            image,
            request,
            lowest_other_offset=self.sessions.lowest_offset(others),
            shutdown_offset=NOT_YET if moved_below is None else moved_below,
            silent=silent,
        )
        if not decision.records and image.eligible(node):
            self._ask_who_lives(image.brokers[other] for other in silent if image.alive(other))
        self.sessions.touched(node, self.world.clock.now(), metadata_offset=request.current_metadata_offset)
        self._try_to_reach(node)
        batch.add(decision, asked, lambda end: self._after_heartbeat(node, decision, end))

    def _after_heartbeat(self, node: NodeId, decision: Decision[m.BrokerHeartbeatResponse], end: Offset) -> None:
        broker = self.metadata.image.brokers.get(node)
        if decision.response.should_shut_down or broker is None:  # the next decision may have unregistered it
            self.sessions.ended(node)
        elif decision.records and broker.in_controlled_shutdown:
            self.sessions.shutting_down(node, end)
        elif decision.records:
            self.sessions.not_shutting_down(node)

    # ---- which addresses answer --------------------------------------------------------------------------------------

    def _registered(self, node: NodeId, now: float) -> None:
        self.sessions.begun(node, now)
        self._try_to_reach(node)

    def _is(self, reach: _Reach, image: MetadataImage, node: NodeId) -> bool:
        return self._reach.get(node) == (image.brokers[node].broker_epoch, reach)

    def _placeable(self, image: MetadataImage) -> MetadataImage:
        """The image to place replicas by: brokers that cannot be reached are like fenced ones."""
        lost = [node for node in image.brokers if self._is(_Reach.UNREACHABLE, image, node)]
        if not lost:
            return image
        return replace(image, brokers={**image.brokers, **{n: replace(image.brokers[n], fenced=True) for n in lost}})

    def _try_to_reach(self, node: NodeId) -> None:
        """Rule 7, unless it is known or being tried."""
        broker = self.metadata.image.brokers.get(node)
        if broker is None or node == self.config.node_id:
            return
        known = self._reach.get(node)
        if known is None or known[0] != broker.broker_epoch or known[1] is _Reach.UNREACHABLE:
            self._reach[node] = (broker.broker_epoch, _Reach.TRYING)
            was_lost = known == (broker.broker_epoch, _Reach.UNREACHABLE)
            self._spawn(self._reach_for(broker, was_lost=was_lost), f"reach-{node}-{broker.broker_epoch}")

    async def _reach_for(self, broker: BrokerImage, *, was_lost: bool) -> None:
        answered = await self._answers(broker.address)
        if self._reach.get(broker.node_id) != (broker.broker_epoch, _Reach.TRYING):
            return
        self._reach[broker.node_id] = (broker.broker_epoch, _Reach.REACHED if answered else _Reach.UNREACHABLE)
        if not answered and not was_lost:
            self.world.events("broker_unreachable", broker=broker.node_id, address=str(broker.address))
        self._waiting.extend(self._held)
        self._held.clear()
        self._news.set()

    async def _ask_for_versions(self, address: Address) -> bool:
        try:
            await call(self.world.network, address, m.ApiVersionsRequest(), self.world.clock.now() + REACH_S)
        except (kafka.WorldError, kafka.ProtocolError):
            return False
        return True

    def _ask_who_lives(self, brokers: Iterable[BrokerImage]) -> None:
        """A broker that wants to stop waits for the answer of one of these, and asks again soon."""
        for broker in brokers:
            if self._asked_for_life.get(broker.node_id) != broker.broker_epoch:
                self._asked_for_life[broker.node_id] = broker.broker_epoch
                self._spawn(self._ask_for_life(broker), f"life-{broker.node_id}-{broker.broker_epoch}")

    async def _ask_for_life(self, broker: BrokerImage) -> None:
        asked_at, node = self.world.clock.now(), broker.node_id
        try:
            response = await call(self.world.network, broker.address, m.AwaitStopRequest(), asked_at + REACH_S)
        except (kafka.WorldError, kafka.ProtocolError):
            return
        finally:
            self._asked_for_life.pop(node, None)
        registered = self.metadata.image.brokers.get(node)
        if registered is not None and response.broker_epoch == registered.broker_epoch:
            self.sessions.lives(node, asked_at, self.world.clock.now())

    # ---- which processes have ended: rule 8 --------------------------------------------------------------------------

    def _on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Hold a request at each unfenced broker, unless one is held already."""
        if old.brokers is new.brokers:
            return
        for node, broker in new.brokers.items():
            if node == self.config.node_id or broker.fenced or self._held_at.get(node) == broker.broker_epoch:
                continue
            self._held_at[node] = broker.broker_epoch
            connection = HeldConnection(node, broker.broker_epoch)
            if node == self.metadata.leader_id and self.config.voters.get(node) == broker.address:
                connection.answered()  # This change of the metadata was fetched there.
            self._spawn(self._keep_held(connection, broker.address), f"hold-{node}-{broker.broker_epoch}")

    def _is_held(self, connection: HeldConnection) -> bool:
        broker = self.metadata.image.brokers.get(connection.broker_id)
        return broker is not None and not broker.fenced and broker.broker_epoch == connection.broker_epoch

    async def _keep_held(self, connection: HeldConnection, address: Address) -> None:
        clock, node = self.world.clock, connection.broker_id
        while self._is_held(connection):
            was_held, does_reign, begun_at = connection.is_held, self._reigns.is_set(), clock.now()
            wait_ms = self.config.broker_session_timeout_ms if was_held else 0
            has_failed = True
            try:
                request = m.AwaitStopRequest(max_wait_ms=wait_ms)
                response = await call(self.world.network, address, request, begun_at + wait_ms / 1000 + REACH_S)
                has_failed = bool(response.is_stopping or response.error_code)
            except (kafka.WorldError, kafka.ProtocolError) as error:
                is_evidence = isinstance(error, kafka.ConnectionRefused) and does_reign and self._reigns.is_set()
                # Not of a held request whose connection was closed meanwhile: the next attempt is after that end.
                if is_evidence and (refusal := connection.refused(begun_at)) is not None:
                    self._refusals.append(refusal)
                    self._news.set()
            if not has_failed:
                connection.answered()
                continue
            connection.ended(clock.now())
            if not was_held:
                await self._pause_between_attempts(does_reign=does_reign)
        if self._held_at.get(node) == connection.broker_epoch:
            del self._held_at[node]

    async def _pause_between_attempts(self, *, does_reign: bool) -> None:
        """Wait ``HOLD_RETRY_S``, but not beyond the beginning of this node's reign."""
        if does_reign:
            await asyncio.sleep(HOLD_RETRY_S)
        else:
            await self._reigns.wait(self.world.clock.now() + HOLD_RETRY_S)

    # ---- timers ------------------------------------------------------------------------------------------------------

    def _decide_timers(self, batch: _Batch, now: float) -> None:
        if self._refusals:
            refusal = self._refusals.popleft()
            node = refusal.broker_id
            is_heard = self.sessions.heard_since(node, refusal.begun_at)
            decision = self.controller.broker_refused(batch.image, refusal, is_heard_since=is_heard)
            if decision.records:
                batch.add(decision, None, lambda _end: self.sessions.ended(node))
        # A majority has elected it, too.
        self.sessions.spare(
            now,
            connected_at=max(self._begun_at, self.quorum.majority_heard_at()),
            resumed_at=self.quorum.majority_resumed_at(),
        )
        for node in self.sessions.expired(now):
            decision = self.controller.broker_lost(batch.image, node)
            if decision.records:
                # One at a time: fencing moves leaders, and the next one may have been heard meanwhile.
                batch.add(decision, None, lambda _end, lost=node: self.sessions.ended(lost))  # type: ignore[misc]
                break
            self.sessions.ended(node)
        if now >= self._retry_at:
            self._retry_at = now + self.config.unclean_leader_election_interval_ms / 1000
            batch.add(self.controller.elect_leaderless(batch.image))
        balance_at = self._balance_at()
        if balance_at is not None and now >= balance_at:
            self._balanced_at = now
            batch.add(self.controller.prefer_leaders(batch.image))

    # ---- recording and answering -------------------------------------------------------------------------------------

    async def _carry_out(self, batch: _Batch) -> None:
        """Record, then answer. Raises NotController when the reign is over."""
        end = before = self.metadata.image.offset
        if batch.records:
            try:
                for payloads in batch.appends:
                    end = await self.quorum.append(payloads, epoch=batch.epoch)
            except kafka.ProtocolError as error:
                self._fail(batch, error, error.outcome if end == before else kafka.UNKNOWN)
                if isinstance(error, kafka.NotController | kafka.KafkaStorageError):
                    # A quorum's log that has failed stays so: who cannot write down what it decides must not reign on.
                    raise
                self.world.events("metadata_append_failed", epoch=batch.epoch, why=error.message)
                await asyncio.sleep(RETRY_PAUSE_S)
                return
            invariant(self.metadata.image.offset >= end, "an append is applied before it returns", end=end)
            if batch.registering:
                batch.written(end)
        for decided in batch.decided:
            self._settle(decided, end)

    def _settle(self, decided: _Decided, end: Offset) -> None:
        """The records are committed: tell what happened, then answer."""
        if decided.on_commit is not None:
            decided.on_commit(end)
        asked, decision = decided.asked, decided.decision
        if decision is not None and decision.records:
            self._tell(decided, decision.cause)
        if asked is None or asked.answer.done():
            return
        if decided.error is not None:
            asked.answer.set_exception(decided.error)
        elif decision is not None:
            asked.answer.set_result(completed(decision.response, asked.request, self.metadata.image))

    def _tell(self, decided: _Decided, why: str) -> None:
        self._turns += 1
        token = CAUSE.set(decided.asked.cause if decided.asked else f"controller#{self._turns}")
        try:
            for happening in happenings(decided.before, decided.after, why):
                self.world.events(happening.kind, **happening.facts)
        finally:
            CAUSE.reset(token)

    def _fail(
        self, batch: _Batch, error: kafka.ProtocolError, outcome_of_recorded: kafka.Outcome = kafka.UNKNOWN
    ) -> None:
        """No caller gets the decisions. Those whose request recorded nothing can be sure that nothing was written."""
        recorded = {each.asked for each in batch.decided if _records(each)}
        for asked in batch.taken:
            if not asked.answer.done():
                outcome = outcome_of_recorded if asked in recorded else kafka.NOT_WRITTEN
                asked.answer.set_exception(type(error)(error.message, outcome=outcome, **error.facts))
