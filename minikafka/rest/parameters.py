"""What a request says beside its body: parts of the path, query parameters, headers.

Each is declared once, with its limits, its default and a sentence; the same declaration reads it, refuses it by name
and describes it in ``/openapi.json``. A handler asks ``visit[OFFSET]`` and gets a value of the declared type.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from minikafka.errors import InvalidRequest, ProtocolError, did_you_mean, one_is_needed
from minikafka.rest.host import TIMEOUT_MS_DEFAULT, TIMEOUT_MS_MAX
from minikafka.web.problems import Fault, malformed
from minikafka.wire.limits import shown

Value = TypeVar("Value")
Place = Literal["query", "path", "header"]

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}", re.ASCII)
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class Wrong(ValueError):
    """One sentence about a text that is not a value of its parameter."""


PARTS: dict[str, Parameter[Any]] = {}
"""Parts of paths, by the names that paths have for them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parameter(ABC, Generic[Value]):
    """One parameter; subclasses say how its text is read. Parts of the path are always there, others if `required`."""

    name: str = field(kw_only=False)
    description: str = field(kw_only=False)
    default: Value
    place: Place = "query"
    required: bool = False
    """A request without it is refused."""
    example: Any = None
    error: type[ProtocolError] = InvalidRequest
    """What a text that is no value is refused with."""

    def __post_init__(self) -> None:
        if self.place == "path":
            PARTS[self.name] = self

    @abstractmethod
    def read(self, text: str) -> Value:
        """The value; Wrong with one sentence."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the value."""

    def shown_default(self) -> Any:
        """The default as the schema has it, or None when there is nothing to show."""
        return self.default


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Integer(Parameter[int]):
    """A whole number from ``low`` to ``high``, both included; a default outside of them means *not given*."""

    default: int = -1
    low: int = 0
    high: int

    def read(self, text: str) -> int:
        if not _WHOLE_NUMBER.fullmatch(text) or not self.low <= int(text) <= self.high:
            raise Wrong(f"{shown(text)}: a whole number from {self.low} to {self.high} is needed")
        return int(text)

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def shown_default(self) -> Any:
        return self.default if self.low <= self.default <= self.high else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choice(Parameter[str]):
    """One of some words."""

    options: tuple[str, ...]

    def read(self, text: str) -> str:
        if text not in self.options:
            raise Wrong(f"{shown(text)}: {one_is_needed(self.options, text)}")
        return text

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.options)}

    def shown_default(self) -> Any:
        return self.default if self.default in self.options else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flag(Parameter[bool]):
    """``true`` or ``false``."""

    default: bool = False

    def read(self, text: str) -> bool:
        if text not in ("true", "false"):
            raise Wrong(f"{shown(text)}: true or false is needed{did_you_mean(text, ('true', 'false'), quoted=True)}")
        return text == "true"

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Text(Parameter[str]):
    """A text that ``pattern`` (anchored, in the dialect that Python and JSON Schema share) matches."""

    default: str = ""
    pattern: str = ""
    needed: str = "another text"
    """What is needed, in words."""
    length_max: int = 1_000

    def read(self, text: str) -> str:
        if len(text) > self.length_max or (self.pattern and not re.fullmatch(self.pattern, text)):
            raise Wrong(f"{shown(text)}: {self.needed} is needed")
        return text

    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "string", "maxLength": self.length_max}
        if self.pattern:
            schema["pattern"] = f"^(?:{self.pattern})$"
        return schema

    def shown_default(self) -> Any:
        return self.default or None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parsed(Parameter[Value]):
    """A text with a meaning of its own: ``reader`` gives the value or raises Wrong."""

    reader: Callable[[str], Value]
    described: dict[str, Any]
    """Its JSON Schema."""
    default_shown: Any = None
    """The default as a client would say it."""

    def read(self, text: str) -> Value:
        return self.reader(text)

    def schema(self) -> dict[str, Any]:
        return self.described

    def shown_default(self) -> Any:
        return self.default_shown


def any_text(name: str, description: str, *, needed: str = "a name", **more: Any) -> Text:
    """Declare a text that is not empty and may have any characters, also slashes and line breaks."""
    return Text(name, description, pattern=r"[\s\S]+", needed=needed, length_max=32_767, **more)


class HasValues:
    """A request whose parameters were read: it has their values, and knows which of them are its own."""

    values: Mapping[str, Any]
    """By the names of the parameters."""
    given: Collection[str]
    """Names of the parameters that are not left to their defaults."""

    def __getitem__(self, parameter: Parameter[Value]) -> Value:
        """What the request says for a parameter that its route declares."""
        value: Value = self.values[parameter.name]
        return value

    def gives(self, parameter: Parameter[Any]) -> bool:
        """Return True if the request has this parameter, and does not leave it to its default."""
        return parameter.name in self.given


def values_of(
    parameters: Sequence[Parameter[Any]],
    *,
    path: Mapping[str, str],
    query: Mapping[str, Sequence[str]],
    headers: Mapping[str, str],
) -> tuple[dict[str, Any], set[str]]:
    """Return the value of every declared parameter by its name, and the names that the request has.

    Raises Refused: 400 for all that is wrong at once, unknown query names included.
    """
    values: dict[str, Any] = {}
    named: set[str] = set()
    faults: list[Fault] = []
    errors: list[type[ProtocolError]] = []
    for each in parameters:
        given: Sequence[str]
        if each.place == "query":
            given = query.get(each.name, ())
        else:
            source = path if each.place == "path" else headers
            given = [source[each.name]] if each.name in source else ()
        if given:
            named.add(each.name)
        elif each.required:
            faults.append({"parameter": each.name, "detail": f"is missing; such as {each.name}={each.example}"})
        if len(given) > 1:
            faults.append({"parameter": each.name, "detail": f"comes {len(given)} times"})
        try:
            values[each.name] = each.read(given[0]) if given else each.default
        except Wrong as wrong:
            faults.append({"parameter": each.name, "detail": str(wrong)})
            errors.append(each.error)
    faults.extend(_strangers(query, {each.name for each in parameters if each.place == "query"}))
    if faults:
        first = faults[0]
        # Kafka's own error when that is all that is wrong.
        error = errors[0] if len(faults) == 1 == len(errors) else InvalidRequest
        raise malformed(f"parameter {first['parameter']}: {first['detail']}", faults, error=error)
    return values, named


def _strangers(query: Mapping[str, Sequence[str]], known: Collection[str]) -> Iterator[Fault]:
    """A parameter that nobody reads would have no effect, and its sender believes that it has one."""
    for name in query:
        if name not in known:
            yield {"parameter": name, "detail": f"no such parameter here{did_you_mean(name, known, quoted=True)}"}


def states_parameter(what: str, known: Sequence[str], *, example: str) -> Parsed[tuple[str, ...]]:
    """Declare ``state``: only what is in one of some states."""
    by_name = {each.lower(): each for each in known}

    def read(given: str) -> tuple[str, ...]:
        states = []
        for each in given.split(","):
            if each.strip().lower() not in by_name:
                raise Wrong(f"{shown(each)}: {one_is_needed(known, each, count='one or more')}")
            states.append(by_name[each.strip().lower()])
        return tuple(states)

    one = "|".join(known)
    return Parsed(
        "state",
        f"Only {what} in these states: {', '.join(f'`{each}`' for each in known)}; several with commas.",
        default=(),
        reader=read,
        described={"type": "string", "pattern": f"^(?:{one})(?:,(?:{one}))*$"},
        example=example,
    )


def kinds_parameter(description: str) -> Parsed[Collection[str]]:
    """Declare ``kind``: only events of some kinds."""

    def read(given: str) -> tuple[str, ...]:
        kinds = tuple(each.strip() for each in given.split(","))
        if not all(kind.isidentifier() for kind in kinds):
            raise Wrong(f"{shown(given)}: kinds of events with commas are needed, as in isr_shrunk,leader_elected")
        return kinds

    described = {"type": "string", "pattern": "^[A-Za-z_]+(,[A-Za-z_]+)*$"}
    return Parsed(
        "kind", description, default=(), reader=read, described=described, example="isr_shrunk,leader_elected"
    )


# ---- parameters that several routes share ----------------------------------------------------------------------------

TOPIC = Text("topic", "The topic's name.", place="path", pattern=r"[^/]+", needed="a name", example="orders")
PARTITION = Integer("partition", "The partition's number.", place="path", high=INT32_MAX, example=0)
FORWARD = Choice(
    "forward",
    "`never`: do not forward to the broker that leads, answer 421 with its address instead.",
    options=("auto", "never"),
    default="auto",
)
TIMEOUT_MS = Integer(
    "timeout_ms", "How long the controller may take.", default=TIMEOUT_MS_DEFAULT, low=1, high=TIMEOUT_MS_MAX
)
