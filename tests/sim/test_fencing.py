"""Which broker is fenced before its session ends: a process that has died, and no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from minikafka.sim.cluster import SimCluster
from minikafka.sim.world import SimWorld
from minikafka.types import NodeId, TopicPartition

ON = {"mk.fence.on.refused.connection": "true"}
T0 = TopicPartition("orders", 0)

SESSION_S = 9.0
"""The default."""


def why_fenced(sim: SimWorld, node: NodeId) -> list[str]:
    """The cause of each fencing of a broker."""
    told = [event.facts for event in sim.journal if event.kind == "broker_fenced"]
    return [str(facts["why"]) for facts in told if facts["broker"] == node]


def follower_of_nobody(cluster: SimCluster) -> NodeId:
    """A broker that is not the active controller."""
    return next(node for node in cluster.nodes if node != cluster.controller())


def with_topic(sim: SimWorld) -> SimCluster:
    """Three brokers with a topic, all in sync."""
    cluster = SimCluster(sim, settings=ON)
    cluster.boot()
    cluster.settle()
    cluster.create_topic("orders")
    cluster.settle()
    return cluster


@pytest.mark.parametrize("which", ["controller", "other"])
def test_a_killed_process_is_fenced_within_a_second(which: str):
    """The operating system refuses connections in its place, also of the active controller."""
    with SimWorld(seed=3) as sim:
        cluster = with_topic(sim)
        victim = cluster.controller() if which == "controller" else follower_of_nobody(cluster)
        cluster.crash(victim)
        cluster.until(lambda: bool(why_fenced(sim, victim)), 1.0, "the fencing")
        assert "connection refused by" in why_fenced(sim, victim)[0]
        assert cluster.leader_of(T0) != victim


def test_a_broker_that_dies_together_with_the_active_controller_is_fenced_soon_after_the_election():
    """It is no voter. The new controller has held a request there before its election, and connects once more."""
    with SimWorld(seed=3) as sim:
        cluster = SimCluster(sim, brokers=4, voters=3, settings=ON)
        cluster.boot()
        cluster.settle()
        cluster.run_for(0.1)
        victims = (cluster.controller(), 4)
        for victim in victims:
            cluster.crash(victim)
        cluster.until(lambda: all(why_fenced(sim, victim) for victim in victims), 1.0, "both fencings")
        assert all("connection refused by" in why_fenced(sim, victim)[0] for victim in victims)


def test_a_controller_that_dies_as_soon_as_the_cluster_is_up_is_fenced():
    """Its voters have fetched from it: its address has answered before any of them holds a request there."""
    with SimWorld(seed=3) as sim:
        cluster = SimCluster(sim, settings=ON)
        cluster.boot()
        cluster.settle()
        victim = cluster.controller()
        cluster.crash(victim)
        cluster.until(lambda: bool(why_fenced(sim, victim)), 1.0, "the fencing")


def test_an_election_alone_fences_only_the_former_controller():
    """The other brokers answer the new controller, also those that have not sent it a heartbeat yet."""
    with SimWorld(seed=3) as sim:
        cluster = SimCluster(sim, brokers=4, voters=3, settings=ON)
        cluster.boot()
        cluster.settle()
        victim = cluster.controller()
        cluster.crash(victim)
        cluster.run_for(SESSION_S)
        assert [node for node in cluster.nodes if why_fenced(sim, node)] == [victim]


@pytest.mark.parametrize("silence", [SimCluster.power_cut, SimCluster.pause, SimCluster.cut_off])
def test_a_silent_broker_keeps_its_session(silence: Callable[[SimCluster, NodeId], None]):
    """No power, SIGSTOP, a cut cable: nothing refuses, so the session decides."""
    with SimWorld(seed=3) as sim:
        cluster = with_topic(sim)
        victim = follower_of_nobody(cluster)
        silence(cluster, victim)
        took = cluster.until(lambda: bool(why_fenced(sim, victim)), SESSION_S + 1.0, "the fencing")
        assert took > SESSION_S / 2
        assert why_fenced(sim, victim) == [f"broker {victim} was silent for its session timeout"]


def test_a_fast_restart_registers_without_waiting_for_the_former_session():
    """The former process is fenced by the refusal, so that the new one is no duplicate."""
    with SimWorld(seed=3) as sim:
        cluster = with_topic(sim)
        victim = follower_of_nobody(cluster)
        cluster.crash(victim)
        cluster.run_for(0.1)
        cluster.restart(victim)
        assert cluster.settle() < SESSION_S / 2
        assert len(why_fenced(sim, victim)) == 1
        assert sim.marks["registration_refused"] == 0


def test_a_rolling_restart_fences_by_controlled_shutdown_only():
    """A broker that leaves in good order is fenced before its connection ends."""
    with SimWorld(seed=3) as sim:
        cluster = with_topic(sim)
        for node in cluster.nodes:
            cluster.stop(node)
            cluster.restart(node)
            cluster.settle()
        causes = {why for node in cluster.nodes for why in why_fenced(sim, node)}
        assert causes == {"controlled shutdown is complete"}


def test_connections_that_are_reset_fence_nobody():
    """Each message may break its connection; the brokers go on listening."""
    with SimWorld(seed=3) as sim:
        cluster = with_topic(sim)
        sim.network.profile = replace(sim.network.profile, reset=0.05)
        cluster.run_for(60.0)
        assert sim.network.marks["connection_reset"] > 20
        assert not any("refused" in why for node in cluster.nodes for why in why_fenced(sim, node))
