"""The schema of Kafka's protocol: which fields a message has in which version.

``schema.json`` is made from the definitions inside ``kafka-clients`` by ``tests/kafka/make_schema.py`` and is read on
the first use of the protocol. NOTICE names its source.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

Side = Literal["request", "response"]

ZERO_UUID = bytes(16)

_ZERO: dict[str, Any] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": None,
    "uuid": ZERO_UUID,
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field; ``kind`` is Kafka's type without ``[]``."""

    name: str
    kind: str
    is_array: bool
    first: int
    last: int | None
    null_from: int | None = None
    tag: int | None = None
    default: Any = None
    is_optional: bool = False
    """A message may leave it out: it then has its default."""
    fields: tuple[Field, ...] = ()

    def is_in(self, version: int) -> bool:
        """Return True if the message has the field in this version."""
        return self.first <= version and (self.last is None or version <= self.last)

    def may_be_null(self, version: int) -> bool:
        return self.null_from is not None and version >= self.null_from


@dataclass(frozen=True, slots=True)
class ApiSchema:
    """One API. ``last`` is inclusive, as in Kafka's definitions."""

    name: str
    key: int
    first: int
    last: int
    flexible_from: int | None
    request: tuple[Field, ...] = field(repr=False)
    response: tuple[Field, ...] = field(repr=False)

    def is_flexible(self, version: int) -> bool:
        """Compact lengths and tagged fields (KIP-482)."""
        return self.flexible_from is not None and version >= self.flexible_from


def _field(name: str, kind: str, first: int, last: int | None, more: dict[str, Any] | None = None) -> Field:
    more = more or {}
    is_array = kind.startswith("[]")
    kind = kind.removeprefix("[]")
    fields = tuple(_field(*each) for each in more.get("fields", ()))
    if "default" in more:
        default = more["default"]
    elif is_array:
        default = []
    elif kind == "struct":
        default = {each.name: each.default for each in fields}
    else:
        default = _ZERO.get(kind, 0)
    tag = more.get("tag", (None,))[0]
    return Field(
        name=name,
        kind=kind,
        is_array=is_array,
        first=first,
        last=last,
        null_from=more.get("null"),
        tag=tag,
        default=default,
        is_optional=more.get("optional", False) or tag is not None,
        fields=fields,
    )


@cache
def _apis() -> tuple[dict[str, ApiSchema], dict[int, ApiSchema]]:
    text = resources.files(__package__).joinpath("schema.json").read_text(encoding="utf-8")
    by_name = {
        name: ApiSchema(
            name=name,
            key=api["key"],
            first=api["versions"][0],
            last=api["versions"][1],
            flexible_from=api["flexible"],
            request=tuple(_field(*each) for each in api["request"]),
            response=tuple(_field(*each) for each in api["response"]),
        )
        for name, api in json.loads(text)["apis"].items()
    }
    return by_name, {api.key: api for api in by_name.values()}


def api_named(name: str) -> ApiSchema:
    """The API with this name; KeyError when there is none."""
    return _apis()[0][name]


def api_with_key(key: int) -> ApiSchema | None:
    """The API with this number, if it is in the schema."""
    return _apis()[1].get(key)
