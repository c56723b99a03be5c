"""AlterPartition: the controller's checks, in Kafka's order and with Kafka's errors (KAFKA-FACTS 3.5; S13 to S15)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from minikafka.errors import BY_CODE, StaleBrokerEpoch
from minikafka.quorum.records import PartitionChange
from minikafka.types import TopicPartition
from minikafka.wire.messages import AlterPartitionRequest, IsrMember
from tests.rules.controller_kit import Cluster


@pytest.fixture
def cluster() -> Cluster:
    """t-0 on 1, 2, 3, led by 1 in epoch 2 with partition epoch 4: a state in which every older number exists."""
    cluster = Cluster(4)
    cluster.create("t", (1, 2, 3))
    cluster.lose(1)
    cluster.start(1)
    cluster.set_isr(1, 2, 3)
    cluster.commit(cluster.controller.prefer_leaders(cluster.image))
    cluster.set_isr(1, 2)
    state = cluster.state()
    assert (state.leader, state.leader_epoch, state.partition_epoch, state.isr) == (1, 2, 4, (1, 2))
    return cluster


def members(*nodes: int) -> tuple[IsrMember, ...]:
    return tuple(IsrMember(broker_id=node) for node in nodes)


@pytest.mark.parametrize(
    "name, sender, changes",
    [
        ("UNKNOWN_TOPIC_ID", 1, {"topic_id": "x"}),
        ("NOT_CONTROLLER", 1, {"leader_epoch": 3}),
        ("NOT_CONTROLLER", 1, {"partition_epoch": 5}),
        ("NOT_CONTROLLER", 1, {"leader_epoch": 1, "partition_epoch": 5}),
        ("FENCED_LEADER_EPOCH", 1, {"leader_epoch": 1}),
        ("FENCED_LEADER_EPOCH", 2, {"leader_epoch": 1, "partition_epoch": 3}),
        ("INVALID_REQUEST", 2, {}),
        ("INVALID_REQUEST", 2, {"partition_epoch": 3}),
        ("INVALID_UPDATE_VERSION", 1, {"partition_epoch": 3}),
        ("INVALID_UPDATE_VERSION", 1, {"partition_epoch": 3, "new_isr": members(4)}),
        ("INVALID_REQUEST", 1, {"new_isr": members(1, 4)}),
        ("INVALID_REQUEST", 1, {"new_isr": members(1, 1)}),
        ("INVALID_REQUEST", 1, {"new_isr": members(2, 3)}),
        ("INVALID_REQUEST", 1, {"new_isr": ()}),
        ("INVALID_REQUEST", 1, {"new_isr": members(1, 2), "recovered": False}),
        ("INVALID_REQUEST", 1, {"new_isr": members(1), "recovered": False}),
    ],
)
def test_the_table_of_checks(cluster: Cluster, name: str, sender: int, changes: dict[str, object]):
    """A leader acts on the error's name: wait for metadata, propose anew, or ask another controller."""
    before = cluster.image
    answer = cluster.propose(cluster.proposal(1, 2, 3), sender=sender, **changes)
    assert BY_CODE[answer.error_code].name == name
    assert answer.outcome == "not_written"
    assert cluster.image.topics is before.topics


def test_an_unknown_partition_is_told(cluster: Cluster):
    """A topic that was created anew with fewer partitions."""
    item = replace(cluster.proposal(1), partition=7)
    request = AlterPartitionRequest(broker_id=1, broker_epoch=cluster.image.brokers[1].broker_epoch, partitions=(item,))
    answer = cluster.commit(cluster.controller.alter_partition(cluster.image, request)).partitions[0]
    assert answer.error_code == 3


@pytest.mark.parametrize("node, epoch", [(1, 0), (9, 0)])
def test_the_senders_registration_must_be_the_current_one(cluster: Cluster, node: int, epoch: int):
    """A former incarnation still speaks: nothing of it may count, not one partition."""
    request = AlterPartitionRequest(broker_id=node, broker_epoch=epoch, partitions=(cluster.proposal(1),))
    with pytest.raises(StaleBrokerEpoch):
        cluster.controller.alter_partition(cluster.image, request)


def test_kip841_fenced_stopping_and_unknown_members_are_ineligible(cluster: Cluster):
    """KIP-841 (KAFKA-13916): else a leader adds back at once what the controller has just removed."""
    cluster.lose(3)
    assert BY_CODE[cluster.propose(cluster.proposal(1, 2, 3)).error_code].name == "INELIGIBLE_REPLICA"
    cluster.heartbeat(3)
    cluster.heartbeat(3, want_shut_down=True)
    assert BY_CODE[cluster.propose(cluster.proposal(1, 2, 3)).error_code].name == "INELIGIBLE_REPLICA"
    assert cluster.leader() == (1, (1, 2))


def fenced(cluster: Cluster) -> None:
    """Broker 3 is silent for a session."""
    cluster.lose(3)


def stopping(cluster: Cluster) -> None:
    """Broker 3 begins a controlled shutdown, which it will call off."""
    cluster.heartbeat(3, want_shut_down=True)


@pytest.mark.parametrize("make_ineligible", [fenced, stopping])
def test_a_copy_of_a_refused_proposal_is_refused_for_good(cluster: Cluster, make_ineligible: Callable[[Cluster], None]):
    """The leader gives up a proposal that was refused for a member, and counts that member no more. A copy of the
    request that was held on the way comes when the member, with the same broker epoch, is eligible again.
    """
    late = cluster.proposal(1, 2, 3)
    make_ineligible(cluster)
    assert BY_CODE[cluster.propose(late).error_code].name == "INELIGIBLE_REPLICA"
    cluster.heartbeat(3)
    cluster.heartbeat(3)  # after a shutdown that it has called off, the first one leaves it fenced
    assert BY_CODE[cluster.propose(late).error_code].name == "INVALID_UPDATE_VERSION"
    assert cluster.leader() == (1, (1, 2))
    assert cluster.propose(cluster.proposal(1, 2, 3)).error_code == 0
    assert cluster.leader() == (1, (1, 2, 3))


def test_kip903_a_member_that_restarted_since_is_ineligible(cluster: Cluster):
    """KAFKA-14139: the log that caught up must be the log that joins, not the empty one of the next incarnation."""
    late = cluster.proposal(1, 2, 3)
    cluster.start(3)
    assert cluster.state().partition_epoch == late.partition_epoch
    answer = cluster.propose(late)
    assert BY_CODE[answer.error_code].name == "INELIGIBLE_REPLICA"
    assert cluster.leader() == (1, (1, 2))
    assert cluster.propose(cluster.proposal(1, 2, 3)).error_code == 0


def test_a_member_of_unknown_epoch_is_not_compared(cluster: Cluster):
    """-1: the leader does not know the member's epoch, as for itself."""
    assert cluster.propose(cluster.proposal(1, 2, 3), new_isr=members(1, 2, 3)).error_code == 0
    assert cluster.leader() == (1, (1, 2, 3))


def test_a_change_is_answered_with_the_state_it_made(cluster: Cluster):
    """S15: ISR, leader, leader epoch and version as they are now stored; the ISR stands in assignment order."""
    answer = cluster.propose(cluster.proposal(3, 2, 1))
    assert (answer.leader_id, answer.leader_epoch, answer.partition_epoch, answer.isr) == (1, 2, 5, (1, 2, 3))
    assert answer.error_code == 0
    state = cluster.state()
    assert (state.isr, state.leader_epoch, state.partition_epoch) == ((1, 2, 3), 2, 5)


def test_a_proposal_of_what_is_already_so_changes_nothing(cluster: Cluster):
    """No record without a change: the partition epoch stays."""
    answer = cluster.propose(cluster.proposal(2, 1))
    assert (answer.error_code, answer.partition_epoch) == (0, 4)


def test_s13_the_isr_may_shrink_to_the_leader_alone(cluster: Cluster):
    """S13: the leader is always in the ISR, if need be alone; the leader epoch stays (KAFKA-15021)."""
    cluster.set_isr(1)
    state = cluster.state()
    assert (state.isr, state.leader_epoch) == ((1,), 2)


def test_two_proposals_for_one_partition_in_one_request(cluster: Cluster):
    """Compare and set: both know the same partition epoch, so only one of them may count."""
    item = cluster.proposal(1)
    request = AlterPartitionRequest(
        broker_id=1,
        broker_epoch=cluster.image.brokers[1].broker_epoch,
        partitions=(item, replace(item, new_isr=members(1, 2, 3))),
    )
    decision = cluster.controller.alter_partition(cluster.image, request)
    assert [each.error_code for each in decision.response.partitions] == [0, 42]
    assert [type(record) for record in decision.records] == [PartitionChange]


def test_one_bad_partition_does_not_spoil_the_others(cluster: Cluster):
    """Each partition is answered for itself."""
    cluster.create("u", (1, 2))
    items = (replace(cluster.proposal(1), leader_epoch=0), replace(cluster.proposal(1), topic_id="?"))
    good = cluster.proposal(1, tp=TopicPartition("u", 0))
    request = AlterPartitionRequest(
        broker_id=1, broker_epoch=cluster.image.brokers[1].broker_epoch, partitions=(*items, good)
    )
    answers = cluster.commit(cluster.controller.alter_partition(cluster.image, request)).partitions
    assert [each.error_code for each in answers] == [74, 100, 0]
    assert cluster.leader(TopicPartition("u", 0)) == (1, (1,))
