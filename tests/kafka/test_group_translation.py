"""Requests of classic members whose codes differ between Kafka's protocol and ours."""

from __future__ import annotations

from minikafka.errors import CoordinatorLoadInProgress, NotCoordinator, ProtocolError, RebalanceInProgress
from minikafka.wire.group_messages import HeartbeatResponse, SyncGroupResponse
from minikafka.wire.kafka.translate.common import Exchange, Translation
from minikafka.wire.kafka.translate.groups import HEARTBEAT, SYNC_GROUP
from minikafka.wire.kafka.translate.shapes import plain
from tests.kafka.samples import Directory

LOADING, MOVED = CoordinatorLoadInProgress("being read"), NotCoordinator("moved")


def codes(offer: Translation, kind: type[HeartbeatResponse | SyncGroupResponse], error: ProtocolError) -> set[int]:
    """The codes of all versions."""
    message = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
    return {
        offer.response(message, kind.with_error(error), Exchange(version, Directory()))["error_code"]
        for version in range(offer.first, offer.last + 1)
    }


def test_a_heartbeat_while_the_coordinator_reads_its_log_has_no_error():
    """As in Kafka. On another code aiokafka's coordination ends, and sarama's session."""
    assert codes(HEARTBEAT, HeartbeatResponse, LOADING) == {0}
    assert codes(HEARTBEAT, HeartbeatResponse, MOVED) == {NotCoordinator.code}


def test_a_response_without_an_error_has_no_error_message():
    """Null, as in Kafka's responses: an empty text would be a message."""
    assert plain(HeartbeatResponse())["error_message"] is None
    assert plain(HeartbeatResponse.with_error(MOVED))["error_message"] == "moved"


def test_a_member_that_syncs_while_the_coordinator_reads_its_log_joins_again():
    """As in Kafka 3. On COORDINATOR_LOAD_IN_PROGRESS Java's consumer fails in poll."""
    assert codes(SYNC_GROUP, SyncGroupResponse, LOADING) == {RebalanceInProgress.code}
    assert codes(SYNC_GROUP, SyncGroupResponse, MOVED) == {NotCoordinator.code}
