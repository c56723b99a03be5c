"""Access control lists: Kafka's numbers, one entry, and the messages that describe, create and delete entries.

The rules of ``messages.py`` hold here too. An entry allows or denies one operation on the resources of one pattern, to
one principal from one host. What entries mean together is decided in ``security/authorizer.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum

from minikafka.types import Offset
from minikafka.wire.messages import Failed, Message, Request


class _Code(IntEnum):
    """A number of Kafka's protocol. Hashed as the number: an enumeration hashes its member's name, in Python."""

    __hash__ = int.__hash__


class ResourceType(_Code):
    """Kinds of resources; ANY stands in filters only."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(_Code):
    """How an entry's resource name is compared; ANY and MATCH stand in filters only."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(_Code):
    """What a principal does with a resource; ALL stands in entries only, ANY in filters only."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(_Code):
    """What an entry does; ANY stands in filters only."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


OPERATIONS: Mapping[ResourceType, tuple[AclOperation, ...]] = {
    ResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        AclOperation.READ,
        AclOperation.DELETE,
        AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
        AclOperation.IDEMPOTENT_WRITE,
    ),
}
"""The operations that exist on resources of a type, as in Kafka, for the types of which responses name them."""


def bit_field(operations: Iterable[AclOperation]) -> int:
    """Return authorized operations as Kafka's messages write them (KIP-430): a bit for each code."""
    return sum(1 << each for each in operations)


CLUSTER_NAME = "kafka-cluster"
"""The only resource of type CLUSTER."""

WILDCARD = "*"
"""As a literal resource name or a host: all of them."""

WILDCARD_PRINCIPAL = "User:*"
"""The only principal that stands for all others."""


class Acl(Message):
    resource_type: int
    resource_name: str
    pattern_type: int = PatternType.LITERAL
    principal: str
    host: str = WILDCARD
    operation: int
    permission: int = AclPermission.ALLOW


class AclFilter(Message):
    """None and ANY match everything."""

    resource_type: int = ResourceType.ANY
    resource_name: str | None = None
    pattern_type: int = PatternType.ANY
    """ANY: entries of both pattern types with this name. MATCH: all entries that apply to the resource of this name."""
    principal: str | None = None
    host: str | None = None
    operation: int = AclOperation.ANY
    permission: int = AclPermission.ANY


class DescribeAclsRequest(Request):
    filter: AclFilter = AclFilter()


class DescribeAclsResponse(Failed):
    acls: tuple[Acl, ...] = ()


class CreateAclsRequest(Request):
    creations: tuple[Acl, ...]


class CreatedAcl(Failed):
    """The result for one entry, in the order of the request."""


class CreateAclsResponse(Failed):
    results: tuple[CreatedAcl, ...] = ()
    metadata_offset: Offset = -1


class DeleteAclsRequest(Request):
    filters: tuple[AclFilter, ...]


class DeletedAcls(Failed):
    """The entries that one filter matched, all deleted."""

    matching_acls: tuple[Acl, ...] = ()


class DeleteAclsResponse(Failed):
    filter_results: tuple[DeletedAcls, ...] = ()
    metadata_offset: Offset = -1
