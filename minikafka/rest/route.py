"""One line of the table of doors: where it is, who answers, and all that ``/openapi.json`` says of it.

The same object serves and describes. A route's parameters are read before its handler runs; what its table does not
name is refused. ``answers`` are the statuses below 400 with schema and example, ``problems`` the errors that its
handler may raise beside those of every route (``openapi.py`` has those).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from minikafka.errors import (
    KafkaStorageError,
    LeaderNotAvailable,
    NetworkException,
    NotController,
    NotLeaderOrFollower,
    ProtocolError,
    UnknownTopicOrPartition,
)
from minikafka.rest.parameters import Parameter
from minikafka.rest.schema import Schema, text
from minikafka.rest.visit import Handler
from minikafka.web.accept import JSON
from minikafka.web.problems import Refused

LEADER_PROBLEMS: tuple[type[ProtocolError], ...] = (
    UnknownTopicOrPartition,
    NotLeaderOrFollower,
    LeaderNotAvailable,
    NetworkException,
    KafkaStorageError,
)
"""What can go wrong wherever a partition's leader is asked."""

CONTROLLER_PROBLEMS: tuple[type[ProtocolError], ...] = (NotController, LeaderNotAvailable, NetworkException)
"""What can go wrong wherever the active controller is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """What a request carries: media type -> (schema, example). JSON bodies may come as msgpack too."""

    contents: Mapping[str, tuple[Schema, Any]]
    description: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One status that is no problem."""

    description: str
    schema: Schema
    example: Any = None
    media_type: str = JSON
    """``application/json`` can be had as msgpack too; anything else is returned unchanged."""
    also: Mapping[str, tuple[Schema, Any]] = field(default_factory=dict)
    """Other media types that it may be: schema and example."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorForm:
    """How a route writes its errors, if not as problems (RFC 9457)."""

    media_type: str
    schema: Schema
    body_of: Callable[[Refused], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One door."""

    method: str
    path: str
    """With ``{name}`` for its variable parts."""
    handler: Handler
    tag: str
    answers: Mapping[int, Answer]
    parameters: tuple[Parameter[Any], ...] = ()
    body: Body | None = None
    problems: tuple[type[ProtocolError], ...] = ()
    errors: ErrorForm | None = None
    """None: errors are problems."""
    testing: bool = False
    """Only there with ``mk.testing.endpoints.enable=true``."""

    @property
    def reads_metadata(self) -> bool:
        """True if the handler looks topics or groups up in the metadata: a broker without it would answer 404."""
        return self.tag in ("topics", "partitions", "records", "groups", "proxy")

    @property
    def media_types(self) -> frozenset[str]:
        """What its answers can be."""
        return frozenset(each for answer in self.answers.values() for each in (answer.media_type, *answer.also))


def text_answer(description: str, media_type: str, example: str, words: str = "") -> Answer:
    """An answer that is no JSON; ``words`` say what its text is."""
    return Answer(description=description, schema=text(words), example=example, media_type=media_type)


def json_body(schema: Schema, example: Any, description: str = "", *, required: bool = True) -> Body:
    """A body that is one JSON value."""
    return Body(contents={JSON: (schema, example)}, description=description, required=required)
