"""Produce: append a batch per partition, answer when ``acks`` is satisfied.

- The bytes of a batch are validated before anything else is decided about it: short ones at once, long ones beside the
  loop, in which case later requests for the same partition wait (``append_throttle.py``). There they also get the
  codec of the topic, if ``compression.type`` names one.
- From a partition's checks to its append everything is synchronous: what was checked still holds when the batch is
  written. Between partitions the loop gets its turn once enough was written (``append_throttle.py``).
- A request that need not wait for any of this is appended when its handler is called, and answered at once if ``acks``
  is satisfied then. Otherwise ``Begun`` says that it is appended (``dispatch.py``).
- acks=0 and acks=1 answer after the leader's append (and sync, under that policy); acks=all when every member of the
  whole present ISR has the batch and the high watermark has passed it.
- The outcome is set where it is known: before the append *not_written*; a timeout or a lost leadership after it
  *unknown*; too few replicas after it *written*.
- A leader whose session with the controller has run out refuses, before the append and again before it answers: it
  may have been replaced without knowing (a stopped process, a cut link).
- Before the first batch of a transaction in a partition, the transaction's coordinator is asked whether the partition
  belongs to it (``broker/verification.py``). The batch is appended only if nothing has ended the transaction meanwhile.
- Differs from Kafka: acks=0 is answered too (HTTP answers every request), with nothing in it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

from minikafka.broker.append_throttle import Arrival
from minikafka.broker.dispatch import Begun
from minikafka.broker.flusher import Flusher
from minikafka.broker.lifecycle import SessionAlive, session_expired
from minikafka.broker.meters import TopicMeter
from minikafka.broker.purgatory import Condition, Mark, Waiter
from minikafka.broker.replica_manager import STORAGE_ERRORS
from minikafka.config import TopicConfig
from minikafka.errors import (
    UNKNOWN,
    InvalidProducerIdMapping,
    InvalidRecord,
    InvalidRequest,
    InvalidRequiredAcks,
    InvalidTopic,
    NotLeaderOrFollower,
    ProtocolError,
    RequestTimedOut,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.log.limits import check_keys
from minikafka.log.tail import COPIED_SIZE_MAX
from minikafka.log.verification import OPEN_TRANSACTION, VerificationGuard
from minikafka.parked import Result
from minikafka.ports import INTERNAL, Buffer, RequestContext
from minikafka.replication.leader import ACKS_ALL, ACKS_LEADER, ACKS_NONE, Appended, LeaderReplica
from minikafka.replication.partition import Partition
from minikafka.transactions.records import TRANSACTIONS_TOPIC, check_transactional_id
from minikafka.types import NO_OFFSET, TopicPartition
from minikafka.wire import recompress
from minikafka.wire.batch import (
    ATTRIBUTES_END,
    CODEC_MASK,
    FOLLOWS,
    HEADER_SIZE,
    PIPELINED,
    PLAIN,
    RecordBatch,
    verify_client,
)
from minikafka.wire.decompression import decompression_limit
from minikafka.wire.markers import TRANSACTION_V2
from minikafka.wire.messages import (
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    RecordError,
)
from minikafka.wire.recompress import target_codec
from minikafka.wire.validate import check_records, is_long

if TYPE_CHECKING:
    from minikafka.broker.replica_manager import ReplicaManager
    from minikafka.broker.verification import Verifier

SURELY_SHORT = 16 * 1024
"""Nothing that is done to a batch of this size without a codec takes long."""

# A request that asks for a longer wait times out after this: it would hold a connection and memory for nothing.
TIMEOUT_MS_MAX = 300_000


class _Written:
    """One partition's batch after its append. Not a dataclass, whose ``__init__`` mypyc leaves to the interpreter."""

    __slots__ = ("appended", "error", "flusher", "leader", "meter", "partition")

    def __init__(
        self, partition: Partition, leader: LeaderReplica, appended: Appended, flusher: Flusher, meter: TopicMeter
    ) -> None:
        self.partition = partition
        self.leader = leader
        self.appended = appended
        self.flusher = flusher
        """Of this very log: by the partition's name there may soon be none, or another topic's."""
        self.meter = meter
        """Likewise."""
        self.error: ProtocolError | None = None

    @property
    def name(self) -> TopicPartition:
        return self.partition.partition


def handle_produce(
    replicas: ReplicaManager,
    request: ProduceRequest,
    *,
    session_alive: SessionAlive,
    context: RequestContext = INTERNAL,
    verifier: Verifier | None = None,
) -> ProduceResponse | Begun | Awaitable[ProduceResponse | Begun]:
    """Append and acknowledge; see the head of this file.

    ``verifier`` None: transactional batches are appended without a verification.
    """
    if request.acks not in (ACKS_ALL, ACKS_NONE, ACKS_LEADER):
        raise InvalidRequiredAcks(f"acks={request.acks}: one of -1 (all), 0, 1 is needed")
    if request.timeout_ms < 0:
        raise InvalidRequest(f"timeout_ms={request.timeout_ms} is negative", member="timeout_ms")
    if request.transactional_id is not None:
        _check_transactional(request)
        if verifier is not None and not verifier.must_ask(request.transaction_version):
            verifier = None
        guards, refused = ({}, {}) if verifier is None else _guards(replicas, request)
        unverified = {name: each for name, each in guards.items() if each is not OPEN_TRANSACTION}
        if verifier is not None and unverified:
            return _verified(replicas, request, session_alive, context, verifier, guards, refused)
        return _produce_all(replicas, request, session_alive, context, guards, refused)
    if len(request.partitions) == 1:
        answer = _produce_one(replicas, request, session_alive, context)
        if answer is not None:
            return answer
    return _produce_all(replicas, request, session_alive, context, {}, {})


def _produce_all(
    replicas: ReplicaManager,
    request: ProduceRequest,
    session_alive: SessionAlive,
    context: RequestContext,
    guards: dict[TopicPartition, VerificationGuard],
    refused: dict[TopicPartition, ProtocolError],
) -> ProduceResponse | Begun | Awaitable[ProduceResponse | Begun]:
    """Append the batches of all partitions but those that are refused already."""
    items = {TopicPartition(item.topic, item.partition): item for item in request.partitions}
    if len(items) < len(request.partitions):
        raise InvalidRequest("a partition stands twice in one request", member="partitions")
    production = _Production(replicas, request, items, session_alive, context, guards, refused)
    long = [
        (name, item.records[0])
        for name, item in items.items()
        if name not in refused and _is_long(replicas, name, item)
    ]
    if long or not replicas.arrivals.is_free(items):
        return production.append_in_order(long, replicas.arrivals.enter(items))
    return production.acknowledge() if production.append() else production.append_rest()


def _guards(
    replicas: ReplicaManager, request: ProduceRequest
) -> tuple[dict[TopicPartition, VerificationGuard], dict[TopicPartition, ProtocolError]]:
    """Begin the verification of each transactional batch.

    Returns:
        The guards, and why batches are refused that cannot be verified here. What will be refused when it is to be
        appended, whatever happens until then, is in neither.
    """
    guards: dict[TopicPartition, VerificationGuard] = {}
    refused: dict[TopicPartition, ProtocolError] = {}
    for item in request.partitions:
        name = TopicPartition(item.topic, item.partition)
        if len(item.records) != 1 or len(item.records[0]) < HEADER_SIZE:
            continue
        batch = RecordBatch.of(item.records[0])
        if not batch.is_transactional:
            continue
        try:
            log = replicas.get(name).as_leader().log
            guards[name] = log.producers.begin_verification(
                batch, begins_at_zero=request.transaction_version >= TRANSACTION_V2
            )
        except ProtocolError as error:
            # Not left to the append: while other batches are verified, this broker may become the leader.
            refused[name] = error
    return guards, refused


async def _verified(
    replicas: ReplicaManager,
    request: ProduceRequest,
    session_alive: SessionAlive,
    context: RequestContext,
    verifier: Verifier,
    guards: dict[TopicPartition, VerificationGuard],
    refused: dict[TopicPartition, ProtocolError],
) -> ProduceResponse | Begun:
    """Have the coordinator confirm what no open transaction confirms, then append the rest."""
    by_epoch: dict[tuple[int, int], list[TopicPartition]] = {}
    for item in request.partitions:
        name = TopicPartition(item.topic, item.partition)
        if guards.get(name, OPEN_TRANSACTION) is not OPEN_TRANSACTION:
            batch = RecordBatch.of(item.records[0])
            by_epoch.setdefault((batch.producer_id, batch.producer_epoch), []).append(name)
    for producer, names in by_epoch.items():
        refused |= await verifier.verify(
            request.transactional_id or "", producer, names, transaction_version=request.transaction_version
        )
    answer = _produce_all(replicas, request, session_alive, context, guards, refused)
    return answer if isinstance(answer, ProduceResponse | Begun) else await answer


def _check_transactional(request: ProduceRequest) -> None:
    """All batches of one transaction are of one producer. Raises InvalidProducerIdMapping and InvalidRequest."""
    if request.transactional_id:
        check_transactional_id(request.transactional_id)
    producers = {
        batch.producer_id
        for item in request.partitions
        for data in item.records
        if len(data) >= HEADER_SIZE and (batch := RecordBatch.of(data)).is_transactional
    }
    if len(producers) > 1:
        raise InvalidProducerIdMapping(
            f"transactional_id={request.transactional_id}: the request has transactional batches of several producers: "
            f"{sorted(producers)}"
        )


def _produce_one(
    replicas: ReplicaManager, request: ProduceRequest, session_alive: SessionAlive, context: RequestContext
) -> ProduceResponse | Begun | None:
    """Append the only batch of a request; None if it must wait for its turn, and then nothing has happened.

    Unrolled: :class:`_Production` for a request with one partition, as nearly all requests of small batches are. It
    does what the class does after the append, unless the response has to wait or reports an error.
    """
    (item,) = request.partitions
    name = TopicPartition(item.topic, item.partition)
    if (
        _is_long(replicas, name, item)
        or not replicas.arrivals.is_free((name,))
        or not replicas.append_throttle.take(sum(map(len, item.records)))
    ):
        return None
    try:
        each = _append(replicas, name, item, request.acks, session_alive, None, request.transactional_id is not None)
    except ProtocolError as error:
        return _Production(replicas, request, {name: item}, session_alive, context).continued(name, error)
    partition = each.partition
    if request.acks == ACKS_ALL or partition.config.syncs_before_acknowledging or not session_alive():
        return _Production(replicas, request, {name: item}, session_alive, context).continued(name, each)
    replicas.advance(partition, each.leader)
    replicas.sync_if_due(partition)
    _count(replicas, name, request.acks, each, None)
    return ProduceResponse(partitions=(_appended(name, each),))


class _Production:
    """One request under way."""

    __slots__ = (
        "_acks",
        "_client_id",
        "_context",
        "_deadline",
        "_guards",
        "_is_transactional",
        "_items",
        "_refused",
        "_replicas",
        "_session_alive",
        "_validated",
        "_written",
    )

    def __init__(
        self,
        replicas: ReplicaManager,
        request: ProduceRequest,
        items: dict[TopicPartition, ProducePartition],
        session_alive: SessionAlive,
        context: RequestContext,
        guards: dict[TopicPartition, VerificationGuard] | None = None,
        refused: dict[TopicPartition, ProtocolError] | None = None,
    ) -> None:
        self._replicas = replicas
        self._guards = guards or {}
        self._client_id = request.client_id
        self._context = context
        self._acks = request.acks
        self._is_transactional = request.transactional_id is not None
        self._items = items
        self._session_alive = session_alive
        waits_s = min(request.timeout_ms, TIMEOUT_MS_MAX) / 1000
        self._deadline = replicas.clock.now() + waits_s if request.acks == ACKS_ALL else 0.0
        """Only acks=all waits for others."""
        self._validated: dict[TopicPartition, RecordBatch] = {}
        self._written: dict[TopicPartition, _Written] = {}
        self._refused: dict[TopicPartition, ProtocolError] = refused or {}

    def continued(self, name: TopicPartition, result: _Written | ProtocolError) -> ProduceResponse | Begun:
        """Acknowledge the only batch, which the caller has appended or refused."""
        if isinstance(result, ProtocolError):
            self._refused[name] = result
        else:
            self._written[name] = result
        return self.acknowledge()

    def append(self) -> bool:
        """Append what the turn of the loop has room for; True if that is all. The first step of a request."""
        for name, item in self._left():
            if not self._replicas.append_throttle.take(sum(map(len, item.records))):
                return False
            self._append(name, item)
        return True

    async def append_rest(self) -> ProduceResponse | Begun:
        """Append what is left, each batch as soon as a turn has room."""
        await self._append_left()
        return self.acknowledge()

    async def append_in_order(
        self, long: list[tuple[TopicPartition, Buffer]], arrival: Arrival
    ) -> ProduceResponse | Begun:
        """Validate ``long`` batches beside the loop; append behind earlier requests for the same partitions."""
        replicas = self._replicas
        try:
            for name, data in long:
                try:
                    rules = _rules(replicas, replicas.get(name))
                    checked = await replicas.offload(partial(_validated, name, data, *rules, self._is_transactional))
                except ProtocolError as error:
                    self._refused[name] = error
                else:
                    self._validated[name] = checked
            for each in arrival.earlier:
                await each.wait()
            await self._append_left()
        finally:
            replicas.arrivals.leave(arrival)
        return self.acknowledge()

    async def _append_left(self) -> None:
        for name, item in self._left():
            await self._replicas.append_throttle.admit(sum(map(len, item.records)))
            self._append(name, item)

    def _left(self) -> list[tuple[TopicPartition, ProducePartition]]:
        return [
            (name, item)
            for name, item in self._items.items()
            if name not in self._written and name not in self._refused
        ]

    def _append(self, name: TopicPartition, item: ProducePartition) -> None:
        try:
            self._written[name] = _append(
                self._replicas,
                name,
                item,
                self._acks,
                self._session_alive,
                self._validated.get(name),
                self._is_transactional,
                self._guards.get(name),
            )
        except ProtocolError as error:
            self._refused[name] = error

    def acknowledge(self) -> ProduceResponse | Begun:
        """Everything is appended: the response, or Begun until ``acks`` is satisfied."""
        syncing = [each for each in self._written.values() if each.partition.config.syncs_before_acknowledging]
        if syncing:
            for each in syncing:
                each.flusher.start()
            return Begun(self._when_durable(syncing))
        return self._advanced()

    async def _when_durable(self, syncing: list[_Written]) -> ProduceResponse | Begun:
        for each in syncing:
            try:
                await each.flusher.durable(each.appended.end_offset)
            except ProtocolError as error:
                each.error = error
        return self._advanced()

    def _advanced(self) -> ProduceResponse | Begun:
        """Everything is as durable here as it must be."""
        _advance(self._replicas, self._written)
        if self._acks == ACKS_ALL and self._written:
            committed = _Commit(self._replicas, self._written, self._deadline)
            if not committed.is_done():
                waiting = committed.park()
                waiting.then(partial(self._when_committed, committed))
                return Begun(waiting)
        return self._response()

    def _when_committed(self, committed: _Commit, is_done: Result) -> ProduceResponse:
        if not is_done():
            committed.fail_late()
        return self._response()

    def _response(self) -> ProduceResponse:
        replicas, written, refused = self._replicas, self._written, self._refused
        if not self._session_alive():
            for each in written.values():
                each.error = each.error or session_expired(each.name, UNKNOWN)
        failed = {name: each.error for name, each in written.items() if each.error is not None}
        if failed or refused:
            context = self._context
            protocol = "" if context.protocol == INTERNAL.protocol else context.protocol
            client = {"client_id": self._client_id or "", "software": context.software, "protocol": protocol}
            known = {name: value for name, value in client.items() if value}
            _report_refusals(replicas, {**refused, **failed}, known)
        return ProduceResponse(
            partitions=tuple([_answer(replicas, name, self._acks, written, refused) for name in self._items])
        )


def _rules(replicas: ReplicaManager, partition: Partition) -> tuple[TopicConfig, bool]:
    """The topic's settings, and whether the records of a batch are validated."""
    config = partition.config
    return config, config.compacts or replicas.live.now.validate_records


def _is_long(replicas: ReplicaManager, name: TopicPartition, item: ProducePartition) -> bool:
    """Return True if the batch will be validated or compressed again, and that may take long."""
    if len(item.records) != 1:
        return False
    data = item.records[0]
    size = len(data)
    # Most batches end here: without a codec, one of this size has few records, or is refused for its counts.
    if size < HEADER_SIZE or (size <= SURELY_SHORT and not data[ATTRIBUTES_END - 1] & CODEC_MASK):
        return False
    partition = replicas.partitions.get(name)
    if partition is None or partition.role is None or size > partition.config.max_message_bytes:
        return False
    batch = RecordBatch.of(data)
    if target_codec(batch, partition.config) is not None and recompress.is_long(batch):
        return True
    limit = decompression_limit(partition.config.max_message_bytes)
    return _rules(replicas, partition)[1] and is_long(batch, limit)


def _validated(
    name: TopicPartition,
    data: Buffer,
    config: TopicConfig,
    validates: bool,  # noqa: FBT001 - a setting
    is_transactional: bool,  # noqa: FBT001 - as validates
) -> RecordBatch:
    """Check a client's batch as far as that needs no state of the partition, and give it the topic's codec."""
    # A large body would be copied for the append anyway; the validation walks over bytes faster than over a view.
    batch = verify_client(bytes(data) if len(data) > COPIED_SIZE_MAX else data, is_transactional)
    codec = target_codec(batch, config)
    if len(data) > config.max_message_bytes or (codec is None and not validates):
        return batch
    limit = decompression_limit(config.max_message_bytes)
    if codec is not None:
        batch = recompress.plain(batch, limit)
    if validates and config.compacts:
        check_keys(batch, str(name), limit)
    elif validates:
        check_records(batch, limit)
    return batch if codec is None else recompress.recompressed(batch, codec, config.compression_level)


def _append(
    replicas: ReplicaManager,
    name: TopicPartition,
    item: ProducePartition,
    acks: int,
    session_alive: SessionAlive,
    validated: RecordBatch | None,
    is_transactional: bool,  # noqa: FBT001 - named at its calls
    guard: VerificationGuard | None = None,
) -> _Written:
    if name.topic == OFFSETS_TOPIC:
        raise InvalidTopic(f"{name}: only the group coordinator writes there, commit offsets instead")
    if name.topic == TRANSACTIONS_TOPIC:
        raise InvalidTopic(f"{name}: only the transaction coordinator writes there")
    partition = replicas.get(name)
    if item.topic_id is not None and item.topic_id != partition.topic_id:
        # Compared here and not where the id became a name: the topic may have been replaced while the request waited.
        raise UnknownTopicId(f"{name} has the topic id {partition.topic_id} here, not {item.topic_id}")
    leader = partition.as_leader()
    if not session_alive():
        raise session_expired(name)
    if len(item.records) != 1:
        raise InvalidRecord(f"{name}: exactly one record batch is needed", member="records")
    if item.sequencing not in (PLAIN, PIPELINED, FOLLOWS):
        raise InvalidRequest(
            f"{name}: sequencing={item.sequencing}: one of {PLAIN}, {PIPELINED}, {FOLLOWS} is needed",
            member="sequencing",
        )
    batch = (
        validated
        if validated is not None
        else _validated(name, item.records[0], *_rules(replicas, partition), is_transactional)
    )
    try:
        appended = leader.append(
            batch, acks=acks, wall_ms=replicas.clock.wall_ms(), guard=guard, sequencing=item.sequencing
        )
    except STORAGE_ERRORS as error:
        raise replicas.storage_error(partition, error) from error
    meter = replicas.traffic.topic(name.topic)
    if not appended.duplicate:
        meter.bytes_in += len(item.records[0])
        meter.messages_in += appended.end_offset - appended.base_offset
    replicas.purgatory.wake(Mark.LOG_END, name, appended.end_offset)
    return _Written(partition, leader, appended, replicas.flushers[name], meter)


def _report_refusals(
    replicas: ReplicaManager, errors: dict[TopicPartition, ProtocolError], client: dict[str, str]
) -> None:
    for name, error in errors.items():
        if not isinstance(error, UnknownTopicOrPartition):
            replicas.events(
                "produce_refused",
                partition=str(name),
                error=error.name,
                outcome=error.outcome,
                why=error.message,
                **client,
            )


def _advance(replicas: ReplicaManager, written: dict[TopicPartition, _Written]) -> None:
    for each in written.values():
        if each.partition.role is each.leader:
            replicas.advance(each.partition, each.leader)
        replicas.sync_if_due(each.partition)


class _Commit:
    """What waits until every in-sync replica has it."""

    def __init__(self, replicas: ReplicaManager, written: dict[TopicPartition, _Written], deadline: float) -> None:
        self._replicas = replicas
        self._waiting = {name: each for name, each in written.items() if each.error is None}
        self._deadline = deadline

    def is_done(self) -> bool:
        """Nothing is left to wait for."""
        for name, each in list(self._waiting.items()):
            if _is_settled(each):
                del self._waiting[name]
        return not self._waiting

    def park(self) -> Waiter:
        """Wait from now on."""
        conditions = [
            Condition(Mark.HIGH_WATERMARK, name, each.appended.end_offset) for name, each in self._waiting.items()
        ]
        meter = self._replicas.traffic.purgatory_meters["Produce"]
        return self._replicas.purgatory.park(conditions, self.is_done, self._deadline, meter=meter)

    def fail_late(self) -> None:
        """The deadline has come: what is not done has failed."""
        for name, each in self._waiting.items():
            each.error = RequestTimedOut(
                f"{name}: written at {each.appended.base_offset}, not yet on all in-sync replicas "
                f"{list(each.leader.maximal_isr)} when the timeout ran out",
                outcome=UNKNOWN,
            )


def _is_settled(each: _Written) -> bool:
    if each.partition.role is not each.leader:
        each.error = NotLeaderOrFollower(
            f"{each.name}: the leader changed to broker {each.partition.leader} before all replicas had the batch",
            outcome=UNKNOWN,
        )
        return True
    try:
        return each.leader.check_acknowledged(each.appended.end_offset)
    except ProtocolError as error:
        each.error = error
        return True


def _answer(
    replicas: ReplicaManager,
    name: TopicPartition,
    acks: int,
    written: dict[TopicPartition, _Written],
    refused: dict[TopicPartition, ProtocolError],
) -> ProducedPartition:
    each = written.get(name)
    error = each.error if each is not None else refused.get(name)
    _count(replicas, name, acks, each, error)
    if error is not None:
        return ProducedPartition.failed(
            error,
            topic=name.topic,
            partition=name.partition,
            current_leader=replicas.current_leader(name) if error.stale_metadata else None,
            record_errors=tuple(RecordError(batch_index=at, message=why) for at, why in error.record_errors),
        )
    if each is None:
        raise InvalidRequest(f"{name} was neither written nor refused", outcome=UNKNOWN)
    return _appended(name, each)


def _appended(name: TopicPartition, each: _Written) -> ProducedPartition:
    return ProducedPartition(
        topic=name.topic,
        partition=name.partition,
        base_offset=each.appended.base_offset,
        log_append_time_ms=each.appended.log_append_time_ms,
        log_start_offset=each.leader.log.start_offset,
        leader_epoch=each.leader.epoch,
        duplicate=each.appended.duplicate,
    )


def _count(
    replicas: ReplicaManager, name: TopicPartition, acks: int, each: _Written | None, error: ProtocolError | None
) -> None:
    traffic = replicas.traffic
    if error is not None:
        traffic.produced(error.outcome, error.name, 0)
    elif each is not None:
        is_counted = acks != ACKS_NONE and each.appended.base_offset != NO_OFFSET
        count = each.appended.end_offset - each.appended.base_offset
        traffic.produced("written", None, count if is_counted else 0)
    if each is not None:
        meter = each.meter
    elif name in replicas.partitions:
        meter = traffic.topic(name.topic)
    else:
        return
    meter.produce_requests += 1
    meter.failed_produce_requests += error is not None
