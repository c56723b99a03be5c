"""``minikafka chaos run --target compose``: a cluster from nothing, hurt and healed under load, and its verdict (S38)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.containers.conftest import IMAGE
from tests.containers.engine import Engine

pytestmark = [pytest.mark.containers, pytest.mark.slow, pytest.mark.timeout(1800)]


def played(engine: Engine, target: str, *options: str, scenario: str = "kill-and-cut") -> dict[str, Any]:
    """The report of a run on a target."""
    run = ("chaos", "run", scenario, "--target", target, "--seed", "5", "-o", "json")
    told: dict[str, Any] = json.loads(engine.minikafka(*run, *options, image=IMAGE, timeout_s=900))
    return told


def test_killed_cut_and_healed_under_load(engine: Engine, tmp_path: Path):
    """Issue 7, Must be shown: the compose cluster up from nothing, killed, cut and healed under load, verdict clean."""
    listed = (("ps", "--all", "--quiet"), ("volume", "ls", "--quiet"), ("network", "ls", "--quiet"))
    before = [engine.docker(*each).stdout for each in listed]
    told = played(engine, "compose", "--keep", str(tmp_path))
    assert told["verdict"] == "clean", told
    wrong = ("lost", "duplicated", "reordered", "diverged")
    assert {name: told[name] for name in wrong} == dict.fromkeys(wrong, 0)
    assert told["acknowledged"] > 200
    assert told["spared"] == []
    assert [each["what"].split()[0] for each in told["faults"]] == ["kill", "cut"]
    assert told["failovers"] >= 2
    assert [engine.docker(*each).stdout for each in listed] == before, "containers, volumes or networks are left"
    assert len(list(tmp_path.glob("broker-*/journal.jsonl"))) == 3


def test_paused_disconnected_stopped_and_slow(engine: Engine):
    """FAULTS 3, the rest of them: each broker is struck, comes back, and all replicas are the same at the end."""
    told = played(engine, "compose", scenario=str(Path(__file__).with_name("tour.toml")))
    assert told["verdict"] == "clean", told
    assert told["spared"] == []
    assert told["failovers"] >= 3
    assert [each["what"].split()[0] for each in told["faults"]] == ["pause", "isolate", "stop", "loss", "delay"]


def test_the_same_file_has_the_same_verdict_elsewhere(engine: Engine):
    """Issue 7, Must be shown: unchanged in the simulator and on processes, as on compose above."""
    for target in ("simulator", "processes"):
        told = played(engine, target)
        assert (told["target"], told["scenario"]) == (target, "kill-and-cut")
        assert (told["verdict"], told["lost"], told["duplicated"], told["diverged"]) == ("clean", 0, 0, 0), told
