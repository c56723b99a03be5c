"""One broker: the parts, put together, started and stopped in order.

Start: lock and load the data directory, serve, join the quorum, follow the metadata, register, get unfenced.
Stop: ask to leave (leaders move first), refuse new requests, end the waiters, leave the quorum, close the server, make
everything durable, write the clean-shutdown marker. A broker whose disk failed leaves in the same order but without
the marker: the next start must recover. A bug (an unexpected exception) stops the broker at once, except in a
request that has changed nothing.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from minikafka import errors as kafka
from minikafka.broker.api.acls import AclApi
from minikafka.broker.api.admin import AdminApi
from minikafka.broker.api.producer_ids import ProducerIds
from minikafka.broker.api.stopping import StoppingApi
from minikafka.broker.controller_driver import ControllerDriver
from minikafka.broker.coordinator_shards import GROUP, TRANSACTION, FindCoordinatorApi, KeyKind
from minikafka.broker.dispatch import ApiHandler, Dispatcher, screened_answer, settled
from minikafka.broker.event_limiter import EventLimiter
from minikafka.broker.forwarding import Forwarding
from minikafka.broker.group_manager import HISTORY_SHARE, GroupManager
from minikafka.broker.history import History
from minikafka.broker.lifecycle import Lifecycle
from minikafka.broker.listeners import Listeners
from minikafka.broker.live_settings import LiveSettings
from minikafka.broker.log_maintenance import LogCleaner, LogMaintenance
from minikafka.broker.metadata import MetadataApi, MetadataCache, removed_topics
from minikafka.broker.partition_history import PartitionHistory
from minikafka.broker.parts import ANSWERED_BY_CONTROLLER, CHANGES_OF_ACLS, Parts, handler_table
from minikafka.broker.quorum_driver import QuorumDriver
from minikafka.broker.replica_manager import ReplicaManager
from minikafka.broker.throttle import STRICT_SINCE, Throttle
from minikafka.broker.transaction_manager import TransactionManager
from minikafka.config import MIB, BrokerConfig, TopicConfig
from minikafka.groups.limits import check_group_id
from minikafka.log.log_directory import LogDirectory, read_identity
from minikafka.ports import INTERNAL, FrameConnection, FrameSession, Handler, RequestContext, World
from minikafka.quorum.image import MetadataImage
from minikafka.replication.partition import Partition
from minikafka.rpc import call
from minikafka.tasks import Flag, Tasks, until_ended
from minikafka.transactions.records import check_transactional_id
from minikafka.types import METADATA_PARTITION, Address, Epoch, NodeId, TopicPartition, uuid_text
from minikafka.wire import messages as m
from minikafka.wire.acls import AclOperation
from minikafka.wire.apis import BY_REQUEST
from minikafka.wire.codec import find_api

if TYPE_CHECKING:
    from minikafka.broker.access import Access
    from minikafka.broker.http_login import HttpLogin, HttpLogins
    from minikafka.broker.kafka_session import KafkaDoor
    from minikafka.security.oauth import Tokens

TestHooks: TypeAlias = Callable[[m.RunTestHookRequest], Awaitable[m.RunTestHookResponse]]

METADATA_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
"""Kafka's fixed id of the metadata topic: the UUID 1."""

METADATA_LOG_CONFIG = TopicConfig(retention_ms=-1, max_message_bytes=100 * MIB)
"""Snapshots alone shorten the metadata log, and the quorum bounds its batches itself."""

BETWEEN_TURNS_S = 0.001
"""What other tasks get between two turns that make new replicas; a timer, so that the simulator too lets others run."""


class Broker:
    """One incarnation of one broker; :meth:`start` and :meth:`stop` once each."""

    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        *,
        origins: Mapping[str, str] | None = None,
        tokens: Tokens | None = None,
    ) -> None:
        """``origins``: where each setting that was given came from, for DescribeConfigs. ``tokens`` verifies the tokens
        of clients.
        """
        self._tokens = tokens
        self.history = History(
            config.node_id,
            keep_ms=config.history_minutes * 60_000,
            bytes_max=config.history_bytes - config.history_bytes // HISTORY_SHARE,
        )
        self.partition_history = PartitionHistory(
            world.clock,
            world.events,
            is_replaying=lambda: not self._has_caught_up,
            history=self.history.on_entry,
        )
        self.world = world = replace(world, events=self.partition_history)
        self.settings = LiveSettings(config, world.events)
        self.parts = Parts()
        self._origins = origins
        self.node_id = config.node_id
        self.failure: str | None = None
        self._tasks = Tasks(self._on_task_failure)
        self._stopping = False
        self._stopped = asyncio.Event()
        self._state_moved = Flag()
        self._strays_seen = False
        self._ending: asyncio.Task[None] | None = None
        """The stop that a failure has begun."""
        self._has_caught_up = False
        self._image_of_roles = MetadataImage()
        """What the replicas were last brought to."""
        self._is_taking_up = False
        self._listeners = Listeners(config)
        self.access = self._make_access(config)
        """What clients may do; None: everything."""
        self._envelope_handler: ApiHandler | None = None
        """Made for the first Envelope."""
        self.throttle = Throttle(config, world.clock)
        """Quotas of clients."""
        self.test_hooks: TestHooks | None = None
        """Serves the testing routes of ``/v1`` that arrive at another broker; None: this broker has none."""
        self._handlers: dict[str, ApiHandler] = {}
        # From the moment it listens a request can come; it is open when start() is done.
        self.dispatcher = Dispatcher(
            self._handlers,
            events=world.events,
            on_bug=self._on_task_failure,
            ticks_ns=world.clock.ticks_ns,
            screen=None if self.access is None else self.access.screen,
            throttle=self.throttle,
        )
        self.handle: Handler = self.dispatcher.dispatch
        """The /rpc handler: bytes in, bytes out; never raises."""
        self._http_logins: HttpLogins | None = None
        self._kafka: KafkaDoor | None = None
        """Made for the first connection of Kafka's protocol: codec and translators are not loaded before."""

    def _make_access(self, config: BrokerConfig) -> Access | None:
        if not config.authorizer_class_name:
            return None
        from minikafka.broker.access import Access  # noqa: PLC0415 - brokers without an authorizer do without

        return Access(config, self.parts.image, self.world.events, self.world.clock.now, self._is_current)

    def _may_describe(self, context: RequestContext) -> Callable[[str], bool] | None:
        return None if self.access is None else self.access.topics_check(context, "JoinGroup", AclOperation.DESCRIBE)

    # ---- what others may ask -----------------------------------------------------------------------------------------

    def kafka_software(self) -> Counter[str]:
        """Open connections of Kafka's protocol, by the name of the client's library."""
        return Counter() if self._kafka is None else self._kafka.software()

    @property
    def config(self) -> BrokerConfig:
        """The settings that count now."""
        return self.settings.now

    @property
    def address(self) -> Address:
        """Where it listens, port resolved."""
        return self._listeners.address

    @property
    def advertised(self) -> Address:
        """What brokers learn."""
        return self.config.advertised or self.address

    @property
    def image(self) -> MetadataImage:
        """The metadata as far as this broker has applied it."""
        return self.metadata.image

    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        return self.replicas.partitions

    @property
    def broker_epoch(self) -> int:
        return self.lifecycle.broker_epoch

    @property
    def is_open(self) -> bool:
        """Started and not yet stopped."""
        return self.dispatcher.is_open

    @property
    def is_ready(self) -> bool:
        """Registered, unfenced, not stopping; and its own registration is applied here."""
        return self.is_open and not self._stopping and self._has_caught_up and not self.lifecycle.is_fenced

    @property
    def has_session(self) -> bool:
        """Its session with the controller has not run out; without one its leaders refuse all clients."""
        return self.lifecycle.session_alive()

    def address_of(self, node: NodeId) -> Address | None:
        """Where a broker listens, by the metadata."""
        return self.parts.address_of(node)

    def sample_history(self) -> None:
        """Keep what has changed since the last call: for a timer, once a second."""
        if self.is_open:
            clock = self.world.clock
            self.history.sample(clock.wall_ms(), clock.now(), self.replicas.partitions)
            self.groups.history.sample(clock.wall_ms(), self.groups.coordinators())

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Return when the broker is ready. Raises BrokerNotAvailable saying what is missing."""
        deadline = self.world.clock.now() + timeout_s
        while not self.is_ready and self.failure is None:
            self._state_moved.clear()
            if not await self._state_moved.wait(deadline):
                raise kafka.BrokerNotAvailable(
                    f"broker {self.node_id} is not ready after {timeout_s} s: {self.missing()}"
                )
        if self.failure is not None:
            raise kafka.BrokerNotAvailable(f"broker {self.node_id} stopped: {self.failure}")

    def _is_current(self) -> bool:
        """Return True if this broker has applied what was committed before its start: its own registration, or, as the
        active controller, a record of its own epoch.
        """
        return self._has_caught_up or (self.is_open and self.quorum.is_leader)

    def check_caught_up(self) -> None:
        """Raise BrokerNotAvailable until this broker has applied its own registration, and so all that came before."""
        if not self._has_caught_up:
            raise kafka.BrokerNotAvailable(
                f"broker {self.node_id} has just started and has not read the cluster's metadata yet"
                f" ({self.missing()}): ask another broker, or later"
            )

    def missing(self) -> str:
        """What this broker still waits for, as a sentence."""
        if not self.is_open:
            return "it does not serve yet"
        if self.quorum.leader_id not in self.voters:
            why = "; ".join(why for _, why in sorted(self.quorum.unreachable.items()))
            return f"the quorum of {list(self.voters)} has no leader" + (f" that it knows of ({why})" if why else "")
        if self.lifecycle.refused:
            return f"the controller refuses it: {self.lifecycle.refused}"
        if self.lifecycle.broker_epoch < 0:
            return "the controller has not registered it"
        if self.lifecycle.is_fenced:
            return "the controller has not unfenced it"
        if not self._has_caught_up:
            return "it has not applied its own registration"
        return "nothing" if self.has_session else "its session with the controller has run out"

    async def wait_stopped(self) -> None:
        """Return when the broker has stopped; ``failure`` says why, if it did so by itself."""
        await self._stopped.wait()

    # ---- start -------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve. Raises DiskFailed (locked or broken data directory), InvalidConfig, OSError-like WorldErrors."""
        world, config = self.world, self.config
        self.cluster_id = self._cluster_id()
        topic_defaults = config.topic_defaults()
        try:
            self.logs = await LogDirectory.open(
                world.disk,
                node_id=config.node_id,
                cluster_id=self.cluster_id,
                directory_id=self._new_id(),
                config_of=lambda name: METADATA_LOG_CONFIG if name == METADATA_PARTITION else topic_defaults,
                events=world.events,
                tail_budget_bytes=config.memory_tails_bytes,
                pause=lambda: asyncio.sleep(0),
            )
        except kafka.DiskFull as error:
            what = f"data directory {config.log_dirs}: {error}; free space there, then start again"
            raise kafka.DiskFull(what) from error
        await self._listeners.open(world.network, self.handle, self.open_kafka_session)
        self._make_control()
        self._make_data()
        self._handlers.update(handler_table(self))
        self.metadata.subscribe(self._remember_image)
        self.metadata.subscribe_leader(self._remember_controller)
        self.metadata.subscribe(self.partition_history.on_image)
        self.metadata.subscribe(self.settings.on_image)
        self.metadata.subscribe(self.throttle.on_image)
        self.metadata.subscribe(self._on_image)
        self.metadata.subscribe_leader(self._on_leader)
        self.dispatcher.is_open = True
        await self._begin()
        world.events("broker_started", node=self.node_id, address=str(self.address), cluster_id=self.cluster_id)

    def answer_envelope(self, request: m.EnvelopeRequest, context: RequestContext) -> Any:
        """Serve the request in an Envelope, for the client that another broker names."""
        if self._envelope_handler is None:
            from minikafka.broker.envelopes import envelope_handler  # noqa: PLC0415 - brokers without an authorizer do without

            self._envelope_handler = envelope_handler(self.dispatcher, self.config)
        return self._envelope_handler(request, context)

    def run_test_hook(self, request: m.RunTestHookRequest) -> Awaitable[m.RunTestHookResponse]:
        """Serve a testing route that arrived at another broker. Raises PolicyViolation if there are none here."""
        if self.test_hooks is None:
            raise kafka.PolicyViolation("this broker has no test hooks; start it with mk.testing.endpoints.enable=true")
        return self.test_hooks(request)

    def _make_control(self) -> None:
        """The quorum, its controller, and this broker's standing with it."""
        world, config, parts = self.world, self.config, self.parts
        self.voters = parts.voters = (
            config.voters if config.controller_quorum_voters else {config.node_id: self.address}
        )
        self.metadata = parts.metadata = MetadataCache(self.cluster_id, world.events)
        self.quorum = parts.quorum = QuorumDriver(
            config,
            world,
            cluster_id=self.cluster_id,
            voters=self.voters,
            log=self.logs.get(METADATA_PARTITION)
            or self.logs.create(METADATA_PARTITION, topic_id=METADATA_TOPIC_ID, config=METADATA_LOG_CONFIG),
            spawn=self._tasks.spawn,
            listener=self.metadata,
        )
        self.controller = parts.controller = ControllerDriver(
            config,
            world,
            self.quorum,
            self.metadata,
            self._tasks.spawn,
            has_registered=parts.has_registered,
        )
        self.lifecycle = parts.lifecycle = Lifecycle(
            config,
            world,
            cluster_id=self.cluster_id,
            incarnation_id=self._new_id(),
            previous_broker_epoch=self.logs.previous_broker_epoch,
            log_dirs=(self.logs.meta.directory_id,) if self.logs.meta.directory_id else (),
            ignores_case=self.logs.ignores_case,
            advertised=lambda: self.advertised,
            other_listeners=self._listeners.others,
            controller=parts.controller_address,
            applied_offset=parts.applied_offset,
            on_change=self._moved,
            controller_heard_at=self.quorum.majority_heard_at,
            missing_replicas=parts.missing_replicas,
            leads_any=parts.leads_any,
        )

    def _make_data(self) -> None:
        """The replicas, and what is served from them."""
        world, config, parts = self.world, self.config, self.parts
        self.replicas = parts.replicas = ReplicaManager(
            self.settings,
            world,
            self.logs,
            spawn=self._tasks.spawn,
            controller=parts.controller_address,
            image=parts.image,
            broker_epoch=parts.latest_broker_epoch,
            address_of=parts.address_of,
            on_storage_failure=self._on_storage_failure,
        )
        self.producer_ids = ProducerIds(
            config.node_id, broker_epoch=parts.broker_epoch, ask_controller=self.ask_controller
        )
        self.groups = parts.groups = GroupManager(
            config,
            world,
            self.replicas,
            image=parts.image,
            session_alive=self.lifecycle.session_alive,
            ask_controller=self.ask_controller,
            verifier=parts.verifier,
            spawn=self._tasks.spawn,
            may_describe=self._may_describe,
        )
        self.transactions = parts.transactions = TransactionManager(
            config,
            world,
            self.replicas,
            self.producer_ids,
            image=parts.image,
            session_alive=self.lifecycle.session_alive,
            broker_epoch=parts.broker_epoch,
            ask_controller=self.ask_controller,
            ask_broker=self._ask_broker,
            create_offsets_topic=self.groups.shards.create_topic,
            spawn=self._tasks.spawn,
        )
        self.find_coordinator = FindCoordinatorApi(
            {
                GROUP: KeyKind(self.groups.shards, check_group_id),
                TRANSACTION: KeyKind(self.transactions.shards, check_transactional_id),
            },
            parts.image,
        )
        self.metadata_api = MetadataApi(self.settings, world, self.metadata, self.quorum, self.ask_controller)
        self._forwarding = Forwarding(
            config.node_id,
            world,
            self.metadata,
            here=self.answer,
            send=self.forward,
            controller=parts.controller_address,
            timeout_s=config.controller_quorum_request_timeout_ms / 1000,
        )
        self.stopping_api = StoppingApi(parts.latest_broker_epoch)
        self.admin_api = AdminApi(config, parts.image, self._origins)
        self.acl_api = AclApi(config, parts.image)

    async def _begin(self) -> None:
        """All that goes on by itself."""
        await self.quorum.start()
        await self.controller.start()
        log_maintenance = LogMaintenance(
            self.replicas, self.settings, on_disk_failure=self._fail_in_order, spawn=self._tasks.spawn
        )
        self._tasks.spawn(log_maintenance.run(), "log-maintenance")
        self.cleaner = LogCleaner(self.replicas, self.settings)
        if self.config.log_cleaner_enable:
            self._tasks.spawn(self.cleaner.run(), "log-cleaner")
        self._tasks.spawn(self.replicas.alter_partition_manager.run(), "isr-proposer")
        self._tasks.spawn(self.groups.shards.run(), "groups")
        self._tasks.spawn(self.lifecycle.run(), "lifecycle")

    def _cluster_id(self) -> str:
        """From the settings, else from the data directory, else, for a cluster of one, made up now."""
        if self.config.cluster_id:
            return self.config.cluster_id
        known = read_identity(self.world.disk)
        if known is not None:
            return known.cluster_id
        if len(self.config.voters) > 1:
            raise kafka.InvalidConfig(
                "cluster.id is missing: several voters must agree on it; `minikafka up` writes one, or give the same "
                "22 base64 characters to every broker (CLUSTER_ID in compose)",
                setting="cluster.id",
            )
        return self._new_id()

    def _new_id(self) -> str:
        return uuid_text(self.world.random.randbytes(16))

    # ---- requests ----------------------------------------------------------------------------------------------------

    async def answer(self, api: str, request: object, context: RequestContext = INTERNAL) -> Any:
        """The same handlers, typed. Raises ProtocolError for a failure of the whole request."""
        return await settled(self.dispatcher.answer(find_api(api), request, context))

    def http_login(self, listener: str) -> HttpLogin:
        """The check of credentials of HTTP requests at a listener, by its name in contexts."""
        from minikafka.broker.http_login import HttpLogins  # noqa: PLC0415 - as in open_kafka_session

        if self._http_logins is None:
            self._http_logins = HttpLogins(
                self.config,
                self.world,
                lambda: self.image if self.is_open else MetadataImage(),
                self.check_caught_up,
                self._tokens,
            )
        return self._http_logins.at(listener)

    def open_kafka_session(self, connection: FrameConnection, context: RequestContext) -> FrameSession:
        """For a connection that speaks Kafka's protocol."""
        from minikafka.broker.image_directory import all_operations  # noqa: PLC0415 - start does without
        from minikafka.broker.kafka_login import login_rules  # noqa: PLC0415 - as above
        from minikafka.broker.kafka_session import KafkaDoor, KafkaSession  # noqa: PLC0415 - as above

        if self._kafka is None:
            self._kafka = KafkaDoor(
                answering=self._answer_kafka,
                meters=self.dispatcher.meters,
                image=lambda: self.image if self.is_open else MetadataImage(),
                wall_ms=self.world.clock.wall_ms,
                events=EventLimiter(self.world.events, self.world.clock.now),
                throttle=self.throttle,
                ticks_ns=self.world.clock.ticks_ns,
                operations=all_operations if self.access is None else self.access.operations,
                is_current=self._is_current,
                logins=login_rules(
                    self.config, lambda: self.image, self.world.entropy, self._tokens, self.world.clock.wall_ms
                ),
            )
        return KafkaSession(self._kafka, connection, context)

    def _answer_kafka(self, api: str, request: object, context: RequestContext) -> Any:
        """Kafka's clients may ask any broker for what only the controller does."""
        if api in CHANGES_OF_ACLS:
            self.acl_api.check_enabled()  # before the controller is known: nothing is forwarded without an authorizer
        if api in ANSWERED_BY_CONTROLLER and self.is_open:
            screened = None if self.access is None else self.access.screen(api, request, context)
            if screened is None:
                return self._forwarding.answer(api, request, context)
            return screened_answer(find_api(api), screened, lambda left: self._forwarding.answer(api, left, context))
        return self.dispatcher.answer(find_api(api), request, context)

    async def _ask_broker(self, node: NodeId, request: object, wait_s: float) -> Any:
        """The response of another broker or, in a later turn of the loop too, of this one.

        Raises BrokerNotAvailable if the metadata knows it no longer, and what :func:`minikafka.rpc.call` raises.
        """
        if node != self.node_id:
            address = self.address_of(node)
            if address is None:
                raise kafka.BrokerNotAvailable(f"broker {node} is not registered")
            return await call(self.world.network, address, request, self.world.clock.now() + wait_s)
        await asyncio.sleep(0)
        return await settled(self.dispatcher.answer(BY_REQUEST[type(request)], request, INTERNAL))

    async def forward(self, peer: Address, request: object, context: RequestContext, deadline: float) -> Any:
        """Send a request of a client to another broker, which checks its permissions as this one has.

        As :func:`minikafka.rpc.call` for this broker's own requests. The two are the same for clients that neither an
        authorizer nor a quota at the other broker needs to know.
        """
        counts = self.throttle.quotas is not None and BY_REQUEST[type(request)].name in STRICT_SINCE
        is_checked = self.access is not None and not self.access.is_trusted(context)
        if not is_checked and (not counts or self.throttle.is_exempt(context)):
            return await call(self.world.network, peer, request, deadline)
        from minikafka.broker.envelopes import send_on  # noqa: PLC0415 - brokers without security do without

        return await send_on(self.world.network, peer, request, deadline, context=context, broker_id=self.node_id)

    async def ask_controller(self, request: object, context: RequestContext = INTERNAL) -> object | None:
        """One call to the active controller; None when none is known or it does not answer.

        ``context``: the client that needs it; INTERNAL: this broker itself does.
        """
        address = self.parts.controller_address()
        if address is None:
            return None
        deadline = self.world.clock.now() + self.config.controller_quorum_request_timeout_ms / 1000
        try:
            response: object = await self.forward(address, request, context, deadline)
        except (kafka.WorldError, kafka.ProtocolError) as error:
            self.world.events("controller_silent", node=self.node_id, why=f"{type(error).__name__}: {error}")
            return None
        return response

    # ---- news --------------------------------------------------------------------------------------------------------

    def _remember_image(self, old: MetadataImage, new: MetadataImage) -> None:
        self.history.on_image(self.world.clock.wall_ms(), old, new)

    def _remember_controller(self, controller: NodeId, _epoch: Epoch, _i_lead: bool) -> None:  # noqa: FBT001 - as all are called
        self.history.on_controller(self.world.clock.wall_ms(), controller)

    def _on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        self._take_roles()
        if not self.is_ready or not new.alive(self.node_id) or new.is_anybody_leaving() or removed_topics(old, new):
            # A heartbeat now gets this broker in or out, or reports that it is known here that a broker leaves, or that
            # a topic's name is free again.
            self.lifecycle.on_news()
        self._moved()

    def _on_leader(self, leader_id: NodeId, _epoch: Epoch, _i_lead: bool) -> None:  # noqa: FBT001 - as all are called
        if leader_id in self.voters:
            self.lifecycle.on_news()
            self.replicas.alter_partition_manager.on_new_controller()

    def _take_roles(self) -> None:
        """Bring the replicas to the present image; the first time only when it holds this incarnation's registration.

        Until then the metadata tells of former lives. A log that has seen later epochs must not take up their roles
        again: 1. broker 3 led epoch 2 and then followed epoch 4; 2. it restarts, and on its way through the metadata
        leads epoch 2 once more, which cuts epochs 3 and 4 off its log; 3. it is elected from the ISR, and what epoch 4
        had committed is gone.
        """
        if not self.is_open:
            return  # What a stop has given up stays so, though the quorum goes on for a moment.
        image = self.image
        if not self._has_caught_up:
            if not 0 <= self.lifecycle.broker_epoch < image.offset:
                return
            self._has_caught_up = True
        old, self._image_of_roles = self._image_of_roles, image
        try:
            self.replicas.apply(old, image)
        except (kafka.DiskFailed, kafka.DiskFull, kafka.KafkaStorageError) as error:
            self._fail_in_order(str(error))
        self._coordinate(old, image)
        if self.replicas.has_more_to_take_up and not self._is_taking_up:
            self._is_taking_up = True
            self._tasks.spawn(self._take_up_rest(), "take-up")

    def _coordinate(self, old: MetadataImage, new: MetadataImage) -> None:
        """After the replicas took their roles."""
        self.groups.on_image(old, new)
        self.transactions.on_image(new)

    async def _take_up_rest(self) -> None:
        """New replicas for which the turn of their image had no room."""
        while self.replicas.has_more_to_take_up:
            await asyncio.sleep(BETWEEN_TURNS_S)
            if not self.is_open:
                return
            image = self._image_of_roles
            self.replicas.take_up_some(image)
            self._coordinate(image, image)
        self._is_taking_up = False
        self._state_moved.set()

    def _moved(self) -> None:
        """Something changed that people may wait for."""
        if not self._has_caught_up:
            self._take_roles()
        if self._has_caught_up and not self.lifecycle.is_fenced and not self._strays_seen:
            self._strays_seen = True
            self.replicas.set_strays_aside()
        self._state_moved.set()

    def _on_storage_failure(self, partition: TopicPartition, why: str) -> None:
        self._fail_in_order(f"{partition}: {why}")

    def _fail_in_order(self, why: str) -> None:
        """The disk failed: hand over what this broker leads, then stop without the clean-shutdown marker."""
        if self.failure is None:
            self.failure = f"the disk failed: {why}"
            self.world.events("broker_failed", node=self.node_id, why=self.failure)
            self._state_moved.set()
            self._ending = asyncio.get_running_loop().create_task(self.stop(), name="stop-after-failure")

    def _on_task_failure(self, name: str, error: BaseException) -> None:
        """A bug, or the disk under the quorum's log, without which nothing can be said: stop at once, tell all."""
        is_disk = isinstance(error, (kafka.DiskFailed, kafka.DiskFull, kafka.KafkaStorageError))
        why = f"the disk failed: {name}: {error}" if is_disk else f"{name} failed: {type(error).__name__}: {error}"
        text = "" if is_disk else "".join(traceback.format_exception(error))
        self.world.events("broker_failed", node=self.node_id, why=why, traceback=text)
        is_leaving = self._stopping or self.failure is not None
        self.failure = self.failure or why
        self._state_moved.set()
        if is_leaving:
            # In good order: it waits for a controller, which this very broker may have been.
            self.hurry()
        else:
            self._ending = asyncio.get_running_loop().create_task(self._halt(), name="halt")

    # ---- stop --------------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Leave in good order; see the head of this file. A second call waits for the first."""
        if self._stopping:
            await self._stopped.wait()
            return
        self._stopping = True
        if self.is_open and self.config.controlled_shutdown_enable and self.lifecycle.broker_epoch >= 0:
            self.lifecycle.leave()
            patience_s = self.config.controlled_shutdown_max_wait_ms / 1000
            if not await self.lifecycle.may_leave.wait(self.world.clock.now() + patience_s):
                self.world.events("controlled_shutdown_gave_up", node=self.node_id)
        await self._end(clean=self.failure is None)

    def hurry(self) -> None:
        """Do not wait for leaders to move: the cluster goes down as a whole, no controller will answer."""
        if self.is_open:
            self.lifecycle.may_leave.set()

    async def abandon(self) -> None:
        """End every task and do nothing else, as kill -9 would: for clusters that live in the caller's process."""
        self._stopping = True
        self.dispatcher.is_open = False
        await self._tasks.end()
        if self._ending is not None:
            # The fence around its disk looked like a failing one.
            self._ending.cancel()
            await asyncio.wait([self._ending])
        self._stopped.set()

    async def _halt(self) -> None:
        """Stop without asking anybody."""
        if not self._stopping:
            self._stopping = True
            await self._end(clean=False)

    async def _end(self, *, clean: bool) -> None:
        """Whatever goes wrong, it ends: who waits for that would keep the port and the data directory for ever."""
        try:
            await self._end_in_order(clean=clean)
        except Exception as error:
            self.failure = self.failure or f"stopping failed: {type(error).__name__}: {error}"
            self.world.events("broker_stopped", node=self.node_id, clean=False, why=self.failure)
            await self._tasks.end()
            raise
        finally:
            self._stopped.set()
            self._state_moved.set()

    async def _end_in_order(self, *, clean: bool) -> None:
        opened, self.dispatcher.is_open = self.is_open, False
        if opened:
            self.groups.shards.close()
            self.transactions.shards.close()
            self.replicas.close()
            self.stopping_api.close()
            # Before the server: parked fetches of the metadata, and who waits for the controller, would hold it open.
            await self.quorum.stop()
        await self._listeners.close()
        if opened and clean:
            # A sync that is cancelled goes on in its thread. Nobody would hear that it failed, and the next one of the
            # same file may succeed without what was lost.
            while syncs := [sync for each in self.replicas.flushers.values() if (sync := each.under_way) is not None]:
                await until_ended(syncs)
            clean = self.failure is None
        await self._tasks.end()
        if opened and clean:
            try:
                watermarks = {name: each.high_watermark for name, each in self.replicas.partitions.items()}
                clean = await self.logs.close(
                    broker_epoch=self.broker_epoch, high_watermarks=watermarks, together=asyncio.gather
                )
            except (kafka.DiskFailed, kafka.DiskFull) as error:
                self.failure = f"the disk failed while stopping: {error}"
        elif opened:
            for log in self.logs.logs.values():
                log.close()
        self.world.events(
            "broker_stopped", node=self.node_id, clean=clean and self.failure is None, why=self.failure or ""
        )
