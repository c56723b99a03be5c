"""The table of permissions of ``/v1``: what a route needs before its handler runs.

A route that names a topic, group or transactional id needs something of it, whether it exists or not. What a handler
sends to brokers is checked as well, by the table of APIs (``security/permissions.py``): see
:func:`minikafka.rest.leaders.response_of`. So routes without a resource in their path need nothing here if all that
they do is such a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minikafka.rest.route import Route
from minikafka.security.authorizer import Action
from minikafka.security.permissions import Permit
from minikafka.security.quotas import FETCH, PRODUCE
from minikafka.wire.acls import CLUSTER_NAME, AclOperation, ResourceType


class Needed(NamedTuple):
    """An operation on the resource that a parameter of the path names."""

    operation: AclOperation
    resource_type: ResourceType
    parameter: str = ""
    """Empty: the cluster."""


def _topic(operation: AclOperation) -> Needed:
    return Needed(operation, ResourceType.TOPIC, "topic")


def _group(operation: AclOperation) -> Needed:
    return Needed(operation, ResourceType.GROUP, "group")


def _cluster(operation: AclOperation) -> Needed:
    return Needed(operation, ResourceType.CLUSTER)


_DESCRIBE_TOPIC, _READ_TOPIC, _WRITE_TOPIC = map(_topic, (AclOperation.DESCRIBE, AclOperation.READ, AclOperation.WRITE))
_DESCRIBE_GROUP, _READ_GROUP = _group(AclOperation.DESCRIBE), _group(AclOperation.READ)
_DESCRIBE_CLUSTER, _ALTER_CLUSTER = _cluster(AclOperation.DESCRIBE), _cluster(AclOperation.ALTER)
_CLUSTER_ACTION = _cluster(AclOperation.CLUSTER_ACTION)
_WRITE_TRANSACTION = Needed(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "transactional_id")
_PARTITION = "/v1/topics/{topic}/partitions/{partition}"

NEEDS: Mapping[tuple[str, str], Needed | None] = {
    # The page and the index show nothing of the cluster.
    ("GET", "/"): None,
    ("GET", "/ui/{file}"): None,
    ("GET", "/metrics"): _DESCRIBE_CLUSTER,
    ("GET", "/healthz"): None,
    ("GET", "/healthy"): None,
    ("GET", "/readyz"): None,
    ("GET", "/ready"): None,
    ("GET", "/openapi.json"): None,
    ("GET", "/openapi"): None,
    ("GET", "/docs"): None,
    ("GET", "/docs/problems"): None,
    ("GET", "/docs/problems/{slug}"): None,
    # Stories show nothing of the cluster.
    ("GET", "/v1/lab/stories"): None,
    ("GET", "/v1/lab/stories/{story}"): None,
    # The cluster. Clients need the addresses of brokers, as in Kafka's Metadata.
    ("GET", "/v1/brokers"): None,
    # It shows the caller nothing but itself.
    ("GET", "/v1/whoami"): None,
    ("GET", "/v1/cluster"): None,
    # Its handler checks the topic of a partition and leaves denied topics out of the cluster.
    ("GET", "/v1/live"): None,
    # The same of earlier times, and events, which are checked one by one.
    ("GET", "/v1/history"): None,
    ("GET", "/v1/history/replay"): None,
    ("GET", "/v1/history/groups"): None,
    ("GET", "/v1/brokers/{broker}"): _DESCRIBE_CLUSTER,
    ("GET", "/v1/connections"): _DESCRIBE_CLUSTER,
    ("GET", "/v1/controller"): _DESCRIBE_CLUSTER,
    ("GET", "/v1/controller/log"): _CLUSTER_ACTION,
    ("DELETE", "/v1/brokers/{broker}"): _ALTER_CLUSTER,
    ("GET", "/v1/brokers/{broker}/configs"): _cluster(AclOperation.DESCRIBE_CONFIGS),
    ("PATCH", "/v1/brokers/{broker}/configs"): _cluster(AclOperation.ALTER_CONFIGS),
    ("GET", "/v1/cluster/configs"): _cluster(AclOperation.DESCRIBE_CONFIGS),
    ("PATCH", "/v1/cluster/configs"): _cluster(AclOperation.ALTER_CONFIGS),
    ("GET", "/v1/reassignments"): _DESCRIBE_CLUSTER,
    ("GET", "/v1/quotas"): _cluster(AclOperation.DESCRIBE_CONFIGS),
    ("PATCH", "/v1/quotas"): _cluster(AclOperation.ALTER_CONFIGS),
    # Topics. The list is filtered; the name of a new topic is in the body.
    ("GET", "/v1/topics"): None,
    ("POST", "/v1/topics"): None,
    ("GET", "/v1/topics/{topic}"): _DESCRIBE_TOPIC,
    ("DELETE", "/v1/topics/{topic}"): _topic(AclOperation.DELETE),
    ("PATCH", "/v1/topics/{topic}"): _topic(AclOperation.ALTER_CONFIGS),
    ("GET", "/v1/topics/{topic}/configs"): _topic(AclOperation.DESCRIBE_CONFIGS),
    ("GET", "/v1/topics/{topic}/partitions"): _DESCRIBE_TOPIC,
    ("POST", "/v1/topics/{topic}/partitions"): _topic(AclOperation.ALTER),
    ("GET", _PARTITION): _DESCRIBE_TOPIC,
    ("GET", _PARTITION + "/explain"): _DESCRIBE_TOPIC,
    ("GET", _PARTITION + "/offsets"): _DESCRIBE_TOPIC,
    ("GET", _PARTITION + "/epochs"): _DESCRIBE_TOPIC,
    ("POST", _PARTITION + "/elections"): _ALTER_CLUSTER,
    ("PUT", _PARTITION + "/reassignment"): _ALTER_CLUSTER,
    ("DELETE", _PARTITION + "/reassignment"): _ALTER_CLUSTER,
    ("POST", _PARTITION + "/truncate-before"): _topic(AclOperation.DELETE),
    # Records.
    ("GET", _PARTITION + "/log"): _READ_TOPIC,
    ("GET", _PARTITION + "/producers"): _READ_TOPIC,
    ("GET", _PARTITION + "/records"): _READ_TOPIC,
    ("GET", _PARTITION + "/stream"): _READ_TOPIC,
    ("GET", "/v1/topics/{topic}/records"): _READ_TOPIC,
    ("POST", "/v1/topics/{topic}/records"): _WRITE_TOPIC,
    ("POST", _PARTITION + "/records"): _WRITE_TOPIC,
    ("POST", "/topics/{topic}"): _WRITE_TOPIC,
    ("POST", "/v3/clusters/{cluster_id}/topics/{topic}/records"): _WRITE_TOPIC,
    ("POST", "/kafka/v3/clusters/{cluster_id}/topics/{topic}/records"): _WRITE_TOPIC,
    ("POST", "/v1/producer-ids"): None,
    # Groups. The list is filtered; topics are checked where offsets are read and written.
    ("GET", "/v1/groups"): None,
    ("GET", "/v1/groups/{group}"): _DESCRIBE_GROUP,
    ("DELETE", "/v1/groups/{group}"): _group(AclOperation.DELETE),
    ("GET", "/v1/groups/{group}/lag"): _DESCRIBE_GROUP,
    ("GET", "/v1/groups/{group}/offsets"): _DESCRIBE_GROUP,
    ("PUT", "/v1/groups/{group}/offsets"): _READ_GROUP,
    ("DELETE", "/v1/groups/{group}/offsets"): _group(AclOperation.DELETE),
    ("POST", "/v1/groups/{group}/offsets:reset"): _READ_GROUP,
    ("POST", "/v1/groups/{group}/members"): _READ_GROUP,
    ("POST", "/v1/groups/{group}/members/{member}/heartbeat"): _READ_GROUP,
    ("PUT", "/v1/groups/{group}/members/{member}/offsets"): _READ_GROUP,
    ("DELETE", "/v1/groups/{group}/members/{member}"): _READ_GROUP,
    # Transactions. The list is filtered, and so are the partitions of a transaction.
    ("GET", "/v1/transactions"): None,
    ("GET", "/v1/transactions/{transactional_id}"): Needed(
        AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, "transactional_id"
    ),
    # The transactional id is in the body.
    ("POST", "/v1/transactions"): None,
    # The group is in the body.
    ("PUT", "/v1/transactions/{transactional_id}/offsets"): _WRITE_TRANSACTION,
    ("POST", "/v1/transactions/{transactional_id}:commit"): _WRITE_TRANSACTION,
    ("POST", "/v1/transactions/{transactional_id}:abort"): _WRITE_TRANSACTION,
    # Tests' own. Events show everything.
    ("GET", "/v1/faults"): _ALTER_CLUSTER,
    ("POST", "/v1/faults"): _ALTER_CLUSTER,
    ("DELETE", "/v1/faults"): _ALTER_CLUSTER,
    ("POST", "/v1/faults:reset"): _ALTER_CLUSTER,
    ("GET", "/v1/faults:script"): _ALTER_CLUSTER,
    ("GET", "/v1/faults/{fault}"): _ALTER_CLUSTER,
    ("DELETE", "/v1/faults/{fault}"): _ALTER_CLUSTER,
    ("POST", "/v1/faults/{fault}:release"): _ALTER_CLUSTER,
    ("GET", "/v1/brokers/{broker}/actions"): _ALTER_CLUSTER,
    ("POST", "/v1/brokers/{broker}/actions"): _ALTER_CLUSTER,
    ("GET", "/v1/machine"): _ALTER_CLUSTER,
    ("PUT", "/v1/machine"): _ALTER_CLUSTER,
    ("GET", "/v1/wait"): _ALTER_CLUSTER,
    ("GET", "/v1/events"): _CLUSTER_ACTION,
    ("GET", "/v1/events/journal"): _CLUSTER_ACTION,
    ("GET", "/v1/events/stream"): _CLUSTER_ACTION,
}
"""By method and path; None: nothing. A route without an entry fails a test."""


def quota_key(route: Route) -> str | None:
    """The quota of bytes that a route counts against: that of producers where it writes records, or of consumers."""
    needed = NEEDS[route.method, route.path]
    if needed == _WRITE_TOPIC:
        return PRODUCE
    return FETCH if needed == _READ_TOPIC else None


def check(route: Route, permit: Permit | None, path: Mapping[str, str]) -> None:
    """Raise the error of a denied request.

    Args:
        route: What is requested.
        permit: What the caller may do; None: everything.
        path: The variable parts of the path.
    """
    needed = NEEDS[route.method, route.path]
    if needed is not None:
        name = path[needed.parameter] if needed.parameter else CLUSTER_NAME
        check_may(permit, needed.operation, needed.resource_type, name)


def check_may(permit: Permit | None, operation: AclOperation, resource_type: ResourceType, *names: str) -> None:
    """Raise the error of a caller that may not use these resources, whether they exist or not.

    For names in a body or a query: the table has what the path names.
    """
    for name in dict.fromkeys(names):
        error = None if permit is None else permit.denial((Action(operation, resource_type, name),))
        if error is not None:
            raise error


def may(permit: Permit | None, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
    """Return True if the caller may do this. What it may not see is left out of an answer silently."""
    return permit is None or permit.allows((Action(operation, resource_type, name),))


def may_describe(permit: Permit | None, topic: str) -> bool:
    """Return True if the caller may see a topic: a group's permission shows none, as in Kafka's OffsetFetch."""
    return may(permit, AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
