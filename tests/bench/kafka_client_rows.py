"""What a Python program gets through: our clients to our broker beside Python's clients to Apache Kafka's broker.

Defaults on both sides, with acks=all; one broker, one replica. aiokafka's methods have the same names, so that both arms
run the same lines; confluent-kafka (librdkafka, C) stands beside ``send_many`` where it is installed.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import sys
import time
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import aiokafka

import minikafka
from minikafka.types import TopicPartition
from minikafka.wire.records import Record, build_batch
from tests.bench.kafka_arm import Theirs
from tests.bench.loads import PARTITIONS, Arm
from tests.bench.measure import Row, in_turn

SEND_MANY = 10_000
BATCH_VALUES_SIZE = 200_000
SIZES = ((100, "100 B"), (1024, "1 KiB"))


async def client_rows(ours: Arm, theirs: Theirs, bootstrap: str, *, rounds: int, megabytes: int) -> list[Row]:
    """Records a second through one producer, and to one consumer. ``bootstrap`` is our cluster's."""
    rows = []
    async with AsyncExitStack() as stack:
        mine: Any = await stack.enter_async_context(minikafka.Producer(bootstrap_servers=bootstrap, acks="all"))
        peer: Any = aiokafka.AIOKafkaProducer(bootstrap_servers=theirs.running.bootstrap, acks="all")
        await peer.start()
        stack.push_async_callback(peer.stop)
        for size, label in SIZES:
            value = Random(0).randbytes(size)
            count = max(1, megabytes * 1_000_000 // size // SEND_MANY) * SEND_MANY
            for arm in (ours, theirs):
                await arm.create(f"p{size}", 1, 1)
            rows.append(await _send_row(mine, peer, value, label, count // 4, rounds))
            rows.append(await _send_many_row(mine, peer, value, label, count, rounds))
            if importlib.util.find_spec("confluent_kafka") is not None:
                rows.append(await _confluent_row(mine, theirs.running.bootstrap, value, label, count, rounds))
    if importlib.util.find_spec("confluent_kafka") is None:
        sys.stderr.write("confluent-kafka is left out: it is not installed\n")
    for size, label in SIZES:
        rows.append(await _consumer_row(ours, theirs, bootstrap, size, label, rounds, megabytes))
    return rows


def _row(name: str, pair: Any, beside: str, floor: float | None = None) -> Row:
    return Row(name, "records/s", pair.ours, pair.bare, pair.ratio, floor, note=f"Kafka's by {beside}")


async def _send_row(mine: Any, peer: Any, value: bytes, label: str, count: int, rounds: int) -> Row:
    async def through(producer: Any) -> float:
        began = time.perf_counter()
        for _ in range(count):
            await producer.send(f"p{len(value)}", value)
        await producer.flush()
        return count / (time.perf_counter() - began)

    pair = await in_turn(lambda: through(mine), lambda: through(peer), rounds=rounds)
    return _row(f"producer send(), {label}", pair, "aiokafka's send()", floor=1.0)


async def _send_many(mine: Any, value: bytes, count: int) -> float:
    values = [value] * SEND_MANY
    began = time.perf_counter()
    for _ in range(count // SEND_MANY):
        await mine.send_many(f"p{len(value)}", values)
    await mine.flush()
    return count / (time.perf_counter() - began)


async def _send_many_row(mine: Any, peer: Any, value: bytes, label: str, count: int, rounds: int) -> Row:
    async def in_batches() -> float:
        """aiokafka's way for many at once: batches that the program fills."""
        topic, left = f"p{len(value)}", count
        began = time.perf_counter()
        while left:
            batch = peer.create_batch()
            while left and batch.append(key=None, value=value, timestamp=None) is not None:
                left -= 1
            batch.close()
            await peer.send_batch(batch, topic, partition=0)
        await peer.flush()
        return count / (time.perf_counter() - began)

    pair = await in_turn(lambda: _send_many(mine, value, count), in_batches, rounds=rounds)
    return _row(f"producer send_many() of {SEND_MANY:,}, {label}", pair, "aiokafka's send_batch()", floor=1.0)


async def _confluent_row(mine: Any, bootstrap: str, value: bytes, label: str, count: int, rounds: int) -> Row:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all"})

    def produced() -> float:
        produce, topic, left = producer.produce, f"p{len(value)}", count
        began = time.perf_counter()
        while left:
            try:
                for _ in range(left):
                    produce(topic, value)
                    left -= 1
            except BufferError:  # its buffer has room for 100,000 records: then a program waits, as it does with ours
                producer.poll(0.01)
        producer.flush()
        return count / (time.perf_counter() - began)

    pair = await in_turn(lambda: _send_many(mine, value, count), lambda: asyncio.to_thread(produced), rounds=rounds)
    return _row(f"producer send_many() of {SEND_MANY:,} beside C, {label}", pair, "confluent-kafka's produce()")


async def _consumer_row(
    ours: Arm, theirs: Arm, bootstrap: str, size: int, label: str, rounds: int, megabytes: int
) -> Row:
    values = Random(size)
    per_batch = BATCH_VALUES_SIZE // size
    batches = megabytes * 1_000_000 // BATCH_VALUES_SIZE // PARTITIONS * PARTITIONS
    now_ms = time.time_ns() // 1_000_000
    batch = build_batch([Record(0, now_ms, 0, None, values.randbytes(size)) for _ in range(per_batch)])
    topic = f"c{size}"
    for arm in (ours, theirs):
        await arm.create(topic, 1)
        for _, partition in zip(range(batches), itertools.cycle(range(PARTITIONS)), strict=False):
            await arm.produce(topic, partition, batch, 1)

    async def consumed(consumer: Any, kind: Any) -> float:
        consumer.assign([kind(topic, number) for number in range(PARTITIONS)])
        await consumer.seek_to_beginning()
        began = time.perf_counter()
        count = 0
        while count < batches * per_batch:
            count += sum(map(len, (await consumer.getmany(timeout_ms=1000)).values()))
        return count / (time.perf_counter() - began)

    async def by_ours() -> float:
        async with minikafka.Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
            return await consumed(consumer, TopicPartition)

    async def by_aiokafka() -> float:
        peer = aiokafka.AIOKafkaConsumer(bootstrap_servers=theirs.running.bootstrap, auto_offset_reset="earliest")
        await peer.start()
        try:
            return await consumed(peer, aiokafka.TopicPartition)
        finally:
            await peer.stop()

    pair = await in_turn(by_ours, by_aiokafka, rounds=rounds)
    return _row(f"consumer getmany(), {label}", pair, "aiokafka's getmany()")
