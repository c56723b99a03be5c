"""What is done to one cluster, ours or another, and measured: batches written, batches read, small requests.

Each round writes to topics of its own and deletes them: new pages of a virtual machine's page cache cost ten times what
pages cost that were used before.
"""

from __future__ import annotations

import itertools
from typing import Protocol

from tests.bench.measure import CpuMeter, Run, closed_loop

PARTITIONS = 4
CONCURRENCY = 4
SMALL_LANES = 32
KEPT_BATCHES = 16
"""Per partition, for reading: the last of them are in our memory tail, the first half is read."""


class Arm(Protocol):
    """A running cluster and its raw client."""

    @property
    def pids(self) -> list[int]: ...

    async def create(self, topic: str, replicas: int, partitions: int = PARTITIONS) -> None: ...

    async def delete(self, topic: str) -> None: ...

    async def produce(self, topic: str, partition: int, batch: bytes, acks: int) -> None: ...

    async def fetch(self, topic: str, partition: int, offset: int, size: int) -> int: ...


class Writing:
    """Prepared batches, four in flight on four partitions: MB/s."""

    def __init__(self, arm: Arm, batch: bytes, *, replicas: int, acks: int, count: int) -> None:
        self._arm = arm
        self._batch = batch
        self._replicas = replicas
        self._acks = acks
        self._count = count
        self._numbers = itertools.count()
        self.cpu: list[float] = []
        """All brokers' CPU of each round: milliseconds a MB."""

    @property
    def cpu_ms_per_mb(self) -> float:
        """All brokers' CPU, of the round that took the least."""
        return min(self.cpu)

    async def __call__(self) -> float:
        topic = f"t{len(self._batch)}.{next(self._numbers)}"
        await self._arm.create(topic, self._replicas)
        meter = CpuMeter(self._arm.pids)
        run = await closed_loop(
            lambda lane: self._arm.produce(topic, lane % PARTITIONS, self._batch, self._acks),
            count=self._count,
            concurrency=CONCURRENCY,
        )
        megabytes = self._count * len(self._batch) / 1e6
        self.cpu.append(meter.lap() * 1000 / megabytes)
        await self._arm.delete(topic)
        return megabytes / run.seconds


class Reading:
    """A consumer's fetches of one batch each, of old records, four in flight on four partitions: MB/s."""

    def __init__(self, arm: Arm, topic: str, batch: bytes, records: int, *, count: int) -> None:
        self._arm = arm
        self._topic = topic
        self._batch = batch
        self._records = records
        self._count = count
        self.cpu: list[float] = []
        """All brokers' CPU of each round: milliseconds a MB."""

    @property
    def cpu_ms_per_mb(self) -> float:
        """The broker's CPU, of the round that took the least."""
        return min(self.cpu)

    async def fill(self) -> None:
        """Make the topic, and write what will be read."""
        await self._arm.create(self._topic, 1)
        for number in range(KEPT_BATCHES * PARTITIONS):
            await self._arm.produce(self._topic, number % PARTITIONS, self._batch, 1)

    async def __call__(self) -> float:
        positions = [itertools.cycle(range(KEPT_BATCHES // 2)) for _ in range(PARTITIONS)]

        async def one(lane: int) -> None:
            offset = next(positions[lane]) * self._records
            got = await self._arm.fetch(self._topic, lane, offset, len(self._batch))
            if got != len(self._batch):
                raise RuntimeError(f"a batch of {len(self._batch)} bytes was wanted, {got} came")

        meter = CpuMeter(self._arm.pids)
        run = await closed_loop(one, count=self._count, concurrency=CONCURRENCY)
        megabytes = self._count * len(self._batch) / 1e6
        self.cpu.append(meter.lap() * 1000 / megabytes)
        return megabytes / run.seconds


class _SmallBatches:
    """Requests of one small batch each, and the brokers' CPU of one of them."""

    def __init__(self, arm: Arm, topic: str, batch: bytes, *, acks: int, count: int) -> None:
        self._arm = arm
        self._topic = topic
        self._batch = batch
        self._acks = acks
        self._count = count
        self.cpu: list[float] = []
        """All brokers' CPU of each round: µs a request."""

    @property
    def cpu_us(self) -> float:
        """All brokers' CPU of a request, of the round that took the least."""
        return min(self.cpu)

    async def _round(self, *, partitions: int, concurrency: int) -> Run:
        meter = CpuMeter(self._arm.pids)
        run = await closed_loop(
            lambda lane: self._arm.produce(self._topic, lane % partitions, self._batch, self._acks),
            count=self._count,
            concurrency=concurrency,
        )
        self.cpu.append(meter.lap() * 1e6 / self._count)
        return run


class SmallRequests(_SmallBatches):
    """Requests of one small record each, 32 in flight on four partitions: requests a second."""

    async def __call__(self) -> float:
        return (await self._round(partitions=PARTITIONS, concurrency=SMALL_LANES)).per_second


class OneAtATime(_SmallBatches):
    """One small batch after the other to one partition: how long each takes."""

    async def __call__(self) -> Run:
        return await self._round(partitions=1, concurrency=1)
