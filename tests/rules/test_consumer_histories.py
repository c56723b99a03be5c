"""Random histories of a group of the consumer protocol: they meet what they are for, and can fail (S29, S33, KIP-848).

Fresh seeds: ``test_histories.py``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace

from minikafka.coordination.rule import Step
from minikafka.groups.consumer import heartbeat
from minikafka.groups.consumer.groups import ConsumerGroups, Held
from minikafka.groups.consumer.heartbeat import flat
from minikafka.groups.consumer.member import ConsumerMember
from minikafka.invariant import InvariantViolation
from minikafka.wire.group_messages import ConsumerGroupHeartbeatRequest
from tests.rules.consumer_histories import ConsumerBreach, ConsumerHistory

HISTORIES = 20
STEPS = 250


def test_histories_meet_all_states_and_refusals():
    """A history in which no partition moves would show nothing."""
    seen: Counter[str] = Counter()
    for seed in range(HISTORIES):
        history = ConsumerHistory(seed)
        history.play(STEPS)
        seen += history.seen
    assert min(seen[each] for each in ("Stable", "Reconciling")) >= HISTORIES * STEPS / 10, seen
    assert min(seen[each] for each in ("Empty", "Assigning", "commit", "UNKNOWN_MEMBER_ID")) >= HISTORIES, seen
    assert seen["FENCED_MEMBER_EPOCH"], seen


def _arms_nothing(self: ConsumerGroups, held: Held, step: Step) -> None:
    """A new coordinator begins no sessions."""


def _any_epoch(*_: object) -> None:
    """Heartbeats of any epoch are accepted."""


def _lists_what_it_reads(self: ConsumerMember) -> ConsumerGroupHeartbeatRequest:
    """A member does not list what it is assigned and has not taken yet (seed 7000116 of former histories)."""
    request = _REQUEST(self)
    return request if request.topic_partitions is None else replace(request, topic_partitions=flat(self.owned))


_REQUEST = ConsumerMember.request


@pytest.mark.parametrize(
    "owner, name, bug",
    [
        (ConsumerGroups, "_begin_timers", _arms_nothing),
        (heartbeat, "_check_epoch", _any_epoch),
        (ConsumerMember, "request", _lists_what_it_reads),
    ],
)
def test_planted_bugs_are_caught(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, bug: Any):
    """Each within 400 histories. More of them: ``test_consumer_group_lives.py``."""
    monkeypatch.setattr(owner, name, bug)
    for seed in range(400):
        try:
            ConsumerHistory(seed).play(STEPS)
        except (ConsumerBreach, InvariantViolation):
            return
    pytest.fail(f"{name} was not caught")
