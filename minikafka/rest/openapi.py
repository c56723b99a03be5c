"""``/openapi.json``: OpenAPI 3.1, made from the table of routes that serves, so that the two cannot differ.

What every route has in common stands here once: the problems that any request may meet, the headers of any answer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any

from minikafka import __version__
from minikafka.broker.http_login import WRONG
from minikafka.errors import (
    BrokerNotAvailable,
    InvalidRequest,
    ProtocolError,
    RecordListTooLarge,
    SaslAuthenticationFailed,
)
from minikafka.rest.parameters import Parameter
from minikafka.rest.route import Answer, Body, ErrorForm, Route
from minikafka.rest.schema import Schema, ref
from minikafka.rest.schemas import SCHEMAS
from minikafka.web.accept import JSON, MSGPACK
from minikafka.web.problems import PROBLEM_TYPE, Refused, page_of, problem_of, slug_of, status_of, title_of

TAGS = {
    "records": "Produce, read, stream, and find positions.",
    "topics": "Create, show and delete topics.",
    "partitions": "Replicas and why they are in or out of sync; logs, epochs, causes; elections and deletions.",
    "groups": "Consumer groups: members, committed offsets and lag; a person can be a member.",
    "transactions": "Transactional ids, and the producers of a partition with their open transactions.",
    "proxy": "The produce routes of Confluent REST Proxy, v2 and v3.",
    "cluster": "Brokers, the controller, and its log.",
    "health": "For supervisors and balancers.",
    "docs": "What this API says of itself.",
    "testing": "Only with `mk.testing.endpoints.enable=true`: faults, awaited states, the journal.",
}

DESCRIPTION = """\
What curl can do to a minikafka broker. Any broker answers: what only a partition's leader or the active controller
can do is forwarded once (`Mk-Served-By` and `Mk-Leader` tell who was asked; `?forward=never` turns it off).

Bodies and answers are JSON; `application/msgpack` says the same both ways and keeps bytes as they are. An error
is a problem (RFC 9457) with Kafka's `error` and `error_code`, whether a repetition can help (`retriable`), and what
became of a write (`outcome`). What is not understood is refused by name, never ignored.

The protocol between brokers is at `POST /rpc/{Api}`, which takes JSON as well where no batches travel.
"""

STATUS_WORDS = {
    400: "The request cannot be understood.",
    401: "The login failed, or the listener needs one.",
    403: "A web page of another origin, or an unknown `Host`.",
    404: "There is no such thing.",
    406: "It cannot be said in a type that `Accept` takes.",
    408: "The body did not come in time.",
    409: "The caller's view of things is old, or they are so already.",
    413: "The body, or a batch, is too large.",
    415: "A body of this type cannot be read.",
    416: "The offset is outside the log.",
    421: "Another broker can do it; only with `forward=never`.",
    422: "It is understood, and it is not possible.",
    429: "Too much of this is under way.",
    503: "It cannot be done now; nothing was written.",
    504: "It may have been done, or may not.",
    507: "The disk failed.",
}

INSTANCE = "/v1/topics/orders#2.1763778900123.17"

# Of any route; and of those that read a body.
COMMON: dict[int, tuple[ProtocolError, ...]] = {
    400: (InvalidRequest("parameter ofset: no such parameter here; did you mean 'offset'?"),),
    401: (SaslAuthenticationFailed(WRONG),),
    403: (InvalidRequest("Host 'evil.example' is not a name that this broker knows"),),
    406: (InvalidRequest("Accept 'text/html': this answer can only be application/json or application/msgpack"),),
    503: (BrokerNotAvailable("the broker is starting or has stopped"),),
}
OF_BODIES: dict[int, tuple[ProtocolError, ...]] = {
    408: (InvalidRequest("the body was not complete after 30 s"),),
    413: (RecordListTooLarge("the body has 9000000 bytes or more, the limit is 8388608"),),
    415: (InvalidRequest("Content-Type 'application/xml' cannot be read here"),),
    422: (InvalidRequest("/records/3/key_b64: not base64"),),
}

GUARDED = frozenset({401, 403})
"""The checks of hosts, origins and credentials come before every route, so their errors are problems everywhere."""

HEADERS = {
    "Mk-Served-By": ("The brokers that were asked, by id.", {"type": "string"}),
    "Mk-Leader": ("The leader, or the controller, that decided.", {"type": "string"}),
    "Mk-Api-Version": ("The version of this API.", {"type": "string"}),
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The whole description."""
    paths: dict[str, dict[str, Any]] = {}
    tags: dict[str, None] = {}
    examples: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, examples)
        tags.setdefault(route.tag)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "minikafka",
            "version": __version__,
            "summary": "A broker with Kafka's protocol and real replication, for curl.",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "This broker; any other answers as well."}],
        "tags": [{"name": name, "description": TAGS[name]} for name in tags],
        "paths": paths,
        # Which of them a request needs depends on the listener; the first is none.
        "security": [{}, {"basic": []}, {"bearer": []}],
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic", "description": "Name and password of a user."},
                "bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
            "examples": examples,
            "headers": {
                name: {"description": description, "schema": schema} for name, (description, schema) in HEADERS.items()
            },
        },
    }


def operation_id_of(route: Route) -> str:
    """``get_v1_topics_topic``: one of a kind, as its method and path are."""
    return re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").rstrip("_")


def words_of(route: Route) -> tuple[str, str]:
    """The first sentence of what the handler says of itself, and the rest."""
    text = inspect.cleandoc(route.handler.__doc__ or "").replace("``", "`")
    summary, _, more = text.partition("\n\n")
    return " ".join(summary.split()), " ".join(more.split())


def _operation(route: Route, examples: dict[str, Any]) -> dict[str, Any]:
    summary, more = words_of(route)
    operation: dict[str, Any] = {"operationId": operation_id_of(route), "tags": [route.tag], "summary": summary}
    if more:
        operation["description"] = more
    if route.parameters:
        operation["parameters"] = [_parameter(each) for each in route.parameters]
    if route.body is not None:
        operation["requestBody"] = _request_body(route.body)
    operation["responses"] = {
        **{str(status): _answer(answer) for status, answer in sorted(route.answers.items())},
        **{
            str(status): _problems(status, errors, examples, None if status in GUARDED else route.errors)
            for status, errors in problems_of(route).items()
        },
        "default": {"description": "Any other problem.", "content": _problem_content({}, route.errors)},
    }
    return operation


def _parameter(parameter: Parameter[Any]) -> dict[str, Any]:
    schema = dict(parameter.schema())
    default = parameter.shown_default()
    if default is not None and parameter.place != "path":
        schema["default"] = default
    document: dict[str, Any] = {"name": parameter.name, "in": parameter.place, "description": parameter.description}
    if parameter.place == "path":
        document["required"] = True
    document["schema"] = schema
    if parameter.example is not None:
        document["example"] = parameter.example
    return document


def _request_body(body: Body) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for media_type, (schema, example) in body.contents.items():
        content[media_type] = {"schema": schema, **({"example": example} if example is not None else {})}
        if media_type == JSON:
            content[MSGPACK] = {"schema": schema}
    document: dict[str, Any] = {"required": body.required, "content": content}
    if body.description:
        document["description"] = body.description
    return document


def _answer(answer: Answer) -> dict[str, Any]:
    content: dict[str, Any] = {answer.media_type: {"schema": answer.schema}}
    if answer.example is not None:
        content[answer.media_type]["example"] = answer.example
    if answer.media_type == JSON:
        content[MSGPACK] = {"schema": answer.schema}
    for media_type, (schema, example) in answer.also.items():
        content[media_type] = {"schema": schema, "example": example}
    return {
        "description": answer.description,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in HEADERS},
        "content": content,
    }


# ---- problems --------------------------------------------------------------------------------------------------------


def problems_of(route: Route) -> dict[int, list[ProtocolError]]:
    """Status -> an example of each error that it may stand for."""
    found: dict[int, list[ProtocolError]] = {}
    tables: list[Mapping[int, Iterable[ProtocolError]]] = [COMMON, *([OF_BODIES] if route.body is not None else [])]
    for table in tables:
        for status, errors in table.items():
            found.setdefault(status, []).extend(errors)
    for kind in route.problems:
        error = kind(title_of(kind))
        found.setdefault(status_of(error), []).append(error)
    return dict(sorted(found.items()))


def _problems(
    status: int, errors: list[ProtocolError], examples: dict[str, Any], form: ErrorForm | None
) -> dict[str, Any]:
    """One status; its examples are kept in ``examples``, for many routes have the same."""
    names = ", ".join(f"`{name}`" for name in dict.fromkeys(error.name for error in errors))
    references = {}
    for error in errors:
        name = f"{slug_of(type(error))}-{status}"
        if form is None:
            value: Mapping[str, Any] = problem_of(error, status=status, instance=INSTANCE)
        else:
            name = f"proxy-{name}"
            value = form.body_of(Refused(error, status=status))
        examples[name] = {"summary": title_of(type(error)), "value": value}
        references[name] = {"$ref": f"#/components/examples/{name}"}
    return {"description": f"{STATUS_WORDS[status]} {names}", "content": _problem_content(references, form)}


def _problem_content(examples: dict[str, Any], form: ErrorForm | None) -> dict[str, Any]:
    content: Schema = {"schema": ref("Problem") if form is None else form.schema}
    media_type = PROBLEM_TYPE if form is None else form.media_type
    return {media_type: {**content, **({"examples": examples} if examples else {})}, MSGPACK: content}


def problem_pages() -> list[dict[str, Any]]:
    """What every error means, by its number."""
    slugs = sorted({slug_of(kind) for kind in ProtocolError.__subclasses__()})
    pages = [page for page in map(page_of, slugs) if page is not None]
    return sorted(pages, key=lambda page: int(page["error_code"]))
