"""Limits on request heads, checked before an object is built of them, and short texts of values that were rejected.

Rules for this file:

1. The work for a head is bounded by its API (``Api.head_bytes_max``, ``Api.list_max``), not by what its sender says.
   One byte of msgpack can become a Python object of 56 bytes, so a limit on bytes alone is not enough.
2. The usual case costs one pass over the head in C: a head with few bytes that can begin a list or a map holds few of
   them. Only where text or bytes contain many such bytes does :func:`_count` read the head token by token, and it
   stops at the limit.
3. No value of a request is passed to ``repr`` or ``difflib`` in full: :func:`shown` and :func:`nearest` cut first.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from itertools import islice

from minikafka.errors import InvalidRequest
from minikafka.wire.apis import Api

MAP_MEMBERS_MAX = 1_000
"""Members of one map; only the settings of a topic or a broker are a map of any length."""
TEXT_BYTES_MAX = 65_535

CONTAINERS_PER_LIST = 4
"""Lists and maps in one head, as a multiple of ``Api.list_max``: partitions come with lists of replicas."""
ELEMENTS_PER_LIST = 20
"""Values in one head, as a multiple of ``Api.list_max``."""
_SPARE = 100
_JSON_PER_MSGPACK = 2
"""JSON takes up to twice the bytes of the same msgpack head."""

SHOWN_LENGTH_MAX = 60
_NAME_LENGTH_MAX = 80
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


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that ``name`` may have meant; empty if there is none."""
    return next(iter(difflib.get_close_matches(name[:_NAME_LENGTH_MAX], sorted(known), n=1)), "")


# ---- heads -----------------------------------------------------------------------------------------------------------


def check_head(api: Api, head: memoryview) -> None:
    """Raise InvalidRequest if building the msgpack ``head`` would cost more than requests of ``api`` may."""
    if len(head) > api.head_bytes_max:
        raise _beyond(api, f"the head has {len(head)} bytes", "at most", api.head_bytes_max)
    containers_max = CONTAINERS_PER_LIST * api.list_max + _SPARE
    if len(head) - len(bytes(head).translate(None, _CONTAINER_BYTES)) > containers_max:
        _count(api, head, containers_max)


def check_json(api: Api, body: bytes) -> None:
    """As :func:`check_head`, for a head that is JSON text. Brackets and commas inside strings count as well."""
    bytes_max = _JSON_PER_MSGPACK * api.head_bytes_max
    if len(body) > bytes_max:
        raise _beyond(api, f"the body has {len(body)} bytes", "at most", bytes_max)
    containers_max = CONTAINERS_PER_LIST * api.list_max + _SPARE
    if body.count(b"[") + body.count(b"{") > containers_max:
        raise _beyond(api, "too many lists and objects", "at most", containers_max)
    elements_max = elements_limit(api)
    if body.count(b",") > elements_max:
        raise _beyond(api, "too many values", "at most", elements_max)


def elements_limit(api: Api) -> int:
    """How many values all lists of one request may have together."""
    return ELEMENTS_PER_LIST * api.list_max + _SPARE


def _beyond(api: Api, what: str, relation: str, limit: int) -> InvalidRequest:
    return InvalidRequest(f"{api.name}: {what}, {relation} {limit} are accepted; send several requests", limit=limit)


_CONTAINER_BYTES = bytes([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])
# First byte -> bytes of the value behind it.
_FIXED = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_FIXED_EXTENSION = {0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
# First byte -> bytes of the length behind it, and bytes behind that which the length does not count.
_SIZED = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)} | {
    0xD9: (1, 0),
    0xDA: (2, 0),
    0xDB: (4, 0),
}
_SKIP = [0] * 256
for _first in range(0xA0, 0xC0):
    _SKIP[_first] = _first & 0x1F
for _first, _size in (_FIXED | _FIXED_EXTENSION).items():
    _SKIP[_first] = _size


def _count(api: Api, head: memoryview, containers_max: int) -> None:
    """Read the head token by token, up to the first limit that is passed; what is malformed is left to the parser."""
    position, size = 0, len(head)
    containers = elements = 0
    elements_max = elements_limit(api)
    while position < size:
        first = head[position]
        position += 1
        elements += 1
        if 0x80 <= first < 0xA0 or 0xDC <= first <= 0xDF:
            containers += 1
            position += (2, 4, 2, 4)[first - 0xDC] if first >= 0xDC else 0
        elif first in _SIZED:
            width, more = _SIZED[first]
            position += width + more + int.from_bytes(head[position : position + width])
        else:
            position += _SKIP[first]
        if containers > containers_max:
            raise _beyond(api, "too many lists and maps", "at most", containers_max)
        if elements > elements_max:
            raise _beyond(api, "too many values", "at most", elements_max)
