"""Deletions and promises: what no other check can find, for each believes where logs begin and what is committed."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minikafka.broker.api import fetch
from minikafka.log.producer_state import ProducerState
from minikafka.replication.leader import LeaderReplica
from minikafka.sim.changes import expiring_topics
from minikafka.sim.invariants import DeletionsHaveReasons
from minikafka.sim.network import DELIVERED
from minikafka.sim.plan import Plan, PlannedTopic, fault_at
from minikafka.sim.replica_view import ReplicaView
from minikafka.sim.run import run
from minikafka.sim.seeds import plan_of
from minikafka.sim.verdicts import Message
from minikafka.sim.world import Event
from minikafka.types import TopicPartition
from minikafka.wire.codec import encode_request
from minikafka.wire.messages import DeleteRecordsPartition, DeleteRecordsRequest
from tests.sim.cluster_kit import ORDERS
from tests.sim.planted import up_to_the_log_end
from tests.sim.test_invariants import Told


def begun(start: int, *, leads: bool, kind: str = "log_start_raised", is_hearsay: bool = False) -> ReplicaView:
    """A replica whose log begins at ``start`` now."""
    events = [Event(0.0, "n1", 1, kind, {"partition": str(ORDERS)}, "")]
    leader = cast("Any", object()) if leads else None
    partition = SimpleNamespace(partition=ORDERS, topic_id="T", role=None, log=SimpleNamespace(start_offset=start))
    view = ReplicaView({}, None, cast("Any", partition), events)
    view.leader, view.is_hearsay = leader, is_hearsay
    return view


def request(offset: int, name: TopicPartition = ORDERS) -> Message:
    asked = DeleteRecordsRequest(
        partitions=(DeleteRecordsPartition(topic=name.topic, partition=name.partition, offset=offset),)
    )
    return Message(1, "request", "a1", "n1", "DeleteRecords", b"".join(encode_request(asked)))


@pytest.mark.parametrize(
    ("asked", "views", "count"),
    [
        ([], [begun(3, leads=True)], 1),
        ([3], [begun(3, leads=True), begun(3, leads=False)], 0),
        ([3], [begun(4, leads=True)], 1),
        ([3], [begun(3, leads=False)], 1),  # before any leader
        ([3], [begun(3, leads=True), begun(4, leads=False)], 1),
        ([3], [begun(3, leads=True), begun(3, leads=False, kind="log_restarted")], 0),
        ([3], [begun(3, leads=True), begun(4, leads=False, kind="log_restarted")], 1),
        ([-1, 3], [begun(9, leads=True)], 0),
        ([3], [begun(3, leads=True, kind="became_leader")], 1),  # the start of its log is lost
        ([3], [begun(3, leads=True), begun(3, leads=True, kind="became_leader")], 0),
        ([], [begun(3, leads=True, is_hearsay=True)], 0),
    ],
)
def test_a_log_start_rises_for_a_reason(asked: list[int], views: list[ReplicaView], count: int) -> None:
    """KAFKA-FACTS 1.5: a leader's by retention or DeleteRecords, a follower's after a leader's."""
    deletions, told = DeletionsHaveReasons(), Told()
    deletions.may_expire = {"logs"}
    for offset in asked:
        deletions.observe(request(offset), DELIVERED)
    deletions.observe(request(99, TopicPartition("orders", 1)), DELIVERED)
    for view in views:
        deletions.look(view, told)
    assert told.names == ["deleted_without_reason"] * count


def test_what_has_a_retention_may_expire() -> None:
    """From the start or by a change at run time; of others records go on request only."""
    topics = (
        PlannedTopic(name="orders", partitions=1, replication_factor=3),
        PlannedTopic(name="logs", partitions=1, replication_factor=3, configs={"retention.ms": "1500"}),
    )
    changes = (
        fault_at(1.0, "alter_topic", "late:segment.bytes=300;retention.bytes=900"),
        fault_at(1.0, "alter_topic", "orders:segment.bytes=300"),
    )
    assert expiring_topics(Plan(seed=0, topics=topics, faults=changes)) == {"logs", "late"}
    deletions, told = DeletionsHaveReasons(), Told()
    for known in (None, {"orders"}):
        deletions.may_expire = known
        deletions.look(begun(3, leads=True), told)
    assert told.names == []


def all_at_once(_self: LeaderReplica, _end_offset: int) -> bool:
    return True


@pytest.mark.parametrize(
    ("owner", "rule", "broken", "name"),
    [
        (LeaderReplica, "check_acknowledged", all_at_once, "acknowledged_before_committed"),
        (fetch, "_read_as_consumer", up_to_the_log_end(fetch._read_as_consumer), "read_before_committed"),
        (ProducerState, "load_snapshot", lambda self, _: self.clear(), "recovery_differs"),
    ],
)
def test_what_is_promised_is_committed_and_what_is_remembered_is_found_again(
    owner: Any, rule: str, broken: Callable[..., Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3, S16, KIP-98: without any fault that would make a loss or a duplicate of it."""
    monkeypatch.setattr(owner, rule, broken)
    report = run(plan_of(1, operations=60, faults=0))
    assert name in {each.name for each in report.violations}
