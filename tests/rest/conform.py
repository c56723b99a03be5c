"""Holds every answer that a test sees against what its route says of it, so that the description cannot rot."""

from __future__ import annotations

import re
from typing import Any

import jsonschema

from minikafka.rest.route import Answer, Route
from minikafka.rest.routes import ROUTES
from minikafka.rest.schema import Schema, ref
from minikafka.rest.schemas import SCHEMAS
from minikafka.web.problems import PROBLEM_TYPE

_PATTERNS = [(route, re.compile(re.sub(r"\{\w+\}", "[^/]+", route.path))) for route in ROUTES]


def route_of(method: str, path: str) -> Route | None:
    """The route that serves an address."""
    method = "GET" if method == "HEAD" else method
    bare = path.partition("?")[0]
    return next((route for route, pattern in _PATTERNS if route.method == method and pattern.fullmatch(bare)), None)


def check(schema: Schema, value: Any) -> None:
    """Raises ValidationError when ``value`` is not what ``schema`` says."""
    document = {**schema, "components": {"schemas": SCHEMAS}}
    jsonschema.Draft202012Validator(document, format_checker=jsonschema.FormatChecker()).validate(value)


def schema_of(answer: Answer) -> Schema:
    """The schema of an answer in its first media type, which is JSON if it can be JSON."""
    schema, _ = next(iter(answer.contents.values()))
    return schema


def check_answer(method: str, path: str, status: int, media_type: str, value: Any) -> None:
    """Raises when an answer is not what its route says: a problem, or one of the route's answers."""
    if status >= 400:
        route = route_of(method, path)
        if route is not None and route.errors is not None:
            assert media_type == route.errors.media_type, (method, path, status, media_type)
            check(route.errors.schema, value)
            return
        assert media_type == PROBLEM_TYPE, (method, path, status, media_type)
        check(ref("Problem"), value)
        assert value["status"] == status
        return
    route = route_of(method, path)
    assert route is not None, f"{method} {path} answered {status} and is no route"
    assert status in route.answers, f"{method} {path} answered {status}, which {route.path} does not announce"
    check(schema_of(route.answers[status]), value)
