"""Errors as RFC 9457 problems (HTTP conventions 2.5): names, numbers, statuses and outcomes, value by value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from minikafka import errors as kafka
from minikafka.errors import BY_CODE, BY_NAME, UNKNOWN, WRITTEN
from minikafka.rest.model import Model, member
from minikafka.rest.parameters import Choice, Flag, Integer, Parameter, Text, values_of
from minikafka.rest.topics import _NewTopic, setting_text
from minikafka.web.problems import STATUS, Occurrences, Refused, page_of, problem_of, slug_of, status_of, title_of

TABLE = {
    400: "INVALID_REQUIRED_ACKS UNSUPPORTED_VERSION",
    403: "TOPIC_AUTHORIZATION_FAILED GROUP_AUTHORIZATION_FAILED CLUSTER_AUTHORIZATION_FAILED",
    404: "UNKNOWN_TOPIC_OR_PARTITION GROUP_ID_NOT_FOUND UNKNOWN_MEMBER_ID BROKER_ID_NOT_REGISTERED",
    409: """TOPIC_ALREADY_EXISTS FENCED_LEADER_EPOCH STALE_BROKER_EPOCH INVALID_PRODUCER_EPOCH PRODUCER_FENCED
        OUT_OF_ORDER_SEQUENCE_NUMBER ILLEGAL_GENERATION REBALANCE_IN_PROGRESS NON_EMPTY_GROUP FENCED_INSTANCE_ID""",
    413: "MESSAGE_TOO_LARGE RECORD_LIST_TOO_LARGE",
    416: "OFFSET_OUT_OF_RANGE",
    421: "NOT_LEADER_OR_FOLLOWER NOT_COORDINATOR NOT_CONTROLLER",
    422: "INVALID_TOPIC_EXCEPTION INVALID_PARTITIONS INVALID_REPLICATION_FACTOR INVALID_CONFIG CORRUPT_MESSAGE",
    503: """NOT_ENOUGH_REPLICAS LEADER_NOT_AVAILABLE COORDINATOR_NOT_AVAILABLE COORDINATOR_LOAD_IN_PROGRESS
        UNKNOWN_LEADER_EPOCH""",
    504: "REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    507: "KAFKA_STORAGE_ERROR",
}


@pytest.mark.parametrize("name, status", [(name, status) for status, names in TABLE.items() for name in names.split()])
def test_the_status_table(name, status):
    """A monitor that knows only HTTP must be able to tell old views, full disks and missing replicas apart."""
    assert status_of(BY_NAME[name]("why")) == status


def test_every_error_has_a_status_and_a_page():
    """A new error class without a line in the table would be a 500."""
    assert set(STATUS) == set(BY_CODE.values())
    for kind in BY_CODE.values():
        page = page_of(slug_of(kind))
        assert page is not None
        assert (page["error"], page["error_code"], page["status"]) == (kind.name, kind.code, STATUS[kind])
        assert page["meaning"]
    assert page_of("nothing") is None


@pytest.mark.parametrize(
    "path,shown",
    [
        ("/v1/topics/a%20b", "/v1/topics/a%20b"),
        ('/v1/<a>"b\\[c]|{d}^`', "/v1/%3Ca%3E%22b%5C%5Bc%5D%7C%7Bd%7D%5E%60"),
        ("/v1/100%/%zz%4", "/v1/100%25/%25zz"),
        ("/v1/ä\udcff", "/v1/%C3%A4%3F"),
        ("/" + "%E2" * 67, "/" + "%E2" * 66),
    ],
)
def test_an_instance_is_a_reference_whatever_was_asked_for(path: str, shown: str):
    """RFC 9457, 3.1.5: a URI reference (RFC 3986); clients that follow the schema choked on what a path may bring."""
    assert Occurrences(2, 7).next(path) == f"{shown}#2.7.1"


def test_a_problem_has_kafkas_name_number_and_the_outcome():
    """The example of 2.5, member by member."""
    error = kafka.NotEnoughReplicas(
        "orders-0 needs 2 in-sync replicas, the ISR is [1]", isr=(1,), min_insync_replicas=2
    )
    assert problem_of(error, topic="orders", partition=0) == {
        "type": "/docs/problems/not-enough-replicas",
        "title": "Fewer in-sync replicas than min.insync.replicas: nothing was written",
        "status": 503,
        "detail": "orders-0 needs 2 in-sync replicas, the ISR is [1]",
        "error": "NOT_ENOUGH_REPLICAS",
        "error_code": 19,
        "message": "orders-0 needs 2 in-sync replicas, the ISR is [1]",
        "retriable": True,
        "outcome": "not_written",
        "isr": [1],
        "min_insync_replicas": 2,
        "topic": "orders",
        "partition": 0,
    }


def test_what_may_have_been_written_is_never_a_status_that_invites_a_repetition():
    """421 and 503 say 'nothing happened'; with outcome unknown that would be a lie."""
    assert status_of(kafka.NotLeaderOrFollower("moved", outcome=UNKNOWN)) == 504
    assert status_of(kafka.CorruptMessage("?", outcome=UNKNOWN)) == 504
    assert status_of(kafka.CoordinatorNotAvailable("stopping", outcome=UNKNOWN)) == 504
    assert status_of(kafka.KafkaStorageError("disk", outcome=UNKNOWN)) == 507
    told = problem_of(kafka.NotEnoughReplicasAfterAppend("late", outcome=WRITTEN))
    assert (told["status"], told["outcome"]) == (504, "written")


def test_facts_never_replace_the_members_of_the_problem_and_are_always_json():
    """A fact named 'status' must not change what the status is."""
    odd = problem_of(kafka.InvalidRequest("no", status=1, who={"b": frozenset({2, 1})}, kind=ValueError("x")))
    assert odd["status"] == 400
    assert odd["who"] == {"b": ["1", "2"]}
    assert json.dumps(odd)


def test_titles_are_the_same_for_every_problem_of_a_type():
    """RFC 9457, 3.1.3."""
    assert title_of(kafka.InvalidRequest) == "The request is malformed or contradicts itself"


# ---- query parameters and members ------------------------------------------------------------------------------------


A, B, C, Z = (
    Integer(name="a", description="", default=7, low=0, high=9),
    Integer(name="b", description="", default=7, low=0, high=30_000),
    Integer(name="c", description="", default=7, low=-5, high=9),
    Integer(name="z", description="", default=7, low=0, high=9),
)
FORM = Choice(name="format", description="", options=("auto", "json"), default="auto")
DRY, WET = Flag(name="dry", description=""), Flag(name="wet", description="")


def read(parameters: Sequence[Parameter[Any]], **query: str | list[str]) -> dict[str, Any]:
    """The values of a request with this query."""
    lists = {name: [given] if isinstance(given, str) else given for name, given in query.items()}
    values, given = values_of(parameters, path={}, query=lists, headers={})
    assert given == lists.keys()
    return values


def faults(parameters: Sequence[Parameter[Any]], **query: str | list[str]) -> list[tuple[str, str]]:
    with pytest.raises(Refused) as caught:
        read(parameters, **query)
    assert caught.value.status == 400
    return [(each["parameter"], each["detail"]) for each in caught.value.members["errors"]]


def test_parameters_are_read_with_their_limits():
    """Both ends are inside."""
    told = read((A, B, C, Z, FORM, DRY, WET), a="0", b="30000", c="-5", format="json", dry="true")
    assert told == {"a": 0, "b": 30_000, "c": -5, "z": 7, "format": "json", "dry": True, "wet": False}


@pytest.mark.parametrize("text", ["", "x", "10", "-1", "1.0", "1_0", " 1", "٣", "1" * 30, "0x1", "+1"])
def test_a_parameter_that_is_no_number_in_range_is_refused(text):
    """Python's int() takes underscores, spaces and other scripts; an address should not."""
    assert [name for name, _ in faults((A,), a=text)] == ["a"]


def test_all_that_is_wrong_with_the_parameters_is_told_at_once():
    """With the nearest name for an unknown one."""
    wait = Integer(name="max_wait_ms", description="", default=0, low=0, high=9)
    forward = Choice(name="forward", description="", options=("auto", "never"), default="auto")
    told = dict(faults((A, wait, FORM, forward), a="x", max_wait="1", format="jsn", forward=["auto", "never"]))
    assert sorted(told) == ["a", "format", "forward", "max_wait"]
    assert "did you mean 'max_wait_ms'?" in told["max_wait"]
    assert "did you mean 'json'?" in told["format"]
    assert told["forward"] == "comes 2 times"


def test_what_a_parameter_takes_is_what_its_schema_says():
    """The description is made from the limits, not beside them."""
    name = Text(name="name", description="", pattern="[a-z]+", length_max=3, needed="a short word")
    assert faults((name,), name="abcd") == [("name", "'abcd': a short word is needed")]
    assert faults((name,), name="A") == [("name", "'A': a short word is needed")]
    for parameter, good, bad in ((A, 9, 10), (FORM, "json", "xml"), (DRY, True, 1), (name, "abc", "abcd")):
        validator = jsonschema.Draft202012Validator(parameter.schema())
        assert validator.is_valid(good)
        assert not validator.is_valid(bad)


class Kinds(Model):
    """A member of each kind."""

    n: int = member(minimum=0, maximum=9, default=5)
    t: str = member(default="")
    u: str = member()
    o: dict[str, str] = member()
    li: list[str] = member()
    partitions: int = member(minimum=1, maximum=9, default=1)


def test_members_are_checked_by_kind_and_what_nobody_read_is_refused():
    """true is no number, although Python thinks so."""
    with pytest.raises(Refused) as refused:
        Kinds.read({"n": True, "t": 1, "o": [], "li": {}, "partitons": 3})
    told = {each["pointer"]: str(each["detail"]) for each in refused.value.members["errors"]}
    assert sorted(told) == sorted(["/n", "/t", "/u", "/o", "/li", "/partitons"])
    assert "did you mean 'partitions'?" in told["/partitons"]


def test_a_new_topic_is_read_from_json():
    """Numbers and booleans in the settings become Kafka's texts."""
    topic = _NewTopic.read(
        {
            "name": "orders",
            "partitions": 3,
            "replication_factor": 2,
            "config": {"min.insync.replicas": 2, "unclean.leader.election.enable": False, "retention.ms": "-1"},
        }
    )
    assert (topic.name, topic.partitions, topic.replication_factor) == ("orders", 3, 2)
    assert {name: setting_text(value) for name, value in topic.config.items()} == {
        "min.insync.replicas": "2",
        "unclean.leader.election.enable": "false",
        "retention.ms": "-1",
    }
    assert _NewTopic.read({"name": "t"}).partitions == -1


@pytest.mark.parametrize(
    "document, where",
    [
        ({}, "/name"),
        ({"name": ""}, "/name"),
        ({"name": 7}, "/name"),
        ({"name": "t", "partitions": 0}, "/partitions"),
        ({"name": "t", "partitions": "3"}, "/partitions"),
        ({"name": "t", "replication_factor": 1.0}, "/replication_factor"),
        ({"name": "t", "config": []}, "/config"),
        ({"name": "t", "config": {"a/b": None}}, "/config/a~1b"),
        ({"name": "t", "partition_count": 3}, "/partition_count"),
    ],
)
def test_a_bad_new_topic_is_refused_with_a_pointer(document, where):
    """Before the controller is asked."""
    with pytest.raises(Refused) as caught:
        _NewTopic.read(document)
    assert caught.value.status == 422
    assert [each["pointer"] for each in caught.value.members["errors"]] == [where]


def test_new_topic_with_thousands_of_faults_names_the_first_of_them():
    """Describing each of 50,000 held the broker for 73 ms."""
    with pytest.raises(Refused) as refused:
        _NewTopic.read({"name": "t", "config": {f"s{number}": [] for number in range(1_001)}})
    assert "/config: 1000 members are accepted in one request, not 1001" in str(refused.value)
    with pytest.raises(Refused) as refused:
        _NewTopic.read({"name": "t", "assignments": [["x"]] * 50_000})
    assert "(and 19 more)" in str(refused.value), "no further ones were described"
