"""``minikafka acls`` makes the entries and filters that ``kafka-acls.sh`` makes of the same options."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from minikafka.cli.acls import Chosen, acls_to_add, actions, filters, repair
from minikafka.cli.root import root
from minikafka.cli.running import Misuse
from minikafka.security.authorizer import AclIndex, Action, Caller
from minikafka.wire.acls import Acl, AclOperation, AclPermission, PatternType, ResourceType

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
ALICE = ("User:alice",)


def added(chosen: Chosen, *, producer: bool = False, consumer: bool = False, idempotent: bool = False) -> list[Acl]:
    return acls_to_add(chosen, producer=producer, consumer=consumer, idempotent=idempotent)


def permissions(acls: list[Acl]) -> set[tuple[str, str, str]]:
    return {
        (ResourceType(each.resource_type).name, each.resource_name, AclOperation(each.operation).name) for each in acls
    }


def test_a_producer_may_write_create_and_describe():
    """The bundle of kafka-acls.sh --producer --idempotent."""
    chosen = Chosen(topics=("t",), transactional_ids=("x",), allowed=ALICE)
    assert permissions(added(chosen, producer=True, idempotent=True)) == {
        ("TOPIC", "t", "WRITE"),
        ("TOPIC", "t", "CREATE"),
        ("TOPIC", "t", "DESCRIBE"),
        ("TRANSACTIONAL_ID", "x", "WRITE"),
        ("TRANSACTIONAL_ID", "x", "DESCRIBE"),
        ("CLUSTER", "kafka-cluster", "IDEMPOTENT_WRITE"),
    }


def test_a_consumer_may_read_topic_and_group():
    """A forgotten ACL for the group is what users of Kafka's ACLs stumble over most."""
    chosen = Chosen(topics=("t",), groups=("g",), allowed=ALICE)
    assert permissions(added(chosen, consumer=True)) == {
        ("TOPIC", "t", "READ"),
        ("TOPIC", "t", "DESCRIBE"),
        ("GROUP", "g", "READ"),
    }


def test_one_entry_for_each_combination():
    """Resources, operations, principals and hosts; a denied principal has hosts of its own."""
    chosen = Chosen(
        topics=("a", "b"),
        operations=("Read", "DescribeConfigs"),
        allowed=("User:alice", "User:bob"),
        denied=("User:*",),
        deny_hosts=("10.0.0.7",),
    )
    acls = added(chosen)
    assert len(acls) == len(set(acls)) == 2 * 2 * 3
    denied = [each for each in acls if each.permission == AclPermission.DENY]
    assert {(each.principal, each.host) for each in denied} == {("User:*", "10.0.0.7")}
    assert {each.host for each in acls if each.permission == AclPermission.ALLOW} == {"*"}


def test_the_pattern_is_for_names_and_not_for_the_cluster():
    """The cluster has one name; everything without --operation."""
    acls = added(Chosen(topics=("t",), cluster=True, pattern="prefixed", allowed=ALICE))
    assert {(each.resource_type, each.pattern_type, each.operation) for each in acls} == {
        (TOPIC, PatternType.PREFIXED, AclOperation.ALL),
        (CLUSTER, PatternType.LITERAL, AclOperation.ALL),
    }


@pytest.mark.parametrize(
    ("chosen", "roles"),
    [
        (Chosen(topics=("t",)), {}),
        (Chosen(allowed=ALICE), {}),
        (Chosen(topics=("t",), allow_hosts=("10.0.0.1",), denied=ALICE), {}),
        (Chosen(topics=("t",), allowed=ALICE), {"idempotent": True}),
        (Chosen(topics=("t",), allowed=ALICE), {"consumer": True}),
        (Chosen(allowed=ALICE, transactional_ids=("x",)), {"producer": True}),
        (Chosen(topics=("t",), allowed=ALICE, operations=("Read",)), {"producer": True}),
    ],
)
def test_options_that_do_not_fit_are_refused(chosen: Chosen, roles: dict[str, bool]):
    """An ACL for nobody or for nothing would look like success."""
    with pytest.raises(Misuse):
        added(chosen, **roles)


def test_filters_without_options_match_everything():
    """``list`` without options."""
    (wanted,) = filters(Chosen(pattern="any"))
    assert (wanted.resource_type, wanted.resource_name, wanted.principal, wanted.host) == (1, None, None, None)
    assert (wanted.operation, wanted.permission, wanted.pattern_type) == (1, 1, 1)


def test_filters_have_each_combination():
    """A principal of --principal matches whatever it is allowed or denied."""
    found = filters(Chosen(topics=("a", "b"), operations=("Read",), allowed=ALICE), ("User:bob",))
    assert {(each.resource_name, each.principal, AclPermission(each.permission).name) for each in found} == {
        ("a", "User:alice", "ALLOW"),
        ("b", "User:alice", "ALLOW"),
        ("a", "User:bob", "ANY"),
        ("b", "User:bob", "ANY"),
    }
    assert {each.operation for each in found} == {AclOperation.READ}


def asked(chosen: Chosen, *, producer: bool = False, consumer: bool = False) -> list[str]:
    return list(map(str, actions(chosen, producer=producer, consumer=consumer)))


def test_what_explain_is_asked_about():
    """Issue 18: a role's operations, those that are named, or all that the resource has."""
    both = Chosen(topics=("t",), groups=("g",))
    assert asked(both, consumer=True) == ["READ on TOPIC t", "DESCRIBE on TOPIC t", "READ on GROUP g"]
    assert asked(Chosen(topics=("t",)), producer=True) == ["WRITE on TOPIC t", "DESCRIBE on TOPIC t"]
    assert asked(Chosen(topics=("t",), groups=("g",), operations=("Read",))) == ["READ on TOPIC t", "READ on GROUP g"]
    assert len(asked(Chosen(cluster=True))) == 7
    for wrong in (Chosen(), Chosen(groups=("g",), operations=("Write",))):
        with pytest.raises(Misuse):
            asked(wrong)


def test_the_repair_of_a_denial():
    """An ACL to add if none allows it, else the DENY to remove; words that a shell would change are quoted."""
    action, caller = Action(AclOperation.READ, TOPIC, "a b"), Caller("User:CN=x y", "10.0.0.7")
    denied = Acl(
        resource_type=TOPIC,
        resource_name="a",
        pattern_type=PatternType.PREFIXED,
        principal="User:*",
        operation=AclOperation.ALL,
        permission=AclPermission.DENY,
    )
    assert repair(caller, action, AclIndex().verdict(caller, action)) == (
        "minikafka acls add --allow-principal 'User:CN=x y' --allow-host 10.0.0.7 --operation Read --topic 'a b'"
    )
    assert repair(caller, action, AclIndex([denied]).verdict(caller, action)) == (
        "minikafka acls remove --deny-principal 'User:*' --deny-host '*' --operation All --topic a "
        "--resource-pattern-type prefixed"
    )


@pytest.mark.parametrize("arguments", [["remove"], ["remove", "--all", "--topic", "t"]])
def test_remove_needs_a_choice(arguments: list[str]):
    """Nothing is removed by an option that was forgotten."""
    result = CliRunner().invoke(root, ["acls", *arguments])
    assert result.exit_code == 2
    assert "--all" in result.stderr


def test_explain_needs_a_principal_with_its_type():
    """``alice`` would be explained as somebody without any permission."""
    result = CliRunner().invoke(root, ["acls", "explain", "--principal", "alice", "--topic", "t"])
    assert result.exit_code == 2
    assert "User:alice" in result.stderr
