"""The same frames of Kafka's protocol to both brokers, and the same confluent-kafka clients against both.

The other rows compare protocols, too: there our raw client speaks msgpack over HTTP. Here one client drives both sides,
so that only the brokers differ.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import time
from collections.abc import Awaitable, Callable
from typing import Any

from minikafka.types import Address
from tests.bench.arms import Ours
from tests.bench.kafka_arm import NOT_YET, POLL_S, Theirs
from tests.bench.kafka_wire import (
    FRAME,
    BrokerError,
    Connections,
    fetch_answer,
    fetch_request,
    produce_answer,
    produce_request,
)
from tests.bench.latency_rows import two_rows
from tests.bench.loads import CONCURRENCY, PARTITIONS, OneAtATime, Reading, Writing
from tests.bench.measure import CpuMeter, Row, in_turn
from tests.bench.rows import KIB, batch_of, records_in, small_batch

LARGE_SIZES = (256 * KIB, 1000 * KIB)
PIPELINES = ((32, 1, 3.5), (6, 5, 2.2))
"""Connections, requests in flight on each, and how much CPU of Kafka's a request may cost at most (issue 14)."""
SIZES = ((100, "100 B"), (1024, "1 KiB"))
QUEUE = {"fetch.queue.backoff.ms": 1}
"""By default librdkafka fetches nothing for a second once 64 MB wait for the application. How often that happens in a row
decides its figure: 140,000 to 400,000 records/s at one broker, and 430,000 to 560,000 with this.
"""


class Framed(Ours):
    """Our brokers, produced to and fetched from over frames, by the client that Kafka gets."""

    def __init__(self, ours: Ours) -> None:
        super().__init__(ours.network, ours.running)
        self.connections = Connections()

    async def produce(self, topic: str, partition: int, batch: bytes, acks: int) -> None:
        request = produce_request(topic, partition, batch, acks)
        while True:
            try:
                produce_answer(await self.connections.call(self.leaders[topic, partition], *request))
            except BrokerError as error:
                if error.code not in NOT_YET:
                    raise
            else:
                return
            await asyncio.sleep(POLL_S)  # the broker learns a moment later than the controller that it leads

    async def fetch(self, topic: str, partition: int, offset: int, size: int) -> int:
        request = fetch_request(topic, partition, offset, size)
        return len(fetch_answer(await self.connections.call(self.leaders[topic, partition], request)))


class Pipelines:
    """Connections with several small Produce requests in flight on each: requests a second."""

    def __init__(
        self, arm: Framed | Theirs, topic: str, batch: bytes, *, acks: int, count: int, connections: int, depth: int
    ) -> None:
        self._arm = arm
        self._count = count // connections
        self._depth = depth
        self._lanes = [
            (arm.leaders[topic, lane % PARTITIONS], b"".join(produce_request(topic, lane % PARTITIONS, batch, acks)))
            for lane in range(connections)
        ]
        self.cpu: list[float] = []
        """All brokers' CPU of each round: µs a request."""

    @property
    def cpu_us(self) -> float:
        """All brokers' CPU of a request, of the round that took the least."""
        return min(self.cpu)

    async def __call__(self) -> float:
        count = self._count * len(self._lanes)
        meter, began = CpuMeter(self._arm.pids), time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for address, request in self._lanes:
                group.create_task(self._drive(address, request))
        seconds = time.perf_counter() - began
        self.cpu.append(meter.lap() * 1e6 / count)
        return count / seconds

    async def _drive(self, address: Address, request: bytes) -> None:
        reader, writer = await asyncio.open_connection(*address)
        try:
            writer.write(request * min(self._depth, self._count))
            for number in range(self._count):
                (size,) = FRAME.unpack(await reader.readexactly(FRAME.size))
                produce_answer(await reader.readexactly(size))
                if number + self._depth < self._count:
                    writer.write(request)
        finally:
            writer.close()


async def frame_rows(
    ours: Ours, theirs: Theirs, brokers: int, *, acks: int, rounds: int, megabytes: int, latencies: int, requests: int
) -> list[Row]:
    """Records on all brokers of each side; large batches only without replication."""
    framed = Framed(ours)
    what = f"acks={'all' if acks == -1 else acks} RF {brokers}"
    try:
        rows = await _small_rows(framed, theirs, what, brokers, acks, rounds, requests)
        rows += await _latency_rows(framed, theirs, what, brokers, acks, rounds, latencies)
        for size in LARGE_SIZES if brokers == 1 else ():
            rows += await _large_rows(framed, theirs, size, rounds, megabytes)
    finally:
        framed.connections.close()
    return rows


async def _small_rows(
    framed: Framed, theirs: Theirs, what: str, brokers: int, acks: int, rounds: int, requests: int
) -> list[Row]:
    rows = []
    batch = small_batch(100)
    for arm in (framed, theirs):
        await arm.create("fs", brokers)
        for partition in range(PARTITIONS):
            await arm.produce("fs", partition, batch, acks)
    for connections, depth, ceiling in PIPELINES:
        mine, peer = (
            Pipelines(arm, "fs", batch, acks=acks, count=requests, connections=connections, depth=depth)
            for arm in (framed, theirs)
        )
        pair = await in_turn(mine, peer, rounds=rounds, warm_up=2)
        name = f"frames: produce {what}, 100 B, {connections} connections x {depth}"
        rows.append(Row(name, "requests/s", pair.ours, pair.bare, pair.ratio))
        cpu = (mine.cpu_us, peer.cpu_us)
        most = ceiling if acks == 1 else None
        rows.append(Row(f"CPU of {name}", "µs", *cpu, cpu[0] / cpu[1], most, at_least=False))
    return rows


async def _latency_rows(
    framed: Framed, theirs: Theirs, what: str, brokers: int, acks: int, rounds: int, latencies: int
) -> list[Row]:
    batch = batch_of(KIB + 16)
    for arm in (framed, theirs):
        await arm.create("fl", brokers, 1)
    mine, peer = (OneAtATime(arm, "fl", batch, acks=acks, count=latencies) for arm in (framed, theirs))
    rows = await two_rows(f"frames: {what}, one 1 KiB record, c=1", mine, peer, rounds=rounds, ceiling=None)
    note = f"brokers' CPU {mine.cpu_us:.0f} / {peer.cpu_us:.0f} µs a record"
    return [dataclasses.replace(row, note=note) for row in rows]


async def _large_rows(framed: Framed, theirs: Theirs, size: int, rounds: int, megabytes: int) -> list[Row]:
    batch, rows = batch_of(size), []
    count = megabytes * 1_000_000 // len(batch)
    writing = [Writing(arm, batch, replicas=1, acks=1, count=count) for arm in (framed, theirs)]
    reading = [Reading(arm, f"f{size}", batch, records_in(size), count=2 * count) for arm in (framed, theirs)]
    for what, (mine, peer) in (("produce acks=1 RF 1", writing), ("fetch", reading)):
        for each in (mine, peer):
            if isinstance(each, Reading):
                await each.fill()
        pair = await in_turn(mine, peer, rounds=rounds, warm_up=2)
        note = f"brokers' CPU {mine.cpu_ms_per_mb:.2f} / {peer.cpu_ms_per_mb:.2f} ms/MB"
        name = f"frames: {what}, {size // KIB} KiB, c={CONCURRENCY}"
        rows.append(Row(name, "MB/s", pair.ours, pair.bare, pair.ratio, note=note))
    return rows


# ---- the same librdkafka against both --------------------------------------------------------------------------------


async def confluent_rows(ours: Ours, theirs: Theirs, brokers: int, *, rounds: int, megabytes: int) -> list[Row]:
    """confluent-kafka's producer with acks=all, and its consumer; no row where it is not installed."""
    rows: list[Row] = []
    if importlib.util.find_spec("confluent_kafka") is None:
        return rows
    places = (ours.running.bootstrap, theirs.running.bootstrap)
    for size, label in SIZES:
        topic, count = f"k{size}", megabytes * 1_000_000 // size
        for arm in (ours, theirs):
            await arm.create(topic, brokers, 1)
        work: tuple[tuple[str, Callable[..., float]], ...] = (("producer acks=all", _produced), ("consumer", _consumed))
        for what, measured in work:
            mine, peer = (_on_a_thread(measured, place, topic, size, count) for place in places)
            pair = await in_turn(mine, peer, rounds=rounds)
            name = f"confluent-kafka {what} RF {brokers}, {label}"
            note = "fetch.queue.backoff.ms=1" if what == "consumer" else ""
            rows.append(Row(name, "records/s", pair.ours, pair.bare, pair.ratio, note=note))
    return rows


def _on_a_thread(measured: Callable[..., float], *given: Any) -> Callable[[], Awaitable[float]]:
    return lambda: asyncio.to_thread(measured, *given)


def _produced(bootstrap: str, topic: str, size: int, count: int) -> float:
    import confluent_kafka

    producer, value, left = (
        confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all"}),
        b"v" * size,
        count,
    )
    failed: list[Any] = []
    began = time.perf_counter()
    while left:
        try:
            for _ in range(left):
                producer.produce(topic, value, on_delivery=lambda error, _: failed.append(error) if error else None)
                left -= 1
        except BufferError:  # its buffer has room for 100,000 records
            producer.poll(0.01)
    still = producer.flush(60)
    if still or failed:
        raise RuntimeError(f"{still} records are not delivered, {len(failed)} have failed: {failed[:1]}")
    return count / (time.perf_counter() - began)


def _consumed(bootstrap: str, topic: str, size: int, count: int) -> float:
    """The first ``count`` records of the partition."""
    import confluent_kafka

    settings = {"bootstrap.servers": bootstrap, "group.id": f"bench-{topic}-{size}", **QUEUE}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    try:
        began, left = time.perf_counter(), count
        while left > 0:
            got = consumer.consume(min(left, 10_000), 60)
            if not got:
                raise RuntimeError(f"{left} of {count} records have not come within a minute")
            for each in got:
                if each.error() is not None:
                    raise RuntimeError(str(each.error()))
            left -= len(got)
        return count / (time.perf_counter() - began)
    finally:
        consumer.close()
