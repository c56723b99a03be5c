"""Messages of transactions, in the form of ``messages.py``: flat where Kafka nests topics."""

from __future__ import annotations

from minikafka.types import Epoch, NodeId
from minikafka.wire.group_messages import NO_GENERATION, CommitPartition, PartitionOutcome
from minikafka.wire.messages import Failed, Message, PartitionName, Request

# ---- WriteTxnMarkers -------------------------------------------------------------------------------------------------


class TransactionMarker(Message):
    """One transaction that ends, and the partitions of the receiver's in which it ends."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: Epoch
    """Leader epoch of the coordinator's partition of ``__transaction_state``."""
    transaction_version: int = 0
    """2: the epoch is one above that of the transaction's data (KIP-890)."""
    number: int = 0
    """Our own: of the transaction among those that the coordinator has ended in this epoch of its own, from 1 on. A
    marker that is sent again has the same number. 0: not known."""
    partitions: tuple[PartitionName, ...]


class WriteTxnMarkersRequest(Request):
    """Sent by a transaction coordinator to the leaders of a transaction's partitions."""

    broker_id: NodeId = -1
    broker_epoch: int = -1
    """Our own: the broker of the coordinator, in its registered incarnation. -1: an administrator sends the marker."""
    markers: tuple[TransactionMarker, ...]


class WrittenMarker(Failed):
    """One partition's answer to one marker."""

    producer_id: int
    topic: str
    partition: int


class WriteTxnMarkersResponse(Failed):
    """One answer for each partition of each marker, in the order of the request."""

    markers: tuple[WrittenMarker, ...] = ()


# ---- AddPartitionsToTxn, AddOffsetsToTxn -----------------------------------------------------------------------------


class TransactionPartitions(Message):
    """Partitions of one transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool = False
    """Report whether the partitions belong to the open transaction, and add nothing (KIP-890)."""
    partitions: tuple[PartitionName, ...]


class AddPartitionsToTxnRequest(Request):
    """From producers with one transaction; from leaders that verify batches with several."""

    transactions: tuple[TransactionPartitions, ...]
    transaction_version: int = 0
    """2: the producer's epoch rises with each end of a transaction."""


class AddedPartition(Failed):
    """One partition's answer."""

    topic: str
    partition: int


class AddedPartitions(Failed):
    """One transaction's answer: an error of the whole, or one for each partition."""

    transactional_id: str
    partitions: tuple[AddedPartition, ...] = ()


class AddPartitionsToTxnResponse(Failed):
    """One answer for each transaction of the request."""

    transactions: tuple[AddedPartitions, ...] = ()


class AddOffsetsToTxnRequest(Request):
    """Add the partition of ``__consumer_offsets`` that holds a group's offsets."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    group_id: str


class AddOffsetsToTxnResponse(Failed):
    """True if the partition of the group belongs to the transaction."""


# ---- TxnOffsetCommit -------------------------------------------------------------------------------------------------


class TxnOffsetCommitRequest(Request):
    """Commit a group's offsets in a transaction, at the group's coordinator: they count when the transaction commits.

    Members send their generation, and are fenced by it (KIP-447).
    """

    transactional_id: str
    group_id: str
    producer_id: int
    producer_epoch: int
    generation_id: int = NO_GENERATION
    member_id: str = ""
    group_instance_id: str | None = None
    transaction_version: int = 0
    """2: the group's partition is added to the transaction; before, AddOffsetsToTxn must have added it."""
    partitions: tuple[CommitPartition, ...]


class TxnOffsetCommitResponse(Failed):
    """One answer for each partition."""

    partitions: tuple[PartitionOutcome, ...] = ()


# ---- EndTxn ----------------------------------------------------------------------------------------------------------


class EndTxnRequest(Request):
    """Commit or abort."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    committed: bool
    transaction_version: int = 0
    """2: the end raises the producer's epoch (KIP-890)."""


class EndTxnResponse(Failed):
    """The outcome is durable; the markers follow."""

    producer_id: int = -1
    producer_epoch: int = -1
    """Of the producer's next transaction; -1 before transaction version 2."""


# ---- DescribeTransactions, ListTransactions --------------------------------------------------------------------------


class DescribeTransactionsRequest(Request):
    """For the coordinator of each transactional id."""

    transactional_ids: tuple[str, ...]


class DescribedTransaction(Failed):
    """One transactional id."""

    transactional_id: str
    state: str = ""
    timeout_ms: int = 0
    started_ms: int = -1
    """Wall clock at which the open transaction began; -1: none is open."""
    producer_id: int = -1
    producer_epoch: int = -1
    partitions: tuple[PartitionName, ...] = ()


class DescribeTransactionsResponse(Failed):
    """In the order of the request."""

    transactions: tuple[DescribedTransaction, ...] = ()


class ListTransactionsRequest(Request):
    """For every broker: each lists the transactional ids that it coordinates. Empty filters select all."""

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    duration_ms: int = -1
    """Only transactions that have been open for longer; -1: all."""
    id_pattern: str = ""
    """Only transactional ids that this regular expression of RE2 matches as a whole; empty: all."""


class ListedTransaction(Message):
    """One transactional id in short."""

    transactional_id: str
    producer_id: int
    state: str


class ListTransactionsResponse(Failed):
    """``unknown_states``: names in the filter that are no states."""

    unknown_states: tuple[str, ...] = ()
    transactions: tuple[ListedTransaction, ...] = ()
