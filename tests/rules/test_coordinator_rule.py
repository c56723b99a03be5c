"""What all coordinators share: which error of their log a client receives, and who is answered by a step."""

from __future__ import annotations

import pytest

from minikafka import errors as kafka
from minikafka.coordination.rule import Step, as_coordinator, is_unknown


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (kafka.UnknownTopicOrPartition, kafka.CoordinatorNotAvailable),
        (kafka.NotEnoughReplicas, kafka.CoordinatorNotAvailable),
        (kafka.NotEnoughReplicasAfterAppend, kafka.CoordinatorNotAvailable),
        (kafka.RequestTimedOut, kafka.CoordinatorNotAvailable),
        (kafka.NotLeaderOrFollower, kafka.NotCoordinator),
        (kafka.KafkaStorageError, kafka.NotCoordinator),
        (kafka.MessageTooLarge, kafka.MessageTooLarge),
        (kafka.InvalidRecord, kafka.InvalidRecord),
    ],
)
@pytest.mark.parametrize("outcome", [kafka.NOT_WRITTEN, kafka.UNKNOWN])
def test_errors_of_the_log_are_those_of_a_coordinator_with_their_outcome(
    error: type[kafka.ProtocolError], expected: type[kafka.ProtocolError], outcome: str
):
    """Kafka's mapping: clients look the coordinator up again. Whether something was written must not get lost."""
    mapped = as_coordinator(error("why", outcome=outcome))
    assert type(mapped) is expected
    assert (mapped.outcome, is_unknown(mapped)) == (outcome, outcome == kafka.UNKNOWN)
    assert "why" in mapped.message


def test_step_answers_those_who_wait():
    """The first ticket has the number 0; None stands for nobody."""
    step = Step(now=0.0, wall_ms=0)
    for ticket in (0, None, 1):
        step.answer(ticket, "yes")
    assert step.answers == [(0, "yes"), (1, "yes")]
