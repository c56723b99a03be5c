"""Regions of files are sent past the transport, in order with all other bytes, on both loops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import uvloop

from minikafka.errors import DiskFailed
from minikafka.ports import Buffer
from minikafka.world import os_disk, outgoing
from minikafka.world.os_disk import OsDisk, OsFile, OsRegion
from minikafka.world.outgoing import Outgoing
from tests.certificates import authority, signed

CONTENT = Random(7).randbytes(24 << 20)
MIB = 1 << 20

SOCKETS_HOLD = 12 * MIB
"""More than the kernel keeps of what the other end of a connection on loopback has not read."""

Story = Callable[["Peer", asyncio.StreamReader], Awaitable[None]]


class Peer(asyncio.Protocol):
    """The sending end: its writer, and what its transport has told it."""

    def __init__(self, accepting: asyncio.Future[Peer]) -> None:
        self.accepting = accepting
        self.lost = asyncio.Event()
        self.pauses = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.outgoing = Outgoing(transport)
        self.accepting.set_result(self)

    def pause_writing(self) -> None:
        self.pauses += 1
        self.outgoing.pause()

    def resume_writing(self) -> None:
        self.outgoing.resume()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.outgoing.close()
        self.lost.set()


def contexts_in(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS of the sending end and of the other one."""
    authority(folder, "ca")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(signed(folder, "broker", by="ca"))
    return server, ssl.create_default_context(cafile=str(folder / "ca.pem"))


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Run a story with both ends of a connection."""

    async def run(story: Story, server_tls: ssl.SSLContext | None, client_tls: ssl.SSLContext | None) -> None:
        accepting: asyncio.Future[Peer] = asyncio.get_running_loop().create_future()
        server = await asyncio.get_running_loop().create_server(lambda: Peer(accepting), "127.0.0.1", 0, ssl=server_tls)
        host, port = server.sockets[0].getsockname()
        name = "localhost" if client_tls else None
        reader, writer = await asyncio.open_connection(host, port, ssl=client_tls, server_hostname=name)
        peer = await accepting
        try:
            await story(peer, reader)
        finally:
            writer.close()
            if not peer.lost.is_set():
                peer.transport.abort()
            server.close()
            await peer.lost.wait()

    def played(story: Story, *, is_tls: bool = False) -> None:
        contexts = contexts_in(tmp_path) if is_tls else (None, None)
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(run(story, *contexts))

    return played


@pytest.fixture
def disk(tmp_path: Path):
    opened = OsDisk(str(tmp_path))
    yield opened
    opened.close()


@pytest.fixture
def file(disk: OsDisk) -> OsFile:
    made = disk.open("log")
    made.append([CONTENT])
    return made


def region_of(file: OsFile, position: int, size: int) -> OsRegion:
    found = file.region(position, size)
    assert found is not None
    return found


def expected(buffers: list[Any]) -> bytes:
    """The bytes of buffers and regions, read one by one."""
    return b"".join(each.read(0, len(each)) if isinstance(each, OsRegion) else bytes(each) for each in buffers)


def mixed(file: OsFile, seed: int) -> list[Any]:
    """Small and large buffers and regions in any order."""
    random = Random(seed)
    found: list[Any] = []
    for _ in range(random.randrange(1, 12)):
        size = random.choice([1, 100, 5_000, 70_000, MIB, 3 * MIB])
        start = random.randrange(len(CONTENT) - size)
        found.append(region_of(file, start, size) if random.random() < 0.5 else memoryview(CONTENT)[start:][:size])
    return found


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("seed", range(6))
def test_bytes_leave_in_the_order_in_which_they_were_given(play, file: OsFile, seed: int, *, is_tls: bool):
    """Also when the reader is slow, so that the rest of a region goes through the transport."""

    async def story(peer: Peer, reader: asyncio.StreamReader) -> None:
        buffers = mixed(file, seed)
        cut = len(buffers) // 2
        peer.outgoing.write(buffers[:cut])
        if seed % 2:
            await asyncio.sleep(0.02)
        peer.outgoing.write(buffers[cut:])
        wanted = expected(buffers)
        assert await reader.readexactly(len(wanted)) == wanted
        assert not peer.outgoing.waiting

    play(story, is_tls=is_tls)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS])
def test_bytes_are_read_where_the_file_system_cannot_send_files(
    play, file: OsFile, monkeypatch: pytest.MonkeyPatch, number: int
):
    """Before, the connection ended, and consumers never got past the records that were no longer in memory."""

    def sendfile(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    async def story(peer: Peer, reader: asyncio.StreamReader) -> None:
        buffers = mixed(file, 3)
        peer.outgoing.write(buffers)
        wanted = expected(buffers)
        assert await reader.readexactly(len(wanted)) == wanted

    monkeypatch.setattr(os, "sendfile", sendfile)
    play(story)


def refuse(*_: Any) -> bytes:
    raise AssertionError("the region was read")


def test_region_is_sent_without_being_read(play, file: OsFile, monkeypatch: pytest.MonkeyPatch):
    """A region that fits the socket's buffer never enters the process."""

    async def story(peer: Peer, reader: asyncio.StreamReader) -> None:
        monkeypatch.setattr(OsRegion, "read", refuse)
        peer.outgoing.write([b"head", region_of(file, 10, 40_000), b"tail"])
        assert await reader.readexactly(40_008) == b"head" + CONTENT[10:40_010] + b"tail"

    play(story)


def test_slow_reader_costs_no_memory(play, file: OsFile, monkeypatch: pytest.MonkeyPatch):
    """What is not sent stays in the file, and is sent from there when the socket has room."""

    async def story(peer: Peer, reader: asyncio.StreamReader) -> None:
        monkeypatch.setattr(OsRegion, "read", refuse)
        size = len(CONTENT)
        peer.outgoing.write([b"head", region_of(file, 0, size), b"tail"])
        assert peer.pauses == 1
        assert peer.transport.get_write_buffer_size() == 0
        assert peer.outgoing.waiting
        assert await reader.readexactly(size + 8) == b"head" + CONTENT + b"tail"
        assert peer.pauses > 1
        assert not peer.outgoing.waiting

    play(story)


@pytest.mark.parametrize("ends", ["here", "there"])
def test_connection_that_ends_while_its_socket_is_full_is_not_watched(play, file: OsFile, ends: str):
    """Its number may be another socket's soon."""

    async def story(peer: Peer, reader: asyncio.StreamReader) -> None:
        peer.outgoing.write([region_of(file, 0, len(CONTENT))])
        for _ in range(100):
            await asyncio.sleep(0)
        assert peer.outgoing.is_paused
        direct = peer.outgoing._socket
        assert direct is not None
        number = direct.fileno()
        if ends == "here":
            peer.transport.abort()
        else:
            reader._transport.abort()  # type: ignore[attr-defined]
        await peer.lost.wait()
        assert direct.fileno() == -1
        assert not asyncio.get_running_loop().remove_writer(number)
        assert not peer.outgoing.waiting

    play(story)


def test_fast_reader_does_not_hold_the_loop(play, file: OsFile, monkeypatch: pytest.MonkeyPatch):
    """A turn of the loop sends a bounded part of a response; then everything else has its turn."""
    monkeypatch.setattr(outgoing, "TURN_SIZE", 100_000)

    async def story(peer: Peer, reader: asyncio.StreamReader) -> None:
        peer.outgoing.write([b"head", region_of(file, 0, MIB), b"tail", region_of(file, 7, 50_000)])
        assert peer.pauses == 1
        assert peer.transport.get_write_buffer_size() == 0
        wanted = b"head" + CONTENT[:MIB] + b"tail" + CONTENT[7:50_007]
        assert await reader.readexactly(len(wanted)) == wanted
        assert peer.pauses >= MIB // 100_000
        assert not peer.outgoing.waiting

    play(story)


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_connection_that_closes_sends_the_rest_first(play, file: OsFile, *, is_tls: bool):
    """`finish` closes the transport when all is written, and keeps no copy of the rest in memory until then."""

    async def story(peer: Peer, reader: asyncio.StreamReader) -> None:
        peer.outgoing.write([b"head", region_of(file, 0, len(CONTENT))])
        peer.outgoing.finish()
        for _ in range(100):
            await asyncio.sleep(0)
        assert peer.transport.get_write_buffer_size() < MIB
        assert await reader.read(-1) == b"head" + CONTENT

    play(story, is_tls=is_tls)


@pytest.mark.parametrize("makes", ["regions", "buffers"])
def test_unread_response_costs_no_memory_under_tls(play, file: OsFile, monkeypatch: pytest.MonkeyPatch, makes: str):
    """The transport encrypts at once what it is given: it gets a chunk when the socket has taken the one before."""
    given = 0

    async def story(peer: Peer, reader: asyncio.StreamReader) -> None:
        nonlocal given
        write = type(peer.transport).write

        class Counting:
            """The transport, which counts the bytes of its writes."""

            def __getattr__(self, name: str) -> Any:
                return getattr(peer.transport, name)

            def write(self, data: Buffer) -> None:
                nonlocal given
                given += len(data)
                write(peer.transport, data)

        monkeypatch.setattr(peer.outgoing, "_transport", Counting())
        large: Any = region_of(file, 0, len(CONTENT)) if makes == "regions" else CONTENT
        peer.outgoing.write([b"head", large, b"tail"])
        before = -1
        while before < given or not peer.pauses:
            before = given
            for _ in range(1000):
                await asyncio.sleep(0)
        assert given < SOCKETS_HOLD + outgoing.TLS_TURN_SIZE < len(CONTENT)
        wanted = b"head" + CONTENT + b"tail"
        assert await reader.readexactly(len(wanted)) == wanted
        assert given == len(wanted)

    play(story, is_tls=True)


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
def test_what_is_unsent_is_in_memory_or_in_a_file(play, file: OsFile, *, is_tls: bool):
    """Readers that leave much in memory are disconnected before others (`unread_responses.py`)."""

    async def story(peer: Peer, reader: asyncio.StreamReader) -> None:
        peer.outgoing.write([b"head", region_of(file, 0, len(CONTENT)), CONTENT[:MIB]])
        for _ in range(1000):
            await asyncio.sleep(0)
        held, left = peer.outgoing.unsent()
        assert MIB <= held < 2 * MIB
        assert len(CONTENT) - SOCKETS_HOLD < left <= len(CONTENT) + MIB + 4
        await reader.readexactly(4 + len(CONTENT) + MIB)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert peer.outgoing.unsent() == (0, 0)

    play(story, is_tls=is_tls)


def test_file_that_was_closed_and_deleted_is_sent(play, disk: OsDisk, file: OsFile):
    """Retention deletes a segment while a slow client reads it; its descriptor ends with the last region."""

    async def story(peer: Peer, reader: asyncio.StreamReader) -> None:
        descriptor = file._descriptor
        peer.outgoing.write([region_of(file, 0, len(CONTENT))])
        file.close()
        disk.remove("log")
        os.fstat(descriptor)
        assert await reader.readexactly(len(CONTENT)) == CONTENT
        with pytest.raises(OSError, match="descriptor"):
            os.fstat(descriptor)

    play(story)


def test_file_that_became_shorter_ends_the_connection(play, file: OsFile):
    """The head has promised more bytes: other bytes must not take their place."""

    async def story(peer: Peer, reader: asyncio.StreamReader) -> None:
        region = region_of(file, 1000, 5000)
        os.truncate(f"/proc/self/fd/{file._descriptor}", 3000)
        peer.outgoing.write([b"head", region, b"tail"])
        got = b""
        with contextlib.suppress(ConnectionResetError):
            while more := await reader.read(9999):
                got += more
        assert (b"head" + CONTENT[1000:3000]).startswith(got)
        await peer.lost.wait()
        assert not peer.outgoing.waiting

    play(story)


def test_transport_without_a_socket_gets_what_was_read(file: OsFile):
    """Tests and pipes have none."""

    class Transport:
        written = b""

        def write(self, data: Buffer) -> None:
            self.written += bytes(data)

        def get_write_buffer_size(self) -> int:
            return 0

        def get_extra_info(self, _: str) -> None:
            return None

        def is_closing(self) -> bool:
            return False

    transport: Any = Transport()
    Outgoing(transport).write([b"head", region_of(file, 5, 300_000), b"tail"])
    assert transport.written == b"head" + CONTENT[5:300_005] + b"tail"


def test_region_beyond_the_end_is_none(file: OsFile, monkeypatch: pytest.MonkeyPatch):
    """As on systems that cannot send files: the caller reads."""
    assert file.region(len(CONTENT) - 10, 11) is None
    monkeypatch.setattr(os_disk, "CAN_SEND_FILES", False)
    assert file.region(0, 10) is None


@pytest.mark.parametrize(
    "number,is_cached",
    [(errno.EAGAIN, False), (errno.EOPNOTSUPP, True), (errno.EINVAL, True), (errno.ENOSYS, True)],
    ids=["cold", "file system in memory", "unknown flag", "unknown call"],
)
def test_region_knows_whether_it_must_wait_for_the_disk(
    file: OsFile, monkeypatch: pytest.MonkeyPatch, number: int, *, is_cached: bool
):
    """The kernel says so when it is asked for a byte without waiting."""
    region = region_of(file, 0, MIB)
    assert region.is_cached

    def preadv(*_: Any) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "preadv", preadv)
    assert region.is_cached is is_cached


def test_disk_that_fails_is_not_a_cold_one(file: OsFile, monkeypatch: pytest.MonkeyPatch):
    """The partition is taken offline, as after a failing read."""

    def preadv(*_: Any) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(DiskFailed):
        assert region_of(file, 0, MIB).is_cached


def test_region_of_a_file_that_lost_bytes_cannot_be_read(file: OsFile):
    """Fewer bytes are never returned."""
    region = region_of(file, 0, 5000)
    os.truncate(f"/proc/self/fd/{file._descriptor}", 3000)
    with pytest.raises(DiskFailed, match="3000 of 5000 bytes"):
        region.read(0, 5000)
    with pytest.raises(DiskFailed):
        region.warm()
