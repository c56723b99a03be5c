"""Requests that one broker sends on to another: both check the client, by their own metadata (issue 18, KIP-590)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from minikafka.broker.access import Access
from minikafka.broker.broker import Broker as EntryBroker
from minikafka.broker.dispatch import Dispatcher
from minikafka.broker.envelopes import envelope_handler, send_on
from minikafka.broker.parts import ANSWERED_BY_CONTROLLER
from minikafka.broker.throttle import Throttle
from minikafka.config import BrokerConfig
from minikafka.errors import (
    BrokerNotAvailable,
    ClusterAuthorizationFailed,
    InvalidRequest,
    TopicAuthorizationFailed,
    UnknownServerError,
)
from minikafka.parked import Parked
from minikafka.ports import INTERNAL, Buffers, RequestContext
from minikafka.quorum.image import MetadataImage, acl_record
from minikafka.security.permissions import FORWARDABLE, PERMISSIONS
from minikafka.security.quotas import MUTATION, USER, QuotaIndex
from minikafka.types import Address
from minikafka.wire import messages as m
from minikafka.wire.acls import Acl, AclOperation, ResourceType
from minikafka.wire.apis import BY_REQUEST
from minikafka.wire.codec import decode_request, decode_response, encode_request, find_api
from minikafka.wire.outcomes import failure_of
from tests.sim.planted_security import SECURITY_CLUSTERS

ALICE, BROKER_1 = "User:alice", "User:broker-1"
PEER = Address("127.0.0.1", 9092)
CONFIG = BrokerConfig(
    listeners="BROKERS://127.0.0.1:9091,CLIENTS://127.0.0.1:9092",
    inter_broker_listener_name="BROKERS",
    listener_security_protocol_map="BROKERS:SSL,CLIENTS:SSL",
    super_users=f"{BROKER_1};User:root",
)
CLIENT = RequestContext("kafka", "CLIENTS", "10.0.0.7", "etl", "librdkafka 2", ALICE)
CREATION = m.CreateTopicsRequest(topics=(m.NewTopic(name="orders", num_partitions=1, replication_factor=1),))
CREATE = AclOperation.CREATE


def image(*operations: AclOperation) -> MetadataImage:
    """What alice may do with the topic ``orders``."""
    records = [
        acl_record(
            str(operation),
            Acl(resource_type=ResourceType.TOPIC, resource_name="orders", principal=ALICE, operation=operation),
        )
        for operation in operations
    ]
    return MetadataImage().replay_all(records, 1, 1) if records else MetadataImage()


class Broker:
    """The broker that serves, with an authorizer and metadata of its own; as a Network, it is what all calls reach."""

    def __init__(
        self, has: MetadataImage, *, sender: RequestContext | None = None, config: BrokerConfig = CONFIG
    ) -> None:
        self.has = has
        self.sender = sender or RequestContext("rpc", "", "10.0.0.1", principal=BROKER_1)
        """Who sends the requests that reach it."""
        self.events: list[tuple[str, dict[str, object]]] = []
        self.access = Access(config, lambda: self.has, self._event, lambda: 0.0)
        self.served: list[tuple[Any, RequestContext]] = []
        self.calls: list[str] = []
        self.answer: Callable[[], Any] = m.CreateTopicsResponse
        self.handlers: dict[str, Any] = dict.fromkeys(PERMISSIONS, self._serve)
        self.dispatcher = Dispatcher(
            self.handlers,
            events=self._event,
            on_bug=lambda _what, error: (_ for _ in ()).throw(error),
            is_open=True,
            ticks_ns=lambda: 0,
            screen=self.access.screen,
        )
        self.handlers["Envelope"] = envelope_handler(self.dispatcher, config)

    def _event(self, kind: str, /, **facts: object) -> None:
        self.events.append((kind, facts))

    def _serve(self, request: Any, context: RequestContext) -> Any:
        self.served.append((request, context))
        return self.answer()

    async def call(self, _peer: Address, api: str, body: Buffers, *, deadline: float) -> bytes:
        self.calls.append(api)
        answer = self.dispatcher.dispatch(api, b"".join(body), self.sender)
        return b"".join(answer if isinstance(answer, (list, tuple)) else await answer)

    async def serve(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


async def sent_on(broker: Broker, request: object = CREATION, context: RequestContext = CLIENT) -> Any:
    """The response to a request of alice that broker 1 sends on; raises its error."""
    answer = await send_on(broker, PEER, request, 1.0, context=context, broker_id=1)
    if answer.error_code:
        raise failure_of(answer)
    return answer


async def test_the_server_sees_the_client_and_not_the_broker_that_sends_it_on():
    """Principal, address, listener, client id and software are those of the client; the broker is named beside."""
    broker = Broker(image(CREATE))
    await sent_on(broker)
    [(request, context)] = broker.served
    assert request == CREATION
    assert context == replace(CLIENT, protocol="rpc", forwarded_by=1)
    assert broker.calls == ["Envelope"]


@contextmanager
def planted(name: str) -> Iterator[None]:
    [bug] = [each for each in SECURITY_CLUSTERS if each.name == name]
    with bug.active():
        yield


async def test_a_revoked_client_does_not_pass_through_a_broker_with_old_metadata():
    """Hostile test 4, at the lowest layer: the entry broker allows by an old image, the controller has a new one."""
    broker = Broker(image())
    [refused] = (await sent_on(broker)).topics
    assert refused.error_code == TopicAuthorizationFailed.code
    assert ALICE in refused.error_message
    assert broker.served == []
    [(kind, facts)] = broker.events
    assert kind == "request_denied"
    assert (facts["principal"], facts["remote"], facts["forwarded_by"]) == (ALICE, "10.0.0.7", 1)


async def test_the_planted_bug_lets_a_revoked_client_pass():
    """The test above shows something: a controller that trusts the entry broker serves the request."""
    with planted("entry_brokers_are_trusted"):
        broker = Broker(image())
        await sent_on(broker)
    assert broker.served


async def test_what_is_allowed_is_reported_once():
    """By the broker where the request entered, which knows how the client is connected."""
    broker = Broker(image(CREATE))
    await sent_on(broker)
    assert broker.events == []


def envelope(sent: object = CREATION, **members: Any) -> m.EnvelopeRequest:
    api = BY_REQUEST[type(sent)].name
    given = {"api": api, "request_principal": "User:root", "broker_id": 1, "request": encode_request(sent)}
    made: m.EnvelopeRequest = m.EnvelopeRequest(**{**given, **members})
    # As a broker receives it.
    return decode_request(find_api("Envelope"), b"".join(encode_request(made)))


async def answered(broker: Broker, request: m.EnvelopeRequest) -> Any:
    """The response in the response to an Envelope; raises the error of the Envelope."""
    body = await broker.call(PEER, "Envelope", encode_request(request), deadline=1.0)
    response = decode_response("Envelope", body)
    if response.error_code:
        raise failure_of(response)
    return decode_response(request.api, b"".join(response.response))


SENDERS = {
    "a client without CLUSTER_ACTION": RequestContext("rpc", "", "10.0.0.7", principal=ALICE),
    "nobody": RequestContext("rpc", "", "10.0.0.7"),
    "a super user at the listener of clients": RequestContext("rpc", "CLIENTS", "10.0.0.7", principal="User:root"),
    "a broker at the listener of clients": RequestContext("rpc", "CLIENTS", "10.0.0.7", principal=BROKER_1),
}


@pytest.mark.parametrize("sender", SENDERS.values(), ids=SENDERS.keys())
async def test_only_brokers_at_their_own_listener_send_envelopes(sender: RequestContext):
    """Hostile test 3: a client that claims to be a super user."""
    broker = Broker(image(), sender=sender)
    with pytest.raises(ClusterAuthorizationFailed):
        await answered(broker, envelope())
    assert broker.served == []


FOLLOWER = m.FetchRequest(replica_id=2, partitions=(m.FetchPartition(topic="orders", partition=0, fetch_offset=0),))
METADATA = m.FetchRequest(partitions=(m.FetchPartition(topic="__cluster_metadata", partition=0, fetch_offset=0),))
REFUSED = {
    "an Envelope": envelope(envelope()),
    "a request of brokers": envelope(m.AllocateProducerIdsRequest(broker_id=2, broker_epoch=1)),
    "a fetch of a follower": envelope(FOLLOWER),
    "the metadata log": envelope(METADATA),
    "no API": envelope(api="Nothing"),
    "another API than its body": envelope(api="DeleteTopics"),
    "no body": envelope(request=()),
    "no broker": envelope(broker_id=-1),
}


@pytest.mark.parametrize("request_", REFUSED.values(), ids=REFUSED.keys())
async def test_what_brokers_do_not_send_on_is_refused(request_: m.EnvelopeRequest):
    """Also from a broker, and for a super user."""
    broker = Broker(image())
    with pytest.raises(InvalidRequest):
        await answered(broker, request_)
    assert broker.served == []


async def test_an_envelope_of_a_broker_is_one_of_the_client_that_it_names():
    """The sender is a super user, and its client is not."""
    broker = Broker(image())
    [refused] = (await answered(broker, envelope(request_principal=ALICE))).topics
    assert refused.error_code == TopicAuthorizationFailed.code


UNCHECKED = "BROKERS:PLAINTEXT,CLIENTS:SSL"
DELETION = m.DeleteTopicsRequest(topics=("orders",))
WAYS = {
    "a client that is checked": (CLIENT, True, False, CREATION, "Envelope"),
    "without an authorizer": (CLIENT, False, False, CREATION, "CreateTopics"),
    "the broker itself": (INTERNAL, True, True, CREATION, "CreateTopics"),
    "a listener of brokers in plain text": (RequestContext("rpc", ""), True, True, CREATION, "CreateTopics"),
    "what the controller counts": (CLIENT, False, True, DELETION, "Envelope"),
    "what it does not count": (CLIENT, False, True, m.ElectLeadersRequest(), "ElectLeaders"),
}


@pytest.mark.parametrize(("context", "is_secured", "has_quotas", "request_", "api"), WAYS.values(), ids=WAYS.keys())
async def test_who_needs_an_envelope(
    context: RequestContext, is_secured: bool, has_quotas: bool, request_: object, api: str
):
    """A client that the other broker checks, or whose changes it counts."""
    config = replace(CONFIG, listener_security_protocol_map=UNCHECKED)
    broker = Broker(image(CREATE, AclOperation.DELETE))
    clock: Any = SimpleNamespace(now=lambda: 0.0)
    throttle = Throttle(config, clock)
    if has_quotas:
        throttle.use(QuotaIndex({((USER, "alice"),): {MUTATION: 100.0}}))
    entry: Any = SimpleNamespace(
        access=Access(config, MetadataImage, lambda _kind, /, **_facts: None, lambda: 0.0) if is_secured else None,
        throttle=throttle,
        world=SimpleNamespace(network=broker),
        node_id=1,
    )
    await EntryBroker.forward(entry, PEER, request_, context, 1.0)
    assert broker.calls == [api]


async def test_a_client_that_is_sent_on_is_checked_whatever_its_listener_is_called():
    """The receiver trusts the listener of brokers in plain text, and no name that an Envelope gives."""
    for listener in ("", "BROKERS"):
        broker = Broker(image(), config=replace(CONFIG, listener_security_protocol_map=UNCHECKED))
        asked = envelope(m.ElectLeadersRequest(), request_principal=ALICE, listener=listener)
        assert (await answered(broker, asked)).error_code == ClusterAuthorizationFailed.code
        assert broker.served == []


async def test_a_broker_that_may_send_no_envelopes_tells_the_client_that_the_server_failed():
    """As Kafka's: the client has no part in it. Nothing was done."""
    broker = Broker(image(CREATE), sender=RequestContext("rpc", "", "10.0.0.1", principal="User:stranger"))
    with pytest.raises(UnknownServerError) as failed:
        await sent_on(broker)
    assert failed.value.outcome == "not_written"
    assert broker.served == []


async def test_a_broker_that_stops_is_not_available():
    """The error of an Envelope that callers can act on: they look for another broker."""
    broker = Broker(image(CREATE))
    broker.dispatcher.is_open = False
    with pytest.raises(BrokerNotAvailable):
        await sent_on(broker)


async def test_answers_that_must_be_awaited():
    """A coroutine, a parked request, and an error."""

    async def later() -> m.CreateTopicsResponse:
        await asyncio.sleep(0)
        return m.CreateTopicsResponse(metadata_offset=7)

    broker = Broker(image(CREATE))
    broker.answer = later
    assert (await sent_on(broker)).metadata_offset == 7
    parked = Parked(lambda: m.CreateTopicsResponse(metadata_offset=8))
    broker.answer = lambda: parked
    asyncio.get_running_loop().call_soon(parked.ready)
    assert (await sent_on(broker)).metadata_offset == 8

    def fails() -> Any:
        raise InvalidRequest("no")

    broker.answer = fails
    with pytest.raises(InvalidRequest, match="no"):
        await sent_on(broker)


async def test_records_travel_in_both_directions():
    """Of a produce, and of a fetch."""
    broker = Broker(image(AclOperation.READ, AclOperation.WRITE))
    broker.answer = m.ProduceResponse
    part = m.ProducePartition(topic="orders", partition=0, records=(b"a batch, ", b"in pieces"))
    await sent_on(broker, m.ProduceRequest(partitions=(part,)))
    assert b"".join(broker.served[0][0].partitions[0].records) == b"a batch, in pieces"
    found = m.FetchedPartition(topic="orders", partition=0, records=(b"x" * 100_000, b"y"))
    broker.answer = lambda: m.FetchResponse(partitions=(found,))
    wanted = m.FetchPartition(topic="orders", partition=0, fetch_offset=0)
    [read] = (await sent_on(broker, m.FetchRequest(partitions=(wanted,)))).partitions
    assert b"".join(read.records) == b"x" * 100_000 + b"y"


def test_which_apis_brokers_send_on():
    """All that clients of Kafka's protocol may send to any broker, and nothing that needs CLUSTER_ACTION alone."""
    assert ANSWERED_BY_CONTROLLER <= FORWARDABLE
    assert {"Produce", "Fetch", "ListOffsets", "JoinGroup", "DescribeLog", "EndTxn"} <= FORWARDABLE
    of_brokers = {api for api, steps in PERMISSIONS.items() if steps is PERMISSIONS["Vote"]}
    assert not FORWARDABLE & of_brokers
    assert "Envelope" in of_brokers
    assert all(find_api(api) for api in FORWARDABLE)
