"""Extras that are about single messages: ISR changes, late fetches, contested elections, starts from snapshots.

Each combines a fault of messages (``message_faults.py``) with what makes these messages matter: an ISR that changes, an
election or a restart while a fetch is held, two candidates in one epoch.

Rule for this file: it draws, as ``plan_features.py`` does, and times are those before ``seeds.py`` stretches them.
"""

from __future__ import annotations

from random import Random
from typing import Final

from minikafka.faults import ALL, CONTROLLER, FOLLOWER, LEADER, METADATA_FETCH, OTHERS
from minikafka.sim.change_plans import ALTER_BROKER, ALTER_TOPIC
from minikafka.sim.message_faults import DOUBLE, HOLD, KILL_GRANTING_VOTER, LATE, LOSE, RESET
from minikafka.sim.plan import Fault, Plan

EVERYWHERE: Final = f"{ALL}>{ALL}"

TAIL_SETTINGS: Final = (
    ("index.interval.bytes", "200"),
    ("segment.index.bytes", "1000000"),
    ("flush.ms", "9000000"),
    ("segment.ms", "9000000"),
    ("max.message.bytes", "900000"),
    ("min.compaction.lag.ms", "0"),
)
"""Settings of a topic that change nothing that a run could notice: six records in one batch."""

TROUBLES: Final = (
    (LOSE, 0.6, ""),
    (LOSE, 1.0, " answer"),
    (RESET, 0.5, " answer"),
    (RESET, 0.5, " answer"),
    (RESET, 0.5, " answer"),
    (LATE, 0.8, " request"),
    (LATE, 0.3, ""),
    (DOUBLE, 0.003, " request"),
    (DOUBLE, 1.5, " request"),
)
"""What happens to AlterPartition: a fault of messages, its value, and which part it strikes."""

BROKER_SETTINGS: Final = (
    ("log.segment.bytes", ("400", "1500", "")),
    ("log.index.interval.bytes", ("0", "200", "")),
    ("replica.fetch.backoff.ms", ("500", "1500", "")),
)
"""Settings that brokers are given at run time; the empty text takes them back."""


def isr_churn(plan: Plan, random: Random) -> Plan:
    """A follower leaves the ISR and comes back, while AlterPartition is lost, late or doubled."""
    partition = _partition(plan, random)
    ends = (f"{FOLLOWER}:{partition}", f"{LEADER}:{partition}")
    faults = []
    for _ in range(2):
        at_s = random.uniform(0.3, max(0.4, plan.duration_s - 3.0))
        away_s = random.uniform(0.9, 1.4)
        kind, target = random.choice((("pause", "{}"), ("cut", "{}>{}"), ("cut_both", "{}>{}")))
        faults.append(_fault(at_s, kind, target.format(*ends), away_s))
        trouble, value, part = random.choice(TROUBLES)
        starts_s = at_s + random.choice((0.0, 0.5, away_s - 0.1))
        lasts_s = random.uniform(1.0, 2.5)
        faults.append(_fault(starts_s, trouble, EVERYWHERE, lasts_s, value, f"AlterPartition{part}"))
        if trouble == RESET or random.random() < 0.5:  # what the leader proposed stays open for longer
            link = f"{OTHERS}>{ends[1]}"
            faults.append(_fault(starts_s, LATE, link, lasts_s, 0.3, f"{METADATA_FETCH} answer"))
        if random.random() < 0.5:
            again_s = at_s + away_s + random.uniform(0.1, 0.8)
            faults.append(_fault(again_s, "pause", random.choice(ends), 0.6))
    settings = {**plan.settings, "replica.lag.time.max.ms": "800"}
    return plan.with_(settings=settings).with_faults(faults)


def late_fetches(plan: Plan, random: Random) -> Plan:
    """A fetch, or its response, is held; its sender is killed meanwhile, so that leaders or broker epochs change."""
    faults = []
    for _ in range(random.randint(2, 4)):
        partition = _partition(plan, random)
        at_s = random.uniform(0.3, 0.7 * plan.duration_s)
        part, link = random.choice(
            (
                ("answer", f"{LEADER}:{partition}>{OTHERS}"),
                ("request", f"{FOLLOWER}:{partition}>{OTHERS}"),
            )
        )
        dies_after_s = random.choice((0.01, 0.1))
        faults.append(_fault(at_s, HOLD, link, random.uniform(1.2, 2.2), dies_after_s, f"Fetch {part}"))
    settings = {**plan.settings, "broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "250"}
    return plan.with_(settings=settings).with_faults(faults)


def contested_votes(plan: Plan, random: Random) -> Plan:
    """Two candidates in one epoch and voters that die as they vote, or a leader with an uncommitted, longer tail."""
    election_s = int(plan.settings["controller.quorum.election.timeout.ms"]) / 1000
    at_s = random.uniform(0.3, max(0.4, plan.duration_s - 4.0))
    make = random.choice((_split_votes, _long_tail))
    return plan.with_faults(make(plan, random, at_s, election_s))


def _split_votes(_plan: Plan, random: Random, at_s: float, election_s: float) -> list[Fault]:
    """The controller dies and is back at once; candidates overlap, for votes are late and winners are not heard."""
    lasts_s = random.uniform(4.0, 8.0) * election_s
    late_s = random.choice((0.3, 0.6)) * election_s
    votes = float(random.randint(1, 3))
    return [
        _fault(at_s, LATE, EVERYWHERE, lasts_s, late_s, "Vote"),
        _fault(at_s, LOSE, EVERYWHERE, lasts_s, 0.7, "BeginQuorumEpoch"),
        _fault(at_s, KILL_GRANTING_VOTER, ALL, random.choice((0.01, 0.05)), votes),
        _fault(at_s + 0.1, "crash", CONTROLLER, random.choice((0.05, 0.1))),
        _fault(at_s + 0.1 + 4 * election_s, "crash", CONTROLLER, random.choice((0.05, 0.1))),
    ]


def _long_tail(plan: Plan, random: Random, at_s: float, election_s: float) -> list[Fault]:
    """The controller appends what reaches nobody, and is cut off; when it is back, its successor dies at once."""
    settings = ";".join(f"{name}={value}" for name, value in TAIL_SETTINGS)
    cut_off_s, back_s = at_s + 1.8 * election_s, at_s + random.uniform(2.8, 4.0) * election_s
    return [
        _fault(at_s, LOSE, f"{CONTROLLER}>{OTHERS}", 3 * election_s, 1.0, f"{METADATA_FETCH} answer"),
        _fault(cut_off_s - random.uniform(0.05, 0.5) * election_s, ALTER_TOPIC, f"{plan.topics[0].name}:{settings}"),
        _fault(cut_off_s, "isolate", CONTROLLER, back_s - cut_off_s),
        _fault(back_s - random.choice((0.0, 0.02)), "crash", CONTROLLER, 2.5),
    ]


def snapshot_starts(plan: Plan, random: Random) -> Plan:
    """Snapshots every few records of everything that the metadata has, and brokers that begin from one."""
    settings = {**plan.settings, "metadata.log.max.record.bytes.between.snapshots": random.choice(("300", "800"))}
    faults = []
    for _ in range(random.randint(1, 3)):
        name, values = random.choice(BROKER_SETTINGS)
        broker = random.choice(("", *map(str, range(1, plan.brokers + 1))))
        at_s = random.uniform(0.2, 0.8 * plan.duration_s)
        faults.append(_fault(at_s, ALTER_BROKER, f"{broker}:{name}={random.choice(values)}"))
        node = random.randint(1, plan.brokers)
        faults.append(_fault(at_s + random.uniform(0.5, 2.0), "crash", f"n{node}", random.choice((0.05, 0.5, 2.0))))
    return plan.with_(settings=settings).with_faults(faults)


def _partition(plan: Plan, random: Random) -> str:
    topic = plan.topics[0]
    return f"{topic.name}-{random.randrange(topic.partitions)}"


def _fault(at_s: float, kind: str, target: str, lasts_s: float = 0.0, value: float = 0.0, message: str = "") -> Fault:
    return Fault(
        at_s=round(at_s, 3),
        kind=kind,
        target=target,
        lasts_s=round(lasts_s, 3),
        value=round(value, 4),
        message=message,
    )
