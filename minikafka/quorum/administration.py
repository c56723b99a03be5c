"""What administrators record at the controller: ACLs, SCRAM credentials and feature levels.

ACLs (KIP-140, KIP-290): an entry that exists already is created again without a record. Deletion takes filters: each
reports all entries that it matches in the state before the request, also those that an earlier filter of the request
deletes.

SCRAM credentials (KIP-554), as Kafka's ScramControlManager alters them: each user is altered apart from the others, so
that an error in one does not stop them. The first credential of a cluster brings the cluster's secret with it, from
which all brokers make up the salts of unknown users.

Feature levels (KIP-584), as Kafka's FeatureControlManager changes them: one request changes all of its features or
none. A level that is in use already writes no record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from minikafka import errors as kafka
from minikafka.quorum.decision import Decision
from minikafka.quorum.image import MetadataImage, acl_record, scram_record
from minikafka.quorum.records import (
    ClusterSecret,
    FeatureLevel,
    MetadataRecord,
    RemoveAccessControlEntry,
    RemoveUserScramCredential,
    UserScramCredential,
)
from minikafka.security.acl_filters import AclsByName, check_filter, check_new
from minikafka.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, SECRET_SIZE, ScramMechanism, credential_of
from minikafka.types import RESERVED_NAMES, NodeId, TopicId
from minikafka.wire.acls import (
    CreateAclsRequest,
    CreateAclsResponse,
    CreatedAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeletedAcls,
)
from minikafka.wire.credentials import (
    AlteredUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CredentialInfo,
    DescribedUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramDeletion,
    ScramUpsertion,
)
from minikafka.wire.features import (
    FEATURES,
    SAFE_DOWNGRADE,
    UNSAFE_DOWNGRADE,
    UPGRADE,
    FeatureUpdate,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
    finalized,
)

REMOVALS_MAX = 10_000
"""Entries that the filters of one request may match. Kafka limits the different ones, whose records are one batch."""


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
        except kafka.ProtocolError as error:
            results.append(CreatedAcl.failed(error))
            continue
        results.append(CreatedAcl())
        if acl in existing:
            continue
        existing.add(acl)
        acl_id = next(each for each in ids if each not in used)
        used.add(acl_id)
        records.append(acl_record(acl_id, acl))
    return Decision(
        records=tuple(records),
        divisible=True,
        response=CreateAclsResponse(results=tuple(results)),
        cause="ACLs were created",
    )


def delete_acls(image: MetadataImage, request: DeleteAclsRequest) -> Decision[DeleteAclsResponse]:
    """Delete every entry that a filter matches. Raises PolicyViolation if that are too many for one batch, or for one
    response, which has an entry once for each filter that matches it.
    """
    acls = AclsByName(image.acls)
    removed: set[str] = set()
    results: list[DeletedAcls] = []
    count = 0
    for wanted in request.filters:
        try:
            check_filter(wanted)
        except kafka.ProtocolError as error:
            results.append(DeletedAcls.failed(error))
            continue
        found = acls.matching(wanted)
        count += len(found)
        if count > REMOVALS_MAX:
            raise kafka.PolicyViolation(
                f"The filters match {count} ACLs or more, one request deletes at most {REMOVALS_MAX}; use narrower "
                "filters."
            )
        removed.update(found)
        results.append(DeletedAcls(matching_acls=tuple(image.acls[acl_id] for acl_id in found)))
    return Decision(
        records=tuple(RemoveAccessControlEntry(id=acl_id) for acl_id in sorted(removed)),
        divisible=True,
        response=DeleteAclsResponse(filter_results=tuple(results)),
        cause="ACLs were deleted",
    )


NAME_LENGTH_MAX = 255
"""Characters of a user's name. Kafka has no limit."""

SALT_BYTES_MAX = 1024
"""Bytes of a salt. Kafka has no limit."""


def alter_user_scram_credentials(
    image: MetadataImage, request: AlterUserScramCredentialsRequest, entropy: Callable[[int], bytes]
) -> Decision[AlterUserScramCredentialsResponse]:
    """Create, replace and delete credentials; ``entropy`` gives so many unpredictable bytes."""
    changes: list[ScramDeletion | ScramUpsertion] = [*request.deletions, *request.upsertions]
    by_user: dict[str, list[ScramDeletion | ScramUpsertion]] = {}
    for change in changes:
        by_user.setdefault(change.name, []).append(change)
    records: list[MetadataRecord] = []
    results: list[AlteredUser] = []
    for name, (first, *others) in by_user.items():
        try:
            record = _deleted_credential(image, first) if isinstance(first, ScramDeletion) else _upserted(first)
            if others:
                raise kafka.DuplicateResource("A user credential cannot be altered twice in the same request")
        except kafka.ProtocolError as error:
            results.append(AlteredUser.failed(error, user=name))
        else:
            records.append(record)
            results.append(AlteredUser(user=name))
    if not image.cluster_secret and any(isinstance(each, UserScramCredential) for each in records):
        records.insert(0, ClusterSecret(secret=entropy(SECRET_SIZE)))
    return Decision(
        records=tuple(records),
        divisible=True,
        response=AlterUserScramCredentialsResponse(results=tuple(results)),
        cause="SCRAM credentials were altered",
    )


def _mechanism_of(change: ScramDeletion | ScramUpsertion) -> ScramMechanism:
    """Check what deletions and upsertions have in common."""
    if not change.name:
        raise kafka.UnacceptableCredential("Username must not be empty")
    if len(change.name) > NAME_LENGTH_MAX or "\0" in change.name:
        raise kafka.UnacceptableCredential(f"Username must have at most {NAME_LENGTH_MAX} characters, none of them NUL")
    if change.name in RESERVED_NAMES and isinstance(change, ScramUpsertion):
        raise kafka.UnacceptableCredential(f"Username {change.name} is reserved")
    if change.mechanism not in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        raise kafka.UnsupportedSaslMechanism("Unknown SCRAM mechanism")
    return ScramMechanism(change.mechanism)


def _deleted_credential(image: MetadataImage, change: ScramDeletion) -> RemoveUserScramCredential:
    mechanism = _mechanism_of(change)
    if (mechanism, change.name) not in image.scram:
        raise kafka.ResourceNotFound("Attempt to delete a user credential that does not exist")
    return RemoveUserScramCredential(name=change.name, mechanism=mechanism)


def _upserted(change: ScramUpsertion) -> MetadataRecord:
    mechanism = _mechanism_of(change)
    if change.iterations < ITERATIONS_MIN:
        raise kafka.UnacceptableCredential(f"Too few iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are accepted")
    if change.iterations > ITERATIONS_MAX:
        raise kafka.UnacceptableCredential(f"Too many iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are accepted")
    if not change.salt or len(change.salt) > SALT_BYTES_MAX:
        raise kafka.UnacceptableCredential(f"The salt must have 1 to {SALT_BYTES_MAX} bytes")
    if len(change.salted_password) != mechanism.size:
        raise kafka.UnacceptableCredential(
            f"The salted password must have the size of the hash, {mechanism.size} bytes"
        )
    credential = credential_of(mechanism, change.salted_password, change.salt, change.iterations)
    return scram_record(mechanism, change.name, credential)


def describe_user_scram_credentials(
    image: MetadataImage, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """Mechanisms and iterations of users; never a salt or a key."""
    found: dict[str, list[CredentialInfo]] = {}
    for mechanism, name in sorted(image.scram):
        info = CredentialInfo(mechanism=mechanism, iterations=image.scram[mechanism, name].iterations)
        found.setdefault(name, []).append(info)
    named = Counter(request.users or sorted(found))
    return DescribeUserScramCredentialsResponse(
        results=tuple(_described(name, named[name], tuple(found.get(name, ()))) for name in named)
    )


def _described(name: str, count: int, infos: tuple[CredentialInfo, ...]) -> DescribedUser:
    if count > 1:
        twice = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        return DescribedUser.failed(kafka.DuplicateResource(twice), user=name)
    if not infos:
        unknown = f"Attempt to describe a user credential that does not exist: {name}"
        return DescribedUser.failed(kafka.ResourceNotFound(unknown), user=name)
    return DescribedUser(user=name, credential_infos=infos)


REASON = "The update failed for all features since the following feature had an error: "
"""How Kafka begins the message of an update that was refused."""


def update_features(
    node_id: NodeId, image: MetadataImage, request: UpdateFeaturesRequest
) -> Decision[UpdateFeaturesResponse]:
    """Change levels.

    Args:
        node_id: The controller, for messages.
        image: What it decides on.
        request: The levels that are wanted.
    """
    levels, records = finalized(image.features), []
    for each in request.updates:
        try:
            if sum(each.name == other.name for other in request.updates) > 1:
                raise kafka.InvalidRequest(
                    f"feature {each.name} is updated twice in one request", member="feature_updates"
                )
            _check(node_id, each, levels.get(each.name, 0))
        except (kafka.InvalidRequest, kafka.InvalidUpdateVersion) as error:
            refused = UpdateFeaturesResponse(
                error_code=error.code, error_message=f"{REASON}{error.message}", outcome=error.outcome
            )
            return Decision(response=refused)
        if each.level != levels.get(each.name, 0):
            records.append(FeatureLevel(name=each.name, level=each.level))
    return Decision(
        records=() if request.validate_only else tuple(records),
        response=UpdateFeaturesResponse(),
        cause="levels of features were changed",
    )


def _check(node_id: NodeId, update: FeatureUpdate, current: int) -> None:
    """Raise InvalidUpdateVersion, in Kafka's words, unless the feature can get this level."""
    why = _why_not(node_id, update, current)
    if why is not None:
        raise kafka.InvalidUpdateVersion(f"Invalid update version {update.level} for feature {update.name}. {why}")


def _why_not(node_id: NodeId, update: FeatureUpdate, current: int) -> str | None:
    feature = FEATURES.get(update.name)
    if update.upgrade_type not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if update.level < 0:
        return "A feature version cannot be less than 0."
    if feature is None:
        return f"Local controller {node_id} does not support this feature."
    if not feature.low <= update.level <= feature.high:
        return f"Local controller {node_id} only supports versions {feature.low}-{feature.high}"
    if update.level < current and update.upgrade_type == UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if update.level > current and update.upgrade_type != UPGRADE:
        return "Can't downgrade to a newer version."
    return None
