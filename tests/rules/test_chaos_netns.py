"""What the target netns decides without root: rules of packets as text, what it lacks, who holds a broker down."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from minikafka.chaos.machine import Filter, rules_text, run
from minikafka.chaos.netns import NetnsTarget
from minikafka.chaos.reading import find, read
from minikafka.chaos.scenario import Hit, Strike
from minikafka.chaos.target import Fleet, lacks
from minikafka.errors import WorldError
from minikafka.faults import KILL, PAUSE, STOP
from minikafka.hosting.cluster_files import lay_out, write
from minikafka.hosting.processes import BrokerDied
from minikafka.types import Address


def test_rules_of_a_host_drop_before_they_delay():
    """The first rule that takes a packet counts; nothing of an older table is left, for it is restored as a whole."""
    slow = Filter(delay_s=0.2, jitter_s=0.1)
    told = rules_text(
        [
            ("INPUT -s", "10.77.0.1", slow),
            ("INPUT -s", "10.77.0.1", Filter(loses=0.25)),
            ("INPUT -s", "10.77.0.2", Filter(drops=True)),
            ("INPUT -s", "10.77.0.3", Filter(refuses_calls=True)),
            ("OUTPUT -d", "10.77.0.4", Filter(drops=True)),
        ],
        {slow: 7},
    )
    assert told.splitlines() == [
        "*filter",
        ":INPUT ACCEPT [0:0]",
        ":OUTPUT ACCEPT [0:0]",
        "-A INPUT -s 10.77.0.1 -m statistic --mode random --probability 0.2500 -j DROP",
        "-A INPUT -s 10.77.0.2 -j DROP",
        "-A INPUT -s 10.77.0.3 -p tcp --syn -j DROP",
        "-A OUTPUT -d 10.77.0.4 -j DROP",
        "-A INPUT -s 10.77.0.1 -j NFQUEUE --queue-num 7 --queue-bypass",
        "COMMIT",
    ]


def test_no_network_without_root_or_tools(monkeypatch: pytest.MonkeyPatch):
    """Issue 7, Build 2: a target that cannot be used says why, before anything is started."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    scenario = read(find("power-loss-all"))
    assert lacks("netns", scenario) == ("netns cannot be used here: only root may make network namespaces",)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr("minikafka.chaos.machine.ADMIN_RIGHTS", 0)
    monkeypatch.setattr(shutil, "which", lambda command: None if command == "mkfs.ext4" else f"/sbin/{command}")
    assert lacks("netns", scenario) == ("netns cannot make power-loss: not installed: mkfs.ext4 (package e2fsprogs)",)
    assert NetnsTarget.lacks("cut") is None


def test_root_of_a_container_is_told_what_it_lacks(monkeypatch: pytest.MonkeyPatch):
    """No rights, no network: said before anything is started, and not by the first command that fails."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: "Name:\tpython\nCapEff:\t00000000a80425fb\n")
    told = "root here may not make network namespaces: it lacks CAP_SYS_ADMIN or CAP_NET_ADMIN, as in a container"
    assert NetnsTarget.lacks("") == told


def test_a_command_that_fails_says_what_it_said():
    """WorldError with the command's own words."""
    with pytest.raises(WorldError, match="nosuchcommand is not installed"):
        run("nosuchcommand")
    with pytest.raises(WorldError, match="No such file"):
        run("ls", "/nowhere")


class FakeBroker:
    """Dies and starts as told."""

    def __init__(self) -> None:
        self.is_running = True
        self.told: list[str] = []
        self.dies_at_start = False

    async def start(self) -> None:
        self.told.append("start")
        self.is_running = not self.dies_at_start

    async def kill9(self) -> None:
        self.told.append("kill")
        self.is_running = False

    async def terminate(self) -> int:
        self.told.append("stop")
        self.is_running = False
        return 0

    async def freeze(self) -> None:
        self.told.append("freeze")

    async def thaw(self) -> None:
        self.told.append("thaw")

    def obituary(self) -> str:
        return "broker 1 ended with exit code 1"


def hit(what: str, number: int, *nodes: int) -> Hit:
    return Hit(strike=Strike(number=number, at_s=0.0, what=what, whom=""), nodes=nodes)


def fleet(brokers: int = 1) -> tuple[Fleet, dict[int, FakeBroker]]:
    async def answers(node: int) -> bool:
        return fakes[node].is_running

    fakes = {node: FakeBroker() for node in range(1, brokers + 1)}
    return Fleet(fakes, answers), fakes


async def test_who_lets_go_last_starts_the_broker():
    """Faults overlap: the end of one does not end what another one does."""
    hands, brokers = fleet()
    await hands.begin(hit(KILL, 1, 1))
    await hands.begin(hit(STOP, 2, 1))
    await hands.end(hit(KILL, 1, 1))
    assert brokers[1].is_running is False
    await hands.end(hit(STOP, 2, 1))
    assert brokers[1].told == ["kill", "stop", "start"]


async def test_who_is_about_to_be_started_is_not_missed():
    """A look between the end of a fault and the start is no obituary: it would be a false `damaged`."""
    hands, brokers = fleet(2)
    await hands.begin(hit(KILL, 1, 1))
    brokers[2].is_running = False
    assert [hands.is_missed(node) for node in (1, 2)] == [False, True]
    rising = asyncio.ensure_future(hands.end(hit(KILL, 1, 1)))
    while not rising.done():
        assert not hands.is_missed(1)
        await asyncio.sleep(0)
    assert brokers[1].is_running
    brokers[1].is_running = False
    assert hands.is_missed(1)


async def test_whom_a_full_disk_stopped_is_not_missed_while_room_is_made(tmp_path: Path):
    """Making room takes a while, and the fault is in force no more."""
    target = NetnsTarget(read(find("disk-full-leader")), tmp_path)
    target._fleet, brokers = fleet()
    target._brokers = brokers  # type: ignore[assignment]  # stand-ins
    full = hit("disk-full", 1, 1)
    await target.begin(full)
    brokers[1].is_running = False
    assert target.died() == {}
    ending = asyncio.ensure_future(target.end(full))
    while not ending.done():
        assert target.died() == {}
        await asyncio.sleep(0)
    await ending
    assert brokers[1].is_running


class FakeDisk:
    """Remembers what was done to it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def fill(self) -> None:
        self.told.append("fill")

    def free(self) -> None:
        self.told.append("free")

    def revive(self) -> None:
        self.told.append("revive")


async def test_a_disk_without_power_is_left_alone_while_others_are_put_right(tmp_path: Path):
    """Every call on it would fail; what else is wrong with it is made so again when its power is back."""
    target = NetnsTarget(read(find("power-loss-all")), tmp_path)
    disks = {node: FakeDisk() for node in (1, 2)}
    target._disks = disks  # type: ignore[assignment]  # stand-ins
    strike = Strike(number=1, at_s=0.0, what="power-loss", whom="n1")
    dark, full = (1, Hit(strike=strike, nodes=(1,))), Hit(strike=replace(strike, what="disk-full"), nodes=(1, 2))
    target._hits = dict([dark, (2, full)])
    target._fill_disks()
    assert (disks[1].told, disks[2].told) == ([], ["fill"])
    del target._hits[1]
    await target._give_power(dark[1])
    assert (disks[1].told, disks[2].told) == (["revive", "fill"], ["fill", "fill"])


async def test_a_broker_that_is_held_still_is_so_again_after_a_start():
    """What one fault does outlives a restart that another one makes."""
    hands, brokers = fleet()
    await hands.begin(hit(PAUSE, 1, 1))
    await hands.begin(hit(PAUSE, 2, 1))
    await hands.begin(hit(KILL, 3, 1))
    await hands.end(hit(KILL, 3, 1))
    await hands.end(hit(PAUSE, 1, 1))
    await hands.end(hit(PAUSE, 2, 1))
    assert brokers[1].told == ["freeze", "freeze", "kill", "start", "freeze", "thaw"]


async def test_all_run_when_all_is_put_right():
    """Whoever held, and whoever died by himself; who dies again then is an error."""
    hands, brokers = fleet(3)
    await hands.begin(hit(KILL, 1, 1, 2))
    brokers[3].is_running = False
    await hands.heal()
    assert [each.is_running for each in brokers.values()] == [True, True, True]
    brokers[1].is_running, brokers[1].dies_at_start = False, True
    await hands.end(hit(KILL, 9, 1))
    with pytest.raises(BrokerDied, match="exit code 1"):
        await hands.heal()


def test_broker_files_may_keep_logs_on_a_disk_of_their_own(tmp_path: Path):
    """``log.dirs`` below the broker's folder; everything else stays beside it."""
    cluster = lay_out(tmp_path, {1: Address("10.77.0.1", 9092)}, config={"mk.insecure": "true"}, logs="disk/logs")
    write(cluster)
    assert cluster.brokers[0].settings["log.dirs"] == str(tmp_path / "broker-1" / "disk" / "logs")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["broker-1", "broker.properties"]
