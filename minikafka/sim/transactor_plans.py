"""What a seed draws about transactional producers: who they are, their time-outs, and what happens to them.

Rules for this file: it draws from a stream of its own, as ``extras.py`` does, and changes nothing drawn before.
"""

from __future__ import annotations

from random import Random
from typing import Final

from minikafka.sim.plan import Fault, Plan, PlannedTopic
from minikafka.sim.whom import LEADER

LEDGER: Final = "ledger"
"""The topic of the transactions."""

TRANSACTOR_FAULTS: Final = ("kill_transactor", "pause_transactor", "twin_transactor")


def with_transactors(plan: Plan, random: Random) -> Plan:
    """One or two transactional producers beside everything else, and faults of theirs and of their coordinator."""
    partitions, count = random.choice((1, 2, 3)), random.choice((1, 2, 2))
    timeout_ms = random.choice((1500, 3000, 6000))
    transactors: dict[str, dict[str, int | str]] = {
        f"t{number + 1}": {"transaction_timeout_ms": timeout_ms} for number in range(count)
    }
    settings = {
        "transaction.state.log.num.partitions": random.choice(("1", "2")),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
        "mk.transaction.commit.timeout.ms": "1500",
    }
    faults = []
    for _ in range(random.randint(1, 4)):
        kind, target = random.choice(
            (
                ("kill_transactor", "t1"),
                ("pause_transactor", "t1"),
                ("twin_transactor", "t1"),
                ("twin_transactor", "t1"),
                ("crash", f"{LEADER}:__transaction_state-0"),
                ("pause", f"{LEADER}:__transaction_state-0"),
                ("isolate", f"{LEADER}:__transaction_state-0"),
                ("crash", f"{LEADER}:{LEDGER}-0"),
                ("isolate", f"{LEADER}:{LEDGER}-0"),
            )
        )
        at_s, lasts_s = random.uniform(0.5, plan.duration_s), random.expovariate(0.7) + 0.1
        faults.append(Fault(at_s=round(at_s, 3), kind=kind, target=target, lasts_s=round(lasts_s, 3)))
    return plan.with_(
        transactors=transactors,
        settings={**plan.settings, **settings},
        topics=(*plan.topics, PlannedTopic(name=LEDGER, partitions=partitions, replication_factor=3)),
    ).with_faults(faults)
