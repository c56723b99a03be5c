"""``minikafka lab run rebalance``: the story that production members play, what stands still, and how it is told."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache

import pytest
from click.testing import CliRunner

from minikafka.cli.root import root
from minikafka.lab.rebalance import Story, compared_rows, play, timeline_rows

EAGER = ("range", "roundrobin", "sticky")


@cache
def story(assignor: str) -> Story:
    return play({"assignor": assignor})


@pytest.mark.parametrize("assignor", [*EAGER, "cooperative-sticky", "uniform"])
def test_no_partition_ever_has_two_members(assignor: str):
    """S29: at each moment of the timeline; and at the end each has one."""
    for moment in story(assignor).moments:
        readers = Counter(number for numbers in moment.owners.values() for number in numbers)
        assert max(readers.values(), default=0) <= 1, moment
    assert sorted(readers) == list(range(8))


@pytest.mark.parametrize("assignor", EAGER)
def test_an_eager_rebalance_stops_everything(assignor: str):
    """Issue 6: the stop-the-world pause."""
    told = [(stop.cause, len(stop.stopped_s), stop.partitions) for stop in story(assignor).stops]
    assert told == [("c2 is killed", 6, 6), ("c4 starts", 6, 6), ("2 partitions are added", 6, 6)]


def test_a_cooperative_rebalance_stops_what_moves():
    """KIP-429: the dead member's two, the newcomer's two, nobody's when there are only new ones to deal."""
    killed, joined, added = story("cooperative-sticky").stops
    assert [len(each.stopped_s) for each in (killed, joined, added)] == [2, 2, 0]
    assert [each.generations[1] - each.generations[0] for each in (killed, joined, added)] == [1, 2, 1]
    assert killed.longest_s <= 10.0 + 3.0 + 0.1, "a session and a heartbeat"


def test_the_consumer_protocol_stops_what_moves_and_bumps_one_epoch():
    """KIP-848 (issue 17, Build 6): as a cooperative rebalance, in one round: members are never asked to join again."""
    told = story("uniform")
    assert [len(each.stopped_s) for each in told.stops] == [2, 2, 0]
    assert [each.generations[1] - each.generations[0] for each in told.stops] == [1, 1, 1]
    assert not any("joins again" in each.what for each in told.moments)
    assert {"Assigning", "Reconciling", "Stable"} <= {each.state for each in told.moments}
    left = [each for each in told.moments if "no member any more" in each.what]
    assert [(each.what, each.why) for each in left] == [("group: c2 is no member any more", "its session ended")]


def test_the_session_is_what_a_dead_members_partitions_wait_for():
    """S31: no assignor helps with a member that dies."""
    longer = play({"assignor": "cooperative-sticky", "session.timeout.ms": "30000"}).stops[0]
    assert 25 < longer.longest_s < 34
    assert story("cooperative-sticky").stops[0].longest_s < 14


@pytest.mark.parametrize(
    "name, value, settled_s",
    [
        ("metadata.max.age.ms", "300000", (250, 310)),
        ("session.timeout.ms", "200000", (2, 4)),
        ("group.initial.rebalance.delay.ms", "0", (2, 4)),
    ],
)
def test_kafkas_values_are_played(name: str, value: str, settled_s: tuple[int, int]):
    """Five minutes of metadata, a long session and no delay are ordinary settings: the story takes as long as they need."""
    added = play({"assignor": "range", name: value}).stops[-1]
    assert settled_s[0] < added.settled_s < settled_s[1]


def test_the_timeline_tells_generations_states_assignments_and_causes():
    """Issue 6, must be shown."""
    rows = timeline_rows(story("range"))
    assert rows[0] == ("time", "what happened", "gen", "state", "c1", "c2", "c3", "c4", "why")
    by_what = {row[1]: dict(zip(rows[0], row, strict=True)) for row in rows[1:]}
    assert by_what["c2 is killed"]["c2"] == "✗"
    assert by_what["group: c2 is no member any more"]["why"] == "was not heard within its session"
    assert {row[2] for row in rows[1:]} >= {"1", "2", "3", "4"}
    assert {row[3] for row in rows[1:]} >= {"PreparingRebalance", "CompletingRebalance", "Stable"}
    assert any("→" in row[4] for row in rows[1:])
    dealt = [row[-1] for row in rows if "leads, and deals by range" in row[1]]
    assert dealt[-1] == "c1 0,1,2; c3 3,4,5; c4 6,7"


def test_the_same_story_is_the_same_text():
    """The lab's rule: a story that differs from run to run teaches nothing."""
    assert timeline_rows(play({"assignor": "sticky"})) == timeline_rows(story("sticky"))


# ---- the command -----------------------------------------------------------------------------------------------------


def test_run_and_compare():
    """docs/lab.md: the JSON is a contract, the comparison one table."""
    run = CliRunner().invoke(root, ["lab", "run", "rebalance", "--assignor", "cooperative-sticky", "-o", "json"])
    told = json.loads(run.stdout)
    assert told.keys() == {"scenario", "options", "timeline", "stops"}
    assert told["timeline"][0].keys() == {"at_s", "what", "generation", "state", "owners", "why"}
    assert [each["cause"] for each in told["stops"]] == ["c2 is killed", "c4 starts", "2 partitions are added"]
    assert told["timeline"][-1]["generation"] == told["stops"][-1]["generations"][1]
    sides = ["--left", "assignor=sticky", "--right", "assignor=uniform"]
    compared = json.loads(CliRunner().invoke(root, ["lab", "compare", "rebalance", *sides, "-o", "json"]).stdout)
    assert compared["sides"] == [compared["left"], compared["right"]]
    assert compared["right"]["options"]["assignor"] == "uniform"
    text = CliRunner().invoke(root, ["lab", "compare", "rebalance"]).stdout
    assert compared_rows(story("range"), story("cooperative-sticky"))[0][2:] == ("range", "cooperative-sticky")
    assert text.splitlines()[1].split() == ["what", "was", "done", "range", "cooperative-sticky", "uniform"]
    assert "6 of 6" in text
    assert "0 of 6" in text


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--set", "sesion.timeout.ms=1"), "no option sesion.timeout.ms"),
        (("--set", "session.timeout.ms=soon"), "a number of milliseconds"),
        (("--set", "session.timeout.ms=²"), "a number of milliseconds from 6000 to 1800000"),
        (("--set", "session.timeout.ms=5999"), "from 6000"),
        (("--set", "mk.group.consumer.heartbeats.per.second=-1"), "a number of heartbeats from 0"),
        (("--set", "assignor=fair"), "one of range"),
        (("--truncation", "leader-epoch"), "no option truncation"),
    ],
)
def test_what_it_does_not_have(arguments: tuple[str, ...], words: str):
    """A mistake in an option is told, and nothing is played."""
    done = CliRunner().invoke(root, ["lab", "run", "rebalance", *arguments])
    assert done.exit_code == 2
    assert words in done.output
