"""What was injected, written as a test in Python and as a scenario (issue 19): both set the faults that were set."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from minikafka.chaos.processes import _spec
from minikafka.chaos.reading import scenario_of
from minikafka.chaos.scenario import hit_of, strikes_of
from minikafka.faults import View
from minikafka.rest.fault_script import NAME, Setup, Topic, call_of, chaos_of, python_of
from minikafka.world.faults import APIS, EVERY_API, KINDS, FaultSpec, paused
from minikafka.world.instruments import Injection

SETUP = Setup(
    nodes=(1, 2, 3),
    settings={"replica.lag.time.max.ms": "1000"},
    topics=(Topic("orders", 3, 3, {"min.insync.replicas": "2"}),),
)
VIEW = View((1, 2, 3), 1, {})


def random_spec(random: Random, link: str = "3>1") -> FaultSpec:
    kind = random.choice(KINDS)
    api = random.choice([each for each in APIS if each not in {EVERY_API, "ApiVersions"}])
    return FaultSpec(
        kind=kind,
        link=link,
        api=api if kind == "error" else random.choice([EVERY_API, api]),
        message=None if kind == "duplicate" else random.choice([None, "request", "answer"]),
        count=random.choice([None, 1, 20]),
        delay_ms=200.0 if kind == "delay" else random.choice([0.0, 50.0]) if kind == "reorder" else 0.0,
        jitter_ms=random.choice([0.0, 12.5]) if kind == "delay" else 0.0,
        probability=random.choice([1.0, 0.25]),
        seed=random.choice([None, 7]),
        error="NOT_LEADER_OR_FOLLOWER" if kind == "error" else None,
        for_ms=random.choice([None, 1500.0, 30_000.0]),
    )


class Recorder:
    """``cluster.faults`` as far as a script calls it."""

    def __getattr__(self, kind: str) -> Any:
        def call(link: str, *values: Any, **limits: Any) -> FaultSpec:
            names = {"delay": ("delay_ms",), "error": ("error",)}.get(kind, ())
            return FaultSpec(kind=kind, link=link, **dict(zip(names, values, strict=True)), **limits)

        return call


def at(at_ms: int, act: Any, **more: Any) -> Injection:
    return Injection(at_ms=at_ms, act=act, **more)


def held(at_ms: int, number: int = 1, broker: int = 3, **more: Any) -> Injection:
    spec = FaultSpec(kind="hold", link="3>1", api="Fetch", message="request")
    return at(at_ms, "set", broker=broker, fault=number, spec=replace(spec, **more))


def body_of(text: str) -> list[str]:
    """The statements inside the ``with`` of a script."""
    test = ast.parse(text).body[-1]
    assert isinstance(test, ast.FunctionDef)
    block = test.body[0]
    assert isinstance(block, ast.With)
    return [ast.unparse(each) for each in block.body]


def steps_of(text: str) -> list[dict[str, Any]]:
    """The strikes of a scenario, as the target ``processes`` sets them."""
    scenario = scenario_of(Path(f"{NAME}.toml"), text)
    found = []
    for strike in strikes_of(scenario, 1):
        hit = hit_of(strike, VIEW)
        assert hit is not None, strike
        specs = [_spec(hit, link, 1) for link in hit.links]
        found.append(
            {"at": strike.at_s, "for": strike.lasts_s, "what": strike.what, "nodes": hit.nodes, "specs": specs}
        )
    return found


# ---- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(200))
def test_call_in_python_sets_the_same_fault(seed: int):
    """Every member of a FaultSpec is an argument of the call that is written."""
    spec = random_spec(Random(seed), "client:billing<>3")
    assert eval(f"faults.{call_of(spec)}", {"faults": Recorder()}) == spec


@pytest.mark.parametrize("seed", range(200))
def test_step_of_a_scenario_sets_the_same_fault(seed: int):
    """All but the seed, which a scenario draws, and the time, which is the step's."""
    spec = random_spec(Random(seed))
    text = chaos_of([at(1000, "set", broker=3, fault=1, spec=spec)], SETUP)
    [step] = steps_of(text)
    [made] = step["specs"]
    wanted = {each.name: getattr(spec, each.name) for each in fields(spec) if each.name not in {"seed", "for_ms"}}
    assert {**dict.fromkeys(wanted), "delay_ms": 0.0, "jitter_ms": 0.0, **made, "seed": None} == {
        **wanted,
        "seed": None,
    }
    assert step["for"] == (None if spec.for_ms is None else spec.for_ms / 1000)


# ---- times -----------------------------------------------------------------------------------------------------------


def test_faults_kills_and_heals_have_their_times_in_both():
    """A healed fault ends then; a broker is started again after its time; long pauses in which all is well are short."""
    injected = [
        held(10_000, for_ms=30_000.0),
        at(12_500, "release", broker=3, fault=1, facts={"count": 1, "latest": True}),
        at(14_000, "heal", broker=3, fault=1),
        at(100_000, "kill", broker=2),
        at(104_000, "start", broker=2),
        at(104_000, "set", broker=1, fault=1, spec=paused(1)),
    ]
    assert body_of(python_of(injected, SETUP)) == [
        "kafka = cluster.sync",
        "kafka.create_topic('orders', 3, replicas=3, config={'min.insync.replicas': '2'})",
        "kafka.produce('orders', b'before the faults')",
        "fault_1 = kafka.faults.hold('3>1', api='Fetch', message='request', for_ms=30000)",
        "time.sleep(2.5)",
        "fault_1.release(1, latest=True)",
        "time.sleep(1.5)",
        "fault_1.heal()",
        "time.sleep(5)",
        "kafka.kill(2)",
        "time.sleep(4)",
        "kafka.restart(2)",
        "fault_2 = kafka.faults.hold('1<>*')",
        "cluster.make_whole()",
        "kafka.wait.isr('orders', 0, size=3)",
        "kafka.produce('orders', b'after the faults')",
    ]
    text = chaos_of(injected, SETUP)
    steps = steps_of(text)
    assert [(each["what"], each["at"], each["for"]) for each in steps[:2]] == [
        ("messages", 2.0, 4.0),
        ("kill", 11.0, 4.0),
    ]
    assert {(each["at"], each["for"]) for each in steps[2:]} == {(15.0, None)}
    links = {(spec["kind"], spec["link"]) for each in steps[2:] for spec in each["specs"]}
    assert links == {("hold", f"1>{end}") for end in ("2", "3", "client")} | {
        ("hold", f"{end}>1") for end in ("2", "3", "client")
    }
    assert "Left out: the release of held messages" in text


def test_faults_of_a_process_end_with_it_and_strike_only_what_passes_there():
    """``*>3`` set at broker 1 is ``1>3``; the faults of a broker that is killed are over, in LocalCluster too."""
    wide = FaultSpec(kind="drop", link="*>3")
    injected = [
        at(0, "set", broker=1, fault=1, spec=wide, is_alone=True),
        at(1000, "set", broker=1, fault=2, spec=replace(wide, link="broker>client"), is_alone=True),
        at(2000, "kill", broker=1),
        at(3000, "set", broker=3, fault=1, spec=replace(wide, link="*>broker"), is_alone=True),
    ]
    body = body_of(python_of(injected, SETUP))
    assert [each for each in body if each.startswith(("fault", "kafka.kill"))] == [
        "fault_1 = kafka.faults.drop('1>3')",
        "fault_2 = kafka.faults.drop('1>client')",
        "kafka.kill(1)",
        "fault_1.heal()",
        "fault_2.heal()",
        "fault_3 = kafka.faults.drop('3>broker')",
        "fault_3_2 = kafka.faults.drop('*>3')",
    ]
    steps = steps_of(chaos_of(injected, SETUP))
    assert [(each["at"], each["for"]) for each in steps[:3]] == [(2.0, 2.0), (3.0, 1.0), (4.0, None)]


def test_brokers_are_numbered_from_one_and_the_script_says_so():
    """Clusters may have any node ids; LocalCluster and scenarios have 1, 2 and so on."""
    setup = replace(SETUP, nodes=(0, 101, 102))
    injected = [held(0, broker=0, link="0<>102"), at(1000, "kill", broker=102), at(2000, "stop", broker=0)]
    text = python_of(injected, setup)
    assert "Brokers are numbered from 1 here: 0 is 1, 101 is 2, 102 is 3." in text
    assert [each for each in body_of(text) if "kafka." in each][2:5] == [
        "fault_1 = kafka.faults.hold('1<>3', api='Fetch', message='request')",
        "kafka.kill(3)",
        "kafka.terminate(1)",
    ]
    scenario = chaos_of(injected, setup)
    assert "0 is 1, 101 is 2, 102 is 3" in scenario
    assert [each["nodes"] for each in steps_of(scenario)[-2:]] == [(3,), (1,)]


def test_disks_and_calendars_are_steps_and_comments():
    """LocalCluster has no method for a machine: the test says what it leaves out."""
    full = {"disk_full": True, "sync_delay_ms": 0, "failing_syncs": 0, "calendar_ahead_ms": 0}
    slow = {**full, "disk_full": False, "sync_delay_ms": 50, "calendar_ahead_ms": 3_600_000}
    injected = [
        at(0, "machine", broker=2, facts=full),
        at(3000, "machine", broker=2, facts=slow),
        at(4000, "machine", broker=2, facts={**slow, "sync_delay_ms": 0, "failing_syncs": 1}),
    ]
    steps = [(each["what"], each["at"], each["for"]) for each in steps_of(chaos_of(injected, SETUP))]
    assert steps == [
        ("disk-full", 2.0, 3.0),
        ("slow-disk", 5.0, 1.0),
        ("clock-jump", 5.0, None),
        ("fsync-fail", 6.0, None),
    ]
    assert python_of(injected, SETUP).count("# Left out: the machine of broker 2") == 3


def test_nothing_injected_and_what_no_scenario_can_say_are_comments():
    """The texts stay valid Python and TOML; nothing is left out silently."""
    empty = Setup(nodes=(1,), settings={}, topics=())
    assert body_of(python_of([], empty)) == ["kafka = cluster.sync", "cluster.make_whole()"]
    assert "Nothing was injected that a scenario can repeat." in chaos_of([], empty)
    billing = FaultSpec(kind="cut", link="client:billing>*")
    late = FaultSpec(kind="delay", link="2>1", delay_ms=90_000)
    text = chaos_of([at(0, "set", broker=1, fault=n, spec=each) for n, each in enumerate((billing, late), 1)], SETUP)
    assert "# Left out: cut client:billing>*; a scenario names no single client." in text
    assert "# Left out: delay 2>1; a scenario delays by a minute at most." in text
    many = chaos_of([held(0)], replace(SETUP, nodes=tuple(range(1, 13))))
    assert "A scenario has 9 brokers at most; this cluster has 12." in many
