"""Filters and checks of access control entries are those of Kafka's ACL APIs."""

from __future__ import annotations

from typing import Any

import pytest

from minikafka.errors import InvalidRequest
from minikafka.security.acl_filters import check_filter, check_new, matches
from minikafka.wire.acls import Acl, AclFilter, AclOperation, AclPermission, PatternType, ResourceType

LITERAL, PREFIXED, MATCH = PatternType.LITERAL, PatternType.PREFIXED, PatternType.MATCH


def acl(**members: Any) -> Acl:
    """READ of topic orders for alice, changed as given."""
    plain: dict[str, Any] = {
        "resource_type": ResourceType.TOPIC,
        "resource_name": "orders",
        "principal": "User:alice",
        "operation": AclOperation.READ,
    }
    return Acl(**(plain | members))


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        (PatternType.ANY, "orders", {"orders", "orders-prefix"}),
        (PatternType.ANY, None, {"orders", "orders-prefix", "ord", "*"}),
        (LITERAL, "orders", {"orders"}),
        (LITERAL, None, {"orders", "*"}),
        (LITERAL, "*", {"*"}),
        (PREFIXED, "orders", {"orders-prefix"}),
        (MATCH, "orders", {"orders", "orders-prefix", "ord", "*"}),
        (MATCH, "orders-eu", {"orders-prefix", "ord", "*"}),
        (MATCH, "payments", {"*"}),
        (MATCH, None, {"orders", "orders-prefix", "ord", "*"}),
    ],
)
def test_a_filter_matches_names_as_its_pattern_says(pattern: PatternType, name: str | None, expected: set[str]):
    """MATCH finds what applies to a name, ANY both patterns of exactly this name, the others one pattern."""
    entries = {
        "orders": acl(),
        "orders-prefix": acl(pattern_type=PREFIXED),
        "ord": acl(resource_name="ord", pattern_type=PREFIXED),
        "*": acl(resource_name="*"),
    }
    wanted = AclFilter(resource_name=name, pattern_type=pattern)
    assert {key for key, each in entries.items() if matches(wanted, each)} == expected


@pytest.mark.parametrize(
    "other",
    [
        {"resource_type": ResourceType.GROUP},
        {"principal": "User:bob"},
        {"host": "10.0.0.1"},
        {"operation": AclOperation.WRITE},
        {"permission": AclPermission.DENY},
    ],
    ids=str,
)
def test_each_member_of_a_filter_excludes_other_entries(other: dict[str, Any]):
    """A filter with all members set matches exactly one entry."""
    wanted = AclFilter(
        resource_type=ResourceType.TOPIC,
        resource_name="orders",
        pattern_type=LITERAL,
        principal="User:alice",
        host="*",
        operation=AclOperation.READ,
        permission=AclPermission.ALLOW,
    )
    assert matches(wanted, acl())
    assert not matches(wanted, acl(**other))


@pytest.mark.parametrize(
    "bad",
    [
        {"resource_type": 0},
        {"resource_type": ResourceType.ANY},
        {"resource_type": 99},
        {"pattern_type": PatternType.ANY},
        {"pattern_type": MATCH},
        {"operation": AclOperation.ANY},
        {"operation": 99},
        {"permission": AclPermission.ANY},
        {"resource_name": ""},
        {"resource_type": ResourceType.CLUSTER, "resource_name": "orders"},
        {"principal": "alice"},
        {"principal": "User:"},
        {"principal": ":alice"},
        {"host": ""},
    ],
    ids=str,
)
def test_an_entry_that_could_never_apply_is_refused(bad: dict[str, Any]):
    """A principal without a type breaks Kafka at authorize time: it is refused at creation instead."""
    with pytest.raises(InvalidRequest):
        check_new(acl(**bad))


def test_valid_entries_are_accepted():
    """Every pattern, permission and operation that entries may have."""
    check_new(acl(resource_type=ResourceType.CLUSTER, resource_name="kafka-cluster"))
    check_new(acl(resource_name="*", operation=AclOperation.ALL, permission=AclPermission.DENY, principal="User:*"))
    check_new(acl(pattern_type=PREFIXED, host="10.0.0.1"))


@pytest.mark.parametrize("member", ["resource_type", "pattern_type", "operation", "permission"])
def test_a_filter_with_an_unknown_number_is_refused(member: str):
    """It must not match everything, nor nothing: DeleteAcls would delete too much or report success."""
    for number in (0, 99):
        with pytest.raises(InvalidRequest):
            check_filter(AclFilter(**{member: number}))
    check_filter(AclFilter())
