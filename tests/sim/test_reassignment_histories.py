"""Random histories of reassignments: they move replicas, and can fail. Fresh seeds: ``test_histories.py``."""

from __future__ import annotations

import pytest

from minikafka.quorum.assignment import Assignment
from tests.sim.reassignment_histories import play


def test_histories_move_replicas() -> None:
    """A history in which the controller refuses every move would show nothing."""
    assert sum(play(seed) for seed in range(4)) >= 8


@pytest.mark.parametrize("seed", [52, 53])
def test_a_history_in_which_a_client_waits_for_minutes(seed: int) -> None:
    """Its brokers fetch all the time and have nothing to copy: that was taken for a loop."""
    play(seed)


def test_a_reassignment_that_does_not_wait_for_the_isr_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle must be able to fail: planted, old replicas go before the new ones have caught up."""

    def at_once(self: Assignment, _isr: object, _minimum: int) -> Assignment:
        return Assignment(replicas=self.target) if self.under_way else self

    monkeypatch.setattr(Assignment, "settled", at_once)
    with pytest.raises(AssertionError):
        play(12)
