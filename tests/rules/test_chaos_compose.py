"""What the target compose decides without an engine: the file for compose, what it lacks, rules of packets."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from minikafka.chaos import compose, machine
from minikafka.chaos.compose import DATA, STOP_S, ComposeTarget, Container
from minikafka.chaos.machine import Filter, PacketRules
from minikafka.chaos.reading import find, read
from minikafka.chaos.scenario import Hit, Strike
from minikafka.chaos.target import lacks
from minikafka.config import parse_broker
from minikafka.errors import WorldError
from minikafka.faults import CLIENT_END
from minikafka.hosting.processes import BrokerDied
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
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["ports"][0].startswith("127.0.0.1:")
        assert service["volumes"] == [f"{name}-data:{DATA}"]
        assert "broker.session.timeout.ms=2000" in service["command"]
    voters = [word for word in told["services"]["n2"]["command"] if word.startswith("controller.quorum.voters=")]
    assert voters == ["controller.quorum.voters=1@n1:9093,2@n2:9093,3@n3:9093"]


def test_settings_of_containers_are_those_of_brokers_that_clients_can_reach(target: ComposeTarget):
    """Each publishes the port of its listener for clients, which it advertises at that address; brokers use names."""
    for node, service in zip(target.nodes, target._services()["services"].values(), strict=True):
        settings = dict(word.split("=", 1) for word in service["command"][3:] if word != "--config")
        config = parse_broker(settings).config
        listeners = {name: address.port for name, address in config.all_listeners}
        assert service["ports"] == [f"{config.all_advertised['HOST']}:{listeners['HOST']}"]
        assert config.advertised == Address(service["hostname"], config.listener.port)
        assert config.voters[node] == Address(service["hostname"], listeners["CONTROLLER"])
        assert [each.name for each in config.client_listeners] == ["PLAINTEXT", "HOST"]
        assert (config.node_id, service["container_name"]) == (node, target._containers[node].name)
        assert config.log_dirs == DATA
        assert config.journal_path.startswith(f"{DATA}/"), "stop() copies this folder"


async def test_broker_that_ends_as_it_starts_is_reported_with_its_last_words(
    target: ComposeTarget, monkeypatch: pytest.MonkeyPatch
):
    """It will never be ready: the run need not wait for that."""

    async def logs(*words: str, **_: object) -> str:
        assert words == ("logs", "--tail", "1", target._containers[2].name)
        return "no space left on device\n"

    monkeypatch.setattr(compose, "docker", logs)
    with pytest.raises(BrokerDied, match="broker 2 ended, saying: no space left on device"):
        async with asyncio.timeout(10):
            await target._until_ready(2, target._containers[2])


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
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "")
    (told,) = lacks("compose", read(find("one-way-cut")))
    assert told.startswith("compose cannot make cut: not installed: ")


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
    target._hits = {1: hit("isolate", (1, 2), (2, 1))}
    drops = Filter(drops=True)
    assert [target._rules(node)[0] for node in target.nodes] == [[("172.30.0.3", drops)], [("172.30.0.2", drops)], []]


class Waiting:
    """Stands for `docker wait`, which ends with its container."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._over = asyncio.Event()

    async def wait(self) -> None:
        await self._over.wait()

    def kill(self) -> None:
        self.returncode = 0
        self._over.set()


class Engine:
    """Containers as an engine knows them. Each start gives another process and another address."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.waiting: dict[str, Waiting] = {}
        self.paused: set[str] = set()
        self.addresses: dict[str, str] = {}
        self.processes: dict[str, int] = {}
        self.rules: list[tuple[tuple[str, ...], list[Any]]] = []
        """Prefix and incoming rules of each time that packets were ruled."""
        self.closed: list[tuple[str, ...]] = []
        engine = self

        class Rules:
            def __init__(self, prefix: tuple[str, ...]) -> None:
                self.prefix = prefix

            def set(self, incoming: list[Any], _outgoing: list[Any]) -> None:
                engine.rules.append((self.prefix, incoming))

            def close(self) -> None:
                engine.closed.append(self.prefix)

        async def wait(*command: str, **_: object) -> Waiting:
            self.waiting[command[-1]] = Waiting()
            return self.waiting[command[-1]]

        monkeypatch.setattr(compose, "docker", self._docker)
        monkeypatch.setattr(compose, "PacketRules", Rules)
        monkeypatch.setattr(asyncio, "create_subprocess_exec", wait)

    def end(self, name: str, *, is_noticed: bool = True) -> None:
        """The container ends, for whatever reason; `docker wait` returns at once, or not yet."""
        self.processes[name] = 0
        self.paused.discard(name)
        if is_noticed:
            self.waiting[name].kill()

    def said(self, verb: str) -> list[tuple[str, ...]]:
        """The commands that begin so, without what names the container."""
        return [words[1:-1] for words in self.asked if words[0] == verb]

    async def _docker(self, *words: str, **_: object) -> str:
        self.asked.append(words)
        name = words[-1]
        runs = bool(self.processes.get(name))
        if words[0] == "container":
            network = {"IPAddress": self.addresses.get(name, ""), "Gateway": "172.30.1.254"}
            networks = {f"{name.rpartition('-')[0]}_default": network} if name in self.addresses else {}
            state = {"Pid": self.processes[name], "Running": runs, "Paused": name in self.paused}
            return json.dumps([{"State": state, "NetworkSettings": {"Networks": networks}}])
        if words[0] in {"kill", "pause"} and not runs:
            raise WorldError(f"container {name} is not running")
        if words[0] == "start":
            number = len(self.said("start"))
            self.processes[name], self.addresses[name] = 100 + number, f"172.30.1.{number}"
        elif words[0] in {"kill", "stop"} and runs:
            self.end(name)
        elif words[0] == "pause":
            self.paused.add(name)
        elif words[0] == "unpause":
            self.paused.remove(name)
        elif words[:2] == ("network", "disconnect"):
            del self.addresses[name]
        elif words[:2] == ("network", "connect"):
            self.addresses[name] = "172.30.1.99"
        return ""


async def test_container_that_starts_again_has_another_process_and_address(monkeypatch: pytest.MonkeyPatch):
    """Rules of packets hold in the namespace of one process only; what they hold back goes with it."""
    engine, container = Engine(monkeypatch), Container(1, "p")
    assert not container.is_running
    await container.start()
    assert (container.is_running, container.address, container.gateway) == (True, "172.30.1.1", "172.30.1.254")
    first = container.rules
    await container.look()
    assert container.rules is first
    assert engine.closed == []
    await container.kill9()
    assert (container.is_running, container.rules, len(engine.closed)) == (False, None, 1)
    await container.kill9()
    assert len(engine.said("kill")) == 1
    await container.start()
    assert (container.address, container.rules is first) == ("172.30.1.2", False)
    assert await container.terminate() == 0
    assert engine.said("stop") == [("--time", str(STOP_S))]
    await container.rule([("172.30.1.9", Filter(drops=True))], [])
    assert engine.rules == []
    await container.start()
    container.close()
    assert not container.is_running
    assert container.rules is None


async def test_container_that_ends_while_something_is_done_to_it_is_no_error(monkeypatch: pytest.MonkeyPatch):
    """Another fault may end it at any moment, before `docker wait` has returned."""
    engine, container = Engine(monkeypatch), Container(1, "p")
    await container.start()
    engine.end("p-n1", is_noticed=False)
    await container.freeze()
    await container.urge()
    assert engine.said("kill") == [("--signal", "TERM")]
    killing = asyncio.ensure_future(container.kill9())
    while len(engine.said("kill")) < 2:  # noqa: ASYNC110 - the turn in which the engine has refused
        await asyncio.sleep(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not killing.done(), "its files are still in use"
    engine.waiting["p-n1"].kill()
    await killing
    await container.freeze()
    await container.thaw()
    assert engine.said("unpause") == []


async def test_packets_are_ruled_in_the_process_that_runs(monkeypatch: pytest.MonkeyPatch):
    """One that has ended has no namespace; rules for the next one begin empty, and those of the last one are closed."""
    engine, container = Engine(monkeypatch), Container(1, "p")
    await container.start()
    first, packets = container.rules, [("172.30.1.9", Filter(drops=True))]
    assert first is not None
    engine.end("p-n1")
    await container.rule(packets, [])
    assert engine.rules == []
    await container.start()
    assert (container.rules is first, engine.closed) == (False, [first.prefix])
    await container.rule(packets, [])
    assert [prefix[1] for prefix, _ in engine.rules] == ["--target=102"]
    await container.disconnect()
    await container.look()
    assert (container.address, container.gateway) == ("", "172.30.1.254"), "its ports are still published there"


@pytest.mark.parametrize("verb", ["pause", "kill"])
async def test_container_that_the_engine_does_not_stop_is_an_error(monkeypatch: pytest.MonkeyPatch, verb: str):
    """A pause would be reported that is none, and the end of a container would be awaited that never comes."""
    engine, container = Engine(monkeypatch), Container(1, "p")
    await container.start()
    await container.thaw()
    assert engine.said("unpause") == []
    await container.freeze()
    await container.thaw()
    assert (engine.said("unpause"), engine.paused) == ([()], set())
    answer = compose.docker

    async def refuses(*words: str, **more: Any) -> str:
        if words[0] == verb:
            raise WorldError("permission denied")
        return await answer(*words, **more)

    monkeypatch.setattr(compose, "docker", refuses)
    with pytest.raises(WorldError, match="permission denied"):
        async with asyncio.timeout(30):
            await (container.freeze() if verb == "pause" else container.kill9())


async def test_isolated_broker_loses_its_network_once_and_gets_it_back_with_its_name(
    target: ComposeTarget, monkeypatch: pytest.MonkeyPatch
):
    """It has another address then, from which the others hear."""
    engine = Engine(monkeypatch)
    for container in target._containers.values():
        await container.start()
    isolated = hit("isolate", (1, 2), (2, 1), (1, CLIENT_END), (CLIENT_END, 1), clients=True)
    slow = hit("loss", (1, 2), number=2, share=0.5)
    await target.begin(isolated)
    await target.begin(slow)
    assert [words[0] for words in engine.said("network")] == ["disconnect"]
    assert target._containers[1].address == ""
    assert await target._answers(1), "nobody can ask it, and its process lives"
    assert not await target._answers(2)
    engine.rules.clear()
    await target.end(isolated)
    connect = engine.said("network")[-1]
    assert connect[:3] == ("connect", "--alias", "n1")
    assert target._containers[1].address == "172.30.1.99"
    by_process = {prefix[1]: incoming for prefix, incoming in engine.rules}
    assert by_process["--target=102"] == [("172.30.1.99", Filter(loses=0.5))]
    asked = len(engine.asked), len(engine.rules)
    await target.end(isolated)
    assert (len(engine.asked), len(engine.rules)) == asked, "it was ended already"
    engine.rules.clear()
    await target.heal()
    assert {str(incoming) for _, incoming in engine.rules} == {"[]"}


async def test_packets_are_ruled_again_when_a_broker_has_started_again(
    target: ComposeTarget, monkeypatch: pytest.MonkeyPatch
):
    """The link is still cut, and the process and the address are others; a pause changes neither."""
    engine = Engine(monkeypatch)
    for container in target._containers.values():
        await container.start()

    async def answers(*_: object) -> bool:
        return True

    monkeypatch.setattr(target, "_asked", answers)
    await target.begin(hit("cut", (2, 1), (1, 3), number=1))
    stop, pause = hit("stop", number=2), hit("pause", number=3)
    await target.begin(stop)
    assert target.addresses().keys() == {2, 3}
    assert target.died() == {}, "the fault stopped it"
    engine.rules.clear()
    await target.end(stop)
    by_process = {prefix[1]: incoming for prefix, incoming in engine.rules}
    assert by_process["--target=104"] == [("172.30.1.2", Filter(drops=True))]
    assert by_process["--target=103"] == [("172.30.1.4", Filter(drops=True))]
    assert target.addresses().keys() == {1, 2, 3}
    engine.rules.clear()
    await target.begin(pause)
    await target.end(pause)
    assert engine.rules == []
    await target.begin(pause)
    assert engine.paused == {target._containers[1].name}
    await target.heal()
    assert engine.paused == set()
    engine.end(target._containers[3].name)
    assert target.died().keys() == {3}


async def test_only_status_200_says_that_a_broker_is_ready(target: ComposeTarget):
    """/readyz of one that still starts has 503, and its port is published before anything listens there."""
    status = 503

    async def ready(_: web.Request) -> web.Response:
        return web.Response(status=status)

    application = web.Application()
    application.router.add_get("/readyz", ready)
    async with TestServer(application) as server, aiohttp.ClientSession() as target._http:
        assert not await target._asked(1, "/readyz")
        target._addresses[1] = Address("127.0.0.1", server.port)
        assert not await target._asked(1, "/readyz")
        status = 200
        assert await target._asked(1, "/readyz")


async def test_data_of_brokers_that_have_stopped_is_kept_and_nothing_of_the_run_is_left(
    target: ComposeTarget, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """The checks read each data directory after a clean end of its broker; containers go with their volumes."""
    engine = Engine(monkeypatch)
    for container in target._containers.values():
        await container.start()
    kept = await target.stop()
    assert kept == {node: tmp_path / f"broker-{node}" for node in (1, 2, 3)}
    ends = [words for words in engine.asked if words[0] in {"stop", "cp"}]
    assert [words[0] for words in ends] == ["stop"] * 3 + ["cp"] * 3
    assert ends[3:] == [("cp", f"{target._containers[node].name}:{DATA}/.", str(kept[node])) for node in (1, 2, 3)]
    await target.close()
    assert engine.said("compose") == [], "nothing was put up"
    target._file.touch()
    await target.close()
    assert engine.asked[-1][:3] == ("compose", "--project-name", target._project)
    assert engine.asked[-1][-4:] == ("down", "--volumes", "--timeout", "0")


def test_rules_for_a_broker_without_an_address_are_left_out(target: ComposeTarget):
    """It is disconnected; a rule without an address would concern all packets. Two faults may make the same one."""
    target._hits = {number: hit("cut", (1, 2), (3, 2), number=number) for number in (1, 2)}
    target._containers[1].address = ""
    assert target._rules(2) == ([("172.30.0.4", Filter(drops=True))], [])


async def test_image_is_built_if_the_engine_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Of these sources; an installed package has none, and says what to do. MINIKAFKA_IMAGE names another one."""
    asked: list[tuple[str, ...]] = []
    there = ["sha256:1\n", "", ""]

    async def docker(*words: str, **_: object) -> str:
        asked.append(words)
        return there.pop(0) if words[0] == "image" else ""

    monkeypatch.setattr(compose, "docker", docker)
    monkeypatch.setattr(compose, "SOURCES", tmp_path)
    (tmp_path / "Dockerfile").touch()
    await compose.need_image("one:1")
    await compose.need_image("one:1")
    assert [words[0] for words in asked] == ["image", "image", "build"]
    (tmp_path / "Dockerfile").unlink()
    with pytest.raises(WorldError, match=r"no image one:1: build it with `docker build -t one:1 \.`"):
        await compose.need_image("one:1")
    monkeypatch.setenv("MINIKAFKA_IMAGE", "other:2")
    assert compose.image_name() == "other:2"
    monkeypatch.delenv("MINIKAFKA_IMAGE")
    assert compose.image_name().startswith("minikafka:")
