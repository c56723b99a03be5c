"""Consumer groups on this broker: their coordinators and their APIs (S29 to S34)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from minikafka import errors as kafka
from minikafka.broker.coordinator_shard import CoordinatorShard
from minikafka.broker.coordinator_shards import CoordinatorShards, internal_topic
from minikafka.broker.group_history import GroupHistory
from minikafka.broker.regex_turns import RegexTurns
from minikafka.config import BrokerConfig
from minikafka.coordination.rule import Step, Ticket, as_coordinator
from minikafka.groups.consumer.group import JOIN
from minikafka.groups.coordinator import GroupCoordinator, Standing
from minikafka.groups.limits import GroupSettings, check_group_id
from minikafka.groups.protocol import Subscription
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.log.verification import OPEN_TRANSACTION, VerificationGuard
from minikafka.ports import RequestContext, World
from minikafka.quorum.image import MetadataImage
from minikafka.transactions.records import check_producer, check_transactional_id
from minikafka.types import Offset, TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire.markers import EndTransaction
from minikafka.wire.messages import PartitionName
from minikafka.wire.response_room import described, size_of_consumer_group, size_of_group
from minikafka.wire.transaction_messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

if TYPE_CHECKING:
    from minikafka.broker.dispatch import ApiHandler
    from minikafka.broker.flusher import Spawn
    from minikafka.broker.replica_manager import ReplicaManager
    from minikafka.broker.verification import Verifier

HISTORY_SHARE = 8
"""The part of ``mk.history.bytes`` that the history of groups has: one in so many."""

DELETED_PER_TURN = 500
"""Groups that one request deletes before the loop serves others."""


class GroupManager:
    """The groups of one incarnation of a broker."""

    def __init__(
        self,
        config: BrokerConfig,
        world: World,
        replicas: ReplicaManager,
        *,
        image: Callable[[], MetadataImage],
        session_alive: Callable[[], bool],
        ask_controller: Callable[[object], Awaitable[object | None]],
        verifier: Callable[[], Verifier],
        spawn: Spawn,
        may_describe: Callable[[RequestContext], Callable[[str], bool] | None],
    ) -> None:
        """``may_describe`` gives what says of a topic's name if the sender of a request may describe it; None: all."""
        self._world = world
        self._may_describe = may_describe
        self.history = GroupHistory(
            keep_ms=config.history_minutes * 60_000, bytes_max=config.history_bytes // HISTORY_SHARE
        )
        self._regex_turns = RegexTurns()
        self._verifier = verifier
        self._image = image
        self._session_alive = session_alive
        self.shards = CoordinatorShards(
            world,
            replicas,
            OFFSETS_TOPIC,
            new_topic=lambda: internal_topic(
                config,
                image(),
                OFFSETS_TOPIC,
                partitions=config.offsets_topic_num_partitions,
                replication_factor=config.offsets_topic_replication_factor,
                segment_bytes=config.offsets_topic_segment_bytes,
            ),
            new_coordinator=self._new_coordinator,
            commit_timeout_s=config.offsets_commit_timeout_ms / 1000,
            image=image,
            session_alive=session_alive,
            ask_controller=ask_controller,
            spawn=spawn,
        )
        self._settings = GroupSettings(
            session_timeout_ms_min=config.group_min_session_timeout_ms,
            session_timeout_ms_max=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            group_size_max=config.group_max_size,
            offset_metadata_size_max=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            expiry_interval_ms=config.offsets_retention_check_interval_ms,
            consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
            consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            consumer_heartbeats_per_second=config.group_consumer_heartbeats_per_second,
            consumer_group_size_max=config.group_consumer_max_size,
            migration_policy=config.group_consumer_migration_policy,
        )

    def handlers(self) -> dict[str, ApiHandler]:
        """By API."""
        return {
            "JoinGroup": self._join,
            "SyncGroup": self._waiting_for(GroupCoordinator.sync),
            "Heartbeat": self._heartbeat,
            "LeaveGroup": self._leave,
            "ConsumerGroupHeartbeat": self._consumer_heartbeat,
            "ConsumerGroupDescribe": self._describe_consumer_groups,
            "OffsetCommit": self._commit,
            "TxnOffsetCommit": self._commit_in_transaction,
            "OffsetFetch": lambda request, _: self._shard(request.group_id).coordinator.fetch_offsets(request),
            "OffsetDelete": self._delete_offsets,
            "ListGroups": self._list_groups,
            "DescribeGroups": self._describe_groups,
            "DeleteGroups": self._delete_groups,
            "ReadGroupHistory": lambda request, _: self.read_history(request),
        }

    # ---- roles ----

    def on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """After the replicas took their roles: begin what this broker leads now, end what it leads no longer."""
        self.shards.end_lost()
        if old.topics is not new.topics:
            # Before shards begin: the leader before them has heard of these deletions, and what it let be committed
            # since is of the topics that have the names now.
            gone = [each.name for each in old.topics.values() if not _is_there(new, each.name, each.topic_id)]
            self._forget_topics(gone)
        self.shards.begin_new(new)

    def _new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            self._settings,
            new_member_id=lambda name: f"{name}-{self._world.random.randbytes(16).hex()}",
            events=self._world.events,
            topic_exists=lambda topic: topic in self._image().topics,
            topics=lambda: self._image().topics,
        )

    def _forget_topics(self, topics: list[str]) -> None:
        if not topics:
            return
        for shard in self.shards:
            if not shard.is_loaded:
                shard.coordinator.topics_deleted_unloaded(topics)
                continue
            with shard.step() as step:
                shard.coordinator.topics_deleted(topics, step)

    def standings(self) -> list[Standing]:
        """The groups that this broker coordinates, by name; none while another may coordinate them."""
        if not self._session_alive():
            return []
        shards = [each for each in self.shards if each.is_answering]
        return sorted(
            (each for shard in shards for each in shard.coordinator.standings()), key=lambda one: one.group_id
        )

    def coordinators(self) -> list[tuple[TopicPartition, GroupCoordinator]]:
        """Those that answer, by partition of the offsets topic; none while another broker may coordinate."""
        if not self._session_alive():
            return []
        return [(each.partition.partition, each.coordinator) for each in self.shards if each.is_answering]

    def read_history(self, request: g.ReadGroupHistoryRequest) -> g.ReadGroupHistoryResponse:
        """The groups at an earlier time, as this broker recorded them."""
        groups = self.history.at(request.at_ms, request.group_id)
        return g.ReadGroupHistoryResponse(start_ms=self.history.start_ms, groups=tuple(groups))

    def _shard(self, group: str) -> CoordinatorShard[GroupCoordinator]:
        """The shard of a group that this broker coordinates. Raises what keeps it from answering."""
        check_group_id(group)
        return self.shards.of(group)

    def _waiting_for(self, begin: Callable[[GroupCoordinator, Ticket, Any, Step], None]) -> ApiHandler:
        """The handler of a request that a group's coordinator answers later."""

        def handle(request: Any, _: RequestContext) -> Awaitable[Any]:
            return self._asked(request, begin)

        return handle

    async def _asked(self, request: Any, begin: Callable[[GroupCoordinator, Ticket, Any, Step], None]) -> Any:
        shard = self._shard(request.group_id)
        return await shard.ask(lambda ticket, step: begin(shard.coordinator, ticket, request, step))

    # ---- members ----

    async def _join(self, request: g.JoinGroupRequest, context: RequestContext) -> g.JoinGroupResponse:
        if not request.client_host:
            # Who forwards for a person says where that person is.
            request = replace(request, client_host=context.client_host, software=context.software)
        may_describe = self._may_describe(context)
        if may_describe is not None and self._shard(request.group_id).coordinator.assigns(request.group_id):
            hidden = tuple(name for name in _subscribed(request) if not may_describe(name))
            request = replace(request, hidden_topics=hidden)
        response: g.JoinGroupResponse = await self._asked(request, GroupCoordinator.join)
        return response

    def _heartbeat(self, request: g.HeartbeatRequest, context: RequestContext) -> g.HeartbeatResponse:
        shard = self._shard(request.group_id)
        # Heartbeats of an HTTP member arrive over a connection of the broker that forwards them.
        software = context.software if context.protocol == "kafka" else ""
        with shard.step() as step:
            return shard.coordinator.heartbeat(request, step, software)

    def _leave(self, request: g.LeaveGroupRequest, _: RequestContext) -> g.LeaveGroupResponse:
        shard = self._shard(request.group_id)
        with shard.step() as step:
            return shard.coordinator.leave(request, step)

    async def _consumer_heartbeat(
        self, request: g.ConsumerGroupHeartbeatRequest, context: RequestContext
    ) -> g.ConsumerGroupHeartbeatResponse:
        if not request.group_id:
            # As in Kafka; INVALID_GROUP_ID is for the classic protocol.
            raise kafka.InvalidRequest("group_id is empty; send the group's name")
        shard = self._shard(request.group_id)
        if not request.client_host:
            request = replace(request, client_host=context.client_host)
        if request.makes_member_id and not request.member_id and request.member_epoch == JOIN:
            request = replace(request, member_id=self._world.random.randbytes(16).hex())
        # An expression that RE2 does not accept is refused in its turn, after what else is wrong.
        with contextlib.suppress(kafka.InvalidRegularExpression):
            await self._regex_turns.run(shard.coordinator.match(request))
            shard = self._shard(request.group_id)
        response: g.ConsumerGroupHeartbeatResponse = await shard.ask(
            lambda ticket, step: shard.coordinator.consumer_heartbeat(ticket, request, step)
        )
        return response

    # ---- offsets ----

    async def _commit(self, request: g.OffsetCommitRequest, _: RequestContext) -> g.OffsetCommitResponse:
        shard = self._shard(request.group_id)
        unknown = self._unknown(request.partitions)
        response: g.OffsetCommitResponse = await shard.ask(
            lambda ticket, step: shard.coordinator.commit(ticket, _without(request, unknown), step)
        )
        return g.OffsetCommitResponse(partitions=_joined(request.partitions, unknown, response.partitions))

    async def _commit_in_transaction(
        self, request: TxnOffsetCommitRequest, _: RequestContext
    ) -> TxnOffsetCommitResponse:
        shard = self._shard(request.group_id)
        check_transactional_id(request.transactional_id)
        check_producer(request.producer_id, request.producer_epoch)
        # A topic may be deleted, and created again, while the transaction's coordinator is asked.
        request = replace(request, partitions=tuple(map(self._of_present_topic, request.partitions)))
        unknown = self._unknown(request.partitions)
        if len(unknown) == len(request.partitions):
            # The transaction gets nothing to end here: at its coordinator it may not have begun.
            return TxnOffsetCommitResponse(partitions=_joined(request.partitions, unknown, ()))
        guard = await self._verified(shard, request)
        shard.check()
        unknown = self._unknown(request.partitions)
        response: TxnOffsetCommitResponse = await shard.ask(
            lambda ticket, step: shard.coordinator.commit_in_transaction(
                ticket, _without(request, unknown), step, guard
            )
        )
        return TxnOffsetCommitResponse(partitions=_joined(request.partitions, unknown, response.partitions))

    async def _verified(
        self, shard: CoordinatorShard[GroupCoordinator], request: TxnOffsetCommitRequest
    ) -> VerificationGuard | None:
        """Have the transaction's coordinator confirm the partition of ``shard``. Raises what it reports."""
        verifier = self._verifier()
        if not verifier.must_ask(request.transaction_version):
            return None
        try:
            guard = shard.leader.log.producers.guard_of(request.producer_id, request.producer_epoch)
        except kafka.ProtocolError as error:
            raise as_coordinator(error) from error
        if guard is OPEN_TRANSACTION:
            return guard
        name = shard.partition.partition
        refused = await verifier.verify(
            request.transactional_id,
            (request.producer_id, request.producer_epoch),
            (name,),
            transaction_version=request.transaction_version,
        )
        if name in refused:
            raise as_coordinator(refused[name])
        return guard

    def marker_appended(
        self, name: TopicPartition, marker: EndTransaction, end_offset: Offset
    ) -> Awaitable[bool] | None:
        """A marker was appended to a partition that this broker leads; see ``broker/api/markers.py``."""
        shard = self.shards.at(name)
        return None if shard is None else shard.marker_appended(marker, end_offset)

    def _unknown(self, partitions: Sequence[g.CommitPartition]) -> dict[tuple[str, int], g.PartitionOutcome]:
        """The partitions that do not exist, or whose topic is another one than the request means.

        Raises InvalidRequest for one that comes twice.
        """
        if len({(each.topic, each.partition) for each in partitions}) < len(partitions):
            raise kafka.InvalidRequest("a partition stands twice in one request", member="partitions")
        unknown: dict[tuple[str, int], g.PartitionOutcome] = {}
        for each in partitions:
            error = self._refusal(each)
            if error is not None:
                unknown[each.topic, each.partition] = g.PartitionOutcome.failed(
                    error, topic=each.topic, partition=each.partition
                )
        return unknown

    async def _delete_offsets(self, request: g.OffsetDeleteRequest, _: RequestContext) -> g.OffsetDeleteResponse:
        unknown = {
            (each.topic, each.partition): g.PartitionOutcome.failed(
                _no_partition(each), topic=each.topic, partition=each.partition
            )
            for each in request.partitions
            if self._image().partition(TopicPartition(each.topic, each.partition)) is None
        }
        response: g.OffsetDeleteResponse = await self._asked(
            _without(request, unknown), GroupCoordinator.delete_offsets
        )
        return g.OffsetDeleteResponse(partitions=_joined(request.partitions, unknown, response.partitions))

    def _refusal(self, asked: g.CommitPartition) -> kafka.ProtocolError | None:
        image = self._image()
        if image.partition(TopicPartition(asked.topic, asked.partition)) is None:
            return _no_partition(asked)
        topic_id = image.topics[asked.topic].topic_id
        if asked.topic_id in (None, topic_id):
            return None
        return kafka.UnknownTopicId(f"{asked.topic} has the topic id {topic_id} now, not {asked.topic_id}")

    def _of_present_topic(self, asked: g.CommitPartition) -> g.CommitPartition:
        """The same with the id of the topic that has the name now, unless the request names one."""
        topic = self._image().topics.get(asked.topic)
        return asked if topic is None or asked.topic_id is not None else replace(asked, topic_id=topic.topic_id)

    # ---- groups ----

    def _list_groups(self, request: g.ListGroupsRequest, _: RequestContext) -> g.ListGroupsResponse:
        if not self._session_alive():
            raise kafka.CoordinatorNotAvailable("this broker has no session with the controller: ask again")
        found: list[g.ListedGroup] = []
        for shard in self.shards.all_answering():
            found += shard.coordinator.list_groups(request)
        return g.ListGroupsResponse(groups=tuple(sorted(found, key=lambda group: group.group_id)))

    def _describe_groups(self, request: g.DescribeGroupsRequest, context: RequestContext) -> g.DescribeGroupsResponse:
        # Kafka's clients take the error as a hint to ask with ConsumerGroupDescribe.
        of_any_protocol = context.protocol != "kafka"
        return g.DescribeGroupsResponse(
            groups=described(
                request.groups,
                lambda name: self._shard(name).coordinator.describe(name, of_any_protocol=of_any_protocol),
                size_of_group,
                lambda error, name: g.DescribedGroup.with_error(error, group_id=name),
            )
        )

    def _describe_consumer_groups(
        self, request: g.ConsumerGroupDescribeRequest, _: RequestContext
    ) -> g.ConsumerGroupDescribeResponse:
        return g.ConsumerGroupDescribeResponse(
            groups=described(
                request.groups,
                lambda name: self._shard(name).coordinator.describe_consumer(name),
                size_of_consumer_group,
                lambda error, name: g.DescribedConsumerGroup.with_error(error, group_id=name),
            )
        )

    async def _delete_groups(self, request: g.DeleteGroupsRequest, _: RequestContext) -> g.DeleteGroupsResponse:
        deleted = []
        for number, name in enumerate(request.groups, 1):
            deleted.append(await self._delete_group(name))
            if number % DELETED_PER_TURN == 0:
                await asyncio.sleep(0)
        return g.DeleteGroupsResponse(groups=tuple(deleted))

    async def _delete_group(self, name: str) -> g.DeletedGroup:
        try:
            shard = self._shard(name)
            answer: g.DeletedGroup = await shard.ask(
                lambda ticket, step: shard.coordinator.delete_group(ticket, name, step)
            )
        except kafka.ProtocolError as error:
            return g.DeletedGroup.failed(error, group_id=name)
        return answer


R = TypeVar("R", g.OffsetCommitRequest, g.OffsetDeleteRequest, TxnOffsetCommitRequest)


def _no_partition(asked: g.CommitPartition | PartitionName) -> kafka.UnknownTopicOrPartition:
    return kafka.UnknownTopicOrPartition(f"there is no partition {asked.topic}-{asked.partition}")


def _without(request: R, unknown: Mapping[tuple[str, int], g.PartitionOutcome]) -> R:
    """The request for the partitions that exist."""
    if not unknown:
        return request
    known = tuple(each for each in request.partitions if (each.topic, each.partition) not in unknown)
    return replace(request, partitions=known)


def _joined(
    partitions: Sequence[g.CommitPartition | PartitionName],
    unknown: Mapping[tuple[str, int], g.PartitionOutcome],
    outcomes: tuple[g.PartitionOutcome, ...],
) -> tuple[g.PartitionOutcome, ...]:
    """The outcomes in the order of the request."""
    if not unknown:
        return outcomes
    found = {(each.topic, each.partition): each for each in outcomes} | dict(unknown)
    return tuple(found[each.topic, each.partition] for each in partitions)


def _is_there(image: MetadataImage, name: str, topic_id: str) -> bool:
    topic = image.topics.get(name)
    return topic is not None and topic.topic_id == topic_id


def _subscribed(request: g.JoinGroupRequest) -> tuple[str, ...]:
    """The topics of a subscription; none if it cannot be read, which the coordinator refuses."""
    try:
        return Subscription.topics_in(bytes(request.protocols[0].metadata)) if request.protocols else ()
    except ValueError:
        return ()
