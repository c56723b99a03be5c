"""What opening a log gives: what was found on disk, and a report of what was dropped or rebuilt.

Rule for this file: it is data; ``recovery.py`` fills it in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from minikafka.log.epochs import EpochCache
from minikafka.log.producer_state import ProducerState
from minikafka.log.segment import Segment
from minikafka.types import Offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Bytes that the opened log does not have any more."""

    path: str
    position: int
    size: int
    reason: str
    below_recovery_point: bool
    """True is damage to what was once synced; False is what a power cut may leave."""
    kept_as: str = ""
    """The file's new name: its batches are sound, and only what should come before them is missing. Empty: removed."""


class MisfitLog(Exception):
    """A log that must be set aside unchanged: its batches are sound, but no leader of this cluster wrote them so."""


@dataclass(slots=True, kw_only=True)
class RecoveryReport:
    """How a log was opened."""

    clean: bool
    checked_count: int = 0
    """Batches whose checksum was computed."""
    dropped: list[Dropped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was rebuilt, in words."""


@dataclass(slots=True, kw_only=True)
class LoadedLog:
    """What ``recovery.load`` found."""

    segments: list[Segment]
    epochs: EpochCache
    producers: ProducerState
    snapshots: list[Offset]
    start_offset: Offset
    trusted_end: Offset
    """Everything below was surely synced. After an unclean stop: the base of the first segment that was walked, for
    that one may have been cut below the recovery point and written again, which a kill -9 does not undo."""
    restarted_at: Offset | None
    """The log begins where only a ``.start`` file says that it does."""
    has_gaps: bool
    """Compaction has left offsets out, here or where it was copied from: a file says so."""
    report: RecoveryReport
