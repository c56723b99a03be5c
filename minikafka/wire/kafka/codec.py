"""Kafka's messages to bytes and back, by functions compiled from the schema on first use.

A message is a plain dict keyed by Kafka's field names in snake case. For each (API, side, version) that is really used,
one straight-line Python function is written and compiled: about 25 lines, less than a millisecond, once a process.
Translators (``wire/kafka/translate``) stand between these dicts and typed messages.

- A decoded message has every field of the schema: those that its version lacks have their default.
- To encode, optional fields (the schema says which) may be left out, the others may not; fields that the version lacks
  are ignored.
- ``uuid`` is 16 bytes, ``records`` is one memoryview of the frame (no copy) or None. Encoded, records are a sequence of
  buffers and stay buffers of their own from ``JOINED_BYTES_MAX`` bytes on.
- Whatever arrives, decoding raises InvalidRequest and nothing else. Bytes behind the message are ignored: librdkafka
  2.15 sends three too many in Metadata version 13.
- What a request may cost is bounded before it is spent: its arrays have ``ELEMENTS_MAX`` elements together.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

from minikafka.errors import InvalidRequest
from minikafka.ports import Buffers
from minikafka.wire.kafka.schema import ApiSchema, Field, Side, api_named
from minikafka.wire.limits import KAFKA_TEXT_BYTES_MAX

Message = dict[str, Any]
Decode = Callable[[memoryview, int, int], tuple[Message, int]]
Encode = Callable[[Message, bytearray, list[Any]], bytearray]

ELEMENTS_MAX = 8_000
"""Elements of all arrays of one request: what is larger is refused before it is built. None of the steps that handle so
many (decoding, the handler, encoding) takes 50 ms."""
_RESPONSE_ELEMENTS_MAX = 1_000_000
STRING_BYTES_MAX = KAFKA_TEXT_BYTES_MAX
"""As in Kafka, also where the length has more bits."""

JOINED_BYTES_MAX = 4096
"""Records below this size are cheaper to copy than to send as a buffer of their own."""

_FIXED = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}


class Malformed(ValueError):
    """A message whose bytes contradict its schema."""


def decode(api_name: str, side: Side, version: int, data: memoryview, offset: int = 0) -> Message:
    """The message that begins at ``offset``. Raises InvalidRequest when it cannot be read."""
    limit = ELEMENTS_MAX if side == "request" else _RESPONSE_ELEMENTS_MAX
    try:
        message, end = decoder(api_name, side, version)(data, offset, limit)
        if end > len(data):
            raise Malformed(f"{end - len(data)} bytes are missing")
    except (Malformed, struct.error, IndexError, UnicodeDecodeError) as error:
        what = str(error) if isinstance(error, Malformed) else "it ends early, or a length in it is wrong"
        raise InvalidRequest(f"{api_name} {side} version {version} cannot be decoded: {what}") from None
    return message


def encode(api_name: str, side: Side, version: int, message: Message, head: bytearray | None = None) -> Buffers:
    """The buffers of a message, the first of which begins with ``head``; KeyError names a field that was left out and
    may not be.
    """
    out: list[Any] = []
    out.append(encoder(api_name, side, version)(message, bytearray() if head is None else head, out))
    return out


@cache
def decoder(api_name: str, side: Side, version: int) -> Decode:
    """``(data, offset, elements_max) -> (message, end offset)``; see :func:`decode` for what it raises."""
    api = api_named(api_name)
    source = _Source(api, version)
    source.add("def run(b, o, left):")
    with source:
        result = source.decode_struct(getattr(api, side))
        source.add(f"return {result}, o")
    run: Decode = source.compiled(f"decode {api_name} {side} {version}")
    return run


@cache
def encoder(api_name: str, side: Side, version: int) -> Encode:
    """``(message, bytearray to extend, list of finished buffers) -> bytearray to append last``."""
    api = api_named(api_name)
    source = _Source(api, version)
    source.add("def run(m, w, out):")
    with source:
        source.encode_struct(getattr(api, side), "m")
        source.add("return w")
    run: Encode = source.compiled(f"encode {api_name} {side} {version}")
    return run


# ---- what the generated functions call -------------------------------------------------------------------------------


def read_varint(data: memoryview, offset: int) -> tuple[int, int]:
    """An unsigned varint of five bytes at most, and where it ends."""
    value = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7
        if shift > 28:
            raise Malformed("a length of more than five bytes")


def varint(value: int) -> bytes:
    """An unsigned varint."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _null_refused(name: str) -> Malformed:
    return Malformed(f"{name} is null")


def _too_long(name: str) -> Malformed:
    return Malformed(f"{name} is too long: a string has {STRING_BYTES_MAX} bytes at most")


def _misplaced(name: str) -> Malformed:
    return Malformed(f"{name} is a tagged field of another size than it says")


def _too_many(name: str) -> Malformed:
    return Malformed(f"{name} has too many elements: more than {ELEMENTS_MAX} in one request, or than it has bytes")


_GLOBALS: dict[str, Any] = {
    "null_refused": _null_refused,
    "too_long": _too_long,
    "misplaced": _misplaced,
    "too_many": _too_many,
    "read_varint": read_varint,
    "varint": varint,
    "unpack_from": struct.unpack_from,
    "pack": struct.pack,
    "JOINED_BYTES_MAX": JOINED_BYTES_MAX,
}


# ---- the compiler ----------------------------------------------------------------------------------------------------


class _Source:
    """Lines of one function for one version. ``with source:`` indents."""

    def __init__(self, api: ApiSchema, version: int) -> None:
        self.version = version
        self.flexible = api.is_flexible(version)
        self.lines: list[str] = []
        self.constants: dict[str, Any] = {}
        self._depth = 0
        self._names = 0
        self._run: list[tuple[str, str]] = []
        """Fields to be read by one call: struct's letter, and the variable."""

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1

    def add(self, *lines: str) -> None:
        self.lines.extend("    " * self._depth + line for line in lines)

    def name(self, prefix: str = "v") -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def constant(self, value: Any) -> str:
        name = self.name("C")
        self.constants[name] = value
        return name

    def compiled(self, title: str) -> Any:
        names = {**_GLOBALS, **self.constants}
        code = compile("\n".join(self.lines), f"<{title}>", "exec")
        exec(code, names)  # noqa: S102 - the text is made above from the schema that is part of this package
        return names["run"]

    def present(self, fields: tuple[Field, ...]) -> tuple[list[Field], list[Field]]:
        """Fields of this version: those in place, and the tagged ones by tag."""
        here = [each for each in fields if each.is_in(self.version)]
        tagged = [each for each in here if each.tag is not None and self.flexible]
        in_place = [each for each in here if each.tag is None]
        return in_place, sorted(tagged, key=lambda each: each.tag or 0)

    # ---- decoding ----------------------------------------------------------------------------------------------------

    def decode_struct(self, fields: tuple[Field, ...]) -> str:
        """Emit what reads the fields; returns the expression that builds the dict."""
        in_place, tagged = self.present(fields)
        values: dict[str, str] = {}
        for each in in_place:
            name = values[each.name] = self.name()
            if each.kind in _FIXED and not each.is_array:
                self._run.append((_FIXED[each.kind], name))
            else:
                self.decode_one(each, name)
        self._read_run()
        if self.flexible:
            self.decode_tags(tagged, values)
        members = [f"{each.name!r}: {values.get(each.name) or self.default_of(each)}" for each in fields]
        return "{" + ", ".join(members) + "}"

    def default_of(self, field: Field) -> str:
        """An expression; a new list or dict each time."""
        if field.default is None or isinstance(field.default, (bool, int, str, bytes)):
            return repr(field.default)
        if field.is_array:
            return "[]"
        if field.kind == "struct":
            members = (f"{each.name!r}: {self.default_of(each)}" for each in field.fields)
            return "{" + ", ".join(members) + "}"
        return repr(field.default)

    def decode_length(self, wide: bool) -> str:  # noqa: FBT001 - 16 or 32 bits, where the version is not flexible
        """Emit what reads a length; -1 is null."""
        size = self.name("n")
        if self.flexible:
            self._read_run()
            self._decode_varint(size)
            self.add(f"{size} -= 1")
        else:
            self._run.append(("i" if wide else "h", size))
            self._read_run()
        return size

    def _decode_varint(self, name: str) -> None:
        """Emit what reads an unsigned varint; nearly all have one byte."""
        self.add(f"{name} = b[o]", "o += 1", f"if {name} > 127:")
        with self:
            self.add(f"{name}, o = read_varint(b, o - 1)")

    def _read_run(self) -> None:
        """Emit one call that reads all fields of fixed size in a row, and the length that may follow them."""
        if self._run:
            layout = struct.Struct(">" + "".join(letter for letter, _ in self._run))
            names = "".join(f"{name}, " for _, name in self._run)
            self.add(f"{names}= {self.constant(layout.unpack_from)}(b, o)", f"o += {layout.size}")
            self._run.clear()

    def decode_one(self, field: Field, name: str) -> None:
        """Emit what reads one field of variable size into ``name``."""
        if field.is_array:
            self.decode_array(field, name)
        elif field.kind == "struct":
            self.decode_nested(field, name)
        elif field.kind in _FIXED:
            self._run.append((_FIXED[field.kind], name))
            self._read_run()
        else:
            size = self.decode_length(wide=field.kind != "string")
            self.add(f"if {size} < 0:")
            with self:
                self.decode_null(field, name)
            self.add("else:")
            with self:
                if field.kind == "string":
                    self.add(f"if {size} > {STRING_BYTES_MAX}:")
                    with self:
                        self.add(f"raise too_long({field.name!r})")
                end = self.name("e")
                value = {
                    "string": f"str(b[o:{end}], 'utf-8')",
                    "bytes": f"bytes(b[o:{end}])",
                    "records": f"b[o:{end}]",
                }[field.kind]
                self.add(f"{end} = o + {size}", f"{name} = {value}", f"o = {end}")

    def decode_null(self, field: Field, name: str) -> None:
        if field.may_be_null(self.version):
            self.add(f"{name} = None")
        else:
            self.add(f"raise null_refused({field.name!r})")

    def decode_array(self, field: Field, name: str) -> None:
        size = self.decode_length(wide=True)
        self.add(f"if {size} < 0:")
        with self:
            self.decode_null(field, name)
        self.add("else:")
        with self:
            self.add(f"left -= {size}", f"if left < 0 or {size} > len(b) - o:")
            with self:
                self.add(f"raise too_many({field.name!r})")
            if field.kind in _FIXED and field.kind != "uuid":
                letter, width = _FIXED[field.kind], struct.calcsize(">" + _FIXED[field.kind])
                self.add(f"{name} = list(unpack_from(f'>{{{size}}}{letter}', b, o))", f"o += {size} * {width}")
                return
            self.add(f"{name} = []", f"for _ in range({size}):")
            with self:
                if field.kind == "struct":
                    self.add(f"{name}.append({self.decode_struct(field.fields)})")
                else:
                    item = self.name()
                    self.decode_one(_item_of(field), item)
                    self.add(f"{name}.append({item})")

    def decode_nested(self, field: Field, name: str) -> None:
        if not field.may_be_null(self.version):
            self.add(f"{name} = {self.decode_struct(field.fields)}")
            return
        self._read_run()
        self.add("o += 1", "if b[o - 1] > 127:")  # a signed byte: -1 is null, 1 is a value
        with self:
            self.add(f"{name} = None")
        self.add("else:")
        with self:
            self.add(f"{name} = {self.decode_struct(field.fields)}")

    def decode_tags(self, tagged: list[Field], values: dict[str, str]) -> None:
        """Emit what reads tagged fields; unknown ones are skipped (KIP-482)."""
        for each in tagged:
            name = values[each.name] = self.name()
            self.add(f"{name} = {self.default_of(each)}")
        count, tag, size, end = (self.name("t") for _ in range(4))
        self._decode_varint(count)
        self.add(f"if {count}:")
        with self:
            self.add(f"left -= {count}", "if left < 0:")
            with self:
                self.add("raise too_many('tagged fields')")
            self.add(f"for _ in range({count}):")
            with self:
                self.add(f"{tag}, o = read_varint(b, o)", f"{size}, o = read_varint(b, o)", f"{end} = o + {size}")
                for number, each in enumerate(tagged):
                    self.add(f"{'el' if number else ''}if {tag} == {each.tag}:")
                    with self:
                        self.decode_one(each, values[each.name])
                        self.add(f"if o != {end}:")
                        with self:
                            self.add(f"raise misplaced({each.name!r})")
                self.add(f"o = {end}")

    # ---- encoding ----------------------------------------------------------------------------------------------------

    def encode_struct(self, fields: tuple[Field, ...], message: str) -> None:
        in_place, tagged = self.present(fields)
        run: list[Field] = []

        def flush() -> None:
            if not run:
                return
            layout = struct.Struct(">" + "".join(_FIXED[each.kind] for each in run))
            values = ", ".join(self.value_of(each, message) for each in run)
            self.add(f"w += {self.constant(layout.pack)}({values})")
            run.clear()

        for each in in_place:
            if each.kind in _FIXED and not each.is_array:
                run.append(each)
            else:
                flush()
                value = self.name()
                self.add(f"{value} = {self.value_of(each, message)}")
                self.encode_one(each, value)
        flush()
        if self.flexible:
            self.encode_tags(tagged, message)

    def value_of(self, field: Field, message: str) -> str:
        if field.is_optional:
            return f"{message}.get({field.name!r}, {self.default_of(field)})"
        return f"{message}[{field.name!r}]"

    def encode_length(self, size: str, wide: bool) -> None:  # noqa: FBT001 - as decode_length
        if self.flexible:
            self.add(f"if {size} < 127:")
            with self:
                self.add(f"w.append({size} + 1)")
            self.add("else:")
            with self:
                self.add(f"w += varint({size} + 1)")
        else:
            self.add(f"w += {self.constant(struct.Struct('>i' if wide else '>h').pack)}({size})")

    def encode_null(self, field: Field, wide: bool) -> None:  # noqa: FBT001 - as decode_length
        if not field.may_be_null(self.version):
            self.add(f"raise null_refused({field.name!r})")
        elif self.flexible:
            self.add("w.append(0)")
        else:
            self.add(f"w += {(-1).to_bytes(4 if wide else 2, 'big', signed=True)!r}")

    def encode_one(self, field: Field, value: str) -> None:
        if field.is_array:
            self.encode_array(field, value)
            return
        if field.kind == "struct":
            self.encode_nested(field, value)
            return
        if field.kind in _FIXED:
            self.add(f"w += {self.constant(struct.Struct('>' + _FIXED[field.kind]).pack)}({value})")
            return
        wide = field.kind != "string"
        self.add(f"if {value} is None:")
        with self:
            self.encode_null(field, wide)
        self.add("else:")
        with self:
            size = self.name("n")
            if field.kind == "records":
                self.add(f"{size} = sum(map(len, {value}))")
                self.encode_length(size, wide)
                self.add(f"if {size} < JOINED_BYTES_MAX:")
                with self:
                    self.add(f"for part in {value}:")
                    with self:
                        self.add("w += part")
                self.add("else:")
                with self:
                    self.add("out.append(w)", f"out.extend({value})", "w = bytearray()")
                return
            if field.kind == "string":
                self.add(f"{value} = {value}.encode()")
            self.add(f"{size} = len({value})")
            self.encode_length(size, wide)
            self.add(f"w += {value}")

    def encode_array(self, field: Field, value: str) -> None:
        self.add(f"if {value} is None:")
        with self:
            self.encode_null(field, wide=True)
        self.add("else:")
        with self:
            size = self.name("n")
            self.add(f"{size} = len({value})")
            self.encode_length(size, wide=True)
            if field.kind in _FIXED and field.kind != "uuid":
                self.add(f"w += pack(f'>{{{size}}}{_FIXED[field.kind]}', *{value})")
                return
            item = self.name("m")
            self.add(f"for {item} in {value}:")
            with self:
                if field.kind == "struct":
                    before = len(self.lines)
                    self.encode_struct(field.fields, item)
                    if len(self.lines) == before:
                        self.add("pass")
                else:
                    self.encode_one(_item_of(field), item)

    def encode_nested(self, field: Field, value: str) -> None:
        if not field.may_be_null(self.version):
            self.encode_struct(field.fields, value)
            return
        self.add(f"if {value} is None:")
        with self:
            self.add("w.append(255)")
        self.add("else:")
        with self:
            self.add("w.append(1)")
            self.encode_struct(field.fields, value)

    def encode_tags(self, tagged: list[Field], message: str) -> None:
        """Emit what writes the tagged fields that are not at their default."""
        if not tagged:
            self.add("w.append(0)")
            return
        tags, kept = self.name("t"), self.name("w")
        self.add(f"{tags} = []", f"{kept} = w")
        for each in tagged:
            value = self.name()
            self.add(f"{value} = {self.value_of(each, message)}")
            self.add(f"if {value} != {self.constant(each.default)}:")
            with self:
                self.add("w = bytearray()")
                self.encode_one(each, value)
                self.add(f"{tags}.append(({each.tag}, w))")
        number, data = self.name("k"), self.name("d")
        self.add(f"w = {kept}", f"w += varint(len({tags}))", f"for {number}, {data} in {tags}:")
        with self:
            self.add(f"w += varint({number}) + varint(len({data}))", f"w += {data}")


def _item_of(array: Field) -> Field:
    """An element of an array, as a field that may not be null."""
    return Field(name=array.name, kind=array.kind, is_array=False, first=array.first, last=array.last)
