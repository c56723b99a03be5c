"""One declaration of a JSON object: its schema, its example, its JSON output and the check of what a client sends.

A model is a class whose members are declared with :func:`member` and :func:`many_of`. ``out_of`` reads the members by
name from any object, so that a wire message with the same names becomes JSON without a copy of its list of fields.
``read`` reports every fault of a request at once, each with its JSON Pointer.

These are dataclasses and not msgspec Structs: msgspec stops at the first fault and does not suggest names, and
``/v1`` reports all faults (``errors``) with "did you mean".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import MISSING
from typing import Any, ClassVar, Self, dataclass_transform

from minikafka.rest.body import Members
from minikafka.rest.route import Answer
from minikafka.rest.schema import Schema, many, ref, shape
from minikafka.web.problems import Fault, unacceptable
from minikafka.wire.limits import shown


def member(schema: Schema, example: Any = None, *, default: Any = MISSING) -> Any:
    """Declare one member.

    Args:
        schema: The JSON Schema of its value.
        example: Its value in the example of the object.
        default: Value of a member that a request leaves out. Output omits a member whose default and value are None.
    """
    return dataclasses.field(default=default, metadata={"schema": schema, "example": example})


def many_of(model: type[Model]) -> Any:
    """Declare a list of objects of another model."""
    return dataclasses.field(metadata={"schema": many(model.reference()), "example": [model.example()], "model": model})


@dataclass_transform(kw_only_default=True, field_specifiers=(member, many_of))
class Model:
    """Base of the models. ``named=True``: the schema is listed under the class's name in ``schemas.SCHEMAS``."""

    _named: ClassVar[bool] = False
    _plan: ClassVar[tuple[tuple[str, bool, type[Model] | None], ...]] = ()
    """Of each member: name, whether None is omitted, and the model of its items."""

    def __init_subclass__(cls, *, named: bool = False) -> None:
        # Not frozen: setting each member through object.__setattr__ takes more than twice as long.
        dataclasses.dataclass(kw_only=True)(cls)
        cls._named = named
        cls._plan = tuple((each.name, _omits_none(each), each.metadata.get("model")) for each in _fields(cls))

    @classmethod
    def schema(cls, *, sent: bool = False) -> Schema:
        """Return the schema of the object as a broker writes it, or (``sent``) as a client may send it."""
        optional = [each.name for each in _fields(cls) if (each.default is not MISSING if sent else _omits_none(each))]
        members = {each.name: each.metadata["schema"] for each in _fields(cls)}
        return shape(" ".join((cls.__doc__ or "").split()), optional=optional, **members)

    @classmethod
    def reference(cls) -> Schema:
        """Return the schema where another schema or an answer uses it: a reference if it has a name."""
        return ref(cls.__name__) if cls._named else cls.schema()

    @classmethod
    def example(cls, **others: Any) -> dict[str, Any]:
        """Return the example of the object; ``others`` are members that differ in this place."""
        examples = {each.name: each.metadata["example"] for each in _fields(cls) if not _omits_none(each)}
        return {**examples, **others}

    @classmethod
    def answer(cls, description: str, **others: Any) -> Answer:
        """Return a route's answer that is this object; ``others`` are members that differ in its example."""
        return Answer(description=description, schema=cls.reference(), example=cls.example(**others))

    @classmethod
    def out_of(cls, source: object, **others: Any) -> dict[str, Any]:
        """Return the JSON object: members by name from ``others``, or else from the attributes of ``source``."""
        document: dict[str, Any] = {}
        for name, omits_none, model in cls._plan:
            value = others[name] if name in others else getattr(source, name)
            if value is None and omits_none:
                continue
            if model is not None:
                value = [model.out_of(item) for item in value]
            document[name] = value
        return document

    def out(self) -> dict[str, Any]:
        """Return the JSON object."""
        return self.out_of(self)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> Self:
        """Return the model that a client's JSON object stands for.

        Raises:
            Refused: 422 with every fault: missing members, unknown names, values of another type or out of range.
        """
        faults: list[Fault] = []
        members = Members(dict(document), "", faults)
        values = {each.name: _value_of(members, each, present=each.name in document) for each in _fields(cls)}
        members.done()
        if faults:
            raise unacceptable(faults)
        return cls(**values)


def _fields(model: type[Model]) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(model)  # type: ignore[arg-type]  # each subclass becomes a dataclass


def _omits_none(field: dataclasses.Field[Any]) -> bool:
    return field.default is None


def _value_of(members: Members, field: dataclasses.Field[Any], *, present: bool) -> Any:
    """Read one member by its schema; a fault is noted with ``members``."""
    name, schema = field.name, field.metadata["schema"]
    value = members.any(name)
    if not present:
        if field.default is MISSING:
            members.wrong(name, "is missing")
        return field.default
    match schema["type"]:
        case "integer":
            return members.integer(name, 0, low=schema["minimum"], high=schema["maximum"])
        case "boolean":
            if type(value) is not bool:
                members.wrong(name, f"true or false is needed, not {shown(value)}")
        case "string":
            members.text(name)
            if type(value) is str and value not in schema.get("enum", (value,)):
                members.wrong(name, f"{' or '.join(schema['enum'])} is needed, not {shown(value)}")
        case other:
            raise TypeError(f"{name}: no reader for members of type {other!r}")
    return value
