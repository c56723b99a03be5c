"""Real processes: a transform job with transactions under kill -9 (issue 17, must be shown); the short version.

The long one: ``python -m tests.e2e.transform_rounds --rounds 20 --client native``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.transform_rounds import CLIENTS, Judged, Outcome, judge, transform_rounds

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROLES = ("job", "transaction coordinator", "output leader")


@pytest.mark.parametrize("client", CLIENTS)
async def test_output_equals_input_exactly_once(client: str, tmp_path: Path):
    """S3 and issue 17: a job, a transaction coordinator and a leader die by kill -9; nothing is lost or doubled."""
    outcome = await transform_rounds(tmp_path, CLIENTS[client], ROLES, seed=17)
    assert outcome.well, str(outcome)
    assert outcome.killed == Counter(ROLES), str(outcome)
    assert outcome.records > 100, str(outcome)
    assert outcome.transactions > len(ROLES), str(outcome)


@pytest.mark.parametrize(
    ("outputs", "found"),
    [
        ([[b"1!", b"2!"], [b"3!"]], Judged([], [], [], [])),
        ([[b"1!"], [b"3!"]], Judged(["2!"], [], [], [])),
        ([[b"1!", b"2!", b"1!"], [b"3!"]], Judged([], ["1!"], [], [])),
        ([[b"1!", b"2!"], [b"3!", b"9!"]], Judged([], [], ["9!"], [])),
        ([[b"2!", b"1!"], [b"3!"]], Judged([], [], [], [0])),
    ],
    ids=["equal", "missing", "twice", "strange", "disordered"],
)
def test_judge_names_what_differs(outputs: list[list[bytes]], found: Judged):
    """The judge must be able to fail."""
    assert judge([[b"1", b"2"], [b"3"]], outputs) == found
    assert found.well is (outputs == [[b"1!", b"2!"], [b"3!"]])
    for lost in ([], ["4"]):
        assert Outcome("native", Counter(), 0, 1, 3, lost, found).well is (found.well and not lost)
