"""A typed request to one broker over the Network port, and its typed response.

Brokers, clients, routes of ``/v1``, tests and the simulator all send their requests through :func:`call`;
``minikafka/blocking/`` does the same for synchronous callers.
"""

from __future__ import annotations

from typing import Any

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
