"""The lab's stories, played once more by the production drivers on a simulated cluster: each step gives the same state."""

from __future__ import annotations

import pytest

from minikafka.broker import alter_partition_manager
from minikafka.lab.lab_cluster import LabCluster
from minikafka.lab.node import Node
from minikafka.lab.played import View, views_of
from minikafka.lab.scenario import library, play, read
from minikafka.lab.table import rendered
from minikafka.lab.verbs import ScenarioError
from minikafka.sim.world import SimWorld
from tests.rules.replication_histories import History, Violation
from tests.rules.test_replication_histories import STEPS
from tests.scenarios.production import ProductionCluster, production
from tests.sim.planted_kafka import acknowledge_first

STORIES = [
    pytest.param(path, expected.options, id="-".join([path.stem, *(value for _, value in expected.options)]))
    for path in library()
    for expected in read(path).expected
]


@pytest.mark.parametrize("path, options", STORIES)
def test_production_drivers_play_a_story_as_the_lab_does(path, options):
    """16.4: the lab's stage cannot drift from the drivers: state, sentences and verdict agree after every step."""
    scenario = read(path)
    with SimWorld(None) as sim:
        run = play(list(scenario.commands()), dict(options), production(sim))
        stage = scenario.play(options)
        for mine, theirs in zip(stage.steps, run.steps, strict=True):
            assert (theirs.what, theirs.lines, theirs.after) == (mine.what, mine.lines, mine.after), mine.number
        assert rendered(run) == rendered(stage)


def test_stories_agree_under_the_quorum():
    """Stories whose script elects, played under the controller's rules: other courses of the same schedules."""
    played = 0
    for path in library():
        try:
            stage = read(path).play((("control", "quorum"),))
        except ScenarioError:
            continue  # it elects a broker that the controller does not
        with SimWorld(None) as sim:
            run = play(list(read(path).commands()), {"control": "quorum"}, production(sim))
        assert rendered(run) == rendered(stage), path.stem
        played += 1
    assert played > 20


class Watched(History):
    """A history that remembers how every replica looked after each step."""

    states: list[dict[str, View]]

    def check(self) -> None:
        super().check()
        self.__dict__.setdefault("states", []).append(views_of(self.lab))


@pytest.mark.parametrize("seed", [*range(10), 68])
@pytest.mark.parametrize("clean", [True, False])
def test_production_drivers_have_the_same_histories(seed, clean, monkeypatch):
    """Random schedules: each step leaves the same state on the lab's stage and under the production drivers.

    In seed 68 a replica outside the ISR stops counting, and only the periodic check notices that.
    """
    monkeypatch.setattr(alter_partition_manager, "RETRY_PAUSE_S", 0.0)  # the stage has no pauses
    stage = Watched(seed, clean=clean)
    stage.play(STEPS)
    with SimWorld(None) as sim:
        production = Watched(seed, clean=clean, on=lambda lab: ProductionCluster(lab, sim))
        production.play(STEPS)
    for step, (mine, theirs) in enumerate(zip(stage.states, production.states, strict=True)):
        assert theirs == mine, step


REFUSED = """
cluster brokers=2 control=quorum
produce 1 a acks=1
kill 2
expire 2
restart 2
proposals held
fetch 2
fetch 2
produce 1 b acks=all
kill 2
expire 2
settle 1
"""
"""A joining follower dies before the controller decides: the refusal alone commits b."""


def test_refused_proposal_commits_what_it_held_back():
    """The leader works the high watermark out again when the controller has refused its proposal."""
    lines = list(enumerate(REFUSED.strip().splitlines(), start=1))
    with SimWorld(None) as sim:
        runs = [play(lines, {}), play(lines, {}, production(sim))]
    for run in runs:
        last = run.steps[-1]
        assert "controller: INELIGIBLE_REPLICA" in last.lines
        assert "producer of b: acknowledged" in last.lines
        assert last.after["1"].high_watermark == 2


@pytest.mark.parametrize(
    "owner, name, planted",
    [
        (LabCluster, "_read", acknowledge_first(LabCluster._read)),
        (Node, "sync", lambda node: None),
        (LabCluster, "ready", lambda lab: None),
    ],
    ids=["a fetch counts too early", "no sync", "parked fetches sleep on"],
)
def test_a_stage_that_drifts_is_noticed(owner, name, planted, monkeypatch):
    """A check that cannot fail proves nothing."""
    monkeypatch.setattr(owner, name, planted)
    noticed = []
    for path, options in (each.values for each in STORIES):
        try:
            test_production_drivers_play_a_story_as_the_lab_does(path, options)
        except AssertionError:
            noticed.append(path.stem)
    for seed in range(5) if not noticed else ():
        try:
            test_production_drivers_have_the_same_histories(seed, True, monkeypatch)
        except (AssertionError, Violation):
            noticed.append(seed)
    assert noticed
