"""Models of ``/v1``: schema, example, JSON output and the check of what a client sends, from one declaration."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from minikafka.rest.json_text import text_in_turns
from minikafka.rest.model import Model, many_of, member
from minikafka.rest.schema import flag, many, nullable, one_of, text, whole
from minikafka.web.problems import Refused


class Replica(Model):
    """One replica."""

    id: int = member(whole(), 3)
    hw: int | None = member(nullable(whole()), 40)


class Shown(Model):
    """A partition."""

    topic: str = member(text(), "orders")
    replicas: list[Replica] = many_of(Replica)
    note: str | None = member(text(), default=None)


class Wanted(Model):
    """What a client wants."""

    kind: str = member(one_of("", "preferred", "unclean"), "preferred")
    count: int = member(whole(minimum=1, maximum=9), 2, default=1)
    fast: bool = member(flag(), example=True, default=False)


@dataclass
class Source:
    """A wire message with members of its own."""

    topic: str
    replicas: tuple[Replica, ...]
    other: int = 0
    note: str | None = None


def faults_of(document: dict[str, object]) -> dict[str, str]:
    with pytest.raises(Refused) as refused:
        Wanted.read(document)
    assert refused.value.status == 422
    return {each["pointer"]: each["detail"] for each in refused.value.members["errors"]}


def test_output_takes_members_by_name_from_any_object():
    """A list of fields that is copied by hand misses the next field."""
    source = Source("orders", (Replica(id=1, hw=None),))
    assert Shown.out_of(source) == {"topic": "orders", "replicas": [{"id": 1, "hw": None}]}
    assert Shown.out_of(source, topic="tea", note="late")["note"] == "late"


def test_output_omits_none_only_where_the_member_is_optional():
    """A client must be able to tell null (unknown) from a member that does not apply."""
    assert Shown(topic="t", replicas=[]).out() == {"topic": "t", "replicas": []}
    assert Replica(id=1, hw=None).out() == {"id": 1, "hw": None}


def test_the_schema_requires_what_output_always_has():
    """Generated clients read required members without a check."""
    schema = Shown.schema()
    assert schema["required"] == ["topic", "replicas"]
    assert schema["properties"]["replicas"] == many(Replica.schema())
    assert schema["description"] == "A partition."
    assert schema["additionalProperties"] is False


def test_the_schema_of_a_request_requires_members_without_a_default():
    """A schema that requires more than the broker does makes clients send noise."""
    assert Wanted.schema(sent=True)["required"] == ["kind"]
    assert Wanted.schema()["required"] == ["kind", "count", "fast"]


def test_the_example_is_made_of_its_members_examples():
    """An example that is written apart from its members goes stale."""
    assert Shown.example(topic="tea") == {"topic": "tea", "replicas": [{"id": 3, "hw": 40}]}


def test_a_request_becomes_a_model_with_defaults():
    """Handlers read typed values and need no second set of defaults."""
    assert Wanted.read({"kind": "unclean"}) == Wanted(kind="unclean", count=1, fast=False)


def test_every_fault_of_a_request_is_reported_with_its_pointer():
    """One fault per attempt costs a person as many attempts as there are faults."""
    assert faults_of({"kind": "prefered", "count": 10, "fast": None, "fats": True}) == {
        "/kind": "preferred or unclean is needed, not 'prefered'",
        "/count": "a whole number from 1 to 9 is needed, not 10",
        "/fast": "true or false is needed, not None",
        "/fats": "no such member here; did you mean 'fast'?",
    }


def test_a_missing_member_and_a_wrong_type_are_reported_once():
    """A second fault about the same member hides which one to correct."""
    assert faults_of({}) == {"/kind": "is missing"}
    assert faults_of({"kind": 7}) == {"/kind": "a text is needed, not 7"}


async def test_a_large_answer_reads_the_same_from_tuples_and_lists():
    """Models pass the tuples of wire messages on; a long one is written in turns too."""
    long = list(range(1_200))
    assert await text_in_turns({"ids": tuple(long), "n": 1}) == await text_in_turns({"ids": long, "n": 1})
    assert json.loads(await text_in_turns({"ids": tuple(long)})) == {"ids": long}
