"""The ledger of a producer: what it sent, and the outcome of each record (docs/history-format.md).

Rules for this file:

1. A send is in the ledger before its record can leave the process: whatever a log holds, a ledger speaks of it.
2. Sends to a partition stand in the order in which their records were buffered, so nothing is awaited between the two.
3. An answer may come late or never: then the record is unknown. Answers of one turn of the loop are written together.
4. A ledger that cannot be written ends the producer: nothing goes out that it does not know of.
5. With acks=0 nobody answers; without idempotence the ledger says so, for records may then be written twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from minikafka.check import Expectations, Recorder, value_id
from minikafka.client.structs import RecordMetadata, SentRecords
from minikafka.errors import NOT_WRITTEN, ProtocolError
from minikafka.types import NO_EPOCH, Epoch, Offset, TopicPartition

KeyAndValue = tuple[bytes | None, bytes | None]


class LedgerSink(Protocol):
    """Where a ledger's lines go."""

    @property
    def recorder(self) -> Recorder: ...

    def flush(self) -> None:
        """Everything recorded so far survives the end of this process."""
        ...


class AckLedger:
    """What a producer writes down. Keys and values are named, not stored."""

    def __init__(
        self,
        sink: LedgerSink,
        process: str,
        epochs: Mapping[TopicPartition, Epoch],
        failed: Callable[[BaseException], None],
        *,
        answers: bool,
        idempotent: bool,
    ) -> None:
        self._recorder = sink.recorder
        self._epochs = epochs
        self._write = sink.flush
        self._failed = failed
        self._process = process
        self._answers = answers
        self._due = False
        if not idempotent:
            self._recorder.expect(Expectations(idempotent=False))

    def sent(self, topic: str, partition: int | None, rows: Iterable[KeyAndValue]) -> list[int]:
        """Records are about to be buffered; their numbers."""
        send, process = self._recorder.send, self._process
        ops = [
            send(process, topic, value_id(value), key=None if key is None else value_id(key), partition=partition)
            for key, value in rows
        ]
        self._flush()
        return ops

    def _flush(self) -> None:
        try:
            self._write()
        except OSError as error:
            self._failed(error)
            raise

    def refused(self, topic: str, partition: int | None, rows: Iterable[KeyAndValue], error: ProtocolError) -> None:
        """Records were not buffered."""
        self._fail(self.sent(topic, partition, rows), error)

    def follow(self, ops: Sequence[int], future: asyncio.Future[Any]) -> None:
        """Write down the answer to some records, when it comes: a RecordMetadata (of the first) or SentRecords."""
        future.add_done_callback(partial(self._answered, ops))

    def _answered(
        self, ops: Sequence[int], future: asyncio.Future[RecordMetadata] | asyncio.Future[SentRecords]
    ) -> None:
        if future.cancelled():
            return  # by the application: nobody knows
        error = future.exception()
        if error is not None:
            self._fail(ops, error)
        elif self._answers:
            result = future.result()
            offsets = (
                result.offsets
                if isinstance(result, SentRecords)
                else [result.offset + index if result.offset >= 0 else -1 for index in range(len(ops))]
            )
            self._acknowledge(ops, TopicPartition(result.topic, result.partition), offsets)
        self._flush_soon()

    def _acknowledge(self, ops: Sequence[int], where: TopicPartition, offsets: Sequence[Offset]) -> None:
        # Right after the answer: the next one to this partition cannot have come, for one batch is in flight.
        epoch = self._epochs.get(where, NO_EPOCH)
        for op, offset in zip(ops, offsets, strict=True):
            place = offset if offset >= 0 else None
            self._recorder.acknowledged(op, partition=where.partition, offset=place, leader_epoch=epoch)

    def _fail(self, ops: Sequence[int], error: BaseException) -> None:
        if isinstance(error, ProtocolError):
            tell = self._recorder.failed if error.outcome == NOT_WRITTEN else self._recorder.unknown
            name = error.name
        else:
            tell, name = self._recorder.unknown, type(error).__name__
        for op in ops:
            tell(op, name)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._due = False
        with suppress(OSError):  # the producer has ended with it: its next call raises it
            self._flush()
