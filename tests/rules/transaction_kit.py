"""A transaction coordinator without a broker: requests, time, commits of its log and answers of leaders by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from minikafka.coordination.rule import Step, Write
from minikafka.errors import ProtocolError
from minikafka.transactions.coordinator import TransactionCoordinator
from minikafka.transactions.markers import MarkerId
from minikafka.transactions.records import TransactionValue, packed
from minikafka.transactions.settings import TransactionSettings
from minikafka.types import TopicPartition
from minikafka.wire.messages import InitProducerIdRequest
from minikafka.wire.transaction_messages import EndTxnRequest

WALL_MS = 1_700_000_000_000
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Desk:
    """One coordinator and its log."""

    def __init__(self, settings: TransactionSettings | None = None, *, commits_at_once: bool = True) -> None:
        self.settings = settings or TransactionSettings()
        self.commits_at_once = commits_at_once
        self.now = 1000.0
        self.wall_ms = WALL_MS
        self.log: list[tuple[bytes, bytes | None]] = []
        self.in_flight: list[Write] = []
        self.answers: dict[int, object] = {}
        self.tickets = itertools.count(1)
        self.producer_ids = itertools.count(4000)
        self.leaders: dict[TopicPartition, int | None] = {P0: 1, P1: 2}
        self.events: list[str] = []
        self.take_over()

    def take_over(self) -> None:
        """A new coordinator reads the log; writes under way are lost."""
        self.in_flight = []
        self.coordinator = TransactionCoordinator(self.settings, events=lambda kind, **_: self.events.append(kind))
        for key, value in self.log:
            assert self.coordinator.replay(key, value)
        self.run(self.coordinator.loaded)

    def step(self) -> Step:
        return Step(self.now, self.wall_ms)

    def run(self, act) -> object:
        step = self.step()
        result = act(step)
        self.carry_out(step)
        return result

    def carry_out(self, step: Step) -> None:
        for ticket, response in step.answers:
            self.answers.setdefault(ticket, response)
        for write in step.writes:
            self.in_flight.append(write)
            if self.commits_at_once:
                self.commit()

    def commit(self) -> None:
        """The oldest write is committed."""
        write = self.in_flight.pop(0)
        self.log += map(packed, write.records)
        self.run(lambda step: self.coordinator.committed(write, step))

    def refuse(self, error: ProtocolError, *, keep: bool = False) -> None:
        """The oldest write was not written; ``keep``: nobody knows yet."""
        write = self.in_flight[0] if keep else self.in_flight.pop(0)
        self.run(lambda step: self.coordinator.refused(write, error, step))

    # ---- requests: each returns the answer, None while it waits ----

    def init(self, name: str = "a", expected: tuple[int, int] = (-1, -1), timeout_ms: int = 60_000):
        ticket = next(self.tickets)
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=expected[0],
            producer_epoch=expected[1],
        )
        fresh = next(self.producer_ids) if self.coordinator.needs_producer_id(name) else -1
        self.run(lambda step: self.coordinator.initialize(ticket, request, step, new_producer_id=fresh))
        return self.answers.get(ticket)

    def producer(self, name: str = "a", timeout_ms: int = 60_000) -> tuple[int, int]:
        answer = self.init(name, timeout_ms=timeout_ms)
        assert answer.error_code == 0, answer
        return answer.producer_id, answer.producer_epoch

    def add(self, producer: tuple[int, int], *partitions: TopicPartition, name: str = "a", version: int = 0):
        return self.answers.get(self._add(producer, partitions, name, version, waits=False))

    def add_later(self, producer: tuple[int, int], *partitions: TopicPartition, version: int = 2) -> int:
        """As brokers ask: the request may wait. The number of its answer."""
        return self._add(producer, partitions, "a", version, waits=True)

    def _add(
        self, producer: tuple[int, int], partitions: Iterable[TopicPartition], name: str, version: int, *, waits: bool
    ) -> int:
        ticket = next(self.tickets)
        self.run(
            lambda step: self.coordinator.add_partitions(
                ticket, name, producer, frozenset(partitions), step, version=version, waits=waits
            )
        )
        return ticket

    def end(self, producer: tuple[int, int], *, commit: bool = True, name: str = "a", version: int = 0):
        ticket = next(self.tickets)
        request = EndTxnRequest(
            transactional_id=name,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=commit,
            transaction_version=version,
        )
        fresh = next(self.producer_ids) if self.coordinator.needs_producer_id(name) else -1
        self.run(lambda step: self.coordinator.end(ticket, request, step, new_producer_id=fresh))
        return self.answers.get(ticket)

    # ---- markers ----

    def take(self) -> dict[int, list[MarkerId]]:
        return self.run(lambda step: self.coordinator.take_markers(step, self.leaders.get))  # type: ignore[return-value]

    def answer(self, markers: Iterable[MarkerId], code: int | None = 0) -> None:
        answers = [(each, code) for each in markers]
        self.run(lambda step: self.coordinator.markers_answered(answers, step))

    def settle(self) -> None:
        """Every leader writes every marker."""
        for markers in self.take().values():
            self.answer(markers)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.coordinator.next_deadline() <= end:
            self._move_to(self.coordinator.next_deadline())
            self.run(self.coordinator.tick)
        self._move_to(end)

    def _move_to(self, now: float) -> None:
        self.wall_ms += max(0, round((now - self.now) * 1000))
        self.now = max(self.now, now)

    def value(self, name: str = "a") -> TransactionValue:
        return self.coordinator.values()[name]

    @property
    def is_idle(self) -> bool:
        return not len(self.coordinator.markers) and self.coordinator.markers.next_at == math.inf
