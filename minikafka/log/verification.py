"""Guards of transactional batches: the first one is appended only after its coordinator has confirmed it (KIP-890).

A batch that is late joins no transaction: before the first batch of a transaction, the leader asks the transaction
coordinator whether the partition belongs to the producer's open transaction. The response takes time, and the
transaction may end meanwhile, and the next one begin. So each round has a guard, a unique object: the batch is appended
only while the log still holds this very object. The first batch of a transaction and every marker of the producer
remove it (KAFKA-14884).

Rules for this file: data. Guards live in the leader's memory; one that is lost costs another round.
"""

from __future__ import annotations

from dataclasses import dataclass

from minikafka.wire.batch import SEQUENCE_COUNT


@dataclass(slots=True, eq=False)
class VerificationGuard:
    """One producer's verification; equal only to itself."""

    lowest_sequence: int = SEQUENCE_COUNT
    """Of the batches that have begun verification: a later one is not appended before it (KAFKA-14920)."""
    begins_at_zero: bool = False
    """Transaction version 2: each transaction has an epoch of its own, so its first sequence is 0."""
    seen_ms: int | None = None
    """When expiry first looked at it."""


OPEN_TRANSACTION = VerificationGuard()
"""For batches whose transaction was open when they arrived: no log holds it, so the transaction must still be open."""
