"""Requests that no sound member sends: refused before they get into anything that is kept."""

from __future__ import annotations

import pytest

from minikafka.errors import InvalidRequest
from minikafka.quorum.controller_brokers import register
from minikafka.quorum.decision import ClusterPolicy
from minikafka.quorum.image import MetadataImage
from minikafka.wire.messages import BrokerRegistrationRequest, VoteRequest
from tests.sim.cluster_kit import simulated


@pytest.mark.parametrize(("host", "port"), [("", 9092), ("h", 0), ("h", -1), ("h", 65536), ("h", 10**12)])
def test_a_registration_names_a_place_where_somebody_can_listen(host: str, port: int) -> None:
    """Every follower of that broker would call it; an impossible port is no network failure and would stop them all."""
    request = BrokerRegistrationRequest(broker_id=9, cluster_id="c", incarnation_id="i", host=host, port=port)
    with pytest.raises(InvalidRequest, match="nobody could listen there"):
        register(ClusterPolicy(cluster_id="c"), MetadataImage(), request, session_alive=False)


@pytest.mark.parametrize("epoch", [2**31 - 1, 2**31, 2**63 - 1])
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
