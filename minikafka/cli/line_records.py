"""Lines of standard input as records: ``produce`` with its options, or the JSON lines that ``consume -o json`` prints.

Rules for this file: bytes in, a record out, no I/O. A JSON line says all of its record itself; what it says of its old
place (topic, partition, offset) is left behind. What is not understood is InvalidRecord with the line's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from minikafka.errors import InvalidRecord
from minikafka.rest import json_text
from minikafka.rest.records import record_in
from minikafka.web.problems import Fault
from minikafka.wire.records import Headers

OLD_PLACE = ("topic", "partition", "offset")


class LineRecord(NamedTuple):
    """What is sent; no timestamp: the time of sending."""

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class LineForm:
    """How lines are to be read."""

    separator: bytes | None = None
    """Between key and value; a line without it has no key of its own."""
    key: bytes | None = None
    """Of lines without a key of their own."""
    null_marker: bytes | None = None
    """A key or value that is just this is null."""
    headers: Headers = ()
    is_json: bool = False

    def record(self, line: bytes, number: int) -> LineRecord:
        """The record of the ``number``-th line; InvalidRecord."""
        if self.is_json:
            return _json_record(line, number)
        key, value = self.key, line
        if self.separator is not None:
            first, found, rest = line.partition(self.separator)
            if found:
                key, value = first, rest
        marker = self.null_marker
        if marker is None:
            return LineRecord(value, key, None, self.headers)
        return LineRecord(None if value == marker else value, None if key == marker else key, None, self.headers)


def _json_record(line: bytes, number: int) -> LineRecord:
    try:
        document = json_text.parse(line)
    except json_text.NotJson as error:
        raise InvalidRecord(f"line {number}: {error}") from None
    if type(document) is dict:
        document = {name: value for name, value in document.items() if name not in OLD_PLACE}
        if type(document.get("headers")) is list:
            document["headers"] = [_header(each) for each in document["headers"]]
    faults: list[Fault] = []
    record = record_in(document, "", 0, faults)
    if faults:
        raise InvalidRecord(f"line {number}: {faults[0]['pointer'] or 'the record'}: {faults[0]['detail']}")
    return LineRecord(record.value, record.key, record.timestamp if "timestamp" in document else None, record.headers)


def _header(given: Any) -> Any:
    """``consume -o json`` and ``/v1`` name base64 differently; both are read."""
    if type(given) is list and len(given) == 2 and type(given[1]) is dict and list(given[1]) == ["value_b64"]:
        return [given[0], {"b64": given[1]["value_b64"]}]
    return given


def parse_header(text: str) -> tuple[str, bytes]:
    """``NAME=VALUE``; ValueError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"--header {text!r}: NAME=VALUE is needed")
    return name, value.encode()
