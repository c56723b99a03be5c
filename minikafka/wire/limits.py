"""Limits on msgpack and JSON documents, checked before an object is built, and short texts of rejected values.

Rules for this file:

1. The work for a head is bounded by its API (``Api.head_bytes_max``, ``Api.list_max``), not by what its sender says.
   One byte of msgpack can become a Python object of 56 bytes, so a limit on bytes alone is not enough.
2. The usual case costs one pass over the document in C: one with few bytes that can begin a list or a map holds few of
   them. Only where text or bytes contain many such bytes does :func:`_count` read it token by token, and it stops at
   the limit.
3. No value of a request is passed to ``repr`` or ``difflib`` in full: :func:`shown` and ``errors.nearest`` cut first.
"""

from __future__ import annotations

import functools
import reprlib
from dataclasses import dataclass, replace
from itertools import islice

from minikafka.wire.apis import Api

MAP_MEMBERS_MAX = 1_000
"""Members of one map; only the settings of a topic or a broker are a map of any length."""
TEXT_BYTES_MAX = 65_535
KAFKA_TEXT_BYTES_MAX = 32_767
"""Of a text in Kafka's protocol: what is to be shown there has no longer one."""

CONTAINERS_PER_LIST = 4
"""Lists and maps in one head, as a multiple of ``Api.list_max``: partitions come with lists of replicas."""
ELEMENTS_PER_LIST = 20
"""Values in one head, as a multiple of ``Api.list_max``."""
_SPARE = 100
_JSON_PER_MSGPACK = 2
"""JSON takes up to twice the bytes of the same msgpack head."""

SHOWN_LENGTH_MAX = 60
_INT_BITS_MAX = 256


# ---- short texts -----------------------------------------------------------------------------------------------------


class _Short(reprlib.Repr):
    """A bounded ``repr`` whose cost does not depend on the size of the value."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxdict = 3, 4, 4
        self.maxstring = self.maxother = self.maxlong = SHOWN_LENGTH_MAX

    def repr_bytes(self, value: bytes, _level: int) -> str:
        return repr(value[:SHOWN_LENGTH_MAX])

    def repr_int(self, value: int, level: int) -> str:
        bits = value.bit_length()
        return super().repr_int(value, level) if bits <= _INT_BITS_MAX else f"a number of {bits} bits"

    def repr_dict(self, value: dict[object, object], level: int) -> str:
        # The base class sorts all keys.
        if level <= 0 and value:
            return "{...}"
        first = [
            f"{self.repr1(key, level - 1)}: {self.repr1(value[key], level - 1)}" for key in islice(value, self.maxdict)
        ]
        return "{" + ", ".join([*first, "..."] if len(value) > len(first) else first) + "}"


_SHORT = _Short()


def shown(value: object) -> str:
    """A value as text, short enough for a sentence."""
    text = _SHORT.repr(value)
    return text if len(text) <= SHOWN_LENGTH_MAX else text[: SHOWN_LENGTH_MAX - 3] + "..."


# ---- documents -------------------------------------------------------------------------------------------------------


class TooMuch(ValueError):
    """A document is larger than the work that a request may cause; one sentence."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one document may hold."""

    size: int
    """Bytes."""
    containers: int
    """Lists and maps, at any depth."""
    elements: int
    """Values of all lists and maps together."""


@functools.cache
def bounds_of(api: Api) -> Bounds:
    """Of the msgpack head of a request."""
    return Bounds(
        size=api.head_bytes_max,
        containers=CONTAINERS_PER_LIST * api.list_max + _SPARE,
        elements=ELEMENTS_PER_LIST * api.list_max + _SPARE,
    )


def bounds_of_json(api: Api) -> Bounds:
    """Of a request's head as JSON."""
    bounds = bounds_of(api)
    return replace(bounds, size=_JSON_PER_MSGPACK * bounds.size)


def check_msgpack(data: memoryview, bounds: Bounds, *, counts_elements: bool = False) -> None:
    """Raise TooMuch if unpacking ``data`` would cost more than the bounds allow.

    ``counts_elements``: for callers that do not count values as they read them.
    """
    if len(data) > bounds.size:
        raise _too_large(data, bounds)
    whole = bytes(data)
    if (counts_elements and len(whole) > bounds.elements) or (
        len(whole) - len(whole.translate(None, _CONTAINER_BYTES)) > bounds.containers
    ):
        _count(whole, bounds)


def check_json(data: bytes, bounds: Bounds) -> None:
    """As :func:`check_msgpack`, for JSON. Brackets and commas inside strings count as well."""
    if len(data) > bounds.size:
        raise _too_large(data, bounds)
    if data.count(b"[") + data.count(b"{") > bounds.containers:
        raise _too_many_containers(bounds)
    if data.count(b",") > bounds.elements:
        raise _too_many_elements(bounds)


def _too_large(data: bytes | memoryview, bounds: Bounds) -> TooMuch:
    return TooMuch(f"{len(data)} bytes, {bounds.size} are accepted at most: send several requests")


def _too_many_containers(bounds: Bounds) -> TooMuch:
    return TooMuch(f"more than {bounds.containers} lists and objects: send several requests")


def _too_many_elements(bounds: Bounds) -> TooMuch:
    return TooMuch(f"more than {bounds.elements} values: send several requests")


_CONTAINER_BYTES = bytes([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])
# First byte -> bytes of the length behind it, and bytes behind that which the length does not count.
_SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)} | {
    0xD9: (1, 0),
    0xDA: (2, 0),
    0xDB: (4, 0),
}
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_FIXED_EXTENSION = {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}


def _step(first: int) -> int:
    """Bytes of a value or of a container's head, negative for a container; 0: a length follows."""
    if first in _SIZED:
        return 0
    if first >= 0xDC and first <= 0xDF:
        return -(3, 5, 3, 5)[first - 0xDC]
    if 0x80 <= first < 0xA0:
        return -1
    if 0xA0 <= first < 0xC0:
        return 1 + (first & 0x1F)
    return 1 + (_FIXED | _FIXED_EXTENSION).get(first, 0)


_STEPS = [_step(first) for first in range(256)]


def _count(data: bytes, bounds: Bounds) -> None:
    """Read ``data`` token by token, up to the first bound that is passed; what is malformed is left to the parser."""
    steps, size = _STEPS, len(data)
    position = containers = 0
    for _ in range(bounds.elements + 1):
        if position >= size:
            return
        step = steps[data[position]]
        if step > 0:
            position += step
        elif step < 0:
            position -= step
            containers += 1
            if containers > bounds.containers:
                raise _too_many_containers(bounds)
        else:
            width, more = _SIZED[data[position]]
            start = position + 1
            position = start + width + more + int.from_bytes(data[start : start + width])
    raise _too_many_elements(bounds)
