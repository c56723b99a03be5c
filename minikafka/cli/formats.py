"""Records as text: kcat's format letters and the JSON objects of ``consume -o json``.

Rules for this file: bytes in, bytes out; nothing is lost on the way (``%s`` gives the value's own bytes, JSON falls
back to base64). An unknown letter is an error, not output.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from minikafka.client.structs import ConsumerRecord

DEFAULT_FORMAT = "%s\n"
NULL = b"NULL"
"""What a missing key or value prints as, with ``%k`` and ``%s``."""


Piece: TypeAlias = "Callable[[ConsumerRecord], bytes]"


class BadFormat(ValueError):
    """The format names a letter that does not exist; the message lists those that do."""


def _text(part: Callable[[ConsumerRecord], object]) -> Piece:
    return lambda record: str(part(record)).encode()


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: ConsumerRecord) -> bytes:
    return b",".join(name.encode() + b"=" + (NULL if value is None else bytes(value)) for name, value in record.headers)


def _iso(record: ConsumerRecord) -> str:
    try:
        return datetime.fromtimestamp(record.timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        # Microseconds that were taken for milliseconds are beyond the year 9999.
        return f"{record.timestamp}ms"


LETTERS: dict[str, tuple[Piece, str]] = {
    "s": (lambda record: NULL if record.value is None else bytes(record.value), "value (payload)"),
    "S": (_text(lambda record: _size(record.value)), "value length in bytes, -1 for null"),
    "k": (lambda record: NULL if record.key is None else bytes(record.key), "key"),
    "K": (_text(lambda record: _size(record.key)), "key length in bytes, -1 for null"),
    "o": (_text(lambda record: record.offset), "offset"),
    "p": (_text(lambda record: record.partition), "partition"),
    "t": (_text(lambda record: record.topic), "topic"),
    "T": (_text(lambda record: record.timestamp), "timestamp, milliseconds since 1970"),
    "D": (_text(_iso), "timestamp as ISO 8601, UTC"),
    "h": (_headers, "headers: name=value,name=value"),
    "%": (lambda _: b"%", "a percent sign"),
}
"""kcat's letters (and ``%D``)."""

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


# C0 without tab and line feed, which move the cursor and nothing else, DEL, and C1: on some terminals the single
# character U+009B begins an escape sequence as ESC [ does.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def visible(data: bytes) -> bytes:
    r"""Escape what can change a terminal's state: control characters and bytes that are not UTF-8, as ``\x1b``."""
    text = data.decode(errors="backslashreplace")
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text).encode()


def visible_json(line: bytes) -> bytes:
    r"""Escape the control characters that JSON allows in a string (DEL and C1) as ``\u009b``; the value is the same."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", line.decode()).encode()


def parse_format(text: str, shown: Callable[[bytes], bytes] = bytes) -> Callable[[ConsumerRecord], bytes]:
    r"""A format such as ``%p %o %k %s\n`` as a function from a record to bytes. Raises BadFormat.

    ``\n``, ``\t``, ``\r``, ``\0``, ``\\`` and ``\xHH`` are understood, as the shell passes them on unread. ``shown``
    is applied to each part that comes from a record, and not to the text of the format itself.
    """
    pieces: list[Piece] = []
    literal = bytearray()

    def close_literal() -> None:
        if literal:
            fixed = bytes(literal)
            pieces.append(lambda _: fixed)
            literal.clear()

    position = 0
    while position < len(text):
        here, follows = text[position], text[position + 1 : position + 2]
        if here == "%":
            if follows not in LETTERS or not follows:
                raise BadFormat(f"%{follows} is not a letter of a format; known are %{' %'.join(LETTERS)}")
            close_literal()
            piece = LETTERS[follows][0]
            pieces.append(piece if shown is bytes else lambda record, piece=piece: shown(piece(record)))  # type: ignore[misc]
            position += 2
        elif here == "\\" and follows == "x":
            digits = text[position + 2 : position + 4]
            if not re.fullmatch("[0-9A-Fa-f]{2}", digits):
                raise BadFormat(f"\\x{digits}: two hexadecimal digits are needed")
            literal += bytes.fromhex(digits)
            position += 4
        elif here == "\\" and follows in _ESCAPES:
            literal += _ESCAPES[follows]
            position += 2
        else:
            literal += here.encode()
            position += 1
    close_literal()
    return lambda record: b"".join(piece(record) for piece in pieces)


_TSV_ESCAPES = ((b"\\", rb"\\"), (b"\t", rb"\t"), (b"\n", rb"\n"), (b"\r", rb"\r"))
TSV_NULL = rb"\N"
"""A missing key or value with ``-o tsv``, as in PostgreSQL's COPY; a text is never that, its backslash is doubled."""


def to_tsv_line(record: ConsumerRecord) -> bytes:
    """Partition, offset, timestamp, key and value with tabs between; the bytes of key and value, escaped."""
    place = "\t".join((str(record.partition), str(record.offset), _iso(record)))
    return b"\t".join((place.encode(), _tsv_cell(record.key), _tsv_cell(record.value))) + b"\n"


def _tsv_cell(data: bytes | None) -> bytes:
    if data is None:
        return TSV_NULL
    cell = bytes(data)
    for character, escape in _TSV_ESCAPES:
        cell = cell.replace(character, escape)
    return cell


def text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    """``{name: text}`` where the bytes are UTF-8 (null for null), else ``{name_b64: base64}``."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_b64": base64.b64encode(data).decode()}


def to_json(record: ConsumerRecord) -> dict[str, Any]:
    """The object of ``consume -o json``; a contract, see docs/cli.md."""
    headers = []
    for name, value in record.headers:
        shown = text_or_base64("value", value)
        headers.append([name, shown.get("value", shown)])
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **text_or_base64("key", record.key),
        **text_or_base64("value", record.value),
        "headers": headers,
    }


def to_json_line(record: ConsumerRecord) -> bytes:
    """:func:`to_json` as one line."""
    return json.dumps(to_json(record), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
