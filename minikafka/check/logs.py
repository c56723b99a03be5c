"""Whole logs of replicas, as they are given to be compared, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from minikafka.check.findings import Diverged
from minikafka.types import Epoch, NodeId, Offset


@dataclass(frozen=True, slots=True)
class LogBatch:
    """One batch as it stands in a log."""

    base_offset: Offset
    last_offset: Offset
    leader_epoch: Epoch
    data: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaBatches:
    """One replica's log: its marks, and its batches in log order; read several times when it is compacted."""

    node: NodeId
    high_watermark: Offset
    log_start: Offset
    batches: Iterable[LogBatch]
    is_compacted: bool = False
    """Has compaction left offsets out, here or where it was copied from?"""
    missed: Mapping[bytes, Offset] = field(default_factory=dict)
    """Tombstones that were gone elsewhere when this replica came to copy them: key -> offset of the last.

    An older record of such a key stays here alone: in Kafka too a replica that is away for longer than
    ``delete.retention.ms`` does not learn what was deleted meanwhile.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What was looked at and found."""

    batch_count: int
    """Batches that were held against another replica's."""
    size: int
    """Their bytes, each batch counted once."""
    end_offset: Offset
    """Everything below was compared between all replicas (or is reported)."""
    findings: tuple[Diverged, ...]
    is_compacted: bool = False
    """Compared record by record, not byte by byte: each replica was compacted by itself."""

    @property
    def equal(self) -> bool:
        return not self.findings
