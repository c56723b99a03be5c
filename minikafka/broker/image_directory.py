"""What translators of Kafka's protocol need of the metadata, as a client of one listener sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from minikafka.ports import RequestContext
from minikafka.types import Address, NodeId, TopicId
from minikafka.wire.acls import OPERATIONS, ResourceType, bit_field

if TYPE_CHECKING:
    from minikafka.quorum.image import MetadataImage

Operations = Callable[[RequestContext, ResourceType, str], int]
"""(sender of a request, type and name of a resource) -> what the sender may do with it, as a bit field (KIP-430)."""


def all_operations(_context: RequestContext, resource_type: ResourceType, _name: str) -> int:
    """Without an authorizer clients may do everything that there is."""
    return bit_field(OPERATIONS[resource_type])


class ImageDirectory:
    """The metadata of one connection."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        wall_ms: Callable[[], int],
        operations: Operations,
        context: RequestContext,
    ) -> None:
        self._image = image
        self.wall_ms = wall_ms
        self._operations = operations
        self._listener = context.listener
        self.context = context
        """The client of this connection."""

    def topic_name(self, topic_id: TopicId) -> str | None:
        """Name of the topic with this id."""
        return self._image().topic_names.get(topic_id)

    def topic_id(self, name: str) -> TopicId | None:
        """Id of the topic with this name."""
        topic = self._image().topics.get(name)
        return None if topic is None else topic.topic_id

    def topics(self) -> Iterable[str]:
        """Names of all topics."""
        return self._image().topics

    def nodes(self) -> Iterable[NodeId]:
        """Ids of all brokers."""
        return self._image().brokers

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """What the client may do with a resource, as a bit field."""
        return self._operations(self.context, resource_type, name)

    def endpoint(self, node: NodeId) -> tuple[Address, str | None] | None:
        """Address at this listener, and rack, of a broker that lives."""
        image = self._image()
        if not image.alive(node):
            return None
        broker = image.brokers[node]
        return broker.address_at(self._listener), broker.rack
