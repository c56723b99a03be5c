"""Regular expressions of clients hold no loop: what one turn matches is limited, and the rest follows in others."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from minikafka.broker.regex_turns import WAITING_MAX, RegexTurns
from minikafka.coordination.regexes import BYTES_MAX, COST_MAX, compiled, cost_of, parts
from minikafka.errors import CoordinatorLoadInProgress, InvalidRegularExpression
from minikafka.groups.consumer.group import FIELD, Regexes
from minikafka.wire.group_messages import ConsumerGroupHeartbeatRequest
from tests.rules.test_consumer_groups import ConsumerDesk, assigned

COSTLY = "(" + ".?" * 50 + "){100}"
"""45,000 instructions, all of them in use at each character: 30 ms for the longest name of a topic."""

OTHER_ID = "BAECAwQFBgcICQoLDA0ODw"

LONG = 249
"""Characters of the longest name of a topic."""


def named(count: int) -> dict[str, object]:
    """Topics with the longest names that there may be."""
    return {f"{number:03}".rjust(LONG, "a"): None for number in range(count)}


def test_one_turn_matches_so_much_at_most():
    """Or one name: there is no smaller part."""
    pattern, names = compiled(r"(.?){300}", FIELD), list(named(100))
    found = list(parts(pattern, names))
    assert [name for part in found for name in part] == names
    assert 2 < max(map(len, found)) < 100
    assert all(cost_of(pattern, LONG * len(part)) <= COST_MAX for part in found)
    assert all(len(part) == 1 for part in parts(compiled(COSTLY, FIELD), names))
    assert len(list(parts(compiled("t-.*", FIELD), names))) == 1, "a usual expression is matched in one turn"


def test_expression_is_limited_by_its_bytes_and_shown_in_part():
    """A record holds bytes. RE2 repeats the whole expression in its reason, which made errors of 32 KB."""
    assert compiled("a" * BYTES_MAX, FIELD)
    for long in ("a" * (BYTES_MAX + 1), "\u00e4" * (BYTES_MAX // 2 + 1)):
        with pytest.raises(InvalidRegularExpression, match=f"{FIELD} has 32704 bytes, {BYTES_MAX} at most"):
            compiled(long, FIELD)
    with pytest.raises(InvalidRegularExpression, match=r"is no regular expression of RE2: missing \)") as caught:
        compiled("(" * 10_000, FIELD)
    assert 100 < len(caught.value.message) < 300


def test_expression_whose_automaton_is_too_large_is_refused(capfd: pytest.CaptureFixture[str]):
    """A megabyte each; the library writes nothing to the broker's log."""
    with pytest.raises(InvalidRegularExpression, match="is no regular expression of RE2"):
        compiled(r"(?:\pL){200}", FIELD)
    assert capfd.readouterr().err == ""


def test_parts_are_as_large_as_their_cost_allows():
    """One that costs exactly as much is whole."""
    pattern = SimpleNamespace(programsize=COST_MAX // 10)
    assert list(parts(pattern, ["aaaa", "bbbbbb", "cccc", "dddddd", "e"])) == [
        ["aaaa", "bbbbbb"],
        ["cccc", "dddddd"],
        ["e"],
    ]
    assert list(parts(pattern, ["aaaaa", "bbbbbb", "c"])) == [["aaaaa"], ["bbbbbb", "c"]]
    assert list(parts(pattern, [])) == []


def test_matching_in_turns_finds_the_same():
    """And is remembered like any other match."""
    regexes, topics = Regexes(), named(5)
    assert regexes.cost(COSTLY, topics) > COST_MAX
    steps = list(regexes.match(COSTLY, topics))
    assert len(steps) == 4
    assert regexes.cost(COSTLY, topics) == 0
    assert regexes.matched(COSTLY, topics) == tuple(sorted(topics))
    assert list(regexes.match(COSTLY, topics)) == []


def test_a_match_of_former_topics_is_not_remembered():
    """They changed between two of its turns."""
    regexes, topics = Regexes(), named(3)
    steps = regexes.match(COSTLY, topics)
    next(steps)
    newer = named(2)
    assert not regexes.knows(COSTLY, newer)
    assert list(steps) == [None]
    assert not regexes.knows(COSTLY, newer)


def test_a_heartbeat_does_not_match_what_would_hold_the_loop():
    """Ninety topics and an expression of 108 characters took 2.2 s. Once it is matched in turns, a heartbeat uses it."""
    desk = ConsumerDesk()
    name = "a" * LONG
    desk.topic(2, name)
    wishes = {"subscribed_topic_names": None, "subscribed_topic_regex": COSTLY}
    joined = desk.enter("a", **wishes)
    assert joined.error_code == 0
    assert assigned(joined) == set()
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=1)
    for _ in desk.coordinator.match(request):
        pass
    assert assigned(desk.beat("a", 1)) == {0, 1}


def test_the_match_stays_until_newer_topics_are_matched():
    """A new topic must not take a member's partitions away, nor may it hold the loop."""
    desk = ConsumerDesk()
    desk.topic(2, "a" * LONG)
    wishes = {"subscribed_topic_names": None, "subscribed_topic_regex": COSTLY}
    joins = ConsumerGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=0, subscribed_topic_regex=COSTLY)
    list(desk.coordinator.match(joins))
    assert assigned(desk.enter("a", **wishes)) == {0, 1}
    desk.topic(1, "b" * LONG, OTHER_ID)
    assert desk.beat("a", 1, {0, 1}).assignment is None
    list(desk.coordinator.match(ConsumerGroupHeartbeatRequest(group_id="g", member_id="a", member_epoch=1)))
    assert assigned(desk.beat("a", 1, {0, 1})) == {0, 1}
    assert desk.beat("a", 2, {0, 1}).member_epoch == 2


def test_a_heartbeat_compiles_few_expressions():
    """Those of a group's other members are matched with their own heartbeats."""
    desk = ConsumerDesk()
    for number in range(20):
        wishes = {"subscribed_topic_names": None, "subscribed_topic_regex": f"t{number}|t"}
        assert desk.enter(f"m{number}", **wishes).error_code == 0
    desk.topic(1)
    compiled.cache_clear()
    desk.beat("m0", 1)
    assert compiled.cache_info().misses <= 3


async def test_expressions_are_matched_one_after_the_other():
    """Else a hundred clients would hold the loop together; one that needs one turn does not wait for them."""
    turns, order = RegexTurns(), []

    def steps(name: str, count: int):
        for _ in range(count):
            order.append(name)
            yield
        order.append(name)

    async with asyncio.TaskGroup() as group:
        group.create_task(turns.run(steps("a", 3)))
        group.create_task(turns.run(steps("b", 3)))
        group.create_task(turns.run(steps("c", 0)))
    assert order == ["a", "b", "c", *"aaa", *"bbb"]


async def test_few_requests_wait_for_their_turn():
    """The others are refused with an error that clients retry."""
    turns = RegexTurns()
    waiting = [asyncio.ensure_future(turns.run(iter([None] * 3))) for _ in range(WAITING_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(CoordinatorLoadInProgress):
        await turns.run(iter([None] * 3))
    await asyncio.gather(*waiting)
    await turns.run(iter([None] * 3))
