"""Filters and checks of access control entries are those of Kafka's ACL APIs."""

from __future__ import annotations

from typing import Any

import pytest

from minikafka.errors import InvalidRequest
from minikafka.security import acl_filters
from minikafka.security.acl_filters import AclsByName, check_filter, check_new, matches
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
        {"resource_name": "n" * 32_768},
        {"principal": "User:" + "\N{EURO SIGN}" * 11_000},
        {"host": "h" * 32_768},
    ],
    ids=lambda bad: str(bad)[:60],
)
def test_an_entry_that_could_never_apply_is_refused(bad: dict[str, Any]):
    """A principal without a type breaks Kafka at authorize time: it is refused at creation instead. So is a text that
    DescribeAcls cannot show: Kafka's protocol has room for 32,767 bytes.
    """
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


def many_acls() -> dict[str, Acl]:
    """Entries of both patterns whose names begin like each other, for two principals."""
    found = [
        acl(resource_name=name, pattern_type=pattern, principal=principal)
        for name in ("*", "o", "ord", "orders", "orders-eu", "payments")
        for pattern in (LITERAL, PREFIXED)
        for principal in ("User:alice", "User:bob")
    ]
    return {f"id-{len(found) - number:02}": each for number, each in enumerate(found)}


@pytest.mark.parametrize("pattern", [PatternType.ANY, LITERAL, PREFIXED, MATCH])
@pytest.mark.parametrize("name", [None, "", "*", "o", "or", "orders", "orders-eu", "payments", "x"])
@pytest.mark.parametrize("principal", [None, "User:bob", "User:carol"])
def test_entries_by_name_are_those_that_the_filter_matches(
    pattern: PatternType, name: str | None, principal: str | None
):
    """Only the entries that are compared are fewer."""
    entries, wanted = many_acls(), AclFilter(resource_name=name, pattern_type=pattern, principal=principal)
    expected = tuple(each for each in sorted(entries) if matches(wanted, entries[each]))
    assert AclsByName(entries).matching(wanted) == expected


def test_many_filters_are_compared_with_the_entries_that_they_can_match_only(monkeypatch: pytest.MonkeyPatch):
    """A request that deleted 2,500 of 3,000 entries by their names held the event loop of the controller for 10 s."""
    compared: list[AclFilter] = []
    monkeypatch.setattr(acl_filters, "matches", lambda wanted, each: compared.append(wanted) or matches(wanted, each))
    entries = {f"id-{number}": acl(resource_name=f"topic-{number}") for number in range(300)}
    acls = AclsByName(entries)
    for number in range(300):
        for pattern in (LITERAL, MATCH):
            wanted = AclFilter(resource_name=f"topic-{number}", pattern_type=pattern)
            assert acls.matching(wanted) == (f"id-{number}",)
        acls.matching(AclFilter())
        acls.matching(AclFilter(principal=f"User:{number}"))
    assert len(compared) == 300 + 300 + 300
