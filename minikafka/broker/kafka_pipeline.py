"""In which order the requests of one connection of Kafka's protocol begin and are answered. Synchronous.

Rules for this file:

1. Answers leave in the order of their requests, whatever order they are ready in.
2. One request is handled at a time, as in Kafka, with one exception: while Produce requests only wait for their
   acknowledgement (their batches are appended), the next Produce begins. So batches are appended in the order in which
   they were sent, and a pipelining producer does not pay a round trip for each.
3. At most PENDING_MAX requests are held; beyond that the connection stops reading.
"""

from __future__ import annotations

from collections import deque

from minikafka.ports import Buffers
from minikafka.wire.kafka.codec import Message, decode
from minikafka.wire.kafka.frames import Header
from minikafka.wire.kafka.translate.common import Exchange, Translation

PENDING_MAX = 8
"""Requests of one connection that are held at a time."""

PRODUCE_KEY = 0

LISTING_KEYS = frozenset({15, 16, 29, 32, 35, 46, 48, 50, 61, 66, 69, 75})
"""DescribeGroups, ListGroups, DescribeAcls, DescribeConfigs, DescribeLogDirs, ListPartitionReassignments,
DescribeClientQuotas, DescribeUserScramCredentials, DescribeProducers, ListTransactions, ConsumerGroupDescribe and
DescribeTopicPartitions: small requests that may have large responses. They take turns as large frames do.
"""

LARGE_FRAME = 8 * 1024
"""A larger frame of another API than Produce is decoded, handled and answered in separate turns of the loop, and in
each turn one of all connections (``large_turns.py``).
"""


class Pending:
    """One request from its frame to its answer."""

    __slots__ = (
        "answer",
        "clock_ns",
        "exchange",
        "frame",
        "has_begun",
        "has_turn",
        "header",
        "is_done",
        "is_large",
        "is_many",
        "message",
        "offer",
    )

    def __init__(self, header: Header, frame: memoryview) -> None:
        self.header = header
        self.frame = frame
        self.has_begun = False
        """Its effect on the logs is done: only its answer is awaited."""
        self.has_turn = False
        """A large frame: it is decoded now, or was."""
        self.is_done = False
        self.is_large = (len(frame) > LARGE_FRAME and header.key != PRODUCE_KEY) or header.key in LISTING_KEYS
        self.is_many = False
        """Several requests of ours are made of it: OffsetFetch names several groups."""
        self.clock_ns = 0
        """Time of the loop that it has used, while it waits; while it is being handled, subtracted from the present.
        Kept while there are quotas only.
        """
        self.answer: Buffers | None = None
        """None, when it is done: no answer goes out."""
        self.offer: Translation
        self.exchange: Exchange
        self.message: Message | None = None
        """As the client wrote it; None: nothing needed it yet (:class:`Usual`)."""

    def decoded(self) -> Message:
        """Return the request as the client wrote it. Raises InvalidRequest."""
        if self.message is None:
            self.message = decode(self.offer.name, "request", self.header.version, self.frame, self.header.body_at)
        return self.message

    @property
    def is_unanswered(self) -> bool:
        """Return True for a Produce request with acks=0, which has no response."""
        return self.header.key == PRODUCE_KEY and self.message is not None and self.message["acks"] == 0


class Pipeline:
    """See the head of this file."""

    def __init__(self) -> None:
        self._pending: deque[Pending] = deque()
        self._started = 0
        """Of ``_pending``, so many from the left."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def oldest(self) -> Header | None:
        """Header of the oldest request that is not answered yet."""
        return self._pending[0].header if self._pending else None

    @property
    def is_full(self) -> bool:
        """No further request shall be read."""
        return len(self._pending) >= PENDING_MAX

    def add(self, pending: Pending) -> None:
        """A request has come."""
        self._pending.append(pending)

    def next(self) -> Pending | None:
        """The request that begins now; None: none may."""
        if self._started == len(self._pending):
            return None
        coming = self._pending[self._started]
        if self._started and coming.header.key != PRODUCE_KEY:
            return None
        for index in range(self._started):
            before = self._pending[index]
            if before.header.key != PRODUCE_KEY or not (before.has_begun or before.is_done):
                return None
        self._started += 1
        return coming

    def answered(self) -> list[Buffers]:
        """Answers whose turn it is."""
        ready: list[Buffers] = []
        while self._started and self._pending[0].is_done:
            done = self._pending.popleft()
            self._started -= 1
            if done.answer is not None:
                ready.append(done.answer)
        return ready
