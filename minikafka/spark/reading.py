"""One range of one partition, read to its end: what a task does between its first fetch and its last.

Rules for this file:

1. Never fewer records than planned: a leader whose high watermark is still below the range's end (a new one, for a
   moment) is asked again until ``kafkaConsumer.pollTimeoutMs`` is over; then the task fails by name.
2. The range was below the high watermark of its epoch when it was planned. A leader of a later epoch must therefore
   leave that epoch at or after the range's end; if it does not, its log is another one (LogTruncated), and with
   failOnDataLoss=false the range ends where the logs part.
3. Every fetch names the leader epoch and the topic's id that the reader believes in, so that an old leader, or a topic
   made anew, cannot answer unnoticed.
4. Gaps in offsets inside a range are compaction's or control batches'; only a log start beyond the position is a loss.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace

from minikafka.errors import (
    FencedLeaderEpoch,
    InconsistentTopicId,
    OffsetOutOfRange,
    ProtocolError,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from minikafka.spark.client import BACKOFF_FIRST_S, BACKOFF_MAX_S, Brokers, BrokersUnreachable
from minikafka.spark.options import SourceOptions
from minikafka.spark.plan import (
    DataLoss,
    LogTruncated,
    OffsetRange,
    PartitionVanished,
    RetentionPassedPosition,
    TopicRecreated,
)
from minikafka.types import NO_EPOCH, NO_OFFSET, Epoch, Offset
from minikafka.wire.batch import RecordBatch, iterate

LOGGER = logging.getLogger("minikafka.spark")

MAX_WAIT_MS = 500


class NotYetCommitted(Exception):
    """The leader's high watermark stayed below what was planned, for as long as kafkaConsumer.pollTimeoutMs allows."""


class RangeReader:
    """Reads one range. Raises the errors of plan.py, NotYetCommitted, BrokersUnreachable."""

    def __init__(self, brokers: Brokers, wanted: OffsetRange, options: SourceOptions) -> None:
        self._brokers = brokers
        self._range = wanted
        self._options = options
        self._position = wanted.start
        self._checked_epoch: Epoch = NO_EPOCH
        self._high_watermark: Offset = NO_OFFSET
        self._interrupted: ProtocolError | None = None

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
                heard_at, pause_s = time.monotonic(), BACKOFF_FIRST_S
                yield found
                continue
            if time.monotonic() - heard_at > self._options.poll_timeout_s:
                raise self._given_up() from self._interrupted
            time.sleep(pause_s)
            pause_s = min(BACKOFF_MAX_S, pause_s * 2)

    def _given_up(self) -> Exception:
        """Also with failOnDataLoss=false: what cannot be read now is not lost."""
        partition, timeout_s = self._range.partition, self._options.poll_timeout_s
        if self._interrupted is not None:
            return BrokersUnreachable(f"{partition}: no answer within {timeout_s:g} s: {self._interrupted}")
        return NotYetCommitted(
            f"{partition}: {self._range.end} was committed when this was planned, but after {timeout_s:g} s the "
            f"leader's high watermark is {self._high_watermark}"
        )

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
                max_bytes=self._options.fetch_size,
                max_wait_ms=MAX_WAIT_MS,
            )
        except OffsetOutOfRange:
            self._out_of_range()
            return []
        except ProtocolError as error:
            self._interrupted = error
            self._brokers.forget_leaders()
            if isinstance(error, InconsistentTopicId | UnknownTopicId | UnknownTopicOrPartition):
                self._check_existence()
            elif not error.retriable and not isinstance(error, FencedLeaderEpoch):
                raise
            return []
        if self._interrupted is not None:
            LOGGER.warning(
                "%s: reading goes on at %d, epoch %d, after %s", partition, self._position, epoch, self._interrupted
            )
            self._interrupted = None
        self._high_watermark = answer.high_watermark
        if not answer.records:
            return []
        found = [batch for batch in iterate(answer.records[0]) if batch.next_offset > self._position]
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
            loss = TopicRecreated(partition, "it was deleted and made anew while it was read")
        else:
            return
        self._range = replace(self._range, end=self._position)
        self._lost(loss)

    def _lost(self, loss: DataLoss) -> None:
        if self._options.fail_on_data_loss:
            raise loss
        LOGGER.warning("going on (failOnDataLoss=false): %s", loss)
