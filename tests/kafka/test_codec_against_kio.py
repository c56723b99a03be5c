"""The codec against kio, whose classes are generated from Kafka's own message definitions.

Every API and version of our schema is in kio. Each drawn message must have the same bytes in both codecs, and each codec
must decode the bytes of the other. ``drawn_pair`` builds the message in both forms at once.
"""

from __future__ import annotations

import dataclasses
import io
import types
import typing
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest
from kio import index
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from minikafka.wire.kafka import codec
from minikafka.wire.kafka.schema import ApiSchema, Field, Side, api_named
from tests.kafka.samples import api_names
from tests.kafka.test_codec import SIDES, decoded, one_of, wrapped

MESSAGES = 4
"""Messages of each API, version and side."""

ERROR_CODES = [each.value for each in ErrorCode]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def entity_of(api: ApiSchema, version: int, side: Side) -> Any:
    """Return kio's class of the message."""
    load = index.load_request_schema if side == "request" else index.load_response_schema
    return load(api.key, version)


def drawn_pair(entity: Any, fields: tuple[Field, ...], version: int, random: Random) -> tuple[dict[str, Any], Any]:
    """Return one message as our codec and as kio have it."""
    hints = typing.get_type_hints(entity)
    known = {each.name: each for each in dataclasses.fields(entity)}
    ours, theirs = {each.name: each.default for each in fields}, {}
    for field in fields:
        if not field.is_in(version):
            continue
        name = field.name if field.name in known else field.name.removesuffix("_ms")
        their_field, hint = known.pop(name), hints[name]
        if field.tag is not None and random.random() < 0.3:
            continue  # Both leave a tagged field out if it has its default.
        ours[field.name], theirs[name] = value_pair(field, their_field, hint, version, random)
    assert not known, f"{entity.__module__} has fields that the schema lacks: {sorted(known)}"
    return ours, entity(**theirs)


def value_pair(field: Field, their_field: Any, hint: Any, version: int, random: Random) -> tuple[Any, Any]:
    """Return the value of one field, null included."""
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    inner = next(each for each in parts if each is not type(None))
    kind = their_field.metadata.get("kafka_type")
    nullable = field.may_be_null(version)
    if kind not in ("uuid", "datetime_i64"):
        assert (type(None) in parts) == nullable, f"{field.name} may be null in one of the two only"
    if nullable and random.random() < 0.2:
        return None, None
    if not field.is_array:
        return item_pair(field, kind, inner, version, random)
    (item, _ellipsis) = typing.get_args(inner)
    pairs = [item_pair(field, kind, item, version, random) for _ in range(random.choice((0, 1, 2)))]
    return [ours for ours, _ in pairs], tuple(theirs for _, theirs in pairs)


def item_pair(field: Field, kind: str | None, hint: Any, version: int, random: Random) -> tuple[Any, Any]:
    """Return one value. kio has types of its own for errors, times and durations, and None for the zero UUID."""
    if field.kind == "struct":
        return drawn_pair(hint, field.fields, version, random)
    match kind:
        case "error_code":
            code = random.choice(ERROR_CODES)
            return code, ErrorCode(code)
        case "timedelta_i32" | "timedelta_i64":
            # kio's durations end at 10**9 days; those of 32 bits may be negative.
            milliseconds = random.choice((0, 1, -1, random.randrange(-(2**31), 2**31)))
            return milliseconds, timedelta(milliseconds=milliseconds)
        case "datetime_i64":
            milliseconds = random.randrange(2**41)
            return milliseconds, EPOCH + timedelta(milliseconds=milliseconds)
        case "uuid":
            raw = random.choice((bytes(16), random.randbytes(16)))
            return raw, UUID(bytes=raw) if any(raw) else None
        case _:
            value = one_of(field, version, random)
            return value, value


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", api_names())
def test_every_version_has_the_bytes_that_kio_writes(name: str, side: Side):
    """And what the one wrote, the other reads."""
    api = api_named(name)
    for version in range(api.first, api.last + 1):
        random = Random(f"{name} {version} {side}")
        entity = entity_of(api, version, side)
        for _ in range(MESSAGES):
            ours, theirs = drawn_pair(entity, getattr(api, side), version, random)
            data = b"".join(codec.encode(name, side, version, wrapped(ours)))
            written = io.BytesIO()
            entity_writer(entity)(written, theirs)
            assert data == written.getvalue(), f"version {version}: {ours}"
            assert entity_reader(entity)(data, 0) == (theirs, len(data)), f"version {version}: {ours}"
            assert decoded(name, side, version, memoryview(written.getvalue())) == ours, f"version {version}"
