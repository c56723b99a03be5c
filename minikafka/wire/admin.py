"""Messages of what an administrator changes in a running cluster: settings, partitions, replicas.

Kafka's names, flat where Kafka nests topics; the rules of ``messages.py`` hold here too. Numbers of resources, sources
and operations are Kafka's.
"""

from __future__ import annotations

from minikafka.types import NodeId, Offset
from minikafka.wire.messages import Failed, Message, PartitionName, Request

# ---- settings --------------------------------------------------------------------------------------------------------

TOPIC, BROKER = 2, 4
"""Kinds of resources that have settings."""

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
"""What IncrementalAlterConfigs does to one setting; APPEND and SUBTRACT are for lists."""

DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER, STATIC_BROKER, DEFAULT = 1, 2, 3, 4, 5
"""Where the value of a setting comes from."""

SOURCE_NAMES = {
    DYNAMIC_TOPIC: "DYNAMIC_TOPIC_CONFIG",
    DYNAMIC_BROKER: "DYNAMIC_BROKER_CONFIG",
    DYNAMIC_DEFAULT_BROKER: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    STATIC_BROKER: "STATIC_BROKER_CONFIG",
    DEFAULT: "DEFAULT_CONFIG",
}


class AlterConfig(Message):
    name: str
    value: str | None = None
    operation: int = SET


class AlterConfigsResource(Message):
    resource_type: int = TOPIC
    resource_name: str
    """A topic; a broker's id, or "" for all brokers."""
    configs: tuple[AlterConfig, ...] = ()


class IncrementalAlterConfigsRequest(Request):
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False


class AlterConfigsRequest(Request):
    """The older form: what is not named goes back to its default. ``operation`` is not read."""

    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False


class AlteredConfigs(Failed):
    resource_type: int
    resource_name: str


class IncrementalAlterConfigsResponse(Failed):
    responses: tuple[AlteredConfigs, ...] = ()
    metadata_offset: Offset = -1


class AlterConfigsResponse(Failed):
    responses: tuple[AlteredConfigs, ...] = ()
    metadata_offset: Offset = -1


class DescribeConfigsResource(Message):
    resource_type: int = TOPIC
    resource_name: str
    configuration_keys: tuple[str, ...] | None = None
    """None: all settings."""


class DescribeConfigsRequest(Request):
    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool = False
    include_documentation: bool = False


class ConfigSynonym(Message):
    name: str
    value: str
    source: int
    origin: str = ""
    """Our own: the file, variable or flag that a broker was started with."""


class DescribedConfig(Message):
    name: str
    value: str
    read_only: bool = False
    """Only a restart can change it."""
    config_source: int = DEFAULT
    is_sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    """Every place that says something about it, the one that counts first."""
    config_type: int = 0
    documentation: str | None = None


class DescribedConfigs(Failed):
    resource_type: int
    resource_name: str
    configs: tuple[DescribedConfig, ...] = ()


class DescribeConfigsResponse(Failed):
    results: tuple[DescribedConfigs, ...] = ()


# ---- partitions ------------------------------------------------------------------------------------------------------


class NewPartitionReplicas(Message):
    broker_ids: tuple[NodeId, ...]


class NewPartitions(Message):
    name: str
    count: int
    """How many the topic is to have."""
    assignments: tuple[NewPartitionReplicas, ...] | None = None
    """The replicas of each new partition; None: placed as for a new topic."""


class CreatePartitionsRequest(Request):
    topics: tuple[NewPartitions, ...]
    timeout_ms: int = 30_000
    validate_only: bool = False


class CreatedPartitions(Failed):
    name: str


class CreatePartitionsResponse(Failed):
    results: tuple[CreatedPartitions, ...] = ()
    throttle_time_ms: int = 0
    metadata_offset: Offset = -1


# ---- reassignments (KIP-455) -----------------------------------------------------------------------------------------


class ReassignedPartition(Message):
    topic: str
    partition: int
    replicas: tuple[NodeId, ...] | None
    """Where to, the preferred leader first; None cancels what is under way."""


class AlterPartitionReassignmentsRequest(Request):
    partitions: tuple[ReassignedPartition, ...]
    timeout_ms: int = 60_000
    allow_replication_factor_change: bool = True


class ReassignmentAnswer(Failed):
    topic: str
    partition: int


class AlterPartitionReassignmentsResponse(Failed):
    responses: tuple[ReassignmentAnswer, ...] = ()
    metadata_offset: Offset = -1


class ListPartitionReassignmentsRequest(Request):
    partitions: tuple[PartitionName, ...] | None = None
    """None: all that are under way."""
    timeout_ms: int = 60_000


class OngoingReassignment(Message):
    topic: str
    partition: int
    replicas: tuple[NodeId, ...]
    adding_replicas: tuple[NodeId, ...] = ()
    removing_replicas: tuple[NodeId, ...] = ()


class ListPartitionReassignmentsResponse(Failed):
    partitions: tuple[OngoingReassignment, ...] = ()


# ---- log directories -------------------------------------------------------------------------------------------------


class DescribeLogDirsRequest(Request):
    partitions: tuple[PartitionName, ...] | None = None
    """None: all replicas of the answering broker."""


class ReplicaSize(Message):
    topic: str
    partition: int
    size_bytes: int
    offset_lag: int = 0


class DescribedLogDir(Failed):
    log_dir: str
    replicas: tuple[ReplicaSize, ...] = ()
    total_bytes: int = -1
    """Of the volume; -1: not known."""
    usable_bytes: int = -1


class DescribeLogDirsResponse(Failed):
    results: tuple[DescribedLogDir, ...] = ()
