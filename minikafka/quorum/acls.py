"""Creation and deletion of access control entries at the controller (KIP-140, KIP-290).

An entry that exists already is created again without a record. Deletion takes filters: each reports all entries that it
matches in the state before the request, also those that an earlier filter of the request deletes.
"""

from __future__ import annotations

from collections.abc import Iterator

from minikafka.errors import PolicyViolation, ProtocolError
from minikafka.quorum.decision import Decision
from minikafka.quorum.image import MetadataImage, acl_record
from minikafka.quorum.records import MetadataRecord, RemoveAccessControlEntry
from minikafka.security.acl_filters import check_filter, check_new, matches
from minikafka.types import TopicId
from minikafka.wire.acls import (
    AclFilter,
    CreateAclsRequest,
    CreateAclsResponse,
    CreatedAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeletedAcls,
)

REMOVALS_MAX = 10_000
"""Entries that one request may delete, as in Kafka: all its records are one batch."""


def create_acls(
    image: MetadataImage, request: CreateAclsRequest, ids: Iterator[TopicId]
) -> Decision[CreateAclsResponse]:
    """Create each entry that is valid; ``ids`` gives random ones."""
    existing = set(image.acl_index)
    used = set(image.acls)
    records: list[MetadataRecord] = []
    results: list[CreatedAcl] = []
    for acl in request.creations:
        try:
            check_new(acl)
        except ProtocolError as error:
            results.append(
                CreatedAcl(error_code=error.code, error_message=error.message, outcome=error.outcome),
            )
            continue
        results.append(CreatedAcl())
        if acl in existing:
            continue
        existing.add(acl)
        acl_id = next(each for each in ids if each not in used)
        used.add(acl_id)
        records.append(acl_record(acl_id, acl))
    return Decision(
        records=tuple(records), response=CreateAclsResponse(results=tuple(results)), cause="ACLs were created"
    )


def delete_acls(image: MetadataImage, request: DeleteAclsRequest) -> Decision[DeleteAclsResponse]:
    """Delete every entry that a filter matches. Raises PolicyViolation if that are too many for one batch."""
    removed: set[str] = set()
    results = [_deleted(image, each, removed) for each in request.filters]
    if len(removed) > REMOVALS_MAX:
        raise PolicyViolation(
            f"The filters match {len(removed)} ACLs, one request deletes at most {REMOVALS_MAX}; use narrower filters."
        )
    return Decision(
        records=tuple(RemoveAccessControlEntry(id=acl_id) for acl_id in sorted(removed)),
        response=DeleteAclsResponse(filter_results=tuple(results)),
        cause="ACLs were deleted",
    )


def _deleted(image: MetadataImage, wanted: AclFilter, removed: set[str]) -> DeletedAcls:
    """The result for one filter; the ids of what it matches are added to ``removed``."""
    try:
        check_filter(wanted)
    except ProtocolError as error:
        return DeletedAcls(error_code=error.code, error_message=error.message, outcome=error.outcome)
    found = [acl_id for acl_id in sorted(image.acls) if matches(wanted, image.acls[acl_id])]
    removed.update(found)
    return DeletedAcls(matching_acls=tuple(image.acls[acl_id] for acl_id in found))
