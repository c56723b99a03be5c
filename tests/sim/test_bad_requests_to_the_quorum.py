"""Requests that no sound member sends: refused before they get into anything that is kept."""

from __future__ import annotations

from typing import Any

import pytest

from minikafka.errors import InvalidRequest
from minikafka.quorum import controller_brokers
from minikafka.quorum.controller_brokers import register
from minikafka.quorum.decision import ClusterPolicy
from minikafka.quorum.files import QUORUM_STATE_PATH, QuorumState, encode_state
from minikafka.quorum.image import MetadataImage
from minikafka.sim.cluster import node_name
from minikafka.wire.messages import (
    BeginQuorumEpochRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    EndQuorumEpochRequest,
    VoteRequest,
)
from tests.sim.cluster_kit import ORDERS, simulated, simulated_orders

HOPELESS = [
    ("", 9092),
    ("h", 0),
    ("h", -1),
    ("h", 65536),
    ("h", 10**12),
    ("a\nb", 9092),
    ("a b", 9092),
    ("a/b", 9092),
    ("h\u00f6", 9092),
    ("a\x00", 9092),
    ("[::1]", 9092),
    ("h" * 300, 9092),
    ("-h", 9092),
]


@pytest.mark.parametrize(("host", "port"), HOPELESS)
def test_a_registration_names_a_place_where_somebody_can_listen(host: str, port: int) -> None:
    """Every follower of that broker would call it; an impossible port is no network failure and would stop them all."""
    request = BrokerRegistrationRequest(broker_id=9, cluster_id="c", incarnation_id="i", host=host, port=port)
    with pytest.raises(InvalidRequest, match="nobody could listen there"):
        register(ClusterPolicy(cluster_id="c"), MetadataImage(), request, may_live=False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"listeners": "OUT://a\nb:9092"},
        {"listeners": "OUT://h:0"},
        {"rack": "a\nb"},
        {"rack": "r" * 256},
        {"incarnation_id": "i" * 65},
        {"broker_id": 2**31},
    ],
)
def test_a_registration_is_kept_for_ever_and_therefore_short_and_printable(wrong: dict[str, Any]) -> None:
    """It goes into the metadata log, and from there into logs, pages and answers of every broker."""
    sound: dict[str, Any] = {"broker_id": 9, "cluster_id": "c", "incarnation_id": "i", "host": "h", "port": 9092}
    for host in ("h", "n1.example.org", "my_host", "10.0.0.1", "::1", "fe80::1%eth0"):
        request = BrokerRegistrationRequest(**(sound | {"host": host}))
        assert register(ClusterPolicy(cluster_id="c"), MetadataImage(), request, may_live=False).records
    with pytest.raises(InvalidRequest):
        register(
            ClusterPolicy(cluster_id="c"),
            MetadataImage(),
            BrokerRegistrationRequest(**(sound | wrong)),
            may_live=False,
        )


@pytest.mark.parametrize("epoch", [2**31 - 2, 2**31 - 1, 2**31, 2**63 - 1])
@pytest.mark.parametrize("pre_vote", [False, True])
def test_no_epoch_beyond_what_a_batch_can_hold(epoch: int, pre_vote: bool) -> None:
    """KAFKA-FACTS 2: partitionLeaderEpoch is an int32. A vote in an epoch without a next one would end all elections."""
    with simulated() as cluster:
        broker = cluster.brokers[1]
        request = VoteRequest(
            cluster_id=broker.cluster_id,
            voter_id=1,
            candidate_id=2,
            candidate_epoch=epoch,
            last_epoch=0,
            last_epoch_end_offset=2**40,
            pre_vote=pre_vote,
        )
        answer = cluster.run(broker.answer("Vote", request))
        assert (answer.error_code, answer.vote_granted) == (InvalidRequest.code, False)
        cluster.run_for(10.0)
        assert cluster.living() == cluster.nodes
        assert broker.quorum.epoch < 100


@pytest.mark.parametrize("api", ["BeginQuorumEpoch", "EndQuorumEpoch"])
def test_a_leader_that_nobody_elected_does_not_end_the_cluster(api: str) -> None:
    """Every member is told of two leaders, in the last epoch of all and in the present one; elections go on."""
    message = BeginQuorumEpochRequest if api == "BeginQuorumEpoch" else EndQuorumEpochRequest
    with simulated() as cluster:
        cluster.settle()
        for node, broker in cluster.brokers.items():
            for epoch, leader in ((2**31 - 2, 2), (broker.quorum.epoch, 2), (broker.quorum.epoch, 3)):
                forged = message(cluster_id=broker.cluster_id, voter_id=node, leader_id=leader, leader_epoch=epoch)
                cluster.run(broker.answer(api, forged))
        cluster.run_for(10.0)
        assert cluster.living() == cluster.nodes
        assert max(broker.quorum.epoch for broker in cluster.brokers.values()) < 100
        cluster.create_topic("orders")
        cluster.settle()


def test_a_cluster_whose_saved_epochs_leave_none_to_elect_in_starts_again() -> None:
    """What a forged vote did to older builds: all members have saved the last epoch but one."""
    with simulated_orders() as cluster:
        for node in cluster.nodes:
            cluster.crash(node)
            poisoned = encode_state(QuorumState(epoch=2**31 - 2, voted_id=2))
            cluster.sim.disk(node_name(node)).replace_file(QUORUM_STATE_PATH, poisoned)
        for node in cluster.nodes:
            cluster.restart(node)
        cluster.settle(60.0)
        assert cluster.sim.marks["quorum_epoch_lowered"] == len(cluster.nodes)
        cluster.create_topic("more")


def test_a_broker_whose_shutdown_somebody_else_asks_for_goes_on() -> None:
    """A forged heartbeat, to its end: the broker is fenced at most for a moment, and keeps its process."""
    with simulated_orders() as cluster:
        controller = cluster.brokers[cluster.controller()]
        victim = cluster.leader_of(ORDERS)
        forged = BrokerHeartbeatRequest(
            broker_id=victim,
            broker_epoch=controller.image.brokers[victim].broker_epoch,
            current_metadata_offset=controller.image.offset,
            want_shut_down=True,
        )
        for _ in range(20):
            answer = cluster.run(controller.answer("BrokerHeartbeat", forged))
            if answer.error_code or answer.should_shut_down:
                break
            cluster.run_for(0.3)
        cluster.run_for(10.0)
        assert cluster.living() == cluster.nodes
        assert not cluster.brokers[victim].lifecycle.may_leave.is_set()
        assert controller.image.eligible(victim)
        cluster.settle()


def test_a_broker_that_is_told_to_stop_without_having_asked_registers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a controller answers, only a broker that wants to leave leaves."""
    answered = controller_brokers._answer

    def stop(*args: Any, **facts: Any) -> Any:
        return answered(*args, **(facts | {"stop": True}))

    with simulated() as cluster:
        cluster.settle()
        with monkeypatch.context() as patched:
            patched.setattr(controller_brokers, "_answer", stop)
            cluster.until(lambda: cluster.sim.marks["session_lost"] >= 3, 20.0, "all brokers to be told to stop")
        cluster.run_for(10.0)
        assert cluster.living() == cluster.nodes
        cluster.settle()
