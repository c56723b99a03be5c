"""The two sides of every row: a cluster behind the network port, and a bare aiohttp server behind an aiohttp client."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp

from minikafka import AdminClient, NewTopic
from minikafka.hosting.processes import ProcessCluster
from minikafka.ports import Network
from minikafka.rpc import call
from minikafka.types import Address
from minikafka.wire.messages import FetchPartition, FetchRequest, MetadataRequest, ProducePartition, ProduceRequest
from tests.bench.loads import PARTITIONS

DEADLINE_S = 30.0

# Topics come and go within a run: their files are unlinked soon, so that the next ones get pages that were used before.
CONFIG = {"log.segment.delete.delay.ms": "500"}


@contextlib.asynccontextmanager
async def bare_server() -> AsyncIterator[tuple[int, int]]:
    """A bare aiohttp server in a process of its own; (port, pid)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.bare", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield int(await process.stdout.readline()), process.pid
    finally:
        process.stdin.close()
        await process.wait()


@contextlib.asynccontextmanager
async def cluster(brokers: int, settings: Mapping[str, str] | None = None) -> AsyncIterator[ProcessCluster]:
    """Broker processes on loopback, in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="minikafka-bench-") as folder:
        config = {**CONFIG, "min.insync.replicas": str((brokers + 1) // 2), **(settings or {})}
        async with ProcessCluster(brokers=brokers, data_dir=Path(folder), config=config) as running:
            yield running


class Bare:
    """A bare aiohttp client of the bare server."""

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self.session = session
        self.url = f"http://127.0.0.1:{port}/"

    async def post(self, body: bytes) -> None:
        async with self.session.post(self.url, data=body) as answer:
            await answer.read()

    async def get(self, size: int) -> None:
        async with self.session.get(f"{self.url}{size}") as answer:
            assert len(await answer.read()) == size


class Ours:
    """A raw client of a cluster: prepared batches through the network port that brokers and clients use."""

    def __init__(self, network: Network, running: ProcessCluster) -> None:
        self.network = network
        self.running = running
        host, _, port = running.bootstrap.split(",", maxsplit=1)[0].rpartition(":")
        self.first = Address(host, int(port))
        self.leaders: dict[tuple[str, int], Address] = {}

    @property
    def pids(self) -> list[int]:
        return [broker.pid for broker in self.running.brokers.values()]

    def admin(self) -> AdminClient:
        """A client that makes and deletes topics."""
        return AdminClient(bootstrap_servers=self.running.bootstrap)

    async def create(self, topic: str, replicas: int, partitions: int = PARTITIONS) -> None:
        """A new topic, and wait until every partition has a leader and full ISR."""
        async with self.admin() as admin:
            await admin.create_topics([NewTopic(topic, partitions, replicas)])
        for _ in range(400):
            answer = await call(self.network, self.first, MetadataRequest(topics=(topic,)), self.deadline())
            nodes = {each.node_id: Address(each.host, each.port) for each in answer.brokers}
            parts = answer.topics[0].partitions
            if parts and all(each.leader_id in nodes for each in parts):
                self.leaders.update({(topic, each.partition): nodes[each.leader_id] for each in parts})
                return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"{topic} has no leaders")

    async def delete(self, topic: str) -> None:
        """Delete it and wait until its files are gone on every broker."""
        async with self.admin() as admin:
            await admin.delete_topics([topic])
        folders = [self.running.folder(node) for node in self.running.brokers]
        for _ in range(400):
            if not [found for folder in folders for found in folder.glob(f"{topic}-*")]:
                return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"{topic} is still there")

    @staticmethod
    def deadline() -> float:
        return asyncio.get_running_loop().time() + DEADLINE_S

    async def produce(self, topic: str, partition: int, batch: bytes, acks: int) -> None:
        request = ProduceRequest(
            acks=acks, partitions=(ProducePartition(topic=topic, partition=partition, records=(batch,)),)
        )
        while True:
            answer = await call(self.network, self.leaders[topic, partition], request, self.deadline())
            told = answer.partitions[0]
            if not told.error_code:
                return
            if told.outcome != "not_written":
                raise RuntimeError(told.error_message)
            await asyncio.sleep(0.05)  # the broker learns a moment later than the controller that it leads

    async def fetch(self, topic: str, partition: int, offset: int, size: int) -> int:
        request = FetchRequest(
            max_bytes=size,
            partitions=(
                FetchPartition(topic=topic, partition=partition, fetch_offset=offset, partition_max_bytes=size),
            ),
        )
        answer = await call(self.network, self.leaders[topic, partition], request, self.deadline())
        return sum(len(each) for each in answer.partitions[0].records)
