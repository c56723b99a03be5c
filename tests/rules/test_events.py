"""The catalogue of events: complete, true to what is reported, and one wording for all that show events."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from typing import NamedTuple, get_args

import pytest

from minikafka.events import CATALOGUE, ERROR, INFO, WARNING, level_of, sentence_of, what_of, why_of
from minikafka.quorum.voting import Refusal
from tests.tidy.sources import product

SINKS = {"events", "_events", "Happening"}
REPORTERS = {"log", "replication", "quorum", "groups", "transactions", "broker", "client", "world", "rest"}
"""Packages whose events a user can see in the log of a broker, or in a client."""


class Reported(NamedTuple):
    """One place that reports an event."""

    place: str
    kind: str
    fields: frozenset[str]
    is_open: bool
    """It has facts that its source does not name, as ``**facts``."""


def reports() -> Iterator[Reported]:
    """Every call of the Events port with a constant name."""
    for source in product():
        parts = source.module.split(".")
        if len(parts) < 2 or parts[1] not in REPORTERS:
            continue
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first = node.args[0]
            if name in SINKS and isinstance(first, ast.Constant) and isinstance(first.value, str):
                is_open = name == "Happening" or any(each.arg is None for each in node.keywords)
                fields = frozenset(each.arg for each in node.keywords if each.arg is not None)
                yield Reported(source.at(node), first.value, fields, is_open)


def test_every_event_of_brokers_and_clients_is_in_the_catalogue():
    """An event without an entry is shown by its name and facts, which a reader has to decode."""
    found = list(reports())
    assert len(found) > 100, "the walk over the product found nothing"
    assert {each.kind for each in found} - CATALOGUE.keys() == set()


def test_votes_are_in_the_catalogue():
    """Their kinds are chosen by a rule, so the walk over constant names does not find them."""
    kinds = ["vote_granted", *get_args(Refusal)]
    facts = {"epoch": 4, "candidate": 2, "log": (3, 17), "pre_vote": True}
    assert {kind: sentence_of(kind, facts) for kind in kinds} == {
        "vote_granted": "granted broker 2 a pre-vote for quorum epoch 4",
        "vote_refused_stale_log": "refused broker 2 a pre-vote for quorum epoch 4: its metadata log ends at "
        "offset 17 of epoch 3, behind this broker's",
        "vote_refused_leader_lives": "refused broker 2 a pre-vote for quorum epoch 4: the present leader lives",
        "vote_refused_leader_known": "refused broker 2 a pre-vote for quorum epoch 4: this epoch has a leader",
        "vote_refused_already_voted": "refused broker 2 a pre-vote for quorum epoch 4: this broker has voted for another "
        "candidate in this epoch",
    }
    assert sentence_of("vote_granted", {**facts, "pre_vote": False}) == "granted broker 2 a vote for quorum epoch 4"


def test_every_report_has_the_fields_of_its_kind():
    """A sentence would show a question mark in place of the fact."""
    lacking = [
        f"{each.place}: {each.kind} lacks {sorted(set(CATALOGUE[each.kind].fields) - each.fields)}"
        for each in reports()
        if not each.is_open and not each.fields.issuperset(CATALOGUE[each.kind].fields)
    ]
    assert lacking == []


def test_every_kind_of_the_catalogue_is_reported_somewhere():
    """A sentence and a level for an event that nothing reports are a hope, not a rule."""
    literals = {
        node.value
        for source in product()
        if source.module != "minikafka.events" and not source.module.startswith("minikafka.ui")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert CATALOGUE.keys() - literals == {"violation"}, "only the recorder of the replay page reports violations"


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_a_template_names_only_facts_that_every_report_has(name: str):
    """Each placeholder is a field, or the sentence has a hole where the fact is missing."""
    kind = CATALOGUE[name]
    for text in (kind.sentence, kind.reason):
        if isinstance(text, str):
            named = {field for _, field, _, _ in string.Formatter().parse(text) if field}
            assert named <= set(kind.fields)


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_a_kind_has_one_sentence_in_the_present_form_of_the_log(name: str):
    """A clause that follows the broker's name: no full stop, no capital but of a name, and a known level."""
    kind = CATALOGUE[name]
    assert kind.level in {10, INFO, WARNING, ERROR}
    if isinstance(kind.sentence, str):
        assert not kind.sentence.endswith(".")
        assert kind.sentence[0] == "{" or kind.sentence[0].islower() or kind.sentence.isupper() or name in CAPITALS


CAPITALS = {"node_paused", "node_resumed", "violation"}
"""Signals and the word that nobody may overlook."""

ELECTED = {"leader": 2, "leader_epoch": 4, "isr": [2, 3], "old": 1, "why": "broker 1 was fenced"}

SENTENCES = [
    (
        "leader_elected",
        ELECTED,
        "broker 2 became the leader in epoch 4 with the ISR [2, 3], in place of broker 1: broker 1 was fenced",
    ),
    (
        "leader_elected",
        {**ELECTED, "old": -1, "why": "", "clean": False},
        (
            "broker 2 became the leader in epoch 4 with the ISR [2, 3], where no broker led, in an unclean election: records "
            "that were committed may be gone"
        ),
    ),
    (
        "isr_shrunk",
        {"old": (1, 2, 3), "new": (1, 2), "leader_epoch": 0, "why": "broker 3 was fenced"},
        "the ISR shrank from [1, 2, 3] to [1, 2]: broker 3 was fenced",
    ),
    (
        "hw_advanced",
        {"old": 3, "new": 5, "isr": [1, 2], "remotes": {"2": 5, "3": -1}},
        (
            "the high watermark went from 3 to 5: the leader has all below it, and so does every member of the ISR [1, 2] "
            "(acknowledged: broker 2 up to 5)"
        ),
    ),
    (
        "tail_truncated",
        {"old": 3, "new": 2, "below_high_watermark": False},
        "the log was cut from 3 to 2: by leader epoch, that is how far it agrees with the leader's",
    ),
    (
        "log_restarted",
        {"old": 3, "new": 0},
        "the log was emptied, and starts at 0 now: nothing that it held is in the leader's log",
    ),
    (
        "log_restarted",
        {"old": 3, "new": 7},
        "the log was emptied, and starts at 7 now: the leader's log starts beyond its end",
    ),
    (
        "fetch_diverged",
        {"replica": 3, "end": [2, 7]},
        "the log of replica 3 parted from the leader's, in which epoch 2 ends at 7",
    ),
    (
        "produce_refused",
        {"client_id": "p", "software": "librdkafka", "protocol": "kafka", "error": "E", "outcome": "o", "why": "w"},
        "producer 'p' (librdkafka, Kafka protocol) was answered E (o): w",
    ),
    ("produce_refused", {"error": "E", "outcome": "o"}, "a producer was answered E (o)"),
    ("segments_deleted", {"count": 2, "start": 9}, "deletes 2 segments, the log starts at 9: retention"),
    ("segments_deleted", {}, "deletes ? segments, the log starts at ?: retention"),
    ("something_new", {"partition": "t-0", "answer": 42}, "something new: answer=42"),
]


@pytest.mark.parametrize(("name", "facts", "sentence"), SENTENCES)
def test_an_event_and_its_reason_are_one_sentence(name: str, facts: dict[str, object], sentence: str):
    """The same words in ``explain``, ``/v1`` and on the replay page."""
    assert sentence_of(name, facts) == sentence
    why = why_of(name, facts)
    assert sentence == what_of(name, facts) + (f": {why}" if why else "")


@pytest.mark.parametrize(
    ("name", "facts", "level"),
    [
        ("leader_elected", {"clean": False}, WARNING),
        ("leader_elected", {"clean": True}, INFO),
        ("replica_failed", {}, ERROR),
        ("something_new", {}, INFO),
    ],
)
def test_an_event_has_the_level_of_its_kind(name: str, facts: dict[str, object], level: int):
    """An unclean election may lose committed records, so an operator must see it."""
    assert level_of(name, facts) == level
