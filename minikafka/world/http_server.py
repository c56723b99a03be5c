"""The server side of ``POST /rpc/{Api}``: a raw body in, buffers out, and other routes beside it.

Plain requests of brokers and clients are answered by ``rpc_connection.py``. What that passes on, and requests to all
other routes, come in on the connections of ``http_connections.py``; what each of them gets is decided here.

Rules for this file:

1. A body is refused before it is read if it would not fit now, and its bytes are counted as they arrive: beyond
   ``queued.max.request.bytes`` the answer is 503 with Retry-After. An announcement alone holds nothing. Each refusal
   closes the Kafka connections that hold room for a frame and are too slow to send it. One user or address holds
   half of it at most (``request_room.py``).
   Small bodies always pass and are not counted: a follower's fetch frees the memory that parked produce requests hold.
2. An answer's buffers are handed to the transport as they are, never joined.
3. A handler is never cancelled by its client or by :meth:`HttpServer.close`.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict, TypeVar

from minikafka import errors as kafka
from minikafka.broker.large_turns import LargeTurns
from minikafka.config import KIB, MIB
from minikafka.parked import Parked, Result
from minikafka.ports import Buffers, FrameSession, Handler, HttpLogin, OpenSession, RequestContext
from minikafka.security.principals import NotAuthenticated
from minikafka.tasks import Flag
from minikafka.types import Address
from minikafka.web.gate import Gate
from minikafka.web.problems import PROBLEM_TYPE, problem_of
from minikafka.wire.apis import BY_NAME, MSGPACK, RPC_PATH
from minikafka.wire.codec import encode_json, encode_response, error_response
from minikafka.wire.garbage import without_collection
from minikafka.world.connections import (
    KAFKA,
    RPC,
    ConnectionQuota,
    ConnectionRecord,
    agent_in,
    close_once,
    first_request_timeout_s,
    identity_of,
)
from minikafka.world.faults import client_source
from minikafka.world.request_room import STRANGERS, RequestRoom
from minikafka.world.rpc_connection import Answer, Head, NotAnswered, RpcConnection
from minikafka.world.tls import ServerTls, reads_in_turns
from minikafka.world.tls_listener import BACKLOG, TlsListener, bound
from minikafka.world.unread_responses import UnreadResponses

if TYPE_CHECKING:
    from aiohttp.web_protocol import RequestHandler

    from minikafka.world.http_connections import HttpConnection, LoadDoors
    from minikafka.world.http_requests import GeneralServer
    from minikafka.world.kafka_connection import KafkaConnection

Translate: TypeAlias = Callable[[Handler], Handler]
"""Makes a handler of JSON bodies from the handler of msgpack bodies."""


JSON = "application/json"

NODE_HEADER = "Mk-Node-Id"
"""The header that names the calling broker, where faults may be set (world/faults.py)."""


Served = TypeVar("Served")


class Interpose(Protocol):
    """Stands between requests and their handler, which is bound to one request; ``source`` is NODE_HEADER's value, or
    names a client, ``contents`` is the body or the decoded request, ``refuse`` makes the response that carries an
    error, and ``client`` has protocol and software. May raise NotAnswered.
    """

    async def __call__(
        self,
        source: str,
        api: str,
        contents: Buffers | object,
        handle: Callable[[], Awaitable[Served]],
        refuse: Callable[[kafka.ProtocolError], Served],
        client: Mapping[str, str],
    ) -> Served: ...


_NODE = re.compile(rb"(?:^|\n)%b:([^\r]*)\r" % NODE_HEADER.encode(), re.IGNORECASE)


class LateCode:
    """Modules that a broker loads together when a connection first needs them. A process has one object for them.

    Imports take a tenth of a second and more, so they run on a thread: the connection waits, and the event loop serves
    the others.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._is_loaded = False

    def is_loaded(self, then: Callable[[], None]) -> bool:
        """Return True if the modules are loaded. If not, load them, and call ``then`` in the running loop."""
        if not self._is_loaded:
            loading = asyncio.get_running_loop().run_in_executor(None, self.load)
            loading.add_done_callback(partial(_go_on, then))
        return self._is_loaded

    def load(self) -> None:
        """Load them now, in this thread."""
        with without_collection():
            for module in self._modules:
                import_module(module)
        self._is_loaded = True


def _go_on(then: Callable[[], None], loading: asyncio.Future[None]) -> None:
    if not loading.cancelled():
        loading.result()  # a failed import is a bug, which the loop's exception handler gets
        then()


GENERAL_CODE = LateCode("minikafka.world.http_requests")
"""The general server, on aiohttp: a sixth of a broker's memory, which it does without while only brokers and clients of
this project connect."""

FRAME_CODE = LateCode("minikafka.world.kafka_connection", "minikafka.broker.kafka_session")
"""Kafka's protocol."""

SEE_LOG = "the broker's log has the story"

LOOPBACK = "127.0.0.1"

# A fetch of a thousand partitions fits; see rule 1.
ALWAYS_ADMITTED_SIZE = 64 * KIB

LARGE_BODY = 8 * KIB
"""A larger body of a plain request of another API than Produce is handled in a turn of its own (``large_turns.py``)."""

MANY = 16
"""Open connections of a listener, of plain requests or of Kafka's protocol, beyond which responses that are known at
once leave a turn of the loop later, with those to the requests that this turn reads: a broker and its clients then wake
each other less often (docs/performance.md, "Responses of many connections"). Beside fewer connections they would seldom
meet others, and would only be late.
"""

HURRY_S = 1.0
"""While frames wait for room, senders that have room and do not use it are closed this often."""

IDLE_S = 600.0
"""Kafka's connections.max.idle.ms of brokers."""

# A body that is not complete after this long comes from a client that is gone or hostile.
BODY_TIMEOUT_S = 30.0


_DAYS = (b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat", b"Sun")
_MONTHS = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")

# Clients call a broker by few names.
HOSTS_KEPT = 64


# How long a closing server lets running handlers answer before it closes their connections.
CLOSE_GRACE_S = 1.0


def http_date(second: int) -> bytes:
    """A time as HTTP has it (RFC 9110 5.6.7): always in English. email.utils does the same, and loads all of email."""
    at = time.gmtime(second)
    return b"%b, %02d %b %d %02d:%02d:%02d GMT" % (
        _DAYS[at.tm_wday],
        at.tm_mday,
        _MONTHS[at.tm_mon - 1],
        at.tm_year,
        at.tm_hour,
        at.tm_min,
        at.tm_sec,
    )


async def answered(handler: Handler, api: str, body: bytes | bytearray, context: RequestContext) -> Buffers:
    """What the handler answers, also if it need not wait for it."""
    answer = handler(api, body, context)
    return await answer if isinstance(answer, Awaitable) else answer


def refused(content_type: str, api: str, error: kafka.ProtocolError) -> Buffers:
    """The body of a response that carries ``error``."""
    response = error_response(BY_NAME[api], error)
    return [encode_json(response) + b"\n"] if content_type == JSON else encode_response(response)


def _counted(size: int) -> int:
    """How much of a body counts against ``queued.max.request.bytes`` (rule 1)."""
    return size if size > ALWAYS_ADMITTED_SIZE else 0


class ServerOptions(TypedDict, total=False):
    """Parameters of a server that all servers of a process have in common."""

    load_doors: LoadDoors | None
    """Returns what mounts other routes on a server, at their first request."""
    translate: Translate | None
    """Lets ``/rpc`` take JSON."""
    gate: Gate | None
    """Says who may ask; without one, every client that uses an address or a name of loopback."""
    request_max_bytes: int
    queued_max_bytes: int
    idle_timeout_s: float


class HttpServer:
    """One listening port. ``handler`` gets the raw bodies of ``/rpc``; ``load_doors`` has the rest."""

    def __init__(
        self,
        handler: Handler,
        *,
        listener: str = "",
        sessions: OpenSession | None = None,
        load_doors: LoadDoors | None = None,
        translate: Translate | None = None,
        interpose: Interpose | None = None,
        gate: Gate | None = None,
        quota: ConnectionQuota | None = None,
        tls: ServerTls | None = None,
        needs_login: bool = False,
        login: HttpLogin | None = None,
        request_max_bytes: int = 100 * MIB,
        queued_max_bytes: int = 64 * MIB,
        idle_timeout_s: float = IDLE_S,
    ) -> None:
        self.handler = handler
        self._turns = LargeTurns()
        self.listener_name = listener
        """Empty: the brokers' own listener."""
        self._sessions = sessions
        self.interpose = interpose
        self.gate = gate or Gate()
        self.address: Address
        """Where it listens, once it does; port 0 is resolved."""
        self._tls = tls
        """Without it the port is in plain text."""
        self.needs_login = needs_login
        """Each HTTP request needs credentials."""
        self.login = login
        if tls is not None:
            self.gate = replace(self.gate, scheme="https")
        self.quota = quota if quota is not None else ConnectionQuota()
        self.quota.listeners.add(listener)
        self._hosts: set[bytes] = set()
        """Values of ``Host`` that the gate knows."""
        self.json_handler = translate(handler) if translate is not None else None
        self.request_max_bytes = request_max_bytes
        """Of a body or a frame."""
        self.room = RequestRoom(queued_max_bytes)
        """What large requests hold, and connections whose large frame waits."""
        self.unread = UnreadResponses(queued_max_bytes, idle_timeout_s)
        self._to_flush: list[KafkaConnection | RpcConnection] = []
        """Connections with answers that are not written yet."""
        self._wakes = False
        self._hurries = False
        """While frames wait for room, the server looks every HURRY_S at who keeps it."""
        self.idle_timeout_s = idle_timeout_s
        """Between two requests of a connection."""
        self._plain: dict[RpcConnection, asyncio.Transport] = {}
        """Connections that have carried plain requests only."""
        self._frames: dict[KafkaConnection, asyncio.Transport] = {}
        """Connections that speak Kafka's protocol."""
        self._busy: set[Any] = set()
        self._handling: set[asyncio.Task[Any] | Parked] = set()
        self._all_idle = Flag()
        self._all_closed = Flag()
        self._closing = False
        self._date = (0, b"")
        self._listener: asyncio.Server | TlsListener | None = None
        self._load_doors = load_doors
        self._general: GeneralServer | None = None
        """Once there has been a connection that is more than plain requests."""

    async def listen(self, address: Address) -> None:
        """Bind; OSError when the port is in use."""
        self.gate = self.gate.at(address.host)
        loop = asyncio.get_running_loop()
        if address.host == LOOPBACK:
            # No name to look up, which the loop would do on a thread.
            sockets = [socket.create_server((address.host, address.port), backlog=BACKLOG)]
        elif self._tls is not None:
            sockets = await bound(address)
        else:
            sockets = []
        if self._tls is not None:
            self._listener = TlsListener(sockets, self._tls, self.quota, self.listener_name, self._connection)
        elif sockets:
            self._listener = await loop.create_server(self._connection, sock=sockets[0], backlog=BACKLOG)
        else:
            self._listener = await loop.create_server(self._connection, address.host, address.port, backlog=BACKLOG)
        name = self._listener.sockets[0].getsockname()
        self.address = Address(address.host, name[1])

    @property
    def queued_bytes(self) -> int:
        """Bytes of request bodies held now."""
        return self.room.held

    @property
    def connection_count(self) -> int:
        """Connections open now."""
        return len(self._others) + len(self._plain) + len(self._frames)

    @property
    def _others(self) -> list[HttpConnection]:
        """Connections that carry more than plain requests."""
        return [] if self._general is None else self._general.connections.open

    @property
    def connections(self) -> list[RpcConnection | KafkaConnection | HttpConnection]:
        """Connections open now."""
        return [*self._plain, *self._frames, *self._others]

    async def close(self) -> None:
        """Stop accepting, close idle connections now, and busy ones after their answer or CLOSE_GRACE_S."""
        now = asyncio.get_running_loop().time
        self._stop_listening()
        if isinstance(self._listener, TlsListener):
            await self._listener.wait_closed()
        if self._general is not None:
            await self._general.shutdown()  # streams end themselves, with a last word
        await asyncio.sleep(0)  # a connection that is being accepted now is closed at once
        for connection in self._others:
            if connection in self._busy:
                connection.close()  # after the answer that is under way
            else:
                connection.force_close()
        for plain in list(self._plain):
            plain.close()
        for speaking in list(self._frames):
            self._busy.add(speaking)
            speaking.finish()
            if not speaking.is_busy:
                self._busy.discard(speaking)
        if self._busy:
            self._all_idle.clear()
            if not await self._all_idle.wait(now() + CLOSE_GRACE_S):
                for connection in self._others:
                    connection.force_close()
                for transport in [*self._plain.values(), *self._frames.values()]:
                    close_once(transport)
        if self.connection_count:
            self._all_closed.clear()
            if not await self._all_closed.wait(now() + CLOSE_GRACE_S):
                # A client over TLS that does not end its side, say. The loop lets go of the sockets in later turns,
                # which its owner may not give it.
                self._abort_connections()
                await self._all_closed.wait(now() + CLOSE_GRACE_S)
        if self._general is not None:
            await self._general.cleanup()

    def abort(self) -> None:
        """As if the process had died: the listener, every connection and every handler are gone at once."""
        self._stop_listening()
        self._abort_connections()
        for handling in list(self._handling):
            handling.cancel()
        for speaking in list(self._frames):
            speaking.cancel()

    def _abort_connections(self) -> None:
        # Those that are closing too, which their connections have let go of.
        others = () if self._general is None else self._general.connections.transports
        for transport in [*others, *self._plain.values(), *self._frames.values()]:
            transport.abort()

    def _stop_listening(self) -> None:
        self._closing = True
        if self._general is not None:
            self._general.connections.closing = True
        if self._listener is not None:
            self._listener.close()

    # ------------------------------------------------------------------------------------- plain requests

    def _connection(self) -> RpcConnection:
        return RpcConnection(self)

    @property
    def first_request_timeout_s(self) -> float:
        """From a connection's beginning to its first request."""
        return first_request_timeout_s(needs_login=self.needs_login)

    @property
    def body_patience_s(self) -> float:
        """After a part of the time that a body may take, the general server waits for the rest."""
        return BODY_TIMEOUT_S / 6

    def admits(self, owner: str, size: int, *, held: int = 0) -> bool:
        """Rule 1, for a body of ``size`` bytes, of which ``held`` are counted already."""
        return size <= ALWAYS_ADMITTED_SIZE or self.room.admits(owner, size, held=held)

    def hurry_frames(self) -> None:
        """A body was refused: close the Kafka connections that keep room for a frame and do not send it."""
        for connection in list(self._frames):
            connection.hurry()

    def admit(self, owner: str, size: int) -> bool:
        """Rule 1; what is too large is refused by the general server."""
        if size > self.request_max_bytes:
            return False
        return not _counted(size) or self.room.take(owner, size)

    def admit_frame(self, owner: str, size: int) -> bool:
        """Rule 1, for a frame that is larger than a connection's read buffer."""
        if size <= ALWAYS_ADMITTED_SIZE and owner != STRANGERS:
            self.room.hold(owner, size)
            return True
        return self.room.take(owner, size)

    def knows(self, host: bytes) -> bool:
        """Return True if the request guard accepts this name. The general server handles and explains all others."""
        if host in self._hosts:
            return True
        if not self.gate.knows(host.decode("latin-1")):
            return False
        if len(self._hosts) >= HOSTS_KEPT:
            self._hosts.clear()
        self._hosts.add(host)
        return True

    def release(self, owner: str, size: int) -> None:
        """The request is answered, or gone."""
        self.release_frames(owner, _counted(size))

    def release_frames(self, owner: str, size: int) -> None:
        """They are handled, or gone."""
        if size:
            self.room.release(owner, size)
            self._wake_soon()

    def wait_for_room(self, connection: KafkaConnection) -> None:
        """A frame does not fit now; what waits already keeps its place."""
        self.room.wait(connection)
        if not self._hurries:
            self._hurries = True
            asyncio.get_running_loop().call_later(HURRY_S, self._hurry)

    def _hurry(self) -> None:
        """Close connections that keep others waiting and do not send what they hold room for."""
        self._hurries = self.room.is_awaited
        if not self._hurries:
            return
        self.hurry_frames()
        asyncio.get_running_loop().call_later(HURRY_S, self._hurry)

    @property
    def has_many_plain(self) -> bool:
        """Return True if small responses to plain requests leave a turn of the loop later; see ``MANY``."""
        return len(self._plain) > MANY

    @property
    def has_many_frames(self) -> bool:
        """Return True if responses over Kafka's protocol leave a turn of the loop later; see ``MANY``."""
        return len(self._frames) > MANY

    def flush_soon(self, connection: KafkaConnection | RpcConnection) -> None:
        """One callback for all connections with answers: each costs the loop more than a call."""
        if not self._to_flush:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_flush.append(connection)

    def _flush(self) -> None:
        ready, self._to_flush = self._to_flush, []
        for connection in ready:
            connection.flush()

    def _wake_soon(self) -> None:
        if self.room.is_awaited and not self._wakes:
            self._wakes = True
            asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._wakes = False
        self.room.wake()

    # ------------------------------------------------------------------------------------- Kafka's protocol

    @property
    def frame_timeout_s(self) -> float:
        """As for a body."""
        return BODY_TIMEOUT_S

    def has_frame_code(self, then: Callable[[], None]) -> bool:
        """As :meth:`has_general_code`, for a connection that speaks Kafka's protocol."""
        return self._sessions is None or self._closing or FRAME_CODE.is_loaded(then)

    def frame_protocol(self) -> KafkaConnection | None:
        """For a connection whose first byte begins a frame of Kafka's protocol."""
        if self._sessions is None or self._closing:
            return None
        from minikafka.world.kafka_connection import KafkaConnection  # noqa: PLC0415 - see FRAME_CODE

        return KafkaConnection(self)

    def open_session(self, connection: KafkaConnection) -> FrameSession:
        """The broker's part of a connection."""
        if self._sessions is None:
            raise RuntimeError("this server speaks no frames")
        record = connection.record
        context = RequestContext(
            "kafka",
            self.listener_name,
            connection.remote,
            principal=record.principal,
            refusal=record.refusal,
            sends_files=True,
        )
        session = self._sessions(connection, context)
        interpose = self.interpose
        if interpose is not None:

            async def meet_faults(
                client_id: str, api: str, request: object, handle: Callable[[], Awaitable[Any]]
            ) -> Any:
                handling = asyncio.current_task()
                if handling is not None:
                    # What is held back outlives its connection: it ends with the server.
                    self._handling.add(handling)
                try:
                    refuse = partial(error_response, BY_NAME[api])
                    # The closure must not refer to the session, which refers to it.
                    client = {"protocol": KAFKA, "software": connection.describe().software}
                    return await interpose(client_source(client_id), api, request, handle, refuse, client)
                except NotAnswered as silence:
                    if silence.hang_up:
                        connection.abort()
                    # Later answers of the connection wait behind this one, until its client gives up.
                    await connection.gone.wait()
                    raise kafka.BrokerNotAvailable(str(silence)) from None
                finally:
                    if handling is not None:
                        self._handling.discard(handling)

            session.meet_faults = meet_faults
        return session

    def kafka_opened(self, connection: KafkaConnection, transport: asyncio.Transport) -> None:
        """It speaks Kafka's protocol."""
        self._frames[connection] = transport
        self.quota.opened(connection, connection.remote, self.listener_name)
        if self.needs_login:
            self.quota.login_began(connection, connection.remote, self.listener_name)

    def kafka_logged_in(self, connection: KafkaConnection) -> None:
        """Its client has logged in."""
        self.quota.login_ended(connection, self.listener_name)

    def kafka_closed(self, connection: KafkaConnection) -> None:
        """It is gone."""
        self._frames.pop(connection, None)
        self.quota.closed(connection)
        self.quota.login_ended(connection, self.listener_name)
        self.room.leave(connection)
        self._wake_soon()
        self.kafka_answered(connection)
        self.tell_closed()

    def kafka_answered(self, connection: KafkaConnection) -> None:
        """It owes no answer: a server that closes need not wait for it."""
        if self._closing and connection in self._busy:
            self._busy.discard(connection)
            connection.close()
            if not self._busy:
                self._all_idle.set()

    def http_date(self) -> bytes:
        """Now, for the header."""
        second = int(time.time())
        if self._date[0] != second:
            self._date = (second, http_date(second))
        return self._date[1]

    def has_general_code(self, then: Callable[[], None]) -> bool:
        """Return True if the general server can take a connection now; else load its code, and call ``then``."""
        return self._closing or GENERAL_CODE.is_loaded(then)

    def general_protocol(self, record: ConnectionRecord) -> asyncio.Protocol | None:
        """For a connection that is more than plain requests; None for one that came too late."""
        if self._closing:
            return None
        if self._general is None:
            from minikafka.world.http_requests import GeneralServer  # noqa: PLC0415 - see GENERAL_CODE

            self._general = GeneralServer(self, self._load_doors)
        return self._general.connections(record)

    def opened(self, connection: RpcConnection, transport: asyncio.Transport) -> None:
        """A connection may send requests. While the server closes, or beyond a limit, it is closed at once."""
        is_late = isinstance(self._listener, TlsListener) and not self._listener.established(connection)
        self._plain[connection] = transport
        self.quota.accepted += 1
        connection.record.number = self.quota.accepted
        remote = connection.remote
        if self._closing or is_late or not self.quota.admits(remote, self.listener_name):
            transport.abort()
        else:
            # A TLS listener has counted the connection when it accepted it.
            throttle_ms = 0 if self._tls is not None else self.quota.throttle_ms(remote, self.listener_name)
            if throttle_ms:
                transport.set_protocol(_Throttled(connection))
                asyncio.get_running_loop().call_later(throttle_ms / 1000, transport.abort)
            if self._tls is not None:
                reads_in_turns(transport)
                try:
                    connection.record.principal = self._tls.principal(transport, remote)
                except NotAuthenticated as error:
                    connection.record.refusal = str(error)
            self.quota.opened(connection, remote, self.listener_name)
            if self.needs_login:
                self.quota.login_began(connection, remote, self.listener_name)

    def closed(self, connection: RpcConnection) -> None:
        """They are gone, or handed over."""
        self._plain.pop(connection, None)
        self.quota.closed(connection)
        self.quota.login_ended(connection, self.listener_name)
        self.tell_closed()

    def tell_closed(self) -> None:
        if not self.connection_count:
            self._all_closed.set()

    def began(self, connection: RpcConnection | RequestHandler, handling: asyncio.Task[None] | Parked) -> None:
        """A request is being answered."""
        self._busy.add(connection)
        self._handling.add(handling)

    def ended(self, connection: RpcConnection | RequestHandler, handling: asyncio.Task[None] | Parked) -> None:
        """It is, or its client has left."""
        self._busy.discard(connection)
        self._handling.discard(handling)
        if self._closing and not self._busy:
            self._all_idle.set()

    def rpc_answer(self, caller: RpcConnection, head: Head, body: bytes | bytearray) -> Answer | Awaitable[Buffers]:
        """What the handler answers to a plain request, or what ``awaited`` or ``answer_of`` makes it of."""
        context = caller.context
        if context is None:
            client_id, software = identity_of(agent_in(head.fields))
            principal = caller.record.principal
            context = caller.context = RequestContext(
                "rpc", self.listener_name, caller.remote, client_id, software, principal, sends_files=True
            )
        if self.interpose is not None:
            found = _NODE.search(head.fields)
            source = found[1].decode("latin-1").strip() if found else ""
            handle = partial(answered, self.handler, head.api, body, context)
            client = {"protocol": RPC, "software": context.software}
            return self.interpose(source, head.api, (body,), handle, partial(refused, MSGPACK, head.api), client)
        if len(body) > LARGE_BODY and head.api != "Produce":  # what many send at one moment must not hold the loop
            return self._answered_in_a_turn(head.api, body, context)
        return self.answer_of(head.api, partial(self.handler, head.api, body, context))

    async def _answered_in_a_turn(self, api: str, body: bytes | bytearray, context: RequestContext) -> Buffers:
        await self._turns.next()
        return await answered(self.handler, api, body, context)

    def answer_of(self, api: str, result: Result) -> Answer | Awaitable[Buffers]:
        """The answer that ``result`` computes, or the awaitable that it returns. Raises nothing."""
        try:
            answer = result()
        except Exception as error:  # noqa: BLE001 - a handler never raises: the owner of this loop decides what stops
            return self._failed(api, error)
        # A list, as the codec returns it, is cheaper to tell from an awaitable than the reverse.
        return Answer(answer) if type(answer) is list or not isinstance(answer, Awaitable) else answer

    async def awaited(self, api: str, answer: Awaitable[Buffers]) -> Answer:
        """The answer once it is there. Raises NotAnswered."""
        try:
            return Answer(await answer)
        except NotAnswered:
            raise
        except Exception as error:  # noqa: BLE001 - as in rpc_answer
            return self._failed(api, error)

    def _failed(self, api: str, error: Exception) -> Answer:
        self.tell_bug(RPC_PATH + api, error)
        text = (
            json.dumps(problem_of(kafka.UnknownServerError(SEE_LOG, outcome=kafka.UNKNOWN), status=500)).encode()
            + b"\n"
        )
        return Answer((text,), PROBLEM_TYPE, b"500 Internal Server Error", keeps_alive=False)

    def tell_bug(self, path: str, error: Exception) -> None:
        context = {"message": f"handler of {path} raised", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


class _Throttled(asyncio.Protocol):
    """Takes a connection over that exceeds the quota of its address: what it sends is not served."""

    def __init__(self, connection: RpcConnection) -> None:
        self._connection = connection

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connection.connection_lost(exc)
