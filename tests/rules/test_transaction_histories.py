"""Random histories of a transactional id in which planted bugs show; tests/sim/test_histories.py plays fresh ones."""

from __future__ import annotations

from typing import Any

import pytest

from minikafka.errors import NOT_WRITTEN
from minikafka.log.producer_state import ProducerState
from minikafka.transactions.transaction import Transaction
from minikafka.wire.outcomes import EarlierAttempts
from tests.rules.transaction_histories import Breach, TransactionHistory

STEPS = 250


def _forgets(_self: EarlierAttempts, _failure: Any) -> None:
    """The last attempt alone decides the outcome of a commit."""


def _is_certain(transaction: Transaction, _outcome: Any = None, concurrent: Any = Transaction._concurrent) -> Any:
    """EndTxn that meets its own end is called *not written* (simulator seed 950012472)."""
    return concurrent(transaction, NOT_WRITTEN)


def _takes_all_markers(_self: ProducerState, _marker: Any) -> None:
    """A late copy of a marker ends the next transaction."""


PLANTED = [
    (441, EarlierAttempts, "note", _forgets),
    (1670, Transaction, "_concurrent", _is_certain),
    (449, ProducerState, "check_marker", _takes_all_markers),
]


@pytest.mark.parametrize(("seed", "owner", "name", "bug"), PLANTED, ids=[each[2] for each in PLANTED])
def test_planted_bugs_are_caught(seed: int, owner: type, name: str, bug: Any, monkeypatch: pytest.MonkeyPatch):
    """In a history that passes without them."""
    TransactionHistory(seed).play(STEPS)
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(Breach):
        TransactionHistory(seed).play(STEPS)
