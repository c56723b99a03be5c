"""A plan: everything that a run does, as data. A seed makes one; JSON keeps one; the shrinker cuts one down.

Swarm style: each seed draws which kinds of fault exist at all and how strong they are, the shape of the cluster, and
settings so small that rolls, snapshots, elections and rejoins happen every few virtual seconds.

The fault budget (what a run must survive):

- ``fsync`` policy (``log.flush.interval.messages=1``): any number of crashes, pauses, cuts and power cuts, of all
  brokers at once too. Acknowledged records survive.
- ``page_cache`` policy (Kafka's default): the same, but a power cut happens only while every partition is whole and
  keeps a replica outside, else it is carried out as a kill -9 (``power_cut_spared``); and until all is whole again no
  other broker is killed, it is stopped and resumed instead (``crash_spared``). For the controller a kill -9 is no
  better than a power cut (KIP-966): were every replica's stop unclean, the last known leader is elected when it
  returns, with what its disk has kept.
- a sync that fails leaves pages that a later power cut turns into zeros, on a disk that says it is well: plans have
  failing syncs or power cuts, not both.
- a disk that is replaced by an empty one (``wipe``) counts as a power cut, whatever the policy, and happens to brokers
  that are no voters: a static quorum does not survive a voter that forgets its vote.
- a topic with ``unclean.leader.election.enable`` may lose what it likes once an unclean election has taken place: its
  losses are named, not violations; so are those of records that were sent with acks=0 or acks=1.
- a bit that rots (``rot``) does so on one replica's disk, in what is committed and synced, while everything is whole;
  until an operator has put it right nobody is killed who has what that replica lacks, and nothing else happens to its
  disk. Never: bits rotten on every copy at once.

Rules for this file: it draws from one stream per purpose; nothing here runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any, Final

from minikafka.invariant import invariant
from minikafka.sim.change_plans import ADD_PARTITIONS, CHANGE_FAULTS, drawn_changes
from minikafka.sim.compaction_plans import TOMBSTONE, compacted, drawn_key, drawn_settings
from minikafka.sim.group_plans import PlannedGroup, drawn_group
from minikafka.sim.pace import slower
from minikafka.sim.whom import CONTROLLER, FOLLOWER, ISR, LEADER

VERSION: Final = 1

VOTERS: Final = 3
"""Of every cluster; a fourth broker is none."""

FSYNC, PAGE_CACHE = "fsync", "page_cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong at ``at_s`` and is put right ``lasts_s`` later (virtual seconds); or what people do to
    a running cluster (``people.py``).
    """

    at_s: float
    kind: str
    target: str
    """Who, in the words of ``whom.py``: ``n2``, ``leader:orders-0``, a link ``n1>n2``; a client, partition or topic."""
    lasts_s: float = 0.0
    value: float = 0.0
    """How strong, where that has a meaning (seconds)."""

    def __str__(self) -> str:
        lasts = f" for {self.lasts_s:.2f} s" if self.lasts_s else ""
        value = f" ({self.value:g})" if self.value else ""
        return f"t={self.at_s:.2f} {self.kind} {self.target}{value}{lasts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One record that a producer sends."""

    at_s: float
    client: str
    topic: str
    partition: int
    key: str = ""
    """None if empty; see ``compaction_plans.py``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTopic:
    """A topic that exists from the start."""

    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All of one run."""

    seed: int
    brokers: int = 3
    voters: int = VOTERS
    policy: str = PAGE_CACHE
    settings: Mapping[str, str] = field(default_factory=dict)
    client_settings: Mapping[str, int | str] = field(default_factory=dict)
    clients: Mapping[str, Mapping[str, int | str]] = field(default_factory=dict)
    """Producers with settings of their own beside those: ``{"p2": {"acks": 1}}``."""
    skew_s: Mapping[str, float] = field(default_factory=dict)
    """How far the calendars of nodes are ahead."""
    consumers: int = 0
    """Readers that use the production consumer."""
    groups: tuple[PlannedGroup, ...] = ()
    """Consumer groups (``crew.py``)."""
    topics: tuple[PlannedTopic, ...] = (PlannedTopic(name="orders", partitions=1, replication_factor=3),)
    link: Mapping[str, float] = field(default_factory=dict)
    """Of every link: delay_mean_s, loss, reset, duplicate."""
    sync_mean_s: float = 0.002
    readers: int = 1
    pace: float = 1.0
    """How many times longer the readers pause than they would: what they wait is no setting."""
    duration_s: float = 10.0
    """Of the safety phase."""
    faults: tuple[Fault, ...] = ()
    operations: tuple[Operation, ...] = ()
    within_budget: bool = True
    """False: a power cut happens whatever it costs; then invariants forgive lost records and the checker names them."""
    fifo: bool = False
    """Run ready nodes in plain FIFO order instead of a seeded one: the trace that reads best."""

    def to_json(self) -> str:
        """A readable text: one fault, one operation a line."""
        row = {"version": VERSION, **asdict(self)}
        lists = {name: row.pop(name) for name in ("faults", "operations")}
        head = json.dumps(row, indent=1)[:-2]
        parts = [
            f' "{name}": [\n' + ",\n".join("  " + json.dumps(each) for each in items) + "\n ]"
            for name, items in lists.items()
        ]
        return head + ",\n" + ",\n".join(parts) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what :meth:`to_json` wrote. ValueError for another version."""
        row: dict[str, Any] = json.loads(text)
        if row.pop("version", None) != VERSION:
            raise ValueError(f"a plan of version {VERSION} is needed")
        row["topics"] = tuple(PlannedTopic(**each) for each in row["topics"])
        row["groups"] = tuple(PlannedGroup.from_row(each) for each in row.get("groups", ()))
        row["faults"] = tuple(Fault(**each) for each in row["faults"])
        row["operations"] = tuple(Operation(**each) for each in row["operations"])
        return cls(**row)

    def with_(self, **changes: Any) -> Plan:
        """A changed copy."""
        return replace(self, **changes)


# ---- from a seed -----------------------------------------------------------------------------------------------------

OPERATIONS: Final = 200
FAULTS: Final = 10

NODE_FAULTS: Final = (
    "crash",
    "power_cut",
    "pause",
    "isolate",
    "stop",
    "slow_disk",
    "jump_clock",
    "power_cut_all",
    "fail_sync",
    "disk_full",
)
LINK_FAULTS: Final = ("cut", "cut_both", "clog")
POWER_CUTS: Final = ("power_cut", "power_cut_all")


def plan_of(
    seed: int,
    *,
    operations: int = OPERATIONS,
    faults: int = FAULTS,
    kinds: Sequence[str] = (),
    policy: str | None = None,
) -> Plan:
    """The plan of a seed: three or four brokers, ``operations`` sends, ``faults`` faults, and some of ``EXTRAS``.

    ``kinds`` and ``policy`` are drawn unless given: a hunt for something special narrows them, and has no extras.
    """
    plan = _drawn_plan(seed, operations, faults, kinds, policy)
    return slower(plan if kinds else with_extras(plan))


def plain_plan_of(seed: int) -> Plan:
    """Three brokers, 200 sends, ten faults and nothing else: what issue 3 names its pace for."""
    return slower(_drawn_plan(seed, OPERATIONS, FAULTS, (), None, brokers=VOTERS))


def _drawn_plan(
    seed: int, operations: int, faults: int, kinds: Sequence[str], policy: str | None, *, brokers: int | None = None
) -> Plan:
    shape = Random(f"{seed}/plan/shape")
    policy = shape.choice((FSYNC, PAGE_CACHE, PAGE_CACHE)) if policy is None else policy
    partitions = shape.choice((1, 2, 3))
    drawn = shape.choice((3, 3, 3, 4))
    brokers = drawn if brokers is None else brokers
    topics = (PlannedTopic(name="orders", partitions=partitions, replication_factor=3),)
    duration_s = shape.uniform(6.0, 10.0)
    min_isr = shape.choice((1, 2, 2))
    settings = _settings(Random(f"{seed}/plan/settings"), policy=policy, min_isr=min_isr)
    return Plan(
        seed=seed,
        brokers=brokers,
        policy=policy,
        settings=settings,
        client_settings=_client_settings(Random(f"{seed}/plan/clients")),
        topics=topics,
        link=_link(Random(f"{seed}/plan/link")),
        sync_mean_s=shape.choice((0.001, 0.002, 0.01)),
        readers=1,
        duration_s=duration_s,
        faults=_faults(
            Random(f"{seed}/plan/faults"), faults, duration_s, topics, kinds or _swarm(seed, policy), brokers
        ),
        operations=_operations(Random(f"{seed}/plan/operations"), operations, duration_s, topics),
        fifo=shape.random() < 0.05,
    )


def _settings(random: Random, *, policy: str, min_isr: int) -> dict[str, str]:
    session_ms = random.choice((1000, 1500, 2500))
    election_ms = random.choice((200, 400, 800))
    settings: dict[str, Any] = {
        "broker.session.timeout.ms": session_ms,
        "broker.heartbeat.interval.ms": session_ms // random.choice((3, 4)),
        "replica.lag.time.max.ms": random.choice((800, 1500, 4000)),
        "replica.fetch.wait.max.ms": random.choice((100, 250, 500)),
        "replica.fetch.backoff.ms": random.choice((100, 500)),
        "replica.socket.timeout.ms": random.choice((1000, 2000)),
        "replica.high.watermark.checkpoint.interval.ms": random.choice((300, 1000, 5000)),
        "controller.quorum.election.timeout.ms": election_ms,
        "controller.quorum.fetch.timeout.ms": election_ms * 2,
        "controller.quorum.request.timeout.ms": election_ms * 2,
        "controller.quorum.election.backoff.max.ms": election_ms,
        "mk.controller.quorum.fetch.wait.max.ms": 500,
        "metadata.log.max.record.bytes.between.snapshots": random.choice((800, 3000, 100_000)),
        "log.segment.bytes": random.choice((300, 600, 2000)),
        "log.index.interval.bytes": random.choice((0, 100, 500)),
        "log.flush.offset.checkpoint.interval.ms": random.choice((500, 2000)),
        "leader.imbalance.check.interval.seconds": random.choice((3, 10)),
        "mk.controlled.shutdown.max.wait.ms": 3000,
        "min.insync.replicas": min_isr,
    }
    if policy == FSYNC:
        settings["log.flush.interval.messages"] = 1
    return {name: str(value) for name, value in settings.items()}


def _client_settings(random: Random) -> dict[str, int | str]:
    request_ms = random.choice((800, 2000))
    return {
        "request_timeout_ms": request_ms,
        "delivery_timeout_ms": random.choice((3000, 8000)),
        "linger_ms": random.choice((0, 5, 20)),
        "max_batch_size": random.choice((100, 150, 16384)),
        "retry_backoff_ms": random.choice((20, 100)),
        "retry_backoff_max_ms": 500,
    }


def _link(random: Random) -> dict[str, float]:
    link = {"delay_mean_s": random.choice((0.0005, 0.001, 0.003))}
    if random.random() < 0.3:
        link["loss"] = random.choice((0.005, 0.02))
    if random.random() < 0.3:
        link["reset"] = random.choice((0.005, 0.02))
    if random.random() < 0.3:
        link["duplicate"] = random.choice((0.01, 0.05))
    return link


def _swarm(seed: int, policy: str) -> list[str]:
    """Some kinds of fault, and no other."""
    random = Random(f"{seed}/plan/kinds")
    kinds = [kind for kind in (*NODE_FAULTS, *LINK_FAULTS) if random.random() < 0.45]
    if policy == FSYNC and "power_cut_all" not in kinds and random.random() < 0.5:
        kinds.append("power_cut_all")  # what this policy is for
    if "fail_sync" in kinds:
        excluded = random.choice((POWER_CUTS, ("fail_sync",)))
        kinds = [kind for kind in kinds if kind not in excluded]
    return kinds or ["crash"]


def _faults(
    random: Random,
    count: int,
    duration_s: float,
    topics: Sequence[PlannedTopic],
    kinds: Sequence[str],
    brokers: int,
) -> tuple[Fault, ...]:
    """Faults of the given kinds, each kind more or less often."""
    weights = [random.choice((1, 2, 4)) for _ in kinds]
    long = random.choice((0.5, 1.2, 2.5))
    faults = [
        _fault(random, random.choices(kinds, weights)[0], random.uniform(0.3, duration_s), long, topics, brokers)
        for _ in range(count)
    ]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _fault(random: Random, kind: str, at_s: float, long: float, topics: Sequence[PlannedTopic], brokers: int) -> Fault:
    lasts_s = round(random.expovariate(1 / long) + 0.05, 3)
    value = 0.0
    if kind in LINK_FAULTS:
        one, other = random.sample(range(1, brokers + 1), 2)
        target = f"n{one}>n{other}"
    elif kind == "power_cut_all":
        target = "all"
    else:
        topic = random.choice(topics)
        leader = f"{LEADER}:{topic.name}-{random.randrange(topic.partitions)}"
        target = random.choice((leader, leader, CONTROLLER, *(f"n{node}" for node in range(1, brokers + 1))))
    if brokers > VOTERS and kind in {"crash", "power_cut"} and random.random() < 0.25:
        kind, target = "wipe", f"n{brokers}"
    if kind == "jump_clock":
        value = random.choice((-30.0, -2.0, 2.0, 30.0))
    elif kind == "slow_disk":
        value = random.choice((0.1, 0.5))
    return Fault(at_s=round(at_s, 3), kind=kind, target=target, lasts_s=lasts_s, value=value)


def _operations(random: Random, count: int, duration_s: float, topics: Sequence[PlannedTopic]) -> tuple[Operation, ...]:
    """Sends in bursts of a few, as applications make them."""
    invariant(bool(topics), "a plan has a topic")
    producers = random.choice((1, 2, 3))
    operations: list[Operation] = []
    while len(operations) < count:
        at_s = random.uniform(0.0, duration_s)
        client = f"p{random.randint(1, producers)}"
        for burst in range(random.randint(1, 6)):
            topic = random.choice(topics)
            partition = random.randrange(topic.partitions)
            operations.append(
                Operation(at_s=round(at_s + burst * 0.001, 4), client=client, topic=topic.name, partition=partition)
            )
    return tuple(sorted(operations[:count], key=lambda each: each.at_s))


# ---- beside the plain plan -------------------------------------------------------------------------------------------

LOOSE: Final = "loose"
"""The producer with acks=0 or acks=1, where a plan has one."""

RISKY, SCRATCH = "risky", "scratch"
"""A topic whose leaders are elected uncleanly, and one that is deleted and created anew."""

PEOPLE_FAULTS: Final = ("kill_producer", "kill_reader", "delete_records", "topic_lives", *CHANGE_FAULTS)
"""What happens to clients and topics; the rest happens to brokers, disks and links."""


def with_extras(plan: Plan) -> Plan:
    """The plan with what else its seed draws. Each extra has a stream of its own: one more moves no other."""
    for share, add in EXTRAS:
        random = Random(f"{plan.seed}/plan/{add.__name__}")
        if random.random() < share:
            plan = add(plan, random)
    return plan


def _and_faults(plan: Plan, faults: Sequence[Fault]) -> Plan:
    return plan.with_(faults=tuple(sorted((*plan.faults, *faults), key=lambda fault: fault.at_s)))


def _moments(plan: Plan, random: Random, count: int) -> list[float]:
    return [round(random.uniform(0.3, plan.duration_s), 3) for _ in range(count)]


def dying_clients(plan: Plan, random: Random) -> Plan:
    """Producers that die with records under way, readers that begin again where they stood or from the start."""
    producers = sorted({operation.client for operation in plan.operations})
    faults = []
    for at_s in _moments(plan, random, random.randint(1, 3)):
        lasts_s = round(random.expovariate(2.0), 3)
        if random.random() < 0.6:
            faults.append(Fault(at_s=at_s, kind="kill_producer", target=random.choice(producers), lasts_s=lasts_s))
        else:
            from_start = float(random.choice((0, 1)))
            faults.append(Fault(at_s=at_s, kind="kill_reader", target="c1", lasts_s=lasts_s, value=from_start))
    return _and_faults(plan, faults)


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
        Fault(
            at_s=at_s,
            kind="delete_records",
            target=f"{topic.name}-{random.randrange(topic.partitions)}",
            value=random.choice((0.3, 0.7, 1.0)),
        )
        for at_s in _moments(plan, random, random.randint(0 if configs else 1, 3))
    ]
    topics = (replace(topic, configs={**topic.configs, **configs}), *plan.topics[1:])
    return _and_faults(plan.with_(settings={**plan.settings, **settings}, topics=topics), faults)


def topic_lives(plan: Plan, random: Random) -> Plan:
    """A topic that is deleted and created anew under its name."""
    lives = Fault(
        at_s=round(random.uniform(0.2, 2.0), 3),
        kind="topic_lives",
        target=SCRATCH,
        lasts_s=random.choice((0.0, 0.1, 1.0)),
        value=float(random.choice((2, 3, 4))),
    )
    return _and_faults(plan, [lives])


def unclean_topic(plan: Plan, random: Random) -> Plan:
    """A topic that would rather lose records than be without a leader (S20), and faults that make it choose."""
    configs = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    risky = PlannedTopic(name=RISKY, partitions=1, replication_factor=3, configs=configs)
    operations = tuple(
        replace(operation, topic=RISKY, partition=0) if random.random() < 0.4 else operation
        for operation in plan.operations
    )
    faults = []
    for at_s in _moments(plan, random, random.randint(1, 2)):
        # One follower is cut off until it has left the ISR; then the ISR dies as a whole, and that one is there again.
        alone_s = round(random.uniform(2.0, 4.5), 3)
        faults.append(Fault(at_s=at_s, kind="isolate", target=f"{FOLLOWER}:{RISKY}-0", lasts_s=alone_s))
        dies_s, lasts_s = round(at_s + alone_s - 0.2, 3), random.choice((0.5, 2.0, 4.0))
        faults.append(Fault(at_s=dies_s, kind="crash", target=f"{ISR}:{RISKY}-0", lasts_s=lasts_s))
    return _and_faults(plan.with_(topics=(*plan.topics, risky), operations=operations), faults)


def wrong_calendars(plan: Plan, random: Random) -> Plan:
    """Calendars that are minutes or a day off: nothing but timestamps and retention by time may notice."""
    nodes = random.sample(range(1, plan.brokers + 1), random.randint(1, plan.brokers))
    return plan.with_(skew_s={f"n{node}": random.choice((-1800.0, -90.0, 90.0, 86_400.0)) for node in sorted(nodes)})


QUIET_S: Final = 3.5
"""Before a bit rots: it may only where everything is whole."""


def rotten_bits(plan: Plan, random: Random) -> Plan:
    """A bit rots on a disk; somebody reads from the start, and another broker may lose what it has not synced."""
    at_s = round(random.uniform(0.4, 0.7) * plan.duration_s, 3)
    calm = [
        fault
        for fault in plan.faults
        if fault.kind not in {"fail_sync", "disk_full"} and not at_s - QUIET_S < fault.at_s < at_s + 1.0
    ]
    topic = plan.topics[0]
    leader = f"{LEADER}:{topic.name}-{random.randrange(topic.partitions)}"
    target = random.choice((leader, leader, *(f"n{node}" for node in range(1, plan.brokers + 1))))
    lasts_s, folder = round(random.uniform(1.0, 4.0), 3), float(random.choice((0, 1)))
    faults = [
        Fault(at_s=round(at_s + after_s, 3), kind="kill_reader", target="c1", lasts_s=0.1, value=1.0)
        for after_s in (0.2, 0.8, 1.4)
    ]
    faults.append(Fault(at_s=at_s, kind="rot", target=target, lasts_s=lasts_s, value=folder))
    if random.random() < 0.6:
        victim = random.randint(1, plan.brokers)
        kind = "wipe" if victim > VOTERS else "power_cut"
        faults.append(Fault(at_s=round(at_s + 1.0, 3), kind=kind, target=f"n{victim}", lasts_s=0.3))
    return _and_faults(files_only(plan.with_(faults=tuple(calm)), random), faults)


def files_only(plan: Plan, _random: Random) -> Plan:
    """No batches are kept in memory: whoever reads reads from the disk."""
    return plan.with_(settings={**plan.settings, "mk.memory.tails.bytes": "0"})


def poor_links(plan: Plan, random: Random) -> Plan:
    """Single links, one way each, that are slow, or lose, break or double messages, beyond what all links do."""
    faults = []
    for at_s in _moments(plan, random, random.randint(1, 3)):
        one, other = random.sample(range(1, plan.brokers + 1), 2)
        kind, values = random.choice(POOR_LINKS)
        lasts_s = round(random.expovariate(0.7) + 0.2, 3)
        target = f"n{one}>n{other}"
        faults.append(Fault(at_s=at_s, kind=kind, target=target, lasts_s=lasts_s, value=random.choice(values)))
    return _and_faults(plan, faults)


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


def consumer_group(plan: Plan, random: Random) -> Plan:
    """Consumers share a topic, come and go; brokers that coordinate them die. Some groups have nothing to fear."""
    topic = plan.topics[0].name
    drawn = drawn_group(random, plan.duration_s, topic)
    faults = [Fault(**each._asdict()) for each in drawn.faults]
    plan = plan.with_(groups=(drawn.group,), settings={**plan.settings, **drawn.settings})
    if drawn.is_calm:
        plan = plan.with_(faults=(), link={"delay_mean_s": plan.link["delay_mean_s"]}, skew_s={})
    return _and_faults(plan, faults)


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
    return _and_faults(plan, [Fault(**each._asdict()) for each in changes])


def compacted_topic(plan: Plan, random: Random) -> Plan:
    """The first topic is compacted: its records have keys, and some of them delete theirs.

    Not beside damage, which stops compaction until a restart, nor beside a group, which would miss what is replaced.
    """
    settings, keys = drawn_settings(random), random.choice((2, 5, 12))

    def keyed(operation: Operation) -> Operation:
        key = drawn_key(random, keys)
        # Tombstones have no value that tells whose they are, and what a loose producer doubles must be told.
        return replace(operation, key=key.removeprefix(TOMBSTONE) if operation.client == LOOSE else key)

    if plan.groups or any(fault.kind == "rot" for fault in plan.faults):
        return plan
    topic = plan.topics[0]
    operations = tuple(
        keyed(operation) if operation.topic == topic.name else operation for operation in plan.operations
    )
    topics = (replace(topic, configs=compacted(topic.configs)), *plan.topics[1:])
    return plan.with_(topics=topics, operations=operations, settings={**plan.settings, **settings})


EXTRAS: Final = (
    (0.3, dying_clients),
    (0.25, loose_client),
    (0.3, short_logs),
    (0.25, topic_lives),
    (0.2, unclean_topic),
    (0.25, wrong_calendars),
    (0.3, real_consumer),
    (0.25, rotten_bits),
    (0.3, files_only),
    (0.25, poor_links),
    (0.25, consumer_group),
    (0.3, online_changes),
    (0.3, compacted_topic),
)
"""How often each is drawn."""
