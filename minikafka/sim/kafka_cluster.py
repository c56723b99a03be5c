"""What a Kafka client of the simulator knows of the cluster: leaders, their epochs, topic ids, and its connections.

Rules for this file: metadata is asked for when something failed, never by the clock, so that a client that learns
nothing stays with what it knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from minikafka.ports import World
from minikafka.sim.kafka_link import KafkaLink, Report
from minikafka.types import NO_NODE, Address, Epoch, NodeId, TopicPartition

SOFTWARE: Final = {"client_software_name": "minikafka-sim", "client_software_version": "1.0"}


@dataclass(frozen=True, slots=True)
class KnownLeader:
    """A partition's leader, as some broker said."""

    node: NodeId
    epoch: Epoch
    topic_id: bytes


class KafkaCluster:
    """One client's view and connections."""

    def __init__(
        self,
        world: World,
        client_id: str,
        brokers: Sequence[Address],
        versions: dict[str, int],
        *,
        timeout_s: float,
        report: Report,
    ) -> None:
        self.leaders: dict[TopicPartition, KnownLeader] = {}
        self.is_stale = True
        """Something failed: ask before the next request."""
        self.on_lost: Callable[[], None] = lambda: None
        self._world = world
        self._client_id = client_id
        self._brokers = list(brokers)
        self._versions = versions
        self._timeout_s = timeout_s
        self._report = report
        self._addresses: dict[NodeId, Address] = {}
        self._links: dict[Address, KafkaLink] = {}

    def address_of_leader(self, name: TopicPartition) -> Address | None:
        """Where it sends what is for this partition; None: no leader is known, or the last answer did not list it."""
        known = self.leaders.get(name)
        return self._addresses.get(known.node) if known is not None else None

    def link_to(self, name: TopicPartition) -> KafkaLink | None:
        """A connection to the partition's leader; None: nobody is known to lead it."""
        address = self.address_of_leader(name)
        return None if address is None else self.link(address)

    def any_link(self) -> KafkaLink:
        """A connection to the broker that answered last, or to the next one."""
        return self.link(self._brokers[0])

    def next_broker(self) -> None:
        """The first broker did not answer."""
        self._brokers.append(self._brokers.pop(0))

    def link(self, address: Address) -> KafkaLink:
        """The open connection to a broker, or a new one; each begins with ApiVersions."""
        link = self._links.get(address)
        if link is None or link.is_lost:
            link = KafkaLink(self._world, address, self._client_id, self._versions, self._report)
            link.on_lost = self._lost
            self._links[address] = link
            task = asyncio.get_running_loop().create_task(link.call("ApiVersions", dict(SOFTWARE), self._timeout_s))
            task.set_name("api-versions")
            self._greetings = task
        return link

    def _lost(self) -> None:
        self.is_stale = True
        self.on_lost()

    async def refresh(self, topics: Collection[str]) -> bool:
        """Ask one broker; False: it did not answer, and another one is asked next time."""
        message = {
            "topics": [{"name": topic} for topic in sorted(topics)],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        answer = await self.any_link().call("Metadata", message, self._timeout_s)
        if answer is None:
            self.next_broker()
            return False
        self._addresses = {each["node_id"]: Address(each["host"], each["port"]) for each in answer["brokers"]}
        found = {
            TopicPartition(topic["name"], each["partition_index"]): KnownLeader(
                each["leader_id"], each["leader_epoch"], topic["topic_id"]
            )
            for topic in answer["topics"]
            for each in topic["partitions"]
            if each["leader_id"] != NO_NODE
        }
        for name, known in found.items():
            before = self.leaders.get(name)
            # As KIP-320 has it: an answer that is older than what is known, of the same topic, changes nothing.
            if before is None or before.topic_id != known.topic_id or before.epoch <= known.epoch:
                self.leaders[name] = known
        for name in [name for name in self.leaders if name.topic in topics and name not in found]:
            del self.leaders[name]
        self.is_stale = False
        return True
