"""The outcome of requests that have several parts, or that were sent more than once."""

from __future__ import annotations

import pytest

from minikafka.errors import (
    MESSAGE_LENGTH_MAX,
    NOT_WRITTEN,
    UNKNOWN,
    WRITTEN,
    IllegalGeneration,
    InvalidRequest,
    NetworkException,
    NotCoordinator,
    NotEnoughReplicasAfterAppend,
)
from minikafka.wire.group_messages import HeartbeatRequest, OffsetCommitRequest, OffsetCommitResponse, PartitionOutcome
from minikafka.wire.messages import Failed
from minikafka.wire.outcomes import EarlierAttempts, outcome_of_all

COMMIT = OffsetCommitRequest(group_id="g", partitions=())
DONE = PartitionOutcome(topic="t", partition=0)
REFUSED = PartitionOutcome(topic="t", partition=1, error_code=3, outcome=NOT_WRITTEN)
UNSTATED = PartitionOutcome(topic="t", partition=2, error_code=3)
LOST = PartitionOutcome(topic="t", partition=3, error_code=7, outcome=UNKNOWN)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (OffsetCommitResponse(), WRITTEN),
        (OffsetCommitResponse(error_code=22), NOT_WRITTEN),
        (OffsetCommitResponse(error_code=16, outcome=UNKNOWN), UNKNOWN),
        (OffsetCommitResponse(partitions=(DONE,)), WRITTEN),
        (OffsetCommitResponse(partitions=(REFUSED, UNSTATED)), NOT_WRITTEN),
        (OffsetCommitResponse(partitions=(DONE, REFUSED)), UNKNOWN),
        (OffsetCommitResponse(partitions=(REFUSED, LOST)), UNKNOWN),
    ],
)
def test_an_answer_with_parts_is_not_written_only_if_every_part_is(answer: Failed, outcome: str):
    """One partition's refusal says nothing about the others."""
    assert outcome_of_all(answer) == outcome


def test_the_refusal_of_a_retry_leaves_an_unknown_attempt_unknown():
    """Issue 13: the first attempt was written, its answer was lost, and the retry was refused."""
    earlier = EarlierAttempts(COMMIT)
    earlier.note(NotCoordinator())
    refusal = OffsetCommitResponse(error_code=22, outcome=NOT_WRITTEN)
    assert earlier.answer(refusal) is refusal
    assert earlier.outcome(IllegalGeneration()) == NOT_WRITTEN
    earlier.note(NetworkException("no answer", outcome=UNKNOWN))
    earlier.note(NotCoordinator())
    assert earlier.outcome(IllegalGeneration()) == UNKNOWN
    assert earlier.outcome(IllegalGeneration(outcome=WRITTEN)) == WRITTEN
    assert earlier.answer(refusal).outcome == UNKNOWN
    parts = earlier.answer(OffsetCommitResponse(partitions=(DONE, REFUSED, UNSTATED))).partitions
    assert [each.outcome for each in parts] == ["", UNKNOWN, UNKNOWN]


def test_an_answer_that_wrote_some_parts_makes_the_next_refusal_unknown():
    """A request is repeated as a whole when one partition's error asks for it."""
    earlier = EarlierAttempts(COMMIT)
    earlier.note(OffsetCommitResponse(partitions=(REFUSED,)))
    assert not earlier.may_have_written
    earlier.note(OffsetCommitResponse(partitions=(DONE, REFUSED)))
    assert earlier.may_have_written


def test_an_attempt_that_was_written_makes_the_next_refusal_unknown():
    """NOT_ENOUGH_REPLICAS_AFTER_APPEND: the record is in the log, whatever the retry is answered."""
    earlier = EarlierAttempts(COMMIT)
    earlier.note(NotEnoughReplicasAfterAppend("late", outcome=WRITTEN))
    assert earlier.outcome(IllegalGeneration()) == UNKNOWN


def test_the_latest_answer_to_a_heartbeat_stands_alone():
    """A member that was expelled must see that (409), and not an unknown outcome (504)."""
    earlier = EarlierAttempts(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"))
    earlier.note(NetworkException("no answer", outcome=UNKNOWN))
    assert earlier.outcome(IllegalGeneration()) == NOT_WRITTEN


@pytest.mark.parametrize("count", [1, 7_000, 7_001, 100_000])
def test_a_long_sentence_keeps_its_beginning_and_its_end(count: int):
    """Lists of what was changed come before what was not, and why: the end must be read, too."""
    said = f"changed: {'x' * (count - 17)}; not: y" if count > 1 else "x"
    message = InvalidRequest(said).message
    assert len(message) <= MESSAGE_LENGTH_MAX
    assert (message == said) is (count <= MESSAGE_LENGTH_MAX)
    assert (message[:9], message[-8:]) == (said[:9], said[-8:])
