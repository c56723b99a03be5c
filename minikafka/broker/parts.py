"""The parts of one broker by name: what they ask of each other, and which of them answers which API.

Parts are made one after the other, and some ask others that are made after them: the controller, for example, asks the
lifecycle whether this broker has registered. A part gets methods of :class:`Parts` in place of the other part, so that
it runs without it in a test. ``Broker.start`` sets each attribute once; before that a call raises AttributeError.

Rule for this file: it points, it answers nothing itself. An API in :func:`handler_table` is one that the broker serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from minikafka.broker.api.describe import (
    handle_api_versions,
    handle_describe_log,
    handle_describe_log_dirs,
    handle_describe_producers,
    handle_describe_replicas,
    handle_explain_partition,
    handle_read_history,
)
from minikafka.broker.api.fetch import handle_fetch
from minikafka.broker.api.markers import handle_write_txn_markers
from minikafka.broker.api.offsets import (
    handle_delete_records,
    handle_list_offsets,
    handle_offset_for_leader_epoch,
)
from minikafka.broker.api.produce import handle_produce
from minikafka.broker.dispatch import ApiHandler
from minikafka.broker.metadata import describe_topics
from minikafka.broker.throttle import STRICT_SINCE
from minikafka.ports import INTERNAL, RequestContext
from minikafka.quorum.administration import describe_user_scram_credentials
from minikafka.quorum.client_quotas import describe_client_quotas
from minikafka.quorum.controller_topics import list_partition_reassignments
from minikafka.replication.leader import LeaderReplica
from minikafka.types import METADATA_TOPIC
from minikafka.wire import messages as m
from minikafka.wire.acls import AclOperation
from minikafka.wire.apis import BY_REQUEST

if TYPE_CHECKING:
    from minikafka.broker.broker import Broker
    from minikafka.broker.controller_driver import ControllerDriver
    from minikafka.broker.group_manager import GroupManager
    from minikafka.broker.lifecycle import Lifecycle
    from minikafka.broker.metadata import MetadataCache
    from minikafka.broker.quorum_driver import QuorumDriver
    from minikafka.broker.replica_manager import ReplicaManager
    from minikafka.broker.transaction_manager import TransactionManager
    from minikafka.broker.verification import Verifier
    from minikafka.quorum.image import MetadataImage
    from minikafka.types import Address, NodeId, Offset
    from minikafka.wire.messages import MissingReplica

CHANGES_OF_ACLS = ("CreateAcls", "DeleteAcls")
QUORUM_APIS = ("Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "FetchSnapshot", "DescribeQuorum")
FORWARDED_APIS = (
    "CreateTopics",
    "DeleteTopics",
    "ElectLeaders",
    "CreatePartitions",
    "AlterConfigs",
    "IncrementalAlterConfigs",
    "AlterPartitionReassignments",
    *CHANGES_OF_ACLS,
    "AlterClientQuotas",
    "AlterUserScramCredentials",
    "UpdateFeatures",
    "UnregisterBroker",
)
"""The controller's APIs that clients of Kafka's protocol may send to any broker."""
ANSWERED_BY_CONTROLLER = frozenset((*FORWARDED_APIS, "DescribeQuorum"))
"""What is passed on for them when it arrives at another broker."""

CONTROLLER_APIS = (
    *FORWARDED_APIS,
    "BrokerRegistration",
    "BrokerHeartbeat",
    "AlterPartition",
    "AllocateProducerIds",
)


class Parts:
    """The parts of one broker, in the order in which they are made."""

    voters: Mapping[NodeId, Address]
    metadata: MetadataCache
    quorum: QuorumDriver
    controller: ControllerDriver
    lifecycle: Lifecycle
    replicas: ReplicaManager
    groups: GroupManager
    transactions: TransactionManager

    def image(self) -> MetadataImage:
        """The metadata as far as this broker has applied it."""
        return self.metadata.image

    def applied_offset(self) -> Offset:
        """The end of the metadata that this broker has applied."""
        return self.metadata.image.offset

    def address_of(self, node: NodeId) -> Address | None:
        """The advertised address of a broker, by the metadata."""
        known = self.metadata.image.brokers.get(node)
        return known.address if known is not None else None

    def controller_address(self) -> Address | None:
        """The address of the active controller, or None while none is known."""
        return self.voters.get(self.quorum.leader_id)

    def broker_epoch(self) -> int:
        """The epoch of this broker's registration; -1 while it has none."""
        return self.lifecycle.broker_epoch

    def latest_broker_epoch(self) -> int:
        """The epoch of the latest registration, also once the controller has expired it; -1 before the first."""
        return self.lifecycle.latest_broker_epoch

    def has_registered(self) -> bool:
        """Return True if the controller has registered this incarnation."""
        return self.lifecycle.broker_epoch >= 0

    def missing_replicas(self) -> tuple[MissingReplica, ...]:
        """Replicas of a former incarnation whose logs this process had to create."""
        return self.replicas.missing_replicas

    def leads_any(self) -> bool:
        """Return True if this broker leads a partition."""
        return any(isinstance(each.role, LeaderReplica) for each in self.replicas.partitions.values())

    def verifier(self) -> Verifier:
        """Return what has coordinators confirm that a partition belongs to the transaction of its writer."""
        return self.transactions.verifier


def handler_table(broker: Broker) -> dict[str, ApiHandler]:
    """Every API by its name.

    A broker refuses clients while it has not read the metadata since its start. What it would tell them until then is
    wrong: that topics do not exist, that others lead. They ask another broker.
    """
    replicas, quorum, controller = broker.replicas, broker.quorum, broker.controller
    lifecycle, groups, transactions = broker.lifecycle, broker.groups, broker.transactions
    metadata, admin, acls = broker.metadata_api, broker.admin_api, broker.acl_api
    check_caught_up = broker.check_caught_up
    alive, verifier = lifecycle.session_alive, transactions.verifier

    def to_clients(handler: ApiHandler) -> ApiHandler:
        def handle(request: Any, context: RequestContext) -> Any:
            if context.protocol != INTERNAL.protocol and getattr(request, "replica_id", -1) < 0:
                check_caught_up()
            return handler(request, context)

        return handle

    def of_image(answer: Callable[[MetadataImage, Any], Any]) -> ApiHandler:
        return to_clients(lambda request, _: answer(broker.image, request))

    def produce(request: m.ProduceRequest, context: RequestContext) -> Any:
        if context.protocol != INTERNAL.protocol:  # as to_clients, without a call more
            check_caught_up()
        return handle_produce(replicas, request, session_alive=alive, context=context, verifier=verifier)

    def fetch(request: m.FetchRequest, context: RequestContext) -> Any:
        if any(each.topic == METADATA_TOPIC for each in request.partitions):
            return quorum.handle(request)
        may_read = None
        if broker.access is not None and request.replica_id < 0 and (request.session_epoch >= 0 or request.session_id):
            may_read = broker.access.topics_check(context, "Fetch", AclOperation.READ)
        return handle_fetch(replicas, request, session_alive=alive, sends_files=context.sends_files, may_read=may_read)

    def describe_replicas(request: m.DescribeReplicasRequest, _: RequestContext) -> m.DescribeReplicasResponse:
        return handle_describe_replicas(replicas, request, broker_epoch=lifecycle.broker_epoch)

    async def mutate(request: Any, context: RequestContext) -> Any:
        mutations = broker.throttle.mutations(BY_REQUEST[type(request)].name, context)
        if mutations is None:
            return await controller.handle(request)
        response = await controller.handle(request, mutations.charge)
        throttle_ms = mutations.throttle_ms
        return replace(response, throttle_time_ms=throttle_ms) if throttle_ms else response

    async def create_topics(request: m.CreateTopicsRequest, context: RequestContext) -> m.CreateTopicsResponse:
        return admin.with_configs(request, await mutate(request, context))

    return {
        "Produce": produce,
        "Fetch": to_clients(fetch),
        "ListOffsets": to_clients(lambda request, _: handle_list_offsets(replicas, request, session_alive=alive)),
        "OffsetForLeaderEpoch": to_clients(
            lambda request, _: handle_offset_for_leader_epoch(replicas, request, session_alive=alive)
        ),
        "DeleteRecords": to_clients(lambda request, _: handle_delete_records(replicas, request, session_alive=alive)),
        "Metadata": to_clients(metadata.handle_metadata),
        "DescribeTopicPartitions": of_image(describe_topics),
        "DescribeConfigs": to_clients(_without_context(admin.handle_describe_configs)),
        "ListPartitionReassignments": of_image(list_partition_reassignments),
        "WriteTxnMarkers": lambda request, _: handle_write_txn_markers(
            replicas, request, session_alive=alive, on_marker=groups.marker_appended
        ),
        "DescribeLogDirs": lambda request, _: handle_describe_log_dirs(replicas, request),
        "DescribeProducers": to_clients(lambda request, _: handle_describe_producers(replicas, request)),
        "ApiVersions": _without_context(handle_api_versions),
        "AwaitStop": _without_context(broker.stopping_api.handle_await_stop),
        "DescribeReplicas": describe_replicas,
        "DescribeLog": lambda request, _: handle_describe_log(replicas, quorum, request),
        "ExplainPartition": lambda request, _: handle_explain_partition(replicas, broker.partition_history, request),
        "ReadHistory": lambda request, _: handle_read_history(
            broker.history,
            broker.partition_history,
            request,
            node=replicas.config.node_id,
            wall_ms=replicas.clock.wall_ms(),
        ),
        "Envelope": broker.answer_envelope,
        "RunTestHook": _without_context(broker.run_test_hook),
        "FindCoordinator": broker.find_coordinator.handle,
        **groups.handlers(),
        **transactions.handlers(),
        **dict.fromkeys(QUORUM_APIS, _without_context(quorum.handle)),
        **dict.fromkeys(CONTROLLER_APIS, _without_context(controller.handle)),
        **dict.fromkeys(STRICT_SINCE, mutate),
        "CreateTopics": create_topics,
        "DescribeAcls": to_clients(_without_context(acls.handle_describe)),
        "DescribeClientQuotas": of_image(describe_client_quotas),
        "DescribeUserScramCredentials": of_image(describe_user_scram_credentials),
        **dict.fromkeys(CHANGES_OF_ACLS, _without_context(acls.to_controller(controller.handle))),
    }


def _without_context(handler: Callable[[Any], Any]) -> ApiHandler:
    """A handler that answers every caller alike."""
    return lambda request, _: handler(request)
