"""A producer's transactions: which call is legal when, and what is asked of the coordinators (KIP-98, KIP-890).

It speaks transaction version 2 only: each end of a transaction raises the producer's epoch, and partitions join the
transaction with their first batch. Requests overtake each other here, on several connections: without an epoch for each
transaction, a late batch or a late EndTxn could act on the next one.

- A commit is requested after every batch of the transaction has been acknowledged. If any failed, the transaction can
  only be aborted: the abort raises the epoch, and so fences whatever is still under way.
- A commit without a response may have happened: only the same commit may be requested again.
- A copy of a request for offsets may be appended late, and the offset that is written last counts. So after an attempt
  without a response, other offsets of the same partitions can only be committed in the next transaction.
- Another producer with the same transactional id ends this one for good.

States: ``begin`` -> open -> ``commit`` or ``abort`` -> idle. A failure makes an open transaction doomed (abort only); a
fenced producer is dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from minikafka import errors as kafka
from minikafka.client.accumulator import Accumulator
from minikafka.client.batches import Identity
from minikafka.client.caller import accepted
from minikafka.client.metadata import Metadata
from minikafka.client.routing import GROUP_KEY, TRANSACTION_KEY, Coordinator, error_of_coordinator, error_within
from minikafka.client.sender import Sender
from minikafka.client.settings import ProducerConfig
from minikafka.client.structs import GroupMetadata
from minikafka.ports import World
from minikafka.types import Offset, TopicPartition
from minikafka.wire import transaction_messages as t
from minikafka.wire.group_messages import CommitPartition
from minikafka.wire.markers import TRANSACTION_V2
from minikafka.wire.messages import InitProducerIdRequest, InitProducerIdResponse
from minikafka.wire.outcomes import EarlierAttempts, error_in

_FENCED = (kafka.ProducerFenced, kafka.InvalidProducerEpoch, kafka.InvalidProducerIdMapping, kafka.InvalidTxnState)
"""Responses of the transaction coordinator after which this producer cannot go on."""

BUSY_PAUSE_S = 0.02
"""The coordinator is still ending the last transaction: it takes milliseconds."""


class State(Enum):
    """What a transactional producer may do."""

    NEW = "is not started"
    IDLE = "has no open transaction"
    OPEN = "has an open transaction"
    DOOMED = "has a transaction that can only be aborted"
    COMMITTING = "has a transaction whose commit is under way"
    ABORTING = "has a transaction whose abort is under way"
    DEAD = "was fenced"


class _UnderWay:
    """Counts requests; ``with`` is one of them."""

    __slots__ = ("_count", "ended")

    def __init__(self) -> None:
        self._count = 0
        self.ended = asyncio.Event()
        """Set while there is none."""
        self.ended.set()

    def __enter__(self) -> None:
        self._count += 1
        self.ended.clear()

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count:
            self.ended.set()


class Transactions:
    """The transactions of one producer, one after the other."""

    def __init__(
        self,
        config: ProducerConfig,
        world: World,
        metadata: Metadata,
        sender: Sender,
        accumulator: Accumulator[Any],
        *,
        on_doomed: Callable[[], None],
    ) -> None:
        self.state = State.NEW
        self.number = 0
        """Of the transaction that was begun last."""
        self._name = config.transactional_id or ""
        self._config = config
        self._world = world
        self._metadata = metadata
        self._sender = sender
        self._accumulator = accumulator
        self._coordinator = Coordinator(self._name, config, world, metadata, key_type=TRANSACTION_KEY)
        self._groups: dict[str, Coordinator] = {}
        self._identity = Identity(-1, -1)
        self._has_offsets = False
        self._offsets_under_way = _UnderWay()
        """Of the open transaction."""
        self._late: dict[tuple[str, TopicPartition], CommitPartition] = {}
        """By group: offsets of the open transaction of which a copy may still arrive."""
        self._commits: EarlierAttempts | None = None
        """All attempts to commit the open transaction, of all calls; None: there was none."""
        self._why: kafka.ProtocolError | None = None
        """Why the transaction is doomed, or the producer dead."""
        self._on_doomed = on_doomed
        sender.on_failure = self.doom

    # ---- checks ----

    def check_open(self) -> int:
        """The number of the open transaction. Raises unless records may be sent."""
        if self.state is State.OPEN:
            return self.number
        raise self._refusal("records are sent within a transaction: call begin_transaction first")

    def _refusal(self, advice: str, outcome: kafka.Outcome = kafka.NOT_WRITTEN) -> kafka.ProtocolError:
        if self.state is State.DEAD and self._why is not None:
            return type(self._why)(f"{self._named}: {self._why.message}; make a new producer", outcome=outcome)
        if self.state is State.DOOMED and self._why is not None:
            return kafka.TransactionAbortable(
                f"{self._named}: the transaction must be aborted, because of {self._why.name}: {self._why.message}"
            )
        return kafka.InvalidRequest(f"{self._named} {self.state.value}: {advice}")

    @property
    def _named(self) -> str:
        return f"the producer of transactional_id={self._name}"

    def doom(self, error: kafka.ProtocolError) -> None:
        """A batch of the transaction failed: it can only be aborted."""
        if self.state in (State.OPEN, State.COMMITTING):
            self.state, self._why = State.DOOMED, error
            self._on_doomed()
            self._sender.drop_unsent(error)

    # ---- calls ----

    async def initialize(self) -> None:
        """Get the producer id, and fence every producer that had this transactional id before."""
        request = InitProducerIdRequest(
            transactional_id=self._name, transaction_timeout_ms=self._config.transaction_timeout_ms
        )
        response: InitProducerIdResponse = accepted(await self._asked(self._coordinator, request))
        self._take_identity(response.producer_id, response.producer_epoch)
        self.state = State.IDLE

    def begin(self) -> None:
        """Open a transaction; nothing is sent for it yet."""
        if self.state is not State.IDLE:
            raise self._refusal("end the transaction before the next one begins")
        self.number += 1
        self._has_offsets = False
        self._late.clear()
        self._offsets_under_way = _UnderWay()
        self._commits = None
        self.state = State.OPEN

    async def commit(self) -> None:
        """Wait for every acknowledgement, and commit.

        Raises:
            TransactionAbortable: A record or the offsets failed; nothing was committed. Abort the transaction.
            ProducerFenced: Another producer has taken over, or the transaction timed out. Nothing was committed, unless
                the error's ``outcome`` is unknown: then an earlier attempt, of this or an earlier call, may have been.
            RequestTimedOut: The outcome is unknown; call ``commit_transaction`` again.
        """
        if self.state not in (State.OPEN, State.COMMITTING):
            # A producer that was fenced by its last attempt to commit may have committed by an earlier one.
            is_unknown = self._commits is not None and self._commits.may_have_written
            raise self._refusal("there is nothing to commit", kafka.UNKNOWN if is_unknown else kafka.NOT_WRITTEN)
        before, self.state = self.state, State.COMMITTING
        try:
            await self._sender.flushed()
            # Of a call that was not awaited: its offsets would be in the transaction, or not.
            await self._offsets_under_way.ended.wait()
        except BaseException:
            # The caller gave up before a commit was requested: the transaction may still be aborted.
            if self.state is State.COMMITTING:
                self.state = before
            raise
        self._sender.check()
        if self.state is not State.COMMITTING:
            raise self._refusal("there is nothing to commit")
        await self._end(is_commit=True)

    async def abort(self) -> None:
        """Drop what is not sent, wait until nothing is under way, and abort."""
        if self.state not in (State.OPEN, State.DOOMED, State.ABORTING):
            raise self._refusal("there is nothing to abort")
        self.state = State.ABORTING
        self._sender.drop_unsent(kafka.TransactionAbortable(f"{self._named}: the transaction was aborted"))
        await self._sender.flushed()
        self._sender.check()
        await self._end(is_commit=False)

    async def _end(self, *, is_commit: bool) -> None:
        if not self._accumulator.has_sent and not self._has_offsets:
            # The coordinator knows of no transaction.
            self._take_identity(*self._identity)
            self.state, self._why = State.IDLE, None
            return
        request = t.EndTxnRequest(
            transactional_id=self._name,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            committed=is_commit,
            transaction_version=TRANSACTION_V2,
        )
        if is_commit and self._commits is None:
            self._commits = EarlierAttempts(request)
        earlier = self._commits if is_commit else None
        response: t.EndTxnResponse = await self._asked(self._coordinator, request, earlier=earlier)
        error = error_in(response)
        if error is None:
            self._take_identity(response.producer_id, response.producer_epoch)
            self.state, self._why = State.IDLE, None
            return
        if isinstance(error, _FENCED):
            self.state, self._why = State.DEAD, error
        elif isinstance(error, kafka.TransactionAbortable) and is_commit:
            self.state, self._why = State.DOOMED, error
        raise error

    def _take_identity(self, producer_id: int, epoch: int) -> None:
        self._identity = Identity(producer_id, epoch)
        self._sender.begin_identity(self._identity)

    async def send_offsets(self, offsets: Mapping[TopicPartition, CommitPartition], group: GroupMetadata) -> None:
        """Commit offsets of a group in the transaction, fenced by the member's generation (KIP-447)."""
        number = self.check_open()
        for name, value in offsets.items():
            late = self._late.get((group.group_id, name), value)
            if late != value:
                error = kafka.TransactionAbortable(
                    f"{self._named}: a copy of the request for offset {late.offset} of {name} may arrive after that "
                    f"for offset {value.offset}, because the first attempt got no response: abort the transaction"
                )
                self.doom(error)
                raise error
        self._has_offsets = True
        coordinator = self._groups.get(group.group_id)
        if coordinator is None:
            coordinator = Coordinator(group.group_id, self._config, self._world, self._metadata, key_type=GROUP_KEY)
            self._groups[group.group_id] = coordinator
        request = t.TxnOffsetCommitRequest(
            transactional_id=self._name,
            group_id=group.group_id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            generation_id=group.generation_id,
            member_id=group.member_id,
            group_instance_id=group.group_instance_id,
            transaction_version=TRANSACTION_V2,
            partitions=tuple(offsets.values()),
        )
        earlier = EarlierAttempts(request)
        try:
            with self._offsets_under_way:
                accepted(await self._asked(coordinator, request, _error_of_offsets, earlier=earlier), _error_of_offsets)
        except BaseException as failure:
            # Also when the caller was cancelled: nobody knows whether the offsets belong to the transaction.
            why = (
                failure
                if isinstance(failure, kafka.ProtocolError)
                else kafka.RequestTimedOut(repr(failure), outcome=kafka.UNKNOWN)
            )
            if self.number == number:
                self.doom(why)
            raise
        if earlier.may_have_written:
            self._late |= {(group.group_id, name): value for name, value in offsets.items()}

    async def _asked(
        self,
        coordinator: Coordinator,
        request: object,
        error_of: Callable[[Any], kafka.ProtocolError | None] = error_in,
        *,
        earlier: EarlierAttempts | None = None,
    ) -> Any:
        """The response, once no other operation on the transaction is under way. RequestTimedOut.

        What is under way may be an earlier attempt of the same request, whose response was lost. If another producer
        takes over before it has ended, the last attempt is fenced, and yet the transaction is committed. ``earlier``
        remembers that from one call to the next.
        """
        deadline = self._world.clock.now() + self._config.default_api_timeout_ms / 1000
        earlier = EarlierAttempts(request) if earlier is None else earlier
        while True:
            try:
                response = await coordinator.ask(request, deadline=deadline, error_of=error_of, earlier=earlier)
            except kafka.ProtocolError as failure:
                failure.outcome = earlier.outcome(failure)
                earlier.note(failure)
                raise
            except BaseException:
                earlier.give_up()
                raise
            error, answer = error_of(response), earlier.answer(response)
            if error is not None:
                earlier.note(response)
            if not isinstance(error, kafka.ConcurrentTransactions):
                return answer
            if self._world.clock.now() + BUSY_PAUSE_S >= deadline:
                raise kafka.RequestTimedOut(f"{self._named}: {error.message}", outcome=kafka.UNKNOWN)
            await asyncio.sleep(BUSY_PAUSE_S)


def _error_of_offsets(response: Any) -> kafka.ProtocolError | None:
    """The error of the whole request, or else a partition's; first one that is worth another attempt."""
    return error_of_coordinator(response) or error_within(response)


def offsets_of(given: Mapping[TopicPartition, Offset | Any]) -> dict[TopicPartition, CommitPartition]:
    """Offsets, with or without metadata, as the request has them. Raises InvalidRequest."""
    found = {}
    for (topic, partition), value in given.items():
        offset, metadata = (value, "") if isinstance(value, int) else (value.offset, value.metadata)
        if offset < 0:
            raise kafka.InvalidRequest(f"offset={offset} of {topic}-{partition} is negative", member="offsets")
        found[TopicPartition(topic, partition)] = CommitPartition(
            topic=topic, partition=partition, offset=offset, metadata=metadata
        )
    return found
