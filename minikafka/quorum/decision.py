"""What a controller decides with, what a decision is, and the settings that are in effect at a broker.

A decision is records and an answer (DESIGN D5). It changes nothing: its records are appended to the metadata log, in
one batch if they fit; the state changes when they are replayed, on the controller as on every other node, and only then
is the answer given.

A broker's settings are those that it was started with, below those given at run time (KIP-226). The first one that says
something counts: the broker's own setting in the metadata, the one for all brokers there, what the broker was started
with, Kafka's default. A setting that this build cannot read does not count: another build has written it, and a
controller or a broker that ended for it would end again at each start.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from minikafka.config import TOPIC_NAME_OF, BrokerConfig, TopicConfig, parse_broker, parse_topic
from minikafka.errors import InvalidConfig
from minikafka.quorum.image import MetadataImage, TopicImage
from minikafka.quorum.records import MetadataRecord
from minikafka.types import NO_NODE, NodeId

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
    return of_topic(given, base)[0] if given else base


def of_topic(settings: Mapping[str, str], base: TopicConfig) -> tuple[TopicConfig, list[InvalidConfig]]:
    """``base`` with a topic's settings, and why some of them do not count."""
    return _readable(settings, lambda each: parse_topic(each, base=base))


def setting_of(topic: TopicImage, name: str, base: TopicConfig) -> TopicConfig:
    """``base``, or settings in which the topic's own setting ``name`` counts, and nothing else of the topic's."""
    text = topic.configs.get(name)
    return base if text is None else _with_one(name, text) or base


@functools.lru_cache(64)
def _with_one(name: str, text: str) -> TopicConfig | None:
    """The defaults with one setting; None: this build cannot read it. Decisions ask for each partition."""
    try:
        return parse_topic({name: text})
    except InvalidConfig:
        return None


def effective(image: MetadataImage, node: NodeId, base: BrokerConfig) -> tuple[BrokerConfig, list[InvalidConfig]]:
    """``base`` (what the broker was started with) with the settings from the metadata, and why some do not count."""
    settings = broker_settings(image, node)
    if not settings:
        return base, []
    config, unreadable = _laid_over(base, tuple(settings.items()))
    return config, list(unreadable)


@functools.lru_cache(64)
def _laid_over(
    base: BrokerConfig, settings: tuple[tuple[str, str], ...]
) -> tuple[BrokerConfig, tuple[InvalidConfig, ...]]:
    """See :func:`effective`. Each decision asks for them, those about heartbeats too, and a check of all settings takes
    longer than most decisions.
    """
    config, unreadable = _readable(dict(settings), lambda each: parse_broker(each, base=base).config if each else base)
    return config, tuple(unreadable)


C = TypeVar("C")


def _readable(settings: Mapping[str, str], parse: Callable[[Mapping[str, str]], C]) -> tuple[C, list[InvalidConfig]]:
    left = dict(settings)
    unreadable: list[InvalidConfig] = []
    while True:
        try:
            return parse(left), unreadable
        except InvalidConfig as error:
            if not left:
                raise
            unreadable.append(error)
            if left.pop(str(error.facts.get("setting")), None) is None:
                left.clear()  # they cannot stand together


R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[R_co]):
    """Records to append, and the answer to give once they are committed and applied."""

    records: tuple[MetadataRecord, ...] = ()
    divisible: bool = False
    """Records that do not fit one batch may be appended in several, in their order. After each of them the next
    controller can decide the rest. All others are applied as a whole or not at all."""
    response: R_co
    cause: str = ""
    """Why, in a few words: it goes into the events that tell what became of the records (D9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPolicy:
    """The settings that decisions depend on. They are the active controller's own: brokers should agree on them."""

    cluster_id: str
    node_id: NodeId = NO_NODE
    topic_defaults: TopicConfig = field(default_factory=TopicConfig)
    num_partitions: int = 1
    default_replication_factor: int = 1
    delete_topic_enable: bool = True
    leader_rebalance_interval_s: float | None = None
    """How often leaders are moved home; None: never."""
    eligible_leader_replicas_enable: bool = True
    started_with: BrokerConfig | None = None
    """The node's settings, for those that are set at run time; None: only the defaults of topics can be."""

    @classmethod
    def of(cls, config: BrokerConfig, cluster_id: str) -> ClusterPolicy:
        """The policy of one node; the cluster's id comes from its data directory."""
        return cls(
            cluster_id=cluster_id,
            node_id=config.node_id,
            topic_defaults=config.topic_defaults(),
            num_partitions=config.num_partitions,
            default_replication_factor=config.default_replication_factor,
            delete_topic_enable=config.delete_topic_enable,
            leader_rebalance_interval_s=_rebalance_interval_s(config),
            started_with=config,
            eligible_leader_replicas_enable=config.eligible_leader_replicas_enable,
        )

    def under(self, image: MetadataImage) -> ClusterPolicy:
        """The policy with what was set at run time laid over it.

        Each leader has its own default of min.insync.replicas, which may differ while brokers are restarted one after
        the other with another one. The smallest counts: below it every leader has stopped committing, and only then
        may a replica that leaves the ISR stay eligible to lead (KIP-966). Otherwise: 1. controller 1 has a minimum of
        2 already, leader 4 still of 1; 2. 2 leaves the ISR {4,2}, and 1 takes it for eligible; 3. 4 commits alone; 4. 4
        is restarted, 2 is elected, and what was acknowledged is gone.
        """
        base = self.topic_defaults
        minimum = min((each.min_insync_replicas for each in image.brokers.values()), default=base.min_insync_replicas)
        if minimum != base.min_insync_replicas:
            base = replace(base, min_insync_replicas=minimum)
        if not image.broker_configs:
            return self if base is self.topic_defaults else replace(self, topic_defaults=base)
        defaults = topic_defaults(image, self.node_id, base)
        if self.started_with is None:
            return replace(self, topic_defaults=defaults)
        config, _ = effective(image, self.node_id, self.started_with)
        return replace(
            self,
            topic_defaults=defaults,
            num_partitions=config.num_partitions,
            default_replication_factor=config.default_replication_factor,
            delete_topic_enable=config.delete_topic_enable,
            leader_rebalance_interval_s=_rebalance_interval_s(config),
        )

    def min_insync_replicas(self, topic: TopicImage) -> int:
        """The topic's min.insync.replicas, not yet bounded by its number of replicas."""
        known = setting_of(topic, "min.insync.replicas", self.topic_defaults)
        return known.min_insync_replicas

    def elects_unclean(self, topic: TopicImage) -> bool:
        """S20: True if a replica outside ISR and ELR may lead when no other is alive."""
        known = setting_of(topic, "unclean.leader.election.enable", self.topic_defaults)
        return known.unclean_leader_election_enable


def _rebalance_interval_s(config: BrokerConfig) -> float | None:
    return float(config.leader_imbalance_check_interval_seconds) if config.auto_leader_rebalance_enable else None
