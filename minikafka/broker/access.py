"""Who may do what at this broker: requests meet the table of permissions before their handlers.

Checked are the requests of clients, at the broker where they enter. Not checked are this broker's own calls, and what
arrives in plain text at the listeners of brokers and controllers: they are for brokers and administrators, and must not
be reachable by others. With TLS these listeners are checked too: brokers are super users by their certificates, and a
broker trusts the broker that has forwarded a request.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from minikafka.broker.event_limiter import EventLimiter
from minikafka.config import BrokerConfig
from minikafka.errors import ProtocolError
from minikafka.ports import INTERNAL, RequestContext
from minikafka.quorum.image import MetadataImage
from minikafka.security.authorizer import Action, Authorizer, Caller
from minikafka.security.permissions import Permit, Screened, screen
from minikafka.wire.acls import AclOperation, ResourceType


class Access:
    """The authorizer of one broker, on the metadata that it has applied."""

    def __init__(self, config: BrokerConfig, image: Callable[[], MetadataImage], events: EventLimiter) -> None:
        self._authorizer = Authorizer(
            super_users=config.super_principals, allows_without_acl=config.allow_everyone_if_no_acl_found
        )
        main = config.inter_broker_listener.name
        trusted = config.internal_listeners - set(config.tls_listeners)
        self._trusted = frozenset("" if name == main else name for name in trusted)
        """Names in contexts of the listeners of brokers and controllers that cannot authenticate their callers."""
        self._image = image
        self._events = events

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
        if context.protocol == INTERNAL.protocol or context.listener in self._trusted:
            return None
        image = self._image()
        caller = Caller(context.principal, context.remote)
        return Permit(
            principal=context.principal,
            may=partial(self._may, image, caller),
            may_by_type=partial(self._may_by_type, image, caller),
            topics=image.topics,
            on_denial=partial(self._report, api, context),
        )

    def _report(self, api: str, context: RequestContext, error: ProtocolError) -> None:
        self._events("request_denied", api=api, principal=context.principal, remote=context.remote, why=error.message)

    def _may(self, image: MetadataImage, caller: Caller, action: Action) -> bool:
        return self._authorizer.authorize(image.acl_index, caller, action).is_allowed

    def _may_by_type(
        self, image: MetadataImage, caller: Caller, operation: AclOperation, resource_type: ResourceType
    ) -> bool:
        return self._authorizer.authorize_by_type(image.acl_index, caller, operation, resource_type)
