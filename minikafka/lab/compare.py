"""One schedule under two rule sets, side by side: where they first differ, and what each of them loses.

Rules for this file: steps belong together when they come from the same line of the scenario, and are equally far from
it; what one side does by itself (an ISR proposal that the other never makes) stands alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from minikafka.lab.played import Run, Step
from minikafka.lab.scenario import Scenario
from minikafka.lab.table import ABSENT, cells

Options = Mapping[str, str]

SAME, FIRST, OTHER = "", ">>", "≠"
"""Marks of a step: both agree, the first that differs, one that differs as well."""

SIDES = ("left", "right")

LABELS = ("LEO", "remote LEO", "HW", "ISR", "epoch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same step on both sides; None where one side has no such step."""

    left: Step | None
    right: Step | None

    @property
    def differs(self) -> bool:
        one, other = self.left, self.right
        if one is None or other is None:
            return True
        return (one.what, one.lines, _shown(one)) != (other.what, other.lines, _shown(other))

    @property
    def what(self) -> str:
        """What happened; both, where that differs."""
        titles = [each.what for each in (self.left, self.right) if each is not None]
        return " / ".join(dict.fromkeys(titles))

    @property
    def number(self) -> str:
        """Of the step; both, where they count differently."""
        return "/".join(dict.fromkeys(str(each.number) for each in (self.left, self.right) if each is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Both runs, step by step."""

    left: Run
    right: Run
    pairs: tuple[Pair, ...]

    @property
    def first(self) -> Pair | None:
        """The first pair that differs."""
        return next((pair for pair in self.pairs if pair.differs), None)

    def mark(self, pair: Pair) -> str:
        """One of :data:`SAME`, :data:`FIRST`, :data:`OTHER`."""
        if not pair.differs:
            return SAME
        return FIRST if pair is self.first else OTHER


def compare(scenario: Scenario, left: Options, right: Options) -> Comparison:
    """Play it twice. Raises ScenarioError as playing does."""
    runs = [scenario.play(tuple(options.items())) for options in (left, right)]
    return Comparison(left=runs[0], right=runs[1], pairs=tuple(_pairs(*runs)))


def _pairs(left: Run, right: Run) -> Iterator[Pair]:
    lines = dict.fromkeys(step.line for run in (left, right) for step in run.steps)
    for line in sorted(lines):
        both = [[step for step in run.steps if step.line == line] for run in (left, right)]
        for one, other in zip_longest(*both):
            yield Pair(left=one, right=other)


def head(left: str, right: str) -> tuple[str, ...]:
    """The names of the columns."""
    return ("", "step", "what happened", "replica", left, right)


def rows_of(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The lines of all steps, one cell for each column of :func:`head`."""
    for pair in comparison.pairs:
        both = tuple(step.lines if step is not None else () for step in (pair.left, pair.right))
        shared = [each for each in both[0] if each in both[1]]
        lines = [("", *_states(name, pair)) for name in _changed(pair)] or [("", "", "", "")]
        lines[0] = (pair.what, *lines[0][1:])
        lines += [(f"  {each}", "", "", "") for each in shared]
        only = [[f"  {each}" for each in lines if each not in shared] for lines in both]
        lines += [("", "", one, other) for one, other in zip_longest(*only, fillvalue="")]
        mark, number = comparison.mark(pair), pair.number
        for line in lines:
            yield (mark, number, *line)
            mark = number = ""


def lines_of(pair: Pair) -> Iterator[str]:
    """The changes and events of a pair below each other, for a narrow screen; what only one side has names the side."""
    for name in _changed(pair):
        _, left, right = _states(name, pair)
        if left == right:
            yield f"{name} {left}"
        else:
            yield from (f"{side}: {name} {state}" for side, state in zip(SIDES, (left, right), strict=True))
    both = [step.lines if step is not None else () for step in (pair.left, pair.right)]
    yield from (each for each in both[0] if each in both[1])
    for side, lines, other in zip(SIDES, both, reversed(both), strict=True):
        yield from (f"{side}: {each}" for each in lines if each not in other)


def _shown(step: Step) -> list[tuple[str, ...]]:
    """What a step shows of the replicas: not what an earlier one has left different."""
    return [cells(name, step.before.get(name, ABSENT), step.after[name]) for name in step.changed()]


def _changed(pair: Pair) -> list[str]:
    return list(dict.fromkeys(name for step in (pair.left, pair.right) if step is not None for name in step.changed()))


def _states(name: str, pair: Pair) -> tuple[str, str, str]:
    return name, _state(name, pair.left), _state(name, pair.right)


def _state(name: str, step: Step | None) -> str:
    """One replica in one line: ``follower LEO 2→1 HW 1 epoch 0``."""
    if step is None:
        return "-"
    who, *values = cells(name, step.before.get(name, ABSENT), step.after[name])
    named = [f"{label} {value}" for label, value in zip(LABELS, values, strict=True) if value]
    return " ".join([who.partition(" ")[2], *named])
