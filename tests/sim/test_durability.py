"""The durability policies as campaigns: what README's table promises survives, and beyond it the loss is shown (D6)."""

from __future__ import annotations

from collections import Counter
from random import Random

from minikafka.sim.plan import FSYNC, PAGE_CACHE, Fault, Plan
from minikafka.sim.run import Report, run
from minikafka.sim.seeds import plan_of

SEEDS = 10
SIZE = 60


def everybody(seed: int, policy: str) -> Plan:
    """Sends without an end, and twice the power of all brokers fails at once; whatever that costs."""
    plan = plan_of(seed, operations=SIZE, faults=2, kinds=("power_cut_all",), policy=policy)
    return plan.with_(within_budget=False)


def all_but_one(seed: int) -> Plan:
    """The power of two of three replicas fails at the same moment, twice: one keeps what nobody has synced."""
    plan = plan_of(seed, operations=SIZE, faults=0, policy=PAGE_CACHE)
    random = Random(f"{seed}/all but one")
    faults = []
    for share in (0.3, 0.8):
        one, other = sorted(random.sample((1, 2, 3), 2))
        at_s = round(plan.duration_s * (share + random.uniform(-0.1, 0.1)), 3)
        faults.append(Fault(at_s=at_s, kind="power_cut", target=f"n{one}>n{other}", lasts_s=random.uniform(0.05, 1.0)))
    return plan.with_(brokers=3, faults=tuple(faults))


def totals(reports: list[Report]) -> tuple[Counter[str], Counter[str]]:
    """Outcomes and marks of all."""
    outcomes: Counter[str] = Counter()
    marks: Counter[str] = Counter()
    for report in reports:
        outcomes.update(report.outcomes)
        marks.update(report.marks)
    return outcomes, marks


def test_fsync_survives_the_power_of_all_brokers() -> None:
    """D6, log.flush.interval.messages=1: acks=all, every broker's power at once, nothing that was acknowledged is lost."""
    reports = [run(everybody(seed, FSYNC).with_(within_budget=True), hashes_trace=False) for seed in range(SEEDS)]
    assert [report.render() for report in reports if not report.ok] == []
    outcomes, marks = totals(reports)
    assert marks["node_power_cut"] >= 3 * marks["fault_power_cut_all"] >= 3 * SEEDS
    assert outcomes["ok"] > SIZE * SEEDS / 4


def test_the_page_cache_survives_the_power_of_all_but_one() -> None:
    """D6, the default: while one in-sync replica keeps its page cache, nothing that was acknowledged is lost."""
    reports = [run(all_but_one(seed), hashes_trace=False) for seed in range(SEEDS)]
    assert [report.render() for report in reports if not report.ok] == []
    outcomes, marks = totals(reports)
    assert marks["node_power_cut"] >= SEEDS, "most of the cuts were within the budget, and happened"
    assert outcomes["ok"] > SIZE * SEEDS / 2


def test_beyond_that_the_checker_shows_the_loss() -> None:
    """D6, the default: the power of all brokers at once takes acknowledged records along, and the history says which."""
    reports = [run(everybody(seed, PAGE_CACHE), hashes_trace=False) for seed in range(2, 2 + SEEDS // 2)]
    told = Counter(report.failure for report in reports)
    assert told["lost-write"] > 0, told
    assert set(told) <= {"lost-write", None}, told
    lost = next(report for report in reports if report.failure == "lost-write")
    assert "was acknowledged and is nowhere to be read" in lost.render()
