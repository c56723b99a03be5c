"""JSON as text, strict when read; also how long texts are written: in short turns, as lines, or as Server-Sent Events.

The reader refuses what is not UTF-8, NaN and Infinity, numbers that no double holds, lone surrogates, a member that
comes twice (one of the two would be lost in silence), and nesting deeper than DEPTH_MAX. Whatever passes can be written
again; writing never fails.

JSON on ``/rpc/{Api}`` (:func:`json_rpc`) is the protocol itself for curl (D7). The request is the head as a JSON
object, the answer the response's head; bytes (of groups) are base64 in both. Record batches are not carried, their
sizes stand in their place. As on all of ``/rpc``, Kafka's error code is in the answer and the status is 200.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Awaitable
from itertools import pairwise
from typing import Any, Final
from weakref import WeakKeyDictionary

from minikafka.broker.large_turns import LargeTurns
from minikafka.config import KIB
from minikafka.errors import ProtocolError
from minikafka.ports import Buffers, Handler, RequestContext
from minikafka.wire.codec import decode_json, decode_response, encode_json, encode_request, error_response, find_api
from minikafka.wire.garbage import without_collection

# Far deeper than any record of a person, far from the recursion limit of any Python.
DEPTH_MAX = 64

ELEMENTS_AT_ONCE = 500

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class NotJson(ValueError):
    """One sentence about what is wrong with a text."""


def parse(data: bytes | memoryview) -> Any:
    """The value that the text stands for; NotJson with one sentence."""
    try:
        text = str(data, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotJson(f"byte {error.start} is not UTF-8") from None
    try:
        looks_at_each = sum(map(text.count, _OF_FRACTIONS)) <= _FLOATS_LOOKED_AT
        decoder = _STRICT if looks_at_each else _DECODER
        if len(text) <= _SMALL_TEXT:
            value = decoder.decode(text)
        else:
            with without_collection():
                value = decoder.decode(text)
    except json.JSONDecodeError as error:
        raise NotJson(f"not JSON from line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise NotJson(f"nested deeper than {DEPTH_MAX}") from None
    except NotJson:
        raise
    except ValueError:
        raise NotJson("a number has more digits than can be kept") from None
    if text.count("[") + text.count("{") > DEPTH_MAX and is_deep(value):
        raise NotJson(f"nested deeper than {DEPTH_MAX}")
    if not looks_at_each and _has_infinity(value):
        raise NotJson("a number is too large")
    if "\\u" in text and _SURROGATE_ESCAPE.search(text):
        try:
            compact(value)
        except UnicodeEncodeError:
            raise NotJson("half of a surrogate pair is not a character") from None
    return value


def compact(value: Any) -> bytes:
    """The shortest text, in UTF-8. Raises TypeError or ValueError for what JSON cannot hold (from msgpack)."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def text_of(value: Any) -> bytes:
    """An answer's text: one line, ends with a newline for a terminal's sake."""
    try:
        return json.dumps(value, ensure_ascii=False, default=str).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(value, default=str).encode() + b"\n"


async def text_in_turns(value: Any) -> bytes:
    """As :func:`text_of`, for a large answer: the elements of its lists are written with other work in between."""
    if type(value) is not dict or not any(
        type(each) in (list, tuple) and len(each) > ELEMENTS_AT_ONCE for each in value.values()
    ):
        return text_of(value)
    members = []
    for name, each in value.items():
        if type(each) not in (list, tuple):
            members.append(text_of(name)[:-1] + b": " + text_of(each)[:-1])
            continue
        parts = []
        for start in range(0, len(each), ELEMENTS_AT_ONCE):
            await long_step()
            parts.append(text_of(each[start : start + ELEMENTS_AT_ONCE])[1:-2])
        members.append(text_of(name)[:-1] + b": [" + b", ".join(parts) + b"]")
    return b"{" + b", ".join(members) + b"}\n"


def is_deep(value: Any) -> bool:
    """Return True if it is nested deeper than DEPTH_MAX."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEPTH_MAX):
        level = [
            inner
            for each in level
            for inner in (each.values() if type(each) is dict else each)
            if type(inner) in _KINDS
        ]
        if not level:
            return False
    return True


def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object from its members in order; NotJson when one comes twice, or its name is no text."""
    found = dict(pairs)
    if not all(type(name) is str for name in found):
        raise NotJson("a member's name is no text")
    if len(found) != len(pairs):
        names = sorted(name for name, _ in pairs)
        twice = next(name for name, following in pairwise(names) if name == following)
        raise NotJson(f"the member {twice[:60]!r} comes twice in one object")
    return found


def _has_infinity(value: Any) -> bool:
    level = [value]
    while level:
        if any(inner in _INFINITIES for inner in level if type(inner) is float):
            return True
        level = [
            inner for each in level if type(each) in _KINDS for inner in (each.values() if type(each) is dict else each)
        ]
    return False


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """As :func:`members`, for the many small objects of JSON, whose names are texts."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else members(pairs)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise NotJson(f"{text[:40]} is too large for a number")
    return number


def _refused_constant(name: str) -> Any:
    raise NotJson(f"{name} is not JSON")


# Of a longer text so many objects may be made that the collector would run.
_SMALL_TEXT = 4 * KIB
# Checking each fraction while it is read takes longer than reading it: of more, all values are checked afterwards.
_FLOATS_LOOKED_AT = 50_000
# One of these is in every number that is beyond what a double holds.
_OF_FRACTIONS = ".eE"
_INFINITIES = (math.inf, -math.inf)
_KINDS = frozenset({dict, list})
_DECODER = json.JSONDecoder(object_pairs_hook=_named_once, parse_constant=_refused_constant)
_STRICT = json.JSONDecoder(object_pairs_hook=_named_once, parse_float=_finite, parse_constant=_refused_constant)


TURN_BYTES: Final = 64 * KIB
"""Some milliseconds of reading or writing JSON."""
ITEM_BYTES: Final = 250
"""What an item costs beside its bytes, as bytes."""

_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, LargeTurns] = WeakKeyDictionary()


async def long_step() -> None:
    """Call it before a step of TURN_BYTES or more: it gets a turn of the loop in which no other long step runs
    (``large_turns.py``). Otherwise thirty large requests would take thirty long steps in each turn.
    """
    loop = asyncio.get_running_loop()
    turns = _TURNS.get(loop)
    if turns is None:
        turns = _TURNS[loop] = LargeTurns()
    await turns.next()


class Turns:
    """The work since the last turn of others."""

    def __init__(self) -> None:
        self._done = 0

    async def after(self, size: int) -> None:
        """One more item of ``size`` bytes is done."""
        self._done += size + ITEM_BYTES
        if self._done >= TURN_BYTES:
            self._done = 0
            await long_step()


EVENT_STREAM = "text/event-stream"
NDJSON = "application/x-ndjson"

RETRY = b"retry: 1000\n\n"
HEARTBEAT = b": heartbeat\n\n"
FAREWELL = b'event: end\ndata: {"why": "the broker stops"}\n\n'


def event(kind: str, data: dict[str, Any], number: object = None) -> bytes:
    """One event; ``number`` is what a reader that reconnects says as ``Last-Event-ID``."""
    head = b"" if number is None else b"id: %b\n" % str(number).encode()
    # JSON in one line holds no line break of its own.
    return head + b"event: " + kind.encode() + b"\ndata: " + text_of(data) + b"\n"


_ANY_API = find_api("ApiVersions")
"""Its error answer has only the members that every response has."""


def json_rpc(handler: Handler) -> Handler:
    """A handler of JSON bodies before the handler of msgpack bodies; the network's ``translate``."""

    async def handle(api_name: str, body: bytes | bytearray, context: RequestContext) -> Buffers:
        try:
            api = find_api(api_name)
        except ProtocolError as error:
            return [encode_json(error_response(_ANY_API, error)) + b"\n"]
        try:
            request = decode_json(api, bytes(body).strip(), parse)
        except ProtocolError as error:
            return [encode_json(error_response(api, error)) + b"\n"]
        if len(body) >= TURN_BYTES:
            await long_step()
        packed = b"".join(encode_request(request))
        if len(body) >= TURN_BYTES:
            await long_step()
        answering = handler(api_name, packed, context)
        answer = b"".join(await answering if isinstance(answering, Awaitable) else answering)
        if len(answer) >= TURN_BYTES:
            await long_step()
        response = decode_response(api_name, answer)
        if len(answer) >= TURN_BYTES:
            await long_step()
        return [encode_json(response) + b"\n"]

    return handle
