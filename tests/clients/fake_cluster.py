"""A cluster for client tests: one shared log per partition, scripted faults on every call, virtual time.

It keeps Kafka's rules that clients depend on (leaders, epochs, the idempotence window of five batches, whole batches
from the one that contains the offset) and nothing of replication.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from minikafka.errors import OutcomeUnknown, Unreachable
from minikafka.ports import Buffers, World
from minikafka.sim.loop import SimLoop
from minikafka.types import Address
from minikafka.wire import messages as m
from minikafka.wire.apis import BY_NAME
from minikafka.wire.batch import RecordBatch, split, stamped, verify_client
from minikafka.wire.codec import decode_request, decode_response, encode_request, encode_response
from minikafka.wire.records import decode_batch

NOT_LEADER, UNKNOWN_TOPIC, NOT_ENOUGH, TOO_LARGE, OUT_OF_ORDER, BAD_EPOCH = 6, 3, 19, 10, 45, 47

# What a fault may do to a call.
UNREACHABLE = "unreachable"  # no connection: it did not happen
LOSE_REQUEST = "lose_request"  # it never arrives; the caller learns nothing until its deadline
RESET_REQUEST = "reset_request"  # it never arrives; the caller sees the connection break
RESET_ANSWER = "reset_answer"  # it is handled, then the connection breaks
LATE = "late"  # the caller sees the connection break; the request is handled seconds later

Fault = Callable[[int, str, Any], Any]
"""(node, api, request) -> None, one of the words above, or a response to give instead."""


def once(api: str, action: Any, *, count: int = 1, node: int | None = None) -> Fault:
    """``action`` for the next ``count`` calls of ``api``."""
    left = [count]

    def fault(at: int, called: str, request: Any) -> Any:
        if called != api or left[0] == 0 or (node is not None and at != node):
            return None
        left[0] -= 1
        return action(request) if callable(action) else action

    return fault


@dataclass
class FakePartition:
    leader: int = 1
    epoch: int = 0
    batches: list[bytes] = field(default_factory=list)
    start: int = 0
    end: int = 0
    epoch_starts: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    producers: dict[int, tuple[int, deque[tuple[int, int, int]]]] = field(default_factory=dict)
    min_isr_met: bool = True
    size_max: int = 1_048_588
    too_large: int = TOO_LARGE
    grown: asyncio.Event = field(default_factory=asyncio.Event)

    def append(self, data: bytes, *, transactional: bool = False) -> tuple[int, int, bool]:
        """(error code, base offset, duplicate)."""
        batch = verify_client(data, transactional)
        # As in a broker: a batch that is in the log already is no larger than the limit was then.
        is_too_large = batch.size > self.size_max
        if is_too_large and not batch.has_producer:
            return self.too_large, -1, False
        if batch.has_producer:
            epoch, window = self.producers.get(batch.producer_id, (-1, deque(maxlen=5)))
            pair = (batch.base_sequence, batch.last_sequence)
            if batch.producer_epoch == epoch:
                for first, last, offset in window:
                    if (first, last) == pair:
                        return 0, offset, True
            if batch.producer_epoch < epoch:
                return BAD_EPOCH, -1, False
            if batch.producer_epoch > epoch:
                if epoch >= 0 and batch.base_sequence != 0:
                    return OUT_OF_ORDER, -1, False
                window = deque(maxlen=5)
            elif window and batch.base_sequence != (window[-1][1] + 1) % 2**31:
                return OUT_OF_ORDER, -1, False
            if is_too_large:
                return self.too_large, -1, False
            window.append((*pair, self.end))
            self.producers[batch.producer_id] = (batch.producer_epoch, window)
        base = self.end
        self.batches.append(b"".join(bytes(each) for each in stamped(batch, base_offset=base, leader_epoch=self.epoch)))
        self.end += batch.record_count
        self.grown.set()
        self.grown = asyncio.Event()
        return 0, base, False

    def elect(self, leader: int, *, lose: int = 0) -> None:
        """A new leader in a new epoch; ``lose`` batches at the end were never on it (an unclean election)."""
        for _ in range(lose):
            gone = RecordBatch.of(self.batches.pop())
            self.end = gone.base_offset
            if gone.has_producer:
                _, window = self.producers[gone.producer_id]
                if window and window[-1][0] == gone.base_sequence:
                    window.pop()
        self.leader, self.epoch = leader, self.epoch + 1
        self.epoch_starts = [(e, s) for e, s in self.epoch_starts if s < self.end] + [(self.epoch, self.end)]
        self.grown.set()
        self.grown = asyncio.Event()

    def records(self) -> list[Any]:
        return [record for batch in self.batches for record in decode_batch(batch)]

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records()]

    def read(self, offset: int, max_bytes: int) -> bytes:
        data = b""
        for batch in self.batches:
            if RecordBatch.of(batch).last_offset < offset:
                continue
            if data and len(data) + len(batch) > max_bytes:
                break  # nothing is passed over
            data += batch
        return data

    def end_of(self, epoch: int) -> tuple[int, int]:
        known = [(e, s) for e, s in self.epoch_starts if e <= epoch]
        if not known:
            return -1, -1
        later = [s for e, s in self.epoch_starts if e > epoch]
        return known[-1][0], later[0] if later else self.end


class FakeCluster:
    """Brokers 1 to ``brokers``; node n listens at ``broker-n:9092``."""

    def __init__(self, *, brokers: int = 3, seed: int = 0) -> None:
        self.brokers = {node: Address(f"broker-{node}", 9092) for node in range(1, brokers + 1)}
        self.topics: dict[str, list[FakePartition]] = {}
        self.dead: set[int] = set()
        self.stopped: set[int] = set()
        self.faults: list[Fault] = []
        self.calls: list[tuple[float, int, str, Any]] = []
        self.in_flight: dict[tuple[int, str, int], int] = {}
        self.overlaps = 0
        """How often two produce requests of one partition were in flight at once."""
        self.latency_s = 0.001
        self.metadata_offset = 10
        self.controller = 1
        self.events: list[tuple[str, dict[str, object]]] = []
        self.random = Random(seed)
        self._producer_id = 1000

    def topic(self, name: str, partitions: int = 1) -> list[FakePartition]:
        self.topics[name] = [FakePartition(leader=1 + index % len(self.brokers)) for index in range(partitions)]
        return self.topics[name]

    @property
    def world(self) -> World:
        return World(clock=self, network=self, disk=None, events=self._event, random=self.random, entropy=bytes)  # type: ignore[arg-type]

    def _event(self, kind: str, /, **facts: object) -> None:
        self.events.append((kind, facts))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    def named(self, api: str) -> list[Any]:
        return [request for _, _, called, request in self.calls if called == api]

    # ---- ports

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def ticks_ns(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self.now() * 1000)

    async def call(self, peer: Address, api: str, body: Buffers, *, deadline: float) -> bytes:
        node = next(number for number, address in self.brokers.items() if address == peer)
        request = decode_request(BY_NAME[api], b"".join(bytes(each) for each in body))
        self.calls.append((self.now(), node, api, request))
        keys = [(0, each.topic, each.partition) for each in request.partitions] if api == "Produce" else []
        for key in keys:
            self.in_flight[key] = self.in_flight.get(key, 0) + 1
            self.overlaps += self.in_flight[key] > 1
        try:
            async with asyncio.timeout_at(deadline):
                return await self._travel(node, api, request)
        except TimeoutError:
            raise OutcomeUnknown("deadline") from None
        finally:
            for key in keys:
                self.in_flight[key] -= 1

    async def _travel(self, node: int, api: str, request: Any) -> bytes:
        if node in self.dead:
            raise Unreachable("connection refused")
        if node in self.stopped:
            await asyncio.sleep(1e9)
        await asyncio.sleep(self.latency_s * (0.5 + self.random.random()))
        action = next(
            (found for found in (fault(node, api, request) for fault in self.faults) if found is not None), None
        )
        if action == UNREACHABLE:
            raise Unreachable("connection refused")
        if action == LOSE_REQUEST:
            await asyncio.sleep(1e9)
        if action == RESET_REQUEST:
            raise OutcomeUnknown("connection reset")
        if action == LATE:
            delay_s = self.random.uniform(0.01, 3.0)
            asyncio.get_running_loop().call_later(delay_s, lambda: self._handle_late(node, api, request))
            raise OutcomeUnknown("connection reset")
        if action not in (None, RESET_ANSWER):
            return self._encoded(api, action)
        answer = getattr(self, f"_on_{api}")(node, request)
        if isinstance(answer, Coroutine):
            answer = await answer
        if action == RESET_ANSWER or node in self.dead:
            raise OutcomeUnknown("connection reset")
        await asyncio.sleep(self.latency_s * (0.5 + self.random.random()))
        return self._encoded(api, answer)

    def _handle_late(self, node: int, api: str, request: Any) -> None:
        if node not in self.dead:
            getattr(self, f"_on_{api}")(node, request)

    def _encoded(self, api: str, answer: Any) -> bytes:
        body = b"".join(bytes(each) for each in encode_response(answer))
        decode_response(api, body)
        return body

    # ---- handlers

    def partition(self, topic: str, partition: int) -> FakePartition | None:
        known = self.topics.get(topic, [])
        return known[partition] if 0 <= partition < len(known) else None

    def _refusal(self, node: int, each: Any, current_epoch: int = -1) -> dict[str, Any] | None:
        found = self.partition(each.topic, each.partition)
        if found is None:
            return {"error_code": UNKNOWN_TOPIC, "outcome": "not_written"}
        hint = m.CurrentLeader(leader_id=found.leader, leader_epoch=found.epoch)
        if found.leader != node:
            return {"error_code": NOT_LEADER, "outcome": "not_written", "current_leader": hint}
        if current_epoch >= 0 and current_epoch != found.epoch:
            return {"error_code": 74 if current_epoch < found.epoch else 75, "current_leader": hint}
        return None

    def _on_Metadata(self, node: int, request: Any) -> Any:
        names = list(self.topics) if request.topics is None else list(request.topics)
        topics = []
        for name in names:
            if name not in self.topics:
                topics.append(m.MetadataTopic(name=name, error_code=UNKNOWN_TOPIC))
                continue
            partitions = tuple(
                m.MetadataPartition(
                    partition=index,
                    leader_id=each.leader,
                    leader_epoch=each.epoch,
                    replica_nodes=tuple(self.brokers),
                    isr_nodes=tuple(self.brokers),
                )
                for index, each in enumerate(self.topics[name])
            )
            topics.append(m.MetadataTopic(name=name, topic_id=f"id-of-{name}", partitions=partitions))
        return m.MetadataResponse(
            cluster_id="fake",
            controller_id=self.controller,
            metadata_offset=self.metadata_offset,
            brokers=tuple(m.MetadataBroker(node_id=n, host=a.host, port=a.port) for n, a in self.brokers.items()),
            topics=tuple(topics),
        )

    def _on_InitProducerId(self, node: int, request: Any) -> Any:
        self._producer_id += 1
        return m.InitProducerIdResponse(producer_id=self._producer_id, producer_epoch=0)

    def _on_Produce(self, node: int, request: Any) -> Any:
        answers = []
        for each in request.partitions:
            where = {"topic": each.topic, "partition": each.partition}
            refusal = self._refusal(node, each)
            found = self.partition(each.topic, each.partition)
            if refusal is None and found is not None and not found.min_isr_met and request.acks == -1:
                refusal = {"error_code": NOT_ENOUGH, "outcome": "not_written"}
            if refusal is not None or found is None:
                answers.append(m.ProducedPartition(**where, **(refusal or {})))
                continue
            data = b"".join(bytes(b) for b in each.records)
            code, base, duplicate = found.append(data, transactional=request.transactional_id is not None)
            outcome = "not_written" if code else ""
            answers.append(
                m.ProducedPartition(
                    **where,
                    error_code=code,
                    outcome=outcome,
                    base_offset=base,
                    duplicate=duplicate,
                    log_start_offset=found.start,
                    leader_epoch=-1 if code else found.epoch,
                )
            )
        return m.ProduceResponse(partitions=tuple(answers))

    async def _on_Fetch(self, node: int, request: Any) -> Any:
        deadline = self.now() + request.max_wait_ms / 1000
        while True:
            answers, size, failed, waits = [], 0, False, []
            for each in request.partitions:
                where = {"topic": each.topic, "partition": each.partition}
                refusal = self._refusal(node, each, each.current_leader_epoch)
                found = self.partition(each.topic, each.partition)
                if refusal is None and found is not None and not found.start <= each.fetch_offset <= found.end:
                    refusal = {"error_code": 1}
                if refusal is not None or found is None:
                    refusal = {k: v for k, v in (refusal or {}).items() if k != "outcome"}
                    answers.append(m.FetchedPartition(**where, **refusal))
                    failed = True
                    continue
                data = found.read(each.fetch_offset, each.partition_max_bytes)
                size += len(data)
                waits.append(found.grown)
                answers.append(
                    m.FetchedPartition(
                        **where,
                        high_watermark=found.end,
                        last_stable_offset=found.end,
                        log_start_offset=found.start,
                        log_end_offset=found.end,
                        records=(data,) if data else (),
                    )
                )
            if failed or size >= max(1, request.min_bytes) or self.now() >= deadline:
                return m.FetchResponse(partitions=tuple(answers))
            tasks = [asyncio.ensure_future(each.wait()) for each in waits]
            await asyncio.wait(tasks, timeout=deadline - self.now(), return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()

    def _on_ListOffsets(self, node: int, request: Any) -> Any:
        answers = []
        for each in request.partitions:
            where = {"topic": each.topic, "partition": each.partition}
            refusal = self._refusal(node, each, each.current_leader_epoch)
            found = self.partition(each.topic, each.partition)
            if refusal is not None or found is None:
                answers.append(m.ListedOffset(**where, **{k: v for k, v in (refusal or {}).items() if k != "outcome"}))
                continue
            offset, timestamp = -1, -1
            if each.timestamp == m.EARLIEST:
                offset = found.start
            elif each.timestamp == m.LATEST:
                offset = found.end
            else:
                for record in found.records():
                    if record.timestamp >= each.timestamp and record.offset >= found.start:
                        offset, timestamp = record.offset, record.timestamp
                        break
            answers.append(m.ListedOffset(**where, offset=offset, timestamp=timestamp, leader_epoch=found.epoch))
        return m.ListOffsetsResponse(partitions=tuple(answers))

    def _on_OffsetForLeaderEpoch(self, node: int, request: Any) -> Any:
        answers = []
        for each in request.partitions:
            where = {"topic": each.topic, "partition": each.partition}
            refusal = self._refusal(node, each, each.current_leader_epoch)
            found = self.partition(each.topic, each.partition)
            if refusal is not None or found is None:
                answers.append(m.EpochAnswer(**where, error_code=(refusal or {})["error_code"]))
                continue
            epoch, end = found.end_of(each.leader_epoch)
            answers.append(m.EpochAnswer(**where, leader_epoch=epoch, end_offset=end))
        return m.OffsetForLeaderEpochResponse(partitions=tuple(answers))

    def _on_CreateTopics(self, node: int, request: Any) -> Any:
        if node != self.controller:
            return m.CreateTopicsResponse(error_code=41, outcome="not_written")
        created = []
        for each in request.topics:
            if each.name in self.topics:
                created.append(m.CreatedTopic(name=each.name, error_code=36, outcome="not_written"))
                continue
            self.topic(each.name, max(1, each.num_partitions))
            self.metadata_offset += 1
            created.append(
                m.CreatedTopic(
                    name=each.name,
                    topic_id=f"id-of-{each.name}",
                    num_partitions=len(self.topics[each.name]),
                    replication_factor=3,
                )
            )
        return m.CreateTopicsResponse(topics=tuple(created), metadata_offset=self.metadata_offset)

    def _on_DeleteTopics(self, node: int, request: Any) -> Any:
        if node != self.controller:
            return m.DeleteTopicsResponse(error_code=41, outcome="not_written")
        deleted = []
        for name in request.topics:
            code = 0 if self.topics.pop(name, None) is not None else UNKNOWN_TOPIC
            self.metadata_offset += 1
            deleted.append(m.DeletedTopic(name=name, error_code=code, outcome="not_written" if code else ""))
        return m.DeleteTopicsResponse(topics=tuple(deleted), metadata_offset=self.metadata_offset)

    def _on_DescribeTopicPartitions(self, node: int, request: Any) -> Any:
        names = sorted(self.topics) if request.topics is None else request.topics
        topics = []
        for name in names:
            if name not in self.topics:
                topics.append(m.DescribedTopic(topic=name, error_code=UNKNOWN_TOPIC))
                continue
            partitions = tuple(
                m.DescribedPartition(
                    partition=index,
                    leader=each.leader,
                    leader_epoch=each.epoch,
                    partition_epoch=0,
                    controller_epoch=1,
                    replicas=tuple(self.brokers),
                    isr=tuple(self.brokers),
                )
                for index, each in enumerate(self.topics[name])
            )
            topics.append(m.DescribedTopic(topic=name, topic_id=f"id-of-{name}", partitions=partitions))
        return m.DescribeTopicsResponse(topics=tuple(topics))

    def _on_DescribeQuorum(self, node: int, request: Any) -> Any:
        if node != self.controller:
            return m.DescribeQuorumResponse(error_code=NOT_LEADER, leader_id=self.controller)
        return m.DescribeQuorumResponse(cluster_id="fake", leader_id=self.controller, leader_epoch=3, role="leader")

    def _on_DeleteRecords(self, node: int, request: Any) -> Any:
        answers = []
        for each in request.partitions:
            where = {"topic": each.topic, "partition": each.partition}
            refusal = self._refusal(node, each)
            found = self.partition(each.topic, each.partition)
            if refusal is not None or found is None:
                answers.append(
                    m.DeletedRecords(**where, error_code=(refusal or {})["error_code"], outcome="not_written")
                )
                continue
            found.start = found.end if each.offset == -1 else each.offset
            answers.append(m.DeletedRecords(**where, low_watermark=found.start))
        return m.DeleteRecordsResponse(partitions=tuple(answers))

    def _on_ElectLeaders(self, node: int, request: Any) -> Any:
        if node != self.controller:
            return m.ElectLeadersResponse(error_code=41, outcome="not_written")
        asked = request.partitions or ()
        return m.ElectLeadersResponse(
            partitions=tuple(m.ElectedLeader(topic=each.topic, partition=each.partition) for each in asked)
        )


def play(story: Callable[[], Coroutine[Any, Any, Any]], *, seed: int = 0) -> Any:
    """Run a story in virtual time; whatever a task failed with and nobody looked at fails the test."""
    loop = SimLoop(seed)
    try:
        result = loop.run(story())
        loop.check()
        return result
    finally:
        loop.close()


def encoded_request(request: Any) -> bytes:
    return b"".join(bytes(each) for each in encode_request(request))


def batches_in(data: bytes) -> list[RecordBatch]:
    return split(data)
