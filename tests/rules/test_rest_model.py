"""Models of ``/v1``: schema, example, JSON output and the check of what a client sends, from one declaration."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from minikafka.rest.json_text import text_in_turns
from minikafka.rest.model import LEFT_OUT, Model, many_of, member, one
from minikafka.rest.schema import TopicName, flag, many, nullable, one_of, ref, table, text, whole
from minikafka.types import NodeId, Offset
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

    kind: str = member(one_of("", "preferred", "unclean"), "preferred", if_missing="unclean loses records")
    count: int = member(whole(minimum=1, maximum=9), 2, default=1)
    fast: bool = member(flag(), example=True, default=False)


@dataclass
class Source:
    """A wire message with members of its own."""

    topic: str
    replicas: tuple[Replica, ...]
    other: int = 0
    note: str | None = None


class Part(Model):
    """Some partitions of a topic."""

    topic: str = member(text(minLength=1), "orders")
    partitions: list[int] = member(many(ref("PartitionNumber"), minItems=1, maxItems=3), [0])


class Order(Model):
    """A request with parts."""

    parts: list[Part] = many_of(Part, "Which.", default=())
    first: Part = one(Part)
    rate: float | None = member(nullable({"type": "number"}), default=None)
    config: dict[str, object] | None = member(
        table({"type": ["string", "integer", "boolean"]}, maxProperties=2), default=None
    )

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if self.parts and self.first not in self.parts:
            yield "first", "is not among parts"


def faults_of(document: dict[str, object], model: type[Model] = Wanted) -> dict[str, str]:
    with pytest.raises(Refused) as refused:
        model.read(document)
    assert refused.value.status == 422
    return {each["pointer"]: each["detail"] for each in refused.value.members["errors"]}


class Annotated(Model):
    """Members whose schemas follow from their annotations."""

    topic: TopicName = member(example="orders")
    hw: Offset | None = member("The high watermark.", 40)
    leader: NodeId | None = member(default=None)
    limit: int | None = member(default=None, shown=True, minimum=1)
    quota: float | None = member("null removes it.", default=LEFT_OUT)
    isr: list[NodeId] = member("Those in sync.", [1], minItems=1)
    config: dict[str, str] = member("Settings.", {})


def test_schema_of_a_member_follows_from_its_annotation():
    """A type that is written twice, as annotation and as schema, is wrong in one of the two places some day."""
    assert Annotated.schema()["properties"] == {
        "topic": ref("TopicName"),
        "hw": nullable(whole("The high watermark.")),
        "leader": ref("NodeId"),
        "limit": nullable(whole(minimum=1)),
        "quota": nullable({"type": "number", "description": "null removes it."}),
        "isr": many(whole(), "Those in sync.", minItems=1),
        "config": table(text(), "Settings."),
    }


def test_a_member_whose_annotation_has_no_schema_cannot_be_declared():
    """A schema that is guessed would refuse what the handler expects."""
    with pytest.raises(KeyError, match=r"str \| int"):

        class Unknown(Model):
            """A member of two types."""

            either: str | int = member()


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
    assert faults_of({}) == {"/kind": "is missing; unclean loses records"}
    assert faults_of({"kind": 7}) == {"/kind": "a text is needed, not 7"}


PART = {"topic": "orders", "partitions": [0]}


def test_objects_in_a_request_become_models():
    """Handlers read members of inner objects with their types, and lists of them too."""
    orders = Part(topic="orders", partitions=[0])
    assert Order.read({"first": PART, "parts": [PART], "rate": 1.5}) == Order(first=orders, parts=[orders], rate=1.5)
    assert Order.read({"first": PART}).parts == ()


def test_faults_in_lists_and_objects_have_the_path_of_the_value():
    """Issue 16, part 2: a client finds the value that is wrong, not the list that it is in."""
    wrong = {"topic": "", "partitions": [0, -1, "2"], "topics": 1}
    faults = faults_of(
        {"first": {"topic": "t"}, "parts": [PART, wrong, 7], "config": {"a/b": None}, "rate": "1"}, Order
    )
    assert faults == {
        "/parts/1/topic": "1 or more characters are needed, not 0",
        "/parts/1/partitions/1": "a whole number from 0 to 2147483647 is needed, not -1",
        "/parts/1/partitions/2": "a whole number from 0 to 2147483647 is needed, not '2'",
        "/parts/1/topics": "no such member here; did you mean 'topic'?",
        "/parts/2": "an object is needed, not 7",
        "/first/partitions": "is missing",
        "/rate": "a number or null is needed, not '1'",
        "/config/a~1b": "a text, a whole number, true or false is needed, not None",
    }


def test_limits_of_lists_and_tables_are_checked():
    """What is accepted without a limit costs the broker what the client likes."""
    many_numbers = {"topic": "t", "partitions": [0, 1, 2, 3]}
    faults = faults_of(
        {"first": many_numbers, "config": dict.fromkeys("abc", 1), "parts": [{**PART, "partitions": []}]}, Order
    )
    assert faults == {
        "/first/partitions": "3 entries are accepted in one request, not 4",
        "/config": "2 members are accepted in one request, not 3",
        "/parts/0/partitions": "1 or more entries are needed, not 0",
    }


def test_null_is_shown_where_the_member_is_declared_so():
    """Issue 16: one model of a fault for the request, where members are optional, and the output, which has them all."""

    class Fault(Model):
        """A fault."""

        message: str | None = member(nullable(one_of("", "request", "answer", "any")), default=None, shown=True)
        ms: float = member({"type": "number", "minimum": 0, "maximum": 60}, 1.5, default=0.0)

    assert Fault.read({}).out() == {"message": None, "ms": 0.0}
    assert Fault.read({"message": None, "ms": 2}).out() == {"message": None, "ms": 2}
    assert Fault.example() == {"message": None, "ms": 1.5}
    assert Fault.schema()["required"] == ["message", "ms"]
    assert Fault.schema(sent=True)["required"] == []
    for wrong in (61, 60.5):
        with pytest.raises(Refused) as refused:
            Fault.read({"message": "reply", "ms": wrong})
        assert refused.value.members["errors"] == [
            {"pointer": "/message", "detail": "one of request, answer, any is needed, not 'reply'"},
            {"pointer": "/ms", "detail": f"a number from 0 to 60 is needed, not {wrong}"},
        ]


@pytest.mark.parametrize("wrong", [-1, 0, 0.0, 2])
def test_range_with_excluded_minimum_is_named(wrong: float):
    """STYLE: an error names the field and the values that are possible."""

    class Chance(Model):
        """A chance."""

        share: float = member({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, 0.5, default=1.0)

    with pytest.raises(Refused) as refused:
        Chance.read({"share": wrong})
    detail = f"a number above 0 and at most 1 is needed, not {wrong}"
    assert refused.value.members["errors"] == [{"pointer": "/share", "detail": detail}]


def test_whole_numbers_have_64_bits_at_most():
    """A larger one cannot travel in a message: it would fail behind the check."""
    assert faults_of({"kind": "unclean", "count": 2**70}) == {
        "/count": f"a whole number from 1 to 9 is needed, not {2**70}"
    }
    assert "/config/a" in faults_of({"first": PART, "config": {"a": 2**70}}, Order)


def test_contradictions_are_faults():
    """What a schema cannot say has the form of all other faults."""
    other = {"topic": "tea", "partitions": [0]}
    assert faults_of({"first": PART, "parts": [other]}, Order) == {"/first": "is not among parts"}


def test_the_schema_of_a_request_has_those_of_its_parts():
    """What the schema says of an inner object is what is checked."""
    schema = Order.schema(sent=True)
    assert schema["required"] == ["first"]
    assert schema["properties"]["parts"] == many(Part.schema(sent=True), "Which.")
    assert Order.example() == {"first": {"topic": "orders", "partitions": [0]}}


def test_a_model_is_made_with_all_its_members():
    """A handler that forgets a member must fail in its test, not leave a gap in the JSON."""
    with pytest.raises(TypeError, match="Shown: missing or unknown: replicas"):
        Shown(topic="t")
    with pytest.raises(TypeError, match="Replica: missing or unknown: lag"):
        Replica(id=1, hw=2, lag=3)


class Named(Model):
    """A quota, where null stands for all that have none of their own."""

    user: str | None = member(nullable(text()), default=LEFT_OUT)
    rate: int = member(whole())


def test_null_differs_from_a_member_that_is_left_out():
    """Null means the default entity of quotas; a member that is left out means nothing."""
    assert Named.read({"user": None, "rate": 1}).out() == {"user": None, "rate": 1}
    assert Named.read({"rate": 1}).out() == {"rate": 1}
    assert Named.schema()["required"] == ["rate"]


class Row(Model, is_open=True):
    """A row with facts."""

    from_: int = member(whole(), 7)


def test_a_member_may_have_a_name_that_python_reserves_and_an_object_more_members():
    """The JSON came first: `from` is a parameter and a member of the history, and facts are members of an event."""
    assert Row.example(why="x") == {"from": 7, "why": "x"}
    assert (Row.schema()["required"], Row.schema()["additionalProperties"]) == (["from"], True)
    assert Row.out_of(object(), **{"from": 3}) == {"from": 3}


async def test_a_large_answer_reads_the_same_from_tuples_and_lists():
    """Models pass the tuples of wire messages on; a long one is written in turns too."""
    long = list(range(1_200))
    assert await text_in_turns({"ids": tuple(long), "n": 1}) == await text_in_turns({"ids": long, "n": 1})
    assert json.loads(await text_in_turns({"ids": tuple(long)})) == {"ids": long}
