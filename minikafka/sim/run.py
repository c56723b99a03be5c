"""Run a plan: boot, faults under load while invariants are watched, then peace and convergence, then the verdict.

1. *Safety*: faults happen, clients work, every step is watched. The first violation ends the run.
2. *Liveness*: faults are put right, everybody is started; everything must converge within a virtual deadline.
   "Not converged" names what is still missing.
3. *Validations*: replicas equal byte by byte below their watermarks, every disk recovers to the same log, and the
   history of the clients through the checker.

:class:`Report` is what came of it, and the failure as a developer sees it.

Rule for this file: virtual seconds and steps only; the same plan gives the same report, trace included.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from minikafka.check import Checker, Expectations, LogBatch, Recorder, ReplicaBatches, compare_replicas, value_id
from minikafka.check.history import Acknowledged, Poll, Send
from minikafka.check.history import Operation as HistoryOperation
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.invariant import InvariantViolation
from minikafka.log.log_directory import LogDirectory
from minikafka.log.partition_log import PartitionLog
from minikafka.ports import World
from minikafka.sim.changes import expiring_topics
from minikafka.sim.cluster import BOOT_S, CLUSTER_ID, NotReached, SimCluster, node_name
from minikafka.sim.consumer_watch import ConsumerWatch
from minikafka.sim.departures import DEPARTURES, Departures
from minikafka.sim.faults import Faults
from minikafka.sim.group_plans import MEMBER_FAULTS
from minikafka.sim.group_workload import GroupWorkloads
from minikafka.sim.kafka_link import watch_kafka_sessions
from minikafka.sim.log_invariants import LogContents, LogInOrder, broken_sequence, disorder, last_batches
from minikafka.sim.loop import Livelock, SeededChoice
from minikafka.sim.losses import DoubledRecords, Losses, unclean_topics
from minikafka.sim.plan import Fault, Plan
from minikafka.sim.plan_features import CLIENT_FAULTS
from minikafka.sim.power_watch import PowerWatch
from minikafka.sim.replica_view import Violation
from minikafka.sim.sim_clients import SimClients
from minikafka.sim.tenant_plans import SECRETS, has_tenants
from minikafka.sim.tenants import Tenants
from minikafka.sim.transaction_book import CommittedTransactions
from minikafka.sim.transactor_plans import TRANSACTOR_FAULTS
from minikafka.sim.transactors import TRANSACTIONAL_TOPICS, Transactors
from minikafka.sim.verdicts import LinkProfile
from minikafka.sim.watch import LOSSES, Watch
from minikafka.sim.workload import READ_PAUSE_S
from minikafka.sim.world import SimWorld
from minikafka.transactions.records import TRANSACTIONS_TOPIC
from minikafka.types import Epoch, NodeId, Offset, TopicPartition
from minikafka.wire.batch import RecordBatch, split
from minikafka.wire.garbage import without_collection
from minikafka.wire.records import decode_batch


@dataclass(slots=True, kw_only=True)
class Report:
    """One run of one plan."""

    plan: Plan
    violations: list[Violation] = field(default_factory=list)
    virtual_s: float = 0.0
    steps: int = 0
    trace: str = ""
    """sha256 over every step and event; empty: nobody asked for it, and the run passed."""
    marks: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    """How many sends were acknowledged, failed, unknown; how many records were read."""
    named: list[str] = field(default_factory=list)
    """Losses that the plan's settings allow, by the history: acks=0, acks=1, unclean elections."""
    table: str = ""
    """The state at the end."""
    story: list[str] = field(default_factory=list)
    """The last events before the end."""
    faults: list[str] = field(default_factory=list)
    """What was done to the cluster, with who was hit."""

    @property
    def ok(self) -> bool:
        return not self.violations

    @property
    def failure(self) -> str | None:
        """The name of the first violation: what the shrinker keeps."""
        return self.violations[0].name if self.violations else None

    def render(self, *, replay: str = "") -> str:
        """The failure for people; a line for a run that passed."""
        plan = self.plan
        counts = " ".join(f"{name}={count}" for name, count in sorted(self.outcomes.items()))
        if self.ok:
            return f"passed   seed {plan.seed}   t={self.virtual_s:.3f}   step {self.steps:,}   {counts}"
        first = self.violations[0]
        lines = [f"FAILED {first.name}   seed {plan.seed}   t={first.time:.3f}   step {first.step:,}"]
        lines.append(f"  {first.what}")
        lines += [f"  also {each}" for each in self.violations[1:4]]
        if len(self.violations) > 4:
            lines.append(f"  and {len(self.violations) - 4} more")
        lines += ["", self.table, ""]
        lines += [f"  {fault}" for fault in self.faults]
        lines += ["", *(f"  {event}" for event in self.story), ""]
        lines.append(f"  replay  {replay or f'python -m minikafka.sim run --seed {plan.seed}'}")
        lines.append(
            f"  shrink  python -m minikafka.sim shrink --seed {plan.seed}"
            f"        {len(plan.faults)} faults, {len(plan.operations)} operations"
        )
        lines.append(f"  {counts}   policy {plan.policy}")
        lines.append(f"  trace sha256 {self.trace[:16]}")
        return "\n".join(lines)


OWN_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SECRETS}) | TRANSACTIONAL_TOPICS
"""Topics whose records are no part of the history of producers and readers."""

CONVERGE_S = 60.0
"""Virtual seconds for everything to become whole once no fault is left; the longest back-off and session fit twice."""

LOOK_EVERY_S = 0.1
FINAL_READ_S = 20.0
"""For the last readers; one that pauses between its fetches has a pause for each record besides."""
STORY_EVENTS = 25


class Stopped(Exception):
    """The run is over before its time: a violation was noted."""


class _Action(NamedTuple):
    at_s: float
    order: int
    """Every action has another one, so that two of them never compare what they do."""
    do: Callable[[], None]


@dataclass(slots=True)
class Schedule:
    """What the run itself does, and when; undoing a fault is put in when the fault happens."""

    actions: list[_Action] = field(default_factory=list)
    next_s: float = 0.0
    """Until when time passes now."""
    interrupt: Callable[[], None] = lambda: None
    """Called when something is to be done before that."""
    _count: int = 0

    def at(self, at_s: float, do: Callable[[], None]) -> None:
        """Call it at a virtual time; equal times keep the order of these calls."""
        self._count += 1
        heapq.heappush(self.actions, _Action(at_s, self._count, do))
        if at_s < self.next_s:
            self.interrupt()


class Run:
    """One run of one plan, with its world."""

    def __init__(self, plan: Plan, *, hashes_trace: bool = True) -> None:
        self.plan = plan
        self._hashes_trace = hashes_trace
        self.sim = SimWorld(plan.seed, choose=SeededChoice(None) if plan.fifo else None)
        self.sim.loop.lists_tasks = False
        self.cluster = SimCluster(self.sim, brokers=plan.brokers, voters=plan.voters, settings=plan.settings)
        self.watch = Watch(self.cluster)
        if not plan.within_budget:
            self.watch.forgiven = LOSSES
        self.watch.may_be_unclean = unclean_topics(plan)
        self.watch.deletions.may_expire = expiring_topics(plan)
        clocks_jump = any(fault.kind == "jump_clock" for fault in plan.faults)
        self.watch.compaction.calendars_are_right = not plan.skew_s and not clocks_jump
        self.report = Report(plan=plan)
        self.schedule = Schedule(interrupt=self.sim.loop.alarm)
        self.checker = Checker()
        self._reported_at: list[float] = []
        """When each line of the history was."""
        self.losses = Losses(
            plan,
            self.watch.unclean_elections,
            self.watch.restarted_at,
            DoubledRecords(self.sim.network.doubled),
            lambda line: self._reported_at[line - 1],
            self.watch.deleted_below,
            self.watch.has_changed_leader,
        )
        self._sends: dict[int, Send] = {}
        self._recorder = Recorder(self._record, self.sim.loop.time)
        self.faults = Faults(plan, self.cluster, self.schedule.at, self.report.faults.append)
        self.watch.rotten, self.watch.were_rotten = self.faults.bit_rot.rotten, self.faults.bit_rot.were_rotten
        self._power = PowerWatch(self.cluster, self.watch.report)
        self._power.rotten, self._power.were_rotten = self.faults.bit_rot.rotten, self.faults.bit_rot.were_rotten
        self.sim_clients = SimClients(
            plan, self.cluster, self._recorder, self.schedule.at, self.report.faults.append, self.watch.report
        )
        self.sim_clients.changes.departed = self.faults.gone
        self.departures = Departures(plan, self.cluster, self.faults, self.schedule.at, self.report.faults.append)
        watch_kafka_sessions(self.sim, self.watch.report)
        self._consumers = ConsumerWatch(self.sim, SimClients.consumers_of(plan), self.watch.report)
        self.group_workloads = GroupWorkloads(
            plan, self.cluster, self.watch, self._recorder, self.schedule.at, self.report.faults.append
        )
        self.transactors = Transactors(
            plan, self.cluster, self.schedule.at, self.report.faults.append, self.watch.report
        )
        if plan.transactors or plan.loops:
            self.watch.also(CommittedTransactions(self.watch.report, lambda: self.watch.were_rotten))
        self.tenants = Tenants(plan, self.cluster, self.watch.report) if has_tenants(plan) else None
        if self.tenants is not None:
            self.cluster.on_boot = self.tenants.watch.attach
        self._held: dict[TopicPartition, list[tuple[Offset, str]]] = {}
        """What the partitions of users' topics hold at the end."""
        self._events_seen = 0

    def _record(self, operation: HistoryOperation) -> None:
        self._reported_at.append(self.sim.loop.time())
        self.checker.feed(operation)
        self.report.outcomes[operation.type] += 1
        match operation:
            case Send():
                self._sends[operation.op] = operation
            case Acknowledged(offset=int(offset)):
                sent = self._sends[operation.op]
                if self.losses.waits_for_commit(sent.process):
                    partition = sent.partition if operation.partition is None else operation.partition
                    self._look_at_promise("acknowledged", sent.topic, partition, offset, sent.value)
            case Poll(records=records) if records:
                offset, value = max(records)
                self._look_at_promise("read", operation.topic, operation.partition, offset, value)

    def _look_at_promise(self, what: str, topic: str, partition: int | None, offset: Offset, value: str) -> None:
        """What a client is promised is committed by then: loss would show that only if something failed (S3, S16)."""
        name = TopicPartition(topic, -1 if partition is None else partition)
        end = self.watch.ends.of(name)
        if offset >= end and self.watch.is_looking and name not in self.watch.were_rotten:
            self.watch.report(f"{what}_before_committed", f"{value} at {name}@{offset}; committed is {end}")

    # ---- the phases --------------------------------------------------------------------------------------------------

    @without_collection()
    def run(self) -> Report:
        """All of it; then the world is thrown away."""
        try:
            with self.sim.loop.interruptible():
                self._play_through()
            self._sum_up()
        finally:
            self.sim.loop.failures.clear()  # they were looked at before
            self.sim.loop.close()
        return self.report

    def _play_through(self) -> None:
        try:
            self._boot()
            self._safety()
            self._liveness()
            self._validate()
        except Stopped:
            pass
        except NotReached as missed:
            self.watch.report("not_reached", str(missed).split("\n", maxsplit=1)[0])
        except Livelock as livelock:
            self.watch.report("livelock", str(livelock))

    def _boot(self) -> None:
        profile = LinkProfile(delay_mean_s=self.plan.link.get("delay_mean_s", 0.001))
        self.sim.network.profile = profile
        for node in self.cluster.nodes:
            self.sim.disk(node_name(node)).sync_mean_s = self.plan.sync_mean_s
            self.sim.clock(node_name(node)).skew_s += self.plan.skew_s.get(node_name(node), 0.0)
        self.cluster.boot()
        self._until(self.cluster.is_settled, BOOT_S, "not_booted", lambda: self.cluster.missing() or "")
        for topic in self.plan.topics:
            configs = {name.replace(".", "_"): value for name, value in topic.configs.items()}
            self.cluster.create_topic(
                topic.name, partitions=topic.partitions, replication_factor=topic.replication_factor, **configs
            )
        self._until(self.cluster.is_settled, BOOT_S, "not_booted", lambda: self.cluster.missing() or "")

    def _safety(self) -> None:
        start = self.sim.loop.time()
        self.sim.network.profile = LinkProfile(**self.plan.link)
        names = [
            TopicPartition(topic.name, number)
            for topic in self.plan.topics
            for number in range(topic.partitions)
            if topic.name not in OWN_TOPICS
        ]
        self.sim_clients.start(names)
        self.group_workloads.start()
        self.transactors.start()
        if self.tenants is not None:
            self.tenants.start()
        for fault in self.plan.faults:
            self.schedule.at(start + fault.at_s, partial(self._begin_of(fault), fault))
        self._play(start + self.plan.duration_s)

    def _begin_of(self, fault: Fault) -> Callable[[Fault], None]:
        if fault.kind in MEMBER_FAULTS:
            return self.group_workloads.begin
        if fault.kind in TRANSACTOR_FAULTS:
            return self.transactors.begin
        if fault.kind in DEPARTURES:
            return self.departures.begin
        return self.sim_clients.begin if fault.kind in CLIENT_FAULTS else self.faults.begin

    def _play(self, end_s: float) -> None:
        """Let time pass until ``end_s``, doing what is scheduled."""
        schedule, loop = self.schedule, self.sim.loop
        while True:
            due_s = schedule.actions[0].at_s if schedule.actions else end_s
            schedule.next_s = max(min(due_s, end_s), loop.time())
            loop.run_until_alarm(schedule.next_s)
            self._check()
            if loop.time() < schedule.next_s:
                continue  # something is to be done sooner
            if not schedule.actions or schedule.actions[0].at_s > schedule.next_s:
                return
            heapq.heappop(schedule.actions).do()

    def _check(self) -> None:
        """End the run if something is broken."""
        for failure in self.sim.loop.failures:
            if failure.error is not None and not isinstance(failure.error, (Exception, asyncio.CancelledError)):
                raise failure.error  # not the product's: the timeout of a test, for example, ends the run
            sentence = f"{failure.node or 'world'}: {failure.message} {failure.error!r}"
            self.watch.report(failure_name(failure.error), sentence)
        self.sim.loop.failures.clear()
        self.sim.loop.alarmed = False
        for event in self.sim.journal[self._events_seen :]:
            if event.kind in {"broker_failed", "request_failed"} and not self.faults.explains(event):
                why = str(event.facts.get("traceback") or event.facts["why"])
                self.watch.report(event_failure_name(why), f"{event.node}: {why}")
        self._events_seen = len(self.sim.journal)
        if self.watch.violations:
            raise Stopped

    def _until(self, met: Callable[[], bool], within_s: float, name: str, missing: Callable[[], str]) -> None:
        """Let time pass, looking now and then (a look is dear), until ``met``; else a violation of that name."""
        deadline = self.sim.loop.time() + within_s
        while not met():
            if self.sim.loop.time() >= deadline:
                self.watch.report(name, f"after {within_s:g} s: {missing()}")
                raise Stopped
            self._play(self.sim.loop.time() + LOOK_EVERY_S)

    def _liveness(self) -> None:
        self.schedule.actions.clear()
        self.faults.end_all()
        self.sim_clients.end()
        self.group_workloads.end()
        self.transactors.end()
        if self.tenants is not None:
            self.tenants.end()
        self.sim.network.profile = LinkProfile(delay_mean_s=self.plan.link.get("delay_mean_s", 0.001))
        self._until(self._converged, CONVERGE_S, "not_converged", self._missing)

    def _converged(self) -> bool:
        """As an operator would, start each broker that has ended by itself (a log that failed stays failed till then),
        and elect a leader where no replica may lead by itself.
        """
        for node in self.cluster.nodes:
            self.faults.restart_if_stopped(node)
        self.sim_clients.changes.elect_where_nobody_may_lead()
        self.group_workloads.replace_who_is_gone()
        self.transactors.replace_loops_that_are_gone()
        if self.faults.bit_rot.rotten or self.sim_clients.missing() or not self.cluster.is_settled():
            return False
        if self.departures.missing():
            return False
        return self._late_start() is None and not self.group_workloads.missing() and not self.transactors.missing()

    def _late_start(self) -> str | None:
        """A replica that still begins before its leader does (KAFKA-FACTS 1.5), as a sentence."""
        for name in self.cluster.partition_names():
            leader = self.cluster.replica(self.cluster.leader_of(name), name)
            for node in self.cluster.living():
                replica = self.cluster.replica(node, name)
                if leader is not None and replica is not None and replica.log.start_offset < leader.log.start_offset:
                    return f"{name} on broker {node} begins at {replica.log.start_offset}, its leader's {leader.log!r}"
        return None

    def _missing(self) -> str:
        rotten = [f"{name} on broker {node} is rotten" for node, name in self.faults.bit_rot.rotten]
        sim_clients = [self.sim_clients.missing(), self.group_workloads.missing(), self.transactors.missing()]
        left = [self.cluster.missing(), *sim_clients, self.departures.missing(), self._late_start()]
        return "; ".join(filter(None, [*left, *rotten]))

    # ---- validations -------------------------------------------------------------------------------------------------

    def _validate(self) -> None:
        names = self.cluster.partition_names()
        of_users = [name for name in names if name.topic not in OWN_TOPICS]
        if of_users:
            reader = self.sim_clients.read_with("final", of_users, in_haste=True)
            ends = {name: self._high_watermark(name) for name in of_users}
            self._until(
                lambda: all(reader.positions[name] >= end for name, end in ends.items()),
                FINAL_READ_S + READ_PAUSE_S * sum(ends.values()),  # a fetch reads one segment, maybe of one record
                "not_readable",
                lambda: f"read up to {reader.positions}, the watermarks are {ends}",
            )
        for lives in self.sim_clients.lives:
            lives.tell(self._recorder)
            if TopicPartition(lives.topic, 0) not in names:
                self.watch.report("created_topic_missing", f"{lives.topic} was created, and is not in the metadata")
        for name in names:
            self._compare(name)
        wrong = [report for name in names for report in self._look_at_logs(name)]
        # A reader that began at a log's start missed nothing, though a leader after it may begin earlier.
        self.group_workloads.judge(
            {
                name: [row for row in rows if row[0] >= self.watch.deleted_below(name)]
                for name, rows in self._held.items()
            }
        )
        self._judge_transactions()
        # Time has passed, in which clients may have sent more and the last reader may have read it.
        self.sim_clients.tell_fates()
        self._recover()
        self.checker_verdict(complete=True)
        for report in wrong:  # behind what it made readers see
            self.watch.report(*report)
        self._check()

    def _judge_transactions(self) -> None:
        self.transactors.read_again()
        self._until(lambda: not self.transactors.unread(), FINAL_READ_S, "not_readable", self.transactors.unread)
        places = self.transactors.places
        leaders = {name: self.cluster.replica(self.cluster.leader_of(name), name) for name in places}
        self.transactors.judge(
            {name: list(_raw_batches(leader.log)) for name, leader in leaders.items() if leader is not None}
        )

    def _high_watermark(self, name: TopicPartition) -> int:
        replica = self.cluster.replica(self.cluster.leader_of(name), name)
        return replica.high_watermark if replica is not None else 0

    def _compare(self, name: TopicPartition) -> None:
        """The replicas against each other, every byte, or every key; and each into the history."""
        replicas: list[ReplicaBatches] = []
        read: dict[bytes, list[tuple[Offset, Epoch, str]]] = {}
        """Batches and their records: what most replicas hold is the same."""
        for node in self.cluster.living():
            replica = self.cluster.replica(node, name)
            if replica is None:
                continue
            batches = list(_raw_batches(replica.log))
            start = replica.log.start_offset
            if replica.log.has_gaps:
                # Compaction removes what was deleted. After power cuts some replicas may have a former start again.
                start = max(start, self.watch.deleted_below(name))
            replicas.append(
                ReplicaBatches(
                    node=node,
                    high_watermark=replica.high_watermark,
                    log_start=start,
                    batches=[
                        LogBatch(each.base_offset, each.last_offset, each.leader_epoch, each.data) for each in batches
                    ],
                    is_compacted=replica.log.has_gaps,
                    missed=self.watch.copied.tombstones(node_name(node), name),
                )
            )
            if name.topic in OWN_TOPICS:
                continue
            rows = [row for batch in batches for row in _rows_of(batch, read)]
            self.losses.stands(name, ((epoch, value) for _, epoch, value in rows))
            # The first batch may begin below the log's start.
            self._held[name] = [(at, value) for at, _, value in rows if at >= replica.log.start_offset]
            self._recorder.replica(
                node,
                name.topic,
                name.partition,
                high_watermark=replica.high_watermark,
                log_start=replica.log.start_offset,
                rows=rows,
            )
        for finding in compare_replicas(name, replicas).findings:
            self.watch.report("replicas_differ", f"{finding.place()}: {finding.sentence()}")

    def _look_at_logs(self, name: TopicPartition) -> Iterator[tuple[str, str]]:
        """Each by itself, up to its very end: names and sentences."""
        for node in self.cluster.living():
            replica = self.cluster.replica(node, name)
            if replica is None:
                continue
            wrong = disorder(replica.log)
            if wrong:
                yield LogInOrder.name, f"{name} on broker {node}: {wrong}"
            # A replica that began its log behind what was deleted believes a retry: see ``losses.py``.
            if not replica.log.has_gaps and not any(self.watch.restarted_at(name)):
                wrong = broken_sequence(replica.log)
                if wrong:
                    yield "sequence_broken", f"{name} on broker {node}: {wrong}"

    def _recover(self) -> None:
        """Kill everybody; the logs that open from the disks are those that were there."""
        before: dict[NodeId, dict[TopicPartition, tuple[LogContents, dict[int, object]]]] = {}
        for node in self.cluster.living():
            logs = self.cluster.brokers[node].logs.logs
            before[node] = {name: (LogContents(log, log.start_offset), last_batches(log)) for name, log in logs.items()}
        for node in self.cluster.nodes:
            self.cluster.crash(node)
        for node, held in sorted(before.items()):
            world = self.sim.of(node_name(node))
            opened = self.cluster.run(self._open(node, world), node=node_name(node))
            for name, (was, producers) in sorted(held.items()):
                # The start may go back to where it was when it was last written down.
                log = opened.get(name)
                differs = was.differs(log) or disorder(log) if log is not None else "it is gone"
                if log is not None and not differs and not producers.items() <= last_batches(log).items():
                    differs = f"the last batches of producers were {producers}, and are {last_batches(log)}"
                if differs:
                    self.watch.report("recovery_differs", f"{name} on broker {node}: {differs}")

    async def _open(self, node: NodeId, world: World) -> LogDirectory:
        defaults = self.cluster.config_of(node).topic_defaults()
        return await LogDirectory.open(
            world.disk,
            node_id=node,
            cluster_id=CLUSTER_ID,
            directory_id="",
            config_of=lambda _: defaults,
            events=world.events,
        )

    def checker_verdict(self, *, complete: bool) -> None:
        """What the history says: each kind of finding is a violation of its name, but for losses that are allowed."""
        compacted = {topic.name for topic in self.plan.topics if "compact" in topic.configs.get("cleanup.policy", "")}
        promised = Expectations(
            idempotent=True,
            final_read_complete=complete,
            replicas_complete=complete,
            compacted=frozenset(compacted),
        )
        self._recorder.expect(promised)
        for finding in self.checker.verdict().findings:
            sentence = f"{finding.place()}: {finding.sentence()}"
            if self.losses.allows(finding):
                self.report.named.append(f"{finding.kind}: {sentence}")
                self.report.marks[f"named_{finding.kind}"] += 1
            else:
                self.watch.report(finding.kind, sentence)

    def _sum_up(self) -> None:
        report, loop = self.report, self.sim.loop
        report.violations = self.watch.violations
        report.virtual_s, report.steps = loop.time(), loop.steps
        report.marks += self.sim.marks + self.sim.network.marks + self.faults.marks + self.sim_clients.marks
        report.marks += self.group_workloads.marks + self.transactors.marks + self.departures.marks
        if self.tenants is not None:
            report.marks["done_for_tenants"] = self.tenants.watch.done
        for node in self.cluster.nodes:
            report.marks += self.sim.disk(node_name(node)).marks
        if self._hashes_trace or not report.ok:
            report.trace = loop.trace.hexdigest()
        if not report.ok:
            report.table = self.cluster.table()
            report.story = [str(event)[:220] for event in self.sim.journal[-STORY_EVENTS:]]


def failure_name(error: BaseException | None) -> str:
    """What an unexpected exception is called: a broken invariant by its sentence."""
    if isinstance(error, InvariantViolation):
        return slug(str(error))
    return f"unexpected_{type(error).__name__}" if error is not None else "task_lost"


def event_failure_name(why: str) -> str:
    """The same for a broker that stopped itself, from the text that it left."""
    last = why.strip().rsplit("\n", maxsplit=1)[-1]
    marker = "InvariantViolation: "
    if marker in last:
        return slug(last.split(marker, maxsplit=1)[1])
    if why.startswith("Traceback") or "Traceback" in why:
        return f"unexpected_{last.split(':', maxsplit=1)[0].rsplit('.', maxsplit=1)[-1]}"
    return "broker_failed"


def slug(sentence: str) -> str:
    """``one leader per epoch (seen=2 ...)`` as ``one_leader_per_epoch``."""
    words = sentence.split(" (", maxsplit=1)[0]
    return "_".join("".join(c if c.isalnum() else " " for c in words.lower()).split())


def _raw_batches(log: PartitionLog) -> Iterator[RecordBatch]:
    offset = log.start_offset
    while offset < log.end_offset:
        data = log.read(offset, max_bytes=1 << 20)
        for buffer in data.buffers:
            for batch in split(buffer):
                yield batch
                offset = batch.next_offset


def _rows_of(batch: RecordBatch, read: dict[bytes, list[tuple[Offset, Epoch, str]]]) -> list[tuple[Offset, Epoch, str]]:
    data = bytes(batch.data)
    rows = read.get(data)
    if rows is None:
        rows = read[data] = [
            (record.offset, batch.leader_epoch, value_id(record.value)) for record in decode_batch(batch)
        ]
    return rows


@without_collection()
def run(plan: Plan, *, hashes_trace: bool = True) -> Report:
    """Run a plan and report what came of it.

    The garbage collector comes when the run is over and its world is out of reach: it then frees all of it at once.
    Earlier it would look at the whole world again and again, and find nothing.

    Args:
        plan: The plan.
        hashes_trace: Whether the report of a run that passed has the hash of its trace, which takes 3 % of the run.
    """
    return Run(plan, hashes_trace=hashes_trace).run()
