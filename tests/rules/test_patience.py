"""How soon a request without a response is repeated: never as late as its timeout, and never again and again."""

from __future__ import annotations

import pytest

from minikafka.rpc import FIRST_S, PROBE_S, Patience

LONGEST_S = 30.0


def test_a_lost_response_is_repeated_long_before_the_timeout():
    """Half a second, then probes: eight within four seconds, each one waiting longer than the one before."""
    patience = Patience()
    assert patience.seconds(LONGEST_S) == FIRST_S
    assert not patience.is_probing
    waits = []
    for _ in range(8):
        patience.lost()
        assert patience.is_probing
        waits.append(patience.seconds(LONGEST_S))
    assert waits[0] == PROBE_S
    assert waits == sorted(set(waits))
    assert 4.0 < sum(waits) < 6.0
    patience.answered(0.001)
    assert not patience.is_probing
    assert patience.seconds(LONGEST_S) == FIRST_S


def test_a_peer_that_never_answers_is_asked_at_the_pace_of_the_timeout():
    """Also after thousands of losses."""
    patience = Patience()
    for _ in range(10_000):
        patience.lost()
    assert patience.seconds(LONGEST_S) == LONGEST_S


@pytest.mark.parametrize("took_s", [0.4, 2.0, 9.0])
def test_a_slow_peer_is_given_the_time_that_it_needs(took_s: float):
    """After one response the next ones get three times as long; a loss does not make the sender less patient."""
    patience = Patience()
    patience.answered(took_s)
    assert patience.seconds(LONGEST_S) >= min(LONGEST_S, 3 * took_s)
    patience.lost()
    assert patience.seconds(LONGEST_S) >= min(LONGEST_S, 3 * took_s)
    for _ in range(200):
        patience.answered(0.001)
    assert patience.seconds(LONGEST_S) == FIRST_S, "it has become fast again"


def test_a_peer_slower_than_the_first_wait_is_answered_to_in_the_end():
    """The waits grow until one is long enough: no endless repetition."""
    patience, needed_s, attempts = Patience(), 5.0, 0
    while patience.seconds(LONGEST_S) < needed_s:
        patience.lost()
        attempts += 1
        assert attempts < 20
    patience.answered(needed_s)
    assert patience.seconds(LONGEST_S) > needed_s


def test_patience_is_never_longer_than_the_timeout():
    """Timeouts that are shorter than the first wait count."""
    patience = Patience()
    assert patience.seconds(0.1) == 0.1
    patience.answered(100.0)
    assert patience.seconds(2.0) == 2.0
