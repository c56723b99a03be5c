"""Records as people write and read them: JSON in, JSON out.

In: ``key`` and ``value`` as JSON (a string is its UTF-8 bytes; other JSON its compact text; null no bytes: without a
value it is a tombstone), or ``key_b64`` and ``value_b64``; ``headers`` as a list of ``[name, value]``, the value a
text, null or ``{"b64": ...}``; ``timestamp`` in milliseconds or ISO 8601.

Out: the same members, so that what was read can be sent. Which of them says ``encoding``, per record: a record that is
not JSON never spoils the others. By itself (``auto``) only what cannot be mistaken is shown as JSON: the bytes ``"a"``
(with quotes) and ``null`` stay texts, for the string ``a`` and a missing value look like that on the way in.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from minikafka.config import KIB
from minikafka.errors import RecordListTooLarge
from minikafka.rest import json_text
from minikafka.rest.body import add_strangers, pointer
from minikafka.rest.host import PRODUCE_RECORD_COUNT_MAX
from minikafka.rest.json_text import Turns
from minikafka.types import Epoch
from minikafka.web.problems import VALIDATION_ERROR_COUNT_MAX, Fault, unacceptable
from minikafka.wire.limits import Bounds, TooMuch, check_json, shown
from minikafka.wire.records import Headers, RecordView

# A larger document is shown as the text that it is: reading it would keep other requests waiting.
_VALUE_BOUNDS = Bounds(size=256 * KIB, containers=5_000, elements=20_000)

FORMATS = ("auto", "json", "text", "base64")
MEMBERS = ("key", "value", "key_b64", "value_b64", "headers", "timestamp")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_TIMESTAMP_MAX = 2**63 - 1


class RecordIn(NamedTuple):
    """One record as the batch builder takes it."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


# ---- in --------------------------------------------------------------------------------------------------------------


async def records_in(document: Any, now_ms: int) -> list[RecordIn]:
    """The records of ``{"records": [...]}``, of a list of lines, or the one record that the object itself is.

    Other requests are served in between. Raises Refused (422, with a pointer to each bad member) or RecordListTooLarge.
    """
    faults: list[Fault] = []
    if type(document) is dict and "records" in document:
        listed, path = document["records"], "/records"
        add_strangers(document, ("records",), "", faults, "no such member beside records")
    elif type(document) is list:
        listed, path = document, ""
    else:
        record = record_in(document, "", now_ms, faults)
        if faults:
            raise unacceptable(faults)
        return [record]
    if type(listed) is not list:
        faults.append({"pointer": path, "detail": f"a list is needed, not {shown(listed)}"})
        listed = []
    elif not listed:
        faults.append({"pointer": path, "detail": "at least one record is needed"})
    if len(listed) > PRODUCE_RECORD_COUNT_MAX:
        raise RecordListTooLarge(
            f"{len(listed)} records in one request, the limit is {PRODUCE_RECORD_COUNT_MAX}",
            records_max=PRODUCE_RECORD_COUNT_MAX,
        )
    records = []
    turns = Turns()
    for at, each in enumerate(listed):
        records.append(record_in(each, f"{path}/{at}", now_ms, faults))
        await turns.after(len(records[-1].value or b""))
        if len(faults) >= VALIDATION_ERROR_COUNT_MAX:
            break
    if faults:
        raise unacceptable(faults)
    return records


def record_in(given: Any, path: str, now_ms: int, faults: list[Fault]) -> RecordIn:
    """One record; what is wrong with it goes into ``faults``."""
    if type(given) is not dict:
        faults.append({"pointer": path, "detail": f"a record is an object, not {shown(given)}"})
        return RecordIn(now_ms, None, None, [])
    if "partition" in given:
        detail = "no such member: the path names the partition, as in /v1/topics/orders/partitions/2/records"
        faults.append({"pointer": path + "/partition", "detail": detail})
        given = {name: value for name, value in given.items() if name != "partition"}
    add_strangers(given, MEMBERS, path, faults, "no such member")
    if "value" not in given and "value_b64" not in given:
        faults.append({"pointer": path + "/value", "detail": "is missing; null makes a tombstone"})
    timestamp = given.get("timestamp", now_ms)
    return RecordIn(
        timestamp_in(timestamp, path + "/timestamp", faults),
        _bytes_in(given, "key", path, faults),
        _bytes_in(given, "value", path, faults),
        _headers_in(given["headers"], path + "/headers", faults) if "headers" in given else [],
    )


def _bytes_in(given: dict[str, Any], name: str, path: str, faults: list[Fault]) -> bytes | None:
    coded = name + "_b64"
    if coded in given:
        if name in given:
            faults.append({"pointer": path + pointer(coded), "detail": f"stands beside {name}; only one can be"})
        return base64_in(given[coded], path + pointer(coded), faults)
    value = given.get(name)
    if value is None or type(value) is bytes:
        return value
    if type(value) is str:
        return value.encode()
    try:
        return json_text.compact(value)
    except (TypeError, ValueError):
        # Only msgpack can say what JSON cannot hold.
        faults.append({"pointer": path + pointer(name), "detail": "cannot be written as JSON; send it as bytes"})
        return None


def base64_in(value: Any, path: str, faults: list[Fault]) -> bytes | None:
    """Return the bytes of a base64 text, and None for null; any other value is added to ``faults``."""
    if value is None:
        return None
    if type(value) is str:
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            faults.append({"pointer": path, "detail": "not base64"})
            return None
    faults.append({"pointer": path, "detail": f"a base64 text is needed, not {shown(value)}"})
    return None


def _headers_in(given: Any, path: str, faults: list[Fault]) -> list[tuple[str, bytes | None]]:
    if type(given) is not list:
        faults.append({"pointer": path, "detail": f"a list of [name, value] is needed, not {shown(given)}"})
        return []
    headers: list[tuple[str, bytes | None]] = []
    for at, each in enumerate(given):
        here = f"{path}/{at}"
        if type(each) is not list or len(each) != 2 or type(each[0]) is not str:
            faults.append({"pointer": here, "detail": f"[name, value] is needed, not {shown(each)}"})
            continue
        name, value = each
        if value is None or type(value) is bytes:
            headers.append((name, value))
        elif type(value) is str:
            headers.append((name, value.encode()))
        elif type(value) is dict and list(value) == ["b64"]:
            headers.append((name, base64_in(value["b64"], here + "/1/b64", faults)))
        else:
            detail = f'a text, null or {{"b64": ...}} is needed, not {shown(value)}'
            faults.append({"pointer": here + "/1", "detail": detail})
    return headers


def timestamp_in(value: Any, path: str, faults: list[Fault]) -> int:
    """Return milliseconds since 1970 of a number or an ISO 8601 text; any other value is added to ``faults``."""
    if type(value) is int and 0 <= value <= _TIMESTAMP_MAX:
        return value
    detail = f"milliseconds since 1970 or ISO 8601 with a time zone is needed, not {shown(value)}"
    if type(value) is str:
        try:
            return moment_ms(value)
        except ValueError as error:
            detail = str(error)
    faults.append({"pointer": path, "detail": detail})
    return 0


def time_ms(text: str) -> int:
    """Milliseconds since 1970 of a text that is such a number, or ISO 8601; ValueError for any other."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else moment_ms(text)


def moment_ms(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 text with a time zone; ValueError with one sentence."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{shown(text)} is not ISO 8601") from None
    if moment.tzinfo is None:
        raise ValueError(f"{shown(text)} has no time zone; write {text[:40]}Z for UTC")
    milliseconds = (moment - _EPOCH) // _MILLISECOND
    if milliseconds < 0:
        raise ValueError(f"{shown(text)} is before 1970")
    return milliseconds


# ---- out -------------------------------------------------------------------------------------------------------------


def record_out(record: RecordView, leader_epoch: Epoch, form: str) -> dict[str, Any]:
    """One record for people; ``form`` is one of FORMATS, or ``bytes`` for clients that take msgpack."""
    document: dict[str, Any] = {"offset": record.offset, "timestamp": record.timestamp, "leader_epoch": leader_epoch}
    # A key is a name: JSON strings and null stay texts in it whatever is asked for values.
    _bytes_out(document, "key", record.key, "auto" if form == "json" else form)
    document["encoding"] = _bytes_out(document, "value", record.value, form)
    document["headers"] = [
        [name, value if form == "bytes" or value is None else _header_out(value)] for name, value in record.headers
    ]
    return document


def _bytes_out(document: dict[str, Any], name: str, data: bytes | None, form: str) -> str:
    """Put the member in and say how it is encoded."""
    if data is None:
        document[name] = None
        return "null"
    if form == "bytes":
        document[name] = bytes(data)
        return "bytes"
    if form in ("auto", "json"):
        try:
            check_json(data, _VALUE_BOUNDS)
            value = json_text.parse(data)
        except (json_text.NotJson, TooMuch):
            pass
        else:
            if form == "json" or not (value is None or type(value) is str):
                document[name] = value
                return "json"
    if form != "base64":
        try:
            document[name] = str(data, "utf-8")
        except UnicodeDecodeError:
            pass
        else:
            return "text"
    document[name + "_b64"] = base64.b64encode(data).decode()
    return "base64"


def _header_out(value: bytes) -> Any:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}


def unreadable_out(first_offset: int, last_offset: int, leader_epoch: Epoch, why: str) -> dict[str, Any]:
    """Stands for the records of a batch that cannot be opened: a reader sees why, and continues behind it."""
    return {
        "offset": first_offset,
        "last_offset": last_offset,
        "leader_epoch": leader_epoch,
        "encoding": "unreadable",
        "detail": why,
    }
