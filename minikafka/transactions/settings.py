"""What a transaction coordinator is configured with."""

from __future__ import annotations

from dataclasses import dataclass

from minikafka.transactions.transaction import EPOCH_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Kafka's defaults."""

    timeout_ms_max: int = 900_000
    timeout_check_ms: int = 10_000
    """Interval between two looks for transactions that have exceeded their timeout."""
    id_expiration_ms: int = 604_800_000
    """Idle transactional ids older than this are forgotten."""
    expiration_check_ms: int = 3_600_000
    epoch_max: int = EPOCH_MAX
    """Lowered only by tests, so that epochs run out."""
