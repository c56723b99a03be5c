"""Features of the cluster: which levels this build supports, which are in use, and the messages that change them.

A client learns both with ApiVersions, and chooses by them how it speaks (KIP-584, KIP-1022).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from minikafka.types import Offset
from minikafka.wire.markers import TRANSACTION_V2
from minikafka.wire.messages import Failed, Message, Request

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
"""Kafka's upgrade types: what a request allows."""

KAFKA_4_3: Final = 30
"""Kafka's ``metadata.version`` 4.3-IV0."""


class Feature(NamedTuple):
    """The levels of a feature that this build supports."""

    low: int
    high: int
    initial: int
    """In use until the level is changed; 0: none is, and clients are told of no finalized level."""


FEATURES: Final[Mapping[str, Feature]] = {
    "group.version": Feature(1, 1, 1),
    "kraft.version": Feature(0, 0, 0),
    "metadata.version": Feature(KAFKA_4_3, KAFKA_4_3, KAFKA_4_3),
    "transaction.version": Feature(1, TRANSACTION_V2, TRANSACTION_V2),
}
"""By name. ``metadata.version`` is Kafka's number, for clients: the metadata log has a layout of its own."""

CHANGEABLE: Final = frozenset(name for name, each in FEATURES.items() if each.low < each.high)


def finalized(recorded: Mapping[str, int]) -> dict[str, int]:
    """The levels in use, by feature.

    Args:
        recorded: Levels in the metadata log. Those of features that cannot change are not Kafka's numbers.
    """
    levels = {
        name: recorded.get(name, each.initial) if name in CHANGEABLE else each.initial
        for name, each in FEATURES.items()
    }
    return {name: level for name, level in levels.items() if level}


class FeatureUpdate(Message):
    """One feature and its new level."""

    name: str
    level: int
    upgrade_type: int = UPGRADE


class UpdateFeaturesRequest(Request):
    """Change levels of features: all of them, or none."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


class UpdateFeaturesResponse(Failed):
    """An error of one feature is the answer to all."""

    metadata_offset: Offset = -1
