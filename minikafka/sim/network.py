"""Links between nodes: every call is a request and an answer, two messages on two directed links.

What a caller learns, as on TCP:

- nobody listens on a machine that has power, or a firewall rejects the request: ``ConnectionRefused`` (it did not
  happen);
- the connection is reset before the request arrived: ``Unreachable`` (neither);
- the same for one copy of a request that was sent twice: ``OutcomeUnknown``, for the other copy may have arrived;
- the server's process dies, or the connection is reset, after the request arrived: ``OutcomeUnknown`` at once;
- a message is lost, a machine has no power, the handler is slow: ``OutcomeUnknown`` at the deadline.

Rules for this file:

1. Each message is asked about by ``rules`` in order; the first verdict wins; then the link's profile; then it is
   delivered after an exponential delay.
2. One random stream per purpose and directed link: removing one event must not move the others.
3. A handler runs as the incarnation that serves and finishes even if its client left. No message of the dead is
   delivered later than those already on their way: what a clog holds back dies with its sender.

Connections of Kafka's clients are streams of bytes on the same links (``streams.py``).
"""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import Context
from dataclasses import dataclass, field, replace
from functools import partial
from math import log
from random import Random
from typing import Any

from msgspec import Struct

from minikafka.errors import ConnectionRefused, OutcomeUnknown, Unreachable
from minikafka.invariant import invariant
from minikafka.parked import Parked, Result
from minikafka.ports import Buffers, Handler, OpenSession, RequestContext
from minikafka.sim.loop import NODE, Incarnation, SimLoop
from minikafka.sim.streams import Peer, Stream
from minikafka.sim.verdicts import Deliver, Drop, Hold, LinkProfile, Message, Reset, Rule, Verdict
from minikafka.types import Address

FIRST_PORT = 9092

DELIVERED, LOST, BROKEN, HELD = Deliver(), Drop(), Reset(), Hold()
"""What links do by themselves."""

# How long a closing server lets running handlers answer before it resets their connections.
CLOSE_GRACE_S = 1.0
CLOSE_LOOK_S = 0.05
"""How often a closing server looks whether the sessions of streams are done."""


class _Call(Struct, eq=False):
    """A call as its caller sees it: one future, set once."""

    number: int
    api: str
    caller: Incarnation | None
    source: str
    peer: Address
    answer: asyncio.Future[bytes]
    copies: int = 0
    """How many copies of its request were sent."""
    arrivals: int = 0
    """How many of them were used."""

    def fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    def fail_to_send(self, why: str, error: type[Unreachable] = Unreachable) -> None:
        """Fail a copy of the request that did not arrive; another copy may have."""
        self.fail((error if self.copies == 1 else OutcomeUnknown)(f"{self.peer}: {why}"))

    def was_reset(self, how: Reset) -> None:
        """The connection of a copy of the request broke before the request arrived."""
        if how.is_refused:
            self.fail_to_send("connection refused", ConnectionRefused)
        else:
            self.fail_to_send(f"connection reset before {self.api} was sent")

    def expire(self) -> None:
        self.fail(OutcomeUnknown(f"{self.api} to {self.peer}: no answer in time"))


@dataclass(eq=False, slots=True)
class _Listener:
    """A handler at an address, and the connections that wait for its answers."""

    address: Address
    handler: Handler
    incarnation: Incarnation
    context: Context
    request_context: RequestContext
    sessions: OpenSession | None
    open: bool = True
    waiting: dict[int, _Call] = field(default_factory=dict)
    """Delivered requests without an answer, by the order of their arrival."""
    contexts: dict[str, RequestContext] = field(default_factory=dict)
    """Of the requests of each sender."""
    drained: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is closed and nobody waits any more."""

    def listens(self) -> bool:
        return self.open and self.incarnation.alive

    def context_of(self, sender: str) -> RequestContext:
        """The context of a request. The sender at a listener with a name is ``User:`` and its machine."""
        if not self.request_context.listener:
            return self.request_context
        known = self.contexts.get(sender)
        if known is None:
            known = self.contexts[sender] = replace(self.request_context, remote=sender, principal=f"User:{sender}")
        return known

    def take(self, arrival: int) -> _Call | None:
        """The call that waits for this answer, once; None when its connection is gone."""
        call = self.waiting.pop(arrival, None)
        if not self.open and not self.waiting:
            self.drained.set()
        return call


class _Serving(Struct, eq=False):
    """A request that has arrived, and for which the handler of a listener is called."""

    listener: _Listener
    arrival: int
    call: _Call
    message: Message


def _untold(_kind: str, _node: str, /, **_facts: object) -> None:
    """For a network without a world around it."""


@dataclass(frozen=True, slots=True)
class _Held:
    message: Message
    sender: Incarnation | None
    deliver: Callable[[], None]
    broken: Callable[[], None]
    """Breaks its connection."""


class _Streams(dict[str, Random]):
    """The random streams of one link by purpose, each made when it is first needed."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def __missing__(self, purpose: str) -> Random:
        stream = self[purpose] = Random(f"{self._name}/{purpose}")
        return stream


class _Link:
    """One directed link: how it behaves, and its random streams."""

    __slots__ = ("delays", "free_at", "profile", "source", "streams", "target")

    def __init__(self, seed: object, source: str, target: str) -> None:
        self.source = source
        self.target = target
        self.profile: LinkProfile | None = None
        """Its own; None: that of all links."""
        self.free_at = 0.0
        """When the last message is through, where the profile has a limit of bytes."""
        name = f"{seed}/net/{source}->{target}"
        self.delays = Random(name).random
        """Draws how long messages take."""
        self.streams = _Streams(name)


class SimNetwork:
    """All links of one simulation. A node gets its own end of it from :meth:`of`."""

    def __init__(self, seed: object, loop: SimLoop) -> None:
        self.rules: list[Rule] = []
        """Asked in order about each message; the first verdict wins."""
        self.request_rules: list[Rule] = []
        """Those about messages of one API, which also decide about the requests inside a stream."""
        self.observers: list[Callable[[Message, Verdict], None]] = []
        """Called with each message when it is sent, and with what will become of it."""
        self.answered: list[Callable[[Message], None]] = []
        """Observers of each response that its caller receives: the first to arrive, before the deadline."""
        self.tell: Callable[..., None] = _untold
        """(kind, node, facts): called with what is done to links."""
        self.marks: Counter[str] = Counter()
        """What profiles did to messages: proof that they did."""
        self.doubled: list[Message] = []
        """The requests that arrived twice."""
        self.profile = LinkProfile()
        """For links without a profile of their own."""
        self.unpowered: set[str] = set()
        """Machines that are off: messages to them vanish."""
        self._seed = seed
        self._loop = loop
        self._links: dict[tuple[str, str], _Link] = {}
        self._listeners: dict[Address, _Listener] = {}
        self._opened: list[_Listener] = []
        """Those that listen, and those that close and still answer."""
        self._cuts: set[tuple[str, str]] = set()
        self._isolated: dict[str, frozenset[str]] = {}
        self._clogs: set[tuple[str, str]] = set()
        self._held: list[_Held] = []
        self._calls = 0
        self._arrivals = 0
        self._streams: dict[int, Stream] = {}
        """Open ones, by number."""

    def listens(self, address: Address) -> bool:
        """Return True if a live process listens there."""
        listener = self._listeners.get(address)
        return listener is not None and listener.listens()

    def of(self, incarnation: Incarnation) -> NodeNetwork:
        """The Network port of one incarnation."""
        return NodeNetwork(self, incarnation)

    # ------------------------------------------------------------------------------------- faults

    def rule(self, rule: Rule, *, of_requests: bool = False) -> Callable[[], None]:
        """Add a rule (see :func:`matching`); the result takes it away again. ``of_requests``: streams obey it, too."""
        places = [self.rules, self.request_rules] if of_requests else [self.rules]
        for rules in places:
            rules.append(rule)

        def take_away() -> None:
            for rules in places:
                if rule in rules:
                    rules.remove(rule)

        return take_away

    def cut(self, source: str, target: str) -> None:
        """Lose all from ``source`` to ``target``: one way only."""
        self.tell("link_cut", source, target=target)
        self._cuts.add((source, target))

    def cut_both(self, one: str, other: str) -> None:
        """Lose all between two nodes."""
        self.cut(one, other)
        self.cut(other, one)

    def split(self, left: list[str], right: list[str]) -> None:
        """Partition: lose all between the two sides. A node in neither list is a bridge."""
        for one in left:
            for other in right:
                self.cut_both(one, other)

    def isolate(self, node: str, *, still_talks_to: tuple[str, ...] = ()) -> None:
        """Lose all from and to ``node``, except what is named."""
        self.tell("node_isolated", node, still_talks_to=still_talks_to)
        self._isolated[node] = frozenset(still_talks_to)

    def heal(self, source: str | None = None, target: str | None = None) -> None:
        """Undo cuts: all of them, those from or to one node (one argument), or one directed link (two)."""
        if self._cuts or self._isolated:
            self.tell("links_healed", source or "", target=target or "")
        if source is None:
            self._cuts.clear()
            self._isolated.clear()
        elif target is None:
            self._cuts = {link for link in self._cuts if source not in link}
            self._isolated.pop(source, None)
        else:
            self._cuts.discard((source, target))

    def shape(self, source: str, target: str, profile: LinkProfile | None) -> None:
        """Give a directed link a profile of its own; None takes it back."""
        self._link(source, target).profile = profile

    def clog(self, source: str, target: str) -> None:
        """Hold back all from ``source`` to ``target`` until :meth:`release`."""
        self.tell("link_clogged", source, target=target)
        self._clogs.add((source, target))

    def release(self, source: str | None = None, target: str | None = None) -> None:
        """Unclog one directed link, or all; what was held goes out now, unless its sender died."""
        if self._clogs or self._held:
            self.tell("links_released", source or "", target=target or "", held=len(self._held))
        chosen = [] if source is None or target is None else [(source, target)]
        self._clogs = self._clogs.difference(chosen) if chosen else set()
        held, self._held = self._held, []
        for item in held:
            link = (item.message.source, item.message.target)
            if chosen and link not in chosen:
                self._held.append(item)
            elif item.sender is None or item.sender.alive:
                item.deliver()

    def decide(self, message: Message, verdict: Deliver | Reset) -> None:
        """End the wait of one held message, also if its sender has died: it arrives, or its connection breaks."""
        found = [item for item in self._held if item.message is message]
        invariant(bool(found), "only a held message can be decided about", api=message.api, call=message.call)
        for item in found:
            self._held.remove(item)
            if isinstance(verdict, Deliver):
                item.deliver()
            else:
                item.broken()

    def is_cut(self, source: str, target: str) -> bool:
        """Return True if everything from ``source`` to ``target`` is lost at present."""
        if source == target or not (self._cuts or self._isolated):
            return False
        return (
            (source, target) in self._cuts
            or (source in self._isolated and target not in self._isolated[source])
            or (target in self._isolated and source not in self._isolated[target])
        )

    # ------------------------------------------------------------------------------------- messages

    async def call(self, caller: Incarnation | None, peer: Address, api: str, body: Buffers, deadline: float) -> bytes:
        """One call from ``caller``'s node to ``peer``."""
        self._calls += 1
        source = caller.node if caller is not None else ""
        call = _Call(self._calls, api, caller, source, peer, self._loop.create_future())
        self._request(call, b"".join(body))
        timer = self._loop.call_at(deadline, call.expire)
        try:
            return await call.answer
        finally:
            timer.cancel()
            # An exception's traceback holds this frame: without this it would keep itself alive.
            del call

    def _request(self, call: _Call, body: bytes) -> None:
        message = Message(call.number, "request", call.source, call.peer.host, call.api, body)
        # A request travels on a connection to the process that listens now; a successor does not inherit it.
        listener = self._listeners.get(call.peer)
        bound = listener if listener is not None and listener.listens() else None
        arrive = partial(self._arrive, call, message, bound)
        link = self._link(call.source, call.peer.host)
        call.copies = self._send(link, message, call.caller, arrive, call.was_reset)
        duplicate = (link.profile or self.profile).duplicate
        if duplicate and link.streams["duplicate"].random() < duplicate:
            self.marks["message_duplicated"] += 1
            call.copies += self._send(link, message, call.caller, arrive, call.was_reset)

    def _arrive(self, call: _Call, message: Message, bound: _Listener | None) -> None:
        if message.target in self.unpowered:
            return
        listener = self._listeners.get(call.peer)
        if listener is None or not listener.listens():
            self._signal(call, lambda: call.fail_to_send("connection refused", ConnectionRefused))
            return
        if bound is not None and bound is not listener:
            self._signal(call, lambda: call.fail_to_send("connection reset: its server is gone"))
            return
        call.arrivals += 1
        if call.arrivals == 2:
            self.doubled.append(message)
        self._arrivals += 1
        listener.waiting[self._arrivals] = call
        serving = _Serving(listener, self._arrivals, call, message)
        # Of the task that answers, if one is needed: traces name the request by it.
        birth = self._loop.next_birth()

        def handle() -> None:
            """Let the handler answer. Most handlers answer at once or park the request: they need no task."""
            context = listener.context_of(message.source)
            answering = self._settle(serving, partial(listener.handler, message.api, message.body, context))
            if answering is not None:
                self._loop.create_task_at_once(answering, birth)

        handle.__qualname__ = f"{birth} handle {message.api}"
        self._loop.call_soon(handle, context=listener.context.copy())

    def _event_came(self, serving: _Serving, result: Result) -> None:
        """The event has come for which the request was parked."""
        answering = self._settle(serving, result)
        if answering is not None:
            self._loop.create_task(answering)

    def _settle(self, serving: _Serving, result: Result) -> Coroutine[Any, Any, None] | None:
        """Send the response that ``result`` returns, at once or when its event comes. Return what a task must do."""
        try:
            answer = result()
        except Exception as error:  # noqa: BLE001 - a handler never raises: this fails the run
            self._handler_failed(serving, error)
            return None
        if isinstance(answer, (list, tuple)):
            self._answer(serving, answer)
            return None
        if isinstance(answer, Parked):
            answer.when_ready(partial(self._event_came, serving))
            return None
        answering: Any = self._await(serving, answer)
        answering.__qualname__ = f"handle {serving.message.api}"
        return answering  # type: ignore[no-any-return]

    async def _await(self, serving: _Serving, answering: Awaitable[Buffers]) -> None:
        try:
            answer = await answering
        except asyncio.CancelledError:
            self._break(serving.listener, serving.arrival, "the handler was cancelled")
            raise
        except Exception as error:  # noqa: BLE001 - as above
            self._handler_failed(serving, error)
            return
        self._answer(serving, answer)

    def _handler_failed(self, serving: _Serving, error: Exception) -> None:
        message = f"handler of {serving.message.api} raised"
        self._loop.call_exception_handler({"message": message, "exception": error})
        self._break(serving.listener, serving.arrival, "the handler failed")

    def _answer(self, serving: _Serving, answer: Buffers) -> None:
        listener, call, message = serving.listener, serving.call, serving.message
        body = b"".join(answer)
        if listener.take(serving.arrival) is None:
            return  # the connection was closed meanwhile
        back = Message(message.call, "answer", message.target, message.source, message.api, body)
        self._send(
            self._link(back.source, back.target),
            back,
            listener.incarnation,
            partial(self._answered, call, back),
            lambda _: call.fail(OutcomeUnknown(f"{call.peer}: connection reset before the answer")),
        )

    def _answered(self, call: _Call, answer: Message) -> None:
        if not call.answer.done():
            call.answer.set_result(answer.body)
            for observer in self.answered:
                observer(answer)

    def _break(self, listener: _Listener, arrival: int, why: str) -> None:
        call = listener.take(arrival)
        if call is not None:
            error = OutcomeUnknown(f"{call.peer}: {why} before the answer to {call.api}")
            self._signal(call, lambda: call.fail(error))

    def _signal(self, call: _Call, then: Callable[[], None]) -> None:
        """What TCP itself says back to the caller."""
        self.signal(call.peer.host, call.source, then)

    def _send(
        self,
        link: _Link,
        message: Message,
        sender: Incarnation | None,
        arrive: Callable[[], None],
        broken: Callable[[Reset], None],
    ) -> int:
        """Send a message, and return how many copies of it were sent."""
        verdict = self._verdict(link, message)
        for observer in self.observers:
            observer(message, verdict)
        if verdict is DELIVERED:
            self._transmit(link, len(message.body), None, arrive)
        elif isinstance(verdict, Deliver):
            self._transmit(link, len(message.body), verdict.after_s, arrive)
            if verdict.again_after_s is not None and message.kind == "request":
                self.marks["message_duplicated"] += 1
                self._transmit(link, len(message.body), verdict.again_after_s, arrive)
                return 2
        elif isinstance(verdict, Reset):
            self._transmit(link, 0, None, partial(broken, verdict))
        elif isinstance(verdict, Hold):
            deliver = partial(self._transmit, link, len(message.body), None, arrive)
            self._held.append(_Held(message, sender, deliver, partial(broken, BROKEN)))
        return 1

    def _transmit(self, link: _Link, size: int, after_s: float | None, then: Callable[[], None]) -> None:
        delay = after_s if after_s is not None else self._delay(link, size)

        def arrive() -> None:
            # Nothing is cut mostly: one call less for each message.
            if not (self._cuts or self._isolated) or not self.is_cut(link.source, link.target):
                then()

        self._loop.happen_at(self._loop.now + delay, arrive)

    # ------------------------------------------------------------------------------------- streams

    def connect(self, client: Incarnation, address: Address, peer: Peer) -> Stream:
        """A stream to the process that listens at ``address`` now. A refused client sees a lost connection."""
        self._calls += 1
        stream = self._streams[self._calls] = Stream(
            self,
            self._loop,
            self._calls,
            client,
            self._listeners.get(address),
            address,
            peer=peer,
            tears=self._link(client.node, address.host).streams["tears"],
            on_end=self._forget,
        )
        return stream

    def _forget(self, ended: Stream) -> None:
        self._streams.pop(ended.number, None)

    def carry(
        self,
        message: Message,
        sender: Incarnation,
        *,
        arrived: Callable[[], None],
        lost: Callable[[], None],
        broken: Callable[[], None],
    ) -> None:
        """Send one segment of a stream: one of the three is called, unless a clog holds it until its sender dies."""
        link = self._link(message.source, message.target)
        verdict = self._verdict(link, message)
        for observer in self.observers:
            observer(message, verdict)

        def arrive() -> None:
            is_lost = self.is_cut(link.source, link.target) or link.target in self.unpowered
            (lost if is_lost else arrived)()

        def transmit(after_s: float | None = None) -> None:
            delay = self._delay(link, len(message.body)) if after_s is None else after_s
            self._loop.happen_at(self._loop.now + delay, arrive)

        if isinstance(verdict, Deliver):
            transmit(verdict.after_s)
        elif isinstance(verdict, Drop):
            lost()
        elif isinstance(verdict, Reset):
            broken()
        else:
            self._held.append(_Held(message, sender, transmit, broken))

    def signal(self, source: str, target: str, then: Callable[[], None]) -> None:
        """What the operating system at ``source`` says to the other end of a connection; a cut link loses it."""

        def arrive() -> None:
            if not self.is_cut(source, target):
                then()

        self._loop.happen_at(self._loop.now + self._delay(self._link(source, target)), arrive)

    def _verdict(self, link: _Link, message: Message) -> Verdict:
        for rule in self.rules:
            verdict = rule(message)
            if verdict is not None:
                return verdict
        if (self._cuts or self._isolated) and self.is_cut(link.source, link.target):
            return LOST
        if self._clogs and (link.source, link.target) in self._clogs:
            return HELD
        profile = link.profile or self.profile
        if profile.loss and link.streams["loss"].random() < profile.loss:
            self.marks["message_lost"] += 1
            return LOST
        if profile.reset and link.streams["reset"].random() < profile.reset:
            self.marks["connection_reset"] += 1
            return BROKEN
        return DELIVERED

    def _delay(self, link: _Link, size: int | None = None) -> float:
        """How long a message of ``size`` bytes takes; None: it is a signal, which does not queue."""
        profile = link.profile or self.profile
        mean_s = profile.delay_mean_s
        delay = -log(1.0 - link.delays()) / (1 / mean_s) if mean_s > 0 else 0.0  # as Random.expovariate, spelled out
        if size is None or not profile.bytes_per_s:
            return delay
        return delay + self._queueing(link, size, profile.bytes_per_s)

    def _queueing(self, link: _Link, size: int, rate: float) -> float:
        """How long a message takes to get onto a link that carries so many bytes a second and no more."""
        now = self._loop.now
        if link.free_at > now:
            self.marks["message_queued"] += 1
        link.free_at = max(now, link.free_at) + size / rate
        return link.free_at - now

    def _link(self, source: str, target: str) -> _Link:
        link = self._links.get((source, target))
        if link is None:
            link = self._links[source, target] = _Link(self._seed, source, target)
        return link

    # ------------------------------------------------------------------------------------- listening

    def listen(
        self,
        incarnation: Incarnation,
        port: int,
        handler: Handler,
        *,
        name: str = "",
        sessions: OpenSession | None = None,
    ) -> SimServer:
        """Let ``incarnation`` answer at ``port``; 0 takes the next free one from FIRST_PORT up."""
        invariant(
            NODE.get() is incarnation,
            "serve() runs inside its node (SimWorld.spawn), or its tasks would survive the node",
            node=incarnation,
        )
        address = Address(incarnation.node, port or FIRST_PORT)
        while (taken := self._listeners.get(address)) is not None and taken.listens():
            if port:
                raise OSError(errno.EADDRINUSE, f"{address} is in use")
            address = address._replace(port=address.port + 1)
        listener = _Listener(
            address, handler, incarnation, self._loop.context_of(incarnation), RequestContext("rpc", name), sessions
        )
        self._listeners[address] = listener
        self._opened.append(listener)
        return SimServer(self, listener)

    async def close(self, listener: _Listener) -> None:
        """Stop listening; wait a little for running handlers; then reset the connections that still wait."""
        self._shut(listener)
        streams = self._streams.values()
        served = [each for each in streams if each.server is not None and each.address == listener.address]
        for stream in served:
            if stream.server is not None:
                stream.server.finish()
        if listener.waiting:
            try:
                async with asyncio.timeout(CLOSE_GRACE_S):
                    await listener.drained.wait()
            except TimeoutError:
                for arrival in list(listener.waiting):
                    self._break(listener, arrival, "the server closed")
        if served:
            await self._drain(served)
        self._opened.remove(listener)

    def _shut(self, listener: _Listener) -> None:
        listener.open = False
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    @staticmethod
    async def _drain(streams: list[Stream]) -> None:
        """Let sessions send the answers that they owe, for a while; then reset what is still busy."""
        try:
            async with asyncio.timeout(CLOSE_GRACE_S):
                while any(each.server is not None and each.server.is_busy for each in streams):
                    await asyncio.sleep(CLOSE_LOOK_S)
        except TimeoutError:
            for stream in streams:
                stream.reset()

    def node_died(self, incarnation: Incarnation, *, powered: bool) -> None:
        """The operating system closes a dead process's connections; a machine without power says nothing."""
        for stream in list(self._streams.values()):
            if stream.client is incarnation:
                stream.client_died(powered=powered)
            elif stream.server is not None and stream.server.incarnation is incarnation:
                stream.server_died(powered=powered)
        for listener in [opened for opened in self._opened if opened.incarnation is incarnation]:
            self._opened.remove(listener)
            self._shut(listener)
            for arrival in list(listener.waiting):
                if powered:
                    self._break(listener, arrival, "the process died")
                else:
                    listener.take(arrival)


class SimServer:
    """A listening handler in the simulation."""

    def __init__(self, network: SimNetwork, listener: _Listener) -> None:
        self._network = network
        self._listener = listener

    @property
    def address(self) -> Address:
        """Where it listens; the host is the node's name."""
        return self._listener.address

    async def close(self) -> None:
        """Stop accepting, give running handlers a moment, reset the rest."""
        await self._network.close(self._listener)


class NodeNetwork:
    """One incarnation's end of the network: the Network port."""

    def __init__(self, network: SimNetwork, incarnation: Incarnation) -> None:
        self._network = network
        self._incarnation = incarnation

    def call(self, peer: Address, api: str, body: Buffers, *, deadline: float) -> Coroutine[Any, Any, bytes]:
        """Send and await the answer; Unreachable or OutcomeUnknown as the top of this module says."""
        if not self._incarnation.alive:
            raise OutcomeUnknown(f"{self._incarnation} is dead")
        return self._network.call(self._incarnation, peer, api, body, deadline)

    async def serve(
        self, address: Address, handler: Handler, *, listener: str = "", sessions: OpenSession | None = None
    ) -> SimServer:
        """Listen at the node's name, whatever host ``address`` names."""
        return self._network.listen(self._incarnation, address.port, handler, name=listener, sessions=sessions)

    def connect(self, address: Address, peer: Peer) -> Stream:
        """A stream of bytes, for the Kafka clients of plans; everything else goes over :meth:`call`."""
        return self._network.connect(self._incarnation, address, peer)

    async def close(self) -> None:
        """Nothing to give back."""
