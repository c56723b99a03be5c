"""Client quotas at one broker: requests are counted where they enter, and clients over a quota are throttled.

- Kafka's protocol (KIP-219): the answer leaves at once with its ``throttle_time_ms``, then the broker reads nothing
  from the connection for so long. A fetch over the quota is answered without records, and does not count.
- ``/rpc`` and ``/v1``: a request whose client is throttled waits up to HOLD_MS before it is served, and is refused with
  THROTTLING_QUOTA_EXCEEDED otherwise, with nothing done.

``controller_mutation_rate`` counts at the controller, which a request reaches with the client that has sent it
(``envelopes.py``), so it is one rate for the cluster (KIP-599). ``connection_creation_rate`` counts where connections
are accepted (``world/connections.py``).

Exempt are brokers: their APIs, their fetches, and what arrives at a listener that only they use. The members of groups
are counted by request_percentage over Kafka's protocol only, and never refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from minikafka.broker.dispatch import when_answered
from minikafka.config import BrokerConfig
from minikafka.errors import NOT_WRITTEN, ThrottlingQuotaExceeded
from minikafka.ports import INTERNAL, Clock, RequestContext
from minikafka.quorum.image import MetadataImage
from minikafka.security.quotas import FETCH, KEYS, MUTATION, PRODUCE, REQUEST, QuotaIndex, Quotas
from minikafka.wire.messages import FetchRequest

HOLD_MS = 1000
"""A request over HTTP waits at most so long for the end of its client's throttling."""

DATA_APIS: Mapping[str, tuple[str, ...]] = {
    "Produce": (PRODUCE, REQUEST),
    "Fetch": (FETCH, REQUEST),
    "ListOffsets": (REQUEST,),
    "Metadata": (REQUEST,),
    "OffsetCommit": (REQUEST,),
    "OffsetFetch": (REQUEST,),
    "CreateTopics": (REQUEST,),
    "DeleteTopics": (REQUEST,),
    "CreatePartitions": (REQUEST,),
    "DeleteRecords": (REQUEST,),
}
"""Quotas by which requests of an API are throttled at ``/rpc``; others never are."""

STRICT_SINCE: Mapping[str, int] = {"CreateTopics": 6, "DeleteTopics": 5, "CreatePartitions": 3}
"""From these versions of Kafka's on, clients know the error of a quota: what exceeds controller_mutation_rate is
refused. Older ones are served, and throttled afterwards.
"""


class Mutations:
    """What one request creates and deletes, by the quota of its client."""

    def __init__(self, throttle: Throttle, context: RequestContext, *, strict: bool) -> None:
        self._throttle = throttle
        self._context = context
        self._strict = strict
        self._until = 0.0

    def charge(self, partitions: int) -> None:
        """Count partitions. Raises ThrottlingQuotaExceeded if they are refused."""
        throttle_ms = self._throttle.mutate(self._context, partitions, strict=self._strict)
        if not throttle_ms:
            return
        self._until = max(self._until, self._throttle.now() + throttle_ms / 1000)
        if self._strict:
            raise ThrottlingQuotaExceeded(
                f"{self._context.principal} exceeds {MUTATION}; try again in {throttle_ms} ms.",
                outcome=NOT_WRITTEN,
                throttle_time_ms=throttle_ms,
            )

    @property
    def throttle_ms(self) -> int:
        """How long its client is throttled from now on."""
        return max(0, round((self._until - self._throttle.now()) * 1000))


class Throttle:
    """The quotas of one broker."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self.quotas: Quotas | None = None
        """None: the cluster has no quotas, and nothing is counted."""
        self._clock = clock
        main = config.inter_broker_listener.name
        own = {each.name for each in config.client_listeners} == {main}
        hidden = config.internal_listeners - {main}
        self._exempt = hidden if own else hidden | {""}
        """Names in contexts of the listeners that only brokers and administrators use."""
        self.throttled = dict.fromkeys(KEYS, 0)
        """Requests that exceeded a quota, by its key."""
        self.throttled_ms = dict.fromkeys(KEYS, 0)
        """Throttle times of these requests, in all."""
        self.on_index: Callable[[QuotaIndex], None] = lambda _index: None
        """Called with all quotas when they change, for those that count connections."""
        self.muted = 0
        """Connections of Kafka's protocol that are not read now."""

    def on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """Use the quotas of newer metadata. Rates stay as long as there is a quota at all."""
        if old.quota_index is new.quota_index:
            return
        self.use(new.quota_index)

    def use(self, index: QuotaIndex) -> None:
        """Use these quotas."""
        self.on_index(index)
        if not index:
            self.quotas = None
        elif self.quotas is None:
            self.quotas = Quotas(index)
        else:
            self.quotas.index = index

    def is_exempt(self, context: RequestContext) -> bool:
        """Return True if the sender is no client. A forwarded request is of a client that is not exempt there."""
        if context.forwarded_by >= 0:
            return False
        return context.protocol == INTERNAL.protocol or context.listener in self._exempt

    # ---- counting ----------------------------------------------------------------------------------------------------

    def count(self, key: str, context: RequestContext, amount: float) -> int:
        """Count what a request has used; see :meth:`Quotas.count`."""
        quotas = self.quotas
        if quotas is None:
            return 0
        throttle_ms = quotas.count(key, user_of(context), context.client_id, amount, self._clock.now())
        if throttle_ms:
            self.throttled[key] += 1
            self.throttled_ms[key] += throttle_ms
        return throttle_ms

    def count_time(self, context: RequestContext, ns: int) -> int:
        """Count time of the event loop."""
        return self.count(REQUEST, context, ns / 1e9 * 100)

    def now(self) -> float:
        """The clock of quotas."""
        return self._clock.now()

    def mutations(self, api: str, context: RequestContext) -> Mutations | None:
        """What counts the partitions of a request at the controller; None: nothing does."""
        if self.quotas is None or self.is_exempt(context):
            return None
        return Mutations(self, context, strict=context.api_version < 0 or context.api_version >= STRICT_SINCE[api])

    def mutate(self, context: RequestContext, partitions: int, *, strict: bool) -> int:
        """Count partitions; see :meth:`Quotas.mutate`."""
        quotas = self.quotas
        if quotas is None:
            return 0
        throttle_ms = quotas.mutate(user_of(context), context.client_id, partitions, self._clock.now(), strict=strict)
        if throttle_ms:
            self.throttled[MUTATION] += 1
            self.throttled_ms[MUTATION] += throttle_ms
        return throttle_ms

    def take_back(self, key: str, context: RequestContext, amount: float) -> None:
        """What was counted is not sent."""
        if self.quotas is not None:
            self.quotas.take_back(key, user_of(context), context.client_id, amount, self._clock.now())

    def fetch_bytes_max(self, context: RequestContext) -> int | None:
        """Bytes that a fetch of this client may return at most; None: as many as it asks for."""
        quotas = self.quotas
        return None if quotas is None else quotas.burst_bytes(FETCH, user_of(context), context.client_id)

    # ---- requests over HTTP ------------------------------------------------------------------------------------------

    def applies(self, api: str, request: Any, context: RequestContext) -> bool:
        """Return True if a request of ``/rpc`` may be throttled."""
        if api not in DATA_APIS or self.quotas is None or self.is_exempt(context):
            return False
        return not (isinstance(request, FetchRequest) and request.replica_id >= 0)

    async def admit(self, keys: tuple[str, ...], context: RequestContext) -> None:
        """Wait while the client is throttled. Raises ThrottlingQuotaExceeded if that is longer than HOLD_MS."""
        left_ms = self._left_ms(keys, context)
        if left_ms:
            await asyncio.sleep(left_ms / 1000)

    def _left_ms(self, keys: tuple[str, ...], context: RequestContext) -> int:
        """How long a request must wait. Raises ThrottlingQuotaExceeded if that is longer than HOLD_MS."""
        quotas = self.quotas
        if quotas is None:
            return 0
        left_ms = quotas.throttled_ms(keys, user_of(context), context.client_id, self._clock.now())
        if left_ms > HOLD_MS:
            raise ThrottlingQuotaExceeded(
                f"{context.principal} exceeds its quota; send no request for {left_ms} ms.",
                outcome=NOT_WRITTEN,
                throttle_time_ms=left_ms,
            )
        return left_ms

    def serve(self, api: str, context: RequestContext, received: int, serve: Callable[[], Any]) -> Any:
        """Serve a request of ``/rpc`` when its client may send it, and count it.

        Args:
            api: A key of DATA_APIS.
            context: Who sent the request.
            received: Bytes of the request.
            serve: Handles it; returns the buffers of the response or an awaitable of them.

        Returns:
            What ``serve`` returns. An awaitable only if it does, or if the client must wait.

        Raises:
            ThrottlingQuotaExceeded: At once, and nothing was done.
        """
        left_ms = self._left_ms(DATA_APIS[api], context)
        if left_ms:
            return self._serve_later(left_ms / 1000, api, context, received, serve)
        return self._served(api, context, received, serve)

    async def _serve_later(
        self, pause_s: float, api: str, context: RequestContext, received: int, serve: Callable[[], Any]
    ) -> Any:
        await asyncio.sleep(pause_s)
        answer = self._served(api, context, received, serve)
        return await answer if isinstance(answer, Awaitable) else answer

    def _served(self, api: str, context: RequestContext, received: int, serve: Callable[[], Any]) -> Any:
        began_ns = self._clock.ticks_ns()
        answer = serve()
        self.count_time(context, self._clock.ticks_ns() - began_ns)
        return when_answered(answer, partial(self._counted, api, context, received))

    def _counted(self, api: str, context: RequestContext, received: int, answer: Any) -> Any:
        """The buffers of a response; they are counted, or the bytes of its request."""
        if api == "Produce":
            self.count(PRODUCE, context, received)
        elif api == "Fetch":
            self.count(FETCH, context, sum(map(len, answer)))
        return answer


def user_of(context: RequestContext) -> str:
    """The user that quotas are for: the principal's name without its type."""
    return context.principal.partition(":")[2]
