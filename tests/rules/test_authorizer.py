"""The authorizer decides as Kafka's StandardAuthorizer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minikafka.security import authorizer as rule
from minikafka.security.authorizer import AclIndex, Action, Authorizer, Caller, address_text
from minikafka.wire.acls import OPERATIONS as OPERATIONS_OF
from minikafka.wire.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType

READ, WRITE, DESCRIBE, ALTER = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.ALTER
ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALICE = Caller("User:alice", "10.0.0.1")
NO_SUPER_USERS = Authorizer()


def acl(
    operation: AclOperation,
    name: str,
    *,
    permission: AclPermission = ALLOW,
    pattern: PatternType = LITERAL,
    principal: str = "User:alice",
    host: str = "*",
) -> Acl:
    """An entry for topics."""
    return Acl(
        resource_type=TOPIC,
        resource_name=name,
        pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission=permission,
    )


def may(acls: Sequence[Acl], operation: AclOperation, name: str, caller: Caller = ALICE) -> bool:
    """The decision about a topic, without super users."""
    return NO_SUPER_USERS.authorize(AclIndex(acls), caller, Action(operation, TOPIC, name)).is_allowed


def reference(acls: Sequence[Acl], settings: Authorizer, caller: Caller, action: Action) -> bool:
    """The rule as Kafka's source has it, in as few lines as possible (StandardAuthorizerData)."""
    operation, resource_type, name = action
    if caller.principal in settings.super_users:
        return True
    allowed, any_acl = False, False
    for each in acls:
        if each.resource_type != resource_type:
            continue
        if each.pattern_type == PREFIXED and not name.startswith(each.resource_name):
            continue
        if each.pattern_type == LITERAL and each.resource_name not in (name, "*"):
            continue
        any_acl = True
        if each.principal not in (caller.principal, "User:*") or each.host not in (caller.host, "*"):
            continue
        if each.permission == DENY and each.operation in (AclOperation.ALL, operation):
            return False
        implied = operation == DESCRIBE and each.operation in (READ, WRITE, AclOperation.DELETE, ALTER)
        implied |= operation == AclOperation.DESCRIBE_CONFIGS and each.operation == AclOperation.ALTER_CONFIGS
        if each.permission == ALLOW and (each.operation in (AclOperation.ALL, operation) or implied):
            allowed = True
    return allowed or (not any_acl and settings.allows_without_acl)


NAMES = st.sampled_from(["a", "ab", "abc", "b", "ba", "*", "*a"])
PRINCIPALS = [
    "User:alice",
    "User:bob",
    "user:alice",
    "Group:alice",
    "User:alice,User:bob",
    "User:CN=a\\,O=*",
    "User:\N{SNOWMAN}",
]
HOSTS = ["10.0.0.1", "10.0.0.2"]
OPERATIONS = [each for each in AclOperation if each > AclOperation.ALL]
TYPES = [TOPIC, GROUP]
ENTRIES = st.lists(
    st.builds(
        Acl,
        resource_type=st.sampled_from(TYPES),
        resource_name=NAMES,
        pattern_type=st.sampled_from([LITERAL, PREFIXED]),
        principal=st.sampled_from([*PRINCIPALS, "User:*"]),
        host=st.sampled_from([*HOSTS, "*"]),
        operation=st.sampled_from([AclOperation.ALL, *OPERATIONS]),
        permission=st.sampled_from([ALLOW, DENY]),
    ),
    max_size=12,
)
CALLERS = st.builds(Caller, st.sampled_from(PRINCIPALS), st.sampled_from(HOSTS))
ACTIONS = st.builds(Action, st.sampled_from(OPERATIONS), st.sampled_from(TYPES), NAMES)
SETTINGS = st.builds(
    Authorizer, super_users=st.frozensets(st.sampled_from(PRINCIPALS), max_size=1), allows_without_acl=st.booleans()
)


@given(ENTRIES, SETTINGS, st.lists(st.tuples(CALLERS, ACTIONS), min_size=1, max_size=20))
def test_decisions_equal_the_reference_on_random_tables(
    acls: list[Acl], settings: Authorizer, asked: list[tuple[Caller, Action]]
):
    """Index, cache and rule together decide as the reference does on the plain list, also for repeated questions."""
    index = AclIndex(acls)
    for caller, action in [*asked, *asked]:
        expected = reference(acls, settings, caller, action)
        assert settings.authorize(index, caller, action).is_allowed == expected, (caller, action)


@given(ENTRIES, SETTINGS, CALLERS, st.sampled_from(TYPES), NAMES)
def test_authorized_operations_are_those_that_are_allowed_one_by_one(
    acls: list[Acl], settings: Authorizer, caller: Caller, resource_type: ResourceType, name: str
):
    """KIP-430: also with super users, with DENY of some operations and of all, and without any entry."""
    index = AclIndex(acls)
    expected = [
        each
        for each in OPERATIONS_OF[resource_type]
        if settings.authorize(index, caller, Action(each, resource_type, name)).is_allowed
    ]
    assert list(settings.operations(index, caller, resource_type, name)) == expected


@given(ENTRIES)
def test_index_has_every_entry_once(acls: list[Acl]):
    """No entry is lost or repeated, also with several entries for one resource."""
    assert sorted(AclIndex(acls), key=str) == sorted(acls, key=str)


@given(ENTRIES, CALLERS, st.sampled_from(OPERATIONS), st.sampled_from(TYPES))
def test_authorize_by_type_is_true_only_if_some_resource_is_allowed(
    acls: list[Acl], caller: Caller, operation: AclOperation, resource_type: ResourceType
):
    """Every name that an entry gives, a name below each prefix, and a name that no entry has are tried."""
    names = {each.resource_name for each in acls}
    names |= {f"{name}{suffix}" for name in names for suffix in ("~", "~~")} | {"hardcode"}
    names.discard("*")  # an entry for it is for all names, but a prefix may be just that
    index = AclIndex(acls)
    some = any(
        NO_SUPER_USERS.authorize(index, caller, Action(operation, resource_type, name)).is_allowed for name in names
    )
    if NO_SUPER_USERS.authorize_by_type(index, caller, operation, resource_type):
        assert some


def reference_by_type(
    acls: Sequence[Acl], settings: Authorizer, caller: Caller, operation: AclOperation, resource_type: ResourceType
) -> bool:
    """Kafka's ``Authorizer.authorizeByResourceType``, on the plain list."""
    if reference(acls, settings, caller, Action(operation, resource_type, "hardcode")):
        return True
    named = [
        each
        for each in acls
        if each.resource_type == resource_type
        and each.host in (caller.host, "*")
        and each.principal in (caller.principal, "User:*")
        and each.operation in (operation, AclOperation.ALL)
    ]
    deny = [(each.pattern_type, each.resource_name) for each in named if each.permission == DENY]
    allow = [(each.pattern_type, each.resource_name) for each in named if each.permission == ALLOW]
    if (LITERAL, "*") in deny:
        return False
    if (LITERAL, "*") in allow:
        return True
    return any(
        (pattern, name) not in [each for each in deny if each[0] == LITERAL]
        and not any(kind == PREFIXED and name.startswith(prefix) for kind, prefix in deny)
        for pattern, name in allow
    )


@given(ENTRIES, SETTINGS, CALLERS, st.sampled_from(OPERATIONS), st.sampled_from(TYPES))
def test_authorize_by_type_equals_the_reference(
    acls: list[Acl], settings: Authorizer, caller: Caller, operation: AclOperation, resource_type: ResourceType
):
    """Also with prefixes of prefixes, and with names that are a star or begin with one."""
    expected = reference_by_type(acls, settings, caller, operation, resource_type)
    assert settings.authorize_by_type(AclIndex(acls), caller, operation, resource_type) == expected


def test_deny_wins_over_a_more_specific_allow():
    """DENY of a prefix decides against ALLOW of the literal name; the order of entries does not matter."""
    entries = [acl(READ, "orders"), acl(READ, "ord", permission=DENY, pattern=PREFIXED)]
    assert not may(entries, READ, "orders")
    assert not may(entries[::-1], READ, "orders")


def test_a_deny_of_all_leaves_no_authorized_operation():
    """KIP-430: the bits that a client receives must not say more than it may do."""
    acls = AclIndex([acl(READ, "orders"), acl(AclOperation.ALL, "orders", permission=DENY)])
    assert list(NO_SUPER_USERS.operations(acls, ALICE, TOPIC, "orders")) == []


def test_allow_implies_describe_and_deny_implies_nothing():
    """Kafka: READ, WRITE, DELETE and ALTER imply DESCRIBE; DENY READ leaves an allowed DESCRIBE allowed."""
    for operation in (READ, WRITE, AclOperation.DELETE, ALTER):
        assert may([acl(operation, "t")], DESCRIBE, "t")
    assert not may([acl(AclOperation.CREATE, "t")], DESCRIBE, "t")
    assert may([acl(AclOperation.ALTER_CONFIGS, "t")], AclOperation.DESCRIBE_CONFIGS, "t")
    assert may([acl(WRITE, "t"), acl(READ, "t", permission=DENY)], DESCRIBE, "t")
    assert not may([acl(READ, "t"), acl(DESCRIBE, "t", permission=DENY)], DESCRIBE, "t")
    assert may([acl(READ, "t"), acl(DESCRIBE, "t", permission=DENY)], READ, "t")


def test_literal_star_is_a_wildcard_and_a_star_prefix_is_not():
    """PREFIXED ``*`` covers only names that begin with a star."""
    assert may([acl(READ, "*")], READ, "t")
    assert not may([acl(READ, "*", pattern=PREFIXED)], READ, "t")


def test_principals_are_compared_as_text():
    """``User:*`` covers every principal of any type; names and types keep their case."""
    assert may([acl(READ, "t", principal="User:*")], READ, "t", Caller("Group:x", "10.0.0.1"))
    assert not may([acl(READ, "t", principal="user:alice")], READ, "t")
    assert not may([acl(READ, "t", principal="Group:*")], READ, "t", Caller("Group:x", "10.0.0.1"))


@pytest.mark.parametrize(
    ("host", "remote"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),
        ("10.0.0.1", "::ffff:10.0.0.1"),
        ("fe80:0:0:0:0:0:0:1", "fe80::1%eth0"),
        ("broker-7", "broker-7"),
    ],
)
def test_a_host_matches_in_every_spelling(host: str, remote: str):
    """Java and Python write IPv6 addresses differently."""
    assert may([acl(READ, "t", host=host)], READ, "t", Caller("User:alice", remote))
    assert not may([acl(READ, "t", host=host)], READ, "t", Caller("User:alice", "10.0.0.9"))


def test_networks_are_not_hosts():
    """Kafka has no CIDR notation: such an entry matches nobody."""
    assert not may([acl(READ, "t", host="10.0.0.0/24")], READ, "t")
    assert address_text("10.0.0.0/24") == "10.0.0.0/24"


def test_the_first_entry_for_a_resource_ends_the_default():
    """With allow.everyone.if.no.acl.found, an entry of anybody takes the resource away from everybody else."""
    open_by_default = Authorizer(allows_without_acl=True)
    action = Action(READ, TOPIC, "t")
    assert open_by_default.authorize(AclIndex(), ALICE, action).is_allowed
    others = AclIndex([acl(WRITE, "t", principal="User:bob", host="10.9.9.9")])
    assert not open_by_default.authorize(others, ALICE, action).is_allowed


def test_super_users_pass_a_deny():
    """No entry can lock out a super user."""
    settings = Authorizer(super_users=frozenset({"User:alice"}))
    denied = AclIndex([acl(AclOperation.ALL, "*", permission=DENY, principal="User:*")])
    assert settings.authorize(denied, ALICE, Action(READ, TOPIC, "t")) == rule.SUPER_USER


def test_the_verdict_names_the_entry_that_decided():
    """``acls explain`` and the audit log print it."""
    allowing, denying = acl(READ, "t"), acl(READ, "t", permission=DENY)
    action = Action(READ, TOPIC, "t")
    assert NO_SUPER_USERS.authorize(AclIndex([allowing]), ALICE, action).acl == allowing
    assert NO_SUPER_USERS.authorize(AclIndex([allowing, denying]), ALICE, action).acl == denying
    assert str(action) == "READ on TOPIC t"


def test_the_cache_of_verdicts_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """Clients choose the names that they ask for."""
    monkeypatch.setattr(rule, "VERDICTS_MAX", 3)
    index = AclIndex([acl(READ, "t", pattern=PREFIXED)])
    for number in range(10):
        assert NO_SUPER_USERS.authorize(index, ALICE, Action(READ, TOPIC, f"t{number}")).is_allowed
        assert len(index._cached) <= 3


def test_decisions_about_long_names_are_not_cached():
    """No topic has such a name, and ten thousand of 32 KB would be a third of a gigabyte."""
    index = AclIndex([acl(READ, "t", pattern=PREFIXED)])
    assert NO_SUPER_USERS.authorize(index, ALICE, Action(READ, TOPIC, "t" * 256)).is_allowed
    assert not index._cached
    assert NO_SUPER_USERS.authorize(index, ALICE, Action(READ, TOPIC, "t" * 255)).is_allowed
    assert len(index._cached) == 1


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([acl(WRITE, "t")], True),
        ([acl(WRITE, "t"), acl(WRITE, "t", permission=DENY)], False),
        ([acl(WRITE, "team-a"), acl(WRITE, "team", permission=DENY, pattern=PREFIXED)], False),
        ([acl(WRITE, "team", pattern=PREFIXED), acl(WRITE, "team", permission=DENY, pattern=PREFIXED)], False),
        ([acl(WRITE, "t"), acl(WRITE, "*", permission=DENY)], False),
        ([acl(WRITE, "*"), acl(WRITE, "hard", permission=DENY, pattern=PREFIXED)], True),
        ([acl(ALTER, "t")], False),
        ([acl(WRITE, "t", principal="User:bob")], False),
        ([acl(WRITE, "te", pattern=PREFIXED), acl(WRITE, "team", permission=DENY, pattern=PREFIXED)], True),
    ],
)
def test_authorize_by_type_follows_kafka(entries: list[Acl], *, expected: bool):
    """Kafka's authorizeByResourceType, for InitProducerId: WRITE on at least one topic."""
    assert NO_SUPER_USERS.authorize_by_type(AclIndex(entries), ALICE, WRITE, TOPIC) == expected
