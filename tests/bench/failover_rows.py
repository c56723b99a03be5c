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
from minikafka.hosting.processes import ProcessCluster
from minikafka.types import NodeId, TopicPartition
from minikafka.world.real import real_world
from tests.bench.arms import Ours, cluster
from tests.bench.measure import CpuMeter, Row

IDLE_PARTITIONS = 1000
BROKERS = 3
# A cluster that has just changed has things to do: they are no part of an idle one.
SETTLE_S = 3.0

Hurt = Callable[[ProcessCluster, Producer, TopicPartition, NodeId], Awaitable[float]]


async def failover_rows(*, rounds: int) -> list[Row]:
    """A leader that is killed, one that is told to stop, and one that is killed as the active controller."""
    session_s = BrokerConfig().broker_session_timeout_ms / 1000
    rows = []
    async with cluster(BROKERS) as running:
        for name, hurt, of_controller in CASES:
            topics = [f"{hurt.__name__}{number}{'-controller' * of_controller}" for number in range(rounds)]
            seconds = [await failover(running, topic, hurt, of_controller=of_controller) for topic in topics]
            median = statistics.median(seconds)
            note = f"{min(seconds):.2f} to {max(seconds):.2f} s; bare: broker.session.timeout.ms"
            ratio = median / session_s
            rows.append(Row(name, "s", median, session_s, ratio, at_least=False, note=note, same_work=False))
    return rows


async def failover(running: ProcessCluster, topic: str, hurt: Hurt, *, of_controller: bool = False) -> float:
    """Hurt the leader of a new topic's partition; everything is whole again afterwards.

    ``of_controller``: of the partition that the active controller leads, in a topic with one for each broker.
    """
    async with (
        AdminClient(bootstrap_servers=running.bootstrap) as admin,
        Producer(bootstrap_servers=running.bootstrap) as producer,
    ):
        await admin.create_topics([NewTopic(topic, BROKERS if of_controller else 1, BROKERS)])
        partitions = (await admin.describe_topics([topic]))[0].partitions
        controller = (await admin.describe_quorum()).leader_id
        chosen = next(each for each in partitions if each.leader == controller or not of_controller)
        await producer.send_and_wait(topic, b"before", partition=chosen.partition)
        seconds = await hurt(running, producer, TopicPartition(topic, chosen.partition), chosen.leader)
        await running.restart(chosen.leader)
        await asyncio.sleep(SETTLE_S)
        return seconds


async def _killed(running: ProcessCluster, producer: Producer, where: TopicPartition, leader: NodeId) -> float:
    """Seconds from the signal to the acknowledgement of a record that is sent when the process is gone."""
    began = time.perf_counter()
    await running.kill9(leader)
    await producer.send_and_wait(where.topic, b"after", partition=where.partition)
    return time.perf_counter() - began


async def _stopped(running: ProcessCluster, producer: Producer, where: TopicPartition, leader: NodeId) -> float:
    """The longest that one record waited, of those sent one after the other while the broker stops."""
    stopping = asyncio.ensure_future(running.terminate(leader))
    longest = 0.0
    while not stopping.done():
        began = time.perf_counter()
        await producer.send_and_wait(where.topic, b"meanwhile", partition=where.partition)
        longest = max(longest, time.perf_counter() - began)
    await stopping
    return longest


HURTS: tuple[tuple[str, Hurt], ...] = (
    ("kill -9 of a leader, to the next ack", _killed),
    ("SIGTERM to a leader, longest wait for an ack", _stopped),
)

CASES = (
    *((name, hurt, False) for name, hurt in HURTS),
    ("kill -9 of a leader that is also the active controller, to the next ack", _killed, True),
)
"""Each row: its name, what happens, and whether it happens to the active controller."""


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
