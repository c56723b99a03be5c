"""The target ``netns``: brokers as processes, each on a host of its own with a network and a disk that can really fail.

Hosts (:class:`Lan`) are network namespaces on a bridge, with no way to anything else of the machine::

    with Lan(["n1", "n2", "client"]) as lan:            # 10.77.0.1, 10.77.0.2, 10.77.0.3
        lan["n1"].run("ip", "address")
        lan.set_filters({Passage("n1", "n2"): Filter(drops=True)})

The target has one host for each broker and one for all clients. Cuts, losses and delays are rules of the kernel where
packets arrive; a disk is an ext4 file system in a file (``machine.py``); syncs fail and take long by ``strace``. While
a cluster runs, this process's own sockets are made on the clients' host.

Rules for this file:

1. Namespaces have no names: they are held open by this process and by the processes that run in them. When these end,
   also by ``kill -9``, the kernel takes down all that was made. Nothing is ever made in the machine's own namespace.
2. What is done to traffic is done where it arrives, by one table of rules per host, which is replaced as a whole.
3. What holds is worked out from all faults in force, so that one that ends takes nothing of another one with it.
4. A power loss begins with the network: no promise leaves a host whose disk is about to forget it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

from minikafka import faults
from minikafka.chaos import machine
from minikafka.chaos.machine import (
    RULES_NEED,
    Filter,
    Injection,
    LoopDisk,
    Mounts,
    PacketRules,
    filter_of,
    forbidden,
    missing,
    run,
)
from minikafka.chaos.scenario import Hit, Scenario
from minikafka.chaos.target import NO_MESSAGES, Fleet
from minikafka.errors import InvalidConfig, WorldError
from minikafka.faults import End
from minikafka.hosting.cluster_files import ClusterFiles, lay_out, write
from minikafka.hosting.processes import READY_TIMEOUT_S, BrokerProcess, stop_all
from minikafka.hosting.secured import ADMIN, MECHANISM, PLAINTEXT, ClusterSecurity, ClusterTls
from minikafka.types import Address, NodeId
from minikafka.world.clients import AdminClient

_NEW_NET: Final = 0x40000000
"""CLONE_NEWNET of sched.h."""

SUBNET: Final = "10.77.0"
HOSTS_MAX: Final = 250
NEEDS: Final[Mapping[str, str]] = {"ip": "iproute2", **RULES_NEED}
"""Command -> the package that has it, on Debian."""

_libc = ctypes.CDLL(None, use_errno=True)


def why_no_namespaces() -> str | None:
    """Why no network can be made here, as a sentence; None: it can."""
    return forbidden("make network namespaces") or missing(NEEDS)


def _os_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


class Namespace:
    """One network namespace, gone when it is closed and nobody runs in it."""

    def __init__(self) -> None:
        self._descriptor = _new_namespace()

    @property
    def path(self) -> str:
        """Under this name other processes of the machine can enter it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    @property
    def prefix(self) -> tuple[str, ...]:
        """What must stand before a command that is to run in it; the process keeps its id."""
        return ("nsenter", f"--net={self.path}")

    def run(self, *command: str, data: str = "") -> str:
        """As :func:`run`, inside."""
        return run(*self.prefix, *command, data=data)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is inside: the sockets that it makes, the processes and threads that it starts."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(self._descriptor)
            try:
                yield
            finally:
                _enter(home)
        finally:
            os.close(home)

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, _NEW_NET) != 0:
        raise _os_error()


def _new_namespace() -> int:
    """A descriptor of a new one. WorldError when the system refuses."""
    found: list[int | OSError] = []

    def leave() -> None:
        # Only a thread's own namespace can be changed, so one is spent on it.
        if _libc.unshare(_NEW_NET) != 0:
            found.append(_os_error())
        else:
            found.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    thread = threading.Thread(target=leave, name="new namespace")
    thread.start()
    thread.join()
    made = found[0]
    if isinstance(made, OSError):
        raise WorldError(f"no network namespace can be made: {made.strerror}") from made
    return made


class Passage(NamedTuple):
    """One way between two hosts, by their names."""

    source: str
    target: str


class Host:
    """A namespace with an address on the network."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.address = f"{SUBNET}.{number}"
        self.namespace = Namespace()
        self.packets = PacketRules(self.namespace.prefix)

    def run(self, *command: str, data: str = "") -> str:
        """What a command printed that ran there. WorldError."""
        return self.namespace.run(*command, data=data)

    def close(self) -> None:
        """Let go of the namespace."""
        self.packets.close()
        self.namespace.close()


class Lan:
    """Hosts by their names, on one bridge, which is in a namespace of its own. Use it with ``with``, or close it."""

    def __init__(self, names: Iterable[str]) -> None:
        self._hosts: dict[str, Host] = {}
        self._switch = Namespace()
        try:
            self._switch.run("ip", "-batch", "-", data="link add br0 type bridge\nlink set br0 up\n")
            for number, name in enumerate(names, start=1):
                if number > HOSTS_MAX:
                    raise InvalidConfig(f"a network of {HOSTS_MAX} hosts at most can be made")
                self._plug(name, number)
        except BaseException:
            self.close()
            raise

    def _plug(self, name: str, number: int) -> None:
        host = self._hosts[name] = Host(name, number)
        port = f"p{number}"
        cable = f"link add {port} type veth peer name eth0 netns {host.namespace.path}"
        self._switch.run("ip", "-batch", "-", data=f"{cable}\nlink set {port} master br0 up\n")
        settings = ["link set lo up", f"address add {host.address}/24 dev eth0", "link set eth0 up"]
        host.run("ip", "-batch", "-", data="\n".join([*settings, "route add blackhole default", ""]))

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(self._hosts.values())

    def set_filters(self, filters: Iterable[tuple[Passage, Filter]]) -> None:
        """What holds from now on, on all passages: this, and nothing else. WorldError."""
        found: dict[str, list[tuple[str, Filter]]] = {name: [] for name in self._hosts}
        for passage, each in filters:
            found[passage.target].append((self._hosts[passage.source].address, each))
        for name, rules in found.items():
            self._hosts[name].packets.set(rules)

    def close(self) -> None:
        """Let go of all hosts; they vanish with the last process that runs in one."""
        for host in self._hosts.values():
            host.close()
        self._switch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


PORT: Final = 9092
CLIENTS_PORT: Final = 9093
"""Of the listener at which clients log in."""
CLIENTS: Final = "clients"
LOGS: Final = "disk/logs"
"""Below a broker's folder. Not the root of the disk: what ext4 keeps there is no partition."""
DISK_MIB: Final = 1024
"""A disk is a file with holes: it takes what was written."""

NEEDS_DISK: Final = frozenset({faults.POWER_LOSS, faults.DISK_FULL})
NEEDS_STRACE: Final = frozenset({faults.FSYNC_FAIL, faults.SLOW_DISK})


def host_of(end: End) -> str:
    """A broker's host, or that of all who are none."""
    return CLIENTS if end == faults.CLIENT_END else f"n{end}"


class NetnsTarget:
    """See :class:`minikafka.chaos.target.Target`."""

    name: ClassVar[str] = "netns"

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self._scenario = scenario
        self._folder = folder.absolute()
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
        if what == faults.CLOCK_JUMP:
            return "its hosts share one calendar"
        if what == faults.MESSAGES:
            return NO_MESSAGES
        if what in NEEDS_DISK:
            return machine.why_no_mounts()
        if what in NEEDS_STRACE:
            return machine.why_no_injection()
        return why_no_namespaces()

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
        spoilt = {node for hit in self._hits.values() if hit.what in faults.DISK_FAULTS for node in hit.nodes}
        missed = {node: each for node, each in self._brokers.items() if self._fleet.is_missed(node)}
        return {node: each.obituary() for node, each in missed.items() if node not in spoilt}

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
            replace(files, settings={**files.settings, "mk.journal.path": str(files.folder / "journal.jsonl")})
            for files in laid.brokers
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
        """Return True if it accepts a connection of its own host, which no rule blocks."""
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
        self._hits[hit.strike.number] = hit
        if hit.what in faults.LINK_FAULTS:
            await self._set_filters()
        elif hit.what in {faults.PAUSE, faults.KILL, faults.STOP}:
            await self._fleet.begin(hit)
        elif hit.what == faults.POWER_LOSS:
            await self._lose_power(hit)
        elif hit.what == faults.DISK_FULL:
            await asyncio.to_thread(self._fill_disks)
        else:
            await self._change_calls(hit.nodes, fails=hit.what == faults.FSYNC_FAIL)

    async def end(self, hit: Hit) -> None:
        if self._hits.pop(hit.strike.number, None) is None:
            return
        with self._fleet.returning(hit.nodes):
            await self._put_right(hit)

    async def _put_right(self, hit: Hit) -> None:
        if hit.what in faults.LINK_FAULTS:
            await self._set_filters()
            return
        if hit.what == faults.POWER_LOSS:
            await self._give_power(hit)
        elif hit.what == faults.DISK_FULL:
            await asyncio.to_thread(self._fill_disks)
        await self._fleet.end(hit)
        if hit.what != faults.PAUSE:
            await self._change_calls(hit.nodes)

    async def heal(self) -> None:
        hits = list(self._hits.values())
        self._hits.clear()
        for hit in hits:
            await self._put_right(hit)
        await self._fleet.heal()

    @property
    def _dark(self) -> set[NodeId]:
        """Brokers without power."""
        return {node for hit in self._hits.values() if hit.what == faults.POWER_LOSS for node in hit.nodes}

    def _filters(self) -> Iterator[tuple[Passage, Filter]]:
        ends: tuple[End, ...] = (*self._nodes, faults.CLIENT_END)
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
        await self._fleet.begin(hit)

    async def _give_power(self, hit: Hit) -> None:
        for node in hit.nodes:
            if node not in self._dark:
                await asyncio.to_thread(self._disks[node].revive)
        await asyncio.to_thread(self._fill_disks)
        await self._set_filters()

    def _fill_disks(self) -> None:
        full = {node for hit in self._hits.values() if hit.what == faults.DISK_FULL for node in hit.nodes}
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
            slow = [hit for hit in self._hits.values() if hit.what == faults.SLOW_DISK and node in hit.nodes]
            delay_s = max((hit.strike.delay_s for hit in slow), default=0.0)
            broker = self._brokers[node]
            if broker.is_running and (delay_s or fails):
                self._injected[node] = await asyncio.to_thread(Injection, broker.pid, delay_s=delay_s, fails_next=fails)

    async def _let_calls_be(self) -> None:
        for node in list(self._injected):
            await asyncio.to_thread(self._injected.pop(node).close)
