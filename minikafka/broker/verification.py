"""Verification with transaction coordinators that partitions belong to a producer's open transaction (KIP-890).

Leaders of partitions ask before they append the first batch of a transaction, and coordinators of groups before they
write offsets. With transaction version 2 the request also adds the partitions.

The coordinator's errors become errors that producers retry or abort on. They do not look for another coordinator: it is
the broker that has asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from minikafka import errors as kafka
from minikafka.broker.coordinator_shards import CoordinatorShards
from minikafka.ports import World
from minikafka.types import NodeId, TopicPartition
from minikafka.wire import transaction_messages as t
from minikafka.wire.markers import TRANSACTION_V2
from minikafka.wire.messages import PartitionName

AskBroker: TypeAlias = Callable[[NodeId, object, float], Awaitable[Any]]
"""(broker, request, seconds to wait) -> the response, also of this broker itself. Raises what ``rpc.call`` raises."""

ANSWER_WAIT_S = 10.0
"""Then the producer is asked to send its batch again."""

BUSY_WAIT_S, BUSY_PAUSE_S = 0.1, 0.02
"""The coordinator is still ending the producer's last transaction: how long it is repeated."""

_TEMPORARY = (
    kafka.CoordinatorNotAvailable,
    kafka.CoordinatorLoadInProgress,
    kafka.NotCoordinator,
    kafka.OperationNotAttempted,
)
"""Another attempt may succeed. A partition is not added while the coordinator does not know another one of the request,
which may just have been created; Kafka passes that code on, and its producers abort."""


class Verifier:
    """The verifications of one broker."""

    def __init__(
        self,
        world: World,
        *,
        shards: Callable[[], CoordinatorShards[Any]],
        ask_broker: AskBroker,
        is_enabled: bool,
    ) -> None:
        """``is_enabled``: transaction.partition.verification.enable."""
        self._is_enabled = is_enabled
        self._world = world
        self._shards = shards
        self._ask_broker = ask_broker

    def must_ask(self, transaction_version: int) -> bool:
        """Return True if coordinators are requested: for version 2 always, since the request adds the partitions."""
        return self._is_enabled or transaction_version >= TRANSACTION_V2

    async def verify(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: Iterable[TopicPartition],
        *,
        transaction_version: int,
    ) -> dict[TopicPartition, kafka.ProtocolError]:
        """Verify ``partitions``, or add them (transaction version 2).

        Args:
            transactional_id: Of the producer.
            producer: Its id and epoch.
            partitions: What is about to be written to.
            transaction_version: Of the producer's request.

        Returns:
            Why each of the partitions may not be written to; without those that may.
        """
        names = tuple(partitions)
        request = t.AddPartitionsToTxnRequest(
            transactions=(
                t.TransactionPartitions(
                    transactional_id=transactional_id,
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    verify_only=transaction_version < TRANSACTION_V2,
                    partitions=PartitionName.each(names),
                ),
            ),
            transaction_version=transaction_version,
        )
        clock = self._world.clock
        busy_until = clock.now() + BUSY_WAIT_S
        while True:
            found = await self._asked(transactional_id, names, request)
            is_busy = any(isinstance(each, kafka.ConcurrentTransactions) for each in found.values())
            if not is_busy or transaction_version < TRANSACTION_V2 or clock.now() >= busy_until:
                return {name: _as_producers_error(each, transaction_version) for name, each in found.items()}
            await asyncio.sleep(BUSY_PAUSE_S)

    async def _asked(
        self, transactional_id: str, names: tuple[TopicPartition, ...], request: t.AddPartitionsToTxnRequest
    ) -> dict[TopicPartition, kafka.ProtocolError]:
        try:
            coordinator = self._shards().leader_of(transactional_id)
            response: t.AddPartitionsToTxnResponse = await self._ask_broker(coordinator, request, ANSWER_WAIT_S)
        except kafka.WorldError as error:
            return dict.fromkeys(
                names, kafka.CoordinatorNotAvailable(f"the coordinator of {transactional_id}: {error}")
            )
        except kafka.ProtocolError as error:
            return dict.fromkeys(names, error)
        if response.error_code:
            return dict.fromkeys(names, kafka.error_of(response.error_code, response.error_message))
        (transaction,) = response.transactions
        if transaction.error_code:
            return dict.fromkeys(names, kafka.error_of(transaction.error_code, transaction.error_message))
        return {
            TopicPartition(each.topic, each.partition): kafka.error_of(each.error_code, each.error_message)
            for each in transaction.partitions
            if each.error_code
        }


def _as_producers_error(error: kafka.ProtocolError, transaction_version: int) -> kafka.ProtocolError:
    """Kafka's mapping: what a producer does about these errors leads to a new attempt, or to an abort."""
    if isinstance(error, _TEMPORARY) or (
        isinstance(error, kafka.ConcurrentTransactions) and transaction_version < TRANSACTION_V2
    ):
        return kafka.NotEnoughReplicas(f"the transaction could not be verified: {error.message}")
    if isinstance(error, kafka.ProducerFenced):
        return kafka.InvalidProducerEpoch(error.message)
    return error
