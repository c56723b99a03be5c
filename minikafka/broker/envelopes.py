"""Requests of clients that one broker sends on to another: who sent them travels along (KIP-590).

1. The broker where a request enters checks it by its own metadata. What it needs another broker for it sends on in an
   Envelope, with the principal, the address and the client id of the client: never as a request of its own.
2. The receiver accepts an Envelope only at the listeners of brokers and controllers, from a sender with CLUSTER_ACTION.
   It checks the request in it again, by its own metadata, as one of the client. So a request that enters at a broker
   with old metadata passes only if it is allowed by both.
3. An Envelope has no other one in it, and no request that only brokers may send. The receiver never sends it on again.
4. Quotas of bytes and time count where a request enters; an Envelope is not throttled.

Clients that nobody checks (without an authorizer, and at listeners that cannot authenticate) need no Envelope, unless
the controller counts what they do (``throttle.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minikafka import errors as kafka
from minikafka.broker.dispatch import when_answered
from minikafka.config import BrokerConfig
from minikafka.ports import Network, RequestContext
from minikafka.rpc import call
from minikafka.security.permissions import FORWARDABLE
from minikafka.types import METADATA_TOPIC, Address, NodeId
from minikafka.wire.apis import BY_REQUEST
from minikafka.wire.codec import decode_request, decode_response, encode_request, error_response, find_api
from minikafka.wire.messages import EnvelopeRequest, EnvelopeResponse, FetchRequest
from minikafka.wire.outcomes import failure_of

if TYPE_CHECKING:
    from minikafka.broker.dispatch import ApiHandler, Dispatcher


async def send_on(
    network: Network,
    peer: Address,
    request: object,
    deadline: float,
    *,
    context: RequestContext,
    broker_id: NodeId,
) -> Any:
    """Send a request of a client to another broker, as :func:`minikafka.rpc.call` does, and return its response.

    Args:
        network: The Network port.
        peer: Address of the other broker, at the listener of brokers.
        request: The request of the client.
        deadline: On the monotonic clock, in seconds.
        context: Who sent the request to this broker.
        broker_id: This broker.

    Raises:
        UnknownServerError: The other broker accepts no Envelope of this one, as in Kafka.
        WorldError: As in ``call``.
    """
    api = BY_REQUEST[type(request)]
    envelope = EnvelopeRequest(
        api=api.name,
        request_principal=context.principal,
        client_host_address=context.remote,
        listener=context.listener,
        client_id=context.client_id,
        software=context.software,
        api_version=context.api_version,
        broker_id=broker_id,
        request=encode_request(request),
    )
    answer: EnvelopeResponse = await call(network, peer, envelope, deadline)
    if answer.error_code == kafka.BrokerNotAvailable.code:
        return error_response(api, failure_of(answer))
    if answer.error_code:
        raise kafka.UnknownServerError(
            f"{peer} accepts no {api.name} that broker {broker_id} sends on: {answer.error_message}",
            outcome=failure_of(answer).outcome,
        )
    try:
        return decode_response(api.name, b"".join(answer.response))
    except kafka.ProtocolError as error:
        raise kafka.OutcomeUnknown(f"the response to {api.name} cannot be decoded: {error}") from error


def context_in(envelope: EnvelopeRequest) -> RequestContext:
    """The sender of the request in an Envelope."""
    return RequestContext(
        "rpc",
        envelope.listener,
        envelope.client_host_address,
        envelope.client_id,
        envelope.software,
        envelope.request_principal,
        api_version=envelope.api_version,
        forwarded_by=envelope.broker_id,
    )


def request_in(envelope: EnvelopeRequest) -> Any:
    """The request in an Envelope. Raises ProtocolError if it cannot be read, or must not be in one."""
    if envelope.api not in FORWARDABLE:
        raise kafka.InvalidRequest(f"{envelope.api[:100]!r} is no API whose requests brokers send on", member="api")
    if envelope.broker_id < 0:
        raise kafka.InvalidRequest("an Envelope names the broker that sends it", member="broker_id")
    (body,) = envelope.request or (b"",)
    request = decode_request(find_api(envelope.api), body)
    if isinstance(request, FetchRequest) and (
        request.replica_id >= 0 or any(each.topic == METADATA_TOPIC for each in request.partitions)
    ):
        raise kafka.InvalidRequest("brokers send on no fetches of followers and of the metadata log", member="request")
    return request


def envelope_handler(dispatcher: Dispatcher, config: BrokerConfig) -> ApiHandler:
    """The handler of Envelope, which serves the request in it."""
    main = config.inter_broker_listener.name
    accepts = {"" if name == main else name for name in config.internal_listeners}

    def handle(envelope: EnvelopeRequest, context: RequestContext) -> Any:
        if context.listener not in accepts:
            raise kafka.ClusterAuthorizationFailed("An Envelope is accepted at the listeners of brokers only.")
        request = request_in(envelope)
        (body,) = envelope.request
        response = dispatcher.serve(find_api(envelope.api), request, body, context_in(envelope))
        return when_answered(response, lambda buffers: EnvelopeResponse(response=buffers))

    return handle
