"""What a seed draws about transactional producers: who they are, their time-outs, and what happens to them.

Rules for this file: it draws from a stream of its own, as ``plan_features.py`` does, and changes nothing drawn before.
"""

from __future__ import annotations

from random import Random
from typing import Final

from minikafka.faults import ALL, CLIENT, LEADER
from minikafka.sim.message_faults import DOUBLE, LATE, LOSE, RESET
from minikafka.sim.plan import Fault, Plan, PlannedTopic, fault_at

LEDGER: Final = "ledger"
"""The topic of the transactions."""

OUTPUTS: Final = "outputs"
"""The topic to which loops write what they make of the ledger's records, and of each other's."""

LOOP_GROUP: Final = "loop"
"""The group in which loops share the ledger and the outputs."""

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
        faults.append(fault_at(at_s, kind, target, lasts_s))
    return plan.with_(
        transactors=transactors,
        settings={**plan.settings, **settings},
        topics=(*plan.topics, PlannedTopic(name=LEDGER, partitions=partitions, replication_factor=3)),
    ).with_faults(faults)


LOOP_SETTINGS: Final = (
    "session_timeout_ms",
    "heartbeat_interval_ms",
    "max_poll_interval_ms",
    "rebalance_timeout_ms",
    "default_api_timeout_ms",
    "partition_assignment_strategy",
    "max_poll_records",
    "fetch_max_wait_ms",
)
"""Settings of a loop that are its consumer's; the others are its producer's."""


def with_loops(plan: Plan, random: Random) -> Plan:
    """Two or three processes that read, transform and write what the transactors of the plan have written (KIP-447)."""
    session_ms = random.choice((2000, 3000))
    settings: dict[str, int | str] = {
        "transaction_timeout_ms": random.choice((1500, 3000, 6000)),
        "session_timeout_ms": session_ms,
        "heartbeat_interval_ms": session_ms // 4,
        "max_poll_interval_ms": random.choice((1500, 4000)),
        "rebalance_timeout_ms": random.choice((1500, 4000)),
        "default_api_timeout_ms": 5000,
        "fetch_max_wait_ms": 500,
        "partition_assignment_strategy": random.choice(("range", "sticky", "cooperative-sticky")),
        "max_poll_records": random.choice((3, 10, 500)),
    }
    names = [f"x{number + 1}" for number in range(random.choice((2, 2, 3)))]
    faults = []
    for _ in range(random.randint(2, 5)):
        kind, target = random.choice(
            (
                ("kill_transactor", random.choice(names)),
                ("pause_transactor", random.choice(names)),
                ("pause_transactor", random.choice(names)),
                ("twin_transactor", random.choice(names)),
                ("crash", f"{LEADER}:__consumer_offsets-0"),
                ("isolate", f"{LEADER}:__consumer_offsets-0"),
                ("crash", f"{LEADER}:__transaction_state-0"),
                ("pause", f"{LEADER}:__transaction_state-0"),
                ("crash", f"{LEADER}:{OUTPUTS}-0"),
            )
        )
        at_s, lasts_s = random.uniform(0.5, plan.duration_s), random.expovariate(0.7) + 0.1
        faults.append(fault_at(at_s, kind, target, lasts_s))
    brokers = {
        "offsets.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": random.choice(("0", "200")),
        "group.min.session.timeout.ms": "1000",
        "offsets.commit.timeout.ms": random.choice(("500", "2000")),
    }
    outputs = PlannedTopic(name=OUTPUTS, partitions=random.choice((1, 2)), replication_factor=3)
    return plan.with_(
        loops=dict.fromkeys(names, settings),
        settings={**plan.settings, **brokers},
        topics=(*plan.topics, outputs),
    ).with_faults(faults)


HOLD_MS: Final = "hold_ms"
"""Beside the settings of a transactional producer: how long it keeps half of its transactions open, on average."""


def with_long_transactions(plan: Plan, random: Random) -> Plan:
    """Transactions that stay open while the leaders of their partitions, or their coordinator, change."""
    hold_ms = random.choice((400, 1500))
    transactors = {name: {**settings, HOLD_MS: hold_ms} for name, settings in plan.transactors.items()}
    faults = []
    for _ in range(random.randint(1, 3)):
        target = random.choice((f"{LEADER}:{LEDGER}-0", f"{LEADER}:{LEDGER}-0", f"{LEADER}:__transaction_state-0"))
        at_s, lasts_s = random.uniform(0.5, plan.duration_s), random.expovariate(1.0) + 0.1
        kind = random.choice(("crash", "crash", "isolate", "stop"))
        faults.append(fault_at(at_s, kind, target, lasts_s))
    if random.random() < 0.4:
        # The second copy of a marker arrives while the producer's next transaction is open (KAFKA-19446).
        faults.append(Fault(0.3, DOUBLE, f"{ALL}>{ALL}", plan.duration_s, 3.0, "WriteTxnMarkers request"))
    # Snapshots of producer state are taken when segments roll.
    settings = {**plan.settings, "log.segment.bytes": random.choice(("300", "1000"))}
    return plan.with_(transactors=transactors, settings=settings).with_faults(faults)


TRANSACTION_MESSAGES: Final = (
    ("WriteTxnMarkers", ALL),
    ("WriteTxnMarkers", ALL),
    ("AddPartitionsToTxn", ALL),
    ("EndTxn", CLIENT),
    ("InitProducerId", CLIENT),
    ("Produce", CLIENT),
)
"""The requests of which transactions consist, and who sends them."""

MESSAGE_TROUBLES: Final = (
    (LOSE, 0.6, ""),
    (LOSE, 0.9, "answer"),
    (RESET, 0.5, "answer"),
    (LATE, 0.8, "request"),
    (DOUBLE, 0.3, "request"),
    (DOUBLE, 2.5, "request"),
)
"""A fault of messages, its value, and which part it strikes."""


def with_struck_messages(plan: Plan, random: Random) -> Plan:
    """The messages of transactions are lost, late or doubled, and the leaders of their logs change meanwhile."""
    faults = []
    for _ in range(random.randint(2, 4)):
        api, source = random.choice(TRANSACTION_MESSAGES)
        kind, value, part = random.choice(MESSAGE_TROUBLES)
        at_s, lasts_s = random.uniform(0.3, 0.8 * plan.duration_s), random.uniform(1.0, 4.0)
        links = {"request": (f"{source}>{ALL}",), "answer": (f"{ALL}>{source}",)}.get(
            part, tuple(dict.fromkeys((f"{source}>{ALL}", f"{ALL}>{source}")))
        )
        message = f"{api} {part}".strip()
        faults += [fault_at(at_s, kind, link, lasts_s, value, message) for link in links]
        if random.random() < 0.4:
            leader = random.choice((f"{LEADER}:{LEDGER}-0", f"{LEADER}:__transaction_state-0"))
            hit = random.choice(("crash", "isolate", "pause"))
            faults.append(fault_at(at_s + lasts_s / 2, hit, leader, 1.0))
    return plan.with_faults(faults)
