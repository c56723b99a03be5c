"""Settings of the consumer's group protocol (issue 17, Build 5)."""

from __future__ import annotations

import pytest

from minikafka.client.settings import ConsumerConfig
from minikafka.errors import InvalidConfig


def config(**given):
    return ConsumerConfig(bootstrap_servers="127.0.0.1:9092", group_id="g", **given)


def test_the_protocol_is_classic_unless_it_is_chosen():
    """As with Kafka's clients."""
    assert config().group_protocol == "classic"
    assert config(group_protocol="consumer", group_remote_assignor="range").group_remote_assignor == "range"


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({"group_protocol": "new"}, "group_protocol"),
        ({"group_remote_assignor": "uniform"}, "group_remote_assignor"),
        ({"group_protocol": "consumer", "session_timeout_ms": 9_000}, "session_timeout_ms"),
        ({"group_protocol": "consumer", "heartbeat_interval_ms": 1_000}, "heartbeat_interval_ms"),
        (
            {"group_protocol": "consumer", "partition_assignment_strategy": "sticky"},
            "partition_assignment_strategy",
        ),
    ],
)
def test_a_setting_of_the_other_protocol_is_refused_by_name(given, setting):
    """It would have no effect; Kafka's client refuses it, too."""
    with pytest.raises(InvalidConfig, match=setting) as refused:
        config(**given)
    assert refused.value.facts["setting"] == setting
