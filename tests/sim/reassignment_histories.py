"""Random histories of reassignments: replicas that move, settings that change and brokers that die, in any order.

Every invariant holds, and nothing that was acknowledged is lost (KIP-455, KIP-966).
"""

from __future__ import annotations

import random

from minikafka.client.structs import ConfigResource, NewTopic
from minikafka.errors import InvalidReplicaAssignment, NoReassignmentInProgress, ProtocolError
from minikafka.sim.cluster import SimCluster
from minikafka.sim.watch import Watch
from tests.sim.cluster_kit import ORDERS, Client, simulated, values

BROKERS, VOTERS = 5, 3
STEPS = "send send send send move move cancel crash restart restart minimum prefer wait wait".split()


class ReassignmentHistory:
    """One random walk over a cluster of five brokers, of which at most one is away at a time."""

    def __init__(self, cluster: SimCluster, chance: random.Random) -> None:
        self.cluster, self.chance = cluster, chance
        self.watch = Watch(cluster)
        self.client = Client(cluster)
        self.acknowledged: list[bytes] = []
        self.sent = 0
        self.moved = 0
        placed = NewTopic("orders", replica_assignments={0: (1, 2, 3)})
        self.client.run(self.client.admin.create_topics([placed]))

    def step(self) -> None:
        getattr(self, self.chance.choice(STEPS))()

    def send(self) -> None:
        """A few records; those that are acknowledged count."""
        for _ in range(self.chance.randint(1, 5)):
            value = b"%d" % self.sent
            self.sent += 1
            try:
                self.client.send(value)
            except ProtocolError:
                continue
            self.acknowledged.append(value)

    def move(self) -> None:
        """To two or three brokers, whichever they are; also while another move is under way."""
        target = tuple(self.chance.sample(range(1, BROKERS + 1), self.chance.choice((2, 3))))
        [error] = self.client.run(self.client.admin.alter_partition_reassignments({ORDERS: target})).values()
        assert error is None or isinstance(error, InvalidReplicaAssignment)
        self.moved += error is None

    def cancel(self) -> None:
        [error] = self.client.run(self.client.admin.alter_partition_reassignments({ORDERS: None})).values()
        assert error is None or isinstance(error, InvalidReplicaAssignment | NoReassignmentInProgress)

    def crash(self) -> None:
        if len(self.cluster.living()) == BROKERS:
            self.cluster.crash(self.chance.randint(1, BROKERS))

    def restart(self) -> None:
        for node in set(self.cluster.nodes) - set(self.cluster.living()):
            self.cluster.restart(node)

    def minimum(self) -> None:
        told = {"min.insync.replicas": str(self.chance.randint(1, 2))}
        self.client.run(
            self.client.admin.incremental_alter_configs([ConfigResource("topic", "orders", told)], wait=False)
        )

    def prefer(self) -> None:
        self.client.run(self.client.admin.elect_leaders("preferred"))

    def wait(self) -> None:
        self.cluster.run_for(self.chance.choice((0.05, 0.5, 5.0)))

    def end(self) -> None:
        """All brokers are back, nothing is under way: what was acknowledged is there, in order, on every replica alike."""
        self.restart()
        self.cluster.settle(120.0)
        self.cluster.until(lambda: not self.cluster.partition(ORDERS).assignment.under_way, 120.0, "an end of moves")
        self.client.send(b"last")
        self.cluster.settle(60.0)
        state = self.cluster.partition(ORDERS)
        held = values(self.cluster, state.leader)
        assert [each for each in held if each in set(self.acknowledged)] == self.acknowledged
        assert [values(self.cluster, node) for node in state.replicas] == [held] * len(state.replicas)
        others = [node for node in self.cluster.nodes if node not in state.replicas]
        assert [self.cluster.replica(node, ORDERS) for node in others] == [None] * len(others)
        assert [str(each) for each in self.watch.violations] == []


def play(seed: int) -> int:
    """Play a history of 40 steps; return how many moves the controller accepted."""
    with simulated(f"moves-{seed}", brokers=BROKERS, voters=VOTERS, replica_lag_time_max_ms="3000") as cluster:
        history = ReassignmentHistory(cluster, random.Random(seed))
        for _ in range(40):
            history.step()
        history.end()
        history.watch.close()
        return history.moved
