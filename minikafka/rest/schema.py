"""JSON Schema in short words, and the word for each annotation of a model's member (``model.py``).

An object has the members that are named and no others: a member that an answer gains without its schema fails a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from minikafka.rest.parameters import INT32_MAX, INT64_MAX

Schema: TypeAlias = dict[str, Any]


def text(description: str = "", **more: Any) -> Schema:
    """A string."""
    if "enum" in more:
        more["enum"] = list(more["enum"])
    return _typed("string", description, more)


def whole(description: str = "", **more: Any) -> Schema:
    """An integer of at most 64 bits."""
    return _typed("integer", description, more)


def number(description: str = "", **more: Any) -> Schema:
    """A number."""
    return _typed("number", description, more)


def flag(description: str = "") -> Schema:
    """True or false."""
    return _typed("boolean", description, {})


def one_of(description: str, *words: str) -> Schema:
    """One of some words."""
    return text(description, enum=words)


def many(items: Schema, description: str = "", **more: Any) -> Schema:
    """A list."""
    return {**_typed("array", description, more), "items": items}


def table(values: Schema, description: str = "", **more: Any) -> Schema:
    """An object whose names are data."""
    return {**_typed("object", description, more), "additionalProperties": values}


def shape(description: str = "", /, *, optional: Iterable[str] = (), **members: Schema) -> Schema:
    """An object with these members and no others; all are there but the ``optional`` ones."""
    left_out = set(optional)
    return {
        **_typed("object", description, {}),
        "properties": members,
        "required": [name for name in members if name not in left_out],
        "additionalProperties": False,
    }


def nullable(inner: Schema) -> Schema:
    """Or null."""
    if isinstance(inner.get("type"), str) and "enum" not in inner:
        return {**inner, "type": [inner["type"], "null"]}
    return {"anyOf": [inner, {"type": "null"}]}


def anything(description: str = "", **more: Any) -> Schema:
    """Any JSON value, or one that ``more`` describes."""
    return {**({"description": description} if description else {}), **more}


def ref(name: str) -> Schema:
    """A schema of ``schemas.SCHEMAS``."""
    return {"$ref": f"#/components/schemas/{name}"}


def _typed(kind: str, description: str, more: dict[str, Any]) -> Schema:
    return {"type": kind, **({"description": description} if description else {}), **more}


TopicName: TypeAlias = str
PartitionNumber: TypeAlias = int
Timestamp: TypeAlias = int

SCALARS: dict[str, Schema] = {
    "TopicName": text("A topic's name."),
    "PartitionNumber": whole("A partition's number.", minimum=0, maximum=INT32_MAX),
    "NodeId": whole("A broker's node.id; -1: nobody."),
    "Offset": whole("A position in a partition's log.", minimum=-1, maximum=INT64_MAX),
    "Epoch": whole("A leader epoch; -1: none.", minimum=-1, maximum=INT32_MAX),
    "Timestamp": whole("Milliseconds since 1970."),
}
"""Values that have a name in ``/openapi.json``; ``schemas.SCHEMAS`` has the named objects too."""

WORDS: dict[str, Callable[..., Schema]] = {
    **dict.fromkeys(("str", "TopicName"), text),
    **dict.fromkeys(("int", "PartitionNumber", "NodeId", "Offset", "Epoch", "Timestamp"), whole),
    "float": number,
    "bool": flag,
    "Any": anything,
}
"""The word for a value's schema, by the annotation of the member that has it."""
COLLECTIONS: dict[str, Callable[..., Schema]] = {"list": many, "dict": table}
