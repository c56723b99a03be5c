"""Invariants that must keep silent when nothing is wrong: what chance showed once, directed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minikafka.broker.broker import Broker
from minikafka.log.epochs import EpochCache
from minikafka.log.producer_state import ProducerState
from minikafka.quorum.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from minikafka.quorum.records import PartitionChange, PartitionRecord, RegisterBroker, TopicRecord
from minikafka.sim.invariants import EnoughInSync, OneLeaderPerEpoch
from minikafka.sim.metadata_invariants import AppliedEqual, MetadataHolds, QuorumHolds, Replayed
from minikafka.sim.network import DELIVERED
from minikafka.sim.replica_view import ReplicaView
from minikafka.sim.run import run
from minikafka.sim.seeds import plan_of
from minikafka.sim.verdicts import Message
from minikafka.sim.watch import Watch
from minikafka.sim.world import Event
from minikafka.wire.codec import encode_request
from minikafka.wire.messages import ElectLeadersRequest, PartitionName
from tests.sim.cluster_kit import ORDERS, Client, simulated_orders
from tests.sim.test_message_invariants import batch_at


class Told:
    """Violations by name."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str, what: str) -> None:
        self.names.append(name)


class Log:
    """As long as it says, with nothing in it."""

    def __init__(self, end: int) -> None:
        self.start_offset = 0
        self.end_offset = end
        self.tail = self

    def read(self, *_: Any, **__: Any) -> Any:
        """What the memory tail holds."""
        return SimpleNamespace(buffers=())


def broker(end: int, epoch: int) -> Broker:
    return cast("Broker", SimpleNamespace(quorum=SimpleNamespace(log=Log(end), epoch=epoch)))


def event(kind: str, **facts: object) -> Event:
    return cast("Event", SimpleNamespace(kind=kind, facts=facts))


def test_a_leader_owes_what_older_epochs_committed_and_nothing_newer() -> None:
    """KAFKA-FACTS 10.13: a candidate may win epoch 3 when epoch 4 has committed already; it just has not heard."""
    holds, told = QuorumHolds(), Told()
    holds.on_event(event("quorum_hw_advanced", new=5), "n1#1", broker(5, 2), told)
    holds.on_event(event("quorum_hw_advanced", new=9), "n2#1", broker(9, 4), told)
    holds.on_event(event("quorum_leader_elected", epoch=3), "n3#1", broker(6, 3), told)
    assert told.names == []
    holds.on_event(event("quorum_leader_elected", epoch=5), "n3#2", broker(6, 5), told)
    assert told.names == ["committed_metadata_lost"]


def test_metadata_that_differs_is_told_once() -> None:
    """D5: replayed or loaded from a snapshot, the same offset means the same state."""
    one = BrokerImage(node_id=1, broker_epoch=1, incarnation_id="a", host="n1", port=1)
    full = MetadataImage(offset=7, brokers={1: one})
    equal, told = AppliedEqual(), Told()
    equal.look(1, full, told)
    equal.look(2, MetadataImage(offset=7, brokers={1: one}), told)
    assert told.names == []
    other = MetadataImage(offset=7)
    equal.look(3, other, told)
    equal.look(3, other, told)
    assert told.names == ["metadata_differs"]


OF_NO_RECORD = {"cluster_id", "offset", "epoch"}
"""What an image has without any record."""


@pytest.mark.parametrize("member", [e.name for e in fields(MetadataImage) if e.compare and e.name not in OF_NO_RECORD])
def test_every_member_of_an_image_is_compared(member: str) -> None:
    """D5: a broker that began from a snapshot without the ACLs, credentials, or quotas is found by itself."""
    equal, told = AppliedEqual(), Told()
    equal.look(1, MetadataImage(offset=7), told)
    equal.look(2, replace(MetadataImage(offset=7), **cast("Any", {member: object()})), told)
    assert told.names == ["metadata_differs"]


def test_an_image_that_is_older_than_the_newest_is_not_looked_at_again() -> None:
    """Brokers apply the same records at different times."""
    holds, told = MetadataHolds(), Told()
    holds.look(MetadataImage(offset=7), told)
    holds.look(MetadataImage(offset=5), told)
    assert told.names == []


def standing(leader: int, isr: tuple[int, ...], epoch: int, *, recovered: bool = False) -> PartitionImage:
    """A partition of three replicas."""
    return PartitionImage(
        partition=0,
        replicas=(1, 2, 3),
        isr=isr,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=epoch,
        controller_epoch=0,
        recovered=recovered,
    )


def test_an_unclean_election_is_counted_once_however_often_its_leader_dies_before_it_has_recovered() -> None:
    """KIP-704, S20: each election that is counted excuses losses, so a clean one must not be."""
    holds = MetadataHolds()
    changes = (
        standing(1, (1, 2, 3), 0, recovered=True),
        standing(2, (2,), 1),
        standing(-1, (2,), 2),
        standing(2, (2,), 3),
        standing(2, (2,), 3, recovered=True),
        standing(-1, (2,), 4, recovered=True),
        standing(3, (3,), 5),
        standing(1, (1,), 6),
    )
    for offset, each in enumerate(changes, 1):
        topic = TopicImage(name="orders", topic_id="T", partitions=(each,))
        holds.look(MetadataImage(offset=offset, topics={"orders": topic}), Told(), float(offset))
    assert holds.unclean == {ORDERS: {1: 2.0, 5: 7.0, 6: 8.0}}


def applied_at_once(*changes: dict[str, Any]) -> tuple[MetadataHolds, list[str]]:
    """What is seen, and reported, when a broker applies all these changes of a partition of broker 1 in one step."""
    replayed, told = Replayed(), Told()
    holds = MetadataHolds(replayed)
    create = PartitionRecord(topic_id="T", partition=0, replicas=(1, 2, 3), isr=(1,), leader=1)
    register = RegisterBroker(broker_id=3, broker_epoch=0, incarnation_id="i", host="n3", port=1, fenced=False)
    replayed.add(batch_at(0, register, TopicRecord(name="orders", topic_id="T"), create))
    holds.look(cast("MetadataImage", replayed.at(replayed.end)), told)
    for each in changes:
        replayed.add(batch_at(replayed.end, PartitionChange(topic_id="T", partition=0, **each)))
    holds.look(cast("MetadataImage", replayed.at(replayed.end)), told)
    return holds, told.names


def test_changes_that_a_broker_applies_at_once_are_looked_at_one_by_one() -> None:
    """S20: all of them together may look like an unclean election that was none, or hide one."""
    holds, names = applied_at_once({"isr": (1, 3)}, {"leader": 3, "isr": (3,)})
    assert (holds.unclean, names) == ({}, [])
    holds, names = applied_at_once(
        {"leader": 3, "isr": (3,), "recovered": False}, {"leader": 1, "isr": (1,), "recovered": False}
    )
    assert list(holds.unclean[ORDERS]) == [1, 2]
    assert names.count("elected_from_outside") == 2


def told_of(
    before: PartitionImage,
    after: PartitionImage,
    *fenced: int,
    configs: Mapping[str, str] | None = None,
    message: Message | None = None,
) -> list[str]:
    """What is reported when the one becomes the other, after a message."""
    holds, told = MetadataHolds(), Told()
    if message is not None:
        holds.observe(message, DELIVERED)
    for offset, each in enumerate((before, after), 1):
        brokers = {
            node: BrokerImage(
                node_id=node,
                broker_epoch=1,
                incarnation_id="i",
                host="n",
                port=1,
                fenced=each is after and node in fenced,
            )
            for node in (1, 2, 3)
        }
        topic = TopicImage(name="orders", topic_id="T", configs=configs or {}, partitions=(each,))
        holds.look(MetadataImage(offset=offset, topics={"orders": topic}, brokers=brokers), told)
    return told.names


def test_a_replica_joins_the_isr_only_while_it_is_eligible() -> None:
    """KIP-841: one that is fenced, or shuts down, is in no ISR; one that is in it already may stay for a while."""
    before, after = standing(1, (1, 2), 3), standing(1, (1, 2, 3), 4)
    assert told_of(before, after) == told_of(before, after, 2) == []
    assert told_of(before, after, 3) == ["isr_joined_while_ineligible"]


def test_neither_epoch_of_a_partition_falls() -> None:
    """Each by itself: the leader epoch, and the partition epoch."""
    before = standing(1, (1, 2), 3)
    for change in ({"leader_epoch": 2}, {"partition_epoch": 2}):
        assert told_of(before, replace(before, **change)) == ["epochs_never_fall"]


def test_partitions_whose_leader_has_ever_changed_are_known() -> None:
    """S24: with acks=1 a record is lost only with a leader, or with its topic."""
    holds = MetadataHolds()
    for offset, (state, names) in enumerate(
        ((standing(1, (1,), 0), set()), (standing(1, (1, 2), 0), set()), (standing(2, (2,), 1), {ORDERS})), 1
    ):
        topic = TopicImage(name="orders", topic_id="T", partitions=(replace(state, partition_epoch=offset),))
        holds.look(MetadataImage(offset=offset, topics={"orders": topic}), Told())
        assert holds.changed_leaders == names
    other = MetadataHolds()
    topic = TopicImage(name="orders", topic_id="T", partitions=(standing(1, (1,), 0),))
    other.look(MetadataImage(offset=1, topics={"orders": topic}), Told())
    other.look(MetadataImage(offset=2), Told())
    assert other.changed_leaders == {ORDERS}


def test_eligible_leader_replicas_were_in_sync_and_are_not() -> None:
    """KIP-966: one becomes eligible only as it leaves the ISR, and whatever is in the ISR is not eligible beside that."""
    before = standing(1, (1, 2), 3)
    assert told_of(before, replace(standing(1, (1,), 4), elr=(2,))) == []
    for isr, elr in (((1,), (3,)), ((1, 2), (2,)), ((1,), (4,))):
        assert set(told_of(before, replace(standing(1, isr, 4), elr=elr))) == {"eligible_leader_replicas"}, (isr, elr)
    assert told_of(replace(before, elr=(3,)), replace(standing(1, (1,), 4), elr=(2, 3))) == []


def test_a_leader_from_outside_isr_and_elr_is_elected_only_where_that_is_asked_for() -> None:
    """S20: by the topic's setting, or by an operator; the last known leader (KIP-966) needs no asking. Harmless by luck
    is no excuse: that the elected one had everything shows in no other check.
    """
    gone = replace(standing(-1, (1,), 3), elr=(2,))
    for leader, names in ((1, []), (2, []), (3, ["elected_from_outside"])):
        assert told_of(gone, standing(leader, (leader,), 4)) == names, leader
    assert told_of(replace(gone, last_known_elr=(3,)), standing(3, (3,), 4)) == []
    assert told_of(gone, standing(3, (3,), 5)) == []  # nothing is known of what was between
    assert told_of(gone, standing(3, (3,), 4), configs={"unclean.leader.election.enable": "true"}) == []
    for election, names in (("unclean", []), ("preferred", ["elected_from_outside"])):
        asked = ElectLeadersRequest(election_type=election, partitions=(PartitionName(topic="orders", partition=0),))
        message = Message(1, "request", "a1", "n1", "ElectLeaders", b"".join(encode_request(asked)))
        assert told_of(gone, standing(3, (3,), 4), message=message) == names, election


@pytest.mark.parametrize(
    ("isr", "replicas", "adding", "after", "names"),
    [
        ((1, 2), (1, 2, 3), (), (), []),
        ((1,), (1, 2, 3), (), (), ["committed_below_min_isr"]),
        ((1,), (1,), (), (), []),
        ((1,), (1, 2, 3), (2, 3), (), []),
        ((1,), (1, 2, 3), (), (event("isr_shrunk", epoch=1),), []),
        ((1,), (1, 2, 3), (), (event("isr_shrunk", leader_epoch=1),), ["committed_below_min_isr"]),
    ],
)
def test_nothing_is_committed_while_the_isr_is_too_small(
    isr: tuple[int, ...], replicas: tuple[int, ...], adding: tuple[int, ...], after: tuple[Event, ...], names: list[str]
) -> None:
    """KAFKA-15583: by the ISR that the leader had when its watermark moved, before a change or after one; replicas that
    a move still adds are not counted (KIP-455).
    """
    leader = SimpleNamespace(isr=isr, replicas=replicas, adding=adding)
    partition = SimpleNamespace(config=SimpleNamespace(min_insync_replicas=2))
    events = [event("isr_shrunk", epoch=1), event("hw_advanced", epoch=1), *after]
    told = Told()
    view = SimpleNamespace(leader=leader, partition=partition, events=events, life="n1#1")
    EnoughInSync().look(cast("ReplicaView", view), told)
    assert told.names == names


def test_one_process_leads_in_an_epoch() -> None:
    """S21, §10.9: a broker that was started again may have lost what it wrote, and writes something else there."""
    one, told = OneLeaderPerEpoch(), Told()
    for incarnation, epoch in (("a", 1), ("a", 1), ("b", 2)):
        one.look(led_by(incarnation, epoch), told)
    assert told.names == []
    one.look(led_by("b", 1), told)
    assert told.names == ["one_leader_per_epoch"]


def led_by(incarnation: str, epoch: int) -> ReplicaView:
    lifecycle = SimpleNamespace(incarnation_id=incarnation)
    brokers = {1: SimpleNamespace(lifecycle=lifecycle)}
    view = SimpleNamespace(leader=SimpleNamespace(me=1, epoch=epoch), key=(ORDERS, "T"), name=ORDERS, brokers=brokers)
    return cast("ReplicaView", view)


def test_an_epoch_of_the_quorum_has_one_leader_whatever_is_heard_between() -> None:
    """KAFKA-FACTS 10.13: a third report of the first leader does not make the second one right."""
    holds, told = QuorumHolds(), Told()
    for life in ("n1#1", "n1#1", "n2#1", "n2#1"):
        holds.on_event(event("quorum_leader_elected", epoch=3), life, broker(0, 3), told)
    assert told.names == ["one_quorum_leader_per_epoch"] * 2


def test_committed_metadata_is_cut_by_no_record() -> None:
    """KAFKA-FACTS 10.13: down to the committed end a tail may go, and no further; each life by itself."""
    holds, told = QuorumHolds(), Told()
    holds.on_event(event("quorum_hw_advanced", new=5), "n1#1", broker(7, 2), told)
    for life, new in (("n1#1", 5), ("n1#2", 4)):
        holds.on_event(event("quorum_tail_truncated", old=7, new=new), life, broker(new, 2), told)
    assert told.names == []
    holds.on_event(event("quorum_tail_truncated", old=7, new=4), "n1#1", broker(4, 2), told)
    assert told.names == ["committed_metadata_never_truncated"]


def begins_one_later(self: EpochCache, epoch: int, start: int) -> bool:
    return ASSIGN(self, epoch, start + (epoch > 0))


def takes_all(_: ProducerState, *__: object) -> None:
    return None


ASSIGN = EpochCache.assign


@pytest.mark.parametrize(
    ("owner", "rule", "broken", "name"),
    [(EpochCache, "assign", begins_one_later, "log_in_order"), (ProducerState, "check", takes_all, "sequence_broken")],
)
def test_a_log_that_is_wrong_in_itself_is_a_violation(
    owner: type, rule: str, broken: object, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KAFKA-FACTS 10.7 and 10.14: of whole clusters, beside what others and clients notice."""
    monkeypatch.setattr(owner, rule, broken)
    report = run(plan_of(1, operations=60, faults=6))
    assert name in {each.name for each in report.violations}


@pytest.mark.parametrize(
    ("leads", "epoch", "kinds", "is_held"),
    [
        (True, 2, {"hw_advanced"}, True),
        (True, 1, {"hw_advanced"}, False),  # a former leader that does not know yet
        (False, 2, {"follower_hw_changed"}, True),  # it has cut its log, and copies
        (False, 2, {"became_follower"}, False),
        (False, 1, {"follower_hw_changed"}, False),
    ],
)
def test_who_is_held_to_what_is_committed_after_an_unclean_election(
    leads: bool, epoch: int, kinds: set[str], is_held: bool
) -> None:
    """S20: its leader, and followers that have copied from it; losses were forgiven to followers for good."""
    with simulated_orders() as cluster:
        watch = Watch(cluster)
        watch.may_be_unclean = frozenset({ORDERS.topic})
        watch._metadata.unclean[ORDERS] = {2: 1.0}
        role = SimpleNamespace(epoch=epoch) if leads else None
        view = SimpleNamespace(
            name=ORDERS, leader=role, partition=SimpleNamespace(epoch=epoch), kinds=kinds, unclean=()
        )
        watch._report_of(cast("ReplicaView", view))("exposed_record_changed", "")
        assert bool(watch.violations) is is_held
        watch.close()


def test_where_a_log_ever_began_is_kept_whoever_leads_next() -> None:
    """A group that began there has skipped nothing, though the next leader may still hold what was deleted (61893)."""
    with simulated_orders() as cluster:
        client, watch = Client(cluster), Watch(cluster)
        for number in range(5):
            client.run(client.producer.send_and_wait("orders", b"%d" % number, partition=0))
        assert watch.deleted_below(ORDERS) == 0
        client.run(client.admin.delete_records({ORDERS: 3}))
        cluster.settle()
        assert watch.deleted_below(ORDERS) == 3
        watch.close()
