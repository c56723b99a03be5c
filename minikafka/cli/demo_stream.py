"""The demo's stream: flights in time order to a topic with acks=all, and every promise written into a history.

Rules for this file: a send is recorded before it is handed to the producer, its outcome when the producer tells it; the
number of flights under way is bounded, so that brokers die in mid-stream and not after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from minikafka import Producer
from minikafka.check import Recorder, value_id
from minikafka.cli.flights import Flight
from minikafka.client.structs import RecordMetadata
from minikafka.errors import NOT_WRITTEN, ProtocolError

PROCESS = "demo-producer"

# Flights sent and not yet acknowledged: a tenth of a second's worth for a busy cluster.
UNDER_WAY_MAX = 3_000

# A breath for the other tasks of this loop: answers, the screen.
SENDS_PER_TURN = 100


class Stream:
    """Sends ``flights``; look at the counters while :meth:`run` runs."""

    def __init__(self, producer: Producer, recorder: Recorder, topic: str, flights: Iterable[Flight]) -> None:
        self.sent = self.acknowledged = self.failed = self.unknown = 0
        self.acknowledged_at: dict[int, float] = {}
        """Partition -> when its latest acknowledgement came, in seconds of the loop's clock."""
        self.allowed: int | None = None
        """Go no further than so many flights for now; None: to the end."""
        self._producer = producer
        self._recorder = recorder
        self._topic = topic
        self._flights = flights
        self._loop = asyncio.get_running_loop()
        self._moved = asyncio.Event()
        self._answer = asyncio.Event()

    @property
    def answered(self) -> int:
        return self.acknowledged + self.failed + self.unknown

    def allow(self, count: int | None) -> None:
        """Move the point beyond which the stream waits."""
        self.allowed = count
        self._moved.set()

    def trickle(self) -> None:
        """Let one more flight pass, if the stream is held back and has nothing under way."""
        if self.allowed is not None and self.sent >= self.allowed and self.sent == self.answered:
            self.allow(self.sent + 1)

    async def reached(self, count: int) -> None:
        """Return when so many flights have an answer."""
        while self.answered < count:
            self._answer.clear()
            await self._answer.wait()

    async def run(self) -> None:
        """Send all flights and wait for the last answer."""
        for flight in self._flights:
            while self._must_wait():
                self._moved.clear()
                await self._moved.wait()
            await self._send(flight)
            if self.sent % SENDS_PER_TURN == 0:
                await asyncio.sleep(0)
        await self._producer.flush()

    def _must_wait(self) -> bool:
        beyond = self.allowed is not None and self.sent >= self.allowed
        return beyond or self.sent - self.answered >= UNDER_WAY_MAX

    async def _send(self, flight: Flight) -> None:
        op = self._recorder.send(PROCESS, self._topic, value_id(flight.value), key=flight.key.decode())
        self.sent += 1
        try:
            future = await self._producer.send(self._topic, flight.value, flight.key, timestamp_ms=flight.timestamp_ms)
        except ProtocolError as error:
            self._refused(op, error)
        else:
            future.add_done_callback(partial(self._answered, op))

    def _answered(self, op: int, future: asyncio.Future[RecordMetadata]) -> None:
        error = None if future.cancelled() else future.exception()
        if future.cancelled():
            self.unknown += 1
            self._recorder.unknown(op, "CANCELLED")
        elif isinstance(error, ProtocolError):
            self._refused(op, error)
        elif error is not None:
            self.unknown += 1
            self._recorder.unknown(op, type(error).__name__)
        else:
            place = future.result()
            self.acknowledged += 1
            self.acknowledged_at[place.partition] = self._loop.time()
            offset = place.offset if place.offset >= 0 else None
            self._recorder.acknowledged(op, partition=place.partition, offset=offset)
        self._tell()

    def _refused(self, op: int, error: ProtocolError) -> None:
        if error.outcome == NOT_WRITTEN:
            self.failed += 1
            self._recorder.failed(op, error.name)
        else:
            self.unknown += 1
            self._recorder.unknown(op, error.name)
        self._tell()

    def _tell(self) -> None:
        self._moved.set()
        self._answer.set()
