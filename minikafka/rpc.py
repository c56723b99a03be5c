"""A typed request to one broker over the Network port, its typed response, and how long to wait for it.

Brokers, clients, routes of ``/v1``, tests and the simulator all send their requests through :func:`call`;
``minikafka/blocking/`` does the same for synchronous callers.

A sender that repeats idempotent requests waits with :class:`Patience`. A request or a response that a cut link or a
frozen process swallowed gives no sign. Waiting for the whole request timeout (30 s for a follower's fetch) then costs
every producer with ``acks=all`` as long. But a peer that is only slow must not receive the same request again and
again: each loss makes the sender more patient, and so does each slow response.
"""

from __future__ import annotations

from typing import Any, Final

from minikafka.errors import OutcomeUnknown, ProtocolError
from minikafka.ports import Network
from minikafka.types import Address
from minikafka.wire.apis import BY_REQUEST
from minikafka.wire.codec import decode_response, encode_request


async def call(network: Network, peer: Address, request: object, deadline: float) -> Any:
    """Send ``request`` and return the response, whose errors the caller reads.

    Args:
        network: The Network port.
        peer: Address of the broker.
        request: A request of the ``BY_REQUEST`` table.
        deadline: On the monotonic clock, in seconds.

    Raises:
        Unreachable: Nothing was sent.
        RequestRefused: The broker refused the request before it was read.
        OutcomeUnknown: No response arrived, or it cannot be decoded.
    """
    name = BY_REQUEST[type(request)].name
    body = await network.call(peer, name, encode_request(request), deadline=deadline)
    try:
        return decode_response(name, body)
    except ProtocolError as error:
        raise OutcomeUnknown(f"the response to {name} cannot be decoded: {error}") from error


FIRST_S: Final = 0.5
"""Far above the response time of a healthy peer, below the shortest session that makes sense."""
PROBE_S: Final = 0.25
"""The same after a loss: a probe is answered at once."""
GROWTH: Final = 1.25
MARGIN: Final = 3.0
"""A response may take this many times as long as the slowest of the recent ones."""
LOSSES_MAX: Final = 40
"""Further losses change nothing: the longest wait is reached long before."""
DECAY: Final = 0.9
"""What is left of a slow response's influence after each response that follows it."""


class Patience:
    """Patience of one sender with one peer, in seconds beyond the time that the peer may hold the request."""

    __slots__ = ("_in_vain", "_slowest_s")

    def __init__(self) -> None:
        self._slowest_s = 0.0
        """Of the recent responses; earlier ones count for less."""
        self._in_vain = 0
        """Requests in a row without a response."""

    @property
    def is_probing(self) -> bool:
        """The last request got no response: ask for one at once, instead of a long poll."""
        return self._in_vain > 0

    def seconds(self, longest_s: float) -> float:
        """Return how long to wait for the next response, at most ``longest_s``."""
        shortest_s = PROBE_S * GROWTH ** (self._in_vain - 1) if self._in_vain else FIRST_S
        return min(longest_s, max(shortest_s, MARGIN * self._slowest_s))

    def answered(self, took_s: float) -> None:
        """Record a response and its duration, without the time that the peer could hold the request."""
        self._slowest_s = max(took_s, DECAY * self._slowest_s)
        self._in_vain = 0

    def lost(self) -> None:
        """Record that a response did not come in time."""
        self._in_vain = min(self._in_vain + 1, LOSSES_MAX)
