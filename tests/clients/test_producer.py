"""The producer against a scripted cluster in virtual time: retries, outcomes, order (S24 to S27, KIP-98)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from minikafka.client.metadata import ABSENT_S
from minikafka.client.producer import Producer
from minikafka.client.sender import Part, Unwatched
from minikafka.client.settings import ProducerConfig
from minikafka.client.structs import RecordMetadata
from minikafka.errors import (
    ClusterAuthorizationFailed,
    DuplicateSequenceNumber,
    InvalidConfig,
    InvalidRequest,
    MessageTooLarge,
    NetworkException,
    NotEnoughReplicas,
    ProtocolError,
    RequestTimedOut,
    UnknownServerError,
    UnknownTopicOrPartition,
    UnsupportedCompressionType,
)
from minikafka.types import TopicPartition
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire import transaction_messages as t
from minikafka.wire.batch import FOLLOWS, PIPELINED, PLAIN, RecordBatch
from minikafka.wire.records import decode_batch
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


def producer(cluster: FakeCluster, **settings: Any) -> Producer:
    return Producer(ProducerConfig(bootstrap_servers=BOOTSTRAP, **settings), cluster.world)


@asynccontextmanager
async def one_partition(**settings: Any) -> AsyncIterator[tuple[FakeCluster, FakePartition, Producer]]:
    """A cluster whose only topic is ``t``, with one partition, and a producer that has started."""
    cluster = FakeCluster()
    (partition,) = cluster.topic("t")
    async with producer(cluster, **settings) as sending:
        yield cluster, partition, sending


def test_records_arrive_and_their_metadata_says_where():
    """S24, S26: keyed records land in murmur2's partition in order; offsets and timestamps are the log's."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("orders", 3)
        async with producer(cluster) as sending:
            futures = [await sending.send("orders", b"%d" % index, b"key-%d" % (index % 7)) for index in range(100)]
            done = [await future for future in futures]
            assert await sending.partitions_for("orders") == {0, 1, 2}
        for index, metadata in enumerate(done):
            record = partitions[metadata.partition].records()[metadata.offset]
            assert (record.value, record.key) == (b"%d" % index, b"key-%d" % (index % 7))
            assert metadata.topic_partition == TopicPartition("orders", metadata.partition)
            assert metadata.timestamp == record.timestamp
        for key in range(7):
            values = [int(r.value) for each in partitions for r in each.records() if r.key == b"key-%d" % key]
            assert values == sorted(values)
            assert len(values) > 10
        assert len(cluster.named("Produce")) <= 3, "records of one linger go together"

    play(story)


def test_explicit_partition_timestamp_and_headers_are_kept():
    """S26: what the application says goes before the partitioner; headers keep order and doubles."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("t", 3)
        async with producer(cluster, key_serializer=str.encode, value_serializer=str.encode) as sending:
            sent = await sending.send_and_wait(
                "t", "v", "k", partition=2, timestamp_ms=77, headers=[("a", b"1"), ("a", None)]
            )
        (record,) = partitions[2].records()
        assert (sent.partition, sent.offset, sent.timestamp) == (2, 0, 77)
        assert (record.key, record.value, record.timestamp) == (b"k", b"v", 77)
        assert list(record.headers) == [("a", b"1"), ("a", None)]

    play(story)


@pytest.mark.parametrize("action", [RESET_ANSWER, RESET_REQUEST, UNREACHABLE, LOSE_REQUEST, LATE])
def test_a_lost_call_is_repeated_without_a_duplicate(action: str):
    """KIP-98: whatever became of the first attempt, each record is in the log once and its future says so."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        cluster.faults.append(once("Produce", action, count=2))
        async with producer(cluster) as sending:
            futures = [await sending.send("t", b"%d" % index) for index in range(5)]
            offsets = [(await future).offset for future in futures]
            await asyncio.sleep(5)
        assert offsets == [0, 1, 2, 3, 4]
        assert partition.values() == [b"0", b"1", b"2", b"3", b"4"]

    play(story)


def test_the_leader_moves_and_nothing_is_lost_or_reordered():
    """S27: NOT_LEADER names the new leader; the batch goes there at once, in its place."""

    async def story():
        async with one_partition(linger_ms=0) as (cluster, partition, sending):
            await sending.send_and_wait("t", b"0")
            before = cluster.now()
            partition.elect(2)
            await sending.send_and_wait("t", b"1")
            assert cluster.now() - before < 0.05, "the hint saves the pause"
            assert len(cluster.named("Metadata")) <= 2
        assert partition.values() == [b"0", b"1"]

    play(story)


def test_the_leader_dies_and_another_is_elected_later():
    """Default settings: the first attempt after the election succeeds within 0.3 s of it, however long it took."""

    async def story():
        async with one_partition() as (cluster, partition, sending):
            await sending.send_and_wait("t", b"0")
            cluster.dead.add(1)
            future = await sending.send("t", b"1")
            await asyncio.sleep(9.0)
            assert not future.done()
            partition.elect(3)
            elected = cluster.now()
            assert (await future).offset == 1
            assert cluster.now() - elected < 0.3
        assert cluster.overlaps == 0

    play(story)


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_frozen_leader_is_left_once_another_one_is_elected(idempotent: bool):
    """SIGSTOP: connections stay open and nothing answers. An idempotent producer sends to the successor within a second
    of its election; another one waits for the timeout, since the frozen broker may have the records.
    """

    async def story():
        async with one_partition(enable_idempotence=idempotent) as (cluster, partition, sending):
            await sending.send_and_wait("t", b"0")
            began = cluster.now()
            cluster.stopped.add(1)
            future = await sending.send("t", b"1")
            await asyncio.sleep(4.0)
            partition.elect(3)
            elected = cluster.now()
            assert (await future).offset == 1
            if idempotent:
                assert cluster.now() - elected < 1.0
                refreshes = len(cluster.named("Metadata"))
                assert refreshes < 30
            else:
                assert cluster.now() - began > 30.0
        assert partition.values() == [b"0", b"1"]
        assert cluster.overlaps == 0

    play(story)


def test_a_slow_leader_is_waited_for():
    """Overdue alone is no reason to give up: metadata still names the leader, which answers after ten seconds."""

    async def story():
        async with one_partition() as (cluster, partition, sending):
            await sending.send_and_wait("t", b"0")
            cluster.latency_s = 5.0
            future = await sending.send("t", b"1")
            assert (await future).offset == 1
            assert len(cluster.named("Produce")) == 2
        assert partition.values() == [b"0", b"1"]

    play(story)


def test_a_partition_without_a_leader_waits_until_the_delivery_timeout():
    """Outcome: never sent is not_written, and other partitions are not held up."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("t", 2)
        partitions[0].leader = -1
        async with producer(cluster, delivery_timeout_ms=3000) as sending:
            stuck = await sending.send("t", b"a", partition=0)
            assert (await sending.send_and_wait("t", b"b", partition=1)).offset == 0
            with pytest.raises(RequestTimedOut) as caught:
                await stuck
            assert caught.value.outcome == "not_written"
            assert 3.0 <= cluster.now() < 3.2
            partitions[0].leader = 2
            partitions[0].epoch = 1
            assert (await sending.send_and_wait("t", b"c", partition=0)).offset == 0

    play(story)


def test_not_enough_replicas_says_not_written():
    """S24: refused before the append until the delivery timeout; the error is the broker's, the log stays empty."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        partition.min_isr_met = False
        async with producer(cluster, delivery_timeout_ms=2000) as sending:
            with pytest.raises(NotEnoughReplicas) as caught:
                await sending.send_and_wait("t", b"a")
            assert caught.value.outcome == "not_written"
            assert len(cluster.named("Produce")) >= 3
            partition.min_isr_met = True
            assert (await sending.send_and_wait("t", b"b")).offset == 0
        assert partition.values() == [b"b"]

    play(story)


def test_a_write_without_answers_says_unknown_and_the_producer_goes_on():
    """Outcome, KIP-360: appended, answers lost: unknown; the next record is written once, in a new epoch."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        fault = once("Produce", RESET_ANSWER, count=1000)
        cluster.faults.append(fault)
        async with producer(cluster, delivery_timeout_ms=2000) as sending:
            with pytest.raises(RequestTimedOut) as caught:
                await sending.send_and_wait("t", b"a")
            assert caught.value.outcome == "unknown"
            cluster.faults.remove(fault)
            assert (await sending.send_and_wait("t", b"b")).offset == 1
        assert partition.values() == [b"a", b"b"]
        assert [RecordBatch.of(batch).producer_epoch for batch in partition.batches] == [0, 1]

    play(story)


def test_a_hanging_broker_does_not_outlast_the_delivery_timeout():
    """delivery.timeout.ms bounds everything: a future has its answer in time though the request still hangs."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        cluster.faults.append(once("Produce", LOSE_REQUEST, count=99))
        sending = producer(cluster, delivery_timeout_ms=5000, request_timeout_ms=60_000)
        await sending.start()
        with pytest.raises(RequestTimedOut) as caught:
            await sending.send_and_wait("t", b"a")
        assert caught.value.outcome == "unknown"
        assert cluster.now() < 5.1
        await sending.stop()

    play(story)


def test_without_idempotence_a_lost_answer_duplicates():
    """S24: acks=1 turns idempotence off, and then a repeated request is written twice, as documented."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        cluster.faults.append(once("Produce", RESET_ANSWER))
        async with producer(cluster, acks=1) as sending:
            assert (await sending.send_and_wait("t", b"a")).offset == 1
        assert partition.values() == [b"a", b"a"]
        assert cluster.named("InitProducerId") == []

    play(story)


def test_acks_zero_does_not_wait():
    """S24: the future is done when the request leaves, with offset -1; only "no connection" is tried again."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        cluster.latency_s = 1.0
        cluster.faults.append(once("Produce", UNREACHABLE))
        async with producer(cluster, acks=0) as sending:
            await sending.partitions_for("t")
            before = cluster.now()
            metadata = await sending.send_and_wait("t", b"a")
            assert metadata.offset == -1
            assert cluster.now() - before < 0.01
        assert partition.values() == [b"a"]
        assert [request.acks for request in cluster.named("Produce")] == [0, 0]

    play(story)


def test_a_full_buffer_blocks_and_then_refuses():
    """S25: buffer.memory is back-pressure; max.block.ms ends it with an error that names the setting."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        async with producer(cluster, buffer_memory=1000, max_block_ms=500) as sending:
            fault = once("Produce", LOSE_REQUEST, count=99)
            first = await sending.send("t", b"x" * 900)
            cluster.faults.append(fault)
            before = cluster.now()
            with pytest.raises(RequestTimedOut, match="buffer_memory=1000") as caught:
                await sending.send("t", b"y" * 900)
            assert caught.value.outcome == "not_written"
            assert 0.5 <= cluster.now() - before < 0.6
            cluster.faults.clear()
            assert (await first).offset == 0
            waited = [await sending.send("t", b"%d" % index * 400) for index in range(8)]
            assert [(await future).offset for future in waited] == list(range(1, 9))

    play(story)


def test_records_and_requests_have_limits():
    """S25: a record beyond max.request.size is refused at the client, by name, before anything is sent."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        async with producer(cluster, max_request_size=1000) as sending:
            with pytest.raises(MessageTooLarge, match="max_request_size=1000"):
                await sending.send("t", b"x" * 1000)
            with pytest.raises(MessageTooLarge, match="max_request_size=1000"):
                await sending.send_many("t", [b"x", b"x" * 1000])
            with pytest.raises(MessageTooLarge):
                await sending.send("t", b"x", headers=[("h", b"y" * 1000)])
            await sending.flush()
        assert cluster.named("Produce") == []

    play(story)


@pytest.mark.parametrize("code", [10, 18])
def test_a_topic_with_a_lower_limit_splits_batches(code: int):
    """MESSAGE_TOO_LARGE (max.message.bytes) and RECORD_LIST_TOO_LARGE (segment.bytes): batches halve until they fit;
    order and offsets stay right for send and send_many.
    """

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        partition.size_max, partition.too_large = 3000, code
        async with producer(cluster, linger_ms=50) as sending:
            futures = [await sending.send("t", b"%04d" % index + b"x" * 96) for index in range(100)]
            (part,) = await sending.send_many("t", [b"%04d" % index + b"y" * 96 for index in range(100, 200)])
            assert [(await future).offset for future in futures] == list(range(100))
            assert (await part.future).offsets == list(range(100, 200))
        assert [int(value[:4]) for value in partition.values() if value] == list(range(200))
        assert max(map(len, partition.batches)) <= 3000

    play(story)


def test_batches_obey_the_batch_size_under_backlog():
    """Issue 13: max_batch_size=16384 still sent batches of 929,067 bytes while an older one was in flight."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        async with producer(cluster, max_batch_size=2000) as sending:
            futures = [await sending.send("t", b"%04d" % index + b"x" * 96) for index in range(300)]
            parts = await sending.send_many("t", [b"y" * 100] * 300)
            large = await sending.send("t", b"z" * 5000)
            await asyncio.gather(*futures, large, *(part.future for part in parts))
        *others, last = partition.batches
        assert max(map(len, others)) <= 2000
        assert [len(record.value) for record in decode_batch(last)] == [5000]
        assert cluster.overlaps > 0, "batches need not wait for those before them"

    play(story)


def test_records_without_futures_arrive_among_those_with_one():
    """Order, offsets and splits are those of all records; nothing is kept for each record without a future."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        partition.size_max = 3000
        futures = {}
        async with producer(cluster, linger_ms=50) as sending:
            for index in range(100):
                value = b"%04d" % index + b"x" * 96
                if index % 10 == 5:
                    futures[index] = await sending.send("t", value)
                else:
                    assert await sending.send("t", value, future=False) is None
            (queue,) = sending._topics["t"]
            assert sum(len(batch.waiters) for batch in queue.batches) <= 21
            await sending.flush()
            assert {index: future.result().offset for index, future in futures.items()} == {
                index: index for index in futures
            }
        assert [int(value[:4]) for value in partition.values() if value] == list(range(100))

    play(story)


def test_flush_raises_the_first_error_of_records_without_futures_once():
    """With the number of records that failed; a record with a future is not among them."""

    async def story():
        async with one_partition(delivery_timeout_ms=2000) as (_, partition, sending):
            partition.min_isr_met = False
            for value in (b"a", b"b", b"c"):
                await sending.send("t", value, future=False)
            watched = await sending.send("t", b"d")
            with pytest.raises(NotEnoughReplicas, match="3 of the records that were sent without a future") as caught:
                await sending.flush()
            assert caught.value.outcome == "not_written"
            with pytest.raises(NotEnoughReplicas):
                await watched
            partition.min_isr_met = True
            await sending.send("t", b"e", future=False)
            await sending.flush()
        assert partition.values() == [b"e"]

    play(story)


def test_stop_raises_what_nobody_has_flushed():
    """Leaving the block does, too, unless another exception leaves it."""

    async def story():
        with pytest.raises(NotEnoughReplicas):
            async with one_partition(delivery_timeout_ms=2000) as (_, partition, sending):
                partition.min_isr_met = False
                await sending.send("t", b"a", future=False)
        with pytest.raises(ZeroDivisionError):
            async with one_partition(delivery_timeout_ms=2000) as (_, partition, sending):
                partition.min_isr_met = False
                await sending.send("t", b"a", future=False)
                raise ZeroDivisionError

    play(story)


def test_failures_without_futures_are_unknown_if_one_of_them_is():
    """The first error is raised; what is said about all of them holds for each."""
    unwatched = Unwatched()
    unwatched.refused(NotEnoughReplicas("too few", outcome="not_written"), 2)
    unwatched.refused(RequestTimedOut("late", outcome="unknown"), 1)
    with pytest.raises(NotEnoughReplicas, match=r"too few \(3 of the records") as caught:
        unwatched.check()
    assert caught.value.outcome == "unknown"
    unwatched.check()


def test_send_many_reports_by_part():
    """The batch call: keyed rows go where murmur2 says, each index is in exactly one part, offsets are right."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("t", 3)
        rows = [(b"key-%d" % (index % 11), b"%d" % index) for index in range(500)]
        async with producer(cluster) as sending:
            parts = await sending.send_many("t", rows)
            seen: dict[int, tuple[int, int]] = {}
            for part in parts:
                sent = await part.future
                for index, offset in zip(part.indexes, sent.offsets, strict=True):
                    seen[index] = (part.partition, offset)
            assert await sending.send_many("t", []) == []
        assert sorted(seen) == list(range(500))
        for index, (partition, offset) in seen.items():
            record = partitions[partition].records()[offset]
            assert (record.key, record.value) == rows[index]

    play(story)


@pytest.mark.parametrize("refused_first", [True, False])
def test_a_part_of_which_some_records_were_written_has_an_unknown_outcome(refused_first: bool):
    """A batch that was split: half of it was refused, and sending the part again would double the other half. It was
    reported as not written if that half was refused first, before the other one was written.
    """

    async def story():
        part = Part(asyncio.get_running_loop().create_future(), 3)
        steps = [
            lambda: part.landed(RecordMetadata("t", 0, TopicPartition("t", 0), 5, 0, 0, 0), 2),
            lambda: part.refused(NotEnoughReplicas("too few", outcome="not_written"), 1),
        ]
        for step in reversed(steps) if refused_first else steps:
            assert not part.future.done()
            step()
        with pytest.raises(NotEnoughReplicas, match="other records of the part were written") as caught:
            await part.future
        assert caught.value.outcome == "unknown"

    play(story)


@pytest.mark.parametrize(("other", "outcome"), [("not_written", "not_written"), ("unknown", "unknown")])
def test_a_part_is_not_written_only_if_none_of_its_records_may_be(other: str, outcome: str):
    """The first error is raised, with the outcome of all."""

    async def story():
        part = Part(asyncio.get_running_loop().create_future(), 2)
        part.refused(NotEnoughReplicas("too few", outcome="not_written"), 1)
        part.refused(RequestTimedOut("late", outcome=other), 1)  # type: ignore[arg-type]
        with pytest.raises(NotEnoughReplicas) as caught:
            await part.future
        assert caught.value.outcome == outcome

    play(story)


@pytest.mark.parametrize("way", ["send_many", "send_batch"])
def test_offsets_of_a_split_batch_belong_to_their_records_when_an_answer_is_lost(way: str):
    """KIP-126, S25: the answer to one of the parts came after that to the next one, and their offsets were swapped."""

    async def story():
        async with one_partition(max_batch_size=16384) as (cluster, partition, sending):
            values = [b"%02d" % number + b"x" * 100 for number in range(12)]
            partition.size_max = 500
            produced = 0

            def lose_an_answer(_node: int, api: str, _request: Any) -> Any:
                nonlocal produced
                produced += api == "Produce"
                # The first one is refused, the second makes the partition steady: others follow together.
                return RESET_ANSWER if api == "Produce" and produced == lost else None

            cluster.faults.append(lose_an_answer)
            for lost in range(2, 14):  # noqa: B007 - lose_an_answer reads it
                produced, before = 0, partition.end
                if way == "send_many":
                    (part,) = await sending.send_many("t", values, partition=0)
                    offsets = (await part.future).offsets
                else:
                    batch = sending.create_batch()
                    for value in values:
                        batch.append(timestamp=None, key=None, value=value)
                    offsets = [(await (await sending.send_batch(batch, "t", partition=0))).offset]
                assert offsets == list(range(before, before + len(offsets)))
                assert partition.values()[before:] == values
                sending._sender.topics["t"][0].size_max = 16384  # as if the producer were new

    play(story)


def test_send_many_without_keys_uses_large_batches():
    """The batch call: records that are all there fill requests, and spread over partitions (KIP-794)."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("t", 3)
        async with producer(cluster) as sending:
            parts = await sending.send_many("t", [b"x" * 100] * 40_000)
            await asyncio.gather(*(part.future for part in parts))
        assert sum(each.end for each in partitions) == 40_000
        assert all(each.end > 0 for each in partitions)
        assert sum(len(each.batches) for each in partitions) <= 6

    play(story)


def test_send_many_mixes_forms_and_a_failed_part_says_so():
    """The batch call: values, (key, value, headers, timestamp) and None; a refused part has the outcome."""

    async def story():
        async with one_partition(delivery_timeout_ms=1000) as (_, partition, sending):
            parts = await sending.send_many("t", [b"a", (None, b"b"), (b"k", None, [("h", b"1")], 5)], partition=0)
            for part in parts:
                await part.future
            with pytest.raises(InvalidRequest):
                await sending.send_many("t", [(b"k",)])
            partition.min_isr_met = False
            (part,) = await sending.send_many("t", [b"c"])
            with pytest.raises(NotEnoughReplicas) as caught:
                await part.future
            assert caught.value.outcome == "not_written"
        last = partition.records()[-1]
        assert (last.key, last.value, last.timestamp, list(last.headers)) == (b"k", None, 5, [("h", b"1")])

    play(story)


def test_a_filled_batch_is_sent_as_it_is():
    """aiokafka's create_batch and send_batch: one batch, the future is its first record's metadata."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("t", 2)
        async with producer(cluster, max_batch_size=200) as sending:
            batch = sending.create_batch()
            count = 0
            while batch.append(timestamp=count, key=None, value=b"%d" % count) is not None:
                count += 1
            assert count == batch.record_count() > 5
            assert batch.size() <= 200
            first = await (await sending.send_batch(batch, "t", partition=1))
            assert (first.offset, first.partition, first.timestamp) == (0, 1, 0)
            assert batch.append(timestamp=1, key=None, value=b"") is None
            with pytest.raises(InvalidRequest):
                await sending.send_batch(sending.create_batch(), "t", partition=1)
        assert len(partitions[1].batches) == 1
        assert partitions[1].end == count

    play(story)


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compression(compression: str):
    """S25: the client compresses, the batch names its codec, the records come back."""

    async def story():
        async with one_partition(compression_type=compression) as (_, partition, sending):
            for _ in range(50):
                await sending.send("t", b"the same again and again")
        assert partition.values() == [b"the same again and again"] * 50
        assert RecordBatch.of(partition.batches[0]).codec == ["none", "gzip", "snappy", "lz4", "zstd"].index(
            compression
        )

    play(story)


def test_a_partitioner_of_ones_own():
    """S26: pluggable, with aiokafka's signature; a partition out of range is the application's error."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("t", 3)
        partitions[0].leader = -1
        asked = []

        def last(key: bytes | None, everything: Any, available: Any) -> int:
            asked.append((key, list(everything), list(available)))
            return everything[-1] if key != b"bad" else 3

        async with producer(cluster, partitioner=last) as sending:
            assert (await sending.send_and_wait("t", b"v", b"k")).partition == 2
            with pytest.raises(InvalidRequest, match="chose partition 3"):
                await sending.send("t", b"v", b"bad")
        assert asked[0] == (b"k", [0, 1, 2], [1, 2])

    play(story)


def test_a_topic_that_appears_late_is_waited_for():
    """S27: send waits for metadata; a topic nobody knows is an error after max.block.ms, not written."""

    async def story():
        cluster = FakeCluster()
        async with producer(cluster, max_block_ms=2000) as sending:
            asyncio.get_running_loop().call_later(1.0, cluster.topic, "late")
            assert (await sending.send_and_wait("late", b"v")).offset == 0
            before = cluster.now()
            with pytest.raises(UnknownTopicOrPartition) as caught:
                await sending.send("never", b"v")
            assert caught.value.outcome == "not_written"
            assert cluster.now() - before == pytest.approx(2.0, abs=0.05)
            with pytest.raises(UnknownTopicOrPartition, match="late has 1 partition, number 0; there is no 4"):
                await sending.send("late", b"v", partition=4)
            assert cluster.now() - before == pytest.approx(4.0, abs=0.1)

    play(story)


def test_a_partition_that_does_not_exist_is_an_error_once_fresh_metadata_has_confirmed_it():
    """It waited max_block_ms (60 s), although each response said how many partitions the topic has."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t", 3)
        async with producer(cluster) as sending:
            before = cluster.now()
            with pytest.raises(UnknownTopicOrPartition) as caught:
                await sending.send("t", b"v", partition=7)
            assert caught.value.message == "t has 3 partitions, numbers 0 to 2; there is no 7"
            assert caught.value.outcome == "not_written"
            assert ABSENT_S <= cluster.now() - before < ABSENT_S + 2.0
            assert cluster.named("Produce") == []

    play(story)


def test_a_partition_that_is_being_added_is_waited_for():
    """Each change of the number of partitions begins the wait again, and silence confirms nothing."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("t")
        loop = asyncio.get_running_loop()
        async with producer(cluster) as sending:
            for seconds in (2.5, 5.0):
                loop.call_later(seconds, lambda: partitions.append(type(partitions[0])(leader=2)))
            assert (await sending.send_and_wait("t", b"v", partition=2)).partition == 2
            cluster.faults.append(once("Metadata", UNREACHABLE, count=10_000))
            loop.call_later(20.0, cluster.faults.clear)
            loop.call_later(20.0, lambda: partitions.append(type(partitions[0])(leader=2)))
            assert (await sending.send_and_wait("t", b"v", partition=3)).partition == 3

    play(story)


def test_more_partitions_are_seen_at_the_metadata_age():
    """S27: metadata.max.age.ms refreshes without any error."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("t")
        async with producer(cluster, metadata_max_age_ms=5000) as sending:
            assert await sending.partitions_for("t") == {0}
            partitions.append(type(partitions[0])(leader=2))
            await asyncio.sleep(6.0)
            assert await sending.partitions_for("t") == {0, 1}
            assert (await sending.send_and_wait("t", b"v", partition=1)).offset == 0

    play(story)


def test_a_topic_that_is_new_to_the_client_is_looked_up_at_once():
    """The pause between two requests is for those who ask again; whoever has many topics would pay it for each."""

    async def story():
        cluster = FakeCluster()
        for number in range(10):
            cluster.topic(f"t{number}")
        async with producer(cluster, retry_backoff_ms=100, retry_backoff_max_ms=1000) as sending:
            before = cluster.now()
            for number in range(10):
                await sending.send_and_wait(f"t{number}", b"v")
            assert cluster.now() - before < 0.1

    play(story)


def test_older_metadata_is_not_believed():
    """S27: a broker that lags behind answers with the old leader; the producer keeps the newer one."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")

        async with producer(cluster) as sending:
            await sending.send_and_wait("t", b"0")
            stale = cluster._on_Metadata(1, m.MetadataRequest(topics=("t",)))
            cluster.metadata_offset += 1
            partition.elect(2)
            await sending.send_and_wait("t", b"1")
            cluster.faults.append(lambda node, api, _request: stale if api == "Metadata" and node != 3 else None)
            for index in range(20):
                sending._metadata.refresh_soon()  # type: ignore[union-attr]
                await asyncio.sleep(0.2)
                await sending.send_and_wait("t", b"%d" % index)
                assert sending._metadata.view.leader("t", 0).node == 2  # type: ignore[union-attr]

    play(story)


def test_response_that_lacks_a_partition_says_nothing_of_its_records():
    """They may be in the log: the outcome is unknown, as without a response."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        cluster.faults.append(once("Produce", m.ProduceResponse(partitions=())))
        sending = producer(cluster, enable_idempotence=False)
        await sending.start()
        with pytest.raises(UnknownServerError) as caught:
            await sending.send_and_wait("t", b"a")
        assert caught.value.outcome == "unknown"
        await sending.stop()

    play(story)


def test_outcomes_when_a_producer_ends_by_itself():
    """Only a record that was never sent is certainly not written: neither one in flight nor one that is sent again."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t", 3)
        cluster.faults.append(once("Produce", RESET_REQUEST, node=1))
        cluster.faults.append(once("Produce", LOSE_REQUEST, node=2))
        sending = producer(cluster, linger_ms=100, retry_backoff_ms=60_000, retry_backoff_max_ms=60_000)
        await sending.start()
        futures = [await sending.send("t", b"v", partition=at) for at in (0, 1)]
        await asyncio.sleep(1.0)
        futures.append(await sending.send("t", b"v", partition=2))
        sending._sender.fail(RuntimeError("a bug"))
        assert [future.exception().outcome for future in futures] == ["unknown", "unknown", "not_written"]
        with pytest.raises(RuntimeError, match="a bug"):
            await sending.send("t", b"v")
        await sending.stop()

    play(story)


def test_records_without_acknowledgement_are_not_sent_again_if_they_may_be_written():
    """acks=0: no caller waits for them, and a second copy would be a record that the application did not send."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        cluster.faults.append(once("Produce", RESET_ANSWER))
        sending = producer(cluster, acks=0, enable_idempotence=False)
        await sending.start()
        await sending.send_and_wait("t", b"a")
        await asyncio.sleep(10)
        assert partition.end == 1
        await sending.stop()

    play(story)


def test_batch_that_the_leader_calls_a_duplicate_is_acknowledged():
    """Its records are in the log, at offsets that the leader has forgotten."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        known = m.ProducedPartition.failed(DuplicateSequenceNumber("it was written"), topic="t", partition=0)
        cluster.faults.append(once("Produce", m.ProduceResponse(partitions=(known,))))
        sending = producer(cluster)
        await sending.start()
        futures = [await sending.send("t", b"a"), await sending.send("t", b"b")]
        assert [(await future).offset for future in futures] == [-1, -1]
        await sending.stop()

    play(story)


@pytest.mark.parametrize(
    "in_flight, expected", [(5, [PIPELINED, PIPELINED, FOLLOWS]), (1, [PLAIN, PLAIN, PLAIN])], ids=["several", "one"]
)
def test_leader_learns_which_batches_were_sent_while_others_were_in_flight(in_flight: int, expected: list[int]):
    """By that a leader that does not know the producer tells the first batch from one whose predecessor was lost."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        async with producer(cluster, linger_ms=0, max_in_flight_batches=in_flight) as sending:
            await sending.send_and_wait("t", b"a")
            cluster.latency_s = 1.0
            second = await sending.send("t", b"b")
            await asyncio.sleep(0.1)
            third = await sending.send("t", b"c")
            assert [(await second).offset, (await third).offset] == [1, 2]
        assert [each.sequencing for request in cluster.named("Produce") for each in request.partitions] == expected
        assert partition.values() == [b"a", b"b", b"c"]

    play(story)


def test_sequences_continue_when_a_topic_was_out_of_sight():
    """A broker that has just started knows no topic yet. With sequences from 0 the next batch would be a duplicate."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        sending = producer(cluster)
        await sending.start()
        await sending.send_and_wait("t", b"a")
        sending._sender.topics.clear()
        assert (await sending.send_and_wait("t", b"b")).offset == 1
        assert partition.end == 2
        await sending.stop()

    play(story)


def test_stop_sends_what_is_buffered():
    """S25: stop flushes; afterwards the producer refuses; a second stop does nothing."""

    async def story():
        cluster = FakeCluster()
        (partition,) = cluster.topic("t")
        sending = producer(cluster, linger_ms=60_000)
        with pytest.raises(InvalidRequest, match="not started"):
            await sending.send("t", b"v")
        await sending.start()
        futures = [await sending.send("t", b"%d" % index) for index in range(3)]
        await sending.stop()
        assert [future.result().offset for future in futures] == [0, 1, 2]
        assert partition.end == 3
        await sending.stop()
        with pytest.raises(InvalidRequest, match="was stopped"):
            await sending.send("t", b"v")

    play(story)


def test_flush_waits_for_what_was_sent_before_it():
    """S25: flush does not linger, and does not wait for what comes later."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t", 2)
        async with producer(cluster, linger_ms=60_000) as sending:
            early = [await sending.send("t", b"v", partition=index) for index in (0, 1)]
            await sending.flush()
            assert all(future.done() for future in early)
            late = await sending.send("t", b"v")
            assert not late.done()

    play(story)


def test_nobody_at_the_bootstrap_servers():
    """start fails with a sentence instead of hanging for ever."""

    async def story():
        cluster = FakeCluster()
        cluster.dead.update(cluster.brokers)
        with pytest.raises(NetworkException, match="no bootstrap server answers"):
            await producer(cluster, default_api_timeout_ms=2000).start()

    play(story)


def test_one_bootstrap_server_is_enough():
    """The list needs one live server; a stopped process is passed over in two seconds."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        cluster.dead.add(2)
        cluster.stopped.add(3)
        async with producer(cluster) as sending:
            await sending.send_and_wait("t", b"v")
        assert cluster.now() < 10

    play(story)


def test_the_producer_ends_loudly_in_another_cluster():
    """Metadata of another cluster ends the producer: its waiters and its callers are told."""

    async def story():
        async with one_partition() as (cluster, partition, sending):
            await sending.send_and_wait("t", b"v")
            partition.leader = -1
            partition.epoch += 1
            future = await sending.send("t", b"w")
            other = m.MetadataResponse(cluster_id="other")
            cluster.faults.append(once("Metadata", lambda _request: other, count=99))
            with pytest.raises(RequestTimedOut) as caught:
                await future
            assert caught.value.outcome == "not_written"
            with pytest.raises(ProtocolError, match="belongs to cluster fake"):
                await sending.send("t", b"x")

    play(story)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"acks": 2}, "acks=2"),
        ({"acks": "2"}, "acks='2'"),
        ({"acks": "1", "enable_idempotence": True}, "needs acks='all'"),
        ({"acks": 1, "enable_idempotence": True}, "needs acks='all'"),
        ({"transactional_id": "x", "acks": 1}, "transactional_id='x' needs acks='all'"),
        ({"transactional_id": ""}, "transactional_id is empty"),
        ({"linger_ms": -1}, "linger_ms"),
        ({"bootstrap_servers": "nowhere"}, "not host:port"),
        ({"retry_backoff_max_ms": 10}, "retry_backoff_max_ms"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], words: str):
    """A wrong setting is an error that names it, at once."""
    with pytest.raises(InvalidConfig, match=words):
        ProducerConfig(**settings)


@pytest.mark.parametrize(("given", "wire"), [("all", -1), ("-1", -1), ("1", 1), (1, 1), ("0", 0)])
def test_acks_may_be_text(given: int | str, wire: int):
    """As in Java's properties, confluent-kafka, and `cluster.sync.produce(..., acks="1")`."""
    assert ProducerConfig(acks=given).required_acks == wire


def test_an_unknown_codec_is_refused():
    """S25: compression.type is checked before the first record."""
    with pytest.raises(UnsupportedCompressionType, match="brotli"):
        ProducerConfig(compression_type="brotli")


@pytest.mark.parametrize("in_flight", [1, 5])
@pytest.mark.parametrize("seed", range(25))
def test_order_and_outcomes_hold_under_failures(seed: int, in_flight: int):
    """KIP-98, S24: lost, late and repeated calls, elections and dead leaders: no duplicate, no reorder, and every
    outcome is true: acknowledged is at its offset, not_written is nowhere.
    """

    async def story():
        cluster = FakeCluster(seed=seed)
        random = Random(f"plan-{seed}")
        partitions = cluster.topic("t", 3)
        actions = [RESET_ANSWER, RESET_REQUEST, UNREACHABLE, LATE, LOSE_REQUEST]

        def trouble(_node: int, api: str, _request: Any) -> Any:
            if not calm and api in ("Produce", "Metadata", "InitProducerId") and random.random() < 0.25:
                return random.choice(actions)
            return None

        calm = False
        cluster.faults.append(trouble)
        cluster.latency_s = 0.02

        async def elections() -> None:
            while not calm:
                await asyncio.sleep(random.uniform(0.2, 1.5))
                chosen = random.choice(partitions)
                cluster.dead.clear()
                if random.random() < 0.5:
                    cluster.dead.add(chosen.leader)
                chosen.elect(random.choice([1, 2, 3]))

        results: list[tuple[int, bytes, asyncio.Future[Any]]] = []
        times = {"delivery_timeout_ms": 4000, "request_timeout_ms": 1500, "linger_ms": 2}
        sending = producer(cluster, **times, max_in_flight_batches=in_flight)
        calm = True
        await sending.start()
        calm = False
        storm = asyncio.ensure_future(elections())
        for index in range(300):
            partition = random.randrange(3)
            value = b"%d" % index
            results.append((partition, value, await sending.send("t", value, partition=partition)))
            await asyncio.sleep(random.uniform(0, 0.05))
        calm = True
        await storm
        cluster.dead.clear()
        await sending.flush()
        await asyncio.sleep(10)
        await sending.stop()
        assert (cluster.overlaps > 0) == (in_flight > 1)
        acknowledged = 0
        for partition in range(3):
            values = partitions[partition].values()
            assert len(values) == len(set(values)), "duplicate"
            assert [int(v or b"") for v in values] == sorted(int(v or b"") for v in values), "reordered"
            for where, value, future in results:
                if where != partition:
                    continue
                error = future.exception()
                if error is None:
                    acknowledged += 1
                    assert values[future.result().offset] == value
                elif error.outcome == "not_written":  # type: ignore[attr-defined]
                    assert value not in values
        assert acknowledged > 100

    play(story, seed=seed)


UNFIT = [
    ({"value": "tea"}, "value: bytes are needed, not str: encode it, or give a value_serializer"),
    ({"value": 5}, "value: bytes are needed, not int"),
    ({"value": b"tea", "key": "ann"}, "key: bytes are needed, not str"),
    ({"value": b"tea", "headers": [("a", "b")]}, "headers: pairs of (str, bytes or None) are needed, not ('a', 'b')"),
    ({"value": b"tea", "headers": [(b"a", b"b")]}, "headers: pairs"),
    ({"value": b"tea", "headers": {"a": b"b"}}, "headers: pairs"),
    ({"value": b"tea", "timestamp_ms": "now"}, "timestamp_ms: milliseconds since 1970 are needed, not 'now'"),
    ({"value": b"tea", "timestamp_ms": 2**70}, "timestamp_ms: milliseconds"),
    ({"value": b"tea", "timestamp_ms": 1.5}, "timestamp_ms: milliseconds since 1970 are needed, not 1.5"),
    ({"value": b"tea", "partition": "0"}, "partition: a number is needed, not '0'"),
]


@pytest.mark.parametrize(("given", "told"), UNFIT)
def test_what_is_not_bytes_is_refused_with_a_sentence_and_the_next_record_is_sent_at_once(given: Any, told: str):
    """S24: it left an empty batch behind, in which the next record lay until its delivery timeout."""

    async def story():
        async with one_partition() as (cluster, partition, sending):
            await sending.send_and_wait("t", b"first")
            with pytest.raises(InvalidRequest) as refused:
                await sending.send("t", **given)
            assert refused.value.message.startswith(told)
            assert refused.value.outcome == "not_written"
            before = cluster.now()
            assert (await sending.send_and_wait("t", b"second")).offset == 1
            assert cluster.now() - before < 1
        assert partition.values() == [b"first", b"second"]

    play(story)


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ([b"a", "b", b"c"], "record 1: value: bytes are needed, not str"),
        ([(b"k", b"a"), ("k", b"b")], "record 1: key: bytes are needed, not str"),
        ([(None, b"a", [("h", b"1")]), (None, b"b", [("h", 1)])], "record 1: headers: pairs"),
        ([(None, b"a", None, 2**70)], "record 0: timestamp_ms: milliseconds"),
        ([*[(None, b"a", None, 7)] * 4, (None, b"b", None, 2**70)], "record 4: timestamp_ms: milliseconds"),
        ([*[(None, b"a", None, 7)] * 3, (None, b"b", None, -(2**70))], "record 3: timestamp_ms: milliseconds"),
        ("tea", "record 0: value: bytes are needed, not str"),
    ],
)
def test_send_many_refuses_all_before_anything_is_buffered(records: Any, told: str):
    """S24: the first two of three records were in the codec's memory and in nobody's count."""

    async def story():
        async with one_partition() as (_, partition, sending):
            with pytest.raises(InvalidRequest) as refused:
                await sending.send_many("t", records)
            assert refused.value.message.startswith(told)
            for part in await sending.send_many("t", [b"x", bytearray(b"y"), memoryview(b"z")]):
                await part.future
        assert partition.values() == [b"x", b"y", b"z"]

    play(story)


def test_a_batch_of_the_applications_own_refuses_what_is_not_bytes():
    """S24: the sentence is the same, and the batch can be filled on."""

    async def story():
        async with one_partition() as (_, partition, sending):
            batch = sending.create_batch()
            with pytest.raises(InvalidRequest, match="value: bytes are needed, not str"):
                batch.append(timestamp=None, key=None, value="tea")  # type: ignore[arg-type]
            batch.append(timestamp=None, key=None, value=b"tea")
            await (await sending.send_batch(batch, "t", partition=0))
        assert partition.values() == [b"tea"]

    play(story)


def test_a_topic_that_is_no_text_is_refused_at_once():
    """S24: it waited max_block_ms for a topic of that name."""

    async def story():
        cluster = FakeCluster()
        async with producer(cluster) as sending:
            with pytest.raises(InvalidRequest, match="topic: a str is needed, not bytes"):
                await sending.send(b"t", b"tea")  # type: ignore[arg-type]
            assert cluster.now() < 1

    play(story)


def test_a_producer_starts_once():
    """Also after a start that failed: its connections are closed."""

    async def story():
        cluster = FakeCluster()
        sending = producer(cluster)
        async with sending:
            with pytest.raises(InvalidRequest, match="starts once: make a new one"):
                await sending.start()

    play(story)


@pytest.mark.parametrize("idle_s", [0.0, 5.0])
def test_a_refused_producer_id_fails_what_waits_for_it_at_once(idle_s: float):
    """KIP-679: without the permission to write, a producer waited for its delivery timeout and did not say why."""

    async def story():
        async with one_partition() as (cluster, partition, sending):
            await asyncio.sleep(idle_s)
            refusal = once("InitProducerId", m.InitProducerIdResponse(error_code=31, error_message="not permitted"))
            cluster.faults.append(refusal)
            began = cluster.now()
            first, second = [await sending.send("t", value) for value in (b"a", b"b")]
            for each in (first, second):
                with pytest.raises(ClusterAuthorizationFailed, match="not permitted") as caught:
                    await each
                assert caught.value.outcome == "not_written"
            assert cluster.now() - began < 1.0
            assert (await sending.send_and_wait("t", b"c")).offset == 0, "it was granted meanwhile"
            assert partition.values() == [b"c"]
        assert "delivery_failed" in cluster.kinds()

    play(story)


@pytest.mark.parametrize("what", ["leader", "producer id"])
def test_the_delivery_timeout_of_what_was_never_sent_says_what_it_waited_for(what: str):
    """The error named the timeout only, and nobody could see what to mend."""

    async def story():
        async with one_partition(delivery_timeout_ms=2000) as (cluster, partition, sending):
            if what == "leader":
                partition.leader = -1
            else:
                cluster.faults.append(once("InitProducerId", UNREACHABLE, count=1000))
            waiting = [await sending.send("t", value) for value in (b"a", b"b" * 200_000)]
            for each in waiting:
                with pytest.raises(
                    RequestTimedOut, match=f"{what}.*" + ("refused" if what != "leader" else "")
                ) as caught:
                    await each
                assert caught.value.outcome == "not_written"

    play(story)


def test_flush_and_stop_do_not_outlast_the_delivery_timeout():
    """flush waits for answers, and a batch past its delivery timeout has one, though its request still hangs."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        cluster.faults.append(once("Produce", LOSE_REQUEST, count=99))
        sending = producer(cluster, delivery_timeout_ms=5000, request_timeout_ms=60_000)
        await sending.start()
        late = await sending.send("t", b"a")
        await sending.flush()
        assert late.done()
        assert isinstance(late.exception(), RequestTimedOut)
        assert cluster.now() < 5.1
        late = await sending.send("t", b"b")
        await sending.stop()
        assert late.done()
        assert late.exception() is not None
        assert cluster.now() < 10.2

    play(story)


def transactional(cluster: FakeCluster) -> list[bool]:
    """A transaction coordinator; how transactions were ended, in order (True: committed)."""
    ends: list[bool] = []

    def coordinate(_node: int, api: str, request: Any) -> Any:
        if api == "FindCoordinator":
            found = g.Coordinator(key=request.keys[0], node_id=1, host="broker-1", port=9092)
            return g.FindCoordinatorResponse(coordinators=(found,))
        return None

    def end(_node: int, request: t.EndTxnRequest) -> t.EndTxnResponse:
        ends.append(request.committed)
        return t.EndTxnResponse(producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1)

    cluster.faults.append(coordinate)
    cluster._on_EndTxn = end  # type: ignore[attr-defined]
    return ends


@pytest.mark.parametrize("how", ["abort", "block", "stop", "commit"])
def test_a_commit_that_was_given_up_before_it_was_requested_can_be_aborted(how: str):
    """KIP-98: nothing was committed, and readers waited for the transaction's timeout: only a commit was allowed."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        ends = transactional(cluster)
        sent: list[asyncio.Future[RecordMetadata]] = []
        async with producer(cluster, transactional_id="x") as sending:
            cluster.faults.append(once("Produce", LOSE_REQUEST))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    if how == "block":
                        async with sending.transaction():
                            sent.append(await sending.send("t", b"a"))
                    else:
                        await sending.begin_transaction()
                        sent.append(await sending.send("t", b"a"))
                        await sending.commit_transaction()
            if how == "abort":
                await sending.abort_transaction()
            elif how == "commit":
                await sending.commit_transaction()
        assert [each.exception() is None for each in sent] == [how == "commit"]
        assert ends == [how == "commit"]

    play(story)


def test_a_commit_without_an_answer_can_only_be_repeated():
    """KIP-98: it may have happened, so that an abort is refused, also after a second attempt that was given up."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t")
        ends = transactional(cluster)
        async with producer(cluster, transactional_id="x") as sending:
            await sending.begin_transaction()
            await sending.send("t", b"a")
            cluster.faults.append(once("EndTxn", LOSE_REQUEST, count=2))
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await sending.commit_transaction()
                with pytest.raises(InvalidRequest, match="commit is under way"):
                    await sending.abort_transaction()
            await sending.commit_transaction()
        assert ends == [True]

    play(story)


def test_a_topic_that_was_created_again_with_fewer_partitions_takes_records_at_once():
    """S26: records without a key went on to the sticky partition, which was gone: IndexError."""

    async def story():
        cluster = FakeCluster()
        for number in range(2, 30):
            cluster.topic("t", number)
            async with producer(cluster, metadata_max_age_ms=1000) as sending:
                first = await sending.send_and_wait("t", b"former")
                cluster.topic("t", 1)
                cluster.metadata_offset += 1
                await asyncio.sleep(2.0)
                assert (await sending.send_and_wait("t", b"a")).partition == 0
                (part,) = await sending.send_many("t", [b"b", b"c"])
                assert (part.partition, (await part.future).offsets) == (0, [1, 2])
                if first.partition:
                    with pytest.raises(UnknownTopicOrPartition):
                        await sending.send("t", b"d", partition=first.partition)

    play(story)


def test_a_topic_that_loses_partitions_in_the_midst_of_send_many_fails_the_rest_of_its_records():
    """What was buffered before keeps its future: an IndexError let nobody know of it."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t", 3)
        times = {"metadata_max_age_ms": 100, "request_timeout_ms": 500, "delivery_timeout_ms": 2000}
        async with producer(cluster, **times, buffer_memory=20_000) as sending:
            rows = [(b"key-%d" % number, b"x" * 1000) for number in range(300)]
            sends = asyncio.ensure_future(sending.send_many("t", rows))
            await asyncio.sleep(0.01)
            assert not sends.done(), "the buffer is full"
            cluster.topic("t", 1)
            cluster.metadata_offset += 1
            parts = await sends
            assert sorted(index for part in parts for index in part.indexes) == list(range(300))
            gone = [(await asyncio.gather(part.future, return_exceptions=True))[0] for part in parts if part.partition]
            refused = [each for each in gone if isinstance(each, UnknownTopicOrPartition)]
            assert refused
            assert {each.outcome for each in refused} == {"not_written"}

    play(story)
