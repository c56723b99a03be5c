"""DescribeAcls, CreateAcls and DeleteAcls (KIP-140, KIP-290): refused with SECURITY_DISABLED without an authorizer.

DescribeAcls is answered from this broker's image; the controller creates and deletes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minikafka.config import BrokerConfig
from minikafka.config.security import STANDARD_AUTHORIZER
from minikafka.errors import SecurityDisabled
from minikafka.quorum.image import MetadataImage
from minikafka.security.acl_filters import check_filter, matches
from minikafka.wire.acls import DescribeAclsRequest, DescribeAclsResponse


class AclApi:
    """Handlers of the ACL APIs."""

    def __init__(self, config: BrokerConfig, image: Callable[[], MetadataImage]) -> None:
        self._is_enabled = bool(config.authorizer_class_name)
        self._image = image

    def handle_describe(self, request: DescribeAclsRequest) -> DescribeAclsResponse:
        """The entries that the filter matches. Raises SecurityDisabled or InvalidRequest."""
        self.check_enabled()
        check_filter(request.filter)
        acls = self._image().acls
        return DescribeAclsResponse(
            acls=tuple(acls[acl_id] for acl_id in sorted(acls) if matches(request.filter, acls[acl_id]))
        )

    def to_controller(self, handle: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The controller's handler, behind the check."""

        def checked(request: Any) -> Any:
            self.check_enabled()
            return handle(request)

        return checked

    def check_enabled(self) -> None:
        """Raise SecurityDisabled unless this broker has an authorizer."""
        if not self._is_enabled:
            raise SecurityDisabled(
                f"No authorizer is configured; ACLs need authorizer.class.name={STANDARD_AUTHORIZER}."
            )
