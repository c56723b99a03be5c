"""The target ``netns``: brokers as processes, each on a host of its own with a network and a disk that can really fail.

The brokers' hosts and one more for all clients hang on a bridge (``namespaces.py``). Cuts, losses and delays are rules
of the kernel where packets arrive; a disk is an ext4 file system in a file (``loop_disk.py``); syncs fail and take long
by ``strace`` (``syscalls.py``). While a cluster runs, this process's own sockets are made on the clients' host.

Rules for this file:

1. What holds is worked out from all faults in force, so that one that ends takes nothing of another one with it.
2. A power loss begins with the network: no promise leaves a host whose disk is about to forget it.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final

from minikafka.chaos import loop_disk, namespaces, syscalls
from minikafka.chaos.fleet import Fleet
from minikafka.chaos.loop_disk import LoopDisk, Mounts
from minikafka.chaos.namespaces import Lan, Passage
from minikafka.chaos.packet_rules import Filter, filter_of
from minikafka.chaos.scenario import Scenario
from minikafka.chaos.syscalls import Injection
from minikafka.chaos.target import NO_MESSAGES
from minikafka.chaos.timeline import Hit
from minikafka.faults import (
    CLIENT_END,
    CLOCK_JUMP,
    DISK_FAULTS,
    DISK_FULL,
    FSYNC_FAIL,
    KILL,
    LINK_FAULTS,
    MESSAGES,
    PAUSE,
    POWER_LOSS,
    SLOW_DISK,
    STOP,
    End,
)
from minikafka.hosting.cluster_files import ClusterFiles, lay_out, write
from minikafka.hosting.processes import READY_TIMEOUT_S, BrokerProcess, stop_all
from minikafka.hosting.secured import MECHANISM, PLAINTEXT, ClusterSecurity
from minikafka.hosting.tls_files import ADMIN, ClusterTls
from minikafka.types import Address, NodeId
from minikafka.world.clients import AdminClient

PORT: Final = 9092
CLIENTS_PORT: Final = 9093
"""Of the listener at which clients log in."""
CLIENTS: Final = "clients"
LOGS: Final = "disk/logs"
"""Below a broker's folder. Not the root of the disk: what ext4 keeps there is no partition."""
DISK_MIB: Final = 1024
"""A disk is a file with holes: it takes what was written."""

NEEDS_DISK: Final = frozenset({POWER_LOSS, DISK_FULL})
NEEDS_STRACE: Final = frozenset({FSYNC_FAIL, SLOW_DISK})


def host_of(end: End) -> str:
    """A broker's host, or that of all who are none."""
    return CLIENTS if end == CLIENT_END else f"n{end}"


class NetnsTarget:
    """See :class:`minikafka.chaos.target.Target`."""

    name: ClassVar[str] = "netns"

    def __init__(self, scenario: Scenario, folder: Path, say: Callable[[str], object]) -> None:
        self._scenario = scenario
        self._folder = folder.absolute()
        self._say = say
        self._nodes = tuple(range(1, scenario.cluster.brokers + 1))
        self._made = ExitStack()
        self._lan: Lan | None = None
        self._disks: dict[NodeId, LoopDisk] = {}
        self._files = ClusterFiles((), "")
        self._security = ClusterSecurity(PLAINTEXT, {}, lambda: ClusterTls(folder / "certs"))
        self._brokers: dict[NodeId, BrokerProcess] = {}
        self._fleet = Fleet({}, self._answers)
        self._hits: dict[int, Hit] = {}
        self._injected: dict[NodeId, Injection] = {}
        self._filtering = asyncio.Lock()

    @classmethod
    def lacks(cls, what: str) -> str | None:
        """Everything can be made but jumps of the calendar, if root has the tools."""
        if what == CLOCK_JUMP:
            return "its hosts share one calendar"
        if what == MESSAGES:
            return NO_MESSAGES
        if what in NEEDS_DISK:
            return loop_disk.why_not()
        if what in NEEDS_STRACE:
            return syscalls.why_not()
        return namespaces.why_not()

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return self._nodes

    @property
    def client_settings(self) -> Mapping[str, str]:
        return self._security.native(self._files.bootstrap, ADMIN)

    @property
    def kafka_settings(self) -> Mapping[str, Any] | None:
        if not self._security.uses_sasl:
            return None
        return self._security.aiokafka(self._files.clients_bootstrap, ADMIN, MECHANISM)

    def addresses(self) -> Mapping[NodeId, Address]:
        return {node: broker.files.address for node, broker in self._brokers.items() if broker.is_running}

    def died(self) -> Mapping[NodeId, str]:
        # A disk that is full or fails stops its broker.
        spoilt = {node for hit in self._hits.values() if hit.what in DISK_FAULTS for node in hit.nodes}
        missed = {node: each for node, each in self._brokers.items() if self._fleet.is_missed(node)}
        return {node: each.obituary() for node, each in missed.items() if node not in spoilt}

    def journals(self) -> tuple[Path, ...]:
        return tuple(self._folder / f"broker-{node}" / "journal.jsonl" for node in self._nodes)

    # ---- a life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        lan = self._lan = self._made.enter_context(Lan([*map(host_of, self._nodes), CLIENTS]))
        addresses = {node: Address(lan[host_of(node)].address, PORT) for node in self._nodes}
        protocol = self._scenario.cluster.security_protocol
        hosts = [each.host for each in addresses.values()]
        self._security = ClusterSecurity(protocol, {}, lambda: ClusterTls(self._folder / "certs", hosts))
        settings = {**self._security.broker_settings(self._scenario.cluster.settings), "mk.insecure": "true"}
        clients = {node: Address(each.host, CLIENTS_PORT) for node, each in addresses.items()}
        laid = lay_out(
            self._folder,
            addresses,
            config=settings,
            logs=LOGS,
            protocol=protocol,
            clients=clients if self._security.uses_sasl else None,
        )
        brokers = [
            replace(files, settings={**files.settings, "mk.journal.path": str(journal)})
            for files, journal in zip(laid.brokers, self.journals(), strict=True)
        ]
        self._files = replace(laid, brokers=tuple(brokers))
        write(self._files)
        mounted = await asyncio.to_thread(self._make_disks) if self._needs_disks else ()
        self._brokers = {
            files.node_id: BrokerProcess(files, (*lan[host_of(files.node_id)].namespace.prefix, *mounted))
            for files in self._files.brokers
        }
        self._fleet = Fleet(self._brokers, self._answers)
        self._made.enter_context(lan[CLIENTS].namespace.entered())
        for broker in self._brokers.values():
            await broker.start()
        for broker in self._brokers.values():
            await broker.wait_ready(READY_TIMEOUT_S)
        if self._security.uses_sasl:
            async with AdminClient(**self.client_settings) as admin:
                await self._security.add_users(admin)

    @property
    def _needs_disks(self) -> bool:
        return not NEEDS_DISK.isdisjoint(self._scenario.faults())

    def _make_disks(self) -> tuple[str, ...]:
        """One per broker; what a command needs to see them."""
        mounts = self._made.enter_context(Mounts())
        for files in self._files.brokers:
            disk = mounts.make(files.folder / "disk.img", files.folder / "disk", DISK_MIB)
            self._disks[files.node_id] = disk
            mounts.seen_from_here(Path(files.settings["log.dirs"])).mkdir()
            disk.sync()
        return mounts.prefix

    async def stop(self) -> Mapping[NodeId, Path]:
        await self._let_calls_be()
        await stop_all(self._brokers.values())
        folders = {files.node_id: Path(files.settings["log.dirs"]) for files in self._files.brokers}
        for node, disk in self._disks.items():
            # Its disk goes with this run; what stood on it is evidence.
            folders[node] = folders[node].parents[1] / "logs"
            await asyncio.to_thread(shutil.copytree, disk.here / "logs", folders[node], dirs_exist_ok=True)
        return folders

    async def close(self) -> None:
        await self._let_calls_be()
        await asyncio.gather(*(broker.kill9() for broker in self._brokers.values() if broker.is_running))
        self._hits.clear()
        self._made.close()

    async def _answers(self, node: NodeId) -> bool:
        """Does it accept a connection, of its own host: that no rule keeps away?"""
        if self._lan is None:
            return False
        host = self._lan[host_of(node)]
        with host.namespace.entered():
            caller = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        caller.settimeout(0)
        with caller, suppress(OSError):
            await asyncio.get_running_loop().sock_connect(caller, (host.address, PORT))
            return True
        return False

    # ---- faults ------------------------------------------------------------------------------------------------------

    async def begin(self, hit: Hit) -> None:
        number = hit.strike.number
        self._hits[number] = hit
        if hit.what in LINK_FAULTS:
            await self._set_filters()
        elif hit.what == PAUSE:
            await self._fleet.hold_still(hit.nodes, number)
        elif hit.what == KILL:
            await self._fleet.kill(hit.nodes, number)
        elif hit.what == STOP:
            await self._fleet.stop(hit.nodes, number)
        elif hit.what == POWER_LOSS:
            await self._lose_power(hit)
        elif hit.what == DISK_FULL:
            await asyncio.to_thread(self._fill_disks)
        else:
            await self._change_calls(hit.nodes, fails=hit.what == FSYNC_FAIL)

    async def end(self, hit: Hit) -> None:
        if self._hits.pop(hit.strike.number, None) is None:
            return
        with self._fleet.returning(hit.nodes):
            await self._put_right(hit)

    async def _put_right(self, hit: Hit) -> None:
        number = hit.strike.number
        if hit.what in LINK_FAULTS:
            await self._set_filters()
            return
        if hit.what == PAUSE:
            await self._fleet.let_go(hit.nodes, number)
            return
        if hit.what == POWER_LOSS:
            await self._give_power(hit)
        elif hit.what == DISK_FULL:
            await asyncio.to_thread(self._fill_disks)
        await self._fleet.let_up(hit.nodes, number)
        await self._change_calls(hit.nodes)

    async def heal(self) -> None:
        hits = list(self._hits.values())
        self._hits.clear()
        for hit in hits:
            await self._put_right(hit)
        await self._fleet.heal()

    @property
    def _dark(self) -> set[NodeId]:
        """Who has no power."""
        return {node for hit in self._hits.values() if hit.what == POWER_LOSS for node in hit.nodes}

    def _filters(self) -> Iterator[tuple[Passage, Filter]]:
        ends: tuple[End, ...] = (*self._nodes, CLIENT_END)
        for one in sorted(self._dark):
            for other in ends:
                yield Passage(host_of(one), host_of(other)), Filter(drops=True)
                yield Passage(host_of(other), host_of(one)), Filter(drops=True)
        for hit in self._hits.values():
            for source, target in hit.links:
                yield Passage(host_of(source), host_of(target)), filter_of(hit)

    async def _set_filters(self) -> None:
        async with self._filtering:
            if self._lan is not None:
                await asyncio.to_thread(self._lan.set_filters, list(dict.fromkeys(self._filters())))

    async def _lose_power(self, hit: Hit) -> None:
        await self._set_filters()
        for node in hit.nodes:
            self._disks[node].die()
        await self._fleet.kill(hit.nodes, hit.strike.number)

    async def _give_power(self, hit: Hit) -> None:
        for node in hit.nodes:
            if node not in self._dark:
                await asyncio.to_thread(self._disks[node].revive)
        await asyncio.to_thread(self._fill_disks)
        await self._set_filters()

    def _fill_disks(self) -> None:
        full = {node for hit in self._hits.values() if hit.what == DISK_FULL for node in hit.nodes}
        for node, disk in self._disks.items():
            if node in self._dark:
                continue  # it can neither be written to nor be read; when its power is back this is asked again
            if node in full:
                disk.fill()
            else:
                disk.free()

    async def _change_calls(self, nodes: tuple[NodeId, ...], *, fails: bool = False) -> None:
        """As the faults in force have it, now and after a start; ``fails``: and the next sync fails."""
        for node in nodes:
            if (before := self._injected.pop(node, None)) is not None:
                await asyncio.to_thread(before.close)
            slow = [hit for hit in self._hits.values() if hit.what == SLOW_DISK and node in hit.nodes]
            delay_s = max((hit.strike.delay_s for hit in slow), default=0.0)
            broker = self._brokers[node]
            if broker.is_running and (delay_s or fails):
                self._injected[node] = await asyncio.to_thread(Injection, broker.pid, delay_s=delay_s, fails_next=fails)

    async def _let_calls_be(self) -> None:
        for node in list(self._injected):
            await asyncio.to_thread(self._injected.pop(node).close)
