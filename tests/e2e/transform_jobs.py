"""A transform job, one process for each client: read records, write them changed, commit both in one transaction.

``python -m tests.e2e.transform_jobs CLIENT BOOTSTRAP NAME``

Every job of tests/e2e/transform_rounds.py does the same, in whatever language: it reads the topic of ``INPUT`` as a member
of ``GROUP`` with ``read_committed``, writes each value with ``SUFFIX`` to the same partition of ``OUTPUT``, and sends the
offsets in the transaction. It prints a line for each step of a transaction (``PHASES``), begins anew after errors, and ends
when its standard input ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import aiokafka
import confluent_kafka
from aiokafka.errors import KafkaError as AiokafkaError

from minikafka import Consumer, Producer
from minikafka.errors import ProtocolError

INPUT, OUTPUT, GROUP = "input", "output", "transform"
SUFFIX = b"!"
PHASES = ("begun", "sent", "offsets", "committed")
"""What a job prints: a transaction has begun, its records are acknowledged, so are its offsets, it is committed."""

RECORDS_MAX = 100
"""In one transaction."""
POLL_MS = 200
SESSION_TIMEOUT_MS = 2000
HEARTBEAT_INTERVAL_MS = 200
TRANSACTION_TIMEOUT_MS = 10_000
PATIENCE_S = 60.0
"""For one operation of librdkafka, which repeats it by itself."""
HANGS_S = 3.0
"""librdkafka 2.16 waits without end for a group coordinator that has left the metadata (its issues 5511 and 5456)."""


def say(phase: str) -> None:
    """Report a phase."""
    sys.stdout.write(f"{phase}\n")
    sys.stdout.flush()


def note(error: BaseException) -> None:
    """Keep an error for the log of the job."""
    sys.stderr.write(f"{type(error).__name__}: {error}\n")
    sys.stderr.flush()


# ---- the native client -----------------------------------------------------------------------------------------------


async def native(bootstrap: str, name: str) -> NoReturn:
    """Abort and resume at the committed offsets; after an error that ends the producer, make another one."""
    while True:
        try:
            async with (
                Producer(
                    bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
                ) as producer,
                Consumer(
                    INPUT,
                    bootstrap_servers=bootstrap,
                    group_id=GROUP,
                    isolation_level="read_committed",
                    auto_offset_reset="earliest",
                    enable_auto_commit=False,
                    max_poll_records=RECORDS_MAX,
                    session_timeout_ms=SESSION_TIMEOUT_MS,
                    heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
                ) as consumer,
            ):
                while True:
                    await _native_step(producer, consumer)
        except ProtocolError as error:
            note(error)


async def _native_step(producer: Producer, consumer: Consumer) -> None:
    found = await consumer.getmany(timeout_ms=POLL_MS)
    if not found:
        return
    say("begun")
    try:
        # Before anything is awaited: in another generation the records may be another member's.
        group = consumer.group_metadata()
        async with producer.transaction():
            for partition, records in found.items():
                for each in records:
                    await producer.send(OUTPUT, each.value + SUFFIX, partition=partition.partition)
            await producer.flush()
            say("sent")
            offsets = {partition: records[-1].offset + 1 for partition, records in found.items()}
            await producer.send_offsets_to_transaction(offsets, group)
            say("offsets")
    except ProtocolError as error:
        note(error)
        await consumer.seek_to_committed()
    else:
        say("committed")


# ---- librdkafka ------------------------------------------------------------------------------------------------------


def confluent(bootstrap: str, name: str) -> NoReturn:
    """After any error that librdkafka does not retry by itself, make a new producer and a new consumer."""
    while True:
        session = _Confluent(bootstrap, name)
        try:
            session.start()
            while True:
                session.step()
        except confluent_kafka.KafkaException as error:
            note(error)
        finally:
            session.consumer.close()


class _Confluent:
    """A producer with its consumer, and the records that are transformed next."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.batch: list[confluent_kafka.Message] = []
        common: dict[str, Any] = {"bootstrap.servers": bootstrap, "log_level": 0}
        self.producer = confluent_kafka.Producer(
            {**common, "transactional.id": name, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, "linger.ms": 0}
        )
        self.consumer = confluent_kafka.Consumer(
            {
                **common,
                "group.id": GROUP,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS,
            }
        )

    def start(self) -> None:
        """End the last transaction of this id, and join the group."""
        self.producer.init_transactions(PATIENCE_S)
        self.consumer.subscribe([INPUT], on_revoke=lambda *_: self.batch.clear())

    def step(self) -> None:
        """One transaction, if there are records."""
        self._poll()
        if not self.batch:
            return
        say("begun")
        self.producer.begin_transaction()
        ends = {}
        for each in self.batch:
            self.producer.produce(OUTPUT, each.value() + SUFFIX, partition=each.partition())
            ends[each.partition()] = each.offset() + 1
        self.batch.clear()
        self.producer.flush(PATIENCE_S)
        say("sent")
        offsets = [confluent_kafka.TopicPartition(INPUT, partition, end) for partition, end in ends.items()]
        group = self.consumer.consumer_group_metadata()
        with restarted_if_it_hangs():
            self._retried(lambda: self.producer.send_offsets_to_transaction(offsets, group, PATIENCE_S))
        say("offsets")
        self._retried(lambda: self.producer.commit_transaction(PATIENCE_S))
        say("committed")

    def _poll(self) -> None:
        """One record after the other: a rebalance takes back those that are in the batch already."""
        timeout_s = POLL_MS / 1000
        while len(self.batch) < RECORDS_MAX and (message := self.consumer.poll(timeout_s)) is not None:
            if message.error() is None:
                self.batch.append(message)
            timeout_s = 0.0

    @staticmethod
    def _retried(call: Any) -> None:
        while True:
            try:
                call()
            except confluent_kafka.KafkaException as error:
                if not error.args[0].retriable():
                    raise
                note(error)
            else:
                return


# ---- aiokafka --------------------------------------------------------------------------------------------------------


async def aiokafka_job(bootstrap: str, name: str) -> NoReturn:
    """As the others, but alone in its group: aiokafka sends no generation with its offsets."""
    while True:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        consumer = aiokafka.AIOKafkaConsumer(
            INPUT,
            bootstrap_servers=bootstrap,
            group_id=GROUP,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
        )
        try:
            # The producer first: it ends the last transaction, whose offsets the consumer would not see.
            async with producer, consumer:
                while True:
                    await _aiokafka_step(producer, consumer)
        except AiokafkaError as error:
            note(error)


async def _aiokafka_step(producer: aiokafka.AIOKafkaProducer, consumer: aiokafka.AIOKafkaConsumer) -> None:
    found = await consumer.getmany(timeout_ms=POLL_MS, max_records=RECORDS_MAX)
    if not found:
        return
    say("begun")
    async with producer.transaction():
        for partition, records in found.items():
            for each in records:
                await producer.send(OUTPUT, each.value + SUFFIX, partition=partition.partition)
        await producer.flush()
        say("sent")
        offsets = {partition: records[-1].offset + 1 for partition, records in found.items()}
        await producer.send_offsets_to_transaction(offsets, GROUP)
        say("offsets")
    say("committed")


@contextmanager
def restarted_if_it_hangs() -> Iterator[None]:
    """Give the process a new image, as after a crash, if the block takes too long: nothing else ends such a call."""

    def restart() -> None:
        sys.stderr.write("a call hangs: the job starts again\n")
        sys.stderr.flush()
        os.execv(sys.executable, sys.orig_argv)

    timer = threading.Timer(HANGS_S, restart)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def end_with_parent() -> None:
    """End the process when its standard input ends: whoever started it is gone."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def main(arguments: Iterable[str]) -> NoReturn:
    """Run the job of a client."""
    client, bootstrap, name = arguments
    end_with_parent()
    if client == "confluent":
        confluent(bootstrap, name)
    asyncio.run({"native": native, "aiokafka": aiokafka_job}[client](bootstrap, name))
    raise AssertionError("the job ended by itself")


if __name__ == "__main__":
    main(sys.argv[1:])
