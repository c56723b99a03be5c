"""Requests that are almost right: made from the tables of APIs and routes, then damaged in one known way.

Everything is drawn from one ``random.Random``: the same seed gives the same requests, in any process.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import struct
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import quote

import msgpack
import msgspec
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode

from minikafka.rest.parameters import Choice, Flag, Integer
from minikafka.rest.route import Route
from minikafka.rest.routes import ROUTES
from minikafka.wire.apis import APIS, Api
from minikafka.wire.batch import CODEC_NAMES, HEADER_SIZE, RecordBatch, with_fields
from minikafka.wire.messages import Message
from minikafka.wire.records import Record, build_batch

JSON, MSGPACK = "application/json", "application/msgpack"
TOPICS = ("orders", "compacted", "wide")
GROUPS = ("g", "billing", "x")
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it goes out."""

    name: str
    """The API or route, and how it was damaged."""
    method: str
    target: str
    body: bytes
    headers: tuple[tuple[str, str], ...]
    length: int | None = None
    """A declared length that is not the body's."""


class Raw(bytes):
    """Bytes that stand in a message as they are: msgpack that no packer would write."""


# ---- packing ---------------------------------------------------------------------------------------------------------


def packed(value: Any) -> bytes:
    """Msgpack with :class:`Raw` pieces."""
    if type(value) is Raw:
        return bytes(value)
    try:
        # Refuses Raw, and is a hundred times as fast.
        return typing.cast("bytes", msgpack.packb(value, strict_types=True))
    except (TypeError, OverflowError, ValueError):
        pass
    if type(value) is list:
        return msgpack.Packer().pack_array_header(len(value)) + b"".join(map(packed, value))
    if type(value) is dict:
        inner = b"".join(packed(name) + packed(each) for name, each in value.items())
        return msgpack.Packer().pack_map_header(len(value)) + inner
    try:
        return typing.cast("bytes", msgpack.packb(value))
    except (OverflowError, ValueError):  # an int beyond 64 bits, a deep value
        return b"\xcf" + b"\xff" * 8


def framed(head: bytes, records: bytes = b"") -> bytes:
    return struct.pack(">I", len(head)) + head + records


def as_json(value: Any) -> bytes:
    def other(each: Any) -> Any:
        return base64.b64encode(each).decode() if isinstance(each, bytes) else str(each)

    return json.dumps(value, default=other).encode()


# ---- values ----------------------------------------------------------------------------------------------------------

INTEGERS = (-(2**63), -3, -2, -1, 0, 0, 1, 1, 2, 7, 100, 2**31 - 2, 2**31 - 1, 2**31, 2**53, 2**63 - 1)
TEXTS = (
    "",
    "x",
    "all",
    "preferred",
    "no/slash",
    "a\nb",
    "\u00e9" * 300,
    "__cluster_metadata",
    "\u0663",
    "\u00b2",
    "1_000",
    " 5 ",
)
SETTING_NAMES = ("retention.ms", "segment.bytes", "cleanup.policy", "max.message.bytes", "retntion.ms", "")
# Of these a wrong value is nobody's attack: it would wait, or end this broker as its peers may.
TIMES = ("max_wait_ms", "timeout_ms", "rebalance_timeout_ms", "session_timeout_ms")


def integer(random: Random, name: str) -> int:
    if name.endswith("_ms") and name in TIMES:
        return random.choice((0, 1, 20, 100, 200)) if random.random() < 0.97 else random.choice(INTEGERS)
    if name in ("partition", "num_partitions", "replication_factor", "count", "acks"):
        return random.choice((0, 0, 1, 1, -1, 7, 2**31 - 1))
    return random.choice(INTEGERS)


def text(random: Random, name: str) -> str:
    if random.random() < 0.15:
        return random.choice(TEXTS)
    if name in ("topic", "topics", "name", "resource_name"):
        return random.choice(TOPICS)
    if "group" in name or name == "keys":
        return random.choice(GROUPS)
    return random.choice(("", "", "consumer", "range", "member-1", "m", *TOPICS))


class Messages:
    """Values for the members of messages, by type and name."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.records = bytearray()
        """What travels behind the head."""

    def of(self, kind: type) -> dict[str, Any]:
        """A message: required members, and some of the others."""
        members = {}
        for each in msgspec.structs.fields(kind):
            if each.required or self.random.random() < 0.5:
                members[each.name] = self.value(hints(kind)[each.name], each.name)
        return members

    def value(self, hint: Any, name: str) -> Any:
        random = self.random
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if hint is Any:  # records
            batch = a_batch(random)
            self.records += batch
            return len(batch)
        if origin in (typing.Union, types.UnionType):
            inner = next(each for each in arguments if each is not type(None))
            return None if random.random() < 0.3 else self.value(inner, name)
        if origin is tuple:
            return [self.value(arguments[0], name) for _ in range(random.choice((0, 1, 1, 1, 2, 3)))]
        if origin is dict:
            return {
                random.choice(SETTING_NAMES): random.choice(("1", "compact", *TEXTS))
                for _ in range(random.randrange(3))
            }
        if isinstance(hint, type) and issubclass(hint, Message):
            return self.of(hint)
        if hint is int:
            return integer(random, name)
        if hint is bool:
            return random.random() < 0.5
        if hint is bytes:
            return random.randbytes(random.choice((0, 1, 30)))
        return text(random, name)


@functools.cache
def hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


# ---- batches ---------------------------------------------------------------------------------------------------------

ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip_encode,
    "snappy": snappy_encode,
    "lz4": lz4_encode,
    "zstd": zstd_encode,
}


@functools.cache
def bombs() -> tuple[bytes, ...]:
    """Batches with a right checksum that expand far beyond what they are."""
    one = b"\x0c\x00\x00\x00\x01\x01\x00"
    bodies = [(codec, encode(bytes(60 * MIB))) for codec, encode in ENCODERS.items()]
    bodies += [(codec, encode(one * 2_000_000)) for codec, encode in ENCODERS.items()]
    bodies += [("snappy", b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + struct.pack(">i", -4) * 4)]
    bodies += [("zstd", b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 20), ("snappy", b"\xff\xff\xff\xff\x0fx")]
    return tuple(batch_of(codec, body, count) for codec, body in bodies for count in (1, 2_000_000, 2**31 - 1))


def batch_of(codec: str, body: bytes, count: int) -> bytes:
    """A batch with any body and count, and a right checksum."""
    head = bytearray(build_batch([Record(0, 1, value=b"")]))[:HEADER_SIZE]
    struct.pack_into(">i", head, 8, HEADER_SIZE - 12 + len(body))
    struct.pack_into(">i", head, 23, count - 1)
    struct.pack_into(">i", head, 57, count)
    batch = RecordBatch.of(bytes(head) + body)
    return with_fields(batch, attributes=CODEC_NAMES.index(codec)) + body


def a_batch(random: Random) -> bytes:
    """Mostly right ones, so that logs fill and are read; then bombs, random bodies, flipped bits."""
    drawn = random.random()
    if drawn < 0.03:
        return random.choice(bombs())
    if drawn < 0.1:
        return batch_of(
            random.choice(CODEC_NAMES), random.randbytes(random.randrange(200)), random.choice((0, 1, 9, -1))
        )
    records = [
        Record(at, 1_795_000_000_000, key=b"k%d" % random.randrange(50), value=random.randbytes(random.randrange(60)))
        for at in range(random.choice((1, 1, 5, 40)))
    ]
    batch = build_batch(records, compression=random.choice(CODEC_NAMES))
    if drawn < 0.2:
        flipped = bytearray(batch)
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
        return bytes(flipped)
    return batch[: random.randrange(len(batch))] if drawn < 0.25 else batch


# ---- damage ----------------------------------------------------------------------------------------------------------


def deep(random: Random) -> Raw:
    """Lists or maps in each other."""
    depth = random.choice((20, 65, 300, 980, 1_020, 1_023, 5_000))
    return Raw(b"\x91" * depth + b"\x90") if random.random() < 0.5 else Raw(b"\x81\xa1a" * depth + b"\xc0")


def wide(random: Random) -> Raw:
    """Lists and maps with very many values, in the fewest bytes."""
    count = random.choice((1_000, 5_001, 20_000, 100_000, 1_000_000))
    kind = random.randrange(5)
    if kind == 0:
        return Raw(
            b"\xdd" + struct.pack(">I", count) + random.choice((b"\x90", b"\x80", b"\xc0", b"\xa0", b"\xc3")) * count
        )
    if kind == 1:
        rows = max(1, min(count // 1_000, 4_999))
        return Raw(b"\xdc" + struct.pack(">H", rows) + (b"\xdc\x03\xe8" + b"\x90" * 1_000) * rows)
    if kind == 2:
        return _map_of_nulls(min(count, 100_000))
    if kind == 3:
        return Raw(b"\xdd" + struct.pack(">I", count) + b"\xcb" + b"\x7f" * 8 * count)
    return Raw(packed("a" * count))


@functools.cache
def _map_of_nulls(count: int) -> Raw:
    names = (packed(f"{at:x}") + b"\xc0" for at in range(count))
    return Raw(b"\xdf" + struct.pack(">I", count) + b"".join(names))


def declared(random: Random) -> Raw:
    """Lengths that nothing follows."""
    return Raw(
        random.choice((b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"))
        + b"\xff" * 4
        + random.choice((b"", b"\x01", b"xx"))
    )


def odd(random: Random) -> Any:
    """A value of another type."""
    return random.choice(
        (
            None,
            True,
            -1,
            2**63 - 1,
            1.5,
            float("nan"),
            float("inf"),
            "",
            "x" * 10_000,
            b"\xff\x00",
            [],
            [[]],
            {},
            {"a": 1},
            msgpack.ExtType(5, b"x" * 300),
            msgpack.Timestamp(1, 2),
            Raw(b"\xc1"),
            2**64,
        )
    )


DAMAGE: dict[str, Callable[[Random], Any]] = {"odd": odd, "deep": deep, "wide": wide, "declared": declared}


def places(value: Any) -> list[tuple[Any, Any]]:
    """(container, key) of everything inside."""
    found: list[tuple[Any, Any]] = []
    inside = value.items() if type(value) is dict else enumerate(value) if type(value) is list else ()
    for key, each in inside:
        found.append((value, key))
        found.extend(places(each))
    return found


def _many(random: Random, values: list[Any]) -> None:
    """Make a right list long: what its handler does for each element is done as often as an API lets it."""
    count = random.choice((200, 5_000, 5_000, 5_001, 10_000))
    first = values[0]
    copies = []
    for at in range(count):
        each = json.loads(as_json(first)) if type(first) is dict and at % 50 == 0 else first
        if type(each) is dict and type(each.get("partition")) is int:
            each = {**each, "partition": at}
        elif type(each) is dict and type(each.get("name")) is str:
            each = {**each, "name": f"t{at}"}
        elif type(each) is str:
            each = f"{each}{at}"
        copies.append(each)
    values[:] = copies


def damaged(random: Random, value: Any) -> tuple[Any, str]:
    """``value`` with one member replaced, added or taken away, or replaced as a whole; and how."""
    how = random.choice(("odd", "odd", "odd", "deep", "wide", "declared", "unknown", "missing"))
    spots = places(value)
    lists = [holder[key] for holder, key in spots if type(holder[key]) is list and holder[key]]
    if lists and random.random() < 0.15:
        grown = random.choice(lists)
        _many(random, grown)
        return value, f"{len(grown)} elements"
    if how == "unknown" and type(value) is dict:
        holders = [value, *(holder[key] for holder, key in spots if type(holder[key]) is dict)]
        random.choice(holders)[random.choice(("x", "toppic", "a" * 5_000, "a" * 500_000, ""))] = 1
    elif how == "missing" and spots:
        holder, key = random.choice(spots)
        del holder[key]
    else:
        how = how if how in DAMAGE else "odd"
        other = DAMAGE[how](random)
        if not spots or random.random() < 0.1:
            return other, how
        holder, key = random.choice(spots)
        holder[key] = other
    return value, how


def hostile_text(random: Random) -> bytes:
    """JSON, or what is called so."""
    count = random.choice((70, 5_000, 50_000, 700_000))
    return random.choice(
        (
            lambda: b"[" * count,
            lambda: b"[" * count + b"]" * count,
            lambda: b'{"a":' * count + b"1" + b"}" * count,
            lambda: b"[" + b"[]," * count + b"[]]",
            lambda: b"[" + b"{}," * count + b"{}]",
            lambda: b'{"records":[' + b'{"value":1},' * (count // 4) + b'{"value":1}]}',
            lambda: b"[" + b"1," * count + b"1]",
            lambda: b"[" + b"1e5," * count + b"1e999]",
            lambda: b'{"' + b"a" * count * 4 + b'":1}',
            lambda: b"\n".join([b'{"value":1}'] * (count // 4)),
            lambda: b"9" * count,
            lambda: b'"' + b"\\ud800" * (count // 4) + b'"',
            lambda: b"NaN",
            lambda: b'{"a":1,"a":2}',
            lambda: b"\xff\xfe" * 10,
            lambda: b"",
        )
    )()


# ---- requests --------------------------------------------------------------------------------------------------------

# What a peer may do to this broker as long as there is no authentication (docs/operations.md): asked as strangers.
PEERS = frozenset({"BrokerRegistration", "BrokerHeartbeat", "AlterPartition", "AllocateProducerIds"})
QUORUM = frozenset({"Vote", "BeginQuorumEpoch", "EndQuorumEpoch"})


def made_harmless(api: Api, message: Any) -> None:
    """Nothing that the cluster is meant to obey: it must stay up to be asked."""
    if type(message) is not dict:
        return
    if api.name in PEERS:
        message["broker_id"] = 99
    if api.name in QUORUM:
        message["cluster_id"] = "another"
    if api.name == "Fetch" and message.get("replica_id", -1) >= 0:
        message["replica_id"] = 99
    if api.name in ("AlterConfigs", "IncrementalAlterConfigs"):
        message["validate_only"] = True
    if api.name == "DeleteTopics":
        message["topics"] = ["none"]
    if api.name == "CreateTopics":
        message["validate_only"] = True
    if api.name == "CreatePartitions":
        message["validate_only"] = True


def rpc_request(random: Random, api: Api) -> Request:
    """One request to ``/rpc``."""
    messages = Messages(random)
    message: Any = messages.of(api.request)
    made_harmless(api, message)
    how = "right"
    if random.random() < 0.6:
        message, how = damaged(random, message)
    if random.random() < 0.25:
        body = hostile_text(random) if random.random() < 0.3 else as_json(message)
        return Request(f"{api.name} json {how}", "POST", f"/rpc/{api.name}", body, (("Content-Type", JSON),))
    body = framed(packed(message), bytes(messages.records))
    drawn = random.random()
    if drawn < 0.05:
        body, how = body[: random.randrange(len(body) + 1)], "cut"
    elif drawn < 0.1:
        flipped = bytearray(body)
        for _ in range(random.choice((1, 3, 20))):
            flipped[random.randrange(len(flipped))] = random.randrange(256)
        body, how = bytes(flipped), "flipped"
    elif drawn < 0.12:
        body, how = struct.pack(">I", random.choice((0, 2**31, 2**32 - 1, 5))) + body[4:], "head size"
    length = None
    if random.random() < 0.01:
        length, how = random.choice((len(body) + 1, 16 * MIB, 100 * MIB, 2**40)), "declared length"
    return Request(f"{api.name} {how}", "POST", f"/rpc/{api.name}", body, (("Content-Type", MSGPACK),), length)


PATH_VALUES = {
    "topic": (*TOPICS, "none"),
    "partition": ("0", "1", "7"),
    "group": (*GROUPS, "none"),
    "broker": ("1", "1", "9"),
    "member": ("m", "member-1"),
}
ODD_PATHS = ("..", "%00", "\u0663", "-1", "2147483648", "a" * 300, "a b", "\u00e9")


def path_of(random: Random, route: Route) -> str:
    def part(found: re.Match[str]) -> str:
        if random.random() < 0.1:
            return quote(random.choice(ODD_PATHS), safe="%")
        return quote(random.choice(PATH_VALUES.get(found[1], ("1", "x"))), safe="")

    return re.sub(r"\{(\w+)\}", part, route.path)


def query_of(random: Random, route: Route) -> str:
    pairs = []
    for each in route.parameters:
        if each.place != "query" or random.random() < 0.6 or each.name == "follow":
            continue
        if random.random() < 0.2:
            value = random.choice((*TEXTS, "9" * 5_000, "-0", "1e3", "nan"))
        elif isinstance(each, Integer):
            value = str(random.choice((each.low, each.high, 0, 1, 5)))
            if each.name.endswith("_ms"):
                value = str(random.choice((0, 1, 20)))
        elif isinstance(each, Choice):
            value = random.choice(each.options)
        elif isinstance(each, Flag):
            value = random.choice(("true", "false"))
        else:
            value = random.choice(("earliest", "latest", "-5", "1", "x", "all"))
        pairs.append(f"{each.name}={quote(value)}")
    if random.random() < 0.05:
        pairs.append(random.choice(("x=1", "offset=1&offset=2", "a" * 3_000, "%ff=%ff", "=")))
    return "?" + "&".join(pairs) if pairs else ""


def records_of(random: Random) -> Any:
    """Records for ``/v1``, from one to as many as a request may have."""
    count = random.choice((1, 1, 3, 100, 10_000, 10_001))
    one = random.choice(
        ({"value": 1}, {"key": "k", "value": {"a": [1, 2]}, "headers": [["h", "v"]]}, {"value": "x" * 300})
    )
    return {"records": [one] * count} if random.random() < 0.7 else [one] * count


def v1_request(random: Random, route: Route) -> Request:
    """One request to a route that people use."""
    target = path_of(random, route) + query_of(random, route)
    headers: list[tuple[str, str]] = []
    if random.random() < 0.2:
        headers.append(("Accept", random.choice((MSGPACK, JSON, "*/*", "text/event-stream", "x", ";q="))))
    if random.random() < 0.05:
        name = random.choice(("Producer-Id", "Base-Sequence", "Last-Event-ID", "Range", "Content-Encoding", "Cookie"))
        headers.append((name, random.choice(("", "7", "gzip", "bytes=0-1", "\u00e9", "9" * 400))))
    method = route.method
    if method == "GET" and random.random() < 0.1:
        method = "HEAD"
    name = f"{route.method} {route.path}"
    if route.body is None:
        return Request(name, method, target, b"", tuple(headers))
    contents = route.body.contents
    kind = random.choice((JSON, JSON, MSGPACK, *contents))
    example = contents[JSON][1] if JSON in contents else {}
    value: Any = json.loads(
        as_json(records_of(random) if "records" in route.path and random.random() < 0.5 else example)
    )
    how = "right"
    if type(value) is dict and route.method == "POST" and route.path == "/v1/topics":
        target = target.split("?")[0] + "?dry_run=true"
    if random.random() < 0.6:
        value, how = damaged(random, value)
    if kind == MSGPACK:
        body = packed(value)
    elif kind == JSON:
        body = hostile_text(random) if random.random() < 0.2 else as_json(value)
    else:
        body = hostile_text(random) if random.random() < 0.5 else as_json(value)
    headers.append(("Content-Type", kind))
    return Request(f"{name} {kind} {how}", method, target, body, tuple(headers))


# Deleting what is asked about would leave nothing to ask; tests of the process are no part of the product's API.
_LEFT_OUT = {("DELETE", "/v1/topics/{topic}")}
TARGETS: tuple[Api | Route, ...] = (
    *APIS,
    *(route for route in ROUTES if not route.testing and (route.method, route.path) not in _LEFT_OUT),
)


def request_for(random: Random, target: Api | Route) -> Request:
    """The next request to an API or a route."""
    return rpc_request(random, target) if isinstance(target, Api) else v1_request(random, target)
