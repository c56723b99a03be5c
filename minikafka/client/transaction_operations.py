"""What an administrator requests and changes of transactions. Part of the admin client.

Each broker lists the transactional ids that it coordinates; each leader lists the producers of its partitions.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from minikafka.client.cluster_view import Leader
from minikafka.client.coordinator import TRANSACTION_KEY, Coordinator
from minikafka.client.leaders import Leaders, as_dict
from minikafka.errors import (
    CoordinatorNotAvailable,
    ProtocolError,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)
from minikafka.transactions.hanging import OpenTransaction, still_open, suspects
from minikafka.transactions.records import TRANSACTIONS_TOPIC
from minikafka.types import NO_NODE, NodeId, TopicPartition
from minikafka.wire import transaction_messages as t
from minikafka.wire.admin import PartitionName
from minikafka.wire.messages import (
    ActiveProducer,
    DescribedTopic,
    DescribeProducersPartition,
    DescribeProducersRequest,
)
from minikafka.wire.outcomes import error_in

RETRY_PAUSE_MS = 100
"""Pause before a broker whose coordinators are loading is asked again."""

MAX_TRANSACTION_TIMEOUT_MS = 900_000
"""Default of ``transaction.max.timeout.ms``: no transaction that a coordinator knows stays open for longer."""


class TransactionOperations(ABC):
    """The methods; how a call finds its broker is the admin client's."""

    async def list_transactions(
        self,
        *,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        duration_ms: int = -1,
        id_pattern: str = "",
    ) -> dict[NodeId, tuple[t.ListedTransaction, ...]]:
        """Return the transactional ids of every broker that coordinates some; empty filters select all.

        ``duration_ms``: only transactions that have been open for longer. ``id_pattern``: a regular expression in RE2's
        syntax that must match the whole transactional id (KIP-1152). Raises an error if the ids of one coordinator
        cannot be listed: the list is complete or there is none.
        """
        deadline = self._deadline(None)
        request = t.ListTransactionsRequest(
            states=tuple(states),
            producer_ids=tuple(producer_ids),
            duration_ms=duration_ms,
            id_pattern=id_pattern,
        )
        leaders = await self._transaction_leaders()
        found = {node: await self._listed(node, request, deadline) for node in sorted(await self._living(deadline))}
        if await self._transaction_leaders() != leaders:
            raise CoordinatorNotAvailable("a coordinator of transactions moved while they were listed: repeat it")
        return {node: listed for node, listed in found.items() if listed}

    async def _listed(
        self, node: NodeId, request: t.ListTransactionsRequest, deadline: float
    ) -> tuple[t.ListedTransaction, ...]:
        while True:
            try:
                response: t.ListTransactionsResponse = await self._ask_node(node, request, deadline)
            except ProtocolError as error:
                if not error.retriable or self._deadline(RETRY_PAUSE_MS) >= deadline:
                    raise
                await asyncio.sleep(RETRY_PAUSE_MS / 1000)
            else:
                return response.transactions

    async def _transaction_leaders(self) -> tuple[tuple[NodeId, int], ...]:
        """Leader and leader epoch of each partition of ``__transaction_state``, of which none is missing."""
        try:
            (topic,) = await self.describe_topics([TRANSACTIONS_TOPIC])
        except UnknownTopicOrPartition:
            return ()
        for each in topic.partitions:
            if each.leader == NO_NODE:
                raise CoordinatorNotAvailable(
                    f"{TRANSACTIONS_TOPIC}-{each.partition} has no leader: its transactional ids cannot be listed"
                )
        return tuple((each.leader, each.leader_epoch) for each in topic.partitions)

    async def describe_transactions(self, transactional_ids: Sequence[str]) -> list[t.DescribedTransaction]:
        """Return state, producer and partitions of each. Raises TransactionalIdNotFound for the first unknown one."""
        found = []
        for name in transactional_ids:
            response = await self._coordinator(name, key_type=TRANSACTION_KEY).ask(
                t.DescribeTransactionsRequest(transactional_ids=(name,)),
                deadline=self._deadline(None),
                error_of=_error_of_transaction,
            )
            error = _error_of_transaction(response)
            if error is not None:
                raise error
            found.extend(response.transactions)
        return found

    async def describe_producers(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[ActiveProducer, ...]]:
        """Return the producers that the leader of each partition knows, with their open transactions."""

        def make(group: list[tuple[TopicPartition, None, Leader]]) -> DescribeProducersRequest:
            return DescribeProducersRequest(
                partitions=tuple(
                    DescribeProducersPartition(topic=each.topic, partition=each.partition) for each, _, _ in group
                )
            )

        answers = await self._leaders().ask(as_dict(partitions), make, deadline=self._deadline(None))
        return {name: answer.active for name, answer in answers.items()}

    async def open_transactions(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        """Return the open transactions of these partitions, as their leaders know them."""
        return [
            OpenTransaction(
                partition=name,
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                coordinator_epoch=each.coordinator_epoch,
                start_offset=each.current_txn_start_offset,
                last_timestamp=each.last_timestamp,
            )
            for name, producers in (await self.describe_producers(partitions)).items()
            for each in producers
            if each.current_txn_start_offset >= 0
        ]

    async def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition], *, older_than_ms: int = MAX_TRANSACTION_TIMEOUT_MS
    ) -> list[OpenTransaction]:
        """Return the open transactions of these partitions that no coordinator knows: they never end by themselves.

        ``older_than_ms``: only those whose last batch is older. With an authorizer, the caller needs DESCRIBE on all
        transactional ids and topics: a transaction that the caller may not see looks like a hanging one.
        """
        found = await self.open_transactions(partitions)
        old = suspects(found, {}, now_ms=self._wall_ms(), older_than_ms=older_than_ms)
        if not old:
            return []
        known = await self._partitions_of({each.producer_id for each in old})
        unknown = suspects(old, known, now_ms=self._wall_ms(), older_than_ms=older_than_ms)
        if not unknown:
            return []
        return still_open(unknown, await self.open_transactions([each.partition for each in unknown]))

    async def _partitions_of(self, producer_ids: Collection[int]) -> dict[int, frozenset[TopicPartition]]:
        """Partitions of the transactions of these producers, as their coordinators know them."""
        known: dict[int, frozenset[TopicPartition]] = {}
        listed = await self.list_transactions(producer_ids=sorted(producer_ids))
        for name in (each.transactional_id for transactions in listed.values() for each in transactions):
            try:
                (found,) = await self.describe_transactions([name])
            except TransactionalIdNotFound:
                continue  # It has expired: it has no transaction.
            partitions = frozenset(TopicPartition(each.topic, each.partition) for each in found.partitions)
            known[found.producer_id] = known.get(found.producer_id, frozenset()) | partitions
        return known

    async def abort_transaction(
        self, partition: TopicPartition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int
    ) -> None:
        """Write an ABORT marker for a producer's open transaction, in one partition.

        It is meant for a hanging transaction. One that a coordinator still knows would be aborted in this partition and
        may be committed in others. Repeating the call is harmless.

        Args:
            partition: Where the transaction is open.
            producer_id: As :meth:`describe_producers` returns it, like the next two.
            producer_epoch: A lower one than the partition knows raises InvalidProducerEpoch.
            coordinator_epoch: -1 if the producer has no marker yet; a lower one than the partition knows raises
                TransactionCoordinatorFenced.
        """

        def make(group: list[tuple[TopicPartition, None, Leader]]) -> t.WriteTxnMarkersRequest:
            marker = t.TransactionMarker(
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                committed=False,
                coordinator_epoch=max(coordinator_epoch, 0),
                partitions=tuple(PartitionName(topic=each.topic, partition=each.partition) for each, _, _ in group),
            )
            return t.WriteTxnMarkersRequest(markers=(marker,))

        await self._leaders().ask(as_dict([partition]), make, deadline=self._deadline(None), results="markers")

    # ---- the admin client's part ----

    @abstractmethod
    async def describe_topics(self, topics: Sequence[str] | None = None) -> list[DescribedTopic]: ...

    @abstractmethod
    def _coordinator(self, group: str, *, key_type: int) -> Coordinator: ...

    @abstractmethod
    async def _living(self, deadline: float) -> list[NodeId]: ...

    @abstractmethod
    async def _ask_node(self, node: NodeId, request: Any, deadline: float) -> Any: ...

    @abstractmethod
    def _leaders(self) -> Leaders: ...

    @abstractmethod
    def _deadline(self, timeout_ms: int | None) -> float: ...

    @abstractmethod
    def _wall_ms(self) -> int: ...


def _error_of_transaction(response: t.DescribeTransactionsResponse) -> ProtocolError | None:
    return error_in(response) or next(filter(None, map(error_in, response.transactions)), None)
