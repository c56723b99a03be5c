"""Between Kafka's messages and typed ones, where both have fields of the same names.

Translators write down only what differs: other names, codes by version, defaults. What each message class has is read
from its annotations once. Produce, Fetch and the rows of Metadata, which are many, are written out in their modules.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import Exchange, by_topic
from minikafka.wire.messages import Failed
from minikafka.wire.messages import Message as TypedMessage

Kind = TypeVar("Kind")
Convert = Callable[[Any], Any]
Conversions = tuple[tuple[str, Convert | None], ...]
"""Names of fields, each with its conversion; None: the value stays unchanged."""

_PLANS: dict[type, tuple[Conversions, Conversions]] = {}


def typed(kind: type[Kind], message: Message, /, **values: Any) -> Kind:
    """A typed message: its fields are ``values`` and, by name, those of Kafka's message; others have their default.

    A null text becomes an empty one where the typed message knows no null.
    """
    for name, convert in _plan(kind)[0]:
        if name not in values and name in message:
            value = message[name]
            values[name] = value if convert is None else convert(value)
    return kind(**values)


def plain(answer: Any) -> Message:
    """A typed message as one of Kafka's with fields of the same names; an empty ``error_message`` is null."""
    return {
        name: getattr(answer, name) if convert is None else convert(getattr(answer, name))
        for name, convert in _plan(type(answer))[1]
    }


def request_of(kind: type[Any]) -> Callable[[Message, Exchange], Any]:
    """The translation of a request that has the same fields as the typed one."""
    return lambda message, _exchange: typed(kind, message)


def plain_response(_message: Message, response: Any, _exchange: Exchange) -> Message:
    """The translation of a response that has the same fields as the typed one."""
    return plain(response)


def error_of(answer: Failed) -> Message:
    """Code and message of one item."""
    return {"error_code": answer.error_code, "error_message": answer.error_message or None}


def flat(
    kind: type[Kind],
    topics: Iterable[Message],
    *,
    topic: str = "name",
    rows: str = "partitions",
    index: str = "partition_index",
) -> tuple[Kind, ...]:
    """Our flat items for the partitions that Kafka nests in topics: numbers, or structs with more fields.

    Args:
        kind: Class of the items, with ``topic`` and ``partition``.
        topics: Kafka's topics.
        topic: Field of a topic with its name.
        rows: Field of a topic with its partitions.
        index: Field of a partition with its number.
    """
    return tuple(
        typed(kind, {}, topic=each[topic], partition=row)
        if isinstance(row, int)
        else typed(kind, row, topic=each[topic], partition=row[index])
        for each in topics
        for row in each[rows]
    )


def nested(items: Iterable[Any], row_of: Convert, *, topic: str = "name", rows: str = "partitions") -> list[Message]:
    """Our flat items in Kafka's topics, by topic in the order of the items."""
    return [{topic: name, rows: [row_of(each) for each in group]} for name, group in by_topic(items).items()]


def in_request_order(
    topics: Iterable[Message],
    row_of: Callable[[str, Any], Message],
    *,
    topic: str = "name",
    rows: str = "partitions",
    into: str = "",
) -> list[Message]:
    """Kafka's topics of a request with an answer for each of their partitions: ``row_of(topic's name, row)``.

    ``into`` names the field of the rows in the response, where it is not that of the request.
    """
    return [{topic: each[topic], (into or rows): [row_of(each[topic], row) for row in each[rows]]} for each in topics]


def each_answer(response: Failed, items: Sequence[Kind], kind: type[Kind], asked: Iterable[Message]) -> Sequence[Kind]:
    """The items of a response; of a refused one, an item with its error for each that was asked for."""
    if not response.error_code:
        return items
    return [typed(kind, each, error_code=response.error_code, error_message=response.error_message) for each in asked]


def _plan(kind: type[Any]) -> tuple[Conversions, Conversions]:
    """How each field is made of Kafka's, and Kafka's of it; worked out when the class is first met."""
    plan = _PLANS.get(kind)
    if plan is None:
        hints = typing.get_type_hints(kind)
        names = kind.__struct_fields__
        plan = _PLANS[kind] = (
            tuple((name, _from_kafka(hints[name])) for name in names),
            tuple((name, _null_if_empty if name == "error_message" else _to_kafka(hints[name])) for name in names),
        )
    return plan


def _null_if_empty(text: str) -> str | None:
    return text or None


def _from_kafka(annotation: Any) -> Convert | None:
    if annotation is str:
        return lambda value: "" if value is None else value
    inner, is_tuple = _inner(annotation)
    if _is_typed(inner):
        kind = inner
        if is_tuple:
            return lambda value: None if value is None else tuple([typed(kind, each) for each in value])
        return lambda value: None if value is None else typed(kind, value)
    return (lambda value: None if value is None else tuple(value)) if is_tuple else None


def _to_kafka(annotation: Any) -> Convert | None:
    inner, is_tuple = _inner(annotation)
    if not _is_typed(inner):
        return None
    if is_tuple:
        return lambda value: None if value is None else [plain(each) for each in value]
    return lambda value: None if value is None else plain(value)


def _is_typed(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, TypedMessage)


def _inner(annotation: Any) -> tuple[Any, bool]:
    """The class in ``X``, ``X | None`` or ``tuple[X, ...]``, and whether it is one of a tuple."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        annotation = next(each for each in typing.get_args(annotation) if each is not type(None))
    if typing.get_origin(annotation) is tuple:
        return typing.get_args(annotation)[0], True
    return annotation, False
