"""DescribeClientQuotas and AlterClientQuotas (0 and 1), KIP-546."""

from __future__ import annotations

from typing import Any

from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import Exchange, Translation
from minikafka.wire.kafka.translate.topics import error_of
from minikafka.wire.quotas import (
    AlterClientQuotasRequest,
    AlteredQuota,
    DescribeClientQuotasRequest,
    EntityPart,
    QuotaAlteration,
    QuotaChange,
    QuotaFilterPart,
)


def _entity(message: Message) -> tuple[EntityPart, ...]:
    return tuple(
        EntityPart(entity_type=each["entity_type"], entity_name=each["entity_name"]) for each in message["entity"]
    )


def _entity_out(entity: tuple[EntityPart, ...]) -> list[Message]:
    return [{"entity_type": each.entity_type, "entity_name": each.entity_name} for each in entity]


def _describe_request(message: Message, _exchange: Exchange) -> DescribeClientQuotasRequest:
    return DescribeClientQuotasRequest(
        components=tuple(
            QuotaFilterPart(entity_type=each["entity_type"], match_type=each["match_type"], match=each["match"])
            for each in message["components"]
        ),
        strict=message["strict"],
    )


def _describe_response(_message: Message, response: Any, _exchange: Exchange) -> Message:
    entries = [
        {
            "entity": _entity_out(each.entity),
            "values": [{"key": value.key, "value": value.value} for value in each.values],
        }
        for each in response.entries
    ]
    return {**error_of(response), "entries": None if response.error_code else entries}


def _alter_request(message: Message, _exchange: Exchange) -> AlterClientQuotasRequest:
    return AlterClientQuotasRequest(
        entries=tuple(
            QuotaAlteration(
                entity=_entity(entry),
                ops=tuple(
                    QuotaChange(key=each["key"], value=each["value"], remove=each["remove"]) for each in entry["ops"]
                ),
            )
            for entry in message["entries"]
        ),
        validate_only=message["validate_only"],
    )


def _alter_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    entries = response.entries
    if response.error_code:
        entries = [
            AlteredQuota(entity=_entity(each), error_code=response.error_code, error_message=response.error_message)
            for each in message["entries"]
        ]
    return {"entries": [{**error_of(each), "entity": _entity_out(each.entity)} for each in entries]}


DESCRIBE_CLIENT_QUOTAS = Translation("DescribeClientQuotas", 0, 1, _describe_request, _describe_response)
ALTER_CLIENT_QUOTAS = Translation("AlterClientQuotas", 0, 1, _alter_request, _alter_response)
