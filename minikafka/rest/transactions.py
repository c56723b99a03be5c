"""``/v1/transactions``: transactional ids and their transactions; ``.../partitions/{p}/producers``: its producers."""

from __future__ import annotations

from typing import Any

from minikafka.errors import CoordinatorNotAvailable, TransactionalIdNotFound
from minikafka.rest.coordinators import (
    TRANSACTIONAL_IDS,
    coordinator_members,
    coordinator_of,
    from_all,
    from_coordinator,
)
from minikafka.rest.fetch import name_of
from minikafka.rest.groups import COORDINATOR_PROBLEMS, Coordinator
from minikafka.rest.leaders import from_leader, leader_members
from minikafka.rest.model import Model, many_of, member, one
from minikafka.rest.parameters import FORWARD, INT64_MAX, PARTITION, TOPIC, Integer, Text, states_parameter
from minikafka.rest.route import LEADER_PROBLEMS, Route
from minikafka.rest.schema import nullable, one_of, ref, text, whole
from minikafka.rest.schemas import Leader, Place
from minikafka.rest.visit import Reply, Visit
from minikafka.transactions.records import State
from minikafka.types import NodeId
from minikafka.wire.messages import (
    ActiveProducer,
    DescribedProducer,
    DescribeProducersPartition,
    DescribeProducersRequest,
)
from minikafka.wire.transaction_messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
)

STATES = tuple(each.value for each in State)
DESCRIBE_WAIT_S = 1.0


STATE = states_parameter("transactional ids", STATES, example="Ongoing")
PRODUCER_ID = Integer(name="producer_id", description="Only the transactional id of this producer.", high=INT64_MAX)
RUNNING_MS = Integer(
    name="running_longer_than_ms",
    description="Only transactions that have been open for longer than this.",
    high=INT64_MAX,
)
TRANSACTIONAL_ID = Text(
    name="transactional_id",
    place="path",
    description="The producer's `transactional.id`.",
    pattern=r"[\s\S]+",
    needed="a name",
    length_max=32_767,
    example="payments-1",
)
_STATE = one_of("State of the transactional id, in Kafka's words.", *STATES)


class _Listed(Model):
    """A transactional id in short."""

    transactional_id: str = member(text(), "payments-1")
    state: str = member(_STATE, "Ongoing")
    producer_id: int = member(whole("Producer id of the latest producer."), 4000)
    coordinator: NodeId = member(ref("NodeId"), 2)


class _Transactions(Model):
    """Transactional ids, by name."""

    transactions: list[Any] = many_of(_Listed)


class _Transaction(Model):
    """A transactional id with its present or last transaction."""

    transactional_id: str = member(text(), "payments-1")
    state: str = member(_STATE, "Ongoing")
    producer_id: int = member(whole("Producer id of the latest producer."), 4000)
    producer_epoch: int = member(whole("Epoch of the latest producer; producers with a lower one are fenced."), 3)
    timeout_ms: int = member(whole("The coordinator aborts a transaction that is open for longer."), 60_000)
    started_ms: int | None = member(
        nullable(whole("Start of the present or last transaction, in milliseconds since 1970; null: there was none.")),
        1_795_259_231_681,
    )
    partitions: list[Any] = many_of(Place)
    coordinator: Any = one(Coordinator)


class _Producer(Model):
    """An idempotent or transactional producer, as the leader of the partition knows it."""

    producer_id: int = member(whole(), 4000)
    producer_epoch: int = member(whole("Epoch of its last batch or marker."), 3)
    last_sequence: int = member(whole("Sequence number of its last record; -1: only a marker is known."), 6)
    last_timestamp: int = member(
        whole("Timestamp of its last batch or marker, in milliseconds since 1970."), 1_795_259_231_681
    )
    coordinator_epoch: int = member(
        whole("Epoch of the coordinator that wrote its last marker; -1: there was none."), 0
    )
    transaction_start_offset: int | None = member(
        nullable(whole("First offset of its open transaction; null: none is open.")), 41
    )


class _Producers(Place):
    """The producers of a partition."""

    leader: Any = one(Leader)
    producers: list[Any] = many_of(_Producer)


async def get_transactions(visit: Visit) -> Reply:
    """Transactional ids of every coordinator; with ``?forward=never`` only of this broker."""
    request = ListTransactionsRequest(
        states=visit[STATE],
        producer_ids=(visit[PRODUCER_ID],) if visit.gives(PRODUCER_ID) else (),
        duration_ms=visit[RUNNING_MS],
    )
    found = await from_all(visit, request, "transactional ids")
    listed = [
        _Listed.out_of(each, coordinator=node) for node, response in found.items() for each in response.transactions
    ]
    return Reply(_Transactions(transactions=sorted(listed, key=lambda each: str(each["transactional_id"]))).out())


async def get_transaction(visit: Visit) -> Reply:
    """One transactional id: its state, its producer, and the partitions of its open transaction."""
    name = visit[TRANSACTIONAL_ID]
    response: DescribeTransactionsResponse = await from_coordinator(
        visit,
        name,
        DescribeTransactionsRequest(transactional_ids=(name,)),
        failed=lambda answer: next((each for each in (answer, *answer.transactions) if each.error_code), None),
        kind=TRANSACTIONAL_IDS,
    )
    [found] = response.transactions
    coordinator = coordinator_members(visit.host, await coordinator_of(visit, name, TRANSACTIONAL_IDS))
    started_ms = found.started_ms if found.started_ms >= 0 else None
    return Reply(_Transaction.out_of(found, started_ms=started_ms, coordinator=coordinator))


def producer_out(producer: ActiveProducer) -> dict[str, Any]:
    """A producer as ``/v1`` shows it."""
    start = producer.current_txn_start_offset
    return _Producer.out_of(producer, transaction_start_offset=start if start >= 0 else None)


async def get_producers(visit: Visit) -> Reply:
    """Producers that the partition's leader knows: their last sequence, and where their open transaction begins."""
    name = name_of(visit)
    request = DescribeProducersRequest(
        partitions=(DescribeProducersPartition(topic=name.topic, partition=name.partition),)
    )

    def pick(response: Any) -> DescribedProducer:
        found: DescribedProducer = response.partitions[0]
        return found

    found, leader = await from_leader(visit, name, request, pick=pick, wait_s=DESCRIBE_WAIT_S)
    producers = [producer_out(each) for each in found.active]
    return Reply(_Producers.out_of(found, leader=leader_members(visit.host, leader), producers=producers))


ROUTES = (
    Route(
        method="GET",
        path="/v1/transactions",
        handler=get_transactions,
        tag="transactions",
        parameters=(STATE, PRODUCER_ID, RUNNING_MS, FORWARD),
        answers={200: _Transactions.answer("All transactional ids, by name.")},
        problems=(CoordinatorNotAvailable,),
    ),
    Route(
        method="GET",
        path="/v1/transactions/{transactional_id}",
        handler=get_transaction,
        tag="transactions",
        parameters=(TRANSACTIONAL_ID, FORWARD),
        answers={200: _Transaction.answer("The transactional id.")},
        problems=(*COORDINATOR_PROBLEMS, TransactionalIdNotFound),
    ),
    Route(
        method="GET",
        path="/v1/topics/{topic}/partitions/{partition}/producers",
        handler=get_producers,
        tag="transactions",
        parameters=(TOPIC, PARTITION, FORWARD),
        answers={200: _Producers.answer("The producers that the partition's leader knows.")},
        problems=LEADER_PROBLEMS,
    ),
)
