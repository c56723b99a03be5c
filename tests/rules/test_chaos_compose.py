"""What the target compose decides without an engine: the file for compose, what it lacks, rules of packets."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from minikafka.chaos import compose, machine
from minikafka.chaos.compose import DATA, ComposeTarget
from minikafka.chaos.machine import Filter, PacketRules
from minikafka.chaos.reading import find, read
from minikafka.chaos.scenario import Hit, Strike
from minikafka.chaos.target import lacks
from minikafka.errors import WorldError
from minikafka.faults import CLIENT_END
from minikafka.types import Address


@pytest.fixture
def target(tmp_path: Path) -> ComposeTarget:
    made = ComposeTarget(read(find("zombie-leader")), tmp_path)
    for node, container in made._containers.items():
        made._addresses[node] = Address("127.0.0.1", 10_000 + node)
        container.address, container.gateway = f"172.30.0.{node + 1}", "172.30.0.1"
    return made


def hit(what: str, *links: tuple[int, int], number: int = 1, share: float = 0.0, clients: bool = False) -> Hit:
    strike = Strike(number=number, at_s=0.0, what=what, whom="n1", share=share, clients=clients)
    return Hit(strike=strike, nodes=(1,), links=links)


def test_the_file_for_compose_confines_and_names(target: ComposeTarget):
    """As docker-compose.yml: no rights, a read-only root, ports on loopback only, a volume that `close` removes."""
    told = json.loads(json.dumps(target._services()))
    assert list(told["services"]) == ["n1", "n2", "n3"]
    assert list(told["volumes"]) == ["n1-data", "n2-data", "n3-data"]
    for name, service in told["services"].items():
        assert (service["read_only"], service["cap_drop"], service["restart"]) == (True, ["ALL"], "no")
        assert service["ports"][0].startswith("127.0.0.1:")
        assert service["volumes"] == [f"{name}-data:{DATA}"]
        assert "broker.session.timeout.ms=2000" in service["command"]
    voters = [word for word in told["services"]["n2"]["command"] if word.startswith("controller.quorum.voters=")]
    assert voters == ["controller.quorum.voters=1@n1:9093,2@n2:9093,3@n3:9093"]


def test_it_says_what_containers_cannot(monkeypatch: pytest.MonkeyPatch):
    """Issue 7, Build 2: exit 2, naming the fault that the target lacks; and why it cannot be used at all."""
    monkeypatch.setattr("minikafka.chaos.compose.why_not", lambda: None)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (told,) = lacks("compose", read(find("power-loss-all")))
    assert told.startswith("compose cannot make power-loss: ")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (told,) = lacks("compose", read(find("one-way-cut")))
    assert told.startswith("compose cannot make cut: only root")
    assert lacks("compose", read(find("zombie-leader"))) == ()


def test_a_fault_that_it_lacks_ends_with_exit_code_2(tmp_path: Path):
    """The command line, before anything is started, and with an engine that answers everything."""
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\nexit 0\n")
    client.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-m", "minikafka", "chaos", "run", "power-loss-all", "--target", "compose"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "power-loss-all: compose cannot make power-loss: " in done.stderr


def test_an_engine_must_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A sentence says which question had no answer, and where to read on."""
    client = tmp_path / "docker"
    client.write_text("#!/bin/sh\nexit 1\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "`docker compose version` fails" in (compose.why_not.__wrapped__() or "")
    client.unlink()
    assert compose.why_not.__wrapped__() == "not installed: docker (package docker.io)"


async def test_a_command_of_the_engine_is_waited_for_after_ctrl_c(monkeypatch: pytest.MonkeyPatch):
    """Else `compose down` could run beside the `compose up` that was interrupted, and leave its containers."""
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def run(*_: object, **__: object) -> str:
        begun.set()
        go_on.wait(120)
        ended.set()
        return ""

    monkeypatch.setattr(compose, "run", run)
    asking = asyncio.ensure_future(compose.docker("compose", "up"))
    await asyncio.to_thread(begun.wait, 120)
    asking.cancel()
    await asyncio.sleep(0.05)
    assert not asking.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert ended.is_set()


@pytest.mark.parametrize("process", [18290, 0, 18291], ids=["runs", "ended", "restarted"])
async def test_a_container_that_ends_while_packets_are_ruled_is_no_error(
    target: ComposeTarget, monkeypatch: pytest.MonkeyPatch, process: int
):
    """Stop n3, and a loss elsewhere a moment later: `docker wait` had not returned, and nsenter found no process."""
    asked: list[tuple[str, ...]] = []

    def run(*command: str, **_: object) -> str:
        asked.append(command)
        if command[0] == "nsenter":
            raise WorldError("nsenter: cannot open /proc/18290/ns/net: No such file or directory")
        return json.dumps([{"State": {"Pid": process}}])

    for module in (compose, machine):
        monkeypatch.setattr(module, "run", run)
    container = target._containers[3]
    container.rules = PacketRules(("nsenter", "--target=18290", "--net"))
    container._waiting = await asyncio.create_subprocess_exec("sleep", "60", start_new_session=True)
    try:
        target._hits = {1: hit("loss", (1, 3), share=0.5)}
        if process == 18290:
            with pytest.raises(WorldError, match="nsenter"):
                await target._set_links()
        else:
            await target._set_links()
    finally:
        container._waiting.kill()
        await container._waiting.wait()
    assert [command[0] for command in asked] == ["nsenter", "docker"]


def test_packets_are_ruled_where_they_arrive_or_leave_for_a_client(target: ComposeTarget):
    """Between brokers at the receiver; a client has no namespace of ours, so what is sent to it is stopped before."""
    target._hits = {
        1: hit("cut", (1, 2), number=1),
        2: hit("loss", (1, 2), (CLIENT_END, 1), (1, CLIENT_END), number=2, share=0.5),
    }
    assert target._rules(2) == ([("172.30.0.2", Filter(drops=True)), ("172.30.0.2", Filter(loses=0.5))], [])
    assert target._rules(1) == ([("172.30.0.1", Filter(loses=0.5))], [("172.30.0.1", Filter(loses=0.5))])
    assert target._rules(3) == ([], [])


def test_who_is_isolated_from_clients_too_is_disconnected(target: ComposeTarget):
    """`docker network disconnect`: rules of packets have nothing to do with it."""
    target._hits = {1: hit("isolate", (1, 2), (2, 1), (1, CLIENT_END), (CLIENT_END, 1), clients=True)}
    assert [target._rules(node) for node in target.nodes] == [([], [])] * 3
