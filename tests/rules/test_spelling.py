"""Suggestions for words that do not exist (minikafka/errors.py)."""

from __future__ import annotations

import pytest

from minikafka.errors import LENGTH_MAX, did_you_mean, meant_or_listed, nearest, one_is_needed

WORDS = ("drop", "delay", "hold")


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("dely", "; did you mean 'delay'?"),
        ("explode", "; one of drop, delay, hold is needed"),
        ("", "; one of drop, delay, hold is needed"),
    ],
)
def test_an_unknown_word_gets_the_nearest_one_or_else_the_list(given: str, hint: str):
    """One of the two always helps; both at once are hard to read."""
    assert meant_or_listed(given, iter(WORDS)) == hint


def test_the_demand_for_one_of_some_words_lists_them_and_suggests():
    """The list comes first, since the suggestion is a guess."""
    assert one_is_needed(iter(WORDS), "dely") == "one of drop, delay, hold is needed; did you mean 'delay'?"
    assert one_is_needed(WORDS, "xyz", count="one or more") == "one or more of drop, delay, hold is needed"


def test_a_suggestion_without_a_similar_word_is_empty_or_what_else_there_is_to_say():
    """Callers append it to their own sentence."""
    assert did_you_mean("xyz", WORDS) == ""
    assert did_you_mean("xyz", WORDS, otherwise="try again") == "; try again"
    assert did_you_mean("drops", WORDS) == "; did you mean drop?"


def test_only_the_beginning_of_a_long_word_is_compared():
    """Comparing takes quadratic time, and clients choose the names."""
    assert nearest("drop" + "x" * 10_000_000, ["x" * LENGTH_MAX]) == ["x" * LENGTH_MAX]
