"""A producer's ledger: a line before a record can be sent, a line for what became of it (issue 4, Build 5)."""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from typing import Any

import pytest

from minikafka.check import Checker, Expectations, HistoryWriter, Recorder, read_history, value_id
from minikafka.client.producer import Producer
from minikafka.client.settings import ProducerConfig
from minikafka.errors import MessageTooLarge, NotEnoughReplicas, ProtocolError
from tests.clients.fake_cluster import LOSE_REQUEST, RESET_ANSWER, FakeCluster, once, play

NOT_ENOUGH = 19


class Lines:
    """A ledger in memory; ``lines`` are those that were flushed."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.lines: list[str] = []
        self.full = False
        self.recorder: Recorder = HistoryWriter(self.waiting.append, lambda: 0.0)

    def flush(self) -> None:
        if self.full:
            raise OSError("no space left")
        self.lines += self.waiting
        self.waiting.clear()

    @contextmanager
    def opened(self):
        yield self
        if not self.full:
            self.flush()

    def told(self, *names: str) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in self.lines]
        return [row for row in rows if row["type"] in names]


def producer(cluster: FakeCluster, ledger: Lines, **settings: Any) -> Producer:
    config = ProducerConfig(bootstrap_servers="broker-1:9092", **settings)
    return Producer(config, cluster.world, ledger=ledger.opened())


def judged(ledger: Lines, partitions: list, expectations: Expectations | None = None) -> Any:
    """The checker's verdict on the ledger and what the partitions hold."""
    checker = Checker(expectations or Expectations(final_read_complete=True))
    for operation in read_history(ledger.lines):
        checker.feed(operation)
    rows: list[str] = []
    reader = HistoryWriter(rows.append, lambda: 0.0)
    for number, partition in enumerate(partitions):
        values = [(record.offset, value_id(record.value)) for record in partition.records()]
        reader.poll("final", "t", number, values, position_after=partition.end)
    for operation in read_history(rows):
        checker.feed(operation)
    return checker.verdict()


def test_every_way_to_send_is_in_the_ledger():
    """send, send_many (plain, keyed, in chunks) and send_batch: where each record was acknowledged, and by whom."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("t", 3)
        partitions[1].elect(2)
        ledger = Lines()
        async with producer(cluster, ledger, client_id="orders-7", max_batch_size=500) as sending:
            await sending.send("t", b"a", b"key", partition=1)
            await sending.send("t", None)
            await sending.send_many("t", [b"%d" % index for index in range(200)])
            await sending.send_many("t", [(b"k%d" % index, b"keyed-%d" % index) for index in range(100)])
            batch = sending.create_batch()
            for value in (b"x", b"y"):
                batch.append(timestamp=None, key=None, value=value)
            await sending.send_batch(batch, "t", partition=2)
            await sending.flush()
        verdict = judged(ledger, partitions)
        assert verdict.ok, verdict.render()
        assert (verdict.counts.acknowledged, verdict.counts.sends) == (304, 304)
        first, *_ = ledger.told("send")
        assert (first["process"], first["topic"], first["partition"]) == ("orders-7", "t", 1)
        assert (first["key"], first["value"]) == ("key", "a")
        epochs = {(row["partition"], row["leader_epoch"]) for row in ledger.told("ok")}
        assert epochs == {(0, 0), (1, 1), (2, 0)}

    play(story)


def test_what_was_refused_or_is_unknown_is_told_apart():
    """Build 5: failed is definitely not in the log; a lost answer without a retry is unknown, and may stand there."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("t", 1)
        ledger = Lines()
        # No second attempt: it would come after the time for the delivery is over.
        settings = {"request_timeout_ms": 500, "delivery_timeout_ms": 600, "retry_backoff_ms": 5_000}
        settings |= {"retry_backoff_max_ms": 5_000, "enable_idempotence": False, "linger_ms": 0}
        async with producer(cluster, ledger, **settings) as sending:
            with pytest.raises(MessageTooLarge):
                await sending.send("t", bytes(2_000_000))
            with pytest.raises(MessageTooLarge):
                await sending.send_many("t", [b"small", bytes(2_000_000)])
            partitions[0].min_isr_met = False
            with pytest.raises(NotEnoughReplicas):
                await sending.send_and_wait("t", b"refused")
            partitions[0].min_isr_met = True
            for fate, value in ((RESET_ANSWER, b"there"), (LOSE_REQUEST, b"not there")):
                cluster.faults.append(once("Produce", fate))
                await asyncio.sleep(10)  # virtual: the partition is in no pause, and nothing is in flight
                with pytest.raises(ProtocolError):
                    await sending.send_and_wait("t", value)
            await asyncio.sleep(10)
            await sending.send_and_wait("t", b"good")
        failed = [row["error"] for row in ledger.told("failed")]
        assert failed == ["MESSAGE_TOO_LARGE"] * 3 + ["NOT_ENOUGH_REPLICAS"]
        assert len(ledger.told("unknown")) == 2
        verdict = judged(ledger, partitions)
        assert verdict.ok, verdict.render()
        assert (verdict.counts.acknowledged, verdict.counts.unknown_seen) == (1, 1)
        assert ledger.told("expect") == [
            {
                "type": "expect",
                "idempotent": False,
                "final_read_complete": False,
                "replicas_complete": False,
                "log_start": [],
            }
        ]

    play(story)


def test_without_answers_every_record_is_unknown():
    """acks=0: nobody said anything, so the ledger does not either."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("t", 1)
        ledger = Lines()
        async with producer(cluster, ledger, acks=0) as sending:
            await sending.send_and_wait("t", b"a")
        verdict = judged(ledger, partitions)
        assert (verdict.ok, verdict.counts.sends, verdict.counts.unknown) == (True, 1, 1)

    play(story)


def test_a_record_is_in_the_ledger_before_it_is_on_its_way():
    """kill -9 at any moment: the log never holds a record that no ledger speaks of."""

    async def story():
        cluster = FakeCluster()
        cluster.topic("t", 2)
        ledger = Lines()
        seen: list[int] = []

        def watch(node: int, api: str, request: Any) -> None:
            if api == "Produce":
                seen.append(len(ledger.told("send")))

        cluster.faults.append(watch)
        async with producer(cluster, ledger, max_batch_size=300) as sending:
            many = asyncio.ensure_future(sending.send_many("t", [b"%d" % index for index in range(100)]))
            for index in range(20):
                await sending.send("t", b"s%d" % index)
                sent = sum(b.record_count for q in sending._topics["t"] for b in q.batches)
                assert len(ledger.told("send")) >= sent
            await many
        assert seen
        assert len(ledger.told("send")) == len(ledger.told("ok")) == 120

    play(story)


def test_senders_in_several_tasks_are_in_the_order_of_the_log():
    """One process, many tasks, waits for metadata and memory between them: the ledger's order is the buffer's."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("t", 1)
        ledger = Lines()
        async with producer(cluster, ledger, buffer_memory=2_000, max_batch_size=400) as sending:

            async def one(name: str) -> None:
                for index in range(20):
                    if index % 5:
                        await sending.send("t", f"{name}-{index}".encode())
                    else:
                        await sending.send_many("t", [f"{name}-{index}-{each}".encode() for each in range(30)])

            await asyncio.gather(*(one(name) for name in "abcd"))
        verdict = judged(ledger, partitions)
        assert verdict.ok, verdict.render()
        assert verdict.counts.acknowledged == 4 * (16 + 4 * 30)

    play(story)


@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_ledger_that_cannot_be_written_lets_nothing_out(one_by_one):
    """A full disk: the caller gets the error, and the log gets no record that the ledger does not know."""

    async def story():
        cluster = FakeCluster()
        partitions = cluster.topic("t", 1)
        ledger = Lines()
        async with producer(cluster, ledger) as sending:
            await sending.send_and_wait("t", b"good")
            ledger.full = True
            with pytest.raises(OSError, match="no space"):
                await (sending.send("t", b"lost") if one_by_one else sending.send_many("t", [b"lost", b"too"]))
            with pytest.raises(OSError, match="no space"):
                await sending.flush()
            with pytest.raises(OSError, match="no space"):
                await sending.send("t", b"later")
        assert partitions[0].values() == [b"good"]

    play(story)


def test_records_without_futures_are_in_the_ledger_and_fail_at_the_flush():
    """The ledger needs the fate of each record; the application still gets one error."""

    async def story():
        cluster = FakeCluster()
        (partition,) = partitions = cluster.topic("t")
        ledger = Lines()
        async with producer(cluster, ledger, delivery_timeout_ms=2000) as sending:
            await sending.send("t", b"a", future=False)
            await sending.flush()
            partition.min_isr_met = False
            await sending.send("t", b"b", future=False)
            with pytest.raises(NotEnoughReplicas, match="1 of the records"):
                await sending.flush()
        assert [len(ledger.told(name)) for name in ("send", "ok", "failed")] == [2, 1, 1]
        assert judged(ledger, partitions).ok

    play(story)
