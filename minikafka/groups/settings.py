"""What a group coordinator is configured with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """What a coordinator's broker was configured with; Kafka's defaults."""

    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    group_size_max: int = 2**31 - 1
    offset_metadata_size_max: int = 4_096
    offsets_retention_ms: int = 7 * 86_400_000
    expiry_interval_ms: int = 600_000
    """How often offsets are looked at for their age."""
    consumer_session_timeout_ms: int = 45_000
    """Of members of the consumer protocol (KIP-848); the coordinator sets it, not the client."""
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_group_size_max: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The first is the default."""
