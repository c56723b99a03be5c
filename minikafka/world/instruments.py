"""What tests use to hurt brokers and to watch them: faults on links and machines, the last events, who listens where.

One object for all brokers of a process: LocalCluster always has one, ``serve`` only with
``mk.testing.endpoints.enable=true``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from minikafka.broker.broker import Broker
from minikafka.config import BrokerConfig
from minikafka.types import Address, NodeId
from minikafka.world.event_ring import EventRing
from minikafka.world.faults import Faults
from minikafka.world.injections import INJECTIONS_MAX, Injection
from minikafka.world.lives import Lives
from minikafka.world.machine_faults import MachineFaults


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
    """Whose lives are in hand here; None: nobody's."""
    machines: dict[str, MachineFaults] = field(default_factory=dict)
    """By node, as far as they were asked for."""
    injections: deque[Injection] = field(default_factory=lambda: deque(maxlen=INJECTIONS_MAX))
    """What requests to these brokers have injected, oldest first."""

    def machine(self, node: str) -> MachineFaults:
        """What is wrong with a node's machine, to be looked at and to be set."""
        return self.machines.setdefault(node, MachineFaults())

    def name_of(self, address: Address) -> str:
        """The node id as a link names it; of an address that nobody has, the address."""
        for node, known in self.addresses().items():
            if known == address:
                return str(node)
        return str(address)


def seeded_faults(config: BrokerConfig) -> Faults:
    """Faults whose draws follow from ``mk.seed``; with none, from one that is drawn here."""
    return Faults(config.seed or Random().getrandbits(48))
