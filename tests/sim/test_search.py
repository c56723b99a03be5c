"""``sim search``: losses that the settings allow are found, cut down and told; losses that they forbid are not found."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Container
from dataclasses import replace
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from minikafka.check.findings import LostWrite
from minikafka.cli.root import root
from minikafka.errors import InvalidConfig
from minikafka.sim.plan import FSYNC, PAGE_CACHE, Fault, Operation, Plan
from minikafka.sim.run import run
from minikafka.sim.search import (
    Asked,
    Found,
    Happened,
    Search,
    StoryRun,
    asked_for,
    cut_down,
    loses,
    plan_for,
    search,
    story_of,
)

STEPS_MAX = 6
SEEDS = 20


@pytest.fixture(scope="module")
def found():
    """The search of the issue: acks=1, everything else by default."""
    result = search(Search(asked=asked_for({"acks": "1"})), seeds=SEEDS)
    assert result.found is not None
    return result


def test_the_loss_that_acks_1_allows_is_found_and_cut_down_to_six_steps(found):
    """Issue 3: `sim search` finds the acks=1 loss from default settings and shrinks it to six steps or fewer."""
    story = found.found
    assert story.seed == found.tried - 1
    assert len(story.plan.faults) + len(story.plan.operations) <= STEPS_MAX
    assert 3 <= len(story.sentences) <= STEPS_MAX
    text = "\n".join(story.sentences)
    assert f"record {story.lost[0].value} of p1" in text
    assert "acknowledges with acks=1" in text
    assert "becomes leader of orders-0" in text
    assert "cut" in story.sentences[-1]


def only_these_lose(monkeypatch: pytest.MonkeyPatch, seeds: Container[int]) -> None:
    """No run is made: these seeds lose a record, and no others."""

    class Told:
        def __init__(self, plan: Plan) -> None:
            self.plan = plan

        def run(self):
            return SimpleNamespace(violations=[SimpleNamespace(name=LostWrite.kind)] * (self.plan.seed in seeds))

    monkeypatch.setattr("minikafka.sim.search.StoryRun", Told)


@pytest.mark.parametrize(
    ("lengths", "seed", "tried"),
    [
        ({3: 5}, 3, 4),
        ({3: 9, 5: 6, 7: 2}, 5, 6),
        ({3: 9, 5: 8, 6: 9}, 5, 14),
        ({3: 9, 30: 2}, 3, 14),
        ({38: 9, 39: 8}, 39, 40),
    ],
)
def test_a_long_story_is_kept_while_a_shorter_one_is_looked_for(monkeypatch, lengths, seed, tried):
    """Six steps or fewer end the search; a longer one has ten more seeds tried, and the shortest is told."""

    def cut(plan: Plan, _asked: Asked, _progress: object) -> Found:
        plan = plan.with_(faults=(), operations=plan.operations[: lengths[plan.seed]])
        return Found(seed=plan.seed, plan=plan, sentences=(), lost=(), runs=1)

    only_these_lose(monkeypatch, lengths)
    monkeypatch.setattr("minikafka.sim.search.cut_down", cut)
    result = search(Search(asked=Asked()), seeds=40)
    assert result.found is not None
    assert (result.found.seed, result.tried) == (seed, tried)


def test_the_story_tells_time_in_order(found):
    """A story whose steps are out of order explains nothing."""
    times = [float(each.partition("=")[2].partition(" ")[0]) for each in found.found.sentences]
    assert times == sorted(times)


def test_the_plan_that_is_kept_loses_again(found):
    """The scenario file is what stays of a search: read back, and under all invariants, it fails by the same name."""
    plan = Plan.from_json(found.found.plan.to_json())
    assert plan.client_settings["acks"] == 1
    assert run(plan).failure == LostWrite.kind


def test_the_same_seed_gives_the_same_story(found):
    """A seed in a report is worth something only then."""
    asked = found.asked
    again = cut_down(plan_for(found.found.seed, asked), asked)
    assert (again.sentences, again.plan, again.runs) == (
        found.found.sentences,
        found.found.plan,
        found.found.runs,
    )


def test_what_cuts_a_plan_down_leaves_the_settings_alone(found):
    """The shrinker drops client settings that it takes for needless; acks is what was asked for."""
    assert found.found.plan.client_settings["acks"] == 1
    assert not loses(found.found.plan.with_(client_settings={"acks": "all"}))


def test_acks_all_with_two_in_sync_loses_nothing_inside_the_budget():
    """Issue 3: none for acks=all with min.insync.replicas=2; the search says how many seeds it tried."""
    result = search(Search(asked=asked_for({"acks": "all", "min.insync.replicas": "2"})), seeds=SEEDS)
    assert result.found is None
    assert result.tried == SEEDS
    assert result.others == {}


def test_an_unclean_election_loses_what_all_have_acknowledged():
    """S20: broker 2 leads without the record, for broker 1 is dead; the reader's loss is seen, not the broken invariant."""
    faults = (
        Fault(at_s=0.5, kind="crash", target="n2", lasts_s=4.0),
        Fault(at_s=3.0, kind="crash", target="n1", lasts_s=6.0),
    )
    sends = (Operation(at_s=2.5, client="p1", topic="orders", partition=0),)

    def directed(unclean: str) -> Plan:
        asked = asked_for({"unclean.leader.election.enable": unclean, "default.replication.factor": "2"})
        return plan_for(1, asked).with_(faults=faults, operations=sends, duration_s=12.0)

    assert loses(directed("true"))
    assert not loses(directed("false")), "it waits for broker 1"


def test_settings_are_the_producers_and_the_brokers():
    """Names are Kafka's; a durability policy decides what the faults may do (DESIGN D6)."""
    asked = asked_for({"acks": "all", "batch.size": "100", "linger.ms": "3", "log.flush.interval.messages": "1"})
    assert asked.producer == {"acks": "all", "max_batch_size": 100, "linger_ms": 3}
    assert asked.broker == {"log.flush.interval.messages": "1"}
    assert (asked.policy, asked_for({}).policy) == (FSYNC, PAGE_CACHE)
    plan = plan_for(5, asked)
    assert plan.policy == FSYNC
    assert plan.client_settings["linger_ms"] == 3
    assert plan_for(5, asked_for({"default.replication.factor": "2"})).topics[0].replication_factor == 2


@pytest.mark.parametrize(
    "name, text, why",
    [
        ("aks", "1", "did you mean acks"),
        ("min.insync.replica", "1", "did you mean min.insync.replicas"),
        ("acks", "2", "acks"),
        ("acks", "0", "nothing is acknowledged"),
        ("min.insync.replicas", "many", "min.insync.replicas"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(name, text, why):
    """DESIGN D8: an unknown setting is an error with the nearest name."""
    with pytest.raises(InvalidConfig, match=why):
        asked_for({name: text})


def test_faults_are_told_as_what_they_were():
    """Each kind has a sentence, with whom it hit."""

    def sentence(kind: str, target: str, *nodes: int) -> str:
        fault = Fault(at_s=1.0, kind=kind, target=target, lasts_s=1.5)
        happened = Happened(time=1.0, fault=fault, nodes=nodes, controller=3)
        lost = LostWrite(
            topic="orders", partition=0, offset=0, value="p1.0", op=1, process="p1", held_by=(), read_up_to=0
        )
        (told,) = story_of(Plan(seed=1), [happened], [], [lost])
        return told.removeprefix("t=1.000 s: ")

    assert sentence("power_cut", "n2", 2) == "the power of broker 2 fails for 1.5 s; what was not synced is in danger"
    assert sentence("crash", "n2", 2) == "broker 2 is killed (kill -9), and started again 1.5 s later"
    assert sentence("crash", "leader:orders-0", 1).startswith("broker 1, leader of orders-0, is killed")
    assert sentence("crash", "all", 1, 2, 3).startswith("all brokers are killed")
    assert sentence("isolate", "controller", 3) == (
        "broker 3, the active controller, is cut off from everybody for 1.5 s"
    )
    assert sentence("stop", "leader:orders-0", 3).startswith(
        "broker 3, leader of orders-0 and the active controller, is"
    )
    assert sentence("cut", "n1>n2", 1, 2) == "nothing from broker 1 reaches broker 2 for 1.5 s"
    assert sentence("clog", "n1>n3", 1, 3) == (
        "whatever broker 1 sends to broker 3, the active controller, is held back for 1.5 s"
    )
    assert sentence("slow_disk", "n1", 1) == "slow disk at broker 1 for 1.5 s"


def test_a_fault_that_the_budget_spares_is_told_as_what_was_done():
    """A power cut too many is a kill -9, and a kill too many a SIGSTOP: a story that says otherwise explains nothing."""
    faults = (
        Fault(at_s=1.0, kind="power_cut_all", target="all", lasts_s=0.5),
        Fault(at_s=4.0, kind="power_cut", target="n1", lasts_s=1.0),
        Fault(at_s=4.1, kind="power_cut_all", target="all", lasts_s=0.5),
        Fault(at_s=4.2, kind="crash", target="n1", lasts_s=0.5),
        Fault(at_s=4.3, kind="crash", target="n2", lasts_s=0.5),
    )
    ran = StoryRun(plan_for(1, Asked()).with_(faults=faults))
    report = ran.run()
    told = [(each.fault.kind, each.nodes) for each in ran.noted.happened]
    assert told == [("crash", (1, 2, 3)), ("power_cut", (1,)), ("pause", (2, 3)), ("pause", (2,))]
    marks = ("fault_power_cut", "fault_power_cut_all", "power_cut_spared", "fault_crash", "crash_spared")
    assert [report.marks[name] for name in marks] == [1, 0, 2, 0, 3]
    assert "  crash_spared: 2 only stands still (SIGSTOP)" in report.faults


# ---- the command -----------------------------------------------------------------------------------------------------


def told(*arguments: str, code: int = 0):
    result = CliRunner().invoke(root, ["sim", "search", *arguments])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_the_command_prints_sentences_a_scenario_and_a_seed(found, tmp_path):
    """Issue 3 item 6."""
    seed = str(found.found.seed)
    path = tmp_path / "loss.json"
    text = told("--config", "acks=1", "--start", seed, "--seeds", "1", "--out", str(path)).stdout
    for number, each in enumerate(found.found.sentences, start=1):
        assert f"\n  {number}. {each}\n" in text
    assert f"Repeat: minikafka sim search --config acks=1 --start {seed} --seeds 1\n" in text
    assert f"minikafka sim show {path} --html run.html\n" in text
    assert Plan.from_json(path.read_text()) == found.found.plan


def test_the_output_ends_with_the_story_and_writes_no_scenario_unasked(found):
    """Pages of JSON after the story pushed it off the screen; --out is how the scenario is kept."""
    text = told("--config", "acks=1", "--start", str(found.found.seed), "--seeds", "1").stdout
    assert "{" not in text
    assert "Add --out FILE" in text
    *_, sentence, blank, lost = text.splitlines()
    assert sentence == f"  {len(found.found.sentences)}. {found.found.sentences[-1]}"
    assert (blank, lost.partition(":")[0]) == ("", "lost")


def test_the_seed_that_is_reported_is_explained(found, monkeypatch):
    """The reported seed is neither the first that lost a record nor the last that was tried, but the shortest story."""

    def cut(plan: Plan, _asked: Asked, _progress: object) -> Found:
        operations = found.found.plan.operations * {3: 9, 5: 7}[plan.seed]
        return replace(found.found, seed=plan.seed, plan=found.found.plan.with_(operations=operations))

    only_these_lose(monkeypatch, {3: 9, 5: 7})
    monkeypatch.setattr("minikafka.sim.search.cut_down", cut)
    text = told("--config", "acks=1").stdout
    assert text.startswith(
        "seed 5 loses an acknowledged record (14 seeds tried, 2 of them lose one; this is the shortest story).\n"
    )
    assert "A seed of `sim search` is not a seed of `sim run`." in text


def test_the_output_file_is_checked_before_the_search(tmp_path):
    """A directory that does not exist is named at once, not after the search."""
    result = told("--config", "acks=1", "--seeds", "100000", "--out", str(tmp_path / "none" / "loss.json"), code=2)
    assert f"there is no directory {tmp_path / 'none'}; create it first" in " ".join(result.stderr.split())


def test_the_commands_json_is_a_contract(found):
    """docs/lab.md."""
    seed = found.found.seed
    ran = json.loads(told("--config", "acks=1", "--start", str(seed), "--seeds", "1", "-o", "json").stdout)
    assert list(ran) == [
        "settings",
        "seeds_tried",
        "found",
        "seed",
        "steps",
        "lost",
        "runs_to_cut_down",
        "other_findings",
        "plan",
    ]
    assert (ran["found"], ran["seed"], ran["seeds_tried"]) == (True, seed, 1)
    assert ran["steps"] == list(found.found.sentences)
    assert ran["lost"][0]["value"] == found.found.lost[0].value
    assert Plan.from_json(json.dumps(ran["plan"])) == found.found.plan


def test_finding_none_is_a_result():
    """It says how many seeds it tried; exit code 0."""
    none = told("--config", "acks=all", "--config", "min.insync.replicas=2", "--start", "7", "--seeds", "2")
    assert none.stdout.startswith("none found: 2 seeds tried (7 to 8), each with 12 sends with acks=all and 3 faults")
    ran = json.loads(told("--seeds", "1", "-o", "json").stdout)
    assert (ran["found"], ran["seed"], ran["steps"], ran["plan"]) == (False, None, [], None)


@pytest.mark.parametrize(
    "arguments",
    [("--config", "aks=1"), ("--config", "acks"), ("--config", "acks=1", "--config", "acks=1")],
    ids=" ".join,
)
def test_a_wrong_setting_is_exit_code_2(arguments):
    """Scripts tell a wrong call from a search that found nothing."""
    assert told(*arguments, code=2).stdout == ""


def test_ctrl_c_ends_the_search_with_a_sentence():
    """A search may be long: interrupted, it says how far it came, and leaves nothing but that on standard error."""
    program = (
        "import sys; from minikafka.cli.root import main;"
        "from minikafka.cli import sim; sim.SEEDS_A_LINE = 1;"
        "main(['sim', 'search', '--seeds', '100000'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as it:
        assert it.stderr is not None
        it.stderr.readline()  # the first seed is being tried
        it.send_signal(signal.SIGINT)
        rest, out = it.stderr.read(), it.communicate()[0]
    assert it.returncode == 130
    assert out == ""
    assert "Traceback" not in rest
    assert rest.splitlines()[-1].startswith("minikafka: interrupted; of ")


@pytest.mark.parametrize(
    ("lengths", "interrupted_at", "out", "told_last"),
    [
        (
            {3: 9},
            3,
            "",
            "interrupted while the loss of seed 3 was cut down; that one again: minikafka sim search --config acks=1 --start 3 --seeds 1",
        ),
        (
            {3: 9, 5: 4},
            5,
            "seed 3 loses an acknowledged record",
            "interrupted while a story shorter than this one was looked for",
        ),
    ],
)
def test_ctrl_c_with_a_loss_in_hand_does_not_say_that_there_was_none(
    found, monkeypatch, tmp_path, lengths, interrupted_at, out, told_last
):
    """While it is cut down its seed is told; while a shorter one is looked for the story that there is."""

    def cut(plan: Plan, _asked: Asked, _progress: object) -> Found:
        if plan.seed == interrupted_at:
            raise KeyboardInterrupt
        operations = found.found.plan.operations * lengths[plan.seed]
        return replace(found.found, seed=plan.seed, plan=found.found.plan.with_(operations=operations))

    only_these_lose(monkeypatch, lengths)
    monkeypatch.setattr("minikafka.sim.search.cut_down", cut)
    path = tmp_path / "loss.json"
    result = CliRunner().invoke(root, ["sim", "search", "--config", "acks=1", "--out", str(path)])
    assert result.exit_code == 130
    assert result.stdout.startswith(out)
    assert bool(result.stdout) == bool(out) == path.exists()
    assert told_last in result.stderr


def test_asking_for_nothing_is_asking_with_the_defaults():
    """acks=all is the producer's default, and people read it in the answer."""
    assert Asked().acks == asked_for({"acks": "-1"}).acks == "all"
    assert asked_for({"acks": "1"}).acks == "1"
