"""Hosts on a network of their own: network namespaces on a bridge, with no way to anything else of the machine.

::

    with Lan(["n1", "n2", "client"]) as lan:            # 10.77.0.1, 10.77.0.2, 10.77.0.3
        lan["n1"].run("ip", "address")
        lan.set_filters({Passage("n1", "n2"): Filter(drops=True)})

Rules for this file:

1. Namespaces have no names: they are held open by this process and by the processes that run in them. When these end,
   also by ``kill -9``, the kernel takes down all that was made. Nothing is ever made in the machine's own namespace.
2. What is done to traffic is done where it arrives, by one table of rules per host, which is replaced as a whole.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Final, NamedTuple, Self

from minikafka.chaos.commands import forbidden, missing, run
from minikafka.chaos.packet_rules import NEEDS as RULES_NEED
from minikafka.chaos.packet_rules import Filter, PacketRules
from minikafka.errors import InvalidConfig, WorldError

_NEW_NET: Final = 0x40000000
"""CLONE_NEWNET of sched.h."""

SUBNET: Final = "10.77.0"
HOSTS_MAX: Final = 250
NEEDS: Final[Mapping[str, str]] = {"ip": "iproute2", **RULES_NEED}
"""Command -> the package that has it, on Debian."""

_libc = ctypes.CDLL(None, use_errno=True)


def why_not() -> str | None:
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
