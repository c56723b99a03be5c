"""The target ``processes``: brokers as processes of this machine, on loopback, without root.

Signals kill, stop and freeze. Links, disks and calendars are hurt through the brokers' testing doors (``/v1/faults``,
``/v1/machine``), which stand in front of the production code's network, files and clock. A power loss cannot be made:
what a killed process has written stays in the kernel's page cache.

Rules for this file: what is wanted of a broker is kept here, and sent to its process again when it is a new one; a
broker that is frozen or dead receives it later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Final

import aiohttp

from minikafka.chaos.scenario import Hit, Scenario
from minikafka.errors import WorldError
from minikafka.faults import (
    CLIENT,
    CLIENT_END,
    CLOCK_JUMP,
    CUT,
    DELAY,
    DISK_FULL,
    FSYNC_FAIL,
    ISOLATE,
    KILL,
    LOSS,
    MESSAGES,
    PAUSE,
    POWER_LOSS,
    SLOW_DISK,
    STOP,
    End,
)
from minikafka.hosting.processes import LAUNCHER, ProcessCluster
from minikafka.types import Address, NodeId

ASK_S: Final = 2.0
TELL_S: Final = 30.0
"""A broker that has just been started opens its doors within this, on the busiest machine seen."""

RETRY_S: Final = 0.05

JOURNAL: Final = "journal.jsonl"

Spec = dict[str, Any]


@dataclass(slots=True)
class Wanted:
    """What shall be wrong with one broker."""

    down: dict[int, None] = field(default_factory=dict)
    """Numbers of hits that keep it dead."""
    frozen: dict[int, None] = field(default_factory=dict)
    links: dict[tuple[int, int], Spec] = field(default_factory=dict)
    """(hit, place in it) -> a fault for /v1/faults."""
    full: dict[int, None] = field(default_factory=dict)
    delays_ms: dict[int, float] = field(default_factory=dict)
    failing: dict[int, None] = field(default_factory=dict)
    returning: int = 0
    """How often it is being put right just now: a broker that is still dead then is no surprise yet."""
    ahead_ms: int = 0
    told_links: dict[tuple[int, int], int] = field(default_factory=dict)
    """What this incarnation of its process knows: the fault's number there."""
    told_machine: Spec = field(default_factory=dict)
    unsure: bool = False
    """An answer was late or lost: it may have faults whose numbers nobody knows."""

    def machine(self) -> Spec:
        """For /v1/machine; empty: all is well."""
        state = {
            "disk_full": bool(self.full),
            "sync_delay_ms": int(max(self.delays_ms.values(), default=0)),
            "failing_syncs": len(self.failing),
            "calendar_ahead_ms": self.ahead_ms,
        }
        return {name: value for name, value in state.items() if value}


class ProcessTarget:
    """See :class:`minikafka.chaos.target.Target`."""

    name: ClassVar[str] = "processes"
    launcher: ClassVar[Sequence[str]] = LAUNCHER

    def __init__(self, scenario: Scenario, folder: Path, say: Callable[[str], object]) -> None:
        self._folder = folder
        self._say = say
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
        self._wanted = {node: Wanted() for node in self._cluster.brokers}
        self._telling = {node: asyncio.Lock() for node in self._cluster.brokers}
        self._http: aiohttp.ClientSession | None = None

    @classmethod
    def lacks(cls, what: str) -> str | None:
        if what == POWER_LOSS:
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

    def journals(self) -> tuple[Path, ...]:
        path = self._folder / JOURNAL
        return (path,) if path.exists() else ()

    def died(self) -> Mapping[NodeId, str]:
        return {
            node: broker.obituary()
            for node, broker in self._cluster.brokers.items()
            if not (broker.is_running or self._is_explained(node))
        }

    def _is_explained(self, node: NodeId) -> bool:
        """Return True if a fault ended it, or a disk that a fault has damaged."""
        wanted = self._wanted[node]
        return bool(wanted.down or wanted.full or wanted.failing or wanted.returning or self._telling[node].locked())

    async def start(self) -> None:
        self._http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ASK_S))
        await self._cluster.start()

    # ---- faults ------------------------------------------------------------------------------------------------------

    async def begin(self, hit: Hit) -> None:
        self._note(hit)
        await asyncio.gather(*(self._carry_out(hit, node) for node in self._touched(hit)))

    async def _carry_out(self, hit: Hit, node: NodeId) -> None:
        if hit.what == KILL:
            await self._cluster.kill9(node)
        elif hit.what == STOP:
            await self._cluster.terminate(node)
        elif hit.what == PAUSE:
            self._cluster.sigstop(node)
        else:
            await self._tell(node)

    async def end(self, hit: Hit) -> None:
        self._forget(hit)
        await self._put_all_right(self._touched(hit))

    async def heal(self) -> None:
        for wanted in self._wanted.values():
            for of_hits in (wanted.down, wanted.frozen, wanted.links, wanted.full, wanted.delays_ms, wanted.failing):
                of_hits.clear()
        await self._put_all_right(self._wanted)

    async def _put_all_right(self, nodes: Iterable[NodeId]) -> None:
        """Hide the time between the end of a fault and the beginning of what ends it (see :meth:`died`)."""
        hit = tuple(nodes)
        for node in hit:
            self._wanted[node].returning += 1
        try:
            await asyncio.gather(*(self._put_right(node) for node in hit))
        finally:
            for node in hit:
                self._wanted[node].returning -= 1

    async def _put_right(self, node: NodeId) -> None:
        """Bring the broker to its wanted state: thawed, started, and with the faults that still hold."""
        wanted, broker = self._wanted[node], self._cluster.brokers[node]
        if not wanted.frozen:
            self._cluster.sigcont(node)
        if wanted.down:
            return
        async with self._telling[node]:
            if not broker.is_running:
                wanted.told_links.clear()
                wanted.told_machine.clear()
                wanted.failing.clear()  # it has had its failed sync
                await broker.start()
        await self._tell(node)

    def _touched(self, hit: Hit) -> tuple[NodeId, ...]:
        """Brokers for which the hit changes something."""
        if not hit.links:
            return hit.nodes
        return tuple(dict.fromkeys(_where(link) for link in hit.links))

    def _note(self, hit: Hit) -> None:
        number, strike = hit.strike.number, hit.strike
        for place, link in enumerate(hit.links):
            self._wanted[_where(link)].links[number, place] = _spec(hit, link, strike.seed + place)
        for node in hit.nodes:
            wanted = self._wanted[node]
            if hit.what in {KILL, STOP}:
                wanted.down[number] = None
            elif hit.what == PAUSE:
                wanted.frozen[number] = None
            elif hit.what == DISK_FULL:
                wanted.full[number] = None
            elif hit.what == SLOW_DISK:
                wanted.delays_ms[number] = strike.delay_s * 1000
            elif hit.what == FSYNC_FAIL:
                wanted.failing[number] = None
            elif hit.what == CLOCK_JUMP:
                wanted.ahead_ms += int(strike.by_s * 1000)

    def _forget(self, hit: Hit) -> None:
        number = hit.strike.number
        for place, link in enumerate(hit.links):
            self._wanted[_where(link)].links.pop((number, place), None)
        for node in hit.nodes:
            wanted = self._wanted[node]
            for of_hits in (wanted.down, wanted.frozen, wanted.full, wanted.failing):
                of_hits.pop(number, None)
            wanted.delays_ms.pop(number, None)

    # ---- doors -------------------------------------------------------------------------------------------------------

    async def _tell(self, node: NodeId) -> None:
        """Make the process's doors say what is wanted. WorldError when it does not listen in TELL_S."""
        wanted, broker = self._wanted[node], self._cluster.brokers[node]
        deadline = asyncio.get_running_loop().time() + TELL_S
        async with self._telling[node]:
            while broker.is_running and not wanted.frozen and not wanted.down and self._differs(wanted):
                try:
                    await self._tell_once(wanted, broker.files.address)
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    wanted.unsure = True
                    if asyncio.get_running_loop().time() > deadline:
                        why = str(error) or type(error).__name__
                        raise WorldError(f"broker {node} cannot receive its faults: {why}") from error
                    await asyncio.sleep(RETRY_S)

    @staticmethod
    def _differs(wanted: Wanted) -> bool:
        return wanted.links.keys() != wanted.told_links.keys() or wanted.machine() != wanted.told_machine

    async def _tell_once(self, wanted: Wanted, address: Address) -> None:
        if wanted.unsure:
            await self._ask("DELETE", address, "/v1/faults")
            wanted.told_links.clear()
            wanted.unsure = False
        for key in [each for each in wanted.told_links if each not in wanted.links]:
            await self._ask("DELETE", address, f"/v1/faults/{wanted.told_links[key]}")
            del wanted.told_links[key]
        for key, spec in list(wanted.links.items()):
            if key not in wanted.told_links:
                wanted.told_links[key] = (await self._ask("POST", address, "/v1/faults", spec))["id"]
        machine = wanted.machine()
        if machine != wanted.told_machine:
            await self._ask("PUT", address, "/v1/machine", machine)
            wanted.told_machine = machine

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


def _where(link: tuple[End, End]) -> NodeId:
    """The broker at which a link's fault is set: where its messages leave, or else arrive."""
    source, target = link
    return target if source == CLIENT_END else source


def _spec(hit: Hit, link: tuple[End, End], seed: int) -> Spec:
    """The fault as /v1/faults takes it: lost packets are silence, not broken connections. Each link draws by itself."""
    source, target = (CLIENT if end == CLIENT_END else str(end) for end in link)
    spec: Spec = {"kind": "drop", "link": f"{source}>{target}"}
    if hit.what == MESSAGES and hit.strike.messages is not None:
        given = asdict(replace(hit.strike.messages, link=spec["link"], seed=seed))
        spec = {name: value for name, value in given.items() if value}
    elif hit.what == DELAY:
        jitter_ms = hit.strike.jitter_s * 1000
        spec |= {"kind": "delay", "delay_ms": hit.strike.delay_s * 1000, "jitter_ms": jitter_ms, "seed": seed}
    elif hit.what == LOSS:
        spec |= {"probability": hit.strike.share, "seed": seed}
    elif hit.what not in {ISOLATE, CUT}:
        raise WorldError(f"{hit.what} is no fault of links")
    return spec
