"""The planted bugs together: the table in docs/simulator.md, the search for seeds that catch them, and their kept plans.

    python -m tests.sim.planted_table                    write the document's table anew
    python -m tests.sim.planted_table --hunt [NAME ...]  from seed 0 on: how many seeds does each need? (soak)
    python -m tests.sim.planted_table --rotted           list the bugs that their kept plan no longer shows
    python -m tests.sim.planted_table --record [NAME ..] hunt, cut the plan that catches it down, and keep it; without
                                                         names, for all bugs that --rotted lists

``--hunt`` notes what it finds in ``planted_needed.json``, which the table tells; ``--seeds`` limits it per bug and
``--minutes`` as a whole. Ctrl-C ends it with what was found so far. Where the compiled rules are installed, set
``MINIKAFKA_PURE=1``: bugs are planted in Python sources.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from minikafka.sim.plan import Plan
from minikafka.sim.run import run
from minikafka.sim.search import shrink
from tests.sim.bug import SEEDED, Bug
from tests.sim.planted import PLANTED, Planted
from tests.sim.planted_compaction import COMPACTION
from tests.sim.planted_departures import DEPARTURE_CLUSTERS
from tests.sim.planted_groups import GROUP_CLUSTERS, GROUP_DRILLS
from tests.sim.planted_kafka import KAFKA
from tests.sim.planted_messages import MESSAGE_CLUSTERS
from tests.sim.planted_migrations import MIGRATION_CLUSTERS, MIGRATION_DRILLS
from tests.sim.planted_own import OWN
from tests.sim.planted_plan_features import EXTRA_CLUSTERS, EXTRA_DRILLS
from tests.sim.planted_protocols import PROTOCOL_CLUSTERS
from tests.sim.planted_refusals import REFUSAL_CLUSTERS
from tests.sim.planted_security import SECURITY_CLUSTERS
from tests.sim.planted_sessions import SESSION_CLUSTERS
from tests.sim.planted_survivors import SURVIVOR_DRILLS, SURVIVORS
from tests.sim.planted_transaction_logs import TRANSACTION_LOG_CLUSTERS
from tests.sim.planted_transactions import TRANSACTION_CLUSTERS
from tests.sim.planted_verification import VERIFICATION_CLUSTERS, VERIFICATION_DRILLS

CLUSTERS: Final = (
    *PLANTED,
    *EXTRA_CLUSTERS,
    *GROUP_CLUSTERS,
    *MESSAGE_CLUSTERS,
    *SURVIVORS,
    *SESSION_CLUSTERS,
    *REFUSAL_CLUSTERS,
    *TRANSACTION_CLUSTERS,
    *TRANSACTION_LOG_CLUSTERS,
    *SECURITY_CLUSTERS,
    *PROTOCOL_CLUSTERS,
    *MIGRATION_CLUSTERS,
    *VERIFICATION_CLUSTERS,
    *DEPARTURE_CLUSTERS,
)
"""Hunted with plans of the simulator."""

RULES: Final = (
    *KAFKA,
    *OWN,
    *EXTRA_DRILLS,
    *GROUP_DRILLS,
    *MIGRATION_DRILLS,
    *COMPACTION,
    *SURVIVOR_DRILLS,
    *VERIFICATION_DRILLS,
)
"""Hunted on smaller grounds, or told by directed tests."""

CLASSES: Final = {
    "ISR changes": (
        "hw_ignores_maximal_isr",
        "isr_changes_from_any_state",
        "unanswered_proposal_withdrawn",
        "overtaken_proposal_withdrawn",
    ),
    "late messages": ("answers_to_former_roles", "superseded_fetches_count", "unknown_incarnations_count"),
    "votes": ("votes_for_everybody", "vote_not_synced", "vote_forgotten_by_a_restart", "the_longer_log_wins"),
    "power": ("eligible_without_power", "failed_sync_counts", "marked_clean_unsynced", "deletions_not_finished"),
    "consumers": ("new_leaders_believed", "divergence_ignored_by_consumers", "validated_with_the_new_epoch"),
    "groups": (
        "sessions_not_begun_by_a_new_coordinator",
        "instance_ids_not_loaded",
        "expelled_while_it_looks_up_offsets",
        "last_attempt_counts",
    ),
    "snapshots": ("snapshot_forgets_producer_ids", "snapshot_forgets_broker_settings"),
    "no progress": ("truncates_at_the_same_place", "fetches_at_the_same_place", "leader_never_waits"),
    "Kafka sessions": (
        "answers_as_they_are_ready",
        "produce_begins_before_the_append",
        "acks_0_fails_in_silence",
        "topic_ids_outlive_their_topic",
        "torn_sizes_are_dropped",
        "acks_all_of_kafka_clients_is_one",
    ),
    "transactions": (
        "marker_for_a_fenced_epoch",
        "decisions_outlive_no_coordinator",
        "timeouts_outlive_no_coordinator",
        "timeouts_abort_commits",
        "late_copy_ends_the_next_transaction",
        "markers_for_one_partition",
        "stable_offset_forgets_former_leaders",
    ),
    "security": (
        "allow_before_deny",
        "verdicts_outlive_their_acls",
        "forwarded_as_the_broker",
        "entry_brokers_are_trusted",
        "followers_are_not_checked",
    ),
    "loops": ("transactional_commits_of_old_generations", "transactional_offsets_loaded_as_plain_ones"),
    "consumer protocol": ("revocations_without_confirmation", "owners_forgotten"),
    "group migration": (
        "upgrade_half_written",
        "upgrade_forgets_what_cooperative_members_still_own",
    ),
    "departures": (
        "unregistered_brokers_stay_in_the_image",
        "unregistered_with_its_replicas",
        "unregistered_brokers_do_not_come_back",
    ),
    "fencing": ("a_reset_fences", "a_former_process_fences", "two_refusals_of_one_peer"),
}
"""Classes of schedules and faults, and the planted bugs that show that plans reach them."""

CLASS_SEEDS_MAX: Final = 300
"""Each bug of a class is found within this number of seeds."""

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs/simulator.md"
NEEDED = HERE / "planted_needed.json"
BEGIN = "<!-- the table of planted bugs begins -->"
END = "<!-- the table of planted bugs ends -->"

SEEDS: Final = 60
"""So many are tried for each bug of a cluster, unless it is said otherwise."""

SHRINK_RUNS: Final = 150


def kept(planted: Planted) -> Path:
    """Where its plan is."""
    return HERE / f"plans/planted/{planted.name}.json"


def kept_plan(planted: Planted) -> Plan:
    """Return the plan that showed the bug when it was recorded."""
    return Plan.from_json(kept(planted).read_text(encoding="utf-8"))


# ---- the table -------------------------------------------------------------------------------------------------------


def table() -> str:
    """Markdown, one line a bug."""
    rows = [
        "| planted bug | what it does | imitates | caught by | ground | seeds needed |",
        "|---|---|---|---|---|---|",
    ]
    needed = json.loads(NEEDED.read_text(encoding="utf-8"))
    rows += [_of_a_cluster(bug, needed.get(bug.name)) for bug in CLUSTERS]
    rows += [_of_a_rule(bug, needed.get(bug.name)) for bug in RULES]
    rows += ["", "By class of schedule, with the number of seeds:", "", "| class | planted bugs |", "|---|---|"]
    for name, bugs in CLASSES.items():
        rows.append(f"| {name} | {', '.join(f'{bug} ({needed[bug]})' for bug in bugs)} |")
    return "\n".join(rows)


def _of_a_cluster(bug: Planted, needed: int | None) -> str:
    told = f"{needed}" if needed else "a kept plan"
    narrowed = [bug.policy] if bug.policy else []
    narrowed += [*bug.kinds, *([bug.drawn] if bug.drawn else [])]
    names = ", ".join(f"`{name}`" for name in bug.caught_by)
    told += f" with {', '.join(narrowed)}" if narrowed else ""
    return f"| `{bug.name}` | {bug.story} | | {names} | cluster | {told} |"


def _of_a_rule(bug: Bug, needed: int | None) -> str:
    names = ", ".join(f"`{name}`" for name in bug.names)
    told = str(needed or bug.seed + 1) if bug.ground in SEEDED else "directed"
    source = "" if bug.source == "ours" else bug.source
    return f"| `{bug.name}` | {bug.story} | {source} | {names} | {bug.ground} | {told} |"


def write() -> None:
    """Put the table into the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    DOCUMENT.write_text(f"{head}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


# ---- the search ------------------------------------------------------------------------------------------------------


def hunts(names: Sequence[str] = (), *, seeds: int = SEEDS) -> Iterator[tuple[str, Iterator[bool]]]:
    """Each bug, and its tries from seed 0 on: was it caught by name?"""
    for bug in RULES:
        if bug.ground in SEEDED and (not names or bug.name in names):
            yield bug.name, (_play(bug, seed) for seed in range(bug.budget))
    for planted in CLUSTERS:
        if not names or planted.name in names:
            yield planted.name, (_run(planted, planted.plan(seed)) is not None for seed in range(seeds))


def _play(bug: Bug, seed: int) -> bool:
    with bug.active():
        return bug.play(seed) in bug.names


def _run(planted: Planted, plan: Plan) -> str | None:
    """The name by which it was caught, or None."""
    with planted.active():
        failure = run(plan).failure
    return failure if failure in planted.caught_by else None


class Hunt:
    """A search under way: what was found so far, whatever ends it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.found: dict[str, int] = {}
        """How many seeds each needed."""
        self.missed: list[str] = []
        """What was not found within its budget."""
        self.seeds = 0
        self._say = say

    def go(
        self, names: Sequence[str] = (), *, seeds: int = SEEDS, ends_at: float = float("inf"), skip: int = 0
    ) -> bool:
        """Look for each of them, but for the first ``skip``; False when the time (monotonic) was up before the end."""
        for name, tries in islice(hunts(names, seeds=seeds), skip, None):
            tried = 0
            for tried, caught in enumerate(tries, start=1):
                self.seeds += 1
                if caught:
                    self.found[name] = tried
                    self._say(f"{name}: {tried} seed{'s' if tried > 1 else ''}")
                    break
                if time.monotonic() >= ends_at:
                    self._say(f"{name}: the time is up after {tried} seeds")
                    return False
            else:
                self.missed.append(name)
                self._say(f"{name}: NOT FOUND in {tried} seeds")
        return True


def note(found: dict[str, int]) -> None:
    """Keep what a hunt has found."""
    needed = json.loads(NEEDED.read_text(encoding="utf-8")) if NEEDED.exists() else {}
    needed.update(found)
    known = {bug.name for bug in (*CLUSTERS, *RULES)}
    kept_names = {name: seeds for name, seeds in sorted(needed.items()) if name in known}
    NEEDED.write_text(json.dumps(kept_names, indent=1) + "\n", encoding="utf-8")


def rotted() -> Iterator[Planted]:
    """Yield the bugs that their kept plan no longer shows. Tests hunt for each of them, which takes up to a minute."""
    return (bug for bug in CLUSTERS if _run(bug, kept_plan(bug)) is None)


def record(planted: Planted, *, seeds: int, say: Callable[[str], None]) -> bool:
    """Find a plan that catches it, cut it down, and keep it, if it passes without the bug."""
    for seed in range(seeds):
        plan = planted.plan(seed)
        if _run(planted, plan) is None:
            continue
        small, name = shrink(plan, lambda candidate: _run(planted, candidate), runs_max=SHRINK_RUNS)
        if not run(small).ok:
            small = plan
        kept(planted).write_text(small.to_json(), encoding="utf-8")
        say(f"{planted.name}: seed {seed}, {name}, {len(small.faults)} faults, {len(small.operations)} operations")
        return True
    say(f"{planted.name}: NOT FOUND in {seeds} seeds")
    return False


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """See the head of this file; exit code 1 when something was not found, or a kept plan has rotted."""
    parser = argparse.ArgumentParser(description="planted bugs: their table, the search for them, their plans")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--hunt", action="store_true", help="how many seeds does each need?")
    parser.add_argument("--rotted", action="store_true", help="list the bugs that their kept plan no longer shows")
    parser.add_argument("--record", action="store_true", help="hunt, cut down, keep the plan")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at most so many for a bug of a cluster")
    parser.add_argument("--minutes", type=float, default=600.0, help="at most so long")
    options = parser.parse_args(arguments)
    if options.rotted:
        names = [bug.name for bug in rotted()]
        _say("\n".join(names) or "all kept plans show their bugs")
        return 1 if names else 0
    if options.record:
        chosen = [bug for bug in CLUSTERS if bug.name in options.names] if options.names else rotted()
        recorded = [record(bug, seeds=max(options.seeds, bug.within), say=_say) for bug in chosen]
        return 0 if (recorded or not options.names) and all(recorded) else 1
    hunt = Hunt(_say)
    try:
        if options.hunt:
            hunt.go(options.names, seeds=options.seeds, ends_at=time.monotonic() + 60 * options.minutes)
    except KeyboardInterrupt:
        _say(f"stopped: {len(hunt.found)} found in {hunt.seeds} runs")
    note(hunt.found)
    write()
    return 1 if hunt.missed else 0


if __name__ == "__main__":
    sys.exit(main())
