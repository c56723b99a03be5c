"""The sentence of ``explain`` about the last stable offset."""

from __future__ import annotations

import pytest

from minikafka.rest.sentences import timestamp_text, why_the_stable_offset
from minikafka.wire.messages import DescribedReplica, UnstableTransaction

SEEN = DescribedReplica(
    topic="orders",
    partition=0,
    role="leader",
    leader_epoch=3,
    log_start_offset=0,
    high_watermark=12,
    log_end_offset=14,
    last_stable_offset=5,
)


@pytest.mark.parametrize(
    ("unstable", "rest"),
    [
        (None, ", the high watermark: no transaction is open below it"),
        (
            UnstableTransaction(producer_id=7, first_offset=5),
            ": the transaction of producer 7 began at offset 5 and is open",
        ),
        (
            UnstableTransaction(producer_id=7, first_offset=5, started_ms=1_700_000_000_123),
            ": the transaction of producer 7 began at offset 5 (2023-11-14T22:13:20.123+00:00) and is open",
        ),
        (
            UnstableTransaction(producer_id=7, first_offset=5, marker_offset=13),
            (
                ": the transaction of producer 7 began at offset 5, and its marker at 13 is not committed: "
                "the high watermark is 12"
            ),
        ),
    ],
)
def test_sentence_names_the_transaction(unstable: UnstableTransaction | None, rest: str):
    """With its start time where it is known; an open one and one whose marker is not committed differ."""
    assert why_the_stable_offset(SEEN, unstable) == f"the last stable offset is 5{rest}"


def test_timestamp_that_no_calendar_has_is_left_out():
    """A producer may set any timestamp; the response must not fail for it."""
    assert timestamp_text(253_402_300_799_000) == "9999-12-31T23:59:59.000+00:00"
    assert timestamp_text(253_402_300_798_003) == "9999-12-31T23:59:58.003+00:00"
    assert timestamp_text(253_402_300_800_000) is None
    assert timestamp_text(2**63 - 1) is None
    assert timestamp_text(-1) is None
