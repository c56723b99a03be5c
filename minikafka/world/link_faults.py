"""Where faults strike: one node's end of every link, between its callers and the wire.

A message meets its faults once: at its sender if the sender is a broker of this process (a caller's end), else where
it arrives (a server's end: clients, brokers of other processes). A broker says who it is in the header
``Mk-Node-Id``; every other sender is a client.

Rules for this file: a message under way goes on although its sender gave up (``asyncio.shield``), but nothing that is
held back outlives its sender's process: :meth:`LinkEnd.close`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, Self, TypeVar

from minikafka.errors import OutcomeUnknown, ProtocolError, Unreachable, WorldError
from minikafka.faults import CLIENT, METADATA_FETCH, MessageKind
from minikafka.ports import Buffers, Events
from minikafka.types import METADATA_TOPIC, Address
from minikafka.wire.apis import BY_NAME
from minikafka.wire.codec import encode_response, error_response
from minikafka.world.faults import Contents, Fault, Faults, Way, body_in, places_of
from minikafka.world.rpc_connection import NotAnswered

Answer = bytes | bytearray
Served = TypeVar("Served")

_METADATA_TOPIC = METADATA_TOPIC.encode()


class Send(Protocol):
    """The network's own call, without faults."""

    async def __call__(self, peer: Address, api: str, body: Buffers, *, deadline: float) -> Answer: ...


class _Stopped(Exception):
    """A message that will not arrive, because of this fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault

    @property
    def breaks(self) -> bool:
        """Return True if the connection breaks, so that the caller learns it at once."""
        return self.fault.spec.kind == "cut"


def _api_of(api: str, body: Buffers) -> str:
    """The API as faults name it."""
    metadata = api == "Fetch" and any(_METADATA_TOPIC in bytes(each) for each in body)
    return METADATA_FETCH if metadata else api


def _refusal(api: str, error: ProtocolError) -> bytes:
    """The body of a response that carries ``error``."""
    return b"".join(encode_response(error_response(BY_NAME[api], error)))


class _Journey:
    """One message on its way. ``again``: how often it shall be sent once more."""

    def __init__(self, overtaken: list[asyncio.Event]) -> None:
        self.again = 0
        self.error: ProtocolError | None = None
        """The request is answered with it in place of the handler's response; an answer is replaced by it."""
        self._overtaken = overtaken

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """It has arrived: those that it has overtaken may go on."""
        for waiting in self._overtaken:
            waiting.set()


class LinkEnd:
    """The end of ``node``. ``name_of`` tells which node an address is: its id, or ``client`` for nobody known."""

    def __init__(self, faults: Faults, node: str, *, name_of: Callable[[Address], str], events: Events) -> None:
        self.node = node
        self.faults = faults
        self._name_of = name_of
        self._events = events
        self._under_way: set[asyncio.Task[Answer | None]] = set()
        faults.join(node, events)

    def has_faults(self) -> bool:
        """Return True if there is any fault."""
        return bool(self.faults.active)

    # ---- a caller's end ----------------------------------------------------------------------------------------------

    async def call(self, peer: Address, api: str, body: Buffers, *, deadline: float, send: Send) -> Answer:
        """As :meth:`Network.call`, with what the faults make of it."""
        exchange = self._exchange(peer, api, body, deadline - asyncio.get_running_loop().time(), send)
        task = asyncio.create_task(exchange, name=f"faulty-{api}-to-{peer}")
        self._under_way.add(task)
        task.add_done_callback(self._arrived)
        try:
            return await _in_time(asyncio.shield(task), peer, api, deadline)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not task.cancelled() or (caller is not None and caller.cancelling()):
                raise
            raise OutcomeUnknown(f"{api} to {peer}: this end of the network is closed") from None

    async def _exchange(self, peer: Address, api: str, body: Buffers, budget_s: float, send: Send) -> Answer | None:
        """The answer; None when it or the request vanished."""
        target, called = self._name_of(peer), _api_of(api, body)

        async def sent() -> Answer:
            return await send(peer, api, body, deadline=asyncio.get_running_loop().time() + budget_s)

        try:
            journey = await self._travel(self.node, target, called, "request", body)
        except _Stopped as stopped:
            if stopped.breaks:
                raise Unreachable(f"{api} to {peer}: {stopped}") from None
            return None
        with journey:
            answer = _refusal(api, journey.error) if journey.error is not None else await sent()
        for _ in range(journey.again):
            try:
                await sent()
            except WorldError as error:
                self._events("duplicate_failed", api=api, target=target, why=str(error))
        return await self._arrives(peer, target, called, api, answer)

    async def _arrives(self, peer: Address, target: str, called: str, api: str, answer: Answer) -> Answer | None:
        """The answer as it arrives; None when it vanished. OutcomeUnknown when the connection breaks."""
        try:
            with await self._travel(target, self.node, called, "answer", (answer,)) as journey:
                return _refusal(api, journey.error) if journey.error is not None else answer
        except _Stopped as stopped:
            if stopped.breaks:
                raise OutcomeUnknown(f"{api} to {peer}: {stopped}") from None
            return None

    async def arriving(self, peer: Address, api: str, body: Buffers, answer: Answer, *, deadline: float) -> Answer:
        """The answer of a call that was sent before there was any fault, as it arrives; or OutcomeUnknown."""
        arriving = self._arrives(peer, self._name_of(peer), _api_of(api, body), api, answer)
        return await _in_time(arriving, peer, api, deadline)

    def _arrived(self, task: asyncio.Task[Answer | None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            # Its caller may have given up: then nobody else asks.
            task.exception()

    # ---- a server's end ----------------------------------------------------------------------------------------------

    async def serve(
        self,
        source: str,
        api: str,
        contents: Contents,
        handle: Callable[[], Awaitable[Served]],
        refuse: Callable[[ProtocolError], Served],
        client: Mapping[str, str],
    ) -> Served:
        """Handle a request that came in from ``source`` (empty: a client); NotAnswered when no answer shall go out.

        ``refuse`` makes the response that carries an error. ``client`` has facts about the client's connection,
        such as its software, for the events of faults that strike it.
        """
        if source in self.faults.nodes:
            return await handle()
        is_client = not source or source.startswith(CLIENT)
        about = {name: value for name, value in client.items() if value and is_client}
        source, called, journey = source or CLIENT, "", _Journey([])
        try:
            if self.faults.active:
                called = _api_of(api, body_in(contents))
                journey = await self._travel(source, self.node, called, "request", contents, **about)
            with journey:
                answer = refuse(journey.error) if journey.error is not None else await handle()
            for _ in range(journey.again):
                await handle()
            if self.faults.active:
                called = called or _api_of(api, body_in(contents))
                with await self._travel(self.node, source, called, "answer", answer, **about) as back:
                    return refuse(back.error) if back.error is not None else answer
        except _Stopped as stopped:
            raise NotAnswered(str(stopped), hang_up=stopped.breaks) from None
        return answer

    # ---- on the way --------------------------------------------------------------------------------------------------

    async def _travel(
        self, source: str, target: str, api: str, message: MessageKind, contents: Contents, **about: str
    ) -> _Journey:
        """Meet every fault of this message. Raises _Stopped. ``about`` are further facts for the events."""
        way = source, target, message
        journey = _Journey(self.faults.overtaken(way, api))
        for fault in self.faults.on(source, target, api, message):
            spec = fault.spec
            hit = {"what": spec.kind, "api": api, "message": message, "source": source, "target": target}
            self._events("fault_hit", fault=fault.number, **hit, **about)
            if spec.kind in {"cut", "drop"}:
                raise _Stopped(fault)
            if spec.kind == "error":
                # No later fault meets a request that this one has answered, or an answer that it has replaced.
                journey.error = fault.error(message)
                break
            if spec.kind == "duplicate":
                journey.again += 1
            elif spec.kind == "hold":
                await _held(fault, way, api, contents)
            else:
                await _held_back(fault, way)
        return journey

    async def close(self) -> None:
        """What is still held back here dies with its sender."""
        for task in list(self._under_way):
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)


async def _in_time(arriving: Awaitable[Answer | None], peer: Address, api: str, deadline: float) -> Answer:
    """The answer; OutcomeUnknown at ``deadline``, also for one that vanished (None)."""
    try:
        async with asyncio.timeout_at(deadline):
            answer = await arriving
            if answer is None:
                await asyncio.Event().wait()
    except TimeoutError:
        answer = None
    if answer is None:
        raise OutcomeUnknown(f"{api} to {peer}: no answer in time")
    return answer


async def _held(fault: Fault, way: Way, api: str, contents: Contents) -> None:
    """Return when the fault is healed or releases the message. Raises _Stopped if it is lost then."""
    if fault.healed.is_set():
        return
    held = fault.keep(way, api, asyncio.get_running_loop().time(), places_of(api, way[2], contents))
    try:
        await held.released.wait()
    finally:
        if held in fault.held:
            fault.held.remove(held)
    if held.is_lost:
        raise _Stopped(fault)


async def _held_back(fault: Fault, way: Way) -> None:
    """Return when the fault lets the message go."""
    until = fault.healed
    if fault.spec.kind == "reorder":
        until = fault.late[way] = asyncio.Event()
    try:
        async with asyncio.timeout(fault.wait_s()):
            await until.wait()
    except TimeoutError:
        return
    finally:
        # A message that is reordered is the only one of its way in ``late``: Fault.concerns passes over others then.
        fault.late.pop(way, None)
