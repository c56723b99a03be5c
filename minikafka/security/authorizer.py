"""The authorization rule of Kafka's StandardAuthorizer, as a pure function of the access control lists.

1. A super user may do everything.
2. An entry applies if its resource type is the one asked for and its pattern covers the name: LITERAL with this name,
   LITERAL ``*``, or PREFIXED with a prefix of the name. Names in questions are always literal.
3. An applying entry counts if its principal is the caller or ``User:*``, and its host is the caller's address or ``*``.
4. A counting DENY of the operation or of ALL decides, however specific the ALLOW entries are. DENY implies nothing.
5. Otherwise a counting ALLOW decides: of the operation, of ALL, or of an operation that implies it (``IMPLIED_BY``).
6. Otherwise the operation is denied, with one exception: if no entry applies, for any principal,
   ``allow.everyone.if.no.acl.found`` decides.

Rules for this file: nothing here knows about requests or images. Principals are compared as text, case included.
Addresses are compared in one spelling (:func:`address_text`), because Java and Python write IPv6 differently.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from minikafka.wire.acls import (
    OPERATIONS,
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)

VERDICTS_MAX = 10_000
"""Cached decisions of one index. Clients choose names, so the number must be bounded."""

REMEMBERED_LENGTH_MAX = 255
"""Longer texts of clients (names, client ids, paths) are not remembered: each of thousands may have 32 KB."""

IMPLIED_BY: Mapping[int, frozenset[int]] = {
    AclOperation.DESCRIBE: frozenset(
        {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER},
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset({AclOperation.ALTER_CONFIGS}),
}
"""An ALLOW of one of these operations also allows the key."""


class Action(NamedTuple):
    """One operation on one resource."""

    operation: AclOperation
    resource_type: ResourceType
    resource_name: str

    def __str__(self) -> str:
        return f"{self.operation.name} on {self.resource_type.name} {self.resource_name}"


class Caller(NamedTuple):
    """The principal of a request and the address that it came from."""

    principal: str
    host: str


class Verdict(NamedTuple):
    """A decision and what it rests on."""

    is_allowed: bool
    reason: str
    acl: Acl | None = None
    """The entry that decided; None: none did."""


SUPER_USER = Verdict(True, "the principal is one of super.users")  # noqa: FBT003 - the form of a named tuple
NO_ACL_ALLOWS = Verdict(False, "no ACL allows it")  # noqa: FBT003
NO_ACL_APPLIES = Verdict(False, "no ACL applies to the resource")  # noqa: FBT003
EVERYONE = Verdict(True, "no ACL applies to the resource and allow.everyone.if.no.acl.found is true")  # noqa: FBT003


@lru_cache(4096)
def address_text(host: str) -> str:
    """Return one spelling for each IP address: without scope id, an IPv4-mapped IPv6 address as IPv4.

    Other texts are returned unchanged.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(address if mapped is None else mapped)


class AclIndex:
    """All entries of a cluster, by the resources that they apply to. Never changes: new entries make a new index."""

    __slots__ = ("_by_type", "_cached", "_literal", "_prefixed")

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self._by_type: dict[int, list[Acl]] = {}
        self._literal: dict[tuple[int, str], list[Acl]] = {}
        self._prefixed: dict[int, dict[int, dict[str, list[Acl]]]] = {}
        """By resource type, length of the prefix, and prefix: a lookup takes one slice of the name for each length."""
        self._cached: dict[tuple[Caller, Action], Verdict] = {}
        for acl in acls:
            self._by_type.setdefault(acl.resource_type, []).append(acl)
            if acl.pattern_type == PatternType.PREFIXED:
                lengths = self._prefixed.setdefault(acl.resource_type, {})
                lengths.setdefault(len(acl.resource_name), {}).setdefault(acl.resource_name, []).append(acl)
            else:
                self._literal.setdefault((acl.resource_type, acl.resource_name), []).append(acl)

    def __iter__(self) -> Iterator[Acl]:
        for acls in self._by_type.values():
            yield from acls

    def applying(self, resource_type: int, name: str) -> Iterator[Acl]:
        """Every entry whose pattern covers this resource (rule 2)."""
        yield from self._literal.get((resource_type, name), ())
        if name != WILDCARD:
            yield from self._literal.get((resource_type, WILDCARD), ())
        for length, prefixes in self._prefixed.get(resource_type, {}).items():
            if length <= len(name):
                yield from prefixes.get(name[:length], ())

    def of_type(self, resource_type: int) -> Iterator[Acl]:
        """Every entry for resources of this type."""
        yield from self._by_type.get(resource_type, ())

    def verdict(self, caller: Caller, action: Action) -> Verdict:
        """Decide by the entries alone (rules 2 to 6), without super users."""
        known = self._cached.get((caller, action))
        if known is None:
            known = self._decided(caller, action)
            if len(action.resource_name) <= REMEMBERED_LENGTH_MAX:
                if len(self._cached) >= VERDICTS_MAX:
                    self._cached.clear()
                self._cached[caller, action] = known
        return known

    def _decided(self, caller: Caller, action: Action) -> Verdict:
        allowing: Acl | None = None
        applies = False
        for acl in self.applying(action.resource_type, action.resource_name):
            applies = True
            if not counts(acl, caller):
                continue
            if acl.permission == AclPermission.DENY:
                if acl.operation in (AclOperation.ALL, action.operation):
                    return Verdict(False, "an ACL denies it", acl)  # noqa: FBT003
            elif allowing is None and allows(acl, action.operation):
                allowing = acl
        if allowing is not None:
            return Verdict(True, "an ACL allows it", allowing)  # noqa: FBT003
        return NO_ACL_ALLOWS if applies else NO_ACL_APPLIES


def counts(acl: Acl, caller: Caller) -> bool:
    """Return True if an entry names this caller: its principal and its host (rule 3)."""
    return acl.principal in (caller.principal, WILDCARD_PRINCIPAL) and (
        acl.host == WILDCARD or address_text(acl.host) == address_text(caller.host)
    )


def allows(acl: Acl, operation: int) -> bool:
    """Return True if an ALLOW entry allows the operation, directly or by implication (rule 5)."""
    return acl.operation in (AclOperation.ALL, operation) or acl.operation in IMPLIED_BY.get(operation, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Authorizer:
    """The settings of one broker that decide beside the entries."""

    super_users: frozenset[str] = frozenset()
    allows_without_acl: bool = False
    """``allow.everyone.if.no.acl.found``"""

    def authorize(self, acls: AclIndex, caller: Caller, action: Action) -> Verdict:
        """Decide whether the caller may do this."""
        if caller.principal in self.super_users:
            return SUPER_USER
        verdict = acls.verdict(caller, action)
        return EVERYONE if verdict is NO_ACL_APPLIES and self.allows_without_acl else verdict

    def operations(
        self, acls: AclIndex, caller: Caller, resource_type: ResourceType, name: str
    ) -> Collection[AclOperation]:
        """Return the operations on a resource that :meth:`authorize` allows, by one look at its entries."""
        every = OPERATIONS[resource_type]
        if caller.principal in self.super_users:
            return every
        applying = list(acls.applying(resource_type, name))
        if not applying:
            return every if self.allows_without_acl else ()
        mine = [acl for acl in applying if counts(acl, caller)]
        denied = {acl.operation for acl in mine if acl.permission == AclPermission.DENY}
        if AclOperation.ALL in denied:
            return ()
        allowing = [acl for acl in mine if acl.permission != AclPermission.DENY]
        return [each for each in every if each not in denied and any(allows(acl, each) for acl in allowing)]

    def authorize_by_type(
        self, acls: AclIndex, caller: Caller, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        """Return True if the caller may do this with at least one resource of the type, existing or not.

        As Kafka's ``authorizeByResourceType``: implied operations do not count. An ALLOW entry suffices unless a DENY
        entry has the same literal name, or a prefix of its name.
        """
        if self.authorize(acls, caller, Action(operation, resource_type, _ANY_NAME)).is_allowed:
            return True
        allowed: list[Acl] = []
        denied: set[tuple[int, str]] = set()
        for acl in acls.of_type(resource_type):
            if acl.operation not in (AclOperation.ALL, operation) or not counts(acl, caller):
                continue
            if acl.permission == AclPermission.DENY:
                denied.add((acl.pattern_type, acl.resource_name))
            else:
                allowed.append(acl)
        if (PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(not _is_dominated(acl, denied) for acl in allowed)


def _is_dominated(acl: Acl, denied: set[tuple[int, str]]) -> bool:
    """Return True if a DENY entry covers every resource of an ALLOW entry."""
    name = acl.resource_name
    if acl.pattern_type == PatternType.LITERAL:
        if name == WILDCARD:
            return False
        if (PatternType.LITERAL, name) in denied:
            return True
    return any((PatternType.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1))


_ANY_NAME = "hardcode"
"""The resource name that Kafka asks for first, so that super users and ``*`` are recognized."""
