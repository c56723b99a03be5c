"""Random histories of one connection in which planted bugs show; tests/sim/test_histories.py plays fresh ones."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from minikafka.broker.dispatch import Begun
from minikafka.broker.kafka_pipeline import Pending, Pipeline
from minikafka.broker.kafka_session import KafkaSession
from tests.kafka.connection_histories import ConnectionHistory

STEPS = 120
SEEDS = range(30)


def _passes_whatever_has_begun(self: Pipeline) -> Pending | None:
    """A Heartbeat is handled while a Produce waits."""
    if self._started == len(self._pending):
        return None
    if any(not (each.has_begun or each.is_done) for each in list(self._pending)[: self._started]):
        return None
    self._started += 1
    return self._pending[self._started - 1]


def _as_they_are_ready(self: Pipeline) -> list[Any]:
    """Responses leave before those of earlier requests."""
    done = [each for each in self._pending if each.is_done]
    for each in done:
        self._pending.remove(each)
        self._started -= 1
    return [each.answer for each in done if each.answer is not None]


def _begins_nothing(self: KafkaSession) -> None:
    """A client that was throttled waits for the next response, which may never come."""
    self._end_mute()


async def _lets_the_next_wait(_self: KafkaSession, pending: Pending, answer: Any) -> Any:
    """A Produce that has begun late keeps the next one waiting."""
    while True:
        if isinstance(answer, Begun):
            pending.has_begun = True
            answer = answer.rest
        if not isinstance(answer, Awaitable):
            return answer
        answer = await answer


def _keeps_the_room(_self: KafkaSession, pending: Pending, answer: Any) -> None:
    """Frames are never let go: the room for requests runs out."""
    pending.answer, pending.is_done = answer, True


@pytest.mark.parametrize(
    ("owner", "name", "bug"),
    [
        (Pipeline, "next", _passes_whatever_has_begun),
        (Pipeline, "answered", _as_they_are_ready),
        (KafkaSession, "_muted_long_enough", _begins_nothing),
        (KafkaSession, "_settled", _lets_the_next_wait),
        (KafkaSession, "_done", _keeps_the_room),
    ],
)
def test_planted_bugs_are_caught(owner: type, name: str, bug: Any, monkeypatch: pytest.MonkeyPatch):
    """In one of the histories that all pass without them (``test_no_history_fails``)."""
    monkeypatch.setattr(owner, name, bug)
    with pytest.raises(AssertionError):
        for seed in SEEDS:
            ConnectionHistory(seed).play(STEPS)


def test_no_history_fails():
    """Those in which the planted bugs are looked for."""
    for seed in SEEDS:
        ConnectionHistory(seed).play(STEPS)
