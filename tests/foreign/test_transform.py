"""A transform job with transactions under kill -9, with franz-go and Java (issue 17, must be shown); the short version.

The long one: ``python -m tests.foreign.transform --rounds 20 --client java``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.transform_rounds import transform_rounds
from tests.foreign.transform import CLIENTS

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROLES = ("job", "transaction coordinator", "output leader")


@pytest.mark.parametrize(
    "client",
    [
        pytest.param("franz-go", marks=pytest.mark.go),
        pytest.param("java", marks=[pytest.mark.kafka_apps, pytest.mark.java_source]),
    ],
)
async def test_output_equals_input_exactly_once(client: str, tmp_path: Path):
    """As with the clients of tests/e2e: a job, a transaction coordinator and a leader die by kill -9."""
    outcome = await transform_rounds(tmp_path, CLIENTS[client], ROLES, seed=17)
    assert outcome.well, str(outcome)
    assert outcome.killed == Counter(ROLES), str(outcome)
    assert outcome.records > 100, str(outcome)
    assert outcome.transactions > len(ROLES), str(outcome)
