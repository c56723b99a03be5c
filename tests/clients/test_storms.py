"""Clients under drawn failures: what they say of each record is true, whatever is lost, late, refused or split."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from minikafka.client.consumer import Consumer
from minikafka.client.producer import Producer
from minikafka.client.settings import ConsumerConfig, ProducerConfig
from minikafka.client.structs import ConsumerRecord, SentRecords
from minikafka.errors import ProtocolError
from minikafka.types import TopicPartition
from minikafka.wire.records import BatchBuilder
from tests.clients.fake_cluster import (
    LATE,
    LOSE_REQUEST,
    RESET_ANSWER,
    RESET_REQUEST,
    UNREACHABLE,
    FakeCluster,
    FakePartition,
    once,
    play,
)

BOOTSTRAP = "broker-1:9092,broker-2:9092,broker-3:9092"
UNLIMITED = 1_048_588
LIMITS = (200, 400, 1000, 3000, UNLIMITED)


class Storm:
    """Failures of calls, elections, too few replicas and lower limits, until it is over."""

    def __init__(self, cluster: FakeCluster, partitions: list[FakePartition], random: Random, apis: set[str]) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._random = random
        self._is_over = False
        level = random.choice([0.05, 0.15, 0.3])
        actions = [RESET_ANSWER, RESET_REQUEST, UNREACHABLE, LATE, LOSE_REQUEST]

        def fault(_node: int, api: str, _request: Any) -> Any:
            if not self._is_over and api in apis and random.random() < level:
                return random.choice([each for each in actions if each != LATE or api == "Produce"])
            return None

        cluster.faults.append(fault)
        self._task = asyncio.ensure_future(self._rage())

    async def _rage(self) -> None:
        random = self._random
        while not self._is_over:
            await asyncio.sleep(random.uniform(0.02, 0.4))
            partition = random.choice(self._partitions)
            kind = random.choice(["elect", "replicas", "limit", "limit"])
            if kind == "elect":
                self._cluster.dead = {partition.leader} if random.random() < 0.5 else set()
                partition.elect(random.choice([1, 2, 3]))
            elif kind == "replicas":
                partition.min_isr_met = not partition.min_isr_met
            else:
                partition.size_max = random.choice(LIMITS)

    async def end(self) -> None:
        """From now on all goes well."""
        self._is_over = True
        await self._task
        self._cluster.dead.clear()
        for each in self._partitions:
            each.min_isr_met, each.size_max = True, UNLIMITED


@pytest.mark.parametrize("seed", range(20))
def test_what_a_producer_says_of_parts_and_batches_is_true(seed: int):
    """S25, KIP-126: with several batches in flight, splits, a small buffer, senders that give up, and an end in the
    midst of it: each offset is that of its record, ``not_written`` is nowhere, and each future has an answer.
    """

    async def story() -> None:
        random = Random(f"storm-{seed}")
        cluster = FakeCluster(seed=seed)
        partitions = cluster.topic("t", 8)
        config = ProducerConfig(
            bootstrap_servers=BOOTSTRAP,
            delivery_timeout_ms=random.choice([1500, 4000]),
            request_timeout_ms=1500,
            linger_ms=2,
            max_in_flight_batches=random.choice([1, 5]),
            max_batch_size=random.choice([300, 16384]),
            buffer_memory=random.choice([4000, 1_000_000]),
            max_block_ms=1000,
        )
        sending = Producer(config, cluster.world)
        await sending.start()
        storm = Storm(cluster, partitions, random, {"Produce", "Metadata", "InitProducerId"})
        sent: list[tuple[int, list[bytes], asyncio.Future[Any]]] = []
        unsent: list[tuple[int, list[bytes], Exception]] = []
        for number in range(200):
            at = random.randrange(8)
            values = [
                b"%d.%d" % (number, each) + b"x" * random.choice([0, 60])
                for each in range(random.choice([1, 1, 8, 40]))
            ]
            # Who cancels a send_many does not learn of what was buffered before.
            patience_s = random.choice([0.05, 5]) if len(values) == 1 else 60
            try:
                async with asyncio.timeout(patience_s):
                    if len(values) == 1:
                        sent.append((at, values, await sending.send("t", values[0], partition=at)))
                    else:
                        parts = await sending.send_many("t", values, partition=at)
                        sent += [(at, [values[index] for index in part.indexes], part.future) for part in parts]
            except (ProtocolError, TimeoutError) as error:
                unsent.append((at, values, error))
            await asyncio.sleep(random.uniform(0, 0.05))
        if random.random() < 0.5:
            await storm.end()
            await sending.flush()
        await sending.stop()
        await storm.end()
        await asyncio.sleep(10)
        logs = [each.values() for each in partitions]
        assert all(len(values) == len(set(values)) for values in logs), "duplicate"
        for at, values, future in sent:
            assert future.done()
            error = future.exception()
            if error is None:
                result = future.result()
                offsets = result.offsets if isinstance(result, SentRecords) else [result.offset]
                assert [logs[at][offset] for offset in offsets] == values
            elif error.outcome == "not_written":  # type: ignore[attr-defined]
                assert not set(values) & set(logs[at])
        for at, values, refusal in unsent:
            assert getattr(refusal, "outcome", "not_written") == "not_written"
            assert not set(values) & set(logs[at])

    play(story, seed=seed)


@pytest.mark.parametrize("seed", range(20))
def test_a_consumer_hands_out_each_record_once_and_in_order_from_each_position_on(seed: int):
    """S35, S36: seeks, pauses, polls of some partitions and calls that are cancelled, while leaders change."""

    async def story() -> None:
        random = Random(f"storm-{seed}")
        cluster = FakeCluster(seed=seed)
        partitions = cluster.topic("t", 3)
        names = [TopicPartition("t", number) for number in range(3)]

        def append(partition: FakePartition) -> None:
            builder = BatchBuilder()
            for offset in range(partition.end, partition.end + random.randrange(1, 30)):
                builder.append(1000 + offset, None, b"%d" % offset, ())
            partition.append(bytes(builder.build()))

        config = ConsumerConfig(
            bootstrap_servers=BOOTSTRAP,
            auto_offset_reset="earliest",
            request_timeout_ms=1500,
            fetch_max_wait_ms=random.choice([0, 500]),
            max_partition_fetch_bytes=random.choice([100, 2000, 1_048_576]),
            max_poll_records=random.choice([1, 7, 500]),
        )
        reading = Consumer(config, cluster.world)
        await reading.start()
        reading.assign(names)
        storm = Storm(cluster, partitions, random, {"Fetch", "Metadata", "ListOffsets", "OffsetForLeaderEpoch"})
        expected = dict.fromkeys(names, 0)

        def take(records: list[ConsumerRecord]) -> None:
            for each in records:
                name = TopicPartition(each.topic, each.partition)
                assert name not in reading.paused()
                assert (each.offset, each.value) == (expected[name], b"%d" % each.offset)
                expected[name] += 1

        for _ in range(150):
            name = random.choice(names)
            partition = partitions[name.partition]
            match random.choice(["append", "append", "poll", "poll", "one", "some", "seek", "pause"]):
                case "append":
                    append(partition)
                case "poll":
                    for records in (await reading.getmany(timeout_ms=random.choice([0, 300]))).values():
                        take(records)
                case "one":
                    try:
                        async with asyncio.timeout(0.3):
                            take([await reading.getone()])
                    except TimeoutError:
                        pass
                case "some":
                    found = await reading.getmany(name, timeout_ms=100)
                    assert set(found) <= {name}
                    take(found.get(name, []))
                case "seek" if partition.end:
                    expected[name] = random.randrange(partition.end)
                    reading.seek(name, expected[name])
                case "pause":
                    (reading.resume if name in reading.paused() else reading.pause)(name)
            if random.random() < 0.2:
                await asyncio.sleep(random.uniform(0, 0.3))
        await storm.end()
        reading.resume(*names)
        while expected != {name: partitions[name.partition].end for name in names}:
            found = await reading.getmany(timeout_ms=60_000)
            assert found, "it does not go on"
            for records in found.values():
                take(records)
        await reading.stop()

    play(story, seed=seed)


def test_an_answer_of_a_fetch_under_way_does_not_count_after_a_seek():
    """The answer comes late, for an offset that nobody waits for any more."""

    async def story() -> None:
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        builder = BatchBuilder()
        for offset in range(10):
            builder.append(1000 + offset, None, b"%d" % offset, ())
        partition.append(bytes(builder.build()))
        config = ConsumerConfig(bootstrap_servers=BOOTSTRAP, auto_offset_reset="earliest")
        async with Consumer(config, cluster.world) as reading:
            cluster.latency_s = 1.0
            cluster.faults.append(once("Fetch", LOSE_REQUEST))
            reading.assign([TopicPartition("t", 0)])
            for offset in (3, 7, 5):
                await asyncio.sleep(1.0)
                reading.seek(TopicPartition("t", 0), offset)
            assert [(await reading.getone()).offset for _ in range(5)] == [5, 6, 7, 8, 9]

    play(story)
