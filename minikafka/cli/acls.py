"""``minikafka acls``: access control lists, with the options of ``kafka-acls.sh``.

``add`` creates one entry for each combination of resource, principal, host and operation. ``list`` and ``remove``
take the same options as filters. ``explain`` decides as the brokers do, and names what decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from shlex import quote
from typing import Any

import click

from minikafka import AdminClient
from minikafka.cli.admin import Decorated, call_admin
from minikafka.cli.running import Misuse, command_group
from minikafka.cli.tables import list_options, many, print_found, repeatable, together
from minikafka.client.structs import ConfigResource
from minikafka.config import BrokerConfig
from minikafka.security.audit import rule_text
from minikafka.security.authorizer import AclIndex, Action, Authorizer, Caller, Verdict
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

ALLOW, DENY = AclPermission.ALLOW, AclPermission.DENY
READ, WRITE, CREATE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DESCRIBE
COLUMNS = ("Resource", "Name", "Pattern", "Principal", "Host", "Operation", "Permission")


def kafkas(each: IntEnum) -> str:
    """A number's name as Kafka's tools print and read it: ``DescribeConfigs`` for DESCRIBE_CONFIGS."""
    return "".join(word.capitalize() for word in each.name.split("_"))


OPERATIONS = {kafkas(each): each for each in AclOperation if each >= AclOperation.ALL}
PATTERNS = {"literal": PatternType.LITERAL, "prefixed": PatternType.PREFIXED}
PATTERN_FILTERS = {**PATTERNS, "match": PatternType.MATCH, "any": PatternType.ANY}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The options that several commands take."""

    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    cluster: bool = False
    transactional_ids: tuple[str, ...] = ()
    pattern: str = "literal"
    operations: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    allow_hosts: tuple[str, ...] = ()
    deny_hosts: tuple[str, ...] = ()

    def resources(self) -> list[tuple[ResourceType, str]]:
        """The resources that are named."""
        return [
            *((ResourceType.TOPIC, name) for name in self.topics),
            *((ResourceType.GROUP, name) for name in self.groups),
            *([(ResourceType.CLUSTER, CLUSTER_NAME)] if self.cluster else []),
            *((ResourceType.TRANSACTIONAL_ID, name) for name in self.transactional_ids),
        ]

    def parties(self) -> list[tuple[AclPermission, str, str]]:
        """Permission, principal and host of each party that is named; Misuse for a host without a principal."""
        for hosts, principals, kind in (
            (self.allow_hosts, self.allowed, "allow"),
            (self.deny_hosts, self.denied, "deny"),
        ):
            if hosts and not principals:
                raise Misuse(f"--{kind}-host needs --{kind}-principal")
        return [
            *((ALLOW, *each) for each in product(self.allowed, self.allow_hosts or (WILDCARD,))),
            *((DENY, *each) for each in product(self.denied, self.deny_hosts or (WILDCARD,))),
        ]


def acls_to_add(chosen: Chosen, *, producer: bool, consumer: bool, idempotent: bool) -> list[Acl]:
    """The entries that ``add`` creates; Misuse says what is missing."""
    parties = chosen.parties()
    if not parties:
        raise Misuse("no principal is named: add --allow-principal or --deny-principal, such as User:alice")
    wanted = list(_of_roles(chosen, producer=producer, consumer=consumer, idempotent=idempotent))
    if not (producer or consumer):
        if not chosen.resources():
            raise Misuse("no resource is named: add --topic, --group, --cluster or --transactional-id")
        operations = [OPERATIONS[name] for name in chosen.operations] or [AclOperation.ALL]
        wanted = [(*resource, operation) for resource in chosen.resources() for operation in operations]
    return [
        Acl(
            resource_type=kind,
            resource_name=name,
            pattern_type=PatternType.LITERAL if kind == ResourceType.CLUSTER else PATTERNS[chosen.pattern],
            principal=principal,
            host=host,
            operation=operation,
            permission=permission,
        )
        for (kind, name, operation), (permission, principal, host) in product(dict.fromkeys(wanted), parties)
    ]


def _of_roles(
    chosen: Chosen, *, producer: bool, consumer: bool, idempotent: bool
) -> Iterable[tuple[ResourceType, str, AclOperation]]:
    """What --producer and --consumer stand for, as in Kafka. Misuse if a resource is missing or is not used."""
    if not (producer or consumer):
        if idempotent:
            raise Misuse("--idempotent needs --producer")
        return
    if chosen.operations or chosen.cluster:
        raise Misuse("--producer and --consumer choose the operations: leave out --operation and --cluster")
    if not chosen.topics or (consumer and not chosen.groups):
        raise Misuse("--producer needs --topic, --consumer needs --topic and --group")
    for topic in chosen.topics:
        operations = ((WRITE, CREATE) if producer else ()) + ((READ,) if consumer else ()) + (DESCRIBE,)
        yield from ((ResourceType.TOPIC, topic, each) for each in operations)
    if consumer:
        yield from ((ResourceType.GROUP, group, READ) for group in chosen.groups)
    if producer:
        for name in chosen.transactional_ids:
            yield from ((ResourceType.TRANSACTIONAL_ID, name, each) for each in (WRITE, DESCRIBE))
        if idempotent:
            yield ResourceType.CLUSTER, CLUSTER_NAME, AclOperation.IDEMPOTENT_WRITE


def filters(chosen: Chosen, principals: Sequence[str] = ()) -> list[AclFilter]:
    """The filters for ``list`` and ``remove``: everything if nothing is named."""
    parties: list[tuple[int, str | None, str | None]] = [(AclPermission.ANY, each, None) for each in principals]
    for permission, named, hosts in (
        (ALLOW, chosen.allowed, chosen.allow_hosts),
        (DENY, chosen.denied, chosen.deny_hosts),
    ):
        if named or hosts:
            parties += [(permission, *each) for each in product(named or (None,), hosts or (None,))]
    resources: list[tuple[int, str | None]] = list(chosen.resources())
    operations: list[int] = [OPERATIONS[name] for name in chosen.operations]
    return [
        AclFilter(
            resource_type=kind,
            resource_name=name,
            pattern_type=PATTERN_FILTERS[chosen.pattern],
            principal=principal,
            host=host,
            operation=operation,
            permission=permission,
        )
        for (kind, name), (permission, principal, host), operation in product(
            resources or [(ResourceType.ANY, None)],
            parties or [(AclPermission.ANY, None, None)],
            operations or [AclOperation.ANY],
        )
    ]


# ---- explain ---------------------------------------------------------------------------------------------------------

OF_TYPE: Mapping[ResourceType, tuple[AclOperation, ...]] = {
    ResourceType.TOPIC: (
        *(READ, WRITE, CREATE, AclOperation.DELETE, AclOperation.ALTER, DESCRIBE),
        *(AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS),
    ),
    ResourceType.GROUP: (READ, AclOperation.DELETE, DESCRIBE),
    ResourceType.CLUSTER: (
        *(CREATE, AclOperation.ALTER, DESCRIBE, AclOperation.CLUSTER_ACTION, AclOperation.DESCRIBE_CONFIGS),
        *(AclOperation.ALTER_CONFIGS, AclOperation.IDEMPOTENT_WRITE),
    ),
    ResourceType.TRANSACTIONAL_ID: (WRITE, DESCRIBE),
}
"""The operations that requests need of a resource."""

OPTIONS = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
}


def actions(chosen: Chosen, *, producer: bool, consumer: bool) -> list[Action]:
    """What ``explain`` is asked about; Misuse says what is missing."""
    if producer or consumer:
        wanted = _of_roles(chosen, producer=producer, consumer=consumer, idempotent=False)
        # A producer needs CREATE only for a topic that is created by being written to.
        return [Action(each, kind, name) for kind, name, each in dict.fromkeys(wanted) if each != CREATE]
    if not chosen.resources():
        raise Misuse("no resource is named: add --topic, --group, --cluster or --transactional-id")
    given = [OPERATIONS[name] for name in chosen.operations]
    found = [
        Action(operation, kind, name)
        for kind, name in chosen.resources()
        for operation in (given or OF_TYPE[kind])
        if operation in OF_TYPE[kind]
    ]
    if not found:
        raise Misuse(f"--operation {chosen.operations[0]} does not exist for these resources")
    return found


def repair(caller: Caller, action: Action, verdict: Verdict) -> str:
    """The command after which a denied action is allowed, or a step towards that."""
    option = OPTIONS.get(action.resource_type)
    resource = "--cluster" if option is None else f"{option} {quote(action.resource_name)}"
    if verdict.acl is None:
        party = f"--allow-principal {quote(caller.principal)}" + (f" --allow-host {caller.host}" if caller.host else "")
        return f"minikafka acls add {party} --operation {kafkas(action.operation)} {resource}"
    acl = verdict.acl
    resource = "--cluster" if option is None else f"{option} {quote(acl.resource_name)}"
    pattern = kafkas(PatternType(acl.pattern_type)).lower()
    return (
        f"minikafka acls remove --deny-principal {quote(acl.principal)} --deny-host {quote(acl.host)} "
        f"--operation {kafkas(AclOperation(acl.operation))} {resource} --resource-pattern-type {pattern}"
    )


SUPER_USERS, WITHOUT_ACL = SETTINGS = ("super.users", "allow.everyone.if.no.acl.found")


async def decided(admin: AdminClient, caller: Caller, wanted: Sequence[Action]) -> list[tuple[Action, Verdict]]:
    """Each action with the decision of the brokers: by the cluster's ACLs and the settings of one broker."""
    acls = [
        acl
        for kind, name in dict.fromkeys((each.resource_type, each.resource_name) for each in wanted)
        for acl in await admin.describe_acls(
            AclFilter(resource_type=kind, resource_name=name, pattern_type=PatternType.MATCH)
        )
    ]
    cluster = await admin.describe_cluster()
    node = str(cluster["brokers"][0]["node_id"])
    [settings] = await admin.describe_configs([ConfigResource("broker", node, dict.fromkeys(SETTINGS))])
    value = {each.name: each.value or "" for each in settings.configs}
    authorizer = Authorizer(
        super_users=BrokerConfig(super_users=value[SUPER_USERS]).super_principals,
        allows_without_acl=value[WITHOUT_ACL] == "true",
    )
    index = AclIndex(acls)
    return [(each, authorizer.authorize(index, caller, each)) for each in wanted]


# ---- commands --------------------------------------------------------------------------------------------------------


@command_group()
def command() -> None:
    """Access control lists: which principal may do what with topics, groups and the cluster.

    Examples:
      minikafka acls add --allow-principal User:alice --producer --topic orders
      minikafka acls add --allow-principal User:bob --consumer --topic orders --group billing
      minikafka acls list --topic orders
      minikafka acls explain --principal User:bob --consumer --topic orders --group billing
      minikafka acls remove --allow-principal User:bob --topic orders
    """


def _common(patterns: Iterable[str], default: str) -> Callable[[Decorated], Decorated]:
    return together(
        repeatable("--topic", "topics", "Topic of the ACLs; * means all topics", "TOPIC"),
        repeatable("--group", "groups", "Consumer group of the ACLs; * means all groups", "GROUP"),
        click.option("--cluster", is_flag=True, help="ACLs of the cluster itself."),
        repeatable("--transactional-id", "transactional_ids", "Transactional id of the ACLs", "ID"),
        click.option(
            "--resource-pattern-type",
            "pattern",
            type=click.Choice(list(patterns), case_sensitive=False),
            default=default,
            show_default=True,
            help="How the names of resources are compared.",
        ),
        repeatable(
            "--operation",
            "operations",
            "Operation of the ACLs",
            type=click.Choice(list(OPERATIONS), case_sensitive=False),
        ),
        repeatable("--allow-principal", "allowed", "Principal of ACLs that allow, such as User:alice", "TYPE:NAME"),
        repeatable("--deny-principal", "denied", "Principal of ACLs that deny; User:* means all users", "TYPE:NAME"),
        repeatable("--allow-host", "allow_hosts", "IP address from which --allow-principal is allowed", "ADDRESS"),
        repeatable("--deny-host", "deny_hosts", "IP address from which --deny-principal is denied", "ADDRESS"),
    )


@command.command()
@_common(PATTERNS, "literal")
@click.option("--producer", is_flag=True, help="The operations that a producer needs.")
@click.option("--consumer", is_flag=True, help="The operations that a consumer needs.")
@click.option("--idempotent", is_flag=True, help="Add IdempotentWrite on the cluster to --producer.")
@list_options
def add(bootstrap: str, output: str, producer: bool, consumer: bool, idempotent: bool, **options: Any) -> None:
    """Create ACLs: one for each combination of resource, principal, host and operation.

    Examples:
      minikafka acls add --allow-principal User:alice --operation Read --operation Describe --topic orders
      minikafka acls add --allow-principal User:alice --producer --topic team-a. --resource-pattern-type prefixed
      minikafka acls add --deny-principal 'User:*' --deny-host 10.0.0.7 --topic '*'

    Without --operation, --producer and --consumer, the ACLs are for all operations. --producer stands for Write,
    Create and Describe of the topics, and Write and Describe of the transactional ids; --consumer for Read and
    Describe of the topics, and Read of the groups.
    """
    acls = acls_to_add(Chosen(**options), producer=producer, consumer=consumer, idempotent=idempotent)
    call_admin(bootstrap, lambda admin: admin.create_acls(acls))
    _draw(acls, output, "added")


@command.command("list")
@_common(PATTERN_FILTERS, "any")
@repeatable("--principal", "principals", "Principal whose ACLs are listed", "TYPE:NAME")
@list_options
def list_acls(bootstrap: str, output: str, principals: tuple[str, ...], **options: Any) -> None:
    """List the ACLs that match the options, or all.

    Examples:
      minikafka acls list
      minikafka acls list --topic orders --resource-pattern-type match
      minikafka acls list --principal User:alice -o json

    With --resource-pattern-type match, all ACLs are listed that apply to the named resources, also those of prefixes
    and of *.
    """
    wanted = filters(Chosen(**options), principals)

    async def described(admin: Any) -> list[Acl]:
        return [acl for each in wanted for acl in await admin.describe_acls(each)]

    _draw(list(dict.fromkeys(call_admin(bootstrap, described))), output, "")


@command.command()
@_common(PATTERN_FILTERS, "literal")
@click.option("--all", "everything", is_flag=True, help="Remove all ACLs of the cluster.")
@list_options
def remove(bootstrap: str, output: str, everything: bool, **options: Any) -> None:
    """Delete the ACLs that match the options, and print them.

    Examples:
      minikafka acls remove --allow-principal User:alice --operation Read --topic orders
      minikafka acls remove --topic orders
      minikafka acls remove --all
    """
    chosen = Chosen(**options)
    is_narrow = chosen != Chosen(pattern=chosen.pattern)
    if everything == is_narrow:
        raise Misuse("choose the ACLs with options such as --topic, or give --all")
    wanted = [AclFilter()] if everything else filters(chosen)
    _draw(call_admin(bootstrap, lambda admin: admin.delete_acls(wanted)), output, "removed")


@command.command()
@click.option("--principal", required=True, metavar="TYPE:NAME", help="Principal of the client, such as User:alice.")
@click.option(
    "--host", default="", metavar="ADDRESS", help="IP address of the client (default: one that no ACL names)."
)
@repeatable("--topic", "topics", "Name of a topic", "TOPIC")
@repeatable("--group", "groups", "Name of a consumer group", "GROUP")
@click.option("--cluster", is_flag=True, help="Explain operations on the cluster itself.")
@repeatable("--transactional-id", "transactional_ids", "Transactional id of a producer", "ID")
@repeatable(
    "--operation", "operations", "Operation to explain", type=click.Choice(list(OPERATIONS)[1:], case_sensitive=False)
)
@click.option("--producer", is_flag=True, help="Explain the operations that a producer needs.")
@click.option("--consumer", is_flag=True, help="Explain the operations that a consumer needs.")
@list_options
def explain(
    bootstrap: str, output: str, principal: str, host: str, producer: bool, consumer: bool, **options: Any
) -> None:
    """Say what a principal may do with resources, and which ACL or setting decides.

    Examples:
      minikafka acls explain --principal User:alice --topic orders
      minikafka acls explain --principal User:bob --consumer --topic orders --group billing
      minikafka acls explain --principal User:bob --host 10.0.0.7 --operation Write --topic orders -o json

    Without --operation, --producer and --consumer, all operations of the named resources are explained. Names are those
    of single resources, never patterns. Brokers do not check requests at their own listeners in plain text.
    """
    if not all(principal.partition(":")):
        raise Misuse(f"--principal {principal} is not TYPE:NAME, such as User:{principal.strip(':')}")
    chosen, caller = Chosen(**options), Caller(principal, host)
    wanted = actions(chosen, producer=producer, consumer=consumer)
    found = call_admin(bootstrap, lambda admin: decided(admin, caller, wanted))
    rows = [
        (
            kafkas(action.resource_type),
            action.resource_name,
            kafkas(action.operation),
            "allowed" if verdict.is_allowed else "denied",
            rule_text(verdict),
        )
        for action, verdict in found
    ]
    repairs = [repair(caller, *each) for each in found if not each[1].is_allowed]
    columns = ("Resource", "Name", "Operation", "Verdict", "Rule")
    decisions = [dict(zip(map(str.lower, columns), row, strict=True)) for row in rows]
    print_found(output, {"principal": principal, "decisions": decisions}, columns, rows)
    if output == "table" and repairs and (producer or consumer or chosen.operations):
        click.echo("\nTo allow what is denied:")
        for each in dict.fromkeys(repairs):
            click.echo(f"  {each}")


def _draw(acls: Sequence[Acl], output: str, done: str) -> None:
    rows = sorted(_row(acl) for acl in acls)
    document = {"acls": [dict(zip(map(str.lower, COLUMNS), row, strict=True)) for row in rows]}
    summary = f"{many(len(rows), 'ACL')} {done}." if done else "No ACL matches."
    print_found(output, document, COLUMNS, rows, nothing=summary)
    if output == "table" and rows and done:
        click.echo(summary)


def _row(acl: Acl) -> tuple[str, ...]:
    return (
        kafkas(ResourceType(acl.resource_type)),
        acl.resource_name,
        kafkas(PatternType(acl.pattern_type)),
        acl.principal,
        acl.host,
        kafkas(AclOperation(acl.operation)),
        kafkas(AclPermission(acl.permission)),
    )
