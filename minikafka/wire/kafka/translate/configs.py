"""DescribeConfigs (1 to 4), AlterConfigs (0 to 2), IncrementalAlterConfigs (0 to 1), ListConfigResources (0 to 1)."""

from __future__ import annotations

from typing import Any

from minikafka.errors import UnsupportedVersion
from minikafka.wire.admin import (
    BROKER,
    SET,
    TOPIC,
    AlterConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    AlteredConfigs,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribedConfigs,
    IncrementalAlterConfigsRequest,
)
from minikafka.wire.kafka.codec import Message
from minikafka.wire.kafka.translate.common import Exchange, Translation
from minikafka.wire.kafka.translate.topics import error_of
from minikafka.wire.messages import MetadataRequest


def _describe_request(message: Message, _exchange: Exchange) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=tuple(
            DescribeConfigsResource(
                resource_type=each["resource_type"],
                resource_name=each["resource_name"],
                configuration_keys=None if each["configuration_keys"] is None else tuple(each["configuration_keys"]),
            )
            for each in message["resources"]
        ),
        include_synonyms=message["include_synonyms"],
        include_documentation=message["include_documentation"],
    )


def _describe_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    if response.error_code:
        results = [
            DescribedConfigs(
                resource_type=each["resource_type"],
                resource_name=each["resource_name"],
                error_code=response.error_code,
                error_message=response.error_message,
            )
            for each in message["resources"]
        ]
    else:
        results = list(response.results)
    return {
        "results": [
            {
                **error_of(each),
                "resource_type": each.resource_type,
                "resource_name": each.resource_name,
                "configs": [
                    {
                        "name": config.name,
                        "value": None if config.is_sensitive else config.value,
                        "read_only": config.read_only,
                        "config_source": config.config_source,
                        "is_sensitive": config.is_sensitive,
                        "synonyms": [
                            {"name": synonym.name, "value": synonym.value, "source": synonym.source}
                            for synonym in config.synonyms
                        ],
                        "config_type": config.config_type,
                        "documentation": config.documentation,
                    }
                    for config in each.configs
                ],
            }
            for each in results
        ]
    }


DESCRIBE_CONFIGS = Translation("DescribeConfigs", 1, 4, _describe_request, _describe_response)


def _resources(message: Message) -> tuple[AlterConfigsResource, ...]:
    return tuple(
        AlterConfigsResource(
            resource_type=resource["resource_type"],
            resource_name=resource["resource_name"],
            configs=tuple(
                AlterConfig(name=each["name"], value=each["value"], operation=each.get("config_operation", SET))
                for each in resource["configs"]
            ),
        )
        for resource in message["resources"]
    )


def _alter_request(message: Message, _exchange: Exchange) -> AlterConfigsRequest:
    return AlterConfigsRequest(resources=_resources(message), validate_only=message["validate_only"])


def _increment_request(message: Message, _exchange: Exchange) -> IncrementalAlterConfigsRequest:
    return IncrementalAlterConfigsRequest(resources=_resources(message), validate_only=message["validate_only"])


def _alter_response(message: Message, response: Any, _exchange: Exchange) -> Message:
    if response.error_code:
        answers = [
            AlteredConfigs(
                resource_type=each["resource_type"],
                resource_name=each["resource_name"],
                error_code=response.error_code,
                error_message=response.error_message,
            )
            for each in message["resources"]
        ]
    else:
        answers = list(response.responses)
    return {
        "responses": [
            {**error_of(each), "resource_type": each.resource_type, "resource_name": each.resource_name}
            for each in answers
        ]
    }


ALTER_CONFIGS = Translation("AlterConfigs", 0, 2, _alter_request, _alter_response)
INCREMENTAL_ALTER_CONFIGS = Translation("IncrementalAlterConfigs", 0, 1, _increment_request, _alter_response)

# ---- ListConfigResources (KIP-1142) ----------------------------------------------------------------------------------

BROKER_LOGGER, CLIENT_METRICS, GROUP = 8, 16, 32
"""Kinds of resources that Kafka lists and of which there are none here."""

_LISTED = ({CLIENT_METRICS}, {TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})
"""Kinds of resources by version."""


def _kinds(message: Message, exchange: Exchange) -> set[int]:
    return set(message.get("resource_types", ())) or _LISTED[exchange.version]


def _resources_request(message: Message, exchange: Exchange) -> MetadataRequest:
    kinds = _kinds(message, exchange)
    unknown = sorted(kinds - _LISTED[exchange.version])
    if unknown:
        raise UnsupportedVersion(f"resource_type={unknown[0]} is not a kind of resource that can be listed")
    return MetadataRequest(topics=None if TOPIC in kinds else ())


def _resources_response(message: Message, response: Any, exchange: Exchange) -> Message:
    if response.error_code:
        return {"error_code": response.error_code, "config_resources": []}
    kinds = _kinds(message, exchange)
    found = [(topic.name, TOPIC) for topic in response.topics] if TOPIC in kinds else []
    if BROKER in kinds:
        found += [(str(broker.node_id), BROKER) for broker in response.brokers]
    return {
        "error_code": 0,
        "config_resources": [{"resource_name": name, "resource_type": kind} for name, kind in found],
    }


LIST_CONFIG_RESOURCES = Translation(
    "ListConfigResources", 0, 1, _resources_request, _resources_response, serves="Metadata"
)
