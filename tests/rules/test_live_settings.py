"""A broker's settings as they count now: what was set at run time over what it was started with (KIP-226)."""

from __future__ import annotations

from dataclasses import replace

from minikafka.broker.live_settings import LiveSettings
from minikafka.config import BrokerConfig, TopicConfig
from minikafka.quorum.decision import ClusterPolicy, of_topic
from minikafka.quorum.image import MetadataImage


class Told:
    """An events sink that remembers."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, object]]] = []

    def __call__(self, kind: str, /, **facts: object) -> None:
        self.events.append((kind, facts))


def image_with(**settings: dict[str, str]) -> MetadataImage:
    """``all`` for all brokers, ``n1`` for broker 1."""
    configs = {name.removeprefix("n").replace("all", ""): told for name, told in settings.items()}
    return replace(MetadataImage(), broker_configs=configs)


def test_settings_move_with_the_metadata_and_back():
    """Its own before all brokers'; what is taken back is again what it was started with; who asked for it is told."""
    told = Told()
    live = LiveSettings(BrokerConfig(node_id=1, replica_lag_time_max_ms=9000), told)
    heard: list[int] = []
    live.subscribe(lambda settings: heard.append(settings.replica_lag_time_max_ms))
    both = image_with(all={"replica.lag.time.max.ms": "7000"}, n1={"replica.lag.time.max.ms": "8000"})
    live.on_image(MetadataImage(), both)
    assert live.now.replica_lag_time_max_ms == 8000
    assert told.events == [("settings_changed", {"node": 1, "settings": {"replica.lag.time.max.ms": "8000"}})]

    others = image_with(all={"replica.lag.time.max.ms": "7000"}, n2={"fetch.max.bytes": "2048"})
    live.on_image(both, others)
    live.on_image(others, image_with(all={"replica.lag.time.max.ms": "7000"}))
    live.on_image(others, MetadataImage())
    assert live.now is live.started_with
    assert heard == [8000, 7000, 9000]


def test_what_cannot_be_read_does_not_count_and_is_reported():
    """A newer broker's setting, or a value that its range allows: what else is set counts all the same."""
    told = Told()
    live = LiveSettings(BrokerConfig(node_id=1), told)
    live.on_image(MetadataImage(), image_with(all={"replica.lag.time.max.years": "1"}))
    assert live.now is live.started_with
    [(kind, facts)] = told.events
    assert kind == "broker_config_unusable"
    assert "replica.lag.time.max.years" in str(facts["why"])

    mixed = image_with(all={"num.partitions": "-7", "replica.lag.time.max.ms": "7000", "log.segment.bytes": "x"})
    live.on_image(MetadataImage(), mixed)
    assert (live.now.replica_lag_time_max_ms, live.now.num_partitions) == (7000, live.started_with.num_partitions)
    assert [kind for kind, _ in told.events[1:]] == ["broker_config_unusable"] * 2 + ["settings_changed"]


def test_a_controller_decides_with_what_it_can_read():
    """It ended at each of its timers, and so did its successors."""
    started = BrokerConfig(node_id=1)
    policy = ClusterPolicy.of(started, "c")
    image = image_with(all={"num.partitions": "-7", "min.insync.replicas": "2", "log.retention.years": "1"})
    now = policy.under(image)
    assert (now.num_partitions, now.topic_defaults.min_insync_replicas) == (started.num_partitions, 2)


def test_a_topic_keeps_its_other_settings_if_one_cannot_be_read():
    """All of them fell back to the defaults, min.insync.replicas too."""
    config, unreadable = of_topic({"min.insync.replicas": "2", "retention.ms": "soon", "new": "1"}, TopicConfig())
    assert config == replace(TopicConfig(), min_insync_replicas=2)
    assert len(unreadable) == 2
