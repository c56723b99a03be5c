"""Random histories of one transactional id: doubled, late and lost requests, and coordinators that fail over.

The coordinator and the producers' state of each partition are the product's; the network, the processes and what was
promised to them are the model's. Transaction version 2: with the versions before it, a late copy of a request may end or
enter the next transaction of its producer (KIP-890).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from minikafka.coordination.rule import Step, Write
from minikafka.errors import (
    NOT_WRITTEN,
    UNKNOWN,
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    NotCoordinator,
    NotEnoughReplicas,
    Outcome,
    ProtocolError,
    RequestTimedOut,
)
from minikafka.log.producer_state import ProducerState
from minikafka.log.verification import OPEN_TRANSACTION, VerificationGuard
from minikafka.transactions.markers import MarkerId, is_commit
from minikafka.transactions.records import packed
from minikafka.transactions.settings import TransactionSettings
from minikafka.types import TopicPartition
from minikafka.wire.batch import RecordBatch
from minikafka.wire.markers import TRANSACTION_V2, EndTransaction, marker_batch
from minikafka.wire.messages import InitProducerIdRequest
from minikafka.wire.outcomes import EarlierAttempts, error_in
from minikafka.wire.transaction_messages import AddedPartitions, EndTxnRequest
from tests.rules.log_words import TIME, in_transaction
from tests.rules.transaction_kit import P0, P1, Desk

AGAIN = (ConcurrentTransactions, CoordinatorNotAvailable, NotCoordinator)


class Breach(AssertionError):
    """A promise is broken; the message is its name."""


@dataclass(eq=False)
class Call:
    """One request of a process, of which any number of copies may arrive."""

    process: Process
    kind: str
    identity: tuple[int, int]
    commit: bool = False
    partition: TopicPartition = P0
    sequence: int = 0
    transaction: int = 0
    is_refused: bool = False
    """A copy was refused for good: that is true of this copy, and another one may have been written."""


@dataclass(eq=False)
class Process:
    """A producer with the transactional id; one call at a time."""

    number: int
    identity: tuple[int, int] = (-1, -1)
    state: str = "new"
    transaction: int = 0
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    call: Call | None = None
    commits: EarlierAttempts | None = None
    is_superseded: bool = False
    fate: Outcome | str = "open"
    """Of its last transaction: ``committed``, ``aborted``, NOT_WRITTEN (of its commit) or UNKNOWN."""


@dataclass(eq=False)
class Partition:
    """What one partition holds."""

    producers: ProducerState = field(default_factory=ProducerState)
    open: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By producer id, (process, transaction) of each record without a marker."""
    ended: list[tuple[tuple[int, int], bool]] = field(default_factory=list)
    offset: int = 0

    def take(self, batch: RecordBatch, marker: EndTransaction | None = None) -> None:
        """Append a batch."""
        self.producers.note(batch, base_offset=self.offset, timestamp=TIME, marker=marker)
        self.offset += 1


class TransactionHistory:
    """One seed's history."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"transactions/{seed}")
        epoch_max = self.random.choice([2**15 - 1, 3, 6])
        self.desk = Desk(TransactionSettings(epoch_max=epoch_max, timeout_check_ms=1000), commits_at_once=False)
        self.reign = 0
        self.processes = [Process(0)]
        self.partitions = {P0: Partition(), P1: Partition()}
        self.messages: list[Call] = []
        self.parked: dict[int, tuple[Call, VerificationGuard | None]] = {}
        """Copies that wait for the coordinator, by ticket."""
        self.verified: list[tuple[Call, VerificationGuard]] = []
        """Records that the coordinator has confirmed, and their leader has not appended."""
        self.markers: list[tuple[MarkerId, EndTransaction, int]] = []
        """Under way, with the coordinator that waits for the answer."""
        self.writes: dict[int, list[Write]] = {}
        """What the request of each ticket has written."""
        self.took_effect: list[Write] = []
        self.given: list[tuple[int, int]] = []
        """Each identity that a process was given, in order."""
        self.acknowledged: set[tuple[TopicPartition, int, int]] = set()
        self.fates: dict[tuple[int, int], str] = {}
        self.timed_out: list[Write] = []
        self.doubled = 0.0

    def play(self, steps: int) -> None:
        """``steps`` random steps, then everything comes to rest, and the fates are compared. Raises Breach."""
        weights = {
            self.act: 12,
            self.deliver: 16,
            self.append_verified: 8,
            self.commit: 14,
            self.send_markers: 4,
            self.deliver_marker: 8,
            self.lose: 2,
            self.give_up: 3,
            self.come: 1,
            self.refuse: 1,
            self.late: 1,
            self.fail_over: 1,
            self.pass_time: 1,
        }
        # Each history has its own: in some, processes follow each other quickly, in others most requests are lost.
        drawn = [weight * self.random.choice([0.3, 1, 1, 4]) for weight in weights.values()]
        self.doubled = self.random.choice([0.0, 0.2, 0.5])
        for _ in range(steps):
            needs = {
                self.deliver: self.messages,
                self.lose: self.messages,
                self.append_verified: self.verified,
                self.deliver_marker: self.markers,
                **dict.fromkeys((self.commit, self.refuse, self.late), self.desk.in_flight),
            }
            able = [weight if needs.get(action, True) else 0 for action, weight in zip(weights, drawn, strict=True)]
            self.random.choices(list(weights), able)[0]()
            self.read_answers()
        self.settle()

    # ---- what happens ------------------------------------------------------------------------------------------------

    def come(self) -> None:
        """Another process begins with the transactional id; the one before may go on."""
        if self.random.random() < 0.4 and self.processes[-1].state != "new":
            self.processes.append(Process(len(self.processes)))

    def act(self) -> None:
        process = self.random.choice(self.processes[-2:])
        if process.call is not None or process.state == "dead":
            return
        call = Call(process, "init", process.identity, transaction=process.transaction)
        if process.state == "idle":
            process.state, process.fate, process.commits = "open", "open", None
            process.transaction += 1
            process.sequences = {}
            return
        if process.state in ("committing", "aborting", "doomed"):
            call.kind, call.commit = "end", process.state == "committing"
        elif process.state == "open" and (not process.sequences or self.random.random() < 0.6):
            call.kind, call.partition = "write", self.random.choice((P0, P1))
            call.sequence = process.sequences.setdefault(call.partition, 0)
        elif process.state == "open":
            call.kind, call.commit = "end", self.random.random() < 0.7
            process.state = "committing" if call.commit else "aborting"
        if call.kind == "end" and call.commit and process.commits is None:
            process.commits = EarlierAttempts(self.end_request(call))
        process.call = call
        self.messages.append(call)

    def deliver(self) -> None:
        call = self.random.choice(self.messages)
        if self.random.random() >= self.doubled:
            self.messages.remove(call)  # else another copy of it arrives later
        try:
            self.write(call) if call.kind == "write" else self.ask(call)
        except ProtocolError as error:
            self.answer(call, error)

    def ask(self, call: Call) -> None:
        coordinator, ticket = self.desk.coordinator, next(self.desk.tickets)
        fresh = next(self.desk.producer_ids) if coordinator.needs_producer_id("a") else -1
        producer_id, epoch = call.identity

        def act(step: Step) -> None:
            if call.kind == "init":
                request = InitProducerIdRequest(
                    transactional_id="a",
                    transaction_timeout_ms=60_000,
                    producer_id=producer_id,
                    producer_epoch=epoch,
                )
                coordinator.initialize(ticket, request, step, new_producer_id=fresh)
            else:
                coordinator.end(ticket, self.end_request(call), step, new_producer_id=fresh)
            self.writes[ticket] = list(step.writes)

        self.parked[ticket] = call, None
        try:
            self.desk.run(act)
        except ProtocolError:
            del self.parked[ticket]
            raise

    def end_request(self, call: Call) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id="a",
            producer_id=call.identity[0],
            producer_epoch=call.identity[1],
            committed=call.commit,
            transaction_version=TRANSACTION_V2,
        )

    def write(self, call: Call) -> None:
        """A leader has the coordinator add the partition before it appends."""
        partition, ticket = self.partitions[call.partition], next(self.desk.tickets)
        guard = partition.producers.begin_verification(self.batch(call), begins_at_zero=True)
        if guard is OPEN_TRANSACTION:
            self.append(call, guard)
            return
        self.parked[ticket] = call, guard
        names = frozenset({call.partition})
        try:
            self.desk.run(
                lambda step: self.desk.coordinator.add_partitions(
                    ticket, "a", call.identity, names, step, version=TRANSACTION_V2, waits=True
                )
            )
        except ProtocolError:
            del self.parked[ticket]
            raise

    def batch(self, call: Call) -> RecordBatch:
        return in_transaction(call.identity[0], call.sequence, "v", epoch=call.identity[1])

    def append(self, call: Call, guard: VerificationGuard) -> None:
        partition, batch = self.partitions[call.partition], self.batch(call)
        if partition.producers.check(batch, guard) is None:
            if call.process.is_superseded:
                raise Breach("a_fenced_producer_has_written")
            transaction = call.process.number, call.transaction
            others = partition.open.setdefault(call.identity[0], [])
            if self.fates.get(transaction) == "committed" or set(others) - {transaction}:
                raise Breach("a_late_record_joined_another_transaction")
            partition.take(batch)
            others.append(transaction)
        self.answer(call, None)

    def append_verified(self) -> None:
        """The leader receives the coordinator's answer, and much may have happened since it was sent."""
        call, guard = self.verified.pop(self.random.randrange(len(self.verified)))
        try:
            self.append(call, guard)
        except ProtocolError as error:
            self.answer(call, error)

    def commit(self) -> None:
        self.took_effect.append(self.desk.in_flight[0])
        self.desk.commit()

    def refuse(self) -> None:
        if self.desk.in_flight[0] not in self.timed_out:
            self.desk.refuse(NotEnoughReplicas("too few"))

    def late(self) -> None:
        self.timed_out.append(self.desk.in_flight[0])
        self.desk.refuse(RequestTimedOut("late", outcome=UNKNOWN), keep=True)

    def fail_over(self) -> None:
        """Some of what is in flight survives; the log may have been compacted."""
        self.read_answers()
        for write in self.desk.in_flight[: self.random.randint(0, len(self.desk.in_flight))]:
            self.took_effect.append(write)
            self.desk.log += map(packed, write.records)
        for call, _ in self.parked.values():
            self.answer(call, NotCoordinator("another one", outcome=UNKNOWN))
        self.parked.clear()
        if self.random.random() < 0.5:
            self.desk.log = list(dict(self.desk.log).items())
        self.reign += 1
        self.desk.take_over()

    def pass_time(self) -> None:
        self.desk.pass_time(self.random.choice([0.2, 1, 1, 70]))

    def send_markers(self) -> None:
        for markers in self.desk.take().values():
            for each in markers:
                value = self.desk.coordinator.markers.value_of(each)
                end = EndTransaction(
                    value.producer_id,
                    value.producer_epoch,
                    is_commit(value),
                    self.reign,
                    value.client_version,
                    self.desk.coordinator.markers.number_of(each),
                )
                self.markers.append((each, end, self.reign))

    def deliver_marker(self) -> None:
        """Its answer may be lost, and another copy may arrive later, when nobody waits for it."""
        name, marker, reign = drawn = self.random.choice(self.markers)
        self.markers.remove(drawn)
        partition, code = self.partitions[name.partition], 0
        try:
            partition.producers.check_marker(marker)
        except ProtocolError as error:
            code = error.code
        else:
            partition.take(RecordBatch.of(marker_batch(marker, timestamp_ms=TIME)), marker)
            partition.ended += [(each, marker.is_commit) for each in partition.open.pop(marker.producer_id, [])]
        if self.random.random() < 0.2:
            self.markers.append((name, marker, -1))
        if reign == self.reign:
            self.desk.answer([name], None if self.random.random() < 0.1 else code)

    def lose(self) -> None:
        self.messages.remove(self.random.choice(self.messages))

    def give_up(self) -> None:
        """A process waits no longer, and repeats its request; a write that is given up is sent again, too."""
        process = self.random.choice(self.processes)
        call = process.call
        if call is None:
            return
        if call.kind == "write" and (process.state != "open" or self.random.random() < 0.3):
            process.call, process.state = None, "doomed"
        elif call.kind == "write":
            self.messages.append(call)
        else:
            process.call = None
            if call.commit and process.commits is not None:
                process.commits.give_up()

    # ---- answers -----------------------------------------------------------------------------------------------------

    def read_answers(self) -> None:
        for ticket in [each for each in self.parked if each in self.desk.answers]:
            call, guard = self.parked.pop(ticket)
            response: Any = self.desk.answers[ticket]
            error = error_in(response)
            if isinstance(response, AddedPartitions):
                failed = error or next(filter(None, map(error_in, response.partitions)), None)
                if failed is None and guard is not None:
                    self.verified.append((call, guard))
                    continue
                error = failed
            if error is not None and error.outcome == NOT_WRITTEN:
                self.not_written(ticket, call)
            self.answer(call, error, response)

    def not_written(self, ticket: int, call: Call) -> None:
        for write in self.writes.get(ticket, ()):
            if call.kind == "end" and (write in self.took_effect or write in self.desk.in_flight):
                raise Breach("not_written_and_yet_written")

    def answer(self, call: Call, error: ProtocolError | None, response: Any = None) -> None:
        """An answer arrives, unless it is lost, or comes after the next call has begun."""
        process = call.process
        if call.kind == "end" and error is not None and not isinstance(error, ConcurrentTransactions):
            call.is_refused = call in self.messages or call.is_refused
        if process.call is not call or self.random.random() < 0.15:
            return
        process.call = None
        if call.kind == "write":
            self.written(call, error)
        elif call.kind == "init":
            self.initialized(process, error, response)
        else:
            self.ended(call, error, response)

    def written(self, call: Call, error: ProtocolError | None) -> None:
        process = call.process
        if error is None:
            if process.sequences.get(call.partition) == call.sequence:
                process.sequences[call.partition] += 1
            self.acknowledged.add((call.partition, process.number, call.transaction))
        elif isinstance(error, AGAIN):
            process.call = call
            self.messages.append(call)
        else:
            process.state = "doomed"

    def initialized(self, process: Process, error: ProtocolError | None, response: Any) -> None:
        if error is not None:
            if not isinstance(error, AGAIN):
                process.state = "dead"
            return
        self.take_identity(process, response)
        for each in self.processes:
            each.is_superseded = each.is_superseded or each is not process

    def take_identity(self, process: Process, response: Any) -> None:
        process.identity = response.producer_id, response.producer_epoch
        process.state = "idle"
        if process.identity in self.given:
            raise Breach("an_identity_was_given_twice")
        if (
            any(each[0] == process.identity[0] and each[1] > process.identity[1] for each in self.given)
            and not process.is_superseded
        ):
            raise Breach("the_epoch_fell")
        self.given.append(process.identity)

    def ended(self, call: Call, error: ProtocolError | None, response: Any) -> None:
        process = call.process
        if error is None:
            process.fate = "committed" if call.commit else "aborted"
            self.fates[process.number, call.transaction] = process.fate
            self.take_identity(process, response)
            return
        outcome = error.outcome
        if call.commit and process.commits is not None:
            outcome = process.commits.outcome(error)
            process.commits.note(error)
            if call.is_refused:
                process.commits.give_up()
        if isinstance(error, AGAIN):
            return
        process.state = "dead"
        if call.commit and outcome == NOT_WRITTEN and not call.is_refused:
            self.fates[process.number, call.transaction] = "not committed"

    # ---- the end -----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """No request any more: what is decided ends, what is open times out, and the fates are those that were told."""
        self.messages.clear()
        for _ in range(200):
            while self.desk.in_flight:
                self.commit()
            self.read_answers()
            self.send_markers()
            while self.markers:
                self.deliver_marker()
            self.desk.pass_time(2)
        if not self.desk.is_idle or any(not each.state.is_idle for each in self.desk.coordinator.values().values()):
            raise Breach("a_transaction_does_not_end")
        outcomes: dict[tuple[int, int], set[bool]] = {}
        for name, partition in self.partitions.items():
            if partition.open:
                raise Breach("records_without_an_end")
            for transaction, is_committed in partition.ended:
                outcomes.setdefault(transaction, set()).add(is_committed)
            for _, *transaction in (each for each in self.acknowledged if each[0] == name):
                if tuple(transaction) not in [each for each, _ in partition.ended]:
                    raise Breach("an_acknowledged_record_is_lost")
        for transaction, found in outcomes.items():
            fate = self.fates.get(transaction)
            if len(found) > 1:
                raise Breach("half_committed")
            if fate == "committed" and found != {True}:
                raise Breach("committed_and_not_there")
            if fate in ("aborted", "not committed") and found != {False}:
                raise Breach(f"{fate}_and_yet_there".replace(" ", "_"))
