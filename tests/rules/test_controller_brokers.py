"""Registration, sessions, fencing, controlled shutdown, producer ids: a broker's life as the controller sees it."""

from __future__ import annotations

import pytest

from minikafka.errors import (
    BrokerIdNotRegistered,
    DuplicateBrokerRegistration,
    InconsistentClusterId,
    InvalidRequest,
    StaleBrokerEpoch,
)
from minikafka.quorum.controller_brokers import Sessions
from minikafka.quorum.image import MetadataImage
from minikafka.quorum.records import RegisterBroker, decode, encode
from minikafka.quorum.roles import NEVER
from minikafka.wire.messages import (
    AllocateProducerIdsRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    DeleteTopicsRequest,
    MissingReplica,
    UnregisterBrokerRequest,
)
from tests.rules.controller_kit import CLUSTER_ID, Cluster

# ---- unregistration --------------------------------------------------------------------------------------------------


def unregister(cluster: Cluster, node: int) -> None:
    cluster.commit(cluster.controller.unregister(cluster.image, UnregisterBrokerRequest(broker_id=node)))


def test_a_broker_that_is_gone_for_good_is_forgotten():
    """As Kafka's UnregisterBroker: snapshots do not have it either, and its id is free for a new broker."""
    cluster = Cluster(4)
    cluster.create("t", (1, 2, 3))
    cluster.lose(4)
    unregister(cluster, 4)
    assert sorted(cluster.image.brokers) == [1, 2, 3]
    payloads = [decode(encode(record)) for record in cluster.image.records()]
    assert sorted(MetadataImage(cluster_id=CLUSTER_ID).replay_all(payloads, 99, 1).brokers) == [1, 2, 3]
    cluster.start(4)
    assert cluster.image.alive(4)


def test_a_broker_that_is_used_is_not_forgotten():
    """One that comes back registers as new, and nothing is decided about its replicas: so it must have none."""
    cluster = Cluster(4)
    cluster.create("t", *[(1, 2, 3)] * 5)
    with pytest.raises(InvalidRequest, match="broker 4 is alive; stop it first"):
        unregister(cluster, 4)
    cluster.lose(3)
    with pytest.raises(InvalidRequest, match="broker 3 has replicas of t-0, t-1, t-2 and 2 more; move them"):
        unregister(cluster, 3)
    with pytest.raises(BrokerIdNotRegistered, match=r"no broker 9 is registered, only \[1, 2, 3, 4\]"):
        unregister(cluster, 9)


def test_a_late_heartbeat_of_a_forgotten_broker_is_stale():
    """A process that was only cut off registers again, as a new broker."""
    cluster = Cluster(4)
    epoch = cluster.image.brokers[4].broker_epoch
    cluster.lose(4)
    unregister(cluster, 4)
    late = BrokerHeartbeatRequest(broker_id=4, broker_epoch=epoch, current_metadata_offset=99)
    with pytest.raises(StaleBrokerEpoch, match="broker 4 is not registered"):
        cluster.controller.heartbeat(cluster.image, late, lowest_other_offset=None, shutdown_offset=0)
    cluster.start(4)
    assert cluster.image.brokers[4].broker_epoch > epoch


# ---- registration ----------------------------------------------------------------------------------------------------


def test_a_broker_s_other_listeners_are_recorded_and_survive_a_snapshot():
    """HTTP-CLI-CONVENTIONS 4.3: clients of the host are told the published port, brokers the name in their network."""
    cluster = Cluster(0)
    cluster.register(1, listeners="PLAINTEXT_HOST://localhost:29092")
    broker = cluster.image.brokers[1]
    assert broker.address == ("127.0.0.1", 9091)
    assert broker.address_at("PLAINTEXT_HOST") == ("localhost", 29092)
    assert broker.address_at("PLAINTEXT") == broker.address_at("") == broker.address
    payloads = [decode(encode(record)) for record in cluster.image.records()]
    assert MetadataImage(cluster_id=CLUSTER_ID).replay_all(payloads, cluster.image.offset, 1).brokers[1] == broker


@pytest.mark.parametrize(
    "listeners", ["A://nowhere", "A://a:1,A://b:2", ",".join(f"L{n}://h:{n + 1}" for n in range(21))]
)
def test_listeners_that_nobody_could_use_are_refused(listeners: str):
    """What a registration says is kept by every broker, and told to every client."""
    with pytest.raises(InvalidRequest):
        Cluster(0).register(1, listeners=listeners)


@pytest.mark.parametrize("rack", ["r" * 256, "a\nb"])
def test_racks_that_are_long_or_unprintable_are_refused(rack: str):
    """They are kept by every broker, and shown in tables and log lines."""
    request = BrokerRegistrationRequest(
        broker_id=1, cluster_id=CLUSTER_ID, incarnation_id="i", host="h", port=1, rack=rack
    )
    cluster = Cluster(0)
    with pytest.raises(InvalidRequest, match="rack="):
        cluster.controller.register(cluster.image, request, may_live=False)


@pytest.mark.parametrize("log_dirs", [("d" * 65,), tuple(f"d{number}" for number in range(21))])
def test_more_log_directories_than_a_broker_has_are_refused(log_dirs: tuple[str, ...]):
    """They too are kept by every broker and by every snapshot."""
    cluster = Cluster(0)
    cluster.disks[1] = log_dirs
    with pytest.raises(InvalidRequest, match="log_dirs"):
        cluster.register(1)


def test_a_broker_whose_disk_ignores_case_is_refused_where_topics_differ_only_in_case():
    """It would keep their records in one folder, and the controller may place replicas on it at any time."""
    cluster = Cluster(1)
    cluster.create("Orders", factor=1)
    cluster.create("orders", factor=1)
    cluster.ignoring_case = {1, 2}
    for node in (1, 2):
        with pytest.raises(InvalidRequest, match=f"broker {node}'s data directory ignores case.*'Orders' and 'orders'"):
            cluster.register(node)
    cluster.commit(cluster.controller.delete_topics(cluster.image, DeleteTopicsRequest(topics=("Orders",))))
    cluster.register(2)
    assert cluster.image.brokers[2].ignores_case is True
    payloads = cluster.image.records()
    assert MetadataImage(cluster_id=CLUSTER_ID).replay_all(payloads, cluster.image.offset, 1).brokers[2].ignores_case


@pytest.mark.parametrize("name", ["__Consumer_offsets", "__CLUSTER_METADATA"])
def test_a_broker_whose_disk_ignores_case_needs_the_folders_of_internal_topics(name: str):
    """They are made later than topics of users, or are no topics."""
    cluster = Cluster(1)
    cluster.create(name, factor=1)
    cluster.ignoring_case = {2}
    with pytest.raises(InvalidRequest, match=name):
        cluster.register(2)


def test_a_broker_starts_fenced_and_its_epoch_is_the_offset_of_its_record():
    """KAFKA-FACTS 4.3: it must have read its own registration before it is counted."""
    cluster = Cluster(0)
    cluster.image = cluster.image.replay_all((), 17, 1)
    assert cluster.register(1) == 17
    assert not cluster.image.alive(1)
    assert cluster.heartbeat(1, offset=17).is_fenced
    assert not cluster.heartbeat(1, offset=17).is_caught_up
    answer = cluster.heartbeat(1, offset=18)
    assert (answer.is_fenced, answer.is_caught_up) == (False, True)
    assert cluster.image.eligible(1)


def test_a_new_broker_that_knows_all_is_let_in_at_once_and_one_that_returns_is_not():
    """A new one has no replicas: nothing hangs on it yet. Whoever returns may be the one that leaders wait for."""
    cluster = Cluster(0)
    cluster.register(1, caught_up=True)
    assert cluster.image.eligible(1)
    cluster.register(1, caught_up=True, clean=True)
    assert cluster.image.brokers[1].fenced


def test_a_second_incarnation_is_refused_while_the_first_is_heard():
    """Two processes with one node.id would be one replica with two logs."""
    cluster = Cluster(1)
    with pytest.raises(DuplicateBrokerRegistration):
        cluster.register(1, may_live=True)
    assert cluster.register(1, may_live=False) > 0


def test_a_clean_stop_frees_the_id_at_once():
    """The mark with the last broker epoch is written last: its process is gone, there is no session to wait for."""
    cluster = Cluster(1)
    before = cluster.image.brokers[1].broker_epoch
    assert cluster.register(1, may_live=True, clean=True) > before


def test_the_same_incarnation_registers_twice():
    """The answer was lost: the second one must tell the same epoch, and take nothing away."""
    cluster = Cluster()
    cluster.create("t", (1, 2, 3))
    epoch = cluster.register(1, incarnation="same")
    before = cluster.image
    assert cluster.register(1, incarnation="same", may_live=True) == epoch
    assert cluster.image.topics is before.topics


@pytest.mark.parametrize(
    "node, cluster_id, incarnation, error",
    [
        (1, "other", "i", InconsistentClusterId),
        (-1, CLUSTER_ID, "i", InvalidRequest),
        (1, CLUSTER_ID, "", InvalidRequest),
    ],
)
def test_who_is_not_let_in(node: int, cluster_id: str, incarnation: str, error: type[Exception]):
    """A broker of another cluster would serve other logs under our names."""
    cluster = Cluster(0)
    request = BrokerRegistrationRequest(
        broker_id=node, cluster_id=cluster_id, incarnation_id=incarnation, host="h", port=1
    )
    with pytest.raises(error):
        cluster.controller.register(cluster.image, request, may_live=False)


def test_a_new_incarnation_leaves_every_isr_and_its_leaders_move():
    """KAFKA-14139: what it has on disk is not known to be what it acknowledged; it joins by catching up."""
    cluster = Cluster()
    cluster.create(partitions=3, factor=3)
    cluster.register(1)
    assert all(1 not in each.isr and each.leader != 1 for each in cluster.image.topics["t"].partitions)
    assert all(each.elr == () for each in cluster.image.topics["t"].partitions)


def test_the_epoch_of_the_last_life_shows_a_clean_stop():
    """KIP-966: previous_broker_epoch is what the clean shutdown marker holds; any other value means unclean."""
    for clean, elr in ((True, (1,)), (False, ())):
        cluster = Cluster(2, min_isr=2)
        cluster.create("t", (1, 2))
        cluster.register(1, clean=clean)
        assert cluster.state().elr == elr, clean


def test_the_marker_of_an_older_life_is_no_clean_stop():
    """KIP-966: a process that registered after that marker was written, and was killed, may have lost its page cache."""
    cluster = Cluster(2, min_isr=2)
    cluster.create("t", (1, 2))
    known = cluster.image.brokers[2]
    assert known.broker_epoch > 0
    request = BrokerRegistrationRequest(
        broker_id=2,
        cluster_id=CLUSTER_ID,
        incarnation_id="new",
        host="127.0.0.1",
        port=9092,
        previous_broker_epoch=known.broker_epoch - 1,
    )
    with pytest.raises(DuplicateBrokerRegistration):
        cluster.controller.register(cluster.image, request, may_live=True)
    cluster.commit(cluster.controller.register(cluster.image, request, may_live=False), request)
    assert cluster.state().elr == ()


# ---- heartbeats ------------------------------------------------------------------------------------------------------


def test_a_heartbeat_of_another_incarnation_is_refused():
    """A zombie must not keep its successor's session alive."""
    cluster = Cluster(1)
    for node, epoch in ((1, 98), (2, 0)):
        request = BrokerHeartbeatRequest(broker_id=node, broker_epoch=epoch, current_metadata_offset=99)
        with pytest.raises(StaleBrokerEpoch):
            cluster.controller.heartbeat(cluster.image, request, lowest_other_offset=None, shutdown_offset=0)


def test_a_heartbeat_of_a_healthy_broker_records_nothing():
    """Heartbeats are soft state: the metadata log stands still in a quiet cluster."""
    cluster = Cluster()
    before = cluster.image
    answer = cluster.heartbeat(1)
    assert (answer.is_fenced, answer.is_caught_up, answer.should_shut_down) == (False, True, False)
    assert cluster.image == before


def test_a_broker_may_ask_to_be_fenced_and_come_back():
    """want_fence: a broker that cannot serve steps back, and returns when it no longer asks."""
    cluster = Cluster()
    cluster.create("t", (1, 2, 3))
    assert cluster.heartbeat(1, want_fence=True).is_fenced
    assert cluster.leader() == (2, (2, 3))
    assert cluster.heartbeat(1, want_fence=True).is_fenced
    assert not cluster.heartbeat(1).is_fenced
    assert cluster.leader() == (2, (2, 3))


# ---- controlled shutdown -----------------------------------------------------------------------------------------------


def test_controlled_shutdown_moves_leaders_before_it_lets_go():
    """No client may meet a broker that is gone: leaders move at once, the stop waits until the others know."""
    cluster = Cluster()
    cluster.create(partitions=3, factor=3)
    answer = cluster.heartbeat(1, want_shut_down=True)
    moved = cluster.image.offset
    assert (answer.should_shut_down, answer.is_fenced) == (False, False)
    assert all(1 not in each.isr and each.leader != 1 for each in cluster.image.topics["t"].partitions)
    assert cluster.image.brokers[1].in_controlled_shutdown
    assert not cluster.image.eligible(1)

    late = cluster.heartbeat(1, want_shut_down=True, lowest_other_offset=moved - 1, shutdown_offset=moved)
    assert (late.should_shut_down, late.is_fenced) == (False, False)
    done = cluster.heartbeat(1, want_shut_down=True, lowest_other_offset=moved, shutdown_offset=moved)
    assert (done.should_shut_down, done.is_fenced) == (True, True)
    assert cluster.image.brokers[1].fenced
    again = cluster.heartbeat(1, want_shut_down=True, lowest_other_offset=moved, shutdown_offset=moved)
    assert again.should_shut_down


def test_controlled_shutdown_waits_for_a_sign_of_life_of_the_only_replica_that_stays():
    """Seed 651803203: the replica that inherited the partition had lost power, and its unsynced records, before."""
    cluster = Cluster(min_isr=1)
    cluster.create("t", (1, 2, 3))
    cluster.lose(2)
    answer = cluster.heartbeat(1, want_shut_down=True, silent=frozenset({3}))
    assert (answer.should_shut_down, answer.is_fenced) == (False, False)
    assert cluster.leader() == (1, (1, 3))
    assert not cluster.image.brokers[1].in_controlled_shutdown

    cluster.heartbeat(1, want_shut_down=True)
    assert cluster.leader() == (3, (3,))


def test_controlled_shutdown_waits_for_a_sign_of_life_of_one_of_those_that_stay():
    """Of two silent replicas one had lost power and the other was cut off, which the controller learned a moment later."""
    cluster = Cluster(min_isr=1)
    cluster.create("t", (1, 2, 3))
    cluster.heartbeat(1, want_shut_down=True, silent=frozenset({2, 3}))
    assert cluster.leader() == (1, (1, 2, 3))

    cluster.heartbeat(1, want_shut_down=True, silent=frozenset({3}))
    assert cluster.leader() == (2, (2, 3))

    enough = Cluster(min_isr=2)
    enough.create("t", (1, 2, 3))
    enough.heartbeat(1, want_shut_down=True, silent=frozenset({2, 3}))
    assert enough.leader() == (1, (1, 2, 3)), "with two left, the replica that stops would not be eligible to lead"

    ineligible = Cluster(min_isr=2, elr=False)
    ineligible.create("t", (1, 3))
    ineligible.heartbeat(1, want_shut_down=True, silent=frozenset({2, 3}))
    assert ineligible.leader() == (1, (1, 3)), "without KIP-966 the replica that stops could not lead again"


def test_controlled_shutdown_does_not_wait_when_nothing_can_be_lost():
    """The replica that stops remains eligible to lead (KIP-966), or nothing stays."""
    eligible = Cluster(min_isr=2)
    eligible.create("t", (1, 3))
    eligible.heartbeat(1, want_shut_down=True, silent=frozenset({2, 3}))
    assert eligible.leader() == (3, (3,))
    assert eligible.state().elr == (1,)

    alone = Cluster(min_isr=1)
    alone.create("t", (1,))
    alone.heartbeat(1, want_shut_down=True, silent=frozenset({2, 3}))
    assert alone.image.brokers[1].in_controlled_shutdown


def test_a_broker_that_does_not_want_to_stop_is_not_stopped():
    """A shutdown that somebody else began in its name ends with a broker that is unfenced again."""
    cluster = Cluster()
    cluster.create("t", (1, 2))
    cluster.heartbeat(1, want_shut_down=True)
    assert cluster.leader()[0] == 2
    answer = cluster.heartbeat(1)
    assert (answer.should_shut_down, answer.is_fenced) == (False, True)
    answer = cluster.heartbeat(1)
    assert (answer.should_shut_down, answer.is_fenced) == (False, False)
    assert cluster.image.eligible(1)


def test_the_last_broker_may_stop_too():
    """Nobody can take over: the partitions are left without a leader, and come back with the broker."""
    cluster = Cluster(1)
    cluster.create("t", (1,))
    cluster.stop(1)
    assert cluster.leader() == (-1, ())
    cluster.start(1, clean=True)
    assert cluster.leader() == (1, (1,))
    assert cluster.state().recovered


def test_a_fenced_broker_may_stop_at_once():
    """It leads nothing, and nobody counts on it."""
    cluster = Cluster()
    cluster.lose(1)
    assert cluster.heartbeat(1, want_shut_down=True).should_shut_down


def test_a_restart_after_a_controlled_shutdown_is_a_fresh_registration():
    """The mark of shutting down belongs to the incarnation."""
    cluster = Cluster()
    cluster.stop(1)
    cluster.start(1, clean=True)
    assert cluster.image.eligible(1)


# ---- sessions ----------------------------------------------------------------------------------------------------------


def test_s14_a_session_ends_when_the_timeout_is_over_and_not_before():
    """S14: alive means heard within broker.session.timeout.ms; the longest silence is fenced first."""
    sessions = Sessions(timeout_s=9.0)
    sessions.begun(2, 0.0)
    sessions.begun(1, 1.0)
    sessions.begun(3, 1.0)
    assert sessions.next_deadline() == 9.0
    assert sessions.expired(8.999) == []
    assert sessions.alive(2, 8.999)
    assert not sessions.alive(2, 9.0)
    assert sessions.expired(9.0) == [2]
    assert sessions.expired(10.0) == [2, 1, 3]
    sessions.touched(2, 9.5)
    assert sessions.expired(10.0) == [1, 3]
    sessions.ended(1)
    sessions.ended(3)
    assert sessions.next_deadline() == 18.5
    sessions.ended(2)
    assert sessions.next_deadline() is None
    assert not sessions.alive(2, 9.5)


def test_a_broker_unheard_in_this_reign_keeps_its_next_incarnation_out_for_one_heartbeat_only():
    """The controller and a broker died and returned: the new reign has never heard the dead incarnation."""
    sessions = Sessions(timeout_s=9.0)
    sessions.restart((1, 2), 10.0)
    sessions.touched(1, 10.5)
    assert sessions.may_live(2, 11.999, patience_s=2.0)
    assert not sessions.may_live(2, 12.0, patience_s=2.0)
    assert sessions.alive(2, 12.0), "it is not fenced, in case nothing registers in its place"
    assert sessions.may_live(1, 19.499, patience_s=2.0), "it was heard, so its session counts to its end"
    assert not sessions.may_live(1, 19.5, patience_s=2.0)
    assert not sessions.may_live(3, 10.0, patience_s=2.0)


def test_a_controller_that_was_cut_off_or_stopped_spares_silent_brokers():
    """Issue 15, found by `chaos run storm`: it woke and fenced all brokers before it had read what lay in its sockets."""
    sessions = Sessions(timeout_s=8.0)
    sessions.restart((1, 2), 0.0)
    sessions.spare(7.0, connected_at=0.0, resumed_at=NEVER)
    assert sessions.next_deadline() == 8.0, "nobody is late yet"
    assert sessions.expired(9.0) == [1, 2]
    sessions.spare(9.0, connected_at=6.3, resumed_at=NEVER)
    assert sessions.expired(9.0) == []
    assert sessions.alive(1, 9.0)
    assert sessions.next_deadline() == 11.0
    sessions.touched(2, 10.0)
    assert sessions.expired(11.0) == [1]


def test_a_connected_controller_spares_nobody():
    """S14: while a majority follows the controller, silence counts as ever."""
    sessions = Sessions(timeout_s=8.0)
    sessions.restart((1, 2), 0.0)
    sessions.spare(9.0, connected_at=6.4, resumed_at=NEVER)
    assert sessions.expired(9.0) == [1, 2]


def test_every_broker_has_a_full_session_once_the_controller_hears_again():
    """Scenario storm, seed 18: a controller returned just before a session ended, and fenced the live broker at that end,
    because its heartbeat of that time had been lost and was not repeated yet.
    """
    sessions = Sessions(timeout_s=8.0)
    sessions.restart((1, 2, 3), 0.0)
    sessions.touched(3, 0.5)
    sessions.spare(7.9, connected_at=7.9, resumed_at=7.9)
    assert sessions.expired(15.8) == []
    assert sessions.next_deadline() == 15.9
    sessions.touched(2, 10.0)
    assert sessions.expired(15.9) == [1, 3]
    assert sessions.expired(17.9) == [1, 3]
    assert sessions.expired(18.0) == [1, 3, 2]
    assert not sessions.heard_since(1, 7.0), "a refused connection is evidence all the same"


def test_an_interruption_before_the_reign_began_extends_no_session():
    """Failover: a predecessor's session is dated from the last contact, also after an election that took long."""
    sessions = Sessions(timeout_s=8.0)
    sessions.spare(50.0, connected_at=50.0, resumed_at=50.0)
    sessions.restart((1, 2), 100.0, {1: 93.0})
    sessions.spare(101.0, connected_at=101.0, resumed_at=99.5)
    assert sessions.expired(101.0) == [1]


def test_a_session_that_only_an_interruption_has_extended_keeps_a_registration_out_for_one_heartbeat():
    """As with a new controller: a living broker is heard by then, a restarted one does not wait for a full session."""
    sessions = Sessions(timeout_s=8.0)
    sessions.restart((1, 2), 0.0)
    for node in (1, 2):
        sessions.touched(node, 1.0)
    sessions.touched(2, 5.0)
    sessions.spare(9.5, connected_at=9.5, resumed_at=9.5)
    assert sessions.may_live(1, 11.4, patience_s=2.0)
    assert not sessions.may_live(1, 11.5, patience_s=2.0)
    assert sessions.alive(1, 11.5), "it is not fenced, in case nothing registers in its place"
    assert sessions.may_live(2, 12.9, patience_s=2.0), "it was heard, so its session counts to its end"
    assert not sessions.may_live(2, 13.0, patience_s=2.0)


def test_nobody_registers_in_the_place_of_a_broker_that_a_deaf_controller_could_not_hear():
    """Its silence shows nothing yet."""
    sessions = Sessions(timeout_s=8.0)
    sessions.restart((1,), 0.0)
    sessions.touched(1, 1.0)
    sessions.spare(9.5, connected_at=2.0, resumed_at=NEVER)
    assert sessions.may_live(1, 11.4, patience_s=1.0)
    assert not sessions.may_live(1, 11.5, patience_s=1.0)


def test_an_interruption_of_a_former_reign_spares_nobody_in_the_next_one():
    """The predecessor was silent before: its session would end later by as much."""
    sessions = Sessions(timeout_s=8.0)
    sessions.restart((1,), 0.0)
    sessions.spare(9.0, connected_at=9.0, resumed_at=9.0)
    sessions.restart((1, 2), 12.0, {1: 5.0})
    assert sessions.next_deadline() == 13.0


def test_time_never_goes_back_for_a_session():
    """Two heartbeats may be handled out of order: the later one counts."""
    sessions = Sessions(timeout_s=9.0)
    sessions.touched(1, 5.0)
    sessions.touched(1, 3.0)
    assert sessions.next_deadline() == 14.0


def test_a_new_controller_restarts_the_clocks_but_not_its_predecessors():
    """Failover of the active controller: its session is dated from the last contact, else the election's time is added."""
    sessions = Sessions(timeout_s=9.0)
    sessions.touched(7, 0.0)
    sessions.restart((1, 2, 3), 100.0, {1: 96.5})
    assert sessions.expired(105.5) == [1]
    assert sessions.expired(108.9) == [1]
    assert sessions.expired(109.0) == [1, 2, 3]
    assert not sessions.alive(7, 100.0)


def test_what_the_others_have_read():
    """A stopping broker waits for the slowest; one that has not said yet is the slowest."""
    sessions = Sessions(timeout_s=9.0)
    sessions.touched(1, 0.0, metadata_offset=10)
    sessions.touched(2, 0.0, metadata_offset=7)
    sessions.touched(2, 1.0, metadata_offset=6)
    sessions.touched(3, 0.0)
    assert sessions.lowest_offset((1, 2)) == 7
    assert sessions.lowest_offset((1, 2, 3)) == -1
    assert sessions.lowest_offset((1, 4)) == -1
    assert sessions.lowest_offset(()) is None


def test_the_offset_that_moved_a_brokers_leaders_is_kept_once():
    """Later heartbeats do not move the goal; a new incarnation has none."""
    sessions = Sessions(timeout_s=9.0)
    sessions.begun(1, 0.0)
    assert sessions.shutdown_offset(1) is None
    sessions.shutting_down(1, 40)
    sessions.shutting_down(1, 50)
    assert sessions.shutdown_offset(1) == 40
    sessions.begun(1, 1.0)
    assert sessions.shutdown_offset(1) is None
    sessions.shutting_down(2, 5)
    assert sessions.shutdown_offset(2) is None


def test_signs_of_life_count_from_the_first_request_to_shut_down():
    """Seed 940000448: a controller that had stood still read heartbeats of a process that had died since."""
    sessions = Sessions(timeout_s=9.0)
    sessions.restart((1, 2, 3), 0.0)
    brokers = (2, 3, 4)
    assert sessions.silent_since_asked_to_stop(1, brokers) == frozenset()
    sessions.lives(2, 1.0, 1.0)
    sessions.asked_to_stop(1, 2.0)
    sessions.asked_to_stop(1, 4.0)
    sessions.touched(2, 3.0)
    assert sessions.silent_since_asked_to_stop(1, brokers) == {2, 3, 4}
    sessions.lives(2, 3.0, 3.0)
    sessions.lives(2, 1.5, 1.5)  # its answer comes after that of a later question
    assert sessions.silent_since_asked_to_stop(1, brokers) == {3, 4}
    sessions.begun(2, 5.0)
    assert sessions.silent_since_asked_to_stop(1, brokers) == {2, 3, 4}
    sessions.asked_to_stop(1, 6.0, wants=False)
    assert sessions.silent_since_asked_to_stop(1, brokers) == frozenset()


def test_an_answered_question_prolongs_the_session():
    """Seed 943000672: the only living replica that stayed had been cut off until a moment before it answered. Its session
    ended before that of a dead one, which was left alone in the ISR and led again without its unsynced records.
    """
    sessions = Sessions(timeout_s=9.0)
    sessions.restart((1, 2, 3), 0.0)
    sessions.touched(3, 2.0)  # its last heartbeat
    sessions.asked_to_stop(1, 8.0)
    sessions.lives(2, 8.0, 8.5)
    assert sessions.silent_since_asked_to_stop(1, (2, 3)) == {3}
    assert sessions.expired(12.0) == [1, 3]


def test_a_broker_without_a_session_has_given_no_sign_of_life():
    """Seed 651810754: the dead incarnation of the controller's own node has no session, and counted as heard."""
    sessions = Sessions(timeout_s=9.0)
    sessions.restart((1, 2), 0.0)
    sessions.asked_to_stop(2, 1.0)
    sessions.lives(1, 2.0, 2.0)
    sessions.lives(3, 2.0, 2.0)
    assert sessions.silent_since_asked_to_stop(2, (1, 3)) == {3}


# ---- producer ids --------------------------------------------------------------------------------------------------------


def test_producer_ids_are_handed_out_once():
    """Two producers with one id would each be told that the other's records were their own duplicates."""
    cluster = Cluster(2)
    blocks = []
    for node in (1, 2, 1):
        request = AllocateProducerIdsRequest(broker_id=node, broker_epoch=cluster.image.brokers[node].broker_epoch)
        answer = cluster.commit(cluster.controller.allocate_producer_ids(cluster.image, request))
        blocks.append((answer.producer_id_start, answer.producer_id_len))
    assert blocks == [(0, 1000), (1000, 1000), (2000, 1000)]
    with pytest.raises(StaleBrokerEpoch):
        stale = AllocateProducerIdsRequest(broker_id=1, broker_epoch=98)
        cluster.controller.allocate_producer_ids(cluster.image, stale)


def test_a_registration_comes_after_what_follows_from_it():
    """If the records do not fit one batch and only some are recorded, the broker registers again."""
    cluster = Cluster()
    cluster.create("t", (1, 2, 3))
    request = BrokerRegistrationRequest(broker_id=1, cluster_id=CLUSTER_ID, incarnation_id="new", host="h", port=1)
    records = cluster.controller.register(cluster.image, request, may_live=False).records
    assert [type(record).__name__ for record in records] == ["PartitionChange", "RegisterBroker"]
    assert isinstance(records[1], RegisterBroker)
    assert records[1].broker_epoch is None


def test_a_broker_is_fenced_after_its_leaders_have_moved():
    """If only some of the records are committed, the next controller must find a session to end: it moves no leader of
    a broker that is fenced already.
    """
    cluster = Cluster(3)
    cluster.create("t", (1, 2, 3))
    decision = cluster.controller.broker_lost(cluster.image, 1)
    assert decision.divisible
    assert [type(record).__name__ for record in decision.records] == ["PartitionChange", "BrokerRegistrationChange"]


def test_a_late_copy_of_a_heartbeat_does_not_report_a_log_as_lost_that_is_there_again():
    """1. A broker returns without the log of a partition, and is let in. 2. It copies the records, and is in sync. 3. It
    is fenced, for it is cut off. 4. A second copy of its first heartbeat arrives: it holds the log, and may lead again.
    """
    cluster = Cluster(2, min_isr=2)
    cluster.create("t", (2, 1))
    cluster.stop(1)
    cluster.register(1, clean=True)
    beat = BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=cluster.image.brokers[1].broker_epoch,
        current_metadata_offset=cluster.image.offset,
        missing_replicas=(
            MissingReplica(
                topic_id=cluster.image.topics["t"].topic_id,
                partition=0,
                partition_epoch=cluster.state().partition_epoch,
            ),
        ),
    )

    def is_fenced() -> bool:
        decision = cluster.controller.heartbeat(cluster.image, beat, lowest_other_offset=None, shutdown_offset=0)
        return cluster.commit(decision, beat).is_fenced

    assert cluster.state().elr == (1,)
    assert not is_fenced()
    assert cluster.state().elr == ()
    cluster.set_isr(1, 2)
    cluster.lose(2, 1)
    assert cluster.state().elr == (2, 1)
    assert is_fenced(), "the copy lets nobody in"
    assert cluster.state().elr == (2, 1)
    cluster.heartbeat(1)
    assert cluster.leader() == (1, (1,))


def test_a_broker_is_unfenced_after_its_lost_logs_have_been_recorded():
    """If the records do not fit one batch and only some are recorded, no partition rests on a log that is lost."""
    cluster = Cluster(3, elr=False)
    cluster.create("t", (1, 2, 3))
    cluster.create("u", (1,))
    cluster.create("v", (2,))
    cluster.lose(1)
    cluster.register(1, clean=True)
    request = BrokerHeartbeatRequest(
        broker_id=1,
        broker_epoch=cluster.image.brokers[1].broker_epoch,
        current_metadata_offset=cluster.image.offset,
        missing_replicas=(MissingReplica(topic_id=cluster.image.topics["u"].topic_id, partition=0),),
    )
    decision = cluster.controller.heartbeat(cluster.image, request, lowest_other_offset=None, shutdown_offset=0)
    assert decision.divisible
    assert [type(record).__name__ for record in decision.records] == ["PartitionChange", "BrokerRegistrationChange"]
