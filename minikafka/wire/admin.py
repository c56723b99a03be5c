"""Messages of what an administrator changes in a running cluster: settings, partitions, replicas.

Kafka's names, flat where Kafka nests topics; the rules of ``messages.py`` hold here too. Numbers of resources, sources
and operations are Kafka's.
"""

from __future__ import annotations

from minikafka.types import NodeId, Offset
from minikafka.wire.messages import Failed, message

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


@message
class AlterConfig:
    name: str
    value: str | None = None
    operation: int = SET


@message
class AlterConfigsResource:
    resource_type: int = TOPIC
    resource_name: str
    """A topic; a broker's id, or "" for all brokers."""
    configs: tuple[AlterConfig, ...] = ()


@message
class IncrementalAlterConfigsRequest:
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False


@message
class AlterConfigsRequest:
    """The older form: what is not named goes back to its default. ``operation`` is not read."""

    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool = False


@message
class AlteredConfigs(Failed):
    resource_type: int
    resource_name: str


@message
class IncrementalAlterConfigsResponse(Failed):
    responses: tuple[AlteredConfigs, ...] = ()
    metadata_offset: Offset = -1


@message
class AlterConfigsResponse(Failed):
    responses: tuple[AlteredConfigs, ...] = ()
    metadata_offset: Offset = -1


@message
class DescribeConfigsResource:
    resource_type: int = TOPIC
    resource_name: str
    configuration_keys: tuple[str, ...] | None = None
    """None: all settings."""


@message
class DescribeConfigsRequest:
    resources: tuple[DescribeConfigsResource, ...]
    include_synonyms: bool = False
    include_documentation: bool = False


@message
class ConfigSynonym:
    name: str
    value: str
    source: int
    origin: str = ""
    """Our own: the file, variable or flag that a broker was started with."""


@message
class DescribedConfig:
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


@message
class DescribedConfigs(Failed):
    resource_type: int
    resource_name: str
    configs: tuple[DescribedConfig, ...] = ()


@message
class DescribeConfigsResponse(Failed):
    results: tuple[DescribedConfigs, ...] = ()


# ---- partitions ------------------------------------------------------------------------------------------------------


@message
class NewPartitionReplicas:
    broker_ids: tuple[NodeId, ...]


@message
class NewPartitions:
    name: str
    count: int
    """How many the topic is to have."""
    assignments: tuple[NewPartitionReplicas, ...] | None = None
    """The replicas of each new partition; None: placed as for a new topic."""


@message
class CreatePartitionsRequest:
    topics: tuple[NewPartitions, ...]
    timeout_ms: int = 30_000
    validate_only: bool = False


@message
class CreatedPartitions(Failed):
    name: str


@message
class CreatePartitionsResponse(Failed):
    results: tuple[CreatedPartitions, ...] = ()
    throttle_time_ms: int = 0
    metadata_offset: Offset = -1


# ---- reassignments (KIP-455) -----------------------------------------------------------------------------------------


@message
class ReassignedPartition:
    topic: str
    partition: int
    replicas: tuple[NodeId, ...] | None
    """Where to, the preferred leader first; None cancels what is under way."""


@message
class AlterPartitionReassignmentsRequest:
    partitions: tuple[ReassignedPartition, ...]
    timeout_ms: int = 60_000
    allow_replication_factor_change: bool = True


@message
class ReassignmentAnswer(Failed):
    topic: str
    partition: int


@message
class AlterPartitionReassignmentsResponse(Failed):
    responses: tuple[ReassignmentAnswer, ...] = ()
    metadata_offset: Offset = -1


@message
class PartitionName:
    topic: str
    partition: int


@message
class ListPartitionReassignmentsRequest:
    partitions: tuple[PartitionName, ...] | None = None
    """None: all that are under way."""
    timeout_ms: int = 60_000


@message
class OngoingReassignment:
    topic: str
    partition: int
    replicas: tuple[NodeId, ...]
    adding_replicas: tuple[NodeId, ...] = ()
    removing_replicas: tuple[NodeId, ...] = ()


@message
class ListPartitionReassignmentsResponse(Failed):
    partitions: tuple[OngoingReassignment, ...] = ()


# ---- log directories -------------------------------------------------------------------------------------------------


@message
class DescribeLogDirsRequest:
    partitions: tuple[PartitionName, ...] | None = None
    """None: all replicas of the answering broker."""


@message
class ReplicaSize:
    topic: str
    partition: int
    size_bytes: int
    offset_lag: int = 0


@message
class DescribedLogDir(Failed):
    log_dir: str
    replicas: tuple[ReplicaSize, ...] = ()
    total_bytes: int = -1
    """Of the volume; -1: not known."""
    usable_bytes: int = -1


@message
class DescribeLogDirsResponse(Failed):
    results: tuple[DescribedLogDir, ...] = ()
