"""Settings: Kafka's names, Kafka's defaults, one table for brokers and one for topics (D8).

Rules for this package: it reads no file and no environment. Our own settings start with ``mk.``. Where a setting exists
per broker and per topic, the broker's value is the topic's default, as in Kafka (``log.segment.bytes`` and
``segment.bytes``).

Read topic.py and broker.py (the tables), names.py (which belong together, which change at run time), then setting.py
(one field), and parse.py. The rest of the house imports from here.
"""

from minikafka.config.broker import BrokerConfig, table
from minikafka.config.listeners import SaslListener, override_of
from minikafka.config.names import (
    AT_RUN_TIME,
    BROKER_NAME_OF,
    KNOWN_TO_KAFKA_ONLY,
    OF_THE_CLUSTER,
    OWN_PREFIX,
    TOPIC_NAME_OF,
)
from minikafka.config.parse import (
    Parsed,
    check,
    environment_overruled,
    environment_settings,
    environment_variables,
    parse_broker,
    parse_topic,
    to_settings,
    unknown_setting,
)
from minikafka.config.setting import DAY_MS, GIB, INT_MAX, KIB, LONG_MAX, MIB, NO_EFFECT
from minikafka.config.topic import KEEP_CODEC, NO_CODEC, TopicConfig

__all__ = [
    "AT_RUN_TIME",
    "BROKER_NAME_OF",
    "DAY_MS",
    "GIB",
    "INT_MAX",
    "KEEP_CODEC",
    "KIB",
    "KNOWN_TO_KAFKA_ONLY",
    "LONG_MAX",
    "MIB",
    "NO_CODEC",
    "NO_EFFECT",
    "OF_THE_CLUSTER",
    "OWN_PREFIX",
    "TOPIC_NAME_OF",
    "BrokerConfig",
    "Parsed",
    "SaslListener",
    "TopicConfig",
    "check",
    "environment_overruled",
    "environment_settings",
    "environment_variables",
    "override_of",
    "parse_broker",
    "parse_topic",
    "table",
    "to_settings",
    "unknown_setting",
]
