"""Brokers' settings with those that they were given at run time laid over them (KIP-226).

Order, the first one that says something counts: the broker's own setting in the metadata, the one for all brokers
there, what the broker was started with, Kafka's default.
"""

from __future__ import annotations

from collections.abc import Mapping

from minikafka.config import TOPIC_NAME_OF, BrokerConfig, TopicConfig, parse_broker, parse_topic
from minikafka.quorum.image import MetadataImage
from minikafka.types import NodeId

ALL_BROKERS = ""
"""The name under which settings for all brokers stand."""


def broker_settings(image: MetadataImage, node: NodeId) -> Mapping[str, str]:
    """The settings that the metadata gives ``node``, by the brokers' names of them."""
    configs = image.broker_configs
    return {**configs.get(ALL_BROKERS, {}), **configs.get(str(node), {})} if configs else {}


def topic_defaults(image: MetadataImage, node: NodeId, base: TopicConfig) -> TopicConfig:
    """What topics get when they say nothing: ``base`` (what the broker was started with) with the settings from the
    metadata; ``base`` itself without any.
    """
    settings = broker_settings(image, node)
    given = {TOPIC_NAME_OF[name]: settings[name] for name in settings if name in TOPIC_NAME_OF}
    return parse_topic(given, base=base) if given else base


def effective(image: MetadataImage, node: NodeId, base: BrokerConfig) -> BrokerConfig:
    """``base`` (what the broker was started with) with the settings from the metadata. InvalidConfig when they cannot
    stand together.
    """
    settings = broker_settings(image, node)
    return parse_broker(settings, base=base).config if settings else base
