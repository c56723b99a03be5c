"""Levels of features at the controller (KIP-584), as Kafka's FeatureControlManager changes them.

One request changes all of its features or none. A level that is in use already writes no record.
"""

from __future__ import annotations

from minikafka.errors import InvalidRequest, InvalidUpdateVersion
from minikafka.quorum.decision import Decision
from minikafka.quorum.image import MetadataImage
from minikafka.quorum.records import FeatureLevel
from minikafka.types import NodeId
from minikafka.wire.features import (
    FEATURES,
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdate,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
    finalized,
)

REASON = "The update failed for all features since the following feature had an error: "
"""How Kafka begins the message of an update that was refused."""


def update_features(
    node_id: NodeId, image: MetadataImage, request: UpdateFeaturesRequest
) -> Decision[UpdateFeaturesResponse]:
    """Change levels.

    Args:
        node_id: The controller, for messages.
        image: What it decides on.
        request: The levels that are wanted.
    """
    levels, records = finalized(image.features), []
    for each in request.updates:
        try:
            if sum(each.name == other.name for other in request.updates) > 1:
                raise InvalidRequest(f"feature {each.name} is updated twice in one request", member="feature_updates")
            _check(node_id, each, levels.get(each.name, 0))
        except (InvalidRequest, InvalidUpdateVersion) as error:
            refused = UpdateFeaturesResponse(
                error_code=error.code, error_message=f"{REASON}{error.message}", outcome=error.outcome
            )
            return Decision(response=refused)
        if each.level != levels.get(each.name, 0):
            records.append(FeatureLevel(name=each.name, level=each.level))
    return Decision(
        records=() if request.validate_only else tuple(records),
        response=UpdateFeaturesResponse(),
        cause="levels of features were changed",
    )


def _check(node_id: NodeId, update: FeatureUpdate, current: int) -> None:
    """Raise InvalidUpdateVersion, in Kafka's words, unless the feature can get this level."""
    why = _why_not(node_id, update, current)
    if why is not None:
        raise InvalidUpdateVersion(f"Invalid update version {update.level} for feature {update.name}. {why}")


def _why_not(node_id: NodeId, update: FeatureUpdate, current: int) -> str | None:
    feature = FEATURES.get(update.name)
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    if feature is None:
        return f"Local controller {node_id} does not support this feature."
    if not feature.low <= update.level <= feature.high:
        return f"Local controller {node_id} only supports versions {feature.low}-{feature.high}"
    if update.level < current and update.upgrade_type == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if update.level > current and update.upgrade_type != UPGRADE:
        return "Can't downgrade to a newer version."
    return None
