"""How the benchmark measures two sides in turn."""

from __future__ import annotations

from tests.bench.measure import in_turn


async def test_both_sides_come_first_in_turn_and_the_spread_of_the_ratios_is_reported():
    """Warm-up rounds do not count; half of the rounds' ratios lie between the quartiles."""
    calls: list[str] = []
    ratios = [1.0, 0.9, 0.8, 0.7, 0.6]
    left = {"ours": [9.0, *ratios], "bare": [1.0] * 6}

    async def measured(side: str) -> float:
        calls.append(side)
        return left[side].pop(0)

    pair = await in_turn(lambda: measured("ours"), lambda: measured("bare"), rounds=5, warm_up=1)
    assert calls == ["ours", "bare", "bare", "ours"] * 3
    assert (pair.ours, pair.bare, pair.ratio, pair.quartiles) == (0.8, 1.0, 0.8, (0.7, 0.9))


async def test_a_single_round_has_no_spread():
    """A failover is measured once when the benchmark is to be quick."""

    async def measured() -> float:
        return 2.0

    assert (await in_turn(measured, measured, rounds=1, warm_up=0)).quartiles == (1.0, 1.0)
