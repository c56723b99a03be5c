"""Random histories of one partition over the real replicas, with the invariants of KAFKA-FACTS 10 after every step.

Clean elections (from the ISR), by a controller that leaders ask asynchronously; leaders that do not know that they are
deposed; fetches whose three steps are taken, delayed and lost at will; kills that keep the page cache. Under these
nothing that was exposed below a high watermark may ever change. With arbitrary elections records may be lost, but logs
still never diverge, and always become equal in the end.

Rule for this file: it draws and checks; the replicas are the product's, the postman is the lab's.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from minikafka.config import TopicConfig
from minikafka.lab.control import ScriptedControl
from minikafka.lab.lab_cluster import LabCluster
from minikafka.lab.node import Held, Node, Settings
from minikafka.replication.follower import FollowerReplica, TruncateByLeaderEpoch, TruncationRule
from minikafka.types import NO_EPOCH, NodeId, Offset

NODES = (1, 2, 3)
LAG_S = 30.0


class Violation(Exception):
    """An invariant does not hold; the message says which."""


class History:
    """One seed's history."""

    def __init__(
        self,
        seed: int,
        *,
        truncation: TruncationRule | None = None,
        clean: bool = True,
        on: Callable[[LabCluster], LabCluster] = lambda stage: stage,
    ) -> None:
        """``on`` makes another cluster of the same nodes (``tests/scenarios/production.py``)."""
        self.random = Random(f"replication/{seed}")
        self.clean = clean
        settings = Settings(
            topic=TopicConfig(),
            lag_time_max_s=LAG_S,
            fetch_wait_max_s=0.5,
            truncation=truncation or TruncateByLeaderEpoch(),
        )
        self.told: list[str] = []
        self.counts: dict[str, int] = {}
        self.control = ScriptedControl(NODES)
        nodes = [Node(node, str(node), settings, self._event) for node in NODES]
        self.lab = on(LabCluster(nodes, self.control, self.told))
        self.exposed: dict[Offset, Held] = {}
        self.writers: dict[int, NodeId] = {}
        self.watermarks: dict[tuple[NodeId, int], Offset] = {}
        self.values = 0
        for node in self.lab.nodes.values():
            node.start()
        self.lab.spread()

    def _event(self, kind: str, /, **facts: object) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1

    # ---- what may happen ---------------------------------------------------------------------------------------------

    def play(self, steps: int) -> None:
        """``steps`` random steps, then a quiet end. Raises Violation, or what the rules raise."""
        actions = (
            [self.produce] * 15
            + [self.fetch] * 20
            + [self.send] * 8
            + [self.handle] * 12
            + [self.deliver] * 12
            + [self.lose] * 3
            + [self.elect] * 5
            + [self.go_deaf] * 4
            + [self.hear] * 6
            + [self.kill] * 2
            + [self.restart] * 5
            + [self.pass_time] * 5
            + [self.check_isr] * 8
            + [self.settle] * 10
        )
        for _ in range(steps):
            self.random.choice(actions)()
            self.check()
        self.end()

    def _one(self, nodes: list[Node]) -> Node | None:
        return self.random.choice(nodes) if nodes else None

    def _up(self) -> list[Node]:
        return [node for node in self.lab.nodes.values() if node.up]

    def produce(self) -> None:
        node = self._one([node for node in self._up() if node.leads()])
        if node is not None:
            texts = [str(self.values + number) for number in range(self.random.choice((1, 1, 2)))]
            self.values += len(texts)
            acks = self.random.choice((-1, 1))
            self.lab.produce(node, texts, acks=acks, believing=NO_EPOCH, timeout_s=60)

    def _followers(self) -> list[Node]:
        return [n for n in self._up() if n.partition is not None and isinstance(n.partition.role, FollowerReplica)]

    def fetch(self) -> None:
        node = self._one(self._followers())
        fetch = self.lab.send(node) if node is not None else None
        if fetch is not None:
            self.lab.handle(fetch, wait=False)
            if fetch.answer is not None:
                self.lab.deliver(fetch)

    def send(self) -> None:
        node = self._one(self._followers())
        if node is not None:
            self.lab.send(node)

    def _under_way(self, *, answered: bool) -> list[NodeId]:
        return [each.node for each in self.lab.fetches.values() if (each.answer is not None) is answered]

    def handle(self) -> None:
        nodes = self._under_way(answered=False)
        if nodes:
            self.lab.handle(self.lab.fetches[self.random.choice(nodes)], wait=False)

    def deliver(self) -> None:
        nodes = self._under_way(answered=True)
        if nodes:
            self.lab.deliver(self.lab.fetches[self.random.choice(nodes)])

    def lose(self) -> None:
        nodes = self._under_way(answered=True)
        if nodes:
            self.lab.lose(self.lab.fetches[self.random.choice(nodes)])

    def elect(self) -> None:
        """An election; the old leader, and those that are down, may stay in the ISR or leave it."""
        state = self.control.news().state
        candidates = [node for node in (state.isr if self.clean else NODES) if self.lab.nodes[node].up]
        if candidates:
            chosen = self.random.choice(candidates)
            staying = [node for node in state.isr if node == chosen or self.random.random() < 0.6]
            self.control.elect(chosen, staying)
            self.lab.spread()

    def go_deaf(self) -> None:
        node = self._one(self._up())
        if node is not None:
            node.listens = False

    def hear(self) -> None:
        node = self._one([node for node in self._up() if not node.listens])
        if node is not None:
            node.listens = True
            self.lab.tell(node)

    def kill(self) -> None:
        node = self._one(self._up())
        if node is not None:
            if self.random.random() < 0.5:
                node.checkpoint()
            self.lab.end(node)
            node.listens = True

    def restart(self) -> None:
        node = self._one([node for node in self.lab.nodes.values() if not node.up])
        if node is not None:
            self.lab.start(node)

    def pass_time(self) -> None:
        self.lab.now += self.random.choice((1.0, 10.0, LAG_S + 1))

    def check_isr(self) -> None:
        node = self._one([node for node in self._up() if node.leads()])
        if node is not None:
            self.lab.check_isr(node)

    def settle(self) -> None:
        node = self._one([self.lab.nodes[node] for node in self.lab.proposals])
        if node is not None:
            self.lab.settle_proposal(node)

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """KAFKA-FACTS 10 after a step."""
        self.lab.settle_producers()
        self.told.clear()
        logs = {node.id: node.records() for node in self._up()}
        self._check_bounds()
        self._check_matching(logs)
        if self.clean:
            self._check_committed(logs)

    def _check_committed(self, logs: dict[NodeId, list[Held]]) -> None:
        """Invariants 3 (StrongIsr) and 10: for every replica that believes it leads."""
        members = self.control.news().state.isr
        for node in self._up():
            role = node.leads()
            if role is None:
                continue
            below = logs[node.id][: role.high_watermark]
            for held in below:
                if self.exposed.setdefault(held.offset, held) != held:
                    raise Violation(f"exposed {self.exposed[held.offset]} has become {held} on {node.name}")
            for member in members:
                if member in logs and logs[member][: role.high_watermark] != below:
                    raise Violation(f"ISR member {member} lacks what {node.name} has committed")

    def _check_bounds(self) -> None:
        """Invariants 8, 9 and 12."""
        for node in self._up():
            seat = node.seat
            if not seat.log.start_offset <= seat.high_watermark <= seat.log.end_offset:
                raise Violation(f"watermark outside the log: {seat!r}")
            role = node.leads()
            if role is None:
                continue
            if self.writers.setdefault(role.epoch, node.id) != node.id:
                raise Violation(f"two leaders in epoch {role.epoch}")
            if role.high_watermark < self.watermarks.get((node.id, role.epoch), 0):
                raise Violation(f"the watermark fell within an epoch: {role!r}")
            self.watermarks[node.id, role.epoch] = role.high_watermark

    def _check_matching(self, logs: dict[NodeId, list[Held]]) -> None:
        """Invariants 6 and 7: the same offset and epoch means the same record and the same past."""
        for one, mine in logs.items():
            if [held.epoch for held in mine] != sorted(held.epoch for held in mine):
                raise Violation(f"epochs fall along the log of {one}")
            for other, theirs in logs.items():
                if other <= one:
                    continue
                agree = [
                    index
                    for index, (left, right) in enumerate(zip(mine, theirs, strict=False))
                    if left.epoch == right.epoch
                ]
                if agree and mine[: agree[-1] + 1] != theirs[: agree[-1] + 1]:
                    raise Violation(f"{one} and {other} agree at {agree[-1]} and differ before it")

    def end(self) -> None:
        """Everybody comes back, somebody of the ISR leads, all catch up: one log, with everything promised by acks=all."""
        lab = self.lab
        for node in lab.nodes.values():
            if not node.up:
                lab.start(node)
            node.listens = True
            lab.tell(node)
        lab.fetches.clear()
        state = self.control.news().state
        self.control.elect(state.isr[0], state.isr)
        lab.spread()
        for _ in range(40):
            for node in self._followers():
                fetch = lab.send(node)
                if fetch is not None:
                    lab.handle(fetch, wait=False)
                    if fetch.answer is not None:
                        lab.deliver(fetch)
        self.check()
        logs = [node.records() for node in lab.nodes.values()]
        if any(log != logs[0] for log in logs):
            raise Violation("the logs never become equal")
        present = {held.offset: held.value for held in logs[0]}
        for each in lab.promised:
            if self.clean and each.why.endswith("acks=all") and present.get(each.offset) != each.value:
                raise Violation(f"{each.value} was acknowledged with acks=all and is gone")
