"""The controller alters client quotas, and every broker describes them (KIP-546)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from minikafka.errors import BY_CODE, InvalidRequest, ProtocolError, UnsupportedVersion
from minikafka.quorum import client_quotas
from minikafka.quorum.client_quotas import describe_client_quotas
from minikafka.quorum.image import MetadataImage
from minikafka.quorum.story import happenings
from minikafka.security.quotas import (
    CLIENT_ID,
    CONNECTION,
    FETCH,
    IP,
    MUTATION,
    PRODUCE,
    REQUEST,
    USER,
    Bound,
    Bucket,
    Entity,
)
from minikafka.wire.quotas import (
    ANY_SPECIFIED,
    DEFAULT,
    EXACT,
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    EntityPart,
    QuotaAlteration,
    QuotaChange,
    QuotaFilterPart,
)
from tests.rules.controller_kit import Cluster

ANN: Entity = ((USER, "ann"),)
DEFAULT_USER: Entity = ((USER, None),)
ANNS_ETL: Entity = ((CLIENT_ID, "etl"), (USER, "ann"))


def alteration(entity: Entity, **values: float | None) -> QuotaAlteration:
    return QuotaAlteration(
        entity=tuple(EntityPart(entity_type=kind, entity_name=name) for kind, name in entity),
        ops=tuple(
            QuotaChange(key=key, value=0.0 if value is None else value, remove=value is None)
            for key, value in values.items()
        ),
    )


def alter(cluster: Cluster, *entries: QuotaAlteration, validate_only: bool = False) -> list[str]:
    """Names of errors, one for each entry."""
    request = AlterClientQuotasRequest(entries=entries, validate_only=validate_only)
    response = cluster.commit(cluster.controller.alter_client_quotas(cluster.image, request), request)
    assert [each.entity for each in response.entries] == [each.entity for each in entries]
    return [BY_CODE[each.error_code].name if each.error_code else "" for each in response.entries]


def test_quotas_are_set_changed_and_removed():
    """An entity without a quota is gone; snapshots have the others."""
    cluster = Cluster()
    assert alter(cluster, alteration(ANN, producer_byte_rate=10.0), alteration(ANNS_ETL, request_percentage=0.5)) == [
        "",
        "",
    ]
    assert alter(cluster, alteration(ANN, producer_byte_rate=20.0, consumer_byte_rate=7.0)) == [""]
    assert cluster.image.quotas == {ANN: {PRODUCE: 20.0, FETCH: 7.0}, ANNS_ETL: {REQUEST: 0.5}}
    again = MetadataImage(cluster_id=cluster.image.cluster_id, offset=cluster.image.offset)
    assert again.replay_all(cluster.image.records(), again.offset, 1).quotas == cluster.image.quotas
    assert alter(cluster, alteration(ANN, producer_byte_rate=None, consumer_byte_rate=None)) == [""]
    assert cluster.image.quotas == {ANNS_ETL: {REQUEST: 0.5}}
    bound = cluster.image.quota_index.bound(REQUEST, "ann", "etl")
    assert bound is not None
    assert bound.limit == 0.5


def test_quotas_of_addresses_and_of_mutations():
    """An address has one of its own, or the default; a user has a rate of partitions, which may have a fraction."""
    cluster = Cluster()
    ip, default, ipv6 = ((IP, "10.0.0.7"),), ((IP, None),), ((IP, "::1"),)
    entries = [alteration(each, connection_creation_rate=limit) for each, limit in ((ip, 5), (default, 7), (ipv6, 9))]
    assert alter(cluster, *entries, alteration(ANN, controller_mutation_rate=0.5)) == ["", "", "", ""]
    again = MetadataImage(cluster_id=cluster.image.cluster_id, offset=cluster.image.offset)
    again = again.replay_all(cluster.image.records(), again.offset, 1)
    assert again.quotas == cluster.image.quotas
    rates = again.quota_index
    assert rates.limits_connections
    found = [rates.connection_rate(each) for each in ("10.0.0.7", "10.0.0.8", "0:0:0:0:0:0:0:1", "::ffff:10.0.0.7")]
    assert found == [5, 7, 9, 5]
    assert rates.bound(MUTATION, "ann", "x") == Bound(Bucket(MUTATION, "ann", None), 0.5)
    described = describe_client_quotas(again, DescribeClientQuotasRequest(components=(part(IP, ANY_SPECIFIED),)))
    assert [each.entity[0].entity_name for each in described.entries] == [None, "10.0.0.7", "::1"]


def test_what_changes_nothing_writes_no_record():
    """Equal values, removals of what is not there, and a dry run."""
    cluster = Cluster()
    alter(cluster, alteration(ANN, producer_byte_rate=10.0))
    before = cluster.image
    alter(cluster, alteration(ANN, producer_byte_rate=10.0, consumer_byte_rate=None))
    alter(cluster, alteration(DEFAULT_USER, consumer_byte_rate=5.0), validate_only=True)
    assert (cluster.image.offset, cluster.image.quotas) == (before.offset, before.quotas)


@pytest.mark.parametrize(
    ("entity", "values"),
    [
        ((), {PRODUCE: 1.0}),
        (((USER, "ann"), (USER, "bob")), {PRODUCE: 1.0}),
        ((("group", "g"),), {PRODUCE: 1.0}),
        (((IP, "localhost"),), {CONNECTION: 1.0}),
        (((IP, ""),), {CONNECTION: 1.0}),
        (((IP, "127.0.0.1"), (USER, "ann")), {CONNECTION: 1.0}),
        (((IP, "127.0.0.1"),), {PRODUCE: 1.0}),
        (((IP, "127.0.0.1"),), {CONNECTION: 0.5}),
        (((IP, "127.0.0.1"),), {CONNECTION: 2.0**31}),
        (((USER, ""),), {PRODUCE: 1.0}),
        (((CLIENT_ID, "c" * 256),), {PRODUCE: 1.0}),
        (ANN, {"connection_creation_rate": 1.0}),
        (ANN, {MUTATION: 0.0}),
        (ANN, {PRODUCE: 0.0}),
        (ANN, {PRODUCE: -1.0}),
        (ANN, {PRODUCE: 1.5}),
        (ANN, {PRODUCE: 1e-7}),
        (ANN, {PRODUCE: math.nan}),
        (ANN, {REQUEST: math.inf}),
        (ANN, {PRODUCE: 1e30}),
    ],
)
def test_a_wrong_entry_is_refused_and_the_others_are_made(entity: Any, values: dict[str, float]):
    """INVALID_REQUEST for it alone."""
    cluster = Cluster()
    assert alter(cluster, alteration(entity, **values), alteration(DEFAULT_USER, request_percentage=50.0)) == [
        "INVALID_REQUEST",
        "",
    ]
    assert cluster.image.quotas == {DEFAULT_USER: {REQUEST: 50.0}}


def test_an_entity_and_a_key_stand_once_in_a_request():
    """As in Kafka, which makes the first alteration of an entity; of an entry that names a key twice, nothing is made."""
    cluster = Cluster()
    assert alter(cluster, alteration(ANN, producer_byte_rate=1.0), alteration(ANN, producer_byte_rate=2.0)) == [
        "",
        "INVALID_REQUEST",
    ]
    twice = (QuotaChange(key=PRODUCE, value=3.0), QuotaChange(key=PRODUCE, remove=True))
    entry = QuotaAlteration(entity=(EntityPart(entity_type=USER, entity_name="ann"),), ops=twice)
    assert alter(cluster, entry) == ["INVALID_REQUEST"]
    assert cluster.image.quotas == {ANN: {PRODUCE: 1.0}}


def test_a_key_that_is_removed_may_be_unknown():
    """As in Kafka: there is nothing to remove."""
    cluster = Cluster()
    assert alter(cluster, alteration(ANN, bogus=None, connection_creation_rate=None)) == [""]


def test_percentages_and_rates_of_mutations_have_no_limit():
    """As in Kafka: only numbers of bytes and of connections must fit an integer."""
    cluster = Cluster()
    assert alter(cluster, alteration(ANN, request_percentage=1e30, controller_mutation_rate=1e30)) == [""]


def test_whole_numbers_may_be_a_little_off():
    """As in Kafka, up to a millionth."""
    cluster = Cluster()
    alter(cluster, alteration(ANN, producer_byte_rate=9.9999999))
    assert cluster.image.quotas == {ANN: {PRODUCE: 10.0}}


def test_the_number_of_entities_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """All of them are in the memory of each broker. Those that exist can still be altered."""
    monkeypatch.setattr(client_quotas, "ENTITIES_MAX", 2)
    cluster = Cluster()
    assert alter(
        cluster,
        alteration(ANN, producer_byte_rate=1.0),
        alteration(DEFAULT_USER, producer_byte_rate=1.0),
        alteration(ANNS_ETL, producer_byte_rate=1.0),
    ) == ["", "", "POLICY_VIOLATION"]
    assert alter(cluster, alteration(ANN, producer_byte_rate=2.0)) == [""]
    assert cluster.image.quotas[ANN] == {PRODUCE: 2.0}


def test_alterations_are_events():
    """Of each entity that changed, with all its quotas."""
    cluster = Cluster()
    before = cluster.image
    alter(cluster, alteration(ANNS_ETL, producer_byte_rate=10.0))
    ((kind, facts),) = [(each.kind, each.facts) for each in happenings(before, cluster.image, "asked")]
    assert kind == "client_quotas_altered"
    assert facts == {"entity": "client-id etl, user ann", "quotas": {PRODUCE: 10.0}, "why": "asked"}


def part(kind: str, match_type: int, match: str | None = None) -> QuotaFilterPart:
    return QuotaFilterPart(entity_type=kind, match_type=match_type, match=match)


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ((), False, [DEFAULT_USER, ANN, ANNS_ETL]),
        ((), True, []),
        ((part(USER, EXACT, "ann"),), False, [ANN, ANNS_ETL]),
        ((part(USER, EXACT, "ann"),), True, [ANN]),
        ((part(USER, DEFAULT),), False, [DEFAULT_USER]),
        ((part(USER, ANY_SPECIFIED),), True, [DEFAULT_USER, ANN]),
        ((part(USER, ANY_SPECIFIED), part(CLIENT_ID, EXACT, "etl")), True, [ANNS_ETL]),
        ((part("ip", ANY_SPECIFIED),), False, []),
        ((part(USER, EXACT, "bob"),), False, []),
    ],
)
def test_filters(components: tuple[QuotaFilterPart, ...], strict: bool, found: list[Entity]):
    """Without components everything matches, unless the filter is strict."""
    cluster = Cluster()
    for entity in (ANNS_ETL, DEFAULT_USER, ANN):
        alter(cluster, alteration(entity, producer_byte_rate=10.0))
    response = describe_client_quotas(cluster.image, DescribeClientQuotasRequest(components=components, strict=strict))
    entities = [tuple((each.entity_type, each.entity_name) for each in entry.entity) for entry in response.entries]
    assert sorted(entities, key=repr) == sorted(found, key=repr)


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ((part("", DEFAULT),), InvalidRequest),
        ((part(USER, DEFAULT), part(USER, DEFAULT)), InvalidRequest),
        ((part(USER, EXACT),), InvalidRequest),
        ((part(USER, DEFAULT, "ann"),), InvalidRequest),
        ((part(USER, 7),), InvalidRequest),
        ((part("group", DEFAULT),), UnsupportedVersion),
    ],
)
def test_wrong_filters_are_refused(components: tuple[QuotaFilterPart, ...], error: type[ProtocolError]):
    """As a whole."""
    with pytest.raises(error):
        describe_client_quotas(MetadataImage(), DescribeClientQuotasRequest(components=components))
