"""The controller creates, replaces and deletes SCRAM credentials (KIP-554)."""

from __future__ import annotations

import pytest

from minikafka.errors import BY_CODE
from minikafka.quorum.administration import describe_user_scram_credentials
from minikafka.quorum.records import ClusterSecret, UserScramCredential
from minikafka.quorum.story import happenings
from minikafka.security.scram import ScramMechanism, credential_of, salted_password
from minikafka.wire.credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    ScramDeletion,
    ScramUpsertion,
)
from tests.rules.controller_kit import Cluster

SALT = b"salt" * 4
SALTED = {1: b"a" * 32, 2: b"b" * 64}


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096, salt: bytes = SALT) -> ScramUpsertion:
    return ScramUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=SALTED.get(mechanism, b"")
    )


def alter(cluster: Cluster, *changes: ScramUpsertion | ScramDeletion) -> AlterUserScramCredentialsResponse:
    request = AlterUserScramCredentialsRequest(
        deletions=tuple(each for each in changes if isinstance(each, ScramDeletion)),
        upsertions=tuple(each for each in changes if isinstance(each, ScramUpsertion)),
    )
    decision = cluster.controller.alter_user_scram_credentials(cluster.image, request, bytes)
    return cluster.commit(decision, request)


def errors(response: AlterUserScramCredentialsResponse) -> dict[str, str]:
    return {each.user: BY_CODE[each.error_code].name if each.error_code else "" for each in response.results}


def described(cluster: Cluster, *users: str) -> dict[str, object]:
    """Mechanisms and iterations, or the error, by user."""
    response = describe_user_scram_credentials(cluster.image, DescribeUserScramCredentialsRequest(users=users))
    return {
        each.user: BY_CODE[each.error_code].name
        if each.error_code
        else [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in response.results
    }


def test_an_upserted_credential_is_that_of_the_password():
    """The controller makes the keys from the salted password, which is in no record."""
    cluster = Cluster()
    salted = salted_password(ScramMechanism.SCRAM_SHA_256, "secret", SALT, 4096)
    change = ScramUpsertion(name="ann", mechanism=1, iterations=4096, salt=SALT, salted_password=salted)
    response = alter(cluster, change)
    assert errors(response) == {"ann": ""}
    assert response.metadata_offset == cluster.image.offset
    credential = credential_of(ScramMechanism.SCRAM_SHA_256, salted, SALT, 4096)
    assert dict(cluster.image.scram) == {(ScramMechanism.SCRAM_SHA_256, "ann"): credential}
    assert salted not in (credential.stored_key, credential.server_key)


def test_users_have_a_credential_for_each_mechanism():
    """An upsertion replaces that of its mechanism only, and a deletion removes that one only."""
    cluster = Cluster()
    alter(cluster, upsertion("ann"), upsertion("bob", 2, 16_384))
    alter(cluster, upsertion("ann", 2, 8192))
    assert described(cluster) == {"ann": [(1, 4096), (2, 8192)], "bob": [(2, 16_384)]}
    alter(cluster, upsertion("ann", 2, 5000), ScramDeletion(name="bob", mechanism=2))
    assert described(cluster) == {"ann": [(1, 4096), (2, 5000)]}


def test_descriptions_of_named_users():
    """Unknown users and users that are named twice get an error of their own."""
    cluster = Cluster()
    alter(cluster, upsertion("ann"), upsertion("bob"))
    assert described(cluster, "ann", "eve") == {"ann": [(1, 4096)], "eve": "RESOURCE_NOT_FOUND"}
    assert described(cluster, "ann", "bob", "ann") == {"ann": "DUPLICATE_RESOURCE", "bob": [(1, 4096)]}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (upsertion("", 1), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion("x" * 256, 1), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion("a\0b", 1), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion("*", 1), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion("ANONYMOUS", 1), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion("ann", 0), "UNSUPPORTED_SASL_MECHANISM"),
        (upsertion("ann", 3), "UNSUPPORTED_SASL_MECHANISM"),
        (upsertion("ann", 1, 4095), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion("ann", 1, 16_385), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion("ann", 1, 4096, b""), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion("ann", 1, 4096, b"x" * 1025), "UNACCEPTABLE_CREDENTIAL"),
        (ScramDeletion(name="ann", mechanism=1), "RESOURCE_NOT_FOUND"),
        (ScramDeletion(name="ann", mechanism=7), "UNSUPPORTED_SASL_MECHANISM"),
    ],
)
def test_refused_changes_do_not_stop_others(change: ScramUpsertion | ScramDeletion, error: str):
    """Kafka's codes; another user of the same request is altered."""
    cluster = Cluster()
    assert errors(alter(cluster, change, upsertion("bob"))) == {change.name: error, "bob": ""}
    assert described(cluster) == {"bob": [(1, 4096)]}


def test_a_salted_password_of_the_wrong_size_is_refused():
    """Without this the user could never log in."""
    cluster = Cluster()
    change = ScramUpsertion(name="ann", mechanism=2, iterations=4096, salt=SALT, salted_password=bytes(32))
    assert errors(alter(cluster, change)) == {"ann": "UNACCEPTABLE_CREDENTIAL"}


def test_a_user_is_altered_once_in_a_request():
    """Also by a deletion and an upsertion; nothing of that user is done."""
    cluster = Cluster()
    alter(cluster, upsertion("ann"))
    twice = [ScramDeletion(name="ann", mechanism=1), upsertion("ann", 2), upsertion("bob", 1)]
    assert errors(alter(cluster, *twice)) == {"ann": "DUPLICATE_RESOURCE", "bob": ""}
    assert described(cluster) == {"ann": [(1, 4096)], "bob": [(1, 4096)]}


def test_the_first_fault_of_a_user_is_named():
    """As in Kafka: a request that names the user again is a fault only behind a change that is right."""
    cluster = Cluster()
    twice = [ScramDeletion(name="ann", mechanism=1), upsertion("ann"), upsertion("bob", 1, 1), upsertion("bob", 2)]
    assert errors(alter(cluster, *twice)) == {"ann": "RESOURCE_NOT_FOUND", "bob": "UNACCEPTABLE_CREDENTIAL"}
    assert described(cluster) == {}


def test_the_first_credential_brings_the_secret_of_the_cluster():
    """Once, and only with a credential: the salts of unknown users must never change afterwards."""
    cluster = Cluster()
    alter(cluster, upsertion("ann", 1, 1))
    assert cluster.image.cluster_secret == b""
    alter(cluster, upsertion("ann"))
    secret = cluster.image.cluster_secret
    assert secret == bytes(32)
    alter(cluster, ScramDeletion(name="ann", mechanism=1))
    alter(cluster, upsertion("bob"))
    assert cluster.image.cluster_secret == secret


def test_texts_and_events_have_no_secrets():
    """Requests, records and images may be logged by their text; events name the user and the mechanism."""
    cluster = Cluster()
    before = cluster.image
    change = upsertion("ann")
    alter(cluster, change)
    assert "salt" not in repr(change)
    shown = repr(list(cluster.image.records())) + repr(cluster.image)
    assert "ann" in shown
    kinds = {type(each) for each in cluster.image.records()}
    assert {UserScramCredential, ClusterSecret} <= kinds
    for secret in (SALT, SALTED[1], cluster.image.cluster_secret, *_keys(cluster)):
        assert repr(secret)[2:-1] not in shown
    told = [(each.kind, each.facts) for each in happenings(before, cluster.image, "why")]
    assert told == [("user_credential_set", {"user": "ann", "mechanism": "SCRAM-SHA-256", "why": "why"})]
    after = cluster.image
    alter(cluster, ScramDeletion(name="ann", mechanism=1))
    assert [each.kind for each in happenings(after, cluster.image, "why")] == ["user_credential_deleted"]


def _keys(cluster: Cluster) -> list[bytes]:
    (credential,) = cluster.image.scram.values()
    return [credential.salt, credential.stored_key, credential.server_key]
