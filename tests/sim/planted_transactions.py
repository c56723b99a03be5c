"""Bugs of transactions: fencing, and markers that are not sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from minikafka.sim.seeds import transactor_plan_of
from minikafka.transactions.coordinator import TransactionCoordinator
from minikafka.transactions.markers import OwedMarkers
from minikafka.transactions.records import State
from minikafka.transactions.transaction import Transaction
from tests.sim.planted import Planted

# ---- fencing ---------------------------------------------------------------------------------------------------------


def of_any_epoch(original: Callable[..., Any]) -> Callable[..., Any]:
    """EndTxn is taken from every process that ever had the transactional id."""

    def end(self: Transaction, producer_id: int, epoch: int, **options: Any) -> Any:
        return original(self, producer_id, max(epoch, self.value.producer_epoch), **options)

    return end


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


def family(**changes: Any) -> Any:
    return Planted(make=transactor_plan_of, drawn="transactors", **changes)


VISIBLE = ("read_committed_differs", "transaction_torn", "aborted_transaction_visible", "committed_transaction_lost")
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
        seed=7,
        within=50,
    ),
    family(
        name="markers_for_one_partition",
        story="only the first partition of a transaction gets its marker",
        caught_by=(*VISIBLE, "not_converged"),
        patches=[(OwedMarkers, "add", of_the_first_partition(OwedMarkers.add))],
        seed=2,
    ),
)
