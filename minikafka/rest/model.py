"""One declaration of a JSON object: its schema, its example, its JSON output and the check of what a client sends.

A model is a class whose members are declared with :func:`member`, :func:`one` and :func:`many_of`. The schema of a
member follows from its annotation. ``out_of`` reads the members by name from any object, so that a wire message with
the same names becomes JSON without a copy of its list of fields. ``read`` checks a request against the schema that
``/openapi.json`` shows, and reports every fault at once, each with its JSON Pointer.

These are neither msgspec Structs nor dataclasses. msgspec stops at the first fault and does not suggest names, and
``/v1`` reports all faults (``errors``) with "did you mean". A dataclass takes 0.4 ms to make, and there are a hundred
models.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias, dataclass_transform

from minikafka.errors import did_you_mean
from minikafka.rest.body import add_strangers, pointer
from minikafka.rest.parameters import INT64_MAX
from minikafka.rest.route import Answer, Body, Json, Visit
from minikafka.rest.schema import COLLECTIONS, SCALARS, WORDS, Schema, many, nullable, ref, shape, text
from minikafka.web.accept import JSON
from minikafka.web.problems import VALIDATION_ERROR_COUNT_MAX, Fault, unacceptable
from minikafka.wire.limits import shown

WORDS_LISTED_MAX = 20
"""An error lists the accepted words if there are not more."""

MISSING: Any = object()
LEFT_OUT: Any = object()
"""Default of a member for which null is a value too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """What is declared of a member."""

    description: str = ""
    limits: Schema = field(default_factory=dict)
    """What the schema has beside its type."""
    value: Schema | None = None
    """The schema, if it does not follow from the annotation."""
    example: Any
    default: Any = MISSING
    shown: bool = False
    """Output has it even if it has the default None."""
    if_missing: str = ""
    source: str = ""
    negative_is_null: bool = False
    model: type[Model] | None = None
    """It is an object of this model, or a list of them."""
    is_list: bool = False
    or_null: bool = False

    @property
    def is_omitted(self) -> bool:
        """Output omits it if it has its default."""
        return not self.shown and (self.default is None or self.default is LEFT_OUT)

    def schema(self, *, sent: bool) -> Schema:
        """Return the schema of its value, as a broker writes it or as a client may send it."""
        if self.model is None:
            return self.value or {}
        inner = self.model.schema(sent=True) if sent else self.model.reference()
        if self.is_list:
            return many(inner, self.description, **self.limits)
        return nullable(inner) if self.or_null else inner

    def annotated(self, annotation: str) -> _Member:
        """Return the member with the schema of its annotation, unless it has one of its own.

        A member that may be None can be null in JSON, unless None stands for a member that is left out.
        """
        if self.value is not None or self.model is not None:
            return self
        kind = annotation.removesuffix(" | None")
        schema = schema_of(kind, self.description, self.limits)
        is_null = kind != annotation and (self.default is not None or self.shown)
        return replace(self, value=nullable(schema) if is_null else schema)


def schema_of(annotation: str, description: str, limits: Schema) -> Schema:
    """Return the schema of a value with this annotation, such as ``int``, ``Offset`` or ``list[NodeId]``.

    A named type has its schema in ``/openapi.json``, which a description or limits replace. Raises KeyError for an
    annotation that has no word: such a member is declared with its JSON Schema.
    """
    if annotation in SCALARS and not description and not limits:
        return ref(annotation)
    if annotation in WORDS:
        return WORDS[annotation](description, **limits)
    outer, _, inner = annotation.removesuffix("]").partition("[")
    return COLLECTIONS[outer](WORDS[inner.removeprefix("str, ")](), description, **limits)


def member(
    about: str | Schema = "",
    example: Any = None,
    *,
    default: Any = MISSING,
    shown: bool = False,
    if_missing: str = "",
    source: str = "",
    negative_is_null: bool = False,
    **limits: Any,
) -> Any:
    """Declare one member.

    Args:
        about: Description of the member, or its whole JSON Schema if that does not follow from the annotation.
        example: Value of the member in the example of the object.
        default: Value of the member if a request leaves it out. If it is None or LEFT_OUT, output omits a member with
            this value, unless it is ``shown``.
        shown: Output has the member as null although its default is None.
        if_missing: Advice for a client whose request lacks the member.
        source: Attribute of a wire message that has the value, such as ``replica_id`` or ``record.number``, if its name
            is not the member's.
        negative_is_null: A wire message has a negative number, such as -1, for a value that is not known.
        limits: Further members of its schema, such as ``minimum`` or ``enum``.
    """
    return _Member(
        description=about if isinstance(about, str) else "",
        value=None if isinstance(about, str) else about,
        limits=limits,
        example=example,
        default=default,
        shown=shown,
        if_missing=if_missing,
        source=source,
        negative_is_null=negative_is_null,
    )


def one(model: type[Model], *, or_null: bool = False, default: Any = MISSING) -> Any:
    """Declare an object of another model; the example has none if it may be left out."""
    return _Member(
        model=model, example=model.example() if default is MISSING else None, default=default, or_null=or_null
    )


def many_of(
    model: type[Model], description: str = "", *, example: Any = None, default: Any = MISSING, **more: Any
) -> Any:
    """Declare a list of objects of another model; ``more`` are limits of the list, in the words of JSON Schema.

    The example has one object, or none if the list may be left out.
    """
    if example is None and default is MISSING:
        example = [model.example()]
    return _Member(description=description, model=model, is_list=True, example=example, default=default, limits=more)


NOTE = {"note": text("What could be asked better.")}
"""Advice for the client (``Visit.note``), which ``routes.respond`` adds to an answer that may have it."""


@dataclass_transform(kw_only_default=True, field_specifiers=(member, one, many_of))
class Model:
    """Base of the models.

    ``named=True``: the schema is listed under the class's name in ``schemas.SCHEMAS``. ``is_open=True``: the object may
    have other members too. ``notes=True``: an answer may have NOTE. A member whose name is a word of Python ends with
    ``_`` in the class, and only there.
    """

    _named: ClassVar[bool] = False
    _is_open: ClassVar[bool] = False
    _notes: ClassVar[bool] = False
    _members: ClassVar[dict[str, _Member]] = {}
    _inner: ClassVar[tuple[tuple[str, type[Model], bool], ...]] = ()
    """Members that are objects of a model, and those that are lists of them."""
    _sources: ClassVar[dict[str, attrgetter[Any]]] = {}
    _or_negative: ClassVar[tuple[str, ...]] = ()
    """Members for which a wire message has a negative number if they are not known."""
    _omitted: ClassVar[tuple[tuple[str, Any], ...]] = ()
    """Members that output omits, and the value with which it does."""
    _defaults: ClassVar[dict[str, Any]] = {}
    _check: ClassVar[_Check | None] = None

    def __init_subclass__(cls, *, named: bool = False, is_open: bool = False, notes: bool = False) -> None:
        cls._named, cls._is_open, cls._notes = named, is_open, notes
        cls._check = None
        for name, annotation in inspect.get_annotations(cls).items():
            declared = vars(cls).get(name)
            if isinstance(declared, _Member):
                setattr(cls, name, declared.annotated(annotation))
        everything = [each for base in reversed(cls.__mro__) for each in vars(base).items()]
        cls._members = {name.removesuffix("_"): each for name, each in everything if isinstance(each, _Member)}
        cls._inner = tuple(
            (name, each.model, each.is_list) for name, each in cls._members.items() if each.model is not None
        )
        cls._sources = {name: attrgetter(each.source or name) for name, each in cls._members.items()}
        cls._or_negative = tuple(name for name, each in cls._members.items() if each.negative_is_null)
        cls._omitted = tuple((name, each.default) for name, each in cls._members.items() if each.is_omitted)
        cls._defaults = {name: each.default for name, each in cls._members.items() if each.default is not MISSING}

    def __init__(self, **values: Any) -> None:
        given = self.__dict__
        given.update(self._defaults)
        given.update(values)
        if given.keys() != self._members.keys():
            wrong = ", ".join(sorted(given.keys() ^ self._members.keys()))
            raise TypeError(f"{type(self).__name__}: missing or unknown: {wrong}")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # it may change

    def __repr__(self) -> str:
        return f"{type(self).__name__}({vars(self)})"

    @classmethod
    def schema(cls, *, sent: bool = False) -> Schema:
        """Return the schema of the object as a broker writes it, or (``sent``) as a client may send it."""
        found = cls._members.items()
        optional = [name for name, each in found if each.is_omitted or (sent and each.default is not MISSING)]
        members = {name: each.schema(sent=sent) for name, each in found}
        if cls._notes:
            members, optional = {**members, **NOTE}, [*optional, *NOTE]
        schema = shape(" ".join((cls.__doc__ or "").split()), optional=optional, **members)
        return {**schema, "additionalProperties": cls._is_open}

    @classmethod
    def reference(cls) -> Schema:
        """Return the schema where another schema or an answer uses it: a reference if it has a name."""
        return ref(cls.__name__) if cls._named else cls.schema()

    @classmethod
    def example(cls, **others: Any) -> dict[str, Any]:
        """Return the example of the object, without members that may be left out and have no example.

        ``others`` are members that differ in this place.
        """
        examples = {name: each.example for name, each in cls._members.items()}
        left_out = {name for name in cls._defaults if examples[name] is None and not cls._members[name].shown}
        return {name: value for name, value in {**examples, **others}.items() if name in others or name not in left_out}

    @classmethod
    def answer(cls, description: str, **others: Any) -> Answer:
        """Return a route's answer that is this object; ``others`` are members that differ in its example."""
        return Answer(description, {JSON: (cls.reference(), cls.example(**others))})

    @classmethod
    def body(cls, example: Json | None = None, *, required: bool = True, **others: Any) -> Body:
        """Return a route's body that is this object; ``others`` are members that differ in its example."""
        return Body({JSON: (cls.schema(sent=True), example or cls.example(**others))}, required=required)

    @classmethod
    def out_of(cls, source: object, /, **others: Any) -> dict[str, Any]:
        """Return the JSON object: members from ``others``, or else from ``source``, a wire message or another model.

        An object of another model may be a dictionary already, and so may all of a list.
        """
        if isinstance(source, Model):
            given = {**vars(source), **others}
            document = {name: given[name] for name in cls._members}
        else:
            document = {name: others[name] if name in others else read(source) for name, read in cls._sources.items()}
            for name in cls._or_negative:
                if document[name] is not None and document[name] < 0:
                    document[name] = None
        for name, omitted in cls._omitted:
            if document[name] is omitted:
                del document[name]
        for name, model, is_list in cls._inner:
            value = document.get(name)
            if value is not None:
                document[name] = _outs_of(model, value) if is_list else _out_of(model, value)
        return document

    def out(self) -> dict[str, Any]:
        """Return the JSON object."""
        return self.out_of(self)

    @classmethod
    async def sent(cls, visit: Visit, *, required: bool = True) -> Self:
        """Return the model that the body of a request stands for; an empty body is ``{}`` if it is not ``required``."""
        return cls.read(await visit.document(required=required))

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Return the model that a client's JSON object stands for.

        Raises:
            Refused: 422 with every fault: missing members, unknown names, values of another type or out of range.
        """
        if cls._check is None:
            advice = {name: f"; {each.if_missing}" for name, each in cls._members.items() if each.if_missing}
            cls._check = _Check(cls.schema(sent=True), advice)
        faults: list[Fault] = []
        cls._check(document, (), faults)
        if faults:
            raise unacceptable(faults)
        model = cls.built(document)
        faults = [{"pointer": pointer(name), "detail": detail} for name, detail in model.contradictions()]
        if faults:
            raise unacceptable(faults)
        return model

    @classmethod
    def built(cls, document: Mapping[str, Any]) -> Self:
        """Return the model of a JSON object that has no fault."""
        values = dict(document)
        for name, model, is_list in cls._inner:
            value = values.get(name)
            if value is not None:
                values[name] = [model.built(item) for item in value] if is_list else model.built(value)
        return cls(**values)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield what no schema says of a request: a member, and what is wrong with it beside the others."""
        return iter(())


def _out_of(model: type[Model], value: Any) -> dict[str, Any]:
    return value if type(value) is dict else model.out_of(value)


def _outs_of(model: type[Model], values: Sequence[Any]) -> Sequence[dict[str, Any]]:
    return values if values and type(values[0]) is dict else [model.out_of(each) for each in values]


# ---- checking --------------------------------------------------------------------------------------------------------

_Path: TypeAlias = "tuple[_Path, str | int] | tuple[()]"
"""Where a value is, the last part first: it becomes text only for a fault."""


class _Type(NamedTuple):
    """A type of JSON."""

    types: tuple[type, ...]
    words: tuple[str, ...]


_TYPES = {
    "string": _Type((str,), ("a text",)),
    "integer": _Type((int,), ("a whole number",)),
    "number": _Type((int, float), ("a number",)),
    "boolean": _Type((bool,), ("true", "false")),
    "null": _Type((type(None),), ("null",)),
    "array": _Type((list,), ("a list",)),
    "object": _Type((dict,), ("an object",)),
}
_LIMITS: dict[type, tuple[str, str, str]] = {
    str: ("minLength", "maxLength", "characters"),
    list: ("minItems", "maxItems", "entries"),
    dict: ("minProperties", "maxProperties", "members"),
}


class _Check:
    """The check of values against a schema. Knows the part of JSON Schema that schemas of requests use."""

    def __init__(self, schema: Schema, advice: Mapping[str, str] | None = None) -> None:
        if "$ref" in schema:
            schema = SCALARS[schema["$ref"].rpartition("/")[2]]
        if "anyOf" in schema:  # one of some words, or null
            schema = {**schema["anyOf"][0], "type": ["string", "null"]}
        self._schema = schema
        self._advice = advice or {}
        kinds = schema.get("type", [])
        self._kinds = kinds if type(kinds) is list else [kinds]
        """Empty: it may be any JSON."""
        self._types = frozenset(each for kind in self._kinds for each in _TYPES[kind].types)
        self._low, self._high = schema.get("minimum", -INT64_MAX - 1), schema.get("maximum", INT64_MAX)
        self._above = schema.get("exclusiveMinimum")
        self._words = schema.get("enum")
        self._items = _Check(schema["items"]) if "items" in schema else None
        self._members = {name: _Check(inner) for name, inner in schema.get("properties", {}).items()}
        self._values = _Check(schema["additionalProperties"]) if schema.get("additionalProperties") else None
        self._has_parts = not {"minLength", "maxLength", "items", "additionalProperties"}.isdisjoint(schema)

    def __call__(self, value: Any, path: _Path, faults: list[Fault]) -> None:
        """Add every fault of a value to ``faults``."""
        kind = type(value)
        if not self._kinds:
            return
        if kind not in self._types:
            faults.append(_fault(path, f"{self._needed()} is needed, not {shown(value)}"))
        elif kind is int or (kind is float and "maximum" in self._schema):
            if not self._low <= value <= self._high or (self._above is not None and value <= self._above):
                needed = f"a {'' if 'number' in self._kinds else 'whole '}number {self._range()}"
                faults.append(_fault(path, f"{needed} is needed, not {shown(value)}"))
        elif self._words is not None and value is not None and value not in self._words:
            faults.append(_fault(path, _other_word(self._words, value)))
        elif self._has_parts and kind in _LIMITS:
            self._check_parts(value, path, faults)

    def _needed(self) -> str:
        if self._kinds == ["integer"] and "minimum" in self._schema:
            return f"a whole number {self._range()}"
        *most, last = [word for kind in self._kinds for word in _TYPES[kind].words]
        return f"{', '.join(most)} or {last}" if most else last

    def _range(self) -> str:
        if self._above is not None:
            return f"above {self._above} and at most {self._high}"
        return f"from {self._low} to {self._high}"

    def _check_parts(self, value: Any, path: _Path, faults: list[Fault]) -> None:
        least, most, what = _LIMITS[type(value)]
        if len(value) < self._schema.get(least, 0):
            faults.append(_fault(path, f"{self._schema[least]} or more {what} are needed, not {len(value)}"))
        elif len(value) > self._schema.get(most, len(value)):
            detail = f"{self._schema[most]} {what} are accepted in one request, not {len(value)}"
            faults.append(_fault(path, detail))
        elif self._items is not None:
            for at, item in enumerate(value):
                self._items(item, (path, at), faults)
                if len(faults) >= VALIDATION_ERROR_COUNT_MAX:
                    break
        elif self._values is not None:
            for name, item in value.items():
                self._values(item, (path, name), faults)
        elif type(value) is dict:
            self._check_members(value, path, faults)

    def _check_members(self, value: dict[str, Any], path: _Path, faults: list[Fault]) -> None:
        for name, check in self._members.items():
            if name in value:
                check(value[name], (path, name), faults)
            elif name in self._schema["required"]:
                faults.append(_fault((path, name), f"is missing{self._advice.get(name, '')}"))
        if not value.keys() <= self._members.keys():
            add_strangers(value, self._members, _pointer(path), faults)


def _pointer(path: _Path) -> str:
    parts: list[str | int] = []
    while path:
        path, part = path
        parts.append(part)
    return pointer(*reversed(parts))


def _fault(path: _Path, detail: str) -> Fault:
    return {"pointer": _pointer(path), "detail": detail}


def _other_word(words: list[str], value: str) -> str:
    if len(words) > WORDS_LISTED_MAX:
        otherwise = f": it is none of the {len(words)} in the schema"
        return f"{shown(value)} is not known here{did_you_mean(value, words, quoted=True) or otherwise}"
    if len(words) > 2:
        return f"one of {', '.join(words)} is needed, not {shown(value)}{did_you_mean(value, words, quoted=True)}"
    return f"{' or '.join(words)} is needed, not {shown(value)}"
