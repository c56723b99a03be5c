"""What topics get when they say nothing, with the settings that brokers were given at run time (KIP-226).

Order, the first one that says something counts: the broker's own setting in the metadata, the one for all brokers
there, what the broker was started with, Kafka's default.
"""

from __future__ import annotations

from collections.abc import Mapping

from minikafka.config import TOPIC_NAME_OF, TopicConfig, parse_topic
from minikafka.quorum.image import MetadataImage
from minikafka.types import NodeId

ALL_BROKERS = ""
"""The name under which settings for all brokers stand."""


def broker_settings(image: MetadataImage, node: NodeId) -> Mapping[str, str]:
    """The settings that the metadata gives ``node``, by the brokers' names of them."""
    configs = image.broker_configs
    return {**configs.get(ALL_BROKERS, {}), **configs.get(str(node), {})} if configs else {}


def topic_defaults(image: MetadataImage, node: NodeId, base: TopicConfig) -> TopicConfig:
    """``base`` (what the broker was started with) with the settings from the metadata; ``base`` itself without any."""
    settings = broker_settings(image, node)
    return parse_topic({TOPIC_NAME_OF[name]: settings[name] for name in settings}, base=base) if settings else base
