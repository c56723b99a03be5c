"""Invariants over late messages: only the present role changes a replica, and only the present broker's fetches count.

A response or a request can arrive after an election, or after its sender has restarted. The receiver must then ignore
it (KIP-320, KIP-903).

Rule for this file: it only looks, and each look costs one pass over the events of the step.
"""

from __future__ import annotations

from minikafka.replication.follower import FollowerReplica
from minikafka.replication.leader import LeaderReplica
from minikafka.sim.sight import OfPartition, Report, Sight, number_of
from minikafka.sim.world import Event

ROLE_EVENTS = frozenset({"became_leader", "became_follower", "became_leaderless", "role_given_up"})
"""Events after which a replica has another role."""

FOLLOWER_EVENTS = frozenset({"tail_truncated", "nothing_truncated", "log_restarted", "follower_hw_changed"})
"""Changes that only a follower makes; each event names the epoch of the role that made it."""


class PresentRole(OfPartition):
    """A replica is changed by its present role only (KAFKA-FACTS 10.9; KIP-320)."""

    name = "changed_by_a_former_role"

    def look(self, sight: Sight, report: Report) -> None:
        role = sight.partition.role
        for event in reversed(sight.events):
            if event.kind in ROLE_EVENTS:
                return  # what happened before it in this step was done by another role
            acted = _acting_role(event)
            if acted is None:
                continue
            kind, epoch = acted
            if not isinstance(role, kind) or role.epoch != epoch:
                report(
                    self.name,
                    f"{sight.life} {event.kind} {dict(event.facts)} by the {kind.__name__} of epoch {epoch}, "
                    f"the present role is {role!r}",
                )
                return


def _acting_role(event: Event) -> tuple[type[LeaderReplica | FollowerReplica], int] | None:
    """The kind and the epoch of the role that caused the event; None for events of no role."""
    if event.kind == "batch_appended":
        if "role_epoch" in event.facts:
            return FollowerReplica, number_of(event, "role_epoch")
        return LeaderReplica, number_of(event, "epoch")
    if event.kind in FOLLOWER_EVENTS and "epoch" in event.facts:
        return FollowerReplica, number_of(event, "epoch")
    return None


class FetchOfPresentBroker(OfPartition):
    """A leader counts no fetch of a broker epoch that its own metadata has superseded (KIP-903)."""

    name = "superseded_fetch_counted"

    def look(self, sight: Sight, report: Report) -> None:
        leader = sight.leader
        if leader is None:
            return
        for event in sight.events:
            if event.kind != "follower_fetched":
                continue
            node = number_of(event, "replica")
            remote = leader.remotes.get(node)
            registered = sight.brokers[leader.me].image.brokers.get(node)
            if remote is None or registered is None or not registered.eligible:
                continue
            if -1 < remote.broker_epoch < registered.broker_epoch:
                report(
                    self.name,
                    f"{leader!r} counted a fetch of broker {node} with epoch {remote.broker_epoch}; "
                    f"broker {node} has registered with epoch {registered.broker_epoch} since",
                )
