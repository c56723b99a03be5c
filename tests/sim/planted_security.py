"""Planted bugs of access control, hunted with tenants whose ACLs change (``security`` of ``sim run --family``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from minikafka.broker.access import Access
from minikafka.broker.broker import Broker
from minikafka.broker.parts import ANSWERED_BY_CONTROLLER
from minikafka.ports import INTERNAL, RequestContext
from minikafka.quorum.image import MetadataImage
from minikafka.security import permissions
from minikafka.security.authorizer import AclIndex, Action, Caller, Verdict, allows, counts
from minikafka.sim.seeds import tenant_plan_of
from minikafka.wire.acls import AclPermission
from minikafka.wire.codec import find_api
from tests.sim.planted import Planted

CAUGHT = ("acted_without_permission",)


def allow_first(self: AclIndex, caller: Caller, action: Action) -> Verdict:
    """The first ALLOW entry decides, whatever is denied."""
    applying = [acl for acl in self.applying(action.resource_type, action.resource_name) if counts(acl, caller)]
    found = any(acl.permission == AclPermission.ALLOW and allows(acl, action.operation) for acl in applying)
    return Verdict(found, "planted")


def may_as_before(self: Access, image: MetadataImage, caller: Caller, action: Action) -> bool:
    """What was allowed once stays so for the life of the broker."""
    kept: set[tuple[Caller, Action]] = self.__dict__.setdefault("kept", set())
    if self._authorizer.authorize(image.acl_index, caller, action).is_allowed:
        kept.add((caller, action))
    return (caller, action) in kept


def forwarded_as_the_broker(self: Broker, api: str, request: object, context: RequestContext) -> Any:
    """What is for the controller is not checked here, and arrives there as a request of this broker."""
    if api in ANSWERED_BY_CONTROLLER and self.is_open:
        return self._forwarding.answer(api, request, INTERNAL)
    return self.dispatcher.answer(find_api(api), request, context)


def trusts_other_brokers(self: Access, context: RequestContext) -> bool:
    """A request that another broker has sent on was checked there, by whatever metadata that one had."""
    return context.forwarded_by >= 0 or context.protocol == INTERNAL.protocol or context.listener in self._trusted


SECURITY_CLUSTERS = (
    Planted(
        name="allow_before_deny",
        story="an ACL that allows an operation wins over one that denies it",
        caught_by=CAUGHT,
        patches=[(AclIndex, "_decided", allow_first)],
        make=tenant_plan_of,
        drawn="with_tenants",
        seed=0,
    ),
    Planted(
        name="verdicts_outlive_their_acls",
        story="a permission that was decided once is not decided again when ACLs change",
        caught_by=CAUGHT,
        patches=[(Access, "_may", may_as_before)],
        make=tenant_plan_of,
        drawn="with_tenants",
        seed=0,
    ),
    Planted(
        name="forwarded_as_the_broker",
        story="a client's request for the controller is forwarded as the broker's own, and nobody checks it",
        caught_by=CAUGHT,
        patches=[(Broker, "_answer_kafka", forwarded_as_the_broker)],
        make=tenant_plan_of,
        drawn="with_tenants",
        seed=0,
    ),
    Planted(
        name="entry_brokers_are_trusted",
        story="the controller does not check again what another broker has checked by older metadata",
        caught_by=CAUGHT,
        patches=[(Access, "is_trusted", trusts_other_brokers)],
        make=tenant_plan_of,
        drawn="with_tenants",
        seed=24,
    ),
    Planted(
        name="followers_are_not_checked",
        story="a fetch with a replica id needs no CLUSTER_ACTION",
        caught_by=CAUGHT,
        patches=[(permissions, "_FETCH_OF_BROKERS", replace(permissions._FETCH_OF_BROKERS, need=lambda _: ()))],
        make=tenant_plan_of,
        drawn="with_tenants",
        seed=0,
    ),
)
