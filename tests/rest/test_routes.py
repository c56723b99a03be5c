"""The table of doors: what it says is what is served, and every line of it says enough."""

from __future__ import annotations

import re

import pytest

from minikafka.rest.route import Route
from minikafka.rest.routes import ROUTES
from tests.rest.conform import check


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_a_route_declares_the_variable_parts_of_its_path(route):
    """A part that is not declared could not be read, and one that is declared twice would be read once."""
    declared = [each.name for each in route.parameters if each.place == "path"]
    assert declared == re.findall(r"\{(\w+)\}", route.path)
    names = [each.name for each in route.parameters]
    assert len(names) == len(set(names))
    assert route.handler.__doc__


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_examples_are_what_the_schemas_say(route):
    """An example that is wrong teaches what does not work."""
    for status, answer in route.answers.items():
        assert 200 <= status < 300
        if answer.example is not None:
            check(answer.schema, answer.example)
    for media_type, (schema, example) in (route.body.contents if route.body else {}).items():
        if example is not None:
            check(schema, example)
        assert "/" in media_type


def test_no_two_routes_are_one():
    """The second would never be reached."""
    names = [re.sub(r"\{\w+\}", "{}", name_of(route)) for route in ROUTES]
    assert len(names) == len(set(names))
