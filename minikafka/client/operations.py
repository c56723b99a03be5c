"""What an administrator changes in a running cluster: settings, partitions, replicas. Part of the admin client.

Names are kafka-python's and aiokafka's. Every change here can be sent again without harm (what is so already is not
recorded twice), but for more partitions: there a repetition's refusal counts as the success of the first attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import starmap
from typing import Any

from minikafka.addresses import is_number
from minikafka.client.admin_calls import AdminCalls
from minikafka.client.routing import as_dict
from minikafka.client.structs import ConfigChange, ConfigResource, NewPartitions, Reassignment
from minikafka.errors import InvalidPartitions, InvalidRequest, ProtocolError
from minikafka.security.quotas import Entity
from minikafka.security.scram import (
    ITERATIONS_DEFAULT,
    ITERATIONS_MAX,
    MECHANISMS,
    SALT_SIZE,
    ScramMechanism,
    salted_password,
)
from minikafka.types import NodeId, TopicPartition
from minikafka.wire import admin as a
from minikafka.wire import messages as m
from minikafka.wire.acls import (
    Acl,
    AclFilter,
    CreateAclsRequest,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from minikafka.wire.credentials import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramDeletion,
    ScramUpsertion,
)
from minikafka.wire.outcomes import error_in
from minikafka.wire.quotas import (
    DEFAULT,
    EXACT,
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityPart,
    QuotaAlteration,
    QuotaChange,
    QuotaFilterPart,
)

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
        _raise_first(found)
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

    async def _changed(self, request: Any, timeout_ms: int | None, results: str, *, wait: bool) -> Any:
        """The controller's response. Raises the first error in its member ``results``.

        ``wait``: return when every broker that can be reached uses the change.
        """
        deadline = self._deadline(timeout_ms)
        response = await self._change(request, deadline)
        _raise_first(getattr(response, results))
        if wait:
            await self._wait_for_brokers(response.metadata_offset, deadline, lambda _: True, ())
        return response

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
        _raise_first(response.results)
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
        asked = None
        if topic_partitions is not None:
            asked = tuple(
                a.PartitionName(topic=each.topic, partition=each.partition) for each in as_dict(topic_partitions)
            )
        request = a.ListPartitionReassignmentsRequest(partitions=asked)
        response: a.ListPartitionReassignmentsResponse = await self._ask_anyone(request, self._deadline(timeout_ms))
        return {
            TopicPartition(each.topic, each.partition): Reassignment(
                each.replicas, each.adding_replicas, each.removing_replicas
            )
            for each in response.partitions
        }

    # ---- access control ----

    async def describe_acls(self, acl_filter: AclFilter, timeout_ms: int | None = None) -> list[Acl]:
        """Return the ACLs that the filter matches. Raises SecurityDisabled if the brokers have no authorizer."""
        response: DescribeAclsResponse = await self._ask_anyone(
            DescribeAclsRequest(filter=acl_filter), self._deadline(timeout_ms)
        )
        return list(response.acls)

    async def create_acls(self, acls: Sequence[Acl], timeout_ms: int | None = None, *, wait: bool = True) -> None:
        """Create ACLs; one that exists stays. The first error is raised.

        ``wait``: return when every broker that can be reached uses them.
        """
        await self._changed(CreateAclsRequest(creations=tuple(acls)), timeout_ms, "results", wait=wait)

    async def delete_acls(
        self, acl_filters: Sequence[AclFilter], timeout_ms: int | None = None, *, wait: bool = True
    ) -> list[Acl]:
        """Delete all ACLs that one of the filters matches and return them. The first error is raised.

        If a response is lost, the request is sent again, and what the first attempt deleted is not returned.
        """
        request = DeleteAclsRequest(filters=tuple(acl_filters))
        response: DeleteAclsResponse = await self._changed(request, timeout_ms, "filter_results", wait=wait)
        return list(dict.fromkeys(acl for each in response.filter_results for acl in each.matching_acls))

    # ---- users ----

    async def describe_user_scram_credentials(
        self, users: Sequence[str] | None = None, timeout_ms: int | None = None
    ) -> dict[str, dict[str, int]]:
        """Return iterations by mechanism of these users, or of all. The first error is raised."""
        request = DescribeUserScramCredentialsRequest(users=None if users is None else tuple(users))
        response: DescribeUserScramCredentialsResponse = await self._ask_anyone(request, self._deadline(timeout_ms))
        _raise_first(response.results)
        return {
            each.user: {ScramMechanism(info.mechanism).label: info.iterations for info in each.credential_infos}
            for each in response.results
        }

    async def set_user_password(
        self,
        user: str,
        password: str,
        mechanism: str = "SCRAM-SHA-512",
        *,
        iterations: int = ITERATIONS_DEFAULT,
        timeout_ms: int | None = None,
        wait: bool = True,
    ) -> None:
        """Create or replace a user's SCRAM credential.

        The password stays here: the brokers get what PBKDF2 makes of it and a new salt. That is enough to log in,
        though, and this client sends it in plain text.

        Args:
            user: The name; its principal is ``User:name``.
            password: Not empty; used as UTF-8, without SASLprep.
            mechanism: ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``. The user keeps its credential of the other one.
            iterations: 4096 to 16384.
            timeout_ms: When the call is given up.
            wait: Return when every broker that can be reached knows it.

        Raises:
            InvalidRequest: The password is empty, or the mechanism unknown.
            UnacceptableCredential: The name or the iterations are out of bounds.
        """
        number = _mechanism(mechanism)
        if not password:
            raise InvalidRequest("The password is empty.", member="password")
        salt = self._started()[0].entropy(SALT_SIZE)
        upsertion = ScramUpsertion(
            name=user,
            mechanism=number,
            iterations=iterations,
            salt=salt,
            # PBKDF2 refuses 0 iterations, and the controller all that are out of bounds.
            salted_password=salted_password(number, password, salt, max(1, min(iterations, ITERATIONS_MAX))),
        )
        request = AlterUserScramCredentialsRequest(upsertions=(upsertion,))
        await self._changed(request, timeout_ms, "results", wait=wait)

    async def delete_user_credential(
        self, user: str, mechanism: str, timeout_ms: int | None = None, *, wait: bool = True
    ) -> None:
        """Delete a user's credential of one mechanism. Raises ResourceNotFound if there is none."""
        deletion = ScramDeletion(name=user, mechanism=_mechanism(mechanism))
        request = AlterUserScramCredentialsRequest(deletions=(deletion,))
        await self._changed(request, timeout_ms, "results", wait=wait)

    # ---- quotas ----

    async def describe_client_quotas(
        self, wanted: Entity = (), timeout_ms: int | None = None
    ) -> dict[Entity, dict[str, float]]:
        """Return quotas by entity.

        Args:
            wanted: Types and names that entities must have, such as ``(("user", "alice"),)``; None as a name is the
                default. They may have other types too. Empty: all entities.
            timeout_ms: When the call is given up.
        """
        request = DescribeClientQuotasRequest(
            components=tuple(
                QuotaFilterPart(entity_type=kind, match_type=DEFAULT if name is None else EXACT, match=name)
                for kind, name in wanted
            )
        )
        response: DescribeClientQuotasResponse = await self._ask_anyone(request, self._deadline(timeout_ms))
        return {
            tuple((part.entity_type, part.entity_name) for part in entry.entity): {
                each.key: each.value for each in entry.values
            }
            for entry in response.entries
        }

    async def alter_client_quotas(
        self,
        quotas: Mapping[Entity, Mapping[str, float | None]],
        timeout_ms: int | None = None,
        *,
        wait: bool = True,
    ) -> None:
        """Set quotas; a value of None removes one. The first error is raised after all entities were altered.

        Args:
            quotas: By entity, such as ``(("user", "alice"),)``: ``producer_byte_rate`` and ``consumer_byte_rate`` in
                bytes a second, ``request_percentage`` in percent of a broker's event loop.
            timeout_ms: When the call is given up.
            wait: Return when every broker that can be reached uses them.
        """
        request = AlterClientQuotasRequest(
            entries=tuple(
                QuotaAlteration(
                    entity=tuple(EntityPart(entity_type=kind, entity_name=name) for kind, name in entity),
                    ops=tuple(
                        QuotaChange(key=key, value=0.0 if value is None else float(value), remove=value is None)
                        for key, value in values.items()
                    ),
                )
                for entity, values in quotas.items()
            )
        )
        await self._changed(request, timeout_ms, "entries", wait=wait)


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


def _mechanism(name: str) -> ScramMechanism:
    if name not in MECHANISMS:
        raise InvalidRequest(f"mechanism={name!r}: one of {', '.join(MECHANISMS)} is needed", member="mechanism")
    return MECHANISMS[name]


def _raise_first(answers: Sequence[m.Failed]) -> None:
    """Raise the first error among the parts of an answer, with the resource or topic that it is about."""
    for each in answers:
        error = error_in(each)
        if isinstance(each, a.CreatedPartitions | a.AlteredConfigs | a.DescribedConfigs) and error is not None:
            name = each.name if isinstance(each, a.CreatedPartitions) else each.resource_name
            raise type(error)(error.message, outcome=error.outcome, resource=name)
        if error is not None:
            raise error
