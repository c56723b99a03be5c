"""``/v1/quotas``: quotas of users, client ids and IP addresses; any broker forwards changes to the controller."""

from __future__ import annotations

from collections.abc import Iterator

from minikafka.errors import InvalidRequest, PolicyViolation
from minikafka.quorum.client_quotas import describe_client_quotas
from minikafka.rest.leaders import change
from minikafka.rest.model import LEFT_OUT, Model, many_of, member
from minikafka.rest.route import Json, Routes, Visit
from minikafka.rest.schema import table
from minikafka.rest.topics import DRY_RUN
from minikafka.security.quotas import CLIENT_ID, IP, IP_KEYS, KEYS, USER
from minikafka.wire.quotas import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    EntityPart,
    QuotaAlteration,
    QuotaChange,
    QuotaEntry,
)

ROUTES = Routes("cluster")
_TYPES = {"user": USER, "client_id": CLIENT_ID, "ip": IP}
_OF_CLIENTS, _OF_ADDRESSES = (", ".join(f"`{key}`" for key in keys) for keys in (KEYS, IP_KEYS))
_MEANING = f"By Kafka's names: {_OF_CLIENTS}; of IP addresses {_OF_ADDRESSES}."
_CHANGES = table({"type": ["number", "null"]}, f"{_MEANING} null removes a quota.", minProperties=1)
_CHANGES_EXAMPLE = {"producer_byte_rate": 1_048_576, "consumer_byte_rate": None}


class _Entity(Model):
    """A user, a client id, or both together; or an IP address."""

    user: str | None = member(
        "Name of the user, without `User:`; null: all users without a quota of their own.", "alice", default=LEFT_OUT
    )
    client_id: str | None = member("Client id; null: all client ids without a quota of their own.", default=LEFT_OUT)
    ip: str | None = member("IP address; null: all addresses without a quota of their own.", default=LEFT_OUT)

    def names(self) -> dict[str, str | None]:
        """Return the members that are there."""
        return {each: name for each in _TYPES if (name := getattr(self, each)) is not LEFT_OUT}


class _Quota(_Entity):
    """The quotas of a user, of a client id, of both together, or of an IP address."""

    quotas: dict[str, float] = member(table({"type": "number"}, _MEANING), {"producer_byte_rate": 1_048_576.0})


class _Quotas(Model):
    """All client quotas."""

    quotas: list[_Quota] = many_of(_Quota)


class _Alteration(_Entity):
    """Quotas to alter."""

    quotas: dict[str, float | None] = member(_CHANGES, _CHANGES_EXAMPLE)

    def contradictions(self) -> Iterator[tuple[str, str]]:
        if not self.names():
            yield "user", "a user, a client_id or both are needed, or an ip"


class _Altered(_Entity, notes=True):
    """Quotas that were altered."""

    altered: dict[str, float | None] = member(_CHANGES, _CHANGES_EXAMPLE)
    dry_run: bool = member("Nothing was altered.", example=False)


@ROUTES.at("GET /v1/quotas", _Quotas.answer("The quotas."))
async def get_quotas(visit: Visit) -> Json:
    """All client quotas, by entity, as this broker uses them."""
    found = describe_client_quotas(visit.host.image, DescribeClientQuotasRequest())
    return _Quotas(quotas=[_quota_of(each) for each in found.entries]).out()


def _quota_of(entry: QuotaEntry) -> _Quota:
    names = {each.entity_type: each.entity_name for each in entry.entity}
    members = {member: names[kind] for member, kind in _TYPES.items() if kind in names}
    return _Quota(**members, quotas={each.key: each.value for each in entry.values})


@ROUTES.change(
    "PATCH /v1/quotas",
    _Altered.answer("Altered, and used by the live brokers; or, in a dry run, it could be."),
    parameters=(DRY_RUN,),
    body=_Alteration.body(),
    problems=(InvalidRequest, PolicyViolation),
)
async def patch_quotas(visit: Visit) -> Json:
    """Set quotas of a user, a client id or both, or of an IP address; null removes one."""
    dry_run, sent = visit[DRY_RUN], await _Alteration.sent(visit)
    entry = QuotaAlteration(
        entity=tuple(EntityPart(entity_type=_TYPES[each], entity_name=name) for each, name in sent.names().items()),
        ops=tuple(
            QuotaChange(key=key, remove=True) if value is None else QuotaChange(key=key, value=float(value))
            for key, value in sent.quotas.items()
        ),
    )
    request = AlterClientQuotasRequest(entries=(entry,), validate_only=dry_run)
    await change(visit, request, "entries", dry_run=dry_run)
    return _Altered.out_of(sent, altered=sent.quotas, dry_run=dry_run)
