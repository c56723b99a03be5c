"""Small bytes must not cost big work: generated requests to every API and route, counted (issue 13, section 2)."""

from __future__ import annotations

import time
from random import Random

import pytest

from tests.fuzz.frames import FRAME_TARGETS, frame_for
from tests.fuzz.requests import TARGETS, request_for
from tests.fuzz.run import PROTOCOLS, WARM_UP, fuzz

FIXED_SEED = 13
REQUESTS = (WARM_UP + 10) * len(PROTOCOLS["both"])
"""Thirty to each API and each route; `python -m tests.fuzz` sends as many as one likes."""
CONNECTIONS = 600
"""``tests/kafka/test_hostile_frames.py`` opens thousands."""


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("seed", [FIXED_SEED, int(time.time())], ids=["fixed", "fresh"])
def test_hostile_requests_cost_little_and_break_nothing(seed: int):
    """No answer of 500, no traceback, no hold of the loop beyond 50 ms of CPU, memory as before; the seed is in the message."""
    counts = fuzz(seed, requests=REQUESTS, connections=CONNECTIONS)
    assert not counts.faults, counts.render()
    assert counts.requests == REQUESTS
    assert counts.connections == CONNECTIONS
    assert counts.rss_before < counts.peak_bytes
    assert counts.statuses["Kafka answered"] > 10 * len(FRAME_TARGETS)


def test_a_seed_gives_the_same_requests():
    """A failure can be repeated, and every API and every route is among the targets."""
    first, second = ([request_for(random, target) for target in TARGETS] for random in (Random(7), Random(7)))
    assert first == second
    assert len({request.target.split("?")[0] for request in first}) > len(TARGETS) // 2


def test_a_seed_gives_the_same_frames():
    """Every API of Kafka's protocol is among them, and most are damaged."""
    ids = [bytes(16)]
    first, second = (
        [frame_for(random, target, ids) for target in FRAME_TARGETS * 5] for random in (Random(7), Random(7))
    )
    assert first == second
    damages = {frame.name.split(" ", 2)[2] for frame in first}
    assert damages >= {"right", "length", "many", "tags", "cut", "flipped", "size", "slow", "http", "pipelined"}
