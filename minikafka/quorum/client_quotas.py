"""Client quotas at the controller (KIP-546), as Kafka's ClientQuotaControlManager and ClientQuotasImage treat them.

Entries are altered apart from each other: what is wrong with one does not stop the others. A value that is there
already, and the removal of one that is not, write no record. Differs from Kafka: IP addresses have no names.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping, Sequence

from minikafka.errors import InvalidRequest, PolicyViolation, ProtocolError, UnsupportedVersion
from minikafka.quorum.decision import Decision
from minikafka.quorum.image import MetadataImage, quota_record
from minikafka.quorum.records import ClientQuota
from minikafka.security.quotas import CLIENT_ID, CONNECTION, IP, IP_KEYS, KEYS, USER, WHOLE_KEYS, Entity
from minikafka.wire.quotas import (
    ANY_SPECIFIED,
    DEFAULT,
    EXACT,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuota,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityPart,
    QuotaChange,
    QuotaEntry,
    QuotaFilterPart,
    QuotaValue,
)

ENTITIES_MAX = 10_000
"""Entities with quotas in a cluster. Kafka has no limit."""

NAME_LENGTH_MAX = 255
"""Characters of a user's name or a client id. Kafka has no limit."""

VALUE_MAX = float(2**63 - 1)
"""Of a key whose values have no fractions."""
INT_MAX = 2**31 - 1
_FRACTION = 1e-6
"""A fraction up to this of a whole number is ignored, as in Kafka."""


def alter_client_quotas(image: MetadataImage, request: AlterClientQuotasRequest) -> Decision[AlterClientQuotasResponse]:
    """Set and remove quotas."""
    records: list[ClientQuota] = []
    results: list[AlteredQuota] = []
    known = {entity: dict(values) for entity, values in image.quotas.items()}
    seen: set[Entity] = set()
    for entry in request.entries:
        try:
            entity = _checked_entity(entry.entity)
            if entity in seen:
                raise InvalidRequest("This entity stands in the request already; alter it once", member="entity")
            seen.add(entity)
            if len({op.key for op in entry.ops}) < len(entry.ops):
                raise InvalidRequest("A quota key stands twice in one entry; alter it once", member="key")
            own = known.get(entity, {})
            changed = dict(own)
            for op in entry.ops:
                _apply(changed, op, IP_KEYS if entity[0][0] == IP else KEYS)
            if changed and not own and len(known) >= ENTITIES_MAX:
                raise PolicyViolation(f"{len(known)} entities have quotas, which is the limit; remove some first.")
        except ProtocolError as error:
            results.append(AlteredQuota.failed(error, entity=entry.entity))
            continue
        results.append(AlteredQuota(entity=entry.entity))
        keys = sorted(key for key in own.keys() | changed.keys() if own.get(key) != changed.get(key))
        records.extend(quota_record(entity, key, changed.get(key)) for key in keys)
        known[entity] = changed
    return Decision(
        records=() if request.validate_only else tuple(records),
        divisible=True,
        response=AlterClientQuotasResponse(entries=tuple(results)),
        cause="client quotas were altered",
    )


def _checked_entity(parts: Sequence[EntityPart]) -> Entity:
    if not parts:
        raise InvalidRequest("A quota needs a user, a client-id or both, or an ip", member="entity")
    found: dict[str, str | None] = {}
    for each in parts:
        if each.entity_type in found:
            raise InvalidRequest(f"Duplicate entity type {each.entity_type} in one entity", member="entity_type")
        if each.entity_type not in (USER, CLIENT_ID, IP):
            raise InvalidRequest(f"Unhandled client quota entity type {each.entity_type!r}", member="entity_type")
        name = each.entity_name
        if name is not None and not (0 < len(name) <= NAME_LENGTH_MAX and "\0" not in name):
            raise InvalidRequest(
                f"The name of a {each.entity_type} must have 1 to {NAME_LENGTH_MAX} characters, none of them NUL",
                member="entity_name",
            )
        if each.entity_type == IP and name is not None and not _is_address(name):
            raise InvalidRequest(f"{name} is not an IP address", member="entity_name")
        found[each.entity_type] = name
    if IP in found and len(found) > 1:
        raise InvalidRequest("An ip is not combined with a user or a client-id", member="entity_type")
    return tuple(sorted(found.items()))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _apply(values: dict[str, float], op: QuotaChange, keys: Sequence[str]) -> None:
    if op.remove:
        values.pop(op.key, None)
        return
    if op.key not in keys:
        raise InvalidRequest(f"Invalid quota key {op.key!r}: one of {', '.join(keys)} is needed", member="key")
    value = op.value
    if not 0 < value < math.inf or (op.key in WHOLE_KEYS and value > VALUE_MAX):
        raise InvalidRequest(f"Quota {op.key} must be greater than 0, not {value}", member="value")
    if op.key == CONNECTION and value > INT_MAX:
        raise InvalidRequest(f"Quota {op.key} must be at most {INT_MAX}, not {value}", member="value")
    if op.key in WHOLE_KEYS:
        whole = math.floor(value + _FRACTION)
        if abs(value - whole) > _FRACTION:
            raise InvalidRequest(f"{op.key} must be a whole number, not {value}", member="value")
        value = float(whole)
        if value < 1:
            raise InvalidRequest(f"Quota {op.key} must be greater than 0, not {op.value}", member="value")
    values[op.key] = value


def describe_client_quotas(image: MetadataImage, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    """The quotas of the entities that the filter matches. Raises InvalidRequest, or UnsupportedVersion for a type."""
    wanted: dict[str, QuotaFilterPart] = {}
    for each in request.components:
        if not each.entity_type:
            raise InvalidRequest("Invalid empty entity type.", member="entity_type")
        if each.entity_type in wanted:
            raise InvalidRequest(f"Entity type {each.entity_type} cannot appear more than once.", member="entity_type")
        if each.entity_type not in (USER, CLIENT_ID, IP):
            raise UnsupportedVersion(f"Unsupported entity type {each.entity_type!r}")
        if (each.match_type == EXACT) != (each.match is not None):
            raise InvalidRequest("An exact match needs a name, and the other matches have none.", member="match")
        if each.match_type not in (EXACT, DEFAULT, ANY_SPECIFIED):
            raise InvalidRequest(f"Unknown match type {each.match_type}.", member="match_type")
        wanted[each.entity_type] = each
    if IP in wanted and len(wanted) > 1:
        raise InvalidRequest("An ip is not combined with a user or a client-id.", member="entity_type")
    found = [entity for entity in image.quotas if _matches(dict(entity), wanted, strict=request.strict)]
    return DescribeClientQuotasResponse(entries=tuple(_entry(each, image.quotas[each]) for each in _sorted(found)))


def _matches(names: Mapping[str, str | None], wanted: Mapping[str, QuotaFilterPart], *, strict: bool) -> bool:
    for kind, part in wanted.items():
        if kind not in names:
            return False
        if part.match_type == EXACT and names[kind] != part.match:
            return False
        if part.match_type == DEFAULT and names[kind] is not None:
            return False
    return not strict or len(names) == len(wanted)


def _sorted(entities: Sequence[Entity]) -> list[Entity]:
    return sorted(entities, key=lambda entity: [(kind, name is not None, name or "") for kind, name in entity])


def _entry(entity: Entity, values: Mapping[str, float]) -> QuotaEntry:
    return QuotaEntry(
        entity=tuple(EntityPart(entity_type=kind, entity_name=name) for kind, name in entity),
        values=tuple(QuotaValue(key=key, value=values[key]) for key in sorted(values)),
    )
