"""DescribeConfigs and ListPartitionReassignments: what an administrator reads before changing it.

Both are answered from this broker's image. A topic's settings are shown as this broker uses them; a broker's own are
answered by that broker only, for nobody else knows what it was started with.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import Field
from typing import Any, TypeAlias

from msgspec.structs import replace

from minikafka.config import AT_RUN_TIME, BROKER_NAME_OF, INT_MAX, BrokerConfig, TopicConfig, table, to_settings
from minikafka.errors import InvalidRequest, ProtocolError, UnknownTopicOrPartition
from minikafka.quorum.configs import LISTS
from minikafka.quorum.controller_topics import check_topic_name
from minikafka.quorum.decision import ALL_BROKERS
from minikafka.quorum.image import MetadataImage
from minikafka.wire import admin as a
from minikafka.wire.messages import CreatedTopicConfig, CreateTopicsRequest, CreateTopicsResponse

BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7
"""Kafka's numbers of the types of settings."""

WITH_SETTINGS = frozenset({a.TOPIC, a.BROKER, 8, 16, 32})
"""Types of resources that have settings in Kafka: also loggers of brokers, client metrics and groups."""

DESCRIBED_PER_TURN = 20
"""Resources that are described before others are served; 50 to 100 µs each."""

_Shared: TypeAlias = dict[tuple[object, ...], tuple[a.DescribedConfig, ...]]
"""Descriptions of topics by what they depend on: topics with the same settings of their own share one."""

_Found: TypeAlias = tuple[Field[Any], tuple[a.ConfigSynonym, ...]]
"""A setting, and every place that says something about it."""


def _wrong_type(asked: a.DescribeConfigsResource) -> InvalidRequest:
    return InvalidRequest(
        f"resource_type={asked.resource_type}: {a.TOPIC} (a topic) or {a.BROKER} (a broker) is needed",
        member="resource_type",
    )


class AdminApi:
    """Handlers that read the image and the settings that this broker was started with."""

    def __init__(
        self, config: BrokerConfig, image: Callable[[], MetadataImage], origins: Mapping[str, str] | None = None
    ) -> None:
        """``origins``: where each setting that was given came from; None: whatever is not the default was given."""
        self._config = config
        self._image = image
        self._given = origins

    @functools.cached_property
    def _started_with(self) -> dict[str, str]:
        return to_settings(self._config)

    @functools.cached_property
    def _origins(self) -> Mapping[str, str]:
        if self._given is not None:
            return self._given
        defaults = to_settings(BrokerConfig())
        return {name: "" for name, text in self._started_with.items() if text != defaults.get(name)}

    def handle_describe_configs(
        self, request: a.DescribeConfigsRequest
    ) -> a.DescribeConfigsResponse | Awaitable[a.DescribeConfigsResponse]:
        """Each setting with its value and every place that says something about it.

        Raises InvalidRequest for all resources if one is of a type that has no settings in Kafka either.
        """
        for each in request.resources:
            if each.resource_type not in WITH_SETTINGS:
                raise _wrong_type(each)
        # What is asked twice has one result: 10 bytes that name a broker are 16 KB of response.
        distinct = dict.fromkeys(request.resources)
        describing = self._describing(distinct, request)
        if len(distinct) <= DESCRIBED_PER_TURN:
            return a.DescribeConfigsResponse(results=tuple(describing))
        return _in_turns(describing)

    def with_configs(self, request: CreateTopicsRequest, response: CreateTopicsResponse) -> CreateTopicsResponse:
        """The controller's response, with all settings of each created topic if the request wants them (KIP-525)."""
        if not request.include_configs:
            return response
        own = {topic.name: topic.configs for topic in request.topics}
        return replace(
            response,
            topics=tuple(
                each if each.error_code else replace(each, configs=self._created(own[each.name]))
                for each in response.topics
            ),
        )

    def _created(self, own: Mapping[str, str]) -> tuple[CreatedTopicConfig, ...]:
        return tuple(
            CreatedTopicConfig(name=each.metadata["name"], value=synonyms[0].value, config_source=synonyms[0].source)
            for each, synonyms in self._of_topic(self._image(), own)
        )

    def _describing(
        self, distinct: Iterable[a.DescribeConfigsResource], request: a.DescribeConfigsRequest
    ) -> Iterator[a.DescribedConfigs]:
        image, shared = self._image(), _Shared()
        for asked in distinct:
            kind, name = asked.resource_type, asked.resource_name
            try:
                found = self._configs_of(image, asked)
            except ProtocolError as error:
                yield a.DescribedConfigs.with_error(error, resource_type=kind, resource_name=name)
                continue
            own = tuple(sorted(image.topics[name].configs.items())) if kind == a.TOPIC else name
            configs = shared.get(key := (kind, asked.configuration_keys, own))
            if configs is None:
                configs = shared[key] = self._described(asked, request, found)
            yield a.DescribedConfigs(resource_type=kind, resource_name=name, configs=configs)

    def _described(
        self, asked: a.DescribeConfigsResource, request: a.DescribeConfigsRequest, found: Iterator[_Found]
    ) -> tuple[a.DescribedConfig, ...]:
        keys = frozenset(asked.configuration_keys or ())
        return tuple(
            a.DescribedConfig(
                name=each.metadata["name"],
                value=synonyms[0].value,
                read_only=asked.resource_type == a.BROKER and each.metadata["name"] not in AT_RUN_TIME,
                config_source=synonyms[0].source,
                synonyms=synonyms if request.include_synonyms else (),
                config_type=_type_of(each),
                documentation=each.metadata["meaning"] if request.include_documentation else None,
            )
            for each, synonyms in found
            if not keys or each.metadata["name"] in keys
        )

    def _configs_of(self, image: MetadataImage, asked: a.DescribeConfigsResource) -> Iterator[_Found]:
        name = asked.resource_name
        if asked.resource_type == a.TOPIC:
            check_topic_name(name)
            if name not in image.topics:
                raise UnknownTopicOrPartition(f"there is no topic {name!r}")
            return self._of_topic(image, image.topics[name].configs)
        if asked.resource_type != a.BROKER:
            raise _wrong_type(asked)
        if name == ALL_BROKERS:
            return self._of_all_brokers(image)
        if name != str(self._config.node_id):
            raise InvalidRequest(
                f"this is broker {self._config.node_id}: ask broker {name} for its settings, or for the empty name",
                member="resource_name",
            )
        return self._of_this_broker(image)

    def _of_topic(self, image: MetadataImage, values: Mapping[str, str]) -> Iterator[_Found]:
        for name, each in sorted(table(TopicConfig).items()):
            own = [a.ConfigSynonym(name=name, value=values[name], source=a.DYNAMIC_TOPIC)] if name in values else []
            broker_name = BROKER_NAME_OF.get(name)
            if broker_name is None:
                rest = [a.ConfigSynonym(name=name, value=_text(each.default), source=a.DEFAULT)]
            else:
                rest = self._broker_synonyms(image, broker_name)
            yield each, (*own, *rest)

    def _of_all_brokers(self, image: MetadataImage) -> Iterator[_Found]:
        values, known = image.broker_configs.get(ALL_BROKERS, {}), table(BrokerConfig)
        for name in sorted(values):
            yield known[name], (a.ConfigSynonym(name=name, value=values[name], source=a.DYNAMIC_DEFAULT_BROKER),)

    def _of_this_broker(self, image: MetadataImage) -> Iterator[_Found]:
        for name, each in sorted(table(BrokerConfig).items()):
            yield each, tuple(self._broker_synonyms(image, name))

    def _broker_synonyms(self, image: MetadataImage, name: str) -> list[a.ConfigSynonym]:
        """What says something about a broker's setting, the one that counts first."""
        found = []
        for source, resource in (
            (a.DYNAMIC_BROKER, str(self._config.node_id)),
            (a.DYNAMIC_DEFAULT_BROKER, ALL_BROKERS),
        ):
            values = image.broker_configs.get(resource, {})
            if name in values:
                found.append(a.ConfigSynonym(name=name, value=values[name], source=source))
        if name in self._origins:
            value, origin = self._started_with[name], self._origins[name]
            found.append(a.ConfigSynonym(name=name, value=value, source=a.STATIC_BROKER, origin=origin))
        default = _text(table(BrokerConfig)[name].default)
        return [*found, a.ConfigSynonym(name=name, value=default, source=a.DEFAULT)]


async def _in_turns(describing: Iterator[a.DescribedConfigs]) -> a.DescribeConfigsResponse:
    found = []
    for each in describing:
        found.append(each)
        if not len(found) % DESCRIBED_PER_TURN:
            await asyncio.sleep(0)
    return a.DescribeConfigsResponse(results=tuple(found))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type_of(each: Field[Any]) -> int:
    if isinstance(each.default, bool):
        return BOOLEAN
    if isinstance(each.default, int):
        return INT if each.metadata["high"] == INT_MAX else LONG
    if isinstance(each.default, float):
        return DOUBLE
    return LIST if each.metadata["name"] in LISTS else STRING
