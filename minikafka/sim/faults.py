"""The faults of a plan at work: who is hit, what is done, and how it is put right.

Targets are resolved when a fault happens, in the words of ``minikafka/faults.py`` (``leader:orders-0`` is the leader of
that moment). The fault budget of ``plan.py`` is kept here: what would exceed it is carried out as something milder, and
reported as that.

Rules for this file: what a fault did is undone for the node that it hit; a restart never disturbs a node that lives; at
the end of the safety phase everything is put right at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import ClassVar, TypeVar

from minikafka.faults import CLIENT, CLIENT_END, End, Standing, View, links_of, nodes_of, with_any_client
from minikafka.groups.records import OFFSETS_TOPIC
from minikafka.invariant import invariant
from minikafka.sim import message_faults
from minikafka.sim.bit_rot import LOOK_S, BitRot
from minikafka.sim.cluster import SimCluster, node_name
from minikafka.sim.message_faults import HOLD, KILL_GRANTING_VOTER, MESSAGE_FAULTS, Matching
from minikafka.sim.plan import FSYNC, Fault, Plan
from minikafka.sim.verdicts import Drop, Message, Verdict
from minikafka.sim.world import Event
from minikafka.types import NodeId, TopicPartition

At = Callable[[float, Callable[[], None]], None]
Item = TypeVar("Item")

DISK_LEFT_BYTES = 200
"""On a full disk: some small writes still fit, which is worse than none."""

ROT_RETRY_S = 0.07
"""How often it is looked whether everybody is in sync, so that a bit may rot."""

RESTART_S = 0.05
"""How soon a supervisor starts a process again that died as a message was held."""

STOP_S_MAX = 4.0
"""The longest controlled shutdown of a plan's settings at pace 1, and some room."""

SHAPES = {
    "slow_link": "bytes_per_s",
    "lossy_link": "loss",
    "resetting_link": "reset",
    "doubling_link": "duplicate",
    "late_link": "delay_mean_s",
}
"""Kinds of fault by what they change of a link's profile."""

DAMAGING = frozenset({"crash", "power_cut", "power_cut_all", "wipe", "stop", "fail_sync", "disk_full", "rot"})
"""What may take away a replica's records, or its place in the ISR."""


class Faults:
    """Carries out the faults of one run."""

    def __init__(self, plan: Plan, cluster: SimCluster, at: At, tell: Callable[[str], None]) -> None:
        self.marks: Counter[str] = Counter()
        """``fault_crash`` and so on: how often each kind really happened; ``crash_spared`` and so on: how often not."""
        self._plan = plan
        self._cluster = cluster
        self._at = at
        self._tell = tell
        self._disks_failed: set[NodeId] = set()
        self._stopping: set[NodeId] = set()
        self._shaped: dict[tuple[str, str], None] = {}
        self._undo: list[Callable[[], None]] = []
        """Rules between brokers and clients."""
        self._damaged: set[NodeId] = set()
        """Brokers whose power was cut since the cluster was last whole."""
        self._wiped = False
        """And one of them came back with an empty disk."""
        self._is_milder = False
        """What is carried out now is less than the plan has."""
        self.gone: set[NodeId] = set()
        """Brokers that an operator keeps down (``departures.py``): no fault starts them again."""
        self.bit_rot = BitRot(cluster, at, is_current=self._is_current, on_repair=self._lost_its_records)

    def begin(self, fault: Fault) -> None:
        """Let it happen, if whom it would hit exists."""
        nodes = self._resolve(fault.target)
        if not nodes:
            return
        invariant(fault.kind in self.BEGIN, "a known kind of fault", fault=fault)
        self._tell(f"{fault} hit {','.join(map(str, nodes))}")
        if fault.kind in DAMAGING and self.bit_rot.rotten and self._is_too_much(fault, nodes):
            self._stand_still(fault, nodes, f"{fault.kind}_spared")
            return
        self._is_milder = False
        self.BEGIN[fault.kind](self, fault, nodes)
        self.marks[f"fault_{fault.kind}"] += not self._is_milder
        self.marks["coordinator_hit"] += OFFSETS_TOPIC in fault.target

    def _is_too_much(self, fault: Fault, nodes: tuple[NodeId, ...]) -> bool:
        """Some replica is rotten: its own broker may not fail beside, nor the last one who has what it lacks."""
        needs_its_disk = fault.kind in {"fail_sync", "disk_full", "rot"}
        return needs_its_disk or bool(set(nodes) & set(self.bit_rot.nodes)) or self.bit_rot.spares(nodes)

    def end_all(self) -> None:
        """Put everything right: links, disks, stopped and dead processes."""
        cluster = self._cluster
        cluster.heal()
        for undo in self._undo:
            undo()
        for link in self._shaped:
            cluster.sim.network.shape(*link, None)
        for node in cluster.nodes:
            disk = cluster.sim.disk(node_name(node))
            disk.sync_mean_s = self._plan.sync_mean_s
            disk.capacity_bytes = None
            disk.forgive()
            cluster.resume(node)
            if node in self._stopping and node in cluster.living():
                if self.nobody_may_die():
                    self._restart_when_ended(node, STOP_S_MAX * self._plan.pace)
                    continue
                cluster.crash(node)
            self.restart_if_stopped(node)
        self.bit_rot.call_the_operator()

    def _restart_when_ended(self, node: NodeId, patience_s: float) -> None:
        """Start a process again that is stopping: killed it would be one loss too many."""
        cluster = self._cluster
        if node in cluster.living() and not cluster.brokers[node]._stopped.is_set() and patience_s > 0:
            self._at(cluster.sim.loop.time() + LOOK_S, lambda: self._restart_when_ended(node, patience_s - LOOK_S))
            return
        cluster.crash(node)
        self.restart_if_stopped(node)

    def restart_if_stopped(self, node: NodeId) -> None:
        """Start a process that has ended, by itself or by a fault; an operator starts his own."""
        if node not in self.bit_rot.under_repair and node not in self.gone:
            self._cluster.restart(node)

    def explains(self, event: Event) -> bool:
        """Return True if a broker stopped because of what a fault did to its disk."""
        why = str(event.facts["why"])
        is_disk_failure = any(words in why for words in ("disk failed", "sync failed", "no space"))
        return is_disk_failure and any(node_name(node) == event.node for node in self._disks_failed)

    def _resolve(self, target: str) -> tuple[NodeId, ...]:
        """Brokers; of a link, those at its ends."""
        view = self._view()
        if ">" in target:
            links = links_of(with_any_client(target)[0], view)
            return tuple(dict.fromkeys(end for link in links for end in link if end != CLIENT_END))
        return nodes_of(target, view)

    def _links(self, fault: Fault) -> list[tuple[str, str]]:
        """The directed links of a fault that strikes links, by the names of the machines."""
        words, client = with_any_client(fault.target)
        return [
            (_machine(one, client or CLIENT), _machine(other, client or CLIENT))
            for one, other in links_of(words, self._view())
        ]

    def _view(self) -> View:
        cluster = self._cluster
        image = cluster.image()
        partitions = [] if image is None else list(image.sorted_partitions())
        return View(
            cluster.nodes,
            cluster.controller(),
            {
                TopicPartition(topic.name, each.partition): Standing(each.leader, each.replicas, each.isr, each.elr)
                for topic, each in partitions
            },
        )

    def _later(self, fault: Fault, do: Callable[[], None]) -> None:
        self._at(self._cluster.sim.loop.time() + fault.lasts_s, do)

    def _later_for_each(self, fault: Fault, do: Callable[[Item], None], items: Sequence[Item]) -> None:
        def do_all() -> None:
            for each in items:
                do(each)

        self._later(fault, do_all)

    # ---- processes and machines --------------------------------------------------------------------------------------

    def _crash(self, fault: Fault, nodes: tuple[NodeId, ...]) -> None:
        if self._is_spared(fault, nodes, "crash_spared"):
            return
        for node in nodes:
            self._cluster.crash(node)
        self._restart_later(fault, nodes)

    def _is_spared(self, fault: Fault, nodes: tuple[NodeId, ...], mark: str) -> bool:
        """While a machine that lost what it had is not whole again no other process dies: it is stopped and resumed."""
        if self.nobody_may_die():
            self._stand_still(fault, tuple(node for node in nodes if node not in self._damaged), mark)
            return True
        return False

    def nobody_may_die(self) -> bool:
        """Return True if the fault budget allows no process to be killed now."""
        if not self._damaged or not (self._wiped or self._plan.policy != FSYNC):
            return False
        if not self._cluster.is_settled():
            return True
        self._damaged.clear()
        self._wiped = False
        return False

    def _stand_still(self, fault: Fault, nodes: tuple[NodeId, ...], mark: str) -> None:
        """The budget allows no more than SIGSTOP."""
        self._note_milder(mark, f"{','.join(map(str, nodes)) or 'nobody'} only stands still (SIGSTOP)")
        self._pause(fault, nodes)

    def _kill_instead(self, fault: Fault, nodes: tuple[NodeId, ...], mark: str) -> None:
        """The budget leaves the disks alone."""
        self._note_milder(mark, "the processes are killed (kill -9), the disks keep all they were given")
        self._crash(fault, nodes)

    def _note_milder(self, mark: str, what: str) -> None:
        self._is_milder = True
        self.marks[mark] += 1
        self._tell(f"  {mark}: {what}")

    def _restart_later(self, fault: Fault, nodes: tuple[NodeId, ...]) -> None:
        self._later_for_each(fault, self.restart_if_stopped, nodes)

    def _power_cut(self, fault: Fault, nodes: tuple[NodeId, ...]) -> None:
        forgetful = tuple(node for node in nodes if self._has_forgotten(node))
        if forgetful and self._plan.within_budget:
            # The disk says that it is well, and would come back with zeros: only the process is killed.
            self._kill_instead(fault, forgetful, "power_cut_spared")
            nodes = tuple(node for node in nodes if node not in forgetful)
            if not nodes:
                return
        is_wiped = bool(self._damaged) and self._wiped
        is_limited = self._plan.within_budget and (is_wiped or self._plan.policy != FSYNC)
        if is_limited and not (self._keeps_a_whole_replica(nodes) or self._is_elr_only(nodes)):
            self._kill_instead(fault, nodes, "power_cut_spared")
            return
        self._cluster.power_cut(*nodes)
        self._damaged.update(nodes)
        self._restart_later(fault, nodes)

    def _has_forgotten(self, node: NodeId) -> bool:
        """Return True if a sync of its disk has failed or is about to fail."""
        disk = self._cluster.sim.disk(node_name(node))
        return disk.failed_in is not None or disk.is_failing

    def _is_elr_only(self, victims: tuple[NodeId, ...]) -> bool:
        """Return True if no ISR needs these, and the last member of every ISR that is too small is alive.

        What an eligible leader replica loses with its power, that member still has, and until everything is whole it is
        not killed (``_is_spared``).
        """
        cluster = self._cluster
        image = cluster.image()
        if image is None or self._damaged:
            return False
        living = [node for node in cluster.living() if node not in victims and self._is_current(node)]
        states = [state for _, state in image.sorted_partitions()]
        if any(set(state.isr) & set(victims) or not set(state.isr) & set(living) for state in states):
            return False
        return any(set(state.elr) & set(victims) for state in states)

    def _wipe(self, fault: Fault, nodes: tuple[NodeId, ...]) -> None:
        """The machine dies and comes back with an empty disk."""
        cluster = self._cluster
        invariant(not set(nodes) & set(cluster.voters), "a voter's disk is not wiped", nodes=nodes)
        if not self._keeps_a_whole_replica(nodes):
            self._kill_instead(fault, nodes, "wipe_spared")
            return
        for node in nodes:
            cluster.crash(node)
            cluster.wipe(node)
        self._damaged.update(nodes)
        self._wiped = True
        self._restart_later(fault, nodes)

    def _rot(self, fault: Fault, nodes: tuple[NodeId, ...]) -> None:
        """A bit flips on a disk, in what everybody else has: as soon as that is so."""
        (node,) = nodes
        may_rot = not (self.bit_rot.rotten or self._damaged or node in self._disks_failed) and self._is_in_sync()
        if may_rot and self.bit_rot.begin(node, lasts_s=fault.lasts_s, folder=bool(fault.value)):
            self.marks["bit_rotten_on_leader"] += self._leads_what_is_rotten(node)
            self._disks_failed.add(node)
            return
        self._at(self._cluster.sim.loop.time() + ROT_RETRY_S, lambda: self._rot(fault, nodes))

    def _lost_its_records(self, node: NodeId) -> None:
        self._damaged.add(node)
        self._wiped = True

    def _leads_what_is_rotten(self, node: NodeId) -> bool:
        return any(self._cluster.leader_of(name) == node for _, name in self.bit_rot.rotten)

    def _keeps_a_whole_replica(self, victims: tuple[NodeId, ...]) -> bool:
        """Return True if everything is whole now, and one replica of each partition is not on these."""
        image = self._cluster.image()
        if image is None or not self._is_in_sync() or not self._cluster.is_settled():
            return False
        return not any(set(state.isr) <= set(victims) for _, state in image.sorted_partitions())

    def _is_in_sync(self) -> bool:
        """Return True if every broker is up under its present incarnation, and every replica is in its ISR."""
        cluster = self._cluster
        image = cluster.image()
        return (
            image is not None
            and cluster.living() == cluster.nodes
            and all(set(state.isr) == set(state.replicas) for _, state in image.sorted_partitions())
            and all(map(self._is_current, cluster.nodes))
        )

    def _is_current(self, node: NodeId) -> bool:
        """Return True if the registration that the controller has recorded is this process's own."""
        image, broker = self._cluster.image(), self._cluster.brokers[node]
        known = image.brokers.get(node) if image is not None else None
        registered = broker.broker_epoch if hasattr(broker, "lifecycle") else -1
        return known is not None and not known.fenced and known.broker_epoch == registered

    def _pause(self, fault: Fault, nodes: tuple[NodeId, ...]) -> None:
        for node in nodes:
            self._cluster.pause(node)
        self._later_for_each(fault, self._cluster.resume, nodes)

    def _stop(self, fault: Fault, nodes: tuple[NodeId, ...]) -> None:
        """SIGTERM; a process that has not ended when its time is up, which is longer than it may take, is killed."""
        cluster = self._cluster
        for node in nodes:
            broker = cluster.brokers[node]
            if node in cluster.living() and hasattr(broker, "producer_ids"):
                cluster.sim.spawn(node_name(node), broker.stop())
                self._stopping.add(node)

        def start_again() -> None:
            for node in nodes:
                self._stopping.discard(node)
                if node in self.gone:
                    continue
                if cluster.alive(node):
                    cluster.crash(node)
                cluster.restart(node)

        self._at(cluster.sim.loop.time() + max(fault.lasts_s, STOP_S_MAX * self._plan.pace), start_again)

    def _jump_clock(self, fault: Fault, nodes: tuple[NodeId, ...]) -> None:
        for node in nodes:
            self._cluster.sim.jump_clock(node_name(node), fault.value)

    # ---- disks -------------------------------------------------------------------------------------------------------

    def _slow_disk(self, fault: Fault, nodes: tuple[NodeId, ...]) -> None:
        disks = [self._cluster.sim.disk(node_name(node)) for node in nodes]
        for disk in disks:
            disk.sync_mean_s = fault.value

        def fast_again() -> None:
            for disk in disks:
                disk.sync_mean_s = self._plan.sync_mean_s

        self._later(fault, fast_again)

    def _fail_sync(self, fault: Fault, nodes: tuple[NodeId, ...]) -> None:
        """The process ends by its next sync."""
        if self._is_spared(fault, nodes, "fail_sync_spared"):
            return
        for node in nodes:
            self._disks_failed.add(node)
            self._cluster.sim.disk(node_name(node)).fail_next_sync()
        self._restart_later(fault, nodes)

    def _disk_full(self, fault: Fault, nodes: tuple[NodeId, ...]) -> None:
        """No room for anything more; brokers that stopped for it are started when there is room again."""
        if self._is_spared(fault, nodes, "disk_full_spared"):
            return
        disks = [self._cluster.sim.disk(node_name(node)) for node in nodes]
        self._disks_failed.update(nodes)
        for disk in disks:
            disk.capacity_bytes = disk.used_bytes() + DISK_LEFT_BYTES

        def room_again() -> None:
            for disk, node in zip(disks, nodes, strict=True):
                disk.capacity_bytes = None
                self.restart_if_stopped(node)

        self._later(fault, room_again)

    # ---- links -------------------------------------------------------------------------------------------------------

    def _isolate(self, fault: Fault, nodes: tuple[NodeId, ...]) -> None:
        for node in nodes:
            self._cluster.cut_off(node)
        self._later_for_each(fault, self._cluster.sim.network.heal, list(map(node_name, nodes)))

    def _cut(self, fault: Fault, _: tuple[NodeId, ...]) -> None:
        links = self._links(fault)
        if fault.kind == "cut_both":
            links += [(other, one) for one, other in links]
        self._later_for_each(fault, lambda heal: heal(), [self._cut_link(*link) for link in links])

    def _cut_link(self, source: str, target: str) -> Callable[[], None]:
        """Lose everything from one machine to another, or to or from all clients; the result undoes it."""
        network = self._cluster.sim.network
        if CLIENT not in (source, target):
            network.cut(source, target)
            return partial(network.heal, source, target)
        brokers = frozenset(map(node_name, self._cluster.nodes))
        network.tell("link_cut", source, target=target)

        def is_at(end: str, machine: str) -> bool:
            return machine not in brokers if end == CLIENT else machine == end

        def rule(message: Message) -> Verdict | None:
            return Drop() if is_at(source, message.source) and is_at(target, message.target) else None

        undo = network.rule(rule)
        self._undo.append(undo)
        return undo

    def _shape(self, fault: Fault, _: tuple[NodeId, ...]) -> None:
        """Links, one way, that are worse than the others."""
        network = self._cluster.sim.network
        links = [link for link in self._links(fault) if CLIENT not in link]
        for link in links:
            network.shape(*link, replace(network.profile, **{SHAPES[fault.kind]: fault.value}))
            self._shaped[link] = None

        def as_others(link: tuple[str, str]) -> None:
            self._shaped.pop(link, None)
            network.shape(*link, None)

        self._later_for_each(fault, as_others, links)

    def _clog(self, fault: Fault, _: tuple[NodeId, ...]) -> None:
        network = self._cluster.sim.network
        links = [link for link in self._links(fault) if CLIENT not in link]
        for link in links:
            network.clog(*link)
        self._later_for_each(fault, lambda link: network.release(*link), links)

    # ---- messages ----------------------------------------------------------------------------------------------------

    def _messages(self, fault: Fault, _: tuple[NodeId, ...]) -> None:
        """Messages of one API are lost, late or doubled, or one of them is held."""

        def struck_one(message: Message) -> None:
            self.marks[f"{fault.kind}_struck"] += 1
            if fault.kind == HOLD and fault.value:
                loop = self._cluster.sim.loop
                dies = Fault(at_s=loop.now + fault.value, kind="crash", target=message.source, lasts_s=RESTART_S)
                loop.happen_at(dies.at_s, lambda: self.begin(dies))

        undo = message_faults.begin(
            fault.kind,
            Matching(fault.message, self._links(fault), frozenset(map(node_name, self._cluster.nodes))),
            lasts_s=fault.lasts_s,
            value=fault.value,
            random=Random(f"{self._plan.seed}/messages/{fault}"),
            cluster=self._cluster,
            struck_one=struck_one,
        )
        self._undo.append(undo)
        if fault.kind != HOLD:
            self._later(fault, undo)

    def _kill_granting_voter(self, fault: Fault, nodes: tuple[NodeId, ...]) -> None:
        """Voters die right after they have granted a vote, as far as the budget allows."""
        names = {node_name(node): node for node in nodes if node in self._cluster.voters}

        def kill(name: str) -> None:
            now = self._cluster.sim.loop.time()
            self.begin(Fault(at_s=now, kind="crash", target=f"n{names[name]}", lasts_s=fault.lasts_s))
            self.marks["killed_after_a_vote"] += 1

        self._undo.append(message_faults.on_granted_vote(self._cluster, names, max(1, int(fault.value)), kill))

    BEGIN: ClassVar[dict[str, Callable[[Faults, Fault, tuple[NodeId, ...]], None]]] = {
        "rot": _rot,
        "crash": _crash,
        "power_cut": _power_cut,
        "power_cut_all": _power_cut,
        "wipe": _wipe,
        "pause": _pause,
        "isolate": _isolate,
        "stop": _stop,
        "slow_disk": _slow_disk,
        "jump_clock": _jump_clock,
        "cut": _cut,
        "cut_both": _cut,
        "clog": _clog,
        "slow_link": _shape,
        "lossy_link": _shape,
        "resetting_link": _shape,
        "doubling_link": _shape,
        "late_link": _shape,
        "fail_sync": _fail_sync,
        "disk_full": _disk_full,
        **dict.fromkeys(MESSAGE_FAULTS, _messages),
        KILL_GRANTING_VOTER: _kill_granting_voter,
    }
    """Kinds of fault, and how each begins."""


def _machine(end: End, client: str) -> str:
    return client if end == CLIENT_END else node_name(end)
