"""One scenario on one target, by name: what the command line and the tests call; and the picture of its throughput.

A fault that the target lacks is refused before anything is started. Files go into the run's folder: ``history.jsonl``,
the brokers' journal, ``report.json``, the scenario itself, and ``throughput.svg``: what was acknowledged each second,
and when which fault was in force. The picture has no scripts, fonts or links; every text in it is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from minikafka.chaos.outcome import CLEAN, Outcome
from minikafka.chaos.runner import Run
from minikafka.chaos.scenario import DURATION_S_MAX, DURATION_S_MIN, Scenario
from minikafka.chaos.target import CannotMake, Target, lacks, target_class

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


REPORT: Final = "report.json"
PICTURE: Final = "throughput.svg"


def check(scenario: Scenario, target: str, duration_s: float | None) -> None:
    """CannotMake when the target lacks a fault, or the load would be over before the scenario is, or not in a week."""
    missing = lacks(target, scenario)
    if missing:
        raise CannotMake(f"{scenario.name}: {'; '.join(missing)}", scenario=scenario.name)
    if duration_s is not None and not DURATION_S_MIN <= duration_s <= DURATION_S_MAX:
        raise CannotMake(f"--duration {duration_s:g}s: from 1s to 7d is possible, as in a file", scenario=scenario.name)
    if duration_s is not None and duration_s < scenario.fixed_s():
        raise CannotMake(
            f"--duration {duration_s:g}s: {scenario.name} has faults until {scenario.fixed_s():g} s, its load"
            " must last as long",
            scenario=scenario.name,
        )


async def play(
    scenario: Scenario,
    target: str,
    *,
    seed: int,
    folder: Path,
    duration_s: float | None = None,
    say: Callable[[str], object] = lambda _: None,
    made: type[Target] | None = None,
) -> Outcome:
    """Play it and write the files. CannotMake, WorldError. ``made``: another class for the target, for tests."""
    check(scenario, target, duration_s)
    (folder / scenario.path.name).write_bytes(scenario.path.read_bytes())
    make = made or target_class(target)
    run = Run(scenario, make(scenario, folder, say), seed=seed, duration_s=duration_s, folder=folder, say=say)
    outcome = await run.run()
    write(outcome, folder)
    return outcome


def write(outcome: Outcome, folder: Path) -> None:
    """The report for programs, and the picture."""
    report = json.dumps(outcome.to_json(), indent=1, ensure_ascii=False) + "\n"
    (folder / REPORT).write_text(report, encoding="utf-8")
    (folder / PICTURE).write_text(picture(outcome), encoding="utf-8")
