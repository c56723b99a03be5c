"""Quotas on one connection of Kafka's protocol: throttle times, and what waits meanwhile (KIP-219)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from minikafka.broker.throttle import HOLD_MS, Throttle
from minikafka.config import BrokerConfig
from minikafka.errors import ThrottlingQuotaExceeded
from minikafka.parked import Parked
from minikafka.ports import RequestContext
from minikafka.quorum.image import MetadataImage
from minikafka.security.quotas import CLIENT_ID, FETCH, PRODUCE, REQUEST, USER, Entity, QuotaIndex
from minikafka.wire.group_messages import HeartbeatResponse
from minikafka.wire.kafka.codec import Message, decode
from minikafka.wire.kafka.schema import api_named
from minikafka.wire.messages import CreatedTopic, CreateTopicsResponse, FetchedPartition, FetchRequest, FetchResponse
from tests.kafka.test_session import Line, produced, settle

ANONYMOUS: Entity = ((USER, "ANONYMOUS"),)


class Time:
    """The clock of quotas."""

    def __init__(self) -> None:
        self.s = 1000.0
        self.ns = 10**9

    def now(self) -> float:
        return self.s

    def ticks_ns(self) -> int:
        return self.ns

    def wall_ms(self) -> int:
        return 0


class Throttled(Line):
    """A connection to a broker with quotas."""

    def __init__(self, listener: str = "", **limits: float) -> None:
        super().__init__()
        self.time = Time()
        config = BrokerConfig(node_id=1, listeners="BROKERS://127.0.0.1:0,CLIENTS://127.0.0.1:0") if listener else None
        if config is not None:
            config = replace(config, inter_broker_listener_name="BROKERS")
        self.throttle = Throttle(config or BrokerConfig(node_id=1), self.time)
        if limits:
            self.throttle.use(QuotaIndex({ANONYMOUS: limits}))
        self.door.throttle, self.door.ticks_ns = self.throttle, self.time.ticks_ns
        name = "" if listener == "BROKERS" else listener
        self.session = type(self.session)(self.door, self, RequestContext("kafka", name, "127.0.0.1"))
        self.prompt["Heartbeat"] = HeartbeatResponse()

    def last(self, name: str, version: int) -> Message:
        head = 9 if api_named(name).is_flexible(version) else 8
        return decode(name, "response", version, memoryview(self.sent[-1]), head)


async def until(condition: Callable[[], Any]) -> None:
    """Wait until it holds."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what the condition looks at has no event
            await asyncio.sleep(0.005)


PRODUCE_FRAME_SIZE = 39
"""Of :meth:`Line.produce`, without its size."""
SHORT = PRODUCE_FRAME_SIZE / 10 / 1.005
"""Bytes a second that one such frame exceeds by 50 ms of throttling."""


async def test_a_producer_has_its_answer_at_once_and_is_muted():
    """KIP-219: the throttle time is in the answer; what the client sends meanwhile waits for its end."""
    it = Throttled(producer_byte_rate=SHORT)
    it.prompt["Produce"] = produced()
    it.produce(1)
    throttle_ms = it.last("Produce", 8)["throttle_time_ms"]
    assert throttle_ms == 50
    assert (it.is_paused, it.throttle.muted, it.throttle.throttled[PRODUCE]) == (True, 1, 1)
    it.heartbeat(2)
    await settle()
    assert [api for api, *_ in it.asked] == ["Produce"]
    await until(lambda: len(it.asked) == 2)
    assert (it.is_paused, it.throttle.muted, it.answered) == (False, 0, [1, 2])


async def test_acks_0_mutes_without_an_answer():
    """There is no throttle time to send."""
    it = Throttled(producer_byte_rate=SHORT)
    it.prompt["Produce"] = produced()
    it.produce(1, acks=0)
    assert (it.sent, it.is_paused) == ([], True)
    it.heartbeat(2)
    await settle()
    assert len(it.asked) == 1
    await until(lambda: it.answered == [2])


async def test_a_fetch_over_the_quota_has_no_records_and_does_not_count():
    """The rest of what it says stays; once the rate allows it, the records come."""
    it = Throttled(consumer_byte_rate=100.0)
    it.prompt["Fetch"] = FetchResponse(
        partitions=(FetchedPartition(topic="t", partition=0, high_watermark=7, records=(b"x" * 2000,)),)
    )
    it.fetch()
    response = it.last("Fetch", 10)
    (found,) = response["responses"][0]["partitions"]
    assert (found["high_watermark"], bytes(found["records"] or b"")) == (7, b"")
    assert response["throttle_time_ms"] > 0
    assert it.asked[0][1].max_bytes == 1000  # what ten seconds allow
    rates = it.throttle.quotas
    assert rates is not None
    assert rates.count(FETCH, "ANONYMOUS", "c", 0, it.time.s) == 0


async def test_a_fetch_within_the_quota_is_not_changed():
    """Throttle time 0, all records, no pause."""
    it = Throttled(consumer_byte_rate=1e6)
    it.prompt["Fetch"] = FetchResponse(partitions=(FetchedPartition(topic="t", partition=0, records=(b"xyz",)),))
    it.fetch()
    response = it.last("Fetch", 10)
    assert bytes(response["responses"][0]["partitions"][0]["records"]) == b"xyz"
    assert (response["throttle_time_ms"], it.is_paused) == (0, False)


async def test_time_of_the_loop_throttles_every_api():
    """request_percentage counts what the loop spends on a request, and lasts a second at most."""
    it = Throttled(request_percentage=0.5)
    answering = it.door.answering

    def slow(*request: Any) -> Any:
        it.time.ns += 200_000_000
        return answering(*request)

    it.door.answering = slow
    it.heartbeat(1)
    assert it.last("Heartbeat", 2)["throttle_time_ms"] == 1000
    assert it.throttle.throttled[REQUEST] == 1
    it.session.closed()
    assert it.throttle.muted == 0


async def test_time_before_and_after_waiting_is_counted_and_waiting_is_not():
    """A request that waits uses no loop meanwhile."""
    it = Throttled(request_percentage=1.0)
    answering = it.door.answering

    def slow(*request: Any) -> Any:
        it.time.ns += 30_000_000
        return answering(*request)

    it.door.answering = slow
    it.produce(1)
    it.time.ns += 10**12
    it.gates[0].set_result(produced())
    await settle()
    assert it.answered == [1]
    rates = it.throttle.quotas
    assert rates is not None
    assert rates.throttled_ms((REQUEST,), "ANONYMOUS", "c", it.time.s) == 0
    assert rates.count(REQUEST, "ANONYMOUS", "c", 8.0, it.time.s) > 0  # 3 % are counted of the 10 that are free


async def test_the_controllers_throttle_time_reaches_the_client():
    """KIP-599: the broker that the client is connected to reads nothing from it for so long, and says so."""
    it = Throttled(producer_byte_rate=1e9)
    it.prompt["CreateTopics"] = CreateTopicsResponse(
        topics=(CreatedTopic(name="t", error_code=ThrottlingQuotaExceeded.code),), throttle_time_ms=60
    )
    it.ask("CreateTopics", 6, {"topics": [], "timeout_ms": 1000, "validate_only": False})
    response = it.last("CreateTopics", 6)
    assert [each["error_code"] for each in response["topics"]] == [ThrottlingQuotaExceeded.code]
    assert response["throttle_time_ms"] == 60
    assert it.is_paused
    await until(lambda: not it.is_paused)


@pytest.mark.parametrize(("version", "is_strict"), [(-1, True), (5, False), (6, True)])
def test_clients_that_know_the_error_are_refused(version: int, is_strict: bool):
    """CreateTopics since version 6, and everything that is not Kafka's protocol. Others are throttled afterwards."""
    it = Throttled(controller_mutation_rate=1.0)
    context = RequestContext("kafka", api_version=version)
    mutations = it.throttle.mutations("CreateTopics", context)
    assert mutations is not None
    mutations.charge(12)
    assert mutations.throttle_ms == (0 if is_strict else 1000)
    if is_strict:
        with pytest.raises(ThrottlingQuotaExceeded) as refused:
            mutations.charge(1)
        assert refused.value.outcome == "not_written"
    it.time.s += 0.25
    assert mutations.throttle_ms == 750


def test_brokers_are_not_counted_by_the_controller():
    """Their own requests at a listener of their own; not a client's that one of them has sent on."""
    it = Throttled("BROKERS", controller_mutation_rate=1.0)
    own, sent_on = RequestContext("rpc", ""), RequestContext("rpc", "", forwarded_by=2)
    assert it.throttle.mutations("DeleteTopics", own) is None
    assert it.throttle.mutations("DeleteTopics", sent_on) is not None


async def test_without_quotas_nothing_is_counted():
    """The answer is the unrolled one, and no clock is read."""
    it = Throttled()
    it.prompt["Produce"] = produced()
    it.time.ticks_ns = lambda: pytest.fail("read for nothing")  # type: ignore[method-assign]
    it.door.ticks_ns = it.time.ticks_ns
    it.produce(1)
    assert it.last("Produce", 8)["throttle_time_ms"] == 0
    assert it.throttle.quotas is None


@pytest.mark.parametrize(("listener", "throttled"), [("BROKERS", False), ("CLIENTS", True)])
async def test_a_listener_of_brokers_alone_is_exempt(listener: str, *, throttled: bool):
    """Brokers and administrators are not slowed down by quotas of clients."""
    it = Throttled(listener, producer_byte_rate=SHORT)
    it.prompt["Produce"] = produced()
    it.produce(1)
    assert (it.last("Produce", 8)["throttle_time_ms"] > 0) is throttled
    it.session.closed()


async def test_requests_of_a_client_that_left_are_handled_without_waiting():
    """As in Kafka: what came whole is served, and the next connection pays for it."""
    it = Throttled(producer_byte_rate=SHORT / 1000)
    it.prompt["Produce"] = produced()
    it.produce(1)
    it.produce(2)
    assert len(it.asked) == 1
    it.session.closed()
    assert (len(it.asked), it.throttle.muted) == (2, 0)


async def test_quotas_that_are_removed_end_with_their_last():
    """An index without quotas stops the counting; one with others goes on with the same rates."""
    throttle = Throttle(BrokerConfig(node_id=1), Time())
    throttle.use(QuotaIndex({ANONYMOUS: {PRODUCE: 1.0}}))
    first = throttle.quotas
    throttle.use(QuotaIndex({((CLIENT_ID, "c"),): {PRODUCE: 1.0}}))
    assert throttle.quotas is first
    throttle.use(QuotaIndex())
    assert throttle.quotas is None


async def test_quotas_that_are_changed_hold_from_the_next_request_on():
    """Newer metadata has other quotas, or the same ones."""
    throttle = Throttle(BrokerConfig(node_id=1), Time())
    slow, fast = (QuotaIndex({ANONYMOUS: {PRODUCE: limit}}) for limit in (1.0, 1e9))
    images = [MetadataImage(offset=at, quota_index=index) for at, index in enumerate((QuotaIndex(), slow, slow, fast))]
    for old, new in pairwise(images):
        throttle.on_image(old, new)
        assert throttle.quotas is not None
        assert throttle.quotas.index is new.quota_index


async def test_followers_are_never_throttled_over_http():
    """A fetch of a replica is replication, at whatever listener it arrives."""
    throttle = Throttle(BrokerConfig(node_id=1), Time())
    throttle.use(QuotaIndex({ANONYMOUS: {FETCH: 1.0}}))
    context = RequestContext("rpc", "CLIENTS", "127.0.0.1")
    applies = [throttle.applies("Fetch", FetchRequest(replica_id=node, partitions=()), context) for node in (-1, 0, 2)]
    assert applies == [True, False, False]


async def test_a_request_over_http_waits_for_a_second_and_no_longer():
    """HOLD_MS itself is waited for."""
    time = Time()
    throttle = Throttle(BrokerConfig(node_id=1), time)
    throttle.use(QuotaIndex({ANONYMOUS: {PRODUCE: 1000.0}}))
    assert throttle.quotas is not None
    until_s = time.s + throttle.quotas.count(PRODUCE, "ANONYMOUS", "", 20_000, time.s) / 1000
    context = RequestContext("rpc", "CLIENTS", "127.0.0.1")
    for left_ms, is_refused in ((HOLD_MS, False), (HOLD_MS + 1, True)):
        time.s = until_s - left_ms / 1000
        with pytest.raises(ThrottlingQuotaExceeded) if is_refused else nullcontext():
            assert throttle._left_ms((PRODUCE,), context) == left_ms


async def test_a_request_over_http_that_need_not_wait_is_answered_as_without_quotas():
    """No coroutine for a handler that needs none; what is parked stays so, and its bytes count when it is ready."""
    time = Time()
    throttle = Throttle(BrokerConfig(node_id=1), time)
    throttle.use(QuotaIndex({ANONYMOUS: {PRODUCE: 1000.0}}))
    context = RequestContext("rpc", "CLIENTS", "127.0.0.1")
    assert throttle.serve("Produce", context, 5000, lambda: [b"now"]) == [b"now"]
    parked = Parked(lambda: [b"later"])
    assert throttle.serve("Produce", context, 5500, lambda: parked) is parked
    assert throttle.throttled[PRODUCE] == 0
    results: list[object] = []
    parked.when_ready(lambda result: results.append(result()))
    parked.ready()
    assert (results, throttle.throttled[PRODUCE]) == ([[b"later"]], 1)
    later = throttle.serve("Produce", context, 5000, lambda: [b"after half a second"])
    assert asyncio.iscoroutine(later)
    assert await later == [b"after half a second"]
    with pytest.raises(ThrottlingQuotaExceeded):
        throttle.serve("Produce", context, 1, lambda: pytest.fail("served although it must wait for long"))
