"""The target ``compose``: a container for each broker, in whatever Docker engine ``docker`` here talks to.

Containers are killed, stopped, paused by the engine. Packets are dropped, lost and held back by rules in a container's
own network namespace, which takes root on the engine's machine. A broker that is isolated from its clients too is
disconnected from its network: it loses its address, and its name no longer resolves.

Rules for this file:

1. Everything made bears the name of a compose project of this run; ``close`` takes it down with its volumes.
2. A container has another process and may have another address after each start: packet rules are set again then.
3. Whether there is an engine is known in seconds; a command of ``docker`` that fails is an error with its output.
"""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

import aiohttp

import minikafka
from minikafka.chaos.machine import RULES_NEED, PacketRules, Rule, filter_of, forbidden, missing, run
from minikafka.chaos.scenario import Hit, Scenario
from minikafka.chaos.target import NO_MESSAGES, Fleet
from minikafka.errors import WorldError
from minikafka.faults import CLIENT_END, CUT, DELAY, ISOLATE, KILL, LINK_FAULTS, LOSS, MESSAGES, PAUSE, STOP, End
from minikafka.hosting.cluster_files import LOOPBACK, Ports, new_cluster_id
from minikafka.hosting.processes import READY_TIMEOUT_S, BrokerDied, stop_all
from minikafka.types import Address, NodeId

ENGINE_ASK_S: Final = 20.0
WORK_S: Final = 300.0
"""What builds and starts may have to fetch, unpack and install."""

IMAGE_VARIABLE: Final = "MINIKAFKA_IMAGE"
SOURCES: Final = Path(minikafka.__file__).parents[1]


@cache
def why_not() -> str | None:
    """Why no containers can be run here, as a sentence; None: an engine with compose answers. Asked once."""
    if (absent := missing({"docker": "docker.io"})) is not None:
        return absent
    for question in (("docker", "compose", "version"), ("docker", "info")):
        try:
            run(*question, timeout_s=ENGINE_ASK_S)
        except WorldError:
            return (
                f"`{' '.join(question)}` fails: an engine with compose must answer (docs/chaos.md says how to get one)"
            )
    return None


async def docker(*arguments: str, data: str = "", timeout_s: float = WORK_S) -> str:
    """What the docker client printed. WorldError.

    It has ended when this ends, after a cancellation too: what is taken down next is not put up beside that.
    """
    asked = asyncio.ensure_future(asyncio.to_thread(run, "docker", *arguments, data=data, timeout_s=timeout_s))
    try:
        return await asyncio.shield(asked)
    finally:
        if not asked.done():
            await asyncio.gather(asked, return_exceptions=True)


async def inspect(container: str) -> dict[str, Any]:
    """What the engine knows of a container. WorldError when there is none."""
    found: list[dict[str, Any]] = json.loads(await docker("container", "inspect", container))
    return found[0]


def image_name() -> str:
    """What containers run: MINIKAFKA_IMAGE, else what docker-compose.yml calls it."""
    return os.environ.get(IMAGE_VARIABLE) or f"minikafka:{minikafka.__version__}"


async def need_image(image: str) -> None:
    """Build the image of these sources if the engine has none of that name. WorldError when there are no sources."""
    if (await docker("image", "ls", "--quiet", image)).strip():
        return
    if not (SOURCES / "Dockerfile").exists():
        raise WorldError(f"the engine has no image {image}: build it with `docker build -t {image} .` in the sources")
    await docker("build", "--tag", image, str(SOURCES))


MAKES: Final = frozenset({KILL, STOP, PAUSE, ISOLATE, CUT, DELAY, LOSS})
DATA: Final = "/var/lib/minikafka"
JOURNAL: Final = "journal.jsonl"
BROKERS_PORT: Final = 19092
QUORUM_PORT: Final = 9093
CLIENTS_PORT: Final = 9092
STOP_S: Final = 25
ASK_S: Final = 1.0
LOOK_S: Final = 0.1


class Container:
    """One broker; the engine's own ``docker wait`` tells when it has ended."""

    def __init__(self, node: NodeId, project: str) -> None:
        self.node = node
        self.name = f"{project}-n{node}"
        self.address = ""
        """In the brokers' network; empty while it is disconnected."""
        self.gateway = ""
        """Whence clients of published ports come."""
        self.rules: PacketRules | None = None
        self._network = f"{project}_default"
        self._waiting: Process | None = None

    @property
    def is_running(self) -> bool:
        return self._waiting is not None and self._waiting.returncode is None

    async def watch(self) -> None:
        """It runs: wait for its end, and look up its address and process."""
        self._waiting = await asyncio.create_subprocess_exec(
            "docker", "wait", self.name, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True
        )
        await self.look()

    async def look(self) -> None:
        """Its address and process as they are now; no rule of packets holds in a new one."""
        container = await inspect(self.name)
        network = container["NetworkSettings"]["Networks"].get(self._network, {})
        self.address, self.gateway = network.get("IPAddress", ""), network.get("Gateway", "") or self.gateway
        prefix = _into(container)
        if self.rules is None or self.rules.prefix != prefix:
            self._forget_rules()
            self.rules = PacketRules(prefix)

    async def rule(self, incoming: Sequence[Rule], outgoing: Sequence[Rule]) -> None:
        """What becomes of packets from and to these addresses, if it runs. WorldError.

        It may end meanwhile, by another fault that is just being made: then no packet arrives or leaves.
        """
        if not self.is_running or (rules := self.rules) is None:
            return
        try:
            await asyncio.to_thread(rules.set, incoming, outgoing)
        except WorldError:
            await asyncio.sleep(LOOK_S)  # the engine learns of an end a little later
            if rules.prefix == _into(await inspect(self.name)):
                raise

    def _forget_rules(self) -> None:
        if self.rules is not None:
            self.rules.close()
            self.rules = None

    async def start(self) -> None:
        await docker("start", self.name)
        await self.watch()

    async def kill9(self) -> None:
        """SIGKILL to all its processes; nothing happens when none runs. WorldError if the engine refuses."""
        if self.is_running:
            await self._unless_ended("kill")
        await self._ended()

    async def terminate(self) -> int:
        """A controlled shutdown; after STOP_S SIGKILL."""
        if self.is_running:
            await docker("stop", "--time", str(STOP_S), self.name)
        await self._ended()
        return 0

    async def urge(self) -> None:
        """SIGTERM once more: leave now."""
        with suppress(WorldError):  # it has ended meanwhile
            await docker("kill", "--signal", "TERM", self.name)

    async def _ended(self) -> None:
        if self._waiting is not None:
            await self._waiting.wait()
        self._forget_rules()

    async def _unless_ended(self, verb: str) -> None:
        """Let the engine do it. That the container has ended meanwhile is no error."""
        try:
            await docker(verb, self.name)
        except WorldError:
            if (await inspect(self.name))["State"]["Running"]:
                raise

    async def freeze(self) -> None:
        if self.is_running:
            await self._unless_ended("pause")

    async def thaw(self) -> None:
        if self.is_running and (await inspect(self.name))["State"]["Paused"]:
            await docker("unpause", self.name)

    async def disconnect(self) -> None:
        """Take its network away."""
        await docker("network", "disconnect", self._network, self.name)
        self.address = ""

    async def connect(self) -> None:
        """Give it its network again, and its name there."""
        await docker("network", "connect", "--alias", f"n{self.node}", self._network, self.name)
        if self.is_running:
            await self.look()

    def obituary(self) -> str:
        return f"broker {self.node} ended; its log: docker logs {self.name}"

    def close(self) -> None:
        """Wait for it no longer."""
        self._forget_rules()
        if self._waiting is not None and self._waiting.returncode is None:
            self._waiting.kill()


class ComposeTarget:
    """See :class:`minikafka.chaos.target.Target`."""

    name: ClassVar[str] = "compose"

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._scenario = scenario
        self._folder = folder.absolute()
        self._project = f"minikafka-chaos-{os.getpid()}"
        self._file = self._folder / "compose.json"
        self._ports = Ports()
        nodes = range(1, scenario.cluster.brokers + 1)
        self._addresses: dict[NodeId, Address] = {}
        self._containers = {node: Container(node, self._project) for node in nodes}
        self._fleet = Fleet(self._containers, self._answers)
        self._hits: dict[int, Hit] = {}
        self._ruling = asyncio.Lock()
        self._http: aiohttp.ClientSession | None = None

    @classmethod
    def lacks(cls, what: str) -> str | None:
        """What the engine, and rules of packets for root, can do."""
        if not what:
            return why_not()
        if what == MESSAGES:
            return NO_MESSAGES
        if what not in MAKES:
            return "the engine's containers share the disks, the power and the calendar of their machine"
        if what in LINK_FAULTS:
            return forbidden("rule packets of the engine's containers") or missing(RULES_NEED)
        return None

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(self._containers)

    kafka_settings = None

    @property
    def client_settings(self) -> Mapping[str, str]:
        return {"bootstrap_servers": ",".join(map(str, self._addresses.values()))}

    def addresses(self) -> Mapping[NodeId, Address]:
        return {node: address for node, address in self._addresses.items() if self._containers[node].is_running}

    def died(self) -> Mapping[NodeId, str]:
        return {node: each.obituary() for node, each in self._containers.items() if self._fleet.is_missed(node)}

    def _kept(self, node: NodeId) -> Path:
        return self._folder / f"broker-{node}"

    # ---- a life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await need_image(image_name())
        self._addresses = {node: Address(LOOPBACK, self._ports.take()) for node in self.nodes}
        self._file.write_text(json.dumps(self._services(), indent=1), encoding="utf-8")
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_S))
        await self._compose("up", "--detach")
        for container in self._containers.values():
            await container.watch()
        for node, container in self._containers.items():
            await self._until_ready(node, container)

    async def _until_ready(self, node: NodeId, container: Container) -> None:
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while not await self._asked(node, "/readyz"):
                    if not container.is_running:
                        raise BrokerDied(await self._last_words(container))
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise WorldError(f"broker {node} is not ready after {READY_TIMEOUT_S:.0f} s") from None

    @staticmethod
    async def _last_words(container: Container) -> str:
        said = (await docker("logs", "--tail", "1", container.name)).strip()
        return f"broker {container.node} ended, saying: {said}"

    def _services(self) -> dict[str, Any]:
        """The file for compose: as docker-compose.yml has it, but for ports, and no volume that outlives the run."""
        cluster_id = new_cluster_id()
        voters = ",".join(f"{node}@n{node}:{QUORUM_PORT}" for node in self.nodes)
        services = {}
        for node, address in self._addresses.items():
            settings = {
                "cluster.id": cluster_id,
                "node.id": str(node),
                "process.roles": "broker,controller",
                "controller.quorum.voters": voters,
                "listeners": f"PLAINTEXT://:{BROKERS_PORT},CONTROLLER://:{QUORUM_PORT},HOST://:{CLIENTS_PORT}",
                "advertised.listeners": f"PLAINTEXT://n{node}:{BROKERS_PORT},HOST://{address}",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,HOST:PLAINTEXT",
                "inter.broker.listener.name": "PLAINTEXT",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": DATA,
                "mk.insecure": "true",
                "mk.journal.path": f"{DATA}/{JOURNAL}",
                **self._scenario.cluster.settings,
            }
            given = [word for name, value in settings.items() for word in ("--config", f"{name}={value}")]
            services[f"n{node}"] = {
                "image": image_name(),
                "container_name": self._containers[node].name,
                "hostname": f"n{node}",
                "init": True,
                "restart": "no",
                "read_only": True,
                "cap_drop": ["ALL"],
                "security_opt": ["no-new-privileges:true"],
                "healthcheck": {"disable": True},
                "command": ["minikafka", "serve", "/etc/minikafka/broker.properties", *given],
                "ports": [f"{address}:{CLIENTS_PORT}"],
                "volumes": [f"n{node}-data:{DATA}"],
            }
        return {"services": services, "volumes": {f"n{node}-data": {} for node in self.nodes}}

    async def _compose(self, *arguments: str) -> str:
        return await docker("compose", "--project-name", self._project, "--file", str(self._file), *arguments)

    async def stop(self) -> Mapping[NodeId, Path]:
        await stop_all(self._containers.values())
        for node, container in self._containers.items():
            await docker("cp", f"{container.name}:{DATA}/.", str(self._kept(node)))
        return {node: self._kept(node) for node in self.nodes}

    async def close(self) -> None:
        self._hits.clear()
        for container in self._containers.values():
            container.close()
        if self._http is not None:
            await self._http.close()
        if self._file.exists():
            await self._compose("down", "--volumes", "--timeout", "0")
        self._ports.release()

    async def _asked(self, node: NodeId, path: str) -> bool:
        if self._http is None:
            return False
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with self._http.get(f"http://{self._addresses[node]}{path}") as response:
                return response.status == 200
        return False

    async def _answers(self, node: NodeId) -> bool:
        """Is it alive? If clients are kept away from it nobody can tell, and its process must do."""
        return await self._asked(node, "/healthz") or any(
            CLIENT_END in link and node in link for hit in self._hits.values() for link in hit.links
        )

    # ---- faults ------------------------------------------------------------------------------------------------------

    async def begin(self, hit: Hit) -> None:
        self._hits[hit.strike.number] = hit
        await (self._set_links() if hit.links else self._fleet.begin(hit))

    async def end(self, hit: Hit) -> None:
        if self._hits.pop(hit.strike.number, None) is None:
            return
        if not hit.links:
            await self._fleet.end(hit)
        if hit.what != PAUSE:
            await self._set_links()

    async def heal(self) -> None:
        self._hits.clear()
        await self._fleet.heal()
        await self._set_links()

    async def _set_links(self) -> None:
        """Networks and rules of packets as the faults in force have them."""
        async with self._ruling:
            alone = {node for hit in self._hits.values() if _disconnects(hit) for node in hit.nodes}
            for node, container in self._containers.items():
                if node in alone and container.address:
                    await container.disconnect()
                elif node not in alone and not container.address:
                    await container.connect()
            for node, container in self._containers.items():
                await container.rule(*self._rules(node))

    def _rules(self, node: NodeId) -> tuple[list[Rule], list[Rule]]:
        """(incoming, outgoing). A client has no namespace of ours: what is sent to it is stopped where it leaves."""
        incoming: list[Rule] = []
        outgoing: list[Rule] = []
        for hit in self._hits.values():
            if _disconnects(hit):
                continue
            for source, target in hit.links:
                if target == node and (address := self._address_of(source, node)):
                    incoming.append((address, filter_of(hit)))
                elif source == node and target == CLIENT_END:
                    outgoing.append((self._containers[node].gateway, filter_of(hit)))
        return list(dict.fromkeys(incoming)), list(dict.fromkeys(outgoing))

    def _address_of(self, end: End, seen_by: NodeId) -> str:
        return self._containers[seen_by].gateway if end == CLIENT_END else self._containers[end].address


def _into(container: Mapping[str, Any]) -> tuple[str, ...]:
    """What runs a command in the network namespace of a container that was inspected."""
    return ("nsenter", f"--target={container['State']['Pid']}", "--net")


def _disconnects(hit: Hit) -> bool:
    return hit.what == ISOLATE and hit.strike.clients
