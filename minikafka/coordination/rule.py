"""What ``broker/coordinator_shard.py`` needs of a coordinator: a rule whose only memory is one partition's log."""

from __future__ import annotations

from typing import Any, Protocol

from minikafka.coordination.step import Step, Write
from minikafka.errors import ProtocolError
from minikafka.types import NO_OFFSET, NO_PRODUCER, Offset


class Coordinator(Protocol):
    """It lives as long as this broker leads the partition. It is synchronous; each call fills the step and returns."""

    @property
    def kind(self) -> str:
        """Names its task and its event ``..._coordinator_not_loaded``: ``group``."""
        ...

    @property
    def skipped_event(self) -> str:
        """The kind of the event that reports records of newer versions."""
        ...

    def replay(
        self, key: bytes, value: bytes | None, *, offset: Offset = NO_OFFSET, producer_id: int = NO_PRODUCER
    ) -> bool:
        """Apply one record of the log, first to last; the last of each key counts.

        ``producer_id``: whose transaction the record belongs to, if any.

        Returns False for a version that a later release wrote. Raises ValueError: no coordinator wrote this.
        """
        ...

    def transaction_ended(self, producer_id: int, *, is_commit: bool) -> None:
        """A marker of a producer is committed, after the records of its transaction."""
        ...

    def packed(self, record: Any) -> tuple[bytes, bytes | None]:
        """The key and the value of a record of :class:`Write`."""
        ...

    def loaded(self, step: Step) -> None:
        """The log was read to its end, and all of it is committed."""
        ...

    def committed(self, write: Write, step: Step) -> None:
        """The records of ``write`` are committed: they count."""
        ...

    def refused(self, write: Write, error: ProtocolError, step: Step) -> None:
        """They were not written; or (outcome *unknown*) nobody knows yet, and :meth:`committed` may follow."""
        ...

    def resign(self, step: Step) -> None:
        """This broker leads the partition no longer: refuse everyone who waits."""
        ...

    def next_deadline(self) -> float:
        """Monotonic seconds at which :meth:`tick` has something to do; infinity: never."""
        ...

    def tick(self, step: Step) -> None:
        """Do everything that is due."""
        ...
