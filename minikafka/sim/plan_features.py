"""What a seed draws beside the plain plan: clients that die, topics that come and go, bits that rot, groups, changes.

Rules for this file: an extra takes a plan and a stream of its own, and gives a plan; one more extra moves no other
(the stream is named after the function). What may be drawn together stays within the fault budget of ``plan.py``.

Extras that are about single messages combine a fault of messages (``message_faults.py``) with what makes these
messages matter: an ISR that changes, an election or a restart while a fetch is held, two candidates in one epoch. Times
are those before ``seeds.py`` stretches them.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from minikafka.faults import ALL, CLIENT, CONTROLLER, ELR, FOLLOWER, ISR, LEADER, MATE, METADATA_FETCH, OTHERS
from minikafka.sim.changes import ADD_PARTITIONS, ALTER_BROKER, ALTER_TOPIC, CHANGE_FAULTS, drawn_changes
from minikafka.sim.departures import CUT_AWAY, DEPART, EMPTY_DISK, GIVE_UP, NEVER, OLD_DIRECTORY
from minikafka.sim.group_plans import (
    MEMBER_FAULTS,
    drawn_failovers,
    drawn_group,
    drawn_heartbeat_group,
    drawn_migrating_group,
)
from minikafka.sim.kafka_plans import TOMBSTONE, compacted, drawn_key, drawn_settings, kafka_clients
from minikafka.sim.message_faults import DOUBLE, HOLD, KILL_GRANTING_VOTER, LATE, LOSE, RESET
from minikafka.sim.plan import CONSUMER, VOTERS, Fault, Operation, Plan, PlannedTopic, fault_at
from minikafka.sim.tenant_plans import TENANT_CHANGES
from minikafka.sim.transactor_plans import with_loops, with_transactors

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
        faults.append(fault_at(at_s, kind, target.format(*ends), away_s))
        trouble, value, part = random.choice(TROUBLES)
        starts_s = at_s + random.choice((0.0, 0.5, away_s - 0.1))
        lasts_s = random.uniform(1.0, 2.5)
        faults.append(fault_at(starts_s, trouble, EVERYWHERE, lasts_s, value, f"AlterPartition{part}"))
        if trouble == RESET or random.random() < 0.5:  # what the leader proposed stays open for longer
            link = f"{OTHERS}>{ends[1]}"
            faults.append(fault_at(starts_s, LATE, link, lasts_s, 0.3, f"{METADATA_FETCH} answer"))
        if random.random() < 0.5:
            again_s = at_s + away_s + random.uniform(0.1, 0.8)
            faults.append(fault_at(again_s, "pause", random.choice(ends), 0.6))
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
        faults.append(fault_at(at_s, HOLD, link, random.uniform(1.2, 2.2), dies_after_s, f"Fetch {part}"))
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
        fault_at(at_s, LATE, EVERYWHERE, lasts_s, late_s, "Vote"),
        fault_at(at_s, LOSE, EVERYWHERE, lasts_s, 0.7, "BeginQuorumEpoch"),
        fault_at(at_s, KILL_GRANTING_VOTER, ALL, random.choice((0.01, 0.05)), votes),
        fault_at(at_s + 0.1, "crash", CONTROLLER, random.choice((0.05, 0.1))),
        fault_at(at_s + 0.1 + 4 * election_s, "crash", CONTROLLER, random.choice((0.05, 0.1))),
    ]


def _long_tail(plan: Plan, random: Random, at_s: float, election_s: float) -> list[Fault]:
    """The controller appends what reaches nobody, and is cut off; when it is back, its successor dies at once."""
    settings = ";".join(f"{name}={value}" for name, value in TAIL_SETTINGS)
    cut_off_s, back_s = at_s + 1.8 * election_s, at_s + random.uniform(2.8, 4.0) * election_s
    return [
        fault_at(at_s, LOSE, f"{CONTROLLER}>{OTHERS}", 3 * election_s, 1.0, f"{METADATA_FETCH} answer"),
        fault_at(cut_off_s - random.uniform(0.05, 0.5) * election_s, ALTER_TOPIC, f"{plan.topics[0].name}:{settings}"),
        fault_at(cut_off_s, "isolate", CONTROLLER, back_s - cut_off_s),
        fault_at(back_s - random.choice((0.0, 0.02)), "crash", CONTROLLER, 2.5),
    ]


def snapshot_starts(plan: Plan, random: Random) -> Plan:
    """Snapshots every few records of everything that the metadata has, and brokers that begin from one."""
    settings = {**plan.settings, "metadata.log.max.record.bytes.between.snapshots": random.choice(("300", "800"))}
    faults = []
    for _ in range(random.randint(1, 3)):
        name, values = random.choice(BROKER_SETTINGS)
        broker = random.choice(("", *map(str, range(1, plan.brokers + 1))))
        at_s = random.uniform(0.2, 0.8 * plan.duration_s)
        faults.append(fault_at(at_s, ALTER_BROKER, f"{broker}:{name}={random.choice(values)}"))
        node = random.randint(1, plan.brokers)
        faults.append(fault_at(at_s + random.uniform(0.5, 2.0), "crash", f"n{node}", random.choice((0.05, 0.5, 2.0))))
    return plan.with_(settings=settings).with_faults(faults)


def _partition(plan: Plan, random: Random) -> str:
    topic = plan.topics[0]
    return f"{topic.name}-{random.randrange(topic.partitions)}"


LOOSE: Final = "loose"
"""The producer with acks=0 or acks=1, where a plan has one."""

RISKY, SCRATCH = "risky", "scratch"
"""A topic whose leaders are elected uncleanly, and one that is deleted and created again."""

RISKY_TOPIC: Final = PlannedTopic(
    name=RISKY,
    partitions=1,
    replication_factor=3,
    configs={"unclean.leader.election.enable": "true", "min.insync.replicas": "1"},
)

CLIENT_FAULTS: Final = (
    "kill_producer",
    "kill_reader",
    "pause_reader",
    "delete_records",
    "topic_lives",
    *CHANGE_FAULTS,
    *TENANT_CHANGES,
)
"""What happens to clients and topics; the rest happens to brokers, disks and links."""


def with_features(plan: Plan) -> Plan:
    """The plan with what else its seed draws. Each extra has a stream of its own: one more moves no other."""
    for share, add in PLAN_FEATURES:
        random = Random(f"{plan.seed}/plan/{add.__name__}")
        if random.random() < share:
            plan = add(plan, random)
    return plan


def _moments(plan: Plan, random: Random, count: int) -> list[float]:
    return [round(random.uniform(0.3, plan.duration_s), 3) for _ in range(count)]


def dying_clients(plan: Plan, random: Random) -> Plan:
    """Producers that die with records under way, readers that begin again where they stood or from the start."""
    producers = sorted({operation.client for operation in plan.operations})
    faults = []
    for at_s in _moments(plan, random, random.randint(1, 3)):
        lasts_s = random.expovariate(2.0)
        if random.random() < 0.6:
            faults.append(fault_at(at_s, "kill_producer", random.choice(producers), lasts_s))
        else:
            from_start = float(random.choice((0, 1)))
            faults.append(fault_at(at_s, "kill_reader", "c1", lasts_s, from_start))
    return plan.with_faults(faults)


def loose_client(plan: Plan, random: Random) -> Plan:
    """Some of the records are sent by a producer with acks=0 or acks=1: what it loses is named, and nothing else."""
    operations = tuple(
        replace(operation, client=LOOSE) if random.random() < 0.3 else operation for operation in plan.operations
    )
    return plan.with_(operations=operations, clients={**plan.clients, LOOSE: {"acks": random.choice((0, 1, 1))}})


def short_logs(plan: Plan, random: Random) -> Plan:
    """Retention by size or by time, and DeleteRecords: log starts move while everything else goes on."""
    configs: dict[str, str] = {}
    if random.random() < 0.7:
        name, values = random.choice((("retention.bytes", ("600", "2000")), ("retention.ms", ("1500", "4000"))))
        configs[name] = random.choice(values)
    settings = {
        "log.retention.check.interval.ms": random.choice(("300", "1000")),
        "log.segment.delete.delay.ms": random.choice(("100", "2000")),
        "log.flush.start.offset.checkpoint.interval.ms": random.choice(("300", "5000")),
    }
    topic = plan.topics[0]
    faults = [
        fault_at(at_s, "delete_records", _partition(plan, random), value=random.choice((0.3, 0.7, 1.0)))
        for at_s in _moments(plan, random, random.randint(0 if configs else 1, 3))
    ]
    topics = (replace(topic, configs={**topic.configs, **configs}), *plan.topics[1:])
    return plan.with_(settings={**plan.settings, **settings}, topics=topics).with_faults(faults)


def topic_lives(plan: Plan, random: Random) -> Plan:
    """A topic that is deleted and created again under its name."""
    at_s, lasts_s = random.uniform(0.2, 2.0), random.choice((0.0, 0.1, 1.0))
    lives = random.choice((2, 3, 4)) + random.choice((0.0, 0.5))
    return plan.with_faults([fault_at(at_s, "topic_lives", SCRATCH, lasts_s, lives)])


def unclean_topic(plan: Plan, random: Random) -> Plan:
    """A topic that would rather lose records than be without a leader (S20), and faults that make it choose."""
    operations = tuple(
        replace(operation, topic=RISKY, partition=0) if random.random() < 0.4 else operation
        for operation in plan.operations
    )
    faults = []
    for at_s in _moments(plan, random, random.randint(1, 2)):
        # One follower is cut off until it has left the ISR; then the ISR dies as a whole, and that one is there again.
        alone_s = round(random.uniform(2.0, 4.5), 3)
        faults.append(fault_at(at_s, "isolate", f"{FOLLOWER}:{RISKY}-0", alone_s))
        lasts_s = random.choice((0.5, 2.0, 4.0))
        faults.append(fault_at(at_s + alone_s - 0.2, "crash", f"{ISR}:{RISKY}-0", lasts_s))
    return plan.with_(topics=(*plan.topics, RISKY_TOPIC), operations=operations).with_faults(faults)


def wrong_calendars(plan: Plan, random: Random) -> Plan:
    """Calendars that are minutes or a day off: nothing but timestamps and retention by time may notice."""
    nodes = random.sample(range(1, plan.brokers + 1), random.randint(1, plan.brokers))
    return plan.with_(skew_s={f"n{node}": random.choice((-1800.0, -90.0, 90.0, 86_400.0)) for node in sorted(nodes)})


QUIET_S: Final = 3.5
"""Before a bit rots: it may only where everything is whole."""


def rotten_bits(plan: Plan, random: Random) -> Plan:
    """A bit rots on a disk; a consumer reads from the start, and another broker may lose what it has not synced."""
    at_s = round(random.uniform(0.4, 0.7) * plan.duration_s, 3)
    calm = [
        fault
        for fault in plan.faults
        if fault.kind not in {"fail_sync", "disk_full"} and not at_s - QUIET_S < fault.at_s < at_s + 1.0
    ]
    topic = plan.topics[0]
    leader = f"{LEADER}:{topic.name}-{random.randrange(topic.partitions)}"
    target = random.choice((leader, leader, *(f"n{node}" for node in range(1, plan.brokers + 1))))
    lasts_s, folder = random.uniform(1.0, 4.0), float(random.choice((0, 1)))
    faults = [fault_at(at_s + after_s, "kill_reader", "c1", 0.1, 1.0) for after_s in (0.2, 0.8, 1.4)]
    faults.append(fault_at(at_s, "rot", target, lasts_s, folder))
    if random.random() < 0.6:
        victim = random.randint(1, plan.brokers)
        kind = "wipe" if victim > VOTERS else "power_cut"
        faults.append(fault_at(at_s + 1.0, kind, f"n{victim}", 0.3))
    return files_only(plan.with_(faults=tuple(calm)), random).with_faults(faults)


def files_only(plan: Plan, _random: Random) -> Plan:
    """No batches are kept in memory: each read comes from the disk."""
    return plan.with_(settings={**plan.settings, "mk.memory.tails.bytes": "0"})


def poor_links(plan: Plan, random: Random) -> Plan:
    """Single links, one way each, that are slow, or lose, break or double messages, beyond what all links do."""
    faults = []
    for at_s in _moments(plan, random, random.randint(1, 3)):
        one, other = random.sample(range(1, plan.brokers + 1), 2)
        kind, values = random.choice(POOR_LINKS)
        lasts_s = random.expovariate(0.7) + 0.2
        faults.append(fault_at(at_s, kind, f"n{one}>n{other}", lasts_s, random.choice(values)))
    return plan.with_faults(faults)


POOR_LINKS: Final = (
    ("slow_link", (1000.0, 5000.0)),
    ("lossy_link", (0.2, 0.5)),
    ("resetting_link", (0.2, 0.5)),
    ("doubling_link", (0.3, 0.8)),
)
"""Kinds of fault of one link, and how strong: bytes a second, else shares of messages."""


def real_consumer(plan: Plan, random: Random) -> Plan:
    """The production consumer reads along."""
    return plan.with_(consumers=random.choice((1, 1, 2)))


def regrown_log(plan: Plan, random: Random) -> Plan:
    """An unclean election cuts a log that the production consumer has read, and the log regrows past its position.

    A follower leaves the ISR, records are written and read, the ISR dies as a whole, and the follower leads: whatever
    is sent now takes the offsets that the consumer has read already. In most plans it stands still meanwhile.
    """
    if any(fault.kind == "rot" for fault in plan.faults) or any(group.is_calm for group in plan.groups):
        return plan
    cut_s = round(random.uniform(0.1, 0.3) * plan.duration_s, 3)
    alone_s = round(random.uniform(2.5, 4.0), 3)
    dies_s = round(cut_s + alone_s - 0.2, 3)
    faults = [
        fault_at(cut_s, "isolate", f"{FOLLOWER}:{RISKY}-0", alone_s),
        fault_at(dies_s, "crash", f"{ISR}:{RISKY}-0", 3.0),
    ]
    if random.random() < 0.7:
        faults.append(fault_at(dies_s - 0.1, "pause_reader", "g1", 3.5))
    operations = list(plan.operations)
    moved = random.sample(range(len(operations)), len(operations) // 2)
    for number, index in enumerate(moved):
        # One in four while the follower is away, the others behind its election.
        span = (cut_s + 0.5, dies_s) if number % 4 == 0 else (dies_s + 0.1, dies_s + 3.5)
        at_s = round(random.uniform(*span), 4)
        operations[index] = replace(operations[index], topic=RISKY, partition=0, key="", at_s=at_s)
    topics = plan.topics if RISKY_TOPIC in plan.topics else (*plan.topics, RISKY_TOPIC)
    return plan.with_(
        topics=topics,
        operations=tuple(sorted(operations, key=lambda each: each.at_s)),
        consumers=max(1, plan.consumers),
    ).with_faults(faults)


def elr_power_cut(plan: Plan, random: Random) -> Plan:
    """A replica loses its power while it is only eligible to lead, and then the ISR's last member is away (KIP-966).

    One follower leaves the ISR, then the other one, which stays eligible: the ISR is below min.insync.replicas. Its
    power is cut, the leader stands still until its session is over, and the replica is back before the leader.
    """
    if any(fault.kind == "rot" for fault in plan.faults) or any(group.is_calm for group in plan.groups):
        return plan
    name = f"{plan.topics[0].name}-0"
    at_s = round(random.uniform(0.5, plan.duration_s - 5.0), 3) if plan.duration_s > 5.5 else 0.5
    cut_s = round(at_s + 2.9, 3)
    faults = [
        fault_at(at_s, "isolate", f"{FOLLOWER}:{name}", 5.5),
        fault_at(at_s + 1.4, "isolate", f"{MATE}:{name}", 2.0),
        fault_at(cut_s, "power_cut", f"{ELR}:{name}", 0.3),
        fault_at(cut_s + 0.05, "pause", f"{LEADER}:{name}", 2.5),
    ]
    calm = tuple(each for each in plan.faults if each.kind in CLIENT_FAULTS or not at_s - 1.0 < each.at_s < cut_s + 2.5)
    sessions = {"broker.session.timeout.ms": "1000", "broker.heartbeat.interval.ms": "250", "min.insync.replicas": "2"}
    # Two voters are silent at once, the others are the quorum. A voter's disk is not wiped.
    plan = plan.with_(brokers=max(5, plan.brokers), voters=5)
    calm = tuple(each for each in calm if each.kind != "wipe")
    return plan.with_(faults=calm, settings={**plan.settings, **sessions}).with_faults(faults)


def consumer_group(plan: Plan, random: Random) -> Plan:
    """Consumers share a topic, come and go; brokers that coordinate them die. Some groups have nothing to fear."""
    topic = plan.topics[0].name
    drawn = drawn_group(random, plan.duration_s, topic)
    plan = plan.with_(groups=(drawn.group,), settings={**plan.settings, **drawn.settings})
    if drawn.is_calm:
        plan = plan.with_(faults=(), link={"delay_mean_s": plan.link["delay_mean_s"]}, skew_s={})
    return plan.with_faults(drawn.faults)


def heartbeat_group(plan: Plan, random: Random) -> Plan:
    """Members of the consumer protocol share a topic (KIP-848), come and go; their coordinators die."""
    if plan.groups:
        return plan
    drawn = drawn_heartbeat_group(random, plan.duration_s, plan.topics[0].name)
    return plan.with_(groups=(drawn.group,), settings={**plan.settings, **drawn.settings}).with_faults(drawn.faults)


def migrating_group(plan: Plan, random: Random) -> Plan:
    """Members of one group change from the classic to the consumer protocol and back, while coordinators die."""
    if plan.groups:
        return plan
    drawn = drawn_migrating_group(random, plan.duration_s, plan.topics[0].name)
    faults = drawn.faults + _struck_members(plan, random)
    return plan.with_(groups=(drawn.group,), settings={**plan.settings, **drawn.settings}).with_faults(faults)


MEMBER_MESSAGES: Final = ("JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat", "OffsetCommit")
"""The requests of members of both protocols."""

MEMBER_TROUBLES: Final = (
    (LOSE, 0.5, ""),
    (LOSE, 0.9, "answer"),
    (LATE, 0.8, "request"),
    (LATE, 0.8, "answer"),
    (LATE, 0.8, "answer"),
    (DOUBLE, 0.8, "request"),
    (HOLD, 0.0, "request"),
    (HOLD, 0.0, "answer"),
)
"""A fault of messages, its value, and which part it strikes."""


def _struck_members(plan: Plan, random: Random) -> list[Fault]:
    """Messages between members and their coordinator that are lost, late, doubled or held."""
    faults = []
    for at_s in _moments(plan, random, random.choice((0, 1, 2, 3))):
        api, (kind, value, part) = random.choice(MEMBER_MESSAGES), random.choice(MEMBER_TROUBLES)
        links = {"request": (f"{CLIENT}>{ALL}",), "answer": (f"{ALL}>{CLIENT}",)}
        lasts_s = random.uniform(0.5, 3.0)
        if api == "OffsetCommit" and part == "request":
            continue  # nothing fences a commit that is overtaken by later ones of the same generation, as in Kafka
        faults += [
            fault_at(at_s, kind, link, lasts_s, value, f"{api} {part}".strip())
            for link in links.get(part, (f"{CLIENT}>{ALL}", f"{ALL}>{CLIENT}"))
        ]
    return faults


def loops(plan: Plan, random: Random) -> Plan:
    """Processes that read, transform and write in transactions, where a plan has transactional producers."""
    return with_loops(plan, random) if plan.transactors and not plan.groups else plan


def group_failovers(plan: Plan, random: Random) -> Plan:
    """The coordinator of a plan's group fails at the worst moment for its members."""
    groups = [group for group in plan.groups if not group.is_calm and group.protocol != CONSUMER]
    if not groups:
        return plan
    drawn = drawn_failovers(random, plan.duration_s, groups[0])
    begins_at = min(each.at_s for each in drawn)
    # Nothing else makes members join, or hides what the failover did to them.
    calm = tuple(each for each in plan.faults if each.kind not in MEMBER_FAULTS or each.at_s < begins_at)
    return plan.with_(faults=calm).with_faults(drawn)


def online_changes(plan: Plan, random: Random) -> Plan:
    """Replicas move, a topic grows, its settings change. No move where a bit rots: what is sound might go."""
    topic = plan.topics[0]
    changes = drawn_changes(
        random,
        topic=topic.name,
        partitions=topic.partitions,
        brokers=plan.brokers,
        duration_s=plan.duration_s,
        may_move=all(fault.kind != "rot" for fault in plan.faults),
    )
    if any(each.kind == ADD_PARTITIONS for each in changes):
        # Consumers find new partitions when they look the next time, in Kafka after five minutes.
        # A static leader that was away meanwhile sees them with the next rebalance only, as in Kafka (KIP-814).
        age = {"metadata_max_age_ms": 1000}
        groups = tuple(replace(each, static=(), settings={**each.settings, **age}) for each in plan.groups)
        plan = plan.with_(groups=groups)
    return plan.with_faults(changes)


def compacted_topic(plan: Plan, random: Random) -> Plan:
    """The first topic is compacted: its records have keys, and some of them delete theirs.

    Not beside damage, which stops compaction until a restart, nor beside a group, which would miss what is replaced.
    """
    settings, keys = drawn_settings(random), random.choice((2, 5, 12))

    def keyed(operation: Operation) -> Operation:
        key = drawn_key(random, keys)
        # Tombstones have no value that tells whose they are, and what a loose producer doubles must be distinguishable.
        return replace(operation, key=key.removeprefix(TOMBSTONE) if operation.client == LOOSE else key)

    if plan.groups or any(fault.kind == "rot" for fault in plan.faults):
        return plan
    topic = plan.topics[0]
    operations = tuple(
        keyed(operation) if operation.topic == topic.name else operation for operation in plan.operations
    )
    topics = (replace(topic, configs=compacted(topic.configs)), *plan.topics[1:])
    return plan.with_(topics=topics, operations=operations, settings={**plan.settings, **settings})


def transactors(plan: Plan, random: Random) -> Plan:
    """Transactional producers, beside everything but damaged disks: a rotten log stops its partition for long."""
    if any(fault.kind == "rot" for fault in plan.faults) or any(group.is_calm for group in plan.groups):
        return plan
    return with_transactors(plan, random)


def refused_connections(plan: Plan, _random: Random) -> Plan:
    """Brokers whose addresses refuse connections are fenced at once: killed processes, not machines without power."""
    return plan.with_(settings={**plan.settings, "mk.fence.on.refused.connection": "true"})


def pipelined_batches(plan: Plan, random: Random) -> Plan:
    """Idempotent producers send several small batches of a partition at once. All other plans send them one by one."""
    settings = {"max_in_flight_batches": random.choice((2, 5, 5)), "linger_ms": 0, "max_batch_size": 100}
    return plan.with_(client_settings={**plan.client_settings, **settings})


LEAVER: Final = VOTERS + 1
"""The broker that leaves in most plans of that kind; another one may leave only if it comes back."""

UNREGISTRATION_TROUBLES: Final = (
    (LOSE, 0.7, " answer"),
    (RESET, 0.7, " answer"),
    (LATE, 0.8, " request"),
    (DOUBLE, 0.8, " request"),
    (DOUBLE, 4.0, " request"),
)
"""What happens to UnregisterBroker: a fault of messages, its value, and which part it strikes."""


def departing_broker(plan: Plan, random: Random) -> Plan:
    """A broker is emptied and unregistered, maybe after it has died or behind a cut; most of them come back later.

    Not beside damage, for an operator looks after damaged brokers, nor beside a group that has nothing to fear.
    """
    if any(fault.kind == "rot" for fault in plan.faults) or any(group.is_calm for group in plan.groups):
        return plan
    node = random.choice((LEAVER, LEAVER, LEAVER, *range(1, VOTERS + 1)))
    kind = random.choice((DEPART, GIVE_UP, GIVE_UP, CUT_AWAY))
    back = random.choice((NEVER, OLD_DIRECTORY, OLD_DIRECTORY, EMPTY_DISK)) if node == LEAVER else OLD_DIRECTORY
    at_s = random.uniform(0.1, 0.5) * plan.duration_s
    lasts_s = random.uniform(3.0, 6.0) if kind == CUT_AWAY else random.choice((0.0, 0.1, 1.0))
    faults = [fault_at(at_s, kind, f"n{node}", lasts_s, back)]
    if random.random() < 0.5:
        trouble, value, part = random.choice(UNREGISTRATION_TROUBLES)
        links = {" answer": f"{ALL}>{CLIENT}", " request": f"{CLIENT}>{ALL}"}
        faults.append(fault_at(at_s, trouble, links[part], random.uniform(2.0, 5.0), value, f"UnregisterBroker{part}"))
    for _ in range(random.choice((0, 0, 1, 2))):
        dies_s = at_s + random.uniform(0.3, 4.0)
        faults.append(fault_at(dies_s, "crash", CONTROLLER, random.choice((0.05, 1.0))))
    return plan.with_(brokers=max(plan.brokers, LEAVER)).with_faults(faults)


PLAN_FEATURES: Final = (
    (0.3, dying_clients),
    (0.25, loose_client),
    (0.3, short_logs),
    (0.25, topic_lives),
    (0.2, unclean_topic),
    (0.25, isr_churn),
    (0.25, late_fetches),
    (0.2, contested_votes),
    (0.2, snapshot_starts),
    (0.25, wrong_calendars),
    (0.3, real_consumer),
    (0.25, rotten_bits),
    (0.3, files_only),
    (0.25, poor_links),
    (0.25, consumer_group),
    (0.3, online_changes),
    (0.3, compacted_topic),
    (0.5, group_failovers),
    (0.1, regrown_log),
    (0.25, kafka_clients),
    (0.25, refused_connections),
    (0.2, transactors),
    (0.4, loops),
    (0.12, heartbeat_group),
    (0.35, pipelined_batches),
    (0.1, departing_broker),
    (0.1, elr_power_cut),
)
"""How often each is drawn. The last one may add brokers, whose number others draw with."""
