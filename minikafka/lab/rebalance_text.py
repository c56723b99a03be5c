"""How the rebalance is shown: its timeline, what stood still, two assignors side by side; as rows and as JSON.

Rule for this file: a cell says what changed; times are virtual seconds since the members started.
"""

from __future__ import annotations

from typing import Any

from minikafka.lab.rebalance import NAME, Moment, Story, numbers_text


def timeline_rows(story: Story) -> list[tuple[str, ...]]:
    """Head and lines: time in seconds, what happened, generation, state, what each member reads, why."""
    names = sorted({name for moment in story.moments for name in moment.owners})
    rows: list[tuple[str, ...]] = [("time", "what happened", "gen", "state", *names, "why")]
    before: Moment | None = None
    for moment in story.moments:
        owned = [_cell(name, before, moment) for name in names]
        generation = "" if before is not None and before.generation == moment.generation else str(moment.generation)
        state = "" if before is not None and before.state == moment.state else moment.state
        rows.append((f"{moment.at_s:.3f}", moment.what, generation, state, *owned, moment.why))
        before = moment
    return rows


def _cell(name: str, before: Moment | None, moment: Moment) -> str:
    """What a member reads; an arrow where that has just changed, nothing for who does not live."""
    if name not in moment.owners:
        return "✗" if before is not None and name in before.owners else ""
    now = numbers_text(moment.owners[name])
    was = numbers_text(before.owners[name]) if before is not None and name in before.owners else now
    return now if was == now else f"{was}→{now}"


def stop_rows(story: Story) -> list[tuple[str, ...]]:
    """Head and lines: what was done, and what stood still for how long."""
    rows: list[tuple[str, ...]] = [("what was done", "gen", "settled after", "stopped", "longest stop", "all stops")]
    for stop in story.stops:
        first, last = stop.generations
        rows.append(
            (
                stop.cause,
                f"{first} → {last}",
                f"{stop.settled_s:.3f} s",
                f"{len(stop.stopped_s)} of {stop.partitions}",
                f"{stop.longest_s:.3f} s",
                f"{stop.together_s:.3f} s",
            )
        )
    return rows


def compared_rows(left: Story, right: Story) -> list[tuple[str, ...]]:
    """Head and lines: the same things done to both, side by side."""
    names = [each.options["assignor"] for each in (left, right)]
    rows: list[tuple[str, ...]] = [("what was done", "", *names)]
    for one, other in zip(left.stops, right.stops, strict=True):
        figures = (
            ("stopped", [f"{len(each.stopped_s)} of {each.partitions} partitions" for each in (one, other)]),
            ("longest stop", [f"{each.longest_s:.3f} s" for each in (one, other)]),
            ("all stops", [f"{each.together_s:.3f} s" for each in (one, other)]),
            ("settled after", [f"{each.settled_s:.3f} s" for each in (one, other)]),
            ("generations", [str(each.generations[1] - each.generations[0]) for each in (one, other)]),
        )
        rows += [(one.cause if number == 0 else "", name, *cells) for number, (name, cells) in enumerate(figures)]
    return rows


def as_json(story: Story) -> dict[str, Any]:
    """One run: exactly scenario, options, timeline, stops. Times are virtual seconds."""
    return {
        "scenario": NAME,
        "options": dict(story.options),
        "timeline": [
            {
                "at_s": round(moment.at_s, 6),
                "what": moment.what,
                "generation": moment.generation,
                "state": moment.state,
                "owners": {name: list(numbers) for name, numbers in moment.owners.items()},
                "why": moment.why,
            }
            for moment in story.moments
        ],
        "stops": [
            {
                "cause": stop.cause,
                "at_s": round(stop.at_s, 6),
                "settled_s": round(stop.settled_s, 6),
                "generations": list(stop.generations),
                "partitions": stop.partitions,
                "stopped_s": {str(number): round(seconds, 6) for number, seconds in stop.stopped_s.items()},
                "longest_s": round(stop.longest_s, 6),
                "together_s": round(stop.together_s, 6),
            }
            for stop in story.stops
        ],
    }
