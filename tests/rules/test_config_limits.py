"""Settings: their limits, and that each one does something."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from minikafka.config import (
    KNOWN_TO_KAFKA_ONLY,
    TOPIC_NAME_OF,
    BrokerConfig,
    TopicConfig,
    parse_broker,
    parse_topic,
    table,
)
from minikafka.errors import InvalidConfig
from tests.tidy.sources import product


@pytest.mark.parametrize("name", ["segment.bytes", "segment.index.bytes", "max.message.bytes"])
def test_sizes_that_files_hold_in_32_bits_are_bounded(name: str) -> None:
    """KAFKA-FACTS 1.3: positions in an index and lengths of batches are int32; a larger segment could not be indexed."""
    assert parse_topic({name: str(2**31 - 1)})
    with pytest.raises(InvalidConfig, match="at most 2147483647"):
        parse_topic({name: str(2**31)})


@pytest.mark.parametrize("name", ["log.segment.bytes", "log.index.size.max.bytes", "message.max.bytes"])
def test_the_brokers_defaults_have_the_same_bounds(name: str) -> None:
    """A broker's default is the topic's value."""
    with pytest.raises(InvalidConfig, match="at most 2147483647"):
        parse_broker({name: str(2**31)})


@pytest.mark.parametrize("config", [BrokerConfig, TopicConfig])
def test_every_setting_has_an_effect(config: type[BrokerConfig | TopicConfig]) -> None:
    """D8, implemented: used. A name that is accepted and does nothing belongs to those known to Kafka only."""
    read = {name for source in product() for name in re.findall(r"\.([a-z_0-9]+)\b", source.path.read_text())}
    # A broker's default of a topic's setting is used where that is.
    topics = {each.metadata["name"]: each.name for each in fields(TopicConfig)}
    read |= {
        known.name for name, known in table(BrokerConfig).items() if topics.get(TOPIC_NAME_OF.get(name, "")) in read
    }
    unused = [each.name for each in fields(config) if each.name not in read]
    assert not unused


def test_no_name_is_both_used_and_unused() -> None:
    """A notice that a setting is not used must be true."""
    assert not KNOWN_TO_KAFKA_ONLY & table(BrokerConfig).keys()
