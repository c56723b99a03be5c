"""UpdateFeatures (0 to 2), KIP-584 and KIP-1022. ApiVersions describes features; the session answers it."""

from __future__ import annotations

from typing import Any

from minikafka.wire.features import SAFE_DOWNGRADE, FeatureUpdate, UpdateFeaturesRequest
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import NONE, Exchange, Translation
from minikafka.wire.kafka.translate.topics import error_of


def _request(message: Message, exchange: Exchange) -> UpdateFeaturesRequest:
    def upgrade_type(update: Message) -> int:
        if exchange.version == 0 and update["allow_downgrade"]:
            return SAFE_DOWNGRADE
        given: int = update["upgrade_type"]
        return given

    return UpdateFeaturesRequest(
        updates=tuple(
            FeatureUpdate(name=each["feature"], level=each["max_version_level"], upgrade_type=upgrade_type(each))
            for each in message["feature_updates"]
        ),
        validate_only=message["validate_only"],
    )


def _response(message: Message, response: Any, exchange: Exchange) -> Message:
    # One refused feature refuses all: then there are no results of single features, as in Kafka.
    named = [each["feature"] for each in message["feature_updates"]] if not response.error_code else []
    results = [{"feature": name, "error_code": NONE, "error_message": None} for name in named]
    return {**error_of(response), "results": results if exchange.version < 2 else []}


UPDATE_FEATURES = Translation("UpdateFeatures", 0, 2, _request, _response)
