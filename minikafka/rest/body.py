"""Reads a request's body: its size, its kind of text, and all of it within a time limit.

A body has one of the kinds of :data:`KINDS`. JSON and msgpack have the same meaning; in msgpack, bytes stay bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import msgpack
from aiohttp import web

from minikafka.config import KIB, MIB
from minikafka.errors import BrokerNotAvailable, RecordListTooLarge, did_you_mean
from minikafka.rest import json_text
from minikafka.rest.host import BODY_BYTES_MAX, PRODUCE_RECORD_COUNT_MAX, body_bytes_max
from minikafka.rest.json_text import TURN_BYTES, Turns, long_step
from minikafka.web.accept import MSGPACK_TYPES
from minikafka.web.problems import RETRY_AFTER_S, VALIDATION_ERROR_COUNT_MAX, Fault, Refused, malformed
from minikafka.wire.limits import Bounds, TooMuch, check_json, check_msgpack

if TYPE_CHECKING:
    from minikafka.rest.route import Visit

_NAME_LENGTH_MAX = 200

# A body that is not complete after this long comes from a client that is gone or hostile.
BODY_TIMEOUT_S = 30.0

# Small bodies are read even when many large ones are held: an administrator must get through.
ALWAYS_ADMITTED_SIZE = 64 * KIB


def pointer(*parts: str | int) -> str:
    """A JSON Pointer (RFC 6901); names of unknown members are cut."""
    return "".join("/" + str(part)[:_NAME_LENGTH_MAX].replace("~", "~0").replace("/", "~1") for part in parts)


def add_strangers(
    given: Iterable[str], known: Collection[str], path: str, faults: list[Fault], what: str = "no such member here"
) -> None:
    """Add a fault for each member that is not known, with the nearest name."""
    unknown = [name for name in given if name not in known]
    for name in unknown[:VALIDATION_ERROR_COUNT_MAX]:
        detail = f"{what}{did_you_mean(name, known, quoted=True)}"
        faults.append({"pointer": path + pointer(name), "detail": detail})


JSON_TYPE = "application/json"
NDJSON_TYPES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
FORM_TYPE = "application/x-www-form-urlencoded"
RAW_TYPES = ("application/octet-stream", "text/plain")
KINDS = {
    JSON_TYPE: "json",
    FORM_TYPE: "form",
    **dict.fromkeys(MSGPACK_TYPES, "msgpack"),
    **dict.fromkeys(NDJSON_TYPES, "ndjson"),
    **dict.fromkeys(RAW_TYPES, "raw"),
}
FORM_NOTE = "sent as form; use --json"


# A document with all of these takes about 30 ms to read. Records have more to say than anything else.
RECORD_BOUNDS = Bounds(size=BODY_BYTES_MAX, containers=30_000, elements=120_000)
BOUNDS = Bounds(size=MIB, containers=10_000, elements=50_000)


BODY_SIZE: web.RequestKey[int] = web.RequestKey("minikafka.body_size", int)
"""Bytes of a request's body, once they were read."""


async def read_body(visit: Visit) -> bytes:
    """The whole body; 413 beyond the limit, 408 when it does not come, 503 when too many are held."""
    http, host, doors = visit.http, visit.host, visit.doors
    limit = body_bytes_max(host)
    encoding = http.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding != "identity":
        raise malformed(f"Content-Encoding {encoding[:40]!r} cannot be read; send the body uncompressed", status=415)
    announced = http.content_length or 0
    if announced > limit:
        raise _too_large(announced, limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in http.content.iter_any():
                size += len(chunk)
                doors.held_bytes += len(chunk)
                if size > limit:
                    raise _too_large(size, limit)
                if size > ALWAYS_ADMITTED_SIZE and doors.held_bytes > host.config.queued_max_request_bytes:
                    raise _too_many(doors.held_bytes)
                chunks.append(chunk)
    except TimeoutError:
        raise malformed(f"the body was not complete after {BODY_TIMEOUT_S:g} s", status=408) from None
    except ConnectionError:
        raise malformed("the client left before the body was complete") from None
    except web.RequestPayloadError as error:
        raise malformed(f"the body could not be read: {type(error.__cause__ or error).__name__}") from None
    finally:
        doors.held_bytes -= size
        http[BODY_SIZE] = size
    return b"".join(chunks)


def _too_large(size: int, limit: int) -> Refused:
    error = RecordListTooLarge(f"the body has {size} bytes or more, the limit is {limit}", body_bytes_max=limit)
    return Refused(error, headers={"Connection": "close"})


def _too_many(held: int) -> Refused:
    error = BrokerNotAvailable(f"{held} bytes of requests are being read; try again")
    return Refused(error, headers={"Connection": "close", "Retry-After": str(RETRY_AFTER_S)}, retriable=True)


def kind_of(http: web.Request, *more: str) -> str:
    """``json``, ``form`` (curl -d), ``msgpack``, or what of ``ndjson`` and ``raw`` is taken too; else 415."""
    given = http.headers.get("Content-Type")
    if given is None:
        return "json"
    media_type = http.content_type.lower()
    kind = "json" if media_type.endswith("+json") else KINDS.get(media_type, "")
    if kind not in ("json", "form", "msgpack", *more):
        raise unreadable_type(http, f"Content-Type {given[:80]!r} cannot be read here", *more)
    charset = (http.charset or "utf-8").lower()
    if kind not in ("msgpack", "raw") and charset not in ("utf-8", "utf8", "us-ascii"):
        raise unreadable_type(http, f"charset {charset[:40]!r} cannot be read here, only utf-8", *more)
    return kind


def unreadable_type(http: web.Request, detail: str, *more: str) -> Refused:
    """415, with what works."""
    accepted = {"ndjson": NDJSON_TYPES[:1], "raw": RAW_TYPES}
    types = [JSON_TYPE, MSGPACK_TYPES[0], *(each for kind in more for each in accepted[kind])]
    example = f"curl --json '{{...}}' 'http://{http.headers.get('Host', 'broker')}{http.path}'"
    return malformed(detail, status=415, accepted=types, example=example)


def check_body(body: bytes, kind: str, bounds: Bounds) -> None:
    """413 for a body with more in it than ``bounds`` allow."""
    try:
        if kind == "msgpack":
            check_msgpack(memoryview(body), bounds, counts_elements=True)
        else:
            check_json(body, bounds)
    except TooMuch as error:
        raise Refused(RecordListTooLarge(f"the body has {error}")) from None


def parsed(body: bytes, kind: str, http: web.Request | None = None) -> Any:
    """The value that a JSON or msgpack body stands for; call :func:`check_body` before.

    ``http`` is the request, which the error of a form names; a request that another broker has received has none.
    """
    if kind == "msgpack":
        return _unpacked(body)
    try:
        return json_text.parse(body)
    except json_text.NotJson as error:
        if kind == "form" and http is not None:
            raise unreadable_type(http, "a form was sent (curl -d does that) and it does not hold JSON") from None
        raise malformed(f"the body cannot be read as JSON: {error}") from None


async def parsed_records(body: bytes, kind: str, http: web.Request) -> Any:
    """As :func:`parsed`, for a body with records, which is checked first; a long one with other requests in between."""
    if len(body) < TURN_BYTES:
        check_body(body, kind, RECORD_BOUNDS)
        return parsed(body, kind, http)
    await long_step()
    check_body(body, kind, RECORD_BOUNDS)
    await long_step()
    value = parsed(body, kind, http)
    await long_step()
    return value


def _unpacked(body: bytes) -> Any:
    try:
        value = msgpack.unpackb(body, object_pairs_hook=json_text.members, strict_map_key=True, ext_hook=_no_extension)
    except json_text.NotJson as error:
        raise malformed(f"the body cannot be read as msgpack: {error}") from None
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise malformed(f"the body cannot be read as msgpack: {type(error).__name__}") from None
    if json_text.is_deep(value):
        raise malformed(f"the body cannot be read as msgpack: nested deeper than {json_text.DEPTH_MAX}")
    return value


def _no_extension(code: int, _data: bytes) -> NoReturn:
    raise json_text.NotJson(f"the extension type {code} has no meaning here")


def parsed_object(body: bytes, kind: str, http: web.Request | None = None) -> dict[str, Any]:
    """The object that a body is."""
    check_body(body, kind, BOUNDS)
    value = parsed(body, kind, http)
    if type(value) is not dict:
        raise malformed("the body must be a JSON object", [{"pointer": "", "detail": "not an object"}], status=422)
    return value


async def parsed_lines(body: bytes) -> list[Any]:
    """One JSON value per line, with other requests served in between; empty lines are skipped."""
    values: list[Any] = []
    check_body(body, "ndjson", RECORD_BOUNDS)
    if body.count(b"\n") > 2 * PRODUCE_RECORD_COUNT_MAX:
        raise Refused(RecordListTooLarge(f"more than {PRODUCE_RECORD_COUNT_MAX} lines in one request"))
    turns = Turns()
    for number, line in enumerate(body.split(b"\n"), start=1):
        await turns.after(len(line))
        if line.strip():
            if len(values) == PRODUCE_RECORD_COUNT_MAX:
                raise Refused(RecordListTooLarge(f"more than {PRODUCE_RECORD_COUNT_MAX} lines in one request"))
            try:
                values.append(json_text.parse(line))
            except json_text.NotJson as error:
                faults: list[Fault] = [{"line": number, "detail": str(error)}]
                raise malformed(f"line {number} cannot be read as JSON: {error}", faults) from None
    return values
