"""What tests use to hurt brokers and to watch them: faults of links and machines, the brokers' lives, the last events.

One :class:`Instruments` for all brokers of a process: LocalCluster always has one, ``serve`` only with
``mk.testing.endpoints.enable=true``. LocalCluster starts and stops all of its brokers; a process of its own (``serve``)
only itself, and it cannot start again.

Rules for this file: :class:`MachineFaults` is set on the loop, looked at on the loop and by the disk's threads, so each
fault is one attribute. A full disk refuses a write before it begins; a failing sync has not reached the disk; the
monotonic clock is never touched. An :class:`Injection` is recorded by the broker that received the request, whichever
broker carried it out: a broker that was killed takes its memory with it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from random import Random
from threading import Lock
from typing import Any, Final, Literal, TypeAlias

from minikafka.broker.broker import Broker
from minikafka.config import BrokerConfig
from minikafka.errors import BrokerNotAvailable, InvalidRequest
from minikafka.types import Address, NodeId
from minikafka.world.events import EventRing
from minikafka.world.faults import Faults, FaultSpec

_COUNTING = Lock()
"""Several threads sync, and count."""


@dataclass(slots=True)
class MachineFaults:
    """Of one machine; nothing is wrong at first."""

    disk_full: bool = False
    """No room for another byte."""
    sync_delay_ms: float = 0.0
    """What each sync takes more."""
    failing_syncs: int = 0
    """So many of the next syncs fail."""
    calendar_ahead_ms: int = 0
    """Ahead of the true time; behind it when negative."""
    struck: int = 0
    """Writes refused, syncs delayed and failed so far."""

    def heal(self) -> None:
        """Nothing is wrong from now on."""
        self.disk_full, self.sync_delay_ms, self.failing_syncs, self.calendar_ahead_ms = False, 0.0, 0, 0

    def before_write(self) -> None:
        """OSError (ENOSPC) when the disk is full."""
        if self.disk_full:
            self.struck += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def before_sync(self) -> None:
        """On a thread of the disk: wait as long as a slow disk; OSError (EIO) when this sync fails."""
        delay_s = self.sync_delay_ms / 1000
        if delay_s:
            with _COUNTING:
                self.struck += 1
            time.sleep(delay_s)
        with _COUNTING:
            fails = self.failing_syncs > 0
            self.failing_syncs -= fails
            self.struck += fails
        if fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


INJECTIONS_MAX: Final = 500
"""The latest are kept."""

Act: TypeAlias = Literal["set", "heal", "release", "kill", "stop", "start", "machine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """One act, as it was requested."""

    at_ms: int
    """Milliseconds since 1970, of the broker that received the request."""
    act: Act
    broker: NodeId | None = None
    """The broker that it concerns; None: all."""
    fault: int | None = None
    """Of ``set``, ``heal`` and ``release``: the fault's number at its broker; None: all of its faults."""
    spec: FaultSpec | None = None
    """Of ``set``."""
    is_alone: bool = False
    """The broker has its faults for itself: those of its process alone strike what it sends and receives."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Of ``machine``: all that is wrong with it from now on. Of ``release``: what was requested."""


OnBroker: TypeAlias = Callable[[NodeId], Awaitable[None]]

AFTER_THE_ANSWER_S = 0.05
"""A broker that is asked to end itself answers first."""


@dataclass(frozen=True, slots=True)
class Lives:
    """``nodes``: the brokers in hand. Each act returns when it is done; BrokerNotAvailable, InvalidRequest."""

    nodes: Callable[[], Collection[NodeId]]
    stop: OnBroker
    """A controlled shutdown."""
    kill: OnBroker
    """As kill -9."""
    start: OnBroker
    """Start one that is down, on its port and its files, and wait until it is ready."""
    starts_others: bool = False
    """``start`` can start brokers of other processes too."""
    _soon: set[asyncio.Task[None]] = field(default_factory=set)

    def soon(self, act: OnBroker, node: NodeId) -> None:
        """Call it when the response to the present request has been sent."""

        async def later() -> None:
            await asyncio.sleep(AFTER_THE_ANSWER_S)
            try:
                await act(node)
            except BrokerNotAvailable:
                # The whole cluster was stopped meanwhile.
                return

        task = asyncio.create_task(later(), name=f"act-on-{node}")
        self._soon.add(task)
        task.add_done_callback(self._soon.discard)


def own_process(node: NodeId, start_another: OnBroker | None = None) -> Lives:
    """The life of this process, which is broker ``node`` and nothing else.

    ``start_another`` lets the program that started this process start a broker that has ended.
    """

    async def stop(_node: NodeId) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async def kill(_node: NodeId) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def start(_node: NodeId) -> None:
        raise InvalidRequest(
            f"broker {node} runs as a process of its own; when it is down, the program that started it starts it again",
            field="do",
        )

    return Lives(lambda: (node,), stop, kill, start_another or start, starts_others=start_another is not None)


@dataclass(frozen=True, slots=True)
class Instruments:
    """``addresses`` gives, whenever it is asked, the brokers' addresses as far as they are known; ``brokers`` those
    that run in this process, by node id, to be asked on their loop.
    """

    addresses: Callable[[], Mapping[NodeId, Address]]
    brokers: Callable[[], Mapping[NodeId, Broker]]
    faults: Faults = field(default_factory=Faults)
    ring: EventRing = field(default_factory=EventRing)
    lives: Lives | None = None
    """The brokers that can be stopped and started here; None: none."""
    machines: dict[str, MachineFaults] = field(default_factory=dict)
    """By node, as far as they were asked for."""
    injections: deque[Injection] = field(default_factory=lambda: deque(maxlen=INJECTIONS_MAX))
    """What requests to these brokers have injected, oldest first."""

    def machine(self, node: str) -> MachineFaults:
        """What is wrong with a node's machine, to be looked at and to be set."""
        return self.machines.setdefault(node, MachineFaults())

    def heal_machines(self) -> None:
        """Nothing is wrong with any machine from now on."""
        for machine in self.machines.values():
            machine.heal()

    def name_of(self, address: Address) -> str:
        """The node id as a link names it; of an address that nobody has, the address."""
        for node, known in self.addresses().items():
            if known == address:
                return str(node)
        return str(address)


def seeded_faults(config: BrokerConfig) -> Faults:
    """Faults whose draws follow from ``mk.seed``; with none, from one that is drawn here."""
    return Faults(config.seed or Random().getrandbits(48))
