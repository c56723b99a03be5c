"""Consumer groups on this broker: their coordinators and their APIs (S29 to S34)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from minikafka.broker.coordinator_shard import CoordinatorShard
from minikafka.broker.coordinator_shards import CoordinatorShards, internal_topic
from minikafka.config import BrokerConfig
from minikafka.errors import (
    CoordinatorNotAvailable,
    InvalidRequest,
    ProtocolError,
    UnknownTopicOrPartition,
)
from minikafka.groups.coordinator import GroupCoordinator, Standing
from minikafka.groups.limits import check_group_id
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.groups.settings import GroupSettings
from minikafka.ports import RequestContext, World
from minikafka.quorum.image import MetadataImage
from minikafka.types import TopicPartition
from minikafka.wire.group_messages import (
    Coordinator,
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionOutcome,
    SyncGroupRequest,
    SyncGroupResponse,
)

if TYPE_CHECKING:
    from minikafka.broker.dispatch import ApiHandler
    from minikafka.broker.flusher import Spawn
    from minikafka.broker.replica_manager import ReplicaManager

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
        spawn: Spawn,
    ) -> None:
        self._world = world
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
        )

    def handlers(self) -> dict[str, ApiHandler]:
        """By API."""
        return {
            "FindCoordinator": self._find_coordinator,
            "JoinGroup": self._join,
            "SyncGroup": self._sync,
            "Heartbeat": self._heartbeat,
            "LeaveGroup": self._leave,
            "OffsetCommit": self._commit,
            "OffsetFetch": self._fetch_offsets,
            "OffsetDelete": self._delete_offsets,
            "ListGroups": self._list_groups,
            "DescribeGroups": self._describe_groups,
            "DeleteGroups": self._delete_groups,
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

    # ---- finding ----

    def _find_coordinator(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
        if not self.shards.topic_exists:
            return self._create_and_find(request, context)
        return self._coordinators(request, context)

    async def _create_and_find(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        await self.shards.create_topic()
        return self._coordinators(request, context)

    def _coordinators(self, request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(
            coordinators=tuple(self._coordinator(key, context.listener) for key in request.keys)
        )

    def _coordinator(self, group: str, listener: str) -> Coordinator:
        try:
            check_group_id(group)
            leader = self.shards.leader_of(group)
        except ProtocolError as error:
            return Coordinator(key=group, error_code=error.code, error_message=error.message)
        address = self._image().brokers[leader].address_at(listener)
        return Coordinator(key=group, node_id=leader, host=address.host, port=address.port)

    def _shard(self, group: str) -> CoordinatorShard[GroupCoordinator]:
        """The shard of a group that this broker coordinates. Raises what keeps it from answering."""
        check_group_id(group)
        return self.shards.of(group)

    # ---- members ----

    async def _join(self, request: JoinGroupRequest, context: RequestContext) -> JoinGroupResponse:
        shard = self._shard(request.group_id)
        if not request.client_host:
            # Who forwards for a person says where that person is.
            request = replace(request, client_host=context.client_host)
        response: JoinGroupResponse = await shard.ask(
            lambda ticket, step: shard.coordinator.join(ticket, request, step)
        )
        return response

    async def _sync(self, request: SyncGroupRequest, _: RequestContext) -> SyncGroupResponse:
        shard = self._shard(request.group_id)
        response: SyncGroupResponse = await shard.ask(
            lambda ticket, step: shard.coordinator.sync(ticket, request, step)
        )
        return response

    def _heartbeat(self, request: HeartbeatRequest, _: RequestContext) -> HeartbeatResponse:
        shard = self._shard(request.group_id)
        with shard.step() as step:
            return shard.coordinator.heartbeat(request, step)

    def _leave(self, request: LeaveGroupRequest, _: RequestContext) -> LeaveGroupResponse:
        shard = self._shard(request.group_id)
        with shard.step() as step:
            return shard.coordinator.leave(request, step)

    # ---- offsets ----

    async def _commit(self, request: OffsetCommitRequest, _: RequestContext) -> OffsetCommitResponse:
        shard = self._shard(request.group_id)
        if len({(each.topic, each.partition) for each in request.partitions}) < len(request.partitions):
            raise InvalidRequest("a partition stands twice in one request", member="partitions")
        unknown: dict[tuple[str, int], PartitionOutcome] = {}
        for each in request.partitions:
            if self._image().partition(TopicPartition(each.topic, each.partition)) is None:
                error = UnknownTopicOrPartition(f"there is no partition {each.topic}-{each.partition}")
                unknown[each.topic, each.partition] = PartitionOutcome(
                    topic=each.topic,
                    partition=each.partition,
                    error_code=error.code,
                    error_message=error.message,
                    outcome=error.outcome,
                )
        known = tuple(each for each in request.partitions if (each.topic, each.partition) not in unknown)
        rest = OffsetCommitRequest(
            group_id=request.group_id,
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            partitions=known,
        )
        response: OffsetCommitResponse = await shard.ask(
            lambda ticket, step: shard.coordinator.commit(ticket, rest, step)
        )
        if not unknown:
            return response
        found = {(each.topic, each.partition): each for each in response.partitions}
        return OffsetCommitResponse(
            partitions=tuple(
                unknown.get((each.topic, each.partition)) or found[each.topic, each.partition]
                for each in request.partitions
            )
        )

    def _fetch_offsets(self, request: OffsetFetchRequest, _: RequestContext) -> OffsetFetchResponse:
        return self._shard(request.group_id).coordinator.fetch_offsets(request)

    async def _delete_offsets(self, request: OffsetDeleteRequest, _: RequestContext) -> OffsetDeleteResponse:
        shard = self._shard(request.group_id)
        response: OffsetDeleteResponse = await shard.ask(
            lambda ticket, step: shard.coordinator.delete_offsets(ticket, request, step)
        )
        return response

    # ---- groups ----

    def _list_groups(self, request: ListGroupsRequest, _: RequestContext) -> ListGroupsResponse:
        if not self._session_alive():
            raise CoordinatorNotAvailable("this broker has no session with the controller: ask again")
        found: list[ListedGroup] = []
        for shard in self.shards:
            shard.check()
            found += shard.coordinator.list_groups(request)
        return ListGroupsResponse(groups=tuple(sorted(found, key=lambda group: group.group_id)))

    def _describe_groups(self, request: DescribeGroupsRequest, _: RequestContext) -> DescribeGroupsResponse:
        return DescribeGroupsResponse(groups=tuple(self._described(name) for name in request.groups))

    def _described(self, name: str) -> DescribedGroup:
        try:
            return self._shard(name).coordinator.describe(name)
        except ProtocolError as error:
            return DescribedGroup(group_id=name, error_code=error.code, error_message=error.message)

    async def _delete_groups(self, request: DeleteGroupsRequest, _: RequestContext) -> DeleteGroupsResponse:
        deleted = []
        for number, name in enumerate(request.groups, 1):
            deleted.append(await self._delete_group(name))
            if number % DELETED_PER_TURN == 0:
                await asyncio.sleep(0)
        return DeleteGroupsResponse(groups=tuple(deleted))

    async def _delete_group(self, name: str) -> DeletedGroup:
        try:
            shard = self._shard(name)
            answer: DeletedGroup = await shard.ask(
                lambda ticket, step: shard.coordinator.delete_group(ticket, name, step)
            )
        except ProtocolError as error:
            return DeletedGroup(
                group_id=name, error_code=error.code, error_message=error.message, outcome=error.outcome
            )
        return answer


def _is_there(image: MetadataImage, name: str, topic_id: str) -> bool:
    topic = image.topics.get(name)
    return topic is not None and topic.topic_id == topic_id
