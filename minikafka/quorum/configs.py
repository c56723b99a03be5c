"""Settings changed at run time: of a topic, of one broker, of all brokers (KIP-226, KIP-339).

A change is a record per setting; it takes effect where it is replayed. Two settings are more than that, for decisions
about partitions rest on them:

- min.insync.replicas. Below it the high watermark stands still, and only therefore do replicas that leave the ISR stay
  eligible leaders (KIP-966). With a lower minimum some of them no longer are, so the same batch takes them out of the
  ELR. And every partition that is concerned gets a new partition epoch: a leader that does not know the new minimum yet
  cannot have its ISR changed before it does. Otherwise: 1. the minimum rises from 1 to 2, the ISR is {1,2}; 2. leader 1
  proposes {1}, and 2 becomes an eligible leader replica, because one is too few to commit; 3. leader 1 still believes
  in a minimum of 1 and commits alone; 4. 1 dies, 2 is elected, and what was acknowledged is gone.
- unclean.leader.election.enable. Set to true, partitions without a leader get one in the same batch.

Which settings of brokers may change, and which of them are the cluster's and not one broker's, stands in
``config/names.py``: ``AT_RUN_TIME``, ``OF_THE_CLUSTER``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from minikafka import errors as kafka
from minikafka.addresses import is_number
from minikafka.config import (
    AT_RUN_TIME,
    BROKER_NAME_OF,
    KNOWN_TO_KAFKA_ONLY,
    OF_THE_CLUSTER,
    TOPIC_NAME_OF,
    BrokerConfig,
    TopicConfig,
    parse_broker,
    parse_topic,
    table,
    unknown_setting,
)
from minikafka.quorum.controller_topics import check_setting_lengths, check_topic_name
from minikafka.quorum.decision import ALL_BROKERS, ClusterPolicy, Decision
from minikafka.quorum.elections import change_of, election_for
from minikafka.quorum.image import MetadataImage
from minikafka.quorum.records import ConfigRecord, MetadataRecord, PartitionChange
from minikafka.wire import admin as a

Response = TypeVar("Response")

LISTS = frozenset(
    {
        "cleanup.policy",
        "log.cleanup.policy",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    }
)
"""Settings that are lists: APPEND and SUBTRACT are for them."""

THROTTLES = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Tools remove them from topics and brokers alike; Kafka accepts the deletion of a setting that is not there."""


@dataclass(frozen=True, slots=True)
class _Resource:
    """What is changed, and its present settings."""

    kind: int
    name: str
    present: Mapping[str, str]
    base: TopicConfig
    """What a topic gets when it says nothing."""

    def check_name(self, setting: str) -> None:
        """Raise InvalidConfig unless this resource may be given the setting at run time."""
        if self.kind == a.TOPIC:
            if setting not in BROKER_NAME_OF and setting not in table(TopicConfig):
                raise unknown_setting(setting, table(TopicConfig))
        elif setting in AT_RUN_TIME:
            if self.name != ALL_BROKERS and setting in OF_THE_CLUSTER:
                also = ", or for a topic" if setting in TOPIC_NAME_OF else ""
                raise kafka.InvalidConfig(
                    f"{setting} is the cluster's: set it for all brokers (the empty resource name){also}",
                    setting=setting,
                )
        elif setting in BROKER_NAME_OF:
            raise kafka.InvalidConfig(
                f"{setting} is a topic's setting; the brokers' default of it is {BROKER_NAME_OF[setting]}",
                setting=setting,
            )
        elif setting in table(BrokerConfig):
            raise kafka.InvalidConfig(
                f"{setting} is read-only at run time: change it where the broker is started, and restart it",
                setting=setting,
            )
        elif setting in KNOWN_TO_KAFKA_ONLY:
            raise kafka.InvalidConfig(f"{setting} is known to Kafka and not used by minikafka", setting=setting)
        else:
            raise unknown_setting(setting, AT_RUN_TIME)

    def check(self, wanted: Mapping[str, str]) -> None:
        """Raise InvalidConfig unless these settings may stand together."""
        for setting in wanted:
            self.check_name(setting)
        if self.kind == a.TOPIC:
            parse_topic(wanted, base=self.base)
        else:
            parse_broker(wanted)

    def record(self, setting: str, value: str | None) -> ConfigRecord:
        return ConfigRecord(resource_type=self.kind, resource_name=self.name, name=setting, value=value)


def incremental_alter_configs(
    policy: ClusterPolicy, image: MetadataImage, request: a.IncrementalAlterConfigsRequest
) -> Decision[a.IncrementalAlterConfigsResponse]:
    """Set, delete, append or subtract single settings. Each resource is changed as a whole or not at all."""
    return _altered(policy, image, request, _increments, a.IncrementalAlterConfigsResponse, "settings were altered")


def alter_configs(
    policy: ClusterPolicy, image: MetadataImage, request: a.AlterConfigsRequest
) -> Decision[a.AlterConfigsResponse]:
    """The older form: the resource then has these settings and no others."""
    return _altered(policy, image, request, _replacement, a.AlterConfigsResponse, "settings were replaced")


def _altered(
    policy: ClusterPolicy,
    image: MetadataImage,
    request: a.IncrementalAlterConfigsRequest | a.AlterConfigsRequest,
    wanted_of: Callable[[_Resource, a.AlterConfigsResource], dict[str, str]],
    respond: Callable[..., Response],
    cause: str,
) -> Decision[Response]:
    """The records for all resources, in order, and an answer for each."""
    records: list[MetadataRecord] = []
    answers: list[a.AlteredConfigs] = []
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    staged = image
    for asked in request.resources:
        try:
            if times[asked.resource_type, asked.resource_name] > 1:
                raise kafka.InvalidRequest(f"{asked.resource_name!r} is named more than once in one request")
            resource = _resource(policy, staged, asked)
            wanted = wanted_of(resource, asked)
            resource.check(wanted)
            check_setting_lengths(dict(wanted.items() - resource.present.items()))
        except kafka.ProtocolError as error:
            answers.append(
                a.AlteredConfigs.failed(error, resource_type=asked.resource_type, resource_name=asked.resource_name)
            )
            continue
        answers.append(a.AlteredConfigs(resource_type=asked.resource_type, resource_name=asked.resource_name))
        changed: list[MetadataRecord] = list(_difference(resource, wanted))
        after = staged.staged(changed)
        names = [asked.resource_name] if asked.resource_type == a.TOPIC else sorted(after.topics)
        changed.extend(_consequences(policy, staged, after, names))
        records.extend(changed)
        staged = staged.staged(changed)
    written = () if request.validate_only else tuple(records)
    return Decision(records=written, response=respond(responses=tuple(answers)), cause=cause)


def _resource(policy: ClusterPolicy, image: MetadataImage, asked: a.AlterConfigsResource) -> _Resource:
    name = asked.resource_name
    if asked.resource_type == a.TOPIC:
        check_topic_name(name)
        topic = image.topics.get(name)
        if topic is None:
            raise kafka.UnknownTopicOrPartition(f"there is no topic {name!r}")
        return _Resource(a.TOPIC, name, topic.configs, policy.under(image).topic_defaults)
    if asked.resource_type != a.BROKER:
        raise kafka.InvalidRequest(
            f"resource_type={asked.resource_type}: {a.TOPIC} (a topic) or {a.BROKER} (a broker) is needed",
            member="resource_type",
        )
    if name != ALL_BROKERS and not is_number(name):
        raise kafka.InvalidRequest(
            f"resource_name={name!r}: the number of a broker is needed, or the empty name for all"
        )
    if name != ALL_BROKERS and int(name) not in image.brokers:
        raise kafka.BrokerIdNotRegistered(
            f"no broker is registered as {name!r}: {', '.join(map(str, sorted(image.brokers)))} are; "
            "the empty name stands for all brokers"
        )
    name = name if name == ALL_BROKERS else str(int(name))
    return _Resource(a.BROKER, name, image.broker_configs.get(name, {}), policy.topic_defaults)


def _increments(resource: _Resource, asked: a.AlterConfigsResource) -> dict[str, str]:
    wanted = dict(resource.present)
    named: set[str] = set()
    for each in asked.configs:
        if each.name in named:
            raise kafka.InvalidRequest(f"{each.name} is named twice", member="configs")
        named.add(each.name)
        if each.operation != a.DELETE or each.name not in THROTTLES:
            resource.check_name(each.name)
        if each.operation == a.DELETE:
            wanted.pop(each.name, None)
        elif each.operation in (a.SET, a.APPEND, a.SUBTRACT):
            wanted[each.name] = _value(resource, each)
        else:
            raise kafka.InvalidRequest(
                f"{each.name}: operation {each.operation} is not one of 0 (set), 1 (delete), 2 (append), 3 (subtract)",
                member="operation",
            )
    return wanted


def _value(resource: _Resource, each: a.AlterConfig) -> str:
    if each.value is None:
        raise kafka.InvalidRequest(f"{each.name}: a value is needed; operation 1 deletes a setting", member="value")
    if each.operation == a.SET:
        return each.value
    if each.name not in LISTS:
        raise kafka.InvalidConfig(
            f"{each.name} is not a list: nothing can be appended or taken away", setting=each.name
        )
    default = table(TopicConfig if resource.kind == a.TOPIC else BrokerConfig)[each.name].default
    before = [text for text in resource.present.get(each.name, default).split(",") if text]
    values = [text.strip() for text in each.value.split(",") if text.strip()]
    if each.operation == a.APPEND:
        return ",".join(sorted({*before, *values}))
    return ",".join(text for text in before if text not in values)


def _replacement(_resource: _Resource, asked: a.AlterConfigsResource) -> dict[str, str]:
    wanted: dict[str, str] = {}
    for each in asked.configs:
        if each.name in wanted:
            raise kafka.InvalidRequest(f"{each.name} is named twice", member="configs")
        if each.value is None:
            raise kafka.InvalidRequest(f"{each.name}: a value is needed; leave out what is to go", member="value")
        wanted[each.name] = each.value
    return wanted


def _difference(resource: _Resource, wanted: Mapping[str, str]) -> Iterator[ConfigRecord]:
    for name in sorted(resource.present.keys() | wanted.keys()):
        if wanted.get(name) != resource.present.get(name):
            yield resource.record(name, wanted.get(name))


def _consequences(
    policy: ClusterPolicy, before: MetadataImage, after: MetadataImage, topics: Iterable[str]
) -> Iterator[MetadataRecord]:
    """What must change with the settings of these topics, see the file's head."""
    old, new = policy.under(before), policy.under(after)
    for name in topics:
        was, topic = before.topics[name], after.topics[name]
        minimum_moved = old.min_insync_replicas(was) != new.min_insync_replicas(topic)
        now_unclean = new.elects_unclean(topic) and not old.elects_unclean(was)
        for partition in topic.partitions if minimum_moved or now_unclean else ():
            change = change_of(new, after, topic, partition, election=election_for(new, topic))
            if change is None and minimum_moved:
                change = PartitionChange(topic_id=topic.topic_id, partition=partition.partition)
            if change is not None:
                yield change
