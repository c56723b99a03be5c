"""A client's metadata: what it believes of the cluster, how that is kept fresh, and which brokers did not answer (S27).

:class:`ClusterView` has brokers, topics, and who leads each partition in which epoch. Rules for it:

1. No I/O and no clock: answers go in, with ``now``.
2. Never back to older metadata: an answer that reflects less of the metadata log than one seen before is refused, and
   within a topic a partition's leader epoch never falls (a refused produce may have named a newer one).
3. A topic that was deleted and created again has another topic id: then everything known of it is forgotten.

:class:`Metadata` keeps the view fresh: it asks when the view is stale, and at metadata.max.age.ms.

One request at a time. Nodes are asked in random order, bootstrap servers last, each for half a second, or for up to two
seconds if none answers: a stopped process (SIGSTOP) accepts connections and never answers. Repeated requests whose
responses say nothing new (a partition without a leader, say) wait longer each time, as in Kafka since KIP-580,
but never long: once there is a leader it should be found soon. A topic that was not requested before does not wait, as
in Kafka's clients.

Failed attempts to reach brokers (:class:`ConnectionFailures`): when to log them, and what the final error says about
them. Rules: synchronous; ``now`` is an argument. An address counts as failed until it answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from minikafka import errors as kafka
from minikafka.client.caller import Attempts, Backoff, Caller, WithoutController, no_controller
from minikafka.client.settings import ClientConfig
from minikafka.ports import Clock, World
from minikafka.tasks import CancelScope, Flag, until_ended
from minikafka.types import NO_NODE, NO_OFFSET, Address, Epoch, NodeId, TopicId, TopicPartition
from minikafka.wire.messages import CurrentLeader, MetadataRequest, MetadataResponse, MetadataTopic, NodeEndpoint


class Leader(NamedTuple):
    """The leader of a partition and its epoch; ``node`` is -1 without a leader."""

    node: NodeId
    epoch: Epoch


NOBODY = Leader(NO_NODE, -1)


@dataclass(slots=True)
class TopicView:
    """One topic; partitions are numbered from 0 without gaps."""

    topic_id: TopicId | None
    is_internal: bool = False
    leaders: list[Leader] = field(default_factory=list)
    replicas: list[tuple[NodeId, ...]] = field(default_factory=list)
    isr: list[tuple[NodeId, ...]] = field(default_factory=list)


class Update(NamedTuple):
    """What an answer changed."""

    accepted: bool
    """False: it was older than what is known."""
    changed: tuple[TopicPartition, ...] = ()
    """Partitions whose leader or epoch is another one now, and partitions that are new or gone."""


class ClusterView:
    """A cache of metadata that only moves forward."""

    def __init__(self) -> None:
        self.cluster_id = ""
        self.controller_id: NodeId = NO_NODE
        self.metadata_offset = NO_OFFSET
        self.brokers: dict[NodeId, Address] = {}
        self.topics: dict[str, TopicView] = {}
        self.errors: dict[str, kafka.ProtocolError] = {}
        """Topics that the last answer about them refused to describe."""
        self.updated_at: float | None = None

    def update(self, response: MetadataResponse, now: float, *, all_topics: bool = False) -> Update:
        """Take over an answer. InconsistentClusterId when it comes from another cluster."""
        if self.cluster_id and response.cluster_id and response.cluster_id != self.cluster_id:
            raise kafka.InconsistentClusterId(
                f"this client belongs to cluster {self.cluster_id} and was answered by {response.cluster_id}"
            )
        if 0 <= response.metadata_offset < self.metadata_offset:
            return Update(accepted=False)
        self.cluster_id = self.cluster_id or response.cluster_id
        self.metadata_offset = max(self.metadata_offset, response.metadata_offset)
        self.controller_id = response.controller_id
        self.updated_at = now
        if response.brokers:
            self.brokers = {each.node_id: Address(each.host, each.port) for each in response.brokers}
        changed: list[TopicPartition] = []
        for topic in response.topics:
            changed.extend(self._update_topic(topic))
        if all_topics:
            named = {topic.name for topic in response.topics}
            for name in [name for name in self.topics if name not in named]:
                changed.extend(self._forget(name))
        return Update(accepted=True, changed=tuple(changed))

    def _update_topic(self, topic: MetadataTopic) -> Iterable[TopicPartition]:
        if topic.error_code:
            self.errors[topic.name] = kafka.error_of(topic.error_code, topic.error_message)
            # A topic without a leader is still there; only "unknown" says that it is gone.
            return self._forget(topic.name) if topic.error_code == 3 else ()
        self.errors.pop(topic.name, None)
        known = self.topics.get(topic.name)
        changed: list[TopicPartition] = []
        if known is not None and known.topic_id != topic.topic_id and None not in (known.topic_id, topic.topic_id):
            changed.extend(self._forget(topic.name))
            known = None
        partitions = sorted(topic.partitions, key=lambda each: each.partition)
        old = known.leaders if known is not None else []
        leaders = []
        for index, each in enumerate(partitions):
            leader = Leader(each.leader_id, each.leader_epoch)
            if index < len(old) and leader.epoch < old[index].epoch:
                leader = old[index]
            if index >= len(old) or leader != old[index]:
                changed.append(TopicPartition(topic.name, each.partition))
            leaders.append(leader)
        self.topics[topic.name] = TopicView(
            topic_id=topic.topic_id,
            is_internal=topic.is_internal,
            leaders=leaders,
            replicas=[each.replica_nodes for each in partitions],
            isr=[each.isr_nodes for each in partitions],
        )
        return changed

    def _forget(self, name: str) -> list[TopicPartition]:
        topic = self.topics.pop(name, None)
        return [TopicPartition(name, index) for index in range(len(topic.leaders))] if topic is not None else []

    def learn_leader(
        self, partition: TopicPartition, leader: CurrentLeader | None, endpoints: Iterable[NodeEndpoint] = ()
    ) -> bool:
        """Take a broker's hint that came with a refusal; True when it was newer than what is known.

        A late hint about a topic that was created again since is ignored: its epoch may be higher than those that
        metadata has from now on.
        """
        for each in endpoints:
            self.brokers[each.node_id] = Address(each.host, each.port)
        topic = self.topics.get(partition.topic)
        if leader is None or topic is None or not 0 <= partition.partition < len(topic.leaders):
            return False
        if None not in (leader.topic_id, topic.topic_id) and leader.topic_id != topic.topic_id:
            return False
        if leader.leader_epoch <= topic.leaders[partition.partition].epoch:
            return False
        topic.leaders[partition.partition] = Leader(leader.leader_id, leader.leader_epoch)
        return True

    def leader(self, topic: str, partition: int) -> Leader:
        """The leader, as far as is known; ``NOBODY`` if nothing is."""
        known = self.topics.get(topic)
        if known is None or not 0 <= partition < len(known.leaders):
            return NOBODY
        return known.leaders[partition]

    def topic_id(self, topic: str) -> TopicId | None:
        """The id of the topic that has this name; None when it is not known."""
        known = self.topics.get(topic)
        return known.topic_id if known is not None else None

    def partition_count(self, topic: str) -> int | None:
        """How many partitions the topic has; None when it is not known."""
        known = self.topics.get(topic)
        return len(known.leaders) if known is not None else None

    def __repr__(self) -> str:
        return (
            f"<cluster {self.cluster_id or '?'} metadata={self.metadata_offset} controller={self.controller_id}"
            f" brokers={','.join(map(str, sorted(self.brokers)))} topics={len(self.topics)}>"
        )


ABSENT_S = 3.0
"""A partition that is being added is in all brokers' metadata sooner."""


class AbsentPartitions:
    """Partitions beyond the number that their topic has, and since when one call has been waiting for them.

    Partitions can be added, so one response does not show that a partition will not exist. Waiting as long as for a
    broker that is down helps nobody: fresh metadata that says the same for ``ABSENT_S`` does show it.
    """

    def __init__(self, view: ClusterView, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._waiting: dict[TopicPartition, tuple[int, float]] = {}

    def error(self, partition: TopicPartition) -> kafka.UnknownTopicOrPartition | None:
        """Return the error once responses have confirmed that the topic lacks the partition. Call it repeatedly."""
        count = self._view.partition_count(partition.topic)
        if count is None or partition.partition < count:
            self._waiting.pop(partition, None)
            return None
        known, since = self._waiting.get(partition, (None, 0.0))
        if known != count:
            self._waiting[partition] = count, self._clock.now()
            return None
        confirmed_at = self._view.updated_at
        if confirmed_at is None or confirmed_at < since + ABSENT_S:
            return None
        return no_partition(partition, count)

    def __bool__(self) -> bool:
        return bool(self._waiting)


def no_partition(partition: TopicPartition, count: int) -> kafka.UnknownTopicOrPartition:
    """Return the error about a partition that its topic, which has ``count``, does not have."""
    has = "1 partition, number 0" if count == 1 else f"{count} partitions, numbers 0 to {count - 1}"
    message = f"{partition.topic} has {has}; there is no {partition.partition}"
    return kafka.UnknownTopicOrPartition(message, outcome=kafka.NOT_WRITTEN)


ANOTHER_PROGRAM_S = 2.0
"""A proxy in front of a broker may answer in its own way while the broker starts."""
LOG_INTERVAL_S, LOG_INTERVAL_MAX_S = 5.0, 60.0
"""Pause between the first two log lines about the same address, which doubles from line to line, and the longest one: a
broker may be down for days.
"""


@dataclass(slots=True)
class _Attempts:
    since: float
    count: int = 0
    reason: str = ""
    advice: str = ""
    is_about_tls: bool = False
    is_another_program: bool = False
    log_at: float = float("-inf")
    """When the next line for the log is due."""
    pause_s: float = LOG_INTERVAL_S

    def in_words(self, now: float) -> str:
        times = "1 attempt" if self.count == 1 else f"{self.count} attempts in {now - self.since:.1f} s"
        return f"{self.reason} ({times})"


class ConnectionFailures:
    """The addresses that have not answered since their last failure."""

    def __init__(self) -> None:
        self._failing: dict[Address, _Attempts] = {}

    def failed(self, peer: Address, error: BaseException, now: float) -> str | None:
        """Count a failed attempt. Return a line for the log for the first one, and then more and more rarely."""
        attempts = self._failing.setdefault(peer, _Attempts(since=now))
        attempts.count += 1
        # The network names API and peer in front of the reason; here each line names the peer.
        attempts.reason = str(error).rpartition(f" to {peer}: ")[2]
        attempts.is_about_tls = isinstance(error, kafka.TlsFailed)
        attempts.is_another_program = isinstance(error, kafka.NotABroker)
        if attempts.is_about_tls:
            attempts.advice = "check bootstrap_servers (http:// or https://) and the certificates of both ends"
        elif isinstance(error, kafka.Unreachable):
            attempts.advice = "check bootstrap_servers, and that a broker runs there"
        elif attempts.is_another_program:
            attempts.advice = "another program listens there: check bootstrap_servers"
        else:
            attempts.advice = "check that the broker runs, and that the port is a minikafka broker's"
        if now < attempts.log_at:
            return None
        attempts.log_at = now + attempts.pause_s
        attempts.pause_s = min(2 * attempts.pause_s, LOG_INTERVAL_MAX_S)
        problem = "cannot connect to" if isinstance(error, kafka.Unreachable) else "no response from"
        return f"{problem} {peer}: {attempts.in_words(now)}; the client retries"

    def answered(self, peer: Address) -> None:
        """Forget the failures of an address that works."""
        self._failing.pop(peer, None)

    def need_other_settings(self, now: float) -> bool:
        """Return True if every address failed in a way that time does not mend: the two ends do not agree on TLS, or
        another program has listened there for ANOTHER_PROGRAM_S.
        """
        return bool(self._failing) and all(
            each.is_about_tls or (each.is_another_program and now >= each.since + ANOTHER_PROGRAM_S)
            for each in self._failing.values()
        )

    def reasons(self) -> list[str]:
        """Return every failing address with its last reason."""
        return [f"{peer}: {attempts.reason}" for peer, attempts in self._failing.items()]

    def summary(self, now: float) -> str:
        """Describe every failing address with its last reason, and what to do; empty if there is none."""
        tried = "; ".join(f"{peer}: {attempts.in_words(now)}" for peer, attempts in self._failing.items())
        advice = dict.fromkeys(attempts.advice for attempts in self._failing.values())
        return f"{tried}; {'; '.join(advice)}" if tried else ""


def cause_of(error: BaseException) -> BaseException:
    """Return the world's own error behind a client's error, or the error itself."""
    return error.__cause__ if isinstance(error.__cause__, kafka.WorldError) else error


ASK_FIRST_S = 0.5
"""How long the first round waits for each node; a round in which no node answers makes the next one wait longer."""
ASK_TIMEOUT_S = 2.0
OVERDUE_S = 0.5
"""A leader that holds a request for longer than it may, and this on top, may be frozen or cut off."""
NO_CONTROLLER_S = 5.0
"""An election takes one to three seconds: without a controller after that there is no quorum."""
NEWS_PAUSE_SHARE = 5
"""What part of ``retry_backoff_max_ms`` lies at most between two answers of which the first had nothing new."""

Listener = Callable[[Update], None]


class _LeaderCall:
    """A request to a leader: given up if it is overdue and the metadata names another leader.

    A leader that is frozen or cut off does not respond, and the request timeout is longer than the election of its
    successor takes. While a request is overdue, metadata is requested every OVERDUE_S.
    """

    __slots__ = ("_metadata", "_partitions", "_scope", "_timer", "node")

    def __init__(self, metadata: Metadata, node: NodeId, partitions: Collection[TopicPartition]) -> None:
        self._metadata = metadata
        self.node = node
        self._partitions = partitions

    async def run(self, calling: Awaitable[Any], wait_s: float) -> Any:
        """Await ``calling``; NetworkException if it was given up."""
        self._timer = asyncio.get_running_loop().call_later(wait_s + OVERDUE_S, self._overdue)
        try:
            with CancelScope() as self._scope:
                return await calling
        finally:
            self._timer.cancel()
            self._metadata.overdue.pop(self, None)
        raise kafka.NetworkException(
            f"node {self.node} does not answer, and another node leads now", outcome=kafka.UNKNOWN
        )

    def _overdue(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(OVERDUE_S, self._overdue)
        self._metadata.overdue[self] = None
        self._metadata.refresh_soon()
        self.check()

    def check(self) -> None:
        """Give up the request if another node leads one of its partitions by now."""
        view = self._metadata.view
        if any(view.leader(*each).node not in (NO_NODE, self.node) for each in self._partitions):
            self._scope.end()


class Metadata:
    """Owner of the view. ``start`` and ``stop`` belong to the client that has it."""

    def __init__(
        self,
        config: ClientConfig,
        world: World,
        caller: Caller,
        *,
        auto_create: bool = False,
        controller_timeout_ms: int | None = None,
    ) -> None:
        """``controller_timeout_ms``: see :meth:`attempts`."""
        self.view = ClusterView()
        self.listeners: list[Listener] = []
        """Called after each accepted answer and each hint that was news."""
        self.failed: BaseException | None = None
        """What ended the refreshing task, if anything did: a bug, or an answer from another cluster."""
        self._config = config
        self._world = world
        self._caller = caller
        self._auto_create = auto_create
        self._topics: dict[str, None] = {}
        self._wanted = Flag()
        self._is_new = Flag()
        """A caller follows a topic that the last request did not name."""
        self._asked = 0
        """Questions so far."""
        self._waiting: list[tuple[int, asyncio.Future[None], str]] = []
        """Callers that wait for the response to a request after this one, and the topic that each waits for."""
        self._task: asyncio.Task[None] | None = None
        self._in_vain = 0
        """How often in a row more was asked for, and no broker knew."""
        self.backoff = Backoff(world.random, config)
        """The pauses between attempts of this client."""
        self._unanswered = 0
        """Rounds over all nodes in a row in which none answered."""
        self._failures = ConnectionFailures()
        self._unaware: dict[Address, None] = {}
        """Brokers that know no controller, by their latest responses."""
        self._unaware_since: float | None = None
        self._unaware_at = 0.0
        """When a broker first, and last, said so."""
        self._missing = (
            None
            if controller_timeout_ms is None
            else WithoutController(controller_timeout_ms / 1000, self._without_controller)
        )
        self.overdue: dict[_LeaderCall, None] = {}
        """Requests that leaders should have answered by now."""

    async def start(self, deadline: float) -> None:
        """Ask until a first broker answers. NetworkException at ``deadline`` when none did."""
        attempts = Attempts(self._world, self.backoff, deadline)
        while True:
            try:
                await self._ask()
                break
            except kafka.NetworkException as error:
                pause_s = attempts.pause_s()
                now = self._world.clock.now()
                if pause_s is None or self._failures.need_other_settings(now):
                    tried = self._failures.summary(now) or error.message
                    raise kafka.NetworkException(f"no bootstrap server answers: {tried}") from error
                await asyncio.sleep(pause_s)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="client-metadata")

    async def stop(self) -> None:
        task, self._task = self._task, None
        try:
            if task is not None:
                task.cancel()
                # Not `await task`: there nobody could tell its cancellation from the caller's own.
                await until_ended((task,))
        finally:
            self._release(kafka.RequestTimedOut("the client was stopped"))

    # ---------------------------------------------------------------------------------------- what is wanted

    def follow(self, topic: str) -> None:
        """Ask about ``topic`` from now on."""
        if topic not in self._topics:
            self._topics[topic] = None
            self._wanted.set()
            self._is_new.set()

    def follow_only(self, topics: list[str]) -> None:
        """Ask about exactly these topics from now on."""
        if any(topic not in self._topics for topic in topics):
            self._is_new.set()
        self._topics = dict.fromkeys(topics)
        self._wanted.set()

    def refresh_soon(self) -> None:
        """The view is stale: ask as soon as the pause between two requests allows."""
        self._wanted.set()

    async def refreshed(self, deadline: float, *, topic: str = "") -> None:
        """Ask, and return after an accepted answer to what was asked from now on; RequestTimedOut at ``deadline``.

        ``topic`` is what the caller waits for: brokers may create it, if this client lets them.
        """
        if self.failed is not None:
            raise self.failed
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (self._asked, waiting, topic)
        self._waiting.append(entry)
        self._wanted.set()
        try:
            async with asyncio.timeout_at(deadline):
                await waiting
        except TimeoutError:
            tried = self._failures.summary(self._world.clock.now())
            message = "no broker answered with newer metadata in time"
            raise kafka.RequestTimedOut(f"{message}: {tried}" if tried else message) from None
        finally:
            if entry in self._waiting:
                self._waiting.remove(entry)

    def attempts(self, deadline: float, *, growth_max: int = 31) -> Attempts:
        """The attempts of one call, which end early after ``controller_timeout_ms`` without a controller."""
        return Attempts(self._world, self.backoff, deadline, growth_max=growth_max, missing=self._missing)

    def _without_controller(self) -> list[str]:
        """What each broker said if the newest metadata names no controller. Newer metadata is requested."""
        self.refresh_soon()
        if self.view.controller_id != NO_NODE:
            return []
        return [f"{peer} knows no controller" for peer in self._unaware] + self._failures.reasons()

    def learn_leader(self, partition: TopicPartition, leader: object, endpoints: object = ()) -> bool:
        """A refusal named the leader: take it over, or else ask. True when it was news."""
        news = self.view.learn_leader(partition, leader, endpoints)  # type: ignore[arg-type]
        if news:
            self._tell(Update(accepted=True, changed=(partition,)))
        else:
            self._wanted.set()
        return news

    # ---------------------------------------------------------------------------------------- whom to ask

    def address(self, node: NodeId) -> Address | None:
        """Where ``node`` listens, if the view knows."""
        return self.view.brokers.get(node)

    async def call(self, node: NodeId, request: Any, *, deadline: float) -> Any:
        """Ask ``node``; as :meth:`Caller.call`. NetworkException (not written) when the view does not know it."""
        address = self.address(node)
        if address is None:
            raise kafka.NetworkException(f"node {node} is not in the metadata", outcome=kafka.NOT_WRITTEN)
        return await self._caller.call(address, request, deadline=deadline)

    async def call_leader(
        self,
        node: NodeId,
        request: Any,
        partitions: Collection[TopicPartition],
        *,
        deadline: float,
        wait_s: float = 0.0,
    ) -> Any:
        """As :meth:`call`, for requests that may be repeated at another node.

        Args:
            node: The leader of all ``partitions``.
            request: The request.
            partitions: What it asks for. If it is overdue and one of them has another leader, NetworkException
                (unknown) is raised before ``deadline``.
            deadline: When the request fails in any case.
            wait_s: How long the leader may hold the request.
        """
        call = _LeaderCall(self, node, partitions)
        return await call.run(self.call(node, request, deadline=deadline), wait_s)

    def any_addresses(self) -> list[Address]:
        """All known addresses in random order: those with overdue requests behind the others, and those of the
        bootstrap list that are not in the view last.
        """
        nodes = sorted(self.view.brokers)
        self._world.random.shuffle(nodes)
        if self.overdue:
            silent = {call.node for call in self.overdue}
            nodes.sort(key=silent.__contains__)
        known = [self.view.brokers[node] for node in nodes]
        return known + [address for address in self._config.bootstrap if address not in known]

    def controller_first(self) -> list[Address]:
        """As :meth:`any_addresses`, the controller in front if it is known."""
        addresses = self.any_addresses()
        controller = self.address(self.view.controller_id) if self.view.controller_id != NO_NODE else None
        if controller is not None and controller in addresses:
            addresses.remove(controller)
            addresses.insert(0, controller)
        return addresses

    # ---------------------------------------------------------------------------------------- the task

    async def _run(self) -> None:
        try:
            while True:
                if not self._wanted.is_set():
                    self._in_vain = 0
                    await self._wanted.wait(self._world.clock.now() + self._config.metadata_max_age_ms / 1000)
                self._wanted.clear()
                self._is_new.clear()
                self._in_vain += 1
                pause_max_s = self._config.retry_backoff_max_ms / 1000
                try:
                    await self._ask()
                    pause_max_s /= NEWS_PAUSE_SHARE
                except (kafka.NetworkException, kafka.SaslAuthenticationFailed) as error:
                    self._wanted.set()
                    if isinstance(error, kafka.SaslAuthenticationFailed):
                        self._release(error)
                    self._world.events("metadata_refresh_failed", error=error.message)
                pause_s = min(pause_max_s, self.backoff.pause_s(max(self._in_vain, 1)))
                await self._is_new.wait(self._world.clock.now() + pause_s)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - handed to every waiter, and kept for those to come
            self.failed = error
            self._world.events("metadata_failed", error=repr(error))
            self._release(error)
            self._tell(Update(accepted=False))

    async def _ask(self) -> None:
        """Ask about all topics. Only those that callers wait for may be created: others that are missing were deleted,
        and would come back for as long as this client lives.
        """
        wanted = {topic for _, _, topic in self._waiting if topic} if self._auto_create else set()
        missing = [each for each in self._topics if self.view.partition_count(each) is None and each not in wanted]
        apart = tuple(missing) if wanted else ()
        await self.ask_once(tuple(each for each in self._topics if each not in apart), creates=bool(wanted))
        if apart:
            await self.ask_once(apart)

    async def ask_once(self, topics: tuple[str, ...] | None, *, creates: bool = False) -> MetadataResponse:
        """One answer about ``topics`` (None: all) from the broker that answers first; the view takes it over.

        ``creates``: the broker may create those that do not exist.
        """
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=creates)
        last: kafka.ProtocolError | None = None
        self._asked += 1
        asked = self._asked
        longest_s = min(ASK_TIMEOUT_S, self._config.request_timeout_ms / 1000)
        patience_s = min(longest_s, ASK_FIRST_S * 2.0 ** min(self._unanswered, 10))
        for address in self.any_addresses():
            now = self._world.clock.now()
            try:
                response: MetadataResponse = await self._caller.call(address, request, deadline=now + patience_s)
                update = self.view.update(response, self._world.clock.now(), all_topics=topics is None)
            except (kafka.InconsistentClusterId, kafka.SaslAuthenticationFailed):
                raise
            except kafka.ProtocolError as error:
                self._failures.failed(address, cause_of(error), self._world.clock.now())
                self._unaware.pop(address, None)
                last = error
                continue
            self._failures.answered(address)
            self._note_controller(address, response.controller_id)
            self._unanswered = 0
            if update.accepted:
                if update.changed:
                    self._in_vain = 0
                self._release(None, before=asked)
                self._tell(update)
                return response
            last = kafka.BrokerNotAvailable(f"{address} knows less of the cluster than this client")
        self._unanswered += 1
        raise kafka.NetworkException(f"no broker gave metadata; last: {last.name if last else ''} {last}") from last

    def _note_controller(self, peer: Address, controller: NodeId) -> None:
        """Report once that brokers have known no controller for longer than an election takes."""
        now = self._world.clock.now()
        if controller != NO_NODE:
            self._unaware.clear()
            self._unaware_since = None
            return
        self._unaware[peer] = None
        if self._unaware_since is None or now > self._unaware_at + NO_CONTROLLER_S:
            self._unaware_since = now  # Nothing is known of the time before: nobody asked.
        elif self._unaware_at < self._unaware_since + NO_CONTROLLER_S <= now:
            self._world.events("controller_missing", why=no_controller(self._without_controller()))
        self._unaware_at = now

    def _tell(self, update: Update) -> None:
        for call in list(self.overdue):
            call.check()
        for listener in self.listeners:
            listener(update)

    def _release(self, error: BaseException | None, *, before: int | None = None) -> None:
        """Those who wait; ``before``: only those who did before that question was asked."""
        entries, self._waiting = self._waiting, []
        for entry in entries:
            asked, waiting, _ = entry
            if before is not None and asked >= before:
                self._waiting.append(entry)
            elif not waiting.done():
                if error is None:
                    waiting.set_result(None)
                else:
                    waiting.set_exception(error)
