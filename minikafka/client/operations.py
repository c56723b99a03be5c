"""What an administrator changes in a running cluster: settings, partitions, replicas. Part of the admin client.

Names are kafka-python's and aiokafka's. Every change here can be sent again without harm (what is so already is not
recorded twice), but for more partitions: there a repetition's refusal counts as the success of the first attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap

from minikafka.addresses import is_number
from minikafka.client.admin_calls import AdminCalls, raise_first
from minikafka.client.routing import as_dict
from minikafka.client.structs import ConfigChange, ConfigResource, NewPartitions, Reassignment
from minikafka.errors import InvalidPartitions, InvalidRequest, ProtocolError
from minikafka.types import NodeId, TopicPartition
from minikafka.wire import admin as a
from minikafka.wire import messages as m
from minikafka.wire.outcomes import error_in

KINDS = {"topic": a.TOPIC, "broker": a.BROKER}
"""Kinds of resources by name; the numbers are accepted too."""

OPERATIONS = {"set": a.SET, "delete": a.DELETE, "append": a.APPEND, "subtract": a.SUBTRACT}


class Operations(AdminCalls):
    """The methods."""

    # ---- settings ----

    async def describe_configs(
        self,
        config_resources: Sequence[ConfigResource],
        include_synonyms: bool = False,  # noqa: FBT001, FBT002 - kafka-python's signature
        *,
        include_documentation: bool = False,
    ) -> list[a.DescribedConfigs]:
        """The settings of topics and brokers, with where each value comes from; all, or those that ``configs`` names.

        A broker's settings are asked of that broker; the empty name stands for those set for all at run time.
        """
        deadline = self._deadline(None)
        found: list[a.DescribedConfigs] = []
        for each in starmap(ConfigResource, config_resources):
            request = a.DescribeConfigsRequest(
                resources=(
                    a.DescribeConfigsResource(
                        resource_type=_kind(each),
                        resource_name=each.name,
                        configuration_keys=tuple(each.configs) if each.configs else None,
                    ),
                ),
                include_synonyms=include_synonyms,
                include_documentation=include_documentation,
            )
            if _kind(each) == a.BROKER and each.name:
                response: a.DescribeConfigsResponse = await self._ask_node(_node(each.name), request, deadline)
            else:
                response = await self._ask_anyone(request, deadline)
            found.extend(response.results)
        raise_first(found)
        return found

    async def incremental_alter_configs(
        self,
        config_resources: Sequence[ConfigResource],
        timeout_ms: int | None = None,
        *,
        validate_only: bool = False,
        wait: bool = True,
    ) -> tuple[a.AlteredConfigs, ...]:
        """Change single settings; a value of None takes one back to its default. The first error is raised.

        ``wait``: return when every broker that can be reached uses them.
        """
        request = a.IncrementalAlterConfigsRequest(resources=_altered(config_resources), validate_only=validate_only)
        response: a.IncrementalAlterConfigsResponse = await self._changed(
            request, timeout_ms, "responses", wait=wait and not validate_only
        )
        return response.responses

    async def alter_configs(
        self,
        config_resources: Sequence[ConfigResource],
        timeout_ms: int | None = None,
        *,
        validate_only: bool = False,
        wait: bool = True,
    ) -> tuple[a.AlteredConfigs, ...]:
        """Give a topic or broker these settings and no others (the older form, as in aiokafka)."""
        request = a.AlterConfigsRequest(resources=_altered(config_resources), validate_only=validate_only)
        response: a.AlterConfigsResponse = await self._changed(
            request, timeout_ms, "responses", wait=wait and not validate_only
        )
        return response.responses

    # ---- partitions ----

    async def create_partitions(
        self,
        topic_partitions: Mapping[str, NewPartitions | int],
        timeout_ms: int | None = None,
        *,
        validate_only: bool = False,
        wait: bool = True,
    ) -> None:
        """Give topics more partitions: how many each is to have in the end. The first error is raised.

        ``wait``: return when every partition has a leader that answers and all its brokers know of it.
        """
        deadline = self._deadline(timeout_ms)
        asked = {
            name: NewPartitions(each) if isinstance(each, int) else NewPartitions(*each)
            for name, each in topic_partitions.items()
        }
        request = a.CreatePartitionsRequest(
            topics=tuple(_enlarged(name, each) for name, each in asked.items()), validate_only=validate_only
        )

        async def happened() -> a.CreatePartitionsResponse | None:
            described = await self._describe(tuple(asked), deadline)
            if any(topic.error_code or len(topic.partitions) < asked[topic.topic].total_count for topic in described):
                return None
            return a.CreatePartitionsResponse(results=tuple(a.CreatedPartitions(name=name) for name in asked))

        if validate_only:  # nothing can have happened
            response: a.CreatePartitionsResponse = await self._change(request, deadline)
        else:
            response = await self._change(request, deadline, happened=happened, repeated=InvalidPartitions)
        raise_first(response.results)
        if wait and not validate_only:
            await self._wait_for(list(asked), response.metadata_offset, deadline)

    # ---- reassignments ----

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition, Sequence[NodeId] | None],
        timeout_ms: int | None = None,
        *,
        allow_replication_factor_change: bool = True,
    ) -> dict[TopicPartition, ProtocolError | None]:
        """Move partitions to other replicas, or cancel (None); what was refused, by partition.

        The answer says that it is begun: :meth:`list_partition_reassignments` shows what is not yet complete.
        """
        request = a.AlterPartitionReassignmentsRequest(
            partitions=tuple(
                a.ReassignedPartition(
                    topic=name.topic,
                    partition=name.partition,
                    replicas=None if replicas is None else tuple(replicas),
                )
                for name, replicas in ((TopicPartition(*each), replicas) for each, replicas in reassignments.items())
            ),
            allow_replication_factor_change=allow_replication_factor_change,
        )
        response: a.AlterPartitionReassignmentsResponse = await self._change(request, self._deadline(timeout_ms))
        return {TopicPartition(each.topic, each.partition): error_in(each) for each in response.responses}

    async def list_partition_reassignments(
        self, topic_partitions: Iterable[TopicPartition] | None = None, timeout_ms: int | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """What is under way: of all partitions, or of these."""
        asked = None if topic_partitions is None else m.PartitionName.each(as_dict(topic_partitions))
        request = a.ListPartitionReassignmentsRequest(partitions=asked)
        response: a.ListPartitionReassignmentsResponse = await self._ask_anyone(request, self._deadline(timeout_ms))
        return {
            TopicPartition(each.topic, each.partition): Reassignment(
                each.replicas, each.adding_replicas, each.removing_replicas
            )
            for each in response.partitions
        }


def _kind(resource: ConfigResource) -> int:
    kind = resource.resource_type
    number = KINDS.get(kind.lower(), 0) if isinstance(kind, str) else int(kind)
    if number not in KINDS.values():
        raise InvalidRequest(f"resource_type={kind!r}: topic or broker is needed", member="resource_type")
    return number


def _node(name: str) -> NodeId:
    if not is_number(name):
        raise InvalidRequest(f"broker {name!r}: its number is needed, or nothing for all brokers", member="name")
    return int(name)


def _altered(resources: Sequence[ConfigResource]) -> tuple[a.AlterConfigsResource, ...]:
    return tuple(
        a.AlterConfigsResource(
            resource_type=_kind(each),
            resource_name=each.name,
            configs=tuple(_change_of(name, value) for name, value in each.configs.items()),
        )
        for each in starmap(ConfigResource, resources)
    )


def _change_of(name: str, value: str | ConfigChange | None) -> a.AlterConfig:
    if isinstance(value, ConfigChange):
        operation = OPERATIONS.get(value.operation)
        if operation is None:
            raise InvalidRequest(f"{name}: {value.operation!r} is not one of {', '.join(OPERATIONS)}")
        return a.AlterConfig(name=name, value=value.value, operation=operation)
    if value is None:
        return a.AlterConfig(name=name, operation=a.DELETE)
    return a.AlterConfig(name=name, value=str(value))


def _enlarged(name: str, asked: NewPartitions) -> a.NewPartitions:
    assignments = asked.new_assignments
    return a.NewPartitions(
        name=name,
        count=asked.total_count,
        assignments=None
        if assignments is None
        else tuple(a.NewPartitionReplicas(broker_ids=tuple(each)) for each in assignments),
    )
