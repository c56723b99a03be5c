"""Fencing and elections after refused connections: what is evidence that a process has ended, and what is none."""

from __future__ import annotations

import pytest

from minikafka.quorum import fetching
from minikafka.quorum.controller_brokers import HeldConnection, Refusal, Sessions
from minikafka.quorum.files import QuorumState
from minikafka.quorum.roles import Follower, Prospective, Unattached
from minikafka.types import Epoch
from tests.rules.controller_kit import T0, Cluster
from tests.rules.quorum_double import Journal, make_core

# ---- a held connection -----------------------------------------------------------------------------------------------


def reached() -> HeldConnection:
    """The connection of broker 2, registered at 7, which has answered."""
    connection = HeldConnection(2, 7)
    connection.answered()
    return connection


def test_an_ended_connection_and_a_refused_one_are_evidence():
    """The evidence names the registration and when the refused connection began."""
    connection = reached()
    connection.ended(10.0)
    assert connection.refused(10.0) == Refusal(2, 7, 10.0)


def test_an_address_that_never_answered_is_no_evidence():
    """A firewall that rejects packets answers in the broker's place."""
    connection = HeldConnection(2, 7)
    connection.ended(1.0)
    assert connection.refused(2.0) is None


def test_an_end_alone_is_no_evidence():
    """The network resets connections: a broker that answers again lives."""
    connection = reached()
    connection.ended(10.0)
    assert not connection.is_held
    connection.answered()
    assert connection.is_held
    assert connection.refused(11.0) is None


def test_a_connection_that_began_before_the_end_is_no_evidence():
    """Only a connection that begins after the end shows that nothing listens any more."""
    connection = reached()
    connection.ended(10.0)
    assert connection.refused(9.9) is None
    assert connection.refused(10.1) is not None


def test_an_address_counts_again_only_after_it_has_answered_again():
    """A firewall that refuses from now on fences a broker once, not after each of its heartbeats."""
    connection = reached()
    connection.ended(10.0)
    assert connection.refused(10.0) is not None
    connection.ended(11.0)
    assert connection.refused(11.0) is None


# ---- the controller's decision ---------------------------------------------------------------------------------------


def refuse(cluster: Cluster, node: int, *, broker_epoch: int | None = None, is_heard_since: bool = False) -> str:
    """Let the controller decide about a refusal; the cause, if it fences."""
    epoch = cluster.image.brokers[node].broker_epoch if broker_epoch is None else broker_epoch
    decision = cluster.controller.broker_refused(
        cluster.image, Refusal(node, epoch, 1.0), is_heard_since=is_heard_since
    )
    cluster.commit(decision)
    return decision.cause if decision.records else ""


def test_a_refused_broker_is_fenced_and_its_leaders_move():
    """As after its session, with another cause."""
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3))
    assert "connection refused by 127.0.0.1:9091" in refuse(cluster, 1)
    assert not cluster.image.alive(1)
    assert (cluster.state(T0).leader, cluster.state(T0).isr) == (2, (2, 3))
    assert refuse(cluster, 1) == "", "nothing is left to decide"


def test_a_refusal_of_a_former_registration_fences_nobody():
    """The broker has restarted and registered since: another process listens."""
    cluster = Cluster(3)
    former = cluster.image.brokers[1].broker_epoch
    cluster.lose(1)
    cluster.start(1)
    assert refuse(cluster, 1, broker_epoch=former) == ""
    assert cluster.image.alive(1)


def test_a_broker_that_was_heard_since_is_not_fenced():
    """It lives: something between here and its address refuses."""
    cluster = Cluster(3)
    assert refuse(cluster, 1, is_heard_since=True) == ""
    assert cluster.image.alive(1)


def test_a_broker_is_heard_since_a_moment_only_after_it():
    """A heartbeat of that very moment may be the last of a dying process."""
    sessions = Sessions(timeout_s=9.0)
    sessions.begun(1, 5.0)
    assert not sessions.heard_since(1, 5.0)
    assert sessions.heard_since(1, 4.9)
    assert not sessions.heard_since(2, 0.0)


# ---- the quorum ------------------------------------------------------------------------------------------------------


def follower(*, has_fetched: bool, me: int = 1, epoch: Epoch = 4, journal: Journal | None = None, **settings: object):
    """A follower of voter 2; ``has_fetched``: the leader has answered it."""
    core = make_core(me, state=QuorumState(epoch=epoch, leader_id=2), journal=journal, **settings)
    assert isinstance(core.role, Follower)
    if has_fetched:
        core.hear_leader(core.role, 1.0)
    return core


def test_a_voter_whose_leader_refuses_asks_for_pre_votes_at_once():
    """Issue 15: the connection to the leader has ended, and a new one is refused."""
    journal = Journal()
    core = follower(has_fetched=True, journal=journal)
    assert core.on_leader_refused(2, 1.5)
    core.on_time(1.5, 0)
    assert isinstance(core.role, Prospective)
    changed = [facts for kind, facts in journal if kind == "quorum_role_changed"]
    assert changed[-1]["because"] == "leader refused"
    assert ("quorum_leader_refused", {"epoch": 4, "leader": 2, "why": "connection refused"}) in journal


def test_a_voter_that_its_leader_never_answered_pauses_first():
    """A firewall may refuse: without a pause it would ask for votes at every attempt."""
    core = follower(has_fetched=False)
    assert core.on_leader_refused(2, 0.5)
    assert core.next_deadline() == pytest.approx(0.5 + 0.25 * core.election_timeout_s)
    assert not core.on_leader_refused(2, 0.6), "further refusals do not move the deadline"


def test_an_answer_of_the_leader_takes_the_refusal_back():
    """The leader has restarted its listener, or a packet filter was lifted."""
    core = follower(has_fetched=False)
    core.on_leader_refused(2, 0.5)
    core.hear_leader(core.role, 0.6)
    assert core.next_deadline() == pytest.approx(0.6 + core.fetch_timeout_s)


def test_only_the_present_leader_s_refusal_counts():
    """A request to another voter, or to the leader of an epoch that is over."""
    core = follower(has_fetched=True)
    before = core.next_deadline()
    assert not core.on_leader_refused(3, 1.5)
    assert core.next_deadline() == before


def test_an_observer_whose_leader_refuses_looks_for_a_new_one():
    """It asks any voter."""
    core = follower(has_fetched=True, me=9)
    assert core.on_leader_refused(2, 1.5)
    core.on_time(1.5, 0)
    assert isinstance(core.role, Unattached)
    assert fetching.has_whom_to_ask(core)


def test_without_the_setting_refusals_change_nothing():
    """mk.fence.on.refused.connection=false."""
    core = follower(has_fetched=True, fence_on_refused_connection=False)
    before = core.next_deadline()
    assert not core.on_leader_refused(2, 1.5)
    assert core.next_deadline() == before
