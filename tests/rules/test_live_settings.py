"""A broker's settings as they count now: what was set at run time over what it was started with (KIP-226)."""

from __future__ import annotations

from dataclasses import replace

from minikafka.broker.live_settings import LiveSettings
from minikafka.config import BrokerConfig
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


def test_what_cannot_be_read_changes_nothing_and_is_told():
    """A newer broker's setting, say: this one goes on as it was."""
    told = Told()
    live = LiveSettings(BrokerConfig(node_id=1), told)
    live.on_image(MetadataImage(), image_with(all={"replica.lag.time.max.years": "1"}))
    assert live.now is live.started_with
    [(kind, facts)] = told.events
    assert kind == "broker_config_unusable"
    assert "replica.lag.time.max.years" in str(facts["why"])
