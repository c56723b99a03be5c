"""The four ports: Clock, Network, Disk, Events. All that a broker or a client knows of the world.

Two constructors build a :class:`World`: ``world/real.py`` and ``sim/world.py``. Rules get none of it: they get ``now``
as an argument and, in their constructor, the events sink.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from minikafka.errors import ProtocolError
from minikafka.types import ANONYMOUS, Address

_T = TypeVar("_T")
Buffer: TypeAlias = bytes | bytearray | memoryview
Buffers: TypeAlias = Sequence[Buffer]
"""Going out: record batches are never joined or copied to be sent or written."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """The sender of a request and how it arrived (D11); passed to every handler, never kept in a context variable.

    The defaults describe a call inside the broker itself.
    """

    protocol: str = "internal"
    """``rpc`` (``/rpc``), ``kafka`` (binary frames), ``http`` (``/v1``) or ``internal``."""
    listener: str = ""
    """Name of the listener; empty: the brokers' own."""
    remote: str = ""
    """Address of the other end of the connection; empty: not known."""
    client_id: str = ""
    software: str = ""
    """Name and version of the client's library (KIP-511)."""
    principal: str = ANONYMOUS
    refusal: str = ""
    """Why the sender is nobody who may send requests: its certificate gives no principal. Empty: it has one."""
    api_version: int = -1
    """Kafka's version of the API, where the protocol is Kafka's."""
    sends_files: bool = False
    """A response's records may be :class:`FileRegion` objects instead of buffers."""
    forwarded_by: int = -1
    """The broker that has received the request and sent it on in an Envelope; -1: the sender itself sent it."""

    @property
    def client_host(self) -> str:
        """Where the request came from, as Kafka writes it (``/127.0.0.1``)."""
        return f"/{self.remote}" if self.remote else ""


INTERNAL = RequestContext()

Handler: TypeAlias = Callable[[str, bytes | bytearray, RequestContext], "Buffers | Awaitable[Buffers]"]
"""(api, whole body, context) -> answer, or an awaitable of it if something must be awaited. Never raises: errors are
answers; what escapes stops the broker.

The body may be a bytearray that nobody else holds: a large one is read from the socket into its place."""

CAUSE: ContextVar[str] = ContextVar("CAUSE", default="")
"""Id of the request or timer that all of this happens for; the dispatcher sets it, events sinks read it (D9)."""


class FrameConnection(Protocol):
    """One connection of Kafka's protocol, as its session sees it."""

    @property
    def opened_at(self) -> float:
        """When it was accepted, on the loop's clock."""
        ...

    def send(self, answer: Buffers) -> None:
        """One whole frame; frames leave in the order of these calls."""
        ...

    def handled(self, size: int) -> None:
        """A frame of this size is answered: its memory is free."""
        ...

    def close(self) -> None:
        """Close after what was sent."""
        ...

    def await_login(self, frame_bytes_max: int) -> None:
        """Refuse larger frames until the client has logged in."""
        ...

    def logged_in(self, principal: str) -> None:
        """The client is this principal from now on."""
        ...

    def pause(self) -> None:
        """Read no further requests."""
        ...

    def resume(self) -> None: ...


class MeetFaults(Protocol):
    """Handles a request of a client after the faults that tests have set have struck it, and then its answer."""

    async def __call__(self, client_id: str, api: str, request: object, handle: Callable[[], Awaitable[_T]]) -> _T: ...


class SessionState(NamedTuple):
    """What a session of Kafka's protocol knows about its client."""

    client_id: str = ""
    software: str = ""
    last_request: str | None = None
    """Kafka's name of the API."""
    api_version: int | None = None
    pending_request: str | None = None
    """The oldest request that is not answered yet."""


class FrameSession(Protocol):
    """What a connection of Kafka's protocol hands its frames to."""

    meet_faults: MeetFaults | None
    """Set by a server whose links can have faults, before the first frame."""

    @property
    def is_busy(self) -> bool:
        """Return True while a request is being handled."""
        ...

    def received(self, frame: memoryview) -> None:
        """A whole frame, without its size; nobody else holds it."""
        ...

    def malformed(self, error: ProtocolError) -> None:
        """What came in is no frame: close the connection."""
        ...

    def room(self, *, has_room: bool) -> None:
        """Return True if the connection takes more responses."""
        ...

    def describe(self) -> SessionState:
        """Return what is known about the client now."""
        ...

    def closed(self) -> None:
        """The connection is gone."""
        ...

    def cancel(self) -> None:
        """The process dies: end every task."""
        ...


OpenSession: TypeAlias = Callable[[FrameConnection, RequestContext], FrameSession]
"""Begins the session of a connection that speaks Kafka's protocol."""


class HttpLogin(Protocol):
    """Checks who has sent a request over HTTP, at one listener."""

    @property
    def has_passwords(self) -> bool:
        """Return True if users can log in with a password."""
        ...

    async def principal(self, authorization: str | None, remote: str) -> str | None:
        """The principal that the value of ``Authorization`` proves; None: there is none, and none is needed.

        Raises ProtocolError for a request that must not be served.
        """
        ...


class Clock(Protocol):
    """Time. ``asyncio.sleep`` and ``asyncio.timeout`` go through the running loop and need no port."""

    def now(self) -> float:
        """Monotonic seconds, equal to ``loop.time()``; every deadline is on this clock."""
        ...

    def ticks_ns(self) -> int:
        """Nanoseconds for metrics only."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970 for record timestamps only; may jump and may be wrong."""
        ...


class FileRegion(Protocol):
    """Bytes of a file that are sent without being read into the process (``sendfile``).

    The file stays readable through its regions after it was closed or deleted. Its bytes must not change until the
    region is sent: only records below the high watermark may leave as a region, since no truncation reaches them.
    """

    def __len__(self) -> int: ...

    @property
    def is_cached(self) -> bool:
        """Return True if it can be sent without waiting for the disk."""
        ...

    def warm(self) -> None:
        """Read it from the disk into the page cache; blocks. DiskFailed."""
        ...

    def read(self, begin: int, size: int) -> bytes:
        """``size`` bytes from ``begin`` of the region. DiskFailed when the file no longer has them."""
        ...

    def send(self, descriptor: int, begin: int, size: int) -> int | None:
        """Send at most ``size`` bytes from ``begin`` on to a socket; return how many, 0 if the file ended. OSError.

        None: the file system cannot send files; read the bytes instead.
        """
        ...


class File(Protocol):
    """One append-only file. Writes are synchronous (page cache); only durability is awaited."""

    def append(self, data: Buffers) -> None:
        """One gathered write, all or nothing. DiskFull: as before. DiskFailed: the log must stop."""
        ...

    def read(self, position: int, size: int) -> bytes:
        """At most ``size`` bytes; fewer only at the end of the file."""
        ...

    def region(self, position: int, size: int) -> FileRegion | None:
        """The bytes that :meth:`read` would return, to be sent from the file; None: read them instead."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    async def sync(self) -> None:
        """The only promise of durability: what was appended before the call is durable after it. DiskFailed."""
        ...

    def close(self) -> None: ...


_NO_NAMES = frozenset({"", ".", ".."})


def checked_path(path: str) -> str:
    """``path`` if it stays inside the data directory; ValueError otherwise. The empty path is the directory itself."""
    if path and not _NO_NAMES.isdisjoint(path.split("/")):
        raise ValueError(f"not a path inside the data directory: {path!r}")
    return path


class Disk(Protocol):
    """Paths are relative to the broker's data directory, ``/`` separated. It outlives a broker's incarnations."""

    def open(self, path: str) -> File:
        """Create the file and its folders when they are missing."""
        ...

    def exists(self, path: str) -> bool:
        """Return True if there is a file or folder of this name."""
        ...

    def is_folder(self, path: str) -> bool:
        """Return True if there is a folder of this name."""
        ...

    def names(self, folder: str) -> list[str]:
        """Sorted names of files and folders directly inside; empty when the folder is missing."""
        ...

    def modified_ms(self, path: str) -> int:
        """When the file was last written, milliseconds since 1970."""
        ...

    def size_of(self, path: str) -> int:
        """Bytes in the file, without opening it; FileNotFoundError when it is missing."""
        ...

    def read_file(self, path: str) -> bytes:
        """The whole of a small file; FileNotFoundError when it is missing."""
        ...

    def replace_file(self, path: str, data: bytes) -> None:
        """Atomically replace a small file's content (temporary file, rename). Survives kill -9, not yet power loss."""
        ...

    async def publish(self, path: str, data: bytes) -> None:
        """:meth:`replace_file` and make it durable: temporary file, sync, rename, sync of the folder."""
        ...

    def replace(self, source: str, target: str) -> None:
        """Rename a file or folder; atomic; durable after :meth:`sync_folder`."""
        ...

    def remove(self, path: str) -> None:
        """Delete a file, or a folder with all in it; no error when it is missing."""
        ...

    async def sync_folder(self, folder: str) -> None:
        """Make creations, renames and removals in the folder durable."""
        ...

    def lock(self) -> None:
        """Take the data directory for this process until it ends; DiskFailed when another holds it."""
        ...

    def ignores_case(self) -> bool:
        """Return True if names that differ only in case are one name here. DiskFailed if names change case."""
        ...


class Server(Protocol):
    """A listening handler."""

    @property
    def address(self) -> Address:
        """Where it listens; port 0 is resolved."""
        ...

    async def close(self) -> None:
        """Stop accepting and end open connections. Handlers that run are left to finish."""
        ...


class Network(Protocol):
    """One framed call above HTTP, bytes both ways."""

    async def call(self, peer: Address, api: str, body: Buffers, *, deadline: float) -> bytes | bytearray:
        """Send and await the answer; nobody else holds its bytes.

        Raises Unreachable when the connection was never made (ConnectionRefused when the peer's machine said that
        nothing listens at the address), RequestRefused when the server refused the request unread;
        everything else that goes wrong, the deadline included, is OutcomeUnknown.
        """
        ...

    async def serve(
        self, address: Address, handler: Handler, *, listener: str = "", sessions: OpenSession | None = None
    ) -> Server:
        """Listen. ``listener`` is its name in the contexts of its requests; ``sessions`` serve connections that speak
        Kafka's protocol, which are refused without.
        """
        ...


class Events(Protocol):
    """What happened, and why: the structured log, the simulator's trace and marks, the journal (D9).

    ``kind`` is snake_case and in the past tense (``hw_advanced``); facts are JSON values (or tuples, sets of them).
    """

    def __call__(self, kind: str, /, **facts: object) -> None: ...


def no_events(kind: str, /, **facts: object) -> None:
    """An events sink that keeps nothing."""


HOT_EVENTS = frozenset({"batch_appended", "follower_fetched", "follower_hw_changed", "hw_advanced"})
"""Kinds of which busy brokers report thousands a second."""


class Unheard:
    """Kinds of hot events whose facts no log, journal, or observer reads at present.

    A rule that would report one counts it here instead, which costs a twentieth of reporting it. Sinks that offer this
    have it as ``unheard``; ``kinds`` changes while the broker runs (``mk.log.level``), ``counts`` only grows.

    ::

        if not unheard.counted("batch_appended"):
            events("batch_appended", partition=..., ...)
    """

    __slots__ = ("counts", "kinds")

    def __init__(self, kinds: frozenset[str] = frozenset()) -> None:
        self.kinds = kinds
        self.counts = dict.fromkeys(sorted(HOT_EVENTS), 0)

    def counted(self, kind: str) -> bool:
        """Count a hot event if nothing reads its facts; False: it must be reported."""
        if kind not in self.kinds:
            return False
        self.counts[kind] += 1
        return True


def unheard_by(events: Events) -> Unheard:
    """Return the sink's :class:`Unheard`; a sink without one, as a plain function, reads all events."""
    known = getattr(events, "unheard", None)
    return known if isinstance(known, Unheard) else Unheard()


class Offload(Protocol):
    """Runs a long computation, which touches nothing shared, beside the event loop."""

    async def __call__(self, work: Callable[[], _T], /) -> _T: ...


async def inline(work: Callable[[], _T], /) -> _T:
    """An :class:`Offload` that runs the computation at once, on the loop."""
    return work()


@dataclass(frozen=True, slots=True)
class World:
    """The ports of one incarnation of one node, or of one client, and a place for long computations."""

    clock: Clock
    network: Network
    disk: Disk
    events: Events
    random: Random
    """For what may be guessed: a Mersenne Twister makes no secrets."""
    entropy: Callable[[int], bytes]
    """So many unpredictable bytes, for secrets. Repeatable in the simulator only."""
    offload: Offload = inline
