"""S18 to S20 and KIP-966 as the controller plays them: who holds, who leads, who may lead again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minikafka.errors import ElectionNotNeeded, InvalidReplicationFactor, InvalidRequest
from minikafka.quorum.assignment import place
from minikafka.quorum.controller import Controller
from minikafka.quorum.image import MetadataImage
from minikafka.rest.sentences import why_nobody_leads
from minikafka.types import TopicPartition
from minikafka.wire.messages import ElectLeadersRequest, PartitionName
from tests.rules.controller_kit import CLUSTER_ID, T0, Cluster

# ---- S18 -------------------------------------------------------------------------------------------------------------


def test_s18_brokers_sorted_partition_i_on_broker_i_the_jth_replica_on_i_plus_j():
    """S18: the articles' placement, literally."""
    assert place([3, 1, 2], partitions=4, replication_factor=3) == ((1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 2, 3))
    assert place([10, 5, 7, 2], partitions=3, replication_factor=2) == ((2, 5), (5, 7), (7, 10))


def test_s18_may_start_at_another_broker():
    """A caller that spreads many small topics turns the wheel; the rule stays."""
    assert place([1, 2, 3], partitions=2, replication_factor=2, start=2) == ((3, 1), (1, 2))


@pytest.mark.parametrize("factor", [0, -1, 4])
def test_s18_too_few_brokers_are_told_with_their_number(factor: int):
    """A person who asked for three replicas must read that two brokers are usable."""
    with pytest.raises(InvalidReplicationFactor, match=r"3 usable brokers \(1, 2, 3\)"):
        place([1, 2, 3], partitions=1, replication_factor=factor)


def test_s18_only_usable_brokers_hold_new_replicas():
    """A fenced broker would be out of the ISR from the first moment."""
    cluster = Cluster(4)
    cluster.lose(2)
    assert cluster.create(partitions=3, factor=3).error_code == 0
    assert [each.replicas for each in cluster.image.topics["t"].partitions] == [(1, 3, 4), (3, 4, 1), (4, 1, 3)]
    first = cluster.state()
    assert (first.leader, first.isr, first.leader_epoch, first.partition_epoch) == (1, (1, 3, 4), 0, 0)


# ---- S19 -------------------------------------------------------------------------------------------------------------


def test_s19_the_first_replica_in_assignment_order_that_is_in_sync_leads():
    """S19: AR = [1,2,3], ISR = [2,3] gives 2; and the old leader comes back as a follower."""
    cluster = Cluster()
    cluster.create("t", (1, 2, 3))
    cluster.lose(1)
    assert cluster.leader() == (2, (2, 3))
    assert cluster.state().leader_epoch == 1
    cluster.start(1)
    assert cluster.leader() == (2, (2, 3))


def test_s19_assignment_order_not_the_smallest_number():
    """The order of the assignment decides, not that of node ids."""
    cluster = Cluster()
    cluster.create("t", (1, 3, 2))
    cluster.lose(1)
    assert cluster.leader() == (3, (3, 2))


def test_s19_a_replica_outside_the_isr_is_passed_over():
    """S16: only a member of the ISR has all that is committed."""
    cluster = Cluster()
    cluster.create("t", (1, 2, 3))
    cluster.set_isr(1, 3)
    cluster.lose(1)
    assert cluster.leader() == (3, (3,))


def test_s19_a_lost_follower_leaves_the_isr_and_the_leader_stays():
    """Fencing shrinks the ISR in the same batch; the leader epoch stays, the partition epoch rises."""
    cluster = Cluster()
    cluster.create("t", (1, 2, 3))
    cluster.lose(2)
    state = cluster.state()
    assert (state.leader, state.isr, state.leader_epoch, state.partition_epoch) == (1, (1, 3), 0, 1)


def test_a_lost_broker_leaves_everything_at_once():
    """All partitions change in one batch, and one image later nobody counts on the broker."""
    cluster = Cluster()
    cluster.create(partitions=6, factor=3)
    before = cluster.image
    cluster.lose(1)
    assert all(1 not in each.isr and each.leader != 1 for each in cluster.image.topics["t"].partitions)
    assert not cluster.image.alive(1)
    assert cluster.image.offset == before.offset + 1 + 6
    cluster.lose(1)
    assert cluster.image.offset == before.offset + 1 + 6


# ---- S20 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elr", [True, False])
def test_s20_clean_waits_for_a_member_of_the_isr(elr: bool):
    """S20, unclean election off: nobody leads until an ISR member is back, though another replica lives."""
    cluster = Cluster(elr=elr)
    cluster.create("t", (1, 2, 3))
    cluster.set_isr(1, 2)
    cluster.stop(2)
    cluster.stop(1)
    assert cluster.state().leader == -1
    cluster.commit(cluster.controller.elect_leaderless(cluster.image))
    assert cluster.state().leader == -1
    cluster.start(1, clean=True)
    assert cluster.leader() == (1, (1,))
    assert cluster.state().recovered


def test_s20_clean_a_session_that_ended_does_not_bar_a_member_that_kept_its_log():
    """A broker that was only cut off comes back with all its records: its process went on, so it may lead again."""
    cluster = Cluster()
    cluster.create("t", (1, 2, 3))
    cluster.set_isr(1)
    cluster.lose(1)
    assert cluster.state().leader == -1
    cluster.heartbeat(1)
    assert cluster.leader() == (1, (1,))


@pytest.mark.parametrize("elr", [True, False])
def test_s20_unclean_the_first_live_replica_leads_at_once(elr: bool):
    """S20, unclean election on: 3 was out of the ISR, leads all the same, and must recover (KIP-704)."""
    cluster = Cluster(elr=elr, unclean=True)
    cluster.create("t", (1, 2, 3))
    cluster.set_isr(1)
    cluster.lose(2, 1)
    state = cluster.state()
    assert (state.leader, state.isr, state.elr, state.recovered) == (3, (3,), (), False)
    cluster.start(1)
    assert cluster.leader() == (3, (3,))


def test_s20_unclean_only_when_nobody_in_sync_lives():
    """Unclean election is the last resort, not another order."""
    cluster = Cluster(unclean=True)
    cluster.create("t", (1, 2, 3))
    cluster.set_isr(1, 3)
    cluster.lose(1)
    assert cluster.leader() == (3, (3,))
    assert cluster.state().recovered


def test_s20_the_topics_own_setting_wins():
    """unclean.leader.election.enable is a topic's setting; the broker's is its default."""
    cluster = Cluster(unclean=True)
    cluster.create("t", (1, 2), configs={"unclean.leader.election.enable": "false"})
    cluster.create("u", (1, 2))
    for tp in (T0, TopicPartition("u", 0)):
        cluster.set_isr(1, tp=tp)
    cluster.lose(1)
    assert cluster.leader() == (-1, ())
    assert cluster.leader(TopicPartition("u", 0)) == (2, (2,))


def test_s20_a_replica_that_comes_back_later_is_elected_uncleanly():
    """With nobody alive, the first replica that returns leads, in or out of the ISR."""
    cluster = Cluster(unclean=True)
    cluster.create("t", (1, 2))
    cluster.set_isr(1)
    cluster.lose(2, 1)
    assert cluster.state().leader == -1
    cluster.start(2)
    assert cluster.leader() == (2, (2,))
    assert not cluster.state().recovered


def test_a_replica_stays_eligible_only_below_the_smallest_minimum_that_a_leader_may_have():
    """min.insync.replicas rises in the brokers' files: broker 3 still has 1, and would commit alone as a leader. Once it
    has registered with the new minimum, each leader stops in time. A topic's own setting is known to all.
    """
    cluster = Cluster(min_isr=2)
    cluster.minimums[3] = 1
    cluster.start(3)
    cluster.create("t", (1, 2, 3))
    cluster.create("u", (1, 2, 3), configs={"min.insync.replicas": "2"})
    for tp in (T0, TopicPartition("u", 0)):
        cluster.set_isr(1, tp=tp)
    assert (cluster.state().elr, cluster.state(TopicPartition("u", 0)).elr) == ((), (2, 3))
    cluster.set_isr(1, 2)
    payloads = cluster.image.records()
    restored = MetadataImage(cluster_id=CLUSTER_ID).replay_all(payloads, cluster.image.offset, 1)
    assert {node: each.min_insync_replicas for node, each in restored.brokers.items()} == {1: 2, 2: 2, 3: 1}
    del cluster.minimums[3]
    cluster.start(3)
    cluster.set_isr(1)
    assert cluster.state().elr == (2,)


def test_without_elr_the_isr_keeps_its_last_member():
    """KAFKA-FACTS 3.9: without ELR an empty ISR would forget who has the records."""
    cluster = Cluster(elr=False)
    cluster.create("t", (1, 2, 3))
    cluster.lose(3, 2, 1)
    assert cluster.leader() == (-1, (1,))
    cluster.start(2)
    assert cluster.leader() == (-1, (1,))
    cluster.start(1)
    assert cluster.leader() == (1, (1,))


# ---- KIP-966 ---------------------------------------------------------------------------------------------------------


def test_kip966_members_that_leave_below_min_isr_become_eligible():
    """Below min.insync.replicas the watermark stands still: whoever leaves then holds all that is committed."""
    cluster = Cluster(min_isr=2)
    cluster.create("t", (1, 2, 3))
    cluster.set_isr(1, 2)
    assert cluster.state().elr == ()
    cluster.set_isr(1)
    assert cluster.state().elr == (2,)
    cluster.lose(1)
    state = cluster.state()
    assert (state.leader, state.isr, state.elr) == (2, (2,), (1,))


def test_kip966_elr_is_cleared_when_the_isr_suffices_again():
    """From there on the watermark moves without the ELR's members: they may miss committed records."""
    cluster = Cluster(min_isr=2)
    cluster.create("t", (1, 2, 3))
    cluster.set_isr(1)
    assert cluster.state().elr == (2, 3)
    cluster.set_isr(1, 2)
    assert cluster.state().elr == ()


def test_kip966_min_isr_is_bounded_by_the_number_of_replicas():
    """min.insync.replicas=3 with two replicas means two."""
    cluster = Cluster(min_isr=3)
    cluster.create("t", (1, 2))
    assert cluster.state().elr == ()
    cluster.lose(2)
    assert cluster.state().elr == (2,)


def test_kip966_the_isr_may_run_empty_and_an_eligible_replica_leads_when_it_returns():
    """A controlled stop of all: whoever comes back first of the ELR leads, cleanly, and is the ISR."""
    cluster = Cluster(min_isr=2)
    cluster.create("t", (1, 2, 3))
    for node in (1, 2, 3):
        cluster.stop(node)
    state = cluster.state()
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (-1, (), (2, 3), (3,))
    cluster.start(2, clean=True)
    state = cluster.state()
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (2, (2,), (3,), ())
    assert state.recovered


def test_kip966_who_left_before_the_last_two_is_not_eligible():
    """1 left while the ISR still sufficed: records were committed without it, so it must not lead."""
    cluster = Cluster(min_isr=2)
    cluster.create("t", (1, 2, 3))
    for node in (1, 2, 3):
        cluster.stop(node)
    cluster.start(1, clean=True)
    assert cluster.state().leader == -1


def test_kip966_an_unclean_stop_ends_eligibility():
    """Last replica standing (KAFKA-15583): after kill -9 or a power cut the page cache may be gone."""
    cluster = Cluster(min_isr=2)
    cluster.create("t", (1, 2, 3))
    for node in (1, 2, 3):
        cluster.stop(node)
    cluster.start(2)
    state = cluster.state()
    assert (state.leader, state.isr, state.elr) == (-1, (), (3,))


def test_kip966_an_unclean_stop_ends_eligibility_though_the_feature_was_turned_off():
    """The eligible replicas from before are all that an empty ISR can come back from; they are no safer than before."""
    cluster = Cluster(min_isr=2)
    cluster.create("t", (1, 2, 3))
    for node in (1, 2, 3):
        cluster.stop(node)
    cluster.controller = Controller(replace(cluster.controller.policy, eligible_leader_replicas_enable=False))
    cluster.start(2)
    assert (cluster.state().leader, cluster.state().elr) == (-1, (3,))
    cluster.start(3, clean=True)
    assert cluster.leader() == (3, (3,))


def test_kip966_an_unclean_member_of_the_isr_is_dropped_before_it_may_lead():
    """A broker restarts inside its session: the registration itself takes it out, and another leads."""
    cluster = Cluster(min_isr=2)
    cluster.create("t", (1, 2))
    cluster.register(1)
    state = cluster.state()
    assert (state.leader, state.isr, state.elr) == (2, (2,), ())


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_kip966_after_a_power_loss_of_all_the_last_known_leader_leads_when_it_returns(order: tuple[int, ...]):
    """S20: ISR and ELR run empty, unclean election is off, and yet the partition must not stay leaderless for ever."""
    cluster = Cluster(min_isr=2)
    cluster.create("t", (1, 2, 3))
    cluster.lose(1, 2, 3)
    assert (cluster.state().leader, cluster.state().last_known_elr) == (-1, (3,))
    told = why_nobody_leads(cluster.image, replace(cluster.state(), elr=()))
    assert "broker 3, which led last, leads again when it is back" in told
    for turn, node in enumerate(order, start=1):
        cluster.start(node)
        expected = (3, (3,)) if {2, 3} <= set(order[:turn]) else (-1, ())
        assert cluster.leader() == expected, node
    state = cluster.state()
    assert (state.elr, state.last_known_elr, state.recovered) == ((), (), False)


def test_kip966_a_lone_broker_comes_back_after_kill_9():
    """Replication factor 1: there is nobody to wait for, the partition is served again."""
    cluster = Cluster(1)
    cluster.create("t", (1,))
    cluster.lose(1)
    assert (cluster.state().leader, cluster.state().isr, cluster.state().elr) == (-1, (), (1,))
    cluster.start(1)
    state = cluster.state()
    assert (state.leader, state.isr, state.elr, state.recovered) == (1, (1,), (), False)


def test_kip966_the_last_known_leader_waits_for_the_eligible_ones():
    """An ELR member that has not come back may hold more than the last leader after its unclean stop."""
    cluster = Cluster(min_isr=2)
    cluster.create("t", (1, 2))
    cluster.lose(1, 2)
    assert (cluster.state().elr, cluster.state().last_known_elr) == ((1, 2), (2,))
    cluster.start(2)
    assert (cluster.state().leader, cluster.state().elr) == (-1, (1,))
    cluster.register(1)
    assert cluster.leader() == (2, (2,))


def leave_to(cluster: Cluster, last: int) -> None:
    """Everybody else leaves the ISR, and then ``last`` is lost as well."""
    cluster.set_isr(last)
    cluster.lose(last)


def with_disks(*nodes: int, elr: bool = True, min_isr: int = 1) -> Cluster:
    """Brokers that each name their disk, and a topic with one partition on all of them."""
    cluster = Cluster(0, elr=elr, min_isr=min_isr)
    for node in nodes:
        cluster.disks[node] = (f"disk of {node}",)
        cluster.start(node)
    cluster.create("t", nodes)
    return cluster


def replaced(*, elr: bool, min_isr: int = 1) -> Cluster:
    """1 led alone, died, and comes back with an empty disk; 2 lives, and lacks what 1 had committed alone."""
    cluster = with_disks(1, 2, elr=elr, min_isr=min_isr)
    leave_to(cluster, 1)
    cluster.disks[1] = ("another disk",)
    cluster.start(1)
    return cluster


@pytest.mark.parametrize("elr", [True, False])
def test_the_last_known_leader_does_not_lead_by_itself_with_another_disk(elr: bool):
    """KIP-966 trusts the last leader for what it holds; with an empty disk it holds nothing, and as the leader would take
    from everybody what is committed. As in Kafka, where its log directory is not among the registered ones (KIP-858).
    """
    cluster = replaced(elr=elr)
    state = cluster.state()
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (-1, (), (), (1,))
    cluster.commit(cluster.controller.elect_leaderless(cluster.image))
    cluster.start(1)
    cluster.start(1, clean=True)
    assert cluster.state().leader == -1
    assert "broker 1, which led last, is back with another data directory" in why_nobody_leads(cluster.image, state)


@pytest.mark.parametrize("elr", [True, False])
def test_the_last_known_leader_leads_again_when_its_former_disk_is_back(elr: bool):
    """What is committed returns with it; it must recover, for it may have lost what was not synced (KIP-704)."""
    cluster = replaced(elr=elr)
    cluster.disks[1] = ("disk of 1",)
    cluster.start(1)
    state = cluster.state()
    assert (state.leader, state.isr, state.last_known_elr, state.recovered) == (1, (1,), (), False)
    assert state.last_known_dirs == ()


def test_who_died_as_leader_and_returns_with_another_disk_before_its_session_ended():
    """The registration itself takes the lead from it; the disk in which it led is the one registered before."""
    cluster = with_disks(1)
    cluster.disks[1] = ("another disk",)
    cluster.start(1)
    assert (cluster.state().leader, cluster.state().last_known_elr) == (-1, (1,))
    cluster.disks[1] = ("disk of 1",)
    cluster.start(1)
    assert cluster.leader() == (1, (1,))


def test_without_elr_a_former_disk_is_remembered_though_the_lead_was_lost_before():
    """The ISR kept its last member when that was lost; it must not when the member comes back with another disk."""
    cluster = with_disks(1, 2, elr=False)
    leave_to(cluster, 1)
    assert cluster.leader() == (-1, (1,))
    cluster.disks[1] = ("another disk",)
    cluster.start(1)
    assert cluster.leader() == (-1, ())
    cluster.disks[1] = ("disk of 1",)
    cluster.start(1)
    assert cluster.leader() == (1, (1,))


def test_a_follower_with_another_disk_does_not_keep_the_leader_from_returning():
    """It is the last leader's disk that counts."""
    cluster = with_disks(1, 2)
    leave_to(cluster, 1)
    cluster.disks[2] = ("another disk",)
    cluster.start(2)
    cluster.start(1)
    assert cluster.leader() == (1, (1,))


def test_an_unclean_election_takes_the_last_known_leader_with_another_disk_only_when_nobody_else_lives():
    """By hand, and where the topic says so. It holds nothing, while any other replica may hold all that is committed."""
    by_hand = replaced(elr=True)
    assert elect(by_hand, "unclean", 0) == {0: 0}
    assert (by_hand.leader(), by_hand.state().recovered) == ((2, (2,)), False)
    allowed = replaced(elr=True)
    allowed.configure(unclean_leader_election_enable="true")
    assert allowed.leader() == (2, (2,))
    alone = replaced(elr=True)
    alone.lose(2)
    assert elect(alone, "unclean", 0) == {0: 0}
    assert alone.leader() == (1, (1,))


@pytest.mark.parametrize("elr", [True, False])
def test_the_last_known_leader_does_not_lead_without_the_partitions_folder(elr: bool):
    """A folder that is gone is as bad as a lost disk, also once its empty successor has survived another restart."""
    cluster = with_disks(1, 2, elr=elr)
    leave_to(cluster, 1)
    cluster.start(1, missing=(T0,))
    state = cluster.state()
    assert (state.leader, state.isr, state.elr, state.last_known_elr) == (-1, (), (), (1,))
    cluster.commit(cluster.controller.elect_leaderless(cluster.image))
    cluster.start(1)
    cluster.start(1, clean=True)
    assert cluster.state().leader == -1
    assert "broker 1, which led last, is back without the partition's folder" in why_nobody_leads(cluster.image, state)
    assert elect(cluster, "unclean", 0) == {0: 0}
    assert cluster.leader() == (2, (2,)), "an unclean election prefers the replica that may hold records"
    assert cluster.state().last_known_dirs == ()


def test_an_eligible_replica_without_its_folder_is_not_eligible():
    """A clean stop vouches for a log that was removed afterwards; the process that has to create it anew does not."""
    cluster = with_disks(1, 2, 3, min_isr=2)
    cluster.stop(2)
    cluster.stop(1)
    cluster.stop(3)
    assert cluster.state().elr == (1, 3)
    cluster.start(1, clean=True, missing=(T0,))
    assert (cluster.leader(), cluster.state().elr) == ((-1, ()), (3,))
    cluster.start(3, clean=True)
    assert cluster.leader() == (3, (3,))


def test_a_new_partition_may_be_led_by_a_broker_that_had_to_create_its_log():
    """Only a log that the metadata says the broker held can be lost."""
    cluster = with_disks(1, 2)
    cluster.lose(2)
    cluster.set_isr(1)
    cluster.start(2, missing=(T0,))
    cluster.set_isr(1, 2)
    cluster.lose(1)
    assert cluster.leader() == (2, (2,))


def test_who_does_not_tell_its_log_directory_is_believed():
    """Brokers of before, and metadata that they wrote: nobody knows of another disk."""
    for was, now in ((("a",), ()), ((), ("a",)), ((), ())):
        cluster = Cluster(0)
        cluster.disks[1] = was
        cluster.start(1)
        cluster.create("t", (1,))
        cluster.lose(1)
        cluster.disks[1] = now
        cluster.start(1)
        assert cluster.leader() == (1, (1,))


def test_kip704_recovery_ends_when_the_leader_says_so():
    """Only an uncleanly elected leader recovers, and it cannot take others in before."""
    cluster = Cluster(unclean=True)
    cluster.create("t", (1, 2))
    cluster.set_isr(1)
    cluster.lose(1)
    cluster.start(1)
    assert cluster.propose(cluster.proposal(1, 2, recovered=False)).error_code == 42
    assert cluster.propose(cluster.proposal(2)).error_code == 0
    assert cluster.state().recovered
    cluster.set_isr(1, 2)


# ---- by hand, and home again -------------------------------------------------------------------------------------------


def test_leaders_return_to_their_preferred_replica():
    """auto.leader.rebalance: as soon as the preferred replica is back in the ISR, and not before."""
    cluster = Cluster()
    cluster.create("t", (1, 2, 3))
    cluster.lose(1)
    cluster.start(1)
    assert cluster.controller.prefer_leaders(cluster.image).records == ()
    cluster.set_isr(1, 2, 3)
    cluster.commit(cluster.controller.prefer_leaders(cluster.image))
    assert cluster.leader() == (1, (1, 2, 3))
    assert cluster.state().leader_epoch == 2


def elect(cluster: Cluster, kind: str, *partitions: int) -> dict[int, int]:
    """Partition -> error code."""
    asked = tuple(PartitionName(topic="t", partition=number) for number in partitions) or None
    request = ElectLeadersRequest(election_type=kind, partitions=asked)
    response = cluster.commit(cluster.controller.elect_leaders(cluster.image, request))
    return {each.partition: each.error_code for each in response.partitions}


def test_elections_by_hand_preferred():
    """Each partition answers for itself: 84 not needed, 80 not available, 3 unknown."""
    cluster = Cluster()
    cluster.create("t", (1, 2), (2, 1), (3, 2))
    cluster.lose(1, 3)
    cluster.start(1)
    cluster.set_isr(1, 2)
    assert elect(cluster, "preferred", 0, 1, 2, 7, 0) == {0: 0, 1: 84, 2: 80, 7: 3}
    assert cluster.leader() == (1, (1, 2))
    assert elect(cluster, "preferred") == {2: 80}


def test_elections_by_hand_that_name_an_epoch_happen_once():
    """A copy of the request may arrive when the elected leader is away, and only a replica that lacks records lives."""
    cluster = Cluster()
    cluster.create("t", (1, 2))
    cluster.set_isr(1)
    cluster.lose(1)
    names, epochs = (PartitionName(topic="t", partition=0),), (cluster.state().leader_epoch,)
    request = ElectLeadersRequest(election_type="unclean", partitions=names, leader_epochs=epochs)
    elected = cluster.commit(cluster.controller.elect_leaders(cluster.image, request)).partitions[0]
    assert (elected.error_code, cluster.leader()) == (0, (2, (2,)))
    cluster.start(1)
    cluster.lose(2)
    assert cluster.leader()[0] == -1
    late = cluster.commit(cluster.controller.elect_leaders(cluster.image, request)).partitions[0]
    assert (late.error_code, cluster.leader()[0]) == (ElectionNotNeeded.code, -1)


def test_an_election_by_hand_names_one_epoch_for_each_partition():
    """Otherwise it would not be known of which partition an epoch is."""
    cluster = Cluster()
    cluster.create("t", (1, 2))
    for names in ((PartitionName(topic="t", partition=0),) * 2, None):
        request = ElectLeadersRequest(partitions=names, leader_epochs=(1,))
        with pytest.raises(InvalidRequest, match="leader_epochs"):
            cluster.controller.elect_leaders(cluster.image, request)


def test_elections_by_hand_unclean():
    """An administrator may accept the loss, for a partition without leader only: 84 not needed, 83 nobody alive."""
    cluster = Cluster()
    cluster.create("t", (1, 2), (2, 1), (1, 3))
    cluster.set_isr(1)
    cluster.lose(3, 1)
    assert elect(cluster, "unclean", 0, 1, 2) == {0: 0, 1: 84, 2: 83}
    assert (cluster.leader(), cluster.state().recovered) == ((2, (2,)), False)
