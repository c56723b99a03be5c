"""Access control of this broker: requests meet the table of permissions before their handlers.

Checked are the requests of clients, at the broker where they enter and at the one that serves them (``envelopes.py``).
Not checked are this broker's own calls, and what arrives in plain text at the listeners of brokers and controllers:
they are for brokers and administrators, and must not be reachable by others. With TLS these listeners are checked too:
brokers are super users by their certificates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from minikafka.config import BrokerConfig
from minikafka.errors import BrokerNotAvailable, ProtocolError
from minikafka.ports import INTERNAL, Events, RequestContext
from minikafka.quorum.image import MetadataImage
from minikafka.security.audit import ADMINISTRATIVE, TEXT_SIZE_MAX, AuditLimiter, resource_text, rule_text
from minikafka.security.authorizer import REMEMBERED_LENGTH_MAX, Action, Authorizer, Caller
from minikafka.security.permissions import Permit, Screened, screen
from minikafka.wire.acls import OPERATIONS, AclOperation, ResourceType, bit_field

PERMITS_MAX = 10_000
"""Permits that are kept. Clients choose their client ids, so the number must be bounded."""


class Access:
    """The authorizer of one broker, on the metadata that it has applied."""

    def __init__(
        self,
        config: BrokerConfig,
        image: Callable[[], MetadataImage],
        events: Events,
        now: Callable[[], float],
        is_current: Callable[[], bool] = lambda: True,
    ) -> None:
        """``now`` is monotonic, in seconds. ``is_current``: the image has what was committed when the broker started;
        until then only super users are answered.
        """
        self._authorizer = Authorizer(
            super_users=config.super_principals, allows_without_acl=config.allow_everyone_if_no_acl_found
        )
        main = config.inter_broker_listener.name
        trusted = config.internal_listeners - set(config.tls_listeners)
        self._trusted = frozenset("" if name == main else name for name in trusted)
        """Names in contexts of the listeners of brokers and controllers that cannot authenticate their callers."""
        self._image = image
        self._events = events
        self._now = now
        self._is_current = is_current
        self._limiter = AuditLimiter()
        self._permits: dict[tuple[str, RequestContext], Permit] = {}
        """By API and context, of ``_permits_of``: most requests of a connection have the same."""
        self._permits_of: MetadataImage | None = None

    def screen(self, api: str, request: Any, context: RequestContext) -> Screened | None:
        """What is left of a request; None: all of it, and its response needs no change.

        Raises ProtocolError if the whole request is denied.
        """
        permit = self.permit(context, api)
        if permit is None:
            return None
        screened = screen(api, request, permit)
        return screened if screened.amends or screened.request is not request else None

    def permit(self, context: RequestContext, api: str) -> Permit | None:
        """What the sender of a request may do, by one image; None: everything. Denials are reported as of ``api``, the
        name of an API, or method and path of a route.
        """
        if self.is_trusted(context):
            return None
        image = self._image()
        if len(api) > REMEMBERED_LENGTH_MAX or len(context.client_id) > REMEMBERED_LENGTH_MAX:
            return self._permit(context, api, image)
        if image is not self._permits_of or len(self._permits) >= PERMITS_MAX:
            self._permits.clear()
            self._permits_of = image
        permit = self._permits.get((api, context))
        if permit is None:
            permit = self._permits[api, context] = self._permit(context, api, image)
        return permit

    def topics_check(self, context: RequestContext, api: str, operation: AclOperation) -> Callable[[str], bool] | None:
        """Return what says of a topic's name if the sender of a request may do this with it, by one image.

        None: with every topic.
        """
        permit = self.permit(context, api)
        return None if permit is None else cache(lambda name: permit.may(Action(operation, ResourceType.TOPIC, name)))

    def operations(self, context: RequestContext, resource_type: ResourceType, name: str) -> int:
        """Return what the sender of a request may do with a resource, as a bit field (KIP-430).

        As in Kafka it is 0 for the cluster if the sender may not describe it, and is not audited.
        """
        if self.is_trusted(context):
            return bit_field(OPERATIONS[resource_type])
        caller = Caller(context.principal, context.remote)
        allowed = self._authorizer.operations(self._image().acl_index, caller, resource_type, name)
        if resource_type == ResourceType.CLUSTER and AclOperation.DESCRIBE not in allowed:
            return 0
        return bit_field(allowed)

    def is_trusted(self, context: RequestContext) -> bool:
        """Return True if the sender is not checked. A client whose request another broker has forwarded always is."""
        if context.forwarded_by >= 0:
            return False
        return context.protocol == INTERNAL.protocol or context.listener in self._trusted

    def _permit(self, context: RequestContext, api: str, image: MetadataImage) -> Permit:
        caller = Caller(context.principal, context.remote)
        return Permit(
            principal=context.principal,
            may=partial(self._may, image, caller),
            may_by_type=partial(self._may_by_type, image, caller),
            topics=image.topics,
            on_denial=partial(self._denied, api, context, image),
            # The broker where a request entered has reported what is allowed.
            reported=ADMINISTRATIVE if context.forwarded_by < 0 else (),
            on_allowed=partial(self._allowed, api, context, image),
        )

    def _denied(
        self, api: str, context: RequestContext, image: MetadataImage, error: ProtocolError, action: Action
    ) -> None:
        self._audit("request_denied", api, context, image, action, {"why": error.message[:TEXT_SIZE_MAX]})

    def _allowed(self, api: str, context: RequestContext, image: MetadataImage, action: Action) -> None:
        self._audit("request_allowed", api, context, image, action, {})

    def _audit(
        self,
        kind: str,
        api: str,
        context: RequestContext,
        image: MetadataImage,
        action: Action,
        facts: Mapping[str, object],
    ) -> None:
        left_out = self._limiter.admit(context.principal, self._now())
        if left_out is None:
            return
        verdict = self._authorizer.authorize(image.acl_index, Caller(context.principal, context.remote), action)
        self._events(
            kind,
            api=api[:TEXT_SIZE_MAX],
            principal=context.principal,
            remote=context.remote,
            listener=context.listener,
            client=(context.software or context.client_id)[:TEXT_SIZE_MAX],
            operation=action.operation.name,
            resource=resource_text(action),
            rule=rule_text(verdict),
            **facts,
            **({} if context.forwarded_by < 0 else {"forwarded_by": context.forwarded_by}),
            **({"left_out": left_out} if left_out else {}),
        )

    def _may(self, image: MetadataImage, caller: Caller, action: Action) -> bool:
        self._check_current(caller)
        return self._authorizer.authorize(image.acl_index, caller, action).is_allowed

    def _may_by_type(
        self, image: MetadataImage, caller: Caller, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        self._check_current(caller)
        return self._authorizer.authorize_by_type(image.acl_index, caller, operation, resource_type)

    def _check_current(self, caller: Caller) -> None:
        """Raise BrokerNotAvailable, after which clients ask another broker, or this one again."""
        if not self._is_current() and caller.principal not in self._authorizer.super_users:
            raise BrokerNotAvailable("the broker has just started and has not read the ACLs yet")
