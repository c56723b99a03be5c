"""The table of permissions: what each API needs, and what becomes of the parts of a request that are denied.

A row is a list of steps (``PERMISSIONS``; an API without a row fails a test). Each step takes the request on:

- :class:`Whole` denies the request as a whole, by an error.
- :class:`Each` removes denied items from a list of the request and adds an error for each of them to the response.
  In a request for everything (the list is None) denied items are left out of the response, without an error.
- :class:`Listed` leaves denied items out of the response.

A need is a list of alternatives: one allowed action suffices. The last alternative names the error. An empty list needs
nothing.

Rules for this file: a denial comes before any look at the metadata, so that the response for a denied name is the same
whether it exists or not. The errors name the caller's own principal, operation and resource, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from minikafka.errors import (
    BY_NAME,
    ClusterAuthorizationFailed,
    GroupAuthorizationFailed,
    ProtocolError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from minikafka.security.authorizer import REMEMBERED_LENGTH_MAX, Action
from minikafka.types import METADATA_TOPIC
from minikafka.wire import admin as a
from minikafka.wire import group_messages as g
from minikafka.wire import messages as m
from minikafka.wire import transaction_messages as t
from minikafka.wire.acls import CLUSTER_NAME, AclOperation, ResourceType

ALTER, ALTER_CONFIGS = AclOperation.ALTER, AclOperation.ALTER_CONFIGS
CLUSTER_ACTION, CREATE, DELETE = AclOperation.CLUSTER_ACTION, AclOperation.CREATE, AclOperation.DELETE
DESCRIBE, DESCRIBE_CONFIGS = AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS
READ, WRITE = AclOperation.READ, AclOperation.WRITE
TOPIC, GROUP, TRANSACTIONAL_ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID

ERRORS: Mapping[ResourceType, type[ProtocolError]] = {
    ResourceType.TOPIC: TopicAuthorizationFailed,
    ResourceType.GROUP: GroupAuthorizationFailed,
    ResourceType.CLUSTER: ClusterAuthorizationFailed,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAuthorizationFailed,
}
"""By the type of the resource that is denied."""

ALLOWED_MAX = 1000
"""Allowed actions that a permit remembers: their names may be of topics that do not exist."""

Need: TypeAlias = Callable[[Any], Sequence[Action]]
"""A request or an item -> the actions of which one must be allowed."""

Amend: TypeAlias = Callable[[Any], Any]
"""Response of the handler -> response for the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """What one caller may do, by the metadata that this broker has now."""

    principal: str
    may: Callable[[Action], bool]
    may_by_type: Callable[[AclOperation, ResourceType], bool]
    """True if the principal may do this with at least one resource of the type."""
    topics: Collection[str] = ()
    """Names of the topics that exist."""
    on_denial: Callable[[ProtocolError, Action], None] = lambda _error, _action: None
    """Called with each error of :meth:`denial`, and what was denied."""
    reported: Collection[AclOperation] = ()
    """Operations whose permission is reported with each request, too."""
    on_allowed: Callable[[Action], None] = lambda _action: None
    """Called with the reported operations that :meth:`denial` allows."""
    allowed: set[Action] = field(default_factory=set)
    """What was found to be allowed, of the other operations."""
    hidden: dict[AclOperation, tuple[str, ...]] = field(default_factory=dict)
    """Of :meth:`hidden_topics`."""

    def hidden_topics(self, operation: AclOperation) -> tuple[str, ...]:
        """The topics for which the operation is not allowed. Each is checked once."""
        if operation not in self.hidden:
            denied = (name for name in self.topics if not self.may(Action(operation, TOPIC, name)))
            self.hidden[operation] = tuple(denied)
        return self.hidden[operation]

    def allows(self, actions: Sequence[Action]) -> bool:
        """Return True if one of the actions is allowed, or none needed. Responses leave out the rest silently."""
        return not actions or any(self.may(action) for action in actions)

    def denial(self, actions: Sequence[Action]) -> ProtocolError | None:
        """The error if none of the actions is allowed. It is what the caller is told, and is reported."""
        for action in actions:
            if action in self.allowed:
                return None
            if self.may(action):
                if action.operation in self.reported:
                    self.on_allowed(action)
                elif len(self.allowed) < ALLOWED_MAX and len(action.resource_name) <= REMEMBERED_LENGTH_MAX:
                    self.allowed.add(action)
                return None
        if not actions:
            return None
        denied = actions[-1]
        error = ERRORS[denied.resource_type](f"{self.principal} has no permission for {denied}.")
        self.on_denial(error, denied)
        return error


class Screened(NamedTuple):
    """What is left of a request, and what must be changed in its response."""

    request: Any
    """None: nothing is left; the response is ``amend`` of an empty one."""
    amends: tuple[Amend, ...] = ()

    def amend(self, response: Any) -> Any:
        """The response for the client. An error of the whole request is passed on."""
        if not response.error_code:
            for each in self.amends:
                response = each(response)
        return response


# ---- steps -----------------------------------------------------------------------------------------------------------

Step: TypeAlias = Callable[[Any, Permit], Screened]
"""(request, what its caller may do) -> what is left of it. Raises ProtocolError if it is denied as a whole."""


@dataclass(frozen=True, slots=True)
class Whole:
    """The request as a whole needs something."""

    need: Need

    def __call__(self, request: Any, permit: Permit) -> Screened:
        """Raise the error of a denied request."""
        error = permit.denial(self.need(request))
        if error is not None:
            raise error
        return Screened(request)


@dataclass(frozen=True, slots=True, kw_only=True)
class Each:
    """Each item of a list in the request needs something."""

    items: str
    """Member of the request."""
    results: str
    """Member of the response."""
    result: Callable[..., Any]
    """Type of a result."""
    keys: tuple[str, ...]
    """Members that a result has in common with its item; one name for items that are texts."""
    need: Need
    error: type[ProtocolError] | None = None
    """Another error than that of the denied resource."""
    result_need: Need | None = None
    """Need of a result, where the request is for everything; None: as of an item."""
    answers_without_items: bool = False
    """The handler is called even if no item is left."""

    def __call__(self, request: Any, permit: Permit) -> Screened:
        """Remove denied items."""
        items = getattr(request, self.items)
        if items is None:
            hidden = Listed(self.results, self.result_need or self.need)
            return hidden(request, permit)
        kept: list[Any] = []
        refused: list[Any] = []
        for item in items:
            error = permit.denial(self.need(item))
            if error is None:
                kept.append(item)
            else:
                refused.append(self._refused(item, error))
        if not refused:
            return Screened(request)
        left = replace(request, **{self.items: tuple(kept)}) if kept or self.answers_without_items else None
        return Screened(left, (_adding(self.results, refused),))

    def _refused(self, item: Any, error: ProtocolError) -> Any:
        named = {self.keys[0]: item} if isinstance(item, str) else {key: getattr(item, key) for key in self.keys}
        code = error.code if self.error is None else self.error.code
        return self.result(**named, error_code=code, error_message=error.message, outcome=error.outcome)


@dataclass(frozen=True, slots=True)
class Listed:
    """Each item of a list in the response needs something, or is left out."""

    results: str
    need: Need

    def __call__(self, request: Any, permit: Permit) -> Screened:
        """Filter the response."""

        def visible(response: Any) -> Any:
            found = getattr(response, self.results)
            kept = tuple(each for each in found if permit.allows(self.need(each)))
            return response if len(kept) == len(found) else replace(response, **{self.results: kept})

        return Screened(request, (visible,))


def _adding(member: str, refused: Sequence[Any]) -> Amend:
    return lambda response: replace(response, **{member: (*getattr(response, member), *refused)})


# ---- needs -----------------------------------------------------------------------------------------------------------


def cluster(operation: AclOperation) -> Need:
    """The operation on the cluster."""
    action = Action(operation, ResourceType.CLUSTER, CLUSTER_NAME)
    return lambda _: (action,)


def of(operation: AclOperation, kind: ResourceType, member: str) -> Need:
    """The operation on the resource that a member names; nothing if the member is None."""

    def need(item: Any) -> Sequence[Action]:
        name = getattr(item, member)
        return () if name is None else (Action(operation, kind, name),)

    return need


def named(operation: AclOperation, kind: ResourceType) -> Need:
    """The operation on the resource that an item is the name of."""
    return lambda item: (Action(operation, kind, item),)


def topic(operation: AclOperation) -> Need:
    """The operation on the topic of an item."""
    return of(operation, TOPIC, "topic")


def either(*needs: Need) -> Need:
    """One of several needs; the last one names the error."""
    return lambda item: [action for need in needs for action in need(item)]


def _configs(operation: AclOperation) -> Need:
    """The operation on a topic, or on the cluster for everything else that has settings."""

    def need(resource: Any) -> Sequence[Action]:
        if resource.resource_type == a.TOPIC:
            return (Action(operation, TOPIC, resource.resource_name),)
        return (Action(operation, ResourceType.CLUSTER, CLUSTER_NAME),)

    return need


_PARTITION = ("topic", "partition")


def partitions(operation: AclOperation, result: Callable[..., Any], *, also: Need | None = None) -> Each:
    """Partitions of topics, in the request and in the response."""
    need = topic(operation) if also is None else either(also, topic(operation))
    return Each(items="partitions", results="partitions", result=result, keys=_PARTITION, need=need)


# ---- steps of single APIs --------------------------------------------------------------------------------------------

_FETCH = partitions(READ, m.FetchedPartition)
_FETCH_OF_BROKERS = Each(
    items="partitions",
    results="partitions",
    result=m.FetchedPartition,
    keys=_PARTITION,
    need=cluster(CLUSTER_ACTION),
    error=TopicAuthorizationFailed,
)


def _fetch(request: m.FetchRequest, permit: Permit) -> Screened:
    """Consumers need READ. Followers, and all who fetch the metadata log, need CLUSTER_ACTION.

    The partitions of a fetch session are checked in the response, at every fetch. A denied partition stays in its
    session, as in Kafka: otherwise it would be missing there when its permission is granted.
    """
    if request.replica_id >= 0 or any(each.topic == METADATA_TOPIC for each in request.partitions):
        return _FETCH_OF_BROKERS(request, permit)
    if request.session_epoch < 0 and not request.session_id:
        return _FETCH(request, permit)
    denied = [each for each in request.partitions if not permit.allows(_FETCH.need(each))]
    # A denied partition is reported at once, whether it has records, has none or does not exist.
    left = replace(request, max_wait_ms=0) if denied else request
    return Screened(left, (lambda response: _without_denied(response, denied, permit),))


def _without_denied(response: m.FetchResponse, denied: Sequence[m.FetchPartition], permit: Permit) -> m.FetchResponse:
    """Replace the results of denied partitions by errors; add those that were named in the request."""
    named: list[m.FetchedPartition | m.FetchPartition] = [*response.partitions, *denied]
    errors = {(each.topic, each.partition): permit.denial(_FETCH.need(each)) for each in named}
    if not any(errors.values()):
        return response
    return replace(
        response,
        partitions=(
            *(each for each in response.partitions if errors[each.topic, each.partition] is None),
            *(
                m.FetchedPartition.with_error(why, topic=name, partition=number)
                for (name, number), why in errors.items()
                if why is not None
            ),
        ),
    )


_METADATA = Each(
    items="topics",
    results="topics",
    result=m.MetadataTopic,
    keys=("name",),
    need=named(DESCRIBE, TOPIC),
    result_need=of(DESCRIBE, TOPIC, "name"),
    answers_without_items=True,
)
_AUTO_CREATED = Each(
    items="topics",
    results="topics",
    result=m.MetadataTopic,
    keys=("name",),
    need=either(cluster(CREATE), named(CREATE, TOPIC)),
    answers_without_items=True,
)


def _metadata(request: m.MetadataRequest, permit: Permit) -> Screened:
    """DESCRIBE of each topic; CREATE of those that the request would create."""
    described = _METADATA(request, permit)
    left: m.MetadataRequest = described.request
    if not left.allow_auto_topic_creation or left.topics is None:
        return described
    missing = tuple(name for name in left.topics if name not in permit.topics)
    created = _AUTO_CREATED(replace(left, topics=missing), permit)
    creatable = set(created.request.topics)
    names = tuple(name for name in left.topics if name in permit.topics or name in creatable)
    return Screened(replace(left, topics=names), (*described.amends, *created.amends))


def _created_configs(request: m.CreateTopicsRequest, permit: Permit) -> Screened:
    """The settings of a created topic are returned only with DESCRIBE_CONFIGS (KIP-525)."""
    if not request.include_configs:
        return Screened(request)
    need = of(DESCRIBE_CONFIGS, TOPIC, "name")

    def without(response: m.CreateTopicsResponse) -> m.CreateTopicsResponse:
        return replace(
            response,
            topics=tuple(
                each
                if permit.allows(need(each))
                else replace(each, num_partitions=-1, replication_factor=-1, configs=())
                for each in response.topics
            ),
        )

    return Screened(request, (without,))


_KEY_TYPES = {0: GROUP, 1: TRANSACTIONAL_ID}


def _find_coordinator(request: g.FindCoordinatorRequest, permit: Permit) -> Screened:
    """DESCRIBE of each group or transactional id. Other kinds of keys are refused by the handler."""
    kind = _KEY_TYPES.get(request.key_type)
    if kind is None:
        return Screened(request)
    step = Each(items="keys", results="coordinators", result=g.Coordinator, keys=("key",), need=named(DESCRIBE, kind))
    return step(request, permit)


def _init_producer_id(request: m.InitProducerIdRequest, permit: Permit) -> Screened:
    """WRITE of the transactional id; without one IDEMPOTENT_WRITE of the cluster, or WRITE of any topic (KIP-679)."""
    if request.transactional_id is not None:
        return Whole(of(WRITE, TRANSACTIONAL_ID, "transactional_id"))(request, permit)
    if permit.may_by_type(WRITE, TOPIC):
        return Screened(request)
    return Whole(cluster(AclOperation.IDEMPOTENT_WRITE))(request, permit)


_NOT_ATTEMPTED = BY_NAME["OPERATION_NOT_ATTEMPTED"].code


def _add_partitions_to_txn(request: t.AddPartitionsToTxnRequest, permit: Permit) -> Screened:
    """WRITE of each transactional id and of all its topics: one denied partition stops the whole transaction."""
    kept: list[t.TransactionPartitions] = []
    refused: list[t.AddedPartitions] = []
    for each in request.transactions:
        error = permit.denial(of(WRITE, TRANSACTIONAL_ID, "transactional_id")(each))
        errors = [error or permit.denial(topic(WRITE)(partition)) for partition in each.partitions]
        if not any(errors) and error is None:
            kept.append(each)
            continue
        refused.append(
            t.AddedPartitions(
                transactional_id=each.transactional_id,
                partitions=tuple(
                    t.AddedPartition(
                        topic=partition.topic,
                        partition=partition.partition,
                        error_code=_NOT_ATTEMPTED if why is None else why.code,
                        error_message="Another partition of the request is denied." if why is None else why.message,
                        outcome="not_written",
                    )
                    for partition, why in zip(each.partitions, errors, strict=True)
                ),
            )
        )
    if not refused:
        return Screened(request)
    left = replace(request, transactions=tuple(kept)) if kept else None
    return Screened(left, (_adding("transactions", refused),))


def _consumer_heartbeat(request: g.ConsumerGroupHeartbeatRequest, permit: Permit) -> Screened:
    """READ of the group, and DESCRIBE of each topic that the member subscribes to (KIP-848).

    A regular expression matches only topics that the member may describe, also if another member has sent it.
    """
    (step,) = _READ_GROUP
    step(request, permit)
    may_describe = named(DESCRIBE, TOPIC)
    for name in request.subscribed_topic_names or ():
        error = permit.denial(may_describe(name))
        if error is not None:
            raise error
    hidden = permit.hidden_topics(DESCRIBE)
    return Screened(replace(request, hidden_topics=hidden) if hidden else request)


_Described: TypeAlias = g.DescribedConsumerGroup | g.DescribedGroup


def _topics_of(group: _Described) -> Iterable[str]:
    """The topics that a group of the consumer protocol uses; none of a classic group, whose members send bytes."""
    if isinstance(group, g.DescribedGroup):
        return group.topics
    return (name for member in group.members for name in member.topics)


def _describable(group: _Described, permit: Permit) -> _Described:
    """The group; with an error and without members if it uses a topic that may not be described, as in Kafka."""
    for name in _topics_of(group):
        error = permit.denial(named(DESCRIBE, TOPIC)(name))
        if error is not None:
            return type(group)(
                group_id=group.group_id,
                error_code=error.code,
                error_message="The group has topics that the client has no permission to describe.",
            )
    return group


def _describe_groups(result: type[_Described]) -> Step:
    """DESCRIBE of each group, and of the topics that it uses as a group of the consumer protocol."""

    def step(request: Any, permit: Permit) -> Screened:
        screened = _groups(DESCRIBE, result)(request, permit)

        def filtered(response: Any) -> Any:
            return replace(response, groups=tuple(_describable(each, permit) for each in response.groups))

        return Screened(screened.request, (filtered, *screened.amends))

    return step


_LIST_GROUPS = Listed("groups", either(cluster(DESCRIBE), of(DESCRIBE, GROUP, "group_id")))


def _describe_log(request: m.DescribeLogRequest, permit: Permit) -> Screened:
    """Raw batches: READ of the topic. Those of the cluster's own logs need CLUSTER_ACTION."""
    internal = request.topic in INTERNAL_LOGS
    return Whole(cluster(CLUSTER_ACTION) if internal else topic(READ))(request, permit)


def _explain_partition(request: m.ExplainPartitionRequest, permit: Permit) -> Screened:
    """DESCRIBE of the topic. Its producers are shown with READ only, as in DescribeProducers."""
    Whole(topic(DESCRIBE))(request, permit)
    if permit.allows(topic(READ)(request)):
        return Screened(request)
    return Screened(request, (lambda response: replace(response, producers=(), producer_count=0),))


def _read_history(request: m.ReadHistoryRequest, permit: Permit) -> Screened:
    """DESCRIBE of the topic; events of all partitions and brokers need CLUSTER_ACTION, as events do in ``/v1``."""
    return Whole(cluster(CLUSTER_ACTION) if request.topic is None else topic(DESCRIBE))(request, permit)


INTERNAL_LOGS = frozenset({METADATA_TOPIC, "__consumer_offsets", "__transaction_state"})
"""Topics whose raw batches hold what the APIs for them check in detail."""


def _visible_partitions(response: t.DescribeTransactionsResponse, permit: Permit) -> t.DescribeTransactionsResponse:
    return replace(
        response,
        transactions=tuple(
            replace(each, partitions=tuple(one for one in each.partitions if permit.allows(topic(DESCRIBE)(one))))
            for each in response.transactions
        ),
    )


def _describe_transactions(request: t.DescribeTransactionsRequest, permit: Permit) -> Screened:
    """DESCRIBE of each transactional id; of its partitions those are shown whose topics may be described."""
    screened = Each(
        items="transactional_ids",
        results="transactions",
        result=t.DescribedTransaction,
        keys=("transactional_id",),
        need=named(DESCRIBE, TRANSACTIONAL_ID),
    )(request, permit)
    return Screened(screened.request, (lambda response: _visible_partitions(response, permit), *screened.amends))


# ---- the table -------------------------------------------------------------------------------------------------------

_BROKERS = (Whole(cluster(CLUSTER_ACTION)),)
_READ_GROUP = (Whole(of(READ, GROUP, "group_id")),)
_WRITE_TRANSACTION = Whole(of(WRITE, TRANSACTIONAL_ID, "transactional_id"))
_ALTER_CLUSTER = (Whole(cluster(ALTER)),)
_DESCRIBE_CLUSTER = (Whole(cluster(DESCRIBE)),)


def _topics(operation: AclOperation, result: Callable[..., Any], results: str, *, also: Need | None = None) -> Each:
    """Topics that the request names by their member ``name``."""
    need = of(operation, TOPIC, "name")
    return Each(
        items="topics",
        results=results,
        result=result,
        keys=("name",),
        need=need if also is None else either(also, need),
    )


def _groups(operation: AclOperation, result: Callable[..., Any]) -> Each:
    return Each(items="groups", results="groups", result=result, keys=("group_id",), need=named(operation, GROUP))


def _resources(operation: AclOperation, result: Callable[..., Any], results: str) -> Each:
    return Each(
        items="resources",
        results=results,
        result=result,
        keys=("resource_type", "resource_name"),
        need=_configs(operation),
    )


PERMISSIONS: Mapping[str, tuple[Step, ...]] = {
    "Produce": (_WRITE_TRANSACTION, partitions(WRITE, m.ProducedPartition)),
    "Fetch": (_fetch,),
    "ListOffsets": (partitions(DESCRIBE, m.ListedOffset),),
    "Metadata": (_metadata,),
    "OffsetCommit": (*_READ_GROUP, partitions(READ, g.PartitionOutcome)),
    "OffsetFetch": (Whole(of(DESCRIBE, GROUP, "group_id")), partitions(DESCRIBE, g.FetchedOffset)),
    "FindCoordinator": (_find_coordinator,),
    "JoinGroup": _READ_GROUP,
    "Heartbeat": _READ_GROUP,
    "LeaveGroup": _READ_GROUP,
    "SyncGroup": _READ_GROUP,
    "DescribeGroups": (_describe_groups(g.DescribedGroup),),
    "ConsumerGroupHeartbeat": (_consumer_heartbeat,),
    "ConsumerGroupDescribe": (_describe_groups(g.DescribedConsumerGroup),),
    "ListGroups": (_LIST_GROUPS,),
    "ApiVersions": (),
    "CreateTopics": (_topics(CREATE, m.CreatedTopic, "topics", also=cluster(CREATE)), _created_configs),
    "DeleteTopics": (
        Each(
            items="topics",
            results="topics",
            result=m.DeletedTopic,
            keys=("name",),
            need=either(cluster(DELETE), named(DELETE, TOPIC)),
        ),
    ),
    "DeleteRecords": (partitions(DELETE, m.DeletedRecords),),
    "InitProducerId": (_init_producer_id,),
    "OffsetForLeaderEpoch": (partitions(DESCRIBE, m.EpochAnswer, also=cluster(CLUSTER_ACTION)),),
    "AddPartitionsToTxn": (_add_partitions_to_txn,),
    "AddOffsetsToTxn": (_WRITE_TRANSACTION, *_READ_GROUP),
    "EndTxn": (_WRITE_TRANSACTION,),
    "WriteTxnMarkers": (Whole(either(cluster(ALTER), cluster(CLUSTER_ACTION))),),
    "TxnOffsetCommit": (_WRITE_TRANSACTION, *_READ_GROUP, partitions(READ, g.PartitionOutcome)),
    "DescribeAcls": _DESCRIBE_CLUSTER,
    "CreateAcls": _ALTER_CLUSTER,
    "DeleteAcls": _ALTER_CLUSTER,
    "DescribeConfigs": (_resources(DESCRIBE_CONFIGS, a.DescribedConfigs, "results"),),
    "AlterConfigs": (_resources(ALTER_CONFIGS, a.AlteredConfigs, "responses"),),
    "DescribeLogDirs": _DESCRIBE_CLUSTER,
    "CreatePartitions": (_topics(ALTER, a.CreatedPartitions, "results"),),
    "DeleteGroups": (_groups(DELETE, g.DeletedGroup),),
    "ElectLeaders": _ALTER_CLUSTER,
    "IncrementalAlterConfigs": (_resources(ALTER_CONFIGS, a.AlteredConfigs, "responses"),),
    "AlterPartitionReassignments": _ALTER_CLUSTER,
    "ListPartitionReassignments": _DESCRIBE_CLUSTER,
    "OffsetDelete": (Whole(of(DELETE, GROUP, "group_id")), partitions(READ, g.PartitionOutcome)),
    "DescribeClientQuotas": (Whole(cluster(DESCRIBE_CONFIGS)),),
    "AlterClientQuotas": (Whole(cluster(ALTER_CONFIGS)),),
    "DescribeUserScramCredentials": _DESCRIBE_CLUSTER,
    "AlterUserScramCredentials": _ALTER_CLUSTER,
    "Vote": _BROKERS,
    "BeginQuorumEpoch": _BROKERS,
    "EndQuorumEpoch": _BROKERS,
    "DescribeQuorum": _DESCRIBE_CLUSTER,
    "AlterPartition": _BROKERS,
    "UpdateFeatures": _ALTER_CLUSTER,
    "FetchSnapshot": _BROKERS,
    "DescribeProducers": (partitions(READ, m.DescribedProducer),),
    "BrokerRegistration": _BROKERS,
    "BrokerHeartbeat": _BROKERS,
    "UnregisterBroker": _ALTER_CLUSTER,
    "DescribeTransactions": (_describe_transactions,),
    "ListTransactions": (Listed("transactions", of(DESCRIBE, TRANSACTIONAL_ID, "transactional_id")),),
    "AllocateProducerIds": _BROKERS,
    "DescribeTopicPartitions": (
        Each(
            items="topics",
            results="topics",
            result=m.DescribedTopic,
            keys=("topic",),
            need=named(DESCRIBE, TOPIC),
            result_need=topic(DESCRIBE),
        ),
    ),
    "DescribeReplicas": (Listed("replicas", topic(DESCRIBE)),),
    "DescribeLog": (_describe_log,),
    "ExplainPartition": (_explain_partition,),
    "AwaitStop": _BROKERS,
    "ReadHistory": (_read_history,),
    # Its sender needs it. The request in it is checked as one of the client that it names (``broker/envelopes.py``).
    "Envelope": _BROKERS,
    # Brokers request it for their clients, and show what each client may describe.
    "ReadGroupHistory": _BROKERS,
    # The principal that the request names is checked by its handler.
    "RunTestHook": _BROKERS,
}
"""By API. The steps are taken in order, each on what the one before has left."""


FORWARDABLE = frozenset(
    api
    for api, steps in PERMISSIONS.items()
    if steps is not _BROKERS and api not in {"ApiVersions", "FindCoordinator", "Metadata", "WriteTxnMarkers"}
)
"""APIs whose requests a broker may send on for a client in an Envelope. Not those of brokers, and none whose response
depends on the listener where the request entered."""


def screen(api: str, request: Any, permit: Permit) -> Screened:
    """Take all steps of an API. Raises ProtocolError if the request is denied as a whole."""
    amends: tuple[Amend, ...] = ()
    for step in PERMISSIONS[api]:
        screened = step(request, permit)
        # The response passes the last step first: its items are those that the steps before have left.
        amends = (*screened.amends, *amends)
        request = screened.request
        if request is None:
            break
    return Screened(request, amends)
