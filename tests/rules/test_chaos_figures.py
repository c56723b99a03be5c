"""Figures and verdicts of chaos (S38): silence, recovery, availability, p99; clean or damaged; the picture."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from minikafka.chaos.outcome import Figures, Outcome, quantile, strip
from minikafka.chaos.reading import scenario_of
from minikafka.chaos.runner import picture
from minikafka.types import TopicPartition

ONE, TWO = TopicPartition("orders", 0), TopicPartition("orders", 1)


def figures(*acknowledged: tuple[TopicPartition, float]) -> Figures:
    made = Figures([ONE, TWO])
    for name, at_s in acknowledged:
        made.on_acknowledged(name, at_s, 0.01)
    return made


def test_throughput_over_time_is_a_line_of_bars():
    """Issue 7 Build 1, as a picture, for a terminal; the SVG has it with the faults."""
    assert strip([]) == ""
    assert strip([0, 0]) == "··"
    assert strip([80, 40, 0, 1, 80]) == "█▄·▁█"
    assert strip([8] * 600 + [0] * 600) == "█" * 30 + "·" * 30
    assert len(strip([1] * 61)) == 31


def test_a_quantile_is_one_of_the_values():
    """p99 of few faults is the worst of them, and never made up."""
    assert quantile([], 0.5) is None
    assert quantile([3.0], 0.99) == 3.0
    assert quantile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert quantile(map(float, range(1, 101)), 0.99) == 99.0


def test_silence_counts_from_the_faults_beginning_to_the_acknowledgement():
    """What was acknowledged before the fault is no credit; a partition that goes on has its own pauses only."""
    made = figures((ONE, 1.0), (TWO, 1.0))
    recovery = made.began(1, "kill n1", 2.0)
    made.on_acknowledged(TWO, 2.1, 0.01)
    recovery.healed_s = 3.0
    made.on_acknowledged(TWO, 3.5, 0.01)
    assert recovery.recovery_s is None
    made.on_acknowledged(ONE, 6.0, 4.0)
    assert recovery.silence_s == {ONE: 4.0, TWO: pytest.approx(1.4)}
    assert (recovery.recovery_s, recovery.closed_s) == (4.0, 6.0)
    assert made.open == ()
    assert made.recovery_s(0.99) == 4.0


def test_a_fault_stays_open_until_it_is_put_right():
    """A graceful stop silences nobody at first: leaders move later."""
    made = figures()
    recovery = made.began(1, "stop n1", 1.0)
    for at_s in (1.1, 1.2, 2.9):
        made.on_acknowledged(ONE, at_s, 0.01)
        made.on_acknowledged(TWO, at_s, 0.01)
    assert recovery.closed_s is None
    assert recovery.silence_s[ONE] == pytest.approx(1.7)
    recovery.healed_s = 3.0
    made.on_acknowledged(ONE, 3.1, 0.01)
    made.on_acknowledged(TWO, 3.1, 0.01)
    assert recovery.recovery_s == pytest.approx(1.7)


def test_availability_is_of_partitions_and_seconds():
    """A second in which a partition acknowledges nothing is lost for it; also those in which nobody does at the end."""
    made = figures((ONE, 0.5), (ONE, 1.5), (TWO, 1.5), (ONE, 2.5))
    made.waited(ONE, 3.5, 9.0)
    made.waited(TWO, 2.5, 9.0)
    assert made.availability(4.0) == 3 / 6
    assert made.per_second() == [1, 2, 1]
    assert Figures([ONE]).availability(1.0) is None


def test_a_second_in_which_nothing_waited_says_nothing_of_availability():
    """S38: with less than one record per second and partition, a healthy partition is available all the time."""
    made = figures((ONE, 1.5), (TWO, 3.5), (ONE, 5.5), (TWO, 7.5))
    assert made.availability(9.0) == 1.0
    made.on_acknowledged(ONE, 8.5, 2.7)  # sent at 5.8
    assert made.availability(9.0) == 5 / 7
    made.waited(TWO, 4.5, 4.6)  # refused
    assert made.availability(9.0) == 5 / 8


def test_latency_before_and_during():
    """p99 during a rolling restart stands beside that of before."""
    made = Figures([ONE])
    for second in range(10):
        made.on_acknowledged(ONE, second + 0.5, 0.25 if second < 5 else 0.5)
    assert made.latency_s(0.99, 0.0, 5.0) == 0.25
    assert made.latency_s(0.99, 5.0, 10.0) == 0.5
    assert made.latency_s(0.99, 20.0, 30.0) is None


# ---- the verdict -----------------------------------------------------------------------------------------------------

STEP = '[[steps]]\nwhat = "kill"\nwhom = "one"\nat = "3s"\nfor = "2s"\n'
LOOSE = '[load]\nproducers = [{ acks = "1" }]\n[expect]\nloss = "acks=1"\n'


def outcome(text: str = "", **facts: object) -> Outcome:
    scenario = scenario_of(Path("mine.toml"), f'name = "mine"\nteaches = "a < b & c"\n{text}{STEP}')
    made = figures((ONE, 0.5), (TWO, 0.7))
    made.sent = 3
    made.began(1, 'kill "n1" & <n2>', 1.0)
    given: dict[str, object] = {
        "scenario": scenario, "target": "processes", "seed": 1, "duration_s": 20.0, "figures": made, "findings": {},
    }  # fmt: skip
    return Outcome(**{**given, **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "facts, verdict",
    [
        ({}, "clean"),
        ({"findings": {"lost-write": 1}}, "damaged"),
        ({"findings": {"diverged": 1}}, "damaged"),
        ({"missing": "broker 2 does not run"}, "damaged"),
        ({"died": ["broker 1 ended with exit code 1"]}, "damaged"),
        ({"text": LOOSE, "findings": {"lost-write": 7, "unseen": 1}}, "clean"),
        ({"text": LOOSE, "findings": {"lost-write": 7, "diverged": 1}}, "damaged"),
    ],
)
def test_clean_means_that_no_promise_was_broken(facts, verdict):
    """Issue 7 Build 1: what the settings allow is named, and counted, and is no damage."""
    told = outcome(**facts)
    assert told.verdict == verdict
    document = told.to_json()
    assert json.loads(json.dumps(document)) == document
    assert {"verdict", "acknowledged", "lost", "duplicated", "reordered", "diverged"} <= document.keys()
    assert document["lost"] == sum(count for kind, count in told.findings.items() if kind in {"lost-write", "unseen"})
    assert (document["acknowledged"], document["unknown"]) == (2, 1)
    text = told.render()
    assert text.startswith(f"verdict: {verdict}")
    assert ("DAMAGE" in text) == bool(told.damage)
    for each in told.died:
        assert each in text


def test_a_loss_that_is_allowed_is_named_with_its_reason():
    """A reader of the report learns why, and how many."""
    told = outcome(LOOSE, findings={"lost-write": 7})
    assert "acks=1: the leader acknowledged alone" in told.render()
    assert told.to_json()["allowed"] == {"reasons": ["acks=1"], "findings": {"lost-write": 7}}
    assert told.count("lost") == 7


def test_the_picture_is_one_well_formed_svg():
    """It opens in a browser without anything else, whatever names and faults contain."""
    drawn = ET.fromstring(picture(outcome()))
    assert drawn.tag.endswith("svg")
    texts = [each.text or "" for each in drawn.iter() if each.tag.endswith("text")]
    assert any("clean" in (span.text or "") for each in drawn.iter() for span in each if span.tag.endswith("tspan"))
    assert any("kill" in text for text in texts)
    assert sum(each.tag.endswith("polyline") for each in drawn.iter()) == 1
    many = outcome()
    for number in range(2, 60):
        many.figures.began(number, "kill n1", float(number))
    assert len(ET.fromstring(picture(many)).findall("{*}rect")) == 60
