"""Transactions over HTTP: ``/v1/transactions`` shows them, and lets a producer have one with nothing but HTTP.

``.../partitions/{p}/producers`` shows the producers of a partition.

Brokers keep nothing between two requests but what the coordinator's log has. The client sends ``producer_id`` and
``producer_epoch`` with each request, and gets those of its next transaction when one has ended: the epoch rises with
each end (transaction version 2, KIP-890). So a late copy of any request acts on its own transaction, or is refused.

- ``POST /v1/transactions`` fences the former producer of the id, and aborts what that has left open.
- Records join the transaction with ``POST .../partitions/{p}/records`` and the header ``Transactional-Id``
  (``produce.py``). Sequences begin at 0 in each transaction and partition.
- A commit or abort without a response may be repeated: the repetition gets the same answer, until the next transaction
  begins.
- While the coordinator ends the last transaction (CONCURRENT_TRANSACTIONS), a request is repeated for some seconds.
"""

from __future__ import annotations

from typing import Any

from minikafka import errors as kafka
from minikafka.rest.fetch import name_of
from minikafka.rest.group_offsets import COMMIT_PROBLEMS, Commit, committing
from minikafka.rest.groups import COORDINATOR_PROBLEMS, PARTITION_COUNT_MAX, Coordinator
from minikafka.rest.leaders import (
    COORDINATOR_WAIT_S,
    GROUPS,
    TRANSACTIONAL_IDS,
    Coordinated,
    ErrorOf,
    coordinator_of,
    first_error,
    from_all,
    from_coordinator,
    from_leader,
    whole_error,
)
from minikafka.rest.model import Model, many_of, member, one
from minikafka.rest.parameters import FORWARD, INT32_MAX, INT64_MAX, Integer, any_text, states_parameter
from minikafka.rest.permissions import check_may
from minikafka.rest.route import LEADER_PROBLEMS, Json, Routes, Visit
from minikafka.rest.schema import one_of, whole
from minikafka.rest.schemas import Leader, Place
from minikafka.transactions.records import State
from minikafka.types import NodeId, Offset
from minikafka.wire import messages as m
from minikafka.wire import transaction_messages as t
from minikafka.wire.acls import AclOperation, ResourceType
from minikafka.wire.group_messages import NO_GENERATION
from minikafka.wire.markers import TRANSACTION_V2

ROUTES = Routes("transactions", also=(FORWARD,))
STATES = tuple(each.value for each in State)
STATE = states_parameter("transactional ids", STATES, example="Ongoing")
PRODUCER_ID = Integer("producer_id", "Only the transactional id of this producer.", high=INT64_MAX)
RUNNING_MS = Integer(
    "running_longer_than_ms", "Only transactions that have been open for longer than this.", high=INT64_MAX
)
TRANSACTIONAL_ID = any_text(
    "transactional_id", "The producer's `transactional.id`.", place="path", example="payments-1"
)
_STATE = one_of("State of the transactional id, in Kafka's words.", *STATES)


class _Listed(Model):
    """A transactional id in short."""

    transactional_id: str = member(example="payments-1")
    state: str = member(_STATE, "Ongoing")
    producer_id: int = member("Producer id of the latest producer.", 4000)
    coordinator: NodeId = member(example=2)


class _Transactions(Model):
    """Transactional ids, by name."""

    transactions: list[Any] = many_of(_Listed)


class _Transaction(Model):
    """A transactional id with its present or last transaction."""

    transactional_id: str = member(example="payments-1")
    state: str = member(_STATE, "Ongoing")
    producer_id: int = member("Producer id of the latest producer.", 4000)
    producer_epoch: int = member("Epoch of the latest producer; producers with a lower one are fenced.", 3)
    timeout_ms: int = member("The coordinator aborts a transaction that is open for longer.", 60_000)
    started_ms: int | None = member(
        "Start of the present or last transaction, in milliseconds since 1970; null: there was none.",
        1_795_259_231_681,
        negative_is_null=True,
    )
    partitions: list[Any] = many_of(Place)
    coordinator: Any = one(Coordinator)


class _Producer(Model):
    """An idempotent or transactional producer, as the leader of the partition knows it."""

    producer_id: int = member(example=4000)
    producer_epoch: int = member("Epoch of its last batch or marker.", 3)
    last_sequence: int = member("Sequence number of its last record; -1: only a marker is known.", 6)
    last_timestamp: int = member(
        "Timestamp of its last batch or marker, in milliseconds since 1970.", 1_795_259_231_681
    )
    coordinator_epoch: int = member("Epoch of the coordinator that wrote its last marker; -1: there was none.", 0)
    transaction_start_offset: int | None = member(
        "First offset of its open transaction; null: none is open.",
        41,
        source="current_txn_start_offset",
        negative_is_null=True,
    )


class _Producers(Place):
    """The producers of a partition."""

    leader: Any = one(Leader)
    producers: list[Any] = many_of(_Producer)


@ROUTES.at(
    "GET /v1/transactions",
    _Transactions.answer("All transactional ids, by name."),
    parameters=(STATE, PRODUCER_ID, RUNNING_MS),
    problems=(kafka.CoordinatorNotAvailable,),
)
async def get_transactions(visit: Visit) -> Json:
    """Transactional ids of every coordinator; with ``?forward=never`` only of this broker."""
    request = t.ListTransactionsRequest(
        states=visit[STATE],
        producer_ids=(visit[PRODUCER_ID],) if visit.gives(PRODUCER_ID) else (),
        duration_ms=visit[RUNNING_MS],
    )
    found = await from_all(visit, request, "transactional ids")
    listed = [
        _Listed.out_of(each, coordinator=node) for node, response in found.items() for each in response.transactions
    ]
    return _Transactions(transactions=sorted(listed, key=lambda each: str(each["transactional_id"]))).out()


@ROUTES.at(
    "GET /v1/transactions/{transactional_id}",
    _Transaction.answer("The transactional id."),
    problems=(*COORDINATOR_PROBLEMS, kafka.TransactionalIdNotFound),
)
async def get_transaction(visit: Visit) -> Json:
    """One transactional id: its state, its producer, and the partitions of its open transaction."""
    name = visit[TRANSACTIONAL_ID]
    response: t.DescribeTransactionsResponse = await from_coordinator(
        visit,
        name,
        t.DescribeTransactionsRequest(transactional_ids=(name,)),
        failed=first_error("transactions"),
        kind=TRANSACTIONAL_IDS,
    )
    [found] = response.transactions
    coordinator = visit.broker_out(await coordinator_of(visit, name, TRANSACTIONAL_IDS))
    return _Transaction.out_of(found, coordinator=coordinator)


def producer_out(producer: m.ActiveProducer) -> dict[str, Any]:
    """A producer as ``/v1`` shows it."""
    return _Producer.out_of(producer)


@ROUTES.at(
    "GET /v1/topics/{topic}/partitions/{partition}/producers",
    _Producers.answer("The producers that the partition's leader knows."),
    problems=LEADER_PROBLEMS,
)
async def get_producers(visit: Visit) -> Json:
    """Producers that the partition's leader knows: their last sequence, and where their open transaction begins."""
    name = name_of(visit)
    request = m.DescribeProducersRequest(partitions=(m.DescribeProducersPartition(**name._asdict()),))
    found, leader = await from_leader(visit, name, request)
    producers = [producer_out(each) for each in found.active]
    return _Producers.out_of(found, leader=visit.leader_out(leader), producers=producers)


TIMEOUT_MS_DEFAULT = 60_000
"""Kafka's default of ``transaction.timeout.ms``."""
_PRODUCER_ID = whole("Of the transaction.", minimum=0, maximum=INT64_MAX)
_PRODUCER_EPOCH = whole("Of the transaction.", minimum=0, maximum=2**15 - 1)
_ADVICE = "the answer to `POST /v1/transactions`, or to the end of the last transaction, has it"


class _Wanted(Model):
    """A transactional id to produce with."""

    transactional_id: str = member(example="payments-1", minLength=1, maxLength=TRANSACTIONAL_ID.length_max)
    timeout_ms: int = member(
        "A transaction that is open for longer is aborted.",
        TIMEOUT_MS_DEFAULT,
        default=TIMEOUT_MS_DEFAULT,
        minimum=1,
        maximum=INT32_MAX,
    )


class _Initialized(Model, notes=True):
    """The producer of a transactional id: no other one can commit from now on."""

    transactional_id: str = member(example="payments-1")
    producer_id: int = member("To be sent with each request of the transaction.", 4000)
    producer_epoch: int = member("To be sent with each request of the transaction.", 3)
    timeout_ms: int = member("A transaction that is open for longer is aborted.", TIMEOUT_MS_DEFAULT)
    coordinator: Any = one(Coordinator)


class _Sender(Model):
    """The producer and the epoch of a transaction."""

    producer_id: int = member(_PRODUCER_ID, 4000, if_missing=_ADVICE)
    producer_epoch: int = member(_PRODUCER_EPOCH, 3, if_missing=_ADVICE)


class _Ended(Model, notes=True):
    """A transaction that has ended, and the producer and the epoch of the next one."""

    transactional_id: str = member(example="payments-1")
    committed: bool = member("Whether the transaction was committed.", example=True)
    producer_id: int = member("Of the next transaction.", 4000)
    producer_epoch: int = member("Of the next transaction.", 4)


class _Offsets(_Sender):
    """Offsets of a group that are committed if the transaction is."""

    group: str = member(example="billing", minLength=1)
    generation: int = member(
        "Of the member that has read the records; without it nobody is fenced.", default=NO_GENERATION, minimum=-1
    )
    member_id: str = member("The member that has read the records.", default="")
    group_instance_id: str | None = member(default=None)
    offsets: list[Commit] = many_of(Commit, minItems=1, maxItems=PARTITION_COUNT_MAX)


class _PendingOffset(Place):
    """An offset that counts when the transaction is committed."""

    offset: Offset = member(example=41)


class _Pending(Model, notes=True):
    """Offsets in a transaction."""

    transactional_id: str = member(example="payments-1")
    group: str = member(example="billing")
    offsets: list[Any] = many_of(_PendingOffset)


@ROUTES.at(
    "POST /v1/transactions",
    _Initialized.answer("The producer of the transactional id."),
    body=_Wanted.body(),
    problems=(
        *COORDINATOR_PROBLEMS,
        kafka.ConcurrentTransactions,
        kafka.InvalidRequest,
        kafka.InvalidTransactionTimeout,
    ),
)
async def post_transaction(visit: Visit) -> Json:
    """Become the producer of a transactional id: its former producer is fenced, and what that left open is aborted.

    The transaction begins with its first records or offsets. To go on after its end, take the epoch of that answer.
    """
    wanted = await _Wanted.sent(visit)
    # Before a coordinator is looked for: the first one of a cluster creates an internal topic.
    check_may(visit.permit, AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, wanted.transactional_id)
    request = m.InitProducerIdRequest(
        transactional_id=wanted.transactional_id, transaction_timeout_ms=wanted.timeout_ms
    )
    given: m.InitProducerIdResponse = await _asked(visit, wanted.transactional_id, request, TRANSACTIONAL_IDS)
    return _Initialized.out_of(given, **vars(wanted), coordinator=visit.broker_out(visit.leaders[-1]))


_FENCED: tuple[type[kafka.ProtocolError], ...] = (kafka.InvalidProducerIdMapping, kafka.ProducerFenced)


@ROUTES.at(
    "PUT /v1/transactions/{transactional_id}/offsets",
    _Pending.answer("They count when the transaction is committed."),
    body=_Offsets.body(),
    problems=(
        *COORDINATOR_PROBLEMS,
        *_FENCED,
        kafka.ConcurrentTransactions,
        kafka.FencedInstanceId,
        kafka.IllegalGeneration,
        kafka.InvalidProducerEpoch,
        kafka.InvalidTxnState,
        kafka.NotEnoughReplicas,
        kafka.UnknownMemberId,
        *COMMIT_PROBLEMS,
    ),
)
async def put_transaction_offsets(visit: Visit) -> Json:
    """Commit offsets of a group in the transaction (TxnOffsetCommit): they count when it is committed.

    With ``generation`` and ``member_id`` a member without which the group has gone on is refused (KIP-447). After an
    error the transaction has to be aborted.
    """
    sent, name = await _Offsets.sent(visit), visit[TRANSACTIONAL_ID]
    check_may(visit.permit, AclOperation.READ, ResourceType.GROUP, sent.group)
    request = t.TxnOffsetCommitRequest(
        transactional_id=name,
        group_id=sent.group,
        producer_id=sent.producer_id,
        producer_epoch=sent.producer_epoch,
        generation_id=sent.generation,
        member_id=sent.member_id,
        group_instance_id=sent.group_instance_id or None,
        transaction_version=TRANSACTION_V2,
        partitions=committing(sent.offsets),
    )

    # Not repeated after a lost response: a late copy could overwrite what the client commits next in the transaction.
    await _asked(visit, sent.group, request, GROUPS, failed=first_error("partitions"), repeatable=False)
    return _Pending.out_of(sent, transactional_id=name)


_END_PROBLEMS = (*COORDINATOR_PROBLEMS, *_FENCED, kafka.ConcurrentTransactions, kafka.InvalidTxnState)


@ROUTES.at(
    "POST /v1/transactions/{transactional_id}:commit",
    _Ended.answer("Committed."),
    body=_Sender.body(),
    problems=_END_PROBLEMS,
)
async def post_commit(visit: Visit) -> Json:
    """Commit: the decision is durable when this is answered, and readers see the records soon after.

    Every request of the transaction must have been answered with success before; else abort.
    """
    return await _end(visit, is_commit=True)


@ROUTES.at(
    "POST /v1/transactions/{transactional_id}:abort",
    _Ended.answer("Aborted.", committed=False),
    body=_Sender.body(),
    problems=_END_PROBLEMS,
)
async def post_abort(visit: Visit) -> Json:
    """Abort: no reader of committed records sees any of the transaction, nor what of it is still under way."""
    return await _end(visit, is_commit=False)


async def _end(visit: Visit, *, is_commit: bool) -> Json:
    sent, name = await _Sender.sent(visit), visit[TRANSACTIONAL_ID]
    request = t.EndTxnRequest(
        **vars(sent), transactional_id=name, committed=is_commit, transaction_version=TRANSACTION_V2
    )
    response: t.EndTxnResponse = await _asked(visit, name, request, TRANSACTIONAL_IDS)
    return _Ended.out_of(response, transactional_id=name, committed=is_commit)


async def _asked(
    visit: Visit,
    name: str,
    request: Any,
    kind: Coordinated,
    *,
    failed: ErrorOf = whole_error,
    repeatable: bool = True,
) -> Any:
    """The coordinator's answer, once it no longer ends the producer's last transaction."""
    until = visit.host.world.clock.now() + COORDINATOR_WAIT_S
    return await from_coordinator(visit, name, request, failed=failed, repeatable=repeatable, until=until, kind=kind)
