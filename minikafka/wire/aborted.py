"""Which batches of a fetch's records belong to aborted transactions: what readers with ``read_committed`` leave out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from minikafka.types import NO_PRODUCER
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import marker_of
from minikafka.wire.messages import AbortedTransaction


class AbortedFilter:
    """Walks over the records of one response, from its first batch on."""

    __slots__ = ("_aborting", "_ahead")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._ahead = deque(sorted(aborted, key=lambda each: each.first_offset))
        self._aborting: set[int] = set()
        """Producers whose batches belong to an aborted transaction, up to its marker."""

    def skips(self, batch: RecordBatch) -> bool:
        """Return True if ``batch`` belongs to an aborted transaction. Batches must come in order, markers included.

        Raises:
            CorruptMessage: ``batch`` is a control batch that cannot be read.
        """
        if batch.producer_id == NO_PRODUCER:
            return False
        while self._ahead and self._ahead[0].first_offset <= batch.last_offset:
            self._aborting.add(self._ahead.popleft().producer_id)
        if batch.is_control:
            marker = marker_of(batch)
            if marker is not None and not marker.is_commit:
                self._aborting.discard(batch.producer_id)
            return False
        return batch.is_transactional and batch.producer_id in self._aborting


def filter_of(aborted: tuple[AbortedTransaction, ...] | None) -> AbortedFilter | None:
    """Return the filter for a response's list; None if there is nothing to leave out."""
    return AbortedFilter(aborted) if aborted else None
