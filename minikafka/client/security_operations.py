"""What an administrator changes of who may do what, and how much of it: ACLs, credentials of users, and quotas.

Part of the admin client. Every change can be sent again without harm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minikafka.client.admin_calls import AdminCalls, raise_first
from minikafka.client.routing import as_names
from minikafka.errors import InvalidRequest
from minikafka.security.quotas import Entity
from minikafka.security.scram import (
    ITERATIONS_DEFAULT,
    ITERATIONS_MAX,
    MECHANISMS,
    SALT_SIZE,
    ScramMechanism,
    salted_password,
)
from minikafka.wire import credentials as c
from minikafka.wire import quotas as q
from minikafka.wire.acls import (
    Acl,
    AclFilter,
    CreateAclsRequest,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)


class SecurityOperations(AdminCalls):
    """The methods for access control, users and quotas."""

    # ---- access control ----

    async def describe_acls(self, acl_filter: AclFilter, timeout_ms: int | None = None) -> list[Acl]:
        """Return the ACLs that the filter matches. Raises SecurityDisabled if the brokers have no authorizer."""
        response: DescribeAclsResponse = await self._ask_anyone(
            DescribeAclsRequest(filter=acl_filter), self._deadline(timeout_ms)
        )
        return list(response.acls)

    async def create_acls(self, acls: Sequence[Acl], timeout_ms: int | None = None, *, wait: bool = True) -> None:
        """Create ACLs; one that exists stays. The first error is raised.

        ``wait``: return when every broker that can be reached uses them.
        """
        await self._changed(CreateAclsRequest(creations=tuple(acls)), timeout_ms, "results", wait=wait)

    async def delete_acls(
        self, acl_filters: Sequence[AclFilter], timeout_ms: int | None = None, *, wait: bool = True
    ) -> list[Acl]:
        """Delete all ACLs that one of the filters matches and return them. The first error is raised.

        If a response is lost, the request is sent again, and what the first attempt deleted is not returned.
        """
        request = DeleteAclsRequest(filters=tuple(acl_filters))
        response: DeleteAclsResponse = await self._changed(request, timeout_ms, "filter_results", wait=wait)
        return list(dict.fromkeys(acl for each in response.filter_results for acl in each.matching_acls))

    # ---- users ----

    async def describe_user_scram_credentials(
        self, users: Sequence[str] | None = None, timeout_ms: int | None = None
    ) -> dict[str, dict[str, int]]:
        """Return iterations by mechanism of these users, or of all. The first error is raised."""
        names = None if users is None else as_names(users, "describe_user_scram_credentials")
        request = c.DescribeUserScramCredentialsRequest(users=names)
        response: c.DescribeUserScramCredentialsResponse = await self._ask_anyone(request, self._deadline(timeout_ms))
        raise_first(response.results)
        return {
            each.user: {ScramMechanism(info.mechanism).label: info.iterations for info in each.credential_infos}
            for each in response.results
        }

    async def set_user_password(
        self,
        user: str,
        password: str,
        mechanism: str = "SCRAM-SHA-512",
        *,
        iterations: int = ITERATIONS_DEFAULT,
        timeout_ms: int | None = None,
        wait: bool = True,
    ) -> None:
        """Create or replace a user's SCRAM credential.

        The password stays here: the brokers get what PBKDF2 makes of it and a new salt. That is enough to log in,
        though, and this client sends it in plain text.

        Args:
            user: The name; its principal is ``User:name``.
            password: Not empty; used as UTF-8, without SASLprep.
            mechanism: ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``. The user keeps its credential of the other one.
            iterations: 4096 to 16384.
            timeout_ms: When the call is given up.
            wait: Return when every broker that can be reached knows it.

        Raises:
            InvalidRequest: The password is empty, or the mechanism unknown.
            UnacceptableCredential: The name or the iterations are out of bounds.
        """
        number = _mechanism(mechanism)
        if not password:
            raise InvalidRequest("The password is empty.", member="password")
        salt = self._started()[0].entropy(SALT_SIZE)
        upsertion = c.ScramUpsertion(
            name=user,
            mechanism=number,
            iterations=iterations,
            salt=salt,
            # PBKDF2 refuses 0 iterations, and the controller all that are out of bounds.
            salted_password=salted_password(number, password, salt, max(1, min(iterations, ITERATIONS_MAX))),
        )
        request = c.AlterUserScramCredentialsRequest(upsertions=(upsertion,))
        await self._changed(request, timeout_ms, "results", wait=wait)

    async def delete_user_credential(
        self, user: str, mechanism: str, timeout_ms: int | None = None, *, wait: bool = True
    ) -> None:
        """Delete a user's credential of one mechanism. Raises ResourceNotFound if there is none."""
        deletion = c.ScramDeletion(name=user, mechanism=_mechanism(mechanism))
        request = c.AlterUserScramCredentialsRequest(deletions=(deletion,))
        await self._changed(request, timeout_ms, "results", wait=wait)

    # ---- quotas ----

    async def describe_client_quotas(
        self, wanted: Entity = (), timeout_ms: int | None = None
    ) -> dict[Entity, dict[str, float]]:
        """Return quotas by entity.

        Args:
            wanted: Types and names that entities must have, such as ``(("user", "alice"),)``; None as a name is the
                default. They may have other types too. Empty: all entities.
            timeout_ms: When the call is given up.
        """
        request = q.DescribeClientQuotasRequest(
            components=tuple(
                q.QuotaFilterPart(entity_type=kind, match_type=q.DEFAULT if name is None else q.EXACT, match=name)
                for kind, name in wanted
            )
        )
        response: q.DescribeClientQuotasResponse = await self._ask_anyone(request, self._deadline(timeout_ms))
        return {
            tuple((part.entity_type, part.entity_name) for part in entry.entity): {
                each.key: each.value for each in entry.values
            }
            for entry in response.entries
        }

    async def alter_client_quotas(
        self,
        quotas: Mapping[Entity, Mapping[str, float | None]],
        timeout_ms: int | None = None,
        *,
        wait: bool = True,
    ) -> None:
        """Set quotas; a value of None removes one. The first error is raised after all entities were altered.

        Args:
            quotas: By entity, such as ``(("user", "alice"),)``: ``producer_byte_rate`` and ``consumer_byte_rate`` in
                bytes a second, ``request_percentage`` in percent of a broker's event loop.
            timeout_ms: When the call is given up.
            wait: Return when every broker that can be reached uses them.
        """
        request = q.AlterClientQuotasRequest(
            entries=tuple(
                q.QuotaAlteration(
                    entity=tuple(q.EntityPart(entity_type=kind, entity_name=name) for kind, name in entity),
                    ops=tuple(
                        q.QuotaChange(key=key, value=0.0 if value is None else float(value), remove=value is None)
                        for key, value in values.items()
                    ),
                )
                for entity, values in quotas.items()
            )
        )
        await self._changed(request, timeout_ms, "entries", wait=wait)


def _mechanism(name: str) -> ScramMechanism:
    if name not in MECHANISMS:
        raise InvalidRequest(f"mechanism={name!r}: one of {', '.join(MECHANISMS)} is needed", member="mechanism")
    return MECHANISMS[name]
