"""What a cluster does by itself: go on after a leader is gone, and hold a thousand partitions that nobody uses.

All settings are the defaults. Beside a failover stands the session timeout, which a killed broker's silence must last
before anybody may lead in its place; beside idle partitions the same cluster before it had them.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import psutil

from minikafka import AdminClient, NewTopic, Producer
from minikafka.config import BrokerConfig
from minikafka.types import NodeId
from minikafka.world.processes import ProcessCluster
from minikafka.world.real import real_world
from tests.bench.arms import Ours, cluster
from tests.bench.measure import CpuMeter, Row

IDLE_PARTITIONS = 1000
BROKERS = 3
# A cluster that has just changed has things to do: they are no part of an idle one.
SETTLE_S = 3.0

Hurt = Callable[[ProcessCluster, Producer, str, NodeId], Awaitable[float]]


async def failover_rows(*, rounds: int) -> list[Row]:
    """A leader that is killed, and one that is told to stop."""
    session_s = BrokerConfig().broker_session_timeout_ms / 1000
    rows = []
    async with cluster(BROKERS) as running:
        for name, hurt in HURTS:
            seconds = [await failover(running, f"{hurt.__name__}{number}", hurt) for number in range(rounds)]
            median = statistics.median(seconds)
            note = f"{min(seconds):.2f} to {max(seconds):.2f} s; bare: broker.session.timeout.ms"
            ratio = median / session_s
            rows.append(Row(name, "s", median, session_s, ratio, at_least=False, note=note, same_work=False))
    return rows


async def failover(running: ProcessCluster, topic: str, hurt: Hurt) -> float:
    """Hurt the leader of a topic of one partition; everything is whole again afterwards."""
    async with (
        AdminClient(bootstrap_servers=running.bootstrap) as admin,
        Producer(bootstrap_servers=running.bootstrap) as producer,
    ):
        await admin.create_topics([NewTopic(topic, 1, BROKERS)])
        await producer.send_and_wait(topic, b"before")
        leader = (await admin.describe_topics([topic]))[0].partitions[0].leader
        seconds = await hurt(running, producer, topic, leader)
        await running.restart(leader)
        await asyncio.sleep(SETTLE_S)
        return seconds


async def _killed(running: ProcessCluster, producer: Producer, topic: str, leader: NodeId) -> float:
    """Seconds from the signal to the acknowledgement of a record that is sent when the process is gone."""
    began = time.perf_counter()
    await running.kill9(leader)
    await producer.send_and_wait(topic, b"after")
    return time.perf_counter() - began


async def _stopped(running: ProcessCluster, producer: Producer, topic: str, leader: NodeId) -> float:
    """The longest that one record waited, of those sent one after the other while the broker stops."""
    stopping = asyncio.ensure_future(running.terminate(leader))
    longest = 0.0
    while not stopping.done():
        began = time.perf_counter()
        await producer.send_and_wait(topic, b"meanwhile")
        longest = max(longest, time.perf_counter() - began)
    await stopping
    return longest


HURTS: tuple[tuple[str, Hurt], ...] = (
    ("kill -9 of a leader, to the next ack", _killed),
    ("SIGTERM to a leader, longest wait for an ack", _stopped),
)


async def idle_rows(*, seconds: float) -> list[Row]:
    """CPU and memory of three brokers that hold a thousand partitions with three replicas each."""
    async with cluster(BROKERS) as running, real_world() as real:
        ours = Ours(real.network, running)
        cpu_before, memory_before = await _at_rest(ours, seconds)
        await ours.create("idle", BROKERS, IDLE_PARTITIONS)
        cpu, memory = await _at_rest(ours, seconds)
    what = f"{IDLE_PARTITIONS:,} idle partitions RF {BROKERS}"
    note = "of one broker; bare: before they were made"
    return [
        Row(f"{what}: {name}", unit, now, before, now / before, at_least=False, note=note, same_work=False)
        for name, unit, now, before in (
            ("CPU", "% of a core", cpu, cpu_before),
            ("memory", "MB", memory, memory_before),
        )
    ]


async def _at_rest(ours: Ours, seconds: float) -> tuple[float, float]:
    """CPU in percent of a core, resident memory in MB: the mean of the brokers."""
    await asyncio.sleep(SETTLE_S)
    meter = CpuMeter(ours.pids)
    await asyncio.sleep(seconds)
    share = meter.lap() / seconds / len(ours.pids) * 100
    return share, statistics.mean(psutil.Process(pid).memory_info().rss / 1e6 for pid in ours.pids)
