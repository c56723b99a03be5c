"""The consumer groups of a plan: who belongs to them, and what happens to their members.

===================  ==================================================================================================
``kill_member w1``   kill -9, so that its session has to end; ``lasts_s`` later another process begins on its machine
``stop_member``      it commits and leaves in good order, and comes back ``lasts_s`` later
``stall_member``     it asks for no records for ``lasts_s``: longer than max.poll.interval.ms, and it is out
``pause_member``     SIGSTOP for ``lasts_s``: it comes back as a zombie that goes on with what it was at
``isolate_member``   no message from or to it for ``lasts_s``
``twin_member``      of a static member: it is stopped by SIGSTOP, and a second process takes its instance id
``lose_member``      kill -9 of every process of this member; nobody ever replaces it, so its session has to end
``migrate_member``   it leaves, in good order or by kill -9, and another process of the other protocol has its place
``expel_member``     from its next OffsetFetch on its requests are lost until its session has ended; the answer to that
                     OffsetFetch arrives after it has learned that it is expelled
===================  ==================================================================================================

Rule for this file: in the end each post of a group is held by one process that lives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from minikafka.check import Recorder
from minikafka.check.groups import GroupBook
from minikafka.coordination.rule import partition_of
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.invariant import invariant
from minikafka.sim.cluster import SimCluster
from minikafka.sim.consumer_group_watch import ConsumerGroupWatch
from minikafka.sim.faults import At
from minikafka.sim.group_members import WorkloadMember
from minikafka.sim.group_plans import MIGRATE
from minikafka.sim.group_watch import GroupWatch
from minikafka.sim.heartbeat_member import HeartbeatMember
from minikafka.sim.migration_watch import MigrationWatch
from minikafka.sim.plan import CLASSIC, CONSUMER, MIGRATING, Fault, Plan, PlannedGroup
from minikafka.sim.verdicts import Drop, Message, Verdict
from minikafka.sim.watch import Watch
from minikafka.sim.workload import SUCCESSOR
from minikafka.types import Offset, TopicPartition

TWIN = "b"
"""The machine ``w1b`` is where the second process of ``w1``'s instance runs."""

OF_MEMBERS: Final = frozenset({"Heartbeat", "JoinGroup", "SyncGroup", "OffsetFetch", "OffsetCommit", "LeaveGroup"})
"""APIs by which a member is heard."""

LEARNS_WITHIN_S: Final = 5.0
"""A member whose session has ended is waited for this long to learn it by a heartbeat."""


Member: TypeAlias = WorkloadMember | HeartbeatMember
"""Of the classic protocol, or of the consumer protocol."""


@dataclass(slots=True)
class _Post:
    """What one machine of the plan is to be: a member, until it is replaced for good."""

    machine: str
    instance: str | None
    member: Member | None = None
    protocol: str = CLASSIC
    """Of its next process, in a group whose members change it."""
    holders: list[Member] = field(default_factory=list)
    """All that ever were."""
    is_lost: bool = False
    """Its member died for good."""


class GroupWorkload:
    """One group of one run."""

    def __init__(
        self,
        group: PlannedGroup,
        cluster: SimCluster,
        recorder: Recorder,
        book: GroupBook,
        at: At,
        tell: Callable[[str], None],
    ) -> None:
        self.marks: Counter[str] = Counter()
        self.group = group
        self._cluster = cluster
        self._recorder = recorder
        self._book = book
        self._at = at
        self._tell = tell
        self._processes: Counter[str] = Counter()
        self._posts = {
            machine: _Post(machine, machine if machine in group.static else None) for machine in group.machines
        }
        self._begin: dict[str, Callable[[_Post, Member, Fault], bool]] = {
            "kill_member": self._kill,
            "stop_member": self._stop,
            "stall_member": self._stall,
            "pause_member": self._pause,
            "isolate_member": self._isolate,
            "twin_member": self._twin,
            "lose_member": self._lose,
            "expel_member": self._expel,
            MIGRATE: self._migrate,
        }
        self._is_over = False
        self._undo: list[Callable[[], None]] = []
        """Takes away the network rules of faults that are under way."""

    def start(self) -> None:
        """Start all members, some later."""
        now = self._cluster.sim.loop.time()
        for post in self._posts.values():
            self._come(post, post.machine, now + self.group.late.get(post.machine, 0.0))

    def begin(self, fault: Fault) -> None:
        """Let it happen, if whom it would hit is there."""
        invariant(fault.kind in self._begin, "a known kind of fault", fault=fault)
        post = self._posts.get(fault.target)
        if post is None or post.member is None or not self._is_alive(post.member):
            return
        if self._begin[fault.kind](post, post.member, fault):
            self._tell(str(fault))
            self.marks[f"fault_{fault.kind}"] += 1

    def end(self) -> None:
        """Everything is put right: suspended members go on."""
        self._is_over = True
        for undo in self._undo:
            undo()
        for post in self._posts.values():
            for member in post.holders:
                member.stalls_until = 0.0
                self._cluster.sim.resume(member.machine)
                if isinstance(member, HeartbeatMember):
                    member.rests = True
                    member.is_ending |= member is not post.member  # its twin waits for the instance id

    def replace_who_is_gone(self) -> None:
        """As a supervisor would."""
        for post in self._posts.values():
            self._replace(post)

    def missing(self) -> str:
        """What the group lacks to be whole and through with its topic, as a sentence; empty: nothing."""
        members = [post.member for post in self._posts.values() if post.member is not None and not post.is_lost]
        known = self._known_members()
        if known != len(members):
            return f"the coordinator of group {self.group.name} knows {known} members, {len(members)} are alive"
        if not members:
            return ""
        names = [name for name in self._cluster.partition_names() if name.topic == self.group.topic]
        generations = sorted({member.generation for member in members})
        owned = sorted(name for member in members for name in member.owned)
        if len(generations) > 1 or owned != names:
            parts = ", ".join(f"{m.process} g{m.generation} {list(map(str, m.owned))}" for m in members)
            return f"group {self.group.name} is not whole: {parts}"
        for name in names:
            replica = self._cluster.replica(self._cluster.leader_of(name), name)
            if replica is None:
                return f"{name} has no leader"
            committed, end = self._book.committed(self.group.name, name), replica.high_watermark
            if self.group.protocol == CONSUMER:
                end = 1
            if committed < end and replica.log.start_offset < end:
                return f"group {self.group.name} has committed {committed} of {name}, which ends at {end}"
        return ""

    def _known_members(self) -> int:
        """The number of members by the coordinator's word; -1 while the group has no coordinator."""
        image = self._cluster.image()
        topic = image.topics.get(OFFSETS_TOPIC) if image is not None else None
        if topic is None:
            return 0
        name = TopicPartition(OFFSETS_TOPIC, partition_of(self.group.name, len(topic.partitions)))
        broker = self._cluster.present().get(self._cluster.leader_of(name))
        shard = broker.groups.shards.at(name) if broker is not None else None
        if shard is None or not shard.is_answering:
            return -1
        held = shard.coordinator._consumers.get(self.group.name)
        if held is not None:
            return len(held.group.members)
        group = shard.coordinator._groups.get(self.group.name)
        return len(group.members) if group is not None else 0

    # ---- what happens ------------------------------------------------------------------------------------------------

    def _come(self, post: _Post, machine: str, at_s: float) -> None:
        if post.is_lost:
            return
        self._processes[machine] += 1
        number = self._processes[machine]
        process = machine if number == 1 else f"{machine}{SUCCESSOR}{number}"
        if self.group.protocol == CONSUMER:
            post.member = HeartbeatMember(self._cluster, self.group, process, instance=post.instance, at_s=at_s)
            post.member.rests = self._is_over
        else:
            post.member = WorkloadMember(
                self._cluster,
                self.group,
                process,
                self._recorder,
                self._book,
                instance=post.instance,
                at_s=at_s,
                protocol=post.protocol,
            )
        post.holders.append(post.member)

    def _is_alive(self, member: Member) -> bool:
        return not member.has_ended and self._cluster.sim.loop.alive(member.machine)

    def _replace(self, post: _Post) -> None:
        """By another process on the machine that was the last one, if that one is gone."""
        member = post.member
        invariant(member is not None, "a post was taken once", machine=post.machine)
        if member is not None and not self._is_alive(member):
            self._come(post, member.machine, self._cluster.sim.loop.time())

    def _later(self, fault: Fault, do: Callable[[], None]) -> None:
        self._at(self._cluster.sim.loop.time() + fault.lasts_s, do)

    def _kill(self, post: _Post, member: Member, fault: Fault) -> bool:
        self._cluster.sim.kill(member.machine)
        self._later(fault, partial(self._replace, post))
        return True

    def _stop(self, post: _Post, member: Member, fault: Fault) -> bool:
        member.is_ending = True
        self._later(fault, partial(self._come_back, post))
        return True

    def _migrate(self, post: _Post, member: Member, fault: Fault) -> bool:
        if self.group.protocol != MIGRATING:
            return False
        post.protocol = CONSUMER if post.protocol == CLASSIC else CLASSIC
        self.marks[f"member_became_{post.protocol}"] += 1
        return self._kill(post, member, fault) if fault.value else self._stop(post, member, fault)

    def _come_back(self, post: _Post) -> None:
        """It may not be through with leaving: who cannot leave in time is killed, as by any supervisor."""
        member = post.member
        if member is not None and member.is_ending and self._is_alive(member) and not self.group.is_calm:
            self._cluster.sim.kill(member.machine)
        if member is not None and member.is_ending and self._is_alive(member):
            self._at(self._cluster.sim.loop.time() + 1.0, partial(self._come_back, post))
        else:
            self._replace(post)

    def _stall(self, _post: _Post, member: Member, fault: Fault) -> bool:
        member.stalls_until = self._cluster.sim.loop.time() + fault.lasts_s
        return True

    def _pause(self, _post: _Post, member: Member, fault: Fault) -> bool:
        self._cluster.sim.pause(member.machine)
        self._later(fault, partial(self._cluster.sim.resume, member.machine))
        return True

    def _isolate(self, _post: _Post, member: Member, fault: Fault) -> bool:
        self._cluster.sim.network.isolate(member.machine)
        self._later(fault, partial(self._cluster.sim.network.heal, member.machine))
        return True

    def _twin(self, post: _Post, member: Member, fault: Fault) -> bool:
        if post.instance is None or len(post.holders) > 1:
            return False
        self._cluster.sim.pause(member.machine)
        self._later(fault, partial(self._cluster.sim.resume, member.machine))
        if isinstance(member, HeartbeatMember):
            member.is_replaced = True
        self._come(post, f"{post.machine}{TWIN}", self._cluster.sim.loop.time())
        return True

    def _lose(self, post: _Post, _member: Member, _fault: Fault) -> bool:
        post.is_lost = True
        for machine in dict.fromkeys(each.machine for each in post.holders):
            self._cluster.sim.kill(machine)
        return True

    def _expel(self, post: _Post, _member: Member, _fault: Fault) -> bool:
        session_s = self.group.settings["session_timeout_ms"] / 1000
        self._undo.append(self._cluster.sim.network.rule(_Expulsion(post, session_s, self._cluster.sim.loop.time)))
        return True


class _Expulsion:
    """A network rule: one member's session ends while it waits for the answer to its next OffsetFetch."""

    def __init__(self, post: _Post, session_s: float, now: Callable[[], float]) -> None:
        self._post = post
        self._lasts_s = session_s * 1.2
        self._now = now
        self._ends_at: float | None = None

    def __call__(self, message: Message) -> Verdict | None:
        member = self._post.member
        if member is None or message.source != member.machine:
            return None
        if self._ends_at is None and message.api == "OffsetFetch":
            self._ends_at = self._now() + self._lasts_s
        if self._ends_at is None or message.api not in OF_MEMBERS:
            return None
        # Heartbeats go through first, so that it learns of its expulsion before it learns where to begin.
        waits = message.api == "OffsetFetch" and member.generation >= 0
        late_s = self._now() - self._ends_at
        return Drop() if late_s < 0 or (waits and late_s < LEARNS_WITHIN_S) else None


class GroupWorkloads:
    """All groups of one run, with what watches them; most plans have none."""

    def __init__(
        self,
        plan: Plan,
        cluster: SimCluster,
        watch: Watch,
        recorder: Recorder,
        at: At,
        tell: Callable[[str], None],
    ) -> None:
        self._watch = watch
        migrating = [group.name for group in plan.groups if group.protocol == MIGRATING]
        self._group_watch = GroupWatch(cluster, watch, migrating) if plan.groups else None
        book = self._group_watch.book if self._group_watch is not None else GroupBook(watch.report)
        self._book = book
        heartbeats = any(group.protocol != CLASSIC for group in plan.groups)
        self._consumer_groups = ConsumerGroupWatch(cluster, watch, migrating) if heartbeats else None
        self._migrations = MigrationWatch(cluster, watch, migrating) if migrating else None
        self._crews = [GroupWorkload(group, cluster, recorder, book, at, tell) for group in plan.groups]

    def start(self) -> None:
        """Let members come."""
        for group_workload in self._crews:
            group_workload.start()

    def begin(self, fault: Fault) -> None:
        """Something happens to a member."""
        for group_workload in self._crews:
            group_workload.begin(fault)

    def end(self) -> None:
        """Everything is put right."""
        for group_workload in self._crews:
            group_workload.end()

    def replace_who_is_gone(self) -> None:
        """Each post has a live member."""
        for group_workload in self._crews:
            group_workload.replace_who_is_gone()

    def missing(self) -> str:
        """What a group lacks; empty: nothing."""
        return "; ".join(filter(None, (group_workload.missing() for group_workload in self._crews)))

    def judge(self, logs: Mapping[TopicPartition, Sequence[tuple[Offset, str]]]) -> None:
        """At the end, against what the partitions hold."""
        for group_workload in self._crews:
            group = group_workload.group
            if group.protocol == CONSUMER:
                continue  # its members count, and read nothing
            rows = {name: held for name, held in logs.items() if name.topic == group.topic}
            self._book.judge(group.name, rows, is_calm=group.has_exactly_once)

    @property
    def marks(self) -> Counter[str]:
        """What happened to members, and what groups did."""
        marks = sum((group_workload.marks for group_workload in self._crews), Counter())
        watches = [self._group_watch, self._consumer_groups, self._migrations]
        return sum((each.marks for each in watches if each is not None), marks)
