"""The target ``processes``: brokers as processes of this machine, on loopback, without root.

Signals kill, stop and freeze. Links, disks and calendars are hurt through the brokers' testing doors (``/v1/faults``,
``/v1/machine``), which stand in front of the production code's network, files and clock. A power loss cannot be made:
what a killed process has written stays in the kernel's page cache.

Rules for this file: what is wanted of a broker follows from the faults in force, and is sent to its process again when
it is a new one; a broker that is frozen or dead receives it later.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import aiohttp

from minikafka import faults
from minikafka.chaos.scenario import Hit, Scenario
from minikafka.chaos.target import Fleet
from minikafka.errors import WorldError
from minikafka.faults import End
from minikafka.hosting.processes import LAUNCHER, ProcessCluster
from minikafka.types import Address, NodeId

ASK_S: Final = 2.0
APPLY_S: Final = 30.0
"""A broker that has just been started opens its doors within this, on the busiest machine seen."""

RETRY_S: Final = 0.05

JOURNAL: Final = "journal.jsonl"

Spec = dict[str, Any]


@dataclass(slots=True)
class AppliedFaults:
    """What one incarnation of a broker's process knows."""

    links: dict[tuple[int, int], int] = field(default_factory=dict)
    """(hit, place in it) -> the fault's number there."""
    machine: Spec = field(default_factory=dict)
    is_open: bool = False
    """It has answered once. While the first request loads the code of its doors, later ones can overtake it."""
    is_unsure: bool = False
    """An answer was late or lost: it may have faults whose numbers nobody knows."""


class ProcessTarget:
    """See :class:`minikafka.chaos.target.Target`."""

    name: ClassVar[str] = "processes"
    launcher: ClassVar[Sequence[str]] = LAUNCHER

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._cluster = ProcessCluster(
            scenario.cluster.brokers,
            data_dir=folder / "brokers",
            config={
                **scenario.cluster.settings,
                "mk.testing.endpoints.enable": "true",
                "mk.journal.path": str(folder.absolute() / JOURNAL),
            },
            launcher=self.launcher,
        )
        self._fleet = Fleet(self._cluster.brokers, self._answers, on_start=self._begins_again)
        self._hits: dict[int, Hit] = {}
        self._spent: set[tuple[int, NodeId]] = set()
        """Hits of FSYNC_FAIL, with the brokers that have had their failed sync."""
        self._ahead_ms: Counter[NodeId] = Counter()
        self._applied = {node: AppliedFaults() for node in self._cluster.brokers}
        self._applying = {node: asyncio.Lock() for node in self._cluster.brokers}
        self._http: aiohttp.ClientSession | None = None

    @classmethod
    def lacks(cls, what: str) -> str | None:
        if what == faults.POWER_LOSS:
            return "what a killed process wrote stays in the kernel's page cache; use --target simulator or netns"
        return None

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(self._cluster.brokers)

    kafka_settings = None

    @property
    def client_settings(self) -> Mapping[str, str]:
        return {"bootstrap_servers": self._cluster.bootstrap}

    def addresses(self) -> Mapping[NodeId, Address]:
        return self._cluster.addresses()

    def died(self) -> Mapping[NodeId, str]:
        return {
            node: broker.obituary()
            for node, broker in self._cluster.brokers.items()
            if self._fleet.is_missed(node) and not self._is_explained(node)
        }

    def _is_explained(self, node: NodeId) -> bool:
        """Return True if a disk that a fault has damaged ended it."""
        return bool(
            self._applying[node].locked()
            or self._struck(faults.DISK_FULL, node)
            or self._struck(faults.FSYNC_FAIL, node)
        )

    async def start(self) -> None:
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_S))
        await self._cluster.start()
        # Now and not under load: the first request takes a third of a second of each broker's one thread.
        await asyncio.gather(*map(self._open_in_advance, self._cluster.brokers))

    async def _open_in_advance(self, node: NodeId) -> None:
        with suppress(aiohttp.ClientError, TimeoutError, OSError):  # then its first fault opens it
            await self._open(node, self._cluster.brokers[node].files.address)

    async def _answers(self, node: NodeId) -> bool:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(*self._cluster.brokers[node].files.address)
            writer.close()
            return True
        return False

    # ---- faults ------------------------------------------------------------------------------------------------------

    async def begin(self, hit: Hit) -> None:
        self._hits[hit.strike.number] = hit
        if hit.what == faults.CLOCK_JUMP:
            self._ahead_ms.update(dict.fromkeys(hit.nodes, int(hit.strike.by_s * 1000)))
        if hit.what in {faults.KILL, faults.STOP, faults.PAUSE}:
            await self._fleet.begin(hit)
        else:
            await self._apply_to_all(_touched(hit))

    async def end(self, hit: Hit) -> None:
        self._hits.pop(hit.strike.number, None)
        nodes = _touched(hit)
        with self._fleet.returning(nodes):
            await self._fleet.end(replace(hit, nodes=nodes))
            await self._apply_to_all(nodes)

    async def heal(self) -> None:
        self._hits.clear()
        await self._fleet.heal()
        await self._apply_to_all(self._cluster.brokers)

    def _begins_again(self, node: NodeId) -> None:
        """A new process knows nothing of the faults in force, and its disk is well."""
        self._applied[node] = AppliedFaults()
        self._spent.update((hit.strike.number, node) for hit in self._struck(faults.FSYNC_FAIL, node))

    def _struck(self, what: str, node: NodeId) -> list[Hit]:
        """The hits of one kind on a broker that are in force."""
        return [
            hit
            for number, hit in self._hits.items()
            if hit.what == what and node in hit.nodes and (number, node) not in self._spent
        ]

    def _links(self, node: NodeId) -> dict[tuple[int, int], Spec]:
        """(hit, place in it) -> a fault for the broker's /v1/faults."""
        return {
            (number, place): _spec(hit, link, hit.strike.seed + place)
            for number, hit in self._hits.items()
            for place, link in enumerate(hit.links)
            if _where(link) == node
        }

    def _machine(self, node: NodeId) -> Spec:
        """For the broker's /v1/machine; empty: all is well."""
        delays_s = [hit.strike.delay_s for hit in self._struck(faults.SLOW_DISK, node)]
        state = {
            "disk_full": bool(self._struck(faults.DISK_FULL, node)),
            "sync_delay_ms": int(max(delays_s, default=0.0) * 1000),
            "failing_syncs": len(self._struck(faults.FSYNC_FAIL, node)),
            "calendar_ahead_ms": self._ahead_ms[node],
        }
        return {name: value for name, value in state.items() if value}

    # ---- doors -------------------------------------------------------------------------------------------------------

    async def _apply_to_all(self, nodes: Iterable[NodeId]) -> None:
        await asyncio.gather(*map(self._apply, nodes))

    async def _apply(self, node: NodeId) -> None:
        """Make the process's doors say what the faults in force want. WorldError if it does not listen in APPLY_S."""
        broker = self._cluster.brokers[node]
        deadline = asyncio.get_running_loop().time() + APPLY_S
        async with self._applying[node]:
            while broker.is_running and not self._fleet.is_held(node) and self._differs(node):
                try:
                    await self._apply_once(node, broker.files.address)
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    self._applied[node].is_unsure = True
                    if asyncio.get_running_loop().time() > deadline:
                        why = str(error) or type(error).__name__
                        raise WorldError(f"broker {node} cannot receive its faults: {why}") from error
                    await asyncio.sleep(RETRY_S)

    def _differs(self, node: NodeId) -> bool:
        applied = self._applied[node]
        return self._links(node).keys() != applied.links.keys() or self._machine(node) != applied.machine

    async def _apply_once(self, node: NodeId, address: Address) -> None:
        applied, links = self._applied[node], self._links(node)
        await self._open(node, address)
        if applied.is_unsure:
            await self._ask("DELETE", address, "/v1/faults")
            applied.links.clear()
            applied.is_unsure = False
        for key in [each for each in applied.links if each not in links]:
            await self._ask("DELETE", address, f"/v1/faults/{applied.links[key]}")
            del applied.links[key]
        for key, spec in links.items():
            if key not in applied.links:
                applied.links[key] = (await self._ask("POST", address, "/v1/faults", spec))["id"]
        machine = self._machine(node)
        if machine != applied.machine:
            await self._ask("PUT", address, "/v1/machine", machine)
            applied.machine = machine

    async def _open(self, node: NodeId, address: Address) -> None:
        applied = self._applied[node]
        if not applied.is_open:
            # A fault that is set by a request that was given up must not come after the request that heals it.
            await self._ask("GET", address, "/v1/faults")
            applied.is_open = True

    async def _ask(self, method: str, address: Address, path: str, document: Spec | None = None) -> Spec:
        if self._http is None:
            raise WorldError("the cluster is not started")
        async with self._http.request(method, f"http://{address}{path}", json=document) as response:
            answer: Spec = await response.json(content_type=None)
            if response.status == 503:
                raise aiohttp.ClientError("the broker is not yet open")
            if response.status >= 400 and not (method == "DELETE" and response.status == 404):
                raise WorldError(f"{method} {path}: {answer}")
            return answer

    # ---- the end -----------------------------------------------------------------------------------------------------

    async def stop(self) -> Mapping[NodeId, Path]:
        await self._cluster.stop()
        return {node: self._cluster.folder(node) for node in self._cluster.brokers}

    async def close(self) -> None:
        for broker in self._cluster.brokers.values():
            await broker.kill9()
        await self._cluster.stop()
        if self._http is not None:
            await self._http.close()


def _touched(hit: Hit) -> tuple[NodeId, ...]:
    """Brokers for which the hit changes something."""
    return tuple(dict.fromkeys(map(_where, hit.links))) or hit.nodes


def _where(link: tuple[End, End]) -> NodeId:
    """The broker at which a link's fault is set: where its messages leave, or else arrive."""
    source, target = link
    return target if source == faults.CLIENT_END else source


def _spec(hit: Hit, link: tuple[End, End], seed: int) -> Spec:
    """The fault as /v1/faults takes it: lost packets are silence, not broken connections. Each link draws by itself."""
    source, target = (faults.CLIENT if end == faults.CLIENT_END else str(end) for end in link)
    spec: Spec = {"kind": "drop", "link": f"{source}>{target}"}
    if hit.what == faults.MESSAGES and hit.strike.messages is not None:
        given = asdict(replace(hit.strike.messages, link=spec["link"], seed=seed))
        spec = {name: value for name, value in given.items() if value}
    elif hit.what == faults.DELAY:
        jitter_ms = hit.strike.jitter_s * 1000
        spec |= {"kind": "delay", "delay_ms": hit.strike.delay_s * 1000, "jitter_ms": jitter_ms, "seed": seed}
    elif hit.what == faults.LOSS:
        spec |= {"probability": hit.strike.share, "seed": seed}
    elif hit.what not in {faults.ISOLATE, faults.CUT}:
        raise WorldError(f"{hit.what} is no fault of links")
    return spec
