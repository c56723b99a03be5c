"""Consumers of a group on machines of their own, and what each of them was handed."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from minikafka.client.consumer import Consumer
from minikafka.client.settings import ConsumerConfig
from minikafka.client.structs import CommitFailed, ConsumerRebalanceListener
from minikafka.sim.cluster import SimCluster
from minikafka.types import Offset, TopicPartition
from tests.sim.cluster_kit import Client

PARTITIONS = 6
"""Of the topic that the groups read."""


class Watch(ConsumerRebalanceListener):
    """Keeps what a listener is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[TopicPartition]]] = []

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.told.append(("revoked", sorted(revoked)))

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.told.append(("assigned", sorted(assigned)))

    def on_partitions_lost(self, lost: list[TopicPartition]) -> None:
        self.told.append(("lost", sorted(lost)))


@dataclass
class Worker:
    """A consumer that reads, works for a while on each poll's records, and commits."""

    cluster: SimCluster
    name: str
    group: str = "g"
    topics: tuple[str, ...] = ("orders",)
    work_s: float = 0.0
    commits: bool = True
    """By hand after the work; False: auto-commit."""
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.read: list[tuple[int, Offset]] = []
        self.values: Counter[bytes] = Counter()
        self.refused = 0
        self.error: BaseException | None = None
        self.watch = Watch()
        self.ending = False
        self.paused = False
        given = {
            "bootstrap_servers": self.cluster.bootstrap,
            "group_id": self.group,
            "client_id": self.name,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": not self.commits,
            "rebalance_timeout_ms": 20_000,
            **self.settings,
        }
        self.config = ConsumerConfig(**given)
        self.start()

    def start(self) -> None:
        """A new life on the same machine."""
        self.ending = False
        self.consumer = Consumer(self.config, self.cluster.sim.of(self.name))
        self.task = self.cluster.sim.spawn(self.name, self.live())

    async def live(self) -> None:
        try:
            self.consumer.subscribe(self.topics, listener=self.watch)
            await self.consumer.start()
            while not self.ending:
                await self.poll()
            await self.consumer.stop()
        except Exception as error:
            self.error = error
            raise

    async def poll(self) -> None:
        if self.paused:
            await asyncio.sleep(0.5)
            return
        found = await self.consumer.getmany(timeout_ms=200, max_records=10)
        for partition, records in found.items():
            self.read += [(partition.partition, each.offset) for each in records]
            self.values.update(each.value for each in records)
        if found and self.work_s:
            await asyncio.sleep(self.work_s)
        if found and self.commits:
            try:
                await self.consumer.commit()
            except CommitFailed:
                self.refused += 1

    @property
    def numbers(self) -> list[int]:
        """What it reads now."""
        return sorted(each.partition for each in self.consumer.assignment())

    def end(self) -> None:
        """Stop in good order."""
        self.ending = True
        self.cluster.until(self.task.done, 60.0, f"{self.name} to stop")
        self.task.result()

    def kill(self) -> None:
        """As kill -9."""
        self.cluster.sim.kill(self.name)


def shared(workers: list[Worker], count: int) -> bool:
    """Do they have all partitions, each once?"""
    return sorted(number for each in workers for number in each.numbers) == list(range(count))


def fill(client: Client, count: int, first: int = 0) -> list[bytes]:
    """Produce so many records over all partitions, and return their values."""
    values = [b"%d" % number for number in range(first, first + count)]

    async def send() -> None:
        sent = [
            await client.producer.send("orders", value, partition=number % PARTITIONS)
            for number, value in enumerate(values)
        ]
        await asyncio.gather(*sent)

    client.run(send())
    return values


def read_all(workers: list[Worker], values: list[bytes]) -> bool:
    """Return True if each of the values was read by some worker."""
    return all(any(each.values[value] for each in workers) for value in values)
