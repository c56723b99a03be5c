"""Connections of a TLS listener before their handshake is over, on both loops: limits, turns, and ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import uvloop

from minikafka.blocking.tls import client_context
from minikafka.config import parse_broker
from minikafka.hosting.certificates import CertificateFolder
from minikafka.ports import RequestContext
from minikafka.types import Address
from minikafka.world import connections, http_server, tls_listener
from minikafka.world.connections import HANDSHAKES, MAX_CONNECTIONS_PER_IP, ConnectionQuota
from minikafka.world.http import HttpNetwork
from minikafka.world.http_server import HttpServer
from minikafka.world.tls import SMALL_READS, Reloaded, ServerTls, server_context

PATIENCE_S = 60.0
HALF_A_HELLO = bytes.fromhex("1603010200010001fc0303")
REQUEST = b"POST /rpc/Echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"

Story = Callable[["Port"], Awaitable[None]]


async def echo(_api: str, body: bytes, _context: RequestContext) -> Sequence[bytes]:
    return [bytes(body)]


class Port:
    """A listening server and its clients."""

    def __init__(self, server: HttpServer, quota: ConnectionQuota, context: ssl.SSLContext) -> None:
        self.server = server
        self.quota = quota
        self.context = context
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self, sent: bytes = b"", source: str = "127.0.0.1") -> asyncio.StreamReader:
        """A raw connection."""
        reader, writer = await asyncio.open_connection(*self.server.address, local_addr=(source, 0))
        self.writers.append(writer)
        writer.write(sent)
        return reader

    async def ask(self, body: bytes = b"tea", source: str = "127.0.0.1") -> bytes:
        """Send a request over TLS, in the same segment as the end of the handshake; return its answer's body."""
        reader, writer = await asyncio.open_connection(
            *self.server.address, local_addr=(source, 0), ssl=self.context, server_hostname="localhost"
        )
        try:
            writer.write(REQUEST % len(body) + body)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            return await reader.readexactly(len(body))
        finally:
            writer.close()


async def ended(reader: asyncio.StreamReader) -> None:
    """Wait for the end of a connection to which nothing was sent."""
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateFolder:
    made = CertificateFolder(tmp_path_factory.mktemp("certificates"))
    made.make_ca()
    made.make_broker("broker", ["localhost"])
    return made


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest, certificates: CertificateFolder):
    """Run a story at a port with the limits of a quota."""
    config = parse_broker(
        {
            "listeners": "PLAINTEXT://127.0.0.1:1,SSL://127.0.0.1:2",
            "ssl.keystore.location": str(certificates.path("broker")),
        }
    ).config

    def play(story: Story, **limits: int) -> list[str]:
        events: list[str] = []

        async def told() -> None:
            from minikafka.broker.event_limiter import EventLimiter
            from minikafka.security.principals import PrincipalMapping

            limiter = EventLimiter(lambda kind, /, **_: events.append(kind), asyncio.get_running_loop().time)
            quota = ConnectionQuota(**limits)
            tls = ServerTls(Reloaded(lambda: server_context(config), ()), PrincipalMapping(), limiter)
            network = HttpNetwork(quota=quota, tls={"": tls})
            server = await network.serve(Address("127.0.0.1", 0), echo)
            port = Port(server, quota, client_context(cafile=str(certificates.ca)))
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await story(port)
            finally:
                for writer in port.writers:
                    writer.close()
                await network.close()
            assert (quota.handshakes.under_way, quota.handshakes.waiting, quota.count) == (0, 0, 0)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(told())
        return events

    return play


def test_a_request_is_answered_and_its_handshake_is_over(play):
    """Also a large one; connections count once, before and after the handshake."""

    async def story(port: Port) -> None:
        assert await port.ask() == b"tea"
        assert await port.ask(b"x" * 300_000) == b"x" * 300_000
        assert await asyncio.gather(*(port.ask(b"%d" % each) for each in range(50))) == [
            b"%d" % each for each in range(50)
        ]
        assert (port.quota.handshakes.under_way, port.quota.accepted) == (0, 52)

    play(story, handshakes=4)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_one_handshake_is_computed_in_a_turn_of_the_loop(
    play, monkeypatch: pytest.MonkeyPatch, version: ssl.TLSVersion
):
    """Clients that held their ClientHello back and sent it in one moment delayed all others by 64 signatures."""
    do_handshake = ssl.SSLObject.do_handshake
    turn = 0
    computed: Counter[int] = Counter()

    def counting(self: ssl.SSLObject) -> None:
        computed[turn] += self.server_side
        do_handshake(self)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(next_turn)

    async def story(port: Port) -> None:
        port.context.maximum_version = version
        clients, hellos = [], []
        for _ in range(20):
            clients.append((await port.connect(), port.writers[-1]))
            hello = ssl.MemoryBIO()
            with contextlib.suppress(ssl.SSLWantReadError):
                port.context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
            hellos.append(hello.read())
        while port.quota.handshakes.under_way < len(clients):  # noqa: ASYNC110 - the server has no events for tests
            await asyncio.sleep(0.01)
        monkeypatch.setattr(ssl.SSLObject, "do_handshake", counting)
        next_turn()
        for (_, writer), sent in zip(clients, hellos, strict=True):
            writer.write(sent)
        for reader, _ in clients:
            assert await reader.read(1)  # the answer, or an alert

    play(story)
    assert computed.total() >= 20
    assert max(computed.values()) == 1


def test_records_of_one_byte_are_read_in_turns(play, monkeypatch: pytest.MonkeyPatch):
    """All that have arrived were read at once: a few clients held the loop for 50 ms each, without a login."""
    read = ssl.SSLObject.read
    reads = most = 0

    def counting(self: ssl.SSLObject, *arguments: Any) -> Any:
        nonlocal reads
        reads += self.server_side
        return read(self, *arguments)

    async def story(port: Port) -> None:
        nonlocal reads, most
        body = b"x" * 5_000
        to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = port.context.wrap_bio(to_client, to_server, server_hostname="localhost")
        reader, writer = await asyncio.open_connection(*port.server.address)
        port.writers.append(writer)
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
                break
            writer.write(to_server.read())
            to_client.write(await reader.read(65_536))
        for each in REQUEST % len(body) + body:
            client.write(bytes([each]))
        monkeypatch.setattr(ssl.SSLObject, "read", counting)
        writer.write(to_server.read())
        received = b""
        answering = asyncio.ensure_future(reader.read(65_536))
        while not received.endswith(body):
            reads = 0
            await asyncio.sleep(0)
            most = max(most, reads)
            if answering.done():
                to_client.write(answering.result())
                with contextlib.suppress(ssl.SSLWantReadError):
                    while True:
                        received += client.read(65_536)
                answering = asyncio.ensure_future(reader.read(65_536))
        answering.cancel()

    play(story)
    assert 0 < most <= 3 * SMALL_READS


def test_slow_handshakes_of_one_address_do_not_delay_another_one(play):
    """Half of the handshakes are for other addresses."""

    async def story(port: Port) -> None:
        for _ in range(30):
            await port.connect(HALF_A_HELLO, "127.0.0.2")
        while port.quota.handshakes.waiting < 26:  # noqa: ASYNC110 - the server has no events for tests
            await asyncio.sleep(0.01)
        async with asyncio.timeout(connections.PATIENCE_S):
            assert await asyncio.gather(*(port.ask() for _ in range(8))) == [b"tea"] * 8
        assert port.quota.handshakes.under_way == 4

    play(story, handshakes=8)


def test_a_waiting_connection_has_its_turn(play, monkeypatch: pytest.MonkeyPatch):
    """Slow handshakes of its own address end for it; nothing is read from it before, and nothing is lost."""
    monkeypatch.setattr(connections, "PATIENCE_S", 0.1)

    async def story(port: Port) -> None:
        slow = [await port.connect(HALF_A_HELLO) for _ in range(6)]
        assert await port.ask() == b"tea"
        await asyncio.wait_for(ended(slow[0]), PATIENCE_S)
        assert port.quota.refused[HANDSHAKES] >= 5

    play(story, handshakes=2)


def test_handshakes_and_waiting_connections_end_in_time(play, monkeypatch: pytest.MonkeyPatch):
    """From their acceptance, whatever they have sent."""
    monkeypatch.setattr(tls_listener, "HANDSHAKE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(connections, "PATIENCE_S", 60.0)

    async def story(port: Port) -> None:
        readers = [await port.connect(sent) for sent in (HALF_A_HELLO, b"", HALF_A_HELLO, b"")]
        await asyncio.gather(*map(ended, readers))

    play(story, handshakes=4)


def test_connections_beyond_a_limit_are_closed_before_their_handshake(play):
    """A connection that is too many costs no signature; handshakes under way count."""

    async def story(port: Port) -> None:
        await port.connect(HALF_A_HELLO)
        await port.connect()
        await asyncio.wait_for(ended(await port.connect(HALF_A_HELLO)), PATIENCE_S)
        assert port.quota.refused[MAX_CONNECTIONS_PER_IP] == 1
        assert await port.ask(source="127.0.0.2") == b"tea"

    play(story, limit_per_ip=2)


def test_what_is_no_tls_ends_at_once(play):
    """Its slot is free again."""

    async def story(port: Port) -> None:
        for _ in range(20):
            await asyncio.wait_for(ended(await port.connect(b"GET / HTTP/1.1\r\n\r\n")), PATIENCE_S)
        assert await port.ask() == b"tea"

    play(story, handshakes=2)


def test_a_listener_without_file_descriptors_tries_again(play, monkeypatch: pytest.MonkeyPatch):
    """The event says why nothing is accepted."""
    monkeypatch.setattr(tls_listener, "RETRY_S", 0.1)

    async def story(port: Port) -> None:
        real, failures = socket.socket.accept, [1, 2]

        def accept(listening: socket.socket) -> object:
            if failures:
                failures.pop()
                raise OSError(24, "Too many open files")
            return real(listening)

        monkeypatch.setattr(socket.socket, "accept", accept)
        assert await port.ask() == b"tea"
        assert failures == []

    assert play(story) == ["connections_not_accepted"]


def test_a_host_name_has_a_socket_for_each_of_its_addresses():
    """As asyncio's servers; a port in use is an OSError, and leaves no socket open."""

    async def story() -> None:
        first, *more = await tls_listener.bound(Address("localhost", 0))
        with first:
            name = first.getsockname()
            with pytest.raises(OSError, match="in use"):
                await tls_listener.bound(Address(name[0], name[1]))
        for each in more:
            each.close()

    asyncio.run(story())


@pytest.mark.parametrize("closes", ["the client's end is awaited", "the time is up"])
def test_a_client_that_does_not_end_its_connection_does_not_outlive_the_server(
    play, monkeypatch: pytest.MonkeyPatch, closes: str
):
    """The server has closed it, as after a failed login, and the client sends no close_notify: it is gone when the
    server is, and the loop closes no socket that is still open.
    """
    if closes == "the time is up":
        monkeypatch.setattr(http_server, "CLOSE_GRACE_S", 0.05)
    clients: list[socket.socket] = []

    def refused(port: Port) -> None:
        plain = socket.create_connection(port.server.address, PATIENCE_S)
        client = port.context.wrap_socket(plain, server_hostname="localhost", suppress_ragged_eofs=False)
        clients.append(client)
        client.sendall(b"GET /none HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert client.recv(8) == b"HTTP/1.1"

    async def story(port: Port) -> None:
        await asyncio.to_thread(refused, port)

    try:
        play(story)
        gc.collect()  # an open socket would be reported here
    finally:
        for each in clients:
            each.close()
