"""The table of planted bugs in docs/simulator.md: ``python -m tests.sim.planted_table [--hunt]``.

Without an option the document's table is written anew. ``--hunt`` is soak: it looks for every bug of a seeded ground
from seed 0 on, whole clusters included, and says how many seeds each needs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from minikafka.sim.run import run
from tests.sim.bug import SEEDED, Bug
from tests.sim.planted import PLANTED, Planted
from tests.sim.planted_kafka import KAFKA
from tests.sim.planted_own import OWN

DOCUMENT = Path(__file__).parents[2] / "docs/simulator.md"
BEGIN = "<!-- the table of planted bugs begins -->"
END = "<!-- the table of planted bugs ends -->"


def table() -> str:
    """Markdown, one line a bug."""
    rows = [
        "| planted bug | what it does | imitates | caught by | ground | seeds needed |",
        "|---|---|---|---|---|---|",
    ]
    rows += [_of_a_cluster(bug) for bug in PLANTED]
    rows += [_of_a_rule(bug) for bug in (*KAFKA, *OWN)]
    return "\n".join(rows)


def _of_a_cluster(bug: Planted) -> str:
    narrowed = f", faults {', '.join(bug.kinds)}" if bug.kinds else ""
    needed = f"a kept plan; hunted in {bug.within} seeds{narrowed}"
    names = ", ".join(f"`{name}`" for name in bug.caught_by)
    return f"| `{bug.name}` | {bug.story} | | {names} | cluster | {needed} |"


def _of_a_rule(bug: Bug) -> str:
    names = ", ".join(f"`{name}`" for name in bug.names)
    needed = f"{bug.seed + 1} of at most {bug.budget}" if bug.ground in SEEDED else "directed"
    source = "" if bug.source == "ours" else bug.source
    return f"| `{bug.name}` | {bug.story} | {source} | {names} | {bug.ground} | {needed} |"


def hunts() -> Iterator[str]:
    """How many seeds each bug needs now."""
    for bug in (*KAFKA, *OWN):
        if bug.ground in SEEDED:
            yield _found(bug.name, bug.budget, (_play(bug, seed) for seed in range(bug.budget)))
    for planted in PLANTED:
        yield _found(planted.name, 100, (_run(planted, seed) for seed in range(100)))


def _play(bug: Bug, seed: int) -> bool:
    with bug.active():
        return bug.play(seed) in bug.names


def _run(planted: Planted, seed: int) -> bool:
    with planted.active():
        return run(planted.plan(seed)).failure in planted.caught_by


def _found(name: str, budget: int, tries: Iterator[bool]) -> str:
    needed = next((number for number, caught in enumerate(tries, start=1) if caught), None)
    return f"{name}: {needed} seeds" if needed is not None else f"{name}: NOT FOUND within {budget} seeds"


def write() -> None:
    """Put the table into the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    DOCUMENT.write_text(f"{head}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    if "--hunt" in sys.argv[1:]:
        for line in hunts():
            print(line, flush=True)  # noqa: T201 - a command
    else:
        write()


if __name__ == "__main__":
    main()
