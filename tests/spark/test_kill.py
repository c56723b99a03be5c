"""kill -9 in mid-batch, of Spark and of brokers: three of the ten rounds of ``python -m tests.spark.kill_rounds``."""

from __future__ import annotations

import pytest

from tests.spark.kill_rounds import kill_rounds, output_of

ROUNDS = 3


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_what_comes_out_is_what_was_committed(spark, tmp_path):
    """Must be shown: exactly once to a file sink, through the deaths of an executor, of the leader that a task reads
    from, and of driver and leader at once, each in mid-batch; sets and counts are equal.
    """
    outcome = await kill_rounds(tmp_path, rounds=ROUNDS, read_output=output_of(spark))
    assert outcome.well, str(outcome)
    assert outcome.killed == {"executor": 1, "leader": 2, "driver": 1}
    assert outcome.went_on >= 1
    assert len(outcome.output) > ROUNDS * 2_000
