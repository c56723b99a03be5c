"""A producer of Kafka's protocol in a simulation: a client of our own, which trusts nothing but the protocol.

Idempotent (acks=all) as Kafka's producer is: several Produce requests in flight on one connection, each with at most
one batch of a partition. What fails is sent again with its sequence, the oldest batch first and alone, then the others.
With acks=0 or acks=1 it has no producer id.

What a client must never see is a violation: ``pipelined_append_out_of_order``, a batch is refused for its sequence
although the one before it, sent before it on the same connection, was acknowledged.

Rules for this file: *not written* is said of records only if no attempt can have written them; a batch that is given up
after an attempt takes its successors' sequences with it, so the producer epoch is raised (KIP-360), and what was ever
sent under the former epoch is never sent again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from minikafka.check import Recorder, value_id
from minikafka.errors import BY_CODE
from minikafka.sim.kafka_link import KafkaCluster, KafkaLink, Report
from minikafka.sim.kafka_plans import TOMBSTONE
from minikafka.sim.plan import Operation
from minikafka.sim.workload import SUCCESSOR
from minikafka.sim.world import SimWorld
from minikafka.tasks import Flag
from minikafka.types import Address, TopicPartition
from minikafka.wire.records import BatchBuilder

NONE, DUPLICATE, OUT_OF_ORDER = 0, 46, 45
STALE: Final = frozenset({3, 5, 6, 9, 56, 74, 75, 100})
"""Errors that say that the client's metadata is old."""

SURELY_NOT_WRITTEN: Final = frozenset({10, 19, 45, 100})
"""Errors that are decided before the append: an attempt that ends so has written nothing."""

RETRIED: Final = frozenset({*STALE, 7, 19, 20})

DEFAULTS_MS: Final = {
    "request_timeout_ms": 30_000,
    "delivery_timeout_ms": 120_000,
    "retry_backoff_ms": 100,
    "retry_backoff_max_ms": 1_000,
}
"""Kafka's, for plans without these settings: cutting a plan down leaves them out."""

RECORDS_MAX = 3
"""Of one batch."""

PROBE_S = 0.5
"""With acks=0: how often a record is sent once everything is right, until the client knows the leader."""


@dataclass(eq=False, slots=True)
class _Record:
    op: int
    key: bytes | None
    value: bytes | None
    deadline: float


@dataclass(eq=False, slots=True)
class _Batch:
    records: list[_Record]
    data: bytes
    sequence: int
    topic_id: bytes
    link: KafkaLink | None = None
    """Where it is in flight."""
    maybe_written: bool = False
    attempts: int = 0


@dataclass(eq=False, slots=True)
class _Queue:
    """One partition."""

    name: TopicPartition
    waiting: deque[_Record] = field(default_factory=deque)
    sent: list[_Batch] = field(default_factory=list)
    """Sent at least once, and not settled, in the order of their sequences."""
    epoch: int = 0
    next_sequence: int = 0
    is_recovering: bool = True
    """The oldest batch goes alone."""
    retry_at: float = 0.0
    acknowledged_on: KafkaLink | None = None
    """The connection of the last acknowledgement."""

    @property
    def in_flight(self) -> list[_Batch]:
        return [batch for batch in self.sent if batch.link is not None]


class Fate:
    """The outcome of one record, for the history's end: its topic may be another one by then."""

    def __init__(self, topic: str, value: str) -> None:
        self.topic = topic
        self.value = value
        self.topic_id = b""
        """Of the topic that it was sent to; empty: it never was."""
        self.tell: Callable[[Recorder, int], None] = lambda _recorder, _op: None
        """Report the outcome; without one nothing is reported, and it counts as unknown."""


class KafkaSender:
    """One producer and the sends that a plan has for it; the same face as ``SendingClient``."""

    def __init__(
        self,
        sim: SimWorld,
        name: str,
        operations: Sequence[Operation],
        recorder: Recorder,
        *,
        brokers: Sequence[Address],
        settings: Mapping[str, Any],
        start_s: float,
        report: Report,
        mortal: frozenset[str] = frozenset(),
        fates: list[tuple[str, Fate]],
    ) -> None:
        self.name = name
        self.machine = name.partition(SUCCESSOR)[0]
        self.unanswered = len(operations)
        self.left = list(operations)
        self._fates = fates
        """Of records for ``mortal`` topics: those that are deleted and created again. They outlive this process."""
        self._acks = int(settings.get("acks", -1))
        self._in_flight_max = int(settings.get("in_flight", 5))
        times_s = {name: int(settings.get(name, default)) / 1000 for name, default in DEFAULTS_MS.items()}
        self._request_s = times_s["request_timeout_ms"]
        self._delivery_s = times_s["delivery_timeout_ms"]
        self._backoff_s = times_s["retry_backoff_ms"]
        self._backoff_max_s = times_s["retry_backoff_max_ms"]
        self._recorder = recorder
        self._report = report
        self._start_s = start_s
        self._mortal = mortal
        self._world = sim.of(self.machine)
        self._queues: dict[TopicPartition, _Queue] = {}
        self._producer_id = -1
        self._base_epoch = 0
        self._wake = Flag()
        self._requests: set[asyncio.Task[None]] = set()
        self._cluster = KafkaCluster(
            self._world,
            self.machine,
            brokers,
            {"Produce": int(settings.get("produce", 9))},
            timeout_s=self._request_s,
            report=report,
        )
        self._cluster.on_lost = self._wake.set
        self._leads: Callable[[TopicPartition], Address | None] | None = None
        self._world_spawn: Callable[[Coroutine[Any, Any, None]], object] = lambda coro: sim.spawn(self.machine, coro)
        sim.spawn(self.machine, self._run())

    def look_for_leaders(self, leads: Callable[[TopicPartition], Address | None]) -> None:
        """With acks=0: send records until this client knows the leaders, which only closed connections teach it."""
        self._leads = leads
        if self._acks == 0:
            self._world_spawn(self._probe())

    def lost_leader(self) -> str:
        """Which partition it sends to a broker that does not lead it, once everything is right; empty: none."""
        if self._leads is None or self._acks != 0:
            return ""
        for name in self._queues:
            leader = self._leads(name)
            if leader is not None and leader != self._cluster.address_of_leader(name):
                return f"{self.name} sends {name} to {self._cluster.address_of_leader(name)}, which does not lead it"
        return ""

    async def _probe(self) -> None:
        number = 0
        while True:
            for name in list(self._queues):
                leader = self._leads(name) if self._leads is not None else None
                if leader is not None and leader != self._cluster.address_of_leader(name):
                    self.unanswered += 1
                    self._add(name, f"{self.name}.probe{number}".encode(), "probe")
                    number += 1
            await asyncio.sleep(PROBE_S)

    @property
    def _is_idempotent(self) -> bool:
        return self._acks == -1

    # ---- the two tasks -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        feeding = asyncio.get_running_loop().create_task(self._feed(), name="kafka-feed")
        while True:
            self._wake.clear()
            wait_s = await self._step()
            if feeding.done():
                feeding.result()
            await self._wake.wait(self._world.clock.now() + wait_s)

    async def _feed(self) -> None:
        number = 0
        while self.left:
            await asyncio.sleep(max(0.0, self._start_s + self.left[0].at_s - self._world.clock.now()))
            operation = self.left.pop(0)
            key = operation.key.removeprefix(TOMBSTONE)
            value = None if key != operation.key else f"{self.name}.{number}".encode()
            number += 1
            self._add(TopicPartition(operation.topic, operation.partition), value, key)

    def _add(self, name: TopicPartition, value: bytes | None, key: str) -> None:
        if name.topic in self._mortal:
            self._fates.append((self.name, Fate(name.topic, value_id(value))))
            op = -len(self._fates)
        else:
            op = self._recorder.send(self.name, name.topic, value_id(value), key=key or None, partition=name.partition)
        deadline = self._world.clock.now() + self._delivery_s
        queue = self._queues.setdefault(name, _Queue(name))
        queue.waiting.append(_Record(op, key.encode() if key else None, value, deadline))
        self._wake.set()

    async def _step(self) -> float:
        """Send what may be sent; how long nothing else can happen by itself."""
        now = self._world.clock.now()
        for queue in self._queues.values():
            self._expire(queue, now)
        if not any(queue.waiting or queue.sent for queue in self._queues.values()):
            return inf
        if self._is_idempotent and self._producer_id < 0 and not await self._init():
            # Slept through, as Kafka's clients do: the lost connection itself would wake this at once.
            await asyncio.sleep(self._backoff_s)
            return 0.0
        if self._cluster.is_stale or any(self._cluster.address_of_leader(name) is None for name in self._needed()):
            await asyncio.sleep(self._backoff_s)
            if not await self._cluster.refresh({name.topic for name in self._needed()}):
                return 0.0
        while self._send_some():
            pass
        return self._backoff_s

    def _needed(self) -> list[TopicPartition]:
        return [name for name, queue in self._queues.items() if queue.waiting or queue.sent]

    async def _init(self) -> bool:
        message = {"transactional_id": None, "transaction_timeout_ms": 60_000}
        answer = await self._cluster.any_link().call("InitProducerId", message, self._request_s)
        if answer is None or answer["error_code"]:
            self._cluster.next_broker()
            return False
        self._producer_id, self._base_epoch = answer["producer_id"], answer["producer_epoch"]
        return True

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _send_some(self) -> bool:
        """One request to each leader that may have one; False: there is nothing to be sent now."""
        now = self._world.clock.now()
        requests: dict[KafkaLink, list[tuple[_Queue, _Batch]]] = {}
        for queue in self._queues.values():
            link = self._cluster.link_to(queue.name)
            if link is None or link.open_count >= self._in_flight_max or now < queue.retry_at:
                continue
            batch = self._next_batch(queue, link)
            if batch is not None:
                requests.setdefault(link, []).append((queue, batch))
        for link, batches in requests.items():
            self._request(link, batches)
        return bool(requests)

    def _next_batch(self, queue: _Queue, link: KafkaLink) -> _Batch | None:
        in_flight = queue.in_flight
        if in_flight and (queue.is_recovering or len(in_flight) >= self._in_flight_max):
            return None
        if any(batch.link is not link for batch in in_flight):
            return None
        known = self._cluster.leaders[queue.name]
        again = next((batch for batch in queue.sent if batch.link is None), None)
        if again is not None:
            # Behind a batch that failed, later ones may be in flight still: they come back first.
            is_behind = any(each.link is not None for each in queue.sent[queue.sent.index(again) :])
            return None if is_behind else again
        if not queue.waiting:
            return None
        records = [queue.waiting.popleft() for _ in range(min(RECORDS_MAX, len(queue.waiting)))]
        batch = _Batch(records, self._built(queue, records), queue.next_sequence, known.topic_id)
        queue.next_sequence += len(records)
        queue.sent.append(batch)
        return batch

    def _built(self, queue: _Queue, records: list[_Record]) -> bytes:
        builder = BatchBuilder()
        if self._is_idempotent:
            builder.set_producer_state(
                producer_id=self._producer_id,
                producer_epoch=self._base_epoch + queue.epoch,
                base_sequence=queue.next_sequence,
            )
        for record in records:
            builder.append(self._world.clock.wall_ms(), record.key, record.value)
        return bytes(builder.build())

    def _request(self, link: KafkaLink, batches: list[tuple[_Queue, _Batch]]) -> None:
        topics: dict[tuple[str, bytes], list[dict[str, Any]]] = {}
        for queue, batch in batches:
            batch.attempts += 1
            row = {"index": queue.name.partition, "records": [batch.data]}
            topics.setdefault((queue.name.topic, batch.topic_id), []).append(row)
            for record in batch.records:
                if record.op < 0:
                    self._fates[-record.op - 1][1].topic_id = batch.topic_id
        message = {
            "acks": self._acks,
            "timeout_ms": int(self._request_s * 1000),
            "topic_data": [
                {"name": topic, "topic_id": topic_id, "partition_data": rows}
                for (topic, topic_id), rows in topics.items()
            ],
        }
        self._world.events(
            "kafka_produce_sent",
            broker=str(link.address),
            batches=[(str(queue.name), batch.sequence, batch.attempts) for queue, batch in batches],
        )
        if self._acks == 0:
            link.tell("Produce", message)
            for queue, batch in batches:
                queue.sent.remove(batch)
                self._unknown(batch.records, "acks=0")
            return
        before = {batch: batch.maybe_written for _, batch in batches}
        for _, batch in batches:
            batch.link, batch.maybe_written = link, True
        task = asyncio.get_running_loop().create_task(self._await(link, message, batches, before), name="kafka-produce")
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)

    async def _await(
        self,
        link: KafkaLink,
        message: dict[str, Any],
        batches: list[tuple[_Queue, _Batch]],
        before: dict[_Batch, bool],
    ) -> None:
        answer = await link.call("Produce", message, self._request_s + 1.0)
        parts: dict[tuple[str | bytes, int], dict[str, Any]] = {}
        for topic in answer["responses"] if answer is not None else ():
            for each in topic["partition_responses"]:
                parts[topic["name"] or topic["topic_id"], each["index"]] = each
        for queue, batch in batches:
            batch.link = None
            name = queue.name
            part = parts.get((name.topic, name.partition)) or parts.get((batch.topic_id, name.partition))
            if part is not None and part["error_code"] in SURELY_NOT_WRITTEN:
                batch.maybe_written = before[batch]
            self._settle(queue, batch, part, link)
        self._wake.set()

    # ---- what became of a batch --------------------------------------------------------------------------------------

    def _settle(self, queue: _Queue, batch: _Batch, part: dict[str, Any] | None, link: KafkaLink) -> None:
        if batch not in queue.sent:
            return
        code = -1 if part is None else part["error_code"]
        self._world.events(
            "kafka_produce_answered", partition=str(queue.name), sequence=batch.sequence, error=_named(code)
        )
        if part is not None and code in (NONE, DUPLICATE):
            base = part["base_offset"] if code == NONE else -1
            is_oldest = queue.sent[0] is batch
            queue.sent.remove(batch)
            queue.is_recovering = queue.is_recovering and not is_oldest
            queue.acknowledged_on = link
            self._acknowledge(queue.name, batch.records, base)
            return
        if code == OUT_OF_ORDER and queue.sent[0] is batch:
            if self._is_idempotent and batch.attempts == 1 and batch.sequence and queue.acknowledged_on is link:
                sentence = (
                    f"{self.machine}: {queue.name} sequence {batch.sequence} is refused behind an acknowledged batch"
                )
                self._report("pipelined_append_out_of_order", sentence)
            self._give_up(queue, _named(code))
            return
        if part is None or code in STALE:
            self._cluster.is_stale = True
        if part is None or code in RETRIED or code == OUT_OF_ORDER:
            queue.is_recovering = True
            pause_s = min(self._backoff_s * 2 ** min(batch.attempts, 10), self._backoff_max_s)
            queue.retry_at = self._world.clock.now() + pause_s
            return
        self._give_up(queue, _named(code))

    def _expire(self, queue: _Queue, now: float) -> None:
        known = self._cluster.leaders.get(queue.name)
        if queue.sent and not queue.in_flight:
            is_of_former = known is not None and known.topic_id != queue.sent[0].topic_id
            if is_of_former or queue.sent[0].records[0].deadline <= now:
                self._give_up(queue, "UNKNOWN_TOPIC_ID" if is_of_former else "REQUEST_TIMED_OUT")
        while not queue.sent and queue.waiting and queue.waiting[0].deadline <= now:
            self._failed([queue.waiting.popleft()], "REQUEST_TIMED_OUT")

    def _give_up(self, queue: _Queue, error: str) -> None:
        """Everything that was ever sent and has no outcome; what comes next begins a new epoch."""
        for batch in queue.sent:
            (self._unknown if batch.maybe_written else self._failed)(batch.records, error)
        queue.sent.clear()
        queue.epoch += 1
        queue.next_sequence = 0
        queue.is_recovering = True
        queue.acknowledged_on = None

    def _acknowledge(self, name: TopicPartition, records: list[_Record], base: int) -> None:
        for index, record in enumerate(records):
            offset = base + index if base >= 0 else None

            def tell(recorder: Recorder, op: int, offset: int | None = offset) -> None:
                recorder.acknowledged(op, partition=name.partition, offset=offset)

            self._tell(record, tell)

    def _unknown(self, records: list[_Record], error: str) -> None:
        for record in records:
            self._tell(record, lambda recorder, op: recorder.unknown(op, error))

    def _failed(self, records: list[_Record], error: str) -> None:
        for record in records:
            self._tell(record, lambda recorder, op: recorder.failed(op, error))

    def _tell(self, record: _Record, tell: Callable[[Recorder, int], None]) -> None:
        self.unanswered -= 1
        if record.op < 0:
            self._fates[-record.op - 1][1].tell = tell
        else:
            tell(self._recorder, record.op)


def _named(code: int) -> str:
    if code == NONE:
        return ""
    return BY_CODE[code].name if code in BY_CODE and code >= 0 else "NETWORK_EXCEPTION" if code == -1 else str(code)
