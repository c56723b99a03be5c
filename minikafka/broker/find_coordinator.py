"""FindCoordinator: the broker that coordinates a group or a transactional id (S32).

The internal topic is created when a coordinator is looked up for the first time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from minikafka.broker.coordinator_shards import CoordinatorShards
from minikafka.errors import InvalidRequest, ProtocolError
from minikafka.ports import RequestContext
from minikafka.quorum.image import MetadataImage
from minikafka.wire.group_messages import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP, TRANSACTION = 0, 1
"""Kinds of keys."""


class KeyKind(NamedTuple):
    """What one kind of keys names."""

    shards: CoordinatorShards[Any]
    check: Callable[[str], None]
    """Raises InvalidGroupId or InvalidRequest for a name that cannot be one."""


class FindCoordinatorApi:
    """Answers for every kind of coordinator."""

    def __init__(self, kinds: Mapping[int, KeyKind], image: Callable[[], MetadataImage]) -> None:
        self._kinds = kinds
        self._image = image

    def handle(
        self, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
        """One answer for each key, in the order of the request."""
        kind = self._kinds.get(request.key_type)
        if kind is None:
            raise InvalidRequest(
                f"key_type={request.key_type}: 0 (groups) and 1 (transactional ids) are served", member="key_type"
            )
        if not kind.shards.topic_exists:
            return self._create_and_find(kind, request, context)
        return self._found(kind, request, context)

    async def _create_and_find(
        self, kind: KeyKind, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        await kind.shards.create_topic()
        return self._found(kind, request, context)

    def _found(
        self, kind: KeyKind, request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(
            coordinators=tuple(self._coordinator(kind, key, context.listener) for key in request.keys)
        )

    def _coordinator(self, kind: KeyKind, key: str, listener: str) -> Coordinator:
        try:
            kind.check(key)
            leader = kind.shards.leader_of(key)
        except ProtocolError as error:
            return Coordinator.with_error(error, key=key)
        address = self._image().brokers[leader].address_at(listener)
        return Coordinator(key=key, node_id=leader, host=address.host, port=address.port)
