"""Faults on the links between nodes, for tests: what was asked for, how often each struck, who waits for that.

A link is the way that a *message* travels: a request of broker 2 to broker 1 travels ``2>1``, its answer ``1>2`` (as in
the simulator). So losing a request and losing its answer are two faults, and the second one leaves its sender with an
unknown outcome.

=========== ============================================================================================================
cut         the connection breaks at once. Request: ``Unreachable``, nothing was sent. Answer: ``OutcomeUnknown``
drop        the message vanishes. Request or answer: ``OutcomeUnknown``, at the caller's deadline
delay       the message arrives ``delay_ms`` later, and up to ``jitter_ms`` more
hold        the message waits until the fault is healed, also beyond its sender's patience
duplicate   the request is sent again once it has been answered; the first answer counts
reorder     the message waits until a later one on its way has arrived (a request: was answered), for ``delay_ms`` at
            the most; while one waits, the others pass
error       the request is answered with the error code ``error`` and is not handled. With ``message="answer"`` it is
            handled, and the error replaces its answer
=========== ============================================================================================================

A fault may strike by chance (``probability``). Its draws come from its ``seed``; one that is given none gets it from
the seed of the run (``mk.seed``) and its own number, so that the same faults set in the same order draw the same.

Rules for this file: faults act in the order in which they were added; a message that was delayed, held or duplicated
meets the next one. A healed fault lets everything go at once. All of it happens on one event loop. What was set and how
it ended is an event, with the seeds, so that a journal has all that is needed to do it again.

A message that is held shows which partitions and offsets it concerns (:class:`Place`). Its body is decoded only then,
so that other messages cost nothing. Fetch sessions (KIP-227) leave partitions without news out of a message; they are
left out here too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from minikafka.errors import BY_NAME as ERRORS
from minikafka.errors import (
    NOT_WRITTEN,
    UNKNOWN,
    DiskFailed,
    InvalidRequest,
    ProtocolError,
    did_you_mean,
    meant_or_listed,
)
from minikafka.faults import CLIENT, MESSAGE_KINDS, METADATA_FETCH, MessageKind
from minikafka.ports import Buffer, Buffers, Events, FileRegion
from minikafka.types import NodeId, Offset
from minikafka.wire.apis import BY_NAME
from minikafka.wire.batch import RecordBatch, iterate
from minikafka.wire.codec import decode_request, decode_response, find_api
from minikafka.wire.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse

Contents: TypeAlias = "Buffers | object"
"""The body of a message, or the message itself where its connection has decoded it."""

_DESCRIBED = ("Fetch", "Produce")


class Place(NamedTuple):
    """One partition of a message. None: the message does not say it."""

    topic: str
    partition: int
    offset: Offset | None = None
    """Fetch request: the first offset that is wanted. Responses: the first record's."""
    last_offset: Offset | None = None
    """Fetch response: the last record's; None: it has no records."""
    record_count: int | None = None
    """Produce request, Fetch response."""
    high_watermark: Offset | None = None
    """Fetch response: the leader's. Fetch request of a follower: the one that it knows."""

    def __str__(self) -> str:
        name = f"{self.topic}-{self.partition}"
        if self.last_offset is not None:
            name += f" offsets {self.offset} to {self.last_offset}"
        elif self.offset is not None:
            name += f" offset {self.offset}"
        if self.last_offset is None and self.record_count:
            name += f", {self.record_count} record{'s' if self.record_count > 1 else ''}"
        return name if self.high_watermark is None else f"{name}, HW {self.high_watermark}"


def places_of(api: str, message: str, contents: Contents) -> tuple[Place, ...]:
    """The partitions of a message, in its order; none if it is of another API, or cannot be read.

    Args:
        api: Name of the API, as in ``/rpc/{Api}``.
        message: ``request`` or ``answer``.
        contents: The body, or the decoded message.
    """
    if api not in _DESCRIBED:
        return ()
    try:
        return tuple(_places_in(_decoded(api, message, contents)))
    except (ProtocolError, DiskFailed):
        return ()  # its receiver answers that it cannot be read; it is held all the same


def body_in(contents: Contents) -> Buffers:
    """The body, if it is one; nothing of a decoded message."""
    return contents if isinstance(contents, Sequence) else ()


def _decoded(api: str, message: str, contents: Contents) -> Any:
    if not isinstance(contents, Sequence):
        return contents
    body = b"".join(_bytes_of(each) for each in contents)
    return decode_request(find_api(api), body) if message == "request" else decode_response(api, body)


def _bytes_of(part: Buffer | FileRegion) -> Buffer:
    """Records below the high watermark may be a region of a file."""
    return part if isinstance(part, (bytes, bytearray, memoryview)) else part.read(0, len(part))


def _places_in(message: object) -> Iterable[Place]:
    if isinstance(message, FetchRequest):
        for wanted in message.partitions:
            yield Place(
                wanted.topic, wanted.partition, wanted.fetch_offset, high_watermark=_known(wanted.high_watermark)
            )
    elif isinstance(message, FetchResponse):
        for fetched in message.partitions:
            batches = _batches_in(fetched.records)
            yield Place(
                fetched.topic,
                fetched.partition,
                batches[0].base_offset if batches else None,
                batches[-1].last_offset if batches else None,
                sum(each.record_count for each in batches),
                _known(fetched.high_watermark),
            )
    elif isinstance(message, ProduceRequest):
        for sent in message.partitions:
            count = sum(each.record_count for each in _batches_in(sent.records))
            yield Place(sent.topic, sent.partition, record_count=count)
    elif isinstance(message, ProduceResponse):
        for produced in message.partitions:
            yield Place(produced.topic, produced.partition, _known(produced.base_offset))


def _batches_in(records: Buffers) -> list[RecordBatch]:
    return list(iterate(b"".join(_bytes_of(each) for each in records)))


def _known(offset: Offset) -> Offset | None:
    return None if offset < 0 else offset


FaultKind: TypeAlias = Literal["cut", "drop", "delay", "hold", "duplicate", "reorder", "error"]

KINDS: Final[tuple[FaultKind, ...]] = ("cut", "drop", "delay", "hold", "duplicate", "reorder", "error")

ANYONE = "*"
BROKER = "broker"
"""Words for the ends of a link, besides a node id and ``client``."""

EVERY_API = "*"
WITHOUT_FAULTS: Final = "RunTestHook"
"""Sets and heals faults at other brokers. A fault that stopped it could not be healed through another broker."""

APIS: Final = (EVERY_API, METADATA_FETCH, *(name for name in BY_NAME if name != WITHOUT_FAULTS))

# Longer than any test, shorter than any number that a timer refuses.
DELAY_MS_MAX = 3_600_000.0

REORDER_MS = 1000.0
"""What a ``reorder`` waits for a later message when nothing else is said: well inside every caller's patience."""

SEED_MAX = 2**63 - 1
COUNT_MAX = 1_000_000_000

Way: TypeAlias = tuple[str, str, MessageKind]
"""From whom, to whom, which message: on one way, messages have an order."""

_END = r"(\*|broker|client(?::[^\s<>]{1,200})?|\d{1,10})"
_LINK = re.compile(rf"\s*{_END}\s*(<?)>\s*{_END}\s*", re.ASCII)


def client_source(client_id: str) -> str:
    """A client of Kafka's protocol as an end of a link: ``client:billing``."""
    return f"{CLIENT}:{client_id}" if client_id else CLIENT


class Link(NamedTuple):
    """Where messages travel: ``2>1``, ``*>1``, ``client>2``, ``client:billing>2``, ``3>broker``; ``2<>1`` both ways."""

    source: str
    target: str
    both_ways: bool = False

    @classmethod
    def parse(cls, text: str) -> Link:
        """The link that the text names; InvalidRequest tells the form."""
        found = _LINK.fullmatch(text)
        if found is None:
            raise InvalidRequest(
                f"link {text[:40]!r}: FROM>TO is needed, or FROM<>TO for both ways; each end is a node id, "
                f"{BROKER!r}, {CLIENT!r}, '{CLIENT}:CLIENT_ID' or {ANYONE!r}: '2>1', '3<>broker', 'client>1'",
                field="link",
            )
        source, both_ways, target = found.groups()
        return cls(source, target, bool(both_ways))

    def carries(self, source: str, target: str) -> bool:
        """Return True if this link carries a message between these two. A node's link to itself must be named."""
        if source == target and (source, target) != (self.source, self.target):
            return False
        if _is_at(self.source, source) and _is_at(self.target, target):
            return True
        return self.both_ways and _is_at(self.source, target) and _is_at(self.target, source)

    def check_brokers(self, known: Collection[int]) -> None:
        """Raise InvalidRequest if an end is the number of a broker that is not among these: it would never strike."""
        for end in (self.source, self.target):
            if end.isdecimal() and int(end) not in known:
                brokers = ", ".join(map(str, sorted(known)))
                raise InvalidRequest(f"link {str(self)!r}: there is no broker {end}, only {brokers}", field="link")

    def ends_at(self, nodes: Collection[str]) -> bool:
        """Return True if it begins or ends at one of these."""
        return any(_is_at(end, node) for end in (self.source, self.target) for node in nodes)

    def __str__(self) -> str:
        return f"{self.source}{'<>' if self.both_ways else '>'}{self.target}"


def _is_at(end: str, node: str) -> bool:
    is_client = node == CLIENT or node.startswith(f"{CLIENT}:")
    return end in {ANYONE, node} or end == (CLIENT if is_client else BROKER)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSpec:
    """What shall go wrong. Raises InvalidRequest, whose fact ``field`` names the member that cannot be."""

    kind: FaultKind
    link: str
    api: str = EVERY_API
    """As in ``/rpc/{Api}``; or METADATA_FETCH."""
    message: MessageKind | None = None
    """None: requests and answers; of ``duplicate`` and ``error``, requests."""
    count: int | None = None
    """So many messages; None: all until it is healed."""
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    probability: float = 1.0
    """Of striking each message that it concerns."""
    seed: int | None = None
    """Of its draws; None: made of the run's seed and the fault's number."""
    error: str | None = None
    """Of ``error``: Kafka's name of the error, such as ``NOT_LEADER_OR_FOLLOWER``."""
    for_ms: float | None = None
    """It ends by itself after so long; None: when it is healed."""

    def __post_init__(self) -> None:
        Link.parse(self.link)
        _one_of("kind", self.kind, KINDS)
        _one_of("api", self.api, APIS)
        _one_of("message", self.message, (None, *MESSAGE_KINDS))
        if self.count is not None and self.count < 1:
            raise InvalidRequest(f"count={self.count}: at least 1 is needed, or nothing for all", field="count")
        for name, value in (("delay_ms", self.delay_ms), ("jitter_ms", self.jitter_ms)):
            if not 0 <= value <= DELAY_MS_MAX:
                raise InvalidRequest(f"{name}={value}: from 0 to {DELAY_MS_MAX:.0f} is needed", field=name)
            if value and self.kind not in _KINDS_WITH[name]:
                raise InvalidRequest(
                    f"{name} belongs to kind {' and '.join(map(repr, _KINDS_WITH[name]))}, not to {self.kind!r}",
                    field=name,
                )
        if self.kind == "delay" and not self.delay_ms + self.jitter_ms:
            raise InvalidRequest("a delay needs delay_ms, jitter_ms or both", field="delay_ms")
        if self.kind == "duplicate" and self.message == "answer":
            raise InvalidRequest("an answer that comes twice has no effect: duplicate the request", field="message")
        self._check_error()
        if not 0 < self.probability <= 1:
            raise InvalidRequest(
                f"probability={self.probability}: more than 0 and at most 1 is needed", field="probability"
            )
        if self.seed is not None and not 0 <= self.seed <= SEED_MAX:
            raise InvalidRequest(f"seed={self.seed}: from 0 to {SEED_MAX} is needed", field="seed")
        if self.for_ms is not None and not 0 < self.for_ms <= DELAY_MS_MAX:
            raise InvalidRequest(
                f"for_ms={self.for_ms}: more than 0 and at most {DELAY_MS_MAX:.0f} is needed", field="for_ms"
            )

    def _check_error(self) -> None:
        if self.kind != "error":
            if self.error is not None:
                raise InvalidRequest(f"error belongs to kind 'error', not to {self.kind!r}", field="error")
            return
        if self.error is None:
            raise InvalidRequest("kind 'error' needs Kafka's name of an error, such as 'NOT_CONTROLLER'", field="error")
        if self.error not in ERRORS:
            otherwise = "Kafka's name of an error is needed, such as 'NOT_CONTROLLER'"
            hint = did_you_mean(self.error.upper(), ERRORS, quoted=True, otherwise=otherwise)
            raise InvalidRequest(f"error={self.error[:40]!r}{hint}", field="error")
        if self.api == EVERY_API:
            raise InvalidRequest("kind 'error' needs an api: no error code suits all of them", field="api")
        if self.api == "ApiVersions":
            why = "connections of Kafka's protocol answer it themselves, and no fault strikes it"
            raise InvalidRequest(f"{self.api} cannot be answered with an error: {why}", field="api")


def paused(node: NodeId) -> FaultSpec:
    """To all others the broker stands still: nothing that it sends or is sent arrives; its own clocks go on."""
    return FaultSpec(kind="hold", link=f"{node}<>{ANYONE}")


def paused_fetching(node: NodeId) -> FaultSpec:
    """The broker follows nobody: what it asks leaders for does not arrive."""
    return FaultSpec(kind="hold", link=f"{node}>{BROKER}", api="Fetch", message="request")


_KINDS_WITH: Final[dict[str, tuple[FaultKind, ...]]] = {"delay_ms": ("delay", "reorder"), "jitter_ms": ("delay",)}


def _one_of(name: str, value: str | None, allowed: tuple[str | None, ...]) -> None:
    if value not in allowed:
        words = [each for each in allowed if each is not None]
        raise InvalidRequest(f"{name}={str(value)[:40]!r}{meant_or_listed(str(value), words)}", field=name)


@dataclass(slots=True, eq=False)
class Held:
    """A message that a fault of kind ``hold`` holds."""

    number: int
    """Of the messages that its fault has held, from 1."""
    way: Way
    api: str
    since: float
    """On the loop's clock."""
    places: tuple[Place, ...] = ()
    """The partitions and offsets that it concerns, as far as it says so."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    is_lost: bool = False
    """It was released to be lost."""


@dataclass(slots=True, eq=False)
class Fault:
    """One fault and what it did. It stays in the list, with its hits, until it is healed."""

    number: int
    spec: FaultSpec
    link: Link
    seed: int
    """Of its draws."""
    set_by: str = ""
    """The client that set it, as its software names itself; empty: code in this process."""
    hits: int = 0
    """How many messages it struck."""
    late: dict[Way, asyncio.Event] = field(default_factory=dict)
    """``reorder``: the message that waits on each way, to be set when a later one has arrived."""
    held: list[Held] = field(default_factory=list)
    """``hold``: the messages that wait, in the order in which they came."""
    healed: asyncio.Event = field(default_factory=asyncio.Event)
    _held_so_far: int = 0
    _struck: asyncio.Event = field(default_factory=asyncio.Event)
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)

    @property
    def is_active(self) -> bool:
        """Return True if it will strike again."""
        return not self.healed.is_set() and (self.spec.count is None or self.hits < self.spec.count)

    def concerns(self, source: str, target: str, api: str, message: MessageKind) -> bool:
        """Return True if the fault concerns this message; its probability then decides."""
        spec = self.spec
        kind = spec.message or ("request" if spec.kind in {"duplicate", "error"} else None)
        return (
            self.is_active and spec.api in {EVERY_API, api} and kind in {None, message}
            and self.link.carries(source, target) and (source, target, message) not in self.late
        )  # fmt: skip

    def chances(self) -> bool:
        """Draw whether it strikes the next message."""
        return self.spec.probability >= 1 or self._random.random() < self.spec.probability

    def wait_s(self) -> float:
        """How long a message that is delayed or reordered waits at the most. Draws the jitter."""
        spec = self.spec
        if spec.kind == "reorder":
            return (spec.delay_ms or REORDER_MS) / 1000
        return (spec.delay_ms + self._random.random() * spec.jitter_ms) / 1000

    def error(self, message: MessageKind) -> ProtocolError:
        """The error that a struck message is answered with; a request that it stops was not handled."""
        return ERRORS[str(self.spec.error)](str(self), outcome=NOT_WRITTEN if message == "request" else UNKNOWN)

    def strike(self) -> None:
        """Count one more hit."""
        self.hits += 1
        self._struck.set()

    async def until_hits(self, count: int) -> int:
        """Return when it has struck so often; the number of hits. InvalidRequest when it never will."""
        while self.hits < count:
            if not self.is_active:
                how = "is over" if self.healed.is_set() else f"has done its count of {self.spec.count}"
                raise InvalidRequest(f"fault {self.number} {how} after {self.hits} hits: {count} will not come")
            self._struck.clear()
            await self._struck.wait()
        return self.hits

    def heal(self) -> None:
        """It strikes no more; what it holds back goes on its way, and waiters for hits end."""
        self.healed.set()
        self._struck.set()
        for waiting in self.late.values():
            waiting.set()
        self.release(len(self.held))

    def keep(self, way: Way, api: str, since: float, places: tuple[Place, ...]) -> Held:
        """Hold a message, until :meth:`release` lets it go."""
        self._held_so_far += 1
        held = Held(self._held_so_far, way, api, since, places)
        self.held.append(held)
        return held

    def release(
        self, count: int, *, latest: bool = False, lose: bool = False, numbers: Collection[int] | None = None
    ) -> int:
        """Let so many held messages go, or lose them; how many there were. ``numbers``: only of these messages.

        A sender that has given up repeats its request, and waits only for the ``latest`` one.
        """
        found = [each for each in self.held if numbers is None or each.number in numbers]
        chosen = found[-count:] if latest else found[:count]
        for each in chosen:
            self.held.remove(each)
            each.is_lost = lose
            each.released.set()
        return len(chosen)

    def __str__(self) -> str:
        spec = self.spec
        what = f" {spec.message}s" if spec.message else ""
        return f"fault {self.number} ({spec.kind} {self.link}, {spec.api}{what})"


class Faults:
    """All faults of one process. ``seed`` is the run's: every draw follows from it."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.active: dict[int, Fault] = {}
        """By number, in order. Empty: a call pays one look at it."""
        self.nodes: dict[str, Events] = {}
        """Nodes whose own end is in this process, and where they tell: what they send meets its faults there, and not
        again here.
        """
        self._numbers = 0
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def add(self, spec: FaultSpec, *, by: str = "") -> Fault:
        """From now on. InvalidRequest for one that shall end by itself where no loop runs, before the start."""
        number = self._numbers + 1
        seed = spec.seed if spec.seed is not None else Random(f"{self.seed}/{number}").getrandbits(48)
        fault = Fault(number, spec, Link.parse(spec.link), seed, by)
        if spec.for_ms is not None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                raise InvalidRequest("for_ms: no time passes before the brokers are started", field="for_ms") from None
            self._timers[number] = loop.call_later(spec.for_ms / 1000, self._time_is_up, fault)
        self._numbers = number
        self.active[number] = fault
        self._tell_set(fault)
        return fault

    def join(self, node: str, tell: Events) -> None:
        """A node of this process; the first one hears of the faults that were set before it came."""
        first = not self.nodes
        self.nodes[node] = tell
        for fault in self.active.values() if first else ():
            self._tell_set(fault)

    def heal(self, number: int) -> Fault | None:
        """End one fault; None when there is none of this number."""
        fault = self.active.pop(number, None)
        if fault is not None:
            timer = self._timers.pop(number, None)
            if timer is not None:
                timer.cancel()
            if not fault.healed.is_set():
                fault.heal()
                self._tell("fault_over", fault=number, hits=fault.hits, why="it was healed")
        return fault

    def ends_in_ms(self, fault: Fault) -> int | None:
        """Time until the fault ends by itself; None: it is over, or only healing ends it."""
        timer = self._timers.get(fault.number)
        return None if timer is None else max(0, round((timer.when() - asyncio.get_running_loop().time()) * 1000))

    def release(
        self, fault: Fault, count: int, *, latest: bool, lose: bool, numbers: Collection[int] | None = None
    ) -> int:
        """See :meth:`Fault.release`."""
        released = fault.release(count, latest=latest, lose=lose, numbers=numbers)
        self._tell("fault_released", fault=fault.number, messages=released, lost=lose)
        return released

    def _time_is_up(self, fault: Fault) -> None:
        """It stays in the list, with its hits, as one does that has done its count."""
        del self._timers[fault.number]
        fault.heal()
        self._tell("fault_over", fault=fault.number, hits=fault.hits, why=f"its {fault.spec.for_ms:g} ms are over")

    def _tell_set(self, fault: Fault) -> None:
        asked = {each.name: getattr(fault.spec, each.name) for each in fields(fault.spec)}
        settings = {("what" if name == "kind" else name): value for name, value in asked.items() if value is not None}
        self._tell("fault_set", fault=fault.number, **{**settings, "seed": fault.seed})

    def _tell(self, kind: str, **facts: object) -> None:
        for tell in list(self.nodes.values())[:1]:
            tell(kind, **facts)

    def clear(self) -> int:
        """End all; how many there were."""
        count = len(self.active)
        for number in list(self.active):
            self.heal(number)
        return count

    def overtaken(self, way: Way, api: str) -> list[asyncio.Event]:
        """What waits for this message to pass it: to be set when it has arrived."""
        late = [fault for fault in self.active.values() if way in fault.late]
        return [fault.late[way] for fault in late if fault.spec.api in {EVERY_API, api}]

    def on(self, source: str, target: str, api: str, message: MessageKind) -> Iterator[Fault]:
        """What strikes this message, in order; a fault is asked when its turn has come."""
        if api == WITHOUT_FAULTS:
            return
        for fault in list(self.active.values()):
            if fault.concerns(source, target, api, message) and fault.chances():
                fault.strike()
                yield fault
