"""Messages to bytes and back: a msgpack head of known length, then raw record batches (D7).

::

    body = head size (4 bytes, big-endian) | head (one msgpack map) | raw bytes, in the order of the head's sizes

Rules for this file:

- A batch is never packed, joined or copied: going out it stays its own buffer, coming in it is a slice of the body.
- Members equal to their default are left out; a member that this version does not know is an error in a request
  (the caller would believe it had an effect) and ignored in a response (the peer may be newer).
- Whatever arrives, the only thing raised is InvalidRequest or UnsupportedVersion, and it names the member.
- Where no batches travel, the head may also be JSON text (no size in front): ``decode_json`` and ``encode_json``. Bytes
  are base64 in it.
- The work for a request is bounded before its head is unpacked, and again as its lists are read: see ``limits.py``.
- msgspec reads the usual head straight into a message. Where it refuses one, or the head may pass a limit, the slower
  way through a dict decides: it names the member, ignores unknown members of responses, and reads JSON.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgpack
import msgspec
from msgspec.structs import force_setattr, replace

from minikafka.errors import (
    NOT_WRITTEN,
    InvalidRequest,
    LoginRefused,
    NotABroker,
    OutcomeUnknown,
    ProtocolError,
    RequestRefused,
    UnsupportedVersion,
    did_you_mean,
)
from minikafka.ports import Buffers
from minikafka.wire.apis import BY_NAME, Api
from minikafka.wire.garbage import without_collection
from minikafka.wire.limits import (
    MAP_MEMBERS_MAX,
    TEXT_BYTES_MAX,
    TooMuch,
    bounds_of,
    bounds_of_json,
    check_json,
    check_msgpack,
    shown,
)
from minikafka.wire.messages import Message

# The largest head of a response, for clients: requests have limits of their own (limits.py).
HEAD_BYTES_MAX = 32 * 1024 * 1024
# Of a refusal of HTTP itself, so much is read, and so much of what is no problem is shown.
REFUSAL_BYTES_MAX, REFUSAL_SHOWN_MAX = 16_384, 200
UNAUTHORIZED = 401
UNREAD_STATUSES = (403, 413, 415)
"""HTTP statuses of requests that were refused by their head or their size."""
NO_ROUTE_STATUSES = (404, 405, 501)
"""HTTP statuses of servers without such a route. A broker has it, and each of its refusals is a problem (RFC 9457)."""
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_SIZE = struct.Struct(">I")
SIZE_SIZE = _SIZE.size
_encode = msgspec.msgpack.Encoder().encode
_TOO_LARGE = re.compile(rb"\xcf[\x80-\xff]")
"""An unsigned number of msgpack that does not fit 64 bits with a sign, or other bytes that look like one."""
Decode = Callable[[Any, "_Raw"], Any]


class _Bad(Exception):
    """A member that cannot be read; the path grows on the way out."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.path = ""


_UNUSUAL = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, _Bad)
"""What reading a head straight into a message raises if it is malformed, or not a message of that class."""


class _Raw:
    """The bytes behind the head, handed out front to back, and how the head is to be read."""

    __slots__ = ("at", "elements_left", "is_json", "is_request", "list_max", "view")

    def __init__(
        self,
        view: memoryview,
        at: int,
        *,
        elements_left: int | None = None,
        list_max: int = 0,
        is_json: bool = False,
    ) -> None:
        """``elements_left``: values that all lists of a request may have together; None: it is a response.
        ``list_max``: values that one of them may have; 0: its parser has counted them.
        """
        self.view = view
        self.list_max = list_max
        self.at = at
        self.is_request = elements_left is not None
        self.elements_left = elements_left or 0
        self.is_json = is_json

    def take(self, size: int) -> tuple[memoryview, ...]:
        end = self.at + size
        if size < 0 or end > len(self.view):
            raise _Bad(f"{size} bytes of records announced, {len(self.view) - self.at} are there")
        part = self.view[self.at : end]
        self.at = end
        return (part,) if size else ()


def _decode_int(value: Any, _raw: _Raw) -> int:
    if type(value) is not int:
        raise _Bad(f"a whole number is needed, not {shown(value)}")
    if not INT64_MIN <= value <= INT64_MAX:
        raise _Bad(f"{shown(value)} does not fit 64 bits")
    return value


def _decode_float(value: Any, _raw: _Raw) -> float:
    if type(value) is not float and type(value) is not int:
        raise _Bad(f"a number is needed, not {shown(value)}")
    try:
        return float(value)
    except OverflowError:
        raise _Bad(f"{shown(value)} is too large") from None


def _decoder_of(kind: type, what: str) -> Decode:
    def decode(value: Any, _raw: _Raw) -> Any:
        if type(value) is not kind:
            raise _Bad(f"{what} is needed, not {shown(value)}")
        return value

    return decode


def _decode_bytes(value: Any, raw: _Raw) -> bytes:
    if raw.is_json and type(value) is str:
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise _Bad(f"base64 is needed, not {shown(value)}") from None
    if type(value) is not bytes:
        raise _Bad(f"{'base64' if raw.is_json else 'bytes'} is needed, not {shown(value)}")
    return value


def _decode_records(value: Any, raw: _Raw) -> tuple[memoryview, ...]:
    return raw.take(_decode_int(value, raw))


def _decode_str_map(value: Any, _raw: _Raw) -> dict[str, str]:
    if type(value) is not dict or not all(type(k) is str and type(v) is str for k, v in value.items()):
        raise _Bad(f"a map of texts to texts is needed, not {shown(value)}")
    return value


_PLAIN: dict[Any, Decode] = {
    int: _decode_int,
    str: _decoder_of(str, "a text"),
    float: _decode_float,
    bool: _decoder_of(bool, "true or false"),
    bytes: _decode_bytes,
    Any: _decode_records,
}


def _decode_of(annotation: Any) -> Decode:
    """What reads a member of this type."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType) and type(None) in arguments:
        return _optional(next(each for each in arguments if each is not type(None)))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return _tuple_of(arguments[0])
    if origin is dict and arguments == (str, str):
        return _decode_str_map
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return _layout(annotation).decode
    raise TypeError(f"no encoding for {annotation!r}")


def _optional(inner: Any) -> Decode:
    inner_decode = _decode_of(inner)

    def decode(value: Any, raw: _Raw) -> Any:
        return None if value is None else inner_decode(value, raw)

    return decode


def _tuple_of(inner: Any) -> Decode:
    inner_decode = _decode_of(inner)

    def decode(value: Any, raw: _Raw) -> Any:
        if type(value) is not list:
            raise _Bad(f"a list is needed, not {shown(value)}")
        if raw.is_request:
            if raw.list_max and len(value) > raw.list_max:
                raise _Bad(f"{len(value)} values, {raw.list_max} are accepted at most: send several requests")
            raw.elements_left -= len(value)
            if raw.elements_left < 0:
                raise _Bad("too many values in all lists together; send several requests")
        result: list[Any] = []
        try:
            for each in value:
                result.append(inner_decode(each, raw))  # noqa: PERF401 - its length names the one that is wrong
        except _Bad as bad:
            bad.path = f"[{len(result)}]{bad.path}"
            raise
        return tuple(result)

    return decode


class _Layout:
    """The members of one message class."""

    def __init__(self, kind: type[Message]) -> None:
        self.kind = kind
        self.read = msgspec.msgpack.Decoder(kind).decode
        hints = typing.get_type_hints(kind)
        members = msgspec.structs.fields(kind)
        self.decoders = {each.name: _decode_of(hints[each.name]) for each in members}
        self._required = [each.name for each in members if each.required]
        self.carriers = tuple(
            (each.name, nested, each.required)
            for each in members
            if (nested := _carries(hints[each.name])) or hints[each.name] is Any
        )
        """Members that are records, or that hold messages with records (True); and whether they must be sent."""

    def decode(self, members: Any, raw: _Raw) -> Any:
        if type(members) is not dict:
            raise _Bad(f"a map is needed, not {shown(members)}")
        decoders = self.decoders
        values = {}
        for name, value in members.items():
            decode = decoders.get(name)
            if decode is _decode_int and type(value) is int and INT64_MIN <= value <= INT64_MAX:
                values[name] = value
            elif decode is not None:
                try:
                    values[name] = decode(value, raw)
                except _Bad as bad:
                    bad.path = f".{name}{bad.path}"
                    raise
            elif raw.is_request:
                raise self._unknown(name)
        try:
            return self.kind(**values)
        except TypeError:
            raise self._missing(values) from None

    def _missing(self, values: Mapping[str, Any]) -> _Bad:
        """For a member without a default that is not there."""
        missing = _Bad("is missing")
        missing.path = "." + next(name for name in self._required if name not in values)
        return missing

    def _unknown(self, name: Any) -> _Bad:
        """For a member that no field has: its sender would believe that it had an effect."""
        hint = did_you_mean(name, self.decoders, quoted=True) if type(name) is str else ""
        return _Bad(f"unknown member {shown(name)}{hint}")


def _carries(annotation: Any) -> bool:
    """Return True for a tuple of messages that have records."""
    inner = typing.get_args(annotation)[0] if typing.get_origin(annotation) is tuple else None
    return isinstance(inner, type) and issubclass(inner, Message) and bool(_layout(inner).carriers)


_LAYOUTS: dict[type, _Layout] = {}


def _layout(kind: type[Message]) -> _Layout:
    """The layout of a message class, made on its first use: a broker uses a few of them."""
    layout = _LAYOUTS.get(kind)
    if layout is None:
        layout = _LAYOUTS[kind] = _Layout(kind)
    return layout


def find_api(name: str) -> Api:
    """The API called ``name``; raises InvalidRequest with the nearest name."""
    api = BY_NAME.get(name)
    if api is None:
        raise InvalidRequest(f"no API is called {shown(name)}{did_you_mean(name, BY_NAME)}")
    return api


def encode_request(request: Any) -> Buffers:
    """The body of a request: head, then its record buffers untouched. Raises InvalidRequest for too large numbers."""
    out: list[Any] = [b""]
    try:
        head = _encode(_with_sizes(request, out))
    except OverflowError:
        raise InvalidRequest("a number of the request has more than 64 bits; use a smaller one") from None
    out[0] = _SIZE.pack(len(head)) + head
    return out


encode_response = encode_request
"""The body of a response."""


def _with_sizes(message: Message, out: list[Any]) -> Message:
    """The message with the sizes of its records in their place; they are appended to ``out``."""
    carriers = _layout(type(message)).carriers
    if not carriers:
        return message
    sizes: dict[str, Any] = {}
    for name, nested, is_required in carriers:
        value = getattr(message, name)
        if nested:
            if value:
                sizes[name] = tuple([_with_sizes(each, out) for each in value])
        elif value or is_required:
            out.extend(value)
            sizes[name] = sum(map(len, value))
    return replace(message, **sizes) if sizes else message


def _take_records(message: Message, raw: _Raw) -> None:
    """Put records in the place of their sizes, in a message that has just been read."""
    for name, nested, _ in _layout(type(message)).carriers:
        value = getattr(message, name)
        if nested:
            for each in value:
                _take_records(each, raw)
        elif value != ():
            force_setattr(message, name, _decode_records(value, raw))


_LARGE_HEAD = 64 * 1024
"""Thousands of objects are made of a larger head."""


def decode_request(api: Api, body: bytes | bytearray | memoryview) -> Any:
    """The typed request in ``body``. Raises InvalidRequest or UnsupportedVersion, naming the member."""
    view = memoryview(body)
    end = _head_end(api.name, view)
    # A head that is too short to pass any limit: a member of a map has at least two bytes, an element of a list one.
    if end - SIZE_SIZE <= min(api.list_max, 2 * MAP_MEMBERS_MAX):
        raw = _Raw(view, end)
        request = _read(_layout(api.request), view[SIZE_SIZE:end], raw)
        if request is not None and raw.at == len(view):
            return request
    if end <= _LARGE_HEAD:
        return _request_in(api, view, end)
    with without_collection():
        return _request_in(api, view, end)


def _read(layout: _Layout, head: memoryview, raw: _Raw) -> Any | None:
    """The message in ``head``; None if the slower way must decide."""
    if _TOO_LARGE.search(head) is not None:
        return None
    try:
        message = layout.read(head)
        if layout.carriers:
            _take_records(message, raw)
    except _UNUSUAL:
        return None
    return message


def _request_in(api: Api, view: memoryview, end: int) -> Any:
    head = view[SIZE_SIZE:end]
    try:
        check_msgpack(head, bounds_of(api))
    except TooMuch as error:
        raise InvalidRequest(f"{api.name}: the head is too large: {error}") from None
    members = _unpacked(
        api.name,
        head,
        max_array_len=api.list_max,
        max_map_len=MAP_MEMBERS_MAX,
        max_str_len=TEXT_BYTES_MAX,
        max_ext_len=0,
    )
    return _request_from(api, members, _Raw(view, end, elements_left=bounds_of(api).elements))


def _request_from(api: Api, members: dict[str, Any], raw: _Raw) -> Any:
    version = members.pop("v", api.max_version)
    if type(version) is not int or not api.min_version <= version <= api.max_version:
        raise UnsupportedVersion(
            f"{api.name} version {shown(version)}: this broker speaks {api.min_version} to {api.max_version}"
        )
    layout = _layout(api.request)
    try:
        request = layout.decode(members, raw)
        if raw.at != len(raw.view):
            raise _Bad(f"{len(raw.view) - raw.at} bytes are left over behind the records")
    except _Bad as bad:
        raise InvalidRequest(f"{api.name}{bad.path}: {bad.text}", member=bad.path.lstrip(".")) from None
    return request


def decode_response(api_name: str, body: bytes | bytearray | memoryview) -> Any:
    """The typed response in ``body``; raises InvalidRequest when it is malformed."""
    view = memoryview(body)
    end = _head_end(api_name, view)
    head, layout = view[SIZE_SIZE:end], _layout(BY_NAME[api_name].response)
    response = _read(layout, head, _Raw(view, end))
    if response is not None:
        return response
    members = _unpacked(api_name, head)
    try:
        return layout.decode(members, _Raw(view, end))
    except _Bad as bad:
        raise InvalidRequest(f"response to {api_name}{bad.path}: {bad.text}") from None


def head_size(body: bytes | bytearray | memoryview) -> int:
    """Bytes of the head of a body that was decoded."""
    size: int = _SIZE.unpack_from(body)[0]
    return size


def _head_end(name: str, view: memoryview) -> int:
    """Where the head of a body ends."""
    if len(view) < SIZE_SIZE:
        raise InvalidRequest(f"{name}: a body of {len(view)} bytes has no room for the 4 bytes of the head's size")
    size: int = _SIZE.unpack_from(view)[0]
    end = SIZE_SIZE + size
    if size > HEAD_BYTES_MAX or end > len(view):
        raise InvalidRequest(f"{name}: the head should have {size} bytes, the body has {len(view) - SIZE_SIZE}")
    return end


def _unpacked(name: str, head: memoryview, **limits: int) -> dict[str, Any]:
    try:
        members = msgpack.unpackb(head, raw=False, strict_map_key=True, **limits)
    except (ValueError, msgpack.UnpackException) as error:
        raise InvalidRequest(f"{name}: the head is not msgpack: {error}") from None
    if type(members) is not dict:
        raise InvalidRequest(f"{name}: the head must be a map, not {shown(members)}")
    return members


def decode_json(api: Api, body: bytes, parse: Callable[[bytes], Any] = json.loads) -> Any:
    """A request written as JSON; only for APIs that carry no batches (a Fetch that asks for none may).

    ``parse`` may be stricter than Python's JSON and raises ValueError. Bytes are base64.
    """
    try:
        check_json(body, bounds_of_json(api))
        members = parse(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{api.name}: the body cannot be read as JSON: {error}") from None
    if type(members) is not dict:
        raise InvalidRequest(f"{api.name}: the body must be a JSON object, not {shown(members)}")
    raw = _Raw(memoryview(b""), 0, elements_left=bounds_of(api).elements, list_max=api.list_max, is_json=True)
    return _request_from(api, members, raw)


def encode_json(response: Any) -> bytes:
    """A response as JSON; record batches are not carried: their size stands in their place. Bytes are base64."""
    return json.dumps(msgspec.to_builtins(_with_sizes(response, [])), ensure_ascii=False).encode()


def http_failure(status: int, body: bytes | bytearray | memoryview) -> RequestRefused | OutcomeUnknown:
    """Return the error for an HTTP answer that is not 200.

    The message has the ``detail`` of a problem (RFC 9457), or the beginning of the body. The request did not happen if
    the problem's ``outcome`` says so, or if the status is one that servers and proxies send before they read a request.
    """
    start = bytes(body[:REFUSAL_BYTES_MAX])
    try:
        problem = json.loads(start)
    except (ValueError, RecursionError):
        problem = None
    said = problem if type(problem) is dict else {}
    detail = said.get("detail")
    reason = f"HTTP {status}: {detail if type(detail) is str else repr(start[:REFUSAL_SHOWN_MAX])}"
    if status == UNAUTHORIZED:
        return LoginRefused(detail if type(detail) is str else reason)
    if status in UNREAD_STATUSES or said.get("outcome") == NOT_WRITTEN:
        return RequestRefused(reason)
    return NotABroker(reason) if status in NO_ROUTE_STATUSES and not said else OutcomeUnknown(reason)


def error_response(api: Api, error: ProtocolError) -> Any:
    """The API's response that says only ``error``; for failures of the whole request."""
    return api.response(error_code=error.code, error_message=error.message, outcome=error.outcome)
