"""Frames of Kafka's protocol that are almost right: written from the schema of each offered API and version, then
damaged in one known way. As in :mod:`tests.fuzz.requests`, one ``random.Random`` draws everything.
"""

from __future__ import annotations

import base64
import contextlib
import select
import socket
import struct
from dataclasses import dataclass
from random import Random
from typing import Any

from minikafka.errors import InvalidRequest
from minikafka.wire.kafka.codec import decode, varint
from minikafka.wire.kafka.offer import OFFERS
from minikafka.wire.kafka.schema import ApiSchema, Field, api_named
from minikafka.wire.kafka.translate.common import Translation
from tests.fuzz.requests import GROUPS, INTEGERS, MIB, SETTING_NAMES, TEXTS, TIMES, TOPICS, a_batch

FRAME_TARGETS: tuple[Translation, ...] = tuple(OFFERS.values())

HEADER = struct.Struct(">hhih")
SENTINEL_ID = 0x7E57
SENTINEL = struct.pack(">i", HEADER.size) + HEADER.pack(18, 0, SENTINEL_ID, -1)
"""ApiVersions version 0: its answer comes when everything before it has been answered."""
ANNOUNCED = 100 * MIB

FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
}
BITS = {"int8": 8, "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "int64": 64}
PARTITIONS = ("partition", "partition_index", "index", "partition_indexes", "partitions", "num_partitions")
TOPIC_NAMES = ("name", "topic", "topics", "topic_name", "topic_names", "resource_name")
GROUP_NAMES = ("group_id", "groups", "groups_names", "key", "coordinator_keys")

# How a message is damaged while it is written, and how a whole frame is.
INSIDE = ("length", "length", "length", "many", "many", "tags")
OUTSIDE = ("cut", "left over", "flipped", "version", "header", "size", "open", "slow", "http", "garbage", "pipelined")
# A change that is only validated must not become one that is made: hundreds of partitions would be.
CREATING = ("CreateTopics", "CreatePartitions")
SHIFTING = ("length", "tags", "flipped", "header", "version")
_LARGE = 8_000
"""Elements beyond this are copies of the first."""
MANY_BYTES_MAX = 4 * MIB
"""Copies end here, whatever their announced number."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Bytes for a port, and what must come of them."""

    name: str
    """The API and version, and how it was damaged."""
    data: bytes
    answer: tuple[str, int] | None = None
    """API and version by which answers are decoded; None: the frame may mean anything."""
    ends: bool = False
    """The sender closes its half behind ``data``: what is missing never comes."""
    stays: bool = False
    """The connection is left open, with part of a frame sent."""


class Writer:
    """Writes one message of the schema with drawn values; ``damage`` is one of INSIDE, or empty."""

    def __init__(self, random: Random, schema: ApiSchema, version: int, ids: list[bytes], damage: str) -> None:
        self.random = random
        self.schema = schema
        self.version = version
        self.flexible = schema.is_flexible(version)
        self.ids = ids
        self.out = bytearray()
        self._damage = damage
        self._left = random.randrange(8)
        """Places that could be damaged, before the one that is."""
        self._number = 0
        """Of the element of a long array that is being written."""

    def _is_hit(self, *damages: str) -> bool:
        if self._damage not in damages:
            return False
        self._left -= 1
        if self._left >= 0:
            return False
        self._damage = ""
        return True

    def message(self, fields: tuple[Field, ...]) -> None:
        here = [each for each in fields if each.is_in(self.version)]
        for each in here:
            if each.tag is None:
                self.field(each)
        if self.flexible:
            self.tags([each for each in here if each.tag is not None])

    def tags(self, known: list[Field]) -> None:
        """Tagged fields: some of the known ones; when damaged, wrong sizes, unknown tags, or far too many."""
        random = self.random
        sent = [each for each in known if random.random() < 0.5]
        if self._is_hit("tags"):
            kind = random.randrange(4)
            if kind == 0:
                self.out += varint(random.choice((1, 40_000, 60_000, 2**32 - 1)))
                return
            if kind == 1:
                count = random.choice((3, 5_000, 40_000))
                self.out += varint(count) + b"\x63\x00" * count
                return
            if kind == 2:
                self.out += varint(1) + varint(random.choice((0, 1, 7, 2**31))) + varint(random.choice((0, 1, 2**31)))
                return
            self.out += varint(2) + (varint(9) + varint(3) + b"abc") * 2
            return
        self.out += varint(len(sent))
        for each in sent:
            inner = Writer(random, self.schema, self.version, self.ids, "")
            inner.field(each)
            self.out += varint(each.tag or 0) + varint(len(inner.out)) + inner.out

    def length(self, size: int, *, wide: bool) -> None:
        if self._is_hit("length"):
            if self.flexible and self.random.random() < 0.2:
                self.out += b"\xff" * self.random.choice((4, 5, 12)) + b"\x0f"
                return
            size = self.random.choice((size + 1, size - 1, -1, -2, 2**15 - 1, 50_001, 2**31 - 2, size * 2 + 9))
        if self.flexible:
            self.out += varint((size + 1) & 0xFFFF_FFFF)
        elif wide:
            self.out += struct.pack(">i", size)
        else:
            self.out += struct.pack(">h", min(size, 2**15 - 1))

    def field(self, field: Field) -> None:
        random = self.random
        if field.may_be_null(self.version) and random.random() < 0.2:
            if field.kind == "struct" and not field.is_array:
                self.out.append(255)
            else:
                self.length(-1, wide=field.is_array or field.kind != "string")
        elif field.is_array:
            self.array(field)
        else:
            if field.kind == "struct" and field.may_be_null(self.version):
                self.out.append(1)
            self.one(field)

    def array(self, field: Field) -> None:
        random = self.random
        count = random.choice((0, 1, 1, 1, 2, 3))
        if self._is_hit("many"):
            count = random.choice((300, 2_000, 5_000, 7_000, 7_900, 60_000))
        self.length(count, wide=True)
        before = self._number
        is_distinct = random.random() < 0.7
        for at in range(min(count, _LARGE)):
            start = len(self.out)
            self._number = at if is_distinct else before
            self.one(field)
            if count > _LARGE or (count > 3 and len(self.out) - start > 400):
                one = self.out[start:]
                self.out += one * min(count - 1, MANY_BYTES_MAX // max(len(one), 1))
                break
        self._number = before

    def one(self, field: Field) -> None:
        """A value that is not null; of an array, one element."""
        random, kind, name = self.random, field.kind, field.name
        if kind == "struct":
            self.message(field.fields)
        elif kind == "uuid":
            # Topics that exist must not be deleted: the others of these requests would find nothing.
            own = self.ids if self.schema.name != "DeleteTopics" else []
            drawn = random.random()
            self.out += own[random.randrange(len(own))] if own and drawn < 0.8 else random.randbytes(16)
        elif kind == "float64":
            self.out += struct.pack(">d", random.choice((0.0, -1.0, float("nan"), float("inf"))))
        elif kind == "bool":
            # What a validated change is refused for is what the change itself is refused for.
            self.out.append(1 if name == "validate_only" else random.choice((0, 1)))
        elif kind in FIXED:
            bits = BITS[kind]
            value = self.integer(name) & (1 << bits) - 1
            self.out += value.to_bytes(bits // 8)
        else:
            value = {"string": self.text, "records": lambda _: a_batch(random), "bytes": self.some_bytes}[kind](name)
            self.length(len(value), wide=kind != "string")
            self.out += value

    def integer(self, name: str) -> int:
        random = self.random
        if name == "replica_id":
            return random.choice((-1, -1, -1, 99, -2))
        if name in TIMES or name.endswith("timeout_ms"):
            return random.choice((0, 1, 20, 100, 200, -1))
        if name in PARTITIONS:
            return self._number or random.choice((0, 0, 0, 1, 1, -1, 7, 2**31 - 1))
        if name == "acks":
            return random.choice((-1, -1, 1, 1, 0, 2))
        if "epoch" in name and random.random() < 0.6:
            return -1
        return random.choice(INTEGERS)

    def text(self, name: str) -> bytes:
        random = self.random
        if self.schema.name == "DeleteTopics":
            return b"none"
        if self._number and random.random() < 0.8:
            return b"t%d" % self._number
        if random.random() < 0.1:
            return random.choice(TEXTS).encode() if random.random() < 0.8 else b"\xff\xfe"
        if name in TOPIC_NAMES:
            return random.choice((*TOPICS, *SETTING_NAMES[:1])).encode()
        if name in GROUP_NAMES:
            return random.choice(GROUPS).encode()
        return random.choice(("", "consumer", "range", "m", *SETTING_NAMES)).encode()

    def some_bytes(self, _: str) -> bytes:
        return self.random.randbytes(self.random.choice((0, 1, 30)))


def whole(data: bytes) -> bytes:
    """With its size in front."""
    return struct.pack(">i", len(data)) + data


def frame_for(random: Random, target: Translation, ids: list[bytes]) -> Frame:
    """The next frame to an API."""
    drawn = random.random()
    damage = "right" if drawn < 0.35 else random.choice(INSIDE) if drawn < 0.7 else random.choice(OUTSIDE)
    if target.name in CREATING and damage in SHIFTING:
        damage = "cut"
    schema = api_named(target.name)
    version = random.randrange(target.first, target.last + 1)
    writer = Writer(random, schema, version, ids, damage if damage in INSIDE else "")
    writer.message(schema.request)
    client = random.choice((b"fuzz", b"", b"\xff\xfe", b"c" * 300))
    head = HEADER.pack(schema.key, version, random.randrange(1 << 31), len(client)) + client
    data = head + b"\0" * schema.is_flexible(version) + bytes(writer.out)
    name = f"{target.name} v{version} {damage}"
    if damage in OUTSIDE:
        return _damaged(random, name, damage, data, schema)
    return Frame(name, whole(data), (target.name, version))


def _damaged(random: Random, name: str, damage: str, data: bytes, schema: ApiSchema) -> Frame:
    if damage == "cut":
        return Frame(name, whole(data[: random.randrange(len(data))]))
    if damage == "left over":
        return Frame(name, whole(data + random.randbytes(random.choice((1, 3, 1_000, 300_000)))))
    if damage == "flipped":
        flipped = bytearray(data)
        for _ in range(random.choice((1, 3, 20))):
            flipped[random.randrange(4, len(flipped))] = random.randrange(256)
        return Frame(name, whole(bytes(flipped)))
    if damage == "version":
        key = random.choice((schema.key, schema.key, random.randrange(-5, 120)))
        return Frame(name, whole(struct.pack(">hh", key, random.choice((-1, 25, 99, 2**15 - 1))) + data[4:]))
    if damage == "header":
        size = random.choice((-2, 2**15 - 1, 200, 1))
        tags = random.choice((b"", b"\xff" * 9, varint(2**31), b"\x02\x00\x01x\x01\xff\xff\xff\xff\x0f"))
        return Frame(name, whole(data[:8] + struct.pack(">h", size) + tags + data[10:]))
    if damage == "size":
        size = random.choice((-1, -(2**31), 0, 3, len(data) + 1, len(data) * 2, ANNOUNCED, ANNOUNCED + 1, 2**31 - 1))
        return Frame(name, struct.pack(">i", size) + data, ends=True)
    if damage == "open":
        return Frame(name, struct.pack(">i", random.choice((MIB, 17_000, 100_000))) + data, stays=True)
    if damage == "slow":
        return Frame(name, whole(data)[: random.randrange(1, len(data) + 3)], stays=True)
    if damage == "http":
        text = b"GET /v1/cluster HTTP/1.1\r\nHost: x\r\n\r\n"
        return Frame(name, random.choice((whole(data) + text, text + whole(data), text[:9] + whole(data))), ends=True)
    if damage == "garbage":
        start = random.choice((b"\x16\x03\x01\x02\x00\x01", b"\0", b"\0\0\0\0", b"\xff" * 9, b"\r\n", b"\x06" * 8, b""))
        return Frame(name, start + random.randbytes(random.choice((1, 100, 20_000))), ends=True)
    # Requests that wait would wait for each other.
    if len(data) > 5_000 or schema.name in MAY_WAIT:
        data = HEADER.pack(18, 0, 1, -1)
    return Frame(name, whole(data) * random.choice((9, 100, 1_000)))


MAY_WAIT = ("JoinGroup", "SyncGroup", "Fetch", "Produce")
"""As tests.fuzz.run.MAY_WAIT, of Kafka's APIs."""


class FrameCaller:
    """One connection at a time for frames that are answered, and some that stay open with half a frame."""

    STAYING_MAX = 10

    def __init__(self, port: int, *, patience_s: float, parked_s: float) -> None:
        self._port = port
        self._patience_s = patience_s
        self._parked_s = parked_s
        self._socket: socket.socket | None = None
        self._staying: list[socket.socket] = []

    def close(self) -> None:
        """All of them."""
        self._drop()
        while self._staying:
            self._staying.pop().close()

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _open(self) -> socket.socket:
        opened = socket.create_connection(("127.0.0.1", self._port), self._patience_s)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def send(self, frame: Frame) -> tuple[str, list[bytes]]:
        """What became of it (answered, closed, left waiting), and the answers. TimeoutError: a hang."""
        if frame.stays:
            self._stay(frame)
            return "left open", []
        if frame.ends:
            self._drop()
        if self._socket is None:
            self._socket = self._open()
        used = self._socket
        answers: list[bytes] = []
        # Damage may have turned any request into one that waits.
        may_wait = frame.answer is None or frame.answer[0] in MAY_WAIT
        try:
            received = self._write(used, frame.data if frame.ends else frame.data + SENTINEL)
            if frame.ends:
                with contextlib.suppress(OSError):  # it is closed already
                    used.shutdown(socket.SHUT_WR)
                # While a large frame waits for room, its connection is not read, and its end is not seen.
                (announced,) = struct.unpack(">i", frame.data[:4].ljust(4, b"\0"))
                may_wait = len(frame.data) < announced <= ANNOUNCED
                used.settimeout(self._parked_s if may_wait else self._patience_s)
                while used.recv(1 << 18):
                    pass
                self._drop()
                return "closed", []
            used.settimeout(self._parked_s if may_wait else self._patience_s)
            self._collect(used, received, answers)
        except TimeoutError:
            self._drop()
            if not may_wait:
                raise
            return "left waiting", answers
        except ConnectionError:
            self._drop()
            return "closed", answers
        return "answered", answers

    def _stay(self, frame: Frame) -> None:
        self._staying.append(self._open())
        self._staying[-1].sendall(frame.data)
        for each in self._staying[::7]:
            try:
                each.sendall(b"\0")
            except ConnectionError:
                self._staying.remove(each)
                each.close()
        while len(self._staying) > self.STAYING_MAX:
            self._staying.pop(0).close()

    def _write(self, to: socket.socket, data: bytes) -> bytearray:
        """Send all; what was received meanwhile: the broker reads no further while nobody reads its answers."""
        received = bytearray()
        view = memoryview(data)
        to.settimeout(self._patience_s)
        while view:
            readable, writable, _ = select.select([to], [to], [], self._patience_s)
            if readable:
                received += self._part(to)
            elif writable:
                view = view[to.send(view[: 1 << 18]) :]
            else:
                raise TimeoutError
        return received

    def _collect(self, of: socket.socket, data: bytearray, answers: list[bytes]) -> None:
        """Add the answers up to the sentinel's, without their sizes; ``data`` has come already."""
        while True:
            while len(data) < 8 or len(data) < 4 + int.from_bytes(data[:4]):
                data += self._part(of)
            end = 4 + int.from_bytes(data[:4])
            answer = bytes(data[4:end])
            del data[:end]
            if int.from_bytes(answer[:4]) == SENTINEL_ID:
                return
            answers.append(answer)

    def _part(self, of: socket.socket) -> bytes:
        part = of.recv(1 << 18)
        if not part:
            raise ConnectionResetError
        return part


def codes_in(message: Any) -> set[int]:
    """All error codes of an answer."""
    if isinstance(message, dict):
        own = {value for name, value in message.items() if name == "error_code"}
        return own.union(*(codes_in(value) for value in message.values()))
    return set().union(*map(codes_in, message)) if isinstance(message, list) else set()


def fault_of(frame: Frame, answers: list[bytes], unknown_server_error: int) -> str:
    """What is wrong with the answers; empty if nothing is."""
    if frame.answer is None:
        return ""
    name, version = frame.answer
    at = 4 + (api_named(name).is_flexible(version) and name != "ApiVersions")
    for answer in answers:
        try:
            codes = codes_in(decode(name, "response", version, memoryview(answer), at))
        except InvalidRequest as error:
            if "too many elements" in error.message:
                continue  # this side's own limit
            return f"an answer that cannot be decoded: {error.message}"
        if unknown_server_error in codes:
            return "UNKNOWN_SERVER_ERROR"
    return ""


def topic_id(text: str) -> bytes:
    """The 16 bytes of an id as ``/v1`` writes it."""
    return base64.urlsafe_b64decode(text + "==")


def crowd(port: int, count: int, patience_s: float) -> int:
    """Open ``count`` connections that send little or part of a frame, and be served among them; how many were opened."""
    beginnings = (
        b"",
        b"\0",
        struct.pack(">i", ANNOUNCED) + HEADER.pack(0, 9, 1, 0),
        struct.pack(">i", 900) + HEADER.pack(3, 9, 1, 0),
        b"POST /rpc/Produce HTTP/1.1\r\nContent-Le",
        b"GET /v1/cluster HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    )
    sockets: list[socket.socket] = []
    served = FrameCaller(port, patience_s=patience_s, parked_s=patience_s)
    try:
        for number in range(count):
            sockets.append(socket.create_connection(("127.0.0.1", port), patience_s))
            sockets[-1].sendall(beginnings[number % len(beginnings)])
            if number % 100 == 0:
                outcome, _ = served.send(Frame("sentinel", SENTINEL, ("ApiVersions", 0)))
                if outcome != "answered":
                    raise TimeoutError(f"not served among {number} connections: {outcome}")
        return len(sockets)
    finally:
        served.close()
        for each in sockets:
            each.close()
