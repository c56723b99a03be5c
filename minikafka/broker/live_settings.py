"""This broker's settings as they count now: what it was started with, and over it what was set at run time (KIP-226).

Who keeps the object asks ``now`` whenever it needs a value; who must act when a value moves subscribes. What counts is
decided by ``quorum/decision.py``.
"""

from __future__ import annotations

from collections.abc import Callable

from minikafka.config import BrokerConfig, to_settings
from minikafka.ports import Events
from minikafka.quorum.decision import effective
from minikafka.quorum.image import MetadataImage


class LiveSettings:
    """The settings of one broker."""

    def __init__(self, started_with: BrokerConfig, events: Events) -> None:
        self.started_with = started_with
        self.now = started_with
        """The settings that count; a new object when one of them moves."""
        self._events = events
        self._subscribers: list[Callable[[BrokerConfig], None]] = []

    def subscribe(self, tell: Callable[[BrokerConfig], None]) -> None:
        """``listener`` is called with the settings whenever one of them has changed."""
        self._subscribers.append(tell)

    def on_image(self, old: MetadataImage, new: MetadataImage) -> None:
        """The metadata has changed. A value that this build cannot read changes nothing, and is an event."""
        if old.broker_configs is new.broker_configs:
            return
        settings, unreadable = effective(new, self.started_with.node_id, self.started_with)
        for error in unreadable:
            self._events("broker_config_unusable", node=self.started_with.node_id, why=str(error))
        if settings == self.now:
            return
        before, after = to_settings(self.now), to_settings(settings)
        changed = {name: after[name] for name in after if after[name] != before[name]}
        self.now = settings
        self._events("settings_changed", node=settings.node_id, settings=changed)
        for tell in self._subscribers:
            tell(settings)
