"""One range of offsets of one partition, read from its start to its end by a task of Spark or by an audit.

Rules for this file:

1. Never fewer records than planned: a leader whose high watermark (with ``read_committed``: last stable offset) is
   still below the range's end (a new one, for a moment) is asked again until ``poll_timeout_s`` is over; then
   NotYetCommitted is raised.
2. The range was below the high watermark of its epoch when it was planned. A leader of a later epoch must therefore
   leave that epoch at or after the range's end; if it does not, its log is another one (LogTruncated), and with
   ``fail_on_data_loss`` false the range ends where the logs part.
3. Every fetch names the leader epoch and the topic's id that the reader believes in, so that an old leader, or a topic
   re-created, cannot answer unnoticed.
4. Gaps in offsets inside a range are compaction's or control batches'; only a log start beyond the position is a loss.
5. With ``read_committed`` a batch of an aborted transaction is returned as one without records: it was read, and says
   nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from minikafka import errors as kafka
from minikafka.blocking.brokers import BACKOFF_FIRST_S, BACKOFF_MAX_S, Brokers, BrokersUnreachable
from minikafka.types import NO_EPOCH, NO_OFFSET, Epoch, Offset, TopicId, TopicPartition
from minikafka.wire.batch import RecordBatch, from_offset, iterate
from minikafka.wire.markers import filter_of
from minikafka.wire.messages import READ_COMMITTED

LOGGER = logging.getLogger("minikafka.blocking")

MAX_WAIT_MS = 500
POLL_TIMEOUT_MS = 120_000
FETCH_SIZE = 1024 * 1024
"""Bytes per fetch; docs/performance.md tells what larger ones cost."""


GO_ON = " (failOnDataLoss=false goes on and reports it)"
"""What a query of one's own can do about lost records."""


class DataLoss(Exception):
    """Records are gone. With the option failOnDataLoss=false the query goes on and reports them."""

    def __init__(self, partition: TopicPartition, message: str) -> None:
        super().__init__(f"{type(self).__name__}: {partition}: {message}{GO_ON}")
        self.partition = partition


class LogTruncated(DataLoss):
    """A leader was elected that never had what this query read: its log parts from ours below the position."""


class RetentionPassedPosition(DataLoss):
    """Retention or DeleteRecords removed records before they were read."""


class TopicRecreated(DataLoss):
    """The topic was deleted and re-created: its offsets mean other records."""


class PartitionVanished(DataLoss):
    """The topic or the partition no longer exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """What one task reads: ``start`` to ``end`` (exclusive) of one partition, as it stood at leader epoch ``epoch``."""

    partition: TopicPartition
    start: Offset
    end: Offset
    epoch: Epoch = NO_EPOCH
    topic_id: TopicId | None = None

    @property
    def size(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingLimits:
    """How a range is read."""

    fetch_size: int = FETCH_SIZE
    """Most bytes of one fetch."""
    poll_timeout_s: float = POLL_TIMEOUT_MS / 1000
    """Longest wait for the next record below the high watermark."""
    fail_on_data_loss: bool = True
    """Raise DataLoss if records of the range are gone; otherwise log a warning and go on."""


class NotYetCommitted(Exception):
    """The end of what may be read stayed below what was planned, for as long as kafkaConsumer.pollTimeoutMs allows."""


class RangeReader:
    """Reads one range. Raises DataLoss, NotYetCommitted, BrokersUnreachable."""

    def __init__(self, brokers: Brokers, wanted: OffsetRange, limits: ReadingLimits) -> None:
        self._brokers = brokers
        self._range = wanted
        self._limits = limits
        self._position = wanted.start
        self._checked_epoch: Epoch = NO_EPOCH
        self._readable_until: Offset = NO_OFFSET
        self._interrupted: kafka.ProtocolError | None = None

    @property
    def end(self) -> Offset:
        """What is read lies below it."""
        return self._range.end

    def batches(self) -> Iterator[list[RecordBatch]]:
        """The batches of the range, fetch by fetch; the first and the last may reach over its edges."""
        heard_at = time.monotonic()
        pause_s = BACKOFF_FIRST_S
        while self._position < self._range.end:
            found = self._fetch()
            if found:
                yield found
                # Only now: the caller may have taken longer for the batches than the next ones may take to come.
                heard_at, pause_s = time.monotonic(), BACKOFF_FIRST_S
                continue
            if time.monotonic() - heard_at > self._limits.poll_timeout_s:
                raise self._given_up() from self._interrupted
            time.sleep(pause_s)
            pause_s = min(BACKOFF_MAX_S, pause_s * 2)

    def _given_up(self) -> Exception:
        """Also with failOnDataLoss=false: what cannot be read now is not lost."""
        partition, timeout_s = self._range.partition, self._limits.poll_timeout_s
        if self._interrupted is not None:
            return BrokersUnreachable(f"{partition}: no answer within {timeout_s:g} s: {self._interrupted}")
        return NotYetCommitted(
            f"{partition}: {self._range.end} was committed when this was planned, but after {timeout_s:g} s the "
            f"leader's {self._readable_name} is {self._readable_until}"
        )

    @property
    def _readable_name(self) -> str:
        is_stable = self._brokers.isolation_level == READ_COMMITTED
        return "last stable offset" if is_stable else "high watermark"

    def _fetch(self) -> list[RecordBatch]:
        """The next batches; none: ask again later."""
        partition = self._range.partition
        try:
            epoch = self._epoch()
            answer = self._brokers.fetch(
                partition,
                self._position,
                epoch=epoch,
                topic_id=self._range.topic_id,
                max_bytes=self._limits.fetch_size,
                max_wait_ms=MAX_WAIT_MS,
            )
        except kafka.OffsetOutOfRange:
            self._out_of_range()
            return []
        except kafka.ProtocolError as error:
            self._interrupted = error
            self._brokers.forget_leaders()
            if isinstance(error, kafka.InconsistentTopicId | kafka.UnknownTopicId | kafka.UnknownTopicOrPartition):
                self._check_existence()
            elif not error.retriable and not isinstance(error, kafka.FencedLeaderEpoch):
                raise
            return []
        if self._interrupted is not None:
            LOGGER.warning(
                "%s: reading goes on at %d, epoch %d, after %s", partition, self._position, epoch, self._interrupted
            )
            self._interrupted = None
        is_stable = self._brokers.isolation_level == READ_COMMITTED
        self._readable_until = answer.last_stable_offset if is_stable else answer.high_watermark
        if not answer.records:
            return []
        batches = iterate(answer.records[0])
        found = list(from_offset(batches, self._position, end_max=answer.readable_end))
        aborted = filter_of(answer.aborted_transactions)
        if aborted is not None:
            found = [batch._replace(record_count=0) if aborted.skips(batch) else batch for batch in found]
        if found:
            self._position = found[-1].next_offset
        return found

    def _epoch(self) -> Epoch:
        """The leader's epoch, checked once per epoch against the planned one (rule 2)."""
        epoch = self._brokers.leader(self._range.partition).epoch
        if epoch == self._checked_epoch:
            return epoch
        if self._range.epoch not in {NO_EPOCH, epoch}:
            partition, end = self._range.partition, self._range.end
            epoch_end = self._brokers.epoch_ends({partition: self._range.epoch})[partition]
            if NO_OFFSET < epoch_end < end:
                # Where that is allowed: what stands behind it was never planned, the next batch begins there.
                self._range = replace(self._range, end=epoch_end)
                self._lost(
                    LogTruncated(
                        partition,
                        f"{end} was committed in epoch {self._range.epoch}, but the leader of epoch {epoch} leaves "
                        f"that epoch at {epoch_end}: {end - epoch_end} records are gone",
                    )
                )
        self._checked_epoch = epoch
        return epoch

    def _out_of_range(self) -> None:
        """Below the log start (retention), or beyond the log's end (a leader that lags, or lost records)."""
        partition = self._range.partition
        start = self._brokers.starts([partition])[partition]
        if start > self._position:
            self._lost(
                RetentionPassedPosition(
                    partition, f"reading stood at {self._position}, the log begins at {start}: the rest is gone"
                )
            )
            self._position = start

    def _check_existence(self) -> None:
        """A broker knows no such partition, or another one: if that is so, and it is not behind, the range is over."""
        partition = self._range.partition
        topic = self._brokers.topics([partition.topic], certain=True).get(partition.topic)
        if topic is None or partition.partition not in topic.partitions:
            loss: DataLoss = PartitionVanished(partition, "it was deleted while it was read")
        elif self._range.topic_id not in {None, topic.topic_id}:
            loss = TopicRecreated(partition, "it was deleted and re-created while it was read")
        else:
            return
        self._range = replace(self._range, end=self._position)
        self._lost(loss)

    def _lost(self, loss: DataLoss) -> None:
        if self._limits.fail_on_data_loss:
            raise loss
        LOGGER.warning("going on (failOnDataLoss=false): %s", loss)
