"""Which entries a filter matches, and which entries may be created: the rules of Kafka's ACL APIs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minikafka.errors import InvalidRequest
from minikafka.types import TopicId
from minikafka.wire.acls import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from minikafka.wire.limits import KAFKA_TEXT_BYTES_MAX

_NUMBERS = (
    ("resource_type", ResourceType),
    ("pattern_type", PatternType),
    ("operation", AclOperation),
    ("permission", AclPermission),
)
"""Members of entries and filters that are Kafka's numbers."""


def matches(wanted: AclFilter, acl: Acl) -> bool:
    """Return True if the filter matches the entry."""
    return (
        wanted.resource_type in (ResourceType.ANY, acl.resource_type)
        and wanted.principal in (None, acl.principal)
        and wanted.host in (None, acl.host)
        and wanted.operation in (AclOperation.ANY, acl.operation)
        and wanted.permission in (AclPermission.ANY, acl.permission)
        and wanted.pattern_type in (PatternType.ANY, PatternType.MATCH, acl.pattern_type)
        and _matches_name(wanted, acl)
    )


class AclsByName:
    """The entries of a cluster by resource name and by principal, for requests with many filters.

    A filter that names a resource or a principal is compared with the entries that can match only: thousands of filters
    with thousands of entries would hold the event loop for seconds.
    """

    def __init__(self, acls: Mapping[TopicId, Acl]) -> None:
        self._acls = acls
        self._ids = sorted(acls)
        self._by_name: dict[str, list[TopicId]] = {}
        self._by_principal: dict[str, list[TopicId]] = {}
        for acl_id in self._ids:
            self._by_name.setdefault(acls[acl_id].resource_name, []).append(acl_id)
            self._by_principal.setdefault(acls[acl_id].principal, []).append(acl_id)
        prefixed = (each for each in acls.values() if each.pattern_type == PatternType.PREFIXED)
        self._prefix_lengths = sorted({len(each.resource_name) for each in prefixed})
        self._found: dict[AclFilter, tuple[TopicId, ...]] = {}

    def matching(self, wanted: AclFilter) -> tuple[TopicId, ...]:
        """The ids of the entries that the filter matches, sorted."""
        found = self._found.get(wanted)
        if found is None:
            acls = self._acls
            found = tuple(each for each in self._candidates(wanted) if matches(wanted, acls[each]))
            self._found[wanted] = found
        return found

    def _candidates(self, wanted: AclFilter) -> Sequence[TopicId]:
        name = wanted.resource_name
        if name is None:
            return self._ids if wanted.principal is None else self._by_principal.get(wanted.principal, ())
        if wanted.pattern_type != PatternType.MATCH:
            return self._by_name.get(name, ())
        names = dict.fromkeys((name, WILDCARD, *(name[:length] for length in self._prefix_lengths)))
        return sorted(acl_id for each in names for acl_id in self._by_name.get(each, ()))


def _matches_name(wanted: AclFilter, acl: Acl) -> bool:
    name = wanted.resource_name
    if name is None or name == acl.resource_name:
        return True
    if wanted.pattern_type != PatternType.MATCH:
        return False
    if acl.pattern_type == PatternType.PREFIXED:
        return name.startswith(acl.resource_name)
    return acl.resource_name == WILDCARD


def check_filter(wanted: AclFilter) -> None:
    """Raise InvalidRequest for numbers that this build does not know: such a filter must not match anything."""
    for member, numbers in _NUMBERS:
        number = getattr(wanted, member)
        if number == numbers.UNKNOWN or number not in set(numbers):
            raise InvalidRequest(f"{member}={number} is not known to this broker.", member=member)


def check_new(acl: Acl) -> None:
    """Raise InvalidRequest unless the entry may be created."""
    for member, numbers in _NUMBERS:
        number = getattr(acl, member)
        if number in (numbers.UNKNOWN, numbers.ANY) or number not in set(numbers):
            raise InvalidRequest(f"{member}={number} cannot be in an ACL.", member=member)
    if acl.pattern_type == PatternType.MATCH:
        raise InvalidRequest(f"pattern_type={acl.pattern_type} (MATCH) is for filters only.", member="pattern_type")
    if not acl.resource_name:
        raise InvalidRequest("The resource name of an ACL must not be empty.", member="resource_name")
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise InvalidRequest(
            f"resource_name={acl.resource_name!r}: the only resource of type CLUSTER is {CLUSTER_NAME}.",
            member="resource_name",
        )
    kind, colon, name = acl.principal.partition(":")
    if not (kind and colon and name):
        raise InvalidRequest(f"principal={acl.principal!r}: use Type:name, such as User:alice.", member="principal")
    if not acl.host:
        raise InvalidRequest("The host of an ACL must be an IP address or *.", member="host")
    for member in ("resource_name", "principal", "host"):
        size = len(getattr(acl, member).encode())
        if size > KAFKA_TEXT_BYTES_MAX:
            raise InvalidRequest(
                f"{member} has {size} bytes, {KAFKA_TEXT_BYTES_MAX} at most: shorten it.", member=member
            )
