"""Calls from broker to broker: a typed request out, a typed response back."""

from __future__ import annotations

from typing import Any

from minikafka.errors import OutcomeUnknown, ProtocolError
from minikafka.ports import Network
from minikafka.types import Address
from minikafka.wire.apis import BY_REQUEST
from minikafka.wire.codec import decode_response, encode_request


async def call(network: Network, peer: Address, request: object, deadline: float) -> Any:
    """Send ``request`` and await the response of its kind; ``deadline`` is on the monotonic clock, in seconds.

    Raises Unreachable when nothing was sent, RequestRefused when it was refused unread, else OutcomeUnknown, also for
    an answer that cannot be read. Errors inside the response are the caller's to read.
    """
    name = BY_REQUEST[type(request)].name
    body = await network.call(peer, name, encode_request(request), deadline=deadline)
    try:
        return decode_response(name, body)
    except ProtocolError as error:
        raise OutcomeUnknown(f"{name} to {peer}: the answer cannot be read: {error}") from error
