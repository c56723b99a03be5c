"""Client quotas: the messages that describe and alter them (KIP-546).

The rules of ``messages.py`` hold here too. Which quota applies to which client is decided in ``security/quotas.py``.
"""

from __future__ import annotations

from minikafka.types import Offset
from minikafka.wire.messages import Failed, Message, Request

EXACT, DEFAULT, ANY_SPECIFIED = 0, 1, 2
"""How a filter compares an entity's name: with ``match``, only the default, or every name and the default."""


class EntityPart(Message):
    """A user, a client id or an IP address of an entity."""

    entity_type: str
    entity_name: str | None = None
    """None: the default, for all of the type that have no quota of their own."""


class QuotaValue(Message):
    key: str
    value: float


class QuotaFilterPart(Message):
    entity_type: str
    match_type: int = EXACT
    match: str | None = None


class DescribeClientQuotasRequest(Request):
    components: tuple[QuotaFilterPart, ...] = ()
    strict: bool = False
    """Entities with other types than those of ``components`` are left out."""


class QuotaEntry(Message):
    entity: tuple[EntityPart, ...]
    values: tuple[QuotaValue, ...] = ()


class DescribeClientQuotasResponse(Failed):
    entries: tuple[QuotaEntry, ...] = ()


class QuotaChange(Message):
    key: str
    value: float = 0.0
    remove: bool = False


class QuotaAlteration(Message):
    entity: tuple[EntityPart, ...]
    ops: tuple[QuotaChange, ...] = ()


class AlterClientQuotasRequest(Request):
    entries: tuple[QuotaAlteration, ...]
    validate_only: bool = False


class AlteredQuota(Failed):
    entity: tuple[EntityPart, ...]


class AlterClientQuotasResponse(Failed):
    entries: tuple[AlteredQuota, ...] = ()
    """One for each of the request, in its order."""
    metadata_offset: Offset = -1
