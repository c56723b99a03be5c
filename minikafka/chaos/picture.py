"""Throughput over time as a picture: what was acknowledged each second, and when which fault was in force.

Rule for this file: one SVG without scripts, fonts or links; every text is escaped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from xml.sax.saxutils import escape

from minikafka.chaos.outcome import CLEAN, Outcome

WIDTH: Final = 960
HEIGHT: Final = 320
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 64, 28
LABELS_MAX: Final = 24
"""More faults than that are drawn without a word: they would cover each other."""


def picture(outcome: Outcome) -> str:
    """The SVG."""
    rates = outcome.figures.per_second() or [0]
    end_s = max(outcome.duration_s, len(rates), 1.0)
    highest = max(*rates, 1)
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x(at_s: float) -> float:
        return round(LEFT + wide * min(at_s, end_s) / end_s, 1)

    def y(rate: float) -> float:
        return round(TOP + tall * (1 - rate / highest), 1)

    colour = "#2a7a3b" if outcome.verdict == CLEAN else "#b00020"
    title = f"{outcome.scenario.name} on {outcome.target}, seed {outcome.seed}"
    summary = f"{outcome.figures.acknowledged:,} in all, lost {outcome.count('lost'):,}"
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11"'
    word = f'<tspan fill="{colour}">{outcome.verdict}</tspan>'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{escape(title)}: {word}</text>',
        f'<text x="{LEFT}" y="34" fill="#555555">acknowledged records per second; {summary}</text>',
    ]
    parts += _faults(outcome, x, tall)
    points = " ".join(f"{x(second)},{y(rate)} {x(second + 1)},{y(rate)}" for second, rate in enumerate(rates))
    parts.append(f'<polyline fill="none" stroke="#1f4e9c" stroke-width="1.5" points="{points}"/>')
    parts.append(f'<path d="M{LEFT} {TOP}V{TOP + tall}H{WIDTH - RIGHT}" fill="none" stroke="#555555"/>')
    parts += [
        f'<text x="{LEFT - 6}" y="{y(rate) + 4}" text-anchor="end">{rate:,}</text>'
        for rate in (0, highest // 2, highest)
    ]
    step_s = max(1, round(end_s / 10))
    parts += [
        f'<text x="{x(at_s)}" y="{HEIGHT - 10}" text-anchor="middle">{at_s} s</text>'
        for at_s in range(0, int(end_s) + 1, step_s)
    ]
    return "\n".join([*parts, "</svg>", ""])


def _faults(outcome: Outcome, place: Callable[[float], float], tall: int) -> list[str]:
    parts = []
    recoveries = outcome.figures.recoveries
    for index, each in enumerate(recoveries):
        begin, end = place(each.began_s), place(each.healed_s if each.healed_s is not None else outcome.duration_s)
        wide = max(1.5, round(end - begin, 1))
        parts.append(
            f'<rect x="{begin}" y="{TOP}" width="{wide}" height="{tall}" fill="#e0a030" fill-opacity="0.3">'
            f"<title>{escape(each.what)}</title></rect>"
        )
        if len(recoveries) <= LABELS_MAX:
            row = 46 + 10 * (index % 2)
            parts.append(f'<text x="{begin}" y="{row}" font-size="9" fill="#7a5a10">{escape(each.what[:28])}</text>')
    return parts
