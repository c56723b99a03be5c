"""SCRAM credentials at the controller (KIP-554), as Kafka's ScramControlManager alters them.

Users are altered apart from each other: what is wrong with one does not stop the others. The first credential of a
cluster brings the cluster's secret with it, from which all brokers make up the salts of unknown users.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from minikafka.errors import (
    DuplicateResource,
    ProtocolError,
    ResourceNotFound,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
)
from minikafka.quorum.decision import Decision
from minikafka.quorum.image import MetadataImage, scram_record
from minikafka.quorum.records import ClusterSecret, MetadataRecord, RemoveUserScramCredential, UserScramCredential
from minikafka.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, SECRET_SIZE, ScramMechanism, credential_of
from minikafka.types import RESERVED_NAMES
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

NAME_LENGTH_MAX = 255
"""Characters of a user's name. Kafka has no limit."""

SALT_BYTES_MAX = 1024
"""Bytes of a salt. Kafka has no limit."""


def alter_user_scram_credentials(
    image: MetadataImage, request: AlterUserScramCredentialsRequest, entropy: Callable[[int], bytes]
) -> Decision[AlterUserScramCredentialsResponse]:
    """Create, replace and delete credentials; ``entropy`` gives so many unpredictable bytes."""
    changes: list[ScramDeletion | ScramUpsertion] = [*request.deletions, *request.upsertions]
    named = Counter(each.name for each in changes)
    records: list[MetadataRecord] = []
    results: dict[str, AlteredUser] = {}
    for change in changes:
        try:
            if named[change.name] > 1:
                raise DuplicateResource("A user credential cannot be altered twice in the same request")
            records.append(_deleted(image, change) if isinstance(change, ScramDeletion) else _upserted(change))
        except ProtocolError as error:
            results[change.name] = AlteredUser(
                user=change.name, error_code=error.code, error_message=error.message, outcome=error.outcome
            )
        else:
            results[change.name] = AlteredUser(user=change.name)
    if not image.cluster_secret and any(isinstance(each, UserScramCredential) for each in records):
        records.insert(0, ClusterSecret(secret=entropy(SECRET_SIZE)))
    return Decision(
        records=tuple(records),
        response=AlterUserScramCredentialsResponse(results=tuple(results.values())),
        cause="SCRAM credentials were altered",
    )


def _mechanism_of(change: ScramDeletion | ScramUpsertion) -> ScramMechanism:
    """Check what deletions and upsertions have in common."""
    if not change.name:
        raise UnacceptableCredential("Username must not be empty")
    if len(change.name) > NAME_LENGTH_MAX or "\0" in change.name:
        raise UnacceptableCredential(f"Username must have at most {NAME_LENGTH_MAX} characters, none of them NUL")
    if change.name in RESERVED_NAMES and isinstance(change, ScramUpsertion):
        raise UnacceptableCredential(f"Username {change.name} is reserved")
    if change.mechanism not in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        raise UnsupportedSaslMechanism("Unknown SCRAM mechanism")
    return ScramMechanism(change.mechanism)


def _deleted(image: MetadataImage, change: ScramDeletion) -> RemoveUserScramCredential:
    mechanism = _mechanism_of(change)
    if (mechanism, change.name) not in image.scram:
        raise ResourceNotFound("Attempt to delete a user credential that does not exist")
    return RemoveUserScramCredential(name=change.name, mechanism=mechanism)


def _upserted(change: ScramUpsertion) -> MetadataRecord:
    mechanism = _mechanism_of(change)
    if change.iterations < ITERATIONS_MIN:
        raise UnacceptableCredential(f"Too few iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are accepted")
    if change.iterations > ITERATIONS_MAX:
        raise UnacceptableCredential(f"Too many iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are accepted")
    if not change.salt or len(change.salt) > SALT_BYTES_MAX:
        raise UnacceptableCredential(f"The salt must have 1 to {SALT_BYTES_MAX} bytes")
    if len(change.salted_password) != mechanism.size:
        raise UnacceptableCredential(f"The salted password must have the size of the hash, {mechanism.size} bytes")
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
    error: ProtocolError | None = None
    if count > 1:
        error = DuplicateResource(
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        )
    elif not infos:
        error = ResourceNotFound(f"Attempt to describe a user credential that does not exist: {name}")
    if error is not None:
        return DescribedUser(user=name, error_code=error.code, error_message=error.message, outcome=error.outcome)
    return DescribedUser(user=name, credential_infos=infos)
