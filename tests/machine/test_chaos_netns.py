"""The target netns under load: networks that are really cut, and disks that really lose power (issue 7, Must be shown)."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import javaproperties
import psutil
import pytest
from msgspec.structs import replace

from minikafka.chaos.machine import run
from minikafka.chaos.netns import NetnsTarget
from minikafka.chaos.outcome import Outcome
from minikafka.chaos.reading import find, read
from minikafka.chaos.runner import REPORT, play

pytestmark = [pytest.mark.machine, pytest.mark.slow]

LOAD_S = 12.0
"""Every step of these scenarios is over by then."""


async def played(name: str, folder: Path, security_protocol: str = "PLAINTEXT") -> Outcome:
    """A scenario of the library, as it is, but for a shorter load."""
    scenario = read(find(name))
    scenario = replace(scenario, cluster=replace(scenario.cluster, security_protocol=security_protocol))
    outcome = await play(scenario, "netns", seed=7, folder=folder, duration_s=LOAD_S)
    assert outcome.spared == []
    report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    assert (report["target"], report["scenario"]) == ("netns", name)
    assert str(folder) not in run("losetup", "--all")
    return outcome


@pytest.mark.parametrize("name", ["vanlightly-isolated-leader", "one-way-cut"])
async def test_a_partition_loses_nothing(name: str, tmp_path: Path):
    """A leader is cut from the others in both directions, and in one: nothing acknowledged is lost or doubled."""
    outcome = await played(name, tmp_path)
    told = outcome.to_json()
    assert outcome.verdict == "clean", told
    assert (outcome.findings, told["diverged"]) == ({}, 0)
    assert told["acknowledged"] > 100
    assert told["failovers"] >= 1


async def test_a_storm_under_tls_and_scram_is_clean(tmp_path: Path):
    """Issue 18: brokers call each other with certificates, half of the producers are aiokafka's and log in with SCRAM."""
    outcome = await played("storm", tmp_path, "SASL_SSL")
    told = outcome.to_json()
    assert outcome.verdict == "clean", told
    assert (outcome.findings, told["diverged"]) == ({}, 0)
    assert told["acknowledged"] > 100
    history = (tmp_path / "history.jsonl").read_text(encoding="utf-8")
    assert {f'"process":"p{number}"' for number in (1, 2, 3)} <= set(re.findall(r'"process":"p\d+"', history))
    broker = javaproperties.loads((tmp_path / "broker-1" / "broker.properties").read_text(encoding="latin-1"))
    assert broker["listener.security.protocol.map"] == "BROKERS:SSL,CLIENTS:SASL_SSL"
    assert broker["authorizer.class.name"]


async def test_power_loss_of_all_loses_nothing_that_was_synced(tmp_path: Path):
    """log.flush.interval.messages=1: what was acknowledged stands on three disks, whatever the page caches held."""
    outcome = await played("power-loss-all", tmp_path)
    assert outcome.verdict == "clean", outcome.to_json()
    assert outcome.findings == {}
    assert outcome.to_json()["acknowledged"] > 50


async def test_power_loss_of_all_names_what_was_not_synced(tmp_path: Path):
    """Kafka's default flush policy: what only page caches had is lost, counted and explained, and nothing else is wrong."""
    outcome = await played("power-loss-unflushed", tmp_path)
    told = outcome.to_json()
    assert outcome.verdict == "clean", told
    assert told["lost"] > 0
    assert told["diverged"] == 0
    assert "page caches" in outcome.render()
    assert outcome.allowed == outcome.findings


def network() -> Path:
    """What names the network namespace of this thread."""
    return Path("/proc/thread-self/ns/net").readlink()


async def test_a_start_that_is_cut_short_leaves_nothing(tmp_path: Path):
    """Ctrl-C while brokers start: no process, no mount, and this process is back in its own network."""
    target = NetnsTarget(read(find("power-loss-all")), tmp_path)
    home, children = network(), psutil.Process().children()
    starting = asyncio.ensure_future(target.start())
    for _ in range(6_000):
        if target.addresses():
            break
        await asyncio.sleep(0.01)
    assert network() != home
    assert str(tmp_path) in run("losetup", "--all")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await target.close()
    assert network() == home
    assert psutil.Process().children() == children
    assert str(tmp_path) not in run("losetup", "--all")
