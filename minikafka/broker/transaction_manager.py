"""Transactions on this broker: their coordinators and their APIs (KIP-98, KIP-664, KIP-890)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from minikafka import errors as kafka
from minikafka.broker.api.producer_ids import ProducerIds
from minikafka.broker.coordinator_shards import CoordinatorShards, internal_topic
from minikafka.broker.marker_sender import MarkerSender
from minikafka.broker.regex_turns import RegexTurns
from minikafka.broker.verification import AskBroker, Verifier
from minikafka.config import BrokerConfig
from minikafka.coordination.regexes import parts
from minikafka.coordination.rule import partition_of
from minikafka.groups.limits import check_group_id
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.ports import RequestContext, World
from minikafka.quorum.image import MetadataImage
from minikafka.transactions.coordinator import TransactionCoordinator, id_pattern_of
from minikafka.transactions.records import TRANSACTIONS_TOPIC, State, check_transactional_id, check_version
from minikafka.transactions.settings import TransactionSettings
from minikafka.types import NO_PRODUCER, TopicPartition
from minikafka.wire import transaction_messages as t
from minikafka.wire.messages import InitProducerIdRequest, InitProducerIdResponse
from minikafka.wire.response_room import described, size_of_transaction

if TYPE_CHECKING:
    from minikafka.broker.dispatch import ApiHandler
    from minikafka.broker.flusher import Spawn
    from minikafka.broker.replica_manager import ReplicaManager

_STATE_NAMES = frozenset(each.value for each in State)


class TransactionManager:
    """The transactional ids of one incarnation of a broker."""

    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        replicas: ReplicaManager,
        producer_ids: ProducerIds,
        *,
        image: Callable[[], MetadataImage],
        session_alive: Callable[[], bool],
        broker_epoch: Callable[[], int],
        ask_controller: Callable[[object], Awaitable[object | None]],
        ask_broker: AskBroker,
        create_offsets_topic: Callable[[], Awaitable[None]],
        spawn: Spawn,
    ) -> None:
        self._world = world
        self._regex_turns = RegexTurns()
        self._image = image
        self._session_alive = session_alive
        self._producer_ids = producer_ids
        self._create_offsets_topic = create_offsets_topic
        self._spawn = spawn
        self._clock_runs = False
        self._settings = TransactionSettings(
            timeout_ms_max=config.transaction_max_timeout_ms,
            timeout_check_ms=config.transaction_timeout_check_interval_ms,
            id_expiration_ms=config.transactional_id_expiration_ms,
            expiration_check_ms=config.transaction_expiration_check_interval_ms,
        )
        self._sender = MarkerSender(
            config.node_id,
            world,
            shards=lambda: self.shards,
            image=image,
            session_alive=session_alive,
            broker_epoch=broker_epoch,
            ask_broker=ask_broker,
            spawn=spawn,
        )
        self.verifier = Verifier(
            world,
            shards=lambda: self.shards,
            ask_broker=ask_broker,
            is_enabled=config.transaction_partition_verification_enable,
        )
        self.shards = CoordinatorShards(
            world,
            replicas,
            TRANSACTIONS_TOPIC,
            new_topic=lambda: internal_topic(
                config,
                image(),
                TRANSACTIONS_TOPIC,
                partitions=config.transaction_state_log_num_partitions,
                replication_factor=config.transaction_state_log_replication_factor,
                segment_bytes=config.transaction_state_log_segment_bytes,
                min_insync_replicas=config.transaction_state_log_min_isr,
            ),
            new_coordinator=lambda: TransactionCoordinator(self._settings, events=world.events),
            commit_timeout_s=config.transaction_commit_timeout_ms / 1000,
            image=image,
            session_alive=session_alive,
            ask_controller=ask_controller,
            spawn=spawn,
            on_step=self._sender.wake,
        )

    def handlers(self) -> dict[str, ApiHandler]:
        """By API."""
        return {
            "InitProducerId": self._init_producer_id,
            "AddPartitionsToTxn": self._add_partitions,
            "AddOffsetsToTxn": self._add_offsets,
            "EndTxn": self._end,
            "DescribeTransactions": self._describe,
            "ListTransactions": self._list,
        }

    def on_image(self, new: MetadataImage) -> None:
        """After the replicas took their roles: begin what this broker leads now, end what it leads no longer."""
        self.shards.end_lost()
        self.shards.begin_new(new)
        if not self._clock_runs and any(True for _ in self.shards):
            # Clusters without transactions do without this task.
            self._clock_runs = True
            self._spawn(self.shards.run(), "transactions")

    # ---- producers ----

    async def _init_producer_id(self, request: InitProducerIdRequest, _: RequestContext) -> InitProducerIdResponse:
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            raise kafka.InvalidRequest(
                f"producer_id={request.producer_id} with producer_epoch={request.producer_epoch}: give both, or -1 for "
                "both",
                member="producer_epoch",
            )
        if request.transactional_id is None:
            return await self._producer_ids.handle_init_producer_id(request)
        check_transactional_id(request.transactional_id)
        fresh = await self._producer_id_for(request.transactional_id)
        shard = self.shards.of(request.transactional_id)
        response: InitProducerIdResponse = await shard.ask(
            lambda ticket, step: shard.coordinator.initialize(ticket, request, step, new_producer_id=fresh)
        )
        return response

    async def _producer_id_for(self, transactional_id: str) -> int:
        """A fresh producer id if the next request of this transactional id takes one."""
        if not self.shards.of(transactional_id).coordinator.needs_producer_id(transactional_id):
            return NO_PRODUCER
        try:
            return await self._producer_ids.allocate()
        except kafka.LeaderNotAvailable as error:
            # Kafka's code: clients retry it with the same coordinator.
            raise kafka.CoordinatorLoadInProgress(f"no producer id at present: {error.message}") from error

    # ---- partitions ----

    async def _add_partitions(
        self, request: t.AddPartitionsToTxnRequest, _: RequestContext
    ) -> t.AddPartitionsToTxnResponse:
        check_version(request.transaction_version)
        return t.AddPartitionsToTxnResponse(
            transactions=tuple([await self._added(each, request.transaction_version) for each in request.transactions])
        )

    async def _added(self, asked: t.TransactionPartitions, version: int) -> t.AddedPartitions:
        try:
            return await self._add(asked, version)
        except kafka.ProtocolError as error:
            return t.AddedPartitions.failed(error, transactional_id=asked.transactional_id)

    async def _add(self, asked: t.TransactionPartitions, version: int) -> t.AddedPartitions:
        partitions = frozenset(TopicPartition(each.topic, each.partition) for each in asked.partitions)
        check_transactional_id(asked.transactional_id)
        shard = self.shards.of(asked.transactional_id)
        producer = asked.producer_id, asked.producer_epoch
        if asked.verify_only:
            return shard.coordinator.verify(asked.transactional_id, producer, partitions)
        unknown = frozenset(each for each in partitions if self._image().partition(each) is None)
        if unknown:
            return t.AddedPartitions(
                transactional_id=asked.transactional_id,
                partitions=tuple(_not_added(each, is_unknown=each in unknown) for each in sorted(partitions)),
            )
        response: t.AddedPartitions = await shard.ask(
            lambda ticket, step: shard.coordinator.add_partitions(
                ticket, asked.transactional_id, producer, partitions, step, version=version, waits=True
            )
        )
        return response

    async def _add_offsets(self, request: t.AddOffsetsToTxnRequest, _: RequestContext) -> t.AddOffsetsToTxnResponse:
        check_group_id(request.group_id)
        check_transactional_id(request.transactional_id)
        shard = self.shards.of(request.transactional_id)
        topic = self._image().topics.get(OFFSETS_TOPIC)
        if topic is None:
            await self._create_offsets_topic()
            raise kafka.CoordinatorNotAvailable(f"{OFFSETS_TOPIC} is being created: retry")
        partition = TopicPartition(OFFSETS_TOPIC, partition_of(request.group_id, len(topic.partitions)))
        added: t.AddedPartitions = await shard.ask(
            lambda ticket, step: shard.coordinator.add_partitions(
                ticket,
                request.transactional_id,
                (request.producer_id, request.producer_epoch),
                frozenset({partition}),
                step,
                waits=True,
            )
        )
        return t.AddOffsetsToTxnResponse(
            error_code=added.error_code, error_message=added.error_message, outcome=added.outcome
        )

    # ---- the end ----

    def _end(self, request: t.EndTxnRequest, _: RequestContext) -> Any:
        check_transactional_id(request.transactional_id)
        check_version(request.transaction_version)
        shard = self.shards.of(request.transactional_id)
        coordinator = shard.coordinator
        if coordinator.knows(request.transactional_id) and coordinator.needs_producer_id(request.transactional_id):
            return self._end_at_last_epoch(request)
        return shard.begin(lambda ticket, step: coordinator.end(ticket, request, step))

    async def _end_at_last_epoch(self, request: t.EndTxnRequest) -> t.EndTxnResponse:
        """The next transaction needs another producer id."""
        fresh = await self._producer_id_for(request.transactional_id)
        shard = self.shards.of(request.transactional_id)
        response: t.EndTxnResponse = await shard.ask(
            lambda ticket, step: shard.coordinator.end(ticket, request, step, new_producer_id=fresh)
        )
        return response

    # ---- showing ----

    def _describe(self, request: t.DescribeTransactionsRequest, _: RequestContext) -> t.DescribeTransactionsResponse:
        return t.DescribeTransactionsResponse(
            transactions=described(
                request.transactional_ids,
                self._described,
                size_of_transaction,
                lambda error, name: t.DescribedTransaction.with_error(error, transactional_id=name),
            )
        )

    def _described(self, name: str) -> t.DescribedTransaction:
        check_transactional_id(name)
        return self.shards.of(name).coordinator.describe(name)

    async def _list(self, request: t.ListTransactionsRequest, _: RequestContext) -> t.ListTransactionsResponse:
        if not self._session_alive():
            raise kafka.CoordinatorNotAvailable("this broker has no session with the controller: ask again")
        pattern = id_pattern_of(request)
        found: list[t.ListedTransaction] = []
        wall_ms = self._world.clock.wall_ms()
        of_any_name = replace(request, id_pattern="")
        for shard in self.shards.all_answering():
            found += shard.coordinator.list_transactions(of_any_name, wall_ms)
        if pattern is not None:
            names: set[str] = set()
            await self._regex_turns.run(_match(pattern, [each.transactional_id for each in found], names))
            found = [each for each in found if each.transactional_id in names]
        return t.ListTransactionsResponse(
            unknown_states=tuple(each for each in request.states if each not in _STATE_NAMES),
            transactions=tuple(sorted(found, key=lambda each: each.transactional_id)),
        )


def _match(pattern: Any, names: Iterable[str], matched: set[str]) -> Iterator[None]:
    """Add the names that match, in steps of bounded cost."""
    for number, part in enumerate(parts(pattern, names)):
        if number:
            yield
        matched.update(name for name in part if pattern.fullmatch(name))


def _not_added(name: TopicPartition, *, is_unknown: bool) -> t.AddedPartition:
    error: kafka.ProtocolError = (
        kafka.UnknownTopicOrPartition(f"there is no partition {name}")
        if is_unknown
        else kafka.OperationNotAttempted(f"{name} was not added: another partition of the request was refused")
    )
    return t.AddedPartition.failed(error, topic=name.topic, partition=name.partition)
