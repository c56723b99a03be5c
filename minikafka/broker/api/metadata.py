"""Metadata and DescribeTopicPartitions: what the cluster looks like from this broker's image.

A topic that is asked for by name, does not exist and may be created (``auto.create.topics.enable`` and the request
allows it) is created by the controller first; the answer waits, briefly, until this broker knows of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from minikafka.broker.live_settings import LiveSettings
from minikafka.broker.metadata import describe_topics, metadata_of
from minikafka.ports import RequestContext, World
from minikafka.types import METADATA_TOPIC
from minikafka.wire.messages import (
    CreateTopicsRequest,
    CreateTopicsResponse,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    MetadataRequest,
    MetadataResponse,
    NewTopic,
)

if TYPE_CHECKING:
    from minikafka.broker.metadata import MetadataCache
    from minikafka.broker.quorum_driver import QuorumDriver

# How long an answer waits for a topic that it has just had created; after that the client asks again.
CREATION_WAIT_S = 2.0


class MetadataApi:
    """Handlers that read the image."""

    def __init__(
        self,
        live: LiveSettings,
        world: World,
        metadata: MetadataCache,
        quorum: QuorumDriver,
        ask_controller: Callable[[object, RequestContext], Awaitable[object | None]],
    ) -> None:
        self._live = live
        self.world = world
        self.metadata = metadata
        self.quorum = quorum
        self._ask_controller = ask_controller

    def handle_metadata(
        self, request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse | Awaitable[MetadataResponse]:
        """Brokers, topics, partitions, leaders; errors per topic and partition."""
        if request.allow_auto_topic_creation and self._live.now.auto_create_topics_enable:
            missing = self._missing(request)
            if missing:
                return self._create_and_answer(missing, request, context)
        return self._metadata(request, context)

    def _metadata(self, request: MetadataRequest, context: RequestContext) -> MetadataResponse:
        return metadata_of(self.metadata.image, request, controller_id=self.quorum.leader_id, listener=context.listener)

    def handle_describe_topics(self, request: DescribeTopicsRequest) -> DescribeTopicsResponse:
        """Partition state as the controller has recorded it (S15)."""
        return describe_topics(self.metadata.image, request)

    def _missing(self, request: MetadataRequest) -> list[str]:
        known = self.metadata.image.topics
        return [name for name in dict.fromkeys(request.topics or ()) if name not in known and name != METADATA_TOPIC]

    async def _create_and_answer(
        self, missing: list[str], request: MetadataRequest, context: RequestContext
    ) -> MetadataResponse:
        config = self._live.now
        creation = CreateTopicsRequest(
            topics=tuple(
                NewTopic(
                    name=name,
                    num_partitions=config.num_partitions,
                    replication_factor=config.default_replication_factor,
                )
                for name in missing
            )
        )
        answer = await self._ask_controller(creation, context)
        if isinstance(answer, CreateTopicsResponse):
            # What the controller refuses (a bad name, too few brokers) stays unknown, and is answered so.
            names = [each.name for each in answer.topics if each.error_code == 0]
            cache = self.metadata
            if not await cache.until(lambda: all(name in cache.image.topics for name in names), CREATION_WAIT_S):
                self.world.events("topic_creation_unseen", topics=names)
        return self._metadata(request, context)
