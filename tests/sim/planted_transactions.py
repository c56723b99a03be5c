"""Bugs of transaction coordinators and producers: fencing, decisions, and markers that are not sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from minikafka.broker import transaction_manager
from minikafka.broker.coordinator_shard import CoordinatorShard
from minikafka.client.sender import Sender
from minikafka.log.producer_state import ProducerState
from minikafka.sim.seeds import long_transaction_plan_of, transaction_message_plan_of, transactor_plan_of
from minikafka.transactions import coordinator
from minikafka.transactions.coordinator import TransactionCoordinator
from minikafka.transactions.markers import OwedMarkers
from minikafka.transactions.records import State
from minikafka.transactions.settings import TransactionSettings
from minikafka.transactions.transaction import Transaction
from minikafka.wire.markers import TRANSACTION_V2, EndTransaction
from tests.sim.planted import Planted

# ---- fencing ---------------------------------------------------------------------------------------------------------


def of_any_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    """EndTxn is taken from every process that ever had the transactional id."""

    def end(self: Transaction, producer_id: int, epoch: int, **options: Any) -> Any:
        return original(self, producer_id, max(epoch, self.value.producer_epoch), **options)

    return end


def at_the_same_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    """The abort of an open transaction does not fence its producer."""

    def fence(self: Transaction, now_ms: int) -> Any:
        return replace(original(self, now_ms), producer_epoch=self.value.producer_epoch)

    return fence


def fenced_twice(original: Callable[..., Any]) -> Callable[..., Any]:
    def fence(self: Transaction, now_ms: int) -> Any:
        target = original(self, now_ms)
        return replace(target, producer_epoch=target.producer_epoch + 1)

    return fence


def epoch_before_busy(original: Callable[..., Any]) -> Callable[..., Any]:
    """A repeated request is judged by its epoch while its first attempt is being written."""

    def end(self: Transaction, producer_id: int, epoch: int, **options: Any) -> Any:
        if epoch != self.value.producer_epoch and producer_id == self.value.producer_id:
            raise self._fenced(producer_id, epoch)
        return original(self, producer_id, epoch, **options)

    return end


SMALL_EPOCHS = (transaction_manager, "TransactionSettings", partial(TransactionSettings, epoch_max=5))
"""Producer ids are rotated after a few transactions."""


def the_old_id(prepared: Any) -> tuple[int, int]:
    return prepared.producer_id, prepared.producer_epoch


# ---- decisions -------------------------------------------------------------------------------------------------------


def added_at_once(original: Callable[..., None]) -> Callable[..., None]:
    def add(
        self: TransactionCoordinator, ticket: int, name: str, producer: Any, partitions: Any, step: Any, **options: Any
    ) -> None:
        original(self, ticket, name, producer, partitions, step, **options)
        step.answer(ticket, coordinator._added(name, partitions))

    return add


def all_appended(self: CoordinatorShard[Any]) -> int:
    """The coordinator's records count when it has appended them, as with acks=1."""
    return int(self.leader.log.end_offset)


async def not_awaited(self: Sender) -> None:
    """A producer commits without the acknowledgements of its records."""


def of_busy_ones_too(original: Callable[..., None]) -> Callable[..., None]:
    """A transaction over its timeout is aborted, though its commit is being written."""

    def abort(self: TransactionCoordinator, step: Any) -> None:
        for each in self._open.values():
            if each.began_at + each.value.timeout_ms / 1000 < step.now:
                each.is_busy = False
        original(self, step)

    return abort


# ---- markers ---------------------------------------------------------------------------------------------------------


def without(states: tuple[State, ...], original: Callable[..., None]) -> Callable[..., None]:
    """A new coordinator does nothing for transactions in these states."""

    def loaded(self: TransactionCoordinator, step: Any) -> None:
        kept = dict(self._transactions)
        for name, each in kept.items():
            if each.value.state in states:
                del self._transactions[name]
        original(self, step)
        self._transactions.clear()
        self._transactions.update(kept)

    return loaded


def of_the_first_partition(original: Callable[..., None]) -> Callable[..., None]:
    def add(self: OwedMarkers, name: str, value: Any, now: float) -> None:
        original(self, name, replace(value, partitions=frozenset(sorted(value.partitions)[:1])), now)

    return add


def of_the_known_epoch(original: Callable[..., None]) -> Callable[..., None]:
    """A marker may have the epoch of the open transaction that it ends, as before transaction version 2."""

    def check(self: ProducerState, marker: EndTransaction) -> None:
        original(self, marker._replace(transaction_version=TRANSACTION_V2 - 1, number=0))

    return check


def family(**changes: Any) -> Any:
    return Planted(**{"make": transactor_plan_of, "drawn": "transactors", "seed": 0, "within": 50, **changes})


def struck(**changes: Any) -> Any:
    return family(make=transaction_message_plan_of, drawn="transaction messages", **changes)


def held_open(**changes: Any) -> Any:
    return family(make=long_transaction_plan_of, drawn="long transactions", **changes)


VISIBLE = (
    "aborted_read",
    "precommitted_read",
    "read_committed_differs",
    "transaction_torn",
    "aborted_transaction_visible",
    "committed_transaction_lost",
)
"""Different sides of the same: readers see something else than what was committed."""

TRANSACTION_CLUSTERS = (
    family(
        name="marker_for_a_fenced_epoch",
        story="a process that was fenced ends the transaction of its successor (KIP-98, KAFKA-14830)",
        caught_by=(*VISIBLE, "zombie_committed", "not_converged"),
        patches=[(Transaction, "end", of_any_epoch(Transaction.end))],
        seed=2,
        within=50,
    ),
    family(
        name="decisions_outlive_no_coordinator",
        story="a new coordinator does not send the markers of transactions that its predecessor decided",
        caught_by=(*VISIBLE, "not_converged"),
        patches=[
            (
                TransactionCoordinator,
                "loaded",
                without((State.PREPARE_COMMIT, State.PREPARE_ABORT), TransactionCoordinator.loaded),
            )
        ],
        seed=5,
        within=50,
    ),
    family(
        name="timeouts_outlive_no_coordinator",
        story="a new coordinator does not end open transactions of producers that are gone",
        caught_by=("not_converged",),
        patches=[(TransactionCoordinator, "loaded", without((State.ONGOING,), TransactionCoordinator.loaded))],
        seed=14,
        within=50,
    ),
    family(
        name="markers_for_one_partition",
        story="only the first partition of a transaction gets its marker",
        caught_by=(*VISIBLE, "complete_without_markers", "not_converged"),
        patches=[(OwedMarkers, "add", of_the_first_partition(OwedMarkers.add))],
        seed=2,
    ),
    family(
        name="aborts_keep_the_epoch",
        story="the coordinator aborts an open transaction without a new epoch: its producer goes on (KAFKA-5231)",
        caught_by=(*VISIBLE, "not_converged"),
        patches=[(Transaction, "fence", at_the_same_epoch(Transaction.fence))],
        seed=5,
    ),
    struck(
        name="epoch_judged_before_a_write_under_way",
        story="a repeated EndTxn is fenced by the epoch that its first attempt has raised (KAFKA-18464)",
        caught_by=("producer_fenced_by_nobody", *VISIBLE),
        patches=[(Transaction, "end", epoch_before_busy(Transaction.end))],
        seed=2,
    ),
    family(
        name="rotation_answers_the_old_id",
        story="EndTxn that rotates the producer id answers with the old one (KAFKA-18660)",
        caught_by=("producer_fenced_by_nobody", "not_converged"),
        patches=[SMALL_EPOCHS, (coordinator, "next_producer", the_old_id)],
    ),
    family(
        name="fences_raise_the_epoch_twice",
        story="an abort by the coordinator raises the epoch twice, past the last one (KAFKA-19367)",
        caught_by=("producer_fenced_by_nobody", "not_converged"),
        patches=[SMALL_EPOCHS, (Transaction, "fence", fenced_twice(Transaction.fence))],
        seed=2,
    ),
    family(
        name="partitions_answered_before_they_are_committed",
        story="partitions are confirmed before their record is committed: a new coordinator misses them (redpanda 6019)",
        caught_by=(*VISIBLE, "not_converged"),
        patches=[(TransactionCoordinator, "add_partitions", added_at_once(TransactionCoordinator.add_partitions))],
        seed=6,
    ),
    family(
        name="decisions_count_when_appended",
        story="markers go out when the decision is appended, not when it is committed",
        caught_by=("marker_without_decision",),
        patches=[(CoordinatorShard, "committed_end", all_appended)],
    ),
    held_open(
        name="timeouts_abort_commits",
        story="the coordinator aborts a transaction over its timeout while the commit is being written",
        caught_by=(
            "transaction_state_illegal",
            "a_transaction_moved_between_states_that_do_not_follow_each_other",
            *VISIBLE,
        ),
        patches=[
            (
                TransactionCoordinator,
                "_abort_timed_out",
                of_busy_ones_too(TransactionCoordinator._abort_timed_out),
            )
        ],
        seed=26,
        within=60,
    ),
    held_open(
        name="late_copy_ends_the_next_transaction",
        story="a late copy of a marker ends the next transaction of its producer (KAFKA-19446)",
        caught_by=(*VISIBLE, "complete_without_markers", "marker_of_another_transaction"),
        patches=[(ProducerState, "check_marker", of_the_known_epoch(ProducerState.check_marker))],
        seed=9,
        within=100,
    ),
    family(
        name="commits_do_not_wait_for_records",
        story="a producer commits a transaction whose records are not acknowledged",
        caught_by=("a_producer_s_identity_changed_while_its_batches_were_under_way", "transaction_torn"),
        patches=[(Sender, "flushed", not_awaited)],
    ),
)
