"""What an administrator requests and changes of transactions. Part of the admin client.

Each broker lists the transactional ids that it coordinates; each leader lists the producers of its partitions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial

from minikafka import errors as kafka
from minikafka.client.admin_calls import AdminCalls
from minikafka.client.caller import accepted
from minikafka.client.metadata import Leader
from minikafka.client.routing import TRANSACTION_KEY, as_dict, as_names, error_within
from minikafka.transactions.hanging import OpenTransaction, still_open, suspects
from minikafka.transactions.records import TRANSACTIONS_TOPIC
from minikafka.types import NO_NODE, NodeId, TopicPartition
from minikafka.wire import transaction_messages as t
from minikafka.wire.messages import ActiveProducer, DescribeProducersPartition, DescribeProducersRequest, PartitionName

_error_of_transactions = partial(error_within, parts="transactions")

MAX_TRANSACTION_TIMEOUT_MS = 900_000
"""Default of ``transaction.max.timeout.ms``: no transaction that a coordinator knows stays open for longer."""


class TransactionOperations(AdminCalls):
    """The methods for transactions."""

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
        found: dict[NodeId, tuple[t.ListedTransaction, ...]] = {}
        for node in sorted(await self._living()):
            response: t.ListTransactionsResponse = await self._once_loaded(node, request, deadline)
            found[node] = response.transactions
        if await self._transaction_leaders() != leaders:
            raise kafka.CoordinatorNotAvailable("a coordinator of transactions moved while they were listed: repeat it")
        return {node: listed for node, listed in found.items() if listed}

    async def _transaction_leaders(self) -> tuple[tuple[NodeId, int], ...]:
        """Leader and leader epoch of each partition of ``__transaction_state``, of which none is missing."""
        try:
            (topic,) = await self.describe_topics([TRANSACTIONS_TOPIC])
        except kafka.UnknownTopicOrPartition:
            return ()
        for each in topic.partitions:
            if each.leader == NO_NODE:
                raise kafka.CoordinatorNotAvailable(
                    f"{TRANSACTIONS_TOPIC}-{each.partition} has no leader: its transactional ids cannot be listed"
                )
        return tuple((each.leader, each.leader_epoch) for each in topic.partitions)

    async def describe_transactions(self, transactional_ids: Sequence[str]) -> list[t.DescribedTransaction]:
        """Return state, producer and partitions of each. Raises TransactionalIdNotFound for the first unknown one."""
        found = []
        for name in as_names(transactional_ids, "describe_transactions"):
            request = t.DescribeTransactionsRequest(transactional_ids=(name,))
            response = await self._ask_coordinator(name, request, _error_of_transactions, key_type=TRANSACTION_KEY)
            found.extend(accepted(response, _error_of_transactions).transactions)
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
            except kafka.TransactionalIdNotFound:
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
                partitions=PartitionName.each(each for each, _, _ in group),
            )
            return t.WriteTxnMarkersRequest(markers=(marker,))

        await self._leaders().ask(as_dict([partition]), make, deadline=self._deadline(None), results="markers")
