"""Histories of one connection that speaks Kafka's protocol: requests of all forms, and handlers that answer in all forms.

The client sends what it likes while it is read; a handler answers at once, by a future, by an event or from a coroutine,
reports that a Produce request has begun, or fails. Meanwhile the client stops reading, is throttled, or leaves. The model
is the list of the requests in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from minikafka.broker.dispatch import Begun
from minikafka.broker.kafka_pipeline import PENDING_MAX
from minikafka.broker.kafka_session import KafkaSession
from minikafka.broker.throttle import Throttle
from minikafka.config import BrokerConfig
from minikafka.errors import BrokerNotAvailable, NotLeaderOrFollower
from minikafka.ports import RequestContext
from minikafka.security.quotas import FETCH, PRODUCE, USER, QuotaIndex
from minikafka.sim.world import SimWorld
from minikafka.wire.group_messages import HeartbeatResponse, ListGroupsResponse, OffsetFetchResponse
from minikafka.wire.messages import FetchedPartition, FetchResponse, ProducedPartition, ProduceResponse
from tests.kafka.test_session import Line, parked

ENDS = 0.02
"""Chance of a step, in one history of four each, that the client leaves or the broker stops."""


class Request:
    """One request of the client."""

    def __init__(self, correlation: int, api: str, *, acks: int = -1, calls: int = 1) -> None:
        self.correlation = correlation
        self.api = api
        self.is_unanswered = acks == 0
        self.calls = calls
        """How many handlers must end before its response."""
        self.begun = 0
        self.ended = 0
        self.may_be_passed = False
        """A Produce request that has begun: the next one may begin."""

    def __repr__(self) -> str:
        return f"<{self.api} {self.correlation}: {self.begun} begun, {self.ended} ended of {self.calls}>"

    @property
    def is_done(self) -> bool:
        return self.ended == self.calls


class Held(Line):
    """A connection whose handlers answer as the history wants it."""

    def __init__(self, history: ConnectionHistory, sim: SimWorld) -> None:
        self.history = history
        super().__init__()
        world = sim.of("n1")
        self.throttle = Throttle(BrokerConfig(node_id=1), world.clock)
        self.door.throttle, self.door.ticks_ns = self.throttle, world.clock.ticks_ns
        self.door.sessions.clear()
        self.session = KafkaSession(self.door, self, RequestContext("kafka", "", "127.0.0.1"))

    def answering(self, api: str, request: Any, context: RequestContext) -> Any:
        del request, context
        return self.history.handle(api)

    def send(self, answer: Any) -> None:
        assert not self.history.has_left
        super().send(answer)


class ConnectionHistory:
    """One seed's history."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"connection/{seed}")
        self.sent: list[Request] = []
        self.waiting: list[tuple[Request, asyncio.Future[Any]]] = []
        self.has_left = self.is_stopping = False
        self.leaves, self.stops = (ENDS if self.random.random() < 0.25 else 0 for _ in range(2))
        self.has_room = True

    def play(self, steps: int) -> None:
        with SimWorld(1) as sim:
            self.sim = sim
            sim.run(self._play(steps))

    async def _play(self, steps: int) -> None:
        self.line = Held(self, self.sim)
        actions: list[Callable[[], Any]] = (
            [self.send] * 10
            + [self.end_one] * 20
            + [self.change_room] * 2
            + [self.change_quotas]
            + [lambda: asyncio.sleep(0)] * 4
            + [self.let_time_pass] * 2
        )
        for _ in range(steps):
            if self.random.random() < self.leaves and not self.line.is_closed and not self.has_left:
                self.has_left = True
                self.line.session.closed()
            elif self.random.random() < self.stops:
                self.is_stopping = True
            doing = self.random.choice(actions)()
            if doing is not None:
                await doing
            self.check()
        await self.end()

    # ---- the client --------------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Send a request while the connection is read; sometimes several in one packet."""
        line = self.line
        for _ in range(self.random.choice((1, 1, 1, 3, 9))):
            if line.is_paused or line.is_closed or self.has_left:
                return
            kind = self.random.choice(
                ("Produce",) * 5 + ("Heartbeat", "Fetch", "ListGroups", "OffsetFetch", "ApiVersions")
            )
            number = len(self.sent) + 1
            groups = self.random.randint(1, 3)
            acks = self.random.choice((-1, 1, 0)) if kind == "Produce" else -1
            calls = {"OffsetFetch": groups, "ApiVersions": 0}.get(kind, 1)
            self.sent.append(Request(number, kind, acks=acks, calls=calls))
            match kind:
                case "Produce":
                    line.produce(number, acks=acks)
                case "Heartbeat":
                    line.heartbeat(number)
                case "Fetch":
                    line.fetch(number)
                case "ListGroups":
                    line.ask("ListGroups", 2, {}, number)
                case "OffsetFetch":
                    wanted = [{"group_id": f"g{each}", "topics": None} for each in range(groups)]
                    line.ask("OffsetFetch", 8, {"groups": wanted, "require_stable": False}, number)
                case _:
                    line.ask("ApiVersions", 0, {}, number)

    def change_room(self) -> None:
        self.has_room = not self.has_room or self.random.random() < 0.5
        if not self.has_left:
            self.line.session.room(has_room=self.has_room)

    # ---- the broker --------------------------------------------------------------------------------------------------

    def handle(self, api: str) -> Any:
        """A handler is called: for the oldest request that may begin, and for no other."""
        request = next(each for each in self.sent if each.begun < each.calls)
        assert request.api == api, (request, api)
        assert self.may_begin(request), (request, self.sent)
        assert request.begun == request.ended, "several requests of one message come one after the other"
        request.begun += 1
        if self.is_stopping:
            raise self._ended(request, BrokerNotAvailable("the broker stops"))
        form = self.random.randrange(6)
        result = self.result(request)
        if form == 0:
            if isinstance(result, Exception):
                raise self._ended(request, result)
            return self._ended(request, result)
        gate: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, gate))
        waits: Any = gate
        if form in (1, 2):
            waits = parked(gate)
        elif form == 3:
            waits = self._awaits(gate)
        if api == "Produce" and form != 5:
            if self.random.random() < 0.2:
                return self._begins_later(request, waits)
            request.may_be_passed = True
            return Begun(waits)
        return waits

    async def _awaits(self, gate: asyncio.Future[Any]) -> Any:
        return await gate

    async def _begins_later(self, request: Request, waits: Any) -> Any:
        await asyncio.sleep(0.01)
        request.may_be_passed = True
        return Begun(waits)

    def _ended(self, request: Request, result: Any) -> Any:
        request.ended += 1
        return result

    def end_one(self) -> None:
        """One of the waiting handlers gets its result."""
        if self.waiting:
            self._end(self.random.randrange(len(self.waiting)))

    def _end(self, number: int) -> None:
        request, gate = self.waiting.pop(number)
        result = self.result(request)
        request.ended += 1
        if gate.cancelled():
            return
        if isinstance(result, Exception):
            gate.set_exception(result)
        else:
            gate.set_result(result)

    def result(self, request: Request) -> Any:
        if self.is_stopping and self.random.random() < 0.5:
            return BrokerNotAvailable("the broker stops")
        if self.random.random() < 0.05 and not request.is_unanswered:
            return NotLeaderOrFollower("it moved")
        match request.api:
            case "Produce":
                return ProduceResponse(partitions=(ProducedPartition(topic="t", partition=0, base_offset=3),))
            case "Heartbeat":
                return HeartbeatResponse()
            case "Fetch":
                data = bytes(self.random.choice((0, 100, 5000)))
                answer = FetchedPartition(
                    topic="t", partition=0, high_watermark=9, log_start_offset=0, log_end_offset=9, records=(data,)
                )
                return FetchResponse(partitions=(answer,))
            case "ListGroups":
                return ListGroupsResponse()
            case _:
                return OffsetFetchResponse()

    def change_quotas(self) -> None:
        limits = self.random.choice(({}, {PRODUCE: 4.0}, {FETCH: 20.0}, {PRODUCE: 20.0, FETCH: 200.0}))
        self.line.throttle.use(QuotaIndex({((USER, "ANONYMOUS"),): limits} if limits else {}))

    # ---- what always holds -------------------------------------------------------------------------------------------

    def check(self) -> None:
        assert not self.sim.loop.failures, self.sim.loop.failures
        line = self.line
        expected = [each.correlation for each in self.sent if not each.is_unanswered]
        assert line.answered == expected[: len(line.answered)], (line.answered, expected)
        answered = set(line.answered)
        for each in self.sent:
            assert each.is_done or each.correlation not in answered, each
        held = len(line.session._pipeline)
        assert held <= PENDING_MAX
        assert not line.is_closed or self.is_stopping, "nothing else closes a connection here"

    async def let_time_pass(self) -> None:
        """Then all has begun that may, and the connection is read unless it must not be."""
        await asyncio.sleep(self.random.choice((0.02, 1.0, 60.0)))
        line, session = self.line, self.line.session
        if line.is_closed:
            return
        is_muted = session._unmute is not None
        if not self.has_left:
            assert line.throttle.muted == is_muted
            assert line.is_paused == (is_muted or len(session._pipeline) == PENDING_MAX)
        if self.has_left or (self.has_room and not is_muted):
            coming = next((each for each in self.sent if each.begun < each.calls and each.begun == each.ended), None)
            assert coming is None or not self.may_begin(coming), (coming, self.sent)

    def may_begin(self, request: Request) -> bool:
        before = self.sent[: self.sent.index(request)]
        unended = next((number for number, each in enumerate(before) if not each.is_done), len(before))
        passed = all(each.api == "Produce" and (each.is_done or each.may_be_passed) for each in before[unended:])
        return passed and (request.api == "Produce" or unended == len(before))

    async def end(self) -> None:
        """All handlers end, the client reads, and throttles pass: everything was handled and answered, and is let go."""
        line = self.line
        for _ in range(200):
            while self.waiting:
                self._end(0)
            if not (self.has_room or self.has_left):
                self.change_room()
            await asyncio.sleep(30)
            self.check()
            if line.is_closed or not (self.waiting or len(line.session._pipeline) or line.throttle.muted):
                break
        if line.is_closed:
            return
        assert len(line.session._pipeline) == 0, line.session.describe()
        assert all(each.is_done for each in self.sent)
        assert (line.throttle.muted, line.is_paused and not self.has_left) == (0, False)
        assert not line.session._handling
        assert not line.door.turns._waiting
        assert line.handled_bytes == line.received_bytes
        if not self.has_left:
            assert line.answered == [each.correlation for each in self.sent if not each.is_unanswered]
